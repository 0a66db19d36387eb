//! The metrics of single windows of SAs of VPE. An SA may have 65,536 windows, and each would be a series
//! that is kept wherever metrics are: of most windows none is told, but how many these are.

use super::Labels;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;
use testudo_ipsec::WindowsSeen;

/// Windows of an SA with a series, at most.
const MOST_OF_SA: usize = 32;
/// The same of all SAs.
const MOST_OF_ALL: usize = 1024;

/// How many windows of each SA have a series: the first of the first SAs.
fn shown(seen: &[(Labels, WindowsSeen)]) -> Vec<usize> {
    let mut left = MOST_OF_ALL;
    let shown = seen.iter().map(|(_, windows)| {
        let shown = windows.tops.len().min(MOST_OF_SA).min(left);
        left -= shown;
        shown
    });
    shown.collect()
}

/// The highest number of windows that are in use, and how many have none told.
pub(super) fn encode(encoder: &mut DescriptorEncoder<'_>, seen: &[(Labels, WindowsSeen)]) -> fmt::Result {
    let shown = shown(seen);
    let tops = seen.iter().zip(&shown).flat_map(|((labels, windows), shown)| {
        windows.tops.iter().take(*shown).map(move |top| {
            let mut labels = labels.clone();
            labels.push(("window", top.window.to_string()));
            if top.sender != 0 {
                labels.push(("sender_id", top.sender.to_string()));
            }
            (labels, top.number)
        })
    });
    let help = "Of a window of an SA of VPE: outbound, number last used; inbound, highest received";
    gauges(encoder, "sa_window_sequence", help, tops)?;
    let omitted = seen.iter().zip(&shown).map(|((labels, windows), shown)| {
        (labels.clone(), windows.count.saturating_sub(u64::try_from(*shown).unwrap_or(u64::MAX)))
    });
    gauges(encoder, "sa_windows_omitted", "Windows of an SA of VPE that have no series of their own", omitted)
}

fn gauges(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl Iterator<Item = (Labels, u64)>,
) -> fmt::Result {
    let kind = ConstGauge::new(0u64).metric_type();
    let mut family = encoder.encode_descriptor(name, help, None, kind)?;
    for (labels, value) in values {
        let gauge = ConstGauge::new(value);
        gauge.encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use testudo_ipsec::WindowTop;

    fn of(windows: u16) -> (Labels, WindowsSeen) {
        let tops = (0..windows).map(|window| WindowTop { sender: 0, window, number: 1 }).collect();
        (Vec::new(), WindowsSeen { count: windows.into(), most: 1024, tops })
    }

    /// What nobody asked for must not fill a store of metrics, however many windows a peer opens.
    #[test]
    fn series_of_windows_are_bounded_for_each_sa_and_in_all() {
        assert_eq!(shown(&[of(0), of(8), of(32), of(33), of(64)]), [0, 8, 32, 32, 32]);
        let many: Vec<_> = (0..100).map(|_| of(64)).chain([of(1)]).collect();
        let shown = shown(&many);
        assert_eq!(shown.iter().sum::<usize>(), 1024);
        assert!(shown[..32].iter().all(|shown| *shown == 32) && shown[32..].iter().all(|shown| *shown == 0));
    }
}

//! Says in words how packets are spread over workers, and why, as far as that can be known.

use super::installed::InstalledTunnels;
use serde_json::{Value, json};
use testudo_gateway::{AllCounters, Imbalance};

/// Tunnels whose SAs are counted at most: with more, SPIs are not what is missing.
const MOST_COUNTED: usize = 256;

/// The imbalances of the last second, with words for each.
pub(super) fn imbalances(counters: &AllCounters, installed: &InstalledTunnels) -> Value {
    let found = counters.imbalances();
    if found.is_empty() {
        return json!([]);
    }
    let mut spis = 0;
    for running in installed.all().take(MOST_COUNTED) {
        spis += running.sas.lock().iter().filter(|sa| !sa.is_outbound()).count();
    }
    let tell = |imbalance: &Imbalance| {
        json!({
            "direction": if imbalance.is_outbound { "outbound" } else { "inbound" },
            "worker": imbalance.worker,
            "packets": imbalance.packets,
            "of": imbalance.all,
            "words": words(imbalance, spis),
        })
    };
    found.iter().map(tell).collect::<Vec<_>>().into()
}

fn words(imbalance: &Imbalance, spis: usize) -> String {
    let Imbalance { is_outbound, worker, packets, all, workers } = *imbalance;
    let share = packets.saturating_mul(100).checked_div(all).unwrap_or(0);
    let (direction, why) = match (is_outbound, spis) {
        (true, _) => ("outbound", "few flows have most of them, and a flow has one worker".to_owned()),
        (false, 1) => ("inbound", "there is one SPI, and an SPI has one worker".to_owned()),
        (false, _) if spis < workers => {
            ("inbound", format!("there are {spis} SPIs, and an SPI has one worker"))
        }
        (false, _) => ("inbound", "few SPIs have most of them, and an SPI has one worker".to_owned()),
    };
    format!("worker {worker} has {share} % of the {direction} packets of {workers} workers: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_imbalance_is_told_with_its_reason() {
        let of = |is_outbound, spis| {
            words(&Imbalance { is_outbound, worker: 1, packets: 900, all: 1000, workers: 2 }, spis)
        };
        let outbound = "worker 1 has 90 % of the outbound packets of 2 workers: few flows have most of them";
        assert!(of(true, 1).starts_with(outbound), "{}", of(true, 1));
        assert!(of(false, 1).contains("inbound packets of 2 workers: there is one SPI"), "{}", of(false, 1));
        assert!(of(false, 0).contains("there are 0 SPIs"));
        assert!(of(false, 7).contains("few SPIs have most of them"));
    }
}

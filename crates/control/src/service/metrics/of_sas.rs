//! The metrics of SAs.

use super::{Labels, Running, family, of_windows};
use crate::service::groups;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;
use testudo_gateway::SaCounts;
use testudo_ipsec::{ReleaseCost, Reordered, WindowsSeen};
use testudo_packet::DropReason;

/// One metric over all SAs: name, help text, value.
type SaMetric = (&'static str, &'static str, fn(&SaCounts) -> u64);

const SA_METRICS: [SaMetric; 4] = [
    ("sa_packets", "Packets that passed an SA", SaCounts::packets),
    ("sa_bytes", "Inner bytes that passed an SA", SaCounts::bytes),
    ("sa_dummies", "Dummy packets that an outbound SA sent (RFC 4303 2.6)", SaCounts::dummies),
    ("sa_sequence", "Outbound: sequence number last used; inbound: highest received", SaCounts::sequence),
];

/// One metric over the SAs from peers that several workers have: name, help text, value.
type ReorderingMetric = (&'static str, &'static str, fn(Reordered) -> u64);

const REORDERING_METRICS: [ReorderingMetric; 2] = [
    ("sa_arrived", "Packets of an inbound SA that several workers have, as they arrived", |counted| {
        counted.arrived
    }),
    ("sa_reordered", "Those of them that arrived after one with a higher number (RFC 4737 3.3)", |counted| {
        counted.reordered
    }),
];

/// One metric over the SAs from peers whose packets several workers release in order.
type ReleaseMetric = (&'static str, &'static str, fn(ReleaseCost) -> u64);

const RELEASE_METRICS: [ReleaseMetric; 2] = [
    ("sa_release_waits", "Packets of an inbound SA that waited for their turn", |cost| cost.waited),
    (
        "sa_release_passed_over",
        "Times that packets of an inbound SA went on without numbers that had not come",
        |cost| cost.passed_over,
    ),
];

/// One metric over the windows of SAs of VPE: name, help text, value.
type WindowMetric = (&'static str, &'static str, fn(&WindowsSeen) -> u64);

const WINDOW_METRICS: [WindowMetric; 2] = [
    ("sa_windows", "Outbound: windows that an SA of VPE sends in; inbound: those of the peer", |w| w.count),
    ("sa_windows_max", "Windows that an SA of VPE may have", |w| w.most),
];

pub(super) fn encode_associations(encoder: &mut DescriptorEncoder<'_>, tunnels: &[Running]) -> fmt::Result {
    let sas = associations(tunnels);
    for (name, help, get) in SA_METRICS {
        family(encoder, name, help, sas.iter().map(|(labels, c)| (labels.clone(), get(c))))?;
    }
    for (name, help, get) in REORDERING_METRICS {
        let counted = sas.iter().filter_map(|(labels, c)| Some((labels.clone(), get(c.reordered()?))));
        family(encoder, name, help, counted)?;
    }
    for (name, help, get) in RELEASE_METRICS {
        let costs = sas.iter().filter_map(|(labels, c)| Some((labels.clone(), get(c.release_cost()?))));
        family(encoder, name, help, costs)?;
    }
    encode_windows(encoder, &sas)?;
    encode_groups(encoder, &sas)?;
    let drops = sas.into_iter().flat_map(|(labels, counters)| {
        let hit = DropReason::ALL.iter().filter(|&&reason| counters.drops(reason) > 0);
        let hit = hit.map(|&reason| {
            let mut labels = labels.clone();
            labels.push(("reason", reason.name().to_owned()));
            (labels, counters.drops(reason))
        });
        hit.collect::<Vec<_>>()
    });
    family(encoder, "sa_dropped", "Packets of an SA that were dropped, by reason", drops)
}

/// The senders of groups, where there are some.
fn encode_groups(encoder: &mut DescriptorEncoder<'_>, sas: &[(Labels, SaCounts)]) -> fmt::Result {
    let heard = || sas.iter().filter(|(_, counters)| counters.senders().is_some());
    if heard().next().is_none() {
        return Ok(());
    }
    let values = heard().map(|(labels, counters)| (labels.clone(), groups::count(counters)));
    family(encoder, "sa_senders", "Senders that the inbound SA of a group has heard", values)?;
    let help = "Packets of a group that came from another address than the one before with their Sender ID, within a \
                second: two devices have it";
    let values = heard().map(|(labels, counters)| (labels.clone(), groups::doubles(counters)));
    family(encoder, "sa_senders_twice", help, values)
}

/// The windows of SAs of VPE; nothing where there are none.
fn encode_windows(encoder: &mut DescriptorEncoder<'_>, sas: &[(Labels, SaCounts)]) -> fmt::Result {
    let is_outbound = |labels: &Labels| labels.contains(&("direction", "outbound".to_owned()));
    let of_sa = |(labels, c): &(Labels, SaCounts)| Some((labels.clone(), c.windows(is_outbound(labels))?));
    let seen: Vec<_> = sas.iter().filter_map(of_sa).collect();
    if seen.is_empty() {
        return Ok(());
    }
    for (name, help, get) in WINDOW_METRICS {
        let kind = ConstGauge::new(0u64).metric_type();
        let mut family = encoder.encode_descriptor(name, help, None, kind)?;
        for (labels, windows) in &seen {
            let gauge = ConstGauge::new(get(windows));
            gauge.encode(family.encode_family(labels)?)?;
        }
    }
    of_windows::encode(encoder, &seen)
}

fn associations(tunnels: &[Running]) -> Vec<(Labels, SaCounts)> {
    let mut all = Vec::with_capacity(2 * tunnels.len());
    for tunnel in tunnels {
        all.extend(tunnel.sas.lock().iter().filter_map(|sa| {
            let mut labels = vec![
                ("tunnel", tunnel.tunnel.name.clone()),
                ("direction", if sa.is_outbound() { "outbound" } else { "inbound" }.to_owned()),
                ("spi", format!("{:#x}", sa.spi)),
            ];
            let worker = sa.worker.filter(|_| sa.is_outbound());
            labels.extend(worker.map(|worker| ("worker", worker.to_string())));
            Some((labels, sa.added.as_ref()?.counters.clone()))
        }));
    }
    all
}

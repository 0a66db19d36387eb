//! The MTU of each tunnel's path as it is in force, and what it means for packets.

use super::installed::{InstalledTunnels, Running};
use super::sas::RunningSa;
use crate::config::Sizes;
use serde_json::{Value, json};
use testudo_ipsec::{LearnedFrom, Moment};

/// The most tunnels whose paths the status has; `sa list` has all.
const LISTED: usize = 16;

/// The path of an SA of a tunnel at `now`, in the worker's time. That of ESP covered by AH is AH's.
pub(super) fn path_mtu(
    installed: &InstalledTunnels,
    running: &Running,
    sa: &RunningSa,
    now: Moment,
) -> Value {
    let covering = running.tunnel.covered_by.and_then(|position| installed.tunnels.get(position));
    let of_ah = covering.and_then(|covering| covering.sas.outbound());
    let added = of_ah.as_ref().unwrap_or(sa).added.as_ref();
    let learned = added.and_then(|added| added.counters.learned_mtu());
    let configured = installed.configuration.unprotected.mtu;
    let path = learned.map_or(configured, |learned| u16::try_from(learned.mtu).unwrap_or(configured));
    let covering = covering.zip(of_ah).map(|(covering, of_ah)| covering.tunnel.under(of_ah.suite));
    let sizes = running.tunnel.under(sa.suite).sizes(path, covering.as_deref());
    let Sizes { path_mtu, inner_mtu, overhead, mss_ipv4, mss_ipv6 } = sizes;
    json!({
        "path_mtu": path_mtu,
        "source": match learned.map(|learned| learned.from) {
            Some(LearnedFrom::Router) => "router",
            Some(LearnedFrom::Probes) => "probes",
            None => "configured",
        },
        "age_seconds": learned.map(|learned| now.since(learned.at).as_secs()),
        "overhead": overhead,
        "inner_mtu": inner_mtu,
        "mss_ipv4": mss_ipv4,
        "mss_ipv6": mss_ipv6,
    })
}

/// The paths of the first tunnels that have an SA, and how many others there are. Tunnels that cover others'
/// datagrams are parts of those.
pub(super) fn path_mtus(installed: &InstalledTunnels, now: Moment) -> (Vec<Value>, usize) {
    let mut carrying = installed.tunnels.iter().filter(|running| running.tunnel.covers.is_none());
    let row = |running: &Running| {
        let mut row = path_mtu(installed, running, &running.sas.outbound()?, now);
        row["tunnel"] = json!(running.tunnel.name);
        Some(row)
    };
    let rows = carrying.by_ref().take(LISTED).filter_map(row).collect();
    (rows, carrying.count())
}

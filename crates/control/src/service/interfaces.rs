//! The interfaces of the protected side, where there are several: what goes through each, and the tunnels
//! that it has.

use super::installed::InstalledTunnels;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use testudo_gateway::InterfaceSnapshot;
use testudo_packet::Interface;

/// What an interface has of tunnels.
#[derive(Debug, Clone, Copy, Default)]
struct Held {
    tunnels: usize,
    negotiated_tunnels: usize,
    negotiated_policies: usize,
    negotiated_sas: usize,
}

/// Of all tunnels, in one pass: there may be many.
fn held(installed: &InstalledTunnels) -> BTreeMap<Interface, Held> {
    let mut all: BTreeMap<Interface, Held> = BTreeMap::new();
    for running in &installed.tunnels {
        all.entry(running.tunnel.interface).or_default().tunnels += 1;
    }
    for tunnel in installed.negotiated.all() {
        let held = all.entry(tunnel.running.tunnel.interface).or_default();
        held.negotiated_tunnels += 1;
        held.negotiated_sas += tunnel.running.sas.lock().len();
    }
    for policy in installed.negotiated.policies() {
        all.entry(policy.entry.interface).or_default().negotiated_policies += 1;
    }
    all
}

/// A row for each interface, the main one first; none where it is alone.
#[must_use]
pub fn interfaces(installed: &InstalledTunnels, snapshots: &[InterfaceSnapshot]) -> Value {
    let held = held(installed);
    let configuration = &installed.configuration;
    let row = |(number, snapshot): (Interface, &InterfaceSnapshot)| {
        let held = held.get(&number).copied().unwrap_or_default();
        let if_id =
            usize::from(number.0).checked_sub(1).and_then(|at| configuration.interfaces.get(at)?.if_id);
        let c = &snapshot.counters;
        let drops = snapshot.drops.iter().filter(|(_, count)| *count > 0);
        let drops = drops.map(|(reason, count)| (reason.name().to_owned(), json!(count)));
        json!({
            "name": snapshot.name,
            "if_id": if_id,
            "rx_packets": c.rx_packets,
            "rx_bytes": c.rx_bytes,
            "tx_packets": c.tx_packets,
            "tx_bytes": c.tx_bytes,
            "drops": drops.collect::<Map<_, _>>(),
            "tunnels": held.tunnels,
            "negotiated": {
                "tunnels": held.negotiated_tunnels,
                "policies": held.negotiated_policies,
                "sas": held.negotiated_sas,
            },
        })
    };
    (0..u8::MAX).map(Interface).zip(snapshots).map(row).collect::<Vec<_>>().into()
}

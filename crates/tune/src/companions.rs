//! What the kernel changes along with a setting, and does not bring back with it: that is kept before it.
//!
//! ```text
//!   MTU                 those of VLANs and other interfaces on top, down to it or with it;
//!                       of each that changes, IPv6's becomes the same (addrconf_notify in the kernel)
//!   another governor    forgets the tunables of the one before; `performance` sets the energy preference
//!   adaptive-rx         off, some drivers set rx-usecs and rx-frames of their own
//!   huge pages          as many on each NUMA node
//! ```
//!
//! Companions are before their setting in the journal, so that undo, which goes backwards, has the setting
//! as it was when it comes to them.

use crate::host::{Host, Reading};
use crate::journal::Entry;
use crate::place::{Coalescing, Place};

/// Interfaces on top of each other: more are not looked at.
const MAX_DEPTH: usize = 8;
/// The least MTU of IPv6 (RFC 8200 5).
const LEAST_OF_IPV6: u64 = 1280;
/// Header and ICV: as far below the interface that it is on is the MTU of macsec (`macsec_notify`).
const BYTES_OF_MACSEC: u64 = 32;

/// The companions of a setting that is about to change, with their values; the outermost first.
pub(crate) fn companions(host: &dyn Host, place: &Place) -> Vec<(Place, String)> {
    let places = match place {
        Place::Interface { file } if file == "mtu" => {
            let interface = host.interface();
            let own = index_of(host, interface).map(|index| ipv6(interface, index));
            let mut found: Vec<Place> = own.into_iter().collect();
            on_top(host, interface, &mut found, MAX_DEPTH);
            found
        }
        Place::Governor { policy } => {
            let mut found = tunables(host, policy);
            found.push(Place::EnergyPreference { policy: policy.clone() });
            found
        }
        Place::Coalescing { item: Coalescing::AdaptiveRx } => {
            [Coalescing::RxUsecs, Coalescing::RxFrames].map(|item| Place::Coalescing { item }).to_vec()
        }
        Place::HugePages { size_kib } => nodes(host, *size_kib),
        _ => Vec::new(),
    };
    let value = |place: Place| match host.read(&place) {
        Reading::Value(value) => Some((place, value)),
        _ => None,
    };
    places.into_iter().filter_map(value).collect()
}

/// Whether an entry is a companion of a setting.
pub(crate) fn is_companion(entry: &Entry, of: &Place) -> bool {
    match (&entry.place, of) {
        (Place::Tunable { policy, .. }, Place::Governor { policy: of }) => {
            policy.as_ref().is_none_or(|policy| policy == of)
        }
        (Place::EnergyPreference { policy }, Place::Governor { policy: of }) => policy == of,
        (Place::Coalescing { item }, Place::Coalescing { item: Coalescing::AdaptiveRx }) => {
            *item != Coalescing::AdaptiveRx
        }
        (Place::NodePages { size_kib, .. }, Place::HugePages { size_kib: of }) => size_kib == of,
        (Place::MtuOf { .. } | Place::Ipv6MtuOf { .. }, Place::Interface { file }) => file == "mtu",
        // Which of them is on top of which is not in the journal.
        (Place::MtuOf { .. } | Place::Ipv6MtuOf { .. }, Place::MtuOf { .. }) => true,
        _ => false,
    }
}

/// The MTU of IPv6, which is there only where IPv6 is.
fn ipv6(interface: &str, index: u64) -> Place {
    Place::Ipv6MtuOf { interface: interface.to_owned(), index }
}

fn index_of(host: &dyn Host, interface: &str) -> Option<u64> {
    host.text(&format!("sys/class/net/{interface}/ifindex"))?.parse().ok()
}

/// Whether the interface is on top of others.
pub(crate) fn is_on_others(host: &dyn Host) -> bool {
    let links = host.names(&format!("sys/class/net/{}", host.interface()));
    links.iter().any(|link| link.starts_with("lower_"))
}

/// Interfaces on top of one, whatever their MTU is: some follow it down, and some up as well. That of IPv6 is
/// before the interface's own, by whose undo it changes once more.
fn on_top(host: &dyn Host, interface: &str, found: &mut Vec<Place>, depth: usize) {
    for name in uppers(host, interface) {
        let Some(index) = index_of(host, &name) else { continue };
        let place = Place::MtuOf { interface: name.clone(), index };
        if depth > 0 && !found.contains(&place) {
            on_top(host, &name, found, depth - 1);
            found.extend([ipv6(&name, index), place]);
        }
    }
}

/// The interfaces right on top of one.
fn uppers(host: &dyn Host, interface: &str) -> Vec<String> {
    let links = host.names(&format!("sys/class/net/{interface}"));
    links.iter().filter_map(|link| link.strip_prefix("upper_").map(str::to_owned)).collect()
}

/// The interface from which an MTU of this one would take IPv6: itself, or one on top that is lowered along.
pub(crate) fn loses_ipv6(host: &dyn Host, interface: &str, mtu: u64) -> Option<String> {
    loses_ipv6_within(host, interface, mtu, MAX_DEPTH)
}

fn loses_ipv6_within(host: &dyn Host, interface: &str, mtu: u64, depth: usize) -> Option<String> {
    let has_ipv6 = || !host.names(&format!("proc/sys/net/ipv6/conf/{interface}")).is_empty();
    if mtu < LEAST_OF_IPV6 && has_ipv6() {
        return Some(interface.to_owned());
    }
    uppers(host, interface).into_iter().filter(|_| depth > 0).find_map(|name| {
        let text = |file: &str| host.text(&format!("sys/class/net/{name}/{file}"));
        let has: u64 = text("mtu")?.parse().ok()?;
        let is_macsec = text("uevent").is_some_and(|text| text.lines().any(|line| line == "DEVTYPE=macsec"));
        let most = if is_macsec { mtu.saturating_sub(BYTES_OF_MACSEC) } else { mtu };
        if most < has { loses_ipv6_within(host, &name, most, depth - 1) } else { None }
    })
}

/// Those of the governor that a policy has: of the policy alone, or of all policies with that governor.
fn tunables(host: &dyn Host, policy: &str) -> Vec<Place> {
    let Reading::Value(governor) = host.read(&Place::Governor { policy: policy.to_owned() }) else {
        return Vec::new();
    };
    let of = |policy: Option<&str>| {
        let folder = Place::tunables(policy, &governor);
        let tunable =
            |name| Place::Tunable { policy: policy.map(str::to_owned), governor: governor.clone(), name };
        host.names(&folder).into_iter().map(tunable).filter(Place::is_valid).collect::<Vec<_>>()
    };
    [of(None), of(Some(policy))].concat()
}

fn nodes(host: &dyn Host, size_kib: u64) -> Vec<Place> {
    let names = host.names("sys/devices/system/node").into_iter();
    let nodes = names.map(|node| Place::NodePages { node, size_kib }).filter(Place::is_valid);
    let nodes: Vec<_> = nodes.collect();
    // One node has them all.
    if nodes.len() > 1 { nodes } else { Vec::new() }
}

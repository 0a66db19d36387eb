//! Routes to the remote networks: those into the tunnel, and those that are left when these are gone.

use super::entry::{Entry, entries};
use crate::config::{Configuration, Network, Networks, Remote};
use std::collections::HashSet;

/// Who made a route, as `ip route` shows it: `proto 84`. The kernel does not interpret it, and no routing
/// daemon has it.
const PROTOCOL: u8 = 84;
/// Metrics of fallback routes lie above this: worse than whatever else leads to the same network.
const METRICS: u32 = 0xFF00_0000;

/// The networks that are routed into the tunnel: the remote one of each selector that protects; none if the
/// configuration wants no routes. A selector with any remote address gives none: a default route into the
/// tunnel would catch the tunnel's own packets, and is for the operator to design.
#[must_use]
pub fn routed(configuration: &Configuration) -> Vec<Network> {
    if !configuration.protected.routes {
        return Vec::new();
    }
    let mut seen = HashSet::new();
    let protecting = entries(configuration).into_iter().filter(|entry| entry.protect);
    protecting.filter_map(|entry| entry.remote()).filter(|remote| seen.insert(*remote)).collect()
}

/// The routes that say "unreachable" while there is no gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FallbackRoutes {
    networks: Vec<Network>,
    metric: u32,
}

impl FallbackRoutes {
    /// One for each routed network. None where packets leave in clear for it by right, from sockets that are
    /// bound to the outer interface: what a policy bypasses, and the tunnel's own packets. Linux passes over
    /// a route by another interface for these, but not over one that says "unreachable". The rules alone keep
    /// the rest from leaving then.
    pub(super) fn of(configuration: &Configuration) -> Self {
        let mut networks = routed(configuration);
        let known: Networks = networks.iter().copied().collect();
        let peers = configuration.tunnels.iter().filter_map(|tunnel| match tunnel.remote {
            Remote::Address(peer) => Some(Network::host(peer)),
            Remote::Any => None,
        });
        let entries = entries(configuration);
        let bypassed = || entries.iter().filter(|entry| entry.bypass);
        let narrow = peers.chain(bypassed().filter_map(Entry::remote));
        let needed: HashSet<_> = narrow.flat_map(|network| known.holding(network)).collect();
        let wide: Networks = bypassed().filter_map(Entry::remote).collect();
        // One that takes any remote address may be about one version only.
        let all = |ipv6| bypassed().any(|e| e.remote().is_none() && e.versions().any(|v| v == ipv6));
        let all = [all(false), all(true)];
        networks.retain(|network| {
            let ipv6 = network.address().is_ipv6();
            !all[usize::from(ipv6)] && !needed.contains(network) && wide.holding(*network).next().is_none()
        });
        Self { networks, metric: metric(&configuration.protected.name) }
    }

    /// The networks, in the order of their policies.
    #[must_use]
    pub fn networks(&self) -> &[Network] {
        &self.networks
    }

    /// What of `ip route` selects the fallback routes of this gateway, and no others.
    #[must_use]
    pub fn selection(&self) -> [String; 4] {
        ["proto".to_owned(), PROTOCOL.to_string(), "metric".to_owned(), self.metric.to_string()]
    }

    /// For `ip -4 -batch -` or `ip -6 -batch -`: adds those of one version; a route that is there already
    /// stays.
    #[must_use]
    pub fn addition(&self, ipv6: bool) -> String {
        self.batch(ipv6, &self.networks, "replace")
    }

    /// For `ip -batch -` likewise: removes these.
    #[must_use]
    pub fn removal(&self, ipv6: bool, networks: &[Network]) -> String {
        self.batch(ipv6, networks, "del")
    }

    /// The commands that a person would type.
    #[must_use]
    pub fn commands(&self) -> Vec<String> {
        let command = |ipv6, version| {
            self.addition(ipv6).lines().map(|line| format!("ip {version} {line}")).collect::<Vec<_>>()
        };
        [command(false, "-4"), command(true, "-6")].concat()
    }

    fn batch(&self, ipv6: bool, networks: &[Network], verb: &str) -> String {
        let networks = networks.iter().filter(|network| network.address().is_ipv6() == ipv6);
        let selection = self.selection().join(" ");
        networks.map(|network| format!("route {verb} unreachable {network} {selection}\n")).collect()
    }
}

/// A metric for the routes of one gateway, so that those of several on a host are told apart (FNV-1a of the
/// interface's name).
fn metric(interface: &str) -> u32 {
    let hash = interface
        .bytes()
        .fold(0x811C_9DC5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    METRICS | (hash & 0x00FF_FFFF)
}

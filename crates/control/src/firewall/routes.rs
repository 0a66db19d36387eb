//! Routes to the remote networks: those into the tunnel, and those that remain when these are gone.

use super::entry::{Entry, entries};
use crate::config::{Configuration, Network, Networks, Remote};
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use testudo_ipsec::Direction;

/// The origin of a route, as `ip route` shows it: `proto 84`. The kernel does not interpret it, and no
/// routing daemon uses it.
const PROTOCOL: u8 = 84;
/// Metrics of fallback routes are above this: worse than any other route to the same network.
const METRICS: u32 = 0xFF00_0000;

/// A route into the tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TunnelRoute {
    /// Where it leads.
    pub network: Network,
    /// Our outer address, where the policy is about packets of this host from that address: the host must use
    /// it as their source, although the tunnel's interface has other addresses or none.
    pub source: Option<IpAddr>,
}

/// The routes into the tunnel: to the remote network of each selector that protects; none if the
/// configuration disables routes. A selector with any remote address yields none: a default route into the
/// tunnel would catch the tunnel's own packets, and is left to the operator.
#[must_use]
pub fn tunnel_routes(configuration: &Configuration) -> Vec<TunnelRoute> {
    if !configuration.protected.routes {
        return Vec::new();
    }
    let outer: HashSet<_> = configuration.tunnels.iter().map(|t| Network::host(t.local)).collect();
    let mut places = HashMap::new();
    let mut routes: Vec<TunnelRoute> = Vec::new();
    for entry in entries(configuration).into_iter().filter(Entry::is_routed) {
        let mut locals = entry.local_networks();
        let source = locals.find(|local| outer.contains(local)).map(|local| local.address());
        for network in entry.remote_networks() {
            let place = *places.entry(network).or_insert(routes.len());
            match routes.get_mut(place) {
                Some(route) => route.source = route.source.or(source),
                None => routes.push(TunnelRoute { network, source }),
            }
        }
    }
    routes
}

/// The outer addresses of peers that are in a network which is routed into the tunnel.
pub fn routed_peers(configuration: &Configuration) -> impl Iterator<Item = IpAddr> {
    let networks: Networks = routed(configuration).into_iter().collect();
    let peers = configuration.tunnels.iter().filter_map(|tunnel| match tunnel.remote {
        Remote::Address(peer) => Some(peer),
        Remote::Any => None,
    });
    peers.filter(move |peer| networks.holding(Network::host(*peer)).next().is_some())
}

/// The networks that are routed into the tunnel.
fn routed(configuration: &Configuration) -> Vec<Network> {
    tunnel_routes(configuration).into_iter().map(|route| route.network).collect()
}

/// The routes that answer "unreachable" while no gateway runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FallbackRoutes {
    networks: Vec<Network>,
    metric: u32,
}

impl FallbackRoutes {
    /// Those to these networks, of the gateway with this TUN interface.
    #[must_use]
    pub fn new(interface: &str, networks: Vec<Network>) -> Self {
        Self { networks, metric: metric(interface) }
    }

    /// One for each routed network, except where packets legitimately leave for it in clear from sockets that
    /// are bound to the outer interface: those of a bypass policy, and the tunnel's own. For these Linux
    /// ignores a route through another interface, but not one that says "unreachable". Then the rules alone
    /// keep other packets from leaving.
    pub(super) fn of(configuration: &Configuration) -> Self {
        let mut networks = routed(configuration);
        let known: Networks = networks.iter().copied().collect();
        let peers = configuration.tunnels.iter().filter_map(|tunnel| match tunnel.remote {
            Remote::Address(peer) => Some(Network::host(peer)),
            Remote::Any => None,
        });
        let entries = entries(configuration);
        let leaves = |entry: &&Entry| entry.directions.include(Direction::Outbound);
        let bypassed = || entries.iter().filter(|entry| entry.bypass).filter(leaves);
        let narrow = peers.chain(bypassed().flat_map(Entry::remote_networks));
        let needed: HashSet<_> = narrow.flat_map(|network| known.holding(network)).collect();
        let wide: Networks = bypassed().flat_map(Entry::remote_networks).collect();
        // A bypass policy with any remote address may be about one version only.
        let all = |ipv6| bypassed().any(|e| e.remote().is_none() && e.versions().any(|v| v == ipv6));
        let all = [all(false), all(true)];
        networks.retain(|network| {
            let ipv6 = network.address().is_ipv6();
            !all[usize::from(ipv6)] && !needed.contains(network) && wide.holding(*network).next().is_none()
        });
        Self::new(&configuration.protected.name, networks)
    }

    /// The networks, in the order of their policies.
    #[must_use]
    pub fn networks(&self) -> &[Network] {
        &self.networks
    }

    /// The arguments of `ip route` that select the fallback routes of this gateway and no others.
    #[must_use]
    pub fn selection(&self) -> [String; 4] {
        ["proto".to_owned(), PROTOCOL.to_string(), "metric".to_owned(), self.metric.to_string()]
    }

    /// For `ip -4 -batch -` or `ip -6 -batch -`: adds the routes of one version; those that exist stay.
    #[must_use]
    pub fn addition(&self, ipv6: bool) -> String {
        self.batch(ipv6, &self.networks, "replace")
    }

    /// For the same: removes the routes of one version to `networks`.
    #[must_use]
    pub fn removal(&self, ipv6: bool, networks: &[Network]) -> String {
        self.batch(ipv6, networks, "del")
    }

    /// The same commands as a person would type them.
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

/// A metric that tells the routes of several gateways on a host apart (FNV-1a of the interface's name).
fn metric(interface: &str) -> u32 {
    let hash = interface
        .bytes()
        .fold(0x811C_9DC5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    METRICS | (hash & 0x00FF_FFFF)
}

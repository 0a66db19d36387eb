//! Routes to the remote networks: those into the tunnel, and those that remain when these are gone.

use super::entry::{self, Entry, entries};
use crate::config::{Configuration, Network, Networks, Policy, Remote, Tunnel, networks};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
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
    let outer = outer_addresses(configuration);
    let mut places = HashMap::new();
    let mut routes: Vec<TunnelRoute> = Vec::new();
    for entry in entries(configuration).into_iter().filter(Entry::is_routed) {
        let source = source_of(&entry, &outer);
        for network in entry.remote_networks() {
            let place = *places.entry(network).or_insert(routes.len());
            match routes.get_mut(place) {
                // Of several the lowest, in any order.
                Some(route) => route.source = route.source.into_iter().chain(source).min(),
                None => routes.push(TunnelRoute { network, source }),
            }
        }
    }
    routes
}

/// Which packets that arrive by the protected interface are the gateway's, by their destinations, where the
/// kernel would route them otherwise: those to the remote networks of policies that protect or discard. Of a
/// policy whose remote addresses are more than its local ones and contain them, these are left out: packets
/// between two local hosts are none of its.
#[must_use]
pub fn destinations(configuration: &Configuration) -> Destinations {
    let mut all = Destinations::default();
    let entries = entries(configuration);
    let leaves = |entry: &&Entry| !entry.bypass && entry.directions.include(Direction::Outbound);
    for entry in entries.iter().filter(leaves) {
        let named = all.taken.len();
        all.taken.extend(networks(entry.selector.remote));
        if all.taken.len() == named {
            let any = |is_ipv6| if is_ipv6 { [0_u8; 16].into() } else { [0_u8; 4].into() };
            let everything = entry.versions().filter_map(|ipv6| Network::containing(any(ipv6), 0));
            all.taken.extend(everything);
        }
        all.left.extend(entry.local_within_remote().into_iter().flat_map(networks));
    }
    all
}

/// Networks that are the gateway's, and parts of them that are not; the longest prefix decides, and of equal
/// ones what is taken.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Destinations {
    /// All packets to these.
    pub taken: Vec<Network>,
    /// None to these.
    pub left: Vec<Network>,
}

fn outer_addresses(configuration: &Configuration) -> HashSet<Network> {
    configuration.tunnels.iter().map(|tunnel| Network::host(tunnel.local)).collect()
}

/// Our outer address, if an entry is about packets from it.
fn source_of(entry: &Entry, outer: &HashSet<Network>) -> Option<IpAddr> {
    entry.local_networks().find(|local| outer.contains(local)).map(|local| local.address())
}

/// A route into the tunnel before and after a change of policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteChange {
    /// The route as it was; `None` if there was none.
    pub before: Option<TunnelRoute>,
    /// The route as it is now.
    pub after: Option<TunnelRoute>,
}

/// The same routes, kept as policies come and go: a change costs what its own networks cost.
#[derive(Debug, Clone, Default)]
pub struct RouteIndex {
    /// Whether the configuration has routes at all.
    is_on: bool,
    outer: HashSet<Network>,
    /// By network, how many entries ask for a route from each source.
    sources: HashMap<Network, BTreeMap<Option<IpAddr>, usize>>,
}

impl RouteIndex {
    /// The routes of a configuration.
    #[must_use]
    pub fn of(configuration: &Configuration) -> Self {
        let (is_on, outer) = (configuration.protected.routes, outer_addresses(configuration));
        let mut index = Self { is_on, outer, sources: HashMap::new() };
        if is_on {
            entries(configuration).iter().for_each(|entry| index.count(entry, true));
        }
        index
    }

    /// Replaces a policy by another, where there are any. Returns the routes that differ then.
    pub fn change(&mut self, old: Option<&Policy>, new: Option<&Policy>) -> Vec<RouteChange> {
        if !self.is_on {
            return Vec::new();
        }
        let of = |policy: Option<&Policy>| policy.into_iter().flat_map(entry::of_policy).collect::<Vec<_>>();
        let (gone, come) = (of(old), of(new));
        let routed = gone.iter().chain(&come).filter(|entry| entry.is_routed());
        let networks: BTreeSet<Network> = routed.flat_map(Entry::remote_networks).collect();
        let before: Vec<_> = networks.iter().map(|network| self.route(*network)).collect();
        gone.iter().for_each(|entry| self.count(entry, false));
        come.iter().for_each(|entry| self.count(entry, true));
        let after = networks.iter().map(|network| self.route(*network));
        let changes = before.into_iter().zip(after).map(|(before, after)| RouteChange { before, after });
        changes.filter(|change| change.before != change.after).collect()
    }

    /// Whether the configuration has routes at all.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Whether there is a route to a network.
    #[must_use]
    pub fn has(&self, network: Network) -> bool {
        self.sources.contains_key(&network)
    }

    fn route(&self, network: Network) -> Option<TunnelRoute> {
        let sources = self.sources.get(&network)?;
        // Without a source sorts first.
        Some(TunnelRoute { network, source: sources.keys().copied().flatten().next() })
    }

    fn count(&mut self, entry: &Entry, is_new: bool) {
        if !entry.is_routed() {
            return;
        }
        let source = source_of(entry, &self.outer);
        for network in entry.remote_networks() {
            let sources = self.sources.entry(network).or_default();
            let count = sources.entry(source).or_default();
            *count = if is_new { *count + 1 } else { count.saturating_sub(1) };
            if *count == 0 {
                sources.remove(&source);
            }
            if sources.is_empty() {
                self.sources.remove(&network);
            }
        }
    }
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
    ///
    /// What is negotiated has none: its routes are in another table, over which Linux prefers one that says
    /// "unreachable" even if it is shorter. `own` are the configuration's entries; all `entries` and
    /// `negotiated` tunnels are what is in force.
    pub(super) fn of(
        configuration: &Configuration,
        own: &[Entry],
        entries: &[Entry],
        negotiated: &[Tunnel],
    ) -> Self {
        let mut networks = Vec::new();
        if configuration.protected.routes {
            let mut seen = HashSet::new();
            let remotes = own.iter().filter(|e| e.is_routed()).flat_map(Entry::remote_networks);
            networks.extend(remotes.filter(|network| seen.insert(*network)));
        }
        let known: Networks = networks.iter().copied().collect();
        let tunnels = configuration.tunnels.iter().chain(negotiated);
        let peers = tunnels.filter_map(|tunnel| match tunnel.remote {
            Remote::Address(peer) => Some(Network::host(peer)),
            Remote::Any => None,
        });
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::MINIMAL;
    use fastrand::Rng;

    /// Protects between networks of which many are the same, some of them from our outer addresses.
    fn random_policy(random: &mut Rng, number: u32) -> Policy {
        let local = ["any", "192.0.2.1", "10.1.0.0/16"][random.usize(..3)];
        let remote = format!("10.{}.0.0/16, 10.9.0.1-10.9.0.{}", random.u8(2..5), random.u8(2..5));
        let action = ["protect\"\ntunnel = \"site-b", "discard"][usize::from(random.u8(..4) == 0)];
        let direction = ["in", "out", "both"][random.usize(..3)];
        let text = format!(
            "action = \"{action}\"\ndirection = \"{direction}\"\nlocal = \"{local}\"\nremote = \"{remote}\"\n"
        );
        Configuration::parse(MINIMAL, "t.toml").unwrap().policy_of(&text, number)
    }

    #[test]
    fn routes_that_follow_changes_are_those_of_all_policies() {
        let (mut random, mut left) = (Rng::with_seed(7), Vec::<Policy>::new());
        let empty = Configuration::parse(MINIMAL, "t.toml").unwrap();
        let all = |left: &[Policy]| -> BTreeMap<Network, TunnelRoute> {
            let configuration = Configuration { policies: left.to_vec(), ..empty.clone() };
            tunnel_routes(&configuration).into_iter().map(|route| (route.network, route)).collect()
        };
        let (mut index, mut routes) = (RouteIndex::of(&empty), all(&[]));
        for number in 1..300 {
            let new = random_policy(&mut random, number);
            let place = random.usize(..=left.len());
            let changes = match left.get_mut(place) {
                Some(old) if random.bool() => {
                    index.change(Some(&std::mem::replace(old, new.clone())), Some(&new))
                }
                Some(_) if random.bool() => index.change(Some(&left.remove(place)), None),
                _ => {
                    left.insert(place, new.clone());
                    index.change(None, Some(&new))
                }
            };
            for RouteChange { before, after } in changes {
                let network = before.or(after).unwrap().network;
                assert_eq!(routes.remove(&network), before, "seed 7");
                routes.extend(after.map(|route| (network, route)));
            }
            assert_eq!(routes, all(&left), "seed 7, {left:?}");
        }
    }

    #[test]
    fn without_routes_in_the_configuration_none_change() {
        let mut configuration = Configuration::parse(MINIMAL, "t.toml").unwrap();
        configuration.protected.routes = false;
        let policy = random_policy(&mut Rng::with_seed(1), 1);
        assert_eq!(RouteIndex::of(&configuration).change(None, Some(&policy)), []);
    }
}

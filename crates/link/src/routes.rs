//! Next hops by longest prefix.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Where packets to a network go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextHop {
    /// Each host of it is a neighbour.
    OnLink,
    /// A router, itself a neighbour. It may be of the other IP version (RFC 5549).
    Gateway(IpAddr),
    /// Nowhere by this port: routes that say "unreachable", and those that lead out of other interfaces.
    Elsewhere,
}

/// A route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// An address of the network; bits beyond the prefix do not count.
    pub network: IpAddr,
    /// Bits of the prefix; more than the address has are as many as it has.
    pub prefix_bits: u8,
    /// Where its packets go.
    pub next_hop: NextHop,
    /// Of several routes to the same network, the one with the lowest metric is followed, and among equals
    /// the first.
    pub metric: u32,
}

/// A table of routes, replaced as a whole.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Routes {
    /// By masked network and bits.
    next_hops: HashMap<(IpAddr, u8), (NextHop, u32)>,
    /// The lengths that occur, longest first: a lookup tries each.
    v4_lengths: Vec<u8>,
    v6_lengths: Vec<u8>,
}

impl Routes {
    /// The table of these routes.
    #[must_use]
    pub fn new(routes: &[Route]) -> Self {
        let mut table = Self::default();
        for route in routes {
            let bits = route.prefix_bits.min(bits_of(route.network));
            let network = masked(route.network, bits);
            let entry = table.next_hops.entry((network, bits)).or_insert((route.next_hop, route.metric));
            if route.metric < entry.1 {
                *entry = (route.next_hop, route.metric);
            }
            let lengths = if network.is_ipv4() { &mut table.v4_lengths } else { &mut table.v6_lengths };
            if let Err(at) = lengths.binary_search_by(|have| bits.cmp(have)) {
                lengths.insert(at, bits);
            }
        }
        table
    }

    /// The neighbour that a packet to `destination` goes to; `None` if there is no route, or it leads
    /// elsewhere.
    #[must_use]
    pub fn next_hop(&self, destination: IpAddr) -> Option<IpAddr> {
        let lengths = if destination.is_ipv4() { &self.v4_lengths } else { &self.v6_lengths };
        let found = lengths.iter().find_map(|&bits| self.next_hops.get(&(masked(destination, bits), bits)));
        match found?.0 {
            NextHop::OnLink => Some(destination),
            NextHop::Gateway(gateway) => Some(gateway),
            NextHop::Elsewhere => None,
        }
    }
}

fn bits_of(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The address with all bits after the first `bits` cleared.
fn masked(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(a) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits.min(32))).unwrap_or(0);
            Ipv4Addr::from(u32::from(a) & mask).into()
        }
        IpAddr::V6(a) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits.min(128))).unwrap_or(0);
            Ipv6Addr::from(u128::from(a) & mask).into()
        }
    }
}

/// Whether `address` is in the network of `other` with a prefix of `bits`.
pub(crate) fn is_in(address: IpAddr, other: IpAddr, bits: u8) -> bool {
    address.is_ipv4() == other.is_ipv4() && masked(address, bits) == masked(other, bits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;

    fn route(network: &str, prefix_bits: u8, next_hop: NextHop, metric: u32) -> Route {
        Route { network: network.parse().unwrap(), prefix_bits, next_hop, metric }
    }

    fn via(gateway: &str) -> NextHop {
        NextHop::Gateway(gateway.parse().unwrap())
    }

    #[test]
    fn the_longest_prefix_decides_and_then_the_lowest_metric() {
        let routes = Routes::new(&[
            route("0.0.0.0", 0, via("192.0.2.1"), 100),
            route("0.0.0.0", 0, via("192.0.2.2"), 50),
            route("0.0.0.0", 0, via("192.0.2.3"), 50),
            route("192.0.2.77", 24, NextHop::OnLink, 0),
            route("10.0.0.0", 8, via("192.0.2.4"), 0),
            route("10.1.0.0", 16, NextHop::Elsewhere, 0),
            route("10.1.2.3", 32, via("fe80::1"), 0),
            route("2001:db8::", 64, NextHop::OnLink, 0),
            route("::", 0, via("2001:db8::1"), 0),
        ]);
        for (destination, expected) in [
            ("203.0.113.9", Some("192.0.2.2")),
            ("192.0.2.9", Some("192.0.2.9")),
            ("10.2.0.1", Some("192.0.2.4")),
            ("10.1.9.9", None),
            ("10.1.2.3", Some("fe80::1")),
            ("2001:db8::9", Some("2001:db8::9")),
            ("2001:db8:0:1::9", Some("2001:db8::1")),
        ] {
            let expected = expected.map(|hop| hop.parse().unwrap());
            assert_eq!(routes.next_hop(destination.parse().unwrap()), expected, "{destination}");
        }
        assert_eq!(Routes::default().next_hop("192.0.2.1".parse().unwrap()), None);
    }

    /// Against a model that compares all routes bit by bit.
    #[test]
    fn every_lookup_is_that_of_a_scan() {
        let mut random = Rng::with_seed(13);
        for _ in 0..200 {
            let mut address = || IpAddr::from(Ipv4Addr::from(random.u32(..) & 0xC300_0003));
            let networks: Vec<IpAddr> = (0..20).map(|_| address()).collect();
            let wanted: Vec<IpAddr> = (0..50).map(|_| address()).collect();
            let routes: Vec<Route> = networks
                .iter()
                .zip(0..)
                .map(|(&network, number)| Route {
                    network,
                    prefix_bits: [0, 1, 2, 8, 30, 31, 32][random.usize(..7)],
                    next_hop: NextHop::Gateway(Ipv4Addr::from(number).into()),
                    metric: random.u32(..3),
                })
                .collect();
            let table = Routes::new(&routes);
            for destination in wanted {
                let matches = routes.iter().filter(|r| is_in(destination, r.network, r.prefix_bits));
                let best = matches.reduce(|best, other| {
                    let rank = |r: &Route| (std::cmp::Reverse(r.prefix_bits), r.metric);
                    if rank(other) < rank(best) { other } else { best }
                });
                let expected = best.map(|r| match r.next_hop {
                    NextHop::Gateway(gateway) => gateway,
                    NextHop::OnLink | NextHop::Elsewhere => unreachable!("only gateways"),
                });
                assert_eq!(table.next_hop(destination), expected);
            }
        }
    }
}

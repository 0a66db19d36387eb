//! What passes on the outer link regardless of policies, since no tunnel works without it.

use super::entry::Entry;
use super::rule::{End, Match, Rule, Verdict};
use crate::config::{Configuration, Network, Networks, Remote, Tunnel};
use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use testudo_ipsec::{Encapsulation, PortRange};

const ICMP: u8 = 1;
const UDP: u8 = 17;
const ESP: u8 = 50;
const ICMPV6: u8 = 58;
/// DHCP (RFC 2131 4.1): server and client.
const DHCP: (u16, u16) = (67, 68);

/// The rules of `output` (our end is the source) or `input` (our end is the destination). Rules that nothing
/// could need are omitted, for example those of a tunnel whose outer addresses are in no policy's networks,
/// so that a usual configuration has none.
pub(super) fn rules(configuration: &Configuration, entries: &[Entry], ours: End) -> Vec<Rule> {
    let dropping = || entries.iter().filter(|entry| !entry.bypass && entry.names_a_network());
    let remotes: Networks = dropping().filter_map(Entry::remote).collect();
    // The local networks of policies with any remote address.
    let locals: Networks = dropping().filter(|e| e.remote().is_none()).filter_map(Entry::local).collect();
    let holds = |networks: &Networks, address| networks.holding(Network::host(address)).next().is_some();
    let mut rules = Vec::new();
    if dropping().any(|entry| entry.versions().any(|ipv6| ipv6)) {
        rules.push(Rule::new(vec![Match::NeighbourDiscovery], Verdict::Accept, "IPv6 neighbours"));
    }
    if ours == End::Source && dropping().any(|entry| entry.remote().is_none()) {
        rules.extend(link_scope());
    }
    if configuration.tunnels.iter().any(|tunnel| tunnel.local.is_ipv4() && holds(&remotes, tunnel.local)) {
        rules.push(dhcp(ours));
    }
    let concerned = |tunnel: &&Tunnel| {
        let peer = match tunnel.remote {
            Remote::Address(peer) => holds(&remotes, peer),
            Remote::Any => true,
        };
        peer || holds(&locals, tunnel.local)
    };
    let mut seen = HashSet::new();
    let own = configuration.tunnels.iter().filter(|t| seen.insert((t.local, t.remote, t.encapsulation)));
    rules.extend(own.filter(concerned).flat_map(|tunnel| of_tunnel(tunnel, ours)));
    rules
}

/// Broadcast and link-local multicast, which no router forwards. A policy with any remote address would match
/// them.
fn link_scope() -> impl Iterator<Item = Rule> {
    let networks = [
        (IpAddr::V4(Ipv4Addr::BROADCAST), 32),
        (IpAddr::V4(Ipv4Addr::new(224, 0, 0, 0)), 24),
        (IpAddr::V6(Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 0, 0, 0)), 16),
    ];
    let networks = networks.into_iter().filter_map(|(address, length)| Network::containing(address, length));
    networks.map(|network| {
        Rule::new(vec![Match::Network(End::Destination, network)], Verdict::Accept, "stays on its link")
    })
}

/// Renewing the lease of our outer address: the DHCP server may have an address in the remote network, for
/// example if hotel and office use the same one.
fn dhcp(ours: End) -> Rule {
    let (server, client) = DHCP;
    let matches =
        vec![Match::Ipv6(false), Match::Protocol(UDP), port(ours, client), port(ours.other(), server)];
    Rule::new(matches, Verdict::Accept, "our outer address may be leased")
}

fn port(end: End, port: u16) -> Match {
    Match::Ports(end, PortRange { first: port, last: port })
}

/// ESP, and ICMP between the outer addresses.
fn of_tunnel(tunnel: &Tunnel, ours: End) -> Vec<Rule> {
    let ipv6 = tunnel.local.is_ipv6();
    let host = |end, address| Match::Network(end, Network::host(address));
    let peer = match tunnel.remote {
        Remote::Address(peer) => Some(host(ours.other(), peer)),
        Remote::Any => None,
    };
    let is_known = peer.is_some();
    let ends: Vec<_> = [host(ours, tunnel.local)].into_iter().chain(peer).collect();
    let accept = |more: Vec<Match>, what: &str| {
        Rule::new([ends.clone(), more].concat(), Verdict::Accept, format!("tunnel {}: {what}", tunnel.name))
    };
    let mut rules = vec![match tunnel.encapsulation {
        Encapsulation::Esp => accept(vec![Match::Protocol(ESP)], "ESP"),
        // A NAT may have changed the peer's port.
        Encapsulation::EspInUdp { local_port, .. } => {
            accept(vec![Match::Protocol(UDP), port(ours, local_port)], "ESP in UDP")
        }
    }];
    if is_known {
        let icmp = if ipv6 { ICMPV6 } else { ICMP };
        rules.push(accept(vec![Match::Protocol(icmp)], "ICMP between its ends"));
        // Linux passes IPv6 fragments to this hook before reassembly. The rules decide on the first one
        // whether the datagram passes.
        if ipv6 && ours == End::Destination {
            rules.push(accept(vec![Match::LaterFragment { ipv6 }], "fragments of the peer's packets"));
        }
    }
    rules
}

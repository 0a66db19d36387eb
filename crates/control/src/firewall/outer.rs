//! What passes on the outer link regardless of policies, since no tunnel works without it.

use super::entry::Entry;
use super::rule::{End, Match, Rule, Verdict};
use crate::config::{Configuration, Ike, Network, Networks, OuterProtocol, Remote, Tunnel};
use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use testudo_ipsec::{AddressRange, PortRange, VpeSourcePorts};

const ICMP: u8 = 1;
const UDP: u8 = 17;
const ESP: u8 = 50;
const AH: u8 = 51;
const ICMPV6: u8 = 58;
/// IKE (RFC 7296 2).
const IKE: u16 = 500;
/// DHCP (RFC 2131 4.1): server and client.
const DHCP: (u16, u16) = (67, 68);

/// The rules of `output` (our end is the source) or `input` (our end is the destination). Rules that nothing
/// could need are omitted, for example those of a tunnel whose outer addresses are in no policy's networks,
/// so that a usual configuration has none.
pub(super) fn rules(
    configuration: &Configuration,
    negotiated: &[Tunnel],
    entries: &[Entry],
    ours: End,
) -> Vec<Rule> {
    let dropping = || entries.iter().filter(|entry| !entry.bypass && entry.names_a_network());
    let remotes: Networks = dropping().flat_map(Entry::remote_networks).collect();
    // The local networks of policies with any remote address.
    let locals: Networks =
        dropping().filter(|e| e.remote().is_none()).flat_map(Entry::local_networks).collect();
    let holds = |networks: &Networks, address| networks.holding(Network::host(address)).next().is_some();
    let mut rules = Vec::new();
    if dropping().any(|entry| entry.versions().any(|ipv6| ipv6)) {
        rules.push(Rule::new(vec![Match::NeighbourDiscovery], Verdict::Accept, "IPv6 neighbours"));
    }
    if ours == End::Source && dropping().any(|entry| entry.remote().is_none()) {
        rules.extend(link_scope());
    }
    if let Some(ike) = configuration.ike.as_ref().filter(|_| dropping().next().is_some()) {
        rules.extend(key_exchange(ike, ours));
    }
    let all = || configuration.tunnels.iter().chain(negotiated);
    if all().any(|tunnel| tunnel.local.is_ipv4() && holds(&remotes, tunnel.local)) {
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
    let own = all().filter(|t| seen.insert((t.outer_endpoint(), t.remote, t.has_source_ports())));
    for tunnel in own.filter(concerned) {
        let ends = Ends::of(tunnel, ours);
        rules.push(ends.outer_protocol(tunnel.outer_protocol()));
        // No errors come from a group, nor about it (RFC 1122 3.2.2).
        if let Remote::Address(peer) = tunnel.remote
            && tunnel.group().is_none()
        {
            rules.extend(ends.icmp(remotes.contains(Network::host(peer))));
        }
    }
    rules
}

/// What a key exchange daemon and its SAs need, with peers of any address, behind NATs of any port.
fn key_exchange(ike: &Ike, ours: End) -> Vec<Rule> {
    let accept = |matches, what: &str| Rule::new(matches, Verdict::Accept, format!("key exchange: {what}"));
    vec![
        accept(vec![Match::Protocol(UDP), port(ours, IKE)], "IKE"),
        accept(vec![Match::Protocol(UDP), port(ours, ike.udp_port)], "IKE and ESP in UDP"),
        accept(vec![Match::Protocol(ESP)], "ESP"),
        accept(vec![Match::Protocol(AH)], "AH"),
    ]
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
        Rule::new(
            vec![Match::Addresses(End::Destination, network.into())],
            Verdict::Accept,
            "stays on its link",
        )
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

/// The outer ends of a tunnel, for rules about packets between them.
struct Ends<'a> {
    tunnel: &'a Tunnel,
    ours: End,
    matches: Vec<Match>,
}

impl<'a> Ends<'a> {
    fn of(tunnel: &'a Tunnel, ours: End) -> Self {
        let host = |end, address| Match::Addresses(end, AddressRange::host(address));
        let peer = match tunnel.remote {
            Remote::Address(peer) => Some(host(ours.other(), peer)),
            Remote::Any => None,
        };
        let matches = match tunnel.group().filter(|_| ours == End::Destination) {
            // From any of its members.
            Some(group) => vec![host(End::Destination, group)],
            None => [host(ours, tunnel.local)].into_iter().chain(peer).collect(),
        };
        Self { tunnel, ours, matches }
    }

    fn accept(&self, more: Vec<Match>, what: &str) -> Rule {
        let comment = format!("tunnel {}: {what}", self.tunnel.name);
        Rule::new([self.matches.clone(), more].concat(), Verdict::Accept, comment)
    }

    /// The sealed packets.
    fn outer_protocol(&self, protocol: OuterProtocol) -> Rule {
        match protocol {
            // Each window has a source port of its own; the destination's is the tunnel's, at both ends.
            OuterProtocol::Udp { local_port } if self.tunnel.has_source_ports() => {
                let windows = PortRange { first: VpeSourcePorts::FIRST, last: u16::MAX };
                let ports = [Match::Ports(End::Source, windows), port(End::Destination, local_port)];
                self.accept([vec![Match::Protocol(UDP)], ports.to_vec()].concat(), "VPE in UDP")
            }
            OuterProtocol::Esp => self.accept(vec![Match::Protocol(ESP)], "ESP"),
            OuterProtocol::Ah => self.accept(vec![Match::Protocol(AH)], "AH"),
            OuterProtocol::Vpe { number } => self.accept(vec![Match::Protocol(number)], "VPE"),
            // A NAT may have changed the peer's port.
            OuterProtocol::Udp { local_port } | OuterProtocol::UdpBeside { local_port } => {
                self.accept(vec![Match::Protocol(UDP), port(self.ours, local_port)], "ESP in UDP")
            }
        }
    }

    /// ICMP between the ends: only errors, such as "too big", where a policy is about the peer itself. Its
    /// pings are then to be protected like all it sends (RFC 4301 5.2).
    fn icmp(&self, peer_is_protected: bool) -> Vec<Rule> {
        let ipv6 = self.tunnel.local.is_ipv6();
        let mut rules = if peer_is_protected {
            vec![self.accept(vec![Match::IcmpError { ipv6 }], "ICMP errors between its ends")]
        } else {
            let number = if ipv6 { ICMPV6 } else { ICMP };
            vec![self.accept(vec![Match::Protocol(number)], "ICMP between its ends")]
        };
        // Linux passes IPv6 fragments to this hook before reassembly. The rules decide on the first one
        // whether the datagram passes.
        if ipv6 && self.ours == End::Destination {
            let later = vec![Match::LaterFragment { ipv6 }];
            rules.push(self.accept(later, "fragments of the peer's packets"));
        }
        rules
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::MINIMAL;
    use testudo_ipsec::VpeRules;

    #[test]
    fn sealed_packets_of_each_protocol_pass_between_their_ends_alone() {
        let configuration = Configuration::parse(MINIMAL, "t.toml").unwrap();
        let tunnel = &configuration.tunnels[0];
        let ours = Match::Addresses(End::Source, AddressRange::host(tunnel.local));
        let Remote::Address(peer) = tunnel.remote else { panic!("{tunnel:?}") };
        let theirs = Match::Addresses(End::Destination, AddressRange::host(peer));
        let rules = VpeRules::default().with_source_ports(VpeSourcePorts::PerWindow);
        let mut per_window = tunnel.clone();
        per_window.rules.vpe = Some(Box::new(rules));
        for end in [End::Source, End::Destination] {
            let rule = Ends::of(&per_window, end).outer_protocol(OuterProtocol::Udp { local_port: 4501 });
            let ports: Vec<_> = rule.matches.iter().filter(|m| matches!(m, Match::Ports(..))).collect();
            let windows = Match::Ports(End::Source, PortRange { first: 49_152, last: 65_535 });
            assert_eq!(ports, [&windows, &port(End::Destination, 4501)], "at {end:?}");
        }
        let local_port = 4500;
        for (protocol, more) in [
            (OuterProtocol::Esp, vec![Match::Protocol(50)]),
            (OuterProtocol::Ah, vec![Match::Protocol(51)]),
            (OuterProtocol::Vpe { number: 253 }, vec![Match::Protocol(253)]),
            (OuterProtocol::Udp { local_port }, vec![Match::Protocol(17), port(End::Source, 4500)]),
        ] {
            let rule = Ends::of(tunnel, End::Source).outer_protocol(protocol);
            assert_eq!(rule.matches, [vec![ours.clone(), theirs.clone()], more].concat());
            assert_eq!(rule.verdict, Verdict::Accept);
        }
    }
}

//! The rules, evaluated by an interpreter, against a plain model of the SPD: what the model drops, the rules
//! drop.

mod beside;

use super::rule::{Chain, End, Interface, Match, Verdict};
use super::*;
use crate::config::tests::MINIMAL;
use crate::config::{Action, Ike, Network, Policy, Remote, Tunnel};
use proptest::prelude::*;
use std::net::IpAddr;
use testudo_ipsec::{
    AddressRange, Direction, Directions, Encapsulation, PopulateFlags, PortRange, Prefix, Protocol, Selector,
    TunnelIndex,
};
use testudo_wire::ip::Version;
use testudo_wire::protocol::{MOBILITY, hides_what_follows};

const TCP: u8 = 6;
const UDP: u8 = 17;
const AH: u8 = 51;
const HIP: u8 = 139;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// What is between the IP header and the transport header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    /// IPv6 only.
    AfterOptions,
    FirstFragment,
    /// In IPv6 it may claim any protocol.
    LaterFragment,
    /// IPv6 only: after the header of an atomic fragment (RFC 6946).
    LaterFragmentInFragment,
}

impl Kind {
    fn is_later(self) -> bool {
        matches!(self, Kind::LaterFragment | Kind::LaterFragmentInFragment)
    }
}

#[derive(Debug, Clone, Copy)]
struct Packet {
    source: IpAddr,
    destination: IpAddr,
    kind: Kind,
    protocol: u8,
    ports: (u16, u16),
    /// Type of ICMP or of the Mobility Header, and hop limit.
    icmp: (u8, u8),
    /// Code of ICMP.
    code: u8,
}

impl Packet {
    fn ipv6(&self) -> bool {
        self.source.is_ipv6()
    }

    /// Whether it could have any protocol.
    fn hides_protocol(&self) -> bool {
        self.ipv6() && (self.kind.is_later() || hides_what_follows(self.protocol))
    }

    fn address(&self, end: End) -> IpAddr {
        if end == End::Source { self.source } else { self.destination }
    }
}

/// The interfaces through which a packet comes and goes; `None` at the end that is this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    Tunnel,
    Loopback,
    /// That of an `[[interface]]`.
    Beside,
    Other,
}

#[derive(Debug, Clone, Copy)]
struct Passage {
    hook: Chain,
    from: Option<Link>,
    to: Option<Link>,
    answers_go_to_tunnel: bool,
}

fn passage(hook: Chain, from: Option<Link>, to: Option<Link>) -> Passage {
    Passage { hook, from, to, answers_go_to_tunnel: false }
}

fn named(link: Option<Link>, which: Interface) -> bool {
    match which {
        Interface::Tunnel => link == Some(Link::Tunnel),
        Interface::Others => link == Some(Link::Beside),
        Interface::Loopback => link == Some(Link::Loopback),
        Interface::TunnelOrLoopback => matches!(link, Some(Link::Tunnel | Link::Loopback)),
    }
}

/// Evaluates a condition as nftables does.
fn holds(condition: &Match, packet: &Packet, passage: Passage) -> bool {
    let in_network = |end, network: &Network| network.contains(packet.address(end));
    match condition {
        Match::In(which) => named(passage.from, *which),
        Match::Out(which) => named(passage.to, *which),
        Match::AnswersGoToTunnel => passage.answers_go_to_tunnel,
        Match::Ipv6(ipv6) => packet.ipv6() == *ipv6,
        Match::Addresses(end, range) => in_range(*range, packet.address(*end)),
        Match::NotAddresses(end, range) => {
            let is_of_version = range.version() == Some(Version::of(packet.source));
            is_of_version && !in_range(*range, packet.address(*end))
        }
        Match::Pairs(set) => {
            let cut = |address, bits| Network::containing(address, bits).map(|n| n.address());
            let pair = (cut(packet.source, set.source_bits), cut(packet.destination, set.destination_bits));
            set.pairs.iter().any(|(s, d, _)| pair == (Some(*s), Some(*d)))
        }
        Match::Networks(end, networks) => networks.iter().any(|network| in_network(*end, network)),
        Match::Protocol(number) => packet.protocol == *number,
        Match::NoFragmentHeader => {
            !packet.ipv6() || packet.kind != Kind::FirstFragment && !packet.kind.is_later()
        }
        Match::Ports(end, ports) => {
            let port = if *end == End::Source { packet.ports.0 } else { packet.ports.1 };
            !packet.kind.is_later() && ports.first <= port && port <= ports.last
        }
        Match::Message { is_mobility, range } => {
            let code = if *is_mobility { 0 } else { packet.code };
            let value = u16::from_be_bytes([packet.icmp.0, code]);
            !packet.kind.is_later() && range.first <= value && value <= range.last
        }
        Match::HasNoPorts { ipv6 } => {
            let hides = *ipv6 && hides_what_follows(packet.protocol);
            !hides && ![TCP, UDP, 132].contains(&packet.protocol)
        }
        Match::NotLaterFragment => !packet.ipv6() && packet.kind != Kind::LaterFragment,
        Match::LaterFragment { ipv6 } => packet.ipv6() == *ipv6 && packet.kind == Kind::LaterFragment,
        Match::HeadersInFragment => packet.kind == Kind::LaterFragmentInFragment,
        Match::UnknownHeader => packet.ipv6() && hides_what_follows(packet.protocol),
        Match::IcmpError { ipv6: false } => {
            !packet.ipv6() && packet.protocol == ICMP && [3, 11, 12].contains(&packet.icmp.0)
        }
        Match::IcmpError { ipv6: true } => {
            packet.ipv6() && packet.protocol == ICMPV6 && (1..=4).contains(&packet.icmp.0)
        }
        Match::NeighbourDiscovery => {
            let (kind, hops) = packet.icmp;
            let is_icmp = packet.ipv6() && packet.protocol == 58;
            is_icmp
                && ((133..=137).contains(&kind) && hops == 255
                    || matches!(kind, 130..=132 | 143) && hops == 1)
        }
    }
}

/// Whether the table drops a packet.
fn drops(firewall: &Firewall, packet: &Packet, passage: Passage) -> bool {
    run(firewall, passage.hook, packet, passage) == Some(Verdict::Drop)
}

/// The verdict that ends the evaluation, if a rule gives one.
fn run(firewall: &Firewall, chain: Chain, packet: &Packet, passage: Passage) -> Option<Verdict> {
    let (_, rules) = firewall.rules.iter().find(|(c, _)| *c == chain).unwrap();
    for rule in rules.iter().filter(|rule| rule.matches.iter().all(|c| holds(c, packet, passage))) {
        match rule.verdict {
            Verdict::Return => return None,
            Verdict::Jump(to) => match run(firewall, to, packet, passage) {
                None => {}
                verdict => return verdict,
            },
            verdict => return Some(verdict),
        }
    }
    None
}

/// The fields that the model looks at, from our side.
#[derive(Debug, Clone, Copy)]
struct Flow {
    direction: Direction,
    local: IpAddr,
    remote: IpAddr,
    protocol: Option<u8>,
    ports: Option<(u16, u16)>,
    message: Option<u16>,
    /// Whether it has some of these and does not show them.
    hides: bool,
}

fn in_range(range: AddressRange, address: IpAddr) -> bool {
    let is_in = |(first, last): (IpAddr, IpAddr)| {
        first.is_ipv6() == address.is_ipv6() && first <= address && address <= last
    };
    range.ends().is_none_or(is_in)
}

fn is_all(range: AddressRange) -> bool {
    range.prefix().is_some_and(|prefix| prefix.length() == 0)
}

fn is_of_messages(number: u8) -> bool {
    [ICMP, ICMPV6, MOBILITY].contains(&number)
}

fn matches(selector: &Selector, flow: Flow) -> bool {
    let is_asked = |asked: PortRange, value: Option<u16>| match (asked, value) {
        (PortRange::ANY, _) | (PortRange::OPAQUE, None) => true,
        (range, Some(value)) => (range.first..=range.last).contains(&value),
        (_, None) => false,
    };
    let protocol = match selector.protocol {
        Protocol::Any => true,
        Protocol::Opaque => flow.protocol.is_none(),
        Protocol::Is(number) => flow.protocol == Some(number),
    };
    // RFC 4301 4.4.1.1: a message is its sender's.
    let next_layer = match (selector.protocol, flow.direction) {
        (Protocol::Is(number), Direction::Outbound) if is_of_messages(number) => {
            is_asked(selector.local_ports, flow.message)
        }
        (Protocol::Is(number), Direction::Inbound) if is_of_messages(number) => {
            is_asked(selector.remote_ports, flow.message)
        }
        _ => {
            is_asked(selector.local_ports, flow.ports.map(|ports| ports.0))
                && is_asked(selector.remote_ports, flow.ports.map(|ports| ports.1))
        }
    };
    in_range(selector.local, flow.local) && in_range(selector.remote, flow.remote) && protocol && next_layer
}

fn names_opaque(selector: &Selector, direction: Direction) -> bool {
    let is_of_messages = matches!(selector.protocol, Protocol::Is(number) if is_of_messages(number));
    let ports = match (is_of_messages, direction) {
        (false, _) => [selector.local_ports, selector.remote_ports],
        (true, Direction::Outbound) => [selector.local_ports; 2],
        (true, Direction::Inbound) => [selector.remote_ports; 2],
    };
    selector.protocol == Protocol::Opaque || ports.contains(&PortRange::OPAQUE)
}

fn all_policies(configuration: &Configuration) -> Vec<(Selector, Directions, Action)> {
    let named = configuration.policies.iter();
    let named = named.flat_map(|p| p.selectors.iter().map(|s| (*s, p.directions, p.action)));
    let own = configuration.tunnels.iter().enumerate();
    let own = own.flat_map(|(tunnel, t)| t.selectors.iter().map(move |s| (s, Action::Protect { tunnel })));
    let own =
        own.flat_map(|(selectors, action)| selectors.iter().map(move |s| (*s, Directions::Both, action)));
    named.chain(own).collect()
}

/// Whether policy lets a packet travel in clear: the first match decides.
fn may_pass(configuration: &Configuration, flow: Flow) -> bool {
    let policies = all_policies(configuration);
    for (selector, directions, action) in &policies {
        // Two local hosts, and "remote" includes the local network.
        let stays = in_range(selector.local, flow.remote)
            && !is_all(selector.local)
            && selector.remote != selector.local
            && selector.remote.covers(&selector.local);
        let is_nameless = is_all(selector.local) && is_all(selector.remote);
        let is_precaution = *action != Action::Bypass && (stays || is_nameless);
        // RFC 4301 7.4: what is hidden passes in clear for no OPAQUE.
        let is_hidden = *action == Action::Bypass && flow.hides && names_opaque(selector, flow.direction);
        let is_concerned = directions.include(flow.direction) && matches(selector, flow);
        if !is_concerned || is_precaution || is_hidden {
            continue;
        }
        return *action == Action::Bypass;
    }
    // No policy matches: the remote end must not be in a network that is routed into the tunnel.
    let longest = |range: fn(&Selector) -> AddressRange| {
        let routed = policies.iter().filter(|(_, directions, action)| {
            matches!(action, Action::Protect { .. }) && directions.include(Direction::Outbound)
        });
        let ranges = routed.map(|(selector, ..)| range(selector)).filter(|r| !is_all(*r));
        let networks = ranges.flat_map(|range| range.prefixes()).filter_map(Network::of);
        networks.filter(|network| network.contains(flow.remote)).map(|network| network.length()).max()
    };
    let (remote, local) = (longest(|s| s.remote), longest(|s| s.local));
    !configuration.protected.routes || remote.is_none() || local > remote
}

/// All flows that a packet may belong to, given the fields that it hides, and what it shows of itself.
fn completions(packet: &Packet, local: End) -> Vec<Flow> {
    let direction = if local == End::Source { Direction::Outbound } else { Direction::Inbound };
    let (here, there) = (packet.address(local), packet.address(local.other()));
    let nothing = Flow {
        direction,
        local: here,
        remote: there,
        protocol: None,
        ports: None,
        message: None,
        hides: true,
    };
    let has_ports = |number| [TCP, UDP].contains(&number);
    let with = |number: u8, ports: (u16, u16), message: u16| Flow {
        protocol: Some(number),
        ports: has_ports(number).then_some(ports),
        message: is_of_messages(number).then_some(message),
        hides: false,
        ..nothing
    };
    let hides_fields =
        packet.kind.is_later() && (has_ports(packet.protocol) || is_of_messages(packet.protocol));
    if !hides_fields && !packet.hides_protocol() {
        let code = if packet.protocol == MOBILITY { 0 } else { packet.code };
        let (source, destination) = packet.ports;
        let ports = if local == End::Source { (source, destination) } else { (destination, source) };
        return vec![with(packet.protocol, ports, u16::from_be_bytes([packet.icmp.0, code]))];
    }
    let shown = Flow { protocol: (!packet.hides_protocol()).then_some(packet.protocol), ..nothing };
    let protocols =
        if packet.hides_protocol() { vec![TCP, UDP, AH, ICMPV6, MOBILITY] } else { vec![packet.protocol] };
    let values = (0..6_u8).flat_map(|a| (0..6_u8).map(move |b| (a, b)));
    let all = values.flat_map(|(a, b)| {
        protocols.iter().map(move |p| {
            let code = if *p == MOBILITY { 0 } else { b };
            with(*p, (a.into(), b.into()), u16::from_be_bytes([a, code]))
        })
    });
    all.chain([shown]).collect()
}

fn v4(a: u32, b: u32) -> IpAddr {
    IpAddr::V4((0x0A00_0000 | a << 16 | b).into())
}

fn v6(a: u32, b: u32) -> IpAddr {
    IpAddr::V6((0xFD00_u128 << 112 | u128::from(a) << 64 | u128::from(b)).into())
}

/// Few distinct bits, so that networks often overlap and nest.
fn range(ipv6: bool) -> impl Strategy<Value = AddressRange> {
    let lengths = prop_oneof![1 => Just(0_u8), 1 => Just(8), 1 => Just(15), 4 => Just(16), 1 => Just(31), 1 => Just(32)];
    let network = (0..4_u32, 0..4_u32, lengths).prop_map(move |(a, b, length)| {
        let (address, length) = if ipv6 { (v6(a, b), length * 4) } else { (v4(a, b), length) };
        Prefix::new(address, length).unwrap().into()
    });
    let ends = ((0..5_u32, 0..4_u32), (0..5_u32, 0..4_u32)).prop_map(move |(a, b)| {
        let address = |(a, b)| if ipv6 { v6(a, b) } else { v4(a, b) };
        AddressRange::new(address(a.min(b)), address(a.max(b))).unwrap()
    });
    prop_oneof![1 => Just(AddressRange::ANY), 6 => network, 2 => ends]
}

fn ports() -> impl Strategy<Value = PortRange> {
    let some = (0..4_u16, 0..4_u16).prop_map(|(a, b)| PortRange { first: a.min(b), last: a.max(b) });
    prop_oneof![4 => Just(PortRange::ANY), 2 => some, 1 => Just(PortRange::OPAQUE)]
}

fn messages(protocol: Protocol) -> impl Strategy<Value = PortRange> {
    let some = ((0..5_u8, 0..5_u8), (0..5_u8, 0..5_u8)).prop_map(move |(a, b)| match protocol {
        Protocol::Is(MOBILITY) => PortRange::mobility(a.0.min(b.0), a.0.max(b.0)),
        _ => PortRange::icmp(a.min(b), a.max(b)),
    });
    prop_oneof![2 => Just(PortRange::ANY), 4 => some, 1 => Just(PortRange::OPAQUE)]
}

/// What an entry may ask of the next layer.
fn next_layer() -> impl Strategy<Value = (Protocol, PortRange, PortRange)> {
    let protocol = prop_oneof![
        8 => Just(Protocol::Any),
        1 => Just(Protocol::Opaque),
        2 => Just(Protocol::Is(TCP)),
        2 => Just(Protocol::Is(UDP)),
        2 => Just(Protocol::Is(ICMPV6)),
        2 => Just(Protocol::Is(ICMP)),
        1 => Just(Protocol::Is(MOBILITY)),
        1 => Just(Protocol::Is(AH)),
        1 => Just(Protocol::Is(HIP))
    ];
    protocol.prop_flat_map(|protocol| {
        let values = if protocol.is_of_messages() {
            (messages(protocol), messages(protocol)).boxed()
        } else if matches!(protocol, Protocol::Is(TCP | UDP)) {
            (ports(), ports()).boxed()
        } else {
            let absent = || prop_oneof![4 => Just(PortRange::ANY), 1 => Just(PortRange::OPAQUE)];
            (absent(), absent()).boxed()
        };
        values.prop_map(move |(local, remote)| (protocol, local, remote))
    })
}

fn selector() -> impl Strategy<Value = Selector> {
    let networks = any::<bool>().prop_flat_map(|ipv6| (range(ipv6), range(ipv6)));
    (networks, next_layer()).prop_map(|((local, remote), (protocol, local_ports, remote_ports))| Selector {
        local,
        remote,
        protocol,
        local_ports,
        remote_ports,
    })
}

fn configuration() -> impl Strategy<Value = Configuration> {
    let action = prop_oneof![
        3 => Just(Action::Bypass), 1 => Just(Action::Discard), 2 => Just(Action::Protect { tunnel: 0 })
    ];
    let directions = prop_oneof![
        3 => Just(Directions::Both), 1 => Just(Directions::Outbound), 1 => Just(Directions::Inbound)
    ];
    let selectors = prop::collection::vec(selector(), 1..4);
    let policies = prop::collection::vec((selectors, directions, action), 0..8);
    // Enough that some configurations have rules with sets.
    let own = prop::collection::vec(selector(), 0..40);
    (policies, own, any::<bool>()).prop_map(|(policies, selectors, routes)| {
        let mut configuration = minimal();
        configuration.protected.routes = routes;
        let policies = policies.into_iter().map(|(selectors, directions, action)| Policy {
            name: None,
            number: 1,
            selectors: selectors.into(),
            directions,
            action,
            populate: PopulateFlags::default(),
        });
        configuration.policies = policies.collect();
        configuration.tunnels[0].selectors = selectors.into_iter().map(|s| [s].into()).collect();
        configuration
    })
}

fn packet() -> impl Strategy<Value = Packet> {
    let address = (0..5_u32, 0..4_u32);
    let kind = prop_oneof![
        4 => Just(Kind::Plain),
        1 => Just(Kind::AfterOptions),
        1 => Just(Kind::FirstFragment),
        2 => Just(Kind::LaterFragment),
        1 => Just(Kind::LaterFragmentInFragment)
    ];
    let protocol =
        prop_oneof![Just(TCP), Just(UDP), Just(ICMPV6), Just(ICMP), Just(MOBILITY), Just(AH), Just(HIP)];
    let message = (0..6_u8, 0..6_u8);
    (any::<bool>(), address.clone(), address, kind, protocol, (0..6_u16, 0..6_u16), message).prop_map(
        |(ipv6, from, to, kind, protocol, ports, (kind_of_message, code))| {
            let address = |(a, b)| if ipv6 { v6(a, b) } else { v4(a, b) };
            let kind = match kind {
                Kind::AfterOptions if !ipv6 => Kind::Plain,
                Kind::LaterFragmentInFragment if !ipv6 => Kind::LaterFragment,
                kind => kind,
            };
            let (source, destination) = (address(from), address(to));
            Packet { source, destination, kind, protocol, ports, icmp: (kind_of_message, 64), code }
        },
    )
}

fn minimal() -> Configuration {
    Configuration::parse(MINIMAL, "t.toml").unwrap()
}

const INPUT: Passage =
    Passage { hook: Chain::Input, from: Some(Link::Other), to: None, answers_go_to_tunnel: false };
const OUTPUT: Passage =
    Passage { hook: Chain::Output, from: None, to: Some(Link::Other), answers_go_to_tunnel: false };
const FORWARD: Passage = Passage {
    hook: Chain::Forward,
    from: Some(Link::Other),
    to: Some(Link::Other),
    answers_go_to_tunnel: false,
};

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn clear_packets_pass_where_policy_lets_them_and_nowhere_else(
        configuration in configuration(),
        packets in prop::collection::vec(packet(), 60),
    ) {
        let firewall = Firewall::of(&configuration).unwrap();
        for packet in packets {
            let passes = |local| {
                completions(&packet, local).into_iter().all(|flow| may_pass(&configuration, flow))
            };
            let (out, inward) = (passes(End::Source), passes(End::Destination));
            for (passage, expected) in [(OUTPUT, out), (INPUT, inward), (FORWARD, out && inward)] {
                let passed = !drops(&firewall, &packet, passage);
                prop_assert!(expected || !passed, "{packet:?} leaks through {passage:?}\n{firewall}");
                // A packet that hides nothing must pass; fragments may be refused as a precaution.
                if matches!(packet.kind, Kind::Plain | Kind::AfterOptions) && !packet.hides_protocol() {
                    prop_assert!(passed || !expected, "{packet:?} is stopped in {passage:?}\n{firewall}");
                }
            }
        }
    }

    #[test]
    fn packets_on_the_tun_and_loopback_interfaces_pass(
        configuration in configuration(),
        packets in prop::collection::vec(packet(), 20),
    ) {
        let firewall = Firewall::of(&configuration).unwrap();
        let (tunnel, other, loopback) = (Some(Link::Tunnel), Some(Link::Other), Some(Link::Loopback));
        for packet in packets {
            for passage in [
                passage(Chain::Input, tunnel, None),
                passage(Chain::Input, loopback, None),
                passage(Chain::Output, None, tunnel),
                passage(Chain::Output, None, loopback),
                passage(Chain::Forward, tunnel, other),
                passage(Chain::Forward, other, tunnel),
                passage(Chain::Forward, tunnel, tunnel),
            ] {
                prop_assert!(!drops(&firewall, &packet, passage), "{packet:?} {passage:?}\n{firewall}");
            }
            let spoofed = Passage { answers_go_to_tunnel: true, ..passage(Chain::Forward, other, tunnel) };
            prop_assert!(drops(&firewall, &packet, spoofed));
        }
    }
}

fn prefix(text: &str) -> Prefix {
    let (address, length) = text.split_once('/').unwrap();
    Prefix::new(address.parse().unwrap(), length.parse().unwrap()).unwrap()
}

fn between(local: Prefix, remote: Prefix) -> Selector {
    Selector::between(local, remote)
}

/// A tunnel between 192.0.2.1 and `peer` with these selectors.
fn with(peer: Remote, encapsulation: Encapsulation, selectors: &[Selector]) -> Configuration {
    let mut configuration = minimal();
    let tunnel = Tunnel {
        local: "192.0.2.1".parse().unwrap(),
        remote: peer,
        encapsulation,
        selectors: selectors.iter().map(|s| [*s].into()).collect(),
        ..configuration.tunnels[0].clone()
    };
    configuration.tunnels = vec![tunnel];
    configuration
}

fn udp(source: &str, destination: &str, ports: (u16, u16)) -> Packet {
    let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
    Packet { source, destination, kind: Kind::Plain, protocol: UDP, ports, icmp: (0, 0), code: 0 }
}

const IN_UDP: Encapsulation = Encapsulation::EspInUdp { local_port: 4500, remote_port: 4500 };

#[test]
fn a_tunnel_for_all_traffic_leaves_its_own_packets_alone() {
    let peer = Remote::Address("198.51.100.2".parse().unwrap());
    let everything = [between(prefix("192.0.2.1/32"), Prefix::ANY)];
    for (encapsulation, protocol, port) in [(Encapsulation::Esp, 50, 0), (IN_UDP, UDP, 4500)] {
        let firewall = Firewall::of(&with(peer, encapsulation, &everything)).unwrap();
        let sent = Packet { protocol, ..udp("192.0.2.1", "198.51.100.2", (port, 7)) };
        let received = Packet { protocol, ..udp("198.51.100.2", "192.0.2.1", (7, port)) };
        assert!(!drops(&firewall, &sent, OUTPUT) && !drops(&firewall, &received, INPUT), "{firewall}");
        for protocol in [1, TCP] {
            let (sent, received) = (Packet { protocol, ..sent }, Packet { protocol, ..received });
            let are_dropped = protocol == TCP;
            assert_eq!(drops(&firewall, &sent, OUTPUT), are_dropped, "{firewall}");
            assert_eq!(drops(&firewall, &received, INPUT), are_dropped, "{firewall}");
        }
        assert!(drops(
            &firewall,
            &Packet { protocol, ..udp("192.0.2.1", "198.51.100.3", (port, 7)) },
            OUTPUT
        ));
        // Link-local multicast.
        assert!(!drops(&firewall, &udp("192.0.2.1", "224.0.0.251", (5353, 5353)), OUTPUT));
    }
}

/// RFC 4301 5.2: clear packets that policy wants protected are dropped, pings of the peer as well; errors
/// about sealed packets must come in.
#[test]
fn of_a_peer_that_policy_protects_only_icmp_errors_come_in_clear() {
    for (ours, peer, number, errors) in [
        ("192.0.2.1", "198.51.100.2", ICMP, &[3, 11, 12][..]),
        ("2001:db8::1", "2001:db8::2", ICMPV6, &[1, 2, 3, 4]),
    ] {
        let host = |text: &str| Network::host(text.parse().unwrap());
        let host = |text: &str| Prefix::new(host(text).address(), host(text).length()).unwrap();
        let remote = Remote::Address(peer.parse().unwrap());
        let mut configuration = with(remote, IN_UDP, &[between(host(ours), host(peer))]);
        configuration.tunnels[0].local = ours.parse().unwrap();
        let firewall = Firewall::of(&configuration).unwrap();
        for kind in 0..=255 {
            let icmp =
                |from: &str, to: &str| Packet { protocol: number, icmp: (kind, 64), ..udp(from, to, (0, 0)) };
            let is_dropped = !errors.contains(&kind);
            assert_eq!(drops(&firewall, &icmp(peer, ours), INPUT), is_dropped, "{kind}\n{firewall}");
            assert_eq!(drops(&firewall, &icmp(ours, peer), OUTPUT), is_dropped, "{kind}\n{firewall}");
        }
    }
}

#[test]
fn learned_peers_reach_the_gateway_regardless_of_policies() {
    let everything = [between(prefix("192.0.2.1/32"), Prefix::ANY)];
    let firewall = Firewall::of(&with(Remote::Any, IN_UDP, &everything)).unwrap();
    assert!(!drops(&firewall, &udp("203.0.113.9", "192.0.2.1", (9, 4500)), INPUT), "{firewall}");
    assert!(!drops(&firewall, &udp("192.0.2.1", "203.0.113.9", (4500, 9)), OUTPUT), "{firewall}");
    assert!(drops(&firewall, &udp("203.0.113.9", "192.0.2.1", (9, 4501)), INPUT), "{firewall}");
}

#[test]
fn a_usual_configuration_has_no_exceptions() {
    let peer = Remote::Address("192.0.2.2".parse().unwrap());
    let firewall =
        Firewall::of(&with(peer, IN_UDP, &[between(prefix("10.1.0.0/16"), prefix("10.2.0.0/16"))])).unwrap();
    assert!(firewall.to_string().matches("accept").count() == 3 + 4, "{firewall}");
}

#[test]
fn the_lease_of_an_outer_address_in_the_remote_network_can_be_renewed() {
    let peer = Remote::Address("198.51.100.1".parse().unwrap());
    let selectors = [between(prefix("10.8.0.2/32"), prefix("192.0.2.0/24"))];
    let firewall = Firewall::of(&with(peer, IN_UDP, &selectors)).unwrap();
    assert!(!drops(&firewall, &udp("192.0.2.1", "192.0.2.254", (68, 67)), OUTPUT), "{firewall}");
    assert!(!drops(&firewall, &udp("192.0.2.254", "192.0.2.1", (67, 68)), INPUT), "{firewall}");
    // A hostile access point that leases such an address must not draw other traffic out of the tunnel.
    assert!(drops(&firewall, &udp("192.0.2.1", "192.0.2.254", (40000, 53)), OUTPUT), "{firewall}");
}

#[test]
fn neighbour_discovery_passes_regardless_of_policies() {
    let any_ipv6 = prefix("::/0");
    let peer = Remote::Address("192.0.2.2".parse().unwrap());
    let firewall =
        Firewall::of(&with(peer, IN_UDP, &[between(prefix("2001:db8::1/128"), any_ipv6)])).unwrap();
    let icmp = |icmp| Packet { protocol: 58, icmp, ..udp("2001:db8::1", "2001:db8::2", (0, 0)) };
    for (icmp, is_dropped) in [(icmp((135, 255)), false), (icmp((135, 64)), true), (icmp((128, 255)), true)] {
        assert_eq!(drops(&firewall, &icmp, OUTPUT), is_dropped, "{icmp:?}\n{firewall}");
    }
}

#[test]
fn a_local_network_within_the_remote_one_keeps_its_own_traffic() {
    let peer = Remote::Address("192.0.2.2".parse().unwrap());
    let firewall =
        Firewall::of(&with(peer, IN_UDP, &[between(prefix("10.1.0.0/16"), prefix("10.0.0.0/8"))])).unwrap();
    let to_us = |source| udp(source, "10.1.0.1", (5, 53));
    assert!(
        !drops(&firewall, &to_us("10.1.7.7"), INPUT) && drops(&firewall, &to_us("10.2.0.1"), INPUT),
        "{firewall}"
    );
    let out = |destination| udp("10.1.7.7", destination, (5, 53));
    assert!(!drops(&firewall, &out("203.0.113.1"), FORWARD), "{firewall}");
    assert!(drops(&firewall, &out("10.2.0.1"), FORWARD), "{firewall}");
}

#[test]
fn a_policy_on_everything_gives_no_rule_and_a_note() {
    let peer = Remote::Address("192.0.2.2".parse().unwrap());
    let firewall = Firewall::of(&with(peer, IN_UDP, &[between(Prefix::ANY, Prefix::ANY)])).unwrap();
    assert!(!drops(&firewall, &udp("10.1.0.1", "10.2.0.1", (1, 1)), OUTPUT), "{firewall}");
    assert!(
        firewall.notes()[0].contains("selector 1: takes any address at both ends"),
        "{:?}",
        firewall.notes()
    );
}

#[test]
fn an_interface_that_nftables_cannot_name_is_refused() {
    let mut configuration = minimal();
    configuration.protected.name = "tun\"0".to_owned();
    let error = Firewall::of(&configuration).unwrap_err().to_string();
    assert!(error.contains("\"tun\\\"0\"") && error.contains("use letters"), "{error}");
}

#[test]
fn no_fallback_route_stops_legitimate_clear_packets() {
    let peer = |address: &str| Remote::Address(address.parse().unwrap());
    let selectors = ["10.2.0.0/16", "10.3.0.0/16", "fd02::/64"].map(|n| between(Prefix::ANY, prefix(n)));
    let networks = |configuration: &Configuration| {
        let routes = Firewall::of(configuration).unwrap().routes;
        routes.networks().iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    };
    let mut configuration = with(peer("192.0.2.2"), IN_UDP, &selectors);
    assert_eq!(networks(&configuration), "10.2.0.0/16 10.3.0.0/16 fd02::/64");
    assert_eq!(networks(&with(peer("10.3.0.9"), IN_UDP, &selectors)), "10.2.0.0/16 fd02::/64");
    for (bypassed, left) in
        [("10.2.7.0/24", "10.3.0.0/16 fd02::/64"), ("10.0.0.0/8", "fd02::/64"), ("0.0.0.0/0", "fd02::/64")]
    {
        let selector = between(Prefix::ANY, prefix(bypassed));
        let policy = |directions| Policy {
            name: None,
            number: 1,
            selectors: [selector].into(),
            directions,
            action: Action::Bypass,
            populate: PopulateFlags::default(),
        };
        configuration.policies = vec![policy(Directions::Both)];
        assert_eq!(networks(&configuration), left);
        // What only arrives in clear needs no route.
        configuration.policies = vec![policy(Directions::Inbound)];
        assert_eq!(networks(&configuration), "10.2.0.0/16 10.3.0.0/16 fd02::/64");
    }
    configuration.protected.routes = false;
    assert_eq!(networks(&configuration), "");
}

/// A range is routed exactly, as the prefixes that it is made of.
#[test]
fn ranges_of_addresses_are_routed_and_stopped_to_their_last_address() {
    let peer = Remote::Address("192.0.2.2".parse().unwrap());
    let address = |text: &str| text.parse::<IpAddr>().unwrap();
    let remote = AddressRange::new(address("10.2.0.5"), address("10.2.0.8")).unwrap();
    let selector = Selector::between(AddressRange::from(prefix("10.1.0.0/16")), remote);
    let configuration = with(peer, IN_UDP, &[selector]);
    let routes: Vec<_> = tunnel_routes(&configuration).iter().map(|r| r.network.to_string()).collect();
    assert_eq!(routes, ["10.2.0.5/32", "10.2.0.6/31", "10.2.0.8/32"]);
    let firewall = Firewall::of(&configuration).unwrap();
    assert!(firewall.to_string().contains("ip daddr 10.2.0.5-10.2.0.8"), "{firewall}");
    for (host, is_dropped) in [(4, false), (5, true), (8, true), (9, false)] {
        let packet = udp("10.1.0.1", &format!("10.2.0.{host}"), (1, 1));
        assert_eq!(drops(&firewall, &packet, OUTPUT), is_dropped, "{host}\n{firewall}");
    }
}

/// The host's own packets need the address that the policy is about as their source.
#[test]
fn routes_to_peers_have_our_outer_address_as_their_source() {
    let remote = Remote::Address("192.0.2.2".parse().unwrap());
    let selectors = [
        ("10.1.0.0/16", "192.0.2.2/32"),
        ("192.0.2.1/32", "192.0.2.2/32"),
        ("192.0.2.1/32", "10.2.0.0/16"),
        ("10.1.0.1/32", "10.3.0.0/16"),
        ("192.0.2.0/31", "10.4.0.0/16"),
    ];
    let selectors = selectors.map(|(local, remote)| between(prefix(local), prefix(remote)));
    let mut configuration = with(remote, IN_UDP, &selectors);
    let routes: Vec<_> = tunnel_routes(&configuration)
        .into_iter()
        .map(|route| (route.network.to_string(), route.source.map(|source| source.to_string())))
        .collect();
    let ours = || Some("192.0.2.1".to_owned());
    let expected =
        [("192.0.2.2/32", ours()), ("10.2.0.0/16", ours()), ("10.3.0.0/16", None), ("10.4.0.0/16", None)];
    assert_eq!(routes, expected.map(|(network, source)| (network.to_owned(), source)));
    assert!(routed_peers(&configuration).eq(["192.0.2.2".parse::<IpAddr>().unwrap()]));
    configuration.tunnels[0].remote = Remote::Address("192.0.2.3".parse().unwrap());
    assert_eq!(routed_peers(&configuration).count(), 0);
    configuration.protected.routes = false;
    assert!(tunnel_routes(&configuration).is_empty());
}

/// A daemon's peers may be anywhere, also in a network that a policy closes.
#[test]
fn key_exchange_passes_where_the_configuration_has_it() {
    let peer = Remote::Address("198.51.100.2".parse().unwrap());
    let mut configuration = with(peer, IN_UDP, &[between(prefix("192.0.2.1/32"), Prefix::ANY)]);
    let passes = |configuration: &Configuration, protocol: u8, port: u16| {
        let firewall = Firewall::of(configuration).unwrap();
        let sent = Packet { protocol, ..udp("192.0.2.1", "203.0.113.9", (port, 7)) };
        let received = Packet { protocol, ..udp("203.0.113.9", "192.0.2.1", (7, port)) };
        [drops(&firewall, &sent, OUTPUT), drops(&firewall, &received, INPUT)].map(|is_dropped| !is_dropped)
    };
    for (protocol, port) in [(UDP, 500), (UDP, 4501), (50, 0), (51, 0)] {
        assert_eq!(passes(&configuration, protocol, port), [false; 2], "without [ike]");
    }
    configuration.ike = Some(Ike {
        socket: "x.sock".into(),
        user: None,
        udp_port: 4501,
        vici: "v.sock".into(),
        allow_legacy: false,
        mark: 1,
        routing_table: 1000,
        rule_priority: 1000,
    });
    for (protocol, port) in [(UDP, 500), (UDP, 4501), (50, 0), (51, 0)] {
        assert_eq!(passes(&configuration, protocol, port), [true; 2], "{protocol}, {port}");
    }
    for (protocol, port) in [(UDP, 501), (TCP, 500), (TCP, 4501), (1, 0)] {
        assert_eq!(passes(&configuration, protocol, port), [false; 2], "{protocol}, {port}");
    }
    // Without a policy that drops anything there is nothing to except.
    configuration.tunnels[0].selectors.clear();
    assert!(!Firewall::of(&configuration).unwrap().to_string().contains("key exchange"));
}

/// RFC 4301 5.2, as with policies of the configuration; errors about sealed packets must come in.
#[test]
fn networks_that_are_negotiated_are_closed_to_clear_packets() {
    let mut configuration = minimal();
    configuration.tunnels.clear();
    let template = minimal().tunnels[0].clone();
    let (local, peer) = ("192.0.2.1".parse().unwrap(), "198.51.100.2".parse().unwrap());
    let tunnel = Tunnel { local, remote: Remote::Address(peer), encapsulation: IN_UDP, ..template };
    let protect = |local, remote, directions| testudo_ipsec::Policy {
        directions,
        ..testudo_ipsec::Policy::new(between(local, remote), testudo_ipsec::Action::Protect(TunnelIndex(9)))
    };
    let (here, there) = (prefix("10.1.0.0/16"), prefix("198.51.0.0/16"));
    let policies = [Directions::Outbound, Directions::Inbound]
        .map(|directions| ("ike".to_owned(), protect(here, there, directions)))
        .into_iter()
        .chain([("ike".to_owned(), protect(prefix("192.0.2.1/32"), there, Directions::Both))]);
    let negotiated = Negotiated { policies: policies.collect(), tunnels: vec![tunnel] };
    let firewall = Firewall::beside(&configuration, &negotiated).unwrap();
    assert!(drops(&firewall, &udp("10.1.0.7", "198.51.7.7", (7, 7)), FORWARD), "{firewall}");
    assert!(drops(&firewall, &udp("198.51.7.7", "10.1.0.7", (7, 7)), FORWARD), "{firewall}");
    assert!(drops(&firewall, &udp("192.0.2.1", "198.51.7.7", (7, 7)), OUTPUT), "{firewall}");
    assert!(!drops(&firewall, &udp("10.1.0.7", "203.0.113.9", (7, 7)), FORWARD), "{firewall}");
    assert!(!drops(&firewall, &udp("192.0.2.1", "198.51.100.2", (4500, 7)), OUTPUT), "{firewall}");
    let too_big = Packet { protocol: ICMP, icmp: (3, 4), ..udp("198.51.100.2", "192.0.2.1", (0, 0)) };
    assert!(!drops(&firewall, &too_big, INPUT), "{firewall}");
    // Neither what is negotiated nor a configured network that holds a peer of it, which must be reached.
    assert_eq!(firewall.routes().networks(), []);
    let mut holding = minimal();
    holding.tunnels[0].selectors = vec![[between(here, there)].into()];
    assert_eq!(Firewall::of(&holding).unwrap().routes().networks(), [Network::of(there).unwrap()]);
    assert_eq!(Firewall::beside(&holding, &negotiated).unwrap().routes().networks(), []);
}

/// The kernel sees none of a fast port's packets, so that nothing is allowed for its interface.
#[test]
fn where_the_protected_port_passes_the_kernel_by_no_interface_is_trusted() {
    let text =
        MINIMAL.replacen("kind = \"tun\"\nname = \"testudo0\"", "kind = \"xdp\"\ninterface = \"eth1\"", 1);
    let firewall = Firewall::of(&Configuration::parse(&text, "t.toml").unwrap()).unwrap();
    let rules = firewall.to_string();
    assert_eq!(firewall.table(), "testudo-eth1");
    assert!(!rules.contains("\"eth1\"") && rules.contains("iifname \"lo\" accept"), "{rules}");
    let forward = rules.split("chain forward").nth(1).and_then(|rest| rest.split('}').next()).unwrap();
    assert!(!forward.contains("accept;\n        accept") && !forward.contains("iifname"), "{forward}");
    assert!(forward.contains("jump outbound") && forward.contains("jump inbound"), "{forward}");
    // While the gateway is down, its hosts are told so.
    assert_eq!(firewall.routes().networks().len(), 1);
}

//! Two link ports that face each other, and one port that meets what a link may bring.

#![allow(
    clippy::cast_possible_truncation,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "test data is made of small numbers, and a test says what must hold"
)]
#![forbid(unsafe_code)]

mod support;

use std::net::IpAddr;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use support::{A, B, End, TestClock, Wire, ip, own, ping, udp};
use testudo_link::outside::{Change, OutsideResolver};
use testudo_link::own::OwnResolver;
use testudo_link::routes::{NextHop, Route};
use testudo_link::{LinkConfig, WaitingLimits};
use testudo_packet::{DropReason, Port};
use testudo_wire::arp::{ArpOperation, ArpPacket};
use testudo_wire::ethernet::{EthernetHeader, MacAddress, VlanTag, ether_type};
use testudo_wire::ip::IpHeader;
use testudo_wire::neighbour_discovery::{MAX_NEIGHBOUR_MESSAGE_BYTES, NeighbourMessage};
use testudo_wire::protocol;

fn route(network: &str, prefix_bits: u8, next_hop: NextHop) -> Route {
    Route { network: network.parse().unwrap(), prefix_bits, next_hop, metric: 0 }
}

fn via(gateway: &str) -> NextHop {
    NextHop::Gateway(gateway.parse().unwrap())
}

/// The networks of both ends.
fn on_link() -> LinkConfig {
    let routes = vec![
        route("192.0.2.0", 24, NextHop::OnLink),
        route("2001:db8::", 64, NextHop::OnLink),
        route("fe80::", 64, NextHop::OnLink),
    ];
    LinkConfig { routes, ..LinkConfig::default() }
}

/// A at 192.0.2.1 and 2001:db8::1, B at 2.
struct Pair {
    a: End<OwnResolver>,
    b: End<OwnResolver>,
    to_a: Wire,
    to_b: Wire,
    clock: TestClock,
}

impl Pair {
    fn new(config: &LinkConfig) -> Self {
        Self::with(config, config)
    }

    fn with(a: &LinkConfig, b: &LinkConfig) -> Self {
        let (to_a, to_b, clock) = (Wire::default(), Wire::default(), TestClock::default());
        let a = End::new(A, (&to_a, &to_b), own(&["192.0.2.1/24", "2001:db8::1/64"]), a, &clock);
        let b = End::new(B, (&to_b, &to_a), own(&["192.0.2.2/24", "2001:db8::2/64"]), b, &clock);
        Self { a, b, to_a, to_b, clock }
    }

    /// Lets both ends receive until nothing moves any more; what arrives for the gateway at A and at B.
    fn settle(&mut self) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
        let (mut at_a, mut at_b) = (Vec::new(), Vec::new());
        for _ in 0..8 {
            at_b.extend(self.b.receive());
            at_a.extend(self.a.receive());
        }
        self.a.assert_books_balance();
        self.b.assert_books_balance();
        (at_a, at_b)
    }
}

/// A port at 192.0.2.1 whose other end is the test.
fn alone(config: &LinkConfig) -> (End<OwnResolver>, Wire, Wire, TestClock) {
    let Pair { a, to_a, to_b, clock, .. } = Pair::new(config);
    (a, to_a, to_b, clock)
}

fn frame(destination: MacAddress, source: MacAddress, kind: u16, payload: &[u8]) -> Vec<u8> {
    let header = EthernetHeader { destination, source, tags: [None; 2], ether_type: kind };
    [&header.to_bytes()[..header.bytes()], payload].concat()
}

fn to_a(packet: &[u8]) -> Vec<u8> {
    frame(A, B, if packet[0] >> 4 == 6 { ether_type::IPV6 } else { ether_type::IPV4 }, packet)
}

fn arp(operation: ArpOperation, sender_mac: MacAddress, sender: &str, target: &str) -> Vec<u8> {
    let (sender, target) = (sender.parse().unwrap(), target.parse().unwrap());
    ArpPacket { operation, sender_mac, sender, target_mac: A, target }.to_bytes().into()
}

/// The datagram in a frame, without padding.
fn datagram(frame: &[u8]) -> Vec<u8> {
    let header = EthernetHeader::parse(frame).unwrap();
    let bytes = &frame[header.bytes()..];
    bytes[..IpHeader::parse(bytes).unwrap().total_bytes].to_vec()
}

#[test]
fn a_packet_to_an_unknown_neighbour_waits_until_it_is_found_and_then_passes() {
    for (source, destination) in [("10.0.0.1", "192.0.2.2"), ("fd00::1", "2001:db8::2")] {
        let mut pair = Pair::new(&on_link());
        let packets: Vec<_> = (0..5).map(|number| udp(source, destination, 4500, &[number; 9])).collect();
        assert_eq!(pair.a.send_all(&packets[..3]), [[0u8; 0]; 0]);
        assert_eq!(pair.a.port.waiting(), 3);
        let (_, at_b) = pair.settle();
        assert_eq!(at_b, packets[..3], "in order, and without the padding");
        pair.a.send_all(&packets[3..]);
        assert_eq!(pair.settle().1, packets[3..]);
        let counters = pair.a.port.counters();
        assert_eq!(counters.tx_packets, 6, "five packets and one question");
        assert_eq!(pair.b.drops(DropReason::LinkControl), 1);
    }
}

#[test]
fn a_port_that_forwards_takes_a_hop_each_way() {
    let config = LinkConfig { forwards: true, ..on_link() };
    for (source, destination) in [("10.0.0.1", "192.0.2.2"), ("fd00::1", "2001:db8::2")] {
        let mut pair = Pair::with(&config, &on_link());
        let packet = udp(source, destination, 4500, &[1; 9]);
        let before = IpHeader::parse(&packet).unwrap().hop_limit;
        pair.a.send(&packet);
        let (_, at_b) = pair.settle();
        assert_eq!(IpHeader::parse(&at_b[0]).unwrap().hop_limit, before - 1, "of one that has waited");
        pair.a.send(&packet);
        assert_eq!(pair.settle().1, at_b, "and of one that has not");
        let mut last = packet.clone();
        testudo_wire::ip::lose_hop(&mut last);
        while testudo_wire::ip::lose_hop(&mut last) {}
        pair.a.send(&last);
        assert!(pair.settle().1.is_empty());
        assert_eq!(pair.a.drops(DropReason::HopLimitExceeded), 1);
    }
}

/// RFC 8200 8.1. Over IPv4 there may be none (RFC 3948 2.1).
#[test]
fn udp_over_ipv6_never_leaves_without_a_checksum() {
    let config = LinkConfig { completes_udp: true, ..on_link() };
    for (own, peer, udp_at) in [("192.0.2.1", "192.0.2.2", 20), ("2001:db8::1", "2001:db8::2", 40)] {
        for config in [&config, &on_link()] {
            let mut pair = Pair::new(config);
            let complete = udp(own, peer, 4500, &[7; 99]);
            let mut missing = complete.clone();
            missing[udp_at + 6..udp_at + 8].fill(0);
            let completes = config.completes_udp && udp_at == 40;
            let expected = [if completes { complete.clone() } else { missing.clone() }];
            for moment in ["of one that has waited", "of one that has not"] {
                pair.a.send(&missing);
                assert_eq!(pair.settle().1, expected, "{moment}");
            }
            pair.a.send(&complete);
            assert_eq!(pair.settle().1, [complete], "what has one keeps it");
        }
    }
}

#[test]
fn every_form_of_vlan_carries_packets_and_others_are_refused() {
    let forms = [
        [None, None],
        [Some(VlanTag::customer(100)), None],
        [Some(VlanTag::customer(101)), None],
        [Some(VlanTag::service(200)), Some(VlanTag { priority: 6, ..VlanTag::customer(100) })],
    ];
    for ours in forms {
        for theirs in forms {
            let (ours_config, theirs_config) =
                (LinkConfig { tags: ours, ..on_link() }, LinkConfig { tags: theirs, ..on_link() });
            let mut pair = Pair::with(&ours_config, &theirs_config);
            for (source, destination) in [("10.0.0.1", "192.0.2.2"), ("fd00::1", "2001:db8::2")] {
                let packet = udp(source, destination, 4500, b"through");
                pair.a.send(&packet);
                let (_, at_b) = pair.settle();
                if ours == theirs {
                    assert_eq!(at_b, [packet]);
                } else {
                    assert_eq!(at_b, [[0u8; 0]; 0]);
                }
            }
            let refused = if ours == theirs { 0 } else { 2 };
            assert_eq!(pair.b.drops(DropReason::OtherVlan), refused, "{ours:?} to {theirs:?}");
        }
    }
}

/// Scapy 2.5: `Ether(dst=A, src=B) / Dot1Q(vlan=100, prio=5) / IP(…)`, and `Dot1AD(vlan=200) /
/// Dot1Q(vlan=100, id=1, prio=1) / IPv6(…)`: what it writes is delivered, and the port writes the same.
#[test]
fn frames_with_tags_are_those_that_scapy_writes() {
    let customer = |priority| VlanTag { priority, ..VlanTag::customer(100) };
    for (tags, source, destination, front) in [
        ([Some(customer(0xA)), None], "192.0.2.2", "192.0.2.1", "8100a0640800"),
        (
            [Some(VlanTag::service(200)), Some(customer(3))],
            "2001:db8::2",
            "2001:db8::1",
            "88a800c88100306486dd",
        ),
    ] {
        let front: Vec<u8> = (0..front.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&front[at..at + 2], 16).unwrap())
            .collect();
        let mut pair = Pair::new(&LinkConfig { tags, ..on_link() });
        let packet = udp(source, destination, 4500, &[0x5A; 100]);
        pair.to_a.push([&A.0[..], &B.0, &front, &packet].concat());
        assert_eq!(pair.a.receive(), [&packet[..]]);
        pair.b.send(&packet);
        pair.a.receive();
        pair.b.receive();
        let sent = pair.to_a.take();
        assert_eq!(sent, [[&A.0[..], &B.0, &front, &packet].concat()]);
    }
}

#[test]
fn packets_beyond_the_link_go_to_their_gateway() {
    let mut config = on_link();
    config.routes.push(route("0.0.0.0", 0, via("192.0.2.2")));
    config.routes.push(route("::", 0, via("2001:db8::2")));
    config.routes.push(route("203.0.113.0", 24, NextHop::Elsewhere));
    // An IPv4 network behind a router of IPv6.
    config.routes.push(route("198.51.100.0", 24, via("2001:db8::2")));
    let mut pair = Pair::new(&config);
    for destination in ["8.8.8.8", "2001:db8:1::9", "198.51.100.7"] {
        let source = if destination.contains(':') { "fd00::1" } else { "10.0.0.1" };
        let packet = udp(source, destination, 53, b"query");
        pair.a.send(&packet);
        assert_eq!(pair.settle().1, [packet], "{destination}");
    }
    pair.a.send(&udp("10.0.0.1", "203.0.113.9", 53, b"query"));
    assert_eq!((pair.settle().1, pair.a.drops(DropReason::NoRoute)), (vec![], 1));
    assert_eq!(pair.a.port.counters().tx_packets, 5, "one question for each of the gateway's addresses");
}

#[test]
fn groups_need_no_neighbour() {
    let (mut a, _, to_b, _) = alone(&on_link());
    for (destination, mac) in [
        ("224.0.0.5", "01:00:5e:00:00:05"),
        ("255.255.255.255", "ff:ff:ff:ff:ff:ff"),
        ("ff02::5", "33:33:00:00:00:05"),
    ] {
        let source = if destination.contains(':') { "2001:db8::1" } else { "192.0.2.1" };
        a.send(&udp(source, destination, 9, b"hello"));
        let frame = to_b.pop().unwrap();
        assert_eq!(EthernetHeader::parse(&frame).unwrap().destination.to_string(), mac);
    }
}

/// RFC 4861 7.2.2: "If no Neighbor Advertisement is received after MAX_MULTICAST_SOLICIT solicitations,
/// address resolution has failed. The sender MUST return ICMP destination unreachable indications with code
/// 3 (Address Unreachable) for each packet queued awaiting address resolution."
#[test]
fn packets_to_a_neighbour_that_does_not_answer_end_and_their_senders_are_told() {
    for (source, destination, from, code) in
        [("10.0.0.1", "192.0.2.9", "192.0.2.1", [3, 1]), ("fd00::1", "2001:db8::9", "2001:db8::1", [1, 3])]
    {
        let (mut a, _, to_b, clock) = alone(&on_link());
        let packet = udp(source, destination, 4500, b"lost");
        a.send(&packet);
        // One of the gateway's own: it need not tell itself.
        a.send(&udp(from, destination, 4500, b"lost, too"));
        for _ in 0..2 {
            clock.advance(1000);
            assert_eq!(a.receive(), [[0u8; 0]; 0]);
        }
        assert_eq!((a.port.waiting(), to_b.take().len()), (2, 3), "asked three times");
        clock.advance(1000);
        let told = a.receive();
        assert_eq!((a.port.waiting(), a.drops(DropReason::NeighbourUnresolved)), (0, 2));
        assert_eq!(told.len(), 1);
        let header = IpHeader::parse(&told[0]).unwrap();
        assert_eq!(header.source, from.parse::<IpAddr>().unwrap());
        assert_eq!(header.destination, source.parse::<IpAddr>().unwrap());
        let message = header.payload(&told[0]);
        assert_eq!((&message[..2], &message[8..]), (&code[..], &packet[..]));
        a.assert_books_balance();
    }
}

#[test]
fn echo_requests_to_own_addresses_are_answered() {
    let mut pair = Pair::new(&on_link());
    for (source, destination) in [("192.0.2.1", "192.0.2.2"), ("2001:db8::1", "2001:db8::2")] {
        let request = ping(source, destination, &[0x5A; 1000]);
        pair.a.send(&request);
        let (_, at_b) = pair.settle();
        assert_eq!(at_b, [[0u8; 0]; 0], "the gateway does not see it");
        // A does not have echo requests of its own, so that the reply ends there.
        assert_eq!(pair.a.drops(DropReason::NotServed), if source.contains(':') { 2 } else { 1 });
        assert_eq!(pair.b.drops(DropReason::NotServed), 0);
    }
}

#[test]
fn what_own_addresses_do_not_serve_is_refused_within_a_rate() {
    let mut pair = Pair::new(&on_link());
    for (source, destination, port, unknown) in
        [("192.0.2.1", "192.0.2.2", [3, 3], [3, 2]), ("2001:db8::1", "2001:db8::2", [1, 4], [4, 1])]
    {
        let (s, d): (IpAddr, IpAddr) = (source.parse().unwrap(), destination.parse().unwrap());
        let to_port = udp(source, destination, 9, b"x");
        let tcp = ip(s, d, protocol::TCP, &[0; 20]);
        for (packet, code) in [(to_port, port), (tcp, unknown)] {
            pair.a.send(&packet);
            let (at_a, at_b) = pair.settle();
            assert_eq!(at_b, [[0u8; 0]; 0]);
            let [message] = &at_a[..] else { panic!("{at_a:?}") };
            let message = IpHeader::parse(message).unwrap().payload(message).to_vec();
            assert_eq!((&message[..2], &message[8..]), (&code[..], &packet[..]));
        }
        for (number, data) in [(protocol::ESP, &[7; 40][..]), (protocol::AH, &[7; 40])] {
            let packet = ip(s, d, number, data);
            pair.a.send(&packet);
            assert_eq!(pair.settle().1, [packet], "the gateway's own");
        }
    }
    for _ in 0..1000 {
        pair.a.send(&udp("192.0.2.1", "192.0.2.2", 9, b"x"));
        pair.b.receive();
    }
    let told = pair.settle().0.len();
    assert!((30..=50).contains(&told), "{told} messages");
    assert_eq!(pair.b.drops(DropReason::NotServed), 1004);
    pair.clock.advance(100);
    pair.a.send(&udp("192.0.2.1", "192.0.2.2", 9, b"x"));
    assert_eq!(pair.settle().0.len(), 1);
}

#[test]
fn icmp_errors_and_fragments_to_own_addresses_are_the_gateways() {
    let (mut a, wire, _, _) = alone(&on_link());
    let (s, d): (IpAddr, IpAddr) = ("192.0.2.9".parse().unwrap(), "192.0.2.1".parse().unwrap());
    let error = ip(s, d, protocol::ICMP, &[3, 4, 0, 0, 0, 0, 5, 0, 0x45, 0, 0, 0]);
    let mut fragment = ip(s, d, protocol::UDP, &[0; 16]);
    (fragment[6], fragment[7]) = (0x20, 3);
    fragment[10..12].fill(0);
    let sum = testudo_wire::checksum::of(&fragment[..20]).to_bytes();
    fragment[10..12].copy_from_slice(&sum);
    for packet in [error, fragment, udp("192.0.2.9", "192.0.2.1", 4500, b"esp")] {
        wire.push(to_a(&packet));
        assert_eq!(a.receive(), [packet]);
    }
}

/// Each frame is dropped for its reason, and nothing is sent.
#[test]
fn frames_that_are_not_for_the_gateway_are_dropped_by_name() {
    let good = udp("192.0.2.9", "192.0.2.1", 4500, b"data");
    let six = udp("fd00::9", "2001:db8::1", 4500, b"data");
    let [mut longer, mut no_ip, mut short] = [good.clone(), good.clone(), good.clone()];
    longer[3] += 1;
    no_ip[0] = 0x55;
    short[3] = 19;
    let mut discovery = [0; MAX_NEIGHBOUR_MESSAGE_BYTES];
    let message =
        NeighbourMessage::Solicitation { target: "2001:db8::1".parse().unwrap(), source_mac: Some(B) };
    let _ = message.write("2001:db8::2".parse().unwrap(), "ff02::1:ff00:1".parse().unwrap(), &mut discovery);
    discovery[43] ^= 1;
    for (frame, reason) in [
        (frame(A, B, ether_type::IPV4, &good)[..13].to_vec(), DropReason::FrameMalformed),
        (frame(A, B, ether_type::VLAN, &[0, 9]), DropReason::FrameMalformed),
        (frame(A, B, ether_type::VLAN, &[0, 9, 8, 0, 0x45]), DropReason::OtherVlan),
        (frame(A, B, 0x88CC, &good), DropReason::OtherEtherType),
        (frame(A, B, 46, &good), DropReason::OtherEtherType),
        (frame(B, B, ether_type::IPV4, &good), DropReason::OtherMac),
        (frame(MacAddress::BROADCAST, B, ether_type::IPV4, &good), DropReason::OtherMac),
        (frame(MacAddress([0x33; 6]), B, ether_type::IPV6, &six), DropReason::OtherMac),
        (to_a(&longer), DropReason::Truncated),
        (frame(A, B, ether_type::IPV4, &good[..5]), DropReason::Truncated),
        (to_a(&no_ip), DropReason::NotIp),
        (frame(A, B, ether_type::IPV6, &good), DropReason::NotIp),
        (to_a(&short), DropReason::BadHeader),
        (to_a(&six[..50]), DropReason::Truncated),
        (frame(A, B, ether_type::ARP, &[0; 28]), DropReason::FrameMalformed),
        (frame(MacAddress([0x33; 6]), B, ether_type::IPV6, &discovery), DropReason::FrameMalformed),
    ] {
        let (mut a, wire, out, _) = alone(&on_link());
        wire.push(frame.clone());
        assert_eq!(a.receive(), [[0u8; 0]; 0], "{frame:02x?}");
        assert_eq!((a.drops(reason), out.take().len()), (1, 0), "{reason:?} {:?}", a.pool.drops());
        a.assert_books_balance();
    }
}

#[test]
fn padding_is_cut_and_what_is_delivered_is_the_datagram() {
    let (mut a, wire, _, _) = alone(&on_link());
    for packet in [udp("192.0.2.9", "10.0.0.1", 1, b""), udp("fd00::9", "fd00::1", 1, b"")] {
        wire.push([&to_a(&packet)[..], &[0xEE; 40]].concat());
        assert_eq!(a.receive(), [packet]);
    }
}

#[test]
fn a_probe_for_an_own_address_is_answered_and_teaches_nothing() {
    let (mut a, wire, out, _) = alone(&on_link());
    wire.push(frame(
        MacAddress::BROADCAST,
        B,
        ether_type::ARP,
        &arp(ArpOperation::Request, B, "0.0.0.0", "192.0.2.1"),
    ));
    let mut discovery = [0; MAX_NEIGHBOUR_MESSAGE_BYTES];
    let target = "2001:db8::1".parse().unwrap();
    let message = NeighbourMessage::Solicitation { target, source_mac: None };
    let length = message.write("::".parse().unwrap(), "ff02::1:ff00:1".parse().unwrap(), &mut discovery);
    wire.push(frame(MacAddress([0x33; 6]), B, ether_type::IPV6, &discovery[..length]));
    a.receive();
    let [arp_reply, advertisement] = &out.take()[..] else { panic!("two answers") };
    let reply = ArpPacket::parse(&arp_reply[14..]).unwrap();
    assert_eq!((reply.operation, reply.sender_mac, reply.target_mac), (ArpOperation::Reply, A, B));
    assert_eq!(reply.sender.octets(), [192, 0, 2, 1]);
    let bytes = datagram(advertisement);
    let header = IpHeader::parse(&bytes).unwrap();
    assert_eq!(header.destination, "ff02::1".parse::<IpAddr>().unwrap());
    let expected = NeighbourMessage::Advertisement {
        target,
        is_router: true,
        is_solicited: false,
        overrides: true,
        target_mac: Some(A),
    };
    assert_eq!(NeighbourMessage::parse(&header, &bytes), Ok(Some(expected)));
    assert!(a.port.tables().neighbours.is_empty());
}

/// Linux, `arp_accept` = 0: "don't create new entries in the ARP table" for gratuitous ARP, which updates
/// those that are there.
#[test]
fn gratuitous_arp_updates_a_neighbour_and_adds_none() {
    let mut pair = Pair::new(&on_link());
    let packet = udp("10.0.0.1", "192.0.2.2", 4500, b"data");
    pair.a.send(&packet);
    assert_eq!(pair.settle().1, [&packet[..]]);
    let other = MacAddress([2, 0, 0, 0, 0, 0xCC]);
    for sender in ["192.0.2.2", "192.0.2.77"] {
        let gratuitous = arp(ArpOperation::Request, other, sender, sender);
        pair.to_a.push(frame(MacAddress::BROADCAST, other, ether_type::ARP, &gratuitous));
    }
    pair.a.receive();
    let neighbours = &pair.a.port.tables().neighbours;
    assert_eq!((neighbours.len(), neighbours.mac("192.0.2.2".parse().unwrap())), (1, Some(other)));
    pair.a.send(&packet);
    let frames = pair.to_b.take();
    let destinations: Vec<_> = frames.iter().map(|f| EthernetHeader::parse(f).unwrap()).collect();
    assert!(destinations.iter().all(|header| header.destination == other), "the packet, and a probe");
    assert_eq!(frames.len(), 2);
}

#[test]
fn a_neighbour_that_ages_is_probed_and_forgotten_when_it_is_gone() {
    let mut pair = Pair::new(&on_link());
    let packet = udp("10.0.0.1", "192.0.2.2", 4500, b"data");
    pair.a.send(&packet);
    pair.settle();
    for _ in 0..3 {
        pair.clock.advance(31_000);
        pair.a.send(&packet);
        assert_eq!(pair.settle().1, [&packet[..]], "probed, and sent all the same");
    }
    assert_eq!(pair.b.drops(DropReason::LinkControl), 4);
    pair.clock.advance(31_000);
    pair.a.send(&packet);
    for _ in 0..3 {
        pair.clock.advance(1000);
        pair.a.receive();
    }
    assert!(pair.a.port.tables().neighbours.is_empty());
    pair.a.send(&packet);
    assert_eq!(pair.a.port.waiting(), 1);
}

#[test]
fn packets_that_wait_are_bounded_per_next_hop_and_in_all() {
    let waiting = WaitingLimits { per_next_hop: 4, total: 10 };
    let (mut a, _, _, clock) = alone(&LinkConfig { waiting, ..on_link() });
    for _ in 0..6 {
        a.send(&udp("10.0.0.1", "192.0.2.50", 1, b"x"));
    }
    assert_eq!((a.port.waiting(), a.drops(DropReason::NeighbourQueueFull)), (4, 2));
    for host in 100..200 {
        a.send(&udp("10.0.0.1", &format!("192.0.2.{host}"), 1, b"x"));
    }
    assert_eq!((a.port.waiting(), a.drops(DropReason::NeighbourQueueFull)), (10, 96));
    a.assert_books_balance();
    (0..3).for_each(|_| {
        clock.advance(1000);
        a.receive();
    });
    assert_eq!((a.port.waiting(), a.pool.in_use()), (0, 0));
}

/// Packets to invented hosts, and ARP requests from as many: the peer's packets pass all the time.
#[test]
fn a_flood_of_invented_hosts_stops_no_traffic_to_a_peer() {
    let mut config = on_link();
    config.neighbours = 64;
    config.routes.push(route("10.0.0.0", 8, NextHop::OnLink));
    let mut pair = Pair::new(&config);
    let packet = udp("172.16.0.1", "192.0.2.2", 4500, b"data");
    pair.a.send(&packet);
    assert_eq!(pair.settle().1, [&packet[..]]);
    for number in 0u32..5000 {
        let invented = std::net::Ipv4Addr::from(0x0A00_0000 + number).to_string();
        pair.a.send(&udp("172.16.0.1", &invented, 1, b"x"));
        let request = arp(ArpOperation::Request, MacAddress([2, 9, 9, 9, 9, 9]), &invented, "192.0.2.1");
        pair.to_a.push(frame(MacAddress::BROADCAST, B, ether_type::ARP, &request));
        pair.clock.advance(20);
        if number % 50 == 0 {
            pair.a.send(&packet);
            let (_, at_b) = pair.settle();
            assert!(at_b.contains(&packet), "packet {number}");
        }
    }
    assert!(pair.a.port.tables().neighbours.len() <= 64);
    assert!(pair.a.port.waiting() <= 128);
}

#[test]
fn what_a_full_device_does_not_take_stays_with_the_caller_as_it_was() {
    let mut pair = Pair::new(&on_link());
    let packets: Vec<_> = (0..6).map(|number| udp("10.0.0.1", "192.0.2.2", 4500, &[number])).collect();
    pair.a.send(&packets[0]);
    pair.settle();
    *pair.a.room.lock().unwrap() = Some(2);
    assert_eq!(pair.a.send_all(&packets[1..]), packets[3..], "whole datagrams, in order");
    assert_eq!(pair.settle().1, packets[1..3]);
    *pair.a.room.lock().unwrap() = None;
    pair.a.send_all(&packets[3..]);
    assert_eq!(pair.settle().1, packets[3..]);
}

/// While the device takes nothing, packets that waited stay ahead of newer ones.
#[test]
fn packets_that_waited_leave_before_newer_ones() {
    let mut pair = Pair::new(&on_link());
    let packets: Vec<_> = (0..4).map(|number| udp("10.0.0.1", "192.0.2.2", 4500, &[number])).collect();
    pair.a.send_all(&packets[..2]);
    pair.b.receive();
    *pair.a.room.lock().unwrap() = Some(0);
    pair.a.receive();
    assert_eq!(pair.a.send_all(&packets[2..]), packets[2..], "not taken");
    *pair.a.room.lock().unwrap() = None;
    // The device refuses once more, and would take what comes after.
    *pair.a.refuses_once.lock().unwrap() = true;
    assert_eq!(pair.a.send_all(&packets[2..]), packets[2..], "not taken");
    pair.a.send_all(&packets[2..]);
    assert_eq!(pair.settle().1, packets);
}

#[test]
fn a_packet_that_is_longer_than_the_link_or_no_packet_is_dropped_by_name() {
    let (mut a, _, _, _) = alone(&on_link());
    a.send(&udp("10.0.0.1", "192.0.2.2", 1, &[0; 1473]));
    a.send(&[0; 40]);
    assert_eq!((a.drops(DropReason::MessageTooLong), a.drops(DropReason::NotIp)), (1, 1));
    a.assert_books_balance();
}

/// A port whose neighbours and routes come by messages.
fn fed() -> (End<OutsideResolver>, Wire, Wire, TestClock, Sender<Change>, Receiver<IpAddr>) {
    let (to_a, to_b, clock) = (Wire::default(), Wire::default(), TestClock::default());
    let ((changes, received), (wanted, asked)) = (channel(), sync_channel(4));
    let ask = Box::new(move |address| wanted.try_send(address).unwrap());
    let resolver = OutsideResolver::new(received, ask);
    let a = End::new(A, (&to_a, &to_b), resolver, &LinkConfig::default(), &clock);
    (a, to_a, to_b, clock, changes, asked)
}

#[test]
fn a_fed_port_asks_outside_and_sends_when_it_is_told() {
    let (mut a, _, to_b, clock, changes, asked) = fed();
    let packet = udp("192.0.2.1", "8.8.8.8", 4500, b"data");
    a.send(&packet);
    assert_eq!(a.drops(DropReason::NoRoute), 1);
    changes.send(Change::routes(&[route("0.0.0.0", 0, via("192.0.2.2"))])).unwrap();
    a.receive();
    a.send(&packet);
    let gateway: IpAddr = "192.0.2.2".parse().unwrap();
    assert_eq!(
        (asked.try_iter().collect::<Vec<_>>(), to_b.take().len()),
        (vec![gateway], 0),
        "no ARP of ours"
    );
    let there = Change::Neighbour { address: gateway, mac: B, is_reachable: true };
    changes.send(there.clone()).unwrap();
    a.receive();
    assert_eq!(to_b.take().iter().map(|frame| datagram(frame)).collect::<Vec<_>>(), [&packet[..]]);
    clock.advance(31_000);
    a.send(&packet);
    assert_eq!((asked.try_iter().count(), to_b.take().len()), (1, 1), "asked again while in use");
    changes.send(there).unwrap();
    a.receive();
    changes.send(Change::NoNeighbour(gateway)).unwrap();
    a.receive();
    a.send(&packet);
    assert_eq!((asked.try_iter().count(), a.port.waiting()), (1, 1));
    changes.send(Change::NoNeighbour(gateway)).unwrap();
    a.receive();
    assert_eq!((a.port.waiting(), a.drops(DropReason::NeighbourUnresolved)), (0, 1));
    a.assert_books_balance();
}

#[test]
fn a_fed_port_leaves_arp_to_the_kernel_and_gives_the_gateway_all_packets() {
    let (mut a, to_a_wire, to_b, _, _, _) = fed();
    to_a_wire.push(frame(
        MacAddress::BROADCAST,
        B,
        ether_type::ARP,
        &arp(ArpOperation::Request, B, "192.0.2.2", "192.0.2.1"),
    ));
    to_a_wire.push(frame(
        MacAddress::BROADCAST,
        B,
        ether_type::IPV4,
        &ping("192.0.2.2", "192.0.2.255", b"x"),
    ));
    let echo = ping("192.0.2.2", "192.0.2.1", b"x");
    to_a_wire.push(to_a(&echo));
    assert_eq!(a.receive(), [echo]);
    assert_eq!((a.drops(DropReason::OtherEtherType), a.drops(DropReason::OtherMac)), (1, 1));
    assert_eq!(to_b.take(), [[0u8; 0]; 0]);
}

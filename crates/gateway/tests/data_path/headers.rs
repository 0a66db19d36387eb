//! Outer and inner headers through a tunnel: ECN and DSCP (RFC 6040), DF (RFC 4301 8.1), flow labels (RFC
//! 6438), fragments before encryption, "packet too big".

use crate::support::gateway::{PoolSize, portable};
use crate::support::{Gateway, Handmade, Inner, LeaseTwin, Sealer, Side, TunnelSpec};
use std::collections::HashSet;
use testudo_crypto::Suite;
use testudo_ipsec::{Df, FlowLabel, IpsecProtocol, PacketRules};
use testudo_packet::DropReason;
use testudo_wire::ip::{IpHeader, Version};

fn specs() -> Vec<TunnelSpec> {
    let mut specs = Vec::new();
    for outer in [Version::V4, Version::V6] {
        for udp in [false, true] {
            specs.push(TunnelSpec { outer, udp, ..TunnelSpec::new(0, Suite::AES128GCM16) });
        }
    }
    specs
}

fn inner(is_v6: bool, bytes: usize) -> Inner {
    if is_v6 { Inner::udp("fd0a::1", "fd16::2", bytes) } else { Inner::udp("10.0.0.1", "172.16.0.2", bytes) }
}

/// RFC 6040, figure 4 through a whole gateway: each inner with each outer field, both versions on both sides.
#[test]
fn ecn_comes_out_as_figure_4_of_rfc_6040_says() {
    const DROP: u8 = 0xFF;
    // Rows: inner Not-ECT, ECT(1), ECT(0), CE; columns: the outer field in the same order of bits.
    const FIGURE_4: [[u8; 4]; 4] = [[0, 0, 0, DROP], [1, 1, 1, 3], [2, 1, 2, 3], [3, 3, 3, 3]];
    for spec in specs() {
        let mut sealer = Sealer::new(&spec, Side::A);
        let mut b = Gateway::with_tunnels(Side::B, std::slice::from_ref(&spec));
        let mut sequence = 0;
        for is_v6 in [false, true] {
            for (inner_ecn, row) in (0u8..).zip(FIGURE_4) {
                for (outer_ecn, expected) in (0u8..).zip(row) {
                    sequence += 1;
                    let original = Inner { traffic_class: 0xB8 | inner_ecn, ..inner(is_v6, 100) };
                    let made =
                        Handmade { outer_class: 0x20 | outer_ecn, ..Handmade::carrying(&original.bytes()) };
                    let delivered = b.open(sealer.seal(sequence, &made));
                    let changed = Inner { traffic_class: 0xB8 | expected, ..original }.bytes();
                    let expected = if expected == DROP { vec![] } else { vec![changed] };
                    assert_eq!(delivered, expected, "inner {inner_ecn:02b}, outer {outer_ecn:02b}");
                }
            }
        }
        assert_eq!(b.drops(DropReason::EcnCongestion), 2);
    }
}

/// RFC 6040 4.1, normal mode, and RFC 4301's default for DSCP: the outer field is a copy of the inner one.
#[test]
fn traffic_class_is_copied_outwards() {
    for spec in specs() {
        let mut a = Gateway::with_tunnels(Side::A, std::slice::from_ref(&spec));
        for is_v6 in [false, true] {
            for traffic_class in 0..=255 {
                let sealed = a.seal(Inner { traffic_class, ..inner(is_v6, 60) }.bytes());
                let outer = IpHeader::parse(&sealed[0]).expect("a datagram");
                assert_eq!(outer.traffic_class, traffic_class);
            }
        }
    }
}

#[test]
fn the_longest_inner_packet_makes_a_datagram_that_fits_the_path() {
    for spec in specs() {
        for path_mtu in 1280..1300 {
            let spec = TunnelSpec { path_mtu, ..spec.clone() };
            let mut a = Gateway::with_tunnels(Side::A, std::slice::from_ref(&spec));
            let mut b = Gateway::with_tunnels(Side::B, std::slice::from_ref(&spec));
            let packet = Inner { dont_fragment: true, ..inner(false, spec.inner_mtu()) }.bytes();
            let sealed = a.seal(packet.clone());
            assert!(sealed[0].len() <= path_mtu && sealed[0].len() + 4 > path_mtu, "of {path_mtu}");
            assert_eq!(b.open(sealed[0].clone()), [packet]);
            assert!(
                a.seal(Inner { dont_fragment: true, ..inner(false, spec.inner_mtu() + 1) }.bytes())
                    .is_empty()
            );
        }
    }
}

/// RFC 4301 8.1 leaves the choice open; this gateway fragments before encryption, so that the peer need not
/// reassemble.
#[test]
fn long_ipv4_packets_are_cut_before_encryption_and_come_out_as_fragments() {
    for spec in specs() {
        let mut a = Gateway::new(spec.policies(Side::A), PoolSize(128, 65_535), portable());
        a.install(spec.install(Side::A, &mut LeaseTwin::new(1 << 40), None));
        let mut b = Gateway::with_tunnels(Side::B, std::slice::from_ref(&spec));
        for bytes in [spec.inner_mtu() + 1, 2000, 9000, 65_000] {
            let packet = inner(false, bytes).bytes();
            let sealed = a.seal(packet.clone());
            let mut payload = Vec::new();
            let last = sealed.len() - 1;
            for (place, datagram) in sealed.into_iter().enumerate() {
                assert!(datagram.len() <= spec.path_mtu);
                let fragment = b.open(datagram).pop().expect("each fragment is delivered");
                let header = IpHeader::parse(&fragment).expect("a fragment");
                let place_in_datagram = header.fragment.expect("a fragment");
                assert_eq!(usize::from(place_in_datagram.offset_bytes), payload.len());
                assert_eq!(place_in_datagram.more, place != last);
                payload.extend_from_slice(header.payload(&fragment));
            }
            assert_eq!(payload, packet[20..]);
        }
        a.assert_settled();
        b.assert_settled();
    }
}

/// A packet that cannot be fragmented completely is dropped without sending any fragment: some of its
/// fragments would be useless. Each buffer is accounted for.
#[test]
fn a_packet_is_dropped_whole_where_buffers_for_its_fragments_lack() {
    let spec = TunnelSpec::new(0, Suite::AES128GCM16);
    for buffers in 1..8 {
        let mut a = Gateway::new(spec.policies(Side::A), PoolSize(buffers, 9000), portable());
        a.install(spec.install(Side::A, &mut LeaseTwin::new(1 << 40), None));
        let sealed = a.seal(inner(false, 7000).bytes());
        // The first fragment stays in the packet's own buffer, a long one; the others are in frames.
        assert_eq!(sealed.len(), if buffers < 4 { 0 } else { 5 });
        assert_eq!(a.drops(DropReason::PoolEmpty) > 0, buffers < 4);
        a.assert_settled();
    }
}

#[test]
fn senders_of_packets_that_must_not_be_fragmented_are_told_the_mtu() {
    for spec in specs() {
        let mut a = Gateway::with_tunnels(Side::A, std::slice::from_ref(&spec));
        for is_v6 in [false, true] {
            let packet = Inner { dont_fragment: true, ..inner(is_v6, spec.inner_mtu() + 1) }.bytes();
            assert!(a.seal(packet.clone()).is_empty());
            let reply = a.protected.take().pop().expect("a reply to the sender");
            let header = IpHeader::parse(&reply).expect("a packet");
            let sender = IpHeader::parse(&packet).expect("a packet");
            assert_eq!(header.destination, sender.source);
            let message = header.payload(&reply);
            assert_eq!(&message[..2], if is_v6 { &[2, 0] } else { &[3, 4] });
            assert_eq!(message[6..8], (spec.inner_mtu() as u16).to_be_bytes());
            assert!(packet.starts_with(&message[8..]), "the reply quotes the packet");
        }
        a.assert_settled();
    }
}

/// RFC 1122 3.2.2, RFC 4443 2.4 (e): no error may have a group as its source.
#[test]
fn no_reply_comes_from_a_group() {
    let spec = TunnelSpec::new(0, Suite::AES128GCM16);
    let mut a = Gateway::with_tunnels(Side::A, std::slice::from_ref(&spec));
    let protect = testudo_ipsec::Action::Protect(spec.index());
    let policy = testudo_ipsec::Policy::new(testudo_ipsec::Selector::ANY, protect);
    let now = a.now();
    let policies = Some(Box::new(testudo_ipsec::Spd::new([policy]).expect("one prefix")));
    a.worker.update(testudo_gateway::Update { policies, ..Default::default() }, now);
    for (source, group) in
        [("10.0.0.1", "224.0.0.5"), ("10.0.0.1", "255.255.255.255"), ("fd0a::1", "ff05::2")]
    {
        a.seal(Inner { dont_fragment: true, ..Inner::udp(source, group, 1600) }.bytes());
        assert!(a.protected.take().is_empty(), "a reply from {group}");
    }
    assert_eq!(a.drops(DropReason::TooBig), 3);
    a.assert_settled();
}

/// A fragment that would end beyond the longest datagram is refused: fragmented again, its parts would wrap
/// around to the start of the datagram.
#[test]
fn a_fragment_beyond_the_end_of_all_datagrams_is_refused() {
    let spec = TunnelSpec::new(0, Suite::AES128GCM16);
    let mut a = Gateway::with_tunnels(Side::A, std::slice::from_ref(&spec));
    let mut packet = inner(false, 1600).bytes();
    packet[6..8].copy_from_slice(&0x1FFFu16.to_be_bytes());
    packet[10..12].fill(0);
    let sum = testudo_wire::checksum::of(&packet[..20]).to_bytes();
    packet[10..12].copy_from_slice(&sum);
    assert!(a.seal(packet).is_empty());
    assert_eq!(a.drops(DropReason::BadHeader), 1);
    a.assert_settled();
}

/// Bytes after the UDP datagram are no part of the ESP packet in it, and a UDP length that truncates the
/// packet damages it.
#[test]
fn the_udp_length_bounds_the_esp_packet() {
    let spec = TunnelSpec { udp: true, ..TunnelSpec::new(0, Suite::AES128GCM16) };
    let mut sealer = Sealer::new(&spec, Side::A);
    let mut b = Gateway::with_tunnels(Side::B, std::slice::from_ref(&spec));
    let packet = inner(false, 100).bytes();
    let good = sealer.seal(1, &Handmade::carrying(&packet));
    for shorter in 1..100u16 {
        let mut datagram = good.clone();
        let udp_bytes = u16::from_be_bytes([datagram[24], datagram[25]]) - shorter;
        datagram[24..26].copy_from_slice(&udp_bytes.to_be_bytes());
        assert!(b.open(datagram).is_empty(), "{shorter} bytes shorter");
    }
    let mut longer = good.clone();
    longer.extend([0xEE; 12]);
    let total = (longer.len() as u16).to_be_bytes();
    longer[2..4].copy_from_slice(&total);
    longer[10..12].fill(0);
    let sum = testudo_wire::checksum::of(&longer[..20]).to_bytes();
    longer[10..12].copy_from_slice(&sum);
    assert_eq!(b.open(longer), [packet]);
}

fn suite_of(protocol: IpsecProtocol) -> Suite {
    if protocol == IpsecProtocol::Ah { Suite::NULL_SHA384 } else { Suite::AES128GCM16 }
}

/// RFC 4301 8.1, in ESP and AH: what comes out of the other end is the packet that went in, and what may be
/// cut has an Identification of its own (RFC 6864 4.3).
#[test]
fn outer_df_is_set_copied_or_cleared() {
    for protocol in [IpsecProtocol::Esp, IpsecProtocol::Ah] {
        for udp in [false, true].into_iter().filter(|udp| !udp || protocol == IpsecProtocol::Esp) {
            for df in [Df::Set, Df::Copy, Df::Clear] {
                let suite = suite_of(protocol);
                let rules = PacketRules { df, ..PacketRules::default() };
                let spec = TunnelSpec { protocol, udp, rules, ..TunnelSpec::new(0, suite) };
                let mut a = Gateway::with_tunnels(Side::A, std::slice::from_ref(&spec));
                let mut b = Gateway::with_tunnels(Side::B, std::slice::from_ref(&spec));
                let mut identifications = HashSet::new();
                for round in 0..200 {
                    let (is_v6, dont_fragment) = (round % 3 == 0, round % 2 == 0);
                    let packet = Inner { dont_fragment, ..inner(is_v6, 100) }.bytes();
                    let sealed = a.seal(packet.clone()).remove(0);
                    let header = IpHeader::parse(&sealed).expect("a datagram");
                    let expected = match df {
                        Df::Set => true,
                        Df::Copy => is_v6 || dont_fragment,
                        Df::Clear => false,
                    };
                    assert_eq!(header.dont_fragment, expected, "{protocol:?}, {df:?}, inner IPv6 {is_v6}");
                    let is_fresh = identifications.insert([sealed[4], sealed[5]]);
                    assert!(expected || is_fresh && sealed[4..6] != [0, 0], "round {round}");
                    assert_eq!(b.open(sealed), [packet]);
                }
            }
        }
    }
}

/// A batch of many packets takes the fast path, one with a packet that is not common the slow path.
#[test]
fn outer_df_is_copied_packet_by_packet_within_a_batch() {
    let rules = PacketRules { df: Df::Copy, ..PacketRules::default() };
    let spec = TunnelSpec { rules, ..TunnelSpec::new(0, Suite::AES128GCM16) };
    let mut a = Gateway::with_buffers(Side::A, std::slice::from_ref(&spec), PoolSize(128, 4000));
    for longest in [100, 3000] {
        for number in 0..20 {
            let bytes = if number == 7 { longest } else { 100 };
            a.protected.push(Inner { dont_fragment: number % 3 == 0, ..inner(false, bytes) }.bytes());
        }
        a.settle();
        let sealed = a.unprotected.take();
        let set: Vec<bool> =
            sealed.iter().map(|sealed| IpHeader::parse(sealed).expect("a datagram").dont_fragment).collect();
        // Packet 7 may be cut: its fragments may be, too.
        let mut expected: Vec<bool> = (0..20).map(|number| number % 3 == 0).collect();
        expected.splice(7..7, vec![false; sealed.len() - 20]);
        assert_eq!(set, expected);
    }
    a.assert_settled();
}

/// RFC 4301 5.1.2.2, note 8: a gateway does not copy flow labels. RFC 6438 3: one for each inner flow.
#[test]
fn outer_flow_labels_are_zero_or_one_for_each_flow() {
    for protocol in [IpsecProtocol::Esp, IpsecProtocol::Ah] {
        for flow_label in [FlowLabel::Zero, FlowLabel::PerFlow] {
            let suite = suite_of(protocol);
            let rules = PacketRules { flow_label, ..PacketRules::default() };
            let spec = TunnelSpec { protocol, outer: Version::V6, rules, ..TunnelSpec::new(0, suite) };
            let mut a = Gateway::with_tunnels(Side::A, std::slice::from_ref(&spec));
            let mut b = Gateway::with_tunnels(Side::B, std::slice::from_ref(&spec));
            let mut labels = HashSet::new();
            for round in 0..60_u16 {
                let flow = round % 20;
                let mut packet = inner(flow % 2 == 0, 100).bytes();
                if flow % 2 == 0 {
                    packet[40..42].copy_from_slice(&flow.to_be_bytes());
                    packet[3] = if flow == 0 { 0xAB } else { 0 };
                } else {
                    packet[20..22].copy_from_slice(&flow.to_be_bytes());
                }
                let sealed = a.seal(packet.clone()).remove(0);
                let label = u32::from_be_bytes([0, sealed[1] & 0xF, sealed[2], sealed[3]]);
                labels.insert((flow, label));
                assert_eq!(label == 0, flow_label == FlowLabel::Zero);
                assert_ne!(label, 0xAB, "the inner label is not shown");
                assert_eq!(b.open(sealed), [packet]);
            }
            assert_eq!(labels.len(), 20, "one for each flow");
        }
    }
}

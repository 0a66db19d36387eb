//! The MSS of TCP connections through a tunnel is lowered to what fits, in both directions (RFC 9293 3.7.1).

use super::encapsulations::{Tunnels, every_kind};
use crate::support::{Gateway, Side, TunnelSpec};
use testudo_crypto::Suite;
use testudo_ipsec::{Fragmentation, IpsecProtocol, Mode, MssClamp, PacketRules};
use testudo_wire::ip::{IpHeader, Version};
use testudo_wire::nat::ChecksumFixup;
use testudo_wire::{checksum, protocol};

const SYN: u8 = 2;
const ACK: u8 = 16;

/// A TCP segment from one of these addresses to the other, with the MSS option in front of two others, and a
/// valid checksum; behind IPv6 destination options if `extended`.
fn segment(addresses: [&str; 2], flags: u8, mss: u16, extended: bool) -> Vec<u8> {
    let mut tcp = vec![0x30, 0x39, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x70, flags, 0xFF, 0xFF, 0, 0, 0, 0];
    tcp.extend([2, 4]);
    tcp.extend(mss.to_be_bytes());
    tcp.extend([1, 3, 3, 7]);
    let mut packet = match addresses.map(|a| a.parse().expect("an address")) {
        [std::net::IpAddr::V4(source), std::net::IpAddr::V4(destination)] => {
            let mut header = vec![0x45, 0, 0, 20 + tcp.len() as u8, 0, 7, 0x40, 0, 64, protocol::TCP, 0, 0];
            header.extend(source.octets());
            header.extend(destination.octets());
            let sum = checksum::of(&header).to_bytes();
            header[10..12].copy_from_slice(&sum);
            header
        }
        [std::net::IpAddr::V6(source), std::net::IpAddr::V6(destination)] => {
            let options: &[u8] = if extended { &[protocol::TCP, 0, 1, 4, 0, 0, 0, 0] } else { &[] };
            let next = if extended { protocol::DESTINATION_OPTIONS } else { protocol::TCP };
            let mut header = vec![0x60, 0, 0, 0, 0, (tcp.len() + options.len()) as u8, next, 64];
            header.extend(source.octets());
            header.extend(destination.octets());
            header.extend(options);
            header
        }
        _ => unreachable!("both are of one version"),
    };
    packet.extend(tcp);
    let header = IpHeader::parse(&packet).expect("a packet");
    ChecksumFixup::Recompute.apply(&header, &mut packet);
    packet
}

fn ends(tunnels: &Tunnels) -> [(String, String, bool); 2] {
    let spec = &tunnels[0];
    match spec.mode {
        Mode::Transport => {
            let hosts = [Side::A, Side::B].map(|side| spec.address(side).to_string());
            let is_v6 = spec.outer == Version::V6;
            [false, true].map(|extended| (hosts[0].clone(), hosts[1].clone(), extended && is_v6))
        }
        Mode::Tunnel => [
            ("10.0.0.1".to_owned(), "172.16.0.2".to_owned(), false),
            ("fd0a::1".to_owned(), "fd16::2".to_owned(), true),
        ],
    }
}

/// Sends a segment from A to B and returns what arrives. Only one of the two clamps, so that both directions
/// are seen.
fn through(tunnels: &Tunnels, clamper: Side, packet: Vec<u8>) -> Vec<u8> {
    let off = |spec: &TunnelSpec| TunnelSpec {
        rules: PacketRules { mss_clamp: MssClamp::Off, ..spec.rules.clone() },
        ..spec.clone()
    };
    let others: Tunnels = tunnels.iter().map(off).collect();
    let of = |side| if side == clamper { tunnels } else { &others };
    let mut a = Gateway::with_tunnels(Side::A, of(Side::A));
    let mut b = Gateway::with_tunnels(Side::B, of(Side::B));
    let sealed = a.seal(packet).pop().expect("it is sealed");
    b.open(sealed).pop().expect("it is opened")
}

#[test]
fn syns_are_clamped_outbound_and_inbound_in_every_encapsulation() {
    for tunnels in every_kind() {
        for (a, b, extended) in ends(&tunnels) {
            let headers = if a.contains(':') { 60 } else { 40 };
            let fits = (tunnels[0].inner_mtu() - headers) as u16;
            for (flags, mss) in [(SYN, 1460), (SYN | ACK, 8960), (SYN, 500), (ACK, 1460)] {
                let expected = if flags & SYN == 0 { mss } else { mss.min(fits) };
                for clamper in [Side::A, Side::B] {
                    let sent = segment([&a, &b], flags, mss, extended);
                    let right = segment([&a, &b], flags, expected, extended);
                    let arrived = through(&tunnels, clamper, sent);
                    assert_eq!(arrived, right, "{tunnels:?}: {flags:#x}, MSS {mss}, clamped by {clamper:?}");
                }
            }
        }
    }
}

#[test]
fn the_limit_is_automatic_a_number_or_none() {
    let ends = ["10.0.0.1", "172.16.0.2"];
    for (mss_clamp, expected) in
        [(MssClamp::Auto, None), (MssClamp::Bytes(1200), Some(1200)), (MssClamp::Off, Some(1460))]
    {
        let rules = PacketRules { mss_clamp, ..PacketRules::default() };
        let spec = TunnelSpec { rules, ..TunnelSpec::new(0, Suite::AES128GCM16) };
        let expected = expected.unwrap_or((spec.inner_mtu() - 40) as u16);
        for side in [Side::A, Side::B] {
            let arrived = through(&vec![spec.clone()], side, segment(ends, SYN, 1460, false));
            assert_eq!(arrived, segment(ends, SYN, expected, false), "{mss_clamp:?}");
        }
    }
}

/// Where datagrams are cut after encryption, TCP still sends what need not be cut.
#[test]
fn the_automatic_limit_is_that_of_the_path_where_datagrams_may_be_cut() {
    let ends = ["10.0.0.1", "172.16.0.2"];
    let fragmentation = Fragmentation::After;
    let spec = TunnelSpec { fragmentation, ..TunnelSpec::new(0, Suite::AES128GCM16) };
    let arrived = through(&vec![spec.clone()], Side::A, segment(ends, SYN, 8960, false));
    assert_eq!(arrived, segment(ends, SYN, (spec.inner_mtu() - 40) as u16, false));
}

/// A SYN in the middle of a run of other packets leaves neither its place nor the others.
#[test]
fn a_syn_keeps_its_place_among_other_packets() {
    let ends = ["10.0.0.1", "172.16.0.2"];
    for protocol in [IpsecProtocol::Esp, IpsecProtocol::Ah] {
        let suite = if protocol == IpsecProtocol::Ah { Suite::NULL_SHA384 } else { Suite::AES128GCM16 };
        let spec = TunnelSpec { protocol, ..TunnelSpec::new(0, suite) };
        let mut a = Gateway::with_tunnels(Side::A, std::slice::from_ref(&spec));
        let mut b = Gateway::with_tunnels(Side::B, std::slice::from_ref(&spec));
        let packets = |limit: u16| {
            (0..8).map(move |n| {
                segment(ends, if n == 3 { SYN } else { ACK }, if n == 3 { limit } else { n }, false)
            })
        };
        packets(1460).for_each(|packet| a.protected.push(packet));
        a.settle();
        a.unprotected.take().into_iter().for_each(|sealed| b.unprotected.push(sealed));
        b.settle();
        let fits = (spec.inner_mtu() - 40) as u16;
        assert_eq!(b.protected.take(), packets(fits).collect::<Vec<_>>());
        a.assert_settled();
        b.assert_settled();
    }
}

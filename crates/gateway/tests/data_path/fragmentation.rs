//! Packets too long for the path: cut after they are sealed, where their SA says so or is in transport mode
//! (RFC 4303 3.3.4, RFC 4302 3.3.4), and put together by the peer.

use super::encapsulations::{Tunnels, every_kind, inner_of};
use crate::support::fragments::{fragmentable, fragments, header_bytes};
use crate::support::gateway::{PoolSize, portable};
use crate::support::random::seed;
use crate::support::{Gateway, Inner, LeaseTwin, PortHandle, Side, TunnelSpec};
use fastrand::Rng;
use std::collections::HashSet;
use std::time::Duration;
use testudo_crypto::Suite;
use testudo_ipsec::{Df, Fragmentation, IpsecProtocol, Mode, PacketRules};
use testudo_packet::DropReason;
use testudo_wire::ip::{IpHeader, Version};
use testudo_wire::protocol;

const PATH: usize = 1500;

fn gateway(side: Side, tunnels: &Tunnels) -> Gateway {
    Gateway::with_buffers(side, tunnels, PoolSize(512, 65_535))
}

fn cutting_after(tunnels: Tunnels) -> Tunnels {
    let after = |spec| TunnelSpec { fragmentation: Fragmentation::After, ..spec };
    tunnels.into_iter().map(after).collect()
}

/// The Identification of a fragment.
fn identification(fragment: &[u8]) -> u32 {
    let number = |bytes: &[u8]| bytes.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte));
    if fragment[0] >> 4 == 4 { number(&fragment[4..6]) } else { number(&fragment[44..48]) }
}

/// Fragments of one datagram that fit the path and may be cut further; what fits is not cut.
fn check_outer(sealed: &[Vec<u8>]) {
    assert!(sealed.iter().all(|datagram| datagram.len() <= PATH));
    if let [whole] = sealed {
        assert_eq!(IpHeader::parse(whole).expect("a datagram").fragment, None);
        return;
    }
    let first = identification(&sealed[0]);
    for fragment in sealed {
        let header = IpHeader::parse(fragment).expect("a fragment");
        assert!(header.fragment.is_some() && identification(fragment) == first);
        assert!(header.version == Version::V6 || !header.dont_fragment && first != 0);
        let is_full = fragment.len() + 8 > PATH - 8;
        assert!(is_full || !header.fragment.is_some_and(|f| f.more), "{} bytes", fragment.len());
    }
}

/// Every encapsulation: the packet that goes in comes out, up to the longest, DF or not.
#[test]
fn sealed_datagrams_are_cut_and_come_out_whole() {
    println!("TESTUDO_SEED={:#x}", seed());
    let mut random = Rng::with_seed(seed());
    for tunnels in every_kind().into_iter().map(cutting_after) {
        let is_transport = tunnels[0].mode == Mode::Transport;
        // Hosts are told what fits: see below.
        if is_transport && tunnels[0].outer == Version::V6 {
            continue;
        }
        let (mut a, mut b) = (gateway(Side::A, &tunnels), gateway(Side::B, &tunnels));
        let fits = tunnels[0].inner_mtu();
        for bytes in [100, fits, fits + 1, 1500, 3000, 9000, 65_000] {
            for dont_fragment in [false, true] {
                if is_transport && dont_fragment && bytes > fits {
                    continue;
                }
                let sent = Inner { dont_fragment, ..inner_of(&tunnels, bytes) }.bytes();
                let mut sealed = a.seal(sent.clone());
                check_outer(&sealed);
                assert!(sealed.len() == 1 || bytes > fits, "{tunnels:?}, {bytes} bytes fit");
                assert!(sealed.len() > 1 || bytes < PATH, "{tunnels:?}, {bytes} bytes do not fit");
                random.shuffle(&mut sealed);
                sealed.into_iter().for_each(|fragment| b.unprotected.push(fragment));
                b.settle();
                let opened = b.protected.take();
                assert_eq!(opened.len(), 1, "{tunnels:?}, {bytes} bytes: {:?}", b.worker.pool().drops());
                // The checksum of UDP is made anew behind a NAT, and this payload never had a right one.
                let is_fixed = tunnels[0].udp && is_transport;
                let end = if is_fixed { header_bytes(&sent) + 6 } else { sent.len() };
                assert!(opened[0][..end] == sent[..end], "{tunnels:?}, {bytes} bytes");
                assert_eq!(opened[0].len(), sent.len());
            }
        }
        assert_eq!(a.worker.pool().drops().total() + b.worker.pool().drops().total(), 0);
        a.assert_settled();
        b.assert_settled();
    }
}

/// RFC 4303 3.3.4, RFC 4302 3.3.4: transport mode is for whole datagrams, and beside the host's IP layer they
/// come in fragments, which are put together before they are sealed and cut after.
#[test]
fn what_the_host_has_cut_is_sealed_whole_in_transport_mode() {
    println!("TESTUDO_SEED={:#x}", seed());
    let mut random = Rng::with_seed(seed());
    for tunnels in every_kind().into_iter().filter(|tunnels| tunnels[0].mode == Mode::Transport) {
        let (mut a, mut b) = (gateway(Side::A, &tunnels), gateway(Side::B, &tunnels));
        for (number, bytes) in (1..).zip([1500, 3000, 9000, 60_000]) {
            let whole = fragmentable(inner_of(&tunnels, bytes).bytes(), number);
            let mut parts = fragments(&whole, number.into(), 1360);
            random.shuffle(&mut parts);
            parts.into_iter().for_each(|part| a.protected.push(part));
            a.settle();
            let sealed = a.unprotected.take();
            check_outer(&sealed);
            assert!(sealed.len() > 1, "{tunnels:?}, {bytes} bytes: {:?}", a.worker.pool().drops());
            sealed.into_iter().for_each(|fragment| b.unprotected.push(fragment));
            b.settle();
            let opened = b.protected.take();
            assert_eq!(opened.len(), 1, "{tunnels:?}, {bytes} bytes: {:?}", b.worker.pool().drops());
            // The checksum of UDP is made anew behind a NAT, and this payload never had a right one.
            let end = if tunnels[0].udp { header_bytes(&whole) + 6 } else { whole.len() };
            assert!(opened[0][..end] == whole[..end], "{tunnels:?}, {bytes} bytes");
            assert_eq!(opened[0].len(), whole.len());
        }
        assert_eq!(a.worker.pool().drops().total() + b.worker.pool().drops().total(), 0);
        a.assert_settled();
        b.assert_settled();
    }
}

/// Memory for the host's fragments has the bounds that those of strangers have, and time ends them.
#[test]
fn the_hosts_fragments_are_bounded_and_time_out() {
    let tunnels = vec![TunnelSpec { mode: Mode::Transport, ..TunnelSpec::new(0, Suite::AES128GCM16) }];
    let mut a = Gateway::with_buffers(Side::A, &tunnels, PoolSize(256, 9000));
    for number in 0..1000 {
        let whole = fragmentable(inner_of(&tunnels, 3000).bytes(), number);
        assert!(a.seal(fragments(&whole, number.into(), 1360).remove(0)).is_empty());
        assert!(a.worker.incomplete_datagrams() <= 256 / 8);
    }
    assert!(a.drops(DropReason::FragmentEvicted) > 0);
    a.clock.advance(Duration::from_secs(16));
    let now = a.now();
    a.worker.tick(now);
    assert_eq!(a.worker.incomplete_datagrams(), 0);
    assert_eq!(a.drops(DropReason::FragmentEvicted) + a.drops(DropReason::FragmentTimeout), 1000);
    a.assert_settled();
}

/// RFC 6864 4.3: an Identification does not come again soon, and SAs between the same hosts share the count.
#[test]
fn fragmented_datagrams_have_identifications_of_their_own() {
    let kinds = [(IpsecProtocol::Esp, Suite::AES128GCM16), (IpsecProtocol::Ah, Suite::NULL_SHA384)];
    for (outer, (protocol, suite)) in
        [Version::V4, Version::V6].into_iter().flat_map(|outer| kinds.map(|kind| (outer, kind)))
    {
        let tunnels = [0, 1].map(|number| TunnelSpec {
            outer,
            protocol,
            fragmentation: Fragmentation::After,
            ..TunnelSpec::new(number, suite)
        });
        let mut a = gateway(Side::A, &tunnels.to_vec());
        let mut seen = HashSet::new();
        for round in 0..1000 {
            let to = format!("172.{}.0.2", 16 + round % 2);
            let sealed = a.seal(Inner::udp("10.0.0.1", &to, 2000).bytes());
            assert_eq!(sealed.len(), 2);
            assert!(seen.insert(identification(&sealed[0])), "{round}");
        }
        a.assert_settled();
    }
}

/// A start with another seed counts from elsewhere (RFC 7739 3).
#[test]
fn identifications_begin_where_the_seed_says() {
    let tunnels =
        [TunnelSpec { fragmentation: Fragmentation::After, ..TunnelSpec::new(0, Suite::AES128GCM16) }];
    let starts = [1, 2, 3].map(|seed| {
        let mut a = gateway(Side::A, &tunnels.to_vec());
        a.worker.seed_identifications(seed);
        identification(&a.seal(Inner::udp("10.0.0.1", "172.16.0.2", 2000).bytes())[0])
    });
    assert!(HashSet::from(starts).len() == 3, "{starts:?}");
}

/// The kernel's UDP sockets take whole datagrams: over IPv4 a clear DF bit lets the kernel cut them. Others
/// are cut here.
#[test]
fn a_port_that_fragments_udp_gets_it_whole() {
    for outer in [Version::V4, Version::V6] {
        for udp in [false, true] {
            let spec = TunnelSpec {
                outer,
                udp,
                fragmentation: Fragmentation::After,
                ..TunnelSpec::new(0, Suite::AES128GCM16)
            };
            let unprotected = PortHandle::default();
            unprotected.fragment_udp();
            let links = (PortHandle::default(), unprotected);
            let policies = spec.policies(Side::A);
            let mut a = Gateway::on_links(links.0, links.1, policies, PoolSize(64, 65_535), portable());
            a.install(spec.install(Side::A, &mut LeaseTwin::new(1 << 40), None));
            let mut b = gateway(Side::B, &vec![spec.clone()]);
            for bytes in [1000, 5000] {
                let sent = Inner::udp("10.0.0.1", "172.16.0.2", bytes).bytes();
                let sealed = a.seal(sent.clone());
                assert_eq!(sealed.len(), if udp || bytes == 1000 { 1 } else { 4 });
                let header = IpHeader::parse(&sealed[0]).expect("a datagram");
                assert_eq!(header.dont_fragment, outer == Version::V6 || bytes == 1000);
                // RFC 6946: where IPv6 has no DF to clear, a fragment header around the whole.
                let is_marked = outer == Version::V6 && sealed[0][6] == 44 && header.fragment.is_none();
                assert_eq!(is_marked, outer == Version::V6 && udp && bytes == 5000);
                let delivered: Vec<_> = sealed.into_iter().flat_map(|datagram| b.open(datagram)).collect();
                assert_eq!(delivered, [sent]);
            }
            a.assert_settled();
            b.assert_settled();
        }
    }
}

/// Fragments without their companions are useless: a datagram that cannot be cut completely is dropped, in
/// the SA's counters too.
#[test]
fn a_datagram_is_dropped_whole_where_buffers_for_its_fragments_lack() {
    let spec = TunnelSpec { fragmentation: Fragmentation::After, ..TunnelSpec::new(0, Suite::AES128GCM16) };
    for buffers in 1..8 {
        let mut a = Gateway::new(spec.policies(Side::A), PoolSize(buffers, 9000), portable());
        let installed = a.install_seen(spec.install(Side::A, &mut LeaseTwin::new(1 << 40), None));
        let sealed = a.seal(Inner::udp("10.0.0.1", "172.16.0.2", 7000).bytes());
        // The first fragment stays in the datagram's own buffer, a long one; the others are in frames.
        let lack = buffers < 4;
        assert_eq!(sealed.len(), if lack { 0 } else { 5 });
        assert_eq!(a.drops(DropReason::PoolEmpty) > 0, lack);
        assert_eq!(installed.outbound.counters.drops(DropReason::PoolEmpty), u64::from(lack));
        a.assert_settled();
    }
}

/// RFC 4301 8.1: a tunnel that copies DF cuts no datagram of a packet that has it, and tells the sender what
/// fits; others it cuts after they were sealed. Over IPv6 all packets count as having it, but for those of
/// 1,280 bytes, which must cross (RFC 2473 7.1).
#[test]
fn a_tunnel_that_copies_df_cuts_no_datagram_of_a_packet_that_has_it() {
    let kinds = every_kind().into_iter().map(cutting_after);
    let kinds = kinds.filter(|tunnels| tunnels[0].mode == Mode::Tunnel && tunnels[0].outer == Version::V4);
    for mut tunnels in kinds {
        tunnels[0].rules = PacketRules { df: Df::Copy, ..PacketRules::default() };
        if let [covered, covering] = &mut tunnels[..] {
            covered.path_mtu = covering.inner_mtu();
        }
        let (mut a, mut b) = (gateway(Side::A, &tunnels), gateway(Side::B, &tunnels));
        let fits = tunnels[0].inner_mtu();
        for (bytes, dont_fragment) in
            [(fits, true), (fits, false), (fits + 1, false), (9000, false), (65_000, false), (65_515, false)]
        {
            let sent = Inner { dont_fragment, ..inner_of(&tunnels, bytes) }.bytes();
            let sealed = a.seal(sent.clone());
            if bytes < 65_515 {
                check_outer(&sealed);
                assert_eq!(sealed.len() > 1, bytes > fits, "{tunnels:?}, {bytes} bytes");
            }
            if let [whole] = &sealed[..] {
                let header = IpHeader::parse(whole).expect("a datagram");
                assert_eq!(header.dont_fragment, dont_fragment, "{tunnels:?}, {bytes} bytes");
            }
            let opened: Vec<_> = sealed.into_iter().flat_map(|datagram| b.open(datagram)).collect();
            // What makes too long a datagram is cut before, too.
            let is_whole = opened.len() == 1 && opened[0] == sent;
            assert!(is_whole || bytes == 65_515 && opened.len() > 1, "{tunnels:?}, {bytes} bytes");
        }
        for (sent, told) in [
            (Inner { dont_fragment: true, ..inner_of(&tunnels, fits + 1) }, fits),
            (Inner { dont_fragment: true, ..inner_of(&tunnels, 65_000) }, fits),
            (Inner::udp("fd0a::1", "fd16::2", fits + 1), fits.max(1280)),
        ] {
            assert!(a.seal(sent.bytes()).is_empty(), "{tunnels:?}: {sent:?}");
            let reply = a.protected.take().pop().expect("a reply to the sender");
            let message = &reply[header_bytes(&reply)..];
            assert_eq!(message[6..8], (told as u16).to_be_bytes());
        }
        assert_eq!(a.drops(DropReason::TooBig), 3);
        a.assert_settled();
        b.assert_settled();
    }
}

/// What fits is what a router says, from then on.
#[test]
fn a_tunnel_that_copies_df_and_cuts_after_follows_the_path() {
    let rules = PacketRules { df: Df::Copy, ..PacketRules::default() };
    let spec = TunnelSpec { rules, ..TunnelSpec::new(0, Suite::AES128GCM16) };
    let tunnels = cutting_after(vec![spec]);
    let (mut a, mut b) = (gateway(Side::A, &tunnels), gateway(Side::B, &tunnels));
    let packet =
        |dont_fragment| Inner { dont_fragment, ..inner_of(&tunnels, tunnels[0].inner_mtu()) }.bytes();
    let sealed = a.seal(packet(true)).remove(0);
    a.open(crate::path_mtu::too_big(&sealed, 1300));
    assert!(a.seal(packet(true)).is_empty());
    let reply = a.protected.take().pop().expect("a reply to the sender");
    let narrower = TunnelSpec { path_mtu: 1300, ..tunnels[0].clone() };
    assert_eq!(reply[26..28], (narrower.inner_mtu() as u16).to_be_bytes());
    let sealed = a.seal(packet(false));
    assert!(sealed.len() == 2 && sealed.iter().all(|fragment| fragment.len() <= 1300));
    let opened: Vec<_> = sealed.into_iter().flat_map(|fragment| b.open(fragment)).collect();
    assert_eq!(opened, [packet(false)]);
    // IPv6 has no DF, and its packets of 1,280 bytes cross.
    let least = Inner::udp("fd0a::1", "fd16::2", 1280).bytes();
    let sealed = a.seal(least.clone());
    assert_eq!(sealed.len(), 2);
    let opened: Vec<_> = sealed.into_iter().flat_map(|fragment| b.open(fragment)).collect();
    assert_eq!(opened, [least]);
    a.assert_settled();
    b.assert_settled();
}

/// In transport mode a packet with DF is not cut, and its sender is told what fits (RFC 4301 8.2).
#[test]
fn a_host_whose_packet_must_not_be_cut_is_told_the_mtu_in_transport_mode() {
    for (protocol, suite) in [(IpsecProtocol::Esp, Suite::AES128GCM16), (IpsecProtocol::Ah, Suite::NULL_SHA1)]
    {
        for outer in [Version::V4, Version::V6] {
            let spec = TunnelSpec { outer, protocol, mode: Mode::Transport, ..TunnelSpec::new(0, suite) };
            let tunnels = vec![spec];
            let mut a = gateway(Side::A, &tunnels);
            let packet = Inner { dont_fragment: true, ..inner_of(&tunnels, 2000) };
            assert!(a.seal(packet.bytes()).is_empty());
            assert_eq!(a.drops(DropReason::TooBig), 1);
            let reply = a.protected.take().pop().expect("a reply to the sender");
            let message = &reply[header_bytes(&reply)..];
            assert_eq!(message[6..8], (tunnels[0].inner_mtu() as u16).to_be_bytes());
            a.assert_settled();
        }
    }
}

/// Before encryption is the default: the peer need not reassemble.
#[test]
fn the_default_cuts_before_encryption() {
    let tunnels = vec![TunnelSpec::new(0, Suite::AES128GCM16)];
    let mut a = gateway(Side::A, &tunnels);
    let sealed = a.seal(Inner::udp("10.0.0.1", "172.16.0.2", 3000).bytes());
    let headers: Vec<_> = sealed.iter().map(|bytes| IpHeader::parse(bytes).expect("a datagram")).collect();
    assert!(headers.len() == 3 && headers.iter().all(|h| h.fragment.is_none() && h.dont_fragment));
    assert!(headers.iter().all(|header| header.protocol == protocol::ESP));
    a.assert_settled();
}

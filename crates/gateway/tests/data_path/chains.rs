//! Packets in chains of buffers: the same bytes as for packets in one piece, which is the model, however
//! they are cut; merged and counted where an engine, a port or the packet itself wants that.

use crate::support::gateway::{PoolSize, portable};
use crate::support::{Gateway, Inner, LeaseTwin, PortHandle, Side, TunnelSpec};
use crate::vpe;
use fastrand::Rng;
use testudo_crypto::{Engine, PortableEngine, Suite};
use testudo_ipsec::{IpsecProtocol, Lifetime, Limits};
use testudo_packet::DropReason;
use testudo_wire::ip::Version;

/// Lengths of segments as packets of 9,000 bytes have them in frames of 2 KiB.
const FRAMES: &[usize] = &[1500];

/// A gateway whose protected and unprotected ports deliver chains of such segments, if any.
fn gateway(side: Side, spec: &TunnelSpec, ports: [Option<&[usize]>; 2]) -> Gateway {
    let handles = [PortHandle::default(), PortHandle::default()];
    for (handle, lengths) in handles.iter().zip(ports) {
        if let Some(lengths) = lengths {
            handle.take_chains(lengths);
        }
    }
    let [protected, unprotected] = handles;
    let mut gateway =
        Gateway::on_links(protected, unprotected, spec.policies(side), PoolSize(256, 9300), portable());
    let mut store = LeaseTwin::new(1 << 40);
    gateway.install(spec.install(side, &mut store, None));
    gateway
}

fn linearised(gateway: &Gateway) -> u64 {
    gateway.worker.pool().linearised()
}

fn packet(bytes: usize, seed: u64) -> Vec<u8> {
    Inner { seed, dont_fragment: true, ..Inner::udp("10.0.0.1", "172.16.0.2", bytes) }.bytes()
}

/// ESP and VPE, by number and in UDP, over either IP version.
fn specs(path_mtu: usize) -> Vec<TunnelSpec> {
    let esp = TunnelSpec::new(0, "aes128gcm16".parse().expect("a suite"));
    let mut all = Vec::new();
    for spec in [esp, vpe::spec()] {
        for (outer, udp) in
            [(Version::V4, false), (Version::V4, true), (Version::V6, false), (Version::V6, true)]
        {
            all.push(TunnelSpec { outer, udp, path_mtu, ..spec.clone() });
        }
    }
    all
}

#[test]
fn packets_of_9000_bytes_in_frames_are_sealed_and_opened_without_merging() {
    for spec in specs(9200) {
        let chains = [Some(FRAMES), Some(FRAMES)];
        let (mut model, mut a) = (gateway(Side::A, &spec, [None; 2]), gateway(Side::A, &spec, chains));
        let (mut judge, mut b) = (gateway(Side::B, &spec, [None; 2]), gateway(Side::B, &spec, chains));
        for (seed, bytes) in [(1, 9000), (2, 1501), (3, 8999), (4, 60), (5, 3000), (6, 4500)] {
            let inner = packet(bytes, seed);
            let sealed = a.seal(inner.clone());
            let drops: Vec<_> = a.worker.pool().drops().iter().filter(|(_, n)| *n > 0).collect();
            assert_eq!(sealed.len(), 1, "{bytes}: {drops:?}, {spec:?}");
            assert!(sealed == model.seal(inner.clone()), "{spec:?}: {bytes}");
            assert!(judge.open(sealed[0].clone()) == [inner.clone()], "{spec:?}: {bytes}");
            assert!(b.open(sealed[0].clone()) == [inner], "{spec:?}: {bytes}");
        }
        assert_eq!((linearised(&a), linearised(&model)), (0, 0), "{spec:?}");
        // After an IPv6 header, VPE's number is that of an unknown extension header: the datagrams that are
        // chains are merged before it is looked at. All but the shortest are.
        let is_by_number = spec.protocol == IpsecProtocol::Vpe && !spec.udp;
        let merged = if is_by_number && spec.outer == Version::V6 { 5 } else { 0 };
        assert_eq!(linearised(&b), merged, "{spec:?}");
        [&model, &a, &judge, &b].into_iter().for_each(Gateway::assert_settled);
    }
}

/// Segments of any lengths, one byte among them, in every suite: what the engine does not do in chains is
/// merged.
#[test]
fn random_segments_give_the_same_bytes_in_every_suite() {
    const SEED: u64 = 0x5EED_C4A1;
    let mut random = Rng::with_seed(SEED);
    let engine = PortableEngine::new();
    let mut merged = (0, 0);
    for suite in Suite::ALL.iter().copied() {
        let spec = TunnelSpec { path_mtu: 9300, ..TunnelSpec::new(0, suite) };
        let lengths: Vec<usize> =
            (0..7).map(|_| [random.usize(1..40), random.usize(400..1500)][random.usize(..2)]).collect();
        let lengths = [&lengths[..], &[1500]].concat();
        let chains = [Some(&lengths[..]), Some(&lengths[..])];
        let (mut model, mut a) = (gateway(Side::A, &spec, [None; 2]), gateway(Side::A, &spec, chains));
        let mut b = gateway(Side::B, &spec, chains);
        for seed in 0..12 {
            let inner = packet(random.usize(28..9000), seed);
            let context = format!("{suite}, seed {SEED:#x}, {lengths:?}, {} bytes", inner.len());
            let sealed = a.seal(inner.clone());
            assert!(sealed == model.seal(inner.clone()), "{context}");
            assert!(b.open(sealed[0].clone()) == [inner], "{context}: {}", b.books());
        }
        match engine.capability(suite).is_some_and(|capability| capability.takes_chains) {
            true => merged.0 += linearised(&a) + linearised(&b),
            false => merged.1 += linearised(&a).min(linearised(&b)),
        }
        [&model, &a, &b].into_iter().for_each(Gateway::assert_settled);
    }
    assert!(merged.1 > 100 && merged.0 < merged.1 / 2, "{merged:?}");
}

#[test]
fn a_packet_in_frames_is_cut_before_it_is_sealed_into_the_same_pieces() {
    for spec in specs(1500) {
        let chains = [Some(FRAMES), Some(FRAMES)];
        let (mut model, mut a) = (gateway(Side::A, &spec, [None; 2]), gateway(Side::A, &spec, chains));
        for lengths in [9000, 1501, 2900, 4444] {
            let inner =
                Inner { dont_fragment: false, ..Inner::udp("10.0.0.1", "172.16.0.2", lengths) }.bytes();
            let sealed = a.seal(inner.clone());
            assert!(sealed.len() > 1 && sealed.iter().all(|piece| piece.len() <= 1500), "{spec:?}");
            assert!(sealed == model.seal(inner), "{spec:?}: {lengths}");
        }
        assert_eq!(linearised(&a), 0, "{spec:?}");
        assert!(a.seal(packet(9000, 1)).is_empty() && model.seal(packet(9000, 1)).is_empty());
        assert!(a.protected.take() == model.protected.take(), "its sender is told the same");
        assert_eq!((a.drops(DropReason::TooBig), linearised(&a)), (1, 1));
        a.assert_settled();
        model.assert_settled();
    }
}

/// Where a limit is near, packets are counted one by one, on another way through the code.
#[test]
fn chains_are_opened_without_merging_near_the_end_of_an_sa() {
    let packets = |packets| Limits { packets: Some(packets), ..Limits::default() };
    let lifetime = Lifetime { soft: packets(2), hard: packets(4) };
    for spec in specs(9200) {
        let spec = TunnelSpec { lifetime, ..spec };
        let chains = [Some(FRAMES), Some(FRAMES)];
        let (mut model, mut b) = (gateway(Side::A, &spec, [None; 2]), gateway(Side::B, &spec, chains));
        for seed in 0..3 {
            let inner = packet(4500, seed);
            let sealed = model.seal(inner.clone());
            assert!(b.open(sealed[0].clone()) == [inner], "{spec:?}: {}", b.books());
        }
        let is_by_number = spec.protocol == IpsecProtocol::Vpe && !spec.udp;
        let merged = if is_by_number && spec.outer == Version::V6 { 3 } else { 0 };
        assert_eq!(linearised(&b), merged, "{spec:?}");
    }
}

/// Padding hides how long pieces are, the last one's length among them.
#[test]
fn pieces_of_chains_are_padded_as_those_of_whole_packets_are() {
    let mut spec =
        TunnelSpec { path_mtu: 1500, ..TunnelSpec::new(0, "aes128gcm16".parse().expect("a suite")) };
    spec.rules.tfc_pad_to = 1400;
    let chains = [Some(FRAMES), Some(FRAMES)];
    let (mut model, mut a) = (gateway(Side::A, &spec, [None; 2]), gateway(Side::A, &spec, chains));
    for lengths in [1300, 3000, 4444, 9000] {
        let inner = Inner { dont_fragment: false, ..Inner::udp("10.0.0.1", "172.16.0.2", lengths) }.bytes();
        let sealed = a.seal(inner.clone());
        assert!(sealed.iter().all(|piece| piece.len() > 1400), "{lengths}");
        assert!(sealed == model.seal(inner), "{lengths}");
    }
}

#[test]
fn a_port_without_chains_gets_merged_packets() {
    for spec in specs(9200) {
        let mut a = gateway(Side::A, &spec, [Some(FRAMES), None]);
        let mut b = gateway(Side::B, &spec, [None, Some(FRAMES)]);
        for seed in 1..4 {
            let inner = packet(9000, seed);
            let sealed = a.seal(inner.clone()).remove(0);
            assert!(b.open(sealed) == [inner], "{spec:?}");
        }
        assert_eq!((linearised(&a), linearised(&b)), (3, 3));
        a.assert_settled();
        b.assert_settled();
    }
}

/// What is no plain packet, forged, for somebody else, or shorter than its segments: one verdict for the
/// chain and for the whole.
#[test]
fn uncommon_and_hostile_chains_are_judged_as_whole_packets_are() {
    for spec in specs(9200) {
        let mut random = Rng::with_seed(0x5EED_C4A2);
        let short: &[usize] = &[20, 90, 3, 700];
        let mut model = gateway(Side::A, &spec, [None; 2]);
        let mut a = gateway(Side::A, &spec, [Some(short); 2]);
        let (mut judge, mut b) =
            (gateway(Side::B, &spec, [None; 2]), gateway(Side::B, &spec, [Some(short); 2]));
        let mut fragment = packet(4000, 1);
        fragment[6..8].copy_from_slice(&[0x20, 0]);
        set_checksum(&mut fragment);
        let mut longer = packet(5000, 2);
        longer.extend_from_slice(&[7; 1234]);
        let mut lying = packet(5000, 3);
        lying.truncate(4000);
        let elsewhere = Inner::udp("10.0.0.1", "198.51.100.1", 4000).bytes();
        for inner in [fragment, longer, lying, elsewhere, vec![9; 3000], packet(700, 4)] {
            let sealed = a.seal(inner.clone());
            assert!(sealed == model.seal(inner), "{spec:?}");
            for datagram in sealed {
                let mut forged = datagram.clone();
                let at = random.usize(..forged.len());
                forged[at] ^= 1 << random.usize(..8);
                for datagram in
                    [forged, [&datagram[..], &[5; 800]].concat(), datagram[..datagram.len() - 1].into()]
                {
                    assert!(b.open(datagram.clone()) == judge.open(datagram), "{spec:?}");
                }
            }
        }
        for (one, other) in [(&a, &model), (&b, &judge)] {
            let drops = |gateway: &Gateway| gateway.worker.pool().drops().iter().collect::<Vec<_>>();
            assert_eq!(drops(one), drops(other), "{spec:?}");
            one.assert_settled();
            other.assert_settled();
        }
    }
}

fn set_checksum(packet: &mut [u8]) {
    packet[10..12].fill(0);
    let sum = testudo_wire::checksum::of(&packet[..20]).to_bytes();
    packet[10..12].copy_from_slice(&sum);
}

//! No input harms the gateway: no panic, no lost buffer, no packet unaccounted for.

use crate::support::gateway::{PoolSize, portable};
use crate::support::random::seed;
use crate::support::sealer::{encapsulate, esp_offset};
use crate::support::{Gateway, Handmade, Inner, LeaseTwin, Sealer, Side, TunnelSpec};
use fastrand::Rng;
use testudo_crypto::Suite;
use testudo_packet::DropReason;
use testudo_wire::ip::Version;

fn specs() -> Vec<TunnelSpec> {
    let mut specs = Vec::new();
    for outer in [Version::V4, Version::V6] {
        for udp in [false, true] {
            specs.push(TunnelSpec { outer, udp, ..TunnelSpec::new(0, Suite::AES128GCM16) });
        }
    }
    specs
}

fn inner(is_v6: bool, bytes: usize) -> Vec<u8> {
    let packet = if is_v6 {
        Inner::udp("fd0a::1", "fd16::2", bytes)
    } else {
        Inner::udp("10.0.0.1", "172.16.0.2", bytes)
    };
    packet.bytes()
}

/// A gateway with one tunnel over each kind of outer network, with jumbo buffers.
fn jumbo(side: Side, buffers: usize) -> Gateway {
    let specs: Vec<_> =
        specs().into_iter().zip(0..).map(|(spec, number)| TunnelSpec { number, ..spec }).collect();
    let policies = specs.iter().flat_map(|s| s.policies(side)).collect();
    let mut gateway = Gateway::new(policies, PoolSize(buffers, 65_536), portable());
    let mut store = LeaseTwin::new(1 << 40);
    specs.iter().for_each(|s| gateway.install(s.install(side, &mut store, None)));
    gateway
}

/// Bytes that pass one more check than pure noise would.
fn noise(random: &mut Rng, max: usize) -> Vec<u8> {
    let len = random.usize(..max);
    let mut bytes = crate::support::random_bytes(random, len);
    let templates = specs();
    let template = &templates[random.usize(..4)];
    match random.usize(..4) {
        0 => {}
        1 => {
            if let Some(first) = bytes.first_mut() {
                *first = [0x45, 0x60, 0x46, 0x4F][random.usize(..4)];
            }
        }
        2 => {
            // Valid outer headers around noise.
            bytes = encapsulate(template, Side::A, &bytes[..bytes.len().min(60_000)], random.u8(..));
        }
        _ => {
            // A valid SPI too.
            bytes.truncate(60_000);
            let spi = template.spi_from(Side::A).to_be_bytes();
            let n = bytes.len().min(4);
            bytes[..n].copy_from_slice(&spi[..n]);
            bytes = encapsulate(template, Side::A, &bytes, random.u8(..));
        }
    }
    bytes
}

fn feed_noise(seed: u64, gateway: &mut Gateway, packets: usize, max: usize) {
    let mut random = Rng::with_seed(seed);
    for _ in 0..packets / 64 {
        for _ in 0..64 {
            gateway.protected.push(noise(&mut random, max));
            gateway.unprotected.push(noise(&mut random, max));
        }
        gateway.settle();
        gateway.protected.take();
        gateway.unprotected.take();
    }
    gateway.assert_settled();
}

#[test]
fn a_million_short_packets_of_noise_on_each_port_are_all_accounted_for() {
    println!("TESTUDO_SEED={:#x}", seed());
    let mut gateway = jumbo(Side::B, 256);
    feed_noise(seed() ^ 1, &mut gateway, 1_000_000, 200);
    assert!(gateway.drops(DropReason::AuthenticationFailed) > 1000, "noise reached the cryptography");
}

#[test]
fn thousands_of_64_kib_packets_of_noise_are_all_accounted_for() {
    println!("TESTUDO_SEED={:#x}", seed());
    let mut gateway = jumbo(Side::B, 256);
    feed_noise(seed() ^ 2, &mut gateway, 4_096, 65_536);
    let mut small = Gateway::with_tunnels(Side::B, &specs()[..1]);
    feed_noise(seed() ^ 3, &mut small, 4_096, 65_536);
    assert!(small.drops(DropReason::ReceiveTruncated) > 1000);
}

#[test]
fn every_truncation_of_every_kind_of_packet_is_refused_on_either_side() {
    for spec in specs() {
        for is_v6 in [false, true] {
            let packet = inner(is_v6, 120);
            let mut a = Gateway::with_tunnels(Side::A, std::slice::from_ref(&spec));
            let mut b = Gateway::with_tunnels(Side::B, std::slice::from_ref(&spec));
            for len in 0..packet.len() {
                assert!(a.seal(&packet[..len]).is_empty(), "{len} bytes of an inner packet");
            }
            let datagram = a.seal(packet.clone()).remove(0);
            let keepalive = encapsulate(&spec, Side::A, &[0xFF], 0);
            let ike = encapsulate(&spec, Side::A, &[0; 40], 0);
            for whole in [&datagram, &keepalive, &ike] {
                for len in 0..whole.len() {
                    assert!(b.open(&whole[..len]).is_empty(), "{len} bytes of a datagram");
                }
            }
            assert_eq!(b.open(datagram), [packet], "the whole one is still welcome");
            a.assert_settled();
            b.assert_settled();
        }
    }
}

/// As above, but with correct outer headers, so that each later check meets every length.
#[test]
fn every_length_of_esp_is_refused_but_the_right_one() {
    for spec in specs() {
        let mut b = Gateway::with_tunnels(Side::B, std::slice::from_ref(&spec));
        let packet = inner(false, 120);
        let datagram = Sealer::new(&spec, Side::A).seal(1, &Handmade::carrying(&packet));
        let esp = &datagram[esp_offset(&spec)..];
        for len in 0..esp.len() {
            assert!(b.open(encapsulate(&spec, Side::A, &esp[..len], 0)).is_empty(), "{len} bytes of ESP");
        }
        assert_eq!(b.open(datagram.clone()), [packet]);
        b.assert_settled();
    }
}

/// Every bit of a datagram: flipping an authenticated one gets the packet refused, and a forged packet never
/// moves the window.
#[test]
fn each_flipped_bit_behind_the_outer_headers_is_refused() {
    for spec in specs() {
        let mut b = Gateway::with_tunnels(Side::B, std::slice::from_ref(&spec));
        let packet = inner(true, 60);
        let datagram = Sealer::new(&spec, Side::A).seal(1, &Handmade::carrying(&packet));
        for bit in esp_offset(&spec) * 8..datagram.len() * 8 {
            let mut damaged = datagram.clone();
            damaged[bit / 8] ^= 0x80 >> (bit % 8);
            assert!(b.open(damaged).is_empty(), "bit {bit}");
        }
        assert_eq!(b.open(datagram), [packet]);
        b.assert_settled();
    }
}

/// Jumbo packets are carried whole, up to the longest IPv4 datagram.
#[test]
fn jumbo_packets_go_through() {
    let mut spec = specs().remove(0);
    spec.path_mtu = 65_535;
    let longest = spec.inner_mtu();
    let mut ends = [Side::A, Side::B].map(|side| {
        let mut gateway = Gateway::new(spec.policies(side), PoolSize(8, 65_535), portable());
        gateway.install(spec.install(side, &mut LeaseTwin::new(1 << 40), None));
        gateway
    });
    for bytes in [9000, 32_768, longest] {
        let packet = inner(false, bytes);
        let sealed = ends[0].seal(packet.clone());
        assert_eq!(ends[1].open(sealed[0].clone()), [packet]);
    }
}

/// Adjacent packets of one SA are prepared together: invalid ones among them do not affect the others.
#[test]
fn wrong_packets_in_a_run_leave_the_right_ones_in_order() {
    let spec = TunnelSpec::new(0, Suite::AES128GCM16);
    let mut sealer = Sealer::new(&spec, Side::A);
    let mut b = Gateway::with_tunnels(Side::B, std::slice::from_ref(&spec));
    let inner = |n: u64| Inner { seed: n, ..Inner::udp("10.0.0.1", "172.16.0.2", 100) }.bytes();
    let sealed: Vec<Vec<u8>> = (1..=30).map(|n| sealer.seal(n, &Handmade::carrying(&inner(n)))).collect();
    let (early, cut) = ([2, 3, 11, 30], [1, 7, 8, 29]);
    for n in early {
        assert_eq!(b.open(sealed[n - 1].clone()).len(), 1);
    }
    // All in one batch, without replays and without packets that are too short; the first, the last and two
    // adjacent ones are wrong.
    for (n, datagram) in (1..).zip(&sealed) {
        let bytes = if cut.contains(&n) { 40 } else { datagram.len() };
        let mut datagram = datagram[..bytes].to_vec();
        if cut.contains(&n) {
            let (length, sum) = (u16::try_from(bytes).unwrap().to_be_bytes(), 10..12);
            datagram[2..4].copy_from_slice(&length);
            datagram[sum.clone()].fill(0);
            let checksum = testudo_wire::checksum::of(&datagram[..20]).to_bytes();
            datagram[sum].copy_from_slice(&checksum);
        }
        b.unprotected.push(datagram);
    }
    b.settle();
    let right: Vec<_> =
        (1..=30).filter(|n| !early.contains(n) && !cut.contains(n)).map(|n| inner(n as u64)).collect();
    assert_eq!(b.protected.take(), right);
    assert_eq!(b.drops(DropReason::ReplayDuplicate), early.len() as u64);
    assert_eq!(b.drops(DropReason::EspMalformed), cut.len() as u64);
    b.assert_settled();
}

/// Opened packets are checked in runs too: those found wrong then, in the middle of runs of two SAs, are
/// refused alone.
#[test]
fn packets_that_turn_out_wrong_are_refused_from_the_middle_of_a_batch() {
    let specs = [0, 1].map(|number| TunnelSpec::new(number, Suite::AES128GCM16));
    let mut sealers = specs.clone().map(|spec| Sealer::new(&spec, Side::A));
    let mut b = Gateway::with_tunnels(Side::B, &specs);
    let inner = |network: u8, n: u64| {
        Inner { seed: n, ..Inner::udp("10.0.0.1", &format!("172.{network}.0.2"), 100) }.bytes()
    };
    let right = |tunnel: u8, n| Handmade::carrying(&inner(16 + tunnel, n));
    let mut seal = |tunnel: u8, n, made: &Handmade| sealers[usize::from(tunnel)].seal(n, made);
    let bad_padding = Handmade { padding: vec![7, 7], pad_length: 2, ..right(1, 1) };
    let mut forged = seal(0, 3, &right(0, 3));
    let honest = forged.clone();
    *forged.last_mut().expect("an ICV") ^= 1;
    let batch = [
        seal(0, 1, &right(0, 1)),
        seal(1, 1, &bad_padding),
        seal(0, 2, &right(0, 2)),
        seal(0, 2, &right(0, 2)),
        forged,
        seal(1, 2, &right(0, 2)),
        seal(0, 4, &right(0, 4)),
        seal(0, 5, &right(0, 5)),
        seal(0, 6, &Handmade { next_header: 253, ..right(0, 6) }),
        seal(0, 7, &Handmade { next_header: 59, ..right(0, 7) }),
        seal(0, 8, &right(0, 8)),
        seal(1, 3, &right(1, 3)),
        seal(1, 4, &right(1, 4)),
    ];
    batch.iter().for_each(|datagram| b.unprotected.push(datagram.clone()));
    b.settle();
    let passed = [(0, 1), (0, 2), (0, 4), (0, 5), (0, 8), (1, 3), (1, 4)];
    assert_eq!(b.protected.take(), passed.map(|(tunnel, n)| inner(16 + tunnel, n)));
    for reason in [
        DropReason::BadPadding,
        DropReason::ReplayDuplicate,
        DropReason::AuthenticationFailed,
        DropReason::SelectorMismatch,
        DropReason::BadNextHeader,
        DropReason::DummyPacket,
    ] {
        assert_eq!(b.drops(reason), 1, "{reason:?}");
    }
    // A forgery does not use up its number; an authentic packet does, whatever its content.
    assert_eq!(b.open(honest), [inner(16, 3)]);
    batch.into_iter().for_each(|datagram| assert!(b.open(datagram).is_empty()));
    assert_eq!(b.drops(DropReason::AuthenticationFailed) + b.drops(DropReason::ReplayDuplicate), 2 + 13);
    b.assert_settled();
}

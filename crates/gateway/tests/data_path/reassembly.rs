//! Outer fragments: reassembled by the rules of RFC 791 3.2, RFC 8200 4.5, RFC 5722 and RFC 3168 5.3, as a
//! slow model does it, and opened as if they had never been cut.

use crate::support::fragments::{Part, fragment, fragment_with, fragmentable, fragments, header_bytes};
use crate::support::gateway::{PoolSize, portable};
use crate::support::random::seed;
use crate::support::reassembly::{Twins, name};
use crate::support::{Gateway, Handmade, Inner, LeaseTwin, Sealer, Side, TunnelSpec};
use fastrand::Rng;
use std::collections::BTreeMap;
use std::time::Duration;
use testudo_crypto::Suite;
use testudo_ipsec::{Action, Policy, PortRange, Selector};
use testudo_packet::{DropCounters, DropReason};
use testudo_wire::ip::Version;
use testudo_wire::protocol::UDP;

/// Any order, loss, duplicates, overlaps, lies about length and place, changed bytes, mixed ECN, too many at
/// once, and time: each fragment has the outcome that the definition gives it.
#[test]
fn each_fragment_has_the_outcome_that_the_model_gives_it() {
    println!("TESTUDO_SEED={:#x}", seed());
    let (mut met, mut dropped) = (BTreeMap::<String, u64>::new(), DropCounters::default());
    for run in 0..100 {
        let mut random = Rng::with_seed(seed() ^ run << 32);
        let mut twins = Twins::default();
        for _ in 0..1500 {
            let outcome = twins.step(&mut || random.u8(..));
            *met.entry(name(&outcome)).or_default() += 1;
        }
        twins.finish().iter().for_each(|(reason, count)| dropped.add(reason, count));
    }
    println!("{met:?}");
    use DropReason as R;
    for reason in [R::FragmentMalformed, R::FragmentOverlap, R::FragmentDuplicate, R::FragmentEcn] {
        assert!(met.get(reason.name()).is_some_and(|count| *count > 100), "{reason:?}: {met:?}");
    }
    assert!(dropped.get(R::FragmentTimeout) > 1000 && dropped.get(R::FragmentEvicted) > 1000, "{dropped:?}");
    assert!(["whole, IPv4", "whole, IPv6"].iter().all(|name| met.get(*name).is_some_and(|n| *n > 300)));
}

fn specs() -> Vec<TunnelSpec> {
    let both = [false, true];
    let spec =
        |outer: Version, udp: bool| TunnelSpec { outer, udp, ..TunnelSpec::new(0, Suite::AES128GCM16) };
    [Version::V4, Version::V6].into_iter().flat_map(|outer| both.map(|udp| spec(outer, udp))).collect()
}

fn inner(bytes: usize, seed: u64) -> Vec<u8> {
    Inner { seed, ..Inner::udp("10.0.0.1", "172.16.0.2", bytes) }.bytes()
}

/// B with buffers for the longest datagrams.
fn b(spec: &TunnelSpec) -> Gateway {
    let mut b = Gateway::new(spec.policies(Side::B), PoolSize(512, 65_535), portable());
    b.install(spec.install(Side::B, &mut LeaseTwin::new(1 << 40), None));
    b
}

/// Whole datagrams that A seals, with their inner packets.
struct Peer {
    sealer: Sealer,
    sealed: u64,
}

impl Peer {
    fn new(spec: &TunnelSpec) -> Self {
        Self { sealer: Sealer::new(spec, Side::A), sealed: 0 }
    }

    fn datagram(&mut self, bytes: usize) -> (Vec<u8>, Vec<u8>) {
        self.sealed += 1;
        let packet = inner(bytes, self.sealed);
        let datagram = self.sealer.seal(self.sealed, &Handmade::carrying(&packet));
        (fragmentable(datagram, self.sealed as u16), packet)
    }

    /// The same in fragments with so many bytes each.
    fn fragments(&mut self, bytes: usize, payload: usize) -> (Vec<Vec<u8>>, Vec<u8>) {
        let (datagram, packet) = self.datagram(bytes);
        (fragments(&datagram, self.sealed as u32, payload), packet)
    }
}

fn receive(b: &mut Gateway, datagrams: impl IntoIterator<Item = Vec<u8>>) -> Vec<Vec<u8>> {
    datagrams.into_iter().for_each(|datagram| b.unprotected.push(datagram));
    b.settle();
    b.protected.take()
}

/// RFC 4303 3.4.1: ESP is processed on the whole datagram. Up to the longest, over the smallest link that an
/// IPv4 host must expect (576 bytes), and over jumbo frames.
#[test]
fn fragments_in_any_order_are_opened_like_the_whole_datagram() {
    println!("TESTUDO_SEED={:#x}", seed());
    let mut random = Rng::with_seed(seed());
    for spec in specs() {
        let (mut b, mut peer) = (b(&spec), Peer::new(&spec));
        for (bytes, payload) in
            [(100, 8), (100, 64), (1400, 48), (1446, 1232), (9000, 1480), (65_000, 552), (65_000, 8960)]
        {
            for order in 0..4 {
                let (mut fragments, packet) = peer.fragments(bytes, payload);
                match order {
                    0 => {}
                    1 => fragments.reverse(),
                    _ => random.shuffle(&mut fragments),
                }
                assert!(fragments.len() > 1);
                let merged = b.worker.pool().merged();
                let before = fragments.len() as u64 - 1;
                assert_eq!(receive(&mut b, fragments), [packet], "{bytes} bytes by {payload}, {spec:?}");
                assert_eq!(b.worker.pool().merged() - merged, before, "one packet remains of them");
            }
        }
        assert_eq!((b.worker.pool().drops().total(), b.books().held), (0, 0));
        b.assert_settled();
    }
}

/// Fragments of many datagrams at a time, those of each in another order.
#[test]
fn interleaved_datagrams_are_told_apart() {
    println!("TESTUDO_SEED={:#x}", seed());
    let mut random = Rng::with_seed(seed());
    for spec in specs() {
        let (mut b, mut peer) = (b(&spec), Peer::new(&spec));
        let (mut all, mut packets) = (Vec::new(), Vec::new());
        for _ in 0..40 {
            let (fragments, packet) = peer.fragments(3000, 1000);
            all.extend(fragments);
            packets.push(packet);
        }
        random.shuffle(&mut all);
        let mut delivered = receive(&mut b, all);
        packets.sort();
        delivered.sort();
        assert!(delivered == packets);
        b.assert_settled();
    }
}

/// RFC 5722 3: "the entire datagram (and any constituent fragments, including those not yet received) MUST be
/// silently discarded". The same over IPv4.
#[test]
fn an_overlap_ends_the_datagram_and_what_comes_of_it_later() {
    for spec in specs() {
        // A fragment that overlaps the first, the second, both, or lies within one; or has other bytes.
        for (offset, bytes) in [(8, 1000), (904, 1000), (1096, 1008), (96, 800), (8, 2000), (0, 1000)] {
            let (mut b, mut peer) = (b(&spec), Peer::new(&spec));
            let (datagram, packet) = peer.datagram(3000);
            let all = fragments(&datagram, 1, 1000);
            let part = Part { offset, bytes, more: true };
            let wrong = fragment_with(&datagram, 1, part, &vec![0xEE; bytes]);
            assert!(receive(&mut b, [all[0].clone(), all[1].clone(), wrong]).is_empty());
            assert_eq!(b.drops(DropReason::FragmentOverlap), 2, "the datagram and the fragment");
            assert_eq!(b.books().held, 0, "no buffer is kept for it");
            assert!(receive(&mut b, all.clone()).is_empty());
            assert_eq!(b.drops(DropReason::FragmentOverlap), 2 + all.len() as u64);
            b.clock.advance(Duration::from_secs(15));
            assert_eq!(receive(&mut b, all), [packet], "another datagram under the same number");
            b.assert_settled();
        }
    }
}

/// RFC 8200 4.5: exact duplicates may be dropped alone, since networks duplicate packets.
#[test]
fn an_exact_copy_of_a_fragment_harms_nothing() {
    for spec in specs() {
        let (mut b, mut peer) = (b(&spec), Peer::new(&spec));
        let (all, packet) = peer.fragments(3000, 1000);
        let twice = all[..3].iter().flat_map(|fragment| [fragment.clone(), fragment.clone()]);
        assert!(receive(&mut b, twice).is_empty());
        assert_eq!(b.drops(DropReason::FragmentDuplicate), 3);
        assert_eq!(receive(&mut b, all[3..].to_vec()), [packet]);
        b.assert_settled();
    }
}

/// RFC 6946 4: an atomic fragment is a whole packet, also while a datagram with the same Identification is
/// incomplete.
#[test]
fn an_atomic_fragment_is_processed_by_itself() {
    for spec in specs().into_iter().filter(|spec| spec.outer == Version::V6) {
        let (mut b, mut peer) = (b(&spec), Peer::new(&spec));
        let (all, packet) = peer.fragments(3000, 1000);
        assert!(receive(&mut b, all[..2].to_vec()).is_empty());
        let (datagram, alone) = peer.datagram(500);
        let bytes = datagram.len() - header_bytes(&datagram);
        let atomic = fragment(&datagram, 1, Part { offset: 0, bytes, more: false });
        assert_eq!(receive(&mut b, [atomic]), [alone]);
        assert_eq!(receive(&mut b, all[2..].to_vec()), [packet]);
        b.assert_settled();
    }
}

/// RFC 3168 5.3 outside, then RFC 6040 4.2: congestion that one fragment met reaches the inner packet.
#[test]
fn congestion_marked_on_one_fragment_reaches_the_inner_packet() {
    const ECT_0: u8 = 2;
    for spec in specs() {
        let (mut b, mut sealer) = (b(&spec), Sealer::new(&spec, Side::A));
        let original = Inner { traffic_class: 0xB8 | ECT_0, ..Inner::udp("10.0.0.1", "172.16.0.2", 3000) };
        let made = Handmade { outer_class: 0xB8 | ECT_0, ..Handmade::carrying(&original.bytes()) };
        for (number, marked) in (1..).zip(0..4) {
            let datagram = fragmentable(sealer.seal(number, &made), number as u16);
            let mut all = fragments(&datagram, number as u32, 1000);
            testudo_wire::ip::set_ecn(&mut all[marked], 3);
            let expected = Inner { traffic_class: 0xB8 | 3, ..original }.bytes();
            assert_eq!(receive(&mut b, all), [expected], "fragment {marked}");
        }
        b.assert_settled();
    }
}

/// A datagram is complete in 15 seconds, or is dropped and its buffer is free again.
#[test]
fn what_is_not_complete_in_fifteen_seconds_is_dropped() {
    for spec in specs() {
        let (mut b, mut peer) = (b(&spec), Peer::new(&spec));
        let (all, packet) = peer.fragments(3000, 1000);
        assert!(receive(&mut b, all[..2].to_vec()).is_empty());
        b.clock.advance(Duration::from_millis(14_999));
        let now = b.now();
        b.worker.tick(now);
        assert_eq!((b.worker.incomplete_datagrams(), b.books().held), (1, 1));
        assert_eq!(receive(&mut b, all[2..].to_vec()), [packet]);
        let (all, _) = peer.fragments(3000, 1000);
        assert!(receive(&mut b, all[..2].to_vec()).is_empty());
        b.clock.advance(Duration::from_secs(15));
        let now = b.now();
        b.worker.tick(now);
        assert_eq!((b.drops(DropReason::FragmentTimeout), b.books().held), (1, 0));
        assert!(receive(&mut b, all[2..].to_vec()).is_empty(), "the rest alone is not enough");
        b.assert_settled();
    }
}

/// RFC 4963: an Identification comes again, and must not meet what is left of the datagram before.
#[test]
fn an_incomplete_datagram_ends_after_1024_later_ones_of_its_pair() {
    let spec = TunnelSpec::new(0, Suite::AES128GCM16);
    for (later, is_left) in [(1024, true), (1025, false)] {
        let (mut b, mut peer) = (b(&spec), Peer::new(&spec));
        let (left, _) = peer.fragments(3000, 1000);
        assert!(receive(&mut b, left[..2].to_vec()).is_empty());
        for _ in 0..later {
            let (all, packet) = peer.fragments(100, 80);
            assert_eq!(receive(&mut b, all), [packet]);
        }
        let (datagram, packet) = peer.datagram(3000);
        let delivered = receive(&mut b, fragments(&datagram, 1, 1000));
        assert_eq!(delivered.contains(&packet), !is_left, "{later} later datagrams");
        assert_eq!(b.drops(DropReason::FragmentTimeout), u64::from(!is_left));
        b.assert_settled();
    }
}

#[test]
fn a_datagram_of_more_than_128_fragments_is_dropped_whole() {
    for spec in specs() {
        let (mut b, mut peer) = (b(&spec), Peer::new(&spec));
        let overhead = peer.datagram(100).0.len() - header_bytes(&peer.datagram(100).0) - 100;
        let (all, packet) = peer.fragments(128 * 8 - overhead, 8);
        assert_eq!(all.len(), 128);
        assert_eq!(receive(&mut b, all), [packet]);
        let (all, _) = peer.fragments(129 * 8 - overhead, 8);
        assert!(receive(&mut b, all).is_empty());
        // The last, complete one would be the 129th.
        assert_eq!(b.drops(DropReason::FragmentLimit), 2);
        b.assert_settled();
    }
}

/// RFC 8200 4.5 and RFC 7112 5: the first fragment has all headers, ESP's included. RFC 791 3.2, RFC 8200
/// 4.5: all but the last are multiples of 8 bytes, and no datagram is longer than 65,535.
#[test]
fn fragments_that_break_their_own_rules_are_dropped_alone() {
    for spec in specs() {
        let (mut b, mut peer) = (b(&spec), Peer::new(&spec));
        let (datagram, packet) = peer.datagram(3000);
        let all = fragments(&datagram, 1, 1000);
        assert!(receive(&mut b, all[..2].to_vec()).is_empty());
        let is_v4 = spec.outer == Version::V4;
        let wrong = [
            (Part { offset: 2000, bytes: 0, more: true }, 0),
            (Part { offset: 2000, bytes: 7, more: true }, 7),
            (Part { offset: 2000, bytes: 1004, more: true }, 1004),
            (Part { offset: 65_528, bytes: 8, more: false }, 8),
            (Part { offset: 65_512, bytes: 8, more: false }, if is_v4 { 8 } else { 0 }),
        ];
        for (part, bytes) in wrong {
            assert!(receive(&mut b, [fragment_with(&datagram, 1, part, &vec![0; bytes])]).is_empty());
        }
        let refused = b.drops(DropReason::FragmentMalformed) + b.drops(DropReason::BadHeader);
        assert_eq!(refused, wrong.len() as u64);
        assert_eq!(receive(&mut b, all[2..].to_vec()), [packet], "the others are not harmed");
        b.assert_settled();
    }
}

/// All fragments must agree on where their datagram ends.
#[test]
fn fragments_that_contradict_each_other_about_the_length_end_their_datagram() {
    let spec = TunnelSpec::new(0, Suite::AES128GCM16);
    let last = |offset: usize, bytes: usize| Part { offset, bytes, more: false };
    let more = |offset: usize, bytes: usize| Part { offset, bytes, more: true };
    for (before, then) in [
        (last(1000, 500), more(1504, 8)),
        (last(1000, 500), last(2000, 8)),
        (last(1000, 504), more(1000, 504)),
        (more(2000, 8), last(1000, 500)),
        (more(1000, 504), last(1000, 504)),
    ] {
        let (mut b, mut peer) = (b(&spec), Peer::new(&spec));
        let (datagram, _) = peer.datagram(3000);
        let parts = [before, then].map(|part| fragment(&datagram, 1, part));
        assert!(receive(&mut b, parts).is_empty());
        assert_eq!(b.drops(DropReason::FragmentMalformed), 2, "{before:?}, {then:?}");
        assert_eq!(b.books().held, 0);
        b.assert_settled();
    }
}

/// Only a datagram's destination reassembles it; policy decides on every other fragment (RFC 4301 7).
#[test]
fn fragments_to_other_addresses_stay_fragments() {
    let spec = TunnelSpec::new(0, Suite::AES128GCM16);
    let mut policies = spec.policies(Side::B);
    policies.push(Policy::new(Selector::ANY, Action::Bypass));
    let mut b = Gateway::new(policies, PoolSize(64, 2048), portable());
    b.install(spec.install(Side::B, &mut LeaseTwin::new(1 << 40), None));
    for (source, elsewhere) in [("192.0.2.1", "198.51.100.3"), ("2001:db8:a::1", "2001:db8:b::3")] {
        let datagram = fragmentable(Inner::udp(source, elsewhere, 1000).bytes(), 1);
        let all = fragments(&datagram, 9, 400);
        assert_eq!(receive(&mut b, all.clone()), all);
    }
    assert_eq!((b.worker.pool().merged(), b.worker.incomplete_datagrams()), (0, 0));
    b.assert_settled();
}

/// A datagram to us that is not for an SA is judged as a whole: all its fields are there.
#[test]
fn policy_decides_on_whole_datagrams_to_us() {
    for spec in specs().into_iter().filter(|spec| !spec.udp) {
        let (from, to) = (spec.address(Side::A).to_string(), spec.address(Side::B).to_string());
        let datagram = fragmentable(Inner::udp(&from, &to, 1000).bytes(), 1);
        let all = fragments(&datagram, 1, 400);
        let mut refuses = b(&spec);
        assert!(receive(&mut refuses, all.clone()).is_empty());
        assert_eq!(refuses.drops(DropReason::NotForUs), 1);
        let mut policies = spec.policies(Side::B);
        let source_port = PortRange { first: 5000, last: 5000 };
        let selector = Selector { protocol: UDP.into(), remote_ports: source_port, ..Selector::ANY };
        policies.push(Policy::new(selector, Action::Bypass));
        let mut lets_pass = Gateway::new(policies, PoolSize(64, 2048), portable());
        lets_pass.install(spec.install(Side::B, &mut LeaseTwin::new(1 << 40), None));
        assert_eq!(receive(&mut lets_pass, all), [datagram]);
        [refuses, lets_pass].iter().for_each(Gateway::assert_settled);
    }
}

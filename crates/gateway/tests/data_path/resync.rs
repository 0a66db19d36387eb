//! Resynchronisation of extended sequence numbers after more than 2^32 packets were lost (RFC 4303 A3, RFC
//! 4302 B3).

use super::encapsulations::{Tunnels, every_kind, inner_of};
use crate::support::gateway::{PoolSize, portable};
use crate::support::{Gateway, Handmade, Inner, LeaseTwin, Sealer, Side, TunnelSpec};
use testudo_crypto::Suite;
use testudo_ipsec::EventKind;
use testudo_packet::DropReason;

const SPAN: u64 = 1 << 32;

/// Side A of some tunnels, whose first packet has this number.
fn sender_from(tunnels: &Tunnels, first: u64) -> Gateway {
    let policies = tunnels.iter().flat_map(|spec| spec.policies(Side::A)).collect();
    let mut a = Gateway::new(policies, PoolSize(64, 2048), portable());
    let mut store = LeaseTwin::new(1 << 40);
    for spec in tunnels {
        store.begin_at(spec.spi_from(Side::A), first);
        a.install(spec.install(Side::A, &mut store, None));
    }
    a
}

/// Every encapsulation, ESP and AH: after 32 packets and 8 for each half that is tried, packets pass again,
/// and none is delivered that was not sent. Where AH covers ESP, each finds its own numbers, one after the
/// other.
#[test]
fn packets_pass_again_after_more_than_4_billion_were_lost() {
    for tunnels in every_kind().into_iter().filter(|tunnels| tunnels[0].esn && !tunnels[0].suite.is_for_vpe())
    {
        let sas = tunnels.len() as u64;
        for halves in [1, 2, 16] {
            let mut b = Gateway::with_tunnels(Side::B, &tunnels);
            let mut sent = sender_from(&tunnels, 1).seal(inner_of(&tunnels, 100).bytes());
            assert_eq!(b.open(sent.remove(0)).len(), 1);
            let first = halves * SPAN + 100;
            let mut later = sender_from(&tunnels, first);
            let limit = sas * (32 + 8 * halves + 1);
            let mut failed = 0;
            let passed = loop {
                let delivered = b.open(later.seal(inner_of(&tunnels, 100).bytes()).remove(0));
                if !delivered.is_empty() {
                    break delivered;
                }
                failed += 1;
                assert!(failed <= limit, "{halves} halves: {tunnels:?}");
            };
            assert_eq!(passed.len(), 1, "the copy, and not the packet as well");
            let events = b.worker.take_events();
            let found = events.iter().filter_map(|event| match event.kind {
                EventKind::Resynchronised { spi, lost } => Some((spi, lost)),
                _ => None,
            });
            let found: Vec<_> = found.collect();
            let spis: Vec<_> = tunnels.iter().rev().map(|spec| spec.spi_from(Side::A)).collect();
            assert_eq!(found.iter().map(|(spi, _)| *spi).collect::<Vec<_>>(), spis, "{tunnels:?}");
            assert_eq!(found.last().map(|(_, lost)| *lost), Some(first + failed - 2));
            for _ in 0..100 {
                assert_eq!(b.open(later.seal(inner_of(&tunnels, 100).bytes()).remove(0)).len(), 1);
            }
            assert_eq!(b.drops(DropReason::AuthenticationFailed), failed + sas);
            assert_eq!(b.drops(DropReason::ResyncFailed), sas * (halves - 1));
            b.assert_settled();
        }
    }
}

fn spec() -> TunnelSpec {
    TunnelSpec::new(0, Suite::AES128GCM16)
}

/// A packet whose ICV is wrong.
fn forged(sealer: &mut Sealer, sequence: u64) -> Vec<u8> {
    let mut datagram = sealer.seal(sequence, &Handmade::carrying(&inner()));
    if let Some(last) = datagram.last_mut() {
        *last ^= 1;
    }
    datagram
}

fn inner() -> Vec<u8> {
    Inner::udp("10.0.0.1", "172.16.0.2", 100).bytes()
}

/// A flood of forged packets costs an eighth more and moves nothing: what was recorded is still refused, and
/// the peer's next packet passes.
#[test]
fn forged_packets_move_no_window_and_cost_an_eighth_more_at_most() {
    const FORGED: u64 = 10_000;
    let mut sealer = Sealer::new(&spec(), Side::A);
    let mut b = Gateway::with_tunnels(Side::B, &[spec()]);
    let honest = Handmade::carrying(&inner());
    let recorded: Vec<_> = (1..=100).map(|sequence| sealer.seal(sequence, &honest)).collect();
    for datagram in &recorded {
        assert_eq!(b.open(datagram.clone()).len(), 1);
    }
    for number in 0..FORGED {
        // Any low half, at and beyond the window.
        assert!(b.open(forged(&mut sealer, 101 + number * 429_497)).is_empty());
    }
    let tried = b.drops(DropReason::ResyncFailed);
    assert!(tried > 0 && tried <= FORGED / 8, "{tried} were tried");
    assert_eq!(b.drops(DropReason::AuthenticationFailed), FORGED);
    for datagram in recorded {
        assert!(b.open(datagram).is_empty());
    }
    assert_eq!(b.drops(DropReason::ReplayDuplicate), 100);
    assert_eq!(b.open(sealer.seal(101, &honest)).len(), 1);
    b.assert_settled();
}

/// While the peer's packets arrive, nothing is tried, however many forged ones come between.
#[test]
fn nothing_is_tried_while_the_peers_packets_arrive() {
    let mut sealer = Sealer::new(&spec(), Side::A);
    let mut b = Gateway::with_tunnels(Side::B, &[spec()]);
    for sequence in 1..200 {
        for _ in 0..30 {
            assert!(b.open(forged(&mut sealer, sequence)).is_empty());
        }
        assert_eq!(b.open(sealer.seal(sequence, &Handmade::carrying(&inner()))).len(), 1);
    }
    assert_eq!(b.drops(DropReason::ResyncFailed), 0);
    b.assert_settled();
}

/// RFC 4303 3.3.3: without ESN there is no other half.
#[test]
fn nothing_is_tried_without_extended_numbers() {
    let spec = TunnelSpec { esn: false, ..spec() };
    let mut sealer = Sealer::new(&spec, Side::A);
    let mut b = Gateway::with_tunnels(Side::B, std::slice::from_ref(&spec));
    for sequence in 1..500 {
        assert!(b.open(forged(&mut sealer, sequence)).is_empty());
    }
    assert_eq!(b.worker.pool().drops().total(), 499);
    b.assert_settled();
}

/// Where AH covers ESP, a recorded datagram of ESP cannot be brought before the SA of ESP without the key of
/// AH: nothing is tried for it.
#[test]
fn forged_packets_under_ah_reach_no_search_of_esp() {
    let tunnels = every_kind().into_iter().find(|tunnels| tunnels.len() > 1 && tunnels[0].esn);
    let tunnels = tunnels.expect("AH over ESP");
    let mut a = Gateway::with_tunnels(Side::A, &tunnels);
    let mut b = Gateway::with_tunnels(Side::B, &tunnels);
    for _ in 0..1000 {
        let mut datagram = a.seal(inner_of(&tunnels, 100).bytes()).remove(0);
        if let Some(last) = datagram.last_mut() {
            *last ^= 1;
        }
        assert!(b.open(datagram).is_empty());
    }
    let tried = b.drops(DropReason::ResyncFailed);
    assert!(tried > 0 && tried <= 1000 / 8, "{tried} were tried, all of AH");
    assert_eq!(b.drops(DropReason::AuthenticationFailed), 1000);
    assert_eq!(b.open(a.seal(inner_of(&tunnels, 100).bytes()).remove(0)).len(), 1);
    b.assert_settled();
}

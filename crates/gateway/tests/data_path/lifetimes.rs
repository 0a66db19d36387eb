//! Lifetimes by packets, bytes and time (RFC 4301 4.4.2.1), and sequence numbers that run out: each is
//! reported once, and the SA stops where it must.

use super::encapsulations::{every_kind, inner_of};
use crate::support::gateway::{PoolSize, portable};
use crate::support::{Gateway, Handmade, Inner, LeaseTwin, Sealer, Side, TunnelSpec};
use std::time::Duration;
use testudo_crypto::{Direction, Suite};
use testudo_gateway::{Clock, SaChange, SaCounts, Update};
use testudo_ipsec::{Event, EventKind, IpsecProtocol, Lifetime, Limits, Moment, SaState, Spent};
use testudo_packet::DropReason;
use testudo_wire::ah::ah_bytes;

const BYTES: usize = 100;

fn with(lifetime: Lifetime) -> TunnelSpec {
    TunnelSpec { lifetime, ..TunnelSpec::new(0, Suite::AES128GCM16) }
}

/// Soft after 5 packets, hard after 8, expressed in each of the three ways.
fn limits() -> [Lifetime; 3] {
    let packets = |n| Limits { packets: Some(n), ..Limits::default() };
    let bytes = |n| Limits { bytes: Some(n), ..Limits::default() };
    // The clock moves one second after each packet.
    let time = |n| Limits { time: Some(Duration::from_secs(n)), ..Limits::default() };
    [
        Lifetime { soft: packets(5), hard: packets(8) },
        Lifetime { soft: bytes(450), hard: bytes(750) },
        Lifetime { soft: time(4), hard: time(8) },
    ]
}

/// The SPI of packets from a side.
fn spi(from: Side) -> u32 {
    TunnelSpec::new(0, Suite::AES128GCM16).spi_from(from)
}

fn once(events: &[Event], kind: EventKind) {
    let times = events.iter().filter(|e| e.kind == kind).count();
    assert_eq!(times, 1, "{kind:?} was reported {times} times: {events:?}");
}

#[test]
fn an_outbound_sa_warns_once_and_stops_once() {
    for lifetime in limits() {
        let mut a = Gateway::with_tunnels(Side::A, &[with(lifetime)]);
        let mut passed = 0;
        for _ in 0..20 {
            passed += a.seal(Inner::udp("10.0.0.1", "172.16.0.2", BYTES).bytes()).len();
            a.clock.advance(Duration::from_secs(1));
        }
        assert_eq!(passed, 8, "{lifetime:?}");
        assert_eq!(a.drops(DropReason::LifetimeExpired), 12);
        let events = a.worker.take_events();
        once(&events, EventKind::SoftLifetime { spi: spi(Side::A), outbound: true });
        once(&events, EventKind::HardLifetime { spi: spi(Side::A), outbound: true });
        assert_eq!(events.len(), 2, "{events:?}");
        a.assert_settled();
    }
}

#[test]
fn an_inbound_sa_warns_once_and_stops_once() {
    for lifetime in limits() {
        let spec = with(lifetime);
        let mut sealer = Sealer::new(&spec, Side::A);
        let mut b = Gateway::with_tunnels(Side::B, &[spec]);
        let made = Handmade::carrying(&Inner::udp("10.0.0.1", "172.16.0.2", BYTES).bytes());
        let mut passed = 0;
        for n in 1..=20 {
            passed += b.open(sealer.seal(n, &made)).len();
            b.clock.advance(Duration::from_secs(1));
        }
        assert_eq!(passed, 8, "{lifetime:?}");
        assert_eq!(b.drops(DropReason::LifetimeExpired), 12);
        let events = b.worker.take_events();
        once(&events, EventKind::SoftLifetime { spi: spi(Side::A), outbound: false });
        once(&events, EventKind::HardLifetime { spi: spi(Side::A), outbound: false });
        assert_eq!(events.len(), 2, "{events:?}");
        b.assert_settled();
    }
}

/// A hard limit holds within a batch as well: packets prepared before it was reached do not pass after it.
#[test]
fn a_batch_does_not_overshoot_a_hard_limit() {
    for lifetime in &limits()[..2] {
        let spec = with(*lifetime);
        let mut sealer = Sealer::new(&spec, Side::A);
        let mut a = Gateway::with_tunnels(Side::A, std::slice::from_ref(&spec));
        let mut b = Gateway::with_tunnels(Side::B, &[spec]);
        let packet = Inner::udp("10.0.0.1", "172.16.0.2", BYTES).bytes();
        for n in 1..=60 {
            a.protected.push(packet.clone());
            b.unprotected.push(sealer.seal(n, &Handmade::carrying(&packet)));
        }
        a.settle();
        b.settle();
        assert_eq!((a.unprotected.take().len(), b.protected.take().len()), (8, 8));
        assert_eq!((a.drops(DropReason::LifetimeExpired), b.drops(DropReason::LifetimeExpired)), (52, 52));
        once(&a.worker.take_events(), EventKind::HardLifetime { spi: spi(Side::A), outbound: true });
        once(&b.worker.take_events(), EventKind::HardLifetime { spi: spi(Side::A), outbound: false });
        b.assert_settled();
    }
}

/// The same for each encapsulation, and whatever it counts as the bytes of a packet: in transport mode a
/// packet is longer than what its ICV covers of it.
#[test]
fn no_encapsulation_overshoots_a_hard_limit_within_a_batch() {
    for tunnels in every_kind().into_iter().filter(|tunnels| !tunnels[0].esn) {
        let mut a = Gateway::with_tunnels(Side::A, &tunnels);
        let sealed: Vec<_> = (0..14).map(|_| a.seal(inner_of(&tunnels, BYTES).bytes()).remove(0)).collect();
        for limited in 0..tunnels.len() {
            // AH around ESP counts the datagrams that it covers.
            let counted = match tunnels[limited].covers {
                Some(_) => sealed[0].len() - ah_bytes(tunnels[limited].suite.icv_bytes(), tunnels[0].outer),
                None => BYTES,
            };
            let hard = Limits { bytes: Some(7 * counted as u64 + 1), ..Limits::default() };
            let mut specs = tunnels.clone();
            specs[limited].lifetime = Lifetime { hard, ..Lifetime::default() };
            for count in 8..=sealed.len() {
                let mut b = Gateway::with_buffers(Side::B, &specs, PoolSize(64, 2048));
                sealed[..count].iter().for_each(|datagram| b.unprotected.push(datagram.clone()));
                b.settle();
                assert_eq!(b.protected.take().len(), 8, "{count} packets of {specs:?}");
            }
        }
    }
}

/// Packets that are not authentic do not count.
#[test]
fn forged_and_replayed_packets_do_not_age_an_sa() {
    let spec = with(limits()[0]);
    let mut sealer = Sealer::new(&spec, Side::A);
    let mut b = Gateway::with_tunnels(Side::B, &[spec]);
    let made = Handmade::carrying(&Inner::udp("10.0.0.1", "172.16.0.2", BYTES).bytes());
    for n in 1..=7 {
        let datagram = sealer.seal(n, &made);
        for _ in 0..20 {
            let mut forged = datagram.clone();
            *forged.last_mut().expect("an ICV") ^= 1;
            assert!(b.open(forged).is_empty());
        }
        assert_eq!(b.open(datagram.clone()).len(), 1);
        assert!(b.open(datagram).is_empty());
    }
    assert_eq!(b.drops(DropReason::LifetimeExpired), 0);
    assert_eq!(b.open(sealer.seal(8, &made)).len(), 1, "the eighth and last");
    assert!(b.open(sealer.seal(9, &made)).is_empty());
}

#[test]
fn numbers_that_run_out_are_reported_once() {
    let spec = TunnelSpec { esn: false, ..TunnelSpec::new(0, Suite::AES128GCM16) };
    let mut store = LeaseTwin::new(1 << 40);
    store.begin_at(spec.spi_from(Side::A), (1 << 32) - 3);
    let mut a = Gateway::new(spec.policies(Side::A), PoolSize(64, 2048), portable());
    a.install(spec.install(Side::A, &mut store, None));
    let packet = Inner::udp("10.0.0.1", "172.16.0.2", BYTES).bytes();
    let passed: usize = (0..10).map(|_| a.seal(packet.clone()).len()).sum();
    assert_eq!(passed, 3);
    let events = a.worker.take_events();
    once(&events, EventKind::SequenceExhausted { spi: spi(Side::A) });
    assert_eq!(events.len(), 1);
}

/// A store that does not answer stops the SA until it answers: one report per outage, and no number is
/// skipped or repeated.
#[test]
fn a_store_that_does_not_answer_is_reported_once_per_outage() {
    let spec = TunnelSpec::new(0, Suite::AES128GCM16);
    let mut store = LeaseTwin::new(4);
    let mut a = Gateway::new(spec.policies(Side::A), PoolSize(64, 2048), portable());
    a.install(spec.install(Side::A, &mut store, None));
    let packet = Inner::udp("10.0.0.1", "172.16.0.2", BYTES).bytes();
    let mut numbers = Vec::new();
    for _ in 0..3 {
        for _ in 0..10 {
            let sealed = a.seal(packet.clone());
            numbers
                .extend(sealed.iter().map(|d| u32::from_be_bytes(*d[24..].first_chunk().expect("a number"))));
        }
        once(&a.worker.take_events(), EventKind::SequenceNotLeased { spi: spi(Side::A) });
        store.serve();
    }
    assert_eq!(numbers, (1..=12).collect::<Vec<u32>>());
}

#[test]
fn a_lifetime_by_time_is_reported_without_any_packet() {
    let time = |seconds| Limits { time: Some(Duration::from_secs(seconds)), ..Limits::default() };
    let mut a = Gateway::with_tunnels(Side::A, &[with(Lifetime { soft: time(4), hard: time(8) })]);
    for _ in 0..20 {
        a.worker.tick(a.clock.now());
        a.clock.advance(Duration::from_secs(1));
    }
    let events = a.worker.take_events();
    for outbound in [true, false] {
        let spi = spi(if outbound { Side::A } else { Side::B });
        once(&events, EventKind::SoftLifetime { spi, outbound });
        once(&events, EventKind::HardLifetime { spi, outbound });
    }
    assert_eq!(events.len(), 4, "{events:?}");
}

#[test]
fn an_sa_that_has_stopped_reports_its_state() {
    let time = Limits { time: Some(Duration::from_secs(8)), ..Limits::default() };
    let expiring = with(Lifetime { hard: time, ..Lifetime::default() });
    let mut a = Gateway::new(expiring.policies(Side::A), PoolSize(8, 2048), portable());
    let mut store = LeaseTwin::new(1 << 40);
    let install = vec![expiring.install(Side::A, &mut store, None)];
    let outcome = a.worker.update(Update { install, ..Update::default() }, a.now());
    let installed = outcome[0].1.clone().expect("it can be installed");
    let states = || (installed.outbound.counters.state(), installed.inbound.counters.state());
    assert_eq!(states(), (SaState::Installed, SaState::Installed));
    a.clock.advance(Duration::from_secs(8));
    a.worker.tick(a.now());
    assert_eq!(states(), (SaState::Expired, SaState::Expired));

    let short = TunnelSpec { esn: false, ..TunnelSpec::new(0, Suite::AES128GCM16) };
    let mut a = Gateway::new(short.policies(Side::A), PoolSize(8, 2048), portable());
    store.begin_at(short.spi_from(Side::A), u64::from(u32::MAX));
    let install = vec![short.install(Side::A, &mut store, None)];
    let outcome = a.worker.update(Update { install, ..Update::default() }, a.now());
    let counters = outcome[0].1.clone().expect("it can be installed").outbound.counters;
    let packet = Inner::udp("10.0.0.1", "172.16.0.2", BYTES).bytes();
    assert_eq!((a.seal(packet.clone()).len(), counters.state()), (1, SaState::Installed));
    assert_eq!((a.seal(packet).len(), counters.state()), (0, SaState::Exhausted));
}

/// Every packet that was decrypted counts, whether it was passed on or not; one that failed its ICV, or came
/// twice, does not.
#[test]
fn authentic_packets_that_are_refused_later_use_up_the_lifetime() {
    let inner = Inner::udp("10.0.0.1", "172.16.0.2", BYTES).bytes();
    let good = Handmade::carrying(&inner);
    let dummy = Handmade { next_header: 59, ..good.clone() };
    let stray = Handmade::carrying(&Inner::udp("11.0.0.1", "172.16.0.2", BYTES).bytes());
    let badly_padded = Handmade { pad_length: 255, ..good.clone() };
    for hard in [6, 300] {
        let limits = Limits { packets: Some(hard), ..Limits::default() };
        let spec = with(Lifetime { hard: limits, ..Lifetime::default() });
        let mut sealer = Sealer::new(&spec, Side::A);
        let mut b = Gateway::new(spec.policies(Side::B), PoolSize(512, 2048), portable());
        let seen = b.install_seen(spec.install(Side::B, &mut LeaseTwin::new(1 << 40), None));
        let mut sequence = 0;
        for round in 0..hard / 6 {
            for refused in [&dummy, &stray, &badly_padded] {
                sequence += 1;
                let datagram = sealer.seal(sequence, refused);
                b.unprotected.push(datagram.clone());
                // Once as a replay, once forged.
                b.unprotected.push(datagram.clone());
                let mut forged = sealer.seal(sequence + 1, refused);
                *forged.last_mut().expect("an ICV") ^= 1;
                b.unprotected.push(forged);
            }
            b.settle();
            assert!(b.protected.take().is_empty(), "round {round}");
            // What is saved of the replay window follows this number.
            assert_eq!(seen.inbound.counters.sequence(), sequence, "round {round}");
        }
        let passed: usize = (0..hard).map(|n| b.open(sealer.seal(sequence + 1 + n, &good)).len()).sum();
        assert_eq!(passed as u64, hard - hard / 6 * 3, "of {hard}");
        assert_eq!(b.drops(DropReason::LifetimeExpired), hard / 6 * 3);
        b.assert_settled();
    }
}

#[test]
fn limits_that_change_count_what_was_used_before() {
    let packets =
        |n| Lifetime { hard: Limits { packets: Some(n), ..Limits::default() }, ..Lifetime::default() };
    let spec = with(packets(3));
    let mut a = Gateway::with_tunnels(Side::A, std::slice::from_ref(&spec));
    let pass = |a: &mut Gateway| a.seal(Inner::udp("10.0.0.1", "172.16.0.2", BYTES).bytes()).len();
    assert_eq!((pass(&mut a), pass(&mut a)), (1, 1));
    // One of them elsewhere.
    let more = Spent { packets: 1, ..Spent::default() };
    let limit = |spi| SaChange::Limit(spec.index(), Direction::Seal, spi, packets(5), more);
    let now = a.now();
    assert!(a.worker.change_sa(limit(spi(Side::A) + 1), now).is_err(), "no such SA");
    a.worker.change_sa(limit(spi(Side::A)), now).expect("it is there");
    assert_eq!([(); 4].map(|()| pass(&mut a)), [1, 1, 0, 0], "the fourth is the last");
    a.assert_settled();
}

/// What XFRM calls `use_time` and `XFRMA_LASTUSED`: when a key sealed or opened something, in whole seconds.
/// What is not authentic has not used it.
#[test]
fn an_sa_shows_when_it_was_first_and_last_used() {
    let at = |seconds| Some(Moment(Duration::from_secs(seconds)));
    let protocols = [(IpsecProtocol::Esp, Suite::AES128GCM16), (IpsecProtocol::Ah, Suite::NULL_SHA384)];
    for (protocol, suite) in protocols {
        let spec = TunnelSpec { protocol, ..TunnelSpec::new(0, suite) };
        let mut ends = [Side::A, Side::B].map(|side| {
            let mut end = Gateway::new(spec.policies(side), PoolSize(64, 2048), portable());
            end.clock.advance(Duration::from_millis(100_700));
            let installed = end.install_seen(spec.install(side, &mut LeaseTwin::new(1 << 40), None));
            (end, installed)
        });
        let [(a, sealing), (b, opening)] = &mut ends;
        let (sealing, opening) = (&sealing.outbound.counters, &opening.inbound.counters);
        let used = |counters: &SaCounts| (counters.first_used(), counters.last_used());
        let look = |end: &mut Gateway| {
            let now = end.now();
            end.worker.tick(now);
        };
        let packet = || Inner::udp("10.0.0.1", "172.16.0.2", 100).bytes();
        assert_eq!((used(sealing), used(opening)), ((None, None), (None, None)), "{protocol:?}");
        let mut first = a.seal(packet()).remove(0);
        look(a);
        assert_eq!(used(sealing), (at(100), at(100)), "{protocol:?}");
        *first.last_mut().expect("an ICV") ^= 1;
        assert!(b.open(first).is_empty());
        look(b);
        assert_eq!(used(opening), (None, None), "{protocol:?}: a forgery");
        for (milliseconds, second) in [(1000, 101), (1300, 103), (60_000, 163)] {
            [&a, &b].iter().for_each(|end| end.clock.advance(Duration::from_millis(milliseconds)));
            let sealed = a.seal(packet()).remove(0);
            look(a);
            assert_eq!(used(sealing), (at(100), at(second)), "{protocol:?}");
            assert_eq!(b.open(sealed).len(), 1);
            look(b);
            assert_eq!(used(opening), (at(101), at(second)), "{protocol:?}");
        }
        // Time alone is no use.
        for end in [a, b] {
            end.clock.advance(Duration::from_secs(10));
            look(end);
        }
        assert_eq!((used(sealing), used(opening)), ((at(100), at(163)), (at(101), at(163))), "{protocol:?}");
    }
}

//! SAs that are added, put to use and removed one at a time (RFC 4301 4.4.2): several at once from a peer,
//! and a new one towards it at the right moment.

use crate::support::gateway::{PoolSize, portable};
use crate::support::{Gateway, Handmade, Inner, LeaseTwin, Sealer, Side, TunnelSpec};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use testudo_crypto::{
    Capability, Direction, Engine, EngineError, Job, KeyId, KeyMaterial, KeyPreparer, PortableEngine,
    PreparedKey, Suite,
};
use testudo_gateway::{
    InboundInstall, PlacedSa, SaChange, SaChangeError, SaChanged, TunnelInstall, UpdateError, UseFrom,
};
use testudo_ipsec::{
    Event, EventKind, InstallError, Lifetime, Limits, MAX_TUNNEL_SAS, NumberSource, TunnelParameters,
};
use testudo_packet::DropReason;

const SUITE: Suite = Suite::AES128GCM16;

/// The tunnel under its key number `key`: SPIs and keys are those of tunnel `key`, all else is tunnel 0's.
fn under(key: u8) -> TunnelSpec {
    TunnelSpec::new(key, SUITE)
}

fn packet() -> Vec<u8> {
    Inner::udp("10.0.0.1", "172.16.0.2", 100).bytes()
}

fn back() -> Vec<u8> {
    Inner::udp("172.16.0.2", "10.0.0.1", 100).bytes()
}

fn gateway(side: Side) -> Gateway {
    Gateway::with_tunnels(side, &[under(0)])
}

fn try_change(gateway: &mut Gateway, change: SaChange) -> Result<SaChanged, SaChangeError> {
    let now = gateway.now();
    gateway.worker.change_sa(change, now)
}

fn change(gateway: &mut Gateway, change: SaChange) -> SaChanged {
    try_change(gateway, change).expect("it can be changed")
}

fn add_inbound(key: u8, side: Side) -> SaChange {
    SaChange::AddInbound(under(0).index(), Box::new(under(key).inbound(side)))
}

fn add_outbound(key: u8, side: Side, from: UseFrom) -> SaChange {
    let mut store = LeaseTwin::new(1 << 40);
    SaChange::AddOutbound(under(0).index(), Box::new(under(key).outbound(side, &mut store)), from)
}

fn added(changed: SaChanged) -> PlacedSa {
    match changed {
        SaChanged::Added(added) => added,
        other => panic!("{other:?}"),
    }
}

/// The SPI that A seals a packet under; `None` if it is dropped.
fn spi_of_a(a: &mut Gateway) -> Option<u32> {
    let sealed = a.seal(packet());
    sealed.first().map(|datagram| u32::from_be_bytes(*datagram[20..].first_chunk().expect("an SPI")))
}

/// A packet of A under its key number `key`, as B gets it.
fn sealed_by_a(key: u8, sequence: u64) -> Vec<u8> {
    Sealer::new(&under(key), Side::A).seal(sequence, &Handmade::carrying(&packet()))
}

#[test]
fn packets_under_each_of_several_keys_are_accepted_until_their_sa_is_removed() {
    let mut b = gateway(Side::B);
    for key in 1..4 {
        change(&mut b, add_inbound(key, Side::B));
    }
    for sequence in 1..4 {
        for key in 0..4 {
            assert_eq!(b.open(sealed_by_a(key, sequence)), [packet()], "key {key}, number {sequence}");
            assert!(b.open(sealed_by_a(key, sequence)).is_empty(), "each SA has a window of its own");
        }
    }
    let index = under(0).index();
    let removed = change(&mut b, SaChange::RemoveInbound(index, under(2).spi_from(Side::A)));
    let SaChanged::Removed(Some(window)) = removed else { panic!("{removed:?}") };
    assert_eq!(window.top(), 3, "what is to be saved is given back");
    assert!(b.open(sealed_by_a(2, 9)).is_empty());
    assert_eq!((b.drops(DropReason::UnknownSpi), b.drops(DropReason::ReplayDuplicate)), (1, 12));
    for key in [0, 1, 3] {
        assert_eq!(b.open(sealed_by_a(key, 9)), [packet()], "key {key}");
    }
    b.assert_settled();
}

#[test]
fn packets_go_out_through_the_sa_in_use_and_then_through_the_newest_that_remains() {
    let mut a = gateway(Side::A);
    let index = under(0).index();
    let spi = |key: u8| under(key).spi_from(Side::A);
    let waiting = added(change(&mut a, add_outbound(1, Side::A, UseFrom::Later)));
    assert_eq!((spi_of_a(&mut a), waiting.counters.is_in_use()), (Some(spi(0)), false));
    assert!(matches!(change(&mut a, SaChange::UseOutbound(index, spi(1))), SaChanged::InUse));
    assert_eq!((spi_of_a(&mut a), waiting.counters.is_in_use()), (Some(spi(1)), true));
    let last = added(change(&mut a, add_outbound(2, Side::A, UseFrom::Now)));
    assert_eq!((spi_of_a(&mut a), waiting.counters.is_in_use()), (Some(spi(2)), false));
    assert!(matches!(change(&mut a, SaChange::RemoveOutbound(index, spi(2))), SaChanged::Removed(None)));
    assert!(!last.counters.is_in_use());
    assert_eq!((spi_of_a(&mut a), waiting.counters.is_in_use()), (Some(spi(1)), true), "the newest");
    // Order is that of addition, whatever the SPIs are and whichever was in use before.
    change(&mut a, add_outbound(3, Side::A, UseFrom::Later));
    change(&mut a, add_outbound(2, Side::A, UseFrom::Later));
    change(&mut a, SaChange::UseOutbound(index, spi(0)));
    for (removed, next) in [(0, Some(2)), (1, Some(2)), (2, Some(3)), (3, None)] {
        change(&mut a, SaChange::RemoveOutbound(index, spi(removed)));
        assert_eq!(spi_of_a(&mut a), next.map(spi), "after {removed} has gone");
    }
    assert_eq!((a.drops(DropReason::NoSa), a.books().dropped), (1, 1), "with none left");
    a.assert_settled();
}

/// Between the SA that is removed and the one that takes its place no packet is lost.
#[test]
fn removing_the_sa_in_use_loses_no_packet_while_another_remains() {
    let (mut a, mut b) = (gateway(Side::A), gateway(Side::B));
    let spi = |key: u8| under(key).spi_from(Side::A);
    for key in 1..MAX_TUNNEL_SAS as u8 {
        change(&mut a, add_outbound(key, Side::A, UseFrom::Now));
        change(&mut b, add_inbound(key, Side::B));
    }
    for key in (1..MAX_TUNNEL_SAS as u8).rev() {
        a.protected.push(packet());
        a.turn();
        change(&mut a, SaChange::RemoveOutbound(under(0).index(), spi(key)));
        a.protected.push(packet());
        a.settle();
        let sealed = a.unprotected.take();
        let opened: Vec<_> = sealed.into_iter().flat_map(|datagram| b.open(datagram)).collect();
        assert_eq!(opened, [packet(), packet()], "key {key}");
    }
    assert_eq!(a.books().dropped + b.books().dropped, 0);
    a.assert_settled();
}

/// With none left, a tunnel whose SAs are negotiated asks for one, and its packets wait.
#[test]
fn removing_the_last_sa_of_a_negotiated_tunnel_asks_for_another() {
    let mut a = Gateway::new(under(0).policies(Side::A), PoolSize(512, 2048), portable());
    let install = under(0).install(Side::A, &mut LeaseTwin::new(1 << 40), None);
    let parameters = TunnelParameters { acquires: true, ..install.parameters };
    a.install(TunnelInstall { parameters, ..install });
    assert_eq!(a.seal(packet()).len(), 1);
    change(&mut a, SaChange::RemoveOutbound(under(0).index(), under(0).spi_from(Side::A)));
    assert!(a.seal(packet()).is_empty());
    let events = a.worker.take_events();
    assert!(matches!(events[..], [Event { kind: EventKind::Acquire(_), .. }]), "{events:?}");
    assert_eq!((a.worker.held_packets(), a.books().dropped), (1, 0));
    change(&mut a, add_outbound(1, Side::A, UseFrom::Now));
    a.settle();
    assert_eq!((a.unprotected.take().len(), a.worker.held_packets()), (1, 0));
    a.assert_settled();
}

/// One that has stopped takes nobody's place; one that waits for the peer does where there is no other.
#[test]
fn an_sa_that_has_stopped_or_waits_for_the_peer_is_the_last_to_take_over() {
    let index = under(0).index();
    let spi = |key: u8| under(key).spi_from(Side::A);
    let waits = UseFrom::PeersUseOf(under(1).spi_from(Side::B));
    let mut a = gateway(Side::A);
    change(&mut a, add_outbound(2, Side::A, UseFrom::Later));
    change(&mut a, add_inbound(1, Side::A));
    change(&mut a, add_outbound(1, Side::A, waits));
    change(&mut a, SaChange::RemoveOutbound(index, spi(0)));
    assert_eq!(spi_of_a(&mut a), Some(spi(2)), "the peer may not have the keys of 1");
    change(&mut a, SaChange::RemoveOutbound(index, spi(2)));
    assert_eq!(spi_of_a(&mut a), Some(spi(1)), "there is no other");
    // It waits for nothing any more: the peer's packet changes nothing.
    change(&mut a, add_outbound(3, Side::A, UseFrom::Now));
    let from_b = Sealer::new(&under(1), Side::B).seal(1, &Handmade::carrying(&back()));
    assert_eq!(a.open(from_b), [back()]);
    assert_eq!(spi_of_a(&mut a), Some(spi(3)));
    // Its lifetime is over after one packet.
    let one = Limits { packets: Some(1), ..Limits::default() };
    let short = TunnelSpec { lifetime: Lifetime { hard: one, ..Lifetime::default() }, ..under(4) };
    let outbound = Box::new(short.outbound(Side::A, &mut LeaseTwin::new(1 << 40)));
    change(&mut a, SaChange::AddOutbound(index, outbound, UseFrom::Now));
    assert_eq!(spi_of_a(&mut a), Some(spi(4)));
    assert_eq!(spi_of_a(&mut a), None, "it has stopped");
    change(&mut a, SaChange::UseOutbound(index, spi(3)));
    change(&mut a, SaChange::RemoveOutbound(index, spi(3)));
    assert_eq!(spi_of_a(&mut a), Some(spi(1)), "4 has stopped");
    a.assert_settled();
}

/// What anyone could send, or has recorded, proves nothing: only an authentic packet under the new SA does.
#[test]
fn an_sa_that_waits_for_the_peer_is_used_from_its_first_authentic_packet_on() {
    let mut b = gateway(Side::B);
    let (new_in, new_out) = (under(1).spi_from(Side::A), under(1).spi_from(Side::B));
    change(&mut b, add_inbound(1, Side::B));
    let waiting = added(change(&mut b, add_outbound(1, Side::B, UseFrom::PeersUseOf(new_in))));
    let spi = |b: &mut Gateway| {
        let sealed = b.seal(back());
        u32::from_be_bytes(*sealed[0][20..].first_chunk().expect("an SPI"))
    };
    let old = under(0).spi_from(Side::B);
    let mut forged = sealed_by_a(1, 5);
    *forged.last_mut().expect("an ICV") ^= 1;
    assert!(b.open(forged).is_empty());
    assert_eq!(b.open(sealed_by_a(0, 1)), [packet()], "the old key is in use by the peer");
    assert_eq!((spi(&mut b), waiting.counters.is_in_use()), (old, false));
    assert!(b.worker.take_events().is_empty());
    assert_eq!(b.open(sealed_by_a(1, 5)), [packet()]);
    assert_eq!((spi(&mut b), waiting.counters.is_in_use()), (new_out, true));
    assert_eq!(b.open(sealed_by_a(1, 6)), [packet()]);
    let events = b.worker.take_events();
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(events[0].kind, EventKind::TookOver { spi: new_out });
    change(&mut b, SaChange::UseOutbound(under(0).index(), old));
    assert_eq!(b.open(sealed_by_a(1, 7)), [packet()]);
    assert_eq!(spi(&mut b), old, "it moves once");
}

/// An authentic packet that is refused later, by selectors for one, shows the peer's new key as well.
#[test]
fn a_packet_that_policy_refuses_still_shows_that_the_peer_has_its_key() {
    let mut b = gateway(Side::B);
    change(&mut b, add_inbound(1, Side::B));
    let from = UseFrom::PeersUseOf(under(1).spi_from(Side::A));
    let waiting = added(change(&mut b, add_outbound(1, Side::B, from)));
    let stray = Inner::udp("11.0.0.1", "172.16.0.2", 100).bytes();
    assert!(b.open(Sealer::new(&under(1), Side::A).seal(1, &Handmade::carrying(&stray))).is_empty());
    assert_eq!(b.drops(DropReason::SelectorMismatch), 1);
    assert!(waiting.counters.is_in_use());
}

#[test]
fn removing_either_sa_of_a_takeover_ends_the_wait() {
    for removes_inbound in [true, false] {
        let mut b = gateway(Side::B);
        let index = under(0).index();
        change(&mut b, add_inbound(1, Side::B));
        change(&mut b, add_outbound(1, Side::B, UseFrom::PeersUseOf(under(1).spi_from(Side::A))));
        change(
            &mut b,
            match removes_inbound {
                true => SaChange::RemoveInbound(index, under(1).spi_from(Side::A)),
                false => SaChange::RemoveOutbound(index, under(1).spi_from(Side::B)),
            },
        );
        // Others may have the place of what was removed.
        change(&mut b, add_inbound(2, Side::B));
        change(&mut b, add_outbound(2, Side::B, UseFrom::Later));
        for key in [0, 1, 2] {
            b.open(sealed_by_a(key, 1));
        }
        let sealed = b.seal(back());
        assert_eq!(sealed[0][20..24], under(0).spi_from(Side::B).to_be_bytes());
        assert!(b.worker.take_events().is_empty());
    }
}

#[test]
fn what_cannot_be_added_or_removed_is_said_and_changes_nothing() {
    let mut b = gateway(Side::B);
    let index = under(0).index();
    let refused = |result: Result<SaChanged, SaChangeError>| match result {
        Err(SaChangeError::Add(UpdateError::Install(error))) => error,
        other => panic!("{other:?}"),
    };
    let error = refused(try_change(&mut b, add_inbound(0, Side::B)));
    assert!(matches!(error, InstallError::SpiInUse { spi, .. } if spi == under(0).spi_from(Side::A)));
    let error = refused(try_change(&mut b, add_outbound(0, Side::B, UseFrom::Now)));
    assert!(matches!(error, InstallError::SpiInUse { spi, .. } if spi == under(0).spi_from(Side::B)));
    let nowhere = SaChange::AddInbound(under(9).index(), Box::new(under(9).inbound(Side::B)));
    assert!(matches!(refused(try_change(&mut b, nowhere)), InstallError::NoTunnel { place: 9 }));
    let none = |result| matches!(result, Err(SaChangeError::NoSa { spi: 77 }));
    assert!(none(try_change(&mut b, SaChange::RemoveInbound(index, 77))));
    assert!(none(try_change(&mut b, SaChange::RemoveOutbound(index, 77))));
    assert!(none(try_change(&mut b, SaChange::UseOutbound(index, 77))));
    assert!(none(try_change(&mut b, add_outbound(1, Side::B, UseFrom::PeersUseOf(77)))));
    for key in 1..MAX_TUNNEL_SAS as u8 {
        change(&mut b, add_inbound(key, Side::B));
        change(&mut b, add_outbound(key, Side::B, UseFrom::Later));
    }
    let one_more = MAX_TUNNEL_SAS as u8;
    let error = refused(try_change(&mut b, add_inbound(one_more, Side::B)));
    assert!(matches!(error, InstallError::BundleFull { .. }), "{error}");
    let error = refused(try_change(&mut b, add_outbound(one_more, Side::B, UseFrom::Now)));
    assert!(matches!(error, InstallError::BundleFull { .. }), "{error}");
    assert_eq!(b.open(sealed_by_a(0, 1)), [packet()], "all goes on");
    assert_eq!(b.seal(back())[0][20..24], under(0).spi_from(Side::B).to_be_bytes());
    assert!(b.open(sealed_by_a(one_more, 1)).is_empty());
    change(&mut b, SaChange::RemoveInbound(index, under(3).spi_from(Side::A)));
    change(&mut b, add_inbound(one_more, Side::B));
    assert_eq!(b.open(sealed_by_a(one_more, 1)), [packet()], "there is room again");
}

/// RFC 4301 4.4.2.1: a lifetime is an SA's. The old one ends, and the new one has its own.
#[test]
fn the_lifetime_of_the_old_sa_ends_it_alone() {
    let packets = |n| Limits { packets: Some(n), ..Limits::default() };
    let short = TunnelSpec { lifetime: Lifetime { soft: packets(2), hard: packets(4) }, ..under(0) };
    let mut b = Gateway::with_tunnels(Side::B, &[short]);
    let new = TunnelSpec { lifetime: Lifetime { soft: packets(3), hard: packets(100) }, ..under(1) };
    change(&mut b, SaChange::AddInbound(under(0).index(), Box::new(new.inbound(Side::B))));
    for sequence in 1..=6 {
        for key in [0, 1] {
            let opened = b.open(sealed_by_a(key, sequence)).len();
            assert_eq!(opened, usize::from(key == 1 || sequence <= 4), "key {key}, number {sequence}");
        }
    }
    let [old, new] = [0, 1].map(|key| under(key).spi_from(Side::A));
    let events: Vec<_> = b.worker.take_events().into_iter().map(|event| event.kind).collect();
    let soft = |spi| EventKind::SoftLifetime { spi, outbound: false };
    assert_eq!(events, [soft(old), soft(new), EventKind::HardLifetime { spi: old, outbound: false }]);
}

/// RFC 4303 2.2: numbers of a new key begin at 1; no lease is needed for one that dies with the process.
#[test]
fn an_ephemeral_sa_numbers_its_packets_from_1() {
    let mut a = gateway(Side::A);
    let mut outbound = under(1).outbound(Side::A, &mut LeaseTwin::new(4));
    outbound.parameters.numbers = NumberSource::Ephemeral;
    change(&mut a, SaChange::AddOutbound(under(0).index(), Box::new(outbound), UseFrom::Now));
    let numbers: Vec<u32> = (0..100)
        .map(|_| u32::from_be_bytes(*a.seal(packet())[0][24..].first_chunk().expect("a number")))
        .collect();
    assert_eq!(numbers, (1..=100).collect::<Vec<u32>>());
    assert!(a.worker.take_events().is_empty());
}

/// Counts how often it is told to expand a key itself.
struct Linking {
    engine: PortableEngine,
    expanded: Arc<AtomicU64>,
}

impl Engine for Linking {
    fn name(&self) -> &'static str {
        self.engine.name()
    }

    fn description(&self) -> String {
        self.engine.description()
    }

    fn capability(&self, suite: Suite) -> Option<Capability> {
        self.engine.capability(suite)
    }

    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        self.expanded.fetch_add(1, Ordering::Relaxed);
        self.engine.install(key, direction)
    }

    fn preparer(&self) -> Option<Arc<dyn KeyPreparer>> {
        self.engine.preparer()
    }

    fn link(&mut self, key: PreparedKey) -> Result<KeyId, EngineError> {
        self.engine.link(key)
    }

    fn remove(&mut self, key: KeyId) {
        self.engine.remove(key);
    }

    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        self.engine.submit(jobs)
    }

    fn is_synchronous(&self) -> bool {
        true
    }
}

#[test]
fn the_worker_links_keys_that_were_expanded_elsewhere() {
    let expanded = Arc::new(AtomicU64::new(0));
    let engine = Linking { engine: PortableEngine::new(), expanded: Arc::clone(&expanded) };
    let mut b = Gateway::new(under(0).policies(Side::B), PoolSize(64, 2048), vec![Box::new(engine)]);
    b.install(under(0).install(Side::B, &mut LeaseTwin::new(1 << 40), None));
    assert_eq!(expanded.swap(0, Ordering::Relaxed), 2, "both keys of the tunnel");
    let preparers = b.worker.preparers();
    for key in 1..4 {
        // As a control thread does.
        let (preparers, spec) = (preparers.clone(), under(key));
        let prepared = std::thread::spawn(move || preparers.prepare(spec.key_from(Side::A), Direction::Open));
        let key_of_a = prepared.join().expect("a key");
        let install = InboundInstall { key: key_of_a, ..under(key).inbound(Side::B) };
        change(&mut b, SaChange::AddInbound(under(0).index(), Box::new(install)));
        assert_eq!(b.open(sealed_by_a(key, 1)), [packet()]);
    }
    assert_eq!(expanded.load(Ordering::Relaxed), 0);
    b.assert_settled();
}

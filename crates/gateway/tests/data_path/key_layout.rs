//! A key is laid out in the engine that does its SA's packets, and in another one when that is needed and not
//! before: for the job that the first one failed at, or for the next packet after it was taken out of
//! service.

use crate::late_engine::SharedEngine;
use crate::support::gateway::PoolSize;
use crate::support::packet::{number, numbered};
use crate::support::{Gateway, LeaseTwin, Side, TunnelSpec};
use std::ops::Range;
use std::time::Duration;
use testudo_crypto::{Direction, Engine, PortableEngine, Suite};
use testudo_engine_late::LateConfig;
use testudo_gateway::{InboundInstall, SaChange, Update};
use testudo_ipsec::TunnelIndex;
use testudo_packet::DropReason;

const TUNNELS: u8 = 200;
const STEP: Duration = Duration::from_millis(10);

fn specs() -> Vec<TunnelSpec> {
    (0..TUNNELS).map(|number| TunnelSpec::new(number, Suite::AES128GCM16)).collect()
}

/// A with two engines that answer late before the portable one, and B, which opens what A seals.
struct Ends {
    a: Gateway,
    b: Gateway,
    first: SharedEngine,
    second: SharedEngine,
}

impl Ends {
    fn new(first: LateConfig) -> Self {
        let (first, second) = (SharedEngine::new(first), SharedEngine::new(LateConfig::reliable(2)));
        let engines: Vec<Box<dyn Engine>> =
            vec![Box::new(first.clone()), Box::new(second.clone()), Box::new(PortableEngine::new())];
        let policies = specs().iter().flat_map(|spec| spec.policies(Side::A)).collect();
        let mut a = Gateway::new(policies, PoolSize(512, 2048), engines);
        let mut store = LeaseTwin::new(1 << 40);
        specs().iter().for_each(|spec| a.install(spec.install(Side::A, &mut store, None)));
        Self { a, b: Gateway::with_tunnels(Side::B, &specs()), first, second }
    }

    /// Keys that are laid out in the first and in the second engine.
    fn laid_out(&self) -> (usize, usize) {
        (self.first.installed(), self.second.installed())
    }

    /// Sends a packet through each of these tunnels, and lets time stand still until nothing moves.
    fn send(&mut self, tunnels: Range<u8>, id: u32) {
        tunnels.for_each(|tunnel| self.a.protected.push(numbered(5, id, tunnel, true, 200).bytes()));
        (0..50).for_each(|_| {
            self.a.turn();
        });
    }

    /// The numbers of the packets that B delivers out of what A has sent since the last call.
    fn delivered(&mut self) -> Vec<u32> {
        let sealed = self.a.unprotected.take();
        let opened: Vec<_> = sealed.into_iter().flat_map(|datagram| self.b.open(datagram)).collect();
        opened.iter().map(|packet| number(packet, true)).collect()
    }

    /// Has the first engine keep a packet until it is taken out of service.
    fn withdraw_first(&mut self) {
        self.first.engine().keep_all(true);
        self.send(0..1, 1);
        for _ in 0..130 {
            self.a.clock.advance(STEP);
            self.a.turn();
        }
        assert!(self.a.worker.counters().withdrawn_engines().eq(["late"]));
        assert_eq!(self.a.drops(DropReason::EngineFault), 1);
    }
}

const BOTH_WAYS: usize = 2 * TUNNELS as usize;

#[test]
fn a_key_is_laid_out_only_where_its_packets_go() {
    let mut ends = Ends::new(LateConfig::reliable(1));
    assert_eq!(ends.laid_out(), (BOTH_WAYS, 0));
    ends.send(0..TUNNELS, 1);
    assert_eq!(ends.delivered().len(), usize::from(TUNNELS));
    assert_eq!(ends.laid_out(), (BOTH_WAYS, 0));
    ends.a.assert_settled();
}

/// Once for each SA, however often the first engine fails.
#[test]
fn a_fault_lays_the_key_out_in_the_next_engine_once() {
    let mut ends = Ends::new(LateConfig { faults_per_million: 1_000_000, ..LateConfig::reliable(1) });
    for id in 1..=20 {
        ends.send(0..7, id);
        assert_eq!(ends.laid_out(), (BOTH_WAYS, 7));
        assert_eq!(ends.delivered(), [id; 7], "packets of all seven, through the second engine");
    }
    ends.a.assert_settled();
}

/// What an engine does not take goes on, like what it fails at.
#[test]
fn an_engine_whose_queue_is_full_has_the_rest_laid_out_in_the_next() {
    let mut ends = Ends::new(LateConfig { queue_jobs: 5, ..LateConfig::reliable(1) });
    (0..12).for_each(|tunnel| ends.a.protected.push(numbered(5, 1, tunnel, true, 200).bytes()));
    ends.a.turn();
    assert_eq!(ends.laid_out(), (BOTH_WAYS, 12 - 5));
    ends.send(0..0, 0);
    assert_eq!(ends.delivered(), [1; 12]);
    ends.a.assert_settled();
}

/// No turn does more than its packets ask for, whatever the number of SAs that lose their engine.
#[test]
fn after_an_engine_is_out_of_service_keys_are_laid_out_with_the_next_packets() {
    let mut ends = Ends::new(LateConfig::reliable(1));
    ends.withdraw_first();
    assert_eq!(ends.laid_out(), (BOTH_WAYS, 0), "nobody has asked for any");
    ends.send(10..30, 2);
    assert_eq!(ends.laid_out(), (BOTH_WAYS, 20));
    ends.send(20..40, 3);
    assert_eq!(ends.laid_out(), (BOTH_WAYS, 30), "those of the last ten are there");
    assert_eq!(ends.delivered(), [[2; 20], [3; 20]].concat());
    // The tunnel whose packet was lost goes on behind it.
    ends.send(0..1, 4);
    assert_eq!(ends.delivered(), [4]);
    assert_eq!(ends.a.drops(DropReason::EngineFault), 1);
    ends.a.assert_settled();
}

/// An SA from the peer continues where its window is.
#[test]
fn what_is_opened_after_the_change_of_engines_is_delivered_once() {
    let mut ends = Ends::new(LateConfig::reliable(1));
    let sealed = |ends: &mut Ends, id| {
        let packets = (10..20).map(|tunnel| numbered(5, id, tunnel, false, 200).bytes());
        packets.flat_map(|packet| ends.b.seal(packet)).collect::<Vec<_>>()
    };
    let before = sealed(&mut ends, 1);
    before.iter().for_each(|datagram| ends.a.unprotected.push(datagram.clone()));
    ends.a.settle();
    assert_eq!(ends.a.protected.take().len(), 10);
    ends.withdraw_first();
    let after = sealed(&mut ends, 2);
    before.into_iter().chain(after).for_each(|datagram| ends.a.unprotected.push(datagram));
    ends.a.settle();
    let delivered: Vec<_> = ends.a.protected.take().iter().map(|packet| number(packet, false)).collect();
    assert_eq!((delivered, ends.laid_out().1), (vec![2; 10], 10));
    assert_eq!(ends.a.drops(DropReason::ReplayDuplicate), 10);
}

/// The keys of a removed SA are gone from every engine, and so is what they are made of: its jobs go to no
/// other engine.
#[test]
fn jobs_of_a_removed_sa_lay_out_nothing() {
    let mut ends = Ends::new(LateConfig { faults_per_million: 1_000_000, ..LateConfig::reliable(1) });
    (0..TUNNELS).for_each(|tunnel| ends.a.protected.push(numbered(5, 1, tunnel, true, 200).bytes()));
    ends.a.turn();
    let now = ends.a.now();
    let remove = (0..TUNNELS.into()).map(TunnelIndex).collect();
    ends.a.worker.update(Update { remove, ..Update::default() }, now);
    ends.send(0..0, 0);
    assert_eq!(ends.laid_out(), (BOTH_WAYS, 0));
    assert!(ends.delivered().is_empty());
    assert_eq!(ends.a.drops(DropReason::ShuttingDown), u64::from(TUNNELS));
    ends.a.assert_settled();
}

/// A control thread expands keys for the engine that will use them, which after a withdrawal is another one.
#[test]
fn a_new_sa_gets_its_key_in_the_engine_in_service() {
    let mut ends = Ends::new(LateConfig::reliable(1));
    let preparers = ends.a.worker.preparers();
    ends.withdraw_first();
    let new = TunnelSpec::new(TUNNELS, Suite::AES128GCM16);
    let key = preparers.prepare(new.key_from(Side::B), Direction::Open);
    let install = Box::new(InboundInstall { key, ..new.inbound(Side::A) });
    let now = ends.a.now();
    ends.a.worker.change_sa(SaChange::AddInbound(TunnelIndex(0), install), now).expect("it can be added");
    assert_eq!(ends.laid_out(), (BOTH_WAYS, 1));
}

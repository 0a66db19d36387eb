//! An engine that never gives jobs back harms nothing else: it is taken out of service after a while, the
//! jobs that it holds are counted as lost, and everything else continues in order.

use crate::late_engine::SharedEngine;
use crate::support::gateway::PoolSize;
use crate::support::packet::{number, numbered};
use crate::support::{Gateway, Handmade, Inner, LeaseTwin, Sealer, Side, TunnelSpec};
use std::ops::Range;
use std::time::Duration;
use testudo_crypto::{Capability, EngineError, PortableEngine};
use testudo_crypto::{Direction, Engine, Job, JobStatus, KeyId, KeyMaterial, Suite};
use testudo_engine_late::LateConfig;
use testudo_gateway::OutboundInstall;
use testudo_gateway::{Clock, Commander, Notice, Update, Withdrawal, WithdrawalReason, serve};
use testudo_ipsec::Moment;
use testudo_packet::DropReason;

const BUFFERS: usize = 512;
const STEP: Duration = Duration::from_millis(10);
/// Longer than the limit plus the time until it is noticed: a period ends with a turn, 70 ms after it began.
const NOTICED: Duration = Duration::from_millis(1300);
/// The same while the pool is nearly exhausted.
const NOTICED_IN_NEED: Duration = Duration::from_millis(150);

/// Tunnel 0 uses the engine; tunnel 1 has a suite that the engine does not support.
fn specs() -> [TunnelSpec; 2] {
    [TunnelSpec::new(0, Suite::AES128GCM16), TunnelSpec::new(1, Suite::CHACHA20POLY1305)]
}

fn gateway(side: Side, engines: Vec<Box<dyn Engine>>) -> Gateway {
    let policies = specs().iter().flat_map(|s| s.policies(side)).collect();
    let mut gateway = Gateway::new(policies, PoolSize(BUFFERS, 2048), engines);
    let mut store = LeaseTwin::new(1 << 40);
    specs().iter().for_each(|spec| gateway.install(spec.install(side, &mut store, None)));
    gateway
}

/// A with an engine that misbehaves, and B, which opens what A has sealed.
struct Ends {
    a: Gateway,
    b: Gateway,
    engine: SharedEngine,
}

impl Ends {
    fn new(config: LateConfig) -> Self {
        let engine = SharedEngine::only_for(Suite::AES128GCM16, config);
        let a = gateway(Side::A, engine.before_portable());
        let b = gateway(Side::B, vec![Box::new(PortableEngine::new())]);
        Self { a, b, engine }
    }

    /// An engine that keeps a tenth of its jobs.
    fn keeping_some() -> Self {
        Self::new(LateConfig { kept_per_million: 100_000, ..LateConfig::reliable(7) })
    }

    fn send(&self, tunnel: u8, ids: Range<u32>) {
        ids.for_each(|id| self.a.protected.push(numbered(5, id, tunnel, true, 1000).bytes()));
    }

    /// Takes turns for this long.
    fn pass(&mut self, time: Duration) {
        for _ in 0..time.as_millis() / STEP.as_millis() {
            self.a.clock.advance(STEP);
            self.a.turn();
            self.a.assert_books_balance();
        }
    }

    /// Takes turns while the clock stands still, enough for every job that comes back at all.
    fn pass_no_time(&mut self) {
        (0..100).for_each(|_| {
            self.a.turn();
        });
        self.a.assert_books_balance();
    }

    /// The numbers of the packets that B delivers out of what A has sent since the last call.
    fn delivered(&mut self) -> Vec<u32> {
        let sealed = self.a.unprotected.take();
        let opened: Vec<_> = sealed.into_iter().flat_map(|datagram| self.b.open(datagram)).collect();
        opened.iter().map(|packet| number(packet, true)).collect()
    }

    fn lost(&self) -> u64 {
        self.a.drops(DropReason::EngineFault)
    }

    fn withdrawn(&self) -> Vec<&'static str> {
        self.a.worker.counters().withdrawn_engines().collect()
    }
}

fn is_within(part: &[u32], whole: Range<u32>) -> bool {
    part.is_sorted_by(|a, b| a < b) && part.iter().all(|id| whole.contains(id))
}

#[test]
fn a_tunnel_continues_past_kept_jobs_and_others_never_stop() {
    let mut ends = Ends::keeping_some();
    ends.send(0, 0..200);
    ends.send(1, 1000..1100);
    ends.pass_no_time();
    let kept = ends.engine.in_flight();
    assert!((10..=30).contains(&kept), "{kept} of 200");
    let before = ends.delivered();
    let of_tunnel_0: Vec<_> = before.iter().copied().filter(|id| *id < 1000).collect();
    let of_tunnel_1: Vec<_> = before.iter().copied().filter(|id| *id >= 1000).collect();
    assert!(of_tunnel_1.into_iter().eq(1000..1100), "the other tunnel is not held up");
    assert!(
        of_tunnel_0.len() < 200 - kept && is_within(&of_tunnel_0, 0..200),
        "the order holds, so some wait"
    );
    // Nothing happens before the limit.
    ends.pass(Duration::from_millis(980));
    assert!(ends.delivered().is_empty() && ends.a.worker.is_busy() && ends.withdrawn().is_empty());
    ends.pass(NOTICED - Duration::from_millis(980));
    let after = ends.delivered();
    let all: Vec<_> = of_tunnel_0.iter().chain(&after).copied().collect();
    assert!(is_within(&all, 0..200), "those that waited went in their order");
    assert_eq!((all.len(), ends.lost()), (200 - kept, kept as u64));
    assert!(!ends.a.worker.is_busy(), "the worker may sleep");
    ends.a.assert_settled();
    // The tunnel continues at once, synchronously, and the engine gets nothing more.
    ends.send(0, 200..300);
    ends.a.turn();
    assert!(ends.delivered().into_iter().eq(200..300));
    assert_eq!(ends.engine.in_flight(), kept);
}

/// Of numbers that workers share, an SA's are free for others once its own packets are with the port,
/// whatever an engine has of other SAs.
#[test]
fn kept_jobs_of_one_tunnel_do_not_use_up_the_peer_window_of_another() {
    let mut ends = Ends::new(LateConfig { kept_per_million: 1_000_000, ..LateConfig::reliable(7) });
    let mut store = LeaseTwin::new(1 << 40);
    let specs = specs();
    ends.a = Gateway::new(
        specs.iter().flat_map(|spec| spec.policies(Side::A)).collect(),
        PoolSize(BUFFERS, 2048),
        ends.engine.before_portable(),
    );
    for spec in &specs {
        let mut install = spec.install(Side::A, &mut store, None);
        let OutboundInstall { parameters, peer_window, .. } = &mut install.outbound;
        parameters.numbers = parameters.numbers.clone().shared(parameters.sa.esn, *peer_window, 2);
        ends.a.install(install);
    }
    ends.send(0, 0..5);
    ends.pass_no_time();
    assert_eq!(ends.engine.in_flight(), 5);
    // Much more than the peer's window of 32.
    ends.send(1, 1000..1200);
    ends.pass_no_time();
    assert!(ends.delivered().into_iter().eq(1000..1200));
    assert!(ends.a.worker.is_busy(), "the engine has the others");
}

/// The late engine was withdrawn with so many packets.
fn late(packets: usize) -> Withdrawal {
    Withdrawal { engine: "late", packets, reason: WithdrawalReason::KeptPackets }
}

#[test]
fn an_engine_out_of_service_is_reported_once() {
    let mut ends = Ends::keeping_some();
    ends.send(0, 0..200);
    ends.pass_no_time();
    let packets = ends.engine.in_flight();
    assert!(ends.a.worker.take_withdrawals().is_empty());
    ends.pass(NOTICED);
    assert_eq!(ends.a.worker.take_withdrawals(), [late(packets)]);
    assert_eq!(ends.withdrawn(), ["late"]);
    ends.send(0, 200..300);
    ends.pass(10 * NOTICED);
    ends.engine.engine().give_back_kept();
    ends.pass(10 * NOTICED);
    assert!(ends.a.worker.take_withdrawals().is_empty());
}

/// A clock that advances by a millisecond with each reading.
#[derive(Default)]
struct SteppingClock(std::cell::Cell<u64>);

impl Clock for SteppingClock {
    fn now(&self) -> Moment {
        self.0.set(self.0.get() + 1);
        Moment(Duration::from_millis(self.0.get()))
    }
}

#[test]
fn the_serve_loop_reports_a_withdrawal_and_ends_without_jobs_that_were_given_up() {
    let mut ends = Ends::new(LateConfig::reliable(1));
    ends.engine.engine().keep_all(true);
    ends.send(0, 0..10);
    let (commander, inbox) = Commander::channel().expect("a file descriptor");
    let mut notices = Vec::new();
    let mut tell = |notice| {
        notices.push(notice);
        commander.stop().expect("the loop takes commands");
    };
    serve(&mut ends.a.worker, &inbox, &SteppingClock::default(), &mut tell).expect("ports do not fail");
    assert_eq!(notices, [Notice::Engine(late(10))]);
    assert_eq!((ends.lost(), ends.a.drops(DropReason::ShuttingDown)), (10, 0));
}

#[test]
fn a_job_that_comes_back_after_it_was_given_up_is_neither_sent_nor_counted_again() {
    let mut ends = Ends::keeping_some();
    ends.send(0, 0..200);
    ends.pass_no_time();
    ends.pass(NOTICED);
    let (kept, lost) = (ends.engine.in_flight(), ends.lost());
    assert_eq!((kept as u64, ends.delivered().len()), (lost, 200 - kept));
    ends.send(0, 200..250);
    ends.pass_no_time();
    ends.engine.engine().give_back_kept();
    ends.pass(NOTICED);
    assert_eq!(ends.engine.in_flight(), 0, "it was asked for what it held");
    assert!(ends.delivered().into_iter().eq(200..250), "nothing but the new ones");
    assert_eq!((ends.lost(), ends.a.worker.is_busy()), (lost, false));
    ends.a.assert_settled();
}

/// An inbound job that an engine keeps moves no window: its packet may come again, and is then delivered
/// once.
#[test]
fn a_number_that_an_engine_kept_was_never_received() {
    let spec = &specs()[0];
    let mut sealer = Sealer::new(spec, Side::A);
    let packet = |n: u64| Inner { seed: n, ..Inner::udp("10.0.0.1", "172.16.0.2", 200) }.bytes();
    let sealed: Vec<_> = (1..=60).map(|n| sealer.seal(n, &Handmade::carrying(&packet(n)))).collect();
    let engine = SharedEngine::new(LateConfig { kept_per_million: 200_000, ..LateConfig::reliable(3) });
    let mut b = gateway(Side::B, engine.before_portable());
    sealed.iter().for_each(|datagram| b.unprotected.push(datagram.clone()));
    for _ in 0..NOTICED.as_millis() / STEP.as_millis() {
        b.clock.advance(STEP);
        b.turn();
    }
    let kept = engine.in_flight();
    let first = b.protected.take();
    assert!(kept > 0 && first.len() == 60 - kept);
    assert_eq!(b.drops(DropReason::EngineFault), kept as u64);
    // All of them once more: exactly the missing ones are accepted, through the portable engine; the others
    // are duplicates.
    let again: Vec<_> = sealed.iter().flat_map(|datagram| b.open(datagram.clone())).collect();
    assert_eq!((again.len(), b.drops(DropReason::ReplayDuplicate)), (kept, 60 - kept as u64));
    let mut all: Vec<_> = first.into_iter().chain(again).collect();
    let mut expected: Vec<_> = (1..=60).map(packet).collect();
    all.sort();
    expected.sort();
    assert!(all == expected, "each packet came out once");
    // When they come back late, nothing is counted again.
    engine.engine().give_back_kept();
    for _ in 0..100 {
        b.clock.advance(STEP);
        b.turn();
    }
    assert!(b.protected.take().is_empty() && engine.in_flight() == 0);
    b.assert_settled();
}

/// An engine that took every buffer and keeps them leaves the gateway with as many as it had before.
#[test]
fn kept_jobs_do_not_exhaust_the_pool() {
    let mut ends = Ends::new(LateConfig::reliable(1));
    ends.engine.engine().keep_all(true);
    ends.send(0, 0..2 * BUFFERS as u32);
    ends.pass_no_time();
    assert_eq!(ends.a.worker.pool().available(), 0, "all of them are with the engine");
    ends.pass(NOTICED_IN_NEED);
    assert_eq!(ends.lost(), BUFFERS as u64);
    assert!(ends.delivered().into_iter().eq(BUFFERS as u32..2 * BUFFERS as u32));
    ends.a.assert_settled();
    ends.send(1, 0..BUFFERS as u32);
    ends.engine.engine().keep_all(false);
    ends.pass(10 * NOTICED);
    assert_eq!(ends.delivered().len(), BUFFERS);
    assert_eq!((ends.engine.in_flight(), ends.lost()), (0, BUFFERS as u64));
    ends.a.assert_settled();
    assert_eq!(ends.a.worker.pool().available(), BUFFERS, "late buffers do not make it larger");
}

/// One job of a busy tunnel is kept; the tunnel's later packets then wait and occupy all buffers. Other
/// tunnels are held up briefly, not for the whole limit.
#[test]
fn a_busy_tunnel_behind_a_kept_job_does_not_hold_up_others_for_long() {
    let mut ends = Ends::new(LateConfig { kept_per_million: 10_000, ..LateConfig::reliable(7) });
    ends.send(0, 0..10 * BUFFERS as u32);
    ends.pass_no_time();
    assert_eq!(ends.a.worker.pool().available(), 0, "the pool is dry");
    assert!(ends.engine.in_flight() < 20);
    ends.send(1, 0..10);
    ends.pass(NOTICED_IN_NEED);
    ends.pass_no_time();
    let delivered = ends.delivered().len();
    assert_eq!(delivered as u64 + ends.lost(), 10 + 10 * BUFFERS as u64);
    assert!(ends.lost() < 20);
    ends.a.assert_settled();
}

/// One job below the threshold of the short limit, the engine has the whole limit.
#[test]
fn an_engine_has_more_time_while_there_are_buffers() {
    let mut ends = Ends::new(LateConfig::reliable(1));
    ends.engine.engine().keep_all(true);
    ends.send(0, 0..BUFFERS as u32 / 4 * 3 - 1);
    ends.pass(Duration::from_millis(990));
    assert!(ends.withdrawn().is_empty());
    ends.send(0, 0..1);
    ends.pass(Duration::from_millis(70));
    assert_eq!(ends.withdrawn(), ["late"]);
}

#[test]
fn an_engine_that_is_slow_or_was_not_polled_stays_in_service() {
    let mut ends = Ends::new(LateConfig::reliable(1));
    for round in 0..20 {
        ends.engine.engine().keep_all(true);
        ends.send(0, round * 10..round * 10 + 10);
        ends.pass(Duration::from_millis(900));
        ends.engine.engine().keep_all(false);
        ends.pass(Duration::from_millis(90));
    }
    // The worker itself did not run for an hour.
    ends.send(0, 200..210);
    ends.a.turn();
    ends.a.clock.advance(Duration::from_secs(3600));
    ends.pass_no_time();
    assert!(ends.delivered().into_iter().eq(0..210));
    assert!(ends.withdrawn().is_empty() && ends.lost() == 0);
    ends.a.assert_settled();
}

/// Tunnels that are removed and installed meanwhile: jobs kept of a removed tunnel end as shutting down, and
/// a new one gets no key from the engine.
#[test]
fn tunnels_come_and_go_while_an_engine_keeps_their_packets() {
    let mut ends = Ends::keeping_some();
    ends.send(0, 0..100);
    ends.pass_no_time();
    let (kept, left) = (ends.engine.in_flight() as u64, ends.a.unprotected.take().len() as u64);
    let now = ends.a.now();
    ends.a.worker.update(Update { remove: vec![specs()[0].index()], ..Update::default() }, now);
    ends.a.assert_books_balance();
    ends.pass(NOTICED);
    assert!(ends.a.unprotected.take().is_empty());
    assert_eq!((ends.lost(), ends.a.drops(DropReason::ShuttingDown)), (0, 100 - left));
    assert!(kept > 0 && ends.withdrawn() == ["late"]);
    ends.a.assert_settled();
    let mut store = LeaseTwin::new(1 << 40);
    store.begin_at(specs()[0].spi_from(Side::A), 1000);
    ends.a.install(specs()[0].install(Side::A, &mut store, None));
    assert_eq!(ends.engine.installed(), 2, "only the first time");
    ends.send(0, 100..200);
    ends.a.turn();
    assert!(ends.delivered().into_iter().eq(100..200));
    assert_eq!(ends.engine.in_flight() as u64, kept);
}

/// Taking one engine out of service does not affect another: jobs of the second engine stay there and leave
/// in order.
#[test]
fn taking_one_engine_out_of_service_affects_no_other() {
    let first = SharedEngine::new(LateConfig { queue_jobs: 20, ..LateConfig::reliable(1) });
    let second = SharedEngine::new(LateConfig::reliable(2));
    let mut engines = first.before_portable();
    engines.insert(1, Box::new(second.clone()));
    let mut ends = Ends { a: gateway(Side::A, engines), ..Ends::keeping_some() };
    first.engine().keep_all(true);
    ends.send(0, 0..50);
    ends.pass_no_time();
    assert_eq!((first.in_flight(), second.in_flight()), (20, 0), "30 went on to the second one, and wait");
    ends.pass(Duration::from_millis(800));
    // Taken half a second before the limit of the first engine ends, and kept beyond it.
    second.engine().keep_all(true);
    ends.send(0, 50..60);
    ends.pass(Duration::from_millis(500));
    assert_eq!(ends.withdrawn(), ["late"]);
    assert_eq!((ends.lost(), ends.a.worker.is_busy()), (20, true));
    assert!(ends.delivered().into_iter().eq(20..50));
    second.engine().keep_all(false);
    ends.pass(STEP);
    ends.pass_no_time();
    assert!(ends.delivered().into_iter().eq(50..60));
    ends.send(0, 60..70);
    ends.a.turn();
    assert_eq!(second.in_flight(), 10, "jobs go to the next engine, not to the last");
    ends.pass_no_time();
    assert!(ends.delivered().into_iter().eq(60..70));
    assert_eq!(ends.lost(), 20);
    ends.a.assert_settled();
}

/// Jobs that one engine fails go to the next one, and past it even in the turn in which it is taken out of
/// service.
#[test]
fn jobs_on_their_way_to_an_engine_that_goes_out_of_service_go_to_the_next() {
    let first = SharedEngine::new(LateConfig { faults_per_million: 1_000_000, ..LateConfig::reliable(1) });
    let second = SharedEngine::new(LateConfig::reliable(2));
    let mut engines = first.before_portable();
    engines.insert(1, Box::new(second.clone()));
    let mut ends = Ends { a: gateway(Side::A, engines), ..Ends::keeping_some() };
    second.engine().keep_all(true);
    for turn in 0..150 {
        ends.send(0, turn * 2..turn * 2 + 2);
        ends.pass(STEP);
    }
    let withdrawals = ends.a.worker.take_withdrawals();
    assert_eq!(withdrawals, [late(second.in_flight())]);
    ends.pass_no_time();
    let (lost, delivered) = (second.in_flight(), ends.delivered());
    assert_eq!(delivered.len(), 300 - lost, "it gets nothing more, and what it did not get goes on");
    assert!(is_within(&delivered, 0..300));
    assert_eq!((ends.lost(), ends.a.worker.is_busy()), (lost as u64, false));
    ends.a.assert_settled();
}

/// With no engine left, packets end as faults; the worker does not wait for an engine.
#[test]
fn without_any_engine_left_packets_end_as_faults() {
    let engine = SharedEngine::new(LateConfig::reliable(1));
    let mut ends = Ends { a: gateway(Side::A, vec![Box::new(engine.clone())]), ..Ends::keeping_some() };
    engine.engine().keep_all(true);
    ends.send(0, 0..10);
    ends.pass(NOTICED);
    ends.send(0, 10..30);
    ends.pass_no_time();
    assert_eq!((ends.lost(), ends.a.worker.is_busy()), (30, false));
    ends.a.assert_settled();
}

/// Breaks its promises: claims to be synchronous but keeps jobs, gives back jobs that it was never given, and
/// some twice.
struct Liar {
    portable: PortableEngine,
    taken: Vec<Job>,
}

impl Engine for Liar {
    fn name(&self) -> &'static str {
        "liar"
    }

    fn description(&self) -> String {
        self.name().into()
    }

    fn capability(&self, suite: Suite) -> Option<Capability> {
        self.portable.capability(suite)
    }

    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        self.portable.install(key, direction)
    }

    fn remove(&mut self, key: KeyId) {
        self.portable.remove(key);
    }

    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        for job in jobs.iter_mut() {
            self.taken.push(job.take());
        }
        jobs.len() / 2
    }

    fn is_synchronous(&self) -> bool {
        true
    }

    fn poll(&mut self, done: &mut Vec<Job>, _: usize) {
        for job in self.taken.drain(..) {
            let buffer = testudo_packet::Buffer::copied(job.buffer.bytes(), 64, 64);
            done.push(Job { buffer, sa: job.sa ^ 1 << 8, status: JobStatus::Done, ..job });
        }
    }
}

#[test]
fn an_engine_that_breaks_its_promises_loses_packets_and_nothing_else() {
    let liar = Liar { portable: PortableEngine::new(), taken: Vec::new() };
    let engines: Vec<Box<dyn Engine>> = vec![Box::new(liar), Box::new(PortableEngine::new())];
    let mut ends = Ends { a: gateway(Side::A, engines), ..Ends::keeping_some() };
    ends.send(0, 0..100);
    ends.send(1, 0..100);
    ends.pass(NOTICED);
    assert_eq!((ends.lost(), ends.a.worker.is_busy()), (200, false));
    assert!(ends.a.unprotected.take().is_empty(), "nothing leaves that was not sealed");
    ends.send(0, 100..200);
    ends.pass_no_time();
    assert!(ends.delivered().into_iter().eq(100..200));
    assert_eq!(ends.withdrawn(), ["liar"]);
    ends.a.assert_settled();
}

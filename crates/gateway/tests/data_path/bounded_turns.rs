//! What a turn does at most where a device is late, refuses or is lost, and thousands of packets are the next
//! engine's at once, or may leave at once: the rest is for the next turns, in order, and none is lost.

use crate::support::gateway::PoolSize;
use crate::support::packet::{Inner, numbered};
use crate::support::{Gateway, LeaseTwin, Side, TunnelSpec};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use testudo_crypto::{
    Capability, Direction, Engine, EngineError, Job, JobStatus, KeyId, KeyMaterial, PortableEngine, Profile,
    Suite,
};
use testudo_gateway::SchedulerSettings;
use testudo_packet::DropReason;

/// Packets that a turn goes on with at most.
const MOST: usize = 1024;
/// Packets that come at once: several turns' worth.
const MANY: u32 = 6000;

#[derive(Default)]
struct State {
    portable: PortableEngine,
    held: Vec<Job>,
    keeps: bool,
    refuses: bool,
    fails: bool,
    /// So many come back with each poll at most, if that is limited.
    most: Option<usize>,
    /// Chunks that it says it works on.
    under_way: usize,
}

/// The portable engine as a device that keeps chunks until it is told otherwise. Clones share it.
#[derive(Clone, Default)]
struct Keeper(Arc<Mutex<State>>);

impl Keeper {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no test panics with the engine in its hands")
    }

    fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
    }
}

impl Engine for Keeper {
    fn name(&self) -> &'static str {
        "keeper"
    }
    fn description(&self) -> String {
        self.name().to_owned()
    }
    fn capability(&self, suite: Suite) -> Option<Capability> {
        self.state().portable.capability(suite)
    }
    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        self.state().portable.install(key, direction)
    }
    fn remove(&mut self, key: KeyId) {
        self.state().portable.remove(key);
    }
    fn profile(&self, _: Suite) -> Profile {
        Profile { under_way: self.state().under_way, ..Profile::of_depth(8192) }
    }
    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        let mut state = self.state();
        if state.refuses {
            return 0;
        }
        state.held.extend(jobs.iter_mut().map(Job::take));
        jobs.len()
    }
    fn poll(&mut self, done: &mut Vec<Job>, max: usize) {
        let state = &mut *self.state();
        if state.keeps {
            return;
        }
        let count = state.held.len().min(max).min(state.most.unwrap_or(max));
        let mut ended: Vec<Job> = state.held.drain(..count).collect();
        match state.fails {
            true => ended.iter_mut().for_each(|job| job.status = JobStatus::Fault),
            false => assert_eq!(state.portable.submit(&mut ended), count),
        }
        done.append(&mut ended);
    }
    fn in_flight(&self) -> usize {
        self.state().held.len()
    }
}

/// The portable engine, which counts what it does.
struct Counting(PortableEngine, Arc<AtomicUsize>);

impl Engine for Counting {
    fn name(&self) -> &'static str {
        "counting"
    }
    fn description(&self) -> String {
        self.name().to_owned()
    }
    fn capability(&self, suite: Suite) -> Option<Capability> {
        self.0.capability(suite)
    }
    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        self.0.install(key, direction)
    }
    fn remove(&mut self, key: KeyId) {
        self.0.remove(key);
    }
    fn is_synchronous(&self) -> bool {
        true
    }
    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        self.1.fetch_add(jobs.len(), Ordering::Relaxed);
        self.0.submit(jobs)
    }
}

/// A with the keeper before the engine that counts.
struct Ends {
    a: Gateway,
    keeper: Keeper,
    counted: Arc<AtomicUsize>,
    next: u32,
    /// Jobs that the engine behind it has done.
    done: usize,
    /// Numbers of the packets of each tunnel that have left.
    left: [Vec<u32>; 2],
}

impl Ends {
    /// With a device that keeps so many chunks.
    fn new(under_way: usize) -> Self {
        Self::with(under_way, 32_768, SchedulerSettings::default().latency)
    }

    /// The same with so many buffers, and this bound.
    fn with(under_way: usize, buffers: usize, latency: Duration) -> Self {
        let (keeper, counted) = (Keeper::default(), Arc::new(AtomicUsize::new(0)));
        keeper.set(|state| (state.under_way, state.keeps) = (under_way, true));
        let specs = [0, 1].map(|number| TunnelSpec::new(number, Suite::AES128GCM16));
        let policies = specs.iter().flat_map(|spec| spec.policies(Side::A)).collect();
        let next = Counting(PortableEngine::new(), Arc::clone(&counted));
        let engines: Vec<Box<dyn Engine>> = vec![Box::new(keeper.clone()), Box::new(next)];
        let mut a = Gateway::new(policies, PoolSize(buffers, 2048), engines);
        let shape = SchedulerSettings { chunk: 8192, bins: 64, tune: false, ..Default::default() };
        let settings = SchedulerSettings { latency, ..shape };
        a.worker.set_scheduler(&settings);
        let mut store = LeaseTwin::new(1 << 40);
        specs.iter().for_each(|spec| a.install(spec.install(Side::A, &mut store, None)));
        Self { a, keeper, counted, next: 0, done: 0, left: [Vec::new(), Vec::new()] }
    }

    /// So many packets of a tunnel come, in turns that take no time.
    fn send(&mut self, tunnel: u8, packets: u32) {
        for id in self.next..self.next + packets {
            let inner = Inner { total_bytes: 100, ..numbered(5, id, tunnel, true, 500) };
            self.a.protected.push(inner.bytes());
            if id % 200 == 0 {
                self.turn(Duration::ZERO);
            }
        }
        self.next += packets;
        for _ in 0..3 {
            self.turn(Duration::ZERO);
        }
    }

    /// A turn after this time. Returns how many jobs the next engine had of it, and how many packets left.
    fn turn(&mut self, after: Duration) -> (usize, usize) {
        self.a.clock.advance(after);
        self.a.turn();
        self.a.assert_books_balance();
        let sealed = self.a.unprotected.take();
        let first_spi = TunnelSpec::new(0, Suite::AES128GCM16).spi_from(Side::A);
        for one in &sealed {
            let field = |at: usize| u32::from_be_bytes(one[at..at + 4].try_into().expect("4 bytes"));
            let tunnel = usize::from(field(20) != first_spi);
            self.left[tunnel].push(field(24));
        }
        let jobs = self.counted.swap(0, Ordering::Relaxed);
        self.done += jobs;
        (jobs, sealed.len())
    }

    /// Turns without packets that come, until nothing is left: none does more than a turn may.
    fn run_out(&mut self) {
        let mut turns = 0;
        while self.a.worker.is_busy() {
            let (jobs, left) = self.turn(Duration::ZERO);
            assert!(jobs <= MOST, "{jobs} jobs in a turn");
            assert!(left <= 3 * MOST, "{left} packets left in a turn");
            turns += 1;
            assert!(turns < 100, "it does not end");
        }
    }

    /// The packets of each tunnel left in order, so many of them.
    fn finish(&self, packets: [u32; 2]) {
        for (left, packets) in self.left.iter().zip(packets) {
            assert!(left.iter().copied().eq(1..=packets), "{} of {packets}", left.len());
        }
        self.a.assert_settled();
    }
}

#[test]
fn what_has_waited_too_long_goes_on_in_many_turns() {
    let mut ends = Ends::new(1);
    ends.send(0, 1);
    ends.send(1, MANY);
    assert_eq!(ends.done, 0, "all of it waits");
    let (jobs, left) = ends.turn(Duration::from_millis(1));
    assert!((1..=MOST).contains(&jobs) && left == jobs, "{jobs} jobs, {left} packets");
    while ends.done < MANY as usize {
        let (jobs, left) = ends.turn(Duration::from_micros(10));
        assert!((1..=MOST).contains(&jobs) && left == jobs, "{jobs} jobs, {left} packets");
    }
    ends.keeper.state().keeps = false;
    ends.run_out();
    ends.finish([1, MANY]);
}

#[test]
fn a_chunk_that_is_refused_goes_on_in_many_turns() {
    let mut ends = Ends::new(1);
    ends.send(0, 1);
    ends.send(1, MANY);
    ends.keeper.set(|state| (state.keeps, state.refuses) = (false, true));
    ends.run_out();
    assert_eq!(ends.done, MANY as usize);
    ends.finish([1, MANY]);
}

/// What comes meanwhile waits in bins, and has none of what waits in queues go on sooner.
#[test]
fn no_more_goes_on_in_a_turn_while_packets_come() {
    let mut ends = Ends::new(1);
    ends.send(0, 1);
    ends.send(1, MANY);
    ends.keeper.set(|state| (state.keeps, state.refuses) = (false, true));
    for turn in 0..4 {
        for id in 0..200 {
            let inner = Inner { total_bytes: 100, ..numbered(5, turn * 200 + id, 0, true, 500) };
            ends.a.protected.push(inner.bytes());
        }
        let (jobs, _) = ends.turn(Duration::ZERO);
        assert!(jobs <= MOST, "{jobs} jobs in a turn");
    }
    assert!(ends.done < MANY as usize, "there was a queue in each of these turns");
    ends.run_out();
    ends.finish([801, MANY]);
}

#[test]
fn what_a_lost_device_gives_back_goes_on_in_many_turns() {
    let mut ends = Ends::new(64);
    ends.send(1, MANY);
    assert_eq!(ends.keeper.in_flight(), MANY as usize);
    ends.keeper.set(|state| (state.keeps, state.fails) = (false, true));
    ends.run_out();
    assert_eq!(ends.done, MANY as usize);
    ends.finish([0, MANY]);
}

/// The first packet of a tunnel comes back for which all others have waited.
#[test]
fn what_has_waited_for_a_late_packet_leaves_in_many_turns() {
    let mut ends = Ends::new(1);
    ends.send(0, MANY);
    ends.turn(Duration::from_millis(1));
    let first = ends.keeper.in_flight();
    while ends.done + first < MANY as usize {
        assert!(ends.turn(Duration::from_micros(10)).0 > 0, "the next engine has the others");
    }
    assert!(ends.left[0].is_empty());
    ends.keeper.state().keeps = false;
    let mut turns = 0;
    while ends.a.worker.is_busy() {
        let (jobs, left) = ends.turn(Duration::ZERO);
        assert_eq!(jobs, 0, "they are done");
        assert!((1..=first + MOST).contains(&left), "{left} packets left in a turn");
        turns += 1;
    }
    assert!(turns >= MANY as usize / (first + MOST), "{turns}");
    ends.finish([MANY, 0]);
}

/// It keeps all for good: the packets are lost, a turn's worth in each turn.
#[test]
fn what_an_engine_keeps_is_given_up_in_many_turns() {
    let mut ends = Ends::new(64);
    ends.send(1, MANY);
    let mut lost = 0;
    for _ in 0..30 {
        ends.turn(Duration::from_millis(70));
        let now = ends.a.drops(DropReason::EngineFault);
        assert!(now - lost <= MOST as u64, "{} in a turn", now - lost);
        lost = now;
    }
    let withdrawals = ends.a.worker.take_withdrawals();
    assert_eq!(withdrawals.iter().map(|one| one.packets).collect::<Vec<_>>(), [MANY as usize]);
    assert_eq!((lost, ends.a.worker.is_busy()), (u64::from(MANY), false));
    ends.keeper.state().keeps = false;
    for _ in 0..10 {
        ends.turn(Duration::from_millis(70));
    }
    ends.send(0, 10);
    ends.finish([10, 0]);
}

/// A device that is late in a pool of which it has the half and the rest waits for that, in turns of this
/// length: after so many it gives back 256 with each poll. None is lost.
fn a_late_device_in_a_crowded_pool(turn: Duration, kept_for: usize) {
    const BUFFERS: u32 = 8192;
    let mut ends = Ends::with(64, BUFFERS as usize, Duration::from_secs(10));
    // All that follow are taken just before a period of 62.5 ms ends.
    ends.send(0, 1);
    (0..Duration::from_millis(60).as_micros() / turn.as_micros()).for_each(|_| {
        ends.turn(turn);
    });
    ends.send(1, BUFFERS);
    assert!(ends.keeper.in_flight() > 4000, "it has the half");
    (0..kept_for).for_each(|_| assert!(ends.turn(turn).1 == 0, "all waits"));
    ends.keeper.set(|state| (state.keeps, state.fails, state.most) = (false, true, Some(256)));
    while ends.keeper.in_flight() > 0 {
        ends.turn(turn);
    }
    ends.run_out();
    assert_eq!(ends.a.drops(DropReason::EngineFault), 0);
    assert!(ends.a.worker.take_withdrawals().is_empty(), "it gives back what it has");
    ends.finish([1, BUFFERS]);
}

/// The next engine takes so long for what comes back that the time of a crowded pool is over meanwhile.
#[test]
fn what_a_device_gives_back_in_a_crowded_pool_is_not_lost_to_a_slow_next_engine() {
    a_late_device_in_a_crowded_pool(Duration::from_millis(5), 10);
}

/// The device is late for the engine after 40 ms, of which each look counts for 12.5: with the fourth.
#[test]
fn a_crowded_pool_with_long_turns_waits_for_what_a_late_device_gives_back() {
    a_late_device_in_a_crowded_pool(Duration::from_millis(35), 3);
}

//! Two devices behind a gateway as one engine, of which one is lost: the other has its whole chunks, and the
//! next engine none of them.

use super::scheduler::gateway;
use crate::support::packet::{number, numbered, tunnel_of};
use crate::support::{Gateway, Side};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use testudo_crypto::{
    Capability, Direction, Engine, EngineError, Job, JobStatus, KeyId, KeyMaterial, PortableEngine, Profile,
    Suite,
};
use testudo_engine_device_thread::DeviceThread;
use testudo_gateway::{Scheduled, SchedulerSettings};

/// Batches that a device has at a time.
const UNDER_WAY: usize = 2;
/// More than any machine needs; nothing is asserted about the time that passes.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Default)]
struct State {
    portable: PortableEngine,
    /// The batches of each device, the oldest first.
    devices: [VecDeque<Vec<Job>>; 2],
    second_is_lost: bool,
    /// The next key loses the second device.
    key_loses_one: bool,
    ended: Vec<Job>,
    /// Batches that have ended, or are lost.
    ended_batches: usize,
    /// Submissions of which nothing was taken.
    refusals: usize,
}

/// Twins: the portable engine as two devices that have batches until they are told to end them.
#[derive(Clone, Default)]
struct Twins(Arc<Mutex<State>>);

impl Twins {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no test panics with the engine in its hands")
    }

    /// The second device is lost: what it has ends as faults.
    fn lose_one(&self) {
        let mut state = self.state();
        state.second_is_lost = true;
        state.ended_batches += state.devices[1].len();
        let lost: Vec<_> = state.devices[1].drain(..).flatten().collect();
        state.ended.extend(lost.into_iter().map(|mut job| {
            job.status = JobStatus::Fault;
            job
        }));
    }

    /// The device with the most batches ends its oldest one.
    fn end_one(&self) {
        let mut state = self.state();
        let most = usize::from(state.devices[1].len() > state.devices[0].len());
        let Some(mut batch) = state.devices[most].pop_front() else { return };
        assert_eq!(state.portable.submit(&mut batch), batch.len());
        state.ended.append(&mut batch);
        state.ended_batches += 1;
    }

    fn batches(&self) -> usize {
        self.state().devices.iter().map(VecDeque::len).sum()
    }
}

impl Engine for Twins {
    fn name(&self) -> &'static str {
        "twins"
    }
    fn description(&self) -> String {
        self.name().to_owned()
    }
    fn capability(&self, suite: Suite) -> Option<Capability> {
        self.state().portable.capability(suite)
    }
    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        let mut state = self.state();
        state.second_is_lost |= state.key_loses_one;
        state.portable.install(key, direction)
    }
    fn remove(&mut self, key: KeyId) {
        self.state().portable.remove(key);
    }
    fn profile(&self, _: Suite) -> Profile {
        let state = self.state();
        let devices = if state.second_is_lost { 1 } else { 2 };
        Profile { under_way: UNDER_WAY * devices, ..Profile::of_depth(4096) }
    }
    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        let mut state = self.state();
        let in_service = if state.second_is_lost { 1 } else { 2 };
        let least = (0..in_service).min_by_key(|device| state.devices[*device].len()).unwrap_or(0);
        if state.devices[least].len() >= UNDER_WAY {
            state.refusals += 1;
            return 0;
        }
        let batch = jobs.iter_mut().map(Job::take).collect();
        state.devices[least].push_back(batch);
        jobs.len()
    }
    fn poll(&mut self, done: &mut Vec<Job>, max: usize) {
        let mut state = self.state();
        let count = state.ended.len().min(max);
        done.extend(state.ended.drain(..count));
    }
    fn in_flight(&self) -> usize {
        let state = self.state();
        state.ended.len() + state.devices.iter().flatten().map(Vec::len).sum::<usize>()
    }
}

/// A with both devices before the portable engine.
struct Ends {
    a: Gateway,
    b: Gateway,
    twins: Twins,
    sent: u32,
}

impl Ends {
    fn new() -> Self {
        let twins = Twins::default();
        Self::over(&twins, Box::new(twins.clone()))
    }

    /// With 16 jobs in a chunk of four bins, and a bound of a millisecond. `engine` drives the twins.
    fn over(twins: &Twins, engine: Box<dyn Engine>) -> Self {
        let settings = SchedulerSettings { chunk: 16, bins: 4, ..SchedulerSettings::default() };
        let portable = || -> Box<dyn Engine> { Box::new(PortableEngine::new()) };
        let a = gateway(Side::A, vec![engine, portable()], &settings);
        Self { a, b: gateway(Side::B, vec![portable()], &settings), twins: twins.clone(), sent: 0 }
    }

    fn send(&mut self, packets: u32) {
        self.send_through(0, packets);
    }

    fn send_through(&mut self, tunnel: u8, packets: u32) {
        for id in self.sent..self.sent + packets {
            self.a.protected.push(numbered(5, id, tunnel, true, 1300).bytes());
        }
        self.sent += packets;
    }

    fn turn(&mut self) {
        self.a.turn();
        self.a.assert_books_balance();
    }

    fn scheduled(&self) -> Scheduled {
        let counters = self.a.worker.counters();
        let (name, scheduled) = counters.scheduled().next().expect("one engine has bins");
        assert_eq!(name, "twins");
        scheduled
    }

    /// Chunks that the worker has given away and no device has ended.
    fn away(&self) -> usize {
        self.scheduled().chunks as usize - self.twins.state().ended_batches
    }

    /// Turns until something has come about.
    fn until(&mut self, what: impl Fn(&Self) -> bool) {
        let began = Instant::now();
        while !what(self) {
            self.turn();
            assert!(began.elapsed() < PATIENCE, "it does not come");
            std::thread::yield_now();
        }
    }

    /// Both devices have all that they take, and then there is only one.
    fn lose_one(&mut self) {
        while self.twins.batches() < 2 * UNDER_WAY {
            self.send(2);
            self.turn();
        }
        self.twins.lose_one();
        self.turn();
        assert_eq!(self.twins.batches(), UNDER_WAY);
    }

    /// More load than one device takes: each chunk waits until it has room, and grows.
    fn carry(&mut self) {
        for _ in 0..ROUNDS {
            self.send(2);
            self.turn();
            self.send(2);
            self.turn();
            self.twins.end_one();
            self.turn();
        }
    }

    /// The same on a device thread, which has two chunks now and takes more than the device has room for.
    fn carry_on_its_thread(&mut self) {
        for round in 0..ROUNDS {
            for _ in 0..2 {
                self.send(2);
                self.turn();
                assert!(self.away() <= UNDER_WAY, "round {round}: {} chunks", self.away());
            }
            self.twins.end_one();
            self.until(|ends| ends.twins.batches() == UNDER_WAY);
            assert!(self.away() <= UNDER_WAY, "round {round}: {} chunks", self.away());
        }
        let Scheduled { no_room, too_late, .. } = self.scheduled();
        assert_eq!((no_room, too_late), (0, 0));
    }

    /// Ends all, and shows that each packet came once and, by tunnel, in order.
    fn finish(&mut self) {
        self.until(|ends| {
            ends.twins.end_one();
            !ends.a.worker.is_busy()
        });
        let sealed = self.a.unprotected.take();
        let delivered: Vec<_> = sealed.into_iter().flat_map(|datagram| self.b.open(datagram)).collect();
        let of = |tunnel| delivered.iter().filter(move |packet| tunnel_of(packet, true) == tunnel);
        for tunnel in 0..2 {
            assert!(of(tunnel).map(|packet| number(packet, true)).is_sorted(), "tunnel {tunnel}");
        }
        let mut all: Vec<_> = delivered.iter().map(|packet| number(packet, true)).collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..self.sent), "each once");
        self.a.assert_settled();
    }
}

const ROUNDS: u32 = 50;

#[test]
fn a_lost_device_of_two_leaves_the_other_whole_chunks() {
    let mut ends = Ends::new();
    ends.lose_one();
    let before = ends.scheduled();
    ends.carry();
    let after = ends.scheduled();
    assert_eq!((after.no_room, after.too_late), (0, 0), "nothing goes to the next engine for want of room");
    let packets = after.packets - before.packets;
    assert!(packets > u64::from(ROUNDS) * 4 - 16, "{packets}");
    assert_eq!(ends.twins.state().refusals, 0, "it was asked before it got more");
    ends.finish();
}

/// No fault says that it is gone, but the first chunk that it does not take.
#[test]
fn a_device_of_two_that_is_lost_while_it_has_nothing_costs_one_chunk() {
    let mut ends = Ends::new();
    ends.twins.lose_one();
    ends.carry();
    assert_eq!(ends.twins.state().refusals, 1);
    let Scheduled { no_room, too_late, .. } = ends.scheduled();
    assert!(no_room <= 4 && too_late == 0, "{no_room} {too_late}");
    ends.finish();
}

/// An SA has come since the scheduler was made.
#[test]
fn a_device_of_two_that_is_lost_with_a_key_costs_no_chunk() {
    let twins = Twins::default();
    twins.state().key_loses_one = true;
    let mut ends = Ends::over(&twins, Box::new(twins.clone()));
    ends.carry();
    assert_eq!(ends.twins.state().refusals, 0);
    assert_eq!(ends.scheduled().no_room, 0);
    ends.finish();
}

/// Nothing is refused there: what the thread has too much of would wait beyond the bound.
#[test]
fn a_lost_device_of_two_on_a_device_thread_leaves_two_chunks_away_at_most() {
    let twins = Twins::default();
    let mut ends = Ends::over(&twins, Box::new(DeviceThread::over(Box::new(twins.clone()), None)));
    // The chunks of each device are those of a tunnel.
    for (chunk, tunnel) in (1..=2 * UNDER_WAY).zip([0, 1].into_iter().cycle()) {
        ends.send_through(tunnel, 2);
        ends.until(|ends| ends.twins.batches() == chunk);
    }
    ends.twins.lose_one();
    ends.until(|ends| ends.a.unprotected.departed() == 2 * UNDER_WAY);
    ends.carry_on_its_thread();
    ends.finish();
}

/// The thread gives it the key after the gateway has asked, and no job fails.
#[test]
fn a_device_of_two_that_is_lost_with_a_key_on_a_device_thread_is_known_with_the_next_tick() {
    let twins = Twins::default();
    let engine = Box::new(DeviceThread::over(Box::new(twins.clone()), None));
    let mut ends = {
        let mut state = twins.state();
        state.key_loses_one = true;
        Ends::over(&twins, engine)
    };
    // What comes back was given after all keys.
    ends.send(2);
    ends.until(|ends| ends.twins.batches() == 1);
    ends.twins.end_one();
    ends.until(|ends| ends.a.unprotected.departed() == 2);
    let now = ends.a.now();
    ends.a.worker.tick(now);
    ends.turn();
    for chunk in 1..=UNDER_WAY {
        ends.send(2);
        ends.until(|ends| ends.twins.batches() == chunk);
    }
    ends.carry_on_its_thread();
    ends.finish();
}

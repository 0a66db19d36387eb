//! How long a worker's ports and engine take, and other threads' engines, measured around each call.
//!
//! A worker adds up the ticks of a turn, and keeps them only if packets moved in it ([`Times::commit`]):
//! what it spends on looking for packets in vain is nobody's. Nothing is measured unless it is
//! [switched on](Times::set): reading the clock some ten times a turn slows small packets down.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, ThreadId};

use testudo_crypto::{
    Capability, Direction, Engine, EngineError, Job, KeyId, KeyMaterial, KeyPreparer, Offload, PreparedKey,
    Profile, Suite,
};
use testudo_packet::{Batch, Pool, Port, PortCounters, PortError, Region};

/// Reads a clock, in ticks.
pub(super) type Clock = fn() -> u64;

/// A counter that one thread alone writes.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, count: u64) {
        self.set(self.get().wrapping_add(count));
    }

    pub(super) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn take(&self) -> u64 {
        let value = self.get();
        self.set(0);
        value
    }
}

/// What a worker's parts take.
#[derive(Debug)]
pub(super) struct Times {
    clock: Clock,
    is_on: AtomicBool,
    /// Of the turn at hand: ticks in ports and in engines, and packets and jobs that moved.
    turn: [Counter; 3],
    /// Of all turns with packets: the same ticks, and those of the whole turns.
    ports: Counter,
    engines: Counter,
    turns: Counter,
    /// Ticks that jobs were in engines, summed over jobs that did not end in place.
    stay: Counter,
    /// The most buffers of a gateway that had packets at once.
    buffers: Counter,
}

/// What [`Times`] show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Spent {
    pub(super) ports: u64,
    pub(super) engines: u64,
    /// All of the turns.
    pub(super) turns: u64,
    pub(super) stay: u64,
}

impl Spent {
    /// What was added since `earlier`.
    pub(super) fn since(self, earlier: Spent) -> Spent {
        Spent {
            ports: self.ports - earlier.ports,
            engines: self.engines - earlier.engines,
            turns: self.turns - earlier.turns,
            stay: self.stay - earlier.stay,
        }
    }
}

impl Times {
    pub(super) fn new(clock: Clock) -> Arc<Self> {
        let [ports, engines, turns, stay, buffers] = [const { Counter(AtomicU64::new(0)) }; 5];
        Arc::new(Self {
            clock,
            is_on: AtomicBool::new(false),
            turn: Default::default(),
            ports,
            engines,
            turns,
            stay,
            buffers,
        })
    }

    /// Whether to measure, from the next turn on.
    pub(super) fn set(&self, is_on: bool) {
        self.is_on.store(is_on, Ordering::Release);
    }

    /// The time, if it is to be measured.
    #[inline]
    pub(super) fn begin(&self) -> Option<u64> {
        self.is_on.load(Ordering::Relaxed).then(self.clock)
    }

    /// Books the time since `begun` on a part, in which so many packets moved.
    fn book(&self, part: usize, begun: Option<u64>, moved: usize) {
        if let Some(begun) = begun {
            self.turn[part].add((self.clock)().wrapping_sub(begun));
            self.turn[2].add(moved as u64);
        }
    }

    /// Ends a turn that began at `begun`; whether packets moved in it.
    pub(super) fn commit(&self, begun: u64) -> bool {
        let [ports, engines, moved] = [0, 1, 2].map(|part| self.turn[part].take());
        if moved > 0 {
            self.ports.add(ports);
            self.engines.add(engines);
            self.turns.add((self.clock)().wrapping_sub(begun));
        }
        moved > 0
    }

    /// The most buffers of a gateway that were in use at once, just after packets were received.
    pub(super) fn buffers(&self) -> u64 {
        self.buffers.get()
    }

    pub(super) fn spent(&self) -> Spent {
        Spent {
            ports: self.ports.get(),
            engines: self.engines.get(),
            turns: self.turns.get(),
            stay: self.stay.get(),
        }
    }
}

/// Ticks that other threads were at work, all together.
#[derive(Debug)]
pub(super) struct Busy {
    clock: Clock,
    is_on: AtomicBool,
    ticks: AtomicU64,
    /// The worker's thread, whose share is measured elsewhere.
    worker: OnceLock<ThreadId>,
}

impl Busy {
    pub(super) fn new(clock: Clock) -> Arc<Self> {
        let (is_on, ticks, worker) = (AtomicBool::new(false), AtomicU64::new(0), OnceLock::new());
        Arc::new(Self { clock, is_on, ticks, worker })
    }

    /// Whether to measure.
    pub(super) fn set(&self, is_on: bool) {
        self.is_on.store(is_on, Ordering::Release);
    }

    /// This thread is the worker's.
    pub(super) fn is_worker(&self) {
        let _ = self.worker.set(thread::current().id());
    }

    pub(super) fn begin(&self) -> Option<u64> {
        let is_on = self.is_on.load(Ordering::Relaxed);
        (is_on && self.worker.get() != Some(&thread::current().id())).then(self.clock)
    }

    pub(super) fn end(&self, begun: Option<u64>) {
        if let Some(begun) = begun {
            self.ticks.fetch_add((self.clock)().wrapping_sub(begun), Ordering::Relaxed);
        }
    }

    pub(super) fn ticks(&self) -> u64 {
        self.ticks.load(Ordering::Relaxed)
    }
}

/// A worker's port, whose time is booked.
pub(super) struct TimedPort {
    port: Box<dyn Port>,
    times: Arc<Times>,
}

impl TimedPort {
    pub(super) fn around(port: Box<dyn Port>, times: &Arc<Times>) -> Box<dyn Port> {
        Box::new(Self { port, times: Arc::clone(times) })
    }
}

const PORTS: usize = 0;
const ENGINES: usize = 1;

/// The ports here have one interface, no chains and nothing that waits for a device.
impl Port for TimedPort {
    fn name(&self) -> &str {
        self.port.name()
    }

    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let begun = self.times.begin();
        let received = self.port.rx(pool, batch);
        self.times.book(PORTS, begun, *received.as_ref().unwrap_or(&0));
        if begun.is_some() {
            self.times.buffers.set(self.times.buffers.get().max(pool.in_use() as u64));
        }
        received
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let begun = self.times.begin();
        let sent = self.port.tx(pool, batch);
        self.times.book(PORTS, begun, *sent.as_ref().unwrap_or(&0));
        sent
    }

    fn joins(&self) -> bool {
        self.port.joins()
    }

    fn counters(&self) -> PortCounters {
        self.port.counters()
    }
}

/// Where an engine's time is booked.
#[derive(Debug, Clone)]
pub(super) enum Book {
    /// It is the worker's.
    Worker(Arc<Times>),
    /// It is another thread's.
    Thread(Arc<Busy>),
}

/// An engine whose time is booked.
pub(super) struct TimedEngine {
    engine: Box<dyn Engine>,
    book: Book,
    /// When the number of jobs in the engine changed last, if that was measured.
    changed: Option<u64>,
}

impl TimedEngine {
    pub(super) fn around(engine: Box<dyn Engine>, book: Book) -> Box<dyn Engine> {
        Box::new(Self { engine, book, changed: None })
    }

    /// Calls the engine, which moves as many jobs as `moved` says.
    fn call<T>(&mut self, call: impl FnOnce(&mut dyn Engine) -> T, moved: impl FnOnce(&T) -> usize) -> T {
        match &self.book {
            Book::Worker(times) => {
                let begun = times.begin();
                let before = self.engine.in_flight() as u64;
                let result = call(self.engine.as_mut());
                if let Some(now) = begun {
                    times.stay.add(before * now.wrapping_sub(self.changed.unwrap_or(now)));
                }
                self.changed = begun;
                times.book(ENGINES, begun, moved(&result));
                result
            }
            Book::Thread(busy) => {
                let begun = busy.begin();
                let result = call(self.engine.as_mut());
                busy.end(begun);
                result
            }
        }
    }
}

impl Engine for TimedEngine {
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

    fn use_memory(&mut self, region: &Region) {
        self.engine.use_memory(region);
    }

    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        self.call(|engine| engine.submit(jobs), |taken| *taken)
    }

    fn flush(&mut self) {
        self.call(|engine| engine.flush(), |()| 0);
    }

    fn profile(&self, suite: Suite) -> Profile {
        self.engine.profile(suite)
    }

    fn is_synchronous(&self) -> bool {
        self.engine.is_synchronous()
    }

    fn ends_some_at_once(&self) -> bool {
        self.engine.ends_some_at_once()
    }
    fn ends_next_at_once(&mut self, jobs: &[Job]) -> bool {
        self.engine.ends_next_at_once(jobs)
    }

    fn is_out_of_service(&self) -> bool {
        self.engine.is_out_of_service()
    }

    fn poll(&mut self, done: &mut Vec<Job>, max: usize) {
        let before = done.len();
        self.call(
            |engine| {
                engine.poll(done, max);
                done.len()
            },
            |after| after - before,
        );
    }

    fn offload(&mut self) -> Option<&mut dyn Offload> {
        self.engine.offload()
    }

    fn in_flight(&self) -> usize {
        self.engine.in_flight()
    }
}

#[cfg(test)]
mod tests;

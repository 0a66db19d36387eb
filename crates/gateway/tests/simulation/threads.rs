//! The simulations over gateways with threads beside their workers: a device thread, and a transmit thread.
//!
//! The threads run as they like, and so does when jobs and buffers come back. What the simulation decides by
//! its seed: lateness, order and faults of the engine, and how often the worker looks at it in vain.
//! Simulated time must not run ahead of threads that a busy machine does not let run: in all other turns the
//! worker waits for the engine to give something back, and a port that has nothing to receive waits until
//! all has left.
//!
//! Who drives the engine, and who sends, may change as well, as with the threading model `auto`: by the seed.

use crate::Scenario;
use crate::late::{deep, run_equipped, scenarios, scheduled};
use crate::late_engine::SharedEngine;
use crate::pair::Equipment;
use fastrand::Rng;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use testudo_crypto::{
    Capability, Direction, Engine, EngineError, Job, KeyId, KeyMaterial, PortableEngine, Profile, Suite,
};
use testudo_engine_device_thread::DeviceThread;
use testudo_engine_late::{LateConfig, Order};
use testudo_gateway::{PortPair, ThreadingModel, transmit_apart, transmit_by_choice};
use testudo_packet::{Aside, Batch, Pool, Port, PortCounters, PortError};
use testudo_port_memory::MemoryPort;

/// More than any machine needs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Yields until `what` is true.
pub fn await_that(mut what: impl FnMut() -> bool) {
    let began = Instant::now();
    while !what() {
        assert!(began.elapsed() < PATIENCE, "a thread or a device does not go on");
        std::thread::yield_now();
    }
}

/// Has another thread do its work, or the worker again, in one of sixteen calls.
struct Changing {
    aside: Arc<Aside>,
    random: Rng,
}

impl Changing {
    fn new(seed: u64) -> Self {
        Self { aside: Arc::default(), random: Rng::with_seed(seed) }
    }

    fn call(&mut self) {
        if self.random.usize(..16) == 0 {
            self.aside.want(!self.aside.is_wanted());
        }
    }
}

/// An engine on a device thread, for which the worker waits at most times.
struct Awaited {
    engine: DeviceThread,
    random: Rng,
    changing: Option<Changing>,
}

impl Engine for Awaited {
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
    fn remove(&mut self, key: KeyId) {
        self.engine.remove(key);
    }
    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        self.changing.iter_mut().for_each(Changing::call);
        self.engine.submit(jobs)
    }
    fn flush(&mut self) {
        self.engine.flush();
    }
    fn profile(&self, suite: Suite) -> Profile {
        self.engine.profile(suite)
    }
    fn poll(&mut self, done: &mut Vec<Job>, max: usize) {
        match self.random.usize(..4) {
            1.. if self.engine.in_flight() > 0 && max > 0 => {
                let before = done.len();
                self.engine.flush();
                await_that(|| {
                    self.engine.poll(done, max);
                    done.len() > before
                });
            }
            _ => self.engine.poll(done, max),
        }
    }
    fn in_flight(&self) -> usize {
        self.engine.in_flight()
    }
}

/// One of two ports at one device: one receives, the other sends. A failure of the device that meets the one
/// that sends is as if it took less: the worker would hear of it in another turn than the simulation expects.
struct Half {
    whole: Arc<Mutex<Box<dyn Port>>>,
    /// What this one has sent.
    sent: PortCounters,
}

impl Port for Half {
    fn name(&self) -> &'static str {
        "half"
    }
    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        self.whole.lock().expect("no panic").rx(pool, batch)
    }
    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let count = batch.len();
        let mut whole = self.whole.lock().expect("no panic");
        let before = whole.counters();
        let sent = whole.tx(pool, batch);
        let after = whole.counters();
        self.sent.tx_packets += after.tx_packets - before.tx_packets;
        self.sent.tx_bytes += after.tx_bytes - before.tx_bytes;
        self.sent.tx_calls += after.tx_calls - before.tx_calls;
        Ok(sent.unwrap_or_else(|_| count - batch.len()))
    }
    fn joins(&self) -> bool {
        false
    }
    fn counters(&self) -> PortCounters {
        let PortCounters { rx_packets, rx_bytes, rx_calls, .. } =
            self.whole.lock().expect("no panic").counters();
        PortCounters { rx_packets, rx_bytes, rx_calls, ..self.sent }
    }
}

/// A port with a transmit thread, which waits until all has left when nothing arrives.
struct Settling {
    port: Box<dyn Port>,
    handed_over: u64,
    changing: Option<Changing>,
}

impl Port for Settling {
    fn name(&self) -> &str {
        self.port.name()
    }
    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let received = self.port.rx(pool, batch)?;
        if received == 0 {
            await_that(|| {
                let nothing = self.port.tx(pool, &mut Batch::new());
                assert!(matches!(nothing, Ok(0)));
                self.port.counters().tx_packets == self.handed_over
            });
        }
        Ok(received)
    }
    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        self.changing.iter_mut().for_each(Changing::call);
        let sent = self.port.tx(pool, batch)?;
        self.handed_over += sent as u64;
        Ok(sent)
    }
    fn joins(&self) -> bool {
        self.port.joins()
    }
    fn counters(&self) -> PortCounters {
        self.port.counters()
    }
}

/// What a gateway of this model has, with an engine; or of one that changes between this and run to
/// completion.
pub fn equipment(
    (model, changes): (ThreadingModel, bool),
    engine: Box<dyn Engine>,
    seed: u64,
    port: Box<dyn Port>,
) -> Equipment {
    let [of_engine, of_port] = [seed ^ 1, seed ^ 2].map(|seed| changes.then(|| Changing::new(seed)));
    let engine = match &of_engine {
        Some(Changing { aside, .. }) => DeviceThread::by_choice(engine, None, Arc::clone(aside)),
        None => DeviceThread::over(engine, None),
    };
    let engine = Awaited { engine, random: Rng::with_seed(seed), changing: of_engine };
    let engines: Vec<Box<dyn Engine>> = vec![Box::new(engine), Box::new(PortableEngine::new())];
    if model != ThreadingModel::TwoIo {
        return Equipment { engines, port };
    }
    let whole = Arc::new(Mutex::new(port));
    let half = || Box::new(Half { whole: Arc::clone(&whole), sent: PortCounters::default() });
    // The other side's lane ends at once.
    let other = || Box::new(MemoryPort::with_handle("unused", 1).0);
    let [receives, sends] = [(), ()].map(|()| PortPair { protected: other(), unprotected: half() });
    let ports = match &of_port {
        Some(Changing { aside, .. }) => transmit_by_choice(receives, sends, Arc::clone(aside), || {}),
        None => transmit_apart(receives, sends, || {}),
    };
    let port = ports.expect("a thread").unprotected;
    Equipment { engines, port: Box::new(Settling { port, handed_over: 0, changing: of_port }) }
}

fn run(test: &str, all: Vec<Scenario>, config: impl Fn(u64) -> LateConfig, fails_midway: bool) {
    let [one, two] = [ThreadingModel::OneIo, ThreadingModel::TwoIo];
    for (model, changes) in [(one, false), (two, false), (two, true)] {
        println!("{model}{}", if changes { ", or none of them" } else { "" });
        // A killed process takes its threads along; here, what was handed to the transmit thread would still
        // leave, after the judge has written it off.
        let restarts = model == ThreadingModel::OneIo;
        let all = all.iter().map(|scenario| Scenario { restarts, ..scenario.clone() }).collect();
        let equip =
            |engine: SharedEngine, seed, port| equipment((model, changes), Box::new(engine), seed, port);
        run_equipped(test, all, &config, fails_midway, equip);
    }
}

/// Some of them: threads take their time.
fn some(scenarios: Vec<Scenario>) -> Vec<Scenario> {
    let shorter = |scenario: Scenario| Scenario { packets: 3_000, ..scenario };
    scenarios.into_iter().step_by(5).map(shorter).collect()
}

#[test]
fn a_late_engine_on_a_device_thread_loses_nothing_and_keeps_the_order() {
    run("a_late_engine_on_a_device_thread", some(scenarios()), LateConfig::reliable, false);
}

#[test]
fn an_unreliable_engine_on_a_device_thread_loses_nothing_and_keeps_the_order() {
    let config = |seed| LateConfig { queue_jobs: 20, order: Order::Any, ..LateConfig::unreliable(seed) };
    run("an_unreliable_engine_on_a_device_thread", some(scenarios()), config, false);
}

#[test]
fn a_deep_engine_on_a_device_thread_that_dies_midway_loses_nothing() {
    let config = |seed| deep(LateConfig::reliable(seed));
    run("a_deep_engine_on_a_device_thread_that_dies", some(scheduled()), config, true);
}

//! Engines of configured cost, on a clock that is set. What they seal goes out as it is and what they open
//! was never sealed: cryptography takes no time of that clock, and none of the machine's.

use std::collections::HashMap;
use std::time::Duration;

use testudo_crypto::{
    Capability, Cipher, Direction, Engine, EngineError, Integrity, Job, JobStatus, KeyId, KeyMaterial,
    PortableEngine, Profile, Suite,
};
use testudo_gateway::ManualClock;

use super::engine::Model;
use super::lanes::Geometry;

/// The name of the engine that stands for the processor's.
pub(super) const PROCESSOR: &str = "processor";

/// What a job costs, and each byte of its text on top.
#[derive(Debug, Clone, Copy)]
struct Price {
    job_ns: u64,
    byte_ps: u64,
}

impl Price {
    const NOTHING: Self = Self { job_ns: 0, byte_ps: 0 };

    fn of(self, text_bytes: u32) -> Duration {
        Duration::from_nanos(self.job_ns + self.byte_ps * u64::from(text_bytes) / 1000)
    }
}

/// What suites cost a core, about: good at AES-GCM, less at CBC with HMAC, bad at 3DES.
fn on_a_core(suite: Suite) -> Price {
    let (job_ns, byte_ps) = match (suite.cipher(), suite.integrity()) {
        (Cipher::TripleDesCbc, _) => (100, 8000),
        (Cipher::Null, _) => (80, 400),
        (Cipher::AesCbc(_), Integrity::None) => (80, 300),
        (Cipher::AesCbc(_) | Cipher::AesCtr(_), _) => (100, 700),
        _ => (30, 100),
    };
    Price { job_ns, byte_ps }
}

/// What it costs the worker to hand a job over to a device, and again to take it back: its copies.
const HANDING_OVER: Price = Price { job_ns: 60, byte_ps: 30 };

/// An engine that ends jobs inside `submit`, and moves the clock by what they cost.
pub(super) struct Priced {
    price: fn(Suite) -> Price,
    clock: ManualClock,
    /// It says what can be done.
    portable: PortableEngine,
    suites: HashMap<KeyId, Suite>,
    keys: u32,
}

impl Priced {
    fn new(price: fn(Suite) -> Price, clock: ManualClock) -> Self {
        Self { price, clock, portable: PortableEngine::new(), suites: HashMap::new(), keys: 0 }
    }

    /// Of the prices of a core.
    pub(super) fn core(clock: &ManualClock) -> Box<dyn Engine> {
        Box::new(Self::new(on_a_core, clock.clone()))
    }

    /// What takes no time.
    pub(super) fn free() -> Box<dyn Engine> {
        Box::new(Self::new(|_| Price::NOTHING, ManualClock::default()))
    }
}

impl Engine for Priced {
    fn name(&self) -> &'static str {
        PROCESSOR
    }

    fn description(&self) -> String {
        "a processor's core of configured cost; no cryptography".to_owned()
    }

    fn capability(&self, suite: Suite) -> Option<Capability> {
        Some(Capability { takes_chains: false, ..self.portable.capability(suite)? })
    }

    fn install(&mut self, key: &KeyMaterial, _: Direction) -> Result<KeyId, EngineError> {
        self.keys += 1;
        self.suites.insert(KeyId(self.keys), key.suite());
        Ok(KeyId(self.keys))
    }

    fn remove(&mut self, key: KeyId) {
        self.suites.remove(&key);
    }

    fn profile(&self, suite: Suite) -> Profile {
        let Price { job_ns, byte_ps } = (self.price)(suite);
        Profile { fixed_ns: job_ns, byte_ps, ..Profile::default() }
    }

    fn is_synchronous(&self) -> bool {
        true
    }

    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        let mut cost = Duration::ZERO;
        for job in &mut *jobs {
            job.status = match self.suites.get(&job.key) {
                Some(suite) => {
                    cost += (self.price)(*suite).of(job.text_bytes);
                    JobStatus::Done
                }
                None => JobStatus::Fault,
            };
        }
        self.clock.advance(cost);
        jobs.len()
    }
}

/// The model of a device, with what the worker spends for it.
pub(super) struct Device {
    inner: Model,
    clock: ManualClock,
}

impl Device {
    pub(super) fn boxed(clock: &ManualClock, geometry: Geometry) -> Box<dyn Engine> {
        let inner = Model::over(Priced::free(), clock.clone(), geometry);
        Box::new(Self { inner, clock: clock.clone() })
    }

    fn spend<'j>(&self, jobs: impl Iterator<Item = &'j Job>) {
        self.clock.advance(jobs.map(|job| HANDING_OVER.of(job.text_bytes)).sum());
    }
}

impl Engine for Device {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn description(&self) -> String {
        self.inner.description()
    }

    fn capability(&self, suite: Suite) -> Option<Capability> {
        self.inner.capability(suite)
    }

    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        self.inner.install(key, direction)
    }

    fn remove(&mut self, key: KeyId) {
        self.inner.remove(key);
    }

    fn profile(&self, suite: Suite) -> Profile {
        self.inner.profile(suite)
    }

    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        self.spend(jobs.iter());
        self.inner.submit(jobs)
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn poll(&mut self, done: &mut Vec<Job>, max: usize) {
        let before = done.len();
        self.inner.poll(done, max);
        self.spend(done.iter().skip(before));
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }
}

//! Engines that outlive the gateways that have them: a device takes seconds to be opened, and many rows are
//! measured with it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use testudo_crypto::{
    Capability, Direction, Engine, EngineError, Job, KeyId, KeyMaterial, Profile, Suite, Unwritten,
};

use crate::bench::engines::done;

/// How many jobs an engine has done.
#[derive(Debug, Clone, Default)]
pub(super) struct Done(Arc<AtomicU64>);

impl Done {
    /// Of all gateways so far.
    pub(super) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn add(&self, jobs: &[Job]) {
        self.0.fetch_add(done(jobs), Ordering::Relaxed);
    }
}

/// An engine that gateways have one after the other.
#[derive(Clone)]
pub(super) struct Owned {
    engine: Arc<Mutex<Box<dyn Engine>>>,
    /// Submissions that began with a packet whose headers were left to the engine.
    unwritten: Arc<AtomicU64>,
    /// Jobs that it has done for gateways.
    pub(super) done: Done,
}

impl Owned {
    pub(super) fn new(engine: Box<dyn Engine>) -> Self {
        Self { engine: Arc::new(Mutex::new(engine)), unwritten: Arc::default(), done: Done::default() }
    }

    /// For one gateway, until that ends. `writes_headers`: headers may be left to it, if it writes any.
    pub(super) fn lend(&self, writes_headers: bool) -> Box<dyn Engine> {
        Box::new(Lent { name: self.lock().name(), engine: self.clone(), keys: Vec::new(), writes_headers })
    }

    /// Whether headers may be left to it.
    pub(super) fn writes_headers(&self, suite: Suite) -> bool {
        self.lock().capability(suite).is_some_and(|capability| capability.writes_frames)
    }

    /// Whether headers were left to it since this was asked last.
    pub(super) fn take_unwritten(&self) -> bool {
        self.unwritten.swap(0, Ordering::Relaxed) > 0
    }

    /// One gateway has it at a time: nobody waits for this.
    pub(super) fn lock(&self) -> MutexGuard<'_, Box<dyn Engine>> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The engine of a gateway, whose keys go with it.
struct Lent {
    name: &'static str,
    engine: Owned,
    keys: Vec<KeyId>,
    writes_headers: bool,
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut engine = self.engine.lock();
        self.keys.drain(..).for_each(|key| engine.remove(key));
    }
}

impl Engine for Lent {
    fn name(&self) -> &'static str {
        self.name
    }

    fn description(&self) -> String {
        self.engine.lock().description()
    }

    fn capability(&self, suite: Suite) -> Option<Capability> {
        let capability = self.engine.lock().capability(suite)?;
        Some(Capability { writes_frames: capability.writes_frames && self.writes_headers, ..capability })
    }

    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        let id = self.engine.lock().install(key, direction)?;
        self.keys.push(id);
        Ok(id)
    }

    fn remove(&mut self, key: KeyId) {
        self.keys.retain(|known| *known != key);
        self.engine.lock().remove(key);
    }

    fn profile(&self, suite: Suite) -> Profile {
        self.engine.lock().profile(suite)
    }

    fn is_synchronous(&self) -> bool {
        self.engine.lock().is_synchronous()
    }

    fn is_out_of_service(&self) -> bool {
        self.engine.lock().is_out_of_service()
    }

    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        if self.writes_headers && jobs.first().is_some_and(|job| job.unwritten != Unwritten::NOTHING) {
            self.engine.unwritten.fetch_add(1, Ordering::Relaxed);
        }
        let taken = self.engine.lock().submit(jobs);
        self.engine.done.add(jobs.get(..taken).unwrap_or_default());
        taken
    }

    fn flush(&mut self) {
        self.engine.lock().flush();
    }

    fn poll(&mut self, done: &mut Vec<Job>, max: usize) {
        let before = done.len();
        self.engine.lock().poll(done, max);
        self.engine.done.add(done.get(before..).unwrap_or_default());
    }

    fn in_flight(&self) -> usize {
        self.engine.lock().in_flight()
    }
}

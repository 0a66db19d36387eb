//! Engines that outlive the gateways that have them: a device takes seconds to be opened, and many rows are
//! measured with it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use testudo_crypto::{Capability, Direction, Engine, EngineError, Job, KeyId, KeyMaterial, Profile, Suite};

/// An engine that gateways have one after the other.
#[derive(Clone)]
pub(super) struct Owned(Arc<Mutex<Box<dyn Engine>>>);

impl Owned {
    pub(super) fn new(engine: Box<dyn Engine>) -> Self {
        Self(Arc::new(Mutex::new(engine)))
    }

    /// For one gateway, until that ends.
    pub(super) fn lend(&self) -> Box<dyn Engine> {
        Box::new(Lent { name: self.lock().name(), engine: self.clone(), keys: Vec::new() })
    }

    /// One gateway has it at a time: nobody waits for this.
    pub(super) fn lock(&self) -> MutexGuard<'_, Box<dyn Engine>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The engine of a gateway, whose keys go with it.
struct Lent {
    name: &'static str,
    engine: Owned,
    keys: Vec<KeyId>,
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
        self.engine.lock().capability(suite)
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

    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        self.engine.lock().submit(jobs)
    }

    fn flush(&mut self) {
        self.engine.lock().flush();
    }

    fn poll(&mut self, done: &mut Vec<Job>, max: usize) {
        self.engine.lock().poll(done, max);
    }

    fn in_flight(&self) -> usize {
        self.engine.lock().in_flight()
    }
}

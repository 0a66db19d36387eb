//! A late engine that a test controls while a gateway uses it. (Not in `mod.rs`, which the fuzzers share:
//! they have no late engine.)

#![allow(dead_code, reason = "each test target uses its own part of this")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use testudo_crypto::{
    Capability, Direction, Engine, EngineError, Job, KeyId, KeyMaterial, PortableEngine, Profile, Suite,
};
use testudo_engine_late::{LateConfig, LateEngine};

/// A late engine; clones share it.
#[derive(Clone)]
pub struct SharedEngine {
    engine: Arc<Mutex<LateEngine>>,
    /// If set, the only suite whose keys it takes.
    only: Option<Suite>,
    installed: Arc<AtomicUsize>,
}

impl SharedEngine {
    pub fn new(config: LateConfig) -> Self {
        let engine = LateEngine::new(Box::new(PortableEngine::new()), config);
        Self { engine: Arc::new(Mutex::new(engine)), only: None, installed: Arc::default() }
    }

    /// An engine that takes keys of this suite only.
    pub fn only_for(suite: Suite, config: LateConfig) -> Self {
        Self { only: Some(suite), ..Self::new(config) }
    }

    pub fn engine(&self) -> MutexGuard<'_, LateEngine> {
        self.engine.lock().expect("no test panics with the engine in its hands")
    }

    /// How many keys have been installed.
    pub fn installed(&self) -> usize {
        self.installed.load(Ordering::Relaxed)
    }

    /// This engine, with the portable one as the fallback.
    pub fn before_portable(&self) -> Vec<Box<dyn Engine>> {
        vec![Box::new(self.clone()), Box::new(PortableEngine::new())]
    }
}

impl Engine for SharedEngine {
    fn name(&self) -> &'static str {
        self.engine().name()
    }

    fn description(&self) -> String {
        self.engine().description()
    }

    fn capability(&self, suite: Suite) -> Option<Capability> {
        self.engine().capability(suite).filter(|_| self.only.is_none_or(|only| only == suite))
    }

    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        if self.capability(key.suite()).is_none() {
            return Err(EngineError::Unsupported { engine: self.name(), suite: key.suite() });
        }
        self.installed.fetch_add(1, Ordering::Relaxed);
        self.engine().install(key, direction)
    }

    fn remove(&mut self, key: KeyId) {
        self.engine().remove(key);
    }

    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        self.engine().submit(jobs)
    }

    fn flush(&mut self) {
        self.engine().flush();
    }

    fn profile(&self, suite: Suite) -> Profile {
        self.engine().profile(suite)
    }

    fn poll(&mut self, done: &mut Vec<Job>, max: usize) {
        self.engine().poll(done, max);
    }

    fn in_flight(&self) -> usize {
        self.engine().in_flight()
    }
}

//! Which engines an SA's jobs may go to, in order.

use std::fmt;
use std::sync::Arc;
use testudo_crypto::{
    Direction, Engine, EngineError, Job, KeyId, KeyMaterial, KeyPreparer, PreparedKey, Suite,
};

/// The most engines in a placement.
pub const MAX_ENGINES: usize = 4;

/// A key to be placed, expanded already for those engines that can have that done elsewhere.
pub struct PlacedKey {
    material: KeyMaterial,
    prepared: [Option<PreparedKey>; MAX_ENGINES],
}

/// A key that each engine expands itself.
impl From<KeyMaterial> for PlacedKey {
    fn from(material: KeyMaterial) -> Self {
        Self { material, prepared: Default::default() }
    }
}

impl PlacedKey {
    pub(crate) fn suite(&self) -> Suite {
        self.material.suite()
    }
}

impl fmt::Debug for PlacedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.material, f)
    }
}

/// Expands keys for a worker's engines, on any thread.
#[derive(Clone, Default)]
pub struct KeyPreparers(Vec<Option<Arc<dyn KeyPreparer>>>);

impl KeyPreparers {
    /// Expands a key for the engines that can have that done. What an engine refuses, it is asked for again
    /// when the key is placed, and then says why.
    #[must_use]
    pub fn prepare(&self, material: KeyMaterial, direction: Direction) -> PlacedKey {
        let mut prepared: [Option<PreparedKey>; MAX_ENGINES] = Default::default();
        for (slot, preparer) in prepared.iter_mut().zip(&self.0) {
            *slot = preparer.as_ref().and_then(|preparer| preparer.prepare(&material, direction).ok());
        }
        PlacedKey { material, prepared }
    }
}

impl fmt::Debug for KeyPreparers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeyPreparers").field(&self.0.len()).finish()
    }
}

/// An SA's key could not be placed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// No engine of the placement took the key; this is the last one's error.
    #[error("no engine takes the key: {0}")]
    NoEngine(EngineError),
    /// There are no engines at all.
    #[error("there is no engine")]
    Empty,
}

/// The ids of one SA's key in the engines that took it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SaKeys([Option<KeyId>; MAX_ENGINES]);

/// Engines in the order in which they are tried. The last one does every suite.
pub(crate) struct Placement {
    engines: Vec<Box<dyn Engine>>,
    /// Engines that were taken out of service.
    withdrawn: [bool; MAX_ENGINES],
}

impl Placement {
    /// Beyond [`MAX_ENGINES`] some are cut, but never the last one, which does every suite.
    pub(crate) fn new(mut engines: Vec<Box<dyn Engine>>) -> Self {
        if engines.len() > MAX_ENGINES {
            engines.drain(MAX_ENGINES - 1..engines.len() - 1);
        }
        Self { engines, withdrawn: [false; MAX_ENGINES] }
    }

    /// Takes an engine out of service for good: it gets neither jobs nor keys any more.
    pub(crate) fn withdraw(&mut self, engine: usize) {
        if let Some(withdrawn) = self.withdrawn.get_mut(engine) {
            *withdrawn = true;
        }
    }

    pub(crate) fn is_withdrawn(&self, engine: usize) -> bool {
        self.withdrawn.get(engine).is_some_and(|withdrawn| *withdrawn)
    }

    pub(crate) fn name(&self, engine: usize) -> &'static str {
        self.engines.get(engine).map_or("", |e| e.name())
    }

    pub(crate) fn names(&self) -> Vec<&'static str> {
        self.engines.iter().map(|e| e.name()).collect()
    }

    /// What expands keys for these engines.
    pub(crate) fn preparers(&self) -> KeyPreparers {
        KeyPreparers(self.engines.iter().map(|engine| engine.preparer()).collect())
    }

    /// Gives a key to every engine in service that accepts it.
    pub(crate) fn install(&mut self, key: PlacedKey, direction: Direction) -> Result<SaKeys, PlacementError> {
        let PlacedKey { material, prepared } = key;
        let mut keys = SaKeys::default();
        let mut last = PlacementError::Empty;
        let in_service = keys.0.iter_mut().zip(&mut self.engines).zip(prepared).zip(self.withdrawn);
        for (((slot, engine), prepared), _) in in_service.filter(|(_, gone)| !gone) {
            let installed = match prepared {
                Some(key) => engine.link(key),
                None => engine.install(&material, direction),
            };
            match installed {
                Ok(id) => *slot = Some(id),
                Err(e) => last = PlacementError::NoEngine(e),
            }
        }
        if keys.0.iter().all(Option::is_none) { Err(last) } else { Ok(keys) }
    }

    pub(crate) fn remove(&mut self, keys: &SaKeys) {
        for (key, engine) in keys.0.iter().zip(&mut self.engines) {
            if let Some(key) = key {
                engine.remove(*key);
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.engines.len()
    }

    pub(crate) fn submit(&mut self, engine: usize, jobs: &mut [Job]) -> usize {
        self.engines.get_mut(engine).map_or(0, |e| e.submit(jobs).min(jobs.len()))
    }

    pub(crate) fn prefers_bursts(&self, engine: usize, suite: Suite) -> bool {
        self.engines.get(engine).is_some_and(|e| e.preferred_burst(suite) > 1)
    }

    pub(crate) fn is_synchronous(&self, engine: usize) -> bool {
        self.engines.get(engine).is_some_and(|e| e.is_synchronous())
    }

    /// Whether all engines in service complete their jobs inside `submit`.
    pub(crate) fn all_synchronous(&self) -> bool {
        self.engines.iter().zip(self.withdrawn).all(|(e, withdrawn)| withdrawn || e.is_synchronous())
    }

    pub(crate) fn poll(&mut self, engine: usize, done: &mut Vec<Job>, max: usize) {
        if let Some(engine) = self.engines.get_mut(engine) {
            engine.poll(done, max);
        }
    }

    /// The first engine in service, from `from` on, that has the key, and the key's id there.
    pub(crate) fn next_engine(&self, keys: &SaKeys, from: usize) -> Option<(usize, KeyId)> {
        let in_service =
            keys.0.iter().enumerate().skip(from).filter(|(engine, _)| !self.is_withdrawn(*engine));
        in_service
            .filter(|(engine, _)| *engine < self.engines.len())
            .find_map(|(engine, key)| Some((engine, (*key)?)))
    }
}

//! What stands in for the engine on other processors.

use crate::NAME;
use testudo_crypto::{Capability, Direction, Engine, EngineError, Job, KeyId, KeyMaterial, Suite};

/// The VAES engine, which this machine cannot have.
pub enum VaesEngine {}

impl VaesEngine {
    /// Always fails.
    ///
    /// # Errors
    /// [`EngineError::Unavailable`].
    pub fn open() -> Result<Self, EngineError> {
        let reason = "VAES exists on x86-64 only; use the portable engine".to_owned();
        Err(EngineError::Unavailable { engine: NAME, reason })
    }
}

impl Engine for VaesEngine {
    fn name(&self) -> &'static str {
        match *self {}
    }

    fn description(&self) -> String {
        match *self {}
    }

    fn capability(&self, _suite: Suite) -> Option<Capability> {
        match *self {}
    }

    fn install(&mut self, _key: &KeyMaterial, _direction: Direction) -> Result<KeyId, EngineError> {
        match *self {}
    }

    fn remove(&mut self, _key: KeyId) {
        match *self {}
    }

    fn submit(&mut self, _jobs: &mut [Job]) -> usize {
        match *self {}
    }
}

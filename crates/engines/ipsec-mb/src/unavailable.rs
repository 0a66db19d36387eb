//! What stands in for the engine where the library does not exist.

use crate::NAME;
use std::path::Path;
use testudo_crypto::{Capability, Direction, Engine, EngineError, Job, KeyId, KeyMaterial, Suite};

/// The intel-ipsec-mb engine, which this machine cannot have.
pub enum IpsecMbEngine {}

impl IpsecMbEngine {
    /// Always fails.
    ///
    /// # Errors
    /// [`EngineError::Unavailable`].
    pub fn open() -> Result<Self, EngineError> {
        let reason = "intel-ipsec-mb exists for x86-64 Linux only; use the portable engine".to_owned();
        Err(EngineError::Unavailable { engine: NAME, reason })
    }

    /// Always fails.
    ///
    /// # Errors
    /// [`EngineError::Unavailable`].
    pub fn open_at(_path: &Path) -> Result<Self, EngineError> {
        Self::open()
    }
}

impl Engine for IpsecMbEngine {
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

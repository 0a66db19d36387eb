//! The stand-in for an engine that does not exist for this processor or system.

use crate::{Capability, Direction, Engine, EngineError, Job, KeyId, KeyMaterial, Suite};
use std::convert::Infallible;
use std::marker::PhantomData;
use std::path::Path;

/// Which engine is absent, and why.
pub trait Reason {
    /// The engine's name.
    const ENGINE: &'static str;
    /// Where it exists, and what to do where it does not.
    const REASON: &'static str;
}

/// An engine that can be named but never opened, for crates whose engine needs another processor.
pub struct Absent<R>(Infallible, PhantomData<R>);

impl<R: Reason> Absent<R> {
    /// Always fails.
    ///
    /// # Errors
    /// [`EngineError::Unavailable`].
    pub fn open() -> Result<Self, EngineError> {
        Err(EngineError::Unavailable { engine: R::ENGINE, reason: R::REASON.to_owned() })
    }

    /// Always fails.
    ///
    /// # Errors
    /// [`EngineError::Unavailable`].
    pub fn open_at(_library: &Path) -> Result<Self, EngineError> {
        Self::open()
    }
}

impl<R: Send> Engine for Absent<R> {
    fn name(&self) -> &'static str {
        match self.0 {}
    }

    fn description(&self) -> String {
        match self.0 {}
    }

    fn capability(&self, _suite: Suite) -> Option<Capability> {
        match self.0 {}
    }

    fn install(&mut self, _key: &KeyMaterial, _direction: Direction) -> Result<KeyId, EngineError> {
        match self.0 {}
    }

    fn remove(&mut self, _key: KeyId) {
        match self.0 {}
    }

    fn submit(&mut self, _jobs: &mut [Job]) -> usize {
        match self.0 {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_engine_says_what_to_do_instead() {
        enum Elsewhere {}
        impl Reason for Elsewhere {
            const ENGINE: &'static str = "elsewhere";
            const REASON: &'static str = "it exists elsewhere only; use the portable engine";
        }
        let refusals = [Absent::<Elsewhere>::open(), Absent::open_at("library.so".as_ref())];
        for refusal in refusals.map(|refused| refused.err().unwrap().to_string()) {
            assert!(
                refusal.contains("elsewhere") && refusal.contains("use the portable engine"),
                "{refusal}"
            );
        }
    }
}

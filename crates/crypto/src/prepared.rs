//! Keys that are expanded where no packet waits.
//!
//! ```text
//!   control thread                              worker
//!   KeyPreparer::prepare(key) ──► PreparedKey ──► Engine::link ──► KeyId
//! ```
//!
//! To expand a key takes as long as some packets (AES-GCM makes a table of powers of its hash key). An
//! engine that can have others do that gives out a [`KeyPreparer`].

use crate::{Direction, EngineError, KeyMaterial};
use std::any::Any;
use std::fmt;

/// Expands keys for one engine, on any thread.
pub trait KeyPreparer: Send + Sync {
    /// The key in the form that the engine computes with.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`] or [`EngineError::KeyRefused`], as
    /// [`Engine::install`](crate::Engine::install).
    fn prepare(&self, key: &KeyMaterial, direction: Direction) -> Result<PreparedKey, EngineError>;
}

/// A key in the form of one kind of engine. Zeroed when dropped, as that engine zeroes its keys.
pub struct PreparedKey(Box<dyn Any + Send>);

impl PreparedKey {
    /// A key in an engine's own form.
    #[must_use]
    pub fn new<K: Send + 'static>(key: K) -> Self {
        Self(Box::new(key))
    }

    /// The key, if it has this form.
    ///
    /// # Errors
    /// [`EngineError::KeyRefused`] in the name of `engine`: it was prepared for another one.
    pub fn into_form<K: 'static>(self, engine: &'static str) -> Result<K, EngineError> {
        let own = self.0.downcast::<K>().map(|key| *key);
        own.map_err(|_| {
            let reason = "it was prepared for another engine".to_owned();
            EngineError::KeyRefused { engine, reason }
        })
    }
}

impl fmt::Debug for PreparedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PreparedKey(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Engine, PortableEngine, Suite};
    use zeroize::Zeroizing;

    #[test]
    fn a_key_that_was_prepared_for_another_engine_is_refused_and_not_shown() {
        let mut engine = PortableEngine::new();
        let foreign = PreparedKey::new([7_u8; 32]);
        assert_eq!(format!("{foreign:?}"), "PreparedKey(hidden)");
        assert!(matches!(engine.link(foreign), Err(EngineError::KeyRefused { engine: "portable", .. })));
        let suite = Suite::AES128GCM16;
        let bytes = Zeroizing::new(vec![7; suite.keying_material_bytes()]);
        let key = KeyMaterial::new(suite, bytes).unwrap();
        let own = engine.preparer().unwrap().prepare(&key, Direction::Seal).unwrap();
        assert!(engine.link(own).is_ok());
    }
}

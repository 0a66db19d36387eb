//! Keys on their way to an engine on another thread.

use std::collections::HashMap;
use std::sync::Arc;
use testudo_crypto::{Direction, Engine, EngineError, KeyId, KeyMaterial, KeyPreparer, PreparedKey, Suite};

/// A key for the inner engine.
pub(crate) enum NewKey {
    Material(Box<KeyMaterial>, Direction),
    Prepared(PreparedKey),
}

/// What the inner engine is to do about a key, by its id here.
pub(crate) enum KeyChange {
    Install(KeyId, NewKey),
    Remove(KeyId),
}

/// The inner engine's ids of keys, by the ids that the worker knows.
#[derive(Default)]
pub(crate) struct Ids(HashMap<KeyId, KeyId>);

impl Ids {
    /// Has an engine follow a change. A key that it refuses has no id, so that jobs under it end as faults;
    /// the worker's is returned.
    pub(crate) fn follow(&mut self, change: KeyChange, engine: &mut dyn Engine) -> Option<KeyId> {
        let (id, installed) = match change {
            KeyChange::Install(id, NewKey::Material(material, direction)) => {
                (id, engine.install(&material, direction))
            }
            KeyChange::Install(id, NewKey::Prepared(key)) => (id, engine.link(key)),
            KeyChange::Remove(id) => {
                self.0.remove(&id).into_iter().for_each(|inner| engine.remove(inner));
                return None;
            }
        };
        match installed {
            Ok(inner) => {
                self.0.insert(id, inner);
                None
            }
            Err(error) => {
                tracing::warn!("{error}: packets under this key go to the next engine");
                Some(id)
            }
        }
    }

    /// The inner engine's id; that of no key if it has none.
    #[inline]
    pub(crate) fn of(&self, id: KeyId) -> KeyId {
        self.0.get(&id).copied().unwrap_or(KeyId::NONE)
    }
}

/// A key that was expanded for the inner engine.
pub(crate) struct Prepared {
    pub(crate) suite: Suite,
    pub(crate) key: PreparedKey,
}

/// Expands keys as the inner engine has it done.
pub(crate) struct Preparer(pub(crate) Arc<dyn KeyPreparer>);

impl KeyPreparer for Preparer {
    fn prepare(&self, key: &KeyMaterial, direction: Direction) -> Result<PreparedKey, EngineError> {
        let prepared = self.0.prepare(key, direction)?;
        Ok(PreparedKey::new(Prepared { suite: key.suite(), key: prepared }))
    }
}

//! Keys that are expanded for all threads by a control thread.

use crate::engines::{Engines, NewKey};
use std::sync::Arc;
use testudo_crypto::{Direction, EngineError, KeyMaterial, KeyPreparer, PreparedKey, Suite};

/// A key, once for the worker and once for each thread.
pub(crate) struct Copies(pub(crate) Vec<NewKey>);

/// An engine's suites, and what expands keys for it.
type Known = (Vec<Suite>, Option<Arc<dyn KeyPreparer>>);

/// Expands keys for the engine that will hold them: the first that does their suite.
pub(crate) struct Preparer {
    engines: Vec<Known>,
    copies: usize,
}

impl Preparer {
    /// For engines like these, of so many threads.
    pub(crate) fn new(engines: &Engines, copies: usize) -> Self {
        let mut known: Vec<Known> = Vec::new();
        while let Some(engine) = engines.get(known.len()) {
            let suites = Suite::every().filter(|suite| engine.capability(*suite).is_some()).collect();
            known.push((suites, engine.preparer()));
        }
        Self { engines: known, copies }
    }
}

impl KeyPreparer for Preparer {
    fn prepare(&self, key: &KeyMaterial, direction: Direction) -> Result<PreparedKey, EngineError> {
        let mut engines = self.engines.iter().enumerate();
        let first = engines.find(|(_, (suites, _))| suites.contains(&key.suite()));
        let preparer = first.and_then(|(engine, (_, preparer))| Some((engine, preparer.as_ref()?)));
        let copy = |_| match preparer {
            Some((engine, preparer)) => {
                Ok(NewKey::Prepared(engine, key.suite(), preparer.prepare(key, direction)?))
            }
            // An engine that cannot have it done elsewhere expands it itself, in each thread.
            None => Ok(NewKey::Material(Box::new(key.clone()), direction)),
        };
        (0..self.copies).map(copy).collect::<Result<_, _>>().map(|keys| PreparedKey::new(Copies(keys)))
    }
}

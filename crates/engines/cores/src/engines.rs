//! The engines of one thread, and the keys in them.
//!
//! Each thread, and the worker for its own share, has engines of the same kinds in the same order, and a
//! table of keys. Tables that are changed in the same order give the same ids, so that a job's key has one
//! name everywhere.

use crate::NAME;
use crate::cost::rank;
use std::ops::Range;
use testudo_crypto::{
    Capability, Direction, Engine, EngineError, Job, JobStatus, KeyId, KeyMaterial, KeyTable, PreparedKey,
    Profile, Suite,
};
use testudo_packet::Region;

/// Where a key is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    /// Index of the engine.
    engine: usize,
    /// The key's id there.
    key: KeyId,
    /// Its suite, by its [rank].
    rank: usize,
}

/// A key on its way to a thread.
pub(crate) enum NewKey {
    /// To be expanded by the engine.
    Material(Box<KeyMaterial>, Direction),
    /// Expanded for the engine with this index.
    Prepared(usize, Suite, PreparedKey),
}

/// A change of keys.
pub(crate) enum KeyChange {
    /// The worker has this key under this id.
    Install(KeyId, NewKey),
    Remove(KeyId),
}

/// Engines in the order in which they are asked whether they do a suite.
pub(crate) struct Engines {
    engines: Vec<Box<dyn Engine>>,
    /// `None` stands for a key that no engine took.
    keys: KeyTable<Option<Place>>,
}

impl Engines {
    /// Engines that end jobs inside `submit`, of which there must be at least one.
    ///
    /// # Errors
    /// [`EngineError::Unavailable`]
    pub(crate) fn new(engines: Vec<Box<dyn Engine>>) -> Result<Self, EngineError> {
        let late = engines.iter().find(|engine| !engine.is_synchronous()).map(|engine| engine.name());
        let reason = match (late, engines.is_empty()) {
            (Some(late), _) => format!("{late} ends jobs later, and no thread can wait for that"),
            (None, true) => "its threads have no engine: `engines` in [engine.cores] names them".to_owned(),
            (None, false) => return Ok(Self { engines, keys: KeyTable::new(KeyTable::<()>::MAX_KEYS) }),
        };
        Err(EngineError::Unavailable { engine: NAME, reason })
    }

    /// The engines by name, for people.
    pub(crate) fn description(&self) -> String {
        let each: Vec<String> =
            self.engines.iter().map(|e| format!("{} ({})", e.name(), e.description())).collect();
        each.join(", then ")
    }

    /// The first engine that does a suite, where the suite's keys go, and what it can do.
    fn first_of(&self, suite: Suite) -> Option<(usize, Capability)> {
        let mut all = self.engines.iter().map(|engine| engine.capability(suite)).enumerate();
        all.find_map(|(at, capability)| Some((at, capability?)))
    }

    pub(crate) fn capability(&self, suite: Suite) -> Option<Capability> {
        self.first_of(suite).map(|(_, capability)| capability)
    }

    pub(crate) fn get(&self, engine: usize) -> Option<&dyn Engine> {
        self.engines.get(engine).map(|engine| &**engine)
    }

    pub(crate) fn profile(&self, suite: Suite) -> Profile {
        self.first_of(suite)
            .and_then(|(at, _)| self.get(at))
            .map_or_else(Profile::default, |engine| engine.profile(suite))
    }

    pub(crate) fn use_memory(&mut self, region: &Region) {
        self.engines.iter_mut().for_each(|engine| engine.use_memory(region));
    }

    /// Gives a key to the first engine that does its suite.
    ///
    /// # Errors
    /// That engine's. It is not given to another one: the gateway has its own order of engines for that.
    pub(crate) fn install(&mut self, key: NewKey) -> Result<KeyId, EngineError> {
        self.keys.check_room(NAME)?;
        let place = self.place(key)?;
        self.keys.insert(NAME, Some(place))
    }

    fn place(&mut self, key: NewKey) -> Result<Place, EngineError> {
        match key {
            NewKey::Prepared(at, suite, key) => {
                let refused = || EngineError::KeyRefused {
                    engine: NAME,
                    reason: "it was prepared for an engine that no thread has".to_owned(),
                };
                let key = self.engines.get_mut(at).ok_or_else(refused)?.link(key)?;
                Ok(Place { engine: at, key, rank: rank(suite) })
            }
            NewKey::Material(key, direction) => {
                let suite = key.suite();
                let unsupported = || EngineError::Unsupported { engine: NAME, suite };
                let (at, _) = self.first_of(suite).ok_or_else(unsupported)?;
                let key = self.engines.get_mut(at).ok_or_else(unsupported)?.install(&key, direction)?;
                Ok(Place { engine: at, key, rank: rank(suite) })
            }
        }
    }

    /// Forgets a key; `false` if it is unknown.
    pub(crate) fn remove(&mut self, key: KeyId) -> bool {
        let Some(place) = self.keys.remove(key) else { return false };
        if let Some(Place { engine, key, .. }) = place
            && let Some(engine) = self.engines.get_mut(engine)
        {
            engine.remove(key);
        }
        true
    }

    /// Follows a change that the worker has made with its own engines.
    pub(crate) fn follow(&mut self, change: KeyChange) {
        match change {
            KeyChange::Remove(key) => _ = self.remove(key),
            KeyChange::Install(id, key) => {
                // Without the key, jobs under it are faults.
                let place = self.place(key).ok();
                let inserted = self.keys.insert(NAME, place);
                assert_eq!(inserted, Ok(id), "tables that are changed in the same order have the same ids");
            }
        }
    }

    /// The [rank] of a key's suite; `None` if it is unknown.
    #[inline]
    pub(crate) fn rank_of(&self, key: KeyId) -> Option<usize> {
        Some(self.keys.get(key)?.as_ref()?.rank)
    }

    /// Does jobs; all of them have ended then. Meanwhile `under_way` says which ones an engine has in hand.
    pub(crate) fn run(&mut self, jobs: &mut [Job], under_way: &mut Range<usize>) {
        let mut from = 0;
        while let Some(job) = jobs.get_mut(from) {
            let Some(Some(first)) = self.keys.get(job.key).copied() else {
                job.status = JobStatus::Fault;
                from += 1;
                continue;
            };
            let run = jobs.get_mut(from..).unwrap_or_default();
            let count = self.address(run, first);
            *under_way = from..from + count;
            if let Some(engine) = self.engines.get_mut(first.engine) {
                submit_all(engine.as_mut(), run.get_mut(..count).unwrap_or_default());
            }
            *under_way = 0..0;
            from += count;
        }
    }

    /// Gives jobs their keys in one engine, as far as they have one there; returns how many have. The first
    /// one has.
    fn address(&self, jobs: &mut [Job], first: Place) -> usize {
        let (mut last, mut place) = (None, first);
        for (at, job) in jobs.iter_mut().enumerate() {
            // Consecutive jobs tend to have one key.
            if at > 0 && last != Some(job.key) {
                match self.keys.get(job.key) {
                    Some(Some(its)) if its.engine == first.engine => place = *its,
                    _ => return at,
                }
            }
            last = Some(job.key);
            job.key = place.key;
        }
        jobs.len()
    }
}

/// Has an engine do all of these jobs. What it does not take are faults: another engine may.
fn submit_all(engine: &mut dyn Engine, jobs: &mut [Job]) {
    let mut left = jobs;
    while !left.is_empty() {
        match engine.submit(left).min(left.len()) {
            0 => return left.iter_mut().for_each(|job| job.status = JobStatus::Fault),
            taken => left = left.get_mut(taken..).unwrap_or_default(),
        }
    }
}

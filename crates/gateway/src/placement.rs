//! Which engines an SA's jobs may go to, in order, and in which of them its key is laid out.
//!
//! Engines want keys in a form of their own: round keys, powers of a hash key, digests of a padded key. A
//! form takes 0.1 to 1.8 KB, up to a hundred times the key. If each engine held each key, most of an SA's
//! memory would be forms that no packet ever meets. So a key is laid out where its packets go and nowhere
//! else:
//!
//! ```text
//!                             engine 0        engine 1        portable
//!   SA is added               laid out        -               -          by a control thread, if engine 0
//!                                                                        has a preparer
//!   engine 0 fails at a job   laid out        laid out        -          by the worker, for that job
//!   engine 0 is withdrawn     (kept)          laid out        -          by the worker, for the next packet
//!   SA is removed             -               -               -          all of it zeroed
//! ```
//!
//! The keying material itself is kept once, for as long as the SA, and zeroed with it. (What engines hold is
//! no less secret: round keys of AES begin with the key, FIPS 197 5.2.)
//!
//! **Late layout is done by the worker, for the packet that needs it.** The alternatives are worse. If a
//! control thread did it, the packet would wait for that thread, with its buffer and with its SA, which sends
//! in order; bursts would exhaust the pool. If all keys were laid out when an engine is withdrawn, 100,000
//! SAs would stop every packet for up to a tenth of a second. This way the work is bounded by packets: for
//! each, at most one key in each engine, and never twice for an SA. That takes 0.05 to 0.9 µs (3DES 2.4 µs),
//! as long as the cryptography of one to three long packets: a turn in which 200 SAs send their first packet
//! after a withdrawal takes 130 µs instead of 65 (AES-GCM, 256 µs instead of 129 with HMAC), and the next one
//! 65 again.
//!
//! **An engine that does not take a key is not asked again** for as long as the SA lives: it would be at
//! every packet.
//!
//! **The engine of a NIC** has the keys of those SAs that were admitted to it ([`offload`](crate::offload)),
//! and is passed by for all others.
//!
//! A withdrawn engine keeps its keys until their SAs end: jobs of theirs may still be there.

use crate::lanes::{First, NO_ENGINE};
use crate::withdrawn::{WithdrawalReason, Withdrawn};
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use testudo_crypto::{
    Direction, Engine, EngineError, Job, KeyFrame, KeyId, KeyMaterial, KeyPreparer, KeyTable, Offload,
    OffloadState, PreparedKey, Profile, SaFacts, Suite,
};

/// Whose table of keys it is.
const NAME: &str = "placement";

/// The most engines in a placement: a NIC's, two devices' beside the path, other cores, and three in
/// software.
pub const MAX_ENGINES: usize = 7;
/// A mask has a bit for each.
const _: () = assert!(MAX_ENGINES <= u8::BITS as usize);

/// A key to be placed, expanded already for the engine that will use it if that can have it done elsewhere.
pub struct PlacedKey {
    material: KeyMaterial,
    /// The key as an engine takes it, and that engine's index.
    prepared: Option<(usize, PreparedKey)>,
    /// The same for that engine of each other worker.
    others: Vec<PreparedKey>,
}

/// A key that an engine expands itself.
impl From<KeyMaterial> for PlacedKey {
    fn from(material: KeyMaterial) -> Self {
        Self { material, prepared: None, others: Vec::new() }
    }
}

impl PlacedKey {
    /// The same key for another worker.
    pub(crate) fn replica(&mut self) -> Self {
        let engine = self.prepared.as_ref().map(|(engine, _)| *engine);
        let prepared = engine.and_then(|engine| Some((engine, self.others.pop()?)));
        Self { material: self.material.clone(), prepared, others: Vec::new() }
    }

    pub(crate) fn suite(&self) -> Suite {
        self.material.suite()
    }

    /// The key of an SA with such frames.
    pub(crate) fn with_frame(self, frame: KeyFrame) -> Self {
        Self { material: self.material.with_frame(frame), ..self }
    }
}

impl fmt::Debug for PlacedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.material, f)
    }
}

/// What is known of an engine elsewhere: the suites that it does, and what expands keys for it.
#[derive(Clone)]
struct Known {
    suites: Vec<Suite>,
    preparer: Option<Arc<dyn KeyPreparer>>,
}

/// Expands keys for a worker's engines, on any thread.
#[derive(Clone, Default)]
pub struct KeyPreparers {
    engines: Vec<Known>,
    withdrawn: Withdrawn,
    /// Workers beside the first one.
    others: usize,
}

impl KeyPreparers {
    /// The same for so many workers with such engines.
    #[must_use]
    pub fn for_workers(self, workers: usize) -> Self {
        Self { others: workers.saturating_sub(1), ..self }
    }

    /// Expands a key for the engine that will use it: the first in service that does the suite, if it can
    /// have that done. What it refuses, it is asked for again when the key is placed.
    #[must_use]
    pub fn prepare(&self, material: KeyMaterial, direction: Direction) -> PlacedKey {
        let suite = material.suite();
        let mut in_service =
            self.engines.iter().enumerate().filter(|(engine, _)| !self.withdrawn.get(*engine));
        let first = in_service.find(|(_, known)| known.suites.contains(&suite));
        let Some((engine, preparer)) = first.and_then(|(at, known)| Some((at, known.preparer.as_ref()?)))
        else {
            return material.into();
        };
        let prepared = preparer.prepare(&material, direction).ok().map(|key| (engine, key));
        let others = (0..self.others).map_while(|_| preparer.prepare(&material, direction).ok());
        let others = others.collect();
        PlacedKey { material, prepared, others }
    }
}

impl fmt::Debug for KeyPreparers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeyPreparers").field(&self.engines.len()).finish()
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
    /// There is no room for the key.
    #[error("there are {limit} keys, and can be no more")]
    Full {
        /// How many there can be.
        limit: usize,
    },
}

/// The key of one SA in the placement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SaKey(KeyId);

impl SaKey {
    /// No key.
    pub(crate) const NONE: Self = Self(KeyId::NONE);
}

/// What became of a key at one engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The engine was not asked.
    Empty,
    /// It does not take it.
    Refused,
    /// It holds it under this id.
    LaidOut(KeyId),
}

/// A key, and where it is laid out.
struct HeldKey {
    material: KeyMaterial,
    direction: Direction,
    places: [Place; MAX_ENGINES],
}

impl HeldKey {
    /// The first engine in service, from `from` on, that has the key or takes it now, and the key's id there.
    fn lay_out(
        &mut self,
        engines: &mut [Box<dyn Engine>],
        withdrawn: &Withdrawn,
        from: usize,
        mut prepared: Option<(usize, PreparedKey)>,
    ) -> Result<(usize, KeyId), PlacementError> {
        let mut last = PlacementError::Empty;
        let places = self.places.iter_mut().zip(engines).enumerate().skip(from);
        for (at, (place, engine)) in places.filter(|(at, _)| !withdrawn.get(*at)) {
            if *place == Place::Empty {
                let installed = match prepared.take_if(|(of, _)| *of == at) {
                    Some((_, key)) => engine.link(key),
                    None => engine.install(&self.material, self.direction),
                };
                match installed {
                    Ok(id) => *place = Place::LaidOut(id),
                    Err(error) => {
                        *place = Place::Refused;
                        last = PlacementError::NoEngine(error);
                    }
                }
            }
            if let Place::LaidOut(id) = place {
                return Ok((at, *id));
            }
        }
        Err(last)
    }
}

/// Engines in the order in which they are tried, and the keys of all SAs. The last engine does every suite.
pub(crate) struct Placement {
    engines: Vec<Box<dyn Engine>>,
    /// A bit for each that ends all jobs of some submissions inside.
    at_once: u8,
    /// Engines that were taken out of service.
    withdrawn: Withdrawn,
    /// Boxed, so that a table that grows has little to move.
    keys: KeyTable<Box<HeldKey>>,
    /// The engine that keys are [admitted](Self::admit) to one by one. It refuses all others.
    offload: Option<usize>,
}

impl Placement {
    /// Beyond [`MAX_ENGINES`] some are cut, but never the last one, which does every suite.
    pub(crate) fn new(mut engines: Vec<Box<dyn Engine>>) -> Self {
        if engines.len() > MAX_ENGINES {
            engines.drain(MAX_ENGINES - 1..engines.len() - 1);
        }
        let offload = engines.iter_mut().position(|engine| engine.offload().is_some());
        let keys = KeyTable::new(KeyTable::<()>::MAX_KEYS);
        let at_once = engines.iter().rev().fold(0, |bits, one| bits << 1 | u8::from(one.ends_some_at_once()));
        Self { engines, at_once, withdrawn: Withdrawn::default(), keys, offload }
    }

    /// Takes an engine out of service for good: it gets neither jobs nor keys any more.
    pub(crate) fn withdraw(&mut self, engine: usize, reason: WithdrawalReason) {
        self.withdrawn.set(engine, reason);
    }

    /// An engine gets neither jobs nor keys any more, and is withdrawn when it has given back what it has.
    pub(crate) fn set_leaving(&mut self, engine: usize) {
        self.withdrawn.set_leaving(engine);
    }

    /// Which engines were taken out of service, to be read by other threads.
    pub(crate) fn withdrawn(&self) -> Withdrawn {
        self.withdrawn.clone()
    }

    /// Whether an engine says that it does nothing any more.
    pub(crate) fn is_out_of_service(&self, engine: usize) -> bool {
        self.engines.get(engine).is_some_and(|e| e.is_out_of_service())
    }

    /// Whether an engine gets nothing any more: it was withdrawn, or is leaving.
    pub(crate) fn is_withdrawn(&self, engine: usize) -> bool {
        self.withdrawn.get(engine)
    }

    /// Whether it gives back nothing either that anybody waits for.
    pub(crate) fn is_gone(&self, engine: usize) -> bool {
        self.withdrawn.is_gone(engine)
    }

    pub(crate) fn name(&self, engine: usize) -> &'static str {
        self.engines.get(engine).map_or("", |e| e.name())
    }

    pub(crate) fn names(&self) -> Vec<&'static str> {
        self.engines.iter().map(|e| e.name()).collect()
    }

    /// What expands keys for these engines.
    pub(crate) fn preparers(&self) -> KeyPreparers {
        let known = self.engines.iter().map(|engine| Known {
            suites: Suite::every().filter(|suite| engine.capability(*suite).is_some()).collect(),
            preparer: engine.preparer(),
        });
        KeyPreparers { engines: known.collect(), withdrawn: self.withdrawn.clone(), others: 0 }
    }

    /// Gives a key to the first engine in service that accepts it.
    pub(crate) fn install(&mut self, key: PlacedKey, direction: Direction) -> Result<SaKey, PlacementError> {
        let PlacedKey { material, prepared, .. } = key;
        let full = PlacementError::Full { limit: self.keys.limit() };
        // Checked before an engine has the key.
        self.keys.check_room(NAME).map_err(|_| full.clone())?;
        let mut held = Box::new(HeldKey { material, direction, places: [Place::Empty; MAX_ENGINES] });
        held.lay_out(&mut self.engines, &self.withdrawn, 0, prepared)?;
        self.keys.insert(NAME, held).map(SaKey).map_err(|_| full)
    }

    /// The first engine in service, from `from` on, that has the key of an SA or takes it now, and the key's
    /// id there; `None` if there is none, or if the SA is gone.
    pub(crate) fn engine_for(&mut self, key: SaKey, from: usize) -> Option<(usize, KeyId)> {
        let held = self.keys.get_mut(key.0)?;
        held.lay_out(&mut self.engines, &self.withdrawn, from, None).ok()
    }

    /// Engines in service that do a suite and take single keys, as a mask by their indices.
    pub(crate) fn able(&self, suite: Suite) -> u8 {
        let is_able = |(at, engine): &(usize, &dyn Engine)| {
            Some(*at) != self.offload && !self.is_withdrawn(*at) && engine.capability(suite).is_some()
        };
        self.engines().enumerate().filter(is_able).fold(0, |mask, (at, _)| mask | 1 << at)
    }

    /// Those of the engines in a mask that have not refused the key of an SA.
    pub(crate) fn not_refused(&self, key: SaKey, mask: u8) -> u8 {
        let Some(held) = self.keys.get(key.0) else { return 0 };
        let refused = held.places.iter().enumerate().filter(|(_, place)| **place == Place::Refused);
        refused.fold(mask, |mask, (at, _)| mask & !(1 << at))
    }

    /// The id of an SA's key in one engine, which has it or takes it now.
    pub(crate) fn key_at(&mut self, key: SaKey, engine: usize) -> Option<KeyId> {
        let held = self.keys.get_mut(key.0)?;
        let place = held.places.get_mut(engine)?;
        if *place == Place::Empty {
            let installed = self.engines.get_mut(engine)?.install(&held.material, held.direction);
            *place = installed.map_or(Place::Refused, Place::LaidOut);
        }
        match place {
            Place::LaidOut(id) => Some(*id),
            Place::Empty | Place::Refused => None,
        }
    }

    /// The same if the engine has it already.
    pub(crate) fn laid_out_at(&self, key: SaKey, engine: usize) -> Option<KeyId> {
        match self.keys.get(key.0)?.places.get(engine)? {
            Place::LaidOut(id) => Some(*id),
            Place::Empty | Place::Refused => None,
        }
    }

    /// Keys that an engine does not hold after all.
    pub(crate) fn take_refused(&mut self, engine: usize) -> HashSet<KeyId> {
        let engine = self.engines.get_mut(engine);
        engine.into_iter().flat_map(|engine| std::iter::from_fn(move || engine.take_refused())).collect()
    }

    /// Notes that the key of an SA is with an engine no more, if it is one of these; whether it is.
    pub(crate) fn refuse(&mut self, key: SaKey, engine: usize, refused: &HashSet<KeyId>) -> bool {
        let place = self.keys.get_mut(key.0).and_then(|held| held.places.get_mut(engine));
        let is_it = |place: &&mut Place| matches!(place, Place::LaidOut(id) if refused.contains(id));
        place.filter(is_it).map(|place| *place = Place::Refused).is_some()
    }

    /// Forgets the key of an SA, and has engines forget it.
    pub(crate) fn remove(&mut self, key: SaKey) {
        let Some(held) = self.keys.remove(key.0) else { return };
        for (place, engine) in held.places.iter().zip(&mut self.engines) {
            if let Place::LaidOut(id) = place {
                engine.remove(*id);
            }
        }
    }

    /// The engine of a device that does cryptography as packets pass, if there is one.
    pub(crate) fn offload(&mut self) -> Option<&mut dyn Offload> {
        self.engines.get_mut(self.offload?)?.offload()
    }

    /// The id of an SA's key in that engine, if it was admitted.
    pub(crate) fn offload_key(&self, key: SaKey) -> Option<KeyId> {
        match self.keys.get(key.0)?.places.get(self.offload?)? {
            Place::LaidOut(id) => Some(*id),
            Place::Empty | Place::Refused => None,
        }
    }

    /// Has that engine admit the key of an SA.
    pub(crate) fn admit(&mut self, key: SaKey, facts: &SaFacts) -> Result<First, OffloadState> {
        let at = self.offload.ok_or(OffloadState::Off)?;
        let held = self.keys.get_mut(key.0).ok_or(OffloadState::Off)?;
        let engine = self.engines.get_mut(at).and_then(|engine| engine.offload()).ok_or(OffloadState::Off)?;
        let id = engine.admit(held.direction, &held.material, facts)?;
        if let Some(place) = held.places.get_mut(at) {
            *place = Place::LaidOut(id);
        }
        Ok((u32::try_from(at).unwrap_or(NO_ENGINE), id))
    }

    /// Has that engine forget the key of an SA.
    pub(crate) fn leave(&mut self, key: SaKey) {
        let (Some(at), Some(id)) = (self.offload, self.offload_key(key)) else { return };
        if let Some(place) = self.keys.get_mut(key.0).and_then(|held| held.places.get_mut(at)) {
            *place = Place::Refused;
        }
        if let Some(engine) = self.engines.get_mut(at) {
            engine.remove(id);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.engines.len()
    }

    pub(crate) fn submit(&mut self, engine: usize, jobs: &mut [Job]) -> usize {
        self.engines.get_mut(engine).map_or(0, |e| e.submit(jobs).min(jobs.len()))
    }

    /// Whether an engine takes no job for now.
    pub(crate) fn is_resting(&mut self, engine: usize) -> bool {
        self.engines.get_mut(engine).is_some_and(|e| e.is_resting())
    }

    /// Has engines do what they need no jobs for.
    pub(crate) fn tend(&mut self) {
        for engine in &mut self.engines {
            engine.is_resting();
        }
    }

    /// Whether each engine ends jobs inside `submit`.
    pub(crate) fn synchronous(&self) -> Vec<bool> {
        self.engines.iter().map(|engine| engine.is_synchronous()).collect()
    }

    pub(crate) fn engine_mut(&mut self, engine: usize) -> Option<&mut dyn Engine> {
        Some(self.engines.get_mut(engine)?.as_mut())
    }

    pub(crate) fn engines(&self) -> impl Iterator<Item = &dyn Engine> {
        self.engines.iter().map(|engine| engine.as_ref())
    }

    /// What an engine says of a suite.
    pub(crate) fn profile(&self, engine: usize, suite: Suite) -> Profile {
        self.engines.get(engine).map(|e| e.profile(suite)).unwrap_or_default()
    }

    /// Has an engine begin with what it was given.
    pub(crate) fn flush(&mut self, engine: usize) {
        if let Some(engine) = self.engines.get_mut(engine) {
            engine.flush();
        }
    }

    /// Whether an engine does this suite's jobs over chains. One that keeps jobs is given none: what it keeps
    /// for good would be several buffers.
    pub(crate) fn takes_chains(&self, engine: usize, suite: Suite) -> bool {
        let takes = |e: &dyn Engine| e.capability(suite).is_some_and(|capability| capability.takes_chains);
        self.engines.get(engine).is_some_and(|e| e.is_synchronous() && takes(e.as_ref()))
    }

    /// Whether an engine writes the frames of this suite's jobs.
    pub(crate) fn writes_frames(&self, engine: usize, suite: Suite) -> bool {
        let capability = self.engines.get(engine).and_then(|engine| engine.capability(suite));
        capability.is_some_and(|capability| capability.writes_frames)
    }

    /// What the frames of a key's SA have in common.
    pub(crate) fn frame_of(&self, key: SaKey) -> Option<KeyFrame> {
        self.keys.get(key.0)?.material.frame()
    }

    pub(crate) fn is_synchronous(&self, engine: usize) -> bool {
        self.engines.get(engine).is_some_and(|e| e.is_synchronous())
    }

    /// Whether an engine ends these jobs inside `submit`, if it is given them next.
    #[inline]
    pub(crate) fn ends_next_at_once(&mut self, engine: usize, jobs: &[Job]) -> bool {
        let is_asked = self.at_once >> engine & 1 == 1;
        is_asked && self.engines.get_mut(engine).is_some_and(|engine| engine.ends_next_at_once(jobs))
    }

    /// Whether all engines in service complete their jobs inside `submit`.
    pub(crate) fn all_synchronous(&self) -> bool {
        self.engines.iter().enumerate().all(|(at, e)| self.is_withdrawn(at) || e.is_synchronous())
    }

    /// Has an engine do what it was given in this turn, and takes what it has ended.
    pub(crate) fn poll(&mut self, engine: usize, done: &mut Vec<Job>, max: usize) {
        if let Some(engine) = self.engines.get_mut(engine) {
            engine.flush();
            engine.poll(done, max);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use testudo_crypto::{Capability, JobStatus, PortableEngine};
    use zeroize::Zeroizing;

    const SUITE: Suite = Suite::AES128GCM16;

    /// How often an engine was asked to expand a key, to link one, and to forget one.
    #[derive(Debug, Default)]
    struct Asked {
        expand: AtomicUsize,
        link: AtomicUsize,
        forget: AtomicUsize,
    }

    impl Asked {
        fn counts(&self) -> [usize; 3] {
            [&self.expand, &self.link, &self.forget].map(|count| count.load(Ordering::Relaxed))
        }
    }

    /// The portable engine, which notes what it is asked for.
    struct Noting {
        engine: PortableEngine,
        takes_keys: bool,
        asked: Arc<Asked>,
    }

    impl Engine for Noting {
        fn name(&self) -> &'static str {
            "noting"
        }

        fn description(&self) -> String {
            self.engine.description()
        }

        fn capability(&self, suite: Suite) -> Option<Capability> {
            self.engine.capability(suite)
        }

        fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
            self.asked.expand.fetch_add(1, Ordering::Relaxed);
            match self.takes_keys {
                true => self.engine.install(key, direction),
                false => Err(EngineError::Full { engine: self.name(), limit: 0 }),
            }
        }

        fn preparer(&self) -> Option<Arc<dyn KeyPreparer>> {
            self.engine.preparer().filter(|_| self.takes_keys)
        }

        fn link(&mut self, key: PreparedKey) -> Result<KeyId, EngineError> {
            self.asked.link.fetch_add(1, Ordering::Relaxed);
            self.engine.link(key)
        }

        fn remove(&mut self, key: KeyId) {
            self.asked.forget.fetch_add(1, Ordering::Relaxed);
            self.engine.remove(key);
        }

        fn submit(&mut self, jobs: &mut [Job]) -> usize {
            self.engine.submit(jobs)
        }
    }

    /// Engines that take keys or refuse them, and what each was asked for.
    fn placement<const N: usize>(takes_keys: [bool; N]) -> (Placement, [Arc<Asked>; N]) {
        let asked = takes_keys.map(|_| Arc::new(Asked::default()));
        let engines = takes_keys.into_iter().zip(&asked).map(|(takes_keys, asked)| {
            let asked = Arc::clone(asked);
            Box::new(Noting { engine: PortableEngine::new(), takes_keys, asked }) as Box<dyn Engine>
        });
        (Placement::new(engines.collect()), asked)
    }

    fn material() -> KeyMaterial {
        let bytes = vec![7; SUITE.keying_material_bytes()];
        KeyMaterial::new(SUITE, Zeroizing::new(bytes)).unwrap()
    }

    fn install(placement: &mut Placement) -> SaKey {
        placement.install(material().into(), Direction::Seal).unwrap()
    }

    fn counts<const N: usize>(asked: &[Arc<Asked>; N]) -> [[usize; 3]; N] {
        asked.each_ref().map(|asked| asked.counts())
    }

    #[test]
    fn a_key_goes_to_one_engine_and_to_the_next_when_that_is_asked_for() {
        let (mut placement, asked) = placement([true; 3]);
        let key = install(&mut placement);
        assert_eq!(counts(&asked), [[1, 0, 0], [0; 3], [0; 3]]);
        let (engine, id) = placement.engine_for(key, 0).unwrap();
        assert_eq!(engine, 0);
        assert_eq!(placement.engine_for(key, 0), Some((0, id)), "it is there");
        assert_eq!(placement.engine_for(key, 1).unwrap().0, 1);
        assert_eq!(placement.engine_for(key, 1).unwrap().0, 1);
        assert_eq!(placement.engine_for(key, 3), None, "there is no fourth engine");
        assert_eq!(counts(&asked), [[1, 0, 0], [1, 0, 0], [0; 3]]);
        placement.remove(key);
        assert_eq!(counts(&asked), [[1, 0, 1], [1, 0, 1], [0; 3]], "forgotten where it was, and only there");
        assert_eq!(placement.engine_for(key, 0), None);
        placement.remove(key);
        assert_eq!(counts(&asked), [[1, 0, 1], [1, 0, 1], [0; 3]]);
    }

    #[test]
    fn an_engine_that_refuses_a_key_is_asked_once() {
        let (mut placement, asked) = placement([false, true, false]);
        let key = install(&mut placement);
        for _ in 0..3 {
            assert_eq!(placement.engine_for(key, 0).unwrap().0, 1);
            assert_eq!(placement.engine_for(key, 2), None);
        }
        assert_eq!(counts(&asked), [[1, 0, 0], [1, 0, 0], [1, 0, 0]]);
        // Another key is another question.
        install(&mut placement);
        assert_eq!(counts(&asked), [[2, 0, 0], [2, 0, 0], [1, 0, 0]]);
    }

    #[test]
    fn a_key_that_no_engine_takes_is_an_error_and_is_not_kept() {
        let (mut placement, _) = placement([false, false]);
        let refused = placement.install(material().into(), Direction::Seal);
        let full = EngineError::Full { engine: "noting", limit: 0 };
        assert_eq!(refused, Err(PlacementError::NoEngine(full)));
        assert!(placement.keys.is_empty());
        let (mut empty, _) = self::placement([]);
        assert_eq!(empty.install(material().into(), Direction::Seal), Err(PlacementError::Empty));
    }

    #[test]
    fn a_withdrawn_engine_gets_no_key_and_forgets_what_it_has() {
        let (mut placement, asked) = placement([true; 2]);
        let key = install(&mut placement);
        placement.withdraw(0, WithdrawalReason::KeptPackets);
        assert_eq!(placement.engine_for(key, 0).unwrap().0, 1);
        let later = install(&mut placement);
        assert_eq!(counts(&asked), [[1, 0, 0], [2, 0, 0]]);
        [key, later].into_iter().for_each(|key| placement.remove(key));
        assert_eq!(counts(&asked), [[1, 0, 1], [2, 0, 2]]);
    }

    /// The form that was expanded elsewhere is linked in its own engine and in no other one.
    #[test]
    fn keys_are_expanded_elsewhere_for_the_first_engine_in_service() {
        let (mut placement, asked) = placement([true; 2]);
        let preparers = placement.preparers();
        let install =
            |placement: &mut Placement, prepared| placement.install(prepared, Direction::Seal).unwrap();
        let prepare = || preparers.prepare(material(), Direction::Seal);
        install(&mut placement, prepare());
        assert_eq!(counts(&asked), [[0, 1, 0], [0, 0, 0]]);
        let for_the_first = prepare();
        placement.withdraw(0, WithdrawalReason::KeptPackets);
        install(&mut placement, for_the_first);
        assert_eq!(counts(&asked), [[0, 1, 0], [1, 0, 0]], "the form is dropped, and the key expanded here");
        install(&mut placement, prepare());
        assert_eq!(counts(&asked), [[0, 1, 0], [1, 1, 0]]);
    }

    /// What is laid out late does what the first engine would have done.
    #[test]
    fn a_key_that_is_laid_out_late_is_the_same_key() {
        let (mut placement, _) = placement([true; 2]);
        let key = install(&mut placement);
        let sealed = [0, 1].map(|from| {
            let (engine, key) = placement.engine_for(key, from).unwrap();
            let buffer = testudo_packet::Buffer::copied(&[9; 8 + 8 + 64 + 16], 0, 0);
            let mut job =
                [Job { key, text_start: 16, text_bytes: 64, ..Job::new(buffer, Direction::Seal, 0) }];
            assert_eq!((engine, placement.submit(engine, &mut job)), (from, 1));
            assert_eq!(job[0].status, JobStatus::Done);
            job[0].buffer.bytes().to_vec()
        });
        assert_eq!(sealed[0], sealed[1]);
    }
}

//! The safe engine: which jobs go to which thread, and which are the worker's own.

use crate::NAME;
use crate::engines::{Engines, KeyChange, NewKey};
use crate::helper::{CHUNK_JOBS, Helper};
use crate::preparer::{Copies, Preparer};
use std::sync::Arc;
use testudo_crypto::{
    Capability, Direction, Engine, EngineError, Job, KeyId, KeyMaterial, KeyPreparer, PreparedKey, Profile,
    Suite, self_test,
};
use testudo_packet::Region;

/// The most threads of one worker.
pub const MAX_THREADS: usize = 64;
/// The fewest jobs in a chunk, where a burst is divided.
const CHUNK_JOBS_MIN: usize = 8;
/// From idleness the worker does a burst of so many jobs itself.
const OWN_JOBS: usize = 16;

/// How many threads, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoresConfig {
    /// Threads beside the worker, from 1 to [`MAX_THREADS`].
    pub threads: usize,
    /// Processors that the threads are bound to, in turn; none are if it is empty.
    pub processors: Vec<usize>,
    /// The number of the first thread, which is in its name and says which processor is the first one's.
    pub first_thread: usize,
}

impl CoresConfig {
    /// So many threads, bound to no processor.
    #[must_use]
    pub const fn of(threads: usize) -> Self {
        Self { threads, processors: Vec::new(), first_thread: 0 }
    }
}

/// The engine on other cores. See the [crate](crate).
pub struct CoresEngine {
    helpers: Vec<Helper>,
    /// What the worker's own share is done with. It knows all keys.
    own: Engines,
    /// Who is asked first for room.
    next: usize,
    in_flight: usize,
    /// The threads run.
    is_started: bool,
}

impl CoresEngine {
    /// Makes engines for each thread and for the worker's own share, and has all of them compute known
    /// answers. The threads start with [`Engine::use_memory`], or with the first jobs that are handed over.
    ///
    /// `make` is called once more than there are threads, and gives engines of the same kinds each time, in
    /// the order in which they are to be asked whether they do a suite. Each must be
    /// [synchronous](Engine::is_synchronous).
    ///
    /// # Errors
    /// [`EngineError`]: the number of threads, an engine that cannot be opened, fails its test or is not
    /// synchronous.
    pub fn open(
        config: &CoresConfig,
        make: &mut dyn FnMut() -> Result<Vec<Box<dyn Engine>>, EngineError>,
    ) -> Result<Self, EngineError> {
        let CoresConfig { threads, processors, first_thread } = config;
        if !(1..=MAX_THREADS).contains(threads) {
            let reason = format!("it has from 1 to {MAX_THREADS} threads, not {threads}");
            return Err(EngineError::Unavailable { engine: NAME, reason });
        }
        let mut open = || {
            let mut engines = make()?;
            engines.iter_mut().try_for_each(|engine| self_test(engine.as_mut()))?;
            Engines::new(engines)
        };
        let own = open()?;
        let helper = |number: usize| {
            let processor = processors.get(number % processors.len().max(1)).copied();
            Ok(Helper::new(open()?, format!("{NAME}-{number}"), processor))
        };
        let helpers = (*first_thread..first_thread + threads).map(helper).collect::<Result<_, _>>()?;
        Ok(Self { helpers, own, next: 0, in_flight: 0, is_started: false })
    }

    fn start(&mut self) {
        if !self.is_started {
            self.is_started = true;
            self.helpers.iter_mut().for_each(Helper::start);
        }
    }

    /// Hands jobs over to threads, as far as they have room and the worker has no share in them; returns how
    /// many.
    fn hand_over(&mut self, jobs: &mut [Job]) -> usize {
        let is_idle = self.in_flight == 0;
        if is_idle && jobs.len() <= OWN_JOBS {
            return 0;
        }
        self.start();
        let sharers = self.helpers.len() + 1;
        let chunk = jobs.len().div_ceil(sharers).clamp(CHUNK_JOBS_MIN, CHUNK_JOBS);
        let others = if is_idle { jobs.len() - jobs.len() / sharers } else { jobs.len() };
        let mut at = 0;
        while at < others
            && let Some(helper) = self.helper_with_room()
        {
            let end = others.min(at + chunk);
            let Some(part) = jobs.get_mut(at..end) else { break };
            if !helper.hand_over(part) {
                break;
            }
            helper.wake();
            at = end;
        }
        self.in_flight += at;
        at
    }

    /// The thread that has the least to do; of equals each has its turn. `None` if all have enough.
    fn helper_with_room(&mut self) -> Option<&mut Helper> {
        let (count, next) = (self.helpers.len(), self.next);
        let turn = |at: usize| (at + count - next) % count;
        let backlogs = self.helpers.iter_mut().enumerate().filter_map(|(at, h)| Some((h.backlog()?, at)));
        let (_, at) = backlogs.min_by_key(|(backlog, at)| (*backlog, turn(*at)))?;
        self.next = (at + 1) % count;
        self.helpers.get_mut(at)
    }

    /// The threads follow a change of keys.
    fn tell(&mut self, mut change: impl FnMut() -> Option<KeyChange>) {
        for helper in self.helpers.iter_mut().filter(|helper| helper.is_in_service()) {
            change().into_iter().for_each(|change| helper.change(change));
        }
    }
}

impl Drop for CoresEngine {
    fn drop(&mut self) {
        // All first: those that hang are waited for at the same time.
        self.helpers.iter_mut().for_each(Helper::close);
    }
}

impl Engine for CoresEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn description(&self) -> String {
        let lost = self.helpers.iter().filter(|helper| !helper.is_in_service()).count();
        let threads = match self.helpers.len() {
            1 => "1 thread".to_owned(),
            several => format!("{several} threads"),
        };
        let lost = if lost > 0 { format!(" ({lost} out of service)") } else { String::new() };
        format!("{threads}{lost} and the worker, each with {}", self.own.description())
    }

    fn capability(&self, suite: Suite) -> Option<Capability> {
        self.own.capability(suite)
    }

    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        let material = || NewKey::Material(Box::new(key.clone()), direction);
        let id = self.own.install(material())?;
        self.tell(|| Some(KeyChange::Install(id, material())));
        Ok(id)
    }

    fn preparer(&self) -> Option<Arc<dyn KeyPreparer>> {
        Some(Arc::new(Preparer::new(&self.own, self.helpers.len() + 1)))
    }

    fn link(&mut self, key: PreparedKey) -> Result<KeyId, EngineError> {
        let Copies(mut keys) = key.into_form(NAME)?;
        let lacking = || EngineError::KeyRefused {
            engine: NAME,
            reason: "it was prepared for fewer threads".to_owned(),
        };
        if keys.len() <= self.helpers.len() {
            return Err(lacking());
        }
        let own = keys.pop().ok_or_else(lacking)?;
        let id = self.own.install(own)?;
        self.tell(|| Some(KeyChange::Install(id, keys.pop()?)));
        Ok(id)
    }

    fn remove(&mut self, key: KeyId) {
        if self.own.remove(key) {
            self.tell(|| Some(KeyChange::Remove(key)));
        }
    }

    fn use_memory(&mut self, region: &Region) {
        self.own.use_memory(region);
        self.helpers.iter_mut().filter_map(Helper::engines_mut).for_each(|each| each.use_memory(region));
        self.start();
    }

    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        let handed = self.hand_over(jobs);
        self.own.run(jobs.get_mut(handed..).unwrap_or_default(), &mut (0..0));
        jobs.len()
    }

    fn profile(&self, suite: Suite) -> Profile {
        self.own.profile(suite)
    }

    fn poll(&mut self, done: &mut Vec<Job>, max: usize) {
        if self.in_flight == 0 {
            return;
        }
        let before = done.len();
        for helper in &mut self.helpers {
            helper.collect(done, max - (done.len() - before));
        }
        self.in_flight -= done.len() - before;
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }
}

//! Engines of this measurement: one that is watched, and a model of a device.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use testudo_crypto::{
    Capability, Cipher, Direction, Engine, EngineError, Integrity, Job, JobStatus, KeyId, KeyMaterial,
    PortableEngine, Profile, Suite,
};
use testudo_gateway::{Clock, ManualClock};
use testudo_ipsec::Moment;

use super::lanes::{Geometry, Lane, Tally};
use crate::bench::engines::done;

/// The model's name on the command line and in rows.
pub(super) const MODEL: &str = "model";

/// What a byte costs PIPSEA's APU, in picoseconds: of HMAC-SHA1 8000 / 39.37, and of AES-CBC what is left of
/// 8000 / 13.87 (paper 002, figure 8).
const SHA1_PS: u64 = 203;
const AES_PS: u64 = 374;
/// Launching takes about 30 % of AES-CBC's time for 64 bytes, and 7 % for 1,024 (4.1): of 2,048 packets 21
/// and 59 microseconds.
const LAUNCH_NS: u64 = 40_000;
const LATENCY_NS: u64 = 20_000;
const DEPTH_JOBS: usize = 8192;

/// What was seen of an engine.
#[derive(Debug, Default)]
struct Seen {
    tally: Tally,
    is_counting: bool,
    in_flight: usize,
    done: u64,
}

/// What an [`Observed`] engine has done, for those who own it no more.
#[derive(Debug, Clone, Default)]
pub(super) struct Watch(Arc<Mutex<Seen>>);

impl Watch {
    /// All is on one thread: nobody waits for this.
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether launches count from now on.
    pub(super) fn count(&self, is_counting: bool) {
        self.seen().is_counting = is_counting;
    }

    /// Those that counted.
    pub(super) fn tally(&self) -> Tally {
        self.seen().tally
    }

    /// Jobs that the engine has.
    pub(super) fn in_flight(&self) -> usize {
        self.seen().in_flight
    }

    /// Jobs that the engine has done, all in all: neither those that it refused nor those that it failed at.
    pub(super) fn done(&self) -> u64 {
        self.seen().done
    }
}

/// A key as the measure has it: what its jobs are to lanes.
type Kinds = HashMap<KeyId, (Suite, u32)>;

/// The job as a lane sees it.
fn lane(job: &Job, kinds: &Kinds, engine: &dyn Engine) -> Lane {
    let (suite, kind) = kinds.get(&job.key).copied().unwrap_or((Suite::AES128_SHA1, u32::MAX));
    Lane { kind, bytes: job.text_bytes, byte_ps: engine.profile(suite).byte_ps.max(1) }
}

/// A number for suite and direction.
fn kind_of(suite: Suite, direction: Direction) -> u32 {
    let place = Suite::measurable().position(|other| other == suite).unwrap_or(usize::MAX / 2);
    u32::try_from(2 * place).unwrap_or(u32::MAX - 1) + u32::from(direction == Direction::Open)
}

/// An engine whose launches are tallied: what it is given between two flushes, in that order.
pub(super) struct Observed {
    inner: Box<dyn Engine>,
    geometry: Geometry,
    kinds: Kinds,
    launch: Vec<Lane>,
    watch: Watch,
}

impl Observed {
    pub(super) fn new(inner: Box<dyn Engine>, geometry: Geometry) -> (Self, Watch) {
        let watch = Watch::default();
        let kinds = Kinds::new();
        (Self { inner, geometry, kinds, launch: Vec::new(), watch: watch.clone() }, watch)
    }

    /// Takes note of what the engine has, and of jobs that have ended.
    fn note(&self, ended: &[Job]) {
        let mut seen = self.watch.seen();
        seen.in_flight = self.inner.in_flight();
        seen.done += done(ended);
    }
}

impl Engine for Observed {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn description(&self) -> String {
        self.inner.description()
    }

    fn capability(&self, suite: Suite) -> Option<Capability> {
        self.inner.capability(suite)
    }

    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        let id = self.inner.install(key, direction)?;
        self.kinds.insert(id, (key.suite(), kind_of(key.suite(), direction)));
        Ok(id)
    }

    fn remove(&mut self, key: KeyId) {
        self.inner.remove(key);
    }

    fn profile(&self, suite: Suite) -> Profile {
        self.inner.profile(suite)
    }

    fn is_synchronous(&self) -> bool {
        self.inner.is_synchronous()
    }

    fn is_out_of_service(&self) -> bool {
        self.inner.is_out_of_service()
    }

    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        let before = self.launch.len();
        let lanes = jobs.iter().map(|job| lane(job, &self.kinds, self.inner.as_ref()));
        self.launch.extend(lanes);
        let taken = self.inner.submit(jobs);
        self.launch.truncate(before + taken);
        self.note(jobs.get(..taken).unwrap_or_default());
        taken
    }

    fn flush(&mut self) {
        self.inner.flush();
        if !self.launch.is_empty() {
            let profile = self.inner.profile(Suite::AES128_SHA1);
            let mut seen = self.watch.seen();
            if seen.is_counting {
                seen.tally.add(&self.launch, self.geometry, &profile);
            }
        }
        self.launch.clear();
    }

    fn poll(&mut self, done: &mut Vec<Job>, max: usize) {
        let before = done.len();
        self.inner.poll(done, max);
        self.note(done.get(before..).unwrap_or_default());
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }
}

/// What a launch is until it ends.
struct Launch {
    jobs: VecDeque<Job>,
    end: Moment,
}

/// A device of known cost on a clock that is set: another engine does its work, the portable one unless told,
/// at the time at which such a device would have done it. What is given between two flushes is a launch; one
/// is computed at a time, and two are there.
pub(super) struct Model {
    inner: Box<dyn Engine>,
    clock: ManualClock,
    geometry: Geometry,
    kinds: Kinds,
    open: VecDeque<Job>,
    under_way: VecDeque<Launch>,
    free_at: Moment,
}

impl Model {
    pub(super) fn new(clock: ManualClock, geometry: Geometry) -> Self {
        Self::over(Box::new(PortableEngine::new()), clock, geometry)
    }

    /// Over an engine that ends jobs inside `submit`.
    pub(super) fn over(inner: Box<dyn Engine>, clock: ManualClock, geometry: Geometry) -> Self {
        Self {
            inner,
            clock,
            geometry,
            kinds: Kinds::new(),
            open: VecDeque::new(),
            under_way: VecDeque::new(),
            free_at: Moment::default(),
        }
    }
}

impl Engine for Model {
    fn name(&self) -> &'static str {
        MODEL
    }

    fn description(&self) -> String {
        let Geometry { units, lanes } = self.geometry;
        format!("a model of {units} units of {lanes} lanes with the costs of PIPSEA's APU; no device")
    }

    fn capability(&self, suite: Suite) -> Option<Capability> {
        self.inner.capability(suite)
    }

    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        let id = self.inner.install(key, direction)?;
        self.kinds.insert(id, (key.suite(), kind_of(key.suite(), direction)));
        Ok(id)
    }

    fn remove(&mut self, key: KeyId) {
        self.inner.remove(key);
    }

    fn profile(&self, suite: Suite) -> Profile {
        let cipher = if suite.cipher() == Cipher::Null { 0 } else { AES_PS };
        let integrity = if suite.integrity() == Integrity::None { 0 } else { SHA1_PS };
        Profile {
            fixed_ns: LAUNCH_NS,
            byte_ps: cipher + integrity,
            latency_ns: LATENCY_NS,
            under_way: 2,
            ..Profile::of_depth(DEPTH_JOBS)
        }
    }

    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        self.open.extend(jobs.iter_mut().map(Job::take));
        jobs.len()
    }

    fn flush(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let jobs = std::mem::take(&mut self.open);
        let lanes: Vec<Lane> = jobs.iter().map(|job| lane(job, &self.kinds, self)).collect();
        let mut tally = Tally::default();
        tally.add(&lanes, self.geometry, &self.profile(Suite::AES128_SHA1));
        let computed = Duration::from_secs_f64(tally.predicted_ns(false) * 1e-9);
        let there = Moment(self.clock.now().0 + Duration::from_nanos(LATENCY_NS));
        self.free_at = Moment(self.free_at.0.max(there.0) + computed);
        self.under_way.push_back(Launch { jobs, end: self.free_at });
    }

    fn poll(&mut self, done: &mut Vec<Job>, max: usize) {
        let (now, mut left) = (self.clock.now(), max);
        while let Some(launch) = self.under_way.front_mut().filter(|launch| launch.end <= now && left > 0) {
            let mut ended: Vec<Job> = launch.jobs.drain(..left.min(launch.jobs.len())).collect();
            left -= ended.len();
            self.inner.submit(&mut ended);
            done.extend(ended.into_iter().filter(|job| job.status != JobStatus::Taken));
            if launch.jobs.is_empty() {
                self.under_way.pop_front();
            }
        }
    }

    fn in_flight(&self) -> usize {
        self.open.len() + self.under_way.iter().map(|launch| launch.jobs.len()).sum::<usize>()
    }
}

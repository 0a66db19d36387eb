//! A test engine that answers late, out of order, and fails as configured: an in-memory twin of a faulty GPU.
//!
//! It wraps another engine and hands jobs on to it when they are due:
//!
//! ```text
//!   submit ──► (gathered until flush) ──► bounded queue ──(so many polls later)──► wrapped engine ──► poll
//!                                      └── or: fault, buffer untouched ──► poll
//! ```
//!
//! Its behaviour follows from a seed and from the calls made: the same calls give the same answers. Time is
//! counted in polls. It keeps the [`Engine`] contract and promises nothing more: a full queue refuses the
//! tail of a burst, answers come in any order, a removed key still serves the jobs that were submitted under
//! it, every job ends exactly once and [`Engine::in_flight`] is exact.
//!
//! It breaks the contract only on request: it keeps jobs, single ones by chance
//! ([`LateConfig::kept_per_million`]) or all ([`LateEngine::keep_all`]), until it is told to [give them
//! back](LateEngine::give_back_kept).

#![forbid(unsafe_code)]

use fastrand::Rng;
use std::sync::Arc;
use testudo_crypto::{
    Capability, Direction, Engine, EngineError, Job, JobStatus, KeyId, KeyMaterial, KeyPreparer, PreparedKey,
    Profile, Suite,
};

/// The order of the answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Order {
    /// Jobs of one key in the order of their submission, keys overtaking each other (if the wrapped engine is
    /// synchronous).
    WithinKeys,
    /// Any job may overtake any other.
    Any,
}

/// How late, and how unreliable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LateConfig {
    /// Seed of all random decisions.
    pub seed: u64,
    /// The most jobs in flight.
    pub queue_jobs: usize,
    /// The fewest polls after which a job ends: 1 is the next poll; 0 is taken as 1.
    pub polls_min: u32,
    /// The most polls after which a job is due; below `polls_min` it is taken as that.
    pub polls_max: u32,
    /// The order of the answers.
    pub order: Order,
    /// How many of a million jobs fault.
    pub faults_per_million: u32,
    /// How many of a million calls of `submit` begin a burst in which every job faults.
    pub bursts_per_million: u32,
    /// Jobs in such a burst.
    pub burst_jobs: u32,
    /// How many of a million jobs are kept.
    pub kept_per_million: u32,
    /// How many jobs it wants at a time. Above 1 they gather until there are so many, or until it is flushed.
    pub depth_jobs: usize,
}

impl LateConfig {
    /// Late by 1 to 8 polls, in any order, never failing; at most 1,024 jobs in flight.
    #[must_use]
    pub const fn reliable(seed: u64) -> Self {
        Self {
            seed,
            queue_jobs: 1024,
            polls_min: 1,
            polls_max: 8,
            order: Order::Any,
            faults_per_million: 0,
            bursts_per_million: 0,
            burst_jobs: 0,
            kept_per_million: 0,
            depth_jobs: 1,
        }
    }

    /// As [`reliable`](Self::reliable), but every twentieth job faults, and every hundredth burst loses 200
    /// jobs.
    #[must_use]
    pub const fn unreliable(seed: u64) -> Self {
        Self {
            faults_per_million: 50_000,
            bursts_per_million: 10_000,
            burst_jobs: 200,
            ..Self::reliable(seed)
        }
    }
}

/// A poll that never comes.
const NEVER: u64 = u64::MAX;
/// Submissions that it says it works on at a time.
const UNDER_WAY: usize = 2;

/// A job in the queue.
struct Waiting {
    job: Job,
    /// The poll at which it is due; [`NEVER`] for a job that is kept.
    due: u64,
    /// Order among those due at the same poll.
    rank: u64,
    /// Whether it was drawn to fault.
    faults: bool,
}

/// A job that was taken and is not handed over yet, with what was drawn for it.
struct Gathered {
    job: Job,
    polls: u64,
    rank: u64,
    faults: bool,
    is_kept: bool,
}

/// The engine that answers late. See the [crate](self).
pub struct LateEngine {
    inner: Box<dyn Engine>,
    config: LateConfig,
    random: Rng,
    waiting: Vec<Waiting>,
    gathered: Vec<Gathered>,
    /// Removed keys under which jobs still wait.
    doomed: Vec<KeyId>,
    polls: u64,
    submitted: u64,
    burst_left: u32,
    failing: bool,
    keeping: bool,
}

impl LateEngine {
    /// Wraps `inner`.
    #[must_use]
    pub fn new(inner: Box<dyn Engine>, config: LateConfig) -> Self {
        Self {
            inner,
            config,
            random: Rng::with_seed(config.seed),
            waiting: Vec::with_capacity(config.queue_jobs),
            gathered: Vec::with_capacity(config.queue_jobs),
            doomed: Vec::new(),
            polls: 0,
            submitted: 0,
            burst_left: 0,
            failing: false,
            keeping: false,
        }
    }

    /// While `failing`, every job that ends, ends as a fault: a device that died. That includes jobs already
    /// waiting.
    pub fn fail_all(&mut self, failing: bool) {
        self.failing = failing;
    }

    /// While `keeping`, no job comes back, neither waiting nor newly submitted ones: a device that hangs.
    /// Jobs that became due meanwhile come back afterwards.
    pub fn keep_all(&mut self, keeping: bool) {
        self.keeping = keeping;
    }

    /// Gives back, with the next polls, the jobs that were kept by [chance](LateConfig::kept_per_million).
    pub fn give_back_kept(&mut self) {
        let kept = self.waiting.iter_mut().filter(|w| w.due == NEVER);
        kept.for_each(|w| w.due = self.polls + 1);
    }

    /// Takes a job and draws when and how it will end.
    fn gather(&mut self, job: Job) {
        let (min, max) = (u64::from(self.config.polls_min.max(1)), u64::from(self.config.polls_max));
        let polls = min + self.random.u64(..max.saturating_sub(min) + 1);
        let rank = self.random.u64(..);
        let faults = self.random.u64(..1_000_000) < u64::from(self.config.faults_per_million);
        let is_kept = self.random.u64(..1_000_000) < u64::from(self.config.kept_per_million);
        let in_burst = self.burst_left > 0;
        self.burst_left = self.burst_left.saturating_sub(1);
        self.gathered.push(Gathered { job, polls, rank, faults: faults || in_burst, is_kept });
        if self.gathered.len() >= self.config.depth_jobs {
            self.hand_over();
        }
    }

    /// Queues what has gathered.
    fn hand_over(&mut self) {
        let mut gathered = std::mem::take(&mut self.gathered);
        gathered.drain(..).for_each(|gathered| self.enqueue(gathered));
        self.gathered = gathered;
    }

    fn enqueue(&mut self, Gathered { job, polls, mut rank, faults, is_kept }: Gathered) {
        let mut due = self.polls + polls;
        if self.config.order == Order::WithinKeys {
            let before = self.waiting.iter().filter(|w| w.job.key == job.key).map(|w| w.due).max();
            due = due.max(before.unwrap_or(0));
            rank = self.submitted;
        }
        if is_kept {
            due = NEVER;
        }
        self.submitted += 1;
        self.waiting.push(Waiting { job, due, rank, faults });
    }

    /// Ends one job that is due; `false` if the wrapped engine does not take it now.
    fn end(&mut self, waiting: &mut Waiting, done: &mut Vec<Job>) -> bool {
        let job = &mut waiting.job;
        if waiting.faults || self.failing {
            job.status = JobStatus::Fault;
        } else if self.inner.submit(std::slice::from_mut(job)) == 0 {
            return false;
        }
        if job.status != JobStatus::Taken {
            // The remains of the job have no buffer and are dropped with the queue's slot.
            let status = job.status;
            done.push(Job { status, ..job.take() });
        }
        true
    }

    /// Removes doomed keys under which nothing waits any more.
    fn bury(&mut self) {
        let (inner, waiting, gathered) = (&mut self.inner, &self.waiting, &self.gathered);
        self.doomed.retain(|key| {
            let mut all = waiting.iter().map(|w| &w.job).chain(gathered.iter().map(|g| &g.job));
            let needed = all.any(|job| job.key == *key);
            if !needed {
                inner.remove(*key);
            }
            needed
        });
    }
}

impl Engine for LateEngine {
    fn name(&self) -> &'static str {
        "late"
    }

    fn description(&self) -> String {
        let LateConfig { seed, polls_min, polls_max, .. } = self.config;
        format!(
            "test engine, {polls_min} to {polls_max} polls late, seed {seed}, on {}",
            self.inner.description()
        )
    }

    fn capability(&self, suite: Suite) -> Option<Capability> {
        self.inner.capability(suite)
    }

    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        self.inner.install(key, direction)
    }

    fn preparer(&self) -> Option<Arc<dyn KeyPreparer>> {
        self.inner.preparer()
    }

    fn link(&mut self, key: PreparedKey) -> Result<KeyId, EngineError> {
        self.inner.link(key)
    }

    fn remove(&mut self, key: KeyId) {
        if !self.doomed.contains(&key) {
            self.doomed.push(key);
        }
        self.bury();
    }

    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        if self.random.u64(..1_000_000) < u64::from(self.config.bursts_per_million) {
            self.burst_left = self.config.burst_jobs;
        }
        let room = self.config.queue_jobs.saturating_sub(self.in_flight());
        let taken = jobs.len().min(room);
        for slot in jobs.iter_mut().take(taken) {
            if self.doomed.contains(&slot.key) {
                slot.status = JobStatus::Fault;
            } else {
                let job = slot.take();
                self.gather(job);
            }
        }
        taken
    }

    fn flush(&mut self) {
        self.hand_over();
    }

    fn profile(&self, _: Suite) -> Profile {
        Profile { under_way: UNDER_WAY, ..Profile::of_depth(self.config.depth_jobs.max(1)) }
    }

    fn poll(&mut self, done: &mut Vec<Job>, max: usize) {
        self.polls += 1;
        let full = done.len().saturating_add(max);
        if self.keeping {
            return;
        }
        self.inner.poll(done, max);
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.sort_unstable_by_key(|w| (w.due, w.rank));
        let due = waiting.partition_point(|w| w.due <= self.polls && w.due != NEVER);
        let mut ended = 0;
        while ended < due && done.len() < full && self.end(&mut waiting[ended], done) {
            ended += 1;
        }
        waiting.drain(..ended);
        self.waiting = waiting;
        self.inner.flush();
        self.bury();
    }

    fn in_flight(&self) -> usize {
        self.gathered.len() + self.waiting.len() + self.inner.in_flight()
    }
}

//! Jobs that go to the device together.

use crate::device::{BIN_WORDS, JOB_WORDS, Launch};
use crate::parts::Parts;
use crate::place::{MARK_WORD, Placed};
use std::time::{Duration, Instant};
use testudo_crypto::Job;
use zeroize::Zeroize;

/// A batch: it gathers jobs, is with the device, or gives its jobs back.
pub(crate) struct Batch {
    /// Which of the device's batches it is.
    pub index: usize,
    /// Jobs that are not given back yet.
    jobs: Vec<Option<Job>>,
    placed: Vec<Placed>,
    /// How much of the arena is in use, in bytes.
    pub arena_bytes: usize,
    /// How many jobs were given back.
    given_back: usize,
    pub mark: u32,
    /// The most jobs.
    most: usize,
    /// When its first job was taken: for the gateway, that job waits since then.
    pub since: Instant,
    /// How much of the time since then counts: somebody looked.
    pub waited: Duration,
    /// How much longer it may wait because keys are expanded before it.
    pub for_keys: Duration,
}

impl Drop for Batch {
    fn drop(&mut self) {
        // All of its memory, whatever it holds now.
        self.placed.zeroize();
    }
}

impl Batch {
    /// Room for `jobs` jobs, all of it allocated here.
    pub(crate) fn new(index: usize, jobs: usize) -> Self {
        Self {
            index,
            jobs: Vec::with_capacity(jobs),
            placed: Vec::with_capacity(jobs),
            arena_bytes: 0,
            given_back: 0,
            mark: 0,
            most: jobs,
            since: Instant::now(),
            waited: Duration::ZERO,
            for_keys: Duration::ZERO,
        }
    }

    /// Whether no more jobs fit.
    pub(crate) fn is_full(&self) -> bool {
        self.jobs.len() >= self.most
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Jobs that are not given back.
    pub(crate) fn left(&self) -> usize {
        self.jobs.len() - self.given_back
    }

    /// Adds a job that is in the arena.
    pub(crate) fn push(&mut self, job: Job, placed: Placed) {
        if self.jobs.is_empty() {
            (self.since, self.waited) = (Instant::now(), Duration::ZERO);
        }
        self.arena_bytes = placed.end;
        self.jobs.push(Some(job));
        self.placed.push(placed);
    }

    /// The next job to be given back, in the order in which they came.
    pub(crate) fn pop(&mut self) -> Option<(Job, Placed)> {
        let at = self.given_back;
        let job = self.jobs.get_mut(at)?.take()?;
        self.given_back += 1;
        self.placed.get(at).map(|placed| (job, *placed))
    }

    /// Empties it for new jobs.
    pub(crate) fn clear(&mut self) {
        self.jobs.clear();
        self.placed.clear();
        (self.arena_bytes, self.given_back) = (0, 0);
    }

    /// Writes the plan: bins of one kind and one number of lanes for a packet, as many jobs as `lanes` are
    /// for, in the order in which jobs came. `None` if the plan is too short.
    pub(crate) fn plan(&mut self, mark: u32, lanes: usize, by: Parts, plan: &mut [u32]) -> Option<Launch> {
        self.mark = mark;
        let parts = |placed: &Placed| by.of(&placed.work, placed.kernel_bytes, lanes);
        let is_alike = |a: &Placed, b: &Placed| a.work.kind == b.work.kind && parts(a) == parts(b);
        let jobs_of_bin = |alike: &[Placed]| (lanes / alike.first().map_or(1, parts)).max(1);
        let bins = || self.placed.chunk_by(is_alike).flat_map(|alike| alike.chunks(jobs_of_bin(alike)));
        let count = bins().count();
        let mut at = count * BIN_WORDS;
        for (bin, jobs) in bins().enumerate() {
            let first = jobs.first()?;
            let [jobs_at, count, parts] =
                [at, jobs.len(), parts(first)].map(|number| u32::try_from(number).ok());
            let words = [first.work.kind, jobs_at?, count?, parts?];
            plan.get_mut(bin * BIN_WORDS..)?.first_chunk_mut().map(|to| *to = words)?;
            for job in jobs {
                let to: &mut [u32; JOB_WORDS] = plan.get_mut(at..)?.first_chunk_mut()?;
                *to = job.words;
                to[MARK_WORD] = mark;
                at += JOB_WORDS;
            }
        }
        Some(Launch { bins: count, plan_words: at, arena_bytes: self.arena_bytes })
    }
}

//! Jobs that go to the device together.

use crate::checks::MOST_CHECKS;
use crate::device::{BIN_WORDS, JOB_WORDS, Launch};
use crate::parts::Parts;
use crate::place::{MARK_WORD, Placed};
use std::time::{Duration, Instant};
use zeroize::Zeroize;

/// A batch: it gathers jobs, is with the device, or gives its jobs back. The jobs themselves are
/// [elsewhere](crate::under_way).
pub(crate) struct Batch {
    /// Which of the device's batches it is.
    pub index: usize,
    placed: Vec<Placed>,
    /// Known answers that ride with them: which, and where each is.
    checks: Vec<(usize, Placed)>,
    /// Whether one rides.
    rides: [bool; MOST_CHECKS],
    /// How much of the arena is in use, in bytes.
    pub arena_bytes: usize,
    /// How many jobs were given back.
    given_back: usize,
    pub mark: u32,
    /// The most jobs.
    most: usize,
    /// The device was given it.
    pub is_launched: bool,
    /// When its first job was taken: for the gateway, that job waits since then.
    pub since: Instant,
    /// How much of the time since then counts: somebody looked.
    pub waited: Duration,
    /// The same, where a look counts for less: until its jobs are taken back.
    pub looked: Duration,
    /// What it is to the kernel, in simple steps of a lane.
    pub steps: u64,
    /// The same of the one that was launched before it, if that was under way: it waits for that, too.
    pub behind: Option<u64>,
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
            placed: Vec::with_capacity(jobs),
            checks: Vec::with_capacity(MOST_CHECKS),
            rides: [false; MOST_CHECKS],
            arena_bytes: 0,
            given_back: 0,
            mark: 0,
            most: jobs,
            is_launched: false,
            since: Instant::now(),
            waited: Duration::ZERO,
            looked: Duration::ZERO,
            steps: 0,
            behind: None,
            for_keys: Duration::ZERO,
        }
    }

    /// Whether no more jobs fit.
    pub(crate) fn is_full(&self) -> bool {
        self.placed.len() >= self.most
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.placed.is_empty()
    }

    /// Jobs that are not given back.
    pub(crate) fn left(&self) -> usize {
        self.placed.len() - self.given_back
    }

    /// Adds a job that is in the arena.
    pub(crate) fn push(&mut self, placed: Placed) {
        if self.placed.is_empty() {
            (self.since, self.waited, self.looked) = (Instant::now(), Duration::ZERO, Duration::ZERO);
        }
        let bytes = placed.end.saturating_sub(self.arena_bytes) as u64;
        self.steps = self.steps.saturating_add(placed.work.steps_per_byte().saturating_mul(bytes));
        self.arena_bytes = placed.end;
        self.placed.push(placed);
    }

    /// Adds a known answer that is in the arena.
    pub(crate) fn push_check(&mut self, check: usize, placed: Placed) {
        self.arena_bytes = placed.end;
        self.checks.push((check, placed));
        self.rides.get_mut(check).into_iter().for_each(|rides| *rides = true);
    }

    /// Whether this known answer rides, or has no place.
    pub(crate) fn has_check(&self, check: usize) -> bool {
        self.rides.get(check).is_none_or(|rides| *rides)
    }

    /// How many known answers ride with its jobs.
    pub(crate) fn check_count(&self) -> usize {
        self.checks.len()
    }

    /// These, with the place of each.
    pub(crate) fn checks(&self) -> impl Iterator<Item = &(usize, Placed)> {
        self.checks.iter()
    }

    /// Where the next job to be given back is, in the order in which they came.
    pub(crate) fn pop(&mut self) -> Option<Placed> {
        let placed = self.placed.get(self.given_back)?;
        self.given_back += 1;
        Some(*placed)
    }

    /// Somebody else has given back all jobs.
    pub(crate) fn leave_all(&mut self) {
        self.given_back = self.placed.len();
    }

    /// Empties it for new jobs.
    pub(crate) fn clear(&mut self) {
        self.placed.clear();
        self.checks.clear();
        self.rides.fill(false);
        (self.arena_bytes, self.given_back, self.is_launched) = (0, 0, false);
        (self.steps, self.behind) = (0, None);
    }

    /// Writes the plan: bins of one kind and one number of lanes for a packet, as many jobs as `lanes` are
    /// for, in the order in which jobs came; then one for each known answer. `None` if the plan is too short.
    pub(crate) fn plan(&mut self, mark: u32, lanes: usize, by: Parts, plan: &mut [u32]) -> Option<Launch> {
        self.mark = mark;
        let parts = |placed: &Placed| by.of(&placed.work, placed.kernel_bytes, lanes);
        let is_alike = |a: &Placed, b: &Placed| a.work.kind == b.work.kind && parts(a) == parts(b);
        let jobs_of_bin = |alike: &[Placed]| (lanes / alike.first().map_or(1, parts)).max(1);
        let checks = || self.checks.iter().map(|(_, placed)| std::slice::from_ref(placed));
        let of_jobs = || self.placed.chunk_by(is_alike).flat_map(|alike| alike.chunks(jobs_of_bin(alike)));
        let bins = || of_jobs().chain(checks());
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

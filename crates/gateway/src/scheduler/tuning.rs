//! Self-tuning: chunk, bins and range of lengths follow from what is measured while packets flow.
//!
//! ```text
//!   base ──(9 chunks)──► trial of a neighbour ──(9)──► base again ──(9)──► keep which is faster
//!     ▲                                                                          │
//!     └─── pause, twice as long after each round of neighbours without gain ◄────┘
//! ```
//!
//! What counts is the engine's time for a unit of work: bytes times what each costs by the profile, so that
//! a mix of other suites is no gain. A neighbour is better if it was at least [`GAIN`] faster than the
//! measurements before and after it: what else the machine does meets those, too. Only chunks count that
//! found bins full or jobs left over, and that the engine had waiting: under less load chunks are as large as
//! the load makes them, and nothing is to be gained.
//!
//! **The bound.** A chunk is away for its time, and its packets have gathered for as long as the one before
//! it took. If both are longer than the bound, the chunk becomes smaller at once; none is tried that would be
//! longer. A trial ends as soon as most of its chunks are beyond the bound, or the engine refuses a part of
//! one: such a part would look fast, and no chunk of that size is tried again.
//!
//! **A change** is made between two chunks, when all bins are empty: jobs keep their places among leftovers,
//! and tickets keep each SA's order as ever.

use super::bins::Load;
use super::settings::{RANGES, SchedulerSettings};
use std::time::Duration;
use testudo_crypto::Profile;

/// Packets of a chunk, and of a bin, that are tried: those of figure 10 of paper 002. With them there are 4
/// to 128 bins.
const CHUNKS: [usize; 4] = [1024, 2048, 4096, 8192];
const BIN_PACKETS: [usize; 3] = [64, 128, 256];
/// Bins at most, and packets of a bin.
pub(crate) const MOST_BINS: usize = 128;
pub(crate) const MOST_BIN_PACKETS: usize = 256;
pub(crate) const MOST_CHUNK: usize = 8192;
/// Chunks that are one measurement, of which the median counts.
const WINDOW: usize = 9;
/// Parts of a hundred by which a neighbour has to be faster.
const GAIN: u64 = 3;
/// Measurements for which nothing is tried after a round without gain, at first and at most.
const PAUSE: u32 = 16;
const LONGEST_PAUSE: u32 = 4096;
/// A unit of time for a unit of work that is small enough.
const FINE: u128 = 1 << 30;

/// How jobs are gathered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) chunk: usize,
    pub(crate) bins: usize,
    pub(crate) range_bytes: u32,
}

/// The same, as places in the lists of what is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rungs {
    chunk: usize,
    bin: usize,
    range: usize,
}

/// Steps to neighbours: of the chunk, of a bin's packets, of the range; in the order in which they are tried.
const STEPS: [[isize; 3]; 10] = [
    [1, 0, 0],
    [0, 0, -1],
    [0, 0, 1],
    [0, -1, 0],
    [0, 1, 0],
    [-1, 0, 0],
    [0, -1, -1],
    [0, 1, 1],
    [0, 1, -1],
    [0, -1, 1],
];

/// The place of the largest that is no larger, or the first.
fn rung<T: PartialOrd>(of: &[T], wanted: &T) -> usize {
    of.iter().rposition(|value| value <= wanted).unwrap_or(0)
}

impl Rungs {
    fn nearest(settings: &SchedulerSettings) -> Self {
        let bin = settings.chunk / settings.bins.max(1);
        Self {
            chunk: rung(&CHUNKS, &settings.chunk),
            bin: rung(&BIN_PACKETS, &bin),
            range: rung(&RANGES, &settings.range_bytes),
        }
    }

    fn shape(self) -> Shape {
        let of = |list: &[usize], at: usize| list.get(at).copied().unwrap_or(1024);
        let chunk = of(&CHUNKS, self.chunk);
        let bins = chunk / of(&BIN_PACKETS, self.bin);
        Shape { chunk, bins, range_bytes: RANGES.get(self.range).copied().unwrap_or(256) }
    }

    /// The neighbour, if there is one.
    fn step(self, [chunk, bin, range]: [isize; 3]) -> Option<Self> {
        let moved = |at: usize, by, count| at.checked_add_signed(by).filter(|at| *at < count);
        Some(Self {
            chunk: moved(self.chunk, chunk, CHUNKS.len())?,
            bin: moved(self.bin, bin, BIN_PACKETS.len())?,
            range: moved(self.range, range, RANGES.len())?,
        })
    }
}

/// A chunk that has ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    pub(crate) load: Load,
    /// How long it was away, and how long the engine had nothing else to do, if that is known.
    pub(crate) took: Duration,
    pub(crate) busy: Option<Duration>,
}

/// What a measurement says: time for a unit of work, and of a packet's way through gathering and engine.
#[derive(Debug, Clone, Copy, Default)]
struct Score {
    each: u64,
    took: Duration,
}

/// The chunks of a measurement.
#[derive(Debug, Clone, Copy, Default)]
struct Window {
    each: [u64; WINDOW],
    took: [Duration; WINDOW],
    count: usize,
}

impl Window {
    /// Adds a chunk; when it is the last, what all say.
    fn add(&mut self, each: u64, took: Duration) -> Option<Score> {
        if let (Some(to), Some(time)) = (self.each.get_mut(self.count), self.took.get_mut(self.count)) {
            (*to, *time) = (each, took);
        }
        self.count += 1;
        if self.count < WINDOW {
            return None;
        }
        self.count = 0;
        self.each.sort_unstable();
        self.took.sort_unstable();
        Some(Score { each: self.each[WINDOW / 2], took: self.took[WINDOW / 2] })
    }

    /// How many of the chunks so far took too long.
    fn beyond(&self, is_beyond: impl Fn(Duration) -> bool) -> usize {
        self.took.iter().take(self.count).filter(|took| is_beyond(**took)).count()
    }
}

/// What is being measured.
#[derive(Debug, Clone, Copy)]
enum Phase {
    /// What is in use.
    Base,
    /// A neighbour, after what is in use.
    Trial { to: Rungs, before: Score },
    /// What is in use, after the neighbour.
    Again { to: Rungs, before: Score, trial: Score },
}

/// Decides how jobs are gathered for one engine.
#[derive(Debug)]
pub(crate) struct Tuner {
    bound: Duration,
    /// What of a chunk's time does not grow with it.
    fixed: Duration,
    /// Chunks that the engine has at a time.
    under_way: u32,
    /// The place of the largest chunk that the engine wants, as far as it has not refused it.
    largest: usize,
    at: Rungs,
    phase: Phase,
    window: Window,
    /// The next step, how many in a row were none, and what was measured at their end.
    next: usize,
    refused: usize,
    settled: Score,
    /// Measurements for which nothing is tried, and how many that are after the next round.
    rest: u32,
    pause: u32,
    /// Counts what is in use, trials included: chunks of another number are not of this measurement.
    epoch: u32,
    changes: u64,
}

impl Tuner {
    pub(crate) fn new(settings: &SchedulerSettings, profile: &Profile) -> Self {
        let most = profile.depth_jobs.max(settings.chunk);
        Self {
            bound: settings.latency,
            fixed: Duration::from_nanos(profile.time_ns(0)),
            under_way: chunks(profile.under_way),
            largest: rung(&CHUNKS, &most),
            at: Rungs::nearest(settings),
            phase: Phase::Base,
            window: Window::default(),
            next: 0,
            refused: 0,
            settled: Score::default(),
            rest: 0,
            pause: PAUSE,
            epoch: 0,
            changes: 0,
        }
    }

    /// The engine has so many chunks at a time by now.
    pub(crate) fn set_under_way(&mut self, under_way: usize) {
        self.under_way = chunks(under_way);
    }

    /// What is in use when nothing is tried.
    pub(crate) fn shape(&self) -> Shape {
        self.at.shape()
    }

    /// Marks the chunks of what is in use now.
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// How often something better was found, or the bound made the chunk smaller.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// A chunk has ended. Returns how jobs are to be gathered from now on, if that changes.
    pub(crate) fn ended(&mut self, chunk: &Ended) -> Option<Shape> {
        let Ended { load, took, busy } = *chunk;
        if load.epoch != self.epoch {
            return None;
        }
        if load.is_refused {
            return self.refused_part();
        }
        if !load.is_full || load.work == 0 {
            return None;
        }
        let each = busy?.as_nanos().saturating_mul(FINE) / u128::from(load.work);
        let score = self.window.add(u64::try_from(each).unwrap_or(u64::MAX), took);
        if score.is_none() && self.is_too_long() {
            return Some(self.give_up());
        }
        let score = score?;
        match self.phase {
            Phase::Trial { before, .. } if self.way(score.took) > self.most(before) => Some(self.give_up()),
            Phase::Base => self.after_base(score),
            Phase::Trial { to, before } => {
                self.phase = Phase::Again { to, before, trial: score };
                Some(self.switch(self.at))
            }
            Phase::Again { to, before, trial } => self.judge(to, [before, trial, score]),
        }
    }

    /// Chunks of so many jobs are back too late, of which nobody measures the time for a unit of work: what
    /// is tried is given up, and else chunks become smaller, if smaller ones have fewer jobs.
    pub(crate) fn too_late(&mut self, jobs: usize) -> Option<Shape> {
        if matches!(self.phase, Phase::Trial { .. }) {
            return Some(self.give_up());
        }
        let smaller = self.at.step([-1, 0, 0])?;
        (smaller.shape().chunk < jobs).then(|| self.adopt(smaller))
    }

    /// The jobs that come from now on are gathered so.
    fn switch(&mut self, to: Rungs) -> Shape {
        self.epoch = self.epoch.wrapping_add(1);
        self.window.count = 0;
        to.shape()
    }

    /// The engine has not taken all of a chunk of what is in use.
    fn refused_part(&mut self) -> Option<Shape> {
        let Phase::Trial { to, .. } = self.phase else { return None };
        if to.chunk > self.at.chunk {
            self.largest = self.largest.min(to.chunk - 1);
        }
        Some(self.give_up())
    }

    /// Whether the trial is beyond the bound, however long its other chunks will be.
    fn is_too_long(&self) -> bool {
        let Phase::Trial { before, .. } = self.phase else { return false };
        let most = self.most(before);
        self.window.beyond(|took| self.way(took) > most) > WINDOW / 2
    }

    /// How long packets of a trial may be on their way: no longer than the bound, or than with what is in
    /// use, where nothing keeps it.
    fn most(&self, before: Score) -> Duration {
        self.bound.max(self.way(before.took))
    }

    /// Ends a trial without asking how fast it was.
    fn give_up(&mut self) -> Shape {
        self.phase = Phase::Base;
        self.pass_step();
        self.switch(self.at)
    }

    /// A step was none: the next one follows.
    fn pass_step(&mut self) {
        self.refused += 1;
        self.next = (self.next + 1) % STEPS.len();
    }

    fn after_base(&mut self, score: Score) -> Option<Shape> {
        if self.way(score.took) > self.bound
            && let Some(smaller) = self.at.step([-1, 0, 0])
        {
            return Some(self.adopt(smaller));
        }
        // Other packets: what was found may hold no more.
        if self.rest > 0 && differs(score.each, self.settled.each) {
            (self.rest, self.pause) = (0, PAUSE);
        }
        if self.rest > 0 {
            self.rest -= 1;
            return None;
        }
        self.try_next(score)
    }

    fn judge(&mut self, to: Rungs, [before, trial, after]: [Score; 3]) -> Option<Shape> {
        self.phase = Phase::Base;
        let is_faster = |than: Score| trial.each.saturating_mul(100) < than.each.saturating_mul(100 - GAIN);
        // Else the bound comes first, as ever.
        let keeps_bound = self.way(after.took) <= self.bound || to.chunk <= self.at.chunk;
        if is_faster(before) && is_faster(after) && keeps_bound {
            return Some(self.adopt(to));
        }
        self.pass_step();
        self.after_base(after)
    }

    fn adopt(&mut self, to: Rungs) -> Shape {
        self.at = to;
        self.changes += 1;
        (self.phase, self.refused) = (Phase::Base, 0);
        (self.rest, self.pause) = (0, PAUSE);
        self.switch(to)
    }

    /// Begins to measure the next neighbour, or rests after all of them.
    fn try_next(&mut self, before: Score) -> Option<Shape> {
        while self.refused < STEPS.len() {
            let step = STEPS.get(self.next).copied().unwrap_or_default();
            if let Some(to) = self.at.step(step).filter(|to| self.is_allowed(*to, before)) {
                self.phase = Phase::Trial { to, before };
                return Some(self.switch(to));
            }
            self.pass_step();
        }
        self.refused = 0;
        self.settled = before;
        self.rest = self.pause;
        self.pause = (2 * self.pause).min(LONGEST_PAUSE);
        None
    }

    /// Whether a neighbour may be tried: the engine wants such a chunk, and it keeps the bound.
    fn is_allowed(&self, to: Rungs, now: Score) -> bool {
        if to.chunk <= self.at.chunk {
            return true;
        }
        let grows = now.took.saturating_sub(self.fixed);
        to.chunk <= self.largest && self.way(self.fixed.saturating_add(grows * 2)) <= self.bound
    }

    /// How long a packet is on its way whose chunk is away for so long: it gathers as long as the engine
    /// takes from chunk to chunk.
    fn way(&self, took: Duration) -> Duration {
        took.saturating_add(took / self.under_way.max(1))
    }
}

/// Chunks that an engine has at a time which says so many.
fn chunks(under_way: usize) -> u32 {
    u32::try_from(under_way.clamp(1, Profile::MAX_UNDER_WAY)).unwrap_or(1)
}

/// Whether one is a quarter more or less than the other.
fn differs(one: u64, other: u64) -> bool {
    one.abs_diff(other) > other / 4
}

#[cfg(test)]
mod tests;

//! Bins: jobs that wait for an engine, sorted by what the engine does with them.
//!
//! ```text
//!   job ─► bin of its label, if one is open ─► else an empty bin, which gets the label ─► else leftover
//!
//!   label     suite, direction, range of lengths
//!   bin       up to chunk / bins jobs of one label; when it is full, the next job of the label opens another
//!   leftover  jobs that found no bin, in order: they are the first to be sorted when bins become empty
//! ```
//!
//! (PIPSEA, paper 002, sections 3.2 and 3.3, where a bin becomes a work-group of the GPU.) What is taken goes
//! longest first, so that those who share it end together: a variation of the rule "longest processing time
//! first", which needs at most 4/3 of the best schedule's time.
//!
//! All memory is allocated when the bins are made.

use super::ideas::Ideas;
use super::settings::SchedulerSettings;
use super::tuning::{MOST_BIN_PACKETS, MOST_BINS, MOST_CHUNK, Shape};
use crate::formation::Formation;
use std::cmp::Reverse;
use std::collections::VecDeque;
use testudo_crypto::{Direction, Job};
use testudo_ipsec::Moment;

/// Suites that are told apart; the last rank is for all others.
const SUITES: usize = 16;
/// Ranges of lengths; the last is for all that is longer.
const RANGES: usize = 32;
const LABELS: usize = 2 * SUITES * RANGES;
/// No bin.
const NONE: u8 = u8::MAX;
/// The most bins: one less than their indices can say.
const MAX_BINS: usize = NONE as usize;

/// What the jobs of a bin have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Label(usize);

impl Label {
    fn range(self) -> usize {
        self.0 % RANGES
    }

    fn suite_rank(self) -> usize {
        self.0 / (2 * RANGES)
    }
}

/// Jobs of one label.
#[derive(Debug)]
struct Bin {
    label: Label,
    /// When its oldest job came.
    since: Moment,
    /// How many bins were opened before it.
    number: u64,
    jobs: Vec<Job>,
}

/// What a chunk is to the lanes of its engine, where that is measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// Which [shape](Bins::set_next) it was gathered in.
    pub(crate) epoch: u32,
    /// Bytes times what each costs: of all jobs; and of all lanes, until the longest job of their bin ends.
    pub(crate) work: u64,
    pub(crate) lanes: u64,
    /// Bins were full, or jobs were left over.
    pub(crate) is_full: bool,
    /// The engine did not take all of it.
    pub(crate) is_refused: bool,
}

/// A job that found no bin.
#[derive(Debug)]
struct Leftover {
    since: Moment,
    label: Label,
    job: Job,
}

/// The waiting jobs of one engine.
#[derive(Debug)]
pub(crate) struct Bins {
    formation: Formation,
    ideas: Ideas,
    range_bytes: u32,
    /// What a byte of each suite costs the engine, by its rank.
    costs: [u64; SUITES],
    bins: Vec<Bin>,
    /// Jobs that a bin holds.
    room: usize,
    /// The bin of each label that has room; [`NONE`] if there is none.
    open: Box<[u8]>,
    /// Bins that are empty, and those that are not.
    empty: Vec<u8>,
    used: Vec<u8>,
    leftovers: VecDeque<Leftover>,
    /// The most leftovers.
    leftovers_max: usize,
    /// Jobs in bins.
    jobs: usize,
    opened: u64,
    /// Jobs that were left over since the last chunk.
    left_over: usize,
    /// What of each chunk is measured; else nothing is.
    is_measured: bool,
    epoch: u32,
    /// How jobs are gathered after the next chunk.
    next: Option<(Shape, u32)>,
}

impl Bins {
    pub(crate) fn new(settings: &SchedulerSettings, formation: Formation) -> Self {
        let count = settings.bins.clamp(1, MAX_BINS);
        let room = settings.chunk.div_ceil(count).max(1);
        Self::with_memory(settings, formation, [count, room, room * count])
    }

    /// The same with memory for each shape that self-tuning may come to.
    pub(crate) fn tuned(settings: &SchedulerSettings, formation: Formation, shape: Shape) -> Self {
        let Shape { chunk, bins, range_bytes } = shape;
        let settings = SchedulerSettings { chunk, bins, range_bytes, ..*settings };
        let memory = [MOST_BINS, MOST_BIN_PACKETS, MOST_CHUNK];
        Self { is_measured: true, ..Self::with_memory(&settings, formation, memory) }
    }

    /// `memory`: of bins, of the jobs of each, and of leftovers.
    fn with_memory(settings: &SchedulerSettings, formation: Formation, memory: [usize; 3]) -> Self {
        let count = settings.bins.clamp(1, MAX_BINS);
        let room = settings.chunk.div_ceil(count).max(1);
        let [bins, jobs, leftovers] = memory;
        let bin =
            |_| Bin { label: Label(0), since: Moment::default(), number: 0, jobs: Vec::with_capacity(jobs) };
        Self {
            formation,
            ideas: settings.ideas,
            range_bytes: settings.range_bytes.max(1),
            costs: [1; SUITES],
            bins: (0..bins).map(bin).collect(),
            room,
            open: vec![NONE; LABELS].into(),
            empty: empty_bins(count, bins),
            used: Vec::with_capacity(bins),
            leftovers: VecDeque::with_capacity(leftovers),
            leftovers_max: room * count,
            jobs: 0,
            opened: 0,
            left_over: 0,
            is_measured: false,
            epoch: 0,
            next: None,
        }
    }

    /// Jobs that go together at most.
    pub(crate) fn chunk(&self) -> usize {
        self.leftovers_max
    }

    /// Jobs that wait.
    pub(crate) fn under_way(&self) -> usize {
        self.jobs + self.leftovers.len()
    }

    /// Whether a whole chunk waits in bins, or jobs find none.
    pub(crate) fn is_full(&self) -> bool {
        self.jobs >= self.chunk() || !self.leftovers.is_empty()
    }

    /// How many jobs found no bin since it was asked last.
    pub(crate) fn take_left_over(&mut self) -> usize {
        std::mem::take(&mut self.left_over)
    }

    pub(crate) fn set_formation(&mut self, formation: Formation) {
        self.formation = formation;
    }

    /// Notes what a byte of a suite costs the engine; 0 if that is not known.
    pub(crate) fn set_cost(&mut self, suite_rank: u8, cost: u64) {
        if let Some(of_suite) = self.costs.get_mut(usize::from(suite_rank)) {
            *of_suite = cost.max(1);
        }
    }

    /// How long the longest job of a label keeps a lane, beside others.
    fn cost(&self, label: Label) -> u64 {
        let length = u64::try_from(label.range() + 1).unwrap_or(u64::MAX);
        self.costs.get(label.suite_rank()).map_or(1, |cost| cost.saturating_mul(length))
    }

    /// The label of a job; `suite_rank` says its suite.
    pub(crate) fn label(&self, job: &Job, suite_rank: Option<u8>) -> Label {
        let suite = suite_rank.map_or(SUITES - 1, usize::from).min(SUITES - 1);
        let kind = 2 * suite + usize::from(job.direction == Direction::Open);
        let range = (job.text_bytes / self.range_bytes) as usize;
        match self.formation {
            Formation::None => Label(0),
            Formation::Suite => Label(kind * RANGES),
            Formation::SuiteAndLength => Label(kind * RANGES + range.min(RANGES - 1)),
        }
    }

    /// Sorts a job that came at `since`, no earlier than those before it; gives it back if there is no room.
    pub(crate) fn push(&mut self, job: Job, label: Label, since: Moment) -> Result<(), Job> {
        let Err(job) = self.sort(job, label, since) else { return Ok(()) };
        self.leave_over(job, label, since)
    }

    /// Has a job wait among leftovers; gives it back if there are too many.
    pub(crate) fn leave_over(&mut self, job: Job, label: Label, since: Moment) -> Result<(), Job> {
        if self.leftovers.len() >= self.leftovers_max {
            return Err(job);
        }
        self.leftovers.push_back(Leftover { since, label, job });
        self.left_over += 1;
        Ok(())
    }

    /// Puts a job into a bin; gives it back if there is none.
    fn sort(&mut self, job: Job, label: Label, since: Moment) -> Result<(), Job> {
        let mut index = self.open[label.0];
        if index == NONE {
            let Some(empty) = self.empty.pop() else { return Err(job) };
            index = empty;
            self.opened += 1;
            let bin = &mut self.bins[usize::from(index)];
            (bin.label, bin.since, bin.number) = (label, since, self.opened);
            self.used.push(index);
            self.open[label.0] = index;
        }
        let bin = &mut self.bins[usize::from(index)];
        bin.jobs.push(job);
        self.jobs += 1;
        if bin.jobs.len() >= self.room {
            self.open[label.0] = NONE;
        }
        Ok(())
    }

    /// When the oldest job came that waits.
    pub(crate) fn oldest(&self) -> Option<Moment> {
        let bins = self.used.iter().map(|index| self.bins[usize::from(*index)].since);
        bins.chain(self.leftovers.front().map(|leftover| leftover.since)).min()
    }

    /// Jobs are gathered in this shape after the next chunk, whose number is `epoch`. Memory is that of
    /// [`tuned`](Self::tuned).
    pub(crate) fn set_next(&mut self, shape: Shape, epoch: u32) {
        self.next = Some((shape, epoch));
    }

    /// How jobs are gathered now.
    pub(crate) fn shape(&self) -> Shape {
        let chunk = self.leftovers_max;
        Shape { chunk, bins: chunk / self.room.max(1), range_bytes: self.range_bytes }
    }

    /// Changes the shape if that is due. All bins are empty; leftovers stay where they are.
    fn reshape(&mut self) {
        let Some((Shape { chunk, bins, range_bytes }, epoch)) = self.next.take() else { return };
        let count = bins.clamp(1, self.bins.len());
        self.empty.clear();
        self.empty.extend((0..NONE).take(count).rev());
        self.room = chunk.div_ceil(count).max(1);
        self.leftovers_max = self.room * count;
        (self.range_bytes, self.epoch) = (range_bytes.max(1), epoch);
        if self.formation == Formation::SuiteAndLength {
            for leftover in &mut self.leftovers {
                let range = (leftover.job.text_bytes / self.range_bytes) as usize;
                leftover.label = Label(leftover.label.0 / RANGES * RANGES + range.min(RANGES - 1));
            }
        }
    }

    /// What the jobs of a bin are to lanes.
    fn measure(&self, index: u8, load: &mut Load) {
        let bin = &self.bins[usize::from(index)];
        let each = self.costs.get(bin.label.suite_rank()).copied().unwrap_or(1);
        let work = |job: &Job| u64::from(job.text_bytes).max(1).saturating_mul(each);
        let (sum, longest) =
            bin.jobs.iter().map(work).fold((0, 0), |(sum, longest): (u64, u64), work| {
                (sum.saturating_add(work), longest.max(work))
            });
        let lanes = u64::try_from(self.room).unwrap_or(u64::MAX);
        load.work = load.work.saturating_add(sum);
        load.lanes = load.lanes.saturating_add(longest.saturating_mul(lanes));
    }

    /// Moves what all bins hold to `out`, longest first, and sorts the leftovers. Returns what the chunk is
    /// to lanes, where that is measured.
    pub(crate) fn take(&mut self, out: &mut Vec<Job>) -> Load {
        if !self.sorts_first() {
            self.sort_leftovers();
        }
        let mut load = Load { epoch: self.epoch, is_full: self.is_full(), ..Load::default() };
        let mut used = std::mem::take(&mut self.used);
        if self.is_measured {
            used.iter().for_each(|index| self.measure(*index, &mut load));
        }
        if self.ideas.longest_first {
            used.sort_unstable_by_key(|index| {
                let bin = &self.bins[usize::from(*index)];
                (Reverse(self.cost(bin.label)), bin.label.0, bin.number)
            });
        }
        used.drain(..).for_each(|index| self.empty_bin(index, out));
        self.used = used;
        self.reshape();
        if self.sorts_first() {
            self.sort_leftovers();
        }
        load
    }

    /// Whether leftovers get the bins of a chunk that has gone, before newer jobs come.
    fn sorts_first(&self) -> bool {
        self.ideas.leftovers_first && self.ideas.waiting_bins
    }

    /// Moves bins whose oldest job came at `until` or before to `out`, and so those leftovers, until it has
    /// `most` jobs; sorts the other leftovers.
    pub(crate) fn take_until(&mut self, until: Moment, most: usize, out: &mut Vec<Job>) {
        let mut at = 0;
        while let Some(index) = self.used.get(at).copied().filter(|_| out.len() < most) {
            if self.bins[usize::from(index)].since <= until {
                self.used.remove(at);
                self.empty_bin(index, out);
            } else {
                at += 1;
            }
        }
        while out.len() < most
            && let Some(leftover) = self.leftovers.pop_front_if(|leftover| leftover.since <= until)
        {
            out.push(leftover.job);
        }
        if self.sorts_first() {
            self.sort_leftovers();
        }
    }

    fn empty_bin(&mut self, index: u8, out: &mut Vec<Job>) {
        let bin = &mut self.bins[usize::from(index)];
        self.jobs -= bin.jobs.len();
        out.append(&mut bin.jobs);
        if self.open[bin.label.0] == index {
            self.open[bin.label.0] = NONE;
        }
        self.empty.push(index);
    }

    /// Leftovers go first, in their order; those that still find no bin stay.
    fn sort_leftovers(&mut self) {
        for _ in 0..self.leftovers.len() {
            let Some(Leftover { since, label, job }) = self.leftovers.pop_front() else { return };
            if let Err(job) = self.sort(job, label, since) {
                self.leftovers.push_back(Leftover { since, label, job });
            }
        }
    }
}

/// The indices of so many bins, the first at the end, with memory for more.
fn empty_bins(count: usize, most: usize) -> Vec<u8> {
    let mut empty = Vec::with_capacity(most.max(count));
    empty.extend((0..NONE).take(count).rev());
    empty
}

#[cfg(test)]
mod tests;

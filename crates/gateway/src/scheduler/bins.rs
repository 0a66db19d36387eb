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

use super::settings::SchedulerSettings;
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
}

impl Bins {
    pub(crate) fn new(settings: &SchedulerSettings, formation: Formation) -> Self {
        let count = settings.bins.clamp(1, MAX_BINS);
        let room = settings.chunk.div_ceil(count).max(1);
        let bin =
            |_| Bin { label: Label(0), since: Moment::default(), number: 0, jobs: Vec::with_capacity(room) };
        Self {
            formation,
            range_bytes: settings.range_bytes.max(1),
            costs: [1; SUITES],
            bins: (0..count).map(bin).collect(),
            room,
            open: vec![NONE; LABELS].into(),
            empty: (0..NONE).take(count).rev().collect(),
            used: Vec::with_capacity(count),
            leftovers: VecDeque::with_capacity(room * count),
            leftovers_max: room * count,
            jobs: 0,
            opened: 0,
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
        if self.leftovers.len() >= self.leftovers_max {
            return Err(job);
        }
        self.leftovers.push_back(Leftover { since, label, job });
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

    /// Moves what all bins hold to `out`, longest first, and sorts the leftovers.
    pub(crate) fn take(&mut self, out: &mut Vec<Job>) {
        let mut used = std::mem::take(&mut self.used);
        used.sort_unstable_by_key(|index| {
            let bin = &self.bins[usize::from(*index)];
            (Reverse(self.cost(bin.label)), bin.label.0, bin.number)
        });
        used.drain(..).for_each(|index| self.empty_bin(index, out));
        self.used = used;
        self.sort_leftovers();
    }

    /// Moves bins whose oldest job came at `until` or before to `out`, and so those leftovers; sorts the
    /// other leftovers.
    pub(crate) fn take_until(&mut self, until: Moment, out: &mut Vec<Job>) {
        let mut at = 0;
        while let Some(index) = self.used.get(at).copied() {
            if self.bins[usize::from(index)].since <= until {
                self.used.remove(at);
                self.empty_bin(index, out);
            } else {
                at += 1;
            }
        }
        while let Some(leftover) = self.leftovers.pop_front_if(|leftover| leftover.since <= until) {
            out.push(leftover.job);
        }
        self.sort_leftovers();
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

#[cfg(test)]
mod tests;

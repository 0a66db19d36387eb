//! Submissions of which nothing is to be decided.
//!
//! Where all engines that take the keys of a suite end jobs inside `submit`, what a submission has given to
//! them delays each of them by the same. So the engine that is best for a suite is another only after
//! something was learned, and most submissions need not be learned of: while one engine has all classes of
//! a suite, the suite is *settled*, and the lanes of its SAs name that engine as those do that only one engine takes.
//! One submission in [`JOBS`] jobs is still decided of job by job and measured, and so is one of [few](FEW)
//! jobs: a worker that has no more to do has time for that.

use super::{Addressed, Dispatcher};
use crate::lanes::{First, NOWHERE};
use crate::scheduler::{CLASSES, Label, Reason, SUITES, class_of};
use std::time::Duration;
use testudo_crypto::{Direction, Job};
use testudo_ipsec::Moment;

/// Jobs between two submissions that are decided of.
const JOBS: usize = 2048;
/// A submission of fewer jobs is decided of.
const FEW: usize = 16;
/// So often a suite is decided of before it is settled: each engine is asked for some of its jobs by then.
const DECIDED: u8 = 64;
/// A suite that one engine no longer has all classes of stays as it is for so long: each of its lanes is told.
const UNSETTLED: Duration = Duration::from_millis(100);

/// A suite.
#[derive(Debug, Clone, Copy, Default)]
struct Rank {
    /// The engine that has all its classes.
    engine: Option<usize>,
    /// Those of which was decided.
    classes: u8,
    /// Decisions since it has none.
    decided: u8,
    /// Since when it has none.
    unsettled: Option<Moment>,
}

const _: () = assert!(CLASSES <= 8);

/// Which suites are settled.
#[derive(Debug, Default)]
pub(super) struct Settled {
    ranks: [Rank; SUITES],
    /// How many suites are.
    count: usize,
    /// Jobs until the next submission that is decided of.
    left: usize,
}

impl Settled {
    /// The next submission is decided of.
    pub(super) fn look_again(&mut self) {
        self.left = 0;
    }

    /// An engine is out of service. No lane names it any more.
    pub(super) fn withdraw(&mut self, engine: usize) {
        for rank in self.ranks.iter_mut().filter(|rank| rank.engine == Some(engine)) {
            *rank = Rank::default();
            self.count -= 1;
        }
    }

    /// Whether a submission of so many jobs is decided of; if not, they are counted down.
    fn is_due(&mut self, jobs: usize) -> bool {
        if self.count == 0 {
            return false;
        }
        let left = self.left.checked_sub(jobs).filter(|_| jobs >= FEW);
        self.left = left.unwrap_or(JOBS);
        left.is_none()
    }

    /// An engine has all classes of a suite, this one of them. Returns whether the suite is settled.
    fn settle(&mut self, of: Label, engine: usize, now: Moment) -> bool {
        let rank = &mut self.ranks[of.rank];
        if rank.engine.is_none() {
            rank.decided = rank.decided.saturating_add(1);
            let is_early = rank.unsettled.is_some_and(|since| now.since(since) < UNSETTLED);
            if is_early || rank.decided < DECIDED {
                return false;
            }
            *rank = Rank { engine: Some(engine), ..Rank::default() };
            self.count += 1;
        }
        rank.classes |= 1 << of.class;
        true
    }

    /// A suite is settled no more. Returns whether it was.
    fn unsettle(&mut self, of: Label, now: Moment) -> bool {
        let was_settled = self.ranks[of.rank].engine.is_some();
        self.count -= usize::from(was_settled);
        self.ranks[of.rank] = Rank { unsettled: Some(now), ..Rank::default() };
        was_settled
    }
}

impl Dispatcher {
    /// Whether [`submit_live`](Self::submit_live) decides of jobs. If not, they are counted as their lanes say.
    #[cold]
    pub(super) fn is_to_be_decided(&mut self, addressed: &Addressed, jobs: &[Job]) -> bool {
        let Some(live) = &mut self.live else { return false };
        if matches!(addressed, Addressed::NotAll) || live.settled.is_due(jobs.len()) {
            return true;
        }
        if live.settled.count > 0 {
            self.count_settled(jobs);
        }
        false
    }

    fn count_settled(&mut self, jobs: &[Job]) {
        let Some(live) = &mut self.live else { return };
        let (mut last, mut row, mut count) = (u64::MAX, None, 0);
        let mut is_known = true;
        for job in jobs {
            let class = class_of(job.text_bytes);
            let id = (u64::from(job.sa) << 1 | u64::from(job.direction == Direction::Open)) << 3;
            let id = id | u64::try_from(class).unwrap_or(0);
            if id != last {
                if let Some((of, engine)) = row {
                    live.costs.shares.count_many(of, engine, Reason::Best, count);
                }
                (last, count) = (id, 0);
                let lane = self.lanes.of(job).filter(|lane| lane.is_settled);
                row = lane.map(|lane| (super::live::label(lane.suite_rank, class), lane.first.0 as usize));
                is_known &= row.is_none_or(|(of, _)| live.settled.ranks[of.rank].classes >> class & 1 == 1);
            }
            count += 1;
        }
        if let Some((of, engine)) = row {
            live.costs.shares.count_many(of, engine, Reason::Best, count);
        }
        if !is_known {
            live.settled.look_again();
        }
    }

    /// A job was given to an engine of those in the mask `able`, for this reason. Its SA names the engine if that
    /// has all jobs of the suite.
    pub(super) fn settle_suite(&mut self, job: &Job, of: Label, chosen: First, reason: Reason, able: u8) {
        let Some(live) = &mut self.live else { return };
        if live.costs.ends_late(able) || !matches!(reason, Reason::Best | Reason::Failed) {
            return;
        }
        let engine = chosen.0 as usize;
        let is_others = live.settled.ranks[of.rank].engine.is_some_and(|settled| settled != engine);
        if reason == Reason::Failed || is_others || live.costs.has_all(of.rank) != Some(engine) {
            return self.unsettle_suite(of);
        }
        if live.settled.settle(of, engine, live.costs.now())
            && let Some(lane) = self.lanes.of_mut(job)
        {
            (lane.first, lane.is_settled) = (chosen, true);
        }
    }

    /// A suite is settled no more: its SAs name no engine.
    fn unsettle_suite(&mut self, of: Label) {
        let Some(live) = &mut self.live else { return };
        if live.settled.unsettle(of, live.costs.now()) {
            let of_suite = |rank| super::live::label(rank, of.class).rank == of.rank;
            for lane in self.lanes.iter_mut().filter(|lane| lane.is_settled && of_suite(lane.suite_rank)) {
                lane.name(NOWHERE);
            }
        }
    }
}

#[cfg(test)]
mod tests;

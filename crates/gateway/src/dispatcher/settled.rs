//! Submissions of which nothing is to be decided.
//!
//! Where all engines that take the keys of a suite end jobs inside `submit`, what a submission has given to
//! them delays each of them by the same. So the engine that is best for a suite is another only after
//! something was learned, and most submissions need not be learned of: while one engine has all classes of
//! a suite, the suite is *settled*, and the lanes of its SAs name that engine as those do that only one
//! engine takes. One submission in [`JOBS`] jobs is still decided of job by job and measured, and so is each
//! of [few](FEW) jobs, and each that has a class of which was not decided yet.

use super::{Addressed, Dispatcher};
use crate::lanes::{First, Lane, Lanes, NOWHERE};
use crate::scheduler::{CLASSES, Label, Reason, SUITES, class_of};
use std::time::Duration;
use testudo_crypto::Job;
use testudo_ipsec::Moment;

/// Jobs between two submissions that are decided of, on average. Between half of that and the half more, so
/// that no rhythm of suites and directions hides one of them.
const JOBS: usize = 2048;
/// A submission of fewer jobs is decided of.
const FEW: usize = 16;
/// A suite that one engine no longer has all classes of stays as it is for so long: each of its lanes is
/// told.
const UNSETTLED: Duration = Duration::from_millis(100);

/// A suite.
#[derive(Debug, Clone, Copy, Default)]
struct Rank {
    /// The engine that has all its classes.
    engine: Option<usize>,
    /// Those of which was decided.
    classes: u8,
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
    /// Of a sequence of numbers without a pattern.
    random: u32,
}

impl Settled {
    /// An engine is out of service. No suite is settled, and no lane says so.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Whether a submission of so many jobs is decided of; if not, they are counted down.
    fn is_due(&mut self, jobs: usize) -> bool {
        if self.count == 0 {
            return false;
        }
        // These say little of what many cost, and do not stand for them.
        if jobs < FEW {
            return true;
        }
        let left = self.left.checked_sub(jobs);
        self.left = left.unwrap_or_else(|| self.draw());
        left.is_none()
    }

    /// A linear congruential generator (Numerical Recipes): its high bits have no short period.
    fn draw(&mut self) -> usize {
        self.random = self.random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        JOBS / 2 + usize::try_from(self.random >> 16).unwrap_or(0) % JOBS
    }

    /// An engine has all classes of a suite, this one of them. Returns whether the suite is settled.
    fn settle(&mut self, of: Label, engine: usize, now: Moment) -> bool {
        let rank = &mut self.ranks[of.rank];
        if rank.engine.is_none() {
            if rank.unsettled.is_some_and(|since| now.since(since) < UNSETTLED) {
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
    /// [`submit`](Self::submit), where jobs are placed by what they cost.
    #[cold]
    pub(super) fn submit_placed(
        &mut self,
        addressed: Addressed,
        jobs: &mut Vec<Job>,
        released: &mut Vec<Job>,
    ) -> bool {
        if self.is_to_be_decided(addressed, jobs) {
            return self.submit_live(jobs, released);
        }
        let time = |of: &Self| of.live.as_ref().map(|live| live.costs.time()).unwrap_or_default();
        // What an engine elsewhere is away meanwhile, it is not because the worker did not look.
        let began = self.live.as_ref().is_some_and(|live| live.costs.has_late()).then(|| time(self));
        let all_ended = self.submit_addressed(addressed, jobs, released);
        let took = began.map(|began| time(self).since(began));
        if let (Some(live), Some(took)) = (&mut self.live, took) {
            live.costs.spent(took);
        }
        all_ended
    }

    /// Whether [`submit_live`](Self::submit_live) decides of jobs. If not, they are counted as their lanes
    /// say.
    fn is_to_be_decided(&mut self, addressed: Addressed, jobs: &[Job]) -> bool {
        let Some(live) = &mut self.live else { return false };
        if addressed == Addressed::NotAll || live.costs.asks_again() || live.settled.is_due(jobs.len()) {
            return true;
        }
        if live.settled.count == 0 {
            return false;
        }
        let (lanes, live) = (&self.lanes, &*live);
        let knows = |of: Label| live.settled.ranks[of.rank].classes >> of.class & 1 == 1;
        let count = |of, engine, jobs: u64| live.costs.shares.count_many(of, engine, Reason::Best, jobs);
        for (at, (of, engine, of_run)) in runs(lanes, jobs).enumerate() {
            if !knows(of) {
                // A class that is new is decided of first, and with it all, which are counted there.
                runs(lanes, jobs)
                    .take(at)
                    .for_each(|(of, engine, of_run)| count(of, engine, of_run.wrapping_neg()));
                return true;
            }
            count(of, engine, of_run);
        }
        false
    }

    /// A job was given to an engine of those in the mask `able`, for this reason. Its SA names the engine if
    /// that has all jobs of the suite.
    pub(super) fn settle_suite(&mut self, job: &Job, of: Label, chosen: First, reason: Reason, able: u8) {
        let Some(live) = &mut self.live else { return };
        let (settled, has_all) = (live.settled.ranks[of.rank].engine, live.costs.has_all(of.rank));
        if settled.is_some() && settled != has_all {
            return self.unsettle_suite(of);
        }
        let engine = chosen.0 as usize;
        match reason {
            _ if live.costs.ends_late(able) => return,
            Reason::Failed => return self.unsettle_suite(of),
            Reason::Best if has_all != Some(engine) => return self.unsettle_suite(of),
            Reason::Best if live.costs.has_measured_others(of, engine, able) => {}
            _ => return,
        }
        if live.settled.settle(of, engine, live.costs.now())
            && let Some(lane) = self.lanes.of_mut(job)
        {
            (lane.first, lane.is_settled) = (chosen, true);
        }
    }

    /// A new SA of a settled suite names its engine at once if that has its key: after a rekeying nothing is
    /// to be decided anew. Where it has not, the key is laid out with the first packet.
    pub(super) fn settle_lane(&mut self, lane: &mut Lane) {
        let of = super::live::label(lane.suite_rank, 0);
        let settled = self.live.as_ref().and_then(|live| live.settled.ranks[of.rank].engine);
        let Some(engine) = settled else { return };
        let able = self.able_of(lane.key, lane.suite_rank);
        let is_late = self.live.as_ref().is_some_and(|live| live.costs.ends_late(able));
        if able >> engine & 1 == 0 || able.count_ones() < 2 || is_late {
            return;
        }
        if let (Some(id), Ok(engine)) = (self.placement.laid_out_at(lane.key, engine), u32::try_from(engine))
        {
            (lane.first, lane.is_settled) = ((engine, id), true);
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

/// Runs of jobs of one SA and class whose lanes are settled: what they are, their engine, and how many.
/// Chains are in none.
fn runs<'a>(lanes: &'a Lanes, jobs: &'a [Job]) -> impl Iterator<Item = (Label, usize, u64)> + 'a {
    let is_run = |one: &Job, next: &Job| {
        (one.sa, one.direction) == (next.sa, next.direction)
            && class_of(one.text_bytes) == class_of(next.text_bytes)
            && one.buffer.is_chain() == next.buffer.is_chain()
    };
    jobs.chunk_by(is_run).filter_map(|run| {
        let first = run.first().filter(|job| !job.buffer.is_chain())?;
        let lane = lanes.of(first).filter(|lane| lane.is_settled)?;
        let of = super::live::label(lane.suite_rank, class_of(first.text_bytes));
        Some((of, lane.first.0 as usize, u64::try_from(run.len()).unwrap_or(0)))
    })
}

#[cfg(test)]
mod tests;

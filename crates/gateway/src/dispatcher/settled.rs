//! Submissions of which nothing is to be decided.
//!
//! Where all engines that take the keys of a suite end jobs inside `submit`, what a submission has given to
//! them delays each of them by the same. So the engine that is best for a class of a suite is another only
//! after something was learned, and most submissions need not be learned of: once that engine is known, the
//! class is *settled*, and with its first class the suite. The lanes of its SAs name the suite's engine, as
//! those do that only one engine takes; where another has a class, its jobs get their keys there. One
//! submission in [`JOBS`] jobs is still decided of job by job and measured, and so is each that has a class
//! of which was not decided yet, or [many](RARE) jobs of classes that are not settled. Submissions of
//! [few](FEW) jobs are counted for themselves: they say little of what many cost, and do not stand for them.
//! A worker under full load has such, too: of long packets it takes no more at a time than a cache holds.

use super::live::Live;
use super::{Addressed, Dispatcher};
use crate::lanes::{First, Lane, NOWHERE};
use crate::scheduler::{CLASSES, Label, Reason, SUITES, class_of};
use std::time::Duration;
use testudo_crypto::{Job, KeyId};
use testudo_ipsec::Moment;

/// Jobs between two submissions that are decided of, on average. Between half of that and the half more, so
/// that no rhythm of suites and directions hides one of them.
const JOBS: usize = 2048;
/// Submissions of fewer jobs are counted for themselves.
const FEW: usize = 16;
/// A worker that has little to do has time to decide: after so long, of one of the next few jobs.
const AT_REST: Duration = Duration::from_millis(1);
/// Of so many jobs of a submission one may be of a class that is not settled: it goes to the engine that
/// would have it by what is known. With random lengths some class of some suite is rare, and measured late.
const RARE: usize = 8;
/// A suite that is settled no more stays as it is for so long: each of its lanes is told.
const UNSETTLED: Duration = Duration::from_millis(100);

/// A suite.
#[derive(Debug, Clone, Copy, Default)]
struct Rank {
    /// The engine that its lanes name.
    engine: Option<usize>,
    /// Those of the classes that are settled.
    classes: [Option<u8>; CLASSES],
    /// Since when it has none.
    unsettled: Option<Moment>,
}

impl Rank {
    fn engine_of(&self, class: usize) -> Option<usize> {
        self.classes[class].map(usize::from)
    }
}

/// Which suites are settled.
#[derive(Debug, Default)]
pub(super) struct Settled {
    ranks: [Rank; SUITES],
    /// How many suites are.
    count: usize,
    /// Jobs until the next submission that is decided of: of many, and of few.
    left: [usize; 2],
    /// When one of the next few was last made due.
    few: Moment,
    /// Of a sequence of numbers without a pattern.
    random: u32,
}

impl Settled {
    /// An engine is out of service. No suite is settled, and no lane says so.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Whether a submission of so many jobs is decided of; if not, they are counted down.
    fn is_due(&mut self, jobs: usize, now: Moment) -> bool {
        if self.count == 0 {
            return false;
        }
        let is_few = jobs < FEW;
        if is_few && now.since(self.few) >= AT_REST {
            // Not the first of them: in each turn that is of the same direction.
            (self.few, self.left[1]) = (now, self.left[1].min(self.draw() % FEW));
        }
        let left = self.left[usize::from(is_few)].checked_sub(jobs);
        self.left[usize::from(is_few)] = left.unwrap_or_else(|| self.draw());
        left.is_none()
    }

    /// The next submission is decided of.
    #[cfg(test)]
    pub(super) fn be_due(&mut self) {
        self.left = [0; 2];
    }

    /// A linear congruential generator (Numerical Recipes): its high bits have no short period.
    fn draw(&mut self) -> usize {
        self.random = self.random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        JOBS / 2 + usize::try_from(self.random >> 16).unwrap_or(0) % JOBS
    }

    /// An engine has a class of a suite.
    fn settle(&mut self, of: Label, engine: usize, now: Moment) {
        let rank = &mut self.ranks[of.rank];
        if rank.engine.is_none() {
            if rank.unsettled.is_some_and(|since| now.since(since) < UNSETTLED) {
                return;
            }
            *rank = Rank { engine: Some(engine), ..Rank::default() };
            self.count += 1;
        }
        rank.classes[of.class] = u8::try_from(engine).ok();
    }

    /// The engine that has a job, if its class is settled.
    fn engine_of(&self, of: Label) -> Option<usize> {
        self.ranks[of.rank].engine_of(of.class)
    }

    /// A suite is settled no more. Returns whether it was.
    fn unsettle(&mut self, of: Label, now: Moment) -> bool {
        let was_settled = self.ranks[of.rank].engine.is_some();
        self.count -= usize::from(was_settled);
        self.ranks[of.rank] = Rank { unsettled: Some(now), ..Rank::default() };
        was_settled
    }
}

impl Live {
    /// The engine that has a class of a settled suite, or would have it by what is known.
    fn engine_of(&self, of: Label) -> Option<usize> {
        self.settled.engine_of(of).or_else(|| self.costs.engine_of(of))
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
        let Some(addressed) = self.address_settled(addressed, jobs) else {
            return self.submit_live(jobs, released);
        };
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

    /// Gives jobs their keys where their classes have other engines than their lanes, and counts all; `None`
    /// if [`submit_live`](Self::submit_live) is to decide of them.
    fn address_settled(&mut self, addressed: Addressed, jobs: &mut [Job]) -> Option<Addressed> {
        self.moves = false;
        let now = self.in_flight.now();
        let live = self.live.as_mut()?;
        if addressed == Addressed::NotAll || live.costs.asks_again() || live.settled.is_due(jobs.len(), now) {
            return None;
        }
        if live.settled.count == 0 {
            return Some(addressed);
        }
        let live = self.live.as_deref()?;
        let count = |of, engine, jobs: u64| live.costs.shares.count_many(of, engine, Reason::Best, jobs);
        let (mut moves, mut unsettled, mut next) = (false, 0, 0);
        while next < jobs.len() {
            let length = run_length(&jobs[next..]);
            let run = next..next + length;
            next = run.end;
            let Some((lane, of)) = self.settled_lane(&jobs[run.start]) else { continue };
            let own = lane.first.0 as usize;
            if live.settled.engine_of(of) != Some(own) {
                let Some((engine, key)) = self.elsewhere(of, lane) else {
                    // What is new is decided of first, and with it all, which are counted there.
                    self.uncount(&jobs[..run.start]);
                    return None;
                };
                unsettled += if live.settled.engine_of(of).is_none() { length } else { 0 };
                moves |= engine != own;
                count(of, engine, u64::try_from(length).unwrap_or(0));
                jobs[run].iter_mut().for_each(|job| job.key = key);
                continue;
            }
            count(of, own, u64::try_from(length).unwrap_or(0));
        }
        if unsettled > jobs.len() / RARE {
            self.uncount(jobs);
            return None;
        }
        self.moves = moves;
        Some(if moves { self.addressed(jobs) } else { addressed })
    }

    /// The engine that has a class, and the id of an SA's key there; those of its lane if that engine does
    /// not take the key.
    fn elsewhere(&self, of: Label, lane: &Lane) -> Option<(usize, KeyId)> {
        let live = self.live.as_ref()?;
        let engine = live.engine_of(of)?;
        let own = lane.first.0 as usize;
        let able = live.able.get(usize::from(lane.suite_rank)).copied().unwrap_or(0);
        if engine == own || self.placement.not_refused(lane.key, able) >> engine & 1 == 0 {
            return Some((own, lane.first.1));
        }
        Some((engine, self.placement.laid_out_at(lane.key, engine)?))
    }

    /// Takes back what was counted.
    #[cold]
    fn uncount(&self, jobs: &[Job]) {
        let Some(live) = &self.live else { return };
        for (lane, of) in jobs.iter().filter_map(|job| self.settled_lane(job)) {
            if let Some((engine, _)) = self.elsewhere(of, lane) {
                live.costs.shares.count_many(of, engine, Reason::Best, 1_u64.wrapping_neg());
            }
        }
    }

    /// Which engines jobs are for that have their keys. The engine of each is noted.
    fn addressed(&mut self, jobs: &[Job]) -> Addressed {
        self.note_engines(jobs);
        match self.engines.first() {
            Some(first) if self.engines.iter().all(|engine| engine == first) => Addressed::ToOne(*first),
            _ => Addressed::ToSeveral,
        }
    }

    /// The settled lane of a job, and what the job is. Chains are none that are decided of.
    fn settled_lane(&self, job: &Job) -> Option<(&Lane, Label)> {
        let lane = self.lanes.of(job).filter(|lane| lane.is_settled && !job.buffer.is_chain())?;
        Some((lane, super::live::label(lane.suite_rank, class_of(job.text_bytes))))
    }

    /// Where a job goes first whose class may have another engine than its lane.
    #[cold]
    pub(super) fn first_of_moved(&self, job: &Job, lane: &Lane) -> First {
        let found = self.settled_lane(job).and_then(|(lane, of)| self.elsewhere(of, lane));
        let first = found.and_then(|(engine, id)| Some((u32::try_from(engine).ok()?, id)));
        first.unwrap_or(lane.first)
    }

    /// A job was given to an engine of those in the mask `able`, for this reason. Its SA names the engine of
    /// its suite if that is settled.
    pub(super) fn settle_suite(&mut self, job: &Job, of: Label, chosen: First, reason: Reason, able: u8) {
        let Some(live) = &mut self.live else { return };
        let (settled, has_all) = (live.settled.ranks[of.rank].engine, live.costs.has_all(of.rank));
        if settled.is_some() && has_all.is_some() && settled != has_all {
            return self.unsettle_suite(of);
        }
        let engine = chosen.0 as usize;
        match reason {
            _ if live.costs.ends_late(able) => return,
            Reason::Failed => return self.unsettle_suite(of),
            Reason::Best if live.costs.has_measured_others(of, engine, able) => {
                live.settled.settle(of, engine, live.costs.now());
            }
            // Nothing more is to be decided of an SA whose key the engine of the class refuses.
            Reason::Refused if live.settled.engine_of(of).is_some() => {}
            _ => return,
        }
        let Some(of_suite) = live.settled.ranks[of.rank].engine else { return };
        let Some(key) = self.lanes.of(job).filter(|lane| !lane.is_settled).map(|lane| lane.key) else {
            return;
        };
        let id = if engine == of_suite { None } else { self.placement.key_at(key, of_suite) };
        let first = id.and_then(|id| Some((u32::try_from(of_suite).ok()?, id)));
        if let Some(lane) = self.lanes.of_mut(job) {
            (lane.first, lane.is_settled) = (first.unwrap_or(chosen), true);
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

/// How many jobs at the front are of one SA and class, in chains or not.
fn run_length(jobs: &[Job]) -> usize {
    let is_like = |one: &Job, next: &Job| {
        (one.sa, one.direction) == (next.sa, next.direction)
            && class_of(one.text_bytes) == class_of(next.text_bytes)
            && one.buffer.is_chain() == next.buffer.is_chain()
    };
    let differs = jobs.windows(2).position(|pair| !is_like(&pair[0], &pair[1]));
    differs.map_or(jobs.len(), |at| at + 1)
}

#[cfg(test)]
mod tests;

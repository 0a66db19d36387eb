//! What engines cost, as measured: before packets come, and while they do.
//!
//! An engine that ends jobs inside `submit` costs the worker the whole of each: a time for each suite and
//! class of length. Of one that ends them later, three things are known: what handing over and taking back
//! a job costs the worker; how long a job of each suite and class is away when the engine has no other; and
//! the time between two completions while it is busy. One job at a time is followed to learn that.
//!
//! **Time that the worker did not have.** If more than the bound passes between two looks at an engine,
//! beside what the worker is known to have spent with its engines, its processor was taken (by a
//! hypervisor, by another thread): what comes back then was ready for an unknown part of that. Nothing is
//! learned from it, and the time is counted apart. But what is away is: a device that stalls is late
//! all the same. The same holds for a call of `submit` that takes eight times what was
//! expected, unless three in a row do. What is less than that counts as twice of what was expected at most,
//! and changes that by an eighth.

mod estimate;
mod load;
mod submissions;

use super::live::{CLASSES, Choice, Offer, Offers, Reason, UNKNOWN, best};
use super::shares::SharedShares;
use crate::clock::Clock;
use crate::placement::MAX_ENGINES;
use crate::rings::JobId;
#[cfg(test)]
use estimate::FAILING;
use estimate::{Estimate, PRESUMED, moved_at_most, picoseconds};
use load::{Load, PARTS_OF_WINDOWS};
use std::sync::Arc;
use std::time::Duration;
use testudo_ipsec::Moment;

/// Suites that are told apart. All others share the last rank.
pub(crate) const SUITES: usize = 16;
/// An engine that did not get a job of a class for so long is measured again.
const STALE: Duration = Duration::from_secs(1);
/// The same of one of which is only known what was measured before packets came.
const SOON: Duration = Duration::from_millis(1);
/// The same of one that would have it back too late.
const STALE_AND_LATE: Duration = Duration::from_secs(16);
/// Decisions between two looks for what is stale.
const LOOK: u32 = 256;
/// Decisions between two publications of a class.
const PUBLISH: u32 = 64;
/// Jobs that an engine is measured with at a time: fewer do not show what many cost each.
const ASKED: u64 = 32;
/// One that costs more than so many times the least, by what was measured before packets came, is asked for
/// one job until packets were measured: no cache makes up for that.
const FAR_DEARER: u64 = 2;
/// After such a pause an engine has a suite's code and keys in no cache, which few jobs show.
const COLD: Duration = Duration::from_micros(100);
/// Jobs of a call that says what many cost each.
const MANY: u64 = 8;
/// The same of a call for one class of its engine's.
const MANY_ALONE: usize = 8;
/// A submission that takes so many times what was expected was interrupted.
const INTERRUPTED: u64 = 8;
/// The weight of a new measurement of handing over and taking back, which each call is one of, is one part
/// in so many.
const PARTS_OF_CALLS: u64 = 16;
/// What a turn may take beside the time with engines: headers of 638 packets, and their ports.
const TURN: Duration = Duration::from_micros(500);

/// Jobs of one suite and class.
#[derive(Debug, Clone, Copy, Default)]
struct Group {
    estimates: [Estimate; MAX_ENGINES],
    choice: Choice,
    decisions: u32,
}

impl Group {
    /// Whether the next job is to be decided of in any case: another engine may soon have the class, or it is
    /// time for a look.
    fn is_due(&self) -> bool {
        !self.choice.is_settled() || self.decisions.wrapping_add(1) % PUBLISH == 1
    }
}

/// A look is a publication, too.
const _: () = assert!(LOOK.is_multiple_of(PUBLISH));

/// An engine that is measured in this submission.
#[derive(Debug, Clone, Copy)]
struct Asked {
    engine: usize,
    of: Label,
    /// Jobs that it is to have, and those that it is still to have.
    all: u64,
    jobs: u64,
    /// Whether one of them is to be followed.
    follows: bool,
    /// It had some for that just before: its code and keys are in a cache.
    is_warm: bool,
}

/// An engine that was measured after a pause, and is to be measured again at once.
#[derive(Debug, Clone, Copy)]
struct Again {
    engine: usize,
    of: Label,
    jobs: u64,
    /// Submissions until it is forgotten.
    left: u8,
}

/// A job that is followed.
#[derive(Debug, Clone, Copy)]
struct Followed {
    id: JobId,
    of: Label,
    since: Moment,
    /// Jobs that the engine had before it.
    ahead: u64,
    /// Whether the worker has looked all the time.
    teaches: bool,
}

/// Suite and class of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Label {
    pub(crate) rank: usize,
    pub(crate) class: usize,
}

/// What is expected of the jobs of each suite and class, and how many there are; 0 between submissions.
type Parts = [[(u64, u32); CLASSES]; SUITES];

/// What an engine has.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Held {
    pub(crate) jobs: usize,
    /// How many more it takes; as many as there are if that is not known.
    pub(crate) room: usize,
    /// How long it has had what it was given first; 0 if that is not known.
    pub(crate) oldest: Duration,
}

/// What the engines of a worker cost, and what was decided by it.
pub(crate) struct Costs {
    bound: Duration,
    clock: Box<dyn Clock>,
    groups: Box<[[Group; CLASSES]; SUITES]>,
    loads: [Load; MAX_ENGINES],
    /// Engines that end jobs later, as a mask.
    late: u8,
    now: Moment,
    looked: Moment,
    /// What the worker has spent with engines since, and whether it was interrupted there.
    spent_ps: u64,
    was_interrupted: bool,
    /// What this submission has given to engines that end jobs inside `submit`.
    turn_ps: u64,
    /// When it began, and how long the packets that it is of may have waited until the worker was back from
    /// the one before: half of the bound at most.
    began: Moment,
    waited_ps: u64,
    asked: Option<Asked>,
    again: Option<Again>,
    parts: Box<Parts>,
    pub(crate) shares: Arc<SharedShares>,
}

impl Costs {
    /// Of engines of which it is said whether they end jobs inside `submit`.
    pub(crate) fn new(
        bound: Duration,
        ends_inside: &[bool],
        shares: Arc<SharedShares>,
        clock: Box<dyn Clock>,
    ) -> Self {
        let mut loads = [Load::default(); MAX_ENGINES];
        loads.iter_mut().zip(ends_inside).for_each(|(load, inside)| load.ends_inside = *inside);
        let late = loads.iter().enumerate().take(ends_inside.len()).filter(|(_, load)| !load.ends_inside);
        let late = late.fold(0, |mask, (at, _)| mask | 1 << at);
        Self {
            bound,
            clock,
            groups: Box::new([[Group::default(); CLASSES]; SUITES]),
            loads,
            late,
            now: Moment::default(),
            looked: Moment::default(),
            spent_ps: 0,
            was_interrupted: false,
            turn_ps: 0,
            began: Moment::default(),
            waited_ps: 0,
            asked: None,
            again: None,
            parts: Box::default(),
            shares,
        }
    }

    pub(crate) fn set_clock(&mut self, clock: Box<dyn Clock>) {
        self.clock = clock;
    }

    pub(crate) fn time(&self) -> Moment {
        self.clock.now()
    }

    /// What was measured before packets came. It decides until the first of them are measured, for which the
    /// engine is soon asked.
    pub(crate) fn presume(&mut self, engine: usize, of: Label, job: Duration) {
        let estimate = &mut self.groups[of.rank][of.class].estimates[engine];
        (estimate.job_ps, estimate.presumed) = (picoseconds(job).max(1), PRESUMED);
    }

    /// What was measured of packets just now.
    #[cfg(test)]
    pub(crate) fn know(&mut self, engine: usize, of: Label, job: Duration) {
        let estimate = &mut self.groups[of.rank][of.class].estimates[engine];
        (estimate.job_ps, estimate.asked) = (picoseconds(job).max(1), Some(self.now));
    }

    /// The same of the worker's own time for jobs that an engine has elsewhere, and of the time between two
    /// of them: of several suites the longest counts.
    pub(crate) fn know_elsewhere(&mut self, engine: usize, submit: Duration, between: Duration) {
        let load = &mut self.loads[engine];
        load.submit_ps = load.submit_ps.max(picoseconds(submit));
        load.between_ps = load.between_ps.max(picoseconds(between));
    }

    /// The same of the worker's time to take one back.
    pub(crate) fn know_taking_back(&mut self, engine: usize, poll: Duration) {
        let load = &mut self.loads[engine];
        load.poll_ps = load.poll_ps.max(picoseconds(poll));
    }

    /// How many jobs an engine wants at a time; `None` if what it [takes for one](Self::learn_between) is
    /// measured by those who give it batches.
    pub(crate) fn set_batch(&mut self, engine: usize, jobs: Option<usize>) {
        if let Some(load) = self.loads.get_mut(engine) {
            load.batch = jobs.and_then(|jobs| u64::try_from(jobs).ok()).unwrap_or(u64::MAX);
        }
    }

    /// An engine took so long for each job of a batch, which it began as soon as it had ended the one before.
    pub(crate) fn learn_between(&mut self, engine: usize, each: Duration) {
        if let Some(load) = self.loads.get_mut(engine) {
            load.between_ps = moved_at_most(load.between_ps, picoseconds(each), PARTS_OF_WINDOWS);
        }
    }

    /// The same of a batch that may not have filled the engine: a job of a larger one takes no more.
    pub(crate) fn learn_between_at_most(&mut self, engine: usize, each: Duration) {
        let known_ps = self.loads.get(engine).map_or(0, |load| load.between_ps);
        if known_ps == 0 || picoseconds(each) < known_ps {
            self.learn_between(engine, each);
        }
    }

    /// How many jobs engines that end them inside `submit` do in a quarter of the bound, of the dearest suite
    /// and class that is known, but one at least: meanwhile nobody looks at ports and other engines.
    pub(crate) fn most_at_once(&self) -> usize {
        let least_ps = |group: &Group| {
            let engines = group.estimates.iter().zip(&self.loads);
            let inside = engines.filter(|(estimate, load)| load.ends_inside && estimate.is_known());
            inside.map(|(estimate, _)| estimate.job_ps).min()
        };
        let dearest_ps = self.groups.as_flattened().iter().filter_map(least_ps).max();
        let most = dearest_ps.map_or(u64::MAX, |job_ps| picoseconds(self.bound) / 4 / job_ps);
        usize::try_from(most).unwrap_or(usize::MAX).max(1)
    }

    /// A submission begins, where engines have this much.
    pub(crate) fn begin(&mut self, now: Moment, load: impl Fn(usize) -> Held) {
        if now > self.began {
            let turn_ps = picoseconds(now.since(self.began));
            (self.began, self.waited_ps) = (now, turn_ps.min(picoseconds(self.bound) / 2));
        }
        (self.now, self.turn_ps, self.asked) = (now, 0, None);
        self.again = self.again.and_then(|again| Some(Again { left: again.left.checked_sub(1)?, ..again }));
        if now > self.looked {
            (self.looked, self.spent_ps, self.was_interrupted) = (now, 0, false);
        }
        for (engine, of) in self.loads.iter_mut().enumerate().filter(|(_, load)| !load.ends_inside) {
            let Held { jobs, room, oldest } = load(engine);
            of.jobs = u64::try_from(jobs).unwrap_or(u64::MAX);
            of.oldest_ps = picoseconds(oldest);
            if jobs == 0 {
                // Whatever was followed is no longer there, and what it refused was not for want of room.
                (of.followed, of.is_full) = (None, false);
            }
            of.room = if of.is_full { 0 } else { u64::try_from(room).unwrap_or(u64::MAX) };
        }
    }

    /// Whether all engines of a mask but one have been measured with packets of this kind, or fail at them.
    pub(crate) fn has_measured_others(&self, of: Label, engine: usize, can: u8) -> bool {
        let estimates = self.groups[of.rank][of.class].estimates.iter().enumerate();
        let mut others = estimates.filter(|(at, _)| *at != engine && can >> at & 1 == 1);
        others.all(|(_, estimate)| estimate.fails() || estimate.is_known() && estimate.presumed == 0)
    }

    /// Whether any engine in service ends jobs later.
    pub(crate) fn has_late(&self) -> bool {
        self.late != 0
    }

    /// Whether any engine of a mask ends jobs later.
    pub(crate) fn ends_late(&self, can: u8) -> bool {
        can & self.late != 0
    }

    /// The engine that has all classes of a suite of which was decided, if that is one.
    pub(crate) fn has_all(&self, rank: usize) -> Option<usize> {
        let mut engines = self.groups[rank].iter().filter_map(|group| group.choice.engine);
        let first = engines.next()?;
        engines.all(|engine| engine == first).then_some(first)
    }

    /// The engine that has a class, if it was decided of.
    pub(crate) fn engine_of(&self, of: Label) -> Option<usize> {
        self.groups[of.rank][of.class].choice.engine
    }

    pub(crate) fn now(&self) -> Moment {
        self.now
    }

    /// What delays a job that an engine ends inside `submit`, of those in a mask that could do it. Where all
    /// do so, what packets waited before delays it by the same anywhere.
    fn before_ps(&self, can: u8) -> u64 {
        if self.ends_late(can) { self.turn_ps.saturating_add(self.waited_ps) } else { self.turn_ps }
    }

    fn offers(&self, of: Label, can: u8) -> Offers {
        let mut offers = Offers::default();
        let before_ps = self.before_ps(can);
        let estimates = &self.groups[of.rank][of.class].estimates;
        for (engine, (offer, (load, estimate))) in
            offers.iter_mut().zip(self.loads.iter().zip(estimates)).enumerate()
        {
            let job_ps = if estimate.is_known() { estimate.job_ps } else { UNKNOWN };
            let (cost_ps, expected_ps, alone_ps) = match load.ends_inside {
                true => (job_ps, before_ps.saturating_add(job_ps), job_ps),
                false => self.elsewhere(load, job_ps),
            };
            let has_room = load.ends_inside || load.room > 0;
            let (can, fails) = (can >> engine & 1 == 1, estimate.fails());
            *offer = Offer { can, fails, has_room, cost_ps, expected_ps, alone_ps };
        }
        offers
    }

    /// Cost of a job that is away for so long when there is no other, when it is expected back, and when it
    /// would be without those that wait before it.
    fn elsewhere(&self, load: &Load, away_ps: u64) -> (u64, u64, u64) {
        let held = load.followed.map_or(0, |followed| picoseconds(self.now.since(followed.since)));
        let held = held.max(load.oldest_ps);
        let alone_ps = away_ps.max(held);
        let expected_ps = load.jobs.saturating_mul(load.between_ps).saturating_add(away_ps).max(held);
        let cost_ps = if away_ps == UNKNOWN { UNKNOWN } else { load.submit_ps.saturating_add(load.poll_ps) };
        (cost_ps, expected_ps, alone_ps)
    }

    /// The engine for a job, of those in the mask `can`, and why; `None` if that is empty.
    pub(crate) fn decide(&mut self, of: Label, can: u8) -> Option<(usize, Reason)> {
        if let Some(engine) = self.still_asked(of, can).or_else(|| self.asked_again(of, can)) {
            return Some((engine, Reason::Measured));
        }
        if let Some(engine) = self.settled_inside(of, can) {
            return Some((engine, Reason::Best));
        }
        let bound_ps = picoseconds(self.bound);
        let offers = self.offers(of, can);
        if let Some(engine) = self.next_measured(of, &offers) {
            return Some((engine, Reason::Measured));
        }
        if self.groups[of.rank][of.class].choice.engine.is_none() {
            let has_all = self.has_all(of.rank);
            self.groups[of.rank][of.class].choice.prefer(has_all, &offers, bound_ps);
        }
        let group = &mut self.groups[of.rank][of.class];
        let before = group.choice.engine;
        let decided = group.choice.decide(&offers, bound_ps);
        if group.decisions % PUBLISH == 1 || group.choice.engine != before {
            self.shares.publish(of, &offers, group.choice.engine);
        }
        decided
    }

    /// The engine that is measured in this submission, if a job is for it.
    fn still_asked(&mut self, of: Label, can: u8) -> Option<usize> {
        let is_for = |asked: &&mut Asked| asked.of == of && asked.jobs > 0 && can >> asked.engine & 1 == 1;
        let asked = self.asked.as_mut().filter(is_for)?;
        let load = &self.loads[asked.engine];
        if !load.ends_inside && load.room == 0 {
            return None;
        }
        asked.jobs -= 1;
        Some(asked.engine)
    }

    /// The engine that was measured after a pause, if a job is for it.
    fn asked_again(&mut self, of: Label, can: u8) -> Option<usize> {
        let is_for = |again: &mut Again| again.of == of && can >> again.engine & 1 == 1;
        let Again { engine, jobs: all, .. } = self.again.take_if(is_for)?;
        let jobs = all.saturating_sub(1);
        self.asked = Some(Asked { engine, of, all, jobs, follows: false, is_warm: true });
        Some(engine)
    }

    /// Whether the next submission is to be decided of, so that an engine can be measured again.
    pub(crate) fn asks_again(&self) -> bool {
        self.again.is_some()
    }

    /// What an engine is to be asked for again, if jobs that it has just done to be measured were the first
    /// of their suite after a pause: whatever else it did meanwhile was other code with other keys.
    fn was_cold(&self, engine: usize, labels: &[Label], took: Duration, now: Moment) -> Option<Again> {
        let asked = self.asked.filter(|asked| asked.engine == engine && !asked.is_warm)?;
        let used = self.loads[engine].used[asked.of.rank]?;
        let is_cold = now.since(used) > took + COLD && labels.contains(&asked.of);
        is_cold.then_some(Again { engine, of: asked.of, jobs: asked.all, left: 4 })
    }

    /// The jobs that an engine is to do by themselves in this submission, so that their time is known and not
    /// a part of others' time, and how many there have to be: those that it is asked for, and beside these
    /// those of the engine that has their class. Both are measured alike then.
    pub(crate) fn alone(&self, engine: usize) -> Option<(Label, usize)> {
        let asked = self.asked.filter(|asked| self.loads[asked.engine].ends_inside)?;
        let has_class = self.groups[asked.of.rank][asked.of.class].choice.engine == Some(engine);
        match (asked.engine == engine, has_class && self.loads[engine].ends_inside) {
            (true, _) => Some((asked.of, 1)),
            (false, true) => Some((asked.of, MANY_ALONE)),
            (false, false) => None,
        }
    }

    /// The engine of a class, while all that could do the job end theirs inside `submit`: what this
    /// submission has given delays each of them by the same, so that nothing is to be decided before the next
    /// look.
    fn settled_inside(&mut self, of: Label, can: u8) -> Option<usize> {
        let group = &mut self.groups[of.rank][of.class];
        let engine = group.choice.engine.filter(|engine| can >> engine & 1 == 1)?;
        if can & self.late != 0 || can.count_ones() < 2 || group.is_due() {
            return None;
        }
        group.decisions = group.decisions.wrapping_add(1);
        Some(engine)
    }

    /// Whether a job like the last one, which went to the best engine, would go there, too: what that engine
    /// was given since has not changed anything.
    pub(crate) fn goes_on(&mut self, of: Label, engine: usize, can: u8) -> bool {
        let group = &self.groups[of.rank][of.class];
        if group.is_due() {
            return false;
        }
        let (load, estimate) = (&self.loads[engine], &group.estimates[engine]);
        let job_ps = if estimate.is_known() { estimate.job_ps } else { UNKNOWN };
        let bound_ps = picoseconds(self.bound);
        let is_same = match load.ends_inside {
            true => !self.ends_late(can) || self.before_ps(can).saturating_add(job_ps) <= bound_ps,
            false => load.room > 0 && self.elsewhere(load, job_ps).1 <= bound_ps,
        };
        if is_same {
            let group = &mut self.groups[of.rank][of.class];
            group.decisions = group.decisions.wrapping_add(1);
        }
        is_same
    }

    /// The best engine of those in the mask `can`, of this job alone; `None` if that is empty.
    pub(crate) fn best_of(&self, of: Label, can: u8) -> Option<usize> {
        best(&self.offers(of, can), picoseconds(self.bound))
    }

    /// An engine that is to do this job so that its cost is known.
    fn next_measured(&mut self, of: Label, offers: &Offers) -> Option<usize> {
        let (now, bound_ps, group) = (self.now, picoseconds(self.bound), &mut self.groups[of.rank][of.class]);
        group.decisions = group.decisions.wrapping_add(1);
        let looks = group.decisions % LOOK == 1;
        if offers.iter().filter(|offer| offer.can).count() < 2 {
            return None;
        }
        let is_first = self.asked.is_none();
        let (loads, mine) = (&self.loads, group.choice.engine);
        let is_due = |engine: usize, estimate: &Estimate| {
            let (offer, load) = (&offers[engine], &loads[engine]);
            let stale =
                if offer.expected_ps > bound_ps && estimate.is_known() { STALE_AND_LATE } else { STALE };
            let was_asked = estimate.asked.is_some_and(|asked| now.since(asked) < stale);
            let was_asked = match estimate.presumed {
                0 => was_asked,
                _ => estimate.asked.is_some_and(|asked| now.since(asked) < SOON),
            };
            let is_free = offer.can && offer.has_room && (load.ends_inside || load.followed.is_none());
            // One is asked in a submission; of one that ends jobs inside `submit`, the first job says enough.
            let is_next = is_first || load.ends_inside && !estimate.is_known();
            is_next && is_free && !was_asked && (!estimate.is_known() || looks && mine != Some(engine))
        };
        let due = (0..MAX_ENGINES).find(|engine| is_due(*engine, &group.estimates[*engine]))?;
        let least_ps = offers.iter().filter(|offer| offer.can).map(|offer| offer.cost_ps).min().unwrap_or(0);
        let estimate = &mut group.estimates[due];
        estimate.asked = Some(now);
        // What is not known may take long: it is one job. So is what is not in order, and what could not win.
        let ends_inside = self.loads[due].ends_inside;
        let is_far = estimate.presumed > 0 && offers[due].cost_ps > least_ps.saturating_mul(FAR_DEARER);
        let most = match (estimate.is_known() && !estimate.fails() && !is_far, ends_inside) {
            (false, _) => 1,
            (true, false) => ASKED,
            (true, true) => ASKED.min(bound_ps / 4 / estimate.job_ps).max(1),
        };
        if is_first {
            let (all, jobs) = (most, most - 1);
            self.asked = Some(Asked { engine: due, of, all, jobs, follows: !ends_inside, is_warm: false });
        }
        Some(due)
    }

    /// An engine gets a job, for this reason.
    pub(crate) fn give(&mut self, engine: usize, of: Label, reason: Reason) {
        let job_ps = self.groups[of.rank][of.class].estimates[engine].job_ps;
        let load = &mut self.loads[engine];
        if load.ends_inside {
            self.turn_ps = self.turn_ps.saturating_add(job_ps);
        } else {
            load.jobs = load.jobs.saturating_add(1);
            load.room = load.room.saturating_sub(1);
        }
        self.shares.count(of, engine, reason);
    }

    /// Follows a job that was given to an engine, if none is, and if there is such an engine.
    pub(crate) fn follow(&mut self, engine: usize, of: Label, id: JobId) {
        let (now, Some(load)) = (self.now, self.loads.get_mut(engine)) else { return };
        // The jobs that an engine is asked for are followed before any other.
        if let Some(asked) = self.asked.as_mut().filter(|asked| asked.follows && asked.engine == engine) {
            if asked.of != of {
                return;
            }
            asked.follows = false;
        }
        if !load.ends_inside && load.followed.is_none() {
            load.followed =
                Some(Followed { id, of, since: now, ahead: load.jobs.saturating_sub(1), teaches: true });
        }
    }

    /// An engine failed at a job.
    pub(crate) fn failed(&mut self, engine: usize, of: Label) {
        if let Some(estimate) = self.groups[of.rank][of.class].estimates.get_mut(engine) {
            (estimate.failed, estimate.presumed) = (estimate.failed.saturating_add(1), 0);
        }
    }

    /// A job goes to another engine, or was failed by its own: nothing is learned of it.
    pub(crate) fn left(&mut self, engine: usize, id: JobId) {
        if let Some(load) = self.loads.get_mut(engine) {
            load.followed.take_if(|followed| followed.id == id);
        }
    }

    /// A job of an engine that ends jobs later has ended inside `submit`, which took so long: of few jobs,
    /// such an engine may do all at once.
    pub(crate) fn ended_early(&mut self, engine: usize, id: JobId, took: Duration) {
        let load = self.loads.get_mut(engine);
        let ended = load.and_then(|load| load.followed.take_if(|followed| followed.id == id));
        if let Some(Followed { of, .. }) = ended.filter(|followed| followed.teaches) {
            self.groups[of.rank][of.class].estimates[engine].learn(picoseconds(took));
        }
    }

    /// An engine was given some jobs, of which it took so many, which took the worker so long. It is full if
    /// it refused some while it had others.
    pub(crate) fn handed_over(&mut self, engine: usize, taken: usize, is_full: bool, took: Duration) {
        let (jobs, took_ps) = (u64::try_from(taken).unwrap_or(u64::MAX), picoseconds(took));
        self.spend(took_ps);
        let load = &mut self.loads[engine];
        load.is_full |= is_full;
        let most_ps = load.submit_ps.saturating_mul(jobs).saturating_mul(INTERRUPTED);
        self.was_interrupted |= load.submit_ps > 0 && took_ps > most_ps && took > self.bound;
        // Few jobs say nothing of what many cost.
        if jobs >= MANY || load.submit_ps == 0 && taken > 0 {
            load.submit_ps = moved_at_most(load.submit_ps, took_ps / jobs, PARTS_OF_CALLS);
        }
    }

    /// The worker was with engines for so long, of which nothing is learned.
    pub(crate) fn spent(&mut self, took: Duration) {
        self.spend(picoseconds(took));
    }

    /// Time of the worker that its engines have had.
    fn spend(&mut self, took_ps: u64) {
        self.spent_ps = self.spent_ps.saturating_add(took_ps);
    }

    /// An engine has given back these jobs, which took the worker so long, and has so many others.
    pub(crate) fn gave_back(
        &mut self,
        engine: usize,
        now: Moment,
        took: Duration,
        mut ids: impl ExactSizeIterator<Item = JobId>,
        left: usize,
    ) {
        let count = u64::try_from(ids.len()).unwrap_or(u64::MAX);
        self.spend(picoseconds(took));
        let load = &mut self.loads[engine];
        if load.ends_inside {
            return;
        }
        load.is_full &= count == 0 && left > 0;
        let says_cost = count >= MANY || load.poll_ps == 0;
        if let Some(job_ps) = picoseconds(took).checked_div(count).filter(|_| says_cost) {
            load.poll_ps = moved_at_most(load.poll_ps, job_ps, PARTS_OF_CALLS);
        }
        load.count_completions(now, count, u64::try_from(left).unwrap_or(u64::MAX));
        let Some(followed) = load.followed else { return };
        if ids.any(|id| id == followed.id) {
            load.followed = None;
            if !followed.teaches {
                let estimate = &mut self.groups[followed.of.rank][followed.of.class].estimates[engine];
                if !estimate.is_known() {
                    // Nothing is known of it still: it is asked again, and not in a second.
                    estimate.asked = None;
                }
                return;
            }
            let queued = followed.ahead.saturating_mul(load.between_ps);
            let away = picoseconds(now.since(followed.since)).saturating_sub(queued);
            self.groups[followed.of.rank][followed.of.class].estimates[engine].learn(away);
        }
    }

    /// The worker looks at its engines. Nothing is learned of what was away while it did not for longer than
    /// the bound, its own work not counted.
    pub(crate) fn look(&mut self, now: Moment) {
        let gap_ps = picoseconds(now.since(self.looked)).saturating_sub(self.spent_ps);
        let was_away = gap_ps > picoseconds(self.bound.max(TURN));
        if was_away {
            self.shares.count_apart(gap_ps);
        }
        if was_away || self.was_interrupted {
            for load in &mut self.loads {
                load.busy = None;
                load.followed.iter_mut().for_each(|followed| followed.teaches = false);
            }
        }
        (self.looked, self.now, self.spent_ps, self.was_interrupted) = (now, now, 0, false);
    }

    /// What a job is known to take, in picoseconds; 0 if nothing is known.
    #[cfg(test)]
    pub(crate) fn known(&self, engine: usize, of: Label) -> u64 {
        self.groups[of.rank][of.class].estimates[engine].job_ps
    }

    /// An engine is out of service.
    pub(crate) fn withdrawn(&mut self, engine: usize) {
        if let Some(load) = self.loads.get_mut(engine) {
            *load = Load { ends_inside: load.ends_inside, batch: load.batch, ..Load::default() };
        }
        self.groups.as_flattened_mut().iter_mut().for_each(|group| group.choice.withdraw(engine));
    }
}

#[cfg(test)]
mod tests;

//! Jobs for deep engines, by way of the packet scheduler ([`scheduler`](crate::scheduler)).

use super::{Dispatcher, MOST_IN_A_TURN};
use crate::scheduler::{
    Class, Classes, Due, Gathering, LateJobs, Reason, SUITES, Scheduler, SchedulerSettings, SharedScheduled,
};
use std::sync::Arc;
use testudo_crypto::{Job, JobStatus};
use testudo_ipsec::Moment;

impl Dispatcher {
    /// How jobs are gathered from now on. To be called before any job is submitted.
    pub(crate) fn set_scheduler(&mut self, settings: &SchedulerSettings) {
        self.scheduler = Scheduler::new(self.placement.engines(), settings, self.arranger.formation);
        self.set_live(settings);
        for (engine, scheduled) in self.scheduled.iter().enumerate() {
            scheduled.set_deep(self.scheduler.as_ref().is_some_and(|scheduler| scheduler.is_deep(engine)));
        }
    }

    /// What the scheduler has done for each engine, to be read by other threads.
    pub(crate) fn scheduled(&self) -> Arc<[SharedScheduled]> {
        Arc::clone(&self.scheduled)
    }

    pub(super) fn gathering(&mut self, engine: usize) -> Option<&mut Gathering> {
        self.scheduler.as_mut()?.of(engine)
    }

    /// Gathers all of `jobs` for an engine, which is deep: `false` if it is not.
    #[cold]
    pub(super) fn gather(&mut self, engine: usize, jobs: &mut Vec<Job>, released: &mut Vec<Job>) -> bool {
        if self.gathering(engine).is_none() {
            return false;
        }
        let now = self.in_flight.now();
        let has_next = engine + 1 < self.placement.len();
        if has_next && self.rests_on(engine, now) {
            self.count(engine, |scheduled| scheduled.no_room(jobs.len()));
            jobs.drain(..).for_each(|job| self.hand_over(job, engine, Reason::Full, released));
            return true;
        }
        for job in jobs.drain(..) {
            if !self.is_admitted(engine, &job, now) {
                self.count(engine, |scheduled| scheduled.too_late(1));
                self.hand_over(job, engine, Reason::Late, released);
                continue;
            }
            let pushed = match has_next && self.has_half_of_the_pool(engine) {
                true => Err(job),
                false => self.push(engine, job, now, released),
            };
            if let Err(job) = pushed {
                // Bins and leftovers are full, or it has as many buffers as it may have.
                self.count(engine, |scheduled| scheduled.no_room(1));
                self.hand_over(job, engine, Reason::Full, released);
            }
        }
        true
    }

    /// Whether engines are asked by chunk times for what they are given: by their order, where another one
    /// is behind. What is placed by cost is decided of before it comes here.
    fn goes_by_chunk_times(&self, engine: usize) -> bool {
        self.live.is_none() && engine + 1 < self.placement.len()
    }

    /// Whether an engine is expected to have a job back within the bound, or is tried with it.
    fn is_admitted(&mut self, engine: usize, job: &Job, now: Moment) -> bool {
        if !self.goes_by_chunk_times(engine) || !self.has_closed(engine) {
            return true;
        }
        let class = self.lanes.of(job).map(|lane| Class::of(job, lane.suite_rank));
        let times = self.gathering(engine).map(|gathering| &mut gathering.times);
        class.zip(times).is_none_or(|(class, times)| times.admits(class, now))
    }

    /// Whether there is anything that an engine is not given, so that jobs have to be looked at.
    fn has_closed(&mut self, engine: usize) -> bool {
        self.gathering(engine).is_some_and(|gathering| gathering.times.has_closed())
    }

    /// What jobs are, where engines are asked by that.
    fn classes_of(&self, engine: usize, jobs: &[Job]) -> Classes {
        let mut classes = Classes::default();
        if self.goes_by_chunk_times(engine) {
            let class_of = |job: &Job| Some(Class::of(job, self.lanes.of(job)?.suite_rank));
            jobs.iter().filter_map(class_of).for_each(|class| classes.insert(class));
        }
        classes
    }

    /// Tells others which jobs an engine is not given, if that has changed.
    fn tell_late(&mut self, engine: usize) {
        let gathering = self.scheduler.as_mut().and_then(|scheduler| scheduler.of(engine));
        let (Some(gathering), Some(scheduled)) = (gathering, self.scheduled.get(engine)) else { return };
        let Some(closed) = gathering.times.to_be_told() else { return };
        let (suites, placement) = (self.suites.all(), &self.placement);
        let late = closed.flat_map(|class| {
            let (rank, direction, class) = class.parts();
            // The last rank is that of all other suites.
            let end = if rank + 1 < SUITES { rank + 1 } else { suites.len() };
            let of_rank = suites.get(rank..end).unwrap_or_default().iter().copied();
            let done = of_rank.filter(|suite| placement.able(*suite) >> engine & 1 == 1);
            done.map(move |suite| LateJobs { suite, direction, class })
        });
        if scheduled.set_late(late) {
            gathering.times.told();
        }
    }

    /// Whether an engine and its bins have half of the pool's buffers: should it stall, the other half is for
    /// all others.
    fn has_half_of_the_pool(&mut self, engine: usize) -> bool {
        let half = self.half;
        self.gathering(engine).is_some_and(|of| of.bins.under_way() + of.pipeline.under_way() >= half)
    }

    /// Puts a job into its bin. If all are full, they go to the engine if that has room for them.
    fn push(&mut self, engine: usize, job: Job, now: Moment, released: &mut Vec<Job>) -> Result<(), Job> {
        let rank = self.lanes.of(&job).map(|lane| lane.suite_rank);
        let Some(gathering) = self.gathering(engine) else { return Err(job) };
        let is_due = gathering.bins.is_full() && gathering.takes_chunk(now);
        if is_due {
            self.submit_chunk(engine, now, released);
        }
        let Some(gathering) = self.gathering(engine) else { return Err(job) };
        // The chunk may have changed the ranges of lengths.
        let label = gathering.bins.label(&job, rank);
        gathering.push(job, label, now)?;
        self.in_flight.gather();
        Ok(())
    }

    /// Does what is due for an engine that has given back `ended` jobs. A function of its own, so that jobs
    /// of other engines pay nothing for bins.
    #[inline(never)]
    pub(super) fn serve_bins(&mut self, engine: usize, ended: usize, now: Moment, released: &mut Vec<Job>) {
        let has_next = engine + 1 < self.placement.len();
        let Some(gathering) = self.gathering(engine) else { return };
        let each = gathering.pipeline.ended(ended, now);
        let is_most = !gathering.pipeline.was_half();
        gathering.learn_times(now);
        gathering.tune();
        self.tell_late(engine);
        // What an engine fails at makes room for a chunk that it may not want.
        if self.doubted >> engine & 1 == 1 {
            self.ask(engine, released);
        }
        self.look_whether_resting(engine, now);
        let Some(gathering) = self.gathering(engine) else { return };
        let due = gathering.due(now, has_next);
        self.learn_between(engine, each, is_most);
        match due {
            Due::Nothing => {}
            Due::Chunk => self.submit_chunk(engine, now, released),
            Due::Spill(until) => {
                let most = self.most_at_once();
                let spilled = self.spill(engine, (until, most), Reason::Late, released);
                self.count(engine, |scheduled| scheduled.too_late(spilled));
            }
        }
    }

    /// Asks an engine whether it rests; returns the answer.
    fn look_whether_resting(&mut self, engine: usize, now: Moment) -> bool {
        let is_resting = self.placement.is_resting(engine);
        self.gathering(engine).into_iter().for_each(|gathering| gathering.set_resting(is_resting, now));
        is_resting
    }

    /// Whether an engine rests for so long that nothing is to wait for it. It is asked again, since nobody
    /// does while it has nothing.
    fn rests_on(&mut self, engine: usize, now: Moment) -> bool {
        let rested = self.gathering(engine).is_some_and(|gathering| gathering.rests_on(now));
        rested && self.look_whether_resting(engine, now)
    }

    /// Submits what waits in bins, and flushes the engine. What it does not take goes to the next one. While
    /// it rests all waits on: it would refuse the whole, which says nothing of how much it could take.
    fn submit_chunk(&mut self, engine: usize, now: Moment, released: &mut Vec<Job>) {
        if self.look_whether_resting(engine, now) {
            return;
        }
        let Some(gathering) = self.gathering(engine) else { return };
        let mut jobs = std::mem::take(&mut gathering.out);
        let chunk = gathering.bins.chunk();
        let mut load = gathering.bins.take(&mut jobs);
        let left_over = gathering.bins.take_left_over();
        let (shape, tuned) = (gathering.bins.shape(), gathering.tuned());
        self.in_flight.leave_bins(jobs.len());
        let classes = self.classes_of(engine, &jobs);
        let taken = match self.live.is_some() {
            true => self.offer_live(engine, &mut jobs),
            false => self.offer(engine, &mut jobs),
        };
        self.placement.flush(engine);
        let has_failed =
            jobs.iter().take(taken).any(|job| job.status != JobStatus::Taken && self.has_failed(job));
        let is_under_way = |job: &&Job| job.status == JobStatus::Taken;
        let under_way = jobs.iter().filter(is_under_way).count();
        self.count(engine, |scheduled| {
            // What it fails at inside the call it has not taken.
            scheduled.submitted(under_way, jobs.len() - taken);
            scheduled.left_over(left_over);
            scheduled.gathered(shape, tuned, load);
        });
        let is_refused = taken < jobs.len();
        // One that takes nothing while it has nothing, or gives back what it has, rests: that says nothing of
        // how much it could take.
        let has_some = taken > 0 || self.in_flight.held(engine) > 0 && !self.in_flight.gives_back(engine);
        load.is_refused = is_refused && has_some;
        // The time of a part says nothing of the whole.
        load.is_full &= under_way == jobs.len();
        self.settle(engine, taken, &mut jobs, released);
        if let Some(gathering) = self.gathering(engine) {
            gathering.pipeline.set_chunk(chunk);
            gathering.pipeline.submitted(under_way, load, now);
            if under_way > 0 {
                let is_beside = gathering.times.submitted(&classes, now);
                gathering.pipeline.note(classes, has_failed, is_beside);
            } else {
                // Nothing of it comes back that would tell.
                gathering.times.ended_at_once(&classes, has_failed, now);
            }
            gathering.out = jobs;
            if is_refused {
                gathering.pipeline.refused();
                self.doubt(engine);
            }
        }
    }

    fn count(&self, engine: usize, count: impl Fn(&SharedScheduled)) {
        self.scheduled.get(engine).into_iter().for_each(count);
    }

    /// Gives jobs that came at a moment or before to the next engine, about so many at most; returns how many
    /// they are.
    #[inline(never)]
    fn spill(
        &mut self,
        engine: usize,
        (until, most): (Moment, usize),
        why: Reason,
        released: &mut Vec<Job>,
    ) -> usize {
        let Some(gathering) = self.gathering(engine) else { return 0 };
        let mut jobs = std::mem::take(&mut gathering.out);
        gathering.bins.take_until(until, most, &mut jobs);
        self.in_flight.leave_bins(jobs.len());
        let spilled = jobs.len();
        jobs.drain(..).for_each(|job| self.hand_over(job, engine, why, released));
        if let Some(gathering) = self.gathering(engine) {
            gathering.out = jobs;
        }
        spilled
    }

    /// Gives what waits for an engine that was taken out of service to the next one, as much as a turn has
    /// time for.
    pub(super) fn empty_bins(&mut self, engine: usize, released: &mut Vec<Job>) {
        let Some(gathering) = self.gathering(engine) else { return };
        gathering.pipeline.clear();
        if gathering.bins.under_way() > 0 {
            let all = (Moment(std::time::Duration::MAX), MOST_IN_A_TURN);
            self.spill(engine, all, Reason::Withdrawn, released);
        }
    }
}

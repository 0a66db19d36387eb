//! Engines that have failed at a job, or refused some: what has become of them.
//!
//! An engine whose device is lost ends each job as a fault at once, so that none of them is ever overdue, and
//! all packets would go to it and from it to the next engine until a restart. So one that fails is asked
//! whether it is out of service. If it is, it gets nothing any more, and is withdrawn when it has given
//! everything back: nothing is lost. If it got more meanwhile, it would have something whenever it is asked,
//! as long as packets come: a device thread has the last ones of a turn until the next one.
//!
//! An engine over several devices of which one is lost works on fewer chunks: more of them would be refused
//! whole, or wait on a device thread beyond the bound. So one that fails, or does not take all of a chunk, is
//! asked how many it works on by now, before it gets the next one.
//!
//! Keys that an engine has refused after it gave an id for them, as a device thread may, are asked for, too:
//! the SA goes to the next engine then, rather than have each of its jobs fail there first.
//!
//! A device may also be lost with a key while it has no job that would tell, or is given none because it
//! refuses every key: all engines are asked each second.

use super::Dispatcher;
use crate::lanes::NOWHERE;
use crate::placement::MAX_ENGINES;
use crate::rings::job_id;
use crate::withdrawn::WithdrawalReason;
use testudo_crypto::{Job, JobStatus};

impl Dispatcher {
    /// An engine has failed at a job or refused some, or a second has passed: it is asked with this poll or
    /// the next.
    #[cold]
    pub(super) fn doubt(&mut self, engine: usize) {
        if engine < MAX_ENGINES {
            self.doubted |= 1 << engine;
        }
    }

    /// An engine gives back a job that it has failed at, or whose SA is gone, behind so many others; `false`
    /// if it does not hold it.
    #[cold]
    #[inline(never)]
    pub(super) fn take_back(
        &mut self,
        job: Job,
        engine: usize,
        behind: usize,
        released: &mut Vec<Job>,
    ) -> bool {
        let Some(taken) = self.lanes.give_back(engine, job_id(&job)) else { return false };
        let has_failed = self.has_failed(&job);
        if has_failed {
            self.in_flight.fail(&taken);
        }
        self.in_flight.give_back(taken);
        if has_failed {
            self.gathering(engine).into_iter().for_each(|gathering| gathering.pipeline.failed(behind));
        }
        self.ended(job, engine, released);
        true
    }

    /// Whether an engine has failed at a job that it has ended. The key of a removed SA is gone from it.
    pub(super) fn has_failed(&self, job: &Job) -> bool {
        let is_done = matches!(job.status, JobStatus::Done | JobStatus::AuthenticationFailed);
        !is_done && self.lanes.of_ticket(job).is_some()
    }

    /// Asks all engines that are in doubt.
    #[cold]
    pub(super) fn ask_all(&mut self, released: &mut Vec<Job>) {
        for engine in 0..self.placement.len() {
            if self.doubted >> engine & 1 == 1 {
                self.ask(engine, released);
            }
        }
    }

    /// Asks an engine whether it is out of service, and withdraws it if it is. While it still has jobs these
    /// come back first, as faults, it gets no others, and the question stays. If it is not, asks on how many
    /// chunks it works.
    #[cold]
    pub(super) fn ask(&mut self, engine: usize, released: &mut Vec<Job>) {
        // One that is leaving has said so before.
        let is_out = self.placement.is_withdrawn(engine) || self.placement.is_out_of_service(engine);
        if is_out && self.in_flight.held(engine) > 0 {
            if !self.placement.is_withdrawn(engine) {
                self.placement.set_leaving(engine);
                self.leave_to_others(engine);
                self.empty_bins(engine, released);
            }
            return;
        }
        self.doubted &= !(1 << engine);
        self.follow_refusals(engine);
        if is_out && !self.placement.is_gone(engine) {
            self.withdraw(engine, WithdrawalReason::Failed, released);
        }
        let Some(suite) = self.gathering(engine).map(|gathering| gathering.suite) else { return };
        let under_way = self.placement.profile(engine, suite).under_way;
        self.gathering(engine).into_iter().for_each(|gathering| gathering.set_under_way(under_way));
    }

    /// No SA names an engine any more for a key that it has refused.
    #[cold]
    fn follow_refusals(&mut self, engine: usize) {
        let refused = self.placement.take_refused(engine);
        if refused.is_empty() {
            return;
        }
        for lane in self.lanes.iter_mut().filter(|lane| self.placement.refuse(lane.key, engine, &refused)) {
            lane.name(NOWHERE);
        }
    }

    /// No SA names an engine any more that gets nothing.
    #[cold]
    pub(super) fn leave_to_others(&mut self, engine: usize) {
        self.withdraw_live(engine);
        for lane in self.lanes.iter_mut() {
            if lane.first.0 as usize == engine || lane.is_settled {
                // There may be a hundred thousand: each one's key is laid out elsewhere with its next packet.
                lane.name(NOWHERE);
            }
        }
    }
}

//! Brings jobs to engines and back: fallback from engine to engine, and the order of each SA.
//!
//! An engine that keeps a job for too long is taken out of service ([`in_flight`](crate::in_flight)). The
//! jobs it holds are given up: their packets are lost, since the engine has the bytes, and each SA continues
//! without them. So is one that says that it is out of service itself ([`doubts`]), once it holds nothing.

mod chains;
mod doubts;
mod frames;
mod gathering;
mod in_place;
mod live;
mod offload;
mod settled;

use crate::formation::{Arranger, Formation, SuiteRanks};
use crate::in_flight::InFlight;
use crate::lanes::{First, Lane, Lanes, NO_ENGINE, NOWHERE};
use crate::placement::{KeyPreparers, PlacedKey, Placement, PlacementError, SaKey};
use crate::rings::job_id;
use crate::scheduler::{Reason, Scheduler, SchedulerSettings, SharedScheduled};
use crate::withdrawn::{Withdrawal, WithdrawalReason, Withdrawn};
pub use live::EngineCosts;
use live::Live;
use std::sync::Arc;
use testudo_crypto::{Direction, Engine, Job, JobStatus, KeyId, Suite};
use testudo_ipsec::{Moment, SaRef};

/// Completions taken from an engine at a time. A turn hands out up to 319 jobs in each direction, four
/// batches of which the last begins with one packet missing: with less than both together an engine under
/// full load fills up, batch by batch.
const POLL_MAX: usize = 1024;

/// Jobs that a turn has time for, of those that one engine leaves to the next, of those that have waited for
/// others of their SA, and of those that are given up: more of them come back at once where a device is late
/// or lost, and what is left is for the next turns. New packets are not among them.
const MOST_IN_A_TURN: usize = 1024;
/// Jobs of a submission for which there is memory from the start.
const SUBMISSION: usize = 1024;

/// Where the jobs of a batch are submitted first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Addressed {
    ToOne(usize),
    ToSeveral,
    /// Some have no SA any more, or their keys are laid out in no engine that is in service.
    NotAll,
}

/// Where jobs are between being made and being finished by the protocol.
pub(crate) struct Dispatcher {
    placement: Placement,
    /// How much engines have taken and not given back, and when.
    in_flight: InFlight,
    /// SAs, and the order of each one's jobs.
    lanes: Lanes,
    withdrawals: Vec<Withdrawal>,
    /// Engines that are to be asked what has become of them, a bit for each.
    doubted: u8,
    /// With so many jobs in flight, few buffers of the pool are left for other SAs.
    crowd: usize,
    /// So many buffers an engine with bins may have.
    half: usize,
    /// So many jobs may end late.
    late: usize,
    /// Jobs that came back without their buffers since this was last told.
    lost: usize,
    /// Jobs that are queued for each engine. Between calls those that a turn had no time for.
    queues: Vec<Vec<Job>>,
    /// Some of a queue; empty between calls.
    some: Vec<Job>,
    /// Queued jobs for which this turn still has time.
    left: usize,
    polled: Vec<Job>,
    arranger: Arranger,
    suites: SuiteRanks,
    /// Whether the first engine of any SA prefers bursts for its suite.
    prefers_bursts: bool,
    /// Where engines want more than bursts.
    scheduler: Option<Box<Scheduler>>,
    /// What it has done, by engine.
    scheduled: Arc<[SharedScheduled]>,
    /// What jobs are placed by, if by cost.
    live: Option<Box<Live>>,
    /// Whether jobs of this submission go to other engines than their lanes name.
    moves: bool,
    /// The engine of each job of a submission that several have, where that is noted.
    engines: Vec<usize>,
    /// Divides jobs among engines.
    divider: Arranger,
    /// Whether any SA leaves its frames to an engine, or did.
    leaves_frames: bool,
}

impl Dispatcher {
    /// A dispatcher for a pool of `buffers` buffers.
    pub(crate) fn new(engines: Vec<Box<dyn Engine>>, buffers: usize) -> Self {
        let placement = Placement::new(engines);
        let queues = (0..placement.len()).map(|_| Vec::new()).collect();
        let mut lanes = Lanes::new(buffers);
        // Of engines that end jobs late, each buffer may wait for its turn, or be released at once.
        let late = if placement.all_synchronous() { 0 } else { buffers };
        lanes.reserve(late);
        let scheduled = (0..placement.len()).map(|_| SharedScheduled::default()).collect();
        let mut dispatcher = Self {
            placement,
            in_flight: InFlight::default(),
            lanes,
            late,
            lost: 0,
            withdrawals: Vec::new(),
            doubted: 0,
            crowd: buffers - buffers / 4,
            half: buffers / 2,
            queues,
            some: Vec::with_capacity(late.min(MOST_IN_A_TURN)),
            left: MOST_IN_A_TURN,
            polled: Vec::with_capacity(late.min(POLL_MAX)),
            arranger: Arranger::default(),
            suites: SuiteRanks::default(),
            prefers_bursts: false,
            scheduler: None,
            scheduled,
            live: None,
            moves: false,
            engines: Vec::with_capacity(SUBMISSION),
            divider: Arranger::by_rank(SUBMISSION),
            leaves_frames: false,
        };
        // Until it is told: a change may leave less room, and nobody said that another engine is behind.
        dispatcher.set_scheduler(&SchedulerSettings { tune: false, ..SchedulerSettings::default() });
        dispatcher
    }

    /// How many jobs may be released at a time that were not submitted then.
    pub(crate) fn most_released(&self) -> usize {
        self.late
    }

    pub(crate) fn set_formation(&mut self, formation: Formation) {
        self.arranger.formation = formation;
        if let Some(scheduler) = &mut self.scheduler {
            scheduler.set_formation(formation);
        }
    }

    /// Whether jobs should be gathered over several batches, as far as packets are there, before they are
    /// submitted.
    #[inline]
    pub(crate) fn gathers(&self) -> bool {
        self.prefers_bursts && self.arranger.formation != Formation::None
    }

    pub(crate) fn engine_names(&self) -> Vec<&'static str> {
        self.placement.names()
    }

    /// Engines that were taken out of service since this was last called.
    pub(crate) fn take_withdrawals(&mut self) -> Vec<Withdrawal> {
        std::mem::take(&mut self.withdrawals)
    }

    /// Which engines were taken out of service, to be read by other threads.
    pub(crate) fn withdrawn(&self) -> Withdrawn {
        self.placement.withdrawn()
    }

    /// Whether any job is with an engine or waits for one that is. Those that were given up do not count.
    pub(crate) fn is_busy(&self) -> bool {
        self.under_way() > 0
    }

    /// Whether no job of an SA towards a peer is under way.
    pub(crate) fn is_over(&self, outbound: SaRef) -> bool {
        self.lanes.is_over(Direction::Seal, outbound)
    }

    /// Jobs that are with an engine or wait for one that is.
    pub(crate) fn under_way(&self) -> usize {
        self.in_flight.len() + self.lanes.waiting()
    }

    /// Gives the key of an SA to the engine that will use it. What is returned is made effective by
    /// [`connect`](Self::connect).
    pub(crate) fn install(&mut self, key: PlacedKey, direction: Direction) -> Result<SaKey, PlacementError> {
        self.placement.install(key, direction)
    }

    /// What expands keys for the engines.
    pub(crate) fn preparers(&self) -> KeyPreparers {
        self.placement.preparers()
    }

    /// Takes back a key that was never connected to an SA.
    pub(crate) fn uninstall(&mut self, key: SaKey) {
        self.placement.remove(key);
    }

    pub(crate) fn connect(&mut self, direction: Direction, sa: SaRef, key: SaKey, suite: Suite) {
        let rank = self.suites.rank(suite);
        let mut lane = Lane::new(sa, self.first_of(key, rank), key, rank);
        if lane.first == NOWHERE {
            self.settle_lane(&mut lane);
        }
        self.lanes.insert(direction, lane);
    }

    /// The first engine in service that has an SA's key or takes it now. If there is none, the SA's jobs
    /// complete as `Fault`. Nor is there one where each job is [decided of](Self::is_decided_by_job).
    fn first_of(&mut self, key: SaKey, suite_rank: u8) -> First {
        if self.is_decided_by_job(key, suite_rank) {
            return NOWHERE;
        }
        let Some((engine, id)) = self.placement.engine_for(key, 0) else { return NOWHERE };
        self.prepare_for(engine, suite_rank);
        (u32::try_from(engine).unwrap_or(NO_ENGINE), id)
    }

    /// Jobs of a suite may go to an engine from now on.
    fn prepare_for(&mut self, engine: usize, suite_rank: u8) {
        let suite = self.suites.suite(suite_rank);
        match (suite, self.scheduler.as_mut().and_then(|scheduler| scheduler.of(engine))) {
            (None, _) => {}
            (Some(suite), None) => {
                self.prefers_bursts |= self.placement.profile(engine, suite).depth_jobs > 1
            }
            (Some(suite), Some(gathering)) => {
                gathering.bins.set_cost(suite_rank, self.placement.profile(engine, suite).byte_ps);
                // One of several devices may have been lost with a key, and no job of it would tell.
                gathering.set_under_way(self.placement.profile(engine, gathering.suite).under_way);
            }
        }
    }

    /// Forgets an SA and its keys. Its jobs that have already ended go to `released`, where their SA is no
    /// longer known.
    pub(crate) fn disconnect(&mut self, direction: Direction, sa: SaRef, released: &mut Vec<Job>) {
        if let Some(lane) = self.lanes.remove(direction, sa, released) {
            self.placement.remove(lane.key);
        }
    }

    /// Takes all of `jobs`. Either all of them have ended in place (`true`), or those that have ended, and
    /// those whose turn came by that, are appended to `released` in the order of each SA.
    pub(crate) fn submit(&mut self, jobs: &mut Vec<Job>, released: &mut Vec<Job>) -> bool {
        let addressed = self.address(jobs);
        match self.live.is_some() {
            true => self.submit_placed(addressed, jobs, released),
            false => self.submit_addressed(addressed, jobs, released),
        }
    }

    /// The same of jobs that have their keys. Inlined, so that a gateway without live placement makes no call
    /// more.
    #[inline(always)]
    fn submit_addressed(
        &mut self,
        addressed: Addressed,
        jobs: &mut Vec<Job>,
        released: &mut Vec<Job>,
    ) -> bool {
        let arranges = self.gathers();
        let is_idle = !self.is_busy();
        match addressed {
            Addressed::ToOne(engine) if is_idle && self.placement.ends_next_at_once(engine, jobs) => {
                self.run_in_place(Some(engine), jobs, released, arranges)
            }
            // Job by job, engines that take turns would each get bursts of one.
            Addressed::ToSeveral if is_idle && self.placement.all_synchronous() => {
                self.run_in_place(None, jobs, released, self.arranger.formation != Formation::None)
            }
            _ => {
                self.lanes.ticket(jobs);
                if arranges {
                    self.arrange(jobs);
                }
                self.run_apart(addressed, jobs, released);
                false
            }
        }
    }

    fn arrange(&mut self, jobs: &mut [Job]) {
        let lanes = &self.lanes;
        self.arranger.arrange(jobs, |job| lanes.of(job).map(|lane| lane.suite_rank));
    }

    fn run_apart(&mut self, addressed: Addressed, jobs: &mut Vec<Job>, released: &mut Vec<Job>) {
        let (queued, come) = (self.queued(), jobs.len());
        match addressed {
            Addressed::ToOne(engine) => self.run(engine, jobs, released),
            Addressed::ToSeveral | Addressed::NotAll => {
                jobs.drain(..).for_each(|job| self.begin(job, released));
            }
        }
        self.left += (self.queued() - queued).min(come);
        self.run_queues(released);
    }

    /// Jobs in all queues.
    #[inline]
    fn queued(&self) -> usize {
        self.queues.iter().map(Vec::len).sum()
    }

    /// Queues a job for the first engine of its SA. The SA has none yet after its engine was taken out of
    /// service.
    fn begin(&mut self, mut job: Job, released: &mut Vec<Job>) {
        let Some(lane) = self.lanes.of(&job) else {
            job.status = JobStatus::Fault;
            released.push(job);
            return;
        };
        let (mut first, key, suite_rank) = (self.first_for(&job, lane), lane.key, lane.suite_rank);
        if first == NOWHERE {
            first = self.first_of(key, suite_rank);
            if let Some(lane) = self.lanes.of_mut(&job) {
                lane.name(first);
            }
        }
        self.enqueue(job, first, released);
    }

    /// Gives each job its key in the first engine of its SA.
    #[inline]
    fn address(&mut self, jobs: &mut [Job]) -> Addressed {
        self.lanes.prefetch(jobs);
        let engine_of = |job: &Job| self.lanes.of(job).map_or(NO_ENGINE, |lane| lane.first.0);
        let first = jobs.first().map_or(NO_ENGINE, engine_of);
        let (mut differs, mut most) = (0, first);
        let (mut last, mut key) = (u64::MAX, KeyId::NONE);
        for job in jobs {
            // Consecutive packets tend to belong to one SA. SA and direction are compared as one number.
            let id = u64::from(job.sa) << 1 | u64::from(job.direction == Direction::Open);
            if id != last {
                last = id;
                let lane = self.lanes.of(job).map(|lane| lane.first);
                let (engine, its_key) = lane.unwrap_or((NO_ENGINE, KeyId::NONE));
                key = its_key;
                differs |= engine ^ first;
                most = most.max(engine);
            }
            job.key = key;
        }
        // No engine has a higher number than none.
        match (most == NO_ENGINE, differs == 0) {
            (true, _) => Addressed::NotAll,
            (false, true) => Addressed::ToOne(first as usize),
            (false, false) => Addressed::ToSeveral,
        }
    }

    /// Has engines do what they need no jobs for, and asks all what has become of them with the next poll. To
    /// be called from time to time.
    pub(crate) fn tend(&mut self) {
        self.placement.tend();
        (0..self.placement.len()).for_each(|engine| self.doubt(engine));
    }

    /// Takes completions, and looks for engines that hold a job for too long. Returns how many jobs were
    /// given up, or came back without their buffer; these are in `released` as faults without buffers.
    #[inline]
    pub(crate) fn poll(&mut self, now: Moment, released: &mut Vec<Job>) -> usize {
        self.left = MOST_IN_A_TURN;
        self.lanes.begin_turn(MOST_IN_A_TURN);
        if self.in_flight.is_empty() && self.doubted == 0 && !self.lanes.has_late() {
            self.in_flight.rest(now);
            return 0;
        }
        self.poll_engines(now, released)
    }

    fn poll_engines(&mut self, now: Moment, released: &mut Vec<Job>) -> usize {
        let has_period_ended = self.in_flight.advance(now);
        self.look_live(now);
        let mut given_up = 0;
        if self.lanes.has_late() {
            self.lanes.release_late(released);
        }
        for engine in 0..self.placement.len() {
            if self.placement.is_gone(engine) {
                given_up += self.end_withdrawn(engine, has_period_ended, released);
                continue;
            }
            let mut polled = std::mem::take(&mut self.polled);
            match self.live.is_some() {
                true => self.poll_live(engine, &mut polled, POLL_MAX, now),
                false => self.placement.poll(engine, &mut polled, POLL_MAX),
            }
            let mut ended = 0;
            for job in polled.drain(..) {
                // An engine may only give back what it holds: a job comes back once, under its own id.
                let given_back = match job.status {
                    JobStatus::Done | JobStatus::AuthenticationFailed => {
                        self.lanes.end_in_order(engine, job, released)
                    }
                    _ => Err(job),
                };
                match given_back {
                    Ok(taken) => {
                        self.in_flight.give_back(taken);
                        ended += 1;
                    }
                    Err(job) => ended += usize::from(self.take_back(job, engine, ended, released)),
                }
            }
            self.polled = polled;
            if self.scheduler.is_some() {
                match self.placement.is_withdrawn(engine) {
                    true => self.empty_bins(engine, released),
                    false => self.serve_bins(engine, ended, now, released),
                }
            }
            if has_period_ended && self.is_out_of_patience(engine) {
                given_up += self.withdraw(engine, WithdrawalReason::KeptPackets, released);
            }
        }
        if self.doubted != 0 {
            self.ask_all(released);
        }
        self.run_queues(released);
        given_up + std::mem::take(&mut self.lost)
    }

    /// Whether an engine has exceeded its time. It has less time when other SAs suffer: jobs that wait for
    /// those it keeps hold buffers too, and one busy SA fills the pool with them within milliseconds. But not
    /// while it gives back what its device is late with, some in each turn, for the next engine to do.
    fn is_out_of_patience(&self, engine: usize) -> bool {
        let in_flight = &self.in_flight;
        let keeps = || in_flight.is_slow(engine) && in_flight.was_looked_at(engine);
        let is_crowded = self.under_way() >= self.crowd;
        in_flight.is_overdue(engine) || is_crowded && keeps() && !in_flight.gives_back(engine)
    }

    /// Takes an engine out of service and begins to give up the jobs it holds; returns how many were.
    #[cold]
    fn withdraw(&mut self, engine: usize, reason: WithdrawalReason, released: &mut Vec<Job>) -> usize {
        self.placement.withdraw(engine, reason);
        self.leave_to_others(engine);
        let packets = self.in_flight.held(engine);
        let lost = self.give_up(engine, released);
        self.empty_bins(engine, released);
        self.withdrawals.push(Withdrawal { engine: self.placement.name(engine), packets, reason });
        lost
    }

    /// Gives up jobs that an engine out of service holds, as many as a turn has time for; returns how many.
    fn give_up(&mut self, engine: usize, released: &mut Vec<Job>) -> usize {
        let lost = self.lanes.give_up(engine, MOST_IN_A_TURN, released);
        let packets = self.in_flight.give_up(engine, lost);
        debug_assert_eq!(packets, lost);
        lost
    }

    /// Goes on with what an engine out of service had; returns how many jobs were given up.
    #[cold]
    fn end_withdrawn(&mut self, engine: usize, has_period_ended: bool, released: &mut Vec<Job>) -> usize {
        self.empty_bins(engine, released);
        if self.in_flight.held(engine) > 0 {
            return self.give_up(engine, released);
        }
        if has_period_ended {
            // Nobody waits for these: their packets were counted as lost, and the pool has replaced their
            // buffers.
            let mut polled = std::mem::take(&mut self.polled);
            self.placement.poll(engine, &mut polled, POLL_MAX);
            self.in_flight.came_late(engine, polled.len());
            polled.clear();
            self.polled = polled;
        }
        0
    }

    /// Queues a job for an engine. If there is none, the job ends as a fault.
    fn enqueue(&mut self, mut job: Job, (engine, key): First, released: &mut Vec<Job>) {
        match self.queues.get_mut(engine as usize) {
            Some(queue) => {
                job.key = key;
                job.status = JobStatus::Pending;
                queue.push(job);
            }
            None => {
                job.status = JobStatus::Fault;
                self.lanes.release_in_order(job, released);
            }
        }
    }

    /// Submits queued jobs, first engine first, as many as this turn has time for. What an engine cannot take
    /// or fails at is queued for a later one, so that one pass suffices.
    fn run_queues(&mut self, released: &mut Vec<Job>) {
        let mut waiting = 0;
        for engine in 0..self.queues.len() {
            if !self.queues[engine].is_empty() {
                let mut queue = std::mem::take(&mut self.queues[engine]);
                match self.left.checked_sub(queue.len()) {
                    Some(left) => {
                        self.left = left;
                        self.run(engine, &mut queue, released);
                    }
                    None => self.run_some(engine, &mut queue, released),
                }
                waiting += queue.len();
                self.queues[engine] = queue;
            }
        }
        if waiting > 0 || self.in_flight.has_queued() {
            self.in_flight.set_queued(waiting);
        }
    }

    /// Submits the first jobs of a queue that is too long for this turn.
    #[cold]
    fn run_some(&mut self, engine: usize, queue: &mut Vec<Job>, released: &mut Vec<Job>) {
        let left = std::mem::take(&mut self.left);
        if left == 0 {
            return;
        }
        let mut some = std::mem::take(&mut self.some);
        some.extend(queue.drain(..left));
        self.run(engine, &mut some, released);
        self.some = some;
    }

    /// Submits all of `jobs` to one engine and passes on what it does not take or fails at.
    fn run(&mut self, engine: usize, jobs: &mut Vec<Job>, released: &mut Vec<Job>) {
        // It may have been taken out of service while these were queued.
        let is_withdrawn = self.placement.is_withdrawn(engine);
        if self.scheduler.is_some() && !is_withdrawn && self.gather(engine, jobs, released) {
            return;
        }
        let taken = match (is_withdrawn, self.live.is_some()) {
            (true, _) => 0,
            (false, true) => self.offer_live(engine, jobs),
            (false, false) => self.offer(engine, jobs),
        };
        self.settle(engine, taken, jobs, released);
    }

    /// Submits jobs to an engine and returns how many it took. The last engine has no successor, so the rest
    /// is submitted to it again as long as it takes any.
    fn offer(&mut self, engine: usize, jobs: &mut [Job]) -> usize {
        if self.leaves_frames {
            self.complete_frames(engine, jobs);
        }
        let is_last = engine + 1 == self.placement.len();
        let mut taken = self.placement.submit(engine, jobs);
        while is_last && taken < jobs.len() {
            match self.placement.submit(engine, &mut jobs[taken..]) {
                0 => break,
                more => taken += more,
            }
        }
        taken
    }

    /// Passes on jobs of which an engine took the first `taken`.
    fn settle(&mut self, engine: usize, taken: usize, jobs: &mut Vec<Job>, released: &mut Vec<Job>) {
        for (place, job) in jobs.drain(..).enumerate() {
            match job.status {
                // At any index: the buffer is gone, and will come back or be given up.
                JobStatus::Taken => self.taken(engine, &job),
                _ if place < taken => self.ended(job, engine, released),
                _ if self.placement.is_withdrawn(engine) => {
                    self.hand_over(job, engine, Reason::Withdrawn, released);
                }
                _ => self.hand_over(job, engine, Reason::Full, released),
            }
        }
    }

    /// An engine took a job.
    #[inline]
    fn taken(&mut self, engine: usize, job: &Job) {
        self.lanes.take(job_id(job), self.in_flight.take(engine));
    }

    /// An engine failed at a job. If it has lost its buffer, by a panic on its thread, no other can do it.
    #[cold]
    fn failed(&mut self, job: Job, engine: usize, released: &mut Vec<Job>) {
        self.doubt(engine);
        if job.buffer.capacity() > 0 {
            return self.hand_over(job, engine, Reason::Failed, released);
        }
        self.lost += 1;
        if self.live.is_some() {
            self.leave_live(&job, engine, Reason::Failed);
        }
        self.lanes.release_in_order(job, released);
    }

    fn ended(&mut self, job: Job, engine: usize, released: &mut Vec<Job>) {
        match job.status {
            JobStatus::Done | JobStatus::AuthenticationFailed => self.lanes.release_in_order(job, released),
            _ => self.failed(job, engine, released),
        }
    }

    /// Gives a job to the next engine after `engine` that has its key or takes it now, or to the best of
    /// these.
    fn hand_over(&mut self, job: Job, engine: usize, why: Reason, released: &mut Vec<Job>) {
        // The key of a removed SA is gone from every engine.
        let key = self.lanes.of_ticket(&job).map(|lane| lane.key);
        if self.live.is_some() {
            self.leave_live(&job, engine, why);
        }
        if let Some(key) = key.filter(|_| self.live.is_some() && !job.buffer.is_chain()) {
            let next = self.choose_behind(&job, key, engine, why);
            return self.enqueue(job, next, released);
        }
        let mut next = key.and_then(|key| self.placement.engine_for(key, engine + 1));
        if job.buffer.is_chain() {
            next = self.next_for_chain(&job, engine + 1);
        }
        let next = next.and_then(|(engine, id)| Some((u32::try_from(engine).ok()?, id)));
        self.enqueue(job, next.unwrap_or(NOWHERE), released);
    }
}

#[cfg(test)]
mod tests;

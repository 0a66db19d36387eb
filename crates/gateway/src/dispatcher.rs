//! Brings jobs to engines and back: fallback from engine to engine, and the order of each SA.
//!
//! An engine that keeps a job for too long is taken out of service ([`in_flight`](crate::in_flight)). What it holds is given up: these packets are lost,
//! since their bytes are in the engine's hands, and each SA goes on behind its own.

use crate::formation::{Arranger, Formation, suite_rank};
use crate::in_flight::InFlight;
use crate::lanes::{JobId, Lane, Lanes, job_id};
use crate::placement::{KeyPair, Placement, PlacementError, SaKeys};
use testudo_crypto::{Aad, Direction, Engine, Job, JobStatus, KeyId, Suite};
use testudo_ipsec::{Moment, Prepared, SaRef};
use testudo_packet::Buffer;

/// How many completions are taken from an engine at a time.
const POLL_MAX: usize = 256;

/// The place of an engine that does not exist.
const NO_ENGINE: u32 = u32::MAX;

/// Where the jobs of a batch go first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Addressed {
    ToOne(usize),
    ToSeveral,
    /// The SA of some is gone, or no engine has its key.
    NotAll,
}

/// An engine was taken out of service, until the gateway is started again, because it had kept packets for more than a second; or, where most
/// buffers of the pool were with engines or waited for what is, for more than a sixteenth of that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Withdrawal {
    /// JobId of the engine.
    pub engine: &'static str,
    /// Packets that it held, which are lost.
    pub packets: usize,
}

/// Where jobs are while they are not with the protocol.
pub(crate) struct Dispatcher {
    placement: Placement,
    /// What engines have taken and not given back.
    in_flight: InFlight,
    /// SAs, and the order of each.
    lanes: Lanes,
    withdrawals: Vec<Withdrawal>,
    /// So many jobs under way leave few buffers of the pool to anybody else.
    crowd: usize,
    /// Jobs for each engine that are not with it yet; empty between calls.
    queues: Vec<Vec<Job>>,
    polled: Vec<Job>,
    arranger: Arranger,
    /// Whether the first engine of any SA prefers bursts for its suite.
    prefers_bursts: bool,
}

impl Dispatcher {
    /// For jobs in so many buffers.
    pub(crate) fn new(engines: Vec<Box<dyn Engine>>, buffers: usize) -> Self {
        let placement = Placement::new(engines);
        let queues = (0..placement.len()).map(|_| Vec::new()).collect();
        Self {
            placement,
            in_flight: InFlight::default(),
            lanes: Lanes::default(),
            withdrawals: Vec::new(),
            crowd: buffers - buffers / 4,
            queues,
            polled: Vec::new(),
            arranger: Arranger::default(),
            prefers_bursts: false,
        }
    }

    pub(crate) fn set_formation(&mut self, formation: Formation) {
        self.arranger.formation = formation;
    }

    /// Whether jobs should be gathered over several batches, as far as these are there, before they are submitted.
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

    pub(crate) fn is_withdrawn(&self, engine: usize) -> bool {
        self.placement.is_withdrawn(engine)
    }

    /// Whether any job is with an engine or waits for one that is. What was given up is not.
    pub(crate) fn is_busy(&self) -> bool {
        self.under_way() > 0
    }

    /// Jobs that are with an engine or wait for one that is.
    pub(crate) fn under_way(&self) -> usize {
        self.in_flight.len() + self.lanes.waiting()
    }

    /// Gives both keys of a tunnel to the engines. What is returned is made effective by [`connect`](Self::connect).
    pub(crate) fn install(&mut self, keys: &KeyPair) -> Result<(SaKeys, SaKeys), PlacementError> {
        let outbound = self.placement.install(&keys.outbound, Direction::Seal)?;
        match self.placement.install(&keys.inbound, Direction::Open) {
            Ok(inbound) => Ok((outbound, inbound)),
            Err(e) => {
                self.placement.remove(&outbound);
                Err(e)
            }
        }
    }

    /// Takes back keys that were never connected.
    pub(crate) fn uninstall(&mut self, keys: &SaKeys) {
        self.placement.remove(keys);
    }

    pub(crate) fn connect(&mut self, direction: Direction, sa: SaRef, keys: SaKeys, suite: Suite) {
        let first = first_of(&self.placement, &keys);
        self.lanes.insert(direction, Lane::new(sa, first, keys, suite_rank(suite)));
        self.prefers_bursts |= self.placement.prefers_bursts(first.0 as usize, suite);
    }

    /// Forgets an SA and its keys. Jobs of it that have ended already go to `released`, where nobody knows their SA any more.
    pub(crate) fn disconnect(&mut self, direction: Direction, sa: SaRef, released: &mut Vec<Job>) {
        if let Some(lane) = self.lanes.remove(direction, sa, released) {
            self.placement.remove(&lane.keys);
        }
    }

    /// Takes all of `jobs`. Either all of them have then ended where they stand (`true`), or those that ended, and those that they let go, are
    /// appended to `released`, in the order of each SA.
    pub(crate) fn submit(&mut self, jobs: &mut Vec<Job>, released: &mut Vec<Job>) -> bool {
        let addressed = self.address(jobs);
        let arranges = self.gathers();
        let is_idle = !self.is_busy();
        match addressed {
            Addressed::ToOne(engine) if is_idle && self.placement.is_synchronous(engine) => {
                self.run_in_place(Some(engine), jobs, released, arranges)
            }
            // Engines that take turns job by job would each get bursts of one.
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

    /// The common case: nothing is under way, and engines end the whole batch before they return. Then the order is the one that the
    /// jobs stand in, and nobody needs a ticket.
    fn run_in_place(
        &mut self,
        engine: Option<usize>,
        jobs: &mut Vec<Job>,
        released: &mut Vec<Job>,
        arranges: bool,
    ) -> bool {
        if arranges {
            self.arrange(jobs);
        }
        match engine {
            Some(engine) => drop(self.offer(engine, jobs)),
            None => self.offer_to_each(jobs),
        }
        if arranges {
            self.arranger.restore(jobs);
        }
        let has_ended = |job: &Job| matches!(job.status, JobStatus::Done | JobStatus::AuthenticationFailed);
        if jobs.iter().all(has_ended) {
            return true;
        }
        self.lanes.ticket(jobs);
        for job in jobs.drain(..) {
            let engine = engine.unwrap_or_else(|| self.first_engine(&job));
            match job.status {
                // It said that it would not. Without a ticket nothing can come back from it, but it holds a buffer.
                JobStatus::Taken => self.in_flight.take(engine, job_id(&job)),
                // What the engine did not take still is pending; that, and what it failed at, is for the next one.
                _ => self.ended(job, engine, released),
            }
        }
        self.run_queues(released);
        false
    }

    /// Submits jobs that stand together to the first engine of each.
    fn offer_to_each(&mut self, jobs: &mut [Job]) {
        let mut rest = jobs;
        while let Some(job) = rest.first() {
            let engine = self.first_engine(job);
            let run = rest.iter().take_while(|job| self.first_engine(job) == engine).count();
            let (run, behind) = rest.split_at_mut(run);
            self.offer(engine, run);
            rest = behind;
        }
    }

    /// The first engine that has the key of a job's SA; one that does not exist if there is none.
    fn first_engine(&self, job: &Job) -> usize {
        self.lanes.of(job).map_or(usize::MAX, |lane| lane.first.0 as usize)
    }

    fn arrange(&mut self, jobs: &mut [Job]) {
        let lanes = &self.lanes;
        self.arranger.arrange(jobs, |job| lanes.of(job).map(|lane| lane.suite_rank));
    }

    fn run_apart(&mut self, addressed: Addressed, jobs: &mut Vec<Job>, released: &mut Vec<Job>) {
        match addressed {
            Addressed::ToOne(engine) => self.run(engine, jobs, released),
            Addressed::ToSeveral | Addressed::NotAll => {
                for mut job in jobs.drain(..) {
                    match self.lanes.of(&job).map(|lane| lane.keys) {
                        Some(keys) => self.enqueue(job, &keys, 0, released),
                        None => {
                            job.status = JobStatus::Fault;
                            released.push(job);
                        }
                    }
                }
            }
        }
        self.run_queues(released);
    }

    /// Gives each job its key in the first engine that has one.
    #[inline]
    fn address(&mut self, jobs: &mut [Job]) -> Addressed {
        self.lanes.prefetch(jobs);
        let mut common = None;
        let (mut is_common, mut all_known) = (true, true);
        let (mut last, mut key) = (u64::MAX, KeyId(u32::MAX));
        for job in jobs {
            // Packets of one SA tend to stand together. As one number: SA and direction are compared for each packet.
            let id =
                u64::from(Prepared::sa_of(job).bits()) << 1 | u64::from(job.direction == Direction::Open);
            if id != last {
                last = id;
                let lane = self.lanes.of(job).map(|lane| lane.first);
                let (engine, its_key) = lane.unwrap_or((NO_ENGINE, KeyId(u32::MAX)));
                key = its_key;
                all_known &= engine != NO_ENGINE;
                is_common &= *common.get_or_insert(engine) == engine;
            }
            job.key = key;
        }
        match common {
            Some(engine) if all_known && is_common => Addressed::ToOne(engine as usize),
            Some(_) if all_known => Addressed::ToSeveral,
            _ => Addressed::NotAll,
        }
    }

    /// Takes what the engines have ended since, and looks whether any of them holds something for too long. Returns how many jobs were given
    /// up: these stand among the released ones as faults without their buffers.
    #[inline]
    pub(crate) fn poll(&mut self, now: Moment, released: &mut Vec<Job>) -> usize {
        if self.in_flight.is_empty() {
            self.in_flight.rest(now);
            return 0;
        }
        self.poll_engines(now, released)
    }

    fn poll_engines(&mut self, now: Moment, released: &mut Vec<Job>) -> usize {
        let has_period_ended = self.in_flight.advance(now);
        let mut given_up = 0;
        for engine in 0..self.placement.len() {
            let is_withdrawn = self.placement.is_withdrawn(engine);
            if is_withdrawn && !has_period_ended {
                continue;
            }
            let mut polled = std::mem::take(&mut self.polled);
            self.placement.poll(engine, &mut polled, POLL_MAX);
            if is_withdrawn {
                // Nobody waits for these: their packets are counted as lost, and the pool has made other buffers.
                self.in_flight.came_late(engine, polled.len());
                polled.clear();
            }
            for job in polled.drain(..) {
                // What it does not hold it may not give: a job comes back once, and under its own id.
                if self.in_flight.give_back(engine, job_id(&job)) {
                    self.ended(job, engine, released);
                }
            }
            self.polled = polled;
            if has_period_ended && self.is_out_of_patience(engine) {
                given_up += self.withdraw(engine, released);
            }
        }
        self.run_queues(released);
        given_up
    }

    /// Whether an engine has had its time. It has less where others come to harm: jobs that wait behind those it keeps have buffers too, and one
    /// busy SA needs milliseconds to fill the pool with them.
    fn is_out_of_patience(&self, engine: usize) -> bool {
        self.in_flight.is_overdue(engine) || self.under_way() >= self.crowd && self.in_flight.is_slow(engine)
    }

    /// Takes an engine out of service, and gives up what it holds: returns how many jobs.
    #[cold]
    fn withdraw(&mut self, engine: usize, released: &mut Vec<Job>) -> usize {
        self.placement.withdraw(engine);
        for lane in self.lanes.iter_mut() {
            if lane.first.0 as usize == engine {
                lane.first = first_of(&self.placement, &lane.keys);
                let suite = Suite::ALL.get(usize::from(lane.suite_rank));
                self.prefers_bursts |=
                    suite.is_some_and(|s| self.placement.prefers_bursts(lane.first.0 as usize, *s));
            }
        }
        let ids = self.in_flight.give_up(engine);
        self.withdrawals.push(Withdrawal { engine: self.placement.name(engine), packets: ids.len() });
        for &id in &ids {
            released.push(lost_job(id));
            self.lanes.go_on_without(id, released);
        }
        ids.len()
    }

    /// Queues a job for the next engine that has its key; a job that no engine is left for ends as a fault.
    fn enqueue(&mut self, mut job: Job, keys: &SaKeys, from: usize, released: &mut Vec<Job>) {
        match self.placement.next_engine(keys, from) {
            Some((engine, key)) => {
                job.key = key;
                job.status = JobStatus::Pending;
                self.queues[engine].push(job);
            }
            None => {
                job.status = JobStatus::Fault;
                self.lanes.release_in_order(job, released);
            }
        }
    }

    /// Submits what is queued, first engine first: what one cannot take or fails at is queued for one further down, so one pass does.
    fn run_queues(&mut self, released: &mut Vec<Job>) {
        for engine in 0..self.queues.len() {
            if !self.queues[engine].is_empty() {
                let mut queue = std::mem::take(&mut self.queues[engine]);
                self.run(engine, &mut queue, released);
                self.queues[engine] = queue;
            }
        }
    }

    /// Submits all of `jobs` to one engine, and passes on what it does not take or fails at.
    fn run(&mut self, engine: usize, jobs: &mut Vec<Job>, released: &mut Vec<Job>) {
        // It may have been taken out of service while these stood in its queue.
        let taken = if self.placement.is_withdrawn(engine) { 0 } else { self.offer(engine, jobs) };
        self.settle(engine, taken, jobs, released);
    }

    /// Submits jobs to an engine and returns how many it took. The last engine has nobody to hand over to: it is asked again as long as it
    /// takes some.
    fn offer(&mut self, engine: usize, jobs: &mut [Job]) -> usize {
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

    /// Passes on what became of jobs of which an engine took the first `taken`.
    fn settle(&mut self, engine: usize, taken: usize, jobs: &mut Vec<Job>, released: &mut Vec<Job>) {
        for (place, job) in jobs.drain(..).enumerate() {
            match job.status {
                // Wherever it stands: the buffer is gone, and will come back or be given up.
                JobStatus::Taken => self.in_flight.take(engine, job_id(&job)),
                _ if place < taken => self.ended(job, engine, released),
                _ => self.hand_over(job, engine, released),
            }
        }
    }

    fn ended(&mut self, job: Job, engine: usize, released: &mut Vec<Job>) {
        match job.status {
            JobStatus::Done | JobStatus::AuthenticationFailed => self.lanes.release_in_order(job, released),
            _ => self.hand_over(job, engine, released),
        }
    }

    /// Gives a job to the next engine after `engine`.
    fn hand_over(&mut self, job: Job, engine: usize, released: &mut Vec<Job>) {
        // The key of a removed SA is gone from every engine.
        let keys = self.lanes.of(&job).map(|lane| lane.keys).unwrap_or_default();
        self.enqueue(job, &keys, engine + 1, released);
    }
}

/// The first engine in service that has an SA's key. An SA that no engine has a key of ends its jobs as faults, by the way of an engine that
/// does not exist.
fn first_of(placement: &Placement, keys: &SaKeys) -> (u32, KeyId) {
    let (engine, key) = placement.next_engine(keys, 0).unwrap_or((usize::MAX, KeyId(u32::MAX)));
    (u32::try_from(engine).unwrap_or(NO_ENGINE), key)
}

/// What stands for a job that was given up: a fault, without the buffer, which its engine has.
fn lost_job((direction, cookie): JobId) -> Job {
    Job {
        buffer: Buffer::default(),
        cookie,
        text_start: 0,
        text_bytes: 0,
        key: KeyId(u32::MAX),
        nonce: [0; 12],
        aad: Aad::default(),
        direction,
        status: JobStatus::Fault,
    }
}

//! Brings jobs to engines and back: fallback from engine to engine, and the order of each SA.

use crate::formation::{Arranger, Formation, suite_rank};
use crate::placement::{KeyPair, Placement, PlacementError, SaKeys};
use hashbrown::HashMap;
use testudo_crypto::{Direction, Engine, Job, JobStatus, KeyId, Suite};
use testudo_ipsec::{Prepared, SaRef};

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

/// One SA as the dispatcher sees it.
#[derive(Debug, Clone, Copy)]
struct Lane {
    sa: SaRef,
    /// The first engine that has the key, and the key's name there.
    first: (u32, KeyId),
    keys: SaKeys,
    suite_rank: u8,
    /// Ticket of the next job to submit.
    next_ticket: u32,
    /// Ticket of the next job to release.
    next_release: u32,
}

/// Where jobs are while they are not with the protocol.
pub(crate) struct Dispatcher {
    placement: Placement,
    outbound: Vec<Option<Lane>>,
    inbound: Vec<Option<Lane>>,
    /// Ended jobs that must wait for earlier ones of their SA. Bounded by the pool: every job holds a buffer.
    waiting: HashMap<(Direction, u64), Job, foldhash::fast::RandomState>,
    /// Jobs for each engine that are not with it yet; empty between calls.
    queues: Vec<Vec<Job>>,
    polled: Vec<Job>,
    arranger: Arranger,
    /// Whether the first engine of any SA wants company for its suite.
    has_company: bool,
}

impl Dispatcher {
    pub(crate) fn new(engines: Vec<Box<dyn Engine>>) -> Self {
        let placement = Placement::new(engines);
        let queues = (0..placement.len()).map(|_| Vec::new()).collect();
        let (outbound, inbound) = (Vec::new(), Vec::new());
        Self {
            placement,
            outbound,
            inbound,
            waiting: HashMap::default(),
            queues,
            polled: Vec::new(),
            arranger: Arranger::default(),
            has_company: false,
        }
    }

    pub(crate) fn set_formation(&mut self, formation: Formation) {
        self.arranger.formation = formation;
    }

    /// Whether jobs should be gathered over several batches, as far as these are there, before they are submitted.
    #[inline]
    pub(crate) fn gathers(&self) -> bool {
        self.has_company && self.arranger.formation != Formation::None
    }

    pub(crate) fn engine_names(&self) -> Vec<&'static str> {
        self.placement.names()
    }

    /// Whether any job is with an engine or waits for one that is.
    pub(crate) fn is_busy(&self) -> bool {
        self.under_way() > 0
    }

    /// Jobs that are with an engine or wait for one that is.
    pub(crate) fn under_way(&self) -> usize {
        self.placement.in_flight() + self.waiting.len()
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
        let lanes = self.lanes(direction);
        if lanes.len() <= sa.place() {
            lanes.resize(sa.place() + 1, None);
        }
        // An SA that no engine has a key of ends its jobs as faults, by the way of an engine that does not exist.
        let (engine, key) = keys.next_engine(0).unwrap_or((usize::MAX, KeyId(u32::MAX)));
        let first = (u32::try_from(engine).unwrap_or(NO_ENGINE), key);
        let suite_rank = suite_rank(suite);
        lanes[sa.place()] = Some(Lane { sa, first, keys, suite_rank, next_ticket: 0, next_release: 0 });
        self.has_company |= self.placement.wants_company(engine, suite);
    }

    /// Forgets an SA and its keys. Jobs of it that have ended already go to `released`, where nobody knows their SA any more.
    pub(crate) fn disconnect(&mut self, direction: Direction, sa: SaRef, released: &mut Vec<Job>) {
        let lane = self.lanes(direction).get_mut(sa.place()).and_then(|l| l.take_if(|l| l.sa == sa));
        if let Some(lane) = lane {
            self.placement.remove(&lane.keys);
        }
        let stale = |key: &(Direction, u64)| key.0 == direction && key.1 >> 32 == u64::from(sa.bits());
        released.extend(self.waiting.extract_if(|key, _| stale(key)).map(|(_, job)| job));
    }

    fn lanes(&mut self, direction: Direction) -> &mut Vec<Option<Lane>> {
        match direction {
            Direction::Seal => &mut self.outbound,
            Direction::Open => &mut self.inbound,
        }
    }

    fn lane(&mut self, job: &Job) -> Option<&mut Lane> {
        let sa = Prepared::sa_of(job);
        self.lanes(job.direction).get_mut(sa.place())?.as_mut().filter(|lane| lane.sa == sa)
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
            // Engines that take turns job by job would each be left without company.
            Addressed::ToSeveral if is_idle && self.placement.are_synchronous() => {
                self.run_in_place(None, jobs, released, self.arranger.formation != Formation::None)
            }
            _ => {
                self.ticket(jobs);
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
        self.ticket(jobs);
        for job in jobs.drain(..) {
            let engine = engine.unwrap_or_else(|| self.first_engine(&job));
            // What the engine did not take still is pending; that, and what it failed at, is for the next one.
            self.ended(job, engine, released);
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
        let lanes = if job.direction == Direction::Seal { &self.outbound } else { &self.inbound };
        let sa = Prepared::sa_of(job);
        let lane = lanes.get(sa.place()).and_then(Option::as_ref).filter(|lane| lane.sa == sa);
        lane.map_or(usize::MAX, |lane| lane.first.0 as usize)
    }

    fn arrange(&mut self, jobs: &mut [Job]) {
        let (outbound, inbound) = (&self.outbound, &self.inbound);
        self.arranger.arrange(jobs, |job| {
            let lanes = if job.direction == Direction::Seal { outbound } else { inbound };
            let sa = Prepared::sa_of(job);
            lanes.get(sa.place())?.as_ref().filter(|lane| lane.sa == sa).map(|lane| lane.suite_rank)
        });
    }

    fn run_apart(&mut self, addressed: Addressed, jobs: &mut Vec<Job>, released: &mut Vec<Job>) {
        match addressed {
            Addressed::ToOne(engine) => self.run(engine, jobs, released),
            Addressed::ToSeveral | Addressed::NotAll => {
                for mut job in jobs.drain(..) {
                    match self.lane(&job).map(|lane| lane.keys) {
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
        let mut last: Option<(Direction, SaRef, (u32, KeyId))> = None;
        let mut common = None;
        let (mut is_common, mut are_known) = (true, true);
        for job in jobs {
            let (direction, sa) = (job.direction, Prepared::sa_of(job));
            // Packets of one SA tend to stand together.
            let (engine, key) = match last {
                Some((d, s, first)) if d == direction && s == sa => first,
                _ => {
                    let Some(lane) = self.lane(job) else {
                        are_known = false;
                        continue;
                    };
                    last = Some((direction, sa, lane.first));
                    lane.first
                }
            };
            job.key = key;
            are_known &= engine != NO_ENGINE;
            is_common &= *common.get_or_insert(engine) == engine;
        }
        match common {
            Some(engine) if are_known && is_common => Addressed::ToOne(engine as usize),
            Some(_) if are_known => Addressed::ToSeveral,
            _ => Addressed::NotAll,
        }
    }

    /// Gives each job its place in the order of its SA.
    fn ticket(&mut self, jobs: &mut [Job]) {
        for job in jobs {
            if let Some(lane) = self.lane(job) {
                job.cookie |= u64::from(lane.next_ticket);
                lane.next_ticket = lane.next_ticket.wrapping_add(1);
            }
        }
    }

    /// Takes what the engines have ended since.
    pub(crate) fn poll(&mut self, released: &mut Vec<Job>) {
        if self.placement.in_flight() == 0 {
            return;
        }
        for engine in 0..self.placement.len() {
            let mut polled = std::mem::take(&mut self.polled);
            self.placement.poll(engine, &mut polled, POLL_MAX);
            polled.drain(..).for_each(|job| self.ended(job, engine, released));
            self.polled = polled;
        }
        self.run_queues(released);
    }

    /// Queues a job for the next engine that has its key; a job that no engine is left for ends as a fault.
    fn enqueue(&mut self, mut job: Job, keys: &SaKeys, from: usize, released: &mut Vec<Job>) {
        match keys.next_engine(from).filter(|(engine, _)| *engine < self.queues.len()) {
            Some((engine, key)) => {
                job.key = key;
                job.status = JobStatus::Pending;
                self.queues[engine].push(job);
            }
            None => {
                job.status = JobStatus::Fault;
                self.release(job, released);
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
        let taken = self.offer(engine, jobs);
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
                JobStatus::Taken if place < taken => {}
                _ if place < taken => self.ended(job, engine, released),
                _ => self.hand_over(job, engine, released),
            }
        }
    }

    fn ended(&mut self, job: Job, engine: usize, released: &mut Vec<Job>) {
        match job.status {
            JobStatus::Done | JobStatus::AuthenticationFailed => self.release(job, released),
            _ => self.hand_over(job, engine, released),
        }
    }

    /// Gives a job to the next engine after `engine`.
    fn hand_over(&mut self, job: Job, engine: usize, released: &mut Vec<Job>) {
        // The key of a removed SA is gone from every engine.
        let keys = self.lane(&job).map(|lane| lane.keys).unwrap_or_default();
        self.enqueue(job, &keys, engine + 1, released);
    }

    /// Lets an ended job go in its turn, and then those that waited for it.
    fn release(&mut self, job: Job, released: &mut Vec<Job>) {
        let ticket = ticket_of(&job);
        let direction = job.direction;
        let Some(lane) = self.lane(&job) else {
            released.push(job);
            return;
        };
        if ticket != lane.next_release {
            self.waiting.insert((direction, job.cookie), job);
            return;
        }
        lane.next_release = lane.next_release.wrapping_add(1);
        let (sa, mut next) = (lane.sa, lane.next_release);
        released.push(job);
        if self.waiting.is_empty() {
            return;
        }
        while let Some(job) = self.waiting.remove(&(direction, u64::from(sa.bits()) << 32 | u64::from(next)))
        {
            next = next.wrapping_add(1);
            released.push(job);
        }
        if let Some(Some(lane)) = self.lanes(direction).get_mut(sa.place()) {
            lane.next_release = next;
        }
    }
}

fn ticket_of(job: &Job) -> u32 {
    u32::try_from(job.cookie & 0xFFFF_FFFF).unwrap_or(0)
}

//! The dispatcher's view of SAs, and the order of each one's jobs.
//!
//! A job that may end later than its successor gets a ticket, the next of its SA. Ended jobs are released in
//! ticket order and wait until then. The ticket of a job that was given up is skipped:
//!
//! ```text
//!   tickets of an SA       4          5        6        7          8
//!                          released   held ▲   waits    given up   waits
//!                                          └─ next to release; when it comes, 6 and 8 follow
//! ```

use crate::placement::SaKeys;
use hashbrown::{HashMap, HashSet};
use testudo_crypto::{Direction, Job, JobStatus, KeyId};
use testudo_ipsec::{Prepared, SaRef};
use testudo_packet::prefetch;

/// Up to this many lanes fit in the first-level cache, 16 KiB of it; prefetch only beyond.
const NEAR: usize = 256;

/// Names a job in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct JobId {
    pub(crate) direction: Direction,
    pub(crate) sa: SaRef,
    pub(crate) ticket: u32,
}

/// The dispatcher's view of one SA.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lane {
    pub(crate) sa: SaRef,
    /// The first engine that has the key, and the key's id there.
    pub(crate) first: (u32, KeyId),
    pub(crate) keys: SaKeys,
    pub(crate) suite_rank: u8,
    /// Ticket of the next job to submit.
    next_ticket: u32,
    /// Ticket of the next job to release.
    next_release: u32,
}

impl Lane {
    pub(crate) fn new(sa: SaRef, first: (u32, KeyId), keys: SaKeys, suite_rank: u8) -> Self {
        Self { sa, first, keys, suite_rank, next_ticket: 0, next_release: 0 }
    }
}

/// All SAs of both directions.
#[derive(Default)]
pub(crate) struct Lanes {
    outbound: Vec<Option<Lane>>,
    inbound: Vec<Option<Lane>>,
    /// Ended jobs that wait for earlier ones of their SA. Bounded by the pool, since every job holds a
    /// buffer.
    waiting: HashMap<JobId, Job, foldhash::fast::RandomState>,
    /// Tickets to skip that come after one which is still expected. Bounded by what engines held when they
    /// were taken out of service.
    missing: HashSet<JobId, foldhash::fast::RandomState>,
}

/// The id of a job.
pub(crate) fn job_id(job: &Job) -> JobId {
    JobId { direction: job.direction, sa: Prepared::sa_of(job), ticket: job.ticket }
}

/// A job whose SA is gone: whatever its engine made of it, it is not to be used.
#[cold]
fn orphaned(job: Job) -> Job {
    Job { status: JobStatus::Fault, ..job }
}

impl Lanes {
    pub(crate) fn insert(&mut self, direction: Direction, lane: Lane) {
        let (lanes, slot) = (self.of_direction(direction), lane.sa.slot());
        if lanes.len() <= slot {
            lanes.resize(slot + 1, None);
        }
        lanes[slot] = Some(lane);
    }

    /// Forgets an SA. Its jobs that have already ended go to `released`, where their SA is no longer known.
    pub(crate) fn remove(
        &mut self,
        direction: Direction,
        sa: SaRef,
        released: &mut Vec<Job>,
    ) -> Option<Lane> {
        let stale = |id: &JobId| id.direction == direction && id.sa == sa;
        released.extend(self.waiting.extract_if(|id, _| stale(id)).map(|(_, job)| orphaned(job)));
        self.missing.retain(|id| !stale(id));
        self.of_direction(direction).get_mut(sa.slot()).and_then(|l| l.take_if(|l| l.sa == sa))
    }

    fn of_direction(&mut self, direction: Direction) -> &mut Vec<Option<Lane>> {
        match direction {
            Direction::Seal => &mut self.outbound,
            Direction::Open => &mut self.inbound,
        }
    }

    #[inline]
    fn lane(&mut self, direction: Direction, sa: SaRef) -> Option<&mut Lane> {
        self.of_direction(direction).get_mut(sa.slot())?.as_mut().filter(|lane| lane.sa == sa)
    }

    /// Prefetches the lanes of jobs when there are too many for the cache. The jobs of a batch have one
    /// direction.
    #[inline]
    pub(crate) fn prefetch(&self, jobs: &[Job]) {
        let is_seal = jobs.first().is_some_and(|job| job.direction == Direction::Seal);
        let lanes = if is_seal { &self.outbound } else { &self.inbound };
        if lanes.len() <= NEAR {
            return;
        }
        for job in jobs {
            if let Some(lane) = lanes.get(Prepared::sa_of(job).slot()) {
                prefetch(lane);
            }
        }
    }

    /// The SA of a job, unless it has gone.
    #[inline]
    pub(crate) fn of(&self, job: &Job) -> Option<&Lane> {
        let lanes = if job.direction == Direction::Seal { &self.outbound } else { &self.inbound };
        let sa = Prepared::sa_of(job);
        lanes.get(sa.slot())?.as_ref().filter(|lane| lane.sa == sa)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Lane> {
        self.outbound.iter_mut().chain(&mut self.inbound).flatten()
    }

    /// Jobs that wait for their turn.
    #[inline]
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Gives each job its ticket.
    pub(crate) fn ticket(&mut self, jobs: &mut [Job]) {
        for job in jobs {
            if let Some(lane) = self.lane(job.direction, Prepared::sa_of(job)) {
                job.ticket = lane.next_ticket;
                lane.next_ticket = lane.next_ticket.wrapping_add(1);
            }
        }
    }

    /// Releases an ended job in its turn, and then those that waited for it.
    pub(crate) fn release_in_order(&mut self, job: Job, released: &mut Vec<Job>) {
        let id = job_id(&job);
        match self.lane(id.direction, id.sa) {
            None => released.push(orphaned(job)),
            Some(lane) if id.ticket == lane.next_release => {
                released.push(job);
                self.advance(id.direction, id.sa, released);
            }
            Some(_) => drop(self.waiting.insert(id, job)),
        }
    }

    /// Lets an SA continue without a job that will not come back.
    pub(crate) fn go_on_without(&mut self, id: JobId, released: &mut Vec<Job>) {
        match self.lane(id.direction, id.sa) {
            None => {}
            Some(lane) if id.ticket == lane.next_release => self.advance(id.direction, id.sa, released),
            Some(_) => drop(self.missing.insert(id)),
        }
    }

    /// Advances an SA past the job whose turn it is, and past those after it that have ended or were given
    /// up.
    fn advance(&mut self, direction: Direction, sa: SaRef, released: &mut Vec<Job>) {
        let Some(lane) = self.lane(direction, sa) else { return };
        lane.next_release = lane.next_release.wrapping_add(1);
        let mut next = lane.next_release;
        if self.waiting.is_empty() && self.missing.is_empty() {
            return;
        }
        loop {
            let id = JobId { direction, sa, ticket: next };
            match self.waiting.remove(&id) {
                Some(job) => released.push(job),
                None if self.missing.remove(&id) => {}
                None => break,
            }
            next = next.wrapping_add(1);
        }
        if let Some(lane) = self.lane(direction, sa) {
            lane.next_release = next;
        }
    }
}

//! The worker looks whether the thread still moves, and takes the jobs back from one that does not.
//!
//! A call of a driver may not return. A gateway in need gives an engine 62.5 ms, and then the packets that it
//! has are lost. So where nothing has come back for 40 ms, and the thread has not been round for 20, the
//! worker takes back what it can have without the thread: what lies in the ring, what the thread has out of
//! the ring and not in its hands, and what the engine has, if that keeps its jobs where they are to be had
//! ([`Reclaim`]): an engine that works in the packets themselves does not, and keeps them. They go to the
//! next engine as faults. The thread gets no job until it moves again, and is lost if it does not for 750 ms.
//!
//! Of the time between two looks no more counts than a part, as a worker without a processor can say nothing
//! of the thread. One that lacks a processor itself is not told from one that is stuck: what it had is done
//! twice, and handed on once.

use crate::shared::Shared;
use crate::slot::{Ended, Slot};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use testudo_crypto::{Job, JobStatus, Reclaim};
use testudo_packet::{Consumer, Producer};

/// How long nothing may come back, how long the thread may not move meanwhile (it rests for up to 10 ms while
/// jobs are away), and after which time without a move it is lost. The model has no time.
const QUIET: Duration = if cfg!(loom) { Duration::from_secs(1 << 20) } else { Duration::from_millis(40) };
const STILL: Duration = Duration::from_millis(20);
const LOST: Duration = Duration::from_millis(750);
/// What a look counts for at most, before jobs are taken back and after that.
const LOOK: Duration = Duration::from_micros(12_500);
const LATE_LOOK: Duration = Duration::from_micros(46_875);
/// And of the time in which nothing came back, unless it was missing for longer than the other: two looks are
/// enough, however long the worker's turns are.
const QUIET_LOOK: Duration = Duration::from_millis(20);
const MISSING: Duration = Duration::from_millis(100);

/// How the thread does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    Moves,
    Stuck,
    Lost,
}

/// What the worker sees of the thread.
pub(crate) struct Watch {
    /// Without it nothing is taken back.
    pub(crate) reclaims: Option<Arc<dyn Reclaim>>,
    looked: Instant,
    /// How long no job has come back.
    quiet: Duration,
    /// How long the thread has not moved, and how often it had been round by then.
    still: Duration,
    turns: u64,
    is_stuck: bool,
    /// Jobs that were taken back, until the caller has them.
    returned: VecDeque<Job>,
    /// Those of the engine; empty between calls.
    taken: Vec<Job>,
}

impl Watch {
    /// For so many jobs at most.
    pub(crate) fn new(reclaims: Option<Arc<dyn Reclaim>>, jobs: usize) -> Self {
        let jobs = if reclaims.is_some() { jobs } else { 0 };
        Self {
            reclaims,
            looked: Instant::now(),
            quiet: Duration::ZERO,
            still: Duration::ZERO,
            turns: 0,
            is_stuck: false,
            returned: VecDeque::with_capacity(jobs),
            taken: Vec::with_capacity(jobs),
        }
    }

    /// The thread gets the first job after a while, or has given one back.
    pub(crate) fn begin(&mut self) {
        if self.reclaims.is_some() && !self.is_stuck {
            self.begin_at(Instant::now());
        }
    }

    pub(crate) fn begin_at(&mut self, now: Instant) {
        (self.looked, self.quiet, self.still) = (now, Duration::ZERO, Duration::ZERO);
    }

    /// Whether the engine takes no jobs: its thread is stuck, or its device is late.
    pub(crate) fn rests(&self) -> bool {
        self.is_stuck || self.reclaims.as_ref().is_some_and(|engine| engine.rests())
    }

    pub(crate) fn is_stuck(&self) -> bool {
        self.is_stuck
    }

    /// Looks at a thread that has jobs, or is stuck, and has been round so often.
    pub(crate) fn look(&mut self, now: Instant, turns: u64) -> Seen {
        let passed = now.saturating_duration_since(self.looked);
        self.looked = now;
        if self.turns != turns {
            (self.turns, self.still, self.is_stuck) = (turns, Duration::ZERO, false);
        }
        self.quiet += passed.min(if passed > MISSING { LOOK } else { QUIET_LOOK });
        self.still += passed.min(if self.is_stuck { LATE_LOOK } else { LOOK });
        self.is_stuck |= self.reclaims.is_some() && self.quiet >= QUIET && self.still >= STILL;
        match (self.is_stuck, self.still >= LOST) {
            (false, _) => Seen::Moves,
            (true, false) => Seen::Stuck,
            (true, true) => Seen::Lost,
        }
    }

    /// Takes jobs back, in the order in which they were given, all that nobody has in hand just now.
    #[cold]
    pub(crate) fn take_back(
        &mut self,
        shared: &Shared,
        results: &mut Consumer<Ended>,
        (slots, next): (Option<&mut Producer<Slot>>, &mut Slot),
    ) {
        let Self { reclaims: Some(engine), returned, taken, .. } = self else { return };
        let Some(mut jobs) = shared.try_lock() else { return };
        let jobs = &mut *jobs;
        while results.take(|slot| {
            returned.extend(slot.drain(..));
            true
        }) {}
        returned.extend(jobs.ended.drain(..));
        engine.reclaim(taken);
        for mut job in taken.drain(..).chain(jobs.waiting.drain(..)) {
            // What the engine invents is nobody's.
            if jobs.list.leave(&mut job) {
                returned.push_back(fault(job));
            }
        }
        if let Some(slots) = slots {
            slots.revise(|slot| returned.extend(slot.jobs.drain(..).map(fault)));
        }
        returned.extend(next.jobs.drain(..).map(fault));
    }

    /// Jobs that were taken back, and the caller does not have.
    pub(crate) fn returned(&self) -> usize {
        self.returned.len()
    }

    /// Gives up to `max` of them to the caller; returns how many.
    pub(crate) fn give_back(&mut self, done: &mut Vec<Job>, max: usize) -> usize {
        let count = self.returned.len().min(max);
        done.extend(self.returned.drain(..count));
        count
    }
}

fn fault(job: Job) -> Job {
    Job { status: JobStatus::Fault, ..job }
}

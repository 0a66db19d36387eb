//! The jobs that the engine has, apart from all that the device reads or writes.
//!
//! **Why they may be taken back at any time.** A packet is copied into a batch's arena when its job is taken,
//! and what comes back is copied out of the arena by [`place::finish`](crate::place::finish) alone, into the
//! packet of a job that has left here under the lock. The device and its driver know arenas, plans and keys,
//! and the address of no packet: neither where packets are copied to the device nor where it has the host's
//! memory, which is that of the arena. So nobody writes to a packet whose job is here; who takes the job has
//! the packet alone, whatever the device does; and a batch whose jobs are gone is the device's until it
//! has ended it, since only the engine gives its memory away again, once the device says so.
//!
//! **The lock** is never held during a call of the driver, which may not return: so another thread can take
//! the jobs of one that is stuck there.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use testudo_crypto::{Job, Reclaim};

/// Whether the device takes jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    InService = 0,
    /// It has batches whose jobs were taken back.
    Rests = 1,
    OutOfService = 2,
}

/// The jobs of one device's batches.
pub(crate) struct UnderWay {
    state: AtomicU8,
    jobs: Mutex<Jobs>,
}

/// By batch.
pub(crate) struct Jobs {
    /// Those that are not given back, in the order in which they came.
    batches: Box<[VecDeque<Job>]>,
    /// Batches that have jobs, in the order in which they began to gather.
    order: VecDeque<usize>,
    /// Another thread has taken some.
    was_reclaimed: bool,
}

impl UnderWay {
    /// For so many batches of so many jobs, all of it allocated here.
    pub(crate) fn new(batches: usize, jobs: usize) -> Self {
        let jobs = Jobs {
            batches: (0..batches).map(|_| VecDeque::with_capacity(jobs)).collect(),
            order: VecDeque::with_capacity(batches),
            was_reclaimed: false,
        };
        Self { state: AtomicU8::new(State::InService as u8), jobs: Mutex::new(jobs) }
    }

    /// For the engine. Others have it as long as they move jobs.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_state(&self, state: State) {
        self.state.store(state as u8, Ordering::Release);
    }

    pub(crate) fn is(&self, state: State) -> bool {
        self.state.load(Ordering::Acquire) == state as u8
    }
}

impl Jobs {
    /// A batch has got a job.
    pub(crate) fn push(&mut self, batch: usize, job: Job) {
        let Some(jobs) = self.batches.get_mut(batch) else { return };
        if jobs.is_empty() && !self.order.contains(&batch) {
            self.order.push_back(batch);
        }
        jobs.push_back(job);
    }

    /// The next job of a batch.
    pub(crate) fn pop(&mut self, batch: usize) -> Option<Job> {
        self.batches.get_mut(batch)?.pop_front()
    }

    /// A batch is empty, and begins anew.
    pub(crate) fn clear(&mut self, batch: usize) {
        self.batches.get_mut(batch).into_iter().for_each(VecDeque::clear);
        self.order.retain(|other| *other != batch);
    }

    /// Whether another thread has taken all jobs, of which there were some, since this was asked last.
    pub(crate) fn take_reclaimed(&mut self) -> bool {
        std::mem::take(&mut self.was_reclaimed)
    }
}

impl Reclaim for UnderWay {
    fn reclaim(&self, to: &mut Vec<Job>) -> bool {
        let mut jobs = match self.jobs.try_lock() {
            Ok(jobs) => jobs,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        let Jobs { batches, order, was_reclaimed } = &mut *jobs;
        let before = to.len();
        for batch in order.drain(..) {
            batches.get_mut(batch).into_iter().for_each(|jobs| to.extend(jobs.drain(..)));
        }
        // A device that had none is not late.
        *was_reclaimed |= to.len() > before;
        true
    }

    fn rests(&self) -> bool {
        self.is(State::Rests)
    }
}

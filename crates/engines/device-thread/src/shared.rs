//! The jobs that the thread has, as far as it has them in no call: where the worker finds them, too, while
//! the thread does not come out of one.
//!
//! Both take the lock for as long as jobs are moved, and the thread never has it while it calls the engine.
//! What the thread takes from here into its hands to give it to the engine nobody else has meanwhile.

use crate::device::List;
use crate::slot::SLOT_JOBS;
use crate::sync::{Mutex, MutexGuard};
use std::sync::{PoisonError, TryLockError};
use testudo_crypto::{Job, JobStatus};

/// See the [module](self).
pub(crate) struct Shared(Mutex<Jobs>);

pub(crate) struct Jobs {
    /// The jobs that the thread or the engine has.
    pub(crate) list: List,
    /// Out of the ring, and not in the engine.
    pub(crate) waiting: Vec<Job>,
    /// On their way back to the worker.
    pub(crate) ended: Vec<Job>,
}

impl Shared {
    /// For so many jobs at most.
    pub(crate) fn new(jobs: usize) -> Self {
        let list = List::new(jobs);
        let (waiting, ended) = (Vec::with_capacity(SLOT_JOBS), Vec::with_capacity(jobs));
        Self(Mutex::new(Jobs { list, waiting, ended }))
    }

    /// For the thread. The worker has it as long as it moves jobs.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For the worker; `None` if the thread is at it.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, Jobs>> {
        match self.0.try_lock() {
            Ok(jobs) => Some(jobs),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl Jobs {
    /// Ends what waits as faults, untouched.
    pub(crate) fn end_waiting(&mut self) {
        let Self { list, waiting, ended } = self;
        for mut job in waiting.drain(..) {
            if list.leave(&mut job) {
                ended.push(Job { status: JobStatus::Fault, ..job });
            }
        }
    }

    /// Whether the thread and the engine have none.
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty() && self.waiting.is_empty() && self.ended.is_empty()
    }
}

//! The library's queue of jobs, for algorithms that it has no bursts of.
//!
//! A job that is submitted may wait in the manager until others fill the lanes beside it. [`Queue::finish`]
//! flushes the queue, so that the manager keeps nothing when it returns.

use crate::raw::{GetJob, ImbJob, ImbMgr, QueueSize};
use std::marker::PhantomData;

/// The functions that the manager offered.
pub(crate) struct QueueFunctions {
    pub(crate) get_next: GetJob,
    /// Without checks: `burst` says why none is missed.
    pub(crate) submit: GetJob,
    pub(crate) get_completed: GetJob,
    pub(crate) flush: GetJob,
    pub(crate) size: QueueSize,
}

/// Jobs on their way through a manager, borrowed as long as this lives. It must be [finished](Self::finish).
pub(crate) struct Queue<'m> {
    manager: *mut ImbMgr,
    functions: &'m QueueFunctions,
    submitted: usize,
    ended: usize,
    has_failed: bool,
    borrowed: PhantomData<&'m mut ImbMgr>,
}

impl<'m> Queue<'m> {
    /// An empty queue.
    ///
    /// # Safety
    /// `manager` is alive for `'m`, nothing else uses it meanwhile, the functions are its own, and its
    /// version has jobs of [`ImbJob`]'s layout.
    pub(crate) unsafe fn new(manager: *mut ImbMgr, functions: &'m QueueFunctions) -> Self {
        Self { manager, functions, submitted: 0, ended: 0, has_failed: false, borrowed: PhantomData }
    }

    /// Hands a job over. After a failure nothing more is.
    ///
    /// # Safety
    /// Whatever the job points to stays alive and is touched by nobody else until [`finish`](Self::finish)
    /// has returned, and is as long as its algorithms and lengths say.
    pub(crate) unsafe fn submit(&mut self, job: &ImbJob) {
        if self.has_failed {
            return;
        }
        // SAFETY: the manager is alive and its functions are its own (`new`).
        let next = unsafe { (self.functions.get_next)(self.manager) };
        if next.is_null() {
            self.has_failed = true;
            return;
        }
        // SAFETY: the manager gave a slot of its ring, which has this layout (`new`); all members are
        // written.
        unsafe { next.write(*job) };
        // SAFETY: as above; the slot that is submitted was just filled, with pointers that live long enough
        // (our precondition). No safe binding exists.
        let mut ended = unsafe { (self.functions.submit)(self.manager) };
        self.submitted += 1;
        while !ended.is_null() {
            self.ended += 1;
            if self.ended > self.submitted {
                self.has_failed = true;
                return;
            }
            // SAFETY: as above. What it returns is compared with null and never read.
            ended = unsafe { (self.functions.get_completed)(self.manager) };
        }
    }

    /// Ends all jobs that still wait. `false` if the library failed: then the manager may hold addresses, and
    /// must not be used again.
    pub(crate) fn finish(mut self) -> bool {
        while !self.has_failed && self.ended < self.submitted {
            // SAFETY: the manager is alive and its functions are its own (`new`); what waiting jobs point to
            // is still there (`submit`). What it returns is compared with null and never read.
            let ended = unsafe { (self.functions.flush)(self.manager) };
            self.has_failed = ended.is_null();
            self.ended += 1;
        }
        // SAFETY: as above; it reads numbers of the manager.
        !self.has_failed && unsafe { (self.functions.size)(self.manager) } == 0
    }
}

//! What goes through the rings.

use crate::keys::KeyChange;
use testudo_crypto::Job;

/// Jobs in a slot at most.
pub(crate) const SLOT_JOBS: usize = 64;

/// To the device thread: jobs, and then changes of keys.
#[derive(Default)]
pub(crate) struct Slot {
    pub(crate) jobs: Vec<Job>,
    pub(crate) changes: Vec<KeyChange>,
    /// The worker has nothing more for now.
    pub(crate) flushes: bool,
    /// The worker wants the engine back.
    pub(crate) recalls: bool,
    /// The device thread has taken it.
    pub(crate) is_taken: bool,
}

impl Slot {
    pub(crate) fn new() -> Self {
        Self { jobs: Vec::with_capacity(SLOT_JOBS), ..Self::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.is_empty() && self.changes.is_empty() && !self.recalls
    }

    /// Moves everything to a slot that is empty.
    pub(crate) fn move_to(&mut self, other: &mut Self) {
        other.jobs.append(&mut self.jobs);
        other.changes.append(&mut self.changes);
        (other.flushes, other.is_taken) = (std::mem::take(&mut self.flushes), false);
        other.recalls = std::mem::take(&mut self.recalls);
    }
}

/// Back from it: jobs that have ended.
pub(crate) type Ended = Vec<Job>;

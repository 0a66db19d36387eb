//! The slots of a device: which are free, and the packets of those that it has.

use crate::place::Before;
use testudo_crypto::Job;

/// A job that the device has.
pub(crate) struct Held {
    pub job: Job,
    pub before: Before,
    pub pair: u16,
}

/// Every slot is in the list of free ones, or holds a job.
pub(crate) struct Slots {
    held: Vec<Option<Held>>,
    free: Vec<u32>,
}

impl Slots {
    pub(crate) fn new(count: u32) -> Self {
        Self { held: (0..count).map(|_| None).collect(), free: (0..count).rev().collect() }
    }

    /// Jobs that the device has.
    pub(crate) fn in_use(&self) -> usize {
        self.held.len() - self.free.len()
    }

    /// A slot that [`hold`](Self::hold) may fill.
    pub(crate) fn next(&self) -> Option<u32> {
        self.free.last().copied()
    }

    /// Fills the slot that [`next`](Self::next) named.
    pub(crate) fn hold(&mut self, held: Held) {
        let Some(slot) = self.free.pop() else { return };
        self.held[slot as usize] = Some(held);
    }

    /// Empties a slot; `None` for one that is none, or is empty: what a device gives back without having it.
    pub(crate) fn release(&mut self, slot: u32) -> Option<Held> {
        let held = self.held.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        Some(held)
    }
}

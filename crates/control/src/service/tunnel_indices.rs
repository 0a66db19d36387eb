//! Places in the worker's table for tunnels that are made at run time: those that no other tunnel has.

use std::sync::{Mutex, MutexGuard, PoisonError};
use testudo_ipsec::TunnelIndex;

/// The places that are free, shared by all that make tunnels at run time.
#[derive(Debug, Default)]
pub struct TunnelIndices(Mutex<Free>);

/// Some below `next`, and all from it on.
#[derive(Debug, Default)]
struct Free {
    below: Vec<u32>,
    next: u32,
}

impl TunnelIndices {
    fn free(&self) -> MutexGuard<'_, Free> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A free one, which is taken from here on; `None` if there is none.
    pub(super) fn take(&self) -> Option<TunnelIndex> {
        let mut free = self.free();
        if let Some(index) = free.below.pop() {
            return Some(TunnelIndex(index));
        }
        let index = free.next;
        free.next = index.checked_add(1)?;
        Some(TunnelIndex(index))
    }

    /// One is free that the worker has no tunnel at.
    pub(super) fn give_back(&self, index: TunnelIndex) {
        self.free().below.push(index.0);
    }

    /// A configuration is in force: these are taken, and no others.
    pub(super) fn turn_over(&self, taken: impl IntoIterator<Item = TunnelIndex>) {
        let mut all: Vec<u32> = taken.into_iter().map(|index| index.0).collect();
        all.sort_unstable();
        let mut free = Free::default();
        for index in all {
            free.below.extend(free.next..index);
            free.next = free.next.max(index.saturating_add(1));
        }
        *self.free() = free;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_taken_once_until_it_is_given_back() {
        let indices = TunnelIndices::default();
        indices.turn_over([4, 0, 1, 1].map(TunnelIndex));
        let mut taken: Vec<u32> = (0..4).filter_map(|_| indices.take()).map(|index| index.0).collect();
        taken.sort_unstable();
        assert_eq!(taken, [2, 3, 5, 6]);
        indices.give_back(TunnelIndex(3));
        assert_eq!((indices.take(), indices.take()), (Some(TunnelIndex(3)), Some(TunnelIndex(7))));
    }

    #[test]
    fn there_is_an_end() {
        let indices = TunnelIndices::default();
        indices.turn_over([]);
        indices.free().next = u32::MAX;
        assert_eq!(indices.take(), None);
    }
}

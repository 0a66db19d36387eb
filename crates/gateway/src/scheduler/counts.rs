//! What the scheduler has done for an engine, readable by other threads.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Counted by the worker, of one engine.
#[derive(Debug, Default)]
pub(crate) struct SharedScheduled {
    is_deep: AtomicBool,
    chunks: AtomicU64,
    packets: AtomicU64,
    no_room: AtomicU64,
    too_late: AtomicU64,
}

/// What the scheduler has done for a deep engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scheduled {
    /// Chunks that were submitted.
    pub chunks: u64,
    /// Packets that the engine took of them.
    pub packets: u64,
    /// Packets that went to the next engine since bins and leftovers were full, or since the engine took no
    /// more.
    pub no_room: u64,
    /// Packets that went to the next engine since they would have been away beyond the bound.
    pub too_late: u64,
}

impl Scheduled {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            chunks: self.chunks + other.chunks,
            packets: self.packets + other.packets,
            no_room: self.no_room + other.no_room,
            too_late: self.too_late + other.too_late,
        }
    }
}

fn count(jobs: usize) -> u64 {
    u64::try_from(jobs).unwrap_or(u64::MAX)
}

/// Nobody else writes: no count is lost between reading and writing it.
fn add(counter: &AtomicU64, jobs: usize) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(count(jobs)), Ordering::Relaxed);
}

impl SharedScheduled {
    pub(crate) fn set_deep(&self, is_deep: bool) {
        self.is_deep.store(is_deep, Ordering::Relaxed);
    }

    /// Of a chunk the engine took so many jobs and refused the others.
    pub(crate) fn submitted(&self, taken: usize, refused: usize) {
        add(&self.chunks, 1);
        add(&self.packets, taken);
        add(&self.no_room, refused);
    }

    pub(crate) fn no_room(&self, jobs: usize) {
        add(&self.no_room, jobs);
    }

    pub(crate) fn too_late(&self, jobs: usize) {
        add(&self.too_late, jobs);
    }

    /// `None` if the engine is not deep.
    pub(crate) fn snapshot(&self) -> Option<Scheduled> {
        let [chunks, packets, no_room, too_late] =
            [&self.chunks, &self.packets, &self.no_room, &self.too_late].map(|c| c.load(Ordering::Relaxed));
        let is_deep = self.is_deep.load(Ordering::Relaxed);
        is_deep.then_some(Scheduled { chunks, packets, no_room, too_late })
    }
}

//! What the scheduler has done for an engine, readable by other threads.

use super::bins::Load;
use super::chunk_time::MOST_CLOSED;
use super::live::LENGTHS;
use super::tuning::Shape;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};
use testudo_crypto::{Direction, Suite};

/// Counted by the worker, of one engine.
#[derive(Debug, Default)]
pub(crate) struct SharedScheduled {
    is_deep: AtomicBool,
    chunks: AtomicU64,
    packets: AtomicU64,
    no_room: AtomicU64,
    too_late: AtomicU64,
    left_over: AtomicU64,
    chunk: AtomicU64,
    bins: AtomicU64,
    range_bytes: AtomicU64,
    is_tuned: AtomicBool,
    changes: AtomicU64,
    lanes_permille: AtomicU64,
    late: Mutex<Vec<LateJobs>>,
}

/// Jobs that an engine had back too late, so that by the order of engines they go to the next one; it is
/// tried with a few now and then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LateJobs {
    /// Their suite.
    pub suite: Suite,
    /// Their direction.
    pub direction: Direction,
    /// Their class of length, by its place among all.
    pub class: usize,
}

impl LateJobs {
    /// The longest text of their class, in bytes; `None` if all that is longer.
    #[must_use]
    pub fn longest(&self) -> Option<u32> {
        LENGTHS.get(self.class).copied()
    }
}

/// What the scheduler has done for a deep engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scheduled {
    /// Chunks that were submitted.
    pub chunks: u64,
    /// Packets that the engine took of them, without those that it failed at there and then.
    pub packets: u64,
    /// Packets that went to the next engine since bins and leftovers were full, or since the engine took no
    /// more.
    pub no_room: u64,
    /// Packets that went to the next engine since they would have been away beyond the bound.
    pub too_late: u64,
    /// Packets that found no bin when they came, and waited for one among leftovers.
    pub left_over: u64,
    /// How packets are gathered: packets of a chunk, its bins, and the width of a bin's range of lengths.
    /// With self-tuning what is in use when nothing is tried; the largest of all workers.
    pub chunk: u64,
    /// Bins.
    pub bins: u64,
    /// Bytes of a bin's range of lengths.
    pub range_bytes: u64,
    /// How often self-tuning has changed that; `None` without it.
    pub changes: Option<u64>,
    /// Parts of a thousand of what the lanes of a full bin could have done that they did, averaged; with
    /// self-tuning, and from the first chunk on that was full.
    pub lanes_permille: Option<u64>,
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
            left_over: self.left_over + other.left_over,
            chunk: self.chunk.max(other.chunk),
            bins: self.bins.max(other.bins),
            range_bytes: self.range_bytes.max(other.range_bytes),
            changes: self.changes.map_or(other.changes, |own| Some(own + other.changes.unwrap_or(0))),
            lanes_permille: self.lanes_permille.max(other.lanes_permille),
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
        if is_deep {
            self.late.lock().unwrap_or_else(PoisonError::into_inner).reserve(MOST_CLOSED);
        }
    }

    /// Tells what the engine is not given; `false` if somebody reads that just now, for whom the worker does
    /// not wait.
    pub(crate) fn set_late(&self, late: impl Iterator<Item = LateJobs>) -> bool {
        let mut told = match self.late.try_lock() {
            Ok(told) => told,
            Err(TryLockError::Poisoned(told)) => told.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        told.clear();
        let room = told.capacity();
        told.extend(late.take(room));
        true
    }

    /// What was told last.
    pub(crate) fn late(&self) -> Vec<LateJobs> {
        self.late.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Of a chunk the engine works on so many jobs, and refused so many.
    pub(crate) fn submitted(&self, taken: usize, refused: usize) {
        add(&self.chunks, 1);
        add(&self.packets, taken);
        add(&self.no_room, refused);
    }

    pub(crate) fn no_room(&self, jobs: usize) {
        add(&self.no_room, jobs);
    }

    pub(crate) fn left_over(&self, jobs: usize) {
        add(&self.left_over, jobs);
    }

    /// A chunk was gathered in `shape`. `tuned`: what is in use when nothing is tried, and how often that has
    /// changed.
    pub(crate) fn gathered(&self, shape: Shape, tuned: Option<(Shape, u64)>, load: Load) {
        let (Shape { chunk, bins, range_bytes }, changes) = tuned.unwrap_or((shape, 0));
        self.chunk.store(count(chunk), Ordering::Relaxed);
        self.bins.store(count(bins), Ordering::Relaxed);
        self.range_bytes.store(range_bytes.into(), Ordering::Relaxed);
        self.is_tuned.store(tuned.is_some(), Ordering::Relaxed);
        self.changes.store(changes, Ordering::Relaxed);
        if load.is_full && load.lanes > 0 {
            let now = load.work.saturating_mul(1000) / load.lanes;
            let mean = match self.lanes_permille.load(Ordering::Relaxed) {
                0 => now,
                before => (7 * before + now).div_ceil(8),
            };
            self.lanes_permille.store(mean, Ordering::Relaxed);
        }
    }

    pub(crate) fn too_late(&self, jobs: usize) {
        add(&self.too_late, jobs);
    }

    /// `None` if the engine is not deep.
    pub(crate) fn snapshot(&self) -> Option<Scheduled> {
        let counters = [&self.chunks, &self.packets, &self.no_room, &self.too_late, &self.left_over];
        let [chunks, packets, no_room, too_late, left_over] = counters.map(|c| c.load(Ordering::Relaxed));
        let is_deep = self.is_deep.load(Ordering::Relaxed);
        let shape = [&self.chunk, &self.bins, &self.range_bytes, &self.changes, &self.lanes_permille];
        let [chunk, bins, range_bytes, changes, lanes] = shape.map(|c| c.load(Ordering::Relaxed));
        let is_tuned = self.is_tuned.load(Ordering::Relaxed);
        is_deep.then_some(Scheduled {
            chunks,
            packets,
            no_room,
            too_late,
            left_over,
            chunk,
            bins,
            range_bytes,
            changes: is_tuned.then_some(changes),
            lanes_permille: (is_tuned && lanes > 0).then_some(lanes),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The worker goes on meanwhile.
    #[test]
    fn what_is_late_is_told_when_nobody_reads_it() {
        let scheduled = SharedScheduled::default();
        scheduled.set_deep(true);
        let late = LateJobs { suite: Suite::AES128GCM16, direction: Direction::Open, class: 6 };
        let reading = scheduled.late.lock().unwrap();
        assert!(!scheduled.set_late([late].into_iter()));
        drop(reading);
        assert_eq!(scheduled.late(), []);
        assert!(scheduled.set_late([late].into_iter()));
        assert_eq!((scheduled.late(), late.longest()), (vec![late], None));
        assert!(scheduled.set_late(std::iter::empty()) && scheduled.late().is_empty());
    }
}

//! Up to where the windows of VPE of several workers may be numbered (`docs/VPE.md`).
//!
//! Each worker has windows of its own, so that no number is anybody else's, and nobody waits. What workers
//! have in common is that all windows of a key count below what the durable store has recorded:
//!
//! ```text
//!   worker 0   window 0  ─────────┐                  its gate: no window of its own is ahead of it
//!              window 1  ──────┐  │
//!   worker 1   window 8  ──────┼──┼───────┐
//!              window 9  ────┐ │  │       │
//!   Gates      ··············│·│··│·······│····┤ top ··· leased ··· 2^64 − 2
//! ```
//!
//! A worker whose gate reaches what it may use asks. Below the *top*, the highest bound that any worker has
//! taken, it needs nobody's leave; else it takes the numbers up to a [`BLOCK`] further on, as far as they are
//! leased, with one atomic operation. So a lease is one of all windows of all workers.
//!
//! **No window repeats a number.** A worker has a place while its [`Gate`] lives, and no two have the same
//! one. Its windows count up, and every number of theirs is below a bound that it had told (`top`) before it
//! used the number. Who has the place later, in this process, begins at the top; who has the key after a
//! restart begins where the lease ends, or, if all have ended in order, at the top ([`Gates`] is dropped with
//! the last gate).

use super::grants::Grants;
use super::lease::NumberSource;
use super::padded::Padded;
use super::sequence::SequenceError;
use super::shared_sequence::MAX_SHARERS;
use crate::shared_use::SharedUse;
use crate::sync::{AtomicU64, Ordering};
use std::sync::Arc;

/// Numbers that a worker takes the right to at once: sixteen batches of them in one window.
const BLOCK: u64 = if cfg!(loom) { 2 } else { 1024 };

/// Up to where the windows of all workers of an outbound SA of VPE may be numbered.
#[derive(Debug)]
struct Gates {
    /// No window has this number, nor a higher one. It is leased.
    top: Padded<AtomicU64>,
    /// No window may have a lower number from now on. It may be beyond the lease.
    from: AtomicU64,
    grants: Grants,
    /// Which places belong to a worker: a bit for each.
    taken: AtomicU64,
    /// Not 0 once no worker may number any more.
    closed: AtomicU64,
    used: Arc<SharedUse>,
}

/// The numbers of an outbound SA of VPE for one of its workers.
#[derive(Debug, Clone)]
pub struct GatedNumbers {
    gates: Arc<Gates>,
    worker: usize,
}

/// The place that a worker has.
#[derive(Debug)]
pub(super) struct Gate {
    gates: Arc<Gates>,
    worker: usize,
}

impl Gates {
    fn new(source: NumberSource, esn: bool) -> Self {
        let (grants, first) = Grants::new(source, esn);
        Self {
            top: Padded(AtomicU64::new(first)),
            from: AtomicU64::new(first),
            grants,
            taken: AtomicU64::new(0),
            closed: AtomicU64::new(0),
            used: Arc::new(SharedUse::new()),
        }
    }

    /// The first number that no window has.
    fn unused(&self) -> u64 {
        self.top.0.load(Ordering::Acquire).max(self.from.load(Ordering::Acquire))
    }

    /// Up to where a worker may number whose gate is at `next`: at least that far, and `wanted` numbers
    /// further if there are as many.
    fn bound(&self, next: u64, wanted: u64) -> Result<u64, SequenceError> {
        let top = self.top.0.load(Ordering::Acquire);
        if top > next && top - next >= wanted {
            return Ok(top);
        }
        let bound = next + self.grants.granted(next, wanted.max(BLOCK))?;
        // Before any of these numbers is used.
        Ok(self.top.0.fetch_max(bound, Ordering::AcqRel).max(bound))
    }
}

/// All workers have ended, and who has installed the SA.
impl Drop for Gates {
    fn drop(&mut self) {
        self.grants.give_back_from(self.unused());
    }
}

impl GatedNumbers {
    /// The numbers of this source for the first worker.
    #[must_use]
    pub fn new(source: NumberSource, esn: bool) -> Self {
        Self { gates: Arc::new(Gates::new(source, esn)), worker: 0 }
    }

    /// The same numbers for the worker with this index.
    #[must_use]
    pub fn of_worker(&self, worker: usize) -> Self {
        Self { gates: Arc::clone(&self.gates), worker }
    }

    /// The worker's index.
    #[must_use]
    pub fn worker(&self) -> usize {
        self.worker
    }

    /// Takes the worker's place, and tells the first number of its windows; `None` if somebody has it.
    pub(super) fn join(self) -> Option<(Gate, u64)> {
        let bit = 1 << u32::try_from(self.worker).ok().filter(|_| self.worker < MAX_SHARERS)?;
        // Acquire: what the place's former owner has told comes before what this one reads.
        if self.gates.taken.fetch_or(bit, Ordering::AcqRel) & bit != 0 {
            return None;
        }
        let first = self.gates.unused();
        Some((Gate { gates: self.gates, worker: self.worker }, first))
    }
}

impl Gate {
    /// [`Gates::bound`].
    pub(super) fn bound(&self, next: u64, wanted: u64) -> Result<u64, SequenceError> {
        self.gates.bound(next, wanted)
    }

    /// Leaves all numbers up to `last` out, for who joins later, too. `false` if none is left after them, or
    /// windows of any worker may be further on: by a block, they may not be in truth.
    pub(super) fn leave_out(&self, last: u64) -> bool {
        if last >= self.gates.grants.last {
            return false;
        }
        self.gates.from.fetch_max(last + 1, Ordering::AcqRel);
        self.gates.top.0.load(Ordering::Acquire) <= (last + 1).saturating_add(BLOCK)
    }

    /// The first number that no window of any worker has.
    pub(super) fn unused(&self) -> u64 {
        self.gates.unused()
    }

    /// No worker numbers any more: somebody else has its Sender ID. All see it with their next batch,
    /// whatever becomes of the message that tells them.
    pub(super) fn close(&self) {
        self.gates.closed.store(1, Ordering::Release);
    }

    /// Whether a worker has [closed](Self::close) it.
    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        self.gates.closed.load(Ordering::Acquire) != 0
    }

    /// What the workers have used of the SA's lifetime.
    pub(super) fn used(&self) -> &Arc<SharedUse> {
        &self.gates.used
    }
}

/// The worker sends no more, and its place is free.
impl Drop for Gate {
    fn drop(&mut self) {
        self.gates.taken.fetch_and(!(1 << self.worker), Ordering::AcqRel);
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "test data")]
mod tests {
    use super::super::{Lease, SequenceNumbers};
    use super::*;

    fn join(numbers: &GatedNumbers, worker: usize) -> SequenceNumbers {
        SequenceNumbers::of(NumberSource::Gated(numbers.of_worker(worker)), true).unwrap()
    }

    #[test]
    fn a_worker_asks_once_for_many_numbers_and_follows_others_for_nothing() {
        let lease = Arc::new(Lease::until(1_000_000));
        let source = NumberSource::Leased { first: 1, lease: Arc::clone(&lease) };
        let numbers = GatedNumbers::new(source, true);
        let [mut fast, mut slow] = [0, 1].map(|worker| join(&numbers, worker));
        assert!((1..=3000).all(|number| fast.reserve() == Ok(number)));
        assert_eq!(numbers.gates.unused(), 1 + 3 * BLOCK);
        // The slow one numbers as it likes: its windows are its own.
        assert!((1..=3000).all(|number| slow.reserve() == Ok(number)));
        assert_eq!(numbers.gates.unused(), 1 + 3 * BLOCK, "nothing was taken for that");
        drop(fast);
        assert_eq!(lease.unused(), None, "one is left");
        drop((slow, numbers));
        assert_eq!(lease.unused(), Some(1 + 3 * BLOCK));
    }

    #[test]
    fn a_place_belongs_to_one_worker_at_a_time_and_the_next_one_begins_above() {
        let numbers = GatedNumbers::new(NumberSource::Ephemeral, true);
        let mut first = join(&numbers, 5);
        let again = || SequenceNumbers::of(NumberSource::Gated(numbers.of_worker(5)), true);
        assert!(again().is_none(), "somebody has it");
        assert!(SequenceNumbers::of(NumberSource::Gated(numbers.of_worker(MAX_SHARERS)), true).is_none());
        assert_eq!((first.reserve(), first.reserve()), (Ok(1), Ok(2)));
        drop(first);
        assert!(again().is_some_and(|mut next| next.reserve().is_ok_and(|number| number > 2)));
    }

    #[test]
    fn no_worker_passes_the_end_of_the_lease_and_one_requests_more() {
        let lease = Arc::new(Lease::until(11));
        let source = NumberSource::Leased { first: 1, lease: Arc::clone(&lease) };
        let numbers = GatedNumbers::new(source, true);
        let mut both = [0, 1].map(|worker| join(&numbers, worker));
        for worker in &mut both {
            assert!(worker.has_far(10) && !worker.has_far(11));
            assert!((1..=10).all(|number| worker.reserve() == Ok(number)));
            assert_eq!(worker.reserve(), Err(SequenceError::NotLeased));
        }
        assert!(lease.take_request() && !lease.take_request());
        lease.grant(13);
        assert_eq!(both.each_mut().map(SequenceNumbers::reserve), [Ok(11), Ok(11)]);
        lease.finish();
        assert_eq!((both[0].reserve(), both[0].reserve()), (Ok(12), Err(SequenceError::Exhausted)));
    }

    #[test]
    fn the_last_number_is_used_and_nothing_wraps() {
        let last = u64::MAX - 1;
        let lease = Arc::new(Lease::until(u64::MAX));
        let numbers = GatedNumbers::new(NumberSource::Leased { first: last - 1, lease }, true);
        let mut both = [0, 1].map(|worker| join(&numbers, worker));
        for worker in &mut both {
            assert_eq!((worker.reserve(), worker.reserve()), (Ok(last - 1), Ok(last)));
            assert_eq!(worker.reserve(), Err(SequenceError::Exhausted));
            assert!(!worker.has_far(1) && !worker.advance(last));
        }
    }

    /// What is left out may be beyond the lease: that is not a leave to use what comes after it.
    #[test]
    fn numbers_that_are_left_out_are_not_leased_by_that() {
        let lease = Arc::new(Lease::until(100));
        let source = NumberSource::Leased { first: 1, lease: Arc::clone(&lease) };
        let numbers = GatedNumbers::new(source, true);
        let [mut one, mut other] = [0, 1].map(|worker| join(&numbers, worker));
        assert_eq!((one.reserve(), other.reserve()), (Ok(1), Ok(1)));
        assert!(one.advance(5000));
        assert_eq!((one.reserve(), one.next()), (Err(SequenceError::NotLeased), 5001));
        assert_eq!(other.reserve(), Ok(2), "it is told, too, by who asks for it");
        assert!((3..=99).all(|number| other.reserve() == Ok(number)));
        assert_eq!(other.reserve(), Err(SequenceError::NotLeased));
        lease.grant(6000);
        assert_eq!((one.reserve(), join(&numbers, 2).next()), (Ok(5001), 6000));
        assert!(!one.advance(10) && one.next() == 5002, "it is further on");
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::super::lease::Lease;
    use super::*;
    use loom::sync::Mutex;
    use loom::thread;

    type Bound = fn(&Gates, u64, u64) -> Result<u64, SequenceError>;

    /// Two workers number while the lease grows; one of them leaves, and a third one takes its place. Nothing
    /// is used that is not recorded, nor twice in one place, nor given back.
    fn workers_number(bound: Bound) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let lease = Arc::new(Lease::until(3));
            let durable = loom::sync::Arc::new(AtomicU64::new(3));
            let source = NumberSource::Leased { first: 1, lease: Arc::clone(&lease) };
            let numbers = GatedNumbers::new(source, true);
            let used = loom::sync::Arc::new(Mutex::new([0; 2]));
            let work = {
                let (durable, used) = (durable.clone(), used.clone());
                move |numbers: GatedNumbers| {
                    let worker = numbers.worker();
                    let Some((gate, next)) = numbers.join() else { return };
                    let Ok(end) = bound(&gate.gates, next, 1) else { return };
                    assert!(end <= durable.load(Ordering::Relaxed), "{end} is not noted");
                    let last = &mut used.lock().unwrap()[worker];
                    assert!(next > *last, "{next} is used twice");
                    *last = end - 1;
                }
            };
            let other = {
                let (work, numbers) = (work.clone(), numbers.of_worker(1));
                thread::spawn(move || work(numbers))
            };
            let next = {
                let (work, numbers) = (work.clone(), numbers.of_worker(1));
                thread::spawn(move || work(numbers))
            };
            durable.store(5, Ordering::Relaxed);
            lease.grant(5);
            work(numbers);
            other.join().unwrap();
            next.join().unwrap();
            let last = *used.lock().unwrap().iter().max().unwrap();
            assert!(lease.unused().is_some_and(|unused| unused > last), "{last} is given back");
        });
    }

    #[test]
    fn workers_number_below_what_is_recorded_and_a_place_goes_on_above() {
        workers_number(Gates::bound);
    }

    /// The model is worth something: it finds a worker that tells nobody how far it numbers.
    #[test]
    #[should_panic(expected = "is used twice")]
    fn a_top_that_is_not_told_is_found() {
        workers_number(|gates, next, wanted| Ok(next + gates.grants.granted(next, wanted)?));
    }
}

//! A ring of slots between a worker and one helper, who takes turns with it at each slot; and the helper's
//! sleep.
//!
//! ```text
//!            collected          ended            published
//!   free        │    ended        │   the helper's   │    free
//!   ────────────┴─────────────────┴──────────────────┴──────────────
//!                 worker takes out   done in place     worker fills
//! ```
//!
//! Three counters, each written by one side, say whose a slot is; slot = counter modulo slots. `collected` is
//! the worker's alone, and the other two are published with release and read with acquire. The content is
//! behind a mutex which therefore is hardly ever contended (a worker that [amends](WorkerSide::amend) a slot
//! only tries): it costs two atomic operations a chunk, and safe code in exchange. A helper that panics
//! poisons it, and the worker may have the content then.
//!
//! **No wake-up is lost.** The helper says that it sleeps, then looks again; the worker publishes, then looks
//! whether the helper sleeps. A sequentially consistent fence between the two steps of each makes that one of
//! them sees the other's first step.

use crate::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering, Thread, fence, park, yield_now};
use std::sync::{Arc, PoisonError};

/// How often a helper looks at an empty ring before it sleeps: some ten microseconds, in which a worker under
/// load comes again. Waking it costs the worker a system call.
const LOOKS: u32 = if cfg!(loom) { 0 } else { 512 };
/// After so many looks in vain it lets others have its processor.
const LOOKS_BEFORE_YIELD: u32 = 128;

/// A cache line of its own; two, since processors fetch pairs.
#[repr(align(128))]
struct Line<T>(T);

/// What both sides have.
struct Shared<C> {
    slots: Box<[Line<Mutex<C>>]>,
    published: Line<AtomicU64>,
    ended: Line<AtomicU64>,
    /// Whether the helper sleeps, or is about to.
    sleeps: Line<AtomicBool>,
    /// The worker's side is gone.
    is_closed: AtomicBool,
    /// The helper's side is gone.
    is_abandoned: AtomicBool,
}

impl<C> Shared<C> {
    fn mutex(&self, counter: u64) -> &Mutex<C> {
        // Lossless: the remainder is small.
        let at = usize::try_from(counter % self.slots.len() as u64).unwrap_or(0);
        &self.slots[at].0
    }

    fn slot(&self, counter: u64) -> MutexGuard<'_, C> {
        self.mutex(counter).lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` while the other side has it.
    fn try_slot(&self, counter: u64) -> Option<MutexGuard<'_, C>> {
        self.mutex(counter).try_lock().ok()
    }
}

/// The two sides of a ring with these slots, of which there must be at least one.
pub(crate) fn ring<C>(slots: impl IntoIterator<Item = C>) -> (WorkerSide<C>, HelperSide<C>) {
    let slots: Box<[_]> = slots.into_iter().map(|content| Line(Mutex::new(content))).collect();
    assert!(!slots.is_empty(), "a ring has slots");
    let shared = Arc::new(Shared {
        slots,
        published: Line(AtomicU64::new(0)),
        ended: Line(AtomicU64::new(0)),
        sleeps: Line(AtomicBool::new(false)),
        is_closed: AtomicBool::new(false),
        is_abandoned: AtomicBool::new(false),
    });
    let worker =
        WorkerSide { shared: Arc::clone(&shared), helper: None, published: 0, ended: 0, collected: 0 };
    (worker, HelperSide { shared, ended: 0 })
}

/// The side that fills slots and takes out what was done with them. Closes the ring when dropped.
pub(crate) struct WorkerSide<C> {
    shared: Arc<Shared<C>>,
    /// Who is to be woken.
    helper: Option<Thread>,
    published: u64,
    /// As it was last read.
    ended: u64,
    collected: u64,
}

impl<C> WorkerSide<C> {
    /// Who serves the other side.
    pub(crate) fn wakes(&mut self, helper: Thread) {
        self.helper = Some(helper);
    }

    /// Whether a slot is free.
    pub(crate) fn has_room(&self) -> bool {
        self.published - self.collected < self.shared.slots.len() as u64
    }

    /// How many slots were filled so far.
    pub(crate) fn published(&self) -> u64 {
        self.published
    }

    /// Slots that the helper has not ended yet, as of the last [`look`](Self::look).
    pub(crate) fn backlog(&self) -> u64 {
        self.published - self.ended
    }

    /// Whether all that was published has been collected.
    pub(crate) fn is_empty(&self) -> bool {
        self.published == self.collected
    }

    /// Reads how far the helper is.
    pub(crate) fn look(&mut self) {
        if self.ended != self.published {
            self.ended = self.shared.ended.0.load(Ordering::Acquire);
        }
    }

    /// Fills a slot and publishes it; `false` if none is free. The helper may sleep: [`wake`](Self::wake) has
    /// to follow.
    pub(crate) fn publish(&mut self, fill: impl FnOnce(&mut C)) -> bool {
        if !self.has_room() {
            return false;
        }
        fill(&mut self.shared.slot(self.published));
        self.published += 1;
        self.shared.published.0.store(self.published, Ordering::Release);
        true
    }

    /// Wakes the helper if it sleeps.
    pub(crate) fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.shared.sleeps.0.load(Ordering::Relaxed)
            && let Some(helper) = &self.helper
        {
            helper.unpark();
        }
    }

    /// Offers the slot that was published last to be changed, if the helper has not ended it and is not at
    /// it; `true` if `change` says that it did. The helper may have been at it before it panicked.
    pub(crate) fn amend(&mut self, change: impl FnOnce(&mut C) -> bool) -> bool {
        self.look();
        if self.published == self.ended {
            return false;
        }
        self.shared.try_slot(self.published - 1).is_some_and(|mut content| change(&mut content))
    }

    /// Takes from the oldest slot, if the helper has ended it. It is free again when `take` says that nothing
    /// is left in it; `true` if so.
    pub(crate) fn collect(&mut self, take: impl FnOnce(&mut C) -> bool) -> bool {
        if self.collected == self.ended {
            self.look();
        }
        if self.collected == self.ended {
            return false;
        }
        let is_empty = take(&mut self.shared.slot(self.collected));
        self.collected += u64::from(is_empty);
        is_empty
    }

    /// Whether the helper is gone, for any reason.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.shared.is_abandoned.load(Ordering::Acquire)
    }

    /// Ends in the helper's stead what it has left behind. It must be [gone](Self::is_abandoned).
    pub(crate) fn recover(&mut self, mut end: impl FnMut(&mut C)) {
        debug_assert!(self.is_abandoned());
        self.look();
        (self.ended..self.published).for_each(|counter| end(&mut self.shared.slot(counter)));
        self.shared.ended.0.store(self.published, Ordering::Release);
        self.ended = self.published;
    }
}

impl<C> Drop for WorkerSide<C> {
    fn drop(&mut self) {
        self.shared.is_closed.store(true, Ordering::Release);
        self.wake();
    }
}

/// The side that works on what is in the slots.
pub(crate) struct HelperSide<C> {
    shared: Arc<Shared<C>>,
    ended: u64,
}

impl<C> HelperSide<C> {
    /// Works on each slot in turn until the ring is closed. What was published before that and not begun is
    /// left as it is.
    pub(crate) fn serve(mut self, mut work: impl FnMut(&mut C)) {
        while let Some(published) = self.wait() {
            while self.ended < published && !self.shared.is_closed.load(Ordering::Relaxed) {
                work(&mut self.shared.slot(self.ended));
                self.ended += 1;
                self.shared.ended.0.store(self.ended, Ordering::Release);
            }
        }
    }

    /// Waits until there is something to do, and returns how much has been published; `None` when the ring is
    /// closed.
    fn wait(&self) -> Option<u64> {
        let mut looks = 0;
        loop {
            let published = self.shared.published.0.load(Ordering::Acquire);
            if self.shared.is_closed.load(Ordering::Acquire) {
                return None;
            }
            if published != self.ended {
                return Some(published);
            }
            if looks < LOOKS {
                looks += 1;
                match looks % LOOKS_BEFORE_YIELD {
                    0 => yield_now(),
                    _ => std::hint::spin_loop(),
                }
                continue;
            }
            self.sleep();
            looks = 0;
        }
    }

    fn sleep(&self) {
        self.shared.sleeps.0.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let published = self.shared.published.0.load(Ordering::Relaxed);
        if published == self.ended && !self.shared.is_closed.load(Ordering::Relaxed) {
            park();
        }
        self.shared.sleeps.0.store(false, Ordering::Relaxed);
    }
}

impl<C> Drop for HelperSide<C> {
    /// Also while a panic unwinds: by then no slot is locked.
    fn drop(&mut self) {
        self.shared.is_abandoned.store(true, Ordering::Release);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::thread;

    fn model(check: impl Fn() + Sync + Send + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(check);
    }

    /// Two chunks through so many slots; the worker does not wait for the first one. At the end the ring is
    /// closed while the helper works, looks or sleeps.
    fn two_chunks(slots: usize) {
        model(move || {
            let (mut worker, helper) = ring(vec![0_u32; slots]);
            let thread = thread::spawn(move || helper.serve(|content| *content += 100));
            worker.wakes(thread.thread().clone());
            let (mut next, mut seen) = (1, Vec::new());
            while seen.len() < 2 {
                while next <= 2 && worker.publish(|content| *content = next) {
                    worker.wake();
                    next += 1;
                }
                let taken = worker.collect(|content| {
                    seen.push(std::mem::take(content));
                    true
                });
                if !taken {
                    // Loom then lets the helper run: without a wake-up that would be for ever.
                    thread::yield_now();
                }
            }
            assert_eq!(seen, [101, 102]);
            assert!(worker.is_empty());
            drop(worker);
            thread.join().unwrap();
        });
    }

    #[test]
    fn what_is_published_is_worked_on_once_and_in_order_and_wakes_who_sleeps() {
        two_chunks(2);
    }

    #[test]
    fn a_slot_is_used_again_when_it_was_emptied() {
        two_chunks(1);
    }

    #[test]
    fn a_ring_that_is_closed_wakes_who_sleeps() {
        model(|| {
            let (mut worker, helper) = ring([0]);
            let thread = thread::spawn(move || helper.serve(|content| *content += 1));
            worker.wakes(thread.thread().clone());
            drop(worker);
            thread.join().unwrap();
        });
    }

    /// What a helper leaves behind is the worker's when it is gone, whole, and nothing twice.
    #[test]
    fn what_is_left_behind_is_recovered_once() {
        model(|| {
            let (mut worker, mut helper) = ring([0, 0]);
            let thread = thread::spawn(move || {
                if helper.shared.published.0.load(Ordering::Acquire) > 0 {
                    *helper.shared.slot(0) += 100;
                    helper.ended = 1;
                    helper.shared.ended.0.store(1, Ordering::Release);
                }
            });
            (1..=2).for_each(|n| assert!(worker.publish(|content| *content = n)));
            thread.join().unwrap();
            assert!(worker.is_abandoned());
            worker.recover(|content| *content += 200);
            let mut seen = Vec::new();
            while worker.collect(|content| {
                seen.push(*content);
                true
            }) {}
            assert!(seen == [101, 202] || seen == [201, 202], "{seen:?}");
        });
    }

    /// What is added to the last slot is worked on once, whether that happens before or in a slot of its own.
    #[test]
    fn a_slot_is_amended_before_it_is_begun_or_not_at_all() {
        model(|| {
            let (mut worker, helper) = ring([(0, false), (0, false)]);
            let thread = thread::spawn(move || {
                helper.serve(|(sum, has_begun)| {
                    *has_begun = true;
                    *sum *= 100;
                });
            });
            worker.wakes(thread.thread().clone());
            assert!(worker.publish(|content| *content = (1, false)));
            worker.wake();
            let amended = worker.amend(|(sum, has_begun)| {
                *sum += if *has_begun { 0 } else { 1 };
                !*has_begun
            });
            if !amended {
                assert!(worker.publish(|content| *content = (1, false)));
                worker.wake();
            }
            let mut sum = 0;
            while !worker.is_empty() {
                let taken = worker.collect(|content| {
                    sum += content.0;
                    true
                });
                if !taken {
                    thread::yield_now();
                }
            }
            assert_eq!(sum, 200);
            drop(worker);
            thread.join().unwrap();
        });
    }

    /// The model is worth something: it finds a helper that sleeps without a second look.
    #[test]
    #[should_panic(expected = "deadlock")]
    fn a_helper_that_does_not_look_again_sleeps_for_ever() {
        model(|| {
            let (published, sleeps) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
            let (seen, said) = (Arc::clone(&published), Arc::clone(&sleeps));
            let thread = thread::spawn(move || {
                if seen.load(Ordering::Acquire) == 0 {
                    said.store(true, Ordering::Relaxed);
                    park();
                }
            });
            published.store(1, Ordering::Release);
            fence(Ordering::SeqCst);
            if sleeps.load(Ordering::Relaxed) {
                thread.thread().unpark();
            }
            thread.join().unwrap();
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn a_helper_that_gets_nothing_sleeps_until_there_is_something() {
        fn until(mut is_so: impl FnMut() -> bool) {
            let began = Instant::now();
            while !is_so() {
                assert!(began.elapsed() < Duration::from_secs(60), "it has stopped");
                std::thread::yield_now();
            }
        }
        let (mut worker, helper) = ring([0]);
        let thread = std::thread::spawn(move || helper.serve(|content| *content += 1));
        worker.wakes(thread.thread().clone());
        for round in 1..=3 {
            until(|| worker.shared.sleeps.0.load(Ordering::SeqCst));
            assert!(worker.publish(|_| ()));
            worker.wake();
            until(|| {
                worker.collect(|content| {
                    assert_eq!(*content, round);
                    true
                })
            });
        }
        drop(worker);
        thread.join().unwrap();
    }

    #[test]
    fn a_ring_is_full_until_something_was_taken_out_whole() {
        let (mut worker, helper) = ring([0, 0]);
        assert!(worker.publish(|content| *content = 1) && worker.publish(|content| *content = 2));
        assert!(!worker.publish(|_| panic!("it is full")));
        assert_eq!((worker.backlog(), worker.collect(|_| panic!("nothing has ended"))), (2, false));
        drop(helper);
        worker.recover(|content| *content += 10);
        assert_eq!(worker.backlog(), 0);
        let mut seen = Vec::new();
        worker.collect(|content| {
            seen.push(*content);
            false
        });
        assert!(!worker.has_room());
        worker.collect(|content| {
            seen.push(*content);
            true
        });
        assert_eq!(seen, [11, 11]);
        assert!(worker.publish(|content| {
            assert_eq!(*content, 11);
            *content = 3
        }));
    }

    #[test]
    fn a_helper_that_panics_leaves_the_rest_and_the_worker_gets_all() {
        let (mut worker, helper) = ring([1, 2, 3]);
        (0..3).for_each(|_| assert!(worker.publish(|_| ())));
        let thread = std::thread::spawn(move || {
            helper.serve(|content| {
                *content += 10;
                assert_ne!(*content, 12, "meant");
            });
        });
        assert!(thread.join().is_err());
        assert!(worker.is_abandoned());
        let mut left = Vec::new();
        worker.recover(|content| left.push(*content));
        assert_eq!(left, [12, 3]);
        let mut seen = Vec::new();
        while worker.collect(|content| {
            seen.push(*content);
            true
        }) {}
        assert_eq!((seen, worker.is_empty()), (vec![11, 12, 3], true));
    }
}

//! A bounded ring that hands things over from one thread to another, and the sleep of who takes them.
//!
//! ```text
//!   Producer ──► fills a slot, publishes it        published ┐
//!                                                  slots in between are full
//!   Consumer ◄── takes what is in the oldest one       taken ┘
//! ```
//!
//! Two counters, each written by one side with release and read by the other with acquire, say whose a slot
//! is; slot = counter modulo slots. A slot is emptied and filled again where it lies, so that nothing is
//! allocated. Its content is behind a mutex which therefore is hardly ever contended (a producer that
//! [amends](Producer::amend) a slot only tries): two atomic operations a slot, and safe code in exchange.
//! What a slot holds should be many things.
//!
//! **No wake-up is lost.** The consumer says that it sleeps, then looks again; the producer publishes, then
//! looks whether the consumer sleeps. A sequentially consistent fence between the two steps of each makes
//! that one of them sees the other's first step.
//!
//! (The ring of the engine on other cores looks alike and is another: there the other side works on a slot
//! where it lies, and gives it back; here a slot's content leaves it.)

use crate::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering, Thread, fence, park};
use std::sync::{Arc, PoisonError};
#[cfg(not(loom))]
use std::thread::park_timeout as park_for;
use std::time::Duration;

/// A cache line of its own; two, since processors fetch pairs.
#[repr(align(128))]
struct Line<T>(T);

/// What both sides have.
struct Shared<T> {
    slots: Box<[Line<Mutex<T>>]>,
    published: Line<AtomicU64>,
    taken: Line<AtomicU64>,
    /// Whether the consumer sleeps, or is about to.
    sleeps: Line<AtomicBool>,
    /// The producer is gone.
    is_closed: AtomicBool,
    /// The consumer is gone.
    is_abandoned: AtomicBool,
}

impl<T> Shared<T> {
    fn mutex(&self, counter: u64) -> &Mutex<T> {
        // Lossless: the remainder is small.
        let at = usize::try_from(counter % self.slots.len() as u64).unwrap_or(0);
        &self.slots[at].0
    }

    fn slot(&self, counter: u64) -> MutexGuard<'_, T> {
        self.mutex(counter).lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The two sides of a ring with these slots.
///
/// # Panics
/// If there is no slot.
pub fn ring<T>(slots: impl IntoIterator<Item = T>) -> (Producer<T>, Consumer<T>) {
    let slots: Box<[_]> = slots.into_iter().map(|content| Line(Mutex::new(content))).collect();
    assert!(!slots.is_empty(), "a ring has slots");
    let shared = Arc::new(Shared {
        slots,
        published: Line(AtomicU64::new(0)),
        taken: Line(AtomicU64::new(0)),
        sleeps: Line(AtomicBool::new(false)),
        is_closed: AtomicBool::new(false),
        is_abandoned: AtomicBool::new(false),
    });
    let producer = Producer { shared: Arc::clone(&shared), consumer: None, published: 0, taken: 0 };
    (producer, Consumer { shared, published: 0, taken: 0 })
}

/// The side that fills slots. Closes the ring when dropped.
pub struct Producer<T> {
    shared: Arc<Shared<T>>,
    /// Who is to be woken.
    consumer: Option<Thread>,
    published: u64,
    /// As it was last read.
    taken: u64,
}

impl<T> Producer<T> {
    /// Who takes what is published, and sleeps in between.
    pub fn wakes(&mut self, consumer: Thread) {
        self.consumer = Some(consumer);
    }

    /// Whether a slot is free.
    #[inline]
    pub fn has_room(&mut self) -> bool {
        let slots = self.shared.slots.len() as u64;
        if self.published - self.taken == slots {
            self.look();
        }
        self.published - self.taken < slots
    }

    /// Whether all that was published has been taken.
    pub fn is_empty(&mut self) -> bool {
        if self.published != self.taken {
            self.look();
        }
        self.published == self.taken
    }

    fn look(&mut self) {
        self.taken = self.shared.taken.0.load(Ordering::Acquire);
    }

    /// Fills a slot and publishes it; `false` if none is free. The consumer may sleep: [`wake`](Self::wake)
    /// has to follow.
    #[inline]
    pub fn publish(&mut self, fill: impl FnOnce(&mut T)) -> bool {
        if !self.has_room() {
            return false;
        }
        fill(&mut self.shared.slot(self.published));
        self.published += 1;
        self.shared.published.0.store(self.published, Ordering::Release);
        true
    }

    /// Offers the slot that was published last to be changed, if it was not taken and the consumer is not at
    /// it; `true` if `change` says that it did. The consumer may have begun to take it before it panicked, or
    /// have taken it by now.
    pub fn amend(&mut self, change: impl FnOnce(&mut T) -> bool) -> bool {
        if self.is_empty() {
            return false;
        }
        let content = self.shared.mutex(self.published - 1).try_lock();
        content.is_ok_and(|mut content| change(&mut content))
    }

    /// Offers all slots that were published and not taken to be changed, the oldest first, but those that the
    /// consumer is at. It may have taken some by now, and finds all others as they were changed.
    pub fn revise(&mut self, mut change: impl FnMut(&mut T)) {
        self.look();
        for counter in self.taken..self.published {
            if let Ok(mut content) = self.shared.mutex(counter).try_lock() {
                change(&mut content);
            }
        }
    }

    /// Wakes the consumer if it sleeps.
    #[inline]
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.shared.sleeps.0.load(Ordering::Relaxed)
            && let Some(consumer) = &self.consumer
        {
            consumer.unpark();
        }
    }

    /// Whether the consumer is gone, for any reason.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.shared.is_abandoned.load(Ordering::Acquire)
    }
}

impl<T> Drop for Producer<T> {
    fn drop(&mut self) {
        self.shared.is_closed.store(true, Ordering::Release);
        self.wake();
    }
}

/// The side that takes what is in slots.
pub struct Consumer<T> {
    shared: Arc<Shared<T>>,
    /// As it was last read.
    published: u64,
    taken: u64,
}

impl<T> Consumer<T> {
    /// Whether a slot is full.
    #[inline]
    pub fn has_any(&mut self) -> bool {
        if self.published == self.taken {
            self.published = self.shared.published.0.load(Ordering::Acquire);
        }
        self.published != self.taken
    }

    /// Takes from the oldest full slot. It is free when `take` says that nothing is left in it; `true` if so.
    #[inline]
    pub fn take(&mut self, take: impl FnOnce(&mut T) -> bool) -> bool {
        if !self.has_any() {
            return false;
        }
        let is_empty = take(&mut self.shared.slot(self.taken));
        if is_empty {
            self.taken += 1;
            self.shared.taken.0.store(self.taken, Ordering::Release);
        }
        is_empty
    }

    /// Whether the producer is gone. What it published before can still be taken.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.is_closed.load(Ordering::Acquire)
    }

    /// Sleeps until something is published or the ring is closed, or for no reason.
    pub fn sleep(&mut self) {
        sleep_on(&[self]);
    }

    /// The same, for so long at most.
    pub fn sleep_for(&mut self, most: Duration) {
        sleep_by(&[self], || park_for(most));
    }
}

/// The model has no time: it sleeps until it is woken, which is the harder case.
#[cfg(loom)]
fn park_for(_: Duration) {
    park();
}

/// Sleeps until something is published in any of these rings or one is closed, or for no reason.
pub fn sleep_on<T>(consumers: &[&mut Consumer<T>]) {
    sleep_by(consumers, park);
}

fn sleep_by<T>(consumers: &[&mut Consumer<T>], park: impl FnOnce()) {
    let says = |sleeps| consumers.iter().for_each(|one| one.shared.sleeps.0.store(sleeps, Ordering::Relaxed));
    says(true);
    fence(Ordering::SeqCst);
    let has_work = |one: &&mut Consumer<T>| {
        let published = one.shared.published.0.load(Ordering::Relaxed);
        published != one.taken || one.shared.is_closed.load(Ordering::Relaxed)
    };
    if !consumers.iter().any(has_work) {
        park();
    }
    says(false);
}

impl<T> Drop for Consumer<T> {
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

    /// Takes numbers until the ring is closed and empty, and sleeps in between.
    fn take_all(mut consumer: Consumer<Option<u32>>) -> Vec<u32> {
        let mut seen = Vec::new();
        loop {
            let is_closed = consumer.is_closed();
            while consumer.take(|slot| {
                seen.extend(slot.take());
                true
            }) {}
            if is_closed {
                return seen;
            }
            consumer.sleep();
        }
    }

    /// Two things through so many slots, and then the ring is closed while the consumer takes, looks or
    /// sleeps: without a wake-up it would sleep for ever.
    fn two_things(slots: usize) {
        model(move || {
            let (mut producer, consumer) = ring(vec![None; slots]);
            let thread = thread::spawn(move || take_all(consumer));
            producer.wakes(thread.thread().clone());
            for number in [1, 2] {
                while !producer.publish(|slot| *slot = Some(number)) {
                    thread::yield_now();
                }
                producer.wake();
            }
            drop(producer);
            assert_eq!(thread.join().unwrap(), [1, 2]);
        });
    }

    #[test]
    fn what_is_published_is_taken_once_and_in_order_and_wakes_who_sleeps() {
        two_things(2);
    }

    #[test]
    fn a_slot_is_used_again_when_it_was_emptied() {
        two_things(1);
    }

    /// One consumer of two rings, of which one gets something and both are closed.
    #[test]
    fn who_takes_from_two_rings_is_woken_by_either() {
        model(|| {
            let ((mut first, mut one), (mut second, mut other)) = (ring([None]), ring([None]));
            let thread = thread::spawn(move || {
                let mut seen = None;
                while seen.is_none() {
                    let mut take = |slot: &mut Option<u32>| {
                        seen = slot.take();
                        true
                    };
                    if !one.take(&mut take) && !other.take(&mut take) {
                        sleep_on(&[&mut one, &mut other]);
                    }
                }
                seen
            });
            first.wakes(thread.thread().clone());
            second.wakes(thread.thread().clone());
            assert!(second.publish(|slot| *slot = Some(1)));
            second.wake();
            assert_eq!(thread.join().unwrap(), Some(1));
        });
    }

    /// What is added to the last slot is taken with it, or finds it taken.
    #[test]
    fn a_slot_is_amended_before_it_is_taken_or_not_at_all() {
        model(|| {
            let (mut producer, mut consumer) = ring([None, None]);
            assert!(producer.publish(|slot| *slot = Some(1)));
            let thread = thread::spawn(move || {
                let mut seen = 0;
                consumer.take(|slot| {
                    seen += slot.take().unwrap_or(0);
                    true
                });
                (seen, consumer)
            });
            let is_amended = producer.amend(|slot| slot.as_mut().map(|number| *number += 10).is_some());
            if !is_amended {
                assert!(producer.publish(|slot| *slot = Some(10)));
            }
            let (mut seen, mut consumer) = thread.join().unwrap();
            while consumer.take(|slot| {
                seen += slot.take().unwrap_or(0);
                true
            }) {}
            assert_eq!((seen, producer.is_empty()), (11, true));
        });
    }

    /// What the producer takes out again the consumer does not find, and the other way round.
    #[test]
    fn what_is_in_slots_is_taken_by_one_side_alone() {
        model(|| {
            let (mut producer, mut consumer) = ring([None, None]);
            assert!([1, 2].into_iter().all(|number| producer.publish(|slot| *slot = Some(number))));
            let thread = thread::spawn(move || {
                let mut seen = 0;
                consumer.take(|slot| {
                    seen += slot.take().unwrap_or(0);
                    true
                });
                (seen, consumer)
            });
            let mut back = 0;
            producer.revise(|slot| back += slot.take().unwrap_or(0));
            let (mut seen, mut consumer) = thread.join().unwrap();
            while consumer.take(|slot| {
                seen += slot.take().unwrap_or(0);
                true
            }) {}
            assert_eq!((seen + back, producer.is_empty()), (3, true));
        });
    }

    /// The model is worth something: it finds a consumer that sleeps without a second look.
    #[test]
    #[should_panic(expected = "deadlock")]
    fn a_consumer_that_does_not_look_again_sleeps_for_ever() {
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

    #[test]
    fn a_ring_is_full_until_a_slot_was_taken_whole() {
        let (mut producer, mut consumer) = ring([0, 0]);
        assert!(!consumer.has_any() && producer.is_empty());
        assert!(producer.publish(|content| *content = 1) && producer.publish(|content| *content = 2));
        assert!(!producer.publish(|_| panic!("it is full")));
        assert!(!consumer.take(|content| {
            *content += 10;
            false
        }));
        assert!(!producer.has_room());
        assert!(consumer.take(|content| *content == 11));
        assert!(producer.has_room() && !producer.is_empty());
        assert!(producer.amend(|content| {
            *content += 5;
            true
        }));
        assert!(consumer.take(|content| *content == 7));
        assert!(!producer.amend(|_| panic!("it was taken")) && producer.is_empty());
        assert!(!consumer.take(|_| panic!("it is empty")));
    }

    #[test]
    fn slots_that_were_not_taken_are_revised_and_no_others() {
        let (mut producer, mut consumer) = ring([0, 0, 0]);
        (1..=3).for_each(|number| assert!(producer.publish(|content| *content = number)));
        assert!(consumer.take(|content| *content == 1));
        let mut seen = Vec::new();
        producer.revise(|content| seen.push(std::mem::take(content)));
        assert_eq!(seen, [2, 3]);
        assert!(consumer.take(|content| *content == 0) && consumer.take(|content| *content == 0));
    }

    #[test]
    fn each_side_knows_when_the_other_is_gone() {
        let (producer, consumer) = ring([0]);
        assert!(!producer.is_abandoned() && !consumer.is_closed());
        drop(consumer);
        assert!(producer.is_abandoned());
        let (mut producer, mut consumer) = ring([0]);
        producer.publish(|content| *content = 9);
        drop(producer);
        consumer.sleep();
        assert!(consumer.is_closed() && consumer.take(|content| *content == 9));
        let (mut producer, mut consumer) = ring([0]);
        producer.publish(|content| *content = 1);
        let thread = std::thread::spawn(move || {
            let meant = consumer.take(|_| panic!("meant"));
            assert!(!meant);
        });
        assert!(thread.join().is_err());
        assert!(producer.is_abandoned());
        assert!(!producer.amend(|_| true), "the slot that a panic left is nobody's");
    }
}

//! Work that a worker does itself, or a thread beside it: who does it, and what it takes.

use crate::sync::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What those who share such work tell each other. All of it may be read at any time, by any thread.
#[derive(Debug, Default)]
pub struct Aside {
    is_wanted: AtomicBool,
    working_ns: AtomicU64,
    jobs: AtomicU64,
    busy_ns: AtomicU64,
}

/// What such work has taken so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AsideTimes {
    /// Nanoseconds that a processor has spent with it: the thread's or the worker's.
    pub working_ns: u64,
    /// Jobs that a device has ended, if it is a device's work.
    pub jobs: u64,
    /// Nanoseconds in which the device had any.
    pub busy_ns: u64,
}

impl Aside {
    /// Whether a thread is to do it. The change takes place when nothing of it is under way.
    pub fn want(&self, is_wanted: bool) {
        self.is_wanted.store(is_wanted, Ordering::Relaxed);
    }

    /// Whether a thread is to do it.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Relaxed)
    }

    /// A processor has worked on it since then.
    pub fn add_work(&self, since: Instant) {
        self.working_ns.fetch_add(nanoseconds(since.elapsed()), Ordering::Relaxed);
    }

    /// A device has ended so many jobs, and had some for so long.
    pub fn add_jobs(&self, jobs: usize, busy: Duration) {
        self.jobs.fetch_add(jobs as u64, Ordering::Relaxed);
        self.busy_ns.fetch_add(nanoseconds(busy), Ordering::Relaxed);
    }

    /// What it has taken so far.
    #[must_use]
    pub fn times(&self) -> AsideTimes {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        AsideTimes {
            working_ns: read(&self.working_ns),
            jobs: read(&self.jobs),
            busy_ns: read(&self.busy_ns),
        }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::ring;
    use loom::cell::Cell;
    use loom::thread;
    use std::sync::Arc;

    /// One piece of work at the device, whose pieces come in order. Loom sees to it that nobody else is at it
    /// meanwhile, nor was without this thread's knowing.
    fn work(device: &Cell<u32>, number: u32) {
        assert_eq!(device.get() + 1, number, "out of order");
        device.set(number);
    }

    /// A worker has work done at a device, by itself or, through a ring, by a thread, as somebody else wants
    /// at any moment. `waits`: it changes hands when nothing is with the thread any more.
    fn changing_hands(waits: bool) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(move || {
            let (aside, device) = (Arc::<Aside>::default(), Arc::new(Cell::new(0)));
            let (mut to_do, mut given) = ring([None, None]);
            let (mut done, mut returns) = ring([None, None]);
            let at_device = Arc::clone(&device);
            let thread = thread::spawn(move || {
                loop {
                    let is_closed = given.is_closed();
                    while given.take(|slot: &mut Option<u32>| {
                        let number = slot.take().unwrap();
                        work(&at_device, number);
                        assert!(done.publish(|slot| *slot = Some(number)));
                        true
                    }) {}
                    if is_closed {
                        return;
                    }
                    given.sleep();
                }
            });
            to_do.wakes(thread.thread().clone());
            let chooser = Arc::clone(&aside);
            let chooser = thread::spawn(move || [true, false].map(|wants| chooser.want(wants)));
            let (mut is_apart, mut away) = (false, 0);
            for number in 1..=2 {
                loop {
                    while returns.take(|slot: &mut Option<u32>| slot.take().is_some()) {
                        away -= 1;
                    }
                    let wanted = aside.is_wanted();
                    if away == 0 || !waits {
                        is_apart = wanted;
                    }
                    if is_apart == wanted {
                        break;
                    }
                    thread::yield_now();
                }
                if is_apart {
                    assert!(to_do.publish(|slot| *slot = Some(number)));
                    to_do.wake();
                    away += 1;
                } else {
                    work(&device, number);
                }
            }
            drop(to_do);
            thread.join().unwrap();
            chooser.join().unwrap();
            assert_eq!(device.get(), 2);
        });
    }

    #[test]
    fn work_that_changes_hands_when_none_is_under_way_stays_in_order_and_in_one_hand() {
        changing_hands(true);
    }

    /// The model is worth something: it finds a worker that does not wait for what it gave away.
    #[test]
    #[should_panic]
    fn work_that_changes_hands_at_once_is_in_two_hands() {
        changing_hands(false);
    }
}

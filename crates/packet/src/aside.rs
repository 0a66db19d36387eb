//! Work that a worker does itself, or a thread beside it: who does it, and what it takes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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

//! A lock whose callers take turns.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A value under a lock that one of two callers cannot take twice while the other waits.
///
/// With a mutex, a thread that releases it and locks it again at once is faster than a waiter that must first
/// be woken: saving windows, one transaction after another, would keep a lease waiting for all of them. Here
/// the waiter for the value also holds the queue's next slot, so a caller that re-acquires queues after it.
/// Fairness is only guaranteed between two callers.
#[derive(Debug)]
pub(super) struct Turns<T> {
    next: Mutex<()>,
    value: Mutex<T>,
    /// Turns so far.
    #[cfg(test)]
    taken: std::sync::atomic::AtomicUsize,
}

impl<T> Turns<T> {
    pub(super) fn new(value: T) -> Self {
        Self {
            next: Mutex::new(()),
            value: Mutex::new(value),
            #[cfg(test)]
            taken: Default::default(),
        }
    }

    /// Waits for its turn. The value that a panicked caller left is used as it is.
    pub(super) fn take(&self) -> MutexGuard<'_, T> {
        let _next = lock(&self.next);
        #[cfg(test)]
        self.taken.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        lock(&self.value)
    }

    #[cfg(test)]
    pub(super) fn taken(&self) -> usize {
        self.taken.load(std::sync::atomic::Ordering::Relaxed)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::TryLockError;
    use std::thread;

    #[test]
    fn a_waiter_is_served_before_a_caller_that_re_acquires() {
        for round in 0..100 {
            let turns = Turns::new(Vec::new());
            thread::scope(|scope| {
                let mut own = turns.take();
                own.push("first");
                scope.spawn(|| turns.take().push("who waited"));
                // It holds the queue's next slot until we let go.
                while !matches!(turns.next.try_lock(), Err(TryLockError::WouldBlock)) {
                    thread::yield_now();
                }
                drop(own);
                turns.take().push("again");
            });
            assert_eq!(*turns.take(), ["first", "who waited", "again"], "round {round}");
        }
    }
}

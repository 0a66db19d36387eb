//! Sequence numbers of an outbound SA, and the lease they come from (the nonce contract).
//!
//! ```text
//!   control thread                          worker
//!   store: numbers up to N are taken ──►    Lease (granted up to N) ──► SequenceNumbers::reserve
//!          (durable before granted)  ◄──    "wanted" when half is used
//! ```
//!
//! A number reaches a packet only after the durable store has noted that it is taken. After a crash the store's note
//! stands, so that the next start goes on behind it: numbers are skipped, never used twice.

use crate::sync::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

/// Numbers that the durable store has set aside for one SA, shared by the control thread, which grants, and the worker, which takes.
#[derive(Debug)]
pub struct Lease {
    /// First number that may not be used yet.
    end: AtomicU64,
    /// The worker wants more.
    wanted: AtomicBool,
}

impl Lease {
    /// A lease of the numbers below `end`.
    #[must_use]
    pub fn until(end: u64) -> Self {
        Self { end: AtomicU64::new(end), wanted: AtomicBool::new(false) }
    }

    /// First number that may not be used yet.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// Grants the numbers below `end`, which must be durably noted as taken by now. A lease never shrinks.
    pub fn grant(&self, end: u64) {
        self.end.fetch_max(end, Ordering::Release);
    }

    /// Whether the worker has asked for more since this was last called.
    pub fn take_request(&self) -> bool {
        self.wanted.swap(false, Ordering::AcqRel)
    }

    fn request(&self) {
        if !self.wanted.load(Ordering::Relaxed) {
            // In one step, so that its place among the swaps of `take_request` is certain: loom does not order a plain store
            // against a swap that runs at the same time, and then finds a request lost.
            self.wanted.swap(true, Ordering::AcqRel);
        }
    }
}

/// Why there is no next number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SequenceError {
    /// All numbers of the SA are used: it needs a new key (RFC 4303 3.3.3).
    #[error("all sequence numbers are used")]
    Exhausted,
    /// The numbers leased so far are used and no more were granted yet.
    #[error("no sequence number is leased")]
    NotLeased,
}

/// The next numbers of one outbound SA. Owned by one worker.
#[derive(Debug)]
#[repr(C)]
pub struct SequenceNumbers {
    next: u64,
    /// From here on the worker asks for more.
    low_water: u64,
    /// End of the lease when it was last looked at.
    leased: u64,
    last: u64,
    lease: Arc<Lease>,
}

impl SequenceNumbers {
    /// Numbers from `first` on. Without ESN they end at 2^32 - 1, with it at 2^64 - 2: nothing wraps.
    #[must_use]
    pub fn new(first: u64, esn: bool, lease: Arc<Lease>) -> Self {
        let last = if esn { u64::MAX - 1 } else { u32::MAX.into() };
        let first = first.max(1);
        let mut numbers = Self { next: first, leased: first, low_water: first, last, lease };
        numbers.look();
        numbers
    }

    /// Reserves the next number.
    ///
    /// # Errors
    /// [`SequenceError`] says why there is none; nothing is used up then.
    #[inline]
    pub fn reserve(&mut self) -> Result<u64, SequenceError> {
        if self.next >= self.low_water {
            self.refill()?;
        }
        let number = self.next;
        self.next += 1;
        Ok(number)
    }

    /// Reserves the next `count` numbers and returns the first; `None`, with nothing used up, where the lease has to be looked at:
    /// [`reserve`](Self::reserve) does that, and says what is wrong.
    #[inline]
    pub fn reserve_run(&mut self, count: u64) -> Option<u64> {
        // Below low water, so within the lease and within what the SA may use at all.
        let first = self.next;
        let next = first.checked_add(count).filter(|&next| next <= self.low_water)?;
        self.next = next;
        Some(first)
    }

    /// The number that [`reserve`](Self::reserve) gives next.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    #[cold]
    fn refill(&mut self) -> Result<(), SequenceError> {
        if self.next > self.last {
            return Err(SequenceError::Exhausted);
        }
        self.look();
        // Nothing is asked for behind the last number of all.
        if self.next >= self.low_water && self.leased <= self.last {
            self.lease.request();
        }
        if self.next >= self.leased { Err(SequenceError::NotLeased) } else { Ok(()) }
    }

    /// Takes note of what is granted by now.
    fn look(&mut self) {
        let end = self.lease.end().min(self.last.saturating_add(1));
        if end > self.leased {
            self.leased = end;
            self.low_water = self.next + (end - self.next) / 2;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_in_order_and_end_with_the_lease() {
        let lease = Arc::new(Lease::until(5));
        let mut numbers = SequenceNumbers::new(1, true, Arc::clone(&lease));
        let taken: Vec<_> = std::iter::from_fn(|| numbers.reserve().ok()).collect();
        assert_eq!(taken, [1, 2, 3, 4]);
        assert_eq!(numbers.reserve(), Err(SequenceError::NotLeased));
        lease.grant(7);
        assert_eq!((numbers.reserve(), numbers.reserve()), (Ok(5), Ok(6)));
        assert_eq!(numbers.reserve(), Err(SequenceError::NotLeased));
    }

    #[test]
    fn a_run_ends_at_low_water_and_single_numbers_go_on() {
        let lease = Arc::new(Lease::until(101));
        let mut numbers = SequenceNumbers::new(1, true, Arc::clone(&lease));
        assert_eq!(
            (numbers.reserve_run(30), numbers.reserve_run(20), numbers.reserve_run(1)),
            (Some(1), Some(31), None)
        );
        assert!(!lease.take_request(), "a run asks for nothing");
        assert_eq!(numbers.reserve(), Ok(51));
        assert!(lease.take_request());
        assert_eq!(numbers.reserve_run(2), None);
        lease.grant(1001);
        assert_eq!((numbers.reserve(), numbers.reserve_run(0)), (Ok(52), Some(53)));
    }

    #[test]
    fn more_is_asked_for_when_half_is_used() {
        let lease = Arc::new(Lease::until(101));
        let mut numbers = SequenceNumbers::new(1, true, Arc::clone(&lease));
        (0..50).for_each(|_| assert!(numbers.reserve().is_ok()));
        assert!(!lease.take_request());
        numbers.reserve().unwrap();
        assert!(lease.take_request());
        assert!(!lease.take_request());
    }

    #[test]
    fn thirty_two_bit_numbers_do_not_wrap() {
        let lease = Arc::new(Lease::until(u64::MAX));
        let mut numbers = SequenceNumbers::new(u64::from(u32::MAX) - 1, false, lease);
        assert_eq!(numbers.reserve(), Ok(0xFFFF_FFFE));
        assert_eq!(numbers.reserve(), Ok(0xFFFF_FFFF));
        assert_eq!(numbers.reserve(), Err(SequenceError::Exhausted));
        assert_eq!(numbers.reserve(), Err(SequenceError::Exhausted));
    }

    #[test]
    fn extended_numbers_do_not_wrap() {
        let lease = Arc::new(Lease::until(u64::MAX));
        let mut numbers = SequenceNumbers::new(u64::MAX - 2, true, lease);
        assert_eq!(numbers.reserve(), Ok(u64::MAX - 2));
        assert_eq!(numbers.reserve(), Ok(u64::MAX - 1));
        assert_eq!(numbers.reserve(), Err(SequenceError::Exhausted));
    }

    #[test]
    fn nothing_is_asked_for_behind_the_last_number() {
        let lease = Arc::new(Lease::until(1 << 40));
        let mut numbers = SequenceNumbers::new(u64::from(u32::MAX) - 9, false, Arc::clone(&lease));
        while numbers.reserve().is_ok() {}
        assert!(!lease.take_request());
    }

    #[test]
    fn a_lease_never_shrinks() {
        let lease = Lease::until(10);
        lease.grant(5);
        assert_eq!(lease.end(), 10);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::atomic::{AtomicU64 as Durable, Ordering};
    use loom::thread;

    /// Under every interleaving: no number is used before it is durably noted, and none twice.
    #[test]
    fn no_number_is_used_before_it_is_noted() {
        loom::model(|| {
            let lease = Arc::new(Lease::until(2));
            let durable = loom::sync::Arc::new(Durable::new(2));
            let control = {
                let (lease, durable) = (Arc::clone(&lease), durable.clone());
                thread::spawn(move || {
                    for end in [3, 4] {
                        durable.store(end, Ordering::Relaxed);
                        lease.grant(end);
                    }
                })
            };
            let mut numbers = SequenceNumbers::new(1, true, lease);
            let mut previous = 0;
            for _ in 0..3 {
                if let Ok(number) = numbers.reserve() {
                    assert!(number > previous, "{number} after {previous}");
                    assert!(number < durable.load(Ordering::Relaxed), "{number} is not noted");
                    previous = number;
                }
            }
            control.join().unwrap();
        });
    }

    /// A request that is made while an earlier one is being answered is not lost.
    #[test]
    fn no_request_is_lost() {
        loom::model(|| {
            let lease = Arc::new(Lease::until(2));
            let control = {
                let lease = Arc::clone(&lease);
                thread::spawn(move || {
                    if lease.take_request() {
                        lease.grant(3);
                    }
                })
            };
            let mut numbers = SequenceNumbers::new(1, true, Arc::clone(&lease));
            let starved = (0..2).any(|_| numbers.reserve().is_err());
            control.join().unwrap();
            if starved && lease.end() < 3 {
                assert!(lease.take_request(), "the worker starves and nobody knows");
            }
        });
    }
}

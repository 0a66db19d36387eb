//! Keeps the workers supplied with sequence numbers.
//!
//! ```text
//!   leases thread: refill ──┐
//!                           ├── one at a time ──► Store::lease_many ──► Lease::grant
//!   main: begin (a reload) ─┘
//! ```
//!
//! Both hold the list of SAs while the store leases, and for nothing else that takes time: what is noted in the list is the order in which the
//! store gave a key's blocks away, so that a block continues the lease that it is granted to.

use crate::{Fingerprint, LeaseStore, StoreError};
use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use testudo_ipsec::Lease;

/// Numbers that are leased at a time. Half a block lasts a worker longer than the store takes for a commit even at millions of
/// packets a second, and a restart wastes less than a 4,000th of what a 32-bit sequence has.
pub const BLOCK: u64 = 1 << 20;

/// What an outbound SA begins with.
#[derive(Debug, Clone)]
pub struct Start {
    /// Its first sequence number.
    pub first: u64,
    /// What is XORed into its numbers to make IVs.
    pub iv_mask: u64,
    /// Where its numbers from there on are leased.
    pub lease: Arc<Lease>,
}

/// One SA's supply.
#[derive(Debug, Clone)]
struct Supply {
    key: Fingerprint,
    lease: Arc<Lease>,
    /// A request that the store could not answer yet.
    owed: bool,
}

/// All SAs that must be supplied. May be used from any thread.
#[derive(Debug, Default)]
pub struct Leases {
    supplies: Mutex<Vec<Supply>>,
}

impl Leases {
    /// Leases a first block for each key; in one transaction, so that ten thousand tunnels start as fast as one.
    ///
    /// An SA that has such a key already is granted nothing from here on: the numbers behind its lease are the new one's.
    ///
    /// # Errors
    /// What the store says; then nothing is leased.
    pub fn begin(&self, store: &dyn LeaseStore, keys: &[Fingerprint]) -> Result<Vec<Start>, StoreError> {
        let requests: Vec<_> = keys.iter().map(|&key| (key, BLOCK)).collect();
        let mut supplies = self.supplies();
        let blocks = store.lease_many(&requests)?;
        let start = |b: &crate::Lease| Start {
            first: b.first,
            iv_mask: b.iv_mask,
            lease: Arc::new(Lease::until(b.end)),
        };
        let started: Vec<_> = blocks.iter().map(start).collect();
        let taken: HashSet<_> = keys.iter().copied().collect();
        supplies.retain(|supply| !taken.contains(&supply.key));
        supplies.extend(keys.iter().zip(&started).map(|(&key, start)| Supply {
            key,
            lease: Arc::clone(&start.lease),
            owed: false,
        }));
        Ok(started)
    }

    /// Forgets the SAs that nobody takes numbers for any more.
    pub fn forget_unused(&self) {
        self.supplies().retain(|supply| Arc::strong_count(&supply.lease) > 1);
    }

    /// Grants more numbers to whoever asked for some. Returns how many were granted a block.
    ///
    /// # Errors
    /// What the store says; whoever asked is remembered and served by a later call.
    pub fn refill(&self, store: &dyn LeaseStore) -> Result<usize, StoreError> {
        let mut supplies = self.supplies();
        for supply in &mut *supplies {
            supply.owed |= supply.lease.take_request();
        }
        let mut owed: Vec<_> = supplies.iter_mut().filter(|s| s.owed).collect();
        if owed.is_empty() {
            return Ok(0);
        }
        let requests: Vec<_> = owed.iter().map(|s| (s.key, BLOCK)).collect();
        let blocks = match store.lease_many(&requests) {
            // One key at its end must not starve the others.
            Err(StoreError::Exhausted { fingerprint }) => {
                owed.iter_mut().filter(|s| s.key == fingerprint).for_each(|s| s.owed = false);
                return Ok(0);
            }
            result => result?,
        };
        let granted = owed.len();
        for (supply, block) in owed.into_iter().zip(blocks) {
            supply.owed = false;
            // Only a block that continues the last one may be granted: a gap would mean that somebody else leases under this key.
            if block.first == supply.lease.end() {
                supply.lease.grant(block.end);
            }
        }
        Ok(granted)
    }

    fn supplies(&self) -> MutexGuard<'_, Vec<Supply>> {
        self.supplies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryStore;
    use testudo_ipsec::{SequenceError, SequenceNumbers};

    fn key(n: u8) -> Fingerprint {
        Fingerprint::from_bytes([n; Fingerprint::BYTES])
    }

    fn numbers(start: &Start) -> SequenceNumbers {
        SequenceNumbers::new(start.first, true, Arc::clone(&start.lease))
    }

    fn drain(numbers: &mut SequenceNumbers) -> u64 {
        std::iter::from_fn(|| numbers.reserve().ok()).count() as u64
    }

    #[test]
    fn whoever_asks_is_granted_the_next_block() {
        let (store, leases) = (MemoryStore::new(), Leases::default());
        let started = leases.begin(&store, &[key(1), key(2)]).unwrap();
        let mut numbers = numbers(&started[0]);
        assert_eq!(leases.refill(&store).unwrap(), 0);
        assert_eq!(drain(&mut numbers), BLOCK);
        assert_eq!(leases.refill(&store).unwrap(), 1);
        assert_eq!(numbers.reserve(), Ok(BLOCK + 1));
        assert_eq!(started[1].lease.end(), BLOCK + 1);
    }

    #[test]
    fn a_full_disk_stops_the_sa_and_nothing_is_lost() {
        let (store, leases) = (MemoryStore::new(), Leases::default());
        let started = leases.begin(&store, &[key(1)]).unwrap();
        let mut numbers = numbers(&started[0]);
        drain(&mut numbers);
        store.set_full(true);
        assert!(leases.refill(&store).unwrap_err().is_disk_full());
        assert_eq!(numbers.reserve(), Err(SequenceError::NotLeased));
        store.set_full(false);
        assert_eq!(leases.refill(&store).unwrap(), 1);
        assert_eq!(numbers.reserve(), Ok(BLOCK + 1));
    }

    #[test]
    fn numbers_that_somebody_else_leased_in_between_are_not_granted() {
        let (store, leases) = (MemoryStore::new(), Leases::default());
        let started = leases.begin(&store, &[key(1)]).unwrap();
        let mut numbers = numbers(&started[0]);
        drain(&mut numbers);
        let _ = store.lease(key(1), 10).unwrap();
        leases.refill(&store).unwrap();
        assert_eq!(numbers.reserve(), Err(SequenceError::NotLeased));
    }

    #[test]
    fn a_key_that_begins_anew_is_granted_to_its_new_sa_alone() {
        let (store, leases) = (MemoryStore::new(), Leases::default());
        let begin = || numbers(&leases.begin(&store, &[key(1)]).unwrap()[0]);
        let mut old = begin();
        (0..=BLOCK / 2).for_each(|_| assert!(old.reserve().is_ok()));
        let mut new = begin();
        assert_eq!(leases.refill(&store).unwrap(), 0, "the old one asked");
        assert_eq!(drain(&mut old), BLOCK / 2 - 1);
        assert_eq!(new.next(), BLOCK + 1);
        assert_eq!(drain(&mut new), BLOCK);
        assert_eq!(leases.refill(&store).unwrap(), 1, "the new one did");
        assert_eq!((old.reserve(), new.reserve()), (Err(SequenceError::NotLeased), Ok(2 * BLOCK + 1)));
    }

    #[test]
    fn removed_tunnels_are_forgotten() {
        let (store, leases) = (MemoryStore::new(), Leases::default());
        let mut started = leases.begin(&store, &[key(1), key(2)]).unwrap();
        started.pop();
        leases.forget_unused();
        assert_eq!(leases.supplies().len(), 1);
    }
}

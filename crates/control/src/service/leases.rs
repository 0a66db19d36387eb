//! Keeps the workers supplied with sequence numbers, as fast as they use them.
//!
//! ```text
//!   worker: asks ──► wakes the leases thread
//!   leases thread: refill ──┐
//!                           ├── one at a time ──► Store::lease_many ──► Lease::grant
//!   main: begin (a reload) ─┘
//!   main: give_back, when SAs have ended ───────► Store::give_back
//! ```
//!
//! Each of these holds the list of SAs while the store works, and for nothing else that takes time: so the
//! list records a key's blocks in the order the store leased them, and each block continues the lease that it
//! is granted to.

use crate::{Fingerprint, LeaseStore, NUMBERS_END, StoreError};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;
use testudo_crypto::NonceRule;
use testudo_ipsec::{Demand, Lease, Moment};

/// What an outbound SA starts with.
#[derive(Debug, Clone)]
pub struct Start {
    /// Its first sequence number.
    pub first: u64,
    /// The mask XORed into its numbers to make IVs.
    pub iv_mask: u64,
    /// The source of its further numbers.
    pub lease: Arc<Lease>,
}

impl Start {
    /// Without a mask, if the suite uses the number itself as the nonce.
    #[must_use]
    pub fn under(self, rule: NonceRule) -> Self {
        match rule {
            NonceRule::Explicit => self,
            NonceRule::Counter => Self { iv_mask: 0, ..self },
        }
    }
}

/// Checks that the store has an entry for each key whose nonces are its numbers. For a key it does not know,
/// the numbers may be new or may have been used from another store.
///
/// # Errors
/// [`StoreError::UnknownKey`], or the store's error.
pub fn check_known(
    store: &dyn LeaseStore,
    keys: impl IntoIterator<Item = (Fingerprint, NonceRule)>,
) -> Result<(), StoreError> {
    for (fingerprint, _) in keys.into_iter().filter(|(_, rule)| *rule == NonceRule::Counter) {
        if !store.is_known(fingerprint)? {
            return Err(StoreError::UnknownKey { fingerprint });
        }
    }
    Ok(())
}

/// One SA's supply.
#[derive(Debug)]
struct Supply {
    /// Its first sequence number.
    first: u64,
    lease: Arc<Lease>,
    demand: Demand,
    /// Length of a block that it has requested and that the store could not yet provide.
    owed: Option<u64>,
}

impl Supply {
    /// The unused numbers, if no SA can use them any more; `None` while one may.
    fn rest(&mut self) -> Option<Range<u64>> {
        // An SA that uses the numbers holds a reference. If no SA was ever created, all are left.
        let lease = Arc::get_mut(&mut self.lease)?;
        Some(lease.unused().unwrap_or(self.first)..lease.end())
    }
}

/// All SAs to be supplied. May be used from any thread.
#[derive(Debug, Default)]
pub struct Leases {
    supplies: Mutex<HashMap<Fingerprint, Supply>>,
    /// The thread to wake when an SA needs numbers.
    granter: Arc<OnceLock<Thread>>,
}

impl Leases {
    /// Registers the thread that calls [`refill`](Self::refill) whenever it is unparked; to be called once,
    /// before any worker runs.
    pub fn granted_by(&self, thread: Thread) {
        // A second one would never be woken; there is none.
        let _ = self.granter.set(thread);
    }

    /// Leases a first block for each key, in one transaction, so that ten thousand tunnels start as fast as
    /// one.
    ///
    /// An existing SA with such a key is granted nothing from then on: the numbers after its lease belong to
    /// the new SA, whose first block is as long as the old one's last.
    ///
    /// # Errors
    /// The store's error; then nothing is leased. A key that has no numbers left is no error: its SA is
    /// [`Exhausted`].
    ///
    /// [`Exhausted`]: testudo_ipsec::SequenceError::Exhausted
    pub fn begin(&self, store: &dyn LeaseStore, keys: &[Fingerprint]) -> Result<Vec<Start>, StoreError> {
        self.begin_all(store, keys, &Demand::default())
    }

    /// The same for one key, whose first block is as long as `demand` says if it has no SA yet.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub fn begin_with(
        &self,
        store: &dyn LeaseStore,
        key: Fingerprint,
        demand: Demand,
    ) -> Result<Start, StoreError> {
        let starts = self.begin_all(store, &[key], &demand)?;
        Ok(starts.into_iter().next().unwrap_or_else(exhausted))
    }

    /// How fast the SA with this key uses numbers; `None` if there is none.
    #[must_use]
    pub fn demand_of(&self, key: Fingerprint) -> Option<Demand> {
        self.supplies().get(&key).map(|supply| supply.demand.clone())
    }

    fn begin_all(
        &self,
        store: &dyn LeaseStore,
        keys: &[Fingerprint],
        first: &Demand,
    ) -> Result<Vec<Start>, StoreError> {
        let mut supplies = self.supplies();
        let known = |key| supplies.get(key).map_or_else(|| first.clone(), |supply| supply.demand.clone());
        let mut demands: HashMap<_, _> = keys.iter().map(|key| (*key, known(key))).collect();
        let mut requests: Vec<_> =
            keys.iter().map(|&key| (key, demands.entry(key).or_default().block())).collect();
        let blocks = loop {
            if requests.is_empty() {
                break Vec::new();
            }
            match store.lease_many(&requests) {
                Err(StoreError::Exhausted { fingerprint }) => requests.retain(|(key, _)| *key != fingerprint),
                result => break result?,
            }
        };
        keys.iter().for_each(|key| drop(supplies.remove(key)));
        let mut blocks = requests.iter().map(|(key, _)| key).zip(blocks).peekable();
        let start = |&key: &Fingerprint| {
            let Some((_, block)) = blocks.next_if(|(leased, _)| **leased == key) else { return exhausted() };
            let lease = Arc::new(Lease::with_waker(block.end, self.waker()));
            let demand = demands.remove(&key).unwrap_or_default();
            let supply = Supply { first: block.first, lease: Arc::clone(&lease), demand, owed: None };
            supplies.insert(key, supply);
            Start { first: block.first, iv_mask: block.iv_mask, lease }
        };
        Ok(keys.iter().map(start).collect())
    }

    fn waker(&self) -> testudo_ipsec::Waker {
        let granter = Arc::clone(&self.granter);
        Arc::new(move || granter.get().into_iter().for_each(Thread::unpark))
    }

    /// Grants more numbers to the SAs that have requested some by `now`. Returns how many SAs were granted a
    /// block.
    ///
    /// # Errors
    /// The store's error; the requests are remembered and served by a later call.
    pub fn refill(&self, store: &dyn LeaseStore, now: Moment) -> Result<usize, StoreError> {
        let mut supplies = self.supplies();
        for supply in supplies.values_mut().filter(|s| s.lease.take_request()) {
            supply.owed.get_or_insert_with(|| supply.demand.next_block(now));
        }
        loop {
            let requests: Vec<_> = supplies.iter().filter_map(|(key, s)| Some((*key, s.owed?))).collect();
            if requests.is_empty() {
                return Ok(0);
            }
            let blocks = match store.lease_many(&requests) {
                // One exhausted key must not starve the others.
                Err(StoreError::Exhausted { fingerprint }) => {
                    supplies.get_mut(&fingerprint).into_iter().for_each(Supply::finish);
                    continue;
                }
                result => result?,
            };
            // In the order of the requests: nothing was inserted or removed.
            let owed = supplies.values_mut().filter_map(|s| s.owed.take().map(|_| s));
            owed.zip(&blocks).for_each(|(supply, block)| supply.grant(block));
            return Ok(blocks.len());
        }
    }

    /// Gives back the numbers that ended SAs did not use, and forgets these SAs.
    ///
    /// # Errors
    /// The store's error. The numbers are then leased again unless the store is closed first.
    pub fn give_back(&self, store: &dyn LeaseStore) -> Result<(), StoreError> {
        let mut supplies = self.supplies();
        let mut rests = Vec::new();
        supplies.retain(|key, supply| match supply.rest() {
            Some(rest) => {
                rests.push((*key, rest));
                false
            }
            None => true,
        });
        store.give_back(&rests)
    }

    /// The same for the SA with one key, if it has ended.
    ///
    /// # Errors
    /// As [`give_back`](Self::give_back).
    pub fn give_back_of(&self, store: &dyn LeaseStore, key: Fingerprint) -> Result<(), StoreError> {
        let mut supplies = self.supplies();
        let Some(rest) = supplies.get_mut(&key).and_then(Supply::rest) else { return Ok(()) };
        supplies.remove(&key);
        store.give_back(&[(key, rest)])
    }

    fn supplies(&self) -> MutexGuard<'_, HashMap<Fingerprint, Supply>> {
        self.supplies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Supply {
    fn finish(&mut self) {
        self.owed = None;
        self.lease.finish();
    }

    /// Only a block that continues the last one may be granted: a gap would mean that someone else leases
    /// under this key.
    fn grant(&self, block: &crate::Lease) {
        if block.first == self.lease.end() {
            self.lease.grant(block.end);
        }
    }
}

/// The start of an SA whose key has no numbers left.
fn exhausted() -> Start {
    let lease = Lease::until(NUMBERS_END);
    lease.finish();
    Start { first: NUMBERS_END, iv_mask: 0, lease: Arc::new(lease) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryStore;
    use std::time::Duration;
    use testudo_ipsec::{FIRST_BLOCK, SequenceError, SequenceNumbers};

    /// The block that an SA is leased when it first asks.
    const SECOND_BLOCK: u64 = 1 << 14;

    fn key(n: u8) -> Fingerprint {
        Fingerprint::from_bytes([n; Fingerprint::BYTES])
    }

    fn numbers(start: &Start) -> SequenceNumbers {
        SequenceNumbers::new(start.first, true, Arc::clone(&start.lease))
    }

    /// Starts one SA under the key.
    fn begin(leases: &Leases, store: &MemoryStore) -> SequenceNumbers {
        let start = leases.begin(store, &[key(1)]).unwrap().remove(0);
        SequenceNumbers::new(start.first, true, start.lease)
    }

    fn drain(numbers: &mut SequenceNumbers) -> u64 {
        std::iter::from_fn(|| numbers.reserve().ok()).count() as u64
    }

    fn refill(leases: &Leases, store: &MemoryStore) -> Result<usize, StoreError> {
        leases.refill(store, Moment::default())
    }

    #[test]
    fn an_sa_that_asks_is_granted_the_next_block_and_others_nothing() {
        let (store, leases) = (MemoryStore::new(), Leases::default());
        let started = leases.begin(&store, &[key(1), key(2)]).unwrap();
        let mut numbers = numbers(&started[0]);
        assert_eq!(refill(&leases, &store).unwrap(), 0);
        assert_eq!(drain(&mut numbers), FIRST_BLOCK);
        assert_eq!(refill(&leases, &store).unwrap(), 1);
        assert_eq!(numbers.reserve(), Ok(FIRST_BLOCK + 1));
        assert_eq!(started[0].lease.end(), FIRST_BLOCK + SECOND_BLOCK + 1);
        assert_eq!(started[1].lease.end(), FIRST_BLOCK + 1);
    }

    #[test]
    fn blocks_grow_with_the_rate_and_a_reload_keeps_their_length() {
        let (store, leases) = (MemoryStore::new(), Leases::default());
        let mut numbers = begin(&leases, &store);
        let now = |ms| Moment(Duration::from_millis(ms));
        for ms in 0..4 {
            drain(&mut numbers);
            assert_eq!(leases.refill(&store, now(ms)).unwrap(), 1);
        }
        let last = drain(&mut numbers);
        assert!(last > 1 << 20, "{last}");
        assert_eq!(drain(&mut begin(&leases, &store)), last);
    }

    /// Otherwise a busy SA would starve when its key is replaced.
    #[test]
    fn a_successor_begins_with_a_block_as_long_as_its_predecessors() {
        let (store, leases) = (MemoryStore::new(), Leases::default());
        let mut old = begin(&leases, &store);
        for ms in 0..4 {
            drain(&mut old);
            leases.refill(&store, Moment(Duration::from_millis(ms))).unwrap();
        }
        let last = drain(&mut old);
        assert_eq!(leases.demand_of(key(2)).map(|demand| demand.block()), None);
        let demand = leases.demand_of(key(1)).unwrap();
        let mut new = numbers(&leases.begin_with(&store, key(2), demand).unwrap());
        assert_eq!(drain(&mut new), last);
        drop(new);
        leases.give_back_of(&store, key(1)).unwrap();
        leases.give_back_of(&store, key(2)).unwrap();
        assert_eq!(leases.supplies().len(), 1, "the old one goes on");
    }

    #[test]
    fn a_full_disk_stops_the_sa_and_nothing_is_lost() {
        let (store, leases) = (MemoryStore::new(), Leases::default());
        let mut numbers = begin(&leases, &store);
        drain(&mut numbers);
        store.set_full(true);
        assert!(refill(&leases, &store).unwrap_err().is_disk_full());
        assert_eq!(numbers.reserve(), Err(SequenceError::NotLeased));
        store.set_full(false);
        assert_eq!(refill(&leases, &store).unwrap(), 1);
        assert_eq!(numbers.reserve(), Ok(FIRST_BLOCK + 1));
    }

    #[test]
    fn numbers_that_somebody_else_leased_in_between_are_not_granted() {
        let (store, leases) = (MemoryStore::new(), Leases::default());
        let mut numbers = begin(&leases, &store);
        drain(&mut numbers);
        let _ = store.lease(key(1), 10).unwrap();
        refill(&leases, &store).unwrap();
        assert_eq!(numbers.reserve(), Err(SequenceError::NotLeased));
    }

    #[test]
    fn a_key_that_begins_anew_is_granted_to_its_new_sa_alone() {
        let (store, leases) = (MemoryStore::new(), Leases::default());
        let mut old = begin(&leases, &store);
        old.reserve().unwrap();
        let mut new = begin(&leases, &store);
        assert_eq!(refill(&leases, &store).unwrap(), 0, "the old one asked");
        assert_eq!(drain(&mut old), FIRST_BLOCK - 1);
        assert_eq!(new.next(), FIRST_BLOCK + 1);
        assert_eq!(drain(&mut new), FIRST_BLOCK);
        assert_eq!(refill(&leases, &store).unwrap(), 1, "the new one did");
        assert_eq!((old.reserve(), new.reserve()), (Err(SequenceError::NotLeased), Ok(2 * FIRST_BLOCK + 1)));
    }

    #[test]
    fn numbers_left_by_ended_sas_come_next() {
        let (store, leases) = (MemoryStore::new(), Leases::default());
        let mut started = leases.begin(&store, &[key(1), key(2), key(3)]).unwrap();
        let mut used = numbers(&started[0]);
        used.reserve_run(7).unwrap();
        refill(&leases, &store).unwrap();
        let mut lasting = numbers(&started[1]);
        lasting.reserve().unwrap();
        started.clear();
        drop(used);
        leases.give_back(&store).unwrap();
        assert_eq!(store.lease(key(1), 1).unwrap().first, 8);
        assert_eq!(store.lease(key(2), 1).unwrap().first, FIRST_BLOCK + 1, "it goes on");
        assert_eq!(store.lease(key(3), 1).unwrap().first, 1, "it never began");
        assert_eq!(leases.supplies().len(), 1);
    }

    #[test]
    fn numbers_left_by_an_sa_with_a_successor_under_its_key_are_not_given_back() {
        let (store, leases) = (MemoryStore::new(), Leases::default());
        let old = begin(&leases, &store);
        let mut new = begin(&leases, &store);
        drop(old);
        leases.give_back(&store).unwrap();
        assert_eq!(new.reserve(), Ok(FIRST_BLOCK + 1));
        drop(new);
        leases.give_back(&store).unwrap();
        assert_eq!(store.lease(key(1), 1).unwrap().first, FIRST_BLOCK + 2);
    }

    #[test]
    fn a_key_whose_nonces_are_numbers_starts_only_where_the_store_knows_it_and_is_not_masked() {
        let (store, leases) = (MemoryStore::new(), Leases::default());
        let check = || check_known(&store, [(key(2), NonceRule::Explicit), (key(1), NonceRule::Counter)]);
        assert!(matches!(check(), Err(StoreError::UnknownKey { fingerprint }) if fingerprint == key(1)));
        store.note_fresh(&[key(1)]).unwrap();
        check().unwrap();
        let start = leases.begin(&store, &[key(1)]).unwrap().remove(0);
        assert_ne!(start.clone().under(NonceRule::Explicit).iv_mask, 0);
        let start = start.under(NonceRule::Counter);
        assert_eq!((start.first, start.iv_mask), (1, 0));
    }

    #[test]
    fn a_key_without_numbers_left_is_exhausted_and_stops_no_other() {
        let (store, leases) = (MemoryStore::new(), Leases::default());
        store.start_at(key(1), NUMBERS_END - 5);
        store.start_at(key(2), NUMBERS_END);
        let started = leases.begin(&store, &[key(1), key(2), key(3)]).unwrap();
        let [mut short, mut none, mut other] = [0, 1, 2].map(|n| numbers(&started[n]));
        assert_eq!(none.reserve(), Err(SequenceError::Exhausted));
        assert_eq!(drain(&mut short), 5);
        other.reserve().unwrap();
        assert_eq!(refill(&leases, &store).unwrap(), 1);
        assert_eq!(short.reserve(), Err(SequenceError::Exhausted));
        assert_eq!(drain(&mut other), FIRST_BLOCK - 1 + SECOND_BLOCK);
    }
}

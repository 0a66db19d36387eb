//! Saves state that must survive a restart but may be older after a crash: replay windows and usages,
//! together, one transaction at a time.

use super::api::Shared;
use super::installed::InstalledTunnels;
use super::sa_control::SaControl;
use super::usages::{self, Usages};
use super::windows::{self, Asked, Windows};
use crate::{Fingerprint, LeaseStore, StoreError, Usage};
use std::collections::HashSet;
use std::time::{Duration, Instant};
use testudo_gateway::Commander;
use testudo_ipsec::SaRef;

/// Shortest time between two saves of windows.
const INTERVAL: Duration = Duration::from_millis(100);
/// Shortest time between two saves of usages.
const USAGE_INTERVAL: Duration = Duration::from_secs(1);
/// The inverse of the share of time that saving may take.
const SHARE: u32 = 20;

/// State to be saved. The windows themselves are with the worker.
#[derive(Debug)]
pub(crate) struct Due {
    asked: Asked,
    usages: Vec<(Fingerprint, Usage)>,
}

impl Due {
    /// The SAs whose windows are to be requested from the worker.
    pub(crate) fn sas(&self) -> Vec<SaRef> {
        self.asked.sas()
    }
}

/// Remembers what was saved and when to save next.
#[derive(Debug)]
pub(crate) struct Saver {
    windows: Windows,
    usages: Usages,
    next: Instant,
    next_usages: Instant,
}

impl Saver {
    pub(crate) fn new() -> Self {
        let next = Instant::now();
        Self {
            windows: Windows::default(),
            usages: Usages::default(),
            next,
            next_usages: next + USAGE_INTERVAL,
        }
    }

    /// Saves what is due at `now`; `None` if nothing is, or the worker does not take commands. No SA is
    /// changed meanwhile: the last window of one that leaves must not be overwritten by an earlier one.
    pub(crate) fn save_due(
        &mut self,
        shared: &Shared,
        commander: &Commander,
        store: &dyn LeaseStore,
        now: Instant,
    ) -> Option<Result<(), StoreError>> {
        let _no_changes = shared.sas.get().map(SaControl::lock);
        let due = self.due(&shared.installed(), now)?;
        let windows = commander.save_windows(due.sas()).ok()?;
        Some(self.save(store, &due, &windows))
    }

    /// What needs saving, if it is time to save.
    pub(crate) fn due(&mut self, installed: &InstalledTunnels, now: Instant) -> Option<Due> {
        if now < self.next {
            return None;
        }
        // Checking thousands of tunnels takes time, too.
        self.next = now + INTERVAL;
        let mut due = Due { asked: self.windows.due(installed, now), usages: Vec::new() };
        if now >= self.next_usages {
            self.next_usages = now + USAGE_INTERVAL;
            due.usages = self.usages.changed(installed);
        }
        (!due.asked.is_empty() || !due.usages.is_empty()).then_some(due)
    }

    /// All windows that have received packets, and the usages that changed.
    pub(crate) fn all(&mut self, installed: &InstalledTunnels) -> Due {
        let asked = self.windows.all(installed, Instant::now());
        Due { asked, usages: self.usages.changed(installed) }
    }

    /// All windows exactly as they are, since nothing is received any more, and the usages that changed.
    pub(crate) fn last(&self, installed: &InstalledTunnels) -> Due {
        Due { asked: Asked::exactly(installed), usages: self.usages.changed(installed) }
    }

    /// Saves `due` with the `windows` that the worker returned, and schedules the next save so that saving
    /// never takes more than its share of the time.
    ///
    /// # Errors
    /// The store's error; what it accepted before that is saved.
    pub(crate) fn save(
        &mut self,
        store: &dyn LeaseStore,
        due: &Due,
        windows: &[(SaRef, Vec<u8>)],
    ) -> Result<(), StoreError> {
        let started = Instant::now();
        let result = self.save_parts(store, due, windows);
        let now = Instant::now();
        self.next = now + INTERVAL.max((now - started) * SHARE);
        result
    }

    /// Forgets these keys, as [`keep`](Self::keep) forgets all others.
    pub(crate) fn forget(&mut self, keys: &[Fingerprint]) {
        keys.iter().for_each(|key| {
            self.windows.forget(key);
            self.usages.forget(key);
        });
    }

    /// Forgets all keys but these. A key that is installed again later counts from 0, so its last saved
    /// counts would mislead; and a stream of new keys must not grow memory without bound.
    pub(crate) fn keep(&mut self, keys: &HashSet<Fingerprint>) {
        self.windows.keep(keys);
        self.usages.keep(keys);
    }

    fn save_parts(
        &mut self,
        store: &dyn LeaseStore,
        due: &Due,
        windows: &[(SaRef, Vec<u8>)],
    ) -> Result<(), StoreError> {
        let entries = windows::entries(&due.asked, windows);
        let (mut windows, mut usages) = (windows::transactions(&entries), usages::transactions(&due.usages));
        loop {
            let (windows, usages) = match (windows.next(), usages.next()) {
                (None, None) => return Ok(()),
                (windows, usages) => (windows.unwrap_or_default(), usages.unwrap_or_default()),
            };
            let bytes: Vec<_> = windows.iter().map(|entry| (entry.key, &*entry.window)).collect();
            store.save(&bytes, usages)?;
            self.windows.note(windows);
            self.usages.note(usages);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::windows::{Keep, TRANSACTION_WINDOWS};
    use crate::{Lease, MemoryStore};
    use std::sync::Mutex;

    fn key(number: u32) -> Fingerprint {
        crate::fingerprint::digest_of(&[&number.to_le_bytes()])
    }

    /// The windows of SAs 0, 1, … as they are.
    fn asked(count: u32) -> Due {
        let sas = (0..count).map(|number| (SaRef::from_bits(number), (key(number), Keep::Exact)));
        Due { asked: Asked::of(sas), usages: Vec::new() }
    }

    /// Records each transaction, and accepts only the first `takes`.
    struct Ledger {
        inner: MemoryStore,
        takes: usize,
        transactions: Mutex<Vec<Vec<Fingerprint>>>,
    }

    impl Ledger {
        fn taking(takes: usize) -> Self {
            Self { inner: MemoryStore::new(), takes, transactions: Mutex::default() }
        }
    }

    impl LeaseStore for Ledger {
        fn lease_many(&self, requests: &[(Fingerprint, u64)]) -> Result<Vec<Lease>, StoreError> {
            self.inner.lease_many(requests)
        }

        fn is_known(&self, fingerprint: Fingerprint) -> Result<bool, StoreError> {
            self.inner.is_known(fingerprint)
        }

        fn note_fresh(&self, keys: &[Fingerprint]) -> Result<(), StoreError> {
            self.inner.note_fresh(keys)
        }

        fn give_back(&self, rests: &[(Fingerprint, std::ops::Range<u64>)]) -> Result<(), StoreError> {
            self.inner.give_back(rests)
        }

        fn save(
            &self,
            windows: &[(Fingerprint, &[u8])],
            usages: &[(Fingerprint, Usage)],
        ) -> Result<(), StoreError> {
            let mut transactions = self.transactions.lock().unwrap();
            self.inner.set_full(transactions.len() == self.takes);
            self.inner.save(windows, usages)?;
            transactions.push(windows.iter().map(|(key, _)| *key).collect());
            Ok(())
        }

        fn window(&self, fingerprint: Fingerprint) -> Result<Option<Vec<u8>>, StoreError> {
            self.inner.window(fingerprint)
        }

        fn usage(&self, fingerprint: Fingerprint) -> Result<Option<Usage>, StoreError> {
            self.inner.usage(fingerprint)
        }

        fn retire(&self, kept: &HashSet<Fingerprint>) -> Result<u64, StoreError> {
            self.inner.retire(kept)
        }
    }

    fn windows(count: u32, bytes: usize) -> Vec<(SaRef, Vec<u8>)> {
        (0..count).map(|number| (SaRef::from_bits(number), vec![7; bytes])).collect()
    }

    #[test]
    fn ten_thousand_windows_go_in_transactions_of_a_few_hundred_in_the_order_of_their_keys() {
        let (store, mut saver) = (Ledger::taking(usize::MAX), Saver::new());
        saver.save(&store, &asked(10_000), &windows(10_000, 600)).unwrap();
        let transactions = store.transactions.into_inner().unwrap();
        assert_eq!(transactions.len(), 10_000_usize.div_ceil(TRANSACTION_WINDOWS));
        assert!(transactions.iter().all(|part| part.len() <= TRANSACTION_WINDOWS));
        let keys = transactions.concat();
        assert!(keys.len() == 10_000 && keys.is_sorted());
    }

    #[test]
    fn long_windows_go_in_transactions_of_so_many_bytes() {
        let (store, mut saver) = (Ledger::taking(usize::MAX), Saver::new());
        saver.save(&store, &asked(100), &windows(100, 16 << 10)).unwrap();
        let lengths: Vec<_> = store.transactions.into_inner().unwrap().iter().map(Vec::len).collect();
        assert_eq!(lengths, [32, 32, 32, 4]);
    }

    #[test]
    fn what_a_store_saved_before_it_failed_is_not_saved_again() {
        let (store, mut saver) = (Ledger::taking(1), Saver::new());
        let error = saver.save(&store, &asked(1000), &windows(1000, 10)).unwrap_err();
        assert!(error.is_disk_full(), "{error}");
        let left = (0..1000).filter(|number| saver.windows.ceiling(key(*number)) == 0).count();
        assert_eq!(left, 1000 - TRANSACTION_WINDOWS);
    }

    #[test]
    fn a_key_that_is_removed_and_returns_starts_anew() {
        let (store, mut saver) = (MemoryStore::new(), Saver::new());
        saver.save(&store, &asked(2), &windows(2, 10)).unwrap();
        saver.keep(&HashSet::from([key(1)]));
        assert_eq!(saver.windows.ceiling(key(0)), 0);
        assert_ne!(saver.windows.ceiling(key(1)), 0);
    }

    #[test]
    fn usages_go_with_the_windows_and_only_once() {
        let (store, mut saver) = (Ledger::taking(usize::MAX), Saver::new());
        let usage = |packets| Usage { bytes: 100 * packets, packets, since_unix_s: 7 };
        let usages: Vec<_> = (0..5000).map(|number| (key(number), usage(1))).collect();
        let due = Due { usages, ..asked(600) };
        saver.save(&store, &due, &windows(600, 10)).unwrap();
        assert!((0..5000).all(|number| store.usage(key(number)).unwrap() == Some(usage(1))));
        let lengths: Vec<_> = store.transactions.into_inner().unwrap().iter().map(Vec::len).collect();
        assert_eq!(lengths, [512, 88, 0], "windows of each transaction");
    }
}

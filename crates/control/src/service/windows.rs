//! Keeps the replay windows over a restart.
//!
//! A stop saves them as they are. A crash loses what came since the last save, a second or so: what was received in that time could be
//! replayed once (SECURITY.md says so). The sequence numbers that we send are another matter: those are leased, and never repeat.

use super::roster::Roster;
use crate::{Fingerprint, LeaseStore, StoreError};
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};
use testudo_ipsec::TunnelIndex;

/// The shortest time between two saves.
const INTERVAL: Duration = Duration::from_secs(1);
/// Saving may take up to this part of the time.
const SHARE: u32 = 20;

/// Windows that are saved in one transaction: a lease may have to wait for one, and not for those of all tunnels.
const TRANSACTION_WINDOWS: usize = 512;
/// Their bytes.
const TRANSACTION_BYTES: usize = 512 << 10;

/// Tunnels whose windows are to be saved, with the packets that each had received before its window was asked for: what comes after that
/// may be missing in it.
#[derive(Debug)]
pub(crate) struct Asked(BTreeMap<TunnelIndex, (Fingerprint, u64)>);

impl Asked {
    /// All tunnels.
    pub(crate) fn all(roster: &Roster) -> Self {
        Self::some(roster, |_, _| true)
    }

    fn some(roster: &Roster, is_asked: impl Fn(Fingerprint, u64) -> bool) -> Self {
        let received = roster.tunnels.iter().map(|running| {
            let packets = running.installed.as_ref().map_or(0, |i| i.inbound_counters.packets());
            (running.index, (running.inbound_key, packets))
        });
        Self(received.filter(|(_, (key, packets))| is_asked(*key, *packets)).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn tunnels(&self) -> Vec<TunnelIndex> {
        self.0.keys().copied().collect()
    }
}

/// A window to be saved.
#[derive(Debug, Clone, Copy)]
struct Entry<'w> {
    key: Fingerprint,
    packets: u64,
    window: &'w [u8],
}

/// Remembers what was saved, so that only what changed is saved again.
#[derive(Debug)]
pub(crate) struct Windows {
    saved: HashMap<Fingerprint, u64>,
    next: Instant,
}

impl Windows {
    pub(crate) fn new() -> Self {
        Self { saved: HashMap::new(), next: Instant::now() + INTERVAL }
    }

    /// Tunnels that received packets since their window was last saved, if it is time to save.
    pub(crate) fn due(&self, roster: &Roster, now: Instant) -> Option<Asked> {
        let is_time = now >= self.next;
        let due = is_time.then(|| Asked::some(roster, |key, packets| self.is_changed(key, packets)));
        due.filter(|asked| !asked.is_empty())
    }

    fn is_changed(&self, key: Fingerprint, packets: u64) -> bool {
        self.saved.get(&key).copied().unwrap_or(0) != packets
    }

    /// Saves windows, and plans the next save so that saving never takes more than its share of the time.
    ///
    /// # Errors
    /// What the store says; those that it took before that are saved.
    pub(crate) fn save(
        &mut self,
        store: &dyn LeaseStore,
        asked: &Asked,
        windows: &[(TunnelIndex, Vec<u8>)],
    ) -> Result<(), StoreError> {
        let started = Instant::now();
        let mut entries: Vec<Entry<'_>> = windows
            .iter()
            .filter_map(|(index, window)| {
                let (key, packets) = *asked.0.get(index)?;
                Some(Entry { key, packets, window })
            })
            .collect();
        // Neighbours in the store go together, so that a page of it is written once.
        entries.sort_unstable_by_key(|entry| entry.key);
        let result = transactions(&entries).try_for_each(|part| self.save_part(store, part));
        let now = Instant::now();
        self.next = now + INTERVAL.max((now - started) * SHARE);
        result
    }

    fn save_part(&mut self, store: &dyn LeaseStore, part: &[Entry<'_>]) -> Result<(), StoreError> {
        store.save_windows(&part.iter().map(|entry| (entry.key, entry.window)).collect::<Vec<_>>())?;
        self.saved.extend(part.iter().map(|entry| (entry.key, entry.packets)));
        Ok(())
    }
}

/// `entries` in their order, cut into transactions.
fn transactions<'e, 'w>(mut entries: &'e [Entry<'w>]) -> impl Iterator<Item = &'e [Entry<'w>]> {
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fitting = entries.iter().take(TRANSACTION_WINDOWS).take_while(|entry| {
            bytes += entry.window.len();
            bytes <= TRANSACTION_BYTES
        });
        // One that alone is too long goes alone.
        let length = fitting.count().max(1);
        let (part, rest) = entries.split_at_checked(length)?;
        entries = rest;
        Some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Lease, MemoryStore};
    use std::sync::Mutex;

    fn key(number: u32) -> Fingerprint {
        crate::fingerprint::digest_of(&[&number.to_le_bytes()])
    }

    /// Tunnels 0, 1, … that had received so many packets when they were asked.
    fn asked(packets: &[u64]) -> Asked {
        let tunnels = (0..).map(TunnelIndex).zip((0..).map(key).zip(packets.iter().copied()));
        Asked(tunnels.collect())
    }

    /// Takes note of each transaction, and takes only the first so many.
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

        fn save_windows(&self, windows: &[(Fingerprint, &[u8])]) -> Result<(), StoreError> {
            let mut transactions = self.transactions.lock().unwrap();
            self.inner.set_full(transactions.len() == self.takes);
            self.inner.save_windows(windows)?;
            transactions.push(windows.iter().map(|(key, _)| *key).collect());
            Ok(())
        }

        fn window(&self, fingerprint: Fingerprint) -> Result<Option<Vec<u8>>, StoreError> {
            self.inner.window(fingerprint)
        }
    }

    fn windows(count: u32, bytes: usize) -> Vec<(TunnelIndex, Vec<u8>)> {
        (0..count).map(|number| (TunnelIndex(number), vec![7; bytes])).collect()
    }

    #[test]
    fn ten_thousand_windows_go_in_transactions_of_a_few_hundred_in_the_order_of_their_keys() {
        let (store, mut saver) = (Ledger::taking(usize::MAX), Windows::new());
        saver.save(&store, &asked(&[1; 10_000]), &windows(10_000, 600)).unwrap();
        let transactions = store.transactions.into_inner().unwrap();
        assert_eq!(transactions.len(), 10_000_usize.div_ceil(TRANSACTION_WINDOWS));
        assert!(transactions.iter().all(|part| part.len() <= TRANSACTION_WINDOWS));
        let keys = transactions.concat();
        assert!(keys.len() == 10_000 && keys.is_sorted());
    }

    #[test]
    fn long_windows_go_in_transactions_of_so_many_bytes() {
        let (store, mut saver) = (Ledger::taking(usize::MAX), Windows::new());
        saver.save(&store, &asked(&[1; 100]), &windows(100, 16 << 10)).unwrap();
        let lengths: Vec<_> = store.transactions.into_inner().unwrap().iter().map(Vec::len).collect();
        assert_eq!(lengths, [32, 32, 32, 4]);
        let window = vec![0; TRANSACTION_BYTES + 1];
        let entry = Entry { key: key(1), packets: 1, window: &window };
        assert!(transactions(&[entry, entry]).map(<[_]>::len).eq([1, 1]), "each goes alone");
    }

    #[test]
    fn what_a_failing_store_took_is_not_saved_again() {
        let (store, mut saver) = (Ledger::taking(1), Windows::new());
        let error = saver.save(&store, &asked(&[1; 1000]), &windows(1000, 10)).unwrap_err();
        assert!(error.is_disk_full(), "{error}");
        let left = (0..1000).filter(|number| saver.is_changed(key(*number), 1)).count();
        assert_eq!(left, 1000 - TRANSACTION_WINDOWS);
    }

    #[test]
    fn what_came_after_a_window_was_asked_for_makes_it_due_again() {
        let (store, mut saver) = (MemoryStore::new(), Windows::new());
        saver.save(&store, &asked(&[5]), &windows(1, 10)).unwrap();
        assert!(!saver.is_changed(key(0), 5));
        assert!(saver.is_changed(key(0), 6));
    }
}

//! A store in memory for tests, with the same contract as the durable one except for durability.

use super::masks::Masks;
use super::record::Noted;
use super::{FIRST_NUMBER, Lease, LeaseStore, MAX_KEYS, MAX_WINDOW_BYTES, StoreError, Usage, block_after};
use crate::fingerprint::Fingerprint;
use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use testudo_ipsec::ReplayWindow;

/// Keeps leases, windows and usages as long as it lives. It can set a key's first number, and fail like a
/// full disk.
#[derive(Debug, Default)]
pub struct MemoryStore {
    masks: Masks,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    noted: HashMap<Fingerprint, Noted>,
    windows: HashMap<Fingerprint, Vec<u8>>,
    usages: HashMap<Fingerprint, Usage>,
    full: bool,
}

impl MemoryStore {
    /// A store without any keys.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A store whose masks differ from those of other seeds. ([`new`](Self::new) has seed 0.)
    #[must_use]
    pub fn with_seed(seed: u64) -> Self {
        Self { masks: Masks::seeded(seed), state: Mutex::default() }
    }

    /// Sets the first number of this key's next lease. Its IVs are its numbers, but for what differs from
    /// start to start.
    pub fn start_at(&self, fingerprint: Fingerprint, next: u64) {
        self.state().noted.insert(fingerprint, Noted { next, iv_mask: 0 });
    }

    /// Makes calls fail as on a full disk, or succeed again.
    pub fn set_full(&self, full: bool) {
        self.state().full = full;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn path() -> PathBuf {
    PathBuf::from("memory")
}

impl State {
    fn check_space(&self) -> Result<(), StoreError> {
        let source = io::Error::from(io::ErrorKind::StorageFull);
        if self.full { Err(StoreError::Io { path: path(), source }) } else { Ok(()) }
    }
}

impl LeaseStore for MemoryStore {
    fn lease_many(&self, requests: &[(Fingerprint, u64)]) -> Result<Vec<Lease>, StoreError> {
        let mut state = self.state();
        state.check_space()?;
        // Collected separately, so that an error leaves nothing leased.
        let mut changed = HashMap::new();
        let mut leases = Vec::with_capacity(requests.len());
        for (fingerprint, block) in requests {
            let known = changed.get(fingerprint).or_else(|| state.noted.get(fingerprint)).copied();
            let (first, end) = block_after(known.map_or(FIRST_NUMBER, |k| k.next), *block, *fingerprint)?;
            let iv_mask = match known {
                Some(known) => known.iv_mask,
                None => self.masks.for_new_key().map_err(|source| StoreError::Io { path: path(), source })?,
            };
            changed.insert(*fingerprint, Noted { next: end, iv_mask });
            leases.push(Lease { first, end, iv_mask: self.masks.in_this_start(iv_mask) });
        }
        let added = changed.keys().filter(|key| !state.noted.contains_key(key)).count();
        let keys = u64::try_from(state.noted.len() + added).unwrap_or(u64::MAX);
        if keys > MAX_KEYS {
            return Err(StoreError::Full { path: path(), keys: MAX_KEYS });
        }
        state.noted.extend(changed);
        Ok(leases)
    }

    fn is_known(&self, fingerprint: Fingerprint) -> Result<bool, StoreError> {
        Ok(self.state().noted.contains_key(&fingerprint))
    }

    fn note_fresh(&self, keys: &[Fingerprint]) -> Result<(), StoreError> {
        let mut state = self.state();
        state.check_space()?;
        for key in keys {
            state.noted.entry(*key).or_insert(Noted { next: FIRST_NUMBER, iv_mask: 0 });
        }
        Ok(())
    }

    fn give_back(&self, rests: &[(Fingerprint, Range<u64>)]) -> Result<(), StoreError> {
        let mut state = self.state();
        state.check_space()?;
        for (key, rest) in rests.iter().filter(|(_, rest)| !rest.is_empty()) {
            if let Some(noted) = state.noted.get_mut(key).filter(|noted| noted.next == rest.end) {
                noted.next = rest.start;
            }
        }
        Ok(())
    }

    fn save(
        &self,
        windows: &[(Fingerprint, &[u8])],
        usages: &[(Fingerprint, Usage)],
    ) -> Result<(), StoreError> {
        let mut state = self.state();
        state.check_space()?;
        if let Some((_, long)) = windows.iter().find(|(_, window)| window.len() > MAX_WINDOW_BYTES) {
            return Err(StoreError::WindowTooLong(long.len()));
        }
        state.windows.extend(windows.iter().map(|(key, window)| (*key, window.to_vec())));
        state.usages.extend(usages.iter().copied());
        Ok(())
    }

    fn window(&self, fingerprint: Fingerprint) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.state().windows.get(&fingerprint).cloned())
    }

    fn usage(&self, fingerprint: Fingerprint) -> Result<Option<Usage>, StoreError> {
        Ok(self.state().usages.get(&fingerprint).copied())
    }

    /// Numbers and usages stay where they are: here, nothing is shorter elsewhere.
    fn retire(&self, kept: &HashSet<Fingerprint>) -> Result<u64, StoreError> {
        let mut state = self.state();
        state.check_space()?;
        let mut retired: HashSet<_> = state.noted.keys().chain(state.usages.keys()).copied().collect();
        for (key, window) in &mut state.windows {
            if let Some(top) = ReplayWindow::top_of(window).filter(|_| !kept.contains(key)) {
                *window = ReplayWindow::closed_up_to(top).to_vec();
            }
            retired.insert(*key);
        }
        Ok(retired.difference(kept).count() as u64)
    }
}

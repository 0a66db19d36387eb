//! The twin in memory.

use super::{FIRST_NUMBER, Lease, LeaseStore, MAX_KEYS, MAX_WINDOW_BYTES, StoreError, Usage, block_after};
use crate::fingerprint::Fingerprint;
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Keeps leases, windows and usages for as long as it lives. It can be told where a key's numbers start, and to fail as a full
/// disk does.
#[derive(Debug, Default)]
pub struct MemoryStore {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: HashMap<Fingerprint, u64>,
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

    /// The next lease of this key starts at `next`, as known answers want it.
    pub fn start_at(&self, fingerprint: Fingerprint, next: u64) {
        self.state().next.insert(fingerprint, next);
    }

    /// From now on calls fail as they do on a full disk, or do not any more.
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
        // Worked out on the side, so that an error leaves nothing leased.
        let mut changed = HashMap::new();
        let mut leases = Vec::with_capacity(requests.len());
        for (fingerprint, block) in requests {
            let known = changed.get(fingerprint).or_else(|| state.next.get(fingerprint));
            let lease = block_after(known.copied().unwrap_or(FIRST_NUMBER), *block, *fingerprint)?;
            changed.insert(*fingerprint, lease.end);
            leases.push(lease);
        }
        let added = changed.keys().filter(|key| !state.next.contains_key(key)).count();
        let keys = u64::try_from(state.next.len() + added).unwrap_or(u64::MAX);
        if keys > MAX_KEYS {
            return Err(StoreError::Full { path: path(), keys: MAX_KEYS });
        }
        state.next.extend(changed);
        Ok(leases)
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
}

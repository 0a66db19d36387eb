//! Keeps the replay windows over a restart.
//!
//! A stop saves them as they are. A crash loses what came since the last save, a second or so: what was received in that time could be
//! replayed once (SECURITY.md says so). The sequence numbers that we send are another matter: those are leased, and never repeat.

use super::installed::InstalledTunnels;
use crate::Fingerprint;
use std::collections::{BTreeMap, HashMap, HashSet};
use testudo_ipsec::TunnelIndex;

/// Windows that are saved in one transaction: a lease may have to wait for one, and not for those of all tunnels.
pub(crate) const TRANSACTION_WINDOWS: usize = 512;
/// Their bytes.
const TRANSACTION_BYTES: usize = 512 << 10;

/// Tunnels whose windows are to be saved, with the packets that each had received before its window was asked for: what comes after that
/// may be missing in it.
#[derive(Debug)]
pub(crate) struct Asked(BTreeMap<TunnelIndex, (Fingerprint, u64)>);

impl Asked {
    /// All tunnels.
    pub(crate) fn all(installed: &InstalledTunnels) -> Self {
        Self::some(installed, |_, _| true)
    }

    fn some(installed: &InstalledTunnels, is_asked: impl Fn(Fingerprint, u64) -> bool) -> Self {
        let received = installed.tunnels.iter().map(|running| {
            let packets = running.installed.as_ref().map_or(0, |i| i.inbound_counters.packets());
            (running.index, (running.inbound_key, packets))
        });
        Self(received.filter(|(_, (key, packets))| is_asked(*key, *packets)).collect())
    }

    #[cfg(test)]
    pub(crate) fn of(tunnels: impl Iterator<Item = (TunnelIndex, (Fingerprint, u64))>) -> Self {
        Self(tunnels.collect())
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
pub(crate) struct Entry<'w> {
    pub(crate) key: Fingerprint,
    packets: u64,
    pub(crate) window: &'w [u8],
}

/// Remembers what was saved, so that only what changed is saved again.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    saved: HashMap<Fingerprint, u64>,
}

impl Windows {
    /// Tunnels that received packets since their window was last saved.
    pub(crate) fn changed(&self, installed: &InstalledTunnels) -> Asked {
        Asked::some(installed, |key, packets| self.is_changed(key, packets))
    }

    pub(crate) fn is_changed(&self, key: Fingerprint, packets: u64) -> bool {
        self.saved.get(&key).copied().unwrap_or(0) != packets
    }

    pub(crate) fn note(&mut self, saved: &[Entry<'_>]) {
        self.saved.extend(saved.iter().map(|entry| (entry.key, entry.packets)));
    }

    /// Forgets all keys but these.
    pub(crate) fn keep(&mut self, keys: &HashSet<Fingerprint>) {
        self.saved.retain(|key, _| keys.contains(key));
    }
}

/// The windows that were asked for, in the order of their keys.
pub(crate) fn entries<'w>(asked: &Asked, windows: &'w [(TunnelIndex, Vec<u8>)]) -> Vec<Entry<'w>> {
    let mut entries: Vec<_> = windows
        .iter()
        .filter_map(|(index, window)| {
            let (key, packets) = *asked.0.get(index)?;
            Some(Entry { key, packets, window: window.as_slice() })
        })
        .collect();
    // Neighbours in the store go together, so that a page of it is written once.
    entries.sort_unstable_by_key(|entry| entry.key);
    entries
}

/// `entries` in their order, cut into transactions.
pub(crate) fn transactions<'e, 'w>(mut entries: &'e [Entry<'w>]) -> impl Iterator<Item = &'e [Entry<'w>]> {
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

    #[test]
    fn a_window_that_is_longer_than_a_transaction_goes_alone() {
        let window = vec![0; TRANSACTION_BYTES + 1];
        let entry = Entry { key: Fingerprint::from_bytes([1; 32]), packets: 1, window: &window };
        assert!(transactions(&[entry, entry]).map(<[_]>::len).eq([1, 1]));
    }
}

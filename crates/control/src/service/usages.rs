//! Preserves across restarts how much of their lifetimes keys have used.
//!
//! An SA's counts are added to its key's earlier usage. A stop saves the exact sum; a crash loses what came
//! after the last save, about a second (SECURITY.md says so).

use super::installed::InstalledTunnels;
use super::sas::RunningSa;
use crate::{Fingerprint, Usage};
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use testudo_gateway::SaCounts;
use testudo_ipsec::Spent;

/// Usages per transaction: a lease may have to wait for one transaction, not for all tunnels.
const TRANSACTION_USAGES: usize = 2048;

/// The part of a lifetime that `usage` makes up at `unix_s`. If the clock was set back to before the first
/// use, the key counts as new, not as old.
pub(crate) fn spent(usage: Usage, unix_s: u64) -> Spent {
    let time = Duration::from_secs(unix_s.saturating_sub(usage.since_unix_s));
    Spent { bytes: usage.bytes, packets: usage.packets, time }
}

fn total(before: Usage, counters: &SaCounts) -> Usage {
    Usage {
        bytes: before.bytes.saturating_add(counters.used_bytes()),
        packets: before.packets.saturating_add(counters.used_packets()),
        since_unix_s: before.since_unix_s,
    }
}

/// The current usage of the keys of all running tunnels that the store keeps.
fn all(installed: &InstalledTunnels) -> Vec<(Fingerprint, Usage)> {
    let mut usages = Vec::with_capacity(2 * installed.tunnels.len());
    for running in &installed.tunnels {
        usages.extend(running.sas.lock().iter().filter_map(of));
    }
    usages
}

/// The current usage of an SA's key, if the store keeps it.
pub(crate) fn of(sa: &RunningSa) -> Option<(Fingerprint, Usage)> {
    let counters = &sa.added.as_ref()?.counters;
    sa.is_durable().then(|| (sa.key, total(sa.before, counters)))
}

/// Keys of `old` that continue under other SAs in `new` were used by the old ones until the worker switched
/// over, after their usage was read for the new ones. This corrects the usage for all later saves.
pub(crate) fn carry_over(old: &InstalledTunnels, new: &InstalledTunnels) {
    let known: HashMap<Fingerprint, Usage> = all(old).into_iter().collect();
    let untouched: HashSet<_> = old.tunnels.iter().map(|running| running.sas.id()).collect();
    for running in new.tunnels.iter().filter(|running| !untouched.contains(&running.sas.id())) {
        for sa in running.sas.lock().iter_mut() {
            sa.before = known.get(&sa.key).copied().unwrap_or(sa.before);
        }
    }
}

/// Remembers what was saved, so that only changes are saved again.
#[derive(Debug, Default)]
pub(crate) struct Usages {
    saved: HashMap<Fingerprint, Usage>,
}

impl Usages {
    /// Usages that changed since they were last saved, in the order of their keys.
    pub(crate) fn changed(&self, installed: &InstalledTunnels) -> Vec<(Fingerprint, Usage)> {
        let mut changed = all(installed);
        changed.retain(|(key, usage)| self.saved.get(key) != Some(usage));
        // Neighbours in the store are written together, so that each page is written once.
        changed.sort_unstable_by_key(|(key, _)| *key);
        changed
    }

    pub(crate) fn note(&mut self, saved: &[(Fingerprint, Usage)]) {
        self.saved.extend(saved.iter().copied());
    }

    pub(crate) fn forget(&mut self, key: &Fingerprint) {
        self.saved.remove(key);
    }

    /// Forgets all keys but these.
    pub(crate) fn keep(&mut self, keys: &HashSet<Fingerprint>) {
        self.saved.retain(|key, _| keys.contains(key));
    }
}

/// `usages` in order, split into transactions.
pub(crate) fn transactions(usages: &[(Fingerprint, Usage)]) -> impl Iterator<Item = &[(Fingerprint, Usage)]> {
    usages.chunks(TRANSACTION_USAGES)
}

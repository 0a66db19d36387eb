//! Preserves across restarts how much of their lifetimes keys have used.
//!
//! An SA's counts are added to its key's earlier usage. A stop saves the exact sum; a crash loses what came
//! after the last save, about a second (SECURITY.md says so).

use super::installed::{InstalledTunnels, Running};
use crate::{Fingerprint, Usage};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use testudo_ipsec::{SaCounters, Spent};

/// Usages per transaction: a lease may have to wait for one transaction, not for all tunnels.
const TRANSACTION_USAGES: usize = 2048;

/// The usage of a tunnel's keys before its SAs were installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsedBefore {
    /// The outbound key.
    pub outbound: Usage,
    /// The inbound key.
    pub inbound: Usage,
}

/// The part of a lifetime that `usage` makes up at `unix_s`. If the clock was set back to before the first
/// use, the key counts as new, not as old.
pub(crate) fn spent(usage: Usage, unix_s: u64) -> Spent {
    let time = Duration::from_secs(unix_s.saturating_sub(usage.since_unix_s));
    Spent { bytes: usage.bytes, packets: usage.packets, time }
}

fn total(before: Usage, counters: &SaCounters) -> Usage {
    Usage {
        bytes: before.bytes.saturating_add(counters.used_bytes()),
        packets: before.packets.saturating_add(counters.used_packets()),
        since_unix_s: before.since_unix_s,
    }
}

/// The current usage of both keys of a running tunnel.
fn of(running: &Running) -> Option<[(Fingerprint, Usage); 2]> {
    let (installed, before) = (running.installed.as_ref()?, &running.before);
    let outbound = total(before.outbound, &installed.outbound_counters);
    let inbound = total(before.inbound, &installed.inbound_counters);
    Some([(running.outbound_key, outbound), (running.inbound_key, inbound)])
}

/// Keys of `old` that continue under other SAs in `new` were used by the old ones until the worker switched
/// over, after their usage was read for the new ones. This corrects the usage for all later saves.
pub(crate) fn carry_over(old: &InstalledTunnels, new: &mut InstalledTunnels) {
    let known: HashMap<Fingerprint, Usage> = old.tunnels.iter().filter_map(of).flatten().collect();
    let sa = |running: &Running| running.installed.as_ref().map(|i| Arc::as_ptr(&i.outbound_counters));
    let untouched: HashSet<_> = old.tunnels.iter().filter_map(sa).collect();
    for running in &mut new.tunnels {
        if sa(running).is_some_and(|sa| untouched.contains(&sa)) {
            continue;
        }
        let UsedBefore { outbound, inbound } = &mut running.before;
        *outbound = known.get(&running.outbound_key).copied().unwrap_or(*outbound);
        *inbound = known.get(&running.inbound_key).copied().unwrap_or(*inbound);
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
        let usages = installed.tunnels.iter().filter_map(of).flatten();
        let mut changed: Vec<_> = usages.filter(|(key, usage)| self.saved.get(key) != Some(usage)).collect();
        // Neighbours in the store are written together, so that each page is written once.
        changed.sort_unstable_by_key(|(key, _)| *key);
        changed
    }

    pub(crate) fn note(&mut self, saved: &[(Fingerprint, Usage)]) {
        self.saved.extend(saved.iter().copied());
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

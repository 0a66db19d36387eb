//! Keeps what keys have spent of their lifetimes over a restart.
//!
//! What an SA counts is added to what its key was used for before. A stop saves it as it is; a crash loses
//! what came since the last save, a second or so (SECURITY.md says so).

use super::installed::{InstalledTunnels, Running};
use crate::{Fingerprint, Usage};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use testudo_ipsec::{SaCounters, Spent};

/// Usages that are saved in one transaction: a lease may have to wait for one, and not for those of all
/// tunnels.
const TRANSACTION_USAGES: usize = 2048;

/// What the keys of a tunnel were used for before its SAs were installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsedBefore {
    /// The outbound key.
    pub outbound: Usage,
    /// The inbound key.
    pub inbound: Usage,
}

/// What `usage` is of a lifetime at `unix_s`. A clock that went back behind the beginning makes a key young,
/// not old.
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

/// What both keys of a tunnel that runs were used for up to this moment.
fn of(running: &Running) -> Option<[(Fingerprint, Usage); 2]> {
    let (installed, before) = (running.installed.as_ref()?, &running.before);
    let outbound = total(before.outbound, &installed.outbound_counters);
    let inbound = total(before.inbound, &installed.inbound_counters);
    Some([(running.outbound_key, outbound), (running.inbound_key, inbound)])
}

/// Keys of `old` that go on under other SAs in `new` had these until the worker changed over, which was after
/// their usage was read for the new ones: that is made good here, for whatever is saved from now on.
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

/// Remembers what was saved, so that only what changed is saved again.
#[derive(Debug, Default)]
pub(crate) struct Usages {
    saved: HashMap<Fingerprint, Usage>,
}

impl Usages {
    /// What changed since it was last saved, in the order of the keys.
    pub(crate) fn changed(&self, installed: &InstalledTunnels) -> Vec<(Fingerprint, Usage)> {
        let usages = installed.tunnels.iter().filter_map(of).flatten();
        let mut changed: Vec<_> = usages.filter(|(key, usage)| self.saved.get(key) != Some(usage)).collect();
        // Neighbours in the store go together, so that a page of it is written once.
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

/// `usages` in their order, cut into transactions.
pub(crate) fn transactions(usages: &[(Fingerprint, Usage)]) -> impl Iterator<Item = &[(Fingerprint, Usage)]> {
    usages.chunks(TRANSACTION_USAGES)
}

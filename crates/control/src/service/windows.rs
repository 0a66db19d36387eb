//! Keeps the replay windows over a restart.
//!
//! A stop saves them as they are. A crash loses what came since the last save, a second or so: what was received in that time could be
//! replayed once (SECURITY.md says so). The sequence numbers that we send are another matter: those are leased, and never repeat.

use super::roster::Roster;
use crate::{Fingerprint, LeaseStore, StoreError};
use std::collections::HashMap;
use std::time::{Duration, Instant};
use testudo_ipsec::TunnelIndex;

/// The shortest time between two saves.
const INTERVAL: Duration = Duration::from_secs(1);
/// Saving may take up to this part of the time.
const SHARE: u32 = 20;

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
    pub(crate) fn due(&self, roster: &Roster, now: Instant) -> Vec<TunnelIndex> {
        if now < self.next {
            return Vec::new();
        }
        let changed = roster.tunnels.iter().filter(|running| {
            let packets = running.installed.as_ref().map_or(0, |i| i.inbound_counters.packets());
            self.saved.get(&running.inbound_key).copied().unwrap_or(0) != packets
        });
        changed.map(|running| running.index).collect()
    }

    /// Saves windows, and plans the next save so that saving never takes more than its share of the time.
    pub(crate) fn save(
        &mut self,
        store: &dyn LeaseStore,
        roster: &Roster,
        windows: &[(TunnelIndex, Vec<u8>)],
    ) -> Result<(), StoreError> {
        let started = Instant::now();
        let by_index: HashMap<_, _> = roster.tunnels.iter().map(|r| (r.index, r)).collect();
        let known =
            windows.iter().filter_map(|(index, bytes)| Some((*by_index.get(index)?, bytes.as_slice())));
        let known: Vec<_> = known.collect();
        let entries: Vec<_> = known.iter().map(|(running, bytes)| (running.inbound_key, *bytes)).collect();
        let result = if entries.is_empty() { Ok(()) } else { store.save_windows(&entries) };
        if result.is_ok() {
            self.saved.extend(known.iter().map(|(running, _)| {
                let packets = running.installed.as_ref().map_or(0, |i| i.inbound_counters.packets());
                (running.inbound_key, packets)
            }));
        }
        let now = Instant::now();
        self.next = now + INTERVAL.max((now - started) * SHARE);
        result
    }
}

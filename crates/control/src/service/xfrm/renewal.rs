//! Daemons that have outlived a gateway: its successor has none of their SAs, which they renew
//! (`shim/renewal.c`), and says for how long tunnels had none.

use super::sa::XfrmSa;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// What a library says of the connection that it had before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Outlived {
    /// When it was lost, in milliseconds of `CLOCK_MONOTONIC`.
    pub(super) lost_ms: u64,
    /// How many tunnels its program had at the gateway.
    pub(super) tunnels: u32,
}

/// Longer ago than this, a gateway is no successor, but another one.
const LONGEST_MS: u64 = 24 * 3600 * 1000;
/// SAs that come later than this after the start are not because of it.
const RENEWAL_MS: u64 = 10 * 60 * 1000;
/// Daemons at most whose tunnels are counted.
const MAX_DAEMONS: usize = 64;
/// Tunnels at most that are told apart.
const MAX_TUNNELS: usize = 1 << 17;

/// A renewal as it is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RenewalState {
    /// Tunnels that daemons had at the gateway before.
    pub expected: u32,
    /// Tunnels that have an SA towards the peer again, and others that have come since.
    pub renewed: u32,
    /// From the end of the gateway before to the last of these, in milliseconds.
    pub without_traffic_ms: u64,
}

/// What is known of the daemons of the gateway before.
#[derive(Debug, Default)]
pub(super) struct Renewal {
    started_ms: u64,
    /// When the gateway before ended.
    lost_ms: Option<u64>,
    state: RenewalState,
    /// What each daemon had at the gateway before, by the number of its process.
    tunnels: BTreeMap<u64, u32>,
    /// Tunnels by source, destination and reqid of their SAs towards the peer.
    renewed: BTreeSet<(IpAddr, IpAddr, u32)>,
}

impl Renewal {
    /// Of a gateway that starts now.
    pub(super) fn new(started_ms: u64) -> Self {
        Self { started_ms, ..Self::default() }
    }

    /// The library of a daemon says what it has outlived. Its numbers come from another process: what cannot
    /// be is ignored, and so is a connection that was lost without a restart.
    pub(super) fn note(&mut self, daemon: u64, outlived: Outlived) {
        let Outlived { lost_ms, tunnels } = outlived;
        let is_plausible = lost_ms <= self.started_ms && self.started_ms - lost_ms <= LONGEST_MS;
        let is_counted = self.tunnels.contains_key(&daemon) || self.tunnels.len() < MAX_DAEMONS;
        if !is_plausible || tunnels == 0 || !is_counted {
            return;
        }
        // A daemon has several connections, and says the same over each; the first one to notice is right.
        self.lost_ms = Some(self.lost_ms.map_or(lost_ms, |before| before.min(lost_ms)));
        let noted = self.tunnels.entry(daemon).or_default();
        *noted = tunnels.max(*noted);
        self.state.expected = self.tunnels.values().fold(0, |sum, tunnels| sum.saturating_add(*tunnels));
    }

    /// An SA was added. Returns the renewal if it is over with it.
    pub(super) fn added(&mut self, sa: &XfrmSa, now_ms: u64) -> Option<RenewalState> {
        let lost_ms = self.lost_ms?;
        let is_over = self.state.renewed >= self.state.expected;
        let is_late = now_ms.saturating_sub(self.started_ms) > RENEWAL_MS;
        if is_late {
            self.renewed = BTreeSet::new();
            return None;
        }
        if sa.is_inbound || is_over || self.renewed.len() >= MAX_TUNNELS {
            return None;
        }
        if !self.renewed.insert((sa.source, sa.key.destination, sa.info.reqid)) {
            return None;
        }
        self.state.renewed += 1;
        self.state.without_traffic_ms = now_ms.saturating_sub(lost_ms);
        (self.state.renewed == self.state.expected).then_some(self.state)
    }

    /// How it is now; `None` if no daemon has outlived a gateway.
    pub(super) fn state(&self) -> Option<RenewalState> {
        self.lost_ms.map(|_| self.state)
    }
}

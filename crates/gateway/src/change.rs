//! An update in progress: a few tunnels between two batches, so that thousands of them stall nobody.
//!
//! ```text
//!   remove, a few at a time      old policies: what led into a removed tunnel is dropped (no_sa)
//!   policies and selectors       all at once
//!   install, a few at a time     new policies: what leads into a tunnel that is not there yet is dropped
//! ```
//!
//! In this order no policy ever leads into a tunnel of the other generation, even where an index or an SPI is
//! used again. Tunnels that do not change carry traffic throughout.
//!
//! The worker neither makes nor frees anything here that grows with the update: what it is to install comes
//! made, and what it has removed or replaced stays in the [`Change`], which goes back to who sent it.

use crate::command::{TunnelInstall, Update, UpdateOutcome};
use crate::worker::Worker;
use std::collections::{HashMap, HashSet};
use std::vec::IntoIter;
use testudo_ipsec::{Moment, RemovedTunnel, SaRef, SaSelectors, Spd, TunnelIndex};

/// An update with what is left of it, and what it has replaced: made and dropped outside of the worker.
#[derive(Debug)]
pub struct Change {
    remove: IntoIter<TunnelIndex>,
    /// What was removed.
    removed: Vec<RemovedTunnel>,
    /// Policies and selectors; those before once these are in force.
    policies: Option<Box<Spd>>,
    selectors: Vec<(TunnelIndex, SaSelectors)>,
    is_turned_over: bool,
    install: IntoIter<TunnelInstall>,
    /// SAs whose windows others take over; the windows themselves once the SAs are gone.
    inherited: HashSet<SaRef>,
    windows: HashMap<SaRef, Vec<u8>>,
    outcome: UpdateOutcome,
}

impl Change {
    /// Everything of `update` is still to be done.
    #[must_use]
    pub fn new(mut update: Update) -> Self {
        Self {
            inherited: update.inherited(),
            removed: Vec::with_capacity(update.remove.len()),
            remove: update.remove.into_iter(),
            policies: update.policies,
            selectors: update.selectors,
            is_turned_over: false,
            outcome: Vec::with_capacity(update.install.len()),
            install: update.install.into_iter(),
            windows: HashMap::new(),
        }
    }

    /// Removes or installs up to `tunnels` tunnels; `true` when nothing is left.
    #[must_use = "it says whether it is done"]
    pub fn step(&mut self, worker: &mut Worker, now: Moment, tunnels: usize) -> bool {
        for _ in 0..tunnels {
            if let Some(index) = self.remove.next() {
                for sa in worker.inbound_sas(index).filter(|sa| self.inherited.contains(sa)) {
                    self.windows.extend(worker.save_window(sa).map(|window| (sa, window)));
                }
                self.removed.extend(worker.remove(index));
                continue;
            }
            if !std::mem::replace(&mut self.is_turned_over, true) {
                worker.turn_over(&mut self.policies, &mut self.selectors);
            }
            let Some(mut tunnel) = self.install.next() else { return true };
            for inbound in tunnel.each_inbound() {
                let inherited = inbound.inherits.and_then(|sa| self.windows.remove(&sa));
                inbound.window = inherited.or_else(|| inbound.window.take());
            }
            self.outcome.push((tunnel.index, worker.install(tunnel, now, &mut self.removed)));
        }
        false
    }

    /// The windows of those SAs that were removed, and that are wanted.
    pub(crate) fn removed_windows(&self, wanted: &HashSet<SaRef>) -> impl Iterator<Item = (SaRef, Vec<u8>)> {
        self.removed.iter().flat_map(move |tunnel| tunnel.saved_windows(move |sa| wanted.contains(&sa)))
    }

    /// What became of each tunnel that was to be installed. All that was removed or replaced is freed.
    #[must_use]
    pub fn into_outcome(self) -> UpdateOutcome {
        self.outcome
    }
}

//! How tunnels of flows ([`populated`](super::populated)) end: a part of them in each turn of the main
//! thread, which serves clients, signals and the store in between, however many there are.
//!
//! ```text
//!   policy gone, or says something else ──► all its tunnels end ┐
//!   sa delete, end of an overlap ─► a direction has no SA left  ├─► worker: remove policies   (one command)
//!   lifetime, last number ────────► SAs have stopped            ┘           tunnels and SAs   (one command)
//! ```
//!
//! In this order no packet meets a policy without its tunnel. What the worker is told at once is bounded, in
//! changes and in the parts of its SPD's index that it gives up with them. What it does not take waits for
//! another turn.

use super::api::Shared;
use super::event_log::EventLog;
use super::installed::{InstalledTunnels, Running};
use super::populated::{PopulatedTunnel, PopulatedTunnels};
use super::sa_control::{SaControl, State, removal};
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use testudo_crypto::Direction;
use testudo_gateway::{MAX_SA_CHANGES, SaChange, SaChangeError};
use testudo_ipsec::{MAX_FLOW_PIECES, PolicyChange, SpdError, TunnelIndex};

/// Pairs of prefixes that the tunnels of one part have in the index of the worker's SPD: no more than one
/// tunnel may have.
const PART_PIECES: usize = MAX_FLOW_PIECES;
/// Tunnels that one part is looked for in, after events were lost.
const PART_LOOKS: usize = 1024;

/// Where SAs of flows' tunnels may have stopped. At most as many entries as there are such tunnels.
#[derive(Debug, Default)]
pub(super) struct Stopped {
    /// The numbers of these tunnels.
    tunnels: BTreeSet<u64>,
    /// In all tunnels from this number on, too: events were lost.
    rest: Option<u64>,
    /// More were lost meanwhile. Who loses events again and again still comes to the last tunnel.
    again: bool,
}

/// What the worker is asked for at once.
#[derive(Default)]
struct Part {
    ends: Vec<Arc<PopulatedTunnel>>,
    /// SAs that have stopped, of tunnels that go on.
    sas: Vec<(Arc<PopulatedTunnel>, Direction, u32)>,
}

impl Part {
    fn room(&self) -> usize {
        MAX_SA_CHANGES - self.ends.len() - self.sas.len()
    }

    /// Takes as many of those that end as there is room for.
    fn take_ending(&mut self, populated: &PopulatedTunnels) {
        let (mut room, mut pieces) = (self.room(), 0);
        self.ends = populated.first_ending(|tunnel| {
            pieces += tunnel.pieces;
            let fits = room > 0 && (pieces <= PART_PIECES || pieces == tunnel.pieces);
            room = room.saturating_sub(1);
            fits
        });
    }

    /// SAs of a tunnel that have stopped are removed; if none is left in a direction, the tunnel ends.
    /// `false` if there is no room for these SAs.
    fn take_stopped(&mut self, populated: &PopulatedTunnels, tunnel: &Arc<PopulatedTunnel>) -> bool {
        let sas = tunnel.running.sas.lock();
        let (stopped, left): (Vec<_>, Vec<_>) = sas.iter().partition(|sa| sa.has_stopped());
        let goes_on = |direction| left.iter().any(|sa| sa.direction == direction);
        if stopped.is_empty() {
            return true;
        }
        if !(goes_on(Direction::Seal) && goes_on(Direction::Open)) {
            populated.end(tunnel.number);
            return true;
        }
        if self.room() < stopped.len() {
            return false;
        }
        self.sas.extend(stopped.iter().map(|sa| (Arc::clone(tunnel), sa.direction, sa.spi)));
        true
    }
}

impl Stopped {
    fn is_empty(&self) -> bool {
        self.tunnels.is_empty() && self.rest.is_none()
    }

    /// Looks for SAs that have stopped until the part is full.
    fn look(&mut self, populated: &PopulatedTunnels, part: &mut Part) {
        while let Some(number) = self.tunnels.first().copied() {
            let tunnel = populated.numbered(number);
            if tunnel.is_some_and(|tunnel| !part.take_stopped(populated, &tunnel)) {
                return;
            }
            self.tunnels.remove(&number);
        }
        let Some(first) = self.rest else { return };
        let tunnels = populated.from(first, PART_LOOKS);
        self.rest = None;
        for tunnel in &tunnels {
            if !part.take_stopped(populated, tunnel) {
                self.rest = Some(tunnel.number);
                return;
            }
        }
        let begins_again = tunnels.is_empty() && std::mem::take(&mut self.again);
        self.rest = tunnels.last().map(|last| last.number + 1).or(begins_again.then_some(0));
    }
}

/// Forgets the peers of tunnels of run time that have gone: later tunnels have their indices.
pub(super) fn forget_peers(shared: &Shared, events: &mut EventLog) {
    let installed = shared.installed();
    let gone = installed.populated.take_gone().into_iter().chain(installed.negotiated.take_gone());
    for index in gone {
        shared.peers().remove(&index);
        events.forget(index);
    }
}

impl SaControl {
    /// An SA has reached its hard lifetime, or its last number: that of a flow's tunnel is deleted (RFC 4301
    /// 4.4.2.1), and the tunnel ends if it was the last in its direction. Both happen with the next part.
    pub(crate) fn has_stopped(&self, installed: &InstalledTunnels, index: TunnelIndex) {
        // Locked first: who makes a tunnel holds the lock until it is listed, and its SAs may stop before.
        let mut state = self.lock();
        // The index may have had another tunnel when the event happened: what has stopped is seen then.
        let populated = installed.populated.at(index);
        state.stopped.tunnels.extend(populated.map(|populated| populated.number));
    }

    /// Events were lost: SAs of any tunnel may have stopped.
    pub(crate) fn any_may_have_stopped(&self) {
        let mut state = self.lock();
        let stopped = &mut state.stopped;
        stopped.again = stopped.rest.is_some();
        stopped.rest = stopped.rest.or(Some(0));
    }

    /// Ends some tunnels of flows that are to end, and deletes some SAs that have stopped. Asks the worker
    /// twice at most; `true` if there is more to do at once.
    pub(crate) fn end_part(&self, state: &mut State, installed: &InstalledTunnels) -> bool {
        let (populated, mut part) = (&installed.populated, Part::default());
        state.stopped.look(populated, &mut part);
        part.take_ending(populated);
        let sas: Vec<u64> = part.sas.iter().map(|(tunnel, ..)| tunnel.number).collect();
        match self.carry_out(state, installed, &part) {
            Ok(()) => !state.stopped.is_empty() || populated.count_ending() > 0,
            Err(error) => {
                tracing::error!("ending tunnels of flows: {error}; trying again");
                state.stopped.tunnels.extend(sas);
                false
            }
        }
    }

    /// An SA of a tunnel was removed. If the tunnel is one of a flow and has none left in that direction, it
    /// ends; `true` then.
    pub(super) fn end_without(
        &self,
        state: &mut State,
        installed: &InstalledTunnels,
        running: &Running,
        direction: Direction,
    ) -> bool {
        let Some(populated) = installed.populated.at(running.index) else { return false };
        let has_one = running.sas.lock().iter().any(|sa| sa.direction == direction);
        if !has_one {
            installed.populated.end(populated.number);
            let part = Part { ends: vec![populated], ..Part::default() };
            if let Err(error) = self.carry_out(state, installed, &part) {
                tracing::error!("ending a tunnel of a flow: {error}; trying again");
            }
        }
        !has_one
    }

    /// Has the worker make a part. On an error the tunnels still end, and may be taken up again.
    fn carry_out(&self, state: &mut State, installed: &InstalledTunnels, part: &Part) -> Result<(), String> {
        let kept = self.remove_policies(&part.ends)?;
        let ends: Vec<_> = part.ends.iter().filter(|tunnel| !kept.contains(&tunnel.number)).collect();
        let tunnels = ends.iter().map(|tunnel| SaChange::RemoveTunnel(tunnel.running.index));
        let sas = part.sas.iter().map(|(tunnel, way, spi)| removal(&tunnel.running, *way, *spi));
        let changes: Vec<_> = tunnels.chain(sas).collect();
        let mut results = if changes.is_empty() { Vec::new() } else { self.change(changes)? }.into_iter();
        for (tunnel, result) in ends.iter().zip(results.by_ref()) {
            let is_free = matches!(result, Ok(_) | Err(SaChangeError::NoTunnel(_)));
            if let Err(error) = result.map(drop).or_else(|error| if is_free { Ok(()) } else { Err(error) }) {
                tracing::error!("ending tunnel {}: {error}", tunnel.running.tunnel.name);
            }
            self.forget_tunnel(state, installed, tunnel, is_free);
        }
        for ((tunnel, way, spi), result) in part.sas.iter().zip(results) {
            if result.is_ok() {
                self.forget_sa(state, &tunnel.running, *way, *spi, None);
            }
        }
        // A policy still leads to the index: no other flow's tunnel may have it.
        for tunnel in part.ends.iter().filter(|tunnel| kept.contains(&tunnel.number)) {
            self.forget_tunnel(state, installed, tunnel, false);
        }
        Ok(())
    }

    /// Removes the policies of tunnels from the worker's SPD. Returns the numbers of those that are still
    /// there, which is a bug.
    fn remove_policies(&self, ends: &[Arc<PopulatedTunnel>]) -> Result<HashSet<u64>, String> {
        let (tunnels, changes): (Vec<_>, Vec<_>) =
            ends.iter().filter_map(|tunnel| Some((tunnel, PolicyChange::Remove(tunnel.id?)))).unzip();
        if changes.is_empty() {
            return Ok(HashSet::new());
        }
        let results = self.commander.change_policies(changes).map_err(|error| error.to_string())?;
        let is_there = |result: &Result<_, _>| !matches!(result, Ok(_) | Err(SpdError::UnknownPolicy));
        let kept = tunnels.into_iter().zip(&results).filter(|(_, result)| is_there(result));
        let kept: HashSet<_> = kept.map(|(tunnel, _)| tunnel.number).collect();
        if !kept.is_empty() {
            tracing::error!("ending tunnels of flows: {} policies are left", kept.len());
        }
        Ok(kept)
    }

    fn forget_tunnel(
        &self,
        state: &mut State,
        installed: &InstalledTunnels,
        tunnel: &PopulatedTunnel,
        is_free: bool,
    ) {
        state.forget_sas(&tunnel.running);
        installed.populated.remove(tunnel.number, is_free);
        tracing::debug!("tunnel {} ends", tunnel.running.tunnel.name);
    }
}

#[cfg(test)]
mod tests;

//! Changes of single SAs in a running gateway, and of tunnels that begin without any; and what becomes of
//! them.

use crate::command::{InboundInstall, OutboundInstall, UpdateError};
use crate::sa_counts::PlacedSa;
use crate::worker::Worker;
use std::vec::IntoIter;
use testudo_crypto::Direction;
use testudo_ipsec::{
    Endpoints, Event, LastWindows, Lifetime, Moment, RemovedTunnel, Spent, TunnelIndex, TunnelParameters,
};

/// When an SA towards the peer is put to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UseFrom {
    /// When a later change says so.
    Later,
    /// At once.
    Now,
    /// With the first authentic packet that comes under this SPI: then the peer has the new keys.
    PeersUseOf(u32),
    /// When a later change says so; the tunnel has to have the SA from the peer with this SPI already.
    LaterBeside(u32),
}

/// A change of one SA, or of a tunnel.
#[derive(Debug)]
pub enum SaChange {
    /// Add a tunnel without SAs.
    AddTunnel(TunnelIndex, Box<TunnelParameters>),
    /// Remove a tunnel with the SAs that it has.
    RemoveTunnel(TunnelIndex),
    /// Accept packets of a tunnel under one SA more.
    AddInbound(TunnelIndex, Box<InboundInstall>),
    /// Add an SA towards a tunnel's peer.
    AddOutbound(TunnelIndex, Box<OutboundInstall>, UseFrom),
    /// Send a tunnel's packets through the SA with this SPI.
    UseOutbound(TunnelIndex, u32),
    /// The same from the first authentic packet on that comes under the second SPI.
    UseOutboundWith(TunnelIndex, u32, u32),
    /// Have every worker [ask](testudo_ipsec::Ipsec::want_own) for an SA of its own under a tunnel, this one
    /// by its index; with `None` none does.
    WantOwn(TunnelIndex, Option<u32>),
    /// Put a tunnel between other ends, and say whether its peer may move from there.
    Redirect(TunnelIndex, Endpoints, bool),
    /// Give the SA with this SPI, in this direction, other limits, of which it has used so much elsewhere.
    Limit(TunnelIndex, Direction, u32, Lifetime, Spent),
    /// The first worker counts what the SA with this SPI has used elsewhere: give it the same limits. One
    /// that this worker alone sends through counts it here.
    FollowLimit(TunnelIndex, Direction, u32, Lifetime, Spent),
    /// Move the numbers of the SA with this SPI, in this direction, on to this last one.
    Advance(TunnelIndex, Direction, u32, u64),
    /// Nothing: the first worker makes the change for all.
    MadeByFirst,
    /// The first worker moves the numbers of the SA with this SPI towards the peer on to this one: of VPE,
    /// leave them out in the windows of this worker. One that this worker alone sends through moves here.
    FollowAdvance(TunnelIndex, u32, u64),
    /// Follow what another worker has learned.
    Hear(Event),
    /// Remove the SA from a tunnel's peer that has this SPI.
    RemoveInbound(TunnelIndex, u32),
    /// Remove the SA towards a tunnel's peer that has this SPI.
    RemoveOutbound(TunnelIndex, u32),
}

/// What a change has done. What was removed is freed by who gets this, since the worker has packets to
/// forward.
#[derive(Debug)]
pub enum SaChanged {
    /// The tunnel was added.
    AddedTunnel,
    /// The tunnel was removed.
    RemovedTunnel(RemovedTunnel),
    /// The SA was added.
    Added(PlacedSa),
    /// The SA is in use.
    InUse,
    /// The tunnel or the SA has its new settings.
    Set,
    /// The SA is gone. One from a peer leaves its replay window, or all those of VPE.
    Removed(Option<LastWindows>),
}

/// Why an SA was not changed. Nothing else has changed either.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SaChangeError {
    /// It could not be added.
    #[error(transparent)]
    Add(#[from] UpdateError),
    /// There is no such tunnel.
    #[error("there is no tunnel at place {}", .0.0)]
    NoTunnel(TunnelIndex),
    /// The SA's numbers are further on: they never go back.
    #[error("the SA with SPI {spi:#x} is further on")]
    FurtherOn {
        /// The SPI.
        spi: u32,
    },
    /// The tunnel has no such SA.
    #[error("there is no SA with SPI {spi:#x}")]
    NoSa {
        /// The SPI.
        spi: u32,
    },
}

/// The result of each change, in their order.
pub type SaOutcome = Vec<Result<SaChanged, SaChangeError>>;

/// Changes in progress: a few between two batches, so that packets do not wait for all of them.
pub(crate) struct SaChanges {
    rest: IntoIter<SaChange>,
    outcome: SaOutcome,
}

impl SaChanges {
    pub(crate) fn new(changes: Vec<SaChange>) -> Self {
        Self { outcome: Vec::with_capacity(changes.len()), rest: changes.into_iter() }
    }

    /// Makes up to `count` changes; `true` when none is left.
    pub(crate) fn step(&mut self, worker: &mut Worker, now: Moment, count: usize) -> bool {
        for change in self.rest.by_ref().take(count) {
            self.outcome.push(worker.change_sa(change, now));
        }
        self.rest.len() == 0
    }

    pub(crate) fn into_outcome(self) -> SaOutcome {
        self.outcome
    }
}

impl Worker {
    /// Changes one SA of a tunnel, or adds or removes a tunnel. What it costs does not depend on how many
    /// others there are.
    ///
    /// # Errors
    /// [`SaChangeError`]; then nothing has changed.
    pub fn change_sa(&mut self, change: SaChange, now: Moment) -> Result<SaChanged, SaChangeError> {
        match change {
            SaChange::AddTunnel(tunnel, parameters) => {
                let added = self.ipsec.add_tunnel(tunnel, *parameters, now);
                added.map(|()| SaChanged::AddedTunnel).map_err(|error| UpdateError::from(error).into())
            }
            SaChange::RemoveTunnel(tunnel) => {
                self.remove(tunnel).map(SaChanged::RemovedTunnel).ok_or(SaChangeError::NoTunnel(tunnel))
            }
            SaChange::AddInbound(tunnel, install) => {
                Ok(SaChanged::Added(self.add_inbound(tunnel, *install, now)?.into()))
            }
            SaChange::AddOutbound(tunnel, install, from) => self.add_and_use(tunnel, *install, from, now),
            SaChange::UseOutbound(tunnel, spi) => {
                let sa = self.ipsec.outbound_sa(tunnel, spi);
                let is_used = sa.is_some_and(|sa| self.ipsec.use_outbound(tunnel, sa));
                is_used.then_some(SaChanged::InUse).ok_or(SaChangeError::NoSa { spi })
            }
            SaChange::UseOutboundWith(tunnel, spi, inbound) => {
                let sas = self.ipsec.outbound_sa(tunnel, spi).zip(self.ipsec.inbound_sa(tunnel, inbound));
                let waits = sas.is_some_and(|(sa, with)| self.ipsec.use_outbound_with(tunnel, sa, with));
                waits.then_some(SaChanged::Set).ok_or(SaChangeError::NoSa { spi })
            }
            SaChange::WantOwn(tunnel, worker) => {
                let is_there = self.ipsec.want_own(tunnel, worker);
                is_there.then_some(SaChanged::Set).ok_or(SaChangeError::NoTunnel(tunnel))
            }
            SaChange::Redirect(tunnel, ends, learn_remote) => {
                let is_there = self.ipsec.redirect(tunnel, ends, learn_remote, now);
                is_there.then_some(SaChanged::Set).ok_or(SaChangeError::NoTunnel(tunnel))
            }
            SaChange::Limit(tunnel, direction, spi, lifetime, more) => {
                self.limit((tunnel, direction, spi), lifetime, more, true)
            }
            SaChange::FollowLimit(tunnel, direction, spi, lifetime, more) => {
                self.limit((tunnel, direction, spi), lifetime, more, false)
            }
            SaChange::Advance(tunnel, direction, spi, number) => {
                let moved = self.ipsec.advance(tunnel, spi, direction == Direction::Seal, number);
                let is_ahead = moved.ok_or(SaChangeError::NoSa { spi })?;
                is_ahead.then_some(SaChanged::Set).ok_or(SaChangeError::FurtherOn { spi })
            }
            SaChange::MadeByFirst => Ok(SaChanged::Set),
            SaChange::FollowAdvance(tunnel, spi, number) => {
                let is_ahead = self.ipsec.follow_advance(tunnel, spi, number);
                is_ahead.then_some(SaChanged::Set).ok_or(SaChangeError::FurtherOn { spi })
            }
            SaChange::Hear(event) => {
                self.ipsec.hear(event, now);
                Ok(SaChanged::Set)
            }
            SaChange::RemoveInbound(tunnel, spi) => {
                let windows = self.remove_inbound(tunnel, spi).ok_or(SaChangeError::NoSa { spi })?;
                Ok(SaChanged::Removed(Some(windows)))
            }
            SaChange::RemoveOutbound(tunnel, spi) => {
                let sa = self.ipsec.remove_outbound(tunnel, spi).ok_or(SaChangeError::NoSa { spi })?;
                self.disconnect(Direction::Seal, sa);
                Ok(SaChanged::Removed(None))
            }
        }
    }

    /// Gives an SA other limits. What it has used elsewhere is counted once: by the worker that alone sends
    /// through it, else by the first one.
    fn limit(
        &mut self,
        (tunnel, direction, spi): (TunnelIndex, Direction, u32),
        lifetime: Lifetime,
        more: Spent,
        is_first: bool,
    ) -> Result<SaChanged, SaChangeError> {
        let is_outbound = direction == Direction::Seal;
        let worker = self.ipsec.worker_of(tunnel, spi).filter(|_| is_outbound);
        let more = match worker.map_or(is_first, |worker| worker.is_here) {
            true => more,
            false => Spent { packets: 0, bytes: 0, ..more },
        };
        let is_there = self.ipsec.set_lifetime(tunnel, spi, is_outbound, lifetime, more);
        is_there.then_some(SaChanged::Set).ok_or(SaChangeError::NoSa { spi })
    }

    /// Adds an SA towards a peer, and says when it is used.
    fn add_and_use(
        &mut self,
        tunnel: TunnelIndex,
        install: OutboundInstall,
        from: UseFrom,
        now: Moment,
    ) -> Result<SaChanged, SaChangeError> {
        // Looked up first, so that nothing is left behind.
        let inbound = match from {
            UseFrom::PeersUseOf(spi) | UseFrom::LaterBeside(spi) => {
                Some(self.ipsec.inbound_sa(tunnel, spi).ok_or(SaChangeError::NoSa { spi })?)
            }
            UseFrom::Later | UseFrom::Now => None,
        };
        let added = self.add_outbound(tunnel, install, now)?;
        match (from, inbound) {
            (UseFrom::Now, _) => self.ipsec.use_outbound(tunnel, added.sa),
            (UseFrom::PeersUseOf(_), Some(inbound)) => {
                self.ipsec.use_outbound_with(tunnel, added.sa, inbound)
            }
            _ => true,
        };
        Ok(SaChanged::Added(added.into()))
    }
}

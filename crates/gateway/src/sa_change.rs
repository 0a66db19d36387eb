//! Changes of single SAs in a running gateway, and of tunnels that begin without any; and what becomes of
//! them.

use crate::command::{InboundInstall, OutboundInstall, UpdateError};
use crate::worker::Worker;
use std::vec::IntoIter;
use testudo_ipsec::{AddedSa, Moment, TunnelIndex, TunnelParameters};

/// When an SA towards the peer is put to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UseFrom {
    /// When a later change says so.
    Later,
    /// At once.
    Now,
    /// With the first authentic packet that comes under this SPI: then the peer has the new keys.
    PeersUseOf(u32),
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
    /// Remove the SA from a tunnel's peer that has this SPI.
    RemoveInbound(TunnelIndex, u32),
    /// Remove the SA towards a tunnel's peer that has this SPI.
    RemoveOutbound(TunnelIndex, u32),
}

/// What a change has done.
#[derive(Debug)]
pub enum SaChanged {
    /// The tunnel was added or removed.
    Tunnel,
    /// The SA was added.
    Added(AddedSa),
    /// The SA is in use.
    InUse,
    /// The SA is gone. That of one from a peer leaves its replay window, as bytes.
    Removed(Option<Vec<u8>>),
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

//! The same change for every worker, and one answer from all of theirs.
//!
//! What workers share of an SA is made before the change is copied: [`testudo_ipsec::SharedNumbers`] towards
//! the peer, a [`SharedWindow`] from it; of VPE, [`GatedNumbers`](testudo_ipsec::GatedNumbers), of which each
//! worker has its own place, and [`SharedWindows`]; of a tunnel, when and where [its peer](PeerHeard) was
//! heard. No two workers ever have the same lease, which would use numbers twice. An SA that one worker alone
//! sends through (RFC 9611) has its numbers there and nowhere else.

use crate::command::{InboundInstall, OutboundInstall, SharedInbound, TunnelInstall, Update, UpdateOutcome};
use crate::sa_change::{SaChange, SaChanged, SaOutcome, UseFrom};
use crate::worker::Worker;
use std::sync::Arc;
use testudo_crypto::Direction;
use testudo_ipsec::{
    InboundParameters, Moment, NumberSource, OutboundParameters, PeerHeard, SaWorker, SharedWindow,
    SharedWindows, TunnelIndex,
};

impl Update {
    /// The same for each of the workers but the first: that of the last one comes first.
    pub(crate) fn replicas(&mut self, workers: usize) -> Vec<Self> {
        if workers > 1 {
            for tunnel in &mut self.install {
                tunnel.share(workers);
            }
        }
        (1..workers).rev().map(|worker| self.replica(worker)).collect()
    }

    fn replica(&mut self, worker: usize) -> Self {
        Self {
            remove: self.remove.clone(),
            install: self.install.iter_mut().map(|tunnel| tunnel.replica(worker)).collect(),
            selectors: self.selectors.clone(),
            policies: self.policies.clone(),
        }
    }
}

impl TunnelInstall {
    fn share(&mut self, workers: usize) {
        self.parameters.peer_heard = PeerHeard::shared();
        self.outbound.share(workers);
        self.inbound.share();
        self.more_outbound.iter_mut().for_each(|outbound| outbound.share(workers));
        self.more_inbound.iter_mut().for_each(InboundInstall::share);
    }

    fn replica(&mut self, worker: usize) -> Self {
        Self {
            index: self.index,
            parameters: self.parameters.clone(),
            outbound: self.outbound.replica(worker),
            inbound: self.inbound.replica(),
            more_outbound: self.more_outbound.iter_mut().map(|outbound| outbound.replica(worker)).collect(),
            more_inbound: self.more_inbound.iter_mut().map(InboundInstall::replica).collect(),
        }
    }
}

impl OutboundInstall {
    /// For several workers: their numbers are the same ones, or of VPE have one gate.
    fn share(&mut self, workers: usize) {
        let OutboundParameters { numbers, sa, worker, .. } = &mut self.parameters;
        let source = std::mem::replace(numbers, NumberSource::Ephemeral);
        if let Some(only) = worker {
            // Nobody else takes of them.
            (*only, *numbers) = (only.among(workers), source.of_one());
            return;
        }
        *numbers = if sa.suite.is_for_vpe() {
            source.gated(sa.esn)
        } else {
            source.shared(sa.esn, self.peer_window, workers)
        };
    }

    /// For another worker, once it is [shared](Self::share). The numbers of one that a single worker sends
    /// through are handed to it: no other replica has any.
    fn replica(&mut self, worker: usize) -> Self {
        let own = &mut self.parameters;
        let of_worker = own.worker.map(|only| only.at(worker));
        let numbers = match of_worker {
            None => own.numbers.of_worker(worker),
            Some(SaWorker { is_here: true, .. }) => own.numbers.hand_over(),
            Some(_) => own.numbers.seen_alone(),
        };
        let parameters = OutboundParameters { numbers, worker: of_worker, ..own.clone() };
        Self { parameters, key: self.key.replica(), peer_window: self.peer_window }
    }
}

impl InboundInstall {
    /// For several workers: their window is the same one, or of VPE all their windows are.
    fn share(&mut self) {
        let InboundParameters { sa, replay_window, .. } = &self.parameters;
        self.shared = Some(if sa.suite.is_for_vpe() {
            SharedInbound::Windows(Arc::new(SharedWindows::new(*replay_window)))
        } else {
            SharedInbound::Window(Arc::new(SharedWindow::new(*replay_window, sa.esn)))
        });
    }

    fn replica(&mut self) -> Self {
        Self {
            parameters: self.parameters.clone(),
            key: self.key.replica(),
            window: self.window.clone(),
            inherits: self.inherits,
            shared: self.shared.clone(),
        }
    }
}

impl SaChange {
    /// For each of several workers: what they share of an SA is the same.
    pub(crate) fn share(&mut self, workers: usize) {
        match self {
            Self::AddTunnel(_, parameters) => parameters.peer_heard = PeerHeard::shared(),
            Self::AddInbound(_, install) => install.share(),
            Self::AddOutbound(_, install, _) => install.share(workers),
            _ => {}
        }
    }

    /// Has the SA that it adds carry nothing yet, and returns the change that puts it to use, if it was to be
    /// at once, or that waits for the peer, if it was to wait: a packet of the peer's that comes between the
    /// two is not waited for any more, the next one is.
    pub(crate) fn take_use(&mut self) -> Option<Self> {
        let Self::AddOutbound(tunnel, install, from) = self else { return None };
        let spi = install.parameters.sa.spi;
        match *from {
            UseFrom::Now => {
                *from = UseFrom::Later;
                Some(Self::UseOutbound(*tunnel, spi))
            }
            UseFrom::PeersUseOf(inbound) => {
                *from = UseFrom::LaterBeside(inbound);
                Some(Self::UseOutboundWith(*tunnel, spi, inbound))
            }
            UseFrom::Later | UseFrom::LaterBeside(_) => None,
        }
    }

    /// The same for another worker, by its index, once it is [shared](Self::share). What changes something
    /// that they share is for the first one alone.
    pub(crate) fn replica(&mut self, worker: usize) -> Self {
        match self {
            Self::AddTunnel(tunnel, parameters) => Self::AddTunnel(*tunnel, parameters.clone()),
            Self::RemoveTunnel(tunnel) => Self::RemoveTunnel(*tunnel),
            Self::AddInbound(tunnel, install) => Self::AddInbound(*tunnel, Box::new(install.replica())),
            Self::AddOutbound(tunnel, install, from) => {
                Self::AddOutbound(*tunnel, Box::new(install.replica(worker)), *from)
            }
            Self::UseOutbound(tunnel, spi) => Self::UseOutbound(*tunnel, *spi),
            Self::UseOutboundWith(tunnel, spi, inbound) => Self::UseOutboundWith(*tunnel, *spi, *inbound),
            Self::WantOwn(tunnel, wants) => {
                let worker = u32::try_from(worker).ok();
                Self::WantOwn(*tunnel, wants.and(worker))
            }
            Self::Redirect(tunnel, ends, learns) => Self::Redirect(*tunnel, *ends, *learns),
            Self::Limit(tunnel, direction, spi, lifetime, spent)
            | Self::FollowLimit(tunnel, direction, spi, lifetime, spent) => {
                Self::FollowLimit(*tunnel, *direction, *spi, *lifetime, *spent)
            }
            Self::Advance(tunnel, Direction::Seal, spi, number)
            | Self::FollowAdvance(tunnel, spi, number) => Self::FollowAdvance(*tunnel, *spi, *number),
            Self::Advance(..) | Self::MadeByFirst => Self::MadeByFirst,
            Self::Hear(event) => Self::Hear(*event),
            Self::RemoveInbound(tunnel, spi) => Self::RemoveInbound(*tunnel, *spi),
            Self::RemoveOutbound(tunnel, spi) => Self::RemoveOutbound(*tunnel, *spi),
        }
    }
}

impl Worker {
    /// Changes tunnels and policies of all workers of a gateway that does not run yet, as
    /// [`Commander::update`](crate::Commander::update) does in one that runs.
    pub fn update_all(workers: &mut [Self], mut update: Update, now: Moment) -> UpdateOutcome {
        let mut others = update.replicas(workers.len());
        let mut own = Some(update);
        let outcomes = workers.iter_mut().map(|worker| {
            let update = own.take().or_else(|| others.pop());
            worker.update(update.unwrap_or_default(), now)
        });
        let (outcome, torn) = merge_updates(outcomes.collect::<Vec<_>>().into_iter());
        for worker in workers {
            torn.iter().for_each(|index| drop(worker.remove(*index)));
        }
        outcome
    }
}

/// What takes a change back where it was made: `None` if nothing has to be.
pub(crate) fn undo(change: &SaChange) -> Option<SaChange> {
    match change {
        SaChange::AddTunnel(tunnel, _) => Some(SaChange::RemoveTunnel(*tunnel)),
        SaChange::AddInbound(tunnel, install) => {
            Some(SaChange::RemoveInbound(*tunnel, install.parameters.sa.spi))
        }
        SaChange::AddOutbound(tunnel, install, _) => {
            Some(SaChange::RemoveOutbound(*tunnel, install.parameters.sa.spi))
        }
        _ => None,
    }
}

/// What became of the tunnels of an update, at all workers, and those that some have and others do not.
pub(crate) fn merge_updates(
    outcomes: impl Iterator<Item = UpdateOutcome>,
) -> (UpdateOutcome, Vec<TunnelIndex>) {
    let mut torn = Vec::new();
    let merge = |mut all: UpdateOutcome, next: UpdateOutcome| {
        for ((index, one), (_, other)) in all.iter_mut().zip(next) {
            match (&mut *one, other) {
                (Ok(one), Ok(other)) => one.absorb(other),
                (Ok(_), Err(error)) => {
                    *one = Err(error);
                    torn.push(*index);
                }
                (Err(_), Ok(_)) => torn.push(*index),
                (Err(_), Err(_)) => {}
            }
        }
        all
    };
    (outcomes.reduce(merge).unwrap_or_default(), torn)
}

/// What became of changes of SAs, at all workers, and the places of those that some have made and others have
/// not.
pub(crate) fn merge_changes(outcomes: impl Iterator<Item = SaOutcome>) -> (SaOutcome, Vec<usize>) {
    let mut torn = Vec::new();
    let merge = |mut all: SaOutcome, next: SaOutcome| {
        for (at, (one, other)) in all.iter_mut().zip(next).enumerate() {
            match (&mut *one, other) {
                (Ok(SaChanged::Added(one)), Ok(SaChanged::Added(other))) => {
                    one.counters.absorb(other.counters);
                }
                // One that was further looked later at what they share.
                (Ok(SaChanged::Removed(Some(one))), Ok(SaChanged::Removed(Some(other))))
                    if other.top() > one.top() =>
                {
                    *one = other;
                }
                (Ok(_), Err(error)) => {
                    *one = Err(error);
                    torn.push(at);
                }
                (Err(_), Ok(_)) => torn.push(at),
                _ => {}
            }
        }
        all
    };
    (outcomes.reduce(merge).unwrap_or_default(), torn)
}

//! Commands of the control plane to a running worker.

use crate::change::Change;
use crate::placement::{PlacedKey, PlacementError};
use crate::sa_change::{SaChange, SaOutcome};
use crate::sa_counts::PlacedSa;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use testudo_ipsec::{
    InboundParameters, InstallError, OutboundParameters, PolicyChange, PolicyId, SaRef, SaSelectors,
    SharedWindow, SharedWindows, Spd, SpdError, TunnelIndex, TunnelParameters, WindowsFrom, WindowsPage,
};

/// An SA towards the peer, to be installed.
#[derive(Debug)]
pub struct OutboundInstall {
    /// Its parameters.
    pub parameters: OutboundParameters,
    /// Its key.
    pub key: PlacedKey,
    /// The replay window that the peer has, in packets. Where there are several workers, their numbers in
    /// flight stay within it.
    pub peer_window: u32,
}

/// An SA from the peer, to be installed.
#[derive(Debug)]
pub struct InboundInstall {
    /// Its parameters.
    pub parameters: InboundParameters,
    /// Its key.
    pub key: PlacedKey,
    /// A replay window saved earlier under the same key.
    pub window: Option<Vec<u8>>,
    /// An SA with the same key that this update removes: its window, as it is at that moment, is taken over
    /// instead.
    pub inherits: Option<SaRef>,
    /// What all workers have of it, where there are several: made from the parameters when they get the SA.
    pub shared: Option<SharedInbound>,
}

/// What workers share of an SA from the peer.
#[derive(Debug, Clone)]
pub enum SharedInbound {
    /// Of ESP and AH: its window.
    Window(Arc<SharedWindow>),
    /// Of VPE: all its windows.
    Windows(Arc<SharedWindows>),
}

/// A tunnel to install, with one SA each way and, where workers have SAs of their own, more.
#[derive(Debug)]
pub struct TunnelInstall {
    /// Its index.
    pub index: TunnelIndex,
    /// What its SAs have in common.
    pub parameters: TunnelParameters,
    /// The SA towards the peer, which is in use at once.
    pub outbound: OutboundInstall,
    /// The SA from the peer.
    pub inbound: InboundInstall,
    /// Others towards the peer, each of one [worker](OutboundParameters::worker) alone (RFC 9611), which are
    /// in use at once.
    pub more_outbound: Vec<OutboundInstall>,
    /// Others from the peer.
    pub more_inbound: Vec<InboundInstall>,
}

/// The SAs of a tunnel that was installed.
#[derive(Debug, Clone)]
pub struct Installed {
    /// The SA towards the peer.
    pub outbound: PlacedSa,
    /// The SA from the peer.
    pub inbound: PlacedSa,
    /// The others towards the peer, in their order.
    pub more_outbound: Vec<PlacedSa>,
    /// The others from the peer, in their order.
    pub more_inbound: Vec<PlacedSa>,
}

impl TunnelInstall {
    /// All its SAs from the peer.
    pub(crate) fn each_inbound(&mut self) -> impl Iterator<Item = &mut InboundInstall> {
        std::iter::once(&mut self.inbound).chain(&mut self.more_inbound)
    }
}

impl Installed {
    /// Adds what another worker counts for the same SAs.
    pub(crate) fn absorb(&mut self, other: Self) {
        self.outbound.counters.absorb(other.outbound.counters);
        self.inbound.counters.absorb(other.inbound.counters);
        let own = self.more_outbound.iter_mut().chain(&mut self.more_inbound);
        for (one, other) in own.zip(other.more_outbound.into_iter().chain(other.more_inbound)) {
            one.counters.absorb(other.counters);
        }
    }
}

/// A change of tunnels and policies. A running gateway makes it a few tunnels at a time, between batches: it
/// removes first, then puts policies and selectors in force at once, then installs, so that no packet meets
/// an old policy and a new tunnel, or the reverse.
#[derive(Debug, Default)]
pub struct Update {
    /// Tunnels to remove, first of all.
    pub remove: Vec<TunnelIndex>,
    /// Tunnels to install after that.
    pub install: Vec<TunnelInstall>,
    /// Tunnels that stay, but with other selectors.
    pub selectors: Vec<(TunnelIndex, SaSelectors)>,
    /// The policies from then on; `None` leaves them.
    pub policies: Option<Box<Spd>>,
}

impl Update {
    /// The SAs whose windows others take over.
    pub(crate) fn inherited(&mut self) -> HashSet<SaRef> {
        let inbound = self.install.iter_mut().flat_map(TunnelInstall::each_inbound);
        inbound.filter_map(|inbound| inbound.inherits).collect()
    }
}

/// A tunnel of an update could not be installed; the others were.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UpdateError {
    /// The protocol refused it.
    #[error(transparent)]
    Install(#[from] InstallError),
    /// The saved replay window of its SA cannot be read. Without it the SA would accept again what was
    /// accepted before.
    #[error("tunnel {tunnel}: its saved replay window is damaged; give it new keys")]
    Window {
        /// The tunnel.
        tunnel: Arc<str>,
    },
    /// No engine takes its keys.
    #[error("tunnel {tunnel}: {source}")]
    Placement {
        /// The tunnel.
        tunnel: Arc<str>,
        /// Why.
        source: PlacementError,
    },
}

/// The result for each tunnel of an update.
pub type UpdateOutcome = Vec<(TunnelIndex, Result<Installed, UpdateError>)>;

/// A command of the control plane to a running worker. Answers go through the sender in it.
#[derive(Debug)]
pub enum Command {
    /// Change tunnels and policies. The change goes back once it is made: the receiver frees what was removed
    /// and replaced, since the worker has packets to forward.
    Update(Box<Change>, SyncSender<Box<Change>>),
    /// Change policies one by one.
    ChangePolicies(Vec<PolicyChange>, SyncSender<Vec<Result<PolicyId, SpdError>>>),
    /// Change SAs one by one.
    ChangeSas(Vec<SaChange>, SyncSender<SaOutcome>),
    /// Give the replay windows of these SAs from peers; of VPE the highest number of any.
    SaveWindows(Vec<SaRef>, SyncSender<Vec<(SaRef, Vec<u8>)>>),
    /// Tell of some windows of an SA of VPE.
    SeeWindows(WindowsFrom, SyncSender<Option<WindowsPage>>),
    /// Answer once nothing comes any more and nothing is on its way: for a worker whose queues get no packets
    /// from now on.
    Settle(SyncSender<()>),
    /// End: take nothing more from the protected side, finish what is in flight, and return.
    Stop,
}

//! The SAs of running tunnels, as the control plane knows them.
//!
//! A tunnel begins with the two SAs of its configuration; others come and go at run time. The list of each
//! tunnel has a lock of its own and is shared by all that hold the tunnel, across reloads that leave the
//! tunnel alone: a change of an SA touches nothing of other tunnels.

use crate::config::lifetime_of;
use crate::{Fingerprint, KeyDigests, Usage};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use testudo_crypto::{Direction, KeyMaterial, Suite};
use testudo_gateway::{PlacedSa, SaCounts};
use testudo_ipsec::{Lifetime, SaState};

/// Whether what is known of a key outlives the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyState {
    /// Its numbers are leased from the store, which keeps its windows and usages, too.
    Durable,
    /// It dies with the process, and the store knows nothing of it.
    Ephemeral,
}

/// An SA of a running tunnel.
#[derive(Debug, Clone)]
pub struct RunningSa {
    /// [`Seal`](Direction::Seal) towards the peer, [`Open`](Direction::Open) from it.
    pub direction: Direction,
    /// Security parameters index.
    pub spi: u32,
    /// Towards the peer: the only worker that sends through it; `None` for all. From the peer: that whose SA
    /// it came with, and is renewed with.
    pub worker: Option<u32>,
    /// Algorithms.
    pub suite: Suite,
    /// Extended sequence numbers.
    pub esn: bool,
    /// Packets that the replay window spans.
    pub replay_window: u32,
    /// Its [limits](Self::lifetime); `None` if it has none, like most of what key exchanges negotiate.
    pub limits: Option<Box<Lifetime>>,
    /// Its key.
    pub key: Fingerprint,
    /// What its sequence numbers belong to.
    pub numbers: Fingerprint,
    /// What no other SA may have.
    pub key_digests: KeyDigests,
    /// Whether what is known of the key outlives the gateway.
    pub key_state: KeyState,
    /// The usage of its key before this SA.
    pub before: Usage,
    /// Its key itself, where the configuration allows that somebody reads it. Zeroed with the last copy.
    pub kept_key: Option<Arc<KeyMaterial>>,
    /// Its handle, state and counters; `None` if it could not be installed.
    pub added: Option<PlacedSa>,
}

impl RunningSa {
    /// Its limits.
    #[must_use]
    pub fn lifetime(&self) -> Lifetime {
        lifetime_of(self.limits.as_deref())
    }

    /// Whether it is towards the peer.
    #[must_use]
    pub fn is_outbound(&self) -> bool {
        self.direction == Direction::Seal
    }

    /// Whether the store keeps what is known of its key.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        self.key_state == KeyState::Durable
    }

    /// Whether these are its counters. A later SA may have its SPI, but not them.
    #[must_use]
    pub fn counts_in(&self, counters: &SaCounts) -> bool {
        self.added.as_ref().is_some_and(|added| added.counters.is_of(counters))
    }

    /// Whether it carries nothing any more: it is at its hard lifetime, has used its last number, or somebody
    /// else has its Sender ID.
    #[must_use]
    pub fn has_stopped(&self) -> bool {
        let state = self.added.as_ref().map(|added| added.counters.state());
        matches!(state, Some(SaState::Expired | SaState::Exhausted | SaState::SenderTaken))
    }

    /// Whether its tunnel's packets go out through it.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        self.added.as_ref().is_some_and(|added| added.counters.is_in_use())
    }
}

/// The SAs of one tunnel, oldest first.
#[derive(Debug, Clone, Default)]
pub struct TunnelSas(Arc<Mutex<Vec<RunningSa>>>);

impl TunnelSas {
    /// These SAs.
    #[must_use]
    pub fn new(sas: Vec<RunningSa>) -> Self {
        Self(Arc::new(Mutex::new(sas)))
    }

    /// The SAs, to be read or changed. To be held for a moment only, and never for two tunnels.
    pub fn lock(&self) -> MutexGuard<'_, Vec<RunningSa>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The SA that packets go out through, or would if the tunnel were not down: the one of all workers
    /// before those of single ones.
    #[must_use]
    pub fn outbound(&self) -> Option<RunningSa> {
        let sas = self.lock();
        let in_use = || sas.iter().find(|sa| sa.is_in_use());
        let of_all = sas.iter().find(|sa| sa.is_in_use() && sa.worker.is_none());
        of_all.or_else(in_use).or_else(|| sas.iter().find(|sa| sa.is_outbound())).cloned()
    }

    /// The SA towards the peer that a worker has in use for itself; for `None`, the one of all workers.
    #[must_use]
    pub fn in_use_of(&self, worker: Option<u32>) -> Option<RunningSa> {
        self.lock().iter().find(|sa| sa.is_in_use() && sa.worker == worker).cloned()
    }

    /// The newest SA from the peer.
    #[must_use]
    pub fn newest_inbound(&self) -> Option<RunningSa> {
        self.lock().iter().rfind(|sa| !sa.is_outbound()).cloned()
    }

    /// What tells one tunnel's list from all others that exist.
    #[must_use]
    pub fn id(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }
}

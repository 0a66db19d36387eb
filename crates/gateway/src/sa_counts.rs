//! The counters of one SA at all workers, read as one.

use std::sync::Arc;
use testudo_crypto::OffloadState;
use testudo_ipsec::{
    AddedSa, HeardSenders, LearnedMtu, Moment, ReleaseCost, ReleaseRing, Reordered, Reordering, SaCounters,
    SaRef, SaState, WindowsSeen,
};
use testudo_packet::DropReason;

/// An SA that every worker has, under the same handle.
#[derive(Debug, Clone)]
pub struct PlacedSa {
    /// The handle.
    pub sa: SaRef,
    /// Its state and counters.
    pub counters: SaCounts,
}

impl From<AddedSa> for PlacedSa {
    fn from(added: AddedSa) -> Self {
        let AddedSa { sa, counters: first, reordering, ring } = added;
        let is_shared = reordering.is_some();
        let others = is_shared.then(|| Arc::new(Others { counters: Vec::new(), reordering, ring }));
        Self { sa, counters: SaCounts { first, others } }
    }
}

/// State and counters of one SA. Each worker counts what it has done for the SA; this is their sum.
#[derive(Debug, Clone)]
pub struct SaCounts {
    /// Of the first worker, by which the SA is known.
    first: Arc<SaCounters>,
    /// Of the others; nothing where there is one worker.
    others: Option<Arc<Others>>,
}

/// What there is where there are several workers. Behind one pointer: there are many SAs.
#[derive(Debug, Clone, Default)]
struct Others {
    /// The counters of the workers after the first one, in their order.
    counters: Vec<Arc<SaCounters>>,
    /// What all of them count together, of an SA from the peer.
    reordering: Option<Arc<Reordering>>,
    /// Where its packets are released in order.
    ring: Option<Arc<ReleaseRing>>,
}

impl From<Arc<SaCounters>> for SaCounts {
    fn from(first: Arc<SaCounters>) -> Self {
        Self { first, others: None }
    }
}

impl SaCounts {
    /// Adds what another worker counts.
    pub(crate) fn absorb(&mut self, other: Self) {
        let unshared =
            |others: Option<Arc<Others>>| others.map_or_else(Others::default, Arc::unwrap_or_clone);
        let (mut all, more) = (unshared(self.others.take()), unshared(other.others));
        all.counters.extend([other.first].into_iter().chain(more.counters));
        all.reordering = all.reordering.or(more.reordering);
        all.ring = all.ring.or(more.ring);
        self.others = Some(Arc::new(all));
    }

    /// Those of each worker, in their order.
    pub fn each(&self) -> impl Iterator<Item = &SaCounters> {
        let others = self.others.iter().flat_map(|others| &others.counters);
        [&self.first].into_iter().chain(others).map(|counters| &**counters)
    }

    /// Whether these are the counters of the same SA.
    #[must_use]
    pub fn is_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.first, &other.first)
    }

    fn sum(&self, get: impl Fn(&SaCounters) -> u64) -> u64 {
        self.each().map(get).fold(0, u64::wrapping_add)
    }

    /// Packets that passed.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.sum(SaCounters::packets)
    }

    /// Their inner bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.sum(SaCounters::bytes)
    }

    /// Dummy packets that were sent (RFC 4303 2.6).
    #[must_use]
    pub fn dummies(&self) -> u64 {
        self.sum(SaCounters::dummies)
    }

    /// Packets that count towards the key's lifetime ([`SaCounters::used_packets`]).
    #[must_use]
    pub fn used_packets(&self) -> u64 {
        self.sum(SaCounters::used_packets)
    }

    /// Bytes that count towards the key's lifetime, likewise.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.sum(SaCounters::used_bytes)
    }

    /// Packets of this SA that were dropped for `reason`.
    #[must_use]
    pub fn drops(&self, reason: DropReason) -> u64 {
        self.sum(|counters| counters.drops(reason))
    }

    /// How far out of order the packets of an SA from the peer arrive, where several workers have it.
    #[must_use]
    pub fn reordered(&self) -> Option<Reordered> {
        Some(self.others.as_ref()?.reordering.as_ref()?.reordered())
    }

    /// What it has cost to release the packets of an SA from the peer in order, where they are.
    #[must_use]
    pub fn release_cost(&self) -> Option<ReleaseCost> {
        Some(self.others.as_ref()?.ring.as_ref()?.cost())
    }

    /// Outbound: the highest number that a worker used. Inbound: the highest received.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.each().map(SaCounters::sequence).max().unwrap_or(0)
    }

    /// Whether the SA can pass packets: at all workers, or why one of them has stopped.
    #[must_use]
    pub fn state(&self) -> SaState {
        let stopped = self.each().map(SaCounters::state).find(|state| *state != SaState::Installed);
        stopped.unwrap_or(SaState::Installed)
    }

    /// The senders of a group ([`SaCounters::senders`]); `None` before the first, and where there is none.
    #[must_use]
    pub fn senders(&self) -> Option<HeardSenders> {
        let counts: Vec<_> = self.each().filter_map(SaCounters::senders).collect();
        HeardSenders::of(counts.into_iter())
    }

    /// Whether the packets of its tunnel go out through this SA, at any worker: they change one after
    /// another. Of an SA from the peer: always `false`.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        self.each().any(SaCounters::is_in_use)
    }

    /// Whether a NIC does its cryptography, or why not. A NIC belongs to the first worker.
    #[must_use]
    pub fn offload(&self) -> OffloadState {
        self.first.offload()
    }

    /// Outbound: the MTU of the path, where it is not the configured one: the smallest that a worker knows.
    #[must_use]
    pub fn learned_mtu(&self) -> Option<LearnedMtu> {
        self.each().filter_map(SaCounters::learned_mtu).min_by_key(|learned| learned.mtu)
    }

    /// The windows of an SA of VPE ([`SaCounters::windows`]): towards the peer, those that all workers send
    /// in; from it, those that they share.
    #[must_use]
    pub fn windows(&self, is_outbound: bool) -> Option<WindowsSeen> {
        if !is_outbound {
            return self.first.windows();
        }
        let sum = |mut sum: WindowsSeen, next: WindowsSeen| {
            sum.absorb(&next);
            sum
        };
        self.each().filter_map(SaCounters::windows).reduce(sum)
    }

    /// When the SA was first used ([`SaCounters::first_used`]).
    #[must_use]
    pub fn first_used(&self) -> Option<Moment> {
        self.each().filter_map(SaCounters::first_used).min()
    }

    /// When the SA was last used ([`SaCounters::last_used`]).
    #[must_use]
    pub fn last_used(&self) -> Option<Moment> {
        self.each().filter_map(SaCounters::last_used).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_workers_are_those_of_one_sa() {
        let mut counts = SaCounts::from(Arc::new(SaCounters::default()));
        let [second, third] = [(); 2].map(|()| SaCounts::from(Arc::new(SaCounters::default())));
        let other = second.clone();
        counts.absorb(second);
        counts.absorb(third);
        assert_eq!(counts.each().count(), 3);
        assert!(counts.is_of(&counts.clone()) && !counts.is_of(&other));
        assert_eq!(counts.state(), SaState::Installed);
        assert_eq!((counts.first_used(), counts.learned_mtu(), counts.packets()), (None, None, 0));
    }
}

//! Policies that are negotiated, in the order in which the worker's SPD has them: by their priority, and of
//! equal ones by their arrival.

use super::super::xfrm::Direction;
use crate::firewall::TunnelRoute;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use testudo_ipsec::{Policy, PolicyId, Position, Selector};

/// A policy that is negotiated.
#[derive(Debug, Clone)]
pub struct NegotiatedPolicy {
    /// Its index in XFRM.
    pub index: u32,
    /// Its priority: lower ones come first.
    pub priority: u32,
    /// Its direction in XFRM.
    pub direction: Direction,
    /// As the worker has it.
    pub entry: Policy,
    /// The number of the tunnel that it names.
    pub tunnel: Option<u64>,
    /// The SPI of the SA towards the peer that its packets are to go through; 0 where any may carry them.
    pub spi: u32,
    /// Whether each worker is to have an SA of its own for its packets (RFC 9611).
    pub wants_own: bool,
    /// The route into the gateway because of it.
    pub route: Option<TunnelRoute>,
    /// Its name in the worker's SPD.
    pub(super) id: PolicyId,
}

impl NegotiatedPolicy {
    /// Where it is from, in words: a daemon's log and `ip xfrm policy` have the same numbers.
    #[must_use]
    pub fn origin(&self) -> String {
        let Self { index, priority, .. } = self;
        format!("ike, {} index {index}, priority {priority}", self.direction_name())
    }

    /// Its direction as `ip xfrm policy` has it.
    #[must_use]
    pub fn direction_name(&self) -> &'static str {
        match self.direction {
            Direction::Inbound => "in",
            Direction::Outbound => "out",
            Direction::Forward => "fwd",
        }
    }
}

/// Priority, then arrival.
type Rank = (u32, u64);

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Policies {
    by_index: BTreeMap<u32, (Rank, Arc<NegotiatedPolicy>)>,
    ranked: BTreeMap<Rank, u32>,
    by_id: BTreeMap<PolicyId, u32>,
    /// Tunnels, and the indices of their policies.
    of_tunnels: BTreeSet<(u64, u32)>,
    arrivals: u64,
}

impl Policies {
    pub(super) fn len(&self) -> usize {
        self.by_index.len()
    }

    pub(super) fn get(&self, index: u32) -> Option<Arc<NegotiatedPolicy>> {
        self.by_index.get(&index).map(|(_, policy)| Arc::clone(policy))
    }

    /// All of them in order.
    pub(super) fn all(&self) -> Vec<Arc<NegotiatedPolicy>> {
        self.ranked.values().filter_map(|index| self.get(*index)).collect()
    }

    pub(super) fn with_id(&self, id: PolicyId) -> Option<u32> {
        self.by_id.get(&id).copied()
    }

    /// Where the worker puts a new one of this priority: behind its equals.
    pub(super) fn position(&self, priority: u32) -> Position {
        let next = self.ranked.range((priority, u64::MAX)..).next();
        let next = next.and_then(|(_, index)| self.by_index.get(index));
        next.map_or(Position::Last, |(_, next)| Position::Before(next.id))
    }

    /// Adds one, or puts it in the place of the one with its index: it stays where that was if their
    /// priorities are equal, and comes behind its equals otherwise.
    pub(super) fn insert(&mut self, policy: NegotiatedPolicy) {
        let index = policy.index;
        let before = self.remove(index);
        let kept = before.filter(|((priority, _), _)| *priority == policy.priority);
        let rank = kept.map_or((policy.priority, self.arrivals), |(rank, _)| rank);
        self.arrivals += 1;
        self.ranked.insert(rank, index);
        self.by_id.insert(policy.id, index);
        if let Some(tunnel) = policy.tunnel {
            self.of_tunnels.insert((tunnel, index));
        }
        self.by_index.insert(index, (rank, Arc::new(policy)));
    }

    fn remove(&mut self, index: u32) -> Option<(Rank, Arc<NegotiatedPolicy>)> {
        let (rank, policy) = self.by_index.remove(&index)?;
        self.ranked.remove(&rank);
        self.by_id.remove(&policy.id);
        if let Some(tunnel) = policy.tunnel {
            self.of_tunnels.remove(&(tunnel, index));
        }
        Some((rank, policy))
    }

    /// Removes one.
    pub(super) fn take(&mut self, index: u32) -> Option<Arc<NegotiatedPolicy>> {
        self.remove(index).map(|(_, policy)| policy)
    }

    /// The indices of those that name a tunnel.
    fn of_tunnel(&self, tunnel: u64) -> impl Iterator<Item = u32> {
        self.of_tunnels.range((tunnel, 0)..=(tunnel, u32::MAX)).map(|(_, index)| *index)
    }

    /// Whether one names a tunnel.
    pub(super) fn have(&self, tunnel: u64) -> bool {
        self.of_tunnel(tunnel).next().is_some()
    }

    /// Whether one of a tunnel wants an SA for each worker.
    pub(super) fn want_own(&self, tunnel: u64) -> bool {
        let mut policies = self.of_tunnel(tunnel).filter_map(|index| self.by_index.get(&index));
        policies.any(|(_, policy)| policy.wants_own)
    }

    /// The SPIs that policies of a tunnel name.
    pub(super) fn spis_of(&self, tunnel: u64) -> Vec<u32> {
        let policies = self.of_tunnel(tunnel).filter_map(|index| self.by_index.get(&index));
        let leaving = policies.filter(|(_, policy)| policy.direction == Direction::Outbound);
        leaving.map(|(_, policy)| policy.spi).filter(|spi| *spi != 0).collect()
    }

    /// The selectors of packets that may come through a tunnel, without those of the policy `without`.
    pub(super) fn selectors_of(&self, tunnel: u64, without: Option<u32>) -> Vec<Selector> {
        let indices = self.of_tunnel(tunnel).filter(|index| Some(*index) != without);
        let policies = indices.filter_map(|index| self.get(index));
        let arriving = policies.filter(|policy| policy.direction != Direction::Outbound);
        arriving.flat_map(|policy| policy.entry.selectors.to_vec()).collect()
    }

    /// They have other names in the worker's SPD.
    pub(super) fn rename(&mut self, names: &HashMap<u32, PolicyId>) {
        self.by_id.clear();
        for (index, (_, policy)) in &mut self.by_index {
            let Some(id) = names.get(index) else { continue };
            Arc::make_mut(policy).id = *id;
            self.by_id.insert(*id, *index);
        }
    }
}

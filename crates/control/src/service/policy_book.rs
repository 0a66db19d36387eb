//! The policies in force by what they are called, with what else the control plane knows of them, so that a
//! change of one costs the same beside a few others and beside thousands.
//!
//! ```text
//!   name, number ─► [index] ─► number ─► PolicyId ─► place in the configuration (by the order of the SPD)
//! ```

use crate::config::{Configuration, Policy, PolicyIndex};
use crate::firewall::{RouteChange, RouteIndex};
use std::collections::HashMap;
use testudo_ipsec::{PolicyId, Position, Spd};

/// The policies of a configuration, without the selectors of its tunnels.
#[derive(Debug, Clone, Default)]
pub struct PolicyBook {
    /// What policies are checked against.
    pub index: PolicyIndex,
    routes: RouteIndex,
    /// Their names in the SPD, in order.
    order: Vec<PolicyId>,
    ids: HashMap<u32, PolicyId>,
}

impl PolicyBook {
    /// The policies of a configuration, which are the first of `spd`.
    #[must_use]
    pub fn of(configuration: &Configuration, spd: &Spd) -> Self {
        let policies = &configuration.policies;
        let order: Vec<_> = spd.policies().take(policies.len()).map(|(id, _)| id).collect();
        let ids = policies.iter().zip(&order).map(|(policy, id)| (policy.number, *id)).collect();
        let routes = RouteIndex::of(configuration);
        Self { index: PolicyIndex::of(configuration), routes, order, ids }
    }

    /// The name in the SPD of the policy at a place.
    #[must_use]
    pub fn id_at(&self, place: usize) -> Option<PolicyId> {
        self.order.get(place).copied()
    }

    /// The position in the SPD of a policy that is put at a place.
    #[must_use]
    pub fn position(&self, place: usize) -> Position {
        place.checked_sub(1).and_then(|before| self.id_at(before)).map_or(Position::First, Position::After)
    }

    /// The place of the policy with a number.
    #[must_use]
    pub fn place_of(&self, number: u32, spd: &Spd) -> Option<usize> {
        let id = *self.ids.get(&number)?;
        let place = self.order.partition_point(|other| spd.is_before(*other, id));
        (self.id_at(place) == Some(id)).then_some(place)
    }

    /// Whether the policy with a number is in front of the one at a place, or of the end.
    #[must_use]
    pub fn is_in_front(&self, number: u32, place: usize, spd: &Spd) -> bool {
        let (Some(id), there) = (self.ids.get(&number), self.id_at(place)) else { return false };
        there.is_none_or(|there| spd.is_before(*id, there))
    }

    /// A policy was put at a place. Returns what changes of the routes.
    pub fn insert(&mut self, place: usize, id: PolicyId, policy: &Policy) -> Vec<RouteChange> {
        self.order.insert(place, id);
        self.ids.insert(policy.number, id);
        self.index.add(policy);
        self.routes.change(None, Some(policy))
    }

    /// A policy has taken the place of another, whose number it has.
    pub fn replace(&mut self, old: &Policy, new: &Policy) -> Vec<RouteChange> {
        self.index.remove(old);
        self.index.add(new);
        self.routes.change(Some(old), Some(new))
    }

    /// The policy at a place is gone.
    pub fn remove(&mut self, place: usize, policy: &Policy) -> Vec<RouteChange> {
        self.order.remove(place);
        self.ids.remove(&policy.number);
        self.index.remove(policy);
        self.routes.change(Some(policy), None)
    }
}

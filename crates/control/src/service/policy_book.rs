//! The policies in force by what they are called, with what else the control plane knows of them, so that a
//! change of one costs the same beside a few others and beside thousands.
//!
//! ```text
//!   name, number ─► [index] ─► number ─► PolicyId ─► place in the configuration (by the order of the SPD)
//!                                   └──► PolicyId in the worker's SPD, where policies of flows are among them
//! ```

use super::populated::PopulatingId;
use crate::config::{Configuration, Policy, PolicyIndex};
use crate::firewall::{RouteChange, RouteIndex};
use std::collections::HashMap;
use testudo_ipsec::{PolicyId, Position, Spd};

/// The policies of a configuration, without the selectors of its tunnels.
#[derive(Debug, Clone, Default)]
pub struct PolicyBook {
    /// What policies are checked against.
    pub index: PolicyIndex,
    /// The routes that they ask for.
    pub routes: RouteIndex,
    /// Their names in the SPD, in order.
    order: Vec<PolicyId>,
    ids: HashMap<u32, PolicyId>,
    number_at: HashMap<PolicyId, u32>,
    /// Their names in the worker's SPD, by their numbers, and the other way round.
    workers: HashMap<u32, PolicyId>,
    numbers: HashMap<PolicyId, u32>,
    /// Those that populate tunnels, by their numbers, and the other way round.
    populating: HashMap<u32, PopulatingId>,
    populating_numbers: HashMap<PopulatingId, u32>,
}

impl PolicyBook {
    /// The policies of a configuration, which are the first of `spd`; `workers` are their names in the
    /// worker's, and `populating` those that populate tunnels, by their numbers.
    #[must_use]
    pub fn of(
        configuration: &Configuration,
        spd: &Spd,
        workers: &[PolicyId],
        populating: HashMap<u32, PopulatingId>,
    ) -> Self {
        let policies = &configuration.policies;
        let order: Vec<_> = spd.policies().take(policies.len()).map(|(id, _)| id).collect();
        let ids: HashMap<_, _> =
            policies.iter().zip(&order).map(|(policy, id)| (policy.number, *id)).collect();
        let number_at = ids.iter().map(|(number, id)| (*id, *number)).collect();
        let routes = RouteIndex::of(configuration);
        let numbers = policies.iter().map(|policy| policy.number);
        let workers: HashMap<_, _> = numbers.zip(workers.iter().copied()).collect();
        let numbers = workers.iter().map(|(number, id)| (*id, *number)).collect();
        let populating_numbers = populating.iter().map(|(number, id)| (*id, *number)).collect();
        Self {
            index: PolicyIndex::of(configuration),
            routes,
            order,
            ids,
            number_at,
            workers,
            numbers,
            populating,
            populating_numbers,
        }
    }

    /// The policy with a number as tunnels name it; `None` if it populates none.
    #[must_use]
    pub fn populating(&self, number: u32) -> Option<PopulatingId> {
        self.populating.get(&number).copied()
    }

    /// The number of a policy that populates tunnels.
    #[must_use]
    pub fn number_populating(&self, policy: PopulatingId) -> Option<u32> {
        self.populating_numbers.get(&policy).copied()
    }

    /// The policy with a number populates other tunnels from here on, or none.
    pub fn set_populating(&mut self, number: u32, policy: Option<PopulatingId>) {
        let before = match policy {
            Some(policy) => {
                self.populating_numbers.insert(policy, number);
                self.populating.insert(number, policy)
            }
            None => self.populating.remove(&number),
        };
        if let Some(before) = before {
            self.populating_numbers.remove(&before);
        }
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

    /// The position in the worker's SPD of a policy that is put at a place.
    #[must_use]
    pub fn workers_position(&self, place: usize) -> Position {
        let before = place.checked_sub(1).and_then(|before| self.id_at(before));
        let number = before.and_then(|before| self.number_at.get(&before));
        let before = number.and_then(|number| self.workers_id(*number));
        before.map_or(Position::First, Position::After)
    }

    /// The name in the worker's SPD of the policy with a number.
    #[must_use]
    pub fn workers_id(&self, number: u32) -> Option<PolicyId> {
        self.workers.get(&number).copied()
    }

    /// The number of the policy with a name in the worker's SPD.
    #[must_use]
    pub fn number_of(&self, workers_id: PolicyId) -> Option<u32> {
        self.numbers.get(&workers_id).copied()
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

    /// A policy was put at a place, with these names. Returns what changes of the routes.
    pub fn insert(
        &mut self,
        place: usize,
        id: PolicyId,
        in_worker: PolicyId,
        policy: &Policy,
    ) -> Vec<RouteChange> {
        self.order.insert(place, id);
        self.ids.insert(policy.number, id);
        self.number_at.insert(id, policy.number);
        self.workers.insert(policy.number, in_worker);
        self.numbers.insert(in_worker, policy.number);
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
        let id = self.order.remove(place);
        self.number_at.remove(&id);
        self.ids.remove(&policy.number);
        if let Some(in_worker) = self.workers.remove(&policy.number) {
            self.numbers.remove(&in_worker);
        }
        self.index.remove(policy);
        self.routes.change(Some(policy), None)
    }
}

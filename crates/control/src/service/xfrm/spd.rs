//! All policies of the clients, as the kernel keeps them: for each direction in the order of their
//! priorities, and of their arrival where these are equal.

use super::packed::Packed;
use super::policy::{Direction, PolicyKey, XfrmPolicy};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use testudo_wire::netlink::ack::Refusal;
use testudo_wire::netlink::errno::Errno;
use testudo_wire::xfrm::address::Address;
use testudo_wire::xfrm::attribute::Attribute;
use testudo_wire::xfrm::message::{Body, Message};
use testudo_wire::xfrm::policy::Template;
use testudo_wire::xfrm::selector::Selector;

/// Policies at most.
pub(super) const MAX_POLICIES: usize = 1 << 17;

/// Any protocol, in the selector of a migration (`IPSEC_ULPROTO_ANY`).
const ANY_PROTOCOL: u8 = 255;

/// The place of a policy among those of its direction: its priority, then its arrival.
type Rank = (u32, u64);

/// A policy that is there, as it is kept among so many: half of what [`XfrmPolicy`] takes.
#[derive(Debug)]
struct Entry {
    rank: Rank,
    arrival: u64,
    added_s: u64,
    /// What the client has said of it; the templates come first.
    said: Packed,
    direction: Direction,
}

fn packed(policy: &XfrmPolicy) -> Packed {
    let templates = (!policy.templates.is_empty()).then(|| Attribute::Templates(policy.templates.clone()));
    let attributes = templates.into_iter().chain(policy.attributes.iter().cloned()).collect();
    Packed::of(&Message { body: Body::NewPolicy(policy.info), attributes })
}

impl Entry {
    fn policy(&self) -> XfrmPolicy {
        let Message { body: Body::NewPolicy(info), attributes } = self.said.message() else {
            unreachable!("a policy is kept as a message about one")
        };
        let templates = attributes.templates().cloned().unwrap_or_default();
        let others = attributes.iter().filter(|attribute| !matches!(attribute, Attribute::Templates(_)));
        let attributes = others.cloned().collect();
        XfrmPolicy { info, direction: self.direction, templates, attributes, added_s: self.added_s }
    }
}

/// The policies.
#[derive(Debug, Default)]
pub(super) struct Spd {
    /// Boxed: nodes of a map that grows at its end are little more than half full.
    by_index: BTreeMap<u32, Box<Entry>>,
    /// By the hashes of their names, which are long.
    by_name: BTreeSet<(u64, u32)>,
    hasher: RandomState,
    /// Those of each direction.
    ranked: [BTreeMap<Rank, u32>; 3],
    by_arrival: BTreeMap<u64, u32>,
    /// By the hashes of their networks, then by rank.
    by_networks: BTreeSet<(u64, u32, u64, u32)>,
    arrivals: u64,
    indices: [u32; 3],
    /// How many each direction has.
    counts: [usize; 3],
}

/// A policy's key with its direction, to be hashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Name {
    direction: Direction,
    selector: [u8; 56],
    mark: (u32, u32),
    if_id: u32,
}

fn name(direction: Direction, key: &PolicyKey) -> Name {
    Name { direction, selector: key.selector.to_bytes(), mark: key.mark, if_id: key.if_id }
}

/// What a migration knows policies by that may be of any protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Networks {
    direction: Direction,
    family: u16,
    source: (Address, u8),
    destination: (Address, u8),
}

fn networks(direction: Direction, selector: &Selector) -> Networks {
    Networks {
        direction,
        family: selector.family,
        source: (selector.source, selector.source_prefix),
        destination: (selector.destination, selector.destination_prefix),
    }
}

impl Spd {
    pub(super) fn len(&self) -> usize {
        self.by_index.len()
    }

    /// How many a direction has.
    pub(super) fn count_of(&self, direction: Direction) -> usize {
        self.counts[usize::from(direction.number())]
    }

    pub(super) fn get(&self, index: u32) -> Option<XfrmPolicy> {
        self.by_index.get(&index).map(|entry| entry.policy())
    }

    /// The index of the policy with this key.
    pub(super) fn with_key(&self, direction: Direction, key: &PolicyKey) -> Option<u32> {
        let hash = self.hasher.hash_one(name(direction, key));
        let mut of_hash = self.by_name.range((hash, 0)..=(hash, u32::MAX)).map(|(_, index)| *index);
        of_hash.find(|index| {
            self.get(*index).is_some_and(|policy| (policy.direction, policy.key()) == (direction, *key))
        })
    }

    /// Where a policy of this rank is found by its name, and by its networks.
    fn indices(&self, policy: &XfrmPolicy, (priority, arrival): Rank) -> ((u64, u32), (u64, u32, u64, u32)) {
        let (key, index) = (policy.key(), policy.info.index);
        let by_name = self.hasher.hash_one(name(policy.direction, &key));
        let by_networks = self.hasher.hash_one(networks(policy.direction, &key.selector));
        ((by_name, index), (by_networks, priority, arrival, index))
    }

    /// The latest one before an arrival, with its own.
    pub(super) fn before(&self, arrival: u64) -> Option<(u64, XfrmPolicy)> {
        let (arrival, index) = self.by_arrival.range(..arrival).next_back()?;
        self.get(*index).map(|policy| (*arrival, policy))
    }

    /// An index for a new policy: the wanted one, if it is free.
    ///
    /// # Errors
    /// `ENOMEM` if there is no room.
    pub(super) fn free_index(&mut self, direction: Direction, wanted: u32) -> Result<u32, Refusal> {
        if self.len() >= MAX_POLICIES {
            let text = format!("{MAX_POLICIES} policies are there, and more are not possible");
            return Err(Refusal::new(Errno::NOMEM, text));
        }
        if wanted != 0 && !self.by_index.contains_key(&wanted) {
            return Ok(wanted);
        }
        let last = &mut self.indices[usize::from(direction.number())];
        loop {
            *last = last.wrapping_add(8);
            let index = (*last & !7) | u32::from(direction.number());
            // The numbers below 8 are left out, so that no index is 0.
            if index >= 8 && !self.by_index.contains_key(&index) {
                return Ok(index);
            }
        }
    }

    /// The policy that one of this priority comes directly ahead of, as the last of its equals.
    pub(super) fn successor(&self, direction: Direction, priority: u32) -> Option<u32> {
        self.ranked_in(direction).range((priority, u64::MAX)..).next().map(|(_, index)| *index)
    }

    fn ranked_in(&self, direction: Direction) -> &BTreeMap<Rank, u32> {
        &self.ranked[usize::from(direction.number())]
    }

    /// Adds a policy, in the place of one with its index; of the same priority it keeps its rank.
    pub(super) fn insert(&mut self, policy: XfrmPolicy) {
        let index = policy.info.index;
        let before = self.take(index).map(|(rank, _)| rank);
        let arrival = self.arrivals;
        self.arrivals += 1;
        let priority = policy.info.priority;
        let rank = before.filter(|rank| rank.0 == priority).unwrap_or((priority, arrival));
        let XfrmPolicy { direction, added_s, .. } = policy;
        self.counts[usize::from(direction.number())] += 1;
        self.ranked[usize::from(direction.number())].insert(rank, index);
        self.by_arrival.insert(arrival, index);
        let (by_name, by_networks) = self.indices(&policy, rank);
        self.by_name.insert(by_name);
        self.by_networks.insert(by_networks);
        let said = packed(&policy);
        self.by_index.insert(index, Box::new(Entry { rank, arrival, added_s, said, direction }));
    }

    /// Changes the templates of one that is there.
    pub(super) fn change_templates(&mut self, index: u32, templates: Vec<Template>) {
        if let Some(entry) = self.by_index.get_mut(&index) {
            entry.said = packed(&XfrmPolicy { templates, ..entry.policy() });
        }
    }

    pub(super) fn remove(&mut self, index: u32) -> Option<XfrmPolicy> {
        self.take(index).map(|(_, policy)| policy)
    }

    fn take(&mut self, index: u32) -> Option<(Rank, XfrmPolicy)> {
        let entry = self.by_index.remove(&index)?;
        let (rank, policy) = (entry.rank, entry.policy());
        let direction = usize::from(policy.direction.number());
        self.counts[direction] -= 1;
        self.ranked[direction].remove(&rank);
        self.by_arrival.remove(&entry.arrival);
        let (by_name, by_networks) = self.indices(&policy, rank);
        self.by_name.remove(&by_name);
        self.by_networks.remove(&by_networks);
        Some((rank, policy))
    }

    /// The policy that comes directly behind another one of its direction.
    pub(super) fn behind(&self, index: u32) -> Option<u32> {
        let Entry { rank, direction, .. } = **self.by_index.get(&index)?;
        self.ranked_in(direction).range((rank.0, rank.1 + 1)..).next().map(|(_, index)| *index)
    }

    /// The policy that a migration means, the first one of several (`xfrm_migrate_policy_find`): of this
    /// selector, whose protocol may be any, and of this interface, which may be any, too.
    pub(super) fn to_migrate(
        &self,
        direction: Direction,
        selector: &Selector,
        if_id: u32,
    ) -> Option<XfrmPolicy> {
        let wanted = networks(direction, selector);
        let hash = self.hasher.hash_one(wanted);
        let all = (hash, 0, 0, 0)..=(hash, u32::MAX, u64::MAX, u32::MAX);
        self.by_networks.range(all).filter_map(|(_, _, _, index)| self.get(*index)).find(|policy| {
            let own = policy.key().selector;
            networks(policy.direction, &own) == wanted
                && (if_id == 0 || policy.if_id() == if_id)
                && (selector.protocol == ANY_PROTOCOL || own == *selector)
        })
    }
}

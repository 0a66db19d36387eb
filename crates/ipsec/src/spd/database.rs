//! The SPD: the policies, their order, and their index, changed one policy at a time.

use super::answer::Answer;
use super::flow::{Direction, Flow};
use super::leaf::Entry;
use super::lookups::{Lookups, OfInterface};
use super::order::{Order, Rank};
use super::policy::{Action, Directions, Policy, PolicyChange, PolicyId, Position, SpdError, Verdict};
use super::scan::Scan;
use super::search::{LookupCost, Search};
use super::selector::{Fit, NextLayer, PrefixPair, Selector};
use super::slab::Slab;
use hashbrown::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};
use testudo_packet::Interface;

/// Policies at most: their ranks have to leave gaps.
pub const MAX_POLICIES: usize = 1 << 20;
/// Pairs of prefixes that the ranges of one policy may make, those of ports counted as well: two ranges of
/// IPv4 addresses make at most 62 times 62, two ranges of ports 30 times 30. They bound the time that a
/// change of one policy takes.
pub const MAX_PIECES: usize = 4096;
/// The same for each SA that a policy populates from packets: there are many of these, which come and go
/// while packets wait.
pub const MAX_FLOW_PIECES: usize = 256;

/// SPDs that were made with policies in this process.
static MADE: AtomicU32 = AtomicU32::new(0);

/// The ordered policies, of all interfaces of the protected side. A packet meets those of its own interface:
/// each has an index of its own, and the main one's is always there.
///
/// Finding the first policy for a packet costs the more, the more different networks around the packet's
/// addresses policies name, one within the other; it does not depend on how many policies there are. The same
/// holds for a change of one policy, but for the order, where an insertion that finds no gap moves others.
#[derive(Debug, Clone, Default)]
pub struct Spd {
    /// What no other SPD has but its copies; 0 for those that began empty.
    number: u32,
    policies: Slab<Installed>,
    order: Order,
    last_serial: u32,
    /// Policies that populate SAs from packets.
    populating: usize,
    main: Lookups,
    /// Those of the other interfaces, by their numbers from 1 on.
    others: Vec<Lookups>,
    /// Those of interfaces without policies: empty.
    none: Lookups,
}

#[derive(Debug, Clone)]
struct Installed {
    policy: Policy,
    serial: u32,
}

/// A part of a policy that is in one place of the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Piece {
    directions: Directions,
    pair: PrefixPair,
    layer: NextLayer,
}

/// What a selector asks of the next layer, and in which directions: a selector on messages may differ in
/// both.
fn layers(
    selector: &Selector,
    directions: Directions,
) -> impl Iterator<Item = (Directions, NextLayer)> + use<> {
    let [outbound, inbound] = [Direction::Outbound, Direction::Inbound].map(|d| selector.next_layer(d));
    let (outbound, inbound) = ((Directions::Outbound, outbound), (Directions::Inbound, inbound));
    let layers = match directions {
        Directions::Both if outbound.1 == inbound.1 => [Some((Directions::Both, outbound.1)), None],
        Directions::Both => [Some(outbound), Some(inbound)],
        Directions::Outbound => [Some(outbound), None],
        Directions::Inbound => [Some(inbound), None],
    };
    layers.into_iter().flatten()
}

/// The parts of a policy, no two alike.
fn pieces(policy: &Policy) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for selector in policy.selectors.iter() {
        for (directions, layer) in layers(selector, policy.directions) {
            pieces.extend(selector.prefix_pairs().map(|pair| Piece { directions, pair, layer }));
        }
    }
    if policy.selectors.len() > 1 {
        let mut seen = HashSet::with_hasher(foldhash::fast::RandomState::default());
        pieces.retain(|piece| seen.insert(*piece));
    }
    pieces
}

/// How many pairs of prefixes a selector makes.
pub(super) fn count_pieces(selector: &Selector, directions: Directions) -> usize {
    let pairs = selector.count_prefix_pairs();
    layers(selector, directions).map(|(_, layer)| pairs * layer.count_prefixes()).sum()
}

impl Policy {
    /// How many pairs of prefixes its selectors make in the index, those of ports counted as well: what it
    /// costs to insert or to remove it.
    #[must_use]
    pub fn count_pieces(&self) -> usize {
        self.selectors.iter().map(|selector| count_pieces(selector, self.directions)).sum()
    }

    /// Whether an SPD takes it: whether it has no more parts than are allowed.
    ///
    /// # Errors
    /// [`SpdError::TooManyPieces`].
    pub fn check(&self) -> Result<(), SpdError> {
        if self.count_pieces() > MAX_PIECES { Err(SpdError::TooManyPieces) } else { Ok(()) }
    }
}

impl Spd {
    /// An SPD of these policies, in this order.
    ///
    /// # Errors
    /// [`SpdError`] if one has too many ranges, or there are too many.
    pub fn new(policies: impl IntoIterator<Item = Policy>) -> Result<Self, SpdError> {
        let number = MADE.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let mut spd = Self { number, ..Self::default() };
        for policy in policies {
            policy.check()?;
            spd.last_serial = spd.last_serial.wrapping_add(1);
            spd.policies.insert(Installed { policy, serial: spd.last_serial });
        }
        let count = u32::try_from(spd.len()).ok().filter(|_| spd.len() <= MAX_POLICIES);
        spd.order.fill(0..count.ok_or(SpdError::Full)?);
        for slot in 0..count.unwrap_or(0) {
            spd.enter(slot);
        }
        for number in 0..=spd.others.len() {
            spd.update_scan(Interface(u8::try_from(number).unwrap_or(u8::MAX)));
        }
        Ok(spd)
    }

    /// How many policies there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.policies.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The policies, in order.
    pub fn policies(&self) -> impl Iterator<Item = (PolicyId, &Policy)> {
        self.order.iter().filter_map(|slot| {
            let Installed { policy, serial } = self.policies.get(slot)?;
            Some((self.name(slot, *serial), policy))
        })
    }

    /// A policy.
    #[must_use]
    pub fn get(&self, id: PolicyId) -> Option<&Policy> {
        let installed = self.policies.get(id.slot)?;
        (self.number == id.spd && installed.serial == id.serial).then_some(&installed.policy)
    }

    /// Whether a policy comes before another one in the order; `false` if either is not there.
    #[must_use]
    pub fn is_before(&self, first: PolicyId, second: PolicyId) -> bool {
        let is_there = self.get(first).is_some() && self.get(second).is_some();
        is_there && self.order.rank(first.slot) < self.order.rank(second.slot)
    }

    fn id_of(&self, slot: u32) -> Option<PolicyId> {
        self.policies.get(slot).map(|installed| self.name(slot, installed.serial))
    }

    fn name(&self, slot: u32, serial: u32) -> PolicyId {
        PolicyId { spd: self.number, slot, serial }
    }

    /// Adds a policy.
    ///
    /// # Errors
    /// [`SpdError`]; then nothing has changed.
    pub fn insert(&mut self, position: Position, policy: Policy) -> Result<PolicyId, SpdError> {
        policy.check()?;
        let before = match position {
            Position::First => None,
            Position::Last => self.order.last(),
            Position::Before(id) => {
                self.get(id).map(|_| self.order.before(id.slot)).ok_or(SpdError::UnknownPolicy)?
            }
            Position::After(id) => self.get(id).map(|_| Some(id.slot)).ok_or(SpdError::UnknownPolicy)?,
        };
        if self.len() == MAX_POLICIES {
            return Err(SpdError::Full);
        }
        self.last_serial = self.last_serial.wrapping_add(1);
        let serial = self.last_serial;
        let interface = policy.interface;
        let slot = self.policies.insert(Installed { policy, serial });
        for moved in self.order.insert_after(before, slot) {
            self.leave(moved.slot, moved.before);
            self.enter(moved.slot);
        }
        self.enter(slot);
        self.update_scan(interface);
        Ok(self.name(slot, serial))
    }

    /// Removes a policy and returns it.
    ///
    /// # Errors
    /// [`SpdError::UnknownPolicy`].
    pub fn remove(&mut self, id: PolicyId) -> Result<Policy, SpdError> {
        self.get(id).ok_or(SpdError::UnknownPolicy)?;
        self.leave(id.slot, self.order.rank(id.slot));
        self.order.remove(id.slot);
        let removed = self.policies.remove(id.slot).ok_or(SpdError::UnknownPolicy)?.policy;
        self.update_scan(removed.interface);
        Ok(removed)
    }

    /// Puts another policy in the place of one, under the same name, and returns the one before.
    ///
    /// # Errors
    /// [`SpdError`]; then nothing has changed.
    pub fn replace(&mut self, id: PolicyId, policy: Policy) -> Result<Policy, SpdError> {
        policy.check()?;
        self.get(id).ok_or(SpdError::UnknownPolicy)?;
        self.leave(id.slot, self.order.rank(id.slot));
        let installed = self.policies.get_mut(id.slot).ok_or(SpdError::UnknownPolicy)?;
        let interface = policy.interface;
        let replaced = std::mem::replace(&mut installed.policy, policy);
        self.enter(id.slot);
        self.update_scan(interface);
        if replaced.interface != interface {
            self.update_scan(replaced.interface);
        }
        Ok(replaced)
    }

    /// Makes a change and returns the name of the policy that it is about. An SPD and its copy give new
    /// policies the same names as long as both have the same changes: who has a copy can make each change
    /// there first.
    ///
    /// # Errors
    /// [`SpdError`]; then nothing has changed.
    pub fn change(&mut self, change: PolicyChange) -> Result<PolicyId, SpdError> {
        match change {
            PolicyChange::Insert(position, policy) => self.insert(position, policy),
            PolicyChange::Replace(id, policy) => self.replace(id, policy).map(|_| id),
            PolicyChange::Remove(id) => self.remove(id).map(|_| id),
        }
    }

    fn lookups_mut(&mut self, interface: Interface) -> &mut Lookups {
        let Some(at) = usize::from(interface.0).checked_sub(1) else { return &mut self.main };
        if self.others.len() <= at {
            self.others.resize_with(at + 1, Lookups::default);
        }
        &mut self.others[at]
    }

    /// Enters a policy into the index at its rank.
    fn enter(&mut self, slot: u32) {
        let rank = self.order.rank(slot);
        self.populating += usize::from(self.populates_at(slot));
        let entries = self.entries(slot, rank);
        let lookups = self.lookups_mut(self.interface_at(slot));
        lookups.members.insert((rank, slot));
        entries.for_each(|(directions, pair, entry)| lookups.insert(directions, &pair, entry));
    }

    /// Removes a policy from the index, where it has this rank.
    fn leave(&mut self, slot: u32, rank: Rank) {
        self.populating -= usize::from(self.populates_at(slot));
        let entries = self.entries(slot, rank);
        let lookups = self.lookups_mut(self.interface_at(slot));
        lookups.members.remove(&(rank, slot));
        entries.for_each(|(directions, pair, entry)| lookups.remove(directions, &pair, &entry));
    }

    fn interface_at(&self, slot: u32) -> Interface {
        self.policies.get(slot).map_or(Interface::MAIN, |installed| installed.policy.interface)
    }

    fn populates_at(&self, slot: u32) -> bool {
        self.policies
            .get(slot)
            .is_some_and(|installed| matches!(installed.policy.action, Action::Populate(_)))
    }

    /// Whether a policy populates SAs from packets.
    #[inline]
    pub(crate) fn populates(&self) -> bool {
        self.populating > 0
    }

    fn entries(
        &self,
        slot: u32,
        rank: Rank,
    ) -> impl Iterator<Item = (Directions, PrefixPair, Entry)> + use<> {
        let policy = self.policies.get(slot).map(|installed| &installed.policy);
        let answer = policy.map_or(Answer::ASK, Answer::of);
        let pieces = policy.map(pieces).unwrap_or_default();
        pieces.into_iter().map(move |Piece { directions, pair, layer }| {
            let answer = if layer.is_any() { answer } else { Answer::ASK };
            (directions, pair, Entry { rank, policy: slot, layer, answer })
        })
    }

    /// Makes the list of an interface with few policies.
    fn update_scan(&mut self, interface: Interface) {
        let lookups = self.of(interface).lookups;
        let mut scan = Scan::default();
        if !lookups.is_indexed() {
            for &(rank, slot) in &lookups.members {
                if let Some(Installed { policy, .. }) = self.policies.get(slot) {
                    scan.push(slot, rank, policy);
                }
            }
        }
        self.lookups_mut(interface).scan = scan;
    }

    /// The policies of an interface, to be asked.
    #[must_use]
    #[inline(always)]
    pub fn of(&self, interface: Interface) -> OfInterface<'_> {
        let lookups =
            if interface == Interface::MAIN { &self.main } else { self.lookups_of_other(interface) };
        OfInterface { spd: self, lookups }
    }

    #[inline(never)]
    fn lookups_of_other(&self, interface: Interface) -> &Lookups {
        self.others.get(usize::from(interface.0).wrapping_sub(1)).unwrap_or(&self.none)
    }

    /// [`OfInterface::verdict`] of the main interface.
    #[must_use]
    #[inline(always)]
    pub fn verdict(&self, flow: &Flow) -> Verdict {
        self.of(Interface::MAIN).verdict(flow)
    }

    /// [`OfInterface::lookup`] of the main interface.
    #[must_use]
    pub fn lookup(&self, flow: &Flow) -> (Verdict, Option<PolicyId>) {
        self.of(Interface::MAIN).lookup(flow)
    }

    /// How its policies fit a flow, whatever they say: whether one selects it, or else one may.
    pub(super) fn fit(&self, flow: &Flow) -> Fit {
        match self.main.search(flow).result() {
            (Some(_), _) => Fit::Sure,
            (None, Some(_)) => Fit::Perhaps,
            (None, None) => Fit::No,
        }
    }

    /// What a lookup of `flow` at the main interface looks at.
    #[must_use]
    pub fn lookup_cost(&self, flow: &Flow) -> LookupCost {
        self.main.search(flow).cost
    }

    /// Whether lookups at the main interface use the index.
    #[must_use]
    pub fn is_indexed(&self) -> bool {
        self.main.is_indexed()
    }

    /// The verdict that follows from the policies found.
    ///
    /// Where a flow hides what an earlier policy asks for, a later policy that asks for OPAQUE still decides:
    /// the operator wants fragments treated apart (RFC 4301 7.2). It may protect or discard them. It never
    /// lets them pass in clear: their first fragment may be protected (7.4), and decides.
    pub(super) fn decide(&self, search: &Search<'_>) -> (Verdict, Option<PolicyId>) {
        let (sure, perhaps) = search.result();
        let policy = |slot| self.policies.get(slot).map(|installed| installed.policy.action);
        let Some(action) = sure.and_then(|sure| policy(sure.policy)) else {
            let verdict = if perhaps.is_some() { Verdict::FieldsHidden } else { Verdict::NoPolicy };
            return (verdict, perhaps.and_then(|hit| self.id_of(hit.policy)));
        };
        let is_opaque = search.flow.hides_fields() && sure.is_some_and(|sure| sure.names_opaque);
        let is_hidden = if is_opaque { action == Action::Bypass } else { perhaps.is_some() };
        let hit = if is_hidden { perhaps.or(sure) } else { sure };
        let verdict = if is_hidden { Verdict::FieldsHidden } else { Verdict::Policy(action) };
        (verdict, hit.and_then(|hit| self.id_of(hit.policy)))
    }
}

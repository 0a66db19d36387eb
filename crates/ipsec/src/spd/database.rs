//! The SPD: the policies, their order, and their index, changed one policy at a time.

use super::answer::Answer;
use super::flow::{Direction, Flow};
use super::index::{Index, first_answer_v4};
use super::leaf::Entry;
use super::order::{Order, Rank};
use super::pair::Pair;
use super::policy::{Action, Directions, Policy, PolicyChange, PolicyId, Position, SpdError, Verdict};
use super::scan::Scan;
use super::search::{LookupCost, Search};
use super::selector::{Fit, NextLayer, PrefixPair, Selector};
use super::slab::Slab;
use hashbrown::HashSet;

/// Policies at most: their ranks have to leave gaps.
pub const MAX_POLICIES: usize = 1 << 20;
/// Pairs of prefixes that the ranges of one policy may make, those of ports counted as well: two ranges of
/// IPv4 addresses make at most 62 times 62, two ranges of ports 30 times 30. They bound the time that a
/// change of one policy takes.
pub const MAX_PIECES: usize = 4096;
/// Pairs of prefixes at most of an SPD that is scanned.
const SCANNED: usize = 8;

/// The ordered policies.
///
/// Finding the first policy for a packet costs the more, the more different networks around the packet's
/// addresses policies name, one within the other; it does not depend on how many policies there are. The same
/// holds for a change of one policy, but for the order, where an insertion that finds no gap moves others.
#[derive(Debug, Clone, Default)]
pub struct Spd {
    policies: Slab<Installed>,
    order: Order,
    last_serial: u32,
    /// Pairs of prefixes of all policies.
    pieces: usize,
    /// Policies that populate SAs from packets.
    populating: usize,
    /// Policies for both directions.
    both: Index,
    outbound: Index,
    inbound: Index,
    /// All policies, as long as they are few. The index is kept then, too, but not asked.
    scan: Scan,
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

impl Policy {
    /// Whether an SPD takes it: whether it has no more parts than are allowed.
    ///
    /// # Errors
    /// [`SpdError::TooManyPieces`].
    pub fn check(&self) -> Result<(), SpdError> {
        let counts = self.selectors.iter().flat_map(|selector| {
            let pairs = selector.count_prefix_pairs();
            layers(selector, self.directions).map(move |(_, layer)| pairs * layer.count_prefixes())
        });
        if counts.sum::<usize>() > MAX_PIECES { Err(SpdError::TooManyPieces) } else { Ok(()) }
    }
}

impl Spd {
    /// An SPD of these policies, in this order.
    ///
    /// # Errors
    /// [`SpdError`] if one has too many ranges, or there are too many.
    pub fn new(policies: impl IntoIterator<Item = Policy>) -> Result<Self, SpdError> {
        let mut spd = Self::default();
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
        spd.update_scan();
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
            Some((PolicyId { slot, serial: *serial }, policy))
        })
    }

    /// A policy.
    #[must_use]
    pub fn get(&self, id: PolicyId) -> Option<&Policy> {
        let installed = self.policies.get(id.slot)?;
        (installed.serial == id.serial).then_some(&installed.policy)
    }

    /// Whether a policy comes before another one in the order; `false` if either is not there.
    #[must_use]
    pub fn is_before(&self, first: PolicyId, second: PolicyId) -> bool {
        let is_there = self.get(first).is_some() && self.get(second).is_some();
        is_there && self.order.rank(first.slot) < self.order.rank(second.slot)
    }

    fn id_of(&self, slot: u32) -> Option<PolicyId> {
        self.policies.get(slot).map(|installed| PolicyId { slot, serial: installed.serial })
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
        let slot = self.policies.insert(Installed { policy, serial });
        for moved in self.order.insert_after(before, slot) {
            self.leave(moved.slot, moved.before);
            self.enter(moved.slot);
        }
        self.enter(slot);
        self.update_scan();
        Ok(PolicyId { slot, serial })
    }

    /// Removes a policy and returns it.
    ///
    /// # Errors
    /// [`SpdError::UnknownPolicy`].
    pub fn remove(&mut self, id: PolicyId) -> Result<Policy, SpdError> {
        self.get(id).ok_or(SpdError::UnknownPolicy)?;
        self.leave(id.slot, self.order.rank(id.slot));
        self.order.remove(id.slot);
        let removed = self.policies.remove(id.slot).ok_or(SpdError::UnknownPolicy)?;
        self.update_scan();
        Ok(removed.policy)
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
        let replaced = std::mem::replace(&mut installed.policy, policy);
        self.enter(id.slot);
        self.update_scan();
        Ok(replaced)
    }

    /// Makes a change and returns the name of the policy that it is about. Two SPDs with the same content
    /// give new policies the same names: who has a copy can make each change there first.
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

    fn index_mut(&mut self, directions: Directions) -> &mut Index {
        match directions {
            Directions::Both => &mut self.both,
            Directions::Outbound => &mut self.outbound,
            Directions::Inbound => &mut self.inbound,
        }
    }

    /// Enters a policy into the index at its rank.
    fn enter(&mut self, slot: u32) {
        let rank = self.order.rank(slot);
        self.populating += usize::from(self.populates_at(slot));
        for (directions, pair, entry) in self.entries(slot, rank) {
            self.index_mut(directions).insert(&pair, entry);
            self.pieces += 1;
        }
    }

    /// Removes a policy from the index, where it has this rank.
    fn leave(&mut self, slot: u32, rank: Rank) {
        self.populating -= usize::from(self.populates_at(slot));
        for (directions, pair, entry) in self.entries(slot, rank) {
            self.index_mut(directions).remove(&pair, &entry);
            self.pieces -= 1;
        }
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

    /// Makes the list of a short SPD.
    fn update_scan(&mut self) {
        self.scan = Scan::default();
        if !self.is_indexed() {
            for slot in self.order.iter() {
                if let Some(Installed { policy, .. }) = self.policies.get(slot) {
                    self.scan.push(slot, self.order.rank(slot), policy);
                }
            }
        }
    }

    /// Whether lookups use the index, so that prefetching for them is worthwhile.
    #[must_use]
    #[inline]
    pub fn is_indexed(&self) -> bool {
        self.pieces > SCANNED
    }

    #[inline(always)]
    fn directed(&self, direction: Direction) -> &Index {
        match direction {
            Direction::Outbound => &self.outbound,
            Direction::Inbound => &self.inbound,
        }
    }

    /// Prefetches what a lookup will need for a flow between two IPv6 addresses.
    #[inline]
    pub(crate) fn prefetch_v6(&self, direction: Direction, local: u128, remote: u128) {
        self.both.prefetch_v6(local, remote);
        self.directed(direction).prefetch_v6(local, remote);
    }

    /// The same for IPv4.
    #[inline]
    pub(crate) fn prefetch_v4(&self, direction: Direction, pair: Pair) {
        self.both.prefetch_v4(pair);
        if !self.directed(direction).v4.is_empty() {
            self.directed(direction).prefetch_v4(pair);
        }
    }

    /// The verdict on a plain IPv4 packet between two addresses, if they decide.
    #[inline(always)]
    pub(crate) fn answer_v4(&self, direction: Direction, pair: Pair) -> Answer {
        for (prefix, answer) in self.scan.pairs(direction) {
            if prefix.contains(pair) {
                return *answer;
            }
        }
        if !self.is_indexed() {
            return Answer::NONE;
        }
        match direction {
            Direction::Outbound => self.answer_by_index_v4(&self.outbound, pair),
            Direction::Inbound => self.inbound_answer_by_index_v4(pair),
        }
    }

    /// Apart: the loop over decrypted packets, in which this would be, keeps more values in registers without
    /// it.
    #[inline(never)]
    fn inbound_answer_by_index_v4(&self, pair: Pair) -> Answer {
        self.answer_by_index_v4(&self.inbound, pair)
    }

    #[inline(always)]
    fn answer_by_index_v4(&self, directed: &Index, pair: Pair) -> Answer {
        // Gateways whose policies are all for both directions, with prefixes of the same lengths, are common.
        if directed.v4.is_empty()
            && let Some(answer) = self.both.v4.only_answer_v4(pair)
        {
            return answer;
        }
        first_answer_v4(&self.both, directed, pair)
    }

    /// The verdict on `flow`.
    #[must_use]
    #[inline(always)]
    pub fn verdict(&self, flow: &Flow) -> Verdict {
        if self.is_indexed() || flow.hides_fields() {
            return self.lookup(flow).0;
        }
        self.scan.action(flow).map_or(Verdict::NoPolicy, Verdict::Policy)
    }

    /// The verdict on `flow` and the policy that it is of. For a flow that hides fields, this may be a policy
    /// that only might select it: skipping that one could send in clear what it protects in the rest of the
    /// datagram (RFC 4301 7.4).
    #[must_use]
    pub fn lookup(&self, flow: &Flow) -> (Verdict, Option<PolicyId>) {
        self.decide(&self.search(flow))
    }

    /// How the policies fit a flow, whatever they say: whether one selects it, or else one may.
    pub(super) fn fit(&self, flow: &Flow) -> Fit {
        match self.search(flow).result() {
            (Some(_), _) => Fit::Sure,
            (None, Some(_)) => Fit::Perhaps,
            (None, None) => Fit::No,
        }
    }

    /// What a lookup of `flow` looks at.
    #[must_use]
    pub fn lookup_cost(&self, flow: &Flow) -> LookupCost {
        self.search(flow).cost
    }

    fn search<'f>(&self, flow: &'f Flow) -> Search<'f> {
        let mut search = Search::new(flow);
        if self.is_indexed() {
            self.both.search(&mut search);
            self.directed(flow.direction()).search(&mut search);
        } else {
            self.scan.search(&mut search);
        }
        search
    }

    /// The verdict that follows from the policies found.
    ///
    /// Where a flow hides what an earlier policy asks for, a later policy that asks for OPAQUE still decides:
    /// the operator wants fragments treated apart (RFC 4301 7.2). It may protect or discard them. It never
    /// lets them pass in clear: their first fragment may be protected (7.4), and decides.
    fn decide(&self, search: &Search<'_>) -> (Verdict, Option<PolicyId>) {
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

//! The policies of one IP version by their two prefixes (tuple space search, Srinivasan et al. 1999).
//!
//! One hash table holds all policies whose prefixes have the same two lengths, a *tuple*. Most SPDs have few
//! tuples, and a lookup searches them all, in the order of their first policies, until none can hold an
//! earlier one than it has found. Where there are many tuples, two tries ([`lengths`](super::lengths)) tell
//! which lengths the prefixes have that hold the packet's addresses at all, and only tuples of such lengths
//! are searched (tuple pruning, in the same paper). So a lookup costs at most a table for each pair of a
//! local and a remote prefix that hold the addresses, and never more tables than there are.

use super::addresses::{Prefix, mask, width};
use super::answer::Answer;
use super::leaf::{Entry, Leaf};
use super::lengths::PrefixLengths;
use super::order::{LAST, Rank};
use super::pair::Pair;
use super::search::Search;
use super::selector::PrefixPair;
use super::slab::Slab;
use super::table::{Slot, Table};
use super::trie::Bits;
use arrayvec::ArrayVec;
use std::collections::BTreeSet;
use testudo_wire::ip::Version;

/// Up to this many tuples are all searched: more are pruned first.
const SEARCHED: usize = 8;
/// Tuples that are prefetched; most SPDs have one or two.
const PREFETCHED: usize = 4;
/// No tuple.
const NONE: u32 = u32::MAX;

/// The policies of one IP version and of certain directions.
#[derive(Debug, Clone)]
pub(super) struct Space {
    version: Version,
    tuples: Vec<Tuple>,
    /// Indices of up to [`SEARCHED`] tuples in the order of their first policies; empty if there are more.
    order: ArrayVec<u32, SEARCHED>,
    /// The tuple of each pair of lengths.
    directory: Box<[u32]>,
    /// The pairs of prefixes, to prune many tuples.
    lengths: PrefixLengths,
    leaves: Slab<Leaf>,
}

/// The policies whose prefixes have two lengths.
#[derive(Debug, Clone)]
struct Tuple {
    /// The rank of the first of its policies.
    first: Rank,
    /// Both masks of IPv4.
    pair_mask: u64,
    table: Table,
    local_mask: u128,
    remote_mask: u128,
    lengths: (u8, u8),
    /// The rank of the first policy of each leaf, and the leaf.
    ranks: BTreeSet<(Rank, u32)>,
}

/// A 64-bit key of two masked addresses: lossless for IPv4, a hash for others.
#[inline]
fn key(version: Version, local: u128, remote: u128) -> u64 {
    if version == Version::V4 {
        return Pair::new(local, remote).0;
    }
    let low_64 = |n: u128| u64::try_from(n & u128::from(u64::MAX)).unwrap_or(0);
    [low_64(local >> 64), low_64(local), low_64(remote >> 64), low_64(remote)]
        .into_iter()
        .fold(0, |hash: u64, word| (hash.rotate_left(23) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

impl Space {
    pub(super) fn new(version: Version) -> Self {
        Self {
            version,
            tuples: Vec::new(),
            order: ArrayVec::new(),
            directory: Box::default(),
            lengths: PrefixLengths::default(),
            leaves: Slab::default(),
        }
    }

    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.tuples.is_empty()
    }

    /// An address's bits from the highest of 128 on, as tries have them.
    fn aligned(&self, address: u128) -> u128 {
        address << (128 - u32::from(width(self.version)))
    }

    fn place_of(&self, local: u8, remote: u8) -> usize {
        usize::from(local) * (usize::from(width(self.version)) + 1) + usize::from(remote)
    }

    fn tuple_of(&self, lengths: (u8, u8)) -> Option<usize> {
        let tuple = *self.directory.get(self.place_of(lengths.0, lengths.1))?;
        usize::try_from(tuple).ok().filter(|_| tuple != NONE)
    }

    /// Prefetches what a lookup will need.
    #[inline]
    pub(super) fn prefetch(&self, local: u128, remote: u128) {
        for at in self.order.iter().take(PREFETCHED) {
            if let Some(tuple) = self.tuples.get(*at as usize) {
                tuple.table.prefetch(key(self.version, local & tuple.local_mask, remote & tuple.remote_mask));
            }
        }
    }

    /// The same for two IPv4 addresses.
    #[inline]
    pub(super) fn prefetch_v4(&self, pair: Pair) {
        if let [tuple] = self.tuples.as_slice() {
            return tuple.table.prefetch(pair.0 & tuple.pair_mask);
        }
        for at in self.order.iter().take(PREFETCHED) {
            if let Some(tuple) = self.tuples.get(*at as usize) {
                tuple.table.prefetch(pair.0 & tuple.pair_mask);
            }
        }
    }

    /// For a space of IPv4 with one tuple, which is common, the answer for two addresses; `None` if there are
    /// more, or if the table is growing and may have it elsewhere.
    #[inline(always)]
    pub(super) fn only_answer_v4(&self, pair: Pair) -> Option<Answer> {
        let [tuple] = self.tuples.as_slice() else { return None };
        match tuple.table.get_settled(pair.0 & tuple.pair_mask) {
            Some(slot) => Some(slot.answer),
            None => (!tuple.table.is_growing()).then_some(Answer::NONE),
        }
    }

    /// The slot of the first policy for two IPv4 addresses that comes before `first`, or `first`.
    pub(super) fn first_slot_v4(&self, pair: Pair, mut first: Option<Slot>) -> Option<Slot> {
        let is_earlier = |rank: Rank, first: &Option<Slot>| first.is_none_or(|first| rank < first.rank);
        self.visit_tuples(
            (pair.0 >> 32).into(),
            (pair.0 & 0xFFFF_FFFF).into(),
            |tuple| {
                if !is_earlier(tuple.first, &first) {
                    return false;
                }
                let slot = tuple.table.get(pair.0 & tuple.pair_mask);
                first = slot.filter(|slot| is_earlier(slot.rank, &first)).or(first);
                true
            },
            &mut 0,
        );
        first
    }

    /// Notes the first policies that fit.
    pub(super) fn search(&self, search: &mut Search<'_>) {
        let (local, remote) = (search.flow.local(), search.flow.remote());
        let mut nodes = 0;
        self.visit_tuples(
            local,
            remote,
            |tuple| {
                if tuple.first >= search.limit() {
                    return false;
                }
                search.cost.tables += 1;
                self.search_tuple(tuple, local & tuple.local_mask, remote & tuple.remote_mask, search);
                true
            },
            &mut nodes,
        );
        search.cost.nodes += nodes;
    }

    #[inline]
    fn search_tuple(&self, tuple: &Tuple, local: u128, remote: u128, search: &mut Search<'_>) {
        let Some(slot) = self.slot(tuple, local, remote) else { return };
        if slot.rank >= search.limit() {
            return;
        }
        if let Some(leaf) = self.leaves.get(slot.leaf) {
            leaf.search(search);
        }
    }

    /// The slot of two networks.
    #[inline]
    fn slot(&self, tuple: &Tuple, local: u128, remote: u128) -> Option<Slot> {
        let is_same = |leaf| self.leaves.get(leaf).is_some_and(|leaf| leaf.networks == (local, remote));
        // Keys of IPv6 are hashes.
        tuple
            .table
            .find(key(self.version, local, remote), |leaf| self.version == Version::V4 || is_same(leaf))
    }

    /// Calls `visit` for each tuple that may hold prefixes of both addresses. If they are in the order of
    /// their first policies, `false` ends it.
    #[inline]
    fn visit_tuples(
        &self,
        local: u128,
        remote: u128,
        mut visit: impl FnMut(&Tuple) -> bool,
        nodes: &mut u32,
    ) {
        if self.tuples.len() <= SEARCHED {
            let mut in_order = self.order.iter().filter_map(|at| self.tuples.get(*at as usize));
            in_order.all(&mut visit);
            return;
        }
        let visited = self.lengths.visit(self.aligned(local), self.aligned(remote), |local, remote| {
            if let Some(tuple) = self.tuple_of((local, remote)).and_then(|at| self.tuples.get(at)) {
                visit(tuple);
            }
        });
        *nodes = u32::try_from(visited).unwrap_or(u32::MAX);
    }

    /// Adds a policy for addresses with two prefixes.
    pub(super) fn insert(&mut self, pair: &PrefixPair, entry: Entry) {
        let at = self.tuple_or_new(pair);
        let networks = (pair.local.bits(), pair.remote.bits());
        let slot = self.slot(&self.tuples[at], networks.0, networks.1);
        let number = slot.map_or_else(|| self.leaves.insert(Leaf::new(networks)), |slot| slot.leaf);
        if slot.is_none() {
            self.lengths.insert(pair.local.trie_bits(), pair.remote.trie_bits());
        }
        let Some(leaf) = self.leaves.get_mut(number) else { return };
        leaf.insert(entry);
        self.note_first(at, number, slot);
    }

    /// Removes what [`insert`](Self::insert) has added.
    pub(super) fn remove(&mut self, pair: &PrefixPair, entry: &Entry) {
        let Some(at) = self.tuple_of((pair.local.length(), pair.remote.length())) else { return };
        let networks = (pair.local.bits(), pair.remote.bits());
        let Some(slot) = self.slot(&self.tuples[at], networks.0, networks.1) else { return };
        let Some(leaf) = self.leaves.get_mut(slot.leaf) else { return };
        leaf.remove(entry);
        if leaf.first().is_some() {
            return self.note_first(at, slot.leaf, Some(slot));
        }
        self.leaves.remove(slot.leaf);
        self.lengths.remove(pair.local.trie_bits(), pair.remote.trie_bits());
        let tuple = &mut self.tuples[at];
        tuple.table.remove(key(self.version, networks.0, networks.1), slot.leaf);
        tuple.note_rank(Some((slot.rank, slot.leaf)), None);
        if tuple.ranks.is_empty() {
            self.remove_tuple(at);
        }
        self.sort_tuples();
    }

    /// Updates the slot of a leaf, and the order of tuples.
    fn note_first(&mut self, at: usize, number: u32, before: Option<Slot>) {
        let Some(leaf) = self.leaves.get(number) else { return };
        let Some(Entry { rank, answer, .. }) = leaf.first() else { return };
        let slot = Slot { rank, answer, leaf: number };
        if before == Some(slot) {
            return;
        }
        let key = key(self.version, leaf.networks.0, leaf.networks.1);
        self.tuples[at].table.set(key, slot);
        self.tuples[at].note_rank(before.map(|slot| (slot.rank, number)), Some((rank, number)));
        self.sort_tuples();
    }

    fn tuple_or_new(&mut self, pair: &PrefixPair) -> usize {
        let lengths = (pair.local.length(), pair.remote.length());
        if let Some(at) = self.tuple_of(lengths) {
            return at;
        }
        if self.directory.is_empty() {
            self.directory = vec![NONE; (usize::from(width(self.version)) + 1).pow(2)].into();
        }
        let at = self.tuples.len();
        let place = self.place_of(lengths.0, lengths.1);
        self.directory[place] = u32::try_from(at).unwrap_or(NONE);
        let masks = (mask(self.version, lengths.0), mask(self.version, lengths.1));
        self.tuples.push(Tuple {
            first: LAST,
            pair_mask: Pair::new(masks.0, masks.1).0,
            table: Table::default(),
            local_mask: masks.0,
            remote_mask: masks.1,
            lengths,
            ranks: BTreeSet::new(),
        });
        at
    }

    /// Removes a tuple; the last one takes its place.
    fn remove_tuple(&mut self, at: usize) {
        let gone = self.tuples.swap_remove(at).lengths;
        let place = self.place_of(gone.0, gone.1);
        self.directory[place] = NONE;
        if let Some(lengths) = self.tuples.get(at).map(|moved| moved.lengths) {
            let place = self.place_of(lengths.0, lengths.1);
            self.directory[place] = u32::try_from(at).unwrap_or(NONE);
        }
    }

    /// Puts the tuples in order, if there are few.
    fn sort_tuples(&mut self) {
        self.order.clear();
        if self.tuples.len() <= SEARCHED {
            self.order.extend((0..).take(self.tuples.len()));
            let tuples = &self.tuples;
            self.order.sort_unstable_by_key(|at| tuples[*at as usize].first);
        }
    }
}

impl Tuple {
    /// Notes the first rank of a leaf, in place of the one before.
    fn note_rank(&mut self, before: Option<(Rank, u32)>, now: Option<(Rank, u32)>) {
        if let Some(before) = before {
            self.ranks.remove(&before);
        }
        self.ranks.extend(now);
        self.first = self.ranks.first().map_or(LAST, |(rank, _)| *rank);
    }
}

impl Prefix {
    /// The prefix as tries have it.
    fn trie_bits(&self) -> Bits {
        let unused = self.version().map_or(0, |version| 128 - u32::from(width(version)));
        Bits { bits: self.bits().checked_shl(unused).unwrap_or_default(), length: self.length() }
    }
}

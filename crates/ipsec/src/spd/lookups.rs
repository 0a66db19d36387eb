//! How the policies of one interface are found: by an index, or, where they are few, in a list.

use super::answer::Answer;
use super::database::Spd;
use super::flow::{Direction, Flow};
use super::index::{Index, first_answer_v4};
use super::leaf::Entry;
use super::order::Rank;
use super::pair::Pair;
use super::policy::{Directions, PolicyId, Verdict};
use super::scan::Scan;
use super::search::Search;
use super::selector::PrefixPair;
use std::collections::BTreeSet;

/// Pairs of prefixes at most of policies that are scanned.
const SCANNED: usize = 8;

/// The policies of one interface, as lookups see them.
#[derive(Debug, Clone, Default)]
pub(super) struct Lookups {
    /// Pairs of prefixes of all of them.
    pieces: usize,
    /// Policies for both directions.
    both: Index,
    outbound: Index,
    inbound: Index,
    /// All of them, as long as they are few. The index is kept then, too, but not asked.
    pub(super) scan: Scan,
    /// The ranks and slots of all of them, so that the list is made without looking at those of others.
    pub(super) members: BTreeSet<(Rank, u32)>,
}

impl Lookups {
    /// Enters a part of a policy.
    pub(super) fn insert(&mut self, directions: Directions, pair: &PrefixPair, entry: Entry) {
        self.index_mut(directions).insert(pair, entry);
        self.pieces += 1;
    }

    /// Removes a part of a policy.
    pub(super) fn remove(&mut self, directions: Directions, pair: &PrefixPair, entry: &Entry) {
        self.index_mut(directions).remove(pair, entry);
        self.pieces -= 1;
    }

    fn index_mut(&mut self, directions: Directions) -> &mut Index {
        match directions {
            Directions::Both => &mut self.both,
            Directions::Outbound => &mut self.outbound,
            Directions::Inbound => &mut self.inbound,
        }
    }

    /// Whether lookups use the index, and not the list.
    #[inline]
    pub(super) fn is_indexed(&self) -> bool {
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
    pub(super) fn prefetch_v6(&self, direction: Direction, local: u128, remote: u128) {
        self.both.prefetch_v6(local, remote);
        self.directed(direction).prefetch_v6(local, remote);
    }

    /// The same for IPv4.
    #[inline]
    pub(super) fn prefetch_v4(&self, direction: Direction, pair: Pair) {
        self.both.prefetch_v4(pair);
        if !self.directed(direction).v4.is_empty() {
            self.directed(direction).prefetch_v4(pair);
        }
    }

    /// The verdict on a plain IPv4 packet between two addresses, if they decide.
    #[inline(always)]
    pub(super) fn answer_v4(&self, direction: Direction, pair: Pair) -> Answer {
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

    /// The first policies that fit a flow.
    pub(super) fn search<'f>(&self, flow: &'f Flow) -> Search<'f> {
        let mut search = Search::new(flow);
        if self.is_indexed() {
            self.both.search(&mut search);
            self.directed(flow.direction()).search(&mut search);
        } else {
            self.scan.search(&mut search);
        }
        search
    }
}

/// The policies of one interface: what its packets are looked up in.
#[derive(Debug, Clone, Copy)]
pub struct OfInterface<'s> {
    pub(super) spd: &'s Spd,
    pub(super) lookups: &'s Lookups,
}

impl OfInterface<'_> {
    /// The verdict on `flow`.
    #[must_use]
    #[inline(always)]
    pub fn verdict(&self, flow: &Flow) -> Verdict {
        if self.lookups.is_indexed() || flow.hides_fields() {
            return self.lookup(flow).0;
        }
        self.lookups.scan.action(flow).map_or(Verdict::NoPolicy, Verdict::Policy)
    }

    /// The verdict on `flow` and the policy that it is of. For a flow that hides fields, this may be a policy
    /// that only might select it: skipping that one could send in clear what it protects in the rest of the
    /// datagram (RFC 4301 7.4).
    #[must_use]
    pub fn lookup(&self, flow: &Flow) -> (Verdict, Option<PolicyId>) {
        self.spd.decide(&self.lookups.search(flow))
    }

    /// Whether lookups use the index, so that prefetching for them is worthwhile.
    #[inline]
    pub(crate) fn is_indexed(&self) -> bool {
        self.lookups.is_indexed()
    }

    /// Prefetches what a lookup will need for a flow between two IPv6 addresses.
    #[inline]
    pub(crate) fn prefetch_v6(&self, direction: Direction, local: u128, remote: u128) {
        self.lookups.prefetch_v6(direction, local, remote);
    }

    /// The same for IPv4.
    #[inline]
    pub(crate) fn prefetch_v4(&self, direction: Direction, pair: Pair) {
        self.lookups.prefetch_v4(direction, pair);
    }

    /// The verdict on a plain IPv4 packet between two addresses, if they decide.
    #[inline(always)]
    pub(crate) fn answer_v4(&self, direction: Direction, pair: Pair) -> Answer {
        self.lookups.answer_v4(direction, pair)
    }
}

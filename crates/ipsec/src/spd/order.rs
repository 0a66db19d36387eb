//! The order of the policies, as numbers that grow along it.
//!
//! The index compares policies by their ranks, so that finding the first of some needs no walk along the
//! list. Ranks have gaps. A policy that is put between two others gets the number in the middle of their gap;
//! where there is none, the policies around are spread over the smallest aligned range of ranks that is not
//! yet too full (Bender et al. 2002, *Two Simplified Algorithms for Maintaining Order in a List*). An
//! insertion then changes the ranks of about the logarithm of all policies on average, wherever it takes
//! place; a single one may change all of them.

use std::ops::Range;

/// A position in the order: greater than those of all policies before.
pub(super) type Rank = u32;

/// No policy has this rank: it is after all others.
pub(super) const LAST: Rank = Rank::MAX;

/// What is put last is so far behind the one before, if there is room: in half of the gap, of which nothing
/// is behind, ranks would run out after 31 of them. All policies that an SPD holds have room in this way.
const STEP: Rank = 1 << 10;

/// No policy.
const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, Default)]
struct Link {
    rank: Rank,
    before: u32,
    after: u32,
}

/// A slot whose rank has changed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moved {
    pub(super) slot: u32,
    pub(super) before: Rank,
    now: Rank,
}

/// A list of numbers (slots of policies), in order.
#[derive(Debug, Clone)]
pub(super) struct Order {
    /// By slot.
    links: Vec<Link>,
    first: u32,
    last: u32,
    len: usize,
}

impl Default for Order {
    fn default() -> Self {
        Self { links: Vec::new(), first: NONE, last: NONE, len: 0 }
    }
}

/// How many entries an aligned range of 2^`bits` ranks may have after they are spread: fewer in proportion
/// the larger it is, so that room remains within. 1.6^`bits`, which for all ranks is more than the SPD holds.
fn capacity(bits: u32) -> u64 {
    (0..bits).fold(16, |capacity, _| capacity * 8 / 5) / 16
}

impl Order {
    /// The slot's rank.
    pub(super) fn rank(&self, slot: u32) -> Rank {
        self.link(slot).map_or(LAST, |link| link.rank)
    }

    fn link(&self, slot: u32) -> Option<&Link> {
        self.links.get(slot as usize)
    }

    /// The slots, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.from(self.first)
    }

    fn from(&self, slot: u32) -> impl Iterator<Item = u32> + '_ {
        std::iter::successors(Some(slot), |at| self.link(*at).map(|link| link.after))
            .take_while(|at| *at != NONE)
    }

    /// The last slot, if there is one.
    pub(super) fn last(&self) -> Option<u32> {
        Some(self.last).filter(|last| *last != NONE)
    }

    /// The slot before another one.
    pub(super) fn before(&self, slot: u32) -> Option<u32> {
        self.link(slot).map(|link| link.before).filter(|before| *before != NONE)
    }

    /// Puts slots that are new in this order, evenly spread. To be called on an empty list.
    pub(super) fn fill(&mut self, slots: Range<u32>) {
        let step = LAST / (u32::try_from(slots.len()).unwrap_or(LAST - 1) + 1);
        let mut rank = 0;
        for slot in slots {
            rank += step;
            self.attach(self.last, slot, rank);
        }
    }

    /// Puts a new slot after another one, or first. Returns the slots whose ranks have changed.
    pub(super) fn insert_after(&mut self, before: Option<u32>, slot: u32) -> Vec<Moved> {
        let before = before.unwrap_or(NONE);
        let moved = if self.gap_after(before) < 2 { self.spread(before) } else { Vec::new() };
        let low = if before == NONE { 0 } else { self.rank(before) };
        let half = self.gap_after(before) / 2;
        let rank = low + if before != NONE && before == self.last { half.min(STEP) } else { half };
        self.attach(before, slot, rank);
        moved
    }

    /// The difference between the ranks of a slot and of the next one.
    fn gap_after(&self, slot: u32) -> Rank {
        let (rank, after) = match self.link(slot) {
            Some(link) => (link.rank, link.after),
            None => (0, self.first),
        };
        self.rank(after) - rank
    }

    fn attach(&mut self, before: u32, slot: u32, rank: Rank) {
        let after = self.link(before).map_or(self.first, |link| link.after);
        if self.links.len() <= slot as usize {
            self.links.resize(slot as usize + 1, Link::default());
        }
        self.links[slot as usize] = Link { rank, before, after };
        self.set_after(before, slot);
        self.set_before(after, slot);
        self.len += 1;
    }

    fn set_after(&mut self, slot: u32, after: u32) {
        match self.links.get_mut(slot as usize) {
            Some(link) => link.after = after,
            None => self.first = after,
        }
    }

    fn set_before(&mut self, slot: u32, before: u32) {
        match self.links.get_mut(slot as usize) {
            Some(link) => link.before = before,
            None => self.last = before,
        }
    }

    /// Takes a slot out.
    pub(super) fn remove(&mut self, slot: u32) {
        let Some(&Link { before, after, .. }) = self.link(slot) else { return };
        self.set_after(before, after);
        self.set_before(after, before);
        self.len -= 1;
    }

    /// Makes room after a slot.
    fn spread(&mut self, slot: u32) -> Vec<Moved> {
        // Without a slot before, room is made before the first one.
        let around = if slot == NONE { self.first } else { slot };
        let rank = self.rank(around);
        let (mut first, mut end) = (around, self.link(around).map_or(NONE, |link| link.after));
        let mut count = 1;
        for bits in 2..=Rank::BITS {
            let low = if bits == Rank::BITS { 0 } else { rank >> bits << bits };
            let high = low + (Rank::MAX >> (Rank::BITS - bits));
            while let Some(before) = self.before(first).filter(|before| self.rank(*before) >= low) {
                (first, count) = (before, count + 1);
            }
            while end != NONE && self.rank(end) <= high {
                (end, count) = (self.link(end).map_or(NONE, |link| link.after), count + 1);
            }
            let leaves_gaps = count < u64::from((high - low) / 2);
            if count < capacity(bits) && leaves_gaps || bits == Rank::BITS {
                return self.spread_over(low, high, first, count);
            }
        }
        Vec::new()
    }

    /// Spreads `count` slots from `first` on over the ranks from `low` to `high`.
    fn spread_over(&mut self, low: Rank, high: Rank, first: u32, count: u64) -> Vec<Moved> {
        let count = u32::try_from(count).unwrap_or(LAST - 1);
        let step = (high - low) / (count + 1);
        let slots = self.from(first).zip(1..=count);
        let mut moved: Vec<Moved> =
            slots.map(|(slot, n)| Moved { slot, before: self.rank(slot), now: low + n * step }).collect();
        moved.retain(|moved| moved.before != moved.now);
        for Moved { slot, now, .. } in &moved {
            self.links[*slot as usize].rank = *now;
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Ranks as the list's user knows them.
    struct Model {
        order: Order,
        ranks: Vec<Rank>,
        moved: usize,
    }

    impl Model {
        fn insert_after(&mut self, before: Option<u32>, slot: u32) {
            let moved = self.order.insert_after(before, slot);
            self.moved += moved.len();
            for Moved { slot, before, now } in moved {
                assert_eq!(std::mem::replace(&mut self.ranks[slot as usize], now), before);
            }
            self.ranks.resize(self.ranks.len().max(slot as usize + 1), LAST);
            self.ranks[slot as usize] = self.order.rank(slot);
        }

        fn assert_order(&self, expected: &[u32]) {
            assert_eq!(self.order.iter().collect::<Vec<_>>(), expected);
            let ranks: Vec<Rank> = expected.iter().map(|slot| self.ranks[*slot as usize]).collect();
            assert!(ranks.is_sorted_by(|a, b| a < b), "{ranks:?}");
            assert!(ranks.iter().all(|rank| (1..LAST).contains(rank)));
            assert_eq!(self.order.last(), expected.last().copied());
        }
    }

    fn model() -> Model {
        Model { order: Order::default(), ranks: Vec::new(), moved: 0 }
    }

    proptest! {
        #[test]
        fn ranks_grow_along_the_list_after_any_changes(
            filled in 0..50u32,
            changes in prop::collection::vec((0..4u8, any::<u16>()), 0..300),
        ) {
            let mut model = model();
            model.order.fill(0..filled);
            model.ranks = (0..filled).map(|slot| model.order.rank(slot)).collect();
            let mut list: Vec<u32> = (0..filled).collect();
            let mut free: Vec<u32> = Vec::new();
            for (kind, at) in changes {
                let at = usize::from(at) % (list.len() + 1);
                if kind == 0 && at < list.len() {
                    let slot = list.remove(at);
                    model.order.remove(slot);
                    free.push(slot);
                } else {
                    let slot = free.pop().unwrap_or(list.len() as u32);
                    model.insert_after(at.checked_sub(1).map(|before| list[before]), slot);
                    list.insert(at, slot);
                }
                model.assert_order(&list);
            }
        }
    }

    /// The places that use a gap up fastest: always first, always before the same entry, always after it,
    /// always last, and always in the middle of what was inserted last.
    #[test]
    fn an_insertion_moves_few_others_on_average_wherever_it_is() {
        const ENTRIES: u32 = 20_000;
        for place in 0..5 {
            let mut model = model();
            model.order.fill(0..100);
            model.ranks = (0..100).map(|slot| model.order.rank(slot)).collect();
            let (mut last, mut other) = (50, 51);
            for slot in 100..ENTRIES {
                let before = match place {
                    0 => None,
                    1 => model.order.before(50),
                    2 => Some(50),
                    3 => model.order.last(),
                    _ => Some(last.min(other)),
                };
                model.insert_after(before, slot);
                (last, other) = (slot, last);
            }
            let list: Vec<u32> = model.order.iter().collect();
            assert_eq!(list.len(), ENTRIES as usize);
            model.assert_order(&list);
            let average = model.moved / ENTRIES as usize;
            assert!(average < 40, "place {place}: {average} entries moved at an insertion");
        }
    }

    /// An SPD that grows at its end moves nothing until ranks run out, and little when they have: those who
    /// come and go there climb to the highest rank.
    #[test]
    fn what_is_put_last_moves_nothing_while_there_are_ranks_and_little_after() {
        let mut grows = model();
        for slot in 0..100_000 {
            grows.insert_after(grows.order.last(), slot);
        }
        assert_eq!(grows.moved, 0);
        grows.assert_order(&(0..100_000).collect::<Vec<u32>>());
        const LIVE: u32 = 100;
        const ROUNDS: u32 = 300_000;
        let mut climbs = model();
        climbs.order.fill(0..LIVE);
        climbs.ranks = (0..LIVE).map(|slot| climbs.order.rank(slot)).collect();
        for round in 0..ROUNDS {
            let slot = round % LIVE;
            climbs.order.remove(slot);
            climbs.insert_after(climbs.order.last(), slot);
        }
        climbs.assert_order(&(0..LIVE).collect::<Vec<u32>>());
        assert!(climbs.moved > 0, "ranks have run out");
        let average = climbs.moved / ROUNDS as usize;
        assert!(average < 20, "{average} entries moved at an insertion");
    }

    #[test]
    fn all_ranks_together_hold_more_than_a_million_entries() {
        assert!(capacity(Rank::BITS) > 1 << 20);
        assert!((4..=Rank::BITS).all(|bits| 2 * (capacity(bits) + 1) <= 1 << bits));
    }
}

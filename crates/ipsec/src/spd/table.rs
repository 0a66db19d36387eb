//! A hash table of the SPD's index: the policies whose prefixes have the same lengths, by these prefixes.

use super::answer::Answer;
use super::order::Rank;
use testudo_packet::prefetch;

const SMALLEST: usize = 16;
/// Slots of an outgrown table that each insertion moves: it is empty long before its successor is half full.
const MOVED_AT_A_TIME: usize = 64;
/// Fibonacci hashing: the high bits of the product are well spread even for neighbouring networks.
const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

/// A slot that was found: what the policies with two prefixes have to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot {
    /// The rank of the first of them.
    pub(super) rank: Rank,
    /// Its action, if it asks for nothing but addresses.
    pub(super) answer: Answer,
    /// The number of the [`Leaf`](super::leaf::Leaf) that holds them all.
    pub(super) leaf: u32,
}

impl Slot {
    /// What a packet compares, in a number that is 0 for no slot, since ranks begin with 1.
    fn meta(self) -> u64 {
        u64::from(self.rank) << 32 | u64::from(self.answer.to_bits())
    }

    #[inline(always)]
    fn new(meta: u64, leaf: u32) -> Self {
        let half = |n: u64| u32::try_from(n & 0xFFFF_FFFF).unwrap_or_default();
        Self { rank: half(meta >> 32), answer: Answer::from_bits(half(meta)), leaf }
    }
}

/// A removed slot of an outgrown table.
const REMOVED: u64 = u64::MAX;

/// Open addressing with linear probing, at most half full. Only the operator's policies are in it, so no
/// arriving packet can make it slow. Several entries may have the same key, where keys are hashes.
///
/// It grows a few slots with each insertion, so that no packet waits while a hundred thousand entries move:
/// until all have moved, lookups that find nothing also search the outgrown table.
#[derive(Debug, Clone)]
pub(super) struct Table {
    slots: Slots,
    outgrown: Option<Box<Outgrown>>,
    used: usize,
}

/// A power of two of slots.
#[derive(Debug, Clone)]
struct Slots {
    /// Key, then rank and answer: all that a packet needs where addresses decide, four to a cache line. The
    /// second is 0 in a free slot. Plain numbers, because the system provides zeroed memory of any size at
    /// once.
    entries: Box<[[u64; 2]]>,
    leaves: Box<[u32]>,
    /// Bits of a hash that do not count.
    shift: u32,
}

/// The table before it grew. Its slots stay in place: those of removed leaves are struck out.
#[derive(Debug, Clone)]
struct Outgrown {
    slots: Slots,
    /// Slots below this one have moved.
    moved: usize,
}

impl Default for Table {
    fn default() -> Self {
        Self { slots: Slots::free(SMALLEST), outgrown: None, used: 0 }
    }
}

impl Slots {
    fn free(slots: usize) -> Self {
        let shift = u64::BITS - slots.trailing_zeros();
        Self { entries: vec![[0; 2]; slots].into(), leaves: vec![0; slots].into(), shift }
    }

    #[inline(always)]
    fn mask(&self) -> usize {
        self.entries.len() - 1
    }

    #[inline(always)]
    fn home(&self, key: u64) -> usize {
        usize::try_from(key.wrapping_mul(MULTIPLIER) >> (self.shift & 63)).unwrap_or(0)
    }

    /// The place of an entry with this key whose leaf is wanted.
    #[inline(always)]
    fn find(&self, key: u64, is_wanted: impl Fn(u32) -> bool) -> Option<usize> {
        let mut at = self.home(key);
        loop {
            let place = at & self.mask();
            let [found, meta] = *self.entries.get(place)?;
            if meta == 0 {
                return None;
            }
            if found == key && is_wanted(self.leaf(place)) {
                return Some(place);
            }
            at += 1;
        }
    }

    /// The leaf of a slot. Without a panic for what cannot be, it costs nothing where nobody asks for it.
    #[inline(always)]
    fn leaf(&self, place: usize) -> u32 {
        self.leaves.get(place).copied().unwrap_or(u32::MAX)
    }

    #[inline(always)]
    fn slot(&self, place: usize) -> Slot {
        Slot::new(self.entries.get(place).map_or(0, |entry| entry[1]), self.leaf(place))
    }

    /// Puts an entry in a free slot.
    fn put(&mut self, key: u64, slot: Slot) {
        let mut at = self.home(key);
        while self.entries[at & self.mask()][1] != 0 {
            at += 1;
        }
        let place = at & self.mask();
        (self.entries[place], self.leaves[place]) = ([key, slot.meta()], slot.leaf);
    }

    /// Frees a slot.
    fn close(&mut self, mut hole: usize) {
        let mask = self.mask();
        // Later entries move up, unless they would then come before their home (Knuth, volume 3, 6.4,
        // algorithm R).
        let mut next = hole;
        loop {
            next = (next + 1) & mask;
            let [key, meta] = self.entries[next];
            if meta == 0 {
                break;
            }
            let from_home = next.wrapping_sub(self.home(key)) & mask;
            if from_home >= next.wrapping_sub(hole) & mask {
                (self.entries[hole], self.leaves[hole]) = (self.entries[next], self.leaves[next]);
                hole = next;
            }
        }
        self.entries[hole][1] = 0;
    }
}

impl Table {
    /// The slot with this key whose leaf is wanted: keys may be hashes.
    #[inline(always)]
    pub(super) fn find(&self, key: u64, is_wanted: impl Fn(u32) -> bool) -> Option<Slot> {
        match self.slots.find(key, &is_wanted) {
            Some(place) => Some(self.slots.slot(place)),
            None => self.outgrown.as_ref().and_then(|outgrown| outgrown.find(key, is_wanted)),
        }
    }

    /// The slot with this key, where each key is of one leaf.
    #[inline(always)]
    pub(super) fn get(&self, key: u64) -> Option<Slot> {
        self.find(key, |_| true)
    }

    /// The same, of those slots that are not in an outgrown table.
    #[inline(always)]
    pub(super) fn get_settled(&self, key: u64) -> Option<Slot> {
        self.slots.find(key, |_| true).map(|place| self.slots.slot(place))
    }

    /// Whether some slots may be in an outgrown table.
    #[inline(always)]
    pub(super) fn is_growing(&self) -> bool {
        self.outgrown.is_some()
    }

    /// Prefetches the slot of a lookup.
    #[inline(always)]
    pub(super) fn prefetch(&self, key: u64) {
        if let Some(entry) = self.slots.entries.get(self.slots.home(key)) {
            prefetch(entry);
        }
    }

    /// Enters what a leaf has to say, in place of what it said before.
    pub(super) fn set(&mut self, key: u64, slot: Slot) {
        if let Some(place) = self.slots.find(key, |leaf| leaf == slot.leaf) {
            self.slots.entries[place][1] = slot.meta();
            return;
        }
        self.move_some();
        if self.outgrown.is_none() && (self.used + 1) * 2 > self.slots.entries.len() {
            let slots = Slots::free(self.slots.entries.len() * 2);
            let slots = std::mem::replace(&mut self.slots, slots);
            self.outgrown = Some(Box::new(Outgrown { slots, moved: 0 }));
            self.used = 0;
        }
        // What moved just now may be of this leaf.
        match self.slots.find(key, |leaf| leaf == slot.leaf) {
            Some(place) => self.slots.entries[place][1] = slot.meta(),
            None => {
                self.slots.put(key, slot);
                self.used += 1;
            }
        }
    }

    /// Moves a few slots of the outgrown table.
    fn move_some(&mut self) {
        let Some(outgrown) = &mut self.outgrown else { return };
        let end = (outgrown.moved + MOVED_AT_A_TIME).min(outgrown.slots.entries.len());
        for place in outgrown.moved..end {
            let ([key, meta], leaf) = (outgrown.slots.entries[place], outgrown.slots.leaves[place]);
            // Entries that were set since are newer.
            if ![0, REMOVED].contains(&meta) && self.slots.find(key, |l| l == leaf).is_none() {
                self.slots.put(key, Slot::new(meta, leaf));
                self.used += 1;
            }
        }
        outgrown.moved = end;
        if end == outgrown.slots.entries.len() {
            self.outgrown = None;
        }
    }

    /// Removes a leaf.
    pub(super) fn remove(&mut self, key: u64, leaf: u32) {
        if let Some(place) = self.slots.find(key, |l| l == leaf) {
            self.slots.close(place);
            self.used -= 1;
        }
        if let Some(outgrown) = &mut self.outgrown
            && let Some(place) = outgrown.slots.find(key, |l| l == leaf)
        {
            outgrown.slots.entries[place][1] = REMOVED;
        }
    }
}

impl Outgrown {
    #[cold]
    fn find(&self, key: u64, is_wanted: impl Fn(u32) -> bool) -> Option<Slot> {
        let slot = self.slots.slot(self.slots.find(key, is_wanted)?);
        (slot.meta() != REMOVED).then_some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn slot(leaf: u32, rank: Rank) -> Slot {
        Slot { rank, answer: Answer::NONE, leaf }
    }

    proptest! {
        #[test]
        fn equals_a_map(changes in prop::collection::vec((0..60u32, 0..3u8, 1..u32::MAX), 0..500)) {
            let (mut table, mut model) = (Table::default(), HashMap::new());
            for (leaf, kind, rank) in changes {
                // Three leaves to a key, as if keys were hashes.
                let key = u64::from(leaf / 3) << 20;
                if kind > 0 {
                    table.set(key, slot(leaf, rank));
                    model.insert(leaf, rank);
                } else {
                    table.remove(key, leaf);
                    model.remove(&leaf);
                }
                for leaf in 0..60 {
                    let found = table.find(u64::from(leaf / 3) << 20, |l| l == leaf);
                    prop_assert_eq!(found, model.get(&leaf).map(|rank| slot(leaf, *rank)));
                }
            }
        }
    }

    #[test]
    fn the_table_grows_a_few_slots_at_a_time_and_removes_meanwhile() {
        let (mut table, mut model, mut grown) = (Table::default(), HashMap::new(), 0);
        for leaf in 1..50_000_u32 {
            let moved = |table: &Table| table.outgrown.as_ref().map_or(0, |outgrown| outgrown.moved);
            let before = moved(&table);
            table.set(leaf.into(), slot(leaf, leaf));
            model.insert(leaf, leaf);
            assert!(moved(&table) <= before + MOVED_AT_A_TIME);
            grown += u32::from(table.outgrown.is_some());
            assert!(table.used * 2 <= table.slots.entries.len());
            let other = 1 + leaf.wrapping_mul(7919) % leaf;
            match leaf % 4 {
                0 => {
                    table.remove(other.into(), other);
                    model.remove(&other);
                }
                1 => {
                    table.set(other.into(), slot(other, leaf));
                    model.insert(other, leaf);
                }
                _ => {}
            }
            if leaf.is_power_of_two() || leaf % 9999 == 0 {
                let expected = |leaf: u32| model.get(&leaf).map(|rank| slot(leaf, *rank));
                assert!((0..leaf + 10).all(|leaf| table.get(leaf.into()) == expected(leaf)), "after {leaf}");
            }
        }
        assert!(grown > 500, "look-ups were asked of two tables {grown} times");
    }
}

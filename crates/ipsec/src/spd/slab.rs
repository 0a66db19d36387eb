//! Entries in slots that are used again, in blocks that never move: a table that grew as a whole would stall
//! packets while a hundred thousand entries are copied.

/// Entries of the first block; each further block has twice as many.
const FIRST: usize = 4;

/// Entries by number. The number of an entry stays its own until it is removed.
#[derive(Debug, Clone)]
pub(super) struct Slab<T> {
    blocks: Vec<Vec<Option<T>>>,
    /// Slots that were ever in use: all below this number.
    used: usize,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { blocks: Vec::new(), used: 0, free: Vec::new() }
    }
}

/// The block of a slot, and the index in it.
#[inline(always)]
fn place(slot: usize) -> (usize, usize) {
    let block = (slot / FIRST + 1).ilog2() as usize;
    (block, slot - FIRST * ((1 << block) - 1))
}

impl<T> Slab<T> {
    /// The number of entries.
    pub(super) fn len(&self) -> usize {
        self.used - self.free.len()
    }

    /// Adds an entry and returns its number.
    pub(super) fn insert(&mut self, value: T) -> u32 {
        if let Some(slot) = self.free.pop() {
            if let Some(entry) = self.entry_mut(slot) {
                *entry = Some(value);
            }
            return slot;
        }
        let (block, _) = place(self.used);
        if block == self.blocks.len() {
            self.blocks.push(Vec::with_capacity(FIRST << block));
        }
        self.blocks[block].push(Some(value));
        self.used += 1;
        // Asserted: tables of the SPD have far fewer entries.
        let slot = u32::try_from(self.used - 1);
        slot.unwrap_or_else(|_| unreachable!("more than 2^32 entries"))
    }

    fn entry_mut(&mut self, slot: u32) -> Option<&mut Option<T>> {
        let (block, at) = place(slot as usize);
        self.blocks.get_mut(block)?.get_mut(at)
    }

    #[inline]
    pub(super) fn get(&self, slot: u32) -> Option<&T> {
        let (block, at) = place(slot as usize);
        self.blocks.get(block)?.get(at)?.as_ref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.entry_mut(slot)?.as_mut()
    }

    pub(super) fn remove(&mut self, slot: u32) -> Option<T> {
        let value = self.entry_mut(slot)?.take()?;
        self.free.push(slot);
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn entries_stay_where_they_are_while_the_slab_grows() {
        let mut slab = Slab::default();
        let slots: Vec<u32> = (0..1000).map(|n| slab.insert(n)).collect();
        let addresses: Vec<_> =
            slots.iter().map(|&slot| std::ptr::from_ref(slab.get(slot).unwrap())).collect();
        assert!((0..100_000).all(|n| slab.insert(n) >= 1000));
        for (slot, address) in slots.into_iter().zip(addresses) {
            assert!(std::ptr::eq(slab.get(slot).unwrap(), address));
        }
    }

    proptest! {
        #[test]
        fn equals_a_map(changes in prop::collection::vec((any::<bool>(), any::<u16>()), 0..500)) {
            let (mut slab, mut model): (Slab<u16>, HashMap<u32, u16>) = Default::default();
            for (inserts, value) in changes {
                if inserts {
                    let slot = slab.insert(value);
                    prop_assert_eq!(model.insert(slot, value), None);
                } else {
                    let slot = u32::from(value) % 64;
                    prop_assert_eq!(slab.remove(slot), model.remove(&slot));
                }
                prop_assert_eq!(slab.len(), model.len());
                prop_assert!((0..600).all(|slot| slab.get(slot) == model.get(&slot)));
            }
        }
    }
}

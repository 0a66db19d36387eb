//! A table whose slots are reused, with handles that go stale when their slot is.

use testudo_packet::prefetch;

/// The handle of an entry: a slot and how often it was reused (modulo 256), so that the job of a removed SA
/// does not find its successor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SaRef(u32);

const SLOT_BITS: u32 = 24;
/// One less than the bits can count: [`SaRef::NOBODY`] has the last.
const MAX_SLOTS: u32 = (1 << SLOT_BITS) - 1;

impl SaRef {
    /// The slot, a small number, to index tables that run in parallel.
    #[must_use]
    pub fn slot(self) -> usize {
        (self.0 & ((1 << SLOT_BITS) - 1)) as usize
    }

    /// A handle that no entry gets: the last reuse of a slot beyond the table's limit.
    pub const NOBODY: Self = Self(u32::MAX);

    /// The handle as bits.
    #[must_use]
    pub fn bits(self) -> u32 {
        self.0
    }

    /// The handle with these bits.
    #[must_use]
    pub fn from_bits(bits: u32) -> Self {
        Self(bits)
    }
}

/// One slot. It starts on a cache line, so that one access brings the first fields of `T` into the cache.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Entry<T> {
    value: Option<T>,
    sa: SaRef,
}

/// Up to this many entries fit in the first-level cache, with their windows and counters, next to packets and
/// round keys.
const CACHED: usize = 8;

/// Entries that are allocated at a time. A table that grew as a whole would stall packets while a hundred
/// thousand SAs are copied.
const BLOCK: usize = 256;

/// The table, in blocks that never move.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    blocks: Vec<Box<[Entry<T>; BLOCK]>>,
    /// Slots that were ever in use: all below this number.
    used: usize,
    free: Vec<SaRef>,
    /// Entries, counted because each run of packets asks whether they are many.
    held: usize,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { blocks: Vec::new(), used: 0, free: Vec::new(), held: 0 }
    }
}

impl<T> Slots<T> {
    /// Whether there are so many entries that they, and what they point to, are worth prefetching. A few stay
    /// in the first-level cache, where a prefetch is a wasted instruction.
    #[inline]
    pub(crate) fn exceed_the_cache(&self) -> bool {
        self.held > CACHED
    }

    /// Adds an entry and returns its handle; `None` if 2^24 - 1 entries are in use.
    pub(crate) fn insert(&mut self, value: T) -> Option<SaRef> {
        let sa = self.free.pop().or_else(|| self.grow())?;
        let entry = self.entry_mut(sa)?;
        entry.value = Some(value);
        self.held += 1;
        Some(sa)
    }

    /// The next slot that was never in use.
    fn grow(&mut self) -> Option<SaRef> {
        let slot = u32::try_from(self.used).ok().filter(|&n| n < MAX_SLOTS)?;
        if self.used == self.blocks.len() * BLOCK {
            let block: Box<[Entry<T>]> =
                (slot..).take(BLOCK).map(|slot| Entry { value: None, sa: SaRef(slot) }).collect();
            self.blocks.push(block.try_into().ok()?);
        }
        self.used += 1;
        Some(SaRef(slot))
    }

    #[inline(always)]
    fn entry(&self, sa: SaRef) -> Option<&Entry<T>> {
        let block = self.blocks.get(sa.slot() / BLOCK)?;
        Some(&block[sa.slot() % BLOCK]).filter(|entry| entry.sa == sa)
    }

    #[inline(always)]
    fn entry_mut(&mut self, sa: SaRef) -> Option<&mut Entry<T>> {
        let block = self.blocks.get_mut(sa.slot() / BLOCK)?;
        Some(&mut block[sa.slot() % BLOCK]).filter(|entry| entry.sa == sa)
    }

    pub(crate) fn remove(&mut self, sa: SaRef) -> Option<T> {
        let entry = self.entry_mut(sa)?;
        let value = entry.value.take()?;
        let next = SaRef(sa.0.wrapping_add(1 << SLOT_BITS));
        entry.sa = next;
        self.free.push(next);
        self.held -= 1;
        Some(value)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, sa: SaRef) -> Option<&mut T> {
        self.entry_mut(sa)?.value.as_mut()
    }

    /// All entries.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.blocks.iter_mut().flat_map(|block| block.iter_mut()).filter_map(|entry| entry.value.as_mut())
    }

    /// Prefetches an entry.
    #[inline]
    pub(crate) fn prefetch(&self, sa: SaRef) {
        if let Some(block) = self.blocks.get(sa.slot() / BLOCK) {
            prefetch(&block[sa.slot() % BLOCK]);
        }
    }

    pub(crate) fn get(&self, sa: SaRef) -> Option<&T> {
        self.entry(sa)?.value.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_handle_finds_nothing() {
        let mut slots = Slots::default();
        let a = slots.insert("a").unwrap();
        let b = slots.insert("b").unwrap();
        assert_eq!(slots.remove(a), Some("a"));
        assert_eq!(slots.remove(a), None);
        let c = slots.insert("c").unwrap();
        assert_eq!(c.slot(), a.slot());
        assert_ne!(c, a);
        assert_eq!((slots.get(a), slots.get(b), slots.get(c)), (None, Some(&"b"), Some(&"c")));
    }

    #[test]
    fn entries_that_are_there_are_counted() {
        let mut slots = Slots::default();
        let mut sas: Vec<_> = (0..=CACHED).map(|n| slots.insert(n).unwrap()).collect();
        assert!(slots.exceed_the_cache());
        let gone = sas.pop().unwrap();
        assert_eq!((slots.remove(gone), slots.remove(gone)), (Some(CACHED), None));
        assert!(!slots.exceed_the_cache());
        assert!(slots.insert(0).is_some() && slots.exceed_the_cache());
    }

    #[test]
    fn entries_stay_where_they_are_while_the_table_grows() {
        let mut slots = Slots::default();
        let sas: Vec<_> = (0..3 * BLOCK).map(|n| slots.insert(n).unwrap()).collect();
        let addresses: Vec<_> = sas.iter().map(|&sa| std::ptr::from_ref(slots.get(sa).unwrap())).collect();
        (0..100_000).for_each(|n| assert!(slots.insert(n).is_some()));
        for (number, (sa, slot)) in sas.into_iter().zip(addresses).enumerate() {
            assert_eq!(slots.get(sa), Some(&number));
            assert!(std::ptr::eq(slots.get(sa).unwrap(), slot));
        }
    }
}

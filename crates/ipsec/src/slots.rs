//! A table whose places are reused, with names that go stale when a place is.

use testudo_packet::prefetch;

/// The name of an entry: a place and how often it was reused (modulo 256), so that the job of a removed SA does not find its successor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SaRef(u32);

const PLACE_BITS: u32 = 24;
/// One less than the bits can tell: [`SaRef::NOBODY`] has the last.
const MAX_PLACES: u32 = (1 << PLACE_BITS) - 1;

impl SaRef {
    /// The place, a small number: for tables that run in parallel.
    #[must_use]
    pub fn place(self) -> usize {
        (self.0 & ((1 << PLACE_BITS) - 1)) as usize
    }

    /// A name that no entry gets: the last reuse of a place that tables do not reach.
    pub(crate) const NOBODY: Self = Self(u32::MAX);

    /// The name as bits.
    #[must_use]
    pub fn bits(self) -> u32 {
        self.0
    }

    /// The name with these bits.
    #[must_use]
    pub fn from_bits(bits: u32) -> Self {
        Self(bits)
    }
}

/// One place. It starts on a cache line, so that what stands first in `T` is near with one access.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Entry<T> {
    value: Option<T>,
    name: SaRef,
}

/// Entries that are made at a time. A table that grew as a whole would stand still while a hundred thousand SAs are copied.
const BLOCK: usize = 256;

/// The table, in blocks that never move.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    blocks: Vec<Box<[Entry<T>; BLOCK]>>,
    /// Places that were ever in use: all below this number.
    used: usize,
    free: Vec<SaRef>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { blocks: Vec::new(), used: 0, free: Vec::new() }
    }
}

impl<T> Slots<T> {
    /// The name that the next [`insert`](Self::insert) gives; `None` if 2^24 - 1 entries are in use.
    pub(crate) fn insert(&mut self, value: T) -> Option<SaRef> {
        let name = self.free.pop().or_else(|| self.grow())?;
        let entry = self.entry_mut(name)?;
        entry.value = Some(value);
        Some(name)
    }

    /// The next place that was never in use.
    fn grow(&mut self) -> Option<SaRef> {
        let place = u32::try_from(self.used).ok().filter(|&n| n < MAX_PLACES)?;
        if self.used == self.blocks.len() * BLOCK {
            let block: Box<[Entry<T>]> =
                (place..).take(BLOCK).map(|place| Entry { value: None, name: SaRef(place) }).collect();
            self.blocks.push(block.try_into().ok()?);
        }
        self.used += 1;
        Some(SaRef(place))
    }

    #[inline(always)]
    fn entry(&self, name: SaRef) -> Option<&Entry<T>> {
        let block = self.blocks.get(name.place() / BLOCK)?;
        Some(&block[name.place() % BLOCK]).filter(|entry| entry.name == name)
    }

    #[inline(always)]
    fn entry_mut(&mut self, name: SaRef) -> Option<&mut Entry<T>> {
        let block = self.blocks.get_mut(name.place() / BLOCK)?;
        Some(&mut block[name.place() % BLOCK]).filter(|entry| entry.name == name)
    }

    pub(crate) fn remove(&mut self, name: SaRef) -> Option<T> {
        let entry = self.entry_mut(name)?;
        let value = entry.value.take()?;
        let next = SaRef(name.0.wrapping_add(1 << PLACE_BITS));
        entry.name = next;
        self.free.push(next);
        Some(value)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, name: SaRef) -> Option<&mut T> {
        self.entry_mut(name)?.value.as_mut()
    }

    /// Asks for an entry's memory before it is needed.
    #[inline]
    pub(crate) fn prefetch(&self, name: SaRef) {
        if let Some(block) = self.blocks.get(name.place() / BLOCK) {
            prefetch(&block[name.place() % BLOCK]);
        }
    }

    pub(crate) fn get(&self, name: SaRef) -> Option<&T> {
        self.entry(name)?.value.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_name_finds_nothing() {
        let mut slots = Slots::default();
        let a = slots.insert("a").unwrap();
        let b = slots.insert("b").unwrap();
        assert_eq!(slots.remove(a), Some("a"));
        assert_eq!(slots.remove(a), None);
        let c = slots.insert("c").unwrap();
        assert_eq!(c.place(), a.place());
        assert_ne!(c, a);
        assert_eq!((slots.get(a), slots.get(b), slots.get(c)), (None, Some(&"b"), Some(&"c")));
    }

    #[test]
    fn entries_stay_where_they_are_while_the_table_grows() {
        let mut slots = Slots::default();
        let names: Vec<_> = (0..3 * BLOCK).map(|n| slots.insert(n).unwrap()).collect();
        let places: Vec<_> = names.iter().map(|&name| std::ptr::from_ref(slots.get(name).unwrap())).collect();
        (0..100_000).for_each(|n| assert!(slots.insert(n).is_some()));
        for (number, (name, place)) in names.into_iter().zip(places).enumerate() {
            assert_eq!(slots.get(name), Some(&number));
            assert!(std::ptr::eq(slots.get(name).unwrap(), place));
        }
    }
}

//! A table whose places are reused, with names that go stale when a place is.

use testudo_packet::prefetch;

/// The name of an entry: a place and how often it was reused (modulo 256), so that the job of a removed SA does not find its successor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SaRef(u32);

const PLACE_BITS: u32 = 24;

impl SaRef {
    /// The place, a small number: for tables that run in parallel.
    #[must_use]
    pub fn place(self) -> usize {
        (self.0 & ((1 << PLACE_BITS) - 1)) as usize
    }

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

/// The table.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    entries: Vec<Entry<T>>,
    free: Vec<SaRef>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slots<T> {
    /// The name that the next [`insert`](Self::insert) gives; `None` if 2^24 entries are in use.
    pub(crate) fn insert(&mut self, value: T) -> Option<SaRef> {
        if let Some(name) = self.free.pop() {
            self.entries[name.place()] = Entry { value: Some(value), name };
            return Some(name);
        }
        let place = u32::try_from(self.entries.len()).ok().filter(|&n| n < 1 << PLACE_BITS)?;
        self.entries.push(Entry { value: Some(value), name: SaRef(place) });
        Some(SaRef(place))
    }

    pub(crate) fn remove(&mut self, name: SaRef) -> Option<T> {
        let entry = self.entries.get_mut(name.place()).filter(|e| e.name == name)?;
        let value = entry.value.take()?;
        let next = SaRef(name.0.wrapping_add(1 << PLACE_BITS));
        entry.name = next;
        self.free.push(next);
        Some(value)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, name: SaRef) -> Option<&mut T> {
        self.entries.get_mut(name.place()).filter(|e| e.name == name)?.value.as_mut()
    }

    /// Asks for an entry's memory before it is needed.
    #[inline]
    pub(crate) fn prefetch(&self, name: SaRef) {
        if let Some(entry) = self.entries.get(name.place()) {
            prefetch(entry);
        }
    }

    pub(crate) fn get(&self, name: SaRef) -> Option<&T> {
        self.entries.get(name.place()).filter(|e| e.name == name)?.value.as_ref()
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
}

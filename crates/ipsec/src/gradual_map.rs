//! A map that grows without a pause: an insertion takes as long beside a hundred thousand entries as beside
//! ten, so that no packet waits for it.

use crate::slots::{SaRef, Slots};
use crate::spi_table::SpiTable;
use std::hash::{BuildHasher, Hash};

/// Entries in blocks that never move ([`Slots`]), found by the hashes of their keys in a table that moves a
/// few slots with each insertion ([`SpiTable`]).
#[derive(Debug)]
pub(crate) struct GradualMap<K, V> {
    /// The handle of the first entry with each hash.
    firsts: SpiTable,
    entries: Slots<Entry<K, V>>,
    hasher: foldhash::fast::RandomState,
}

#[derive(Debug)]
struct Entry<K, V> {
    key: K,
    value: V,
    /// The next entry with the same hash: among a hundred thousand keys, one or two have such a neighbour.
    next: Option<SaRef>,
}

impl<K, V> Default for GradualMap<K, V> {
    fn default() -> Self {
        let hasher = foldhash::fast::RandomState::default();
        Self { firsts: SpiTable::default(), entries: Slots::default(), hasher }
    }
}

impl<K: Hash + Eq, V> GradualMap<K, V> {
    /// 32 bits of the key's hash. 0 marks free slots of the table.
    fn hash(&self, key: &K) -> u32 {
        u32::try_from(self.hasher.hash_one(key) >> 32).unwrap_or(0).max(1)
    }

    /// The entry of a key, and the one before it in its chain.
    fn find(&self, key: &K) -> Option<(SaRef, Option<SaRef>)> {
        let (mut at, mut before) = (self.firsts.get(self.hash(key))?, None);
        loop {
            let entry = self.entries.get(at)?;
            if entry.key == *key {
                return Some((at, before));
            }
            (at, before) = (entry.next?, Some(at));
        }
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        let (at, _) = self.find(key)?;
        self.entries.get(at).map(|entry| &entry.value)
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let (at, _) = self.find(key)?;
        self.entries.get_mut(at).map(|entry| &mut entry.value)
    }

    /// Maps a key to a value, in place of an earlier one. Without effect if there are 2^24 - 1 others.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        if let Some(present) = self.get_mut(&key) {
            *present = value;
            return;
        }
        let hash = self.hash(&key);
        let next = self.firsts.get(hash);
        if let Some(entry) = self.entries.insert(Entry { key, value, next }) {
            self.firsts.insert(hash, entry);
        }
    }

    /// Removes a key. Its value, if it was there.
    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let (at, before) = self.find(key)?;
        let entry = self.entries.remove(at)?;
        let hash = self.hash(key);
        match (before.and_then(|before| self.entries.get_mut(before)), entry.next) {
            (Some(before), next) => before.next = next,
            (None, Some(next)) => self.firsts.insert(hash, next),
            (None, None) => self.firsts.remove(hash),
        }
        Some(entry.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;
    use std::hash::Hasher;

    /// A key of which many have the same hash.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    struct Crowded(u32);

    impl Hash for Crowded {
        fn hash<H: Hasher>(&self, state: &mut H) {
            (self.0 % 5).hash(state);
        }
    }

    fn assert_equals_a_map<K: Hash + Eq + Copy>(key: impl Fn(u32) -> K, changes: &[(u32, bool)]) {
        let (mut map, mut model): (GradualMap<K, u32>, HashMap<u32, u32>) = Default::default();
        for (value, &(number, inserts)) in (0..).zip(changes) {
            if inserts {
                map.insert(key(number), value);
                model.insert(number, value);
            } else {
                assert_eq!(map.remove(&key(number)), model.remove(&number));
            }
            assert!((0..40).all(|number| map.get(&key(number)) == model.get(&number)));
        }
    }

    proptest! {
        #[test]
        fn equals_a_map(changes in prop::collection::vec((0..40u32, any::<bool>()), 0..300)) {
            assert_equals_a_map(|number| number, &changes);
            assert_equals_a_map(Crowded, &changes);
        }
    }

    #[test]
    fn a_hundred_thousand_keys_are_found() {
        let mut map = GradualMap::default();
        (0..100_000_u32).for_each(|n| map.insert((n, "key"), n));
        assert!((0..100_000).all(|n| map.get(&(n, "key")) == Some(&n)));
        (0..100_000).step_by(2).for_each(|n| assert_eq!(map.remove(&(n, "key")), Some(n)));
        assert!((0..100_000).all(|n| map.get_mut(&(n, "key")).is_some() == (n % 2 == 1)));
    }
}

//! The keys that an engine holds.

use crate::{EngineError, KeyId};

/// Bits of a [`KeyId`] that are the slot's index; the bits above count how often the slot was used.
const INDEX_BITS: u32 = 20;

/// A slot for a key.
struct Slot<K> {
    key: Option<K>,
    /// How often the slot was emptied, modulo 2^12.
    generation: u32,
}

/// Where engines keep their keys: a bounded table with a free list.
///
/// A [`KeyId`] holds a slot's index and how often that slot was emptied, so that the id of a removed key
/// stays unknown when its slot holds another SA's key. (The count wraps after 4,096 uses of one slot.)
///
/// Not `ipsec`'s `Slots`, which looks similar: that one keeps SAs in blocks that never move, each on its own
/// cache lines, for the worker to prefetch, and its references have 24 and 8 bits. This one bounds what an
/// engine holds, and its ids have 20 and 12 bits, so that a removed key stays unknown through 4,096
/// successors. They would share thirty lines.
///
/// Keys move when the table grows, and the memory they leave is not zeroed: `K` must keep its secrets behind
/// a pointer.
pub struct KeyTable<K> {
    slots: Vec<Slot<K>>,
    free: Vec<u32>,
    limit: usize,
}

impl<K> KeyTable<K> {
    /// The most keys that a table can hold: 2^20.
    pub const MAX_KEYS: usize = 1 << INDEX_BITS;

    /// An empty table for up to `limit` keys, [`MAX_KEYS`](Self::MAX_KEYS) at the most.
    #[must_use]
    pub const fn new(limit: usize) -> Self {
        let limit = if limit < Self::MAX_KEYS { limit } else { Self::MAX_KEYS };
        Self { slots: Vec::new(), free: Vec::new(), limit }
    }

    /// How many keys it can hold.
    #[must_use]
    pub const fn limit(&self) -> usize {
        self.limit
    }

    /// How many keys it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether it holds no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it can hold no more; checked before a key is expanded for nothing.
    ///
    /// # Errors
    /// [`EngineError::Full`] in the name of `engine`.
    pub fn check_room(&self, engine: &'static str) -> Result<(), EngineError> {
        if self.len() >= self.limit { Err(EngineError::Full { engine, limit: self.limit }) } else { Ok(()) }
    }

    /// Inserts a key.
    ///
    /// # Errors
    /// [`EngineError::Full`] in the name of `engine`; the key is then dropped.
    pub fn insert(&mut self, engine: &'static str, key: K) -> Result<KeyId, EngineError> {
        self.check_room(engine)?;
        if let Some(index) = self.free.pop()
            && let Some(slot) = self.slots.get_mut(index as usize)
        {
            slot.key = Some(key);
            return Ok(id(slot.generation, index));
        }
        let full = EngineError::Full { engine, limit: self.limit };
        let index = u32::try_from(self.slots.len()).map_err(|_| full)?;
        self.slots.push(Slot { key: Some(key), generation: 0 });
        Ok(id(0, index))
    }

    /// Removes a key and returns it; `None` if the table does not hold it.
    pub fn remove(&mut self, key: KeyId) -> Option<K> {
        let (generation, index) = parts(key);
        let slot = self.slots.get_mut(index as usize).filter(|s| s.generation == generation)?;
        let removed = slot.key.take()?;
        slot.generation = slot.generation.wrapping_add(1) & (u32::MAX >> INDEX_BITS);
        self.free.push(index);
        Some(removed)
    }

    /// The key that `key` names; `None` if the table does not hold it.
    #[must_use]
    pub fn get(&self, key: KeyId) -> Option<&K> {
        let (generation, index) = parts(key);
        self.slots.get(index as usize).filter(|s| s.generation == generation)?.key.as_ref()
    }

    /// The same, to be changed.
    #[must_use]
    pub fn get_mut(&mut self, key: KeyId) -> Option<&mut K> {
        let (generation, index) = parts(key);
        self.slots.get_mut(index as usize).filter(|s| s.generation == generation)?.key.as_mut()
    }
}

fn id(generation: u32, index: u32) -> KeyId {
    KeyId(generation << INDEX_BITS | index)
}

fn parts(key: KeyId) -> (u32, u32) {
    (key.0 >> INDEX_BITS, key.0 & ((1 << INDEX_BITS) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_removed_key_stays_unknown_when_its_slot_is_reused() {
        let mut table = KeyTable::new(4);
        let old = table.insert("test", "old").unwrap();
        assert_eq!(table.remove(old), Some("old"));
        let new = table.insert("test", "new").unwrap();
        assert_eq!(parts(new).1, parts(old).1, "the slot is reused");
        assert_eq!(table.get(old), None);
        assert_eq!(table.remove(old), None);
        assert_eq!(table.get(new), Some(&"new"));
        assert_eq!(table.get_mut(old), None);
        assert_eq!(table.get_mut(new), Some(&mut "new"));
    }

    #[test]
    fn a_full_table_says_so_and_recovers() {
        let mut table = KeyTable::new(2);
        let first = table.insert("test", 1).unwrap();
        table.insert("test", 2).unwrap();
        assert_eq!(table.insert("test", 3), Err(EngineError::Full { engine: "test", limit: 2 }));
        assert_eq!(table.len(), 2);
        table.remove(first);
        assert!(table.insert("test", 4).is_ok());
    }

    #[test]
    fn generations_wrap_and_never_spill_into_the_index() {
        let mut table = KeyTable::new(1);
        for round in 0..10_000 {
            let key = table.insert("test", round).unwrap();
            assert_eq!(parts(key).1, 0);
            assert_eq!(table.remove(key), Some(round));
        }
        assert!(table.is_empty());
    }

    #[test]
    fn ids_that_were_never_given_out_are_unknown() {
        let table = KeyTable::<u8>::new(usize::MAX);
        assert_eq!(table.limit(), 1 << 20);
        assert!([0, 1, u32::MAX].iter().all(|&k| table.get(KeyId(k)).is_none()));
    }
}

//! From the SPI of an inbound packet to its SA (RFC 4301 4.4.2).

use crate::slots::SaRef;

/// Fibonacci hashing: the high bits of the product are well spread even for SPIs that are assigned in
/// sequence.
const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;
const SMALLEST: usize = 16;

/// Slots of an outgrown table that each insertion moves: it is empty long before its successor is half full.
const MOVED_AT_A_TIME: usize = 64;

/// SPIs and the SAs they name: open addressing with linear probing, at most half full, eight bytes an entry.
///
/// Only the operator's tunnels are in the table, so no arriving packet can make it slow. It grows
/// incrementally, a few slots with each insertion, so that no packet waits while a hundred thousand entries
/// move: until all have moved, lookups that find nothing also search the outgrown table.
#[derive(Debug)]
pub(crate) struct SpiTable {
    places: Places,
    outgrown: Option<Outgrown>,
    used: usize,
}

/// A power of two of slots: SPI and the bits of a handle. SPI 0 marks a free slot: it never names an SA (RFC
/// 4303 2.1).
///
/// Plain numbers, because the system provides zeroed memory of any size at once.
#[derive(Debug)]
struct Places(Box<[(u32, u32)]>);

/// The table before it grew. Its slots stay in place: only the handles of removed SPIs are struck out.
#[derive(Debug)]
struct Outgrown {
    places: Places,
    /// Slots below this one have moved.
    moved: usize,
}

impl Default for SpiTable {
    fn default() -> Self {
        Self { places: Places::free(SMALLEST), outgrown: None, used: 0 }
    }
}

impl Places {
    fn free(places: usize) -> Self {
        Self(vec![(0, 0); places].into())
    }

    fn mask(&self) -> usize {
        self.0.len() - 1
    }

    /// The slot of an SPI, which is not 0.
    #[inline(always)]
    fn find(&self, spi: u32) -> Option<usize> {
        let mut at = self.home(spi);
        loop {
            let place = at & self.mask();
            let (found, _) = self.0[place];
            if found == spi {
                return Some(place);
            }
            if found == 0 {
                return None;
            }
            at += 1;
        }
    }

    /// Puts an SPI in its slot; `true` if it is new.
    fn put(&mut self, spi: u32, sa: SaRef) -> bool {
        let mask = self.mask();
        let mut at = self.home(spi);
        while ![0, spi].contains(&self.0[at & mask].0) {
            at += 1;
        }
        let is_new = self.0[at & mask].0 == 0;
        self.0[at & mask] = (spi, sa.bits());
        is_new
    }

    /// Frees a slot.
    fn close(&mut self, mut hole: usize) {
        let mask = self.mask();
        // Later entries move up, unless they would then come before their home (Knuth, volume 3, 6.4,
        // algorithm R).
        let mut next = hole;
        loop {
            next = (next + 1) & mask;
            let (moved, _) = self.0[next];
            if moved == 0 {
                break;
            }
            let from_home = next.wrapping_sub(self.home(moved)) & mask;
            if from_home >= next.wrapping_sub(hole) & mask {
                self.0[hole] = self.0[next];
                hole = next;
            }
        }
        self.0[hole].0 = 0;
    }

    #[inline(always)]
    fn home(&self, spi: u32) -> usize {
        let bits = self.0.len().trailing_zeros();
        let high = u64::from(spi).wrapping_mul(MULTIPLIER) >> (u64::BITS - bits);
        usize::try_from(high).unwrap_or(0)
    }
}

impl SpiTable {
    /// The SA of an SPI.
    #[must_use]
    #[inline]
    pub(crate) fn get(&self, spi: u32) -> Option<SaRef> {
        if spi == 0 {
            return None;
        }
        match self.places.find(spi) {
            Some(place) => Some(SaRef::from_bits(self.places.0[place].1)),
            None => self.outgrown.as_ref()?.get(spi),
        }
    }

    /// Maps an SPI other than 0 to an SA, in place of an earlier one.
    pub(crate) fn insert(&mut self, spi: u32, sa: SaRef) {
        assert_ne!(spi, 0, "SPI 0 names no SA");
        self.move_some();
        if self.outgrown.is_none() && (self.used + 1) * 2 > self.places.0.len() {
            let places = Places::free(self.places.0.len() * 2);
            let outgrown = std::mem::replace(&mut self.places, places);
            self.outgrown = Some(Outgrown { places: outgrown, moved: 0 });
            self.used = 0;
        }
        self.used += usize::from(self.places.put(spi, sa));
    }

    /// Moves a few slots of the outgrown table.
    fn move_some(&mut self) {
        let Some(outgrown) = &mut self.outgrown else { return };
        let end = (outgrown.moved + MOVED_AT_A_TIME).min(outgrown.places.0.len());
        for &(spi, bits) in &outgrown.places.0[outgrown.moved..end] {
            let sa = SaRef::from_bits(bits);
            // Entries that were inserted since are newer.
            if spi != 0 && sa != SaRef::NOBODY && self.places.find(spi).is_none() {
                self.used += usize::from(self.places.put(spi, sa));
            }
        }
        outgrown.moved = end;
        if end == outgrown.places.0.len() {
            self.outgrown = None;
        }
    }

    /// Removes an SPI.
    pub(crate) fn remove(&mut self, spi: u32) {
        assert_ne!(spi, 0, "SPI 0 names no SA");
        if let Some(place) = self.places.find(spi) {
            self.places.close(place);
            self.used -= 1;
        }
        if let Some(outgrown) = &mut self.outgrown
            && let Some(place) = outgrown.places.find(spi)
        {
            outgrown.places.0[place].1 = SaRef::NOBODY.bits();
        }
    }
}

impl Outgrown {
    #[cold]
    fn get(&self, spi: u32) -> Option<SaRef> {
        let (_, bits) = self.places.0[self.places.find(spi)?];
        let sa = SaRef::from_bits(bits);
        (sa != SaRef::NOBODY).then_some(sa)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn equals_a_map(changes in prop::collection::vec((0..40u32, any::<bool>(), any::<u32>()), 0..400)) {
            let (mut table, mut model) = (SpiTable::default(), HashMap::new());
            for (spi, inserts, sa) in changes {
                // Neighbours, and numbers far apart.
                let spi = if spi % 2 == 0 { 1 + spi / 2 } else { spi.wrapping_mul(0x0101_0101) };
                if inserts {
                    table.insert(spi, SaRef::from_bits(sa));
                    model.insert(spi, SaRef::from_bits(sa));
                } else {
                    table.remove(spi);
                    model.remove(&spi);
                }
                for spi in (0..40).chain((0..40u32).map(|n| n.wrapping_mul(0x0101_0101))) {
                    prop_assert_eq!(table.get(spi), model.get(&spi).copied());
                }
            }
        }
    }

    #[test]
    fn the_table_grows_a_few_slots_at_a_time_and_removes_meanwhile() {
        let mut table = SpiTable::default();
        let (mut model, mut grown) = (HashMap::new(), 0);
        for spi in 1..50_000_u32 {
            let moved = |table: &SpiTable| table.outgrown.as_ref().map_or(0, |outgrown| outgrown.moved);
            let before = moved(&table);
            table.insert(spi, SaRef::from_bits(spi));
            model.insert(spi, SaRef::from_bits(spi));
            assert!(moved(&table) <= before + MOVED_AT_A_TIME);
            grown += u32::from(table.outgrown.is_some());
            assert!(table.used * 2 <= table.places.0.len());
            if spi % 3 == 0 {
                // SPIs of every age; some are removed more than once, and some are inserted again.
                let gone = 1 + spi.wrapping_mul(7919) % spi;
                table.remove(gone);
                model.remove(&gone);
                if spi % 2 == 0 {
                    table.insert(gone, SaRef::from_bits(spi));
                    model.insert(gone, SaRef::from_bits(spi));
                }
                assert_eq!(table.get(gone), model.get(&gone).copied());
            }
            if spi.is_power_of_two() || spi % 9999 == 0 {
                assert!((0..spi + 10).all(|spi| table.get(spi) == model.get(&spi).copied()), "after {spi}");
            }
        }
        assert!(grown > 500, "look-ups were asked of two tables {grown} times");
    }

    #[test]
    fn the_table_grows_and_removes() {
        let mut table = SpiTable::default();
        (1..100_000).for_each(|spi| table.insert(spi, SaRef::from_bits(spi)));
        assert!((1..100_000).all(|spi| table.get(spi) == Some(SaRef::from_bits(spi))));
        (1..100_000).step_by(2).for_each(|spi| table.remove(spi));
        assert!((1..100_000).all(|spi| table.get(spi).is_some() == (spi % 2 == 0)));
        assert_eq!((table.get(0), table.get(200_000)), (None, None));
    }
}

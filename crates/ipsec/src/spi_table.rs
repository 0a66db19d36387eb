//! From the SPI of an arriving packet to its SA (RFC 4301 4.4.2).

use crate::slots::SaRef;

/// Fibonacci hashing: the high bits of the product are well spread even for SPIs that are given out in turn.
const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;
const SMALLEST: usize = 16;

/// SPIs and the SAs they name: open addressing with linear probing, at most half full, eight bytes an entry.
///
/// Only who configures tunnels chooses what is in the table, so that no arriving packet can make it slow.
#[derive(Debug)]
pub(crate) struct SpiTable {
    /// A power of two of places. SPI 0 marks a free one: it is no SPI (RFC 4303 2.1), and is kept apart.
    places: Box<[(u32, SaRef)]>,
    zero: Option<SaRef>,
    used: usize,
}

impl Default for SpiTable {
    fn default() -> Self {
        Self { places: free(SMALLEST), zero: None, used: 0 }
    }
}

fn free(places: usize) -> Box<[(u32, SaRef)]> {
    vec![(0, SaRef::from_bits(0)); places].into()
}

impl SpiTable {
    /// The SA of an SPI.
    #[must_use]
    #[inline]
    pub(crate) fn get(&self, spi: u32) -> Option<SaRef> {
        if spi == 0 {
            return self.zero;
        }
        let mut at = self.home(spi);
        loop {
            let (found, sa) = self.places[at & (self.places.len() - 1)];
            if found == spi {
                return Some(sa);
            }
            if found == 0 {
                return None;
            }
            at += 1;
        }
    }

    /// Names an SA; whatever the SPI named before is forgotten.
    pub(crate) fn insert(&mut self, spi: u32, sa: SaRef) {
        if spi == 0 {
            self.zero = Some(sa);
            return;
        }
        if (self.used + 1) * 2 > self.places.len() {
            let larger = free(self.places.len() * 2);
            let old = std::mem::replace(&mut self.places, larger);
            self.used = 0;
            old.iter().filter(|(spi, _)| *spi != 0).for_each(|&(spi, sa)| self.put(spi, sa));
        }
        self.put(spi, sa);
    }

    fn put(&mut self, spi: u32, sa: SaRef) {
        let mask = self.places.len() - 1;
        let mut at = self.home(spi);
        while ![0, spi].contains(&self.places[at & mask].0) {
            at += 1;
        }
        self.used += usize::from(self.places[at & mask].0 == 0);
        self.places[at & mask] = (spi, sa);
    }

    /// Forgets an SPI.
    pub(crate) fn remove(&mut self, spi: u32) {
        if spi == 0 {
            self.zero = None;
            return;
        }
        let mask = self.places.len() - 1;
        let mut hole = self.home(spi) & mask;
        while self.places[hole].0 != spi {
            if self.places[hole].0 == 0 {
                return;
            }
            hole = (hole + 1) & mask;
        }
        self.used -= 1;
        // What stands behind moves up, unless it would then stand before its home (Knuth, volume 3, 6.4, algorithm R).
        let mut next = hole;
        loop {
            next = (next + 1) & mask;
            let (moved, _) = self.places[next];
            if moved == 0 {
                break;
            }
            let from_home = next.wrapping_sub(self.home(moved)) & mask;
            if from_home >= next.wrapping_sub(hole) & mask {
                self.places[hole] = self.places[next];
                hole = next;
            }
        }
        self.places[hole].0 = 0;
    }

    #[inline]
    fn home(&self, spi: u32) -> usize {
        let bits = self.places.len().trailing_zeros();
        let high = u64::from(spi).wrapping_mul(MULTIPLIER) >> (u64::BITS - bits);
        usize::try_from(high).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn it_is_a_map(changes in prop::collection::vec((0..40u32, any::<bool>(), any::<u32>()), 0..400)) {
            let (mut table, mut model) = (SpiTable::default(), HashMap::new());
            for (spi, inserts, sa) in changes {
                // Neighbours, and numbers far apart.
                let spi = if spi % 2 == 0 { spi / 2 } else { spi.wrapping_mul(0x0101_0101) };
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
    fn it_grows_and_forgets() {
        let mut table = SpiTable::default();
        (1..100_000).for_each(|spi| table.insert(spi, SaRef::from_bits(spi)));
        assert!((1..100_000).all(|spi| table.get(spi) == Some(SaRef::from_bits(spi))));
        (1..100_000).step_by(2).for_each(|spi| table.remove(spi));
        assert!((1..100_000).all(|spi| table.get(spi).is_some() == (spi % 2 == 0)));
        assert_eq!((table.get(0), table.get(200_000)), (None, None));
    }
}

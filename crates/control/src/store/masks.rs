//! What is XORed into sequence numbers to make IVs, so that two stores under one key do not repeat each
//! other's.
//!
//! ```text
//!   bits   63 … 48                          47 … 0
//!          drawn whenever a store is opened drawn once, when the store first notes the key, and kept with its numbers
//!   IV  =  mask XOR number                  (a key's numbers end below 2^48)
//! ```
//!
//! **Within one store no IV repeats**, for any mask: numbers are below 2^48, so the low 48 bits of an IV
//! are the number XOR the constant part of the mask, and different numbers give different IVs. The upper bits
//! may differ from start to start: the IVs of two starts never overlap.
//!
//! **Two stores under one key**, each of which has leased numbers up to 2^k, share IVs only if their masks
//! agree above bit k: with a probability of 2^-(64-k) for each pair of starts whose numbers overlap. If a
//! store is restored from an older copy, only the upper 16 bits are new.

use crate::fingerprint::digest_of;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// The first number that is never used: 2^48, reached after 108 days at 30 million packets a second.
pub const NUMBERS_END: u64 = 1 << 48;
/// The bits of a mask that belong to the key.
const OF_KEY: u64 = NUMBERS_END - 1;

type Draw = dyn Fn() -> io::Result<u64> + Send + Sync;

/// The source of masks for one start of one store.
pub(super) struct Masks {
    draw: Box<Draw>,
    of_start: u64,
}

impl Masks {
    fn new(draw: Box<Draw>) -> io::Result<Self> {
        let of_start = draw()? & !OF_KEY;
        Ok(Self { draw, of_start })
    }

    /// Masks from the system's random numbers.
    pub(super) fn random() -> io::Result<Self> {
        Self::new(Box::new(|| {
            let mut bytes = [0; 8];
            let filled = aws_lc_rs::rand::fill(&mut bytes);
            filled.map_err(|_| io::Error::other("the system has no random numbers"))?;
            Ok(u64::from_ne_bytes(bytes))
        }))
    }

    /// The same masks for the same seed.
    pub(super) fn seeded(seed: u64) -> Self {
        let drawn = AtomicU64::new(0);
        let draw = move || {
            let count = drawn.fetch_add(1, Ordering::Relaxed);
            let digest = digest_of(&[b"testudo masks", &seed.to_le_bytes(), &count.to_le_bytes()]);
            digest.as_bytes().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
        };
        let of_start = draw() & !OF_KEY;
        Self { draw: Box::new(move || Ok(draw())), of_start }
    }

    /// A mask for a key that the store records for the first time.
    pub(super) fn for_new_key(&self) -> io::Result<u64> {
        Ok((self.draw)()? & OF_KEY)
    }

    /// The mask, in this start, of a key that the store has recorded with `kept`.
    pub(super) fn in_this_start(&self, kept: u64) -> u64 {
        kept & OF_KEY | self.of_start
    }
}

impl Default for Masks {
    fn default() -> Self {
        Self::seeded(0)
    }
}

/// Masks are not secret, but the random source has nothing to print.
impl fmt::Debug for Masks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Masks").field("of_start", &self.of_start).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_starts_share_the_bits_of_the_key_and_no_others() {
        let starts = [1, 2].map(Masks::seeded);
        let kept = starts[0].for_new_key().unwrap();
        let [one, other] = starts.map(|start| start.in_this_start(kept));
        assert_eq!(one & OF_KEY, kept);
        assert_eq!(other & OF_KEY, kept);
        assert_ne!(one >> 48, other >> 48);
    }

    #[test]
    fn random_masks_differ_and_use_all_bits() {
        let masks: Vec<_> = (0..64)
            .map(|_| {
                let start = Masks::random().unwrap();
                start.in_this_start(start.for_new_key().unwrap())
            })
            .collect();
        let (ones, zeros) = masks.iter().fold((0, 0), |(ones, zeros), mask| (ones | mask, zeros | !mask));
        assert_eq!((ones, zeros), (u64::MAX, u64::MAX), "each bit is 1 in some of 64 masks, and 0 in others");
    }
}

//! Per-key precomputation.

use crate::aes::{self, MAX_ROUND_KEYS};
use crate::ghash::{Product, reflect, times_x};
use crate::memory::{load_numbers, store_numbers};
use core::arch::x86_64::*;
use testudo_packet::prefetch;
use zeroize::Zeroize;

/// The highest power of the hash key that is stored. One more than a multiple of four: see [`ExpandedKey`].
pub(crate) const POWERS: usize = 97;

/// The highest power that is used with many keys, which are seldom cached.
pub(crate) const FEW_POWERS: usize = 17;

/// The powers for a packet of one vector: for the AAD, three blocks of text and the lengths.
pub(crate) const SHORT_POWERS: usize = 5;

/// Powers of the hash key and round keys, zeroed when dropped; boxed, so that they never move.
///
/// A packet of one vector touches the last five powers and the round keys: four cache lines, because the
/// fifth power begins one. So does the seventeenth, the first that is used with many keys: from it to the end
/// of the round keys are seven lines.
#[repr(C, align(64))]
pub(crate) struct ExpandedKey {
    /// The powers from [`POWERS`] down to 1, reflected and times x (see [`crate::ghash`]); then the round
    /// keys, as in memory: byte 0 is the least significant byte of the number. The first one has the salt
    /// XORed into it, which begins every block that is encrypted (RFC 4106 4). The lanes after the last block
    /// of a text in its vector are zero, whatever they are multiplied by: they may read round keys.
    table: [u128; POWERS + MAX_ROUND_KEYS],
}

impl ExpandedKey {
    /// Expands a cipher key of 16 or 32 bytes whose nonces begin with `salt`.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    pub(crate) fn new(key: &[u8], salt: [u8; 4]) -> Box<Self> {
        let mut new = Box::new(Self { table: [0; _] });
        if let Some(round_keys) = new.table.last_chunk_mut() {
            aes::expand(key, round_keys);
        }
        let rounds = key.len() / 4 + 6;
        let hash_key = aes::encrypt_block(&new.table[POWERS..=POWERS + rounds], _mm_setzero_si128());
        new.expand_powers(_mm512_zextsi128_si512(hash_key));
        new.table[POWERS] ^= u128::from(u32::from_le_bytes(salt));
        new
    }

    /// The powers of the hash key, which is a block as AES outputs it.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn expand_powers(&mut self, hash_key: __m512i) {
        let mut lanes = [0; 4];
        store_numbers(&mut lanes, reflect(hash_key));
        let first = times_x(lanes[0]);
        // Powers 4 to 1, one by one; then four at a time.
        lanes = [0, 0, 0, first];
        for lane in (0..3).rev() {
            let last = load_numbers(&[lanes[lane + 1], 0, 0, 0]);
            let mut next = [0; 4];
            store_numbers(&mut next, Product::of(last, load_numbers(&[first, 0, 0, 0])).reduce());
            lanes[lane] = next[0];
            next.zeroize();
        }
        let step = load_numbers(&[lanes[0]; 4]);
        let mut four = load_numbers(&lanes);
        let (first, groups) = self.table[..POWERS].as_rchunks_mut::<4>();
        for group in groups.iter_mut().rev() {
            store_numbers(group, four);
            four = Product::of(four, step).reduce();
        }
        store_numbers(&mut lanes, four);
        first.copy_from_slice(&lanes[lanes.len() - first.len()..]);
        lanes.zeroize();
    }

    /// `4 N` powers from `highest` (at most [`POWERS`]) down, four to a vector; below the first power,
    /// arbitrary values.
    #[inline]
    pub(crate) fn powers_from<const N: usize>(&self, highest: usize) -> &[[u128; 4]; N] {
        debug_assert!(
            highest <= POWERS && highest + MAX_ROUND_KEYS >= 4 * N,
            "power {highest} of {N} vectors"
        );
        let fours = self.table.get(POWERS.wrapping_sub(highest)..).map(|powers| powers.as_chunks::<4>().0);
        // The callers' powers are in range; the default costs less than a panic would.
        fours.and_then(|fours| fours.first_chunk()).unwrap_or(const { &[[0; 4]; N] })
    }

    /// The hash key itself.
    #[inline]
    pub(crate) fn first_power(&self) -> &u128 {
        &self.table[POWERS - 1]
    }

    /// Round key `round`, from 0 on.
    #[inline]
    pub(crate) fn round_key(&self, round: usize) -> &u128 {
        &self.table[POWERS + round]
    }

    /// Prefetches what is needed for a packet whose hash begins with power `highest`.
    #[inline]
    pub(crate) fn prefetch(&self, highest: usize) {
        prefetch(&self.table[POWERS - highest.min(POWERS)..]);
    }
}

impl Drop for ExpandedKey {
    fn drop(&mut self) {
        self.table.zeroize();
    }
}

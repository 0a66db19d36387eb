//! What is computed once per key.

use crate::aes::{self, MAX_ROUND_KEYS};
use crate::ghash::{Product, reflect, times_x};
use crate::memory::{load_numbers, store_numbers};
use core::arch::x86_64::*;
use zeroize::Zeroize;

/// The highest power of the hash key that is held.
pub(crate) const POWERS: usize = 96;

/// Round keys and powers of the hash key, on cache lines of their own. Zeroed when dropped; boxed, so that it never moves.
///
/// A packet of one vector touches the round keys and the last powers, five cache lines.
#[repr(C, align(64))]
pub(crate) struct ExpandedKey {
    /// As in memory: byte 0 of the round key is the least significant byte of the number.
    pub(crate) round_keys: [u128; MAX_ROUND_KEYS],
    _line: u128,
    /// The powers from [`POWERS`] down to 1, reflected and times x (see [`crate::ghash`]), then zeros: what follows the last
    /// block of a text in its vector is zero, whatever it is multiplied by.
    powers: [u128; POWERS + 4],
}

impl ExpandedKey {
    /// Expands a cipher key of 16 or 32 bytes.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    pub(crate) fn new(key: &[u8]) -> Box<Self> {
        let mut new = Box::new(Self { round_keys: [0; _], _line: 0, powers: [0; _] });
        aes::expand(key, &mut new.round_keys);
        let rounds = key.len() / 4 + 6;
        let hash_key = aes::encrypt_block(&new.round_keys[..=rounds], _mm_setzero_si128());
        new.expand_powers(_mm512_zextsi128_si512(hash_key));
        new
    }

    /// The powers of the hash key, a block as AES gives it.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn expand_powers(&mut self, hash_key: __m512i) {
        let mut lanes = [0; 4];
        store_numbers(&mut lanes, reflect(hash_key));
        let first = times_x(lanes[0]);
        // Powers 4 to 1, one after the other; then four at a time.
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
        for group in self.powers[..POWERS].as_chunks_mut::<4>().0.iter_mut().rev() {
            store_numbers(group, four);
            four = Product::of(four, step).reduce();
        }
        lanes.zeroize();
    }

    /// The powers from `highest` (at most [`POWERS`]) down, `4 N` of them, four to a vector; zero below the first power.
    #[inline]
    pub(crate) fn powers_from<const N: usize>(&self, highest: usize) -> &[[u128; 4]; N] {
        debug_assert!(highest <= POWERS && highest + 4 >= 4 * N, "power {highest} of {N} vectors");
        let fours = self.powers.get(POWERS.wrapping_sub(highest)..).map(|powers| powers.as_chunks::<4>().0);
        // The callers' powers are in range; the other arm costs less than a panic would.
        fours.and_then(|fours| fours.first_chunk()).unwrap_or(const { &[[0; 4]; N] })
    }

    /// The hash key itself.
    #[inline]
    pub(crate) fn first_power(&self) -> &u128 {
        &self.powers[POWERS - 1]
    }
}

impl Drop for ExpandedKey {
    fn drop(&mut self) {
        self.round_keys.zeroize();
        self.powers.zeroize();
    }
}

//! Per-key precomputation.

use crate::aes::{self, MAX_ROUND_KEYS};
use crate::ghash::{Product, reflect, times_x};
use crate::memory::{load_numbers, store_numbers};
use core::arch::x86_64::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use testudo_packet::prefetch;
use zeroize::Zeroize;

/// The highest power of the hash key that is used. One more than a multiple of four: see [`ExpandedKey`].
pub(crate) const POWERS: usize = 97;

/// The highest power that each key has, and that is used with many keys, which are seldom cached.
pub(crate) const FEW_POWERS: usize = 17;

/// The powers for a packet of one vector: for the AAD, three blocks of text and the lengths.
pub(crate) const SHORT_POWERS: usize = 5;

/// Behind the powers, these may be read: a chunk of a text has up to two blocks fewer than its vectors have
/// lanes, and the lengths come after it.
const BEHIND: usize = 3;

/// Powers of the hash key and round keys, zeroed when dropped; boxed, so that they never move.
///
/// A packet of one vector touches the last five powers and the round keys: four cache lines, because the
/// fifth power begins one. So does the seventeenth, the first one: all of it are eight lines.
#[repr(C, align(64))]
pub(crate) struct ExpandedKey {
    /// The powers from [`FEW_POWERS`] down to 1, reflected and times x (see [`crate::ghash`]); then the round
    /// keys, as in memory: byte 0 is the least significant byte of the number. The first one has the salt
    /// XORed into it, which begins every block that is encrypted (RFC 4106 4). The lanes after the last block
    /// of a text in its vector are zero, whatever they are multiplied by: they may read round keys.
    table: [u128; FEW_POWERS + MAX_ROUND_KEYS],
    /// All powers, for long packets of a key that is cached.
    all: Option<Box<AllPowers>>,
}

/// The powers from [`POWERS`] down to 1, and zeros behind them.
#[repr(C, align(64))]
struct AllPowers {
    table: [u128; POWERS + BEHIND],
    /// Given back with it.
    _place: Place,
}

/// Room for the powers of so many keys. A key takes 576 bytes without them, and 1.6 KB more with them, which
/// gain nothing where keys are so many that they are seldom cached.
#[derive(Clone)]
pub(crate) struct Room {
    places: Arc<AtomicUsize>,
}

/// A key's room for all powers.
struct Place(Arc<AtomicUsize>);

impl Room {
    pub(crate) fn for_keys(count: usize) -> Self {
        Self { places: Arc::new(AtomicUsize::new(count)) }
    }

    fn take(&self) -> Option<Place> {
        let fewer = |places: usize| places.checked_sub(1);
        let taken = self.places.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer);
        taken.ok().map(|_| Place(Arc::clone(&self.places)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Powers of a hash key, from the highest one down.
#[derive(Clone, Copy)]
pub(crate) struct Powers<'k> {
    table: &'k [u128],
    /// How many there are; what is behind them are arbitrary values.
    pub(crate) count: usize,
}

impl<'k> Powers<'k> {
    /// `4 N` powers from `highest` (at most their number) down, four to a vector; below the first power,
    /// arbitrary values.
    #[inline]
    pub(crate) fn from<const N: usize>(self, highest: usize) -> &'k [[u128; 4]; N] {
        debug_assert!(
            highest <= self.count && self.count - highest + 4 * N <= self.table.len(),
            "power {highest} of {}, {N} vectors",
            self.count
        );
        let fours =
            self.table.get(self.count.wrapping_sub(highest)..).map(|powers| powers.as_chunks::<4>().0);
        // The callers' powers are in range; the default costs less than a panic would.
        fours.and_then(|fours| fours.first_chunk()).unwrap_or(const { &[[0; 4]; N] })
    }
}

impl ExpandedKey {
    /// Expands a cipher key of 16 or 32 bytes whose nonces begin with `salt`. It has all powers if there is
    /// room for them.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    pub(crate) fn new(key: &[u8], salt: [u8; 4], room: &Room) -> Box<Self> {
        let mut new = Box::new(Self { table: [0; _], all: None });
        if let Some(round_keys) = new.table.last_chunk_mut() {
            aes::expand(key, round_keys);
        }
        let rounds = key.len() / 4 + 6;
        let hash_key = aes::encrypt_block(&new.table[FEW_POWERS..=FEW_POWERS + rounds], _mm_setzero_si128());
        let hash_key = _mm512_zextsi128_si512(hash_key);
        expand_powers(hash_key, &mut new.table[..FEW_POWERS]);
        new.table[FEW_POWERS] ^= u128::from(u32::from_le_bytes(salt));
        if let Some(place) = room.take() {
            let mut all = Box::new(AllPowers { table: [0; _], _place: place });
            expand_powers(hash_key, &mut all.table[..POWERS]);
            new.all = Some(all);
        }
        new
    }

    /// The powers that each key has.
    #[inline]
    pub(crate) fn few_powers(&self) -> Powers<'_> {
        Powers { table: &self.table, count: FEW_POWERS }
    }

    /// As many powers as there are.
    #[inline]
    pub(crate) fn most_powers(&self) -> Powers<'_> {
        match &self.all {
            Some(all) => Powers { table: &all.table, count: POWERS },
            None => self.few_powers(),
        }
    }

    /// The hash key itself.
    #[inline]
    pub(crate) fn first_power(&self) -> &u128 {
        &self.table[FEW_POWERS - 1]
    }

    /// Round key `round`, from 0 on.
    #[inline]
    pub(crate) fn round_key(&self, round: usize) -> &u128 {
        &self.table[FEW_POWERS + round]
    }

    /// Prefetches what is needed for a packet whose hash begins with power `highest`.
    #[inline]
    pub(crate) fn prefetch(&self, highest: usize) {
        prefetch(&self.table[FEW_POWERS - highest.min(FEW_POWERS)..]);
    }
}

/// The powers of the hash key, which is a block as AES outputs it: one more than a multiple of four.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
fn expand_powers(hash_key: __m512i, powers: &mut [u128]) {
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
    let (first, groups) = powers.as_rchunks_mut::<4>();
    for group in groups.iter_mut().rev() {
        store_numbers(group, four);
        four = Product::of(four, step).reduce();
    }
    store_numbers(&mut lanes, four);
    first.copy_from_slice(&lanes[lanes.len() - first.len()..]);
    lanes.zeroize();
}

impl Drop for AllPowers {
    fn drop(&mut self) {
        self.table.zeroize();
    }
}

impl Drop for ExpandedKey {
    fn drop(&mut self) {
        self.table.zeroize();
    }
}

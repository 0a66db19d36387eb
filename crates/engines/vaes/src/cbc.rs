//! AES-128-CBC (SP 800-38A 6.2): encryption of sixteen packets in parallel, decryption of one.
//!
//! Encryption is a chain, in which each block waits for the previous one. A vector takes a block of each of
//! four packets, and four vectors are as many AES instructions as the CPU can have in flight. Each lane has
//! its own round keys, laid out beforehand.

use crate::memory::{
    gather_blocks, load, load_number, load_numbers, load_prefix, scatter_blocks, store, store_numbers,
    store_prefix,
};
use core::arch::x86_64::*;

/// Packets that are done in parallel.
pub(crate) const LANES: usize = 16;

/// Vectors that hold one block of each packet.
const VECTORS: usize = LANES / 4;

/// Rounds of AES-128.
const ROUNDS: usize = 10;

/// Round keys of AES-128.
pub(crate) const ROUND_KEYS: usize = ROUNDS + 1;

/// Bytes of a block.
pub(crate) const BLOCK_BYTES: usize = 16;

/// Bytes of a packet that are encrypted at a time.
pub(crate) const CHUNK_BYTES: usize = 64;

/// The round keys of sixteen packets, vector by vector.
pub(crate) type LaidOut = [[[u128; 4]; VECTORS]; ROUND_KEYS];

/// Packets that are being encrypted.
pub(crate) struct Encryption<'p, 'k> {
    /// The last blocks of ciphertext, one 128-bit lane for each packet.
    pub(crate) chain: [__m512i; VECTORS],
    /// The packets' round keys.
    pub(crate) keys: &'k LaidOut,
    /// The next chunk of each packet.
    pub(crate) chunks: [&'p mut [u8; CHUNK_BYTES]; LANES],
}

impl Encryption<'_, '_> {
    /// Encrypts a chunk of each packet.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    pub(crate) fn run(&mut self) {
        let mut chain = self.chain;
        macro_rules! rounds {
            ($($n:literal)*) => { $( self.round::<0, $n>(&mut chain); )* };
        }
        rounds!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19);
        rounds!(20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39);
        self.chain = chain;
    }

    /// Round `N` of forty, which encrypt a chunk of each packet. A different `CALLER` gives each caller its
    /// own instance of the function, so that it is inlined.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    pub(crate) fn round<const CALLER: usize, const N: usize>(&mut self, chain: &mut [__m512i; VECTORS]) {
        let (block, round) = (N / ROUNDS, N % ROUNDS + 1);
        let keys = &self.keys[round];
        if round == 1 {
            for (vector, state) in chain.iter_mut().enumerate() {
                let text = gather_blocks(&self.chunks, vector, block);
                *state = _mm512_ternarylogic_epi32::<0x96>(*state, text, load_numbers(&self.keys[0][vector]));
            }
        }
        for (vector, state) in chain.iter_mut().enumerate() {
            if round < ROUNDS {
                *state = _mm512_aesenc_epi128(*state, load_numbers(&keys[vector]));
            } else {
                *state = _mm512_aesenclast_epi128(*state, load_numbers(&keys[vector]));
                scatter_blocks(&mut self.chunks, vector, block, *state);
            }
        }
    }
}

/// Round keys of sixteen packets as vectors.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
pub(crate) fn lay_out(keys: [&[u128; ROUND_KEYS]; LANES], to: &mut LaidOut) {
    let fours = keys.as_chunks::<4>().0;
    for (round, vectors) in to.iter_mut().enumerate() {
        for (vector, four) in vectors.iter_mut().zip(fours) {
            let [a, b, c, d] = four.map(|key| &key[round]);
            let two = _mm512_inserti32x4::<1>(_mm512_castsi128_si512(load_number(a)), load_number(b));
            let three = _mm512_inserti32x4::<2>(two, load_number(c));
            store_numbers(vector, _mm512_inserti32x4::<3>(three, load_number(d)));
        }
    }
}

/// The round keys for decryption (FIPS 197 5.3.5), in the order of their use.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
pub(crate) fn invert(keys: &[u128; ROUND_KEYS], to: &mut [u128; ROUND_KEYS]) {
    for (round, (to, key)) in to.iter_mut().zip(keys.iter().rev()).enumerate() {
        let key = load_number(key);
        let mixed = if round == 0 || round == ROUNDS { key } else { _mm_aesimc_si128(key) };
        let mut lanes = [0; 4];
        store_numbers(&mut lanes, _mm512_zextsi128_si512(mixed));
        *to = lanes[0];
        zeroize::Zeroize::zeroize(&mut lanes);
    }
}

/// Decrypts the whole blocks after the IV, in place. `packet` begins with the IV.
///
/// Backwards, because each block needs the ciphertext before it.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
pub(crate) fn decrypt(keys: &[u128; ROUND_KEYS], packet: &mut [u8]) {
    let mut rest = packet;
    while let Some(part) = rest.last_chunk_mut::<{ BLOCK_BYTES + 4 * CHUNK_BYTES }>() {
        decrypt_four(keys, part);
        rest = but_for_last(rest, 4 * CHUNK_BYTES);
    }
    while rest.len() > BLOCK_BYTES {
        let chunk = (rest.len() - BLOCK_BYTES).min(CHUNK_BYTES);
        let start = rest.len() - chunk;
        let (Some(text), Some(before)) =
            (rest.get(start..), rest.get(start - BLOCK_BYTES..rest.len() - BLOCK_BYTES))
        else {
            return;
        };
        let (mut state, before) = ([load_prefix(text)], load_prefix(before));
        decrypt_rounds(keys, &mut state);
        let text = _mm512_xor_si512(state[0], before);
        store_prefix(rest.get_mut(start..).unwrap_or_default(), text);
        rest = but_for_last(rest, chunk);
    }
}

/// The bytes before the last `bytes`.
#[inline]
fn but_for_last(whole: &mut [u8], bytes: usize) -> &mut [u8] {
    let end = whole.len().saturating_sub(bytes);
    whole.get_mut(..end).unwrap_or_default()
}

/// Decrypts four vectors, which a block of ciphertext precedes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
fn decrypt_four(keys: &[u128; ROUND_KEYS], part: &mut [u8; BLOCK_BYTES + 4 * CHUNK_BYTES]) {
    let Some(text) = part.last_chunk::<{ 4 * CHUNK_BYTES }>() else { return };
    let ([a, b, c, d], _) = text.as_chunks::<CHUNK_BYTES>() else { return };
    let mut states = [load(a), load(b), load(c), load(d)];
    let ([a, b, c, d, ..], _) = part.as_chunks::<CHUNK_BYTES>() else { return };
    let before = [load(a), load(b), load(c), load(d)];
    decrypt_rounds(keys, &mut states);
    let Some(text) = part.last_chunk_mut::<{ 4 * CHUNK_BYTES }>() else { return };
    let ([a, b, c, d], _) = text.as_chunks_mut::<CHUNK_BYTES>() else { return };
    store(a, _mm512_xor_si512(states[0], before[0]));
    store(b, _mm512_xor_si512(states[1], before[1]));
    store(c, _mm512_xor_si512(states[2], before[2]));
    store(d, _mm512_xor_si512(states[3], before[3]));
}

/// All rounds of vectors of blocks, without the XOR of CBC.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
fn decrypt_rounds<const N: usize>(keys: &[u128; ROUND_KEYS], states: &mut [__m512i; N]) {
    let [first, middle @ .., last] = keys;
    let key = _mm512_broadcast_i32x4(load_number(first));
    for state in &mut *states {
        *state = _mm512_xor_si512(*state, key);
    }
    for key in middle {
        let key = _mm512_broadcast_i32x4(load_number(key));
        for state in &mut *states {
            *state = _mm512_aesdec_epi128(*state, key);
        }
    }
    let key = _mm512_broadcast_i32x4(load_number(last));
    for state in &mut *states {
        *state = _mm512_aesdeclast_epi128(*state, key);
    }
}

//! SHA-1 (FIPS 180-4) of sixteen messages, one in each 32-bit lane.
//!
//! The instructions do not depend on the messages' lengths: a message that has ended keeps its state, because
//! the sum at the end of a block is masked.
//!
//! A round takes seven vector instructions and the schedule three, for which the CPU has two ports of 512
//! bits. AES occupies one of them: during encryption, a round of AES is placed between every two of SHA-1.

use crate::cbc::{Encryption, LANES};
use crate::memory::{load, load_words, store_blocks, store_words};
use core::arch::x86_64::*;

/// Bytes of a block.
pub(crate) const BLOCK_BYTES: usize = 64;

/// Words of a state.
pub(crate) const STATE_WORDS: usize = 5;

/// The state before the first block (FIPS 180-4 5.3.1).
const INITIAL: [u32; STATE_WORDS] = [0x6745_2301, 0xEFCD_AB89, 0x98BA_DCFE, 0x1032_5476, 0xC3D2_E1F0];

/// The states of sixteen messages, word by word.
pub(crate) type States = [__m512i; STATE_WORDS];

/// Sixteen words of each message.
type Words = [__m512i; 16];

/// Loads the states.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
pub(crate) fn load_states(from: &[[u32; LANES]; STATE_WORDS]) -> States {
    let [a, b, c, d, e] = from;
    [load_words(a), load_words(b), load_words(c), load_words(d), load_words(e)]
}

/// The inner and outer states of sixteen keys as vectors, from ten words of each.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
pub(crate) fn lay_out(
    keys: &[&[u8; BLOCK_BYTES]; LANES],
    inner: &mut [[u32; LANES]; STATE_WORDS],
    outer: &mut [[u32; LANES]; STATE_WORDS],
) {
    let words = transpose::<2>(keys);
    for (place, word) in inner.iter_mut().chain(outer).zip(words) {
        store_words(place, word);
    }
}

/// All rounds of a block, each followed by its `$beside`. A different `$caller` gives each caller its own
/// instance of the rounds' functions, so that they are inlined.
macro_rules! rounds {
    ($caller:literal, $v:ident, $words:ident, $beside:ident) => {
        rounds!(@each $caller, $v, $words, $beside:
            0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19
            20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39
            40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59
            60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79)
    };
    (@each $caller:literal, $v:ident, $words:ident, $beside:ident: $($t:literal)*) => {
        $(
            round::<$caller, $t>(&mut $v, &mut $words);
            $beside!($t);
        )*
    };
}

/// A `$beside` that does nothing.
macro_rules! nothing {
    ($t:literal) => {};
}

/// Hashes a block of each message of `active`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
pub(crate) fn compress(states: &mut States, active: __mmask16, blocks: &[&[u8; BLOCK_BYTES]; LANES]) {
    let (mut v, mut words) = (*states, transpose::<0>(blocks));
    rounds!(0, v, words, nothing);
    add(states, active, v);
}

/// Hashes a block of each message of `active`, and encrypts four blocks of each packet of `encryption`: after
/// every second round of SHA-1, one of AES.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
pub(crate) fn compress_and_encrypt(
    states: &mut States,
    active: __mmask16,
    blocks: &[&[u8; BLOCK_BYTES]; LANES],
    encryption: &mut Encryption<'_, '_>,
) {
    let (mut v, mut words) = (*states, transpose::<1>(blocks));
    let mut chain = encryption.chain;
    macro_rules! aes {
        ($t:literal) => {
            if $t % 2 == 1 {
                encryption.round::<1, { $t / 2 }>(&mut chain);
            }
        };
    }
    rounds!(1, v, words, aes);
    encryption.chain = chain;
    add(states, active, v);
}

/// HMAC's second half: hashes the digests `inner` as the last block of messages whose first block gave
/// `states`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
pub(crate) fn finish(states: &mut States, inner: &States) {
    // One block precedes it. The digest has 20 bytes; the length is in bits.
    const BITS: i32 = (64 + 20) * 8;
    let zero = _mm512_setzero_si512();
    let (end, bits) = (_mm512_set1_epi32(i32::MIN), _mm512_set1_epi32(BITS));
    let [a, b, c, d, e] = *inner;
    let mut v = *states;
    let mut words = [a, b, c, d, e, end, zero, zero, zero, zero, zero, zero, zero, zero, zero, bits];
    rounds!(2, v, words, nothing);
    add(states, u16::MAX, v);
}

/// The addition at the end of a block, for messages of `active`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
fn add(states: &mut States, active: __mmask16, v: States) {
    for (state, v) in states.iter_mut().zip(v) {
        *state = _mm512_mask_add_epi32(*state, active, *state, v);
    }
}

/// Round `T`, after which the letters change roles (FIPS 180-4 6.1.2), and the schedule's word for the round
/// 16 later.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
fn round<const CALLER: usize, const T: usize>(v: &mut States, words: &mut Words) {
    let [a, b, c, d, e] = [(80 - T) % 5, (81 - T) % 5, (82 - T) % 5, (83 - T) % 5, (84 - T) % 5];
    let (mixed, constant) = match T / 20 {
        0 => (_mm512_ternarylogic_epi32::<0xCA>(v[b], v[c], v[d]), 0x5A82_7999_u32),
        1 => (_mm512_ternarylogic_epi32::<0x96>(v[b], v[c], v[d]), 0x6ED9_EBA1),
        2 => (_mm512_ternarylogic_epi32::<0xE8>(v[b], v[c], v[d]), 0x8F1B_BCDC),
        _ => (_mm512_ternarylogic_epi32::<0x96>(v[b], v[c], v[d]), 0xCA62_C1D6),
    };
    let word = words[T % 16];
    let known = _mm512_add_epi32(_mm512_add_epi32(v[e], word), _mm512_set1_epi32(constant.cast_signed()));
    v[e] = _mm512_add_epi32(_mm512_add_epi32(known, mixed), _mm512_rol_epi32::<5>(v[a]));
    v[b] = _mm512_rol_epi32::<30>(v[b]);
    if T < 64 {
        let three =
            _mm512_ternarylogic_epi32::<0x96>(words[(T + 13) % 16], words[(T + 8) % 16], words[(T + 2) % 16]);
        words[T % 16] = _mm512_rol_epi32::<1>(_mm512_xor_si512(three, word));
    }
}

/// Transposes sixteen blocks into their words, in the order of numbers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
fn transpose<const CALLER: usize>(blocks: &[&[u8; BLOCK_BYTES]; LANES]) -> Words {
    // Four blocks to four vectors, each 128-bit lane of which has one word of the four.
    macro_rules! four {
        ($a:literal $b:literal $c:literal $d:literal) => {{
            let [a, b, c, d] = [load(blocks[$a]), load(blocks[$b]), load(blocks[$c]), load(blocks[$d])];
            let [ab, cd] = [_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d)];
            let [ab_high, cd_high] = [_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d)];
            [
                _mm512_unpacklo_epi64(ab, cd),
                _mm512_unpackhi_epi64(ab, cd),
                _mm512_unpacklo_epi64(ab_high, cd_high),
                _mm512_unpackhi_epi64(ab_high, cd_high),
            ]
        }};
    }
    let [p, q, r, s] = [four!(0 1 2 3), four!(4 5 6 7), four!(8 9 10 11), four!(12 13 14 15)];
    let swap = _mm512_broadcast_i32x4(_mm_setr_epi8(3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12));
    // 128-bit lanes to their words: lane l of vector k has word 4 l + k.
    macro_rules! words {
        ($k:literal) => {{
            let [even, odd] =
                [_mm512_shuffle_i32x4::<0x88>(p[$k], q[$k]), _mm512_shuffle_i32x4::<0xDD>(p[$k], q[$k])];
            let [even_high, odd_high] =
                [_mm512_shuffle_i32x4::<0x88>(r[$k], s[$k]), _mm512_shuffle_i32x4::<0xDD>(r[$k], s[$k])];
            [
                _mm512_shuffle_epi8(_mm512_shuffle_i32x4::<0x88>(even, even_high), swap),
                _mm512_shuffle_epi8(_mm512_shuffle_i32x4::<0x88>(odd, odd_high), swap),
                _mm512_shuffle_epi8(_mm512_shuffle_i32x4::<0xDD>(even, even_high), swap),
                _mm512_shuffle_epi8(_mm512_shuffle_i32x4::<0xDD>(odd, odd_high), swap),
            ]
        }};
    }
    let [[a, e, i, m], [b, f, j, n], [c, g, k, o], [d, h, l, p]] =
        [words!(0), words!(1), words!(2), words!(3)];
    [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]
}

/// The first twelve bytes of each digest, followed by zeros.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
pub(crate) fn first_bytes(states: &States, digests: &mut [[[u8; 16]; 4]; 4]) {
    let swap = _mm512_broadcast_i32x4(_mm_setr_epi8(3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12));
    let [a, b, c, ..] = *states;
    let zero = _mm512_setzero_si512();
    let [ab, ab_high] = [_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b)];
    let [c, c_high] = [_mm512_unpacklo_epi32(c, zero), _mm512_unpackhi_epi32(c, zero)];
    let [first, second, third, fourth] = digests;
    store_blocks(first, _mm512_shuffle_epi8(_mm512_unpacklo_epi64(ab, c), swap));
    store_blocks(second, _mm512_shuffle_epi8(_mm512_unpackhi_epi64(ab, c), swap));
    store_blocks(third, _mm512_shuffle_epi8(_mm512_unpacklo_epi64(ab_high, c_high), swap));
    store_blocks(fourth, _mm512_shuffle_epi8(_mm512_unpackhi_epi64(ab_high, c_high), swap));
}

/// The state after one block of a key, padded with `pad` (RFC 2104 2): what HMAC computes once per key.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
pub(crate) fn key_state(key: &[u8], pad: u8) -> [u32; STATE_WORDS] {
    let mut block = zeroize::Zeroizing::new([pad; BLOCK_BYTES]);
    block.iter_mut().zip(key).for_each(|(byte, key)| *byte ^= key);
    let mut states = INITIAL.map(|word| _mm512_set1_epi32(word.cast_signed()));
    compress(&mut states, u16::MAX, &[&block; LANES]);
    states.map(|word| _mm_cvtsi128_si32(_mm512_castsi512_si128(word)).cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One block as FIPS 180-4 6.1.2 writes it.
    fn plain(state: [u32; 5], block: &[u8; 64]) -> [u32; 5] {
        let mut w: Vec<u32> = block.as_chunks().0.iter().map(|word| u32::from_be_bytes(*word)).collect();
        for t in 16..80 {
            w.push((w[t - 3] ^ w[t - 8] ^ w[t - 14] ^ w[t - 16]).rotate_left(1));
        }
        let [mut a, mut b, mut c, mut d, mut e] = state;
        for (t, w) in w.into_iter().enumerate() {
            let (f, k) = match t / 20 {
                0 => ((b & c) ^ (!b & d), 0x5A82_7999),
                1 => (b ^ c ^ d, 0x6ED9_EBA1),
                2 => ((b & c) ^ (b & d) ^ (c & d), 0x8F1B_BCDC),
                _ => (b ^ c ^ d, 0xCA62_C1D6_u32),
            };
            let next = a.rotate_left(5).wrapping_add(f).wrapping_add(e).wrapping_add(k).wrapping_add(w);
            (a, b, c, d, e) = (next, a, b.rotate_left(30), c, d);
        }
        let [p, q, r, s, t] = state;
        [p.wrapping_add(a), q.wrapping_add(b), r.wrapping_add(c), s.wrapping_add(d), t.wrapping_add(e)]
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn compressed(blocks: &[[[u8; 64]; LANES]], actives: &[u16]) -> [[u32; LANES]; STATE_WORDS] {
        let mut states = INITIAL.map(|word| _mm512_set1_epi32(word.cast_signed()));
        for (blocks, active) in blocks.iter().zip(actives) {
            compress(&mut states, *active, &blocks.each_ref());
        }
        let mut words = [[0; LANES]; STATE_WORDS];
        for (words, state) in words.iter_mut().zip(states) {
            // SAFETY: 64 writable bytes; unaligned is allowed.
            unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), state) };
        }
        words
    }

    #[test]
    fn sixteen_lanes_are_sixteen_messages() {
        let base = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
        let more = is_x86_feature_detected!("avx512dq") && is_x86_feature_detected!("avx512vl");
        let crypto = is_x86_feature_detected!("vaes") && is_x86_feature_detected!("vpclmulqdq");
        if !(base && more && crypto && is_x86_feature_detected!("bmi2")) {
            println!("skipped: the CPU lacks instructions");
            return;
        }
        let mut number = 1_u64;
        let mut random = || {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            number.to_be_bytes()[0]
        };
        let blocks: Vec<[[u8; 64]; LANES]> =
            (0..5).map(|_| [(); LANES].map(|()| [(); 64].map(|()| random()))).collect();
        let actives = [0xFFFF, 0xFFFF, 0x0F5A, 0x0000, 0x8001];
        // SAFETY: the CPU has the instructions, as just checked.
        let words = unsafe { compressed(&blocks, &actives) };
        for lane in 0..LANES {
            let mut state = INITIAL;
            for (blocks, active) in blocks.iter().zip(actives) {
                if active >> lane & 1 == 1 {
                    state = plain(state, &blocks[lane]);
                }
            }
            assert_eq!(words.map(|word| word[lane]), state, "lane {lane}");
        }
    }

    #[test]
    fn the_plain_model_is_sha_1() {
        // FIPS 180-4's example "abc".
        let mut block = [0; 64];
        block[..4].copy_from_slice(b"abc\x80");
        block[63] = 24;
        assert_eq!(plain(INITIAL, &block), [0xA999_3E36, 0x4706_816A, 0xBA3E_2571, 0x7850_C26C, 0x9CD0_D89D]);
    }
}

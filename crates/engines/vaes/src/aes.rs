//! AES (FIPS 197) on vectors of four blocks.

use crate::key::ExpandedKey;
use crate::memory::load_number;
use core::arch::x86_64::*;

/// Round keys of the longest key.
pub(crate) const MAX_ROUND_KEYS: usize = 15;

/// One round key in all four lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
pub(crate) fn round_key(key: &ExpandedKey, round: usize) -> __m512i {
    _mm512_broadcast_i32x4(load_number(key.round_key(round)))
}

/// No instruction, only an ordering for the compiler: neither vector's next use comes before the values of
/// both are computed.
///
/// The order of the instructions matters because the CPU's schedulers are filled in that order, and hold less
/// than one chunk's encryption and another one's hash. The compiler does not know this, and schedules one
/// vector's rounds after another's.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
pub(crate) fn in_step(a: &mut __m512i, b: &mut __m512i) {
    // SAFETY: an assembly comment, no instruction; nothing else keeps the compiler from reordering.
    unsafe {
        core::arch::asm!(
            "/* {} {} */",
            inout(zmm_reg) * a,
            inout(zmm_reg) * b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
}

/// Expands a key of 16 or 32 bytes into round keys (FIPS 197, 5.2), byte order as in memory; the rest stays
/// zero.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
pub(crate) fn expand(key: &[u8], round_keys: &mut [u128; MAX_ROUND_KEYS]) {
    let key_words = key.len() / 4;
    let mut words = zeroize::Zeroizing::new([0_u32; 4 * MAX_ROUND_KEYS]);
    for (word, bytes) in words.iter_mut().zip(key.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    let mut constant = 1_u32;
    for i in key_words..4 * (key_words + 7) {
        let mut word = words[i - 1];
        if i % key_words == 0 {
            word = substitute(word).rotate_right(8) ^ constant;
            constant = (constant << 1) ^ ((constant >> 7) * 0x11B);
        } else if key_words > 6 && i % key_words == 4 {
            word = substitute(word);
        }
        words[i] = words[i - key_words] ^ word;
    }
    for (round_key, four) in round_keys.iter_mut().zip(words.as_chunks::<4>().0) {
        *round_key = four.iter().rev().fold(0, |number, word| number << 32 | u128::from(*word));
    }
}

/// SubWord of FIPS 197: the last round applies it to each byte, and its byte permutation has no effect where
/// all columns are equal.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
fn substitute(word: u32) -> u32 {
    let columns = _mm_set1_epi32(word.cast_signed());
    _mm_cvtsi128_si32(_mm_aesenclast_si128(columns, _mm_setzero_si128())).cast_unsigned()
}

/// AES of one block, for the hash key.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
pub(crate) fn encrypt_block(round_keys: &[u128], block: __m128i) -> __m128i {
    let [first, middle @ .., last] = round_keys else { return block };
    let start = _mm_xor_si128(block, load_number(first));
    let state = middle.iter().fold(start, |state, key| _mm_aesenc_si128(state, load_number(key)));
    _mm_aesenclast_si128(state, load_number(last))
}

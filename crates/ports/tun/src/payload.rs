//! Checksums of whole payloads, with the widest vectors available: with narrow ones they cost half as much as
//! the cryptography.

use testudo_wire::checksum::Sum;

/// Adds a payload to a sum.
pub(crate) fn add(sum: Sum, payload: &[u8]) -> Sum {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx512f") && std::arch::is_x86_feature_detected!("avx512bw") {
            // SAFETY: the processor has AVX512F and AVX512BW, as was just checked; the function needs nothing
            // else. A safe call is impossible, since the compiler cannot see a check at run time.
            return sum.words(unsafe { sum_avx512(payload) });
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: as above, with AVX2.
            return unsafe { add_avx2(sum, payload) };
        }
    }
    sum.bytes(payload)
}

/// The same loop, compiled for 32-byte vectors.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn add_avx2(sum: Sum, payload: &[u8]) -> Sum {
    sum.bytes(payload)
}

/// The sum of the payload's 32-bit words in native order, the last one padded with zeros. Two vectors per
/// step, each with its own two accumulators: the compiler's own loop for these vectors takes a third longer,
/// because it ends with a loop over single words.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw")]
fn sum_avx512(payload: &[u8]) -> u64 {
    use std::arch::x86_64::{
        __m512i, _mm512_add_epi64, _mm512_and_si512, _mm512_loadu_si512, _mm512_maskz_loadu_epi8,
        _mm512_reduce_add_epi64, _mm512_set1_epi64, _mm512_setzero_si512, _mm512_srli_epi64,
    };
    let low_word = _mm512_set1_epi64(0xFFFF_FFFF);
    let add = |[low, high]: [__m512i; 2], bytes: __m512i| {
        let low = _mm512_add_epi64(low, _mm512_and_si512(bytes, low_word));
        [low, _mm512_add_epi64(high, _mm512_srli_epi64::<32>(bytes))]
    };
    let (mut first, mut second) = ([_mm512_setzero_si512(); 2], [_mm512_setzero_si512(); 2]);
    let (pairs, rest) = payload.as_chunks::<128>();
    for pair in pairs {
        // SAFETY: a pair has 128 bytes, 64 for each load; neither load needs alignment.
        let (a, b) = unsafe {
            (_mm512_loadu_si512(pair.as_ptr().cast()), _mm512_loadu_si512(pair[64..].as_ptr().cast()))
        };
        first = add(first, a);
        second = add(second, b);
    }
    for part in rest.chunks(64) {
        let mask = u64::MAX >> (64 - part.len());
        // SAFETY: only the bytes that the mask names are read, as many as `part` has (1 to 64, so that the
        // shift is below 64).
        first = add(first, unsafe { _mm512_maskz_loadu_epi8(mask, part.as_ptr().cast()) });
    }
    let [low, high] = [_mm512_add_epi64(first[0], second[0]), _mm512_add_epi64(first[1], second[1])];
    // Below 2^48 for a payload of 64 KiB, so the sign does not matter.
    _mm512_reduce_add_epi64(_mm512_add_epi64(low, high)).cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_vectors_give_the_sum_of_narrow_ones_at_every_length_and_offset() {
        let bytes: Vec<u8> = (0..2200u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 23) as u8).collect();
        for start in 0..33 {
            for length in 0..2100 {
                let part = &bytes[start..start + length];
                let narrow = Sum::default().bytes(part).finish();
                assert_eq!(add(Sum::default(), part).finish(), narrow, "{length} bytes from {start}");
            }
        }
        let ones = [0xFF; 65_536];
        assert_eq!(add(Sum::default(), &ones).finish(), Sum::default().bytes(&ones).finish());
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn vectors_of_32_bytes_too() {
        if !std::arch::is_x86_feature_detected!("avx2") {
            return;
        }
        let bytes: Vec<u8> = (0..2100u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 23) as u8).collect();
        for length in 0..2100 {
            let part = &bytes[..length];
            // SAFETY: the processor has AVX2, as was just checked.
            let wide = unsafe { add_avx2(Sum::default(), part) };
            assert_eq!(wide.finish(), Sum::default().bytes(part).finish(), "{length} bytes");
        }
    }
}

//! Checksums of whole payloads with the widest vectors at hand: they cost as much as half the cryptography with narrow ones.

use testudo_wire::checksum::Sum;

/// Adds a payload to a sum.
pub(crate) fn add(sum: Sum, payload: &[u8]) -> Sum {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2, as was just asked; the function needs nothing else. A safe call is not possible, since the
        // compiler cannot know what was asked at run time.
        return unsafe { add_avx2(sum, payload) };
    }
    sum.bytes(payload)
}

/// The same loop, compiled for 32-byte vectors.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn add_avx2(sum: Sum, payload: &[u8]) -> Sum {
    sum.bytes(payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_vectors_give_the_sum_of_narrow_ones_at_every_length_and_place() {
        let bytes: Vec<u8> = (0..2200u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 23) as u8).collect();
        for start in 0..33 {
            for length in 0..2100 {
                let part = &bytes[start..start + length];
                let narrow = Sum::default().bytes(part).finish();
                assert_eq!(add(Sum::default(), part).finish(), narrow, "{length} bytes from {start}");
            }
        }
    }
}

//! Every load and store of vectors, as functions that cannot leave the memory of their arguments.
//!
//! Loads and stores at the edges of a text are masked: bytes outside the mask are neither read nor written,
//! whatever the address, and reading them gives zero.

use core::arch::x86_64::*;
use core::marker::PhantomData;

/// Bytes of a vector.
pub(crate) const VECTOR_BYTES: usize = 64;

/// Bytes of the first vector that precede the text: J0 in the key stream, the AAD in the hash input.
pub(crate) const BEFORE_TEXT: usize = 16;

/// Number of vectors of a text of `text_bytes` and the block before it; at least one.
pub(crate) const fn vectors(text_bytes: usize) -> usize {
    (text_bytes + BEFORE_TEXT).div_ceil(VECTOR_BYTES)
}

/// Which bytes of vector `vector` belong to a text of `text_bytes`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
pub(crate) fn mask(text_bytes: usize, vector: usize) -> u64 {
    let end = (text_bytes + BEFORE_TEXT).saturating_sub(vector * VECTOR_BYTES).min(VECTOR_BYTES);
    // `end` is 64 at the most.
    #[allow(clippy::cast_possible_truncation, reason = "at most 64")]
    let below_end = _bzhi_u64(u64::MAX, end as u32);
    if vector == 0 { below_end & (u64::MAX << BEFORE_TEXT) } else { below_end }
}

/// Vector `vector` of a text; bytes outside the text are zero.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
pub(crate) fn load_edge(text: &[u8], vector: usize) -> __m512i {
    let start = text.as_ptr().wrapping_add(vector * VECTOR_BYTES).wrapping_sub(BEFORE_TEXT);
    // SAFETY: byte i of the vector is byte `64 vector - 16 + i` of the text, and the mask has exactly the
    // bits for which that is inside `text`; other bytes are not accessed. A safe slice would need a copy
    // where less than a vector is left.
    unsafe { _mm512_maskz_loadu_epi8(mask(text.len(), vector), start.cast()) }
}

/// Writes those bytes of `value` that belong to vector `vector` of a text.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
pub(crate) fn store_edge(text: &mut [u8], vector: usize, value: __m512i) {
    let mask = mask(text.len(), vector);
    let start = text.as_mut_ptr().wrapping_add(vector * VECTOR_BYTES).wrapping_sub(BEFORE_TEXT);
    // SAFETY: as for `load_edge`; the reference is exclusive.
    unsafe { _mm512_mask_storeu_epi8(start.cast(), mask, value) }
}

/// A whole vector.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
pub(crate) fn load(from: &[u8; VECTOR_BYTES]) -> __m512i {
    // SAFETY: 64 readable bytes; unaligned is allowed. There is no safe load of a vector.
    unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
}

/// Writes a whole vector.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
pub(crate) fn store(to: &mut [u8; VECTOR_BYTES], value: __m512i) {
    // SAFETY: 64 writable bytes, borrowed exclusively; unaligned is allowed.
    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), value) }
}

/// A block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
pub(crate) fn load_block(from: &[u8; 16]) -> __m128i {
    // SAFETY: 16 readable bytes; unaligned is allowed.
    unsafe { _mm_loadu_si128(from.as_ptr().cast()) }
}

/// Writes a block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
pub(crate) fn store_block(to: &mut [u8; 16], value: __m128i) {
    // SAFETY: 16 writable bytes, borrowed exclusively; unaligned is allowed.
    unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), value) }
}

/// A number as a vector, its least significant byte first.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
pub(crate) fn load_number(from: &u128) -> __m128i {
    // SAFETY: 16 readable bytes, aligned to 16 (x86-64's `u128`).
    unsafe { _mm_load_si128(core::ptr::from_ref(from).cast()) }
}

/// Four numbers in the lanes of a vector, the first in the lowest.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
pub(crate) fn load_numbers(from: &[u128; 4]) -> __m512i {
    // SAFETY: 64 readable bytes; unaligned is allowed.
    unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
}

/// Writes the lanes of a vector as numbers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
pub(crate) fn store_numbers(to: &mut [u128; 4], value: __m512i) {
    // SAFETY: 64 writable bytes, borrowed exclusively; unaligned is allowed.
    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), value) }
}

/// The first bytes of a vector, up to 64, then zeros.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
pub(crate) fn load_prefix(from: &[u8]) -> __m512i {
    // SAFETY: the mask admits no byte after the end of `from`; the others are not accessed.
    unsafe { _mm512_maskz_loadu_epi8(prefix_mask(from.len()), from.as_ptr().cast()) }
}

/// Writes the first bytes of a vector, up to 64 and as many as `to` has.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
pub(crate) fn store_prefix(to: &mut [u8], value: __m512i) {
    // SAFETY: as for `load_prefix`; the reference is exclusive.
    unsafe { _mm512_mask_storeu_epi8(to.as_mut_ptr().cast(), prefix_mask(to.len()), value) }
}

/// Mask of the first `bytes` of a vector.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
pub(crate) fn prefix_mask(bytes: usize) -> u64 {
    #[allow(clippy::cast_possible_truncation, reason = "at most 64")]
    let bytes = bytes.min(VECTOR_BYTES) as u32;
    _bzhi_u64(u64::MAX, bytes)
}

/// Sixteen words.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
pub(crate) fn load_words(from: &[u32; 16]) -> __m512i {
    // SAFETY: 64 readable bytes; unaligned is allowed.
    unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
}

/// Writes sixteen words.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
pub(crate) fn store_words(to: &mut [u32; 16], value: __m512i) {
    // SAFETY: 64 writable bytes, borrowed exclusively; unaligned is allowed.
    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), value) }
}

/// Writes the lanes of a vector.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
pub(crate) fn store_blocks(to: &mut [[u8; 16]; 4], value: __m512i) {
    // SAFETY: 64 writable bytes, borrowed exclusively; unaligned is allowed.
    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), value) }
}

/// Block `block` of each of four chunks, those from `4 vector` on, in the lanes of a vector.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
pub(crate) fn gather_blocks(chunks: &[&mut [u8; VECTOR_BYTES]; 16], vector: usize, block: usize) -> __m512i {
    let from = |chunk: &&mut [u8; VECTOR_BYTES]| load_block(&chunk.as_chunks::<16>().0[block]);
    let [a, b, c, d] = &chunks.as_chunks::<4>().0[vector];
    let first = _mm512_castsi128_si512(from(a));
    let two = _mm512_inserti32x4::<1>(first, from(b));
    _mm512_inserti32x4::<3>(_mm512_inserti32x4::<2>(two, from(c)), from(d))
}

/// Stores the lanes of a vector to where [`gather_blocks`] loads them from.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
pub(crate) fn scatter_blocks(
    chunks: &mut [&mut [u8; VECTOR_BYTES]; 16],
    vector: usize,
    block: usize,
    value: __m512i,
) {
    let [a, b, c, d] = &mut chunks.as_chunks_mut::<4>().0[vector];
    store_block(&mut a.as_chunks_mut::<16>().0[block], _mm512_castsi512_si128(value));
    store_block(&mut b.as_chunks_mut::<16>().0[block], _mm512_extracti32x4_epi32::<1>(value));
    store_block(&mut c.as_chunks_mut::<16>().0[block], _mm512_extracti32x4_epi32::<2>(value));
    store_block(&mut d.as_chunks_mut::<16>().0[block], _mm512_extracti32x4_epi32::<3>(value));
}

/// Sixteen packets, as far as the shortest one reaches. The same range of each is found with one check, not
/// sixteen.
pub(crate) struct Columns<'a> {
    starts: [*mut u8; 16],
    bytes: usize,
    packets: PhantomData<&'a mut [u8]>,
}

impl<'a> Columns<'a> {
    pub(crate) fn new(packets: [&'a mut [u8]; 16]) -> Self {
        let bytes = packets.iter().map(|packet| packet.len()).min().unwrap_or(0);
        Self { starts: packets.map(<[u8]>::as_mut_ptr), bytes, packets: PhantomData }
    }

    /// The 64 bytes from `at` on of each packet; `None` if they are not inside all packets.
    #[inline]
    pub(crate) fn part(&self, at: usize) -> Option<SharedParts<'_>> {
        if at.checked_add(VECTOR_BYTES)? > self.bytes {
            return None;
        }
        // SAFETY: each packet is borrowed for longer than `self` is here, and has `bytes` bytes, in which the
        // range is, as just checked. While `self` is borrowed it gives out nothing mutable.
        Some(self.starts.map(|start| unsafe { &*start.add(at).cast_const().cast() }))
    }

    /// The 64 bytes from `shared` on of each packet, to be read, and those from `exclusive` on, to be
    /// changed; `None` if they overlap, or are not inside all packets.
    #[inline]
    pub(crate) fn parts(
        &mut self,
        shared: usize,
        exclusive: usize,
    ) -> Option<(SharedParts<'_>, ExclusiveParts<'_>)> {
        if shared.checked_add(VECTOR_BYTES)? > exclusive || exclusive.checked_add(VECTOR_BYTES)? > self.bytes
        {
            return None;
        }
        // SAFETY: each packet is borrowed exclusively for longer than `self` is here, and has `bytes` bytes.
        // Both ranges are inside them and do not overlap, as just checked. Earlier borrows have ended, since
        // `self` is borrowed exclusively.
        Some(unsafe {
            (
                self.starts.map(|start| &*start.add(shared).cast_const().cast()),
                self.starts.map(|start| &mut *start.add(exclusive).cast()),
            )
        })
    }
}

/// 64 bytes of each of sixteen packets.
pub(crate) type SharedParts<'a> = [&'a [u8; VECTOR_BYTES]; 16];

/// 64 bytes of each of sixteen packets, to be changed.
pub(crate) type ExclusiveParts<'a> = [&'a mut [u8; VECTOR_BYTES]; 16];

//! AES-GCM over chains of buffers: a text in pieces of any lengths.
//!
//! ```text
//!   pieces     … | 256 | 256 | 7 ► 249 | 256 | …
//!                  in place    staged    in place
//! ```
//!
//! Sixteen blocks are done at a time, where they are if one piece has them all. Those around a border are
//! copied out and back. The hash of one chunk is not computed beside the next one's rounds, as it is for
//! texts in one piece ([`crate::long`]), and is reduced after each.

use crate::aes::round_key;
use crate::ghash::{Product, reflect};
use crate::key::ExpandedKey;
use crate::memory::{VECTOR_BYTES, load, load_block, load_number, prefix_mask, store, store_block};
use crate::packet::ICV_BYTES;
use core::arch::x86_64::*;
use testudo_crypto::{ChainParts, ChainShape, Direction, JobStatus, Pieces};

/// Vectors that are done at a time: enough to hide the latency of one AES round.
const CHUNK: usize = 4;
const CHUNK_BYTES: usize = CHUNK * VECTOR_BYTES;
const CHUNK_BLOCKS: u32 = 16;
const BLOCK_BYTES: usize = 16;
/// Counters of the block for the ICV and of a text's first one (SP 800-38D 7.1).
const ICV_COUNTER: u32 = 1;
const TEXT_COUNTER: u32 = 2;

/// Text of which as much is done at a time.
type Chunk = [[u8; VECTOR_BYTES]; CHUNK];

/// How packets of this engine's suites of AES-GCM are laid out.
pub(crate) fn shape(is_vpe: bool) -> ChainShape {
    ChainShape { iv_bytes: if is_vpe { 0 } else { 8 }, icv_bytes: ICV_BYTES, is_vpe }
}

/// Seals or opens a packet under a key of `ROUNDS` rounds. The nonce of `parts` is without the key's salt,
/// which is part of its first round key. Of a packet whose ICV is wrong the text is wiped.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
pub(crate) fn packet<const ROUNDS: usize>(
    key: &ExpandedKey,
    direction: Direction,
    mut parts: ChainParts<'_>,
) -> JobStatus {
    let opens = direction == Direction::Open;
    let mut pass = Pass::<ROUNDS>::begin(key, opens, &parts.nonce, parts.aad.as_bytes());
    let total: usize = parts.text.iter().map(|piece| piece.len()).sum();
    let (mut place, mut left) = (Place::default(), total);
    while left > 0 {
        let bytes = left.min(CHUNK_BYTES);
        if let Some(chunk) = place.chunk(&mut parts.text) {
            pass.chunk(chunk, bytes);
        } else {
            let (mut staged, mut back) = ([[0; VECTOR_BYTES]; CHUNK], place);
            let out = &mut staged.as_flattened_mut()[..bytes];
            place.each(&mut parts.text, out, |piece, staged| staged.copy_from_slice(piece));
            pass.chunk(&mut staged, bytes);
            let done = &mut staged.as_flattened_mut()[..bytes];
            back.each(&mut parts.text, done, |piece, staged| piece.copy_from_slice(staged));
        }
        left -= bytes;
    }
    let icv = pass.end(parts.aad.as_bytes().len(), total);
    if !opens {
        parts.set_icv(&icv);
        return JobStatus::Done;
    }
    // All bytes at once, in constant time.
    let difference = _mm_xor_si128(load_block(&icv), load_block(&parts.icv()));
    if parts.icv_bytes() == ICV_BYTES && _mm_testz_si128(difference, difference) == 1 {
        return JobStatus::Done;
    }
    parts.text.iter_mut().for_each(|piece| piece.fill(0));
    JobStatus::AuthenticationFailed
}

/// A place in a text in pieces.
#[derive(Clone, Copy, Default)]
struct Place {
    piece: usize,
    at: usize,
}

impl Place {
    /// Goes on by `count` bytes of a piece that has `bytes`.
    fn advance(&mut self, count: usize, bytes: usize) {
        self.at += count;
        if self.at >= bytes {
            *self = Self { piece: self.piece + 1, at: 0 };
        }
    }

    /// The next chunk, if one piece has all of it.
    fn chunk<'t>(&mut self, text: &'t mut Pieces<'_>) -> Option<&'t mut Chunk> {
        let (at, piece) = (self.at, text.get_mut(self.piece)?);
        let bytes = piece.len();
        let (vectors, _) = piece.get_mut(at..at + CHUNK_BYTES)?.as_chunks_mut::<VECTOR_BYTES>();
        self.advance(CHUNK_BYTES, bytes);
        vectors.first_chunk_mut()
    }

    /// Copies between the next pieces and `staged`, as much as that has.
    fn each(
        &mut self,
        text: &mut Pieces<'_>,
        mut staged: &mut [u8],
        mut copy: impl FnMut(&mut [u8], &mut [u8]),
    ) {
        while !staged.is_empty() {
            let Some(piece) = text.get_mut(self.piece) else { return };
            let bytes = piece.len();
            let here = piece.get_mut(self.at..).unwrap_or_default();
            let count = here.len().min(staged.len());
            let (now, behind) = std::mem::take(&mut staged).split_at_mut(count);
            copy(&mut here[..count], now);
            staged = behind;
            self.advance(count, bytes);
        }
    }
}

/// A packet in progress.
struct Pass<'k, const ROUNDS: usize> {
    key: &'k ExpandedKey,
    opens: bool,
    /// Nonce XOR the first round key.
    start: __m512i,
    /// The next block's counter.
    counter: u32,
    /// The hash so far, reflected, in the first lane; the others are zero.
    hash: __m512i,
}

impl<'k, const ROUNDS: usize> Pass<'k, ROUNDS> {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn begin(key: &'k ExpandedKey, opens: bool, nonce: &[u8; 12], aad: &[u8]) -> Self {
        let (mut block, mut first) = ([0; BLOCK_BYTES], [0; BLOCK_BYTES]);
        block[..nonce.len()].copy_from_slice(nonce);
        // Twelve bytes at the most. Where there are none, a block of zeros is hashed as nothing is.
        first[..aad.len()].copy_from_slice(aad);
        let start = _mm512_xor_si512(_mm512_broadcast_i32x4(load_block(&block)), round_key(key, 0));
        let hash = times_key(key, reflect(_mm512_zextsi128_si512(load_block(&first))));
        Self { key, opens, start, counter: TEXT_COUNTER, hash }
    }

    /// Does the next chunk, of which the first `bytes` are text and the rest is zero, and stays so. Only the
    /// last one of a text has fewer than all.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn chunk(&mut self, text: &mut Chunk, bytes: usize) {
        let stream = key_stream::<ROUNDS, CHUNK>(self.key, self.start, self.counter);
        let mut hashed = [_mm512_setzero_si512(); CHUNK];
        for v in 0..CHUNK {
            let before = load(&text[v]);
            let is_text = prefix_mask(bytes.saturating_sub(v * VECTOR_BYTES));
            let after = _mm512_maskz_mov_epi8(is_text, _mm512_xor_si512(before, stream[v]));
            store(&mut text[v], after);
            hashed[v] = reflect(if self.opens { before } else { after });
        }
        hashed[0] = _mm512_xor_si512(hashed[0], self.hash);
        // What is below the first power is multiplied by zeros.
        let powers = self.key.few_powers().from::<CHUNK>(bytes.div_ceil(BLOCK_BYTES));
        self.hash = Product::sum(&hashed, powers).reduce_sum();
        self.counter += CHUNK_BLOCKS;
    }

    /// The ICV of a text of so many bytes, with so many authenticated beside it.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn end(self, aad_bytes: usize, text_bytes: usize) -> [u8; ICV_BYTES] {
        let bits = |bytes: usize| (bytes as u64 * 8).cast_signed();
        let lengths = _mm_set_epi64x(bits(aad_bytes), bits(text_bytes));
        let last = _mm512_xor_si512(self.hash, _mm512_zextsi128_si512(lengths));
        let hash = _mm512_castsi512_si128(reflect(times_key(self.key, last)));
        let [first] = key_stream::<ROUNDS, 1>(self.key, self.start, ICV_COUNTER);
        let mut icv = [0; ICV_BYTES];
        store_block(&mut icv, _mm_xor_si128(hash, _mm512_castsi512_si128(first)));
        icv
    }
}

/// The block in the first lane, reflected, times the hash key.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
fn times_key(key: &ExpandedKey, block: __m512i) -> __m512i {
    Product::of(block, _mm512_zextsi128_si512(load_number(key.first_power()))).reduce_sum()
}

/// The key stream of `N` vectors from the block with counter `first` on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
fn key_stream<const ROUNDS: usize, const N: usize>(
    key: &ExpandedKey,
    start: __m512i,
    first: u32,
) -> [__m512i; N] {
    let mut states = [start; N];
    for (state, vector) in states.iter_mut().zip(0..) {
        *state = _mm512_xor_si512(*state, counters(first + 4 * vector));
    }
    for round in 1..ROUNDS {
        let round_key = round_key(key, round);
        for state in &mut states {
            *state = _mm512_aesenc_epi128(*state, round_key);
        }
    }
    let last = round_key(key, ROUNDS);
    for state in &mut states {
        *state = _mm512_aesenclast_epi128(*state, last);
    }
    states
}

/// Four counters from `first` on, at their position in counter blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
fn counters(first: u32) -> __m512i {
    let word = |lane: u32| i32::from_le_bytes((first + lane).to_be_bytes());
    let (a, b, c, d) = (word(0), word(1), word(2), word(3));
    _mm512_setr_epi32(0, 0, 0, a, 0, 0, 0, b, 0, 0, 0, c, 0, 0, 0, d)
}

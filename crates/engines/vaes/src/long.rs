//! One packet of any length.

use crate::aes::{in_step, round_key};
use crate::ghash::{Product, reflect};
use crate::key::{ExpandedKey, POWERS};
use crate::memory::{
    BEFORE_TEXT, VECTOR_BYTES, load, load_edge, load_number, mask, store, store_edge, vectors,
};
use crate::packet::Packet;
use core::arch::x86_64::*;

/// Vectors that are encrypted at a time: as many as hide the latency of one AES round.
const CHUNK: usize = 4;

/// Blocks after which the hash is reduced, while more blocks than there are powers remain: whole chunks.
const GROUP: usize = 12 * CHUNK;

/// Four counter blocks but for their nonces.
#[repr(align(64))]
struct Counters([u8; VECTOR_BYTES]);

/// The counters of the first vectors, all that packets of common sizes need: a load instead of three instructions.
static COUNTERS: [Counters; 24] = {
    let mut vectors = [const { Counters([0; _]) }; 24];
    // Fewer than 256: the counter is the block's last byte. The first is 1.
    let (mut block, mut counter) = (0, 1);
    while block < 4 * vectors.len() {
        vectors[block / 4].0[16 * (block % 4) + 15] = counter;
        (block, counter) = (block + 1, counter + 1);
    }
    vectors
};

/// A packet on its way.
struct Stream<'a, const ROUNDS: usize, const OPEN: bool> {
    key: &'a ExpandedKey,
    text: &'a mut [u8],
    /// The nonce, and the first round key added to it.
    start: __m512i,
    /// The first vector of key stream.
    first: __m512i,
    /// What the hash of all that was before adds to the next block: at first, the AAD.
    carry: __m512i,
    /// The hash since the last reduction.
    product: Product,
    /// A chunk that was encrypted and is to be hashed.
    pending: [__m512i; CHUNK],
    /// The next vector.
    vector: usize,
    /// Blocks to be hashed from the pending ones on, the lengths included.
    blocks: usize,
    /// The power that the first of them is multiplied by.
    power: usize,
}

/// Seals or opens one packet under a key of `ROUNDS` rounds.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
pub(crate) fn run<const ROUNDS: usize, const OPEN: bool>(packet: &mut Packet<'_>) {
    let key = packet.key;
    let nonce = _mm512_broadcast_i32x4(packet.nonce());
    let blocks = packet.blocks();
    let total = vectors(packet.text.len());
    let mut stream = Stream::<ROUNDS, OPEN> {
        key,
        start: _mm512_xor_si512(nonce, round_key(key, 0)),
        first: nonce,
        carry: reflect(_mm512_zextsi128_si512(packet.aad())),
        product: Product::zero(),
        pending: [nonce; CHUNK],
        vector: 0,
        blocks,
        power: first_power(blocks),
        text: &mut *packet.text,
    };
    if total > CHUNK {
        stream.first_chunk();
        while stream.vector + CHUNK < total {
            stream.next_chunk();
        }
        match total - stream.vector {
            1 => stream.tail::<1, true>(),
            2 => stream.tail::<2, true>(),
            3 => stream.tail::<3, true>(),
            _ => stream.tail::<4, true>(),
        }
    } else {
        match total {
            1 => stream.tail::<1, false>(),
            2 => stream.tail::<2, false>(),
            3 => stream.tail::<3, false>(),
            _ => stream.tail::<4, false>(),
        }
    }
    let (product, first) = (stream.product, _mm512_castsi512_si128(stream.first));
    let lengths = _mm512_zextsi128_si512(packet.lengths());
    let last = Product::of(lengths, _mm512_zextsi128_si512(load_number(key.first_power())));
    let tag = _mm512_castsi512_si128(reflect(product.plus(last).fold().reduce()));
    packet.end::<OPEN>(_mm_xor_si128(tag, first));
}

/// The power of the next block when `blocks` follow.
#[inline]
fn first_power(blocks: usize) -> usize {
    if blocks > POWERS { GROUP } else { blocks }
}

impl<const ROUNDS: usize, const OPEN: bool> Stream<'_, ROUNDS, OPEN> {
    /// Does the first chunk, whose first vector does not belong to the text as a whole, but for its hash.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn first_chunk(&mut self) {
        let stream = self.key_stream::<CHUNK, false, false>();
        let first = self.edge(0, stream[0]);
        let rest =
            self.whole::<{ CHUNK - 1 }>(VECTOR_BYTES - BEFORE_TEXT, &[stream[1], stream[2], stream[3]]);
        self.pending = [first, rest[0], rest[1], rest[2]];
        self.pending = self.reflected(self.pending);
        self.vector = CHUNK;
    }

    /// Does the next chunk, all text, but for its hash, and hashes the one before.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn next_chunk(&mut self) {
        let stream = self.key_stream::<CHUNK, true, false>();
        let hashed = self.whole(self.vector * VECTOR_BYTES - BEFORE_TEXT, &stream);
        self.pending = self.reflected(hashed);
        self.vector += CHUNK;
    }

    /// Adds key stream to `N` whole vectors of text from byte `start` on; returns what is to be hashed of them.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn whole<const N: usize>(&mut self, start: usize, stream: &[__m512i; N]) -> [__m512i; N] {
        let mut hashed = *stream;
        let vectors = self.text.get_mut(start..).and_then(|text| text.as_chunks_mut().0.first_chunk_mut());
        // Always there: the caller has counted the vectors.
        let Some(vectors): Option<&mut [[u8; VECTOR_BYTES]; N]> = vectors else { return hashed };
        for v in 0..N {
            let text = load(&vectors[v]);
            let out = _mm512_xor_si512(text, stream[v]);
            store(&mut vectors[v], out);
            hashed[v] = if OPEN { text } else { out };
        }
        hashed
    }

    /// Does the last `N` vectors; with `PENDING`, hashes those before first.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn tail<const N: usize, const PENDING: bool>(&mut self) {
        let stream = self.key_stream::<N, PENDING, true>();
        let mut hashed = stream;
        for v in 0..N {
            hashed[v] = self.edge(self.vector + v, stream[v]);
        }
        hashed = self.reflected(hashed);
        let powers = self.key.powers_from::<N>(self.power);
        for v in 0..N {
            self.product.add(hashed[v], &powers[v]);
        }
    }

    /// Makes vectors what is hashed: reflected, and what was before added.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn reflected<const N: usize>(&mut self, mut vectors: [__m512i; N]) -> [__m512i; N] {
        for blocks in &mut vectors {
            *blocks = reflect(*blocks);
        }
        vectors[0] = _mm512_xor_si512(vectors[0], self.carry);
        self.carry = _mm512_setzero_si512();
        vectors
    }

    /// The counters of the next `N` vectors, where they stand in counter blocks.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn counters<const N: usize>(&self) -> [__m512i; N] {
        let mut counters = [_mm512_setzero_si512(); N];
        if let Some(written) = COUNTERS.get(self.vector..).and_then(|rest| rest.first_chunk::<N>()) {
            for v in 0..N {
                counters[v] = load(&written[v].0);
            }
            return counters;
        }
        // The last word of each block, its most significant byte first.
        let order = _mm_setr_epi8(-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 3, 2, 1, 0);
        let lanes = _mm512_setr_epi32(1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0);
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_possible_wrap,
            reason = "the text is short enough"
        )]
        let mut next = _mm512_add_epi32(_mm512_set1_epi32(4 * self.vector as i32), lanes);
        for written in &mut counters {
            *written = _mm512_shuffle_epi8(next, _mm512_broadcast_i32x4(order));
            next = _mm512_add_epi32(next, _mm512_set1_epi32(4));
        }
        counters
    }

    /// The key stream for the next `N` vectors; with `PENDING`, the pending vectors are hashed between the rounds.
    /// `LAST` makes the function anew for its other caller (see [`crate::short`]).
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn key_stream<const N: usize, const PENDING: bool, const LAST: bool>(&mut self) -> [__m512i; N] {
        let mut states = self.counters::<N>();
        for state in &mut states {
            *state = _mm512_xor_si512(self.start, *state);
        }
        // Where nothing is pending, nothing is hashed.
        let powers = if PENDING { self.key.powers_from(self.power) } else { const { &[[0; 4]; CHUNK] } };
        self.turn::<N, PENDING, LAST, 0>(&mut states, powers);
        self.turn::<N, PENDING, LAST, 1>(&mut states, powers);
        self.turn::<N, PENDING, LAST, 2>(&mut states, powers);
        self.turn::<N, PENDING, LAST, 3>(&mut states, powers);
        rounds(self.key, &mut states, ROUNDS - 1, ROUNDS);
        let last = round_key(self.key, ROUNDS);
        for state in &mut states {
            *state = _mm512_aesenclast_epi128(*state, last);
        }
        if PENDING {
            self.hashed_chunk();
        } else {
            self.first = states[0];
        }
        states
    }

    /// Two or three rounds, a quarter of all but the last two; with `PENDING`, hashes the pending vector `TURN` beside them.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn turn<const N: usize, const PENDING: bool, const LAST: bool, const TURN: usize>(
        &mut self,
        states: &mut [__m512i; N],
        powers: &[[u128; 4]; CHUNK],
    ) {
        let quarter = (ROUNDS - 2) / CHUNK;
        if PENDING {
            self.product.add(self.pending[TURN], &powers[TURN]);
        }
        rounds(self.key, states, 1 + TURN * quarter, 1 + (TURN + 1) * quarter);
        if PENDING {
            for state in &mut *states {
                in_step(state, &mut self.product.low);
            }
            if TURN + 1 < CHUNK {
                in_step(&mut states[0], &mut self.pending[TURN + 1]);
            }
        }
    }

    /// Accounts for the hash of a chunk.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn hashed_chunk(&mut self) {
        self.power -= 4 * CHUNK;
        self.blocks -= 4 * CHUNK;
        if self.power == 0 {
            self.carry = self.product.fold().reduce();
            self.product = Product::zero();
            self.power = first_power(self.blocks);
        }
    }

    /// Adds key stream to a vector that may not belong to the text as a whole; returns what is to be hashed of it.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn edge(&mut self, vector: usize, stream: __m512i) -> __m512i {
        let text = load_edge(self.text, vector);
        let out = _mm512_xor_si512(text, stream);
        store_edge(self.text, vector, out);
        if OPEN { text } else { _mm512_maskz_mov_epi8(mask(self.text.len(), vector), out) }
    }
}

/// The rounds from `from` on, up to `to` without it.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
fn rounds<const N: usize>(key: &ExpandedKey, states: &mut [__m512i; N], from: usize, to: usize) {
    for round in from..to {
        let round_key = round_key(key, round);
        for state in &mut *states {
            *state = _mm512_aesenc_epi128(*state, round_key);
        }
    }
}

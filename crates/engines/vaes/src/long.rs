//! Packets of any length, one by one.

use crate::aes::{in_step, round_key};
use crate::ghash::{Product, reflect};
use crate::key::{ExpandedKey, Powers};
use crate::memory::{
    BEFORE_TEXT, VECTOR_BYTES, load, load_edge, load_number, mask, store, store_edge, vectors,
};
use crate::packet::Packet;
use core::arch::x86_64::*;

/// Vectors that are encrypted at a time: enough to hide the latency of one AES round.
const CHUNK: usize = 4;

/// How many blocks a hash covers before it is reduced.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// As many as the key has powers: for cached keys.
    Far,
    /// Few: a reduction for each chunk, which takes less time than loading powers that are not cached.
    Near,
}

impl Reach {
    #[inline]
    fn powers_of(self, key: &ExpandedKey) -> Powers<'_> {
        match self {
            Self::Far => key.most_powers(),
            Self::Near => key.few_powers(),
        }
    }
}

/// The power of the next block when `blocks` remain.
///
/// While more blocks than powers remain, the hash is reduced after as many whole chunks as the powers are
/// enough for, the lengths aside: some text always follows, and the lengths never come alone.
#[inline]
fn first_power(powers: Powers<'_>, blocks: usize) -> usize {
    let chunk = 4 * CHUNK;
    if blocks > powers.count { (powers.count - 1) / chunk * chunk } else { blocks }
}

/// Four counter blocks without their nonces.
#[repr(align(64))]
struct Counters([u8; VECTOR_BYTES]);

/// The counters of the first vectors, enough for packets of common sizes: a load instead of three
/// instructions.
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

/// A packet in progress.
struct Stream<'p, 'j, const ROUNDS: usize, const OPEN: bool> {
    packet: &'p mut Packet<'j>,
    /// Salt and IV XOR the first round key.
    start: __m512i,
    /// Index of the next vector.
    vector: usize,
    /// Blocks to be hashed from the pending ones on, the lengths included.
    blocks: usize,
    /// The power that the first of them is multiplied by.
    power: usize,
    /// Those of its key that are used.
    all_powers: Powers<'j>,
    /// What the hash so far adds to the next block: at first, the AAD.
    carry: __m512i,
    hash: Hash<'j>,
}

/// The hash of a packet, in progress.
struct Hash<'j> {
    /// The hash since the last reduction.
    product: Product,
    /// A chunk that was encrypted and is to be hashed, and its powers.
    pending: [__m512i; CHUNK],
    powers: &'j [[u128; 4]; CHUNK],
}

/// A packet that was encrypted or decrypted, and lacks the hash of its last chunk, and its ICV.
struct Ending<'p, 'j> {
    /// `None` before the first packet: hashing nothing is simpler than a second kind of chunk.
    packet: Option<&'p mut Packet<'j>>,
    /// The first block of its key stream.
    first: __m128i,
    hash: Hash<'j>,
}

/// Seals or opens packets, each under a key of `ROUNDS` rounds.
///
/// The last chunk of a packet is hashed while the first one of the next is encrypted. The two are
/// independent, so that the CPU overlaps them.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
pub(crate) fn run<const ROUNDS: usize, const OPEN: bool>(packets: &mut [Packet<'_>], reach: Reach) {
    let mut before = Ending { packet: None, first: _mm_setzero_si128(), hash: Hash::nothing() };
    for packet in packets {
        before = Stream::<ROUNDS, OPEN>::run(packet, reach, before);
    }
    before.hash.add_two(0);
    before.hash.add_two(2);
    before.end::<OPEN, true>();
}

impl Hash<'_> {
    /// The hash of nothing.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn nothing() -> Self {
        let zero = _mm512_setzero_si512();
        Self { product: Product::zero(), pending: [zero; CHUNK], powers: const { &[[0; 4]; CHUNK] } }
    }

    /// Hashes pending vectors `v` and `v + 1`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn add_two(&mut self, v: usize) {
        self.product.add_two([self.pending[v], self.pending[v + 1]], [&self.powers[v], &self.powers[v + 1]]);
    }
}

impl Ending<'_, '_> {
    /// Ends the packet's job when nothing of it is pending. `LAST` gives the other caller its own instance of
    /// the function (see [`crate::short`]).
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn end<const OPEN: bool, const LAST: bool>(self) {
        let Some(packet) = self.packet else { return };
        let lengths = _mm512_zextsi128_si512(packet.lengths());
        let last = Product::of(lengths, _mm512_zextsi128_si512(load_number(packet.key.first_power())));
        let tag = _mm512_castsi512_si128(reflect(self.hash.product.plus(last).reduce_sum()));
        packet.end::<OPEN>(_mm_xor_si128(tag, self.first));
    }
}

impl<'p, 'j, const ROUNDS: usize, const OPEN: bool> Stream<'p, 'j, ROUNDS, OPEN> {
    /// Encrypts or decrypts one packet, and hashes all but its last chunk; hashes the last chunk of the
    /// previous packet, and ends it.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn run(packet: &'p mut Packet<'j>, reach: Reach, before: Ending<'p, 'j>) -> Ending<'p, 'j> {
        let (blocks, total) = (packet.blocks(), vectors(packet.text.len()));
        let all_powers = reach.powers_of(packet.key);
        let stream = Self {
            start: _mm512_xor_si512(packet.iv(), round_key(packet.key, 0)),
            vector: 0,
            blocks,
            power: first_power(all_powers, blocks),
            all_powers,
            carry: reflect(_mm512_zextsi128_si512(packet.aad())),
            hash: Hash::nothing(),
            packet,
        };
        match total {
            1 => stream.only_chunk::<1>(before),
            2 => stream.only_chunk::<2>(before),
            3 => stream.only_chunk::<3>(before),
            4 => stream.only_chunk::<4>(before),
            _ => stream.chunks(total, before),
        }
    }

    /// Does a packet of one chunk of `N` vectors.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn only_chunk<const N: usize>(mut self, mut before: Ending<'_, 'j>) -> Ending<'p, 'j> {
        let stream = self.key_stream::<N, 0>(&mut before.hash);
        before.end::<OPEN, false>();
        self.edges(stream);
        self.ending(_mm512_castsi512_si128(stream[0]))
    }

    /// Does a packet of more than one chunk, `total` vectors.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn chunks(mut self, total: usize, mut before: Ending<'_, 'j>) -> Ending<'p, 'j> {
        let stream = self.key_stream::<CHUNK, 1>(&mut before.hash);
        before.end::<OPEN, false>();
        self.first_chunk(stream);
        while self.vector + CHUNK < total {
            self.next_chunk();
        }
        match total - self.vector {
            1 => self.last_chunk::<1>(),
            2 => self.last_chunk::<2>(),
            3 => self.last_chunk::<3>(),
            _ => self.last_chunk::<4>(),
        }
        self.ending(_mm512_castsi512_si128(stream[0]))
    }

    /// Adds key stream to the first chunk, whose first vector is only partly text.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn first_chunk(&mut self, stream: [__m512i; CHUNK]) {
        let first = self.edge(0, stream[0]);
        let rest =
            self.whole::<{ CHUNK - 1 }>(VECTOR_BYTES - BEFORE_TEXT, &[stream[1], stream[2], stream[3]]);
        self.pend([first, rest[0], rest[1], rest[2]]);
    }

    /// Encrypts or decrypts the next chunk, all text, and hashes the previous one.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn next_chunk(&mut self) {
        let stream = self.key_stream_hashing::<CHUNK, 2>();
        let hashed = self.whole(self.vector * VECTOR_BYTES - BEFORE_TEXT, &stream);
        self.pend(hashed);
    }

    /// Encrypts or decrypts the last `N` vectors, and hashes the previous chunk.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn last_chunk<const N: usize>(&mut self) {
        let stream = self.key_stream_hashing::<N, 3>();
        self.edges(stream);
    }

    /// Adds key stream to `N` vectors, which may be only partly text, up to its end.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn edges<const N: usize>(&mut self, stream: [__m512i; N]) {
        // Vectors of a shorter chunk are at the end: those before them are zero, whatever they are multiplied
        // by.
        let mut hashed = [_mm512_setzero_si512(); CHUNK];
        for v in 0..N {
            hashed[CHUNK - N + v] = reflect(self.edge(self.vector + v, stream[v]));
        }
        hashed[CHUNK - N] = _mm512_xor_si512(hashed[CHUNK - N], self.carry);
        self.hash.pending = hashed;
        self.hash.powers = self.all_powers.from(self.power + 4 * (CHUNK - N));
    }

    /// The packet, when nothing of it remains to be encrypted.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn ending(self, first: __m128i) -> Ending<'p, 'j> {
        Ending { packet: Some(self.packet), first, hash: self.hash }
    }

    /// Makes a chunk the pending one.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn pend(&mut self, mut hashed: [__m512i; CHUNK]) {
        for blocks in &mut hashed {
            *blocks = reflect(*blocks);
        }
        hashed[0] = _mm512_xor_si512(hashed[0], self.carry);
        self.carry = _mm512_setzero_si512();
        self.hash.pending = hashed;
        self.hash.powers = self.all_powers.from(self.power);
        self.vector += CHUNK;
    }

    /// Adds key stream to `N` whole vectors of text from byte `start` on; returns their hash input.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn whole<const N: usize>(&mut self, start: usize, stream: &[__m512i; N]) -> [__m512i; N] {
        let mut hashed = *stream;
        let vectors =
            self.packet.text.get_mut(start..).and_then(|text| text.as_chunks_mut().0.first_chunk_mut());
        // Always `Some`: the caller has counted the vectors.
        let Some(vectors): Option<&mut [[u8; VECTOR_BYTES]; N]> = vectors else { return hashed };
        for v in 0..N {
            let text = load(&vectors[v]);
            let out = _mm512_xor_si512(text, stream[v]);
            store(&mut vectors[v], out);
            hashed[v] = if OPEN { text } else { out };
        }
        hashed
    }

    /// The counters of the next `N` vectors, at their position in counter blocks.
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

    /// The key stream for the next `N` vectors; the previous chunk is hashed between the rounds.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn key_stream_hashing<const N: usize, const CALLER: usize>(&mut self) -> [__m512i; N] {
        let mut hash = std::mem::replace(&mut self.hash, Hash::nothing());
        let stream = self.key_stream::<N, CALLER>(&mut hash);
        self.hash.product = hash.product;
        self.hashed_chunk();
        stream
    }

    /// The key stream for the next `N` vectors; the pending part of `hash` is hashed between the rounds. A
    /// different `CALLER` gives each caller its own instance of the function (see [`crate::short`]).
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn key_stream<const N: usize, const CALLER: usize>(&self, hash: &mut Hash<'_>) -> [__m512i; N] {
        let mut states = self.counters::<N>();
        for state in &mut states {
            *state = _mm512_xor_si512(self.start, *state);
        }
        self.turn::<N, CALLER, 0>(&mut states, hash);
        self.turn::<N, CALLER, 1>(&mut states, hash);
        self.turn::<N, CALLER, 2>(&mut states, hash);
        self.turn::<N, CALLER, 3>(&mut states, hash);
        let key = self.packet.key;
        rounds(key, &mut states, ROUNDS - 1, ROUNDS);
        let last = round_key(key, ROUNDS);
        for state in &mut states {
            *state = _mm512_aesenclast_epi128(*state, last);
        }
        states
    }

    /// Two or three rounds, a quarter of all but the last two; interleaved with hashing the pending vector
    /// `TURN`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn turn<const N: usize, const CALLER: usize, const TURN: usize>(
        &self,
        states: &mut [__m512i; N],
        hash: &mut Hash<'_>,
    ) {
        let quarter = (ROUNDS - 2) / CHUNK;
        if TURN % 2 == 1 {
            hash.add_two(TURN - 1);
        }
        rounds(self.packet.key, states, 1 + TURN * quarter, 1 + (TURN + 1) * quarter);
        for state in &mut *states {
            in_step(state, &mut hash.product.low);
        }
        if TURN + 1 < CHUNK {
            in_step(&mut states[0], &mut hash.pending[TURN + 1]);
        }
    }

    /// Accounts for a hashed chunk.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn hashed_chunk(&mut self) {
        self.power -= 4 * CHUNK;
        self.blocks -= 4 * CHUNK;
        if self.power == 0 {
            self.carry = self.hash.product.reduce_sum();
            self.hash.product = Product::zero();
            self.power = first_power(self.all_powers, self.blocks);
        }
    }

    /// Adds key stream to a vector that may be only partly text; returns its hash input.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn edge(&mut self, vector: usize, stream: __m512i) -> __m512i {
        let text = load_edge(self.packet.text, vector);
        let out = _mm512_xor_si512(text, stream);
        store_edge(self.packet.text, vector, out);
        if OPEN { text } else { _mm512_maskz_mov_epi8(mask(self.packet.text.len(), vector), out) }
    }
}

/// The rounds from `from` up to `to`, exclusive.
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

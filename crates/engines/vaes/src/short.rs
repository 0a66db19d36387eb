//! Short packets, four in parallel.
//!
//! The code here and in [`crate::long`] is written so that the compiler keeps all vectors in registers.
//! Functions belong to a generic type (or have an otherwise unused parameter), so that each kind of packets
//! has its own instance, which is called once and therefore inlined. And there are loops and no closures,
//! because a closure that is passed to the standard library stays a call: the library is compiled without
//! these instructions.

use crate::aes::{in_step, round_key};
use crate::ghash::{Product, reflect};
use crate::key::ExpandedKey;
use crate::memory::{load_edge, load_number, load_numbers, mask, store_edge};
use crate::packet::Packet;
use core::arch::x86_64::*;

/// The packets that are done at a time, one to a lane in the tags' vectors.
pub(crate) const SIDE_BY_SIDE: usize = 4;

/// The longest packet, in vectors, that is done with others; from four vectors on, a packet keeps the CPU
/// busy by itself.
pub(crate) const MAX_SHORT_VECTORS: usize = 3;

/// Seals or opens the packets as far as they make up fours, each of `VECTORS` vectors and under a key of
/// `ROUNDS` rounds.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
pub(crate) fn run<const ROUNDS: usize, const OPEN: bool, const VECTORS: usize>(packets: &mut [Packet<'_>]) {
    let Some((first, others)) = packets.split_first() else { return };
    if others.iter().all(|packet| core::ptr::eq(packet.key, first.key)) {
        Short::<ROUNDS, OPEN, VECTORS, true>::run(packets);
    } else {
        Short::<ROUNDS, OPEN, VECTORS, false>::run(packets);
    }
}

/// The code for one kind of packets. With `ONE_KEY`, all have the first one's key, whose round keys are then
/// loaded once for four packets.
struct Short<const ROUNDS: usize, const OPEN: bool, const VECTORS: usize, const ONE_KEY: bool>;

type Four<'j> = [Packet<'j>; SIDE_BY_SIDE];

/// Four packets that were encrypted or decrypted and are to be hashed.
struct Encrypted<'p, 'j, const VECTORS: usize> {
    /// `None` before the first four: hashing nothing is simpler than a second kind of step.
    packets: Option<&'p mut Four<'j>>,
    /// The first blocks of their key streams.
    first_blocks: [__m128i; SIDE_BY_SIDE],
    /// Their hash input without the lengths, reflected.
    hashed: [[__m512i; VECTORS]; SIDE_BY_SIDE],
    /// The powers for it.
    powers: [&'p [[u128; 4]; VECTORS]; SIDE_BY_SIDE],
    /// The hash of each so far.
    products: [Product; SIDE_BY_SIDE],
    /// The product of the lengths, one packet to a lane.
    lengths: Product,
}

impl<const ROUNDS: usize, const OPEN: bool, const VECTORS: usize, const ONE_KEY: bool>
    Short<ROUNDS, OPEN, VECTORS, ONE_KEY>
{
    /// Four packets are hashed while the next four are encrypted. The two are independent, so that the CPU
    /// overlaps them.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn run(packets: &mut [Packet<'_>]) {
        let mut before = Self::nothing();
        for four in packets.as_chunks_mut().0 {
            before = Self::step(four, before);
        }
        for k in 0..SIDE_BY_SIDE {
            before.products[k] = Product::sum(&before.hashed[k], before.powers[k]);
        }
        Self::end::<true>(before);
    }

    /// No packets.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn nothing<'p, 'j>() -> Encrypted<'p, 'j, VECTORS> {
        Encrypted {
            packets: None,
            first_blocks: [_mm_setzero_si128(); SIDE_BY_SIDE],
            hashed: [[_mm512_setzero_si512(); VECTORS]; SIDE_BY_SIDE],
            powers: [const { &[[0; 4]; VECTORS] }; SIDE_BY_SIDE],
            products: [Product::zero(); SIDE_BY_SIDE],
            lengths: Product::zero(),
        }
    }

    /// Encrypts or decrypts four packets; hashes and ends the previous four.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn step<'p, 'j>(
        packets: &'p mut Four<'j>,
        mut before: Encrypted<'p, 'j, VECTORS>,
    ) -> Encrypted<'p, 'j, VECTORS> {
        let mut now = Self::nothing();
        let [a, b, c, d] = &*packets;
        let keys = if ONE_KEY { [a.key; SIDE_BY_SIDE] } else { [a.key, b.key, c.key, d.key] };
        let mut starts = [_mm512_setzero_si512(); SIDE_BY_SIDE];
        for k in 0..SIDE_BY_SIDE {
            starts[k] = _mm512_xor_si512(packets[k].iv(), round_key(keys[k], 0));
            now.powers[k] = keys[k].few_powers().from(packets[k].blocks());
        }
        // Written out, because the compiler would not unroll a loop of this size, and would keep the vectors
        // in memory.
        Self::vector::<0>(packets, keys, starts, &mut before, &mut now);
        if VECTORS > 1 {
            Self::vector::<1>(packets, keys, starts, &mut before, &mut now);
        }
        if VECTORS > 2 {
            Self::vector::<2>(packets, keys, starts, &mut before, &mut now);
        }
        Self::end::<false>(before);
        now.lengths = Self::lengths(packets);
        now.packets = Some(packets);
        now
    }

    /// Encrypts or decrypts one vector of each packet, and hashes a part of the previous packets.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn vector<const VECTOR: usize>(
        packets: &mut Four<'_>,
        keys: [&ExpandedKey; SIDE_BY_SIDE],
        starts: [__m512i; SIDE_BY_SIDE],
        before: &mut Encrypted<'_, '_, VECTORS>,
        now: &mut Encrypted<'_, '_, VECTORS>,
    ) {
        let counters = counters(VECTOR);
        let mut states = starts;
        for state in &mut states {
            *state = _mm512_xor_si512(*state, counters);
        }
        Self::turn::<VECTOR, 0>(keys, &mut states, before);
        Self::turn::<VECTOR, 1>(keys, &mut states, before);
        Self::turn::<VECTOR, 2>(keys, &mut states, before);
        Self::turn::<VECTOR, 3>(keys, &mut states, before);
        rounds(keys, &mut states, ROUNDS - 1, ROUNDS);
        for k in 0..SIDE_BY_SIDE {
            states[k] = _mm512_aesenclast_epi128(states[k], round_key(keys[k], ROUNDS));
            now.hashed[k][VECTOR] = Self::apply(&mut packets[k], VECTOR, states[k]);
            if VECTOR == 0 {
                now.first_blocks[k] = _mm512_castsi512_si128(states[k]);
            }
        }
    }

    /// Two or three rounds, a quarter of all but the last two; interleaved with hashing one vector of one of
    /// the previous packets.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn turn<const VECTOR: usize, const TURN: usize>(
        keys: [&ExpandedKey; SIDE_BY_SIDE],
        states: &mut [__m512i; SIDE_BY_SIDE],
        before: &mut Encrypted<'_, '_, VECTORS>,
    ) {
        let (k, v) = ((4 * VECTOR + TURN) / VECTORS, (4 * VECTOR + TURN) % VECTORS);
        let (blocks, powers) = (before.hashed[k][v], &before.powers[k][v]);
        if v == 0 {
            before.products[k] = Product::of(blocks, load_numbers(powers));
        } else {
            before.products[k].add(blocks, powers);
        }
        let quarter = (ROUNDS - 2) / 4;
        rounds(keys, states, 1 + TURN * quarter, 1 + (TURN + 1) * quarter);
        for state in &mut *states {
            in_step(state, &mut before.products[k].low);
        }
        let (next_k, next_v) = ((4 * VECTOR + TURN + 1) / VECTORS, (4 * VECTOR + TURN + 1) % VECTORS);
        if next_k < SIDE_BY_SIDE {
            in_step(&mut states[0], &mut before.hashed[next_k][next_v]);
        }
    }

    /// Adds key stream to a vector of a packet; returns its hash input, with the AAD in its place.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn apply(packet: &mut Packet<'_>, vector: usize, stream: __m512i) -> __m512i {
        let text = load_edge(packet.text, vector);
        let out = _mm512_xor_si512(text, stream);
        store_edge(packet.text, vector, out);
        let sealed = if OPEN { text } else { _mm512_maskz_mov_epi8(mask(packet.text.len(), vector), out) };
        if vector > 0 {
            return reflect(sealed);
        }
        reflect(_mm512_or_si512(sealed, _mm512_zextsi128_si512(packet.aad())))
    }

    /// Ends the jobs of packets that were hashed except for the lengths. `LAST` gives the other caller its
    /// own instance of the function.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn end<const LAST: bool>(encrypted: Encrypted<'_, '_, VECTORS>) {
        let Encrypted { packets: Some(packets), first_blocks, products, lengths, .. } = encrypted else {
            return;
        };
        let tags = reflect(Product::gather(products).plus(lengths).reduce());
        let tags = [
            _mm512_castsi512_si128(tags),
            _mm512_extracti32x4_epi32::<1>(tags),
            _mm512_extracti32x4_epi32::<2>(tags),
            _mm512_extracti32x4_epi32::<3>(tags),
        ];
        for k in 0..SIDE_BY_SIDE {
            packets[k].end::<OPEN>(_mm_xor_si128(tags[k], first_blocks[k]));
        }
    }

    /// The products of the last blocks, the lengths, one packet to a lane.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn lengths(packets: &Four<'_>) -> Product {
        let [a, b, c, d] = packets;
        Product::of(
            lanes(a.lengths(), b.lengths(), c.lengths(), d.lengths()),
            lanes(
                load_number(a.key.first_power()),
                load_number(b.key.first_power()),
                load_number(c.key.first_power()),
                load_number(d.key.first_power()),
            ),
        )
    }
}

/// The rounds from `from` up to `to`, exclusive, of each packet under its key.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
fn rounds(keys: [&ExpandedKey; SIDE_BY_SIDE], states: &mut [__m512i; SIDE_BY_SIDE], from: usize, to: usize) {
    for round in from..to {
        for k in 0..SIDE_BY_SIDE {
            states[k] = _mm512_aesenc_epi128(states[k], round_key(keys[k], round));
        }
    }
}

/// The counters of vector `vector`, from 1 on, at their position in counter blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
fn counters(vector: usize) -> __m512i {
    // A short packet has fewer than 256 blocks: the counter is its last byte.
    #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "a small number")]
    let first = 4 * vector as i32;
    let word = |lane: i32| (first + lane) << 24;
    let (a, b, c, d) = (word(1), word(2), word(3), word(4));
    _mm512_setr_epi32(0, 0, 0, a, 0, 0, 0, b, 0, 0, 0, c, 0, 0, 0, d)
}

/// A vector of four lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
fn lanes(a: __m128i, b: __m128i, c: __m128i, d: __m128i) -> __m512i {
    let lower = _mm512_castsi256_si512(_mm256_set_m128i(b, a));
    _mm512_inserti64x4::<1>(lower, _mm256_set_m128i(d, c))
}

//! GHASH (SP 800-38D 6.3, 6.4): products in GF(2^128) on four lanes, summed before they are reduced.
//!
//! GCM writes the coefficient of x^0 into the first bit of a block. Blocks are therefore reversed byte by
//! byte ([`reflect`]); then the lanes are polynomials with their bits in the opposite order. Carry-less
//! multiplication works in either order, but leaves the product one bit short: the hash key is multiplied by
//! x beforehand ([`times_x`]). (S. Gueron, M. Kounavis: Intel Carry-Less Multiplication Instruction and its
//! Usage for Computing the GCM Mode, 2014; the reduction by two multiplications is from S. Gueron, AES-GCM
//! software performance, 2013.)

use crate::memory::load_numbers;
use core::arch::x86_64::*;

/// The field's polynomial, x^128 + x^7 + x^2 + x + 1, reflected: what reduction multiplies by.
const POLYNOMIAL: i64 = i64::from_ne_bytes(0xC200_0000_0000_0000_u64.to_ne_bytes());

/// A 256-bit product in each lane, not reduced: `low + middle x^64 + high x^128`.
#[derive(Clone, Copy)]
pub(crate) struct Product {
    pub(crate) low: __m512i,
    middle: __m512i,
    high: __m512i,
}

impl Product {
    /// The empty sum.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    pub(crate) fn zero() -> Self {
        let zero = _mm512_setzero_si512();
        Self { low: zero, middle: zero, high: zero }
    }

    /// The products of `a` and `b`, lane by lane.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    pub(crate) fn of(a: __m512i, b: __m512i) -> Self {
        let middle = _mm512_clmulepi64_epi128::<0x10>(a, b);
        Self {
            low: _mm512_clmulepi64_epi128::<0x00>(a, b),
            middle: _mm512_xor_si512(middle, _mm512_clmulepi64_epi128::<0x01>(a, b)),
            high: _mm512_clmulepi64_epi128::<0x11>(a, b),
        }
    }

    /// The sum of two products.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            low: _mm512_xor_si512(self.low, other.low),
            middle: _mm512_xor_si512(self.middle, other.middle),
            high: _mm512_xor_si512(self.high, other.high),
        }
    }

    /// Adds the products of a vector of blocks (reflected) and a vector of powers.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    pub(crate) fn add(&mut self, blocks: __m512i, powers: &[u128; 4]) {
        let powers = load_numbers(powers);
        let first = _mm512_clmulepi64_epi128::<0x10>(blocks, powers);
        let second = _mm512_clmulepi64_epi128::<0x01>(blocks, powers);
        self.low = _mm512_xor_si512(self.low, _mm512_clmulepi64_epi128::<0x00>(blocks, powers));
        self.middle = xor3(self.middle, first, second);
        self.high = _mm512_xor_si512(self.high, _mm512_clmulepi64_epi128::<0x11>(blocks, powers));
    }

    /// Adds the products of two vectors of blocks (reflected) and of powers: a sum of three takes one
    /// instruction.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    pub(crate) fn add_two(&mut self, blocks: [__m512i; 2], powers: [&[u128; 4]; 2]) {
        let one = Self::of(blocks[0], load_numbers(powers[0]));
        let two = Self::of(blocks[1], load_numbers(powers[1]));
        self.low = xor3(self.low, one.low, two.low);
        self.middle = xor3(self.middle, one.middle, two.middle);
        self.high = xor3(self.high, one.high, two.high);
    }

    /// The products of vectors of blocks (reflected) and of powers, summed.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    pub(crate) fn sum<const N: usize>(blocks: &[__m512i; N], powers: &[[u128; 4]; N]) -> Self {
        let mut sum = Self::of(blocks[0], load_numbers(&powers[0]));
        for v in 1..N {
            sum.add(blocks[v], &powers[v]);
        }
        sum
    }

    /// Each lane modulo the field's polynomial.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    pub(crate) fn reduce(self) -> __m512i {
        let polynomial = _mm512_set1_epi64(POLYNOMIAL);
        let folded = _mm512_clmulepi64_epi128::<0x01>(polynomial, self.low);
        let middle = xor3(self.middle, swap_halves(self.low), folded);
        let folded = _mm512_clmulepi64_epi128::<0x01>(polynomial, middle);
        xor3(self.high, swap_halves(middle), folded)
    }

    /// In lane k, the sum of the lanes of `products[k]`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    pub(crate) fn gather(products: [Self; 4]) -> Self {
        let [a, b, c, d] = products;
        Self {
            low: sums_of_lanes(a.low, b.low, c.low, d.low),
            middle: sums_of_lanes(a.middle, b.middle, c.middle, d.middle),
            high: sums_of_lanes(a.high, b.high, c.high, d.high),
        }
    }

    /// In lane 0, the sum of all lanes modulo the field's polynomial; reduced first, so that one vector is
    /// summed instead of three.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    pub(crate) fn reduce_sum(self) -> __m512i {
        sum_of_lanes(self.reduce())
    }
}

/// Reverses the bytes of each block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
pub(crate) fn reflect(blocks: __m512i) -> __m512i {
    let order = _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    _mm512_shuffle_epi8(blocks, _mm512_broadcast_i32x4(order))
}

/// A reflected block times x, modulo the field's polynomial.
pub(crate) const fn times_x(block: u128) -> u128 {
    let carried = 0_u128.wrapping_sub(block >> 127) & 0xC200_0000_0000_0000_0000_0000_0000_0001;
    block << 1 ^ carried
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
fn xor3(a: __m512i, b: __m512i, c: __m512i) -> __m512i {
    _mm512_ternarylogic_epi64::<0x96>(a, b, c)
}

/// Exchanges the 64-bit halves of each lane.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
fn swap_halves(x: __m512i) -> __m512i {
    _mm512_shuffle_epi32::<0x4E>(x)
}

/// The sums of the lanes of `a`, of `b`, of `c` and of `d`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
fn sums_of_lanes(a: __m512i, b: __m512i, c: __m512i, d: __m512i) -> __m512i {
    let (ab, cd) = (pair_sums(a, b), pair_sums(c, d));
    pair_sums(ab, cd)
}

/// `a0 + a1, a2 + a3, b0 + b1, b2 + b3`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
fn pair_sums(a: __m512i, b: __m512i) -> __m512i {
    _mm512_xor_si512(_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xDD>(a, b))
}

/// The sum of all lanes, in lane 0.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
fn sum_of_lanes(x: __m512i) -> __m512i {
    let half = _mm256_xor_si256(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64::<1>(x));
    let sum = _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256::<1>(half));
    _mm512_zextsi128_si512(sum)
}

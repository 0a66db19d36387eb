//! AES-GCM and AES-CBC with HMAC-SHA-1 of our own, for packets, in 512-bit vectors: GCM for four short
//! packets at a time, or long ones in a relay; the others for sixteen.
//!
//! ```text
//!   engine    the safe Engine: keys in a table, jobs sorted by what kernel they need
//!
//!  AES-GCM
//!   short     four packets of up to 176 bytes in parallel, their tags reduced in four lanes of one vector
//!   long      any length in a relay, 16 blocks at a time: the end of one hashed beside the next one's start
//!   in_parts  texts in several buffers, 16 blocks at a time
//!   ghash     products in GF(2^128), sums of them, their reduction
//!   aes       AES on vectors of four blocks; the key schedule
//!   key       what is computed once per key: round keys, powers of the hash key
//!
//!  AES-CBC with HMAC-SHA-1, or the latter alone
//!   chained   sixteen packets of any lengths and keys, from their jobs to their ends
//!   sha1      SHA-1 of sixteen messages, one in each 32-bit lane
//!   cbc       encryption of sixteen packets, one in each 128-bit lane of four vectors; decryption of one
//!
//!   memory    every load and store, fenced: the only module with unsafe code except the calls in `engine`
//! ```
//!
//! **GCM's stream.** GCM (NIST SP 800-38D) encrypts the counter block J0 for the tag, and the following ones
//! for the text. A vector holds four blocks, so J0 and the text's first 48 bytes fill the first vector. The
//! AAD has the position in the hash input that J0 has in the key stream: in ESP both are always exactly one
//! block, and nothing is left over. So vector `v` covers the bytes `64 v - 16 .. 64 v + 48` of the text, and
//! a packet of 46 bytes with its two trailer bytes is one vector.
//!
//! **Why GCM is faster than a library called per packet**: no call, no context in memory, no per-packet work
//! other than the packet. Four packets share each load of a round key and the reduction at the end. And the
//! hash of one chunk, or of four packets, is computed between the AES rounds of the next, whichever packet
//! that belongs to: the CPU's schedulers hold fewer instructions than either takes, so that the two would not
//! overlap if they were issued sequentially.
//!
//! **Why CBC with SHA-1 is faster than a library that does them sequentially**: both are chains, so that only
//! a burst fills the vectors, and the CPU has two ports for vectors of 512 bits, of which AES can use one.
//! SHA-1 of a block and AES of the chunk after it are interleaved, one AES round after every two of SHA-1.
//! Sixteen packets go from encryption to the ICV in one pass, while they are in the L1 cache.
//!
//! What the CPU must have: AVX-512 (F, BW, DQ, VL), VAES, VPCLMULQDQ, BMI2 (Intel since Ice Lake, AMD since
//! Zen 4). Elsewhere [`VaesEngine::open`] says what is missing.
//!
//! Timing depends on lengths only: AES and the products are single instructions without tables, and ICVs are
//! compared as a whole.
//!
//! Keys are zeroed when they are removed, both as installed and as laid out for sixteen lanes. Values in
//! registers and on the stack while a packet is done are not wiped.
//!
//! Deliberately missing: other suites, a fast path for a few packets of CBC (they take as long as sixteen),
//! texts beyond 65,535 bytes, asynchrony.

#[cfg(target_arch = "x86_64")]
mod aes;
#[cfg(target_arch = "x86_64")]
mod cbc;
#[cfg(target_arch = "x86_64")]
mod chained;
#[cfg(target_arch = "x86_64")]
mod engine;
#[cfg(target_arch = "x86_64")]
mod ghash;
#[cfg(target_arch = "x86_64")]
mod in_parts;
#[cfg(target_arch = "x86_64")]
mod key;
#[cfg(target_arch = "x86_64")]
mod long;
#[cfg(target_arch = "x86_64")]
mod memory;
#[cfg(target_arch = "x86_64")]
mod packet;
#[cfg(target_arch = "x86_64")]
mod sha1;
#[cfg(target_arch = "x86_64")]
mod short;
#[cfg(not(target_arch = "x86_64"))]
mod unavailable;

#[cfg(target_arch = "x86_64")]
pub use engine::VaesEngine;
#[cfg(not(target_arch = "x86_64"))]
pub use unavailable::VaesEngine;

/// The engine's name in configuration, tables, metrics and errors.
const NAME: &str = "vaes";

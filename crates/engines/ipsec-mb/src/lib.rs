//! The engine on Intel's multi-buffer library, `libIPSec_MB.so`, opened at run time.
//!
//! Three layers, each of which knows only the one below:
//!
//! ```text
//!   engine    the safe Engine: keys in a table, runs of jobs under one key
//!     direct    AES-GCM in one direct call, ChaCha20-Poly1305 in three
//!     gmac      AES-GMAC in direct calls, its AAD part by part
//!     in_parts  AEADs over chains of buffers, the text part by part
//!     ccm       AES-CCM in the library's queue of jobs
//!     burst     a cipher and an integrity algorithm: AES-CBC, AES-CTR and HMAC with SHA in the library's
//!               bursts, the rest in its queue (`shape`, `line`, `queue`)
//!   manager   owns library, manager, keys in the library's form (`chained`); safe methods
//!   raw       the ABI: symbols, offsets per version, structures of the library
//! ```
//!
//! Bursts and queue spread packets over SIMD lanes. Every job ends inside `submit`: what waits in the queue
//! is flushed. An AEAD's text is decrypted before its ICV is compared, and wiped if that is wrong. The other
//! suites decrypt only authentic text. A library that returns without an error and has done nothing is found
//! out for every suite: neither plaintext leaves nor is anything taken for authentic.
//!
//! Checked before it is trusted: the version (an unknown one is refused, because offsets into the manager
//! depend on it), that a function exists, that the library accepted a key (its error code and the first round
//! key), and that it computes correctly at all (known answers, whenever the engine is opened).
//!
//! Threads: one engine, with one manager, per worker. Debian's package is `libipsec-mb1`; its -dev package is
//! not needed.
//!
//! Deliberately missing: AES-CCM with keys of 192 bits, which the library lacks; 3DES and DES without
//! AVX-512, where it takes twenty times as long as the portable engine; jobs in versions other than 1.3,
//! whose structure differs: with those the engine does AES-GCM and ChaCha20-Poly1305 only, and the next one
//! does the rest. On anything but x86-64 Linux [`IpsecMbEngine::open`] says that there is no such library.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod burst;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod ccm;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod chained;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod direct;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod engine;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod gmac;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod in_parts;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod library;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod line;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod manager;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod queue;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod raw;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod shape;
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
mod unavailable;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub use engine::IpsecMbEngine;
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub use unavailable::IpsecMbEngine;

/// The engine's name in configuration, tables, metrics and errors.
const NAME: &str = "ipsec-mb";

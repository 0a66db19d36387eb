//! The engine on Intel's multi-buffer library, `libIPSec_MB.so`, opened at run time.
//!
//! Three layers, each of which knows only the one below:
//!
//! ```text
//!   engine    the safe Engine: keys in a table, runs of jobs under one key
//!   manager   owns library, manager, keys in the library's form; safe methods (and `chained`, `burst`)
//!   raw       the ABI: symbols, offsets per version, structures of the library
//! ```
//!
//! Only synchronous calls are used: AES-GCM in one direct call, ChaCha20-Poly1305 in three, AES-CBC and HMAC
//! in bursts that the library spreads over SIMD lanes. Every job ends inside `submit`. An AEAD's text is
//! decrypted before its ICV is compared, and wiped if that is wrong. The other suites decrypt only authentic
//! text.
//!
//! Checked before it is trusted: the version (an unknown one is refused, because offsets into the manager
//! depend on it), that a function exists, that the library accepted a key (its error code and the first round
//! key), and that it computes correctly at all (known answers, whenever the engine is opened).
//!
//! Threads: one engine, with one manager, per worker. Debian's package is `libipsec-mb1`; its -dev package is
//! not needed.
//!
//! Deliberately missing: jobs in versions other than 1.3, whose structure differs: with those the engine does
//! the AEADs only, and the next one does CBC and HMAC. On anything but x86-64 Linux [`IpsecMbEngine::open`]
//! says that there is no such library.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod burst;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod chained;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod direct;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod engine;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod gmac;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod library;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod manager;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod raw;
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
mod unavailable;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub use engine::IpsecMbEngine;
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub use unavailable::IpsecMbEngine;

/// The engine's name in configuration, tables, metrics and errors.
const NAME: &str = "ipsec-mb";

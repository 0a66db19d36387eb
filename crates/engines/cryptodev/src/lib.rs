//! The engine on cryptodevs of DPDK's: devices that are handed packets and give them back, in hardware (QAT)
//! or software (`crypto_aesni_mb`, `crypto_openssl`, a scheduler over several).
//!
//! ```text
//!   Job ─► slot: operation + mbuf ──► queue pair 0 ─┐
//!           attached to the packet    queue pair 1 ─┤ device ─► poll: slot ─► Job
//!                                     …            ─┘
//! ```
//!
//! **Nothing is copied.** An mbuf is attached to the packet's own bytes, and the buffer waits in its slot
//! until the device has given the slot back. Two cases are copied into the slot: ESP under AES-GMAC with ESN,
//! whose high half is between bytes of the packet (RFC 4543 3.3), and a buffer that hardware does not reach,
//! because it is not in a region that the gateway has told of ([`Engine::use_memory`]). A longer one of these
//! than a slot holds is left to the next engine.
//!
//! **Nothing is believed.** What a device gives back is a slot that it has, or it is counted and forgotten. A
//! status other than right or wrong ICV, an ICV that was not written or a text that was not changed are
//! errors: what was touched is wiped and goes nowhere, and after 16 errors the device gets no more jobs. That
//! it computes correctly is checked by known answers, whenever it is opened. ICVs of received packets are
//! compared by the device.
//!
//! **Sessions.** A key is one session of the device, and a second one where DPDK wants it: the length of a
//! combined mode's AAD is a session's, so that ESN is another; and a cipher in counter mode has one without
//! the cipher, for packets without a text. The second is made when a packet first needs it.
//!
//! **Layers.** `raw` is what C declares, `device` owns it, `place` lays packets out and puts them back,
//! `slots` knows what the device has, `engine` is the safe [`Engine`](testudo_crypto::Engine).
//!
//! **Threads.** An engine belongs to one worker, and a virtual device to one engine. DPDK itself starts once
//! in a process.
//!
//! [`Engine::use_memory`]: testudo_crypto::Engine::use_memory
//!
//! Deliberately missing: devices that want physical addresses, and rte_security's lookaside protocol offload:
//! the gateway writes headers itself. QAT is opened by its name like any other device; no hardware has been
//! tried.

#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a test panics on failure")
)]

mod config;
mod device;
mod engine;
mod place;
mod raw;
mod slots;
#[cfg(test)]
mod twin;
mod work;

pub use config::CryptodevConfig;
pub use engine::CryptodevEngine;

/// The engine's name in configuration and errors.
pub const NAME: &str = "cryptodev";

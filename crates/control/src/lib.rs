//! What an operator gives to the gateway, and what the gateway must not forget: configuration, keys, durable
//! state.
//!
//! ```text
//!   testudo.toml ──► config::Configuration ──┐
//!   *.key, env   ──► keys::load ─────────────┼──► the gateway builds its SPD, SAD and ports from plain data
//!   state.redb   ──► store::Store ───────────┘         and leases sequence numbers before it uses them
//! ```
//!
//! - [`config`] turns one TOML file into a [`Configuration`] that needs no further check ("parse, don't
//!   validate"). All errors are reported at once, each with its position and what to write instead.
//! - [`keys`] reads keying material from files and the environment into memory that is zeroed, and refuses
//!   files that others may read.
//! - [`store`] keeps the nonce contract across crashes: sequence numbers are leased in blocks, durably,
//!   before use.
//! - [`service`] is the control plane of a running gateway: it installs tunnels, reloads, supplies sequence
//!   numbers, and answers questions about the state of the gateway.
//! - [`watch`] says what a gateway did between two such answers, and what its bottleneck is.
//!
//! Threads: [`Configuration`] is plain data; [`LeaseStore`] may be called from any thread and serialises its
//! callers.
//!
//! Deliberately missing: ports and engines. The program opens them and hands them in.

#![forbid(unsafe_code)]

mod account;
pub mod config;
mod fingerprint;
pub mod firewall;
pub mod keys;
pub mod processors;
pub mod service;
pub mod store;
pub mod vpe_key;
pub mod watch;

pub use config::{ConfigError, ConfigErrors, Configuration};
pub use fingerprint::{Fingerprint, HalfDigest, KeyDigests, fingerprint, numbers_of};
pub use store::{Known, Lease, LeaseStore, MemoryStore, NUMBERS_END, Store, StoreError, Usage};

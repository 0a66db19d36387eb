//! Suites, keys, jobs and the [`Engine`] contract between the gateway and cryptography.
//!
//! ```text
//!   ipsec makes jobs ──► engine.submit ──► done in place        (CPU engines)
//!                              └────────► taken, later by poll  (GPUs, NICs, other cores)
//! ```
//!
//! An engine gets [`Job`]s: a packet's buffer, which ranges of it to authenticate and to encrypt or decrypt,
//! and the sequence number. It sees neither policies nor windows. Every job ends exactly once, with a
//! [`JobStatus`]; an engine that fails returns the packet unchanged, so that the next engine can do it. The
//! portable engine does every suite and is always last.
//!
//! Threads: an engine belongs to one worker. An engine with threads or devices of its own hides them behind
//! `submit` and `poll`.

#![forbid(unsafe_code)]

mod absent;
mod chain;
mod engine;
pub mod frame;
mod job;
mod key;
mod key_table;
mod offload;
mod portable;
mod prepared;
mod profile;
mod reclaim;
mod self_test;
mod suite;

pub use absent::{Absent, Reason};
pub use chain::{ChainParts, ChainShape, Pieces};
pub use engine::{Capability, Engine, EngineError, MOST_FAULTS};
pub use frame::{KeyFrame, Trailer, Unwritten};
pub use job::{Aad, AeadParts, Job, JobParts, JobStatus};
pub use key::{KeyId, KeyMaterial, KeyMaterialError};
pub use key_table::KeyTable;
pub use offload::{
    DeviceError, DeviceLimits, Offering, Offload, OffloadCounts, OffloadReport, OffloadState, SaFacts,
    SecurityDevice, SecurityMode, SecurityProtocol, SessionParameters,
};
pub use portable::PortableEngine;
pub use prepared::{KeyPreparer, PreparedKey};
pub use profile::Profile;
pub use reclaim::Reclaim;
pub use self_test::{KNOWN_ANSWERS, KnownAnswer, self_test};
pub use suite::{
    AesKey, Cipher, CipherInfo, Direction, IcvLength, Integrity, IntegrityInfo, NonceRule, ProposalError,
    Requirement, Suite,
};

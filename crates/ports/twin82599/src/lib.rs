//! An Intel 82599 in memory, as far as its security engine goes: a twin for tests and benchmarks of what the
//! gateway does with such a NIC. Nothing chooses it by itself.
//!
//! ```text
//!   gateway ─► TwinPort.tx: seals what is marked, by its table ─► the port within ─► wire
//!   gateway ◄─ TwinPort.rx: opens what is in its table, marks it ◄─ the port within ◄─ wire
//!                    └── Twin82599 (SecurityDevice): sessions, limits, resets
//! ```
//!
//! It has the limits of the 82599 (paper 000, IV): 1,024 sessions in each direction, 128 receive addresses,
//! AES-128-GCM and AES-128-GMAC for ESP, AES-128-GMAC for AH, no ESN, no UDP, nothing with IPv4 options, IPv6
//! extension headers or of fragments. Texts are multiples of 4 bytes, and the IV is in the packet.
//!
//! It fails as it is told to, by chance with a seed ([`Faults`]): calls, resets, a table that is lost,
//! verdicts that are missing, wrong or late. Or its cryptography costs nothing and does nothing
//! ([`Work::Nothing`]), so that a benchmark sees what the processor would have left.

#![forbid(unsafe_code)]

mod cryptography;
mod device;
mod faults;
mod port;

pub use cryptography::Work;
pub use device::Twin82599;
pub use faults::Faults;
pub use port::TwinPort;

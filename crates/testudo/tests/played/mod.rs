//! What daemons said to their gateways while they negotiated, recorded, and played again in the place of
//! others: with other addresses, SPIs and keys.
//!
//! A recording is a text: `# part`, then the messages of that part in the order in which they were sent, as
//! `a HEX` and `b HEX`. Where a message reserves an SPI, the one that the gateway gave follows.

#![allow(dead_code, unused_imports, reason = "each test program uses a part")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod cast;
mod gateway;
pub mod mad;
mod recording;

pub use cast::Warrior;
pub use gateway::Gateway;
pub use recording::{Part, Recording, Said};

/// Host A, a road warrior with a virtual address, and B, its gateway, each with strongSwan's charon 5.9.8 of
/// Debian 12: a CHILD_SA of AES-GCM, renewed by A and by B.
pub const CHARONS: &str = include_str!("charons.txt");

//! What the gateway's tests share: seeded randomness, ports in memory, packets, whole gateways, and a sealer
//! for handmade ESP.

#![allow(dead_code, unused_imports, reason = "each test target uses its own part of this")]

pub mod datagrams;
pub mod fragments;
pub mod gateway;
pub mod group;
pub mod learner;
pub mod load;
pub mod packet;
pub mod policy_oracle;
pub mod port;
pub mod random;
pub mod reassembly;
pub mod rfc4301;
pub mod sealer;
pub mod suites;
pub mod tunnel;
pub mod vpe;

pub use gateway::Gateway;
pub use packet::Inner;
pub use port::PortHandle;
pub use random::random_bytes;
pub use sealer::{Handmade, Sealer};
pub use tunnel::{LeaseTwin, Side, TunnelSpec};

//! Vector Packet Encapsulation: the windows of an SA, and where its datagrams arrive (`docs/VPE.md`).
//!
//! ```text
//!   outbound   flow, DSCP ─► window ─► its next number        one gate for all: Numbers
//!   inbound    (Sender ID, Window ID) ─► its replay window    made by its first authentic packet: Windows
//! ```
//!
//! What is put around packets and taken off them is [`encap::vpe`](crate::encap::vpe). The SA's shared parts
//! (lifetime, counters, events) are those of every SA. [`Places`] tells datagrams of VPE from others.
//!
//! Deliberately missing: groups of several senders.

mod flow;
mod numbers;
mod places;
mod rules;
mod windows;

pub(crate) use flow::flow_hash;
pub(crate) use numbers::Numbers;
pub(crate) use places::Places;
pub use rules::{TooManyWindows, VpeClasses, VpeRules};
pub(crate) use windows::{InboundWindows, Windows};

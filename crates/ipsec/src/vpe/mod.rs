//! Vector Packet Encapsulation: the windows of an SA, and where its datagrams arrive (`docs/VPE.md`).
//!
//! ```text
//!   outbound   flow, DSCP ─► window ─► its next number        one gate for all: Numbers
//!   inbound    (Sender ID, Window ID) ─► its replay window    made by its first authentic packet: Windows
//! ```
//!
//! Of an SA that several workers have, each owns the windows that it sends in, below a gate that reaches as
//! far as what all of them may use ([`GatedNumbers`](crate::GatedNumbers)); the windows of the peer are
//! shared ([`SharedWindows`]).
//!
//! What is put around packets and taken off them is [`encap::vpe`](crate::encap::vpe). The SA's shared parts
//! (lifetime, counters, events) are those of every SA. [`Places`] tells datagrams of VPE from others.
//!
//! A group of senders has one SA, whose windows are those of all of them; [`senders`] knows who they are, and
//! [`group_windows`] has both for several workers.

mod by_window;
mod flow;
mod group_windows;
mod grow_map;
mod heard;
mod inbound_windows;
mod numbers;
mod path_mtu;
mod places;
mod rules;
mod seen;
mod senders;
mod shared_senders;
mod shared_windows;
#[cfg(all(test, not(loom)))]
mod window_model;
mod windows;

pub(crate) use by_window::{MOST, Places as JobPlaces, WindowRun, each_run};
pub(crate) use flow::{flow_hash, flow_hash_of_plain};
pub(crate) use group_windows::GroupWindows;
pub(crate) use inbound_windows::{InboundWindows, SaWindows};
pub(crate) use numbers::{Numbered, Numbers};
pub(crate) use places::Places;
pub use rules::{TooManyWindows, VpeClasses, VpeRules, VpeSourcePorts};
pub use seen::{MAX_WINDOWS_SEEN, WINDOWS_AT_A_TIME, WindowTop, WindowsFrom, WindowsPage, WindowsSeen};
pub(crate) use senders::{News, Senders};
pub use shared_windows::SharedWindows;
pub(crate) use shared_windows::WorkersWindows;
pub(crate) use windows::Windows;
pub use windows::closed_windows;

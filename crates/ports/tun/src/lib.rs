//! The TUN port: IP packets to and from the kernel, 64 KiB at a time.
//!
//! The kernel's TCP hands a TUN device *super-frames*, up to 64 KiB under one header with the request to cut
//! them (TSO, and USO for UDP), and accepts super-frames back. A [`TunPort`] cuts them into the packets that
//! the tunnel carries, and builds them again on the way to the kernel, so that one system call moves about 45
//! packets:
//!
//! ```text
//!           readv                    rx                                       tx                  writev
//!   kernel ───────▶ [ H | payload ] ────▶ [H|p1] [H|p2] … [H|pn]     [H|p1] … [H|pn] ────▶ [ H | payload ] ──────▶ kernel
//! ```
//!
//! Cutting needs no copy: the port predicts from the last super-frame how the next one will be cut, and gives
//! `readv` one slice per segment, each after room for its headers in a separate buffer. A wrong prediction
//! costs one copy, never a packet. Building needs no copy either: `writev` gathers the payloads from where
//! they are.
//!
//! | module | what |
//! | --- | --- |
//! | [`split`] | cutting: pure functions on bytes |
//! | [`coalesce`] | which packets may be joined, and the header of the whole: pure functions on bytes |
//! | [`vnet`] | the header that says how to cut (virtio 1.2, 5.1.6) |
//! | [`configure`] | addresses, MTU and routes of the interface, by netlink |
//! | [`TunQueues`] | several queues of one interface, a port for each worker, and which flows come to which |
//! | [`LinkWatch`] | whether somebody takes the interface down or up |
//!
//! FFI layers: `device` calls ioctl(2) and owns the descriptor; everything else is safe code on top of it.
//!
//! Deliberately missing: TAP, persistent devices, UFO (Linux removed it), checksums left to the other side
//! (the peer of a tunnel cannot know them).

#![cfg_attr(test, allow(clippy::cast_possible_truncation, reason = "test data is made of small numbers"))]

pub mod coalesce;
pub mod configure;
mod device;
mod error;
mod link_info;
mod netlink;
mod payload;
mod port;
mod queues;
mod receive;
mod route;
mod rules;
pub mod split;
mod steering;
#[cfg(test)]
mod tests;
mod transmit;
pub mod vnet;
mod watch;

pub use device::{Device, FrameDevice, Offloads};
pub use error::{AddError, ConfigureError, OpenError};
pub use port::{TunConfig, TunPort};
pub use queues::TunQueues;
pub use watch::{LinkChange, LinkWatch};

//! The link layer, between ports that exchange IP datagrams and devices that exchange Ethernet frames.
//!
//! ```text
//!        rx                                                                   tx
//!   datagrams ◄── strip ◄─ VLAN, MAC, EtherType      route ─► neighbour ─► template ──► frames
//!                   │                                            │
//!                   ▼                                            ▼
//!               Resolver:  ARP, neighbour discovery, echo     Waiting, until the neighbour answers
//! ```
//!
//! A [`LinkPort`] is a [`Port`](testudo_packet::Port) over a [`FrameDevice`]. A packet is never copied: a
//! header is taken off by moving the packet's start, and put on from a template in the headroom. While routes
//! and neighbours stay as they are, each destination is looked up once.
//!
//! | module | what |
//! | --- | --- |
//! | [`neighbours`] | who is where: states of RFC 4861, bounded, proof against floods |
//! | [`routes`] | next hops by longest prefix |
//! | [`resolver`] | the trait of who finds neighbours and answers for the port's addresses |
//! | [`own`] | a resolver for ports that no kernel sees |
//! | [`outside`] | a resolver that is told by messages |
//! | [`kernel`] | reads the kernel's routes and neighbours, for the former |
//! | [`partial_checksum`] | completes checksums that a local kernel has left to a device |
//!
//! Clock and device are handed in; timers run whenever the port receives. A packet that waits when the port
//! is dropped is lost without a count.
//!
//! Deliberately missing: multicast routing and group membership, IPv6 router discovery, reassembly of echo
//! requests, 802.3 with LLC.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::cast_possible_truncation, reason = "test data is made of small numbers"))]

mod chains;
mod device;
mod framing;
pub mod kernel;
pub mod neighbours;
mod outbox;
pub mod outside;
pub mod own;
pub mod partial_checksum;
mod port;
mod rate;
pub mod resolver;
pub mod routes;
mod waiting;

pub use device::FrameDevice;
pub use port::{Clock, LinkConfig, LinkPort};
pub use waiting::WaitingLimits;

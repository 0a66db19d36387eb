//! Packet files as ports: captured packets come in, and sent packets can be viewed with any tool.
//!
//! | | reads | writes |
//! | --- | --- | --- |
//! | format | pcap of either byte order and resolution, pcapng | pcap, nanoseconds (the laboratory: microseconds) |
//! | link types | raw IP, IPv4, IPv6, Ethernet with VLAN tags, Linux "cooked" 1 and 2 | raw IP (the laboratory: Ethernet) |
//! | time stamps | handed on to the pool's journal | as the journal says; else the packet's number, as microseconds |
//!
//! ```text
//!   file ──► FrameReader ──► PcapReader ─┐
//!                                        ├─ PcapPort
//!   file ◄── FrameWriter ◄── PcapWriter ─┘
//! ```
//!
//! Files are hostile until read: every length is checked before memory is allocated for it, and an error
//! names the file, the record and the byte. Frames that are not IP, or were not captured whole, are counted
//! as dropped and do not end the reading. A damaged file gives the packets before the damage; its [`Ending`]
//! says what was wrong, and what was skipped that might have been a packet.
//!
//! Specifications: draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng,
//! <https://www.tcpdump.org/linktypes.html>.
//!
//! Why not the crate `pcap-file`: it would replace the smaller half of this one. Link layers, limits, the
//! position of an error, and notes on skipped blocks would still be ours.
//!
//! Deliberately missing: time stamps as a clock, compressed files, writing pcapng.

#![forbid(unsafe_code)]

mod error;
mod frames;
mod link;
mod pcapng;
mod port;
mod source;
mod writer;

pub use error::PcapError;
pub use frames::{Frame, FrameReader};
pub use link::Link;
pub use port::{Allowance, Ending, PcapPort, PcapReader};
pub use writer::{FrameWriter, PcapWriter, Resolution};

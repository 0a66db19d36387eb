//! Packet files as ports: what was captured comes in, and what goes out can be looked at with any tool.
//!
//! | | reads | writes |
//! | --- | --- | --- |
//! | format | pcap of either byte order and resolution, pcapng | pcap, microseconds |
//! | link types | raw IP, IPv4, IPv6, Ethernet with VLAN tags, Linux "cooked" 1 and 2 | raw IP |
//! | time stamps | ignored | the packet's number, as microseconds: two equal runs write equal files |
//!
//! Files are hostile until read: every length is checked before memory is made for it, and an error names the file and the record.
//! What is no IP, or was not captured whole, is counted as dropped and does not end the reading.
//!
//! Specifications: draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng, <https://www.tcpdump.org/linktypes.html>.
//!
//! Deliberately missing: time stamps as a clock, compressed files, writing pcapng.

#![forbid(unsafe_code)]

mod error;
mod link;
mod port;
mod record;
mod writer;

pub use error::PcapError;
pub use port::{PcapPort, PcapReader};
pub use writer::PcapWriter;

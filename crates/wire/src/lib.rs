//! Packet formats: checked views and builders for what crosses the gateway.
//!
//! One fallible parse reads a header and checks every length it names against the bytes at hand; the value it
//! returns is plain data, so that no accessor depends on a check made elsewhere. Builders write whole headers
//! into slices.
//!
//! | module | format | source |
//! | --- | --- | --- |
//! | [`ethernet`] | Ethernet II with VLAN tags | IEEE 802.3, 802.1Q |
//! | [`arp`] | ARP for IPv4 over Ethernet | RFC 826 |
//! | [`neighbour_discovery`] | neighbour solicitations and advertisements | RFC 4861 |
//! | [`ip`] | IPv4 with options, IPv6 with extension headers | RFC 791, RFC 8200 |
//! | [`next_layer`] | ports, ICMP type and code, mobility header type | RFC 4301 4.4.1.1 |
//! | [`transport`] | where ESP and AH are in transport mode | RFC 4303 3.1.1, RFC 4302 3.1.1 |
//! | [`nat`] | checksums of TCP and UDP from behind a NAT | RFC 3948 3.1.2 |
//! | [`udp`] | UDP | RFC 768 |
//! | [`tcp`] | TCP, as far as offloads need it | RFC 9293 |
//! | [`mss`] | the MSS option of TCP | RFC 9293 3.7.1 |
//! | [`ah`] | Authentication Header | RFC 4302 |
//! | [`mutable`] | what the ICV of AH covers | RFC 4302 3.3.3.1, Appendix A |
//! | [`esp`] | ESP header and trailer, ESP in UDP | RFC 4303, RFC 3948 |
//! | [`vpe`] | Vector Packet Encapsulation | `docs/VPE.md` |
//! | [`icmp`] | "too big" and "unreachable" to a sender, echo replies | RFC 792, RFC 1191, RFC 4443 |
//! | [`icmp_error`] | errors about packets of ours, with what they quote | RFC 792, RFC 1191, RFC 4443 |
//! | [`fragment`] | fragmentation, on the way (IPv4) and at the source | RFC 791, RFC 8200 |
//! | [`reassembly`] | what a received fragment says of its datagram | RFC 791, RFC 8200 |
//! | [`netlink`] | netlink messages, attributes, acknowledgements | RFC 3549 |
//! | [`rtnetlink`] | routes and neighbours over netlink | Linux `rtnetlink.h` |
//! | [`xfrm`] | SAs and policies over netlink | Linux `xfrm.h` |
//! | [`checksum`] | the Internet checksum | RFC 1071, RFC 1624 |
//! | [`flow`] | a packet's flow as a hash | addresses, protocol, ports |
//! | [`steering`] | which queue a packet goes to | SPI, sequence number, window of VPE, UDP source port |
//!
//! Deliberately missing: reassembly itself, which has state (`testudo-ipsec`), and tables of neighbours
//! (`testudo-link`).

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::cast_possible_truncation, reason = "test data is made of small numbers"))]

pub mod ah;
pub mod arp;
pub mod checksum;
pub mod esp;
pub mod ethernet;
pub mod flow;
pub mod fragment;
pub mod icmp;
pub mod icmp_error;
pub mod ip;
pub mod mss;
pub mod mutable;
pub mod nat;
pub mod neighbour_discovery;
pub mod netlink;
pub mod next_layer;
mod options;
pub mod plain;
pub mod protocol;
pub mod reassembly;
pub mod rtnetlink;
pub mod steering;
pub mod tcp;
#[cfg(test)]
mod test_packets;
pub mod transport;
pub mod udp;
pub mod vpe;
pub mod xfrm;

/// Why bytes could not be read as the expected header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ParseError {
    /// The first nibble is neither 4 nor 6.
    #[error("neither IPv4 nor IPv6")]
    NotIp,
    /// A length field exceeds the bytes there are.
    #[error("shorter than its length fields say")]
    Truncated,
    /// A field has a value that the format forbids.
    #[error("a header field breaks the format")]
    BadHeader,
    /// The header checksum is wrong.
    #[error("wrong header checksum")]
    BadChecksum,
}

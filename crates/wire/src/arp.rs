//! ARP for IPv4 over Ethernet (RFC 826).
//!
//! ```text
//!    0       2       4   5   6       8              14         18              24         28
//!   +-------+-------+---+---+-------+--------------+----------+---------------+----------+
//!   | 1     | 0x0800| 6 | 4 | opcode| sender's MAC | its IPv4 | target's MAC  | its IPv4 |
//!   +-------+-------+---+---+-------+--------------+----------+---------------+----------+
//! ```
//!
//! Nobody has authenticated such a packet: what it may change is for who keeps the table.

use crate::ParseError;
use crate::ethernet::MacAddress;
use std::net::Ipv4Addr;

/// Bytes of a packet.
pub const ARP_BYTES: usize = 28;

/// What a packet is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArpOperation {
    /// Who has the target's address?
    Request,
    /// The sender has its address.
    Reply,
}

/// A packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArpPacket {
    /// Request or reply.
    pub operation: ArpOperation,
    /// Link-layer address of the sender: that of one station.
    pub sender_mac: MacAddress,
    /// Address of the sender; unspecified in a probe (RFC 5227 1.1).
    pub sender: Ipv4Addr,
    /// Link-layer address of the target; any value in a request.
    pub target_mac: MacAddress,
    /// Address of the target.
    pub target: Ipv4Addr,
}

impl ArpPacket {
    /// Reads a packet; padding after it is allowed.
    ///
    /// # Errors
    /// [`ParseError::Truncated`]; [`ParseError::BadHeader`] if it is for another link or protocol, no request
    /// or reply, or from an address that no single station has.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let packet = bytes.first_chunk::<ARP_BYTES>().ok_or(ParseError::Truncated)?;
        let [0, 1, 8, 0, 6, 4, 0, opcode, rest @ ..] = *packet else { return Err(ParseError::BadHeader) };
        let operation = match opcode {
            1 => ArpOperation::Request,
            2 => ArpOperation::Reply,
            _ => return Err(ParseError::BadHeader),
        };
        let [m0, m1, m2, m3, m4, m5, a, b, c, d, n0, n1, n2, n3, n4, n5, e, f, g, h] = rest;
        let sender_mac = MacAddress([m0, m1, m2, m3, m4, m5]);
        if !sender_mac.is_unicast() {
            return Err(ParseError::BadHeader);
        }
        let target_mac = MacAddress([n0, n1, n2, n3, n4, n5]);
        let (sender, target) = (Ipv4Addr::new(a, b, c, d), Ipv4Addr::new(e, f, g, h));
        Ok(Self { operation, sender_mac, sender, target_mac, target })
    }

    /// The packet's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; ARP_BYTES] {
        let opcode = if self.operation == ArpOperation::Request { 1 } else { 2 };
        let mut out = [0; ARP_BYTES];
        out[..8].copy_from_slice(&[0, 1, 8, 0, 6, 4, 0, opcode]);
        out[8..14].copy_from_slice(&self.sender_mac.0);
        out[14..18].copy_from_slice(&self.sender.octets());
        out[18..24].copy_from_slice(&self.target_mac.0);
        out[24..].copy_from_slice(&self.target.octets());
        out
    }

    /// Whether it asks for nothing and answers nobody: its sender announces its address (RFC 5227 3).
    #[must_use]
    pub fn is_gratuitous(&self) -> bool {
        self.sender == self.target
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_packets::hex;

    const A: MacAddress = MacAddress([2, 0, 0x5E, 0, 0, 1]);
    const B: MacAddress = MacAddress([2, 0, 0x5E, 0, 0, 2]);

    /// Scapy 2.5: `ARP(op=1, hwsrc=A, psrc="192.0.2.1", hwdst=0, pdst="192.0.2.2")`, and B's reply.
    #[test]
    fn packets_that_scapy_writes_are_read_and_written() {
        let request = ArpPacket {
            operation: ArpOperation::Request,
            sender_mac: A,
            sender: [192, 0, 2, 1].into(),
            target_mac: MacAddress::default(),
            target: [192, 0, 2, 2].into(),
        };
        let reply = ArpPacket {
            operation: ArpOperation::Reply,
            sender_mac: B,
            sender: request.target,
            target_mac: A,
            target: request.sender,
        };
        for (bytes, packet) in [
            ("000108000604000102005e000001c0000201000000000000c0000202", request),
            ("000108000604000202005e000002c000020202005e000001c0000201", reply),
        ] {
            let bytes = hex(bytes);
            assert_eq!(ArpPacket::parse(&bytes), Ok(packet));
            assert_eq!(packet.to_bytes()[..], bytes);
            let padded = [&bytes[..], &[0; 18]].concat();
            assert_eq!(ArpPacket::parse(&padded), Ok(packet));
            for len in 0..bytes.len() {
                assert_eq!(ArpPacket::parse(&bytes[..len]), Err(ParseError::Truncated), "{len} bytes");
            }
        }
        assert!(!request.is_gratuitous() && ArpPacket { target: request.sender, ..request }.is_gratuitous());
    }

    #[test]
    fn what_is_no_arp_for_ipv4_over_ethernet_is_refused() {
        let good = hex("000108000604000102005e000001c0000201000000000000c0000202");
        // The fields that must be as they are, an opcode of RARP, and a sender that is a group.
        for (at, value) in [(0, 1), (1, 6), (2, 6), (3, 1), (4, 8), (5, 16), (6, 1), (7, 3), (7, 0), (8, 3)] {
            let mut bad = good.clone();
            bad[at] = value;
            assert_eq!(ArpPacket::parse(&bad), Err(ParseError::BadHeader), "byte {at}");
        }
    }
}

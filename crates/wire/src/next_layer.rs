//! The fields of the next layer protocol that selectors may ask for (RFC 4301 4.4.1.1).
//!
//! Beside addresses and protocol, a selector may name two ports, the type and code of an ICMP message, or the
//! type of a mobility message. All of them are in the first four bytes after the IP header:
//!
//! ```text
//!   TCP, UDP, SCTP     source port (2), destination port (2)   RFC 9293 3.1, RFC 768, RFC 9260 3.1
//!   ICMP, ICMPv6       type (1), code (1), checksum (2)        RFC 792, RFC 4443 2.1
//!   Mobility Header    next (1), length (1), type (1), 0 (1)   RFC 6275 6.1.1
//! ```
//!
//! The protocol's number alone decides what they are, as it does for ports: an ICMP message in an IPv6 packet
//! is no message that a host understands, and yet its first two bytes are its type and code.

use crate::protocol;

/// Bytes of the next layer's header that hold all selector fields.
pub const SELECTOR_BYTES: usize = 4;

/// The selector fields that a packet shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NextLayerFields {
    /// Source and destination port.
    Ports(u16, u16),
    /// Type and code of a message of ICMP or ICMPv6.
    Icmp(u8, u8),
    /// Message type of an IPv6 Mobility Header.
    Mobility(u8),
}

impl NextLayerFields {
    /// Reads the fields of `protocol` from the `first` bytes after the IP header; `None` if the protocol has
    /// none.
    #[must_use]
    #[inline(always)]
    pub fn read(protocol: u8, first: [u8; SELECTOR_BYTES]) -> Option<Self> {
        match protocol {
            protocol::TCP | protocol::UDP | protocol::SCTP => {
                let [s, t, d, e] = first;
                Some(Self::Ports(u16::from_be_bytes([s, t]), u16::from_be_bytes([d, e])))
            }
            protocol::ICMP | protocol::ICMPV6 => Some(Self::Icmp(first[0], first[1])),
            protocol::MOBILITY => Some(Self::Mobility(first[2])),
            _ => None,
        }
    }

    /// Source and destination port.
    #[must_use]
    #[inline]
    pub fn ports(self) -> Option<(u16, u16)> {
        match self {
            Self::Ports(source, destination) => Some((source, destination)),
            Self::Icmp(..) | Self::Mobility(_) => None,
        }
    }

    /// The one value of a protocol that has one, as traffic selectors write it (RFC 7296 3.13.1): the type in
    /// the upper half, the code of an ICMP message in the lower.
    #[must_use]
    #[inline]
    pub fn message(self) -> Option<u16> {
        match self {
            Self::Ports(..) => None,
            Self::Icmp(kind, code) => Some(u16::from_be_bytes([kind, code])),
            Self::Mobility(kind) => Some(u16::from_be_bytes([kind, 0])),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ip::IpHeader;
    use crate::plain::PlainHeader;
    use crate::test_packets::between;

    /// A packet with this protocol and payload.
    fn packet(v6: bool, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let (source, destination) = if v6 { ("fd00::1", "fd00::2") } else { ("10.0.0.1", "10.0.0.2") };
        between(source, destination, protocol, payload)
    }

    fn shown(packet: &[u8]) -> Option<NextLayerFields> {
        IpHeader::parse(packet).unwrap().next_layer_fields(packet)
    }

    /// Scapy: `raw(IP()/ICMP(id=1))[20:]`, an echo request.
    const ECHO: [u8; 8] = [8, 0, 0xF7, 0xFE, 0, 1, 0, 0];
    /// Scapy: `raw(IPv6(src="::1", dst="::1")/MIP6MH_BU())[40:]`, a Binding Update.
    const BINDING_UPDATE: [u8; 16] = [59, 1, 5, 0, 0xEE, 0x5F, 0, 0, 0xD0, 0, 0, 3, 1, 2, 0, 0];

    #[test]
    fn both_parsers_show_the_fields_of_each_protocol() {
        for v6 in [false, true] {
            for (protocol, payload, expected) in [
                (protocol::TCP, &[0, 22, 0xC0, 1][..], Some(NextLayerFields::Ports(22, 0xC001))),
                (protocol::UDP, &[0, 53, 0, 80], Some(NextLayerFields::Ports(53, 80))),
                (protocol::SCTP, &[1, 0, 2, 0], Some(NextLayerFields::Ports(256, 512))),
                (protocol::ICMP, &ECHO, Some(NextLayerFields::Icmp(8, 0))),
                (protocol::ICMP, &[3, 4, 0, 0], Some(NextLayerFields::Icmp(3, 4))),
                (protocol::ICMPV6, &[1, 6, 0, 0], Some(NextLayerFields::Icmp(1, 6))),
                (protocol::MOBILITY, &BINDING_UPDATE, Some(NextLayerFields::Mobility(5))),
                (protocol::ESP, &[1, 2, 3, 4], None),
                (protocol::AH, &[1, 2, 3, 4], None),
                (47, &[1, 2, 3, 4], None),
            ] {
                let bytes = packet(v6, protocol, payload);
                assert_eq!(shown(&bytes), expected, "protocol {protocol}");
                let plain = PlainHeader::parse(&bytes).unwrap();
                assert_eq!(plain.next_layer_fields(), expected, "protocol {protocol}");
            }
        }
    }

    #[test]
    fn exactly_the_protocols_with_fields_show_some() {
        for number in 0..=u8::MAX {
            let has_fields = NextLayerFields::read(number, [1, 2, 3, 4]).is_some();
            assert_eq!(has_fields, protocol::has_selector_fields(number), "protocol {number}");
        }
    }

    /// RFC 7296 3.13.1.
    #[test]
    fn a_message_is_written_as_in_traffic_selectors() {
        assert_eq!(NextLayerFields::Icmp(3, 4).message(), Some(0x0304));
        assert_eq!(NextLayerFields::Mobility(5).message(), Some(0x0500));
        assert_eq!(NextLayerFields::Ports(1, 2).message(), None);
        assert_eq!(NextLayerFields::Ports(1, 2).ports(), Some((1, 2)));
        assert_eq!(NextLayerFields::Icmp(3, 4).ports(), None);
        assert_eq!(NextLayerFields::Mobility(5).ports(), None);
    }

    /// RFC 4301 4.4.1.1: fields that a fragment does not contain are OPAQUE.
    #[test]
    fn later_fragments_and_short_packets_show_nothing() {
        for protocol in [protocol::ICMP, protocol::MOBILITY, protocol::TCP] {
            assert_eq!(shown(&packet(false, protocol, &[8, 0, 1])), None);
            for (at, fragment) in [(0x2000u16, true), (0x2001, false), (1, false)] {
                let mut bytes = packet(false, protocol, &ECHO);
                bytes[6..8].copy_from_slice(&at.to_be_bytes());
                bytes[10..12].fill(0);
                let sum = crate::checksum::of(&bytes[..20]).to_bytes();
                bytes[10..12].copy_from_slice(&sum);
                assert_eq!(shown(&bytes).is_some(), fragment, "{protocol}, {at:#x}");
            }
        }
        let mut bytes =
            packet(true, protocol::FRAGMENT, &[protocol::ICMPV6, 0, 0, 1, 0, 0, 0, 9, 128, 0, 0, 0]);
        assert_eq!(shown(&bytes), Some(NextLayerFields::Icmp(128, 0)));
        bytes[43] = 8;
        assert_eq!(shown(&bytes), None);
    }
}

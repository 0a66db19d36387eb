//! Ethernet II headers with up to two VLAN tags (IEEE 802.3, 802.1Q).
//!
//! ```text
//!    0                       6                      12          14
//!   +-----------------------+-----------------------+-----------+---------------- ─ ─
//!   | destination           | source                | EtherType | payload, then padding
//!   +-----------------------+-----------------------+-----------+---------------- ─ ─
//!                                                  ▲
//!                  each VLAN tag is put here:  TPID (2), priority │ DEI │ VLAN ID (2)
//! ```
//!
//! A frame shorter than 60 bytes is padded, and nothing in its header says so: the length of what it carries
//! is in the payload's own header. A value below 0x0600 in place of the EtherType is a length (802.3 with
//! LLC); no protocol that is read here comes in such a frame.

use crate::ParseError;
use std::net::IpAddr;

/// Bytes of a header without tags.
pub const ETHERNET_HEADER_BYTES: usize = 14;
/// Bytes of a VLAN tag.
pub const VLAN_TAG_BYTES: usize = 4;
/// Bytes of the longest header that is read or written: two tags.
pub const MAX_ETHERNET_HEADER_BYTES: usize = ETHERNET_HEADER_BYTES + 2 * VLAN_TAG_BYTES;

/// EtherTypes, as far as the gateway knows them by name (IANA).
pub mod ether_type {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// ARP.
    pub const ARP: u16 = 0x0806;
    /// A customer's VLAN tag (802.1Q).
    pub const VLAN: u16 = 0x8100;
    /// IPv6.
    pub const IPV6: u16 = 0x86DD;
    /// A provider's VLAN tag (802.1ad), around a customer's.
    pub const SERVICE_VLAN: u16 = 0x88A8;
}

/// A link-layer address (EUI-48).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// Every station.
    pub const BROADCAST: Self = Self([0xFF; 6]);

    /// Whether it names a group of stations, or all.
    #[must_use]
    #[inline]
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Whether one station may have it: neither a group nor all zeros.
    #[must_use]
    pub fn is_unicast(self) -> bool {
        !self.is_multicast() && self.0 != [0; 6]
    }

    /// The group that an IP multicast address is mapped to (RFC 1112 6.4, RFC 2464 7), and the broadcast
    /// address for 255.255.255.255; `None` for addresses of single hosts.
    #[must_use]
    pub fn of_group(address: IpAddr) -> Option<Self> {
        match address {
            IpAddr::V4(a) if a.is_broadcast() => Some(Self::BROADCAST),
            IpAddr::V4(a) if a.is_multicast() => {
                let [_, b, c, d] = a.octets();
                Some(Self([0x01, 0x00, 0x5E, b & 0x7F, c, d]))
            }
            IpAddr::V6(a) if a.is_multicast() => {
                let [.., a, b, c, d] = a.octets();
                Some(Self([0x33, 0x33, a, b, c, d]))
            }
            _ => None,
        }
    }
}

impl std::fmt::Display for MacAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl std::fmt::Debug for MacAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// A VLAN tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct VlanTag {
    /// [`ether_type::VLAN`] or [`ether_type::SERVICE_VLAN`].
    pub protocol: u16,
    /// Priority code point, 3 bits, and drop eligible indicator, 1 bit: the upper 4 bits of the tag.
    pub priority: u8,
    /// VLAN identifier, 12 bits. 0 says that the tag carries a priority only.
    pub id: u16,
}

impl VlanTag {
    /// A tag of 802.1Q without priority.
    #[must_use]
    pub const fn customer(id: u16) -> Self {
        Self { protocol: ether_type::VLAN, priority: 0, id }
    }

    /// A tag of 802.1ad without priority.
    #[must_use]
    pub const fn service(id: u16) -> Self {
        Self { protocol: ether_type::SERVICE_VLAN, priority: 0, id }
    }

    fn read(protocol: u16, control: u16) -> Self {
        let [high, _] = control.to_be_bytes();
        Self { protocol, priority: high >> 4, id: control & 0x0FFF }
    }

    fn to_bytes(self) -> [u8; VLAN_TAG_BYTES] {
        let [p, q] = self.protocol.to_be_bytes();
        let [a, b] = (u16::from(self.priority) << 12 | self.id & 0x0FFF).to_be_bytes();
        [p, q, a, b]
    }
}

/// The fields of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EthernetHeader {
    /// To which station, or group of stations.
    pub destination: MacAddress,
    /// From which station.
    pub source: MacAddress,
    /// VLAN tags, outermost first. The second is only set if the first is.
    pub tags: [Option<VlanTag>; 2],
    /// What follows: [`ether_type`]. After two tags it may be that of a third.
    pub ether_type: u16,
}

impl EthernetHeader {
    /// Reads the header at the start of a frame.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] if the frame ends in it.
    #[inline]
    pub fn parse(frame: &[u8]) -> Result<Self, ParseError> {
        let fixed = frame.first_chunk::<ETHERNET_HEADER_BYTES>().ok_or(ParseError::Truncated)?;
        let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1] = *fixed;
        let mut header = Self {
            destination: MacAddress([d0, d1, d2, d3, d4, d5]),
            source: MacAddress([s0, s1, s2, s3, s4, s5]),
            tags: [None; 2],
            ether_type: u16::from_be_bytes([t0, t1]),
        };
        let mut rest = &frame[ETHERNET_HEADER_BYTES..];
        for tag in &mut header.tags {
            if !matches!(header.ether_type, ether_type::VLAN | ether_type::SERVICE_VLAN) {
                break;
            }
            let &[c0, c1, t0, t1] = rest.first_chunk().ok_or(ParseError::Truncated)?;
            *tag = Some(VlanTag::read(header.ether_type, u16::from_be_bytes([c0, c1])));
            header.ether_type = u16::from_be_bytes([t0, t1]);
            rest = &rest[VLAN_TAG_BYTES..];
        }
        Ok(header)
    }

    /// Bytes of the header, tags included.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> usize {
        ETHERNET_HEADER_BYTES + VLAN_TAG_BYTES * self.tags.iter().flatten().count()
    }

    /// The header's bytes, of which the first [`bytes`](Self::bytes) count.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; MAX_ETHERNET_HEADER_BYTES] {
        let mut out = [0; MAX_ETHERNET_HEADER_BYTES];
        out[..6].copy_from_slice(&self.destination.0);
        out[6..12].copy_from_slice(&self.source.0);
        let mut at = 12;
        for tag in self.tags.iter().flatten() {
            out[at..at + VLAN_TAG_BYTES].copy_from_slice(&tag.to_bytes());
            at += VLAN_TAG_BYTES;
        }
        out[at..at + 2].copy_from_slice(&self.ether_type.to_be_bytes());
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_packets::hex;

    const A: MacAddress = MacAddress([2, 0, 0x5E, 0, 0, 1]);
    const B: MacAddress = MacAddress([2, 0, 0x5E, 0, 0, 2]);

    /// Scapy 2.5: `Ether(dst=A, src=B) / Dot1Q(vlan=100, prio=5) / IP(…)`, and `Ether(type=0x88a8) /
    /// Dot1AD(vlan=200) / Dot1Q(vlan=100, id=1, prio=1) / IPv6(…)`: one and two tags.
    #[test]
    fn tags_that_scapy_writes_are_read_and_written() {
        let customer = VlanTag { protocol: ether_type::VLAN, priority: 0b1010, id: 100 };
        let inner = VlanTag { protocol: ether_type::VLAN, priority: 0b0011, id: 100 };
        for (bytes, tags, ether_type) in [
            ("02005e00000102005e0000020800", [None, None], ether_type::IPV4),
            ("02005e00000102005e0000028100a0640800", [Some(customer), None], ether_type::IPV4),
            (
                "02005e00000102005e00000288a800c88100306486dd",
                [Some(VlanTag::service(200)), Some(inner)],
                ether_type::IPV6,
            ),
        ] {
            let bytes = hex(bytes);
            let header = EthernetHeader::parse(&bytes).unwrap();
            assert_eq!(header, EthernetHeader { destination: A, source: B, tags, ether_type });
            assert_eq!(&header.to_bytes()[..header.bytes()], bytes);
            for len in 0..bytes.len() {
                assert_eq!(EthernetHeader::parse(&bytes[..len]), Err(ParseError::Truncated), "{len} bytes");
            }
        }
    }

    #[test]
    fn a_third_tag_is_what_the_frame_carries() {
        let bytes = hex("02005e00000102005e000002 88a80001 88a80002 81000003 0800");
        let header = EthernetHeader::parse(&bytes).unwrap();
        assert_eq!((header.ether_type, header.bytes()), (ether_type::VLAN, 22));
        assert_eq!(header.tags, [Some(VlanTag::service(1)), Some(VlanTag::service(2))]);
    }

    #[test]
    fn groups_have_the_link_layer_addresses_of_their_rfcs() {
        let group = |address: &str| MacAddress::of_group(address.parse().unwrap()).map(|mac| mac.to_string());
        assert_eq!(group("224.129.2.3").as_deref(), Some("01:00:5e:01:02:03"));
        assert_eq!(group("255.255.255.255").as_deref(), Some("ff:ff:ff:ff:ff:ff"));
        assert_eq!(group("ff02::1:ff01:203").as_deref(), Some("33:33:ff:01:02:03"));
        assert_eq!((group("192.0.2.1"), group("2001:db8::1")), (None, None));
        assert!(!MacAddress::BROADCAST.is_unicast() && !MacAddress::default().is_unicast() && A.is_unicast());
    }
}

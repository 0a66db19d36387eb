//! The common packet, parsed in a few instructions.
//!
//! Nearly every packet is a whole IPv4 datagram without options, or an IPv6 datagram without extension
//! headers, with the ports of its transport protocol right after. [`PlainHeader::parse`] accepts just those,
//! with every check that [`IpHeader`](crate::ip::IpHeader) makes on them, and leaves all others, valid or
//! not, to it.

use crate::ip::{IPV4_HEADER_BYTES, IPV6_HEADER_BYTES, Version};
use crate::next_layer::{NextLayerFields, SELECTOR_BYTES as FIRST_BYTES};
use crate::{checksum, mss, protocol};

const V4_BYTES: usize = IPV4_HEADER_BYTES + FIRST_BYTES;
const V6_BYTES: usize = IPV6_HEADER_BYTES + FIRST_BYTES;

/// The header fields of a plain packet. Addresses are numbers, the first byte on the wire the most
/// significant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlainHeader {
    /// Source address.
    pub source: u128,
    /// Destination address.
    pub destination: u128,
    /// The first bytes after the header: the selector fields of the next layer protocol, where it has any.
    pub first: [u8; FIRST_BYTES],
    /// Bytes of the whole datagram; never more than there are.
    pub total_bytes: u16,
    /// IP version.
    pub version: Version,
    /// Transport protocol.
    pub protocol: u8,
    /// DSCP and ECN.
    pub traffic_class: u8,
}

/// The header fields of a plain IPv4 packet in their form on the wire: where addresses alone decide, none
/// needs to be taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlainV4 {
    /// Source address in the upper half, destination address in the lower.
    pub addresses: u64,
    /// The first bytes after the header: the selector fields of the next layer protocol, where it has any.
    pub first: [u8; FIRST_BYTES],
    /// Bytes of the whole datagram; never more than there are.
    pub total_bytes: u16,
    /// Transport protocol.
    pub protocol: u8,
    /// DSCP and ECN.
    pub traffic_class: u8,
}

impl PlainV4 {
    /// As [`PlainHeader::parse`], for IPv4 only.
    #[must_use]
    #[inline(always)]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        Self::parse_front(bytes, bytes.len())
    }

    #[inline(always)]
    fn parse_front(bytes: &[u8], available: usize) -> Option<Self> {
        let h = bytes.first_chunk::<V4_BYTES>()?;
        let header = h.first_chunk::<IPV4_HEADER_BYTES>()?;
        let total_bytes = u16::from_be_bytes([h[2], h[3]]);
        let fits = usize::from(total_bytes) <= available && usize::from(total_bytes) >= V4_BYTES;
        // More Fragments, and any offset.
        let is_fragment = u16::from_be_bytes([h[6], h[7]]) & 0x3FFF != 0;
        if h[0] != 0x45 || !fits || is_fragment || !checksum::of_ipv4_header(header).is_intact() {
            return None;
        }
        Some(Self {
            addresses: u64::from_be_bytes([h[12], h[13], h[14], h[15], h[16], h[17], h[18], h[19]]),
            first: [h[20], h[21], h[22], h[23]],
            total_bytes,
            protocol: h[9],
            traffic_class: h[1],
        })
    }

    /// Whether `packet`, which this header was parsed from, opens a TCP connection, or answers that.
    #[must_use]
    #[inline(always)]
    pub fn is_syn(&self, packet: &[u8]) -> bool {
        self.protocol == protocol::TCP && mss::is_syn(&packet[IPV4_HEADER_BYTES..])
    }

    /// Source and destination port, where the protocol has them.
    #[must_use]
    #[inline]
    pub fn ports(&self) -> Option<(u16, u16)> {
        NextLayerFields::read(self.protocol, self.first)?.ports()
    }
}

impl PlainHeader {
    /// Whether `packet`, which this header was parsed from, opens a TCP connection, or answers that.
    #[must_use]
    #[inline]
    pub fn is_syn(&self, packet: &[u8]) -> bool {
        self.protocol == protocol::TCP && mss::is_syn(&packet[self.version.header_bytes()..])
    }

    /// Source and destination port, where the protocol has them.
    #[must_use]
    #[inline(always)]
    pub fn ports(&self) -> Option<(u16, u16)> {
        self.next_layer_fields()?.ports()
    }

    /// The selector fields of the next layer protocol, where it has any (RFC 4301 4.4.1.1).
    #[must_use]
    #[inline(always)]
    pub fn next_layer_fields(&self) -> Option<NextLayerFields> {
        NextLayerFields::read(self.protocol, self.first)
    }

    /// Reads the header at the start of `bytes`; bytes after the datagram are allowed. `None` for a packet
    /// that is not plain or not valid: only [`IpHeader::parse`](crate::ip::IpHeader::parse) distinguishes
    /// these.
    #[must_use]
    #[inline(always)]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        match *bytes.first()? {
            0x45 => PlainV4::parse(bytes).map(Self::from),
            0x60..=0x6F => Self::parse_v6(bytes, bytes.len()),
            _ => None,
        }
    }

    /// The same for a packet of which only the first bytes are at hand, and `available` are there in all.
    #[must_use]
    #[cold]
    pub fn parse_front(bytes: &[u8], available: usize) -> Option<Self> {
        match *bytes.first()? {
            0x45 => PlainV4::parse_front(bytes, available).map(Self::from),
            0x60..=0x6F => Self::parse_v6(bytes, available),
            _ => None,
        }
    }

    #[inline]
    fn parse_v6(bytes: &[u8], available: usize) -> Option<Self> {
        let h = bytes.first_chunk::<V6_BYTES>()?;
        let payload_bytes = u16::from_be_bytes([h[4], h[5]]);
        let total_bytes = payload_bytes.checked_add(40)?;
        let fits = usize::from(total_bytes) <= available && usize::from(total_bytes) >= V6_BYTES;
        let protocol = h[6];
        if !fits || is_extension(protocol) {
            return None;
        }
        let number = |at: usize| {
            let mut octets = [0; 16];
            octets.copy_from_slice(&h[at..at + 16]);
            u128::from_be_bytes(octets)
        };
        Some(Self {
            source: number(8),
            destination: number(24),
            first: [h[40], h[41], h[42], h[43]],
            total_bytes,
            version: Version::V6,
            protocol,
            traffic_class: h[0] << 4 | h[1] >> 4,
        })
    }
}

impl From<PlainV4> for PlainHeader {
    #[inline(always)]
    fn from(plain: PlainV4) -> Self {
        Self {
            source: (plain.addresses >> 32).into(),
            destination: (plain.addresses & 0xFFFF_FFFF).into(),
            first: plain.first,
            total_bytes: plain.total_bytes,
            version: Version::V4,
            protocol: plain.protocol,
            traffic_class: plain.traffic_class,
        }
    }
}

/// [`PlainV4::addresses`] of what looks like an IPv4 packet, unchecked: for prefetching, and for nothing
/// else.
#[must_use]
#[inline(always)]
pub fn unchecked_v4(bytes: &[u8]) -> Option<u64> {
    let h = bytes.first_chunk::<IPV4_HEADER_BYTES>()?;
    let addresses = u64::from_be_bytes([h[12], h[13], h[14], h[15], h[16], h[17], h[18], h[19]]);
    (h[0] >> 4 == 4).then_some(addresses)
}

/// Source and destination address of what looks like an IPv6 packet, likewise.
#[must_use]
#[inline]
pub fn unchecked_v6(bytes: &[u8]) -> Option<(u128, u128)> {
    let (front, addresses) = bytes.first_chunk::<IPV6_HEADER_BYTES>()?.split_at(8);
    let number = |half: Option<&[u8; 16]>| half.map(|octets| u128::from_be_bytes(*octets));
    let both = (number(addresses.first_chunk())?, number(addresses.last_chunk())?);
    (front[0] >> 4 == 6).then_some(both)
}

/// Extension headers that [`IpHeader`](crate::ip::IpHeader) steps over, and protocols after which it cannot
/// find its way.
#[inline(always)]
fn is_extension(protocol: u8) -> bool {
    /// By number: comparing with all of them would cost every IPv6 packet a dozen instructions.
    static IS_EXTENSION: [bool; 256] = {
        let mut table = [false; 256];
        let mut number = 0u8;
        loop {
            let stepped_over = matches!(
                number,
                protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION_OPTIONS | protocol::FRAGMENT
            );
            table[number as usize] = stepped_over || protocol::hides_what_follows(number);
            if number == u8::MAX {
                break;
            }
            number += 1;
        }
        table
    };
    IS_EXTENSION[usize::from(protocol)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ip::{IpHeader, OuterHeader};
    use proptest::prelude::*;
    use std::net::IpAddr;

    fn number(address: IpAddr) -> u128 {
        match address {
            IpAddr::V4(a) => a.to_bits().into(),
            IpAddr::V6(a) => a.to_bits(),
        }
    }

    /// A valid packet with a few bytes changed: the plain parser must agree with the full one wherever it
    /// returns a header.
    fn packet() -> impl Strategy<Value = Vec<u8>> {
        let change = (0..48usize, any::<u8>());
        (any::<bool>(), 0..64usize, any::<[u8; 4]>(), prop::collection::vec(change, 0..3), any::<bool>())
            .prop_map(|(v6, payload, four, changes, mend)| {
                let (source, destination): (IpAddr, IpAddr) = if v6 {
                    ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap())
                } else {
                    ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap())
                };
                let protocol = [6, 17, 132, 1, 50, 44, 0, 60, 139, 200, 58, 135][usize::from(four[0]) % 12];
                let header = OuterHeader {
                    source,
                    destination,
                    protocol,
                    traffic_class: four[1],
                    hop_limit: four[2],
                    dont_fragment: four[3] & 1 == 1,
                };
                let mut bytes = vec![four[3]; header.bytes() + payload];
                let total = bytes.len();
                header.write(&mut bytes, total, 7).unwrap();
                for (at, value) in changes {
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte = value;
                    }
                }
                if mend && bytes.len() >= 20 && bytes[0] == 0x45 {
                    bytes[10..12].fill(0);
                    let sum = checksum::of(&bytes[..20]).to_bytes();
                    bytes[10..12].copy_from_slice(&sum);
                }
                bytes
            })
    }

    proptest! {
        #[test]
        fn the_full_parser_agrees_with_every_plain_header(bytes in packet()) {
            let whole = IpHeader::parse(&bytes);
            let Some(plain) = PlainHeader::parse(&bytes) else {
                // Everything that it may reject: packets that are invalid, truncated, have options or
                // extensions, or are too short for ports.
                if let Ok(h) = whole {
                    let fixed = h.version.header_bytes();
                    let is_plain = h.fragment.is_none() && h.header_bytes == fixed && h.total_bytes >= fixed + FIRST_BYTES
                        && h.next_layer_protocol().is_some();
                    prop_assert!(!is_plain, "{h:?} was left");
                }
                return Ok(());
            };
            let whole = whole.unwrap();
            prop_assert_eq!(plain.version, whole.version);
            prop_assert_eq!((plain.source, plain.destination), (number(whole.source), number(whole.destination)));
            prop_assert_eq!(plain.next_layer_fields(), whole.next_layer_fields(&bytes));
            prop_assert_eq!(plain.ports(), whole.ports(&bytes));
            prop_assert_eq!(usize::from(plain.total_bytes), whole.total_bytes);
            prop_assert_eq!((plain.protocol, plain.traffic_class), (whole.protocol, whole.traffic_class));
            prop_assert_eq!(whole.next_layer_protocol(), Some(plain.protocol));
            prop_assert!(whole.fragment.is_none());
            let (v4, v6) = match plain.version {
                Version::V4 => (PlainV4::parse(&bytes).map(|header| header.addresses), None),
                Version::V6 => (None, Some((plain.source, plain.destination))),
            };
            prop_assert_eq!((unchecked_v4(&bytes), unchecked_v6(&bytes)), (v4, v6));
        }
    }
}

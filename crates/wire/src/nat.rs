//! Checksums behind a NAT: transport mode of ESP in UDP (RFC 3948 3.1.2).
//!
//! A NAT on the way changes the addresses of the IP header, but cannot reach the checksum of TCP or UDP,
//! which covers them and is encrypted. The receiver decapsulates a packet whose checksum is right for the
//! addresses that its sender saw (NAT-OA of RFC 3947 5.2; traffic selectors, RFC 7296 2.23.1). It has three
//! remedies:
//!
//! ```text
//!   Update      these addresses are known: exchange them in the sum
//!   Recompute   they are not: compute the checksum anew; the ICV has protected the packet so far
//!   Clear       likewise, but UDP over IPv4 can do without (RFC 768)
//! ```
//!
//! Only `Update` leaves a checksum wrong that was wrong when the packet was encrypted.

use crate::checksum::{Checksum, Sum};
use crate::ip::{IpHeader, Version};
use crate::protocol;
use crate::tcp::{self, TcpHeader};
use crate::udp::{self, UdpHeader};
use std::net::IpAddr;

/// What to do with the checksum of TCP or UDP in a packet from behind a NAT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChecksumFixup {
    /// Updates it (RFC 1624) from the addresses that the sender saw to those that the packet has. UDP without
    /// a checksum stays without.
    Update {
        /// Source address that the sender saw.
        source: IpAddr,
        /// Destination address that the sender saw.
        destination: IpAddr,
    },
    /// Computes it anew.
    Recompute,
    /// Sets that of UDP over IPv4 to zero, which means none. Computes all others anew: TCP has no packets
    /// without, and RFC 8200 8.1 wants one for UDP.
    Clear,
}

impl ChecksumFixup {
    /// Applies the remedy to `packet`, whose header is `header`. Packets of other protocols stay as they are,
    /// and fragments, which transport mode has none of (RFC 4303 3.3.4).
    pub fn apply(self, header: &IpHeader, packet: &mut [u8]) {
        let Some(segment) = packet.get_mut(header.header_bytes..header.total_bytes) else { return };
        let (at, length) = match header.protocol {
            _ if header.fragment.is_some() => return,
            protocol::TCP if TcpHeader::parse(segment).is_ok() => (tcp::CHECKSUM_AT, segment.len()),
            protocol::UDP => match UdpHeader::parse(segment) {
                Ok(datagram) => (udp::CHECKSUM_AT, datagram.total_bytes),
                Err(_) => return,
            },
            _ => return,
        };
        let is_udp = header.protocol == protocol::UDP;
        let found = [segment[at], segment[at + 1]];
        let checksum = match self {
            Self::Update { .. } if is_udp && found == [0, 0] => found,
            Self::Update { source, destination } => {
                let (old, old_bytes) = octets(source, destination);
                let (new, new_bytes) = octets(header.source, header.destination);
                let checksum = Checksum::from_bytes(found).update(&old[..old_bytes], &new[..new_bytes]);
                if is_udp { udp::present(checksum) } else { checksum.to_bytes() }
            }
            Self::Clear if is_udp && header.version == Version::V4 => [0, 0],
            Self::Recompute | Self::Clear => {
                segment[at..at + 2].fill(0);
                // Lossless: a datagram has at most 65,535 bytes.
                let counted = u32::try_from(length).unwrap_or(0);
                let sum =
                    Sum::default().pseudo_header(header.source, header.destination, header.protocol, counted);
                let checksum = sum.bytes(&segment[..length]).finish();
                if is_udp { udp::present(checksum) } else { checksum.to_bytes() }
            }
        };
        segment[at..at + 2].copy_from_slice(&checksum);
    }
}

/// Two addresses in a row, and how many bytes they have.
fn octets(source: IpAddr, destination: IpAddr) -> ([u8; 32], usize) {
    let (mut both, mut end) = ([0; 32], 0);
    for address in [source, destination] {
        match address {
            IpAddr::V4(a) => {
                both[end..end + 4].copy_from_slice(&a.octets());
                end += 4;
            }
            IpAddr::V6(a) => {
                both[end..end + 16].copy_from_slice(&a.octets());
                end += 16;
            }
        }
    }
    (both, end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_packets::{complete_ipv4_checksum, hex, ipv4, ipv6};
    use proptest::prelude::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    /// Gives a packet other addresses, as a NAT does: it keeps the header's checksum right, and no other.
    fn translate(packet: &mut [u8], source: IpAddr, destination: IpAddr) {
        let (both, length) = octets(source, destination);
        let at = if packet[0] >> 4 == 4 { 12 } else { 8 };
        packet[at..at + length].copy_from_slice(&both[..length]);
        if packet[0] >> 4 == 4 {
            complete_ipv4_checksum(packet);
        }
    }

    fn apply(fixup: ChecksumFixup, packet: &[u8]) -> Vec<u8> {
        let mut packet = packet.to_vec();
        fixup.apply(&IpHeader::parse(&packet.clone()).unwrap(), &mut packet);
        packet
    }

    /// Made with Scapy 2.5: `raw(IP(src=..., dst=...)/TCP(sport=1, dport=2)/b"x")`, likewise UDP and IPv6,
    /// with the addresses before and after a NAT. Scapy computes all checksums itself.
    const GOLDEN: [(&str, &str); 4] = [
        (
            "4500002900010000400646940a000005c633640200010002000000000000000050022000e3a3000078",
            "450000290001000040067d1acb007109c0a80102000100020000000000000000500220001a2a000078",
        ),
        (
            "4500001d00010000401146950a000005c6336402000100020009539e78",
            "4500001d0001000040117d1bcb007109c0a801020001000200098a2478",
        ),
        (
            "6000000000150640fd00000000000000000000000000000520010db80000000000000000000000020001000200\
             0000000000000050022000ed1d000078",
            "600000000015064020010db8000900000000000000000009fd0100000000000000000000000000020001000200\
             0000000000000050022000ed0f000078",
        ),
        (
            "6000000000091140fd00000000000000000000000000000520010db80000000000000000000000020001000200\
             095d1878",
            "600000000009114020010db8000900000000000000000009fd0100000000000000000000000000020001000200\
             095d0a78",
        ),
    ];

    #[test]
    fn a_translated_packet_gets_the_checksum_that_scapy_computes() {
        for (sent, expected) in GOLDEN {
            let [sent, expected] = [sent, expected].map(hex);
            let [before, after] = [&sent, &expected].map(|packet| IpHeader::parse(packet).unwrap());
            let mut received = sent.clone();
            translate(&mut received, after.source, after.destination);
            assert_ne!(received, expected, "the NAT left the checksum wrong");
            let update = ChecksumFixup::Update { source: before.source, destination: before.destination };
            for fixup in [update, ChecksumFixup::Recompute] {
                assert_eq!(apply(fixup, &received), expected, "{fixup:?}");
            }
            // RFC 3948 3.1.2: zero for UDP. Over IPv6, RFC 8200 8.1 does not allow it.
            let mut cleared = expected.clone();
            if after.protocol == protocol::UDP && after.version == Version::V4 {
                cleared[26..28].fill(0);
            }
            assert_eq!(apply(ChecksumFixup::Clear, &received), cleared);
        }
    }

    const ELSEWHERE: ChecksumFixup = ChecksumFixup::Update {
        source: IpAddr::V4(Ipv4Addr::new(10, 9, 8, 7)),
        destination: IpAddr::V6(Ipv6Addr::LOCALHOST),
    };

    /// RFC 768: a checksum of zero means that there is none.
    #[test]
    fn udp_without_a_checksum_stays_without() {
        let packet = ipv4(&[], protocol::UDP, &[0x13, 0x88, 0, 53, 0, 9, 0, 0, 7]);
        assert_eq!(apply(ELSEWHERE, &packet), packet);
        assert_eq!(apply(ChecksumFixup::Clear, &packet), packet);
    }

    /// RFC 768: "If the computed checksum is zero, it is transmitted as all ones".
    #[test]
    fn a_computed_zero_of_udp_is_sent_as_all_ones() {
        let mut packet = ipv4(&[], protocol::UDP, &[0x13, 0x88, 0, 53, 0, 10, 0, 0, 0, 0]);
        let sum = apply(ChecksumFixup::Recompute, &packet);
        // With the checksum among the data, the sum is that of all ones.
        packet[28..30].copy_from_slice(&sum[26..28]);
        let computed = apply(ChecksumFixup::Recompute, &packet);
        assert_eq!(computed[26..28], [0xFF, 0xFF]);
        let header = IpHeader::parse(&computed).unwrap();
        let update = ChecksumFixup::Update { source: header.source, destination: header.destination };
        assert_eq!(apply(update, &computed), computed);
    }

    #[test]
    fn what_has_no_such_checksum_stays_as_it_is() {
        let fragment = (protocol::FRAGMENT, &[0, 0, 1, 0, 0, 0, 9][..]);
        let mut first = ipv4(&[], protocol::UDP, &[0, 1, 0, 2, 0, 20, 0x12, 0x34, 0, 0, 0, 0]);
        first[6] = 0x20;
        complete_ipv4_checksum(&mut first);
        for packet in [
            ipv4(&[], protocol::ICMP, &[8, 0, 0xF7, 0xFE, 0, 1, 0, 0]),
            ipv4(&[], protocol::SCTP, &[1; 30]),
            ipv4(&[], protocol::TCP, &[1; 19]),
            ipv4(&[], protocol::UDP, &[1; 7]),
            ipv4(&[], protocol::UDP, &[0, 1, 0, 2, 0, 20, 0x12, 0x34, 0, 0]),
            ipv4(&[], protocol::UDP, &[0, 1, 0, 2, 0, 7, 0x12, 0x34, 0, 0]),
            ipv6(&[fragment], protocol::UDP, &[0, 1, 0, 2, 0, 8, 0x12, 0x34]),
            first,
        ] {
            for fixup in [ELSEWHERE, ChecksumFixup::Recompute, ChecksumFixup::Clear] {
                assert_eq!(apply(fixup, &packet), packet, "{fixup:?}");
            }
        }
    }

    fn address() -> impl Strategy<Value = IpAddr> {
        prop_oneof![
            any::<u32>().prop_map(|bits| IpAddr::V4(bits.into())),
            any::<u128>().prop_map(|bits| IpAddr::V6(bits.into())),
            Just(IpAddr::V4(Ipv4Addr::BROADCAST)),
            Just(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        ]
    }

    proptest! {
        /// RFC 1624: as if the checksum were computed anew; NAT-OA may even be of the other IP version.
        #[test]
        fn an_update_equals_a_computation(
            v6 in any::<bool>(),
            is_udp in any::<bool>(),
            source in address(),
            destination in address(),
            mut payload in prop::collection::vec(prop_oneof![any::<u8>(), Just(0), Just(0xFF)], 20..60),
        ) {
            let number = if is_udp { protocol::UDP } else { protocol::TCP };
            let length = payload.len() as u8;
            if is_udp {
                payload[4..6].copy_from_slice(&[0, length]);
            } else {
                payload[12] = 0x50;
            }
            let packet = if v6 { ipv6(&[], number, &payload) } else { ipv4(&[], number, &payload) };
            let header = IpHeader::parse(&packet).unwrap();
            let expected = apply(ChecksumFixup::Recompute, &packet);
            // What the sender computed: over the same bytes, with its addresses.
            let at = header.header_bytes + if is_udp { 6 } else { 16 };
            let mut sent = packet.clone();
            sent[at..at + 2].fill(0);
            let sum = Sum::default().pseudo_header(source, destination, number, u32::from(length));
            let sum = sum.bytes(&sent[header.header_bytes..]).finish();
            sent[at..at + 2].copy_from_slice(&if is_udp { udp::present(sum) } else { sum.to_bytes() });
            let update = ChecksumFixup::Update { source, destination };
            prop_assert_eq!(apply(update, &sent), expected);
            // A checksum that was wrong before stays wrong.
            sent[at] ^= 1;
            if sent[at..at + 2] != [0, 0] {
                let header = IpHeader::parse(&sent).unwrap();
                update.apply(&header, &mut sent);
                let (source, destination) = (header.source, header.destination);
                let sum = Sum::default().pseudo_header(source, destination, number, length.into());
                prop_assert!(!sum.bytes(header.payload(&sent)).finish().is_intact());
            }
        }
    }
}

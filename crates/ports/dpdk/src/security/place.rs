//! Where a device finds IPsec in a frame.

use std::net::IpAddr;
use testudo_crypto::SecurityProtocol;
use testudo_wire::ip::{IPV4_HEADER_BYTES, IPV6_HEADER_BYTES};
use testudo_wire::protocol;

/// Bytes of an Ethernet header, and of a tag of 802.1Q.
const ETHERNET_BYTES: usize = 14;
const TAG_BYTES: usize = 4;

/// By what the SA of a received packet is told (RFC 4301 4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Arrival {
    pub spi: u32,
    pub destination: IpAddr,
    pub protocol: SecurityProtocol,
}

/// A packet of ESP or AH in a frame, directly after its IP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// Bytes of the link-layer header.
    pub link_bytes: u16,
    /// Bytes of the IP header.
    pub ip_bytes: u16,
    pub arrival: Arrival,
}

impl Place {
    /// `None` for frames in which a device finds none: without IPsec, with IPv4 options or IPv6 extension
    /// headers before it, and fragments.
    #[inline]
    pub(crate) fn of(frame: &[u8]) -> Option<Self> {
        let ether_type = |at: usize| frame.get(at..at + 2)?.first_chunk().copied().map(u16::from_be_bytes);
        let (kind, link_bytes) = match ether_type(12)? {
            0x8100 | 0x88A8 => (ether_type(16)?, ETHERNET_BYTES + TAG_BYTES),
            kind => (kind, ETHERNET_BYTES),
        };
        let packet = frame.get(link_bytes..)?;
        let (number, ip_bytes, destination) = match (kind, packet.first()? >> 4) {
            (0x0800, 4) => {
                let header = packet.first_chunk::<IPV4_HEADER_BYTES>()?;
                let is_plain = header[0] == 0x45 && header[6] & 0x3F == 0 && header[7] == 0;
                let address = is_plain.then_some(header.last_chunk::<4>())??;
                (header[9], IPV4_HEADER_BYTES, IpAddr::from(*address))
            }
            (0x86DD, 6) => {
                let header = packet.first_chunk::<IPV6_HEADER_BYTES>()?;
                (header[6], IPV6_HEADER_BYTES, IpAddr::from(*header.last_chunk::<16>()?))
            }
            _ => return None,
        };
        let (protocol, spi_at) = match number {
            protocol::ESP => (SecurityProtocol::Esp, ip_bytes),
            protocol::AH => (SecurityProtocol::Ah, ip_bytes + 4),
            _ => return None,
        };
        let spi = u32::from_be_bytes(*packet.get(spi_at..spi_at + 4)?.first_chunk()?);
        let [link_bytes, ip_bytes] = [link_bytes, ip_bytes].map(|bytes| u16::try_from(bytes).unwrap_or(0));
        Some(Self { link_bytes, ip_bytes, arrival: Arrival { spi, destination, protocol } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(tag: &[u8], kind: u16, packet: &[u8]) -> Vec<u8> {
        [&[2; 12], tag, &kind.to_be_bytes(), packet].concat()
    }

    fn v4(first: u8, fragment: [u8; 2], protocol: u8) -> Vec<u8> {
        let mut packet = vec![0; 40];
        (packet[0], packet[9]) = (first, protocol);
        packet[6..8].copy_from_slice(&fragment);
        packet[16..20].copy_from_slice(&[192, 0, 2, 1]);
        packet[20..28].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        packet
    }

    #[test]
    fn esp_and_ah_are_found_directly_after_the_ip_header() {
        let found = Place::of(&frame(&[], 0x0800, &v4(0x45, [0x40, 0], 50))).unwrap();
        let destination = IpAddr::from([192, 0, 2, 1]);
        let arrival = Arrival { spi: 0x0102_0304, destination, protocol: SecurityProtocol::Esp };
        assert_eq!(found, Place { link_bytes: 14, ip_bytes: 20, arrival });
        let tagged = Place::of(&frame(&[0x81, 0, 0, 7], 0x0800, &v4(0x45, [0, 0], 51))).unwrap();
        let arrival = Arrival { spi: 0x0506_0708, protocol: SecurityProtocol::Ah, ..arrival };
        assert_eq!(tagged, Place { link_bytes: 18, ip_bytes: 20, arrival });
        let mut v6 = vec![0; 60];
        (v6[0], v6[6], v6[39], v6[43]) = (0x60, 50, 9, 5);
        let found = Place::of(&frame(&[], 0x86DD, &v6)).unwrap();
        let destination = IpAddr::from([0, 0, 0, 0, 0, 0, 0, 9]);
        let arrival = Arrival { spi: 5, destination, protocol: SecurityProtocol::Esp };
        assert_eq!(found, Place { link_bytes: 14, ip_bytes: 40, arrival });
    }

    #[test]
    fn all_else_is_left_alone() {
        for (first, fragment, protocol) in
            [(0x46, [0, 0], 50), (0x45, [0x20, 0], 50), (0x45, [0, 1], 50), (0x45, [0, 0], 17)]
        {
            assert_eq!(Place::of(&frame(&[], 0x0800, &v4(first, fragment, protocol))), None);
        }
        let whole = frame(&[], 0x0800, &v4(0x45, [0, 0], 50));
        assert!((0..38).all(|bytes| Place::of(&whole[..bytes]).is_none()));
        assert!(Place::of(&frame(&[], 0x86DD, &v4(0x45, [0, 0], 50))).is_none(), "IPv4 in IPv6's clothes");
        assert!(Place::of(&frame(&[], 0x0806, &v4(0x45, [0, 0], 50))).is_none());
    }
}

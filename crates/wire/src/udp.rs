//! UDP headers (RFC 768).

use crate::checksum::{Checksum, Sum};
use crate::ip::{IpHeader, Version};
use crate::{ParseError, protocol};

/// Bytes of a UDP header.
pub const UDP_HEADER_BYTES: usize = 8;
/// Offset of the checksum in the header.
pub(crate) const CHECKSUM_AT: usize = 6;

/// A UDP header, checked against the bytes it came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UdpHeader {
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// Bytes of header and payload.
    pub total_bytes: usize,
}

impl UdpHeader {
    /// Reads the header at the start of `bytes`, an IP payload. The checksum is not verified: the content of
    /// ESP in UDP has a stronger one, and RFC 3948 2.1 wants receivers not to depend on this one.
    ///
    /// # Errors
    /// [`ParseError`] if bytes are missing or the length field is below 8.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let h = bytes.first_chunk::<UDP_HEADER_BYTES>().ok_or(ParseError::Truncated)?;
        let total_bytes = usize::from(u16::from_be_bytes([h[4], h[5]]));
        if total_bytes < UDP_HEADER_BYTES {
            return Err(ParseError::BadHeader);
        }
        if total_bytes > bytes.len() {
            return Err(ParseError::Truncated);
        }
        Ok(Self {
            source_port: u16::from_be_bytes([h[0], h[1]]),
            destination_port: u16::from_be_bytes([h[2], h[3]]),
            total_bytes,
        })
    }

    /// Writes the header with a zero checksum, as RFC 3948 2.1 wants it for ESP over IPv4; over IPv6, RFC
    /// 6935 allows it for tunnels.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] if `out` is too short, [`ParseError::BadHeader`] if the length does not fit
    /// its field.
    pub fn write(&self, out: &mut [u8]) -> Result<(), ParseError> {
        let out = out.first_chunk_mut::<UDP_HEADER_BYTES>().ok_or(ParseError::Truncated)?;
        let length = u16::try_from(self.total_bytes).map_err(|_| ParseError::BadHeader)?;
        out[..2].copy_from_slice(&self.source_port.to_be_bytes());
        out[2..4].copy_from_slice(&self.destination_port.to_be_bytes());
        out[4..6].copy_from_slice(&length.to_be_bytes());
        out[6..8].fill(0);
        Ok(())
    }
}

/// Fills in the checksum of a UDP datagram over IPv6 whose checksum is zero, which RFC 8200 8.1 forbids
/// except in tunnels that agreed on it; other packets stay as they are.
pub fn complete_ipv6_checksum(packet: &mut [u8]) {
    let Ok(ip) = IpHeader::parse(packet) else { return };
    if ip.version != Version::V6 || ip.protocol != protocol::UDP || ip.fragment.is_some() {
        return;
    }
    let Some(datagram) = packet.get_mut(ip.header_bytes..ip.total_bytes) else { return };
    if UdpHeader::parse(datagram).is_err() || datagram[6..8] != [0, 0] {
        return;
    }
    let length = u32::try_from(datagram.len()).unwrap_or(0);
    let sum = Sum::default().pseudo_header(ip.source, ip.destination, protocol::UDP, length);
    let checksum = present(sum.bytes(datagram).finish());
    datagram[CHECKSUM_AT..UDP_HEADER_BYTES].copy_from_slice(&checksum);
}

/// A computed checksum as UDP sends it: zero means that there is none, so that a computed zero is sent as all
/// ones (RFC 768).
pub(crate) fn present(checksum: Checksum) -> [u8; 2] {
    match checksum.to_bytes() {
        [0, 0] => [0xFF, 0xFF],
        bytes => bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ip::OuterHeader;

    #[test]
    fn an_ipv6_checksum_is_completed_once() {
        let outer = OuterHeader {
            source: "2001:db8::1".parse().unwrap(),
            destination: "2001:db8::2".parse().unwrap(),
            protocol: protocol::UDP,
            traffic_class: 0,
            hop_limit: 64,
            dont_fragment: true,
        };
        let mut packet = [0x5A; 61];
        outer.write(&mut packet, 61, 0).unwrap();
        UdpHeader { source_port: 4500, destination_port: 4500, total_bytes: 21 }
            .write(&mut packet[40..])
            .unwrap();
        complete_ipv6_checksum(&mut packet);
        let sum = Sum::default().pseudo_header(outer.source, outer.destination, protocol::UDP, 21);
        assert!(sum.bytes(&packet[40..]).finish().is_intact());
        let complete = packet;
        complete_ipv6_checksum(&mut packet);
        assert_eq!(packet, complete);
    }

    #[test]
    fn what_is_written_is_read_back() {
        let header = UdpHeader { source_port: 4500, destination_port: 4501, total_bytes: 12 };
        let mut bytes = [0xFF; 12];
        header.write(&mut bytes).unwrap();
        assert_eq!(UdpHeader::parse(&bytes), Ok(header));
        assert_eq!(UdpHeader::parse(&bytes[..11]), Err(ParseError::Truncated));
        bytes[5] = 7;
        assert_eq!(UdpHeader::parse(&bytes), Err(ParseError::BadHeader));
    }
}

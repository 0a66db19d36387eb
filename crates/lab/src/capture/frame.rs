//! An Ethernet frame, parsed as far as the eavesdropper needs: source, destination, protocol.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const ETHERNET_HEADER: usize = 14;

/// What a frame carries.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame<'a> {
    /// Address resolution (RFC 826).
    Arp,
    /// An IP packet.
    Ip(Ip<'a>),
    /// Anything else.
    Other,
}

/// An IP packet, recorded completely or only its beginning.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ip<'a> {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    /// IPv4: the protocol; IPv6: the first next header.
    pub(crate) protocol: u8,
    /// The packet from its IP header on, without the padding of a short Ethernet frame.
    pub(super) packet: &'a [u8],
    /// Offset of the payload in `packet`.
    pub(super) payload_at: usize,
}

impl<'a> Frame<'a> {
    pub(super) fn parse(frame: &'a [u8]) -> Self {
        let Some((header, packet)) = frame.split_at_checked(ETHERNET_HEADER) else { return Frame::Other };
        let ip = match header[12..] {
            [0x08, 0x06] => return Frame::Arp,
            [0x08, 0x00] => Ip::parse_v4(packet),
            [0x86, 0xdd] => Ip::parse_v6(packet),
            _ => None,
        };
        ip.map_or(Frame::Other, Frame::Ip)
    }
}

impl<'a> Ip<'a> {
    /// Reads a packet from its IP header on.
    pub(crate) fn parse(packet: &'a [u8]) -> Option<Self> {
        match packet.first()? >> 4 {
            4 => Self::parse_v4(packet),
            6 => Self::parse_v6(packet),
            _ => None,
        }
    }

    /// RFC 791 3.1. A later fragment shows no ports, so it cannot be judged.
    fn parse_v4(packet: &'a [u8]) -> Option<Self> {
        let header = packet.first_chunk::<20>()?;
        let payload_at = usize::from(header[0] & 15) * 4;
        let fragment_offset = u16::from_be_bytes([header[6], header[7]]) & 0x1fff;
        if header[0] >> 4 != 4 || payload_at < 20 || fragment_offset != 0 {
            return None;
        }
        let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
        Some(Self {
            source: Ipv4Addr::from(*header[12..].first_chunk()?).into(),
            destination: Ipv4Addr::from(*header[16..].first_chunk()?).into(),
            protocol: header[9],
            packet: &packet[..packet.len().min(length)],
            payload_at,
        })
    }

    /// RFC 8200 3.
    fn parse_v6(packet: &'a [u8]) -> Option<Self> {
        let header = packet.first_chunk::<40>()?;
        if header[0] >> 4 != 6 {
            return None;
        }
        let length = 40 + usize::from(u16::from_be_bytes([header[4], header[5]]));
        Some(Self {
            source: Ipv6Addr::from(*header[8..].first_chunk()?).into(),
            destination: Ipv6Addr::from(*header[24..].first_chunk()?).into(),
            protocol: header[6],
            packet: &packet[..packet.len().min(length)],
            payload_at: 40,
        })
    }

    /// The bytes after the IP header, as far as they were recorded.
    pub(crate) fn payload(&self) -> &'a [u8] {
        self.packet.get(self.payload_at..).unwrap_or(&[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(mut change: impl FnMut(&mut [u8])) -> Vec<u8> {
        let mut frame = vec![0; 60];
        frame[12..14].copy_from_slice(&[8, 0]);
        frame[14..18].copy_from_slice(&[0x45, 0, 0, 29]);
        frame[23] = 17;
        frame[26..34].copy_from_slice(&[192, 0, 2, 1, 192, 0, 2, 2]);
        change(&mut frame);
        frame
    }

    #[test]
    fn padding_of_a_short_frame_is_no_part_of_its_packet() {
        let frame = v4(|_| {});
        let Frame::Ip(ip) = Frame::parse(&frame) else { panic!("no IP") };
        assert_eq!((ip.protocol, ip.packet.len(), ip.payload().len()), (17, 29, 9));
        assert_eq!(ip.source, "192.0.2.1".parse::<IpAddr>().unwrap());
    }

    #[test]
    fn fragments_other_versions_and_truncated_frames_are_unknown() {
        assert_eq!(Frame::parse(&v4(|frame| frame[21] = 1)), Frame::Other);
        assert_eq!(Frame::parse(&v4(|frame| frame[14] = 0x65)), Frame::Other);
        assert_eq!(Frame::parse(&v4(|frame| frame[14] = 0x44)), Frame::Other);
        assert_eq!(Frame::parse(&v4(|frame| frame[12] = 0x86)), Frame::Other);
        let frame = v4(|_| {});
        for length in 0..34 {
            assert_eq!(Frame::parse(&frame[..length]), Frame::Other, "{length} bytes");
        }
    }
}

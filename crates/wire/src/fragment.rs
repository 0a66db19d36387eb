//! IPv4 fragmentation (RFC 791 3.2): a packet that does not fit the tunnel is cut before it is encrypted.

use crate::checksum;
use crate::ip::{IPV4_HEADER_BYTES, IpHeader, Version};

/// One fragment to be made: its header, and its payload bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The header, with length, offset, flags and checksum of this fragment.
    pub header: [u8; 60],
    /// Bytes of the header that are used.
    pub header_bytes: usize,
    /// First payload byte, counted from the start of the packet's payload.
    pub payload_start: usize,
    /// Payload bytes.
    pub payload_bytes: usize,
}

/// The fragments of an IPv4 packet, each at most `mtu` bytes: an iterator, so that nothing is allocated.
/// Empty for IPv6, for packets with DF, and where `mtu` leaves no room for 8 bytes of payload: those cannot
/// be fragmented.
pub fn pieces<'a>(header: &IpHeader, packet: &'a [u8], mtu: usize) -> impl Iterator<Item = Piece> + use<'a> {
    let header = *header;
    let payload_bytes = header.total_bytes - header.header_bytes;
    let room = mtu.saturating_sub(header.header_bytes) & !7;
    let possible = header.version == Version::V4
        && !header.dont_fragment
        && room >= 8
        && packet.len() >= header.total_bytes;
    let starts = if possible { 0..payload_bytes } else { 0..0 };
    starts
        .step_by(room.max(8))
        .map(move |start| piece(&header, packet, start, room.min(payload_bytes - start)))
}

fn piece(header: &IpHeader, packet: &[u8], start: usize, payload_bytes: usize) -> Piece {
    let mut bytes = [0; 60];
    let header_bytes = if start == 0 {
        bytes[..header.header_bytes].copy_from_slice(&packet[..header.header_bytes]);
        header.header_bytes
    } else {
        copy_header_for_later_fragment(&packet[..header.header_bytes], &mut bytes)
    };
    let own = header.fragment;
    let is_last = header.header_bytes + start + payload_bytes == header.total_bytes;
    let more = !is_last || own.is_some_and(|f| f.more);
    let offset = usize::from(own.map_or(0, |f| f.offset_bytes)) + start;
    // Lossless: a datagram has at most 65,535 bytes, so its offset in units of 8 fits 13 bits.
    let flags = u16::try_from(offset >> 3).unwrap_or(0x1FFF) & 0x1FFF | if more { 0x2000 } else { 0 };
    let total = u16::try_from(header_bytes + payload_bytes).unwrap_or(u16::MAX);
    bytes[2..4].copy_from_slice(&total.to_be_bytes());
    bytes[6..8].copy_from_slice(&flags.to_be_bytes());
    bytes[10..12].fill(0);
    let sum = checksum::of(&bytes[..header_bytes]).to_bytes();
    bytes[10..12].copy_from_slice(&sum);
    Piece { header: bytes, header_bytes, payload_start: start, payload_bytes }
}

/// Copies the fixed header and those options whose "copied" flag is set (RFC 791 3.1); returns the new header
/// length.
fn copy_header_for_later_fragment(from: &[u8], to: &mut [u8; 60]) -> usize {
    to[..IPV4_HEADER_BYTES].copy_from_slice(&from[..IPV4_HEADER_BYTES]);
    let (mut at, mut end) = (IPV4_HEADER_BYTES, IPV4_HEADER_BYTES);
    while at < from.len() {
        let (kind, length) = match from[at] {
            0 => break,
            1 => (1, 1),
            kind => (kind, from.get(at + 1).map_or(0, |&n| usize::from(n))),
        };
        if length == 0 || at + length > from.len() || (kind != 1 && length < 2) {
            break;
        }
        if kind & 0x80 != 0 {
            to[end..end + length].copy_from_slice(&from[at..at + length]);
            end += length;
        }
        at += length;
    }
    let header_bytes = end.next_multiple_of(4);
    to[0] = 0x40 | u8::try_from(header_bytes / 4).unwrap_or(5);
    header_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(options: &[u8], payload: usize, flags: u16) -> Vec<u8> {
        let mut bytes = vec![0x45, 0, 0, 0, 0x12, 0x34, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        bytes.extend_from_slice(options);
        bytes[0] = 0x40 | (bytes.len() / 4) as u8;
        let header_bytes = bytes.len();
        bytes.extend((0..payload).map(|i| i as u8));
        let total = bytes.len() as u16;
        bytes[2..4].copy_from_slice(&total.to_be_bytes());
        bytes[6..8].copy_from_slice(&flags.to_be_bytes());
        let sum = checksum::of(&bytes[..header_bytes]).to_bytes();
        bytes[10..12].copy_from_slice(&sum);
        bytes
    }

    fn cut(packet: &[u8], mtu: usize) -> Vec<Vec<u8>> {
        let header = IpHeader::parse(packet).unwrap();
        let payload = header.payload(packet);
        pieces(&header, packet, mtu)
            .map(|p| {
                [&p.header[..p.header_bytes], &payload[p.payload_start..p.payload_start + p.payload_bytes]]
                    .concat()
            })
            .collect()
    }

    #[test]
    fn fragments_carry_the_whole_payload_in_order() {
        for (payload, mtu) in [(3000, 1400), (1381, 1400), (65000, 68), (100, 1400), (16, 28)] {
            let whole = packet(&[], payload, 0);
            let mut expected = 0;
            let fragments = cut(&whole, mtu);
            for (i, bytes) in fragments.iter().enumerate() {
                let header = IpHeader::parse(bytes).unwrap();
                assert!(bytes.len() <= mtu);
                assert_eq!(usize::from(header.fragment.map_or(0, |f| f.offset_bytes)), expected);
                assert_eq!(header.fragment.is_some_and(|f| f.more), i + 1 < fragments.len());
                assert_eq!(
                    header.payload(bytes),
                    &whole[20 + expected..20 + expected + header.total_bytes - 20]
                );
                expected += header.total_bytes - header.header_bytes;
            }
            assert_eq!(expected, payload);
        }
    }

    #[test]
    fn a_fragment_of_a_fragment_keeps_its_offset() {
        let fragments = cut(&packet(&[], 800, 0x2000 | 100), 420);
        let places: Vec<_> =
            fragments.iter().map(|f| IpHeader::parse(f).unwrap().fragment.unwrap()).collect();
        assert_eq!(places.iter().map(|f| f.offset_bytes).collect::<Vec<_>>(), [800, 1200]);
        assert!(places.iter().all(|f| f.more));
    }

    #[test]
    fn only_copied_options_go_to_later_fragments() {
        let fragments = cut(&packet(&[0x83, 3, 4, 1, 7, 3, 4, 0], 2000, 0), 1000);
        assert_eq!(fragments[0][0], 0x47);
        assert_eq!(&fragments[1][..1], [0x46]);
        assert_eq!(&fragments[1][20..24], [0x83, 3, 4, 0]);
    }

    #[test]
    fn df_is_respected() {
        assert!(cut(&packet(&[], 3000, 0x4000), 1400).is_empty());
    }
}

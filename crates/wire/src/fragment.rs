//! Fragmentation (RFC 791 3.2, RFC 8200 4.5): of packets on their way, which IPv4 alone allows, and of
//! datagrams of our own.

use crate::ip::{IPV4_HEADER_BYTES, IPV6_HEADER_BYTES, IpHeader, MAX_EXTENSION_HEADERS, Version};
use crate::reassembly::FRAGMENT_HEADER_BYTES;
use crate::{checksum, protocol};

/// Bytes of a fragment's headers at most: over IPv4, 60 with options; over IPv6, the fixed header, 80 bytes
/// of extension headers that each fragment repeats, and the fragment header.
pub const MAX_HEADER_BYTES: usize = 128;

/// One fragment to be made: its header, and its payload bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The header, with length, offset, flags and checksum of this fragment.
    pub header: [u8; MAX_HEADER_BYTES],
    /// Bytes of the header that are used.
    pub header_bytes: usize,
    /// Where its payload starts in the packet that is cut.
    pub payload_start: usize,
    /// Payload bytes.
    pub payload_bytes: usize,
}

/// How a packet is cut.
#[derive(Debug, Clone, Copy)]
struct Plan {
    header: IpHeader,
    /// Where the bytes start that are divided.
    start: usize,
    /// Payload bytes of each fragment but the last: a multiple of 8. Those of IPv4 may have a longer header
    /// in the first one, after which all are cut.
    room: usize,
    /// The Identification, for datagrams of our own.
    identification: Option<u32>,
    /// Over IPv6: where the Next Header field is that will name the fragment header.
    next_header_at: usize,
}

/// The fragments of an IPv4 packet, each at most `mtu` bytes: an iterator, so that nothing is allocated.
/// Empty for IPv6, for packets with DF, and where `mtu` leaves no room for 8 bytes of payload: those cannot
/// be fragmented.
pub fn pieces<'a>(header: &IpHeader, packet: &'a [u8], mtu: usize) -> impl Iterator<Item = Piece> + use<'a> {
    let plan = Plan {
        header: *header,
        start: header.header_bytes,
        room: mtu.saturating_sub(header.header_bytes) & !7,
        identification: None,
        next_header_at: 0,
    };
    let possible = header.version == Version::V4 && !header.dont_fragment;
    all_pieces(possible.then_some(plan), packet)
}

/// As [`pieces`], of a packet of which only the header is at hand, and all of the rest is there.
pub fn pieces_behind<'a>(
    header: &IpHeader,
    header_bytes: &'a [u8],
    mtu: usize,
) -> impl Iterator<Item = Piece> + use<'a> {
    let plan = Plan {
        header: *header,
        start: header.header_bytes,
        room: mtu.saturating_sub(header.header_bytes) & !7,
        identification: None,
        next_header_at: 0,
    };
    let fits = header_bytes.len() >= header.header_bytes;
    let possible = fits && header.version == Version::V4 && !header.dont_fragment;
    pieces_of(possible.then_some(plan), header_bytes, header.total_bytes)
}

/// The fragments of a datagram of our own, whose source may fragment it in either version, with this
/// Identification (its low 16 bits over IPv4). DF is clear in all of them. Empty where `mtu` leaves no room
/// for 8 bytes of payload, for a fragment of IPv6, and behind headers that are too long for
/// [`MAX_HEADER_BYTES`].
pub fn pieces_of_ours<'a>(
    header: &IpHeader,
    packet: &'a [u8],
    mtu: usize,
    identification: u32,
) -> impl Iterator<Item = Piece> + use<'a> {
    let (kept, front, next_header_at) = match header.version {
        Version::V4 => (Some(header.header_bytes), header.header_bytes, 0),
        Version::V6 => match unfragmentable(header, packet) {
            Some((bytes, at)) => (Some(bytes), bytes + FRAGMENT_HEADER_BYTES, at),
            None => (None, 0, 0),
        },
    };
    let room = mtu.saturating_sub(front) & !7;
    let identification = Some(identification);
    let plan = kept.map(|start| Plan { header: *header, start, room, identification, next_header_at });
    all_pieces(plan.filter(|_| front <= MAX_HEADER_BYTES), packet)
}

fn all_pieces<'a>(plan: Option<Plan>, packet: &'a [u8]) -> impl Iterator<Item = Piece> + use<'a> {
    pieces_of(plan, packet, packet.len())
}

fn pieces_of<'a>(
    plan: Option<Plan>,
    packet: &'a [u8],
    available: usize,
) -> impl Iterator<Item = Piece> + use<'a> {
    let plan = plan.filter(|plan| plan.room >= 8 && available >= plan.header.total_bytes);
    let (range, room) = plan.map_or((0..0, 8), |plan| (plan.start..plan.header.total_bytes, plan.room));
    range.step_by(room).zip(std::iter::repeat(plan)).filter_map(move |(start, plan)| {
        let plan = plan?;
        let payload_bytes = plan.room.min(plan.header.total_bytes - start);
        match plan.header.version {
            Version::V4 => Some(piece_of_v4(&plan, packet, start, payload_bytes)),
            Version::V6 => Some(piece_of_v6(&plan, packet, start, payload_bytes)),
        }
    })
}

fn piece_of_v4(plan: &Plan, packet: &[u8], start: usize, payload_bytes: usize) -> Piece {
    let header = &plan.header;
    let mut bytes = [0; MAX_HEADER_BYTES];
    let header_bytes = if start == plan.start {
        bytes[..header.header_bytes].copy_from_slice(&packet[..header.header_bytes]);
        header.header_bytes
    } else {
        copy_header_for_later_fragment(&packet[..header.header_bytes], &mut bytes)
    };
    let own = header.fragment;
    let is_last = start + payload_bytes == header.total_bytes;
    let more = !is_last || own.is_some_and(|f| f.more);
    let offset = usize::from(own.map_or(0, |f| f.offset_bytes)) + start - plan.start;
    // Lossless: a datagram has at most 65,535 bytes, so its offset in units of 8 fits 13 bits.
    let flags = u16::try_from(offset >> 3).unwrap_or(0x1FFF) & 0x1FFF | if more { 0x2000 } else { 0 };
    let total = u16::try_from(header_bytes + payload_bytes).unwrap_or(u16::MAX);
    bytes[2..4].copy_from_slice(&total.to_be_bytes());
    if let Some(identification) = plan.identification {
        let [_, _, high, low] = identification.to_be_bytes();
        bytes[4..6].copy_from_slice(&[high, low]);
    }
    bytes[6..8].copy_from_slice(&flags.to_be_bytes());
    bytes[10..12].fill(0);
    let sum = checksum::of(&bytes[..header_bytes]).to_bytes();
    bytes[10..12].copy_from_slice(&sum);
    Piece { header: bytes, header_bytes, payload_start: start, payload_bytes }
}

fn piece_of_v6(plan: &Plan, packet: &[u8], start: usize, payload_bytes: usize) -> Piece {
    let mut bytes = [0; MAX_HEADER_BYTES];
    bytes[..plan.start].copy_from_slice(&packet[..plan.start]);
    let header_bytes = plan.start + FRAGMENT_HEADER_BYTES;
    // Lossless: an IPv6 packet without jumbo payload has at most 65,535 bytes after its header.
    let length = u16::try_from(header_bytes - IPV6_HEADER_BYTES + payload_bytes).unwrap_or(u16::MAX);
    bytes[4..6].copy_from_slice(&length.to_be_bytes());
    let follows = std::mem::replace(&mut bytes[plan.next_header_at], protocol::FRAGMENT);
    let more = start + payload_bytes < plan.header.total_bytes;
    let place = u16::try_from(start - plan.start).unwrap_or(u16::MAX) & !7 | u16::from(more);
    let fragment = &mut bytes[plan.start..header_bytes];
    fragment[0] = follows;
    fragment[2..4].copy_from_slice(&place.to_be_bytes());
    fragment[4..8].copy_from_slice(&plan.identification.unwrap_or(0).to_be_bytes());
    Piece { header: bytes, header_bytes, payload_start: start, payload_bytes }
}

/// Bytes of the headers that each fragment of an IPv6 packet repeats, and where the Next Header field is that
/// will name the fragment header: everything up to hop-by-hop options and routing headers, which routers on
/// the way process (RFC 8200 4.5). `None` if it has a fragment header already.
fn unfragmentable(header: &IpHeader, packet: &[u8]) -> Option<(usize, usize)> {
    const NEXT_HEADER_AT: usize = 6;
    let (mut next_header_at, mut at) = (NEXT_HEADER_AT, IPV6_HEADER_BYTES);
    let mut found = (at, next_header_at);
    for _ in 0..=MAX_EXTENSION_HEADERS {
        let next = *packet.get(next_header_at)?;
        if !matches!(next, protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION_OPTIONS) {
            return (next != protocol::FRAGMENT && header.fragment.is_none()).then_some(found);
        }
        let bytes = 8 * (1 + usize::from(*packet.get(at + 1)?));
        (next_header_at, at) = (at, at + bytes);
        if next != protocol::DESTINATION_OPTIONS {
            found = (at, next_header_at);
        }
    }
    None
}

/// Copies the fixed header and those options whose "copied" flag is set (RFC 791 3.1); returns the new header
/// length.
fn copy_header_for_later_fragment(from: &[u8], to: &mut [u8; MAX_HEADER_BYTES]) -> usize {
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
    use crate::reassembly::ReceivedFragment;

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
        pieces(&header, packet, mtu).map(|piece| bytes_of(&piece, packet)).collect()
    }

    fn bytes_of(piece: &Piece, packet: &[u8]) -> Vec<u8> {
        let payload = piece.payload_start..piece.payload_start + piece.payload_bytes;
        [&piece.header[..piece.header_bytes], &packet[payload]].concat()
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

    /// Puts fragments together again, as their receiver does.
    fn joined(fragments: &[Vec<u8>]) -> Vec<u8> {
        let parse = |bytes: &[u8]| {
            let header = IpHeader::parse(bytes).unwrap();
            (header, ReceivedFragment::read(&header, bytes).unwrap())
        };
        let (first_header, first) = parse(&fragments[0]);
        let mut whole = fragments[0][..first.header_bytes].to_vec();
        for bytes in fragments {
            let (_, part) = parse(bytes);
            assert_eq!(part.offset_bytes, whole.len() - first.header_bytes);
            assert_eq!(part.identification, first.identification);
            whole.extend_from_slice(&bytes[part.payload_start..part.payload_end]);
        }
        let total = whole.len();
        assert!(first.complete_header(&mut whole[..first.header_bytes], total, first_header.traffic_class));
        whole
    }

    /// Both versions, DF or not, options and extension headers: the fragments are those of the datagram, with
    /// the Identification that was given and without DF.
    #[test]
    fn a_datagram_of_ours_is_cut_in_either_version() {
        const ROUTE: [u8; 8] = [60, 0, 2, 0, 0, 0, 0, 0];
        const OPTIONS: [u8; 8] = [50, 0, 1, 4, 0, 0, 0, 0];
        let v6 = |first: u8, chain: &[u8]| {
            let mut bytes = vec![0x60, 0, 0, 0, 0, 0, first, 64];
            bytes.extend((0..32).map(|i| if i == 0 || i == 16 { 0x20 } else { i }));
            bytes.extend_from_slice(chain);
            bytes.extend((0..3000u16).map(|i| i as u8));
            let length = bytes.len() as u16 - 40;
            bytes[4..6].copy_from_slice(&length.to_be_bytes());
            bytes
        };
        for (datagram, repeated) in [
            (packet(&[], 3000, 0x4000), 20),
            (packet(&[7, 3, 4, 0], 3000, 0), 24),
            (v6(50, &[]), 40),
            (v6(60, &OPTIONS), 40),
            (v6(43, &[ROUTE, OPTIONS].concat()), 48),
            (v6(60, &[[43, 0, 1, 4, 0, 0, 0, 0], ROUTE, OPTIONS].concat()), 56),
        ] {
            let header = IpHeader::parse(&datagram).unwrap();
            for mtu in [68 + 8, 576, 1280, 1500, 9000] {
                let id = 0x0001_2345;
                let fragments: Vec<_> = pieces_of_ours(&header, &datagram, mtu, id)
                    .map(|piece| bytes_of(&piece, &datagram))
                    .collect();
                if mtu >= datagram.len() + 8 {
                    assert_eq!(fragments.len(), 1);
                    continue;
                }
                assert!(fragments.iter().all(|bytes| bytes.len() <= mtu));
                assert!(fragments.len() <= 3000 / ((mtu - repeated - 8) & !7) + 1);
                let first = IpHeader::parse(&fragments[0]).unwrap();
                let read = ReceivedFragment::read(&first, &fragments[0]).unwrap();
                let is_v4 = header.version == Version::V4;
                assert_eq!(read.identification, if is_v4 { id & 0xFFFF } else { id });
                let mut expected = datagram.clone();
                if is_v4 {
                    expected[4..8].copy_from_slice(&[0x23, 0x45, 0, 0]);
                    expected[10..12].fill(0);
                    let sum = checksum::of(&expected[..header.header_bytes]).to_bytes();
                    expected[10..12].copy_from_slice(&sum);
                }
                assert_eq!(joined(&fragments), expected, "{mtu}");
            }
        }
    }

    #[test]
    fn what_is_a_fragment_of_ipv6_or_has_no_room_is_not_cut() {
        let mut bytes = vec![0x60, 0, 0, 0, 0, 208, 44, 64];
        bytes.extend([0; 32]);
        bytes.extend([50, 0, 0, 1, 0, 0, 0, 9]);
        bytes.resize(248, 7);
        let header = IpHeader::parse(&bytes).unwrap();
        assert_eq!(pieces_of_ours(&header, &bytes, 100, 1).count(), 0);
        (bytes[6], bytes[42], bytes[43]) = (50, 0, 0);
        let header = IpHeader::parse(&bytes).unwrap();
        assert_eq!(pieces_of_ours(&header, &bytes, 55, 1).count(), 0);
        assert_eq!(pieces_of_ours(&header, &bytes, 56, 1).count(), 208 / 8);
    }
}

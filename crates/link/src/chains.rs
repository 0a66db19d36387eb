//! Frames and packets in chains of buffers, where a device has such.

use testudo_packet::Buffer;
use testudo_wire::checksum::Sum;
use testudo_wire::ip::{self, Version};
use testudo_wire::plain::PlainHeader;
use testudo_wire::protocol;
use testudo_wire::udp::UDP_HEADER_BYTES;

/// Bytes of a frame that are made contiguous: its header, and those of the packet in it.
const FRONT_BYTES: usize = 192;
/// Where UDP's header has length and checksum.
const UDP_LENGTH_AT: usize = 4;
const UDP_CHECKSUM_AT: usize = 6;

/// Has the headers of a frame in its first buffer; `false` if that has no room for them.
#[cold]
pub(crate) fn gather_headers(frame: &mut Buffer) -> bool {
    let bytes = FRONT_BYTES.min(frame.chain_bytes());
    frame.pull_up(bytes)
}

/// `bytes` bytes of a packet from byte `from` on, buffer by buffer.
pub(crate) fn pieces(packet: &Buffer, mut from: usize, mut bytes: usize) -> impl Iterator<Item = &[u8]> {
    packet.segments().map(move |segment| {
        let behind = segment.bytes().get(from..).unwrap_or_default();
        from = from.saturating_sub(segment.len());
        let here = &behind[..behind.len().min(bytes)];
        bytes -= here.len();
        here
    })
}

/// [`complete_ipv6_checksum`](testudo_wire::udp::complete_ipv6_checksum) for a plain packet in a chain.
#[cold]
pub(crate) fn complete_udp(packet: &mut Buffer) {
    let Some((at, checksum)) = udp_checksum(packet) else { return };
    if let Some(place) = packet.bytes_mut().get_mut(at..at + checksum.len()) {
        place.copy_from_slice(&checksum);
    }
}

/// The missing checksum of UDP over IPv6, and its place.
fn udp_checksum(packet: &Buffer) -> Option<(usize, [u8; 2])> {
    let front = packet.bytes();
    let header = PlainHeader::parse_front(front, packet.chain_bytes())?;
    if header.version != Version::V6 || header.protocol != protocol::UDP {
        return None;
    }
    let start = header.version.header_bytes();
    let bytes = usize::from(header.total_bytes) - start;
    let udp = front.get(start..start + UDP_HEADER_BYTES)?;
    let length = u16::from_be_bytes([udp[UDP_LENGTH_AT], udp[UDP_LENGTH_AT + 1]]);
    if usize::from(length) != bytes || udp[UDP_CHECKSUM_AT..] != [0, 0] {
        return None;
    }
    let (source, destination) = ip::addresses(front)?;
    let pseudo = Sum::default().pseudo_header(source, destination, protocol::UDP, length.into());
    let checksum = match pseudo.pieces(pieces(packet, start, bytes)).finish().to_bytes() {
        // 0 would say that there is none (RFC 768).
        [0, 0] => [0xFF, 0xFF],
        checksum => checksum,
    };
    Some((start + UDP_CHECKSUM_AT, checksum))
}

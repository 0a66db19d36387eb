//! Checksums that a local kernel has left to the device. Over veth it has none, and the frame comes with the
//! sum of the pseudo-header where the checksum belongs.
//!
//! AF_XDP and most drivers of DPDK do not say which frames these are. One whose checksum field is that sum is
//! completed: in a packet that is complete already, completing changes nothing, because the checksum of the
//! same bytes is the same.

use crate::chains;
use testudo_packet::{Buffer, Pool};
use testudo_wire::checksum::Sum;
use testudo_wire::ip::{self, IpHeader};
use testudo_wire::plain::PlainHeader;
use testudo_wire::protocol;

const ETHERNET_BYTES: usize = 14;
const TAG_BYTES: usize = 4;

/// Completes the checksum of the packet in `frame`, if it was left to the device. Returns whether it was.
#[must_use]
pub fn complete(frame: &mut [u8]) -> bool {
    complete_packet(frame).is_some()
}

/// The same for a frame in several buffers, which stay. One whose packet is not plain, and may have such a
/// checksum, is put into one buffer first: nobody takes such packets in several.
#[must_use]
#[cold]
pub fn complete_chain(frame: &mut Buffer, pool: &mut Pool) -> bool {
    complete_in_chain(frame).unwrap_or_else(|| match pool.linearise(std::mem::take(frame)) {
        Ok(whole) => {
            *frame = whole;
            complete(frame.bytes_mut())
        }
        Err(chain) => {
            *frame = chain;
            false
        }
    })
}

/// Whether the checksum of a plain packet was left to the device; it is now complete. `None` for another one.
fn complete_in_chain(frame: &mut Buffer) -> Option<bool> {
    if !chains::gather_headers(frame) {
        return None;
    }
    let Some(at) = packet_at(frame.bytes()) else { return Some(false) };
    let available = frame.chain_bytes() - at;
    let packet = frame.bytes().get(at..)?;
    let Some(header) = PlainHeader::parse_front(packet, available) else {
        // What is broken, or a fragment of IPv4, has no checksum that could be completed.
        let is_v4 = packet.first().is_some_and(|first| first >> 4 == 4);
        let is_whole = |header: IpHeader| header.fragment.is_none();
        let may_be_left_out = !is_v4 || IpHeader::parse_front(packet, available).is_ok_and(is_whole);
        return if may_be_left_out { None } else { Some(false) };
    };
    let (source, destination) = ip::addresses(packet)?;
    let Some(field) = field_of(header.protocol) else { return Some(false) };
    let start = at + header.version.header_bytes();
    let bytes = at + usize::from(header.total_bytes) - start;
    let place = start + field..start + field + 2;
    let stored: [u8; 2] = frame.bytes().get(place.clone())?.try_into().ok()?;
    let length = u32::try_from(bytes).ok()?;
    let pseudo = Sum::default().pseudo_header(source, destination, header.protocol, length);
    if bytes < field + 2 || stored != left_out(pseudo) {
        return Some(false);
    }
    frame.bytes_mut()[place.clone()].fill(0);
    let checksum = completed(pseudo.pieces(chains::pieces(frame, start, bytes)), header.protocol);
    frame.bytes_mut()[place].copy_from_slice(&checksum);
    Some(true)
}

/// Where the checksum is in a transport protocol's header, if a kernel may leave it out.
fn field_of(protocol: u8) -> Option<usize> {
    match protocol {
        protocol::TCP => Some(16),
        protocol::UDP => Some(6),
        protocol::ICMPV6 => Some(2),
        _ => None,
    }
}

/// What is in the place of a checksum that was left out: the sum itself, of which a checksum would be the
/// complement.
fn left_out(pseudo: Sum) -> [u8; 2] {
    pseudo.finish().to_bytes().map(|byte| !byte)
}

/// The checksum as it is written.
fn completed(sum: Sum, protocol: u8) -> [u8; 2] {
    match sum.finish().to_bytes() {
        // 0 would say that there is no checksum (RFC 768).
        [0, 0] if protocol == protocol::UDP => [0xFF, 0xFF],
        checksum => checksum,
    }
}

fn complete_packet(frame: &mut [u8]) -> Option<()> {
    let packet = frame.get_mut(packet_at(frame)?..)?;
    let header = IpHeader::parse(packet).ok()?;
    let field = field_of(header.protocol)?;
    if header.fragment.is_some() {
        return None;
    }
    let bytes = header.payload(packet).len();
    let at = header.header_bytes;
    let transport = packet.get_mut(at..at + bytes)?;
    let length = u32::try_from(bytes).ok()?;
    let pseudo = Sum::default().pseudo_header(header.source, header.destination, header.protocol, length);
    let stored: [u8; 2] = transport.get(field..field + 2)?.try_into().ok()?;
    if stored != left_out(pseudo) {
        return None;
    }
    transport[field..field + 2].fill(0);
    let checksum = completed(pseudo.bytes(transport), header.protocol);
    transport[field..field + 2].copy_from_slice(&checksum);
    Some(())
}

/// Where the IP packet of a frame starts, which may have two VLAN tags; `None` if there is none.
#[must_use]
pub fn packet_at(frame: &[u8]) -> Option<usize> {
    let mut at = ETHERNET_BYTES;
    loop {
        match frame.get(at - 2..at)? {
            [0x08, 0x00] | [0x86, 0xDD] => return Some(at),
            [0x81, 0x00] | [0x88, 0xA8] if at < ETHERNET_BYTES + 2 * TAG_BYTES => at += TAG_BYTES,
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;
    use testudo_wire::checksum;
    use testudo_wire::ip::OuterHeader;

    /// A frame of 41 bytes of transport, with the sum of its pseudo-header in the place of its checksum.
    fn partial(addresses: [&str; 2], protocol: u8, field: usize, tags: usize) -> Vec<u8> {
        partial_of(41, addresses, protocol, field, tags)
    }

    /// The same of so many bytes.
    fn partial_of(bytes: usize, addresses: [&str; 2], protocol: u8, field: usize, tags: usize) -> Vec<u8> {
        let [source, destination] = addresses.map(|address| address.parse::<IpAddr>().unwrap());
        let header = OuterHeader {
            source,
            destination,
            protocol,
            traffic_class: 0,
            hop_limit: 64,
            dont_fragment: true,
        };
        let mut packet = vec![0; header.bytes()];
        header.write(&mut packet, header.bytes() + bytes, 0).unwrap();
        let mut transport: Vec<u8> = (0..bytes).map(|byte| (byte * 5) as u8).collect();
        let pseudo = Sum::default().pseudo_header(source, destination, protocol, bytes as u32);
        transport[field..field + 2].copy_from_slice(&left_out(pseudo));
        let mut frame = vec![2; 12];
        frame.extend([0x81, 0x00, 0x00, 0x05].repeat(tags));
        frame.extend(if source.is_ipv4() { [0x08, 0x00] } else { [0x86, 0xDD] });
        frame.extend([packet, transport].concat());
        frame.extend([0xEE; 3]);
        frame
    }

    fn is_intact(frame: &[u8], tags: usize) -> bool {
        let packet = &frame[ETHERNET_BYTES + tags * TAG_BYTES..];
        let header = IpHeader::parse(packet).unwrap();
        let payload = header.payload(packet);
        let sum = Sum::default().pseudo_header(header.source, header.destination, header.protocol, 41);
        sum.bytes(payload).finish().is_intact()
    }

    #[test]
    fn checksums_that_were_left_to_the_device_are_completed_once() {
        let v4 = ["10.0.0.1", "10.0.0.2"];
        let v6 = ["fd00::1", "fd00::2"];
        let cases = [(v4, protocol::TCP, 16), (v4, protocol::UDP, 6), (v6, protocol::TCP, 16)];
        let cases = cases.into_iter().chain([(v6, protocol::UDP, 6), (v6, protocol::ICMPV6, 2)]);
        for (addresses, protocol, field) in cases {
            for tags in 0..3 {
                let mut frame = partial(addresses, protocol, field, tags);
                assert!(!is_intact(&frame, tags));
                assert!(complete(&mut frame) && is_intact(&frame, tags), "{addresses:?} {protocol} {tags}");
                let completed = frame.clone();
                assert!(!complete(&mut frame) && frame == completed);
                assert!(frame.ends_with(&[0xEE; 3]), "the padding is not the packet's");
            }
        }
    }

    #[test]
    fn checksums_are_completed_in_chains_wherever_these_are_cut() {
        let (v4, v6) = (["10.0.0.1", "10.0.0.2"], ["fd00::1", "fd00::2"]);
        let mut pool = Pool::new(1, 64).with_long(1, 600);
        for (addresses, protocol, field) in [
            (v4, protocol::TCP, 16),
            (v4, protocol::UDP, 6),
            (v6, protocol::TCP, 16),
            (v6, protocol::ICMPV6, 2),
        ] {
            let left = partial_of(401, addresses, protocol, field, 1);
            let mut whole = left.clone();
            assert!(complete(&mut whole));
            for cut in 1..left.len() {
                let mut chain = Buffer::copied(&left[..cut], 0, 256);
                chain.link(Buffer::copied(&left[cut..], 0, 0)).unwrap();
                assert!(complete_chain(&mut chain, &mut pool), "{addresses:?} {protocol} {cut}");
                let mut bytes = vec![0; left.len()];
                assert_eq!((chain.is_chain(), chain.copy_to(0, &mut bytes)), (true, left.len()));
                assert!(bytes == whole, "{addresses:?} {protocol} {cut}");
                assert!(!complete_chain(&mut chain, &mut pool), "once");
            }
        }
        assert_eq!(pool.linearised(), 0);
        let chain_of = |frame: &[u8]| {
            let mut chain = Buffer::copied(&frame[..300], 0, 128);
            chain.link(Buffer::copied(&frame[300..], 0, 0)).unwrap();
            chain
        };
        let with_header = |change: fn(&mut Vec<u8>)| {
            let mut frame = partial_of(401, v4, protocol::UDP, 6, 0);
            change(&mut frame);
            let end = 14 + 4 * usize::from(frame[14] & 15);
            frame[24..26].fill(0);
            let sum = checksum::of(&frame[14..end]).to_bytes();
            frame[24..26].copy_from_slice(&sum);
            frame
        };
        // A fragment has no checksum of its own, and what is broken none that counts: they stay as they are.
        let fragment = with_header(|frame| frame[20] = 0x20);
        let mut broken = fragment.clone();
        broken[24] ^= 1;
        for frame in [fragment, broken] {
            let mut chain = chain_of(&frame);
            assert!(!complete_chain(&mut chain, &mut pool) && chain.is_chain());
        }
        assert_eq!(pool.linearised(), 0);
        // A header with options is read in one buffer.
        let options = with_header(|frame| {
            frame[14] = 0x46;
            let longer = u16::from_be_bytes([frame[16], frame[17]]) + 4;
            frame[16..18].copy_from_slice(&longer.to_be_bytes());
            frame.splice(34..34, [1, 1, 1, 0]);
        });
        let mut chain = chain_of(&options);
        assert!(complete_chain(&mut chain, &mut pool) && !chain.is_chain());
        assert_eq!(pool.linearised(), 1);
    }

    #[test]
    fn other_frames_stay_as_they_are() {
        let whole = partial(["10.0.0.1", "10.0.0.2"], protocol::TCP, 16, 0);
        for length in 0..whole.len() - 3 {
            let mut cut = whole[..length].to_vec();
            assert!(!complete(&mut cut) && cut == whole[..length], "{length} bytes");
        }
        let mut damaged = whole.clone();
        damaged[14 + 20 + 17] ^= 1;
        assert!(!complete(&mut damaged), "a wrong checksum is not made right");
        let mut esp = partial(["10.0.0.1", "10.0.0.2"], protocol::ESP, 16, 0);
        assert!(!complete(&mut esp));
    }
}

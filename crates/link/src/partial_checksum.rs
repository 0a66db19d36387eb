//! Checksums that a local kernel has left to the device. Over veth it has none, and the frame comes with the
//! sum of the pseudo-header where the checksum belongs.
//!
//! AF_XDP and most drivers of DPDK do not say which frames these are. One whose checksum field is that sum is
//! completed: in a packet that is complete already, completing changes nothing, because the checksum of the
//! same bytes is the same.

use testudo_wire::checksum::Sum;
use testudo_wire::ip::IpHeader;
use testudo_wire::protocol;

const ETHERNET_BYTES: usize = 14;
const TAG_BYTES: usize = 4;

/// Completes the checksum of the packet in `frame`, if it was left to the device. Returns whether it was.
#[must_use]
pub fn complete(frame: &mut [u8]) -> bool {
    complete_packet(frame).is_some()
}

fn complete_packet(frame: &mut [u8]) -> Option<()> {
    let packet = frame.get_mut(packet_at(frame)?..)?;
    let header = IpHeader::parse(packet).ok()?;
    let field = match header.protocol {
        protocol::TCP => 16,
        protocol::UDP => 6,
        protocol::ICMPV6 => 2,
        _ => return None,
    };
    if header.fragment.is_some() {
        return None;
    }
    let bytes = header.payload(packet).len();
    let at = header.header_bytes;
    let transport = packet.get_mut(at..at + bytes)?;
    let length = u32::try_from(bytes).ok()?;
    let pseudo = Sum::default().pseudo_header(header.source, header.destination, header.protocol, length);
    let stored: [u8; 2] = transport.get(field..field + 2)?.try_into().ok()?;
    // The sum itself is stored, a checksum would be its complement.
    if stored != pseudo.finish().to_bytes().map(|byte| !byte) {
        return None;
    }
    transport[field..field + 2].fill(0);
    let mut checksum = pseudo.bytes(transport).finish().to_bytes();
    if checksum == [0, 0] && header.protocol == protocol::UDP {
        // 0 would say that there is no checksum (RFC 768).
        checksum = [0xFF, 0xFF];
    }
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
    use testudo_wire::ip::OuterHeader;

    /// A frame of 40 bytes of transport, with the sum of its pseudo-header in the place of its checksum.
    fn partial(addresses: [&str; 2], protocol: u8, field: usize, tags: usize) -> Vec<u8> {
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
        header.write(&mut packet, header.bytes() + 41, 0).unwrap();
        let mut transport: Vec<u8> = (0..41).map(|byte| byte * 5).collect();
        let pseudo = Sum::default().pseudo_header(source, destination, protocol, 41);
        transport[field..field + 2].copy_from_slice(&pseudo.finish().to_bytes().map(|byte| !byte));
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

//! "Packet too big": how a sender learns that its packet does not fit the tunnel.

use crate::checksum::{self, Sum};
use crate::ip::{IpHeader, OuterHeader, Version};
use crate::{ParseError, protocol};
use std::net::IpAddr;

/// The longest message that [`too_big`] writes, in bytes: RFC 4443 2.4 (c) and RFC 1812 4.3.2.3 bound what
/// may be quoted.
pub const MAX_TOO_BIG_BYTES: usize = 1280;
/// How much of an IPv4 packet is quoted, so that the message is at most 576 bytes (RFC 1812 4.3.2.3).
const MAX_TOO_BIG_V4_BYTES: usize = 576;

/// Writes to `out` the message that `packet`, with header `header`, exceeds `mtu`: ICMP type 3 code 4 (RFC
/// 1191 4), or ICMPv6 type 2 (RFC 4443 3.2). `from` is its source address. Returns its length in bytes;
/// `None` where no message may be sent (RFC 1122 3.2.2, RFC 4443 2.4 (e)): about fragments other than the
/// first, about ICMP errors, and to or from addresses that name no single host.
///
/// # Errors
/// [`ParseError`] if the header cannot be written, for example because `from` is of another version.
pub fn too_big(
    header: &IpHeader,
    packet: &[u8],
    mtu: u16,
    from: IpAddr,
    out: &mut [u8; MAX_TOO_BIG_BYTES],
) -> Result<Option<usize>, ParseError> {
    if !names_a_host(from) || !may_be_answered(header, packet) {
        return Ok(None);
    }
    let (limit, icmp) = match header.version {
        Version::V4 => (MAX_TOO_BIG_V4_BYTES, protocol::ICMP),
        Version::V6 => (MAX_TOO_BIG_BYTES, protocol::ICMPV6),
    };
    let ip_bytes = header.version.header_bytes();
    let quoted = &packet[..header.total_bytes.min(packet.len()).min(limit - ip_bytes - 8)];
    let total = ip_bytes + 8 + quoted.len();
    let outer = OuterHeader {
        source: from,
        destination: header.source,
        protocol: icmp,
        traffic_class: 0xC0, // internetwork control (RFC 1812 4.3.2.5)
        hop_limit: 64,
        dont_fragment: false,
    };
    outer.write(out, total, 0)?;
    let message = &mut out[ip_bytes..total];
    message[..8].fill(0);
    message[8..].copy_from_slice(quoted);
    let sum = match header.version {
        Version::V4 => {
            message[..2].copy_from_slice(&[3, 4]);
            message[6..8].copy_from_slice(&mtu.to_be_bytes());
            checksum::of(message)
        }
        Version::V6 => {
            message[0] = 2;
            message[6..8].copy_from_slice(&mtu.to_be_bytes());
            let length = u32::try_from(message.len()).map_err(|_| ParseError::BadHeader)?;
            Sum::default().pseudo_header(from, header.source, icmp, length).bytes(message).finish()
        }
    };
    message[2..4].copy_from_slice(&sum.to_bytes());
    Ok(Some(total))
}

fn may_be_answered(header: &IpHeader, packet: &[u8]) -> bool {
    if header.fragment.is_some_and(|f| f.offset_bytes != 0) {
        return false;
    }
    let kind = header.payload(packet).first().copied();
    let is_icmp_error = match (header.protocol, kind) {
        (protocol::ICMP, Some(kind)) => !matches!(kind, 0 | 8 | 13..=18),
        (protocol::ICMPV6, Some(kind)) => kind < 128,
        _ => false,
    };
    names_a_host(header.source) && !is_icmp_error
}

fn names_a_host(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => !a.is_unspecified() && !a.is_multicast() && !a.is_broadcast() && !a.is_loopback(),
        IpAddr::V6(a) => !a.is_unspecified() && !a.is_multicast() && !a.is_loopback(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_packets::between;

    #[test]
    fn the_sender_is_told_the_mtu() {
        for (s, d, v4) in [("10.0.0.1", "10.0.0.2", true), ("fd00::1", "fd00::2", false)] {
            let bytes = between(s, d, protocol::UDP, &[0x55; 2000]);
            let header = IpHeader::parse(&bytes).unwrap();
            let mut out = [0; MAX_TOO_BIG_BYTES];
            let len = too_big(&header, &bytes, 1400, d.parse().unwrap(), &mut out).unwrap().unwrap();
            let reply = IpHeader::parse(&out[..len]).unwrap();
            assert_eq!(reply.destination, header.source);
            assert_eq!(reply.total_bytes, if v4 { 576 } else { 1280 });
            let message = reply.payload(&out);
            assert_eq!(&message[..2], if v4 { &[3, 4] } else { &[2, 0] });
            assert_eq!(&message[6..8], 1400u16.to_be_bytes());
            assert!(bytes.starts_with(&message[8..]));
            let pseudo = Sum::default().pseudo_header(
                reply.source,
                reply.destination,
                reply.protocol,
                message.len() as u32,
            );
            assert!(if v4 { Sum::default() } else { pseudo }.bytes(message).finish().is_intact());
        }
    }

    #[test]
    fn errors_multicast_and_later_fragments_are_not_answered() {
        let mut out = [0; MAX_TOO_BIG_BYTES];
        for (s, d, protocol, first) in [
            ("10.0.0.1", "10.0.0.2", protocol::ICMP, 3),
            ("fd00::1", "fd00::2", protocol::ICMPV6, 1),
            ("0.0.0.0", "10.0.0.2", protocol::UDP, 0),
            ("ff02::1", "fd00::2", protocol::UDP, 0),
            ("10.0.0.1", "224.0.0.5", protocol::UDP, 0),
            ("fd00::1", "ff05::2", protocol::UDP, 0),
        ] {
            let bytes = between(s, d, protocol, &[first; 100]);
            let header = IpHeader::parse(&bytes).unwrap();
            assert_eq!(
                too_big(&header, &bytes, 1400, d.parse().unwrap(), &mut out),
                Ok(None),
                "{s} {protocol}"
            );
        }
    }
}

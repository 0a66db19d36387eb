//! Messages of ICMP that the gateway sends: how a sender learns that its packet does not fit the tunnel or is
//! not delivered, and the answer to an echo request.

use crate::checksum::{Checksum, Sum};
use crate::ip::{IPV6_HEADER_BYTES, IpHeader, OuterHeader, Version, extension_bytes};
use crate::{ParseError, protocol};
use std::net::IpAddr;

/// The longest error that is written, in bytes: RFC 4443 2.4 (c) and RFC 1812 4.3.2.3 bound what
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
    let (kind, code) = match header.version {
        Version::V4 => (3, 4),
        Version::V6 => (2, 0),
    };
    error(header, packet, ErrorHead { kind, code, parameter: mtu.into() }, from, out)
}

/// Why a packet does not reach its destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unreachable {
    /// The host does not answer its neighbours.
    Host,
    /// The host has nothing for the packet's protocol.
    Protocol,
    /// Nothing listens on the packet's port.
    Port,
}

/// Writes to `out` the message that `packet`, with header `header`, cannot be delivered: destination
/// unreachable (RFC 792, RFC 4443 3.1), and where IPv6 does not know a protocol, parameter problem (RFC 4443
/// 3.4). `from` is its source address. Returns its length in bytes; `None` where no message may be sent, as
/// for [`too_big`], and about packets to a group (RFC 1122 3.2.2, RFC 4443 2.4 (e.3)).
///
/// # Errors
/// [`ParseError`] if the header cannot be written, for example because `from` is of another version.
pub fn unreachable(
    header: &IpHeader,
    packet: &[u8],
    why: Unreachable,
    from: IpAddr,
    out: &mut [u8; MAX_TOO_BIG_BYTES],
) -> Result<Option<usize>, ParseError> {
    if !names_a_host(header.destination) {
        return Ok(None);
    }
    let (kind, code, parameter) = match (header.version, why) {
        (Version::V4, Unreachable::Host) => (3, 1, 0),
        (Version::V4, Unreachable::Protocol) => (3, 2, 0),
        (Version::V4, Unreachable::Port) => (3, 3, 0),
        (Version::V6, Unreachable::Host) => (1, 3, 0),
        (Version::V6, Unreachable::Protocol) => (4, 1, last_next_header(header, packet)?),
        (Version::V6, Unreachable::Port) => (1, 4, 0),
    };
    error(header, packet, ErrorHead { kind, code, parameter }, from, out)
}

/// Where an IPv6 packet says which protocol follows its last extension header, in bytes.
fn last_next_header(header: &IpHeader, packet: &[u8]) -> Result<u32, ParseError> {
    let (mut field, mut at) = (6, IPV6_HEADER_BYTES);
    while at < header.header_bytes {
        let number = *packet.get(field).ok_or(ParseError::Truncated)?;
        let length = extension_bytes(number, packet, at)?.ok_or(ParseError::BadHeader)?;
        (field, at) = (at, at + length);
    }
    u32::try_from(field).map_err(|_| ParseError::BadHeader)
}

/// What an error says before it quotes the packet.
struct ErrorHead {
    kind: u8,
    code: u8,
    /// The four bytes after the checksum.
    parameter: u32,
}

fn error(
    header: &IpHeader,
    packet: &[u8],
    head: ErrorHead,
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
    message[..4].copy_from_slice(&[head.kind, head.code, 0, 0]);
    message[4..8].copy_from_slice(&head.parameter.to_be_bytes());
    message[8..].copy_from_slice(quoted);
    let sum = checksum_of(from, header.source, message)?;
    message[2..4].copy_from_slice(&sum.to_bytes());
    Ok(Some(total))
}

/// The checksum of a message of ICMP, or ICMPv6, between two addresses.
fn checksum_of(source: IpAddr, destination: IpAddr, message: &[u8]) -> Result<Checksum, ParseError> {
    let length = u32::try_from(message.len()).map_err(|_| ParseError::BadHeader)?;
    let sum = match Version::of(source) {
        Version::V4 => Sum::default(),
        Version::V6 => Sum::default().pseudo_header(source, destination, protocol::ICMPV6, length),
    };
    Ok(sum.bytes(message).finish())
}

/// Whether `packet`, with header `header`, asks for an echo: whole, and with a right checksum.
#[must_use]
pub fn is_echo_request(header: &IpHeader, packet: &[u8]) -> bool {
    let message = header.payload(packet);
    let asks = match (header.protocol, message) {
        (protocol::ICMP, [8, 0, _, _, _, _, _, _, ..]) => header.version == Version::V4,
        (protocol::ICMPV6, [128, 0, _, _, _, _, _, _, ..]) => header.version == Version::V6,
        _ => false,
    };
    let is_intact = || checksum_of(header.source, header.destination, message).is_ok_and(Checksum::is_intact);
    asks && header.fragment.is_none() && is_intact()
}

/// Makes the echo request `packet`, with header `header`, its reply (RFC 792, RFC 4443 4.2), in place.
/// Returns where in `packet` the reply begins: it has neither options nor extension headers, and ends where
/// the request does. `None`, and nothing is changed, if it is no [request](is_echo_request), or if no single
/// host has sent it, or it went to several (RFC 1122 3.2.2.6).
#[must_use]
pub fn echo_reply(header: &IpHeader, packet: &mut [u8]) -> Option<usize> {
    let are_hosts = names_a_host(header.source) && names_a_host(header.destination);
    if !are_hosts || !is_echo_request(header, packet) {
        return None;
    }
    let start = header.header_bytes.checked_sub(header.version.header_bytes())?;
    let outer = OuterHeader {
        source: header.destination,
        destination: header.source,
        protocol: header.protocol,
        traffic_class: header.traffic_class & !3,
        hop_limit: 64,
        dont_fragment: true,
    };
    outer.write(packet.get_mut(start..)?, header.total_bytes - start, 0).ok()?;
    let message = packet.get_mut(header.header_bytes..header.total_bytes)?;
    message[0] = if header.version == Version::V4 { 0 } else { 129 };
    message[2..4].fill(0);
    let sum = checksum_of(header.destination, header.source, message).ok()?;
    message[2..4].copy_from_slice(&sum.to_bytes());
    Some(start)
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
    use crate::checksum;
    use crate::test_packets::{between, hex};

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

    /// Scapy 2.5: `IP(src, dst, id=7) / UDP(sport=4000, dport=7) / b"x"` and what `ICMP(type=3)`,
    /// `ICMPv6DestUnreach` and `ICMPv6ParamProblem` are of it.
    #[test]
    fn unreachable_messages_are_those_that_scapy_writes() {
        let v4 = "4500001d000700004011f6c5c0000202c00002010fa000070009f43078";
        let v6 = "600000000009114020010db800000000000000000000000220010db8000000000000000000000001\
                  0fa0000700091cc078";
        let outer = "6c00000000393a4020010db800000000000000000000000120010db8000000000000000000000002";
        let other = "6c00000000393a4020010db800000000000000000000000920010db8000000000000000000000002";
        for (packet, why, from, head) in [
            (v4, Unreachable::Port, "192.0.2.1", "45c00039000000004001f600c0000201c00002020303811b00000000"),
            (v4, Unreachable::Host, "192.0.2.9", "45c00039000000004001f5f8c0000209c00002020301811d00000000"),
            (v6, Unreachable::Port, "2001:db8::1", &format!("{outer}010431e400000000")),
            (v6, Unreachable::Host, "2001:db8::9", &format!("{other}010331dd00000000")),
            (v6, Unreachable::Protocol, "2001:db8::1", &format!("{outer}04012ee100000006")),
        ] {
            let bytes = hex(packet);
            let header = IpHeader::parse(&bytes).unwrap();
            let mut out = [0xAA; MAX_TOO_BIG_BYTES];
            let length = unreachable(&header, &bytes, why, from.parse().unwrap(), &mut out).unwrap().unwrap();
            assert_eq!(out[..length], [hex(head), bytes].concat(), "{why:?}");
        }
        let bytes = hex(v4);
        let header = IpHeader::parse(&bytes).unwrap();
        let group = IpHeader { destination: "224.0.0.1".parse().unwrap(), ..header };
        let mut out = [0; MAX_TOO_BIG_BYTES];
        let from = "192.0.2.1".parse().unwrap();
        assert_eq!(unreachable(&group, &bytes, Unreachable::Port, from, &mut out), Ok(None));
        let length = unreachable(&header, &bytes, Unreachable::Protocol, from, &mut out).unwrap().unwrap();
        assert_eq!((&out[20..22], length), (&[3, 2][..], 57));
    }

    #[test]
    fn a_parameter_problem_points_at_the_last_next_header() {
        let options = (protocol::DESTINATION_OPTIONS, &[0; 7][..]);
        let route = (protocol::ROUTING, &[1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..]);
        for (chain, pointer) in [(&[][..], 6), (&[options], 40), (&[options, route], 48), (&[route], 40)] {
            let bytes = crate::test_packets::ipv6(chain, 200, &[1, 2, 3, 4]);
            let header = IpHeader::parse(&bytes).unwrap();
            let mut out = [0; MAX_TOO_BIG_BYTES];
            unreachable(&header, &bytes, Unreachable::Protocol, header.destination, &mut out)
                .unwrap()
                .unwrap();
            assert_eq!((&out[40..42], out[47]), (&[4, 1][..], pointer), "{chain:?}");
        }
    }

    /// Scapy 2.5: `IP(…) / ICMP(type=8, id=0x1234, seq=5) / b"some payload!"`, the same of IPv6, and the
    /// replies.
    #[test]
    fn echo_replies_are_those_that_scapy_writes() {
        for (request, reply) in [
            (
                "45000029000700004001f6c9c0000202c00002010800943412340005736f6d65207061796c6f616421",
                "45000029000040004001b6d0c0000201c000020200009c3412340005736f6d65207061796c6f616421",
            ),
            (
                "6000000000153a4020010db800000000000000000000000220010db8000000000000000000000001\
                 8000c06f12340005736f6d65207061796c6f616421",
                "6000000000153a4020010db800000000000000000000000120010db8000000000000000000000002\
                 8100bf6f12340005736f6d65207061796c6f616421",
            ),
        ] {
            let (request, reply) = (hex(request), hex(reply));
            let header = IpHeader::parse(&request).unwrap();
            let mut packet = request.clone();
            assert_eq!(echo_reply(&header, &mut packet), Some(0));
            assert_eq!(packet, reply);
            assert_eq!(echo_reply(&IpHeader::parse(&reply).unwrap(), &mut packet), None, "a reply");
            for at in header.header_bytes..request.len() {
                let mut bad = request.clone();
                bad[at] ^= 4;
                assert_eq!(echo_reply(&header, &mut bad), None, "byte {at}");
            }
            for (source, destination) in
                [("0.0.0.0", "192.0.2.1"), ("192.0.2.2", "224.0.0.1"), ("::", "::2"), ("::2", "ff02::1")]
            {
                let header = IpHeader {
                    source: source.parse().unwrap(),
                    destination: destination.parse().unwrap(),
                    ..header
                };
                assert_eq!(echo_reply(&header, &mut request.clone()), None, "{source} to {destination}");
            }
        }
    }

    #[test]
    fn an_echo_reply_has_no_options() {
        let mut message = [8, 0, 0, 0, 1, 2, 3, 4, 5];
        let sum = checksum::of(&message).to_bytes();
        message[2..4].copy_from_slice(&sum);
        let mut packet = crate::test_packets::ipv4(&[7, 7, 4, 0, 0, 0, 0, 0], protocol::ICMP, &message);
        let header = IpHeader::parse(&packet).unwrap();
        assert_eq!(echo_reply(&header, &mut packet), Some(8));
        let reply = IpHeader::parse(&packet[8..]).unwrap();
        assert_eq!((reply.source, reply.destination), (header.destination, header.source));
        assert_eq!((reply.header_bytes, reply.payload(&packet[8..])[0], reply.total_bytes), (20, 0, 29));
    }
}

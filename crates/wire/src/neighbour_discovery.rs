//! Neighbour solicitations and advertisements of IPv6 (RFC 4861 4.3, 4.4), with the option that carries a
//! link-layer address (4.6.1).
//!
//! ```text
//!    0      1      2            4                    8              24
//!   +------+------+------------+--------------------+--------------+------+---+--------------+
//!   | type | 0    | checksum   | R S O, reserved    | target       | kind | 1 | MAC address  | …
//!   +------+------+------------+--------------------+--------------+------+---+--------------+
//! ```
//!
//! A Hop Limit of 255 shows that no router has forwarded the message: it is from the link itself. Nobody has
//! authenticated it beyond that.

use crate::checksum::{Checksum, Sum};
use crate::ethernet::MacAddress;
use crate::ip::{IPV6_HEADER_BYTES, IpHeader, OuterHeader};
use crate::{ParseError, protocol};
use std::net::{IpAddr, Ipv6Addr};

/// Bytes of a message before its options.
const FIXED_BYTES: usize = 24;
/// Bytes of an option with a MAC address.
const OPTION_BYTES: usize = 8;
/// Bytes of the packets that [`NeighbourMessage::write`] writes, at most.
pub const MAX_NEIGHBOUR_MESSAGE_BYTES: usize = IPV6_HEADER_BYTES + FIXED_BYTES + OPTION_BYTES;
/// All hosts of a link.
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 0, 0, 1);

const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const SOURCE_LINK_ADDRESS: u8 = 1;
const TARGET_LINK_ADDRESS: u8 = 2;

/// The group that hosts with `address` listen on (RFC 4291 2.7.1).
#[must_use]
pub fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::from([0xFF, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xFF, a, b, c])
}

/// A message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NeighbourMessage {
    /// Who has `target`?
    Solicitation {
        /// The address in question: never a group.
        target: Ipv6Addr,
        /// Link-layer address of who asks; absent if it has no address yet (RFC 4862 5.4.2).
        source_mac: Option<MacAddress>,
    },
    /// Somebody has `target`.
    Advertisement {
        /// Its address: never a group.
        target: Ipv6Addr,
        /// Whether it is a router.
        is_router: bool,
        /// Whether it answers a solicitation.
        is_solicited: bool,
        /// Whether it replaces a link-layer address that is known.
        overrides: bool,
        /// Its link-layer address; it may be absent in the answer to a host that knows it.
        target_mac: Option<MacAddress>,
    },
}

impl NeighbourMessage {
    /// Reads the message in `packet`, whose header is `header`. `None` if the packet is no neighbour
    /// solicitation or advertisement.
    ///
    /// # Errors
    /// [`ParseError`] if a rule of RFC 4861 7.1.1 or 7.1.2 is broken: Hop Limit, checksum, code, lengths, the
    /// target, the options, and what a message without a source address or to a group may say. Extension
    /// headers are refused, fragments among them (RFC 6980 5).
    pub fn parse(header: &IpHeader, packet: &[u8]) -> Result<Option<Self>, ParseError> {
        let message = header.payload(packet);
        let kind = match message.first() {
            Some(&kind @ (SOLICITATION | ADVERTISEMENT)) if header.protocol == protocol::ICMPV6 => kind,
            _ => return Ok(None),
        };
        let (IpAddr::V6(source), IpAddr::V6(destination)) = (header.source, header.destination) else {
            return Ok(None);
        };
        if header.hop_limit != 255 || header.header_bytes != IPV6_HEADER_BYTES {
            return Err(ParseError::BadHeader);
        }
        let (fixed, options) = message.split_first_chunk::<FIXED_BYTES>().ok_or(ParseError::Truncated)?;
        if !checksum(source, destination, message)?.is_intact() {
            return Err(ParseError::BadChecksum);
        }
        let [_, code, _, _, flags, _, _, _, target @ ..] = *fixed;
        let target = Ipv6Addr::from(target);
        if code != 0 || target.is_multicast() {
            return Err(ParseError::BadHeader);
        }
        let wanted = if kind == SOLICITATION { SOURCE_LINK_ADDRESS } else { TARGET_LINK_ADDRESS };
        let mac = link_address(options, wanted)?;
        let message = match kind {
            SOLICITATION => Self::Solicitation { target, source_mac: mac },
            _ => Self::Advertisement {
                target,
                is_router: flags & 0x80 != 0,
                is_solicited: flags & 0x40 != 0,
                overrides: flags & 0x20 != 0,
                target_mac: mac,
            },
        };
        if message.may_go(source, destination) { Ok(Some(message)) } else { Err(ParseError::BadHeader) }
    }

    /// Whether a message like this may come from `source` and go to `destination` (RFC 4861 7.1.1, 7.1.2).
    fn may_go(&self, source: Ipv6Addr, destination: Ipv6Addr) -> bool {
        match *self {
            Self::Solicitation { target, source_mac } => {
                !source.is_unspecified() || destination == solicited_node(target) && source_mac.is_none()
            }
            Self::Advertisement { is_solicited, .. } => !(destination.is_multicast() && is_solicited),
        }
    }

    /// Writes the message as a packet from `source` to `destination`, and returns its bytes.
    #[must_use]
    pub fn write(
        &self,
        source: Ipv6Addr,
        destination: Ipv6Addr,
        out: &mut [u8; MAX_NEIGHBOUR_MESSAGE_BYTES],
    ) -> usize {
        let (kind, flags, target, option, mac) = match *self {
            Self::Solicitation { target, source_mac } => {
                (SOLICITATION, 0, target, SOURCE_LINK_ADDRESS, source_mac)
            }
            Self::Advertisement { target, is_router, is_solicited, overrides, target_mac } => {
                let flags = u8::from(is_router) << 7 | u8::from(is_solicited) << 6 | u8::from(overrides) << 5;
                (ADVERTISEMENT, flags, target, TARGET_LINK_ADDRESS, target_mac)
            }
        };
        let total = MAX_NEIGHBOUR_MESSAGE_BYTES - if mac.is_some() { 0 } else { OPTION_BYTES };
        let outer = OuterHeader {
            source: source.into(),
            destination: destination.into(),
            protocol: protocol::ICMPV6,
            traffic_class: 0,
            hop_limit: 255,
            dont_fragment: true,
        };
        let written = outer.write(out, total, 0);
        debug_assert!(written.is_ok(), "two addresses of IPv6 and a short packet");
        let message = &mut out[IPV6_HEADER_BYTES..total];
        message[..8].copy_from_slice(&[kind, 0, 0, 0, flags, 0, 0, 0]);
        message[8..FIXED_BYTES].copy_from_slice(&target.octets());
        if let Some(mac) = mac {
            message[FIXED_BYTES..FIXED_BYTES + 2].copy_from_slice(&[option, 1]);
            message[FIXED_BYTES + 2..].copy_from_slice(&mac.0);
        }
        if let Ok(sum) = checksum(source, destination, message) {
            message[2..4].copy_from_slice(&sum.to_bytes());
        }
        total
    }
}

fn checksum(source: Ipv6Addr, destination: Ipv6Addr, message: &[u8]) -> Result<Checksum, ParseError> {
    let length = u32::try_from(message.len()).map_err(|_| ParseError::BadHeader)?;
    let sum = Sum::default().pseudo_header(source.into(), destination.into(), protocol::ICMPV6, length);
    Ok(sum.bytes(message).finish())
}

/// The link-layer address in the option `wanted`, the last one if there are several. Options of other kinds
/// are passed over (RFC 4861 4.6), and so are addresses that are no MAC address of one station.
fn link_address(mut options: &[u8], wanted: u8) -> Result<Option<MacAddress>, ParseError> {
    let mut found = None;
    while let [kind, units, ..] = *options {
        // Length 0 would never end.
        let length = OPTION_BYTES * usize::from(units);
        let option =
            options.get(..length).filter(|option| !option.is_empty()).ok_or(ParseError::BadHeader)?;
        if let (true, [_, _, mac @ ..]) = (kind == wanted, option) {
            let mac = mac.try_into().ok().map(MacAddress).filter(|mac| mac.is_unicast());
            found = mac.or(found);
        }
        options = &options[length..];
    }
    if options.is_empty() { Ok(found) } else { Err(ParseError::Truncated) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_packets::hex;

    const A: MacAddress = MacAddress([2, 0, 0x5E, 0, 0, 1]);
    const B: MacAddress = MacAddress([2, 0, 0x5E, 0, 0, 2]);
    const TWO: &str = "2001:db8::2";

    fn parse(packet: &[u8]) -> Result<Option<NeighbourMessage>, ParseError> {
        NeighbourMessage::parse(&IpHeader::parse(packet)?, packet)
    }

    /// Scapy 2.5: a solicitation, that of a host without an address, an answer, and an announcement. Each as
    /// `IPv6(src, dst, hlim=255) / ICMPv6ND_NS(tgt) / ICMPv6NDOptSrcLLAddr(lladdr)`.
    fn of_scapy() -> Vec<(Vec<u8>, NeighbourMessage)> {
        let target: Ipv6Addr = TWO.parse().unwrap();
        let answer = NeighbourMessage::Advertisement {
            target,
            is_router: true,
            is_solicited: true,
            overrides: true,
            target_mac: Some(B),
        };
        let announcement = NeighbourMessage::Advertisement {
            target,
            is_router: false,
            is_solicited: false,
            overrides: true,
            target_mac: Some(B),
        };
        [
            (
                "6000000000203aff20010db8000000000000000000000001ff0200000000000000000001ff000002\
                 8700be260000000020010db8000000000000000000000002010102005e000001",
                NeighbourMessage::Solicitation { target, source_mac: Some(A) },
            ),
            (
                "6000000000183aff00000000000000000000000000000000ff0200000000000000000001ff000002\
                 87004ceb0000000020010db8000000000000000000000002",
                NeighbourMessage::Solicitation { target, source_mac: None },
            ),
            (
                "6000000000203aff20010db800000000000000000000000220010db8000000000000000000000001\
                 8800ac70e000000020010db8000000000000000000000002020102005e000002",
                answer,
            ),
            (
                "6000000000203aff20010db8000000000000000000000002ff020000000000000000000000000001\
                 88009b272000000020010db8000000000000000000000002020102005e000002",
                announcement,
            ),
        ]
        .map(|(bytes, message)| (hex(bytes), message))
        .into()
    }

    #[test]
    fn messages_that_scapy_writes_are_read_and_written() {
        for (bytes, message) in of_scapy() {
            assert_eq!(parse(&bytes), Ok(Some(message)));
            let header = IpHeader::parse(&bytes).unwrap();
            let (IpAddr::V6(source), IpAddr::V6(destination)) = (header.source, header.destination) else {
                panic!("IPv6");
            };
            let mut out = [0xAA; MAX_NEIGHBOUR_MESSAGE_BYTES];
            let length = message.write(source, destination, &mut out);
            assert_eq!(out[..length], bytes);
            assert!(
                destination == solicited_node(TWO.parse().unwrap()) || !bytes[40..41].starts_with(&[135])
            );
        }
    }

    /// Cut, with length field and checksum of what is left.
    fn cut(bytes: &[u8], len: usize) -> Vec<u8> {
        let mut packet = bytes[..len].to_vec();
        packet[4..6].copy_from_slice(&((len - 40) as u16).to_be_bytes());
        complete(&mut packet);
        packet
    }

    fn complete(packet: &mut [u8]) {
        if packet.len() < 44 {
            return;
        }
        packet[42..44].fill(0);
        let address = |at: usize| Ipv6Addr::from(*packet[at..].first_chunk::<16>().unwrap());
        let sum = checksum(address(8), address(24), &packet[40..]).unwrap().to_bytes();
        packet[42..44].copy_from_slice(&sum);
    }

    #[test]
    fn every_truncation_and_every_flipped_bit_is_refused() {
        for (bytes, message) in of_scapy() {
            for len in 41..bytes.len() {
                let read = parse(&cut(&bytes, len));
                assert!(read.is_err() || len == 64, "{len} bytes of {message:?}: {read:?}");
            }
            // Beginning with the addresses: all of it is under the checksum, but for the type, which tells
            // whether it is such a message at all.
            for bit in (8 * 8..bytes.len() * 8).filter(|bit| bit / 8 != 40) {
                let mut bad = bytes.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(parse(&bad).is_err(), "bit {bit} of {message:?}");
            }
        }
    }

    /// RFC 4861 7.1.1 and 7.1.2: "A node MUST silently discard any received [message] that does not satisfy
    /// all of the following validity checks".
    #[test]
    fn messages_that_break_a_rule_are_refused() {
        let [(solicitation, _), (first, _), (answer, _), (announcement, _)] = &of_scapy()[..] else {
            panic!("four");
        };
        let with = |packet: &[u8], changes: &[(usize, u8)]| {
            let mut packet = packet.to_vec();
            changes.iter().for_each(|&(at, value)| packet[at] = value);
            complete(&mut packet);
            parse(&packet)
        };
        for packet in [solicitation, first, answer, announcement] {
            assert_eq!(with(packet, &[(7, 254)]), Err(ParseError::BadHeader), "it was forwarded");
            assert_eq!(with(packet, &[(41, 1)]), Err(ParseError::BadHeader), "code");
            assert_eq!(with(packet, &[(48, 0xFF)]), Err(ParseError::BadHeader), "the target is a group");
        }
        for packet in [solicitation, answer] {
            assert_eq!(with(packet, &[(65, 0)]), Err(ParseError::BadHeader), "an option without length");
            assert_eq!(with(packet, &[(65, 2)]), Err(ParseError::BadHeader), "an option beyond the end");
        }
        assert_eq!(with(announcement, &[(44, 0x60)]), Err(ParseError::BadHeader), "solicited by a group");
        assert_eq!(with(first, &[(39, 3)]), Err(ParseError::BadHeader), "no source, and not to its group");
        let unspecified: Vec<_> = (8..24).map(|at| (at, 0)).collect();
        assert_eq!(with(solicitation, &unspecified), Err(ParseError::BadHeader), "an address of nobody's");
        let group = with(answer, &[(66, 3)]).unwrap();
        assert!(matches!(group, Some(NeighbourMessage::Advertisement { target_mac: None, .. })), "{group:?}");
    }

    #[test]
    fn other_options_are_passed_over_and_other_messages_are_none() {
        let (bytes, message) = of_scapy().swap_remove(0);
        let nonce = [14, 1, 1, 2, 3, 4, 5, 6];
        let mut longer = [&bytes[..64], &nonce, &bytes[64..], &nonce].concat();
        longer[5] += 16;
        complete(&mut longer);
        assert_eq!(parse(&longer), Ok(Some(message)));
        let echo = hex("6000000000153a4020010db800000000000000000000000220010db8000000000000000000000001\
             8000c06f12340005736f6d65207061796c6f616421");
        assert_eq!(parse(&echo), Ok(None));
    }

    /// RFC 6980 5: "Nodes MUST silently ignore [such] messages if they include an IPv6 Fragment Header".
    #[test]
    fn a_fragment_header_is_refused_even_around_the_whole() {
        let (bytes, _) = of_scapy().swap_remove(0);
        let mut packet = [&bytes[..40], &[58, 0, 0, 0, 0, 0, 0, 1], &bytes[40..]].concat();
        (packet[5], packet[6]) = (40, 44);
        assert_eq!(parse(&packet), Err(ParseError::BadHeader));
    }
}

//! Transformations of headers: AH, transport mode, checksums behind a NAT, the MSS of a SYN; and ICMP errors.

use crate::input::Input;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use testudo_wire::ah::{AhHeader, MAX_AH_BYTES};
use testudo_wire::checksum::{self, Sum};
use testudo_wire::icmp_error::{IcmpError, QuotedHeader};
use testudo_wire::ip::{IpHeader, OuterHeader, Version};
use testudo_wire::mutable::{NotCovered, mask, masked_bytes};
use testudo_wire::nat::ChecksumFixup;
use testudo_wire::tcp::TcpHeader;
use testudo_wire::transport::{NoPlace, TransportPlace};
use testudo_wire::udp::UdpHeader;
use testudo_wire::{mss, protocol};

/// A packet of either version with this protocol and payload.
fn packet(v6: bool, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let (source, destination): (IpAddr, IpAddr) = if v6 {
        (Ipv6Addr::LOCALHOST.into(), Ipv6Addr::UNSPECIFIED.into())
    } else {
        (Ipv4Addr::LOCALHOST.into(), Ipv4Addr::BROADCAST.into())
    };
    let outer =
        OuterHeader { source, destination, protocol, traffic_class: 0, hop_limit: 9, dont_fragment: true };
    let mut bytes = vec![0; outer.bytes()];
    outer.write(&mut bytes, outer.bytes() + payload.len(), 1).expect("it fits");
    bytes.extend_from_slice(payload);
    bytes
}

/// The masked form of a packet (RFC 4302 3.3.3.1) can be undone, is a form of its own, and does not depend on
/// what every router may change. What cannot be masked stays as it is.
pub fn ah(data: &[u8]) {
    let Some((&choice, data)) = data.split_first() else { return };
    header(data);
    let icv_bytes = usize::from(choice % 9) * 4;
    let Some(covered) = masked(data, icv_bytes) else { return };
    assert_eq!(masked(&covered, icv_bytes).as_deref(), Some(&covered[..]), "masked twice");
    let mut routed = data.to_vec();
    match data[0] >> 4 {
        4 => {
            routed[1] ^= choice;
            routed[6] ^= 0x40;
            routed[8] = routed[8].wrapping_sub(1);
            routed[10] ^= choice;
        }
        _ => {
            routed[0] ^= choice & 0x0F;
            routed[2] ^= choice;
            routed[7] = routed[7].wrapping_sub(1);
        }
    }
    assert_eq!(masked(&routed, icv_bytes), Some(covered), "routers change nothing that is covered");
}

/// What the ICV covers, if it can.
fn masked(packet: &[u8], icv_bytes: usize) -> Option<Vec<u8>> {
    let mut bytes = packet.to_vec();
    let changed = masked_bytes(packet, icv_bytes);
    let covered: Result<_, NotCovered> = mask(&mut bytes, icv_bytes);
    assert_eq!(changed.is_ok(), covered.is_ok());
    let Ok(changed) = changed else {
        assert_eq!(bytes, packet, "refused and yet changed");
        return None;
    };
    assert!(bytes[changed - icv_bytes..changed].iter().all(|&byte| byte == 0), "the ICV is zeroed");
    let result = bytes[covered.expect("it was masked")].to_vec();
    bytes[..changed].copy_from_slice(&packet[..changed]);
    assert_eq!(bytes, packet, "restored");
    Some(result)
}

/// A header of AH that parses is written back identically, but for its reserved field and its ICV.
fn header(data: &[u8]) {
    let Ok(header) = AhHeader::parse(data) else { return };
    let mut written = [0xEE; MAX_AH_BYTES];
    header.write(&mut written).expect("there is room");
    assert_eq!((&written[..2], &written[4..12]), (&data[..2], &data[4..12]));
    assert!(written[12..header.header_bytes].iter().all(|&byte| byte == 0));
    assert!(written[header.header_bytes..].iter().all(|&byte| byte == 0xEE));
}

/// A header inserted for transport mode is where a receiver finds it, and leaves no trace when it is removed.
pub fn transport_mode(data: &[u8]) {
    let mut input = Input::new(data);
    let number = [protocol::ESP, protocol::AH, protocol::UDP][usize::from(input.byte() % 3)];
    let inserted = [&[0][..], input.take(usize::from(data.first().copied().unwrap_or(0) >> 2))].concat();
    let bytes = input.take(data.len());
    let place = match TransportPlace::to_insert(bytes) {
        Ok(place) => place,
        Err(reason) => return no_place(bytes, reason),
    };
    let mut front = bytes[..place.at].to_vec();
    let total = place.total_bytes + inserted.len();
    if place.rewrite(&mut front, number, total).is_err() {
        return assert_eq!(front, bytes[..place.at], "refused and yet changed");
    }
    let protected = [&front, &inserted, &bytes[place.at..place.total_bytes]].concat();
    let found = TransportPlace::of_received(&protected, number).expect("it is there");
    let expected = (place.at, place.next_header_at, total);
    assert_eq!((found.at, found.next_header_at, found.total_bytes), expected);
    if let Ok(header) = IpHeader::parse(bytes) {
        let parsed = IpHeader::parse(&protected).expect("the checksum is right");
        assert_eq!((parsed.header_bytes, parsed.protocol), (place.at, number));
        assert!(place.at <= header.header_bytes);
    }
    let mut front = protected[..found.at].to_vec();
    found.rewrite(&mut front, place.next_header, place.total_bytes).expect("it had that length");
    if place.version == Version::V4 {
        // Of the two zeros, an update gives the one that a computation gives (RFC 1624 3).
        normalize(&mut front);
        let mut original = bytes[..place.at].to_vec();
        normalize(&mut original);
        assert_eq!(front, original);
    } else {
        assert_eq!(front, bytes[..place.at]);
    }
}

/// Writes a checksum of all ones as zero, if it was right.
fn normalize(header: &mut [u8]) {
    if header[10..12] == [0xFF, 0xFF] {
        header[10..12].fill(0);
    }
}

/// Only what breaks its format, and fragments, have no place.
fn no_place(bytes: &[u8], reason: NoPlace) {
    if let Ok(header) = IpHeader::parse(bytes) {
        assert!(header.fragment.is_some(), "{reason}");
    }
}

/// The checksum of TCP or UDP, updated from other addresses, is the one that a computation gives, if it was
/// right for these (RFC 3948 3.1.2).
pub fn nat_checksum(data: &[u8]) {
    let mut input = Input::new(data);
    let choice = input.byte();
    let number = if choice & 1 == 0 { protocol::TCP } else { protocol::UDP };
    let address = |octets: &[u8]| -> IpAddr {
        match octets.first_chunk::<16>() {
            Some(octets) => Ipv6Addr::from(*octets).into(),
            None => octets.first_chunk::<4>().map_or(Ipv4Addr::UNSPECIFIED, |o| Ipv4Addr::from(*o)).into(),
        }
    };
    let length = if choice & 2 == 0 { 4 } else { 16 };
    let (source, destination) = (address(input.take(length)), address(input.take(length)));
    let received = packet(choice & 4 != 0, number, input.take(65_000));
    let header = IpHeader::parse(&received).expect("a packet");
    let apply = |fixup: ChecksumFixup, bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        fixup.apply(&header, &mut bytes);
        bytes
    };
    let computed = apply(ChecksumFixup::Recompute, &received);
    let payload = header.payload(&received);
    let summed = match number {
        protocol::UDP => UdpHeader::parse(payload).ok().map(|datagram| (6, datagram.total_bytes)),
        _ => TcpHeader::parse(payload).ok().map(|_| (16, payload.len())),
    };
    let Some((at, length)) = summed else { return assert_eq!(computed, received) };
    // As the sender has it, with its addresses.
    let (start, mut sent) = (header.header_bytes, received.clone());
    sent[start + at..start + at + 2].fill(0);
    let sum = Sum::default().pseudo_header(source, destination, number, length as u32);
    let sum = sum.bytes(&sent[start..start + length]).finish().to_bytes();
    let is_zero = number == protocol::UDP && sum == [0, 0];
    sent[start + at..start + at + 2].copy_from_slice(if is_zero { &[0xFF, 0xFF] } else { &sum });
    assert_eq!(apply(ChecksumFixup::Update { source, destination }, &sent), computed);
}

/// Lowering the MSS keeps a right checksum right, changes nothing else, and is done once.
pub fn mss(data: &[u8]) {
    let mut input = Input::new(data);
    let (v6, limit) = (input.byte() & 1 == 1, input.word());
    let mut syn = packet(v6, protocol::TCP, input.take(65_000));
    let header = IpHeader::parse(&syn).expect("a packet");
    ChecksumFixup::Recompute.apply(&header, &mut syn);
    let mut lowered = syn.clone();
    let is_lowered = mss::clamp(&header, &mut lowered, limit);
    assert_eq!(is_lowered, lowered != syn);
    if !is_lowered {
        return;
    }
    assert!(mss::is_syn(header.payload(&syn)));
    let mut computed = lowered.clone();
    ChecksumFixup::Recompute.apply(&header, &mut computed);
    assert_eq!(lowered, computed, "the checksum is right");
    let options = header.header_bytes + 20..header.header_bytes + 60;
    let outside = |at: &usize| !options.contains(at) && !(options.start - 4..options.start - 2).contains(at);
    assert!((0..syn.len()).filter(outside).all(|at| syn[at] == lowered[at]), "only options and checksum");
    assert!(!mss::clamp(&header, &mut lowered, limit), "once");
}

/// An ICMP error with a right checksum: what it says of the packet that it quotes is in the quote.
pub fn icmp_error(data: &[u8]) {
    let Some((&choice, message)) = data.split_first() else { return };
    let v6 = choice & 1 == 1;
    let number = if v6 { protocol::ICMPV6 } else { protocol::ICMP };
    let mut bytes = packet(v6, number, &message[..message.len().min(65_000)]);
    let header = IpHeader::parse(&bytes).expect("a packet");
    let start = header.header_bytes;
    if choice & 2 == 0 && bytes.len() >= start + 4 {
        bytes[start + 2..start + 4].fill(0);
        let length = (bytes.len() - start) as u32;
        let pseudo = Sum::default().pseudo_header(header.source, header.destination, number, length);
        let sum = if v6 { pseudo } else { Sum::default() }.bytes(&bytes[start..]).finish();
        bytes[start + 2..start + 4].copy_from_slice(&sum.to_bytes());
    }
    let Ok(Some(error)) = IcmpError::parse(&header, &bytes) else { return };
    if !v6 {
        assert!(checksum::of(&bytes[start..]).is_intact());
    }
    let (quoted, quote) = (error.quoted, &bytes[start + 8..]);
    let in_quote = |four: u32| quote.windows(4).any(|window| window == four.to_be_bytes());
    assert!(quote.len() >= quoted.version.header_bytes());
    assert_eq!(quote[0] >> 4, if v6 { 6 } else { 4 });
    match quoted.header {
        Some(QuotedHeader::Esp { spi, sequence }) => {
            assert!(quoted.protocol == protocol::ESP && in_quote(spi) && sequence.is_none_or(in_quote));
        }
        Some(QuotedHeader::Ah { spi, sequence }) => {
            assert!(quoted.protocol == protocol::AH && in_quote(spi) && sequence.is_none_or(in_quote));
        }
        Some(QuotedHeader::Udp { source_port, destination_port, esp }) => {
            assert!(in_quote(u32::from(source_port) << 16 | u32::from(destination_port)));
            assert!(
                quoted.protocol == protocol::UDP && esp.is_none_or(|esp| esp.spi != 0 && in_quote(esp.spi))
            );
        }
        None => {}
    }
    assert!(quoted.header.is_none() || quoted.fragment.is_none_or(|f| f.offset_bytes == 0));
}

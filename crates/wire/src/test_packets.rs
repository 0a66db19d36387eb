//! Packets for the tests of this crate.

/// The bytes that hexadecimal digits say; white space between them is skipped.
pub(crate) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
    assert!(digits.len().is_multiple_of(2), "whole bytes");
    digits.chunks_exact(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

use crate::checksum;
use crate::ip::{IPV4_HEADER_BYTES, IPV6_HEADER_BYTES, OuterHeader};

/// An IPv4 packet from 192.0.2.1 to 198.51.100.2 with these options, whose length must be a multiple of 4.
pub(crate) fn ipv4(options: &[u8], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let header_bytes = IPV4_HEADER_BYTES + options.len();
    let total = ((header_bytes + payload.len()) as u16).to_be_bytes();
    let words = 0x40 | (header_bytes / 4) as u8;
    let fixed =
        [words, 0xB9, total[0], total[1], 0, 7, 0x40, 0, 63, protocol, 0, 0, 192, 0, 2, 1, 198, 51, 100, 2];
    let mut packet = [&fixed[..], options, payload].concat();
    complete_ipv4_checksum(&mut packet);
    packet
}

/// Writes the right checksum into an IPv4 header.
pub(crate) fn complete_ipv4_checksum(packet: &mut [u8]) {
    let header_bytes = usize::from(packet[0] & 0x0F) * 4;
    packet[10..12].fill(0);
    let sum = checksum::of(&packet[..header_bytes]).to_bytes();
    packet[10..12].copy_from_slice(&sum);
}

/// An IPv6 packet from 2001:db8::1 to 2001:db8::2 with these extension headers, each a number and its bytes
/// but for Next Header, and after them `protocol` with this payload.
pub(crate) fn ipv6(chain: &[(u8, &[u8])], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; IPV6_HEADER_BYTES];
    packet[..8].copy_from_slice(&[0x6B, 0x91, 0x23, 0x45, 0, 0, chain.first().map_or(protocol, |h| h.0), 63]);
    for (at, last) in [(8, 1), (24, 2)] {
        packet[at..at + 4].copy_from_slice(&[0x20, 1, 0xD, 0xB8]);
        packet[at + 15] = last;
    }
    let next = chain.iter().skip(1).map(|header| header.0).chain([protocol]);
    for ((_, bytes), next) in chain.iter().zip(next) {
        packet.push(next);
        packet.extend_from_slice(bytes);
    }
    packet.extend_from_slice(payload);
    let length = ((packet.len() - IPV6_HEADER_BYTES) as u16).to_be_bytes();
    packet[4..6].copy_from_slice(&length);
    packet
}

/// A packet between two addresses, with the header that a gateway writes.
pub(crate) fn between(source: &str, destination: &str, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let outer = OuterHeader {
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
        protocol,
        traffic_class: 0,
        hop_limit: 64,
        dont_fragment: true,
    };
    let mut bytes = vec![0; outer.bytes()];
    outer.write(&mut bytes, outer.bytes() + payload.len(), 1).unwrap();
    bytes.extend_from_slice(payload);
    bytes
}

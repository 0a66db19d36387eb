//! The flow of an IP packet as a hash: by it, packets are spread over workers so that each flow stays with
//! one, in its order.
//!
//! ```text
//!   words:  addresses (2 of IPv4, 8 of IPv6) | protocol | ports
//!   for each: hash = (hash ^ word) · odd constant;  hash ^= hash >> 32
//!   and once more with a word of 0, for the low bits of the hash, which is the lower half
//! ```
//!
//! A word is four bytes of the packet, the first of them the lowest. The two directions of a connection have
//! different hashes: each is a flow of its own. One multiplication per word is little enough for the program
//! that computes the same hash in the kernel, for TUN devices.
//!
//! **Fragments** show ports in the first one at most. So no fragment's ports count: all fragments of a
//! datagram have one hash. An IPv6 packet with extension headers is hashed by its addresses and the first
//! Next Header alone, fragments among them.

use crate::protocol;

/// 2^64 divided by the golden ratio: odd, and its bits are well mixed.
pub const FLOW_MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

/// DCCP and UDP-Lite, whose headers begin with ports (RFC 4340 5.1, RFC 3828 3.1).
const DCCP: u8 = 33;
const UDP_LITE: u8 = 136;

/// Protocols whose headers begin with two ports of 16 bits.
pub const PROTOCOLS_WITH_PORTS: [u8; 5] = [protocol::TCP, protocol::UDP, DCCP, protocol::SCTP, UDP_LITE];

const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;

/// The hash of a packet's flow: addresses, protocol and ports, see [the module](self). What is no whole
/// header of IP has the hash 0.
#[must_use]
#[inline]
pub fn flow_hash(packet: &[u8]) -> u32 {
    match packet.first().map(|first| first >> 4) {
        Some(4) => of_ipv4(packet),
        Some(6) => of_ipv6(packet),
        _ => 0,
    }
}

#[inline]
fn of_ipv4(packet: &[u8]) -> u32 {
    let Some(header) = packet.first_chunk::<IPV4_BYTES>() else { return 0 };
    let is_fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3FFF != 0;
    let ports = if is_fragment { None } else { ports(packet, usize::from(header[0] & 0xF) * 4, header[9]) };
    let addresses = with_words(0, &header[12..]);
    finish(addresses, header[9], ports)
}

#[inline]
fn of_ipv6(packet: &[u8]) -> u32 {
    let Some(header) = packet.first_chunk::<IPV6_BYTES>() else { return 0 };
    finish(with_words(0, &header[8..]), header[6], ports(packet, IPV6_BYTES, header[6]))
}

/// Both ports as one word.
#[inline]
fn ports(packet: &[u8], at: usize, number: u8) -> Option<u32> {
    let ports = packet.get(at..)?.first_chunk::<4>()?;
    PROTOCOLS_WITH_PORTS.contains(&number).then(|| u32::from_le_bytes(*ports))
}

#[inline]
fn with_words(hash: u64, bytes: &[u8]) -> u64 {
    let word = |four: &[u8]| u32::from_le_bytes(four.try_into().unwrap_or_default());
    bytes.chunks_exact(4).fold(hash, |hash, four| with_word(hash, word(four)))
}

#[inline]
fn with_word(hash: u64, word: u32) -> u64 {
    let product = (hash ^ u64::from(word)).wrapping_mul(FLOW_MULTIPLIER);
    product ^ product >> 32
}

#[inline]
fn finish(addresses: u64, number: u8, ports: Option<u32>) -> u32 {
    let hash = with_word(addresses, number.into());
    let hash = ports.map_or(hash, |ports| with_word(hash, ports));
    let [a, b, c, d, ..] = with_word(hash, 0).to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;
    use std::collections::HashSet;

    /// What differs, and the flow of a number.
    type Family = (&'static str, fn(u32) -> Vec<u8>);

    fn ipv4(source: [u8; 4], destination: [u8; 4], number: u8, ports: (u16, u16)) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, number, 0, 0];
        packet.extend(source.into_iter().chain(destination));
        packet.extend(ports.0.to_be_bytes().into_iter().chain(ports.1.to_be_bytes()));
        packet.extend([0; 4]);
        packet
    }

    fn ipv6(source: [u8; 16], destination: [u8; 16], next: u8, after: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0, 0, after.len() as u8, next, 64];
        packet.extend(source.into_iter().chain(destination).chain(after.iter().copied()));
        packet
    }

    /// The module's words again, slowly, in numbers of 128 bits.
    fn by_the_page(words: &[u32]) -> u32 {
        let mut hash: u128 = 0;
        for word in words.iter().chain(&[0]) {
            hash = (hash ^ u128::from(*word)) * 0x9E37_79B9_7F4A_7C15 % (1 << 64);
            hash ^= hash / (1 << 32);
        }
        (hash % (1 << 32)) as u32
    }

    #[test]
    fn the_hash_is_that_of_the_words_in_the_documentation() {
        let packet = ipv4([10, 1, 0, 5], [10, 2, 0, 9], 6, (1234, 443));
        let words = [0x0500_010A, 0x0900_020A, 6, 0xBB01_D204];
        assert_eq!(flow_hash(&packet), by_the_page(&words));
        let addresses: [[u8; 16]; 2] = [std::array::from_fn(|i| i as u8), [0xFD; 16]];
        let packet = ipv6(addresses[0], addresses[1], 17, &[0x12, 0x34, 0x56, 0x78, 0, 8, 0, 0]);
        let words = [
            [0x0302_0100, 0x0706_0504, 0x0B0A_0908, 0x0F0E_0D0C].as_slice(),
            &[0xFDFD_FDFD; 4],
            &[17, 0x7856_3412],
        ];
        assert_eq!(flow_hash(&packet), by_the_page(&words.concat()));
    }

    /// Vectors for those who compute it elsewhere.
    #[test]
    fn vectors() {
        let v4 = |number, ports| flow_hash(&ipv4([10, 1, 0, 5], [10, 2, 0, 9], number, ports));
        assert_eq!(v4(6, (1234, 443)), VECTORS[0]);
        assert_eq!(v4(17, (1234, 443)), VECTORS[1]);
        assert_eq!(v4(1, (0x0800, 7)), VECTORS[2]);
        let v6 = ipv6([0xFD; 16], [0xFC; 16], 6, &[0x04, 0xD2, 0x01, 0xBB]);
        assert_eq!(flow_hash(&v6), VECTORS[3]);
    }
    const VECTORS: [u32; 4] = [0x93EB_0FD8, 0x0D78_8ECC, 0xA2C9_7FC1, 0x584D_B17F];

    #[test]
    fn all_fragments_of_a_datagram_have_one_hash() {
        let mut first = ipv4([10, 1, 0, 5], [10, 2, 0, 9], 17, (1234, 443));
        let whole = flow_hash(&first);
        first[6] = 0x20;
        let mut later = ipv4([10, 1, 0, 5], [10, 2, 0, 9], 17, (0xFFFF, 0));
        later[7] = 185;
        assert_eq!(flow_hash(&first), flow_hash(&later));
        assert_ne!(flow_hash(&first), whole);
        let fragment = |offset: u8, content: u8| {
            let header = [17, 0, 0, offset, 0, 0, 0, 9];
            ipv6([1; 16], [2; 16], protocol::FRAGMENT, &[&header[..], &[content; 8]].concat())
        };
        assert_eq!(flow_hash(&fragment(1, 3)), flow_hash(&fragment(8, 4)));
    }

    #[test]
    fn ports_follow_options_and_count_only_where_a_protocol_has_them() {
        let plain = ipv4([1, 2, 3, 4], [5, 6, 7, 8], 6, (1, 2));
        let mut with_options = plain.clone();
        with_options[0] = 0x46;
        with_options.splice(20..20, [1, 1, 1, 1]);
        assert_eq!(flow_hash(&plain), flow_hash(&with_options));
        for number in 0..=255 {
            let [a, b] = [(1, 2), (1, 3)].map(|ports| flow_hash(&ipv4([1; 4], [2; 4], number, ports)));
            assert_eq!(a != b, PROTOCOLS_WITH_PORTS.contains(&number), "protocol {number}");
        }
    }

    #[test]
    fn what_is_cut_off_is_hashed_without_a_panic() {
        let packets = [ipv4([1; 4], [2; 4], 6, (3, 4)), ipv6([1; 16], [2; 16], 6, &[1, 2, 3, 4])];
        for packet in packets {
            let header = if packet[0] >> 4 == 4 { 20 } else { 40 };
            for length in 0..packet.len() {
                assert_eq!(flow_hash(&packet[..length]) == 0, length < header, "{length} bytes");
            }
        }
        assert_eq!(flow_hash(&[0x10; 64]), 0);
    }

    /// Flows as they come in a network: neighbours in addresses and ports. In 256 buckets, of which each
    /// expects n/256, the sum of squared deviations is near 255, with a deviation of 22.6; eight of these
    /// above would be seen once in 10^15 random functions.
    #[test]
    fn flows_that_differ_little_spread_evenly() {
        let mut random = Rng::with_seed(14);
        let families: [Family; 5] = [
            ("ports in turn", |n| ipv4([10, 1, 0, 5], [10, 2, 0, 9], 6, ((1024 + n) as u16, 443))),
            ("even ports", |n| ipv4([10, 1, 0, 5], [10, 2, 0, 9], 17, ((2 * n) as u16, 5001))),
            ("hosts in turn", |n| ipv4([10, 1, (n >> 8) as u8, n as u8], [10, 2, 0, 9], 1, (0, 0))),
            ("pairs", |n| ipv4([10, 1, 0, (n >> 8) as u8], [10, 2, 0, n as u8], 6, (80, 80))),
            ("IPv6 hosts", |n| {
                let mut source = [0xFD; 16];
                source[14..].copy_from_slice(&(n as u16).to_be_bytes());
                ipv6(source, [0xFC; 16], 17, &[0, 53, 0, 53])
            }),
        ];
        for (name, flow) in &families {
            let first = random.u32(..30_000);
            let hashes: Vec<u32> = (0..25_600).map(|n| flow_hash(&flow(first + n))).collect();
            for shift in [0, 8, 24] {
                let mut buckets = [0_u32; 256];
                hashes.iter().for_each(|hash| buckets[usize::from((hash >> shift) as u8)] += 1);
                let squares: f64 = buckets.iter().map(|n| (f64::from(*n) - 100.0).powi(2) / 100.0).sum();
                assert!(squares < 255.0 + 8.0 * 22.6, "{name}, seed 14, bits from {shift}: {squares}");
            }
            let different: HashSet<u32> = hashes.iter().copied().collect();
            assert!(different.len() > 25_590, "{name}: {} hashes of 25,600 flows", different.len());
        }
    }
}

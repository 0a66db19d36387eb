//! Which window a flow has: a hash of its addresses, protocol and ports.

use testudo_wire::flow::PROTOCOLS_WITH_PORTS;
use testudo_wire::plain::PlainV4;

const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;

/// The hash of a packet's flow under two keys, which are secret: who does not know them cannot choose flows
/// that share a window. All fragments of a datagram have one hash, so that they stay in order: no ports of
/// theirs count. An IPv6 packet with extension headers, fragments among them, is hashed by its addresses and
/// the first Next Header.
#[inline]
pub(crate) fn flow_hash(packet: &[u8], keys: [u64; 2]) -> u64 {
    if let Some(header) = packet.first_chunk::<IPV4_BYTES>().filter(|header| header[0] >> 4 == 4) {
        let is_fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3FFF != 0;
        let at = if is_fragment { packet.len() } else { usize::from(header[0] & 0xF) * 4 };
        // As a parsed header has them: the source in the upper half.
        let addresses = word(&header[12..]).swap_bytes();
        return folded(addresses ^ keys[0], last(packet, at, header[9]) ^ keys[1]);
    }
    let Some(header) = packet.first_chunk::<IPV6_BYTES>() else { return 0 };
    let source = folded(word(&header[8..]) ^ keys[0], word(&header[16..]) ^ keys[1]);
    let both = folded(word(&header[24..]) ^ source, word(&header[32..]) ^ keys[1]);
    folded(both ^ keys[0], last(packet, IPV6_BYTES, header[6]) ^ keys[1])
}

/// [`flow_hash`] of a plain IPv4 packet whose header was parsed: nothing of it is read again.
#[inline(always)]
pub(crate) fn flow_hash_of_plain(header: &PlainV4, keys: [u64; 2]) -> u64 {
    folded(header.addresses ^ keys[0], ports_and_protocol(header.first, header.protocol) ^ keys[1])
}

/// Protocol, and ports where they are.
#[inline]
fn last(packet: &[u8], at: usize, protocol: u8) -> u64 {
    let first = packet.get(at..).and_then(|rest| rest.first_chunk());
    ports_and_protocol(first.copied().unwrap_or_default(), protocol)
}

/// The same from the first bytes after the header.
#[inline(always)]
fn ports_and_protocol(first: [u8; 4], protocol: u8) -> u64 {
    let ports = if PROTOCOLS_WITH_PORTS.contains(&protocol) { u32::from_le_bytes(first) } else { 0 };
    u64::from(ports) << 8 | u64::from(protocol)
}

#[inline]
fn word(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |word| u64::from_le_bytes(*word))
}

/// Both halves of a product.
#[inline]
fn folded(a: u64, b: u64) -> u64 {
    let (low, high) = a.carrying_mul(b, 0);
    low ^ high
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use testudo_wire::checksum;

    const KEYS: [u64; 2] = [0x0123_4567_89AB_CDEF, 0xFEDC_BA98_7654_3210];

    fn v4(source: u32, port: u16, fragment: u16) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0];
        packet[6..8].copy_from_slice(&fragment.to_be_bytes());
        packet.extend(
            [source.to_be_bytes(), [172, 16, 0, 2], [(port >> 8) as u8, port as u8, 0, 9], [0; 4]].concat(),
        );
        packet
    }

    fn v6(source: u8, port: u16, next: u8) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0, 0, 8, next, 64];
        packet.extend([[source; 16], [9; 16]].concat());
        packet.extend([(port >> 8) as u8, port as u8, 0, 9, 0, 8, 0, 0]);
        packet
    }

    #[test]
    fn fragments_of_a_datagram_have_one_hash_and_flows_have_others() {
        let hash = |packet: &[u8]| flow_hash(packet, KEYS);
        for fragment in [0x2000, 0x2001, 0x0001] {
            assert_eq!(hash(&v4(1, 1000, fragment)), hash(&v4(1, 2000, fragment)));
        }
        assert_eq!(hash(&v4(1, 1000, 0x2000)), hash(&v4(1, 7, 0x0010)));
        assert_ne!(hash(&v4(1, 1000, 0)), hash(&v4(1, 2000, 0)));
        assert_ne!(hash(&v4(1, 1000, 0)), hash(&v4(2, 1000, 0)));
        assert_eq!(hash(&v6(1, 1000, 44)), hash(&v6(1, 2000, 44)));
        assert_ne!(hash(&v6(1, 1000, 17)), hash(&v6(1, 2000, 17)));
        assert_ne!(hash(&v6(1, 1000, 17)), hash(&v6(2, 1000, 17)));
        assert_ne!(hash(&v4(1, 1000, 0)), flow_hash(&v4(1, 1000, 0), [KEYS[0] ^ 1, KEYS[1]]));
        assert_eq!(hash(&[0x45; 19]), 0);
    }

    /// The fast path has parsed the header already, the slow path reads the packet: each flow has one window.
    #[test]
    fn a_plain_packet_has_the_same_hash_by_its_parsed_header() {
        let mut random = fastrand::Rng::with_seed(29);
        for protocol in 0..=255 {
            let mut packet = v4(random.u32(..), random.u16(..), 0);
            packet[9] = protocol;
            let mut header: [u8; 20] = *packet.first_chunk().unwrap();
            let checksum = checksum::of_ipv4_header(&header).to_bytes();
            header[10..12].copy_from_slice(&checksum);
            packet[..20].copy_from_slice(&header);
            let plain = PlainV4::parse(&packet).unwrap();
            assert_eq!(flow_hash_of_plain(&plain, KEYS), flow_hash(&packet, KEYS), "protocol {protocol}");
        }
    }

    /// Flows that differ in one field alone spread evenly over eight slots, by the bits that slots use.
    #[test]
    fn flows_that_differ_in_one_field_spread() {
        let families: [fn(u16) -> Vec<u8>; 3] = [|n| v4(n.into(), 1, 0), |n| v4(1, n, 0), |n| v6(1, n, 17)];
        for flows in families {
            let mut slots = HashMap::<u64, u32>::new();
            for n in 0..8000 {
                *slots.entry(flow_hash(&flows(n), KEYS) >> 61).or_default() += 1;
            }
            assert!(
                slots.len() == 8 && slots.values().all(|&count| (800..1200).contains(&count)),
                "{slots:?}"
            );
        }
    }
}

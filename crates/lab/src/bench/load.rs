//! The packets of a measurement: valid IPv4 and UDP, each with different headers, spread evenly over the
//! tunnels, or at random if suites are mixed. If many SAs need more packets than a nearby cache holds, the
//! packets share one payload: their cache footprint is not what is measured.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;

use fastrand::Rng;
use testudo_port_memory::Packets;
use testudo_wire::checksum::Sum;
use testudo_wire::ip::{IPV4_HEADER_BYTES, OuterHeader};
use testudo_wire::udp::{UDP_HEADER_BYTES, UdpHeader};
use testudo_wire::{ParseError, protocol};

use super::case::{Size, Suites};

/// An IPv4 header and a UDP header.
pub(super) const SMALLEST_BYTES: usize = IPV4_HEADER_BYTES + UDP_HEADER_BYTES;
/// Jumbo frames and more; longer ones would need much memory and add little.
pub(super) const LARGEST_BYTES: usize = 16_000;
/// Seed of the mix and of the payloads: every run has the same packets.
pub(super) const SEED: u64 = 1;
/// Up to this many bytes in total, packets share no payload: they fit into a second-level cache, where a NIC
/// may have put them, and where the packets of an [inbound](super::measure) measurement are.
pub(super) const NEAR_BYTES: usize = 1 << 20;
/// Packets up to this length never share a payload: copying in two parts would cost more than the caches
/// gain.
const WHOLE_BYTES: usize = 128;
/// Minimum number of packets of one size, limited to as many as fit into [`NEAR_BYTES`].
const FLOWS: usize = 512;
/// Number and lengths of packets of random size.
const RANDOM_PACKETS: usize = 1024;
const RANDOM_BYTES: RangeInclusive<usize> = 46..=1420;
/// The Internet mix as (count, length): IP packets in Ethernet frames of 60, 536 and 1360 bytes without their
/// FCS.
const MIX: [(usize, usize); 3] = [(600, 60 - 14), (230, 536 - 14), (150, 1360 - 14)];

/// Bytes that are the same in every run.
pub(super) fn bytes(seed: u64, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

impl Size {
    /// The longest packet, in bytes.
    pub(super) fn longest_bytes(self) -> usize {
        match self {
            Size::Bytes(bytes) => bytes,
            Size::Imix => MIX.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0),
            Size::Random => *RANDOM_BYTES.end(),
        }
    }

    /// The lengths of the packets, in order, at least as many as SAs.
    fn lengths(self, sas: u32) -> Vec<usize> {
        let sas = sas as usize;
        match self {
            Size::Bytes(bytes) => vec![bytes; sas * FLOWS.min(NEAR_BYTES / bytes).div_ceil(sas)],
            Size::Imix => {
                let mut mix: Vec<usize> =
                    MIX.iter().flat_map(|&(count, bytes)| std::iter::repeat_n(bytes, count)).collect();
                Rng::with_seed(SEED).shuffle(&mut mix);
                mix.repeat(sas.div_ceil(mix.len()))
            }
            Size::Random => {
                let (shortest, count) = (*RANDOM_BYTES.start(), RANDOM_BYTES.count());
                let mut draw = Rng::with_seed(SEED);
                (0..sas.max(RANDOM_PACKETS)).map(|_| shortest + draw.usize(..count)).collect()
            }
        }
    }
}

/// The host that tunnel `number` leads to, behind the peer.
pub(super) fn destination(number: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from_bits(0xAC10_0000 + number))
}

/// The tunnel of each packet: round-robin, or random if suites are mixed, since round-robin would give every
/// suite a fixed position in each batch.
fn tunnels(suites: Suites, sas: u32) -> impl Iterator<Item = u32> {
    let mut draw = Rng::with_seed(SEED + 1);
    (0..).map(move |number| match suites {
        Suites::One(_) => number % sas,
        Suites::Mixed | Suites::Combinations | Suites::Contrast => {
            u32::try_from(draw.usize(..sas as usize)).unwrap_or(0)
        }
    })
}

/// Builds the inner packets.
pub(super) fn packets(suites: Suites, size: Size, sas: u32) -> Result<Packets, ParseError> {
    let payload = bytes(SEED, size.longest_bytes() - SMALLEST_BYTES);
    let lengths = size.lengths(sas);
    let all_near = lengths.iter().sum::<usize>() <= NEAR_BYTES;
    let mut packets = Packets::with_tail(payload.clone());
    for ((number, tunnel), bytes) in (0..).zip(tunnels(suites, sas)).zip(lengths) {
        let payload = &payload[..bytes - SMALLEST_BYTES];
        let headers = headers(number, tunnel, payload)?;
        if all_near || bytes <= WHOLE_BYTES {
            packets.push(&[&headers, payload].concat(), 0);
        } else {
            packets.push(&headers, payload.len());
        }
    }
    Ok(packets)
}

fn headers(number: u32, tunnel: u32, payload: &[u8]) -> Result<[u8; SMALLEST_BYTES], ParseError> {
    let (source, destination) = (IpAddr::V4(Ipv4Addr::from_bits(0x0A00_0101 + number)), destination(tunnel));
    let ip = OuterHeader {
        source,
        destination,
        protocol: protocol::UDP,
        traffic_class: 0,
        hop_limit: 64,
        dont_fragment: false,
    };
    let port = u16::try_from(1024 + number % 60_000).unwrap_or(u16::MAX);
    let udp_bytes = UDP_HEADER_BYTES + payload.len();
    let udp = UdpHeader { source_port: port, destination_port: 5000, total_bytes: udp_bytes };
    let mut headers = [0; SMALLEST_BYTES];
    ip.write(&mut headers, IPV4_HEADER_BYTES + udp_bytes, port)?;
    udp.write(&mut headers[IPV4_HEADER_BYTES..])?;
    let length = u32::try_from(udp_bytes).unwrap_or(u32::MAX);
    let sum = Sum::default().pseudo_header(source, destination, protocol::UDP, length);
    let checksum = sum.bytes(&headers[IPV4_HEADER_BYTES..]).bytes(payload).finish().to_bytes();
    // RFC 768: a sum of zero is sent as all ones.
    let checksum = if checksum == [0; 2] { [0xFF; 2] } else { checksum };
    headers[IPV4_HEADER_BYTES + 6..].copy_from_slice(&checksum);
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{HashMap, HashSet};
    use testudo_crypto::Suite;
    use testudo_wire::ip::IpHeader;

    const ONE: Suites = Suites::One(Suite::AES128GCM16);

    fn whole(suites: Suites, size: Size, sas: u32) -> Vec<Vec<u8>> {
        packets(suites, size, sas).unwrap().iter().map(|(head, tail)| [head, tail].concat()).collect()
    }

    /// Number of packets per tunnel, by the tunnel's host.
    fn shares(packets: &[Vec<u8>]) -> HashMap<IpAddr, usize> {
        let mut shares = HashMap::new();
        for packet in packets {
            *shares.entry(IpHeader::parse(packet).unwrap().destination).or_insert(0) += 1;
        }
        shares
    }

    #[test]
    fn the_mix_has_its_shares() {
        let lengths = Size::Imix.lengths(1);
        let count = |bytes| lengths.iter().filter(|length| **length == bytes).count();
        assert_eq!((lengths.len(), count(46), count(522), count(1346)), (980, 600, 230, 150));
        assert_eq!(lengths, Size::Imix.lengths(100), "the order is the same in every run");
        assert!(lengths[..100].iter().any(|length| *length != 46), "the mix is not shuffled");
    }

    #[test]
    fn random_lengths_are_any_within_the_range_and_the_same_in_every_run() {
        let lengths = Size::Random.lengths(1);
        assert!(lengths.iter().all(|length| RANDOM_BYTES.contains(length)));
        assert_eq!(lengths, Size::Random.lengths(1));
        assert_eq!(lengths, Size::Random.lengths(5000)[..lengths.len()]);
        // Each quarter of the range has its share.
        for quarter in 0..4 {
            let share = lengths.iter().filter(|length| (**length - 46) * 4 / 1375 == quarter).count();
            assert!((lengths.len() / 5..lengths.len() / 3).contains(&share), "{quarter}: {share}");
        }
    }

    #[test]
    fn with_mixed_suites_tunnels_come_in_random_order() {
        let first = whole(Suites::Mixed, Size::Bytes(64), 60);
        assert_eq!(first, whole(Suites::Mixed, Size::Bytes(64), 60));
        let shares = shares(&first);
        assert_eq!(shares.len(), 60, "every tunnel has packets");
        assert!(shares.values().any(|share| *share != first.len() / 60), "{shares:?}");
    }

    #[test]
    fn packets_are_valid_and_all_different() {
        for size in [Size::Bytes(28), Size::Bytes(1420), Size::Imix, Size::Random] {
            let packets = whole(ONE, size, 3);
            assert_eq!(packets.iter().collect::<HashSet<_>>().len(), packets.len());
            for packet in &packets {
                let header = IpHeader::parse(packet).unwrap();
                let udp = UdpHeader::parse(header.payload(packet)).unwrap();
                assert_eq!((header.total_bytes, udp.total_bytes + 20), (packet.len(), packet.len()));
                let sum = Sum::default().pseudo_header(
                    header.source,
                    header.destination,
                    17,
                    u32::try_from(udp.total_bytes).unwrap(),
                );
                assert!(sum.bytes(&packet[20..]).finish().is_intact());
            }
        }
    }

    #[test]
    fn many_packets_share_one_payload() {
        let packets = packets(ONE, Size::Bytes(1400), 100_000).unwrap();
        assert_eq!((packets.len(), packets.bytes()), (100_000, 140_000_000));
        let heads: usize = packets.iter().map(|(head, _)| head.len()).sum();
        assert_eq!(heads, 100_000 * SMALLEST_BYTES);
    }

    #[test]
    fn packets_that_a_near_cache_holds_share_nothing() {
        for size in [Size::Bytes(46), Size::Bytes(1420), Size::Bytes(LARGEST_BYTES), Size::Imix, Size::Random]
        {
            let packets = packets(ONE, size, 1).unwrap();
            assert!(packets.bytes() <= NEAR_BYTES && packets.iter().all(|(_, tail)| tail.is_empty()));
        }
    }

    #[test]
    fn every_sa_gets_its_share() {
        for (size, sas) in
            [(Size::Bytes(64), 1), (Size::Bytes(64), 100), (Size::Bytes(64), 1000), (Size::Imix, 7)]
        {
            let shares = shares(&whole(ONE, size, sas));
            assert_eq!(shares.len(), sas as usize);
            assert!(shares.values().max().unwrap() - shares.values().min().unwrap() <= 1, "{shares:?}");
        }
    }
}

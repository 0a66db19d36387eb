//! The packets before they are stamped: lengths, addresses, flows and SAs.

use std::net::{IpAddr, Ipv4Addr};

use fastrand::Rng;
use testudo_port_memory::Packets;
use testudo_wire::ip::{IPV4_HEADER_BYTES, OuterHeader};
use testudo_wire::udp::{UDP_HEADER_BYTES, UdpHeader};
use testudo_wire::{ParseError, protocol};

use super::sizes::{FRAME_EXTRA_BYTES, Sizes};
use super::stamp::{STAMP_AT, STAMP_BYTES};

/// Minimum number of packets before they repeat: more than caches of predictors remember.
const ROUND_PACKETS: usize = 4096;
/// Where all packets go, at their hosts.
const DESTINATION_PORT: u16 = 5000;

/// What the packets of a measurement are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traffic {
    /// Lengths of frames.
    pub sizes: Sizes,
    /// The network that source addresses are drawn from, and the length of its prefix, at most 32.
    pub sources: (Ipv4Addr, u8),
    /// The host behind the first SA; that of SA n is n addresses further.
    pub destinations: Ipv4Addr,
    /// Flows: each has a source address and port, drawn at random, and one SA. There are at least as many
    /// as SAs.
    pub flows: u32,
    /// SAs, which flows are spread over evenly.
    pub sas: u32,
    /// Which all that is random follows from.
    pub seed: u64,
}

impl Traffic {
    /// Frames of `sizes` from 10.0.0.0/8 in 1,024 flows, through one SA.
    #[must_use]
    pub fn of(sizes: Sizes) -> Self {
        let sources = (Ipv4Addr::new(10, 0, 0, 0), 8);
        Self { sizes, sources, destinations: Ipv4Addr::new(172, 16, 0, 0), flows: 1024, sas: 1, seed: 1 }
    }

    /// Builds them: each flow and each length has its share, in an order without a pattern.
    ///
    /// # Errors
    /// A frame is shorter than 64 bytes, or too long for IPv4.
    pub fn templates(&self) -> Result<Templates, ParseError> {
        let (sas, mut draw) = (self.sas.max(1), Rng::with_seed(self.seed));
        let flows: Vec<_> =
            (0..self.flows.max(sas)).map(|number| self.flow(number, sas, &mut draw)).collect();
        let lengths = self.sizes.lengths(ROUND_PACKETS.max(flows.len()), draw.u64(..));
        let mut order: Vec<usize> = (0..lengths.len()).map(|number| number % flows.len()).collect();
        draw.shuffle(&mut order);
        let mut payload = vec![0; self.sizes.longest_bytes()];
        draw.fill(&mut payload);
        let mut packets = Packets::with_tail(payload);
        let mut bytes = 0;
        for (&frame_bytes, flow) in lengths.iter().zip(order) {
            let ip_bytes = frame_bytes.saturating_sub(FRAME_EXTRA_BYTES);
            let tail = ip_bytes.checked_sub(STAMP_AT + STAMP_BYTES).ok_or(ParseError::Truncated)?;
            packets.push(&flows[flow].head(ip_bytes)?, tail);
            bytes += frame_bytes;
        }
        let mean_frame_bytes = bytes as f64 / lengths.len() as f64;
        Ok(Templates { packets, mean_frame_bytes })
    }

    fn flow(&self, number: u32, sas: u32, draw: &mut Rng) -> Flow {
        let (network, length) = self.sources;
        let hosts = u32::MAX.checked_shr(length.into()).unwrap_or(0);
        let source = Ipv4Addr::from_bits((network.to_bits() & !hosts) | (draw.u32(..) & hosts));
        let destination = Ipv4Addr::from_bits(self.destinations.to_bits().wrapping_add(number % sas));
        Flow { source, destination, source_port: draw.u16(1024..) }
    }
}

struct Flow {
    source: Ipv4Addr,
    destination: Ipv4Addr,
    source_port: u16,
}

impl Flow {
    /// Headers, and the room for a stamp. UDP has no checksum (RFC 768): stamps change after.
    fn head(&self, ip_bytes: usize) -> Result<[u8; STAMP_AT + STAMP_BYTES], ParseError> {
        let header = OuterHeader {
            source: IpAddr::V4(self.source),
            destination: IpAddr::V4(self.destination),
            protocol: protocol::UDP,
            traffic_class: 0,
            hop_limit: 64,
            dont_fragment: false,
        };
        let total_bytes = ip_bytes - IPV4_HEADER_BYTES;
        let udp =
            UdpHeader { source_port: self.source_port, destination_port: DESTINATION_PORT, total_bytes };
        let mut head = [0; STAMP_AT + STAMP_BYTES];
        header.write(&mut head, ip_bytes, self.source_port)?;
        udp.write(&mut head[IPV4_HEADER_BYTES..IPV4_HEADER_BYTES + UDP_HEADER_BYTES])?;
        Ok(head)
    }
}

/// Packets to be stamped: the nth that is sent is the nth of these, over and over again.
#[derive(Debug, Clone)]
pub struct Templates {
    packets: Packets,
    mean_frame_bytes: f64,
}

impl Templates {
    /// How many there are before they repeat; never 0.
    #[must_use]
    pub fn len(&self) -> usize {
        self.packets.len().max(1)
    }

    /// Whether there are none, which there never are.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// The two parts of the packet number `sequence`: headers with the room for a stamp, and the rest.
    #[must_use]
    pub fn get(&self, sequence: u64) -> (&[u8], &[u8]) {
        let index = sequence % self.len() as u64;
        self.packets.get(usize::try_from(index).unwrap_or(0))
    }

    /// Bytes of a frame with its check sequence, on average.
    #[must_use]
    pub fn mean_frame_bytes(&self) -> f64 {
        self.mean_frame_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{HashMap, HashSet};
    use testudo_wire::ip::IpHeader;

    fn whole(traffic: &Traffic) -> Vec<Vec<u8>> {
        let templates = traffic.templates().unwrap();
        (0..templates.len() as u64).map(|n| templates.get(n)).map(|(a, b)| [a, b].concat()).collect()
    }

    #[test]
    fn packets_are_valid_and_as_long_as_their_frames() {
        for sizes in [Sizes::Bytes(64), Sizes::Bytes(1518), Sizes::Random, Sizes::Imix, Sizes::SimpleImix] {
            let traffic = Traffic::of(sizes);
            println!("seed {}", traffic.seed);
            let (packets, mut bytes) = (whole(&traffic), 0);
            for packet in &packets {
                let header = IpHeader::parse(packet).unwrap();
                let udp = UdpHeader::parse(header.payload(packet)).unwrap();
                assert_eq!((header.total_bytes, udp.total_bytes + 20), (packet.len(), packet.len()));
                assert!((46..=1500).contains(&packet.len()));
                bytes += packet.len() + FRAME_EXTRA_BYTES;
            }
            let mean = traffic.templates().unwrap().mean_frame_bytes();
            assert!((mean - bytes as f64 / packets.len() as f64).abs() < 1e-9);
        }
        assert!(Traffic::of(Sizes::Bytes(63)).templates().is_err());
    }

    #[test]
    fn flows_have_random_addresses_of_the_prefix_and_sas_their_share() {
        let traffic = Traffic {
            sources: (Ipv4Addr::new(10, 20, 255, 255), 15),
            flows: 3000,
            sas: 30,
            ..Traffic::of(Sizes::Bytes(64))
        };
        let packets = whole(&traffic);
        assert_eq!(packets, whole(&traffic), "the same from the same seed");
        assert_ne!(packets, whole(&Traffic { seed: 2, ..traffic }));
        let mut flows: HashMap<Vec<u8>, usize> = HashMap::new();
        let (mut second, mut sas) = (HashSet::new(), HashMap::new());
        for packet in &packets {
            *flows.entry(packet[12..24].to_vec()).or_default() += 1;
            assert_eq!((packet[12], packet[13] & 0xFE), (10, 20), "outside of the prefix");
            second.insert(packet[14]);
            *sas.entry(packet[16..20].to_vec()).or_insert(0_usize) += 1;
        }
        // 4,096 packets over 3,000 flows: one or two each. Two flows may draw the same address and port.
        assert!(flows.len() >= 2_999 && flows.values().all(|count| *count <= 4), "{}", flows.len());
        assert!(second.len() > 250, "addresses fill the prefix");
        assert_eq!(sas.len(), 30);
        assert!(sas.keys().all(|address| address[..3] == [172, 16, 0] && address[3] < 30));
        assert!(sas.values().all(|count| (130..=140).contains(count)), "{sas:?}");
    }

    #[test]
    fn a_prefix_of_one_address_and_of_all_have_their_flows() {
        let one = Traffic { sources: (Ipv4Addr::new(10, 1, 2, 3), 32), ..Traffic::of(Sizes::Bytes(64)) };
        assert!(whole(&one).iter().all(|packet| packet[12..16] == [10, 1, 2, 3]));
        let all = Traffic { sources: (Ipv4Addr::UNSPECIFIED, 0), ..one };
        assert!(whole(&all).iter().map(|packet| packet[12]).collect::<HashSet<_>>().len() > 200);
    }
}

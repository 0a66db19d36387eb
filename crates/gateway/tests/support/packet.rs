//! Inner packets, each with a number in its addresses that identifies it wherever it is delivered.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use testudo_wire::ip::{IPV4_HEADER_BYTES, IPV6_HEADER_BYTES, OuterHeader, Version};
use testudo_wire::protocol;

use fastrand::Rng;

/// The parameters of an inner packet.
#[derive(Debug, Clone, Copy)]
pub struct Inner {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub protocol: u8,
    pub ports: (u16, u16),
    pub traffic_class: u8,
    pub dont_fragment: bool,
    pub total_bytes: usize,
    /// Seed of the payload.
    pub seed: u64,
}

impl Inner {
    /// A UDP packet of `total_bytes` between two addresses.
    pub fn udp(source: &str, destination: &str, total_bytes: usize) -> Self {
        Self {
            source: source.parse().expect("an address"),
            destination: destination.parse().expect("an address"),
            protocol: protocol::UDP,
            ports: (5000, 53),
            traffic_class: 0,
            dont_fragment: false,
            total_bytes,
            seed: 1,
        }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let header = OuterHeader {
            source: self.source,
            destination: self.destination,
            protocol: self.protocol,
            traffic_class: self.traffic_class,
            hop_limit: 61,
            dont_fragment: self.dont_fragment,
        };
        let mut bytes =
            super::random_bytes(&mut Rng::with_seed(self.seed), self.total_bytes.max(header.bytes()));
        header.write(&mut bytes, self.total_bytes, self.seed as u16).expect("a header");
        let payload = &mut bytes[header.bytes()..];
        if payload.len() >= 8 {
            let udp_bytes = payload.len() as u16;
            payload[..2].copy_from_slice(&self.ports.0.to_be_bytes());
            payload[2..4].copy_from_slice(&self.ports.1.to_be_bytes());
            payload[4..6].copy_from_slice(&udp_bytes.to_be_bytes());
        }
        bytes
    }
}

/// The networks of a pair: A's side is 10.0.0.0/8 and fd0a::/16, tunnel `n` leads to 172.(16+n).0.0/16 and
/// fd16:n::/32.
pub fn network_a(version: Version) -> (IpAddr, u8) {
    match version {
        Version::V4 => (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 0)), 8),
        Version::V6 => (IpAddr::V6(Ipv6Addr::new(0xFD0A, 0, 0, 0, 0, 0, 0, 0)), 16),
    }
}

pub fn network_b(version: Version, tunnel: u8) -> (IpAddr, u8) {
    match version {
        Version::V4 => (IpAddr::V4(Ipv4Addr::new(172, 16 + tunnel, 0, 0)), 16),
        Version::V6 => (IpAddr::V6(Ipv6Addr::new(0xFD16, tunnel.into(), 0, 0, 0, 0, 0, 0)), 32),
    }
}

/// An address of a network with a number in its host bits.
fn host((network, length): (IpAddr, u8), number: u32) -> IpAddr {
    match network {
        IpAddr::V4(a) => IpAddr::V4((a.to_bits() | number & (u32::MAX >> length)).into()),
        IpAddr::V6(a) => IpAddr::V6(Ipv6Addr::from_bits(a.to_bits() | u128::from(number))),
    }
}

fn number_of(address: IpAddr, length: u8) -> u32 {
    match address {
        IpAddr::V4(a) => a.to_bits() & (u32::MAX >> length),
        IpAddr::V6(a) => (a.to_bits() & 0xFFFF_FFFF) as u32,
    }
}

/// Packet `id` (of 24 bits) from A's network into that of `tunnel`, fully determined by its number and the
/// run's seed.
pub fn numbered(seed: u64, id: u32, tunnel: u8, from_a: bool, max_bytes: usize) -> Inner {
    let mut random = Rng::with_seed(seed ^ u64::from(id) << 8 ^ u64::from(tunnel) << 1 ^ u64::from(from_a));
    let total_bytes = match random.usize(..16) {
        0 => max_bytes - random.usize(..8),
        1 => 20 + random.usize(..max_bytes - 19),
        _ => 20 + random.usize(..180),
    };
    let is_v6 = total_bytes >= IPV6_HEADER_BYTES && random.usize(..2) == 0;
    let version = if is_v6 { Version::V6 } else { Version::V4 };
    let a = host(network_a(version), id);
    let b = host(network_b(version, tunnel), random.u64(..) as u32 & 0xFFFF);
    let (source, destination) = if from_a { (a, b) } else { (b, a) };
    Inner {
        source,
        destination,
        protocol: if total_bytes >= 48 { protocol::UDP } else { 253 },
        ports: (id as u16, 53),
        traffic_class: random.u8(..),
        dont_fragment: random.usize(..2) == 0,
        total_bytes: total_bytes.max(IPV4_HEADER_BYTES),
        seed: random.u64(..),
    }
}

/// The number of a packet that [`numbered`] made, from its bytes alone.
pub fn number(packet: &[u8], from_a: bool) -> u32 {
    let header = testudo_wire::ip::IpHeader::parse(packet).expect("what comes out is a well-formed packet");
    let a = if from_a { header.source } else { header.destination };
    number_of(a, network_a(header.version).1)
}

/// The tunnel of a packet that [`numbered`] made.
pub fn tunnel_of(packet: &[u8], from_a: bool) -> u8 {
    let header = testudo_wire::ip::IpHeader::parse(packet).expect("what comes out is a well-formed packet");
    match if from_a { header.destination } else { header.source } {
        IpAddr::V4(b) => b.octets()[1] - 16,
        IpAddr::V6(b) => b.segments()[1] as u8,
    }
}

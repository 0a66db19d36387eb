//! A flow of TCP or UDP, as frames: its segments, and what they are together.

use testudo_wire::checksum::{self, Sum};
use testudo_wire::ip::{IpHeader, OuterHeader};
use testudo_wire::protocol;
use testudo_wire::tcp::flags;

pub const ETHERNET_BYTES: usize = 14;

/// A flow between two hosts. Its packets have DF, and Identifications that count up.
#[derive(Debug, Clone, Copy)]
pub struct Flow {
    pub macs: [[u8; 6]; 2],
    pub is_v6: bool,
    pub protocol: u8,
    pub ports: [u16; 2],
    pub sequence: u32,
    pub acknowledged: u32,
}

impl Flow {
    pub fn tcp(is_v6: bool) -> Self {
        let macs = [[2, 0, 0, 0, 0, 7], [2, 0, 0, 0, 0, 8]];
        let ports = [1000, 2000];
        Self { macs, is_v6, protocol: protocol::TCP, ports, sequence: u32::MAX - 1000, acknowledged: 1 }
    }

    pub fn udp(is_v6: bool) -> Self {
        Self { protocol: protocol::UDP, ..Self::tcp(is_v6) }
    }

    /// Bytes of headers, Ethernet's with them.
    pub fn header_bytes(&self) -> usize {
        let ip = if self.is_v6 { 40 } else { 20 };
        ETHERNET_BYTES + ip + if self.protocol == protocol::TCP { 20 } else { 8 }
    }

    /// The packet of the flow with this payload, so many bytes after the first one.
    pub fn packet(&self, number: u16, at: u32, tcp_flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut transport: Vec<u8> = self.ports.iter().flat_map(|port| port.to_be_bytes()).collect();
        let field = if self.protocol == protocol::TCP {
            transport.extend(self.sequence.wrapping_add(at).to_be_bytes());
            transport.extend(self.acknowledged.to_be_bytes());
            transport.extend([0x50, tcp_flags, 0xFF, 0xFF, 0, 0, 0, 0]);
            16
        } else {
            transport.extend(u16::try_from(8 + payload.len()).unwrap().to_be_bytes());
            transport.extend([0; 2]);
            6
        };
        transport.extend(payload);
        let addresses = if self.is_v6 { ["fd07::7", "fd07::2"] } else { ["10.7.0.7", "10.7.0.2"] };
        let [source, destination] = addresses.map(|address| address.parse().unwrap());
        let length = u32::try_from(transport.len()).unwrap();
        let sum = Sum::default().pseudo_header(source, destination, self.protocol, length);
        let sum = sum.bytes(&transport).finish().to_bytes();
        transport[field..field + 2].copy_from_slice(&sum);
        let (protocol, traffic_class, hop_limit) = (self.protocol, 0, 64);
        let header =
            OuterHeader { source, destination, protocol, traffic_class, hop_limit, dont_fragment: true };
        let mut packet = vec![0; header.bytes()];
        header.write(&mut packet, header.bytes() + transport.len(), 0).unwrap();
        if !self.is_v6 {
            packet[4..6].copy_from_slice(&number.to_be_bytes());
            packet[10..12].fill(0);
            let sum = checksum::of(&packet[..20]).to_bytes();
            packet[10..12].copy_from_slice(&sum);
        }
        let ether_type = if self.is_v6 { [0x86, 0xDD] } else { [0x08, 0x00] };
        [&self.macs[1][..], &self.macs[0], &ether_type, &packet, &transport].concat()
    }

    /// So many full segments, and one of half the size that pushes.
    pub fn segments(&self, full: u16, bytes: usize) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        for number in 0..=full {
            let last = number == full;
            let payload: Vec<u8> = (0..if last { bytes / 2 } else { bytes })
                .map(|at| (at * 7 + usize::from(number) * 13) as u8)
                .collect();
            let at = u32::from(number) * u32::try_from(bytes).unwrap();
            let flags = if last { flags::ACK | flags::PSH } else { flags::ACK };
            all.push(self.packet(number, at, flags, &payload));
        }
        all
    }

    /// What they are as one super-frame; its checksum is left open.
    pub fn joined(&self, segments: &[Vec<u8>]) -> Vec<u8> {
        let payloads = segments.iter().flat_map(|segment| &segment[self.header_bytes()..]).copied();
        let payload: Vec<u8> = payloads.collect();
        self.packet(0, 0, flags::ACK | flags::PSH, &payload)
    }
}

/// Whether a frame's checksums are right.
pub fn is_intact(frame: &[u8]) -> bool {
    let packet = &frame[ETHERNET_BYTES..];
    let header = IpHeader::parse(packet).unwrap();
    let payload = header.payload(packet);
    let length = u32::try_from(payload.len()).unwrap();
    let sum = Sum::default().pseudo_header(header.source, header.destination, header.protocol, length);
    let ip = packet[0] >> 4 == 6 || checksum::of(&packet[..20]).is_intact();
    ip && sum.bytes(payload).finish().is_intact()
}

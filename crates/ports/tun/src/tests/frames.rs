//! Super-frames and packets from a seed, and slow, obvious checks of them.

use crate::vnet::{Gso, NEEDS_CHECKSUM, VNET_HEADER_BYTES, VnetHeader};
use fastrand::Rng;
use testudo_wire::checksum::{self, Sum};
use testudo_wire::ip::{IpHeader, Version};
use testudo_wire::protocol;

/// `count` bytes from a generator.
pub(crate) fn random_bytes(random: &mut Rng, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    random.fill(&mut bytes);
    bytes
}

/// What kind of frame to make.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    pub(crate) gso: Gso,
    pub(crate) is_v6: bool,
    /// TCP flags.
    pub(crate) flags: u8,
    pub(crate) tcp_options: Vec<u8>,
    pub(crate) ip_options: Vec<u8>,
    pub(crate) dont_fragment: bool,
    pub(crate) payload_bytes: usize,
    pub(crate) gso_size: u16,
    pub(crate) host: u8,
}

impl Shape {
    pub(crate) fn random(random: &mut Rng) -> Self {
        let (gso, is_v6) =
            [(Gso::TcpV4, false), (Gso::TcpV6, true), (Gso::Udp, false), (Gso::Udp, true)][random.usize(..4)];
        let gso_size = [1_u16, 7, 500, 1352, 1400, 1448][random.usize(..6)];
        let segments = 1 + random.usize(..60);
        let payload_bytes = usize::from(gso_size) * segments + random.usize(..usize::from(gso_size));
        let options_bytes = [0, 12, 40][random.usize(..3)];
        let tcp_options = random_bytes(random, options_bytes);
        Self {
            gso,
            is_v6,
            flags: [0x10, 0x18, 0x50, 0x11, 0x90, 0x19][random.usize(..6)],
            tcp_options,
            ip_options: Vec::new(),
            dont_fragment: random.usize(..2) == 0,
            payload_bytes: payload_bytes.min(65_000),
            gso_size,
            host: 1,
        }
    }

    /// A frame whose checksum field holds the pseudo-header's sum, with its vnet header.
    pub(crate) fn frame(&self, random: &mut Rng) -> (VnetHeader, Vec<u8>) {
        let transport = self.transport(random);
        let mut frame = self.ip_header(random, transport.len());
        let start = frame.len();
        frame.extend_from_slice(&transport);
        let offset = if self.gso == Gso::Udp { 6 } else { 16 };
        let header = IpHeader::parse(&frame).unwrap();
        let length = transport.len() as u32;
        let partial = Sum::default()
            .pseudo_header(header.source, header.destination, header.protocol, length)
            .finish()
            .to_bytes()
            .map(|byte| !byte);
        frame[start + offset..start + offset + 2].copy_from_slice(&partial);
        let vnet = VnetHeader {
            flags: NEEDS_CHECKSUM,
            gso_type: self.gso.code(),
            header_bytes: (start + transport.len() - self.payload_bytes) as u16,
            gso_size: self.gso_size,
            checksum_start: start as u16,
            checksum_offset: offset as u16,
        };
        (vnet, frame)
    }

    fn transport(&self, random: &mut Rng) -> Vec<u8> {
        let mut bytes = vec![0x13, 0x88, 0x14, self.host];
        if self.gso == Gso::Udp {
            bytes.extend(((8 + self.payload_bytes) as u16).to_be_bytes());
            bytes.extend([0, 0]);
        } else {
            bytes.extend(random_bytes(random, 8));
            bytes.extend([
                ((20 + self.tcp_options.len()) / 4 * 16) as u8,
                self.flags,
                0x12,
                0x34,
                0,
                0,
                0,
                0,
            ]);
            bytes.extend_from_slice(&self.tcp_options);
        }
        bytes.extend(random_bytes(random, self.payload_bytes));
        bytes
    }

    fn ip_header(&self, random: &mut Rng, transport_bytes: usize) -> Vec<u8> {
        let protocol = if self.gso == Gso::Udp { protocol::UDP } else { protocol::TCP };
        if self.is_v6 {
            let mut bytes = vec![0x60, 0x10, 0x02, 0x03];
            bytes.extend((transport_bytes as u16).to_be_bytes());
            bytes.extend([protocol, 63]);
            bytes.extend([0xFD; 15]);
            bytes.push(self.host);
            bytes.extend([0xFC; 16]);
            return bytes;
        }
        let header_bytes = 20 + self.ip_options.len();
        let mut bytes = vec![0x40 | (header_bytes / 4) as u8, 0x02];
        bytes.extend(((header_bytes + transport_bytes) as u16).to_be_bytes());
        bytes.extend(random_bytes(random, 2));
        bytes.extend([
            if self.dont_fragment { 0x40 } else { 0 },
            0,
            63,
            protocol,
            0,
            0,
            10,
            0,
            0,
            self.host,
            10,
            0,
            0,
            99,
        ]);
        bytes.extend_from_slice(&self.ip_options);
        let sum = checksum::of(&bytes).to_bytes();
        bytes[10..12].copy_from_slice(&sum);
        bytes
    }
}

/// Asserts that a packet is whole and its checksums are right.
pub(crate) fn assert_valid(packet: &[u8]) {
    let header = IpHeader::parse(packet).unwrap();
    assert_eq!(header.total_bytes, packet.len());
    assert_eq!(header.version == Version::V6, packet[0] >> 4 == 6);
    let transport = header.payload(packet);
    if header.protocol == protocol::UDP {
        assert_eq!(u16::from_be_bytes([transport[4], transport[5]]) as usize, transport.len());
        assert_ne!(transport[6..8], [0, 0]);
    }
    let sum = Sum::default()
        .pseudo_header(header.source, header.destination, header.protocol, transport.len() as u32)
        .bytes(transport)
        .finish();
    assert!(sum.is_intact());
}

/// The packets of a super-frame, as tun-rs cuts it.
pub(crate) fn cut_by_oracle(vnet: &VnetHeader, frame: &[u8]) -> Vec<Vec<u8>> {
    let header = tun_rs::VirtioNetHdr {
        flags: vnet.flags,
        gso_type: vnet.gso_type,
        hdr_len: vnet.header_bytes,
        gso_size: vnet.gso_size,
        csum_start: vnet.checksum_start,
        csum_offset: vnet.checksum_offset,
    };
    let mut frame = frame.to_vec();
    let count = (frame.len() - usize::from(vnet.header_bytes)).div_ceil(usize::from(vnet.gso_size));
    let mut packets = vec![vec![0; usize::from(vnet.header_bytes) + usize::from(vnet.gso_size)]; count];
    let mut sizes = vec![0; count];
    let is_v6 = frame[0] >> 4 == 6;
    let cut = tun_rs::gso_split(&mut frame, header, &mut packets, &mut sizes, 0, is_v6).unwrap();
    assert_eq!(cut, count);
    packets.iter().zip(sizes).map(|(packet, size)| packet[..size].to_vec()).collect()
}

/// What readv(2) would see: vnet header and frame.
pub(crate) fn on_the_wire(vnet: &VnetHeader, frame: &[u8]) -> Vec<u8> {
    let header: [u8; VNET_HEADER_BYTES] = vnet.to_bytes();
    [&header, frame].concat()
}

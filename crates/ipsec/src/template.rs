//! The outer headers of a tunnel, made once and stamped on every packet.

use crate::tunnel::{Encapsulation, Endpoints};
use testudo_wire::esp::ESP_HEADER_BYTES;
use testudo_wire::ip::{OuterHeader, Version};
use testudo_wire::udp::{UDP_HEADER_BYTES, UdpHeader};
use testudo_wire::{ParseError, protocol};

/// TTL and Hop Limit of outer headers (RFC 4301 5.1.2.1: constructed).
const HOP_LIMIT: u8 = 64;

/// Outer DSCP of a tunnel (RFC 4301 4.4.2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dscp {
    /// As the inner packet's.
    #[default]
    Copy,
    /// Always this value, 0 to 63.
    Fixed(u8),
}

/// Bytes of the block that holds a tunnel's headers: IPv6 40, UDP 8 and ESP 8, and what is left of a cache line.
pub(crate) const BLOCK_BYTES: usize = 64;
/// Where the ESP header stands in the block: at its end.
const ESP_AT: usize = BLOCK_BYTES - ESP_HEADER_BYTES;

/// All headers of an SA's packets before the IV, made once: what differs from packet to packet is patched in.
///
/// ```text
///   0                                    56          64
///   | unused | IPv4 or IPv6 | UDP or not | SPI, number |   IV, text …
/// ```
#[derive(Debug, Clone)]
#[repr(C)]
pub(crate) struct OuterTemplate {
    block: [u8; BLOCK_BYTES],
    /// Where the IP header starts in the block.
    ip_at: u8,
    version: Version,
    is_udp: bool,
    dscp: Dscp,
    /// What the block was made of, for datagrams that are not ESP.
    parts: Box<Parts>,
}

#[derive(Debug, Clone)]
struct Parts {
    ip: OuterHeader,
    udp: Option<(u16, u16)>,
}

impl OuterTemplate {
    /// `None` as long as the peer's address is unknown, or if the two addresses are of different versions.
    pub(crate) fn new(endpoints: &Endpoints, dscp: Dscp, spi: u32) -> Option<Self> {
        let udp = match endpoints.encapsulation {
            Encapsulation::Esp => None,
            Encapsulation::EspInUdp { local_port, remote_port } => Some((local_port, remote_port)),
        };
        let ip = OuterHeader {
            source: endpoints.local,
            destination: endpoints.remote?,
            protocol: if udp.is_some() { protocol::UDP } else { protocol::ESP },
            traffic_class: 0,
            hop_limit: HOP_LIMIT,
            // What does not fit is fragmented before encryption; outer fragments would only cost the peer reassembly.
            dont_fragment: true,
        };
        let version = Version::of(endpoints.local);
        let bytes = version.header_bytes() + udp.map_or(0, |_| UDP_HEADER_BYTES);
        let ip_at = ESP_AT - bytes;
        let parts = Box::new(Parts { ip, udp });
        let mut block = [0; BLOCK_BYTES];
        parts.write(&mut block[ip_at..ESP_AT], bytes, 0).ok()?;
        block[ESP_AT..ESP_AT + 4].copy_from_slice(&spi.to_be_bytes());
        Some(Self { block, ip_at: u8::try_from(ip_at).ok()?, version, is_udp: udp.is_some(), dscp, parts })
    }

    /// Bytes of the IP and UDP headers.
    pub(crate) fn bytes(&self) -> usize {
        ESP_AT - usize::from(self.ip_at)
    }

    /// Writes all headers to the end of `out`, for a datagram of `total_bytes` that carries a packet of this traffic class under this
    /// number. The bytes of `out` before the headers are overwritten too.
    ///
    /// The block is stored whole and then patched: nothing here loads what was stored in smaller pieces a moment ago.
    #[inline]
    pub(crate) fn stamp(
        &self,
        out: &mut [u8; BLOCK_BYTES],
        total_bytes: u16,
        inner_class: u8,
        sequence: u32,
    ) {
        *out = self.block;
        out[ESP_AT + 4..].copy_from_slice(&sequence.to_be_bytes());
        let class = self.class(inner_class);
        let udp_bytes = match (self.version, self.is_udp) {
            (Version::V4, false) => return self.stamp_v4::<{ ESP_AT - 20 }>(out, total_bytes, class),
            (Version::V6, false) => return stamp_v6::<{ ESP_AT - 40 }>(out, total_bytes, class),
            (Version::V4, true) => {
                self.stamp_v4::<{ ESP_AT - 28 }>(out, total_bytes, class);
                total_bytes.wrapping_sub(20)
            }
            (Version::V6, true) => {
                stamp_v6::<{ ESP_AT - 48 }>(out, total_bytes, class);
                total_bytes.wrapping_sub(40)
            }
        };
        out[ESP_AT - 4..ESP_AT - 2].copy_from_slice(&udp_bytes.to_be_bytes());
    }

    /// Length, class, and the checksum, which is mended for them (RFC 1624).
    #[inline]
    fn stamp_v4<const IP_AT: usize>(&self, out: &mut [u8; BLOCK_BYTES], total_bytes: u16, class: u8) {
        out[IP_AT + 1] = class;
        out[IP_AT + 2..IP_AT + 4].copy_from_slice(&total_bytes.to_be_bytes());
        let field = |at: usize| u32::from(u16::from_be_bytes([self.block[at], self.block[at + 1]]));
        // The template's own class is 0. Twice folded, a sum of four 16-bit numbers fits.
        let sum = u32::from(!low16(field(IP_AT + 10)))
            + (0xFFFF - field(IP_AT + 2))
            + u32::from(total_bytes)
            + u32::from(class);
        let sum = (sum & 0xFFFF) + (sum >> 16);
        let checksum = !low16((sum & 0xFFFF) + (sum >> 16));
        out[IP_AT + 10..IP_AT + 12].copy_from_slice(&checksum.to_be_bytes());
    }

    #[inline]
    fn class(&self, inner_class: u8) -> u8 {
        match self.dscp {
            Dscp::Copy => inner_class,
            // ECN is copied in any case (RFC 6040 4.1, normal mode).
            Dscp::Fixed(dscp) => dscp << 2 | inner_class & crate::ecn::MASK,
        }
    }

    /// Writes the IP and UDP headers to the front of a datagram of `total_bytes` that carries a packet of this traffic class.
    pub(crate) fn write(
        &self,
        out: &mut [u8],
        total_bytes: usize,
        inner_class: u8,
    ) -> Result<(), ParseError> {
        self.parts.write(out, total_bytes, self.class(inner_class))
    }
}

impl Parts {
    fn write(&self, out: &mut [u8], total_bytes: usize, traffic_class: u8) -> Result<(), ParseError> {
        let ip = OuterHeader { traffic_class, ..self.ip };
        // Identification 0: with DF set the datagram is atomic (RFC 6864 4.1).
        ip.write(out, total_bytes, 0)?;
        if let Some((source_port, destination_port)) = self.udp {
            let ip_bytes = ip.bytes();
            let udp = UdpHeader { source_port, destination_port, total_bytes: total_bytes - ip_bytes };
            udp.write(&mut out[ip_bytes..])?;
        }
        Ok(())
    }
}

#[inline]
fn stamp_v6<const IP_AT: usize>(out: &mut [u8; BLOCK_BYTES], total_bytes: u16, class: u8) {
    out[IP_AT] = 0x60 | class >> 4;
    out[IP_AT + 1] = class << 4;
    out[IP_AT + 4..IP_AT + 6].copy_from_slice(&total_bytes.wrapping_sub(40).to_be_bytes());
}

/// The low 16 bits.
#[inline]
fn low16(n: u32) -> u16 {
    u16::try_from(n & 0xFFFF).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    /// Against the writers of whole headers, for every layout, class and a spread of lengths.
    #[test]
    fn a_stamped_header_is_the_one_that_is_written_field_by_field() {
        let pairs: [(IpAddr, IpAddr); 2] = [
            ("192.0.2.1".parse().unwrap(), "198.51.100.255".parse().unwrap()),
            ("2001:db8::1".parse().unwrap(), "2001:db8::ffff".parse().unwrap()),
        ];
        let encapsulations =
            [Encapsulation::Esp, Encapsulation::EspInUdp { local_port: 4500, remote_port: 4501 }];
        for ((local, remote), encapsulation) in pairs.into_iter().flat_map(|p| encapsulations.map(|e| (p, e)))
        {
            for dscp in [Dscp::Copy, Dscp::Fixed(46)] {
                let endpoints = Endpoints { local, remote: Some(remote), encapsulation };
                let template = OuterTemplate::new(&endpoints, dscp, 0x1234_5678).unwrap();
                let lengths = (100..2000).step_by(37).chain([65_535, 65_514]);
                for (total, class) in lengths.flat_map(|total| (0..=255).map(move |class| (total, class))) {
                    let mut stamped = [0xEE; BLOCK_BYTES];
                    template.stamp(&mut stamped, total, class, 0x9ABC_DEF0);
                    let mut written = [0; BLOCK_BYTES];
                    let at = ESP_AT - template.bytes();
                    template.write(&mut written[at..ESP_AT], total.into(), class).unwrap();
                    written[ESP_AT..].copy_from_slice(&[0x12, 0x34, 0x56, 0x78, 0x9A, 0xBC, 0xDE, 0xF0]);
                    assert_eq!(stamped[at..], written[at..], "{endpoints:?} {dscp:?} {total} {class}");
                }
            }
        }
    }
}

//! The outer headers of a tunnel, made once and copied to every packet.

use super::IpsecProtocol;
use super::outer_fields::OuterRules;
use crate::fragments::Identifications;
use crate::tunnel::{Encapsulation, Endpoints};
use std::net::IpAddr;
use testudo_wire::esp::ESP_HEADER_BYTES;
use testudo_wire::ip::{self, OuterHeader, Version};
use testudo_wire::udp::{UDP_HEADER_BYTES, UdpHeader};
use testudo_wire::{ParseError, protocol};

/// TTL and Hop Limit of outer headers (RFC 4301 5.1.2.1: constructed).
const HOP_LIMIT: u8 = 64;

/// Outer DSCP of a tunnel (RFC 4301 4.4.2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Dscp {
    /// As the inner packet's.
    #[default]
    Copy,
    /// Always this value, 0 to 63.
    Fixed(u8),
}

/// The identification of ESP's datagrams: with DF set they are atomic (RFC 6864 4.1).
pub(crate) const ATOMIC: u16 = 0;

/// Bytes of the block that holds a tunnel's headers: IPv6 40, UDP 8, ESP 8, and the rest of a cache line.
pub(crate) const BLOCK_BYTES: usize = 64;
/// Bytes of the longest headers of a tunnel without ESP: IPv6 and UDP.
pub(crate) const OUTER_BYTES: usize = 40 + UDP_HEADER_BYTES;
/// Where the ESP header is in the block: at its end.
const ESP_AT: usize = BLOCK_BYTES - ESP_HEADER_BYTES;

/// All headers of an SA's packets before the IV, made once: the fields that differ from packet to packet are
/// patched.
///
/// ```text
///   0                                    56          64
///   | unused | IPv4 or IPv6 | UDP or not | SPI, number |   IV, text …
/// ```
#[derive(Debug, Clone)]
#[repr(C)]
pub(crate) struct OuterTemplate {
    block: [u8; BLOCK_BYTES],
    /// For IPv4, the constant part of the checksum's complement, to which a packet's length and class are
    /// added: one's complement sums of words in memory order, below 2^17, so that two more words cannot
    /// overflow. Unused for IPv6.
    sum: u32,
    /// Where the IP header starts in the block.
    ip_at: u8,
    headers: Headers,
    class: Class,
    /// The parts that the block was made from, for datagrams that are not ESP.
    parts: Box<Parts>,
}

/// The headers before the ESP header.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Headers {
    V4,
    V4Udp,
    V6,
    V6Udp,
}

/// The bits of the outer traffic class that are copied from the inner one, and those that are fixed. ECN is
/// copied (RFC 6040 4.1, normal mode), but where nothing is to be told of packets.
#[derive(Debug, Clone, Copy)]
struct Class {
    copied: u8,
    fixed: u8,
}

impl From<&OuterRules> for Class {
    fn from(rules: &OuterRules) -> Self {
        let ecn = if rules.copies_ecn { crate::ecn::MASK } else { 0 };
        match rules.dscp {
            Dscp::Copy => Self { copied: !crate::ecn::MASK | ecn, fixed: 0 },
            Dscp::Fixed(dscp) => Self { copied: ecn, fixed: dscp << 2 },
        }
    }
}

impl Class {
    #[inline]
    fn of(self, inner: u8) -> u8 {
        inner & self.copied | self.fixed
    }
}

#[derive(Debug, Clone)]
struct Parts {
    ip: OuterHeader,
    udp: Option<(u16, u16)>,
    rules: OuterRules,
}

impl OuterTemplate {
    /// `None` as long as the peer's address is unknown, or if the two addresses are of different versions.
    pub(crate) fn new(
        endpoints: &Endpoints,
        protocol: IpsecProtocol,
        rules: OuterRules,
        spi: u32,
    ) -> Option<Self> {
        let udp = match endpoints.encapsulation {
            Encapsulation::Esp => None,
            Encapsulation::EspInUdp { local_port, remote_port } => Some((local_port, remote_port)),
        };
        let ip = OuterHeader {
            source: endpoints.local,
            destination: endpoints.remote?,
            protocol: match protocol {
                IpsecProtocol::Esp | IpsecProtocol::Vpe if udp.is_some() => protocol::UDP,
                IpsecProtocol::Esp => protocol::ESP,
                IpsecProtocol::Ah => protocol::AH,
                IpsecProtocol::Vpe => rules.vpe_protocol,
            },
            traffic_class: 0,
            hop_limit: HOP_LIMIT,
            // Where the tunnel wants it otherwise, `outer_fields` clears it.
            dont_fragment: true,
        };
        let version = Version::of(endpoints.local);
        let headers = match (version, udp) {
            (Version::V4, None) => Headers::V4,
            (Version::V4, Some(_)) => Headers::V4Udp,
            (Version::V6, None) => Headers::V6,
            (Version::V6, Some(_)) => Headers::V6Udp,
        };
        let bytes = version.header_bytes() + udp.map_or(0, |_| UDP_HEADER_BYTES);
        let ip_at = ESP_AT - bytes;
        let parts = Box::new(Parts { ip, udp, rules });
        let mut block = [0; BLOCK_BYTES];
        parts.write(&mut block[ip_at..ESP_AT], bytes, 0, ATOMIC).ok()?;
        block[ESP_AT..ESP_AT + 4].copy_from_slice(&spi.to_be_bytes());
        let word = |at: usize| u32::from(u16::from_ne_bytes([block[ip_at + at], block[ip_at + at + 1]]));
        // Without the template's own checksum and length; its class is 0 (RFC 1624).
        let sum = (0xFFFF - word(10)) + (0xFFFF - word(2));
        Some(Self {
            block,
            sum,
            ip_at: u8::try_from(ip_at).ok()?,
            headers,
            class: Class::from(&rules),
            parts,
        })
    }

    /// Bytes of the IP and UDP headers.
    pub(crate) fn bytes(&self) -> usize {
        ESP_AT - usize::from(self.ip_at)
    }

    /// IP version of the outer header.
    pub(crate) fn version(&self) -> Version {
        Version::of(self.parts.ip.source)
    }

    /// How the fields that it leaves open are made.
    pub(crate) fn rules(&self) -> &OuterRules {
        &self.parts.rules
    }

    /// Source and destination of its datagrams.
    pub(crate) fn addresses(&self) -> [IpAddr; 2] {
        [self.parts.ip.source, self.parts.ip.destination]
    }

    /// The protocol after the IP header.
    pub(crate) fn protocol(&self) -> u8 {
        self.parts.ip.protocol
    }

    /// Source and destination port, where ESP is in UDP.
    pub(crate) fn udp_ports(&self) -> Option<(u16, u16)> {
        self.parts.udp
    }

    /// Whether a packet is from this end to the other: transport mode is between these two alone (RFC 4301
    /// 4.1).
    pub(crate) fn goes_between(&self, packet: &[u8]) -> bool {
        let (source, destination) = (self.parts.ip.source, self.parts.ip.destination);
        ip::addresses(packet) == Some((source, destination))
    }

    /// The Identification of the next datagram that must have one, not 0. Of two datagrams of AH neither
    /// knows whether the other will be cut, so that all between these ends share a count (RFC 6864 4.3),
    /// whatever their SAs.
    pub(crate) fn next_identification(&self, identifications: &mut Identifications) -> u16 {
        let OuterHeader { source, destination, protocol, .. } = self.parts.ip;
        low16(identifications.next(source, destination, protocol))
    }

    /// Which headers these are.
    #[inline]
    pub(crate) fn headers(&self) -> Headers {
        self.headers
    }

    /// Writes all headers to the end of `out`, for a datagram of `total_bytes` that carries a packet of this
    /// traffic class under this number. The bytes of `out` before the headers are overwritten too. `V6` and
    /// `UDP` say which [`headers`](Self::headers) these are, so that a caller's loop tests that once.
    ///
    /// The block is stored whole and then patched, so that no load here covers several recent narrow stores,
    /// which would fail store-to-load forwarding.
    #[inline(always)]
    pub(crate) fn stamp<const V6: bool, const UDP: bool>(
        &self,
        out: &mut [u8; BLOCK_BYTES],
        total_bytes: u16,
        inner_class: u8,
        sequence: u32,
    ) {
        *out = self.block;
        out[ESP_AT + 4..].copy_from_slice(&sequence.to_be_bytes());
        self.patch::<V6, UDP, BLOCK_BYTES, ESP_AT>(out, total_bytes, inner_class);
    }

    /// [`stamp`](Self::stamp) for what is not ESP: IP and UDP headers alone.
    #[inline(always)]
    pub(crate) fn stamp_outer<const V6: bool, const UDP: bool>(
        &self,
        out: &mut [u8; OUTER_BYTES],
        total_bytes: u16,
        inner_class: u8,
    ) {
        if let Some(block) = self.block[..ESP_AT].last_chunk() {
            *out = *block;
        }
        self.patch::<V6, UDP, OUTER_BYTES, OUTER_BYTES>(out, total_bytes, inner_class);
    }

    /// Fills in length, class and checksum of headers that end at `END`.
    #[inline(always)]
    fn patch<const V6: bool, const UDP: bool, const N: usize, const END: usize>(
        &self,
        out: &mut [u8; N],
        total_bytes: u16,
        inner_class: u8,
    ) {
        let class = self.class.of(inner_class);
        let udp_at = END - if UDP { UDP_HEADER_BYTES } else { 0 };
        let ip_bytes: u16 = if V6 { 40 } else { 20 };
        let ip_at = udp_at - usize::from(ip_bytes);
        if UDP {
            let udp_bytes = total_bytes.wrapping_sub(ip_bytes);
            out[udp_at + 4..udp_at + 6].copy_from_slice(&udp_bytes.to_be_bytes());
        }
        if V6 {
            out[ip_at] = 0x60 | class >> 4;
            out[ip_at + 1] = class << 4;
            out[ip_at + 4..ip_at + 6].copy_from_slice(&total_bytes.wrapping_sub(40).to_be_bytes());
        } else {
            let length = total_bytes.to_be_bytes();
            out[ip_at + 1] = class;
            out[ip_at + 2..ip_at + 4].copy_from_slice(&length);
            let checksum = self.checksum(length, class).to_ne_bytes();
            out[ip_at + 10..ip_at + 12].copy_from_slice(&checksum);
        }
    }

    /// The IPv4 header's checksum in memory order, updated for length and class (RFC 1624).
    #[inline(always)]
    fn checksum(&self, length: [u8; 2], class: u8) -> u16 {
        let sum =
            self.sum + u32::from(u16::from_ne_bytes(length)) + u32::from(u16::from_ne_bytes([0, class]));
        // Both halves of the sum, added with the carry.
        !low16(sum.wrapping_add(sum.rotate_left(16)) >> 16)
    }

    /// Writes the IP and UDP headers to the front of a datagram of `total_bytes` that carries a packet of
    /// this traffic class.
    pub(crate) fn write(
        &self,
        out: &mut [u8],
        total_bytes: usize,
        inner_class: u8,
        identification: u16,
    ) -> Result<(), ParseError> {
        self.parts.write(out, total_bytes, self.class.of(inner_class), identification)
    }
}

impl Parts {
    fn write(
        &self,
        out: &mut [u8],
        total_bytes: usize,
        traffic_class: u8,
        identification: u16,
    ) -> Result<(), ParseError> {
        let ip = OuterHeader { traffic_class, ..self.ip };
        ip.write(out, total_bytes, identification)?;
        if let Some((source_port, destination_port)) = self.udp {
            let ip_bytes = ip.bytes();
            let udp = UdpHeader { source_port, destination_port, total_bytes: total_bytes - ip_bytes };
            udp.write(&mut out[ip_bytes..])?;
        }
        Ok(())
    }
}

/// The low 16 bits.
#[inline]
fn low16(n: u32) -> u16 {
    u16::try_from(n & 0xFFFF).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet_rules::Df;

    /// Compares with the writers of whole headers, for every layout and class and a spread of lengths.
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
                let rules = OuterRules {
                    dscp,
                    copies_ecn: true,
                    df: Df::Set,
                    flow_seed: None,
                    seed: 0,
                    vpe_protocol: 253,
                };
                let template =
                    OuterTemplate::new(&endpoints, IpsecProtocol::Esp, rules, 0x1234_5678).unwrap();
                let lengths = (100..2000).step_by(37).chain([65_535, 65_514]);
                for (total, class) in lengths.flat_map(|total| (0..=255).map(move |class| (total, class))) {
                    let mut stamped = [0xEE; BLOCK_BYTES];
                    match template.headers() {
                        Headers::V4 => {
                            template.stamp::<false, false>(&mut stamped, total, class, 0x9ABC_DEF0)
                        }
                        Headers::V4Udp => {
                            template.stamp::<false, true>(&mut stamped, total, class, 0x9ABC_DEF0)
                        }
                        Headers::V6 => template.stamp::<true, false>(&mut stamped, total, class, 0x9ABC_DEF0),
                        Headers::V6Udp => {
                            template.stamp::<true, true>(&mut stamped, total, class, 0x9ABC_DEF0)
                        }
                    }
                    let mut written = [0; BLOCK_BYTES];
                    let at = ESP_AT - template.bytes();
                    template.write(&mut written[at..ESP_AT], total.into(), class, ATOMIC).unwrap();
                    written[ESP_AT..].copy_from_slice(&[0x12, 0x34, 0x56, 0x78, 0x9A, 0xBC, 0xDE, 0xF0]);
                    assert_eq!(stamped[at..], written[at..], "{endpoints:?} {dscp:?} {total} {class}");
                }
            }
        }
    }
}

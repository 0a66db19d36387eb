//! ICMP errors that were received, as far as IPsec cares: about packets of ours that carry ESP or AH (RFC
//! 4301 6, 8.2), or VPE (`docs/VPE.md`).
//!
//! ```text
//!   IP │ type, code, checksum │ MTU or pointer │ IP header of our packet │ its first bytes
//!                                                                          8 at least over IPv4 (RFC 792):
//!                                                                          ESP: SPI, number; AH: SPI alone
//!                                                                          VPE: IDs, low half of the number
//! ```
//!
//! Nobody has authenticated such a message. [`IcmpError::parse`] checks that it is whole, and reads what the
//! quote says; whether that is believed is for policy. The quote is what some router saw of the packet: its
//! TTL and checksum have changed, others of its fields may have, and it is cut off somewhere. Nothing beyond
//! the addresses is therefore required of it.
//!
//! Source quench is ignored (RFC 6633), and so are redirects and all messages that are no errors.

use crate::ah::AH_FIXED_BYTES;
use crate::checksum::{self, Sum};
use crate::esp::{ESP_HEADER_BYTES, EspHeader};
use crate::ip::{Fragment, IPV4_HEADER_BYTES, IPV6_HEADER_BYTES, IpHeader, MAX_EXTENSION_HEADERS};
use crate::ip::{Version, extension_bytes, fragment_at};
use crate::udp::UDP_HEADER_BYTES;
use crate::vpe::VPE_SPI_AT;
use crate::{ParseError, protocol};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes of an ICMP error before the quote.
const ICMP_HEADER_BYTES: usize = 8;

/// What an error says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IcmpErrorKind {
    /// The packet did not fit the next link: ICMP type 3 code 4 (RFC 1191 4), ICMPv6 type 2 (RFC 4443 3.2).
    TooBig {
        /// MTU of that link, in bytes; 0 from a router that predates RFC 1191.
        mtu: u32,
    },
    /// Destination unreachable (RFC 792, RFC 4443 3.1).
    Unreachable {
        /// Why.
        code: u8,
    },
    /// TTL or time for reassembly exceeded (RFC 792, RFC 4443 3.3).
    TimeExceeded {
        /// Which.
        code: u8,
    },
    /// A field was wrong (RFC 792, RFC 4443 3.4).
    ParameterProblem {
        /// In which way.
        code: u8,
        /// The offset of the field in the packet.
        pointer: u32,
    },
}

/// An ICMP error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IcmpError {
    /// What it says.
    pub kind: IcmpErrorKind,
    /// About which packet.
    pub quoted: QuotedPacket,
}

/// The packet that an error quotes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotedPacket {
    /// IP version, that of the error.
    pub version: Version,
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Bytes of the datagram, as its length field says; the quote has fewer. RFC 1191 5 estimates the MTU
    /// from it where a router does not name one.
    pub total_bytes: usize,
    /// Set if it is a fragment.
    pub fragment: Option<Fragment>,
    /// The last Next Header that the quote shows.
    pub protocol: u8,
    /// What follows the IP header, of the protocols that matter here; `None` if it is another one, a later
    /// fragment, or not quoted.
    pub header: Option<QuotedHeader>,
    /// What follows the IP header or, in UDP, that one, if it is of VPE, whose protocol numbers and ports are
    /// not considered here; `None` if it is a later fragment or not quoted.
    pub vpe: Option<QuotedVpe>,
}

/// The quoted beginning of a header of VPE (`docs/VPE.md`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotedVpe {
    /// Sender ID.
    pub sender: u16,
    /// Window ID.
    pub window: u16,
    /// Low 32 bits of the sequence number.
    pub number: u32,
    /// Security parameters index, if quoted: the 8 bytes that RFC 792 requires do not reach it.
    pub spi: Option<u32>,
}

impl QuotedVpe {
    /// Reads `bytes`; `None` if they end before the low half of the number.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let [s0, s1, w0, w1, n0, n1, n2, n3] = *bytes.first_chunk()?;
        let spi = bytes.get(VPE_SPI_AT..).and_then(|rest| rest.first_chunk());
        Some(Self {
            sender: u16::from_le_bytes([s0, s1]),
            window: u16::from_le_bytes([w0, w1]),
            number: u32::from_le_bytes([n0, n1, n2, n3]),
            spi: spi.map(|spi| u32::from_le_bytes(*spi)),
        })
    }
}

/// The quoted beginning of what the packet carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuotedHeader {
    /// ESP.
    Esp {
        /// Security parameters index.
        spi: u32,
        /// Low 32 bits of the sequence number, if quoted.
        sequence: Option<u32>,
    },
    /// AH.
    Ah {
        /// Security parameters index.
        spi: u32,
        /// Low 32 bits of the sequence number, if quoted: the 8 bytes that RFC 792 requires do not reach it.
        sequence: Option<u32>,
    },
    /// UDP.
    Udp {
        /// Source port.
        source_port: u16,
        /// Destination port.
        destination_port: u16,
        /// SPI and sequence number, if it carries ESP (RFC 3948 2.1) and these are quoted: the 8 bytes that
        /// RFC 792 requires do not reach them. Whether its ports are those of ESP in UDP is not considered.
        esp: Option<EspHeader>,
    },
}

impl IcmpError {
    /// Reads the error in `packet`, whose header is `header`. `None` for a packet that contains none of those
    /// described above, or only a fragment of it.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] if the quote lacks addresses, [`ParseError::BadChecksum`],
    /// [`ParseError::BadHeader`] if the quote is no packet of the message's IP version, or longer than the
    /// message (RFC 4884 4).
    pub fn parse(header: &IpHeader, packet: &[u8]) -> Result<Option<Self>, ParseError> {
        let message = header.payload(packet);
        let sum = match (header.version, header.protocol) {
            _ if header.fragment.is_some() => return Ok(None),
            (Version::V4, protocol::ICMP) => checksum::of(message),
            (Version::V6, protocol::ICMPV6) => {
                let length = u32::try_from(message.len()).map_err(|_| ParseError::BadHeader)?;
                let sum = Sum::default();
                let sum = sum.pseudo_header(header.source, header.destination, protocol::ICMPV6, length);
                sum.bytes(message).finish()
            }
            _ => return Ok(None),
        };
        let h = message.first_chunk::<ICMP_HEADER_BYTES>().ok_or(ParseError::Truncated)?;
        let Some(kind) = kind_of(header.version, h) else { return Ok(None) };
        if !sum.is_intact() {
            return Err(ParseError::BadChecksum);
        }
        let quote = quote_of(header.version, h, &message[ICMP_HEADER_BYTES..])?;
        let quoted = match header.version {
            Version::V4 => QuotedPacket::parse_ipv4(quote)?,
            Version::V6 => QuotedPacket::parse_ipv6(quote)?,
        };
        Ok(Some(Self { kind, quoted }))
    }
}

fn kind_of(version: Version, h: &[u8; ICMP_HEADER_BYTES]) -> Option<IcmpErrorKind> {
    let [kind, code, _, _, rest @ ..] = *h;
    let word = u32::from_be_bytes(rest);
    Some(match (version, kind) {
        (Version::V4, 3) if code == 4 => IcmpErrorKind::TooBig { mtu: word & 0xFFFF },
        (Version::V4, 3) | (Version::V6, 1) => IcmpErrorKind::Unreachable { code },
        (Version::V6, 2) => IcmpErrorKind::TooBig { mtu: word },
        (Version::V4, 11) | (Version::V6, 3) => IcmpErrorKind::TimeExceeded { code },
        (Version::V4, 12) => IcmpErrorKind::ParameterProblem { code, pointer: word >> 24 },
        (Version::V6, 4) => IcmpErrorKind::ParameterProblem { code, pointer: word },
        _ => return None,
    })
}

/// The quoted packet without the extensions that may follow it: a message that has some says how long the
/// quote is (RFC 4884 4), in words of 4 bytes or, in ICMPv6, 8; others say 0.
fn quote_of<'a>(
    version: Version,
    h: &[u8; ICMP_HEADER_BYTES],
    rest: &'a [u8],
) -> Result<&'a [u8], ParseError> {
    let length = match (version, h[0]) {
        (Version::V4, _) => usize::from(h[5]) * 4,
        (Version::V6, 1 | 3) => usize::from(h[4]) * 8,
        (Version::V6, _) => 0,
    };
    if length == 0 { Ok(rest) } else { rest.get(..length).ok_or(ParseError::BadHeader) }
}

impl QuotedPacket {
    fn parse_ipv4(quote: &[u8]) -> Result<Self, ParseError> {
        let h = quote.first_chunk::<IPV4_HEADER_BYTES>().ok_or(ParseError::Truncated)?;
        let header_bytes = usize::from(h[0] & 0x0F) * 4;
        if h[0] >> 4 != 4 || header_bytes < IPV4_HEADER_BYTES {
            return Err(ParseError::BadHeader);
        }
        let flags = u16::from_be_bytes([h[6], h[7]]);
        let fragment = Fragment { offset_bytes: (flags & 0x1FFF) << 3, more: flags & 0x2000 != 0 };
        let mut packet = Self {
            version: Version::V4,
            source: IpAddr::V4(Ipv4Addr::new(h[12], h[13], h[14], h[15])),
            destination: IpAddr::V4(Ipv4Addr::new(h[16], h[17], h[18], h[19])),
            total_bytes: usize::from(u16::from_be_bytes([h[2], h[3]])),
            fragment: (flags & 0x3FFF != 0).then_some(fragment),
            protocol: h[9],
            header: None,
            vpe: None,
        };
        packet.read_header(quote, header_bytes);
        Ok(packet)
    }

    fn parse_ipv6(quote: &[u8]) -> Result<Self, ParseError> {
        let h = quote.first_chunk::<IPV6_HEADER_BYTES>().ok_or(ParseError::Truncated)?;
        if h[0] >> 4 != 6 {
            return Err(ParseError::BadHeader);
        }
        let address = |at: usize| {
            let mut octets = [0; 16];
            octets.copy_from_slice(&h[at..at + 16]);
            IpAddr::V6(Ipv6Addr::from(octets))
        };
        let mut packet = Self {
            version: Version::V6,
            source: address(8),
            destination: address(24),
            total_bytes: IPV6_HEADER_BYTES + usize::from(u16::from_be_bytes([h[4], h[5]])),
            fragment: None,
            protocol: h[6],
            header: None,
            vpe: None,
        };
        packet.walk_extensions(quote);
        Ok(packet)
    }

    /// Steps over extension headers as far as they are quoted.
    fn walk_extensions(&mut self, quote: &[u8]) {
        let mut at = IPV6_HEADER_BYTES;
        // One round more than headers: the last finds what follows them.
        for _ in 0..=MAX_EXTENSION_HEADERS {
            match extension_bytes(self.protocol, quote, at) {
                Ok(None) => return self.read_header(quote, at),
                Err(_) => return,
                Ok(Some(length)) => {
                    let fragment =
                        fragment_at(quote, at).ok().filter(|_| self.protocol == protocol::FRAGMENT);
                    self.fragment = fragment.filter(|f| f.more || f.offset_bytes != 0).or(self.fragment);
                    self.protocol = quote[at];
                    at += length;
                    // What follows the header of a later fragment is no header.
                    if self.fragment.is_some_and(|f| f.offset_bytes != 0) {
                        return;
                    }
                }
            }
        }
    }

    /// Reads what the packet carries, from `at` on, as far as it is quoted.
    fn read_header(&mut self, quote: &[u8], at: usize) {
        let is_later = self.fragment.is_some_and(|f| f.offset_bytes != 0);
        let bytes = quote.get(at..).unwrap_or_default();
        let word = |at: usize| {
            let four = bytes.get(at..at + 4)?;
            Some(u32::from_be_bytes([four[0], four[1], four[2], four[3]]))
        };
        self.header = match self.protocol {
            _ if is_later => None,
            protocol::ESP => word(0).map(|spi| QuotedHeader::Esp { spi, sequence: word(4) }),
            protocol::AH => word(4).map(|spi| QuotedHeader::Ah { spi, sequence: word(AH_FIXED_BYTES - 4) }),
            protocol::UDP => bytes.first_chunk::<4>().map(|ports| QuotedHeader::Udp {
                source_port: u16::from_be_bytes([ports[0], ports[1]]),
                destination_port: u16::from_be_bytes([ports[2], ports[3]]),
                esp: bytes.get(UDP_HEADER_BYTES..).and_then(esp_in_udp),
            }),
            _ => None,
        };
        let vpe = if self.protocol == protocol::UDP { bytes.get(UDP_HEADER_BYTES..) } else { Some(bytes) };
        self.vpe = vpe.filter(|_| !is_later).and_then(QuotedVpe::parse);
    }
}

/// SPI and sequence number, if the content of a UDP datagram begins with them: IKE has four zeros there
/// instead of an SPI (RFC 3948 2.2), a keepalive has one byte.
fn esp_in_udp(content: &[u8]) -> Option<EspHeader> {
    EspHeader::parse(content.get(..ESP_HEADER_BYTES)?).filter(|header| header.spi != 0)
}

#[cfg(test)]
mod tests;

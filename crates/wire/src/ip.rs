//! IPv4 (RFC 791) and IPv6 (RFC 8200) headers.

use crate::next_layer::{NextLayerFields, SELECTOR_BYTES};
use crate::{ParseError, checksum, protocol};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes of an IPv4 header without options.
pub const IPV4_HEADER_BYTES: usize = 20;
/// Bytes of an IPv6 header without extensions.
pub const IPV6_HEADER_BYTES: usize = 40;
/// More extension headers than this are refused: no sane sender needs them, and the walk must be bounded.
pub(crate) const MAX_EXTENSION_HEADERS: usize = 8;

/// IP version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Version {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Version {
    /// The version of an address.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Version::V4 } else { Version::V6 }
    }

    /// Bytes of a header without options or extensions.
    #[must_use]
    pub fn header_bytes(self) -> usize {
        match self {
            Version::V4 => IPV4_HEADER_BYTES,
            Version::V6 => IPV6_HEADER_BYTES,
        }
    }

    /// The protocol number that says "an IP packet of this version follows".
    #[must_use]
    pub fn protocol(self) -> u8 {
        match self {
            Version::V4 => protocol::IPV4,
            Version::V6 => protocol::IPV6,
        }
    }
}

/// A fragment's position in its datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fragment {
    /// Offset of its first payload byte, in bytes.
    pub offset_bytes: u16,
    /// Whether more fragments follow.
    pub more: bool,
}

/// The fields of an IP header, checked against the bytes it came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpHeader {
    /// IP version.
    pub version: Version,
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Bytes up to the transport header: options and extension headers included.
    pub header_bytes: usize,
    /// Bytes of the whole datagram, as its length field says; never more than there are.
    pub total_bytes: usize,
    /// The last Next Header of the chain that was read. The next layer protocol may be unknown: see
    /// [`next_layer_protocol`](Self::next_layer_protocol).
    pub protocol: u8,
    /// DSCP and ECN: TOS of IPv4, Traffic Class of IPv6.
    pub traffic_class: u8,
    /// TTL or Hop Limit.
    pub hop_limit: u8,
    /// Set if the packet is a fragment.
    pub fragment: Option<Fragment>,
    /// Whether it must not be fragmented: the DF bit; always for IPv6.
    pub dont_fragment: bool,
    /// Whether it names its own route: LSRR or SSRR among the options of IPv4 (RFC 791 3.1), a routing header
    /// of type 0 in IPv6 (RFC 5095).
    pub has_source_route: bool,
}

impl IpHeader {
    /// Reads the header at the start of `bytes`; bytes after the datagram are allowed.
    ///
    /// # Errors
    /// [`ParseError`] names what is wrong; an IPv4 header checksum is verified.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        match bytes.first().map(|b| b >> 4) {
            Some(4) => parse_v4(bytes, bytes.len()),
            Some(6) => parse_v6(bytes),
            Some(_) => Err(ParseError::NotIp),
            None => Err(ParseError::Truncated),
        }
    }

    /// The same for an IPv4 packet of which only the first bytes are at hand, and `available` are there in
    /// all.
    ///
    /// # Errors
    /// As [`parse`](Self::parse), which decides on packets of any other version.
    #[cold]
    pub fn parse_front(bytes: &[u8], available: usize) -> Result<Self, ParseError> {
        match bytes.first().map(|b| b >> 4) {
            Some(4) => parse_v4(bytes, available),
            _ => Self::parse(bytes),
        }
    }

    /// The next layer protocol: what comes after all extension headers (RFC 4301 4.4.1.1). `None`, which that
    /// section calls OPAQUE, where an IPv6 packet does not show it: in a fragment other than the first, and
    /// after a header whose successor is unknown.
    ///
    /// RFC 8200 4.5 has receivers take Next Header from the first fragment alone, and find fragments of one
    /// datagram by addresses and Identification: what a later one says is the sender's choice, and may be an
    /// extension header. IPv4 tells datagrams apart by their protocol too (RFC 791 3.2), so that each
    /// fragment shows it.
    #[must_use]
    pub fn next_layer_protocol(&self) -> Option<u8> {
        let is_later = self.fragment.is_some_and(|f| f.offset_bytes != 0);
        (self.version == Version::V4 || !is_later && !protocol::hides_what_follows(self.protocol))
            .then_some(self.protocol)
    }

    /// Source and destination port, where the protocol has them and this is not a later fragment.
    #[must_use]
    #[inline]
    pub fn ports(&self, bytes: &[u8]) -> Option<(u16, u16)> {
        self.next_layer_fields(bytes)?.ports()
    }

    /// The selector fields of the next layer protocol (RFC 4301 4.4.1.1). `None` where it has none, and where
    /// the packet does not show them: in a later fragment, or if it ends within four bytes after the header.
    /// [`protocol::has_selector_fields`] distinguishes these.
    #[must_use]
    #[inline]
    pub fn next_layer_fields(&self, bytes: &[u8]) -> Option<NextLayerFields> {
        if self.fragment.is_some_and(|f| f.offset_bytes != 0) {
            return None;
        }
        NextLayerFields::read(self.protocol, *self.payload(bytes).first_chunk::<SELECTOR_BYTES>()?)
    }

    /// The bytes after the header, of the packet that this header was parsed from; empty for another, shorter
    /// packet.
    #[must_use]
    #[inline]
    pub fn payload<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        bytes.get(self.header_bytes..self.total_bytes).unwrap_or_default()
    }
}

fn be16(bytes: &[u8], at: usize) -> Result<u16, ParseError> {
    let pair = bytes.get(at..at + 2).ok_or(ParseError::Truncated)?;
    Ok(u16::from_be_bytes([pair[0], pair[1]]))
}

#[inline]
fn parse_v4(bytes: &[u8], available: usize) -> Result<IpHeader, ParseError> {
    let fixed = bytes.first_chunk::<IPV4_HEADER_BYTES>().ok_or(ParseError::Truncated)?;
    let header_bytes = usize::from(fixed[0] & 0x0F) * 4;
    if header_bytes < IPV4_HEADER_BYTES {
        return Err(ParseError::BadHeader);
    }
    let total_bytes = usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
    if total_bytes < header_bytes {
        return Err(ParseError::BadHeader);
    }
    if total_bytes > available || header_bytes > bytes.len() {
        return Err(ParseError::Truncated);
    }
    let sum = match header_bytes {
        IPV4_HEADER_BYTES => checksum::of_ipv4_header(fixed),
        _ => checksum::of(&bytes[..header_bytes]),
    };
    if !sum.is_intact() {
        return Err(ParseError::BadChecksum);
    }
    let flags = u16::from_be_bytes([fixed[6], fixed[7]]);
    let fragment = Fragment { offset_bytes: (flags & 0x1FFF) << 3, more: flags & 0x2000 != 0 };
    check_end(fragment, total_bytes - header_bytes)?;
    Ok(IpHeader {
        version: Version::V4,
        source: IpAddr::V4(Ipv4Addr::new(fixed[12], fixed[13], fixed[14], fixed[15])),
        destination: IpAddr::V4(Ipv4Addr::new(fixed[16], fixed[17], fixed[18], fixed[19])),
        header_bytes,
        total_bytes,
        protocol: fixed[9],
        traffic_class: fixed[1],
        hop_limit: fixed[8],
        fragment: (flags & 0x3FFF != 0).then_some(fragment),
        dont_fragment: flags & 0x4000 != 0,
        has_source_route: has_source_route(&bytes[IPV4_HEADER_BYTES..header_bytes])?,
    })
}

/// Whether these options of IPv4 (RFC 791 3.1) hold a loose or a strict source route. Options whose lengths
/// do not fit are refused: a receiver might read them otherwise.
fn has_source_route(mut options: &[u8]) -> Result<bool, ParseError> {
    const END: u8 = 0;
    const NO_OPERATION: u8 = 1;
    const LOOSE: u8 = 131;
    const STRICT: u8 = 137;
    loop {
        let length = match options {
            [] | [END, ..] => return Ok(false),
            [LOOSE | STRICT, ..] => return Ok(true),
            [NO_OPERATION, ..] => 1,
            [_, length, ..] if *length >= 2 => usize::from(*length),
            _ => return Err(ParseError::BadHeader),
        };
        options = options.get(length..).ok_or(ParseError::BadHeader)?;
    }
}

fn parse_v6(bytes: &[u8]) -> Result<IpHeader, ParseError> {
    let fixed = bytes.first_chunk::<IPV6_HEADER_BYTES>().ok_or(ParseError::Truncated)?;
    // A jumbogram says length 0 here and the real one in a hop-by-hop option (RFC 2675 2), for which it then
    // has no room: it is refused as truncated. Packets without payload say 0, too.
    let total_bytes = IPV6_HEADER_BYTES + usize::from(u16::from_be_bytes([fixed[4], fixed[5]]));
    if total_bytes > bytes.len() {
        return Err(ParseError::Truncated);
    }
    let address = |at: usize| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&fixed[at..at + 16]);
        IpAddr::V6(Ipv6Addr::from(octets))
    };
    let mut header = IpHeader {
        version: Version::V6,
        source: address(8),
        destination: address(24),
        header_bytes: IPV6_HEADER_BYTES,
        total_bytes,
        protocol: fixed[6],
        traffic_class: fixed[0] << 4 | fixed[1] >> 4,
        hop_limit: fixed[7],
        fragment: None,
        dont_fragment: true,
        has_source_route: false,
    };
    walk_extensions(&bytes[..total_bytes], &mut header)?;
    Ok(header)
}

/// Refuses a fragment that ends beyond the longest payload (RFC 8200 4.5): fragmented again, its offset would
/// wrap around.
fn check_end(fragment: Fragment, payload_bytes: usize) -> Result<(), ParseError> {
    let end = usize::from(fragment.offset_bytes) + payload_bytes;
    if fragment.offset_bytes != 0 && end > usize::from(u16::MAX) {
        Err(ParseError::BadHeader)
    } else {
        Ok(())
    }
}

/// Bytes of the IPv6 extension header of this number at `at` (RFC 8200 4), all of them there; `None` for the
/// number of a header that is not stepped over.
///
/// # Errors
/// [`ParseError::Truncated`] if the header ends beyond `bytes`.
pub(crate) fn extension_bytes(number: u8, bytes: &[u8], at: usize) -> Result<Option<usize>, ParseError> {
    let length = match number {
        protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION_OPTIONS => {
            8 * (1 + usize::from(be16(bytes, at)? & 0xFF))
        }
        protocol::FRAGMENT => 8,
        _ => return Ok(None),
    };
    if at + length > bytes.len() { Err(ParseError::Truncated) } else { Ok(Some(length)) }
}

/// What the fragment header at `at` says (RFC 8200 4.5).
pub(crate) fn fragment_at(bytes: &[u8], at: usize) -> Result<Fragment, ParseError> {
    let offset_and_flags = be16(bytes, at + 2)?;
    Ok(Fragment { offset_bytes: offset_and_flags & 0xFFF8, more: offset_and_flags & 1 != 0 })
}

/// Steps over extension headers (RFC 8200 4) until the transport header, or until a later fragment hides it.
fn walk_extensions(bytes: &[u8], header: &mut IpHeader) -> Result<(), ParseError> {
    // One round more than headers: the last finds the transport header.
    for _ in 0..=MAX_EXTENSION_HEADERS {
        let at = header.header_bytes;
        let Some(length) = extension_bytes(header.protocol, bytes, at)? else { return Ok(()) };
        if header.protocol == protocol::FRAGMENT {
            let fragment = fragment_at(bytes, at)?;
            check_end(fragment, bytes.len() - at - length)?;
            // An atomic fragment (RFC 6946) is a whole packet, unless a fragment header before it says
            // otherwise.
            if fragment.offset_bytes != 0 || fragment.more {
                header.fragment = Some(fragment);
            }
        }
        header.has_source_route |= header.protocol == protocol::ROUTING && bytes[at + 2] == 0;
        header.protocol = bytes[at];
        header.header_bytes = at + length;
        if header.fragment.is_some_and(|f| f.offset_bytes != 0) {
            return Ok(());
        }
    }
    Err(ParseError::BadHeader)
}

/// The fields of a tunnel's own header, except for those that follow from them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OuterHeader {
    /// Source address.
    pub source: IpAddr,
    /// Destination address; of the same version as the source.
    pub destination: IpAddr,
    /// Protocol that follows.
    pub protocol: u8,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// TTL or Hop Limit.
    pub hop_limit: u8,
    /// The DF bit; IPv6 has none.
    pub dont_fragment: bool,
}

impl OuterHeader {
    /// Bytes that [`write`](Self::write) fills.
    #[must_use]
    pub fn bytes(&self) -> usize {
        Version::of(self.source).header_bytes()
    }

    /// Writes the header to the start of `out`, with length fields for a datagram of `total_bytes` and, for
    /// IPv4, `identification` and checksum. A length that its 16-bit field cannot hold is refused.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] if `out` is shorter than the header, [`ParseError::BadHeader`] if addresses
    /// are of mixed versions or the length does not fit its field.
    pub fn write(&self, out: &mut [u8], total_bytes: usize, identification: u16) -> Result<(), ParseError> {
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let out = out.first_chunk_mut::<IPV4_HEADER_BYTES>().ok_or(ParseError::Truncated)?;
                let length = u16::try_from(total_bytes).map_err(|_| ParseError::BadHeader)?;
                self.write_v4(out, source, destination, length, identification);
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let out = out.first_chunk_mut::<IPV6_HEADER_BYTES>().ok_or(ParseError::Truncated)?;
                let length = total_bytes.checked_sub(IPV6_HEADER_BYTES).ok_or(ParseError::BadHeader)?;
                let length = u16::try_from(length).map_err(|_| ParseError::BadHeader)?;
                out[0] = 0x60 | self.traffic_class >> 4;
                out[1] = self.traffic_class << 4;
                out[2..4].fill(0);
                out[4..6].copy_from_slice(&length.to_be_bytes());
                out[6] = self.protocol;
                out[7] = self.hop_limit;
                out[8..24].copy_from_slice(&source.octets());
                out[24..40].copy_from_slice(&destination.octets());
            }
            _ => return Err(ParseError::BadHeader),
        }
        Ok(())
    }

    fn write_v4(&self, out: &mut [u8; 20], source: Ipv4Addr, destination: Ipv4Addr, length: u16, id: u16) {
        out[0] = 0x45;
        out[1] = self.traffic_class;
        out[2..4].copy_from_slice(&length.to_be_bytes());
        out[4..6].copy_from_slice(&id.to_be_bytes());
        out[6] = if self.dont_fragment { 0x40 } else { 0 };
        out[7] = 0;
        out[8] = self.hop_limit;
        out[9] = self.protocol;
        out[10..12].fill(0);
        out[12..16].copy_from_slice(&source.octets());
        out[16..20].copy_from_slice(&destination.octets());
        let checksum = checksum::of_ipv4_header(out).to_bytes();
        out[10..12].copy_from_slice(&checksum);
    }
}

/// Source and destination of a packet; `None` for bytes that are no IP packet.
#[must_use]
pub fn addresses(bytes: &[u8]) -> Option<(IpAddr, IpAddr)> {
    match bytes.first()? >> 4 {
        4 => {
            let [s @ .., _, _, _, _] = *bytes.get(12..20)?.first_chunk::<8>()?;
            let d = *bytes.get(16..20)?.first_chunk::<4>()?;
            Some((Ipv4Addr::from(s).into(), Ipv4Addr::from(d).into()))
        }
        6 => {
            let s = *bytes.get(8..24)?.first_chunk::<16>()?;
            let d = *bytes.get(24..40)?.first_chunk::<16>()?;
            Some((Ipv6Addr::from(s).into(), Ipv6Addr::from(d).into()))
        }
        _ => None,
    }
}

/// Takes one from the TTL or hop limit of a packet, as a router does (RFC 1812 5.3.1), and keeps the checksum
/// right (RFC 1624). `false` if none is left for the way on: the packet is as it was.
#[inline]
pub fn lose_hop(packet: &mut [u8]) -> bool {
    match packet {
        [first, _, _, _, _, _, _, _, ttl, _, high, low, ..] if *first >> 4 == 4 => {
            if *ttl <= 1 {
                return false;
            }
            *ttl -= 1;
            // The checksum is the complement of a sum that has just lost 0x0100.
            let (sum, carry) = u16::from_be_bytes([*high, *low]).overflowing_add(0x0100);
            [*high, *low] = sum.wrapping_add(carry.into()).to_be_bytes();
            true
        }
        [first, _, _, _, _, _, _, hop_limit, ..] if *first >> 4 == 6 => {
            if *hop_limit <= 1 {
                return false;
            }
            *hop_limit -= 1;
            true
        }
        _ => false,
    }
}

/// Undoes [`lose_hop`], for a packet that stays here for now.
pub fn regain_hop(packet: &mut [u8]) {
    match packet {
        [first, _, _, _, _, _, _, _, ttl, _, high, low, ..] if *first >> 4 == 4 => {
            *ttl = ttl.saturating_add(1);
            let (sum, borrow) = u16::from_be_bytes([*high, *low]).overflowing_sub(0x0100);
            [*high, *low] = sum.wrapping_sub(borrow.into()).to_be_bytes();
        }
        [first, _, _, _, _, _, _, hop_limit, ..] if *first >> 4 == 6 => {
            *hop_limit = hop_limit.saturating_add(1);
        }
        _ => {}
    }
}

/// DSCP and ECN of a packet whose header was parsed before; 0 for bytes that are no IP packet.
#[must_use]
pub fn traffic_class(bytes: &[u8]) -> u8 {
    match bytes {
        [first, second, ..] if first >> 4 == 4 => *second,
        [first, second, ..] if first >> 4 == 6 => first << 4 | second >> 4,
        _ => 0,
    }
}

/// Sets the ECN field of the packet in `bytes` (RFC 3168 5) and updates an IPv4 checksum; bytes that are no
/// IP packet stay as they are.
pub fn set_ecn(bytes: &mut [u8], ecn: u8) {
    let ecn = ecn & 3;
    match bytes.first().map(|b| b >> 4) {
        Some(4) if bytes.len() >= IPV4_HEADER_BYTES => {
            let header_bytes = (usize::from(bytes[0] & 0x0F) * 4).clamp(IPV4_HEADER_BYTES, bytes.len());
            bytes[1] = bytes[1] & !3 | ecn;
            bytes[10..12].fill(0);
            let checksum = checksum::of(&bytes[..header_bytes]).to_bytes();
            bytes[10..12].copy_from_slice(&checksum);
        }
        Some(6) if bytes.len() >= IPV6_HEADER_BYTES => bytes[1] = bytes[1] & !0x30 | ecn << 4,
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outer(source: &str, destination: &str) -> OuterHeader {
        OuterHeader {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            protocol: protocol::UDP,
            traffic_class: 0xB9,
            hop_limit: 63,
            dont_fragment: true,
        }
    }

    fn packet(source: &str, destination: &str, payload: &[u8]) -> Vec<u8> {
        let header = outer(source, destination);
        let mut bytes = vec![0; header.bytes()];
        header.write(&mut bytes, header.bytes() + payload.len(), 7).unwrap();
        bytes.extend_from_slice(payload);
        bytes
    }

    #[test]
    fn a_hop_less_leaves_a_header_whose_checksum_is_right() {
        for address in ["192.0.2.1", "2001:db8::1"] {
            let address: IpAddr = address.parse().unwrap();
            for (hop_limit, number) in (0..=255).zip((0..u16::MAX).step_by(251)) {
                let header = OuterHeader {
                    source: address,
                    destination: address,
                    protocol: 50,
                    traffic_class: 3,
                    hop_limit,
                    dont_fragment: false,
                };
                let mut before = vec![0; header.bytes() + 8];
                header.write(&mut before, header.bytes() + 8, number).unwrap();
                let mut packet = before.clone();
                assert_eq!(lose_hop(&mut packet), hop_limit > 1, "{address} {hop_limit}");
                let parsed = IpHeader::parse(&packet).unwrap();
                assert_eq!(parsed.hop_limit, if hop_limit > 1 { hop_limit - 1 } else { hop_limit });
                if address.is_ipv4() {
                    assert_eq!(crate::checksum::of(&packet[..20]).to_bytes(), [0, 0], "{hop_limit} {number}");
                }
                if hop_limit > 1 {
                    regain_hop(&mut packet);
                }
                let zeros = [[0, 0], [0xFF, 0xFF]];
                let is_zero = address.is_ipv4() && zeros.contains(&[packet[10], packet[11]]);
                assert!(packet == before || is_zero, "{hop_limit} {number}");
            }
        }
        assert!(!lose_hop(&mut []) && !lose_hop(&mut [0x45; 11]) && !lose_hop(&mut [0x60; 7]));
    }

    #[test]
    fn what_is_written_is_read_back() {
        for (s, d) in [("192.0.2.1", "198.51.100.2"), ("2001:db8::1", "2001:db8::2")] {
            let bytes = packet(s, d, &[0x13, 0x88, 0x00, 0x35, 0, 8, 0, 0]);
            let header = IpHeader::parse(&bytes).unwrap();
            assert_eq!((header.source, header.destination), (s.parse().unwrap(), d.parse().unwrap()));
            assert_eq!((header.protocol, header.traffic_class, header.hop_limit), (17, 0xB9, 63));
            assert_eq!(header.total_bytes, bytes.len());
            assert_eq!(traffic_class(&bytes), 0xB9);
            assert_eq!(header.ports(&bytes), Some((5000, 53)));
            assert!(header.dont_fragment && header.fragment.is_none());
        }
    }

    #[test]
    fn every_truncation_is_refused() {
        for (s, d) in [("192.0.2.1", "198.51.100.2"), ("2001:db8::1", "2001:db8::2")] {
            let bytes = packet(s, d, &[0; 20]);
            for len in 0..bytes.len() {
                assert_eq!(IpHeader::parse(&bytes[..len]), Err(ParseError::Truncated), "{len} bytes");
            }
        }
    }

    #[test]
    fn a_flipped_bit_in_an_ipv4_header_is_noticed() {
        let bytes = packet("192.0.2.1", "198.51.100.2", &[0; 8]);
        for bit in 8..160 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(IpHeader::parse(&bad).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn ipv6_extension_headers_are_walked() {
        let mut payload = vec![protocol::DESTINATION_OPTIONS, 1];
        payload.extend([0; 14]);
        payload.extend([protocol::FRAGMENT, 0, 0, 0, 0, 0, 0, 0]);
        payload.extend([protocol::UDP, 0, 0, 1, 0, 0, 0, 9]);
        payload.extend([0, 1, 0, 2, 0, 8, 0, 0]);
        let mut bytes = packet("2001:db8::1", "2001:db8::2", &payload);
        bytes[6] = protocol::HOP_BY_HOP;
        let header = IpHeader::parse(&bytes).unwrap();
        assert_eq!((header.protocol, header.header_bytes), (protocol::UDP, 40 + 16 + 8 + 8));
        assert_eq!(header.fragment, Some(Fragment { offset_bytes: 0, more: true }));
        assert_eq!(header.ports(&bytes), Some((1, 2)));
        bytes[40 + 16 + 8 + 3] = 8; // now a later fragment: what follows is no transport header
        assert_eq!(IpHeader::parse(&bytes).unwrap().ports(&bytes), None);
        bytes[41] = 200;
        assert_eq!(IpHeader::parse(&bytes), Err(ParseError::Truncated));
    }

    /// An IPv6 packet with these headers, each a number and its bytes without Next Header; the last one
    /// names `last`.
    fn chained(headers: &[(u8, &[u8])], last: u8) -> Vec<u8> {
        let mut payload = Vec::new();
        let numbers = headers.iter().map(|(number, _)| *number).skip(1).chain([last]);
        for ((_, rest), next) in headers.iter().zip(numbers) {
            payload.push(next);
            payload.extend_from_slice(rest);
        }
        payload.extend([0, 1, 0, 2, 0, 8, 0, 0]);
        let mut bytes = packet("2001:db8::1", "2001:db8::2", &payload);
        bytes[6] = headers.first().map_or(last, |(number, _)| *number);
        bytes
    }

    const OPTIONS: (u8, &[u8]) = (protocol::DESTINATION_OPTIONS, &[0; 7]);
    const HOPS: (u8, &[u8]) = (protocol::HOP_BY_HOP, &[0; 7]);
    const ROUTE: (u8, &[u8]) = (protocol::ROUTING, &[0, 2, 0, 0, 0, 0, 0]);
    const ATOMIC: (u8, &[u8]) = (protocol::FRAGMENT, &[0; 7]);
    const FIRST: (u8, &[u8]) = (protocol::FRAGMENT, &[0, 0, 1, 0, 0, 0, 9]);
    const LATER: (u8, &[u8]) = (protocol::FRAGMENT, &[0, 0, 0x10, 0, 0, 0, 9]);

    /// RFC 8200 4.5: "The number and content of the headers preceding the Fragment header of different
    /// fragments of the same original packet may differ. Whatever headers are present, preceding the Fragment
    /// header in each fragment packet, are processed when the packets arrive, prior to queueing the fragments
    /// for reassembly. Only those headers in the Offset zero fragment packet are retained in the reassembled
    /// packet. The Next Header values in the Fragment headers of different fragments of the same original
    /// packet may differ. Only the value from the Offset zero fragment packet is used for reassembly."
    #[test]
    fn a_later_ipv6_fragment_shows_no_protocol_and_no_ports_whatever_it_says() {
        for last in [protocol::TCP, protocol::UDP, protocol::DESTINATION_OPTIONS, protocol::ICMPV6, 200] {
            for chain in [
                &[LATER][..],
                &[OPTIONS, LATER],
                &[HOPS, ROUTE, LATER],
                &[LATER, FIRST],
                &[FIRST, OPTIONS, LATER],
                &[ATOMIC, LATER],
            ] {
                let bytes = chained(chain, last);
                let header = IpHeader::parse(&bytes).unwrap();
                assert_eq!(header.next_layer_protocol(), None, "{chain:?}, then {last}");
                assert_eq!(header.ports(&bytes), None, "{chain:?}, then {last}");
            }
        }
    }

    #[test]
    fn whole_packets_and_first_fragments_show_the_protocol_at_the_end_of_their_chain() {
        for (chain, is_fragment) in [
            (&[][..], false),
            (&[OPTIONS, ROUTE, HOPS, OPTIONS], false),
            (&[ATOMIC, OPTIONS], false),
            (&[OPTIONS, ATOMIC, ATOMIC], false),
            (&[FIRST], true),
            (&[HOPS, ROUTE, FIRST, OPTIONS], true),
            // Nested: a second fragment header does not undo the first one's effect.
            (&[FIRST, ATOMIC], true),
            (&[FIRST, OPTIONS, FIRST], true),
        ] {
            let bytes = chained(chain, protocol::UDP);
            let header = IpHeader::parse(&bytes).unwrap();
            assert_eq!(header.next_layer_protocol(), Some(protocol::UDP), "{chain:?}");
            assert_eq!(header.ports(&bytes), Some((1, 2)), "{chain:?}");
            assert_eq!(header.fragment.is_some(), is_fragment, "{chain:?}");
        }
    }

    /// RFC 4301 4.4.1.1: "The Next Layer Protocol is whatever comes after any IP extension headers that are
    /// present", AH and ESP included.
    #[test]
    fn a_chain_that_ends_in_an_unknown_header_shows_no_protocol() {
        for number in 0..=u8::MAX {
            let next_layer = !matches!(number, 0 | 43 | 44 | 60 | 139 | 140 | 148..=254);
            for chain in [&[][..], &[OPTIONS], &[FIRST], &[ATOMIC, OPTIONS]] {
                let header = IpHeader::parse(&chained(chain, number));
                let shown = header.ok().and_then(|header| header.next_layer_protocol());
                // The bytes after a skipped header read as hop-by-hop options, of which there are then too
                // many.
                assert_eq!(shown, next_layer.then_some(number), "{chain:?}, then {number}");
            }
        }
        let mut bytes = packet("192.0.2.1", "198.51.100.2", &[0; 8]);
        for number in 0..=u8::MAX {
            bytes[9] = number;
            bytes[10..12].fill(0);
            let sum = checksum::of(&bytes[..20]).to_bytes();
            bytes[10..12].copy_from_slice(&sum);
            let shown = IpHeader::parse(&bytes).unwrap().next_layer_protocol();
            assert_eq!(shown, Some(number), "IPv4 has no chains");
        }
    }

    /// RFC 7112 5 requires the whole chain in the first fragment: one that ends inside it is refused before
    /// any policy lookup.
    #[test]
    fn a_first_fragment_that_ends_inside_its_chain_is_refused() {
        let bytes = chained(&[HOPS, FIRST, OPTIONS, OPTIONS], protocol::TCP);
        for len in 48 + 8..48 + 24 {
            let mut cut = bytes[..len].to_vec();
            cut[4..6].copy_from_slice(&(len as u16 - 40).to_be_bytes());
            assert_eq!(IpHeader::parse(&cut), Err(ParseError::Truncated), "{len} bytes");
        }
    }

    #[test]
    fn source_routes_are_seen_and_options_that_do_not_fit_refused() {
        let none: &[u8] = &[];
        for (options, expected) in [
            (none, Ok(false)),
            (&[1, 1, 1, 0], Ok(false)),
            (&[148, 4, 0, 0], Ok(false)),
            (&[7, 3, 4, 0], Ok(false)),
            (&[131, 3, 4, 0], Ok(true)),
            (&[1, 137, 3, 4], Ok(true)),
            (&[148, 4, 0, 0, 131, 7, 4, 10, 0, 0, 1, 0], Ok(true)),
            (&[0, 131, 3, 4], Ok(false)),
            (&[148, 5, 0, 0], Err(ParseError::BadHeader)),
            (&[148, 1, 0, 0], Err(ParseError::BadHeader)),
            (&[1, 1, 1, 148], Err(ParseError::BadHeader)),
        ] {
            let mut bytes = packet("192.0.2.1", "198.51.100.2", &[0; 8]);
            bytes.splice(20..20, options.iter().copied());
            bytes[0] = 0x45 + options.len() as u8 / 4;
            bytes[3] = bytes.len() as u8;
            bytes[10..12].fill(0);
            let sum = checksum::of(&bytes[..20 + options.len()]).to_bytes();
            bytes[10..12].copy_from_slice(&sum);
            assert_eq!(IpHeader::parse(&bytes).map(|h| h.has_source_route), expected, "{options:?}");
        }
        for (kind, expected) in [(0, true), (2, false), (4, false)] {
            let rest = [0, kind, 0, 0, 0, 0, 0];
            for chain in
                [&[(protocol::ROUTING, &rest[..])][..], &[FIRST, OPTIONS, (protocol::ROUTING, &rest[..])]]
            {
                let header = IpHeader::parse(&chained(chain, protocol::UDP)).unwrap();
                assert_eq!(header.has_source_route, expected, "routing header {kind}");
            }
        }
    }

    fn with_extension_headers(count: usize) -> Vec<u8> {
        let mut payload = [protocol::DESTINATION_OPTIONS, 0, 0, 0, 0, 0, 0, 0].repeat(count);
        payload[(count - 1) * 8] = protocol::UDP;
        payload.extend([0, 1, 0, 2, 0, 8, 0, 0]);
        let mut bytes = packet("2001:db8::1", "2001:db8::2", &payload);
        bytes[6] = protocol::DESTINATION_OPTIONS;
        bytes
    }

    #[test]
    fn eight_extension_headers_are_walked_and_longer_chains_refused() {
        for count in 1..=MAX_EXTENSION_HEADERS {
            let bytes = with_extension_headers(count);
            assert_eq!(IpHeader::parse(&bytes).unwrap().ports(&bytes), Some((1, 2)), "{count} headers");
        }
        for count in [MAX_EXTENSION_HEADERS + 1, 100] {
            assert_eq!(IpHeader::parse(&with_extension_headers(count)), Err(ParseError::BadHeader));
        }
    }

    /// Scapy 2.5: `raw(IPv6(src="fd00::1", dst="fd00::2", plen=0)
    /// / IPv6ExtHdrHopByHop(options=[Jumbo(jumboplen=65544)]))`, and after it all the bytes that it announces
    /// (RFC 2675 2).
    #[test]
    fn jumbograms_are_refused() {
        let mut bytes = crate::test_packets::hex(
            "6000000000000040fd000000000000000000000000000001fd0000000000000000000000000000023b00c204\
             00010008",
        );
        bytes.resize(40 + 65_544, 0);
        assert_eq!(IpHeader::parse(&bytes), Err(ParseError::Truncated));
        assert_eq!(crate::plain::PlainHeader::parse(&bytes), None);
        // Without the option, length 0 means that there is no payload.
        bytes[6] = protocol::NO_NEXT_HEADER;
        let header = IpHeader::parse(&bytes).unwrap();
        assert_eq!((header.total_bytes, header.payload(&bytes)), (40, &[][..]));
    }

    #[test]
    fn a_fragment_that_ends_beyond_the_longest_payload_is_refused() {
        for (offset, payload, is_good) in
            [(8191, 7, true), (8191, 8, false), (8000, 1535, true), (8000, 1536, false)]
        {
            let mut bytes = packet("192.0.2.1", "198.51.100.2", &vec![0; payload]);
            bytes[6..8].copy_from_slice(&u16::to_be_bytes(offset));
            bytes[10..12].fill(0);
            let sum = checksum::of(&bytes[..20]).to_bytes();
            bytes[10..12].copy_from_slice(&sum);
            assert_eq!(IpHeader::parse(&bytes).is_ok(), is_good, "IPv4: {offset} * 8 + {payload}");

            let mut chain = vec![protocol::UDP, 0];
            chain.extend(u16::to_be_bytes(offset << 3));
            chain.extend([0; 4]);
            chain.resize(8 + payload, 0);
            let mut bytes = packet("2001:db8::1", "2001:db8::2", &chain);
            bytes[6] = protocol::FRAGMENT;
            assert_eq!(IpHeader::parse(&bytes).is_ok(), is_good, "IPv6: {offset} * 8 + {payload}");
        }
    }

    #[test]
    fn ecn_is_set_and_the_checksum_mended() {
        for (s, d) in [("192.0.2.1", "198.51.100.2"), ("2001:db8::1", "2001:db8::2")] {
            let mut bytes = packet(s, d, &[0; 8]);
            set_ecn(&mut bytes, 3);
            assert_eq!(IpHeader::parse(&bytes).unwrap().traffic_class, 0xBB);
        }
    }
}

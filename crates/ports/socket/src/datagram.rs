//! From an outer header to the parameters of the socket API.

use crate::open::Endpoint;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use testudo_packet::DropReason;
use testudo_wire::ip::{IPV4_HEADER_BYTES, IPV6_HEADER_BYTES, IpHeader, Version};
use testudo_wire::udp::{UDP_HEADER_BYTES, UdpHeader};
use testudo_wire::{ParseError, protocol};

/// The socket that a packet leaves by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// That of an endpoint, by its index.
    Endpoint(usize),
    /// The one for packets in clear.
    Bypass(Version),
}

/// A packet with its destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Datagram {
    pub(crate) way: Way,
    pub(crate) destination: SocketAddr,
    /// Set if the socket has no address of its own.
    pub(crate) source: Option<IpAddr>,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    /// Of IPv6; 0 over IPv4.
    pub(crate) flow_label: u32,
    /// Whether the kernel is to refuse the packet, and not to fragment it, if it is too long.
    pub(crate) dont_fragment: bool,
    /// Where in the packet the bytes start that the socket sends: after the outer headers for UDP sockets, at
    /// the UDP header beside IKE, 0 for ESP, AH and in clear.
    pub(crate) start: usize,
    pub(crate) end: usize,
}

impl Datagram {
    /// Parses the outer headers of `packet`. Over IPv6 the kernel may fragment what is longer than `mtu`, and
    /// what has a fragment header, which says that it is too long for its path (RFC 6946): UDP sockets write
    /// their own.
    pub(crate) fn address<'a>(
        packet: &[u8],
        endpoints: impl Iterator<Item = &'a Endpoint> + Clone,
        mtu: usize,
    ) -> Result<Self, DropReason> {
        let mut header = IpHeader::parse(packet).map_err(reason)?;
        let is_plain = header.header_bytes == IPV6_HEADER_BYTES && header.total_bytes <= mtu;
        header.dont_fragment &= header.version == Version::V4 || is_plain;
        let way = |index| Way::Endpoint(index);
        let whole = 0..header.total_bytes;
        let content = header.header_bytes..header.total_bytes;
        match header.protocol {
            protocol::UDP if header.fragment.is_none() => {
                let udp = UdpHeader::parse(header.payload(packet)).map_err(reason)?;
                let own = |e: &Endpoint| e.encapsulation.sends(udp.source_port, udp.destination_port);
                if let Some((index, endpoint)) = find(&header, endpoints, own) {
                    // A raw socket sends the UDP header, too, and its address has no port.
                    let (removed, port) = match endpoint.encapsulation.is_udp() {
                        true => (UDP_HEADER_BYTES, udp.destination_port),
                        false => (0, 0),
                    };
                    let content = content.start + removed..content.start + udp.total_bytes;
                    return Ok(Self {
                        flow_label: flow_label(packet),
                        ..Self::new(&header, way(index), Some(endpoint), port, content)
                    });
                }
            }
            protocol::UDP => {}
            number => {
                let own = |e: &Endpoint| e.encapsulation.protocol() == number;
                if let Some((index, endpoint)) = find(&header, endpoints, own) {
                    check_identification(packet, &header)?;
                    return Ok(Self::new(&header, way(index), Some(endpoint), 0, whole));
                }
            }
        }
        Ok(Self::new(&header, Way::Bypass(header.version), None, 0, whole))
    }

    /// The datagram of `packet` if its headers equal those of the packet `before`, whose datagram is `self`,
    /// except for length and checksum: most packets of a batch follow one like them, and parsing every header
    /// again would cost as much as sending.
    pub(crate) fn of_next(&self, before: &[u8], packet: &[u8], mtu: usize) -> Option<Self> {
        let same = |range: Range<usize>| Some(packet.get(range.clone())? == before.get(range)?);
        let length =
            |at: usize| Some(usize::from(u16::from_be_bytes([*packet.get(at)?, *packet.get(at + 1)?])));
        let (udp_at, protocol_at) = match packet.first()? {
            0x45 => (IPV4_HEADER_BYTES, 9),
            first if first >> 4 == 6 => (IPV6_HEADER_BYTES, 6),
            _ => return None,
        };
        let udp_bytes = packet.len().checked_sub(udp_at)?;
        let is_alike = *packet.get(protocol_at)? == protocol::UDP
            && [udp_at, udp_at + UDP_HEADER_BYTES].contains(&self.start)
            && length(udp_at + 4)? == udp_bytes
            && if udp_at == IPV4_HEADER_BYTES {
                same(0..2)? && same(6..10)? && same(12..24)? && length(2)? == packet.len()
            } else {
                same(0..4)? && same(6..44)? && length(4)? == udp_bytes
            };
        let dont_fragment =
            if udp_at == IPV6_HEADER_BYTES { packet.len() <= mtu } else { self.dont_fragment };
        is_alike.then_some(Self { end: packet.len(), dont_fragment, ..*self })
    }

    fn new(header: &IpHeader, way: Way, endpoint: Option<&Endpoint>, port: u16, bytes: Range<usize>) -> Self {
        let is_wildcard = endpoint.is_some_and(|e| e.local.is_unspecified());
        Self {
            way,
            destination: SocketAddr::new(header.destination, port),
            source: (is_wildcard && !header.source.is_unspecified()).then_some(header.source),
            traffic_class: header.traffic_class,
            hop_limit: header.hop_limit,
            // Only sockets that make the header themselves need to be told.
            flow_label: 0,
            dont_fragment: header.dont_fragment,
            start: bytes.start,
            end: bytes.end,
        }
    }

    /// Bytes that the socket sends.
    pub(crate) fn len(&self) -> usize {
        self.end - self.start
    }

    /// Whether `self` may follow `first` in one message, which the kernel cuts into datagrams of `first`'s
    /// length.
    pub(crate) fn may_follow(&self, first: &Self) -> bool {
        self.len() <= first.len()
            && self.len() > 0
            && self.destination == first.destination
            && self.source == first.source
            && self.traffic_class == first.traffic_class
            && self.hop_limit == first.hop_limit
            && self.flow_label == first.flow_label
    }

    /// Whether the socket sends the packet's own header.
    pub(crate) fn is_whole(&self) -> bool {
        self.start == 0
    }
}

/// The flow label of an IPv6 packet (RFC 8200 3); 0 of another.
fn flow_label(packet: &[u8]) -> u32 {
    match packet.first_chunk() {
        Some(word) if word[0] >> 4 == 6 => u32::from_be_bytes(*word) & 0xF_FFFF,
        _ => 0,
    }
}

/// Refuses an IPv4 datagram whose identification of 0 the kernel would replace (raw(7)) where it must not: AH
/// covers it (RFC 4302 3.3.3.1.1.1), and all fragments of a datagram have the same (RFC 6864 4). Where DF is
/// set it stays 0, unless the datagram is a fragment already.
fn check_identification(packet: &[u8], header: &IpHeader) -> Result<(), DropReason> {
    let is_needed = header.fragment.is_some() || header.protocol == protocol::AH && !header.dont_fragment;
    let is_zero = header.version == Version::V4 && packet.get(4..6) == Some(&[0, 0]);
    if is_needed && is_zero { Err(DropReason::BadHeader) } else { Ok(()) }
}

/// The endpoint of the header's source: by its address, else one that is bound to all addresses.
fn find<'a>(
    header: &IpHeader,
    endpoints: impl Iterator<Item = &'a Endpoint> + Clone,
    own: impl Fn(&Endpoint) -> bool,
) -> Option<(usize, &'a Endpoint)> {
    let mut candidates = endpoints.enumerate().filter(|(_, e)| own(e));
    let wildcard = candidates
        .clone()
        .find(|(_, e)| e.local.is_unspecified() && e.local.is_ipv4() == header.source.is_ipv4());
    candidates.find(|(_, e)| e.local == header.source).or(wildcard)
}

fn reason(error: ParseError) -> DropReason {
    match error {
        ParseError::NotIp => DropReason::NotIp,
        ParseError::Truncated => DropReason::Truncated,
        ParseError::BadHeader => DropReason::BadHeader,
        ParseError::BadChecksum => DropReason::BadChecksum,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open::Encapsulation;
    use testudo_wire::ip::OuterHeader;

    const MTU: usize = 1280;

    fn packet(source: &str, protocol: u8) -> Vec<u8> {
        let header = OuterHeader {
            source: source.parse().unwrap(),
            destination: if source.contains(':') { "2001:db8::9" } else { "192.0.2.9" }.parse().unwrap(),
            protocol,
            traffic_class: 0xB9,
            hop_limit: 64,
            dont_fragment: true,
        };
        let mut bytes = vec![0; header.bytes() + 8 + 100];
        header.write(&mut bytes, header.bytes() + 108, 0).unwrap();
        let udp = UdpHeader { source_port: 4500, destination_port: 4501, total_bytes: 108 };
        udp.write(&mut bytes[header.bytes()..]).unwrap();
        bytes
    }

    #[test]
    fn a_packet_like_the_previous_one_is_addressed_alike_and_any_other_is_parsed() {
        for source in ["192.0.2.1", "2001:db8::1", "192.0.2.3", "2001:db8::3"] {
            let first = packet(source, protocol::UDP);
            let known = Datagram::address(&first, endpoints().iter(), MTU).unwrap();
            assert_eq!(known.of_next(&first, &first, MTU), Some(known));
            for at in 0..first.len() - 100 {
                for bit in 0..8 {
                    let mut other = first.clone();
                    other[at] ^= 1 << bit;
                    // A result must equal that of parsing again, except for checksums.
                    if let Some(datagram) = known.of_next(&first, &other, MTU) {
                        assert_eq!(datagram, known, "{source}: bit {bit} of byte {at}");
                        assert!(
                            matches!(at, 4 | 5 | 10 | 11 | 26 | 27 | 46 | 47),
                            "{source}: byte {at} differs"
                        );
                    }
                }
            }
            for length in 0..first.len() {
                assert_eq!(known.of_next(&first, &first[..length], MTU), None, "{source}: {length} bytes");
            }
        }
    }

    fn endpoints() -> Vec<Endpoint> {
        let udp = Encapsulation::Udp { port: 4500 };
        let endpoint = |local: &str, encapsulation| Endpoint { local: local.parse().unwrap(), encapsulation };
        vec![
            endpoint("192.0.2.1", udp),
            endpoint("192.0.2.1", Encapsulation::RawEsp),
            endpoint("2001:db8::1", Encapsulation::RawEsp),
            endpoint("::", udp),
            endpoint("192.0.2.1", Encapsulation::RawAh),
            endpoint("::", Encapsulation::RawAh),
            endpoint("192.0.2.3", Encapsulation::UdpBeside { port: 4500 }),
            endpoint("2001:db8::3", Encapsulation::UdpBeside { port: 4500 }),
            endpoint("192.0.2.2", Encapsulation::UdpBeside { port: 4501 }),
        ]
    }

    #[test]
    fn each_packet_finds_its_socket() {
        let address = |source, protocol| {
            let datagram = Datagram::address(&packet(source, protocol), endpoints().iter(), MTU).unwrap();
            (datagram.way, datagram.start, datagram.len(), datagram.source.is_some())
        };
        assert_eq!(address("192.0.2.1", protocol::UDP), (Way::Endpoint(0), 28, 100, false));
        assert_eq!(address("192.0.2.1", protocol::ESP), (Way::Endpoint(1), 0, 128, false));
        assert_eq!(address("2001:db8::1", protocol::ESP), (Way::Endpoint(2), 0, 148, false));
        assert_eq!(address("2001:db8::1", protocol::UDP), (Way::Endpoint(3), 48, 100, true));
        assert_eq!(address("192.0.2.1", protocol::AH), (Way::Endpoint(4), 0, 128, false));
        assert_eq!(address("2001:db8::7", protocol::AH), (Way::Endpoint(5), 0, 148, true));
        assert_eq!(address("192.0.2.3", protocol::UDP), (Way::Endpoint(6), 20, 108, false));
        assert_eq!(address("2001:db8::3", protocol::UDP), (Way::Endpoint(7), 40, 108, false));
        assert_eq!(address("192.0.2.2", protocol::AH), (Way::Bypass(Version::V4), 0, 128, false));
        assert_eq!(address("192.0.2.2", protocol::UDP), (Way::Bypass(Version::V4), 0, 128, false));
        assert_eq!(address("192.0.2.1", protocol::TCP), (Way::Bypass(Version::V4), 0, 128, false));
        assert_eq!(address("2001:db8::2", protocol::ESP), (Way::Bypass(Version::V6), 0, 148, false));
    }

    #[test]
    fn a_flow_label_is_read_and_keeps_datagrams_apart() {
        let address = |packet: &[u8]| Datagram::address(packet, endpoints().iter(), MTU).unwrap();
        let plain = packet("2001:db8::1", protocol::UDP);
        let mut labelled = plain.clone();
        labelled[1..4].copy_from_slice(&[0x9A, 0xBC, 0xDE]);
        let [first, second] = [&plain, &labelled].map(|packet| address(packet));
        assert_eq!((first.flow_label, second.flow_label), (0, 0xA_BCDE));
        assert!(second.may_follow(&second) && !second.may_follow(&first));
        assert_eq!(first.of_next(&plain, &labelled, MTU), None);
    }

    /// RFC 4302 3.3.3.1.1.1, RFC 6864 4.
    #[test]
    fn an_identification_of_zero_is_refused_where_the_kernel_would_replace_it() {
        let address = |number, flags: u16, identification: u16| {
            let mut packet = packet("192.0.2.1", number);
            packet[4..6].copy_from_slice(&identification.to_be_bytes());
            packet[6..8].copy_from_slice(&flags.to_be_bytes());
            packet[10..12].fill(0);
            let sum = testudo_wire::checksum::of(&packet[..20]).to_bytes();
            packet[10..12].copy_from_slice(&sum);
            Datagram::address(&packet, endpoints().iter(), MTU).map(|datagram| datagram.way)
        };
        const DF: u16 = 0x4000;
        const MORE: u16 = 0x2000;
        for (number, index) in [(protocol::ESP, 1), (protocol::AH, 4)] {
            for flags in [DF, 0, MORE, MORE | DF, 12] {
                assert_eq!(address(number, flags, 7), Ok(Way::Endpoint(index)), "{number}, {flags:#x}");
                let is_refused = flags != DF && (number == protocol::AH || flags != 0);
                let expected = if is_refused { Err(DropReason::BadHeader) } else { Ok(Way::Endpoint(index)) };
                assert_eq!(address(number, flags, 0), expected, "{number}, {flags:#x}");
            }
        }
    }

    #[test]
    fn a_broken_outer_header_has_its_reason() {
        let good = packet("192.0.2.1", protocol::UDP);
        let address = |bytes: &[u8]| Datagram::address(bytes, endpoints().iter(), MTU).unwrap_err();
        assert_eq!(address(&[]), DropReason::Truncated);
        assert_eq!(address(&good[..100]), DropReason::Truncated);
        assert_eq!(address(&[0; 40]), DropReason::NotIp);
        let mut bad = good.clone();
        bad[10] ^= 1;
        assert_eq!(address(&bad), DropReason::BadChecksum);
        let mut bad = good;
        bad[25] = 3;
        assert_eq!(address(&bad), DropReason::BadHeader);
    }
}

//! Rebuilds the outer headers that the kernel removed.

use crate::kernel::Incoming;
use crate::open::Endpoint;
use std::net::{IpAddr, SocketAddr};
use testudo_packet::{Buffer, DropReason};
use testudo_wire::ip::OuterHeader;
use testudo_wire::protocol;
use testudo_wire::udp::{UDP_HEADER_BYTES, UdpHeader};

/// Where the socket does not report TTL or hop limit, because nothing downstream needs it.
const HOP_LIMIT: u8 = 64;
/// IPv6 and UDP.
const MAX_BYTES: usize = 48;

/// Outer headers for payloads of one length.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Synthesized {
    bytes: [u8; MAX_BYTES],
    length: usize,
    /// Bytes of the payload that these headers are for.
    pub(crate) payload_bytes: usize,
}

/// The common part of the headers of one receive operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outer {
    pub(crate) source: SocketAddr,
    pub(crate) destination: IpAddr,
    pub(crate) content: Content,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: Option<u8>,
    /// Of IPv6.
    pub(crate) flow_label: u32,
}

/// What follows the IP header.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Content {
    /// A UDP header for this destination port, which is written, too.
    Udp(u16),
    /// A header of this number, which is a part of the payload.
    Other(u8),
}

impl Outer {
    /// The headers of a message that an endpoint received.
    pub(crate) fn of(message: &Incoming, endpoint: &Endpoint, content: Content) -> Option<Self> {
        Some(Self {
            source: message.source?,
            destination: message.about.destination.unwrap_or(endpoint.local),
            content,
            traffic_class: message.about.traffic_class,
            hop_limit: message.about.hop_limit,
            flow_label: message.about.flow_label,
        })
    }

    /// The headers for a payload of `payload_bytes`; `None` if no datagram can be that long.
    pub(crate) fn synthesize(&self, payload_bytes: usize) -> Option<Synthesized> {
        let (protocol, udp_bytes) = match self.content {
            Content::Udp(_) => (protocol::UDP, UDP_HEADER_BYTES),
            Content::Other(number) => (number, 0),
        };
        let ip = OuterHeader {
            source: self.source.ip(),
            destination: self.destination,
            protocol,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit.unwrap_or(HOP_LIMIT),
            dont_fragment: true,
        };
        let length = ip.bytes() + udp_bytes;
        let mut bytes = [0; MAX_BYTES];
        ip.write(&mut bytes, length + payload_bytes, 0).ok()?;
        if self.destination.is_ipv6() {
            let label = self.flow_label.to_be_bytes();
            bytes[1..4].iter_mut().zip(&label[1..]).for_each(|(byte, label)| *byte |= label);
        }
        if let Content::Udp(destination_port) = self.content {
            let source_port = self.source.port();
            let udp =
                UdpHeader { source_port, destination_port, total_bytes: UDP_HEADER_BYTES + payload_bytes };
            udp.write(&mut bytes[ip.bytes()..]).ok()?;
        }
        Some(Synthesized { bytes, length, payload_bytes })
    }
}

impl Synthesized {
    /// Prepends the headers to the payload in `buffer`.
    pub(crate) fn prepend_to(&self, buffer: &mut Buffer) -> Result<(), DropReason> {
        let header = buffer.prepend(self.length).map_err(|_| DropReason::NoRoom)?;
        header.copy_from_slice(&self.bytes[..self.length]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testudo_wire::ip::IpHeader;

    #[test]
    fn the_headers_read_as_what_was_received() {
        for (source, destination) in
            [("192.0.2.1:4500", "198.51.100.2"), ("[2001:db8::1]:4500", "2001:db8::2")]
        {
            for content in [Content::Udp(4501), Content::Other(protocol::AH)] {
                let outer = Outer {
                    source: source.parse().unwrap(),
                    destination: destination.parse().unwrap(),
                    content,
                    traffic_class: 0xBB,
                    hop_limit: Some(255),
                    flow_label: 0xA_BCDE,
                };
                let mut buffer = Buffer::copied(b"payload", 64, 0);
                outer.synthesize(7).unwrap().prepend_to(&mut buffer).unwrap();
                let header = IpHeader::parse(buffer.bytes()).unwrap();
                assert_eq!(header.source, outer.source.ip());
                assert_eq!(header.destination, outer.destination);
                assert_eq!((header.traffic_class, header.hop_limit), (0xBB, 255));
                let (number, ports) = match content {
                    Content::Udp(port) => (protocol::UDP, Some((4500, port))),
                    Content::Other(number) => (number, None),
                };
                assert_eq!((header.protocol, header.ports(buffer.bytes())), (number, ports));
                if header.source.is_ipv6() {
                    assert_eq!(buffer.bytes()[1..4], [0xBA, 0xBC, 0xDE]);
                }
                assert!(header.payload(buffer.bytes()).ends_with(b"payload"));
            }
        }
    }

    #[test]
    fn a_payload_beyond_any_datagram_has_no_header() {
        let outer = Outer {
            source: "192.0.2.1:4500".parse().unwrap(),
            destination: "192.0.2.2".parse().unwrap(),
            content: Content::Udp(1),
            traffic_class: 0,
            hop_limit: None,
            flow_label: 0,
        };
        assert!(outer.synthesize(65_507).is_some());
        assert!(outer.synthesize(65_508).is_none());
    }
}

//! Rebuilds the outer headers that the kernel removed.

use std::net::{IpAddr, SocketAddr};
use testudo_packet::{Buffer, DropReason};
use testudo_wire::ip::OuterHeader;
use testudo_wire::protocol;
use testudo_wire::udp::{UDP_HEADER_BYTES, UdpHeader};

/// The socket does not report the TTL, and nothing downstream needs it.
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
    /// `None` for ESP without UDP.
    pub(crate) destination_port: Option<u16>,
    pub(crate) traffic_class: u8,
}

impl Outer {
    /// The headers for a payload of `payload_bytes`; `None` if no datagram can be that long.
    pub(crate) fn synthesize(&self, payload_bytes: usize) -> Option<Synthesized> {
        let protocol = if self.destination_port.is_some() { protocol::UDP } else { protocol::ESP };
        let ip = OuterHeader {
            source: self.source.ip(),
            destination: self.destination,
            protocol,
            traffic_class: self.traffic_class,
            hop_limit: HOP_LIMIT,
            dont_fragment: true,
        };
        let udp_bytes = if self.destination_port.is_some() { UDP_HEADER_BYTES } else { 0 };
        let length = ip.bytes() + udp_bytes;
        let mut bytes = [0; MAX_BYTES];
        ip.write(&mut bytes, length + payload_bytes, 0).ok()?;
        if let Some(destination_port) = self.destination_port {
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
            for destination_port in [Some(4501), None] {
                let outer = Outer {
                    source: source.parse().unwrap(),
                    destination: destination.parse().unwrap(),
                    destination_port,
                    traffic_class: 0xBB,
                };
                let mut buffer = Buffer::copied(b"payload", 64, 0);
                outer.synthesize(7).unwrap().prepend_to(&mut buffer).unwrap();
                let header = IpHeader::parse(buffer.bytes()).unwrap();
                assert_eq!(header.source, outer.source.ip());
                assert_eq!(header.destination, outer.destination);
                assert_eq!(header.traffic_class, 0xBB);
                assert_eq!(header.ports(buffer.bytes()), destination_port.map(|p| (4500, p)));
                assert!(header.payload(buffer.bytes()).ends_with(b"payload"));
            }
        }
    }

    #[test]
    fn a_payload_beyond_any_datagram_has_no_header() {
        let outer = Outer {
            source: "192.0.2.1:4500".parse().unwrap(),
            destination: "192.0.2.2".parse().unwrap(),
            destination_port: Some(1),
            traffic_class: 0,
        };
        assert!(outer.synthesize(65_507).is_some());
        assert!(outer.synthesize(65_508).is_none());
    }
}

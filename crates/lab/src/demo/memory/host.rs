//! A host of a site, without a kernel: builds datagrams, and echoes what it receives.

use std::net::IpAddr;

use testudo_wire::checksum::Sum;
use testudo_wire::ip::OuterHeader;
use testudo_wire::protocol::{ICMP, ICMPV6, UDP};

use crate::capture::Ip;
use crate::error::{LabError, io};

/// Bytes of a UDP header (RFC 768), and of an ICMP echo header (RFC 792).
const HEADER_BYTES: usize = 8;
/// Source and destination port: an arbitrary one, and the echo service (RFC 862).
const PORTS: [u16; 2] = [40_000, 7];

/// The addresses of a datagram.
#[derive(Debug, Clone, Copy)]
pub(super) struct Route {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
}

impl Route {
    fn back(self) -> Self {
        Self { source: self.destination, destination: self.source }
    }

    fn icmp(self) -> u8 {
        if self.source.is_ipv6() { ICMPV6 } else { ICMP }
    }

    /// An ICMP echo request or reply; its checksum is filled in here.
    pub(super) fn echo(self, message: &[u8]) -> Result<Vec<u8>, LabError> {
        self.datagram(self.icmp(), message, 2)
    }

    /// A UDP datagram.
    pub(super) fn udp(self, data: &[u8]) -> Result<Vec<u8>, LabError> {
        let length = u16::try_from(HEADER_BYTES + data.len()).unwrap_or(u16::MAX);
        let header = [PORTS[0], PORTS[1], length, 0].map(u16::to_be_bytes);
        self.datagram(UDP, &[header.as_flattened(), data].concat(), 6)
    }

    /// A datagram with `message`, whose checksum field is at `checksum_at`.
    fn datagram(self, protocol: u8, message: &[u8], checksum_at: usize) -> Result<Vec<u8>, LabError> {
        let Self { source, destination } = self;
        let header = OuterHeader {
            source,
            destination,
            protocol,
            traffic_class: 0,
            hop_limit: 64,
            dont_fragment: false,
        };
        let start = header.bytes();
        let mut packet = vec![0; start];
        packet.extend_from_slice(message);
        let bytes = packet.len();
        let invalid = |_| io("build a datagram")(std::io::ErrorKind::InvalidInput.into());
        header.write(&mut packet, bytes, 0).map_err(invalid)?;
        // In ICMP (RFC 792), the sum covers the message alone; in UDP and ICMPv6 also addresses, protocol and
        // length.
        let sum = match (protocol, u32::try_from(message.len())) {
            (ICMP, _) | (_, Err(_)) => Sum::default(),
            (_, Ok(length)) => Sum::default().pseudo_header(source, destination, protocol, length),
        };
        if let Some(field) = packet.get_mut(start + checksum_at..start + checksum_at + 2) {
            field.fill(0);
        }
        let checksum = sum.bytes(&packet[start..]).finish().to_bytes();
        // RFC 768: a sum of zero is sent as all ones.
        let checksum = if checksum == [0; 2] && protocol == UDP { [0xff; 2] } else { checksum };
        if let Some(field) = packet.get_mut(start + checksum_at..start + checksum_at + 2) {
            field.copy_from_slice(&checksum);
        }
        Ok(packet)
    }
}

/// The addresses of `packet`, its protocol, and the bytes after its IP header.
fn message(packet: &[u8]) -> Option<(Route, u8, &[u8])> {
    let ip = Ip::parse(packet)?;
    Some((Route { source: ip.source, destination: ip.destination }, ip.protocol, ip.payload()))
}

/// The data of a UDP datagram.
pub(super) fn udp_data(packet: &[u8]) -> Option<&[u8]> {
    message(packet).filter(|(_, protocol, _)| *protocol == UDP)?.2.get(HEADER_BYTES..)
}

/// The message of an ICMP echo.
pub(super) fn echo_message(packet: &[u8]) -> Option<&[u8]> {
    let (route, protocol, message) = message(packet)?;
    (protocol == route.icmp()).then_some(message)
}

/// The host's answer to `packet`: the reply to a ping, or the data of a UDP datagram echoed.
pub(super) fn reflect(packet: &[u8]) -> Option<Vec<u8>> {
    const REQUESTS: [u8; 2] = [8, 128];
    let (route, protocol, message) = message(packet)?;
    if protocol == UDP {
        return route.back().udp(message.get(HEADER_BYTES..)?).ok();
    }
    let mut message = message.to_vec();
    let kind = message.first_mut().filter(|kind| protocol == route.icmp() && REQUESTS.contains(kind))?;
    // A reply is 0 (RFC 792), or 129 (RFC 4443 4.2).
    *kind = if protocol == ICMP { 0 } else { 129 };
    route.back().echo(&message).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use testudo_wire::ip::IpHeader;

    fn routes() -> [Route; 2] {
        [("10.1.0.2", "10.2.0.2"), ("fd00:1::2", "fd00:2::2")].map(|(source, destination)| Route {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
        })
    }

    #[test]
    fn datagrams_are_those_that_the_gateways_parser_and_checksum_accept() {
        for route in routes() {
            for (packet, protocol) in [
                (route.udp(b"data").unwrap(), UDP),
                (route.echo(&[8, 0, 0, 0, 1, 2, 0, 7, 5]).unwrap(), route.icmp()),
            ] {
                let header = IpHeader::parse(&packet).unwrap();
                assert_eq!((header.source, header.destination), (route.source, route.destination));
                assert_eq!((header.protocol, header.total_bytes), (protocol, packet.len()));
                let payload = header.payload(&packet);
                let length = u32::try_from(payload.len()).unwrap();
                let sum = match protocol {
                    ICMP => Sum::default(),
                    _ => Sum::default().pseudo_header(route.source, route.destination, protocol, length),
                };
                assert!(sum.bytes(payload).finish().is_intact());
            }
        }
    }

    #[test]
    fn a_request_is_answered_and_an_answer_is_not() {
        for (route, kind, reply) in
            routes().into_iter().zip([(8, 0), (128, 129)]).map(|(r, (kind, reply))| (r, kind, reply))
        {
            let answer = reflect(&route.echo(&[kind, 0, 0, 0, 1, 2, 0, 7, 5]).unwrap()).unwrap();
            let (back, _, message) = super::message(&answer).unwrap();
            assert_eq!((back.source, back.destination), (route.destination, route.source));
            assert_eq!((message[0], &message[4..]), (reply, &[1, 2, 0, 7, 5][..]));
            assert!(reflect(&answer).is_none());
            let answer = reflect(&route.udp(b"data").unwrap()).unwrap();
            assert_eq!(udp_data(&answer), Some(&b"data"[..]));
            assert_eq!(echo_message(&answer), None);
        }
    }

    #[test]
    fn truncated_packets_are_not_answered() {
        let packet = routes()[0].udp(b"data").unwrap();
        for length in 0..28 {
            assert!(reflect(&packet[..length]).is_none(), "{length} bytes");
        }
    }
}

//! "Packet too big": what routers say of the datagrams that a port has sent (RFC 1191, RFC 8201).
//!
//! The kernel takes ICMP errors for itself. A raw socket of ICMP gets a copy of each, whole, with all that
//! the router quotes: the gateway compares SPI and sequence number before it believes one (RFC 4301 8.2.1).
//! The error queues of the other sockets (`IP_RECVERR`) would give less, since UDP's lack the quoted header,
//! and cost more: every ICMP error, forged or not, would make the next transmission fail.
//!
//! Only errors about a datagram of one of the port's endpoints are passed on; all others are about other
//! programs of this host. The kernel filters out what is not "too big" or "unreachable".

use crate::channel::is_fatal;
use crate::error::OpenError;
use crate::header::{Content, Outer};
use crate::kernel::{Incoming, MessageSocket};
use crate::open::{self, Encapsulation, Endpoint, SocketConfig};
use crate::sys::Socket;
use crate::udp_receive::Received;
use arrayvec::ArrayVec;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::BorrowedFd;
use testudo_packet::{Batch, Buffer, Pool};
use testudo_wire::icmp_error::{IcmpError, IcmpErrorKind, QuotedHeader, QuotedPacket};
use testudo_wire::ip::{IpHeader, Version};
use testudo_wire::protocol;

/// Errors that are taken at a time: an SA's path MTU changes once a second at most.
const AT_A_TIME: usize = 8;

/// The ICMP errors about datagrams of some endpoints, for a port that sends and receives these by a device of
/// its own: the kernel still gets the errors.
pub struct IcmpErrors {
    sockets: Vec<ErrorSocket<Socket>>,
    endpoints: Vec<Endpoint>,
    received: Received,
}

impl IcmpErrors {
    /// Opens sockets for the IP versions of the configuration's endpoints, at its interface; none of these
    /// is opened itself. `None` without CAP_NET_RAW.
    ///
    /// # Errors
    /// [`OpenError`], as of a port.
    pub fn open(config: &SocketConfig) -> Result<Option<Self>, OpenError> {
        let open = |endpoints: &[Endpoint]| ErrorSocket::open_all(endpoints, config);
        let mut endpoints = config.endpoints.clone();
        let Some(mut sockets) = open(&endpoints)? else { return Ok(None) };
        let has = |sockets: &[ErrorSocket<Socket>], end: &Endpoint| {
            sockets.iter().any(|socket| socket.version == Version::of(end.local))
        };
        for end in &config.optional {
            if !has(&sockets, end) {
                match open(&[*end]) {
                    Err(OpenError::NoIpv6(_)) => continue,
                    outcome => sockets.extend(outcome?.into_iter().flatten()),
                }
            }
            endpoints.push(*end);
        }
        Ok(Some(Self { sockets, endpoints, received: Received::default() }))
    }

    /// Adds the errors that have come to `batch`, as the datagrams that they came in, and returns how many.
    ///
    /// # Errors
    /// The sockets will never work again.
    pub fn receive(&mut self, pool: &mut Pool, batch: &mut Batch) -> io::Result<usize> {
        let before = batch.len();
        for socket in &self.sockets {
            match socket.receive(self.endpoints.iter(), pool, batch, &mut self.received) {
                Err(error) if is_fatal(&error) => return Err(error),
                _ => {}
            }
        }
        Ok(batch.len() - before)
    }

    /// What becomes readable when there are some.
    pub fn readiness(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sockets.iter().filter_map(|socket| socket.socket.readiness())
    }

    /// Packets and bytes that were received.
    #[must_use]
    pub fn received(&self) -> (u64, u64) {
        (self.received.packets, self.received.bytes)
    }
}

/// A socket that hears the ICMP errors of one IP version.
pub(crate) struct ErrorSocket<S> {
    pub(crate) socket: S,
    version: Version,
}

impl ErrorSocket<Socket> {
    /// Sockets for the IP versions of these endpoints. `None` where one is not permitted: it needs
    /// CAP_NET_RAW, which ESP in UDP does without.
    pub(crate) fn open_all(
        endpoints: &[Endpoint],
        config: &SocketConfig,
    ) -> Result<Option<Vec<Self>>, OpenError> {
        let mut sockets = Vec::new();
        for version in [Version::V4, Version::V6] {
            if endpoints.iter().any(|end| Version::of(end.local) == version) {
                match open::icmp(version, config) {
                    Ok(socket) => sockets.push(Self::new(version, socket)),
                    Err(OpenError::NotPermitted { .. }) => return Ok(None),
                    Err(other) => return Err(other),
                }
            }
        }
        Ok(Some(sockets))
    }
}

impl<S: MessageSocket> ErrorSocket<S> {
    pub(crate) fn new(version: Version, socket: S) -> Self {
        Self { socket, version }
    }

    /// Adds errors about datagrams of these endpoints to `batch`, as the datagrams that they came in.
    ///
    /// # Errors
    /// Those of recvmmsg(2).
    pub(crate) fn receive<'a>(
        &self,
        endpoints: impl Iterator<Item = &'a Endpoint> + Clone,
        pool: &mut Pool,
        batch: &mut Batch,
        done: &mut Received,
    ) -> io::Result<()> {
        // An error is at most 576 bytes, or 1,280 (RFC 1812 4.3.2.3, RFC 4443 2.4).
        let packet_bytes = pool.frame_packet_bytes();
        let mut staged = Batch::new();
        pool.pop_many(batch.remaining_capacity().min(AT_A_TIME), &mut staged);
        if staged.is_empty() {
            return Ok(());
        }
        let mut incoming: ArrayVec<Incoming, AT_A_TIME> = ArrayVec::new();
        let outcome = self.receive_into(&mut staged, packet_bytes, &mut incoming);
        let before = done.packets;
        let mut incoming = incoming.iter();
        for mut buffer in staged.drain(..) {
            let is_error = incoming.next().is_some_and(|message| {
                self.complete(message, packet_bytes, &mut buffer)
                    && concerns(buffer.bytes(), endpoints.clone())
            });
            if is_error {
                done.packets += 1;
                done.bytes += buffer.len() as u64;
                batch.push(buffer);
            } else {
                pool.recycle(buffer);
            }
        }
        done.calls += u64::from(done.packets > before);
        outcome
    }

    fn receive_into(
        &self,
        staged: &mut Batch,
        packet_bytes: usize,
        received: &mut ArrayVec<Incoming, AT_A_TIME>,
    ) -> io::Result<()> {
        let mut slices: ArrayVec<[IoSliceMut<'_>; 1], AT_A_TIME> = staged
            .iter_mut()
            .map(|buffer| [IoSliceMut::new(&mut buffer.receive_area()[..packet_bytes])])
            .collect();
        let mut messages: ArrayVec<&mut [IoSliceMut<'_>], AT_A_TIME> =
            slices.iter_mut().map(|slice| &mut slice[..]).collect();
        self.socket.receive_many(&mut messages, &mut [], received)
    }

    /// Makes a whole datagram of a message: over IPv6 the kernel removes its header. Whether it could.
    fn complete(&self, message: &Incoming, packet_bytes: usize, buffer: &mut Buffer) -> bool {
        if message.cut || message.bytes > packet_bytes {
            return false;
        }
        buffer.set_len(message.bytes);
        if self.version == Version::V4 {
            return true;
        }
        let any = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
        // The endpoint gives an address only where the kernel does not, which has been asked to.
        let nobody = Endpoint { local: any, encapsulation: Encapsulation::RawEsp };
        let outer = Outer::of(message, &nobody, Content::Other(protocol::ICMPV6));
        let headers = outer.and_then(|outer| outer.synthesize(buffer.len()));
        headers.is_some_and(|headers| headers.prepend_to(buffer).is_ok())
    }
}

/// Whether a datagram says "too big" of one that an endpoint has sent.
fn concerns<'a>(datagram: &[u8], endpoints: impl Iterator<Item = &'a Endpoint>) -> bool {
    let header = IpHeader::parse(datagram);
    let error = header.ok().and_then(|header| IcmpError::parse(&header, datagram).ok()?);
    let Some(IcmpError { kind: IcmpErrorKind::TooBig { .. }, quoted }) = error else { return false };
    let mut endpoints = endpoints;
    endpoints.any(|endpoint| is_of(&quoted, endpoint))
}

/// Whether a quoted datagram shows what those of an endpoint show.
fn is_of(quoted: &QuotedPacket, endpoint: &Endpoint) -> bool {
    let has_header = match (endpoint.encapsulation, quoted.header) {
        (end, Some(QuotedHeader::Udp { source_port, destination_port, .. })) => {
            end.sends(source_port, destination_port)
        }
        (Encapsulation::RawEsp, Some(QuotedHeader::Esp { .. })) => true,
        (Encapsulation::RawAh, Some(QuotedHeader::Ah { .. })) => true,
        (Encapsulation::RawVpe { number }, _) => quoted.protocol == number && quoted.vpe.is_some(),
        _ => false,
    };
    let is_any = endpoint.local.is_unspecified() && Version::of(endpoint.local) == quoted.version;
    has_header && (is_any || endpoint.local == quoted.source)
}

#[cfg(test)]
mod tests {
    use super::*;
    use testudo_wire::icmp::{MAX_TOO_BIG_BYTES, too_big};
    use testudo_wire::ip::OuterHeader;
    use testudo_wire::udp::UdpHeader;

    /// A datagram from `source`, and what a router says of it.
    fn error_about(source: &str, number: u8, port: u16) -> Vec<u8> {
        let source: IpAddr = source.parse().unwrap();
        let is_v4 = source.is_ipv4();
        let [destination, router] =
            if is_v4 { ["192.0.2.9", "203.0.113.1"] } else { ["2001:db8::9", "2001:db8:f::1"] };
        let outer = OuterHeader {
            source,
            destination: destination.parse().unwrap(),
            protocol: number,
            traffic_class: 0,
            hop_limit: 60,
            dont_fragment: true,
        };
        let mut datagram = vec![0x11; 1400];
        let ip_bytes = outer.bytes();
        outer.write(&mut datagram, 1400, 0).unwrap();
        if number == protocol::UDP {
            let udp = UdpHeader { source_port: port, destination_port: 4500, total_bytes: 1400 - ip_bytes };
            udp.write(&mut datagram[ip_bytes..]).unwrap();
        }
        let header = IpHeader::parse(&datagram).unwrap();
        let mut message = [0; MAX_TOO_BIG_BYTES];
        let length = too_big(&header, &datagram, 1300, router.parse().unwrap(), &mut message).unwrap();
        message[..length.unwrap()].to_vec()
    }

    #[test]
    fn errors_about_the_datagrams_of_an_endpoint_concern_it_and_no_others() {
        let end = |local: &str, encapsulation| Endpoint { local: local.parse().unwrap(), encapsulation };
        let udp = Encapsulation::Udp { port: 4500 };
        let (esp, ah) = (Encapsulation::RawEsp, Encapsulation::RawAh);
        let vpe = |number| Encapsulation::RawVpe { number };
        for (local, any, other) in
            [("192.0.2.1", "0.0.0.0", "192.0.2.2"), ("2001:db8::1", "::", "2001:db8::2")]
        {
            let errors = [
                (protocol::ESP, 0, esp),
                (protocol::AH, 0, ah),
                (protocol::UDP, 4500, udp),
                (253, 0, vpe(253)),
                (protocol::UDP, 4502, Encapsulation::UdpBeside { port: 4502 }),
            ];
            for (number, port, own) in errors {
                let error = error_about(local, number, port);
                let others = [
                    Encapsulation::Udp { port: 4501 },
                    Encapsulation::UdpBeside { port: 4502 },
                    vpe(253),
                    vpe(254),
                ];
                for encapsulation in [esp, ah, udp].into_iter().chain(others) {
                    let is_own = encapsulation == own;
                    assert_eq!(
                        concerns(&error, [end(local, encapsulation)].iter()),
                        is_own,
                        "{local} {number}"
                    );
                    assert_eq!(concerns(&error, [end(any, encapsulation)].iter()), is_own);
                    assert!(!concerns(&error, [end(other, encapsulation)].iter()));
                }
                let wrong_version = if local.contains(':') { "0.0.0.0" } else { "::" };
                assert!(!concerns(&error, [end(wrong_version, own)].iter()));
            }
            assert!(!concerns(&error_about(local, protocol::TCP, 0), [end(any, esp), end(any, udp)].iter()));
        }
        let mut unreachable = error_about("192.0.2.1", protocol::ESP, 0);
        // Port unreachable, with the difference in the checksum (RFC 1624 3).
        unreachable[21] = 3;
        unreachable[23] += 1;
        assert!(!concerns(&unreachable, [end("192.0.2.1", esp)].iter()));
        assert!(!concerns(&[], [end("192.0.2.1", esp)].iter()));
    }
}

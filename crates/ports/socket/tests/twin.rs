//! The port over a socket in memory.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use arrayvec::ArrayVec;
use std::io::{self, IoSliceMut};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use testudo_packet::{Batch, Buffer, Pool, Port};
use testudo_port_socket::{
    About, Bypass, ControlArea, Encapsulation, Endpoint, Incoming, MessageSocket, Outgoing, SocketPort,
};
use testudo_wire::icmp::{self, MAX_TOO_BIG_BYTES};
use testudo_wire::ip::{IpHeader, OuterHeader, Version};
use testudo_wire::protocol;

/// Takes this many messages, one per call, and is then unusable.
struct Ending(AtomicUsize);

impl MessageSocket for Ending {
    fn receive(&self, _: &mut [IoSliceMut<'_>]) -> io::Result<Incoming> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn receive_many<const N: usize>(
        &self,
        _: &mut [&mut [IoSliceMut<'_>]],
        _: &mut [ControlArea],
        _: &mut ArrayVec<Incoming, N>,
    ) -> io::Result<()> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn send_many(&self, _: &[Outgoing<'_>]) -> io::Result<usize> {
        let left = self.0.load(Ordering::Relaxed);
        self.0.store(left.saturating_sub(1), Ordering::Relaxed);
        if left == 0 { Err(io::Error::from_raw_os_error(libc::EBADF)) } else { Ok(1) }
    }

    fn set_dont_fragment(&self, _: IpAddr, _: bool) -> io::Result<()> {
        Ok(())
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A socket that has these messages, from `2001:db8:f::1` to `2001:db8::1` as far as it says.
struct Hearing(Mutex<Vec<Vec<u8>>>);

impl MessageSocket for Hearing {
    fn receive(&self, _: &mut [IoSliceMut<'_>]) -> io::Result<Incoming> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn receive_many<const N: usize>(
        &self,
        messages: &mut [&mut [IoSliceMut<'_>]],
        _: &mut [ControlArea],
        received: &mut ArrayVec<Incoming, N>,
    ) -> io::Result<()> {
        let mut waiting = self.0.lock().unwrap();
        for slices in messages.iter_mut().take(waiting.len()) {
            let message = waiting.remove(0);
            slices[0][..message.len()].copy_from_slice(&message);
            let about = About { destination: Some("2001:db8::1".parse().unwrap()), ..About::default() };
            let source = Some("[2001:db8:f::1]:0".parse().unwrap());
            received.push(Incoming { bytes: message.len(), cut: false, source, about });
        }
        if received.is_empty() { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
    }

    fn send_many(&self, _: &[Outgoing<'_>]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn set_dont_fragment(&self, _: IpAddr, _: bool) -> io::Result<()> {
        Ok(())
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// What a router says of a datagram of ESP from `source`.
fn too_big(source: &str) -> Vec<u8> {
    let source: IpAddr = source.parse().unwrap();
    let is_v4 = source.is_ipv4();
    let [destination, router] =
        if is_v4 { ["192.0.2.9", "203.0.113.1"] } else { ["2001:db8::9", "2001:db8:f::1"] };
    let header = OuterHeader {
        source,
        destination: destination.parse().unwrap(),
        protocol: protocol::ESP,
        traffic_class: 0,
        hop_limit: 60,
        dont_fragment: true,
    };
    let mut datagram = vec![0x11; 1400];
    header.write(&mut datagram, 1400, 0).unwrap();
    let header = IpHeader::parse(&datagram).unwrap();
    let mut message = [0; MAX_TOO_BIG_BYTES];
    let length = icmp::too_big(&header, &datagram, 1300, router.parse().unwrap(), &mut message).unwrap();
    message[..length.unwrap()].to_vec()
}

/// RFC 1191, RFC 8201: the gateway gets the datagrams that errors about its own came in, and no others.
#[test]
fn routers_are_heard_about_datagrams_of_the_port_and_about_no_others() {
    for (local, version, stranger) in
        [("192.0.2.1", Version::V4, "192.0.2.3"), ("2001:db8::1", Version::V6, "2001:db8::3")]
    {
        let (error, other) = (too_big(local), too_big(stranger));
        // The kernel removes the header of IPv6.
        let front = if version == Version::V4 { 0 } else { 40 };
        let messages = vec![other[front..].to_vec(), error[front..].to_vec(), vec![3; 7]];
        let endpoint = Endpoint { local: local.parse().unwrap(), encapsulation: Encapsulation::RawEsp };
        let quiet = Hearing(Mutex::new(Vec::new()));
        let port = SocketPort::over([(endpoint, quiet)], Bypass { v4: None, v6: None });
        assert!(!port.hears_icmp_errors());
        let mut port = port.with_icmp([(version, Hearing(Mutex::new(messages)))]);
        let (mut pool, mut batch) = (Pool::new(8, 2048), Batch::new());
        assert_eq!(port.rx(&mut pool, &mut batch).unwrap(), 1);
        let heard = batch[0].bytes();
        let [heard_header, sent_header] = [heard, &error].map(|bytes| IpHeader::parse(bytes).unwrap());
        assert_eq!(heard_header.source, sent_header.source);
        assert_eq!(heard_header.destination, endpoint.local);
        assert_eq!(heard_header.payload(heard), sent_header.payload(&error));
        assert_eq!(pool.available(), pool.size() - 1);
    }
}

#[test]
fn packets_sent_before_a_socket_became_unusable_are_counted() {
    let local = "192.0.2.1".parse().unwrap();
    let header = OuterHeader {
        source: local,
        destination: "192.0.2.9".parse().unwrap(),
        protocol: protocol::ESP,
        traffic_class: 0,
        hop_limit: 64,
        dont_fragment: true,
    };
    let mut packet = [0; 100];
    header.write(&mut packet, 100, 0).unwrap();
    let endpoint = Endpoint { local, encapsulation: Encapsulation::RawEsp };
    let socket = Ending(AtomicUsize::new(2));
    let mut port = SocketPort::over([(endpoint, socket)], Bypass { v4: None, v6: None });
    let mut batch: Batch = (0..5).map(|_| Buffer::copied(&packet, 0, 0)).collect();
    port.tx(&mut Pool::new(8, 2048), &mut batch).unwrap_err();
    let counters = port.counters();
    assert_eq!((batch.len(), counters.tx_packets, counters.tx_bytes, counters.tx_calls), (3, 2, 200, 2));
}

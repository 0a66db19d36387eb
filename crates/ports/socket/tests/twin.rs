//! The port over a socket in memory.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use arrayvec::ArrayVec;
use std::io::{self, IoSliceMut};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use testudo_packet::{Batch, Buffer, Pool, Port};
use testudo_port_socket::{
    Bypass, ControlArea, Encapsulation, Endpoint, Incoming, MessageSocket, Outgoing, SocketPort,
};
use testudo_wire::ip::OuterHeader;
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

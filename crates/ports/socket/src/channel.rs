//! One open endpoint: its socket and what was learned about it.

use crate::error::OpenError;
use crate::kernel::MessageSocket;
use crate::open::{self, Endpoint, Role, SocketConfig};
use crate::raw_receive::RawReceiver;
use crate::sys::Socket;
use crate::udp_receive::{Received, UdpReceiver};
use std::io;
use testudo_packet::{Batch, Pool};

/// Tries per call: each pending ICMP error about a peer uses up one.
const RETRIES: usize = 8;

/// An open endpoint.
pub(crate) struct Channel<S> {
    pub(crate) socket: S,
    pub(crate) endpoint: Endpoint,
    receiver: Receiver,
    /// Whether several datagrams may go as one message (`UDP_SEGMENT`).
    pub(crate) joins: bool,
    dont_fragment: bool,
}

enum Receiver {
    Udp(Box<UdpReceiver>),
    Raw(RawReceiver),
    Nothing,
}

impl Channel<Socket> {
    pub(crate) fn open(endpoint: Endpoint, config: &SocketConfig, role: Role) -> Result<Self, OpenError> {
        open::endpoint(endpoint, config, role).map(|(socket, endpoint)| Self::new(endpoint, socket))
    }
}

impl<S: MessageSocket> Channel<S> {
    pub(crate) fn new(endpoint: Endpoint, socket: S) -> Self {
        let is_udp = endpoint.encapsulation.is_udp();
        let receiver = match endpoint.encapsulation.receives() {
            false => Receiver::Nothing,
            true if is_udp => Receiver::Udp(Box::new(UdpReceiver::new())),
            true => Receiver::Raw(RawReceiver::new(&endpoint)),
        };
        Self { socket, endpoint, receiver, joins: is_udp, dont_fragment: true }
    }

    /// Fills `batch` from the socket.
    ///
    /// # Errors
    /// Only those that mean that the socket is unusable; those that a peer or a router caused are not
    /// returned.
    pub(crate) fn receive(
        &mut self,
        pool: &mut Pool,
        batch: &mut Batch,
        done: &mut Received,
    ) -> io::Result<()> {
        for _ in 0..RETRIES {
            let outcome = match &mut self.receiver {
                Receiver::Udp(receiver) => receiver.receive(&self.socket, &self.endpoint, pool, batch, done),
                Receiver::Raw(receiver) => receiver.receive(&self.socket, &self.endpoint, pool, batch, done),
                Receiver::Nothing => return Ok(()),
            };
            match outcome {
                Err(error) if is_fatal(&error) => return Err(error),
                // An ICMP error about an earlier packet, reported once: the next call returns the datagrams
                // after it.
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {}
                _ => return Ok(()),
            }
        }
        Ok(())
    }

    /// From now on, the kernel fragments datagrams that are too long, or refuses them (and sets DF over
    /// IPv4). Datagrams of ESP and AH bring their own DF.
    pub(crate) fn set_dont_fragment(&mut self, wanted: bool) -> io::Result<()> {
        if self.dont_fragment != wanted && self.endpoint.encapsulation.has_kernels_header() {
            self.socket.set_dont_fragment(self.endpoint.local, wanted)?;
            self.dont_fragment = wanted;
        }
        Ok(())
    }
}

/// Whether the socket will never work again.
pub(crate) fn is_fatal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBADF | libc::ENOTSOCK | libc::EFAULT | libc::EOPNOTSUPP))
}

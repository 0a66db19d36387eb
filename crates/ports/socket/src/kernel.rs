//! What a socket does for the port: messages in, messages out. The kernel's, or a twin in memory.

use crate::address::RawAddress;
use crate::control::{About, Control};
use arrayvec::ArrayVec;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

/// A socket that passes messages and what is to be known of them. No call waits.
pub trait MessageSocket: Send {
    /// Receives one message, scattered over `slices`.
    ///
    /// # Errors
    /// Those of recvmsg(2); `WouldBlock` if there is none now.
    fn receive(&self, slices: &mut [IoSliceMut<'_>]) -> io::Result<Incoming>;

    /// Receives up to `messages.len()` messages, at most `N`, each scattered over its own slices, and puts what is to be known of them in
    /// `received`, instead of what was there.
    ///
    /// # Errors
    /// Those of recvmmsg(2); nothing received is one, `WouldBlock`.
    fn receive_many<const N: usize>(
        &self,
        messages: &mut [&mut [IoSliceMut<'_>]],
        received: &mut ArrayVec<Incoming, N>,
    ) -> io::Result<()>;

    /// Sends messages in order, at most 64, and returns how many were taken: at least one.
    ///
    /// # Errors
    /// Those of sendmmsg(2), about the first message.
    fn send_many(&self, messages: &[Outgoing<'_>]) -> io::Result<usize>;

    /// Whether datagrams that the socket, bound to `local`, sends from now on carry DF.
    ///
    /// # Errors
    /// Those of setsockopt(2).
    fn set_dont_fragment(&self, local: IpAddr, wanted: bool) -> io::Result<()>;

    /// What to wait for messages on; `None` where there is nothing to wait for.
    fn readiness(&self) -> Option<BorrowedFd<'_>>;
}

/// A message to be sent: one datagram, or several if its control data asks for segmentation.
#[derive(Debug)]
pub struct Outgoing<'a> {
    pub(crate) destination: RawAddress,
    pub(crate) control: Control,
    pub(crate) slices: &'a [IoSlice<'a>],
}

impl Outgoing<'_> {
    /// Where it goes.
    #[must_use]
    pub fn destination(&self) -> Option<SocketAddr> {
        self.destination.read(self.destination.bytes().len())
    }

    /// What goes beside it, as cmsg(3) has it.
    #[must_use]
    pub fn control(&self) -> &[u8] {
        self.control.bytes()
    }

    /// What is in it, one slice a packet.
    #[must_use]
    pub fn slices(&self) -> &[IoSlice<'_>] {
        self.slices
    }
}

/// A message that was received.
#[derive(Debug, Clone, Copy)]
pub struct Incoming {
    /// Bytes of the message: more than were asked for if it was cut.
    pub bytes: usize,
    /// Whether there was no room for all of it.
    pub cut: bool,
    /// The sender, if the kernel gave an IP address.
    pub source: Option<SocketAddr>,
    /// What came beside it.
    pub about: About,
}

//! The socket operations that the port needs: messages in, messages out. By the kernel, or by a fake in
//! memory.

use crate::address::RawAddress;
use crate::control::{About, Control, ControlArea};
use arrayvec::ArrayVec;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

/// A socket that receives and sends messages with their control data. No call blocks.
pub trait MessageSocket: Send {
    /// Receives one message, scattered over `slices`.
    ///
    /// # Errors
    /// Those of recvmsg(2); `WouldBlock` if there is none now.
    fn receive(&self, slices: &mut [IoSliceMut<'_>]) -> io::Result<Incoming>;

    /// Receives up to `messages.len()` messages, at most `N`, each scattered over its own slices, and
    /// replaces the content of `received` with the information about them. `controls` is empty, or has an
    /// area for each message, which then holds the message's control data.
    ///
    /// # Errors
    /// Those of recvmmsg(2); if nothing was received, that is one too: `WouldBlock`.
    fn receive_many<const N: usize>(
        &self,
        messages: &mut [&mut [IoSliceMut<'_>]],
        controls: &mut [ControlArea],
        received: &mut ArrayVec<Incoming, N>,
    ) -> io::Result<()>;

    /// Sends messages in order, at most 64, and returns how many were accepted: at least one.
    ///
    /// # Errors
    /// Those of sendmmsg(2), about the first message.
    fn send_many(&self, messages: &[Outgoing<'_>]) -> io::Result<usize>;

    /// Whether datagrams that the UDP socket, bound to `local`, sends from now on carry DF.
    ///
    /// # Errors
    /// Those of setsockopt(2).
    fn set_dont_fragment(&self, local: IpAddr, wanted: bool) -> io::Result<()>;

    /// The descriptor to wait on for messages; `None` if there is nothing to wait for.
    fn readiness(&self) -> Option<BorrowedFd<'_>>;
}

/// A message to be sent: one datagram, or several if its control data requests segmentation.
#[derive(Debug)]
pub struct Outgoing<'a> {
    pub(crate) destination: RawAddress,
    pub(crate) control: Control,
    pub(crate) slices: &'a [IoSlice<'a>],
}

impl Outgoing<'_> {
    /// Its destination.
    #[must_use]
    pub fn destination(&self) -> Option<SocketAddr> {
        self.destination.read(self.destination.bytes().len())
    }

    /// Its control data, in the layout of cmsg(3).
    #[must_use]
    pub fn control(&self) -> &[u8] {
        self.control.bytes()
    }

    /// Its content, one slice per packet.
    #[must_use]
    pub fn slices(&self) -> &[IoSlice<'_>] {
        self.slices
    }
}

/// A message that was received.
#[derive(Debug, Clone, Copy)]
pub struct Incoming {
    /// Bytes of the message: more than were requested if it was truncated.
    pub bytes: usize,
    /// Whether it, or its control data, was truncated for lack of room.
    pub cut: bool,
    /// The sender, if the kernel gave an IP address.
    pub source: Option<SocketAddr>,
    /// Its control data.
    pub about: About,
}

//! A few rtnetlink(7) messages, each sent and awaited until acknowledged.

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrAny, SocketFlags, SocketType};
use std::io;
use std::os::fd::OwnedFd;

/// `struct nlmsghdr`.
pub(crate) const HEADER_BYTES: usize = 16;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 0x01;
/// `RTMGRP_LINK`, `RTMGRP_IPV4_IFADDR`, `RTMGRP_IPV6_IFADDR`: changes of interfaces and addresses.
const CHANGES: u32 = 1 | 0x10 | 0x100;
/// The longest message about an interface that is read whole; of a longer one the fixed part suffices.
const DATAGRAM_BYTES: usize = 4096;
const NLM_F_ACK: u16 = 0x04;
/// Fail if it exists.
pub(crate) const EXCLUSIVE: u16 = 0x200;
/// Replace what exists.
pub(crate) const REPLACE: u16 = 0x100;
/// Create what does not exist.
pub(crate) const CREATE: u16 = 0x400;

/// A message under construction. Lengths are filled in when it is sent.
pub(crate) struct Message(Vec<u8>);

impl Message {
    /// A message of type `kind` whose fixed part is `body`, a multiple of 4 bytes.
    pub(crate) fn new(kind: u16, flags: u16, body: &[u8]) -> Self {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(NLM_F_REQUEST | NLM_F_ACK | flags).to_ne_bytes());
        bytes.extend_from_slice(body);
        Self(bytes)
    }

    /// Adds an attribute; values of ours are at most 16 bytes long.
    pub(crate) fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
        self.0.extend_from_slice(&length.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }
}

/// A netlink socket for routes, addresses and links.
pub(crate) struct Netlink {
    socket: OwnedFd,
    sequence: u32,
    answer: Box<[u8; DATAGRAM_BYTES]>,
}

impl Netlink {
    pub(crate) fn open() -> io::Result<Self> {
        Self::with(SocketFlags::CLOEXEC)
    }

    fn with(flags: SocketFlags) -> io::Result<Self> {
        // No protocol means number 0, which is NETLINK_ROUTE.
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        Ok(Self { socket, sequence: 0, answer: Box::new([0; DATAGRAM_BYTES]) })
    }

    /// A socket on which the kernel reports changes of interfaces and addresses.
    pub(crate) fn of_changes() -> io::Result<Self> {
        let netlink = Self::with(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        rustix::net::bind(&netlink.socket, &SocketAddrNetlink::new(0, CHANGES))?;
        Ok(netlink)
    }

    /// The next datagram from the kernel; `None` if there is none yet.
    pub(crate) fn receive(&mut self) -> io::Result<Option<&[u8]>> {
        loop {
            match rustix::net::recvfrom(&self.socket, &mut self.answer[..], RecvFlags::empty()) {
                Ok((length, _, from)) => {
                    if is_kernel(from) {
                        return Ok(self.answer.get(..length));
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// The index of the interface `name`.
    pub(crate) fn index_of(&self, name: &str) -> io::Result<u32> {
        Ok(rustix::net::netdevice::name_to_index(&self.socket, name)?)
    }

    /// Sends the message without waiting.
    pub(crate) fn send(&mut self, message: Message) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut bytes = message.0;
        let length = u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.sequence.to_ne_bytes());
        let kernel = SocketAddrNetlink::new(0, 0);
        rustix::net::sendto(&self.socket, &bytes, SendFlags::empty(), &kernel)?;
        Ok(())
    }

    /// Sends the message and returns the kernel's first answer, which is no acknowledgement.
    pub(crate) fn ask(&mut self, message: Message) -> io::Result<Vec<u8>> {
        self.send(message)?;
        loop {
            let (received, _) = rustix::net::recv(&self.socket, &mut self.answer[..], RecvFlags::empty())?;
            let answer = &self.answer[..received];
            match verdict(answer, self.sequence) {
                Some(verdict) => verdict.and(Err(io::ErrorKind::InvalidData.into()))?,
                None if is_about(answer, self.sequence) => return Ok(answer.to_vec()),
                None => {}
            }
        }
    }

    /// Sends the message and waits for the kernel's answer, which comes before sendto(2) returns.
    pub(crate) fn request(&mut self, message: Message) -> io::Result<()> {
        self.send(message)?;
        loop {
            let (received, _) = rustix::net::recv(&self.socket, &mut self.answer[..], RecvFlags::empty())?;
            if let Some(verdict) = verdict(&self.answer[..received], self.sequence) {
                return verdict;
            }
        }
    }
}

/// The kernel's port number is 0; other processes have others.
fn is_kernel(from: Option<SocketAddrAny>) -> bool {
    from.and_then(|from| SocketAddrNetlink::try_from(from).ok()).is_some_and(|from| from.pid() == 0)
}

/// Whether a datagram answers request `sequence`.
fn is_about(datagram: &[u8], sequence: u32) -> bool {
    datagram.get(8..12).is_some_and(|about| about == sequence.to_ne_bytes())
}

/// The answer to request `sequence` in a datagram; `None` if the datagram is about something else.
fn verdict(datagram: &[u8], sequence: u32) -> Option<io::Result<()>> {
    let header = datagram.first_chunk::<HEADER_BYTES>()?;
    let kind = u16::from_ne_bytes([header[4], header[5]]);
    let about = u32::from_ne_bytes([header[8], header[9], header[10], header[11]]);
    if kind != NLMSG_ERROR || about != sequence {
        return None;
    }
    let code = datagram[HEADER_BYTES..].first_chunk::<4>()?;
    match i32::from_ne_bytes(*code) {
        0 => Some(Ok(())),
        code => Some(Err(io::Error::from_raw_os_error(code.saturating_neg()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_to_four_bytes() {
        let message = Message::new(20, CREATE, &[1, 2, 3, 4]).attribute(3, b"tun0x\0");
        assert_eq!(message.0.len(), 16 + 4 + 4 + 8);
        assert_eq!(u16::from_ne_bytes([message.0[20], message.0[21]]), 10);
        assert_eq!(&message.0[24..30], b"tun0x\0");
    }

    #[test]
    fn a_verdict_is_taken_from_the_right_answer_only() {
        let mut answer = vec![0; 36];
        answer[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
        answer[8..12].copy_from_slice(&7u32.to_ne_bytes());
        assert!(verdict(&answer, 7).unwrap().is_ok());
        assert!(verdict(&answer, 8).is_none());
        answer[16..20].copy_from_slice(&(-17i32).to_ne_bytes());
        assert_eq!(verdict(&answer, 7).unwrap().unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        for len in 0..20 {
            assert!(verdict(&answer[..len], 7).is_none(), "{len} bytes");
        }
    }
}

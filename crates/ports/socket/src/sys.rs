//! The raw calls: getsockopt(2), setsockopt(2), recvmsg(2), recvmmsg(2), sendmmsg(2). The only unsafe code of
//! this crate.
//!
//! Neither the standard library nor rustix passes the control messages that segmentation offload and traffic
//! classes need.

use crate::address::{MAX_ADDRESS_BYTES, RawAddress};
use crate::channel::is_fatal;
use crate::control::{About, CONTROL_BYTES, Control, ControlArea};
use crate::kernel::{Incoming, MessageSocket, Outgoing};
use crate::open;
use arrayvec::ArrayVec;
use std::io::{self, IoSliceMut};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use testudo_packet::BATCH_SIZE;

/// A non-blocking kernel socket.
#[derive(Debug)]
pub struct Socket(OwnedFd);

/// Where the kernel writes the sender and the control data of one message.
struct Beside {
    address: RawAddress,
    control: Control,
}

impl Socket {
    pub(crate) fn new(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }

    /// The same socket, by another descriptor.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// Sets an option whose value is an int.
    pub(crate) fn set_option(&self, level: i32, name: i32, value: i32) -> io::Result<()> {
        self.set_option_bytes(level, name, &value.to_ne_bytes())
    }

    pub(crate) fn set_option_bytes(&self, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
        let length = libc::socklen_t::try_from(value.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: rustix has no call for most of our options. The descriptor is open as long as `self` lives,
        // and the kernel reads `length` bytes from `value`, which has that many.
        let status =
            unsafe { libc::setsockopt(self.0.as_raw_fd(), level, name, value.as_ptr().cast(), length) };
        if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Replaces the filter of what the socket receives. What it has received stays.
    pub(crate) fn set_filter(&self, program: &[libc::sock_filter]) -> io::Result<()> {
        self.set_program(libc::SO_ATTACH_FILTER, program)
    }

    /// Has a program of classic BPF choose among the UDP sockets of this one's port: the one that was bound
    /// at the place that it returns.
    pub(crate) fn set_chooser(&self, program: &[libc::sock_filter]) -> io::Result<()> {
        self.set_program(libc::SO_ATTACH_REUSEPORT_CBPF, program)
    }

    fn set_program(&self, option: i32, program: &[libc::sock_filter]) -> io::Result<()> {
        let len = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
        let level = libc::SOL_SOCKET;
        let bytes = libc::socklen_t::try_from(size_of::<libc::sock_fprog>()).unwrap_or(0); // 16
        // SAFETY: the kernel reads a `sock_fprog` and copies the `len` instructions that it points to, which
        // outlive the call. It writes to none of them: the pointer is mutable as C's structure has it.
        let status = unsafe {
            libc::setsockopt(self.0.as_raw_fd(), level, option, (&raw const program).cast(), bytes)
        };
        if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Discards what the socket has received, while its filter lets nothing more pass.
    pub(crate) fn discard_received(&self) {
        let mut byte = [0];
        loop {
            match self.receive(&mut [IoSliceMut::new(&mut byte)]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock || is_fatal(&error) => return,
                _ => {}
            }
        }
    }
}

/// Datagrams that came to any socket and were dropped there so far, most of them since it was full. The count
/// wraps (`SO_MEMINFO`, Linux 4.12).
///
/// # Errors
/// Those of getsockopt(2); `Unsupported` if the kernel does not count them.
pub fn dropped(socket: &impl AsFd) -> io::Result<u32> {
    const DROPS: usize = libc::SK_MEMINFO_DROPS as usize;
    Ok(option::<{ DROPS + 1 }, _>(socket, libc::SO_MEMINFO)?[DROPS])
}

/// The number of a socket's network namespace, which the kernel gives no other one until it boots
/// (`SO_NETNS_COOKIE`, Linux 5.14): that of `/proc/self/ns/net` comes again.
///
/// # Errors
/// Those of getsockopt(2).
pub fn namespace_cookie(socket: &impl AsFd) -> io::Result<u64> {
    let words: [u32; 2] = option(socket, libc::SO_NETNS_COOKIE)?;
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&words[0].to_ne_bytes());
    bytes[4..].copy_from_slice(&words[1].to_ne_bytes());
    Ok(u64::from_ne_bytes(bytes))
}

/// An option of any socket that is `N` words.
fn option<const N: usize, S: AsFd>(socket: &S, name: i32) -> io::Result<[u32; N]> {
    let mut words = [0_u32; N];
    let mut bytes =
        libc::socklen_t::try_from(size_of_val(&words)).map_err(|_| io::ErrorKind::InvalidInput)?;
    let descriptor = socket.as_fd().as_raw_fd();
    // SAFETY: rustix has none of these options. The descriptor is open as long as `socket` is borrowed; the
    // kernel writes at most `bytes` bytes into `words`, which has that many, and any are numbers.
    let status = unsafe {
        let words = (&raw mut words).cast();
        libc::getsockopt(descriptor, libc::SOL_SOCKET, name, words, &raw mut bytes)
    };
    if status < 0 {
        return Err(io::Error::last_os_error());
    }
    let written = usize::try_from(bytes).unwrap_or(0);
    if written < size_of_val(&words) { Err(io::ErrorKind::Unsupported.into()) } else { Ok(words) }
}

impl MessageSocket for Socket {
    fn receive(&self, slices: &mut [IoSliceMut<'_>]) -> io::Result<Incoming> {
        let mut beside = Beside::new();
        let mut header = receive_header(slices, &mut beside);
        // SAFETY: `header` points to `slices` and `beside`, which outlive the call, are not used during it,
        // and are as long as it says. An `IoSliceMut` is an `iovec` over memory that is exclusively borrowed.
        let received = unsafe {
            libc::recvmsg(self.0.as_raw_fd(), &raw mut header, libc::MSG_DONTWAIT | libc::MSG_TRUNC)
        };
        let bytes = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
        Ok(incoming(&header, bytes, &beside))
    }

    fn receive_many<const N: usize>(
        &self,
        messages: &mut [&mut [IoSliceMut<'_>]],
        controls: &mut [ControlArea],
        received: &mut ArrayVec<Incoming, N>,
    ) -> io::Result<()> {
        received.clear();
        // Filled in place: collecting would move thousands of bytes.
        let mut beside: ArrayVec<Beside, N> = ArrayVec::new();
        beside.extend((0..messages.len().min(N)).map(|_| Beside::new()));
        let mut headers: ArrayVec<libc::mmsghdr, N> = ArrayVec::new();
        let mut areas = controls.iter_mut();
        headers.extend(messages.iter_mut().zip(&mut beside).map(|(slices, beside)| {
            let mut header = receive_header(slices, beside);
            if let Some(area) = areas.next() {
                header.msg_control = area.storage().as_mut_ptr().cast();
                header.msg_controllen = area.storage().len() as _;
            }
            libc::mmsghdr { msg_hdr: header, msg_len: 0 }
        }));
        let count = libc::c_uint::try_from(headers.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        // SAFETY: `headers` has `count` elements, each pointing to its own slices, its own element of
        // `beside` and perhaps its own area of `controls`; all of them outlive the call, are not used during
        // it, and are as long as they say. There is no timeout to point to.
        let count = unsafe {
            libc::recvmmsg(self.0.as_raw_fd(), headers.as_mut_ptr(), count, flags, std::ptr::null_mut())
        };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        let bytes = |header: &libc::mmsghdr| usize::try_from(header.msg_len).unwrap_or(usize::MAX);
        let mut areas = controls.iter_mut();
        received.extend(headers.iter().zip(&beside).take(count).map(|(header, beside)| {
            let message = incoming(&header.msg_hdr, bytes(header), beside);
            match areas.next() {
                Some(area) => {
                    area.set_length(to_usize(header.msg_hdr.msg_controllen));
                    Incoming { about: About::read(area.bytes()), ..message }
                }
                None => message,
            }
        }));
        Ok(())
    }

    fn send_many(&self, messages: &[Outgoing<'_>]) -> io::Result<usize> {
        let mut headers: ArrayVec<libc::mmsghdr, BATCH_SIZE> = messages
            .iter()
            .take(BATCH_SIZE)
            .map(|message| libc::mmsghdr { msg_hdr: send_header(message), msg_len: 0 })
            .collect();
        let count = libc::c_uint::try_from(headers.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: `headers` has `count` elements, each pointing to the address, control data and slices of
        // its message, which outlive the call and are as long as they say. The kernel only reads what they
        // point to: the pointers are mutable because the structure serves receiving too.
        let sent = unsafe { libc::sendmmsg(self.0.as_raw_fd(), headers.as_mut_ptr(), count, flags) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    fn set_dont_fragment(&self, local: IpAddr, wanted: bool) -> io::Result<()> {
        open::set_dont_fragment(self, local, wanted)
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Beside {
    fn new() -> Self {
        Self { address: RawAddress::EMPTY, control: Control::EMPTY }
    }
}

fn empty_header() -> libc::msghdr {
    // SAFETY: `msghdr` is a C structure of integers and pointers, for which all zeros are valid. It cannot be
    // written as a literal: some C libraries give it private padding.
    unsafe { std::mem::zeroed() }
}

fn receive_header(slices: &mut [IoSliceMut<'_>], beside: &mut Beside) -> libc::msghdr {
    let mut header = empty_header();
    header.msg_name = beside.address.storage().as_mut_ptr().cast();
    header.msg_namelen = u32::try_from(MAX_ADDRESS_BYTES).unwrap_or(0); // 28
    header.msg_iov = slices.as_mut_ptr().cast();
    header.msg_iovlen = slices.len() as _;
    header.msg_control = beside.control.storage().as_mut_ptr().cast();
    header.msg_controllen = CONTROL_BYTES as _;
    header
}

fn send_header(message: &Outgoing<'_>) -> libc::msghdr {
    let (address, control) = (message.destination.bytes(), message.control.bytes());
    let mut header = empty_header();
    header.msg_name = address.as_ptr().cast_mut().cast();
    header.msg_namelen = u32::try_from(address.len()).unwrap_or(0); // at most 28
    header.msg_iov = message.slices.as_ptr().cast_mut().cast();
    header.msg_iovlen = message.slices.len() as _;
    if !control.is_empty() {
        header.msg_control = control.as_ptr().cast_mut().cast();
        header.msg_controllen = control.len() as _;
    }
    header
}

fn incoming(header: &libc::msghdr, bytes: usize, beside: &Beside) -> Incoming {
    let address_bytes = usize::try_from(header.msg_namelen).unwrap_or(0);
    Incoming {
        bytes,
        cut: header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0,
        source: beside.address.read(address_bytes),
        about: beside.control.read(to_usize(header.msg_controllen)),
    }
}

/// C libraries disagree on the type of this length.
fn to_usize(length: impl TryInto<usize>) -> usize {
    length.try_into().unwrap_or(0)
}

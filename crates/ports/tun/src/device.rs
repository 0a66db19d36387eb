//! The TUN device node: ioctl(2) calls and the descriptor that they configure. The only unsafe code of this
//! crate.

use crate::error::OpenError;
use crate::link_info::LinkInfo;
use crate::vnet::VNET_HEADER_BYTES;
use rustix::fs::{Mode, OFlags};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use testudo_ebpf::objects::Program;

const NODE: &str = "/dev/net/tun";
/// `IFNAMSIZ` without the terminating zero.
const MAX_NAME_BYTES: usize = 15;

/// The offloads that the kernel agreed to leave to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offloads {
    /// TCP super-frames, IPv4 and IPv6. Without them, packets arrive one by one.
    pub tcp: bool,
    /// UDP super-frames (USO), from Linux 6.2.
    pub udp: bool,
}

/// A queue of frames, each preceded by its [`VnetHeader`](crate::vnet::VnetHeader): the kernel's, or a fake
/// in memory.
pub trait FrameDevice: Send {
    /// Reads one frame, scattered over `slices` as readv(2) does, and returns its bytes. `WouldBlock` if
    /// there is none now.
    ///
    /// # Errors
    /// Those of readv(2).
    fn read(&self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize>;

    /// Writes one frame, gathered from `slices` as writev(2) does.
    ///
    /// # Errors
    /// Those of writev(2).
    fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize>;

    /// The offloads that the other side leaves to us.
    fn offloads(&self) -> Offloads;

    /// The descriptor to wait on for frames; `None` if there is nothing to wait for.
    fn readiness(&self) -> Option<BorrowedFd<'_>>;
}

/// An open, non-blocking queue of a TUN interface. Closing the last one removes the interface.
#[derive(Debug)]
pub struct Device {
    file: OwnedFd,
    offloads: Offloads,
    /// Whether it takes frames of its queue, which another device may do alone.
    reads: bool,
}

impl Device {
    /// Creates the interface `name`, or attaches another queue to it.
    pub(crate) fn open(name: &str, multi_queue: bool) -> Result<Self, OpenError> {
        let fits = (1..=MAX_NAME_BYTES).contains(&name.len());
        if !fits || !name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.')) {
            return Err(OpenError::Name { name: name.to_owned() });
        }
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open(NODE, flags, Mode::empty()).map_err(|e| node_error(e.into()))?;
        attach(file.as_fd(), name, multi_queue).map_err(|e| attach_error(name, multi_queue, e))?;
        let offloads = negotiate(file.as_fd())
            .map_err(|source| OpenError::Io { action: format!("set up the offloads of {name}"), source })?;
        Ok(Self { file, offloads, reads: true })
    }

    /// Another device of the same queue, which writes alone. A queue that nobody reads would get packets as
    /// well, and one that is detached (`TUNSETQUEUE`) takes none.
    pub(crate) fn writer(&self) -> io::Result<Self> {
        Ok(Self { file: self.file.try_clone()?, offloads: self.offloads, reads: false })
    }

    /// From now on `program` chooses the queue of each packet of the interface, for all its queues.
    pub(crate) fn steer(&self, program: &Program) -> io::Result<()> {
        let program = program.as_fd().as_raw_fd();
        // SAFETY: no safe wrapper exists. The descriptor is open, and TUNSETSTEERINGEBPF reads one int, which
        // `program` is, alive during the call. The kernel keeps the program itself, not its number.
        checked(unsafe { libc::ioctl(self.file.as_raw_fd(), libc::TUNSETSTEERINGEBPF, &raw const program) })
    }
}

impl FrameDevice for Device {
    fn read(&self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        if !self.reads {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        match rustix::io::readv(&self.file, slices) {
            // The link is down: it may come up again.
            Err(rustix::io::Errno::IO) => Err(io::ErrorKind::WouldBlock.into()),
            other => other.map_err(io::Error::from),
        }
    }

    fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        rustix::io::writev(&self.file, slices).map_err(io::Error::from)
    }

    fn offloads(&self) -> Offloads {
        self.offloads
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }
}

fn node_error(source: io::Error) -> OpenError {
    match source.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => OpenError::NoDevice { source },
        Some(libc::EACCES | libc::EPERM) => {
            OpenError::NotPermitted { action: format!("open {NODE}"), source }
        }
        _ => OpenError::Io { action: format!("open {NODE}"), source },
    }
}

fn attach_error(name: &str, multi_queue: bool, source: io::Error) -> OpenError {
    let owned = || name.to_owned();
    match source.raw_os_error() {
        Some(libc::EBUSY) => OpenError::Busy { name: owned() },
        Some(libc::EINVAL | libc::EEXIST) => match LinkInfo::of(name) {
            Some(info) if multi_queue && !info.multi_queue => OpenError::SingleQueue { name: owned() },
            Some(info) if !multi_queue && info.multi_queue => OpenError::SeveralQueues { name: owned() },
            _ => OpenError::OtherKind { name: owned() },
        },
        Some(libc::EACCES | libc::EPERM) => {
            OpenError::NotPermitted { action: format!("create the interface {name}"), source }
        }
        _ => OpenError::Io { action: format!("create the interface {name}"), source },
    }
}

fn attach(file: BorrowedFd<'_>, name: &str, multi_queue: bool) -> io::Result<()> {
    let mut flags = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    if multi_queue {
        flags |= libc::IFF_MULTI_QUEUE;
    }
    let mut request_name = [0; libc::IFNAMSIZ];
    for (to, from) in request_name.iter_mut().zip(name.bytes().take(MAX_NAME_BYTES)) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    let flags = libc::c_short::try_from(flags).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut request =
        libc::ifreq { ifr_name: request_name, ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: flags } };
    // SAFETY: neither the standard library nor rustix has this call. The descriptor is open for the borrow's
    // lifetime, and TUNSETIFF reads and writes one `ifreq`, which `request` is, alive and exclusively ours
    // during the call.
    let status = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    checked(status)
}

/// Requests all offloads that the kernel supports, from the most to the least.
fn negotiate(file: BorrowedFd<'_>) -> io::Result<Offloads> {
    let size = libc::c_int::try_from(VNET_HEADER_BYTES).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: no safe wrapper exists. The descriptor is open, and TUNSETVNETHDRSZ reads one int, which `size`
    // is, alive during the call.
    checked(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const size) })?;
    let tcp = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
    let udp = libc::TUN_F_USO4 | libc::TUN_F_USO6;
    let choices = [
        (tcp | udp, Offloads { tcp: true, udp: true }),
        (tcp, Offloads { tcp: true, udp: false }),
        (libc::TUN_F_CSUM, Offloads { tcp: false, udp: false }),
    ];
    for (wanted, offloads) in choices {
        if set_offload(file, wanted).is_ok() {
            return Ok(offloads);
        }
    }
    set_offload(file, 0).map(|()| Offloads { tcp: false, udp: false })
}

fn set_offload(file: BorrowedFd<'_>, wanted: libc::c_uint) -> io::Result<()> {
    // SAFETY: no safe wrapper exists. The descriptor is open, and TUNSETOFFLOAD takes its argument by value:
    // no memory is passed.
    checked(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(wanted)) })
}

fn checked(status: libc::c_int) -> io::Result<()> {
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_the_kernel_would_cut_is_refused() {
        for name in ["", "sixteen-bytes-xx", "a/b", "tun%d", "tun 0"] {
            let error = Device::open(name, false).unwrap_err();
            assert!(matches!(error, OpenError::Name { .. }), "{name:?}: {error}");
        }
    }

    #[test]
    fn each_refusal_says_what_to_do() {
        let error = |code| io::Error::from_raw_os_error(code);
        assert!(node_error(error(libc::ENOENT)).to_string().contains("modprobe tun"));
        assert!(node_error(error(libc::EACCES)).to_string().contains("CAP_NET_ADMIN"));
        assert!(attach_error("tun7", false, error(libc::EPERM)).to_string().contains("CAP_NET_ADMIN"));
        assert!(attach_error("tun7", false, error(libc::EBUSY)).to_string().contains("tun7 is in use"));
        assert!(attach_error("eth0", false, error(libc::EINVAL)).to_string().contains("another kind"));
        assert!(attach_error("tun7", false, error(libc::ENFILE)).to_string().contains("cannot create"));
    }
}

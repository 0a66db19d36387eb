//! The system calls that a queue makes while packets flow: by a socket, or by a kernel that is played.

use crate::statistics::KernelStatistics;
use std::io;
use std::os::fd::BorrowedFd;

/// An AF_XDP socket, as far as its rings do not do. No call waits.
pub trait SocketCalls: Send {
    /// Has the kernel look at the ring of packets to send.
    ///
    /// # Errors
    /// Those of sendto(2). `WouldBlock` if it has sent some, and there are more.
    fn wake_sender(&self) -> io::Result<()>;

    /// Has the kernel look at the ring of free frames, and at its device's queue where that is polled.
    ///
    /// # Errors
    /// Those of recvfrom(2).
    fn wake_receiver(&self) -> io::Result<()>;

    /// What the kernel counts.
    ///
    /// # Errors
    /// Those of getsockopt(2).
    fn statistics(&self) -> io::Result<KernelStatistics>;

    /// The descriptor to wait on; `None` if there is nothing to wait for.
    fn readiness(&self) -> Option<BorrowedFd<'_>>;
}

//! The AF_XDP socket as an owning type: its options, its rings and its binding to a queue.

use crate::calls::SocketCalls;
use crate::error::OpenError;
use crate::ring::{Consumer, Descriptor, Entry, Offsets, Producer, RingMemory};
use crate::statistics::KernelStatistics;
use rustix::mm::{MapFlags, ProtFlags, mmap};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// `SO_PREFER_BUSY_POLL` and `SO_BUSY_POLL_BUDGET` (asm-generic/socket.h).
const PREFER_BUSY_POLL: i32 = 69;
const BUSY_POLL_BUDGET: i32 = 70;
/// `XDP_MAX_TX_SKB_BUDGET` (linux/if_xdp.h), and packets that one call is to send: a batch.
const MOST_SENT_IN_A_CALL: i32 = 9;
const SENT_IN_A_CALL: u32 = 64;
/// Bytes that packets on their way through the kernel may take: its copies count towards this.
const SEND_BUFFER_BYTES: i32 = 16 << 20;

/// A socket. It is closed with this, before the frames that it lent are free again: the kernel then writes
/// into none of them.
#[derive(Debug)]
pub struct Socket {
    descriptor: Arc<OwnedFd>,
    /// The umem whose sockets it is one of, once it is bound.
    umem: Option<SharedUmem>,
}

/// The sockets that share one umem: those that were opened with clones of this. Packets cross from one to
/// another without a copy.
///
/// They are of one worker, as its pool is, and of any interfaces. A socket that cannot share (of a driver
/// with zero-copy where the others have none, say) has the same memory registered once more: packets cross as
/// well.
#[derive(Debug, Clone, Default)]
pub struct SharedUmem(Arc<Mutex<Vec<Member>>>);

/// A socket, as others may be bound to its umem: they inherit these properties.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub descriptor: Arc<OwnedFd>,
    pub zero_copy: bool,
    pub multi_buffer: bool,
}

impl SharedUmem {
    /// One that no socket has yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many sockets share it.
    #[must_use]
    pub fn sockets(&self) -> usize {
        self.members().len()
    }

    /// The sockets, none of which is closed as long as the caller holds this.
    pub(crate) fn members(&self) -> MutexGuard<'_, Vec<Member>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Then nobody else has the descriptor, and it is closed with this.
        if let Some(umem) = &self.umem {
            umem.members().retain(|member| !Arc::ptr_eq(&member.descriptor, &self.descriptor));
        }
    }
}

/// The four rings of a socket.
#[derive(Debug)]
pub struct Rings {
    /// Packets that came.
    pub received: Consumer<Descriptor>,
    /// Packets to send.
    pub to_send: Producer<Descriptor>,
    /// Free frames, for packets that come.
    pub free: Producer<u64>,
    /// Frames whose packets were sent.
    pub sent: Consumer<u64>,
}

/// What a socket is bound to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Binding<'a> {
    pub interface: u32,
    pub queue: u32,
    pub how: How<'a>,
}

/// With a umem of its own, or another socket's.
#[derive(Debug, Clone, Copy)]
pub(crate) enum How<'a> {
    Own { zero_copy: bool, multi_buffer: bool },
    Shared(BorrowedFd<'a>),
}

/// Memory to be shared with the kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    pub start: *mut u8,
    pub bytes: usize,
    pub frame_bytes: usize,
    pub headroom: u32,
}

impl Socket {
    pub(crate) fn open() -> Result<Self, OpenError> {
        // SAFETY: socket(2) takes numbers alone.
        let descriptor = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if descriptor < 0 {
            return Err(OpenError::of_socket(io::Error::last_os_error()));
        }
        // SAFETY: it was opened just now, and is nobody else's.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        let socket = Self { descriptor: Arc::new(descriptor), umem: None };
        // Where it is refused, fewer packets are on their way at a time.
        let _smaller = socket.set(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &SEND_BUFFER_BYTES);
        Ok(socket)
    }

    /// Makes it one of the sockets of `umem`, which are `members`.
    pub(crate) fn join(&mut self, umem: &SharedUmem, members: &mut Vec<Member>, multi_buffer: bool) {
        let (descriptor, zero_copy) = (Arc::clone(&self.descriptor), self.is_zero_copy());
        members.push(Member { descriptor, zero_copy, multi_buffer });
        self.umem = Some(umem.clone());
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    fn number(&self) -> i32 {
        self.descriptor.as_raw_fd()
    }

    /// Sets an option to a plain value.
    fn set<T: Copy>(&self, level: i32, name: i32, value: &T) -> io::Result<()> {
        let bytes = libc::socklen_t::try_from(size_of::<T>()).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: rustix has none of these options. The descriptor is open, and the kernel
        // reads `bytes` bytes from `value`, which has that many.
        let status =
            unsafe { libc::setsockopt(self.number(), level, name, (&raw const *value).cast(), bytes) };
        if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Reads an option that is numbers. Older kernels know fewer of them, and leave the rest zero.
    ///
    /// # Safety
    /// Zeros, and any other bytes, are a `T`.
    unsafe fn get<T>(&self, name: i32) -> io::Result<(T, usize)> {
        // SAFETY: by this function's own contract.
        let mut value: T = unsafe { std::mem::zeroed() };
        let mut bytes = libc::socklen_t::try_from(size_of::<T>()).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: as for `set`; the kernel writes at most `bytes` bytes into `value`, and any are a `T`.
        let status = unsafe {
            let value = (&raw mut value).cast();
            libc::getsockopt(self.number(), libc::SOL_XDP, name, value, &raw mut bytes)
        };
        if status < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((value, usize::try_from(bytes).unwrap_or(0)))
    }

    /// Makes the memory the socket's umem.
    pub(crate) fn register(&self, memory: &Memory) -> io::Result<()> {
        let number = |n: usize| u64::try_from(n).map_err(|_| io::ErrorKind::InvalidInput);
        let frame_bytes = u32::try_from(memory.frame_bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
        let unaligned = !frame_bytes.is_power_of_two();
        let umem = libc::xdp_umem_reg {
            addr: number(memory.start.expose_provenance())?,
            len: number(memory.bytes)?,
            chunk_size: frame_bytes,
            headroom: memory.headroom,
            flags: if unaligned { libc::XDP_UMEM_UNALIGNED_CHUNK_FLAG } else { 0 },
            tx_metadata_len: 0,
        };
        self.set(libc::SOL_XDP, libc::XDP_UMEM_REG, &umem)
    }

    /// Makes the four rings, of so many entries each, and maps them.
    pub(crate) fn rings(&self, entries: u32) -> io::Result<Rings> {
        let rings =
            [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING, libc::XDP_TX_RING];
        for ring in rings {
            self.set(libc::SOL_XDP, ring, &entries)?;
        }
        // Without it, which is so before Linux 6.17, a batch takes two calls.
        let _more_calls = self.set(libc::SOL_XDP, MOST_SENT_IN_A_CALL, &SENT_IN_A_CALL);
        // SAFETY: the structure is numbers.
        let (offsets, bytes) = unsafe { self.get::<libc::xdp_mmap_offsets>(libc::XDP_MMAP_OFFSETS)? };
        if bytes < size_of::<libc::xdp_mmap_offsets>() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "this needs Linux 5.4 or newer"));
        }
        let (rx, tx) = (page_offset(libc::XDP_PGOFF_RX_RING), page_offset(libc::XDP_PGOFF_TX_RING));
        let invalid = || io::Error::from(io::ErrorKind::InvalidData);
        let (received, at) = self.map::<Descriptor>(rx, &offsets.rx, entries)?;
        let received = Consumer::new(received, at, entries).ok_or_else(invalid)?;
        let (to_send, at) = self.map::<Descriptor>(tx, &offsets.tx, entries)?;
        let to_send = Producer::new(to_send, at, entries).ok_or_else(invalid)?;
        let (free, at) = self.map::<u64>(libc::XDP_UMEM_PGOFF_FILL_RING, &offsets.fr, entries)?;
        let free = Producer::new(free, at, entries).ok_or_else(invalid)?;
        let (sent, at) = self.map::<u64>(libc::XDP_UMEM_PGOFF_COMPLETION_RING, &offsets.cr, entries)?;
        let sent = Consumer::new(sent, at, entries).ok_or_else(invalid)?;
        Ok(Rings { received, to_send, free, sent })
    }

    fn map<T: Entry>(
        &self,
        offset: u64,
        parts: &libc::xdp_ring_offset,
        entries: u32,
    ) -> io::Result<(Arc<RingMemory>, Offsets)> {
        let part = |part: u64| usize::try_from(part).map_err(|_| io::ErrorKind::InvalidData);
        let offsets = Offsets {
            producer: part(parts.producer)?,
            consumer: part(parts.consumer)?,
            flags: part(parts.flags)?,
            entries: part(parts.desc)?,
        };
        let entries = part(entries.into())?.checked_mul(size_of::<T>()).ok_or(io::ErrorKind::InvalidInput)?;
        let bytes = offsets.entries.checked_add(entries).ok_or(io::ErrorKind::InvalidData)?;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: no address is requested, so nothing that exists is replaced.
        let start = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            mmap(std::ptr::null_mut(), bytes, access, flags, self.descriptor.as_fd(), offset)?
        };
        // SAFETY: it was mapped just now, with this length.
        let memory = unsafe { RingMemory::mapped(start.cast(), bytes) };
        Ok((Arc::new(memory), offsets))
    }

    /// Binds it to a queue.
    pub(crate) fn bind(&self, binding: &Binding<'_>) -> io::Result<()> {
        let (flags, umem_of) = match binding.how {
            How::Own { zero_copy, multi_buffer } => {
                let copy = if zero_copy { libc::XDP_ZEROCOPY } else { libc::XDP_COPY };
                let several = if multi_buffer { libc::XDP_USE_SG } else { 0 };
                (copy | several | libc::XDP_USE_NEED_WAKEUP, 0)
            }
            How::Shared(other) => (libc::XDP_SHARED_UMEM, other.as_raw_fd()),
        };
        let address = libc::sockaddr_xdp {
            sxdp_family: u16::try_from(libc::AF_XDP).map_err(|_| io::ErrorKind::InvalidInput)?,
            sxdp_flags: flags,
            sxdp_ifindex: binding.interface,
            sxdp_queue_id: binding.queue,
            sxdp_shared_umem_fd: u32::try_from(umem_of).map_err(|_| io::ErrorKind::InvalidInput)?,
        };
        let bytes = libc::socklen_t::try_from(size_of::<libc::sockaddr_xdp>())
            .map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: rustix binds such addresses, but not with every flag. The kernel reads `bytes` bytes from
        // `address`, which has that many.
        let status = unsafe { libc::bind(self.number(), (&raw const address).cast(), bytes) };
        if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Has the worker drive the device's queue, `budget` packets at a time.
    pub(crate) fn prefer_busy_poll(&self, budget: u16) -> io::Result<()> {
        let (on, microseconds) = (1_i32, 20_i32);
        self.set(libc::SOL_SOCKET, PREFER_BUSY_POLL, &on)?;
        self.set(libc::SOL_SOCKET, libc::SO_BUSY_POLL, &microseconds)?;
        self.set(libc::SOL_SOCKET, BUSY_POLL_BUDGET, &i32::from(budget))
    }

    /// Whether the kernel's copy is avoided.
    pub(crate) fn is_zero_copy(&self) -> bool {
        // SAFETY: the structure is a number.
        let options = unsafe { self.get::<libc::xdp_options>(libc::XDP_OPTIONS) };
        options.is_ok_and(|(options, _)| options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
    }
}

fn page_offset(offset: libc::off_t) -> u64 {
    u64::try_from(offset).unwrap_or(0) // 0 and 2^31
}

impl SocketCalls for Socket {
    fn wake_sender(&self) -> io::Result<()> {
        // SAFETY: no memory is passed.
        let sent = unsafe {
            libc::sendto(self.number(), std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0)
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn wake_receiver(&self) -> io::Result<()> {
        let none = std::ptr::null_mut();
        // SAFETY: no memory is passed.
        let received = unsafe {
            let flags = libc::MSG_DONTWAIT;
            libc::recvfrom(self.number(), none, 0, flags, std::ptr::null_mut(), std::ptr::null_mut())
        };
        if received < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn statistics(&self) -> io::Result<KernelStatistics> {
        // SAFETY: the structure is numbers.
        let (said, _) = unsafe { self.get::<libc::xdp_statistics>(libc::XDP_STATISTICS)? };
        Ok(KernelStatistics {
            rx_dropped: said.rx_dropped,
            rx_invalid_frames: said.rx_invalid_descs,
            tx_invalid_packets: said.tx_invalid_descs,
            rx_ring_full: said.rx_ring_full,
            no_free_frame: said.rx_fill_ring_empty_descs,
            tx_ring_empty: said.tx_ring_empty_descs,
        })
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        Some(self.descriptor.as_fd())
    }
}

//! The device: queues of one interface, as one source and sink of whole Ethernet frames.

use crate::calls::SocketCalls;
use crate::config::{XdpConfig, ZeroCopy};
use crate::ebpf::filter::Filter;
use crate::error::OpenError;
use crate::interface::Interface;
use crate::lent::Chunks;
use crate::queue::{Queue, QueueOptions, Transmitted};
use crate::socket::{Binding, How, Member, Memory, Rings, SharedUmem, Socket};
use crate::statistics::QueueStatistics;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use testudo_link::FrameDevice;
use testudo_packet::{Batch, HEADROOM_BYTES, Pool, PortCounters, PortError, Region};
use testudo_wire::ethernet::MacAddress;

/// Bytes that the kernel leaves free before a packet (`XDP_PACKET_HEADROOM`), and those that it is asked to
/// leave on top: together the headroom of the pool's buffers.
const KERNEL_HEADROOM_BYTES: usize = 256;
const UMEM_HEADROOM_BYTES: usize = HEADROOM_BYTES - KERNEL_HEADROOM_BYTES;

/// A bind directly after the queue's last socket was closed finds it busy: the kernel is not done with that.
const BUSY_FOR: Duration = Duration::from_millis(100);

/// Queues of one interface. Frames come from all of them in turn, and leave by the first: so their order is
/// kept.
#[derive(Debug)]
pub struct XdpDevice<S: SocketCalls = Socket> {
    name: String,
    mac: MacAddress,
    mtu: usize,
    queues: Vec<Queue<S>>,
    /// The queue that is asked first, next time.
    next: usize,
    counters: PortCounters,
    /// Whether frames may be chains of buffers.
    takes_chains: bool,
    /// Where the umem starts: the memory of the pool.
    umem_start: usize,
    zero_copy: bool,
    /// Why the kernel copies where that was to be avoided.
    zero_copy_refused: Option<String>,
    /// Why the worker does not drive the device's queue where it was to.
    busy_poll_refused: Option<String>,
    /// After the queues: frames go to the kernel once their sockets are closed.
    _filter: Option<Arc<Filter>>,
}

/// What a queue is opened with.
struct Opening<'a> {
    interface: &'a Interface,
    umem: &'a SharedUmem,
    memory: Memory,
    config: &'a XdpConfig,
    multi_buffer: bool,
}

impl XdpDevice {
    /// Opens queues of the filter's interface, to which it directs their frames from then on. The umem is the
    /// memory of `pool`, which is to be handed to every later call.
    ///
    /// # Errors
    /// [`OpenError`] says what is missing: a right, a queue, a feature of kernel or driver.
    pub fn open(
        filter: &Arc<Filter>,
        umem: &SharedUmem,
        pool: &mut Pool,
        config: &XdpConfig,
    ) -> Result<Self, OpenError> {
        let interface = filter.interface();
        let (memory, chunks) = memory_of(pool.region())?;
        check(interface, config)?;
        // The kernel would drop a frame that is longer than a buffer.
        let multi_buffer = interface.frame_bytes() > chunks.bytes - HEADROOM_BYTES;
        let opening = Opening { interface, umem, memory, config, multi_buffer };
        let (mut queues, mut zero_copy, mut refused, mut busy_poll_refused) = (Vec::new(), true, None, None);
        // With both sides of a gateway in one pool, half of it stays for packets on their way.
        let most = u32::try_from(chunks.count / 4 / config.queues.len()).unwrap_or(u32::MAX).max(1);
        for &queue in &config.queues {
            let (rings, socket, said) = opening.socket(queue)?;
            zero_copy &= socket.is_zero_copy();
            refused = refused.or(said);
            let polled = config.busy_poll.map(|budget| socket.prefer_busy_poll(budget));
            busy_poll_refused = polled.clone_error().or(busy_poll_refused);
            let options = QueueOptions {
                queue,
                receive_frames: config.receive_frames.min(config.ring_entries).min(most),
                frame_bytes: interface.frame_bytes(),
                multi_buffer,
                complete_checksums: config.complete_checksums.unwrap_or(interface.has_local_frames()),
                busy_poll: matches!(polled, Some(Ok(()))),
            };
            let mut opened = Queue::new(rings, socket, chunks, options);
            let failed = |source| OpenError::io(format!("start queue {queue} of {}", interface.name), source);
            opened.prime(pool).map_err(failed)?;
            filter.direct(queue, opened.calls().descriptor()).map_err(failed)?;
            queues.push(opened);
        }
        let mut device = Self::over(interface, pool, queues);
        (device.zero_copy, device.zero_copy_refused) = (zero_copy, refused);
        (device.busy_poll_refused, device._filter) = (busy_poll_refused, Some(Arc::clone(filter)));
        Ok(device)
    }
}

/// Why an attempt failed, in words.
trait CloneError {
    fn clone_error(&self) -> Option<String>;
}

impl CloneError for Option<io::Result<()>> {
    fn clone_error(&self) -> Option<String> {
        let refusal = self.as_ref()?.as_ref().err()?;
        Some(format!("busy polling is refused ({refusal}): it needs CAP_NET_ADMIN and Linux 5.11"))
    }
}

impl Opening<'_> {
    /// A socket that is bound to a queue, with its rings, and why it is not without the kernel's copy where
    /// that was to be avoided.
    ///
    /// Sharing comes first, and zero-copy before that where it is not known to be refused: each way has the
    /// same memory, so that packets cross in any case.
    fn socket(&self, queue: u32) -> Result<(Rings, Socket, Option<String>), OpenError> {
        // As long as this is held, no other socket of the umem is closed.
        let mut members = self.umem.members();
        let shared = |zero_copy: bool| {
            let fits = |m: &&Member| m.zero_copy == zero_copy && (m.multi_buffer || !self.multi_buffer);
            let member = members.iter().find(fits)?;
            self.bound(queue, How::Shared(member.descriptor.as_fd())).ok()
        };
        let own = |zero_copy| self.bound(queue, How::Own { zero_copy, multi_buffer: self.multi_buffer });
        let either = |zero_copy| shared(zero_copy).map_or_else(|| own(zero_copy), Ok);
        let mut refused = None;
        let (rings, mut socket) = match self.config.zero_copy {
            ZeroCopy::Off => either(false)?,
            ZeroCopy::Always => either(true)?,
            ZeroCopy::Auto => match either(true) {
                Err(error @ OpenError::NoZeroCopy { .. }) => {
                    refused = Some(error.to_string());
                    either(false)?
                }
                other => other?,
            },
        };
        socket.join(self.umem, &mut members, self.multi_buffer);
        Ok((rings, socket, refused))
    }

    fn bound(&self, queue: u32, how: How<'_>) -> Result<(Rings, Socket), OpenError> {
        let socket = Socket::open()?;
        if let How::Own { .. } = how {
            socket.register(&self.memory).map_err(|e| OpenError::of_umem(self.memory.bytes, e))?;
        }
        let rings = socket.rings(self.config.ring_entries);
        let rings = rings.map_err(|e| OpenError::io("make the rings of an AF_XDP socket", e))?;
        let binding = Binding { interface: self.interface.index, queue, how };
        let started = Instant::now();
        retry(|| socket.bind(&binding), || started.elapsed()).map_err(|e| self.refused(queue, how, e))?;
        Ok((rings, socket))
    }

    fn refused(&self, queue: u32, how: How<'_>, source: io::Error) -> OpenError {
        let interface = self.interface.name.clone();
        let wants_zero_copy = matches!(how, How::Own { zero_copy: true, .. });
        match source.raw_os_error() {
            Some(libc::EBUSY) => OpenError::QueueBusy { interface, queue },
            Some(libc::EPERM | libc::EACCES) => {
                OpenError::NotPermitted { action: format!("open queue {queue} of {interface}"), source }
            }
            _ if wants_zero_copy => OpenError::NoZeroCopy { interface, source },
            _ => OpenError::io(format!("bind an AF_XDP socket to queue {queue} of {interface}"), source),
        }
    }
}

/// Tries again while the queue is busy, up to [`BUSY_FOR`].
fn retry(mut attempt: impl FnMut() -> io::Result<()>, elapsed: impl Fn() -> Duration) -> io::Result<()> {
    loop {
        match attempt() {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && elapsed() < BUSY_FOR => {
                // The kernel tells nobody when it is done.
                std::thread::sleep(Duration::from_millis(1));
            }
            other => return other,
        }
    }
}

/// What of the configuration the interface does not have.
fn check(interface: &Interface, config: &XdpConfig) -> Result<(), OpenError> {
    let name = || interface.name.clone();
    if config.queues.is_empty() {
        return Err(OpenError::NoQueue { interface: name() });
    }
    let have = interface.queues.unwrap_or(u32::MAX);
    if let Some(&queue) = config.queues.iter().find(|queue| **queue >= have) {
        return Err(OpenError::QueueAbsent { interface: name(), queue, have });
    }
    let entries = config.ring_entries;
    if !entries.is_power_of_two() || !(64..=65_536).contains(&entries) {
        return Err(OpenError::RingEntries { entries });
    }
    Ok(())
}

/// The pool's memory, as a umem.
fn memory_of(region: &Region) -> Result<(Memory, Chunks), OpenError> {
    let (start, bytes) = region.extent();
    let frame_bytes = region.frame_bytes();
    if !(2048..=4096).contains(&frame_bytes) {
        return Err(OpenError::FrameBytes { frame_bytes });
    }
    let headroom = u32::try_from(UMEM_HEADROOM_BYTES).unwrap_or(0); // 16
    let chunks = Chunks { bytes: frame_bytes, count: region.frames() };
    Ok((Memory { start, bytes, frame_bytes, headroom }, chunks))
}

impl<S: SocketCalls> XdpDevice<S> {
    fn over(interface: &Interface, pool: &Pool, queues: Vec<Queue<S>>) -> Self {
        Self {
            name: interface.name.clone(),
            mac: interface.mac,
            mtu: interface.mtu,
            umem_start: pool.region().extent().0.addr(),
            takes_chains: queues.iter().any(Queue::takes_chains),
            queues,
            next: 0,
            counters: PortCounters::default(),
            zero_copy: false,
            zero_copy_refused: None,
            busy_poll_refused: None,
            _filter: None,
        }
    }

    /// A device over queues that are open already, with the frames of `pool`: for a kernel that is played.
    ///
    /// # Errors
    /// A ring is broken from the start.
    pub fn played(
        interface: &Interface,
        pool: &mut Pool,
        queues: Vec<(Rings, S, QueueOptions)>,
    ) -> io::Result<Self> {
        let chunks = Chunks { bytes: pool.region().frame_bytes(), count: pool.region().frames() };
        let made = |(rings, calls, options)| {
            let mut queue = Queue::new(rings, calls, chunks, options);
            queue.prime(pool).map(|()| queue)
        };
        let queues = queues.into_iter().map(made).collect::<io::Result<Vec<_>>>()?;
        Ok(Self::over(interface, pool, queues))
    }

    /// Closes the device, which [ends](FrameDevice::end).
    pub fn close(mut self, pool: &mut Pool)
    where
        S: Send,
    {
        self.end(pool);
    }

    /// What happened at each queue.
    #[must_use]
    pub fn statistics(&self) -> Vec<QueueStatistics> {
        self.queues.iter().map(Queue::statistics).collect()
    }

    /// Whether the kernel's copy is avoided on all queues.
    #[must_use]
    pub fn is_zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// Why the kernel copies, where that was to be avoided.
    #[must_use]
    pub fn zero_copy_refused(&self) -> Option<&str> {
        self.zero_copy_refused.as_deref()
    }

    /// Why the worker does not drive the device's queues, where it was to.
    #[must_use]
    pub fn busy_poll_refused(&self) -> Option<&str> {
        self.busy_poll_refused.as_deref()
    }

    /// Whether the interface is still there: the rings of one that has gone are silent. It costs a system
    /// call for each queue.
    ///
    /// # Errors
    /// It is gone.
    pub fn look(&self) -> Result<(), PortError> {
        let looked = self.queues.iter().try_for_each(Queue::look);
        looked.map_err(|source| self.error("receive", source))
    }

    /// Frames of another pool have other addresses.
    fn check_pool(&self, pool: &Pool) -> Result<(), PortError> {
        if pool.region().extent().0.addr() == self.umem_start {
            return Ok(());
        }
        Err(self.error("use a pool", io::Error::other("it is not the one that the device was opened with")))
    }

    fn error(&self, what: &str, source: io::Error) -> PortError {
        PortError { port: self.name.clone(), what: what.to_owned(), source: Some(source) }
    }
}

/// Frames come from all queues in turn. The MTU is that of the interface when the device was opened. Buffers
/// of frames that were sent come back to the pool when the kernel is done with them, which later calls see.
impl<S: SocketCalls + Send> FrameDevice for XdpDevice<S> {
    fn name(&self) -> &str {
        &self.name
    }

    fn mac(&self) -> MacAddress {
        self.mac
    }

    fn mtu(&self) -> usize {
        self.mtu
    }

    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        self.check_pool(pool)?;
        let before = batch.len();
        let count = self.queues.len();
        for nth in 0..count {
            let queue = &mut self.queues[(self.next + nth) % count];
            let outcome = queue.receive(pool, batch);
            outcome.map_err(|source| self.error("receive", source))?;
        }
        self.next = (self.next + 1) % count.max(1);
        let came = &batch[before..];
        self.counters.rx_packets += u64::try_from(came.len()).unwrap_or(0);
        self.counters.rx_bytes += came.iter().map(|frame| frame.chain_bytes() as u64).sum::<u64>();
        self.counters.rx_calls += u64::from(!came.is_empty());
        Ok(batch.len() - before)
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        self.check_pool(pool)?;
        let Some(queue) = self.queues.first_mut() else { return Ok(0) };
        let before = batch.len();
        let sent = match queue.transmit(pool, batch) {
            Ok(sent) => sent,
            Err(source) => return Err(self.error("send", source)),
        };
        debug_assert_eq!(before - batch.len(), sent.taken);
        let Transmitted { packets, bytes, taken } = sent;
        self.counters.tx_packets += packets;
        self.counters.tx_bytes += bytes;
        self.counters.tx_calls += u64::from(packets > 0);
        Ok(taken)
    }

    fn readiness(&self) -> Vec<BorrowedFd<'_>> {
        self.queues.iter().filter_map(|queue| queue.calls().readiness()).collect()
    }

    fn takes_chains(&self) -> bool {
        self.takes_chains
    }

    /// Closes the queues: the kernel gets their frames from now on. One that is dropped instead gives its
    /// frames back to the region, where the pool does not look for them. It waits for the last packets to be
    /// sent, up to a tenth of a second; what the kernel may send even then is written off.
    fn end(&mut self, pool: &mut Pool) {
        self.queues.drain(..).for_each(|queue| queue.close(pool));
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_busy_queue_is_tried_for_a_tenth_of_a_second() {
        let (clock, tries) = (Cell::new(Duration::ZERO), Cell::new(0));
        let elapsed = || {
            clock.set(clock.get() + Duration::from_millis(10));
            clock.get()
        };
        let busy = || {
            tries.set(tries.get() + 1);
            Err(io::Error::from_raw_os_error(libc::EBUSY))
        };
        assert_eq!(retry(busy, elapsed).unwrap_err().raw_os_error(), Some(libc::EBUSY));
        assert_eq!(tries.get(), 10);
        let mut answers = vec![Ok(()), Err(io::Error::from_raw_os_error(libc::EBUSY))];
        assert!(retry(|| answers.pop().unwrap(), || Duration::ZERO).is_ok());
        let gone = || Err(io::Error::from_raw_os_error(libc::ENODEV));
        assert_eq!(retry(gone, || Duration::ZERO).unwrap_err().raw_os_error(), Some(libc::ENODEV));
    }

    #[test]
    fn frames_that_cannot_be_a_umem_are_told() {
        let jumbo = Pool::new(4, 9000);
        assert!(matches!(memory_of(jumbo.region()), Err(OpenError::FrameBytes { .. })));
        assert!(memory_of(Pool::new(4, 1514).region()).is_ok());
    }
}

//! One queue: a socket, its rings, and the frames that the kernel has by them.
//!
//! ```text
//!            pool ──refill──► free ring ──► kernel ──► received ring ──rx──► batch
//!              ▲                                                               │
//!              └──reap── sent ring ◄── kernel ◄── ring to send ◄──tx───────────┘
//! ```

use crate::calls::SocketCalls;

use crate::gather::Gatherer;
use crate::lent::{Chunks, Lent, Use};
use crate::ring::{Broken, Descriptor};
use crate::socket::Rings;
use crate::statistics::QueueStatistics;
use std::io;
use std::time::{Duration, Instant};
use testudo_link::partial_checksum;
use testudo_packet::{BATCH_SIZE, Batch, Buffer, DropReason, Pool};

/// Frames that are missing in the free ring before it is filled up: the pool moves them by the batch.
const REFILL: u32 = 32;
/// Times that nothing came, after which the kernel is asked whether the device is there: the rings of one
/// that has gone are silent.
const LOOK_AFTER: u32 = 64;
/// Longest time that a queue waits for the last of its packets to be sent, when it is closed.
const CLOSING: Duration = Duration::from_millis(100);
/// Packets that the kernel sends in one call, in copy mode (`TX_BATCH_SIZE`).
const SENT_IN_A_CALL: u32 = 32;
/// Most descriptors of one packet: the kernel takes as many fragments (`MAX_SKB_FRAGS`) and a start.
pub(crate) const MOST_PARTS: usize = 18;
/// Most descriptors of a packet that is sent from where it is: drivers that do without the kernel's copy take
/// so many (i40e, ice). A chain of more buffers is copied into full frames, of which it then takes few.
const MOST_LINKED: usize = 8;
/// Bytes of an Ethernet header, without which there is no frame.
const ETHERNET_BYTES: usize = 14;

/// How a queue works.
#[derive(Debug, Clone, Copy)]
pub struct QueueOptions {
    /// Its number.
    pub queue: u32,
    /// Frames that the kernel has to receive into, at most.
    pub receive_frames: u32,
    /// Longest frame that the link takes, in bytes.
    pub frame_bytes: usize,
    /// Whether a frame may be in several buffers: a chain of them, which comes and goes without being merged.
    pub multi_buffer: bool,
    /// Whether checksums of a local kernel are completed.
    pub complete_checksums: bool,
    /// Whether the worker drives the device's queue.
    pub busy_poll: bool,
}

/// A queue. Its fields are dropped in this order: the rings are unmapped and the socket is closed before the
/// frames are free.
#[derive(Debug)]
pub(crate) struct Queue<S: SocketCalls> {
    rings: Rings,
    calls: S,
    lent: Lent,
    options: QueueOptions,
    gatherer: Gatherer,
    counts: QueueStatistics,
    /// The kernel has not looked at all that is in the ring to send.
    unsent: bool,
    /// Times in a row that nothing had come.
    idle: u32,
}

/// What a call sent.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Transmitted {
    pub packets: u64,
    pub bytes: u64,
    pub taken: usize,
}

impl<S: SocketCalls> Queue<S> {
    pub(crate) fn new(rings: Rings, calls: S, chunks: Chunks, options: QueueOptions) -> Self {
        let counts = QueueStatistics { queue: options.queue, ..QueueStatistics::default() };
        let (lent, gatherer) = (Lent::new(chunks), Gatherer::new(options.multi_buffer));
        Self { rings, calls, lent, options, gatherer, counts, unsent: false, idle: 0 }
    }

    pub(crate) fn calls(&self) -> &S {
        &self.calls
    }

    /// Whether frames come, and are sent, in chains of buffers.
    pub(crate) fn takes_chains(&self) -> bool {
        self.options.multi_buffer
    }

    /// Lends the kernel all frames that it is to have.
    pub(crate) fn prime(&mut self, pool: &mut Pool) -> io::Result<()> {
        loop {
            let before = self.lent.receiving();
            self.refill(pool)?;
            if self.lent.receiving() == before {
                return Ok(());
            }
        }
    }

    /// Adds packets that came to `batch`, as many as fit.
    pub(crate) fn receive(&mut self, pool: &mut Pool, batch: &mut Batch) -> io::Result<()> {
        self.reap(pool)?;
        if self.unsent {
            self.wake_sender()?;
        }
        let room = u32::try_from(batch.remaining_capacity()).unwrap_or(0); // at most a batch
        let count = self.rings.received.available()?.min(room);
        for nth in 0..count {
            let descriptor = self.rings.received.read(nth);
            self.take(descriptor, pool, batch);
        }
        self.rings.received.release(count);
        self.refill(pool)?;
        self.idle = if count == 0 && room > 0 { self.idle.wrapping_add(1) } else { 0 };
        let is_polled = self.idle > 0 && (self.options.busy_poll || self.idle.is_multiple_of(LOOK_AFTER));
        if is_polled || self.rings.free.needs_wakeup() {
            self.counts.wakeups += 1;
            ignore_for_now(self.calls.wake_receiver())?;
        }
        Ok(())
    }

    /// Asks the kernel whether the device is there.
    pub(crate) fn look(&self) -> io::Result<()> {
        ignore_for_now(self.calls.wake_receiver())
    }

    /// Takes what one descriptor says was received.
    fn take(&mut self, descriptor: Descriptor, pool: &mut Pool, batch: &mut Batch) {
        let is_last = descriptor.options & Descriptor::MORE == 0;
        let part = self.lent.received(descriptor, |buffer| pool.recycle(buffer));
        if let Err(reason) = &part {
            let count = match reason {
                DropReason::DeviceFrameUnknown => &mut self.counts.unknown_frames,
                _ => &mut self.counts.out_of_bounds,
            };
            *count += 1;
        }
        if let Some(mut buffer) = self.gatherer.add(part, is_last, pool) {
            if self.options.complete_checksums && complete_checksum(&mut buffer, pool) {
                self.counts.checksums_completed += 1;
            }
            batch.push(buffer);
        }
    }

    /// Lends the kernel free frames to receive into, a batch at most.
    fn refill(&mut self, pool: &mut Pool) -> io::Result<()> {
        let missing = self.options.receive_frames.saturating_sub(self.lent.receiving());
        if missing < REFILL.min(self.options.receive_frames) {
            return Ok(());
        }
        let wanted = missing.min(self.rings.free.room()?);
        let mut frames = Batch::new();
        pool.pop_many(usize::try_from(wanted).unwrap_or(BATCH_SIZE), &mut frames);
        let mut count = 0;
        for buffer in frames.drain(..) {
            // A frame that replaced a lost one is elsewhere: the kernel does not know it.
            let Some(index) = pool.region().index_of(&buffer) else {
                pool.recycle(buffer);
                continue;
            };
            let address = self.lent.lend(index, buffer, Use::Receive);
            self.rings.free.write(count, address);
            count += 1;
        }
        self.rings.free.submit(count);
        Ok(())
    }

    /// Takes back frames whose packets were sent.
    fn reap(&mut self, pool: &mut Pool) -> Result<(), Broken> {
        let count = self.rings.sent.available()?;
        for nth in 0..count {
            match self.lent.sent(self.rings.sent.read(nth)) {
                Ok(buffer) => pool.recycle(buffer),
                Err(reason) => {
                    self.counts.unknown_frames += 1;
                    pool.count(reason, 1);
                }
            }
        }
        self.rings.sent.release(count);
        Ok(())
    }

    /// Sends packets from the front of `batch`, as many as there is room for.
    pub(crate) fn transmit(&mut self, pool: &mut Pool, batch: &mut Batch) -> io::Result<Transmitted> {
        self.reap(pool)?;
        let (room, mut used) = (self.rings.to_send.room()?, 0);
        let mut sent = Transmitted::default();
        for buffer in batch.iter_mut() {
            let bytes = buffer.chain_bytes();
            match self.place(buffer, bytes, pool, room - used, used) {
                Placed::Sent(parts) => {
                    used += parts;
                    sent.packets += 1;
                    sent.bytes += u64::try_from(bytes).unwrap_or(0);
                }
                Placed::Refused(reason) => pool.discard(std::mem::take(buffer), reason),
                Placed::NoRoom => break,
            }
            sent.taken += 1;
        }
        batch.drain(..sent.taken);
        self.rings.to_send.submit(used);
        self.unsent |= used > 0;
        if self.unsent {
            self.wake_sender()?;
        }
        Ok(sent)
    }

    /// Writes the descriptors of a packet of so many bytes, from the entry `used` of the ring on: all of
    /// them, or none.
    fn place(&mut self, buffer: &mut Buffer, bytes: usize, pool: &mut Pool, room: u32, used: u32) -> Placed {
        if bytes < ETHERNET_BYTES {
            return Placed::Refused(DropReason::SendRefused);
        }
        if bytes > self.options.frame_bytes {
            return Placed::Refused(DropReason::MessageTooLong);
        }
        if room == 0 {
            return Placed::NoRoom;
        }
        match pool.region().index_of(buffer) {
            Some(index) if !buffer.is_chain() => {
                self.lend_to_send(index, std::mem::take(buffer), used, false);
                Placed::Sent(1)
            }
            _ => self.place_uncommon(buffer, bytes, pool, room, used),
        }
    }

    /// Writes the descriptors of a packet in a chain of buffers, one each, or of one that has to be copied.
    #[cold]
    fn place_uncommon(
        &mut self,
        buffer: &mut Buffer,
        bytes: usize,
        pool: &mut Pool,
        room: u32,
        used: u32,
    ) -> Placed {
        match self.parts_of(buffer, pool) {
            None => self.copy(buffer, bytes, pool, room, used),
            // Cut in two it would be two packets.
            Some(parts) if parts > room => Placed::NoRoom,
            Some(parts) => {
                self.lend_chain(std::mem::take(buffer), parts, pool, used);
                self.counts.tx_chains += 1;
                Placed::Sent(parts)
            }
        }
    }

    /// How many buffers with bytes a chain has, if it can be sent from where it is: each is a frame of the
    /// umem, the first one has the Ethernet header, and there are not too many.
    fn parts_of(&self, packet: &Buffer, pool: &Pool) -> Option<u32> {
        let filled = || packet.segments().filter(|segment| !segment.is_empty());
        let count = filled().count();
        let may_be_sent = packet.is_chain() && self.options.multi_buffer && count <= MOST_LINKED;
        let has_header = filled().next().is_some_and(|first| first.len() >= ETHERNET_BYTES);
        let is_here = may_be_sent && has_header && filled().all(|segment| pool.region().owns(segment));
        u32::try_from(count).ok().filter(|_| is_here)
    }

    /// Lends the kernel the buffers of a chain, `parts` of which have bytes. The others are free.
    fn lend_chain(&mut self, packet: Buffer, parts: u32, pool: &mut Pool, used: u32) {
        let (mut next, mut nth) = (Some(packet), 0);
        while let Some(mut segment) = next {
            next = segment.take_rest();
            let index = pool.region().index_of(&segment).filter(|_| !segment.is_empty());
            let Some(index) = index else {
                pool.recycle(segment);
                continue;
            };
            self.lend_to_send(index, segment, used + nth, nth + 1 < parts);
            nth += 1;
        }
    }

    /// Copies a packet that is elsewhere, or in too many buffers, into frames of the umem: one, or several if
    /// the kernel takes such.
    fn copy(&mut self, buffer: &mut Buffer, bytes: usize, pool: &mut Pool, room: u32, used: u32) -> Placed {
        let mut frames: arrayvec::ArrayVec<(usize, Buffer), MOST_PARTS> = arrayvec::ArrayVec::new();
        let mut placed = Placed::NoRoom;
        let mut copied = 0;
        while copied < bytes {
            let most = if self.options.multi_buffer { MOST_PARTS } else { 1 };
            if frames.len() == most {
                placed = Placed::Refused(DropReason::MessageTooLong);
                break;
            }
            // A frame that is elsewhere is no use; it comes back to the pool below.
            let Some(mut frame) = pool.pop() else {
                // With nothing under way no frame comes back: it may be this very packet that has them.
                if buffer.is_chain() && self.lent.sending() == 0 {
                    placed = Placed::Refused(DropReason::PoolEmpty);
                }
                break;
            };
            let Some(index) = pool.region().index_of(&frame) else {
                pool.recycle(frame);
                break;
            };
            let here = buffer.copy_to(copied, frame.receive_area());
            frame.set_len(here);
            copied += here;
            frames.push((index, frame));
        }
        let parts = u32::try_from(frames.len()).unwrap_or(u32::MAX);
        if copied < bytes || parts > room {
            frames.into_iter().for_each(|(_, frame)| pool.recycle(frame));
            return placed;
        }
        let last = parts - 1;
        for ((index, frame), nth) in frames.into_iter().zip(0..) {
            self.lend_to_send(index, frame, used + nth, nth < last);
        }
        pool.recycle(std::mem::take(buffer));
        self.counts.tx_copied += 1;
        Placed::Sent(parts)
    }

    fn lend_to_send(&mut self, index: usize, buffer: Buffer, nth: u32, more: bool) {
        let bytes = u32::try_from(buffer.len()).unwrap_or(0); // at most a frame
        let address = self.lent.lend(index, buffer, Use::Send);
        let options = if more { Descriptor::MORE } else { 0 };
        self.rings.to_send.write(nth, Descriptor { address, bytes, options });
    }

    /// Has the kernel send what is in the ring. What it cannot send now it is asked for again with the next
    /// packets, in either direction.
    fn wake_sender(&mut self) -> io::Result<()> {
        let rounds = self.rings.to_send.pending()?.div_ceil(SENT_IN_A_CALL);
        for _ in 0..rounds {
            if !self.rings.to_send.needs_wakeup() {
                break;
            }
            self.counts.wakeups += 1;
            match self.calls.wake_sender() {
                // It has sent some, and would send more.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => {
                    ignore_for_now(other)?;
                    break;
                }
            }
        }
        self.unsent = self.rings.to_send.pending()? > 0;
        Ok(())
    }

    /// What happened so far.
    pub(crate) fn statistics(&self) -> QueueStatistics {
        let kernel = self.calls.statistics().unwrap_or_default();
        let (receiving, sending) = (self.lent.receiving(), self.lent.sending());
        let (rx_chains, rx_merged) = self.gatherer.counts();
        QueueStatistics { kernel, receiving, sending, rx_chains, rx_merged, ..self.counts }
    }

    /// Ends the queue, and gives its buffers back to the pool. Those that the kernel may still send are
    /// written off.
    pub(crate) fn close(mut self, pool: &mut Pool) {
        self.finish_sending(&mut |buffer| pool.recycle(buffer));
        self.gatherer.clear(pool);
        pool.forget(self.lent.forget_sending());
        let lent = std::mem::take(&mut self.lent);
        // The socket is closed: the kernel has no frame any more.
        drop(self);
        lent.into_buffers().for_each(|buffer| pool.recycle(buffer));
    }

    /// Waits for the packets that the kernel has to send, for a moment. Buffers of those that it has sent go
    /// to `free`.
    fn finish_sending(&mut self, free: &mut dyn FnMut(Buffer)) {
        let started = Instant::now();
        while self.lent.sending() > 0 && started.elapsed() < CLOSING {
            let is_usable = self.wake_sender().is_ok();
            let count = self.rings.sent.available().unwrap_or(0);
            for nth in 0..count {
                self.lent.sent(self.rings.sent.read(nth)).into_iter().for_each(&mut *free);
            }
            self.rings.sent.release(count);
            // A kernel that is played does nothing meanwhile.
            if !is_usable || self.calls.readiness().is_none() {
                break;
            }
            std::thread::yield_now();
        }
    }
}

impl<S: SocketCalls> Drop for Queue<S> {
    fn drop(&mut self) {
        self.finish_sending(&mut drop);
        // A device that did not give them back may read them still: with another packet in them, that one
        // would leave in clear.
        self.lent.forget_sending();
    }
}

/// Completes the checksum of a frame, if a local kernel has left it to a device. Returns whether it has.
#[inline]
fn complete_checksum(frame: &mut Buffer, pool: &mut Pool) -> bool {
    if frame.is_chain() {
        return partial_checksum::complete_chain(frame, pool);
    }
    partial_checksum::complete(frame.bytes_mut())
}

/// What became of a packet that is to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Placed {
    /// It takes so many entries of the ring.
    Sent(u32),
    Refused(DropReason),
    /// It stays with the caller.
    NoRoom,
}

/// An error that is about this moment is none: the link is down, memory is short, the device is busy. It is
/// one if the device has gone.
fn ignore_for_now(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENXIO | libc::ENODEV | libc::EBADF)) => {
            Err(error)
        }
        _ => Ok(()),
    }
}

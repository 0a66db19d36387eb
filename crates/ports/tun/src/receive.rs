//! Reading: predictive scatter, so that a super-frame's payloads land in their final buffers.
//!
//! A frame of `n` segments with `h` bytes of headers, read with the layout predicted from the last
//! super-frame:
//!
//! ```text
//!   vnet header   buffer 0                buffer 1               …  buffer n-1             tail
//!   [10 bytes  ]  [h | gso_size bytes ]   [room h | gso_size ]      [room h | the rest ]   [nothing]
//! ```
//!
//! After a misprediction, the frame's bytes are gathered once into `relay` and cut from there. The tail
//! catches bytes beyond the predicted layout, so that no frame is ever truncated.

use crate::split::{SuperFrame, complete_checksum};
use crate::vnet::{VNET_HEADER_BYTES, VnetHeader};
use arrayvec::ArrayVec;
use std::io::{self, IoSliceMut};
use testudo_packet::{BATCH_SIZE, Batch, DropReason, Pool};

/// Longer than any frame: IPv6 header and its longest payload, rounded up.
const FRAME_BYTES: usize = 66_048;
/// After this many single packets, the next frame is no longer predicted to be a super-frame.
const FORGET_AFTER: u32 = 32;
/// Reads for one batch: more than it has packets, but bounded, so that invalid frames cannot keep the worker
/// here.
const MAX_READS: usize = BATCH_SIZE + 16;

/// The result of one call.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    pub(crate) calls: u64,
}

/// The state of receiving, separate from the device.
pub(crate) struct Receiver {
    tail: Vec<u8>,
    relay: Vec<u8>,
    guess: Option<Guess>,
    singles_in_a_row: u32,
    pending: Option<Pending>,
    copied_frames: u64,
}

/// The predicted shape of the next super-frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Guess {
    header_bytes: usize,
    gso_size: usize,
    segments: usize,
}

/// A super-frame in `relay` that is not completely cut yet.
struct Pending {
    frame: SuperFrame,
    next: usize,
    /// Where in `relay` the payload's byte `skipped` is.
    at: usize,
    skipped: usize,
}

/// Where the bytes of a read were scattered to.
#[derive(Debug, Clone, Copy)]
struct Layout {
    /// Bytes of the first buffer.
    first: usize,
    /// Room left before the bytes of each later buffer.
    room: usize,
    /// Bytes of each later buffer.
    each: usize,
}

impl Receiver {
    pub(crate) fn new() -> Self {
        Self {
            tail: vec![0; FRAME_BYTES],
            relay: vec![0; FRAME_BYTES],
            guess: None,
            singles_in_a_row: 0,
            pending: None,
            copied_frames: 0,
        }
    }

    /// Super-frames that were copied because their shape was mispredicted.
    pub(crate) fn copied_frames(&self) -> u64 {
        self.copied_frames
    }

    /// Fills `batch` through `read`, which scatters one frame over slices as readv(2) does.
    ///
    /// # Errors
    /// Those of `read`, except `WouldBlock` and `Interrupted`, which end the batch. An error may follow
    /// packets that are in the batch and in `done`.
    pub(crate) fn receive(
        &mut self,
        pool: &mut Pool,
        batch: &mut Batch,
        done: &mut Received,
        mut read: impl FnMut(&mut [IoSliceMut<'_>]) -> io::Result<usize>,
    ) -> io::Result<()> {
        self.cut_pending(pool, batch, done);
        for _ in 0..MAX_READS {
            let room = batch.remaining_capacity();
            let expected = self.guess.map_or(1, |g| g.segments.min(BATCH_SIZE));
            let is_enough = if done.packets == 0 { room > 0 } else { room >= expected };
            if self.pending.is_some() || !is_enough || pool.available() == 0 {
                break;
            }
            match self.read_frame(pool, batch, done, expected.min(room), &mut read) {
                Ok(()) => {}
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => break,
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn read_frame(
        &mut self,
        pool: &mut Pool,
        batch: &mut Batch,
        done: &mut Received,
        wanted: usize,
        read: &mut impl FnMut(&mut [IoSliceMut<'_>]) -> io::Result<usize>,
    ) -> io::Result<()> {
        let layout = self.layout(pool.frame_packet_bytes());
        let wanted = if layout.each == 0 { 1 } else { wanted };
        let mut staged = Batch::new();
        pool.pop_many(wanted, &mut staged);
        let mut vnet = [0; VNET_HEADER_BYTES];
        let read = read(&mut layout.slices(&mut vnet, &mut staged, &mut self.tail));
        let before = done.packets;
        let outcome = match read {
            Ok(n) => {
                let frame_bytes = n.checked_sub(VNET_HEADER_BYTES);
                let vnet = VnetHeader::from_bytes(&vnet);
                if let Err((reason, packets)) =
                    self.take_frame(&vnet, frame_bytes, layout, &mut staged, batch, done, pool)
                {
                    pool.count(reason, packets);
                }
                Ok(())
            }
            Err(error) => Err(error),
        };
        staged.drain(..).for_each(|buffer| pool.recycle(buffer));
        self.cut_pending(pool, batch, done);
        done.calls += u64::from(done.packets > before || self.pending.is_some());
        outcome
    }

    /// The layout of the next read, for a pool whose frames hold `packet_bytes`.
    fn layout(&self, packet_bytes: usize) -> Layout {
        match self.guess {
            Some(g) if g.header_bytes + g.gso_size <= packet_bytes => {
                Layout { first: g.header_bytes + g.gso_size, room: g.header_bytes, each: g.gso_size }
            }
            _ => Layout { first: packet_bytes, room: 0, each: 0 },
        }
    }

    /// Processes one read; an error is the reason and the number of packets lost.
    #[expect(clippy::too_many_arguments, reason = "the parts of one read, each borrowed apart")]
    fn take_frame(
        &mut self,
        vnet: &VnetHeader,
        frame_bytes: Option<usize>,
        layout: Layout,
        staged: &mut Batch,
        batch: &mut Batch,
        done: &mut Received,
        pool: &mut Pool,
    ) -> Result<(), (DropReason, u64)> {
        let frame_bytes = frame_bytes.ok_or((DropReason::BadHeader, 1))?;
        if frame_bytes > FRAME_BYTES {
            return Err((DropReason::ReceiveTruncated, 1));
        }
        if vnet.gso().map_err(|_| (DropReason::BadHeader, 1))?.is_none() {
            return self.take_single(vnet, frame_bytes, layout, staged, batch, done, pool);
        }
        self.singles_in_a_row = 0;
        let head_bytes = frame_bytes.min(layout.first);
        let head = staged.first_mut().map_or(&[][..], |b| &b.receive_area()[..head_bytes]);
        if let Ok(frame) = SuperFrame::parse(vnet, head, frame_bytes)
            && (frame.header_bytes(), frame.gso_size()) == (layout.room, layout.each)
        {
            self.learn(&frame);
            self.take_in_place(frame, staged, batch, done);
            return Ok(());
        }
        self.gather(layout, staged, frame_bytes);
        let frame =
            SuperFrame::parse(vnet, &self.relay[..frame_bytes], frame_bytes).map_err(|reason| (reason, 1))?;
        if frame.header_bytes() + frame.payload_range(0).len() > pool.packet_bytes() {
            return Err((DropReason::ReceiveTruncated, frame.segments() as u64));
        }
        self.learn(&frame);
        self.copied_frames += 1;
        let at = frame.header_bytes();
        self.pending = Some(Pending { frame, next: 0, at, skipped: 0 });
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one read, each borrowed apart")]
    fn take_single(
        &mut self,
        vnet: &VnetHeader,
        frame_bytes: usize,
        layout: Layout,
        staged: &mut Batch,
        batch: &mut Batch,
        done: &mut Received,
        pool: &mut Pool,
    ) -> Result<(), (DropReason, u64)> {
        self.singles_in_a_row = self.singles_in_a_row.saturating_add(1);
        if self.singles_in_a_row > FORGET_AFTER {
            self.guess = None;
        }
        if frame_bytes > pool.packet_bytes() {
            return Err((DropReason::ReceiveTruncated, 1));
        }
        if frame_bytes > layout.first {
            self.gather(layout, staged, frame_bytes);
            if frame_bytes > pool.frame_packet_bytes() {
                let long = pool.pop_for(frame_bytes).ok_or((DropReason::PoolEmpty, 1))?;
                staged.drain(..).for_each(|buffer| pool.recycle(buffer));
                staged.push(long);
            }
            if let Some(buffer) = staged.first_mut() {
                buffer.receive_area()[..frame_bytes].copy_from_slice(&self.relay[..frame_bytes]);
            }
        }
        let Some(buffer) = staged.first_mut() else { return Ok(()) };
        buffer.set_len(frame_bytes);
        complete_checksum(vnet, buffer.bytes_mut()).map_err(|reason| (reason, 1))?;
        done.packets += 1;
        done.bytes += frame_bytes as u64;
        batch.push(staged.swap_remove(0));
        Ok(())
    }

    /// The prediction was right: only headers are written. Segments without a buffer are in the tail, and are
    /// cut from there.
    fn take_in_place(
        &mut self,
        frame: SuperFrame,
        staged: &mut Batch,
        batch: &mut Batch,
        done: &mut Received,
    ) {
        let in_place = staged.len().min(frame.segments());
        for (index, mut buffer) in staged.drain(..in_place).enumerate() {
            let length = frame.header_bytes() + frame.payload_range(index).len();
            buffer.set_len(length);
            frame.write_headers(index, buffer.bytes_mut());
            done.packets += 1;
            done.bytes += length as u64;
            batch.push(buffer);
        }
        if in_place < frame.segments() {
            std::mem::swap(&mut self.tail, &mut self.relay);
            let skipped = frame.payload_range(in_place).start;
            self.pending = Some(Pending { frame, next: in_place, at: 0, skipped });
        }
    }

    /// Cuts packets from `relay` while there are buffers, and room in the batch.
    fn cut_pending(&mut self, pool: &mut Pool, batch: &mut Batch, done: &mut Received) {
        let Some(pending) = &mut self.pending else { return };
        let header_bytes = pending.frame.header_bytes();
        while pending.next < pending.frame.segments() {
            if batch.is_full() {
                return;
            }
            let range = pending.frame.payload_range(pending.next);
            let from = pending.at + range.start - pending.skipped;
            let length = header_bytes + range.len();
            let Some(mut buffer) = pool.pop_for(length) else {
                // A frame will be there soon. For a long buffer nobody waits: all others would, too.
                if length <= pool.frame_packet_bytes() {
                    return;
                }
                pool.count(DropReason::PoolEmpty, 1);
                pending.next += 1;
                continue;
            };
            buffer.receive_area()[header_bytes..length]
                .copy_from_slice(&self.relay[from..from + range.len()]);
            buffer.set_len(length);
            pending.frame.write_headers(pending.next, buffer.bytes_mut());
            pending.next += 1;
            done.packets += 1;
            done.bytes += length as u64;
            batch.push(buffer);
        }
        self.pending = None;
    }

    /// Gathers the scattered bytes of a read in `relay`.
    fn gather(&mut self, layout: Layout, staged: &mut Batch, frame_bytes: usize) {
        let mut at = 0;
        for (index, buffer) in staged.iter_mut().enumerate() {
            let (from, length) = if index == 0 { (0, layout.first) } else { (layout.room, layout.each) };
            let length = length.min(frame_bytes - at);
            self.relay[at..at + length].copy_from_slice(&buffer.receive_area()[from..from + length]);
            at += length;
        }
        self.relay[at..frame_bytes].copy_from_slice(&self.tail[..frame_bytes - at]);
    }

    /// Predicts the next super-frame to be like this one, or only slowly shorter than those before it.
    fn learn(&mut self, frame: &SuperFrame) {
        let before = self.guess.map_or(0, |g| g.segments);
        let segments = frame.segments().max(before - before.div_ceil(8)).max(1);
        self.guess = Some(Guess { header_bytes: frame.header_bytes(), gso_size: frame.gso_size(), segments });
    }
}

impl Layout {
    fn slices<'a>(
        &self,
        vnet: &'a mut [u8],
        staged: &'a mut Batch,
        tail: &'a mut [u8],
    ) -> ArrayVec<IoSliceMut<'a>, { BATCH_SIZE + 2 }> {
        let mut slices = ArrayVec::new();
        slices.push(IoSliceMut::new(vnet));
        for (index, buffer) in staged.iter_mut().enumerate() {
            let (from, length) = if index == 0 { (0, self.first) } else { (self.room, self.each) };
            slices.push(IoSliceMut::new(&mut buffer.receive_area()[from..from + length]));
        }
        slices.push(IoSliceMut::new(tail));
        slices
    }
}

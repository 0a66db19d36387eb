//! What a device has received: each mbuf is checked before it is read.

use crate::device::DpdkDevice;
use crate::mbuf::{Known, L4_BAD, L4_GOOD, L4_NONE, Received, flags};
use arrayvec::ArrayVec;
use std::ffi::c_void;
use std::io;
use testudo_link::partial_checksum;
use testudo_packet::{BATCH_SIZE, Batch, Buffer, DropReason, Pool};

/// Most mbufs of one packet. A jumbo frame has five, a super-frame of 64 KiB has 38.
pub(crate) const MOST_PARTS: usize = 48;

/// Mbufs that go back to their mempool after a burst.
type Done = ArrayVec<*mut c_void, BATCH_SIZE>;
/// The mbufs of one packet.
type Parts = ArrayVec<(Known, Received), MOST_PARTS>;

/// What a burst has to work with.
struct Burst<'a> {
    fresh: Batch,
    done: Done,
    pool: &'a mut Pool,
    batch: &'a mut Batch,
}

impl DpdkDevice {
    /// Adds packets that came to a queue to `batch`, as many as fit.
    pub(crate) fn receive(&mut self, queue: u16, pool: &mut Pool, batch: &mut Batch) -> io::Result<()> {
        if !self.backlog.is_empty() && !self.deliver_backlog(pool, batch) {
            return Ok(());
        }
        let room = batch.remaining_capacity().min(pool.available());
        let mut handles = [std::ptr::null_mut(); BATCH_SIZE];
        let Some(handles) = handles.get_mut(..room).filter(|handles| !handles.is_empty()) else {
            return Ok(());
        };
        // SAFETY: the device is started with this queue, and belongs to one thread.
        let count = unsafe { self.plugin.receive(self.port, queue, handles) };
        let came = handles.get(..usize::from(count));
        let came = came.ok_or_else(|| {
            io::Error::other("the driver says that it wrote more than it was given room for")
        })?;
        if came.is_empty() {
            return Ok(());
        }
        let mut burst = Burst { fresh: Batch::new(), done: Done::new(), pool, batch };
        burst.pool.pop_many(came.len(), &mut burst.fresh);
        for &handle in came {
            self.take(handle, &mut burst);
        }
        self.mbufs.put(&burst.done);
        burst.pool.recycle_all(&mut burst.fresh);
        if !self.backlog.is_empty() {
            self.deliver_backlog(pool, batch);
        }
        Ok(())
    }

    /// Delivers what came with and after a super-frame. Returns whether all of it is delivered.
    #[cold]
    fn deliver_backlog(&mut self, pool: &mut Pool, batch: &mut Batch) -> bool {
        if let Ok(security) = &mut self.security {
            // Verdicts on packets that waited were noted in an earlier call.
            security.look_at_all();
        }
        self.backlog.deliver(pool, batch)
    }

    /// Takes the packet that begins with this mbuf.
    #[inline]
    fn take(&mut self, handle: *mut c_void, burst: &mut Burst<'_>) {
        let Some(known) = self.mbufs.claim(handle) else {
            return self.refuse(DropReason::DeviceFrameUnknown, burst);
        };
        let received = known.received();
        if received.segments != 1 || !self.mbufs.exchanges() {
            return self.take_parts(known, received, burst);
        }
        let outcome = match (self.mbufs.check(known, &received), burst.fresh.pop()) {
            (Err(reason), fresh) => {
                burst.fresh.extend(fresh);
                Err(reason)
            }
            (Ok(()), None) => Err(DropReason::PoolEmpty),
            (Ok(()), Some(fresh)) if burst.pool.region().owns(&fresh) => {
                Ok(self.mbufs.exchange(known, &received, fresh))
            }
            (Ok(()), Some(fresh)) => {
                burst.fresh.push(fresh);
                return self.take_parts(known, received, burst);
            }
        };
        self.give_back(known, &mut burst.done);
        match outcome {
            Ok(packet) => self.deliver(packet, known, received.flags, burst),
            Err(reason) => self.refuse(reason, burst),
        }
    }

    /// Hands a packet up, whose first mbuf this is. It is a part of the loop over a burst, though called
    /// twice.
    #[inline(always)]
    fn deliver(&mut self, mut packet: Buffer, known: Known, said: u64, burst: &mut Burst<'_>) {
        if said & flags::JOINED != 0 {
            let is_one = self.backlog.push_super_frame(packet, known.segment_bytes(), burst.pool);
            self.statistics.super_frames_cut += u64::from(is_one);
            return;
        }
        let verdict = said & L4_NONE;
        self.statistics.bad_checksums += u64::from(verdict == L4_BAD);
        if self.completes_checksums && verdict != L4_GOOD && partial_checksum::complete(packet.bytes_mut()) {
            self.statistics.checksums_completed += 1;
        }
        if let Ok(security) = &mut self.security {
            security.note(&mut packet, said);
        }
        if self.backlog.is_empty() {
            burst.batch.push(packet);
        } else {
            self.backlog.push(packet);
        }
    }

    /// A packet of several mbufs, or of one that keeps its room: it is copied into one buffer.
    #[cold]
    fn take_parts(&mut self, first: Known, received: Received, burst: &mut Burst<'_>) {
        let (mut parts, mut lost) = (Parts::new(), None);
        let (mut known, mut part, mut left) = (first, received, received.segments);
        loop {
            let next = known.next();
            lost = lost.or(self.mbufs.check(known, &part).err());
            if parts.try_push((known, part)).is_err() {
                lost = lost.or(Some(DropReason::ReceiveTruncated));
                known.unchain();
                self.give_back(known, &mut burst.done);
            }
            left = left.saturating_sub(1);
            // A part is an mbuf that the device has, and each is claimed once: so every chain ends.
            if next.is_null() || left == 0 {
                break;
            }
            let Some(claimed) = self.mbufs.claim(next) else {
                lost = lost.or(Some(DropReason::DeviceFrameUnknown));
                break;
            };
            (known, part) = (claimed, claimed.received());
        }
        let whole = match lost {
            Some(reason) => Err(reason),
            None => self.gather(&parts, burst),
        };
        for (known, _) in parts {
            known.unchain();
            self.give_back(known, &mut burst.done);
        }
        match whole {
            Ok(packet) => {
                self.statistics.rx_copied += 1;
                self.deliver(packet, first, received.flags, burst);
            }
            Err(reason) => self.refuse(reason, burst),
        }
    }

    /// Copies the parts of a packet into one buffer.
    fn gather(&mut self, parts: &Parts, burst: &mut Burst<'_>) -> Result<Buffer, DropReason> {
        let bytes = parts.iter().map(|(_, part)| usize::from(part.bytes)).sum();
        if bytes > burst.pool.packet_bytes() {
            return Err(DropReason::ReceiveTruncated);
        }
        let fits = bytes <= burst.pool.frame_packet_bytes();
        let fresh = if fits { burst.fresh.pop() } else { None };
        let mut whole = fresh.or_else(|| burst.pool.pop_for(bytes)).ok_or(DropReason::PoolEmpty)?;
        let mut at = 0;
        for (known, part) in parts {
            let end = at + usize::from(part.bytes);
            self.mbufs.read(*known, part, &mut whole.receive_area()[at..end]);
            at = end;
        }
        whole.set_len(at);
        Ok(whole)
    }

    #[inline]
    fn give_back(&self, known: Known, done: &mut Done) {
        if done.is_full() {
            self.mbufs.put(done);
            done.clear();
        }
        done.push(known.handle());
    }

    /// Counts a packet that is dropped before it had a buffer.
    #[cold]
    fn refuse(&mut self, reason: DropReason, burst: &mut Burst<'_>) {
        match reason {
            DropReason::DeviceFrameUnknown => self.statistics.unknown_frames += 1,
            DropReason::DeviceFrameBounds => self.statistics.out_of_bounds += 1,
            _ => {}
        }
        burst.pool.count(reason, 1);
    }
}

//! What a device is to send: packets stay where they are, in the frames of their buffers.

use crate::checksums;
use crate::device::DpdkDevice;
use crate::mbuf::Known;
use crate::receive::MOST_PARTS;
use arrayvec::ArrayVec;
use std::ffi::c_void;
use std::io;
use testudo_packet::{BATCH_SIZE, Batch, Buffer, DropReason, Mark, Pool};

/// Bytes of an Ethernet header, without which there is no frame.
const ETHERNET_BYTES: usize = 14;
/// The shortest frame of Ethernet, without its check sequence: not all drivers have it padded.
const SHORTEST: usize = 60;

/// What a call sent.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Transmitted {
    pub packets: u64,
    pub bytes: u64,
    pub taken: usize,
}

/// Packets that are ready: the first mbuf of each, and whether it has the packet's own frame.
type Ready = ArrayVec<(Known, bool), BATCH_SIZE>;

impl DpdkDevice {
    /// Sends packets from the front of `batch`, as many as the device takes.
    pub(crate) fn transmit(&mut self, pool: &mut Pool, batch: &mut Batch) -> io::Result<Transmitted> {
        if self.joins && batch.len() > 1 {
            return self.transmit_joined(pool, batch);
        }
        let mut total = Transmitted::default();
        loop {
            while let Some(reason) = batch.first().and_then(|buffer| self.refusal(buffer)) {
                pool.discard(batch.remove(0), reason);
                total.taken += 1;
            }
            let count = batch.iter().take_while(|buffer| self.refusal(buffer).is_none()).count();
            if !self.transmit_some(count, pool, batch, &mut total)? || batch.is_empty() {
                return Ok(total);
            }
        }
    }

    /// Sends the first `count` packets of `batch`, none of which is refused. Returns whether all were sent.
    #[inline(always)]
    pub(crate) fn transmit_some(
        &mut self,
        count: usize,
        pool: &mut Pool,
        batch: &mut Batch,
        total: &mut Transmitted,
    ) -> io::Result<bool> {
        if count == 0 {
            return Ok(true);
        }
        // Handed around by reference: to move the list costs cycles in every burst.
        let mut ready = Ready::new();
        self.prepare(&mut batch[..count], &mut ready)?;
        let secured = self.secure(&ready, batch);
        if secured < ready.len() {
            self.take_back(&ready[secured..], &mut batch[secured..])?;
            ready.truncate(secured);
        }
        let sent = self.send(&ready, pool, batch, total)?;
        total.taken += sent;
        if sent == 0 {
            // SAFETY: the device is started with this queue, and belongs to one thread.
            unsafe { self.plugin.reap(self.port, 0) };
        }
        Ok(sent == count)
    }

    /// Why a packet cannot be sent at all.
    #[inline]
    pub(crate) fn refusal(&self, buffer: &Buffer) -> Option<DropReason> {
        match buffer.len() {
            ..ETHERNET_BYTES => Some(DropReason::SendRefused),
            bytes if bytes > self.longest_frame => Some(DropReason::MessageTooLong),
            _ if self.cannot_seal(buffer) => Some(DropReason::NotSealed),
            _ => None,
        }
    }

    /// Describes packets from the front, as many as there are mbufs for.
    fn prepare(&mut self, packets: &mut [Buffer], ready: &mut Ready) -> io::Result<()> {
        let mut handles = [std::ptr::null_mut(); BATCH_SIZE];
        let leaves_checksums = self.leaves_udp_checksums;
        let got = self.mbufs.get(&mut handles[..packets.len()]);
        let mut used = 0;
        for (buffer, &handle) in packets.iter_mut().zip(&handles[..got]) {
            let known = self.mbufs.own(handle)?;
            if buffer.len() < SHORTEST {
                // A buffer without room for that has a packet of another length.
                let _kept = buffer.append(SHORTEST - buffer.len());
            }
            let asked = leaves_checksums && checksums::leave_to_device(buffer);
            let in_place = if self.shares(buffer) { self.mbufs.in_place(buffer) } else { None };
            match in_place {
                Some(what) => {
                    known.prepare(what);
                    self.mbufs.lend(known);
                }
                None if self.copy(known, buffer)? => {}
                None => {
                    if asked {
                        checksums::take_off(buffer);
                    }
                    break;
                }
            }
            if asked {
                self.statistics.checksums_left += 1;
                known.request(checksums::REQUEST.0, checksums::REQUEST.1);
            }
            ready.push((known, in_place.is_some()));
            used += 1;
        }
        self.mbufs.put(&handles[used..got]);
        Ok(())
    }

    /// Whether a packet is in memory that the device shares.
    #[inline]
    pub(crate) fn shares(&self, buffer: &Buffer) -> bool {
        let offset = buffer.identity().unwrap_or(0).wrapping_sub(self.memory.start);
        self.mbufs.exchanges() && offset < self.memory.len()
    }

    /// Copies a packet into the room of this mbuf, and of more if it is long. Otherwise nothing has changed.
    #[cold]
    fn copy(&mut self, first: Known, buffer: &Buffer) -> io::Result<bool> {
        let mut parts = buffer.bytes().chunks(self.part_bytes);
        let mut handles = [std::ptr::null_mut(); MOST_PARTS];
        // Longer packets are refused.
        let more = parts.len().saturating_sub(1).min(MOST_PARTS - 1);
        let got = self.mbufs.get(&mut handles[..more]);
        if got < more {
            self.mbufs.put(&handles[..got]);
            return Ok(false);
        }
        let packet_bytes = u32::try_from(buffer.len()).unwrap_or(0);
        let segments = u16::try_from(more + 1).unwrap_or(0);
        let mut what = self.mbufs.write(first, parts.next().unwrap_or(&[]));
        (what.packet_bytes, what.segments) = (packet_bytes, segments);
        first.prepare(what);
        self.mbufs.lend(first);
        let mut last = first;
        for (part, &handle) in parts.zip(&handles[..got]) {
            let known = self.mbufs.own(handle)?;
            let what = self.mbufs.write(known, part);
            known.prepare(what);
            self.mbufs.lend(known);
            last.set_next(Some(known));
            last = known;
        }
        last.set_next(None);
        self.statistics.tx_copied += 1;
        Ok(true)
    }

    /// Hands mbufs to the device. Buffers of those that it takes go to the pool. Returns how many that were.
    fn send(
        &mut self,
        ready: &Ready,
        pool: &mut Pool,
        batch: &mut Batch,
        total: &mut Transmitted,
    ) -> io::Result<usize> {
        let mut handles: ArrayVec<*mut c_void, BATCH_SIZE> =
            ready.iter().map(|(known, _)| known.handle()).collect();
        if handles.is_empty() {
            return Ok(0);
        }
        // SAFETY: the device is started with this queue, and belongs to one thread. The mbufs are of its
        // mempool, taken from there. They describe frames whose buffers are in `batch`, and below in `held`,
        // where they stay until their mbuf is free; or their own frames, which are there as well.
        let sent = usize::from(unsafe { self.plugin.send(self.port, 0, &mut handles) });
        if sent > ready.len() {
            return Err(io::Error::other("the driver says that it sent more than it was given"));
        }
        let mut free = Batch::new();
        for (mut buffer, &(known, is_in_place)) in batch.drain(..sent).zip(ready) {
            buffer.set_mark(Mark::NONE);
            total.bytes += u64::try_from(buffer.len()).unwrap_or(0);
            free.push(if is_in_place { self.mbufs.sent(known, buffer) } else { buffer });
        }
        total.packets += u64::try_from(sent).unwrap_or(0);
        pool.recycle_all(&mut free);
        if sent < ready.len() {
            self.take_back(&ready[sent..], batch)?;
        }
        Ok(sent)
    }

    /// Frees the mbufs of packets that were not sent.
    #[cold]
    fn take_back(&mut self, unsent: &[(Known, bool)], batch: &mut [Buffer]) -> io::Result<()> {
        // Before marks are taken off, with which the device would have been asked for cryptography.
        for ((first, _), buffer) in unsent.iter().zip(batch) {
            if first.wants_udp_checksum() {
                self.statistics.checksums_left -= 1;
                checksums::take_off(buffer);
            }
        }
        self.unsecure(unsent);
        for (first, is_in_place) in unsent {
            self.statistics.tx_copied -= u64::from(!is_in_place);
            let mut next = first.handle();
            for _ in 0..MOST_PARTS {
                if next.is_null() {
                    break;
                }
                let known = self.mbufs.own(next)?;
                // Of a packet in one mbuf, the last user of that says what is next.
                next = if *is_in_place { std::ptr::null_mut() } else { known.next() };
                self.mbufs.unsent(known);
                self.mbufs.put(&[known.handle()]);
            }
        }
        Ok(())
    }
}

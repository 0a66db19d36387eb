//! Where buffers come from and go back to.

use crate::{Batch, Buffer, DropCounters, DropReason, Journal, move_buffers};

/// Headroom of a received packet: the longest headers, rounded up to cache lines, and 16 bytes. With these,
/// an engine that processes a text in vectors of 64 bytes, the first of which it shares with the block before
/// the text, accesses whole cache lines.
///
/// Longest are those of AH over ESP in IPv6: a tunnel's header (40), ESP and IV (24), AH (48), and a copy of
/// header and AH (88), which AH changes while its ICV is computed.
pub const HEADROOM_BYTES: usize = 256 + 16;

/// Tailroom of a received packet: padding without TFC (up to 255), trailer and the longest ICV (32), rounded
/// up.
pub const TAILROOM_BYTES: usize = 320;

/// Buffers that are allocated at the start: a few batches.
const PREPARED: usize = 256;

/// The buffers of one worker, up to a fixed number, and its drops by reason.
///
/// A few exist from the start. The others are allocated when that many are first in use at once, and are
/// kept: allocated in advance, long buffers would take memory without need.
///
/// When the pool is empty, [`pop`](Self::pop) returns `None`: ports then leave packets in the kernel's queues
/// (backpressure).
pub struct Pool {
    free: Vec<Buffer>,
    /// Buffers that exist, free or in use.
    made: usize,
    size: usize,
    packet_bytes: usize,
    created: u64,
    merged: u64,
    drops: DropCounters,
    /// Follows single packets, if anybody wants that.
    journal: Option<Box<dyn Journal>>,
}

impl Pool {
    /// A pool of `count` buffers, each for a packet of up to `packet_bytes`, plus [`HEADROOM_BYTES`] and
    /// [`TAILROOM_BYTES`].
    #[must_use]
    pub fn new(count: usize, packet_bytes: usize) -> Self {
        let made = count.min(PREPARED);
        let drops = DropCounters::default();
        let free = Vec::with_capacity(count);
        let mut pool =
            Self { free, made, size: count, packet_bytes, created: 0, merged: 0, drops, journal: None };
        pool.free
            .extend((0..made).map(|_| Buffer::with_capacity(HEADROOM_BYTES + packet_bytes + TAILROOM_BYTES)));
        pool
    }

    /// The same pool, whose packets `journal` follows.
    #[must_use]
    pub fn with_journal(self, journal: Box<dyn Journal>) -> Self {
        Self { journal: Some(journal), ..self }
    }

    /// What follows this pool's packets, if anything does.
    #[must_use]
    #[inline]
    pub fn journal(&mut self) -> Option<&mut (dyn Journal + 'static)> {
        self.journal.as_deref_mut()
    }

    /// A buffer, empty, with [`HEADROOM_BYTES`] before it; `None` when all are in use.
    #[must_use]
    pub fn pop(&mut self) -> Option<Buffer> {
        let mut buffer = self.free.pop().or_else(|| self.make())?;
        buffer.reset(HEADROOM_BYTES);
        Some(buffer)
    }

    /// [Pops](Self::pop) up to `count` buffers, as many as there are and as `buffers` has room for.
    #[inline]
    pub fn pop_many(&mut self, count: usize, buffers: &mut Batch) {
        let (count, before) = (count.min(buffers.remaining_capacity()), buffers.len());
        let taken = move_buffers::last_to_batch(&mut self.free, count, buffers);
        buffers[before..].iter_mut().for_each(|buffer| buffer.reset(HEADROOM_BYTES));
        if taken < count {
            buffers.extend(std::iter::from_fn(|| self.pop()).take(count - taken));
        }
    }

    fn make(&mut self) -> Option<Buffer> {
        let may = self.made < self.size;
        self.made += usize::from(may);
        may.then(|| Buffer::with_capacity(self.capacity()))
    }

    /// Like [`pop`](Self::pop), for a packet that no port received: a fragment, a reply, a keepalive. It is
    /// counted, so that the books balance.
    #[must_use]
    pub fn create(&mut self) -> Option<Buffer> {
        let buffer = self.pop()?;
        self.created += 1;
        Some(buffer)
    }

    /// [Creates](Self::create) a packet that is made of another: a fragment of it, or a message about it. It
    /// has the other's interface.
    #[must_use]
    pub fn create_from(&mut self, origin: &Buffer) -> Option<Buffer> {
        let mut buffer = self.create()?;
        buffer.set_interface(origin.interface());
        if self.journal.is_some() {
            self.note_derived(&buffer, origin);
        }
        Some(buffer)
    }

    /// Takes back the buffer of a packet that was sent.
    pub fn recycle(&mut self, buffer: Buffer) {
        if self.free.len() < self.made && buffer.capacity() >= self.capacity() {
            self.free.push(buffer);
        }
    }

    /// [Recycles](Self::recycle) all buffers of a batch.
    #[inline]
    pub fn recycle_all(&mut self, batch: &mut Batch) {
        let capacity = self.capacity();
        let all_ours = batch.iter().all(|buffer| buffer.capacity() >= capacity);
        if all_ours && batch.len() <= self.made - self.free.len() {
            move_buffers::all_to_list(batch, &mut self.free);
        } else {
            batch.drain(..).for_each(|buffer| self.recycle(buffer));
        }
    }

    /// Takes back the buffer of a dropped packet, and counts the reason.
    pub fn discard(&mut self, buffer: Buffer, reason: DropReason) {
        self.drops.add(reason, 1);
        if self.journal.is_some() {
            self.note_dropped(&buffer, reason);
        }
        self.recycle(buffer);
    }

    /// Takes back the buffer of a packet whose bytes `whole` holds now: a fragment that was copied into its
    /// datagram. Only that one is sent or dropped later.
    pub fn merge(&mut self, buffer: Buffer, whole: &Buffer) {
        self.merged += 1;
        if self.journal.is_some() {
            self.note_joined(&buffer, whole);
        }
        self.recycle(buffer);
    }

    /// What a journal is told is apart, so that nobody's fast path has it inlined.
    #[cold]
    #[inline(never)]
    fn note_derived(&mut self, buffer: &Buffer, origin: &Buffer) {
        if let Some(journal) = &mut self.journal {
            journal.derived(buffer, origin);
        }
    }

    #[cold]
    #[inline(never)]
    fn note_joined(&mut self, part: &Buffer, whole: &Buffer) {
        if let Some(journal) = &mut self.journal {
            journal.joined(part, whole);
        }
    }

    #[cold]
    #[inline(never)]
    fn note_dropped(&mut self, buffer: &Buffer, reason: DropReason) {
        if let Some(journal) = &mut self.journal {
            journal.dropped(buffer, reason);
        }
    }

    /// Writes off leaked buffers so that replacements may be allocated. The leaked ones must not come back:
    /// the pool would exceed its size.
    pub fn forget(&mut self, buffers: usize) {
        self.made = self.made.saturating_sub(buffers).max(self.free.len());
    }

    /// Counts packets that were lost before they had a buffer.
    pub fn count(&mut self, reason: DropReason, packets: u64) {
        self.drops.add(reason, packets);
    }

    /// Longest packet that a buffer of this pool takes, in bytes.
    #[must_use]
    pub fn packet_bytes(&self) -> usize {
        self.packet_bytes
    }

    /// Buffers that are free now, allocated or not.
    #[must_use]
    pub fn available(&self) -> usize {
        self.free.len() + self.size - self.made
    }

    /// Buffers of the pool, free or in use.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Packets created so far.
    #[must_use]
    pub fn created(&self) -> u64 {
        self.created
    }

    /// Packets that became a part of another one so far.
    #[must_use]
    pub fn merged(&self) -> u64 {
        self.merged
    }

    /// Drops so far, by reason.
    #[must_use]
    pub fn drops(&self) -> &DropCounters {
        &self.drops
    }

    fn capacity(&self) -> usize {
        HEADROOM_BYTES + self.packet_bytes + TAILROOM_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BATCH_SIZE;

    #[test]
    fn an_empty_pool_says_so_and_recovers() {
        let mut pool = Pool::new(2, 1500);
        let (a, b) = (pool.pop().unwrap(), pool.pop().unwrap());
        assert!(pool.pop().is_none());
        pool.recycle(a);
        pool.discard(b, DropReason::NotIp);
        assert_eq!(pool.available(), 2);
        assert_eq!(pool.drops().get(DropReason::NotIp), 1);
        assert_eq!(pool.drops().total(), 1);
    }

    #[test]
    fn buffers_are_made_on_demand_up_to_the_size() {
        let mut pool = Pool::new(2 * PREPARED, 100);
        assert_eq!((pool.free.len(), pool.available()), (PREPARED, 2 * PREPARED));
        let taken: Vec<_> = std::iter::from_fn(|| pool.pop()).collect();
        assert_eq!((taken.len(), pool.available()), (2 * PREPARED, 0));
        taken.into_iter().for_each(|buffer| pool.recycle(buffer));
        assert_eq!((pool.free.len(), pool.available()), (2 * PREPARED, 2 * PREPARED));
    }

    #[test]
    fn pop_many_gives_as_many_as_exist_and_fit() {
        let mut pool = Pool::new(BATCH_SIZE + 10, 100);
        let (mut first, mut second) = (Batch::new(), Batch::new());
        pool.pop_many(3, &mut first);
        assert_eq!(first.len(), 3);
        pool.pop_many(BATCH_SIZE, &mut first);
        assert_eq!((first.len(), pool.available()), (BATCH_SIZE, 10));
        pool.pop_many(20, &mut second);
        assert_eq!((second.len(), pool.available()), (10, 0));
    }

    #[test]
    fn forgotten_buffers_are_replaced_and_no_others() {
        let mut pool = Pool::new(4, 100);
        let lost = [pool.pop().unwrap(), pool.pop().unwrap(), pool.pop().unwrap()];
        assert_eq!(pool.available(), 1);
        pool.forget(lost.len());
        assert_eq!(pool.available(), 4);
        let taken: Vec<_> = std::iter::from_fn(|| pool.pop()).collect();
        assert_eq!((taken.len(), pool.available()), (4, 0));
        taken.into_iter().for_each(|buffer| pool.recycle(buffer));
        pool.forget(100);
        assert_eq!(pool.available(), 4, "what is free was not lost");
        lost.into_iter().for_each(|buffer| pool.recycle(buffer));
        assert_eq!((pool.free.len(), pool.available()), (4, 4), "nothing comes in beyond the size");
    }

    #[test]
    fn a_merged_packet_gives_its_buffer_back_and_is_no_drop() {
        let mut pool = Pool::new(2, 1500);
        let (datagram, fragment) = (pool.pop().unwrap(), pool.pop().unwrap());
        pool.merge(fragment, &datagram);
        assert_eq!((pool.merged(), pool.drops().total(), pool.available()), (1, 0, 1));
        pool.recycle(datagram);
        assert_eq!(pool.available(), 2);
    }

    #[test]
    fn a_foreign_buffer_does_not_enter_the_pool() {
        let mut pool = Pool::new(1, 1500);
        let own = pool.pop().unwrap();
        pool.recycle(Buffer::with_capacity(64));
        assert_eq!(pool.available(), 0);
        pool.recycle(own);
        pool.recycle(Buffer::with_capacity(4096));
        assert_eq!(pool.available(), 1);
    }

    #[test]
    fn a_batch_is_recycled_like_its_buffers_one_by_one() {
        let mut pool = Pool::new(3, 100);
        let mut batch = Batch::new();
        pool.pop_many(3, &mut batch);
        pool.recycle_all(&mut batch);
        assert_eq!((batch.len(), pool.available()), (0, 3));
        pool.pop_many(2, &mut batch);
        batch.push(Buffer::with_capacity(64));
        pool.recycle_all(&mut batch);
        assert_eq!((batch.len(), pool.available()), (0, 3), "what is too short stays out");
        pool.pop_many(1, &mut batch);
        batch.extend([Buffer::with_capacity(4096), Buffer::with_capacity(4096)]);
        pool.recycle_all(&mut batch);
        assert_eq!((batch.len(), pool.free.len()), (0, 3), "no more than were made");
    }

    #[test]
    fn a_taken_buffer_has_room_on_both_sides() {
        let buffer = Pool::new(1, 1500).pop().unwrap();
        assert_eq!(buffer.headroom(), HEADROOM_BYTES);
        assert!(buffer.tailroom() >= 1500 + TAILROOM_BYTES);
    }
}

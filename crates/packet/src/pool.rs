//! Where buffers come from and go back to.

use crate::frames::Frames;
use crate::{Batch, Buffer, DropCounters, DropReason, Interface, Journal, Mark, PageChoice, Region};

/// Headroom of a received packet: the longest headers, rounded up to cache lines, and 16 bytes. With these,
/// an engine that processes a text in vectors of 64 bytes, the first of which it shares with the block before
/// the text, accesses whole cache lines.
///
/// Longest are those of AH over ESP in IPv6: a tunnel's header (40), ESP and IV (24), AH (48), and a copy of
/// header and AH (88), which AH changes while its ICV is computed.
pub const HEADROOM_BYTES: usize = 256 + 16;

/// Tailroom of a received packet. Padding, trailer and the longest ICV take 64 bytes. A datagram whose later
/// fragments come first is put together after the longest headers of a fragment (256 bytes), while it may
/// have none.
pub const TAILROOM_BYTES: usize = 256;

/// A buffer of another pool, and why its packet was dropped; `None` if it was sent.
#[derive(Debug)]
pub struct Stray {
    /// The buffer, which goes back to its pool.
    pub buffer: Buffer,
    /// Why its packet was not sent.
    pub dropped: Option<DropReason>,
}

/// The buffers of one worker, up to a fixed number, and its drops by reason.
///
/// Most packets fit a *frame*, which is as long as a link's packets. Where longer datagrams may come, a pool
/// has *long* buffers for these, too: a datagram of 64 KiB would need a chain of frames, for which every
/// layer would pay.
///
/// When there is no frame left, [`pop`](Self::pop) returns `None`: ports then leave packets in the kernel's
/// queues (backpressure).
pub struct Pool {
    frames: Frames,
    long: Option<Frames>,
    /// Buffers in use that were written off in place of others of the other length.
    mistaken: usize,
    created: u64,
    merged: u64,
    linearised: u64,
    drops: DropCounters,
    /// Drops of each interface, where there are several.
    drops_by_interface: Vec<DropCounters>,
    /// How many of the drops are in these.
    drops_at_interfaces: u64,
    /// The interface that a port receives from now: its buffers do not say it yet.
    receiving: Option<Interface>,
    /// Follows single packets, if anybody wants that.
    journal: Option<Box<dyn Journal>>,
    /// Marks of dropped packets that a device was to seal.
    lost_marks: Vec<Mark>,
    /// Buffers of other pools that came here, if they are kept.
    strays: Option<Vec<Stray>>,
}

impl Pool {
    /// A pool of `count` frames, each for a packet of up to `packet_bytes`, plus [`HEADROOM_BYTES`] and
    /// [`TAILROOM_BYTES`].
    #[must_use]
    pub fn new(count: usize, packet_bytes: usize) -> Self {
        Self::on(count, packet_bytes, PageChoice::Largest)
    }

    /// The same on these pages.
    #[must_use]
    pub fn on(count: usize, packet_bytes: usize, pages: PageChoice) -> Self {
        Self::of(Frames::new(count, packet_bytes, pages))
    }

    fn of(frames: Frames) -> Self {
        Self {
            frames,
            long: None,
            mistaken: 0,
            created: 0,
            merged: 0,
            linearised: 0,
            drops: DropCounters::default(),
            drops_by_interface: Vec::new(),
            drops_at_interfaces: 0,
            receiving: None,
            journal: None,
            lost_marks: Vec::new(),
            strays: None,
        }
    }

    /// A pool for a port that sends another pool's packets, on another thread than that pool's: it has next
    /// to no buffers, and [keeps](Self::strays) what comes back with what became of it. Drops are not counted
    /// here.
    #[must_use]
    pub fn for_strays() -> Self {
        Self { strays: Some(Vec::new()), ..Self::on(1, 64, PageChoice::Small) }
    }

    /// What came back to a pool [for strays](Self::for_strays); to be emptied.
    pub fn strays(&mut self) -> Option<&mut Vec<Stray>> {
        self.strays.as_mut()
    }

    /// A pool of `count` frames for packets of up to `packet_bytes`, as long as devices share memory most
    /// readily: 2,048 bytes, or 4,096 where that is too short (AF_XDP's aligned chunks, none of which crosses
    /// a page). Elsewhere frames of such lengths are slower: the headers of all packets share a part of the
    /// cache's sets.
    ///
    /// # Panics
    /// If 4,096 bytes are too short: [`HEADROOM_BYTES`] and [`TAILROOM_BYTES`] are needed beside the packet.
    #[must_use]
    pub fn for_devices(count: usize, packet_bytes: usize) -> Self {
        Self::of(Frames::of_power_of_two(count, packet_bytes, PageChoice::Largest))
    }

    /// The same pool, with `count` long buffers for packets of up to `packet_bytes`. They lie on small pages,
    /// of which only those with bytes of packets take memory.
    #[must_use]
    pub fn with_long(self, count: usize, packet_bytes: usize) -> Self {
        let long = packet_bytes > self.frames.packet_bytes();
        Self { long: long.then(|| Frames::new(count, packet_bytes, PageChoice::Small)), ..self }
    }

    /// The same pool, whose packets `journal` follows.
    #[must_use]
    pub fn with_journal(self, journal: Box<dyn Journal>) -> Self {
        Self { journal: Some(journal), ..self }
    }

    /// Counts drops by interface, too, from now on. Buffers must say [which](Buffer::interface) theirs is.
    pub fn count_by_interface(&mut self, interfaces: usize) {
        self.drops_by_interface.resize_with(interfaces.min(Interface::MOST), DropCounters::default);
    }

    /// Whether drops are counted by interface.
    #[must_use]
    #[inline]
    pub fn counts_by_interface(&self) -> bool {
        !self.drops_by_interface.is_empty()
    }

    /// A port receives from this interface, or has done so (`None`): meanwhile buffers have the interface of
    /// an earlier packet.
    #[inline]
    pub fn set_receiving(&mut self, interface: Option<Interface>) {
        self.receiving = interface;
    }

    /// Drops of packets that an interface delivered, or that came to an SA of its tunnels; `None` if they are
    /// not counted.
    #[must_use]
    pub fn drops_of(&self, interface: Interface) -> Option<&DropCounters> {
        self.drops_by_interface.get(usize::from(interface.0))
    }

    /// How many drops are those of an interface: while this stays, [`drops_of`](Self::drops_of) does.
    #[must_use]
    pub fn drops_at_interfaces(&self) -> u64 {
        self.drops_at_interfaces
    }

    /// What follows this pool's packets, if anything does.
    #[must_use]
    #[inline]
    pub fn journal(&mut self) -> Option<&mut (dyn Journal + 'static)> {
        self.journal.as_deref_mut()
    }

    /// A frame, empty, with [`HEADROOM_BYTES`] before it; `None` when all are in use.
    #[must_use]
    #[inline]
    pub fn pop(&mut self) -> Option<Buffer> {
        self.frames.pop()
    }

    /// An empty buffer for a packet of `bytes`, a frame where that is enough; `None` when all such are in
    /// use, or none is that long.
    #[must_use]
    pub fn pop_for(&mut self, bytes: usize) -> Option<Buffer> {
        if bytes <= self.frames.packet_bytes() {
            return self.pop();
        }
        self.long.as_mut().filter(|long| bytes <= long.packet_bytes())?.pop()
    }

    /// [Pops](Self::pop) up to `count` frames, as many as there are and as `buffers` has room for.
    #[inline]
    pub fn pop_many(&mut self, count: usize, buffers: &mut Batch) {
        self.frames.pop_many(count, buffers);
    }

    /// Like [`pop_for`](Self::pop_for), for a packet that no port received: a fragment, a reply, a keepalive.
    /// It is counted, so that the books balance.
    #[must_use]
    pub fn create(&mut self, bytes: usize) -> Option<Buffer> {
        let mut buffer = self.pop_for(bytes)?;
        self.created += 1;
        if self.counts_by_interface() {
            buffer.set_interface(Interface::NONE);
        }
        Some(buffer)
    }

    /// [Creates](Self::create) a packet that is made of another: a fragment of it, or a message about it. It
    /// has the other's interface.
    #[must_use]
    pub fn create_from(&mut self, origin: &Buffer, bytes: usize) -> Option<Buffer> {
        let mut buffer = self.create(bytes)?;
        buffer.set_interface(origin.interface());
        if self.journal.is_some() {
            self.note_derived(&buffer, origin);
        }
        Some(buffer)
    }

    /// Moves a packet to a long buffer, whose bytes from the packet's start on are at least `bytes`. The
    /// packet keeps its offset.
    ///
    /// # Errors
    /// The same buffer, unchanged, if no buffer is that long, or all such are in use.
    pub fn lengthen(&mut self, buffer: Buffer, bytes: usize) -> Result<Buffer, Buffer> {
        if buffer.is_chain() {
            return Err(buffer);
        }
        let Some(mut long) = self.long.as_mut().and_then(Frames::pop) else { return Err(buffer) };
        let start = buffer.headroom();
        if start + bytes > long.capacity() || self.long.as_ref().is_none_or(|all| all.own(&buffer)) {
            self.recycle(long);
            return Err(buffer);
        }
        long.reset(start);
        long.receive_area()[..buffer.len()].copy_from_slice(buffer.bytes());
        long.set_len(buffer.len());
        long.set_interface(buffer.interface());
        if let Some(journal) = &mut self.journal {
            journal.moved(&buffer, &long);
        }
        self.recycle(buffer);
        Ok(long)
    }

    /// Merges the segments of a chain into one buffer that is long enough, and counts it. A packet in one
    /// buffer stays as it is.
    ///
    /// # Errors
    /// The same chain, unchanged, if no buffer is that long, or all such are in use.
    pub fn linearise(&mut self, buffer: Buffer) -> Result<Buffer, Buffer> {
        if !buffer.is_chain() {
            return Ok(buffer);
        }
        let bytes = buffer.chain_bytes();
        let Some(mut whole) = self.pop_for(bytes) else { return Err(buffer) };
        let mut area = whole.receive_area();
        for segment in buffer.segments() {
            let (place, behind) = area.split_at_mut(segment.len());
            place.copy_from_slice(segment.bytes());
            area = behind;
        }
        whole.set_len(bytes);
        whole.set_interface(buffer.interface());
        whole.set_mark(buffer.mark());
        self.linearised += 1;
        self.note_moved(&buffer, &whole);
        self.recycle(buffer);
        Ok(whole)
    }

    /// Puts a segment in front of a packet, which it then is the first one of. It gets the packet's
    /// interface.
    ///
    /// # Errors
    /// Both, if the packet has as many segments as a chain may have, or `front` has no room for the link.
    pub fn link_before(&mut self, mut front: Buffer, packet: Buffer) -> Result<Buffer, (Buffer, Buffer)> {
        front.set_interface(packet.interface());
        self.note_moved(&packet, &front);
        match front.link(packet) {
            Ok(()) => Ok(front),
            Err(packet) => {
                self.note_moved(&front, &packet);
                Err((front, packet))
            }
        }
    }

    /// Takes `count` bytes from a packet's front, and buffers that are then empty out of the chain. Where the
    /// packet has no more bytes than that, the last buffer stays, empty.
    #[must_use]
    pub fn trim_front(&mut self, mut packet: Buffer, mut count: usize) -> Buffer {
        loop {
            let here = count.min(packet.len());
            packet.narrow(u32::try_from(here).unwrap_or(u32::MAX), u32::MAX);
            count -= here;
            if !packet.is_empty() {
                return packet;
            }
            let Some(mut rest) = packet.take_rest() else { return packet };
            rest.set_interface(packet.interface());
            rest.set_mark(packet.mark());
            self.note_moved(&packet, &rest);
            self.recycle(packet);
            packet = rest;
        }
    }

    /// Keeps the first `bytes` bytes of a packet, and no buffer after the one that holds the last of them.
    pub fn trim_back(&mut self, packet: &mut Buffer, bytes: usize) {
        if let Some(rest) = packet.cut_at(bytes) {
            self.recycle(rest);
        }
    }

    /// Splits a packet after `bytes` bytes: it keeps these, and the others are returned, as a packet that was
    /// created of it. Whole buffers are moved. What the buffer where the cut falls holds behind it is copied
    /// to a frame, less than a frame's worth.
    ///
    /// `None`, with nothing changed, if there is no frame, or the chain would have too many.
    #[must_use]
    pub fn split_off(&mut self, packet: &mut Buffer, bytes: usize) -> Option<Buffer> {
        let behind = packet.bytes_behind(bytes)?;
        let mut copied = None;
        if behind.is_empty() {
            self.created += 1;
        } else {
            let mut own = self.create(behind.len())?;
            own.receive_area()[..behind.len()].copy_from_slice(behind);
            own.set_len(behind.len());
            copied = Some(own);
        }
        let mut own = match (copied, packet.cut_at(bytes)) {
            (Some(mut own), Some(rest)) => {
                if let Err(rest) = own.link(rest) {
                    // Not reached: a chain that was cut has one segment less, and a frame has the room.
                    self.recycle(rest);
                }
                own
            }
            (copied, rest) => copied.or(rest).unwrap_or_default(),
        };
        own.set_interface(packet.interface());
        if self.journal.is_some() {
            self.note_derived(&own, packet);
        }
        Some(own)
    }

    #[cold]
    #[inline(never)]
    fn note_moved(&mut self, from: &Buffer, to: &Buffer) {
        if let Some(journal) = &mut self.journal {
            journal.moved(from, to);
        }
    }

    /// Takes back the buffer of a packet that was sent. What is not of this pool is freed.
    pub fn recycle(&mut self, buffer: Buffer) {
        if self.frames.own_unmarked(&buffer) {
            if !self.frames.push(buffer) {
                self.came_back();
            }
        } else {
            self.recycle_uncommon(buffer);
        }
    }

    /// Marks are cleared here and not where a buffer is taken: most have none, which the comparison that
    /// tells whose they are finds at no cost, as it finds that they are no chains.
    #[cold]
    #[inline(never)]
    fn recycle_uncommon(&mut self, mut buffer: Buffer) {
        while let Some(rest) = buffer.take_rest() {
            self.recycle_one(buffer);
            buffer = rest;
        }
        self.recycle_one(buffer);
    }

    fn recycle_one(&mut self, mut buffer: Buffer) {
        buffer.set_mark(Mark::NONE);
        let is_taken = if self.frames.own(&buffer) {
            self.frames.push(buffer)
        } else if let Some(long) = self.long.as_mut().filter(|long| long.own(&buffer)) {
            long.push(buffer)
        } else if let Some(strays) = &mut self.strays {
            strays.push(Stray { buffer, dropped: None });
            true
        } else {
            true
        };
        if !is_taken {
            self.came_back();
        }
    }

    /// A buffer came back that was written off: it was in use.
    #[cold]
    fn came_back(&mut self) {
        self.mistaken = self.mistaken.saturating_sub(1);
    }

    /// [Recycles](Self::recycle) all buffers of a batch.
    #[inline]
    pub fn recycle_all(&mut self, batch: &mut Batch) {
        if !self.frames.push_all(batch) {
            batch.drain(..).for_each(|buffer| self.recycle(buffer));
        }
    }

    /// Takes back the buffer of a dropped packet, and counts the reason.
    pub fn discard(&mut self, buffer: Buffer, reason: DropReason) {
        if let Some(strays) = &mut self.strays {
            return strays.push(Stray { buffer, dropped: Some(reason) });
        }
        self.drops.add(reason, 1);
        if self.counts_by_interface() {
            self.count_at(self.receiving.unwrap_or(buffer.interface()), reason, 1);
        }
        if self.journal.is_some() {
            self.note_dropped(&buffer, reason);
        }
        if buffer.mark().is_to_be_sealed() {
            self.lost_marks.push(buffer.mark());
        }
        self.recycle(buffer);
    }

    /// The marks of packets that were dropped since the last call before a device could seal them: what keeps
    /// account of them is told.
    #[must_use]
    pub fn take_lost_marks(&mut self) -> Option<Vec<Mark>> {
        (!self.lost_marks.is_empty()).then(|| std::mem::take(&mut self.lost_marks))
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

    #[cold]
    #[inline(never)]
    fn count_at(&mut self, interface: Interface, reason: DropReason, packets: u64) {
        if let Some(drops) = self.drops_by_interface.get_mut(usize::from(interface.0)) {
            drops.add(reason, packets);
            self.drops_at_interfaces += packets;
        }
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

    /// Writes off leaked buffers so that replacements may be allocated. Which of them are long is not known:
    /// as many of either kind may be replaced, and what comes back after all is one of the replacements.
    pub fn forget(&mut self, buffers: usize) {
        let in_use = self.in_use().saturating_sub(buffers);
        self.frames.forget(buffers);
        if let Some(long) = &mut self.long {
            long.forget(buffers);
        }
        self.mistaken = 0;
        self.mistaken = in_use.saturating_sub(self.in_use());
    }

    /// Counts packets that were lost before they had a buffer.
    pub fn count(&mut self, reason: DropReason, packets: u64) {
        self.drops.add(reason, packets);
        if let Some(interface) = self.receiving {
            self.count_at(interface, reason, packets);
        }
    }

    /// Longest packet that a buffer of this pool takes, in bytes.
    #[must_use]
    pub fn packet_bytes(&self) -> usize {
        self.long.as_ref().unwrap_or(&self.frames).packet_bytes()
    }

    /// Longest packet that a frame takes, in bytes.
    #[must_use]
    #[inline]
    pub fn frame_packet_bytes(&self) -> usize {
        self.frames.packet_bytes()
    }

    /// Frames that are free now, taken from the region or not.
    #[must_use]
    #[inline]
    pub fn available(&self) -> usize {
        self.frames.available()
    }

    /// Buffers for a packet of `bytes` that are free now.
    #[must_use]
    pub fn available_for(&self, bytes: usize) -> usize {
        if bytes <= self.frames.packet_bytes() {
            return self.available();
        }
        self.long.as_ref().filter(|long| bytes <= long.packet_bytes()).map_or(0, Frames::available)
    }

    /// Frames of the pool, free or in use.
    #[must_use]
    pub fn size(&self) -> usize {
        self.frames.size()
    }

    /// Long buffers of the pool, free or in use.
    #[must_use]
    pub fn long_size(&self) -> usize {
        self.long.as_ref().map_or(0, Frames::size)
    }

    /// Whether a packet has a long buffer, or would have one once its segments were
    /// [merged](Self::linearise).
    #[must_use]
    pub fn is_long(&self, packet: &Buffer) -> bool {
        self.long.as_ref().is_some_and(|long| match packet.is_chain() {
            true => packet.chain_bytes() > self.frames.packet_bytes(),
            false => long.own(packet),
        })
    }

    /// Buffers in use, frames and long ones.
    #[must_use]
    pub fn in_use(&self) -> usize {
        self.frames.in_use() + self.long.as_ref().map_or(0, Frames::in_use) + self.mistaken
    }

    /// The region that frames come from: what a device is told of.
    #[must_use]
    pub fn region(&self) -> &Region {
        self.frames.region()
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

    /// Packets whose segments were [merged](Self::linearise) so far.
    #[must_use]
    pub fn linearised(&self) -> u64 {
        self.linearised
    }

    /// Drops so far, by reason.
    #[must_use]
    pub fn drops(&self) -> &DropCounters {
        &self.drops
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strays_go_back_to_their_pool_with_what_became_of_them() {
        let (mut own, mut other) = (Pool::new(4, 100), Pool::for_strays());
        let mut batch = Batch::new();
        own.pop_many(2, &mut batch);
        other.recycle_all(&mut batch);
        other.discard(own.pop().unwrap(), DropReason::SendRefused);
        assert_eq!((own.available(), other.drops().get(DropReason::SendRefused)), (1, 0));
        let strays = std::mem::take(other.strays().unwrap());
        let dropped: Vec<_> = strays.iter().map(|stray| stray.dropped).collect();
        assert_eq!(dropped, [None, None, Some(DropReason::SendRefused)]);
        strays.into_iter().for_each(|stray| own.recycle(stray.buffer));
        assert_eq!(own.available(), 4);
        assert!(own.strays().is_none());
    }
    use crate::{BATCH_SIZE, Interface};

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
        let mut pool = Pool::new(4, 100).with_long(2, 1000);
        let lost = [pool.pop(), pool.pop(), pool.pop_for(500)];
        assert_eq!((pool.available(), pool.available_for(500), pool.in_use()), (2, 1, 3));
        pool.forget(lost.len());
        assert_eq!((pool.available(), pool.available_for(500), pool.in_use()), (4, 2, 0));
        pool.forget(100);
        assert_eq!(pool.available(), 4, "what is free was not lost");
        lost.into_iter().flatten().for_each(|buffer| pool.recycle(buffer));
        assert_eq!((pool.available(), pool.available_for(500)), (4, 2), "nothing comes in beyond the size");
    }

    #[test]
    fn lost_long_buffers_are_replaced_while_frames_are_in_use() {
        let mut pool = Pool::new(4, 100).with_long(2, 1000);
        let in_use = [pool.pop(), pool.pop()];
        let lost = [pool.pop_for(500), pool.pop_for(500)];
        pool.forget(lost.len());
        drop(lost);
        assert_eq!(pool.in_use(), 2, "whatever was written off in their place");
        let mut back = in_use.into_iter().flatten();
        back.by_ref().take(1).for_each(|buffer| pool.recycle(buffer));
        assert_eq!(pool.in_use(), 1);
        back.for_each(|buffer| pool.recycle(buffer));
        assert_eq!((pool.available(), pool.available_for(500), pool.in_use()), (4, 2, 0));
        let frames: Vec<_> = std::iter::from_fn(|| pool.pop()).collect();
        assert!(frames.len() == 4 && pool.pop_for(500).is_some());
    }

    #[test]
    fn a_packet_gets_the_shortest_buffer_that_it_fits() {
        let mut pool = Pool::new(1, 1500).with_long(1, 9000);
        assert_eq!((pool.frame_packet_bytes(), pool.packet_bytes()), (1500, 9000));
        assert!(pool.pop_for(9001).is_none());
        let (frame, long) = (pool.pop_for(1500).unwrap(), pool.pop_for(1501).unwrap());
        assert!(frame.tailroom() < 9000 && long.tailroom() >= 9000 + TAILROOM_BYTES);
        assert!(pool.pop_for(1500).is_none() && pool.pop_for(1501).is_none());
        pool.recycle(long);
        assert_eq!((pool.available(), pool.available_for(1501)), (0, 1));
        pool.recycle(frame);
        assert_eq!((pool.available(), pool.available_for(1501)), (1, 1));
    }

    #[test]
    fn a_packet_that_grows_is_moved_to_a_long_buffer_with_its_offset_and_interface() {
        let mut pool = Pool::new(2, 100).with_long(1, 1000);
        let mut buffer = pool.pop().unwrap();
        buffer.receive_area()[..4].copy_from_slice(b"some");
        buffer.set_len(4);
        buffer.set_interface(Interface(7));
        let buffer = pool.lengthen(buffer, 2000).unwrap_err();
        let long = pool.lengthen(buffer, 1000).unwrap();
        assert_eq!(
            (long.bytes(), long.headroom(), long.interface()),
            (&b"some"[..], HEADROOM_BYTES, Interface(7))
        );
        assert_eq!((pool.available(), pool.available_for(1000), pool.in_use()), (2, 0, 1));
        let other = pool.pop().unwrap();
        assert!(pool.lengthen(other, 1000).is_err(), "there is one");
    }

    #[test]
    fn packets_in_long_buffers_are_told_from_others_before_they_are_merged_too() {
        let mut pool = Pool::new(4, 2000).with_long(2, 9000);
        let chain_of = |pool: &mut Pool, bytes: usize| {
            let [mut front, mut packet] = [pool.pop().unwrap(), pool.pop().unwrap()];
            front.set_len(1);
            packet.set_len(bytes - 1);
            pool.link_before(front, packet).unwrap()
        };
        for (bytes, is_long) in [(2000, false), (2001, true)] {
            let chain = chain_of(&mut pool, bytes);
            assert!(chain.is_chain() && pool.is_long(&chain) == is_long);
            let whole = pool.linearise(chain).unwrap();
            assert_eq!(pool.is_long(&whole), is_long, "{bytes} bytes");
            pool.recycle(whole);
        }
        let (frame, long) = (pool.pop_for(2000).unwrap(), pool.pop_for(2001).unwrap());
        assert_eq!((pool.is_long(&frame), pool.is_long(&long), pool.long_size()), (false, true, 2));
        let plain = Pool::new(1, 9000);
        assert_eq!((plain.is_long(&long), plain.long_size()), (false, 0));
    }

    #[test]
    fn marks_end_with_their_packets_and_those_of_dropped_packets_are_told() {
        let mut pool = Pool::new(1, 100).with_long(1, 1000);
        let marked = |pool: &mut Pool, mark| {
            let mut buffer = pool.pop().unwrap();
            assert_eq!(buffer.mark(), Mark::NONE, "what it bears is of the packet before");
            buffer.set_mark(mark);
            buffer
        };
        let packet = marked(&mut pool, Mark::seal_under(3));
        pool.recycle(packet);
        let packet = marked(&mut pool, Mark::opened_under(4));
        pool.discard(packet, DropReason::NoPolicy);
        assert_eq!(pool.take_lost_marks(), None);
        let packet = marked(&mut pool, Mark::seal_under(5));
        pool.discard(packet, DropReason::QueueFull);
        assert_eq!(pool.take_lost_marks(), Some(vec![Mark::seal_under(5)]));
        assert_eq!(pool.take_lost_marks(), None, "each once");
        let packet = marked(&mut pool, Mark::opened_under(6));
        assert_eq!(pool.lengthen(packet, 500).unwrap().mark(), Mark::NONE, "a copy has none");
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
    fn drops_are_those_of_the_interface_that_a_buffer_says_or_that_is_received_from() {
        let mut pool = Pool::new(8, 100);
        assert_eq!(pool.drops_of(Interface::MAIN), None);
        pool.count_by_interface(3);
        let drop_at = |pool: &mut Pool, interface| {
            let mut buffer = pool.pop().unwrap();
            buffer.set_interface(interface);
            pool.discard(buffer, DropReason::NoPolicy);
        };
        drop_at(&mut pool, Interface(1));
        drop_at(&mut pool, Interface(1));
        drop_at(&mut pool, Interface::NONE);
        pool.set_receiving(Some(Interface(2)));
        drop_at(&mut pool, Interface(1));
        pool.count(DropReason::NotIp, 4);
        pool.set_receiving(None);
        pool.count(DropReason::ShuttingDown, 9);
        let created = pool.create(100).unwrap();
        pool.discard(created, DropReason::NoRoom);
        let totals = [0, 1, 2].map(|number| pool.drops_of(Interface(number)).unwrap().total());
        assert_eq!((totals, pool.drops_at_interfaces()), ([0, 2, 5], 7));
        assert_eq!(pool.drops_of(Interface(2)).unwrap().get(DropReason::NotIp), 4);
        assert_eq!(pool.drops().total(), 7 + 1 + 9 + 1);
    }

    #[test]
    fn a_foreign_buffer_does_not_enter_the_pool() {
        let mut pool = Pool::new(1, 1500);
        let own = pool.pop().unwrap();
        pool.recycle(Buffer::with_capacity(64));
        assert_eq!(pool.available(), 0);
        pool.recycle(own);
        pool.recycle(Pool::new(1, 1500).pop().unwrap());
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
        batch.push(Buffer::with_capacity(4096));
        pool.recycle_all(&mut batch);
        assert_eq!((batch.len(), pool.available()), (0, 3), "what is another's stays out");
    }

    #[test]
    fn a_taken_buffer_has_room_on_both_sides() {
        let buffer = Pool::new(1, 1500).pop().unwrap();
        assert_eq!(buffer.headroom(), HEADROOM_BYTES);
        assert!(buffer.tailroom() >= 1500 + TAILROOM_BYTES);
    }
}

//! Buffers of one length: those that are free, and the regions that they come from.

use crate::{Batch, Buffer, HEADROOM_BYTES, PageChoice, Region, TAILROOM_BYTES, move_buffers};

/// Buffers that are taken from the region at the start: a few batches.
const PREPARED: usize = 256;

/// The free buffers of one length, up to a fixed number of them in all.
pub(crate) struct Frames {
    // Before the regions: dropped first, so that a region's memory goes with the region.
    free: Vec<Buffer>,
    /// Buffers that exist, free or in use.
    made: usize,
    size: usize,
    /// Longest packet that a buffer takes, in bytes.
    packet_bytes: usize,
    choice: PageChoice,
    region: Region,
    /// Regions for replacements of lost buffers, whose frames may never come back.
    more: Vec<Region>,
}

impl Frames {
    pub(crate) fn new(size: usize, packet_bytes: usize, choice: PageChoice) -> Self {
        Self::of_bytes(size, packet_bytes, frame_bytes(packet_bytes), choice)
    }

    /// Frames of 2,048 or 4,096 bytes, whichever is enough.
    ///
    /// # Panics
    /// If neither is.
    pub(crate) fn of_power_of_two(size: usize, packet_bytes: usize, choice: PageChoice) -> Self {
        let bytes = (HEADROOM_BYTES + packet_bytes + TAILROOM_BYTES).next_power_of_two().max(2048);
        assert!(bytes <= 4096, "no page holds a packet of {packet_bytes} bytes with its room");
        Self::of_bytes(size, packet_bytes, bytes, choice)
    }

    fn of_bytes(size: usize, packet_bytes: usize, frame_bytes: usize, choice: PageChoice) -> Self {
        assert!(frame_bytes >= HEADROOM_BYTES);
        let region = Region::new(size, frame_bytes, choice);
        let free = Vec::with_capacity(size);
        let mut frames = Self { free, made: 0, size, packet_bytes, choice, region, more: Vec::new() };
        let prepared: Vec<Buffer> = std::iter::from_fn(|| frames.make()).take(PREPARED).collect();
        frames.free.extend(prepared);
        frames
    }

    /// A buffer that is free, empty, with [`HEADROOM_BYTES`] before it.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Buffer> {
        let mut buffer = self.free.pop().or_else(|| self.make())?;
        begin_packet(&mut buffer);
        Some(buffer)
    }

    /// Moves up to `count` buffers to the end of `buffers`, as many as there are and as it has room for.
    #[inline]
    pub(crate) fn pop_many(&mut self, count: usize, buffers: &mut Batch) {
        let count = count.min(buffers.remaining_capacity());
        let before = buffers.len();
        let taken = move_buffers::last_to_batch(&mut self.free, count, buffers);
        if taken < count {
            buffers.extend(std::iter::from_fn(|| self.make()).take(count - taken));
        }
        buffers[before..].iter_mut().for_each(begin_packet);
    }

    fn make(&mut self) -> Option<Buffer> {
        if self.made >= self.size {
            return None;
        }
        let buffer = self.region.take().or_else(|| self.replacement());
        self.made += usize::from(buffer.is_some());
        buffer
    }

    /// A buffer in place of a lost one. Its region has lost a frame: as many frames as were lost make
    /// another.
    #[cold]
    fn replacement(&mut self) -> Option<Buffer> {
        if let Some(buffer) = self.more.iter_mut().find_map(Region::take) {
            return Some(buffer);
        }
        self.more.push(Region::new(self.size - self.made, self.region.frame_bytes(), self.choice));
        self.more.last_mut()?.take()
    }

    /// Whether `buffer` is one of these.
    #[inline(always)]
    pub(crate) fn own(&self, buffer: &Buffer) -> bool {
        self.region.owns(buffer) || self.more.iter().any(|region| region.owns(buffer))
    }

    /// Whether `buffer` is one of these, as most are: of the first region, and without a mark.
    #[inline(always)]
    pub(crate) fn own_unmarked(&self, buffer: &Buffer) -> bool {
        self.region.owns_unmarked(buffer)
    }

    /// Takes back one of these buffers, which has no mark. One that was written off, and is back after all,
    /// is not taken: whether it was.
    #[inline]
    pub(crate) fn push(&mut self, buffer: Buffer) -> bool {
        let is_awaited = self.free.len() < self.made;
        if is_awaited {
            self.free.push(buffer);
        }
        is_awaited
    }

    /// Takes back all buffers of a batch, if all are of the first region and none has a mark: whether they
    /// were.
    #[inline]
    pub(crate) fn push_all(&mut self, batch: &mut Batch) -> bool {
        let all_ours = batch.iter().all(|buffer| self.own_unmarked(buffer));
        let fits = batch.len() <= self.made - self.free.len();
        if all_ours && fits {
            move_buffers::all_to_list(batch, &mut self.free);
        }
        all_ours && fits
    }

    /// Writes off up to `buffers` that are in use, so that others may be made.
    pub(crate) fn forget(&mut self, buffers: usize) {
        self.made -= buffers.min(self.in_use());
    }

    pub(crate) fn in_use(&self) -> usize {
        self.made - self.free.len()
    }

    /// Buffers that are free now, made or not.
    pub(crate) fn available(&self) -> usize {
        self.free.len() + self.size - self.made
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    pub(crate) fn packet_bytes(&self) -> usize {
        self.packet_bytes
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }
}

/// Empties a buffer on a frame, and places its start after the headroom.
#[inline(always)]
#[allow(unsafe_code, reason = "comparing what always holds is three instructions a packet")]
#[allow(clippy::cast_possible_truncation, reason = "a constant")]
fn begin_packet(buffer: &mut Buffer) {
    // SAFETY: it is of these frames, none of which is shorter than the headroom (asserted where they are
    // made).
    unsafe { buffer.reset_within(HEADROOM_BYTES as u32) };
}

/// Bytes of a frame for a packet of up to `packet_bytes`. An odd number of cache lines: if it were even, the
/// headers of all packets would share a half of the cache's sets, or less.
fn frame_bytes(packet_bytes: usize) -> usize {
    ((HEADROOM_BYTES + packet_bytes + TAILROOM_BYTES).div_ceil(64) | 1) * 64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_made_on_demand_up_to_the_size() {
        let mut frames = Frames::new(2 * PREPARED, 100, PageChoice::Small);
        assert_eq!((frames.free.len(), frames.available()), (PREPARED, 2 * PREPARED));
        let taken: Vec<_> = std::iter::from_fn(|| frames.pop()).collect();
        assert_eq!((taken.len(), frames.available(), frames.in_use()), (2 * PREPARED, 0, 2 * PREPARED));
        taken.into_iter().for_each(|buffer| assert!(frames.push(buffer)));
        assert_eq!((frames.free.len(), frames.available()), (2 * PREPARED, 2 * PREPARED));
    }

    #[test]
    fn lost_buffers_are_replaced_by_frames_of_another_region() {
        let mut frames = Frames::new(4, 100, PageChoice::Small);
        let mut taken: Vec<_> = std::iter::from_fn(|| frames.pop()).collect();
        let lost: Vec<_> = taken.drain(..3).collect();
        frames.forget(3);
        assert_eq!(frames.available(), 3);
        taken.extend(std::iter::from_fn(|| frames.pop()));
        assert!(taken.len() == 4 && frames.available() == 0);
        assert!(taken.iter().chain(&lost).all(|buffer| frames.own(buffer)));
        taken.into_iter().for_each(|buffer| assert!(frames.push(buffer)));
        frames.forget(100);
        assert_eq!(frames.available(), 4, "what is free was not lost");
        lost.into_iter().for_each(|buffer| assert!(!frames.push(buffer)));
        assert_eq!((frames.free.len(), frames.available()), (4, 4), "nothing comes in beyond the size");
        // The frames that came back late serve as replacements from now on.
        let mut taken: Vec<_> = std::iter::from_fn(|| frames.pop()).collect();
        frames.forget(3);
        taken.truncate(1);
        assert_eq!(std::iter::from_fn(|| frames.pop()).count(), 3);
        assert_eq!(frames.more.len(), 1);
    }

    #[test]
    fn frames_for_devices_are_a_power_of_two_and_cross_no_page() {
        for (packet_bytes, expected) in [(64, 2048), (1514, 2048), (1520, 2048), (1521, 4096), (3568, 4096)] {
            let mut frames = Frames::of_power_of_two(5, packet_bytes, PageChoice::Small);
            assert_eq!((frames.region.frame_bytes(), frames.packet_bytes()), (expected, packet_bytes));
            for mut buffer in std::iter::from_fn(|| frames.pop()) {
                let start = buffer.receive_area().as_ptr().addr() - HEADROOM_BYTES;
                assert_eq!(start / 4096, (start + expected - 1) / 4096);
            }
        }
    }

    #[test]
    #[should_panic(expected = "no page holds a packet of 3569 bytes")]
    fn no_frame_for_a_device_is_longer_than_a_page() {
        let _never = Frames::of_power_of_two(1, 3569, PageChoice::Small);
    }

    #[test]
    fn headers_of_packets_are_spread_over_the_caches_sets() {
        for packet_bytes in [100, 1500, 9000, 65_535] {
            assert_eq!(frame_bytes(packet_bytes) / 64 % 2, 1);
            assert!(frame_bytes(packet_bytes) >= HEADROOM_BYTES + packet_bytes + TAILROOM_BYTES);
        }
    }
}

//! One packet with headroom and tailroom.

use crate::region::RegionNumber;
use crate::storage::{LINE_BYTES, MAX_BYTES, Storage};
use crate::{Interface, Mark};

/// The headroom or tailroom is too small for what should be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the buffer has no room for {wanted} more bytes: {available} are left")]
pub struct NoRoom {
    /// Bytes requested.
    pub wanted: usize,
    /// Bytes that are free on that side.
    pub available: usize,
}

/// One packet, or one segment of it: a contiguous run of bytes with headroom and tailroom, owned by its
/// holder. It may have more segments of its packet linked to it, which it then owns
/// ([`link`](Self::link)); unless said otherwise, methods speak of its own bytes.
///
/// The default buffer has no storage: it fills a slot whose buffer was taken.
#[derive(Default)]
pub struct Buffer {
    /// Less than 2^24 bytes; never replaced.
    storage: Storage,
    /// Where the packet starts and ends, in bytes. Unsafe code relies on `start <= end <= capacity`: only
    /// this file can write the two, and every function here has compared the new values or clamps them
    /// (`a_packet_lies_within_its_storage`).
    start: u32,
    end: u32,
}

impl Buffer {
    /// An empty buffer of at least `capacity` bytes (rounded up to whole cache lines), all of it tailroom.
    /// Its memory is zeroed, and its own: no part of a [region](crate::Region).
    ///
    /// # Panics
    /// If `capacity` is above 16 MiB less one cache line.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        assert!(capacity <= MAX_BYTES, "a buffer of {capacity} bytes was asked for");
        let lines = capacity.div_ceil(64);
        Self { storage: Storage::zeroed(lines), start: 0, end: 0 }
    }

    /// An empty buffer on `storage`, all of it tailroom.
    pub(crate) fn on(storage: Storage) -> Self {
        Self { storage, start: 0, end: 0 }
    }

    /// The region that its frame is of; 0 if there is none.
    #[inline(always)]
    pub(crate) fn region(&self) -> RegionNumber {
        self.storage.region()
    }

    /// Whether its frame is of this region, and it has no [mark](Self::mark).
    #[inline(always)]
    pub(crate) fn is_unmarked_of(&self, region: RegionNumber) -> bool {
        self.storage.is_unmarked_of(region)
    }

    /// Whether more segments of its packet are linked to it.
    #[must_use]
    #[inline(always)]
    pub fn is_chain(&self) -> bool {
        self.storage.is_linked()
    }

    /// Links the next segment, for which the last line of the tailroom is used; gives it back where that is
    /// not free.
    pub(crate) fn set_next(&mut self, next: Buffer) -> Result<(), Buffer> {
        // The bytes before the line stay within the storage: see the fields.
        if self.tailroom() < LINE_BYTES { Err(next) } else { self.storage.link(next) }
    }

    pub(crate) fn take_next(&mut self) -> Option<Buffer> {
        self.storage.unlink()
    }

    pub(crate) fn next(&self) -> Option<&Buffer> {
        self.storage.next()
    }

    /// The bytes of this segment, and the next one.
    pub(crate) fn with_next(&mut self) -> (&mut [u8], Option<&mut Buffer>) {
        let (start, end) = (self.start as usize, self.end as usize);
        let (bytes, next) = self.storage.split_next();
        (bytes.get_mut(start..end).unwrap_or_default(), next)
    }

    /// A buffer around a copy of `bytes`, with the given headroom and tailroom: for tests and for packets
    /// that the gateway creates.
    #[must_use]
    pub fn copied(bytes: &[u8], headroom: usize, tailroom: usize) -> Self {
        let mut buffer = Self::with_capacity(headroom + bytes.len() + tailroom);
        buffer.reset(headroom);
        buffer.receive_area()[..bytes.len()].copy_from_slice(bytes);
        buffer.set_len(bytes.len());
        buffer
    }

    /// Tells this buffer from all others that exist; `None` without storage. A packet keeps it wherever it
    /// moves, and the next packet in the buffer has the same.
    #[must_use]
    pub fn identity(&self) -> Option<usize> {
        self.storage.address()
    }

    /// The interface of the protected side that the packet came from, or is to leave by. A buffer keeps it
    /// until it is set again: where there are several, it is set for each packet.
    #[must_use]
    #[inline]
    pub fn interface(&self) -> Interface {
        self.storage.interface()
    }

    /// Sets the packet's [interface](Self::interface).
    #[inline]
    pub fn set_interface(&mut self, interface: Interface) {
        self.storage.set_interface(interface);
    }

    /// What a device has done with the packet, or is to do. A buffer that a pool gives has none.
    #[must_use]
    #[inline]
    pub fn mark(&self) -> Mark {
        self.storage.mark()
    }

    /// Sets the packet's [mark](Self::mark).
    #[inline]
    pub fn set_mark(&mut self, mark: Mark) {
        self.storage.set_mark(mark);
    }

    /// All bytes of storage, used or not.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.storage.len()
    }

    /// Length of the packet in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// Whether the packet has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Free bytes before the packet.
    #[must_use]
    pub fn headroom(&self) -> usize {
        self.start as usize
    }

    /// Free bytes after the packet.
    #[must_use]
    pub fn tailroom(&self) -> usize {
        self.capacity() - self.end as usize
    }

    /// The packet.
    #[must_use]
    #[inline(always)]
    #[allow(
        unsafe_code,
        reason = "asked for several times a packet: comparing what always holds was a twentieth of all instructions"
    )]
    pub fn bytes(&self) -> &[u8] {
        debug_assert!(self.start <= self.end && self.end as usize <= self.capacity());
        // SAFETY: `start <= end <= capacity`: see the fields.
        unsafe { self.storage.get_unchecked(self.start as usize..self.end as usize) }
    }

    /// The packet, to be changed in place.
    #[must_use]
    #[inline(always)]
    #[allow(unsafe_code, reason = "as for `bytes`")]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        debug_assert!(self.start <= self.end && self.end as usize <= self.capacity());
        // SAFETY: `start <= end <= capacity`: see the fields.
        unsafe { self.storage.get_unchecked_mut(self.start as usize..self.end as usize) }
    }

    /// Empties the buffer and sets its start to `headroom` bytes (or to the end, if it is shorter).
    pub fn reset(&mut self, headroom: usize) {
        self.start = offset(headroom.min(self.capacity()));
        self.end = self.start;
    }

    /// As [`reset`](Self::reset), without comparing `headroom` with the length.
    ///
    /// # Safety
    /// The buffer has at least `headroom` bytes.
    #[inline(always)]
    #[allow(unsafe_code, reason = "of a pool's buffers this is known: three instructions a packet")]
    pub(crate) unsafe fn reset_within(&mut self, headroom: u32) {
        debug_assert!(headroom as usize <= self.capacity());
        (self.start, self.end) = (headroom, headroom);
    }

    /// Everything from the packet's start to the end of the storage, for a port to write a packet into.
    ///
    /// It may contain bytes of earlier packets: the port calls [`set_len`](Self::set_len) with no more than
    /// it wrote.
    #[must_use]
    pub fn receive_area(&mut self) -> &mut [u8] {
        &mut self.storage[self.start as usize..]
    }

    /// Makes the packet the first `len` bytes of the [`receive_area`](Self::receive_area), as many as fit.
    pub fn set_len(&mut self, len: usize) {
        self.end = self.start + offset(len.min(self.capacity() - self.start as usize));
    }

    /// Grows the packet at its front by `n` zeroed bytes and returns them.
    ///
    /// # Errors
    /// [`NoRoom`] if the headroom is shorter; the packet is then unchanged.
    pub fn prepend(&mut self, n: usize) -> Result<&mut [u8], NoRoom> {
        let available = self.headroom();
        if n > available {
            return Err(NoRoom { wanted: n, available });
        }
        self.start -= offset(n);
        let from = self.start as usize;
        let grown = &mut self.storage[from..from + n];
        grown.fill(0);
        Ok(grown)
    }

    /// Grows the packet at its end by `n` zeroed bytes and returns them.
    ///
    /// # Errors
    /// [`NoRoom`] if the tailroom is shorter; the packet is then unchanged.
    pub fn append(&mut self, n: usize) -> Result<&mut [u8], NoRoom> {
        let available = self.tailroom();
        if n > available {
            return Err(NoRoom { wanted: n, available });
        }
        let from = self.end as usize;
        self.end += offset(n);
        let grown = &mut self.storage[from..from + n];
        grown.fill(0);
        Ok(grown)
    }

    /// The `FRONT` bytes before the packet and the `BACK` bytes after it, for headers and trailers; `None` if
    /// there are fewer.
    #[must_use]
    #[inline(always)]
    pub fn around<const FRONT: usize, const BACK: usize>(&mut self) -> Option<Around<'_, FRONT, BACK>> {
        let (front, back) = self.storage.split_at_mut_checked(self.end as usize)?;
        let before = front.get_mut(..self.start as usize)?.last_chunk_mut()?;
        let behind = back.first_chunk_mut()?;
        Some(Around { before, behind, start: &mut self.start, end: &mut self.end })
    }

    /// Keeps `len` bytes from byte `start` on, as far as the packet has them; the rest becomes headroom and
    /// tailroom.
    #[inline(always)]
    pub fn narrow(&mut self, start: u32, len: u32) {
        self.start += start.min(self.end - self.start);
        self.end = self.start + len.min(self.end - self.start);
    }

    /// Cuts the packet to at most `len` bytes; the rest becomes tailroom.
    pub fn truncate(&mut self, len: usize) {
        self.end = self.start + offset(len.min(self.len()));
    }
}

/// The bytes next to a packet, free to be written.
#[derive(Debug)]
pub struct Around<'a, const FRONT: usize, const BACK: usize> {
    /// The bytes before the packet.
    pub before: &'a mut [u8; FRONT],
    /// The bytes after it.
    pub behind: &'a mut [u8; BACK],
    start: &'a mut u32,
    end: &'a mut u32,
}

impl<const FRONT: usize, const BACK: usize> Around<'_, FRONT, BACK> {
    /// Extends the packet by `front` and `back` bytes, at most by all of this room. The caller has written
    /// them, or an engine will (the ICV), before the packet leaves.
    #[inline(always)]
    pub fn grow(self, front: u32, back: u32) {
        *self.start -= front.min(offset(FRONT));
        *self.end += back.min(offset(BACK));
    }
}

/// An offset into a buffer's storage, which is shorter than 2^24 bytes.
#[inline]
#[allow(clippy::cast_possible_truncation, reason = "asserted")]
fn offset(n: usize) -> u32 {
    // Not 2^31: most callers let the compiler prove this bound and drop the check.
    assert!(n <= u32::MAX as usize, "no offset into a buffer: {n}");
    n as u32
}

// Descriptors of packets are moved all the time.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Buffer>() == 24);

impl std::fmt::Debug for Buffer {
    /// Shows the sizes only: a packet's bytes may be plaintext, which must not reach logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} + {} + {} bytes)", self.headroom(), self.len(), self.tailroom())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn storage_starts_on_a_cache_line() {
        let buffer = Buffer::with_capacity(100);
        assert_eq!(buffer.capacity(), 128);
        assert_eq!(buffer.storage.as_ptr().addr() % 64, 0);
    }

    #[test]
    fn grown_room_never_shows_old_bytes() {
        let mut buffer = Buffer::copied(&[0xAA; 40], 16, 16);
        buffer.narrow(20, 10);
        assert_eq!(buffer.prepend(20).unwrap(), [0; 20]);
        assert_eq!(buffer.append(10).unwrap(), [0; 10]);
        assert_eq!(&buffer.bytes()[20..30], [0xAA; 10]);
    }

    #[test]
    fn a_packet_grows_over_bytes_written_around_it() {
        let mut buffer = Buffer::copied(b"inner", 8, 8);
        let around = buffer.around::<6, 5>().unwrap();
        (*around.before, *around.behind) = (*b"..head", *b"tail.");
        around.grow(4, 4);
        assert_eq!(buffer.bytes(), b"headinnertail");
        assert!(buffer.around::<5, 0>().is_none() && buffer.around::<0, 64>().is_none());
        buffer.around::<4, 1>().unwrap().grow(1000, 1000);
        assert_eq!((buffer.headroom(), buffer.len()), (0, 18), "no more than was given");
    }

    #[test]
    fn no_room_leaves_the_packet_as_it_was() {
        let mut buffer = Buffer::copied(b"packet", 4, 0);
        assert_eq!(buffer.prepend(5).unwrap_err(), NoRoom { wanted: 5, available: 4 });
        let tail = buffer.tailroom();
        assert!(buffer.append(tail + 1).is_err());
        assert_eq!(buffer.bytes(), b"packet");
    }

    proptest! {
        /// Whatever operations are applied to a buffer, in any order, its packet lies within its storage.
        #[test]
        fn a_packet_lies_within_its_storage(
            lines in 0..4usize,
            steps in prop::collection::vec((0..8u8, small_or_any(), small_or_any()), 0..40),
        ) {
            let mut buffer = Buffer::with_capacity(lines * 64);
            for (step, a, b) in steps {
                match step {
                    0 => buffer.reset(a),
                    1 => buffer.set_len(a),
                    2 => _ = buffer.prepend(a),
                    3 => _ = buffer.append(a),
                    4 => _ = buffer.around::<8, 16>().map(|around| around.grow(a as u32, b as u32)),
                    5 => buffer.narrow(a as u32, b as u32),
                    6 => buffer.truncate(a),
                    _ => buffer.bytes_mut().fill(1),
                }
                prop_assert!(buffer.start <= buffer.end && buffer.end as usize <= buffer.capacity());
                let (head, len, tail) = (buffer.headroom(), buffer.bytes().len(), buffer.tailroom());
                prop_assert_eq!((head + len + tail, len), (lines * 64, buffer.len()));
            }
        }
    }

    fn small_or_any() -> impl Strategy<Value = usize> {
        prop_oneof![4 => 0..200usize, 1 => any::<usize>()]
    }

    #[test]
    fn lengths_beyond_the_storage_are_cut() {
        let mut buffer = Buffer::with_capacity(64);
        buffer.reset(1000);
        assert_eq!((buffer.headroom(), buffer.len(), buffer.tailroom()), (64, 0, 0));
        buffer.reset(8);
        buffer.set_len(1000);
        assert_eq!(buffer.len(), 56);
        let mut buffer = Buffer::copied(b"a packet", 8, 8);
        buffer.narrow(2, 4);
        assert_eq!((buffer.bytes(), buffer.headroom()), (&b"pack"[..], 10));
        buffer.narrow(1, 1000);
        assert_eq!(buffer.bytes(), b"ack");
        buffer.narrow(1000, 1);
        assert!(buffer.is_empty());
    }
}

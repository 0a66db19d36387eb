//! The memory of one buffer: whole cache lines, of a frame of a [region](crate::Region) or by themselves.

#![allow(
    unsafe_code,
    reason = "a buffer's memory is a frame that its region keeps for it, or aligned as no safe container is"
)]

use crate::region::{self, RegionNumber};
use crate::{Buffer, Interface, Mark};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// A cache line: the unit in which buffer memory is allocated, so that every buffer starts on one.
#[repr(C, align(64))]
pub(crate) struct Line([u8; LINE_BYTES]);

pub(crate) const LINE_BYTES: usize = 64;

/// A run of cache lines, owned.
pub(crate) struct Storage {
    /// Dangling if there are no lines.
    start: NonNull<Line>,
    extent: Extent,
}

/// Length in bytes (24 bits: a buffer is shorter than 16 MiB). The interface of the packet in them (8 bits)
/// and its [mark](Mark) (16 bits), which in [`Buffer`](crate::Buffer) would be eight more bytes. The region
/// (15 bits), and whether the cache line after these bytes holds the next segment of the packet (1 bit). That
/// bit is beside the region, so that the comparison which finds most buffers at home finds no chain there.
///
/// One word, as fields would be moved one by one: eleven instructions more for a packet to protect.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
struct Extent(u64);

/// Where an [`Extent`] has the mark.
const MARK_AT: u32 = 48;
/// Where it has the region.
const REGION_AT: u32 = 32;
/// The bit that says whether a next segment is linked.
const LINKED: u64 = 1 << (MARK_AT - 1);
/// Where it has the interface.
const INTERFACE_AT: u32 = 24;
/// The bits of the length.
const LENGTH: u64 = (1 << INTERFACE_AT) - 1;

/// Bytes of the longest buffer: whole cache lines, whose number of bytes 24 bits hold.
pub(crate) const MAX_BYTES: usize = (1 << INTERFACE_AT) - LINE_BYTES;

#[allow(clippy::cast_possible_truncation, reason = "to cut a part off is how a part is read")]
impl Extent {
    /// `None` if the length does not fit.
    fn of_lines(lines: usize, region: RegionNumber) -> Option<Self> {
        let bytes = lines.checked_mul(LINE_BYTES).filter(|bytes| *bytes <= MAX_BYTES)?;
        Some(Self(bytes as u64 | u64::from(region) << REGION_AT))
    }

    #[inline(always)]
    fn bytes(self) -> usize {
        (self.0 & LENGTH) as usize
    }

    #[inline(always)]
    fn region(self) -> RegionNumber {
        ((self.0 & !LINKED) >> REGION_AT) as RegionNumber
    }

    #[inline(always)]
    fn is_linked(self) -> bool {
        self.0 & LINKED != 0
    }

    /// With one line less, which holds a link.
    fn linked(self) -> Self {
        Self((self.0 - LINE_BYTES as u64) | LINKED)
    }

    /// The same without the link, and with the line.
    fn unlinked(self) -> Self {
        Self((self.0 & !LINKED) + LINE_BYTES as u64)
    }

    #[inline(always)]
    fn interface(self) -> Interface {
        Interface((self.0 >> INTERFACE_AT) as u8)
    }

    #[inline(always)]
    fn with_interface(self, interface: Interface) -> Self {
        Self(self.0 & !(0xFF << INTERFACE_AT) | u64::from(interface.0) << INTERFACE_AT)
    }

    #[inline(always)]
    fn mark(self) -> Mark {
        Mark::from_bits((self.0 >> MARK_AT) as u16)
    }

    #[inline(always)]
    fn with_mark(self, mark: Mark) -> Self {
        Self(self.0 & !(0xFFFF << MARK_AT) | u64::from(mark.bits()) << MARK_AT)
    }
}

// SAFETY: a `Storage` owns its memory, and nothing else points there.
unsafe impl Send for Storage {}
// SAFETY: as above; shared references only read.
unsafe impl Sync for Storage {}

impl Default for Storage {
    fn default() -> Self {
        Self { start: NonNull::dangling(), extent: Extent::default() }
    }
}

impl Storage {
    /// Zeroed memory of `lines` cache lines by themselves. As with any allocation, the process ends if there
    /// is none.
    pub(crate) fn zeroed(lines: usize) -> Self {
        if lines == 0 {
            return Self::default();
        }
        let layout = Self::layout(lines);
        // SAFETY: the layout has at least one line.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }.cast());
        let extent = Extent::of_lines(lines, 0);
        let (Some(start), Some(extent)) = (start, extent) else { handle_alloc_error(layout) };
        Self { start, extent }
    }

    /// A frame of a region.
    ///
    /// # Safety
    /// The `lines` from `start` on, at least one, are initialised memory of region `number`. Nobody has them,
    /// and they stay until [`region::give_back`] was called for them, which happens when this is dropped.
    pub(crate) unsafe fn of_frame(start: NonNull<Line>, lines: usize, number: RegionNumber) -> Self {
        let extent =
            Extent::of_lines(lines, number).unwrap_or_else(|| handle_alloc_error(Self::layout(lines)));
        Self { start, extent }
    }

    /// The region that it is a frame of; 0 if it is by itself.
    #[inline(always)]
    pub(crate) fn region(&self) -> RegionNumber {
        self.extent.region()
    }

    /// Whether it is a frame of this region, and its packet has no mark.
    #[inline(always)]
    pub(crate) fn is_unmarked_of(&self, number: RegionNumber) -> bool {
        // One comparison for both: the mark is above the region.
        self.extent.0 >> REGION_AT == u64::from(number)
    }

    /// Where it starts: no other storage does. `None` if there are no lines.
    pub(crate) fn address(&self) -> Option<usize> {
        (self.extent.bytes() != 0).then(|| self.start.as_ptr().addr())
    }

    #[inline(always)]
    pub(crate) fn interface(&self) -> Interface {
        self.extent.interface()
    }

    #[inline(always)]
    pub(crate) fn set_interface(&mut self, interface: Interface) {
        self.extent = self.extent.with_interface(interface);
    }

    #[inline(always)]
    pub(crate) fn mark(&self) -> Mark {
        self.extent.mark()
    }

    #[inline(always)]
    pub(crate) fn set_mark(&mut self, mark: Mark) {
        self.extent = self.extent.with_mark(mark);
    }

    /// Whether a next segment is linked.
    #[inline(always)]
    pub(crate) fn is_linked(&self) -> bool {
        self.extent.is_linked()
    }

    /// Makes the last line the place of the next segment; gives that back where there are not two lines, or
    /// there is one already.
    pub(crate) fn link(&mut self, next: Buffer) -> Result<(), Buffer> {
        if self.is_linked() || self.extent.bytes() < 2 * LINE_BYTES {
            return Err(next);
        }
        self.extent = self.extent.linked();
        // SAFETY: the line after what the extent now says is ours, aligned for a `Buffer` and longer than
        // one. Until the link is taken, nothing else reads or writes it.
        unsafe { self.place_of_next().write(next) };
        Ok(())
    }

    /// Takes the next segment; its line is a part of this storage again, with zeros.
    pub(crate) fn unlink(&mut self) -> Option<Buffer> {
        if !self.is_linked() {
            return None;
        }
        let place = self.place_of_next();
        // SAFETY: `link` wrote a buffer there. It is moved out, and the extent no longer says that it is
        // there.
        let next = unsafe { place.read() };
        // SAFETY: as for `link`. A line of bytes is written: what `link` wrote must not be seen as bytes.
        unsafe { place.cast::<[u8; LINE_BYTES]>().write([0; LINE_BYTES]) };
        self.extent = self.extent.unlinked();
        Some(next)
    }

    /// The next segment.
    pub(crate) fn next(&self) -> Option<&Buffer> {
        // SAFETY: `link` wrote a buffer there, which is borrowed with `self`.
        self.is_linked().then(|| unsafe { &*self.place_of_next() })
    }

    /// The bytes, and the next segment, which is not among them.
    pub(crate) fn split_next(&mut self) -> (&mut [u8], Option<&mut Buffer>) {
        let place = self.is_linked().then(|| self.place_of_next());
        // SAFETY: `link` wrote a buffer there, in the line after all that `deref_mut` gives out, so that the
        // two do not overlap; both are borrowed with `self`.
        let next = place.map(|place| unsafe { &mut *place });
        (&mut *self, next)
    }

    /// Where the next segment is, if it is linked: the line after the extent.
    fn place_of_next(&self) -> *mut Buffer {
        self.start.as_ptr().cast::<u8>().wrapping_add(self.extent.bytes()).cast()
    }

    fn layout(lines: usize) -> Layout {
        // A length that fits no layout cannot be allocated either; buffers are bounded far below.
        Layout::array::<Line>(lines).unwrap_or(Layout::new::<Line>())
    }
}

impl Drop for Storage {
    #[inline(always)]
    fn drop(&mut self) {
        // Most drops are of buffers whose storage was taken, several for each packet.
        if self.extent.bytes() != 0 {
            // SAFETY: the memory is this storage's, and this is its end.
            unsafe { free(self.start, self.extent) };
        }
    }
}

/// Frees the memory, or gives its frame back. It has C's calling convention because such a function does not
/// unwind: otherwise every caller that may drop a buffer would keep what unwinding needs, ten instructions a
/// packet.
///
/// # Safety
/// The memory must be that of a [`Storage`] with at least one line, and nothing may use it afterwards.
#[cold]
#[inline(never)]
unsafe extern "C" fn free(start: NonNull<Line>, extent: Extent) {
    if extent.is_linked() {
        let mut storage = std::mem::ManuallyDrop::new(Storage { start, extent });
        // The next segment first, and what is linked to that: no more than a chain may have.
        drop(storage.unlink());
        // SAFETY: as for this function; without a link this is the end.
        return unsafe { free(start, storage.extent) };
    }
    match extent.region() {
        // SAFETY: `zeroed` allocated it with this layout.
        0 => unsafe { dealloc(start.as_ptr().cast(), Storage::layout(extent.bytes() / LINE_BYTES)) },
        number => region::give_back(number, start),
    }
}

impl Deref for Storage {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        // SAFETY: `start` and the length are those of memory that is ours, initialised (zeroed by the
        // allocator or the kernel), and borrowed with `self`; without lines a dangling pointer is valid.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.extent.bytes()) }
    }
}

impl DerefMut for Storage {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and borrowed for us alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().cast(), self.extent.bytes()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storage_of_any_length_is_zeroed_aligned_and_its_own() {
        for lines in [0, 1, 7, 33] {
            let mut all: Vec<Storage> = (0..5).map(|_| Storage::zeroed(lines)).collect();
            for (number, storage) in (1..).zip(&mut all) {
                assert_eq!((storage.len(), storage.as_ptr().addr() % 64), (lines * 64, 0));
                assert!(storage.iter().all(|&byte| byte == 0), "{lines} lines");
                storage.fill(number);
            }
            for (number, storage) in (1..).zip(&all) {
                assert!(storage.iter().all(|&byte| byte == number), "{lines} lines");
            }
        }
    }

    #[test]
    fn a_link_takes_the_last_line_and_gives_it_back() {
        let mut storage = Storage::zeroed(3);
        storage.fill(7);
        let next = Buffer::copied(b"next", 0, 0);
        let identity = next.identity();
        storage.link(next).unwrap();
        assert_eq!((storage.len(), storage.is_linked()), (128, true));
        assert!(storage.link(Buffer::with_capacity(64)).is_err(), "one link each");
        let (bytes, linked) = storage.split_next();
        bytes.fill(9);
        linked.unwrap().bytes_mut()[0] = b'N';
        assert_eq!(storage.next().map(|next| next.bytes()), Some(&b"Next"[..]));
        let next = storage.unlink().unwrap();
        assert_eq!((next.identity(), next.bytes()), (identity, &b"Next"[..]));
        assert_eq!((storage.len(), storage.unlink().is_none()), (192, true));
        assert!(storage[..128].iter().all(|&byte| byte == 9) && storage[128..].iter().all(|&byte| byte == 0));
        assert!(Storage::zeroed(1).link(next).is_err(), "a line for the packet must be left");
    }

    #[test]
    fn an_extent_keeps_length_region_interface_and_mark_apart() {
        let mark = Mark::seal_under(Mark::SESSIONS - 1);
        let extent = Extent::of_lines(33, 0x2BCD).unwrap().with_interface(Interface(0xFE)).with_mark(mark);
        assert_eq!((extent.bytes(), extent.region(), extent.interface()), (33 * 64, 0x2BCD, Interface(0xFE)));
        assert_eq!(extent.mark(), mark);
        let changed = extent.with_interface(Interface(1)).with_mark(Mark::NONE);
        assert_eq!((changed.bytes(), changed.region(), changed.mark()), (33 * 64, 0x2BCD, Mark::NONE));
        let linked = extent.linked();
        assert_eq!((linked.bytes(), linked.region(), linked.is_linked()), (32 * 64, 0x2BCD, true));
        assert_eq!((linked.mark(), linked.interface()), (mark, Interface(0xFE)));
        assert_eq!(linked.unlinked().0, extent.0);
        assert!(Extent::of_lines(1 << 18, 0).is_none(), "16 MiB");
        assert_eq!(Extent::of_lines((1 << 18) - 1, 7).unwrap().bytes(), MAX_BYTES);
    }
}

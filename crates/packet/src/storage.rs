//! The memory of one buffer: whole cache lines, zero at first, and not touched before they are used.
//!
//! A buffer holds the longest datagram, 64 KiB, and most packets are a fortieth of that. The allocator zeroes
//! memory that is aligned to cache lines by writing all of it, so long storage is mapped instead: the kernel
//! gives each page when it is first used.

#![allow(
    unsafe_code,
    reason = "the standard library has no way to ask for zeroed memory of this alignment that it does not touch"
)]

use crate::Interface;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A cache line: the unit in which buffer memory is allocated, so that every buffer starts on one.
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Bytes of a page on every platform that we run on, or a multiple of one where pages are smaller: mappings
/// start at one.
const PAGE_BYTES: usize = 4096;

/// Storage from this many lines on is mapped; 32 KiB. Shorter storage is mostly used as a whole, and below a
/// few pages a mapping costs more than the memory. (Miri knows no mappings made by system calls.)
const MAPPED_LINES: usize = if cfg!(miri) { usize::MAX } else { 512 };

/// Cache lines of a page: as many positions as a mapping's first line can have in it.
const COLOURS: usize = PAGE_BYTES / 64;

/// A run of zeroed cache lines, owned.
pub(crate) struct Storage {
    /// Dangling if there are no lines.
    start: NonNull<Line>,
    extent: Extent,
}

/// Length in bytes, of which 32 bits are enough: a buffer has at most 2^31. And the interface of the packet
/// in them, which in [`Buffer`](crate::Buffer) would be eight more bytes.
///
/// One word, as two fields would be moved one by one: eleven instructions more for a packet to protect.
#[derive(Clone, Copy, Default)]
struct Extent(u64);

#[allow(clippy::cast_possible_truncation, reason = "to cut a half off is how a half is read")]
impl Extent {
    /// `None` if the length does not fit.
    fn of_lines(lines: usize) -> Option<Self> {
        let bytes = u32::try_from(lines.checked_mul(size_of::<Line>())?).ok()?;
        Some(Self(u64::from(bytes)))
    }

    #[inline(always)]
    fn bytes(self) -> usize {
        self.0 as u32 as usize
    }

    #[inline(always)]
    fn interface(self) -> Interface {
        Interface((self.0 >> 32) as u8)
    }

    #[inline(always)]
    fn with_interface(self, interface: Interface) -> Self {
        Self(u64::from(self.0 as u32) | u64::from(interface.0) << 32)
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
    /// Zeroed memory of `lines` cache lines. As with any allocation, the process ends if there is none.
    pub(crate) fn zeroed(lines: usize) -> Self {
        if lines == 0 {
            return Self::default();
        }
        if lines >= MAPPED_LINES {
            return Self::mapped(lines);
        }
        let layout = Self::layout(lines);
        // SAFETY: the layout has at least one line.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }.cast());
        Self::of(start.unwrap_or_else(|| handle_alloc_error(layout)), lines)
    }

    /// Storage of these lines. The process ends if they are longer than can be said, as if there were none.
    fn of(start: NonNull<Line>, lines: usize) -> Self {
        let extent = Extent::of_lines(lines).unwrap_or_else(|| handle_alloc_error(Self::layout(lines)));
        Self { start, extent }
    }

    /// One mapping. The position of its first line in the page varies: if it were always the start, the
    /// headers of all packets would share a sixty-fourth of the cache's sets.
    fn mapped(lines: usize) -> Self {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let colour = MADE.fetch_add(1, Ordering::Relaxed).wrapping_mul(9) % COLOURS;
        let length = Self::mapping_bytes(colour, lines);
        // SAFETY: no address is requested, so nothing that exists is replaced.
        let mapping = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        };
        let base = mapping.ok().and_then(|base| NonNull::new(base.cast::<Line>()));
        let base = base.unwrap_or_else(|| handle_alloc_error(Self::layout(lines)));
        // SAFETY: the mapping has `colour + lines` lines.
        Self::of(unsafe { base.add(colour) }, lines)
    }

    /// Bytes of the mapping around `lines` lines, the first of which is line `colour` of its page.
    fn mapping_bytes(colour: usize, lines: usize) -> usize {
        ((colour + lines) * 64).next_multiple_of(PAGE_BYTES)
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
            unsafe { free(self.start, self.extent.bytes() / size_of::<Line>()) };
        }
    }
}

/// Frees the memory. It has C's calling convention because such a function does not unwind: otherwise every
/// caller that may drop a buffer would keep what unwinding needs, ten instructions a packet.
///
/// # Safety
/// The memory must be that of a [`Storage`] with at least one line, and nothing may use it afterwards.
#[cold]
#[inline(never)]
unsafe extern "C" fn free(start: NonNull<Line>, lines: usize) {
    if lines < MAPPED_LINES {
        // SAFETY: `zeroed` allocated it with this layout.
        return unsafe { dealloc(start.as_ptr().cast(), Storage::layout(lines)) };
    }
    let offset = start.addr().get() % PAGE_BYTES;
    // SAFETY: `mapped` mapped it so: it starts at the page that the first line is in, and nothing points
    // there any more.
    let _lost = unsafe {
        let base = start.as_ptr().byte_sub(offset);
        // The kernel refuses only where too many mappings would be left: the memory is then leaked, nothing
        // worse.
        munmap(base.cast(), Storage::mapping_bytes(offset / 64, lines))
    };
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
        // Miri takes minutes for the long ones.
        let lengths = [0, 1, 7, 511, 512, 513, 1032, 4096];
        for lines in lengths.into_iter().take(if cfg!(miri) { 3 } else { lengths.len() }) {
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

    /// Resident memory of this process in bytes (proc(5): the second figure of statm, in pages).
    #[cfg(all(target_os = "linux", not(miri)))]
    fn resident_bytes() -> usize {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
        pages * rustix::param::page_size()
    }

    #[test]
    #[cfg(all(target_os = "linux", not(miri)))]
    fn unused_storage_takes_no_memory() {
        const MIB: usize = 1 << 20;
        let before = resident_bytes();
        let mut all: Vec<Storage> = (0..2048).map(|_| Storage::zeroed(1032)).collect();
        let made = resident_bytes();
        // 129 MiB of storage; other tests of this process allocate far less at the same time.
        assert!(made < before + 16 * MIB, "{before} to {made} bytes");
        all.iter_mut().for_each(|storage| storage[..1500].fill(1));
        let used = resident_bytes();
        assert!(used > made + 2048 * 1500, "{made} to {used} bytes");
    }
}

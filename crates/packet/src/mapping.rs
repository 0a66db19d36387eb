//! Mapped memory: zeroed, on the largest pages that can be had, and not touched before it is used.

#![allow(
    unsafe_code,
    reason = "the standard library has no way to ask for memory that it does not touch, nor for large pages"
)]

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::alloc::{Layout, handle_alloc_error};
use std::ptr::NonNull;

/// Bytes of a large page on x86-64, and on ARM with pages of 4 KiB.
const LARGE_PAGE_BYTES: usize = 2 << 20;

/// The pages that memory lies on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// Pages of 2 MiB that the system has set apart (`vm.nr_hugepages`).
    Huge,
    /// Small pages, which the kernel was asked to join to large ones (transparent huge pages).
    Transparent,
    /// Small pages.
    Small,
}

/// Which pages to ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PageChoice {
    /// The largest that can be had.
    #[default]
    Largest,
    /// Small ones: only those with used bytes take memory.
    Small,
}

/// One mapping, unmapped when it is dropped.
pub(crate) struct Mapping {
    /// Aligned to a small page, and to a large one where it has some.
    start: NonNull<u8>,
    pages: Pages,
    /// What was mapped: more than what is used, where small pages had to be aligned to large ones.
    whole: NonNull<u8>,
    whole_bytes: usize,
}

// SAFETY: a mapping owns its memory, and hands out nothing but its address.
unsafe impl Send for Mapping {}

impl Mapping {
    /// At least `bytes` of zeroed memory. As with any allocation, the process ends if there is none.
    pub(crate) fn new(bytes: usize, choice: PageChoice) -> Self {
        if cfg!(miri) {
            return Self::allocated(bytes);
        }
        // Less than a large page is not worth one.
        let wants_large = choice == PageChoice::Largest && bytes >= LARGE_PAGE_BYTES;
        let huge = wants_large.then(|| Self::huge(bytes)).flatten();
        huge.or_else(|| wants_large.then(|| Self::transparent(bytes)).flatten())
            .or_else(|| Self::small(bytes))
            .unwrap_or_else(|| handle_alloc_error(layout(bytes)))
    }

    /// On pages that are set apart, which are taken at once: one that is missing later would end the process.
    /// To reserve them is not enough, since limits of a control group are looked at when a page is used.
    fn huge(bytes: usize) -> Option<Self> {
        let bytes = bytes.checked_next_multiple_of(LARGE_PAGE_BYTES)?;
        let start = map(bytes, MapFlags::HUGETLB | MapFlags::HUGE_2MB)?;
        let mapping = Self { start, pages: Pages::Huge, whole: start, whole_bytes: bytes };
        // SAFETY: the bytes are the mapping's, and stay zero.
        let taken = unsafe { madvise(start.as_ptr().cast(), bytes, Advice::LinuxPopulateWrite) };
        // A kernel before 5.14 cannot say whether they are there: then small pages are the safe choice.
        taken.ok().map(|()| mapping)
    }

    /// On small pages, aligned so that the kernel can join them.
    fn transparent(bytes: usize) -> Option<Self> {
        let bytes = bytes.checked_next_multiple_of(LARGE_PAGE_BYTES)?;
        let whole_bytes = bytes.checked_add(LARGE_PAGE_BYTES)?;
        let whole = map(whole_bytes, MapFlags::NORESERVE)?;
        let skipped = whole.addr().get().wrapping_neg() % LARGE_PAGE_BYTES;
        // SAFETY: less than a large page is skipped, and the mapping is longer than `bytes` by one.
        let start = unsafe { whole.byte_add(skipped) };
        let mut mapping = Self { start, pages: Pages::Transparent, whole, whole_bytes };
        // SAFETY: the bytes are the mapping's, and the advice changes none of them.
        if unsafe { madvise(start.as_ptr().cast(), bytes, Advice::LinuxHugepage) }.is_err() {
            // A kernel without large pages.
            mapping.pages = Pages::Small;
        }
        Some(mapping)
    }

    fn small(bytes: usize) -> Option<Self> {
        let start = map(bytes, MapFlags::NORESERVE)?;
        Some(Self { start, pages: Pages::Small, whole: start, whole_bytes: bytes })
    }

    /// Miri knows no mappings made by system calls.
    fn allocated(bytes: usize) -> Self {
        let layout = layout(bytes);
        // SAFETY: nobody maps no bytes.
        let start = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) });
        let start = start.unwrap_or_else(|| handle_alloc_error(layout));
        Self { start, pages: Pages::Small, whole: start, whole_bytes: bytes }
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn pages(&self) -> Pages {
        self.pages
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if cfg!(miri) {
            // SAFETY: `allocated` allocated it with this layout.
            return unsafe { std::alloc::dealloc(self.whole.as_ptr(), layout(self.whole_bytes)) };
        }
        // SAFETY: the memory is this mapping's, which ends. The kernel refuses only where too many mappings
        // would be left: the memory is then leaked, nothing worse.
        let _leaked = unsafe { munmap(self.whole.as_ptr().cast(), self.whole_bytes) };
    }
}

/// Maps zeroed memory where the kernel likes.
fn map(bytes: usize, flags: MapFlags) -> Option<NonNull<u8>> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: no address is requested, so nothing that exists is replaced.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, MapFlags::PRIVATE | flags) };
    NonNull::new(start.ok()?.cast())
}

/// What cannot be described as a layout cannot be allocated either.
fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, 4096).unwrap_or(Layout::new::<u64>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_aligned_to_the_pages_that_they_lie_on() {
        for bytes in [64, 4096, LARGE_PAGE_BYTES, LARGE_PAGE_BYTES + 1] {
            for choice in [PageChoice::Small, PageChoice::Largest] {
                let mapping = Mapping::new(bytes, choice);
                let page = if mapping.pages() == Pages::Small { 4096 } else { LARGE_PAGE_BYTES };
                assert_eq!(mapping.start().addr().get() % page, 0, "{bytes} bytes, {choice:?}");
                let is_small = choice == PageChoice::Small || bytes < LARGE_PAGE_BYTES;
                assert!(!is_small || mapping.pages() == Pages::Small);
                // SAFETY: the first and the last byte are the mapping's.
                let (first, last) =
                    unsafe { (*mapping.start().as_ptr(), *mapping.start().as_ptr().add(bytes - 1)) };
                assert_eq!((first, last), (0, 0));
            }
        }
    }
}

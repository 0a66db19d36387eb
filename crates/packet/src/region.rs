//! Regions: one mapping each, divided into frames of one length, which are the storage of a pool's buffers.
//!
//! ```text
//!   |<------- frame 0 ------->|<------- frame 1 ------->|<-- …      one mapping
//!   +----------+--------+-----+-------------------------+---
//!   | headroom | packet |     |                         |
//! ```
//!
//! A region is one run of memory, so that a device can be told of all its frames at once (the umem of AF_XDP,
//! external memory of DPDK, memory registered with a GPU), and large pages need few entries of the TLB. No
//! frame is touched before it is used: the kernel gives a page when it is first written.
//!
//! The holder of a [`Buffer`] has its frame. Buffers go back to their pool; one that is dropped instead gives
//! its frame back to the region, on whatever thread. The mapping is there until the region and all of its
//! buffers are gone.

#![allow(unsafe_code, reason = "storage is made of a part of a mapping that nobody else has")]

use crate::Buffer;
use crate::mapping::{Mapping, PageChoice, Pages};
use crate::storage::{LINE_BYTES, Line, Storage};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The number of a region, which each of its buffers has; 0 is that of buffers outside of all regions.
pub(crate) type RegionNumber = u16;
/// The highest number: a buffer has 15 bits for it.
const MOST_REGIONS: RegionNumber = (1 << 15) - 1;

/// A region, as its owner has it: where frames come from.
pub struct Region {
    number: RegionNumber,
    base: NonNull<Line>,
    frame_lines: usize,
    frames: usize,
    /// Frames before this one were given out, those from it on never.
    next: usize,
    pages: Pages,
}

// SAFETY: the pointer is used only to make storage of frames that nobody has, which is `Send` itself.
unsafe impl Send for Region {}
// SAFETY: shared references only read numbers.
unsafe impl Sync for Region {}

impl Region {
    /// A region of `frames` frames of `frame_bytes` each, rounded up to whole cache lines. As with any
    /// allocation, the process ends if there is no memory for it.
    #[must_use]
    pub fn new(frames: usize, frame_bytes: usize, choice: PageChoice) -> Self {
        let frame_lines = frame_bytes.div_ceil(LINE_BYTES).max(1);
        let bytes = frames.checked_mul(frame_lines).and_then(|lines| lines.max(1).checked_mul(LINE_BYTES));
        // As long as this, it has no memory either.
        let mapping = Mapping::new(bytes.unwrap_or(usize::MAX), choice);
        let (base, pages) = (mapping.start().cast(), mapping.pages());
        let arena = Arena { mapping, frame_lines, returned: Vec::new(), outside: None };
        Self { number: Arenas::lock().add(arena), base, frame_lines, frames, next: 0, pages }
    }

    /// A buffer on a frame that nobody has, all of it tailroom; `None` when all are in use. It holds zeros,
    /// or what was there when the frame was used last.
    #[must_use]
    pub fn take(&mut self) -> Option<Buffer> {
        let index = if self.next < self.frames {
            self.next += 1;
            self.next - 1
        } else {
            Arenas::lock().get(self.number)?.returned.pop()?
        };
        // SAFETY: `index` is below `frames`, so that the frame lies in the mapping, which is there as long as
        // one of its frames is given out. Nobody has this one: it was never given out, or its buffer was
        // dropped.
        let storage = unsafe {
            Storage::of_frame(self.base.add(index * self.frame_lines), self.frame_lines, self.number)
        };
        Some(Buffer::on(storage))
    }

    /// Whether `buffer` is on a frame of this region.
    #[must_use]
    #[inline(always)]
    pub fn owns(&self, buffer: &Buffer) -> bool {
        buffer.region() == self.number
    }

    /// Whether `buffer` is on a frame of this region, and its packet has no mark.
    #[inline(always)]
    pub(crate) fn owns_unmarked(&self, buffer: &Buffer) -> bool {
        buffer.is_unmarked_of(self.number)
    }

    /// The index of the frame that `buffer` is on, from 0; `None` if it is not of this region.
    #[must_use]
    #[inline]
    pub fn index_of(&self, buffer: &Buffer) -> Option<usize> {
        let at = buffer.identity().filter(|_| self.owns(buffer))?;
        Some((at - self.base.as_ptr().addr()) / self.frame_bytes())
    }

    /// Bytes of a frame.
    #[must_use]
    pub fn frame_bytes(&self) -> usize {
        self.frame_lines * LINE_BYTES
    }

    /// Frames in all.
    #[must_use]
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// The pages that it lies on.
    #[must_use]
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// Where it starts, and its length in bytes: for a device that is told of it. What lies there belongs to
    /// the holders of its buffers.
    #[must_use]
    pub fn extent(&self) -> (*mut u8, usize) {
        (self.base.as_ptr().cast(), self.frames * self.frame_bytes())
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        Arenas::lock().end_owner(self.number, self.next);
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Region({} frames of {} bytes on {:?} pages)", self.frames, self.frame_bytes(), self.pages)
    }
}

/// Takes back the frame at `start`, whose buffer is dropped.
pub(crate) fn give_back(number: RegionNumber, start: NonNull<Line>) {
    Arenas::lock().give_back(number, start);
}

/// A region's memory, and the frames that came back to it.
struct Arena {
    mapping: Mapping,
    frame_lines: usize,
    /// Indices of frames whose buffers were dropped.
    returned: Vec<usize>,
    /// Once the owner is gone: how many frames are still in buffers.
    outside: Option<usize>,
}

/// The memory of all regions of the process, at the region's number less one. A buffer has the number instead
/// of a pointer, which would make every buffer longer; look-ups here are rare.
struct Arenas(Vec<Option<Arena>>);

impl Arenas {
    fn lock() -> MutexGuard<'static, Self> {
        static ALL: Mutex<Arenas> = Mutex::new(Arenas(Vec::new()));
        ALL.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&mut self, arena: Arena) -> RegionNumber {
        let free = self.0.iter().position(Option::is_none).unwrap_or(self.0.len());
        let number = RegionNumber::try_from(free + 1).unwrap_or(RegionNumber::MAX);
        assert!(number <= MOST_REGIONS, "{free} regions are in use, as many as have numbers");
        if free == self.0.len() {
            self.0.push(None);
        }
        self.0[free] = Some(arena);
        number
    }

    fn get(&mut self, number: RegionNumber) -> Option<&mut Arena> {
        self.0.get_mut(usize::from(number).checked_sub(1)?)?.as_mut()
    }

    fn give_back(&mut self, number: RegionNumber, start: NonNull<Line>) {
        let Some(arena) = self.get(number) else { return };
        match &mut arena.outside {
            None => {
                let offset = start.addr().get() - arena.mapping.start().addr().get();
                arena.returned.push(offset / (arena.frame_lines * LINE_BYTES));
            }
            Some(outside) => {
                *outside -= 1;
                if *outside == 0 {
                    self.0[usize::from(number) - 1] = None;
                }
            }
        }
    }

    /// The owner, which has given out `given` frames, takes no more: the memory goes with the last buffer.
    fn end_owner(&mut self, number: RegionNumber, given: usize) {
        let Some(arena) = self.get(number) else { return };
        match given - arena.returned.len() {
            0 => self.0[usize::from(number) - 1] = None,
            outside => arena.outside = Some(outside),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(frames: usize) -> Region {
        Region::new(frames, 100, PageChoice::Small)
    }

    #[test]
    fn frames_are_zeroed_aligned_and_apart() {
        let mut region = region(5);
        let mut buffers: Vec<Buffer> = std::iter::from_fn(|| region.take()).collect();
        assert_eq!((buffers.len(), region.frame_bytes()), (5, 128));
        for (index, buffer) in buffers.iter_mut().enumerate() {
            assert_eq!(region.index_of(buffer), Some(index));
            assert_eq!((buffer.capacity(), buffer.receive_area().as_ptr().addr() % 64), (128, 0));
            assert!(buffer.receive_area().iter().all(|&byte| byte == 0));
            buffer.receive_area().fill(index as u8 + 1);
        }
        for (index, buffer) in buffers.iter_mut().enumerate() {
            assert!(buffer.receive_area().iter().all(|&byte| byte == index as u8 + 1));
        }
    }

    #[test]
    fn a_dropped_buffer_gives_its_frame_back_on_any_thread() {
        let mut region = region(2);
        let (a, b) = (region.take().unwrap(), region.take().unwrap());
        assert!(region.take().is_none());
        std::thread::spawn(move || drop(b)).join().unwrap();
        assert_eq!(region.take().map(|buffer| region.index_of(&buffer)), Some(Some(1)));
        drop(a);
        let both: Vec<Buffer> = std::iter::from_fn(|| region.take()).collect();
        assert_eq!(both.len(), 2);
    }

    #[test]
    fn buffers_outlive_their_region() {
        let mut buffers: Vec<Buffer> = {
            let mut region = region(3);
            drop(region.take());
            std::iter::from_fn(|| region.take()).collect()
        };
        assert_eq!(buffers.len(), 3);
        let number = buffers[0].region();
        for buffer in &mut buffers {
            buffer.receive_area().fill(7);
        }
        let last = buffers.pop();
        drop(buffers);
        assert!(Arenas::lock().get(number).is_some_and(|arena| arena.outside == Some(1)));
        assert!(last.is_some_and(|mut buffer| buffer.receive_area().iter().all(|&byte| byte == 7)));
    }

    #[test]
    fn a_region_knows_its_own_buffers() {
        let (mut one, mut other) = (region(1), region(1));
        let (of_one, of_other) = (one.take().unwrap(), other.take().unwrap());
        assert!(one.owns(&of_one) && !one.owns(&of_other) && !one.owns(&Buffer::with_capacity(128)));
        assert_eq!((one.index_of(&of_one), one.index_of(&of_other)), (Some(0), None));
        assert_eq!(one.index_of(&Buffer::default()), None);
        let (start, bytes) = one.extent();
        assert_eq!((of_one.identity(), bytes), (Some(start.addr()), 128));
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
    fn unused_frames_take_no_memory() {
        const MIB: usize = 1 << 20;
        let before = resident_bytes();
        let mut region = Region::new(2048, 66_048, PageChoice::Small);
        let mut all: Vec<Buffer> = std::iter::from_fn(|| region.take()).collect();
        let made = resident_bytes();
        // 129 MiB of frames; other tests of this process allocate far less at the same time.
        assert!(all.len() == 2048 && made < before + 16 * MIB, "{before} to {made} bytes");
        all.iter_mut().for_each(|buffer| buffer.receive_area()[..1500].fill(1));
        let used = resident_bytes();
        assert!(used > made + 2048 * 1500, "{made} to {used} bytes");
        drop((all, region));
        let gone = resident_bytes();
        assert!(gone < used - 2048 * 1500, "{used} to {gone} bytes");
    }
}

//! The rings that a socket shares with the kernel: memory with two indices, each written by one side.
//!
//! ```text
//!          consumer            producer           indices run on and wrap at 2^32;
//!             ▼                   ▼               entry = index mod size
//!   |  free   |  filled, not read |  free  |
//! ```
//!
//! What the kernel writes is not believed: an index that says more than the ring holds makes it
//! [broken](Broken), and entries are read once, each as a whole, before they are looked at.

use std::io;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// What the rings of received and of sent packets hold (`struct xdp_desc`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Descriptor {
    /// Where the packet starts, in bytes from the umem's start.
    pub address: u64,
    /// Its bytes there.
    pub bytes: u32,
    /// [`MORE`](Self::MORE), or nothing.
    pub options: u32,
}

impl Descriptor {
    /// `XDP_PKT_CONTD`: the packet goes on in the next descriptor.
    pub const MORE: u32 = libc::XDP_PKT_CONTD;
}

/// What can be an entry of a ring: plain numbers.
pub trait Entry: Copy + Default + Send + 'static {}

/// The rings of free and of sent frames hold addresses.
impl Entry for u64 {}
impl Entry for Descriptor {}

/// An index of the ring says that it holds more than it can.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a ring of {size} entries is said to hold {claimed}")]
pub struct Broken {
    /// Entries of the ring.
    pub size: u32,
    /// What the indices say.
    pub claimed: u32,
}

impl From<Broken> for io::Error {
    fn from(broken: Broken) -> Self {
        io::Error::new(io::ErrorKind::InvalidData, broken)
    }
}

/// Where a ring's parts are, in bytes from the start of its memory (`struct xdp_ring_offset`).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Offsets {
    pub producer: usize,
    pub consumer: usize,
    pub flags: usize,
    pub entries: usize,
}

/// A ring's memory, which is there as long as either side is.
#[derive(Debug)]
pub(crate) struct RingMemory {
    start: *mut u8,
    bytes: usize,
    origin: Origin,
}

#[derive(Debug)]
enum Origin {
    /// The kernel's, mapped.
    Mapped,
    /// Ours: these words.
    Own(#[allow(dead_code, reason = "keeps the memory, which is used by its address")] Vec<u64>),
}

// SAFETY: the memory is used through atomics and volatile accesses alone; its address is valid on any thread.
unsafe impl Send for RingMemory {}
// SAFETY: as above.
unsafe impl Sync for RingMemory {}

impl RingMemory {
    /// Takes over a mapping.
    ///
    /// # Safety
    /// `bytes` bytes from `start` on are a mapping for reading and writing that is nobody else's.
    pub(crate) unsafe fn mapped(start: *mut u8, bytes: usize) -> Self {
        Self { start, bytes, origin: Origin::Mapped }
    }

    /// Zeroed memory of our own, for a kernel that is played.
    pub(crate) fn own(bytes: usize) -> Self {
        let mut words = vec![0; bytes.div_ceil(8)];
        Self { start: words.as_mut_ptr().cast(), bytes, origin: Origin::Own(words) }
    }
}

impl Drop for RingMemory {
    fn drop(&mut self) {
        if matches!(self.origin, Origin::Mapped) {
            // SAFETY: the mapping is this memory's, which ends. If the kernel refuses, it is leaked.
            let _leaked = unsafe { rustix::mm::munmap(self.start.cast(), self.bytes) };
        }
    }
}

/// A ring, without a side.
#[derive(Debug)]
struct Shared<T> {
    producer: *const AtomicU32,
    consumer: *const AtomicU32,
    flags: *const AtomicU32,
    entries: *mut T,
    size: u32,
    _memory: Arc<RingMemory>,
    entry: PhantomData<T>,
}

// SAFETY: as for `RingMemory`, which it keeps, and whose parts the pointers are.
unsafe impl<T: Entry> Send for Shared<T> {}

impl<T: Entry> Shared<T> {
    /// `None` if the memory does not have what `offsets` say, properly aligned.
    fn new(memory: Arc<RingMemory>, offsets: Offsets, size: u32) -> Option<Self> {
        let entry_bytes = usize::try_from(size).ok()?.checked_mul(size_of::<T>())?;
        let has = |offset: usize, bytes: usize, align: usize| {
            offset.checked_add(bytes).is_some_and(|end| end <= memory.bytes) && offset.is_multiple_of(align)
        };
        let indices = [offsets.producer, offsets.consumer, offsets.flags];
        let all = indices.into_iter().all(|offset| has(offset, 4, 4));
        if !size.is_power_of_two() || !all || !has(offsets.entries, entry_bytes, align_of::<T>()) {
            return None;
        }
        // SAFETY: each offset was found to lie in the memory with all that it is for. Mappings are aligned to
        // pages and our own memory to words, so that each part is aligned as well.
        let at = |offset: usize| unsafe { memory.start.add(offset) };
        Some(Self {
            producer: at(offsets.producer).cast(),
            consumer: at(offsets.consumer).cast(),
            flags: at(offsets.flags).cast(),
            entries: at(offsets.entries).cast(),
            size,
            _memory: Arc::clone(&memory),
            entry: PhantomData,
        })
    }

    fn producer(&self) -> &AtomicU32 {
        // SAFETY: points into the memory that `self` keeps, aligned; an atomic may be shared with the kernel.
        unsafe { &*self.producer }
    }

    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { &*self.consumer }
    }

    fn flags(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { &*self.flags }
    }

    fn entry(&self, index: u32) -> *mut T {
        let at = usize::try_from(index & (self.size - 1)).unwrap_or(0); // below the size
        // SAFETY: below the ring's size, as many entries as the memory was found to have.
        unsafe { self.entries.add(at) }
    }

    fn read(&self, index: u32) -> T {
        // SAFETY: the entry lies in the memory. It is plain numbers, of which any bytes are some; volatile,
        // because the other side could write meanwhile: what was read stays as it is.
        unsafe { self.entry(index).read_volatile() }
    }

    fn write(&self, index: u32, entry: T) {
        // SAFETY: as for `read`.
        unsafe { self.entry(index).write_volatile(entry) }
    }

    /// Entries between `consumer` and `producer`.
    fn held(&self, producer: u32, consumer: u32) -> Result<u32, Broken> {
        let claimed = producer.wrapping_sub(consumer);
        if claimed > self.size { Err(Broken { size: self.size, claimed }) } else { Ok(claimed) }
    }
}

/// The side that reads: packets that came, and frames that were sent.
#[derive(Debug)]
pub struct Consumer<T> {
    ring: Shared<T>,
    next: u32,
}

impl<T: Entry> Consumer<T> {
    pub(crate) fn new(memory: Arc<RingMemory>, offsets: Offsets, size: u32) -> Option<Self> {
        let ring = Shared::new(memory, offsets, size)?;
        let next = ring.consumer().load(Ordering::Relaxed);
        Some(Self { ring, next })
    }

    /// Entries that can be read.
    ///
    /// # Errors
    /// [`Broken`]
    pub fn available(&self) -> Result<u32, Broken> {
        // Acquire: entries are read after the index that says they are written.
        self.ring.held(self.ring.producer().load(Ordering::Acquire), self.next)
    }

    /// The entry that is `nth` from the front, from 0: one of those [available](Self::available).
    #[must_use]
    pub fn read(&self, nth: u32) -> T {
        self.ring.read(self.next.wrapping_add(nth))
    }

    /// Gives `count` entries back.
    pub fn release(&mut self, count: u32) {
        self.next = self.next.wrapping_add(count);
        // Release: they are read before the other side may write them.
        self.ring.consumer().store(self.next, Ordering::Release);
    }
}

/// The side that writes: free frames, and packets to send.
#[derive(Debug)]
pub struct Producer<T> {
    ring: Shared<T>,
    next: u32,
}

impl<T: Entry> Producer<T> {
    pub(crate) fn new(memory: Arc<RingMemory>, offsets: Offsets, size: u32) -> Option<Self> {
        let ring = Shared::new(memory, offsets, size)?;
        let next = ring.producer().load(Ordering::Relaxed);
        Some(Self { ring, next })
    }

    /// Entries that the other side has not read.
    ///
    /// # Errors
    /// [`Broken`]
    pub fn pending(&self) -> Result<u32, Broken> {
        self.ring.held(self.next, self.ring.consumer().load(Ordering::Acquire))
    }

    /// Entries that can be written.
    ///
    /// # Errors
    /// [`Broken`]
    pub fn room(&self) -> Result<u32, Broken> {
        self.pending().map(|pending| self.ring.size - pending)
    }

    /// Writes the entry that is `nth` after what was [submitted](Self::submit), from 0: one for which there
    /// is [room](Self::room).
    pub fn write(&mut self, nth: u32, entry: T) {
        self.ring.write(self.next.wrapping_add(nth), entry);
    }

    /// Shows `count` entries to the other side.
    pub fn submit(&mut self, count: u32) {
        self.next = self.next.wrapping_add(count);
        // Release: they are written before the index that says so.
        self.ring.producer().store(self.next, Ordering::Release);
    }

    /// Whether the other side wants a system call before it looks at the ring.
    #[must_use]
    pub fn needs_wakeup(&self) -> bool {
        self.ring.flags().load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// A ring in our own memory, as the kernel has it: for a kernel that is played, which may lie. It writes any
/// index and any entry.
#[derive(Debug)]
pub struct KernelSide<T>(Shared<T>);

impl<T: Entry> KernelSide<T> {
    /// What the index says up to which entries were written.
    #[must_use]
    pub fn producer(&self) -> u32 {
        self.0.producer().load(Ordering::Acquire)
    }

    /// What the index says up to which entries were read.
    #[must_use]
    pub fn consumer(&self) -> u32 {
        self.0.consumer().load(Ordering::Acquire)
    }

    /// Sets that index.
    pub fn set_producer(&self, index: u32) {
        self.0.producer().store(index, Ordering::Release);
    }

    /// Sets that index.
    pub fn set_consumer(&self, index: u32) {
        self.0.consumer().store(index, Ordering::Release);
    }

    /// Sets whether the ring asks for a system call.
    pub fn set_needs_wakeup(&self, needed: bool) {
        self.0.flags().store(u32::from(needed) * libc::XDP_RING_NEED_WAKEUP, Ordering::Relaxed);
    }

    /// The entry of an index.
    #[must_use]
    pub fn read(&self, index: u32) -> T {
        self.0.read(index)
    }

    /// Writes the entry of an index.
    pub fn write(&self, index: u32, entry: T) {
        self.0.write(index, entry);
    }

    /// Writes an entry after the last one, and shows it.
    pub fn push(&self, entry: T) {
        let index = self.producer();
        self.write(index, entry);
        self.set_producer(index.wrapping_add(1));
    }

    /// Reads the entry after the last one that was read, if there is one.
    pub fn pop(&self) -> Option<T> {
        let index = self.consumer();
        (index != self.producer()).then(|| {
            self.set_consumer(index.wrapping_add(1));
            self.read(index)
        })
    }
}

/// Where rings of our own have their parts: each index on a cache line, as in the kernel.
const OWN: Offsets = Offsets { producer: 0, consumer: 64, flags: 128, entries: 192 };

fn own_memory<T>(size: u32) -> Arc<RingMemory> {
    let entries = usize::try_from(size).unwrap_or(0) * size_of::<T>();
    Arc::new(RingMemory::own(OWN.entries + entries))
}

/// A ring of `size` entries, a power of two, that a played kernel writes.
#[must_use]
pub(crate) fn written_by_kernel<T: Entry>(size: u32) -> Option<(Consumer<T>, KernelSide<T>)> {
    let memory = own_memory::<T>(size);
    let kernel = KernelSide(Shared::new(Arc::clone(&memory), OWN, size)?);
    Some((Consumer::new(memory, OWN, size)?, kernel))
}

/// A ring of `size` entries, a power of two, that a played kernel reads.
#[must_use]
pub(crate) fn read_by_kernel<T: Entry>(size: u32) -> Option<(Producer<T>, KernelSide<T>)> {
    let memory = own_memory::<T>(size);
    let kernel = KernelSide(Shared::new(Arc::clone(&memory), OWN, size)?);
    Some((Producer::new(memory, OWN, size)?, kernel))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_pass_in_order_and_indices_wrap() {
        let (mut producer, kernel) = read_by_kernel::<u64>(4).unwrap();
        kernel.set_consumer(u32::MAX - 1);
        producer.next = u32::MAX - 1;
        kernel.set_producer(u32::MAX - 1);
        for round in 0..10_u64 {
            assert_eq!(producer.room(), Ok(4));
            (0..3).for_each(|nth| producer.write(nth, round * 10 + u64::from(nth)));
            producer.submit(3);
            assert_eq!((producer.room(), producer.pending()), (Ok(1), Ok(3)));
            let read: Vec<_> = std::iter::from_fn(|| kernel.pop()).collect();
            assert_eq!(read, [round * 10, round * 10 + 1, round * 10 + 2]);
        }
    }

    #[test]
    fn an_index_that_says_more_than_the_ring_holds_is_not_believed() {
        let (consumer, kernel) = written_by_kernel::<Descriptor>(8).unwrap();
        kernel.set_producer(8);
        assert_eq!(consumer.available(), Ok(8));
        for lie in [9, 1 << 31, u32::MAX] {
            kernel.set_producer(lie);
            assert_eq!(consumer.available(), Err(Broken { size: 8, claimed: lie }));
        }
        let (producer, kernel) = read_by_kernel::<u64>(8).unwrap();
        kernel.set_consumer(1);
        assert_eq!(producer.room(), Err(Broken { size: 8, claimed: u32::MAX }));
    }

    #[test]
    fn parts_that_are_not_in_the_memory_make_no_ring() {
        let memory = || Arc::new(RingMemory::own(256));
        assert!(Consumer::<u64>::new(memory(), OWN, 8).is_some());
        assert!(Consumer::<u64>::new(memory(), OWN, 16).is_none(), "too long");
        assert!(Consumer::<u64>::new(memory(), OWN, 7).is_none(), "no power of two");
        for (producer, entries) in [(256, 192), (2, 192), (usize::MAX, 192), (0, 193), (0, usize::MAX)] {
            let offsets = Offsets { producer, entries, ..OWN };
            assert!(Consumer::<u64>::new(memory(), offsets, 8).is_none(), "{offsets:?}");
        }
    }
}

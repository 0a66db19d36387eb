//! What a thread has had of the allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static USED: Cell<Used> = const { Cell::new(Used::NOTHING) };
}

/// What a thread has had of the allocator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Used {
    pub allocations: u64,
    pub allocated_bytes: usize,
    pub frees: u64,
    pub freed_bytes: usize,
    /// The largest piece of memory that was allocated or freed.
    pub largest_bytes: usize,
}

impl Used {
    pub const NOTHING: Self =
        Self { allocations: 0, allocated_bytes: 0, frees: 0, freed_bytes: 0, largest_bytes: 0 };

    /// Of this thread since it began, or since [`by`](Self::by) did.
    pub fn now() -> Self {
        USED.get()
    }

    pub fn by<T>(run: impl FnOnce() -> T) -> (Self, T) {
        USED.set(Self::NOTHING);
        let result = run();
        (USED.get(), result)
    }
}

fn note(layout: Layout, is_freed: bool) {
    let _ = USED.try_with(|used| {
        let (mut now, bytes) = (used.get(), layout.size());
        let (count, sum) = match is_freed {
            true => (&mut now.frees, &mut now.freed_bytes),
            false => (&mut now.allocations, &mut now.allocated_bytes),
        };
        (*count, *sum) = (*count + 1, *sum + bytes);
        now.largest_bytes = now.largest_bytes.max(bytes);
        used.set(now);
    });
}

/// The system's allocator, which counts what each thread has of it.
struct Counting;

// SAFETY: every call is passed on unchanged to the system's allocator; counting touches a thread-local cell
// that needs no allocation.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout, false);
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        note(layout, true);
        // SAFETY: the caller's promises about both are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

//! Prefetching.

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// Prefetches the cache lines of `value`. It changes timing only; without such an instruction it does
/// nothing.
#[inline]
pub fn prefetch<T: ?Sized>(value: &T) {
    let start = core::ptr::from_ref(value).cast::<u8>();
    for line in 0..size_of_val(value).div_ceil(LINE_BYTES) {
        let address = start.wrapping_add(line * LINE_BYTES);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: PREFETCHT0 has no effect that a program can see and never faults, whatever the address;
        // every x86-64 has it.
        #[allow(unsafe_code, reason = "the instruction has no safe name")]
        unsafe {
            core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(address.cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = address;
    }
}

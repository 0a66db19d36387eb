//! The processor's own clock.

/// The processor's time stamp counter: cycles of a constant rate, whose differences mean something on one
/// machine. Where there is none, nanoseconds.
#[must_use]
#[inline]
pub fn ticks() -> u64 {
    // Miri does not interpret this instruction.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        // SAFETY: RDTSC reads a register and touches no memory. Every x86-64 has it; an operating system that
        // forbids it to programs (CR4.TSD, PR_SET_TSC) stops the program, which is no memory error.
        #[allow(unsafe_code, reason = "the instruction has no safe name")]
        unsafe {
            core::arch::x86_64::_rdtsc()
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        use std::sync::LazyLock;
        use std::time::Instant;
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        u64::try_from(START.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

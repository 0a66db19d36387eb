//! What an engine costs, and what it wants.

/// What an engine says of one suite: what jobs of it cost, and how many it wants at a time.
///
/// ```text
///   time of a submission = latency_ns + fixed_ns + bytes of text × byte_ps / 1000
/// ```
///
/// Costs are expectations, not promises. 0 means that the engine does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Profile {
    /// What a submission costs, however many jobs it has, in nanoseconds.
    pub fixed_ns: u64,
    /// What each byte of text costs on top, in picoseconds.
    pub byte_ps: u64,
    /// How long a submission is away beside that, in nanoseconds: 0 if it is done inside `submit`.
    pub latency_ns: u64,
    /// How many jobs of one suite and similar length it does in parallel; 1 if it gains nothing from more.
    /// Above that the gateway arranges what is there before it submits; above what a turn brings it gathers
    /// jobs in bins (the packet scheduler).
    pub depth_jobs: usize,
    /// Submissions of that depth that it works on at a time: 2 where one is copied while another is computed.
    pub under_way: usize,
}

impl Default for Profile {
    /// Of an engine that does one job after the other.
    fn default() -> Self {
        Self::of_depth(1)
    }
}

impl Profile {
    /// The deepest that an engine may be.
    pub const MAX_DEPTH_JOBS: usize = 1 << 16;
    /// The most submissions that an engine may work on at a time.
    pub const MAX_UNDER_WAY: usize = 64;

    /// Of an engine that does so many jobs in parallel, at a cost that it does not know.
    #[must_use]
    pub const fn of_depth(depth_jobs: usize) -> Self {
        Self { fixed_ns: 0, byte_ps: 0, latency_ns: 0, depth_jobs, under_way: 1 }
    }

    /// How long a submission of so many bytes of text is away, in nanoseconds.
    #[must_use]
    pub const fn time_ns(&self, text_bytes: u64) -> u64 {
        let bytes_ns = self.byte_ps.saturating_mul(text_bytes) / 1000;
        self.latency_ns.saturating_add(self.fixed_ns).saturating_add(bytes_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_submission_is_away_for_its_latency_and_its_bytes() {
        let profile = Profile { fixed_ns: 20, byte_ps: 1500, latency_ns: 7, ..Profile::of_depth(64) };
        assert_eq!((profile.time_ns(0), profile.time_ns(1000)), (27, 1527));
        assert_eq!(Profile { byte_ps: u64::MAX, ..profile }.time_ns(u64::MAX), 27 + u64::MAX / 1000);
    }
}

//! What an operator decides of the packet scheduler.

use super::ideas::Ideas;
use super::live::PlacementMode;
use std::time::Duration;

/// Jobs that go to a deep engine together.
pub const CHUNKS: std::ops::RangeInclusive<usize> = 1024..=8192;
/// Bins that these are sorted into.
pub const BINS: std::ops::RangeInclusive<usize> = 4..=128;
/// Widths of a range of lengths, in bytes.
pub const RANGES: [u32; 4] = [64, 256, 512, 1536];
/// The bound of what the scheduler adds, in microseconds. Far below the second after which an engine is given
/// up.
pub const LATENCIES_US: std::ops::RangeInclusive<u64> = 50..=50_000;

/// How jobs are gathered for engines that want thousands of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchedulerSettings {
    /// Jobs that go to an engine together.
    pub chunk: usize,
    /// Bins that they are sorted into, of equal size.
    pub bins: usize,
    /// How wide the range of lengths of a bin is, in bytes.
    pub range_bytes: u32,
    /// How long a packet may be away for its cryptography, waiting included.
    pub latency: Duration,
    /// Which engine a job goes to, of those that could do it.
    pub placement: PlacementMode,
    /// Chunk, bins and range follow from what is measured: what they are here is what they begin with.
    pub tune: bool,
    /// What is left out, in measurements.
    pub ideas: Ideas,
}

impl Default for SchedulerSettings {
    fn default() -> Self {
        Self {
            chunk: 4096,
            bins: 64,
            range_bytes: 256,
            latency: Duration::from_millis(1),
            placement: PlacementMode::First,
            tune: true,
            ideas: Ideas::default(),
        }
    }
}

/// Settings that no scheduler can work with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// The chunk is too small or too large.
    #[error("a chunk has {low} to {high} packets, not {0}", low = CHUNKS.start(), high = CHUNKS.end())]
    Chunk(usize),
    /// There are too few or too many bins.
    #[error("there are {low} to {high} bins, not {0}", low = BINS.start(), high = BINS.end())]
    Bins(usize),
    /// The chunk cannot be cut into so many bins of one size.
    #[error("{chunk} packets are not {bins} bins of equal size")]
    Uneven {
        /// Jobs of a chunk.
        chunk: usize,
        /// Bins.
        bins: usize,
    },
    /// No such width.
    #[error("a range of lengths is 64, 256, 512 or 1536 bytes wide, not {0}")]
    Range(u32),
    /// The bound is too short or too long.
    #[error("the latency bound is {} to {} microseconds", LATENCIES_US.start(), LATENCIES_US.end())]
    Latency,
}

impl SchedulerSettings {
    /// Checks what was configured.
    ///
    /// # Errors
    /// [`SettingsError`], the first one.
    pub fn check(&self) -> Result<(), SettingsError> {
        let Self { chunk, bins, range_bytes, latency, .. } = *self;
        let latency_us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        if !CHUNKS.contains(&chunk) {
            return Err(SettingsError::Chunk(chunk));
        }
        if !BINS.contains(&bins) {
            return Err(SettingsError::Bins(bins));
        }
        if !chunk.is_multiple_of(bins) {
            return Err(SettingsError::Uneven { chunk, bins });
        }
        if !RANGES.contains(&range_bytes) {
            return Err(SettingsError::Range(range_bytes));
        }
        if !LATENCIES_US.contains(&latency_us) {
            return Err(SettingsError::Latency);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_within_what_was_tried() {
        let good = SchedulerSettings::default();
        assert_eq!(good.check(), Ok(()));
        let us = Duration::from_micros;
        let cases = [
            (SchedulerSettings { chunk: 1023, ..good }, SettingsError::Chunk(1023)),
            (SchedulerSettings { chunk: 8193, ..good }, SettingsError::Chunk(8193)),
            (SchedulerSettings { bins: 3, ..good }, SettingsError::Bins(3)),
            (SchedulerSettings { bins: 129, ..good }, SettingsError::Bins(129)),
            (SchedulerSettings { bins: 100, ..good }, SettingsError::Uneven { chunk: 4096, bins: 100 }),
            (SchedulerSettings { range_bytes: 100, ..good }, SettingsError::Range(100)),
            (SchedulerSettings { latency: us(49), ..good }, SettingsError::Latency),
            (SchedulerSettings { latency: us(50_001), ..good }, SettingsError::Latency),
        ];
        for (settings, error) in cases {
            assert_eq!(settings.check(), Err(error), "{settings:?}");
        }
        let said = SettingsError::Chunk(7).to_string();
        assert_eq!(said, "a chunk has 1024 to 8192 packets, not 7");
    }
}

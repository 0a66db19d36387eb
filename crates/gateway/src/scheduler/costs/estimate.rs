//! What is known of an engine for one suite and class of length.

use super::super::live::UNKNOWN;
use std::time::Duration;
use testudo_ipsec::Moment;

/// An engine that failed at so many jobs of a class since it did one is only asked for one now and then.
pub(super) const FAILING: u8 = 32;
/// A measurement of a submission counts as so many times of what was expected at most.
pub(super) const MOST: u64 = 2;
/// The weight of a new measurement of a job is one part in so many, however many jobs it is of.
const PARTS: u64 = 8;

/// Measurements of packets until what was measured before is forgotten. The least of them counts.
pub(super) const PRESUMED: u8 = 3;

/// What is known of an engine for one suite and class.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Estimate {
    /// What a job takes: the worker's time, or the time that it is away from an engine without others. 0 if
    /// nothing is known.
    pub(super) job_ps: u64,
    /// When it was asked to do one to be measured.
    pub(super) asked: Option<Moment>,
    /// Jobs that it failed at since one was done.
    pub(super) failed: u8,
    /// It was measured before packets came, with some that a cache had, and so many measurements are to
    /// follow.
    pub(super) presumed: u8,
}

impl Estimate {
    pub(super) fn is_known(&self) -> bool {
        self.job_ps > 0
    }

    pub(super) fn fails(&self) -> bool {
        self.failed >= FAILING
    }

    pub(super) fn learn(&mut self, job_ps: u64) {
        self.failed = 0;
        let before = self.job_ps;
        self.job_ps = match self.presumed {
            0 => moved(before, job_ps, PARTS),
            PRESUMED => job_ps,
            // Nothing makes jobs faster than they can be.
            _ => job_ps.min(before),
        };
        self.job_ps = self.job_ps.clamp(1, UNKNOWN);
        self.presumed = self.presumed.saturating_sub(1);
    }
}

/// A mean that a new value changes by one part in `parts`; nothing is known while it is 0.
fn moved(mean: u64, value: u64, parts: u64) -> u64 {
    if mean == 0 {
        return value;
    }
    if value >= mean { mean + (value - mean).div_ceil(parts) } else { mean - (mean - value).div_ceil(parts) }
}

/// The same, of which a value changes no more than one of [`MOST`] times the mean would.
pub(super) fn moved_at_most(mean: u64, value: u64, parts: u64) -> u64 {
    let most = if mean == 0 { value } else { mean.saturating_mul(MOST) };
    moved(mean, value.min(most), parts)
}

pub(super) fn picoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().saturating_mul(1000)).unwrap_or(u64::MAX).min(UNKNOWN)
}

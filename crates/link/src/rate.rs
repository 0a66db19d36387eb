//! A bound on how many messages are sent in a time.

use std::time::Duration;

/// A token bucket: so many a second, and half of that at once.
#[derive(Debug)]
pub(crate) struct Bucket {
    per_message: Duration,
    most: Duration,
    /// Time that is saved up: each message takes its part.
    saved: Duration,
    last: Duration,
}

impl Bucket {
    pub(crate) fn new(per_second: u64) -> Self {
        let most = Duration::from_millis(500);
        let per_message = Duration::from_nanos(1_000_000_000 / per_second.max(1));
        Self { per_message, most, saved: most, last: Duration::ZERO }
    }

    /// Whether a message may be sent now.
    pub(crate) fn admits(&mut self, now: Duration) -> bool {
        self.saved = (self.saved + now.saturating_sub(self.last)).min(self.most);
        self.last = now;
        let left = self.saved.checked_sub(self.per_message);
        self.saved = left.unwrap_or(self.saved);
        left.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_kept_after_a_burst() {
        let mut bucket = Bucket::new(100);
        let mut admitted = |millisecond| bucket.admits(Duration::from_millis(millisecond));
        assert_eq!((0..1000).filter(|_| admitted(7)).count(), 50);
        assert_eq!((7..1007).filter(|&at| admitted(at)).count(), 99);
    }
}

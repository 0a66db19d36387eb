//! When packets are due.

/// Femtoseconds of a nanosecond: intervals are as fine, so that ten million packets a second are paced to one
/// part in 10⁸.
const FINE: u64 = 1_000_000;
/// Packets that may be sent at once to catch up, and the time that they may be late: whichever is more. What
/// is later than that is left out: a generator that was off the processor must not flood the device when it
/// comes back, and the rate that it reached says what it missed.
const CATCH_UP_PACKETS: u64 = 32;
const CATCH_UP_NS: u64 = 20_000;

/// A constant rate. The first packet is due at the start.
#[derive(Debug, Clone)]
pub struct Pace {
    interval: u64,
    /// When the packet number 0 of the current count was due.
    origin_ns: u64,
    taken: u64,
    most: u64,
    skipped: u64,
}

impl Pace {
    /// So many packets a second, more than 0, from `start_ns` on.
    #[must_use]
    pub fn new(packets_per_second: f64, start_ns: u64) -> Self {
        // A second has 10¹⁵ femtoseconds; as nanoseconds of a Duration, since it converts and rounds.
        let interval = std::time::Duration::try_from_secs_f64(1e6 / packets_per_second);
        let interval =
            interval.ok().and_then(|time| u64::try_from(time.as_nanos()).ok()).unwrap_or(u64::MAX).max(1);
        let most = CATCH_UP_PACKETS.max(CATCH_UP_NS * FINE / interval);
        Self { interval, origin_ns: start_ns, taken: 0, most, skipped: 0 }
    }

    /// Takes the packets that are due at `now_ns`, and returns how many these are. What a generator is too
    /// late for to catch up is skipped.
    pub fn take(&mut self, now_ns: u64) -> u64 {
        let Some(elapsed) = now_ns.checked_sub(self.origin_ns) else { return 0 };
        let all = (elapsed.saturating_mul(FINE) / self.interval).saturating_add(1);
        let due = all.saturating_sub(self.taken);
        if due <= self.most {
            self.taken += due;
            return due;
        }
        self.skipped = self.skipped.saturating_add(due - self.most);
        // It begins anew, so that the packets after it are as far apart as ever.
        (self.origin_ns, self.taken) = (now_ns, 1);
        self.most
    }

    /// When the next packet is due.
    #[must_use]
    pub fn next_due_ns(&self) -> u64 {
        let wide = u128::from(self.taken) * u128::from(self.interval);
        self.origin_ns.saturating_add(u64::try_from(wide.div_ceil(u128::from(FINE))).unwrap_or(u64::MAX))
    }

    /// Packets that were due and left out, because the generator came too late.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.skipped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_kept_over_a_minute() {
        for rate in [1.0, 999.0, 1_488_095.0, 14_880_952.0] {
            let (mut pace, mut sent, mut now) = (Pace::new(rate, 77), 0, 77);
            // Looked at every 10 µs, or when the next is due.
            let end = 77 + if rate > 1e6 { 1_000_000_000 } else { 60_000_000_000 };
            while now < end {
                sent += pace.take(now);
                now = pace.next_due_ns().max(now + 10_000);
            }
            let expected = rate * (end - 77) as f64 * 1e-9;
            assert!((sent as f64 - expected).abs() <= 1.0 + rate * 1e-5, "{rate}: {sent}, not {expected}");
            assert_eq!(pace.skipped(), 0);
        }
    }

    #[test]
    fn what_is_late_is_caught_up_a_little_and_then_left_out() {
        let mut pace = Pace::new(1e6, 0);
        assert_eq!(pace.take(0), 1);
        assert_eq!(pace.take(10_000), 10, "a little late: all of them");
        // 990 are due: 32 go, and those after them are a microsecond apart again.
        assert_eq!((pace.take(1_000_000), pace.skipped()), (32, 990 - 32));
        assert_eq!(pace.take(1_000_500), 0);
        assert_eq!(pace.take(1_001_000), 1);
        assert_eq!(pace.next_due_ns(), 1_002_000);
    }

    #[test]
    fn a_clock_before_the_start_and_any_rate_are_no_trouble() {
        assert_eq!(Pace::new(1e6, 1_000).take(999), 0);
        for rate in [f64::MIN_POSITIVE, 1e-9, 1e18, f64::INFINITY, f64::NAN] {
            let mut pace = Pace::new(rate, 0);
            pace.take(u64::MAX);
            let _ = pace.next_due_ns();
        }
    }
}

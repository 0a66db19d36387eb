//! How long the rest of a run takes: what was expected, corrected by how long what is done took.

use std::time::Duration;

/// Expected and measured times of a run's measurements.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Estimate {
    left: Duration,
    done: Duration,
    took: Duration,
}

impl Estimate {
    /// Of a run that is expected to take so long.
    pub(crate) fn of(expected: Duration) -> Self {
        Self { left: expected, ..Self::default() }
    }

    /// A measurement that was expected to take `expected` took so long.
    pub(crate) fn done(&mut self, expected: Duration, took: Duration) {
        self.left = self.left.saturating_sub(expected);
        self.done += expected;
        self.took += took;
    }

    /// A measurement that was expected to take so long is not needed.
    pub(crate) fn left_out(&mut self, expected: Duration) {
        self.left = self.left.saturating_sub(expected);
    }

    /// As `expected`, at the pace of this machine so far.
    pub(crate) fn at_this_pace(&self, expected: Duration) -> Duration {
        let factor = match self.done.as_secs_f64() {
            done if done > 0.0 => (self.took.as_secs_f64() / done).clamp(0.01, 100.0),
            _ => 1.0,
        };
        expected.mul_f64(factor)
    }

    /// What is left, for people, `elapsed` after a measurement began that was expected to take `expected`.
    pub(crate) fn left_words(&self, expected: Duration, elapsed: Duration) -> String {
        let (pace, after) = (self.at_this_pace(expected), self.left.saturating_sub(expected));
        let after = self.at_this_pace(after);
        if elapsed < pace {
            return format!("about {} left", words(pace.saturating_sub(elapsed) + after));
        }
        // An overdue measurement takes nothing of the time of those after it.
        let then = if after.is_zero() { String::new() } else { format!(", then about {}", words(after)) };
        format!("longer than expected{then}")
    }

    /// What is left, `elapsed` after the last measurement ended.
    pub(crate) fn left(&self, elapsed: Duration) -> Duration {
        self.at_this_pace(self.left).saturating_sub(elapsed)
    }
}

/// A time for people: `40 s`, `3 min`, `2 h 5 min`.
pub(crate) fn words(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..=99 => format!("{seconds} s"),
        100..=5_999 => format!("{} min", (seconds + 30) / 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_is_as_slow_as_what_is_done() {
        let seconds = Duration::from_secs;
        let mut estimate = Estimate::of(seconds(60));
        assert_eq!(estimate.left(seconds(0)), seconds(60));
        assert_eq!(estimate.left(seconds(10)), seconds(50));
        estimate.done(seconds(20), seconds(40));
        assert_eq!(estimate.left(seconds(0)), seconds(80), "40 s are expected, and all takes twice as long");
        estimate.done(seconds(40), seconds(20));
        assert_eq!(estimate.left(seconds(0)), seconds(0));
        assert_eq!(Estimate::of(seconds(5)).left(seconds(9)), seconds(0));
    }

    #[test]
    fn a_measurement_that_is_overdue_is_said_to_be_and_takes_no_time_of_those_after_it() {
        let seconds = Duration::from_secs;
        let mut estimate = Estimate::of(seconds(60));
        let words = |estimate: &Estimate, elapsed| estimate.left_words(seconds(40), seconds(elapsed));
        assert_eq!(words(&estimate, 10), "about 50 s left");
        for elapsed in [40, 5_000] {
            assert_eq!(words(&estimate, elapsed), "longer than expected, then about 20 s");
        }
        assert_eq!(Estimate::of(seconds(40)).left_words(seconds(40), seconds(41)), "longer than expected");
        // At half of the pace.
        estimate.done(seconds(10), seconds(20));
        assert_eq!(words(&estimate, 60), "about 40 s left");
        assert_eq!(words(&estimate, 81), "longer than expected, then about 20 s");
    }

    #[test]
    fn times_have_units() {
        let of = |seconds| words(Duration::from_secs(seconds));
        assert_eq!([of(40), of(185), of(7_500)], ["40 s", "3 min", "2 h 5 min"].map(str::to_owned));
    }
}

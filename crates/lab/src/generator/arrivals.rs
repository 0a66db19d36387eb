//! What came back of a trial: how many packets, in which order, and how late.

use hdrhistogram::Histogram;

use super::stamp::Stamp;

/// Latencies are kept to three significant digits, up to a minute.
const LONGEST_NS: u64 = 60_000_000_000;
const DIGITS: u8 = 3;
/// The numbers of so many of the newest packets are remembered, to find those that come twice.
const WINDOW: u64 = 1 << 16;

/// Latencies of packets, in a histogram with a relative error below 0.1 %.
#[derive(Clone)]
pub struct Latency(Histogram<u64>);

impl Default for Latency {
    #[allow(clippy::expect_used, reason = "the bounds are constants within those of a histogram")]
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1, LONGEST_NS, DIGITS).expect("bounds of a histogram"))
    }
}

impl std::fmt::Debug for Latency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Its counts are thousands of numbers.
        let of = |share| self.quantile_us(share);
        f.debug_struct("Latency")
            .field("p50_us", &of(0.5))
            .field("max_us", &self.max_us())
            .finish_non_exhaustive()
    }
}

impl Latency {
    /// Adds one of so many nanoseconds; what is longer than a minute counts as a minute.
    pub fn record(&mut self, nanoseconds: u64) {
        self.0.saturating_record(nanoseconds);
    }

    /// Adds those of another.
    pub fn add(&mut self, other: &Self) {
        // Both have the same bounds.
        let _ = self.0.add(&other.0);
    }

    /// The latency in microseconds that this share of packets, 0 to 1, does not exceed; `None` without
    /// packets.
    #[must_use]
    pub fn quantile_us(&self, share: f64) -> Option<f64> {
        (!self.0.is_empty()).then(|| self.0.value_at_quantile(share) as f64 / 1e3)
    }

    /// The mean, in microseconds; `None` without packets.
    #[must_use]
    pub fn mean_us(&self) -> Option<f64> {
        (!self.0.is_empty()).then(|| self.0.mean() / 1e3)
    }

    /// The longest, in microseconds; `None` without packets.
    #[must_use]
    pub fn max_us(&self) -> Option<f64> {
        (!self.0.is_empty()).then(|| self.0.max() as f64 / 1e3)
    }

    /// Packets that were measured.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len()
    }
}

/// Takes the packets of one trial as they arrive.
#[derive(Debug)]
pub struct Arrivals {
    trial: u16,
    received: u64,
    duplicated: u64,
    strangers: u64,
    reordered: u64,
    /// One more than the highest number so far.
    end: u64,
    seen: Vec<u64>,
    times: Option<(u64, u64)>,
    latency: Latency,
}

impl Arrivals {
    /// Waits for packets of the trial number `trial`.
    #[must_use]
    pub fn new(trial: u16) -> Self {
        let seen = vec![0; usize::try_from(WINDOW / 64).unwrap_or(0)];
        Self {
            trial,
            received: 0,
            duplicated: 0,
            strangers: 0,
            reordered: 0,
            end: 0,
            seen,
            times: None,
            latency: Latency::default(),
        }
    }

    /// A packet with this stamp arrived at `now_ns`, of the clock that the generator stamps by.
    pub fn take(&mut self, stamp: Stamp, now_ns: u64) {
        if stamp.trial != self.trial {
            self.strangers += 1;
            return;
        }
        if !self.is_new(stamp.sequence) {
            self.duplicated += 1;
            return;
        }
        self.received += 1;
        self.latency.record(now_ns.saturating_sub(stamp.sent_ns));
        let first = self.times.map_or(now_ns, |(first, _)| first);
        self.times = Some((first, now_ns));
    }

    /// Marks a number as seen. One older than the window is taken for new.
    fn is_new(&mut self, sequence: u64) -> bool {
        let word = |sequence: u64| usize::try_from(sequence % WINDOW / 64).unwrap_or(0);
        if sequence >= self.end {
            // What the window leaves makes room. A jump by more than its length clears it once.
            for number in self.end.max(sequence.saturating_sub(WINDOW - 1))..=sequence {
                self.seen[word(number)] &= !(1 << (number % 64));
            }
            self.end = sequence.saturating_add(1);
        } else {
            self.reordered += 1;
            if self.end - sequence > WINDOW {
                return true;
            }
        }
        let (word, bit) = (word(sequence), 1 << (sequence % 64));
        let is_new = self.seen[word] & bit == 0;
        self.seen[word] |= bit;
        is_new
    }

    /// Packets of this trial that arrived, each counted once.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Packets that arrived again.
    #[must_use]
    pub fn duplicated(&self) -> u64 {
        self.duplicated
    }

    /// Packets of other trials.
    #[must_use]
    pub fn strangers(&self) -> u64 {
        self.strangers
    }

    /// Packets that arrived after one with a higher number.
    #[must_use]
    pub fn reordered(&self) -> u64 {
        self.reordered
    }

    /// Nanoseconds between the first and the last packet.
    #[must_use]
    pub fn receiving_ns(&self) -> u64 {
        self.times.map_or(0, |(first, last)| last.saturating_sub(first))
    }

    /// How late they were.
    #[must_use]
    pub fn into_latency(self) -> Latency {
        self.latency
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(sequence: u64) -> Stamp {
        Stamp { trial: 3, sequence, sent_ns: sequence.wrapping_mul(1_000) }
    }

    #[test]
    fn each_packet_counts_once_and_those_of_other_trials_never() {
        let mut arrivals = Arrivals::new(3);
        for sequence in [0, 1, 3, 2, 3, 70_000, 69_999, 70_000, 10] {
            arrivals.take(stamp(sequence), sequence * 1_000 + 500);
        }
        arrivals.take(Stamp { trial: 2, ..stamp(9) }, 10_000);
        assert_eq!((arrivals.received(), arrivals.duplicated(), arrivals.strangers()), (7, 2, 1));
        // 2 after 3, 3 again, 69,999 and 70,000 again, and the 10 that is older than the window.
        assert_eq!(arrivals.reordered(), 5);
        assert_eq!(arrivals.receiving_ns(), 10 * 1_000);
    }

    #[test]
    fn numbers_that_share_a_place_in_the_window_are_told_apart() {
        let mut arrivals = Arrivals::new(3);
        for sequence in 0..3 * WINDOW {
            arrivals.take(stamp(sequence), sequence);
        }
        assert_eq!((arrivals.received(), arrivals.duplicated(), arrivals.reordered()), (3 * WINDOW, 0, 0));
        arrivals.take(stamp(u64::MAX), 0);
        arrivals.take(stamp(u64::MAX - 1), 0);
        assert_eq!((arrivals.received(), arrivals.duplicated()), (3 * WINDOW + 2, 0));
    }

    #[test]
    fn the_mean_is_that_of_the_packets_to_a_thousandth() {
        let mut latency = Latency::default();
        assert_eq!(latency.mean_us(), None);
        // The median is 1 µs, and far from the mean.
        for (us, packets) in [(1, 900), (1_000, 90), (50_000, 10)] {
            (0..packets).for_each(|_| latency.record(us * 1_000));
        }
        let found = latency.mean_us().unwrap();
        assert!((found / 590.9 - 1.0).abs() < 1e-3, "{found}");
    }

    #[test]
    fn quantiles_are_those_of_the_packets_to_a_thousandth() {
        let mut latency = Latency::default();
        assert_eq!((latency.quantile_us(0.5), latency.max_us()), (None, None));
        for us in 1..=10_000 {
            latency.record(us * 1_000);
        }
        for (share, expected) in [(0.5, 5_000.0), (0.99, 9_900.0), (1.0, 10_000.0)] {
            let found = latency.quantile_us(share).unwrap();
            assert!((found / expected - 1.0_f64).abs() < 1.5e-3, "{share}: {found}");
        }
        latency.record(u64::MAX);
        assert!((latency.max_us().unwrap() / 60e6 - 1.0).abs() < 1e-3);
        assert_eq!(latency.count(), 10_001);
    }
}

//! Energy from counters: watts where they can be known, and why where they cannot.

use std::time::Duration;

use crate::generator::Sizes;

/// More than anything that is metered here can take. A difference of counters that would be more is none: a
/// counter began anew.
pub const MAX_WATTS: f64 = 1500.0;

/// A meter of energy.
pub trait Meter {
    /// What it meters, such as "processors (RAPL)".
    fn name(&self) -> &str;

    /// The highest value of each counter, in microjoules, after which it begins at 0; `None` where it never
    /// does.
    fn ranges(&self) -> Vec<Option<u64>>;

    /// Reads the counters now.
    ///
    /// # Errors
    /// [`NotKnown`] if there is no meter, if it may not be read, or if it is there no more.
    fn sample(&mut self) -> Result<EnergySample, NotKnown>;
}

/// What counters showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnergySample {
    /// When, on a clock of the meter's.
    pub at: Duration,
    /// Energy that each counter has counted, in microjoules.
    pub microjoules: Vec<u64>,
}

/// Why there is no figure. The text is for the user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotKnown(pub String);

/// The mean power between two samples, in watts: the sum of all counters. A counter that reached its range
/// once went on at 0.
///
/// # Errors
/// [`NotKnown`] if a counter went backwards or came from nowhere, if it may have wrapped more than
/// once, or if none of them moved.
pub fn watts(ranges: &[Option<u64>], before: &EnergySample, after: &EnergySample) -> Result<f64, NotKnown> {
    let not_known = |why: &str| Err(NotKnown(why.to_owned()));
    let seconds = after.at.saturating_sub(before.at).as_secs_f64();
    if seconds <= 0.0 {
        return not_known("no time passed between two readings of the meter");
    }
    let counts = [ranges.len(), before.microjoules.len(), after.microjoules.len()];
    if ranges.is_empty() || counts != [ranges.len(); 3] {
        return not_known("counters of the meter came or went");
    }
    let mut total = 0.0;
    for ((range, &from), &to) in ranges.iter().zip(&before.microjoules).zip(&after.microjoules) {
        if range.is_some_and(|range| from > range || to > range) {
            return not_known("a counter of the meter is beyond its range");
        }
        if range.is_some_and(|range| range as f64 / 1e6 / seconds < MAX_WATTS) {
            return not_known(
                "the meter's counter may have begun anew more than once in the time of a trial",
            );
        }
        let counted = match (to.checked_sub(from), range) {
            (Some(counted), _) => counted,
            (None, Some(range)) => range - from + to,
            (None, None) => return not_known("the meter went backwards"),
        };
        let watts = counted as f64 / 1e6 / seconds;
        if watts > MAX_WATTS {
            return not_known("the meter went backwards, or shows more than anything can take");
        }
        total += watts;
    }
    // Nothing that is on takes nothing: counters that are written seldom have not been written meanwhile.
    if total > 0.0 { Ok(total) } else { not_known("the meter did not move in the time of a trial") }
}

/// Power while something ran, by meter.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Power(pub Vec<(String, Result<f64, NotKnown>)>);

impl Power {
    /// The sum of all meters in watts.
    ///
    /// # Errors
    /// [`NotKnown`] if one of them has no figure, or there is none: a part would look like the whole.
    pub fn total(&self) -> Result<f64, NotKnown> {
        if self.0.is_empty() {
            return Err(NotKnown("there is no meter".to_owned()));
        }
        let of = |(name, watts): &(String, Result<f64, NotKnown>)| {
            watts.clone().map_err(|NotKnown(why)| NotKnown(format!("{name}: {why}")))
        };
        self.0.iter().map(of).sum()
    }

    /// Runs `work`, and returns what it took by each meter.
    pub fn of<T>(meters: &mut [Box<dyn Meter>], work: impl FnOnce() -> T) -> (T, Self) {
        let before: Vec<_> = meters.iter_mut().map(|meter| meter.sample()).collect();
        let done = work();
        let figure = |(meter, before): (&mut Box<dyn Meter>, Result<EnergySample, NotKnown>)| {
            let found = before.and_then(|before| watts(&meter.ranges(), &before, &meter.sample()?));
            (meter.name().to_owned(), found)
        };
        (done, Self(meters.iter_mut().zip(before).map(figure).collect()))
    }

    /// The medians of several, meter by meter; what one of them does not know is not known.
    pub(super) fn median(all: &[Self]) -> Self {
        let Some(first) = all.first() else { return Self::default() };
        let of = |(number, (name, _)): (usize, &(String, Result<f64, NotKnown>))| {
            let figures: Result<Vec<f64>, NotKnown> =
                all.iter().filter_map(|power| power.0.get(number)).map(|(_, watts)| watts.clone()).collect();
            let middle = figures.and_then(|figures| {
                crate::traffic::median(&figures).ok_or_else(|| NotKnown("nothing was metered".to_owned()))
            });
            (name.clone(), middle)
        };
        Self(first.0.iter().enumerate().map(of).collect())
    }
}

/// Joules for each byte of frames at this rate.
pub(super) fn joules_per_byte(watts: f64, packets_per_second: f64, sizes: Sizes) -> Option<f64> {
    let bytes = packets_per_second * sizes.mean_bytes();
    (bytes > 0.0).then(|| watts / bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANGE: u64 = 262_143_328_850;

    fn sample(seconds: u64, microjoules: u64) -> EnergySample {
        EnergySample { at: Duration::from_secs(seconds), microjoules: vec![microjoules] }
    }

    fn between(range: Option<u64>, before: (u64, u64), after: (u64, u64)) -> Result<f64, NotKnown> {
        watts(&[range], &sample(before.0, before.1), &sample(after.0, after.1))
    }

    #[test]
    fn a_counter_that_wraps_goes_on() {
        assert_eq!(between(Some(RANGE), (1, 0), (3, 100_000_000)), Ok(50.0));
        assert_eq!(between(Some(RANGE), (1, RANGE - 40_000_000), (3, 60_000_000)), Ok(50.0));
    }

    #[test]
    fn what_a_counter_cannot_tell_is_not_known() {
        // It went backwards: without a range, or by more than a wrap can explain.
        assert!(between(None, (1, 500), (3, 400)).is_err());
        assert!(between(Some(RANGE), (1, 100_000_000), (3, 0)).is_err());
        // It is beyond its range, or may have wrapped twice, or no time passed.
        assert!(between(Some(RANGE), (1, RANGE + 1), (3, 5)).is_err());
        assert!(between(Some(RANGE), (1, 0), (1 + 200, 100_000_000)).is_err());
        assert!(between(Some(RANGE), (1, 0), (1, 100)).is_err());
        // It did not move.
        assert!(between(Some(RANGE), (1, 100), (3, 100)).is_err());
        // A counter went away.
        let gone = EnergySample { at: Duration::from_secs(3), microjoules: vec![] };
        assert!(watts(&[Some(RANGE)], &sample(1, 0), &gone).is_err());
        assert!(watts(&[], &gone, &gone).is_err());
    }

    #[test]
    fn a_part_is_no_total() {
        let known = ("a".to_owned(), Ok(10.0));
        assert_eq!(Power(vec![known.clone(), ("b".to_owned(), Ok(5.0))]).total(), Ok(15.0));
        let power = Power(vec![known, ("b".to_owned(), Err(NotKnown("gone".to_owned())))]);
        assert_eq!(power.total(), Err(NotKnown("b: gone".to_owned())));
        assert!(Power::default().total().is_err());
        assert_eq!(Power::median(&[power.clone(), power.clone()]), power);
    }
}

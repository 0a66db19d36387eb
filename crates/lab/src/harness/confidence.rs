//! Repetitions until a mean is known well enough: Student's confidence interval, as netperf has it.

use std::cmp::Ordering;

use super::measurement::Unconverged;

/// When a mean is known well enough.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Confidence {
    /// Repetitions before the rule is asked, 2 at least: one has no interval.
    pub least: u32,
    /// Repetitions after which the interval is as wide as it is.
    pub most: u32,
    /// The widest interval of 95 % that will do, from its lower end to its upper, as a share of the mean.
    pub width: f64,
}

impl Default for Confidence {
    /// Paper 001, section 3.1: 4 to 12 repetitions, 95 %, 3 %.
    fn default() -> Self {
        Self { least: 4, most: 12, width: 0.03 }
    }
}

/// A mean, and the interval of 95 % around it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// The mean of all repetitions.
    pub mean: f64,
    /// Half of the interval, in the mean's unit; `None` of one repetition, which says nothing of others.
    pub half_width: Option<f64>,
    /// Repetitions.
    pub repetitions: u32,
}

/// Student's t by degrees of freedom from 1, two-sided, 95 %.
const STUDENT: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];
/// The same beyond: that of 30 degrees, which is on the safe side.
const STUDENT_BEYOND: f64 = 2.042;

impl Interval {
    /// Of these results; `None` if there are none.
    #[must_use]
    pub fn of(results: &[f64]) -> Option<Self> {
        let repetitions = u32::try_from(results.len()).ok().filter(|count| *count > 0)?;
        let count = f64::from(repetitions);
        let mean = results.iter().sum::<f64>() / count;
        let half_width = results.len().checked_sub(2).map(|index| {
            let variance = results.iter().map(|result| (result - mean).powi(2)).sum::<f64>() / (count - 1.0);
            STUDENT.get(index).unwrap_or(&STUDENT_BEYOND) * (variance / count).sqrt()
        });
        Some(Self { mean, half_width, repetitions })
    }

    /// From the lower end to the upper, as a share of the mean; infinite where the mean is 0, or no number.
    #[must_use]
    pub fn width_share(&self) -> Option<f64> {
        let share = |half: f64| if self.mean > 0.0 { 2.0 * half / self.mean } else { f64::INFINITY };
        self.half_width.map(share)
    }

    /// How this differs from `earlier`: less or greater if the intervals are apart, equal if they share a
    /// value. `None` if one of them is unknown.
    #[must_use]
    pub fn against(&self, earlier: &Self) -> Option<Ordering> {
        let (own, others) = (self.half_width?, earlier.half_width?);
        let difference = self.mean - earlier.mean;
        if difference.abs() <= own + others { Some(Ordering::Equal) } else { difference.partial_cmp(&0.0) }
    }
}

impl Confidence {
    /// Whether these results are narrow enough.
    fn is_narrow(&self, interval: &Interval) -> bool {
        interval.width_share().is_some_and(|share| share <= self.width)
    }

    /// Whether no more repetitions are to be made.
    #[must_use]
    pub fn is_over(&self, results: &[f64]) -> bool {
        let Some(interval) = Interval::of(results) else { return self.most == 0 };
        let is_enough = interval.repetitions >= self.least && self.is_narrow(&interval);
        is_enough || interval.repetitions >= self.most
    }

    /// Why the mean is not to be relied on; `None` if it is.
    #[must_use]
    pub fn judge(&self, interval: &Interval) -> Option<Unconverged> {
        (!self.is_narrow(interval)).then(|| Unconverged::NotConfident {
            width: interval.width_share(),
            limit: self.width,
            repetitions: interval.repetitions,
        })
    }
}

/// A round of measurements: what is set up once, and those of its members that need another repetition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Round {
    /// From 0.
    pub turn: u32,
    /// Which group, by its index.
    pub group: usize,
    /// Indices of its members.
    pub members: Vec<usize>,
}

/// Measures groups of members in turns, so that changes of the machine are in all groups alike, until each
/// member has enough repetitions by the rule. `groups` are their numbers of members; `measure` returns a
/// sample for each member of a round, of which `result` is the figure that the rule is about.
///
/// Returns all samples of each member of each group.
///
/// # Errors
/// That of the first measurement that failed.
pub fn in_turns<S, E>(
    rule: &Confidence,
    groups: &[usize],
    result: impl Fn(&S) -> f64,
    mut measure: impl FnMut(&Round) -> Result<Vec<S>, E>,
) -> Result<Vec<Vec<Vec<S>>>, E> {
    let mut samples: Vec<Vec<Vec<S>>> =
        groups.iter().map(|&count| std::iter::repeat_with(Vec::new).take(count).collect()).collect();
    for turn in 0..rule.most {
        for (group, of_group) in samples.iter_mut().enumerate() {
            let is_over = |samples: &Vec<S>| rule.is_over(&samples.iter().map(&result).collect::<Vec<_>>());
            let members: Vec<usize> =
                (0..).zip(of_group.iter()).filter(|(_, s)| !is_over(s)).map(|(member, _)| member).collect();
            if members.is_empty() {
                continue;
            }
            let round = Round { turn, group, members };
            for (&member, sample) in round.members.iter().zip(measure(&round)?) {
                if let Some(samples) = of_group.get_mut(member) {
                    samples.push(sample);
                }
            }
        }
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    /// Streams of known rates with noise of a known deviation.
    struct FakeStreams {
        rates: Vec<f64>,
        deviation_share: f64,
        random: fastrand::Rng,
        measured: u32,
    }

    impl FakeStreams {
        fn new(rates: &[f64], deviation_share: f64, seed: u64) -> Self {
            println!("seed {seed}");
            let random = fastrand::Rng::with_seed(seed);
            Self { rates: rates.to_vec(), deviation_share, random, measured: 0 }
        }

        /// About normal: the sum of twelve uniform numbers less six has a deviation of 1.
        fn noise(&mut self) -> f64 {
            (0..12).map(|_| self.random.f64()).sum::<f64>() - 6.0
        }

        fn measure(&mut self, round: &Round) -> Result<Vec<f64>, Infallible> {
            let rates = self.rates.clone();
            let samples = round.members.iter().map(|&member| {
                self.measured += 1;
                rates[member] * (1.0 + self.deviation_share * self.noise())
            });
            Ok(samples.collect())
        }
    }

    fn repeated(streams: &mut FakeStreams) -> Vec<(Interval, Option<Unconverged>)> {
        let rule = Confidence::default();
        let groups = [streams.rates.len()];
        let all = in_turns(&rule, &groups, |sample| *sample, |round| streams.measure(round)).unwrap();
        let of = |samples: &Vec<f64>| {
            let interval = Interval::of(samples).unwrap();
            println!("{interval:?}");
            (interval, rule.judge(&interval))
        };
        all[0].iter().map(of).collect()
    }

    #[test]
    fn a_stream_of_known_rate_and_noise_is_found_within_2_percent_in_4_to_12_repetitions() {
        let rates = [9.4, 94.0, 300.0, 941.0, 40_000.0];
        let mut stopped_early = 0;
        for (seed, deviation) in (1..=40).zip([0.0, 0.002, 0.008, 0.015].into_iter().cycle()) {
            let mut streams = FakeStreams::new(&rates, deviation, seed);
            for ((interval, unconverged), rate) in repeated(&mut streams).into_iter().zip(rates) {
                assert!((interval.mean / rate - 1.0).abs() <= 0.02, "{interval:?} of {rate}");
                assert!((4..=12).contains(&interval.repetitions));
                assert_eq!(unconverged, None, "{interval:?}");
                assert!(interval.width_share().unwrap() <= 0.03);
                stopped_early += u32::from(interval.repetitions < 12);
                assert!(deviation > 0.002 || interval.repetitions == 4, "quiet streams need no more than 4");
            }
        }
        assert!(stopped_early > 0);
    }

    #[test]
    fn a_stream_that_cannot_converge_says_so_after_12_repetitions() {
        for seed in 1..=10 {
            let mut streams = FakeStreams::new(&[500.0], 0.25, seed);
            let (interval, unconverged) = repeated(&mut streams)[0];
            assert_eq!((interval.repetitions, streams.measured), (12, 12));
            let said = unconverged.unwrap().to_string();
            assert!(said.contains("after 12 repetitions") && said.contains("not within 3 %"), "{said}");
        }
    }

    #[test]
    fn a_stream_that_carries_nothing_does_not_converge() {
        let mut streams = FakeStreams::new(&[0.0], 0.0, 1);
        let (interval, unconverged) = repeated(&mut streams)[0];
        assert_eq!((interval.mean, interval.repetitions), (0.0, 12));
        assert!(unconverged.is_some());
    }

    /// Ends of the interval of 1, 2, 3, 4 by a table of Student's t: 2.5 ± 3.182 · 1.291 / 2.
    #[test]
    fn the_interval_is_that_of_students_table() {
        let interval = Interval::of(&[1.0, 2.0, 3.0, 4.0]).unwrap();
        assert_eq!(interval.mean, 2.5);
        assert!((interval.half_width.unwrap() - 2.0541).abs() < 1e-3, "{interval:?}");
        assert_eq!(Interval::of(&[]), None);
        let one = Interval::of(&[7.0]).unwrap();
        assert_eq!((one.half_width, one.width_share()), (None, None));
        let rule = Confidence { least: 1, most: 1, width: 0.03 };
        assert!(rule.is_over(&[7.0]) && !rule.is_over(&[]));
        assert!(rule.judge(&one).unwrap().to_string().contains("one repetition"));
    }

    #[test]
    fn groups_take_turns_and_settled_members_are_left_out() {
        let mut rounds = Vec::new();
        let rule = Confidence { least: 2, most: 3, width: 0.03 };
        let all = in_turns(
            &rule,
            &[2, 1],
            |sample: &f64| *sample,
            |round| {
                rounds.push(round.clone());
                // The first member of the first group never settles.
                let of = |&member: &usize| match (round.group, member) {
                    (0, 0) => f64::from(round.turn + 1),
                    _ => 5.0,
                };
                Ok::<_, Infallible>(round.members.iter().map(of).collect())
            },
        );
        let round = |turn, group, members: &[usize]| Round { turn, group, members: members.to_vec() };
        let expected = [
            round(0, 0, &[0, 1]),
            round(0, 1, &[0]),
            round(1, 0, &[0, 1]),
            round(1, 1, &[0]),
            round(2, 0, &[0]),
        ];
        assert_eq!(rounds, expected);
        assert_eq!(all.unwrap(), [vec![vec![1.0, 2.0, 3.0], vec![5.0; 2]], vec![vec![5.0; 2]]]);
    }

    #[test]
    fn a_failed_measurement_ends_the_run() {
        let mut count = 0;
        let failed = in_turns(
            &Confidence::default(),
            &[1],
            |sample: &f64| *sample,
            |_| {
                count += 1;
                if count == 3 { Err("broken") } else { Ok(vec![1.0]) }
            },
        );
        assert_eq!((failed, count), (Err("broken"), 3));
    }

    #[test]
    fn a_difference_counts_only_where_intervals_are_apart() {
        let of = |mean, half_width| Interval { mean, half_width, repetitions: 4 };
        let earlier = of(100.0, Some(2.0));
        assert_eq!(of(103.0, Some(0.5)).against(&earlier), Some(Ordering::Greater));
        assert_eq!(of(102.0, Some(0.5)).against(&earlier), Some(Ordering::Equal));
        assert_eq!(of(97.0, Some(0.5)).against(&earlier), Some(Ordering::Less));
        assert_eq!(of(500.0, None).against(&earlier), None);
    }
}

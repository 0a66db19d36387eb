//! What a method is told and what it returns.

use std::fmt;
use std::time::Duration;

use super::device::{Ceiling, Limit, Trial};
use super::repeat::{Compared, Figure};
use crate::generator::Sizes;
use crate::traffic::median;

/// How thorough methods are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plan {
    /// Length of a trial; RFC 2544 section 24 says 60 seconds at least.
    pub trial: Duration,
    /// How exactly throughput and bursts are searched: as a share of what is found.
    pub resolution: f64,
    /// How often each method is repeated, 1 at least.
    pub repetitions: u32,
    /// Results that differ by more than this share of their median do not repeat.
    pub spread_limit: f64,
}

impl Default for Plan {
    fn default() -> Self {
        Self { trial: Duration::from_secs(60), resolution: 0.005, repetitions: 3, spread_limit: 0.03 }
    }
}

/// A method of RFC 2544.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Test {
    /// 26.1
    Throughput,
    /// 26.2
    Latency,
    /// 26.3
    FrameLoss,
    /// 26.4
    BackToBack,
    /// Of paper 004, not of RFC 2544
    Overload,
    /// Of paper 000, not of RFC 2544
    Efficiency,
    /// Of paper 004, not of RFC 2544
    Placement,
}

impl Test {
    /// Name in tables and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Test::Throughput => "throughput",
            Test::Latency => "latency",
            Test::FrameLoss => "frame_loss",
            Test::BackToBack => "back_to_back",
            Test::Overload => "overload",
            Test::Efficiency => "efficiency",
            Test::Placement => "placement",
        }
    }
}

/// Why a method has no figure, or one that is not to be relied on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Unconverged {
    /// Packets were lost at every rate down to this one, per second.
    LossAtEveryRate {
        /// The lowest that was tried.
        lowest: f64,
    },
    /// Packets were lost at a rate, but not at a higher one: there is no highest rate without loss.
    NotMonotone {
        /// Where packets were lost, per second.
        lost_at: f64,
        /// The higher rate that passed.
        passed_at: f64,
    },
    /// The rate that was found did not pass again, however often the search was begun anew.
    NeverAgain {
        /// The rate that was found last, per second.
        rate: f64,
    },
    /// Not even a burst of one packet came back whole.
    LossInEveryBurst,
    /// There was one repetition, which says nothing of others.
    MeasuredOnce,
    /// Repetitions differ too much.
    SpreadAbove {
        /// In which figure most.
        figure: Figure,
        /// Highest less lowest, as a share of the median.
        spread: f64,
        /// What the plan allows.
        limit: f64,
    },
    /// The mean's confidence interval is too wide.
    NotConfident {
        /// From end to end, as a share of the mean; `None` of one repetition.
        width: Option<f64>,
        /// What the rule allows.
        limit: f64,
        /// How many there were.
        repetitions: u32,
    },
}

impl fmt::Display for Unconverged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LossAtEveryRate { lowest } => {
                write!(f, "packets are lost at every rate, down to {lowest:.0} a second")
            }
            Self::NotMonotone { lost_at, passed_at } => write!(
                f,
                "packets are lost at {lost_at:.0} a second and none at {passed_at:.0}: no rate is the highest without loss"
            ),
            Self::NeverAgain { rate } => {
                write!(f, "{rate:.0} packets a second passed once and were lost when it was tried again")
            }
            Self::LossInEveryBurst => f.write_str("not even a burst of one packet comes back whole"),
            Self::MeasuredOnce => f.write_str("measured once: nothing says whether it repeats"),
            Self::SpreadAbove { figure, spread, limit } => write!(
                f,
                "repetitions differ by {:.1} % in {figure}, which is more than {:.0} %",
                spread * 100.0,
                limit * 100.0
            ),
            Self::NotConfident { width: None, .. } => {
                f.write_str("one repetition has no confidence interval")
            }
            Self::NotConfident { width: Some(width), limit, repetitions } => write!(
                f,
                "the 95 % confidence interval is {:.1} % wide after {repetitions} repetitions, not within {:.0} %",
                width * 100.0,
                limit * 100.0
            ),
        }
    }
}

/// What the loads of [`Test::Latency`] are shares of, where it is no throughput that was found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Basis {
    /// A throughput that is not to be relied on, and why.
    Throughput(Unconverged),
    /// Half of the highest rate, since no throughput was searched.
    HalfOfHighest,
}

impl fmt::Display for Basis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Throughput(why) => write!(f, "the throughput that the load is a share of: {why}"),
            Self::HalfOfHighest => f.write_str(
                "the load is a share of half of the highest rate, since no throughput was searched: packets may be lost",
            ),
        }
    }
}

/// Latencies in microseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatencyUs {
    /// Half of the packets were no later.
    pub p50: f64,
    /// 99 of 100 were no later.
    pub p99: f64,
    /// The latest.
    pub max: f64,
}

/// A row of a report: the median of repetitions.
#[derive(Debug, Clone, PartialEq)]
pub struct Measurement {
    /// The method.
    pub test: Test,
    /// The frames.
    pub sizes: Sizes,
    /// Packets offered per second.
    pub offered_packets_per_second: f64,
    /// Packets that came back per second.
    pub throughput_packets_per_second: f64,
    /// The share of packets that were lost, 0 to 1.
    pub loss: f64,
    /// Trials in which a packet was lost: where they are fewer than half, `loss` is 0.
    pub lossy_trials: u32,
    /// Latencies of the packets that came back; medians over repetitions, and the latest of all. `None` if
    /// none came.
    pub latency_us: Option<LatencyUs>,
    /// The longest burst that came back whole, in packets, of [`Test::BackToBack`].
    pub burst_packets: Option<f64>,
    /// Highest less lowest of the repetitions' results, as a share of their median, of the
    /// [figure](Figure) of the method that differs most. `None` with one repetition.
    pub repeat_spread: Option<f64>,
    /// Share of the time in which the device had work, 0 to 1, where it is known.
    pub busy_share: Option<f64>,
    /// Repetitions.
    pub repetitions: u32,
    /// Why the figures are not to be relied on; `None` if they are.
    pub unconverged: Option<Unconverged>,
    /// What its load is a share of, where that is to be said.
    pub basis: Option<Basis>,
    /// Whether the generator was too slow for what it was to offer, in any of the trials.
    pub was_generator_late: bool,
    /// What kept the device from showing more, where no packet was lost: it may be faster. `None` where the
    /// figures are its own, or those of the medium.
    pub limit: Option<Limit>,
    /// Whether the machine took the device's processor away in any of the trials.
    pub is_disturbed: bool,
}

impl Measurement {
    /// The medians of these trials, one of each repetition, which are compared by `figures`.
    pub(super) fn of(test: Test, sizes: Sizes, plan: &Plan, trials: &[Trial], figures: &[Compared]) -> Self {
        let middle = |figure: &dyn Fn(&Trial) -> f64| {
            median(&trials.iter().map(figure).collect::<Vec<_>>()).unwrap_or(0.0)
        };
        let quantile = |share: f64| {
            let found: Vec<f64> =
                trials.iter().filter_map(|trial| trial.latency.quantile_us(share)).collect();
            median(&found)
        };
        let max = trials.iter().filter_map(|trial| trial.latency.max_us()).reduce(f64::max);
        let latency_us = quantile(0.5).zip(quantile(0.99)).zip(max);
        let busy: Option<Vec<f64>> = trials.iter().map(|trial| trial.busy_share).collect();
        let mut row = Self {
            test,
            sizes,
            offered_packets_per_second: middle(&Trial::offered_rate),
            throughput_packets_per_second: middle(&Trial::received_rate),
            loss: middle(&Trial::loss),
            lossy_trials: u32::try_from(trials.iter().filter(|trial| trial.lost() > 0).count())
                .unwrap_or(u32::MAX),
            latency_us: latency_us.map(|((p50, p99), max)| LatencyUs { p50, p99, max }),
            burst_packets: None,
            repeat_spread: None,
            busy_share: busy.and_then(|shares| median(&shares)),
            repetitions: u32::try_from(trials.len()).unwrap_or(u32::MAX),
            unconverged: None,
            basis: None,
            was_generator_late: trials.iter().any(Trial::was_generator_late),
            limit: None,
            is_disturbed: trials.iter().any(|trial| trial.is_disturbed),
        };
        for (figure, result) in figures {
            row.judge(plan, *figure, &trials.iter().map(result).collect::<Vec<_>>());
        }
        row
    }

    /// Whether the figures are to be relied on: they repeat, and so does what the load is a share of.
    #[must_use]
    pub fn is_converged(&self) -> bool {
        self.unconverged.is_none() && !matches!(self.basis, Some(Basis::Throughput(_)))
    }

    /// The same, of trials below this highest rate: says what kept the device from showing more in one of
    /// them.
    pub(super) fn below(mut self, ceiling: &Ceiling, trials: &[Trial]) -> Self {
        let mut limits = trials.iter().filter_map(|trial| ceiling.limits(trial));
        self.limit = limits.clone().find(|limit| *limit == Limit::Generator).or_else(|| limits.next());
        self
    }

    /// Compares the results of repetitions by a figure, and says so if they do not repeat: by the one that
    /// differs most.
    pub(super) fn judge(&mut self, plan: &Plan, figure: Figure, results: &[f64]) {
        let Some(spread) = figure.spread(results) else {
            self.unconverged.get_or_insert(Unconverged::MeasuredOnce);
            return;
        };
        if self.repeat_spread.is_some_and(|most| most >= spread) {
            return;
        }
        self.repeat_spread = Some(spread);
        if spread > plan.spread_limit {
            self.unconverged = Some(Unconverged::SpreadAbove { figure, spread, limit: plan.spread_limit });
        }
    }
}

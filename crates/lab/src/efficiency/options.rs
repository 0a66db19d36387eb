//! The command line of `testudo lab efficiency`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::generator::Sizes;
use crate::harness::{PAUSE_STEPS_US, Plan};
use crate::rfc2544::TandemArgs;

/// Seconds of a trial.
const TRIAL_SECONDS: f64 = 1.0;
const QUICK_SECONDS: f64 = 0.1;

/// Options of `testudo lab efficiency`.
#[derive(Debug, Clone, clap::Args)]
pub struct EfficiencyOptions {
    /// Lengths of Ethernet frames in bytes, check sequence included (64 to 1518), random, imix or imix-simple
    #[arg(long, value_delimiter = ',', value_name = "BYTES,…", default_value = "64,1518")]
    pub sizes: Vec<Sizes>,

    /// Rates to offer: gigabits of frames in a second, such as 1, or shares of what the gateways can, such
    /// as 25%
    #[arg(long, value_delimiter = ',', value_name = "RATE,…", default_value = "10%,50%,1")]
    pub rates: Vec<Rate>,

    /// Seconds of each trial; pauses are up to a fiftieth of it [default: 1; 0.1 with --quick]
    #[arg(long, value_name = "N", value_parser = crate::rfc2544::seconds)]
    pub trial_seconds: Option<f64>,

    /// Take seconds instead of minutes: short trials, whose figures are coarse, and shorter pauses
    #[arg(long)]
    pub quick: bool,

    /// Repetitions of each pause: rows are medians, and say how far repetitions are apart
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repetitions: u32,

    /// What this machine costs, and systems of paper 002 today: a file in TOML (docs/LAB.md)
    #[arg(long, value_name = "FILE")]
    pub prices: Option<PathBuf>,

    /// The gateways.
    #[command(flatten)]
    pub device: TandemArgs,

    /// Print a JSON array instead of tables, and no progress
    #[arg(long)]
    pub json: bool,
}

/// A rate to offer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rate {
    /// Gigabits of frames in a second, check sequences included.
    GbitPerSecond(f64),
    /// A share of what the gateways can, 0 to 1.
    Share(f64),
}

impl Rate {
    /// In packets of `sizes` per second, where so many are what the gateways can.
    pub(super) fn packets_per_second(self, sizes: Sizes, capacity: f64) -> f64 {
        match self {
            Rate::GbitPerSecond(gigabits) => gigabits * 1e9 / 8.0 / sizes.mean_bytes(),
            Rate::Share(share) => share * capacity,
        }
    }
}

impl fmt::Display for Rate {
    /// As on the command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rate::GbitPerSecond(gigabits) => write!(f, "{gigabits}"),
            Rate::Share(share) => write!(f, "{}%", (share * 1e5).round() / 1e3),
        }
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let figure = |text: &str, range: std::ops::RangeInclusive<f64>| {
            text.parse().ok().filter(|figure| range.contains(figure))
        };
        let rate = match text.strip_suffix('%') {
            Some(percent) => figure(percent, 0.1..=100.0).map(|percent| Rate::Share(percent / 100.0)),
            None => figure(text, 0.001..=1000.0).map(Rate::GbitPerSecond),
        };
        rate.ok_or_else(|| {
            "expected gigabits a second, from 0.001 to 1000, or a share, from 0.1% to 100%".to_owned()
        })
    }
}

impl EfficiencyOptions {
    pub(super) fn plan(&self) -> Plan {
        let usual = if self.quick { QUICK_SECONDS } else { TRIAL_SECONDS };
        let trial = Duration::from_secs_f64(self.trial_seconds.unwrap_or(usual));
        Plan { trial, repetitions: self.repetitions, ..Plan::default() }
    }

    /// About how long all of it takes: all pauses at each rate, and what the gateways can.
    pub(super) fn expected(&self) -> Duration {
        let steps = self.rates.len().saturating_mul(PAUSE_STEPS_US.len()).saturating_add(1);
        let trials = u32::try_from(self.sizes.len().saturating_mul(steps)).unwrap_or(u32::MAX);
        self.plan().trial.saturating_mul(trials.saturating_mul(self.repetitions))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_gigabits_or_shares() {
        for (text, rate) in [
            ("1", Rate::GbitPerSecond(1.0)),
            ("0.48", Rate::GbitPerSecond(0.48)),
            ("25%", Rate::Share(0.25)),
            ("7.5%", Rate::Share(0.075)),
        ] {
            assert_eq!(text.parse(), Ok(rate));
            assert_eq!(rate.to_string(), text);
        }
        for wrong in ["", "%", "0", "0%", "101%", "-1", "nan", "1e9", "fast"] {
            assert!(wrong.parse::<Rate>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_gigabit_is_of_frames_and_a_share_of_the_capacity() {
        let packets = |rate: Rate, sizes| rate.packets_per_second(sizes, 400_000.0);
        assert_eq!(packets(Rate::GbitPerSecond(1.0), Sizes::Bytes(500)), 250_000.0);
        assert_eq!(packets(Rate::Share(0.25), Sizes::Bytes(64)), 100_000.0);
    }
}

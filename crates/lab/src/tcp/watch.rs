//! The progress bar, with the time that is left: between that of the fewest and that of the most runs.

use std::time::{Duration, Instant};

use crate::estimate::{Estimate, words};
use crate::harness::Confidence;
use crate::progress::Progress;

/// What a run takes besides its stream: its share of building a network and starting gateways.
const OVERHEAD: Duration = Duration::from_millis(300);

pub(super) struct Watch {
    progress: Progress,
    rule: Confidence,
    /// Of a run.
    expected: Duration,
    fewest: Estimate,
    most: Estimate,
    /// When the last run ended: networks are built between runs.
    began: Instant,
    /// Runs of the current setting.
    made: u32,
}

impl Watch {
    /// Of so many rows, each by this rule.
    pub(super) fn new(rows: usize, rule: Confidence, duration: Duration, silent: bool) -> Self {
        let rows = u32::try_from(rows).unwrap_or(u32::MAX);
        let expected = duration + OVERHEAD;
        let of = |runs: u32| expected.saturating_mul(rows.saturating_mul(runs));
        Self {
            progress: Progress::new(of(rule.least), silent),
            rule,
            expected,
            fewest: Estimate::of(of(rule.least)),
            most: Estimate::of(of(rule.most)),
            began: Instant::now(),
            made: 0,
        }
    }

    /// A run begins.
    pub(super) fn stage(&mut self, name: &str) {
        self.progress.stage(name, self.expected);
    }

    /// It has come so far.
    pub(super) fn at(&self, detail: &str) {
        let elapsed = self.began.elapsed();
        self.progress.at(elapsed, self.expected, &format!("{detail}, {} left", self.left(elapsed)));
    }

    fn left(&self, elapsed: Duration) -> String {
        let [fewest, most] = [&self.fewest, &self.most].map(|estimate| words(estimate.left(elapsed)));
        if fewest == most { format!("about {fewest}") } else { format!("{fewest} to {most}") }
    }

    /// It has ended; `turn` is that of the rule, from 0.
    pub(super) fn done(&mut self, turn: u32) {
        let took = self.began.elapsed();
        self.began = Instant::now();
        // Runs beyond the fewest were no part of that sum.
        if turn < self.rule.least {
            self.fewest.done(self.expected, took);
        }
        self.most.done(self.expected, took);
        self.made += 1;
    }

    /// All rows of a setting, so many, have ended or are left out.
    pub(super) fn settled(&mut self, rows: usize) {
        let rows = u32::try_from(rows).unwrap_or(u32::MAX);
        let of = |runs: u32| self.expected.saturating_mul(runs);
        let fewest = rows.saturating_mul(self.rule.least).saturating_sub(self.made);
        self.fewest.left_out(of(fewest));
        self.most.left_out(of(rows.saturating_mul(self.rule.most).saturating_sub(self.made)));
        self.made = 0;
        self.began = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_settle_early_shorten_what_is_left() {
        let rule = Confidence { least: 2, most: 10, width: 0.03 };
        let mut watch = Watch::new(4, rule, Duration::from_millis(700), true);
        assert_eq!(watch.left(Duration::ZERO), "8 s to 40 s");
        watch.settled(2);
        assert_eq!(watch.left(Duration::ZERO), "4 s to 20 s");
        watch.settled(2);
        assert_eq!(watch.left(Duration::ZERO), "about 0 s");
    }
}

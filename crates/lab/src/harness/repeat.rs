//! Whether results repeat: what repetitions are compared by, and how far they are apart.

use std::fmt;

use super::device::Trial;
use super::placement::Block;
use crate::statistics::Spread;

/// Losses that differ by less than this share of the packets are the same: tables print hundredths of a
/// percent.
const FINEST_LOSS: f64 = 1e-4;

/// What repetitions are compared by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Figure {
    /// The highest rate without loss.
    Throughput,
    /// Packets that came back per second.
    ReceivedRate,
    /// The share of packets that did not.
    Loss,
    /// The median latency.
    P50,
    /// The latency that 99 of 100 packets do not exceed.
    P99,
    /// The longest burst.
    Burst,
    /// The share of the time in which the worker had a processor.
    Awake,
    /// What all meters show.
    Power,
    /// The time that a packet takes in a block.
    Turnaround(Block),
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Throughput => "throughput",
            Self::ReceivedRate => "the rate of what came back",
            Self::Loss => "loss",
            Self::P50 => "p50",
            Self::P99 => "p99",
            Self::Burst => "the burst",
            Self::Awake => "the time awake",
            Self::Power => "power",
            Self::Turnaround(block) => return write!(f, "the turnaround of {}", block.name()),
        })
    }
}

impl Figure {
    /// Highest less lowest of these results, as a share of their median; 1 where that is 0 and not all are.
    /// `None` of one result, which says nothing of others.
    pub(super) fn spread(self, results: &[f64]) -> Option<f64> {
        let Spread { median, lowest, highest } = Spread::of(results.iter().copied());
        let apart = highest - lowest;
        let is_same = apart <= 0.0 || (self == Self::Loss && apart < FINEST_LOSS);
        let share = match (is_same, median > 0.0) {
            (true, _) => 0.0,
            (false, true) => apart / median,
            (false, false) => 1.0,
        };
        (results.len() > 1).then_some(share)
    }
}

/// A figure, and how it follows from a trial.
pub(super) type Compared = (Figure, fn(&Trial) -> f64);

/// What came back, and what did not.
pub(super) const CAME_BACK: [Compared; 2] =
    [(Figure::ReceivedRate, Trial::received_rate), (Figure::Loss, Trial::loss)];
/// Of a flood, of which the loss is not asked.
pub(super) const RECEIVED: [Compared; 1] = [(Figure::ReceivedRate, Trial::received_rate)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_a_share_of_the_median_and_losses_below_what_is_printed_have_none() {
        assert_eq!(Figure::P99.spread(&[10.0, 11.0, 12.0]), Some(2.0 / 11.0));
        assert_eq!(Figure::P99.spread(&[10.0]), None);
        assert_eq!(Figure::Loss.spread(&[0.0, 0.0, 0.5]), Some(1.0));
        assert_eq!(Figure::Loss.spread(&[0.0, 0.0, 0.000_09]), Some(0.0));
        assert_eq!(Figure::Loss.spread(&[0.1, 0.1, 0.11]), Some((0.11 - 0.1) / 0.1));
        assert_eq!(Figure::Burst.spread(&[0.0, 0.0]), Some(0.0));
    }
}

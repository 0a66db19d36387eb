//! Times of this measurement: the clock of a gateway, and how long packets are in it.

use std::collections::VecDeque;
use std::time::Duration;

use testudo_gateway::{Clock, ManualClock, SystemClock};

use super::run::Plan;
use crate::generator::Latency;

/// A turn's time on the clock of the model: far less than a launch.
const TURN: Duration = Duration::from_micros(5);
/// The shares of packets that a distribution of latencies says a time of.
pub(super) const QUANTILES: [f64; 11] = [0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0];

/// How long packets were in the gateway, in microseconds of its clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Latencies {
    pub(super) mean: f64,
    /// The times of [`QUANTILES`].
    pub(super) quantiles: [f64; QUANTILES.len()],
}

/// What time it is for the gateway: the system's, or the model's, which a turn moves.
#[derive(Clone)]
pub(super) enum Time {
    System(SystemClock),
    Model(ManualClock),
}

impl Time {
    pub(super) fn now(&self) -> testudo_ipsec::Moment {
        match self {
            Self::System(clock) => clock.now(),
            Self::Model(clock) => {
                clock.advance(TURN);
                clock.now()
            }
        }
    }
}

impl Time {
    /// The same without a turn.
    pub(super) fn look(&self) -> testudo_ipsec::Moment {
        match self {
            Self::System(clock) => clock.now(),
            Self::Model(clock) => clock.now(),
        }
    }
}

/// How long packets of one SA are in the gateway: they leave in the order in which they came.
pub(super) struct Stay {
    clock: Time,
    /// Packets that came at once, and when.
    came: VecDeque<(usize, testudo_ipsec::Moment)>,
    left: usize,
    latency: Latency,
}

impl Stay {
    /// Where latencies are to be taken.
    pub(super) fn of(plan: &Plan, clock: &Time) -> Option<Self> {
        let is_one = plan.sas == 1 && plan.way.is_some();
        let (clock, came, latency) = (clock.clone(), VecDeque::new(), Latency::default());
        is_one.then_some(Self { clock, came, left: 0, latency })
    }

    pub(super) fn came(&mut self, packets: usize) {
        if packets > 0 {
            self.came.push_back((packets, self.clock.look()));
        }
    }

    /// So many have left so far; those count that leave while launches count.
    pub(super) fn left(&mut self, all: usize, counts: bool) {
        let now = self.clock.look();
        while self.left < all {
            let Some((packets, at)) = self.came.front_mut() else { return };
            let some = (*packets).min(all - self.left);
            let stay = now.0.saturating_sub(at.0);
            (0..some).filter(|_| counts).for_each(|_| {
                self.latency.record(u64::try_from(stay.as_nanos()).unwrap_or(u64::MAX));
            });
            self.left += some;
            *packets -= some;
            if *packets == 0 {
                self.came.pop_front();
            }
        }
    }

    pub(super) fn latencies(&self) -> Option<Latencies> {
        let mut quantiles = [0.0; QUANTILES.len()];
        for (time, share) in quantiles.iter_mut().zip(QUANTILES) {
            *time = self.latency.quantile_us(share)?;
        }
        Some(Latencies { mean: self.latency.mean_us()?, quantiles })
    }
}

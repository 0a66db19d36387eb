//! How evenly packets are spread over the workers that take them.

use crate::counters::WorkerCounters;
use crate::role::Role;
use std::time::{Duration, Instant};

/// What is compared with the time before it.
const INTERVAL: Duration = Duration::from_secs(1);
/// With fewer packets in an interval a worker has nothing to share.
const LEAST_PACKETS: u64 = 1000;

/// One worker has more than twice the packets of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Imbalance {
    /// Whether they are those of the protected side.
    pub is_outbound: bool,
    /// The worker, by its number.
    pub worker: usize,
    /// Packets that it took in the last interval, of at least a second.
    pub packets: u64,
    /// Packets that all took.
    pub all: u64,
    /// How many workers take packets of that side.
    pub workers: usize,
}

impl Imbalance {
    /// Its packets in percent of the mean of the others, as if these had one at least.
    #[must_use]
    pub fn percent_of_mean(&self) -> u64 {
        let (rest, others) = (self.all.saturating_sub(self.packets), self.workers.saturating_sub(1));
        self.packets.saturating_mul(others as u64).saturating_mul(100) / rest.max(1)
    }
}

/// Packets that each worker took, from the protected and from the unprotected side.
type Taken = Vec<[u64; 2]>;

/// The counts of a while ago, and what was taken in the interval before.
#[derive(Debug, Default)]
pub(crate) struct Balance {
    last: Option<(Instant, Taken)>,
    in_interval: Taken,
}

impl Balance {
    /// Looks at the counters, at most once in an interval.
    pub(crate) fn look<'a>(&mut self, counters: impl Iterator<Item = &'a WorkerCounters>, now: Instant) {
        if self.last.as_ref().is_some_and(|(then, _)| now.saturating_duration_since(*then) < INTERVAL) {
            return;
        }
        let taken = |counters: &WorkerCounters| {
            [counters.protected(), counters.unprotected()].map(|port| port.counters.rx_packets)
        };
        let taken: Taken = counters.map(taken).collect();
        if let Some((_, before)) = &self.last {
            let since = |(now, then): (&[u64; 2], &[u64; 2])| {
                [now[0].saturating_sub(then[0]), now[1].saturating_sub(then[1])]
            };
            self.in_interval = taken.iter().zip(before).map(since).collect();
        }
        self.last = Some((now, taken));
    }

    /// Of each direction, if there is one.
    pub(crate) fn imbalances(&self, takers: &[(Role, bool)]) -> Vec<Imbalance> {
        let of_outbound = (0, Role::encrypts as fn(Role) -> bool);
        let sides = [of_outbound, (1, Role::decrypts)];
        sides.into_iter().filter_map(|(side, takes)| self.imbalance(side, takes, takers)).collect()
    }

    fn imbalance(&self, side: usize, takes: fn(Role) -> bool, takers: &[(Role, bool)]) -> Option<Imbalance> {
        let counts = self.in_interval.iter().zip(takers).enumerate();
        let is_taker =
            |(_, (_, (role, is_parked))): &(usize, (&[u64; 2], &(Role, bool)))| takes(*role) && !is_parked;
        let counts: Vec<_> =
            counts.filter(is_taker).map(|(worker, (taken, _))| (worker, taken[side])).collect();
        let all = counts.iter().map(|(_, packets)| packets).sum();
        let (worker, packets) = counts.iter().copied().max_by_key(|(_, packets)| *packets)?;
        let workers = counts.len();
        let found = Imbalance { is_outbound: side == 0, worker, packets, all, workers };
        (workers > 1 && all >= LEAST_PACKETS && found.percent_of_mean() > 200).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(in_interval: Taken) -> Balance {
        Balance { last: None, in_interval }
    }

    #[test]
    fn more_than_twice_the_mean_of_the_others_is_an_imbalance() {
        let both = [(Role::Both, false); 4];
        let found = |outbound: [u64; 4]| {
            let balance = of(outbound.map(|packets| [packets, 0]).to_vec());
            let found = balance.imbalances(&both);
            assert!(found.iter().all(|one| one.is_outbound && one.workers == 4));
            found.first().map(|one| (one.worker, one.percent_of_mean()))
        };
        assert_eq!(found([1000, 1000, 1000, 1000]), None);
        assert_eq!(found([1000, 2000, 1000, 1000]), None, "not more than twice");
        assert_eq!(found([1000, 2010, 1000, 1000]), Some((1, 201)));
        assert_eq!(found([0, 0, 1000, 0]), Some((2, 300_000)));
        assert_eq!(found([0, 0, 999, 0]), None, "too few to share");
        assert_eq!(found([0; 4]), None);
    }

    #[test]
    fn only_workers_that_take_a_side_and_run_are_compared() {
        let balance = of(vec![[5000, 0], [0, 5000], [4000, 0], [0, 1000]]);
        let roles = |last| [(Role::Encrypt, false), (Role::Decrypt, false), (Role::Encrypt, false), last];
        let found = balance.imbalances(&roles((Role::Decrypt, false)));
        assert_eq!(found.iter().map(|one| (one.is_outbound, one.worker)).collect::<Vec<_>>(), [(false, 1)]);
        assert!(balance.imbalances(&roles((Role::Decrypt, true))).is_empty(), "a parked one has none");
    }
}

//! How many sequence numbers an SA is leased at a time: few at first, then enough for a second at the rate
//! that it uses them.
//!
//! If a block is too short, it is used up before the next one is durable, and packets are dropped; if it is
//! too long, a crash loses all of it, which a 32-bit sequence cannot bear often. So an SA begins with
//! [`FIRST_BLOCK`] numbers and requests more with its first packet. From then on a block has as many numbers
//! as the SA would have used in a second at the rate of the previous block, within bounds, and at most 16
//! times as many as that block.

use crate::lifetime::Moment;
use std::time::Duration;

/// Numbers that an SA begins with, whether it will send anything or not.
pub const FIRST_BLOCK: u64 = 1 << 10;
/// The smallest lease of an SA that has sent: 3 ms at 5 million packets a second. A 32-bit sequence bears
/// 262,144 crashes.
const LEAST_BLOCK: u64 = 1 << 14;
/// The largest: 140 ms at 30 million packets a second, a 1,024th of a 32-bit sequence.
const MOST_BLOCK: u64 = 1 << 22;
/// How many times as long as the previous one a block may be.
const MOST_GROWTH: u64 = 16;
/// How long a block is to last. The next one is requested when half is used, so that a disk may take half as
/// long.
const HORIZON: Duration = Duration::from_secs(1);

/// How fast one SA uses numbers.
#[derive(Debug, Clone)]
pub struct Demand {
    /// Length of the last block.
    block: u64,
    /// When it was requested; `None` for the first one.
    asked: Option<Moment>,
}

impl Default for Demand {
    fn default() -> Self {
        Self { block: FIRST_BLOCK, asked: None }
    }
}

impl Demand {
    /// That of an SA which takes over the packets of another, whose rate is not known: a block that lasts at
    /// any rate.
    #[must_use]
    pub fn busy() -> Self {
        Self { block: MOST_BLOCK, asked: None }
    }

    /// Length of the last block, in numbers.
    #[must_use]
    pub fn block(&self) -> u64 {
        self.block
    }

    /// Length of the next block, which the SA requests `now`.
    pub fn next_block(&mut self, now: Moment) -> u64 {
        let last_asked = self.asked.replace(now);
        let most = self.block.saturating_mul(MOST_GROWTH);
        let wanted = last_asked.map_or(most, |then| in_horizon(self.block, now.since(then)));
        // After a pause, the block is still at least half of the last one.
        self.block = wanted.clamp(self.block / 2, most).clamp(LEAST_BLOCK, MOST_BLOCK);
        self.block
    }
}

/// Numbers that last for the horizon, if `block` numbers lasted for `time`.
fn in_horizon(block: u64, time: Duration) -> u64 {
    let numbers = u128::from(block) * HORIZON.as_nanos() / time.as_nanos().max(1);
    u64::try_from(numbers).unwrap_or(u64::MAX)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::numbers::{Lease, SequenceNumbers};
    use std::sync::Arc;

    fn at(millis: u64) -> Moment {
        Moment(Duration::from_millis(millis))
    }

    #[test]
    fn blocks_follow_the_rate_up_and_down() {
        let mut demand = Demand::default();
        assert_eq!((demand.block(), demand.next_block(at(0))), (FIRST_BLOCK, LEAST_BLOCK));
        assert_eq!(demand.next_block(at(1)), 16 * LEAST_BLOCK);
        assert_eq!(demand.next_block(at(2)), MOST_BLOCK);
        assert_eq!(demand.next_block(at(3)), MOST_BLOCK);
        // A million numbers a second: blocks of at least half a million.
        assert_eq!(demand.next_block(at(4003)), MOST_BLOCK / 2);
        assert_eq!(demand.next_block(at(4_000_000)), MOST_BLOCK / 4);
        assert!((0..20).map(|n| demand.next_block(at(5_000_000 + n * 100_000))).last() == Some(LEAST_BLOCK));
    }

    /// Packets without a number, per millisecond, of an SA that sends `per_ms` from the start, if a block is
    /// granted `latency` milliseconds after the request.
    fn starved(per_ms: u64, latency: u64) -> Vec<u64> {
        let (mut demand, lease) = (Demand::default(), Arc::new(Lease::until(1 + FIRST_BLOCK)));
        let mut numbers = SequenceNumbers::new(1, true, Arc::clone(&lease));
        let mut promised = Vec::new();
        (0..2000)
            .map(|now| {
                promised.retain(|&(when, end)| {
                    if when <= now {
                        lease.grant(end);
                    }
                    when > now
                });
                // In runs of 50, as a worker does; the rest of a lease one by one.
                let mut missing = 0;
                for _ in 0..per_ms.div_ceil(50) {
                    if numbers.reserve_run(50).is_none() {
                        missing += (0..50).filter(|_| numbers.reserve().is_err()).count() as u64;
                    }
                }
                if promised.is_empty() && lease.take_request() {
                    promised.push((now + latency, lease.end() + demand.next_block(at(now))));
                }
                missing
            })
            .collect()
    }

    #[test]
    fn an_sa_starves_at_most_while_its_first_three_blocks_are_made_durable() {
        for per_ms in [10, 100, 1000, 5000, 30_000] {
            for latency in [1, 5, 20, 50] {
                let starved = starved(per_ms, latency);
                let last = starved.iter().rposition(|missing| *missing > 0);
                println!(
                    "{per_ms} packets a ms, {latency} ms a block: {} starve, up to ms {last:?}",
                    starved.iter().sum::<u64>()
                );
                assert!(last.is_none_or(|ms| ms as u64 <= 4 * latency), "{per_ms}, {latency}: {last:?}");
            }
        }
        assert_eq!(starved(1000, 1).iter().sum::<u64>(), 0, "a million a second, a quick disk");
    }
}

//! How far out of order the packets of one SA arrive, as RFC 4737 counts it.
//!
//! A packet is *reordered* if a packet with a higher number has arrived before it (3.3). Its *extent* is how
//! many packets have arrived since the earliest one that has a higher number, that one included (4.2): a
//! receiver that holds as many packets back can restore the order. Copies are refused before, and count as no
//! arrivals.
//!
//! ```text
//!   arrivals:   1  2  5  3  4  6        5 leaves a gap: record (number 5, arrival 2)
//!                     ▲  ╰──┼──── extent 1: the earliest with a higher number is one arrival before
//!                     └─────┴──── extent 2
//! ```
//!
//! The earliest packet with a higher number is always one that left a gap, so only those are recorded, and in
//! an SA whose packets are in order a batch costs one addition. The last [`RECORDS`] are kept: an extent that
//! reaches further back is counted from the oldest of them.
//!
//! Where workers commit at the same moment, their arrivals are one after the other in some order, and a count
//! may be off by what came in that moment. It never decides about a packet.

use super::padded::Padded;
use std::sync::atomic::{AtomicU64, Ordering};

/// Packets that left a gap, of which it is known when they arrived.
const RECORDS: usize = 32;

/// What is counted of one SA, by all its workers. Not loom's atomics: no decision depends on them.
#[derive(Debug)]
pub struct Reordering {
    counts: Padded<Counts>,
    /// Low halves of a number and of its arrival; 0 for none.
    records: [AtomicU64; RECORDS],
}

#[derive(Debug, Default)]
struct Counts {
    arrived: AtomicU64,
    reordered: AtomicU64,
    longest: AtomicU64,
    recorded: AtomicU64,
}

/// How many packets of an SA arrived, and how many of them out of order (RFC 4737).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reordered {
    /// Packets that arrived, each once.
    pub arrived: u64,
    /// Those that a packet with a higher number came before (3.3).
    pub reordered: u64,
    /// The longest extent, in packets (4.2); at least so long where it reaches back over 32 gaps.
    pub longest_extent: u64,
}

/// The arrivals of one batch.
pub(super) struct Arrivals<'r> {
    of: &'r Reordering,
    /// The highest number so far.
    highest: u64,
    /// The arrival of the batch's first packet.
    first: u64,
    count: u64,
    reordered: u64,
    longest: u64,
}

impl Default for Reordering {
    fn default() -> Self {
        Self { counts: Padded(Counts::default()), records: [const { AtomicU64::new(0) }; RECORDS] }
    }
}

impl Reordering {
    /// What was counted by now.
    #[must_use]
    pub fn reordered(&self) -> Reordered {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Counts { arrived, reordered, longest, .. } = &self.counts.0;
        Reordered { arrived: read(arrived), reordered: read(reordered), longest_extent: read(longest) }
    }

    /// Begins a batch that arrives after `highest`.
    pub(super) fn begin(&self, highest: u64) -> Arrivals<'_> {
        let first = self.counts.0.arrived.load(Ordering::Relaxed);
        Arrivals { of: self, highest, first, count: 0, reordered: 0, longest: 0 }
    }

    /// A packet that left a gap.
    fn record(&self, number: u64, arrival: u64) {
        let place = self.counts.0.recorded.fetch_add(1, Ordering::Relaxed);
        self.at(place).store(half(number) << 32 | half(arrival), Ordering::Relaxed);
    }

    /// How many arrivals ago the earliest packet with a higher number arrived.
    #[cold]
    fn extent(&self, number: u64, arrival: u64) -> u64 {
        let newest = self.counts.0.recorded.load(Ordering::Relaxed);
        let mut extent = 1;
        for place in (newest.saturating_sub(RECORDS as u64)..newest).rev() {
            let record = self.at(place).load(Ordering::Relaxed);
            // Ahead by less than half of what the halves count.
            let ahead = half((record >> 32).wrapping_sub(half(number)));
            if record == 0 || ahead == 0 || ahead >= 1 << 31 {
                break;
            }
            let ago = half(half(arrival).wrapping_sub(record));
            extent = if ago < 1 << 31 { ago.max(1) } else { extent };
        }
        extent
    }

    fn at(&self, place: u64) -> &AtomicU64 {
        // Lossless: there are few.
        &self.records[usize::try_from(place % RECORDS as u64).unwrap_or(0)]
    }
}

fn half(number: u64) -> u64 {
    number & 0xFFFF_FFFF
}

impl Arrivals<'_> {
    /// A packet of this number arrives, for the first time.
    #[inline]
    pub(super) fn note(&mut self, number: u64) {
        let arrival = self.first.wrapping_add(self.count);
        self.count += 1;
        if number > self.highest {
            if number - self.highest > 1 {
                self.of.record(number, arrival);
            }
            self.highest = number;
        } else {
            self.reordered += 1;
            self.longest = self.longest.max(self.of.extent(number, arrival));
        }
    }
}

impl Drop for Arrivals<'_> {
    fn drop(&mut self) {
        let counts = &self.of.counts.0;
        counts.arrived.fetch_add(self.count, Ordering::Relaxed);
        if self.reordered > 0 {
            counts.reordered.fetch_add(self.reordered, Ordering::Relaxed);
            counts.longest.fetch_max(self.longest, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::numbers::SharedWindow;
    use std::sync::Arc;

    /// RFC 4737 by its definitions, over all that arrived.
    fn by_definition(arrivals: &[u64]) -> Reordered {
        let extent =
            |at: usize| arrivals[..at].iter().position(|before| *before > arrivals[at]).map(|j| at - j);
        let extents: Vec<_> = (0..arrivals.len()).filter_map(extent).collect();
        Reordered {
            arrived: arrivals.len() as u64,
            reordered: extents.len() as u64,
            longest_extent: extents.into_iter().max().unwrap_or(0) as u64,
        }
    }

    /// Commits batches; returns the numbers that were accepted, in order.
    fn commit(window: &SharedWindow, batches: &[Vec<u64>]) -> Vec<u64> {
        let mut accepted = Vec::new();
        for batch in batches {
            let mut kept = batch.clone();
            window.commit_batch(batch.iter().copied().enumerate(), |place, _| kept[place] = 0);
            accepted.extend(kept.into_iter().filter(|number| *number > 0));
        }
        accepted
    }

    #[test]
    fn packets_in_order_are_not_reordered_whatever_is_lost() {
        let window = SharedWindow::new(256, true);
        commit(&window, &[(1..=64).collect(), (65..=90).collect(), vec![95, 200], vec![100_000]]);
        assert_eq!(
            window.reordering().unwrap().reordered(),
            Reordered { arrived: 93, ..Reordered::default() }
        );
    }

    /// The example of the picture, and a copy, which counts as nothing.
    #[test]
    fn an_extent_is_counted_from_the_earliest_packet_with_a_higher_number() {
        let window = SharedWindow::new(256, true);
        commit(&window, &[vec![1, 2, 5, 3, 3, 4, 6, 5]]);
        let counted = window.reordering().unwrap().reordered();
        assert_eq!(counted, Reordered { arrived: 6, reordered: 2, longest_extent: 2 });
    }

    #[test]
    fn reordering_is_counted_as_rfc_4737_defines_it() {
        let seed = 4737;
        let mut random = fastrand::Rng::with_seed(seed);
        for round in 0..300 {
            let (window, reach) = (SharedWindow::new(4096, true), random.usize(1..20));
            let mut numbers: Vec<u64> = (1..=400).filter(|_| random.usize(..20) > 0).collect();
            for at in 1..numbers.len() {
                if random.usize(..8) == 0 {
                    let number = numbers.remove(at);
                    numbers.insert(at.saturating_sub(random.usize(..reach)), number);
                }
            }
            // Copies.
            for _ in 0..20 {
                let copy = numbers[random.usize(..numbers.len())];
                numbers.insert(random.usize(..numbers.len()), copy);
            }
            let batches: Vec<_> = numbers.chunks(random.usize(1..64)).map(<[u64]>::to_vec).collect();
            let accepted = commit(&window, &batches);
            let counted = window.reordering().unwrap().reordered();
            let defined = by_definition(&accepted);
            let is_shorter = counted.longest_extent < defined.longest_extent;
            assert_eq!(
                (counted.arrived, counted.reordered),
                (defined.arrived, defined.reordered),
                "seed {seed}, round {round}"
            );
            // Records are bounded: then it is a lower bound.
            assert!(
                !is_shorter || defined.longest_extent > 32,
                "{counted:?} {defined:?} seed {seed}, round {round}"
            );
            assert!(
                counted.longest_extent <= defined.longest_extent,
                "{counted:?} {defined:?}, round {round}"
            );
        }
    }

    /// With one thread after the other it is exact, whichever counts.
    #[test]
    fn all_workers_count_for_one_sa() {
        let window = Arc::new(SharedWindow::new(4096, true));
        for (block, worker) in [(2, 1), (1, 0), (3, 0), (4, 1)] {
            let window = Arc::clone(&window);
            let commit = move || drop(commit(&window, &[(block * 64 + 1..=block * 64 + 64).collect()]));
            std::thread::Builder::new().name(format!("{worker}")).spawn(commit).unwrap().join().unwrap();
        }
        let counted = window.reordering().unwrap().reordered();
        assert_eq!(counted, Reordered { arrived: 256, reordered: 64, longest_extent: 127 });
    }
}

//! Who does how much of a burst, by the time that it takes.
//!
//! A thread has work before it, its backlog. The worker has, too: as long as packets come it prepares and
//! finishes them between two bursts, and that is measured. A burst is divided so that all end at the same
//! time, as water fills vessels whose bottoms are not level:
//!
//! ```text
//!   ticks  ┌────────┬────────┬────────┐
//!   level ─┤ own    │ thread │        │
//!          │ share  │ 0      │ thread │   who has more before it than the level gets nothing
//!          ├────────┤ ······ │ 1, its │
//!          │ its    │ backlog│ backlog│
//!          │ other  │        │        │
//!          │ work   │        │        │
//!          └────────┴────────┴────────┘
//! ```

use crate::cost::{Expected, MOST_TICKS};

/// What the worker does itself while it is not pressed, in ticks: some three microseconds of cryptography in
/// a burst. To wake a thread takes as long.
const OWN_TICKS: u64 = 8_000;
/// Of the time that passes, one part in so many may be the worker's cryptography before it is pressed.
const EASE: u64 = 4;
/// What is remembered of cryptography that came lately, at the most, when a burst has begun.
const LATELY_MOST: u64 = 4 * OWN_TICKS;
/// Work that a thread has on top while the worker is pressed, in ticks and as a part of the burst, which is
/// no more than the former.
/// Expectations are not exact, and a thread that has nothing left until the worker comes again idles. And
/// packets that lie for some 40 microseconds have left the first-level cache of the core that they come
/// from: their lines then come faster.
const AHEAD_TICKS: u64 = 100_000;
const AHEAD_PART: u64 = 8;
/// A worker's other work with a job is at most so much, in ticks: else it waited for packets.
pub(crate) const OTHER_MOST: u64 = 2_048;
/// A gap between bursts that is longer than usual counts for so little: it may be idleness.
const OTHER_RISE: u64 = 64;
/// To hand a job over costs so much more than to do it in place, in ticks, and a tick for so many bytes: its
/// lines go from cache to cache and back.
const HAND_OVER_TICKS: u64 = 256;
const HAND_OVER_BYTES: u64 = 8;

/// How much the worker has to do.
#[derive(Debug, Default)]
pub(crate) struct Pressure {
    /// Cryptography that came lately, in ticks.
    lately: u64,
    /// When the last burst ended.
    ended_at: u64,
    /// When the last burst began.
    began_at: u64,
    /// The worker's other work with a job.
    other: u64,
}

/// What it costs more to hand so many jobs over than to do them in place, in ticks.
pub(crate) fn handing_over(jobs: u64, expected: &Expected) -> u64 {
    HAND_OVER_TICKS * jobs + expected.bytes / HAND_OVER_BYTES
}

/// How a burst is to be divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Division {
    /// The worker does all of it.
    Own,
    /// All end at the same time, where the worker has so much other work before it.
    Shared { before: u64 },
}

impl Division {
    /// Whether the worker has always something to do.
    pub(crate) fn is_of_pressed(self) -> bool {
        matches!(self, Self::Shared { before: 1..=u64::MAX })
    }
}

impl Pressure {
    /// The worker does a burst that was not asked about, of so many ticks by expectation. When the next one
    /// begins, the time of all of them is set against their cryptography together.
    #[inline]
    pub(crate) fn add(&mut self, own: u64) {
        self.lately = (self.lately + own).min(MOST_TICKS);
    }

    /// A burst of so many jobs begins.
    pub(crate) fn begin(&mut self, now: u64, jobs: usize, expected: &Expected) -> Division {
        let eased = now.saturating_sub(self.began_at) / EASE;
        let is_pressed = self.lately > eased;
        self.lately =
            (self.lately.saturating_sub(eased) + expected.own).min(LATELY_MOST.max(2 * expected.own));
        let jobs = jobs as u64;
        let gap = (now.saturating_sub(self.ended_at) / jobs.max(1)).min(OTHER_MOST);
        // A gap is work and idleness: the shorter ones are work.
        match gap.checked_sub(self.other) {
            Some(more) => self.other += more.div_ceil(OTHER_RISE),
            None => self.other -= (self.other - gap).div_ceil(2),
        }
        self.began_at = now;
        if self.lately <= OWN_TICKS || expected.own <= handing_over(jobs, expected) {
            return Division::Own;
        }
        let ahead = AHEAD_TICKS + (expected.own / AHEAD_PART).min(AHEAD_TICKS);
        let before = if is_pressed { self.other * jobs + ahead } else { 0 };
        Division::Shared { before: before.min(MOST_TICKS) }
    }

    /// The burst has ended, for the worker.
    pub(crate) fn end(&mut self, now: u64) {
        self.ended_at = now;
    }
}

/// When all have ended, in ticks from now, if a burst is divided among the worker, who has `before` before
/// it, and threads with these backlogs. A thread's share is what it lacks up to that. At most 64 threads, and
/// nothing beyond [`MOST_TICKS`].
pub(crate) fn level(expected: &Expected, before: u64, backlogs: &[u64]) -> u64 {
    // With s threads below the level, and costs of the burst w by the worker and t by a thread:
    // (level - before) / w + (s × level - their backlogs) / t = 1.
    let (own, threads) = (expected.own.max(1), expected.threads.max(1));
    let mut level = before + own;
    // Each round leaves out those who have too much, whereby the level falls. The one who has least is never
    // left out.
    for _ in 0..=backlogs.len() {
        let below = backlogs.iter().filter(|backlog| **backlog < level);
        let (count, sum) = below.fold((0, 0), |(count, sum), backlog| (count + 1, sum + backlog));
        // Lossless: 2^29 × 2^28 + 2^28 × 2^34 at most.
        let next = match before < level || count == 0 {
            true => ((before + own) * threads + own * sum) / (threads + count * own),
            false => (threads + sum) / count,
        };
        if next == level {
            break;
        }
        level = next;
    }
    level
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The slow, obvious way: pieces one after the other, each to the one that ends first with it.
    fn by_pieces(expected: &Expected, before: u64, backlogs: &[u64]) -> f64 {
        const PIECES: usize = 4_000;
        let pieces = PIECES as f64;
        let (own, thread) = (expected.own as f64 / pieces, expected.threads as f64 / pieces);
        let mut ends: Vec<(f64, f64)> = backlogs.iter().map(|at| (*at as f64, thread)).collect();
        ends.push((before as f64, own));
        let mut last = 0.0_f64;
        for _ in 0..PIECES {
            let first = ends.iter_mut().min_by(|a, b| (a.0 + a.1).total_cmp(&(b.0 + b.1))).unwrap();
            first.0 += first.1;
            last = last.max(first.0);
        }
        last
    }

    #[test]
    fn all_end_together_as_if_every_piece_went_to_who_ends_first() {
        let seed = 15;
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        for round in 0..300 {
            let mut ticks = || random.u64(1_000..200_000);
            let expected = Expected { own: ticks(), threads: ticks(), bytes: 0, ..Expected::default() };
            let before = ticks() * u64::from(round % 3 > 0);
            let backlogs: Vec<u64> = (0..round % 7).map(|at| ticks() * u64::from(at % 4 > 0)).collect();
            let (level, slow) =
                (level(&expected, before, &backlogs), by_pieces(&expected, before, &backlogs));
            let piece = expected.own.max(expected.threads) as f64 / 4_000.0 + 2.0;
            let is_equal = (level as f64 - slow).abs() <= piece;
            assert!(is_equal, "{level}, {slow}: {expected:?}, {before}, {backlogs:?}");
        }
    }

    #[test]
    fn the_level_of_extremes_does_not_overflow() {
        let most = Expected { own: MOST_TICKS, threads: MOST_TICKS, bytes: 0, ..Expected::default() };
        assert_eq!(level(&most, MOST_TICKS, &[MOST_TICKS; 64]), MOST_TICKS + MOST_TICKS / 65);
        assert_eq!(level(&Expected::default(), 0, &[0; 64]), 0);
        assert_eq!(level(&most, 7, &[]), MOST_TICKS + 7);
    }

    fn burst(count: u32, ticks: u64, bytes: u64) -> (usize, Expected) {
        let jobs = u64::from(count);
        (
            count as usize,
            Expected { own: jobs * ticks, threads: jobs * ticks, bytes: jobs * bytes, ..Expected::default() },
        )
    }

    /// Bursts that begin every so many ticks, where the worker is at each for so long.
    fn last_of(
        pressure: &mut Pressure,
        (jobs, expected): (usize, Expected),
        every: u64,
        busy: u64,
    ) -> Division {
        let mut division = Division::Own;
        for _ in 0..1_000 {
            let now = pressure.began_at + every;
            division = pressure.begin(now, jobs, &expected);
            pressure.end(now + busy);
        }
        division
    }

    #[test]
    fn few_bursts_are_the_workers_own_and_many_are_shared_however_short() {
        // Nine packets of 1,420 bytes.
        let nine = burst(9, 900, 1420);
        let mut pressure = Pressure::default();
        assert_eq!(last_of(&mut pressure, burst(4, 900, 1420), 40_000, 3_600), Division::Own);
        assert!(matches!(last_of(&mut pressure, nine, 12_000, 8_000), Division::Shared { .. }));
        // One at a time, too.
        assert!(matches!(last_of(&mut pressure, burst(1, 900, 1420), 1_300, 900), Division::Shared { .. }));
        // Idleness: what was is forgotten, and a long burst is divided evenly.
        let idle = pressure.began_at + 1_000_000;
        assert_eq!(pressure.begin(idle, 4, &burst(4, 900, 1420).1), Division::Own);
        pressure.end(idle + 3_600);
        let idle = idle + 1_000_000;
        assert_eq!(pressure.begin(idle, 64, &burst(64, 900, 1420).1), Division::Shared { before: 0 });
    }

    /// Two packets every 30,000 ticks, and between them what nobody asks about.
    #[test]
    fn what_the_worker_does_unasked_is_cryptography_too() {
        let last = |unasked: u64| {
            let (mut pressure, (jobs, expected)) = (Pressure::default(), burst(2, 900, 1420));
            let mut division = Division::Own;
            for _ in 0..100 {
                (0..4).for_each(|_| pressure.add(unasked));
                let now = pressure.began_at + 30_000;
                division = pressure.begin(now, jobs, &expected);
                pressure.end(now + 1_800);
            }
            division
        };
        // With the 1,800 of these it is a quarter of the time, and a little more.
        assert_eq!((last(0), last(1_425)), (Division::Own, Division::Own));
        assert!(last(1_475).is_of_pressed(), "{:?}", last(1_475));
    }

    #[test]
    fn what_costs_less_than_to_hand_it_over_stays_with_the_worker() {
        let mut pressure = Pressure::default();
        assert_eq!(last_of(&mut pressure, burst(64, 120, 64), 20_000, 8_000), Division::Own);
        assert!(matches!(
            last_of(&mut pressure, burst(64, 900, 64), 80_000, 50_000),
            Division::Shared { .. }
        ));
    }

    #[test]
    fn a_pressed_worker_has_its_other_work_before_it_and_waiting_is_none() {
        let mut pressure = Pressure::default();
        let (jobs, expected) = burst(9, 900, 1420);
        let before = |other: u64| 9 * other + AHEAD_TICKS + expected.own / AHEAD_PART;
        // 2,700 ticks between bursts of nine.
        let division = last_of(&mut pressure, (jobs, expected), 6_700, 4_000);
        assert_eq!(division, Division::Shared { before: before(300) });
        // Gaps that are long at times.
        let now = pressure.ended_at + 30_000;
        pressure.begin(now, jobs, &expected);
        pressure.end(now + 4_000);
        let division = pressure.begin(pressure.ended_at + 2_700, jobs, &expected);
        assert!(matches!(division, Division::Shared { before: b } if b < before(340)), "{division:?}");
    }
}

//! What the cryptography of jobs is expected to cost, in ticks of the processor's clock
//! ([`ticks`](testudo_packet::ticks)).
//!
//! ```text
//!   ticks of a job = (bytes of its text + 128) × rate of its suite
//! ```
//!
//! The 128 bytes stand for what every job has to be done: keys, first and last blocks, padding. The rate is
//! learned from what was measured: the worker's own from its share of each burst, that of threads from what
//! they report of each chunk. They differ, since a thread fetches its packets from another core's cache. Two
//! readings of the clock for each chunk suffice. A measurement changes a rate by an eighth of the difference,
//! and counts as the double or the half at most: one in which the thread lost its processor does not matter.

use crate::engines::Engines;
use testudo_crypto::{Job, KeyId, Suite};

/// What a job costs beside its text, as bytes of text.
const JOB_BYTES: u64 = 128;
/// A rate is in ticks for so many bytes.
const RATE_BYTES: u64 = 1024;
/// Before anything was measured: a tick for each byte.
const FIRST_RATE: u64 = RATE_BYTES;
/// Between a 32nd of a tick for each byte and 16,384 ticks.
const RATES: std::ops::RangeInclusive<u64> = 32..=1 << 24;
/// What a job under an unknown key counts as: it will be a fault.
const UNKNOWN_TICKS: u64 = 1024;
/// No expectation is above this, so that sums and products stay far from their limits.
pub(crate) const MOST_TICKS: u64 = 1 << 28;
/// The most jobs that an engine with lanes may want in a chunk.
const LANES_MOST: usize = 8;

/// What a worker expects of its own engines and of those in threads, which are of the same kinds.
pub(crate) struct Costs {
    /// By suite, in the order of [`Suite::every`].
    suites: Vec<Learned>,
}

/// Of one suite.
#[derive(Debug, Clone, Copy)]
struct Learned {
    own: u64,
    threads: u64,
    /// The fewest jobs that are worth a chunk: engines with lanes do several for little more than one.
    least_jobs: usize,
}

impl Learned {
    fn rate(&self, by: By) -> u64 {
        match by {
            By::Worker => self.own,
            By::Thread => self.threads,
        }
    }
}

/// What jobs were expected to cost.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Bill {
    /// The [rank] of the first one's suite.
    rank: Option<usize>,
    pub(crate) ticks: u64,
    /// That suite's rate then.
    rate: u64,
}

/// Who does a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    Worker,
    Thread,
}

/// What jobs are expected to cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Expected {
    /// If the worker does them.
    pub(crate) own: u64,
    /// If a thread does.
    pub(crate) threads: u64,
    /// Bytes of their text.
    pub(crate) bytes: u64,
}

/// The place of a suite in [`Suite::every`].
pub(crate) fn rank(suite: Suite) -> usize {
    Suite::every().position(|other| other == suite).unwrap_or(usize::MAX)
}

/// Reads jobs one after the other.
pub(crate) struct Pricing<'a> {
    costs: &'a Costs,
    engines: &'a Engines,
    last: Option<(KeyId, Option<Learned>)>,
}

impl Pricing<'_> {
    /// What this job adds.
    #[inline]
    pub(crate) fn add(&mut self, sum: &mut Expected, job: &Job) {
        let learned = match self.last {
            // Consecutive jobs tend to have one key.
            Some((key, learned)) if key == job.key => learned,
            _ => {
                let learned = self.engines.rank_of(job.key).and_then(|rank| self.costs.suites.get(rank));
                self.last = Some((job.key, learned.copied()));
                learned.copied()
            }
        };
        let text = u64::from(job.text_bytes);
        let ticks = |rate: u64| ((text + JOB_BYTES) * rate / RATE_BYTES).min(MOST_TICKS);
        let (own, threads) = learned
            .map_or((UNKNOWN_TICKS, UNKNOWN_TICKS), |learned| (ticks(learned.own), ticks(learned.threads)));
        sum.own = (sum.own + own).min(MOST_TICKS);
        sum.threads = (sum.threads + threads).min(MOST_TICKS);
        sum.bytes += text;
    }

    /// All of these jobs.
    pub(crate) fn of(mut self, jobs: &[Job]) -> Expected {
        let mut sum = Expected::default();
        jobs.iter().for_each(|job| self.add(&mut sum, job));
        sum
    }
}

impl Costs {
    /// Of engines like these, of which nothing is known yet.
    pub(crate) fn new(engines: &Engines) -> Self {
        let learned = |suite| {
            let least_jobs = (engines.profile(suite).depth_jobs / 2).clamp(1, LANES_MOST);
            Learned { own: FIRST_RATE, threads: FIRST_RATE, least_jobs }
        };
        Self { suites: Suite::every().map(learned).collect() }
    }

    /// Prices jobs whose keys these engines have.
    pub(crate) fn pricing<'a>(&'a self, engines: &'a Engines) -> Pricing<'a> {
        Pricing { costs: self, engines, last: None }
    }

    /// The fewest jobs of a suite that are worth a chunk.
    pub(crate) fn least_jobs(&self, rank: Option<usize>) -> usize {
        rank.and_then(|rank| self.suites.get(rank)).map_or(1, |learned| learned.least_jobs)
    }

    /// The bill of jobs that are expected to cost so much, by the one that does them.
    pub(crate) fn bill(&self, rank: Option<usize>, by: By, ticks: u64) -> Bill {
        let rate = rank.and_then(|rank| self.suites.get(rank)).map_or(0, |learned| learned.rate(by));
        Bill { rank, ticks, rate }
    }

    /// Learns what jobs have cost. Where they have several suites it is the first one's rate that follows:
    /// each is the first at times.
    pub(crate) fn learn(&mut self, bill: Bill, by: By, measured: u64) {
        let Some(learned) = bill.rank.and_then(|rank| self.suites.get_mut(rank)) else { return };
        if bill.ticks == 0 {
            return;
        }
        let rate = match by {
            By::Worker => &mut learned.own,
            By::Thread => &mut learned.threads,
        };
        // From the rate of then: that of now may have followed chunks that were under way at the same time.
        // Lossless: at most 2^24 × 2^31.
        let found = bill.rate * measured.min(8 * MOST_TICKS) / bill.ticks;
        let target = found.clamp(*rate / 2, *rate * 2);
        let next =
            if target > *rate { *rate + (target - *rate).div_ceil(8) } else { *rate - (*rate - target) / 8 };
        *rate = next.clamp(*RATES.start(), *RATES.end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use testudo_crypto::{Direction, KeyMaterial, PortableEngine};
    use testudo_packet::Buffer;

    fn engines() -> (Engines, KeyId) {
        let mut engines = Engines::new(vec![Box::new(PortableEngine::new())]).unwrap();
        let suite = Suite::AES128GCM16;
        let material = KeyMaterial::new(suite, vec![7; suite.keying_material_bytes()].into()).unwrap();
        let key = crate::engines::NewKey::Material(Box::new(material), Direction::Seal);
        let key = engines.install(key).unwrap();
        (engines, key)
    }

    fn job(key: KeyId, text_bytes: u32) -> Job {
        Job { key, text_bytes, ..Job::new(Buffer::default(), Direction::Seal, 0) }
    }

    #[test]
    fn a_job_costs_its_bytes_and_some_more_and_one_without_a_key_anything() {
        let (engines, key) = engines();
        let costs = Costs::new(&engines);
        let of = |jobs: &[Job]| costs.pricing(&engines).of(jobs);
        let two = of(&[job(key, 64), job(key, 1420)]);
        assert_eq!(two, Expected { own: 192 + 1548, threads: 192 + 1548, bytes: 1484 });
        let mixed = of(&[job(KeyId::NONE, 9_000), job(key, 64), job(KeyId::NONE, 0)]);
        assert_eq!(mixed.own, 192 + 2 * UNKNOWN_TICKS);
        let longest: Vec<Job> = (0..200).map(|_| job(key, u32::MAX)).collect();
        assert_eq!(of(&longest).own, MOST_TICKS, "and nothing overflows");
    }

    #[test]
    fn rates_follow_what_was_measured_for_each_suite_and_who_does_it() {
        let (engines, _) = engines();
        let mut costs = Costs::new(&engines);
        let at = rank(Suite::every().nth(3).unwrap());
        let slow = Some(at);
        for _ in 0..100 {
            // 250 ticks a byte, as 3DES: 1,000 bytes.
            let ticks = costs.suites[at].own * 1000 / RATE_BYTES;
            costs.learn(costs.bill(slow, By::Worker, ticks), By::Worker, 250_000);
        }
        let learned = costs.suites[at];
        assert!((252_000..=258_000).contains(&learned.own), "{}", learned.own);
        assert_eq!(learned.threads, FIRST_RATE, "that of threads is theirs");
        assert!(costs.suites.iter().filter(|one| one.own != FIRST_RATE).count() == 1);
        // One measurement of something else: it lost its processor for long.
        let bill = costs.bill(slow, By::Worker, 250_000);
        costs.learn(bill, By::Worker, u64::MAX);
        assert!(costs.suites[at].own <= learned.own * 9 / 8 + 1);
        // Nothing is learned of nothing, and a rate has limits.
        costs.learn(costs.bill(None, By::Thread, 5), By::Thread, 5);
        costs.learn(costs.bill(slow, By::Thread, 0), By::Thread, 5);
        (0..1000).for_each(|_| costs.learn(costs.bill(slow, By::Thread, 1000), By::Thread, 0));
        assert_eq!(costs.suites[at].threads, *RATES.start());
        (0..1000).for_each(|_| costs.learn(costs.bill(slow, By::Thread, 1), By::Thread, u64::MAX));
        assert_eq!(costs.suites[at].threads, *RATES.end());
    }

    /// What is measured of chunks that were under way together was expected at the same, older rate.
    #[test]
    fn many_chunks_under_way_do_not_make_a_rate_overshoot() {
        let (engines, _) = engines();
        let mut costs = Costs::new(&engines);
        let rank = Some(0);
        let mut under_way = VecDeque::new();
        for _ in 0..2_000 {
            let ticks = costs.suites[0].threads * 1000 / RATE_BYTES;
            under_way.push_back(costs.bill(rank, By::Thread, ticks));
            if under_way.len() > 60 {
                let bill = under_way.pop_front().unwrap();
                costs.learn(bill, By::Thread, 20_000);
            }
            assert!(
                costs.suites[0].threads <= 20_000 * RATE_BYTES / 1000 + 100,
                "{}",
                costs.suites[0].threads
            );
        }
        assert!(costs.suites[0].threads >= 20_000 * RATE_BYTES / 1000 * 99 / 100);
    }
}

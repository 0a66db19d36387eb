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
//! readings of the clock for each chunk suffice. The first measurement is the rate, the second one half of
//! it, and so on; from the eighth on each changes a rate by an eighth of the difference. All but the first
//! count as the double or the half at most: one in which the thread lost its processor does not matter. Of
//! jobs of several suites it is not known which took how long: they change the first one's rate by a 64th. A
//! few short jobs of the worker's take what its call takes: they are measured only if there are no others,
//! and change a rate only if they took less than was expected.

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
/// No text counts as longer: no packet has one.
const LONGEST_TEXT: u32 = 1 << 16;
/// What a job under an unknown key counts as: it will be a fault.
const UNKNOWN_TICKS: u64 = 1024;
/// No expectation is above this, so that sums and products stay far from their limits.
pub(crate) const MOST_TICKS: u64 = 1 << 28;
/// After so many measurements a rate is known: one that was interrupted does not matter then.
const KNOWN: u64 = 3;
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
    own: Rate,
    threads: Rate,
    /// The fewest jobs that are worth a chunk: engines with lanes do several for little more than one.
    least_jobs: usize,
}

/// Ticks for [`RATE_BYTES`], and how often they were measured, up to [`PARTS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rate {
    ticks: u64,
    measured: u64,
}

/// A measurement changes a rate by one part in so many, once there were as many.
const PARTS: u64 = 8;
/// The same of jobs of several suites.
const PARTS_IF_MIXED: u64 = 64;

impl Rate {
    const FIRST: Self = Self { ticks: FIRST_RATE, measured: 0 };

    fn learn(&mut self, found: u64, is_mixed: bool) {
        let found = found.clamp(*RATES.start(), *RATES.end());
        if self.measured == 0 && !is_mixed {
            *self = Self { ticks: found, measured: 1 };
            return;
        }
        let parts = if is_mixed { PARTS_IF_MIXED } else { self.measured + 1 };
        let rate = self.ticks;
        let target = found.clamp(rate / 2, rate * 2);
        let next = if target > rate {
            rate + (target - rate).div_ceil(parts)
        } else {
            rate - (rate - target) / parts
        };
        self.ticks = next.clamp(*RATES.start(), *RATES.end());
        self.measured = (self.measured + u64::from(!is_mixed)).min(PARTS - 1);
    }
}

impl Learned {
    fn rate(&self, by: By) -> Rate {
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
    /// There are others of another suite.
    is_mixed: bool,
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
    /// The [rank] of the first one's suite, and whether others have another.
    pub(crate) rank: Option<usize>,
    pub(crate) is_mixed: bool,
}

/// The place of a suite in [`Suite::every`].
pub(crate) fn rank(suite: Suite) -> usize {
    Suite::every().position(|other| other == suite).unwrap_or(usize::MAX)
}

/// Bytes of a job's text that count.
fn text(job: &Job) -> u64 {
    job.text_bytes.min(LONGEST_TEXT).into()
}

/// Reads jobs one after the other.
pub(crate) struct Pricing<'a> {
    costs: &'a Costs,
    engines: &'a Engines,
    last: Option<(KeyId, Option<(usize, Learned)>)>,
}

impl Pricing<'_> {
    /// What this job adds.
    #[inline]
    pub(crate) fn add(&mut self, sum: &mut Expected, job: &Job) {
        self.add_run(sum, job.key, 1, text(job));
    }

    /// What so many jobs under one key, with so many bytes of text together, add.
    fn add_run(&mut self, sum: &mut Expected, key: KeyId, jobs: u64, text: u64) {
        let learned = match self.last {
            // Consecutive jobs tend to have one key.
            Some((last, learned)) if last == key => learned,
            _ => {
                let rank = self.engines.rank_of(key);
                let learned = rank.and_then(|rank| Some((rank, *self.costs.suites.get(rank)?)));
                self.last = Some((key, learned));
                learned
            }
        };
        // One without a key costs nothing and says nothing.
        if let Some((rank, _)) = learned {
            sum.is_mixed |= *sum.rank.get_or_insert(rank) != rank;
        }
        // Lossless: there are no 2^20 jobs, whose texts and rates are below 2^17 and 2^25.
        let ticks = |rate: u64| ((text + JOB_BYTES * jobs) * rate / RATE_BYTES).min(MOST_TICKS);
        let unknown = (UNKNOWN_TICKS * jobs).min(MOST_TICKS);
        let (own, threads) = learned.map_or((unknown, unknown), |(_, learned)| {
            (ticks(learned.own.ticks), ticks(learned.threads.ticks))
        });
        sum.own = (sum.own + own).min(MOST_TICKS);
        sum.threads = (sum.threads + threads).min(MOST_TICKS);
        sum.bytes += text;
    }

    /// All of these jobs, a run under one key at a time.
    pub(crate) fn of(mut self, jobs: &[Job]) -> Expected {
        let mut sum = Expected::default();
        for run in jobs.chunk_by(|one, next| one.key == next.key) {
            let bytes = run.iter().map(text).sum();
            if let Some(first) = run.first() {
                self.add_run(&mut sum, first.key, run.len() as u64, bytes);
            }
        }
        sum
    }
}

impl Costs {
    /// Of engines like these, of which nothing is known yet.
    pub(crate) fn new(engines: &Engines) -> Self {
        let learned = |suite| {
            let least_jobs = (engines.profile(suite).depth_jobs / 2).clamp(1, LANES_MOST);
            Learned { own: Rate::FIRST, threads: Rate::FIRST, least_jobs }
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

    /// Whether what a suite costs the worker was measured often enough to rely on it for a while.
    pub(crate) fn is_known(&self, rank: Option<usize>) -> bool {
        rank.and_then(|rank| self.suites.get(rank)).is_some_and(|learned| learned.own.measured >= KNOWN)
    }

    /// The bill of jobs that are expected to cost so much, by the one that does them.
    pub(crate) fn bill(&self, expected: &Expected, by: By) -> Bill {
        let &Expected { own, threads, rank, is_mixed, .. } = expected;
        let ticks = if by == By::Worker { own } else { threads };
        let rate = rank.and_then(|rank| self.suites.get(rank)).map_or(0, |learned| learned.rate(by).ticks);
        Bill { rank, ticks, rate, is_mixed }
    }

    /// Learns what jobs have cost.
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
        rate.learn(found, bill.is_mixed);
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
        let rank = Some(rank(Suite::AES128GCM16));
        let expected = Expected { own: 192 + 1548, threads: 192 + 1548, bytes: 1484, rank, is_mixed: false };
        assert_eq!(two, expected);
        let mixed = of(&[job(KeyId::NONE, 9_000), job(key, 64), job(KeyId::NONE, 0)]);
        assert_eq!(mixed.own, 192 + 2 * UNKNOWN_TICKS);
        let longest: Vec<Job> = (0..200).map(|_| job(key, u32::MAX)).collect();
        assert_eq!(of(&longest).bytes, 200 << 16, "no packet is longer");
        let mut costs = costs;
        costs.suites.iter_mut().for_each(|learned| learned.own.ticks = *RATES.end());
        assert_eq!(costs.pricing(&engines).of(&longest).own, MOST_TICKS, "and nothing overflows");
    }

    /// Jobs of one suite that are expected to cost so much.
    fn of(rank: Option<usize>, ticks: u64) -> Expected {
        Expected { own: ticks, threads: ticks, rank, ..Expected::default() }
    }

    #[test]
    fn rates_follow_what_was_measured_for_each_suite_and_who_does_it() {
        let (engines, _) = engines();
        let mut costs = Costs::new(&engines);
        let at = rank(Suite::every().nth(3).unwrap());
        let slow = Some(at);
        for measurements in 1..100 {
            // 250 ticks a byte, as 3DES: 1,000 bytes.
            let ticks = costs.suites[at].own.ticks * 1000 / RATE_BYTES;
            costs.learn(costs.bill(&of(slow, ticks), By::Worker), By::Worker, 250_000);
            let learned = costs.suites[at].own.ticks;
            assert!((252_000..=258_000).contains(&learned), "{learned} after {measurements}");
        }
        let learned = costs.suites[at];
        assert_eq!(learned.threads, Rate::FIRST, "that of threads is theirs");
        assert!(costs.suites.iter().filter(|one| one.own != Rate::FIRST).count() == 1);
        // One measurement of something else: it lost its processor for long.
        let bill = costs.bill(&of(slow, 250_000), By::Worker);
        costs.learn(bill, By::Worker, u64::MAX);
        assert!(costs.suites[at].own.ticks <= learned.own.ticks * 9 / 8 + 1);
        // Nothing is learned of nothing, and a rate has limits.
        costs.learn(costs.bill(&of(None, 5), By::Thread), By::Thread, 5);
        costs.learn(costs.bill(&of(slow, 0), By::Thread), By::Thread, 5);
        assert_eq!(costs.suites[at].threads, Rate::FIRST);
        (0..1000).for_each(|_| costs.learn(costs.bill(&of(slow, 1000), By::Thread), By::Thread, 0));
        assert_eq!(costs.suites[at].threads.ticks, *RATES.start());
        (0..1000).for_each(|_| costs.learn(costs.bill(&of(slow, 1), By::Thread), By::Thread, u64::MAX));
        assert_eq!(costs.suites[at].threads.ticks, *RATES.end());
    }

    /// One multiplication for a burst under one key: each of many would lose a part of a tick.
    #[test]
    fn a_burst_of_one_key_is_reckoned_once() {
        let (engines, key) = engines();
        let mut costs = Costs::new(&engines);
        costs.suites[rank(Suite::AES128GCM16)].own.ticks = RATE_BYTES - 1;
        let burst: Vec<Job> = (0..64).map(|_| job(key, 3)).collect();
        let one = costs.pricing(&engines).of(&burst[..1]).own;
        let all = costs.pricing(&engines).of(&burst).own;
        assert_eq!((one, all), (130, 64 * 131 * (RATE_BYTES - 1) / RATE_BYTES));
        assert!(all > 64 * one);
        assert!(!costs.is_known(Some(0)) && !costs.is_known(None));
    }

    /// If the first measurement was interrupted, that is soon forgotten.
    #[test]
    fn a_first_measurement_that_was_interrupted_is_soon_forgotten() {
        let mut rate = Rate::FIRST;
        rate.learn(1_000_000, false);
        assert_eq!(rate.ticks, 1_000_000);
        let soon = (1..).find(|_| {
            rate.learn(1_000, false);
            rate.ticks < 1_100
        });
        assert!(soon.unwrap() < 150, "{soon:?}");
    }

    /// Jobs of two suites, arranged, so that the cheap one is always the first.
    #[test]
    fn a_suite_is_charged_little_for_what_another_one_costs() {
        let (engines, key) = engines();
        let mut costs = Costs::new(&engines);
        let other = Suite::AES128_SHA1;
        let material = KeyMaterial::new(other, vec![7; other.keying_material_bytes()].into()).unwrap();
        let mut engines = engines;
        let slow =
            engines.install(crate::engines::NewKey::Material(Box::new(material), Direction::Seal)).unwrap();
        for _ in 0..50 {
            for (jobs, measured) in
                [(vec![job(key, 1000)], 1_000), (vec![job(key, 1000), job(slow, 1000)], 90_000)]
            {
                let expected = costs.pricing(&engines).of(&jobs);
                assert_eq!(expected.is_mixed, jobs.len() == 2);
                costs.learn(costs.bill(&expected, By::Worker), By::Worker, measured);
            }
        }
        let own = costs.suites[rank(Suite::AES128GCM16)].own.ticks;
        assert!((850..1_100).contains(&own), "{own} for 908 of its own");
    }

    /// What is measured of chunks that were under way together was expected at the same, older rate.
    #[test]
    fn many_chunks_under_way_do_not_make_a_rate_overshoot() {
        let (engines, _) = engines();
        let mut costs = Costs::new(&engines);
        let mut under_way = VecDeque::new();
        for _ in 0..2_000 {
            let ticks = costs.suites[0].threads.ticks * 1000 / RATE_BYTES;
            under_way.push_back(costs.bill(&of(Some(0), ticks), By::Thread));
            if under_way.len() > 60 {
                let bill = under_way.pop_front().unwrap();
                costs.learn(bill, By::Thread, 20_000);
            }
            let rate = costs.suites[0].threads.ticks;
            assert!(rate <= 20_000 * RATE_BYTES / 1000 + 100, "{rate}");
        }
        assert!(costs.suites[0].threads.ticks >= 20_000 * RATE_BYTES / 1000 * 99 / 100);
    }
}

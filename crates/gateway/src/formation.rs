//! Formation: jobs of one suite and similar length side by side, so that engines with many lanes march in
//! step (paper 002, packet scheduling; DPDK and ipsec-mb know it as multi-buffer).
//!
//! ```text
//!   as they came    a9 b2 a1 c5 b8 a9        suites a, b, c; lengths 1 to 9
//!   by suite        a9 a1 a9 b2 b8 c5
//!   and by length   a9 a9 a1 b8 b2 c5        longest first: what is done last is short, and leaves few lanes empty
//! ```
//!
//! A formation lasts for one submission. Where an engine prefers bursts, the worker gathers what has already
//! arrived, up to a few batches, and waits for nothing. Jobs are arranged before the engine gets them and put
//! back in order when it has ended them, so that no SA's packets are reordered.

use testudo_crypto::{Job, Suite};

/// How jobs are arranged for engines that prefer bursts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Formation {
    /// Not at all: in the order in which they came, one batch at a time.
    None,
    /// By suite.
    Suite,
    /// By suite, and within it by length, longest first.
    #[default]
    SuiteAndLength,
}

/// Classes of length: 128 bytes each, and one for all that is longer.
const CLASSES: usize = 16;
const CLASS_SHIFT: u32 = 7;
/// Suites that are told apart. The last rank is for all others, and for jobs whose suite is unknown.
const SUITES: usize = 16;
const RANKS: usize = SUITES * CLASSES;
const _: () = assert!(RANKS <= 1 << u8::BITS && Suite::ALL.len() <= u8::MAX as usize);

/// Arranges jobs, and puts them back.
#[derive(Debug, Default)]
pub(crate) struct Arranger {
    pub(crate) formation: Formation,
    /// The rank of each job as it came.
    ranks: Vec<u8>,
    /// Where the job at each index comes from.
    from: Vec<u32>,
    /// The inverse, and scratch space.
    to: Vec<u32>,
}

/// The suites of a dispatcher's SAs, ranked as they came: a gateway uses few of those that there are.
#[derive(Debug, Default)]
pub(crate) struct SuiteRanks(Vec<Suite>);

impl SuiteRanks {
    /// The rank of a suite, from now on.
    pub(crate) fn rank(&mut self, suite: Suite) -> u8 {
        let known = self.0.iter().position(|s| *s == suite);
        let rank = known.unwrap_or_else(|| {
            self.0.push(suite);
            self.0.len() - 1
        });
        // There are at most 255 suites.
        u8::try_from(rank).unwrap_or(u8::MAX)
    }

    /// All of them, by rank.
    pub(crate) fn all(&self) -> &[Suite] {
        &self.0
    }

    /// The suite of a rank.
    pub(crate) fn suite(&self, rank: u8) -> Option<Suite> {
        self.0.get(usize::from(rank)).copied()
    }
}

impl Arranger {
    /// What keeps the order of those with the same rank, with memory for so many.
    pub(crate) fn by_rank(jobs: usize) -> Self {
        let [from, to] = [(); 2].map(|()| Vec::with_capacity(jobs));
        Self { formation: Formation::Suite, ranks: Vec::with_capacity(jobs), from, to }
    }

    /// Brings jobs into formation; `suite_rank` says each job's suite.
    pub(crate) fn arrange(&mut self, jobs: &mut [Job], mut suite_rank: impl FnMut(&Job) -> Option<u8>) {
        let mut counts = [0_u32; RANKS];
        self.ranks.clear();
        for job in jobs.iter() {
            let suite = suite_rank(job).map_or(SUITES - 1, usize::from).min(SUITES - 1);
            let rank = suite * CLASSES + self.class(job);
            counts[rank] += 1;
            self.ranks.push(u8::try_from(rank).unwrap_or(u8::MAX));
        }
        let mut start = 0;
        for count in &mut counts {
            start += std::mem::replace(count, start);
        }
        self.to.clear();
        for &rank in &self.ranks {
            let place = &mut counts[usize::from(rank)];
            self.to.push(*place);
            *place += 1;
        }
        self.from.clear();
        self.from.resize(jobs.len(), 0);
        for (place, &to) in (0..).zip(&self.to) {
            self.from[to as usize] = place;
        }
        permute(jobs, &mut self.to);
    }

    /// Puts the jobs that were arranged last back to where they came from.
    pub(crate) fn restore(&mut self, jobs: &mut [Job]) {
        permute(jobs, &mut self.from);
    }

    /// 0 for the longest.
    fn class(&self, job: &Job) -> usize {
        match self.formation {
            Formation::None | Formation::Suite => 0,
            Formation::SuiteAndLength => {
                CLASSES - 1 - ((job.text_bytes >> CLASS_SHIFT) as usize).min(CLASSES - 1)
            }
        }
    }
}

/// Moves the job at each index to the one that `to`, a permutation, says; `to` is used up.
fn permute(jobs: &mut [Job], to: &mut [u32]) {
    for at in 0..jobs.len().min(to.len()) {
        while let target = to[at] as usize
            && target != at
        {
            jobs.swap(at, target);
            to.swap(at, target);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testudo_crypto::{Direction, KeyId};
    use testudo_packet::Buffer;

    fn jobs(shapes: &[(u8, u32)]) -> Vec<Job> {
        let job = |(ticket, &(suite, text_bytes)): (u32, &(u8, u32))| Job {
            ticket,
            text_bytes,
            key: KeyId(suite.into()),
            ..Job::new(Buffer::default(), Direction::Seal, 0)
        };
        (0..).zip(shapes).map(job).collect()
    }

    fn shapes(jobs: &[Job]) -> Vec<(u32, u32)> {
        jobs.iter().map(|job| (job.key.0, job.text_bytes)).collect()
    }

    fn rank(job: &Job) -> Option<u8> {
        u8::try_from(job.key.0).ok().filter(|&suite| suite < 6)
    }

    #[test]
    fn by_suite_and_length_longest_first_and_back() {
        let came = [(0, 900), (1, 200), (0, 100), (2, 500), (1, 800), (0, 901), (9, 64), (0, 0), (2, 65_000)];
        let mut all = jobs(&came);
        let mut arranger = Arranger::default();
        arranger.arrange(&mut all, rank);
        let expected =
            [(0, 900), (0, 901), (0, 100), (0, 0), (1, 800), (1, 200), (2, 65_000), (2, 500), (9, 64)];
        assert_eq!(shapes(&all), expected);
        arranger.restore(&mut all);
        assert!(all.iter().map(|job| job.ticket).eq(0..9));
    }

    #[test]
    fn by_suite_alone_keeps_the_order_within() {
        let mut all = jobs(&[(1, 10), (0, 1000), (1, 2000), (0, 20)]);
        let mut arranger = Arranger { formation: Formation::Suite, ..Arranger::default() };
        arranger.arrange(&mut all, rank);
        assert_eq!(shapes(&all), [(0, 1000), (0, 20), (1, 10), (1, 2000)]);
        arranger.restore(&mut all);
        assert!(all.iter().map(|job| job.ticket).eq(0..4));
    }

    #[test]
    fn every_mixture_is_restored_to_its_order() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut arranger = Arranger::default();
        for count in 0..300 {
            let shapes: Vec<_> = (0..count).map(|_| (random.u8(..7), random.u32(..2500))).collect();
            let mut all = jobs(&shapes);
            arranger.arrange(&mut all, rank);
            let ranks: Vec<_> =
                all.iter().map(|job| (job.key.0, 15 - (job.text_bytes >> 7).min(15))).collect();
            assert!(ranks.is_sorted(), "{ranks:?}");
            arranger.restore(&mut all);
            assert!(all.iter().map(|job| job.ticket).eq(0..count));
        }
    }
}

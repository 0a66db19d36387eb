//! Which engine does how many jobs of what, and why, readable by other threads.

use super::costs::{Label, SUITES};
use super::live::{CLASSES, LENGTHS, Offers, Reason, UNKNOWN};
use crate::placement::MAX_ENGINES;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use testudo_crypto::Suite;

const REASONS: usize = Reason::ALL.len();
const ROWS: usize = SUITES * CLASSES * MAX_ENGINES;

/// Counted by the worker, of all its engines.
#[derive(Debug)]
pub(crate) struct SharedShares {
    engines: Vec<&'static str>,
    bound: Duration,
    /// By rank; the last is the first of those that share it.
    suites: Mutex<Vec<Suite>>,
    jobs: Box<[[AtomicU64; REASONS]]>,
    passed_on: Box<[AtomicU64]>,
    withdrawn: [AtomicBool; MAX_ENGINES],
    /// What a job costs the worker, and how long it is expected to be away; 0 if that is not known.
    times_ps: Box<[[AtomicU64; 2]]>,
    /// The engine of each suite and class, plus 1.
    chosen: Box<[AtomicUsize]>,
    apart_ps: AtomicU64,
}

/// What an engine did of the jobs of one suite and class of length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// The suite. The sixteenth of a worker stands for all after it, too.
    pub suite: Suite,
    /// The class's place among all.
    pub class: usize,
    /// Name of the engine.
    pub engine: &'static str,
    /// Jobs that it was given, by [`Reason`] in the order of [`Reason::ALL`]. One that went on to another
    /// engine is counted at both.
    pub jobs: [u64; REASONS],
    /// How many of these went on to another engine: it had no room for them, failed at them, or was late.
    pub passed_on: u64,
    /// What a job costs the worker; `None` if it is not known.
    pub cost: Option<Duration>,
    /// How long a job is expected to be away; `None` if it is not known.
    pub expected: Option<Duration>,
    /// Whether jobs of this suite and class go to it, unless it has no room or would be late.
    pub is_chosen: bool,
    /// Whether it gets jobs at all.
    pub in_service: bool,
}

impl Share {
    /// The longest text of its class, in bytes; `None` if all that is longer.
    #[must_use]
    pub fn longest(&self) -> Option<u32> {
        LENGTHS.get(self.class).copied()
    }

    /// All jobs.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.jobs.iter().sum()
    }
}

/// What live placement has done.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Shares {
    /// How long a packet may be away.
    pub bound: Duration,
    /// Time in which workers did not run or did not look, which is in no expectation.
    pub apart: Duration,
    /// Suite by suite, class by class, engine by engine; what nobody knows anything of is left out.
    pub rows: Vec<Share>,
}

impl Shares {
    /// The rows of a suite; those of the one that stands for it where there are more suites than are told
    /// apart.
    pub fn of(&self, suite: Suite) -> impl Iterator<Item = &Share> {
        let mut told = Vec::new();
        for row in &self.rows {
            if !told.contains(&row.suite) {
                told.push(row.suite);
            }
        }
        let stands = told.last().copied().filter(|_| told.len() >= SUITES && !told.contains(&suite));
        let suite = stands.unwrap_or(suite);
        self.rows.iter().filter(move |row| row.suite == suite)
    }

    /// Both together: jobs are added, and what is expected is the longer of the two.
    #[must_use]
    pub fn plus(mut self, other: Self) -> Self {
        self.bound = self.bound.max(other.bound);
        self.apart += other.apart;
        for row in other.rows {
            let is_same = |mine: &&mut Share| {
                (mine.suite, mine.class, mine.engine) == (row.suite, row.class, row.engine)
            };
            match self.rows.iter_mut().find(is_same) {
                None => self.rows.push(row),
                Some(mine) => {
                    mine.jobs.iter_mut().zip(row.jobs).for_each(|(sum, more)| *sum += more);
                    mine.passed_on += row.passed_on;
                    mine.cost = mine.cost.max(row.cost);
                    mine.expected = mine.expected.max(row.expected);
                    mine.is_chosen |= row.is_chosen;
                    mine.in_service |= row.in_service;
                }
            }
        }
        self
    }
}

impl SharedShares {
    pub(crate) fn new(engines: Vec<&'static str>, bound: Duration) -> Self {
        Self {
            engines,
            bound,
            suites: Mutex::default(),
            jobs: (0..ROWS).map(|_| Default::default()).collect(),
            passed_on: (0..ROWS).map(|_| AtomicU64::new(0)).collect(),
            withdrawn: Default::default(),
            times_ps: (0..ROWS).map(|_| Default::default()).collect(),
            chosen: (0..SUITES * CLASSES).map(|_| AtomicUsize::new(0)).collect(),
            apart_ps: AtomicU64::new(0),
        }
    }

    /// The suites of the worker's SAs, by rank.
    pub(crate) fn name_suites(&self, suites: &[Suite]) {
        let mut named = self.suites.lock().unwrap_or_else(PoisonError::into_inner);
        if named.len() < suites.len().min(SUITES) {
            *named = suites.iter().take(SUITES).copied().collect();
        }
    }

    fn row(of: Label, engine: usize) -> usize {
        (of.rank * CLASSES + of.class) * MAX_ENGINES + engine
    }

    pub(crate) fn count(&self, of: Label, engine: usize, reason: Reason) {
        self.count_many(of, engine, reason, 1);
    }

    pub(crate) fn count_many(&self, of: Label, engine: usize, reason: Reason, jobs: u64) {
        let at = Reason::ALL.iter().position(|other| *other == reason);
        if let Some(count) = at.and_then(|at| self.jobs.get(Self::row(of, engine))?.get(at)) {
            count.store(count.load(Ordering::Relaxed).wrapping_add(jobs), Ordering::Relaxed);
        }
    }

    /// A job that an engine was given goes on to another.
    pub(crate) fn pass_on(&self, of: Label, engine: usize) {
        self.passed_on.get(Self::row(of, engine)).into_iter().for_each(count_one);
    }

    /// An engine is out of service: nothing is expected of it any more.
    pub(crate) fn withdraw(&self, engine: usize) {
        if let Some(withdrawn) = self.withdrawn.get(engine) {
            withdrawn.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn count_apart(&self, time_ps: u64) {
        let all = self.apart_ps.load(Ordering::Relaxed).saturating_add(time_ps);
        self.apart_ps.store(all, Ordering::Relaxed);
    }

    pub(crate) fn publish(&self, of: Label, offers: &Offers, chosen: Option<usize>) {
        for (engine, offer) in offers.iter().enumerate().filter(|(_, offer)| offer.can) {
            if let Some(times) = self.times_ps.get(Self::row(of, engine)) {
                for (shared, time_ps) in times.iter().zip([offer.cost_ps, offer.expected_ps]) {
                    let known = if offer.cost_ps >= UNKNOWN { 0 } else { time_ps.max(1) };
                    shared.store(known, Ordering::Relaxed);
                }
            }
        }
        if let Some(shared) = self.chosen.get(of.rank * CLASSES + of.class) {
            shared.store(chosen.map_or(0, |engine| engine + 1), Ordering::Relaxed);
        }
    }

    pub(crate) fn snapshot(&self) -> Shares {
        let suites = self.suites.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut rows = Vec::new();
        for (rank, suite) in suites.into_iter().enumerate() {
            for class in 0..CLASSES {
                let of = |(engine, name)| self.share(Label { rank, class }, suite, engine, name);
                rows.extend(self.engines.iter().copied().enumerate().filter_map(of));
            }
        }
        Shares { bound: self.bound, apart: time(self.apart_ps.load(Ordering::Relaxed)), rows }
    }

    fn share(&self, of: Label, suite: Suite, engine: usize, name: &'static str) -> Option<Share> {
        let at = Self::row(of, engine);
        let jobs = self.jobs.get(at)?.each_ref().map(|count| count.load(Ordering::Relaxed));
        let [cost, expected] = self.times_ps.get(at)?.each_ref().map(|ps| ps.load(Ordering::Relaxed));
        let chosen = self.chosen.get(of.rank * CLASSES + of.class)?.load(Ordering::Relaxed);
        let in_service = !self.withdrawn.get(engine)?.load(Ordering::Relaxed);
        let known = |ps: u64| (ps > 0 && in_service).then(|| time(ps));
        let share = Share {
            suite,
            class: of.class,
            engine: name,
            jobs,
            passed_on: self.passed_on.get(at)?.load(Ordering::Relaxed),
            cost: known(cost),
            expected: known(expected),
            is_chosen: chosen == engine + 1 && in_service,
            in_service,
        };
        (share.total() > 0 || share.cost.is_some()).then_some(share)
    }
}

/// Nobody else writes.
fn count_one(count: &AtomicU64) {
    count.store(count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}

/// Rounded up: what is known is not nothing.
fn time(ps: u64) -> Duration {
    Duration::from_nanos(ps.div_ceil(1000))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::live::Offer;

    const OF: Label = Label { rank: 0, class: 2 };

    fn shares() -> SharedShares {
        let shares = SharedShares::new(vec!["gpu", "vaes"], Duration::from_millis(1));
        shares.name_suites(&[Suite::AES128GCM16]);
        let (cost_ps, expected_ps) = (1_000_000, 2_000_000);
        let offer =
            Offer { can: true, fails: false, has_room: true, cost_ps, expected_ps, alone_ps: expected_ps };
        let mut offers = Offers::default();
        offers[..2].fill(offer);
        shares.publish(OF, &offers, Some(0));
        shares
    }

    #[test]
    fn an_engine_out_of_service_is_chosen_for_nothing_and_what_it_did_stays() {
        let shares = shares();
        shares.count(OF, 0, Reason::Best);
        let before = shares.snapshot().rows;
        let us = |us| Some(Duration::from_micros(us));
        assert_eq!(before.len(), 2);
        assert!(before[0].is_chosen && before[0].in_service && before[1].in_service);
        assert_eq!((before[0].cost, before[0].expected), (us(1), us(2)));
        shares.withdraw(0);
        let after = shares.snapshot().rows;
        assert!(!after[0].is_chosen && !after[0].in_service && after[1] == before[1]);
        assert_eq!((after[0].total(), after[0].cost, after[0].expected), (1, None, None));
        // Another worker may have it.
        let both =
            Shares { rows: after, ..Shares::default() }.plus(Shares { rows: before, ..Shares::default() });
        assert!(both.rows[0].in_service && both.rows[0].is_chosen);
        shares.withdraw(1);
        assert_eq!(shares.snapshot().rows.len(), 1, "it did nothing, and nothing is expected of it");
    }

    #[test]
    fn suites_that_are_not_told_apart_have_the_row_that_stands_for_them() {
        let row = shares().snapshot().rows.remove(0);
        let suites: Vec<_> = Suite::every().take(SUITES + 1).collect();
        let rows_of = |count| suites.iter().take(count).map(|suite| Share { suite: *suite, ..row.clone() });
        let shares = |count| Shares { rows: rows_of(count).collect(), ..Shares::default() };
        let [all, few] = [SUITES, SUITES - 1].map(shares);
        assert!(suites[..SUITES].iter().all(|suite| all.of(*suite).all(|row| row.suite == *suite)));
        assert!(all.of(suites[SUITES]).eq(all.of(suites[SUITES - 1])));
        assert_eq!(few.of(suites[SUITES]).count(), 0);
    }

    #[test]
    fn what_an_engine_passed_on_is_told_beside_what_it_was_given() {
        let shares = shares();
        (0..5).for_each(|_| shares.count(OF, 0, Reason::Best));
        (0..2).for_each(|_| shares.pass_on(OF, 0));
        (0..2).for_each(|_| shares.count(OF, 1, Reason::Full));
        let rows = shares.snapshot().rows;
        let given = [0, 1].map(|engine| (rows[engine].total(), rows[engine].passed_on));
        assert_eq!(given, [(5, 2), (2, 0)]);
    }
}

//! What engines hold: every job that was taken and has not come back, with its age.
//!
//! An engine that keeps a job for good would stop that job's SA, whose packets leave in order, and keep the
//! worker awake for ever. So ages are limited. Time is divided into periods, and each engine has a count of
//! jobs for each period in which it took any: the only question is whether the oldest count is zero.
//!
//! ```text
//!   period       16   17   ...   31   32   33 = this one
//!   engine 0      0    0   ...    0   12  250
//!   engine 1      0    0   ...    1    0    0     slow: the job is older than a whole period
//!   engine 2      1    0   ...    0    0    0     overdue: sixteen whole periods have passed since
//! ```

use crate::lanes::JobId;
use crate::placement::MAX_ENGINES;
use hashbrown::HashMap;
use std::time::Duration;
use testudo_ipsec::Moment;

/// How long an engine may hold a job; noticed at most a sixteenth later.
///
/// Far above what any engine needs: a GPU that gathers thousands of packets has them for 2.8 to 3.9 ms on
/// average (paper 002, PIPSEA), a NIC or an offload card for some ten microseconds. And an older packet is of
/// no use: TCP has sent it again (RFC 6298 2.4: after a second).
const AGE_LIMIT: Duration = Duration::from_secs(1);

/// Periods that make up the limit. When the pool is nearly exhausted the limit is one period, 62.5 ms.
const PERIODS: usize = 16;
const PERIOD: Duration = Duration::from_micros(62_500);
const _: () = assert!(PERIOD.as_micros() * PERIODS as u128 == AGE_LIMIT.as_micros());

/// Counts for the periods of the limit, the current one, and the one that has just exceeded it.
const COUNTS: usize = PERIODS + 2;

/// Who took a job, and when.
#[derive(Debug, Clone, Copy)]
struct Taken {
    engine: usize,
    /// Index of the period's count.
    period: usize,
}

/// What engines hold. Bounded by the pool, since every job has a buffer.
#[derive(Default)]
pub(crate) struct InFlight {
    jobs: HashMap<JobId, Taken, foldhash::fast::RandomState>,
    counts: [[usize; COUNTS]; MAX_ENGINES],
    /// Index of the current period's count.
    period: usize,
    began: Moment,
    /// Jobs that each engine held when it was taken out of service and has not given back.
    given_up: [usize; MAX_ENGINES],
}

impl InFlight {
    /// Jobs that engines in service hold.
    pub(crate) fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Whether engines hold nothing, not even jobs that were given up.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.is_empty() && self.given_up == [0; MAX_ENGINES]
    }

    /// Notes the time while engines hold nothing.
    #[inline]
    pub(crate) fn rest(&mut self, now: Moment) {
        self.began = now;
    }

    /// Notes the time; `true` when a period has ended. At most one ends with each call: time without polls is
    /// not held against an engine, which had no chance to give anything back.
    pub(crate) fn advance(&mut self, now: Moment) -> bool {
        let has_ended = now.since(self.began) >= PERIOD;
        if has_ended {
            self.began = now;
            self.period = (self.period + 1) % COUNTS;
        }
        has_ended
    }

    /// An engine took a job.
    pub(crate) fn take(&mut self, engine: usize, id: JobId) {
        let taken = Taken { engine, period: self.period };
        if let Some(counts) = self.counts.get_mut(engine) {
            counts[taken.period] += 1;
            self.jobs.insert(id, taken);
        }
    }

    /// An engine gives a job back; `false` if it does not hold it, or no longer.
    pub(crate) fn give_back(&mut self, engine: usize, id: JobId) -> bool {
        let Some(taken) = self.jobs.get(&id).copied().filter(|taken| taken.engine == engine) else {
            return false;
        };
        self.jobs.remove(&id);
        let count = &mut self.counts[engine][taken.period];
        *count = count.saturating_sub(1);
        true
    }

    /// Whether an engine holds a job beyond the limit. To be called whenever a period has ended.
    pub(crate) fn is_overdue(&self, engine: usize) -> bool {
        // The count after the current period's is the oldest one's.
        let oldest = (self.period + 1) % COUNTS;
        self.counts.get(engine).is_some_and(|counts| counts[oldest] > 0)
    }

    /// Whether an engine holds a job that is older than a whole period.
    pub(crate) fn is_slow(&self, engine: usize) -> bool {
        let recent = [self.period, (self.period + COUNTS - 1) % COUNTS];
        let counts = self.counts.get(engine).into_iter().flatten().enumerate();
        counts.filter(|(period, _)| !recent.contains(period)).any(|(_, count)| *count > 0)
    }

    /// Gives up what an engine holds, and returns their ids.
    pub(crate) fn give_up(&mut self, engine: usize) -> Vec<JobId> {
        let ids: Vec<JobId> =
            self.jobs.extract_if(|_, taken| taken.engine == engine).map(|(id, _)| id).collect();
        if let (Some(counts), Some(given_up)) = (self.counts.get_mut(engine), self.given_up.get_mut(engine)) {
            *counts = [0; COUNTS];
            *given_up += ids.len();
        }
        ids
    }

    /// An engine out of service gave back some of what was given up.
    pub(crate) fn came_late(&mut self, engine: usize, jobs: usize) {
        if let Some(given_up) = self.given_up.get_mut(engine) {
            *given_up = given_up.saturating_sub(jobs);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testudo_crypto::Direction::{self, Open, Seal};
    use testudo_ipsec::SaRef;

    fn job(direction: Direction, ticket: u32) -> JobId {
        JobId { direction, sa: SaRef::from_bits(1), ticket }
    }

    fn at(ms: u64) -> Moment {
        Moment(Duration::from_millis(ms))
    }

    /// Advances in steps of a millisecond until `engine` is overdue, and returns when that was.
    fn overdue_at(in_flight: &mut InFlight, engine: usize, from: u64) -> Option<u64> {
        (from..from + 10_000).find(|&ms| in_flight.advance(at(ms)) && in_flight.is_overdue(engine))
    }

    #[test]
    fn a_job_is_overdue_after_the_limit_and_at_most_a_sixteenth_later() {
        for taken_at in [0, 1, 100, 249, 250, 251, 777] {
            let mut in_flight = InFlight::default();
            for ms in 0..=taken_at {
                in_flight.advance(at(ms));
            }
            in_flight.take(1, job(Seal, 7));
            let noticed = overdue_at(&mut in_flight, 1, taken_at).expect("it is noticed");
            assert!(
                (1000..=1080).contains(&(noticed - taken_at)),
                "taken at {taken_at}, noticed at {noticed}"
            );
        }
    }

    #[test]
    fn jobs_that_come_back_in_time_are_never_overdue() {
        let mut in_flight = InFlight::default();
        let mut periods = 0;
        for ms in 0..20_000_u32 {
            if in_flight.advance(at(ms.into())) {
                periods += 1;
                assert!(!in_flight.is_overdue(0), "at {ms} ms");
            }
            in_flight.take(0, job(Open, ms));
            if let Some(earlier) = ms.checked_sub(999) {
                assert!(in_flight.give_back(0, job(Open, earlier)));
            }
        }
        assert_eq!((periods, in_flight.len()), (317, 999));
    }

    #[test]
    fn time_without_polls_does_not_count() {
        let mut in_flight = InFlight::default();
        in_flight.take(0, job(Seal, 1));
        for call in 1..=17 {
            assert!(in_flight.advance(at(call * 3_600_000)));
            assert_eq!(
                (in_flight.is_slow(0), in_flight.is_overdue(0)),
                (call > 1, call == 17),
                "call {call}"
            );
        }
        let mut rested = InFlight::default();
        rested.rest(at(3_600_000));
        rested.take(0, job(Seal, 1));
        assert!(!rested.advance(at(3_600_062)), "the first period is a whole one");
    }

    #[test]
    fn a_job_comes_back_once_with_its_id_from_the_engine_that_holds_it() {
        let mut in_flight = InFlight::default();
        in_flight.take(0, job(Seal, 1));
        assert!(
            !in_flight.give_back(1, job(Seal, 1))
                && !in_flight.give_back(0, job(Open, 1))
                && !in_flight.give_back(0, job(Seal, 2))
        );
        assert!(in_flight.give_back(0, job(Seal, 1)) && in_flight.is_empty());
        assert!(!in_flight.give_back(0, job(Seal, 1)));
    }

    #[test]
    fn jobs_given_up_are_of_one_engine_and_count_until_they_come_back() {
        let mut in_flight = InFlight::default();
        (0..10).for_each(|n| in_flight.take(0, job(Seal, n)));
        (10..13).for_each(|n| in_flight.take(1, job(Open, n)));
        let mut ids = in_flight.give_up(0);
        ids.sort_unstable_by_key(|id| id.ticket);
        assert!(ids.into_iter().eq((0..10).map(|n| job(Seal, n))));
        assert_eq!(in_flight.len(), 3);
        assert!(!in_flight.give_back(0, job(Seal, 3)), "it is not taken back");
        (10..13).for_each(|n| assert!(in_flight.give_back(1, job(Open, n))));
        assert!(!in_flight.is_empty());
        in_flight.came_late(0, 4);
        in_flight.came_late(0, 6);
        assert!(in_flight.is_empty());
    }
}

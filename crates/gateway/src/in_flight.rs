//! What engines hold: how many jobs were taken and have not come back, by their age. Which jobs these are,
//! each SA's ring knows ([`rings`](crate::rings)).
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

use crate::placement::MAX_ENGINES;
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

/// What counts of the time between two polls where the limit is one period: an engine that gives back what
/// its device is late with reckons alike (`gpu` after 40 ms), and is to be asked often enough for it.
const LOOK: Duration = Duration::from_micros(62_500 / 4);

/// With so many polls after one that brought faults an engine is still giving back what it has.
const GIVES_BACK_FOR: u64 = 4;

/// Counts for the periods of the limit, the current one, and the one that has just exceeded it.
const COUNTS: usize = PERIODS + 2;

/// Who took a job, and when: the job's slot in its SA's ring has it ([`rings`](crate::rings)).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taken {
    engine: u8,
    /// Index of the period's count.
    period: u8,
}

impl Taken {
    #[allow(clippy::cast_possible_truncation, reason = "asserted")]
    fn new(engine: usize, period: usize) -> Self {
        assert!(engine < MAX_ENGINES && period < COUNTS && MAX_ENGINES.max(COUNTS) <= u8::MAX as usize);
        Self { engine: engine as u8, period: period as u8 }
    }

    pub(crate) fn is_by(self, engine: usize) -> bool {
        usize::from(self.engine) == engine
    }
}

/// How much engines hold, and for how long.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    /// The sum of all counts, jobs that wait in bins, and those that wait in queues.
    jobs: usize,
    queued: usize,
    counts: [[usize; COUNTS]; MAX_ENGINES],
    /// Index of the current period's count.
    period: usize,
    began: Moment,
    /// The last moment that was noted while anything was in flight.
    noted: Moment,
    /// How long engines were looked at in all, and how long when each period began.
    looked: Duration,
    looked_before: [Duration; COUNTS],
    /// How often the time was noted, and how often when each engine last gave back what it had failed at.
    polls: u64,
    failed: [Option<u64>; MAX_ENGINES],
    /// Jobs that each engine held when it was taken out of service and has not given back.
    given_up: [usize; MAX_ENGINES],
}

impl InFlight {
    /// Jobs that engines in service hold or that wait in bins for them.
    pub(crate) fn len(&self) -> usize {
        self.jobs
    }

    /// Whether engines hold nothing, not even jobs that were given up.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.jobs == 0 && self.given_up == [0; MAX_ENGINES]
    }

    /// Notes the time while engines hold nothing.
    #[inline]
    pub(crate) fn rest(&mut self, now: Moment) {
        self.began = now;
    }

    /// Notes the time; `true` when a period has ended. At most one ends with each call: time without polls is
    /// not held against an engine, which had no chance to give anything back.
    pub(crate) fn advance(&mut self, now: Moment) -> bool {
        self.looked += now.since(self.now()).min(LOOK);
        self.polls += 1;
        self.noted = now;
        let has_ended = now.since(self.began) >= PERIOD;
        if has_ended {
            self.began = now;
            self.period = (self.period + 1) % COUNTS;
            self.looked_before[self.period] = self.looked;
        }
        has_ended
    }

    /// The last moment that was noted.
    pub(crate) fn now(&self) -> Moment {
        self.noted.max(self.began)
    }

    /// A job waits in a bin.
    pub(crate) fn gather(&mut self) {
        self.jobs += 1;
    }

    /// Jobs leave their bins.
    pub(crate) fn leave_bins(&mut self, jobs: usize) {
        self.jobs -= jobs;
    }

    /// So many jobs wait in queues for a turn that has time for them.
    pub(crate) fn set_queued(&mut self, jobs: usize) {
        self.jobs = self.jobs - self.queued + jobs;
        self.queued = jobs;
    }

    /// Whether any do.
    pub(crate) fn has_queued(&self) -> bool {
        self.queued > 0
    }

    /// An engine takes a job.
    #[inline]
    pub(crate) fn take(&mut self, engine: usize) -> Taken {
        self.jobs += 1;
        self.counts[engine][self.period] += 1;
        Taken::new(engine, self.period)
    }

    /// An engine gives back a job that it took.
    #[inline]
    pub(crate) fn give_back(&mut self, Taken { engine, period }: Taken) {
        self.jobs -= 1;
        self.counts[usize::from(engine)][usize::from(period)] -= 1;
    }

    /// Whether an engine holds a job beyond the limit. To be called whenever a period has ended.
    pub(crate) fn is_overdue(&self, engine: usize) -> bool {
        // The count after the current period's is the oldest one's.
        let oldest = (self.period + 1) % COUNTS;
        self.counts.get(engine).is_some_and(|counts| counts[oldest] > 0)
    }

    /// Whether an engine that is [slow](Self::is_slow) was looked at for a whole period while it held such a
    /// job. With long turns two periods pass with two polls, in which it has not found out that its device is
    /// late.
    pub(crate) fn was_looked_at(&self, engine: usize) -> bool {
        let has = |period: &usize| self.counts.get(engine).is_some_and(|counts| counts[*period] > 0);
        // The oldest count is behind the current one.
        let oldest = (1..COUNTS).map(|behind| (self.period + behind) % COUNTS).find(has);
        oldest.is_some_and(|oldest| self.looked - self.looked_before[(oldest + 1) % COUNTS] >= PERIOD)
    }

    /// An engine gives back a job that it has failed at. One that it got in this period says nothing of those
    /// that it keeps.
    #[cold]
    pub(crate) fn fail(&mut self, taken: &Taken) {
        if usize::from(taken.period) != self.period {
            let failed = self.failed.get_mut(usize::from(taken.engine));
            failed.into_iter().for_each(|failed| *failed = Some(self.polls));
        }
    }

    /// Whether an engine gives back what its device has not done: some came with the last few polls.
    pub(crate) fn gives_back(&self, engine: usize) -> bool {
        let failed = self.failed.get(engine).copied().flatten();
        failed.is_some_and(|failed| self.polls - failed < GIVES_BACK_FOR)
    }

    /// Whether an engine holds a job that is older than a whole period.
    pub(crate) fn is_slow(&self, engine: usize) -> bool {
        let recent = [self.period, (self.period + COUNTS - 1) % COUNTS];
        let counts = self.counts.get(engine).into_iter().flatten().enumerate();
        counts.filter(|(period, _)| !recent.contains(period)).any(|(_, count)| *count > 0)
    }

    /// Jobs that an engine in service holds.
    pub(crate) fn held(&self, engine: usize) -> usize {
        self.counts.get(engine).map_or(0, |counts| counts.iter().sum())
    }

    /// Gives up what an engine holds, so many jobs at most, and returns how many.
    pub(crate) fn give_up(&mut self, engine: usize, most: usize) -> usize {
        let mut jobs = 0;
        for count in &mut self.counts[engine] {
            let some = (*count).min(most - jobs);
            *count -= some;
            jobs += some;
        }
        self.jobs -= jobs;
        self.given_up[engine] += jobs;
        jobs
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
    use std::collections::VecDeque;

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
            in_flight.take(1);
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
        let (mut periods, mut taken) = (0, VecDeque::new());
        for ms in 0..20_000_u32 {
            if in_flight.advance(at(ms.into())) {
                periods += 1;
                assert!(!in_flight.is_overdue(0), "at {ms} ms");
            }
            taken.push_back(in_flight.take(0));
            if taken.len() > 999 {
                in_flight.give_back(taken.pop_front().expect("a thousand are held"));
            }
        }
        assert_eq!((periods, in_flight.len()), (317, 999));
    }

    #[test]
    fn time_without_polls_does_not_count() {
        let mut in_flight = InFlight::default();
        in_flight.take(0);
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
        rested.take(0);
        assert!(!rested.advance(at(3_600_062)), "the first period is a whole one");
    }

    /// An engine that finds out by itself that its device is late is asked for four looks at least.
    #[test]
    fn a_slow_engine_was_looked_at_only_after_many_polls() {
        for (turn, polls) in [(1_u64, 126), (10, 14), (35, 6), (70, 5), (3_600_000, 5)] {
            let mut in_flight = InFlight::default();
            in_flight.take(0);
            let is_slow = |of: &InFlight| of.is_slow(0) && of.was_looked_at(0);
            let first = (1..1000).find(|&poll| in_flight.advance(at(poll * turn)) && is_slow(&in_flight));
            assert_eq!(first, Some(polls), "turns of {turn} ms");
            assert!(!in_flight.was_looked_at(1), "it holds nothing");
        }
    }

    #[test]
    fn an_engine_gives_back_for_a_few_polls_after_a_fault() {
        let mut in_flight = InFlight::default();
        let taken = in_flight.take(0);
        in_flight.advance(at(1));
        in_flight.fail(&taken);
        assert!(!in_flight.gives_back(0), "it was given the job just now");
        assert!(in_flight.advance(at(64)));
        in_flight.fail(&taken);
        for poll in 1..=6 {
            assert_eq!((in_flight.gives_back(0), in_flight.gives_back(1)), (poll <= 4, false), "poll {poll}");
            in_flight.advance(at(64 + poll));
        }
        in_flight.give_back(taken);
    }

    #[test]
    fn jobs_given_up_are_of_one_engine_and_count_until_they_come_back() {
        let mut in_flight = InFlight::default();
        let mine: Vec<_> = (0..10).map(|_| in_flight.take(0)).collect();
        let others: Vec<_> = (0..3).map(|_| in_flight.take(1)).collect();
        assert_eq!((in_flight.give_up(0, 4), in_flight.held(0), in_flight.len()), (4, 6, 9));
        assert_eq!((in_flight.give_up(0, usize::MAX), in_flight.len()), (mine.len() - 4, 3));
        others.into_iter().for_each(|taken| in_flight.give_back(taken));
        assert_eq!((in_flight.len(), in_flight.is_empty()), (0, false));
        in_flight.came_late(0, 4);
        assert!(!in_flight.is_empty());
        in_flight.came_late(0, 6);
        assert!(in_flight.is_empty());
    }
}

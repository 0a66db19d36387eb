//! What an engine has of the scheduler's jobs: PIPSEA's active bins.

use super::bins::Load;
use super::chunk_time::{Classes, Timed};
use super::tuning::Ended;
use std::collections::VecDeque;
use std::time::Duration;
use testudo_crypto::Profile;
use testudo_ipsec::Moment;

/// Chunks of less than so many parts of a whole one do not say what a job costs.
const MANY_OF: usize = 8;
/// How much of the expectation a chunk that has ended changes: an eighth.
const WEIGHT: u32 = 8;
/// A chunk that took more than so many times what was expected, and this at least, has met a stall, or time
/// that the worker did not have: it counts as that much, so that the bound holds when it happens again. A
/// device that has become slower is followed all the same, by three eighths with each chunk.
const MOST_TIMES: u32 = 4;
const LEAST_EXPECTED: Duration = Duration::from_micros(100);

/// Jobs that were submitted together and have not all come back.
#[derive(Debug, Clone, Copy)]
struct Chunk {
    jobs: usize,
    left: usize,
    since: Moment,
    load: Load,
    /// It has so many jobs that its time is not that of its launch.
    is_large: bool,
    /// It has half of the jobs of a whole one, or more.
    is_half: bool,
    classes: Classes,
    has_failed: bool,
    /// It went to the engine while a class was tried.
    is_beside: bool,
}

/// The chunks that an engine has, and how long it is expected to have one.
#[derive(Debug)]
pub(crate) struct Pipeline {
    chunks: VecDeque<Chunk>,
    /// The most chunks by now, and at first: there is memory for so many.
    most: usize,
    limit: usize,
    /// Jobs of a chunk whose time is not that of its launch.
    many: usize,
    /// The engine did not take the whole of the last chunk: it has no room until one has come back.
    is_full: bool,
    expected: Duration,
    /// When the last chunk has ended, and whether that was half a whole one or more.
    ended: Option<Moment>,
    was_half: bool,
    /// The last chunk that has ended, if it ended alone.
    measured: Option<Ended>,
    /// Chunks that have ended since they were asked for.
    timed: VecDeque<Timed>,
    /// When the worker looked at the engine last.
    looked: Moment,
}

impl Pipeline {
    /// Of an engine with this profile, for chunks of so many jobs with so many bytes of text each.
    pub(crate) fn new(profile: &Profile, jobs: usize, text_bytes: u64) -> Self {
        let most = profile.under_way.clamp(1, Profile::MAX_UNDER_WAY);
        let text_bytes = text_bytes.saturating_mul(u64::try_from(jobs).unwrap_or(u64::MAX));
        let expected = Duration::from_nanos(profile.time_ns(text_bytes));
        let chunks = VecDeque::with_capacity(most);
        Self {
            chunks,
            most,
            limit: most,
            many: jobs.div_ceil(MANY_OF),
            is_full: false,
            expected,
            ended: None,
            was_half: false,
            measured: None,
            timed: VecDeque::with_capacity(most),
            looked: Moment::default(),
        }
    }

    /// Whether the engine works on fewer chunks than it could.
    pub(crate) fn has_room(&self) -> bool {
        self.chunks.len() < self.most && !self.is_full
    }

    /// The engine works on so many chunks by now, and never on more than at first.
    pub(crate) fn set_most(&mut self, most: usize) {
        self.most = most.clamp(1, self.limit);
    }

    /// How long a chunk is expected to be away.
    pub(crate) fn expected(&self) -> Duration {
        self.expected
    }

    /// Whether a chunk is away for longer than `bound`, and than twice what was expected: the engine stalls.
    /// Of an engine over several devices all have to: what others give back counts for the oldest chunk, and
    /// which one does not is the engine's to find out.
    pub(crate) fn is_behind(&self, now: Moment, bound: Duration) -> bool {
        let most = bound.max(self.expected.saturating_mul(2));
        self.chunks.front().is_some_and(|chunk| now.since(chunk.since) > most)
    }

    /// How long the oldest chunk is away by now; 0 if there is none.
    pub(crate) fn oldest(&self, now: Moment) -> Duration {
        self.chunks.front().map_or(Duration::ZERO, |chunk| now.since(chunk.since))
    }

    /// Jobs that it has.
    pub(crate) fn under_way(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.left).sum()
    }

    /// The engine did not take all that it was given.
    pub(crate) fn refused(&mut self) {
        self.is_full = !self.chunks.is_empty();
    }

    /// Whole chunks have so many jobs from the next one on.
    pub(crate) fn set_chunk(&mut self, jobs: usize) {
        self.many = jobs.div_ceil(MANY_OF);
    }

    /// The engine has taken so many jobs of a chunk.
    pub(crate) fn submitted(&mut self, jobs: usize, load: Load, now: Moment) {
        if load.is_refused {
            // That is known at once, and of a chunk of which nothing was taken nothing ends.
            self.measured = Some(Ended { load, took: Duration::ZERO, busy: None });
        }
        if jobs > 0 {
            let (is_large, is_half) = (jobs >= self.many, jobs >= MANY_OF / 2 * self.many);
            self.chunks.push_back(Chunk {
                jobs,
                left: jobs,
                since: now,
                load,
                is_large,
                is_half,
                classes: Classes::default(),
                has_failed: false,
                is_beside: false,
            });
        }
    }

    /// What the chunk that was submitted last has, whether the engine has failed at jobs of it already, and
    /// whether a class is tried meanwhile.
    pub(crate) fn note(&mut self, classes: Classes, has_failed: bool, is_beside: bool) {
        if let Some(chunk) = self.chunks.back_mut() {
            (chunk.classes, chunk.has_failed, chunk.is_beside) = (classes, has_failed, is_beside);
        }
    }

    /// The engine has failed at a job that comes back behind so many others of the next ones.
    pub(crate) fn failed(&mut self, mut behind: usize) {
        for chunk in &mut self.chunks {
            if behind < chunk.left {
                chunk.has_failed = true;
                return;
            }
            behind -= chunk.left;
        }
    }

    /// So many jobs have come back, those of the oldest chunks as far as is known: of one device they are,
    /// and of several one may be faster. Returns what the engine took for each job of a chunk, if one has
    /// ended that was there when the one before did, so that it did not idle, and had so many jobs that they
    /// say what each costs beside others.
    pub(crate) fn ended(&mut self, mut jobs: usize, now: Moment) -> Option<Duration> {
        let (mut each, mut count) = (None, 0);
        while let Some(chunk) = self.chunks.front_mut() {
            let ended = jobs.min(chunk.left);
            chunk.left -= ended;
            jobs -= ended;
            if chunk.left > 0 {
                break;
            }
            let took = now.since(chunk.since);
            // What ends as a fault says nothing of how long the engine takes for what it does.
            if !chunk.has_failed {
                let counts = took.min(self.expected.max(LEAST_EXPECTED).saturating_mul(MOST_TIMES));
                self.expected = self.expected.saturating_sub(self.expected / WEIGHT) + counts / WEIGHT;
            }
            // One that takes a chunk at a time is not faster than from chunk to chunk.
            let waited = self.ended.filter(|ended| chunk.since < *ended);
            let began = waited.or((self.most == 1).then_some(chunk.since));
            let busy = began.map(|began| now.since(began));
            self.measured = (!chunk.has_failed).then_some(Ended { load: chunk.load, took, busy });
            self.timed.push_back(Timed {
                classes: chunk.classes,
                since: chunk.since,
                took,
                away: self.looked.since(chunk.since),
                has_failed: chunk.has_failed,
                is_beside: chunk.is_beside,
                jobs: chunk.jobs,
                epoch: chunk.load.epoch,
            });
            let began = began.filter(|_| chunk.is_large && !chunk.has_failed);
            each = began.map(|began| now.since(began) / u32::try_from(chunk.jobs).unwrap_or(u32::MAX).max(1));
            count += 1;
            (self.ended, self.was_half) = (Some(now), chunk.is_half);
            self.chunks.pop_front();
            self.is_full = false;
        }
        self.looked = now;
        // Of several at once it is not known when each has ended.
        if count > 1 {
            self.measured = None;
        }
        each.filter(|_| count == 1)
    }

    /// Whether the chunk that has ended last was half a whole one or more. Of a smaller one the engine may
    /// not have been filled: with more jobs each takes it less.
    pub(crate) fn was_half(&self) -> bool {
        self.was_half
    }

    /// The chunk that has ended since this was asked last, if it was the only one.
    pub(crate) fn take_measured(&mut self) -> Option<Ended> {
        self.measured.take()
    }

    /// A chunk that has ended and was not asked for yet, the first one first.
    pub(crate) fn take_timed(&mut self) -> Option<Timed> {
        self.timed.pop_front()
    }

    /// The engine is out of service.
    pub(crate) fn clear(&mut self) {
        self.chunks.clear();
        self.timed.clear();
        self.is_full = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Moment {
        Moment(Duration::from_micros(us))
    }

    fn pipeline() -> Pipeline {
        let profile = Profile { latency_ns: 100_000, byte_ps: 1000, under_way: 2, ..Profile::of_depth(4096) };
        Pipeline::new(&profile, 60, 1000)
    }

    #[test]
    fn an_engine_has_as_many_chunks_as_its_profile_says() {
        let mut pipeline = pipeline();
        assert_eq!(pipeline.expected(), Duration::from_micros(160));
        pipeline.submitted(0, Load::default(), at(0));
        pipeline.submitted(10, Load::default(), at(0));
        assert!(pipeline.has_room());
        pipeline.submitted(5, Load::default(), at(10));
        assert!(!pipeline.has_room());
        pipeline.ended(9, at(20));
        assert!(!pipeline.has_room());
        pipeline.ended(3, at(20));
        assert!(pipeline.has_room());
        pipeline.ended(3, at(20));
        pipeline.ended(7, at(20));
        pipeline.submitted(1, Load::default(), at(30));
        pipeline.clear();
        assert!(pipeline.has_room() && !pipeline.is_behind(at(1_000_000), Duration::ZERO));
    }

    #[test]
    fn an_engine_that_works_on_fewer_chunks_than_at_first_gets_fewer() {
        let mut pipeline = pipeline();
        pipeline.set_most(1);
        pipeline.submitted(10, Load::default(), at(0));
        assert!(!pipeline.has_room());
        pipeline.set_most(9);
        pipeline.submitted(10, Load::default(), at(0));
        assert!(!pipeline.has_room(), "there is memory for two");
        pipeline.ended(20, at(10));
        pipeline.set_most(0);
        assert!(pipeline.has_room(), "one at a time every engine takes");
    }

    /// Memory may be short of packets that are longer than was reckoned with.
    #[test]
    fn an_engine_that_refuses_jobs_has_no_room_until_a_chunk_has_come_back() {
        let mut pipeline = pipeline();
        pipeline.refused();
        assert!(pipeline.has_room(), "it has nothing that could come back");
        pipeline.submitted(10, Load::default(), at(0));
        pipeline.refused();
        assert_eq!((pipeline.has_room(), pipeline.under_way()), (false, 10));
        pipeline.ended(9, at(10));
        assert!(!pipeline.has_room());
        pipeline.ended(1, at(20));
        assert_eq!((pipeline.has_room(), pipeline.under_way()), (true, 0));
    }

    #[test]
    fn a_chunk_that_was_refused_in_part_or_whole_is_known_at_once() {
        let mut pipeline = pipeline();
        for taken in [0, 5] {
            pipeline.submitted(taken, Load { is_refused: true, ..Load::default() }, at(0));
            let measured = pipeline.take_measured();
            assert!(measured.is_some_and(|ended| ended.load.is_refused && ended.busy.is_none()));
        }
        pipeline.submitted(5, Load::default(), at(0));
        assert!(pipeline.take_measured().is_none());
    }

    /// A chunk of 8 says as much of an engine whose chunks have 16 as one of 30 did when they had 60.
    #[test]
    fn how_many_jobs_say_what_each_costs_follows_the_shape_in_use() {
        let mut pipeline = pipeline();
        pipeline.set_chunk(240);
        pipeline.submitted(10, Load::default(), at(0));
        pipeline.submitted(10, Load::default(), at(0));
        pipeline.ended(10, at(100));
        assert_eq!(pipeline.ended(10, at(120)), None, "less than an eighth of 240");
        pipeline.set_chunk(80);
        pipeline.submitted(10, Load::default(), at(120));
        pipeline.submitted(10, Load::default(), at(120));
        pipeline.set_chunk(240);
        pipeline.ended(10, at(200));
        assert_eq!(pipeline.ended(10, at(220)), Some(Duration::from_micros(2)), "by the shape of its time");
    }

    #[test]
    fn a_chunk_of_less_than_half_is_told_from_larger_ones() {
        let mut pipeline = pipeline();
        pipeline.set_chunk(80);
        for (jobs, is_half) in [(10, false), (39, false), (40, true), (80, true), (39, false)] {
            pipeline.submitted(jobs, Load::default(), at(0));
            pipeline.ended(jobs, at(100));
            assert_eq!(pipeline.was_half(), is_half, "{jobs} of 80");
        }
    }

    #[test]
    fn what_is_expected_follows_what_is_measured() {
        let mut pipeline = pipeline();
        for chunk in 0..100 {
            pipeline.submitted(8, Load::default(), at(chunk * 1000));
            pipeline.ended(8, at(chunk * 1000 + 800));
        }
        let expected = pipeline.expected();
        assert!((790..=800).contains(&expected.as_micros()), "{expected:?}");
    }

    #[test]
    fn a_chunk_that_stalled_changes_what_is_expected_by_little() {
        let (mut pipeline, bound) = (pipeline(), Duration::from_millis(1));
        pipeline.submitted(8, Load::default(), at(0));
        pipeline.ended(8, at(700_000));
        assert_eq!(pipeline.expected(), Duration::from_micros(160 - 20 + 80), "no more than four times 160");
        pipeline.submitted(8, Load::default(), at(700_000));
        assert!(!pipeline.is_behind(at(701_000), bound) && pipeline.is_behind(at(701_001), bound));
        // What is measured of it is not cut.
        let took = pipeline.take_measured().map(|ended| ended.took);
        assert_eq!(took, Some(Duration::from_millis(700)));
        // A device that says nothing of its costs, and one that is slower for good.
        let mut unknown = Pipeline::new(&Profile::of_depth(4096), 60, 1000);
        for chunk in 0..100 {
            unknown.submitted(8, Load::default(), at(chunk * 100_000));
            unknown.ended(8, at(chunk * 100_000 + 50_000));
        }
        let expected = unknown.expected().as_micros();
        assert!((49_900..=50_000).contains(&expected), "{expected} us");
    }

    #[test]
    fn what_ends_as_a_fault_says_nothing_of_the_time_that_a_chunk_takes() {
        let mut pipeline = pipeline();
        let expected = pipeline.expected();
        pipeline.submitted(60, Load::default(), at(0));
        pipeline.submitted(60, Load::default(), at(0));
        pipeline.ended(60, at(100));
        let expected_then = pipeline.expected();
        assert!(expected_then < expected && pipeline.take_measured().is_some());
        pipeline.failed(59);
        assert_eq!(pipeline.ended(60, at(50_000)), None);
        assert!(pipeline.expected() == expected_then && pipeline.take_measured().is_none());
    }

    #[test]
    fn a_chunk_is_timed_if_it_was_there_when_the_one_before_ended() {
        let mut pipeline = pipeline();
        pipeline.submitted(10, Load::default(), at(0));
        pipeline.submitted(20, Load::default(), at(50));
        assert_eq!(pipeline.ended(10, at(100)), None, "nothing is known of when it was begun");
        assert_eq!(pipeline.ended(19, at(130)), None);
        assert_eq!(pipeline.ended(1, at(140)), Some(Duration::from_micros(2)), "20 jobs in 40 us");
        pipeline.submitted(10, Load::default(), at(150));
        pipeline.submitted(10, Load::default(), at(150));
        assert_eq!(pipeline.ended(20, at(250)), None, "the device idled, and both ended at once");
        pipeline.submitted(7, Load::default(), at(260));
        pipeline.submitted(7, Load::default(), at(260));
        pipeline.ended(7, at(270));
        assert_eq!(pipeline.ended(7, at(280)), None, "less than an eighth of 60");
        assert_eq!(pipeline.oldest(at(290)), Duration::ZERO);
        pipeline.submitted(7, Load::default(), at(290));
        pipeline.submitted(7, Load::default(), at(295));
        assert_eq!(pipeline.oldest(at(299)), Duration::from_micros(9));
        pipeline.clear();
        let profile = Profile { under_way: 1, ..Profile::of_depth(4096) };
        let mut single = Pipeline::new(&profile, 60, 1000);
        single.submitted(10, Load::default(), at(300));
        assert_eq!(single.ended(10, at(400)), Some(Duration::from_micros(10)));
    }

    #[test]
    fn a_chunk_that_has_ended_says_how_long_it_was_looked_for_in_vain() {
        let mut pipeline = pipeline();
        pipeline.submitted(8, Load::default(), at(0));
        pipeline.note(Classes::default(), false, true);
        pipeline.ended(0, at(300));
        pipeline.submitted(8, Load::default(), at(400));
        pipeline.failed(7);
        pipeline.ended(8, at(9000));
        let first = pipeline.take_timed().expect("it has ended");
        let us = Duration::from_micros;
        assert_eq!((first.took, first.away), (us(9000), us(300)));
        assert!(first.has_failed && first.is_beside && first.jobs == 8);
        assert_eq!(pipeline.take_timed(), None);
        pipeline.ended(8, at(9001));
        let second = pipeline.take_timed().expect("it has ended");
        assert_eq!((second.took, second.away), (us(8601), us(8600)));
        assert!(!second.has_failed && !second.is_beside);
    }

    #[test]
    fn a_chunk_has_failed_if_a_job_of_it_has_and_chunks_are_told_in_order() {
        let mut pipeline = pipeline();
        pipeline.submitted(8, Load::default(), at(0));
        pipeline.submitted(4, Load::default(), at(10));
        pipeline.failed(8);
        pipeline.failed(12);
        pipeline.ended(12, at(20));
        let timed = std::iter::from_fn(|| pipeline.take_timed()).map(|timed| (timed.jobs, timed.has_failed));
        assert!(timed.eq([(8, false), (4, true)]));
    }

    #[test]
    fn an_engine_is_behind_when_a_chunk_is_away_beyond_the_bound_and_the_expectation() {
        let mut pipeline = pipeline();
        pipeline.submitted(8, Load::default(), at(1000));
        let (short, long) = (Duration::from_micros(50), Duration::from_millis(1));
        assert!(!pipeline.is_behind(at(1320), short) && pipeline.is_behind(at(1321), short));
        assert!(!pipeline.is_behind(at(2000), long) && pipeline.is_behind(at(2001), long));
    }
}

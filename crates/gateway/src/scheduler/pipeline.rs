//! What an engine has of the scheduler's jobs: PIPSEA's active bins.

use std::collections::VecDeque;
use std::time::Duration;
use testudo_crypto::Profile;
use testudo_ipsec::Moment;

/// How much of the expectation a chunk that has ended changes: an eighth.
const WEIGHT: u32 = 8;

/// Jobs that were submitted together and have not all come back.
#[derive(Debug, Clone, Copy)]
struct Chunk {
    left: usize,
    since: Moment,
}

/// The chunks that an engine has, and how long it is expected to have one.
#[derive(Debug)]
pub(crate) struct Pipeline {
    chunks: VecDeque<Chunk>,
    /// The most chunks.
    most: usize,
    /// The engine did not take the whole of the last chunk: it has no room until one has come back.
    is_full: bool,
    expected: Duration,
}

impl Pipeline {
    /// Of an engine with this profile, for chunks with so many bytes of text.
    pub(crate) fn new(profile: &Profile, text_bytes: u64) -> Self {
        let most = profile.under_way.clamp(1, Profile::MAX_UNDER_WAY);
        let expected = Duration::from_nanos(profile.time_ns(text_bytes));
        Self { chunks: VecDeque::with_capacity(most), most, is_full: false, expected }
    }

    /// Whether the engine works on fewer chunks than it could.
    pub(crate) fn has_room(&self) -> bool {
        self.chunks.len() < self.most && !self.is_full
    }

    /// How long a chunk is expected to be away.
    pub(crate) fn expected(&self) -> Duration {
        self.expected
    }

    /// Whether a chunk is away for longer than `bound`, and than twice what was expected: the engine stalls.
    pub(crate) fn is_behind(&self, now: Moment, bound: Duration) -> bool {
        let most = bound.max(self.expected.saturating_mul(2));
        self.chunks.front().is_some_and(|chunk| now.since(chunk.since) > most)
    }

    /// Jobs that it has.
    pub(crate) fn under_way(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.left).sum()
    }

    /// The engine did not take all that it was given.
    pub(crate) fn refused(&mut self) {
        self.is_full = !self.chunks.is_empty();
    }

    /// The engine has taken so many jobs.
    pub(crate) fn submitted(&mut self, jobs: usize, now: Moment) {
        if jobs > 0 {
            self.chunks.push_back(Chunk { left: jobs, since: now });
        }
    }

    /// So many jobs have come back, as far as is known those of the oldest chunks.
    pub(crate) fn ended(&mut self, mut jobs: usize, now: Moment) {
        while let Some(chunk) = self.chunks.front_mut() {
            let ended = jobs.min(chunk.left);
            chunk.left -= ended;
            jobs -= ended;
            if chunk.left > 0 {
                return;
            }
            let took = now.since(chunk.since);
            self.expected = self.expected.saturating_sub(self.expected / WEIGHT) + took / WEIGHT;
            self.chunks.pop_front();
            self.is_full = false;
        }
    }

    /// The engine is out of service.
    pub(crate) fn clear(&mut self) {
        self.chunks.clear();
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
        Pipeline::new(&profile, 60_000)
    }

    #[test]
    fn an_engine_has_as_many_chunks_as_its_profile_says() {
        let mut pipeline = pipeline();
        assert_eq!(pipeline.expected(), Duration::from_micros(160));
        pipeline.submitted(0, at(0));
        pipeline.submitted(10, at(0));
        assert!(pipeline.has_room());
        pipeline.submitted(5, at(10));
        assert!(!pipeline.has_room());
        pipeline.ended(9, at(20));
        assert!(!pipeline.has_room());
        pipeline.ended(3, at(20));
        assert!(pipeline.has_room());
        pipeline.ended(3, at(20));
        pipeline.ended(7, at(20));
        pipeline.submitted(1, at(30));
        pipeline.clear();
        assert!(pipeline.has_room() && !pipeline.is_behind(at(1_000_000), Duration::ZERO));
    }

    /// Memory may be short of packets that are longer than was reckoned with.
    #[test]
    fn an_engine_that_refuses_jobs_has_no_room_until_a_chunk_has_come_back() {
        let mut pipeline = pipeline();
        pipeline.refused();
        assert!(pipeline.has_room(), "it has nothing that could come back");
        pipeline.submitted(10, at(0));
        pipeline.refused();
        assert_eq!((pipeline.has_room(), pipeline.under_way()), (false, 10));
        pipeline.ended(9, at(10));
        assert!(!pipeline.has_room());
        pipeline.ended(1, at(20));
        assert_eq!((pipeline.has_room(), pipeline.under_way()), (true, 0));
    }

    #[test]
    fn what_is_expected_follows_what_is_measured() {
        let mut pipeline = pipeline();
        for chunk in 0..100 {
            pipeline.submitted(8, at(chunk * 1000));
            pipeline.ended(8, at(chunk * 1000 + 800));
        }
        let expected = pipeline.expected();
        assert!((790..=800).contains(&expected.as_micros()), "{expected:?}");
    }

    #[test]
    fn an_engine_is_behind_when_a_chunk_is_away_beyond_the_bound_and_the_expectation() {
        let mut pipeline = pipeline();
        pipeline.submitted(8, at(1000));
        let (short, long) = (Duration::from_micros(50), Duration::from_millis(1));
        assert!(!pipeline.is_behind(at(1320), short) && pipeline.is_behind(at(1321), short));
        assert!(!pipeline.is_behind(at(2000), long) && pipeline.is_behind(at(2001), long));
    }
}

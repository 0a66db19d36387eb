//! Chunks of known times, on a clock that is handed in.

use super::*;
use crate::scheduler::job;
use testudo_crypto::{KeyId, Suite};

const BOUND: Duration = Duration::from_millis(1);
const FAST: Duration = Duration::from_micros(300);
const SLOW: Duration = Duration::from_millis(5);

fn at(ms: u64) -> Moment {
    Moment(Duration::from_millis(ms))
}

fn class(suite_rank: u8, text_bytes: u32) -> Class {
    Class::of(&job(Suite::AES128GCM16, text_bytes, 0, KeyId::NONE), suite_rank)
}

fn chunk(of: &[Class], took: Duration) -> Timed {
    let mut classes = Classes::default();
    of.iter().for_each(|class| classes.insert(*class));
    let since = Moment::default();
    Timed { classes, since, took, away: took, has_failed: false, is_beside: false, jobs: 100, epoch: 0 }
}

/// What has happened to an engine's chunks, by the millisecond.
struct History {
    times: ChunkTimes,
    now: u64,
}

impl History {
    fn new() -> Self {
        Self { times: ChunkTimes::new(BOUND), now: 0 }
    }

    /// It went to the engine after the ones before had come back.
    fn learn(&mut self, chunk: &Timed) {
        self.times.learn(&Timed { since: at(self.now), ..*chunk }, at(self.now));
    }

    /// One job of a class in each millisecond for so many; those that the engine gets go at once, and are
    /// back after so long, all done. Returns when it got any.
    fn offer(&mut self, class: Class, for_ms: u64, took: Duration) -> Vec<u64> {
        let until = self.now + for_ms;
        self.offer_until(class, until, |of| chunk(&[of], took))
    }

    fn offer_until(&mut self, class: Class, until: u64, of: impl Fn(Class) -> Timed) -> Vec<u64> {
        let mut given = Vec::new();
        while self.now < until {
            self.now += 1;
            if self.times.admits(class, at(self.now)) {
                given.push(self.now);
                let mut chunk = of(class);
                chunk.is_beside = self.times.submitted(&chunk.classes, at(self.now));
                self.learn(&chunk);
            }
        }
        given
    }

    /// So many jobs of a class that is closed.
    fn pass_on(&mut self, class: Class, jobs: u32, ms: u64) {
        for _ in 0..jobs {
            assert!(!self.times.admits(class, at(ms)));
        }
    }

    fn closed(class: Class) -> Self {
        let mut history = Self::new();
        (0..3).for_each(|_| history.learn(&chunk(&[class], SLOW)));
        assert!(!history.times.admits(class, at(0)));
        history
    }
}

#[test]
fn jobs_are_told_apart_by_suite_direction_and_length() {
    let mut all: Vec<usize> =
        (0..16).flat_map(|rank| [64, 65, 300, 2000].map(|n| class(rank, n).0)).collect();
    let mut opening = job(Suite::AES128GCM16, 64, 0, KeyId::NONE);
    opening.direction = Direction::Open;
    all.push(Class::of(&opening, 3).0);
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert!(all.len() == count && all.iter().all(|at| *at < COUNT));
    assert_eq!(class(200, 64), class(15, 64), "all other suites have one");
    let both = chunk(&[class(0, 64), class(15, 2000)], FAST).classes;
    assert!(both.iter().eq([class(0, 64), class(15, 2000)]));
}

#[test]
fn three_late_chunks_close_a_class_and_two_do_not() {
    let (slow, fast) = (class(0, 64), class(1, 64));
    let mut history = History::new();
    for late in 1..=3 {
        assert!(history.times.admits(slow, at(0)), "after {} late chunks", late - 1);
        assert_eq!(history.times.would_close(&chunk(&[slow], SLOW)), late == 3);
        history.learn(&chunk(&[slow], SLOW));
        history.learn(&chunk(&[fast], FAST));
    }
    assert!(!history.times.admits(slow, at(0)) && history.times.admits(fast, at(0)));
    assert!(history.times.has_closed() && !History::new().times.has_closed());
    assert!(!history.times.would_close(&chunk(&[slow], SLOW)), "it is");
}

/// Several devices have one each, and another one behind it.
#[test]
fn chunks_that_are_under_way_together_are_late_once() {
    let class = class(0, 64);
    let mut history = History::new();
    for stall in 0..2 {
        let since = at(100 * stall);
        for found in 1..=8 {
            let late = Timed { since, ..chunk(&[class], SLOW) };
            assert!(!history.times.would_close(&late));
            history.times.learn(&late, at(100 * stall + found));
        }
    }
    assert!(history.times.admits(class, at(200)));
    let third = Timed { since: at(200), ..chunk(&[class], SLOW) };
    assert!(history.times.would_close(&third));
    history.times.learn(&third, at(201));
    assert!(!history.times.admits(class, at(201)));
}

/// They were gathered, or went, before its class was closed.
#[test]
fn late_chunks_of_a_closed_class_close_no_other() {
    let (slow, other) = (class(0, 64), class(1, 64));
    let mut history = History::closed(slow);
    for _ in 0..10 {
        assert!(!history.times.would_close(&chunk(&[slow, other], SLOW)));
        history.learn(&chunk(&[slow, other], SLOW));
    }
    (0..2).for_each(|_| history.learn(&chunk(&[other], SLOW)));
    assert!(history.times.admits(other, at(0)));
    history.learn(&chunk(&[other], SLOW));
    assert!(!history.times.admits(other, at(0)));
}

/// One chunk in nine, or fewer: that is a stall now and then.
#[test]
fn late_chunks_that_others_make_up_for_close_nothing() {
    let class = class(0, 64);
    let mut history = History::new();
    for _ in 0..100 {
        history.learn(&chunk(&[class], SLOW));
        (0..8).for_each(|_| history.learn(&chunk(&[class], FAST)));
    }
    assert!(history.times.admits(class, at(0)));
    // One in three is none.
    let mut history = History::new();
    for _ in 0..10 {
        history.learn(&chunk(&[class], SLOW));
        (0..2).for_each(|_| history.learn(&chunk(&[class], FAST)));
    }
    assert!(!history.times.admits(class, at(0)));
}

/// The worker had no processor: when it looked last the chunk was away for less than the bound.
#[test]
fn what_nobody_looked_for_is_not_late() {
    let class = class(0, 64);
    let mut history = History::new();
    let unseen = Timed { away: FAST, ..chunk(&[class], Duration::from_secs(1)) };
    (0..100).for_each(|_| history.learn(&unseen));
    assert!(history.times.admits(class, at(0)));
}

#[test]
fn a_closed_class_is_tried_ever_more_rarely_while_it_is_late_and_by_less_than_a_hundredth() {
    let class = class(0, 64);
    let mut history = History::closed(class);
    let given = history.offer(class, 200_000, SLOW);
    assert_eq!(given.len(), 8, "{given:?}");
    let pauses = given.windows(2).map(|pair| pair[1] - pair[0]);
    for (pause, at_least) in pauses.zip([2, 4, 8, 16, 32, 64, 64]) {
        assert!((1000 * at_least..1000 * at_least + 200).contains(&pause), "{given:?}");
    }
}

#[test]
fn a_class_whose_trial_is_in_time_is_open_again_and_one_late_chunk_closes_it() {
    let class = class(0, 64);
    let mut history = History::closed(class);
    let given = history.offer(class, 1_500, FAST);
    assert!(given.first().is_some_and(|first| (1_000..1_100).contains(first)), "{given:?}");
    assert_eq!(given.len() as u64, 1_500 - given[0] + 1, "all that follow");
    let mut again = History::closed(class);
    again.offer(class, 1_000, FAST);
    again.learn(&chunk(&[class], SLOW));
    assert!(!again.times.admits(class, at(again.now)));
    // Twice as long as before.
    let given = again.offer(class, 3_000, FAST);
    assert!(given.first().is_some_and(|first| (3_000..3_200).contains(first)), "{given:?}");
}

#[test]
fn a_class_that_was_open_for_long_is_closed_for_the_shortest_time() {
    let class = class(0, 64);
    let mut history = History::closed(class);
    history.offer(class, 70_000, FAST);
    (0..3).for_each(|_| history.learn(&chunk(&[class], SLOW)));
    let closed = history.now;
    let given = history.offer(class, 2_000, FAST);
    assert!(given.first().is_some_and(|first| (1_000..1_100).contains(&(first - closed))), "{given:?}");
}

#[test]
fn an_engine_that_fails_at_a_trial_is_not_taken_for_a_fast_one() {
    let class = class(0, 64);
    let mut history = History::closed(class);
    let failed = |of| Timed { has_failed: true, ..chunk(&[of], FAST) };
    let given = history.offer_until(class, 10_000, failed);
    assert_eq!(given.len(), 3, "{given:?}");
    // Nor does it make up for late chunks.
    let mut open = History::new();
    for _ in 0..3 {
        open.learn(&chunk(&[class], SLOW));
        (0..100).for_each(|_| open.learn(&failed(class)));
    }
    assert!(!open.times.admits(class, at(0)));
}

/// The worker's turns are longer than the bound, since the next engine does the class within them.
#[test]
fn a_trial_that_nobody_looked_for_opens_its_class_and_one_that_is_looked_for_in_vain_closes_it() {
    let class = class(0, 64);
    let mut history = History::closed(class);
    let unseen = |of| Timed { away: Duration::ZERO, ..chunk(&[of], Duration::from_millis(10)) };
    let given = history.offer_until(class, 1_500, unseen);
    assert!(given.first().is_some_and(|first| (1_000..1_100).contains(first)), "{given:?}");
    assert_eq!(given.len() as u64, 1_500 - given[0] + 1, "all that follow");
    history.learn(&chunk(&[class], SLOW));
    assert!(!history.times.admits(class, at(history.now)));
    // One that failed meanwhile says nothing of its device's time.
    let failed = |of| Timed { has_failed: true, ..unseen(of) };
    let given = History::closed(class).offer_until(class, 10_000, failed);
    assert_eq!(given.len(), 3, "{given:?}");
}

/// The worker had no processor for half a second.
#[test]
fn time_in_which_nobody_looked_lengthens_no_pause() {
    let (slow, other) = (class(0, 64), class(1, 64));
    let stopped = |of: &[Class], away| Timed { away, ..chunk(of, Duration::from_millis(500)) };
    let mut history = History::new();
    (0..3).for_each(|_| history.learn(&stopped(&[slow, other], BOUND + FAST)));
    history.pass_on(slow, 128, 998);
    history.pass_on(other, 128, 999);
    assert!(history.times.admits(slow, at(1000)));
    history.now = 1500;
    history.learn(&stopped(&[slow], FAST));
    assert!(history.times.admits(slow, at(1500)), "it is open");
    assert!(!history.times.admits(other, at(1500 + 127)), "128 times the bound");
    assert!(history.times.admits(other, at(1500 + 128)));
}

/// The share of a trial: 128 jobs are passed on for each.
#[test]
fn a_trial_has_as_many_jobs_as_its_share_until_its_chunk_goes() {
    let class = class(0, 64);
    let mut history = History::closed(class);
    history.pass_on(class, 1279, 999);
    let tried = (0..100).filter(|_| history.times.admits(class, at(1000))).count();
    assert_eq!(tried, 10, "of 1,280 since it was closed");
    let mut history = History::closed(class);
    history.pass_on(class, 128, 500);
    history.pass_on(class, 1152, 999);
    assert!(history.times.admits(class, at(1000)));
    assert!(history.times.submitted(&chunk(&[class], FAST).classes, at(1000)));
    assert!(!history.times.admits(class, at(1000)), "its chunk has gone");
}

#[test]
fn few_jobs_are_not_tried_at_all() {
    let class = class(0, 64);
    let mut history = History::closed(class);
    // One each minute.
    let given = (0..126).filter(|minute| history.times.admits(class, at(60_000 * minute)));
    assert_eq!(given.count(), 0);
    assert!(history.times.admits(class, at(60_000 * 126)));
}

/// One at a time, so that each is judged by its own chunk, and none while another has just been one.
#[test]
fn two_classes_are_tried_one_after_the_other() {
    let (slow, fast) = (class(0, 64), class(1, 64));
    let mut history = History::new();
    (0..3).for_each(|_| history.learn(&chunk(&[slow, fast], SLOW)));
    let mut passed_on = 0;
    for ms in 0..1000 {
        passed_on += [slow, fast].iter().filter(|of| !history.times.admits(**of, at(ms))).count();
    }
    assert_eq!(passed_on, 2000);
    assert!(history.times.admits(slow, at(1000)) && !history.times.admits(fast, at(1000)));
    history.now = 1005;
    history.learn(&chunk(&[slow], SLOW));
    assert!(!history.times.admits(fast, at(1005 + 639)), "128 times 5 ms");
    assert!(history.times.admits(fast, at(1005 + 640)));
    history.learn(&chunk(&[fast], FAST));
    assert!(history.times.admits(fast, at(1646)) && !history.times.admits(slow, at(1646)));
}

#[test]
fn chunks_beside_a_trial_are_not_blamed_for_it() {
    let (slow, fast) = (class(0, 64), class(1, 64));
    let mut history = History::closed(slow);
    history.pass_on(slow, 128, 1);
    assert!(history.times.admits(slow, at(1000)));
    let shared = Timed { is_beside: true, ..chunk(&[slow, fast], SLOW) };
    let behind = Timed { is_beside: true, ..chunk(&[fast], SLOW) };
    history.learn(&shared);
    (0..10).for_each(|_| history.learn(&behind));
    assert!(history.times.admits(fast, at(1001)));
}

/// Its jobs went to the next engine before the engine had room.
#[test]
fn a_trial_that_does_not_come_back_is_forgotten() {
    let class = class(0, 64);
    let mut history = History::closed(class);
    history.pass_on(class, 2000, 1);
    let trials =
        |history: &mut History, ms| (0..1000).filter(|_| history.times.admits(class, at(ms))).count();
    assert_eq!(trials(&mut history, 1000), 15);
    assert_eq!(trials(&mut history, 1999), 0, "it may still be on its way");
    assert!(trials(&mut history, 2000) > 0);
}

/// Only packets of another class come after it.
#[test]
fn a_trial_that_is_lost_excuses_no_other_class_for_long() {
    let (lost, other) = (class(0, 64), class(1, 64));
    let mut history = History::closed(lost);
    history.pass_on(lost, 128, 1);
    assert!(history.times.admits(lost, at(1000)));
    let late = chunk(&[other], SLOW);
    assert!(history.times.submitted(&late.classes, at(1999)), "it may still be on its way");
    history.now = 2000;
    for _ in 0..3 {
        let is_beside = history.times.submitted(&late.classes, at(2000));
        history.learn(&Timed { is_beside, ..late });
    }
    assert!(!history.times.admits(other, at(2000)));
}

/// It fails at all jobs inside the call, so that no chunk comes back.
#[test]
fn an_engine_that_fails_at_a_trial_at_once_has_its_class_closed_for_twice_as_long() {
    let class = class(0, 64);
    let trials = |has_failed| {
        let mut history = History::closed(class);
        let tried = (1..10_000).filter(|ms| {
            let is_tried = history.times.admits(class, at(*ms));
            if is_tried {
                history.times.ended_at_once(&chunk(&[class], FAST).classes, has_failed, at(*ms));
            }
            is_tried
        });
        tried.count()
    };
    assert_eq!(trials(true), 3);
    assert!(trials(false) > 3, "what it refuses it has not failed at");
}

#[test]
fn a_trial_whose_chunk_is_passed_over_is_over() {
    let (tried, other) = (class(0, 64), class(1, 64));
    let mut history = History::closed(tried);
    history.pass_on(tried, 128, 1);
    assert!(history.times.admits(tried, at(1000)));
    let (its, others) = (chunk(&[tried], SLOW).classes, chunk(&[other], SLOW).classes);
    history.times.pass_over(&others);
    assert!(history.times.submitted(&others, at(1001)));
    history.times.pass_over(&its);
    assert!(!history.times.submitted(&others, at(1001)));
}

#[test]
fn what_is_forgiven_does_not_close() {
    let class = class(0, 64);
    let mut history = History::new();
    (0..2).for_each(|_| history.learn(&chunk(&[class], SLOW)));
    history.times.forgive(&chunk(&[class], SLOW));
    (0..2).for_each(|_| history.learn(&chunk(&[class], SLOW)));
    assert!(history.times.admits(class, at(0)));
    history.learn(&chunk(&[class], SLOW));
    assert!(!history.times.admits(class, at(0)));
}

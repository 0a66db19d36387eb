//! What holds for replay windows, whether one worker has them or several share them.

#![allow(clippy::unwrap_used, reason = "test data")]

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Makes an empty window of a size, with extended numbers or without.
type Make = fn(u32, bool) -> ReplayWindow;

fn shared(size: u32, esn: bool) -> ReplayWindow {
    ReplayWindow::shared(Arc::new(SharedWindow::new(size, esn)))
}

/// Each test of this file about one worker's window, with both kinds of it.
macro_rules! for_both {
    ($($test:ident)+) => {
        mod owned {
            $(#[test] fn $test() { super::$test(super::ReplayWindow::new); })+
        }
        mod shared {
            $(#[test] fn $test() { super::$test(super::shared); })+
        }
    };
}

for_both! {
    agrees_with_a_set_of_all_numbers
    the_full_number_is_found_within_half_the_space
    a_restored_window_continues_where_it_was_saved
    a_window_that_is_off_refuses_nothing
    a_window_that_was_off_is_closed_when_it_is_on
    zero_is_never_received
    the_last_number_of_all_is_received_once
    a_restored_window_refuses_no_number_above_its_top
    a_closed_window_refuses_everything_up_to_its_top_and_nothing_above
    a_window_without_extended_numbers_is_not_closed_beyond_them
    rubbish_is_no_saved_window
}

/// The definition: a set of everything ever received.
struct Model {
    seen: BTreeSet<u64>,
    size: u64,
}

impl Model {
    fn commit(&mut self, sequence: u64) -> Result<(), ReplayError> {
        let top = self.seen.last().copied().unwrap_or(0);
        if sequence == 0 || top.saturating_sub(sequence) >= self.size {
            return Err(ReplayError::TooOld);
        }
        if self.seen.insert(sequence) { Ok(()) } else { Err(ReplayError::Duplicate) }
    }
}

/// Steps relative to the highest number so far: mostly near it, on either side of both edges, at times
/// far ahead.
fn steps(size: i64) -> impl Strategy<Value = Vec<i64>> {
    prop::collection::vec(
        prop_oneof![8 => -80i64..80, 4 => -size - 70..70i64, 2 => size - 70..3 * size, 1 => 0..1i64 << 40],
        1..400,
    )
}

fn model_check(model: &Model, sequence: u64) -> Result<(), ReplayError> {
    let mut probe = Model { seen: model.seen.clone(), size: model.size };
    probe.commit(sequence)
}

fn agrees_with_a_set_of_all_numbers(make: Make) {
    proptest!(|(size in prop_oneof![Just(32u32), Just(64), Just(96), Just(128), Just(4096), Just(65_536), Just(MAX_WINDOW)],
            seed in any::<u16>(), raw in steps(4096),)| {
            let mut window = make(size, true);
            let mut model = Model { seen: BTreeSet::new(), size: size.into() };
            let scale = |s: i64| if s.abs() > 80 { s * i64::from(size) / 4096 } else { s };
            for step in raw.into_iter().map(scale) {
                let sequence = (window.top() + u64::from(seed % 3)).saturating_add_signed(step);
                prop_assert_eq!(window.check(sequence), model_check(&model, sequence));
                prop_assert_eq!(window.commit(sequence), model.commit(sequence));
            }
    });
}

fn the_full_number_is_found_within_half_the_space(make: Make) {
    proptest!(|(top in any::<u64>(), offset in -4095i64..1 << 31)| {
            let mut window = make(4096, true);
            let top = top.clamp(1, u64::MAX - (1 << 33));
            window.commit(top).unwrap();
            let sequence = top.saturating_add_signed(offset).max(1);
            prop_assert_eq!(window.infer(sequence as u32), Ok(sequence));
    });
}

fn a_restored_window_continues_where_it_was_saved(make: Make) {
    proptest!(|(size in prop_oneof![Just(32u32), Just(64), Just(96), Just(256), Just(4096)],
            other in prop_oneof![Just(64u32), Just(256), Just(4096)],
            numbers in prop::collection::vec(1u64..10_000, 1..300),)| {
            let mut window = make(size, true);
            numbers.iter().for_each(|&n| window.commit(n).unwrap_or(()));
            let mut restored = make(other, true);
            prop_assert!(restored.restore(&window.save()));
            for n in 1..10_100 {
                let old = window.check(n);
                let new = restored.check(n);
                prop_assert!(new.is_err() || old.is_ok(), "{n} was {old:?} and is {new:?}");
                if window.top() < n + u64::from(other.min(size)) {
                    prop_assert_eq!(old, new);
                }
            }
    });
}

/// RFC 4303 3.4.3: the service is the receiver's choice. Numbers may wrap then (3.3.3).
fn a_window_that_is_off_refuses_nothing(make: Make) {
    let mut window = make(0, false);
    for number in [5, 5, 1_000_000, 5, u32::MAX.into(), 0, 1] {
        assert_eq!((window.check(number), window.commit(number)), (Ok(()), Ok(())), "{number}");
    }
    let mut restored = make(0, false);
    assert!(restored.restore(&window.save()) && restored.restore(&ReplayWindow::closed_up_to(9)));
    assert_eq!(restored.check(7), Ok(()));
    assert_eq!(make(0, true).size(), u64::from(MIN_WINDOW), "not with extended numbers");
}

/// A window that was off knows nothing of what it let pass: none of that is accepted once it is on.
fn a_window_that_was_off_is_closed_when_it_is_on(make: Make) {
    let mut off = make(0, false);
    [5, 900, 7].into_iter().for_each(|number| off.commit(number).unwrap());
    for (size, esn) in [(64, false), (4096, false), (4096, true)] {
        let mut on = make(size, esn);
        assert!(on.restore(&off.save()), "{size}, {esn}");
        assert_eq!(on.top(), 900);
        assert!((1..=900).all(|number| on.check(number).is_err()), "{size}, {esn}");
        assert_eq!((on.commit(901), on.commit(903), on.commit(902)), (Ok(()), Ok(()), Ok(())));
    }
}

fn zero_is_never_received(make: Make) {
    assert_eq!(make(64, false).check(0), Err(ReplayError::TooOld));
    assert_eq!(make(64, true).commit(0), Err(ReplayError::TooOld));
}

fn the_last_number_of_all_is_received_once(make: Make) {
    let mut window = make(64, true);
    assert_eq!(window.commit(u64::MAX), Ok(()));
    assert_eq!(window.commit(u64::MAX), Err(ReplayError::Duplicate));
    assert_eq!(window.commit(u64::MAX - 63), Ok(()));
    assert_eq!(window.commit(u64::MAX - 64), Err(ReplayError::TooOld));
    assert_eq!(window.infer(5), Err(ReplayError::TooOld));
}

fn a_restored_window_refuses_no_number_above_its_top(make: Make) {
    let mut bytes = make(64, true).save();
    bytes[0] = 5;
    bytes[16..].fill(0xFF);
    let mut window = make(64, true);
    assert!(window.restore(&bytes));
    assert_eq!(window.commit(5), Err(ReplayError::Duplicate));
    assert_eq!(window.commit(9), Ok(()));
    assert_eq!(window.commit(7), Ok(()));
}

fn a_closed_window_refuses_everything_up_to_its_top_and_nothing_above(make: Make) {
    for (size, top) in [(64, 1), (64, 63), (64, 64), (4096, 5000), (65_536, 1 << 33)] {
        let mut window = make(size, true);
        let saved = ReplayWindow::closed_up_to(top);
        assert!(ReplayWindow::is_closed(&saved) && !ReplayWindow::is_closed(&window.save()));
        assert!(window.restore(&saved));
        assert_eq!((window.top(), ReplayWindow::top_of(&saved)), (top, Some(top)));
        for number in top.saturating_sub(u64::from(size) + 70)..=top {
            assert!(window.check(number).is_err(), "{number} of {top}");
        }
        // Out of order, and all around the ring.
        for number in (top + 1..top + 3 * u64::from(size)).step_by(3) {
            assert_eq!(window.commit(number + 1), Ok(()), "{number} of {top}");
            assert_eq!(window.commit(number), Ok(()), "{number} of {top}");
        }
    }
}

fn a_window_without_extended_numbers_is_not_closed_beyond_them(make: Make) {
    let mut window = make(64, false);
    assert!(!window.restore(&ReplayWindow::closed_up_to(1 << 32)));
    assert!(window.restore(&ReplayWindow::closed_up_to(u32::MAX.into())));
    assert_eq!(window.check(u32::MAX.into()), Err(ReplayError::Duplicate));
}

fn rubbish_is_no_saved_window(make: Make) {
    let mut window = make(64, true);
    window.commit(7).unwrap();
    let good = window.save();
    for len in 0..good.len() {
        assert!(!window.restore(&good[..len]));
    }
    assert!(!window.restore(&[0xFF; 32]));
    assert_eq!(window.top(), 7);
}

/// Numbers in batches, through several workers' parts of one window, in an order by chance: each batch ends
/// as if its numbers came one by one.
#[test]
fn batches_of_any_worker_agree_with_a_set_of_all_numbers() {
    let sizes = prop_oneof![Just(32u32), Just(64), Just(96), Just(256), Just(4096)];
    let starts = prop_oneof![Just(0u64), Just(1 << 37), any::<u32>().prop_map(u64::from)];
    proptest!(|(size in sizes, seed in any::<u64>(), start in starts)| {
        let mut rng = fastrand::Rng::with_seed(seed);
        let window = Arc::new(SharedWindow::new(size, true));
        let mut model = Model { seen: BTreeSet::new(), size: size.into() };
        prop_assert_eq!(window.commit(start + 1), model.commit(start + 1));
        for _ in 0..rng.usize(1..12) {
            let reach = *rng.choice([40, u64::from(size), 3 * u64::from(size)].iter()).unwrap();
            let mut numbers: Vec<u64> = (0..rng.usize(1..70))
                .map(|_| (window.top() + rng.u64(0..2 * reach)).saturating_sub(reach))
                .collect();
            if rng.bool() {
                numbers.sort_unstable();
            }
            for number in &numbers {
                prop_assert_eq!(window.check(*number), model_check(&model, *number));
            }
            let expected: Vec<_> = numbers.iter().map(|number| model.commit(*number)).collect();
            let mut outcome = vec![Ok(()); numbers.len()];
            let numbered = numbers.iter().copied().enumerate();
            window.commit_batch(numbered, |place, error| outcome[place] = Err(error));
            prop_assert_eq!(outcome, expected);
        }
        let snapshot = window.snapshot();
        prop_assert_eq!(snapshot.top(), window.top());
        for number in window.top().saturating_sub(2 * u64::from(size))..=window.top() + 1 {
            prop_assert_eq!(snapshot.check(number), model_check(&model, number));
        }
    });
}

/// Runs of adjacent numbers, of a window among several of an SA: each ends as if its numbers came one by one.
#[test]
fn runs_of_one_of_several_windows_agree_with_a_set_of_all_numbers() {
    let starts = prop_oneof![Just(0u64), Just(1 << 37), Just(u64::MAX - 200)];
    proptest!(|(size in prop_oneof![Just(32u32), Just(64), Just(4096)], seed in any::<u64>(), start in starts)| {
        let mut rng = fastrand::Rng::with_seed(seed);
        let window = SharedWindow::using(size, true, Arc::new(crate::shared_use::SharedUse::new()));
        let mut model = Model { seen: BTreeSet::new(), size: size.into() };
        prop_assert_eq!(window.commit(start + 1), model.commit(start + 1));
        for _ in 0..rng.usize(1..40) {
            let first = window.top().saturating_add(rng.u64(0..100)).saturating_sub(rng.u64(0..150));
            let count = rng.u64(1..=64).min((u64::MAX - first).saturating_add(1));
            let numbers = (0..count).map(|ahead| first + ahead).enumerate();
            let expected: Vec<_> = numbers.clone().map(|(_, number)| model.commit(number)).collect();
            let mut outcome = vec![Ok(()); expected.len()];
            window.commit_run((first, count), numbers, |place, error| outcome[place] = Err(error));
            prop_assert_eq!(outcome, expected, "{} from {}", count, first);
        }
    });
}

/// Threads that receive the same numbers, each in an order of its own and in batches. A round has half a
/// window, so that nothing in it may be refused as too old: each number is accepted, by one thread.
#[test]
fn threads_accept_each_number_of_the_window_exactly_once() {
    const ROUNDS: u64 = 200;
    for (threads, size) in [(2, 64u32), (4, 64), (4, 4096)] {
        let window = Arc::new(SharedWindow::new(size, true));
        let barrier = std::sync::Barrier::new(threads);
        let half = u64::from(size) / 2;
        let accepted = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|seed| {
                    let (window, barrier) = (&window, &barrier);
                    scope.spawn(move || {
                        let mut rng = fastrand::Rng::with_seed(seed as u64);
                        let mut accepted = Vec::new();
                        for round in 0..ROUNDS {
                            let mut numbers: Vec<u64> = (1 + round * half..=(round + 1) * half).collect();
                            rng.shuffle(&mut numbers);
                            barrier.wait();
                            for batch in numbers.chunks(rng.usize(1..65)) {
                                let mut refused = BTreeSet::new();
                                window.commit_batch(batch.iter().copied().enumerate(), |place, error| {
                                    assert_eq!(error, ReplayError::Duplicate, "{} of {round}", batch[place]);
                                    refused.insert(place);
                                });
                                let is_new = |(place, _): &(usize, &u64)| !refused.contains(place);
                                accepted.extend(batch.iter().enumerate().filter(is_new).map(|(_, n)| *n));
                            }
                            barrier.wait();
                        }
                        accepted
                    })
                })
                .collect();
            let mut all: Vec<u64> = workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect();
            all.sort_unstable();
            all
        });
        assert!(accepted.into_iter().eq(1..=ROUNDS * half), "{threads} threads, window {size}");
    }
}

/// Threads that race past each other by more than the window, so that words are taken for other numbers while
/// somebody commits to them. What is accepted depends on who is first; that nothing is twice does not.
#[test]
fn threads_that_run_away_from_each_other_accept_nothing_twice() {
    let window = Arc::new(SharedWindow::new(32, true));
    let accepted: Vec<u64> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4u64)
            .map(|seed| {
                let window = &window;
                scope.spawn(move || {
                    let mut rng = fastrand::Rng::with_seed(seed);
                    let mut accepted = Vec::new();
                    while window.top() < 200_000 {
                        let from = window.top().saturating_sub(rng.u64(0..100));
                        let batch: Vec<u64> = (0..8).map(|_| from + rng.u64(0..160)).collect();
                        let mut kept = batch.clone();
                        window.commit_batch(batch.iter().copied().enumerate(), |place, _| kept[place] = 0);
                        accepted.extend(kept.into_iter().filter(|number| *number != 0));
                    }
                    accepted
                })
            })
            .collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    let distinct: BTreeSet<u64> = accepted.iter().copied().collect();
    assert_eq!(distinct.len(), accepted.len());
    assert!(distinct.len() > 1000);
}

#[test]
fn what_was_received_before_a_restart_is_refused_by_all_workers_after_it() {
    let window = Arc::new(SharedWindow::new(64, true));
    window.commit_batch([5, 9, 70].into_iter().enumerate(), |_, _| {});
    let restored = Arc::new(SharedWindow::new(64, true));
    assert!(restored.restore(&window.snapshot().save()));
    let mut parts = [(); 2].map(|()| ReplayWindow::shared(Arc::clone(&restored)));
    for part in &mut parts {
        assert_eq!([5, 9, 70].map(|n| part.commit(n)).map(|outcome| outcome.is_err()), [true; 3]);
        assert_eq!(part.top(), 70);
    }
    assert_eq!((parts[0].commit(71), parts[1].commit(71)), (Ok(()), Err(ReplayError::Duplicate)));
}

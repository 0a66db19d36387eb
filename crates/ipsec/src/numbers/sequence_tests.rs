//! What holds for the sequence numbers of an SA, whether one worker has them all or several share them.

#![allow(clippy::unwrap_used, reason = "test data")]

use super::lease::Waker;
use super::*;
use crate::lifetime::Moment;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// Makes the numbers of a worker, leased from the first one on.
type Make = fn(u64, bool, Arc<Lease>) -> SequenceNumbers;

/// A window that leaves room for everything.
const WIDE: u32 = u32::MAX;

fn shared(first: u64, esn: bool, lease: Arc<Lease>) -> SequenceNumbers {
    let source = NumberSource::Leased { first, lease };
    SequenceNumbers::shared(Arc::new(SharedNumbers::new(source, esn, WIDE, 2)).join().unwrap())
}

/// Each test of this file that takes numbers, with both kinds of them.
macro_rules! for_both {
    ($($test:ident)+) => {
        mod owned {
            $(#[test] fn $test() { super::$test(super::SequenceNumbers::new); })+
        }
        mod shared {
            $(#[test] fn $test() { super::$test(super::shared); })+
        }
    };
}

for_both! {
    numbers_come_in_order_and_end_with_the_lease
    a_block_is_requested_with_the_first_packet_and_then_when_half_is_used
    an_empty_lease_requests_at_once_and_wakes_the_granter
    the_last_lease_ends_in_exhaustion
    an_sa_that_ends_reports_its_unused_numbers
    thirty_two_bit_numbers_do_not_wrap
    extended_numbers_do_not_wrap
    nothing_is_requested_after_the_last_number
    random_reservations_agree_with_counting
}

fn numbers_come_in_order_and_end_with_the_lease(make: Make) {
    let lease = Arc::new(Lease::until(5));
    let mut numbers = make(1, true, Arc::clone(&lease));
    let taken: Vec<_> = std::iter::from_fn(|| numbers.reserve().ok()).collect();
    assert_eq!(taken, [1, 2, 3, 4]);
    assert_eq!(numbers.reserve(), Err(SequenceError::NotLeased));
    lease.grant(7);
    assert_eq!((numbers.reserve(), numbers.reserve()), (Ok(5), Ok(6)));
    assert_eq!(numbers.reserve(), Err(SequenceError::NotLeased));
}

fn a_block_is_requested_with_the_first_packet_and_then_when_half_is_used(make: Make) {
    let lease = Arc::new(Lease::until(11));
    let mut numbers = make(1, true, Arc::clone(&lease));
    assert!(!lease.take_request());
    numbers.reserve().unwrap();
    assert!(lease.take_request());
    lease.grant(111);
    (0..9).for_each(|_| assert!(numbers.reserve().is_ok()));
    assert!(!lease.take_request());
    (0..51).for_each(|_| assert!(numbers.reserve().is_ok()));
    assert!(lease.take_request());
    assert!(!lease.take_request());
}

fn an_empty_lease_requests_at_once_and_wakes_the_granter(make: Make) {
    let woken = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counter = Arc::clone(&woken);
    let waker: Waker = Arc::new(move || {
        counter.fetch_add(1, Ordering::Relaxed);
    });
    let lease = Arc::new(Lease::with_waker(1, waker));
    let mut numbers = make(1, true, Arc::clone(&lease));
    assert_eq!(numbers.reserve(), Err(SequenceError::NotLeased));
    assert_eq!(woken.load(Ordering::Relaxed), 1);
    assert!(lease.take_request());
    lease.grant(3);
    assert_eq!(numbers.reserve(), Ok(1));
    numbers.reserve().unwrap();
    assert_eq!(woken.load(Ordering::Relaxed), 2);
}

fn the_last_lease_ends_in_exhaustion(make: Make) {
    let lease = Arc::new(Lease::until(3));
    let mut numbers = make(1, true, Arc::clone(&lease));
    numbers.reserve().unwrap();
    lease.grant(4);
    lease.finish();
    assert_eq!((numbers.reserve(), numbers.reserve()), (Ok(2), Ok(3)));
    assert_eq!(numbers.reserve(), Err(SequenceError::Exhausted));
}

fn an_sa_that_ends_reports_its_unused_numbers(make: Make) {
    let lease = Arc::new(Lease::until(100));
    let mut numbers = make(1, true, Arc::clone(&lease));
    numbers.reserve_run(7).unwrap();
    assert_eq!(lease.unused(), None);
    drop(numbers);
    assert_eq!(lease.unused(), Some(8));
}

fn thirty_two_bit_numbers_do_not_wrap(make: Make) {
    let lease = Arc::new(Lease::until(u64::MAX));
    let mut numbers = make(u64::from(u32::MAX) - 1, false, lease);
    assert_eq!(numbers.reserve(), Ok(0xFFFF_FFFE));
    assert_eq!(numbers.reserve(), Ok(0xFFFF_FFFF));
    assert_eq!(numbers.reserve(), Err(SequenceError::Exhausted));
    assert_eq!(numbers.reserve(), Err(SequenceError::Exhausted));
}

fn extended_numbers_do_not_wrap(make: Make) {
    let lease = Arc::new(Lease::until(u64::MAX));
    let mut numbers = make(u64::MAX - 2, true, lease);
    assert_eq!(numbers.reserve(), Ok(u64::MAX - 2));
    assert_eq!(numbers.reserve(), Ok(u64::MAX - 1));
    assert_eq!(numbers.reserve(), Err(SequenceError::Exhausted));
}

fn nothing_is_requested_after_the_last_number(make: Make) {
    let lease = Arc::new(Lease::until(1 << 40));
    let mut numbers = make(u64::from(u32::MAX) - 9, false, Arc::clone(&lease));
    while numbers.reserve().is_ok() {}
    assert!(!lease.take_request());
}

/// What happens to the numbers of an SA.
#[derive(Debug, Clone, Copy)]
enum Step {
    Reserve,
    Run(u64),
    Grant(u64),
    Finish,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => Just(Step::Reserve),
        6 => (1u64..40).prop_map(Step::Run),
        3 => (0u64..60).prop_map(Step::Grant),
        1 => Just(Step::Finish),
    ];
    prop::collection::vec(step, 1..200)
}

/// The model: a number after the other, up to the end of the lease.
fn random_reservations_agree_with_counting(make: Make) {
    proptest!(|(steps in steps(), first in 1u64..100, granted in 0u64..50)| {
        let lease = Arc::new(Lease::until(first + granted));
        let mut numbers = make(first, true, Arc::clone(&lease));
        let (mut next, mut end, mut is_last) = (first, first + granted, false);
        let mut requested = false;
        for step in steps {
            match step {
                Step::Reserve if next < end => {
                    prop_assert_eq!(numbers.reserve(), Ok(next));
                    next += 1;
                }
                Step::Reserve if is_last => prop_assert_eq!(numbers.reserve(), Err(SequenceError::Exhausted)),
                Step::Reserve => {
                    requested |= lease.take_request();
                    prop_assert_eq!(numbers.reserve(), Err(SequenceError::NotLeased));
                    requested |= lease.take_request();
                    prop_assert!(requested, "who finds none has asked for more");
                }
                Step::Run(count) => match numbers.reserve_run(count) {
                    Some(first) => {
                        prop_assert_eq!(first, next);
                        next += count;
                        prop_assert!(next <= end);
                    }
                    // After an outage, one goes alone.
                    None => prop_assert_eq!(numbers.next(), next),
                },
                Step::Grant(more) if !is_last => {
                    requested &= more == 0;
                    end += more;
                    lease.grant(end);
                }
                Step::Grant(_) => {}
                Step::Finish => {
                    is_last = true;
                    lease.finish();
                }
            }
        }
        drop(numbers);
        prop_assert_eq!(lease.unused(), Some(next));
    });
}

#[test]
fn shared_numbers_of_a_key_that_dies_with_the_process_begin_at_1_and_end_as_others_do() {
    for (esn, last) in [(false, u64::from(u32::MAX)), (true, u64::MAX - 1)] {
        let all = Arc::new(SharedNumbers::new(NumberSource::Ephemeral, esn, WIDE, 2));
        let (mut one, mut two) = (all.join().unwrap(), all.join().unwrap());
        assert_eq!(one.reserve(1, 8), Ok(Block { first: 1, end: 9 }));
        assert_eq!(two.reserve(1, 8), Ok(Block { first: 9, end: 17 }));
        [&mut one, &mut two].into_iter().for_each(Reserver::handed_over_all);
        assert!(all.advance(last - 3) && !all.advance(last), "none would be left");
        assert_eq!(one.reserve(1, 8), Ok(Block { first: last - 2, end: last + 1 }));
        assert_eq!(two.reserve(1, 8), Err(SequenceError::Exhausted));
    }
}

#[test]
fn as_many_workers_as_there_are_slots_join_and_a_slot_is_free_when_its_worker_leaves() {
    let all = Arc::new(SharedNumbers::new(NumberSource::Ephemeral, true, 32, 3));
    let mut joined: Vec<_> = (0..3).map(|_| all.join().unwrap()).collect();
    assert!(all.join().is_none());
    joined.remove(1);
    assert!(all.join().is_some_and(|mut worker| worker.reserve(1, 1).is_ok()));
    let most = Arc::new(SharedNumbers::new(NumberSource::Ephemeral, true, 32, usize::MAX));
    let joined: Vec<_> = std::iter::from_fn(|| most.join()).collect();
    assert_eq!(joined.len(), MAX_SHARERS);
}

#[test]
fn numbers_are_unused_once_all_workers_have_left() {
    let lease = Arc::new(Lease::until(100));
    let source = NumberSource::Leased { first: 1, lease: Arc::clone(&lease) };
    let all = Arc::new(SharedNumbers::new(source, true, 32, 2));
    let (mut one, mut two) = (all.join().unwrap(), all.join().unwrap());
    drop(all);
    one.reserve(1, 4).unwrap();
    two.reserve(1, 3).unwrap();
    drop(one);
    assert_eq!(lease.unused(), None);
    assert_eq!(two.reserve(1, 2), Ok(Block { first: 8, end: 10 }));
    drop(two);
    assert_eq!(lease.unused(), Some(10));
}

#[test]
fn a_worker_that_leaves_or_hangs_holds_up_nobody_for_ever() {
    let at = |millis| Moment(std::time::Duration::from_millis(millis));
    let all = Arc::new(SharedNumbers::new(NumberSource::Ephemeral, true, 32, 3));
    let (mut dead, mut hangs, mut lives) = (all.join().unwrap(), all.join().unwrap(), all.join().unwrap());
    assert_eq!((all.block(), all.spread()), (8, 24));
    assert_eq!(dead.reserve(1, 8), Ok(Block { first: 1, end: 9 }));
    assert_eq!(hangs.reserve(1, 8), Ok(Block { first: 9, end: 17 }));
    assert_eq!(lives.reserve(1, 8), Ok(Block { first: 17, end: 25 }));
    assert_eq!(lives.reserve(1, 8), Err(SequenceError::PeerWindowFull));
    // A thread that panics drops what it has.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        let _dead = dead;
        panic!("as it is meant to");
    }))
    .unwrap_err();
    assert_eq!(lives.reserve(1, 8), Ok(Block { first: 25, end: 33 }));
    lives.handed_over_all();
    assert_eq!(lives.reserve(1, 8), Err(SequenceError::PeerWindowFull));
    for (millis, is_free) in [(0, false), (999, false), (1000, true)] {
        all.pass_over_stalled(at(5000 + millis));
        assert_eq!(lives.reserve(8, 8).is_ok(), is_free, "after {millis} ms");
    }
    // It was only slow: what it reserves now is waited for again.
    hangs.handed_over_all();
    lives.handed_over_all();
    assert_eq!(hangs.reserve(1, 8), Ok(Block { first: 41, end: 49 }));
    lives.reserve(8, 8).unwrap();
    lives.reserve(8, 8).unwrap();
    lives.handed_over_all();
    assert_eq!(lives.reserve(1, 8), Err(SequenceError::PeerWindowFull));
}

/// One that took the whole spread would have the others wait until it has sealed and sent all of it.
#[test]
fn a_worker_beside_others_leaves_room_for_them_and_one_alone_needs_not() {
    for (window, sharers, share) in [(32, 2, 8), (32, 4, 8), (1024, 2, 448), (2, 2, 1)] {
        let all = Arc::new(SharedNumbers::new(NumberSource::Ephemeral, true, window, sharers));
        let mut workers: Vec<_> = (0..sharers).map(|_| all.join().unwrap()).collect();
        let (one, others) = workers.split_first_mut().unwrap();
        let mut taken = 0;
        while !one.has_its_share() {
            let block = one.reserve(1, all.block()).unwrap();
            taken += block.end - block.first;
        }
        assert_eq!(taken, share, "window {window}, {sharers} workers");
        one.handed_over_all();
        // Nobody else reserves any.
        for _ in 0..100 {
            one.reserve(1, 1).unwrap();
            one.handed_over_all();
        }
        assert!(!one.has_its_share());
        while one.reserve(1, all.block()).is_ok() {}
        assert!(!one.has_its_share(), "alone, all of the spread is its own");
        one.handed_over_all();
        others[0].reserve(1, 1).unwrap();
        others[0].handed_over_all();
        let block = one.reserve(1, all.block()).unwrap();
        assert_eq!(one.has_its_share(), block.end - block.first >= share, "another one is back");
    }
}

#[test]
fn a_worker_that_makes_progress_is_not_passed_over() {
    let all = Arc::new(SharedNumbers::new(NumberSource::Ephemeral, true, 32, 2));
    let (mut slow, mut fast) = (all.join().unwrap(), all.join().unwrap());
    for second in 0..10 {
        let block = slow.reserve(1, 8).unwrap();
        while fast.reserve(1, 8).is_ok() {
            fast.handed_over_all();
        }
        assert_eq!(all.next(), block.first + all.spread());
        all.pass_over_stalled(Moment(std::time::Duration::from_secs(second)));
        slow.handed_over_below(block.first + 1);
        assert!(fast.reserve(1, 8).is_ok_and(|more| more.end - more.first == 1), "one more, and no more");
        slow.handed_over_all();
        fast.handed_over_all();
    }
}

/// Workers in one thread, in an order by chance, beside a model that knows what is in flight: each gets as
/// many numbers as it may have, and no more.
#[test]
fn reservations_in_any_order_agree_with_a_list_of_what_is_in_flight() {
    proptest!(|(seed in any::<u64>(), window in prop_oneof![Just(2u32), Just(4), 2u32..300, Just(4096)])| {
        let mut rng = fastrand::Rng::with_seed(seed);
        let lease = Arc::new(Lease::until(rng.u64(1..200)));
        let source = NumberSource::Leased { first: 1, lease: Arc::clone(&lease) };
        let all = Arc::new(SharedNumbers::new(source, true, window, 4));
        prop_assert!(all.spread() + all.block() == window.into());
        let mut workers: Vec<(Reserver, Vec<u64>)> =
            (0..4).map(|_| (all.join().unwrap(), Vec::new())).collect();
        let (mut next, mut end) = (1, lease.end());
        for _ in 0..rng.usize(1..300) {
            let low = workers.iter().flat_map(|(_, flying)| flying).min().copied().unwrap_or(next);
            let which = rng.usize(0..workers.len());
            let (worker, flying) = &mut workers[which];
            match rng.u8(0..10) {
                0..5 => {
                    let most = rng.u64(1..80);
                    let fit = (low + all.spread()).saturating_sub(next);
                    let count = most.min(all.block()).min(end - next).min(fit);
                    match worker.reserve(1, most) {
                        Ok(block) => {
                            prop_assert_eq!((block.first, block.end), (next, next + count));
                            flying.extend(next..next + count);
                            next += count;
                        }
                        Err(SequenceError::NotLeased) => prop_assert_eq!(next, end),
                        Err(error) => prop_assert!(fit == 0 && error == SequenceError::PeerWindowFull),
                    }
                }
                5..8 => {
                    let sent = rng.usize(0..flying.len() + 1);
                    flying.drain(..sent);
                    match flying.first() {
                        Some(first) => worker.handed_over_below(*first),
                        None => worker.handed_over_all(),
                    }
                }
                8 => {
                    *flying = Vec::new();
                    workers.swap_remove(which);
                    workers.push((all.join().unwrap(), Vec::new()));
                }
                _ => {
                    end += rng.u64(0..100);
                    lease.grant(end);
                }
            }
        }
    });
}

/// Threads that reserve, hold and hand over: no number twice, none left out, and at each moment all in flight
/// lie within the spread. Which thread gets what differs from run to run; what is checked does not.
#[test]
fn threads_never_have_numbers_in_flight_that_are_farther_apart_than_the_spread() {
    const EACH: usize = 5000;
    for (threads, window) in [(2, 32), (4, 32), (4, 64), (8, 256)] {
        let all = Arc::new(SharedNumbers::new(NumberSource::Ephemeral, true, window, threads));
        let flying = Mutex::new(BTreeSet::new());
        let used = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for seed in 0..threads {
                let (mut worker, flying, used, all) = (all.join().unwrap(), &flying, &used, &all);
                scope.spawn(move || {
                    let mut rng = fastrand::Rng::with_seed(seed as u64);
                    let mut own = Vec::with_capacity(EACH + 64);
                    while own.len() < EACH {
                        let Ok(block) = worker.reserve(1, rng.u64(1..40)) else {
                            std::thread::yield_now();
                            continue;
                        };
                        own.extend(block.first..block.end);
                        let check = |flying: &BTreeSet<u64>| {
                            let span = flying.last().unwrap_or(&0) + 1 - flying.first().unwrap_or(&0);
                            assert!(span <= all.spread(), "{span} of {}", all.spread());
                        };
                        let mut now = flying.lock().unwrap();
                        now.extend(block.first..block.end);
                        check(&now);
                        drop(now);
                        if rng.bool() {
                            std::thread::yield_now();
                        }
                        for number in block.first..block.end {
                            flying.lock().unwrap().remove(&number);
                            worker.handed_over_below(number + 1);
                        }
                    }
                    used.lock().unwrap().extend(own);
                });
            }
        });
        let mut used = used.into_inner().unwrap();
        used.sort_unstable();
        assert!(used.iter().copied().eq(1..all.next()), "{threads} threads, {window}");
    }
}

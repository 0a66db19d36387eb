use super::*;
use crate::dispatcher::live::label;
use crate::dispatcher::live::tests::{Odd, SUITE, dispatcher, submit, submit_of};
use crate::scheduler::{Share, job};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use testudo_crypto::{Direction, JobStatus, KeyId, KeyMaterial, Suite};
use testudo_ipsec::SaRef;
use zeroize::Zeroizing;

const BATCH: u32 = 32;

/// Two engines that end jobs inside `submit`, of which the first costs less, and an SA.
fn two() -> (Dispatcher, SaRef) {
    let (mut dispatcher, sa) = dispatcher(["first", "second"].map(Odd::new));
    know(&mut dispatcher, 0, [1; CLASSES]);
    know(&mut dispatcher, 1, [2; CLASSES]);
    (dispatcher, sa)
}

/// What jobs of each class cost an engine, in microseconds.
fn know(dispatcher: &mut Dispatcher, engine: usize, us: [u64; CLASSES]) {
    let costs = &mut dispatcher.live.as_mut().unwrap().costs;
    us.iter()
        .enumerate()
        .for_each(|(class, us)| costs.know(engine, label(0, class), Duration::from_micros(*us)));
}

/// One more SA of the same suite.
fn another(dispatcher: &mut Dispatcher) -> SaRef {
    one_more(dispatcher, 2)
}

fn one_more(dispatcher: &mut Dispatcher, number: u32) -> SaRef {
    let bytes = Zeroizing::new(vec![8; SUITE.keying_material_bytes()]);
    let material = KeyMaterial::new(SUITE, bytes).unwrap();
    let (sa, key) = (SaRef::from_bits(number), dispatcher.install(material.into(), Direction::Seal).unwrap());
    dispatcher.connect(Direction::Seal, sa, key, SUITE);
    sa
}

fn named(dispatcher: &mut Dispatcher, sa: SaRef) -> Option<u32> {
    let lane = dispatcher.lanes.get_mut(Direction::Seal, sa).unwrap();
    lane.is_settled.then_some(lane.first.0)
}

fn rows(dispatcher: &Dispatcher) -> Vec<Share> {
    dispatcher.shares().unwrap().snapshot().rows
}

fn totals(dispatcher: &Dispatcher) -> [u64; 2] {
    let total = |name| rows(dispatcher).iter().filter(|row| row.engine == name).map(Share::total).sum();
    ["first", "second"].map(total)
}

#[test]
fn jobs_of_a_settled_suite_are_counted_and_seldom_decided_of() {
    let (mut dispatcher, sa) = two();
    let all = [JobStatus::Done; BATCH as usize];
    (0..1000).for_each(|_| assert_eq!(submit(&mut dispatcher, sa, BATCH), all));
    assert_eq!(named(&mut dispatcher, sa), Some(0));
    assert_eq!(totals(&dispatcher), [u64::from(1000 * BATCH), 0]);
    // Each that was decided of is learned of, and took no time on a clock that stands.
    let before = dispatcher.live.as_ref().unwrap().costs.known(0, label(0, 0));
    let us = Duration::from_micros(1);
    dispatcher.live.as_mut().unwrap().costs.know(0, label(0, 0), us);
    let learned = (0..64 * 64).filter(|_| {
        let known = |dispatcher: &Dispatcher| dispatcher.live.as_ref().unwrap().costs.known(0, label(0, 0));
        let before = known(&dispatcher);
        submit(&mut dispatcher, sa, BATCH);
        known(&dispatcher) != before
    });
    let learned = learned.count();
    assert!((56..=72).contains(&learned) && before < 1_000_000, "{learned} of 4,096 submissions");
}

/// Rekeying makes new SAs of suites of which all is known.
#[test]
fn a_new_sa_of_a_settled_suite_names_its_engine_before_its_first_packet() {
    let (mut dispatcher, sa) = two();
    let other = another(&mut dispatcher);
    submit(&mut dispatcher, sa, BATCH);
    assert_eq!([sa, other].map(|sa| named(&mut dispatcher, sa)), [Some(0), None]);
    let new = one_more(&mut dispatcher, 3);
    assert_eq!(named(&mut dispatcher, new), Some(0));
    assert_eq!(submit(&mut dispatcher, new, BATCH), [JobStatus::Done; BATCH as usize]);
    assert_eq!(totals(&dispatcher), [u64::from(2 * BATCH), 0]);
    // Its jobs of a class that another engine has are decided of until its key is there.
    know(&mut dispatcher, 1, [2, 2, 2, 2, 2, 2, 0]);
    for (sa, done) in [(sa, 1), (new, 2), (sa, 3), (new, 4)] {
        assert_eq!(submit_of(&mut dispatcher, sa, BATCH, 2000), [JobStatus::Done; BATCH as usize]);
        assert_eq!(totals(&dispatcher), [u64::from(2 * BATCH), u64::from(done * BATCH)]);
    }
    assert_eq!([sa, new].map(|sa| named(&mut dispatcher, sa)), [Some(0); 2]);
}

/// What that has delays its jobs, and each may be back sooner elsewhere.
#[test]
fn a_new_sa_whose_key_a_device_may_take_is_decided_of() {
    let [first, mut device, second] = ["first", "device", "second"].map(Odd::new);
    (device.is_synchronous, device.takes_keys) = (false, false);
    let (mut dispatcher, sa) = dispatcher([first, device, second]);
    (0..3).for_each(|engine| know(&mut dispatcher, engine, [engine as u64; CLASSES]));
    let key = dispatcher.lanes.get_mut(Direction::Seal, sa).unwrap().key;
    assert_eq!(dispatcher.placement.key_at(key, 1), None, "the device is full");
    submit(&mut dispatcher, sa, BATCH);
    assert_eq!(named(&mut dispatcher, sa), Some(0));
    let new = another(&mut dispatcher);
    assert_eq!(named(&mut dispatcher, new), None);
}

/// All of it is decided of, though the first of its jobs are of a class that is known.
#[test]
fn a_submission_with_a_class_that_is_new_is_counted_once() {
    let (mut dispatcher, sa) = two();
    submit(&mut dispatcher, sa, BATCH);
    let of_sa = |number: u32| {
        let bytes = if number % 4 < 2 { 64 } else { 2000 };
        Job { sa: sa.bits(), ..job(SUITE, bytes, number, KeyId::NONE) }
    };
    let (mut jobs, mut released): (Vec<Job>, _) = ((0..BATCH).map(of_sa).collect(), Vec::new());
    let in_place = dispatcher.submit(&mut jobs, &mut released);
    assert!(in_place && jobs.iter().all(|job| job.status == JobStatus::Done));
    assert_eq!(totals(&dispatcher), [u64::from(2 * BATCH), 0]);
    assert_eq!(rows(&dispatcher).iter().map(Share::total).filter(|total| *total > 0).count(), 2);
}

/// Each costs the worker a time that is not worth it: packets of 1,400 bytes are 9 in a submission under full
/// load.
#[test]
fn submissions_of_few_jobs_are_decided_of_as_seldom_as_those_of_many() {
    for jobs in [1, 9, 15] {
        let (mut dispatcher, sa) = two();
        submit(&mut dispatcher, sa, BATCH);
        let known = |dispatcher: &Dispatcher| dispatcher.live.as_ref().unwrap().costs.known(0, label(0, 0));
        let us = Duration::from_micros(1);
        dispatcher.live.as_mut().unwrap().costs.know(0, label(0, 0), us);
        let learned = (0..64 * 2048 / jobs).filter(|_| {
            let before = known(&dispatcher);
            submit(&mut dispatcher, sa, jobs);
            known(&dispatcher) != before
        });
        let learned = learned.count();
        assert!((50..=78).contains(&learned), "{learned} of {} submissions of {jobs}", 64 * 2048 / jobs);
        assert_eq!(totals(&dispatcher), [u64::from(BATCH + 64 * 2048 / jobs * jobs), 0]);
    }
}

/// The jobs of one submission, texts of 64 bytes and, one of so many, of 2,000.
fn mixed(sa: SaRef, count: u32, one_of: u32) -> Vec<Job> {
    let of_sa = |number: u32| {
        let bytes = if number % one_of == one_of - 1 { 2000 } else { 64 };
        Job { sa: sa.bits(), ..job(SUITE, bytes, number, KeyId::NONE) }
    };
    (0..count).map(of_sa).collect()
}

/// Long ones are another engine's: that is found with the first of them, and then nothing more is to be
/// decided.
#[test]
fn classes_of_a_settled_suite_may_have_other_engines() {
    let (mut dispatcher, sa) = two();
    know(&mut dispatcher, 1, [2, 2, 2, 2, 2, 2, 0]);
    assert_eq!(submit_of(&mut dispatcher, sa, BATCH, 64).len(), 32);
    assert_eq!(submit_of(&mut dispatcher, sa, BATCH, 2000).len(), 32);
    assert_eq!(named(&mut dispatcher, sa), Some(0));
    // Costs are set anew: a submission that is decided of is measured, and changes them.
    let us = [9, 9, 9, 9, 9, 9, 0];
    [0, 1].into_iter().for_each(|engine| know(&mut dispatcher, engine, us));
    let decided = |dispatcher: &Dispatcher| dispatcher.live.as_ref().unwrap().costs.known(0, label(0, 0));
    let before = decided(&dispatcher);
    for _ in 0..15 {
        let mut jobs = mixed(sa, BATCH, 4);
        assert!(dispatcher.submit(&mut jobs, &mut Vec::new()), "in place");
        let numbers: Vec<_> = jobs.iter().map(|job| (job.sequence, job.status)).collect();
        assert!(numbers.into_iter().eq((0..u64::from(BATCH)).map(|number| (number, JobStatus::Done))));
    }
    assert_eq!((named(&mut dispatcher, sa), decided(&dispatcher)), (Some(0), before));
    assert_eq!(totals(&dispatcher), [u64::from(BATCH + 15 * 24), u64::from(BATCH + 15 * 8)]);
    // Alone, and where another engine has something, they go there, too.
    assert_eq!(submit_of(&mut dispatcher, sa, BATCH, 2000), [JobStatus::Done; BATCH as usize]);
    assert_eq!(totals(&dispatcher)[1], u64::from(2 * BATCH + 15 * 8));
}

/// Beside an engine elsewhere, of other suites, each job takes the long way.
#[test]
fn jobs_of_a_class_that_another_engine_has_go_there_where_not_all_end_inside_submit() {
    let [first, second, mut device] = ["first", "second", "device"].map(Odd::new);
    (device.is_synchronous, device.does_nothing) = (false, true);
    let (mut dispatcher, sa) = dispatcher([first, second, device]);
    know(&mut dispatcher, 0, [1; CLASSES]);
    know(&mut dispatcher, 1, [2, 2, 2, 2, 2, 2, 0]);
    submit_of(&mut dispatcher, sa, BATCH, 64);
    submit_of(&mut dispatcher, sa, BATCH, 2000);
    assert_eq!(named(&mut dispatcher, sa), Some(0));
    for _ in 0..15 {
        let mut released = Vec::new();
        assert!(!dispatcher.submit(&mut mixed(sa, BATCH, 4), &mut released));
        let numbers = released.iter().map(|job| (job.sequence, job.status));
        assert!(numbers.eq((0..u64::from(BATCH)).map(|number| (number, JobStatus::Done))), "in order");
    }
    assert_eq!(totals(&dispatcher), [u64::from(BATCH + 15 * 24), u64::from(BATCH + 15 * 8)]);
}

/// Three engines, of which the first has short jobs and the second long ones, and an SA of which both are
/// known.
fn split(second: Odd) -> (Dispatcher, SaRef) {
    let [first, third] = ["first", "third"].map(Odd::new);
    let (mut dispatcher, sa) = dispatcher([first, second, third]);
    know(&mut dispatcher, 0, [1; CLASSES]);
    know(&mut dispatcher, 1, [2, 2, 2, 2, 2, 2, 0]);
    know(&mut dispatcher, 2, [9; CLASSES]);
    [64, 2000].into_iter().for_each(|bytes| drop(submit_of(&mut dispatcher, sa, BATCH, bytes)));
    (dispatcher, sa)
}

/// Nothing is decided for it, though another engine has the class.
#[test]
fn jobs_of_a_class_whose_engine_refuses_the_key_stay_with_the_engine_of_the_suite() {
    let second = Odd::new("second");
    let later = Arc::clone(&second.later);
    let (mut dispatcher, sa) = split(second);
    assert_eq!((named(&mut dispatcher, sa), totals(&dispatcher)[1]), (Some(0), u64::from(BATCH)));
    later.refuses_keys.store(true, Ordering::Relaxed);
    let other = another(&mut dispatcher);
    submit_of(&mut dispatcher, other, BATCH, 64);
    submit_of(&mut dispatcher, other, BATCH, 2000);
    let before = totals(&dispatcher);
    let known = |dispatcher: &Dispatcher| dispatcher.live.as_ref().unwrap().costs.known(0, label(0, 6));
    let was = known(&dispatcher);
    for _ in 0..15 {
        assert_eq!(submit_of(&mut dispatcher, other, BATCH, 2000), [JobStatus::Done; BATCH as usize]);
    }
    assert_eq!(totals(&dispatcher), [before[0] + u64::from(15 * BATCH), before[1]]);
    assert_eq!(known(&dispatcher), was, "none was decided of, and so none measured");
}

/// The first failure has the SA name no engine any more, and the jobs behind it are still those of that one.
#[test]
fn an_engine_that_fails_at_the_class_that_it_has_loses_no_job() {
    let second = Odd::new("second");
    let later = Arc::clone(&second.later);
    let (mut dispatcher, sa) = split(second);
    submit(&mut dispatcher, sa, BATCH);
    later.fails_from.store(1000, Ordering::Relaxed);
    for _ in 0..40 {
        let (mut jobs, mut released) = (mixed(sa, BATCH, 4), Vec::new());
        let in_place = dispatcher.submit(&mut jobs, &mut released);
        let ended = if in_place { jobs } else { released };
        let numbers = ended.iter().map(|job| (job.sequence, job.status));
        assert!(numbers.eq((0..u64::from(BATCH)).map(|number| (number, JobStatus::Done))), "in order");
    }
    assert!(!dispatcher.is_busy());
}

/// Lengths of two engines alternate, and an engine that prefers bursts gets no single jobs.
#[test]
fn each_engine_gets_its_jobs_of_a_submission_together() {
    let engines = ["first", "second"].map(Odd::new);
    let calls = [0, 1].map(|at: usize| Arc::clone(&engines[at].later));
    let (mut dispatcher, sa) = dispatcher(engines);
    know(&mut dispatcher, 0, [1; CLASSES]);
    know(&mut dispatcher, 1, [2, 0, 2, 2, 2, 2, 2]);
    [64, 100].into_iter().for_each(|bytes| drop(submit_of(&mut dispatcher, sa, BATCH, bytes)));
    let before = totals(&dispatcher);
    let called = || [0, 1].map(|at: usize| calls[at].calls.load(Ordering::Relaxed));
    submit(&mut dispatcher, sa, BATCH);
    let was = called();
    let of_sa = |number: u32| {
        let bytes = if number.is_multiple_of(2) { 40 } else { 100 };
        Job { sa: sa.bits(), ..job(SUITE, bytes, number, KeyId::NONE) }
    };
    let mut jobs: Vec<Job> = (0..BATCH).map(of_sa).collect();
    assert!(dispatcher.submit(&mut jobs, &mut Vec::new()), "in place");
    assert!(jobs.iter().map(|job| job.sequence).eq(0..u64::from(BATCH)), "in order");
    assert_eq!(called(), [was[0] + 1, was[1] + 1]);
    let half = u64::from(BATCH / 2);
    assert_eq!(totals(&dispatcher), [before[0] + u64::from(BATCH) + half, before[1] + half]);
}

/// Whichever direction is the first of a turn: the clock is that of the turn.
#[test]
fn a_worker_that_has_little_to_do_soon_decides_of_few_jobs_of_every_kind() {
    let (mut dispatcher, sa) = two();
    let other = another(&mut dispatcher);
    for (sa, bytes) in [(sa, 64), (other, 1400)] {
        submit_of(&mut dispatcher, sa, BATCH, bytes);
    }
    for class in [0, 5] {
        dispatcher.live.as_mut().unwrap().costs.know(0, label(0, class), Duration::from_millis(1));
        dispatcher.live.as_mut().unwrap().costs.know(1, label(0, class), Duration::from_millis(2));
    }
    let mut decided = [0; 2];
    for half in 1..=200 {
        dispatcher.poll(Moment(Duration::from_micros(500 * half)), &mut Vec::new());
        for (at, sa, count, bytes, class) in [(0, sa, 3, 64, 0), (1, other, 9, 1400, 5)] {
            let known = |of: &Dispatcher| of.live.as_ref().unwrap().costs.known(0, label(0, class));
            let before = known(&dispatcher);
            submit_of(&mut dispatcher, sa, count, bytes);
            decided[at] += u32::from(known(&dispatcher) != before);
        }
    }
    assert!(decided[0] >= 10 && decided[1] >= 30 && decided.iter().sum::<u32>() <= 101, "{decided:?}");
}

/// What the suite's engine refuses is named another.
#[test]
fn an_sa_whose_key_the_engine_of_the_suite_refuses_keeps_no_submission_from_the_short_way() {
    let [first, second, third] = ["first", "second", "third"].map(Odd::new);
    let later = Arc::clone(&first.later);
    let (mut dispatcher, sa) = dispatcher([first, second, third]);
    (0..3).for_each(|engine| know(&mut dispatcher, engine, [1 + engine as u64; CLASSES]));
    submit(&mut dispatcher, sa, BATCH);
    later.refuses_keys.store(true, Ordering::Relaxed);
    let other = another(&mut dispatcher);
    submit(&mut dispatcher, other, BATCH);
    assert_eq!([sa, other].map(|sa| named(&mut dispatcher, sa)), [Some(0), Some(1)]);
    let known = |dispatcher: &Dispatcher| dispatcher.live.as_ref().unwrap().costs.known(1, label(0, 0));
    // The first that could go the short way is due.
    submit(&mut dispatcher, other, BATCH);
    let was = known(&dispatcher);
    for _ in 0..15 {
        assert_eq!(submit(&mut dispatcher, other, BATCH), [JobStatus::Done; BATCH as usize]);
    }
    assert_eq!(known(&dispatcher), was, "none was decided of, and so none measured");
}

/// Two suites on an engine each, of which one fails.
#[test]
fn an_engine_that_fails_at_several_jobs_of_a_suite_beside_another_loses_no_job() {
    let first = Odd::new("first");
    let later = Arc::clone(&first.later);
    let (mut dispatcher, sa) = dispatcher([first, Odd::new("second")]);
    know(&mut dispatcher, 0, [2; CLASSES]);
    know(&mut dispatcher, 1, [1; CLASSES]);
    let suite = Suite::AES256GCM16;
    let bytes = Zeroizing::new(vec![8; suite.keying_material_bytes()]);
    let material = KeyMaterial::new(suite, bytes).unwrap();
    let (other, key) = (SaRef::from_bits(2), dispatcher.install(material.into(), Direction::Seal).unwrap());
    dispatcher.connect(Direction::Seal, other, key, suite);
    for class in 0..CLASSES {
        let costs = &mut dispatcher.live.as_mut().unwrap().costs;
        costs.know(0, label(1, class), Duration::from_micros(1));
        costs.know(1, label(1, class), Duration::from_micros(2));
    }
    let of_both = |number: u32| match number % 4 == 3 {
        true => Job { sa: other.bits(), ..job(suite, 1024, number, KeyId::NONE) },
        false => Job { sa: sa.bits(), ..job(SUITE, 64, number, KeyId::NONE) },
    };
    let submit = |dispatcher: &mut Dispatcher| {
        let (mut jobs, mut released): (Vec<Job>, _) = ((0..BATCH).map(of_both).collect(), Vec::new());
        let in_place = dispatcher.submit(&mut jobs, &mut released);
        let ended = if in_place { jobs } else { released };
        assert!(ended.iter().all(|job| job.status == JobStatus::Done));
        for sa in [sa, other] {
            let its = ended.iter().filter(|job| job.sa == sa.bits()).map(|job| job.sequence);
            assert!(its.is_sorted(), "in order");
        }
        assert_eq!(ended.len(), BATCH as usize);
    };
    (0..3).for_each(|_| submit(&mut dispatcher));
    assert_eq!([sa, other].map(|sa| named(&mut dispatcher, sa)), [Some(1), Some(0)]);
    assert!(!dispatcher.moves, "each goes where its lane says");
    later.fails_from.store(1000, Ordering::Relaxed);
    (0..40).for_each(|_| submit(&mut dispatcher));
    assert!(!dispatcher.is_busy());
}

/// With random lengths some class is always rare.
#[test]
fn few_jobs_of_a_class_that_is_not_settled_keep_no_submission_from_the_short_way() {
    for (one_of, is_short) in [(8, true), (4, false)] {
        let (mut dispatcher, sa) = two();
        let costs = &mut dispatcher.live.as_mut().unwrap().costs;
        costs.presume(1, label(0, 6), Duration::from_micros(2));
        costs.presume(0, label(0, 6), Duration::from_micros(1));
        submit(&mut dispatcher, sa, BATCH);
        // Of one that is new is decided in any case.
        let new = |dispatcher: &mut Dispatcher| {
            let before = dispatcher.live.as_ref().unwrap().costs.known(0, label(0, 0));
            dispatcher.submit(&mut mixed(sa, BATCH, one_of), &mut Vec::new());
            dispatcher.live.as_ref().unwrap().costs.known(0, label(0, 0)) != before
        };
        assert!(new(&mut dispatcher), "one of {one_of}");
        let decided = (0..10).filter(|_| new(&mut dispatcher)).count();
        assert_eq!(decided, if is_short { 0 } else { 10 }, "one of {one_of}");
        let all: u64 = totals(&dispatcher).iter().sum();
        assert_eq!(all, u64::from(12 * BATCH), "each is counted once");
    }
}

#[test]
fn a_suite_goes_to_the_engine_that_has_become_better_and_its_lanes_follow() {
    let (mut dispatcher, sa) = two();
    assert_eq!(submit(&mut dispatcher, sa, BATCH).len(), 32);
    assert_eq!(named(&mut dispatcher, sa), Some(0));
    know(&mut dispatcher, 0, [4; CLASSES]);
    know(&mut dispatcher, 1, [1; CLASSES]);
    for batch in 0..400 {
        dispatcher.poll(Moment(Duration::from_millis(batch)), &mut Vec::new());
        submit(&mut dispatcher, sa, BATCH);
    }
    assert_eq!(named(&mut dispatcher, sa), Some(1));
    let [first, second] = totals(&dispatcher);
    assert_eq!(first + second, u64::from(401 * BATCH));
    assert!(second > first, "{second} of {}", first + second);
}

#[test]
fn an_engine_out_of_service_is_named_by_no_settled_lane() {
    let (mut dispatcher, sa) = two();
    assert_eq!(submit(&mut dispatcher, sa, BATCH).len(), 32);
    assert_eq!(named(&mut dispatcher, sa), Some(0));
    assert_eq!(dispatcher.withdraw(0, crate::WithdrawalReason::KeptPackets, &mut Vec::new()), 0);
    assert_eq!(named(&mut dispatcher, sa), None);
    assert_eq!(submit(&mut dispatcher, sa, BATCH), [JobStatus::Done; BATCH as usize]);
    // The lane of an SA that only one engine takes names it, and its jobs are not counted.
    assert_eq!(totals(&dispatcher), [u64::from(BATCH), 1]);
}

/// It fails at the first job of each submission, which another does.
#[test]
fn a_suite_leaves_an_engine_that_fails() {
    let [mut first, second] = ["first", "second"].map(Odd::new);
    first.fails = true;
    let (mut dispatcher, sa) = dispatcher([first, second]);
    know(&mut dispatcher, 0, [1; CLASSES]);
    know(&mut dispatcher, 1, [2; CLASSES]);
    for batch in 0..100 {
        dispatcher.poll(Moment(Duration::from_millis(batch)), &mut Vec::new());
        assert_eq!(submit(&mut dispatcher, sa, BATCH), [JobStatus::Done; BATCH as usize]);
    }
    let passed_on: u64 = rows(&dispatcher).iter().map(|row| row.passed_on).sum();
    assert_eq!(totals(&dispatcher).iter().sum::<u64>(), u64::from(100 * BATCH) + passed_on);
}

/// Another SA's submissions do not stand for those that fail.
#[test]
fn an_sa_leaves_an_engine_that_fails_at_its_jobs_whatever_others_do() {
    let [mut first, second] = ["second", "first"].map(Odd::new);
    first.fails_from = 1000;
    let (mut dispatcher, sa) = dispatcher([second, first]);
    know(&mut dispatcher, 0, [2; CLASSES]);
    know(&mut dispatcher, 1, [1; CLASSES]);
    let other = another(&mut dispatcher);
    let mut faults = 0;
    for batch in 0..200 {
        dispatcher.poll(Moment(Duration::from_millis(batch)), &mut Vec::new());
        assert_eq!(submit_of(&mut dispatcher, other, BATCH, 64), [JobStatus::Done; BATCH as usize]);
        let statuses = submit_of(&mut dispatcher, sa, BATCH, 1400);
        faults += statuses.iter().filter(|status| **status == JobStatus::Fault).count();
    }
    assert!(faults <= 2 * 64, "{faults} of {} packets", 200 * BATCH);
}

/// Few of another SA between many do not keep these from being measured: each kind is counted for itself.
#[test]
fn submissions_of_few_jobs_do_not_stand_for_those_of_many() {
    let (mut dispatcher, sa) = two();
    let other = another(&mut dispatcher);
    for (class, bytes) in [(0, 64), (5, 1400)] {
        submit_of(&mut dispatcher, sa, BATCH, bytes);
        let costs = &mut dispatcher.live.as_mut().unwrap().costs;
        costs.know(0, label(0, class), Duration::from_millis(1));
        costs.know(1, label(0, class), Duration::from_millis(2));
    }
    let mut decided = [0; 2];
    for _ in 0..4096 {
        for (at, sa, count, bytes, class) in [(0, other, 5, 64, 0), (1, sa, BATCH, 1400, 5)] {
            let known = |of: &Dispatcher| of.live.as_ref().unwrap().costs.known(0, label(0, class));
            let before = known(&dispatcher);
            submit_of(&mut dispatcher, sa, count, bytes);
            decided[at] += u32::from(known(&dispatcher) != before);
        }
    }
    assert!((6..=16).contains(&decided[0]) && (54..=74).contains(&decided[1]), "{decided:?} of 4,096 each");
}

/// Where the sizes of submissions have a rhythm.
#[test]
fn every_sa_is_measured_whatever_the_order_of_submissions() {
    let (mut dispatcher, sa) = two();
    let other = another(&mut dispatcher);
    let known =
        |dispatcher: &Dispatcher, class| dispatcher.live.as_ref().unwrap().costs.known(0, label(0, class));
    submit_of(&mut dispatcher, sa, BATCH, 1400);
    submit_of(&mut dispatcher, other, 2 * BATCH, 64);
    let before = [0, 5].map(|class| known(&dispatcher, class));
    for _ in 0..1000 {
        submit_of(&mut dispatcher, other, 2 * BATCH, 64);
        submit_of(&mut dispatcher, sa, BATCH, 1400);
    }
    let after = [0, 5].map(|class| known(&dispatcher, class));
    assert!(after[0] < before[0] && after[1] < before[1], "{before:?} {after:?}");
}

#[test]
fn a_class_that_is_new_goes_to_the_engine_of_the_suite_unless_another_is_clearly_better() {
    let (mut dispatcher, sa) = two();
    for (engine, us) in [(0, [10, 10, 10, 10, 100, 100, 100]), (1, [20, 20, 20, 9, 96, 50, 50])] {
        know(&mut dispatcher, engine, us);
    }
    submit_of(&mut dispatcher, sa, BATCH, 64);
    submit_of(&mut dispatcher, sa, BATCH, 1000);
    assert_eq!(named(&mut dispatcher, sa), Some(0), "96 is no twentieth less than 100");
    assert_eq!(totals(&dispatcher)[1], 0);
    submit_of(&mut dispatcher, sa, BATCH, 1400);
    assert_eq!(totals(&dispatcher)[1], u64::from(BATCH), "50 is");
}

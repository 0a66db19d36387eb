use super::*;
use crate::dispatcher::live::label;
use crate::dispatcher::live::tests::{Odd, SUITE, dispatcher, submit, submit_of};
use crate::scheduler::{Share, job};
use testudo_crypto::{Direction, JobStatus, KeyId, KeyMaterial};
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
    // Of a class that is new it is decided first, and what the suite loses it loses, too.
    know(&mut dispatcher, 1, [2, 2, 2, 2, 2, 2, 0]);
    submit_of(&mut dispatcher, new, BATCH, 2000);
    assert_eq!([sa, new].map(|sa| named(&mut dispatcher, sa)), [None; 2]);
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

/// A worker that has little to do has time to decide.
#[test]
fn submissions_of_few_jobs_are_decided_of() {
    let (mut dispatcher, sa) = two();
    submit(&mut dispatcher, sa, BATCH);
    let known = |dispatcher: &Dispatcher| dispatcher.live.as_ref().unwrap().costs.known(0, label(0, 0));
    for jobs in [1, 15] {
        let before = known(&dispatcher);
        submit(&mut dispatcher, sa, jobs);
        assert!(known(&dispatcher) < before, "{jobs} jobs");
    }
}

#[test]
fn a_suite_is_settled_while_one_engine_has_all_its_classes() {
    let (mut dispatcher, sa) = two();
    know(&mut dispatcher, 1, [2, 2, 2, 2, 2, 2, 0]);
    assert_eq!(submit_of(&mut dispatcher, sa, BATCH, 64).len(), 32);
    assert_eq!(named(&mut dispatcher, sa), Some(0));
    // Long ones are the other engine's: that is found with the first of them.
    for _ in 0..3 {
        assert_eq!(submit_of(&mut dispatcher, sa, BATCH, 2000).len(), 32);
    }
    assert_eq!(named(&mut dispatcher, sa), None);
    let long = |row: &&Share| row.longest().is_none() && row.engine == "second";
    let before = rows(&dispatcher).iter().find(long).unwrap().total();
    assert!(before >= u64::from(BATCH), "{before}");
    for _ in 0..100 {
        submit_of(&mut dispatcher, sa, BATCH, 64);
        submit_of(&mut dispatcher, sa, BATCH, 2000);
    }
    assert_eq!(named(&mut dispatcher, sa), None);
    assert_eq!(rows(&dispatcher).iter().find(long).unwrap().total(), before + u64::from(100 * BATCH));
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

/// Few of another SA between many do not keep these from being measured.
#[test]
fn submissions_of_few_jobs_do_not_stand_for_those_of_many() {
    let (mut dispatcher, sa) = two();
    let other = another(&mut dispatcher);
    let known = |dispatcher: &Dispatcher| dispatcher.live.as_ref().unwrap().costs.known(0, label(0, 5));
    submit_of(&mut dispatcher, sa, BATCH, 1400);
    let before = known(&dispatcher);
    for _ in 0..200 {
        submit_of(&mut dispatcher, other, 5, 64);
        submit_of(&mut dispatcher, sa, BATCH, 1400);
    }
    assert!(known(&dispatcher) < before);
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
    submit_of(&mut dispatcher, sa, BATCH, 1400);
    assert_eq!(named(&mut dispatcher, sa), None, "50 is");
}

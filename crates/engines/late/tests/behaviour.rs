//! The late engine's timing, order, faults, bounds and keys. The conformance suite covers correct results.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

use std::collections::BTreeMap;
use testudo_crypto::{Direction, Engine, Job, JobStatus, KeyId, KeyMaterial, PortableEngine, Suite};
use testudo_engine_late::{LateConfig, LateEngine, Order};
use testudo_packet::Buffer;
use zeroize::Zeroizing;

const SEED: u64 = 2026;

fn late(config: LateConfig) -> LateEngine {
    println!("{config:?}");
    LateEngine::new(Box::new(PortableEngine::new()), config)
}

fn key(engine: &mut dyn Engine) -> KeyId {
    let bytes = Zeroizing::new(vec![7; Suite::AES128GCM16.keying_material_bytes()]);
    engine.install(&KeyMaterial::new(Suite::AES128GCM16, bytes).unwrap(), Direction::Seal).unwrap()
}

fn jobs(key: KeyId, tickets: std::ops::Range<u32>) -> Vec<Job> {
    let job = |ticket| Job {
        ticket,
        key,
        text_start: 16,
        text_bytes: 64,
        ..Job::new(Buffer::copied(&[0xA5; 96], 0, 0), Direction::Seal, 0)
    };
    tickets.map(job).collect()
}

/// Polls until nothing is in flight; returns each job with the number of polls after which it came.
fn drain(engine: &mut dyn Engine) -> Vec<(u32, Job)> {
    let mut out = Vec::new();
    for poll in 1..1000 {
        let (mut done, before) = (Vec::new(), engine.in_flight());
        engine.poll(&mut done, 64);
        assert!(done.len() <= 64);
        assert_eq!(engine.in_flight() + done.len(), before, "in_flight is exact");
        out.extend(done.into_iter().map(|job| (poll, job)));
        if engine.in_flight() == 0 {
            return out;
        }
    }
    panic!("jobs were lost");
}

fn tickets(done: &[(u32, Job)]) -> Vec<u32> {
    done.iter().map(|(_, job)| job.ticket).collect()
}

#[test]
fn jobs_end_between_the_fewest_and_the_most_polls_and_out_of_order() {
    let mut engine = late(LateConfig { polls_min: 3, polls_max: 6, ..LateConfig::reliable(SEED) });
    let key = key(&mut engine);
    let mut batch = jobs(key, 0..50);
    assert_eq!(engine.submit(&mut batch), 50);
    assert!(batch.iter().all(|job| job.status == JobStatus::Taken && job.buffer.capacity() == 0));
    let done = drain(&mut engine);
    assert!(done.iter().all(|(poll, job)| (3..=6).contains(poll) && job.status == JobStatus::Done));
    let mut order = tickets(&done);
    assert_ne!(order, (0..50).collect::<Vec<_>>());
    order.sort_unstable();
    assert_eq!(order, (0..50).collect::<Vec<_>>());
}

#[test]
fn within_keys_order_is_kept_while_keys_overtake_each_other() {
    let mut engine = late(LateConfig { order: Order::WithinKeys, ..LateConfig::reliable(SEED) });
    let keys = [key(&mut engine), key(&mut engine)];
    for ticket in 0..200 {
        assert_eq!(engine.submit(&mut jobs(keys[(ticket % 2) as usize], ticket..ticket + 1)), 1);
    }
    let order = tickets(&drain(&mut engine));
    let of_key = |k: u32| order.iter().copied().filter(|c| c % 2 == k).collect::<Vec<_>>();
    assert!(of_key(0).is_sorted() && of_key(1).is_sorted());
    assert!(!order.is_sorted());
}

#[test]
fn a_full_queue_refuses_the_tail_and_leaves_it_alone() {
    let mut engine = late(LateConfig { queue_jobs: 10, ..LateConfig::reliable(SEED) });
    let key = key(&mut engine);
    let mut batch = jobs(key, 0..25);
    assert_eq!(engine.submit(&mut batch), 10);
    assert_eq!(engine.in_flight(), 10);
    assert!(batch[10..].iter().all(|j| j.status == JobStatus::Pending && j.buffer.bytes() == [0xA5; 96]));
    assert_eq!(engine.submit(&mut batch[10..]), 0);
    assert_eq!(drain(&mut engine).len(), 10);
    assert_eq!(engine.submit(&mut batch[10..]), 10);
}

#[test]
fn faults_come_as_often_as_configured_and_leave_buffers_as_they_were() {
    let mut engine = late(LateConfig { faults_per_million: 200_000, ..LateConfig::reliable(SEED) });
    let key = key(&mut engine);
    let mut faults = 0;
    for round in 0..20 {
        assert_eq!(engine.submit(&mut jobs(key, round * 100..round * 100 + 100)), 100);
        for (_, job) in drain(&mut engine) {
            assert_eq!(job.status == JobStatus::Fault, job.buffer.bytes() == [0xA5; 96]);
            faults += u32::from(job.status == JobStatus::Fault);
        }
    }
    assert!((300..=500).contains(&faults), "{faults} of 2,000");
}

#[test]
fn a_burst_of_failure_ends_that_many_jobs() {
    let config = LateConfig { bursts_per_million: 1_000_000, burst_jobs: 30, ..LateConfig::reliable(SEED) };
    let mut engine = late(config);
    let key = key(&mut engine);
    assert_eq!(engine.submit(&mut jobs(key, 0..100)), 100);
    let mut faulted: Vec<_> =
        drain(&mut engine).into_iter().filter(|d| d.1.status == JobStatus::Fault).collect();
    faulted.sort_by_key(|(_, job)| job.ticket);
    assert_eq!(tickets(&faulted), (0..30).collect::<Vec<_>>());
}

#[test]
fn a_device_that_dies_faults_what_it_held_and_recovers() {
    let mut engine = late(LateConfig::reliable(SEED));
    let key = key(&mut engine);
    assert_eq!(engine.submit(&mut jobs(key, 0..40)), 40);
    engine.fail_all(true);
    let done = drain(&mut engine);
    assert_eq!(done.len(), 40);
    assert!(done.iter().all(|(_, j)| j.status == JobStatus::Fault && j.buffer.bytes() == [0xA5; 96]));
    engine.fail_all(false);
    assert_eq!(engine.submit(&mut jobs(key, 0..40)), 40);
    assert!(drain(&mut engine).iter().all(|(_, job)| job.status == JobStatus::Done));
}

/// Polls `times` times.
fn poll(engine: &mut dyn Engine, times: u32) -> Vec<Job> {
    let mut done = Vec::new();
    (0..times).for_each(|_| engine.poll(&mut done, 64));
    done
}

#[test]
fn a_device_that_hangs_keeps_everything_until_it_resumes() {
    let mut engine = late(LateConfig::reliable(SEED));
    let key = key(&mut engine);
    assert_eq!(engine.submit(&mut jobs(key, 0..40)), 40);
    engine.keep_all(true);
    assert_eq!(engine.submit(&mut jobs(key, 40..50)), 10);
    assert!(poll(&mut engine, 10_000).is_empty());
    assert_eq!(engine.in_flight(), 50);
    engine.keep_all(false);
    let mut order = tickets(&drain(&mut engine));
    order.sort_unstable();
    assert!(order.into_iter().eq(0..50));
}

#[test]
fn some_jobs_are_kept_until_they_are_recalled_and_the_others_come() {
    for order in [Order::Any, Order::WithinKeys] {
        let config = LateConfig { kept_per_million: 200_000, order, ..LateConfig::reliable(SEED) };
        let mut engine = late(config);
        let key = key(&mut engine);
        assert_eq!(engine.submit(&mut jobs(key, 0..500)), 500);
        let came = poll(&mut engine, 10_000);
        let kept = engine.in_flight();
        assert_eq!(came.len() + kept, 500);
        assert!(order == Order::WithinKeys || (50..=150).contains(&kept), "{kept} of 500");
        engine.give_back_kept();
        let late = drain(&mut engine);
        assert!(late.len() == kept && late.iter().all(|(_, job)| job.status == JobStatus::Done));
        let mut all: Vec<_> = came.iter().map(|job| job.ticket).chain(tickets(&late)).collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..500), "every job came once");
    }
}

#[test]
fn jobs_in_flight_under_a_removed_key_still_end_and_new_ones_fault() {
    let mut engine = late(LateConfig::reliable(SEED));
    let key = key(&mut engine);
    assert_eq!(engine.submit(&mut jobs(key, 0..40)), 40);
    engine.remove(key);
    let mut after = jobs(key, 40..42);
    assert_eq!(engine.submit(&mut after), 2);
    assert!(after.iter().all(|j| j.status == JobStatus::Fault && j.buffer.bytes() == [0xA5; 96]));
    assert!(drain(&mut engine).iter().all(|(_, job)| job.status == JobStatus::Done));
    assert_eq!(engine.submit(&mut jobs(key, 0..1)), 1);
    assert_eq!(drain(&mut engine)[0].1.status, JobStatus::Fault, "the wrapped engine forgot the key");
}

#[test]
fn the_same_seed_gives_the_same_history_and_another_one_does_not() {
    let history = |seed| {
        let mut engine = late(LateConfig::unreliable(seed));
        let key = key(&mut engine);
        assert_eq!(engine.submit(&mut jobs(key, 0..500)), 500);
        drain(&mut engine).into_iter().map(|(poll, job)| (poll, job.ticket, job.status)).collect::<Vec<_>>()
    };
    assert_eq!(history(1), history(1));
    assert_ne!(history(1), history(2));
}

#[test]
fn late_engines_stack_and_lose_nothing() {
    let inner = late(LateConfig { queue_jobs: 16, ..LateConfig::unreliable(SEED) });
    let mut engine =
        LateEngine::new(Box::new(inner), LateConfig { queue_jobs: 64, ..LateConfig::reliable(SEED + 1) });
    let key = key(&mut engine);
    let mut seen = BTreeMap::new();
    for round in 0..50 {
        let mut batch = jobs(key, round * 64..round * 64 + 64);
        let taken = engine.submit(&mut batch);
        for (_, job) in drain(&mut engine) {
            assert!(matches!(job.status, JobStatus::Done | JobStatus::Fault));
            assert!(seen.insert(job.ticket, ()).is_none(), "a job ended twice");
        }
        assert!((0..u32::try_from(taken).unwrap()).all(|n| seen.contains_key(&(round * 64 + n))));
    }
}

#[test]
fn jobs_gather_until_they_are_flushed_or_as_many_as_it_wants() {
    let mut engine = late(LateConfig { depth_jobs: 8, ..LateConfig::reliable(SEED) });
    let key = key(&mut engine);
    assert_eq!(engine.profile(Suite::AES128GCM16).depth_jobs, 8);
    assert_eq!(engine.submit(&mut jobs(key, 0..7)), 7);
    assert!(poll(&mut engine, 100).is_empty());
    assert_eq!(engine.submit(&mut jobs(key, 7..10)), 3);
    let mut first = tickets(&drain_some(&mut engine, 8));
    first.sort_unstable();
    assert!(first.into_iter().eq(0..8), "eight are what it wants");
    assert!(poll(&mut engine, 100).is_empty() && engine.in_flight() == 2);
    engine.flush();
    assert_eq!(drain(&mut engine).len(), 2);
}

/// Polls until `count` jobs have come.
fn drain_some(engine: &mut dyn Engine, count: usize) -> Vec<(u32, Job)> {
    let mut out = Vec::new();
    for turn in 0..100 {
        out.extend(poll(engine, 1).into_iter().map(|job| (turn, job)));
    }
    assert_eq!(out.len(), count);
    out
}

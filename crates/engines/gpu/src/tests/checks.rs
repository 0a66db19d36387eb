//! Known answers that ride with packets: a device that errs later, and who sends forgeries.

use super::compiled::{Compiled, Faults};
use super::faults::{SUITE, jobs, material};
use super::{config, engine, fresh};
use crate::engine::GpuEngine;
use crate::open::GpuConfig;
use crate::opencl::OpenClDevice;
use crate::work::Work;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use testudo_crypto::{
    Direction, Engine, EngineError, Job, JobStatus, KeyId, KeyMaterial, PortableEngine, Suite,
};
use testudo_packet::Buffer;

/// Jobs of a batch.
const BATCH: u32 = 48;

/// A key of another kind, whose jobs have their text at 16.
fn other() -> KeyMaterial {
    let suite: Suite = "3des-sha1".parse().unwrap();
    let bytes: Vec<u8> = (1..=u8::MAX).take(suite.keying_material_bytes()).collect();
    KeyMaterial::new(suite, bytes.into()).unwrap()
}

/// Has the engine do these, and returns them.
fn run(engine: &mut dyn Engine, mut jobs: Vec<Job>) -> Vec<Job> {
    let mut done = Vec::new();
    let taken = engine.submit(&mut jobs);
    engine.flush();
    while engine.in_flight() > 0 {
        engine.poll(&mut done, 100);
    }
    assert_eq!(taken, jobs.len());
    done.extend(jobs.into_iter().filter(|job| job.status != JobStatus::Taken));
    done
}

fn count(jobs: &[Job], status: JobStatus) -> u32 {
    jobs.iter().map(|job| u32::from(job.status == status)).sum()
}

/// An engine with keys for both directions, and a packet that it can open.
struct Checked {
    engine: GpuEngine,
    faults: Arc<Faults>,
    seal: KeyId,
    open: KeyId,
    sealed: Vec<u8>,
    submitted: u32,
}

impl Checked {
    fn new() -> Self {
        let faults = Arc::new(Faults::default());
        let mut engine = engine(&faults);
        let [seal, open] =
            [Direction::Seal, Direction::Open].map(|to| engine.install(&material(), to).unwrap());
        let mut portable = PortableEngine::new();
        let own = portable.install(&material(), Direction::Seal).unwrap();
        let sealed = run(&mut portable, jobs(own, 1))[0].buffer.bytes().to_vec();
        Self { engine, faults, seal, open, sealed, submitted: 0 }
    }

    fn seal(&mut self) -> Vec<Job> {
        self.submitted += BATCH;
        run(&mut self.engine, jobs(self.seal, BATCH))
    }

    fn open(&mut self, is_forged: bool) -> Vec<Job> {
        self.submitted += BATCH;
        let mut packet = self.sealed.clone();
        packet[30] ^= u8::from(is_forged);
        let job = || {
            let buffer = Buffer::copied(&packet, 0, 0);
            let (key, text_start, text_bytes) = (self.open, 24, 64);
            Job { key, text_start, text_bytes, ..Job::new(buffer, Direction::Open, 0) }
        };
        run(&mut self.engine, (0..BATCH).map(|_| job()).collect())
    }

    /// Known answers that have ridden with packets.
    fn checks(&self) -> u32 {
        self.faults.jobs.load(Ordering::Relaxed) - self.submitted
    }
}

/// What it gets wrong before that the peer refuses; of the batch that the check rides in nothing goes out.
#[test]
fn a_device_that_errs_later_is_found_within_1024_packets() {
    let mut checked = Checked::new();
    for _ in 0..100 {
        assert_eq!(count(&checked.seal(), JobStatus::Done), BATCH);
    }
    assert_eq!(checked.checks(), 100 * BATCH / 1024);
    Faults::set(&checked.faults.spoils);
    let mut wrong = 0;
    let last = loop {
        let done = checked.seal();
        if checked.engine.is_broken() {
            break done;
        }
        wrong += count(&done, JobStatus::Done);
        assert!(wrong < 1024, "{wrong}");
    };
    let untouched = jobs(checked.seal, 1).remove(0).buffer.bytes().to_vec();
    assert!(last.iter().all(|job| job.status == JobStatus::Fault && job.buffer.bytes() == untouched));
    let said = checked.engine.description();
    assert!(said.ends_with("out of service: a known answer of aes128-sha1, sealed, was wrong"), "{said}");
    assert!(checked.engine.is_out_of_service());
}

/// Each packet that it opens has a wrong ICV then: it is asked sooner.
#[test]
fn a_device_that_opens_nothing_any_more_is_found_within_256_packets() {
    let mut checked = Checked::new();
    assert_eq!(count(&checked.open(false), JobStatus::Done), BATCH);
    Faults::set(&checked.faults.spoils);
    let mut refused = 0;
    while !checked.engine.is_broken() {
        refused += count(&checked.open(false), JobStatus::AuthenticationFailed);
        assert!(refused < 256, "{refused}");
    }
    let said = checked.engine.description();
    assert!(said.ends_with("a known answer of aes128-sha1, opened, was wrong"), "{said}");
}

#[test]
fn forgeries_take_no_device_out_of_service_and_cost_it_less_than_one_check_in_128_packets() {
    let mut checked = Checked::new();
    for _ in 0..200 {
        assert_eq!(count(&checked.open(true), JobStatus::AuthenticationFailed), BATCH);
    }
    assert!((1..=200 * BATCH / 128).contains(&checked.checks()), "{}", checked.checks());
    assert_eq!(count(&checked.open(false), JobStatus::Done), BATCH);
    assert!(!checked.engine.is_broken());
}

/// A packet in each suite and both directions, and the known answer of its kind beside it.
fn checks_are_right(engine: &mut GpuEngine) -> usize {
    let mut portable = PortableEngine::new();
    let mut kinds = BTreeSet::new();
    for suite in Suite::ALL.iter().copied().filter(|suite| Work::of(*suite, Direction::Seal).is_some()) {
        let bytes: Vec<u8> = (7..=u8::MAX).cycle().take(suite.keying_material_bytes()).collect();
        let material = KeyMaterial::new(suite, bytes.into()).unwrap();
        let text_start = 8 + suite.iv_bytes();
        let job = |packet: &[u8], key, direction| Job {
            key,
            text_start: u32::try_from(text_start).unwrap(),
            text_bytes: 64,
            ..Job::new(Buffer::copied(packet, 0, 0), direction, 0)
        };
        let own = portable.install(&material, Direction::Seal).unwrap();
        let plain = vec![9; text_start + 64 + suite.icv_bytes()];
        let sealed = run(&mut portable, vec![job(&plain, own, Direction::Seal)]).remove(0);
        let sealed = sealed.buffer.bytes().to_vec();
        for (direction, packet) in [(Direction::Seal, &plain), (Direction::Open, &sealed)] {
            kinds.extend(Work::of(suite, direction).map(|work| work.kind));
            let key = engine.install(&material, direction).unwrap();
            engine.check_all();
            let done = run(engine, vec![job(packet, key, direction)]);
            assert_eq!(done[0].status, JobStatus::Done, "{suite}, {direction:?}");
            engine.remove(key);
        }
    }
    assert!(!engine.is_broken(), "{}", engine.description());
    kinds.len()
}

#[test]
fn known_answers_of_every_kind_ride_with_packets() {
    let faults = Arc::new(Faults::default());
    let mut engine = engine(&faults);
    let kinds = checks_are_right(&mut engine);
    assert!(kinds > 50, "{kinds}");
    let suites = Suite::ALL.iter().filter(|suite| Work::of(**suite, Direction::Seal).is_some()).count();
    assert_eq!(faults.jobs.load(Ordering::Relaxed) as usize, 2 * 2 * suites, "a check with each packet");
}

#[test]
fn known_answers_of_every_kind_ride_with_packets_on_pocl() {
    let sizes = config().sizes();
    let device = OpenClDevice::open(Some("Portable Computing Language"), 0, sizes).unwrap();
    checks_are_right(&mut GpuEngine::over(Box::new(device), sizes));
}

/// However many jobs of others are before them in each batch.
#[test]
fn a_kind_behind_thousands_of_another_one_in_its_batch_has_its_known_answer() {
    let sizes = GpuConfig { batch_jobs: 10_000, keys: 4, ..GpuConfig::default() }.sizes();
    let faults = Arc::new(Faults::default());
    let mut engine = GpuEngine::over(Box::new(Compiled::new(sizes, Arc::clone(&faults))), sizes);
    let [first, behind] = [material(), other()].map(|key| engine.install(&key, Direction::Seal).unwrap());
    engine.check_all();
    let mut batch = jobs(first, 9 * 1024);
    let (key, text_start, text_bytes) = (behind, 16, 72);
    batch.extend(jobs(first, 1).into_iter().map(|job| Job { key, text_start, text_bytes, ..job }));
    let done = run(&mut engine, batch);
    assert_eq!(count(&done, JobStatus::Done), 9 * 1024 + 1);
    let launched = [&faults.launches, &faults.jobs].map(|count| count.load(Ordering::Relaxed));
    assert_eq!(launched, [1, 9 * 1024 + 1 + 2], "one of each kind");
}

/// The first key of a kind is followed by that of its known answer.
#[test]
fn a_key_is_refused_if_the_device_is_lost_with_that_of_its_known_answer() {
    let faults = Arc::new(Faults::default());
    let mut engine = engine(&faults);
    faults.is_lost_at_key.store(2, Ordering::Relaxed);
    let refused = engine.install(&material(), Direction::Seal);
    assert!(matches!(refused, Err(EngineError::KeyRefused { .. })), "{refused:?}");
    assert!(engine.is_out_of_service());
}

/// Where nobody has a key of a kind there is no known answer of it.
#[test]
fn an_engine_without_keys_has_no_known_answers() {
    let work = Work::of(SUITE, Direction::Seal).unwrap();
    let mut checks = crate::checks::Checks::new(4);
    assert_eq!(checks.of(&work), None);
    let new = checks.missing(&work).unwrap();
    assert_eq!((new.slot(), new.kind()), (4, work.kind));
    checks.add(new);
    assert!(checks.missing(&work).is_none() && checks.of(&work) == Some(0));
    let mut off = crate::checks::Checks::new(4);
    off.switch_off();
    assert!(off.missing(&work).is_none() && fresh().in_flight() == 0);
}

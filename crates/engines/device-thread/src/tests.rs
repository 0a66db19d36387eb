//! Keys, engines that refuse, panic, hang or invent, and the end. That results are right the conformance
//! suite shows.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests may panic as tests do")]

mod by_choice;
mod reclaim;

use crate::DeviceThread;
use crate::device::List;
use crate::keys::Ids;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use testudo_crypto::{
    Capability, Direction, Engine, EngineError, Job, JobStatus, KeyId, KeyMaterial, PortableEngine, Profile,
    Suite,
};
use testudo_engine_late::{LateConfig, LateEngine};
use testudo_packet::{Buffer, PageChoice, Pool, Region};
use zeroize::Zeroizing;

/// More than any machine needs; nothing is asserted about the time that passes.
const PATIENCE: Duration = Duration::from_secs(60);
const SUITE: Suite = Suite::AES128GCM16;

/// What tests tell the engine in the thread, and what they see of it.
#[derive(Default)]
struct Stage {
    /// A call of `submit` waits while this is set.
    holds: AtomicBool,
    is_held: AtomicBool,
    /// And one of `poll` while this is.
    poll_holds: AtomicBool,
    submit_panics: AtomicBool,
    poll_panics: AtomicBool,
    /// It does nothing any more, as it says.
    is_out: AtomicBool,
    /// Keys are refused.
    refuses: AtomicBool,
    /// A job comes from the next poll that was never given.
    invents: AtomicBool,
    keys: AtomicUsize,
    flushes: AtomicUsize,
    polls: AtomicUsize,
    /// On how many submissions it says that it works; as many as the inner one, if 0.
    under_way: AtomicUsize,
    /// Engines that are there.
    alive: AtomicUsize,
    /// Names of threads that have submitted.
    threads: Mutex<Vec<String>>,
}

/// A late engine over the portable one, watched, and at fault on request.
struct Played {
    inner: LateEngine,
    stage: Arc<Stage>,
}

impl Drop for Played {
    fn drop(&mut self) {
        self.stage.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Engine for Played {
    fn name(&self) -> &'static str {
        "played"
    }
    fn description(&self) -> String {
        "for tests".to_owned()
    }
    fn capability(&self, suite: Suite) -> Option<Capability> {
        self.inner.capability(suite)
    }
    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        if self.stage.refuses.load(Ordering::SeqCst) {
            return Err(EngineError::KeyRefused { engine: "played", reason: "meant".to_owned() });
        }
        self.stage.keys.fetch_add(1, Ordering::SeqCst);
        self.inner.install(key, direction)
    }
    fn remove(&mut self, key: KeyId) {
        self.stage.keys.fetch_sub(1, Ordering::SeqCst);
        self.inner.remove(key);
    }
    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        self.stage.threads.lock().unwrap().push(std::thread::current().name().unwrap_or("").to_owned());
        while self.stage.holds.load(Ordering::SeqCst) {
            self.stage.is_held.store(true, Ordering::SeqCst);
            std::thread::yield_now();
        }
        if self.stage.submit_panics.load(Ordering::SeqCst) {
            jobs[0].buffer.bytes_mut()[40] ^= 1;
            panic!("meant");
        }
        self.inner.submit(jobs)
    }
    fn is_out_of_service(&self) -> bool {
        self.stage.is_out.load(Ordering::SeqCst)
    }
    fn flush(&mut self) {
        self.stage.flushes.fetch_add(1, Ordering::SeqCst);
        self.inner.flush();
    }
    fn profile(&self, suite: Suite) -> Profile {
        let profile = self.inner.profile(suite);
        match self.stage.under_way.load(Ordering::SeqCst) {
            0 => profile,
            under_way => Profile { under_way, ..profile },
        }
    }
    fn poll(&mut self, done: &mut Vec<Job>, max: usize) {
        self.stage.polls.fetch_add(1, Ordering::SeqCst);
        while self.stage.poll_holds.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        self.inner.poll(done, max);
        if self.stage.invents.swap(false, Ordering::SeqCst) {
            done.push(Job { ticket: 7, ..Job::new(Buffer::default(), Direction::Seal, 12_345) });
        }
        assert!(!self.stage.poll_panics.load(Ordering::SeqCst), "meant");
    }
}

fn open(config: LateConfig) -> (DeviceThread, Arc<Stage>) {
    let stage = Arc::<Stage>::default();
    stage.alive.store(1, Ordering::SeqCst);
    let inner = LateEngine::new(Box::new(PortableEngine::new()), config);
    (DeviceThread::over(Box::new(Played { inner, stage: Arc::clone(&stage) }), None), stage)
}

fn key(byte: u8) -> KeyMaterial {
    KeyMaterial::new(SUITE, Zeroizing::new(vec![byte; SUITE.keying_material_bytes()])).unwrap()
}

fn job(key: KeyId, ticket: u32, pool: &mut Pool) -> Job {
    let mut buffer = pool.pop().unwrap();
    buffer.set_len(16 + 64 + 16);
    buffer.bytes_mut().fill(0x55);
    Job {
        sequence: u64::from(ticket) + 1,
        ticket,
        key,
        text_start: 16,
        text_bytes: 64,
        ..Job::new(buffer, Direction::Seal, 3)
    }
}

/// Submits all, and returns them by their tickets.
fn run(engine: &mut DeviceThread, mut jobs: Vec<Job>) -> Vec<Job> {
    let (began, mut done, mut next) = (Instant::now(), Vec::new(), 0);
    while done.len() < jobs.len() {
        assert!(began.elapsed() < PATIENCE, "{} of {} jobs ended", done.len(), jobs.len());
        let taken = engine.submit(&mut jobs[next..]);
        for job in &mut jobs[next..next + taken] {
            if job.status != JobStatus::Taken {
                let status = job.status;
                done.push(Job { status, ..job.take() });
            }
        }
        next += taken;
        engine.flush();
        engine.poll(&mut done, 100);
        std::thread::yield_now();
    }
    assert_eq!(engine.in_flight(), 0);
    done.sort_by_key(|job| job.ticket);
    done
}

fn wait_for(what: impl Fn() -> bool) {
    let began = Instant::now();
    while !what() {
        assert!(began.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
}

#[test]
fn the_engine_is_called_on_its_thread_alone_and_both_end_together() {
    let (mut engine, stage) = open(LateConfig { depth_jobs: 64, ..LateConfig::reliable(1) });
    let mut pool = Pool::new(2048, 200);
    let id = engine.install(&key(1), Direction::Seal).unwrap();
    let jobs = (0..1500).map(|ticket| job(id, ticket, &mut pool)).collect();
    let ended = run(&mut engine, jobs);
    assert!(ended.iter().map(|job| job.ticket).eq(0..1500));
    assert!(ended.iter().all(|job| (job.status, job.key, job.sa) == (JobStatus::Done, id, 3)));
    assert!(stage.threads.lock().unwrap().iter().all(|name| name == "device-played"));
    assert!(stage.flushes.load(Ordering::SeqCst) > 0);
    engine.remove(id);
    wait_for(|| stage.keys.load(Ordering::SeqCst) == 0);
    assert_eq!(engine.description(), "for tests, on a device thread");
    drop(engine);
    assert_eq!(stage.alive.load(Ordering::SeqCst), 0, "the engine went with its thread");
}

/// One of several devices may be lost meanwhile.
#[test]
fn on_how_many_submissions_the_engine_works_is_asked_again_when_jobs_have_ended() {
    let stage = Arc::<Stage>::default();
    stage.alive.store(1, Ordering::SeqCst);
    stage.under_way.store(4, Ordering::SeqCst);
    let inner = LateEngine::new(Box::new(PortableEngine::new()), LateConfig::reliable(1));
    let mut engine = DeviceThread::over(Box::new(Played { inner, stage: Arc::clone(&stage) }), None);
    let mut pool = Pool::new(64, 200);
    let id = engine.install(&key(1), Direction::Seal).unwrap();
    for (says, known) in [(4, 4), (2, 2), (9, 4)] {
        stage.under_way.store(says, Ordering::SeqCst);
        run(&mut engine, vec![job(id, 0, &mut pool)]);
        assert_eq!(engine.profile(SUITE).under_way, known, "memory is for four");
    }
}

/// It is known when the first fault is there.
#[test]
fn an_engine_that_is_out_of_service_is_so_on_its_thread() {
    let (mut engine, stage) = open(LateConfig { faults_per_million: 1_000_000, ..LateConfig::reliable(12) });
    let mut pool = Pool::new(64, 200);
    let id = engine.install(&key(1), Direction::Seal).unwrap();
    for is_out in [false, true] {
        stage.is_out.store(is_out, Ordering::SeqCst);
        let ended = run(&mut engine, vec![job(id, 0, &mut pool)]);
        assert_eq!((ended[0].status, engine.is_out_of_service()), (JobStatus::Fault, is_out));
    }
    assert_eq!(engine.description(), "for tests, on a device thread (out of service)");
}

#[test]
fn a_thread_that_never_started_leaves_nothing() {
    let (engine, stage) = open(LateConfig::reliable(1));
    drop(engine);
    assert_eq!(stage.alive.load(Ordering::SeqCst), 0);
    let (mut engine, stage) = open(LateConfig::reliable(1));
    engine.use_memory(&Region::new(4, 2048, PageChoice::Small));
    drop(engine);
    assert_eq!(stage.alive.load(Ordering::SeqCst), 0);
}

#[test]
fn a_key_that_the_engine_refuses_makes_faults_of_its_jobs_and_of_no_others() {
    let (mut engine, stage) = open(LateConfig::reliable(2));
    let mut pool = Pool::new(64, 200);
    let good = engine.install(&key(1), Direction::Seal).unwrap();
    wait_for_start(&mut engine, &stage);
    stage.refuses.store(true, Ordering::SeqCst);
    let bad = engine.install(&key(2), Direction::Seal).unwrap();
    let keys = [good, bad, good, KeyId::NONE, bad];
    let jobs = (0..).zip(keys).map(|(ticket, key)| job(key, ticket, &mut pool)).collect();
    let ended = run(&mut engine, jobs);
    let [done, fault] = [JobStatus::Done, JobStatus::Fault];
    assert!(ended.iter().map(|job| job.status).eq([done, fault, done, fault, fault]));
    assert_eq!(ended[1].buffer.bytes(), [0x55; 96], "another engine may try");
    engine.remove(bad);
    engine.remove(good);
    wait_for(|| stage.keys.load(Ordering::SeqCst) == 0);
}

#[test]
fn a_key_that_the_engine_refuses_is_told_once_and_is_none_from_then_on() {
    let (mut engine, stage) = open(LateConfig::reliable(13));
    let mut pool = Pool::new(64, 200);
    let good = engine.install(&key(1), Direction::Seal).unwrap();
    wait_for_start(&mut engine, &stage);
    assert_eq!(engine.take_refused(), None);
    stage.refuses.store(true, Ordering::SeqCst);
    let [gone, bad] = [2, 3].map(|byte| engine.install(&key(byte), Direction::Seal).unwrap());
    engine.remove(gone);
    // What comes back was given after all keys.
    let jobs = [bad, good].into_iter().zip(0..).map(|(key, ticket)| job(key, ticket, &mut pool)).collect();
    assert!(run(&mut engine, jobs).iter().map(|job| job.status).eq([JobStatus::Fault, JobStatus::Done]));
    assert_eq!([engine.take_refused(), engine.take_refused()], [Some(bad), None]);
    let submits = stage.threads.lock().unwrap().len();
    let mut jobs = [job(bad, 2, &mut pool)];
    assert_eq!((engine.submit(&mut jobs), jobs[0].status, engine.in_flight()), (1, JobStatus::Fault, 0));
    assert_eq!(stage.threads.lock().unwrap().len(), submits, "it does not go to the thread");
}

/// Until the thread runs and has followed the first key.
fn wait_for_start(engine: &mut DeviceThread, stage: &Stage) {
    engine.use_memory(&Region::new(4, 2048, PageChoice::Small));
    wait_for(|| stage.keys.load(Ordering::SeqCst) == 1);
}

/// Keys come and go while the thread is busy, more of them than the ring has slots: none is lost or stays.
#[test]
fn keys_follow_each_other_however_long_the_thread_is_busy() {
    let (mut engine, stage) = open(LateConfig::reliable(3));
    let mut pool = Pool::new(64, 200);
    let first = engine.install(&key(1), Direction::Seal).unwrap();
    stage.holds.store(true, Ordering::SeqCst);
    let mut waiting = vec![job(first, 0, &mut pool)];
    assert_eq!(engine.submit(&mut waiting), 1);
    engine.flush();
    wait_for(|| stage.is_held.load(Ordering::SeqCst));
    let mut last = first;
    for byte in 0..1000_usize {
        engine.remove(last);
        last = engine.install(&key(byte.to_le_bytes()[0]), Direction::Seal).unwrap();
    }
    stage.holds.store(false, Ordering::SeqCst);
    let mut done = Vec::new();
    wait_for(|| stage.keys.load(Ordering::SeqCst) == 1);
    while done.is_empty() {
        engine.poll(&mut done, 10);
        std::thread::yield_now();
    }
    assert_eq!(done[0].status, JobStatus::Done, "its key was removed after it");
    let ended = run(&mut engine, vec![job(last, 1, &mut pool), job(first, 2, &mut pool)]);
    assert_eq!([ended[0].status, ended[1].status], [JobStatus::Done, JobStatus::Fault]);
}

#[test]
fn what_the_engine_invents_is_not_believed() {
    let (mut engine, stage) = open(LateConfig::reliable(4));
    let mut pool = Pool::new(64, 200);
    let id = engine.install(&key(1), Direction::Seal).unwrap();
    stage.invents.store(true, Ordering::SeqCst);
    let jobs = (0..5).map(|ticket| job(id, ticket, &mut pool)).collect();
    let ended = run(&mut engine, jobs);
    assert!(ended.iter().all(|job| job.sa == 3) && !stage.invents.load(Ordering::SeqCst));
    let mut done = Vec::new();
    engine.poll(&mut done, 10);
    assert!(done.is_empty());
}

/// In a call that submits: what it had in hand is cleared, since it may be half sealed, what comes later is
/// the next engine's, and the worker is not held up.
#[test]
fn an_engine_that_panics_at_jobs_ends_them_cleared_and_all_later_ones_as_they_were() {
    let (mut engine, stage) = open(LateConfig::reliable(5));
    let mut pool = Pool::new(64, 200);
    let id = engine.install(&key(1), Direction::Seal).unwrap();
    stage.submit_panics.store(true, Ordering::SeqCst);
    let jobs = (0..3).map(|ticket| job(id, ticket, &mut pool)).collect();
    let ended = run(&mut engine, jobs);
    for job in ended {
        assert_eq!((job.status, job.text_bytes), (JobStatus::Fault, u32::MAX));
        assert_eq!(job.buffer.bytes(), [0; 96]);
        pool.recycle(job.buffer);
    }
    assert_eq!(stage.alive.load(Ordering::SeqCst), 0, "it is not called again");
    let ended = run(&mut engine, vec![job(id, 9, &mut pool)]);
    assert_eq!((ended[0].status, ended[0].buffer.bytes()), (JobStatus::Fault, &[0x55; 96][..]));
    assert_eq!(engine.description(), "for tests, on a device thread (out of service)");
    assert!(matches!(engine.install(&key(2), Direction::Seal), Err(EngineError::KeyRefused { .. })));
    engine.remove(id);
}

/// In a call that polls: what that call had brought is whole, and for what the engine still had there are
/// stand-ins without buffers.
#[test]
fn an_engine_that_panics_between_jobs_loses_what_it_had_and_says_which() {
    let late = LateConfig { polls_min: u32::MAX, polls_max: u32::MAX, ..LateConfig::reliable(6) };
    let (mut engine, stage) = open(late);
    let mut pool = Pool::new(64, 200);
    let id = engine.install(&key(1), Direction::Seal).unwrap();
    let mut jobs: Vec<Job> = (10..40).map(|ticket| job(id, ticket, &mut pool)).collect();
    assert_eq!(engine.submit(&mut jobs), 30);
    engine.flush();
    wait_for(|| !stage.threads.lock().unwrap().is_empty());
    stage.poll_panics.store(true, Ordering::SeqCst);
    let mut done = Vec::new();
    while engine.in_flight() > 0 {
        engine.poll(&mut done, 7);
        std::thread::yield_now();
    }
    done.sort_by_key(|job| job.ticket);
    assert!(done.iter().map(|job| job.ticket).eq(10..40));
    for job in &done {
        assert_eq!((job.status, job.text_start, job.sa), (JobStatus::Fault, u32::MAX, 3));
        assert!(job.buffer.is_empty());
    }
}

#[test]
fn an_engine_that_hangs_keeps_neither_the_worker_nor_the_end() {
    let (mut engine, stage) = open(LateConfig::reliable(7));
    let mut pool = Pool::new(4096, 200);
    let id = engine.install(&key(1), Direction::Seal).unwrap();
    stage.holds.store(true, Ordering::SeqCst);
    let mut jobs: Vec<Job> = (0..4000).map(|ticket| job(id, ticket, &mut pool)).collect();
    let taken = engine.submit(&mut jobs);
    assert_eq!((taken, engine.in_flight()), (1024, 1024), "no more than it says");
    assert!(jobs[1024..].iter().all(|job| job.status == JobStatus::Pending));
    engine.flush();
    wait_for(|| stage.is_held.load(Ordering::SeqCst));
    assert_eq!(engine.submit(&mut jobs[1024..]), 0);
    let mut done = Vec::new();
    engine.poll(&mut done, 100);
    assert!(done.is_empty());
    drop(engine);
    assert_eq!(stage.alive.load(Ordering::SeqCst), 1, "it was left");
    stage.holds.store(false, Ordering::SeqCst);
    wait_for(|| stage.alive.load(Ordering::SeqCst) == 0);
}

/// Takes so many jobs from an engine that nobody flushes any more.
fn poll_for(engine: &mut DeviceThread, count: usize) {
    let (began, mut done) = (Instant::now(), Vec::new());
    while done.len() < count {
        assert!(began.elapsed() < PATIENCE, "{} of {count} jobs ended", done.len());
        engine.poll(&mut done, 100);
        std::thread::yield_now();
    }
    assert!(done.iter().all(|job| job.status == JobStatus::Done));
    assert_eq!((done.len(), engine.in_flight()), (count, 0));
}

/// The slot was full and on its way when the last job came, which is at fault here and needs no slot.
#[test]
fn a_flush_follows_jobs_that_were_published_before_it() {
    let (mut engine, _) = open(LateConfig { depth_jobs: 1000, ..LateConfig::reliable(8) });
    let mut pool = Pool::new(128, 200);
    let id = engine.install(&key(1), Direction::Seal).unwrap();
    let keys = std::iter::repeat_n(id, 64).chain([KeyId::NONE]);
    let mut jobs: Vec<Job> = (0..).zip(keys).map(|(ticket, key)| job(key, ticket, &mut pool)).collect();
    assert_eq!(engine.submit(&mut jobs), 65);
    assert_eq!(jobs[64].status, JobStatus::Fault);
    engine.flush();
    poll_for(&mut engine, 64);
}

#[test]
fn an_engine_that_is_full_before_it_is_flushed_is_flushed() {
    let late = LateConfig { depth_jobs: 1000, queue_jobs: 64, ..LateConfig::reliable(9) };
    let (mut engine, _) = open(late);
    let mut pool = Pool::new(256, 200);
    let id = engine.install(&key(1), Direction::Seal).unwrap();
    let mut jobs: Vec<Job> = (0..200).map(|ticket| job(id, ticket, &mut pool)).collect();
    assert_eq!(engine.submit(&mut jobs), 200);
    engine.flush();
    poll_for(&mut engine, 200);
}

#[test]
fn a_job_that_comes_back_again_is_not_taken_for_the_next_one_in_its_place() {
    let (mut list, ids) = (List::new(2), Ids::default());
    let new = |ticket| Job { ticket, ..Job::new(Buffer::default(), Direction::Seal, 3) };
    let (mut first, mut other) = (new(10), new(11));
    assert!(list.enter(&mut first, &ids) && list.enter(&mut other, &ids));
    assert!(!list.enter(&mut new(12), &ids), "there is no room");
    let again = first.ticket;
    assert!(list.leave(&mut first));
    assert_eq!(first.ticket, 10);
    let mut next = new(13);
    assert!(list.enter(&mut next, &ids), "in the place of the first");
    assert!(!list.leave(&mut new(again)));
    assert!(list.leave(&mut next) && list.leave(&mut other));
    assert_eq!([next.ticket, other.ticket], [13, 11]);
    // Of places that are free, the one that has been so for longest is used.
    let places = [14, 15].map(|ticket| {
        let mut job = new(ticket);
        assert!(list.enter(&mut job, &ids));
        job.ticket & 0xffff
    });
    assert_eq!(places, [0, 1]);
}

/// What is asserted about time is how much passes at least.
#[test]
fn a_device_that_keeps_its_jobs_does_not_keep_a_processor() {
    let late = LateConfig { polls_min: u32::MAX, polls_max: u32::MAX, ..LateConfig::reliable(10) };
    let (mut engine, stage) = open(late);
    let mut pool = Pool::new(64, 200);
    let id = engine.install(&key(1), Direction::Seal).unwrap();
    let polls = || stage.polls.load(Ordering::SeqCst);
    assert_eq!(engine.submit(&mut [job(id, 1, &mut pool)]), 1);
    engine.flush();
    wait_for(|| polls() > 1100);
    let (began, before) = (Instant::now(), polls());
    wait_for(|| polls() > before + 40);
    assert!(began.elapsed() > Duration::from_millis(50), "it looks all the time");
    // It is awake at once when there is work.
    let calls = || stage.threads.lock().unwrap().len();
    let before = calls();
    assert_eq!(engine.submit(&mut [job(id, 2, &mut pool)]), 1);
    engine.flush();
    wait_for(|| calls() > before);
}

#[test]
fn a_thread_that_is_gone_without_a_word_is_out_of_service() {
    let (mut engine, _) = open(LateConfig::reliable(11));
    let mut pool = Pool::new(64, 200);
    let id = engine.install(&key(1), Direction::Seal).unwrap();
    engine.start = None;
    let mut jobs = [job(id, 1, &mut pool)];
    assert_eq!(engine.submit(&mut jobs), 1);
    assert_eq!((jobs[0].status, engine.in_flight()), (JobStatus::Fault, 0));
    assert!(matches!(engine.install(&key(2), Direction::Seal), Err(EngineError::KeyRefused { .. })));
    engine.remove(id);
    assert_eq!(engine.description(), "for tests, on a device thread (out of service)");
}

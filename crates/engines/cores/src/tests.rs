//! Shares, keys, threads that hang or panic, and the end. That results are right the conformance suite shows.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests may panic as tests do")]

use crate::worth::LEFT;
use crate::{CoresConfig, CoresEngine, MAX_THREADS};
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use testudo_crypto::{
    Capability, Direction, Engine, EngineError, Job, JobStatus, KeyId, KeyMaterial, PortableEngine, Suite,
};
use testudo_packet::{Buffer, PageChoice, Region};
use zeroize::Zeroizing;

/// A ticket at which a [`Played`] engine panics.
const PANICS_AT: u32 = 4_000_000;
/// More than any machine needs; nothing is asserted about the time that passes.
const PATIENCE: Duration = Duration::from_secs(60);

/// What tests and the engines of all threads share.
#[derive(Default)]
struct Stage {
    /// While set, every thread but the test's own keeps what it is given.
    holds: AtomicBool,
    /// Threads that are being held.
    held: AtomicUsize,
    /// Keys that all engines have.
    keys: AtomicUsize,
    /// Keys that were installed, not linked.
    installed: AtomicUsize,
    /// Jobs by the thread that did them.
    jobs: Mutex<HashMap<String, usize>>,
}

impl Stage {
    fn jobs_of(&self, thread: &str) -> usize {
        self.jobs.lock().unwrap().get(thread).copied().unwrap_or(0)
    }
}

/// The portable engine, watched, and at fault on request.
struct Played {
    inner: PortableEngine,
    stage: Arc<Stage>,
    is_synchronous: bool,
}

fn thread_name() -> String {
    std::thread::current().name().unwrap_or_default().to_owned()
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
        self.stage.installed.fetch_add(1, Ordering::SeqCst);
        self.stage.keys.fetch_add(1, Ordering::SeqCst);
        self.inner.install(key, direction)
    }
    fn preparer(&self) -> Option<Arc<dyn testudo_crypto::KeyPreparer>> {
        self.inner.preparer()
    }
    fn link(&mut self, key: testudo_crypto::PreparedKey) -> Result<KeyId, EngineError> {
        self.stage.keys.fetch_add(1, Ordering::SeqCst);
        self.inner.link(key)
    }
    fn remove(&mut self, key: KeyId) {
        self.stage.keys.fetch_sub(1, Ordering::SeqCst);
        self.inner.remove(key);
    }
    fn is_synchronous(&self) -> bool {
        self.is_synchronous
    }
    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        let is_helper = thread_name().starts_with("cores-");
        if is_helper && self.stage.holds.load(Ordering::SeqCst) {
            self.stage.held.fetch_add(1, Ordering::SeqCst);
            while self.stage.holds.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            self.stage.held.fetch_sub(1, Ordering::SeqCst);
        }
        if is_helper && let Some(at) = jobs.iter().position(|job| job.ticket == PANICS_AT) {
            let (done, rest) = jobs.split_at_mut(at);
            self.inner.submit(done);
            // Half sealed, as a panic may find it.
            rest[0].buffer.bytes_mut()[20..30].fill(0x77);
            panic!("meant");
        }
        let bytes: u64 = jobs.iter().map(|job| 128 + u64::from(job.text_bytes)).sum();
        TIME.set(TIME.get() + CALL.get() + bytes * RATE.get() / 1024);
        *self.stage.jobs.lock().unwrap().entry(thread_name()).or_default() += jobs.len();
        self.inner.submit(jobs)
    }
}

thread_local! {
    /// The clock of this thread, which only cryptography moves: a tick for each byte and 128 for each job.
    static TIME: Cell<u64> = const { Cell::new(1_000_000) };
    /// Its ticks for 1,024 bytes.
    static RATE: Cell<u64> = const { Cell::new(1024) };
    /// What a call costs beside its jobs.
    static CALL: Cell<u64> = const { Cell::new(0) };
    /// How often the clock was read.
    static READ: Cell<u32> = const { Cell::new(0) };
}

fn time() -> u64 {
    READ.set(READ.get() + 1);
    TIME.get()
}

/// Nothing comes for long.
fn idle() {
    TIME.set(TIME.get() + 1_000_000);
}

fn played(threads: usize) -> (CoresEngine, Arc<Stage>) {
    RATE.set(1024);
    CALL.set(0);
    let stage = Arc::new(Stage::default());
    let mut make = || -> Result<Vec<Box<dyn Engine>>, EngineError> {
        let stage = Arc::clone(&stage);
        Ok(vec![Box::new(Played { inner: PortableEngine::new(), stage, is_synchronous: true })])
    };
    let engine = CoresEngine::with_clock(&CoresConfig::of(threads), &mut make, time).unwrap();
    stage.jobs.lock().unwrap().clear();
    stage.installed.store(0, Ordering::SeqCst);
    (engine, stage)
}

fn material(byte: u8) -> KeyMaterial {
    material_of(Suite::AES128GCM16, byte)
}

fn material_of(suite: Suite, byte: u8) -> KeyMaterial {
    KeyMaterial::new(suite, Zeroizing::new(vec![byte; suite.keying_material_bytes()])).unwrap()
}

fn install(engine: &mut dyn Engine) -> KeyId {
    engine.install(&material(7), Direction::Seal).unwrap()
}

const TEXT: [u8; 1232] = [0xA5; 1232];

fn jobs(key: KeyId, tickets: std::ops::Range<u32>) -> Vec<Job> {
    let job = |ticket: u32| Job {
        ticket,
        key,
        sequence: ticket.into(),
        text_start: 16,
        text_bytes: 1200,
        ..Job::new(Buffer::copied(&TEXT, 0, 0), Direction::Seal, 0)
    };
    tickets.map(job).collect()
}

/// Those of a burst that have ended in place.
fn ended(burst: Vec<Job>) -> Vec<Job> {
    burst.into_iter().filter(|job| job.status != JobStatus::Taken).collect()
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        std::thread::yield_now();
    }
}

fn drain(engine: &mut dyn Engine, done: &mut Vec<Job>) {
    until("jobs were lost", || {
        let (before, in_flight) = (done.len(), engine.in_flight());
        engine.poll(done, 7);
        assert!(done.len() - before <= 7);
        assert_eq!(engine.in_flight() + done.len() - before, in_flight, "in_flight is exact");
        engine.in_flight() == 0
    });
}

fn sorted_tickets(jobs: &[Job]) -> Vec<u32> {
    let mut tickets: Vec<u32> = jobs.iter().map(|job| job.ticket).collect();
    tickets.sort_unstable();
    tickets
}

#[test]
fn few_jobs_are_the_workers_own_and_a_burst_is_divided() {
    let (mut engine, stage) = played(3);
    let key = install(&mut engine);
    let mut few = jobs(key, 0..6);
    assert_eq!(engine.submit(&mut few), 6);
    assert!(few.iter().all(|job| job.status == JobStatus::Done));
    assert_eq!((engine.in_flight(), stage.jobs_of("cores-0")), (0, 0));
    let each = || [0, 1, 2].map(|n| stage.jobs_of(&format!("cores-{n}")));
    let mut shares = |count: u32| {
        let before = each();
        let mut burst = jobs(key, 0..count);
        assert_eq!(engine.submit(&mut burst), count as usize);
        let mut done = ended(burst);
        drain(&mut engine, &mut done);
        assert_eq!(sorted_tickets(&done), (0..count).collect::<Vec<_>>());
        assert!(done.iter().all(|job| job.status == JobStatus::Done));
        [0, 1, 2].map(|n| each()[n] - before[n])
    };
    idle();
    assert_eq!(shares(64), [16; 3], "and 16 are the worker's own");
    idle();
    assert_eq!(shares(12), [3; 3], "by time, and not by number");
    // Who comes at once with the next burst has more to do than cryptography.
    let pressed = shares(60);
    assert!(pressed.iter().all(|share| (19..=21).contains(share)), "{pressed:?}");
}

/// A burst that is the worker's own when it comes alone is not while others come before and after.
#[test]
fn short_bursts_are_shared_while_they_come_and_come() {
    let (mut engine, stage) = played(1);
    let key = install(&mut engine);
    for _ in 0..40 {
        let mut burst = jobs(key, 0..6);
        engine.submit(&mut burst);
        let mut done = ended(burst);
        drain(&mut engine, &mut done);
        assert_eq!(sorted_tickets(&done), (0..6).collect::<Vec<_>>());
    }
    assert!(stage.jobs_of("cores-0") > 100, "{}", stage.jobs_of("cores-0"));
}

/// Where threads can do all of it, the worker still does some at times: otherwise it would not know when it
/// would be cheaper to do all of it.
#[test]
fn the_worker_does_some_of_a_burst_at_times_to_know_what_it_costs() {
    let (mut engine, _) = played(3);
    let key = install(&mut engine);
    let (mut alone, mut some) = (0, 0);
    for _ in 0..1_000 {
        let mut burst = jobs(key, 0..60);
        engine.submit(&mut burst);
        let mut done = ended(burst);
        match done.len() {
            0 => alone += 1,
            1..8 => some += 1,
            _ => {}
        }
        assert!(engine.unmeasured <= crate::engine::UNMEASURED_MOST);
        drain(&mut engine, &mut done);
        assert_eq!(sorted_tickets(&done), (0..60).collect::<Vec<_>>());
    }
    assert!(alone > 500 && some >= 10, "{alone} of threads alone, {some} with a few of its own");
}

/// Submits a burst of 32 as a gateway does; returns how many of them were handed over, and how often the
/// clock was read. What the engine says beforehand holds.
fn burst(engine: &mut CoresEngine, key: KeyId) -> (usize, u32) {
    let before = READ.get();
    let mut burst = jobs(key, 0..32);
    let at_once = engine.ends_next_at_once(&burst);
    assert_eq!(engine.submit(&mut burst), 32);
    let mut done = ended(burst);
    let handed_over = 32 - done.len();
    assert!(!at_once || handed_over == 0, "{handed_over} were to end at once");
    let read = READ.get() - before;
    drain(engine, &mut done);
    assert_eq!(sorted_tickets(&done), (0..32).collect::<Vec<_>>());
    assert!(done.iter().all(|job| job.status == JobStatus::Done));
    (handed_over, read)
}

/// A quarter of a tick for a byte: less than a packet costs to hand over.
#[test]
fn bursts_that_are_not_worth_it_stay_with_the_worker_and_no_clock_is_read() {
    let (mut engine, stage) = played(1);
    RATE.set(256);
    let key = install(&mut engine);
    let asked = (1..).take_while(|_| burst(&mut engine, key).1 > 0).count();
    assert!(asked <= 4, "{asked} bursts until that is known");
    let by_thread = stage.jobs_of("cores-0");
    // The first one that is left has passed.
    assert!((1..LEFT).all(|_| burst(&mut engine, key) == (0, 0)));
    for _ in 0..3 {
        let (handed_over, read) = burst(&mut engine, key);
        assert_eq!(handed_over, 0);
        assert!((1..=4).contains(&read), "{read}: however many jobs it has");
        assert!((0..LEFT).all(|_| burst(&mut engine, key) == (0, 0)));
    }
    assert_eq!(stage.jobs_of("cores-0"), by_thread);
    // Shorter packets are of another kind, of which nothing is known.
    let mut short = jobs(key, 0..32);
    short.iter_mut().for_each(|job| job.text_bytes = 200);
    assert!(!engine.ends_next_at_once(&short));
}

/// A night of keepalives: each comes alone, and finds its code and its key in no cache.
#[test]
fn single_packets_do_not_make_a_suite_look_dear() {
    let (mut engine, _) = played(1);
    RATE.set(256);
    CALL.set(2_000);
    let key = install(&mut engine);
    for _ in 0..1_000 {
        let mut one = jobs(key, 0..1);
        assert_eq!(engine.submit(&mut one), 1);
        assert_eq!(one[0].status, JobStatus::Done);
    }
    CALL.set(0);
    (0..4).for_each(|_| _ = burst(&mut engine, key));
    assert!((0..LEFT).all(|_| burst(&mut engine, key) == (0, 0)), "known after as many bursts as ever");
}

/// Two packets of a dear suite between bursts of a cheap one, of which nothing is asked.
#[test]
fn a_worker_that_is_busy_with_what_is_left_to_it_hands_others_over() {
    let (mut engine, _) = played(1);
    let cheap = install(&mut engine);
    let dear = engine.install(&material_of(Suite::AES256GCM16, 7), Direction::Seal).unwrap();
    let mut round = || {
        RATE.set(256);
        burst(&mut engine, cheap);
        RATE.set(1024);
        let mut two = jobs(dear, 0..2);
        assert_eq!(engine.submit(&mut two), 2);
        let mut done = ended(two);
        let handed_over = done.len() < 2;
        drain(&mut engine, &mut done);
        assert!(done.iter().all(|job| job.status == JobStatus::Done));
        handed_over
    };
    (0..10).for_each(|_| _ = round());
    // What was while all was asked about is forgotten. Of 13,280 ticks a fifth is for the two, which by
    // themselves would not press the worker.
    idle();
    let handed_over = (0..100).filter(|_| round()).count();
    assert!(handed_over >= 90, "{handed_over} of 100");
}

/// A gateway may ask about a burst, find that it has to wait, and bring another one.
#[test]
fn what_another_burst_costs_is_not_learned_of_the_one_that_was_asked_about() {
    let (mut engine, _) = played(1);
    // Half a tick for a byte: long packets are worth handing over, short ones are not.
    RATE.set(512);
    let key = install(&mut engine);
    for _ in 0..10 {
        idle();
        burst(&mut engine, key);
    }
    let long = jobs(key, 0..32);
    let mut short = jobs(key, 0..32);
    short.iter_mut().for_each(|job| job.text_bytes = 200);
    assert!(!engine.ends_next_at_once(&long));
    assert_eq!(engine.submit(&mut short), 32);
    assert!(short.iter().all(|job| job.status == JobStatus::Done), "they are the worker's own");
    assert!(!engine.ends_next_at_once(&long), "and the others are not");
}

#[test]
fn a_suite_that_becomes_dear_is_handed_over_again() {
    let (mut engine, _) = played(1);
    RATE.set(256);
    let key = install(&mut engine);
    (0..2 * LEFT).for_each(|_| _ = burst(&mut engine, key));
    // Ten ticks for a byte.
    RATE.set(10_240);
    let bursts = (1..).take_while(|_| burst(&mut engine, key).0 == 0).count();
    assert!(bursts <= 6 * (LEFT as usize + 1), "{bursts} until it was asked about often enough");
    assert!((0..1_000).all(|_| burst(&mut engine, key).0 > 0), "and stays so");
}

/// Packets that were handed over cost the worker more elsewhere than it is spared, as when their lines come
/// back from another core's cache.
#[test]
fn what_the_worker_does_faster_alone_is_left_to_it() {
    let (mut engine, _) = played(1);
    RATE.set(512);
    let key = install(&mut engine);
    let mut handed_over = |bursts: u32, other: u64| {
        let bursts = (0..bursts).filter(|_| {
            let is_divided = burst(&mut engine, key).0 > 0;
            TIME.set(TIME.get() + 32 * if is_divided { other } else { 500 });
            is_divided
        });
        bursts.count()
    };
    // Half a tick a byte: a packet takes the worker 664 ticks, and to hand it over is reckoned at 406.
    assert!(handed_over(600, 1_500) > 500);
    handed_over(100, 1_500);
    assert_eq!(handed_over(400, 1_500), 0, "1,164 ticks alone, 1,500 divided");
    let tried = handed_over(2_000, 1_500);
    assert!(tried > 0 && tried < 300, "{tried} bursts to know whether that is still so");
    handed_over(3_000, 700);
    assert!(handed_over(1_000, 700) > 800, "700 divided");
}

/// More bursts than a ring has slots, between two polls: what threads have ended makes room for more.
#[test]
fn what_has_ended_makes_room_before_it_is_asked_for() {
    let (mut engine, stage) = played(1);
    let key = install(&mut engine);
    let (mut done, mut next, began) = (Vec::new(), 0, Instant::now());
    while engine.in_flight() < 40 * 32 {
        assert!(began.elapsed() < PATIENCE, "{} are under way", engine.in_flight());
        let mut burst = jobs(key, next..next + 32);
        next += 32;
        assert_eq!(engine.submit(&mut burst), 32);
        done.extend(ended(burst));
        std::thread::yield_now();
    }
    assert!(stage.jobs_of("cores-0") > 32 * 8);
    drain(&mut engine, &mut done);
    assert_eq!(sorted_tickets(&done), (0..next).collect::<Vec<_>>());
    assert!(done.iter().all(|job| job.status == JobStatus::Done));
}

#[test]
fn full_rings_leave_the_rest_to_the_worker_and_nothing_waits_for_a_thread_that_hangs() {
    let (mut engine, stage) = played(2);
    let key = install(&mut engine);
    stage.holds.store(true, Ordering::SeqCst);
    let mut done = Vec::new();
    for round in 0..20 {
        let mut burst = jobs(key, round * 64..round * 64 + 64);
        assert_eq!(engine.submit(&mut burst), 64, "all are taken");
        done.extend(ended(burst));
        engine.poll(&mut done, 1024);
    }
    let held = engine.in_flight();
    assert!(held > 0 && held <= 2 * 24 * 32, "{held} with two threads");
    assert_eq!(done.len(), 20 * 64 - held);
    // Its key goes, and is gone at once for new jobs of the worker's own.
    engine.remove(key);
    let mut late = jobs(key, 0..1);
    engine.submit(&mut late);
    assert_eq!(late[0].status, JobStatus::Fault);
    stage.holds.store(false, Ordering::SeqCst);
    drain(&mut engine, &mut done);
    assert_eq!(sorted_tickets(&done), (0..20 * 64).collect::<Vec<_>>());
    assert!(done.iter().all(|job| job.status == JobStatus::Done), "the key was there until they ended");
    until("keys remain", || stage.keys.load(Ordering::SeqCst) == 0);
}

/// Keys come and go between bursts, while threads are behind: each job meets the keys of its moment.
#[test]
fn no_job_runs_before_its_key_is_there_or_after_it_is_gone() {
    let seed = 2024;
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut engine, stage) = played(3);
    let mut keys: Vec<(KeyId, bool)> = Vec::new();
    let (mut due, mut done, mut next) = (HashMap::new(), Vec::new(), 0);
    for _ in 0..3_000 {
        match random.u32(..10) {
            0..=1 => keys.push((install(&mut engine), true)),
            2 if !keys.is_empty() => {
                let at = random.usize(..keys.len());
                engine.remove(keys[at].0);
                keys[at].1 = false;
            }
            3..=8 if !keys.is_empty() => {
                let count = random.u32(1..=64);
                let mut burst = Vec::new();
                for ticket in next..next + count {
                    let (key, is_held) = keys[random.usize(keys.len().saturating_sub(20)..keys.len())];
                    burst.extend(jobs(key, ticket..ticket + 1));
                    due.insert(ticket, if is_held { JobStatus::Done } else { JobStatus::Fault });
                }
                next += count;
                assert_eq!(engine.submit(&mut burst), burst.len());
                done.extend(ended(burst));
            }
            _ => engine.poll(&mut done, random.usize(..100)),
        }
    }
    drain(&mut engine, &mut done);
    assert_eq!(sorted_tickets(&done), (0..next).collect::<Vec<_>>());
    for job in &done {
        assert_eq!(job.status, due[&job.ticket], "ticket {}", job.ticket);
        assert_eq!(job.status == JobStatus::Fault, job.buffer.bytes() == TEXT);
    }
    for (key, _) in keys.iter().filter(|key| key.1) {
        engine.remove(*key);
    }
    until("keys remain", || stage.keys.load(Ordering::SeqCst) == 0);
    assert!(stage.jobs_of("cores-0") > 0 && stage.jobs_of("cores-2") > 0);
}

#[test]
fn prepared_keys_are_linked_in_every_thread() {
    let (mut engine, stage) = played(2);
    let key = engine.preparer().unwrap().prepare(&material(7), Direction::Seal).unwrap();
    let key = engine.link(key).unwrap();
    let mut burst = jobs(key, 0..64);
    assert_eq!(engine.submit(&mut burst), 64);
    let mut done = ended(burst);
    drain(&mut engine, &mut done);
    assert!(done.iter().all(|job| job.status == JobStatus::Done));
    assert_eq!((stage.keys.load(Ordering::SeqCst), stage.installed.load(Ordering::SeqCst)), (3, 0));
    // Each gives what the portable engine gives.
    let mut portable = PortableEngine::new();
    let mut expected = jobs(install(&mut portable), 0..64);
    portable.submit(&mut expected);
    done.sort_unstable_by_key(|job| job.ticket);
    assert!(done.iter().zip(&expected).all(|(one, other)| one.buffer.bytes() == other.buffer.bytes()));
    let (other, _) = played(1);
    let few = other.preparer().unwrap().prepare(&material(7), Direction::Seal).unwrap();
    assert!(matches!(engine.link(few), Err(EngineError::KeyRefused { engine: "cores", .. })));
}

/// What a thread had in hand when it panicked can be done by nobody: it may be half sealed. The rest can.
#[test]
fn a_thread_that_panics_loses_what_it_had_in_hand_and_nothing_else() {
    let (mut engine, stage) = played(2);
    let key = install(&mut engine);
    stage.holds.store(true, Ordering::SeqCst);
    let (mut done, mut count) = (Vec::new(), 0);
    for round in 0..4_u32 {
        let mut burst = jobs(key, round * 64..round * 64 + 64);
        if round == 0 {
            burst[5].ticket = PANICS_AT;
        }
        count += engine.submit(&mut burst);
        done.extend(ended(burst));
    }
    stage.holds.store(false, Ordering::SeqCst);
    drain(&mut engine, &mut done);
    assert_eq!(done.len(), count, "every job ended once");
    let (faults, sealed): (Vec<Job>, Vec<Job>) =
        done.into_iter().partition(|job| job.status == JobStatus::Fault);
    assert!(sealed.iter().all(|job| job.status == JobStatus::Done && job.buffer.bytes() != TEXT));
    let (mut spoilt, mut whole): (Vec<Job>, Vec<Job>) =
        faults.into_iter().partition(|job| job.buffer.bytes() != TEXT);
    assert!(spoilt.iter().any(|job| job.ticket == PANICS_AT) && spoilt.len() <= 32, "{}", spoilt.len());
    assert!(spoilt.iter().all(|job| job.buffer.bytes() == [0; TEXT.len()]), "nothing half sealed remains");
    assert!(!whole.is_empty(), "the chunks behind it");
    let mut portable = PortableEngine::new();
    let other_key = install(&mut portable);
    for job in spoilt.iter_mut().chain(&mut whole) {
        (job.key, job.status) = (other_key, JobStatus::Pending);
    }
    portable.submit(&mut spoilt);
    portable.submit(&mut whole);
    assert!(spoilt.iter().all(|job| job.status == JobStatus::Fault), "no engine may do them");
    assert!(whole.iter().all(|job| job.status == JobStatus::Done), "the next engine does them");
    // The other thread and the worker go on.
    assert!(engine.description().contains("2 threads (1 out of service)"), "{}", engine.description());
    let mut burst = jobs(key, 0..64);
    assert_eq!(engine.submit(&mut burst), 64);
    let mut done = ended(burst);
    drain(&mut engine, &mut done);
    assert!(done.iter().all(|job| job.status == JobStatus::Done));
    let next = engine.install(&material(9), Direction::Seal).unwrap();
    engine.remove(next);
    engine.remove(key);
    // The engines of the one that panicked went with it.
    until("threads still have keys", || stage.keys.load(Ordering::SeqCst) == 1);
}

#[test]
fn buffers_come_back_when_the_engine_ends_and_its_threads_have_ended_then() {
    let mut region = Region::new(64, 256, PageChoice::Small);
    for round in 0..20 {
        let (mut engine, stage) = played(2);
        let key = install(&mut engine);
        let mut burst = jobs(key, 0..64);
        for job in &mut burst {
            job.buffer = region.take().expect("all frames came back");
        }
        engine.submit(&mut burst);
        drop(burst);
        if round % 2 == 0 {
            std::thread::yield_now();
        }
        drop(engine);
        assert_eq!(Arc::strong_count(&stage), 1, "no thread has its engines any more");
    }
}

#[test]
fn a_thread_that_hangs_does_not_keep_the_engine_from_ending() {
    let (mut engine, stage) = played(1);
    let key = install(&mut engine);
    stage.holds.store(true, Ordering::SeqCst);
    engine.submit(&mut jobs(key, 0..64));
    until("it is held", || stage.held.load(Ordering::SeqCst) == 1);
    drop(engine);
    assert_eq!(stage.held.load(Ordering::SeqCst), 1, "it was not waited for");
    stage.holds.store(false, Ordering::SeqCst);
    until("it ends by itself", || Arc::strong_count(&stage) == 1);
}

#[test]
fn what_cannot_work_is_refused_in_one_line() {
    let open = |threads: usize, is_synchronous: Option<bool>| {
        let mut make = || -> Result<Vec<Box<dyn Engine>>, EngineError> {
            let played = |is_synchronous| -> Box<dyn Engine> {
                Box::new(Played { inner: PortableEngine::new(), stage: Arc::default(), is_synchronous })
            };
            Ok(is_synchronous.into_iter().map(played).collect())
        };
        CoresEngine::open(&CoresConfig::of(threads), &mut make).map(|engine| engine.description())
    };
    let refused = |threads, engine| match open(threads, engine) {
        Err(EngineError::Unavailable { engine: "cores", reason }) => reason,
        other => panic!("{other:?}"),
    };
    assert!(refused(0, Some(true)).contains("from 1 to 64 threads, not 0"));
    assert!(refused(MAX_THREADS + 1, Some(true)).contains("not 65"));
    assert!(refused(1, Some(false)).contains("played ends jobs later"));
    assert!(refused(1, None).contains("no engine"));
    assert_eq!(open(1, Some(true)).unwrap(), "1 thread and the worker, each with played (for tests)");
}

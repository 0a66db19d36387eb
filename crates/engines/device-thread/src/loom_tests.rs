//! The engine changes hands: every interleaving of the worker, of the thread that drives the engine for it,
//! and of who wants such a thread. All is real but the engine.

use crate::DeviceThread;
use crate::sync::{Builder, yield_now};
use loom::sync::Mutex;
use loom::sync::atomic::AtomicU8;
use loom::thread;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use testudo_crypto::{
    Capability, Direction, Engine, EngineError, Job, JobStatus, KeyId, KeyMaterial, KeyTable, Reclaim, Suite,
};
use testudo_packet::{Aside, Buffer};
use zeroize::Zeroizing;

const SUITE: Suite = Suite::AES128GCM16;
fn model(check: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.max_branches = 10_000;
    let check = Arc::new(check);
    model.check(move || {
        // The first thread of a model has 32 KiB of stack, which may not do.
        let check = Arc::clone(&check);
        Builder::new().spawn(move || check()).unwrap().join().unwrap();
    });
}

/// What an engine has, where the worker finds it, too.
#[derive(Default)]
struct Kept(Mutex<Vec<Job>>);

impl Reclaim for Kept {
    fn reclaim(&self, to: &mut Vec<Job>) -> bool {
        let Ok(mut jobs) = self.0.try_lock() else { return false };
        to.append(&mut jobs);
        true
    }
    fn rests(&self) -> bool {
        false
    }
}

/// An engine that ends jobs at once: as done, if it holds their keys. Or when it is polled, as done, if it
/// keeps them.
struct Played {
    keys: KeyTable<()>,
    kept: Option<Arc<Kept>>,
    /// Engines that are there; not loom's, since it is looked at when both threads have ended.
    there: Arc<AtomicUsize>,
}

impl Drop for Played {
    fn drop(&mut self) {
        self.there.fetch_sub(1, Ordering::SeqCst);
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
        (suite == SUITE).then_some(Capability {
            max_text_bytes: 2048,
            max_keys: 8,
            takes_chains: false,
            writes_frames: false,
        })
    }
    fn install(&mut self, _: &KeyMaterial, _: Direction) -> Result<KeyId, EngineError> {
        self.keys.insert("played", ())
    }
    fn remove(&mut self, key: KeyId) {
        self.keys.remove(key);
    }
    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        if let Some(kept) = &self.kept {
            kept.0.lock().unwrap().extend(jobs.iter_mut().map(Job::take));
            return jobs.len();
        }
        for job in &mut *jobs {
            let is_held = self.keys.get(job.key).is_some();
            job.status = if is_held { JobStatus::Done } else { JobStatus::Fault };
        }
        jobs.len()
    }
    fn poll(&mut self, done: &mut Vec<Job>, _: usize) {
        let Some(kept) = &self.kept else { return };
        let jobs = std::mem::take(&mut *kept.0.lock().unwrap());
        done.extend(jobs.into_iter().map(|job| Job { status: JobStatus::Done, ..job }));
    }
    fn reclaims(&self) -> Option<Arc<dyn Reclaim>> {
        self.kept.clone().map(|kept| -> Arc<dyn Reclaim> { kept })
    }
}

fn engine() -> (DeviceThread, Arc<Aside>, Arc<AtomicUsize>) {
    let (aside, there) = (Arc::<Aside>::default(), Arc::new(AtomicUsize::new(1)));
    let played = Played { keys: KeyTable::new(8), kept: None, there: Arc::clone(&there) };
    let engine = DeviceThread::by_choice(Box::new(played), None, Arc::clone(&aside));
    (engine, aside, there)
}

fn install(engine: &mut DeviceThread) -> KeyId {
    let key = Zeroizing::new(vec![1; SUITE.keying_material_bytes()]);
    engine.install(&KeyMaterial::new(SUITE, key).unwrap(), Direction::Seal).unwrap()
}

/// Has the engine take a job, and waits for its end.
fn run(engine: &mut DeviceThread, key: KeyId) -> JobStatus {
    let mut jobs = [Job { key, ..Job::new(Buffer::default(), Direction::Seal, 1) }];
    while engine.submit(&mut jobs) == 0 {
        yield_now();
    }
    engine.flush();
    let mut ended = Vec::new();
    if jobs[0].status != JobStatus::Taken {
        ended.extend(jobs);
    }
    while ended.is_empty() {
        yield_now();
        engine.poll(&mut ended, 8);
    }
    assert_eq!((ended.len(), engine.in_flight()), (1, 0));
    ended[0].status
}

/// As the worker's tick does, without jobs.
fn until_it_rests_no_more(engine: &mut DeviceThread) {
    while engine.is_resting() {
        yield_now();
    }
}

#[test]
fn an_engine_goes_to_its_thread_and_back_with_all_keys_and_loses_no_job() {
    model(|| {
        let (mut engine, aside, there) = engine();
        let first = install(&mut engine);
        aside.want(true);
        assert_eq!(run(&mut engine, first), JobStatus::Done);
        aside.want(false);
        assert!(engine.is_resting(), "it was recalled");
        // Both follow the engine, wherever it is by now.
        engine.remove(first);
        let second = install(&mut engine);
        until_it_rests_no_more(&mut engine);
        assert_eq!(run(&mut engine, second), JobStatus::Done);
        assert_eq!(run(&mut engine, first), JobStatus::Fault);
        drop(engine);
        assert_eq!(there.load(Ordering::SeqCst), 0);
    });
}

#[test]
fn a_thread_that_is_wanted_and_not_wanted_at_any_moment_loses_no_job() {
    model(|| {
        let (mut engine, aside, there) = engine();
        let key = install(&mut engine);
        let chooser = Arc::clone(&aside);
        let chooser = thread::spawn(move || [true, false].map(|wants| chooser.want(wants)));
        for _ in 0..2 {
            assert_eq!(run(&mut engine, key), JobStatus::Done);
        }
        chooser.join().unwrap();
        until_it_rests_no_more(&mut engine);
        assert_eq!(run(&mut engine, key), JobStatus::Done);
        assert_eq!(engine.description(), "for tests", "it is the worker's");
        drop(engine);
        assert_eq!(there.load(Ordering::SeqCst), 0);
    });
}

/// Who gives up without any patience may meet a thread that is just handing the engine back.
#[test]
fn an_engine_on_its_way_back_is_given_up_or_comes_back_and_never_both() {
    let seen = Arc::new([false, false].map(AtomicBool::new));
    let happened = Arc::clone(&seen);
    model(move || {
        let (mut engine, aside, there) = engine();
        let key = install(&mut engine);
        aside.want(true);
        assert_eq!(run(&mut engine, key), JobStatus::Done);
        aside.want(false);
        engine.patience = Duration::ZERO;
        until_it_rests_no_more(&mut engine);
        let is_given_up = engine.description().ends_with("(out of service)");
        let expected = if is_given_up { JobStatus::Fault } else { JobStatus::Done };
        assert_eq!(run(&mut engine, key), expected);
        drop(engine);
        assert_eq!(there.load(Ordering::SeqCst), 0, "it ended with its thread, or with the worker");
        happened[usize::from(is_given_up)].store(true, Ordering::SeqCst);
    });
    assert!(seen.iter().all(|happened| happened.load(Ordering::SeqCst)), "both happen");
}

/// As from a thread that does not come out of a call, wherever it is.
#[test]
fn jobs_that_are_taken_back_at_any_moment_end_once() {
    let seen = Arc::new([false, false].map(AtomicBool::new));
    let happened = Arc::clone(&seen);
    model(move || {
        let there = Arc::new(AtomicUsize::new(1));
        let kept = Some(Arc::<Kept>::default());
        let played = Played { keys: KeyTable::new(8), kept, there: Arc::clone(&there) };
        let mut engine = DeviceThread::over(Box::new(played), None);
        let key = install(&mut engine);
        let job = |ticket| Job { key, ticket, ..Job::new(Buffer::default(), Direction::Seal, 1) };
        assert_eq!(engine.submit(&mut [job(0), job(1)]), 2);
        engine.flush();
        engine.take_jobs_back();
        let mut ended = Vec::new();
        while ended.len() < 2 {
            engine.poll(&mut ended, 8);
            yield_now();
        }
        assert_eq!((ended.len(), engine.in_flight()), (2, 0));
        ended.sort_by_key(|job| job.ticket);
        assert!(ended.iter().map(|job| job.ticket).eq(0..2), "each once");
        let is_back = |job: &Job| job.status == JobStatus::Fault;
        ended.iter().for_each(|job| happened[usize::from(is_back(job))].store(true, Ordering::SeqCst));
        drop(engine);
        assert_eq!(there.load(Ordering::SeqCst), 0);
    });
    assert!(seen.iter().all(|happened| happened.load(Ordering::SeqCst)), "both happen");
}

/// The model is worth something: it finds two that settle it by looking first.
#[test]
#[should_panic(expected = "both")]
fn an_engine_that_is_settled_in_two_steps_is_given_up_and_handed_back() {
    model(|| {
        let returned = Arc::new(AtomicU8::new(0));
        let settles = |returned: &AtomicU8, as_that| {
            let is_open = returned.load(Ordering::Acquire) == 0;
            returned.store(as_that, Ordering::Release);
            is_open
        };
        let other = Arc::clone(&returned);
        let thread = thread::spawn(move || settles(&other, 1));
        let is_mine = settles(&returned, 2);
        let is_its = thread.join().unwrap();
        assert!(!(is_mine && is_its), "both");
    });
}

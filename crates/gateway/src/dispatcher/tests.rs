use super::*;
use crate::scheduler::job;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use testudo_crypto::{Capability, EngineError, KeyMaterial, PortableEngine};
use zeroize::Zeroizing;

const SUITE: Suite = Suite::AES128GCM16;

/// The portable engine, which keeps jobs until it is polled but for submissions of which it says otherwise.
struct Moody {
    inner: PortableEngine,
    /// What it says when it is asked.
    answers: VecDeque<bool>,
    asked: Arc<AtomicUsize>,
    has_promised: bool,
    kept: VecDeque<Job>,
}

impl Engine for Moody {
    fn name(&self) -> &'static str {
        "moody"
    }
    fn description(&self) -> String {
        String::new()
    }
    fn capability(&self, suite: Suite) -> Option<Capability> {
        self.inner.capability(suite)
    }
    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        self.inner.install(key, direction)
    }
    fn remove(&mut self, key: KeyId) {
        self.inner.remove(key);
    }
    fn ends_some_at_once(&self) -> bool {
        true
    }
    fn ends_next_at_once(&mut self, jobs: &[Job]) -> bool {
        assert!(jobs.iter().all(|job| job.key != KeyId::NONE), "jobs have their keys");
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.has_promised = self.answers.pop_front().unwrap_or_default();
        self.has_promised
    }
    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        let taken = self.inner.submit(jobs);
        if !std::mem::take(&mut self.has_promised) {
            for job in jobs {
                let status = job.status;
                self.kept.push_back(Job { status, ..job.take() });
            }
        }
        taken
    }
    fn poll(&mut self, done: &mut Vec<Job>, max: usize) {
        done.extend(self.kept.drain(..max.min(self.kept.len())));
    }
}

/// A dispatcher over such an engine, with an outbound SA.
fn dispatcher(answers: &[bool]) -> (Dispatcher, SaRef, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let engine = Moody {
        inner: PortableEngine::new(),
        answers: answers.iter().copied().collect(),
        asked: Arc::clone(&asked),
        has_promised: false,
        kept: VecDeque::new(),
    };
    let mut dispatcher = Dispatcher::new(vec![Box::new(engine)], 64);
    let bytes = Zeroizing::new(vec![7; SUITE.keying_material_bytes()]);
    let material = KeyMaterial::new(SUITE, bytes).unwrap();
    let (sa, key) = (SaRef::from_bits(1), dispatcher.install(material.into(), Direction::Seal).unwrap());
    dispatcher.connect(Direction::Seal, sa, key, SUITE);
    (dispatcher, sa, asked)
}

fn jobs(sa: SaRef, numbers: std::ops::Range<u32>) -> Vec<Job> {
    numbers.map(|number| Job { sa: sa.bits(), ..job(SUITE, 64, number, KeyId::NONE) }).collect()
}

fn numbers(jobs: &[Job]) -> Vec<u64> {
    assert!(jobs.iter().all(|job| job.status == JobStatus::Done));
    jobs.iter().map(|job| job.sequence).collect()
}

#[test]
fn what_an_engine_ends_at_once_is_finished_in_place_while_nothing_is_under_way() {
    let (mut dispatcher, sa, asked) = dispatcher(&[true, false, true]);
    let mut released = Vec::new();
    let mut first = jobs(sa, 0..4);
    assert!(dispatcher.submit(&mut first, &mut released), "in place");
    assert_eq!(numbers(&first), [0, 1, 2, 3]);
    assert!(released.is_empty() && !dispatcher.is_busy());
    // It keeps what it does not say this of, and is not asked while it has that: order comes first.
    assert!(!dispatcher.submit(&mut jobs(sa, 4..8), &mut released));
    assert_eq!((dispatcher.under_way(), asked.load(Ordering::SeqCst)), (4, 2));
    assert!(!dispatcher.submit(&mut jobs(sa, 8..12), &mut released));
    assert_eq!((dispatcher.under_way(), asked.load(Ordering::SeqCst)), (8, 2));
    assert!(released.is_empty());
    assert_eq!(dispatcher.poll(Moment::default(), &mut released), 0);
    assert_eq!(numbers(&released), (4..12).collect::<Vec<u64>>());
    let mut last = jobs(sa, 12..13);
    assert!(dispatcher.submit(&mut last, &mut released), "in place again");
    assert_eq!((numbers(&last), asked.load(Ordering::SeqCst)), (vec![12], 3));
}

/// An engine that wants thousands of jobs and takes none of them.
struct Refusing(PortableEngine);

impl Engine for Refusing {
    fn name(&self) -> &'static str {
        "refusing"
    }
    fn description(&self) -> String {
        String::new()
    }
    fn capability(&self, suite: Suite) -> Option<Capability> {
        self.0.capability(suite)
    }
    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        self.0.install(key, direction)
    }
    fn remove(&mut self, key: KeyId) {
        self.0.remove(key);
    }
    fn profile(&self, _: Suite) -> testudo_crypto::Profile {
        testudo_crypto::Profile::of_depth(4096)
    }
    fn submit(&mut self, _: &mut [Job]) -> usize {
        0
    }
    fn poll(&mut self, _: &mut Vec<Job>, _: usize) {}
}

/// What is queued for the next engine counts as under way, and is nobody's once its SA is gone.
#[test]
fn jobs_that_a_turn_had_no_time_for_end_once_as_faults_when_their_sa_goes() {
    const JOBS: u32 = 3000;
    let engines: Vec<Box<dyn Engine>> =
        vec![Box::new(Refusing(PortableEngine::new())), Box::new(PortableEngine::new())];
    let mut dispatcher = Dispatcher::new(engines, 16_384);
    let bytes = Zeroizing::new(vec![7; SUITE.keying_material_bytes()]);
    let material = KeyMaterial::new(SUITE, bytes).unwrap();
    let (sa, key) = (SaRef::from_bits(1), dispatcher.install(material.into(), Direction::Seal).unwrap());
    dispatcher.connect(Direction::Seal, sa, key, SUITE);
    let mut released = Vec::new();
    assert!(!dispatcher.submit(&mut jobs(sa, 0..JOBS), &mut released));
    assert_eq!((dispatcher.under_way(), released.len()), (JOBS as usize, 0));
    dispatcher.poll(Moment::default(), &mut released);
    assert_eq!(numbers(&released), (0..MOST_IN_A_TURN as u64).collect::<Vec<_>>());
    assert_eq!(dispatcher.under_way(), JOBS as usize - MOST_IN_A_TURN);
    dispatcher.disconnect(Direction::Seal, sa, &mut released);
    for _ in 0..2 {
        dispatcher.poll(Moment::default(), &mut released);
    }
    assert!(!dispatcher.is_busy());
    let (done, gone) = released.split_at(MOST_IN_A_TURN);
    assert!(gone.iter().all(|job| job.status == JobStatus::Fault));
    let mut all: Vec<_> = done.iter().chain(gone).map(|job| job.sequence).collect();
    all.sort_unstable();
    assert!(all.into_iter().eq(0..u64::from(JOBS)), "each once");
}

//! A thread that does not come out of a call, and an engine whose device is late: jobs go back to the worker.

use super::*;
use crate::watch::{Seen, Watch};
use testudo_crypto::Reclaim;

/// What the engine has, where the worker finds it.
#[derive(Default)]
struct Kept {
    jobs: Mutex<Vec<Job>>,
    /// A flush does not return while this is set.
    holds: AtomicBool,
    is_held: AtomicBool,
    /// The device is late.
    rests: AtomicBool,
}

impl Reclaim for Kept {
    fn reclaim(&self, jobs: &mut Vec<Job>) -> bool {
        jobs.append(&mut self.jobs.lock().unwrap());
        true
    }
    fn rests(&self) -> bool {
        self.rests.load(Ordering::SeqCst)
    }
}

/// The portable engine, as one that has jobs until it was flushed and is polled.
struct Keeping(Arc<Kept>, PortableEngine, bool);

impl Engine for Keeping {
    fn name(&self) -> &'static str {
        "keeping"
    }
    fn description(&self) -> String {
        "for tests".to_owned()
    }
    fn capability(&self, suite: Suite) -> Option<Capability> {
        self.1.capability(suite)
    }
    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        self.1.install(key, direction)
    }
    fn remove(&mut self, key: KeyId) {
        self.1.remove(key);
    }
    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        if self.0.rests() {
            return 0;
        }
        self.2 = false;
        self.0.jobs.lock().unwrap().extend(jobs.iter_mut().map(Job::take));
        jobs.len()
    }
    fn flush(&mut self) {
        while self.0.holds.load(Ordering::SeqCst) {
            self.0.is_held.store(true, Ordering::SeqCst);
            std::thread::yield_now();
        }
        self.2 = true;
    }
    fn poll(&mut self, done: &mut Vec<Job>, _: usize) {
        if self.2 && !self.0.rests() {
            let mut jobs = std::mem::take(&mut *self.0.jobs.lock().unwrap());
            self.1.submit(&mut jobs);
            done.append(&mut jobs);
        }
    }
    fn reclaims(&self) -> Option<Arc<dyn Reclaim>> {
        Some(Arc::clone(&self.0) as _)
    }
}

fn keeping() -> (DeviceThread, Arc<Kept>) {
    let kept = Arc::<Kept>::default();
    let engine = Keeping(Arc::clone(&kept), PortableEngine::new(), false);
    (DeviceThread::over(Box::new(engine), None), kept)
}

/// Polls until nothing is under way.
fn all(engine: &mut DeviceThread) -> Vec<Job> {
    let (began, mut done) = (Instant::now(), Vec::new());
    while engine.in_flight() > 0 {
        assert!(began.elapsed() < PATIENCE, "{} jobs do not come back", engine.in_flight());
        engine.poll(&mut done, 1000);
        std::thread::yield_now();
    }
    done
}

/// A flush is held with the first hundred jobs, and two hundred are behind.
fn stuck() -> (DeviceThread, Arc<Kept>, KeyId, Pool) {
    let (mut engine, kept) = keeping();
    let mut pool = Pool::new(1024, 200);
    let id = engine.install(&key(1), Direction::Seal).unwrap();
    kept.holds.store(true, Ordering::SeqCst);
    let mut jobs: Vec<Job> = (0..300).map(|ticket| job(id, ticket, &mut pool)).collect();
    let (first, behind) = jobs.split_at_mut(100);
    assert_eq!(engine.submit(first), 100);
    engine.flush();
    wait_for(|| kept.is_held.load(Ordering::SeqCst));
    assert_eq!(engine.submit(behind), 200);
    engine.flush();
    (engine, kept, id, pool)
}

#[test]
fn a_thread_that_does_not_come_out_of_a_call_keeps_no_jobs() {
    let (mut engine, kept, id, mut pool) = stuck();
    let (began, mut back) = (Instant::now(), Vec::new());
    while back.is_empty() {
        assert!(began.elapsed() < PATIENCE);
        engine.poll(&mut back, 1000);
        std::thread::yield_now();
    }
    assert_eq!(back.len(), 256, "no more faults in a turn");
    back.extend(all(&mut engine));
    assert!(back.iter().map(|job| job.ticket).eq(0..300), "in the order in which they were given");
    assert!(back.iter().all(|job| (job.status, job.sa, job.key) == (JobStatus::Fault, 3, id)));
    assert!(back.iter().all(|job| job.buffer.bytes() == [0x55; 96]), "another engine may try");
    let mut more = [job(id, 300, &mut pool)];
    assert_eq!((engine.submit(&mut more), more[0].status), (0, JobStatus::Pending), "it has no room");
    assert!(!engine.is_out_of_service() && !engine.is_resting());
    kept.holds.store(false, Ordering::SeqCst);
    let ended = run(&mut engine, (301..400).map(|ticket| job(id, ticket, &mut pool)).collect());
    assert!(ended.iter().all(|job| job.status == JobStatus::Done));
    assert!(ended.iter().map(|job| job.ticket).eq(301..400), "none of the others comes again");
    assert!(back.iter().all(|job| job.buffer.bytes() == [0x55; 96]), "they are somebody else's");
}

#[test]
fn a_thread_that_stays_in_a_call_is_out_of_service_and_has_lost_nothing() {
    let (mut engine, kept, id, mut pool) = stuck();
    assert_eq!(all(&mut engine).len(), 300);
    let (hour, turns) = (Duration::from_secs(3600), engine.told.turns());
    let far = Instant::now();
    let looks = (1..=16_u32).map(|hours| engine.watch.look(far + hours * hour, turns));
    assert_eq!(looks.last(), Some(Seen::Lost));
    let mut more = [job(id, 300, &mut pool)];
    assert_eq!(engine.submit(&mut more), 0);
    assert!(engine.is_out_of_service());
    assert_eq!((engine.submit(&mut more), more[0].status), (1, JobStatus::Fault));
    assert!(matches!(engine.install(&key(2), Direction::Seal), Err(EngineError::KeyRefused { .. })));
    kept.holds.store(false, Ordering::SeqCst);
}

/// What the thread has out of the ring is not to wait for the device either.
#[test]
fn jobs_that_an_engine_does_not_take_because_its_device_is_late_go_back() {
    let (mut engine, kept) = keeping();
    let mut pool = Pool::new(1024, 200);
    let id = engine.install(&key(1), Direction::Seal).unwrap();
    kept.holds.store(true, Ordering::SeqCst);
    let mut jobs: Vec<Job> = (0..110).map(|ticket| job(id, ticket, &mut pool)).collect();
    let (first, behind) = jobs.split_at_mut(10);
    assert_eq!(engine.submit(first), 10);
    engine.flush();
    wait_for(|| kept.is_held.load(Ordering::SeqCst));
    assert_eq!(engine.submit(behind), 100);
    engine.flush();
    kept.rests.store(true, Ordering::SeqCst);
    assert_eq!(engine.submit(&mut [job(id, 110, &mut pool)]), 0, "the worker knows it at once");
    kept.holds.store(false, Ordering::SeqCst);
    let (began, mut back) = (Instant::now(), Vec::new());
    while back.len() < 100 {
        assert!(began.elapsed() < PATIENCE);
        engine.poll(&mut back, 1000);
        std::thread::yield_now();
    }
    let is_untouched = |job: &Job| job.status == JobStatus::Fault && job.buffer.bytes() == [0x55; 96];
    assert!(back.iter().filter(|job| job.ticket >= 10).all(is_untouched));
    kept.rests.store(false, Ordering::SeqCst);
    back.extend(all(&mut engine));
    assert_eq!(back.len(), 110);
}

/// A gateway whose turns are so long gives up what an engine has with the third of them, or with the second.
#[test]
fn long_turns_of_the_worker_do_not_hide_a_thread_that_is_stuck() {
    for (turn_ms, looks) in [(10, 4), (22, 2), (35, 2), (70, 2), (100, 2), (101, 4_u32)] {
        for moves in [false, true] {
            let kept: Arc<dyn Reclaim> = Arc::<Kept>::default();
            let mut watch = Watch::new(Some(kept), 8);
            let began = Instant::now() + Duration::from_secs(3600);
            watch.look(began, 1);
            watch.begin_at(began);
            for look in 1..=looks {
                let turns = if moves { 1 + u64::from(look) } else { 1 };
                let is_stuck = look == looks && !moves;
                let expected = if is_stuck { Seen::Stuck } else { Seen::Moves };
                assert_eq!(watch.look(began + look * Duration::from_millis(turn_ms), turns), expected);
            }
        }
    }
}

/// A worker that has no processor sees nothing, and a thread that moves is not stuck, whatever its engine
/// has.
#[test]
fn time_in_which_nobody_looked_is_not_held_against_a_thread() {
    let kept: Arc<dyn Reclaim> = Arc::<Kept>::default();
    let hour = Duration::from_secs(3600);
    let mut watch = Watch::new(Some(kept), 8);
    let mut now = Instant::now();
    let mut look = |watch: &mut Watch, turns| {
        now += hour;
        watch.look(now, turns)
    };
    for turns in 1..100 {
        assert_eq!(look(&mut watch, turns), Seen::Moves);
    }
    watch.begin();
    assert!((0..3).all(|_| look(&mut watch, 99) == Seen::Moves));
    assert_eq!(look(&mut watch, 99), Seen::Stuck);
    assert!(watch.rests());
    assert_eq!(look(&mut watch, 100), Seen::Moves);
    assert!(!watch.rests());
    let mut nobodys = Watch::new(None, 8);
    assert!((0..100).all(|_| look(&mut nobodys, 1) == Seen::Moves), "its jobs are not to be had");
}

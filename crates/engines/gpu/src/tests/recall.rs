//! A device that is late: its jobs are taken back, and it gets others when it has ended those.

use super::compiled::{Compiled, Faults};
use super::engine;
use super::faults::{SUITE, jobs, material};
use crate::engine::GpuEngine;
use crate::open::GpuConfig;
use crate::several::SeveralGpus;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use testudo_crypto::{Direction, Engine, Job, JobStatus, KeyId, KeyMaterial, PortableEngine, Suite};
use testudo_engine_device_thread::DeviceThread;

/// Between two looks, so that each counts for as much as one may: 12.5 ms until jobs are taken back, and 46.9
/// ms until the device is out of service.
const STEP: Duration = Duration::from_secs(3600);
/// More than any machine needs; nothing is asserted about the time that passes.
const PATIENCE: Duration = Duration::from_secs(60);

/// An engine with a key, and a clock that is far ahead of the machine's, whose time counts for nothing then.
struct Late {
    engine: GpuEngine,
    faults: Arc<Faults>,
    key: KeyId,
    now: Instant,
}

impl Late {
    fn new() -> Self {
        Self::over(|_| {})
    }

    fn over(fault: fn(&Faults)) -> Self {
        let faults = Arc::new(Faults::default());
        fault(&faults);
        let mut engine = engine(&faults);
        let key = engine.install(&material(), Direction::Seal).unwrap();
        let now = Instant::now();
        engine.set_keys_until(now);
        Self { engine, faults, key, now }
    }

    fn hangs(&self, hangs: bool) {
        self.faults.hangs.store(hangs, Ordering::Relaxed);
    }

    fn submit(&mut self, count: u32) -> usize {
        let taken = self.engine.submit(&mut jobs(self.key, count));
        self.engine.flush();
        taken
    }

    /// Looks so many times, and takes what there is then.
    fn look(&mut self, times: u32) -> Vec<Job> {
        for _ in 0..times {
            self.now += STEP;
            self.engine.look(self.now);
        }
        self.poll()
    }

    fn poll(&mut self) -> Vec<Job> {
        let mut done = Vec::new();
        loop {
            let before = done.len();
            // What the machine takes counts for nothing.
            self.engine.set_looked(self.now + PATIENCE);
            self.engine.poll(&mut done, 1000);
            if done.len() == before {
                return done;
            }
        }
    }
}

fn statuses(jobs: &[Job], status: JobStatus) -> usize {
    jobs.iter().filter(|job| job.status == status).count()
}

/// Each once, in order, untouched; and what the device makes of them after all goes nowhere.
#[test]
fn jobs_of_a_device_that_is_late_go_back_and_it_gets_others_when_it_has_answered() {
    let mut late = Late::new();
    let untouched = jobs(late.key, 1).remove(0).buffer.bytes().to_vec();
    late.hangs(true);
    // A batch of 48, and one of 12.
    assert_eq!(late.submit(60), 60);
    assert_eq!(late.engine.submit(&mut [Job { ticket: 60, ..jobs(late.key, 1).remove(0) }]), 0);
    assert!(late.look(3).is_empty(), "37.5 ms");
    let back = late.look(1);
    assert!(back.iter().map(|job| job.ticket).eq(0..60));
    assert!(back.iter().all(|job| job.status == JobStatus::Fault && job.buffer.bytes() == untouched));
    assert_eq!((late.engine.in_flight(), late.engine.is_broken()), (0, false));
    // It takes none, as if it had no room, and nobody waits for it.
    let mut more = jobs(late.key, 3);
    assert_eq!((late.engine.submit(&mut more), more[0].status), (0, JobStatus::Pending));
    assert!(!late.engine.is_resting());
    assert_eq!(late.faults.launches.load(Ordering::Relaxed), 2);
    late.hangs(false);
    assert_eq!(late.submit(5), 5, "it has answered");
    let done = late.poll();
    assert_eq!((done.len(), statuses(&done, JobStatus::Done)), (5, 5));
    assert!(back.iter().all(|job| job.buffer.bytes() == untouched), "they are somebody else's by now");
}

/// A turn of the worker has the next engine do what comes back in it.
#[test]
fn jobs_that_are_lost_by_the_thousand_go_back_256_with_each_poll() {
    let sizes = GpuConfig { batch_jobs: 1000, keys: 4, ..GpuConfig::default() }.sizes();
    for is_lost in [false, true] {
        let faults = Arc::new(Faults::default());
        let mut engine = GpuEngine::over(Box::new(Compiled::new(sizes, Arc::clone(&faults))), sizes);
        let key = engine.install(&material(), Direction::Seal).unwrap();
        Faults::set(&faults.hangs);
        assert_eq!(engine.submit(&mut jobs(key, 1500)), 1500);
        engine.flush();
        match is_lost {
            true => Faults::set(&faults.is_lost),
            false => (1..=4_u32).for_each(|hours| engine.look(Instant::now() + hours * STEP)),
        }
        let mut done = Vec::new();
        for polls in 1..=6 {
            engine.poll(&mut done, 1024);
            assert_eq!(done.len(), (256 * polls).min(1500), "{is_lost}");
        }
        assert!(done.iter().map(|job| job.ticket).eq(0..1500));
        assert_eq!(statuses(&done, JobStatus::Fault), 1500);
    }
}

/// What was gathered and not flushed has waited, too.
#[test]
fn jobs_that_gather_behind_a_late_batch_go_back_with_it() {
    let mut late = Late::new();
    late.hangs(true);
    assert_eq!(late.submit(3), 3);
    assert_eq!(late.engine.submit(&mut jobs(late.key, 4)), 4);
    assert_eq!(statuses(&late.look(4), JobStatus::Fault), 7);
    late.hangs(false);
    assert_eq!(late.submit(96), 96, "both batches are free");
    assert_eq!(statuses(&late.poll(), JobStatus::Done), 96);
    assert_eq!(late.faults.launches.load(Ordering::Relaxed), 3, "those were never launched");
}

#[test]
fn a_device_that_hangs_for_750_ms_is_out_of_service_after_its_jobs_have_gone_back() {
    let mut late = Late::new();
    late.hangs(true);
    late.submit(3);
    assert_eq!(late.look(4).len(), 3);
    assert!(late.look(11).is_empty() && !late.engine.is_broken(), "703 ms");
    late.look(1);
    assert!(late.engine.is_broken());
    let said = late.engine.description();
    assert!(said.ends_with("a batch was not done 750ms after its first packet came"), "{said}");
    let mut more = jobs(late.key, 1);
    assert_eq!((late.engine.submit(&mut more), more[0].status), (1, JobStatus::Fault));
}

/// As after a pause of the machine: a look after an hour counts for 12.5 ms.
#[test]
fn time_in_which_nobody_looked_takes_no_jobs_back() {
    let mut late = Late::new();
    late.hangs(true);
    late.submit(3);
    for (look, back) in [(1, 0), (2, 0), (3, 0), (4, 3)] {
        assert_eq!(late.look(1).len(), back, "look {look}");
    }
}

/// A gateway whose turns are so long gives up what an engine has with the third of them, or with the second.
#[test]
fn long_turns_of_the_worker_do_not_keep_jobs_from_going_back() {
    for (turn_ms, looks) in [(10, 4), (22, 2), (35, 2), (70, 2), (100, 2), (101, 4_u32)] {
        for (times, back) in [(looks - 1, 0), (looks, 3)] {
            let mut late = Late::new();
            late.hangs(true);
            let began = Instant::now() + STEP;
            late.engine.look(began);
            late.submit(3);
            (1..=times).for_each(|look| late.engine.look(began + look * Duration::from_millis(turn_ms)));
            let mut done = Vec::new();
            late.engine.poll(&mut done, 1000);
            assert_eq!(done.len(), back, "{times} looks, each {turn_ms} ms after the one before");
        }
    }
}

/// A device that is slow for its batches loses two, and is known then: by what it has ended after all, in its
/// class of lengths and in longer ones.
#[test]
fn a_device_that_is_slow_for_its_batches_keeps_them_once_that_is_known() {
    let mut late = Late::new();
    let mut round = |count: u32, looks: u32| {
        late.hangs(true);
        assert_eq!(late.submit(count), count as usize);
        let back = late.look(looks).len();
        late.hangs(false);
        let done = late.poll();
        assert_eq!(back + done.len(), count as usize);
        back
    };
    assert_eq!([round(48, 6), round(48, 6)], [48, 48], "that 75 ms are usual is not known yet");
    for _ in 0..20 {
        assert_eq!(round(48, 6), 0);
        assert_eq!(round(48, 11), 0, "less than twice as long");
        (0..100).for_each(|_| assert_eq!(round(48, 6), 0));
    }
    assert_eq!(round(48, 15), 48, "more than twice as long");
    assert_eq!(round(1, 5), 1, "a short batch does not take as long");
    // What is known is forgotten as batches end that take less.
    for _ in 0..100 {
        assert_eq!(round(48, 1), 0);
    }
    assert_eq!(round(48, 4), 48);
}

/// Nor does a batch that waits behind the one that hangs.
#[test]
fn a_hang_does_not_have_the_next_one_taken_for_usual() {
    let mut late = Late::new();
    for _ in 0..5 {
        late.hangs(true);
        assert_eq!(late.submit(96), 96);
        assert_eq!(late.look(12).len(), 96, "150 ms");
        late.hangs(false);
        assert!(late.poll().is_empty());
        assert_eq!(late.submit(96), 96);
        assert_eq!(statuses(&late.poll(), JobStatus::Done), 96);
    }
}

/// What others of the same length take, in suites that take much less, says nothing of it.
#[test]
fn a_batch_of_a_slow_suite_is_known_among_fast_ones_of_its_length() {
    let mut late = Late::new();
    let suite: Suite = "3des-sha1".parse().unwrap();
    let bytes: Vec<u8> = (1..=u8::MAX).take(suite.keying_material_bytes()).collect();
    let slow = KeyMaterial::new(suite, bytes.into()).unwrap();
    let slow = late.engine.install(&slow, Direction::Seal).unwrap();
    late.engine.set_keys_until(Instant::now());
    let mut round = |is_slow: bool, looks: u32| {
        late.hangs(true);
        let mut batch = jobs(late.key, 48);
        if is_slow {
            for job in &mut batch {
                (job.key, job.text_start, job.text_bytes) = (slow, 16, 72);
            }
        }
        assert_eq!(late.engine.submit(&mut batch), 48);
        let back = late.look(looks).len();
        late.hangs(false);
        assert_eq!(statuses(&late.poll(), JobStatus::Done), 48 - back);
        back
    };
    assert_eq!([round(true, 6), round(true, 6), round(true, 6)], [48, 48, 0], "75 ms");
    for _ in 0..100 {
        assert_eq!(round(false, 1), 0);
    }
    assert_eq!(round(true, 6), 0);
}

/// It waits for that one, and no longer than that may.
#[test]
fn a_short_batch_behind_a_slow_one_is_not_taken_back_before_its_turn() {
    let mut late = Late::new();
    for back in [48, 48, 0] {
        late.hangs(true);
        assert_eq!(late.submit(48), 48);
        assert_eq!(late.look(6).len(), back, "75 ms");
        late.hangs(false);
        assert_eq!(late.poll().len(), 48 - back);
    }
    late.hangs(true);
    assert_eq!((late.submit(48), late.submit(3)), (48, 3));
    assert!(late.look(6).is_empty());
    late.faults.ends.store(1, Ordering::Relaxed);
    assert_eq!(statuses(&late.poll(), JobStatus::Done), 48);
    assert_eq!((late.look(5).len(), late.engine.in_flight()), (0, 3), "137.5 ms");
    assert_eq!(statuses(&late.look(1), JobStatus::Fault), 3, "150 ms");
}

/// A batch behind many of them is taken back, but the next one of its length is not given as long.
#[test]
fn keys_before_a_batch_are_none_of_what_it_takes() {
    let mut late = Late::new();
    for ahead in [STEP, STEP, Duration::ZERO] {
        late.engine.set_keys_until(Instant::now() + ahead);
        late.hangs(true);
        assert_eq!(late.submit(48), 48);
        assert_eq!(late.look(5).len(), 48, "62.5 ms");
        late.hangs(false);
        assert!(late.poll().is_empty());
    }
}

/// Others have its time, which the next engine would lack, too.
#[test]
fn a_processor_that_is_the_device_has_as_long_as_there_is() {
    let mut late = Late::over(|faults| Faults::set(&faults.is_processor));
    late.hangs(true);
    late.submit(3);
    assert!(late.look(15).is_empty() && late.engine.reclaims().is_none());
    late.look(1);
    assert!(late.engine.is_broken());
}

/// The other one has what comes meanwhile.
#[test]
fn one_of_two_devices_that_is_late_leaves_the_other_at_work() {
    let [slow, good] = [(); 2].map(|()| Arc::new(Faults::default()));
    let mut both = SeveralGpus::new(vec![engine(&slow), engine(&good)]);
    let key = both.install(&material(), Direction::Seal).unwrap();
    Faults::set(&slow.hangs);
    assert_eq!(both.submit(&mut jobs(key, 10)), 10);
    both.flush();
    let reclaims = both.reclaims().unwrap();
    let mut back = Vec::new();
    assert!(reclaims.reclaim(&mut back) && back.len() == 10);
    let mut done = Vec::new();
    both.poll(&mut done, 100);
    assert!(done.is_empty() && both.in_flight() == 0 && !reclaims.rests());
    for _ in 0..5 {
        assert_eq!(both.submit(&mut jobs(key, 10)), 10);
        both.flush();
        both.poll(&mut done, 100);
    }
    assert_eq!(statuses(&done, JobStatus::Done), 50);
    assert_eq!(good.launches.load(Ordering::Relaxed), 5);
    slow.hangs.store(false, Ordering::Relaxed);
    assert!(!both.is_resting());
    let each = [both.submit(&mut jobs(key, 10)), both.submit(&mut jobs(key, 10))];
    assert_eq!((each, both.each_in_flight()), ([10, 10], vec![10, 10]));
}

/// One that is taken back from without jobs is not late, whatever becomes of the other.
#[test]
fn one_of_two_devices_that_is_late_and_then_lost_leaves_the_other_at_work() {
    let [lost, good] = [(); 2].map(|()| Arc::new(Faults::default()));
    let mut both = SeveralGpus::new(vec![engine(&lost), engine(&good)]);
    let key = both.install(&material(), Direction::Seal).unwrap();
    Faults::set(&lost.hangs);
    assert_eq!(both.submit(&mut jobs(key, 10)), 10);
    both.flush();
    let reclaims = both.reclaims().unwrap();
    let (mut back, mut done) = (Vec::new(), Vec::new());
    assert!(reclaims.reclaim(&mut back) && back.len() == 10);
    both.poll(&mut done, 100);
    Faults::set(&lost.is_lost);
    both.poll(&mut done, 100);
    for _ in 0..5 {
        assert!(!reclaims.rests());
        assert_eq!(both.submit(&mut jobs(key, 10)), 10);
        both.flush();
        both.poll(&mut done, 100);
    }
    assert_eq!((done.len(), statuses(&done, JobStatus::Done)), (50, 50));
    assert!(!both.is_out_of_service() && !reclaims.rests());
}

/// Jobs that lie in the ring go back from there.
#[test]
fn a_device_whose_thread_was_stuck_with_a_key_gets_jobs_when_it_is_not() {
    let faults = Arc::new(Faults::default());
    let mut engine = DeviceThread::over(Box::new(engine(&faults)), None);
    let key = engine.install(&material(), Direction::Seal).unwrap();
    faults.holds.store(true, Ordering::SeqCst);
    assert_eq!(engine.submit(&mut jobs(key, 7)), 7);
    engine.flush();
    let (began, mut done) = (Instant::now(), Vec::new());
    while !faults.is_held.load(Ordering::SeqCst) {
        assert!(began.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
    while done.len() < 7 {
        assert!(began.elapsed() < PATIENCE);
        engine.poll(&mut done, 100);
        std::thread::yield_now();
    }
    assert_eq!((done.len(), statuses(&done, JobStatus::Fault)), (7, 7), "the engine never had them");
    faults.holds.store(false, Ordering::SeqCst);
    while statuses(&done, JobStatus::Done) == 0 {
        assert!(began.elapsed() < PATIENCE, "it gets none any more");
        if engine.in_flight() == 0 {
            engine.submit(&mut jobs(key, 5));
            engine.flush();
        }
        engine.poll(&mut done, 100);
        std::thread::yield_now();
    }
}

/// The driver does not return: another thread has the jobs, and what the device does then is discarded.
#[test]
fn another_thread_takes_jobs_back_while_a_call_of_the_driver_does_not_return() {
    let faults = Arc::new(Faults::default());
    let mut engine = engine(&faults);
    let key = engine.install(&material(), Direction::Seal).unwrap();
    let reclaims = engine.reclaims().unwrap();
    assert_eq!(engine.submit(&mut jobs(key, 7)), 7);
    faults.holds.store(true, Ordering::SeqCst);
    let untouched = jobs(key, 1).remove(0).buffer.bytes().to_vec();
    let thread = std::thread::spawn(move || {
        let mut done = Vec::new();
        engine.flush();
        engine.poll(&mut done, 100);
        (engine, done)
    });
    let (began, mut back) = (Instant::now(), Vec::new());
    while !faults.is_held.load(Ordering::SeqCst) {
        assert!(began.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
    assert!(reclaims.reclaim(&mut back), "it is not at them");
    assert!(back.iter().map(|job| job.ticket).eq(0..7));
    faults.holds.store(false, Ordering::SeqCst);
    let (mut engine, done) = thread.join().unwrap();
    assert!(done.is_empty() && engine.in_flight() == 0);
    assert!(back.iter().all(|job| job.buffer.bytes() == untouched));
    // The device has ended what it had by now.
    assert_eq!(engine.submit(&mut jobs(key, 3)), 3);
    engine.flush();
    let mut done = Vec::new();
    engine.poll(&mut done, 100);
    let mut portable = PortableEngine::new();
    let bytes = (1..=36).collect::<Vec<u8>>();
    let own = KeyMaterial::new(SUITE, bytes.into()).unwrap();
    let own = portable.install(&own, Direction::Seal).unwrap();
    let mut expected = jobs(own, 1);
    portable.submit(&mut expected);
    assert_eq!(statuses(&done, JobStatus::Done), 3);
    assert!(done.iter().all(|job| job.buffer.bytes() == expected[0].buffer.bytes()));
}

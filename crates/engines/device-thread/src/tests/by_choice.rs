//! The engine changes hands, between the worker and its thread, while jobs and keys come.

use super::*;
use testudo_packet::Aside;

fn by_choice(config: LateConfig) -> (DeviceThread, Arc<Stage>, Arc<Aside>) {
    let (stage, aside) = (Arc::<Stage>::default(), Arc::<Aside>::default());
    stage.alive.store(1, Ordering::SeqCst);
    let inner = LateEngine::new(Box::new(PortableEngine::new()), config);
    let played = Box::new(Played { inner, stage: Arc::clone(&stage) });
    (DeviceThread::by_choice(played, None, Arc::clone(&aside)), stage, aside)
}

/// Whether the last jobs were submitted by the thread.
fn is_apart(stage: &Stage) -> bool {
    stage.threads.lock().unwrap().last().is_some_and(|name| name == "device-played")
}

/// Runs jobs until the engine is in the hands that are wanted.
fn settle(engine: &mut DeviceThread, stage: &Stage, id: KeyId, wants: bool, pool: &mut Pool) {
    let began = Instant::now();
    loop {
        let ended = run(engine, vec![job(id, 1, pool)]);
        assert_eq!(ended[0].status, JobStatus::Done);
        ended.into_iter().for_each(|job| pool.recycle(job.buffer));
        if is_apart(stage) == wants {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "the engine does not change hands");
    }
}

#[test]
fn an_engine_changes_hands_under_its_keys_and_no_job_is_lost() {
    let (mut engine, stage, aside) = by_choice(LateConfig { depth_jobs: 64, ..LateConfig::reliable(21) });
    let mut pool = Pool::new(2048, 200);
    let mut keys: Vec<_> = (0..4).map(|byte| engine.install(&key(byte), Direction::Seal).unwrap()).collect();
    for round in 0..20_u8 {
        let wants = round % 2 == 1;
        aside.want(wants);
        settle(&mut engine, &stage, keys[1], wants, &mut pool);
        // A key goes and another one comes in each pair of hands, and the ids of the others remain.
        engine.remove(keys.remove(0));
        keys.push(engine.install(&key(round + 4), Direction::Seal).unwrap());
        let jobs = (0..300).map(|ticket| job(keys[ticket as usize % 4], ticket, &mut pool)).collect();
        let ended = run(&mut engine, jobs);
        assert!(ended.iter().map(|job| job.ticket).eq(0..300));
        assert!(ended.iter().all(|job| job.status == JobStatus::Done));
        ended.into_iter().for_each(|job| pool.recycle(job.buffer));
        assert_eq!(is_apart(&stage), wants);
    }
    assert!(aside.times().jobs >= 20 * 300);
    keys.into_iter().for_each(|key| engine.remove(key));
    wait_for(|| stage.keys.load(Ordering::SeqCst) == 0);
    drop(engine);
    assert_eq!(stage.alive.load(Ordering::SeqCst), 0);
}

/// What is sealed does not depend on whose hands the engine is in.
#[test]
fn both_hands_seal_alike_and_the_time_of_both_is_booked() {
    let (mut engine, stage, aside) = by_choice(LateConfig::reliable(22));
    let mut pool = Pool::new(64, 200);
    let id = engine.install(&key(1), Direction::Seal).unwrap();
    let sealed = [false, true, false].map(|wants| {
        aside.want(wants);
        settle(&mut engine, &stage, id, wants, &mut pool);
        let before = aside.times();
        let ended = run(&mut engine, vec![job(id, 7, &mut pool)]);
        let after = aside.times();
        assert_eq!(after.jobs, before.jobs + 1);
        assert!(after.working_ns > before.working_ns);
        ended[0].buffer.bytes().to_vec()
    });
    assert!(sealed[0] == sealed[1] && sealed[1] == sealed[2]);
}

#[test]
fn an_engine_with_jobs_stays_where_it_is_and_takes_none_until_they_have_ended() {
    for begins_apart in [false, true] {
        let (mut engine, stage, aside) = by_choice(LateConfig::reliable(23));
        let mut pool = Pool::new(64, 200);
        let id = engine.install(&key(1), Direction::Seal).unwrap();
        aside.want(begins_apart);
        settle(&mut engine, &stage, id, begins_apart, &mut pool);
        assert_eq!(engine.submit(&mut [job(id, 1, &mut pool)]), 1);
        engine.flush();
        aside.want(!begins_apart);
        let mut jobs = [job(id, 2, &mut pool)];
        assert_eq!((engine.submit(&mut jobs), jobs[0].status), (0, JobStatus::Pending));
        poll_for(&mut engine, 1);
        settle(&mut engine, &stage, id, !begins_apart, &mut pool);
    }
}

/// One of several devices may be lost with a key that comes or goes.
#[test]
fn on_how_many_submissions_the_engine_works_is_asked_again_with_each_key_by_hand() {
    let (mut engine, stage, _aside) = by_choice(LateConfig::reliable(30));
    assert_eq!(engine.profile(SUITE).under_way, 2);
    stage.under_way.store(1, Ordering::SeqCst);
    let id = engine.install(&key(1), Direction::Seal).unwrap();
    assert_eq!(engine.profile(SUITE).under_way, 1);
    stage.under_way.store(2, Ordering::SeqCst);
    engine.remove(id);
    assert_eq!(engine.profile(SUITE).under_way, 2);
}

/// A thread that is to hand the engine back may take its time: keys that change meanwhile follow it.
#[test]
fn keys_that_change_on_the_engines_way_back_are_there_when_it_is() {
    let (mut engine, stage, aside) = by_choice(LateConfig::reliable(24));
    let mut pool = Pool::new(64, 200);
    let first = engine.install(&key(1), Direction::Seal).unwrap();
    aside.want(true);
    settle(&mut engine, &stage, first, true, &mut pool);
    aside.want(false);
    assert_eq!(engine.submit(&mut [job(first, 1, &mut pool)]), 0, "it is on its way");
    engine.remove(first);
    let second = engine.install(&key(2), Direction::Seal).unwrap();
    settle(&mut engine, &stage, second, false, &mut pool);
    assert_eq!(stage.keys.load(Ordering::SeqCst), 1);
    let ended = run(&mut engine, vec![job(first, 1, &mut pool)]);
    assert_eq!(ended[0].status, JobStatus::Fault);
}

/// As where the system has no thread left.
#[test]
fn an_engine_whose_thread_does_not_start_stays_with_the_worker_and_may_have_one_later() {
    let (mut engine, stage, aside) = by_choice(LateConfig::reliable(26));
    let mut pool = Pool::new(64, 200);
    let id = engine.install(&key(1), Direction::Seal).unwrap();
    let spawn = std::mem::replace(&mut engine.spawn, |_, _, _| Err(std::io::Error::other("meant")));
    for ticket in 0..3 {
        aside.want(true);
        let ended = run(&mut engine, vec![job(id, ticket, &mut pool)]);
        assert_eq!((ended[0].status, aside.is_wanted(), is_apart(&stage)), (JobStatus::Done, false, false));
    }
    assert_eq!(engine.description(), "for tests");
    engine.spawn = spawn;
    aside.want(true);
    settle(&mut engine, &stage, id, true, &mut pool);
    let (mut engine, stage) = open(LateConfig::reliable(27));
    engine.spawn = |_, _, _| Err(std::io::Error::other("meant"));
    let ended = run(&mut engine, vec![job(KeyId::NONE, 1, &mut pool)]);
    assert_eq!((ended[0].status, stage.alive.load(Ordering::SeqCst)), (JobStatus::Fault, 0));
    assert_eq!(engine.description(), "for tests, on a device thread (out of service)");
}

/// Nothing is under way that would be overdue.
#[test]
fn an_engine_that_hangs_on_its_way_back_is_out_of_service_and_keeps_no_key() {
    let (mut engine, stage, aside) = by_choice(LateConfig::reliable(28));
    let mut pool = Pool::new(64, 200);
    let id = engine.install(&key(1), Direction::Seal).unwrap();
    aside.want(true);
    settle(&mut engine, &stage, id, true, &mut pool);
    stage.poll_holds.store(true, Ordering::SeqCst);
    aside.want(false);
    assert!(engine.is_resting());
    engine.install(&key(2), Direction::Seal).unwrap();
    assert!(engine.is_resting(), "it has time");
    engine.patience = Duration::ZERO;
    for _ in 0..100 {
        engine.told.steps.fetch_add(1, Ordering::Relaxed);
        assert!(engine.is_resting(), "its thread does something");
    }
    let began = Instant::now();
    while engine.is_resting() {
        assert!(began.elapsed() < PATIENCE);
    }
    let ended = run(&mut engine, vec![job(id, 1, &mut pool)]);
    assert_eq!((ended[0].status, ended[0].buffer.bytes()), (JobStatus::Fault, &[0x55; 96][..]));
    assert!(engine.description().ends_with("(out of service)"));
    stage.poll_holds.store(false, Ordering::SeqCst);
    // On its thread: the worker, which only waits here, would wait for the driver.
    wait_for(|| stage.alive.load(Ordering::SeqCst) == 0);
    assert_eq!(stage.keys.load(Ordering::SeqCst), 1, "the other one has never come");
}

/// Has a worker without jobs look after the engine until something is so.
fn until(engine: &mut DeviceThread, what: impl Fn() -> bool) {
    let began = Instant::now();
    while !what() {
        engine.is_resting();
        assert!(began.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
}

#[test]
fn an_engine_without_jobs_comes_back_and_so_do_changes_of_its_keys() {
    let (mut engine, stage, aside) = by_choice(LateConfig::reliable(29));
    let mut pool = Pool::new(64, 200);
    let id = engine.install(&key(1), Direction::Seal).unwrap();
    aside.want(true);
    settle(&mut engine, &stage, id, true, &mut pool);
    aside.want(false);
    assert!(engine.is_resting());
    engine.remove(id);
    until(&mut engine, || stage.keys.load(Ordering::SeqCst) == 0);
    let began = Instant::now();
    while engine.is_resting() {
        assert!(began.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
    assert_eq!(engine.description(), "for tests", "it is the worker's, and no job has come");
}

#[test]
fn a_thread_that_has_panicked_does_not_hand_its_engine_back() {
    let (mut engine, stage, aside) = by_choice(LateConfig::reliable(25));
    let mut pool = Pool::new(64, 200);
    let id = engine.install(&key(1), Direction::Seal).unwrap();
    aside.want(true);
    settle(&mut engine, &stage, id, true, &mut pool);
    stage.submit_panics.store(true, Ordering::SeqCst);
    assert_eq!(run(&mut engine, vec![job(id, 1, &mut pool)])[0].status, JobStatus::Fault);
    aside.want(false);
    let ended = run(&mut engine, vec![job(id, 2, &mut pool)]);
    assert_eq!((ended[0].status, ended[0].buffer.bytes()), (JobStatus::Fault, &[0x55; 96][..]));
    assert_eq!(engine.description(), "for tests, on a device thread (out of service)");
}

//! Bursts, faults, mixtures.

use crate::make::{DIRECTIONS, Sample, TestKey, suites};
use crate::{MakeEngine, drive};
use fastrand::Rng;
use std::time::{Duration, Instant};
use testudo_crypto::{Direction, Engine, Job, JobStatus, KeyId, Profile};

const SEED: u64 = 0x5EED_0003;

/// How long a device may take for a few jobs.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest that an engine may say it is away with a submission: the gateway gives up what takes longer.
const LONGEST_NS: u64 = 1_000_000_000;

/// An empty burst is no burst; polling an idle engine gives nothing; bursts of any size go through.
pub(super) fn prefixes(make: MakeEngine<'_>) -> Result<u64, String> {
    let mut engine = make();
    let mut done = Vec::new();
    engine.poll(&mut done, 64);
    if engine.submit(&mut []) != 0 || engine.in_flight() != 0 || !done.is_empty() {
        return Err("an idle engine does something".to_owned());
    }
    let mut random = Rng::with_seed(SEED);
    let mut jobs = 0;
    for suite in suites(engine.as_ref()) {
        let key = TestKey::random(suite, &mut random);
        let id = key.install(engine.as_mut(), Direction::Seal)?;
        let sample = Sample::random(&key, 100, &mut random)?;
        for burst in [1, 2, 3, 63, 64, 65, 1000] {
            let batch =
                (0..burst).map(|_| sample.job(id, Direction::Seal, 0, 0)).collect::<Result<Vec<_>, _>>()?;
            drive(engine.as_mut(), batch)?.iter().try_for_each(|job| sample.check(job))?;
            jobs += burst;
        }
        engine.remove(id);
    }
    Ok(jobs)
}

/// What an engine says of itself can be reckoned with, and what it has gathered when it is flushed ends
/// without further jobs.
pub(super) fn profile_and_flush(make: MakeEngine<'_>) -> Result<u64, String> {
    let mut engine = make();
    let mut random = Rng::with_seed(SEED);
    let mut jobs = 0;
    for suite in suites(engine.as_ref()) {
        let profile = engine.profile(suite);
        is_sane(&profile, engine.is_synchronous()).map_err(|e| format!("{suite}: {e}: {profile:?}"))?;
        let key = TestKey::random(suite, &mut random);
        let id = key.install(engine.as_mut(), Direction::Seal)?;
        let sample = Sample::random(&key, 100, &mut random)?;
        // Fewer than it wants, if it wants several.
        for count in [1, profile.depth_jobs.clamp(2, 65) - 1] {
            let mut batch =
                (0..count).map(|_| sample.job(id, Direction::Seal, 0, 0)).collect::<Result<Vec<_>, _>>()?;
            jobs +=
                flushed(engine.as_mut(), &mut batch).map_err(|e| format!("{suite}, {count} jobs: {e}"))?;
        }
        engine.remove(id);
    }
    Ok(jobs)
}

fn is_sane(profile: &Profile, is_synchronous: bool) -> Result<(), String> {
    let Profile { depth_jobs, under_way, .. } = *profile;
    if !(1..=Profile::MAX_DEPTH_JOBS).contains(&depth_jobs) {
        return Err("the depth makes no sense".to_owned());
    }
    if !(1..=Profile::MAX_UNDER_WAY).contains(&under_way) {
        return Err("so many submissions are under way".to_owned());
    }
    if profile.time_ns(1500) > LONGEST_NS {
        return Err("a packet takes longer than the gateway waits".to_owned());
    }
    if is_synchronous && (profile.latency_ns > 0 || under_way > 1) {
        return Err("it is away, and ends jobs at once".to_owned());
    }
    Ok(())
}

/// Submits once, flushes once, and polls until all have ended.
fn flushed(engine: &mut dyn Engine, batch: &mut [Job]) -> Result<u64, String> {
    let taken = engine.submit(batch);
    if taken != batch.len() {
        return Err(format!("{taken} were taken by an idle engine"));
    }
    engine.flush();
    let (mut done, start) = (Vec::new(), Instant::now());
    while engine.in_flight() > 0 {
        engine.poll(&mut done, batch.len());
        if start.elapsed() > PATIENCE {
            return Err("what was flushed does not end".to_owned());
        }
        std::thread::yield_now();
    }
    let in_place = batch.iter().filter(|job| job.status != JobStatus::Taken);
    let all: Vec<_> = in_place.chain(&done).map(|job| job.status).collect();
    if all.len() != taken || all.iter().any(|status| *status != JobStatus::Done) {
        return Err(format!("{all:?}"));
    }
    Ok(taken as u64)
}

/// Jobs that cannot be done end as faults with their buffers untouched, while the jobs between them are done.
pub(super) fn faults(make: MakeEngine<'_>) -> Result<u64, String> {
    let mut engine = make();
    let mut random = Rng::with_seed(SEED);
    let mut jobs = 0;
    for suite in suites(engine.as_ref()) {
        for direction in DIRECTIONS {
            let key = TestKey::random(suite, &mut random);
            let id = key.install(engine.as_mut(), direction)?;
            let sample = Sample::random(&key, 100, &mut random)?;
            jobs += undeserved(engine.as_mut(), id, &sample, direction)
                .map_err(|e| format!("{suite}, {direction:?}: {e}"))?;
            engine.remove(id);
        }
    }
    Ok(jobs)
}

/// Makes a job one that cannot be done.
type Spoiler<'a> = &'a dyn Fn(&mut Job);

/// Every way to spoil a job, each between two good ones.
fn undeserved(
    engine: &mut dyn Engine,
    key: KeyId,
    sample: &Sample,
    direction: Direction,
) -> Result<u64, String> {
    let removed = key_once_held(engine, direction)?;
    let end = |job: &Job| u32::try_from(job.buffer.len()).unwrap_or(u32::MAX);
    let no_header = u32::try_from(sample.front.len()).unwrap_or(u32::MAX).wrapping_sub(1);
    let spoilers: [(&str, Spoiler<'_>); 15] = [
        ("a key never given out", &|job| job.key = KeyId(u32::MAX)),
        ("a key that nobody installed", &|job| job.key = KeyId(key.0 ^ 0x40_0000)),
        ("a removed key", &|job| job.key = removed),
        ("the other direction", &|job| job.direction = other(direction)),
        ("no room for one byte of ICV", &|job| move_to(job, 9)),
        ("no room for the ICV", &|job| move_to(job, 8 + 16)),
        ("a start behind the packet", &|job| move_to(job, end(job) + 1)),
        ("the largest start", &|job| job.text_start = u32::MAX),
        ("the largest offsets", &|job| (job.auth_start, job.text_start) = (u32::MAX, u32::MAX)),
        ("a text before what is authenticated", &|job| job.auth_start = job.text_start + 1),
        ("the largest length", &|job| job.text_bytes = u32::MAX),
        ("start and length that overflow", &|job| (job.text_start, job.text_bytes) = (u32::MAX, u32::MAX)),
        ("no buffer", &|job| job.buffer = testudo_packet::Buffer::default()),
        ("no room for header and IV", &|job| job.auth_start = job.text_start - no_header),
        // Only for a cipher that has blocks.
        ("a text that ends within a block", &|job| job.text_bytes -= 1),
    ];
    let applicable = spoilers.len() - usize::from(sample.suite.block_bytes() == 1);
    let spoilers = &spoilers[..applicable];
    let mut jobs = Vec::new();
    for (_, spoil) in spoilers {
        jobs.push(sample.job(key, direction, 8, 0)?);
        let mut spoiled = sample.job(key, direction, 8, 0)?;
        spoil(&mut spoiled);
        jobs.push(spoiled);
    }
    let before: Vec<Vec<u8>> = jobs.iter().map(|job| job.buffer.bytes().to_vec()).collect();
    let done = drive(engine, jobs)?;
    for ((pair, before), (what, _)) in done.chunks(2).zip(before.chunks(2)).zip(spoilers) {
        sample.check(&pair[0]).map_err(|e| format!("beside {what}: {e}"))?;
        if pair[1].status != JobStatus::Fault {
            return Err(format!("{what} ended as {:?}", pair[1].status));
        }
        if pair[1].buffer.bytes() != before[1] {
            return Err(format!("{what}: the buffer was touched"));
        }
    }
    Ok(done.len() as u64)
}

/// Moves all that a job covers, so that authentication starts at `start`.
fn move_to(job: &mut Job, start: u32) {
    job.text_start = job.text_start - job.auth_start + start;
    job.auth_start = start;
}

/// A key that was installed and removed.
fn key_once_held(engine: &mut dyn Engine, direction: Direction) -> Result<KeyId, String> {
    let suite = *suites(engine).first().ok_or("the engine does no suite")?;
    let id = TestKey::random(suite, &mut Rng::with_seed(SEED + 1)).install(engine, direction)?;
    engine.remove(id);
    Ok(id)
}

fn other(direction: Direction) -> Direction {
    match direction {
        Direction::Seal => Direction::Open,
        Direction::Open => Direction::Seal,
    }
}

/// Batches with suites, directions, lengths, keys, forged packets and undeserved jobs in random order.
pub(super) fn mixed_batches(make: MakeEngine<'_>) -> Result<u64, String> {
    let mut engine = make();
    let mut random = Rng::with_seed(SEED);
    let mut keys = Vec::new();
    for suite in suites(engine.as_ref()) {
        for direction in DIRECTIONS.into_iter().cycle().take(10) {
            let key = TestKey::random(suite, &mut random);
            let id = key.install(engine.as_mut(), direction)?;
            keys.push((key, id, direction));
        }
    }
    let mut jobs = 0;
    for round in 0..60 {
        jobs += mixed_batch(engine.as_mut(), &keys, &mut random)
            .map_err(|e| format!("round {round}, seed {SEED:#x}: {e}"))?;
    }
    Ok(jobs)
}

fn mixed_batch(
    engine: &mut dyn Engine,
    keys: &[(TestKey, KeyId, Direction)],
    random: &mut Rng,
) -> Result<u64, String> {
    let (mut samples, mut jobs) = (Vec::new(), Vec::new());
    let mut chosen = &keys[0];
    for _ in 0..200 {
        // Runs of one key, as in traffic, and changes.
        if random.usize(..3) == 0 {
            chosen = &keys[random.usize(..keys.len())];
        }
        let (key, id, direction) = chosen;
        let len = random.usize(..1500);
        let sample = Sample::random(key, len, random)?;
        let mut job = sample.job(*id, *direction, random.usize(..70), 5)?;
        let fate = random.usize(..10);
        match fate {
            0 => job.key = KeyId(u32::MAX),
            1 => job.buffer.bytes_mut()[job.text_start as usize + sample.text.len()] ^= 0x80,
            _ => {}
        }
        samples.push((sample, fate));
        jobs.push(job);
    }
    let done = drive(engine, jobs)?;
    for ((sample, fate), job) in samples.iter().zip(&done) {
        match (fate, job.direction) {
            (0, _) if job.status == JobStatus::Fault => {}
            (0, _) => return Err(format!("an unknown key ended as {:?}", job.status)),
            (1, Direction::Open) => sample.check_refused(job, "a flipped bit of the ICV")?,
            _ => sample.check(job)?,
        }
    }
    Ok(done.len() as u64)
}

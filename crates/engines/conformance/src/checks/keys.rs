//! Keys: many of them, removed and replaced.

use crate::make::{DIRECTIONS, Sample, TestKey, suites};
use crate::{MakeEngine, drive};
use fastrand::Rng;
use testudo_crypto::{Direction, Engine, Job, JobStatus, KeyId};

const SEED: u64 = 0x5EED_0004;

/// How many keys [`many`] installs, if the engine holds that many.
const MANY: usize = 10_000;

type Held = (TestKey, KeyId, Direction);

/// Keys come and go, slots are reused, and no id ever leads to another SA's key.
pub(super) fn reuse(make: MakeEngine<'_>) -> Result<u64, String> {
    let mut engine = make();
    let mut random = Rng::with_seed(SEED);
    let suites = suites(engine.as_ref());
    let mut held: Vec<Held> = Vec::new();
    let mut stale: Vec<KeyId> = Vec::new();
    let mut jobs = 0;
    for round in 0..400_usize {
        let (suite, direction) = (suites[round % suites.len()], DIRECTIONS[round / suites.len() % 2]);
        let key = TestKey::random(suite, &mut random);
        let id = key.install(engine.as_mut(), direction)?;
        if held.iter().any(|(_, other, _)| *other == id) {
            return Err(format!("round {round}: {id:?} was given out while it is held"));
        }
        stale.retain(|old| *old != id);
        held.push((key, id, direction));
        if held.len() > 20 {
            let (_, gone, _) = held.swap_remove(random.usize(..held.len()));
            engine.remove(gone);
            // Removing a key again, or one that never was, has no effect.
            engine.remove(gone);
            engine.remove(KeyId(u32::MAX));
            stale.push(gone);
        }
        jobs += each_once(engine.as_mut(), &held, &mut random).map_err(|e| format!("round {round}: {e}"))?;
    }
    jobs += unknown(engine.as_mut(), &stale, &held, &mut random)?;
    Ok(jobs)
}

/// Ten thousand keys at once, then half of them replaced.
pub(super) fn many(make: MakeEngine<'_>) -> Result<u64, String> {
    let mut engine = make();
    let mut random = Rng::with_seed(SEED);
    let suites = suites(engine.as_ref());
    let room = suites.iter().filter_map(|s| engine.capability(*s)).map(|c| c.max_keys).min().unwrap_or(0);
    let mut held: Vec<Held> = Vec::new();
    let mut install = |engine: &mut dyn Engine, n: usize| -> Result<Held, String> {
        let (suite, direction) = (suites[n % suites.len()], DIRECTIONS[n / suites.len() % 2]);
        let key = TestKey::random(suite, &mut random);
        let id = key.install(engine, direction)?;
        Ok((key, id, direction))
    };
    for n in 0..room.min(MANY) {
        held.push(install(engine.as_mut(), n)?);
    }
    for n in (0..held.len()).step_by(2) {
        engine.remove(held[n].1);
        held[n] = install(engine.as_mut(), n + 1)?;
    }
    each_once(engine.as_mut(), &held, &mut Rng::with_seed(SEED + 1))
}

/// One packet under every key.
fn each_once(engine: &mut dyn Engine, held: &[Held], random: &mut Rng) -> Result<u64, String> {
    let (mut samples, mut jobs) = (Vec::new(), Vec::new());
    for (key, id, direction) in held {
        let len = random.usize(..100);
        let sample = Sample::random(key, len, random)?;
        jobs.push(sample.job(*id, *direction, 0, 0)?);
        samples.push(sample);
    }
    let done = drive(engine, jobs)?;
    samples.iter().zip(&done).try_for_each(|(sample, job)| sample.check(job))?;
    Ok(done.len() as u64)
}

/// Ids of removed keys that were not reused are unknown.
fn unknown(engine: &mut dyn Engine, stale: &[KeyId], held: &[Held], random: &mut Rng) -> Result<u64, String> {
    let Some((key, _, direction)) = held.first() else { return Err("no key is held".to_owned()) };
    let sample = Sample::random(key, 64, random)?;
    let jobs: Vec<Job> =
        stale.iter().map(|id| sample.job(*id, *direction, 0, 0)).collect::<Result<_, _>>()?;
    let done = drive(engine, jobs)?;
    match done.iter().find(|job| job.status != JobStatus::Fault) {
        Some(job) => Err(format!("a job under the removed key {:?} ended as {:?}", job.key, job.status)),
        None => Ok(done.len() as u64),
    }
}

//! Packets in chains of buffers: an engine that says so does them as if they were in one piece, the others
//! leave them alone.

use crate::make::{DIRECTIONS, Sample, TestKey, suites};
use crate::{MakeEngine, drive};
use fastrand::Rng;
use testudo_crypto::{Direction, Engine, Job, JobStatus, Suite};
use testudo_packet::MAX_SEGMENTS;

const SEED: u64 = 0x5EED_0009;
/// Bytes before what is authenticated, which no engine may touch.
const OFFSET: usize = 5;

/// Small packets cut at every byte, and at every two; and packets up to 9,000 bytes cut at random, with empty
/// segments among them. Where the engine does not take chains, a few of these, which are faults.
pub(super) fn segmentations(make: MakeEngine<'_>) -> Result<u64, String> {
    let mut engine = make();
    let mut random = Rng::with_seed(SEED);
    let mut jobs = 0;
    for suite in suites(engine.as_ref()) {
        for direction in DIRECTIONS {
            jobs += one_suite(engine.as_mut(), suite, direction, &mut random)
                .map_err(|e| format!("{suite}, seed {SEED:#x}: {e}"))?;
        }
    }
    Ok(jobs)
}

fn one_suite(
    engine: &mut dyn Engine,
    suite: Suite,
    direction: Direction,
    random: &mut Rng,
) -> Result<u64, String> {
    let takes_chains = engine.capability(suite).is_some_and(|capability| capability.takes_chains);
    let key = TestKey::random(suite, random);
    let id = key.install(engine, direction)?;
    let mut jobs = 0;
    let lengths: &[usize] = if takes_chains { &[0, 1, 7, 15, 16, 17, 31, 32, 33, 48] } else { &[16, 48] };
    for &length in lengths {
        let sample = Sample::random(&key, length, random)?;
        let end = OFFSET + sample.front.len() + sample.sealed.len();
        let mut all = Vec::new();
        for first in 1..end {
            all.push(vec![first]);
            // Every two of the first, and some of the others: they are many.
            let step = if length == 17 { 1 } else { 7 };
            all.extend((first..end).step_by(step).filter(|_| takes_chains).map(|second| vec![first, second]));
        }
        jobs += all_cuts(engine, &sample, (id, direction), &all, takes_chains)?;
    }
    for _ in 0..if takes_chains { 300 } else { 3 } {
        let longest = [100, 1_500, 9_000][random.usize(..3)];
        let sample = Sample::random(&key, random.usize(1..longest), random)?;
        let end = OFFSET + sample.front.len() + sample.sealed.len();
        let mut cuts: Vec<usize> = (0..random.usize(1..MAX_SEGMENTS)).map(|_| random.usize(..=end)).collect();
        cuts.sort_unstable();
        // A fault is what nobody may do: the text must not be in the first segment as a whole.
        cuts[0] = cuts[0].min(end - 1);
        jobs += all_cuts(engine, &sample, (id, direction), &[cuts], takes_chains)?;
    }
    engine.remove(id);
    Ok(jobs)
}

/// One packet, cut in each of these ways.
fn all_cuts(
    engine: &mut dyn Engine,
    sample: &Sample,
    (id, direction): (testudo_crypto::KeyId, Direction),
    all: &[Vec<usize>],
    takes_chains: bool,
) -> Result<u64, String> {
    let job = || sample.job(id, direction, OFFSET, 0);
    let jobs = all.iter().map(|cuts| Sample::chained(job()?, cuts)).collect::<Result<Vec<Job>, _>>()?;
    let before = job()?;
    for (ended, cuts) in drive(engine, jobs)?.into_iter().zip(all) {
        let (ended, lengths) = Sample::gathered(ended);
        let checked = if takes_chains {
            sample.check(&ended)
        } else if ended.status != JobStatus::Fault {
            Err(format!("it takes no chains, and one ended as {:?}", ended.status))
        } else if ended.buffer.bytes() != before.buffer.bytes() {
            Err("a chain that was not taken was touched".to_owned())
        } else {
            Ok(())
        };
        checked.map_err(|e| format!("cut at {cuts:?}: {e}"))?;
        if lengths.len() != cuts.len() + 1 || lengths[0] != cuts[0] {
            return Err(format!("cut at {cuts:?}: the segments are {lengths:?}"));
        }
    }
    Ok(all.len() as u64)
}

/// A flipped bit anywhere in a packet in several buffers: refused, with nothing decrypted left.
pub(super) fn forgeries(make: MakeEngine<'_>) -> Result<u64, String> {
    let mut engine = make();
    let mut random = Rng::with_seed(SEED);
    let mut count = 0;
    for suite in suites(engine.as_ref()) {
        if !engine.capability(suite).is_some_and(|capability| capability.takes_chains) {
            continue;
        }
        let key = TestKey::random(suite, &mut random);
        let id = key.install(engine.as_mut(), Direction::Open)?;
        let sample = Sample::random(&key, 70, &mut random)?;
        let mut jobs = Vec::new();
        for bit in 0..sample.sealed.len() * 8 {
            let mut forged = sample.clone();
            forged.sealed[bit / 8] ^= 1 << (bit % 8);
            let cut = random.usize(1..40);
            jobs.push(Sample::chained(forged.job(id, Direction::Open, OFFSET, 0)?, &[cut, cut + 30])?);
        }
        for ended in drive(engine.as_mut(), jobs)? {
            let (ended, _) = Sample::gathered(ended);
            sample
                .check_refused(&ended, "a flipped bit in a chain")
                .map_err(|e| format!("{suite}, seed {SEED:#x}: {e}"))?;
            count += 1;
        }
        engine.remove(id);
    }
    Ok(count)
}

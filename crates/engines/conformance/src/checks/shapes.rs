//! Lengths and alignments.

use crate::make::{DIRECTIONS, Sample, TestKey, suites_and_ciphers};
use crate::{MakeEngine, drive};
use fastrand::Rng;
use testudo_crypto::{Direction, Engine, Suite};

const SEED: u64 = 0x5EED_0001;

/// Every length of text from 0 to 2,100 bytes that the cipher takes.
pub(super) fn every_length(make: MakeEngine<'_>) -> Result<u64, String> {
    let shapes: Vec<_> = (0..=2100).map(|len| (len, 24)).collect();
    for_all(make, &shapes)
}

/// Texts at every offset from 0 to 64 bytes in a buffer that starts on a cache line, with lengths around the
/// sizes of blocks and of vectors.
pub(super) fn every_alignment(make: MakeEngine<'_>) -> Result<u64, String> {
    let lengths = [0, 1, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 255, 256, 257, 511, 767, 769, 1400];
    let shapes: Vec<_> = (0..=64).flat_map(|offset| lengths.map(|len| (len, offset))).collect();
    for_all(make, &shapes)
}

/// Jumbo frames and the longest IP datagrams, as far as the engine takes them.
pub(super) fn long_packets(make: MakeEngine<'_>) -> Result<u64, String> {
    for_all(make, &[(4_096, 3), (8_999, 24), (9_000, 0), (16_384, 1), (65_000, 24), (65_535, 9)])
}

/// Packets of the given lengths and offsets, in every suite and both directions.
fn for_all(make: MakeEngine<'_>, shapes: &[(usize, usize)]) -> Result<u64, String> {
    let mut engine = make();
    let mut random = Rng::with_seed(SEED);
    let mut jobs = 0;
    for suite in suites_and_ciphers(engine.as_ref()) {
        for direction in DIRECTIONS {
            jobs += one_suite(engine.as_mut(), suite, direction, shapes, &mut random)
                .map_err(|e| format!("{suite}, seed {SEED:#x}: {e}"))?;
        }
    }
    Ok(jobs)
}

fn one_suite(
    engine: &mut dyn Engine,
    suite: Suite,
    direction: Direction,
    shapes: &[(usize, usize)],
    random: &mut Rng,
) -> Result<u64, String> {
    let longest = engine.capability(suite).map_or(0, |c| c.max_text_bytes);
    let key = TestKey::random(suite, random);
    let id = key.install(engine, direction)?;
    let mut samples = Vec::new();
    let mut jobs = Vec::new();
    // For a cipher of whole blocks, a length that it does not take becomes the next shorter one that it does,
    // tried once at each offset.
    let mut fitting: Vec<_> =
        shapes.iter().map(|(len, offset)| (len - len % suite.block_bytes(), *offset)).collect();
    fitting.dedup();
    for (len, offset) in fitting.into_iter().filter(|(len, _)| *len <= longest) {
        let sample = Sample::random(&key, len, random)?;
        jobs.push(sample.job(id, direction, offset, 80)?);
        samples.push(sample);
    }
    let done = drive(engine, jobs)?;
    engine.remove(id);
    samples.iter().zip(&done).try_for_each(|(sample, job)| sample.check(job))?;
    Ok(done.len() as u64)
}

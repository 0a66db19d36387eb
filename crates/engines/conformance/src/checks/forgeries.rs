//! What must not pass authentication.

use crate::make::{Sample, TestKey, suites};
use crate::{MakeEngine, drive};
use fastrand::Rng;
use testudo_crypto::{Direction, Engine, Job, Suite};

const SEED: u64 = 0x5EED_0002;

/// A packet with any single bit of its header, IV, text or ICV, or of its number's high half flipped, with
/// ESN taken for no ESN or the reverse, or with its text cut, is refused.
pub(super) fn every_bit(make: MakeEngine<'_>) -> Result<u64, String> {
    let mut engine = make();
    let mut random = Rng::with_seed(SEED);
    let mut jobs = 0;
    for suite in suites(engine.as_ref()) {
        // Several vectors wide and an odd tail; one short packet.
        for len in [20, 64, 301] {
            jobs += one_packet(engine.as_mut(), suite, len, &mut random)
                .map_err(|e| format!("{suite}, {len} bytes, seed {SEED:#x}: {e}"))?;
        }
    }
    Ok(jobs)
}

fn one_packet(engine: &mut dyn Engine, suite: Suite, len: usize, random: &mut Rng) -> Result<u64, String> {
    let key = TestKey::random(suite, random);
    let id = key.install(engine, Direction::Open)?;
    let sample = Sample::random(&key, len, random)?;
    let genuine = || sample.job(id, Direction::Open, 24, 0);
    let mut forged: Vec<(String, Job)> = Vec::new();
    for bit in 0..(sample.front.len() + sample.sealed.len()) * 8 {
        let mut job = genuine()?;
        job.buffer.bytes_mut()[24 + bit / 8] ^= 1 << (bit % 8);
        forged.push((format!("bit {bit} of header, IV, text and ICV"), job));
    }
    for bit in 32..if sample.esn { 64 } else { 32 } {
        let mut job = genuine()?;
        job.sequence ^= 1 << bit;
        forged.push((format!("bit {bit} of the number"), job));
    }
    let mut other = genuine()?;
    other.esn = !other.esn;
    forged.push(("ESN or not".to_owned(), other));
    let mut cut = genuine()?;
    cut.text_bytes -= u32::try_from(suite.block_bytes()).map_err(|e| e.to_string())?;
    forged.push(("the text cut by a byte, or a block".to_owned(), cut));
    let (names, jobs): (Vec<String>, Vec<Job>) = forged.into_iter().unzip();
    let done = drive(engine, jobs)?;
    names.iter().zip(&done).try_for_each(|(name, job)| sample.check_refused(job, name))?;
    // The genuine packet still passes after all of them.
    let last = drive(engine, vec![genuine()?])?;
    engine.remove(id);
    last.iter().try_for_each(|job| sample.check(job))?;
    Ok(done.len() as u64 + 1)
}

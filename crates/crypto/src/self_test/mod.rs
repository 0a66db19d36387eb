//! The known-answer test that every engine must pass before it gets a packet.

mod frames;
mod known_answers;

pub use self::known_answers::{KNOWN_ANSWERS, KnownAnswer};
use crate::{Direction, Engine, EngineError, Job, JobStatus, KeyId, KeyMaterial, PortableEngine, Suite};
use std::ops::Range;
use std::time::{Duration, Instant};
use testudo_packet::Buffer;
use zeroize::Zeroizing;

/// How long an asynchronous engine may take for one answer. A GPU compiles its kernels before its first one.
const PATIENCE: Duration = Duration::from_secs(5);

/// A packet before and after sealing, as an engine gets it and gives it back: ESP header, IV (or the unique
/// block that becomes it), text, ICV.
struct Answer {
    source: String,
    material: KeyMaterial,
    sequence: u64,
    esn: bool,
    plain: Vec<u8>,
    sealed: Vec<u8>,
    text: Range<usize>,
}

/// Compares `engine` with official answers in every suite that it does and both directions, and checks that
/// it refuses a forged ICV. A pair without an official answer, both of whose primitives have one in other
/// pairs, is compared with the [`PortableEngine`].
///
/// In suites in which it [writes frames](crate::Capability::writes_frames), these are compared with the
/// CPU's.
///
/// The engine must be idle; afterwards it holds no more keys than before. Takes microseconds on a CPU.
///
/// # Errors
/// [`EngineError::SelfTest`] naming the first wrong answer, or the error of [`Engine::install`].
pub fn self_test(engine: &mut dyn Engine) -> Result<(), EngineError> {
    for suite in Suite::ALL.iter().copied() {
        let Some(capability) = engine.capability(suite) else { continue };
        let name = suite.to_string();
        let mut answers: Vec<_> =
            KNOWN_ANSWERS.iter().filter(|a| a.suite == name).map(|a| a.decode(suite)).collect();
        if answers.is_empty() {
            answers.push(portable_answer(suite));
        }
        for answer in answers {
            let malformed = || EngineError::SelfTest {
                engine: engine.name(),
                reason: format!("a known answer of {suite} is malformed"),
            };
            let answer = answer.ok_or_else(malformed)?;
            check(engine, &answer, Direction::Seal)?;
            check(engine, &answer, Direction::Open)?;
        }
        if capability.writes_frames {
            frames::check(engine, suite)?;
        }
    }
    Ok(())
}

impl KnownAnswer {
    /// `None` if the lengths do not fit the suite.
    fn decode(&self, suite: Suite) -> Option<Answer> {
        let (text, sealed, aad) = (hex(self.text), hex(self.sealed), hex(self.aad));
        let (key, nonce) = (Zeroizing::new(hex(self.key)), hex(self.nonce));
        let (cipher_key, integrity_key) = key.split_at_checked(suite.key_bytes())?;
        let (salt, iv) = nonce.split_at_checked(suite.salt_bytes())?;
        let material = Zeroizing::new([cipher_key, salt, integrity_key].concat());
        // SPI and the low half of the sequence number, as a packet carries them.
        let (spi, number) = aad.split_first_chunk::<4>()?;
        let header = [*spi, *number.last_chunk::<4>()?].concat();
        let mut plain = [&header, iv, &text].concat();
        let start = header.len() + iv.len();
        let end = start + text.len();
        plain.resize(end + suite.icv_bytes(), 0);
        // An IV that the engine does not make is no part of the answer.
        let made = sealed.len().checked_sub(text.len() + suite.icv_bytes())?;
        let sealed = [&header, iv.get(made..)?, &sealed].concat();
        Some(Answer {
            source: self.source.to_owned(),
            material: KeyMaterial::new(suite, material).ok()?,
            sequence: number.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)),
            esn: number.len() == 8,
            plain,
            sealed,
            text: start..end,
        })
    }
}

/// What the portable engine makes of a packet with ESN that counts up; `None` if it fails.
fn portable_answer(suite: Suite) -> Option<Answer> {
    let counting = |count: usize| (0_u8..=u8::MAX).cycle().take(count).collect::<Vec<u8>>();
    let start = 8 + suite.iv_bytes();
    let text = start..start + 5 * suite.alignment_bytes();
    let mut answer = Answer {
        source: "the portable engine".to_owned(),
        material: KeyMaterial::new(suite, counting(suite.keying_material_bytes()).into()).ok()?,
        sequence: 0x0001_0203_0405_0607,
        esn: true,
        plain: counting(text.end + suite.icv_bytes()),
        sealed: Vec::new(),
        text,
    };
    let mut engine = PortableEngine::new();
    let mut job = answer.job(engine.install(&answer.material, Direction::Seal).ok()?, Direction::Seal)?;
    engine.submit(std::slice::from_mut(&mut job));
    answer.sealed = job.buffer.bytes().to_vec();
    (job.status == JobStatus::Done).then_some(answer)
}

/// One answer in one direction.
fn check(engine: &mut dyn Engine, answer: &Answer, direction: Direction) -> Result<(), EngineError> {
    let name = engine.name();
    let failed = |what: &str| EngineError::SelfTest {
        engine: name,
        reason: format!("{} ({}, {direction:?}): {what}", answer.source, answer.material.suite()),
    };
    let output = match direction {
        Direction::Seal => answer.sealed.clone(),
        Direction::Open => [&answer.sealed[..answer.text.start], &answer.plain[answer.text.clone()]].concat(),
    };
    let key = engine.install(&answer.material, direction)?;
    let job = || answer.job(key, direction).ok_or_else(|| failed("malformed"));
    let (right, mut forged) = (job()?, job()?);
    if let Some(last) = forged.buffer.bytes_mut().last_mut() {
        *last ^= 1;
    }
    let right = finish(engine, right).ok_or_else(|| failed("no answer in time"))?;
    let forged = finish(engine, forged).ok_or_else(|| failed("no answer in time"))?;
    engine.remove(key);
    if right.status != JobStatus::Done || right.buffer.bytes().get(..output.len()) != Some(&output) {
        return Err(failed("wrong answer"));
    }
    if direction == Direction::Open && forged.status != JobStatus::AuthenticationFailed {
        return Err(failed("a forged ICV was not refused"));
    }
    Ok(())
}

impl Answer {
    fn job(&self, key: KeyId, direction: Direction) -> Option<Job> {
        let input = match direction {
            Direction::Seal => &self.plain,
            Direction::Open => &self.sealed,
        };
        Some(Job {
            sequence: self.sequence,
            key,
            text_start: u32::try_from(self.text.start).ok()?,
            text_bytes: u32::try_from(self.text.len()).ok()?,
            esn: self.esn,
            ..Job::new(Buffer::copied(input, 0, 0), direction, 0)
        })
    }
}

/// Submits one job and waits for it, [`PATIENCE`] at the longest.
fn finish(engine: &mut dyn Engine, job: Job) -> Option<Job> {
    finish_together(engine, vec![job])?.pop()
}

/// The same for several jobs, which the engine gets at once; by their tickets, which count from 0.
fn finish_together(engine: &mut dyn Engine, mut jobs: Vec<Job>) -> Option<Vec<Job>> {
    let (start, mut taken) = (Instant::now(), 0);
    let mut done = Vec::with_capacity(jobs.len());
    while taken < jobs.len() || jobs.iter().any(|job| job.status == JobStatus::Taken) {
        let more = if taken < jobs.len() { engine.submit(jobs.get_mut(taken..)?) } else { 0 };
        taken += more;
        engine.flush();
        engine.poll(&mut done, jobs.len());
        if more == 0 && done.is_empty() {
            wait(start)?;
        }
        for job in done.drain(..) {
            let place = jobs.get_mut(job.ticket as usize)?;
            *place = job;
        }
    }
    Some(jobs)
}

/// Yields to other threads; `None` when patience is exhausted.
fn wait(start: Instant) -> Option<()> {
    std::thread::yield_now();
    (start.elapsed() < PATIENCE).then_some(())
}

/// Decodes hexadecimal digits; only for the constants above.
fn hex(digits: &str) -> Vec<u8> {
    let nibbles: Vec<u8> = digits.chars().filter_map(|c| u8::try_from(c.to_digit(16)?).ok()).collect();
    nibbles.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Capability, Cipher, Integrity};
    use std::mem::discriminant;

    #[test]
    fn the_portable_engine_passes() {
        assert_eq!(self_test(&mut PortableEngine::new()), Ok(()));
    }

    #[test]
    fn every_primitive_has_an_official_answer() {
        let answered =
            |is_it: &dyn Fn(Suite) -> bool| KNOWN_ANSWERS.iter().any(|a| is_it(a.suite.parse().unwrap()));
        for suite in Suite::ALL.iter().filter(|suite| suite.is_combined()) {
            let like_it = |other: Suite| {
                let modes = [suite, &other].map(|suite| discriminant(&suite.cipher()));
                modes[0] == modes[1] && suite.icv_bytes() == other.icv_bytes()
            };
            assert!(answered(&like_it), "{suite}");
        }
        for cipher in Cipher::ALL {
            assert!(answered(&|suite| suite.cipher() == *cipher), "{cipher:?}");
        }
        for integrity in Integrity::ALL {
            assert!(answered(&|suite| suite.integrity() == *integrity), "{integrity:?}");
        }
    }

    /// Does the portable engine's work and then spoils it in one way.
    struct Spoiled(PortableEngine, fn(&mut Job));

    impl Engine for Spoiled {
        fn name(&self) -> &'static str {
            "spoiled"
        }
        fn description(&self) -> String {
            String::new()
        }
        fn capability(&self, suite: Suite) -> Option<Capability> {
            self.0.capability(suite)
        }
        fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
            self.0.install(key, direction)
        }
        fn remove(&mut self, key: KeyId) {
            self.0.remove(key);
        }
        fn submit(&mut self, jobs: &mut [Job]) -> usize {
            let taken = self.0.submit(jobs);
            jobs.iter_mut().for_each(self.1);
            taken
        }
    }

    #[test]
    fn an_engine_that_errs_in_any_way_fails() {
        let spoil: [fn(&mut Job); 4] = [
            |job| job.buffer.bytes_mut()[0] ^= 1,
            |job| *job.buffer.bytes_mut().last_mut().unwrap() ^= u8::from(job.direction == Direction::Seal),
            |job| job.status = JobStatus::Done,
            |job| job.status = JobStatus::Fault,
        ];
        for how in spoil {
            let result = self_test(&mut Spoiled(PortableEngine::new(), how));
            assert!(matches!(result, Err(EngineError::SelfTest { engine: "spoiled", .. })), "{result:?}");
        }
    }
}

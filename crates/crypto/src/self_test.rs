//! The known-answer test that every engine must pass before it gets a packet.

use crate::{Direction, Engine, EngineError, Job, JobStatus, KeyId, KeyMaterial, PortableEngine, Suite};
use std::ops::Range;
use std::time::{Duration, Instant};
use testudo_packet::Buffer;
use zeroize::Zeroizing;

/// How long an asynchronous engine may take for one answer. A GPU compiles its kernels before its first one.
const PATIENCE: Duration = Duration::from_secs(5);

/// One official answer, in hexadecimal.
struct KnownAnswer {
    source: &'static str,
    suite: Suite,
    /// Cipher key, then integrity key; the salt is in the nonce.
    key: &'static str,
    /// Salt and IV of an AEAD; for CBC the block that becomes the IV.
    nonce: &'static str,
    aad: &'static str,
    text: &'static str,
    /// IV where the engine makes it, ciphertext, then ICV.
    sealed: &'static str,
}

/// At least one for each primitive, of lengths that are no multiple of a cipher block where the cipher takes
/// them, with both lengths of AAD.
///
/// No document has packets of CBC with HMAC. Those of RFC 3602 and SP 800-38A were completed with OpenSSL:
/// the ICV, under an integrity key that counts up, and the block that becomes the IV, which is the IV
/// decrypted.
const KNOWN_ANSWERS: &[KnownAnswer] = &[
    KnownAnswer {
        source: "draft-mcgrew-gcm-test-01, case 1",
        suite: Suite::AES128GCM16,
        key: "4c80cdefbb5d10da906ac73c3613a634",
        nonce: "2e443b684956ed7e3b244cfe",
        aad: "000043218765432100000000",
        text: "45000048699a000080114db7c0a80102c0a801010a9bf15638d3010000010000\
               00000000045f736970045f756470037369700963796265726369747902646b00\
               0021000101020201",
        sealed: "fecf537e729d5b07dc30df528dd22b768d1b98736696a6fd348509fa13ceac34\
                 cfa2436f14a3f3cf65925bf1f4a13c5d15b21e1884f5ff6247aeabb786b93bce\
                 61bc17d768fd9732459018148f6cbe722fd04796562dfdb4",
    },
    KnownAnswer {
        source: "draft-mcgrew-gcm-test-01, case 3",
        suite: Suite::AES256GCM16,
        key: "abbccddef00112233445566778899aababbccddef00112233445566778899aab",
        nonce: "112233440102030405060708",
        aad: "4a2cbfe300000002",
        text: "4500003069a6400080062690c0a801029389155e0a9e008b2dc57ee000000000\
               7002400020bf0000020405b40101040201020201",
        sealed: "ff425c9b724599df7a3bcd510194e00d6a78107f1b0b1cbf06efae9d65a5d763\
                 748a637985771d347f0545659f14e99def842d8eb335f4eecfdbf831824b4c49\
                 15956c96",
    },
    KnownAnswer {
        source: "RFC 7634, appendix A",
        suite: Suite::CHACHA20POLY1305,
        key: "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f",
        nonce: "a0a1a2a31011121314151617",
        aad: "0102030400000005",
        text: "45000054a6f200004001e778c6336405c000020508005b7a3a080000553bec10\
               0007362708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20212223\
               2425262728292a2b2c2d2e2f303132333435363701020204",
        sealed: "24039428b97f417e3c13753a4f05087b67c352e6a7fab1b982d466ef407ae5c6\
                 14ee8099d52844eb61aa95dfab4c02f72aa71e7c4c4f64c9befe2facc638e8f3\
                 cbec163fac469b502773f6fb94e664da9165b82829f641e076aaa8266b7fb0f7\
                 b11b369907e1ad43",
    },
    KnownAnswer {
        source: "RFC 8439, 2.8.2",
        suite: Suite::CHACHA20POLY1305,
        key: "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f",
        nonce: "070000004041424344454647",
        aad: "50515253c0c1c2c3c4c5c6c7",
        text: "4c616469657320616e642047656e746c656d656e206f662074686520636c6173\
               73206f66202739393a204966204920636f756c64206f6666657220796f75206f\
               6e6c79206f6e652074697020666f7220746865206675747572652c2073756e73\
               637265656e20776f756c642062652069742e",
        sealed: "d31a8d34648e60db7b86afbc53ef7ec2a4aded51296e08fea9e2b5a736ee62d6\
                 3dbea45e8ca9671282fafb69da92728b1a71de0a9e060b2905d6a5b67ecd3b36\
                 92ddbd7f2d778b8c9803aee328091b58fab324e4fad675945585808b4831d7bc\
                 3ff4def08e4b7a9de576d26586cec64b61161ae10b594f09e26a7e902ecbd060\
                 0691",
    },
    KnownAnswer {
        source: "RFC 3602, 4, case 7",
        suite: Suite::AES128_SHA1,
        key: "0123456789abcdef0123456789abcdef4142434445464748494a4b4c4d4e4f5051525354",
        nonce: "0acb3a717fe7f1861ae9c1e58f324ade",
        aad: "0000876500000002",
        text: "45000054090400004001f988c0a87b03c0a87bc808009f76a90a0100b49c083d\
               02a2040008090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20212223\
               2425262728292a2b2c2d2e2f30313233343536370102030405060708090a0a04",
        sealed: "f4e765244f6407adf13dc1380f673f37\
                 773b5241a4c449225e4f3ce5ed611b0c237ca96cf74a93013c1b0ea1a0cf70f8\
                 e4ecaec78ac53aad7a0f022b859243c647752e94a859352b8a4d4d2decd136e5\
                 c177f132ad3fbfb2201ac9904c74ee0a109e0ca1e4dfe9d5a100b842f1c22f0d\
                 d89f10fa84e8b7f07f41c8e8",
    },
    KnownAnswer {
        source: "SP 800-38A, F.2.5",
        suite: Suite::AES256_SHA256,
        key: "603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4\
              6162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f80",
        nonce: "393e4e6cdf9b1fc836120fa2a3d8f140",
        aad: "0000380a0000000a00000025",
        text: "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51\
               30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710",
        sealed: "000102030405060708090a0b0c0d0e0f\
                 f58c4c04d6e5f1ba779eabfb5f7bfbd69cfc4e967edb808d679f777bc6702c7d\
                 39f23369a9d9bacfa530e26304231461b2eb05e2c39be9fcda6c19078c6a9d1b\
                 d1cd02836527f00879670594e12cfca7",
    },
    KnownAnswer {
        source: "RFC 2202, 3, test case 5",
        suite: Suite::NULL_SHA1,
        key: "0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c",
        nonce: "",
        aad: "5465737420576974",
        text: "68205472756e636174696f6e",
        sealed: "68205472756e636174696f6e4c1a03424b55e07fe7f27be1",
    },
    KnownAnswer {
        source: "RFC 2202, 3, test case 2, its key filled up with zeros and its last bytes taken for the high half",
        suite: Suite::NULL_SHA1,
        key: "4a65666500000000000000000000000000000000",
        nonce: "",
        aad: "77686174696e673f20646f20",
        text: "79612077616e7420666f72206e6f7468",
        sealed: "79612077616e7420666f72206e6f7468effcdf6ae5eb2fa2d27416d5",
    },
    KnownAnswer {
        source: "RFC 4868, 2.7.2.2, AUTH384-2",
        suite: Suite::NULL_SHA384,
        key: "4a6566654a6566654a6566654a6566654a6566654a6566654a6566654a656665\
               4a6566654a6566654a6566654a656665",
        nonce: "",
        aad: "7768617420646f20",
        text: "79612077616e7420666f72206e6f7468696e673f",
        sealed: "79612077616e7420666f72206e6f7468696e673f\
                 2c7353974f1842fd66d53c452ca42122b28c0b594cfb184d",
    },
    KnownAnswer {
        source: "RFC 4868, 2.7.2.2, AUTH384-2, its last bytes taken for the high half",
        suite: Suite::NULL_SHA384,
        key: "4a6566654a6566654a6566654a6566654a6566654a6566654a6566654a656665\
               4a6566654a6566654a6566654a656665",
        nonce: "",
        aad: "77686174696e673f20646f20",
        text: "79612077616e7420666f72206e6f7468",
        sealed: "79612077616e7420666f72206e6f7468\
                 2c7353974f1842fd66d53c452ca42122b28c0b594cfb184d",
    },
    KnownAnswer {
        source: "RFC 4868, 2.7.2.3, AUTH512-2",
        suite: Suite::NULL_SHA512,
        key: "4a6566654a6566654a6566654a6566654a6566654a6566654a6566654a656665\
               4a6566654a6566654a6566654a6566654a6566654a6566654a6566654a656665",
        nonce: "",
        aad: "7768617420646f20",
        text: "79612077616e7420666f72206e6f7468696e673f",
        sealed: "79612077616e7420666f72206e6f7468696e673f\
                 cb370917ae8a7ce28cfd1d8f4705d6141c173b2a9362c15df235dfb251b15454",
    },
    KnownAnswer {
        source: "RFC 4868, 2.7.2.3, AUTH512-2, its last bytes taken for the high half",
        suite: Suite::NULL_SHA512,
        key: "4a6566654a6566654a6566654a6566654a6566654a6566654a6566654a656665\
               4a6566654a6566654a6566654a6566654a6566654a6566654a6566654a656665",
        nonce: "",
        aad: "77686174696e673f20646f20",
        text: "79612077616e7420666f72206e6f7468",
        sealed: "79612077616e7420666f72206e6f7468\
                 cb370917ae8a7ce28cfd1d8f4705d6141c173b2a9362c15df235dfb251b15454",
    },
];

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
/// The engine must be idle; afterwards it holds no more keys than before. Takes microseconds on a CPU.
///
/// # Errors
/// [`EngineError::SelfTest`] naming the first wrong answer, or the error of [`Engine::install`].
pub fn self_test(engine: &mut dyn Engine) -> Result<(), EngineError> {
    for suite in Suite::ALL.iter().copied() {
        if engine.capability(suite).is_none() {
            continue;
        }
        let mut answers: Vec<_> =
            KNOWN_ANSWERS.iter().filter(|a| a.suite == suite).map(KnownAnswer::decode).collect();
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
    }
    Ok(())
}

impl KnownAnswer {
    /// `None` if the lengths do not fit the suite.
    fn decode(&self) -> Option<Answer> {
        let (text, sealed, aad) = (hex(self.text), hex(self.sealed), hex(self.aad));
        let (nonce, suite) = (hex(self.nonce), self.suite);
        let mut key = Zeroizing::new(hex(self.key));
        key.extend_from_slice(nonce.get(..suite.salt_bytes())?);
        // SPI and the low half of the sequence number, as a packet carries them.
        let (spi, number) = aad.split_first_chunk::<4>()?;
        let header = [*spi, *number.last_chunk::<4>()?].concat();
        let iv = nonce.get(suite.salt_bytes()..)?;
        let mut plain = [&header, iv, &text].concat();
        let start = header.len() + iv.len();
        let end = start + text.len();
        plain.resize(end + suite.icv_bytes(), 0);
        // An IV that the engine does not make is no part of the answer.
        let made = sealed.len().checked_sub(text.len() + suite.icv_bytes())?;
        let sealed = [&header, iv.get(made..)?, &sealed].concat();
        Some(Answer {
            source: self.source.to_owned(),
            material: KeyMaterial::new(suite, key).ok()?,
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
fn finish(engine: &mut dyn Engine, mut job: Job) -> Option<Job> {
    let start = Instant::now();
    while engine.submit(std::slice::from_mut(&mut job)) == 0 {
        wait(start)?;
    }
    if job.status != JobStatus::Taken {
        return Some(job);
    }
    let mut done = Vec::with_capacity(1);
    loop {
        engine.poll(&mut done, 1);
        if let Some(job) = done.pop() {
            return Some(job);
        }
        wait(start)?;
    }
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

    #[test]
    fn the_portable_engine_passes() {
        assert_eq!(self_test(&mut PortableEngine::new()), Ok(()));
    }

    #[test]
    fn every_primitive_has_an_official_answer() {
        let answered = |is_it: &dyn Fn(Suite) -> bool| KNOWN_ANSWERS.iter().any(|a| is_it(a.suite));
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

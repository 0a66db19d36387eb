//! Keys, packets and jobs for checks.

use crate::reference;
use fastrand::Rng;
use testudo_crypto::{Direction, Engine, Job, JobStatus, KeyId, KeyMaterial, Suite};
use testudo_packet::Buffer;
use zeroize::Zeroizing;

/// `count` random bytes.
pub fn random_bytes(random: &mut Rng, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    random.fill(&mut bytes);
    bytes
}

/// A key in the form for checks.
#[derive(Clone)]
pub(crate) struct TestKey {
    pub suite: Suite,
    /// Cipher key, then integrity key.
    pub key: Vec<u8>,
    pub salt: Vec<u8>,
}

impl TestKey {
    pub fn random(suite: Suite, random: &mut Rng) -> Self {
        let key = random_bytes(random, suite.key_bytes() + suite.integrity_key_bytes());
        Self { suite, key, salt: random_bytes(random, suite.salt_bytes()) }
    }

    /// Installs it for one direction: every other key expanded by the engine's preparer, as a control thread
    /// does, where there is one.
    pub fn install(&self, engine: &mut dyn Engine, direction: Direction) -> Result<KeyId, String> {
        let (cipher, integrity) =
            self.key.split_at_checked(self.suite.key_bytes()).ok_or("the key is short")?;
        let bytes = Zeroizing::new([cipher, &self.salt, integrity].concat());
        let material = KeyMaterial::new(self.suite, bytes).map_err(|e| e.to_string())?;
        let preparer = engine.preparer().filter(|_| self.key.first().is_some_and(|byte| byte % 2 == 1));
        let installed = match preparer {
            Some(preparer) => preparer.prepare(&material, direction).and_then(|key| engine.link(key)),
            None => engine.install(&material, direction),
        };
        installed.map_err(|e| e.to_string())
    }
}

/// A packet before and after sealing: the expected result of an engine.
#[derive(Clone)]
pub(crate) struct Sample {
    pub suite: Suite,
    pub sequence: u64,
    pub esn: bool,
    /// The bytes before the text: ESP header and IV.
    pub front: Vec<u8>,
    /// The same before sealing: ESP header, and the IV or the block that becomes it.
    pub unsealed_front: Vec<u8>,
    pub text: Vec<u8>,
    /// Ciphertext, then ICV.
    pub sealed: Vec<u8>,
}

impl Sample {
    /// A random packet of `text_bytes`, or a few less if the cipher takes whole blocks only, sealed by the
    /// reference. Every second one has the AAD of ESN, 12 bytes.
    pub fn random(key: &TestKey, text_bytes: usize, random: &mut Rng) -> Result<Self, String> {
        let text_bytes = text_bytes - text_bytes % key.suite.block_bytes();
        let (iv, text) = (random_bytes(random, key.suite.iv_bytes()), random_bytes(random, text_bytes));
        let aad_bytes = if random.usize(..2) == 0 { 8 } else { 12 };
        let aad = random_bytes(random, aad_bytes);
        let mut sealed = text.clone();
        let icv = reference::seal(key.suite, &key.key, (&key.salt, &iv), &aad, &mut sealed)?;
        sealed.extend_from_slice(&icv);
        Self::new(key, &iv, &aad, text, sealed)
    }

    /// A packet with a known answer: its IV, SPI and sequence number as they are authenticated (8 bytes, or
    /// 12 with ESN), text, and ciphertext with ICV.
    pub fn new(key: &TestKey, iv: &[u8], aad: &[u8], text: Vec<u8>, sealed: Vec<u8>) -> Result<Self, String> {
        let suite = key.suite;
        let (header, number) = match aad {
            [a, b, c, d, number @ ..] => match number.last_chunk::<4>() {
                Some(low) if [4, 8].contains(&number.len()) => ([[*a, *b, *c, *d], *low].concat(), number),
                _ => return Err(format!("{} bytes are no SPI and number", aad.len())),
            },
            _ => return Err("the AAD has no SPI".to_owned()),
        };
        Ok(Self {
            suite,
            sequence: number.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)),
            esn: number.len() == 8,
            unsealed_front: [&header[..], &reference::unsealed_iv(suite, &key.key, iv)?].concat(),
            front: [&header[..], iv].concat(),
            text,
            sealed,
        })
    }

    /// A job on this packet, which starts `offset` bytes into the buffer's packet and has `guard` bytes after
    /// it.
    pub fn job(&self, key: KeyId, direction: Direction, offset: usize, guard: usize) -> Result<Job, String> {
        let mut bytes = vec![GUARD; offset];
        match direction {
            Direction::Seal => {
                bytes.extend_from_slice(&self.unsealed_front);
                bytes.extend_from_slice(&self.text);
                bytes.resize(offset + self.front.len() + self.sealed.len(), 0xEE);
            }
            Direction::Open => {
                bytes.extend_from_slice(&self.front);
                bytes.extend_from_slice(&self.sealed);
            }
        }
        bytes.resize(bytes.len() + guard, GUARD);
        Ok(Job {
            sequence: self.sequence,
            key,
            auth_start: u32::try_from(offset).map_err(|e| e.to_string())?,
            text_start: u32::try_from(offset + self.front.len()).map_err(|e| e.to_string())?,
            text_bytes: u32::try_from(self.text.len()).map_err(|e| e.to_string())?,
            esn: self.esn,
            ..Job::new(Buffer::copied(&bytes, 0, 0), direction, 0)
        })
    }

    /// The same job, its packet in a chain of buffers that end at these bytes, in ascending order, and where
    /// it ends itself.
    pub fn chained(job: Job, ends: &[usize]) -> Result<Job, String> {
        let bytes = job.buffer.bytes().to_vec();
        let borders = [&[0], ends, &[bytes.len()]].concat();
        let mut pieces = borders.windows(2).map(|ends| Buffer::copied(&bytes[ends[0]..ends[1]], 0, 128));
        let mut chain = pieces.next().ok_or("no piece")?;
        pieces.try_for_each(|piece| chain.link(piece)).map_err(|_| "a piece could not be linked")?;
        Ok(Job { buffer: chain, ..job })
    }

    /// A job that has ended over a chain, with its bytes in one buffer; the lengths of its pieces, too.
    pub fn gathered(mut job: Job) -> (Job, Vec<usize>) {
        let chain = std::mem::take(&mut job.buffer);
        let mut bytes = vec![0; chain.chain_bytes()];
        chain.copy_to(0, &mut bytes);
        let lengths = chain.segments().map(Buffer::len).collect();
        (Job { buffer: Buffer::copied(&bytes, 0, 0), ..job }, lengths)
    }

    /// Checks a job that should have succeeded: the right bytes, and nothing around them touched.
    pub fn check(&self, job: &Job) -> Result<(), String> {
        let what =
            || format!("{:?} of {} bytes at offset {}", job.direction, self.text.len(), job.text_start);
        if job.status != JobStatus::Done {
            return Err(format!("{} ended as {:?}", what(), job.status));
        }
        let start = job.auth_start as usize;
        let bytes = job.buffer.bytes();
        let expected = match job.direction {
            Direction::Seal => [&self.front[..], &self.sealed].concat(),
            Direction::Open => [&self.front[..], &self.text].concat(),
        };
        if bytes.get(start..start + expected.len()) != Some(&expected) {
            return Err(format!("{} gave wrong bytes", what()));
        }
        let around = bytes[..start].iter().chain(&bytes[start + self.front.len() + self.sealed.len()..]);
        if around.copied().any(|b| b != GUARD) {
            return Err(format!("{} wrote outside of the packet", what()));
        }
        Ok(())
    }

    /// Checks a job with a forged input: refused, and no decrypted text left.
    pub fn check_refused(&self, job: &Job, forgery: &str) -> Result<(), String> {
        if job.status != JobStatus::AuthenticationFailed {
            return Err(format!("{forgery}: ended as {:?}", job.status));
        }
        // One byte may agree by chance; eight do not.
        let start = job.text_start as usize;
        let left = job.buffer.bytes().get(start..start + self.text.len());
        if self.suite.encrypts() && self.text.len() >= 8 && left == Some(&self.text) {
            return Err(format!("{forgery}: the text that failed its authentication was left decrypted"));
        }
        Ok(())
    }
}

/// The bytes around texts.
const GUARD: u8 = 0x5A;

/// The suites that `engine` supports.
pub(crate) fn suites(engine: &dyn Engine) -> Vec<Suite> {
    Suite::ALL.iter().copied().filter(|s| engine.capability(*s).is_some()).collect()
}

/// The same, and the ciphers without authentication that it supports: for checks that forge nothing.
pub(crate) fn suites_and_ciphers(engine: &dyn Engine) -> Vec<Suite> {
    Suite::measurable().filter(|suite| engine.capability(*suite).is_some()).collect()
}

/// Both directions.
pub(crate) const DIRECTIONS: [Direction; 2] = [Direction::Seal, Direction::Open];

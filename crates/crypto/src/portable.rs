//! The portable engine.

use crate::portable_chained::ChainedKey;
use crate::{
    AeadParts, AesKey, Capability, Cipher, Direction, Engine, EngineError, Job, JobStatus, KeyId,
    KeyMaterial, KeyTable, Suite,
};
use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use zeroize::Zeroizing;

const NAME: &str = "portable";

/// The longest text: the most that a [`Buffer`](testudo_packet::Buffer) can hold, far below the limits of the
/// ciphers themselves (2^36 - 32 bytes for GCM, SP 800-38D 5.2.1.1; 2^38 - 64 for ChaCha20, RFC 8439 2.8).
const MAX_TEXT_BYTES: usize = 1 << 31;

/// One key and what it may be used for.
struct PortableKey {
    form: Form,
    salt: Zeroizing<[u8; 4]>,
    suite: Suite,
    direction: Direction,
}

/// The expanded key.
enum Form {
    /// Behind a pointer; AWS-LC zeroes that memory when it frees it (`OPENSSL_free`).
    Aead(LessSafeKey),
    Chained(Box<ChainedKey>),
}

/// The engine that does every suite on every machine, on AWS-LC. Synchronous: every job ends inside `submit`.
///
/// AWS-LC decrypts before it knows whether an AEAD's ICV is right. If it is wrong, it clears the text
/// (`EVP_AEAD_CTX_open_gather` zeroes the whole output on any error): no plaintext that failed authentication
/// stays in the buffer. The other suites decrypt only authentic text.
pub struct PortableEngine {
    keys: KeyTable<PortableKey>,
}

impl PortableEngine {
    /// An engine without keys; it can hold 2^20 of them.
    #[must_use]
    pub const fn new() -> Self {
        Self { keys: KeyTable::new(KeyTable::<PortableKey>::MAX_KEYS) }
    }
}

impl Default for PortableEngine {
    fn default() -> Self {
        Self::new()
    }
}

impl Engine for PortableEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn description(&self) -> String {
        format!("AWS-LC through aws-lc-rs, {}", std::env::consts::ARCH)
    }

    fn capability(&self, _suite: Suite) -> Option<Capability> {
        Some(Capability { max_text_bytes: MAX_TEXT_BYTES, max_keys: self.keys.limit() })
    }

    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        self.keys.check_room(NAME)?;
        let suite = key.suite();
        let form = match aead(suite.cipher()) {
            Some(algorithm) => {
                UnboundKey::new(algorithm, key.key()).ok().map(|key| Form::Aead(LessSafeKey::new(key)))
            }
            None => ChainedKey::new(key, direction).map(|key| Form::Chained(Box::new(key))),
        };
        // `KeyMaterial` has the length of its suite, so that only memory can run out here.
        let lacking = || EngineError::KeyRefused { engine: NAME, reason: "out of memory".to_owned() };
        let salt = key.nonce_salt();
        self.keys.insert(NAME, PortableKey { form: form.ok_or_else(lacking)?, salt, suite, direction })
    }

    fn remove(&mut self, key: KeyId) {
        drop(self.keys.remove(key));
    }

    fn is_synchronous(&self) -> bool {
        true
    }

    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        for job in &mut *jobs {
            job.status = match self.keys.get(job.key) {
                Some(key) if key.direction == job.direction => run(key, job),
                _ => JobStatus::Fault,
            };
        }
        jobs.len()
    }
}

/// Does one job under its key.
fn run(key: &PortableKey, job: &mut Job) -> JobStatus {
    // Checked here, because after this point an error cannot be told from a wrong ICV.
    if job.text_bytes as usize > MAX_TEXT_BYTES {
        return JobStatus::Fault;
    }
    let Some(parts) = job.parts(key.suite) else { return JobStatus::Fault };
    match &key.form {
        Form::Aead(cipher) => match parts.aead(*key.salt) {
            Some(parts) => run_aead(cipher, key.direction, parts),
            None => JobStatus::Fault,
        },
        Form::Chained(cipher) => cipher.run(parts),
    }
}

fn run_aead(key: &LessSafeKey, direction: Direction, parts: AeadParts<'_>) -> JobStatus {
    let AeadParts { nonce, aad, text, icv } = parts;
    let (nonce, aad) = (Nonce::assume_unique_for_key(nonce), Aad::from(aad.as_bytes()));
    match direction {
        Direction::Seal => match key.seal_in_place_separate_tag(nonce, aad, text) {
            Ok(tag) => {
                icv.copy_from_slice(tag.as_ref());
                JobStatus::Done
            }
            // Only for a text beyond the cipher's limit, which the check above excludes.
            Err(_) => JobStatus::Fault,
        },
        Direction::Open => match key.open_in_place_separate_tag(nonce, aad, icv, text) {
            Ok(_) => JobStatus::Done,
            Err(_) => JobStatus::AuthenticationFailed,
        },
    }
}

/// AWS-LC's algorithm for a combined mode; `None` for any other cipher.
fn aead(cipher: Cipher) -> Option<&'static Algorithm> {
    match cipher {
        Cipher::AesGcm(AesKey::Aes128) => Some(&AES_128_GCM),
        Cipher::AesGcm(AesKey::Aes256) => Some(&AES_256_GCM),
        Cipher::ChaCha20Poly1305 => Some(&CHACHA20_POLY1305),
        Cipher::AesCbc(_) | Cipher::Null => None,
    }
}

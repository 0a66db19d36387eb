//! The portable engine.

use crate::{
    Capability, Direction, Engine, EngineError, Job, JobParts, JobStatus, KeyId, KeyMaterial, KeyTable, Suite,
};
use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};

const NAME: &str = "portable";

/// The longest text: what a [`Buffer`](testudo_packet::Buffer) may hold, far below the limits of the ciphers themselves
/// (2^36 - 32 bytes for GCM, SP 800-38D 5.2.1.1; 2^38 - 64 for ChaCha20, RFC 8439 2.8).
const MAX_TEXT_BYTES: usize = 1 << 31;

/// One key and what it may be used for.
struct PortableKey {
    /// Behind a pointer; AWS-LC zeroes that memory when it frees it (`OPENSSL_free`).
    key: LessSafeKey,
    suite: Suite,
    direction: Direction,
}

/// The engine that does every suite on every machine, on AWS-LC. Synchronous: every job ends inside `submit`.
///
/// When an ICV is wrong, AWS-LC has decrypted the text before it knew, and then clears it (`EVP_AEAD_CTX_open_gather` sets
/// the whole output to zero on any error): no plaintext that failed its authentication stays in the buffer.
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
        // `KeyMaterial` has the length of its suite, so only memory can be lacking here.
        let unbound = UnboundKey::new(algorithm(suite), key.key())
            .map_err(|_| EngineError::KeyRefused { engine: NAME, reason: "out of memory".to_owned() })?;
        self.keys.insert(NAME, PortableKey { key: LessSafeKey::new(unbound), suite, direction })
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
    // The limit is checked here because past this point an error can no longer be told from a wrong ICV.
    if job.text_bytes as usize > MAX_TEXT_BYTES {
        return JobStatus::Fault;
    }
    let Some(JobParts { text, icv, nonce, aad }) = job.parts(key.suite.icv_bytes()) else {
        return JobStatus::Fault;
    };
    let (nonce, aad) = (Nonce::assume_unique_for_key(*nonce), Aad::from(aad));
    match key.direction {
        Direction::Seal => match key.key.seal_in_place_separate_tag(nonce, aad, text) {
            Ok(tag) => {
                icv.copy_from_slice(tag.as_ref());
                JobStatus::Done
            }
            // Only for a text beyond the cipher's limit, which the check above excludes.
            Err(_) => JobStatus::Fault,
        },
        Direction::Open => match key.key.open_in_place_separate_tag(nonce, aad, icv, text) {
            Ok(_) => JobStatus::Done,
            Err(_) => JobStatus::AuthenticationFailed,
        },
    }
}

/// AWS-LC's name for a suite.
fn algorithm(suite: Suite) -> &'static Algorithm {
    match suite {
        Suite::Aes128Gcm16 => &AES_128_GCM,
        Suite::Aes256Gcm16 => &AES_256_GCM,
        Suite::ChaCha20Poly1305 => &CHACHA20_POLY1305,
    }
}

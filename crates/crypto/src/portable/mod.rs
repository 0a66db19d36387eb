//! The portable engine: every suite on every machine.
//!
//! ```text
//!   aead    combined modes that AWS-LC has      AES-GCM with whole ICVs, ChaCha20-Poly1305
//!   gcm     composed of its halves              AES-GCM with shorter ICVs, AES-GMAC
//!   chained the same over several buffers
//!   ccm     composed of its halves, too         AES-CCM
//!   pair    a cipher, then an integrity algorithm over all of it
//!     cbc                AES by AWS-LC; DES and 3DES by RustCrypto
//!     mac, block_mac     HMAC by AWS-LC, with MD5 by RustCrypto; AES-XCBC and AES-CMAC
//!   cbc_mac, ctr    what several of these have in common
//! ```

mod aead;
mod block_mac;
mod cbc;
mod cbc_mac;
mod ccm;
mod chained;
mod ctr;
mod gcm;
mod mac;
mod pair;

use self::ccm::CcmKey;
use self::chained::ChainKey;
use self::gcm::GcmKey;
use self::pair::PairKey;
use crate::{
    AeadParts, Capability, ChainShape, Cipher, Direction, Engine, EngineError, Job, JobParts, JobStatus,
    KeyId, KeyMaterial, KeyPreparer, KeyTable, PreparedKey, Suite,
};
use aws_lc_rs::aead::LessSafeKey;
use std::sync::Arc;
use zeroize::Zeroizing;

const NAME: &str = "portable";

/// The longest text: the most that a [`Buffer`](testudo_packet::Buffer) can hold, far below the limits of the
/// ciphers themselves (2^36 - 32 bytes for GCM, SP 800-38D 5.2.1.1; 2^38 - 64 for ChaCha20, RFC 8439 2.8;
/// 2^32 for CCM and CTR with the nonces of ESP, RFC 4309 4, RFC 3686 4).
const MAX_TEXT_BYTES: usize = 1 << 31;

/// One key and what it may be used for.
struct PortableKey {
    form: Form,
    /// What chains need where the form is no good for them.
    chain: Option<Box<ChainKey>>,
    salt: Zeroizing<[u8; 4]>,
    suite: Suite,
    direction: Direction,
}

/// The expanded key, each behind a pointer.
enum Form {
    /// AWS-LC zeroes that memory when it frees it (`OPENSSL_free`).
    Aead(LessSafeKey),
    Gcm(Box<GcmKey>),
    Gmac(Box<GcmKey>),
    Ccm(Box<CcmKey>),
    Pair(Box<PairKey>),
}

/// The engine that does every suite on every machine. Synchronous: every job ends inside `submit`.
///
/// AWS-LC's AEADs and CCM decrypt before they know whether the ICV is right. If it is wrong, they clear the
/// text (`EVP_AEAD_CTX_open_gather` zeroes the whole output on any error): no plaintext that failed
/// authentication stays in the buffer. The other suites decrypt only authentic text.
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
        format!("AWS-LC through aws-lc-rs, and RustCrypto, {}", std::env::consts::ARCH)
    }

    fn capability(&self, suite: Suite) -> Option<Capability> {
        let takes_chains = is_gcm(suite);
        Some(Capability {
            max_text_bytes: MAX_TEXT_BYTES,
            max_keys: self.keys.limit(),
            takes_chains,
            writes_frames: false,
        })
    }

    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        self.keys.check_room(NAME)?;
        self.keys.insert(NAME, PortableKey::new(key, direction)?)
    }

    fn preparer(&self) -> Option<Arc<dyn KeyPreparer>> {
        Some(Arc::new(Preparer))
    }

    fn link(&mut self, key: PreparedKey) -> Result<KeyId, EngineError> {
        self.keys.insert(NAME, key.into_form(NAME)?)
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
                Some(key) if key.direction == job.direction => key.run(job),
                _ => JobStatus::Fault,
            };
        }
        jobs.len()
    }
}

impl PortableKey {
    fn new(key: &KeyMaterial, direction: Direction) -> Result<Self, EngineError> {
        // `KeyMaterial` has the length of its suite, so that only memory can run out here.
        let lacking = || EngineError::KeyRefused { engine: NAME, reason: "out of memory".to_owned() };
        let form = Form::new(key, direction).ok_or_else(lacking)?;
        let needs_chain = matches!(form, Form::Aead(_)) && is_gcm(key.suite());
        let chain = needs_chain.then(|| Box::new(ChainKey::new(key)));
        Ok(Self { form, chain, salt: key.nonce_salt(), suite: key.suite(), direction })
    }
}

/// Whether it encrypts with AES-GCM.
fn is_gcm(suite: Suite) -> bool {
    matches!(suite.cipher(), Cipher::AesGcm(_) | Cipher::AesGcmImplicitIv(_) | Cipher::AesGcmVpe(_))
}

/// Expands keys without an engine.
struct Preparer;

impl KeyPreparer for Preparer {
    fn prepare(&self, key: &KeyMaterial, direction: Direction) -> Result<PreparedKey, EngineError> {
        PortableKey::new(key, direction).map(PreparedKey::new)
    }
}

impl Form {
    /// Expands a key; `None` if memory runs out.
    fn new(material: &KeyMaterial, direction: Direction) -> Option<Self> {
        let (suite, key) = (material.suite(), material.key());
        match suite.cipher() {
            Cipher::AesGmac(_) => GcmKey::new(key).map(|key| Self::Gmac(Box::new(key))),
            Cipher::AesGcm(_) if suite.icv_bytes() < aead::ICV_BYTES => {
                GcmKey::new(key).map(|key| Self::Gcm(Box::new(key)))
            }
            Cipher::AesCcm(_) | Cipher::AesCcmImplicitIv(_) => {
                CcmKey::new(key).map(|key| Self::Ccm(Box::new(key)))
            }
            _ if suite.is_combined() => aead::key(suite.cipher(), key).map(Self::Aead),
            _ => PairKey::new(material, direction).map(|key| Self::Pair(Box::new(key))),
        }
    }
}

impl PortableKey {
    /// Does one job under this key.
    fn run(&self, job: &mut Job) -> JobStatus {
        // Checked here, because after this point an error cannot be told from a wrong ICV.
        if job.text_bytes as usize > MAX_TEXT_BYTES {
            return JobStatus::Fault;
        }
        let Some(parts) = job.parts(self.suite) else { return self.run_chain(job) };
        match &self.form {
            Form::Aead(key) => self.with_aead(parts, |parts| aead::run(key, self.direction, parts)),
            Form::Gcm(key) => self.with_aead(parts, |parts| key.run(self.direction, parts)),
            Form::Ccm(key) => self.with_aead(parts, |parts| key.run(self.direction, parts)),
            Form::Gmac(key) => key.run_gmac(self.direction, *self.salt, parts),
            Form::Pair(key) => key.run(parts),
        }
    }

    /// Does one job over a chain; a fault if it is none.
    #[cold]
    fn run_chain(&self, job: &mut Job) -> JobStatus {
        let Some(parts) = ChainShape::of(self.suite).and_then(|shape| job.chain_parts(shape, *self.salt))
        else {
            return JobStatus::Fault;
        };
        let key = match (&self.form, &self.chain) {
            (Form::Gcm(key), _) => Some(&**key),
            (Form::Aead(_), Some(key)) => key.expanded(),
            _ => None,
        };
        key.map_or(JobStatus::Fault, |key| key.run_chain(self.direction, parts))
    }

    #[inline]
    fn with_aead(&self, parts: JobParts<'_>, run: impl FnOnce(AeadParts<'_>) -> JobStatus) -> JobStatus {
        parts.aead(*self.salt).map_or(JobStatus::Fault, run)
    }
}

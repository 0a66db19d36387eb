//! The safe engine.

use crate::NAME;
use crate::burst::{self, Bursts, Waiting};
use crate::chained::ChainedKey;
use crate::direct::{self, BATCH_SIZE, MAX_TEXT_BYTES, Scratch};
use crate::library::Library;
use crate::manager::{ChaChaKey, GcmKey, Manager};
use crate::raw::SONAMES;
use std::ffi::OsStr;
use std::path::Path;
use testudo_crypto::{
    AesKey, Capability, Cipher, Direction, Engine, EngineError, Job, JobStatus, KeyId, KeyMaterial, KeyTable,
    Suite,
};
use zeroize::Zeroizing;

/// A key in the form that the library wants for its suite.
pub(crate) enum Form {
    Gcm(AesKey, GcmKey),
    ChaCha(ChaChaKey),
    Gmac(AesKey, GcmKey),
    Chained(ChainedKey),
}

/// Which code does a key's packets: the keys of a batch have it in common, so that lengths are constants
/// there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A combined mode with an IV of 8 bytes and an ICV of 16.
    Aead16,
    /// The same with an ICV of 12 bytes.
    Aead12,
    /// The same with an ICV of 8 bytes.
    Aead8,
    /// A combined mode without an IV (RFC 8750), with an ICV of 16 bytes.
    ImplicitIv,
    Gmac,
    Chained,
}

impl Kind {
    /// `None` for a suite that this engine never does.
    fn of(suite: Suite) -> Option<Self> {
        match (suite.cipher(), suite.icv_bytes()) {
            (Cipher::AesGcm(_) | Cipher::ChaCha20Poly1305, 16) => Some(Self::Aead16),
            (Cipher::AesGcm(_), 12) => Some(Self::Aead12),
            (Cipher::AesGcm(_), 8) => Some(Self::Aead8),
            (Cipher::AesGcmImplicitIv(_) | Cipher::ChaCha20Poly1305ImplicitIv, 16) => Some(Self::ImplicitIv),
            (Cipher::AesGmac(_), _) => Some(Self::Gmac),
            _ if burst::does(suite) => Some(Self::Chained),
            _ => None,
        }
    }
}

/// One key and the direction that it may be used for.
pub(crate) struct MbKey {
    pub(crate) form: Form,
    pub(crate) kind: Kind,
    pub(crate) salt: Zeroizing<[u8; 4]>,
    pub(crate) direction: Direction,
}

/// The engine on intel-ipsec-mb. Synchronous: every job ends inside `submit`.
pub struct IpsecMbEngine {
    keys: KeyTable<MbKey>,
    manager: Manager,
    /// What the library needs beside the packets of a batch.
    scratch: Box<[Scratch; BATCH_SIZE]>,
}

impl IpsecMbEngine {
    /// Opens the library that the system's linker finds. The caller has it compute known answers
    /// ([`testudo_crypto::self_test`]) before it is used.
    ///
    /// # Errors
    /// [`EngineError::Unavailable`] if it is not there, of an unknown version, or not for this CPU.
    pub fn open() -> Result<Self, EngineError> {
        let mut reasons = Vec::new();
        for name in SONAMES {
            match Self::open_named(OsStr::new(name)) {
                Err(EngineError::Unavailable { reason, .. }) => reasons.push(reason),
                other => return other,
            }
        }
        reasons.push("Debian's package is libipsec-mb1 (libipsec-mb2 from Debian 13 on)".to_owned());
        Err(EngineError::Unavailable { engine: NAME, reason: reasons.join("; ") })
    }

    /// Like [`open`](Self::open), with the library in the file `path`. Its code is run: the file must be
    /// trusted.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_at(path: &Path) -> Result<Self, EngineError> {
        Self::open_named(path.as_os_str())
    }

    fn open_named(name: &OsStr) -> Result<Self, EngineError> {
        let manager = Library::open(name)
            .and_then(Manager::new)
            .map_err(|reason| EngineError::Unavailable { engine: NAME, reason })?;
        let keys = KeyTable::new(KeyTable::<MbKey>::MAX_KEYS);
        Ok(Self { keys, manager, scratch: Box::new([Scratch::EMPTY; _]) })
    }
}

impl Engine for IpsecMbEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn description(&self) -> String {
        format!("intel-ipsec-mb {}, {}", self.manager.version(), self.manager.architecture())
    }

    fn capability(&self, suite: Suite) -> Option<Capability> {
        let max_text_bytes = match Kind::of(suite)? {
            Kind::Chained if self.manager.chained.is_some() => burst::MAX_TEXT_BYTES,
            Kind::Gmac if self.manager.does_gmac() => MAX_TEXT_BYTES,
            Kind::Chained | Kind::Gmac => return None,
            Kind::Aead16 | Kind::Aead12 | Kind::Aead8 | Kind::ImplicitIv => MAX_TEXT_BYTES,
        };
        Some(Capability { max_text_bytes, max_keys: self.keys.limit() })
    }

    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        self.keys.check_room(NAME)?;
        let refused = |why: String| EngineError::KeyRefused { engine: NAME, reason: why };
        let suite = key.suite();
        let kind = Kind::of(suite).filter(|_| self.capability(suite).is_some());
        let kind = kind.ok_or(EngineError::Unsupported { engine: NAME, suite })?;
        let form = match suite.cipher() {
            Cipher::AesGcm(length) | Cipher::AesGcmImplicitIv(length) => {
                Form::Gcm(length, self.manager.expand_gcm(length, key.key()).map_err(refused)?)
            }
            Cipher::AesGmac(length) => {
                Form::Gmac(length, self.manager.expand_gcm(length, key.key()).map_err(refused)?)
            }
            Cipher::ChaCha20Poly1305 | Cipher::ChaCha20Poly1305ImplicitIv => {
                Form::ChaCha(ChaChaKey::new(key.key()).ok_or_else(|| refused("length".to_owned()))?)
            }
            _ => {
                let expanded = self.manager.expand_chained(suite, direction, key.key(), key.integrity_key());
                Form::Chained(expanded.map_err(refused)?)
            }
        };
        self.keys.insert(NAME, MbKey { form, kind, salt: key.nonce_salt(), direction })
    }

    fn remove(&mut self, key: KeyId) {
        drop(self.keys.remove(key));
        self.manager.wipe_contexts();
    }

    fn preferred_burst(&self, suite: Suite) -> usize {
        // Lanes of HMAC-SHA-1 with AVX-512; the other cases have as many or half.
        if burst::does(suite) { 16 } else { 1 }
    }

    fn is_synchronous(&self) -> bool {
        true
    }

    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        let count = jobs.len();
        let (mut aeads, scratch) = self.manager.parts();
        let mut waiting = Waiting::new();
        let mut bursts = scratch.map(|scratch| Bursts { scratch, waiting: &mut waiting });
        let mut rest = jobs;
        while let Some(id) = rest.first().map(|job| job.key) {
            let key = self.keys.get(id);
            let run = match key {
                Some(MbKey { kind: Kind::Chained | Kind::Gmac, .. }) => run_length(rest, id),
                Some(MbKey { kind, .. }) => {
                    direct::batch(*kind, &mut aeads, &self.keys, &mut self.scratch, rest)
                }
                // Ended there as faults.
                None => direct::batch(Kind::Aead16, &mut aeads, &self.keys, &mut self.scratch, rest),
            };
            let (run, behind) = rest.split_at_mut(run);
            match (key, &mut bursts) {
                // Keys may differ within a burst, so that these jobs are collected by kind.
                (Some(MbKey { form: Form::Chained(key), .. }), Some(bursts)) => bursts.push(key, run),
                (Some(MbKey { form: Form::Gmac(length, form), salt, direction, .. }), _) => {
                    match aeads.gmac(*length) {
                        Some(mut gmac) => gmac.run(form, **salt, *direction, run, MAX_TEXT_BYTES),
                        // Not reached: no such key was installed.
                        None => run.iter_mut().for_each(|job| job.status = JobStatus::Fault),
                    }
                }
                // Not reached: without bursts no such key was installed.
                (Some(MbKey { form: Form::Chained(_), .. }), None) => {
                    run.iter_mut().for_each(|job| job.status = JobStatus::Fault);
                }
                _ => {}
            }
            rest = behind;
        }
        if let Some(bursts) = &mut bursts {
            bursts.finish();
        }
        count
    }
}

/// How many jobs at the front have this key.
#[inline]
pub(crate) fn run_length(jobs: &[Job], key: KeyId) -> usize {
    jobs.iter().take_while(|job| job.key == key).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::{ImbJob, ImbMgr};

    #[test]
    fn a_library_that_is_not_there_is_an_error_and_no_panic() {
        let error = IpsecMbEngine::open_at(Path::new("/nowhere/libIPSec_MB.so.1")).err().unwrap();
        assert!(
            error.to_string().starts_with("engine ipsec-mb is not available: /nowhere/libIPSec_MB.so.1"),
            "{error}"
        );
    }

    #[test]
    fn the_description_names_version_and_instructions() {
        let engine = IpsecMbEngine::open().expect("install the package libipsec-mb1");
        let description = engine.description();
        println!("{description}");
        assert!(description.starts_with("intel-ipsec-mb "), "{description}");
        assert!(["SSE", "AVX"].iter().any(|i| description.contains(i)), "{description}");
    }

    /// An engine, and jobs for both directions of one SA of aes128-sha1, with ESN.
    fn engine_and_jobs() -> (IpsecMbEngine, Vec<Job>) {
        let mut engine = IpsecMbEngine::open().expect("install the package libipsec-mb1");
        let suite = Suite::AES128_SHA1;
        let material = KeyMaterial::new(suite, vec![7; suite.keying_material_bytes()].into()).unwrap();
        let job = |direction, key| Job {
            sequence: 1 << 32,
            key,
            text_start: 24,
            text_bytes: 48,
            esn: true,
            ..Job::new(testudo_packet::Buffer::copied(&[0xA5; 24 + 48 + 12], 0, 0), direction, 0)
        };
        let directions = [Direction::Seal, Direction::Open];
        let jobs = directions.map(|d| job(d, engine.install(&material, d).unwrap()));
        (engine, jobs.into())
    }

    unsafe extern "C" fn ciphers_nothing(
        _: *mut ImbMgr,
        _: *mut ImbJob,
        count: u32,
        _: u32,
        _: u32,
        _: u32,
    ) -> u32 {
        count
    }

    #[test]
    fn a_library_that_ciphers_or_hashes_nothing_seals_nothing() {
        let spoiled = [[0xA5; 8].as_slice(), &[0; 76]].concat();
        for lazy_at_hashing in [true, false] {
            let (mut engine, mut jobs) = engine_and_jobs();
            let functions = &mut engine.manager.chained.as_mut().unwrap().functions;
            if lazy_at_hashing {
                functions.hash = hashes_nothing;
            } else {
                functions.cipher = ciphers_nothing;
            }
            engine.submit(&mut jobs[..1]);
            assert_eq!(jobs[0].status, JobStatus::AuthenticationFailed, "hashing {lazy_at_hashing}");
            assert_eq!(jobs[0].buffer.bytes(), spoiled);
        }
    }

    unsafe extern "C" fn hashes_nothing(_: *mut ImbMgr, _: *mut ImbJob, count: u32, _: u32) -> u32 {
        count
    }

    unsafe extern "C" fn ends_all_but_one(_: *mut ImbMgr, _: *mut ImbJob, count: u32, _: u32) -> u32 {
        count - 1
    }

    #[test]
    fn a_library_that_hashes_nothing_finds_nothing_authentic() {
        let (mut engine, mut jobs) = engine_and_jobs();
        engine.manager.chained.as_mut().unwrap().functions.hash = hashes_nothing;
        engine.submit(&mut jobs[1..]);
        assert_eq!(jobs[1].status, JobStatus::AuthenticationFailed);
        assert_eq!(jobs[1].buffer.bytes(), [0xA5; 84]);
    }

    #[test]
    fn a_burst_that_does_not_end_is_wiped_and_is_the_last() {
        for direction in [0, 1] {
            let (mut engine, mut jobs) = engine_and_jobs();
            let functions = &mut engine.manager.chained.as_mut().unwrap().functions;
            let works = std::mem::replace(&mut functions.hash, ends_all_but_one);
            engine.submit(&mut jobs[direction..=direction]);
            assert_eq!(jobs[direction].status, JobStatus::AuthenticationFailed);
            assert_eq!(jobs[direction].buffer.bytes(), [[0xA5; 8].as_slice(), &[0; 76]].concat());
            engine.manager.chained.as_mut().unwrap().functions.hash = works;
            let (_, mut later) = engine_and_jobs();
            later.iter_mut().zip(&jobs).for_each(|(job, old)| job.key = old.key);
            engine.submit(&mut later);
            for job in later {
                assert_eq!((job.status, job.buffer.bytes()), (JobStatus::Fault, [0xA5; 84].as_slice()));
            }
        }
    }
}

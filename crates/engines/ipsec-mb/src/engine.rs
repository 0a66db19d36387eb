//! The safe engine.

use crate::NAME;
use crate::burst::{self, Bursts, Waiting};
use crate::ccm::{self, CcmKey};
use crate::chained::ChainedKey;
use crate::direct::{self, BATCH_SIZE, Scratch};
use crate::in_parts;
use crate::library::Library;
use crate::line;
use crate::manager::{ChaChaKey, GcmKey, Manager};
use crate::raw::SONAMES;
use std::ffi::OsStr;
use std::path::Path;
use testudo_crypto::{
    AesKey, Capability, Cipher, Direction, Engine, EngineError, Job, JobStatus, KeyId, KeyMaterial, KeyTable,
    Profile, Suite,
};
use zeroize::Zeroizing;

/// A key in the form that the library wants for its suite.
pub(crate) enum Form {
    Gcm(AesKey, GcmKey),
    ChaCha(ChaChaKey),
    Gmac(AesKey, GcmKey),
    Ccm(CcmKey),
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
    /// VPE, whose header begins with the nonce.
    Vpe,
    Gmac,
    /// AES-CCM with an IV of 8 bytes and an ICV of 16.
    Ccm16,
    /// The same with an ICV of 12 bytes.
    Ccm12,
    /// The same with an ICV of 8 bytes.
    Ccm8,
    /// AES-CCM without an IV (RFC 8750), with an ICV of 8 bytes.
    CcmImplicitIv,
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
            (Cipher::AesGcmVpe(_) | Cipher::ChaCha20Poly1305Vpe, 16) => Some(Self::Vpe),
            (Cipher::AesGmac(_), _) => Some(Self::Gmac),
            // The library has no AES-CCM with keys of 192 bits.
            (Cipher::AesCcm(AesKey::Aes192) | Cipher::AesCcmImplicitIv(AesKey::Aes192), _) => None,
            (Cipher::AesCcm(_), 16) => Some(Self::Ccm16),
            (Cipher::AesCcm(_), 12) => Some(Self::Ccm12),
            (Cipher::AesCcm(_), 8) => Some(Self::Ccm8),
            (Cipher::AesCcmImplicitIv(_), 8) => Some(Self::CcmImplicitIv),
            _ if burst::does(suite) => Some(Self::Chained),
            _ => None,
        }
    }

    /// Whether it needs jobs, whose layout must be known.
    fn has_jobs(self) -> bool {
        matches!(self, Self::Ccm16 | Self::Ccm12 | Self::Ccm8 | Self::CcmImplicitIv | Self::Chained)
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
    /// Whether 3DES and DES are worth it.
    does_des: bool,
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
        let does_des = manager.has_lanes_of_des();
        Ok(Self { keys, manager, scratch: Box::new([Scratch::EMPTY; _]), does_des })
    }
}

fn is_of_des(suite: Suite) -> bool {
    matches!(suite.cipher(), Cipher::DesCbc | Cipher::TripleDesCbc)
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
            kind if kind.has_jobs() && self.manager.chained.is_none() => return None,
            // Without AVX-512 the library takes 5,500 cycles for a byte of 3DES, and the portable engine 250.
            _ if is_of_des(suite) && !self.does_des => return None,
            Kind::Gmac if !self.manager.does_gmac() => return None,
            Kind::Chained => line::MAX_TEXT_BYTES,
            kind if kind.has_jobs() => ccm::MAX_TEXT_BYTES,
            _ => direct::MAX_TEXT_BYTES,
        };
        let takes_chains = match suite.cipher() {
            Cipher::AesGcm(_) | Cipher::AesGcmImplicitIv(_) | Cipher::AesGcmVpe(_) => {
                self.manager.does_gcm_in_parts()
            }
            Cipher::ChaCha20Poly1305 | Cipher::ChaCha20Poly1305ImplicitIv | Cipher::ChaCha20Poly1305Vpe => {
                true
            }
            _ => false,
        };
        Some(Capability { max_text_bytes, max_keys: self.keys.limit(), takes_chains, writes_frames: false })
    }

    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        self.keys.check_room(NAME)?;
        let refused = |why: String| EngineError::KeyRefused { engine: NAME, reason: why };
        let suite = key.suite();
        let kind = Kind::of(suite).filter(|_| self.capability(suite).is_some());
        let kind = kind.ok_or(EngineError::Unsupported { engine: NAME, suite })?;
        let form = match suite.cipher() {
            Cipher::AesGcm(length) | Cipher::AesGcmImplicitIv(length) | Cipher::AesGcmVpe(length) => {
                Form::Gcm(length, self.manager.expand_gcm(length, key.key()).map_err(refused)?)
            }
            Cipher::AesGmac(length) => {
                Form::Gmac(length, self.manager.expand_gcm(length, key.key()).map_err(refused)?)
            }
            Cipher::AesCcm(length) | Cipher::AesCcmImplicitIv(length) => {
                Form::Ccm(self.manager.expand_ccm(length, key.key()).map_err(refused)?)
            }
            Cipher::ChaCha20Poly1305 | Cipher::ChaCha20Poly1305ImplicitIv | Cipher::ChaCha20Poly1305Vpe => {
                Form::ChaCha(ChaChaKey::new(key.key()).ok_or_else(|| refused("length".to_owned()))?)
            }
            _ => Form::Chained(self.manager.expand_chained(key, direction).map_err(refused)?),
        };
        self.keys.insert(NAME, MbKey { form, kind, salt: key.nonce_salt(), direction })
    }

    // No preparer: the library expands keys with the manager that also does the packets, whose last error is
    // how it says that a key was refused. That manager belongs to the thread of the engine.

    fn remove(&mut self, key: KeyId) {
        drop(self.keys.remove(key));
        self.manager.wipe_contexts();
    }

    fn profile(&self, suite: Suite) -> Profile {
        // Lanes of HMAC-SHA-1 with AVX-512; the other cases have as many or half.
        Profile::of_depth(if Kind::of(suite).is_some_and(Kind::has_jobs) { 16 } else { 1 })
    }

    fn is_synchronous(&self) -> bool {
        true
    }

    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        let count = jobs.len();
        let (mut aeads, scratch) = self.manager.parts();
        let mut waiting = Waiting::new();
        let mut bursts = scratch.map(|scratch| Bursts { scratch, waiting: &mut waiting });
        let mut rest = &mut *jobs;
        while let Some(id) = rest.first().map(|job| job.key) {
            let key = self.keys.get(id);
            let kind = key.map_or(Kind::Aead16, |key| key.kind);
            let done = match (kind, &mut bursts) {
                (Kind::Aead16 | Kind::Aead12 | Kind::Aead8 | Kind::ImplicitIv | Kind::Vpe, _) => {
                    direct::batch(kind, &mut aeads, &self.keys, &mut self.scratch, rest)
                }
                (Kind::Ccm16 | Kind::Ccm12 | Kind::Ccm8 | Kind::CcmImplicitIv, Some(bursts)) => {
                    ccm::batch(kind, &mut bursts.scratch, &self.keys, &mut self.scratch, rest)
                }
                _ => run_length(rest, id),
            };
            let (run, behind) = rest.split_at_mut(done);
            match (key.map(|key| (&key.form, key)), &mut bursts) {
                // Keys may differ within a burst, so that these jobs are collected by kind.
                (Some((Form::Chained(key), _)), Some(bursts)) => bursts.push(key, run),
                (Some((Form::Gmac(length, form), key)), _) => {
                    if let Some(mut gmac) = aeads.gmac(*length) {
                        gmac.run(form, *key.salt, key.direction, run, direct::MAX_TEXT_BYTES);
                    }
                }
                // Not reached: without bursts no such key was installed.
                (Some((Form::Chained(_) | Form::Ccm(_), _)), None) => {
                    run.iter_mut().for_each(|job| job.status = JobStatus::Fault);
                }
                // Done above.
                _ => {}
            }
            rest = behind;
        }
        if let Some(mut bursts) = bursts {
            bursts.finish();
        }
        drop(waiting);
        if aeads.has_refused {
            in_parts::run(&mut aeads, &self.keys, jobs);
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
    use crate::chained::ChainedFunctions;
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

    /// An engine, and jobs for both directions of one SA, with ESN. All their bytes are 0xA5. It does DES on
    /// every CPU.
    fn engine_and_jobs(suite: &str, text_bytes: usize) -> (IpsecMbEngine, Vec<Job>) {
        let mut engine = IpsecMbEngine::open().expect("install the package libipsec-mb1");
        engine.does_des = true;
        let suite: Suite = suite.parse().unwrap();
        let material =
            KeyMaterial::new(suite, (7..).take(suite.keying_material_bytes()).collect::<Vec<_>>().into());
        let material = material.unwrap();
        let text_start = 8 + suite.iv_bytes();
        let bytes = vec![0xA5; text_start + text_bytes + suite.icv_bytes()];
        let job = |direction, key| Job {
            sequence: 1 << 32,
            key,
            text_start: u32::try_from(text_start).unwrap(),
            text_bytes: u32::try_from(text_bytes).unwrap(),
            esn: true,
            ..Job::new(testudo_packet::Buffer::copied(&bytes, 0, 0), direction, 0)
        };
        let directions = [Direction::Seal, Direction::Open];
        let jobs = directions.map(|d| job(d, engine.install(&material, d).unwrap()));
        (engine, jobs.into())
    }

    /// What a library neglects, without an error.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Lazy {
        Ciphering,
        Hashing,
        Queue,
    }

    impl Lazy {
        fn make(self, engine: &mut IpsecMbEngine) {
            let functions = &mut engine.manager.chained.as_mut().unwrap().functions;
            match self {
                Self::Ciphering => functions.cipher = ciphers_nothing,
                Self::Hashing => functions.hash = hashes_nothing,
                Self::Queue => functions.queue.submit = ends_at_once,
            }
        }
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

    unsafe extern "C" fn hashes_nothing(_: *mut ImbMgr, _: *mut ImbJob, count: u32, _: u32) -> u32 {
        count
    }

    /// Says that a job ended, without a look at it.
    unsafe extern "C" fn ends_at_once(manager: *mut ImbMgr) -> *mut ImbJob {
        manager.cast()
    }

    unsafe extern "C" fn ends_all_but_one(_: *mut ImbMgr, _: *mut ImbJob, count: u32, _: u32) -> u32 {
        count - 1
    }

    unsafe extern "C" fn ends_none(_: *mut ImbMgr) -> *mut ImbJob {
        std::ptr::null_mut()
    }

    unsafe extern "C" fn keeps_one(_: *mut ImbMgr) -> u32 {
        1
    }

    /// Suites, what they need of the library, and the lengths of text worth a try: with AES-CTR also less
    /// than a block.
    const NEEDS: [(&str, Lazy, &[usize]); 13] = [
        ("aes128-sha1", Lazy::Ciphering, &[48]),
        ("aes128-sha1", Lazy::Hashing, &[0, 48]),
        ("aes192-sha512", Lazy::Ciphering, &[48]),
        ("aes256-sha384", Lazy::Hashing, &[48]),
        ("aes192ctr-sha256", Lazy::Ciphering, &[0, 4, 15, 16, 48]),
        ("aes128ctr-sha512", Lazy::Hashing, &[4, 48]),
        ("3des-sha1", Lazy::Queue, &[0, 48]),
        ("des-sha256", Lazy::Queue, &[48]),
        ("aes128-md5", Lazy::Queue, &[48]),
        ("null-aescmac", Lazy::Queue, &[0, 48]),
        ("aes256ctr-aesxcbc", Lazy::Queue, &[4, 48]),
        ("aes128ccm16", Lazy::Queue, &[4, 48]),
        ("aes256ccm8iiv", Lazy::Queue, &[4, 48]),
    ];

    #[test]
    fn a_library_that_ciphers_or_hashes_nothing_seals_nothing() {
        for (suite, lazy, lengths) in NEEDS {
            for text_bytes in lengths {
                let (mut engine, mut jobs) = engine_and_jobs(suite, *text_bytes);
                lazy.make(&mut engine);
                engine.submit(&mut jobs[..1]);
                let what = format!("{suite}, {lazy:?}, {text_bytes} bytes");
                assert_eq!(jobs[0].status, JobStatus::AuthenticationFailed, "{what}");
                let text_start = jobs[0].text_start as usize;
                assert!(jobs[0].buffer.bytes()[text_start..].iter().all(|byte| *byte == 0), "{what}");
                assert_eq!(jobs[0].buffer.bytes()[..8], [0xA5; 8]);
            }
        }
    }

    /// What was not decrypted stays as it was; AES-CCM may have decrypted it, and it is wiped.
    #[test]
    fn a_library_that_hashes_nothing_finds_nothing_authentic() {
        for (suite, lazy, lengths) in NEEDS.into_iter().filter(|(_, lazy, _)| *lazy != Lazy::Ciphering) {
            for text_bytes in lengths {
                let (mut engine, mut jobs) = engine_and_jobs(suite, *text_bytes);
                lazy.make(&mut engine);
                engine.submit(&mut jobs[1..]);
                let what = format!("{suite}, {lazy:?}, {text_bytes} bytes");
                assert_eq!(jobs[1].status, JobStatus::AuthenticationFailed, "{what}");
                let text = &jobs[1].buffer.bytes()[jobs[1].text_start as usize..][..*text_bytes];
                let left = if suite.contains("ccm") { 0 } else { 0xA5 };
                assert!(text.iter().all(|byte| *byte == left), "{what}");
            }
        }
    }

    /// Ends packets that a broken library has touched, and gives it no other: it may hold their addresses.
    fn is_the_last(
        suite: &str,
        breaks: impl Fn(&mut ChainedFunctions),
        repairs: impl Fn(&mut ChainedFunctions),
    ) {
        for direction in [0, 1] {
            let (mut engine, mut jobs) = engine_and_jobs(suite, 48);
            breaks(&mut engine.manager.chained.as_mut().unwrap().functions);
            engine.submit(&mut jobs[direction..=direction]);
            assert_eq!(jobs[direction].status, JobStatus::AuthenticationFailed, "{suite}");
            let text = &jobs[direction].buffer.bytes()[jobs[direction].text_start as usize..][..48];
            assert_eq!(text, [0; 48], "{suite}");
            repairs(&mut engine.manager.chained.as_mut().unwrap().functions);
            let (_, mut later) = engine_and_jobs(suite, 48);
            later.iter_mut().zip(&jobs).for_each(|(job, old)| job.key = old.key);
            engine.submit(&mut later);
            for job in later {
                assert_eq!(job.status, JobStatus::Fault, "{suite}");
                assert!(job.buffer.bytes().iter().all(|byte| *byte == 0xA5), "{suite}");
            }
        }
    }

    #[test]
    fn a_burst_that_does_not_end_is_wiped_and_is_the_last() {
        let (engine, _) = engine_and_jobs("aes128-sha1", 48);
        let works = engine.manager.chained.as_ref().unwrap().functions.hash;
        is_the_last(
            "aes128-sha1",
            |functions| functions.hash = ends_all_but_one,
            |functions| functions.hash = works,
        );
    }

    #[test]
    fn a_queue_that_keeps_jobs_is_wiped_and_is_the_last() {
        for suite in ["null-aesxcbc", "aes128-md5", "aes128ccm16"] {
            let (engine, _) = engine_and_jobs(suite, 48);
            let queue = &engine.manager.chained.as_ref().unwrap().functions.queue;
            let (get_next, flush, size) = (queue.get_next, queue.flush, queue.size);
            is_the_last(suite, |f| f.queue.flush = ends_none, |f| f.queue.flush = flush);
            is_the_last(suite, |f| f.queue.size = keeps_one, |f| f.queue.size = size);
            is_the_last(suite, |f| f.queue.get_next = ends_none, |f| f.queue.get_next = get_next);
        }
    }

    #[test]
    fn a_queue_that_ends_more_jobs_than_it_got_is_not_used_again() {
        let (engine, _) = engine_and_jobs("null-aescmac", 48);
        let works = engine.manager.chained.as_ref().unwrap().functions.queue.get_completed;
        is_the_last(
            "null-aescmac",
            |f| (f.queue.submit, f.queue.get_completed) = (ends_at_once, ends_at_once),
            |f| f.queue.get_completed = works,
        );
    }

    #[test]
    fn what_the_library_lacks_is_not_offered() {
        let engine = IpsecMbEngine::open().expect("install the package libipsec-mb1");
        let lacking = Suite::ALL.iter().filter(|suite| !is_of_des(**suite));
        let lacking: Vec<_> = lacking.filter(|suite| engine.capability(**suite).is_none()).collect();
        let names: Vec<_> = lacking.iter().map(|suite| suite.to_string()).collect();
        let all = ["aes192ccm8", "aes192ccm12", "aes192ccm16", "aes192ccm8iiv"];
        assert_eq!(names, if engine.manager.chained.is_some() { all.to_vec() } else { Vec::new() });
    }

    /// Elsewhere the portable engine does it, in a twentieth of the time.
    #[test]
    fn des_is_offered_where_the_library_has_lanes_for_it() {
        let engine = IpsecMbEngine::open().expect("install the package libipsec-mb1");
        let has_lanes = engine.description().ends_with("AVX512") && engine.manager.chained.is_some();
        let suites: Vec<_> = Suite::ALL.iter().filter(|suite| is_of_des(**suite)).collect();
        assert!(suites.len() >= 10, "{suites:?}");
        for suite in suites {
            assert_eq!(engine.capability(*suite).is_some(), has_lanes, "{suite}");
        }
    }
}

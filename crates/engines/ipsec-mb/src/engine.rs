//! The safe engine.

use crate::NAME;
use crate::burst::{self, Bursts, Waiting};
use crate::chained::ChainedKey;
use crate::library::Library;
use crate::manager::{Aeads, ChaChaKey, GcmKey, ICV_BYTES, Icv, Manager, Pass, same_icv};
use crate::raw::SONAMES;
use std::ffi::OsStr;
use std::path::Path;
use testudo_crypto::{
    AesKey, Capability, Cipher, Direction, Engine, EngineError, Job, JobParts, JobStatus, KeyId, KeyMaterial,
    KeyTable, Suite,
};

/// The longest text: more than an IP datagram can carry, and far below the ciphers' limits.
const MAX_TEXT_BYTES: usize = 65_535;

/// Packets that are decrypted before the first of them is judged.
const BATCH_SIZE: usize = 64;

/// A key in the form that the library wants for its suite.
enum Form {
    Gcm128(GcmKey),
    Gcm256(GcmKey),
    ChaCha(ChaChaKey),
    Chained(ChainedKey),
}

/// One key and the direction that it may be used for.
struct MbKey {
    form: Form,
    direction: Direction,
}

/// The engine on intel-ipsec-mb. Synchronous: every job ends inside `submit`.
pub struct IpsecMbEngine {
    keys: KeyTable<MbKey>,
    manager: Manager,
    /// The computed ICVs of the packets of a batch, until they are compared.
    computed: Box<[Icv; BATCH_SIZE]>,
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
        let computed = Box::new([[0; _]; _]);
        Ok(Self { keys, manager, computed })
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
        let max_text_bytes = match (suite.cipher(), suite.icv_bytes()) {
            (Cipher::AesGcm(_) | Cipher::ChaCha20Poly1305, ICV_BYTES) => MAX_TEXT_BYTES,
            _ if burst::does(suite) && self.manager.chained.is_some() => burst::MAX_TEXT_BYTES,
            _ => return None,
        };
        Some(Capability { max_text_bytes, max_keys: self.keys.limit() })
    }

    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        self.keys.check_room(NAME)?;
        let refused = |why: String| EngineError::KeyRefused { engine: NAME, reason: why };
        let suite = key.suite();
        self.capability(suite).ok_or(EngineError::Unsupported { engine: NAME, suite })?;
        let form = match suite.cipher() {
            Cipher::AesGcm(AesKey::Aes128) => {
                Form::Gcm128(self.manager.expand_gcm(key.key()).map_err(refused)?)
            }
            Cipher::AesGcm(AesKey::Aes256) => {
                Form::Gcm256(self.manager.expand_gcm(key.key()).map_err(refused)?)
            }
            Cipher::ChaCha20Poly1305 => {
                Form::ChaCha(ChaChaKey::new(key.key()).ok_or_else(|| refused("length".to_owned()))?)
            }
            Cipher::AesCbc(_) | Cipher::Null => {
                let expanded = self.manager.expand_chained(suite, direction, key.key(), key.integrity_key());
                Form::Chained(expanded.map_err(refused)?)
            }
        };
        self.keys.insert(NAME, MbKey { form, direction })
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
            if let Some(MbKey { form: Form::Chained(key), .. }) = self.keys.get(id) {
                let (run, behind) = rest.split_at_mut(run_length(rest, id));
                match &mut bursts {
                    // Keys may differ within a burst, so that these jobs are collected by kind.
                    Some(bursts) => bursts.push(key, run),
                    // Not reached: without bursts no such key was installed.
                    None => run.iter_mut().for_each(|job| job.status = JobStatus::Fault),
                }
                rest = behind;
            } else {
                let done = batch(&mut aeads, &self.keys, &mut self.computed, rest);
                rest = &mut rest[done..];
            }
        }
        if let Some(bursts) = &mut bursts {
            bursts.finish();
        }
        count
    }
}

/// How many jobs at the front have this key.
#[inline]
fn run_length(jobs: &[Job], key: KeyId) -> usize {
    jobs.iter().take_while(|job| job.key == key).count()
}

/// Does up to [`BATCH_SIZE`] jobs, only as far as the next one for bursts, and judges them when all are
/// done. The first job is not for bursts, so that at least one is done. Returns their number.
///
/// In two loops, and without writing to a job before its turn: a vector load that overlaps a recent narrower
/// or masked store fails store-to-load forwarding and waits until the store has reached the cache. Such
/// stores are ours of the computed ICV, and the library's of AAD and nonce.
fn batch(
    aeads: &mut Aeads<'_>,
    keys: &KeyTable<MbKey>,
    computed: &mut [Icv; BATCH_SIZE],
    jobs: &mut [Job],
) -> usize {
    let longest = jobs.len().min(BATCH_SIZE);
    let batch = &mut jobs[..longest];
    let mut at = 0;
    while let Some(id) = batch.get(at).map(|job| job.key) {
        let same = run_length(&batch[at..], id);
        let (run, computed) = (&mut batch[at..at + same], &mut computed[at..]);
        match keys.get(id) {
            Some(MbKey { form, direction }) => match form {
                Form::Gcm128(key) => each(&mut aeads.gcm(false), key, *direction, run, computed),
                Form::Gcm256(key) => each(&mut aeads.gcm(true), key, *direction, run, computed),
                Form::ChaCha(key) => each(&mut aeads.chacha(), key, *direction, run, computed),
                Form::Chained(_) => break,
            },
            None => run.iter_mut().for_each(|job| job.status = JobStatus::Fault),
        }
        at += same;
    }
    for (job, computed) in batch[..at].iter_mut().zip(computed.iter()) {
        if job.status == JobStatus::Pending {
            job.status = match job.direction {
                Direction::Seal => judge_sealed(job),
                Direction::Open => judge_opened(job, computed),
            };
        }
    }
    at
}

/// Does jobs under one key; they stay pending until they are judged.
fn each<P: Pass>(pass: &mut P, key: &P::Key, direction: Direction, jobs: &mut [Job], computed: &mut [Icv]) {
    match direction {
        Direction::Seal => {
            jobs.iter_mut().for_each(mark);
            jobs.iter_mut().for_each(|job| job.status = seal(pass, key, job));
        }
        Direction::Open => {
            for (job, computed) in jobs.iter_mut().zip(computed) {
                job.status = decrypt(pass, key, job, computed);
            }
        }
    }
}

/// Fills the ICV's field until the library has written it. One in 2^128 packets has it as its ICV, and is
/// lost.
const NOT_WRITTEN: Icv = *b"no ICV was made!";

/// Fills the ICV's field: should the library ever return without computing, no plaintext may leave. In a loop
/// before the packets are encrypted, because the library's last load of a text overlaps this store.
#[inline]
fn mark(job: &mut Job) {
    if let Some(Work { icv, .. }) = split(job, Direction::Seal) {
        *icv = NOT_WRITTEN;
    }
}

/// Encrypts one packet, which is judged later; if the key or the buffer does not allow it, it is a fault and
/// untouched.
#[inline]
fn seal<P: Pass>(pass: &mut P, key: &P::Key, job: &mut Job) -> JobStatus {
    let Some(Work { text, icv, nonce, aad }) = split(job, Direction::Seal) else { return JobStatus::Fault };
    pass.seal(key, nonce, aad, text, icv);
    JobStatus::Pending
}

/// The verdict on an encrypted packet. Later, because a load of the ICV just after the library's stores fails
/// store-to-load forwarding: 15 cycles of a short packet.
#[inline]
fn judge_sealed(job: &mut Job) -> JobStatus {
    match split(job, Direction::Seal) {
        Some(Work { icv, .. }) if *icv != NOT_WRITTEN => JobStatus::Done,
        Some(Work { text, icv, .. }) => spoil(text, icv),
        // Unreachable: the job was split before.
        None => JobStatus::AuthenticationFailed,
    }
}

/// Wipes text that may be plaintext or ciphertext. Not a fault: another engine would encrypt what may already
/// be encrypted, under the same nonce, which restores the plaintext.
#[cold]
fn spoil(text: &mut [u8], icv: &mut Icv) -> JobStatus {
    text.fill(0);
    icv.fill(0);
    JobStatus::AuthenticationFailed
}

/// Decrypts one packet; its ICV is compared later.
#[inline]
fn decrypt<P: Pass>(pass: &mut P, key: &P::Key, job: &mut Job, computed: &mut Icv) -> JobStatus {
    let Some(Work { text, icv, nonce, aad }) = split(job, Direction::Open) else { return JobStatus::Fault };
    // Should the library ever return without computing, this differs from whatever was received.
    *computed = icv.map(|byte| !byte);
    pass.decrypt(key, nonce, aad, text, computed);
    JobStatus::Pending
}

/// The verdict on a decrypted packet; if its ICV is wrong, the decrypted text is wiped.
#[inline]
fn judge_opened(job: &mut Job, computed: &Icv) -> JobStatus {
    match split(job, Direction::Open) {
        Some(Work { icv, .. }) if same_icv(icv, computed) => JobStatus::Done,
        Some(Work { text, .. }) => {
            text.fill(0);
            JobStatus::AuthenticationFailed
        }
        // Unreachable: the job was split before.
        None => JobStatus::AuthenticationFailed,
    }
}

/// The parts of an AEAD's job, with an ICV of the length that every suite here has.
struct Work<'a> {
    text: &'a mut [u8],
    icv: &'a mut Icv,
    nonce: &'a [u8; 12],
    aad: &'a [u8],
}

/// Splits a job that this key may do; `None` for any other.
#[inline]
fn split(job: &mut Job, direction: Direction) -> Option<Work<'_>> {
    if job.direction != direction || job.text_bytes as usize > MAX_TEXT_BYTES {
        return None;
    }
    let JobParts { text, icv, nonce, aad } = job.parts(ICV_BYTES)?;
    Some(Work { text, icv: icv.as_mut_array()?, nonce, aad })
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
            buffer: testudo_packet::Buffer::copied(&[0xA5; 24 + 48 + 12], 0, 0),
            cookie: 0,
            text_start: 24,
            text_bytes: 48,
            key,
            nonce: [0; 12],
            aad: testudo_crypto::Aad::new(1, 1 << 32, true),
            direction,
            status: JobStatus::Pending,
        };
        let directions = [Direction::Seal, Direction::Open];
        let jobs = directions.map(|d| job(d, engine.install(&material, d).unwrap()));
        (engine, jobs.into())
    }

    /// A library that ignores its parameters and reports no error.
    struct Lazy;

    impl Pass for Lazy {
        type Key = ();

        fn seal(&mut self, (): &(), _: &[u8; 12], _: &[u8], _: &mut [u8], _: &mut Icv) {}

        fn decrypt(&mut self, (): &(), _: &[u8; 12], _: &[u8], _: &mut [u8], _: &mut Icv) {}
    }

    #[test]
    fn a_library_that_encrypts_nothing_lets_nothing_out_in_clear() {
        let (_, mut jobs) = engine_and_jobs();
        let job = &mut jobs[0];
        // Room for 16 bytes of ICV, where this job's suite has 12.
        job.text_bytes = 44;
        mark(job);
        assert_eq!(seal(&mut Lazy, &(), job), JobStatus::Pending);
        assert_eq!(judge_sealed(job), JobStatus::AuthenticationFailed);
        assert_eq!(job.buffer.bytes(), [[0xA5; 24].as_slice(), &[0; 60]].concat());
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

//! The safe engine.

use crate::NAME;
use crate::burst::{self, Bursts, Waiting};
use crate::chained::ChainedKey;
use crate::library::Library;
use crate::manager::{Aeads, ChaChaKey, GcmKey, ICV_BYTES, Icv, Manager, Pass, same_icv};
use crate::raw::SONAMES;
use arrayvec::ArrayVec;
use std::ffi::OsStr;
use std::path::Path;
use testudo_crypto::{
    Aad, AesKey, Capability, Cipher, Direction, Engine, EngineError, Job, JobStatus, KeyId, KeyMaterial,
    KeyTable, Suite,
};
use zeroize::Zeroizing;

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
    salt: Zeroizing<[u8; 4]>,
    direction: Direction,
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
        let max_text_bytes = match (suite.cipher(), suite.icv_bytes()) {
            (Cipher::AesGcm(AesKey::Aes128 | AesKey::Aes256) | Cipher::ChaCha20Poly1305, ICV_BYTES) => {
                MAX_TEXT_BYTES
            }
            _ if burst::does(suite) && self.manager.chained.is_some() => burst::MAX_TEXT_BYTES,
            _ => return None,
        };
        Some(Capability { max_text_bytes, max_keys: self.keys.limit() })
    }

    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        self.keys.check_room(NAME)?;
        let refused = |why: String| EngineError::KeyRefused { engine: NAME, reason: why };
        let suite = key.suite();
        let unsupported = EngineError::Unsupported { engine: NAME, suite };
        if self.capability(suite).is_none() {
            return Err(unsupported);
        }
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
            _ => return Err(unsupported),
        };
        self.keys.insert(NAME, MbKey { form, salt: key.nonce_salt(), direction })
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
                let done = batch(&mut aeads, &self.keys, &mut self.scratch, rest);
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
/// In loops, and without writing to a packet or its scratch space just before its turn: a vector load that
/// overlaps a recent narrower or masked store fails store-to-load forwarding and waits until the store has
/// reached the cache. Such stores are ours of nonce, AAD and the computed ICV.
fn batch<'a>(
    aeads: &mut Aeads<'_>,
    keys: &KeyTable<MbKey>,
    scratch: &'a mut [Scratch; BATCH_SIZE],
    jobs: &'a mut [Job],
) -> usize {
    let longest = jobs.len().min(BATCH_SIZE);
    let (mut rest, mut at) = (&mut jobs[..longest], 0);
    let mut scratch = scratch.iter_mut();
    let mut works = ArrayVec::<Work<'a>, BATCH_SIZE>::new();
    while let Some(id) = rest.first().map(|job| job.key) {
        let key = keys.get(id);
        if matches!(key, Some(MbKey { form: Form::Chained(_), .. })) {
            break;
        }
        let (run, behind) = rest.split_at_mut(run_length(rest, id));
        at += run.len();
        rest = behind;
        let Some(MbKey { form, salt, direction }) = key else {
            run.iter_mut().for_each(|job| job.status = JobStatus::Fault);
            continue;
        };
        let from = works.len();
        works.extend(
            run.iter_mut().zip(&mut scratch).filter_map(|(job, s)| Work::new(job, **salt, *direction, s)),
        );
        let works = &mut works[from..];
        match form {
            Form::Gcm128(key) => each(&mut aeads.gcm(false), key, *direction, works),
            Form::Gcm256(key) => each(&mut aeads.gcm(true), key, *direction, works),
            Form::ChaCha(key) => each(&mut aeads.chacha(), key, *direction, works),
            Form::Chained(_) => break,
        }
    }
    works.iter_mut().for_each(Work::judge);
    at
}

/// Does packets under one key; they stay pending until they are judged.
fn each<P: Pass>(pass: &mut P, key: &P::Key, direction: Direction, works: &mut [Work<'_>]) {
    match direction {
        Direction::Seal => {
            for Work { text, icv, scratch, .. } in works {
                pass.seal(key, &scratch.nonce, scratch.aad.as_bytes(), text, icv);
            }
        }
        Direction::Open => {
            for Work { text, scratch: Scratch { nonce, aad, computed }, .. } in works {
                pass.decrypt(key, nonce, aad.as_bytes(), text, computed);
            }
        }
    }
}

/// What the library needs beside one packet. On a cache line of its own, so that none of the library's vector
/// loads crosses two.
#[repr(C, align(64))]
struct Scratch {
    /// The computed ICV of a packet to be opened, until it is compared.
    computed: Icv,
    aad: Aad,
    nonce: [u8; 12],
}

const _: () = assert!(size_of::<Scratch>() == 64);

impl Scratch {
    const EMPTY: Self = Self { nonce: [0; 12], aad: Aad::EMPTY, computed: [0; _] };
}

/// Fills the ICV's field until the library has written it. One in 2^128 packets has it as its ICV, and is
/// lost.
const NOT_WRITTEN: Icv = *b"no ICV was made!";

/// Bytes of SPI, the number's low half and the IV of the combined modes here, which precede the text.
const FRONT_BYTES: usize = 16;

/// A packet of a combined mode, with an ICV of the length that every such suite here has.
struct Work<'a> {
    text: &'a mut [u8],
    icv: &'a mut Icv,
    scratch: &'a mut Scratch,
    direction: Direction,
    status: &'a mut JobStatus,
}

impl<'a> Work<'a> {
    /// Takes a job apart and writes its nonce and AAD, and what its ICV cannot be: should the library ever
    /// return without computing, no plaintext may leave, and nothing is authentic. A job that the key may not
    /// do, or that its buffer does not hold, is a fault and untouched.
    #[inline]
    fn new(job: &'a mut Job, salt: [u8; 4], direction: Direction, scratch: &'a mut Scratch) -> Option<Self> {
        let high_half = job.high_half();
        let is_esp = job.text_start.wrapping_sub(job.auth_start) as usize == FRONT_BYTES;
        let may_do = is_esp && job.direction == direction && job.text_bytes as usize <= MAX_TEXT_BYTES;
        let Job { buffer, auth_start, text_bytes, status, .. } = job;
        let packet = buffer.bytes_mut().get_mut(*auth_start as usize..).filter(|_| may_do);
        let Some((front, text, icv)) = packet.and_then(|packet| split(packet, *text_bytes as usize)) else {
            *status = JobStatus::Fault;
            return None;
        };
        let [header @ .., _, _, _, _, _, _, _, _] = front;
        let [_, _, _, _, _, _, _, _, iv @ ..] = front;
        scratch.nonce[..4].copy_from_slice(&salt);
        scratch.nonce[4..].copy_from_slice(iv);
        scratch.aad = Aad::new(header, high_half);
        match direction {
            Direction::Seal => *icv = NOT_WRITTEN,
            Direction::Open => scratch.computed = icv.map(|byte| !byte),
        }
        Some(Self { text, icv, scratch, direction, status })
    }

    /// The verdict. Later, because a load of the ICV just after the library's stores fails store-to-load
    /// forwarding: 15 cycles of a short packet.
    ///
    /// A text that may be plaintext or ciphertext is wiped, and is no fault: another engine would encrypt
    /// what may already be encrypted, under the same nonce, which restores the plaintext.
    #[inline]
    fn judge(&mut self) {
        let is_right = match self.direction {
            Direction::Seal => *self.icv != NOT_WRITTEN,
            Direction::Open => same_icv(self.icv, &self.scratch.computed),
        };
        *self.status = if is_right { JobStatus::Done } else { self.spoil() };
    }

    #[cold]
    fn spoil(&mut self) -> JobStatus {
        self.text.fill(0);
        if self.direction == Direction::Seal {
            self.icv.fill(0);
        }
        JobStatus::AuthenticationFailed
    }
}

/// Header with IV, text, ICV.
type Parts<'a> = (&'a [u8; FRONT_BYTES], &'a mut [u8], &'a mut Icv);

/// The parts of an ESP packet whose text has this length; `None` if it is shorter.
#[inline]
fn split(packet: &mut [u8], text_bytes: usize) -> Option<Parts<'_>> {
    let (front, rest) = packet.split_first_chunk_mut()?;
    let (text, rest) = rest.split_at_mut_checked(text_bytes)?;
    Some((front, text, rest.first_chunk_mut()?))
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
        // A combined mode's: an IV of 8 bytes, and room for 16 bytes of ICV.
        (job.text_start, job.text_bytes) = (16, 52);
        let mut scratch = Scratch::EMPTY;
        let mut work = Work::new(job, [0; 4], Direction::Seal, &mut scratch).unwrap();
        each(&mut Lazy, &(), Direction::Seal, std::slice::from_mut(&mut work));
        work.judge();
        assert_eq!(job.status, JobStatus::AuthenticationFailed);
        assert_eq!(job.buffer.bytes(), [[0xA5; 16].as_slice(), &[0; 68]].concat());
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

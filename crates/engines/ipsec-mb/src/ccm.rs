//! AES-CCM (RFC 4309) in the library's queue of jobs, in batches: its CBC-MAC is a chain, so that packets are
//! done in parallel, even under different keys. All functions are safe.
//!
//! The library has keys of 128 and 256 bits. It decrypts before it knows the ICV: a text whose ICV is wrong
//! is wiped ([`Work::judge`]).

use crate::chained::AesKeys;
use crate::direct::{self, BATCH_SIZE, Work};
use crate::engine::{Form, Kind, MbKey, run_length};
use crate::manager::Scratch;
use crate::queue::Queue;
use crate::raw::{
    AUTH_AES_CCM, CIPHER_CCM, DIR_DECRYPT, DIR_ENCRYPT, ImbJob, ORDER_CIPHER_HASH, ORDER_HASH_CIPHER,
};
use arrayvec::ArrayVec;
use std::ptr::{null, without_provenance};
use testudo_crypto::{AesKey, Direction, Job, JobStatus, KeyTable};

/// The longest text: the library counts bytes in 16 bits, including its own first blocks and the AAD.
pub(crate) const MAX_TEXT_BYTES: usize = 65_400;

/// Bytes of a nonce: a salt of 3 bytes, and the IV or number (RFC 4309 4, RFC 8750 4).
const NONCE_BYTES: usize = 11;

/// A key: round keys, and bytes of the key that they were made of.
pub(crate) struct CcmKey {
    round_keys: Box<AesKeys>,
    key_bytes: u64,
}

impl CcmKey {
    /// `None` for a length that the library does not do.
    pub(crate) fn new(length: AesKey, round_keys: Box<AesKeys>) -> Option<Self> {
        let key_bytes = match length {
            AesKey::Aes128 => 16,
            AesKey::Aes192 => return None,
            AesKey::Aes256 => 32,
        };
        Some(Self { round_keys, key_bytes })
    }
}

/// As [`direct::batch`], for jobs of a kind of AES-CCM.
pub(crate) fn batch(
    kind: Kind,
    library: &mut Scratch<'_>,
    keys: &KeyTable<MbKey>,
    scratch: &mut [direct::Scratch; BATCH_SIZE],
    jobs: &mut [Job],
) -> usize {
    match kind {
        Kind::Ccm12 => batch_of::<8, 12>(kind, library, keys, scratch, jobs),
        Kind::Ccm8 => batch_of::<8, 8>(kind, library, keys, scratch, jobs),
        Kind::CcmImplicitIv => batch_of::<0, 8>(kind, library, keys, scratch, jobs),
        _ => batch_of::<8, 16>(Kind::Ccm16, library, keys, scratch, jobs),
    }
}

/// Packets under their keys.
type Works<'a, const ICV: usize> = ArrayVec<(&'a CcmKey, Work<'a, ICV>), BATCH_SIZE>;

fn batch_of<'a, const IV: usize, const ICV: usize>(
    kind: Kind,
    library: &mut Scratch<'_>,
    keys: &'a KeyTable<MbKey>,
    scratch: &'a mut [direct::Scratch; BATCH_SIZE],
    jobs: &'a mut [Job],
) -> usize {
    let longest = jobs.len().min(BATCH_SIZE);
    let (mut rest, mut at) = (&mut jobs[..longest], 0);
    let mut scratch = scratch.iter_mut();
    let mut works = Works::<ICV>::new();
    while let Some(id) = rest.first().map(|job| job.key) {
        let Some(MbKey { form: Form::Ccm(key), salt, direction, .. }) =
            keys.get(id).filter(|key| key.kind == kind)
        else {
            break;
        };
        let (run, behind) = rest.split_at_mut(run_length(rest, id));
        at += run.len();
        rest = behind;
        for (job, scratch) in run.iter_mut().zip(&mut scratch) {
            if library.chained.is_broken || job.text_bytes as usize > MAX_TEXT_BYTES {
                job.status = JobStatus::Fault;
            } else if let Some(work) = Work::new::<IV>(job, **salt, *direction, scratch) {
                works.push((key, work));
            }
        }
    }
    let has_ended = works.is_empty() || run(library, &mut works);
    library.chained.is_broken |= !has_ended;
    for (_, work) in &mut works {
        if has_ended { work.judge() } else { work.give_up() }
    }
    at
}

/// Encrypts or decrypts packets and computes their ICVs. `false` if not all of them ended.
fn run<const ICV: usize>(library: &mut Scratch<'_>, works: &mut Works<'_, ICV>) -> bool {
    let manager = library.pointer();
    // SAFETY: the manager is alive and nothing else uses it while `library` borrows it; the functions are its
    // own, and versions without jobs of this layout have no `chained`.
    let mut queue = unsafe { Queue::new(manager, &library.chained.functions.queue) };
    for (key, work) in works {
        // The other way round than for other modes: the plaintext is authenticated.
        let (cipher_direction, chain_order) = match work.direction {
            Direction::Seal => (DIR_ENCRYPT, ORDER_HASH_CIPHER),
            Direction::Open => (DIR_DECRYPT, ORDER_CIPHER_HASH),
        };
        let auth_tag_output = match work.direction {
            Direction::Seal => work.icv.as_mut_ptr(),
            Direction::Open => work.scratch.computed.as_mut_ptr(),
        };
        let (text, bytes) = (work.text.as_mut_ptr(), work.text.len() as u64);
        let aad = work.scratch.aad.as_bytes();
        let nonce = &work.scratch.nonce[work.scratch.nonce.len() - NONCE_BYTES..];
        let round_keys = key.round_keys.encrypt().cast();
        let job = ImbJob {
            enc_keys: round_keys,
            dec_keys: round_keys,
            key_len_in_bytes: key.key_bytes,
            src: text,
            dst: text,
            msg_len_to_cipher_in_bytes: bytes,
            msg_len_to_hash_in_bytes: bytes,
            iv: nonce.as_ptr(),
            iv_len_in_bytes: nonce.len() as u64,
            auth_tag_output,
            auth_tag_output_len_in_bytes: ICV as u64,
            algorithm_fields: [aad.as_ptr(), without_provenance(aad.len()), null()],
            cipher_mode: CIPHER_CCM,
            cipher_direction,
            hash_alg: AUTH_AES_CCM,
            chain_order,
            ..ImbJob::EMPTY
        };
        // SAFETY: the job reads round keys for a key of that length, 11 bytes of nonce, the AAD of 8 or 12
        // bytes and the text, which it replaces; it writes `ICV` bytes of ICV, to the packet or to 16 bytes
        // beside it. All of that is borrowed by `works`, and nobody touches it before `finish` has returned.
        unsafe { queue.submit(&job) };
    }
    queue.finish()
}

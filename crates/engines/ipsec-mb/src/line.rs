//! Packets of one suite and direction on their way through the library's jobs: filling slots, judging
//! results.
//!
//! ```text
//!   fill        a slot for each packet: where it is, what is hashed and what is ciphered
//!   seal        cipher all, then hash all; the library writes each ICV where it belongs
//!   open        hash all, compare, then decipher those that are authentic
//! ```
//!
//! One job serves the call that ciphers and the call that hashes: each reads only its own fields.
//!
//! The high half of an extended sequence number is hashed after the text and is no part of the packet. As the
//! library hashes one run of bytes, it temporarily replaces the start of the ICV.
//!
//! **A library that did nothing** is noticed by what it should have changed: the ICV's field, the block that
//! becomes the IV, or with AES-CTR the first 16 bytes of text. A text shorter than that is encrypted in a
//! block beside the packet, filled up with zeros, so that the key stream shows.

use crate::chained::KeyPointers;
use crate::raw::{
    AUTH_AES_CMAC, AUTH_AES_XCBC, AUTH_HMAC_MD5, AUTH_HMAC_SHA_1, AUTH_HMAC_SHA_256, AUTH_HMAC_SHA_384,
    AUTH_HMAC_SHA_512, AUTH_NULL, CIPHER_CBC, CIPHER_CTR, CIPHER_DES, CIPHER_DES3, CIPHER_NULL, DIR_DECRYPT,
    DIR_ENCRYPT, ImbJob, MAX_BURST,
};
use crate::shape::{Mode, Shape};
use std::ffi::c_uint;
use subtle::ConstantTimeEq;
use testudo_crypto::{Cipher, Direction, Integrity, Job, JobParts, JobStatus, Suite};
use zeroize::Zeroize;

/// Most packets in a burst.
pub(crate) const BURST_PACKETS: usize = MAX_BURST as usize;

/// The longest text: the library counts bytes in 16 bits, including header, IV and high half. The text of
/// every IP datagram fits.
pub(crate) const MAX_TEXT_BYTES: usize = 65_500;

/// The most before the ICV: ESP header, IV, text.
const fn max_icv_at(suite: Suite) -> usize {
    8 + suite.iv_bytes() + MAX_TEXT_BYTES
}
const _: () = assert!(max_icv_at(Suite::AES128_SHA1) + HIGH_HALF_BYTES <= u16::MAX as usize);

/// Bytes of the high half of an extended sequence number.
const HIGH_HALF_BYTES: usize = 4;

/// Bytes of the salt and the IV of AES-CTR, which together are its nonce (RFC 3686 4). The library counts
/// blocks after them from 1, as that RFC does.
const NONCE_BYTES: usize = 12;
const SALT_BYTES: usize = 4;

/// Fills the end of the ICV's field until the library has written it. One in 2^64 packets has it there, and
/// is lost.
const NOT_WRITTEN: [u8; 8] = *b"not made";

/// The IV of the block that becomes the packet's IV ([`Job`] says why).
static ZEROS: [u8; 16] = [0; 16];

/// An ICV, or a block.
type Digest = [u8; 32];
type Block = [u8; 16];

/// How the library does an algorithm: in bursts, or only in its queue of jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    Nothing,
    Burst,
    Queue,
}

/// Packets of one suite and direction: jobs prepared except for addresses and lengths, and room for digests.
pub(crate) struct Line {
    pub(crate) suite: Suite,
    pub(crate) direction: Direction,
    pub(crate) shape: usize,
    pub(crate) ciphering: By,
    pub(crate) hashing: By,
    pub(crate) cipher: c_uint,
    pub(crate) cipher_direction: c_uint,
    pub(crate) key_bytes: c_uint,
    pub(crate) hash: c_uint,
    pub(crate) jobs: Box<[ImbJob; BURST_PACKETS]>,
    /// For packets to be opened, their computed ICVs; for packets to be sealed, the block that becomes the
    /// IV, or AES-CTR's first 16 bytes of text.
    digests: Box<[Digest; BURST_PACKETS]>,
    /// The bytes that the high halves replaced.
    under_high_halves: Box<[[u8; HIGH_HALF_BYTES]; BURST_PACKETS]>,
    /// AES-CTR's, of 12 bytes.
    nonces: Box<[Block; BURST_PACKETS]>,
    /// AES-CTR's texts that are shorter than a block, and zeros.
    short_texts: Box<[Block; BURST_PACKETS]>,
    /// Slots in use since digests were last wiped.
    used: usize,
}

impl Line {
    /// `None` for a combined mode.
    pub(crate) fn new(suite: Suite, direction: Direction, shape: usize) -> Option<Self> {
        let (cipher_direction, iv) = match direction {
            Direction::Seal => (DIR_ENCRYPT, ZEROS.as_ptr()),
            Direction::Open => (DIR_DECRYPT, std::ptr::null()),
        };
        let (ciphering, cipher, iv_bytes) = match suite.cipher() {
            Cipher::Null => (By::Nothing, CIPHER_NULL, 0),
            Cipher::AesCbc(_) => (By::Burst, CIPHER_CBC, 16),
            Cipher::AesCtr(_) => (By::Burst, CIPHER_CTR, NONCE_BYTES as u64),
            Cipher::DesCbc => (By::Queue, CIPHER_DES, 8),
            Cipher::TripleDesCbc => (By::Queue, CIPHER_DES3, 8),
            _ => return None,
        };
        let (hashing, hash) = match suite.integrity() {
            Integrity::HmacMd5 => (By::Queue, AUTH_HMAC_MD5),
            Integrity::HmacSha1 => (By::Burst, AUTH_HMAC_SHA_1),
            Integrity::HmacSha256 => (By::Burst, AUTH_HMAC_SHA_256),
            Integrity::HmacSha384 => (By::Burst, AUTH_HMAC_SHA_384),
            Integrity::HmacSha512 => (By::Burst, AUTH_HMAC_SHA_512),
            Integrity::AesXcbc => (By::Queue, AUTH_AES_XCBC),
            Integrity::AesCmac => (By::Queue, AUTH_AES_CMAC),
            Integrity::None => (By::Nothing, AUTH_NULL),
            Integrity::Combined => return None,
        };
        let key_bytes = c_uint::try_from(suite.key_bytes()).ok()?;
        let job = ImbJob {
            key_len_in_bytes: key_bytes.into(),
            iv,
            iv_len_in_bytes: iv_bytes,
            auth_tag_output_len_in_bytes: suite.icv_bytes() as u64,
            cipher_mode: cipher,
            cipher_direction,
            hash_alg: hash,
            ..ImbJob::EMPTY
        };
        Some(Self {
            suite,
            direction,
            shape,
            ciphering,
            hashing,
            cipher,
            cipher_direction,
            key_bytes,
            hash,
            jobs: Box::new([job; _]),
            digests: Box::new([[0; _]; _]),
            under_high_halves: Box::new([[0; _]; _]),
            nonces: Box::new([[0; _]; _]),
            short_texts: Box::new([[0; _]; _]),
            used: 0,
        })
    }

    /// Wipes the digests and texts of the last bursts.
    pub(crate) fn wipe(&mut self) {
        self.digests.iter_mut().take(self.used).for_each(Zeroize::zeroize);
        self.short_texts.iter_mut().take(self.used).for_each(Zeroize::zeroize);
        self.nonces.iter_mut().take(self.used).for_each(Zeroize::zeroize);
        self.used = 0;
    }

    /// Fills slot `at` for a job, and puts its high half after the text; `None`, with nothing changed, if the
    /// key may not do it.
    ///
    /// All addresses that the first call reads are set: those left from before belong to packets that may be
    /// gone.
    #[inline]
    pub(crate) fn fill<const SHAPE: usize>(
        &mut self,
        at: usize,
        key: &KeyPointers,
        job: &mut Job,
    ) -> Option<()> {
        let is_sealing = const { matches!(Shape::<SHAPE>::DIRECTION, Direction::Seal) };
        if job.direction != Shape::<SHAPE>::DIRECTION {
            return None;
        }
        let (slot, digest) = (self.jobs.get_mut(at)?, self.digests.get_mut(at)?);
        let under_high_half = self.under_high_halves.get_mut(at)?;
        let JobParts { packet, iv_at, text_at, icv_at, high_half, .. } = job.parts(Shape::<SHAPE>::SUITE)?;
        if icv_at > const { max_icv_at(Shape::<SHAPE>::SUITE) } {
            return None;
        }
        let hashed_bytes = prepare_icv::<SHAPE>(packet, icv_at, high_half, digest, under_high_half)?;
        let start = packet.as_mut_ptr();
        slot.src = start;
        slot.msg_len_to_hash_in_bytes = hashed_bytes;
        slot.algorithm_fields = key.mac;
        slot.enc_keys = key.encrypt.cast();
        slot.dec_keys = key.decrypt.cast();
        if Shape::<SHAPE>::MODE == Mode::Ctr {
            let nonce = self.nonces.get_mut(at)?;
            *nonce.first_chunk_mut()? = key.salt;
            nonce.get_mut(SALT_BYTES..NONCE_BYTES)?.copy_from_slice(packet.get(iv_at..text_at)?);
            slot.iv = nonce.as_ptr();
        }
        if !is_sealing {
            return Some(());
        }
        slot.auth_tag_output = start.wrapping_add(icv_at);
        let mut ciphered = (start, iv_at, icv_at - iv_at);
        match Shape::<SHAPE>::MODE {
            Mode::Null => {}
            Mode::Cbc16 => *digest.first_chunk_mut()? = *packet.get(iv_at..)?.first_chunk::<16>()?,
            Mode::Cbc8 => *digest.first_chunk_mut()? = *packet.get(iv_at..)?.first_chunk::<8>()?,
            Mode::Ctr => {
                let (text, first) = (packet.get(text_at..icv_at)?, digest.first_chunk_mut()?);
                if let Some(block) = text.first_chunk::<16>() {
                    *first = *block;
                    ciphered = (start, text_at, text.len());
                } else {
                    let short = self.short_texts.get_mut(at)?;
                    *short = [0; _];
                    short.iter_mut().zip(text).for_each(|(to, from)| *to = *from);
                    *first = *short;
                    slot.src = short.as_ptr();
                    ciphered = (short.as_mut_ptr(), 0, short.len());
                }
            }
        }
        let (base, from, bytes) = ciphered;
        slot.dst = base.wrapping_add(from);
        slot.cipher_start_src_offset_in_bytes = from as u64;
        slot.msg_len_to_cipher_in_bytes = bytes as u64;
        Some(())
    }

    /// After encryption and before authentication: short texts of AES-CTR go into their packets.
    #[inline]
    pub(crate) fn put_back_short_texts<const SHAPE: usize>(&mut self, jobs: &mut [&mut Job]) {
        if Shape::<SHAPE>::MODE != Mode::Ctr {
            return;
        }
        for ((job, short), slot) in jobs.iter_mut().zip(&*self.short_texts).zip(&mut *self.jobs) {
            // The job was split before.
            let Some(JobParts { packet, text_at, icv_at, .. }) = job.parts(Shape::<SHAPE>::SUITE) else {
                continue;
            };
            slot.src = packet.as_ptr();
            let text = packet.get_mut(text_at..icv_at).unwrap_or_default();
            if text.len() < short.len() {
                text.iter_mut().zip(short).for_each(|(to, from)| *to = *from);
            }
            if Shape::<SHAPE>::ICV_BYTES > 0 {
                slot.auth_tag_output = packet.as_mut_ptr().wrapping_add(icv_at);
            }
        }
    }

    /// Whether the library has done its work: the block that becomes the IV, or the text's first block, has
    /// changed (it stays the same for one in 2^128, with DES one in 2^64), and there is an ICV. `None` is
    /// unreachable: the job was split before.
    #[inline]
    pub(crate) fn is_sealed<const SHAPE: usize>(&self, at: usize, job: &mut Job) -> Option<bool> {
        let JobParts { packet, iv_at, text_at, icv_at, .. } = job.parts(Shape::<SHAPE>::SUITE)?;
        let is_hashed = Shape::<SHAPE>::ICV_BYTES == 0 || *packet.get(icv_at..)?.last_chunk()? != NOT_WRITTEN;
        let before = self.digests.get(at)?;
        let is_encrypted = match Shape::<SHAPE>::MODE {
            Mode::Null => true,
            Mode::Cbc16 => packet.get(iv_at..)?.first_chunk::<16>()? != before.first_chunk()?,
            Mode::Cbc8 => packet.get(iv_at..)?.first_chunk::<8>()? != before.first_chunk()?,
            Mode::Ctr => {
                let text = packet.get(text_at..icv_at)?;
                let block = text.first_chunk::<16>().unwrap_or(self.short_texts.get(at)?);
                block != before.first_chunk()?
            }
        };
        Some(is_hashed && is_encrypted)
    }

    /// Compares each packet's ICV with its digest, and fills slots again, from the first on, for those that
    /// are authentic and have a text to decrypt. Returns their number.
    pub(crate) fn judge<const SHAPE: usize>(&mut self, jobs: &mut [&mut Job]) -> usize {
        let mut authentic = 0;
        for (at, job) in jobs.iter_mut().enumerate() {
            let is_genuine = self.judge_one::<SHAPE>(at, job, &mut authentic).unwrap_or(false);
            job.status = if is_genuine { JobStatus::Done } else { JobStatus::AuthenticationFailed };
        }
        authentic
    }

    /// `None` is unreachable: the job was split before.
    #[inline]
    fn judge_one<const SHAPE: usize>(
        &mut self,
        at: usize,
        job: &mut Job,
        authentic: &mut usize,
    ) -> Option<bool> {
        let JobParts { packet, iv_at, text_at, icv_at, high_half, .. } = job.parts(Shape::<SHAPE>::SUITE)?;
        let icv = packet.get_mut(icv_at..)?;
        let mut is_genuine = true;
        if Shape::<SHAPE>::ICV_BYTES > 0 {
            if high_half.is_some() {
                *icv.first_chunk_mut()? = *self.under_high_halves.get(at)?;
            }
            is_genuine = same(icv, self.digests.get(at)?.get(..icv.len())?)?;
        }
        if is_genuine && icv_at > text_at && Shape::<SHAPE>::MODE != Mode::Null {
            let ImbJob { enc_keys, dec_keys, .. } = *self.jobs.get(at)?;
            // Not after `at`, so that only a slot that was judged is overwritten.
            let slot = self.jobs.get_mut(*authentic)?;
            let start = packet.as_mut_ptr();
            (slot.enc_keys, slot.dec_keys) = (enc_keys, dec_keys);
            slot.src = start;
            slot.dst = start.wrapping_add(text_at);
            slot.cipher_start_src_offset_in_bytes = text_at as u64;
            slot.msg_len_to_cipher_in_bytes = (icv_at - text_at) as u64;
            slot.iv = match Shape::<SHAPE>::MODE {
                Mode::Ctr => self.nonces.get(at)?.as_ptr(),
                _ => start.wrapping_add(iv_at),
            };
            *authentic += 1;
        }
        Some(is_genuine)
    }

    /// The first `count` jobs, about to be hashed; `None` if there are not so many. Digests of packets being
    /// opened wait to be compared.
    pub(crate) fn jobs_to_hash(&mut self, count: usize) -> Option<&mut [ImbJob]> {
        self.used = self.used.max(count);
        if self.direction == Direction::Open {
            for (slot, digest) in self.jobs.iter_mut().zip(&mut *self.digests).take(count) {
                slot.auth_tag_output = digest.as_mut_ptr();
            }
        }
        self.jobs.get_mut(..count)
    }

    /// Wipes text that may be plaintext or ciphertext, so that it is not taken for either. No other engine
    /// may do this job.
    #[cold]
    pub(crate) fn spoil(&self, job: &mut Job) {
        job.status = JobStatus::AuthenticationFailed;
        if let Some(JobParts { packet, iv_at, .. }) = job.parts(self.suite) {
            packet.iter_mut().skip(iv_at).for_each(|byte| *byte = 0);
        }
    }
}

/// Writes what the ICV cannot be, and the high half after the text, over the ICV's start. Returns how many
/// bytes are hashed. `None` is unreachable: the packet was split before.
#[inline(always)]
fn prepare_icv<const SHAPE: usize>(
    packet: &mut [u8],
    icv_at: usize,
    high_half: Option<[u8; HIGH_HALF_BYTES]>,
    digest: &mut Digest,
    under_high_half: &mut [u8; HIGH_HALF_BYTES],
) -> Option<u64> {
    if Shape::<SHAPE>::ICV_BYTES == 0 {
        return Some(0);
    }
    let icv = packet.get_mut(icv_at..)?;
    match Shape::<SHAPE>::DIRECTION {
        Direction::Seal => *icv.last_chunk_mut()? = NOT_WRITTEN,
        Direction::Open => {
            // Should the library ever return without computing, this differs from any ICV received.
            let (first, last) = ends(icv)?;
            *digest.first_chunk_mut()? = (!first).to_ne_bytes();
            *digest.get_mut(..icv.len())?.last_chunk_mut()? = (!last).to_ne_bytes();
        }
    }
    let Some(high_half) = high_half else { return Some(icv_at as u64) };
    // The ICV has 12 bytes or more.
    *under_high_half = std::mem::replace(icv.first_chunk_mut()?, high_half);
    Some((icv_at + HIGH_HALF_BYTES) as u64)
}

/// The first 8 bytes and the last 8 of an ICV of 8 bytes or more, which may overlap.
#[inline]
fn ends(icv: &[u8]) -> Option<(u64, u64)> {
    Some((u64::from_ne_bytes(*icv.first_chunk()?), u64::from_ne_bytes(*icv.last_chunk()?)))
}

/// Compares an ICV with what it should be, in constant time.
#[inline]
fn same(received: &[u8], computed: &[u8]) -> Option<bool> {
    if received.len() > 16 {
        return Some(received.ct_eq(computed).into());
    }
    let ((a, b), (c, d)) = (ends(received)?, ends(computed)?);
    Some((a ^ c | b ^ d).ct_eq(&0).into())
}

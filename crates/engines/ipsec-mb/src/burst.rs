//! AES-CBC and HMAC in the library's synchronous bursts: many packets in parallel, one in each SIMD lane. All
//! methods are safe.
//!
//! A burst takes an array of jobs, does them and returns. CBC encryption and HMAC are chains, which are bound
//! by instruction latency, so packets are done in parallel, even under different keys; CBC decryption is
//! parallel over blocks. The end of a burst leaves lanes empty: the more packets, the better.
//!
//! ```text
//!   submit ──▶ push: into the line of its suite and direction ──▶ full, or no more jobs: run
//!     line     jobs that are filled in already, but for addresses and lengths
//!     seal     encrypt all, then hash all; the library writes each ICV where it belongs
//!     open     hash all, compare, then decrypt those that are authentic
//! ```
//!
//! One job serves the burst that ciphers and the burst that hashes: each reads only its own fields.
//!
//! The high half of an extended sequence number is hashed after the text and is no part of the packet. As the
//! library hashes one run of bytes, it temporarily replaces the start of the ICV.
//!
//! **Why no checks by the library.** Its checking bursts look at every job for null pointers, lengths of
//! zero, beyond 16 bits or of no whole blocks, and numbers that the algorithm does not have. Here `fill`
//! excludes all of these: pointers are those of slices, [`Job::parts`] ensures lengths and blocks,
//! [`MAX_TEXT_BYTES`] the 16 bits, `judge` leaves out empty texts, and everything else is a constant of the
//! line. What would be an error there is a [`JobStatus::Fault`] before the library is called.

use crate::chained::{Chained, ChainedFunctions, ChainedKey};
use crate::manager::{ICV_BYTES, Icv, Scratch};
use crate::raw::{
    AUTH_HMAC_SHA_1, AUTH_HMAC_SHA_256, CIPHER_CBC, CIPHER_NULL, DIR_DECRYPT, DIR_ENCRYPT, ImbJob, ImbMgr,
    MAX_BURST,
};
use arrayvec::ArrayVec;
use std::ffi::c_uint;
use subtle::ConstantTimeEq;
use testudo_crypto::{AesKey, Cipher, Direction, Integrity, Job, JobParts, JobStatus, Suite};
use zeroize::Zeroize;

/// Most packets in a burst.
const BURST_PACKETS: usize = MAX_BURST as usize;

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

/// The suites that go in bursts: AES-CBC (keys of 128 and 256 bits) and NULL with HMAC.
const SUITES: [Suite; 6] = {
    let mut suites = [Suite::NULL_SHA1; 6];
    let (mut filled, mut at) = (0, 0);
    while at < Suite::ALL.len() {
        if let (
            Cipher::AesCbc(AesKey::Aes128 | AesKey::Aes256) | Cipher::Null,
            Integrity::HmacSha1 | Integrity::HmacSha256,
        ) = (Suite::ALL[at].cipher(), Suite::ALL[at].integrity())
        {
            suites[filled] = Suite::ALL[at];
            filled += 1;
        }
        at += 1;
    }
    assert!(filled == suites.len());
    suites
};

/// Number of lines: one for each suite and direction.
pub(crate) const LINES: usize = 2 * SUITES.len();

/// The line of a suite and direction; `None` if the suite does not go in bursts.
pub(crate) fn line(suite: Suite, direction: Direction) -> Option<usize> {
    let index = SUITES.iter().position(|s| *s == suite)?;
    Some(2 * index + usize::from(direction == Direction::Open))
}

/// Whether `suite` goes in bursts.
pub(crate) fn does(suite: Suite) -> bool {
    SUITES.contains(&suite)
}

const fn suite<const LINE: usize>() -> Suite {
    const { SUITES[LINE / 2] }
}

const fn direction<const LINE: usize>() -> Direction {
    const { if LINE.is_multiple_of(2) { Direction::Seal } else { Direction::Open } }
}

/// Fills the end of the ICV's field until the library has written it. One in 2^64 packets has it there, and
/// is lost.
const NOT_WRITTEN: [u8; 8] = *b"not made";

/// The IV of the block that becomes the packet's IV ([`Job`] says why).
static ZEROS: [u8; 16] = [0; 16];

/// Packets of one suite and direction: jobs prepared except for addresses and lengths, and room for digests.
pub(crate) struct Line {
    suite: Suite,
    direction: Direction,
    cipher_direction: c_uint,
    hash: c_uint,
    key_bytes: c_uint,
    jobs: Box<[ImbJob; BURST_PACKETS]>,
    /// For packets to be opened, their computed ICVs; for packets to be sealed, the block that becomes the
    /// IV.
    digests: Box<[Icv; BURST_PACKETS]>,
    /// The bytes that the high halves replaced.
    under_high_halves: Box<[[u8; HIGH_HALF_BYTES]; BURST_PACKETS]>,
    /// Slots in use since digests were last wiped.
    used: usize,
}

/// Jobs being collected into bursts. Each is borrowed until its burst has ended.
pub(crate) struct Bursts<'w, 'a> {
    pub(crate) scratch: Scratch<'w>,
    pub(crate) waiting: &'w mut Waiting<'a>,
}

/// The jobs that wait in each line. It is 12 KiB, and should not be moved.
pub(crate) struct Waiting<'a>([ArrayVec<&'a mut Job, BURST_PACKETS>; LINES]);

impl Waiting<'_> {
    #[inline]
    pub(crate) fn new() -> Self {
        Self(std::array::from_fn(|_| ArrayVec::new()))
    }
}

impl<'a> Bursts<'_, 'a> {
    /// Adds jobs under one key to the next bursts of their kind; one that the key may not do ends as a fault.
    #[inline]
    pub(crate) fn push(&mut self, key: &'a ChainedKey, jobs: &'a mut [Job]) {
        match key.line {
            0 => self.push_to::<0>(key, jobs),
            1 => self.push_to::<1>(key, jobs),
            2 => self.push_to::<2>(key, jobs),
            3 => self.push_to::<3>(key, jobs),
            4 => self.push_to::<4>(key, jobs),
            5 => self.push_to::<5>(key, jobs),
            6 => self.push_to::<6>(key, jobs),
            7 => self.push_to::<7>(key, jobs),
            8 => self.push_to::<8>(key, jobs),
            9 => self.push_to::<9>(key, jobs),
            10 => self.push_to::<10>(key, jobs),
            _ => self.push_to::<11>(key, jobs),
        }
    }

    /// One instance for each line, so that decisions by suite and direction are made at compile time.
    #[inline(never)]
    fn push_to<const LINE: usize>(&mut self, key: &'a ChainedKey, jobs: &'a mut [Job]) {
        for job in jobs {
            let Chained { lines, is_broken, .. } = &mut *self.scratch.chained;
            let (line, waiting) = (&mut lines[LINE], &mut self.waiting.0[LINE]);
            if *is_broken || line.fill::<LINE>(waiting.len(), key, job).is_none() {
                job.status = JobStatus::Fault;
            } else if let Err(refused) = waiting.try_push(job) {
                // Unreachable: a line has that many slots.
                line.spoil(refused.element());
            } else if waiting.is_full() {
                self.run::<LINE>();
            }
        }
    }

    /// Does the jobs that still wait.
    #[inline]
    pub(crate) fn finish(&mut self) {
        self.run::<0>();
        self.run::<1>();
        self.run::<2>();
        self.run::<3>();
        self.run::<4>();
        self.run::<5>();
        self.run::<6>();
        self.run::<7>();
        self.run::<8>();
        self.run::<9>();
        self.run::<10>();
        self.run::<11>();
    }

    /// Does the jobs that wait in a line.
    #[inline]
    fn run<const LINE: usize>(&mut self) {
        if !self.waiting.0[LINE].is_empty() {
            self.run_some::<LINE>();
        }
    }

    #[inline(never)]
    fn run_some<const LINE: usize>(&mut self) {
        let manager = self.scratch.pointer();
        let Chained { functions, lines, is_broken } = &mut *self.scratch.chained;
        let (line, waiting) = (&mut lines[LINE], &mut self.waiting.0[LINE]);
        let library = Calls { manager, functions };
        let count = waiting.len();
        // SAFETY: the manager is alive while `scratch` borrows it, and the functions are its own. The first
        // `count` jobs were filled by `push_to` from keys and packets that are borrowed for `'a`, longer than
        // this lives, and that nothing has touched since; `judge`, which touches them, fills those again that
        // are deciphered after it.
        let has_ended = !*is_broken
            && unsafe {
                match direction::<LINE>() {
                    Direction::Seal => line.cipher(&library, count) && line.hash(&library, count),
                    Direction::Open => {
                        line.hash(&library, count) && {
                            let authentic = line.judge::<LINE>(waiting);
                            line.cipher(&library, authentic)
                        }
                    }
                }
            };
        if !has_ended {
            *is_broken = true;
            waiting.iter_mut().for_each(|job| line.spoil(job));
        } else if direction::<LINE>() == Direction::Seal {
            for (at, job) in waiting.iter_mut().enumerate() {
                match line.is_sealed::<LINE>(at, job) {
                    Some(true) => job.status = JobStatus::Done,
                    _ => line.spoil(job),
                }
            }
        }
        waiting.clear();
    }
}

/// A manager and its functions.
struct Calls<'a> {
    manager: *mut ImbMgr,
    functions: &'a ChainedFunctions,
}

impl Line {
    /// One for each suite and direction.
    pub(crate) fn all() -> Box<[Self; LINES]> {
        let direction =
            |index: usize| if index.is_multiple_of(2) { Direction::Seal } else { Direction::Open };
        Box::new(std::array::from_fn(|index| Self::new(SUITES[index / 2], direction(index))))
    }

    fn new(suite: Suite, direction: Direction) -> Self {
        let (cipher_direction, iv) = match direction {
            Direction::Seal => (DIR_ENCRYPT, ZEROS.as_ptr()),
            Direction::Open => (DIR_DECRYPT, std::ptr::null()),
        };
        let (cipher, key_bytes) = match suite.key_bytes() {
            0 => (CIPHER_NULL, 0),
            16 => (CIPHER_CBC, 16),
            _ => (CIPHER_CBC, 32),
        };
        let hash = match suite.integrity() {
            Integrity::HmacSha256 => AUTH_HMAC_SHA_256,
            // Of the suites here, all others have this one.
            _ => AUTH_HMAC_SHA_1,
        };
        let job = ImbJob {
            key_len_in_bytes: key_bytes.into(),
            iv,
            iv_len_in_bytes: 16,
            auth_tag_output_len_in_bytes: suite.icv_bytes() as u64,
            cipher_mode: cipher,
            cipher_direction,
            hash_alg: hash,
            ..ImbJob::EMPTY
        };
        Self {
            suite,
            direction,
            cipher_direction,
            hash,
            key_bytes,
            jobs: Box::new([job; _]),
            digests: Box::new([[0; _]; _]),
            under_high_halves: Box::new([[0; _]; _]),
            used: 0,
        }
    }

    /// Wipes the digests of the last bursts.
    pub(crate) fn wipe(&mut self) {
        self.digests.iter_mut().take(self.used).for_each(|digest| digest.zeroize());
        self.used = 0;
    }

    /// Fills slot `at` for a job, and puts its high half after the text; `None`, with nothing changed, if the
    /// key may not do it.
    ///
    /// All addresses that the first burst reads are set: those left from before belong to packets that may be
    /// gone.
    #[inline]
    fn fill<const LINE: usize>(&mut self, at: usize, key: &ChainedKey, job: &mut Job) -> Option<()> {
        if job.direction != direction::<LINE>() {
            return None;
        }
        let (slot, digest) = (self.jobs.get_mut(at)?, self.digests.get_mut(at)?);
        let under_high_half = self.under_high_halves.get_mut(at)?;
        let JobParts { packet, iv_at, icv_at, high_half, .. } = job.parts(suite::<LINE>())?;
        if icv_at > const { max_icv_at(suite::<LINE>()) } {
            return None;
        }
        let icv = packet.get_mut(icv_at..)?;
        if direction::<LINE>() == Direction::Open {
            // Should the library ever return without computing, this differs from whatever was received.
            let (first, last) = ends(icv)?;
            *digest.first_chunk_mut()? = (!first).to_ne_bytes();
            *digest.get_mut(..icv.len())?.last_chunk_mut()? = (!last).to_ne_bytes();
        }
        if direction::<LINE>() == Direction::Seal {
            *icv.last_chunk_mut()? = NOT_WRITTEN;
        }
        let mut hashed_bytes = icv_at as u64;
        if let Some(high_half) = high_half {
            // The ICV has 12 bytes or more.
            let place = icv.first_chunk_mut()?;
            *under_high_half = std::mem::replace(place, high_half);
            hashed_bytes += HIGH_HALF_BYTES as u64;
        }
        if direction::<LINE>() == Direction::Seal && suite::<LINE>().encrypts() {
            *digest = *packet.get(iv_at..)?.first_chunk()?;
        }
        let start = packet.as_mut_ptr();
        slot.src = start;
        slot.msg_len_to_hash_in_bytes = hashed_bytes;
        slot.hashed_auth_key_xor_ipad = key.hmac.inner.as_ptr();
        slot.hashed_auth_key_xor_opad = key.hmac.outer.as_ptr();
        let aes = key.aes.as_deref();
        if direction::<LINE>() == Direction::Seal {
            slot.auth_tag_output = start.wrapping_add(icv_at);
            slot.dst = start.wrapping_add(iv_at);
            slot.cipher_start_src_offset_in_bytes = iv_at as u64;
            slot.msg_len_to_cipher_in_bytes = (icv_at - iv_at) as u64;
            slot.enc_keys = aes.map_or(std::ptr::null(), |aes| aes.encrypt.as_ptr().cast());
        } else {
            slot.dec_keys = aes.map_or(std::ptr::null(), |aes| aes.decrypt.as_ptr().cast());
        }
        Some(())
    }

    /// Whether the library has done its work: the block that becomes the IV has changed (it stays the same
    /// for one in 2^128), and there is an ICV. `None` is unreachable: the job was split before.
    #[inline]
    fn is_sealed<const LINE: usize>(&self, at: usize, job: &mut Job) -> Option<bool> {
        let JobParts { packet, iv_at, icv_at, .. } = job.parts(suite::<LINE>())?;
        let is_hashed = *packet.get(icv_at..)?.last_chunk()? != NOT_WRITTEN;
        let is_encrypted =
            !suite::<LINE>().encrypts() || packet.get(iv_at..)?.first_chunk()? != self.digests.get(at)?;
        Some(is_hashed && is_encrypted)
    }

    /// Compares each packet's ICV with its digest, and fills slots again, from the first on, for those that
    /// are authentic and have a text to decrypt. Returns their number.
    fn judge<const LINE: usize>(&mut self, jobs: &mut [&mut Job]) -> usize {
        let mut authentic = 0;
        for (at, job) in jobs.iter_mut().enumerate() {
            let is_genuine = self.judge_one::<LINE>(at, job, &mut authentic).unwrap_or(false);
            job.status = if is_genuine { JobStatus::Done } else { JobStatus::AuthenticationFailed };
        }
        authentic
    }

    /// `None` is unreachable: the job was split before.
    #[inline]
    fn judge_one<const LINE: usize>(
        &mut self,
        at: usize,
        job: &mut Job,
        authentic: &mut usize,
    ) -> Option<bool> {
        let JobParts { packet, iv_at, text_at, icv_at, high_half, .. } = job.parts(suite::<LINE>())?;
        let icv = packet.get_mut(icv_at..)?;
        if high_half.is_some() {
            *icv.first_chunk_mut()? = *self.under_high_halves.get(at)?;
        }
        let is_genuine = same(icv, self.digests.get(at)?.get(..icv.len())?)?;
        if is_genuine && icv_at > text_at && suite::<LINE>().encrypts() {
            let dec_keys = self.jobs.get(at)?.dec_keys;
            // Not after `at`, so that only a slot that was judged is overwritten.
            let slot = self.jobs.get_mut(*authentic)?;
            let start = packet.as_mut_ptr();
            slot.dec_keys = dec_keys;
            slot.src = start;
            slot.dst = start.wrapping_add(text_at);
            slot.cipher_start_src_offset_in_bytes = text_at as u64;
            slot.msg_len_to_cipher_in_bytes = (icv_at - text_at) as u64;
            slot.iv = start.wrapping_add(iv_at);
            *authentic += 1;
        }
        Some(is_genuine)
    }

    /// Hashes each packet and the high half after it. Packets being sealed get their ICVs; digests of those
    /// being opened wait to be compared. `false` if not all of them ended.
    ///
    /// # Safety
    /// `library` is a living manager with its own functions. The first `count` jobs were filled from packets
    /// and keys that are still borrowed, and that nothing has touched since.
    unsafe fn hash(&mut self, library: &Calls<'_>, count: usize) -> bool {
        if self.direction == Direction::Open {
            for (slot, digest) in self.jobs.iter_mut().zip(&mut *self.digests).take(count) {
                slot.auth_tag_output = digest.as_mut_ptr();
            }
            self.used = self.used.max(count);
        }
        let Some(count) = self.jobs.get(..count).and_then(|jobs| u32::try_from(jobs.len()).ok()) else {
            return false;
        };
        // SAFETY: the manager is alive and its version has jobs of this layout; there are `count` of them.
        // Each reads its packet from the start to the text's end, 4 bytes more if the high half is at the
        // ICV's offset, and the key's states, as long as the algorithm's; it writes an ICV of the suite's
        // length, 12 bytes or 16, at the ICV's offset in the packet (after what was hashed, or over the high
        // half, which has been read then) or to its digest of 16 bytes. Packets and keys are alive (our
        // precondition). The call ends all jobs, so that the manager keeps none; if not, it is never called
        // again. No safe binding exists.
        unsafe {
            (library.functions.hash)(library.manager, self.jobs.as_mut_ptr(), count, self.hash) == count
        }
    }

    /// Encrypts the IV's block and the text of packets, or decrypts the text of authentic ones, in place.
    /// `false` if not all of them ended.
    ///
    /// # Safety
    /// As for `hash`.
    unsafe fn cipher(&mut self, library: &Calls<'_>, count: usize) -> bool {
        let Some(count) = self.jobs.get(..count).and_then(|jobs| u32::try_from(jobs.len()).ok()) else {
            return false;
        };
        if count == 0 || self.key_bytes == 0 {
            return true;
        }
        // SAFETY: the manager is alive and its version has jobs of this layout; there are `count` of them.
        // Each reads and writes whole blocks of its own packet in place, one at least: from the IV's offset
        // (seal) or the text's start (open, what has no text was left out) to the text's end, a multiple of
        // 16 bytes (`Job::parts`). It reads 16 bytes of IV, of `ZEROS` or before the text, and the round keys
        // of the direction, of the size that the line's suite has. Packets and keys are alive (our
        // precondition). The call ends all jobs, so that the manager keeps none; if not, it is never called
        // again. No safe binding exists.
        let done = unsafe {
            (library.functions.cipher)(
                library.manager,
                self.jobs.as_mut_ptr(),
                count,
                CIPHER_CBC,
                self.cipher_direction,
                self.key_bytes,
            )
        };
        done == count
    }

    /// Wipes text that may be plaintext or ciphertext, so that it is not taken for either. No other engine
    /// may do this job.
    #[cold]
    fn spoil(&self, job: &mut Job) {
        job.status = JobStatus::AuthenticationFailed;
        if let Some(JobParts { packet, iv_at, .. }) = job.parts(self.suite) {
            packet.iter_mut().skip(iv_at).for_each(|byte| *byte = 0);
        }
    }
}

/// The first 8 bytes and the last 8 of an ICV of 8 to 16 bytes, which may overlap.
#[inline]
fn ends(icv: &[u8]) -> Option<(u64, u64)> {
    const { assert!(ICV_BYTES <= 16) };
    Some((u64::from_ne_bytes(*icv.first_chunk()?), u64::from_ne_bytes(*icv.last_chunk()?)))
}

/// Compares an ICV with what it should be, in constant time.
#[inline]
fn same(received: &[u8], computed: &[u8]) -> Option<bool> {
    let ((a, b), (c, d)) = (ends(received)?, ends(computed)?);
    Some((a ^ c | b ^ d).ct_eq(&0).into())
}

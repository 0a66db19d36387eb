//! Combined modes in direct calls, in batches of packets of the same kind: lengths of IV and ICV are
//! constants.

use crate::engine::{Form, Kind, MbKey, run_length};
use crate::manager::{Aeads, ICV_BYTES, Icv, Pass, same_icv};
use arrayvec::ArrayVec;
use testudo_crypto::{Aad, Direction, Job, JobStatus, KeyTable};

/// The longest text: more than an IP datagram can carry, and far below the ciphers' limits.
pub(crate) const MAX_TEXT_BYTES: usize = 65_535;

/// Packets that are decrypted before the first of them is judged.
pub(crate) const BATCH_SIZE: usize = 64;

/// Does up to [`BATCH_SIZE`] jobs, only as far as the next one of another kind, and judges them when all are
/// done. The first job is of this kind, or its key is unknown, so that at least one is done. Returns their
/// number.
#[inline]
pub(crate) fn batch(
    kind: Kind,
    aeads: &mut Aeads<'_>,
    keys: &KeyTable<MbKey>,
    scratch: &mut [Scratch; BATCH_SIZE],
    jobs: &mut [Job],
) -> usize {
    match kind {
        Kind::Aead12 => batch_of::<8, 12, false>(kind, aeads, keys, scratch, jobs),
        Kind::Aead8 => batch_of::<8, 8, false>(kind, aeads, keys, scratch, jobs),
        Kind::ImplicitIv => batch_of::<0, 16, false>(kind, aeads, keys, scratch, jobs),
        Kind::Vpe => batch_of::<0, 16, true>(kind, aeads, keys, scratch, jobs),
        _ => batch_of::<8, 16, false>(Kind::Aead16, aeads, keys, scratch, jobs),
    }
}

/// Packets of VPE, or of ESP with an IV of `IV` bytes and an ICV of `ICV` bytes.
///
/// In loops, and without writing to a packet or its scratch space just before its turn: a vector load that
/// overlaps a recent narrower or masked store fails store-to-load forwarding and waits until the store has
/// reached the cache. Such stores are ours of nonce, AAD and the computed ICV.
fn batch_of<'a, const IV: usize, const ICV: usize, const VPE: bool>(
    kind: Kind,
    aeads: &mut Aeads<'_>,
    keys: &KeyTable<MbKey>,
    scratch: &'a mut [Scratch; BATCH_SIZE],
    jobs: &'a mut [Job],
) -> usize {
    let longest = jobs.len().min(BATCH_SIZE);
    let (mut rest, mut at, mut unknown) = (&mut jobs[..longest], 0, 0);
    let mut scratch = scratch.iter_mut();
    let mut works = ArrayVec::<Work<'a, ICV>, BATCH_SIZE>::new();
    while let Some(id) = rest.first().map(|job| job.key) {
        let key = keys.get(id);
        if key.is_some_and(|key| key.kind != kind) {
            break;
        }
        let (run, behind) = rest.split_at_mut(run_length(rest, id));
        at += run.len();
        rest = behind;
        let Some(MbKey { form, salt, direction, .. }) = key else {
            run.iter_mut().for_each(|job| job.status = JobStatus::Fault);
            unknown += run.len();
            continue;
        };
        let from = works.len();
        let taken = run.iter_mut().zip(&mut scratch);
        works.extend(taken.filter_map(|(job, s)| {
            if VPE { Work::of_vpe(job, *direction, s) } else { Work::new::<IV>(job, **salt, *direction, s) }
        }));
        let works = &mut works[from..];
        match form {
            Form::Gcm(length, key) => each(&mut aeads.gcm(*length), key, *direction, works),
            Form::ChaCha(key) => each(&mut aeads.chacha(), key, *direction, works),
            Form::Gmac(..) | Form::Ccm(_) | Form::Chained(_) => break,
        }
    }
    aeads.has_refused |= works.len() + unknown != at;
    works.iter_mut().for_each(Work::judge);
    at
}

/// Does packets under one key; they stay pending until they are judged.
fn each<P: Pass, const ICV: usize>(
    pass: &mut P,
    key: &P::Key,
    direction: Direction,
    works: &mut [Work<'_, ICV>],
) {
    match direction {
        Direction::Seal => {
            for Work { text, icv, scratch, .. } in works {
                pass.seal(key, &scratch.nonce, scratch.aad.as_bytes(), text, *icv);
            }
        }
        Direction::Open => {
            for Work { text, scratch: Scratch { nonce, aad, computed }, .. } in works {
                pass.decrypt(key, nonce, aad.as_bytes(), text, &mut computed[..ICV]);
            }
        }
    }
}

/// What the library needs beside one packet. On a cache line of its own, so that none of the library's vector
/// loads crosses two.
#[repr(C, align(64))]
pub(crate) struct Scratch {
    /// The computed ICV of a packet to be opened, until it is compared.
    pub(crate) computed: Icv,
    pub(crate) aad: Aad,
    pub(crate) nonce: [u8; 12],
}

const _: () = assert!(size_of::<Scratch>() == 64);

impl Scratch {
    pub(crate) const EMPTY: Self = Self { nonce: [0; 12], aad: Aad::EMPTY, computed: [0; _] };
}

/// Begins the ICV's field until the library has written it. One in 2^64 packets with an ICV of 8 bytes has it
/// as its ICV (2^96, 2^128 with longer ones), and is lost.
const NOT_WRITTEN: Icv = *b"no ICV was made!";

const fn not_written<const ICV: usize>() -> [u8; ICV] {
    let (mut icv, mut at) = ([0; ICV], 0);
    while at < ICV {
        icv[at] = NOT_WRITTEN[at];
        at += 1;
    }
    icv
}

/// Bytes of SPI and the number's low half, which precede IV and text.
const HEADER_BYTES: usize = 8;
/// Of VPE, bytes of nonce and SPI, after which the ICV comes, and the text after that.
const VPE_FRONT_BYTES: usize = 16;

/// A packet of a combined mode, with an ICV of `ICV` bytes.
pub(crate) struct Work<'a, const ICV: usize> {
    pub(crate) text: &'a mut [u8],
    pub(crate) icv: &'a mut [u8; ICV],
    pub(crate) scratch: &'a mut Scratch,
    pub(crate) direction: Direction,
    status: &'a mut JobStatus,
}

impl<'a, const ICV: usize> Work<'a, ICV> {
    /// Takes a job with an IV of `IV` bytes apart and writes its nonce and AAD, and what its ICV cannot be:
    /// should the library ever return without computing, no plaintext may leave, and nothing is authentic. A
    /// job that the key may not do, or that its buffer does not hold, is a fault and untouched.
    ///
    /// Always inlined: returned through memory, the parts would be written in words and loaded as vectors at
    /// once, which fails store-to-load forwarding, 25 cycles a packet.
    #[inline(always)]
    pub(crate) fn new<const IV: usize>(
        job: &'a mut Job,
        salt: [u8; 4],
        direction: Direction,
        scratch: &'a mut Scratch,
    ) -> Option<Self> {
        const { assert!((IV == 0 || IV == 8) && ICV <= ICV_BYTES) };
        let high_half = job.high_half();
        let is_esp = job.text_start.wrapping_sub(job.auth_start) as usize == HEADER_BYTES + IV;
        let may_do = is_esp && job.direction == direction && job.text_bytes as usize <= MAX_TEXT_BYTES;
        let Job { buffer, auth_start, text_bytes, status, sequence, .. } = job;
        let packet = buffer.bytes_mut().get_mut(*auth_start as usize..).filter(|_| may_do);
        let parts = packet.and_then(|packet| split::<IV, ICV>(packet, *text_bytes as usize));
        let Some((header, iv, text, icv)) = parts else {
            *status = JobStatus::Fault;
            return None;
        };
        scratch.nonce[..4].copy_from_slice(&salt);
        // Where the packet carries no IV, the number is the IV (RFC 8750 4).
        let iv = iv.first_chunk().copied().unwrap_or(sequence.to_be_bytes());
        scratch.nonce[4..].copy_from_slice(&iv);
        scratch.aad = Aad::new(header, high_half);
        Self { text, icv, scratch, direction, status }.unmade()
    }

    /// [`new`](Self::new) for a packet of VPE: its header begins with the nonce, and nothing is authenticated
    /// beside the text.
    #[inline(always)]
    pub(crate) fn of_vpe(job: &'a mut Job, direction: Direction, scratch: &'a mut Scratch) -> Option<Self> {
        let is_vpe = job.text_start.wrapping_sub(job.auth_start) as usize == VPE_FRONT_BYTES + ICV;
        let may_do = is_vpe && job.direction == direction && job.text_bytes as usize <= MAX_TEXT_BYTES;
        let Job { buffer, auth_start, text_bytes, status, .. } = job;
        let packet = buffer.bytes_mut().get_mut(*auth_start as usize..).filter(|_| may_do);
        let Some((front, icv, text)) = packet.and_then(|packet| split_vpe(packet, *text_bytes as usize))
        else {
            *status = JobStatus::Fault;
            return None;
        };
        scratch.nonce = *front.first_chunk()?;
        scratch.aad = Aad::EMPTY;
        Self { text, icv, scratch, direction, status }.unmade()
    }

    /// Writes what the packet's ICV cannot be.
    #[inline(always)]
    fn unmade(self) -> Option<Self> {
        match self.direction {
            Direction::Seal => *self.icv = not_written(),
            Direction::Open => *self.scratch.computed.first_chunk_mut()? = self.icv.map(|byte| !byte),
        }
        Some(self)
    }

    /// The verdict. Later, because a load of the ICV just after the library's stores fails store-to-load
    /// forwarding: 15 cycles of a short packet.
    ///
    /// A text that may be plaintext or ciphertext is wiped, and is no fault: another engine would encrypt
    /// what may already be encrypted, under the same nonce, which restores the plaintext.
    #[inline]
    pub(crate) fn judge(&mut self) {
        let is_right = match self.direction {
            Direction::Seal => *self.icv != not_written(),
            Direction::Open => {
                self.scratch.computed.first_chunk().is_some_and(|computed| same_icv(self.icv, computed))
            }
        };
        *self.status = if is_right { JobStatus::Done } else { self.spoil() };
    }

    /// Ends a packet of which nobody knows what the library did to it.
    #[cold]
    pub(crate) fn give_up(&mut self) {
        *self.status = self.spoil();
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

/// Header, IV, text, ICV.
type Parts<'a, const ICV: usize> = (&'a [u8; HEADER_BYTES], &'a [u8], &'a mut [u8], &'a mut [u8; ICV]);

/// The parts of an ESP packet whose text has this length; `None` if it is shorter.
#[inline]
fn split<const IV: usize, const ICV: usize>(packet: &mut [u8], text_bytes: usize) -> Option<Parts<'_, ICV>> {
    let (header, rest) = packet.split_first_chunk_mut()?;
    let (iv, rest) = rest.split_first_chunk_mut::<IV>()?;
    let (text, rest) = rest.split_at_mut_checked(text_bytes)?;
    Some((header, iv, text, rest.first_chunk_mut()?))
}

/// Nonce and SPI, ICV, text.
type VpeParts<'a, const ICV: usize> = (&'a [u8; VPE_FRONT_BYTES], &'a mut [u8; ICV], &'a mut [u8]);

/// The parts of a packet of VPE whose text has this length; `None` if it is shorter.
#[inline]
fn split_vpe<const ICV: usize>(packet: &mut [u8], text_bytes: usize) -> Option<VpeParts<'_, ICV>> {
    let (front, rest) = packet.split_first_chunk_mut()?;
    let (icv, rest) = rest.split_first_chunk_mut()?;
    Some((front, icv, rest.get_mut(..text_bytes)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use testudo_packet::Buffer;

    /// A library that ignores its parameters and reports no error.
    struct Lazy;

    impl Pass for Lazy {
        type Key = ();

        fn seal(&mut self, (): &(), _: &[u8; 12], _: &[u8], _: &mut [u8], _: &mut [u8]) {}

        fn decrypt(&mut self, (): &(), _: &[u8; 12], _: &[u8], _: &mut [u8], _: &mut [u8]) {}
    }

    /// A packet that such a library seals or opens is refused, and its text is wiped.
    fn refuses_what_a_lazy_library_did<const IV: usize, const ICV: usize>() {
        for direction in [Direction::Seal, Direction::Open] {
            let buffer = Buffer::copied(&[0xA5; 8 + 8 + 40 + 16], 0, 0);
            let text_start = u32::try_from(8 + IV).unwrap();
            let mut job = Job { text_start, text_bytes: 40, ..Job::new(buffer, direction, 0) };
            let mut scratch = Scratch::EMPTY;
            let mut work = Work::<ICV>::new::<IV>(&mut job, [0; 4], direction, &mut scratch).unwrap();
            each(&mut Lazy, &(), direction, std::slice::from_mut(&mut work));
            work.judge();
            assert_eq!(job.status, JobStatus::AuthenticationFailed, "{direction:?}, {IV}, {ICV}");
            let wiped = if direction == Direction::Seal { 40 + ICV } else { 40 };
            let mut expected = vec![0xA5; 8 + 8 + 40 + 16];
            expected[8 + IV..][..wiped].fill(0);
            assert_eq!(job.buffer.bytes(), expected);
        }
    }

    #[test]
    fn a_library_that_encrypts_nothing_lets_nothing_out_in_clear() {
        refuses_what_a_lazy_library_did::<8, 16>();
        refuses_what_a_lazy_library_did::<8, 12>();
        refuses_what_a_lazy_library_did::<8, 8>();
        refuses_what_a_lazy_library_did::<0, 16>();
    }

    #[test]
    fn a_library_that_encrypts_nothing_lets_nothing_of_vpe_out_in_clear() {
        for direction in [Direction::Seal, Direction::Open] {
            let buffer = Buffer::copied(&[0xA5; 16 + 16 + 40 + 9], 0, 0);
            let mut job = Job { text_start: 32, text_bytes: 40, ..Job::new(buffer, direction, 0) };
            let mut scratch = Scratch::EMPTY;
            let mut work = Work::<16>::of_vpe(&mut job, direction, &mut scratch).unwrap();
            each(&mut Lazy, &(), direction, std::slice::from_mut(&mut work));
            work.judge();
            assert_eq!(job.status, JobStatus::AuthenticationFailed, "{direction:?}");
            let mut expected = vec![0xA5; 16 + 16 + 40 + 9];
            // Text, and when sealing the ICV before it.
            expected[if direction == Direction::Seal { 16 } else { 32 }..72].fill(0);
            assert_eq!(job.buffer.bytes(), expected);
        }
    }
}

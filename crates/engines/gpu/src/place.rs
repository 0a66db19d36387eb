//! Where a packet is in a batch's arena, and how it gets back out of it.

use crate::device::{DIGEST_BYTES, JOB_WORDS, RESULT_BYTES};
use crate::framed::{self, Frame};
use crate::work::{Layout, Mode, Work};
use subtle::ConstantTimeEq;
use testudo_crypto::{AeadParts, Direction, Job, JobParts, JobStatus, KeyFrame, Unwritten};

/// Packets begin at multiples of this, a transaction of memory's part.
pub(crate) const ALIGNMENT: usize = 16;

/// A job that is in the arena.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Placed {
    pub work: Work,
    /// What of it can be divided among lanes.
    pub kernel_bytes: usize,
    /// The job for the kernel; its mark is set by the launch.
    pub words: [u32; JOB_WORDS],
    /// Where the text is in the arena, its length, and where the digest is.
    text_at: usize,
    text_bytes: usize,
    digest_at: usize,
    /// Where the header is and how long, if the kernel writes the frame; else 0 bytes.
    header_at: usize,
    header_bytes: usize,
    /// The SPI that the frame has to have.
    spi: [u8; 4],
    /// The first byte behind all.
    pub end: usize,
    /// Which known answer is of its kind.
    pub check: Option<usize>,
}

impl zeroize::Zeroize for Placed {
    /// The nonce has the key's salt.
    fn zeroize(&mut self) {
        self.words.zeroize();
    }
}

/// What a job's key says of its place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyPlace {
    pub salt: [u8; 4],
    pub slot: u32,
    /// Where frames may be left to the kernel.
    pub frame: Option<KeyFrame>,
}

/// Why a job is not in the arena.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unplaced {
    /// The rest of the arena is too short.
    NoRoom,
    /// It is none of ours, or not well-formed.
    Malformed,
}

/// The numbers of the word that says where the result is, of the first of three that hold the nonce, of the
/// one that holds the mark, and of the first of two that say what the frame is.
pub(crate) const RESULT_WORD: usize = 5;
const NONCE_WORD: usize = 6;
pub(crate) const MARK_WORD: usize = 9;
pub(crate) const FRAME_WORD: usize = 10;

/// Lays a job out from `start` on; the job is not changed.
pub(crate) fn lay_out(
    job: &mut Job,
    work: &Work,
    key: KeyPlace,
    arena: &mut [u8],
    start: usize,
) -> Result<Placed, Unplaced> {
    let KeyPlace { salt, slot, .. } = key;
    let start = start.next_multiple_of(ALIGNMENT);
    let frame = frame_of(job, work, key.frame)?;
    let parts = job.parts(work.suite).ok_or(Unplaced::Malformed)?;
    let room = arena.get_mut(start..).ok_or(Unplaced::NoRoom)?;
    let laid = match (frame, work.layout) {
        (Some(frame), _) => framed::lay_out(&parts, frame, work, salt, room)?,
        (None, Layout::Pair(mode)) => pair(&parts, mode, work, salt, room)?,
        (None, Layout::Gcm) => gcm(parts.aead(salt).ok_or(Unplaced::Malformed)?, room)?,
        (None, Layout::Gmac) => gmac(&parts, salt, room)?,
    };
    let result = laid.bytes.next_multiple_of(4);
    let ended =
        room.get_mut(result..).and_then(|rest| rest.get_mut(..RESULT_BYTES)).ok_or(Unplaced::NoRoom)?;
    ended.fill(0);
    let word = |bytes: usize| u32::try_from(bytes / 4).map_err(|_| Unplaced::Malformed);
    let count = |bytes: usize| u32::try_from(bytes).map_err(|_| Unplaced::Malformed);
    let nonce = laid.nonce.as_chunks::<4>().0.iter().map(|chunk| u32::from_le_bytes(*chunk));
    let mut words = [0; JOB_WORDS];
    let head = [
        word(start)?,
        count(laid.authenticated)?,
        count(laid.cipher_at)?,
        count(laid.cipher_bytes)?,
        slot,
        word(start + result)?,
    ];
    words.iter_mut().zip(head.into_iter().chain(nonce)).for_each(|(to, from)| *to = from);
    let of_frame = laid.frame.unwrap_or_default();
    words.iter_mut().skip(FRAME_WORD).zip(of_frame).for_each(|(to, from)| *to = from);
    Ok(Placed {
        work: if laid.frame.is_some() { work.framed() } else { *work },
        kernel_bytes: match work.layout {
            Layout::Pair(_) => laid.cipher_bytes,
            Layout::Gcm | Layout::Gmac => laid.bytes,
        },
        words,
        text_at: start + laid.text_at,
        text_bytes: laid.text_bytes,
        digest_at: start + result,
        header_at: start,
        header_bytes: laid.header_bytes,
        spi: key.frame.map(KeyFrame::spi).unwrap_or_default(),
        end: start + result + RESULT_BYTES,
        check: None,
    })
}

/// What the kernel has to write of a job's frame. Of a packet that is opened there is nothing, and an SA must
/// have said what its frames are.
fn frame_of(job: &Job, work: &Work, key: Option<KeyFrame>) -> Result<Option<Frame>, Unplaced> {
    match (job.unwritten.trailer(), key) {
        (None, _) => Ok(None),
        (Some(trailer), Some(key)) if work.direction == Direction::Seal && !work.suite.is_for_vpe() => {
            Ok(Some(Frame::new(trailer, key, job.sequence)))
        }
        (Some(_), _) => Err(Unplaced::Malformed),
    }
}

/// A packet in the arena, from its own start.
pub(crate) struct Laid {
    /// All that it takes.
    pub bytes: usize,
    pub authenticated: usize,
    pub cipher_at: usize,
    pub cipher_bytes: usize,
    pub nonce: [u8; 12],
    /// What is copied back.
    pub text_at: usize,
    pub text_bytes: usize,
    /// The job's words of a frame that the kernel writes, and the header's bytes, which are copied back, too;
    /// without one 0.
    pub frame: Option<[u32; 2]>,
    pub header_bytes: usize,
}

/// Puts parts behind each other; returns their length.
fn put(room: &mut [u8], parts: &[&[u8]]) -> Result<usize, Unplaced> {
    let mut at = 0;
    for part in parts {
        let end = at + part.len();
        room.get_mut(at..end).ok_or(Unplaced::NoRoom)?.copy_from_slice(part);
        at = end;
    }
    Ok(at)
}

fn nonce(salt: [u8; 4], iv: Option<&[u8; 8]>) -> Result<[u8; 12], Unplaced> {
    let mut nonce = [0; 12];
    nonce[..4].copy_from_slice(&salt);
    nonce[4..].copy_from_slice(iv.ok_or(Unplaced::Malformed)?);
    Ok(nonce)
}

fn pair(
    parts: &JobParts<'_>,
    mode: Mode,
    work: &Work,
    salt: [u8; 4],
    room: &mut [u8],
) -> Result<Laid, Unplaced> {
    let JobParts { packet, iv_at, text_at, icv_at, high_half, .. } = parts;
    let (iv_at, text_at, icv_at) = (*iv_at, *text_at, *icv_at);
    let high_half = high_half.as_ref().map_or(&[][..], |half| half);
    let covered = packet.get(..icv_at).ok_or(Unplaced::Malformed)?;
    let bytes = put(room, &[covered, high_half])?;
    let (cipher_at, nonce) = match mode {
        Mode::Null => (icv_at, [0; 12]),
        Mode::Cbc => (iv_at, [0; 12]),
        Mode::Ctr => (text_at, nonce(salt, packet.get(iv_at..).and_then(|rest| rest.first_chunk()))?),
    };
    // The block that becomes the IV is encrypted, too.
    let text_at = match (mode, work.direction) {
        (Mode::Null, _) => icv_at,
        (Mode::Cbc, Direction::Seal) => iv_at,
        _ => text_at,
    };
    let text_bytes = icv_at - text_at;
    Ok(Laid {
        bytes,
        authenticated: bytes,
        cipher_at,
        cipher_bytes: icv_at - cipher_at,
        nonce,
        text_at,
        text_bytes,
        frame: None,
        header_bytes: 0,
    })
}

fn gcm(parts: AeadParts<'_>, room: &mut [u8]) -> Result<Laid, Unplaced> {
    let aad = parts.aad.as_bytes();
    let cipher_at = aad.len().next_multiple_of(ALIGNMENT);
    let bytes = put(room, &[aad, &[0; ALIGNMENT][..cipher_at - aad.len()], parts.text])?;
    let text_bytes = parts.text.len();
    Ok(Laid {
        bytes,
        authenticated: aad.len(),
        cipher_at,
        cipher_bytes: text_bytes,
        nonce: parts.nonce,
        text_at: cipher_at,
        text_bytes,
        frame: None,
        header_bytes: 0,
    })
}

/// In ESP the number's high half is between SPI and low half (RFC 4543 3.3). In AH, whose header is longer,
/// it comes last (RFC 4302 2.5.1), and the IV, as a part of the field that carries the ICV, counts as zeros
/// (RFC 4543 4).
fn gmac(parts: &JobParts<'_>, salt: [u8; 4], room: &mut [u8]) -> Result<Laid, Unplaced> {
    const ESP_HEADER_BYTES: usize = 8;
    let JobParts { packet, iv_at, text_at, icv_at, high_half, .. } = parts;
    let high_half = high_half.as_ref().map_or(&[][..], |half| half);
    let of = |range: std::ops::Range<usize>| packet.get(range).ok_or(Unplaced::Malformed);
    let (iv, text) = (of(*iv_at..*text_at)?, of(*text_at..*icv_at)?);
    let bytes = match *iv_at {
        ESP_HEADER_BYTES => put(room, &[of(0..4)?, high_half, of(4..8)?, iv, text])?,
        header => put(room, &[of(0..header)?, &[0; 8], text, high_half])?,
    };
    let nonce = nonce(salt, iv.first_chunk())?;
    let cipher_at = bytes.next_multiple_of(4);
    Ok(Laid {
        bytes,
        authenticated: bytes,
        cipher_at,
        cipher_bytes: 0,
        nonce,
        text_at: 0,
        text_bytes: 0,
        frame: None,
        header_bytes: 0,
    })
}

/// Whether the job's lane has reached its end in the launch whose mark this is.
pub(crate) fn is_marked(placed: &Placed, arena: &[u8], mark: u32) -> bool {
    let at = placed.digest_at + DIGEST_BYTES;
    arena.get(at..).and_then(|rest| rest.first_chunk()) == Some(&mark.to_le_bytes())
}

/// Whether what the device has made of a packet ends as these bytes do, up to the ICV, and has that ICV.
pub(crate) fn is_answer(placed: &Placed, arena: &[u8], covered: &[u8], icv: &[u8]) -> bool {
    let Placed { text_at, text_bytes, digest_at, .. } = *placed;
    let has = |at: usize, bytes: &[u8]| arena.get(at..).is_some_and(|rest| rest.starts_with(bytes));
    let text = covered.len().checked_sub(text_bytes).and_then(|at| covered.get(at..));
    text.is_some_and(|text| has(text_at, text)) && has(digest_at, icv)
}

/// Ends a job that the device has done: copies the text back if that is to be had, with the frame that the
/// kernel has written.
pub(crate) fn finish(job: &mut Job, placed: &Placed, arena: &[u8]) -> JobStatus {
    if placed.header_bytes > 0 {
        return finished_frame(job, placed, arena).unwrap_or(JobStatus::Fault);
    }
    finished(job, placed, arena).unwrap_or(JobStatus::Fault)
}

/// Whether SPI, number and IV that have come back are those that were to be written. The ICV does not say so,
/// which the device has made of what it had. Of CBC the IV is ciphertext.
fn has_its_header(placed: &Placed, arena: &[u8]) -> bool {
    let Placed { work, words, header_at, header_bytes, spi, .. } = placed;
    let number_at = header_at + header_bytes - 4;
    let is = |at: usize, bytes: &[u8]| arena.get(at..).is_some_and(|rest| rest.starts_with(bytes));
    let [.., iv_words] = words[FRAME_WORD + 1].to_le_bytes();
    let iv: [_; 2] = [words[NONCE_WORD + 1], words[NONCE_WORD + 2]].map(u32::to_le_bytes);
    let has_iv = iv_words == 2 && work.layout != Layout::Pair(Mode::Cbc);
    is(*header_at, spi)
        && is(number_at, &words[FRAME_WORD].to_le_bytes())
        && (!has_iv || is(number_at + 4, iv.as_flattened()))
}

/// `None`, with the packet untouched, if it is not the packet that was laid out.
fn finished_frame(job: &mut Job, placed: &Placed, arena: &[u8]) -> Option<JobStatus> {
    let Placed { work, text_at, text_bytes, digest_at, header_at, header_bytes, .. } = *placed;
    let parts = job.parts(work.suite)?;
    let icv_at = parts.icv_at;
    let digest = arena.get(digest_at..)?.get(..parts.packet.len().checked_sub(icv_at)?)?;
    if !has_its_header(placed, arena) {
        return None;
    }
    framed::copy_back(arena, header_at, header_bytes, (text_at, text_bytes), parts)?;
    job.parts(work.suite)?.packet.get_mut(icv_at..)?.copy_from_slice(digest);
    job.unwritten = Unwritten::NOTHING;
    Some(JobStatus::Done)
}

/// `None`, with the packet untouched, if it is not the packet that was laid out.
fn finished(job: &mut Job, placed: &Placed, arena: &[u8]) -> Option<JobStatus> {
    let Placed { work, text_at, text_bytes, digest_at, .. } = *placed;
    let from = arena.get(text_at..text_at + text_bytes)?;
    let digest = arena.get(digest_at..digest_at + DIGEST_BYTES)?;
    let parts = job.parts(work.suite)?;
    let (text, icv) = match work.layout {
        Layout::Gcm => {
            // Only the nonce would need the salt.
            let AeadParts { text, icv, .. } = parts.aead([0; 4])?;
            (text, icv)
        }
        Layout::Pair(_) | Layout::Gmac => {
            let (covered, icv) = parts.packet.split_at_mut_checked(parts.icv_at)?;
            let at = covered.len().checked_sub(text_bytes)?;
            (covered.get_mut(at..)?, icv)
        }
    };
    let digest = digest.get(..icv.len())?;
    if text.len() != from.len() {
        return None;
    }
    match work.direction {
        Direction::Open if !bool::from(digest.ct_eq(icv)) => return Some(JobStatus::AuthenticationFailed),
        Direction::Open => {}
        Direction::Seal => icv.copy_from_slice(digest),
    }
    text.copy_from_slice(from);
    Some(JobStatus::Done)
}

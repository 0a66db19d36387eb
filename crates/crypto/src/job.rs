//! One packet's worth of cryptography.

use crate::{Direction, KeyId, Suite, Unwritten};
use testudo_packet::Buffer;

/// The state of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum JobStatus {
    /// Not yet submitted, or not yet taken.
    #[default]
    Pending,
    /// Sealed, or opened with a correct ICV.
    Done,
    /// Opening failed: the ICV is wrong. Nothing decrypted remains in the buffer.
    AuthenticationFailed,
    /// The engine could not do it. The buffer is unchanged: another engine may try.
    Fault,
    /// An asynchronous engine has moved the job out of this slot; it comes back through `poll`.
    Taken,
}

/// Bytes of SPI and sequence number, at the start of every ESP packet (RFC 4303 2).
pub(crate) const ESP_HEADER_BYTES: usize = 8;

/// Bytes of a header of VPE, its ICV included, and where that is in it (`docs/VPE.md`).
pub(crate) const VPE_HEADER_BYTES: usize = 32;
pub(crate) const VPE_ICV_AT: usize = 16;

/// Bytes of the IV of a combined mode or of counter mode, and of the part of a nonce that stands for it.
const NONCE_IV_BYTES: usize = 8;

/// Additional authenticated data of a combined mode: SPI and sequence number, 8 bytes, or 12 with ESN (RFC
/// 4106 5, RFC 7634 2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aad {
    bytes: [u8; 12],
    len: u8,
}

impl Aad {
    /// No data.
    pub const EMPTY: Self = Self { bytes: [0; 12], len: 0 };

    /// The ESP header, SPI and the number's low half; with ESN the high half between the two.
    #[must_use]
    #[inline]
    pub fn new(header: &[u8; ESP_HEADER_BYTES], high_half: Option<[u8; 4]>) -> Self {
        let mut bytes = [0; 12];
        let len = if let Some(high_half) = high_half {
            bytes[..4].copy_from_slice(&header[..4]);
            bytes[4..8].copy_from_slice(&high_half);
            bytes[8..].copy_from_slice(&header[4..]);
            12
        } else {
            bytes[..8].copy_from_slice(header);
            8
        };
        Self { bytes, len }
    }

    /// The bytes to authenticate.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// One packet's worth of cryptography over parts of a buffer, in place.
///
/// ```text
///   ESP               | outer headers | SPI, number | IV | text …           | ICV |
///                                     ▲ auth_start       ▲ text_start       ▲ text_start + text_bytes
///   VPE               | outer headers | nonce, SPI | ICV | text …        |
///                                     ▲ auth_start       ▲ text_start    ▲ text_start + text_bytes
/// ```
///
/// Offsets are counted from the packet's start ([`Buffer::bytes`]). Where the packet is a chain they are
/// counted over all of its segments, whose borders may be anywhere: then engines that
/// [take chains](crate::Capability::takes_chains) find the parts with [`chain_parts`](Self::chain_parts).
/// From `auth_start` to the text's end everything is authenticated; the text is encrypted, too. The ICV
/// follows the text directly and is written when sealing, compared in constant time when opening. The IV
/// directly precedes the text.
///
/// The sequence number is a field of its own, since a packet carries only its low half. With ESN the high
/// half is authenticated, too: a combined mode has it between SPI and low half (RFC 4106 5), other suites
/// after the text (RFC 4303 2.2.1). A nonce is the key's salt and the packet's IV; where packets carry none,
/// the sequence number (RFC 8750 4).
///
/// In VPE, which the key's suite says ([`Suite::is_for_vpe`]), the nonce is the packet's first 12 bytes from
/// `auth_start` on, the ICV is in front of the text, and nothing beside the text is authenticated.
///
/// **CBC and its IV.** When sealing, the IV's field holds a block that is unique under the key (by the
/// caller, which has the sequence numbers). The engine encrypts it together with the text, as the first block
/// of the chain, from an IV of zeros. The IV in front of the ciphertext is then the block encrypted under the
/// SA's key, the IV that SP 800-38A, appendix C, recommends first: it cannot be predicted without the key
/// (RFC 3602 3) and never repeats, since equal IVs would be equal blocks. It costs one more block in the same
/// call, and equal numbers under an equal key give equal packets, as known answers need.
///
/// Fields are in memory as they are here: those of one byte behind each other, and of these the ones that are
/// the same in all new jobs last, so that few instructions make a job and move it.
#[derive(Debug)]
#[repr(C)]
pub struct Job {
    /// The packet; it travels with the job.
    pub buffer: Buffer,
    /// The packet's sequence number, whole.
    pub sequence: u64,
    /// The SA, by the caller's number. Engines pass it through.
    pub sa: u32,
    /// Which of the SA's jobs this is, by the caller's number. Engines pass it through.
    pub ticket: u32,
    /// The key, by the id of the engine that gets this job.
    pub key: KeyId,
    /// Where authentication starts, in bytes.
    pub auth_start: u32,
    /// Where the text starts, in bytes.
    pub text_start: u32,
    /// Length of the text in bytes, ICV not counted.
    pub text_bytes: u32,
    /// Whether the number's high half is authenticated (RFC 4303 2.2.1).
    pub esn: bool,
    /// What the caller will do with the packet, by the caller's number. Engines pass it through.
    pub then: u8,
    /// What of its frame is still to be written ([`frame`](crate::frame)): when sealing ESP, for engines that
    /// [write frames](crate::Capability::writes_frames) and for no other.
    pub unwritten: Unwritten,
    /// Seal or open; it must be the direction for which the key was installed.
    pub direction: Direction,
    /// The state of the job.
    pub status: JobStatus,
}

/// One cache line, so that moving a job touches one.
const _: () = assert!(size_of::<Job>() == 64);

impl Job {
    /// A job of which only packet, direction and SA are known; it names no key.
    #[must_use]
    #[inline(always)]
    pub fn new(buffer: Buffer, direction: Direction, sa: u32) -> Self {
        Self {
            buffer,
            sequence: 0,
            sa,
            ticket: 0,
            key: KeyId::NONE,
            auth_start: 0,
            text_start: 0,
            text_bytes: 0,
            esn: false,
            then: 0,
            unwritten: Unwritten::NOTHING,
            direction,
            status: JobStatus::Pending,
        }
    }

    /// Moves the job out of its slot, as an asynchronous engine does: the slot becomes [`JobStatus::Taken`],
    /// without a buffer.
    #[must_use]
    pub fn take(&mut self) -> Job {
        let taken = Job { buffer: std::mem::take(&mut self.buffer), status: JobStatus::Pending, ..*self };
        self.status = JobStatus::Taken;
        taken
    }

    /// The number's high half, if it is authenticated (RFC 4303 2.2.1).
    #[must_use]
    #[inline]
    pub fn high_half(&self) -> Option<[u8; 4]> {
        let [high @ .., _, _, _, _] = self.sequence.to_be_bytes();
        self.esn.then_some(high)
    }

    /// All that an engine reads and writes of a job under `suite`: `None` if the buffer does not hold it, if
    /// what precedes the text is not header and IV, or if the text is no multiple of the cipher's block.
    /// Under a suite that does not encrypt the header may be longer, as AH's, which covers the whole packet
    /// (RFC 4302 3.3.3); the IV of AES-GMAC is then part of AH's ICV, and counts as zeros (RFC 4543 4).
    #[must_use]
    #[inline]
    pub fn parts(&mut self, suite: Suite) -> Option<JobParts<'_>> {
        if suite.is_for_vpe() {
            return self.vpe_parts();
        }
        let (start, len) = (self.auth_start as usize, self.text_bytes as usize);
        let text_at = (self.text_start as usize).checked_sub(start)?;
        let iv_at = text_at.checked_sub(suite.iv_bytes())?;
        let is_header = iv_at == ESP_HEADER_BYTES || iv_at > ESP_HEADER_BYTES && !suite.encrypts();
        if !is_header || !len.is_multiple_of(suite.block_bytes()) {
            return None;
        }
        let icv_at = text_at.checked_add(len)?;
        let end = start.checked_add(icv_at)?.checked_add(suite.icv_bytes())?;
        let high_half = self.high_half();
        let packet = self.buffer.bytes_mut().get_mut(start..end)?;
        Some(JobParts { packet, iv_at, text_at, icv_at, sequence: self.sequence, high_half })
    }

    /// [`parts`](Self::parts) of VPE.
    fn vpe_parts(&mut self) -> Option<JobParts<'_>> {
        let (start, text_at) = (self.auth_start as usize, self.text_start as usize);
        if text_at.checked_sub(start)? != VPE_HEADER_BYTES {
            return None;
        }
        let end = text_at.checked_add(self.text_bytes as usize)?;
        let (sequence, text_at, icv_at) = (self.sequence, VPE_HEADER_BYTES, VPE_ICV_AT);
        let packet = self.buffer.bytes_mut().get_mut(start..end)?;
        Some(JobParts { packet, iv_at: 0, text_at, icv_at, sequence, high_half: None })
    }
}

/// What an engine reads and writes of a [`Job`].
#[derive(Debug)]
pub struct JobParts<'a> {
    /// Header, IV, text and ICV. All but the ICV is authenticated. In VPE header, ICV and text.
    pub packet: &'a mut [u8],
    /// Where the IV starts in it, if there is one.
    pub iv_at: usize,
    /// Where the text starts in it.
    pub text_at: usize,
    /// Where the ICV starts: where the text ends, but for VPE.
    pub icv_at: usize,
    /// The number's high half, if it is authenticated.
    pub high_half: Option<[u8; 4]>,
    sequence: u64,
}

/// What a combined mode takes.
#[derive(Debug)]
pub struct AeadParts<'a> {
    /// Salt, then IV or number (RFC 4106 4, RFC 7634 2, RFC 8750 4); in VPE what the header begins with.
    pub nonce: [u8; 12],
    /// Authenticated besides the text.
    pub aad: Aad,
    /// To be encrypted or decrypted in place.
    pub text: &'a mut [u8],
    /// Written when sealing, compared when opening.
    pub icv: &'a mut [u8],
}

impl<'a> JobParts<'a> {
    /// The job of a combined mode whose nonce begins with `salt`.
    #[must_use]
    #[inline]
    pub fn aead(self, salt: [u8; 4]) -> Option<AeadParts<'a>> {
        let (front, rest) = self.packet.split_at_mut_checked(self.text_at)?;
        if self.icv_at < self.text_at {
            let (front, icv) = front.split_at_mut_checked(self.icv_at)?;
            let nonce = *front.first_chunk()?;
            return Some(AeadParts { nonce, aad: Aad::EMPTY, text: rest, icv });
        }
        let (text, icv) = rest.split_at_mut_checked(self.icv_at.checked_sub(self.text_at)?)?;
        let iv: &[u8; NONCE_IV_BYTES] = match self.iv_at == self.text_at {
            true => &self.sequence.to_be_bytes(),
            false => front.last_chunk()?,
        };
        let mut nonce = [0; 12];
        nonce[..4].copy_from_slice(&salt);
        nonce[4..].copy_from_slice(iv);
        let aad = Aad::new(front.first_chunk()?, self.high_half);
        Some(AeadParts { nonce, aad, text, icv })
    }
}

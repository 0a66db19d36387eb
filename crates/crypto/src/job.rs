//! One packet's worth of cryptography.

use crate::{Direction, KeyId, Suite};
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
const ESP_HEADER_BYTES: usize = 8;

/// Additional authenticated data: SPI and sequence number, 8 bytes, or 12 with ESN (RFC 4106 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Aad {
    bytes: [u8; 12],
    len: u8,
}

impl Aad {
    /// SPI and 32-bit sequence number.
    #[must_use]
    pub fn short(spi: u32, sequence: u32) -> Self {
        Self::new(spi, sequence.into(), false)
    }

    /// SPI and sequence number as an SA authenticates them (RFC 4106 5, RFC 7634 2.1): with ESN 64 bits of
    /// the number, otherwise the low 32.
    #[must_use]
    #[inline(always)]
    pub fn new(spi: u32, sequence: u64, esn: bool) -> Self {
        // Branch-free: without ESN the number is shifted up, so that bytes 4..8 hold the low half.
        let (len, shift) = if esn { (12, 0) } else { (8, 32) };
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&spi.to_be_bytes());
        bytes[4..].copy_from_slice(&(sequence << shift).to_be_bytes());
        Self { bytes, len }
    }

    /// Any data of up to 12 bytes, for test vectors; longer data gives `None`.
    #[must_use]
    pub fn from_slice(data: &[u8]) -> Option<Self> {
        let mut bytes = [0; 12];
        bytes.get_mut(..data.len())?.copy_from_slice(data);
        Some(Self { bytes, len: u8::try_from(data.len()).ok()? })
    }

    /// The sequence number, extended or not; 0 for other data. After an engine, the protocol takes the number
    /// of a received packet from here.
    #[must_use]
    #[inline]
    pub fn sequence(&self) -> u64 {
        let [_, _, _, _, number @ ..] = self.bytes;
        let number = u64::from_be_bytes(number);
        match self.len {
            8 => number >> 32,
            12 => number,
            _ => 0,
        }
    }

    /// The bytes to authenticate.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The high half of an extended sequence number, which is authenticated but not sent (RFC 4303 2.2.1);
    /// `None` without ESN.
    #[must_use]
    pub fn high_half(&self) -> Option<[u8; 4]> {
        let [_, _, _, _, high @ .., _, _, _, _] = self.bytes;
        (usize::from(self.len) == self.bytes.len()).then_some(high)
    }

    /// Length of the data in bits, as GCM wants it.
    #[must_use]
    pub const fn bits(&self) -> u64 {
        self.len as u64 * 8
    }

    /// The bytes to authenticate, padded with zeros.
    #[must_use]
    pub const fn padded(&self) -> &[u8; 12] {
        &self.bytes
    }
}

/// One packet's worth of cryptography over a part of a buffer, in place.
///
/// `text_start..text_start + text_bytes`, counted from the packet's start ([`Buffer::bytes`]), is encrypted
/// or decrypted; the ICV follows the text directly and is written when sealing, compared in constant time
/// when opening.
///
/// A suite that is no AEAD uses more of the packet, because its integrity algorithm covers one run of bytes:
/// the ESP header and the IV directly precede the text, and are authenticated from there; of `aad` only the
/// [high half](Aad::high_half) is used, and `nonce` is not.
///
/// **CBC and its IV.** When sealing, the IV's field holds a block that is unique under the key (by the
/// caller, which has the sequence numbers). The engine encrypts it together with the text, as the first block
/// of the chain, from an IV of zeros. The IV in front of the ciphertext is then the block encrypted under the
/// SA's key, the IV that SP 800-38A, appendix C, recommends first: it cannot be predicted without the key
/// (RFC 3602 3) and never repeats, since equal IVs would be equal blocks. It costs one more block in the same
/// call, and equal numbers under an equal key give equal packets, as known answers need.
#[derive(Debug)]
pub struct Job {
    /// The packet; it travels with the job.
    pub buffer: Buffer,
    /// The caller's tag; engines pass it through.
    pub cookie: u64,
    /// Start of the text in the packet, in bytes.
    pub text_start: u32,
    /// Length of the text in bytes, ICV not counted.
    pub text_bytes: u32,
    /// The key, by the id of the engine that gets this job.
    pub key: KeyId,
    /// Salt and IV of an AEAD (RFC 4106 4, RFC 7634 2).
    pub nonce: [u8; 12],
    /// What is authenticated besides the text: all of it by an AEAD, the high half by other suites.
    pub aad: Aad,
    /// Seal or open; it must be the direction for which the key was installed.
    pub direction: Direction,
    /// The state of the job.
    pub status: JobStatus,
}

impl Job {
    /// Moves the job out of its slot, as an asynchronous engine does: the slot becomes [`JobStatus::Taken`],
    /// without a buffer.
    #[must_use]
    pub fn take(&mut self) -> Job {
        let taken = Job { buffer: std::mem::take(&mut self.buffer), status: JobStatus::Pending, ..*self };
        self.status = JobStatus::Taken;
        taken
    }

    /// All that an engine reads and writes: `None` if the packet is shorter than the job says.
    ///
    /// Nonce and AAD are borrowed from the job, not copied: SIMD code loads them whole, and a wide load over
    /// recent narrow stores fails store-to-load forwarding (37 of 114 cycles on a 64-byte packet).
    #[must_use]
    pub fn parts(&mut self, icv_bytes: usize) -> Option<JobParts<'_>> {
        let (start, len) = (self.text_start as usize, self.text_bytes as usize);
        let end = start.checked_add(len)?.checked_add(icv_bytes)?;
        let (text, icv) = self.buffer.bytes_mut().get_mut(start..end)?.split_at_mut_checked(len)?;
        Some(JobParts { text, icv, nonce: &self.nonce, aad: self.aad.as_bytes() })
    }

    /// The whole ESP packet of a job of a `suite` that is no AEAD: `None` if the buffer does not hold it, or
    /// if the text is no multiple of the cipher's block.
    #[must_use]
    pub fn esp(&mut self, suite: Suite) -> Option<EspParts<'_>> {
        let text_at = ESP_HEADER_BYTES + suite.iv_bytes();
        let (start, len) = (self.text_start as usize, self.text_bytes as usize);
        let (from, icv_at) = (start.checked_sub(text_at)?, text_at.checked_add(len)?);
        if !len.is_multiple_of(suite.block_bytes()) {
            return None;
        }
        let end = from.checked_add(icv_at)?.checked_add(suite.icv_bytes())?;
        let packet = self.buffer.bytes_mut().get_mut(from..end)?;
        Some(EspParts { packet, iv_at: ESP_HEADER_BYTES, text_at, icv_at, high_half: self.aad.high_half() })
    }
}

/// What an engine reads and writes of a [`Job`] of an AEAD.
#[derive(Debug)]
pub struct JobParts<'a> {
    /// To be encrypted or decrypted in place.
    pub text: &'a mut [u8],
    /// Written when sealing, compared when opening.
    pub icv: &'a mut [u8],
    /// Salt and IV.
    pub nonce: &'a [u8; 12],
    /// Authenticated besides the text.
    pub aad: &'a [u8],
}

/// What an engine reads and writes of a [`Job`] of any other suite.
#[derive(Debug)]
pub struct EspParts<'a> {
    /// ESP header, IV, text and ICV. All but the ICV is authenticated.
    pub packet: &'a mut [u8],
    /// Where the IV starts in it, if there is one: encryption starts here.
    pub iv_at: usize,
    /// Where the text starts in it: decryption starts here.
    pub text_at: usize,
    /// Where the text ends and the ICV starts.
    pub icv_at: usize,
    /// Authenticated after the text.
    pub high_half: Option<[u8; 4]>,
}

//! One packet's worth of cryptography.

use crate::{Direction, KeyId};
use testudo_packet::Buffer;

/// How a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum JobStatus {
    /// Not yet submitted, or not yet taken.
    #[default]
    Pending,
    /// Sealed, or opened with a correct ICV.
    Done,
    /// Opening failed: the ICV is wrong. Nothing decrypted remains in the buffer.
    AuthenticationFailed,
    /// The engine could not do it. The buffer is as it was submitted: another engine may try.
    Fault,
    /// An asynchronous engine has moved the job out of this slot; it comes back through `poll`.
    Taken,
}

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
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&spi.to_be_bytes());
        bytes[4..8].copy_from_slice(&sequence.to_be_bytes());
        Self { bytes, len: 8 }
    }

    /// SPI and 64-bit extended sequence number.
    #[must_use]
    pub fn extended(spi: u32, sequence: u64) -> Self {
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&spi.to_be_bytes());
        bytes[4..].copy_from_slice(&sequence.to_be_bytes());
        Self { bytes, len: 12 }
    }

    /// Any data of up to 12 bytes, for test vectors; longer data gives `None`.
    #[must_use]
    pub fn from_slice(data: &[u8]) -> Option<Self> {
        let mut bytes = [0; 12];
        bytes.get_mut(..data.len())?.copy_from_slice(data);
        Some(Self { bytes, len: u8::try_from(data.len()).ok()? })
    }

    /// The sequence number, extended or not; 0 for other data.
    #[must_use]
    #[inline]
    pub fn sequence(&self) -> u64 {
        let [_, _, _, _, a, b, c, d, e, f, g, h] = self.bytes;
        match self.len {
            8 => u32::from_be_bytes([a, b, c, d]).into(),
            12 => u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            _ => 0,
        }
    }

    /// The bytes to authenticate.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// One packet's worth of cryptography: an AEAD over a part of a buffer, in place.
///
/// `text_start..text_start + text_bytes`, counted from the packet's start ([`Buffer::bytes`]), is encrypted or decrypted;
/// the 16-byte ICV stands right behind it and is written when sealing, compared in constant time when opening.
#[derive(Debug)]
pub struct Job {
    /// The packet; it travels with the job.
    pub buffer: Buffer,
    /// The caller's mark; engines carry it along.
    pub cookie: u64,
    /// Start of the text in the packet, in bytes.
    pub text_start: u32,
    /// Length of the text in bytes, ICV not counted.
    pub text_bytes: u32,
    /// The key, as the engine that gets this job knows it.
    pub key: KeyId,
    /// Salt and IV (RFC 4106 4, RFC 7634 2).
    pub nonce: [u8; 12],
    /// What is authenticated besides the text.
    pub aad: Aad,
    /// Seal or open; it must be the direction for which the key was installed.
    pub direction: Direction,
    /// How the job stands.
    pub status: JobStatus,
}

impl Job {
    /// Moves the job out of its slot, as an asynchronous engine does: what stays is [`JobStatus::Taken`], without a buffer.
    #[must_use]
    pub fn take(&mut self) -> Job {
        let taken = Job { buffer: std::mem::take(&mut self.buffer), status: JobStatus::Pending, ..*self };
        self.status = JobStatus::Taken;
        taken
    }

    /// The text and, behind it, the ICV: `None` if the packet is shorter than the job says.
    #[must_use]
    pub fn text_and_icv(&mut self, icv_bytes: usize) -> Option<(&mut [u8], &mut [u8])> {
        let parts = self.parts(icv_bytes)?;
        Some((parts.text, parts.icv))
    }

    /// All that an engine reads and writes, side by side: `None` if the packet is shorter than the job says.
    ///
    /// Nonce and AAD are borrowed from the job and not copied for a reason: SIMD code loads them in one piece, and a load from
    /// bytes that were stored in smaller pieces a moment ago waits for those stores (37 of 114 cycles on a 64-byte packet).
    #[must_use]
    pub fn parts(&mut self, icv_bytes: usize) -> Option<JobParts<'_>> {
        let (start, len) = (self.text_start as usize, self.text_bytes as usize);
        let end = start.checked_add(len)?.checked_add(icv_bytes)?;
        let (text, icv) = self.buffer.bytes_mut().get_mut(start..end)?.split_at_mut_checked(len)?;
        Some(JobParts { text, icv, nonce: &self.nonce, aad: self.aad.as_bytes() })
    }
}

/// What an engine reads and writes of a [`Job`].
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

//! What of an ESP packet around its payload an engine may write in the caller's place: SPI and sequence
//! number, the IV, padding, pad length and next header (RFC 4303 2).
//!
//! ```text
//!   | room        | room | payload | room                      |        a job that is `unwritten`
//!         │ an engine that `writes_frames`; or `complete`, and any other
//!         ▼
//!   | SPI, number | IV   | payload | 1, 2, 3 …, length, next   | ICV |
//! ```
//!
//! What is the same for all packets of an SA comes with its key ([`KeyFrame`]), what is a packet's own with
//! its job ([`Trailer`]). Before such a job goes to an engine that writes no frames, [`complete`] writes what
//! is missing: the bytes are the same, no matter who writes them. Until then there may be anything in the
//! room, another packet's bytes too.

use crate::{Job, JobParts, Suite};

/// Bytes of SPI and sequence number.
const HEADER_BYTES: usize = 8;
/// Bytes of the longest IV.
const MAX_IV_BYTES: usize = 16;
/// Pad length and next header.
const TRAILER_BYTES: usize = 2;

/// What the frames of an SA have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyFrame {
    spi: u32,
    /// In two halves, so that a key has no gap.
    iv_mask: [u32; 2],
}

impl KeyFrame {
    /// Of an SA with this SPI, whose IVs are made of its sequence numbers XOR `iv_mask`.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "two halves")]
    pub const fn new(spi: u32, iv_mask: u64) -> Self {
        Self { spi, iv_mask: [(iv_mask >> 32) as u32, iv_mask as u32] }
    }

    /// The SPI, as packets carry it.
    #[must_use]
    pub const fn spi(self) -> [u8; 4] {
        self.spi.to_be_bytes()
    }

    /// The IV of a combined mode or of counter mode under this sequence number (RFC 4106 3.1), and the end of
    /// the block that becomes the IV of CBC, whose beginning is zeros ([`Job`]). It is unique under the key
    /// as the number is.
    #[must_use]
    pub fn iv(self, sequence: u64) -> [u8; 8] {
        let [high, low] = self.iv_mask.map(u64::from);
        (sequence ^ (high << 32 | low)).to_be_bytes()
    }
}

/// The trailer of a packet whose frame is not written yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trailer {
    padding: u8,
    next_header: u8,
}

impl Trailer {
    /// So many bytes of padding, at most 254, and this next header.
    #[must_use]
    #[inline]
    pub const fn new(padding: u8, next_header: u8) -> Self {
        Self { padding, next_header }
    }

    /// The pad length, in bytes.
    #[must_use]
    pub const fn padding(self) -> u8 {
        self.padding
    }

    /// The next header.
    #[must_use]
    pub const fn next_header(self) -> u8 {
        self.next_header
    }

    /// Bytes of padding, pad length and next header.
    #[must_use]
    pub fn bytes(self) -> usize {
        usize::from(self.padding()) + TRAILER_BYTES
    }
}

/// What of a job's frame is still to be written: nothing, or all of it with this trailer.
///
/// Not an `Option`: of `None` only one byte has a value, and jobs are made and moved in fewer instructions
/// where the bytes of [`Job`] that are behind each other all have one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Unwritten {
    next_header: u8,
    /// One more than the pad length; 0 if nothing is to be written.
    above_padding: u8,
}

impl Unwritten {
    /// All is written.
    pub const NOTHING: Self = Self { next_header: 0, above_padding: 0 };

    /// The trailer, if the frame is to be written.
    #[must_use]
    #[inline]
    pub fn trailer(self) -> Option<Trailer> {
        let padding = self.above_padding.checked_sub(1)?;
        Some(Trailer { padding, next_header: self.next_header })
    }
}

impl From<Trailer> for Unwritten {
    #[inline]
    fn from(trailer: Trailer) -> Self {
        Self { next_header: trailer.next_header, above_padding: trailer.padding.saturating_add(1) }
    }
}

/// Writes what a job leaves [unwritten](Job::unwritten); then it is a job for any engine. `false`, with the
/// job as it was, if the buffer does not hold it, or it is not one of ESP: such a job must not be done.
#[cold]
#[must_use]
pub fn complete(job: &mut Job, frame: KeyFrame, suite: Suite) -> bool {
    let Some(trailer) = job.unwritten.trailer() else { return true };
    let is_written = write(job, trailer, frame, suite).is_some();
    if is_written {
        job.unwritten = Unwritten::NOTHING;
    }
    is_written
}

fn write(job: &mut Job, trailer: Trailer, frame: KeyFrame, suite: Suite) -> Option<()> {
    let [_, _, _, _, low @ ..] = job.sequence.to_be_bytes();
    let unique = frame.iv(job.sequence);
    let JobParts { packet, iv_at, text_at, icv_at, .. } = job.parts(suite)?;
    let trailer_at = icv_at.checked_sub(trailer.bytes())?;
    if iv_at != HEADER_BYTES || suite.is_for_vpe() || trailer_at < text_at {
        return None;
    }
    let mut block = [0; MAX_IV_BYTES];
    block[MAX_IV_BYTES - unique.len()..].copy_from_slice(&unique);
    let iv = block.get(MAX_IV_BYTES.checked_sub(text_at - iv_at)?..)?;
    let (front, behind) = packet.get_mut(..icv_at)?.split_at_mut_checked(trailer_at)?;
    let header = front.first_chunk_mut::<HEADER_BYTES>()?;
    header[..4].copy_from_slice(&frame.spi());
    header[4..].copy_from_slice(&low);
    front.get_mut(iv_at..text_at)?.copy_from_slice(iv);
    // The default padding (RFC 4303 2.4): 1, 2, 3, …
    behind.iter_mut().zip(1..).for_each(|(byte, n)| *byte = n);
    *behind.last_chunk_mut()? = [trailer.padding(), trailer.next_header()];
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Direction;
    use testudo_packet::Buffer;

    fn job(packet: &[u8], text_start: u32, text_bytes: u32, trailer: Trailer) -> Job {
        let buffer = Buffer::copied(packet, 0, 0);
        let sequence = 0x0102_0304_0506_0708;
        Job {
            text_start,
            text_bytes,
            sequence,
            unwritten: trailer.into(),
            ..Job::new(buffer, Direction::Seal, 0)
        }
    }

    #[test]
    fn a_frame_is_header_iv_padding_and_trailer() {
        let frame = KeyFrame::new(0xA1A2_A3A4, 0xF000_0000_0000_000F);
        // A payload of 3 bytes, and an ICV that is not of the frame.
        let mut gcm = job(&[0xEE; 8 + 8 + 8 + 16], 16, 8, Trailer::new(3, 41));
        assert!(complete(&mut gcm, frame, Suite::AES128GCM16));
        let start = [0xA1, 0xA2, 0xA3, 0xA4, 5, 6, 7, 8];
        let unique = [0xF1, 2, 3, 4, 5, 6, 7, 7];
        let end = [0xEE, 0xEE, 0xEE, 1, 2, 3, 3, 41];
        assert_eq!(gcm.buffer.bytes(), [&start[..], &unique, &end, &[0xEE; 16]].concat());
        assert_eq!(gcm.unwritten, Unwritten::NOTHING);
        let mut cbc = job(&[0xEE; 8 + 16 + 16 + 12], 24, 16, Trailer::new(11, 4));
        assert!(complete(&mut cbc, frame, Suite::AES128_SHA1));
        let end = [0xEE, 0xEE, 0xEE, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 11, 4];
        assert_eq!(cbc.buffer.bytes(), [&start[..], &[0; 8], &unique, &end, &[0xEE; 12]].concat());
    }

    #[test]
    fn what_is_no_frame_is_left_as_it_was() {
        let frame = KeyFrame::new(1, 2);
        let suite = Suite::AES128GCM16;
        for (text_start, text_bytes, padding) in
            [(16, 8, 7), (16, 0, 0), (16, 20, 0), (12, 8, 0), (17, 8, 0), (u32::MAX, u32::MAX, 0)]
        {
            let trailer = Trailer::new(padding, 4);
            let mut bad = job(&[0xEE; 40], text_start, text_bytes, trailer);
            assert!(!complete(&mut bad, frame, suite), "{text_start} {text_bytes} {padding}");
            assert_eq!(bad.unwritten.trailer(), Some(trailer));
            assert!(bad.buffer.bytes().iter().all(|byte| *byte == 0xEE));
        }
    }

    #[test]
    fn a_trailer_is_its_padding_and_its_next_header() {
        for padding in 0..=254 {
            let trailer = Trailer::new(padding, 59);
            assert_eq!((trailer.padding(), trailer.next_header()), (padding, 59));
            assert_eq!(Unwritten::from(trailer).trailer(), Some(trailer));
        }
        assert_eq!(Unwritten::NOTHING.trailer(), None);
    }
}

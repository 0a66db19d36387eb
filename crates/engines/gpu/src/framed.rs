//! A packet in the arena whose frame the kernel writes: room where SPI, number, IV and trailer will be, and
//! the payload.
//!
//! ```text
//!   pair      | SPI, number             | IV |     text: payload, trailer | high half |
//!   GCM       | SPI, high half?, number | IV | … | text                   |
//!   GMAC      | SPI, high half?, number | IV |     text                   |
//! ```
//!
//! What was in the room before is on no packet: the kernel writes each byte of it that is authenticated,
//! encrypted or copied back, before it reads any.

use crate::place::{ALIGNMENT, Laid, Unplaced};
use crate::work::{Layout, Mode, Work};
use testudo_crypto::{JobParts, KeyFrame, Trailer};

/// Bytes of SPI and number, and of SPI and whole number.
const HEADER_BYTES: usize = 8;
const LONG_HEADER_BYTES: usize = 12;
const SPI_BYTES: usize = 4;

/// What of a frame is a packet's own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame {
    pub trailer: Trailer,
    pub iv: [u8; 8],
    pub sequence: u64,
}

impl Frame {
    pub(crate) fn new(trailer: Trailer, key: KeyFrame, sequence: u64) -> Self {
        Self { trailer, iv: key.iv(sequence), sequence }
    }

    /// The job's words `JOB_NUMBER` and `JOB_FRAME`.
    fn words(self, header_bytes: usize, iv_bytes: usize) -> Option<[u32; 2]> {
        let [_, _, _, _, low @ ..] = self.sequence.to_be_bytes();
        let [number_at, iv_words] =
            [header_bytes - SPI_BYTES, iv_bytes].map(|bytes| u8::try_from(bytes / 4).ok());
        let trailer = self.trailer;
        let frame = [trailer.padding(), trailer.next_header(), number_at?, iv_words?];
        Some([u32::from_le_bytes(low), u32::from_le_bytes(frame)])
    }
}

/// Lays out a packet from the start of `room` on.
pub(crate) fn lay_out(
    parts: &JobParts<'_>,
    frame: Frame,
    work: &Work,
    salt: [u8; 4],
    room: &mut [u8],
) -> Result<Laid, Unplaced> {
    let JobParts { packet, iv_at, text_at, icv_at, high_half, .. } = parts;
    let (text_bytes, iv_bytes) = (icv_at.checked_sub(*text_at), text_at.checked_sub(*iv_at));
    let (Some(text_bytes), Some(iv_bytes), HEADER_BYTES) = (text_bytes, iv_bytes, *iv_at) else {
        return Err(Unplaced::Malformed);
    };
    let payload_bytes = text_bytes.checked_sub(frame.trailer.bytes()).ok_or(Unplaced::Malformed)?;
    let payload = packet.get(*text_at..text_at + payload_bytes).ok_or(Unplaced::Malformed)?;
    let (is_pair, high_half) = (matches!(work.layout, Layout::Pair(_)), high_half.as_ref());
    let header_bytes = if is_pair || high_half.is_none() { HEADER_BYTES } else { LONG_HEADER_BYTES };
    let front = header_bytes + iv_bytes;
    let text_at = if work.layout == Layout::Gcm { front.next_multiple_of(ALIGNMENT) } else { front };
    let end = text_at + text_bytes;
    let behind = high_half.filter(|_| is_pair).map_or(&[][..], |half| half);
    let bytes = end + behind.len();
    let room = room.get_mut(..bytes).ok_or(Unplaced::NoRoom)?;
    if let (LONG_HEADER_BYTES, Some(half)) = (header_bytes, high_half) {
        room[SPI_BYTES..HEADER_BYTES].copy_from_slice(half);
    }
    room[text_at..text_at + payload_bytes].copy_from_slice(payload);
    room[end..].copy_from_slice(behind);
    let (cipher_at, authenticated) = match work.layout {
        // The block that becomes the IV is encrypted, too.
        Layout::Pair(Mode::Cbc) => (header_bytes, bytes),
        Layout::Pair(Mode::Ctr) => (text_at, bytes),
        Layout::Pair(Mode::Null) | Layout::Gmac => (end, bytes),
        Layout::Gcm => (text_at, header_bytes),
    };
    // Where packets carry no IV the number stands for it (RFC 8750 4).
    let unique = if iv_bytes == 0 { frame.sequence.to_be_bytes() } else { frame.iv };
    let mut nonce = [0; 12];
    nonce[..salt.len()].copy_from_slice(&salt);
    nonce[salt.len()..].copy_from_slice(&unique);
    Ok(Laid {
        bytes,
        authenticated,
        cipher_at,
        cipher_bytes: end - cipher_at,
        nonce,
        text_at,
        text_bytes,
        frame: Some(frame.words(header_bytes, iv_bytes).ok_or(Unplaced::Malformed)?),
        header_bytes,
    })
}

/// Copies header, IV and text of a sealed packet, which is at `at` in the arena, back into the packet up to
/// its ICV; `None` if that is not the packet that was laid out.
pub(crate) fn copy_back(
    arena: &[u8],
    at: usize,
    header_bytes: usize,
    (text_at, text_bytes): (usize, usize),
    parts: JobParts<'_>,
) -> Option<()> {
    let covered = parts.packet.get_mut(..parts.icv_at)?;
    let (front, text) = covered.split_at_mut_checked(parts.text_at)?;
    let (spi, rest) = front.split_at_mut_checked(SPI_BYTES)?;
    let number_at = at + header_bytes - SPI_BYTES;
    let from = [arena.get(at..at + SPI_BYTES)?, arena.get(number_at..)?.get(..rest.len())?];
    let from_text = arena.get(text_at..)?.get(..text_bytes)?;
    if text.len() != from_text.len() {
        return None;
    }
    spi.copy_from_slice(from[0]);
    rest.copy_from_slice(from[1]);
    text.copy_from_slice(from_text);
    Some(())
}

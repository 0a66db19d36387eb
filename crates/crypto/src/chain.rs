//! The parts of a job over a chain of buffers.

use crate::job::{ESP_HEADER_BYTES, VPE_HEADER_BYTES, VPE_ICV_AT};
use crate::{Aad, Job, Suite};
use arrayvec::ArrayVec;
use testudo_packet::{MAX_SEGMENTS, SegmentsMut};

/// A run of bytes in pieces, none of them empty.
pub type Pieces<'a> = ArrayVec<&'a mut [u8], MAX_SEGMENTS>;

/// Bytes of the longest front: VPE's header, or that of ESP with the IV of a combined mode.
const LONGEST_FRONT: usize = VPE_HEADER_BYTES;
/// Bytes of the longest ICV of a combined mode.
const LONGEST_ICV: usize = 16;

/// How the packets of a combined mode are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChainShape {
    /// Bytes of the IV in the packet: 8, or 0 where the sequence number stands for it.
    pub iv_bytes: usize,
    /// Bytes of the ICV.
    pub icv_bytes: usize,
    /// Whether it is VPE, with the ICV in front.
    pub is_vpe: bool,
}

impl ChainShape {
    /// That of a suite; `None` where its cipher is no combined mode with a nonce of 4 bytes of salt and 8 of
    /// IV.
    #[must_use]
    pub fn of(suite: Suite) -> Option<Self> {
        let (iv_bytes, icv_bytes, is_vpe) = (suite.iv_bytes(), suite.icv_bytes(), suite.is_for_vpe());
        let fits = suite.is_combined() && suite.encrypts() && icv_bytes <= LONGEST_ICV;
        let has_nonce = is_vpe || matches!(iv_bytes, 0 | 8) && suite.salt_bytes() == 4;
        (fits && has_nonce).then_some(Self { iv_bytes, icv_bytes, is_vpe })
    }
}

/// What a combined mode takes of a packet in several buffers.
#[derive(Debug)]
pub struct ChainParts<'a> {
    /// As [`AeadParts::nonce`](crate::AeadParts::nonce).
    pub nonce: [u8; 12],
    /// Authenticated besides the text.
    pub aad: Aad,
    /// To be encrypted or decrypted in place.
    pub text: Pieces<'a>,
    icv: Pieces<'a>,
}

impl ChainParts<'_> {
    /// Bytes of the ICV.
    #[must_use]
    pub fn icv_bytes(&self) -> usize {
        self.icv.iter().map(|piece| piece.len()).sum()
    }

    /// The ICV that the packet has, followed by zeros where it is shorter.
    #[must_use]
    pub fn icv(&self) -> [u8; LONGEST_ICV] {
        let mut icv = [0; LONGEST_ICV];
        icv.iter_mut().zip(self.icv.iter().flat_map(|piece| piece.iter())).for_each(|(to, from)| *to = *from);
        icv
    }

    /// Writes the ICV, or the beginning of it where the packet's is shorter.
    pub fn set_icv(&mut self, icv: &[u8; LONGEST_ICV]) {
        self.icv.iter_mut().flat_map(|piece| piece.iter_mut()).zip(icv).for_each(|(to, from)| *to = *from);
    }
}

impl Job {
    /// All that an engine reads and writes of a job over a chain, under a suite of this shape and a key with
    /// this salt. `None` if the packet is no chain or does not hold all of it, or if what precedes the text
    /// is not header and IV; nothing was changed then.
    #[must_use]
    #[cold]
    pub fn chain_parts(&mut self, shape: ChainShape, salt: [u8; 4]) -> Option<ChainParts<'_>> {
        let (start, high_half, sequence) = (self.auth_start as usize, self.high_half(), self.sequence);
        let front_bytes = (self.text_start as usize).checked_sub(start)?;
        let expected = if shape.is_vpe { VPE_HEADER_BYTES } else { ESP_HEADER_BYTES + shape.iv_bytes };
        if front_bytes != expected || front_bytes > LONGEST_FRONT || !self.buffer.is_chain() {
            return None;
        }
        let mut carver = Carver { segments: self.buffer.segments_mut(), rest: &mut [] };
        carver.skip(start)?;
        let mut front = [0; LONGEST_FRONT];
        let front = front.get_mut(..front_bytes)?;
        if shape.is_vpe {
            let (header, text) = (carver.take(VPE_ICV_AT)?, self.text_bytes as usize);
            gather(&header, front);
            let icv = carver.take(shape.icv_bytes)?;
            let text = carver.take(text)?;
            return Some(ChainParts { nonce: *front.first_chunk()?, aad: Aad::EMPTY, text, icv });
        }
        gather(&carver.take(front_bytes)?, front);
        let text = carver.take(self.text_bytes as usize)?;
        let icv = carver.take(shape.icv_bytes)?;
        let mut nonce = [0; 12];
        nonce[..4].copy_from_slice(&salt);
        let iv = if shape.iv_bytes == 0 { sequence.to_be_bytes() } else { *front.last_chunk()? };
        nonce[4..].copy_from_slice(&iv);
        Some(ChainParts { nonce, aad: Aad::new(front.first_chunk()?, high_half), text, icv })
    }
}

/// Copies pieces to where they are contiguous.
fn gather(pieces: &Pieces<'_>, to: &mut [u8]) {
    to.iter_mut().zip(pieces.iter().flat_map(|piece| piece.iter())).for_each(|(to, from)| *to = *from);
}

/// Takes a chain apart, from its front on.
struct Carver<'a> {
    segments: SegmentsMut<'a>,
    rest: &'a mut [u8],
}

impl<'a> Carver<'a> {
    /// The next bytes; `None` if there are fewer.
    fn take(&mut self, count: usize) -> Option<Pieces<'a>> {
        let mut pieces = Pieces::new();
        self.each(count, |piece| pieces.try_push(piece).is_ok())?;
        Some(pieces)
    }

    fn skip(&mut self, count: usize) -> Option<()> {
        self.each(count, |_| true)
    }

    fn each(&mut self, mut count: usize, mut take: impl FnMut(&'a mut [u8]) -> bool) -> Option<()> {
        loop {
            let rest = std::mem::take(&mut self.rest);
            let (piece, behind) = rest.split_at_mut(count.min(rest.len()));
            count -= piece.len();
            self.rest = behind;
            if !piece.is_empty() && !take(piece) {
                return None;
            }
            if count == 0 {
                return Some(());
            }
            self.rest = self.segments.next()?;
        }
    }
}

//! A job in the form that kernels take.

use crate::key::ExpandedKey;
use crate::memory::{load_block, store_block};
use core::arch::x86_64::*;
use testudo_crypto::{Job, JobStatus};

/// Bytes of every ICV here.
pub(crate) const ICV_BYTES: usize = 16;

/// Bytes of SPI, the number's low half and the IV, which precede the text (RFC 4106 2, 3.1); in VPE of nonce
/// and SPI, after which the ICV comes.
const FRONT_BYTES: usize = 16;

/// One packet, its key and the parts of its job.
pub(crate) struct Packet<'a> {
    pub(crate) key: &'a ExpandedKey,
    pub(crate) text: &'a mut [u8],
    pub(crate) icv: &'a mut [u8; ICV_BYTES],
    /// A counter block without salt and counter. Vectors, here and below: loading one from two numbers just
    /// stored would fail store-to-load forwarding.
    iv: __m128i,
    /// SPI and number as they are authenticated, zeros after them (RFC 4106 5); in VPE zeros alone, which are
    /// hashed as nothing is: the hash of a zero block at the start is zero.
    aad: __m128i,
    aad_bits: i64,
    status: &'a mut JobStatus,
}

impl<'a> Packet<'a> {
    /// Takes a job apart; it is a fault if what precedes its text is no header and IV, or if they, text and
    /// ICV are not inside its buffer.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    pub(crate) fn new(key: &'a ExpandedKey, job: &'a mut Job) -> Option<Self> {
        let Job { buffer, sequence, auth_start, text_start, text_bytes, esn, status, .. } = job;
        let is_esp = text_start.wrapping_sub(*auth_start) as usize == FRONT_BYTES;
        let packet = buffer.bytes_mut().get_mut(*auth_start as usize..).filter(|_| is_esp);
        let Some((front, text, icv)) = packet.and_then(|packet| split(packet, *text_bytes as usize)) else {
            *status = JobStatus::Fault;
            return None;
        };
        let front = load_block(front);
        let header = _mm_maskz_mov_epi32(0b0011, front);
        // With ESN the high half comes between SPI and low half.
        let (aad, aad_bits) = if *esn {
            let [high_half @ .., _, _, _, _] = sequence.to_be_bytes();
            let apart = _mm_shuffle_epi32::<0b11_01_10_00>(header);
            (_mm_insert_epi32::<1>(apart, i32::from_le_bytes(high_half)), 96)
        } else {
            (header, 64)
        };
        // The IV, with zeros where salt and counter are. The salt is part of the key's first round key.
        let iv = _mm_maskz_shuffle_epi32(0b0110, front, 0b00_11_10_00);
        Some(Self { key, text, icv, iv, aad, aad_bits, status })
    }

    /// [`new`](Self::new) for a packet of VPE, whose key has a salt of zeros.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    pub(crate) fn of_vpe(key: &'a ExpandedKey, job: &'a mut Job) -> Option<Self> {
        let Job { buffer, auth_start, text_start, text_bytes, status, .. } = job;
        let is_vpe = text_start.wrapping_sub(*auth_start) as usize == FRONT_BYTES + ICV_BYTES;
        let packet = buffer.bytes_mut().get_mut(*auth_start as usize..).filter(|_| is_vpe);
        let Some((front, text, icv)) = packet.and_then(|packet| split_vpe(packet, *text_bytes as usize))
        else {
            *status = JobStatus::Fault;
            return None;
        };
        let iv = _mm_maskz_mov_epi32(0b0111, load_block(front));
        Some(Self { key, text, icv, iv, aad: _mm_setzero_si128(), aad_bits: 0, status })
    }
}

/// Header with IV, text, ICV.
type Parts<'a> = (&'a [u8; FRONT_BYTES], &'a mut [u8], &'a mut [u8; ICV_BYTES]);

/// The parts of an ESP packet whose text has this length; `None` if it is shorter.
#[inline]
fn split(packet: &mut [u8], text_bytes: usize) -> Option<Parts<'_>> {
    let (front, rest) = packet.split_first_chunk_mut()?;
    let (text, rest) = rest.split_at_mut_checked(text_bytes)?;
    Some((front, text, rest.first_chunk_mut()?))
}

/// The parts of a packet of VPE.
#[inline]
fn split_vpe(packet: &mut [u8], text_bytes: usize) -> Option<Parts<'_>> {
    let (front, rest) = packet.split_first_chunk_mut()?;
    let (icv, rest) = rest.split_first_chunk_mut()?;
    Some((front, rest.get_mut(..text_bytes)?, icv))
}

impl Packet<'_> {
    /// Number of blocks to hash: the AAD, the text, the lengths.
    #[inline]
    pub(crate) fn blocks(&self) -> usize {
        self.text.len().div_ceil(16) + 2
    }

    /// Four counter blocks without salt and counter, which are zero there.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    pub(crate) fn iv(&self) -> __m512i {
        _mm512_broadcast_i32x4(self.iv)
    }

    /// The first block of the hash input.
    #[inline]
    pub(crate) fn aad(&self) -> __m128i {
        self.aad
    }

    /// The last block of the hash input, reflected: the lengths of AAD and text in bits (SP 800-38D 7.1).
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    pub(crate) fn lengths(&self) -> __m128i {
        _mm_set_epi64x(self.aad_bits, (self.text.len() as u64 * 8).cast_signed())
    }

    /// Ends the job, whose ICV should be `icv`: writes it, or compares it with the one received.
    ///
    /// All bytes are compared at once, in constant time.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    pub(crate) fn end<const OPEN: bool>(&mut self, icv: __m128i) {
        if !OPEN {
            store_block(self.icv, icv);
            *self.status = JobStatus::Done;
            return;
        }
        let difference = _mm_xor_si128(load_block(self.icv), icv);
        if _mm_testz_si128(difference, difference) == 1 {
            *self.status = JobStatus::Done;
        } else {
            refuse(self.text, self.status);
        }
    }
}

/// Wipes the decrypted text.
#[cold]
#[inline(never)]
fn refuse(text: &mut [u8], status: &mut JobStatus) {
    text.fill(0);
    *status = JobStatus::AuthenticationFailed;
}

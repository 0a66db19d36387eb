//! A job in the form that kernels take.

use crate::key::ExpandedKey;
use crate::memory::{load_block, load_twelve, store_block};
use core::arch::x86_64::*;
use testudo_crypto::{Aad, Job, JobStatus};

/// Bytes of every ICV here.
pub(crate) const ICV_BYTES: usize = 16;

/// One packet, its key and the parts of its job.
pub(crate) struct Packet<'a> {
    pub(crate) key: &'a ExpandedKey,
    pub(crate) text: &'a mut [u8],
    pub(crate) icv: &'a mut [u8; ICV_BYTES],
    nonce: &'a [u8; 12],
    aad: &'a Aad,
    status: &'a mut JobStatus,
}

impl<'a> Packet<'a> {
    /// Takes a job apart; if its text and ICV are not inside its buffer, it is a fault.
    #[inline]
    pub(crate) fn new(key: &'a ExpandedKey, job: &'a mut Job) -> Option<Self> {
        let Job { buffer, text_start, text_bytes, nonce, aad, status, .. } = job;
        let text = buffer.bytes_mut().get_mut(*text_start as usize..);
        let split = text.and_then(|text| text.split_at_mut_checked(*text_bytes as usize));
        let Some((text, Some(icv))) = split.map(|(text, rest)| (text, rest.first_chunk_mut())) else {
            *status = JobStatus::Fault;
            return None;
        };
        Some(Self { key, text, icv, nonce, aad, status })
    }
}

impl Packet<'_> {
    /// Number of blocks to hash: the AAD, the text, the lengths.
    #[inline]
    pub(crate) fn blocks(&self) -> usize {
        self.text.len().div_ceil(16) + 2
    }

    /// The nonce, and a zero counter.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    pub(crate) fn nonce(&self) -> __m128i {
        load_twelve(self.nonce)
    }

    /// The first block of the hash input.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    pub(crate) fn aad(&self) -> __m128i {
        load_twelve(self.aad.padded())
    }

    /// The last block of the hash input, reflected: the lengths of AAD and text in bits (SP 800-38D 7.1).
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    pub(crate) fn lengths(&self) -> __m128i {
        _mm_set_epi64x(self.aad.bits().cast_signed(), (self.text.len() as u64 * 8).cast_signed())
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

//! AES-CCM (RFC 4309, RFC 3610), composed of its two halves: AWS-LC has it for nonces of other lengths only.
//!
//! ```text
//!   tag        = CBC-MAC(flags ‖ nonce ‖ length ‖ AAD ‖ text) XOR AES(3 ‖ nonce ‖ 0)     (RustCrypto's AES)
//!   ciphertext = text XOR AES-CTR from 3 ‖ nonce ‖ 1                                     (AWS-LC)
//! ```
//!
//! CCM authenticates the plaintext, so that it decrypts before it knows whether the ICV is right. If it is
//! wrong, the whole text is cleared.

use super::cbc_mac::{BLOCK_BYTES, Chain};
use super::ctr::CtrKey;
use crate::{AeadParts, Direction, JobStatus};
use aes::cipher::consts::U16;
use aes::cipher::{BlockCipherEncrypt, KeyInit};
use aes::{Aes128, Aes192, Aes256};
use aws_lc_rs::constant_time::verify_slices_are_equal;

/// Bytes of a nonce: salt and IV (RFC 4309 4).
const NONCE_BYTES: usize = 11;
/// One less than the bytes of the length and of the counter, as flags have it (RFC 3610 2.2, 2.3).
const LENGTH_FLAG: u8 = 3;
/// The flag for AAD (RFC 3610 2.2).
const AAD_FLAG: u8 = 64;
/// The counter of the block that hides the tag, and of the first block of text.
const TAG_COUNTER: u32 = 0;
const TEXT_COUNTER: u32 = 1;

/// One key, for both halves. Both zero it when they are dropped.
pub(super) struct CcmKey {
    counter_mode: CtrKey,
    mac: Aes,
}

/// AES with any length of the key.
enum Aes {
    Aes128(Aes128),
    Aes192(Aes192),
    Aes256(Aes256),
}

impl CcmKey {
    /// A key of 16, 24 or 32 bytes; `None` for other lengths, or if memory runs out.
    pub(super) fn new(key: &[u8]) -> Option<Self> {
        let mac = match key.len() {
            16 => Aes::Aes128(Aes128::new_from_slice(key).ok()?),
            24 => Aes::Aes192(Aes192::new_from_slice(key).ok()?),
            32 => Aes::Aes256(Aes256::new_from_slice(key).ok()?),
            _ => return None,
        };
        Some(Self { counter_mode: CtrKey::new(key)?, mac })
    }

    /// Does one packet. The nonce is one byte shorter than that of other modes, and so is its salt.
    pub(super) fn run(&self, direction: Direction, parts: AeadParts<'_>) -> JobStatus {
        let AeadParts { nonce: [_, nonce @ ..], aad, text, icv } = parts;
        match direction {
            Direction::Seal => self.seal(&nonce, aad.as_bytes(), text, icv),
            Direction::Open => self.open(&nonce, aad.as_bytes(), text, icv),
        }
    }

    /// Encrypts `text` and writes the ICV, whose length the tag depends on. A fault comes before any change.
    fn seal(&self, nonce: &[u8; NONCE_BYTES], aad: &[u8], text: &mut [u8], icv: &mut [u8]) -> JobStatus {
        let Some(tag) = self.tag(nonce, aad, text, icv.len()) else { return JobStatus::Fault };
        if self.counter_mode.apply(&counter_nonce(nonce), TEXT_COUNTER, text).is_none() {
            return JobStatus::Fault;
        }
        icv.iter_mut().zip(tag).for_each(|(to, from)| *to = from);
        JobStatus::Done
    }

    /// Decrypts `text` if the ICV is right, otherwise clears it.
    fn open(&self, nonce: &[u8; NONCE_BYTES], aad: &[u8], text: &mut [u8], icv: &[u8]) -> JobStatus {
        if self.counter_mode.apply(&counter_nonce(nonce), TEXT_COUNTER, text).is_none() {
            return JobStatus::Fault;
        }
        let tag = self.tag(nonce, aad, text, icv.len());
        let is_right = |tag: [u8; BLOCK_BYTES]| {
            tag.get(..icv.len()).is_some_and(|first| verify_slices_are_equal(first, icv).is_ok())
        };
        if tag.is_some_and(is_right) {
            return JobStatus::Done;
        }
        text.fill(0);
        JobStatus::AuthenticationFailed
    }

    /// `None` if a length is none that flags and fields can say, or if AWS-LC fails.
    fn tag(
        &self,
        nonce: &[u8; NONCE_BYTES],
        aad: &[u8],
        text: &[u8],
        icv_bytes: usize,
    ) -> Option<[u8; BLOCK_BYTES]> {
        let icv_flag = u8::try_from(icv_bytes.checked_sub(2)? / 2 * 8).ok()?;
        let aad_flag = if aad.is_empty() { 0 } else { AAD_FLAG };
        let mut first = [0; BLOCK_BYTES];
        first[0] = aad_flag | icv_flag | LENGTH_FLAG;
        first[1..=NONCE_BYTES].copy_from_slice(nonce);
        first[1 + NONCE_BYTES..].copy_from_slice(&u32::try_from(text.len()).ok()?.to_be_bytes());
        // Up to 0xFEFF bytes of AAD, its length goes before it in two bytes (RFC 3610 2.2); ESP has 12.
        let length = u16::try_from(aad.len()).ok().filter(|length| *length < 0xFF00)?.to_be_bytes();
        let mut tag = match &self.mac {
            Aes::Aes128(aes) => cbc_mac(aes, &first, length, aad, text),
            Aes::Aes192(aes) => cbc_mac(aes, &first, length, aad, text),
            Aes::Aes256(aes) => cbc_mac(aes, &first, length, aad, text),
        };
        self.counter_mode.apply(&counter_nonce(nonce), TAG_COUNTER, &mut tag)?;
        Some(tag)
    }
}

/// The nonce of the counter blocks, flags included (RFC 3610 2.3).
fn counter_nonce(nonce: &[u8; NONCE_BYTES]) -> [u8; 1 + NONCE_BYTES] {
    let mut block = [LENGTH_FLAG; 1 + NONCE_BYTES];
    block[1..].copy_from_slice(nonce);
    block
}

fn cbc_mac<C: BlockCipherEncrypt<BlockSize = U16>>(
    aes: &C,
    first: &[u8; BLOCK_BYTES],
    length: [u8; 2],
    aad: &[u8],
    text: &[u8],
) -> [u8; BLOCK_BYTES] {
    let mut chain = Chain::default();
    chain.absorb_padded(aes, first);
    if !aad.is_empty() {
        let mut block = [0; BLOCK_BYTES];
        let (beside, rest) = aad.split_at(aad.len().min(BLOCK_BYTES - length.len()));
        block[..length.len()].copy_from_slice(&length);
        block[length.len()..length.len() + beside.len()].copy_from_slice(beside);
        chain.absorb_padded(aes, &block);
        chain.absorb_padded(aes, rest);
    }
    chain.absorb_padded(aes, text);
    chain.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// NIST CAVP, VNT192.rsp, nonces of 11 bytes, count 0; its AAD is too long for a packet.
    #[test]
    fn ccm_gives_an_official_answer_for_nonces_of_rfc_4309() {
        let bytes = |high: u128, low: u128| [high.to_be_bytes(), low.to_be_bytes()].concat();
        let aes_key = bytes(0x7a18_2e4e_3367_1946_62d6_14bb_11da_11e8, 0x6596_f724_204f_48ff << 64);
        let nonce = [0xd3, 0x28, 0x4d, 0x1d, 0xe5, 0x15, 0x59, 0xc1, 0xdd, 0xbf, 0xe6];
        let text =
            bytes(0x88a5_c1c2_ae4e_b463_a328_3dc5_c81f_665b, 0x0f6d_5449_5f6c_c9d4_3aa8_ee17_9d39_50f8);
        let aad = bytes(0x2121_4ac2_314f_dfe0_7bc4_d066_245a_97b1, 0xa104_70df_2a6d_6b92_6cdc_bff0_7f5b_61ef);
        let sealed =
            bytes(0x65ed_1e39_19d2_08e9_e526_7370_b9cf_9b14, 0x31ef_0c58_4dd2_cf05_7d24_3a03_523c_a756);
        let tag = 0x2a18_840c_ac21_9903_0c00_8741_d74f_b220_u128.to_be_bytes();
        let key = CcmKey::new(&aes_key[..24]).unwrap();
        let (mut buffer, mut icv) = (text.clone(), [0; 16]);
        assert_eq!(key.seal(&nonce, &aad, &mut buffer, &mut icv), JobStatus::Done);
        assert_eq!((&buffer, icv), (&sealed, tag));
        assert_eq!(key.open(&nonce, &aad, &mut buffer, &icv), JobStatus::Done);
        assert_eq!(buffer, text);
    }

    /// SP 800-38C 6.2: nothing of the plaintext is given out unless the tag is right.
    #[test]
    fn a_text_that_is_not_authentic_is_cleared() {
        for (key_bytes, icv_bytes) in [(16, 8), (16, 12), (24, 16), (32, 8), (32, 16)] {
            let key = CcmKey::new(&vec![7; key_bytes]).unwrap();
            let (mut text, mut icv) = ([0x11; 40], vec![0; icv_bytes]);
            assert_eq!(key.seal(&[1; 11], &[2; 8], &mut text, &mut icv), JobStatus::Done);
            icv[icv_bytes - 1] ^= 1;
            let opened = key.open(&[1; 11], &[2; 8], &mut text, &icv);
            assert_eq!(opened, JobStatus::AuthenticationFailed);
            assert_eq!(text, [0; 40]);
        }
    }
}

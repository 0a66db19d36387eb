//! AES-GCM composed of its two halves, for what AWS-LC's AEAD cannot do.
//!
//! ```text
//!   ciphertext = text XOR AES-CTR from nonce ‖ 2                             (AWS-LC)
//!   tag        = GHASH(AAD ‖ ciphertext ‖ lengths) XOR AES(nonce ‖ 1)        (RustCrypto's GHASH)
//! ```
//!
//! AWS-LC opens no packet whose ICV is shorter than 16 bytes, and wants the AAD as one run of bytes, which
//! that of AES-GMAC is not: with ESN, the number's high half is authenticated between SPI and low half (RFC
//! 4543 3.3). Here the tag comes first: what is not authentic is never decrypted. SP 800-38D 7.1 has the
//! notation.

use super::ctr::{CtrKey, NONCE_BYTES};
use crate::{AeadParts, Direction, JobParts, JobStatus};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use ghash::universal_hash::UniversalHash;
use ghash::universal_hash::array::Array;
use ghash::{Block, GHash};
use zeroize::Zeroizing;

/// The counter of the block that hides the tag, and of the first block of text.
const TAG_COUNTER: u32 = 1;
pub(super) const TEXT_COUNTER: u32 = 2;

/// Bytes of an ESP header: SPI and the number's low half.
const ESP_HEADER_BYTES: usize = 8;
const SPI_BYTES: usize = 4;
/// What AH has instead of its ICV, IV included, while it is computed (RFC 4302 3.3.3, RFC 4543 4).
const NO_IV: [u8; 8] = [0; 8];

/// Runs of bytes that are authenticated one after the other.
type Parts<'a> = [&'a [u8]];

/// One key. AWS-LC and GHASH zero theirs when they are dropped.
pub(super) struct GcmKey {
    pub(super) counter_mode: CtrKey,
    hash: GHash,
}

impl GcmKey {
    /// A key of 16, 24 or 32 bytes; `None` for another length, or if memory runs out.
    pub(super) fn new(key: &[u8]) -> Option<Self> {
        let counter_mode = CtrKey::new(key)?;
        // The hash's key is a block of zeros, encrypted.
        let mut hash_key = Zeroizing::new([0; 16]);
        counter_mode.apply(&[0; NONCE_BYTES], 0, &mut hash_key[..])?;
        Some(Self { counter_mode, hash: GHash::new((&*hash_key).into()) })
    }

    /// Does one packet of AES-GCM.
    pub(super) fn run(&self, direction: Direction, parts: AeadParts<'_>) -> JobStatus {
        let AeadParts { nonce, aad, text, icv } = parts;
        match direction {
            Direction::Seal => self.seal(&nonce, &[aad.as_bytes()], text, icv),
            Direction::Open => self.open(&nonce, &[aad.as_bytes()], text, icv),
        }
    }

    /// Does one packet of AES-GMAC, whose AAD is the whole packet. In ESP the number's high half is between
    /// SPI and low half (RFC 4543 3.3). In AH, whose header is longer, it comes last (RFC 4302 2.5.1), and
    /// the IV, as part of the field that carries the ICV, counts as zeros (RFC 4543 4).
    pub(super) fn run_gmac(&self, direction: Direction, salt: [u8; 4], parts: JobParts<'_>) -> JobStatus {
        let JobParts { packet, iv_at, text_at, icv_at, high_half, .. } = parts;
        let high_half = high_half.as_ref().map_or(&[][..], |half| half);
        let (packet, icv) = packet.split_at_mut(icv_at);
        let (Some((header, rest)), Some(text)) = (packet.split_at_checked(iv_at), packet.get(text_at..))
        else {
            return JobStatus::Fault;
        };
        let (Some((spi, low_half)), Some(iv)) = (header.split_at_checked(SPI_BYTES), rest.first_chunk())
        else {
            return JobStatus::Fault;
        };
        let nonce = nonce(salt, *iv);
        let aad = match header.len() {
            ESP_HEADER_BYTES => [spi, high_half, low_half, rest],
            _ => [header, &NO_IV, text, high_half],
        };
        match direction {
            Direction::Seal => self.seal(&nonce, &aad, &mut [], icv),
            Direction::Open => self.open(&nonce, &aad, &mut [], icv),
        }
    }

    /// Encrypts `text` and writes as much of the tag as `icv` holds. If AWS-LC fails, it does with the text,
    /// before any change.
    fn seal(&self, nonce: &[u8; NONCE_BYTES], aad: &Parts<'_>, text: &mut [u8], icv: &mut [u8]) -> JobStatus {
        if self.counter_mode.apply(nonce, TEXT_COUNTER, text).is_none() {
            return JobStatus::Fault;
        }
        let Some(tag) = self.tag(nonce, aad, text) else { return JobStatus::Fault };
        icv.iter_mut().zip(tag).for_each(|(to, from)| *to = from);
        JobStatus::Done
    }

    /// Decrypts `text` if `icv` is the beginning of the tag; otherwise it is not touched.
    fn open(&self, nonce: &[u8; NONCE_BYTES], aad: &Parts<'_>, text: &mut [u8], icv: &[u8]) -> JobStatus {
        let Some(tag) = self.tag(nonce, aad, text) else { return JobStatus::Fault };
        if tag.get(..icv.len()).is_none_or(|first| verify_slices_are_equal(first, icv).is_err()) {
            return JobStatus::AuthenticationFailed;
        }
        match self.counter_mode.apply(nonce, TEXT_COUNTER, text) {
            Some(()) => JobStatus::Done,
            None => JobStatus::Fault,
        }
    }

    fn tag(&self, nonce: &[u8; NONCE_BYTES], aad: &Parts<'_>, ciphertext: &[u8]) -> Option<[u8; 16]> {
        self.tag_of(nonce, aad, &[ciphertext])
    }

    /// The tag of a ciphertext in parts.
    pub(super) fn tag_of(
        &self,
        nonce: &[u8; NONCE_BYTES],
        aad: &Parts<'_>,
        ciphertext: &Parts<'_>,
    ) -> Option<[u8; 16]> {
        let mut hash = self.hash.clone();
        absorb(&mut hash, aad);
        absorb(&mut hash, ciphertext);
        let bytes = |parts: &Parts<'_>| -> usize { parts.iter().map(|part| part.len()).sum() };
        let bits = |bytes: usize| u64::try_from(bytes).ok()?.checked_mul(8);
        let lengths = u128::from(bits(bytes(aad))?) << 64 | u128::from(bits(bytes(ciphertext))?);
        hash.update(&[lengths.to_be_bytes().into()]);
        let mut tag: [u8; 16] = hash.finalize().into();
        self.counter_mode.apply(nonce, TAG_COUNTER, &mut tag)?;
        Some(tag)
    }
}

fn nonce(salt: [u8; 4], iv: [u8; 8]) -> [u8; NONCE_BYTES] {
    let mut nonce = [0; NONCE_BYTES];
    nonce[..4].copy_from_slice(&salt);
    nonce[4..].copy_from_slice(&iv);
    nonce
}

/// Hashes the parts as if they were one, padded with zeros to whole blocks.
fn absorb(hash: &mut GHash, parts: &Parts<'_>) {
    let (mut block, mut filled) = (Block::default(), 0);
    for part in parts {
        let mut rest: &[u8] = part;
        if filled > 0 {
            let (first, after) = rest.split_at(rest.len().min(block.len() - filled));
            block[filled..filled + first.len()].copy_from_slice(first);
            (filled, rest) = (filled + first.len(), after);
            if filled < block.len() {
                continue;
            }
            hash.update(&[block]);
        }
        let (blocks, tail) = Array::slice_as_chunks(rest);
        hash.update(blocks);
        block = Block::default();
        block[..tail.len()].copy_from_slice(tail);
        filled = tail.len();
    }
    if filled > 0 {
        hash.update(&[block]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: u128 = 0x4c80_cdef_bb5d_10da_906a_c73c_3613_a634;

    fn hex(digits: &str) -> Vec<u8> {
        let digits: Vec<_> = digits.chars().filter_map(|c| u8::try_from(c.to_digit(16)?).ok()).collect();
        digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
    }

    /// draft-mcgrew-gcm-test-01, case 15: AES-GMAC over SPI, number, IV and payload (RFC 4543 3.3), wherever
    /// the AAD is cut into parts.
    #[test]
    fn gmac_gives_the_official_answer_wherever_the_aad_is_cut() {
        let key = GcmKey::new(&KEY.to_be_bytes()).unwrap();
        let nonce = *hex("22433c640000000000000000").as_array().unwrap();
        let aad = hex("0000432100000007 0000000000000000 45000030da3a00008001df3bc0a80005c0a80001\
                       0800c6cd02000700 6162636465666768696a6b6c6d6e6f7071727374 01020201");
        let tag = hex("f2a9a836e155106aa8dcd618e4099aaa");
        for first in 0..=aad.len() {
            for second in first..=aad.len() {
                let parts = [&aad[..first], &aad[first..second], &aad[second..]];
                let mut icv = [0; 16];
                assert_eq!(key.seal(&nonce, &parts, &mut [], &mut icv), JobStatus::Done);
                assert_eq!(icv, *tag, "cut at {first} and {second}");
                assert_eq!(key.open(&nonce, &parts, &mut [], &icv), JobStatus::Done);
            }
        }
    }

    /// draft-mcgrew-gcm-test-01, case 17, with each length of the ICV, which is the tag's beginning (SP
    /// 800-38D 7.1). What is not authentic is not touched.
    #[test]
    fn a_shorter_icv_is_the_beginning_of_the_official_one() {
        let key = GcmKey::new(&KEY.to_be_bytes()).unwrap();
        let nonce = *hex("22433c644855ec7d3a234bfd").as_array().unwrap();
        let aad = hex("000043218765432100000007");
        let text = hex("0800c6cd020007006162636465666768696a6b6c6d6e6f707172737401020201");
        let sealed = hex("74752e8aeb5d873cd7c0f4acc36c4bff84b7d7b98f0ca8b6acda6894bc619069");
        let tag = hex("ef9cbc28fe1b56a7c4e0d58c86cd2bc0");
        for icv_bytes in [8, 12, 16] {
            let (mut buffer, mut icv) = (text.clone(), vec![0; icv_bytes]);
            assert_eq!(key.seal(&nonce, &[&aad], &mut buffer, &mut icv), JobStatus::Done);
            assert_eq!((&buffer, &icv[..]), (&sealed, &tag[..icv_bytes]));
            for bit in 0..icv_bytes * 8 {
                let mut forged = icv.clone();
                forged[bit / 8] ^= 1 << (bit % 8);
                let refused = key.open(&nonce, &[&aad], &mut buffer, &forged);
                assert_eq!(refused, JobStatus::AuthenticationFailed);
                assert_eq!(buffer, sealed);
            }
            assert_eq!(key.open(&nonce, &[&aad], &mut buffer, &icv), JobStatus::Done);
            assert_eq!(buffer, text);
        }
    }
}

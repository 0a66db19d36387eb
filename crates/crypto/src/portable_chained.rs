//! The portable engine's pairs of a cipher and an integrity algorithm: encrypt, then authenticate (RFC 4303
//! 3.3.2.1).

use crate::{AesKey, Cipher, Direction, Integrity, JobParts, JobStatus, KeyMaterial};
use aws_lc_rs::cipher::{
    AES_128, AES_256, DecryptingKey, DecryptionContext, EncryptingKey, EncryptionContext, UnboundCipherKey,
};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hmac;
use aws_lc_rs::iv::FixedLength;

/// Both keys of an SA. AWS-LC and its binding zero them when they are dropped.
pub(crate) struct ChainedKey {
    cipher: Form,
    integrity: hmac::Key,
}

/// The cipher and its direction; CBC is AES-CBC of whole blocks, without padding of its own.
enum Form {
    SealCbc(EncryptingKey),
    OpenCbc(DecryptingKey),
    SealNull,
    OpenNull,
}

impl ChainedKey {
    /// The keys of an SA; `None` for a combined mode, or if memory runs out.
    pub(crate) fn new(material: &KeyMaterial, direction: Direction) -> Option<Self> {
        let aes = match material.suite().cipher() {
            Cipher::AesCbc(AesKey::Aes128) => Some(&AES_128),
            Cipher::AesCbc(AesKey::Aes256) => Some(&AES_256),
            Cipher::Null => None,
            Cipher::AesGcm(_) | Cipher::ChaCha20Poly1305 => return None,
        };
        let digest = match material.suite().integrity() {
            Integrity::HmacSha1 => hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
            Integrity::HmacSha256 => hmac::HMAC_SHA256,
            Integrity::HmacSha384 => hmac::HMAC_SHA384,
            Integrity::HmacSha512 => hmac::HMAC_SHA512,
            Integrity::Combined => return None,
        };
        let unbound = |aes| UnboundCipherKey::new(aes, material.key());
        let cipher = match (aes, direction) {
            (Some(aes), Direction::Seal) => Form::SealCbc(EncryptingKey::cbc(unbound(aes).ok()?).ok()?),
            (Some(aes), Direction::Open) => Form::OpenCbc(DecryptingKey::cbc(unbound(aes).ok()?).ok()?),
            (None, Direction::Seal) => Form::SealNull,
            (None, Direction::Open) => Form::OpenNull,
        };
        Some(Self { cipher, integrity: hmac::Key::new(digest, material.integrity_key()) })
    }

    /// Does one packet. Opening decrypts only what is authentic.
    pub(crate) fn run(&self, parts: JobParts<'_>) -> JobStatus {
        let JobParts { packet, iv_at, text_at, icv_at, high_half, .. } = parts;
        let (packet, icv) = packet.split_at_mut(icv_at);
        match &self.cipher {
            Form::SealCbc(key) => {
                // The unique block in the IV's field is the first of the chain: encrypted, it is the IV (see
                // `Job`).
                let zeros = EncryptionContext::Iv128(FixedLength::from([0; 16]));
                // Fails only for a length that is no multiple of the block, before anything is encrypted.
                match key.less_safe_encrypt(&mut packet[iv_at..], zeros) {
                    Ok(_) => self.authenticate(packet, high_half, icv),
                    Err(_) => JobStatus::Fault,
                }
            }
            Form::SealNull => self.authenticate(packet, high_half, icv),
            Form::OpenCbc(_) | Form::OpenNull if !self.is_authentic(packet, high_half, icv) => {
                JobStatus::AuthenticationFailed
            }
            Form::OpenCbc(key) => {
                let (head, text) = packet.split_at_mut(text_at);
                let Some(&iv) = head.last_chunk() else { return JobStatus::Fault };
                match key.decrypt(text, DecryptionContext::Iv128(FixedLength::from(iv))) {
                    Ok(_) => JobStatus::Done,
                    Err(_) => JobStatus::Fault,
                }
            }
            Form::OpenNull => JobStatus::Done,
        }
    }

    /// Writes the ICV, the first bytes of the digest (RFC 2404 2, RFC 4868 2.6).
    fn authenticate(&self, packet: &[u8], high_half: Option<[u8; 4]>, icv: &mut [u8]) -> JobStatus {
        // No suite's ICV is longer than its digest.
        let digest = self.digest(packet, high_half);
        icv.iter_mut().zip(digest.as_ref()).for_each(|(to, from)| *to = *from);
        JobStatus::Done
    }

    fn is_authentic(&self, packet: &[u8], high_half: Option<[u8; 4]>, icv: &[u8]) -> bool {
        let digest = self.digest(packet, high_half);
        digest.as_ref().get(..icv.len()).is_some_and(|first| verify_slices_are_equal(first, icv).is_ok())
    }

    /// HMAC over the packet and then the high half of an extended sequence number (RFC 4303 2.2.1).
    fn digest(&self, packet: &[u8], high_half: Option<[u8; 4]>) -> hmac::Tag {
        let mut context = hmac::Context::with_key(&self.integrity);
        context.update(packet);
        if let Some(high_half) = high_half {
            context.update(&high_half);
        }
        context.sign()
    }
}

//! The combined modes that AWS-LC has as they are: AES-GCM (RFC 4106) with whole ICVs, and ChaCha20-Poly1305
//! (RFC 7634).

use crate::{AeadParts, AesKey, Cipher, Direction, JobStatus};
use aws_lc_rs::aead::{
    AES_128_GCM, AES_192_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};

/// Bytes of the ICV of all of them.
pub(super) const ICV_BYTES: usize = 16;

/// An expanded key; `None` for another cipher, for a key of the wrong length, and if memory runs out.
pub(super) fn key(cipher: Cipher, key: &[u8]) -> Option<LessSafeKey> {
    let algorithm = match cipher {
        Cipher::AesGcm(size) | Cipher::AesGcmImplicitIv(size) | Cipher::AesGcmVpe(size) => match size {
            AesKey::Aes128 => &AES_128_GCM,
            AesKey::Aes192 => &AES_192_GCM,
            AesKey::Aes256 => &AES_256_GCM,
        },
        Cipher::ChaCha20Poly1305 | Cipher::ChaCha20Poly1305ImplicitIv | Cipher::ChaCha20Poly1305Vpe => {
            &CHACHA20_POLY1305
        }
        _ => return None,
    };
    UnboundKey::new(algorithm, key).ok().map(LessSafeKey::new)
}

pub(super) fn run(key: &LessSafeKey, direction: Direction, parts: AeadParts<'_>) -> JobStatus {
    let AeadParts { nonce, aad, text, icv } = parts;
    let (nonce, aad) = (Nonce::assume_unique_for_key(nonce), Aad::from(aad.as_bytes()));
    match direction {
        Direction::Seal => match key.seal_in_place_separate_tag(nonce, aad, text) {
            Ok(tag) => {
                icv.copy_from_slice(tag.as_ref());
                JobStatus::Done
            }
            // Only for a text beyond the cipher's limit, which the engine excludes.
            Err(_) => JobStatus::Fault,
        },
        Direction::Open => match key.open_in_place_separate_tag(nonce, aad, icv, text) {
            Ok(_) => JobStatus::Done,
            Err(_) => JobStatus::AuthenticationFailed,
        },
    }
}

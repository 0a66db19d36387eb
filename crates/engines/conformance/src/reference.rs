//! RustCrypto, the implementation that all engines are compared with.

use aes_gcm::aead::{AeadInPlace, KeyInit};
use aes_gcm::{Aes128Gcm, Aes256Gcm};
use chacha20poly1305::ChaCha20Poly1305;
use testudo_crypto::Suite;

/// Encrypts `text` in place and returns its ICV.
///
/// # Errors
/// If the key's length is not that of the suite.
pub fn seal(
    suite: Suite,
    key: &[u8],
    nonce: &[u8; 12],
    aad: &[u8],
    text: &mut [u8],
) -> Result<[u8; 16], String> {
    fn with<A: AeadInPlace + KeyInit>(
        key: &[u8],
        nonce: &[u8; 12],
        aad: &[u8],
        text: &mut [u8],
    ) -> Result<[u8; 16], String> {
        let cipher = A::new_from_slice(key).map_err(|e| e.to_string())?;
        let nonce = aes_gcm::aead::Nonce::<A>::from_slice(nonce);
        let tag = cipher.encrypt_in_place_detached(nonce, aad, text).map_err(|e| e.to_string())?;
        tag.as_slice().try_into().map_err(|_| "the tag is not 16 bytes long".to_owned())
    }
    match suite {
        Suite::Aes128Gcm16 => with::<Aes128Gcm>(key, nonce, aad, text),
        Suite::Aes256Gcm16 => with::<Aes256Gcm>(key, nonce, aad, text),
        Suite::ChaCha20Poly1305 => with::<ChaCha20Poly1305>(key, nonce, aad, text),
    }
}

/// Decrypts `text` in place; says whether its ICV was right.
///
/// # Errors
/// If the key's length is not that of the suite.
pub fn open(
    suite: Suite,
    key: &[u8],
    nonce: &[u8; 12],
    aad: &[u8],
    text: &mut [u8],
    icv: &[u8; 16],
) -> Result<bool, String> {
    fn with<A: AeadInPlace + KeyInit>(
        key: &[u8],
        nonce: &[u8; 12],
        aad: &[u8],
        text: &mut [u8],
        icv: &[u8; 16],
    ) -> Result<bool, String> {
        let cipher = A::new_from_slice(key).map_err(|e| e.to_string())?;
        let nonce = aes_gcm::aead::Nonce::<A>::from_slice(nonce);
        let tag = aes_gcm::aead::Tag::<A>::from_slice(icv);
        Ok(cipher.decrypt_in_place_detached(nonce, aad, text, tag).is_ok())
    }
    match suite {
        Suite::Aes128Gcm16 => with::<Aes128Gcm>(key, nonce, aad, text, icv),
        Suite::Aes256Gcm16 => with::<Aes256Gcm>(key, nonce, aad, text, icv),
        Suite::ChaCha20Poly1305 => with::<ChaCha20Poly1305>(key, nonce, aad, text, icv),
    }
}

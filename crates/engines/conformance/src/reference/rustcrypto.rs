//! RustCrypto, beside AWS-LC.

use aes::cipher::block_padding::NoPadding;
use aes::cipher::consts::U12;
use aes::cipher::{BlockModeDecrypt, BlockModeEncrypt, KeyIvInit, StreamCipher};
use aes::{Aes128, Aes192, Aes256};
use aes_gcm::aead::{AeadInOut, KeyInit};
use aes_gcm::{Aes128Gcm, Aes256Gcm, AesGcm};
use chacha20poly1305::ChaCha20Poly1305;
use ctr::Ctr32BE;
use hmac::{Hmac, Mac};
use sha1::Sha1;
use sha2::{Sha256, Sha384, Sha512};

/// AES-GCM with an ICV of 16 bytes.
pub(super) fn gcm(key: &[u8], nonce: &[u8], aad: &[u8], text: &mut [u8]) -> Result<Vec<u8>, String> {
    match key.len() {
        16 => aead::<Aes128Gcm>(key, nonce, aad, text),
        24 => aead::<AesGcm<Aes192, U12>>(key, nonce, aad, text),
        _ => aead::<Aes256Gcm>(key, nonce, aad, text),
    }
}

pub(super) fn chacha20_poly1305(
    key: &[u8],
    nonce: &[u8],
    aad: &[u8],
    text: &mut [u8],
) -> Result<Vec<u8>, String> {
    aead::<ChaCha20Poly1305>(key, nonce, aad, text)
}

fn aead<A: AeadInOut + KeyInit>(
    key: &[u8],
    nonce: &[u8],
    aad: &[u8],
    text: &mut [u8],
) -> Result<Vec<u8>, String> {
    let cipher = A::new_from_slice(key).map_err(|e| e.to_string())?;
    let nonce = nonce.try_into().map_err(|_| format!("a nonce of {} bytes", nonce.len()))?;
    let tag = cipher.encrypt_inout_detached(nonce, aad, text.into()).map_err(|e| e.to_string())?;
    Ok(tag.to_vec())
}

/// AES-CBC of whole blocks.
pub(super) fn encrypt_cbc(key: &[u8], iv: &[u8], text: &mut [u8]) -> Result<(), String> {
    fn with<C: KeyIvInit + BlockModeEncrypt>(key: &[u8], iv: &[u8], text: &mut [u8]) -> Result<(), String> {
        let cipher = C::new_from_slices(key, iv).map_err(|e| e.to_string())?;
        let len = text.len();
        cipher.encrypt_padded::<NoPadding>(text, len).map(drop).map_err(|e| e.to_string())
    }
    match key.len() {
        16 => with::<cbc::Encryptor<Aes128>>(key, iv, text),
        24 => with::<cbc::Encryptor<Aes192>>(key, iv, text),
        _ => with::<cbc::Encryptor<Aes256>>(key, iv, text),
    }
}

/// One block decrypted by AES.
pub(super) fn decrypt_block(key: &[u8], block: &[u8]) -> Result<Vec<u8>, String> {
    fn with<C: KeyIvInit + BlockModeDecrypt>(key: &[u8], block: &[u8]) -> Result<Vec<u8>, String> {
        let mut block = block.to_vec();
        let cipher = C::new_from_slices(key, &[0; 16]).map_err(|e| e.to_string())?;
        cipher.decrypt_padded::<NoPadding>(&mut block).map_err(|e| e.to_string())?;
        Ok(block)
    }
    match key.len() {
        16 => with::<cbc::Decryptor<Aes128>>(key, block),
        24 => with::<cbc::Decryptor<Aes192>>(key, block),
        _ => with::<cbc::Decryptor<Aes256>>(key, block),
    }
}

/// AES-CTR; the counter after the nonce starts at 1 (RFC 3686 4).
pub(super) fn apply_ctr(key: &[u8], nonce: &[u8], text: &mut [u8]) -> Result<(), String> {
    fn with<C: KeyIvInit + StreamCipher>(key: &[u8], block: &[u8], text: &mut [u8]) -> Result<(), String> {
        C::new_from_slices(key, block).map_err(|e| e.to_string())?.apply_keystream(text);
        Ok(())
    }
    let block = [nonce, &[0, 0, 0, 1]].concat();
    match key.len() {
        16 => with::<Ctr32BE<Aes128>>(key, &block, text),
        24 => with::<Ctr32BE<Aes192>>(key, &block, text),
        _ => with::<Ctr32BE<Aes256>>(key, &block, text),
    }
}

pub(super) fn hmac_sha1(key: &[u8], message: &[u8]) -> Result<Vec<u8>, String> {
    digest::<Hmac<Sha1>>(key, message)
}

pub(super) fn hmac_sha256(key: &[u8], message: &[u8]) -> Result<Vec<u8>, String> {
    digest::<Hmac<Sha256>>(key, message)
}

pub(super) fn hmac_sha384(key: &[u8], message: &[u8]) -> Result<Vec<u8>, String> {
    digest::<Hmac<Sha384>>(key, message)
}

pub(super) fn hmac_sha512(key: &[u8], message: &[u8]) -> Result<Vec<u8>, String> {
    digest::<Hmac<Sha512>>(key, message)
}

fn digest<M: Mac + KeyInit>(key: &[u8], message: &[u8]) -> Result<Vec<u8>, String> {
    let mut mac = <M as KeyInit>::new_from_slice(key).map_err(|e| e.to_string())?;
    mac.update(message);
    Ok(mac.finalize().into_bytes().to_vec())
}

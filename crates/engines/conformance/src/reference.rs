//! RustCrypto, the implementation that all engines are compared with.

use aes::cipher::block_padding::NoPadding;
use aes::cipher::{BlockDecryptMut, BlockEncryptMut, KeyIvInit};
use aes::{Aes128, Aes256};
use aes_gcm::aead::{AeadInPlace, KeyInit};
use aes_gcm::{Aes128Gcm, Aes256Gcm};
use chacha20poly1305::ChaCha20Poly1305;
use hmac::{Hmac, Mac};
use sha1::Sha1;
use sha2::{Sha256, Sha384, Sha512};
use testudo_crypto::{AesKey, Cipher, Integrity, Suite};

/// Encrypts `text` in place and returns its ICV.
///
/// `key` is the cipher key, then the integrity key; `nonce` is salt and IV of an AEAD, and the IV in the
/// packet of another suite; `aad` is the SPI and the sequence number, of which suites that are no AEAD
/// authenticate the high half last.
///
/// # Errors
/// If a length is not one of the suite's.
pub fn seal(suite: Suite, key: &[u8], nonce: &[u8], aad: &[u8], text: &mut [u8]) -> Result<Vec<u8>, String> {
    fn with<A: AeadInPlace + KeyInit>(
        key: &[u8],
        nonce: &[u8],
        aad: &[u8],
        text: &mut [u8],
    ) -> Result<Vec<u8>, String> {
        let cipher = A::new_from_slice(key).map_err(|e| e.to_string())?;
        if nonce.len() != 12 {
            return Err(format!("a nonce of {} bytes", nonce.len()));
        }
        let nonce = aes_gcm::aead::Nonce::<A>::from_slice(nonce);
        let tag = cipher.encrypt_in_place_detached(nonce, aad, text).map_err(|e| e.to_string())?;
        Ok(tag.to_vec())
    }
    let (cipher_key, integrity_key) = key.split_at_checked(suite.key_bytes()).ok_or("the key is short")?;
    match suite.cipher() {
        Cipher::AesGcm(AesKey::Aes128) => return with::<Aes128Gcm>(key, nonce, aad, text),
        Cipher::AesGcm(AesKey::Aes256) => return with::<Aes256Gcm>(key, nonce, aad, text),
        Cipher::ChaCha20Poly1305 => return with::<ChaCha20Poly1305>(key, nonce, aad, text),
        Cipher::AesCbc(AesKey::Aes128) => encrypt_cbc::<cbc::Encryptor<Aes128>>(cipher_key, nonce, text)?,
        Cipher::AesCbc(AesKey::Aes256) => encrypt_cbc::<cbc::Encryptor<Aes256>>(cipher_key, nonce, text)?,
        Cipher::Null => {}
    }
    integrity_check_value(suite, integrity_key, &authenticated(nonce, aad, text)?)
}

fn encrypt_cbc<C: KeyIvInit + BlockEncryptMut>(key: &[u8], iv: &[u8], text: &mut [u8]) -> Result<(), String> {
    let cipher = C::new_from_slices(key, iv).map_err(|e| e.to_string())?;
    let len = text.len();
    cipher.encrypt_padded_mut::<NoPadding>(text, len).map(drop).map_err(|e| e.to_string())
}

/// SPI, low half of the number, IV, ciphertext, high half (RFC 4303 2.2.1).
fn authenticated(iv: &[u8], aad: &[u8], ciphertext: &[u8]) -> Result<Vec<u8>, String> {
    match aad {
        [a, b, c, d, high @ .., e, f, g, h] if [0, 4].contains(&high.len()) => {
            Ok([&[*a, *b, *c, *d, *e, *f, *g, *h], iv, ciphertext, high].concat())
        }
        _ => Err(format!("{} bytes are no SPI and number", aad.len())),
    }
}

/// The first bytes of the HMAC, as many as the suite's ICV has.
pub(crate) fn integrity_check_value(suite: Suite, key: &[u8], message: &[u8]) -> Result<Vec<u8>, String> {
    fn with<M: Mac + KeyInit>(key: &[u8], message: &[u8]) -> Result<Vec<u8>, String> {
        let mut mac = <M as KeyInit>::new_from_slice(key).map_err(|e| e.to_string())?;
        mac.update(message);
        Ok(mac.finalize().into_bytes().to_vec())
    }
    let mut digest = match suite.integrity() {
        Integrity::HmacSha1 => with::<Hmac<Sha1>>(key, message)?,
        Integrity::HmacSha256 => with::<Hmac<Sha256>>(key, message)?,
        Integrity::HmacSha384 => with::<Hmac<Sha384>>(key, message)?,
        Integrity::HmacSha512 => with::<Hmac<Sha512>>(key, message)?,
        Integrity::Combined => return Err(format!("{suite} has no HMAC")),
    };
    digest.truncate(suite.icv_bytes());
    Ok(digest)
}

/// What is in the IV's field before sealing: with CBC the block that becomes `iv` when the engine encrypts
/// it, the IV decrypted; otherwise the IV itself.
///
/// # Errors
/// If a length is not one of the suite's.
pub(crate) fn unique_block(suite: Suite, key: &[u8], iv: &[u8]) -> Result<Vec<u8>, String> {
    fn with<C: KeyIvInit + BlockDecryptMut>(key: &[u8], iv: &[u8]) -> Result<Vec<u8>, String> {
        let mut block = iv.to_vec();
        let cipher = C::new_from_slices(key, &[0; 16]).map_err(|e| e.to_string())?;
        cipher.decrypt_padded_mut::<NoPadding>(&mut block).map_err(|e| e.to_string())?;
        Ok(block)
    }
    let key = key.get(..suite.key_bytes()).ok_or("the key is short")?;
    match suite.cipher() {
        Cipher::AesCbc(AesKey::Aes128) => with::<cbc::Decryptor<Aes128>>(key, iv),
        Cipher::AesCbc(AesKey::Aes256) => with::<cbc::Decryptor<Aes256>>(key, iv),
        Cipher::AesGcm(_) | Cipher::ChaCha20Poly1305 | Cipher::Null => Ok(iv.to_vec()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vectors::hex;

    /// RFC 2202 3 (test cases 1, 2, 3 and 5), RFC 4868 2.7.2.1 (AUTH256-1 to 4), RFC 4231 4.3: the cases that
    /// fit no packet of a suite are shown here.
    #[test]
    fn the_references_hmac_gives_every_official_answer() {
        let ff = |byte: &str, count: usize| byte.repeat(count);
        let what = "7768617420646f2079612077616e7420666f72206e6f7468696e673f";
        let counting: String = (1..=32).map(|n| format!("{n:02x}")).collect();
        let cases = [
            (Suite::NULL_SHA1, ff("0b", 20), "4869205468657265".to_owned(), "b617318655057264e28bc0b6"),
            (Suite::NULL_SHA1, "4a656665".to_owned(), what.to_owned(), "effcdf6ae5eb2fa2d27416d5"),
            (Suite::NULL_SHA1, ff("aa", 20), ff("dd", 50), "125d7342b9ac11cd91a39af4"),
            (
                Suite::NULL_SHA1,
                ff("0c", 20),
                "546573742057697468205472756e636174696f6e".to_owned(),
                "4c1a03424b55e07fe7f27be1",
            ),
            (
                Suite::AES256_SHA256,
                ff("0b", 32),
                "4869205468657265".to_owned(),
                "198a607eb44bfbc69903a0f1cf2bbdc5",
            ),
            (Suite::AES256_SHA256, ff("4a656665", 8), what.to_owned(), "167f928588c5cc2eef8e3093caa0e87c"),
            (Suite::AES256_SHA256, ff("aa", 32), ff("dd", 50), "cdcb1220d1ecccea91e53aba3092f962"),
            (Suite::AES256_SHA256, counting, ff("cd", 50), "372efcf9b40b35c2115b1346903d2ef4"),
            (
                Suite::AES256_SHA256,
                "4a656665".to_owned(),
                what.to_owned(),
                "5bdcc146bf60754e6a042426089575c7",
            ),
        ];
        for (suite, key, message, icv) in cases {
            let found = integrity_check_value(suite, &hex(&key).unwrap(), &hex(&message).unwrap());
            assert_eq!(found, Ok(hex(icv).unwrap()), "{suite}, key {key}");
        }
    }
}

//! The implementation that all engines are compared with: for each algorithm one that shares no code with the
//! portable engine's, nor with intel-ipsec-mb.
//!
//! | algorithm | portable engine | here |
//! | --- | --- | --- |
//! | AES-GCM with whole ICVs, ChaCha20-Poly1305, AES-CBC, AES-CTR, HMAC with SHA | AWS-LC | RustCrypto |
//! | AES-GCM with short ICVs, AES-GMAC, AES-CCM, DES, 3DES, HMAC-MD5, XCBC, CMAC | RustCrypto, or composed | OpenSSL |

mod openssl;
mod rustcrypto;

use testudo_crypto::{Cipher, Integrity, NonceRule, Suite};

/// Encrypts `text` in place and returns its ICV.
///
/// `key` is the cipher key, then the integrity key; `salt` and `iv` are empty where there are none; `aad` is
/// the SPI and the sequence number, of which pairs authenticate the high half last.
///
/// # Errors
/// If a length is not one of the suite's.
pub fn seal(
    suite: Suite,
    key: &[u8],
    (salt, iv): (&[u8], &[u8]),
    aad: &[u8],
    text: &mut [u8],
) -> Result<Vec<u8>, String> {
    let (key, integrity_key) = key.split_at_checked(suite.key_bytes()).ok_or("the key is short")?;
    let nonce = &match suite.nonce_rule() {
        NonceRule::Explicit => [salt, iv].concat(),
        NonceRule::Counter => [salt, &implicit_iv(aad)?].concat(),
    };
    match suite.cipher() {
        Cipher::AesGmac(_) => {
            // RFC 4543 3.3: SPI, number, IV and payload, of which nothing is encrypted.
            return openssl::gcm(key, nonce, &[aad, iv, text].concat(), &mut [], suite.icv_bytes());
        }
        Cipher::AesGcm(_) | Cipher::AesGcmImplicitIv(_) if suite.icv_bytes() < 16 => {
            return openssl::gcm(key, nonce, aad, text, suite.icv_bytes());
        }
        Cipher::AesGcm(_) | Cipher::AesGcmImplicitIv(_) => return rustcrypto::gcm(key, nonce, aad, text),
        Cipher::ChaCha20Poly1305 | Cipher::ChaCha20Poly1305ImplicitIv => {
            return rustcrypto::chacha20_poly1305(key, nonce, aad, text);
        }
        Cipher::AesCcm(_) | Cipher::AesCcmImplicitIv(_) => {
            return openssl::ccm(key, nonce, aad, text, suite.icv_bytes());
        }
        Cipher::AesCbc(_) => rustcrypto::encrypt_cbc(key, iv, text)?,
        Cipher::AesCtr(_) => rustcrypto::apply_ctr(key, nonce, text)?,
        Cipher::DesCbc | Cipher::TripleDesCbc => openssl::encrypt_des(key, iv, text)?,
        Cipher::AesGcmVpe(_) | Cipher::ChaCha20Poly1305Vpe => {
            return Err(format!("{suite} of VPE has no packets of ESP: see docs/vpe-vectors.json"));
        }
        Cipher::Null => {}
    }
    integrity_check_value(suite, integrity_key, &authenticated(iv, aad, text)?)
}

/// The ICV of AH (RFC 4302 3.3.3): of the header and text, and last of the number's high half. The IV that
/// AES-GMAC has between header and text is part of the field that carries the ICV, and counts as zeros (RFC
/// 4543 4).
pub(crate) fn ah(
    suite: Suite,
    key: &[u8],
    (salt, iv): (&[u8], &[u8]),
    header: &[u8],
    text: &[u8],
    high_half: &[u8],
) -> Result<Vec<u8>, String> {
    let covered = [header, &vec![0; iv.len()], text, high_half].concat();
    match suite.cipher() {
        Cipher::AesGmac(_) => openssl::gcm(key, &[salt, iv].concat(), &covered, &mut [], suite.icv_bytes()),
        Cipher::Null => integrity_check_value(suite, key, &covered),
        _ => Err(format!("{suite} encrypts")),
    }
}

/// The number that is in `aad`, with zeros before it if it has 32 bits (RFC 8750 4).
fn implicit_iv(aad: &[u8]) -> Result<[u8; 8], String> {
    match *aad {
        [_, _, _, _, e, f, g, h] => Ok([0, 0, 0, 0, e, f, g, h]),
        [_, _, _, _, a, b, c, d, e, f, g, h] => Ok([a, b, c, d, e, f, g, h]),
        _ => Err(format!("{} bytes are no SPI and number", aad.len())),
    }
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

/// The first bytes of the integrity algorithm's digest, as many as the suite's ICV has.
pub(crate) fn integrity_check_value(suite: Suite, key: &[u8], message: &[u8]) -> Result<Vec<u8>, String> {
    let mut digest = match suite.integrity() {
        Integrity::HmacMd5 => openssl::hmac_md5(key, message)?,
        Integrity::HmacSha1 => rustcrypto::hmac_sha1(key, message)?,
        Integrity::HmacSha256 => rustcrypto::hmac_sha256(key, message)?,
        Integrity::HmacSha384 => rustcrypto::hmac_sha384(key, message)?,
        Integrity::HmacSha512 => rustcrypto::hmac_sha512(key, message)?,
        Integrity::AesXcbc => openssl::xcbc(key, message)?,
        Integrity::AesCmac => openssl::cmac(key, message)?,
        Integrity::None => Vec::new(),
        Integrity::Combined => return Err(format!("{suite} has no integrity algorithm of its own")),
    };
    digest.truncate(suite.icv_bytes());
    Ok(digest)
}

/// What is in the IV's field before sealing: for CBC the block that becomes `iv` when the engine encrypts it,
/// which is the IV decrypted; otherwise the IV.
///
/// # Errors
/// If a length is not one of the suite's.
pub(crate) fn unsealed_iv(suite: Suite, key: &[u8], iv: &[u8]) -> Result<Vec<u8>, String> {
    let key = key.get(..suite.key_bytes()).ok_or("the key is short")?;
    match suite.cipher() {
        Cipher::AesCbc(_) => rustcrypto::decrypt_block(key, iv),
        Cipher::DesCbc | Cipher::TripleDesCbc => openssl::decrypt_des_block(key, iv),
        _ => Ok(iv.to_vec()),
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

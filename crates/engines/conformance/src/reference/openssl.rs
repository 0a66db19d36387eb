//! OpenSSL, beside RustCrypto and what the portable engine composes.

use openssl::cipher::{Cipher as Aes, CipherRef};
use openssl::cipher_ctx::CipherCtx;
use openssl::error::ErrorStack;
use openssl::hash::MessageDigest;
use openssl::pkey::PKey;
use openssl::sign::Signer;
use openssl::symm::{Cipher, Crypter, Mode};

/// AES-GCM with an ICV of any length.
pub(super) fn gcm(
    key: &[u8],
    nonce: &[u8],
    aad: &[u8],
    text: &mut [u8],
    icv_bytes: usize,
) -> Result<Vec<u8>, String> {
    let cipher = by_key([Aes::aes_128_gcm(), Aes::aes_192_gcm(), Aes::aes_256_gcm()], key);
    let mut with = || {
        let mut context = begun(cipher, nonce)?;
        context.encrypt_init(None, Some(key), Some(nonce))?;
        finished(&mut context, aad, text, icv_bytes)
    };
    with().map_err(told)
}

/// AES-CCM with an ICV of any length. It must know the lengths of ICV and text before it starts.
pub(super) fn ccm(
    key: &[u8],
    nonce: &[u8],
    aad: &[u8],
    text: &mut [u8],
    icv_bytes: usize,
) -> Result<Vec<u8>, String> {
    let cipher = by_key([Aes::aes_128_ccm(), Aes::aes_192_ccm(), Aes::aes_256_ccm()], key);
    let mut with = || {
        let mut context = begun(cipher, nonce)?;
        context.set_tag_length(icv_bytes)?;
        context.encrypt_init(None, Some(key), Some(nonce))?;
        context.set_data_len(text.len())?;
        finished(&mut context, aad, text, icv_bytes)
    };
    with().map_err(told)
}

fn by_key<T>([small, middle, large]: [T; 3], key: &[u8]) -> T {
    match key.len() {
        16 => small,
        24 => middle,
        _ => large,
    }
}

fn begun(cipher: &CipherRef, nonce: &[u8]) -> Result<CipherCtx, ErrorStack> {
    let mut context = CipherCtx::new()?;
    context.encrypt_init(Some(cipher), None, None)?;
    context.set_iv_length(nonce.len())?;
    Ok(context)
}

fn finished(
    context: &mut CipherCtx,
    aad: &[u8],
    text: &mut [u8],
    icv_bytes: usize,
) -> Result<Vec<u8>, ErrorStack> {
    let (mut sealed, mut icv) = (vec![0; text.len() + 16], vec![0; icv_bytes]);
    context.cipher_update(aad, None)?;
    let count = context.cipher_update(text, Some(&mut sealed))?;
    context.cipher_final(&mut sealed[count..])?;
    context.tag(&mut icv)?;
    text.copy_from_slice(&sealed[..count]);
    Ok(icv)
}

/// DES-CBC or 3DES-CBC of whole blocks, by the length of the key.
pub(super) fn encrypt_des(key: &[u8], iv: &[u8], text: &mut [u8]) -> Result<(), String> {
    let sealed = des(key, iv, text, Mode::Encrypt).map_err(told)?;
    text.copy_from_slice(&sealed);
    Ok(())
}

/// One block decrypted by DES or 3DES.
pub(super) fn decrypt_des_block(key: &[u8], block: &[u8]) -> Result<Vec<u8>, String> {
    des(key, &[0; 8], block, Mode::Decrypt).map_err(told)
}

/// OpenSSL has no more DES unless it is asked for its legacy algorithms, but 3DES with one key three times is
/// DES (SP 800-67 3).
fn des(key: &[u8], iv: &[u8], text: &[u8], mode: Mode) -> Result<Vec<u8>, ErrorStack> {
    let key = if key.len() == 8 { key.repeat(3) } else { key.to_vec() };
    let mut crypter = Crypter::new(Cipher::des_ede3_cbc(), mode, &key, Some(iv))?;
    crypter.pad(false);
    let mut out = vec![0; text.len() + iv.len()];
    let count = crypter.update(text, &mut out)?;
    let rest = crypter.finalize(&mut out[count..])?;
    out.truncate(count + rest);
    Ok(out)
}

pub(super) fn hmac_md5(key: &[u8], message: &[u8]) -> Result<Vec<u8>, String> {
    let with = || {
        let key = PKey::hmac(key)?;
        Signer::new(MessageDigest::md5(), &key)?.sign_oneshot_to_vec(message)
    };
    with().map_err(told)
}

/// AES-CMAC with a key of 128 bits.
pub(super) fn cmac(key: &[u8], message: &[u8]) -> Result<Vec<u8>, String> {
    let with = || {
        let key = PKey::cmac(&Cipher::aes_128_cbc(), key)?;
        Signer::new_without_digest(&key)?.sign_oneshot_to_vec(message)
    };
    with().map_err(told)
}

/// AES-XCBC-MAC, composed as RFC 3566 4 says it: the message is padded and masked first, and its last block
/// of CBC is the tag.
pub(super) fn xcbc(key: &[u8], message: &[u8]) -> Result<Vec<u8>, String> {
    let derived = |number: u8| encrypt_cbc(key, &[number; 16]);
    let with = || {
        let mut padded = message.to_vec();
        let is_whole = !message.is_empty() && message.len().is_multiple_of(16);
        if !is_whole {
            padded.push(0x80);
            padded.resize(padded.len().next_multiple_of(16), 0);
        }
        let mask = derived(if is_whole { 2 } else { 3 })?;
        let last = padded.len() - 16;
        padded[last..].iter_mut().zip(mask).for_each(|(byte, mask)| *byte ^= mask);
        Ok(encrypt_cbc(&derived(1)?, &padded)?.split_off(last))
    };
    with().map_err(told)
}

/// AES-128-CBC of whole blocks from an IV of zeros.
fn encrypt_cbc(key: &[u8], blocks: &[u8]) -> Result<Vec<u8>, ErrorStack> {
    let mut crypter = Crypter::new(Cipher::aes_128_cbc(), Mode::Encrypt, key, Some(&[0; 16]))?;
    crypter.pad(false);
    let mut out = vec![0; blocks.len() + 16];
    let count = crypter.update(blocks, &mut out)?;
    out.truncate(count);
    Ok(out)
}

#[allow(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn told(error: ErrorStack) -> String {
    error.to_string()
}

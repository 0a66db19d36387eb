//! Ciphers in CBC: AES (RFC 3602) by AWS-LC, DES (RFC 2405) and 3DES (RFC 2451) by RustCrypto.

use crate::{AesKey, Cipher, Direction};
use aws_lc_rs::cipher::{
    AES_128, AES_192, AES_256, DecryptingKey, DecryptionContext, EncryptingKey, EncryptionContext,
    UnboundCipherKey,
};
use aws_lc_rs::iv::FixedLength;
use cbc::cipher::array::Array;
use cbc::cipher::consts::U8;
use cbc::cipher::{
    BlockCipherDecrypt, BlockCipherEncrypt, BlockModeDecrypt, BlockModeEncrypt, InnerIvInit, KeyInit,
};
use cbc::{Decryptor, Encryptor};
use des::{Des, TdesEde3};

/// A cipher's key for one direction. All zero it when they are dropped.
pub(super) enum CbcKey {
    SealAes(EncryptingKey),
    OpenAes(DecryptingKey),
    Des(Des),
    TripleDes(TdesEde3),
}

impl CbcKey {
    /// `None` for another cipher, for a key of the wrong length, and if memory runs out.
    pub(super) fn new(cipher: Cipher, key: &[u8], direction: Direction) -> Option<Self> {
        let aes = match cipher {
            Cipher::AesCbc(AesKey::Aes128) => &AES_128,
            Cipher::AesCbc(AesKey::Aes192) => &AES_192,
            Cipher::AesCbc(AesKey::Aes256) => &AES_256,
            Cipher::DesCbc => return Des::new_from_slice(key).ok().map(Self::Des),
            Cipher::TripleDesCbc => return TdesEde3::new_from_slice(key).ok().map(Self::TripleDes),
            _ => return None,
        };
        let key = UnboundCipherKey::new(aes, key).ok()?;
        match direction {
            Direction::Seal => EncryptingKey::cbc(key).ok().map(Self::SealAes),
            Direction::Open => DecryptingKey::cbc(key).ok().map(Self::OpenAes),
        }
    }

    /// Encrypts whole blocks from an IV of zeros: the unique block in front of the text becomes the IV (see
    /// [`Job`](crate::Job)). `None` if the length is no multiple of the block, before anything is encrypted,
    /// or if the key is for the other direction.
    pub(super) fn encrypt(&self, blocks: &mut [u8]) -> Option<()> {
        match self {
            Self::SealAes(key) => {
                let zeros = EncryptionContext::Iv128(FixedLength::from([0; 16]));
                key.less_safe_encrypt(blocks, zeros).ok().map(drop)
            }
            Self::OpenAes(_) => None,
            Self::Des(key) => encrypt_des(key, blocks),
            Self::TripleDes(key) => encrypt_des(key, blocks),
        }
    }

    /// Decrypts whole blocks; `None` as for [`encrypt`](Self::encrypt).
    pub(super) fn decrypt(&self, iv: &[u8], blocks: &mut [u8]) -> Option<()> {
        match self {
            Self::OpenAes(key) => {
                let iv = DecryptionContext::Iv128(FixedLength::from(*iv.as_array()?));
                key.decrypt(blocks, iv).ok().map(drop)
            }
            Self::SealAes(_) => None,
            Self::Des(key) => decrypt_des(key, iv, blocks),
            Self::TripleDes(key) => decrypt_des(key, iv, blocks),
        }
    }
}

fn encrypt_des<C: BlockCipherEncrypt<BlockSize = U8>>(key: &C, blocks: &mut [u8]) -> Option<()> {
    let (blocks, rest) = Array::slice_as_chunks_mut(blocks);
    rest.is_empty().then(|| Encryptor::inner_iv_init(key, &Array::default()).encrypt_blocks(blocks))
}

fn decrypt_des<C: BlockCipherDecrypt<BlockSize = U8>>(key: &C, iv: &[u8], blocks: &mut [u8]) -> Option<()> {
    let iv = Array::try_from(iv).ok()?;
    let (blocks, rest) = Array::slice_as_chunks_mut(blocks);
    rest.is_empty().then(|| Decryptor::inner_iv_init(key, &iv).decrypt_blocks(blocks))
}

//! AES in counter mode, by AWS-LC: for AES-CTR (RFC 3686), and as one half of AES-GCM.

use aws_lc_rs::cipher::{AES_128, AES_192, AES_256, EncryptingKey, EncryptionContext, UnboundCipherKey};
use aws_lc_rs::iv::FixedLength;

/// Bytes of a nonce: salt and IV (RFC 3686 4, RFC 4106 4).
pub(super) const NONCE_BYTES: usize = 12;

/// An expanded key. AWS-LC's binding zeroes it when it is dropped.
pub(super) struct CtrKey(EncryptingKey);

impl CtrKey {
    /// A key of 16, 24 or 32 bytes; `None` for another length, or if memory runs out.
    pub(super) fn new(key: &[u8]) -> Option<Self> {
        let algorithm = match key.len() {
            16 => &AES_128,
            24 => &AES_192,
            32 => &AES_256,
            _ => return None,
        };
        EncryptingKey::ctr(UnboundCipherKey::new(algorithm, key).ok()?).ok().map(Self)
    }

    /// XORs the key stream into `text`, whose first block is encrypted under nonce and counter. It is its own
    /// inverse. `None` if AWS-LC fails, before it changes anything.
    pub(super) fn apply(&self, nonce: &[u8; NONCE_BYTES], counter: u32, text: &mut [u8]) -> Option<()> {
        let mut block = [0; NONCE_BYTES + 4];
        block[..NONCE_BYTES].copy_from_slice(nonce);
        block[NONCE_BYTES..].copy_from_slice(&counter.to_be_bytes());
        let context = EncryptionContext::Iv128(FixedLength::from(block));
        self.0.less_safe_encrypt(text, context).ok().map(drop)
    }
}

//! Keys: held in memory that is zeroed, and never shown.

use crate::{Cipher, KeyFrame, Suite};
use std::fmt;
use zeroize::Zeroizing;

/// The keying material of one SA: cipher key, its salt, then the integrity key. Zeroed when dropped; `Debug`
/// does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyMaterial {
    suite: Suite,
    bytes: Zeroizing<Vec<u8>>,
    frame: Option<KeyFrame>,
}

/// The keying material does not fit its suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyMaterialError {
    /// It has the wrong length.
    #[error("{suite} wants {expected} bytes of keying material ({parts}), not {found}", parts = suite.keying_material_parts())]
    Length {
        /// The suite.
        suite: Suite,
        /// Bytes it needs.
        expected: usize,
        /// Bytes that were given.
        found: usize,
    },
    /// The first and the second of the keys of 3DES, or the second and the third, are equal: the two undo
    /// each other, and what remains is DES (RFC 2451 2.3).
    #[error("two of the three keys of 3DES are equal, so that it would be DES (RFC 2451 2.3)")]
    EqualDesKeys,
}

impl KeyMaterial {
    /// Keying material for `suite`: the cipher key, its salt, then the integrity key, where there are such.
    ///
    /// # Errors
    /// [`KeyMaterialError`] if the length is not [`Suite::keying_material_bytes`], or if the keys of 3DES are
    /// not independent.
    pub fn new(suite: Suite, bytes: Zeroizing<Vec<u8>>) -> Result<Self, KeyMaterialError> {
        let (expected, found) = (suite.keying_material_bytes(), bytes.len());
        if expected != found {
            return Err(KeyMaterialError::Length { suite, expected, found });
        }
        let material = Self { suite, bytes, frame: None };
        if suite.cipher() == Cipher::TripleDesCbc && has_equal_neighbours(material.key()) {
            return Err(KeyMaterialError::EqualDesKeys);
        }
        Ok(material)
    }

    /// The same for an SA of ESP with such frames, which an engine may write.
    #[must_use]
    pub fn with_frame(self, frame: KeyFrame) -> Self {
        Self { frame: Some(frame), ..self }
    }

    /// What the frames of its SA have in common, if an engine may write them.
    #[must_use]
    pub fn frame(&self) -> Option<KeyFrame> {
        self.frame
    }

    /// The suite it is for.
    #[must_use]
    pub fn suite(&self) -> Suite {
        self.suite
    }

    /// The cipher key; empty where the suite does not encrypt.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.bytes[..self.suite.key_bytes()]
    }

    /// The salt, first part of every nonce; empty where nonces have none.
    #[must_use]
    pub fn salt(&self) -> &[u8] {
        &self.bytes[self.suite.key_bytes()..][..self.suite.salt_bytes()]
    }

    /// The [`salt`](Self::salt) as the first 4 bytes of a nonce of 12, after a zero where it has 3; zeros for
    /// a suite without one.
    #[must_use]
    pub fn nonce_salt(&self) -> Zeroizing<[u8; 4]> {
        let mut salt = Zeroizing::new([0; 4]);
        salt.iter_mut().rev().zip(self.salt().iter().rev()).for_each(|(to, from)| *to = *from);
        salt
    }

    /// The key of the integrity algorithm; empty for a combined mode.
    #[must_use]
    pub fn integrity_key(&self) -> &[u8] {
        &self.bytes[self.suite.key_bytes() + self.suite.salt_bytes()..]
    }
}

/// Whether of three keys of DES two that follow each other are equal. The lowest bit of each byte is parity,
/// and no part of the key.
fn has_equal_neighbours(keys: &[u8]) -> bool {
    const KEY_BYTES: usize = 8;
    let parted = keys.iter().zip(keys.iter().skip(KEY_BYTES)).map(|(one, next)| (one ^ next) & 0xFE);
    let differences: Zeroizing<Vec<u8>> = parted.collect::<Vec<u8>>().into();
    differences.chunks(KEY_BYTES).any(|pair| pair.iter().all(|bits| *bits == 0))
}

impl fmt::Debug for KeyMaterial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyMaterial({}, hidden)", self.suite)
    }
}

/// Handle of a key that an engine holds: [`Engine::install`](crate::Engine::install) returns it and jobs
/// carry it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyId(pub u32);

impl KeyId {
    /// The id of no key: a job under it ends as a fault.
    pub const NONE: Self = Self(u32::MAX);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn material(suite: &str, bytes: Vec<u8>) -> Result<KeyMaterial, KeyMaterialError> {
        KeyMaterial::new(suite.parse().unwrap(), bytes.into())
    }

    /// RFC 2451 2.3: the first two, or the last two, of the three keys. RFC 2451 2.2: parity does not count.
    #[test]
    fn keys_of_3des_that_make_des_of_it_are_refused() {
        let keys = |one: u8, two: u8, three: u8| [[one; 8], [two; 8], [three; 8], [9; 8], [9; 8]].concat();
        let with = |bytes: Vec<u8>| material("3des-md5", bytes).map(drop);
        assert_eq!(with(keys(2, 4, 6)), Ok(()));
        assert_eq!(with(keys(2, 4, 2)), Ok(()));
        for weak in [keys(2, 2, 6), keys(2, 6, 6), keys(2, 2, 2), keys(2, 3, 6), keys(2, 7, 6)] {
            assert_eq!(with(weak), Err(KeyMaterialError::EqualDesKeys));
        }
        assert!(material("aes192-md5", keys(2, 2, 2)).is_ok());
    }

    /// RFC 7296 2.17: encryption before integrity; RFC 3686 5.1: the salt is the end of the cipher's key.
    #[test]
    fn keying_material_is_cipher_key_then_salt_then_integrity_key() {
        let key = material("aes128ctr-md5", (0..36).collect()).unwrap();
        assert_eq!(key.key(), (0..16).collect::<Vec<u8>>());
        assert_eq!((key.salt(), *key.nonce_salt()), (&[16, 17, 18, 19][..], [16, 17, 18, 19]));
        assert_eq!(key.integrity_key(), (20..36).collect::<Vec<u8>>());
        let key = material("aes128ccm8", (0..19).collect()).unwrap();
        assert_eq!((key.salt(), *key.nonce_salt()), (&[16, 17, 18][..], [0, 16, 17, 18]));
        let error = material("aes128ctr-md5", vec![0; 35]).unwrap_err().to_string();
        let parts = "cipher key, then salt, then integrity key";
        assert_eq!(error, format!("aes128ctr-md5 wants 36 bytes of keying material ({parts}), not 35"));
    }
}

//! Keys: held in memory that is zeroed, and never shown.

use crate::Suite;
use std::fmt;
use zeroize::Zeroizing;

/// The keying material of one SA: cipher key, then integrity key or salt. Zeroed when dropped; `Debug` does
/// not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyMaterial {
    suite: Suite,
    bytes: Zeroizing<Vec<u8>>,
}

/// The keying material does not fit its suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{suite} wants {expected} bytes of keying material ({parts}), not {found}", parts = suite.keying_material_parts())]
pub struct KeyMaterialError {
    /// The suite.
    pub suite: Suite,
    /// Bytes it needs.
    pub expected: usize,
    /// Bytes that were given.
    pub found: usize,
}

impl KeyMaterial {
    /// Keying material for `suite`: the cipher key followed by the integrity key or the salt.
    ///
    /// # Errors
    /// [`KeyMaterialError`] if the length is not [`Suite::keying_material_bytes`].
    pub fn new(suite: Suite, bytes: Zeroizing<Vec<u8>>) -> Result<Self, KeyMaterialError> {
        let (expected, found) = (suite.keying_material_bytes(), bytes.len());
        if expected != found {
            return Err(KeyMaterialError { suite, expected, found });
        }
        Ok(Self { suite, bytes })
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

    /// The key of the integrity algorithm; empty for an AEAD.
    #[must_use]
    pub fn integrity_key(&self) -> &[u8] {
        &self.bytes[self.suite.key_bytes()..][..self.suite.integrity_key_bytes()]
    }

    /// The salt, first part of every nonce; empty for a suite without one.
    #[must_use]
    pub fn salt(&self) -> &[u8] {
        &self.bytes[self.suite.key_bytes() + self.suite.integrity_key_bytes()..]
    }

    /// The [`salt`](Self::salt) as the first 4 bytes of a nonce of 12, after a zero where it has 3; zeros for
    /// a suite without one.
    #[must_use]
    pub fn nonce_salt(&self) -> Zeroizing<[u8; 4]> {
        let mut salt = Zeroizing::new([0; 4]);
        salt.iter_mut().rev().zip(self.salt().iter().rev()).for_each(|(to, from)| *to = *from);
        salt
    }
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

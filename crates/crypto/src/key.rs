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

    /// The salt, first part of every nonce; empty for a suite that is no AEAD.
    #[must_use]
    pub fn salt(&self) -> &[u8] {
        &self.bytes[self.suite.key_bytes() + self.suite.integrity_key_bytes()..]
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

//! The algorithms of an SA.

use std::fmt;
use std::str::FromStr;

/// Which way an SA goes: `Seal` encrypts and makes the ICV, `Open` checks it and decrypts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Outbound: encrypt and authenticate.
    Seal,
    /// Inbound: verify and decrypt.
    Open,
}

/// The algorithms of an SA, named by the proposal keywords that strongSwan users write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Suite {
    /// AES-GCM with a 128-bit key and a 16-byte ICV (RFC 4106).
    Aes128Gcm16,
    /// AES-GCM with a 256-bit key and a 16-byte ICV (RFC 4106).
    Aes256Gcm16,
    /// ChaCha20 and Poly1305 (RFC 7634).
    ChaCha20Poly1305,
}

impl Suite {
    /// All suites.
    pub const ALL: &'static [Suite] = &[Suite::Aes128Gcm16, Suite::Aes256Gcm16, Suite::ChaCha20Poly1305];

    /// The name in configuration and tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Suite::Aes128Gcm16 => "aes128gcm16",
            Suite::Aes256Gcm16 => "aes256gcm16",
            Suite::ChaCha20Poly1305 => "chacha20poly1305",
        }
    }

    /// Bytes of the cipher key, salt not counted.
    #[must_use]
    pub const fn key_bytes(self) -> usize {
        match self {
            Suite::Aes128Gcm16 => 16,
            Suite::Aes256Gcm16 | Suite::ChaCha20Poly1305 => 32,
        }
    }

    /// Bytes of salt, the first part of the nonce (RFC 4106 4, RFC 7634 2).
    #[must_use]
    pub const fn salt_bytes(self) -> usize {
        4
    }

    /// Bytes of keying material: key, then salt (RFC 4106 8.1, RFC 7634 2).
    #[must_use]
    pub const fn keying_material_bytes(self) -> usize {
        self.key_bytes() + self.salt_bytes()
    }

    /// Bytes of the IV that each packet carries behind the ESP header.
    #[must_use]
    pub const fn iv_bytes(self) -> usize {
        8
    }

    /// Bytes of the integrity check value at the packet's end.
    #[must_use]
    pub const fn icv_bytes(self) -> usize {
        16
    }

    /// What the length of the ciphertext must be a multiple of (RFC 4303 2.4), in bytes.
    #[must_use]
    pub const fn alignment_bytes(self) -> usize {
        4
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// No suite has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown suite \"{0}\"")]
pub struct UnknownSuite(pub String);

impl FromStr for Suite {
    type Err = UnknownSuite;

    fn from_str(name: &str) -> Result<Self, UnknownSuite> {
        Suite::ALL.iter().copied().find(|s| s.name() == name).ok_or_else(|| UnknownSuite(name.to_owned()))
    }
}

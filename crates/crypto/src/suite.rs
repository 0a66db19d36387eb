//! The algorithms of an SA.

use std::fmt;
use std::str::FromStr;

/// Direction of an SA: `Seal` encrypts and makes the ICV, `Open` checks it and decrypts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Outbound: encrypt and authenticate.
    Seal,
    /// Inbound: verify and decrypt.
    Open,
}

/// The algorithms of an SA, named by the proposal keywords that strongSwan users write.
///
/// The first three are AEADs. The others combine a cipher and an integrity algorithm, each with a key of its
/// own: they encrypt, then authenticate the ESP header, the IV, the ciphertext and, with ESN, the number's
/// high half (RFC 4303 2.2.1, 3.3.2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Suite {
    /// AES-GCM with a 128-bit key and a 16-byte ICV (RFC 4106).
    Aes128Gcm16,
    /// AES-GCM with a 256-bit key and a 16-byte ICV (RFC 4106).
    Aes256Gcm16,
    /// ChaCha20 and Poly1305 (RFC 7634).
    ChaCha20Poly1305,
    /// AES-CBC with a 128-bit key (RFC 3602) and HMAC-SHA-1-96 (RFC 2404).
    Aes128Sha1,
    /// AES-CBC with a 256-bit key (RFC 3602) and HMAC-SHA-256-128 (RFC 4868).
    Aes256Sha256,
    /// No encryption (RFC 2410) and HMAC-SHA-1-96 (RFC 2404).
    NullSha1,
}

/// How a packet's nonce is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NonceRule {
    /// From the IV that the packet carries, which may be any value that no other packet under the key has
    /// (RFC 4106 3.1, RFC 7634 2, RFC 3602 3); or there is none.
    Explicit,
    /// From the sequence number itself, as with an implicit IV (RFC 8750): restarting the count under the
    /// same key repeats nonces.
    Counter,
}

/// Bytes of an AES block.
const AES_BLOCK_BYTES: usize = 16;

impl Suite {
    /// All suites.
    pub const ALL: &'static [Suite] = &[
        Suite::Aes128Gcm16,
        Suite::Aes256Gcm16,
        Suite::ChaCha20Poly1305,
        Suite::Aes128Sha1,
        Suite::Aes256Sha256,
        Suite::NullSha1,
    ];

    /// The name in configuration and tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Suite::Aes128Gcm16 => "aes128gcm16",
            Suite::Aes256Gcm16 => "aes256gcm16",
            Suite::ChaCha20Poly1305 => "chacha20poly1305",
            Suite::Aes128Sha1 => "aes128-sha1",
            Suite::Aes256Sha256 => "aes256-sha256",
            Suite::NullSha1 => "null-sha1",
        }
    }

    /// Whether one algorithm encrypts and authenticates; the others combine two.
    #[must_use]
    pub const fn is_aead(self) -> bool {
        matches!(self, Suite::Aes128Gcm16 | Suite::Aes256Gcm16 | Suite::ChaCha20Poly1305)
    }

    /// Whether it encrypts. Packets of other suites are authentic but readable by everybody (RFC 2410).
    #[must_use]
    pub const fn encrypts(self) -> bool {
        !matches!(self, Suite::NullSha1)
    }

    /// How its nonces are made.
    #[must_use]
    pub const fn nonce_rule(self) -> NonceRule {
        match self {
            Suite::Aes128Gcm16
            | Suite::Aes256Gcm16
            | Suite::ChaCha20Poly1305
            | Suite::Aes128Sha1
            | Suite::Aes256Sha256
            | Suite::NullSha1 => NonceRule::Explicit,
        }
    }

    /// Bytes of the cipher key, salt and integrity key not counted.
    #[must_use]
    pub const fn key_bytes(self) -> usize {
        match self {
            Suite::Aes128Gcm16 | Suite::Aes128Sha1 => 16,
            Suite::Aes256Gcm16 | Suite::ChaCha20Poly1305 | Suite::Aes256Sha256 => 32,
            Suite::NullSha1 => 0,
        }
    }

    /// Bytes of the key of the integrity algorithm, as long as its digest (RFC 2404 3, RFC 4868 2.1.1); an
    /// AEAD has none.
    #[must_use]
    pub const fn integrity_key_bytes(self) -> usize {
        match self {
            Suite::Aes128Gcm16 | Suite::Aes256Gcm16 | Suite::ChaCha20Poly1305 => 0,
            Suite::Aes128Sha1 | Suite::NullSha1 => 20,
            Suite::Aes256Sha256 => 32,
        }
    }

    /// Bytes of salt, the first part of an AEAD's nonce (RFC 4106 4, RFC 7634 2).
    #[must_use]
    pub const fn salt_bytes(self) -> usize {
        if self.is_aead() { 4 } else { 0 }
    }

    /// Bytes of keying material: cipher key, then integrity key or salt (RFC 4106 8.1, RFC 7634 2; RFC 7296
    /// 2.17 has that order).
    #[must_use]
    pub const fn keying_material_bytes(self) -> usize {
        self.key_bytes() + self.integrity_key_bytes() + self.salt_bytes()
    }

    /// The parts of the keying material in their order, for messages.
    #[must_use]
    pub const fn keying_material_parts(self) -> &'static str {
        match self {
            Suite::Aes128Gcm16 | Suite::Aes256Gcm16 | Suite::ChaCha20Poly1305 => "key, then salt",
            Suite::Aes128Sha1 | Suite::Aes256Sha256 => "cipher key, then integrity key",
            Suite::NullSha1 => "integrity key",
        }
    }

    /// Bytes of the IV that each packet carries after the ESP header.
    #[must_use]
    pub const fn iv_bytes(self) -> usize {
        match self {
            Suite::Aes128Gcm16 | Suite::Aes256Gcm16 | Suite::ChaCha20Poly1305 => 8,
            Suite::Aes128Sha1 | Suite::Aes256Sha256 => AES_BLOCK_BYTES,
            Suite::NullSha1 => 0,
        }
    }

    /// Bytes of the integrity check value at the packet's end.
    #[must_use]
    pub const fn icv_bytes(self) -> usize {
        match self {
            Suite::Aes128Gcm16 | Suite::Aes256Gcm16 | Suite::ChaCha20Poly1305 | Suite::Aes256Sha256 => 16,
            Suite::Aes128Sha1 | Suite::NullSha1 => 12,
        }
    }

    /// The cipher's block in bytes: a text that is no multiple of it can be neither encrypted nor decrypted.
    #[must_use]
    pub const fn block_bytes(self) -> usize {
        match self {
            Suite::Aes128Sha1 | Suite::Aes256Sha256 => AES_BLOCK_BYTES,
            _ => 1,
        }
    }

    /// The length of the ciphertext must be a multiple of this (RFC 4303 2.4), in bytes.
    #[must_use]
    pub const fn alignment_bytes(self) -> usize {
        if self.block_bytes() > 4 { self.block_bytes() } else { 4 }
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

//! The algorithms of an SA.
//!
//! ```text
//!   Suite   a pair, and the length of its ICV         aes128gcm16        aes256-sha256
//!     Cipher      one constant each (`cipher`)        aes128gcm          aes256
//!     Integrity   one constant each (`integrity`)     (the cipher's own)       sha256
//! ```
//!
//! Names are strongSwan's proposal keywords, read and written by a grammar (`proposal`). Nobody lists all
//! suites: a suite is what its two primitives and their constants say, and engines match on the primitives
//! that they do.

mod cipher;
mod integrity;
mod proposal;

pub use cipher::{AesKey, Cipher, CipherInfo, NonceRule};
pub use integrity::{Integrity, IntegrityInfo};
pub use proposal::ProposalError;

/// Direction of an SA: `Seal` encrypts and makes the ICV, `Open` checks it and decrypts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Outbound: encrypt and authenticate.
    Seal,
    /// Inbound: verify and decrypt.
    Open,
}

/// The algorithms of an SA: a combined mode, or a cipher and an integrity algorithm, each with its own key.
///
/// A pair encrypts, then authenticates the ESP header, the IV, the ciphertext and, with ESN, the number's
/// high half (RFC 4303 2.2.1, 3.3.2.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Suite {
    cipher: Cipher,
    integrity: Integrity,
    icv_bytes: u8,
}

impl Suite {
    /// AES-GCM with a 128-bit key and a 16-byte ICV (RFC 4106).
    pub const AES128GCM16: Suite = Suite::combined(Cipher::AesGcm(AesKey::Aes128), 16);
    /// AES-GCM with a 256-bit key and a 16-byte ICV (RFC 4106).
    pub const AES256GCM16: Suite = Suite::combined(Cipher::AesGcm(AesKey::Aes256), 16);
    /// ChaCha20 and Poly1305 (RFC 7634).
    pub const CHACHA20POLY1305: Suite = Suite::combined(Cipher::ChaCha20Poly1305, 16);
    /// AES-CBC with a 128-bit key (RFC 3602) and HMAC-SHA-1-96 (RFC 2404).
    pub const AES128_SHA1: Suite = Suite::pair(Cipher::AesCbc(AesKey::Aes128), Integrity::HmacSha1);
    /// AES-CBC with a 256-bit key (RFC 3602) and HMAC-SHA-256-128 (RFC 4868).
    pub const AES256_SHA256: Suite = Suite::pair(Cipher::AesCbc(AesKey::Aes256), Integrity::HmacSha256);
    /// No encryption (RFC 2410) and HMAC-SHA-1-96 (RFC 2404).
    pub const NULL_SHA1: Suite = Suite::pair(Cipher::Null, Integrity::HmacSha1);
    /// No encryption (RFC 2410) and HMAC-SHA-384-192 (RFC 4868).
    pub const NULL_SHA384: Suite = Suite::pair(Cipher::Null, Integrity::HmacSha384);
    /// No encryption (RFC 2410) and HMAC-SHA-512-256 (RFC 4868).
    pub const NULL_SHA512: Suite = Suite::pair(Cipher::Null, Integrity::HmacSha512);

    /// Every combined mode with every length of its ICV, then every other cipher with every integrity
    /// algorithm.
    pub const ALL: &'static [Suite] = &all::<{ count() }>();

    const fn combined(cipher: Cipher, icv_bytes: u8) -> Suite {
        Suite { cipher, integrity: Integrity::Combined, icv_bytes }
    }

    const fn pair(cipher: Cipher, integrity: Integrity) -> Suite {
        Suite { cipher, integrity, icv_bytes: integrity.info().icv_bytes }
    }

    /// The cipher.
    #[must_use]
    pub const fn cipher(self) -> Cipher {
        self.cipher
    }

    /// The integrity algorithm.
    #[must_use]
    pub const fn integrity(self) -> Integrity {
        self.integrity
    }

    /// Whether the cipher authenticates, too (RFC 4303 3.2.3): its nonce and AAD are handed in beside the
    /// text, and it has no integrity key.
    #[must_use]
    pub const fn is_combined(self) -> bool {
        matches!(self.integrity, Integrity::Combined)
    }

    /// Whether it encrypts. Packets of other suites are authentic but readable by everybody (RFC 2410).
    #[must_use]
    pub const fn encrypts(self) -> bool {
        !matches!(self.cipher, Cipher::Null)
    }

    /// How its nonces are made.
    #[must_use]
    pub const fn nonce_rule(self) -> NonceRule {
        self.cipher.info().nonce_rule
    }

    /// Bytes of the cipher key, salt and integrity key not counted.
    #[must_use]
    pub const fn key_bytes(self) -> usize {
        self.cipher.info().key_bytes
    }

    /// Bytes of the integrity algorithm's key; a combined mode has none.
    #[must_use]
    pub const fn integrity_key_bytes(self) -> usize {
        self.integrity.info().key_bytes
    }

    /// Bytes of salt, the first part of the nonce (RFC 4106 4, RFC 7634 2).
    #[must_use]
    pub const fn salt_bytes(self) -> usize {
        self.cipher.info().salt_bytes
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
        match (self.key_bytes(), self.integrity_key_bytes(), self.salt_bytes()) {
            (0, _, _) => "integrity key",
            (_, 0, 0) => "key",
            (_, 0, _) => "key, then salt",
            _ => "cipher key, then integrity key",
        }
    }

    /// Bytes of the IV that each packet carries after the ESP header.
    #[must_use]
    pub const fn iv_bytes(self) -> usize {
        self.cipher.info().iv_bytes
    }

    /// Bytes of the integrity check value at the packet's end.
    #[must_use]
    pub const fn icv_bytes(self) -> usize {
        self.icv_bytes as usize
    }

    /// The cipher's block in bytes: a text that is no multiple of it can be neither encrypted nor decrypted.
    #[must_use]
    pub const fn block_bytes(self) -> usize {
        self.cipher.info().block_bytes
    }

    /// The length of the ciphertext must be a multiple of this (RFC 4303 2.4), in bytes.
    #[must_use]
    pub const fn alignment_bytes(self) -> usize {
        if self.block_bytes() > 4 { self.block_bytes() } else { 4 }
    }
}

/// How many suites there are.
const fn count() -> usize {
    let (mut count, mut at) = (0, 0);
    while at < Cipher::ALL.len() {
        let lengths = Cipher::ALL[at].info().icv_bytes.len();
        count += if lengths > 0 { lengths } else { Integrity::ALL.len() };
        at += 1;
    }
    count
}

/// [`Suite::ALL`], evaluated by the compiler: loops as a `const fn` can have them.
const fn all<const COUNT: usize>() -> [Suite; COUNT] {
    let mut suites = [Suite::combined(Cipher::Null, 0); COUNT];
    let (mut filled, mut at) = (0, 0);
    while at < Cipher::ALL.len() {
        let cipher = Cipher::ALL[at];
        let lengths = cipher.info().icv_bytes;
        let mut choice = 0;
        while choice < if lengths.is_empty() { Integrity::ALL.len() } else { lengths.len() } {
            suites[filled] = match lengths.is_empty() {
                true => Suite::pair(cipher, Integrity::ALL[choice]),
                false => Suite::combined(cipher, lengths[choice]),
            };
            (filled, choice) = (filled + 1, choice + 1);
        }
        at += 1;
    }
    suites
}

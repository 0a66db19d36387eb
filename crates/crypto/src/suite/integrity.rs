//! Integrity algorithms, each described by one constant.

use super::Requirement;

/// An integrity algorithm of ESP and AH: what IKEv2 calls a transform of type 3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Integrity {
    /// The cipher's own: it is a combined mode (RFC 4303 3.2.3).
    Combined,
    /// None at all, beside a cipher: for measurements alone (see
    /// [`Suite::cipher_only`](super::Suite::cipher_only)).
    None,
    /// HMAC-MD5-96 (RFC 2403).
    HmacMd5,
    /// HMAC-SHA-1-96 (RFC 2404).
    HmacSha1,
    /// HMAC-SHA-256-128 (RFC 4868).
    HmacSha256,
    /// HMAC-SHA-384-192 (RFC 4868).
    HmacSha384,
    /// HMAC-SHA-512-256 (RFC 4868).
    HmacSha512,
    /// AES-XCBC-MAC-96 (RFC 3566).
    AesXcbc,
    /// AES-CMAC-96 (RFC 4494).
    AesCmac,
}

/// What is to be known of an [`Integrity`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IntegrityInfo {
    /// What it is, and where it is defined for ESP and AH.
    pub algorithm: &'static str,
    /// strongSwan's proposal keyword.
    pub keyword: &'static str,
    /// Other keywords that strongSwan takes for it.
    pub aliases: &'static [&'static str],
    /// Linux's name (`ip xfrm state … auth-trunc NAME`).
    pub linux: &'static str,
    /// Bytes of the key: as long as an HMAC's digest (RFC 2403 3, RFC 2404 3, RFC 4868 2.1.1), or an AES key
    /// of 128 bits (RFC 3566 4, RFC 4494 2).
    pub key_bytes: usize,
    /// Bytes of the ICV, the first ones of the digest.
    pub icv_bytes: u8,
    /// RFC 8221's requirement level (RFC 8221 6).
    pub requirement: Requirement,
}

/// An algorithm that RFC 8221 does not name, and that has one keyword.
const fn algorithm(
    algorithm: &'static str,
    (keyword, linux): (&'static str, &'static str),
    key_bytes: usize,
    icv_bytes: u8,
) -> IntegrityInfo {
    let requirement = Requirement::May;
    IntegrityInfo { algorithm, keyword, aliases: &[], linux, key_bytes, icv_bytes, requirement }
}

/// A combined mode's requirement level is that of its ICV.
const COMBINED: IntegrityInfo =
    IntegrityInfo { requirement: Requirement::Must, ..algorithm("", ("", ""), 0, 0) };
/// RFC 8221 4: encryption MUST be authenticated.
const NONE: IntegrityInfo =
    IntegrityInfo { requirement: Requirement::MustNot, ..algorithm("", ("none", ""), 0, 0) };
const HMAC_MD5: IntegrityInfo = IntegrityInfo {
    requirement: Requirement::MustNot,
    ..algorithm("HMAC-MD5-96 (RFC 2403)", ("md5", "hmac(md5)"), 16, 12)
};
const HMAC_SHA1: IntegrityInfo = IntegrityInfo {
    aliases: &["sha"],
    requirement: Requirement::MustMinus,
    ..algorithm("HMAC-SHA1-96 (RFC 2404)", ("sha1", "hmac(sha1)"), 20, 12)
};
const HMAC_SHA256: IntegrityInfo = IntegrityInfo {
    aliases: &["sha2_256"],
    requirement: Requirement::Must,
    ..algorithm("HMAC-SHA-256-128 (RFC 4868)", ("sha256", "hmac(sha256)"), 32, 16)
};
const HMAC_SHA384: IntegrityInfo = IntegrityInfo {
    aliases: &["sha2_384"],
    ..algorithm("HMAC-SHA-384-192 (RFC 4868)", ("sha384", "hmac(sha384)"), 48, 24)
};
const HMAC_SHA512: IntegrityInfo = IntegrityInfo {
    aliases: &["sha2_512"],
    requirement: Requirement::Should,
    ..algorithm("HMAC-SHA-512-256 (RFC 4868)", ("sha512", "hmac(sha512)"), 64, 32)
};
/// MAY but for small devices, where it SHOULD be there.
const AES_XCBC: IntegrityInfo = algorithm("AES-XCBC-MAC-96 (RFC 3566)", ("aesxcbc", "xcbc(aes)"), 16, 12);
const AES_CMAC: IntegrityInfo = algorithm("AES-CMAC-96 (RFC 4494)", ("aescmac", "cmac(aes)"), 16, 12);

impl Integrity {
    /// All algorithms: [`Combined`](Self::Combined) and [`None`](Self::None) are no algorithms of their own.
    pub const ALL: &'static [Integrity] = &[
        Integrity::HmacMd5,
        Integrity::HmacSha1,
        Integrity::HmacSha256,
        Integrity::HmacSha384,
        Integrity::HmacSha512,
        Integrity::AesXcbc,
        Integrity::AesCmac,
    ];

    /// Its description.
    #[must_use]
    pub const fn info(self) -> &'static IntegrityInfo {
        match self {
            Integrity::Combined => &COMBINED,
            Integrity::None => &NONE,
            Integrity::HmacMd5 => &HMAC_MD5,
            Integrity::HmacSha1 => &HMAC_SHA1,
            Integrity::HmacSha256 => &HMAC_SHA256,
            Integrity::HmacSha384 => &HMAC_SHA384,
            Integrity::HmacSha512 => &HMAC_SHA512,
            Integrity::AesXcbc => &AES_XCBC,
            Integrity::AesCmac => &AES_CMAC,
        }
    }
}

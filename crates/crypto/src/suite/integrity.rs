//! Integrity algorithms, each described by one constant.

/// An integrity algorithm of ESP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Integrity {
    /// The cipher's own: it is a combined mode (RFC 4303 3.2.3).
    Combined,
    /// HMAC-SHA-1-96 (RFC 2404).
    HmacSha1,
    /// HMAC-SHA-256-128 (RFC 4868).
    HmacSha256,
    /// HMAC-SHA-384-192 (RFC 4868).
    HmacSha384,
    /// HMAC-SHA-512-256 (RFC 4868).
    HmacSha512,
}

/// What is to be known of an [`Integrity`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IntegrityInfo {
    /// strongSwan's proposal keyword.
    pub keyword: &'static str,
    /// Linux's name (`ip xfrm state … auth-trunc NAME`).
    pub linux: &'static str,
    /// Bytes of the key, as long as the digest (RFC 2404 3, RFC 4868 2.1.1).
    pub key_bytes: usize,
    /// Bytes of the ICV, the first ones of the digest.
    pub icv_bytes: u8,
}

const COMBINED: IntegrityInfo = IntegrityInfo { keyword: "", linux: "", key_bytes: 0, icv_bytes: 0 };
const HMAC_SHA1: IntegrityInfo =
    IntegrityInfo { keyword: "sha1", linux: "hmac(sha1)", key_bytes: 20, icv_bytes: 12 };
const HMAC_SHA256: IntegrityInfo =
    IntegrityInfo { keyword: "sha256", linux: "hmac(sha256)", key_bytes: 32, icv_bytes: 16 };
const HMAC_SHA384: IntegrityInfo =
    IntegrityInfo { keyword: "sha384", linux: "hmac(sha384)", key_bytes: 48, icv_bytes: 24 };
const HMAC_SHA512: IntegrityInfo =
    IntegrityInfo { keyword: "sha512", linux: "hmac(sha512)", key_bytes: 64, icv_bytes: 32 };

impl Integrity {
    /// All algorithms of their own, [`Combined`](Self::Combined) not counted.
    pub const ALL: &'static [Integrity] =
        &[Integrity::HmacSha1, Integrity::HmacSha256, Integrity::HmacSha384, Integrity::HmacSha512];

    /// Its description.
    #[must_use]
    pub const fn info(self) -> &'static IntegrityInfo {
        match self {
            Integrity::Combined => &COMBINED,
            Integrity::HmacSha1 => &HMAC_SHA1,
            Integrity::HmacSha256 => &HMAC_SHA256,
            Integrity::HmacSha384 => &HMAC_SHA384,
            Integrity::HmacSha512 => &HMAC_SHA512,
        }
    }
}

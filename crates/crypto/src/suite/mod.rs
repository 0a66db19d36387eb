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
//! that they do. What RFC 8221 says about them is a constant of each, too (`requirement`).
//!
//! AH (RFC 4302) names its integrity algorithm alone. It is the suite that encrypts nothing and has this
//! algorithm, over other ranges of the packet ([`Suite::for_ah`]).

mod cipher;
mod integrity;
mod proposal;
mod requirement;

pub use cipher::{AesKey, Cipher, CipherInfo, IcvLength, NonceRule};
pub use integrity::{Integrity, IntegrityInfo};
pub use proposal::ProposalError;
pub use requirement::Requirement;

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

    /// The suites of VPE (`docs/VPE.md`). They have the names of the [suites](Self::without_vpe) of ESP,
    /// which share no packet with them.
    pub const ALL_FOR_VPE: [Suite; 3] = [
        Suite::combined(Cipher::AesGcmVpe(AesKey::Aes128), 16),
        Suite::combined(Cipher::AesGcmVpe(AesKey::Aes256), 16),
        Suite::combined(Cipher::ChaCha20Poly1305Vpe, 16),
    ];

    /// Every combined mode with every length of its ICV, then every other cipher with every integrity
    /// algorithm. Suites of VPE and [without authentication](Self::cipher_only) are not among them.
    pub const ALL: &'static [Suite] = &all::<{ count(false) }>(false);

    /// Every combined mode with every length of its ICV, every other cipher, and every integrity algorithm,
    /// each pair's parts once or twice. For what costs a test so much that it cannot be done for
    /// [`ALL`](Self::ALL): the parts of a pair do not know each other.
    pub const EACH_PRIMITIVE: &'static [Suite] = &all::<{ count(true) }>(true);

    const fn combined(cipher: Cipher, icv_bytes: u8) -> Suite {
        Suite { cipher, integrity: Integrity::Combined, icv_bytes }
    }

    const fn pair(cipher: Cipher, integrity: Integrity) -> Suite {
        Suite { cipher, integrity, icv_bytes: integrity.info().icv_bytes }
    }

    /// A cipher without authentication, which exists to be measured: no configuration can name it, because an
    /// attacker on the way changes what it carries at will (RFC 4303 1, RFC 8221 4). `None` for a combined
    /// mode, and where nothing would be encrypted either.
    #[must_use]
    pub const fn cipher_only(cipher: Cipher) -> Option<Suite> {
        let info = cipher.info();
        if info.encrypts && info.icvs.is_empty() { Some(Suite::pair(cipher, Integrity::None)) } else { None }
    }

    /// Every suite, and every [cipher without authentication](Self::cipher_only).
    pub fn measurable() -> impl Iterator<Item = Suite> {
        let alone = Cipher::ALL.iter().filter_map(|cipher| Self::cipher_only(*cipher));
        Self::ALL.iter().copied().chain(alone)
    }

    /// Every suite of ESP, then every suite of VPE.
    pub fn every() -> impl Iterator<Item = Suite> {
        Self::ALL.iter().copied().chain(Self::ALL_FOR_VPE)
    }

    /// The suite of VPE with this one's cipher and ICV, if there is one.
    #[must_use]
    pub fn for_vpe(self) -> Option<Suite> {
        Self::ALL_FOR_VPE.into_iter().find(|suite| suite.without_vpe() == self.without_vpe())
    }

    /// Whether it is a suite of VPE.
    #[must_use]
    pub const fn is_for_vpe(self) -> bool {
        matches!(self.cipher, Cipher::AesGcmVpe(_) | Cipher::ChaCha20Poly1305Vpe)
    }

    /// The suite of ESP with the cipher and the ICV of this one, which may be of VPE.
    #[must_use]
    pub const fn without_vpe(self) -> Suite {
        let cipher = match self.cipher {
            Cipher::AesGcmVpe(key) => Cipher::AesGcm(key),
            Cipher::ChaCha20Poly1305Vpe => Cipher::ChaCha20Poly1305,
            other => other,
        };
        Suite { cipher, ..self }
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

    /// Whether it authenticates. What does not is only ever measured: see [`cipher_only`](Self::cipher_only).
    #[must_use]
    pub const fn authenticates(self) -> bool {
        !matches!(self.integrity, Integrity::None)
    }

    /// Whether it encrypts. Packets of other suites are authentic but readable by everybody (RFC 2410, RFC
    /// 4543 3).
    #[must_use]
    pub const fn encrypts(self) -> bool {
        self.cipher.info().encrypts
    }

    /// What RFC 8221 says about the worse of its parts.
    #[must_use]
    pub const fn requirement(self) -> Requirement {
        let info = self.cipher.info();
        let (mut worst, mut at) = (self.integrity.info().requirement, 0);
        if info.icvs.is_empty() {
            worst = worst.worse(info.requirement);
        }
        while at < info.icvs.len() {
            if info.icvs[at].bytes == self.icv_bytes {
                worst = worst.worse(info.icvs[at].requirement);
            }
            at += 1;
        }
        worst
    }

    /// Whether RFC 8221 speaks against one of its parts (DES, 3DES, HMAC-MD5): for peers that have nothing
    /// better.
    #[must_use]
    pub const fn is_legacy(self) -> bool {
        self.requirement().is_legacy()
    }

    /// The keywords of the parts that RFC 8221 speaks against, with what it says.
    #[must_use]
    pub fn legacy_parts(self) -> Vec<(&'static str, Requirement)> {
        let (cipher, integrity) = (self.cipher.info(), self.integrity.info());
        let parts = [(cipher.keyword, cipher.requirement), (integrity.keyword, integrity.requirement)];
        parts.into_iter().filter(|(_, requirement)| requirement.is_legacy()).collect()
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

    /// Bytes of salt, the first part of the nonce (RFC 4106 4, RFC 4309 4, RFC 7634 2, RFC 3686 4).
    #[must_use]
    pub const fn salt_bytes(self) -> usize {
        self.cipher.info().salt_bytes
    }

    /// Bytes of keying material: cipher key, its salt, then the integrity key (RFC 4106 8.1, RFC 3686 5.1,
    /// RFC 7634 2: a salt is the end of the cipher's key; RFC 7296 2.17: encryption before integrity).
    #[must_use]
    pub const fn keying_material_bytes(self) -> usize {
        self.key_bytes() + self.salt_bytes() + self.integrity_key_bytes()
    }

    /// The parts of the keying material in their order, for messages.
    #[must_use]
    pub const fn keying_material_parts(self) -> &'static str {
        match (self.key_bytes(), self.salt_bytes(), self.integrity_key_bytes()) {
            (0, _, _) => "integrity key",
            (_, 0, 0) => "key",
            (_, _, 0) => "key, then salt",
            (_, 0, _) => "cipher key, then integrity key",
            _ => "cipher key, then salt, then integrity key",
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

/// How many suites there are, each pair of them or each primitive of pairs.
const fn count(each_primitive: bool) -> usize {
    let (mut count, mut at) = (0, 0);
    while at < Cipher::ALL.len() {
        let lengths = Cipher::ALL[at].info().icvs.len();
        count += match (lengths, each_primitive) {
            (0, false) => Integrity::ALL.len(),
            (0, true) => 1,
            _ => lengths,
        };
        at += 1;
    }
    count
}

/// [`Suite::ALL`], or with each primitive of pairs once, evaluated by the compiler: loops as a `const fn` can
/// have them.
const fn all<const COUNT: usize>(each_primitive: bool) -> [Suite; COUNT] {
    let mut suites = [Suite::combined(Cipher::Null, 0); COUNT];
    let (mut filled, mut at, mut pairs) = (0, 0, 0);
    while at < Cipher::ALL.len() {
        let cipher = Cipher::ALL[at];
        let lengths = cipher.info().icvs;
        let mut choice = 0;
        while choice < if lengths.is_empty() { Integrity::ALL.len() } else { lengths.len() } {
            let is_next = lengths.is_empty() && choice == pairs % Integrity::ALL.len();
            let suite = match lengths.is_empty() {
                true => Suite::pair(cipher, Integrity::ALL[choice]),
                false => Suite::combined(cipher, lengths[choice].bytes),
            };
            if !each_primitive || !lengths.is_empty() || is_next {
                suites[filled] = suite;
                filled += 1;
            }
            choice += 1;
        }
        pairs += if lengths.is_empty() { 1 } else { 0 };
        at += 1;
    }
    suites
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Suite {
        name.parse().unwrap()
    }

    /// `docs/VPE.md`: three suites, whose key material is the cipher's key alone.
    #[test]
    fn vpe_has_three_suites_without_salt_and_iv() {
        let of_vpe: Vec<String> =
            Suite::ALL.iter().filter_map(|suite| suite.for_vpe()).map(|suite| suite.to_string()).collect();
        assert_eq!(of_vpe, ["aes128gcm16", "aes256gcm16", "chacha20poly1305"]);
        for (suite, key_bytes) in Suite::ALL_FOR_VPE.into_iter().zip([16, 32, 32]) {
            assert!(suite.is_for_vpe() && !Suite::ALL.contains(&suite), "{suite}");
            assert_eq!((suite.for_vpe(), suite.without_vpe().for_vpe()), (Some(suite), Some(suite)));
            assert!(!suite.without_vpe().is_for_vpe() && named(&suite.to_string()) == suite.without_vpe());
            assert_eq!((suite.keying_material_bytes(), suite.key_bytes()), (key_bytes, key_bytes));
            assert_eq!((suite.iv_bytes(), suite.icv_bytes()), (0, 16), "{suite}");
            assert_eq!(suite.nonce_rule(), NonceRule::Counter, "{suite}");
        }
    }

    #[test]
    fn each_primitive_is_in_the_short_list() {
        let short = Suite::EACH_PRIMITIVE;
        assert!(short.iter().all(|suite| Suite::ALL.contains(suite)));
        for suite in Suite::ALL {
            assert!(short.iter().any(|s| s.cipher() == suite.cipher()), "{suite}");
            assert!(short.iter().any(|s| s.integrity() == suite.integrity()), "{suite}");
            assert!(!suite.is_combined() || short.contains(suite), "{suite}");
        }
        assert_eq!((Suite::ALL.len(), short.len()), (92, 38));
    }

    /// RFC 8221 5 and 6, by its tables.
    #[test]
    fn suites_have_the_requirement_levels_of_rfc_8221() {
        let levels = [
            ("aes128gcm16", Requirement::Must),
            ("aes192gcm16", Requirement::May),
            ("aes256gcm16", Requirement::Must),
            ("aes128gcm8", Requirement::May),
            ("aes128ccm8", Requirement::Should),
            ("aes128ccm16", Requirement::May),
            ("chacha20poly1305", Requirement::Should),
            ("aes128gcm16iiv", Requirement::May),
            ("aes128gmac", Requirement::May),
            ("aes128-sha256", Requirement::Must),
            ("aes192-sha256", Requirement::May),
            ("aes256-sha512", Requirement::Should),
            ("aes128-sha1", Requirement::MustMinus),
            ("null-sha256", Requirement::Must),
            ("null-aesxcbc", Requirement::May),
            ("aes128ctr-sha256", Requirement::May),
            ("3des-sha256", Requirement::ShouldNot),
            ("des-sha256", Requirement::MustNot),
            ("null-md5", Requirement::MustNot),
            ("3des-md5", Requirement::MustNot),
        ];
        for (name, level) in levels {
            assert_eq!(named(name).requirement(), level, "{name}");
        }
        let alone = Suite::cipher_only(Cipher::AesCbc(AesKey::Aes128)).unwrap();
        assert_eq!(alone.requirement(), Requirement::MustNot);
    }

    #[test]
    fn des_3des_and_md5_are_legacy_and_nothing_else() {
        for suite in Suite::ALL {
            let old = [Cipher::DesCbc, Cipher::TripleDesCbc].contains(&suite.cipher());
            let is_legacy = old || suite.integrity() == Integrity::HmacMd5;
            assert_eq!(suite.is_legacy(), is_legacy, "{suite}");
            assert_eq!(suite.legacy_parts().is_empty(), !is_legacy, "{suite}");
        }
        let said = [("3des", Requirement::ShouldNot), ("md5", Requirement::MustNot)];
        assert_eq!(named("3des-md5").legacy_parts(), said);
    }

    /// The sizes that each RFC gives, in bytes: key, salt, IV, ICV, integrity key, alignment.
    #[test]
    fn sizes_are_those_of_the_rfcs() {
        let sizes = [
            ("aes192gcm12", [24, 4, 8, 12, 0, 4]),
            ("aes256gcm16iiv", [32, 4, 0, 16, 0, 4]),
            ("aes128ccm8", [16, 3, 8, 8, 0, 4]),
            ("aes256gmac", [32, 4, 8, 16, 0, 4]),
            ("chacha20poly1305", [32, 4, 8, 16, 0, 4]),
            ("aes192-sha384", [24, 0, 16, 24, 48, 16]),
            ("aes256ctr-sha512", [32, 4, 8, 32, 64, 4]),
            ("3des-md5", [24, 0, 8, 12, 16, 8]),
            ("des-sha1", [8, 0, 8, 12, 20, 8]),
            ("null-aesxcbc", [0, 0, 0, 12, 16, 4]),
            ("null-aescmac", [0, 0, 0, 12, 16, 4]),
        ];
        for (name, [key, salt, iv, icv, integrity_key, alignment]) in sizes {
            let suite = named(name);
            assert_eq!(suite.keying_material_bytes(), key + salt + integrity_key, "{name}");
            assert_eq!((suite.key_bytes(), suite.salt_bytes(), suite.iv_bytes()), (key, salt, iv), "{name}");
            let rest = (suite.icv_bytes(), suite.integrity_key_bytes(), suite.alignment_bytes());
            assert_eq!(rest, (icv, integrity_key, alignment), "{name}");
        }
    }

    /// RFC 8750: where the packet carries no IV, the number is the nonce, and nowhere else.
    #[test]
    fn counters_are_nonces_where_a_nonce_has_no_iv() {
        for suite in Suite::ALL {
            let counts = suite.salt_bytes() > 0 && suite.iv_bytes() == 0;
            assert_eq!(suite.nonce_rule() == NonceRule::Counter, counts, "{suite}");
        }
    }
}

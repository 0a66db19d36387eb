//! Ciphers, each described by one constant.

use super::Requirement;

/// Length of an AES key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AesKey {
    /// 128 bits.
    Aes128,
    /// 192 bits.
    Aes192,
    /// 256 bits.
    Aes256,
}

/// An encryption algorithm of ESP, with the length of its key: what IKEv2 calls a transform of type 1, but
/// for the length of a combined mode's ICV.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cipher {
    /// AES-GCM (RFC 4106), a combined mode.
    AesGcm(AesKey),
    /// AES-GCM with an implicit IV (RFC 8750), a combined mode.
    AesGcmImplicitIv(AesKey),
    /// AES-CCM (RFC 4309), a combined mode.
    AesCcm(AesKey),
    /// AES-CCM with an implicit IV (RFC 8750), a combined mode.
    AesCcmImplicitIv(AesKey),
    /// AES-GMAC (RFC 4543): a combined mode that does not encrypt.
    AesGmac(AesKey),
    /// ChaCha20 and Poly1305 (RFC 7634), a combined mode.
    ChaCha20Poly1305,
    /// ChaCha20 and Poly1305 with an implicit IV (RFC 8750), a combined mode.
    ChaCha20Poly1305ImplicitIv,
    /// AES-GCM as VPE has it (`docs/VPE.md`), a combined mode: the nonce is the header's first 12 bytes, and
    /// nothing is authenticated beside the text. Not in [`ALL`](Self::ALL), whose modes are ESP's.
    AesGcmVpe(AesKey),
    /// ChaCha20 and Poly1305 as VPE has it, likewise.
    ChaCha20Poly1305Vpe,
    /// AES-CBC (RFC 3602).
    AesCbc(AesKey),
    /// AES-CTR (RFC 3686).
    AesCtr(AesKey),
    /// 3DES-CBC with three keys (RFC 2451).
    TripleDesCbc,
    /// DES-CBC (RFC 2405).
    DesCbc,
    /// No encryption (RFC 2410).
    Null,
}

/// How a packet's nonce is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NonceRule {
    /// From the IV that the packet carries, which may be any value that no other packet under the key has
    /// (RFC 4106 3.1, RFC 7634 2, RFC 3602 3, RFC 3686 3.1); or there is none.
    Explicit,
    /// From the sequence number itself, as with an implicit IV (RFC 8750) and in VPE: restarting the count
    /// under the same key repeats nonces.
    Counter,
}

/// A length of the ICV that a combined mode offers: with it, the mode is a transform of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IcvLength {
    /// Bytes of the ICV.
    pub bytes: u8,
    /// RFC 8221's requirement level for the mode with this ICV.
    pub requirement: Requirement,
}

/// What is to be known of a [`Cipher`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CipherInfo {
    /// What it is, and where it is defined for ESP.
    pub algorithm: &'static str,
    /// strongSwan's proposal keyword, without an ICV's length.
    pub keyword: &'static str,
    /// What follows the ICV's length. strongSwan has no keywords for implicit IVs; these are Testudo's.
    pub keyword_end: &'static str,
    /// Linux's name (`ip xfrm state … aead|enc NAME`), if Linux has it.
    pub linux: Option<&'static str>,
    /// Bytes of the key, salt not counted.
    pub key_bytes: usize,
    /// Bytes of salt, the first part of the nonce (RFC 4106 4, RFC 4309 4, RFC 7634 2; RFC 3686 4 calls it
    /// the nonce).
    pub salt_bytes: usize,
    /// Bytes of the IV that each packet carries after the ESP header.
    pub iv_bytes: usize,
    /// Bytes of a block: a text that is no multiple of it can be neither encrypted nor decrypted.
    pub block_bytes: usize,
    /// How nonces are made.
    pub nonce_rule: NonceRule,
    /// Whether it hides what it carries.
    pub encrypts: bool,
    /// The lengths of the ICV that a combined mode (RFC 4303 3.2.3) offers; none for a cipher that needs an
    /// integrity algorithm beside it.
    pub icvs: &'static [IcvLength],
    /// Whether the keyword is followed by the ICV's length.
    pub names_icv: bool,
    /// RFC 8221's requirement level (RFC 8221 5) for a cipher without an ICV of its own.
    pub requirement: Requirement,
}

const fn icv(bytes: u8, requirement: Requirement) -> IcvLength {
    IcvLength { bytes, requirement }
}

/// Lengths of the ICV of a mode that RFC 8221 does not name, as with keys of 192 bits, which remain at MAY in
/// all modes.
const ANY_ICV: &[IcvLength] =
    &[icv(8, Requirement::May), icv(12, Requirement::May), icv(16, Requirement::May)];
/// ENCR_AES_GCM_8, _12 and _16.
const GCM_ICVS: &[IcvLength] =
    &[icv(8, Requirement::May), icv(12, Requirement::May), icv(16, Requirement::Must)];
/// ENCR_AES_CCM_8, _12 and _16: the first SHOULD be there, for small devices.
const CCM_ICVS: &[IcvLength] =
    &[icv(8, Requirement::Should), icv(12, Requirement::May), icv(16, Requirement::May)];

/// What all AES-GCM has in common.
const GCM: CipherInfo = CipherInfo {
    algorithm: "AES-GCM (RFC 4106)",
    keyword: "",
    keyword_end: "",
    linux: Some("rfc4106(gcm(aes))"),
    key_bytes: 0,
    salt_bytes: 4,
    iv_bytes: 8,
    block_bytes: 1,
    nonce_rule: NonceRule::Explicit,
    encrypts: true,
    icvs: ANY_ICV,
    names_icv: true,
    requirement: Requirement::May,
};

const AES_128_GCM: CipherInfo = CipherInfo { keyword: "aes128gcm", key_bytes: 16, icvs: GCM_ICVS, ..GCM };
const AES_192_GCM: CipherInfo = CipherInfo { keyword: "aes192gcm", key_bytes: 24, ..GCM };
const AES_256_GCM: CipherInfo = CipherInfo { keyword: "aes256gcm", key_bytes: 32, icvs: GCM_ICVS, ..GCM };

/// What makes an implicit IV of a mode (RFC 8750 4): the packet carries none, since the number is the nonce.
const fn implicit_iv(of: CipherInfo, algorithm: &'static str, icvs: &'static [IcvLength]) -> CipherInfo {
    let nonce_rule = NonceRule::Counter;
    CipherInfo { algorithm, keyword_end: "iiv", linux: None, iv_bytes: 0, nonce_rule, icvs, ..of }
}

const GCM_IIV: &str = "AES-GCM with an implicit IV (RFC 8750)";
/// ENCR_AES_GCM_16_IIV is the only length that RFC 8750 has.
const ICV_16: &[IcvLength] = &[icv(16, Requirement::May)];
const AES_128_GCM_IIV: CipherInfo = implicit_iv(AES_128_GCM, GCM_IIV, ICV_16);
const AES_192_GCM_IIV: CipherInfo = implicit_iv(AES_192_GCM, GCM_IIV, ICV_16);
const AES_256_GCM_IIV: CipherInfo = implicit_iv(AES_256_GCM, GCM_IIV, ICV_16);

/// What all AES-CCM has in common.
const CCM: CipherInfo =
    CipherInfo { algorithm: "AES-CCM (RFC 4309)", linux: Some("rfc4309(ccm(aes))"), salt_bytes: 3, ..GCM };

const AES_128_CCM: CipherInfo = CipherInfo { keyword: "aes128ccm", key_bytes: 16, icvs: CCM_ICVS, ..CCM };
const AES_192_CCM: CipherInfo = CipherInfo { keyword: "aes192ccm", key_bytes: 24, ..CCM };
const AES_256_CCM: CipherInfo = CipherInfo { keyword: "aes256ccm", key_bytes: 32, icvs: CCM_ICVS, ..CCM };

const CCM_IIV: &str = "AES-CCM with an implicit IV (RFC 8750)";
/// ENCR_AES_CCM_8_IIV is the only length that RFC 8750 has.
const ICV_8: &[IcvLength] = &[icv(8, Requirement::May)];
const AES_128_CCM_IIV: CipherInfo = implicit_iv(AES_128_CCM, CCM_IIV, ICV_8);
const AES_192_CCM_IIV: CipherInfo = implicit_iv(AES_192_CCM, CCM_IIV, ICV_8);
const AES_256_CCM_IIV: CipherInfo = implicit_iv(AES_256_CCM, CCM_IIV, ICV_8);

/// What all AES-GMAC has in common. Its ICV is never shortened (RFC 4543 3.4).
const GMAC: CipherInfo = CipherInfo {
    algorithm: "AES-GMAC (RFC 4543): no encryption",
    linux: Some("rfc4543(gcm(aes))"),
    encrypts: false,
    icvs: ICV_16,
    names_icv: false,
    ..GCM
};

const AES_128_GMAC: CipherInfo = CipherInfo { keyword: "aes128gmac", key_bytes: 16, ..GMAC };
const AES_192_GMAC: CipherInfo = CipherInfo { keyword: "aes192gmac", key_bytes: 24, ..GMAC };
const AES_256_GMAC: CipherInfo = CipherInfo { keyword: "aes256gmac", key_bytes: 32, ..GMAC };

const CHACHA20_POLY1305: CipherInfo = CipherInfo {
    algorithm: "ChaCha20-Poly1305 (RFC 7634)",
    keyword: "chacha20poly1305",
    linux: Some("rfc7539esp(chacha20,poly1305)"),
    key_bytes: 32,
    icvs: &[icv(16, Requirement::Should)],
    names_icv: false,
    ..GCM
};
const CHACHA20_POLY1305_IIV: CipherInfo =
    implicit_iv(CHACHA20_POLY1305, "ChaCha20-Poly1305 with an implicit IV (RFC 8750)", ICV_16);

/// What all AES-CBC has in common.
const CBC: CipherInfo = CipherInfo {
    algorithm: "AES-CBC (RFC 3602)",
    keyword: "",
    keyword_end: "",
    linux: Some("cbc(aes)"),
    key_bytes: 0,
    salt_bytes: 0,
    iv_bytes: 16,
    block_bytes: 16,
    nonce_rule: NonceRule::Explicit,
    encrypts: true,
    icvs: &[],
    names_icv: false,
    requirement: Requirement::Must,
};

const AES_128_CBC: CipherInfo = CipherInfo { keyword: "aes128", key_bytes: 16, ..CBC };
const AES_192_CBC: CipherInfo =
    CipherInfo { keyword: "aes192", key_bytes: 24, requirement: Requirement::May, ..CBC };
const AES_256_CBC: CipherInfo = CipherInfo { keyword: "aes256", key_bytes: 32, ..CBC };

/// What all AES-CTR has in common.
const CTR: CipherInfo = CipherInfo {
    algorithm: "AES-CTR (RFC 3686)",
    linux: Some("rfc3686(ctr(aes))"),
    salt_bytes: 4,
    iv_bytes: 8,
    block_bytes: 1,
    requirement: Requirement::May,
    ..CBC
};

const AES_128_CTR: CipherInfo = CipherInfo { keyword: "aes128ctr", key_bytes: 16, ..CTR };
const AES_192_CTR: CipherInfo = CipherInfo { keyword: "aes192ctr", key_bytes: 24, ..CTR };
const AES_256_CTR: CipherInfo = CipherInfo { keyword: "aes256ctr", key_bytes: 32, ..CTR };

const TRIPLE_DES_CBC: CipherInfo = CipherInfo {
    algorithm: "3DES-CBC (RFC 2451)",
    keyword: "3des",
    linux: Some("cbc(des3_ede)"),
    key_bytes: 24,
    iv_bytes: 8,
    block_bytes: 8,
    requirement: Requirement::ShouldNot,
    ..CBC
};
const DES_CBC: CipherInfo = CipherInfo {
    algorithm: "DES-CBC (RFC 2405)",
    keyword: "des",
    linux: Some("cbc(des)"),
    key_bytes: 8,
    requirement: Requirement::MustNot,
    ..TRIPLE_DES_CBC
};

const NULL: CipherInfo = CipherInfo {
    algorithm: "no encryption (RFC 2410)",
    keyword: "null",
    linux: Some("cipher_null"),
    iv_bytes: 0,
    block_bytes: 1,
    encrypts: false,
    ..CBC
};

/// What makes VPE's form of a mode: nonces are parts of the header, and the key material has no salt.
const fn in_vpe(of: CipherInfo, algorithm: &'static str, icvs: &'static [IcvLength]) -> CipherInfo {
    let (linux, nonce_rule) = (None, NonceRule::Counter);
    CipherInfo { algorithm, linux, salt_bytes: 0, iv_bytes: 0, nonce_rule, icvs, ..of }
}

const GCM_VPE: &str = "AES-GCM in VPE";
/// VPE is not among RFC 8221's protocols; its modes are.
const ICV_16_VPE: &[IcvLength] = &[icv(16, Requirement::Must)];
const AES_128_GCM_VPE: CipherInfo = in_vpe(AES_128_GCM, GCM_VPE, ICV_16_VPE);
const AES_192_GCM_VPE: CipherInfo = in_vpe(AES_192_GCM, GCM_VPE, ICV_16);
const AES_256_GCM_VPE: CipherInfo = in_vpe(AES_256_GCM, GCM_VPE, ICV_16_VPE);
const CHACHA20_POLY1305_VPE: CipherInfo =
    in_vpe(CHACHA20_POLY1305, "ChaCha20-Poly1305 in VPE", CHACHA20_POLY1305.icvs);

impl AesKey {
    /// All lengths.
    pub const ALL: [AesKey; 3] = [AesKey::Aes128, AesKey::Aes192, AesKey::Aes256];
}

impl Cipher {
    /// All ciphers of ESP.
    pub const ALL: &'static [Cipher] = &[
        Cipher::AesGcm(AesKey::Aes128),
        Cipher::AesGcm(AesKey::Aes192),
        Cipher::AesGcm(AesKey::Aes256),
        Cipher::AesGcmImplicitIv(AesKey::Aes128),
        Cipher::AesGcmImplicitIv(AesKey::Aes192),
        Cipher::AesGcmImplicitIv(AesKey::Aes256),
        Cipher::AesCcm(AesKey::Aes128),
        Cipher::AesCcm(AesKey::Aes192),
        Cipher::AesCcm(AesKey::Aes256),
        Cipher::AesCcmImplicitIv(AesKey::Aes128),
        Cipher::AesCcmImplicitIv(AesKey::Aes192),
        Cipher::AesCcmImplicitIv(AesKey::Aes256),
        Cipher::AesGmac(AesKey::Aes128),
        Cipher::AesGmac(AesKey::Aes192),
        Cipher::AesGmac(AesKey::Aes256),
        Cipher::ChaCha20Poly1305,
        Cipher::ChaCha20Poly1305ImplicitIv,
        Cipher::AesCbc(AesKey::Aes128),
        Cipher::AesCbc(AesKey::Aes192),
        Cipher::AesCbc(AesKey::Aes256),
        Cipher::AesCtr(AesKey::Aes128),
        Cipher::AesCtr(AesKey::Aes192),
        Cipher::AesCtr(AesKey::Aes256),
        Cipher::TripleDesCbc,
        Cipher::DesCbc,
        Cipher::Null,
    ];

    /// Its description.
    #[must_use]
    pub const fn info(self) -> &'static CipherInfo {
        use AesKey::{Aes128, Aes192, Aes256};
        match self {
            Cipher::AesGcm(Aes128) => &AES_128_GCM,
            Cipher::AesGcm(Aes192) => &AES_192_GCM,
            Cipher::AesGcm(Aes256) => &AES_256_GCM,
            Cipher::AesGcmImplicitIv(Aes128) => &AES_128_GCM_IIV,
            Cipher::AesGcmImplicitIv(Aes192) => &AES_192_GCM_IIV,
            Cipher::AesGcmImplicitIv(Aes256) => &AES_256_GCM_IIV,
            Cipher::AesCcm(Aes128) => &AES_128_CCM,
            Cipher::AesCcm(Aes192) => &AES_192_CCM,
            Cipher::AesCcm(Aes256) => &AES_256_CCM,
            Cipher::AesCcmImplicitIv(Aes128) => &AES_128_CCM_IIV,
            Cipher::AesCcmImplicitIv(Aes192) => &AES_192_CCM_IIV,
            Cipher::AesCcmImplicitIv(Aes256) => &AES_256_CCM_IIV,
            Cipher::AesGmac(Aes128) => &AES_128_GMAC,
            Cipher::AesGmac(Aes192) => &AES_192_GMAC,
            Cipher::AesGmac(Aes256) => &AES_256_GMAC,
            Cipher::ChaCha20Poly1305 => &CHACHA20_POLY1305,
            Cipher::ChaCha20Poly1305ImplicitIv => &CHACHA20_POLY1305_IIV,
            Cipher::AesGcmVpe(Aes128) => &AES_128_GCM_VPE,
            Cipher::AesGcmVpe(Aes192) => &AES_192_GCM_VPE,
            Cipher::AesGcmVpe(Aes256) => &AES_256_GCM_VPE,
            Cipher::ChaCha20Poly1305Vpe => &CHACHA20_POLY1305_VPE,
            Cipher::AesCbc(Aes128) => &AES_128_CBC,
            Cipher::AesCbc(Aes192) => &AES_192_CBC,
            Cipher::AesCbc(Aes256) => &AES_256_CBC,
            Cipher::AesCtr(Aes128) => &AES_128_CTR,
            Cipher::AesCtr(Aes192) => &AES_192_CTR,
            Cipher::AesCtr(Aes256) => &AES_256_CTR,
            Cipher::TripleDesCbc => &TRIPLE_DES_CBC,
            Cipher::DesCbc => &DES_CBC,
            Cipher::Null => &NULL,
        }
    }
}

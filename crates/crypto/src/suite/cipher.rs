//! Ciphers, each described by one constant.

/// Length of an AES key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AesKey {
    /// 128 bits.
    Aes128,
    /// 256 bits.
    Aes256,
}

/// An encryption algorithm of ESP, with the length of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cipher {
    /// AES-GCM (RFC 4106), a combined mode.
    AesGcm(AesKey),
    /// ChaCha20 and Poly1305 (RFC 7634), a combined mode.
    ChaCha20Poly1305,
    /// AES-CBC (RFC 3602).
    AesCbc(AesKey),
    /// No encryption (RFC 2410).
    Null,
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

/// What is to be known of a [`Cipher`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CipherInfo {
    /// strongSwan's proposal keyword, without an ICV's length.
    pub keyword: &'static str,
    /// Linux's name (`ip xfrm state … aead|enc NAME`).
    pub linux: &'static str,
    /// Bytes of the key, salt not counted.
    pub key_bytes: usize,
    /// Bytes of salt, the first part of the nonce (RFC 4106 4, RFC 7634 2).
    pub salt_bytes: usize,
    /// Bytes of the IV that each packet carries after the ESP header.
    pub iv_bytes: usize,
    /// Bytes of a block: a text that is no multiple of it can be neither encrypted nor decrypted.
    pub block_bytes: usize,
    /// How nonces are made.
    pub nonce_rule: NonceRule,
    /// The lengths of the ICV in bytes that a combined mode (RFC 4303 3.2.3) offers; none for a cipher that
    /// needs an integrity algorithm beside it.
    pub icv_bytes: &'static [u8],
    /// Whether the keyword is followed by the ICV's length.
    pub names_icv: bool,
}

/// What all AES-GCM has in common.
const GCM: CipherInfo = CipherInfo {
    keyword: "",
    linux: "rfc4106(gcm(aes))",
    key_bytes: 0,
    salt_bytes: 4,
    iv_bytes: 8,
    block_bytes: 1,
    nonce_rule: NonceRule::Explicit,
    icv_bytes: &[16],
    names_icv: true,
};

/// What all AES-CBC has in common.
const CBC: CipherInfo = CipherInfo {
    keyword: "",
    linux: "cbc(aes)",
    key_bytes: 0,
    salt_bytes: 0,
    iv_bytes: 16,
    block_bytes: 16,
    nonce_rule: NonceRule::Explicit,
    icv_bytes: &[],
    names_icv: false,
};

const AES_128_GCM: CipherInfo = CipherInfo { keyword: "aes128gcm", key_bytes: 16, ..GCM };
const AES_256_GCM: CipherInfo = CipherInfo { keyword: "aes256gcm", key_bytes: 32, ..GCM };
const AES_128_CBC: CipherInfo = CipherInfo { keyword: "aes128", key_bytes: 16, ..CBC };
const AES_256_CBC: CipherInfo = CipherInfo { keyword: "aes256", key_bytes: 32, ..CBC };

const CHACHA20_POLY1305: CipherInfo = CipherInfo {
    keyword: "chacha20poly1305",
    linux: "rfc7539esp(chacha20,poly1305)",
    key_bytes: 32,
    salt_bytes: 4,
    iv_bytes: 8,
    block_bytes: 1,
    nonce_rule: NonceRule::Explicit,
    icv_bytes: &[16],
    names_icv: false,
};

const NULL: CipherInfo = CipherInfo {
    keyword: "null",
    linux: "cipher_null",
    key_bytes: 0,
    salt_bytes: 0,
    iv_bytes: 0,
    block_bytes: 1,
    nonce_rule: NonceRule::Explicit,
    icv_bytes: &[],
    names_icv: false,
};

impl Cipher {
    /// All ciphers.
    pub const ALL: &'static [Cipher] = &[
        Cipher::AesGcm(AesKey::Aes128),
        Cipher::AesGcm(AesKey::Aes256),
        Cipher::ChaCha20Poly1305,
        Cipher::AesCbc(AesKey::Aes128),
        Cipher::AesCbc(AesKey::Aes256),
        Cipher::Null,
    ];

    /// Its description.
    #[must_use]
    pub const fn info(self) -> &'static CipherInfo {
        match self {
            Cipher::AesGcm(AesKey::Aes128) => &AES_128_GCM,
            Cipher::AesGcm(AesKey::Aes256) => &AES_256_GCM,
            Cipher::ChaCha20Poly1305 => &CHACHA20_POLY1305,
            Cipher::AesCbc(AesKey::Aes128) => &AES_128_CBC,
            Cipher::AesCbc(AesKey::Aes256) => &AES_256_CBC,
            Cipher::Null => &NULL,
        }
    }
}

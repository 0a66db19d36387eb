//! What of a suite a device is told: algorithms, lengths and keys.

use crate::place::MAX_TEXT_BYTES;
use crate::raw::{self, auth, cipher};
use std::ptr::null;
use testudo_crypto::{Cipher, Direction, Integrity, KeyMaterial, Suite};

/// How a suite's packets are laid out for a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// A combined mode: nonce, AAD, text, ICV.
    Aead,
    /// AES-GMAC: all of a packet is authenticated, under a nonce.
    Gmac,
    /// A cipher in CBC mode, with or without an integrity algorithm.
    Cbc,
    /// AES-CTR, the same.
    Ctr,
    /// An integrity algorithm alone.
    Integrity,
}

/// A suite in a device's terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plan {
    pub suite: Suite,
    pub layout: Layout,
    cipher: u8,
    auth: u8,
    iv_bytes: u8,
}

/// A session of a key. Most keys need the first alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Variant {
    /// As the suite is.
    Usual = 0,
    /// A combined mode with the AAD of ESN, which is longer; a cipher in counter mode for packets without a
    /// text, of which a device does the integrity alone.
    Other = 1,
}

impl Plan {
    /// `None` for what no device does.
    pub(crate) fn of(suite: Suite) -> Option<Self> {
        let (layout, cipher, iv_bytes) = match suite.cipher() {
            Cipher::AesGcm(_) | Cipher::AesGcmImplicitIv(_) => (Layout::Aead, cipher::AES_GCM, 12),
            Cipher::AesCcm(_) | Cipher::AesCcmImplicitIv(_) => (Layout::Aead, cipher::AES_CCM, 11),
            Cipher::ChaCha20Poly1305 | Cipher::ChaCha20Poly1305ImplicitIv => {
                (Layout::Aead, cipher::CHACHA20_POLY1305, 12)
            }
            Cipher::AesGmac(_) => (Layout::Gmac, cipher::NONE, 12),
            Cipher::AesCbc(_) => (Layout::Cbc, cipher::AES_CBC, 16),
            Cipher::TripleDesCbc => (Layout::Cbc, cipher::TRIPLE_DES_CBC, 8),
            Cipher::DesCbc => (Layout::Cbc, cipher::DES_CBC, 8),
            Cipher::AesCtr(_) => (Layout::Ctr, cipher::AES_CTR, 16),
            Cipher::Null => (Layout::Integrity, cipher::NONE, 0),
            // No device knows VPE.
            Cipher::AesGcmVpe(_) | Cipher::ChaCha20Poly1305Vpe => return None,
        };
        let auth = match suite.integrity() {
            Integrity::Combined if layout == Layout::Gmac => auth::AES_GMAC,
            Integrity::Combined | Integrity::None => auth::NONE,
            Integrity::HmacMd5 => auth::MD5_HMAC,
            Integrity::HmacSha1 => auth::SHA1_HMAC,
            Integrity::HmacSha256 => auth::SHA256_HMAC,
            Integrity::HmacSha384 => auth::SHA384_HMAC,
            Integrity::HmacSha512 => auth::SHA512_HMAC,
            Integrity::AesXcbc => auth::AES_XCBC,
            Integrity::AesCmac => auth::AES_CMAC,
        };
        (cipher != cipher::NONE || auth != auth::NONE).then_some(Self {
            suite,
            layout,
            cipher,
            auth,
            iv_bytes,
        })
    }

    /// The variants that a key of the suite may need.
    pub(crate) fn variants(&self) -> &'static [Variant] {
        match self.layout {
            Layout::Aead => &[Variant::Usual, Variant::Other],
            Layout::Ctr if self.auth != auth::NONE => &[Variant::Usual, Variant::Other],
            _ => &[Variant::Usual],
        }
    }

    /// Whether the device's nonce is that of CCM.
    pub(crate) fn is_ccm(&self) -> bool {
        self.cipher == cipher::AES_CCM
    }

    /// The longest text that is always taken: packets that have to be copied fit their slot, with the longest
    /// header of AH's.
    pub(crate) fn max_text_bytes(&self, is_software: bool) -> usize {
        const MAX_HEADER_BYTES: usize = 256;
        let copied = self.layout == Layout::Gmac || !is_software;
        if copied { raw::SLOT_COPY_BYTES - MAX_HEADER_BYTES } else { MAX_TEXT_BYTES }
    }

    /// What a device is asked for, without keys.
    pub(crate) fn asked(&self, variant: Variant) -> raw::Work {
        let is_gmac = self.layout == Layout::Gmac;
        let cipher =
            if variant == Variant::Other && self.layout == Layout::Ctr { cipher::NONE } else { self.cipher };
        let auth_key_bytes = if is_gmac { self.suite.key_bytes() } else { self.suite.integrity_key_bytes() };
        let aad_bytes = match (self.layout, variant) {
            (Layout::Aead, Variant::Usual) => 8,
            (Layout::Aead, Variant::Other) => 12,
            _ => 0,
        };
        raw::Work {
            cipher,
            auth: self.auth,
            seals: 0,
            cipher_key_bytes: if cipher == cipher::NONE { 0 } else { byte(self.suite.key_bytes()) },
            auth_key_bytes: byte(auth_key_bytes),
            iv_bytes: self.iv_bytes,
            icv_bytes: byte(self.suite.icv_bytes()),
            aad_bytes,
            cipher_key: null(),
            auth_key: null(),
        }
    }

    /// What a device is to do for a key. The pointers are into `key`.
    pub(crate) fn work(&self, key: &KeyMaterial, direction: Direction, variant: Variant) -> raw::Work {
        let is_gmac = self.layout == Layout::Gmac;
        let auth_key = if is_gmac { key.key() } else { key.integrity_key() };
        raw::Work {
            seals: u8::from(direction == Direction::Seal),
            cipher_key: key.key().as_ptr(),
            auth_key: auth_key.as_ptr(),
            ..self.asked(variant)
        }
    }
}

/// Lengths of keys and ICVs, 64 bytes at the most.
fn byte(length: usize) -> u8 {
    debug_assert!(length <= 64);
    u8::try_from(length).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_suite_has_a_plan_with_the_lengths_of_its_keys() {
        for suite in Suite::measurable() {
            let plan = Plan::of(suite).unwrap();
            let asked = plan.asked(Variant::Usual);
            let keys = usize::from(asked.cipher_key_bytes) + usize::from(asked.auth_key_bytes);
            assert_eq!(keys, suite.key_bytes() + suite.integrity_key_bytes(), "{suite}");
            assert_eq!(usize::from(asked.icv_bytes), suite.icv_bytes(), "{suite}");
            assert_eq!(asked.aad_bytes == 8, plan.layout == Layout::Aead, "{suite}");
        }
    }
}

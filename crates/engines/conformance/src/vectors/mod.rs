//! Official answers, in hexadecimal, each with its source. One file for each family of algorithms says which
//! documents there are, and what was added to make packets of them. The answers that engines must know at
//! every start ([`testudo_crypto::KNOWN_ANSWERS`]) stand in `crypto`, and are among them.

mod aead;
mod cbc;
mod ccm;
mod ctr;
mod des;
mod gmac;
mod implicit_iv;
mod mac;

use testudo_crypto::{Cipher, KNOWN_ANSWERS, KnownAnswer, Suite};

/// One official answer; all members but source and suite in hexadecimal.
#[derive(Debug, Clone, Copy)]
pub struct Vector {
    /// Document and case.
    pub source: &'static str,
    /// The suite's name, or that of a cipher without authentication.
    pub suite: &'static str,
    /// Cipher key, then integrity key; no salt.
    pub key: &'static str,
    /// Salt, if there is one, and IV.
    pub nonce: &'static str,
    /// Additional authenticated data: SPI and sequence number, 8 bytes, or 12 with ESN.
    pub aad: &'static str,
    /// Plaintext; of an ESP packet with its padding and trailer.
    pub text: &'static str,
    /// Ciphertext, then the ICV.
    pub sealed: &'static str,
}

impl Vector {
    /// The suite; `None` if the name is mistyped.
    #[must_use]
    pub fn suite(&self) -> Option<Suite> {
        Suite::for_measurement(self.suite).ok()
    }
}

impl From<&'static KnownAnswer> for Vector {
    /// Where the engine makes the IV, a known answer begins with it, and names the block that becomes it.
    fn from(known: &'static KnownAnswer) -> Self {
        let KnownAnswer { source, suite, key, nonce, aad, text, sealed } = *known;
        let made = Suite::for_measurement(suite).map_or(0, |suite| match suite.cipher() {
            Cipher::AesCbc(_) | Cipher::DesCbc | Cipher::TripleDesCbc => 2 * suite.iv_bytes(),
            _ => 0,
        });
        let (nonce, sealed) = if made == 0 { (nonce, sealed) } else { sealed.split_at(made) };
        Self { source, suite, key, nonce, aad, text, sealed }
    }
}

/// All of them.
pub fn vectors() -> impl Iterator<Item = Vector> {
    let families =
        [aead::AEAD, gmac::GMAC, ccm::CCM, implicit_iv::IMPLICIT_IV, cbc::CBC, ctr::CTR, des::DES, mac::MAC];
    KNOWN_ANSWERS.iter().map(Vector::from).chain(families.into_iter().flatten().copied())
}

/// The bytes that hexadecimal digits stand for; `None` for anything else.
pub(crate) fn hex(digits: &str) -> Option<Vec<u8>> {
    let nibbles: Option<Vec<u8>> = digits.chars().map(|c| u8::try_from(c.to_digit(16)?).ok()).collect();
    let nibbles = nibbles.filter(|n| n.len() % 2 == 0)?;
    Some(nibbles.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference;
    use std::mem::discriminant;
    use testudo_crypto::{Cipher, Integrity};

    /// The portable engine also confirms that the vectors were typed correctly, in `tests/portable.rs`.
    #[test]
    fn the_reference_gives_every_official_answer() {
        for v in vectors() {
            let (key, aad) = (hex(v.key).unwrap(), hex(v.aad).unwrap());
            let (suite, mut text) = (v.suite().unwrap(), hex(v.text).unwrap());
            let nonce = hex(v.nonce).unwrap();
            let nonce = nonce.split_at(suite.salt_bytes());
            let sealed = reference::seal(suite, &key, nonce, &aad, &mut text).map(|icv| [text, icv].concat());
            assert_eq!(sealed, Ok(hex(v.sealed).unwrap()), "{}, {suite}", v.source);
        }
    }

    /// Every cipher with every length of its key, every length of a combined mode's ICV, and every integrity
    /// algorithm; each mode and algorithm with and without ESN.
    #[test]
    fn every_primitive_and_both_lengths_of_aad_are_covered() {
        let aads = |is_it: &dyn Fn(Suite) -> bool| {
            let found = vectors().filter(|v| is_it(v.suite().unwrap()));
            found.map(|v| v.aad.len() / 2).collect::<Vec<_>>()
        };
        for cipher in Cipher::ALL {
            assert!(!aads(&|suite| suite.cipher() == *cipher).is_empty(), "{cipher:?}");
            let of_mode = aads(&|suite| discriminant(&suite.cipher()) == discriminant(cipher));
            assert!(of_mode.contains(&8) && of_mode.contains(&12), "{cipher:?}");
            for icv in cipher.info().icvs {
                let is_it = |suite: Suite| {
                    suite.icv_bytes() == usize::from(icv.bytes)
                        && discriminant(&suite.cipher()) == discriminant(cipher)
                };
                assert!(!aads(&is_it).is_empty(), "{cipher:?}, {} bytes", icv.bytes);
            }
        }
        for integrity in Integrity::ALL {
            let aads = aads(&|suite| suite.integrity() == *integrity);
            assert!(aads.contains(&8) && aads.contains(&12), "{integrity:?}");
        }
    }
}

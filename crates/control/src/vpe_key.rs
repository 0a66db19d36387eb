//! The key of an SA of VPE that was negotiated as one of ESP (`docs/VPE.md`).

use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};
use testudo_crypto::KeyMaterial;
use zeroize::Zeroizing;

/// What makes it another key than any that has another use.
const LABEL: &[u8] = b"VPE";

/// Bytes of a key.
struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// HKDF-SHA256 (RFC 5869) of `keymat`, the cipher key and the salt of ESP in the order of RFC 7296 2.17, with
/// an empty salt and the info "VPE" and the SPI, 4 bytes, the highest first: as many bytes as the cipher key
/// has. `None` where VPE has no such suite.
#[must_use]
pub fn of_negotiated(keymat: &KeyMaterial, spi: u32) -> Option<KeyMaterial> {
    let suite = keymat.suite().for_vpe().filter(|_| !keymat.suite().is_for_vpe())?;
    let whole = Zeroizing::new([keymat.key(), keymat.salt()].concat());
    let extracted = Salt::new(HKDF_SHA256, &[]).extract(&whole);
    let mut key = Zeroizing::new(vec![0; suite.keying_material_bytes()]);
    let info = [LABEL, &spi.to_be_bytes()];
    extracted.expand(&info, Length(key.len())).and_then(|expanded| expanded.fill(&mut key)).ok()?;
    KeyMaterial::new(suite, key).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use testudo_crypto::Suite;

    fn suite_of_esp(name: &str) -> Suite {
        name.parse().unwrap()
    }

    fn bytes(text: &str) -> Vec<u8> {
        let digits: Vec<char> = text.chars().collect();
        digits
            .chunks(2)
            .map(|pair| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap())
            .collect()
    }

    /// The vectors are what Python's hmac and hashlib make of the page: `tests/vpe/keys.py` writes them.
    #[test]
    fn negotiated_keys_are_those_of_the_second_implementation() {
        let text = include_str!("../../../docs/vpe-key-vectors.json");
        let vectors: Vec<serde_json::Value> = serde_json::from_str(text).unwrap();
        assert_eq!(vectors.len(), 6);
        for vector in vectors {
            let word = |name: &str| vector[name].as_str().unwrap();
            let keymat = Zeroizing::new(bytes(word("keymat")));
            let keymat = KeyMaterial::new(suite_of_esp(word("suite")), keymat).unwrap();
            let spi = u32::try_from(vector["spi"].as_u64().unwrap()).unwrap();
            let key = of_negotiated(&keymat, spi).unwrap();
            assert_eq!(key.key(), bytes(word("key")), "{vector}");
            assert!(key.suite().is_for_vpe() && key.salt().is_empty());
        }
    }

    #[test]
    fn no_other_suite_has_a_key_of_vpe() {
        for suite in Suite::every() {
            let keymat =
                KeyMaterial::new(suite, Zeroizing::new((0..).take(suite.keying_material_bytes()).collect()));
            let names = ["aes128gcm16", "aes256gcm16", "chacha20poly1305"].map(suite_of_esp);
            let made = of_negotiated(&keymat.unwrap(), 0x1234);
            assert_eq!(made.is_some(), names.contains(&suite), "{suite}");
        }
    }
}

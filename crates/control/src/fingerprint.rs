//! An identifier for keying material that does not reveal it.

use aws_lc_rs::digest;
use std::fmt;
use testudo_crypto::{AesKey, Cipher, KeyMaterial, Suite};

/// Separates this use of SHA-256 from every other, and its versions from each other.
const DOMAIN: &[u8] = b"testudo key fingerprint v1";
/// The same for a sender's part of a group's key.
const SENDER_DOMAIN: &[u8] = b"testudo sender fingerprint v1";

/// Identifies one SA's keying material: SHA-256 over a domain string, the suite's name, keys and salt.
///
/// Durable state is stored under it, so that replay windows and sequence numbers belong to the key, whichever
/// tunnel or SPI uses it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint([u8; Fingerprint::BYTES]);

impl Fingerprint {
    /// Length in bytes.
    pub const BYTES: usize = 32;

    /// A fingerprint from its bytes as stored.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }
}

impl Fingerprint {
    /// What one sender of a group has of the key: numbers that no other sender's meet.
    #[must_use]
    pub fn of_sender(&self, sender: u16) -> Self {
        digest_of(&[SENDER_DOMAIN, &[0], &self.0, &sender.to_le_bytes()])
    }
}

/// Eight bytes are enough to tell keys apart in a message.
impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..8].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

/// The fingerprint of `keys`.
#[must_use]
pub fn fingerprint(keys: &KeyMaterial) -> Fingerprint {
    under(keys, keys.suite())
}

fn under(keys: &KeyMaterial, suite: Suite) -> Fingerprint {
    let suite = suite.to_string();
    digest_of(&[DOMAIN, &[0], suite.as_bytes(), &[0], keys.key(), keys.salt(), keys.integrity_key()])
}

/// The fingerprints of the same keys in suites that differ in nothing but the length of the ICV. That of
/// AES-GCM is the beginning of a longer one (NIST SP 800-38D 7.1): a recorded packet, cut to the shorter, is
/// authentic under the other suite.
pub(crate) fn under_other_icvs(keys: &KeyMaterial) -> impl Iterator<Item = Fingerprint> {
    let own = keys.suite();
    let differs = move |suite: &&Suite| suite.cipher() == own.cipher() && **suite != own;
    let others = Suite::ALL.iter().filter(move |_| own.is_combined()).filter(differs);
    others.map(|suite| under(keys, *suite))
}

/// The first half of a fingerprint or digest, which tells keys apart as well: it is kept in memory alone,
/// several times for each of very many SAs. Two of 2^32 keys have the same one with a chance of 2^-65.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct HalfDigest([u8; HalfDigest::BYTES]);

impl HalfDigest {
    /// Length in bytes.
    const BYTES: usize = Fingerprint::BYTES / 2;

    /// Its bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }
}

impl From<Fingerprint> for HalfDigest {
    fn from(whole: Fingerprint) -> Self {
        let (mut half, (first, _)) = ([0; Self::BYTES], whole.0.split_at(Self::BYTES));
        half.copy_from_slice(first);
        Self(half)
    }
}

/// As a fingerprint shows itself.
impl fmt::Debug for HalfDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HalfDigest(")?;
        self.0[..8].iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, ")")
    }
}

/// What tells whether two SAs have a key in common: a digest of each of an SA's keys by itself, the cipher's
/// and the integrity algorithm's. Another suite, another salt, or another key beside it make no other key of
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyDigests([Option<HalfDigest>; 2]);

impl KeyDigests {
    /// Those of `keys`.
    #[must_use]
    pub fn of(keys: &KeyMaterial) -> Self {
        Self(
            [keys.key(), keys.integrity_key()].map(|key| (!key.is_empty()).then(|| digest_of(&[key]).into())),
        )
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = HalfDigest> + use<> {
        self.0.into_iter().flatten()
    }

    /// Whether a key is in both.
    #[must_use]
    pub fn overlap(&self, other: &Self) -> bool {
        self.iter().any(|key| other.iter().any(|theirs| theirs == key))
    }
}

/// The fingerprint under which an SA's sequence numbers are stored: as [`fingerprint`], but without the
/// integrity key of a suite that also has a cipher key, and with one name for all suites that make the same
/// nonces of a number. The cipher derives IVs from the numbers, so they belong to its key, even if only the
/// integrity key, the integrity algorithm, the ICV's length, or where the IV is, changes.
#[must_use]
pub fn numbers_of(keys: &KeyMaterial) -> Fingerprint {
    let suite = keys.suite();
    // The first name of each is that under which stores have such keys already.
    let name = match suite.cipher() {
        Cipher::Null => return fingerprint(keys),
        // All four encrypt the same counter blocks: salt, IV, and a counter.
        Cipher::AesGcm(size)
        | Cipher::AesGcmImplicitIv(size)
        | Cipher::AesGmac(size)
        | Cipher::AesCtr(size) => match size {
            AesKey::Aes128 => "aes128gcm16",
            AesKey::Aes192 => "aes192gcm16",
            AesKey::Aes256 => "aes256gcm16",
        },
        Cipher::AesCbc(AesKey::Aes128) => "aes128-sha1",
        Cipher::AesCbc(AesKey::Aes256) => "aes256-sha256",
        // With or without an implicit IV; with any ICV, or beside any integrity algorithm.
        other => other.info().keyword,
    };
    digest_of(&[DOMAIN, &[0], name.as_bytes(), &[0], keys.key(), keys.salt()])
}

/// SHA-256 over the concatenation of `parts`.
pub(crate) fn digest_of(parts: &[&[u8]]) -> Fingerprint {
    let mut context = digest::Context::new(&digest::SHA256);
    parts.iter().for_each(|part| context.update(part));
    let mut bytes = [0; Fingerprint::BYTES];
    bytes.copy_from_slice(context.finish().as_ref());
    Fingerprint(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use zeroize::Zeroizing;

    fn material(suite: Suite, byte: u8) -> KeyMaterial {
        KeyMaterial::new(suite, Zeroizing::new(vec![byte; suite.keying_material_bytes()])).unwrap()
    }

    #[test]
    fn the_same_bytes_under_another_suite_have_another_fingerprint() {
        let gcm = fingerprint(&material(Suite::AES256GCM16, 7));
        assert_ne!(gcm, fingerprint(&material(Suite::CHACHA20POLY1305, 7)));
        assert_ne!(gcm, fingerprint(&material(Suite::AES256GCM16, 8)));
        assert_eq!(gcm, fingerprint(&material(Suite::AES256GCM16, 7)));
    }

    #[test]
    fn numbers_belong_to_the_cipher_key_and_windows_to_all_keys() {
        let suite = Suite::AES128_SHA1;
        let mut bytes = Zeroizing::new(vec![7; suite.keying_material_bytes()]);
        bytes[16] ^= 1;
        let (one, other) = (material(suite, 7), KeyMaterial::new(suite, bytes).unwrap());
        assert_ne!(fingerprint(&one), fingerprint(&other));
        assert_eq!(numbers_of(&one), numbers_of(&other));
        assert_ne!(numbers_of(&one), numbers_of(&material(suite, 8)));
        for suite in [Suite::AES128GCM16, Suite::NULL_SHA1] {
            assert_eq!(numbers_of(&material(suite, 7)), fingerprint(&material(suite, 7)));
        }
    }

    /// The IVs of CBC come from the numbers, in every suite that has the cipher key. The values are Python's,
    /// as below.
    #[test]
    fn numbers_continue_where_a_tunnel_changes_only_its_integrity_algorithm() {
        for (cipher, stored) in [("aes128", "eef0326acffb049a"), ("aes256", "162f68bfa92a9ace")] {
            for integrity in ["sha1", "sha256", "sha384", "sha512"] {
                let suite = format!("{cipher}-{integrity}").parse().unwrap();
                assert_eq!(numbers_of(&material(suite, 0x11)).to_string(), stored, "{suite}");
            }
        }
    }

    /// A nonce that was used with one of these suites must not be used with another.
    #[test]
    fn numbers_continue_where_a_tunnel_changes_only_how_a_mode_is_used() {
        let families: [&[&str]; 4] = [
            &["aes128gcm16", "aes128gcm8", "aes128gcm12", "aes128gcm16iiv", "aes128gmac", "aes128ctr-sha1"],
            &["aes192gcm16", "aes192gcm8", "aes192gcm16iiv", "aes192gmac", "aes192ctr-aescmac"],
            &["aes256ccm16", "aes256ccm8", "aes256ccm12", "aes256ccm8iiv"],
            &["chacha20poly1305", "chacha20poly1305iiv"],
        ];
        let numbers = |suite: &str| numbers_of(&material(suite.parse().unwrap(), 0x11));
        for family in families {
            assert!(family.iter().all(|suite| numbers(suite) == numbers(family[0])), "{family:?}");
        }
        for (at, family) in families.iter().enumerate() {
            assert!(families[..at].iter().all(|other| numbers(other[0]) != numbers(family[0])));
        }
        assert_eq!(numbers("aes128gcm8").to_string(), "01a6604e7c09feaa", "as in stores that exist");
    }

    /// Computed with Python's hashlib over the same bytes. Numbers are stored under it.
    #[test]
    fn each_sender_of_a_group_has_a_part_of_the_key_of_its_own() {
        let key = numbers_of(&material(Suite::AES128GCM16, 0x11));
        let parts = [0, 1, 0x0100, 0xFFFF].map(|sender| key.of_sender(sender));
        assert!((0..4).all(|at| !parts[..at].contains(&parts[at]) && parts[at] != key));
        assert_eq!(parts[1].to_string(), "2b3de1cc776d4f25");
    }

    #[test]
    fn icvs_of_other_lengths_are_those_of_the_same_cipher() {
        let others = |suite: &str| under_other_icvs(&material(suite.parse().unwrap(), 7)).collect::<Vec<_>>();
        let of = |suite: &str| fingerprint(&material(suite.parse().unwrap(), 7));
        assert_eq!(others("aes128gcm16"), [of("aes128gcm8"), of("aes128gcm12")]);
        assert_eq!(others("aes256ccm8"), [of("aes256ccm12"), of("aes256ccm16")]);
        for alone in ["chacha20poly1305", "aes128-sha1", "null-sha256", "aes128gmac"] {
            assert_eq!(others(alone), [], "{alone}");
        }
    }

    /// Computed with Python's hashlib over the same bytes. Durable state is stored under it, so it must never
    /// change.
    #[test]
    fn the_fingerprint_is_stable_across_versions() {
        let found = fingerprint(&material(Suite::AES128GCM16, 0x11));
        assert_eq!(found.to_string(), "01a6604e7c09feaa");
    }
}

//! Algorithms by the kernel's names, and keys as the kernel takes them.
//!
//! Daemons use the names of Linux's tables or their older forms: charon says "aes" where `ip xfrm` says
//! "cbc(aes)". Answers have the former.

use testudo_crypto::{Cipher, Integrity, KeyMaterial, KeyMaterialError, Suite};
use testudo_wire::netlink::ack::Refusal;
use testudo_wire::netlink::errno::Errno;
use testudo_wire::xfrm::algorithm::{Algorithm, AlgorithmWithIcv};
use testudo_wire::xfrm::attribute::{Attribute, Attributes};
use zeroize::Zeroizing;

/// Older names (`compat` in the kernel's `xfrm_algo.c`).
const OLDER: [(&str, &str); 8] = [
    ("aes", "cbc(aes)"),
    ("des", "cbc(des)"),
    ("des3_ede", "cbc(des3_ede)"),
    ("cipher_null", "ecb(cipher_null)"),
    ("md5", "hmac(md5)"),
    ("sha1", "hmac(sha1)"),
    ("sha256", "hmac(sha256)"),
    ("digest_null", "digest_null"),
];

/// The ICV that the kernel gives an algorithm of `XFRMA_ALG_AUTH`, in bits, where that is not the one of RFC
/// 4868: it is from a draft.
const DRAFT_ICV: (Integrity, u32) = (Integrity::HmacSha256, 96);

/// The algorithms of an SA with their key.
#[derive(Debug)]
pub struct Algorithms {
    /// What the data path calls them.
    pub suite: Suite,
    /// Their key.
    pub key: KeyMaterial,
    /// As attributes, as the kernel would show them.
    pub attributes: Vec<Attribute>,
}

/// A name, and the kernel's own form of it.
fn canonical(name: &str) -> &str {
    OLDER.iter().find(|(older, _)| *older == name).map_or(name, |(_, name)| name)
}

/// The kernel's name of a cipher: the null cipher has two.
fn name_of(cipher: Cipher) -> Option<&'static str> {
    cipher.info().linux.map(canonical)
}

fn not_found(what: &str, name: &str) -> Refusal {
    Refusal::new(Errno::NOSYS, format!("{what} algorithm \"{name}\" is not one that the gateway has"))
}

/// What the key of a combined mode may be.
fn combined(aead: &AlgorithmWithIcv) -> Result<Suite, Refusal> {
    let name = canonical(&aead.name);
    let mut named =
        Suite::ALL.iter().filter(|suite| suite.is_combined() && name_of(suite.cipher()) == Some(name));
    let mut of_icv = named.clone().filter(|suite| suite.icv_bytes() * 8 == aead.icv_bits as usize);
    if named.next().is_none() {
        return Err(not_found("combined", name));
    }
    if of_icv.clone().next().is_none() {
        let text = format!("{name} has no ICV of {} bits", aead.icv_bits);
        return Err(Refusal::new(Errno::NOSYS, text));
    }
    let bytes = aead.key.bytes().len();
    of_icv.find(|suite| suite.keying_material_bytes() == bytes).copied().ok_or_else(|| {
        let text = format!("{name} has no key of {} bits, its salt included", bytes * 8);
        Refusal::new(Errno::INVAL, text)
    })
}

/// A cipher beside an integrity algorithm, by name and bytes of the key, its salt included.
fn cipher(algorithm: &Algorithm) -> Result<Cipher, Refusal> {
    let name = canonical(&algorithm.name);
    let ciphers = || Suite::ALL.iter().filter(|suite| !suite.is_combined()).map(|suite| suite.cipher());
    let mut named = ciphers().filter(|cipher| name_of(*cipher) == Some(name)).peekable();
    if named.peek().is_none() {
        return Err(not_found("encryption", name));
    }
    let bytes = algorithm.key.bytes().len();
    named
        .find(|cipher| cipher.info().key_bytes + cipher.info().salt_bytes == bytes)
        .ok_or_else(|| Refusal::new(Errno::INVAL, format!("{name} has no key of {} bits", bytes * 8)))
}

/// An integrity algorithm, by name and bits of the ICV; without these, the kernel's own.
fn integrity(name: &str, icv_bits: Option<u32>, key_bytes: usize) -> Result<Integrity, Refusal> {
    let name = canonical(name);
    let all = Suite::ALL.iter().map(|suite| suite.integrity());
    let found = all.filter(|integrity| *integrity != Integrity::Combined).find(|i| i.info().linux == name);
    let found = found.ok_or_else(|| not_found("integrity", name))?;
    let own = u32::from(found.info().icv_bytes) * 8;
    let wanted =
        icv_bits.filter(|bits| *bits > 0).unwrap_or(if found == DRAFT_ICV.0 { DRAFT_ICV.1 } else { own });
    if wanted != own {
        let text =
            format!("{name} has an ICV of {own} bits (RFC 4868), not of {wanted}: say it with auth-trunc");
        return Err(Refusal::new(Errno::NOSYS, text));
    }
    if found.info().key_bytes != key_bytes {
        let text =
            format!("{name} has a key of {} bits, not of {}", found.info().key_bytes * 8, key_bytes * 8);
        return Err(Refusal::new(Errno::INVAL, text));
    }
    Ok(found)
}

impl Algorithms {
    /// The algorithms of an SA by its attributes, whose presence was checked.
    ///
    /// # Errors
    /// `ENOSYS` for names, pairs and ICVs that the gateway does not have, `EINVAL` for keys of wrong lengths.
    pub fn of(attributes: &Attributes) -> Result<Self, Refusal> {
        if let Some(aead) = attributes.aead() {
            let suite = combined(aead)?;
            let shown = AlgorithmWithIcv { name: canonical(&aead.name).to_owned(), ..aead.clone() };
            let key = material(suite, aead.key.bytes(), &[])?;
            return Ok(Self { suite, key, attributes: vec![Attribute::Aead(shown)] });
        }
        let (truncated, whole) = (attributes.integrity_truncated(), attributes.integrity());
        let auth = match (truncated, whole) {
            (Some(a), _) => Some((a.name.as_str(), Some(a.icv_bits), &a.key)),
            (None, Some(a)) => Some((a.name.as_str(), None, &a.key)),
            (None, None) => None,
        };
        let Some((name, icv_bits, auth_key)) = auth else {
            let text = "encryption without integrity is not done: anybody on the way could change what it hides \
                        (RFC 8221 4)";
            return Err(Refusal::new(Errno::OPNOTSUPP, text));
        };
        let integrity = integrity(name, icv_bits, auth_key.bytes().len())?;
        let cipher_of = attributes.cipher().map(cipher).transpose()?;
        let suite = suite_of(cipher_of.unwrap_or(Cipher::Null), integrity)?;
        let cipher_key = attributes.cipher().map(|cipher| cipher.key.bytes()).unwrap_or_default();
        let key = material(suite, cipher_key, auth_key.bytes())?;
        Ok(Self { suite, key, attributes: shown(attributes, integrity, name, auth_key) })
    }
}

fn suite_of(cipher: Cipher, integrity: Integrity) -> Result<Suite, Refusal> {
    let mut all = Suite::ALL.iter();
    let found = all.find(|suite| suite.cipher() == cipher && suite.integrity() == integrity);
    found.copied().ok_or_else(|| {
        let (cipher, integrity) = (cipher.info().algorithm, integrity.info().algorithm);
        Refusal::new(Errno::NOSYS, format!("{cipher} with {integrity} is no suite of the gateway"))
    })
}

fn material(suite: Suite, cipher: &[u8], integrity: &[u8]) -> Result<KeyMaterial, Refusal> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(cipher.len() + integrity.len()));
    bytes.extend_from_slice(cipher);
    bytes.extend_from_slice(integrity);
    KeyMaterial::new(suite, bytes)
        .map_err(|error: KeyMaterialError| Refusal::new(Errno::INVAL, error.to_string()))
}

/// The kernel shows an integrity algorithm in both forms, with its own name.
fn shown(
    attributes: &Attributes,
    integrity: Integrity,
    name: &str,
    key: &testudo_wire::xfrm::algorithm::Key,
) -> Vec<Attribute> {
    let name = canonical(name).to_owned();
    let icv_bits = u32::from(integrity.info().icv_bytes) * 8;
    let truncated = AlgorithmWithIcv { name: name.clone(), key: key.clone(), icv_bits };
    let mut all = vec![
        Attribute::IntegrityTruncated(truncated),
        Attribute::Integrity(Algorithm { name, key: key.clone() }),
    ];
    let cipher = attributes.cipher().cloned();
    all.extend(
        cipher.map(|cipher| {
            Attribute::Cipher(Algorithm { name: canonical(&cipher.name).to_owned(), ..cipher })
        }),
    );
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use testudo_wire::xfrm::algorithm::Key;

    fn key(bytes: usize) -> Key {
        Key::new(Zeroizing::new((0..=u8::MAX).take(bytes).collect()))
    }

    fn aead(name: &str, bytes: usize, icv_bits: u32) -> Attribute {
        Attribute::Aead(AlgorithmWithIcv { name: name.into(), key: key(bytes), icv_bits })
    }

    fn auth(name: &str, bytes: usize, icv_bits: u32) -> Attribute {
        Attribute::IntegrityTruncated(AlgorithmWithIcv { name: name.into(), key: key(bytes), icv_bits })
    }

    fn enc(name: &str, bytes: usize) -> Attribute {
        Attribute::Cipher(Algorithm { name: name.into(), key: key(bytes) })
    }

    fn suite(attributes: impl IntoIterator<Item = Attribute>) -> Result<String, (u16, String)> {
        let found = Algorithms::of(&attributes.into_iter().collect());
        found.map(|found| found.suite.to_string()).map_err(|refusal| (refusal.errno.0, refusal.text))
    }

    #[test]
    fn every_suite_that_linux_has_is_found_by_its_names() {
        for suite in Suite::ALL {
            let Some(name) = suite.cipher().info().linux else { continue };
            let info = suite.cipher().info();
            let icv_bits = u32::try_from(suite.icv_bytes()).unwrap() * 8;
            let cipher_bytes = info.key_bytes + info.salt_bytes;
            let attributes = match suite.is_combined() {
                true => vec![aead(name, cipher_bytes, icv_bits)],
                false => {
                    let integrity = suite.integrity().info();
                    vec![enc(name, cipher_bytes), auth(integrity.linux, integrity.key_bytes, icv_bits)]
                }
            };
            let found = Algorithms::of(&attributes.into_iter().collect()).unwrap();
            assert_eq!(found.suite, *suite, "{name}");
        }
    }

    /// What charon 5.9.8 and pluto 4.10 say.
    #[test]
    fn older_names_and_missing_ciphers_are_understood() {
        assert_eq!(suite([enc("aes", 16), auth("sha256", 32, 128)]), Ok("aes128-sha256".into()));
        assert_eq!(suite([enc("cipher_null", 0), auth("sha1", 20, 96)]), Ok("null-sha1".into()));
        assert_eq!(suite([enc("ecb(cipher_null)", 0), auth("sha1", 20, 96)]), Ok("null-sha1".into()));
        assert_eq!(suite([auth("cmac(aes)", 16, 96)]), Ok("null-aescmac".into()), "AH");
        let shown = Algorithms::of(&[enc("aes", 16), auth("sha256", 32, 128)].into()).unwrap().attributes;
        assert_eq!(shown[0], auth("hmac(sha256)", 32, 128));
        assert_eq!(shown[2], enc("cbc(aes)", 16));
    }

    #[test]
    fn what_is_not_there_is_refused_as_the_kernel_refuses_it() {
        for (attributes, errno, part) in [
            (vec![aead("rfc4106(gcm(camellia))", 20, 128)], Errno::NOSYS, "is not one"),
            (vec![aead("rfc4106(gcm(aes))", 20, 120)], Errno::NOSYS, "no ICV of 120 bits"),
            (vec![aead("rfc4106(gcm(aes))", 19, 128)], Errno::INVAL, "no key of 152 bits"),
            (vec![enc("cbc(aes)", 16)], Errno::OPNOTSUPP, "without integrity"),
            (vec![enc("cbc(aes)", 17), auth("hmac(sha1)", 20, 96)], Errno::INVAL, "no key of 136 bits"),
            (vec![enc("cbc(aes)", 16), auth("hmac(sha1)", 21, 96)], Errno::INVAL, "has a key of 160 bits"),
            (vec![enc("cbc(aes)", 16), auth("hmac(sha256)", 32, 96)], Errno::NOSYS, "an ICV of 128 bits"),
            (vec![enc("cbc(twofish)", 16), auth("hmac(sha1)", 20, 96)], Errno::NOSYS, "is not one"),
        ] {
            let (found, text) = suite(attributes).unwrap_err();
            assert_eq!(found, errno.0, "{text}");
            assert!(text.contains(part), "{text}");
        }
        let draft = Attribute::Integrity(Algorithm { name: "hmac(sha256)".into(), key: key(32) });
        assert!(
            suite([enc("cbc(aes)", 16), draft]).unwrap_err().1.contains("not of 96"),
            "as the kernel means it"
        );
    }
}

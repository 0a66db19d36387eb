//! Suites by name: strongSwan's proposal keywords.
//!
//! ```text
//!   esp      = combined [icv] ["iiv"] | cipher "-" integrity
//!   ah       = integrity | gmac
//!   icv      = its length in bytes ("aes128gcm16") or bits ("aes128gcm128"); 16 bytes where it is left out
//! ```
//!
//! Implicit IVs (RFC 8750) have no keyword there; they are written here as their IKEv2 transforms end.

use super::{Cipher, Integrity, Suite};
use std::fmt;
use std::str::FromStr;

/// What follows a cipher that is measured alone.
const NO_INTEGRITY: &str = "none";

/// The length of an ICV, in bytes, where a name does not say it, as in strongSwan.
const DEFAULT_ICV_BYTES: u8 = 16;

/// Why a name is no suite.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProposalError {
    /// No cipher has this keyword.
    #[error("unknown cipher \"{0}\"; ciphers are {list}", list = ciphers())]
    UnknownCipher(String),
    /// No integrity algorithm has this keyword.
    #[error("unknown integrity algorithm \"{0}\"; these are {list}", list = integrities())]
    UnknownIntegrity(String),
    /// No integrity algorithm that AH could have has this keyword.
    #[error("unknown integrity algorithm \"{0}\"; for AH these are {list}", list = of_ah())]
    UnknownOfAh(String),
    /// It names a cipher, and AH does not encrypt.
    #[error("AH does not encrypt, and names its integrity algorithm alone: write \"{0}\"")]
    EncryptsInAh(&'static str),
    /// The cipher does not authenticate.
    #[error("\"{0}\" needs an integrity algorithm: write \"{0}-sha256\"")]
    NoIntegrity(String),
    /// The integrity algorithm is written as none.
    #[error(
        "\"{0}-none\" authenticates nothing, so that anybody on the way can change what it carries (RFC 8221 4): write \
         \"{0}-sha256\""
    )]
    Unauthenticated(String),
    /// The cipher authenticates.
    #[error("\"{cipher}\" is authenticated by itself: leave \"-{integrity}\" out")]
    TooMuchIntegrity {
        /// Its keyword.
        cipher: String,
        /// What was written after it.
        integrity: String,
    },
}

impl fmt::Display for Suite {
    /// The name in configuration and tables.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cipher = self.cipher.info();
        let (keyword, end) = (cipher.keyword, cipher.keyword_end);
        f.pad(&match self.integrity {
            Integrity::Combined if cipher.names_icv => format!("{keyword}{}{end}", self.icv_bytes),
            Integrity::Combined => format!("{keyword}{end}"),
            integrity => format!("{keyword}-{}", integrity.info().keyword),
        })
    }
}

impl fmt::Debug for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Suite {
    type Err = ProposalError;

    fn from_str(name: &str) -> Result<Self, ProposalError> {
        let (first, second) = match name.split_once('-') {
            Some((first, second)) => (first, Some(second)),
            None => (name, None),
        };
        let unknown = || ProposalError::UnknownCipher(first.to_owned());
        let (cipher, icv_bytes) = Cipher::ALL.iter().find_map(|c| cipher(*c, first)).ok_or_else(unknown)?;
        match (icv_bytes, second) {
            (Some(icv_bytes), None) => Ok(Suite::combined(cipher, icv_bytes)),
            (None, Some(NO_INTEGRITY)) => Err(ProposalError::Unauthenticated(first.to_owned())),
            (None, Some(second)) => Ok(Suite::pair(cipher, integrity(second)?)),
            (None, None) => Err(ProposalError::NoIntegrity(first.to_owned())),
            (Some(_), Some(integrity)) => Err(ProposalError::TooMuchIntegrity {
                cipher: first.to_owned(),
                integrity: integrity.to_owned(),
            }),
        }
    }
}

impl Suite {
    /// The suite of an AH SA by the keyword of its integrity algorithm: `sha256` is `null-sha256`, and GMAC
    /// is itself (RFC 4543 4).
    ///
    /// # Errors
    /// [`ProposalError`] says what is wrong with the name.
    pub fn for_ah(name: &str) -> Result<Self, ProposalError> {
        let named = |algorithm: &&Integrity| is_named(**algorithm, name);
        if let Some(algorithm) = Integrity::ALL.iter().find(named) {
            return Ok(Suite::pair(Cipher::Null, *algorithm));
        }
        match name.parse::<Suite>() {
            Ok(gmac) if gmac.is_combined() && !gmac.encrypts() => Ok(gmac),
            Ok(suite) if suite.is_combined() => Err(ProposalError::EncryptsInAh("aes128gmac")),
            Ok(suite) => Err(ProposalError::EncryptsInAh(suite.integrity.info().keyword)),
            Err(_) => Err(ProposalError::UnknownOfAh(name.to_owned())),
        }
    }

    /// Its name as that of an AH SA; `None` if it encrypts.
    #[must_use]
    pub fn ah_name(self) -> Option<&'static str> {
        match (self.encrypts(), self.integrity) {
            (true, _) => None,
            (false, Integrity::Combined) => Some(self.cipher.info().keyword),
            (false, integrity) => Some(integrity.info().keyword),
        }
    }

    /// Every suite that AH can have.
    pub fn all_for_ah() -> impl Iterator<Item = Suite> {
        Self::ALL.iter().copied().filter(|suite| !suite.encrypts())
    }

    /// A suite by its name, or a cipher without authentication (`aes128-none`): for measurements alone, see
    /// [`cipher_only`](Self::cipher_only).
    ///
    /// # Errors
    /// [`ProposalError`] says what is wrong with the name.
    pub fn for_measurement(name: &str) -> Result<Self, ProposalError> {
        name.parse().or_else(|error| {
            let is_named = |suite: &Suite| suite.to_string() == name;
            Self::measurable().find(is_named).ok_or(error)
        })
    }
}

/// `cipher` and the length of its ICV in bytes, if it is a combined mode; `None` if `name` is another's.
fn cipher(cipher: Cipher, name: &str) -> Option<(Cipher, Option<u8>)> {
    let info = cipher.info();
    // strongSwan's "aes" is its "aes128", alone and not before a mode's name.
    let name = if name == "aes" { "aes128" } else { name };
    let length = name.strip_prefix(info.keyword)?.strip_suffix(info.keyword_end)?;
    let icv = match info.icvs {
        [first, ..] if !info.names_icv => length.is_empty().then_some(Some(first.bytes)),
        [] => length.is_empty().then_some(None),
        lengths => lengths.iter().map(|icv| icv.bytes).find(|bytes| is_length(*bytes, length)).map(Some),
    };
    icv.map(|icv| (cipher, icv))
}

/// Whether `text` says this length of an ICV, in bytes or bits. Compared as text, because a number may be
/// written in more than one way.
fn is_length(bytes: u8, text: &str) -> bool {
    let said = [1, 8].iter().any(|unit| (u32::from(bytes) * unit).to_string() == text);
    said || text.is_empty() && bytes == DEFAULT_ICV_BYTES
}

/// The keywords of all ciphers, each combined mode with its longest ICV.
fn ciphers() -> String {
    let name = |cipher: &Cipher| match cipher.info().icvs {
        [.., longest] => Suite::combined(*cipher, longest.bytes).to_string(),
        [] => cipher.info().keyword.to_owned(),
    };
    Cipher::ALL.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// The keywords of all integrity algorithms.
fn integrities() -> String {
    Integrity::ALL.iter().map(|integrity| integrity.info().keyword).collect::<Vec<_>>().join(", ")
}

/// The keywords of all integrity algorithms that AH can have.
fn of_ah() -> String {
    Suite::all_for_ah().filter_map(Suite::ah_name).collect::<Vec<_>>().join(", ")
}

fn is_named(algorithm: Integrity, name: &str) -> bool {
    let info = algorithm.info();
    info.keyword == name || info.aliases.contains(&name)
}

fn integrity(name: &str) -> Result<Integrity, ProposalError> {
    let found = Integrity::ALL.iter().find(|algorithm| is_named(**algorithm, name));
    found.copied().ok_or_else(|| ProposalError::UnknownIntegrity(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AesKey;

    #[test]
    fn every_suite_is_found_by_its_name() {
        for suite in Suite::ALL {
            assert_eq!(suite.to_string().parse(), Ok(*suite));
        }
        let mut names: Vec<_> = Suite::ALL.iter().map(Suite::to_string).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), Suite::ALL.len());
    }

    #[test]
    fn names_are_those_that_strongswan_users_write() {
        assert_eq!("aes128gcm16".parse(), Ok(Suite::AES128GCM16));
        assert_eq!("aes256gcm128".parse(), Ok(Suite::AES256GCM16));
        assert_eq!("chacha20poly1305".parse(), Ok(Suite::CHACHA20POLY1305));
        assert_eq!("aes128-sha1".parse(), Ok(Suite::AES128_SHA1));
        assert_eq!("null-sha1".parse(), Ok(Suite::NULL_SHA1));
        let other = Suite::pair(Cipher::AesCbc(AesKey::Aes128), Integrity::HmacSha256);
        assert_eq!("aes128-sha256".parse(), Ok(other));
    }

    /// Its keywords (strongSwan 5.9 and 6.0, `proposal_keywords_static.txt`) of the algorithms that are here,
    /// each with what Testudo prints.
    #[test]
    fn each_of_strongswans_ways_to_write_a_suite_is_read_and_one_is_printed() {
        let printed = |name: String| name.parse::<Suite>().map(|suite| suite.to_string());
        for bits in [128, 192, 256] {
            for mode in ["gcm", "ccm"] {
                for (written, length) in
                    [("8", 8), ("64", 8), ("12", 12), ("96", 12), ("16", 16), ("128", 16), ("", 16)]
                {
                    let name = format!("aes{bits}{mode}{written}");
                    assert_eq!(printed(name), Ok(format!("aes{bits}{mode}{length}")));
                }
            }
            let gmac = format!("aes{bits}gmac");
            assert_eq!(printed(gmac.clone()), Ok(gmac));
        }
        let ciphers =
            ["null", "des", "3des", "aes128", "aes192", "aes256", "aes128ctr", "aes192ctr", "aes256ctr"];
        let integrities = ["md5", "sha1", "sha256", "sha384", "sha512", "aesxcbc", "aescmac"];
        for cipher in ciphers {
            for integrity in integrities {
                let name = format!("{cipher}-{integrity}");
                assert_eq!(printed(name.clone()), Ok(name));
            }
        }
        let aliases =
            [("sha", "sha1"), ("sha2_256", "sha256"), ("sha2_384", "sha384"), ("sha2_512", "sha512")];
        for (alias, keyword) in aliases {
            assert_eq!(printed(format!("aes-{alias}")), Ok(format!("aes128-{keyword}")));
        }
    }

    /// RFC 8750 has one length of the ICV for each mode.
    #[test]
    fn implicit_ivs_have_names_of_their_own() {
        for name in ["aes128gcm16iiv", "aes192gcm16iiv", "aes256ccm8iiv", "chacha20poly1305iiv"] {
            assert_eq!(name.parse::<Suite>().map(|suite| suite.to_string()), Ok(name.to_owned()));
        }
        for name in ["aes128gcm8iiv", "aes128ccm16iiv", "aes128gmaciiv", "aes128iiv-sha1", "iiv"] {
            assert!(name.parse::<Suite>().is_err(), "{name}");
        }
    }

    /// RFC 4302 and RFC 4543 4: what AH can have are the suites that do not encrypt.
    #[test]
    fn ah_names_its_integrity_algorithm_alone() {
        for suite in Suite::all_for_ah() {
            let name = suite.ah_name().unwrap();
            assert_eq!(Suite::for_ah(name), Ok(suite));
        }
        assert_eq!(Suite::all_for_ah().count(), Integrity::ALL.len() + 3);
        assert_eq!(Suite::for_ah("sha256").map(|suite| suite.to_string()), Ok("null-sha256".to_owned()));
        assert_eq!(Suite::for_ah("sha"), Ok(Suite::NULL_SHA1));
        assert_eq!(Suite::for_ah("aes192gmac").map(|suite| suite.to_string()), Ok("aes192gmac".to_owned()));
        assert_eq!(Suite::AES128GCM16.ah_name(), None);
        let error = |name: &str| Suite::for_ah(name).unwrap_err().to_string();
        let begin = "AH does not encrypt, and names its integrity algorithm alone: write";
        assert_eq!(error("aes256-sha512"), format!("{begin} \"sha512\""));
        assert_eq!(error("aes128gcm16"), format!("{begin} \"aes128gmac\""));
        let known: Vec<_> = Suite::all_for_ah().filter_map(Suite::ah_name).collect();
        for unknown in ["", "crc", "none", "aes128", "null", "null-none"] {
            let list = known.join(", ");
            assert_eq!(
                error(unknown),
                format!("unknown integrity algorithm \"{unknown}\"; for AH these are {list}")
            );
        }
    }

    /// RFC 4303 1 and RFC 8221 4: encryption without authentication is for measurements alone.
    #[test]
    fn a_cipher_without_authentication_is_measured_and_nothing_else() {
        for (name, better) in [("aes128-none", "aes128-sha256"), ("3des-none", "3des-sha256")] {
            let error = name.parse::<Suite>().unwrap_err().to_string();
            assert!(error.contains("RFC 8221 4") && error.contains(better), "{error}");
            let measured = Suite::for_measurement(name).unwrap();
            assert_eq!((measured.to_string(), measured.icv_bytes()), (name.to_owned(), 0));
            assert!(!measured.authenticates() && !Suite::ALL.contains(&measured));
        }
        for name in ["null-none", "aes128gcm16-none", "aes128gmac-none", "none", "aes128"] {
            assert!(Suite::for_measurement(name).is_err(), "{name}");
        }
        assert_eq!(Suite::for_measurement("aes128gcm16"), Ok(Suite::AES128GCM16));
        assert!(Suite::ALL.iter().all(|suite| suite.authenticates() && suite.icv_bytes() >= 8));
    }

    #[test]
    fn what_is_no_suite_is_told_why() {
        let error = |name: &str| name.parse::<Suite>().unwrap_err().to_string();
        assert_eq!(error("aes128"), "\"aes128\" needs an integrity algorithm: write \"aes128-sha256\"");
        assert_eq!(
            error("aes128gcm16-sha1"),
            "\"aes128gcm16\" is authenticated by itself: leave \"-sha1\" out"
        );
        let told = error("aes128gcm7");
        assert!(told.starts_with("unknown cipher \"aes128gcm7\"; ciphers are aes128gcm16, "), "{told}");
        assert!(told.ends_with(", 3des, des, null"), "{told}");
        assert_eq!(
            error("aes128-crc"),
            "unknown integrity algorithm \"crc\"; these are md5, sha1, sha256, sha384, sha512, aesxcbc, aescmac"
        );
        for unknown in ["", "-", "-sha1", "chacha20poly130516", "aes128gcm+16", "AES128-sha1", "aes128gcm016"]
        {
            assert!(error(unknown).starts_with("unknown cipher"), "{unknown}");
        }
    }
}

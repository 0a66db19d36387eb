//! Suites by name: strongSwan's proposal keywords.
//!
//! ```text
//!   proposal = combined [icv] | cipher "-" integrity
//!   icv      = its length in bytes ("aes128gcm16") or bits ("aes128gcm128"); left out where there is one
//! ```

use super::{Cipher, Integrity, Suite};
use std::fmt;
use std::str::FromStr;

/// Why a name is no suite.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProposalError {
    /// No cipher has this keyword.
    #[error("unknown cipher \"{0}\"; ciphers are {list}", list = ciphers())]
    UnknownCipher(String),
    /// No integrity algorithm has this keyword.
    #[error("unknown integrity algorithm \"{0}\"; these are {list}", list = integrities())]
    UnknownIntegrity(String),
    /// The cipher does not authenticate.
    #[error("\"{0}\" needs an integrity algorithm: write \"{0}-sha256\"")]
    NoIntegrity(String),
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
        let keyword = self.cipher.info().keyword;
        f.pad(&match self.integrity {
            Integrity::Combined if self.cipher.info().names_icv => format!("{keyword}{}", self.icv_bytes),
            Integrity::Combined => keyword.to_owned(),
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
            (None, Some(second)) => Ok(Suite::pair(cipher, integrity(second)?)),
            (None, None) => Err(ProposalError::NoIntegrity(first.to_owned())),
            (Some(_), Some(integrity)) => Err(ProposalError::TooMuchIntegrity {
                cipher: first.to_owned(),
                integrity: integrity.to_owned(),
            }),
        }
    }
}

/// `cipher` and the length of its ICV in bytes, if it is a combined mode; `None` if `name` is another's.
fn cipher(cipher: Cipher, name: &str) -> Option<(Cipher, Option<u8>)> {
    let info = cipher.info();
    let length = name.strip_prefix(info.keyword)?;
    match info.icv_bytes {
        [first, ..] if !info.names_icv => length.is_empty().then_some((cipher, Some(*first))),
        [] => length.is_empty().then_some((cipher, None)),
        lengths => {
            // As text: a number may be written in more than one way.
            let is_named =
                |bytes: &&u8| [1, 8].iter().any(|unit| (u32::from(**bytes) * unit).to_string() == length);
            lengths.iter().find(is_named).map(|bytes| (cipher, Some(*bytes)))
        }
    }
}

/// The keywords of all ciphers, each combined mode with its longest ICV.
fn ciphers() -> String {
    let name = |cipher: &Cipher| match cipher.info().icv_bytes {
        [.., longest] => Suite::combined(*cipher, *longest).to_string(),
        [] => cipher.info().keyword.to_owned(),
    };
    Cipher::ALL.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// The keywords of all integrity algorithms.
fn integrities() -> String {
    Integrity::ALL.iter().map(|integrity| integrity.info().keyword).collect::<Vec<_>>().join(", ")
}

fn integrity(name: &str) -> Result<Integrity, ProposalError> {
    let found = Integrity::ALL.iter().find(|algorithm| algorithm.info().keyword == name);
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

    #[test]
    fn what_is_no_suite_is_told_why() {
        let error = |name: &str| name.parse::<Suite>().unwrap_err().to_string();
        assert_eq!(error("aes128"), "\"aes128\" needs an integrity algorithm: write \"aes128-sha256\"");
        assert_eq!(
            error("aes128gcm16-sha1"),
            "\"aes128gcm16\" is authenticated by itself: leave \"-sha1\" out"
        );
        let ciphers = "aes128gcm16, aes256gcm16, chacha20poly1305, aes128, aes256, null";
        assert_eq!(error("aes128gcm7"), format!("unknown cipher \"aes128gcm7\"; ciphers are {ciphers}"));
        assert_eq!(
            error("aes128-crc"),
            "unknown integrity algorithm \"crc\"; these are sha1, sha256, sha384, sha512"
        );
        for unknown in ["", "-", "-sha1", "chacha20poly130516", "aes128gcm", "aes128gcm+16", "AES128-sha1"] {
            assert!(error(unknown).starts_with("unknown cipher"), "{unknown}");
        }
    }
}

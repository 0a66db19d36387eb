//! Keying material from a file or the environment: read once, checked, held in memory that is zeroed.
//!
//! A key is hex text: the cipher key, then the salt of 4 bytes (RFC 4106 8.1, RFC 7634 2), as `ip xfrm` and
//! strongSwan's logs print it; for a suite that is no AEAD the cipher key, then the integrity key, the order
//! in which IKE makes them (RFC 7296 2.17). White space, colons and a leading `0x` are ignored:
//!
//! ```text
//!   0x 4c80cdef bb5d10da 906ac73c 3613a634   2e443b68      aes128gcm16: 16 bytes of key, 4 of salt
//!                                                          aes256gcm16, chacha20poly1305: 32 and 4
//!                                                          aes128-sha1: 16 bytes of cipher key, 20 of integrity key
//!                                                          aes256-sha256: 32 and 32; null-sha1: 20 of integrity key
//! ```
//!
//! A key file must be a regular file owned by the gateway's user or root that nobody else may read or write.
//! One exception: a file of root may be readable by the service's group (`root:testudo`, mode 0640), so that
//! a gateway with its own user can read keys, including new ones at a reload, and change none. All of this is
//! checked on the opened file, not on its name, so that the file cannot be exchanged between check and use.
//! An environment variable is convenient for containers, but stays in the process's environment, which root
//! can read: prefer files.
//!
//! No error of this module contains a byte of a key.

use crate::account;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use testudo_crypto::{KeyMaterial, KeyMaterialError, Suite};
use zeroize::Zeroizing;

/// Longest text of a key in bytes, far more than any key needs.
pub const MAX_KEY_TEXT_BYTES: usize = 4096;

/// Looks up an environment variable; passed in so that tests can supply their own.
pub type Environment<'e> = &'e dyn Fn(&str) -> Option<String>;

/// Where a key is kept.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum KeySource {
    /// In this file.
    File(PathBuf),
    /// In this variable of the environment.
    Environment(String),
    /// Nowhere that could be read: a key exchange has made it.
    Exchanged,
}

/// Why a key could not be loaded. No error shows any part of it.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be opened or read.
    #[error("{0}")]
    Unreadable(#[source] io::Error),
    /// It is a directory, device, pipe or socket.
    #[error("not a regular file")]
    NotRegular,
    /// Group or others may read or write it.
    #[error("its mode is {mode:04o}")]
    Exposed {
        /// Its permission bits.
        mode: u32,
    },
    /// It belongs to neither the gateway's user nor root.
    #[error("it belongs to user {owner}")]
    ForeignOwner {
        /// The user id of its owner.
        owner: u32,
    },
    /// The environment has no such variable.
    #[error("not set")]
    Unset,
    /// It has more than [`MAX_KEY_TEXT_BYTES`].
    #[error("more than {MAX_KEY_TEXT_BYTES} bytes")]
    TooLong,
    /// Something other than hex digits, white space and colons.
    #[error("something that is not a hex digit, on line {line}")]
    NotHex {
        /// The line of the key's text, counted from 1.
        line: usize,
    },
    /// The wrong number of hex digits.
    #[error("{found} hex digits")]
    Length {
        /// Hex digits that the suite needs.
        expected: usize,
        /// Hex digits that were found.
        found: usize,
    },
    /// Two of the three keys of 3DES are equal (RFC 2451 2.3).
    #[error("two of its three keys are equal")]
    EqualDesKeys,
}

/// Loads the key of one SA.
///
/// # Errors
/// [`KeyError`] says what is wrong with the file, the variable or the text in it.
pub fn load(source: &KeySource, suite: Suite, environment: Environment<'_>) -> Result<KeyMaterial, KeyError> {
    match source {
        KeySource::File(path) => parse(&read_private(path)?, suite),
        KeySource::Environment(name) => {
            let text = Zeroizing::new(environment(name).ok_or(KeyError::Unset)?);
            parse(text.as_bytes(), suite)
        }
        KeySource::Exchanged => Err(KeyError::Unset),
    }
}

/// Reads a file that must be private to the gateway, with the text of one key or more.
///
/// # Errors
/// [`KeyError`] says what is wrong with the file.
pub fn read_private(path: &Path) -> Result<Zeroizing<Vec<u8>>, KeyError> {
    // Without NONBLOCK, opening a pipe would wait for its writer.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let opened = rustix::fs::open(path, flags, Mode::empty());
    let mut file = File::from(opened.map_err(|errno| KeyError::Unreadable(errno.into()))?);
    check_private(&file)?;
    // Capacity for all of it from the start: a vector that grows leaves copies in freed memory.
    let mut text = Zeroizing::new(vec![0; MAX_KEY_TEXT_BYTES + 1]);
    let length = read_up_to(&mut file, &mut text).map_err(KeyError::Unreadable)?;
    text.truncate(length);
    Ok(text)
}

/// The same from standard input, which nobody checks.
///
/// # Errors
/// [`KeyError::Unreadable`].
pub fn read_from(mut input: impl Read) -> Result<Zeroizing<Vec<u8>>, KeyError> {
    let mut text = Zeroizing::new(vec![0; MAX_KEY_TEXT_BYTES + 1]);
    let length = read_up_to(&mut input, &mut text).map_err(KeyError::Unreadable)?;
    text.truncate(length);
    Ok(text)
}

fn check_private(file: &File) -> Result<(), KeyError> {
    let metadata = file.metadata().map_err(KeyError::Unreadable)?;
    if !metadata.is_file() {
        return Err(KeyError::NotRegular);
    }
    let owner = metadata.uid();
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Err(KeyError::ForeignOwner { owner });
    }
    let mode = metadata.mode() & 0o7777;
    let group_may_read = owner == 0 && is_service_group(metadata.gid());
    if mode & others(group_may_read) != 0 {
        return Err(KeyError::Exposed { mode });
    }
    Ok(())
}

/// The permissions that make a key public.
const fn others(group_may_read: bool) -> u32 {
    if group_may_read { 0o037 } else { 0o077 }
}

/// Whether a gateway runs with this group, now or as the service.
fn is_service_group(group: u32) -> bool {
    group == rustix::process::getegid().as_raw() || account::group() == Some(group)
}

fn read_up_to(file: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Keying material for `suite` from hex text.
///
/// # Errors
/// [`KeyError::TooLong`], [`KeyError::NotHex`], [`KeyError::Length`] or [`KeyError::EqualDesKeys`].
pub fn parse(text: &[u8], suite: Suite) -> Result<KeyMaterial, KeyError> {
    if text.len() > MAX_KEY_TEXT_BYTES {
        return Err(KeyError::TooLong);
    }
    let digits = hex_digits(text)?;
    let wrong = KeyError::Length { expected: suite.keying_material_bytes() * 2, found: digits.len() };
    let bytes = digits.as_chunks::<2>();
    if !bytes.1.is_empty() {
        return Err(wrong);
    }
    let bytes = Zeroizing::new(bytes.0.iter().map(|[high, low]| high << 4 | low).collect::<Vec<u8>>());
    KeyMaterial::new(suite, bytes).map_err(|error| match error {
        KeyMaterialError::Length { .. } => wrong,
        KeyMaterialError::EqualDesKeys => KeyError::EqualDesKeys,
    })
}

/// The values of the hex digits in `text`, without separators.
fn hex_digits(text: &[u8]) -> Result<Zeroizing<Vec<u8>>, KeyError> {
    let start = text.iter().position(|byte| !byte.is_ascii_whitespace()).unwrap_or(text.len());
    let body = &text[start..];
    let body = body.strip_prefix(b"0x").or_else(|| body.strip_prefix(b"0X")).unwrap_or(body);
    let mut digits = Zeroizing::new(Vec::with_capacity(text.len()));
    for (index, byte) in body.iter().enumerate() {
        match byte {
            b'0'..=b'9' => digits.push(byte - b'0'),
            b'a'..=b'f' => digits.push(byte - b'a' + 10),
            b'A'..=b'F' => digits.push(byte - b'A' + 10),
            b':' => {}
            space if space.is_ascii_whitespace() => {}
            _ => return Err(KeyError::NotHex { line: line_of(text, text.len() - body.len() + index) }),
        }
    }
    Ok(digits)
}

fn line_of(text: &[u8], offset: usize) -> usize {
    1 + text[..offset].iter().filter(|byte| **byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_services_group_may_read_and_nothing_else() {
        let refused = |group_may_read, mode: u32| mode & others(group_may_read) != 0;
        assert!([0o600, 0o400, 0o640, 0o440].iter().all(|&mode| !refused(true, mode)));
        assert!([0o660, 0o650, 0o644, 0o641].iter().all(|&mode| refused(true, mode)));
        assert!([0o640, 0o440, 0o604].iter().all(|&mode| refused(false, mode)));
        assert!([0o600, 0o400].iter().all(|&mode| !refused(false, mode)));
    }
}

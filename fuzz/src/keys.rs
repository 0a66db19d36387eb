//! Keys, as text and as files.

use crate::input::Input;
use crate::memory_file::MemoryFile;
use testudo_control::keys::{self, KeyError, KeySource, MAX_KEY_TEXT_BYTES};
use testudo_crypto::{Cipher, KeyMaterial, Suite};

/// What a text must give: the key's bytes or the error, according to the manual.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Key(Vec<u8>),
    TooLong,
    NotHex { line: usize },
    Length { expected: usize, found: usize },
    EqualDesKeys,
}

/// The rules for a key's text, applied character by character.
fn model(text: &[u8], suite: Suite) -> Answer {
    if text.len() > MAX_KEY_TEXT_BYTES {
        return Answer::TooLong;
    }
    let is_space = |byte: u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0C);
    let mut at = text.iter().take_while(|&&byte| is_space(byte)).count();
    if text[at..].starts_with(b"0x") || text[at..].starts_with(b"0X") {
        at += 2;
    }
    let (mut digits, mut line) = (Vec::new(), 1 + text[..at].iter().filter(|&&b| b == b'\n').count());
    for &byte in &text[at..] {
        match char::from(byte).to_digit(16) {
            Some(digit) => digits.push(digit as u8),
            None if byte == b':' || is_space(byte) => line += usize::from(byte == b'\n'),
            None => return Answer::NotHex { line },
        }
    }
    let expected = 2 * (suite.key_bytes() + suite.integrity_key_bytes() + suite.salt_bytes());
    if digits.len() != expected {
        return Answer::Length { expected, found: digits.len() };
    }
    let key: Vec<u8> = digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    let part = |number: usize| key[8 * number..][..8].iter().map(|byte| byte >> 1).collect::<Vec<_>>();
    if suite.cipher() == Cipher::TripleDesCbc && (part(0) == part(1) || part(1) == part(2)) {
        return Answer::EqualDesKeys;
    }
    Answer::Key(key)
}

fn answer(result: Result<KeyMaterial, KeyError>) -> Answer {
    match result {
        Ok(key) => Answer::Key([key.key(), key.salt(), key.integrity_key()].concat()),
        Err(KeyError::TooLong) => Answer::TooLong,
        Err(KeyError::NotHex { line }) => Answer::NotHex { line },
        Err(KeyError::Length { expected, found }) => Answer::Length { expected, found },
        Err(KeyError::EqualDesKeys) => Answer::EqualDesKeys,
        Err(other) => panic!("a text that was read gives {other}"),
    }
}

/// The key in `text`, by the model.
#[must_use]
pub fn key_in(text: &[u8], suite: Suite) -> Option<Vec<u8>> {
    match model(text, suite) {
        Answer::Key(bytes) => Some(bytes),
        _ => None,
    }
}

/// A text is a key or an error, the same in every source, and a file that others may read is refused.
pub fn keys(data: &[u8]) {
    let mut input = Input::new(data);
    let (choice, mode) = (usize::from(input.byte()), u32::from(input.word()) & 0o777);
    let suite = Suite::ALL[choice % Suite::ALL.len()];
    let text = input.take(usize::MAX);
    let expected = model(text, suite);
    assert_eq!(answer(keys::parse(text, suite)), expected);
    if choice & 0x80 != 0 {
        let mode = mode | 0o400;
        let file = MemoryFile::new(text, mode);
        let loaded = keys::load(&KeySource::File(file.path()), suite, &|_| None);
        // The file belongs to our own group, which may read what belongs to root.
        let others = if rustix::process::geteuid().is_root() { 0o037 } else { 0o077 };
        match loaded {
            Err(KeyError::Exposed { mode: found }) => {
                assert_eq!(found, mode);
                assert_ne!(mode & others, 0, "nobody else may read it");
            }
            loaded => {
                assert_eq!(mode & others, 0, "others may read it");
                assert_eq!(answer(loaded), expected);
            }
        }
    }
    if let Ok(text) = std::str::from_utf8(text) {
        let environment = |name: &str| (name == "KEY").then(|| text.to_owned());
        assert_eq!(
            answer(keys::load(&KeySource::Environment("KEY".to_owned()), suite, &environment)),
            expected
        );
        let unset = keys::load(&KeySource::Environment("OTHER".to_owned()), suite, &environment);
        assert!(matches!(unset, Err(KeyError::Unset)));
    }
}

//! Input from the operator.

use crate::input::Input;
use crate::keys::key_in;
use crate::memory_file::MemoryFile;
use std::collections::{BTreeMap, HashSet};
use testudo_control::config::{KnownAnswers, Loaded, MAX_ERRORS};
use testudo_control::keys::KeySource;
use testudo_control::{ConfigErrors, Configuration};
use testudo_crypto::KeyMaterial;

/// Number of texts that a configuration may name as keys.
const KEYS: usize = 6;

/// Any text gives a configuration or a list of errors, each located within the text.
pub fn config(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Err(errors) = Configuration::parse(&text, "fuzz.toml") {
        check_errors(&errors, &text);
    }
}

fn check_errors(errors: &ConfigErrors, text: &str) {
    assert!((1..=MAX_ERRORS).contains(&errors.errors().len()));
    assert!(!errors.to_string().is_empty() && !errors.to_json().is_empty());
    let lines = text.lines().count() + 1;
    for error in errors.errors() {
        assert!(error.line <= lines, "line {} of {lines}", error.line);
    }
}

/// The keys that a configuration can name: the variables `K0` to `K5`, and the files that `@0` to `@5` stand
/// for.
struct Keys {
    texts: Vec<Vec<u8>>,
    files: Vec<MemoryFile>,
}

impl Keys {
    fn read(input: &mut Input<'_>) -> Self {
        let texts: Vec<_> =
            (0..usize::from(input.byte()) % (KEYS + 1)).map(|_| input.run().to_vec()).collect();
        let files = texts.iter().map(|text| MemoryFile::new(text, 0o600)).collect();
        Self { texts, files }
    }

    /// The text with the files' names inserted.
    fn named_in(&self, text: &[u8]) -> Vec<u8> {
        let paths = self.files.iter().map(|file| file.path().to_string_lossy().into_owned());
        let by_digit: BTreeMap<u8, String> = (b'0'..).zip(paths).collect();
        let mut named = Vec::with_capacity(text.len());
        let mut rest = text.iter().peekable();
        while let Some(&byte) = rest.next() {
            match rest.peek().and_then(|digit| by_digit.get(digit)).filter(|_| byte == b'@') {
                Some(path) => {
                    named.extend_from_slice(path.as_bytes());
                    rest.next();
                }
                None => named.push(byte),
            }
        }
        named
    }

    /// The content of a source; `None` if it is not one of ours.
    fn text_of(&self, source: &KeySource) -> Option<&[u8]> {
        let index = match source {
            KeySource::Environment(name) => name.strip_prefix('K')?.parse::<usize>().ok()?,
            KeySource::File(path) => self.files.iter().position(|file| file.path() == *path)?,
            KeySource::Exchanged => return None,
        };
        self.texts.get(index).map(Vec::as_slice)
    }

    fn variable(&self, name: &str) -> Option<String> {
        let text = self.text_of(&KeySource::Environment(name.to_owned()))?;
        String::from_utf8(text.to_vec()).ok()
    }
}

/// A configuration that loads is the one that parses, with the keys that it names, no two the same; otherwise
/// it gives a list of errors that shows nothing of a key.
pub fn config_load(data: &[u8]) {
    let mut input = Input::new(data);
    let known = if input.byte() & 1 == 0 { KnownAnswers::Refuse } else { KnownAnswers::Allow };
    let keys = Keys::read(&mut input);
    let text = keys.named_in(input.take(usize::MAX));
    let file = MemoryFile::new(&text, 0o644);
    let loaded = Configuration::load(&file.path(), known, &|name| keys.variable(name));
    let Ok(text) = std::str::from_utf8(&text) else {
        assert!(loaded.is_err(), "a file that is no text");
        return;
    };
    let parsed = Configuration::parse(text, &file.path().to_string_lossy());
    match loaded {
        Ok(loaded) => {
            assert_eq!(Some(&loaded.configuration), parsed.as_ref().ok(), "loaded is not what was parsed");
            check_keys(&loaded, &keys);
            let has_known = loaded.configuration.tunnels.iter().any(|t| t.known_answer.is_some());
            assert!(!has_known || known == KnownAnswers::Allow, "a known answer in a gateway that runs");
        }
        Err(errors) => {
            check_errors(&errors, text);
            keys.texts.iter().for_each(|key| check_hidden(key, &errors, text));
        }
    }
}

fn check_keys(loaded: &Loaded, keys: &Keys) {
    assert_eq!(loaded.keys.len(), loaded.configuration.tunnels.len());
    let mut seen = HashSet::new();
    for (tunnel, pair) in loaded.configuration.tunnels.iter().zip(&loaded.keys) {
        for (settings, key) in [(&tunnel.outbound, &pair.outbound), (&tunnel.inbound, &pair.inbound)] {
            let text = keys.text_of(&settings.key).expect("a key that could be had");
            assert_eq!(Some(all_of(key)), key_in(text, tunnel.suite), "not the key that was named");
            let cipher = if key.key().is_empty() { key.integrity_key() } else { key.key() };
            assert!(seen.insert(cipher.to_vec()), "two SAs under one key");
        }
    }
}

fn all_of(key: &KeyMaterial) -> Vec<u8> {
    [key.key(), key.integrity_key(), key.salt()].concat()
}

/// No twelve consecutive characters of a key, unless the configuration itself contains them.
fn check_hidden(key: &[u8], errors: &ConfigErrors, text: &str) {
    let said = errors.to_string() + &errors.to_json();
    for part in key.windows(12) {
        if let Ok(part) = std::str::from_utf8(part)
            && part.bytes().all(|byte| byte.is_ascii_hexdigit())
            && said.contains(part)
        {
            assert!(text.contains(part), "an error shows a part of a key");
        }
    }
}

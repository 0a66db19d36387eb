//! Configurations as files: the examples, the form of errors, keys that cannot be loaded.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use testudo_control::config::{Configuration, KnownAnswers, Loaded};
use testudo_control::{ConfigErrors, fingerprint};
use testudo_crypto::Suite;

const TUNNEL: &str = r#"
[gateway]
state = "state.redb"
[port.protected]
kind = "tun"
name = "testudo0"
[port.unprotected]
kind = "socket"
[[tunnel]]
name = "site-b"
local = "192.0.2.1"
remote = "192.0.2.2"
suite = "aes128gcm16"
selectors = [ { local = "10.1.0.0/16", remote = "10.2.0.0/16" } ]
outbound = { spi = 0x1001, key_file = "out.key" }
inbound = { spi = 0x1002, key_file = "in.key" }
"#;
const OUT: &str = "0x 4c80cdefbb5d10da 906ac73c3613a634\n2e443b68\n";
const IN: &str = "4c:80:cd:ef:bb:5d:10:da:90:6a:c7:3c:36:13:a6:35:2e:44:3b:68";

/// A folder with a configuration and its keys.
struct Folder(TempDir);

impl Folder {
    fn new(configuration: &str) -> Self {
        let folder = Self(TempDir::new().unwrap());
        folder.write("testudo.toml", configuration, 0o644);
        folder.write("out.key", OUT, 0o600);
        folder.write("in.key", IN, 0o400);
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str, mode: u32) {
        fs::write(self.path(name), text).unwrap();
        fs::set_permissions(self.path(name), Permissions::from_mode(mode)).unwrap();
    }

    fn load(&self, known_answers: KnownAnswers) -> Result<Loaded, ConfigErrors> {
        let environment = |name: &str| (name == "KEY").then(|| OUT.to_owned());
        Configuration::load(&self.path("testudo.toml"), known_answers, &environment)
    }

    /// Asserts that there is one error, with these parts, and that it shows nothing of a key.
    #[track_caller]
    fn expect(&self, parts: &[&str]) {
        let errors = self.load(KnownAnswers::Refuse).unwrap_err();
        let text = errors.to_string();
        assert_eq!(errors.errors().len(), 1, "{text}");
        for secret in ["4c80", "4c:80", "906a", "2e44"] {
            assert!(!text.contains(secret), "{text}");
        }
        for part in parts {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
    }
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_examples_are_clean() {
    let mut count = 0;
    for entry in fs::read_dir(repository().join("examples")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            let text = fs::read_to_string(&path).unwrap();
            Configuration::parse(&text, &path.to_string_lossy()).unwrap_or_else(|errors| panic!("{errors}"));
            count += 1;
        }
    }
    assert!(count >= 5, "{count} examples");
}

/// Ten errors at once, word for word. `TESTUDO_BLESS=1` writes the golden file anew.
#[test]
fn ten_errors_are_shown_at_once_as_in_the_golden_file() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let text = fs::read_to_string(golden.join("ten-errors.toml")).unwrap();
    let errors = Configuration::parse(&text, "testudo.toml").unwrap_err();
    let shown = format!("{errors}\n{}\n", errors.to_json());
    if std::env::var_os("TESTUDO_BLESS").is_some() {
        fs::write(golden.join("ten-errors.txt"), &shown).unwrap();
    }
    assert_eq!(shown, fs::read_to_string(golden.join("ten-errors.txt")).unwrap());
    assert_eq!(errors.errors().len(), 10);
    assert!(!shown.contains("4c80"));
}

#[test]
fn keys_are_loaded_from_files_beside_the_configuration() {
    let loaded = Folder::new(TUNNEL).load(KnownAnswers::Refuse).unwrap();
    let keys = &loaded.keys[0];
    assert_eq!(keys.outbound.suite(), Suite::AES128GCM16);
    assert_eq!(keys.outbound.key()[..4], [0x4c, 0x80, 0xcd, 0xef]);
    assert_eq!(keys.outbound.salt(), [0x2e, 0x44, 0x3b, 0x68]);
    assert_ne!(fingerprint(&keys.outbound), fingerprint(&keys.inbound));
    assert_eq!(loaded.keys.len(), loaded.configuration.tunnels.len());
}

#[test]
fn keys_are_loaded_from_the_environment() {
    let folder = Folder::new(&TUNNEL.replace("key_file = \"out.key\"", "key_env = \"KEY\""));
    let loaded = folder.load(KnownAnswers::Refuse).unwrap();
    assert_eq!(loaded.keys[0].outbound.salt(), [0x2e, 0x44, 0x3b, 0x68]);
    Folder::new(&TUNNEL.replace("key_file = \"out.key\"", "key_env = \"NO_KEY\"")).expect(&[
        "testudo.toml:15:",
        "a variable that is set",
        "environment variable NO_KEY: not set",
    ]);
}

#[test]
fn a_key_file_that_others_may_read_is_refused() {
    // Root's own group is allowed to read: `a_key_of_root_may_be_read_by_the_services_group`.
    let group = if rustix::process::geteuid().is_root() { 0o660 } else { 0o640 };
    for mode in [group, 0o604, 0o620, 0o601] {
        let folder = Folder::new(TUNNEL);
        folder.write("out.key", OUT, mode);
        folder.expect(&[
            ":15:39: tunnel[site-b].outbound.key_file",
            &format!("mode is {mode:04o}"),
            "chmod 600 ",
        ]);
    }
}

/// As root the file is accepted, with the group of this process; any other user owns the file, and it is
/// refused.
#[test]
fn a_key_of_root_may_be_read_by_the_services_group() {
    let folder = Folder::new(TUNNEL);
    folder.write("out.key", OUT, 0o640);
    let loaded = folder.load(KnownAnswers::Refuse);
    assert_eq!(loaded.is_ok(), rustix::process::geteuid().is_root());
}

#[test]
fn a_key_file_must_be_a_regular_file() {
    let folder = Folder::new(&TUNNEL.replace("out.key", "/dev/null"));
    folder.expect(&["not a regular file"]);
    let folder = Folder::new(TUNNEL);
    fs::remove_file(folder.path("out.key")).unwrap();
    fs::create_dir(folder.path("out.key")).unwrap();
    folder.expect(&["not a regular file"]);
}

/// A pipe that nobody writes to would hang a gateway that opened it carelessly.
#[test]
fn a_pipe_as_key_file_is_refused_without_waiting() {
    let folder = Folder::new(TUNNEL);
    fs::remove_file(folder.path("out.key")).unwrap();
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, folder.path("out.key"), rustix::fs::FileType::Fifo, mode, 0)
        .unwrap();
    folder.expect(&["not a regular file"]);
}

#[test]
fn a_missing_key_file_is_an_error_that_names_it() {
    let folder = Folder::new(TUNNEL);
    fs::remove_file(folder.path("in.key")).unwrap();
    folder.expect(&["in.key", "No such file", "the folder of the configuration"]);
}

#[test]
fn a_key_of_the_wrong_length_or_with_other_characters_is_refused() {
    let folder = Folder::new(TUNNEL);
    for (text, parts) in [
        ("4c80cd", ["40 hex digits", "6 hex digits"]),
        ("4c8", ["40 hex digits", "3 hex digits"]),
        ("", ["40 hex digits", "0 hex digits"]),
        ("4c80\nnothex", ["a key in hex digits", "on line 2"]),
        (&"00".repeat(3000), ["a key in hex digits", "more than 4096 bytes"]),
    ] {
        folder.write("out.key", text, 0o600);
        folder.expect(&parts);
    }
}

#[test]
fn the_same_key_for_two_sas_is_an_error_even_with_another_salt() {
    let folder = Folder::new(TUNNEL);
    folder.write("in.key", &OUT.replace("2e443b68", "00000000"), 0o600);
    folder.expect(&[
        "a key of its own",
        "found the key of `tunnel[site-b].outbound.key_file`",
        "line 15",
        "nonces",
    ]);
}

#[test]
fn each_suite_says_which_keys_it_wants_when_the_length_is_wrong() {
    for (suite, parts) in [
        ("aes128gcm16", ["40 hex digits: key, then salt", "the last 8 digits are the salt"]),
        ("chacha20poly1305", ["72 hex digits: key, then salt", "the last 8 digits are the salt"]),
        (
            "aes128-sha1",
            ["72 hex digits: cipher key, then integrity key", "32 digits for the cipher, then 40"],
        ),
        (
            "aes256-sha256",
            ["128 hex digits: cipher key, then integrity key", "64 digits for the cipher, then 64"],
        ),
        ("null-sha1", ["40 hex digits: integrity key", "null-sha1 does not encrypt"]),
    ] {
        let folder = Folder::new(&TUNNEL.replace("aes128gcm16", suite));
        let right = suite.parse::<Suite>().unwrap().keying_material_bytes();
        folder.write("in.key", &"5a".repeat(right), 0o600);
        folder.write("out.key", &"a5".repeat(right - 1), 0o600);
        folder.expect(&parts);
        folder.write("out.key", &"a5".repeat(right), 0o600);
        let keys = folder.load(KnownAnswers::Refuse).unwrap().keys.remove(0).outbound;
        let lengths = (keys.key().len(), keys.integrity_key().len() + keys.salt().len());
        assert_eq!(lengths.0 + lengths.1, right);
    }
}

#[test]
fn neither_key_of_a_suite_with_two_may_be_another_sas() {
    let folder = Folder::new(&TUNNEL.replace("aes128gcm16", "aes128-sha1"));
    let key = |cipher: &str, integrity: &str| cipher.repeat(16) + &integrity.repeat(20);
    folder.write("out.key", &key("11", "22"), 0o600);
    for (other, why) in [(key("11", "33"), "nonces"), (key("44", "22"), "take the packets of the other")] {
        folder.write("in.key", &other, 0o600);
        folder.expect(&["a key of its own", "found the key of `tunnel[site-b].outbound.key_file`", why]);
    }
    folder.write("in.key", &key("44", "33"), 0o600);
    assert!(folder.load(KnownAnswers::Refuse).is_ok());
}

#[test]
fn key_errors_are_reported_with_file_errors() {
    let folder = Folder::new(&TUNNEL.replace("remote = \"192.0.2.2\"", "remote = \"192.0.2.2\"\nesn = 1"));
    folder.write("out.key", OUT, 0o644);
    let errors = folder.load(KnownAnswers::Refuse).unwrap_err();
    let found: Vec<_> =
        errors.errors().iter().map(|e| (e.line, e.key.as_str(), e.expected.as_str())).collect();
    let expected = [
        (13, "tunnel[site-b].esn", "true or false"),
        (16, "tunnel[site-b].outbound.key_file", "a key file that nobody else may read or write"),
    ];
    assert_eq!(found, expected);
    assert_eq!(errors.omitted(), 0);
    let said = errors.to_string();
    assert!(
        said.contains("esn = 1") && said.contains("its mode is 0644") && said.contains("chmod 600"),
        "{said}"
    );
}

#[test]
fn known_answers_are_for_replay_only() {
    let folder = Folder::new(&format!("{TUNNEL}known_answer = {{ next_sequence_number = 5 }}"));
    let loaded = folder.load(KnownAnswers::Allow).unwrap();
    assert_eq!(loaded.configuration.tunnels[0].known_answer.as_ref().unwrap().next_sequence_number, 5);
    folder.expect(&["tunnel[site-b].known_answer", "only `testudo replay` takes it"]);
}

#[test]
fn a_configuration_that_is_missing_or_not_text_is_one_clear_line() {
    let folder = Folder::new(TUNNEL);
    fs::write(folder.path("testudo.toml"), b"[gateway]\n# \xff\n").unwrap();
    folder.expect(&["expected UTF-8, found other bytes on line 2"]);
    fs::remove_file(folder.path("testudo.toml")).unwrap();
    folder.expect(&["testudo.toml: expected a readable file, found No such file"]);
}

/// A key that was pasted where its source belongs, in the usual forms: no eight characters of it are shown.
#[test]
fn a_key_in_place_of_its_file_or_variable_is_not_shown() {
    const HEX: &str = "4c80cdefbb5d10da906ac73c3613a6342e443b68";
    const BASE64: &str = "TIDN77tdENqQasc8NhOmNC5EO2g=";
    let grouped = |by: usize, separator: &str| {
        let groups: Vec<_> =
            HEX.as_bytes().chunks(by).map(|group| std::str::from_utf8(group).unwrap()).collect();
        groups.join(separator)
    };
    let forms = [
        format!("\"\"\"\n{}\n\"\"\"", grouped(8, "\n")),
        format!("\"\"\"{}\"\"\"", grouped(16, "\\\n   ")),
        format!("\"{}\"", grouped(10, "\\n")),
        format!("\"{}\"", grouped(8, ".")),
        format!("'{}'", grouped(16, ".")),
        format!("'{HEX}'"),
        format!("'{BASE64}'"),
        format!("\"\"\"\n{}\n{}\n\"\"\"", &BASE64[..14], &BASE64[14..]),
        format!("'{}'", &BASE64[..27]),
        format!("'/etc/testudo/{}'", BASE64.replace('=', "+/")),
    ];
    for form in &forms {
        for name in ["key_file", "key_env"] {
            let errors = Folder::new(&TUNNEL.replace("key_file = \"out.key\"", &format!("{name} = {form}")));
            let errors = errors.load(KnownAnswers::Refuse).unwrap_err();
            let shown = format!("{errors}\n{}", errors.to_json());
            for secret in [HEX, BASE64] {
                let parts = (0..=secret.len() - 8).map(|at| &secret[at..at + 8]);
                let leaked: Vec<_> = parts.filter(|part| shown.contains(part)).collect();
                assert!(leaked.is_empty(), "{name} = {form} shows {leaked:?}:\n{shown}");
            }
        }
    }
}

#[test]
fn a_key_file_that_is_misspelled_is_named() {
    let folder = Folder::new(&TUNNEL.replace("out.key", "berlin-frankfurt-2.outbound.key"));
    folder.expect(&["berlin-frankfurt-2.outbound.key\": No such file or directory", "relative names start"]);
}

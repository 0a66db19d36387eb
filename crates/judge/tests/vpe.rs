//! The page `docs/VPE.md` by its second implementation, a Scapy layer: the test vectors are what that layer
//! writes, it keeps the rules for windows and senders, and Wireshark shows its packets by our dissector.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test panics on failure")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// Debian's Python, which Debian's Scapy is installed for.
const PYTHON: &str = "/usr/bin/python3";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs a script of `tests/vpe`, which says what is wrong.
fn passes(script: &str, arguments: &[&Path]) {
    let script = repository().join("tests/vpe").join(script);
    let output = Command::new(PYTHON).arg(&script).args(arguments).output().expect("python3 runs");
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "{}: {}", script.display(), said.concat());
}

#[test]
fn the_vectors_are_what_the_scapy_layer_writes() {
    passes("vectors.py", &[Path::new("--check")]);
}

#[test]
fn the_vectors_of_negotiated_keys_are_what_the_scapy_layer_makes() {
    passes("keys.py", &[Path::new("--check")]);
}

#[test]
fn the_scapy_layer_keeps_the_rules_of_windows_and_senders() {
    passes("association.py", &[]);
}

#[test]
fn wireshark_shows_every_field_by_the_dissector() {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let cache = target.parent().expect("the target folder").join("wireshark");
    let unpack = repository().join("tests/wireshark/unpack.sh");
    assert!(Command::new(unpack).arg(&cache).status().unwrap().success());
    let recordings = target.join("vpe-dissector");
    std::fs::create_dir_all(&recordings).unwrap();
    passes("dissected.py", &[&cache.join("usr"), &recordings]);
}

//! docs/SUITES.md says what the tables of primitives say.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

use std::fmt::Write as _;
use std::path::Path;
use testudo_crypto::{Cipher, Integrity, NonceRule, Suite};

/// A row of every cipher: combined modes with all their lengths of the ICV.
fn ciphers() -> String {
    let mut table = "| suite | algorithm | RFC 8221 | key, salt | IV | ICV | Linux |\n\
                     | --- | --- | --- | --- | --- | --- | --- |\n"
        .to_owned();
    for cipher in Cipher::ALL {
        let info = cipher.info();
        let join = |parts: Vec<String>| parts.join(", ");
        let (names, levels) = match info.icvs {
            [] => (vec![format!("`{}-…`", info.keyword)], vec![info.requirement.to_string()]),
            icvs => {
                let suites = Suite::ALL.iter().filter(|suite| suite.cipher() == *cipher);
                let names = suites.map(|suite| format!("`{suite}`")).collect();
                let mut levels: Vec<_> = icvs.iter().map(|icv| icv.requirement.to_string()).collect();
                if levels.iter().all(|level| *level == levels[0]) {
                    levels.truncate(1);
                }
                (names, levels)
            }
        };
        let icvs = join(info.icvs.iter().map(|icv| icv.bytes.to_string()).collect());
        let salt = if info.salt_bytes > 0 { format!(", {}", info.salt_bytes) } else { String::new() };
        let iv = match info.nonce_rule {
            NonceRule::Explicit => info.iv_bytes.to_string(),
            NonceRule::Counter => "the number".to_owned(),
        };
        let linux = info.linux.map_or("-".to_owned(), |name| format!("`{name}`"));
        let (names, levels, algorithm) = (join(names), join(levels), info.algorithm);
        let icvs = if icvs.is_empty() { "-".to_owned() } else { icvs };
        writeln!(
            table,
            "| {names} | {algorithm} | {levels} | {}{salt} | {iv} | {icvs} | {linux} |",
            info.key_bytes
        )
        .unwrap();
    }
    table
}

fn integrities() -> String {
    let mut table = "| after a cipher, or alone for AH | algorithm | RFC 8221 | key | ICV | Linux |\n\
                     | --- | --- | --- | --- | --- | --- |\n"
        .to_owned();
    for integrity in Integrity::ALL {
        let info = integrity.info();
        writeln!(
            table,
            "| `{}` | {} | {} | {} | {} | `{}` |",
            info.keyword, info.algorithm, info.requirement, info.key_bytes, info.icv_bytes, info.linux
        )
        .unwrap();
    }
    table
}

#[test]
fn the_documented_suites_are_those_that_there_are() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/SUITES.md");
    let text = std::fs::read_to_string(path).unwrap();
    for table in [ciphers(), integrities()] {
        assert!(text.contains(&table), "docs/SUITES.md lacks this table:\n{table}");
    }
    let counted = format!("{} suites", Suite::ALL.len());
    assert!(text.contains(&counted), "docs/SUITES.md does not say that there are {counted}");
}

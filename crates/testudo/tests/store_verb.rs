//! `testudo store`: what an operator sees of the durable store, and what it takes to have it forget a key.

#![allow(clippy::unwrap_used, reason = "a test that cannot prepare its files has failed")]

mod support;

use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use support::config::{CONFIGURATION, pair};
use support::gateway::{PROGRAM, Said};
use support::wait;
use testudo_control::config::{Configuration, KnownAnswers};
use testudo_control::{Fingerprint, LeaseStore, Store, fingerprint, numbers_of};

const CONFIGURATION_IS_WRONG: i32 = 2;
const STATE_IS_WRONG: i32 = 3;

fn testudo(folder: &Path, words: &[&str]) -> Said {
    let mut command = Command::new(PROGRAM);
    command.current_dir(folder).args(words);
    wait::output(&mut command).unwrap().into()
}

/// The list, with the fields that tell keys apart.
fn list(folder: &Path) -> Vec<Value> {
    let said = testudo(folder, &["store", "list", CONFIGURATION, "--json"]);
    assert_eq!(said.code, Some(0), "{said:#?}");
    let rows: Vec<Value> = serde_json::from_str(&said.stdout).unwrap();
    let field = |row: &Value, name: &str| row[name].clone();
    let fields = ["key", "state", "sa", "next_number", "highest_received"];
    rows.iter().map(|row| fields.map(|name| field(row, name)).to_vec().into()).collect()
}

#[test]
fn a_key_is_forgotten_only_when_it_is_retired_and_the_operator_is_sure() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    pair(false).unwrap()[0].write(folder).unwrap();
    let said = testudo(folder, &["store", "list", CONFIGURATION]);
    assert!(said.code == Some(STATE_IS_WRONG) && said.stderr.contains("no store"), "{said:#?}");
    assert_eq!(testudo(folder, &["init", CONFIGURATION]).code, Some(0));

    let loaded = Configuration::load(&folder.join(CONFIGURATION), KnownAnswers::Refuse, &|_| None).unwrap();
    let configured = &loaded.keys[0];
    let old = Fingerprint::from_bytes([0xAB; 32]);
    let store = Store::open(&folder.join("state.redb")).unwrap();
    let _ = store.lease_many(&[(old, 10), (numbers_of(&configured.outbound), 20)]).unwrap();
    store.save_windows(&[(fingerprint(&configured.inbound), &[7; 600])]).unwrap();
    let said = testudo(folder, &["store", "list", CONFIGURATION]);
    assert!(said.code == Some(STATE_IS_WRONG) && said.stderr.contains("in use"), "{said:#?}");
    drop(store);

    let old_key = old.to_string();
    let outbound = numbers_of(&configured.outbound).to_string();
    let row = |state: &str| json!([old_key, state, null, 11, null]);
    let rows = list(folder);
    assert!(rows.len() == 3 && rows.contains(&row("kept")), "{rows:#?}");
    assert!(rows.contains(&json!([outbound, "configured", "a-b outbound", 21, null])), "{rows:#?}");
    let forget = |key: &str, more: &[&str]| {
        testudo(folder, &[&["store", "forget", CONFIGURATION, key], more].concat())
    };
    let sure = &["--keys-are-destroyed"][..];
    let refused = |said: Said, complaint: &str| {
        assert!(said.code == Some(CONFIGURATION_IS_WRONG) && said.stderr.contains(complaint), "{said:#?}");
    };
    refused(forget(&old_key, sure), "is not retired");
    let said = testudo(folder, &["store", "compact", CONFIGURATION]);
    assert_eq!((said.code, said.stdout.as_str()), (Some(0), "1 keys that are not configured were retired\n"));
    assert!(list(folder).contains(&row("retired")));
    refused(forget(&old_key, &[]), "RFC 4106 2");
    refused(forget(&outbound, sure), "is configured");
    refused(forget("0123456789abcdef", sure), "the store has no key 0123456789abcdef");
    assert_eq!(list(folder).len(), 3, "nothing was forgotten");
    let said = forget(&old_key, sure);
    assert!(said.code == Some(0) && said.stdout.contains("never use one of them again"), "{said:#?}");
    let rows = list(folder);
    assert!(rows.len() == 2 && rows.iter().all(|row| row[1] == "configured"), "{rows:#?}");
}

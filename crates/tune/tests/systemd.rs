//! What is enabled for the next boot, as systemd's own programs see it.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use testudo_tune::error::TuneError;
use testudo_tune::persist::{Reload, disable, enable, escaped, reload, unit};

const ETC: &str = "etc/systemd/system";
const TEMPLATE: &str = "testudo-tune@.service";
const CONTRIB: &str = include_str!("../../../contrib/testudo-tune@.service");

fn said(program: &str, root: Option<&Path>, words: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(root.map(|root| format!("--root={}", root.display()))).args(words);
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}: install the package systemd"));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn image(folder: &str) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let units = root.path().join(folder);
    fs::create_dir_all(&units).unwrap();
    fs::write(units.join(TEMPLATE), CONTRIB).unwrap();
    root
}

/// The links below a folder, and where they lead.
fn links(folder: &Path) -> Vec<(PathBuf, PathBuf)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder.join(ETC)).unwrap().flatten().filter(|entry| entry.path().is_dir()) {
        for link in fs::read_dir(entry.path()).unwrap().flatten() {
            let name = link.path().strip_prefix(folder).unwrap().to_owned();
            found.push((name, fs::read_link(link.path()).unwrap()));
        }
    }
    found
}

#[test]
fn systemd_finds_the_unit_enabled_until_it_is_taken_back() {
    for folder in [ETC, "usr/lib/systemd/system"] {
        for interface in ["eth0", "en-p1s0.100"] {
            let root = image(folder);
            let ask = || said("systemctl", Some(root.path()), &["is-enabled", &unit(interface)]);
            assert_eq!(ask(), "disabled");
            enable(root.path(), interface).unwrap();
            enable(root.path(), interface).unwrap();
            assert_eq!(ask(), "enabled", "{interface} {folder}");
            assert!(disable(root.path(), interface).unwrap());
            assert!(!disable(root.path(), interface).unwrap());
            assert_eq!(ask(), "disabled");
            assert!(!root.path().join(ETC).exists() || links(root.path()).is_empty());
        }
    }
}

#[test]
fn systemctl_enables_by_the_same_link() {
    let (ours, theirs) = (image(ETC), image(ETC));
    enable(ours.path(), "en-1").unwrap();
    said("systemctl", Some(theirs.path()), &["enable", &unit("en-1")]);
    assert_eq!(links(ours.path()), links(theirs.path()));
    assert_eq!(links(ours.path()).len(), 1);
}

#[test]
fn names_are_escaped_as_systemd_does() {
    for name in ["eth0", "en-p1s0.100", "a\\b", "ä", "x%y", "..x"] {
        assert_eq!(escaped(name), said("systemd-escape", None, &["--", name]), "{name}");
    }
}

#[test]
fn a_unit_that_is_not_installed_or_masked_is_not_enabled() {
    let root = tempfile::tempdir().unwrap();
    assert!(matches!(enable(root.path(), "eth0"), Err(TuneError::NoUnit)));
    let root = image("usr/lib/systemd/system");
    fs::create_dir_all(root.path().join(ETC)).unwrap();
    symlink("/dev/null", root.path().join(ETC).join(TEMPLATE)).unwrap();
    assert!(matches!(enable(root.path(), "eth0"), Err(TuneError::NoUnit)));
    assert!(matches!(enable(root.path(), ".x"), Err(TuneError::UnitName(_))));
    assert!(links(root.path()).is_empty());
}

/// Played by a script: what is asked of systemd, and what is made of its answer.
#[test]
fn a_running_systemd_is_told_of_the_link_and_one_that_does_not_run_is_not() {
    let root = tempfile::tempdir().unwrap();
    let (program, asked) = (root.path().join("systemctl"), root.path().join("asked"));
    let plays = |answer: &str| {
        let text = format!("#!/bin/sh\necho \"$@\" >'{}'\n{answer}\n", asked.display());
        fs::write(&program, text).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    };
    plays("exit 0");
    assert_eq!(reload(root.path(), &program), Reload::NotRunning);
    assert!(!asked.exists());
    fs::create_dir_all(root.path().join("run/systemd/system")).unwrap();
    assert_eq!(reload(root.path(), &program), Reload::Done);
    assert_eq!(fs::read_to_string(&asked).unwrap(), "daemon-reload\n");
    plays("echo no bus >&2; exit 1");
    assert_eq!(reload(root.path(), &program), Reload::Failed("no bus".to_owned()));
    assert!(matches!(reload(root.path(), Path::new("/no/such")), Reload::Failed(_)));
}

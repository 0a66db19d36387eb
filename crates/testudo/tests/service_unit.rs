//! The files that systemd gets from us, as systemd judges them.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

use std::path::{Path, PathBuf};
use std::process::Command;

fn contrib(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib").join(name)
}

/// What a program of systemd says, and whether it was content.
fn said(command: &mut Command) -> (String, bool) {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}: install the package systemd"));
    let text = [output.stdout, output.stderr].concat();
    (String::from_utf8(text).unwrap(), output.status.success())
}

/// `systemd-analyze security` sums up what a service could do: 0 nothing, 10 everything. It was 6.2 as root.
#[test]
fn the_units_exposure_is_below_2() {
    let mut command = Command::new("systemd-analyze");
    command.args(["security", "--offline=true", "--no-pager"]).arg(contrib("testudo@.service"));
    let (text, _) = said(&mut command);
    let line =
        text.lines().find(|line| line.contains("Overall exposure level")).unwrap_or_else(|| panic!("{text}"));
    let figure = line.rsplit_once(": ").unwrap().1.split(' ').next().unwrap();
    let exposure: f64 = figure.parse().unwrap();
    println!("exposure {exposure}");
    assert!(exposure < 2.0, "{text}");
}

/// But for settings of newer versions, which older ones skip with a word.
#[test]
fn systemd_understands_every_line_of_the_unit() {
    let folder = tempfile::tempdir().unwrap();
    let unit = std::fs::read_to_string(contrib("testudo@.service")).unwrap();
    // The program as it will be installed, and the man page, are not here.
    let unit =
        unit.replace("/usr/local/bin/testudo", env!("CARGO_BIN_EXE_testudo")).replace("man:testudo(1)", "");
    let path = folder.path().join("testudo@.service");
    std::fs::write(&path, unit).unwrap();
    let (text, _) = said(Command::new("systemd-analyze").args(["verify", "--man=false"]).arg(&path));
    let newer = ["RestartSteps", "RestartMaxDelaySec"];
    let complaints: Vec<_> = text
        .lines()
        .filter(|line| line.contains("testudo@") && !newer.iter().any(|key| line.contains(key)))
        .collect();
    assert!(complaints.is_empty(), "{text}");
}

/// In a user namespace: it makes folders that belong to root.
#[test]
fn systemd_makes_the_services_user() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("etc")).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "systemd-sysusers"]);
    command.arg(format!("--root={}", folder.path().display())).arg("-");
    command.stdin(std::fs::File::open(contrib("testudo.sysusers.conf")).unwrap());
    let (text, is_content) = said(&mut command);
    assert!(is_content, "{text}");
    let passwd = std::fs::read_to_string(folder.path().join("etc/passwd")).unwrap();
    let user = passwd.lines().find(|line| line.starts_with("testudo:")).unwrap_or_else(|| panic!("{passwd}"));
    assert!(user.ends_with("/nologin"), "{user}");
    let group = std::fs::read_to_string(folder.path().join("etc/group")).unwrap();
    assert!(group.lines().any(|line| line.starts_with("testudo:")), "{group}");
}

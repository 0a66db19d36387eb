//! Our systemd files, checked by systemd.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

fn contrib(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib").join(name)
}

/// The output of a systemd program, and whether it succeeded.
fn said(command: &mut Command) -> (String, bool) {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}: install the package systemd"));
    let text = [output.stdout, output.stderr].concat();
    (String::from_utf8(text).unwrap(), output.status.success())
}

/// `systemd-analyze security` rates what a service could do, from 0 (nothing) to 10 (everything). It was 6.2
/// as root.
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

const UNITS: [&str; 4] = [
    "testudo@.service",
    "testudo-firewall@.service",
    "testudo-firewall-follow@.service",
    "testudo-tune@.service",
];

/// Except settings of newer versions, of which older ones only warn.
#[test]
fn systemd_understands_every_line_of_the_units() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("systemd-analyze");
    command.args(["verify", "--man=false"]);
    for name in UNITS {
        let unit = std::fs::read_to_string(contrib(name)).unwrap();
        // Neither the installed program nor the man pages exist here.
        let unit = unit.replace("/usr/local/bin/testudo", env!("CARGO_BIN_EXE_testudo"));
        let unit: String =
            unit.lines().filter(|line| !line.starts_with("Documentation=")).collect::<Vec<_>>().join("\n");
        let path = folder.path().join(name);
        std::fs::write(&path, unit).unwrap();
        command.arg(path);
    }
    // The same with each drop-in, whose only section continues the service's.
    let unit = std::fs::read_to_string(folder.path().join("testudo@.service")).unwrap();
    for drop_in in ["xdp", "workers"] {
        let more = std::fs::read_to_string(contrib(&format!("testudo-{drop_in}.conf"))).unwrap();
        let path = folder.path().join(format!("testudo-with-{drop_in}@.service"));
        std::fs::write(&path, unit.replace("[Install]", &format!("{more}\n[Install]"))).unwrap();
        command.arg(path);
    }
    let (text, _) = said(&mut command);
    let newer = ["RestartSteps", "RestartMaxDelaySec"];
    let complaints: Vec<_> = text
        .lines()
        .filter(|line| line.contains("testudo") && !newer.iter().any(|key| line.contains(key)))
        .collect();
    assert!(complaints.is_empty(), "{text}");
}

/// The values of a setting.
fn values(unit: &str, key: &str) -> Vec<String> {
    let text = std::fs::read_to_string(contrib(unit)).unwrap();
    let lines = text.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    lines.flat_map(str::split_whitespace).map(str::to_owned).collect()
}

/// The calls of a name in `SystemCallFilter=`: its own, or those of the set that it names.
fn calls(name: &str) -> BTreeSet<String> {
    if !name.starts_with('@') {
        return [name.to_owned()].into();
    }
    let (text, is_known) = said(Command::new("systemd-analyze").args(["syscall-filter", name]));
    assert!(is_known, "{name}: {text}");
    let members = text.lines().skip(1).map(str::trim);
    members.filter(|line| !line.is_empty() && !line.starts_with('#')).flat_map(calls).collect()
}

/// systemd.exec(5): the first list is one of allowed calls, later ones add to it, with ~ they take away.
#[test]
fn the_unit_lets_the_program_give_up_capabilities_and_install_its_own_filter() {
    let text = std::fs::read_to_string(contrib("testudo@.service")).unwrap();
    let mut allowed = BTreeSet::new();
    for list in text.lines().filter_map(|line| line.strip_prefix("SystemCallFilter=")) {
        let named = |list: &str| list.split_whitespace().flat_map(calls).collect::<BTreeSet<_>>();
        match list.strip_prefix('~') {
            Some(taken) => allowed = &allowed - &named(taken),
            None => allowed.extend(named(list)),
        }
    }
    for call in ["capset", "seccomp", "prctl", "ioctl", "recvmmsg"] {
        assert!(allowed.contains(call), "{call} is not among {allowed:?}");
    }
    for call in ["ptrace", "mount", "bpf", "chown", "sched_setaffinity"] {
        assert!(!allowed.contains(call), "{call}");
    }
}

#[test]
fn what_af_xdp_needs_is_a_drop_in_of_its_own() {
    let has = |key, value: &str| assert!(values("testudo-xdp.conf", key).iter().any(|v| v == value), "{key}");
    for key in ["AmbientCapabilities", "CapabilityBoundingSet"] {
        assert_eq!(values("testudo-xdp.conf", key), ["CAP_BPF", "CAP_PERFMON"], "added to the unit's");
    }
    has("SystemCallFilter", "bpf");
    has("RestrictAddressFamilies", "AF_XDP");
    has("LimitMEMLOCK", "infinity");
}

#[test]
fn what_several_workers_need_is_a_drop_in_of_its_own() {
    for key in ["AmbientCapabilities", "CapabilityBoundingSet"] {
        assert_eq!(values("testudo-workers.conf", key), ["CAP_BPF"], "added to the unit's");
    }
    assert_eq!(values("testudo-workers.conf", "SystemCallFilter"), ["bpf", "sched_setaffinity"]);
}

/// Between the network and a gateway that waits for it, a host that forwards would forward in clear.
#[test]
fn the_rules_are_in_force_before_there_is_a_network_and_after_what_flushes_them() {
    let has = |unit, key, value: &str| assert!(values(unit, key).iter().any(|v| v == value), "{unit}: {key}");
    let [gateway, rules, following, _] = UNITS;
    for key in ["Wants", "After"] {
        has(gateway, key, "testudo-firewall@%i.service");
    }
    has(rules, "Wants", "network-pre.target");
    has(rules, "Before", "network-pre.target");
    has(rules, "DefaultDependencies", "no");
    for key in ["After", "PartOf", "ReloadPropagatedFrom"] {
        has(rules, key, "nftables.service");
        has(following, key, "nftables.service");
    }
    for unit in [rules, following] {
        assert!(values(unit, "ExecStop").is_empty(), "they stay");
    }
}

/// In a user namespace, because it creates folders that belong to root.
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

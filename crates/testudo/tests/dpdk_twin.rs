//! The virtual DPDK device with inline cryptography (`shim/dpdk-twin`), judged by Scapy: played through
//! DPDK's own calls (`tests/dpdk-twin/judge.py`), and as the NIC of a gateway (`tests/dpdk-twin/gateway.py`).
//!
//! It needs DPDK and the headers of its drivers, which `make setup` fetches; with `TESTUDO_WITHOUT_DPDK=1` it
//! is skipped where they are missing.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// How the build script says that something is missing that it cannot do without.
const MISSING: i32 = 3;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A folder with the device in it; `None` where it is known to be missing.
fn built(name: &str) -> Option<PathBuf> {
    // Not below /tmp: the EAL loads no plugin from below a folder that everybody may write to.
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let built = Command::new(root().join("scripts/dpdk-twin.sh")).arg(&folder).output().unwrap();
    let said = String::from_utf8_lossy(&built.stderr);
    if built.status.code() == Some(MISSING) && std::env::var("TESTUDO_WITHOUT_DPDK").is_ok_and(|v| v == "1") {
        println!("not tested, as TESTUDO_WITHOUT_DPDK=1 allows: {said}");
        return None;
    }
    assert!(built.status.success() && said.is_empty(), "{said}; without DPDK, set TESTUDO_WITHOUT_DPDK=1");
    Some(folder)
}

/// What a judge says, line by line, if it is content.
fn verdict(judge: Output) -> Vec<String> {
    let said = String::from_utf8_lossy(&judge.stdout);
    assert!(judge.status.success(), "{said}{}", String::from_utf8_lossy(&judge.stderr));
    said.lines().map(str::to_owned).collect()
}

#[test]
fn the_virtual_dpdk_device_seals_opens_and_fails_as_it_says() {
    let Some(folder) = built("dpdk-twin") else { return };
    let mut judge = Command::new("/usr/bin/python3");
    judge.arg("-B").arg(root().join("tests/dpdk-twin/judge.py")).arg(&folder);
    let output =
        judge.output().unwrap_or_else(|e| panic!("/usr/bin/python3: {e}: install the package python3"));
    let verdict = verdict(output);
    assert_eq!(verdict.len(), 6, "{verdict:?}");
}

#[test]
fn a_gateway_whose_nic_seals_and_opens_speaks_to_scapy() {
    let Some(folder) = built("dpdk-gateway") else { return };
    let shim = Command::new(root().join("scripts/shim.sh")).arg(&folder).arg("dpdk").status().unwrap();
    assert!(shim.success());
    // The program finds the plugin beside itself.
    let program = folder.join("testudo");
    let _absent = fs::remove_file(&program);
    fs::hard_link(env!("CARGO_BIN_EXE_testudo"), &program).unwrap();
    let mut judge = Command::new("unshare");
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        judge.args(["--user", "--map-root-user"]);
    }
    judge.args(["--net", "/usr/bin/python3", "-B"]).arg(root().join("tests/dpdk-twin/gateway.py"));
    let verdict = verdict(judge.arg(&program).arg(&folder).output().unwrap());
    assert_eq!(verdict.len(), 5, "{verdict:?}");
}

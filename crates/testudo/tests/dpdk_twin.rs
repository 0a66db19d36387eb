//! The virtual DPDK device with inline cryptography (`shim/dpdk-twin`), played through DPDK's own calls and
//! judged by Scapy (`tests/dpdk-twin/judge.py`).
//!
//! It needs DPDK and the headers of its drivers, which `make setup` fetches; with `TESTUDO_WITHOUT_DPDK=1` it
//! is skipped where they are missing.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;
use std::process::Command;

/// How the build script says that something is missing that it cannot do without.
const MISSING: i32 = 3;

#[test]
fn the_virtual_dpdk_device_seals_opens_and_fails_as_it_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    // Not below /tmp: the EAL loads no plugin from below a folder that everybody may write to.
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dpdk-twin");
    let built = Command::new(root.join("scripts/dpdk-twin.sh")).arg(&folder).output().unwrap();
    let said = String::from_utf8_lossy(&built.stderr);
    if built.status.code() == Some(MISSING) && std::env::var("TESTUDO_WITHOUT_DPDK").is_ok_and(|v| v == "1") {
        println!("not tested, as TESTUDO_WITHOUT_DPDK=1 allows: {said}");
        return;
    }
    assert!(built.status.success() && said.is_empty(), "{said}; without DPDK, set TESTUDO_WITHOUT_DPDK=1");
    let output = Command::new("/usr/bin/python3")
        .arg("-B")
        .arg(root.join("tests/dpdk-twin/judge.py"))
        .arg(&folder)
        .output()
        .unwrap_or_else(|e| panic!("/usr/bin/python3: {e}: install the package python3"));
    let verdict = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{verdict}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(verdict.lines().count(), 6, "{verdict}");
}

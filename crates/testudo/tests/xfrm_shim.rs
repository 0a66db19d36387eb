//! `libtestudo-xfrm.so`, as programs see it that speak netlink: Python's sockets and iproute2
//! (`tests/xfrm/shim.py`), also after a restart of the gateway (`tests/xfrm/restart.py`), and where it is
//! installed.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;
use std::process::Command;

#[test]
fn programs_speak_to_the_gateway_as_they_would_to_the_kernel() {
    passes("shim.py");
}

#[test]
fn after_a_restart_of_the_gateway_policies_come_back_and_sas_are_about_to_end() {
    passes("restart.py");
}

fn passes(script: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = tempfile::tempdir().unwrap();
    let built = Command::new(root.join("scripts/shim.sh")).arg(folder.path()).arg("xfrm").output().unwrap();
    let warnings = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success() && warnings.is_empty(), "{warnings}");
    let output = Command::new("/usr/bin/python3")
        .args(["-B", "-W", "error"])
        .arg(root.join("tests/xfrm").join(script))
        .env("LD_PRELOAD", folder.path().join("libtestudo-xfrm.so"))
        .env("TESTUDO_XFRM", folder.path().join("xfrm.sock"))
        .output()
        .unwrap_or_else(|e| panic!("/usr/bin/python3: {e}: install the package python3"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_package_has_the_library() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = tempfile::tempdir().unwrap();
    let (build, package) = (folder.path().join("build"), folder.path().join("package"));
    std::fs::create_dir_all(build.join("release")).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_testudo"), build.join("release/testudo")).unwrap();
    let output = Command::new(root.join("scripts/install.sh"))
        .env("CARGO_TARGET_DIR", &build)
        .env("DESTDIR", &package)
        .env("PREFIX", "/usr")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let library = package.join("usr/lib/testudo/libtestudo-xfrm.so");
    // A program that nobody leads elsewhere runs as ever.
    let run = Command::new("/bin/true").env("LD_PRELOAD", &library).output().unwrap();
    assert!(library.is_file() && run.status.success() && run.stderr.is_empty(), "{run:?}");
}

//! `libtestudo-xfrm.so`, as programs see it that speak netlink: Python's sockets and iproute2
//! (`tests/xfrm/shim.py`), also after a restart of the gateway (`tests/xfrm/restart.py`), and what
//! `make install` installs beside it.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::{Path, PathBuf};
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
    let folder = tempfile::tempdir().unwrap();
    let package = package(folder.path());
    let library = package.join("usr/lib/testudo/libtestudo-xfrm.so");
    // A program that nobody leads elsewhere runs as ever.
    let run = Command::new("/bin/true").env("LD_PRELOAD", &library).output().unwrap();
    assert!(library.is_file() && run.status.success() && run.stderr.is_empty(), "{run:?}");
}

#[test]
fn a_package_has_the_drop_ins_where_the_documentation_says() {
    let folder = tempfile::tempdir().unwrap();
    let package = package(folder.path());
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (drop_in, page) in [("testudo-xdp.conf", "docs/XDP.md"), ("testudo-workers.conf", "docs/WORKERS.md")]
    {
        let installed = std::fs::read(package.join("usr/share/testudo").join(drop_in)).unwrap();
        assert_eq!(installed, std::fs::read(root.join("contrib").join(drop_in)).unwrap());
        let documented = std::fs::read_to_string(root.join(page)).unwrap();
        assert!(documented.contains(&format!("/usr/local/share/testudo/{drop_in}")), "the default PREFIX");
    }
    // No gateway gets it by itself.
    let units = package.join("usr/lib/systemd/system");
    let is_drop_in = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().path().is_dir();
    assert!(!std::fs::read_dir(units).unwrap().any(is_drop_in));
}

/// What `make install` with PREFIX and DESTDIR leaves in a folder.
fn package(folder: &Path) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (build, package) = (folder.join("build"), folder.join("package"));
    std::fs::create_dir_all(build.join("release")).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_testudo"), build.join("release/testudo")).unwrap();
    let output = Command::new(root.join("scripts/install.sh"))
        .env("CARGO_TARGET_DIR", &build)
        .env("DESTDIR", &package)
        .env("PREFIX", "/usr")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    package
}

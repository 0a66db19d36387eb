//! Which threads of a gateway with DPDK are outside of its system call filter, and keep its privileges:
//! DPDK's own, which start before either is set, and no other (SECURITY.md).
//!
//! The plugin is built by `scripts/shim.sh`. Where DPDK is not installed, the test fails, unless
//! `TESTUDO_WITHOUT_DPDK=1` says that this is known.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test that cannot prepare its files has failed")]

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;
use support::config::{CONFIGURATION, pair};
use support::gateway::{Gateway, PROGRAM, init, proc_file};

/// As DPDK 22.11 and 24.11 name their threads: interrupts, and messages of other processes.
const OF_DPDK: [&str; 4] = ["eal-intr-thread", "rte_mp_handle", "dpdk-intr", "dpdk-mp-msg"];

/// A thread's name, and values of its status.
struct Thread {
    name: String,
    status: String,
}

impl Thread {
    fn value(&self, key: &str) -> &str {
        self.status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).unwrap_or("").trim()
    }
}

fn threads(process: u32) -> Vec<Thread> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let of = |task: fs::DirEntry| {
        // One may end meanwhile.
        let read = |name| fs::read_to_string(task.path().join(name)).ok();
        Some(Thread { name: read("comm")?.trim().to_owned(), status: read("status")? })
    };
    tasks.filter_map(|task| of(task.unwrap())).collect()
}

/// The configuration of a gateway between two rings.
fn configuration(folder: &Path) -> String {
    let mut config = pair(true).unwrap()[0].clone();
    let port = |ring: u8, address: &str| {
        let eal = "eal = [\"--no-huge\", \"-m\", \"128\"]";
        format!("kind = \"dpdk\"\ndevice = \"net_ring{ring}\"\naddresses = [\"{address}\"]\n{eal}\n")
    };
    let local = format!("{}/24", config.tunnels[0].local);
    config.kinds = [Some(port(0, "10.1.0.1/24")), Some(port(1, &local))];
    config.write(folder).unwrap();
    fs::read_to_string(folder.join(CONFIGURATION)).unwrap()
}

#[test]
fn dpdks_own_threads_are_outside_of_the_system_call_filter_and_no_others_are() {
    if std::env::var_os("TESTUDO_WITHOUT_DPDK").is_some() {
        println!("not tested, as TESTUDO_WITHOUT_DPDK allows");
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let beside = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dpdk-threads");
    fs::create_dir_all(&beside).unwrap();
    let program = beside.join("testudo");
    if program.exists() {
        fs::remove_file(&program).unwrap();
    }
    fs::hard_link(PROGRAM, &program).unwrap();
    let built = Command::new(root.join("scripts/shim.sh")).arg(&beside).arg("dpdk").output().unwrap();
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{said}; without DPDK, set TESTUDO_WITHOUT_DPDK=1");

    let folder = tempfile::tempdir().unwrap();
    println!("{}", configuration(folder.path()));
    init(folder.path()).unwrap();
    let mut command = Command::new(&program);
    command.current_dir(folder.path()).args(["run", CONFIGURATION]);
    let mut gateway = Gateway::spawn(command, folder.path()).unwrap();
    gateway.hears("READY=1").unwrap();
    let threads = threads(gateway.process());
    let is_filtered = |thread: &Thread| thread.value("Seccomp") == "2";
    let filtered = threads.iter().filter(|thread| is_filtered(thread)).count();
    assert!(filtered > 3, "{filtered} of {} threads", threads.len());
    let outside: Vec<&Thread> = threads.iter().filter(|thread| !is_filtered(thread)).collect();
    let names: Vec<&str> = outside.iter().map(|thread| thread.name.as_str()).collect();
    assert!(!names.is_empty() && names.iter().all(|name| OF_DPDK.contains(name)), "{names:?}");
    // What the process was started with, and nothing was taken from them.
    let own = proc_file(std::process::id(), "status").unwrap();
    for thread in outside {
        let had = own.lines().find_map(|line| line.strip_prefix("CapPrm:")).unwrap().trim();
        assert_eq!(thread.value("CapPrm"), had, "{}", thread.name);
    }
    gateway.stop().unwrap();
}

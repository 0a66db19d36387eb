//! What a filtered process may no longer do. Filters are permanent, so each case runs in its own process,
//! which is this test program again.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, socket};
use rustix::process::{Signal, getpid, kill_process};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use testudo_control::service::system_calls::{Needs, filter};

/// Names the case that a child is to run.
const CASE: &str = "TESTUDO_FILTERED_CASE";

/// Runs `case` in a child process, which filters its system calls first.
fn in_child(test: &str, case: fn()) -> ExitStatus {
    if std::env::var(CASE).is_ok_and(|name| name == test) {
        filter(Needs::default()).unwrap();
        case();
        // An exit status of neither a panic nor a success of the harness.
        std::process::exit(42);
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    let output = child.args(["--exact", test, "--nocapture"]).env(CASE, test).output().unwrap();
    println!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    output.status
}

fn is_killed(test: &str, case: fn()) {
    let status = in_child(test, case);
    assert_eq!(status.signal(), Some(libc::SIGSYS), "{status}");
}

fn goes_on(test: &str, case: fn()) {
    let status = in_child(test, case);
    assert_eq!(status.code(), Some(42), "{status}");
}

#[test]
fn a_filtered_process_that_starts_a_program_is_killed() {
    is_killed("a_filtered_process_that_starts_a_program_is_killed", || {
        let _ = Command::new("true").status();
    });
}

#[test]
fn a_filtered_process_that_becomes_a_program_is_killed() {
    is_killed("a_filtered_process_that_becomes_a_program_is_killed", || {
        let _ = std::os::unix::process::CommandExt::exec(&mut Command::new("true"));
    });
}

#[test]
fn a_filtered_process_that_changes_its_root_is_killed() {
    is_killed("a_filtered_process_that_changes_its_root_is_killed", || {
        let _ = rustix::process::chroot("/");
    });
}

#[test]
fn threads_that_were_started_later_are_filtered() {
    is_killed("threads_that_were_started_later_are_filtered", || {
        let _ = std::thread::spawn(|| rustix::process::chroot("/")).join();
    });
}

#[test]
fn calls_on_no_list_are_not_permitted() {
    goes_on("calls_on_no_list_are_not_permitted", || {
        // A signal to itself, which would do nothing.
        assert_eq!(kill_process(getpid(), Signal::CONT), Err(Errno::PERM));
        assert_eq!(rustix::process::setpriority_process(None, 0), Err(Errno::PERM));
        assert_eq!(std::os::unix::fs::symlink("a", "b").unwrap_err().raw_os_error(), Some(libc::EPERM));
    });
}

#[test]
fn sockets_are_those_of_a_gateway() {
    goes_on("sockets_are_those_of_a_gateway", || {
        for family in [AddressFamily::UNIX, AddressFamily::INET, AddressFamily::INET6] {
            socket(family, SocketType::DGRAM, None).unwrap();
        }
        for family in [AddressFamily::PACKET, AddressFamily::VSOCK, AddressFamily::BLUETOOTH] {
            assert_eq!(socket(family, SocketType::DGRAM, None).unwrap_err(), Errno::PERM, "{family:?}");
        }
    });
}

#[test]
fn a_filtered_process_starts_threads_and_its_panics_are_caught() {
    goes_on("a_filtered_process_starts_threads_and_its_panics_are_caught", || {
        std::panic::set_hook(Box::new(|panic| {
            eprintln!("{panic}\n{}", std::backtrace::Backtrace::force_capture());
        }));
        let panicked =
            std::thread::Builder::new().name("panics".into()).spawn(|| panic!("on purpose")).unwrap();
        assert!(panicked.join().is_err());
    });
}

#[test]
fn an_abort_is_an_abort() {
    let status = in_child("an_abort_is_an_abort", || std::process::abort());
    assert_eq!(status.signal(), Some(libc::SIGABRT), "{status}");
}

#[test]
fn a_second_filter_is_refused() {
    goes_on("a_second_filter_is_refused", || assert!(filter(Needs::default()).is_err()));
}

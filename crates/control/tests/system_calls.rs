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
use testudo_ebpf::objects::Map;

/// Names the case that a child is to run.
const CASE: &str = "TESTUDO_FILTERED_CASE";

/// Runs `case` in a child process, which filters its system calls first.
fn in_child(test: &str, needs: Needs, case: fn()) -> ExitStatus {
    if std::env::var(CASE).is_ok_and(|name| name == test) {
        filter(needs).unwrap();
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
    is_killed_with(test, Needs::default(), case);
}

fn is_killed_with(test: &str, needs: Needs, case: fn()) {
    let status = in_child(test, needs, case);
    assert_eq!(status.signal(), Some(libc::SIGSYS), "{status}");
}

fn goes_on(test: &str, case: fn()) {
    goes_on_with(test, Needs::default(), case);
}

fn goes_on_with(test: &str, needs: Needs, case: fn()) {
    let status = in_child(test, needs, case);
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
    let status = in_child("an_abort_is_an_abort", Needs::default(), || std::process::abort());
    assert_eq!(status.signal(), Some(libc::SIGABRT), "{status}");
}

/// A command of bpf(2) that is no gateway's.
fn makes_a_map() {
    let refused = Map::of_numbers(1).map(drop).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
}

#[test]
fn a_gateway_that_makes_maps_of_bpf_is_killed() {
    is_killed("a_gateway_that_makes_maps_of_bpf_is_killed", makes_a_map);
}

#[test]
fn a_gateway_whose_filter_has_maps_is_killed_when_it_makes_others() {
    let needs = Needs { filter_maps: true, ..Needs::default() };
    is_killed_with("a_gateway_whose_filter_has_maps_is_killed_when_it_makes_others", needs, makes_a_map);
}

/// libxdp asks more of bpf(2) when it closes a device than a gateway ever does. Who is not root is refused by
/// the kernel, too.
#[test]
fn a_driver_with_a_filter_of_its_own_is_refused_bpf_and_the_gateway_goes_on() {
    let needs = Needs { filter_of_driver: true, ..Needs::default() };
    goes_on_with(
        "a_driver_with_a_filter_of_its_own_is_refused_bpf_and_the_gateway_goes_on",
        needs,
        makes_a_map,
    );
}

#[test]
fn a_second_filter_is_refused() {
    goes_on("a_second_filter_is_refused", || assert!(filter(Needs::default()).is_err()));
}

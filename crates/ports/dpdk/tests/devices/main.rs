//! The port over DPDK itself, with its virtual devices and without huge pages: as root, in network
//! namespaces.
//!
//! The plugin is built by `scripts/shim.sh`. Where DPDK is not installed, the tests fail, unless
//! `TESTUDO_WITHOUT_DPDK=1` says that this is known.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    reason = "a test panics on failure, and its data is made of small numbers"
)]

mod files;
#[allow(dead_code, reason = "shared with the tests over a driver that is played")]
mod flow;
mod kernel;
mod memory;
mod support;
mod virtio;

use std::process::ExitCode;
use testudo_judge::harness::Suite;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [first, folder] if first == files::ECHO => return files::echo(folder.as_ref()),
        [first, folder] if first == virtio::ECHO => return virtio::echo(folder.as_ref()),
        _ => {}
    }
    if std::env::var_os("TESTUDO_WITHOUT_DPDK").is_some() {
        println!("devices: skipped, TESTUDO_WITHOUT_DPDK is set");
        return ExitCode::SUCCESS;
    }
    virtio::tests(kernel::tests(files::tests(memory::tests(Suite::new())))).run(support::Dpdk::start)
}

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
mod kernel;
mod memory;
mod support;

use std::process::ExitCode;
use testudo_judge::harness::Suite;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, folder] = arguments.as_slice()
        && first == files::ECHO
    {
        return files::echo(folder.as_ref());
    }
    if std::env::var_os("TESTUDO_WITHOUT_DPDK").is_some() {
        println!("devices: skipped, TESTUDO_WITHOUT_DPDK is set");
        return ExitCode::SUCCESS;
    }
    kernel::tests(files::tests(memory::tests(Suite::new()))).run(support::Dpdk::start)
}

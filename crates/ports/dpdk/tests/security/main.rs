//! Cryptography in a device, over DPDK itself: its virtual NIC with rte_security (`shim/dpdk-twin`), whose
//! cryptography is OpenSSL's. As root, in network namespaces, without huge pages.
//!
//! The plugin and the NIC are built by `scripts/shim.sh` and `scripts/dpdk-twin.sh`. Where DPDK or the
//! headers of its drivers are missing, the tests fail, unless `TESTUDO_WITHOUT_DPDK=1` says that this is
//! known.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    reason = "a test panics on failure, and its data is made of small numbers"
)]

mod faults;
mod packets;
mod support;

use std::process::ExitCode;
use testudo_judge::harness::Suite;

fn main() -> ExitCode {
    if std::env::var_os("TESTUDO_WITHOUT_DPDK").is_some() {
        println!("security: skipped, TESTUDO_WITHOUT_DPDK is set");
        return ExitCode::SUCCESS;
    }
    faults::tests(packets::tests(Suite::new())).run(support::Dpdk::start)
}

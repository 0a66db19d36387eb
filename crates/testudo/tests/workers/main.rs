//! The running program with several workers, between two hosts.
//!
//! Flows are steered by bpf(2), which is refused without root's rights outside of all user namespaces. The
//! tests then fail, unless `TESTUDO_WITHOUT_XDP=1` says that this is known.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test panics on failure, and its data is made of small numbers"
)]

#[path = "../support/mod.rs"]
mod support;

mod changes;
mod clocked;
mod own_sas;
mod roles;

use std::process::ExitCode;
use support::link::Link;
use testudo_judge::harness::Suite;

fn main() -> ExitCode {
    if std::env::var_os("TESTUDO_WITHOUT_XDP").is_some() {
        println!("workers: skipped, TESTUDO_WITHOUT_XDP is set");
        return ExitCode::SUCCESS;
    }
    let suite = own_sas::tests(changes::tests(roles::tests(Suite::new())));
    clocked::tests(suite).run(Link::build_as_root)
}

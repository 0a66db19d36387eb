//! `testudo tune` on a real veth pair in network namespaces: what it changes, what it refuses, and that undo
//! leaves every setting as it was, also after kill -9. ethtool and the kernel's own files are the judges.

#[path = "../support/mod.rs"]
mod support;

mod boot;
mod kills;
mod measured;
mod site;
mod verbs;

use site::Site;
use std::process::ExitCode;
use testudo_judge::harness::Suite;

fn main() -> ExitCode {
    boot::tests(measured::tests(kills::tests(verbs::tests(Suite::new())))).run(Site::build)
}

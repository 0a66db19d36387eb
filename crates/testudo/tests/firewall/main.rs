//! `testudo firewall` on a real kernel: which packets pass a gateway in clear without its rules, and which
//! with them.

#[path = "../support/mod.rs"]
mod support;

mod clear;
mod host_to_host;
mod running;
mod samples;
mod site;
mod verb;

use site::Site;
use std::process::ExitCode;
use testudo_judge::harness::Suite;

fn main() -> ExitCode {
    let suite = samples::tests(clear::tests(Suite::new()));
    running::tests(host_to_host::tests(verb::tests(suite))).run(Site::build)
}

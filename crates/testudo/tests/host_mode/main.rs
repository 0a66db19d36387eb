//! The running program as its operator sees it: its error messages, the failures that it survives, and what
//! it reports about itself.

#[path = "../support/mod.rs"]
mod support;

mod clients;
mod disk;
mod fragments;
mod groups;
mod headers;
mod inspection;
mod keys;
mod life;
mod memory;
mod packets;
mod policies;
mod populate;
mod refusals;
mod rekey;
mod reload;
mod run_time_sas;
mod service;
mod suites;

use std::process::ExitCode;
use support::link::Link;
use testudo_judge::harness::Suite;

fn main() -> ExitCode {
    let suite = suites::tests(refusals::tests(Suite::new()));
    let suite = memory::tests(disk::tests(life::tests(service::tests(suite))));
    let suite = policies::tests(headers::tests(suite));
    let suite = fragments::tests(packets::tests(reload::tests(suite)));
    let suite = groups::tests(suite);
    let suite = populate::tests(run_time_sas::tests(rekey::tests(suite)));
    clients::tests(keys::tests(inspection::tests(suite))).run(Link::build)
}

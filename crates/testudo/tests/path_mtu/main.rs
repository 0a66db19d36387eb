//! Paths that carry less than the gateways are configured for, with real routers and real hosts: who is told,
//! what passes afterwards, and what an attacker can do with forged errors (RFC 4301 8.2).

#[path = "../support/mod.rs"]
mod support;

mod probes;
mod routers;

use std::process::ExitCode;
use support::sites::Network;
use testudo_judge::harness::Suite;

fn main() -> ExitCode {
    probes::tests(routers::tests(Suite::new())).run(Network::build)
}

//! The whole program with `kind = "xdp"` at both sides of two gateways: as root, in network namespaces.
//!
//! ```text
//!   left host ══ gateway A ══ router ══ 1400 bytes ══ router ══ gateway B ══ right host
//!            lan           wan                             wan           lan
//! ```
//!
//! Each cable of a gateway is a veth pair with two queues, so that native mode works. bpf(2) is refused
//! without root's rights outside of user namespaces. The tests then fail, unless `TESTUDO_WITHOUT_XDP=1` says
//! that this is known.

#[path = "../support/mod.rs"]
mod support;

mod life;
mod policies;
mod refusals;
mod traffic;

use std::process::ExitCode;
use support::sites::Network;
use testudo_judge::harness::Suite;

fn main() -> ExitCode {
    if std::env::var_os("TESTUDO_WITHOUT_XDP").is_some() {
        println!("xdp: skipped, TESTUDO_WITHOUT_XDP is set");
        return ExitCode::SUCCESS;
    }
    let suite = policies::tests(life::tests(traffic::tests(Suite::new())));
    refusals::tests(suite).run(Network::build_for_xdp)
}

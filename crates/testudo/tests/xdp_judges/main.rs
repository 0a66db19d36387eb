//! Foreign implementations judge what AF_XDP ports send and receive: a Linux kernel as the other gateway, and
//! Scapy at the other end of the wire. As root, as `tests/xdp`.
//!
//! ```text
//!   left host ══ Testudo ══ router ══ 1400 bytes ══ router ══ Linux: ip xfrm ══ right host
//!            AF_XDP   AF_XDP  │                               (in a virtual machine)
//!                           Scapy
//! ```

#[path = "../support/mod.rs"]
mod support;

mod linux;
mod scapy;
#[path = "../linux_gateway/site.rs"]
#[allow(dead_code, reason = "shared with the tests of a Linux gateway")]
mod site;

use site::Site;
use std::process::ExitCode;
use support::sites::Network;
use testudo_judge::harness::Suite;

fn main() -> ExitCode {
    if std::env::var_os("TESTUDO_WITHOUT_XDP").is_some() {
        println!("xdp_judges: skipped, TESTUDO_WITHOUT_XDP is set");
        return ExitCode::SUCCESS;
    }
    scapy::tests(linux::tests(Suite::new())).run(|| Site::build_on(Network::build_for_xdp))
}

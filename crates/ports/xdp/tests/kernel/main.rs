//! The device over veth, and the filter in the kernel: as root, in network namespaces.
//!
//! ```text
//!   namespace left  eth0 10.9.0.1 ═══ veth, 2 queues ═══ 10.9.0.2 eth0  namespace right
//!                                                        10.9.1.2 eth1 ═══ 10.9.1.1 eth0  namespace far
//! ```
//!
//! bpf(2) is refused without root's rights outside of all user namespaces. The tests then fail, unless
//! `TESTUDO_WITHOUT_XDP=1` says that this is known.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    reason = "a test panics on failure, and its data is made of small numbers"
)]

mod filter;
mod lifetime;
mod link;
mod support;
mod traffic;
mod workers;

use std::process::ExitCode;
use testudo_judge::harness::Suite;
use testudo_lab::namespaces;

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some(lifetime::HOLD) => return lifetime::hold(),
        Some(lifetime::TRY) => return lifetime::attempt(),
        _ => {}
    }
    if std::env::var_os("TESTUDO_WITHOUT_XDP").is_some() {
        println!("kernel: skipped, TESTUDO_WITHOUT_XDP is set");
        return ExitCode::SUCCESS;
    }
    let fixture = || {
        let inside = namespaces::enter_as_root().map_err(|error| {
            format!("{error}\nAF_XDP needs real root; TESTUDO_WITHOUT_XDP=1 leaves these tests out")
        })?;
        Ok::<_, String>(support::Sites::new(inside))
    };
    let suite = workers::tests(traffic::tests(filter::tests(Suite::new())));
    let suite = link::tests(lifetime::tests(suite));
    suite.run(fixture)
}

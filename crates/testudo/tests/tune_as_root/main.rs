//! `testudo tune` where root of the machine may change what root of a user namespace may not: NAPI and queues
//! of a veth and of a TAP, in namespaces of the test; and all that a guest's virtio network card has, with
//! what is the machine's. Nothing of this machine's own is changed.

#[path = "../tune/kills.rs"]
mod kills;
#[path = "../tune/site.rs"]
mod site;
#[path = "../support/mod.rs"]
mod support;

mod guest;
mod queues;
mod systemd;

use site::Site;
use std::process::ExitCode;
use testudo_judge::harness::Suite;
use testudo_judge::linux_peer::LinuxPeer;
use testudo_lab::namespaces::{enter_as_root, is_inside};

fn main() -> ExitCode {
    if std::env::var_os("TESTUDO_WITHOUT_XDP").is_some() {
        println!("tune_as_root: skipped, TESTUDO_WITHOUT_XDP is set: no root");
        return ExitCode::SUCCESS;
    }
    let build = || -> support::Outcome<Option<Site>> {
        // With the network of the host, which downloads the kernel once.
        if !is_inside() {
            LinuxPeer::prepare_image(&LinuxPeer::default_cache())?;
        }
        enter_as_root()?;
        Ok(None)
    };
    systemd::tests(guest::tests(queues::tests(Suite::new()))).run(build)
}

//! Unmodified IKE daemons, strongSwan's charon and libreswan's pluto, over the gateway's server of XFRM: two
//! hosts, each with a daemon that loads `libtestudo-xfrm.so`. The data path of most tests is one of memory,
//! so that it is known to the last attribute what the daemons have put into force. Others have the whole
//! program in its place, and packets; some have a foreign data path at the other end.
//!
//! ```text
//!   charon ── libtestudo-xfrm.so ── recorder ── XfrmServer ── memory
//!     ║ IKE, over a cable between two namespaces
//!   charon ── libtestudo-xfrm.so ── recorder ── XfrmServer ── memory
//! ```

#[path = "../played/mod.rs"]
mod played;
#[path = "../support/mod.rs"]
mod support;

mod clear;
mod connection;
mod foreign;
mod guest;
mod host;
mod interfaces;
mod libreswan;
mod lifetimes;
mod mad;
mod memory;
mod moving;
mod names;
mod nat;
mod negotiation;
mod network;
mod notices;
mod pair;
mod past_routes;
mod pluto;
mod recorder;
mod rekey;
mod rekey_load;
mod renewal;
mod restart;
mod scenarios;
mod strongswan;
mod tape;
mod traffic;
mod traps;
mod vici;
mod vpe;
mod warriors;
mod wireshark;

use network::Network;
use std::process::ExitCode;
use std::time::Duration;
use support::Outcome;
use testudo_judge::harness::Suite;
use testudo_lab::namespaces::{enter, is_inside, veth};

/// Options that measure in place of tests, each with a number behind it.
const MEASUREMENTS: [&str; 2] = ["--warriors", "--rekey"];

fn main() -> ExitCode {
    let mut words = std::env::args().skip_while(|word| !MEASUREMENTS.contains(&word.as_str()));
    match words.next().as_deref() {
        Some("--warriors") => return measure(words.next(), warriors::measure),
        Some("--rekey") => {
            return measure(words.next(), |network, seconds| {
                rekey_load::measure(network, Duration::from_secs(seconds.into()))
            });
        }
        _ => {}
    }
    let of_warriors = mad::tests(warriors::tests(tape::tests(Suite::new())));
    let of_traffic = traffic::tests(vpe::tests(guest::tests(foreign::tests(of_warriors))));
    let of_traffic = lifetimes::tests(moving::tests(interfaces::tests(traps::tests(of_traffic))));
    let of_routes = clear::tests(past_routes::tests(of_traffic));
    let of_charon = notices::tests(rekey_load::tests(rekey::tests(negotiation::tests(of_routes))));
    let of_charon = wireshark::tests(names::tests(of_charon));
    let of_both = renewal::tests(pluto::tests(restart::tests(of_charon)));
    scenarios::tests(of_both).run(build)
}

/// The hosts, and what foreign ends of tests need.
fn build() -> Outcome<Network> {
    if !is_inside() {
        wireshark::prepare()?;
        guest::prepare()?;
    }
    Network::build(enter, veth)
}

/// Measures in place of tests, and prints what was found: `number` of the command line says how much.
fn measure(number: Option<String>, run: impl FnOnce(&mut Network, u32) -> Outcome<()>) -> ExitCode {
    let Some(number) = number.and_then(|word| word.parse().ok()).filter(|number| *number > 0) else {
        eprintln!("usage: --warriors NUMBER or --rekey SECONDS, 1 or more");
        return ExitCode::FAILURE;
    };
    match build().and_then(|mut network| run(&mut network, number)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

//! The dashboard in a real browser, and over HTTP as others see it; Grafana's dashboard beside what the
//! gateway exports.

#[path = "../support/mod.rs"]
mod support;

mod browser;
mod grafana;
mod http;
mod page;

use std::process::ExitCode;
use support::config::{Config, pair};
use support::gateway::Gateway;
use support::link::Link;
use support::wait::PATIENCE;
use support::{Outcome, ensure};
use testudo_judge::harness::Suite;
use testudo_lab::traffic::ping;

/// Where A serves its dashboard.
const DASHBOARD: &str = "127.0.0.1:9469";
const METRICS: &str = "127.0.0.1:9468";

/// A with a dashboard and metrics, and its peer; each has carried five pings.
fn busy_pair(link: &mut Link) -> Outcome<[Gateway; 2]> {
    busy(link, pair(true)?)
}

/// As [`busy_pair`], with these tunnels and keys.
fn busy(link: &mut Link, [mut a, b]: [Config; 2]) -> Outcome<[Gateway; 2]> {
    a.gateway = format!("dashboard = \"{DASHBOARD}\"\nmetrics = \"{METRICS}\"");
    let (gateway, _) = link.start_a(&a)?;
    let (peer, _) = link.start_b(&b)?;
    let trips = ping(&link.a, "10.2.0.1".parse()?, 5, PATIENCE)?;
    ensure(trips.lost == 0, || format!("{} of 5 pings were lost", trips.lost))?;
    Ok([gateway, peer])
}

fn stop([gateway, peer]: [Gateway; 2]) -> Outcome<()> {
    gateway.stop()?;
    peer.stop()
}

fn main() -> ExitCode {
    page::tests(grafana::tests(http::tests(Suite::new()))).run(Link::build)
}

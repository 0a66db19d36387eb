//! Routers that say nothing: a path that is a black hole for long packets, until probes inside the SA find
//! what it carries (RFC 8899).

use crate::support::gateway::Gateway;
use crate::support::pings::{passes, ping_of};
use crate::support::sites::{NARROW, Network};
use crate::support::wait::{self, PATIENCE};
use crate::support::{Outcome, ensure};
use std::time::Duration;
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::traffic::tcp_stream;

pub fn tests<'a>(suite: Suite<'a, Network>) -> Suite<'a, Network> {
    suite.test("probes_find_what_a_path_carries_whose_routers_say_nothing", finds_by_probes)
}

/// Makes routers silent.
const SILENCE: [&str; 4] = [
    "add table inet silence",
    "add chain inet silence out { type filter hook output priority 0; }",
    "add rule inet silence out icmp type destination-unreachable drop",
    "add rule inet silence out icmpv6 type packet-too-big drop",
];

/// The path MTU in force, and who says so.
fn path_mtu(gateway: &Gateway) -> Outcome<(u64, String)> {
    let path = gateway.ask_json(&["status"])?["path_mtus"][0].take();
    let source = path["source"].as_str().unwrap_or_default().to_owned();
    Ok((path["path_mtu"].as_u64().unwrap_or(0), source))
}

fn finds_by_probes(network: &mut Network) -> TestResult {
    for router in &network.routers {
        for words in SILENCE {
            router.run(&["nft", words])?;
        }
    }
    let mut ends = Network::ends(false, true, "")?;
    for (end, [ours, theirs]) in ends.iter_mut().zip([["10.1.0.1", "10.2.0.1"], ["10.2.0.1", "10.1.0.1"]]) {
        end.tunnels[0].more = format!(
            "mtu_probe = {{ source = \"{ours}\", destination = \"{theirs}\", interval_seconds = 5 }}"
        );
    }
    let [a, b] = network.start(&ends)?;
    let [v4, v6] = network.fresh_host()?;
    // Short packets pass, and long ones vanish.
    passes(&network.left, &v4, 500)?;
    let (is_answered, said) = ping_of(&network.left, &v4, 1438, "0.3")?;
    ensure(!is_answered && !said.contains("mtu"), || format!("somebody speaks: {said}"))?;
    for gateway in [&a, &b] {
        wait::until_within(2 * PATIENCE, "for the path to be measured", || {
            let (mtu, source) = path_mtu(gateway)?;
            Ok((source == "probes" && mtu + 12 > NARROW as u64 && mtu <= NARROW as u64).then_some(()))
        })?;
        ensure(gateway.dropped("icmp_believed")? == 0, || "a router spoke".to_owned())?;
    }
    a.logs("probes say that the path to the peer carries")?;
    for host in [&v4, &v6] {
        // The gateway says now what the routers do not.
        let (_, said) = ping_of(&network.left, host, 1438, "1")?;
        ensure(said.contains("mtu"), || format!("{host}: {said}"))?;
        let mut watch = |_: Duration, _: u64| ();
        let time = Duration::from_millis(300);
        let stream = tcp_stream(&network.left, &network.right, host.parse()?, time, &mut watch)?;
        ensure(stream.bytes > 100_000, || format!("only {} bytes went to {host}", stream.bytes))?;
    }
    for router in &network.routers {
        router.run(&["nft", "delete table inet silence"])?;
    }
    b.stop()?;
    a.stop()
}

//! Two charons with a connection: it is negotiated and renewed, packets pass, and in the end nothing is left.

use crate::host::Program;
use crate::network::Network;
use crate::strongswan::{Charon, only_child};
use crate::support::{Outcome, ensure, wait};
use testudo_judge::harness::TestResult;

/// Hosts behind A and B, which are A and B themselves.
pub const INNER: [&str; 2] = ["10.1.0.1", "10.2.0.1"];

/// Negotiates the connection, and waits until it is in force at both ends: the SPIs of A, inbound first.
pub fn initiate(charons: &[Charon; 2]) -> Outcome<[u32; 2]> {
    charons[0].swanctl(&["--initiate", "--child", "net", "--timeout", "15"])?;
    let spis = charons[0].until("for a CHILD_SA at A", only_child)?;
    let [inbound, outbound] = charons[1].until("for a CHILD_SA at B", only_child)?;
    ensure(spis == [outbound, inbound], || format!("A has {spis:x?}, B {inbound:x} and {outbound:x}"))?;
    Ok(spis)
}

/// Waits until both ends have one CHILD_SA, with other SPIs: those of A.
pub fn until_renewed(charons: &[Charon; 2], before: [u32; 2]) -> Outcome<[u32; 2]> {
    let is_new = |spis: &[u32; 2]| spis.iter().all(|spi| !before.contains(spi));
    let of_a = charons[0].until("for another CHILD_SA at A", |sas| only_child(sas).filter(is_new))?;
    charons[1].until("for the same at B", |sas| only_child(sas).filter(|b| *b == [of_a[1], of_a[0]]))?;
    Ok(of_a)
}

/// The hosts' inner addresses; and nothing is left of what a test before this one had.
pub fn with_addresses(network: &Network) -> Outcome<()> {
    for (host, address) in network.hosts().into_iter().zip(INNER) {
        let _ = host.namespace.run(&["ip", "address", "replace", &format!("{address}/32"), "dev", "lo"]);
        host.namespace.run(&["ip", "link", "set", "lo", "up"])?;
    }
    Ok(())
}

pub fn logs(network: &Network, charons: &[Charon; 2]) -> String {
    let of = |at: usize| {
        let host = network.hosts()[at];
        let Some(Program { process, .. }) = &host.program else { return charons[at].log() };
        let drops = process.ask_json(&["status"]).map(|status| status["drops"].clone());
        let (gateway, policies) = (process.log(), host.ip_xfrm(&["policy"]));
        format!("{gateway}\n{}\n{policies:?}\ndropped: {drops:?}", charons[at].log())
    };
    format!("A:\n{}\nB:\n{}", of(0), of(1))
}

pub fn pings(network: &Network, charons: &[Charon; 2]) -> Outcome<()> {
    let words = ["-n", "-c", "3", "-i", "0.2", "-W", "5", "-I", INNER[0], INNER[1]];
    let output = wait::output(network.a.namespace.command("ping").args(words))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure(output.status.success() && said.contains(" 0% packet loss"), || {
        format!("{said}\n{}", logs(network, charons))
    })
}

/// Daemons and gateways end, and leave nothing.
pub fn ends(network: &mut Network, charons: [Charon; 2]) -> TestResult {
    charons[0].swanctl(&["--terminate", "--ike", "net", "--timeout", "10"])?;
    charons[1].until("for the end of the IKE_SA at B", |sas| sas.is_empty().then_some(()))?;
    left(network, charons)
}

/// Connections have ended, and left nothing; now daemons and gateways end.
pub fn left(network: &mut Network, charons: [Charon; 2]) -> TestResult {
    for host in network.hosts() {
        let Some(program) = &host.program else { continue };
        // charon says that a connection has ended, and then takes its SAs away.
        let mut left = serde_json::Value::Null;
        wait::until("for the end of all SAs", || {
            left = program.process.ask_json(&["sa", "list"])?;
            Ok(left.as_array().is_some_and(Vec::is_empty).then_some(()))
        })
        .map_err(|error| format!("{error}: {left:#}"))?;
        let routes = host.namespace.run(&["ip", "route", "show", "table", "all", "dev", "testudo0"])?;
        let rules = host.namespace.run(&["ip", "rule"])?;
        ensure(!routes.contains("table 7465") && !rules.contains("7465"), || {
            format!("routes or rules are left: {routes}{rules}")
        })?;
    }
    network.all_is_well(&charons)?;
    for charon in charons {
        charon.stop()?;
    }
    for host in [&mut network.a, &mut network.b] {
        if let Some(program) = host.program.take() {
            program.process.stop()?;
        }
    }
    Ok(())
}

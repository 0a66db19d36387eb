//! Interfaces that if_id tells apart, in transport mode: the route into one is the operator's, and so is what
//! keeps IKE and ESP out of it.

use crate::connection::Connection;
use crate::negotiation::initiate;
use crate::network::Network;
use crate::past_routes::{PEERS, renewed_without_loss};
use crate::support::{Outcome, ensure, wait};
use crate::traffic::{ends, logs};
use testudo_judge::harness::{Suite, TestResult};

type Tests<'a> = Suite<'a, Network>;

/// The table of the route, as docs/IKE.md has it.
const TABLE: &str = "42";

pub fn tests(suite: Tests<'_>) -> Tests<'_> {
    suite.test("hosts_speak_in_transport_mode_by_an_interface", in_transport_mode)
}

/// The rule and the route of docs/IKE.md, on both hosts.
fn routed(network: &Network, verb: &str) -> Outcome<()> {
    for (host, [own, peer]) in network.hosts().into_iter().zip([PEERS, [PEERS[1], PEERS[0]]]) {
        let namespace = &host.namespace;
        namespace.run(&["ip", "rule", verb, "not", "fwmark", "0x7465", "lookup", TABLE, "pref", "1000"])?;
        namespace.run(&["ip", "route", verb, peer, "dev", "ipsec0", "src", own, "table", TABLE])?;
    }
    Ok(())
}

fn in_transport_mode(network: &mut Network) -> TestResult {
    const INTERFACE: &str = "[[interface]]\nname = \"ipsec0\"\nif_id = 42\n";
    let mut connection = Connection::transport();
    connection.child.push_str("\n if_id_in = 42\n if_id_out = 42");
    let charons =
        network.programs_with([INTERFACE; 2], "interfaces_ignore = testudo0, ipsec0", &connection)?;
    routed(network, "add")?;
    let spis = initiate(&charons).map_err(|error| format!("{error}\n{}", logs(network, &charons)))?;
    let words = ["-n", "-c", "3", "-i", "0.2", "-W", "5", PEERS[1]];
    let output = wait::output(network.a.namespace.command("ping").args(words))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure(said.contains(" 0% packet loss"), || format!("{said}\n{}", logs(network, &charons)))?;
    let sas = network.a.program().process.ask_json(&["sa", "list"])?;
    let packets: Vec<_> = sas.as_array().into_iter().flatten().map(|sa| sa["packets"].as_u64()).collect();
    ensure(packets == [Some(3); 2], || format!("each packet in an SA: {sas:#}"))?;
    renewed_without_loss(network, &charons, spis, PEERS)?;
    routed(network, "del")?;
    ends(network, charons)
}

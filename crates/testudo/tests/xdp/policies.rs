//! The filter follows the policies while a gateway runs, with its system calls filtered.

use crate::support::gateway::Gateway;
use crate::support::sites::Network;
use crate::support::wait;
use crate::support::{Outcome, ensure};
use crate::traffic::{NATIVE, ends};
use std::net::{IpAddr, UdpSocket};
use testudo_judge::harness::{Suite, TestResult};

pub fn tests(suite: Suite<'_, Network>) -> Suite<'_, Network> {
    suite
        .test("a_policy_that_is_added_or_removed_changes_what_the_filter_takes", changed_by_hand)
        .test("a_reload_changes_what_the_filter_takes", reloaded)
        .test("the_hosts_own_addresses_stay_with_the_kernel_where_policies_take_everything", own_addresses)
}

/// Packets that have come to the protected port.
fn taken(gateway: &Gateway) -> Outcome<u64> {
    let status = gateway.ask_json(&["status"])?;
    status["ports"]["protected"]["rx_packets"].as_u64().ok_or_else(|| "no rx_packets".into())
}

/// Whether the gateway takes what the left host sends to `destination`.
fn takes(network: &Network, gateway: &Gateway, destination: &str) -> Outcome<bool> {
    let destination: IpAddr = destination.parse()?;
    let socket = network.left.within(|| UdpSocket::bind("0.0.0.0:0"))??;
    let before = taken(gateway)?;
    for _ in 0..20 {
        socket.send_to(b"taken?", (destination, 9))?;
    }
    // What is surely taken follows: when it has been counted, the others have been, if they are taken.
    for _ in 0..20 {
        socket.send_to(b"taken", ("10.2.0.77", 9))?;
    }
    let all = wait::until("for the packets to be counted", || {
        let now = taken(gateway)? - before;
        Ok((now >= 20).then_some(now))
    })?;
    let later = wait::until_within(std::time::Duration::from_millis(300), "for more", || {
        Ok((taken(gateway)? - before >= 40).then_some(()))
    });
    ensure(all <= 60, || format!("{all} packets"))?;
    Ok(later.is_ok())
}

fn changed_by_hand(network: &mut Network) -> TestResult {
    let [a, _] = ends(false, false, NATIVE)?;
    let gateway = network.start_left(&a)?;
    assert!(!takes(network, &gateway, "198.18.0.9")?);
    let add = [
        "policy",
        "add",
        "--name",
        "stop",
        "--action",
        "discard",
        "--local",
        "any",
        "--remote",
        "198.18.0.0/15",
    ];
    let said = gateway.ask(&add)?;
    ensure(said.code == Some(0), || format!("{said:#?}\n{}", gateway.log()))?;
    assert!(takes(network, &gateway, "198.18.0.9")?, "{}", gateway.log());
    assert!(gateway.dropped("policy_discard")? >= 20);
    let said = gateway.ask(&["policy", "delete", "stop"])?;
    ensure(said.code == Some(0), || format!("{said:#?}\n{}", gateway.log()))?;
    assert!(!takes(network, &gateway, "198.18.0.9")?);
    gateway.stop()
}

fn reloaded(network: &mut Network) -> TestResult {
    let [mut a, _] = ends(false, false, NATIVE)?;
    let folder = network.folder_of(&a)?;
    let mut gateway = Gateway::start(&network.a, &folder)?;
    assert!(!takes(network, &gateway, "198.18.0.9")?);
    let more = ("10.1.0.0/16".to_owned(), "198.18.0.0/15".to_owned());
    a.tunnels[0].selectors.push(more);
    a.write(&folder)?;
    gateway.reload()?;
    assert!(takes(network, &gateway, "198.18.0.9")?, "{}", gateway.log());
    a.tunnels[0].selectors.pop();
    a.write(&folder)?;
    gateway.reload()?;
    assert!(!takes(network, &gateway, "198.18.0.9")?, "{}", gateway.log());
    gateway.stop()
}

fn own_addresses(network: &mut Network) -> TestResult {
    let [mut a, _] = ends(false, false, NATIVE)?;
    a.tunnels[0].selectors = vec![("10.1.0.0/16".to_owned(), "any".to_owned())];
    let gateway = network.start_left(&a)?;
    assert!(takes(network, &gateway, "203.0.113.200")?, "everything else is taken");
    for own in ["10.1.0.1", "192.0.2.1"] {
        let trips = testudo_lab::traffic::ping(&network.left, own.parse()?, 3, wait::PATIENCE)?;
        ensure(trips.lost == 0, || format!("{} pings to {own} were lost\n{}", trips.lost, gateway.log()))?;
    }
    // An address that the host gets later is left to its kernel, too.
    network.a.address("wan", "203.0.113.77/32")?;
    let reached = wait::until("for the new address to answer", || {
        let new = "203.0.113.77".parse()?;
        let trips = testudo_lab::traffic::ping(&network.left, new, 1, std::time::Duration::from_millis(300))?;
        Ok((trips.lost == 0).then_some(()))
    });
    network.a.run(&["ip", "address", "delete", "203.0.113.77/32", "dev", "wan"])?;
    reached?;
    gateway.stop()
}

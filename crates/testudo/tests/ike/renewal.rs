//! Gateways that are killed under traffic, and start again: daemons renew their SAs by themselves.

use crate::connection::Connection;
use crate::host::Host;
use crate::libreswan::Pluto;
use crate::negotiation::initiate;
use crate::network::Network;
use crate::pluto::lines;
use crate::strongswan::{Charon, only_child};
use crate::support::{Outcome, ensure, wait};
use crate::traffic::{INNER, logs, pings, with_addresses};
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::traffic::Stream;

type Tests<'a> = Suite<'a, Network>;

pub fn tests(suite: Tests<'_>) -> Tests<'_> {
    suite
        .test("charons_renew_their_sas_after_a_gateway_was_killed", |network| {
            charons(network, &Connection::default())
        })
        .test("charons_renew_what_was_trapped_after_a_gateway_was_killed", |network| {
            charons(network, &Connection::child("start_action = trap"))
        })
        .test("a_trap_policy_stays_after_a_gateway_was_killed", trap)
        .test("plutos_renew_their_sas_after_a_gateway_was_killed", plutos)
}

/// What the status says of a renewal, once it is over.
fn renewed(host: &Host) -> Outcome<u64> {
    let process = &host.program().process;
    let renewal = wait::until("for the renewal in the status", || {
        let renewal = process.ask_json(&["status"])?["ike"]["renewal"].clone();
        let is_over = renewal.is_object() && renewal["renewed"] == renewal["expected"];
        Ok(is_over.then_some(renewal))
    })?;
    let without_traffic_ms = renewal["without_traffic_ms"].as_u64().unwrap_or(0);
    ensure(renewal["renewed"] == 1 && (1..60_000).contains(&without_traffic_ms), || format!("{renewal:#}"))?;
    let said = process.ask(&["status"])?.stdout;
    ensure(said.contains("1 of 1 renewed after the restart, without traffic for "), || said.clone())?;
    let gateways = process.ask_json(&["ike", "status"])?["gateways"].clone();
    ensure(gateways[0]["renewal"] == renewal, || format!("{gateways:#}, expected {renewal:#}"))?;
    let said = process.ask(&["ike", "status"])?.stdout;
    ensure(said.contains("1 of 1 renewed after the restart, without traffic for "), || said.clone())?;
    process.logs("1 tunnels were without traffic for ")?;
    Ok(without_traffic_ms)
}

/// Kills the gateway of one end after the other, while datagrams flow.
fn kills(network: &mut Network, log: impl Fn(&Network) -> String) -> TestResult {
    let stream = Stream::start((&network.a.namespace, INNER[0]), (&network.b.namespace, INNER[1]))?;
    stream.flows(50)?;
    for at in [0, 1] {
        let host = if at == 0 { &mut network.a } else { &mut network.b };
        host.restart_program()?;
        stream.flows(50).map_err(|error| format!("{error}\n{}", log(network)))?;
        let lasted = renewed(network.hosts()[at]).map_err(|error| format!("{error}\n{}", log(network)))?;
        println!("      without traffic for {lasted} ms");
    }
    let (sent, lost) = stream.end()?;
    ensure(sent > 100 && !lost.is_empty(), || format!("{sent} datagrams, lost {lost:?}"))
}

fn charons(network: &mut Network, connection: &Connection) -> TestResult {
    let charons = network.programs("", connection)?;
    with_addresses(network)?;
    initiate(&charons)?;
    kills(network, |network| logs(network, &charons))?;
    pings(network, &charons)?;
    for charon in &charons {
        let sas = charon.until("for one CHILD_SA alone", only_child)?;
        ensure(sas != [0, 0], || format!("{sas:?}"))?;
    }
    for charon in charons {
        charon.stop()?;
    }
    stop(network)
}

fn stop(network: &mut Network) -> TestResult {
    for host in [&mut network.a, &mut network.b] {
        let Some(program) = host.program.take() else { continue };
        let left = program.process.ask_json(&["sa", "list"])?;
        ensure(left.as_array().is_some_and(Vec::is_empty), || format!("SAs are left: {left:#}"))?;
        program.process.stop()?;
    }
    Ok(())
}

/// It has no SA yet that would bring it back.
fn trap(network: &mut Network) -> TestResult {
    let charons: [Charon; 2] = network.programs("", &Connection::child("start_action = trap"))?;
    with_addresses(network)?;
    let is_trapped = |host: &Host| Ok(host.ip_xfrm(&["policy"])?.contains("dir out").then_some(()));
    wait::until("for a trap policy at A", || is_trapped(&network.a))?;
    let rules = |network: &Network| network.a.namespace.run(&["ip", "rule"]);
    let before = rules(network)?;
    ensure(before.contains("7465"), || format!("no rule for what is negotiated: {before}"))?;
    network.a.restart_program()?;
    wait::until("for the trap policy at A again", || is_trapped(&network.a))
        .map_err(|error| format!("{error}\n{}", logs(network, &charons)))?;
    // What the killed gateway left of them is gone, and they are there once.
    let after = rules(network)?;
    ensure(after == before, || format!("rules before:\n{before}and after:\n{after}"))?;
    pings(network, &charons)?;
    for charon in charons {
        charon.stop()?;
    }
    stop(network)
}

fn plutos(network: &mut Network) -> TestResult {
    network.a.start_program()?;
    network.b.start_program()?;
    with_addresses(network)?;
    let lines = lines("esp=aes_gcm256");
    let plutos = [Pluto::start(&network.a, &lines, "add")?, Pluto::start(&network.b, &lines, "add")?];
    plutos[0].whack(&["--initiate", "--name", "net"])?;
    kills(network, |network| {
        let gateways = network.hosts().map(|host| host.program().process.log());
        format!("{}\n{}\nand\n{}\n{}", gateways[0], plutos[0].log(), gateways[1], plutos[1].log())
    })?;
    for pluto in plutos {
        pluto.stop()?;
    }
    stop(network)
}

//! SIGHUP: changes take effect, and unchanged tunnels lose no packet.

use crate::support::config::{CONFIGURATION, Config, Sa, Tunnel, pair, write_private};
use crate::support::gateway::{Gateway, PROGRAM, proc_file};
use crate::support::link::Link;
use crate::support::{Outcome, ensure, wait};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::process::Command;
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::traffic::Stream;

pub fn tests<'a>(suite: Suite<'a, Link>) -> Suite<'a, Link> {
    suite
        .test("a_reload_loses_no_packet_of_unchanged_tunnels", loses_nothing)
        .test("a_broken_configuration_on_reload_changes_nothing", survives_a_broken_configuration)
        .test("changes_that_need_a_restart_are_reported_and_not_made", says_what_needs_a_restart)
        .test("a_reload_during_the_start_takes_place_after_it", reloads_after_the_start)
        .test("a_tunnel_added_by_a_reload_carries_packets", brings_a_tunnel)
}

/// A second tunnel besides that of [`pair`].
fn second() -> Outcome<Tunnel> {
    let suite = "chacha20poly1305";
    let mut tunnel = pair(true)?[0].tunnels.remove(0);
    tunnel.name = "second".to_owned();
    tunnel.suite = suite.to_owned();
    tunnel.selectors = vec![("10.1.0.1".to_owned(), "10.9.0.0/24".to_owned())];
    (tunnel.outbound, tunnel.inbound) = (Sa::random(0x2001, suite)?, Sa::random(0x2002, suite)?);
    Ok(tunnel)
}

/// Reloads with another configuration while a stream flows, and lets the stream continue for a while.
fn reload(gateway: &mut Gateway, stream: &Stream, config: &Config, folder: &std::path::Path) -> Outcome<()> {
    config.write(folder)?;
    gateway.reload()?;
    Ok(stream.flows(50)?)
}

fn names(gateway: &Gateway) -> Outcome<Vec<Value>> {
    let list = gateway.ask_json(&["sa", "list"])?;
    let outbound = list.as_array().into_iter().flatten().filter(|sa| sa["direction"] == "outbound");
    Ok(outbound.map(|sa| sa["tunnel"].clone()).collect())
}

fn loses_nothing(link: &mut Link) -> TestResult {
    let [a, b] = pair(true)?;
    let (mut gateway, folder) = link.start_a(&a)?;
    let (peer, _) = link.start_b(&b)?;
    let stream = Stream::start((&link.a, "10.1.0.1"), (&link.b, "10.2.0.1"))?;
    stream.flows(50)?;
    let mut last = 0;
    for _ in 0..3 {
        // In turn: added, rekeyed, with other selectors only, moved to the front, removed.
        let mut with_second = a.clone();
        with_second.tunnels.push(second()?);
        reload(&mut gateway, &stream, &with_second, &folder)?;
        ensure(names(&gateway)? == ["a-b", "second"], || "the second tunnel is not there".to_owned())?;
        with_second.tunnels[1] = second()?;
        reload(&mut gateway, &stream, &with_second, &folder)?;
        with_second.tunnels[1].selectors[0].1 = "10.8.0.0/24".to_owned();
        reload(&mut gateway, &stream, &with_second, &folder)?;
        let routes = link.a.run(&["ip", "route"])?;
        ensure(routes.contains("10.8.0.0/24 dev testudo0") && !routes.contains("10.9.0.0/24"), || routes)?;
        with_second.tunnels.swap(0, 1);
        reload(&mut gateway, &stream, &with_second, &folder)?;
        reload(&mut gateway, &stream, &a, &folder)?;
        ensure(names(&gateway)? == ["a-b"], || "the second tunnel is still there".to_owned())?;
        let sa = gateway.sa("a-b", "outbound")?;
        let sequence = sa["sequence"].as_u64().ok_or("no sequence number")?;
        // One number per packet: the SA never started again.
        ensure(sa["packets"] == sequence && sequence > last, || format!("{last}, then {sa:#}"))?;
        last = sequence;
    }
    let (sent, lost) = stream.end()?;
    ensure(lost.is_empty(), || format!("of {sent} datagrams these were lost: {lost:?}\n{}", gateway.log()))?;
    gateway.stop()?;
    peer.stop()
}

fn survives_a_broken_configuration(link: &mut Link) -> TestResult {
    let [a, b] = pair(true)?;
    let (mut gateway, folder) = link.start_a(&a)?;
    let (peer, _) = link.start_b(&b)?;
    let stream = Stream::start((&link.a, "10.1.0.1"), (&link.b, "10.2.0.1"))?;
    stream.flows(50)?;
    let policies = gateway.ask_json(&["policy", "list"])?;
    for broken in [
        "",
        "[gateway",
        "\u{0}",
        &a.text().replace("aes128gcm16", "rot13"),
        &a.text().replace("1001.key", "no.key"),
    ] {
        write_private(&folder.join("testudo.toml"), broken)?;
        gateway.reload()?;
        stream.flows(20)?;
    }
    std::fs::remove_file(folder.join("testudo.toml"))?;
    gateway.reload()?;
    stream.flows(20)?;
    let failures = gateway.log().matches("reload failed, everything goes on as before").count();
    ensure(failures == 6, || format!("{failures} of 6 failures are in the log:\n{}", gateway.log()))?;
    ensure(gateway.ask_json(&["policy", "list"])? == policies, || "the policies changed".to_owned())?;
    let (sent, lost) = stream.end()?;
    ensure(lost.is_empty(), || format!("of {sent} datagrams these were lost: {lost:?}"))?;
    gateway.stop()?;
    peer.stop()
}

type Change = fn(&mut Config);

fn says_what_needs_a_restart(link: &mut Link) -> TestResult {
    let [a, _] = pair(true)?;
    let (mut gateway, folder) = link.start_a(&a)?;
    let before = gateway.ask_json(&["sa", "list"])?;
    let changes: [(&str, Change); 4] = [
        ("[gateway] changed", |config| config.gateway = "log = \"debug\"".to_owned()),
        ("[port.protected] changed", |config| config.interface = "testudo7".to_owned()),
        ("[port.unprotected] changed", |config| config.unprotected = "mtu = 1400".to_owned()),
        ("UDP port 192.0.2.1:4999 is new", |config| config.tunnels[0].more = "local_port = 4999".to_owned()),
    ];
    for (complaint, change) in changes {
        let mut changed = a.clone();
        change(&mut changed);
        changed.write(&folder)?;
        gateway.reload()?;
        gateway.logs(complaint)?;
        ensure(gateway.ask_json(&["sa", "list"])? == before, || {
            format!("{complaint}: and something happened")
        })?;
    }
    gateway.stop()
}

fn brings_a_tunnel(link: &mut Link) -> TestResult {
    let [a, b] = pair(true)?;
    let empty = |full: &Config, tunnel: Tunnel| Config { tunnels: vec![tunnel], ..full.clone() };
    // Both start with the second tunnel only; the reload adds the one that the stream needs.
    let other = second()?;
    let (mut gateway, folder_a) = link.start_a(&empty(&a, other.clone()))?;
    let (mut peer, folder_b) = link.start_b(&empty(&b, other.mirrored()))?;
    a.write(&folder_a)?;
    gateway.reload()?;
    b.write(&folder_b)?;
    peer.reload()?;
    let stream = Stream::start((&link.a, "10.1.0.1"), (&link.b, "10.2.0.1"))?;
    stream.flows(20)?;
    let (sent, lost) = stream.end()?;
    ensure(lost.is_empty(), || format!("of {sent} datagrams these were lost: {lost:?}"))?;
    gateway.stop()?;
    peer.stop()
}

/// The configuration is a pipe: the gateway starts, and reloads, when the test writes to it.
fn reloads_after_the_start(link: &mut Link) -> TestResult {
    let [config, _] = pair(true)?;
    let folder = link.prepare(&config)?;
    let (text, pipe) = (fs::read(folder.join(CONFIGURATION))?, folder.join("pipe"));
    ensure(Command::new("mkfifo").arg(&pipe).status()?.success(), || "no pipe".to_owned())?;
    let mut command = link.a.command(PROGRAM);
    command.arg("run").arg(&pipe);
    let mut gateway = Gateway::spawn(command, &folder)?;
    wait::until("for SIGHUP to be caught", || {
        let status = proc_file(gateway.process(), "status")?;
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:\t")).ok_or("no SigCgt")?;
        Ok((u64::from_str_radix(caught, 16)? & 1 == 1).then_some(()))
    })?;
    gateway.signal(Signal::HUP)?;
    fs::write(&pipe, &text)?;
    gateway.hears("READY=1")?;
    gateway.hears("RELOADING=1")?;
    fs::write(&pipe, &text)?;
    gateway.hears("READY=1")?;
    gateway.stop()
}

//! Start and end of a gateway, and what it keeps in between.

use crate::support::config::{CONFIGURATION, Config, pair};
use crate::support::gateway::{Gateway, PROGRAM, proc_file};
use crate::support::link::Link;
use crate::support::{Outcome, ensure, wait};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::traffic::ping;

pub fn tests<'a>(suite: Suite<'a, Link>) -> Suite<'a, Link> {
    suite
        .test("systemd_hears_ready_reloading_and_stopping", tells_systemd)
        .test("sigterm_and_sigint_end_the_gateway_cleanly_and_remove_its_socket", ends_well)
        .test("lifetimes_continue_across_restarts_and_reloads", goes_on_with_lifetimes)
        .test("a_kill_forgets_no_more_of_a_lifetime_than_came_since_the_last_save", forgets_little)
        .test("the_highest_received_number_is_shown_after_a_restart", shows_the_restored_window)
        .test("a_stale_control_socket_is_replaced", replaces_a_stale_socket)
        .test("the_control_socket_is_the_owners_alone", keeps_others_out)
        .test("the_owner_may_query_from_outside_the_gateways_namespaces", answers_outside)
        .test("an_interface_that_comes_up_again_has_its_addresses_and_routes", restores_the_interface)
        .test("the_gateway_keeps_one_capability_and_leaves_no_core", gives_up_privileges)
        .test("a_missing_system_call_filter_is_logged", says_that_nothing_is_filtered)
        .test("keys_appear_nowhere", keeps_secrets)
}

fn tells_systemd(link: &mut Link) -> TestResult {
    let [config, _] = pair(true)?;
    let (mut gateway, _) = link.start_a(&config)?;
    gateway.signal(Signal::HUP)?;
    gateway.hears("RELOADING=1")?;
    gateway.hears("MONOTONIC_USEC=")?;
    gateway.hears("READY=1")?;
    // `stop` waits for STOPPING=1.
    gateway.stop()
}

fn ends_well(link: &mut Link) -> TestResult {
    let [config, _] = pair(true)?;
    let folder = link.prepare(&config)?;
    for signal in [Signal::TERM, Signal::INT] {
        let gateway = Gateway::start(&link.a, &folder)?;
        ensure(folder.join("control.sock").exists(), || "there is no control socket".to_owned())?;
        gateway.ended_by(signal)?;
        ensure(!folder.join("control.sock").exists(), || "the control socket is still there".to_owned())?;
        let interfaces = link.a.run(&["ip", "-o", "link"])?;
        ensure(!interfaces.contains("testudo0"), || interfaces)?;
    }
    Ok(())
}

/// A configuration whose keys last for 20 packets, and the peer's.
fn short_lived() -> Outcome<[Config; 2]> {
    let mut configs = pair(true)?;
    configs[0].tunnels[0].more = "lifetime = { hard_packets = 20 }".to_owned();
    Ok(configs)
}

/// Checks that so many pings from A are answered.
fn passes(link: &Link, count: u16) -> Outcome<()> {
    let trips = ping(&link.a, "10.2.0.1".parse()?, count, wait::PATIENCE)?;
    ensure(trips.lost == 0, || format!("{} of {count} were lost", trips.lost))
}

fn goes_on_with_lifetimes(link: &mut Link) -> TestResult {
    let [mut a, b] = short_lived()?;
    let (peer, _) = link.start_b(&b)?;
    let (gateway, folder) = link.start_a(&a)?;
    let pass = |count| passes(link, count);
    let expires_after = |gateway: &Gateway, packets: u64| {
        let expired = || {
            let sa = gateway.sa("a-b", "outbound")?;
            Ok((sa["state"] == "expired" && sa["packets"] == packets).then_some(()))
        };
        wait::until(&format!("for an end after {packets} packets"), expired)
    };
    pass(8)?;
    gateway.stop()?;
    let mut gateway = Gateway::start(&link.a, &folder)?;
    pass(7)?;
    // Another window size makes another SA under the same key.
    a.tunnels[0].more += "\nreplay_window = 128";
    a.write(&folder)?;
    gateway.reload()?;
    pass(5)?;
    expires_after(&gateway, 5)?;
    gateway.stop()?;
    let gateway = Gateway::start(&link.a, &folder)?;
    expires_after(&gateway, 0)?;
    gateway.stop()?;
    peer.stop()
}

fn forgets_little(link: &mut Link) -> TestResult {
    let [a, b] = short_lived()?;
    let (peer, _) = link.start_b(&b)?;
    let (gateway, folder) = link.start_a(&a)?;
    passes(link, 8)?;
    gateway.stop()?;
    let gateway = Gateway::start(&link.a, &folder)?;
    passes(link, 7)?;
    gateway.kill()?;
    // The stop saved 8; of the 7 packets after it, any number may have been saved.
    let gateway = Gateway::start(&link.a, &folder)?;
    let passed = wait::until("for an end", || {
        ping(&link.a, "10.2.0.1".parse()?, 1, Duration::from_millis(200))?;
        let sa = gateway.sa("a-b", "outbound")?;
        Ok((sa["state"] == "expired").then(|| sa["packets"].as_u64()))
    })?;
    let passed = passed.ok_or("no packets")?;
    ensure((5..=12).contains(&passed), || format!("{passed} packets passed after the kill"))?;
    gateway.stop()?;
    peer.stop()
}

fn shows_the_restored_window(link: &mut Link) -> TestResult {
    let [a, b] = pair(true)?;
    let (peer, _) = link.start_b(&b)?;
    let (gateway, folder) = link.start_a(&a)?;
    passes(link, 5)?;
    ensure(gateway.sa("a-b", "inbound")?["sequence"] == 5, || "five packets were received".to_owned())?;
    gateway.stop()?;
    let gateway = Gateway::start(&link.a, &folder)?;
    let sa = gateway.sa("a-b", "inbound")?;
    ensure(sa["sequence"].as_u64() >= Some(5) && sa["packets"] == 0, || format!("{sa:#}"))?;
    gateway.stop()?;
    peer.stop()
}

fn replaces_a_stale_socket(link: &mut Link) -> TestResult {
    let [config, _] = pair(true)?;
    let (gateway, folder) = link.start_a(&config)?;
    gateway.kill()?;
    ensure(folder.join("control.sock").exists(), || "a killed gateway removed its socket".to_owned())?;
    let gateway = Gateway::start(&link.a, &folder)?;
    gateway.ask_json(&["status"])?;
    gateway.stop()
}

/// Whether another user is refused can only be tested if there is one, and the private namespaces have one
/// user.
fn keeps_others_out(link: &mut Link) -> TestResult {
    let [mut config, _] = pair(true)?;
    config.control = "made/for/it/control.sock".to_owned();
    let (gateway, folder) = link.start_a(&config)?;
    let mode =
        |name: &str| -> Outcome<u32> { Ok(fs::metadata(folder.join(name))?.permissions().mode() & 0o777) };
    let modes = [mode("made/for/it/control.sock")?, mode("made/for/it")?, mode("made")?, mode("state.redb")?];
    ensure(modes == [0o600, 0o700, 0o700, 0o600], || format!("modes {modes:?}"))?;
    gateway.stop()
}

/// A client outside the gateway's PID namespace has no process ID in it.
fn answers_outside(link: &mut Link) -> TestResult {
    let [config, _] = pair(true)?;
    let folder = link.prepare(&config)?;
    let mut command = link.a.command("unshare");
    command.args(["--pid", "--fork", "--kill-child", PROGRAM, "run"]).arg(folder.join(CONFIGURATION));
    let mut gateway = Gateway::spawn(command, &folder)?;
    gateway.hears("READY=1")?;
    let status = gateway.ask_json(&["status"])?;
    ensure(status["tunnels"] == 1, || format!("{status:#}"))?;
    // The child process is `unshare`, which ends with the gateway.
    let parent = gateway.process();
    let child = proc_file(parent, &format!("task/{parent}/children"))?.trim().parse()?;
    kill_process(Pid::from_raw(child).ok_or("no child")?, Signal::TERM)?;
    wait::until("for the end of the gateway", || Ok(gateway.is_alive().is_err().then_some(())))
}

fn restores_the_interface(link: &mut Link) -> TestResult {
    let [mut a, b] = pair(true)?;
    a.addresses.push("fd00:7::1/64".to_owned());
    let (peer, _) = link.start_b(&b)?;
    let (mut gateway, _) = link.start_a(&a)?;
    passes(link, 3)?;
    let state = |link: &Link| -> Outcome<[String; 3]> {
        let show = |words: &[&str]| link.a.run(words);
        Ok([
            show(&["ip", "-4", "-o", "address", "show", "dev", "testudo0"])?,
            show(&["ip", "-6", "-o", "address", "show", "dev", "testudo0", "scope", "global"])?,
            show(&["ip", "-4", "route", "show", "dev", "testudo0"])?,
        ])
    };
    let before = state(link)?;
    ensure(before.iter().all(|text| !text.is_empty()), || format!("{before:?}"))?;
    for round in 1..=2 {
        link.a.run(&["ip", "link", "set", "testudo0", "down"])?;
        ensure(state(link)?[2].is_empty(), || "the routes are still there".to_owned())?;
        link.a.run(&["ip", "link", "set", "testudo0", "up"])?;
        let counted = |text: &str| gateway.log().matches(text).count();
        wait::until("for the line on the interface", || {
            Ok((counted("testudo0 is up again, with its addresses (2) and routes (1)") == round)
                .then_some(()))
        })?;
        ensure(counted("testudo0 was taken down") == round, || gateway.log())?;
        ensure(state(link)? == before, || format!("{before:?} became {:?}", state(link)))?;
        passes(link, 3)?;
    }
    gateway.is_alive()?;
    gateway.stop()?;
    peer.stop()
}

fn gives_up_privileges(link: &mut Link) -> TestResult {
    const NET_ADMIN: &str = "0000000000001000";
    let [mut config, _] = pair(true)?;
    config.gateway = "metrics = \"127.0.0.1:9468\"".to_owned();
    let (gateway, _) = link.start_a(&config)?;
    let process = gateway.process();
    let mut threads = 0;
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        let status = fs::read_to_string(thread?.path().join("status"))?;
        let field =
            |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("?").trim();
        ensure(field("CapEff:") == NET_ADMIN && field("CapPrm:") == NET_ADMIN, || status.clone())?;
        ensure(field("CapInh:") == "0000000000000000" && field("NoNewPrivs:") == "1", || status.clone())?;
        ensure(field("CapBnd:") == NET_ADMIN && field("CapAmb:") == "0000000000000000", || status.clone())?;
        // A filter is installed; three of them.
        ensure(field("Seccomp:") == "2" && field("Seccomp_filters:") == "3", || status.clone())?;
        threads += 1;
    }
    ensure(threads >= 4, || format!("{threads} threads: worker, control and metrics were to be among them"))?;
    let limits = proc_file(process, "limits")?;
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap_or("?");
    ensure(core.split_whitespace().skip(4).take(2).eq(["0", "0"]), || core.to_owned())?;
    // No process of the same user can read its memory: files of a process that is not dumpable belong to
    // root, outside.
    let owner = std::os::unix::fs::MetadataExt::uid(&fs::metadata(format!("/proc/{process}/mem"))?);
    let own = rustix::process::geteuid().as_raw();
    ensure(owner != own || own == 0, || format!("/proc/{process}/mem belongs to {owner}"))?;
    gateway.stop()
}

fn says_that_nothing_is_filtered(link: &mut Link) -> TestResult {
    let [mut config, _] = pair(true)?;
    config.gateway = "seccomp = false".to_owned();
    let (gateway, _) = link.start_a(&config)?;
    let log = gateway.logs("seccomp = false: the system calls of the gateway are not filtered")?;
    ensure(log.contains("WARN"), || log.clone())?;
    let status = proc_file(gateway.process(), "status")?;
    ensure(status.contains("\nSeccomp:\t0\n"), || status.clone())?;
    gateway.stop()
}

fn keeps_secrets(link: &mut Link) -> TestResult {
    let [mut config, other] = pair(true)?;
    config.gateway = "metrics = \"127.0.0.1:9468\"\nlog = \"debug\"".to_owned();
    let (mut gateway, folder) = link.start_a(&config)?;
    let (peer, _) = link.start_b(&other)?;
    ping(&link.a, "10.2.0.1".parse()?, 3, wait::PATIENCE)?;
    let mut said = String::new();
    for words in [&["status"][..], &["sa", "list"], &["policy", "list"], &["explain", "10.1.0.1", "10.2.0.1"]]
    {
        for json in [&[][..], &["--json"]] {
            let answer = gateway.ask(&[words, json].concat())?;
            said += &(answer.stdout + &answer.stderr);
        }
    }
    said += &super::inspection::scrape(&link.a)?;
    said += &proc_file(gateway.process(), "cmdline")?;
    // A malformed key is not quoted either.
    let mut spoiled = config.clone();
    spoiled.tunnels[0].outbound.key.replace_range(10..11, "x");
    spoiled.write(&folder)?;
    gateway.reload()?;
    spoiled.tunnels[0].outbound.key.truncate(20);
    spoiled.write(&folder)?;
    gateway.reload()?;
    said += &gateway.logs("reload failed")?;
    gateway.stop()?;
    peer.stop()?;
    let lower = said.to_lowercase();
    for key in config.keys() {
        // Even eight consecutive bytes would be too many.
        let shown = (0..=key.len() - 16).find(|&at| lower.contains(&key[at..at + 16]));
        ensure(shown.is_none(), || format!("a part of the key {key} is in:\n{said}"))?;
    }
    Ok(())
}

//! The gateway as its unit file runs it: as a user other than root, with two ambient capabilities.

use crate::support::config::{CONFIGURATION, Sa, Tunnel, pair, write_private};
use crate::support::gateway::{Gateway, PROGRAM, init, proc_file};
use crate::support::link::Link;
use crate::support::{Outcome, ensure, wait};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use testudo_judge::harness::{Suite, TestResult};

pub fn tests<'a>(suite: Suite<'a, Link>) -> Suite<'a, Link> {
    suite
        .test("a_user_with_two_capabilities_can_run_a_gateway_and_reload_keys", runs_as_a_user)
        .test("systemds_watchdog_hears_that_the_worker_answers", feeds_the_watchdog)
        .test("a_key_that_the_services_user_may_not_read_is_reported_with_the_fix", tells_of_closed_keys)
}

/// The capabilities of the unit file.
const TWO: &str = "+net_admin,+net_raw";
/// The user's ID in its namespace. It is the only user there, which needs no privileges outside.
const USER: &str = "1000";

/// A command that runs the gateway of `folder` as the service: in its own user and network namespaces, where
/// its user has only the two capabilities. Root of the outer namespace has added an address first.
fn as_service(folder: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-user", USER, "--map-group", USER, "--keep-caps", "--net"]);
    let ready = "ip link set lo up && ip address add 192.0.2.1/32 dev lo && exec setpriv \"$@\"";
    command.args(["sh", "-c", ready, "sh", "--no-new-privs"]);
    for set in ["--bounding-set", "--inh-caps", "--ambient-caps"] {
        command.arg(format!("{set}=-all,{TWO}"));
    }
    command.args([PROGRAM, "run"]).arg(folder.join(CONFIGURATION));
    command
}

/// The routes in the gateway's own network namespace.
fn routes_of(process: u32) -> Outcome<String> {
    let mut command = Command::new("nsenter");
    command.args([
        "--preserve-credentials",
        "--user",
        "--net",
        "--target",
        &process.to_string(),
        "ip",
        "route",
    ]);
    let output = wait::output(&mut command)?;
    ensure(output.status.success(), || String::from_utf8_lossy(&output.stderr).into_owned())?;
    Ok(String::from_utf8(output.stdout)?)
}

fn second() -> Outcome<Tunnel> {
    let [config, _] = pair(true)?;
    let mut tunnel = config.tunnels.into_iter().next().ok_or("no tunnel")?;
    tunnel.name = "second".to_owned();
    tunnel.selectors = vec![("10.1.0.1".to_owned(), "10.9.0.0/24".to_owned())];
    tunnel.outbound = Sa::random(0x2001, &tunnel.suite)?;
    tunnel.inbound = Sa::random(0x2002, &tunnel.suite)?;
    Ok(tunnel)
}

fn runs_as_a_user(link: &mut Link) -> TestResult {
    let [mut config, _] = pair(true)?;
    config.gateway = "metrics = \"127.0.0.1:9468\"".to_owned();
    let folder = link.prepare(&config)?;
    let mut gateway = Gateway::spawn(as_service(&folder), &folder)?;
    gateway.hears("READY=1")?;
    let status = proc_file(gateway.process(), "status")?;
    let has =
        |line: &str| ensure(status.lines().any(|found| found == line), || format!("no {line}: {status}"));
    has("NoNewPrivs:\t1")?;
    has("Seccomp:\t2")?;
    has("CapPrm:\t0000000000001000")?;
    has("CapAmb:\t0000000000000000")?;
    // What systemd (here: setpriv) bounds it to.
    has("CapBnd:\t0000000000003000")?;
    let before = gateway.sa("a-b", "outbound")?;
    // A new key for one tunnel, and another tunnel with a route.
    config.tunnels[0].outbound = Sa::random(0x1003, &config.tunnels[0].suite)?;
    config.tunnels.push(second()?);
    config.write(&folder)?;
    gateway.reload()?;
    let after = gateway.sa("a-b", "outbound")?;
    ensure(before["spi"] != after["spi"], || format!("{before:#}, then {after:#}\n{}", gateway.log()))?;
    gateway.sa("second", "inbound")?;
    let routes = routes_of(gateway.process())?;
    ensure(routes.contains("10.9.0.0/24 dev testudo0"), || routes.clone())?;
    gateway.stop()
}

fn feeds_the_watchdog(link: &mut Link) -> TestResult {
    let [config, _] = pair(true)?;
    let folder = link.prepare(&config)?;
    let mut command = crate::support::gateway::run_command(&link.a, &folder);
    command.env("WATCHDOG_USEC", "400000");
    let mut gateway = Gateway::spawn(command, &folder)?;
    gateway.hears("READY=1")?;
    for _ in 0..3 {
        gateway.hears("WATCHDOG=1")?;
    }
    gateway.stop()
}

/// A file of root's in the service's folder, as created under `umask 077`.
fn tells_of_closed_keys(link: &mut Link) -> TestResult {
    let [config, _] = pair(true)?;
    let folder = link.write(&config)?;
    init(&folder)?;
    let key = folder.join("1001.key");
    write_private(&key, &config.tunnels[0].outbound.key)?;
    fs::set_permissions(&key, fs::Permissions::from_mode(0o000))?;
    let output = wait::output(&mut as_service(&folder))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let way_out = format!("chgrp testudo {0} && chmod 640 {0}", key.display());
    ensure(output.status.code() == Some(2) && said.contains(&way_out), || said.clone())
}

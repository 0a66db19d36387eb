//! Rules that follow the policies of a running gateway, which `testudo policy` changes.

use crate::site::{HOST, REMOTE, Rules, Site, expect, hears, socket};
use crate::support::config::{CONFIGURATION, Config};
use crate::support::gateway::{Gateway, PROGRAM, Said};
use crate::support::link::LINK;
use crate::support::{Outcome, ensure, wait};
use std::net::SocketAddr;
use std::path::Path;
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::namespaces::Namespace;

pub fn tests<'a>(suite: Suite<'a, Site>) -> Suite<'a, Site> {
    suite
        .test("rules_follow_policies_that_are_added_and_deleted_while_a_gateway_runs", follows_policies)
        .test("rules_that_cannot_follow_a_policy_are_told_of_and_fail_the_command", says_what_is_left)
        .test("a_host_without_rules_gets_none_with_a_policy", loads_nothing)
}

const PORT: u16 = 7788;
/// Exit code of a device, port or permission.
const PORT_IS_WRONG: i32 = 4;

/// A gateway that may bypass: its sockets for that are open from the start.
fn config(site: &Site) -> Outcome<Config> {
    let mut config = site.config()?;
    config.unprotected = format!("interface = \"{LINK}\"");
    config.policies =
        "[[policy]]\naction = \"bypass\"\nprotocol = \"udp\"\nremote = \"203.0.113.1\"\n".to_owned();
    Ok(config)
}

/// `testudo policy` on the gateway's host.
fn policy(a: &Namespace, folder: &Path, words: &[&str]) -> Outcome<Said> {
    let mut command = a.command(PROGRAM);
    command.arg("policy").args(words).arg("--control").arg(folder.join("control.sock"));
    Ok(wait::output(&mut command)?.into())
}

fn changed(a: &Namespace, folder: &Path, words: &[&str]) -> Outcome<()> {
    let said = policy(a, folder, words)?;
    ensure(said.code == Some(0) && said.stderr.is_empty(), || format!("{words:?}: {said:#?}"))
}

/// Whether clear packets of the remote network to a host of the site arrive; those of the outer host do.
fn arrives_in_clear(site: &Site) -> Outcome<bool> {
    let ours = socket(&site.host, HOST[0], PORT)?;
    let (remote, honest) = (socket(&site.link.b, REMOTE[0], PORT)?, socket(&site.link.b, "192.0.2.2", 0)?);
    let to = SocketAddr::new(HOST[0].parse()?, PORT);
    remote.send_to(b"clear", to)?;
    honest.send_to(b"honest", to)?;
    let others = hears(&ours, b"honest", "192.0.2.2".parse()?)?;
    Ok(others.iter().any(|(bytes, _)| bytes == b"clear"))
}

fn rules(a: &Namespace) -> Outcome<String> {
    // Without what rules have counted.
    Ok(a.run(&["nft", "-s", "list", "ruleset"])?)
}

fn follows_policies(site: &mut Site) -> TestResult {
    let config = config(site)?;
    let protected = site.protected(&config)?;
    let folder = &protected.folder;
    let mut gateway = Gateway::start(&site.link.a, folder)?;
    let a = &site.link.a;
    ensure(!arrives_in_clear(site)?, || "the rules let a clear packet pass".to_owned())?;
    let before = rules(a)?;
    let udp = format!("--remote-ports={PORT}");
    let bypass = ["add", "--action=bypass", "--name=clear", "--protocol=udp", "--remote=10.2.0.0/16", &udp];
    changed(a, folder, &bypass)?;
    ensure(arrives_in_clear(site)?, || format!("the rules do not know the policy:\n{before}"))?;
    // A discarded network is dropped by any way, and has no route to be found by.
    changed(a, folder, &["add", "--action=discard", "--remote=10.66.0.0/16"])?;
    ensure(rules(a)?.contains("10.66.0.0/16"), || "the rules do not know the discarded network".to_owned())?;
    let protect = ["add", "--action=protect", "--tunnel=a-b", "--local=10.1.0.0/16", "--remote=10.77.0.0/16"];
    changed(a, folder, &protect)?;
    let routes = a.run(&["ip", "route", "show", "type", "unreachable"])?;
    ensure(routes.contains("10.77.0.0/16"), || format!("no fallback route: {routes}"))?;
    let printed = expect(a, folder, &["--running"])?;
    ensure(printed.contains("policy clear: bypass") && printed.contains("10.66.0.0/16"), || printed.clone())?;
    ensure(!expect(a, folder, &[])?.contains("policy clear"), || "the file's rules changed".to_owned())?;
    changed(a, folder, &["delete", "clear"])?;
    ensure(!arrives_in_clear(site)?, || "a deleted policy lets clear packets pass".to_owned())?;
    // A reload puts the file in force again, and the unit loads its rules.
    expect(a, folder, &["--apply"])?;
    gateway.reload()?;
    gateway.logs("are undone: those of the file are in force")?;
    let after = rules(a)?;
    ensure(after == before, || format!("{before}\nand then\n{after}"))?;
    let routes = a.run(&["ip", "route", "show", "type", "unreachable"])?;
    ensure(!routes.contains("10.77.0.0/16"), || format!("the fallback route is left: {routes}"))?;
    gateway.stop()
}

fn says_what_is_left(site: &mut Site) -> TestResult {
    let config = config(site)?;
    let protected = site.protected(&config)?;
    let folder = &protected.folder;
    let gateway = Gateway::start(&site.link.a, folder)?;
    // From another network namespace the gateway's rules can be neither seen nor changed.
    let said = gateway.ask(&["policy", "add", "--action=discard", "--remote=10.66.0.0/16", "--name=far"])?;
    let is_warned = said.stderr.contains("the gateway is in another network namespace");
    ensure(said.code == Some(0) && is_warned, || format!("{said:#?}"))?;
    ensure(!rules(&site.link.a)?.contains("10.66.0.0/16"), || "the rules have changed".to_owned())?;
    let mut powerless = site.link.a.command("setpriv");
    powerless.args(["--bounding-set=-all", "--inh-caps=-all", PROGRAM, "policy", "delete", "far"]);
    let said: Said = wait::output(powerless.arg(folder.join(CONFIGURATION)))?.into();
    said.refused(PORT_IS_WRONG, "policy far is deleted, but the firewall's rules are as before")?;
    ensure(said.stderr.contains("--running --apply"), || format!("{said:#?}"))?;
    let list = gateway.ask(&["policy", "list"])?;
    ensure(!list.stdout.contains("far"), || format!("{list:#?}"))?;
    gateway.stop()
}

fn loads_nothing(site: &mut Site) -> TestResult {
    let config = config(site)?;
    let (gateway, folder) = site.link.start_a(&config)?;
    changed(&site.link.a, &folder, &["add", "--action=discard", "--remote=10.66.0.0/16"])?;
    let found = rules(&site.link.a)?;
    ensure(!found.contains("testudo"), || found.clone())?;
    // It can be told to.
    let rules = Rules { namespace: site.link.a.name().to_owned(), folder };
    let said = expect(&site.link.a, &rules.folder, &["--running", "--apply"])?;
    ensure(said.contains("loaded: table inet testudo-testudo0"), || said.clone())?;
    ensure(self::rules(&site.link.a)?.contains("10.66.0.0/16"), || "they are not loaded".to_owned())?;
    gateway.stop()
}

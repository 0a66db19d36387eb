//! Policies that are added, replaced and deleted while a gateway runs.

use crate::support::config::pair;
use crate::support::gateway::Gateway;
use crate::support::link::Link;
use crate::support::{Outcome, ensure};
use serde_json::Value;
use std::time::Duration;
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::traffic::ping;

pub fn tests<'a>(suite: Suite<'a, Link>) -> Suite<'a, Link> {
    suite
        .test("policies_come_and_go_while_a_gateway_runs", come_and_go)
        .test("a_policy_added_to_a_running_gateway_protects_and_is_routed", protects)
        .test("a_reload_puts_the_policies_of_the_file_in_force", is_undone_by_a_reload)
        .test("a_policy_that_cannot_be_added_is_refused_in_words", refuses)
}

const PATIENCE: Duration = Duration::from_secs(5);
/// Long enough for a ping that passes, on a busy machine.
const SHORT: Duration = Duration::from_secs(1);

fn policies(gateway: &Gateway) -> Outcome<Vec<String>> {
    let list = gateway.ask_json(&["policy", "list"])?;
    let origins = list.as_array().into_iter().flatten().map(|row| &row["origin"]);
    Ok(origins.filter_map(Value::as_str).map(str::to_owned).collect())
}

/// Asks for a change that is to be made, and returns what is said.
fn change(gateway: &Gateway, words: &[&str]) -> Outcome<String> {
    let said = gateway.ask(&[&["policy"], words].concat())?;
    ensure(said.code == Some(0), || format!("{words:?}: {said:#?}"))?;
    Ok(said.stdout)
}

/// How many of some pings are answered.
fn answered(link: &Link, count: u16, patience: Duration) -> Outcome<usize> {
    let lost = ping(&link.a, "10.2.0.1".parse()?, count, patience)?.lost;
    Ok(usize::from(count) - lost)
}

fn come_and_go(link: &mut Link) -> TestResult {
    let [a, b] = pair(true)?;
    let (gateway, _) = link.start_a(&a)?;
    let (peer, _) = link.start_b(&b)?;
    ensure(answered(link, 3, PATIENCE)? == 3, || "no ping at first".to_owned())?;
    let no_pings = ["add", "--action=discard", "--name=no-pings", "--protocol=icmp", "--types=echo-request"];
    let said = change(&gateway, &no_pings)?;
    ensure(said.contains("policy no-pings is in force, until the next reload"), || said.clone())?;
    ensure(answered(link, 2, SHORT)? == 0, || "a ping passes a policy that discards it".to_owned())?;
    let why =
        gateway.ask_json(&["explain", "10.1.0.1", "10.2.0.1", "--protocol=icmp", "--type=echo-request"])?;
    ensure(why["policy"]["origin"] == "policy no-pings", || format!("{why:#}"))?;
    // In front of it, without a name.
    let protect = ["add", "--action=protect", "--tunnel=a-b", "--remote=10.2.0.1", "--before=no-pings"];
    let said = change(&gateway, &protect)?;
    ensure(said.contains("policy 2 is in force"), || said.clone())?;
    ensure(answered(link, 3, PATIENCE)? == 3, || "the policy in front of it does not decide".to_owned())?;
    ensure(policies(&gateway)?[..2] == ["policy 2", "policy no-pings"], || "another order".to_owned())?;
    change(&gateway, &["replace", "2", "--action=discard", "--remote=10.2.0.1"])?;
    ensure(answered(link, 2, SHORT)? == 0, || "the policy was not replaced".to_owned())?;
    change(&gateway, &["delete", "2"])?;
    change(&gateway, &["delete", "no-pings"])?;
    ensure(answered(link, 3, PATIENCE)? == 3, || "deleted policies decide".to_owned())?;
    ensure(policies(&gateway)?.iter().all(|origin| origin.starts_with("tunnel")), || {
        "one is left".to_owned()
    })?;
    gateway.stop()?;
    peer.stop()
}

/// The SA delivers what the new policy names (RFC 4301 5.2), and its network is routed.
fn protects(link: &mut Link) -> TestResult {
    let [a, b] = pair(true)?;
    let (gateway, _) = link.start_a(&a)?;
    let (peer, _) = link.start_b(&b)?;
    link.b.address("lo", "10.7.0.1/32")?;
    let routed = "10.7.0.1".parse()?;
    let pings = |patience| ping(&link.a, routed, 2, patience);
    change(
        &gateway,
        &["add", "--action=protect", "--tunnel=a-b", "--local=10.1.0.1", "--remote=10.7.0.0/24"],
    )?;
    let mirrored = ["add", "--action=protect", "--tunnel=a-b", "--local=10.7.0.0/24", "--remote=10.1.0.1"];
    change(&peer, &mirrored)?;
    let routes = link.a.run(&["ip", "route", "show", "10.7.0.0/24"])?;
    ensure(routes.contains("testudo0"), || format!("no route: {routes}"))?;
    ensure(pings(PATIENCE)?.lost == 0, || "a ping through the new policy is lost".to_owned())?;
    change(&gateway, &["delete", "1"])?;
    let routes = link.a.run(&["ip", "route", "show", "10.7.0.0/24"])?;
    ensure(routes.trim().is_empty(), || format!("the route is left: {routes}"))?;
    link.b.run(&["ip", "address", "del", "10.7.0.1/32", "dev", "lo"])?;
    gateway.stop()?;
    peer.stop()
}

fn is_undone_by_a_reload(link: &mut Link) -> TestResult {
    let [mut a, _] = pair(true)?;
    a.policies = "[[policy]]\nname = \"mail\"\naction = \"discard\"\nprotocol = \"tcp\"\nremote_ports = 25\n"
        .to_owned();
    let (mut gateway, _) = link.start_a(&a)?;
    let tunnel = policies(&gateway)?.split_off(1);
    change(&gateway, &["add", "--action=discard", "--protocol=tcp", "--remote-ports=80", "--after=mail"])?;
    change(&gateway, &["delete", "mail"])?;
    ensure(policies(&gateway)?[0] == "policy 2", || "it was not added".to_owned())?;
    gateway.reload()?;
    let expected = [vec!["policy mail".to_owned()], tunnel].concat();
    let found = policies(&gateway)?;
    ensure(found == expected, || format!("{found:?}"))?;
    let log = gateway.log();
    ensure(log.contains("2 changes of policies while it ran are undone"), || log.clone())?;
    gateway.stop()
}

fn refuses(link: &mut Link) -> TestResult {
    let [a, _] = pair(true)?;
    let (gateway, _) = link.start_a(&a)?;
    change(&gateway, &["add", "--action=discard", "--name=web", "--protocol=tcp", "--remote-ports=80,443"])?;
    let before = policies(&gateway)?;
    let web = ["add", "--action=discard", "--protocol=tcp"];
    let with = |more: &[&'static str]| [&web[..], more].concat();
    for (words, expected) in [
        (with(&["--remote-ports=443"]), "covers; the first match wins: put it in front, with --before web"),
        (with(&["--remote-ports=70000"]), "remote_ports: expected a port such as"),
        (with(&["--remote-ports=25", "--before=wep"]), "did you mean `web`?"),
        (with(&["--remote-ports=25", "--name=web"]), "a name that no other policy has"),
        (vec!["add", "--action=protect", "--remote=10.9.0.0/24"], "the key `tunnel`"),
        (vec!["add", "--action=protect", "--tunnel=a-c", "--remote=10.9.0.0/24"], "did you mean `a-b`?"),
        (vec!["add", "--action=discrad"], "did you mean `discard`?"),
        (vec!["add", "--action=bypass", "--remote=10.9.0.0/24"], "`interface` in [port.unprotected]"),
        (vec!["delete", "7"], "there is no policy \"7\""),
    ] {
        let said = gateway.ask(&[&["policy"], &words[..]].concat())?;
        let is_told = said.code != Some(0) && said.stderr.contains(expected);
        ensure(is_told, || format!("{words:?} lacks {expected:?}: {said:#?}"))?;
    }
    ensure(policies(&gateway)? == before, || "something was changed all the same".to_owned())?;
    gateway.stop()
}

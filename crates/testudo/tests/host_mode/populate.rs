//! Tunnels of single flows, populated from packets (RFC 4301 4.4.1.2): a packet asks, `sa wanted` says so,
//! and `sa add --for` answers.

use crate::support::config::{Config, Sa, pair, write_private};
use crate::support::gateway::{Gateway, Said};
use crate::support::link::Link;
use crate::support::{Outcome, ensure, wait};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::traffic::ping;

const SUITE: &str = "aes128gcm16";
const PATIENCE: Duration = Duration::from_secs(5);
/// Long enough for a ping that passes, on a busy machine.
const SHORT: Duration = Duration::from_secs(1);
/// Behind B, beside the network of its tunnel.
const HOSTS: [&str; 2] = ["10.7.0.1", "10.7.0.2"];

pub fn tests<'a>(suite: Suite<'a, Link>) -> Suite<'a, Link> {
    suite
        .test("each_flow_gets_an_sa_of_its_own_when_it_asks_for_one", each_has_its_own)
        .test("the_tunnel_of_a_flow_ends_with_its_last_sa_and_the_flow_asks_again", ends_and_asks_again)
        .test("tunnels_of_flows_outlive_a_reload_that_leaves_their_policy", outlive_a_reload)
        .test("what_cannot_be_added_for_a_flow_is_told", refuses)
}

/// A's policy: an SA for each host behind B.
const OF_A: &str = "[[policy]]\nname = \"hosts\"\naction = \"protect\"\ntunnel = \"a-b\"\nlocal = \"10.1.0.1\"\n\
                    remote = \"10.7.0.0/24\"\npopulate_from_packet = \"remote\"\n";

/// Both gateways with policies for each other.
fn ends() -> Outcome<[Config; 2]> {
    let [mut a, mut b] = pair(true)?;
    a.policies = OF_A.to_owned();
    b.policies = OF_A
        .replace("local =", "remot =")
        .replace("remote =", "local =")
        .replace("remot =", "remote =")
        .replace("\"remote\"", "\"local\"");
    Ok([a, b])
}

/// Answered pings to a host.
fn answered(link: &Link, host: &str, count: u16, patience: Duration) -> Outcome<usize> {
    let lost = ping(&link.a, host.parse()?, count, patience)?.lost;
    Ok(usize::from(count) - lost)
}

/// Gives a host behind B its address; an earlier test may have left it there.
fn attach(link: &Link, host: &str) -> Outcome<()> {
    let _ = link.b.run(&["ip", "address", "del", &format!("{host}/32"), "dev", "lo"]);
    Ok(link.b.address("lo", &format!("{host}/32"))?)
}

/// What a gateway's packets ask for: the values of each flow.
fn wanted(gateway: &Gateway) -> Outcome<Vec<Value>> {
    let list = gateway.ask_json(&["sa", "wanted"])?;
    Ok(list.as_array().into_iter().flatten().map(|row| row["for"].clone()).collect())
}

fn wants(gateway: &Gateway, host: &str) -> Outcome<()> {
    wait::until(&format!("for an SA for {host} to be wanted"), || {
        Ok(wanted(gateway)?.contains(&json!({ "remote": host })).then_some(()))
    })
}

/// Adds a pair of SAs for a flow; `more` words come after those that it always needs.
fn add(
    gateway: &Gateway,
    folder: &Path,
    flow: &str,
    (inbound, outbound): (&Sa, &Sa),
    more: &[&str],
) -> Outcome<Said> {
    let file = folder.join("flow.keys");
    write_private(&file, &format!("{}\n\n{}\n", inbound.key, outbound.key))?;
    let spis = [inbound, outbound].map(|sa| format!("{:#x}", sa.spi));
    let file = file.to_string_lossy();
    let words = ["sa", "add", "a-b", "--for", flow, "--inbound", &spis[0], "--outbound", &spis[1]];
    gateway.ask(&[&words[..], &["--key-file", &file], more].concat())
}

/// SAs for a host at both ends, under fresh keys; returns the name of the tunnel at A.
fn answer(ends: [(&Gateway, &Path); 2], host: &str, number: u32) -> Outcome<String> {
    let (there, back) = (Sa::random(0x3000 + 2 * number, SUITE)?, Sa::random(0x3001 + 2 * number, SUITE)?);
    let mut names = Vec::new();
    for ((gateway, folder), field, sas) in
        [(ends[0], "remote", (&back, &there)), (ends[1], "local", (&there, &back))]
    {
        let said = add(gateway, folder, &format!("{field}={host}"), sas, &["--ephemeral", "--json"])?;
        ensure(said.code == Some(0), || format!("{said:#?}\n{}", gateway.log()))?;
        let answer: Value = serde_json::from_str(&said.stdout)?;
        ensure(answer["template"] == "a-b", || format!("{answer:#}"))?;
        names.push(answer["tunnel"].as_str().unwrap_or_default().to_owned());
    }
    Ok(names.swap_remove(0))
}

/// Two flows, two tunnels, two keys.
fn each_has_its_own(link: &mut Link) -> TestResult {
    let [a, b] = ends()?;
    let (gateway, folder_a) = link.start_a(&a)?;
    let (peer, folder_b) = link.start_b(&b)?;
    let both = [(&gateway, folder_a.as_path()), (&peer, folder_b.as_path())];
    for (number, host) in (0..).zip(HOSTS) {
        attach(link, host)?;
        ensure(answered(link, host, 1, SHORT)? == 0, || format!("{host} is reached without an SA"))?;
        wants(&gateway, host)?;
        let words = gateway.ask(&["sa", "wanted"])?.stdout;
        ensure(
            words.contains(&format!("remote={host}")) && words.contains("protocol=icmp types=8/0"),
            || words,
        )?;
        gateway.logs(&format!("tunnel a-b: a flow wants an SA of its own: remote={host}"))?;
        let name = answer(both, host, number)?;
        ensure(name == format!("a-b/{}", number + 1), || name.clone())?;
        ensure(wanted(&gateway)?.is_empty(), || "it is wanted all the same".to_owned())?;
        ensure(answered(link, host, 3, PATIENCE)? == 3, || {
            format!("{host} is not reached\n{}", gateway.log())
        })?;
        let sa = gateway.sa(&name, "outbound")?;
        let is_own = sa["packets"].as_u64() >= Some(3) && sa["for"] == json!({ "remote": host });
        ensure(is_own && sa["spi"] == 0x3000 + 2 * number, || format!("{sa:#}"))?;
        let told = gateway.ask_json(&["explain", "10.1.0.1", host])?;
        ensure(told["tunnel"] == name.as_str() && told["policy"]["origin"] == "policy hosts", || {
            format!("{told:#}")
        })?;
    }
    let told = gateway.ask_json(&["explain", "10.1.0.1", "10.7.0.9"])?;
    let verdict = told["verdict"].as_str().unwrap_or_default();
    ensure(verdict.contains("testudo sa add a-b --for \"remote=10.7.0.9\""), || format!("{told:#}"))?;
    let list = gateway.ask_json(&["policy", "list"])?;
    ensure(list[0]["populated"] == 2 && list[0]["populate_from_packet"] == json!(["remote"]), || {
        format!("{list:#}")
    })?;
    let status = gateway.ask_json(&["status"])?["populated"].clone();
    ensure(status["tunnels"] == 2 && status["wanted"] == 0, || format!("{status:#}"))?;
    let shown = gateway.ask(&["status"])?.stdout;
    ensure(shown.contains("2 of at most 131,072 tunnels populated from packets"), || shown)?;
    // The template's own SAs carry what its selectors say, and nothing of these.
    ensure(gateway.sa("a-b", "outbound")?["packets"] == 0, || "the template carried packets".to_owned())?;
    ensure(answered(link, "10.2.0.1", 2, PATIENCE)? == 2, || "the template's own tunnel is down".to_owned())?;
    for end in [gateway, peer] {
        ensure(end.dropped("selector_mismatch")? == 0, || end.log())?;
        end.stop()?;
    }
    Ok(())
}

fn ends_and_asks_again(link: &mut Link) -> TestResult {
    let [a, b] = ends()?;
    let (gateway, folder_a) = link.start_a(&a)?;
    let (peer, folder_b) = link.start_b(&b)?;
    let both = [(&gateway, folder_a.as_path()), (&peer, folder_b.as_path())];
    let host = HOSTS[0];
    attach(link, host)?;
    let name = answer(both, host, 4)?;
    ensure(answered(link, host, 2, PATIENCE)? == 2, || format!("{host} is not reached"))?;
    let delete = ["sa", "delete", &name, "--spi", "0x3008"];
    let said = gateway.ask(&delete)?;
    ensure(said.code != Some(0) && said.stderr.contains("--force"), || format!("{said:#?}"))?;
    let said = gateway.ask(&[&delete[..], &["--force"]].concat())?;
    ensure(said.stdout.contains(&format!("tunnel {name} has ended with it")), || format!("{said:#?}"))?;
    let said = gateway.ask(&["sa", "list", "--tunnel", &name])?;
    ensure(said.code != Some(0), || format!("it is still there: {said:#?}"))?;
    ensure(answered(link, host, 1, SHORT)? == 0, || format!("{host} is reached without an SA"))?;
    wants(&gateway, host)?;
    // Under a new key, which ends by itself (RFC 4301 4.4.2.1).
    let said = peer.ask(&["sa", "delete", "a-b/1", "--spi", "0x3009", "--force"])?;
    ensure(said.code == Some(0), || format!("{said:#?}"))?;
    let (there, back) = (Sa::random(0x3010, SUITE)?, Sa::random(0x3011, SUITE)?);
    let limited = ["--ephemeral", "--hard-seconds", "1"];
    let said = add(&gateway, &folder_a, &format!("remote={host}"), (&back, &there), &limited)?;
    ensure(said.code == Some(0), || format!("{said:#?}"))?;
    gateway.logs("tunnel a-b/2: outbound SA 0x3010 reached its hard lifetime")?;
    wait::until("for the tunnel to end", || {
        Ok((gateway.ask_json(&["status"])?["populated"]["tunnels"] == 0).then_some(()))
    })?;
    ensure(answered(link, host, 1, SHORT)? == 0, || format!("{host} is reached without an SA"))?;
    wants(&gateway, host)?;
    gateway.stop()?;
    peer.stop()
}

fn outlive_a_reload(link: &mut Link) -> TestResult {
    let [mut a, b] = ends()?;
    let (mut gateway, folder_a) = link.start_a(&a)?;
    let (peer, folder_b) = link.start_b(&b)?;
    for (number, host) in (8..).zip(HOSTS) {
        attach(link, host)?;
        answer([(&gateway, folder_a.as_path()), (&peer, folder_b.as_path())], host, number)?;
    }
    let reached = |host: &str| answered(link, host, 2, PATIENCE);
    let before = "[[policy]]\nname = \"mail\"\naction = \"discard\"\nprotocol = \"tcp\"\nremote_ports = 25\n";
    a.policies = format!("{before}{OF_A}");
    a.write(&folder_a)?;
    gateway.reload()?;
    ensure(reached(HOSTS[0])? == 2 && reached(HOSTS[1])? == 2, || gateway.log())?;
    // In front of the policy is in front of those of its flows.
    let first = ["policy", "add", "--action=discard", "--remote=10.7.0.1", "--name=no", "--before=hosts"];
    ensure(gateway.ask(&first)?.code == Some(0), || gateway.log())?;
    ensure(answered(link, HOSTS[0], 1, SHORT)? == 0 && reached(HOSTS[1])? == 2, || {
        "the wrong one passes".to_owned()
    })?;
    ensure(gateway.ask(&["policy", "delete", "no"])?.code == Some(0) && reached(HOSTS[0])? == 2, || {
        gateway.log()
    })?;
    // A policy that says something else has other flows, and they have no SA yet.
    a.policies = OF_A.replace("10.7.0.0/24", "10.7.0.0/25");
    a.write(&folder_a)?;
    gateway.reload()?;
    gateway.logs("2 tunnels of flows end")?;
    ensure(answered(link, HOSTS[0], 1, SHORT)? == 0, || "it goes on".to_owned())?;
    wants(&gateway, HOSTS[0])?;
    gateway.stop()?;
    peer.stop()
}

fn refuses(link: &mut Link) -> TestResult {
    let [a, _] = ends()?;
    let (gateway, folder) = link.start_a(&a)?;
    let (one, two) = (Sa::random(0x4000, SUITE)?, Sa::random(0x4001, SUITE)?);
    let other = [
        "policy",
        "add",
        "--action=protect",
        "--tunnel=a-b",
        "--remote=10.8.0.0/24",
        "--populate-from-packet=local,remote",
        "--name=more",
    ];
    for (flow, more, expected) in [
        ("remote=10.7.0.1", &[][..], "add --ephemeral"),
        ("remote=10.9.0.1", &["--ephemeral"], "are no such values"),
        ("local=10.1.0.1", &["--ephemeral"], "makes SAs for remote"),
        ("remotes=10.7.0.1", &["--ephemeral"], "found remotes"),
        ("remote=10.7.0.1", &["--ephemeral", "--policy", "mail"], "no policy \"mail\""),
    ] {
        let said = add(&gateway, &folder, flow, (&one, &two), more)?;
        ensure(said.code != Some(0) && said.stderr.contains(expected), || format!("{flow}: {said:#?}"))?;
    }
    ensure(gateway.ask(&other)?.code == Some(0), || gateway.log())?;
    let said = add(&gateway, &folder, "remote=10.7.0.1", (&one, &two), &["--ephemeral"])?;
    ensure(said.stderr.contains("say with --policy which one is meant"), || format!("{said:#?}"))?;
    let said =
        add(&gateway, &folder, "remote=10.7.0.1", (&one, &two), &["--ephemeral", "--policy", "hosts"])?;
    ensure(said.code == Some(0), || format!("{said:#?}"))?;
    // The same values again are the same tunnel, which has these SPIs.
    let said =
        add(&gateway, &folder, "remote=10.7.0.1", (&one, &two), &["--ephemeral", "--policy", "hosts"])?;
    ensure(said.code != Some(0), || format!("{said:#?}"))?;
    let refused = [
        "policy",
        "replace",
        "hosts",
        "--action=protect",
        "--tunnel=a-b",
        "--remote=10.7.0.0/24",
        "--populate-from-packet=remote,remote_ports",
    ];
    let said = gateway.ask(&refused)?;
    ensure(said.stderr.contains("\"protocol\" beside ports or types"), || format!("{said:#?}"))?;
    let said = gateway.ask(&["policy", "delete", "hosts"])?;
    let tells = said.stdout.contains("1 tunnel that was populated for a flow of it ends");
    ensure(said.code == Some(0) && tells, || format!("{said:#?}\n{}", gateway.log()))?;
    let status = gateway.ask_json(&["status"])?;
    ensure(status["populated"]["tunnels"] == 0, || format!("it outlives its policy: {status:#}"))?;
    gateway.stop()
}

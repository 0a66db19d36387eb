//! The verb itself: what it changes on the host, and what it says if it cannot work.

use crate::site::{Site, expect, firewall};
use crate::support::config::Config;
use crate::support::gateway::{PROGRAM, Said};
use crate::support::{Outcome, ensure, wait};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::namespaces::Namespace;

pub fn tests<'a>(suite: Suite<'a, Site>) -> Suite<'a, Site> {
    suite
        .test("applying_or_removing_rules_and_routes_twice_is_the_same_as_once", applies_and_removes)
        .test("rules_follow_a_changed_configuration_and_leave_other_gateways_alone", follows_changes)
        .test("nft_accepts_the_printed_rules_and_json_has_the_same", prints_what_nft_takes)
        .test("missing_nft_and_missing_privileges_are_named", says_what_it_needs)
        .test("a_wrong_configuration_changes_no_rule", changes_nothing_when_wrong)
}

/// All rules and routes of the host.
fn state(a: &Namespace) -> Outcome<String> {
    let mut state = a.run(&["nft", "list", "ruleset"])?;
    for version in ["-4", "-6"] {
        state += &a.run(&["ip", version, "route"])?;
    }
    Ok(state)
}

fn applies_and_removes(site: &mut Site) -> TestResult {
    let config = site.config()?;
    let folder = site.link.write(&config)?;
    let a = &site.link.a;
    let before = state(a)?;
    expect(a, &folder, &["--apply"])?;
    let applied = state(a)?;
    for part in ["table inet testudo-testudo0", "unreachable 10.2.0.0/16", "unreachable fd02::/64"] {
        ensure(applied.contains(part), || format!("no {part} in {applied}"))?;
    }
    expect(a, &folder, &["--apply"])?;
    let again = state(a)?;
    ensure(again == applied, || format!("{applied}\nand then\n{again}"))?;
    for _ in 0..2 {
        expect(a, &folder, &["--remove"])?;
        let removed = state(a)?;
        ensure(removed == before, || format!("{before}\nand then\n{removed}"))?;
    }
    Ok(())
}

fn with_remote(site: &Site, interface: &str, remote: &str) -> Outcome<Config> {
    let mut config = site.config()?;
    config.interface = interface.to_owned();
    config.tunnels[0].selectors = vec![("10.1.0.0/16".to_owned(), remote.to_owned())];
    Ok(config)
}

fn follows_changes(site: &mut Site) -> TestResult {
    let mut write = |interface: &str, remote: &str| -> Outcome<PathBuf> {
        let config = with_remote(site, interface, remote)?;
        site.link.write(&config)
    };
    let old = write("testudo0", "10.4.0.0/16")?;
    let new = write("testudo0", "10.5.0.7")?;
    let other = write("testudo1", "10.6.0.0/16")?;
    let a = &site.link.a;
    for folder in [&old, &other, &new] {
        expect(a, folder, &["--apply"])?;
    }
    let has = |part: &str, expected: bool| -> TestResult {
        let state = state(a)?;
        ensure(state.contains(part) == expected, || format!("{part}: expected {expected} in {state}"))
    };
    has("10.4.0.0", false)?;
    has("unreachable 10.5.0.7", true)?;
    has("unreachable 10.6.0.0/16", true)?;
    has("table inet testudo-testudo1", true)?;
    expect(a, &old, &["--remove"])?;
    has("10.5.0.7", false)?;
    has("unreachable 10.6.0.0/16", true)?;
    expect(a, &other, &["--remove"])?;
    has("testudo", false)
}

fn prints_what_nft_takes(site: &mut Site) -> TestResult {
    let folder = site.link.write(&site.config()?)?;
    let a = &site.link.a;
    let printed = expect(a, &folder, &[])?;
    let file = folder.join("rules.nft");
    std::fs::write(&file, &printed)?;
    a.run(&["nft", "-c", "-f", &file.to_string_lossy()])?;
    let json: Value = serde_json::from_str(&expect(a, &folder, &["--json"])?)?;
    let rules = json["rules"].as_str().ok_or("no rules")?;
    ensure(printed.ends_with(rules) && json["table"] == "testudo-testudo0", || format!("{json:#}"))?;
    let routes = json["routes"].as_array().ok_or("no routes")?;
    ensure(routes.len() == 2, || format!("{routes:?}"))?;
    for route in routes.iter().filter_map(Value::as_str) {
        ensure(printed.contains(&format!("#   {route}\n")), || printed.clone())?;
    }
    ensure(!state(a)?.contains("testudo"), || "printing has changed the host".to_owned())
}

fn says_what_it_needs(site: &mut Site) -> TestResult {
    const PORT_IS_WRONG: i32 = 4;
    let folder = site.link.write(&site.config()?)?;
    let run = |command: &mut Command| -> Outcome<Said> { Ok(wait::output(command)?.into()) };
    let words = |folder: &Path| folder.join(crate::support::config::CONFIGURATION);
    let mut powerless = site.link.a.command("setpriv");
    powerless.args(["--bounding-set=-all", "--inh-caps=-all", PROGRAM, "firewall", "--apply"]);
    let said = run(powerless.arg(words(&folder)))?;
    said.refused(PORT_IS_WRONG, "this needs CAP_NET_ADMIN: run it as root")?;
    let mut missing = site.link.a.command("unshare");
    let hide = "mount -t tmpfs none /usr/sbin && PATH=/nowhere exec \"$@\"";
    missing.args(["--mount", "sh", "-c", hide, "sh", PROGRAM, "firewall", "--apply"]);
    let said = run(missing.arg(words(&folder)))?;
    said.refused(PORT_IS_WRONG, "the program 'nft' is missing: install the package nftables")?;
    firewall(&site.link.a, &folder, &["--apply", "--remove"]).and_then(|said| {
        ensure(said.code == Some(2) && said.stderr.contains("cannot be used with"), || format!("{said:?}"))
    })
}

fn changes_nothing_when_wrong(site: &mut Site) -> TestResult {
    let mut config = site.config()?;
    let good = site.link.write(&config)?;
    expect(&site.link.a, &good, &["--apply"])?;
    let before = state(&site.link.a)?;
    config.tunnels[0].selectors[0].0 = "10.1.0.0/33".to_owned();
    let wrong = site.link.write(&config)?;
    let said = firewall(&site.link.a, &wrong, &["--apply"])?;
    ensure(said.code == Some(2) && said.stderr.contains("10.1.0.0/33"), || format!("{said:#?}"))?;
    ensure(state(&site.link.a)? == before, || "it changed something".to_owned())?;
    expect(&site.link.a, &good, &["--remove"]).map(drop)
}

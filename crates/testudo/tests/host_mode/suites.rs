//! Suites that a gateway uses only knowingly: those that RFC 8221 speaks against, and those whose nonces are
//! their sequence numbers (RFC 8750).

use super::inspection::{METRICS, scrape};
use crate::support::config::{CONFIGURATION, Config, Sa, pair};
use crate::support::gateway::{Gateway, PROGRAM, Said, run_to_end};
use crate::support::link::Link;
use crate::support::wait::PATIENCE;
use crate::support::{Outcome, ensure, wait};
use std::fs;
use std::path::Path;
use std::process::Command;
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::traffic::ping;

const CONFIGURATION_IS_WRONG: i32 = 2;
const STATE_IS_WRONG: i32 = 3;

pub fn tests<'a>(suite: Suite<'a, Link>) -> Suite<'a, Link> {
    suite
        .test("a_legacy_suite_is_confirmed_warned_of_and_counted", legacy)
        .test("keys_whose_numbers_are_nonces_must_be_known_to_the_store", counters)
        .test("a_key_of_3des_that_is_no_better_than_des_is_refused", weak_key)
}

/// Both ends of a tunnel under another suite than usual.
fn pair_under(suite: &str) -> Outcome<[Config; 2]> {
    let mut ends = pair(true)?;
    let keys = [Sa::random(0x1001, suite)?, Sa::random(0x1002, suite)?];
    for (at, end) in ends.iter_mut().enumerate() {
        end.tunnels[0].suite = suite.to_owned();
        (end.tunnels[0].outbound, end.tunnels[0].inbound) = (keys[at].clone(), keys[1 - at].clone());
    }
    Ok(ends)
}

fn verb(words: &[&str], folder: &Path) -> Outcome<Said> {
    Ok(wait::output(Command::new(PROGRAM).args(words).arg(folder.join(CONFIGURATION)))?.into())
}

/// Takes a line out of the configuration in `folder`.
fn without(line: &str, folder: &Path) -> Outcome<()> {
    let path = folder.join(CONFIGURATION);
    let text = fs::read_to_string(&path)?;
    ensure(text.contains(line), || format!("no {line} in {text}"))?;
    Ok(fs::write(&path, text.replace(line, ""))?)
}

fn passes(link: &Link) -> TestResult {
    let trips = ping(&link.a, "10.2.0.1".parse()?, 5, PATIENCE)?;
    ensure(trips.lost == 0, || format!("{} of 5 pings were lost", trips.lost))
}

/// RFC 8221 5 and 6.
fn legacy(link: &mut Link) -> TestResult {
    let [mut a, b] = pair_under("des-md5")?;
    a.gateway = format!("metrics = \"{METRICS}\"");
    let unconfirmed = link.prepare(&a)?;
    without("allow_legacy = true\n", &unconfirmed)?;
    for said in [verb(&["check"], &unconfirmed)?, run_to_end(&link.a, &unconfirmed)?] {
        let told = ["allow_legacy = true", "MUST NOT to des and MUST NOT to md5"];
        ensure(
            said.code == Some(CONFIGURATION_IS_WRONG) && told.iter().all(|t| said.stderr.contains(t)),
            || format!("{said:#?}"),
        )?;
    }
    let (gateway, folder) = link.start_a(&a)?;
    let warning = "des-md5: RFC 8221 says MUST NOT to des and MUST NOT to md5";
    let check = verb(&["check"], &folder)?;
    ensure(check.code == Some(0) && check.stdout.contains(warning), || format!("{check:#?}"))?;
    gateway.logs(warning)?;
    let (peer, _) = link.start_b(&b)?;
    passes(link)?;
    let metrics = scrape(&link.a)?;
    ensure(metrics.lines().any(|line| line == "testudo_legacy_sas 2"), || metrics.clone())?;
    gateway.stop()?;
    peer.stop()
}

/// RFC 8750 and DESIGN's contract on nonces: a manual key whose numbers are its nonces runs only with the
/// store that counts them.
fn counters(link: &mut Link) -> TestResult {
    let [a, b] = pair_under("chacha20poly1305iiv")?;
    let folder = link.prepare(&a)?;
    let confirmed = fs::read_to_string(folder.join(CONFIGURATION))?;
    without("allow_manual_counter_nonce = true\n", &folder)?;
    let said = verb(&["check"], &folder)?;
    let told = said.stderr.contains("allow_manual_counter_nonce = true");
    ensure(said.code == Some(CONFIGURATION_IS_WRONG) && told, || format!("{said:#?}"))?;
    fs::write(folder.join(CONFIGURATION), confirmed)?;
    // The store exists and does not know the keys.
    run_to_end(&link.a, &folder)?.refused(STATE_IS_WRONG, "testudo init --fresh-keys")?;
    let peer_folder = link.write(&b)?;
    for folder in [&folder, &peer_folder] {
        let said = verb(&["init", "--fresh-keys"], folder)?;
        ensure(said.code == Some(0) && said.stdout.contains("recorded as fresh"), || format!("{said:#?}"))?;
    }
    let (gateway, peer) = (Gateway::start(&link.a, &folder)?, Gateway::start(&link.b, &peer_folder)?);
    passes(link)?;
    gateway.stop()?;
    // The numbers go on; another store under the same keys would repeat them.
    let gateway = Gateway::start(&link.a, &folder)?;
    passes(link)?;
    gateway.stop()?;
    peer.stop()?;
    let other = link.prepare(&a)?;
    run_to_end(&link.a, &other)?.refused(STATE_IS_WRONG, "testudo init --fresh-keys")
}

/// RFC 2451 2.3.
fn weak_key(link: &mut Link) -> TestResult {
    let [mut a, _] = pair_under("3des-sha1")?;
    let key = &mut a.tunnels[0].outbound.key;
    let first = key[..16].to_owned();
    key.replace_range(16..32, &first);
    let folder = link.write(&a)?;
    let said = verb(&["check"], &folder)?;
    let told = said.stderr.contains("RFC 2451") && !said.stderr.contains(&first);
    ensure(said.code == Some(CONFIGURATION_IS_WRONG) && told, || format!("{said:#?}"))
}

//! strongSwan's own test scenarios, and which of them are re-created here. docs/IKE.md has the same list.

use crate::network::{Network, repository};
use crate::support::ensure;
use testudo_judge::harness::{Suite, TestResult};

/// What became of a scenario.
enum Fate {
    /// The test that re-creates what it asks of the kernel, and passes.
    Here(&'static str),
    /// Why there is none.
    Not(&'static str),
}

use Fate::{Here, Not};

/// By their names in testing/tests/ikev2 of strongSwan's repository.
const SCENARIOS: [(&str, Fate); 39] = [
    ("net2net-psk", Here("packets_pass_under_aes128gcm16-x25519")),
    ("net2net-cert", Here("packets_pass_by_certificates")),
    ("net2net-esn", Here("packets_pass_under_aes256gcm16-x25519-esn")),
    ("net2net-route", Here("a_packet_that_meets_a_trap_waits_for_its_sa")),
    ("net2net-ah", Here("charons_negotiate_ah")),
    ("net2net-same-nets", Not("policies with a mark are refused")),
    ("host2host-transport", Here("hosts_speak_in_transport_mode")),
    ("host2host-transport-connmark", Not("policies with a mark are refused")),
    ("force-udp-encaps", Here("packets_pass_in_udp_beside_ike")),
    ("nat-rw", Here("two_hosts_behind_one_nat_have_each_its_own_packets")),
    ("double-nat", Here("packets_follow_a_host_whose_nat_gives_it_another_port")),
    ("mobike", Here("packets_follow_a_host_that_changes_its_address")),
    ("mobike-nat", Here("packets_follow_a_road_warrior_that_goes_behind_a_nat")),
    ("mobike-virtual-ip", Here("packets_follow_a_road_warrior_that_changes_its_address")),
    ("dpd-clear", Here("sas_with_a_dead_peer_end")),
    ("dpd-restart", Here("a_host_that_was_killed_is_given_up_and_negotiated_with_again")),
    ("reauth-early", Here("an_ike_sa_is_made_anew_by_reauthentication")),
    ("rw-psk-ipv4", Here("a_road_warriors_packets_have_the_address_that_it_was_given")),
    ("virtual-ip", Here("a_road_warriors_packets_have_the_address_that_it_was_given")),
    ("rw-mark-in-out", Not("policies with a mark are refused")),
    ("trap-any", Here("a_trap_for_any_peer_makes_charon_negotiate_with_the_one_that_is_meant")),
    ("inactivity-timeout", Here("an_sa_that_carries_nothing_ends_and_one_that_does_stays")),
    ("protoport-route", Here("each_trap_negotiates_for_its_own_protocol_and_port")),
    ("any-interface", Here("a_trap_of_any_own_address_takes_that_of_the_route")),
    ("config-payload-swapped", Here("a_road_warriors_packets_have_the_address_that_it_was_given")),
    ("compress", Not("IPComp is not done")),
    ("compress-nat", Not("IPComp is not done")),
    ("esp-alg-null", Here("charons_negotiate_null-sha256")),
    ("alg-aes-gcm", Here("packets_pass_under_aes128gcm16-x25519")),
    ("alg-aes-ccm", Here("charons_negotiate_aes256ccm16")),
    ("alg-aes-ctr", Here("charons_negotiate_aes128ctr-sha384")),
    ("alg-chacha20poly1305", Here("packets_pass_under_chacha20poly1305")),
    ("alg-sha256", Here("packets_pass_under_aes128-sha256-esn")),
    ("alg-sha384", Here("charons_negotiate_aes128ctr-sha384")),
    ("alg-sha512", Here("charons_negotiate_aes256-sha512")),
    ("alg-sha256-96", Not("the kernel's 96 bits are a draft's, RFC 4868 says 128")),
    ("alg-3des-md5", Here("packets_pass_under_3des-md5_where_that_is_allowed")),
    ("alg-aes-xcbc", Here("packets_pass_under_aes128-aesxcbc")),
    ("alg-blowfish", Not("the gateway has no Blowfish")),
];

const TITLE: &str = "## strongSwan's own scenarios";

/// With all other tests in the suite.
pub fn tests(suite: Suite<'_, Network>) -> Suite<'_, Network> {
    let names: Vec<String> = suite.names().map(str::to_owned).collect();
    suite.test("strongswans_scenarios_are_documented_with_tests_that_exist", move |_: &mut Network| {
        are_documented(&names)
    })
}

fn are_documented(names: &[String]) -> TestResult {
    let text = std::fs::read_to_string(repository().join("docs/IKE.md"))?;
    let (_, section) = text.split_once(TITLE).ok_or_else(|| format!("docs/IKE.md lacks {TITLE}"))?;
    let section = section.split("\n## ").next().unwrap_or_default();
    let documented: Vec<&str> = section.lines().filter(|line| line.starts_with("| ")).skip(2).collect();
    let rows = SCENARIOS.iter().map(|(scenario, fate)| match fate {
        Here(test) => format!("| {scenario} | passes: {test} |"),
        Not(why) => format!("| {scenario} | not here: {why} |"),
    });
    let rows: Vec<String> = rows.collect();
    ensure(documented == rows, || format!("{documented:#?}\nis not\n{rows:#?}"))?;
    for (scenario, fate) in &SCENARIOS {
        let is_there = |test: &str| names.iter().any(|name| name == test);
        ensure(!matches!(fate, Here(test) if !is_there(test)), || {
            format!("{scenario}: there is no such test")
        })?;
    }
    Ok(())
}

//! Keys of live SAs: told where the configuration allows it, each time audited, and not kept elsewhere.

use crate::support::config::pair;
use crate::support::link::Link;
use crate::support::{Outcome, ensure};
use serde_json::Value;
use testudo_judge::harness::{Suite, TestResult};

type Tests<'a> = Suite<'a, Link>;

pub fn tests(suite: Tests<'_>) -> Tests<'_> {
    suite
        .test("keys_are_told_where_the_configuration_allows_it_and_each_time_audited", told)
        .test("keys_are_not_told_where_the_configuration_does_not_allow_it", not_told)
}

fn key_of(list: &Value, direction: &str) -> Outcome<String> {
    let mut rows = list.as_array().into_iter().flatten();
    let sa = rows.find(|sa| sa["direction"] == direction).ok_or_else(|| format!("none: {list:#}"))?;
    let key = |name: &str| sa[name].as_str().unwrap_or_default().to_owned();
    Ok(key("key") + &key("integrity_key"))
}

fn told(link: &mut Link) -> TestResult {
    let [mut config, _] = pair(true)?;
    config.gateway = "allow_key_export = true\naudit = \"./audit.json\"".to_owned();
    let (gateway, folder) = link.start_a(&config)?;
    gateway.logs("WARN").and_then(|log| {
        ensure(log.contains("allow_key_export = true: the keys of all SAs stay in memory"), || log.clone())
    })?;
    let list = gateway.ask_json(&["sa", "keys"])?;
    let tunnel = &config.tunnels[0];
    let found = (key_of(&list, "outbound")?, key_of(&list, "inbound")?);
    ensure(found == (tunnel.outbound.key.clone(), tunnel.inbound.key.clone()), || format!("{list:#}"))?;
    let said = gateway.ask(&["sa", "keys", "--wireshark", "--tunnel", &tunnel.name])?;
    let lines: Vec<_> = said.stdout.lines().filter(|line| line.starts_with("\"IPv4\"")).collect();
    ensure(lines.len() == 2 && lines.concat().contains(&tunnel.outbound.key), || format!("{said:?}"))?;
    let audited = std::fs::read_to_string(folder.join("audit.json"))?;
    let read: Vec<Value> = audited.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let is_right = |line: &Value| line["event"] == "keys_read" && line["user"].is_u64() && line["sas"] == 2;
    ensure(read.len() == 2 && read.iter().all(is_right), || audited.clone())?;
    ensure(read[1]["tunnel"] == *tunnel.name && read[0]["tunnel"].is_null(), || audited.clone())?;
    gateway
        .ask(&["sa", "keys", "--wireshark", "--tunnel", "nobody"])?
        .refused(1, "there is no tunnel nobody")?;
    gateway.stop()
}

fn not_told(link: &mut Link) -> TestResult {
    let [config, _] = pair(true)?;
    let (gateway, _) = link.start_a(&config)?;
    gateway.ask(&["sa", "keys", "--wireshark"])?.refused(1, "allow_key_export = true")?;
    let log = gateway.log();
    ensure(!log.contains("keys_read"), || log.clone())?;
    gateway.stop()
}

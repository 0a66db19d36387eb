//! What a gateway reports about itself: tables for people, JSON and metrics for programs.

use crate::support::config::{CONFIGURATION, Config, pair};
use crate::support::gateway::{Gateway, PROGRAM, Said};
use crate::support::link::Link;
use crate::support::wait::{self, PATIENCE};
use crate::support::{Outcome, ensure};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::namespaces::Namespace;
use testudo_lab::traffic::{Stream, ping};

pub fn tests<'a>(suite: Suite<'a, Link>) -> Suite<'a, Link> {
    suite
        .test("status_shows_engines_ports_and_drops", tells_status)
        .test("status_shows_the_cycles_of_each_stage_and_the_clock", tells_stages)
        .test("top_shows_rates_stages_and_the_bottleneck", watches)
        .test("sa_list_shows_the_counters_of_each_sa", lists_associations)
        .test("sa_list_shows_the_rates_of_each_sa_between_two_looks", shows_rates)
        .test("policy_list_shows_the_spd_in_order", lists_policies)
        .test("explain_shows_policy_and_sa_and_why_others_do_not_match", explains)
        .test("every_verb_finds_the_gateway_by_its_configuration", asks_by_configuration)
        .test("metrics_are_openmetrics_with_help_for_every_family", serves_metrics)
}

pub const METRICS: &str = "127.0.0.1:9468";

/// The page that Prometheus would scrape.
pub fn scrape(namespace: &Namespace) -> Outcome<String> {
    let mut stream = namespace.within(|| TcpStream::connect(METRICS))??;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("no HTTP")?;
    ensure(head.starts_with("HTTP/1.1 200 "), || head.to_owned())?;
    ensure(head.contains("application/openmetrics-text; version=1.0.0"), || head.to_owned())?;
    Ok(body.to_owned())
}

/// A running pair that has carried five pings; A's configuration has policies.
fn busy_pair(link: &mut Link) -> Outcome<[Gateway; 2]> {
    let [mut a, b] = pair(true)?;
    a.gateway = format!("metrics = \"{METRICS}\"");
    a.policies =
        "[[policy]]\naction = \"discard\"\nlocal = \"10.1.0.1\"\nremote = \"10.2.0.1\"\nprotocol = \"tcp\"\n\
                  remote_ports = \"25\"\n"
            .to_owned();
    let (gateway, _) = link.start_a(&a)?;
    let (peer, _) = link.start_b(&Config { gateway: String::new(), ..b })?;
    let trips = ping(&link.a, "10.2.0.1".parse()?, 5, PATIENCE)?;
    ensure(trips.lost == 0, || format!("{} of 5 pings were lost", trips.lost))?;
    Ok([gateway, peer])
}

fn stop([gateway, peer]: [Gateway; 2]) -> Outcome<()> {
    gateway.stop()?;
    peer.stop()
}

/// Checks that the table that a verb prints contains all of `words`.
fn prints(gateway: &Gateway, verb: &[&str], words: &[&str]) -> Outcome<()> {
    let said = gateway.ask(verb)?;
    let missing: Vec<_> = words.iter().filter(|word| !said.stdout.contains(**word)).collect();
    ensure(said.code == Some(0) && missing.is_empty(), || {
        format!("{verb:?} lacks {missing:?}:\n{}", said.stdout)
    })
}

fn asks_by_configuration(link: &mut Link) -> TestResult {
    let [config, _] = pair(true)?;
    let (gateway, folder) = link.start_a(&config)?;
    let config = folder.join(CONFIGURATION);
    let explain = ["explain", "10.1.0.1", "10.2.0.1"];
    for words in [&["status"][..], &["top", "--count=1", "--interval=0.1"], &["sa", "list"], &explain] {
        let mut command = Command::new(PROGRAM);
        // The command line wins.
        command.args(words).arg(&config).env("TESTUDO_CONTROL", "/nowhere.sock");
        let said = Said::from(wait::output(&mut command)?);
        ensure(said.code == Some(0), || format!("{words:?}: {said:#?}"))?;
    }
    gateway.stop()
}

fn tells_status(link: &mut Link) -> TestResult {
    let pair = busy_pair(link)?;
    let status = pair[0].ask_json(&["status"])?;
    let engines = status["engines"].as_array().ok_or("no engines")?;
    // Behind it come those that this processor has not.
    let last = engines.iter().rfind(|engine| engine["in_use"] == true).ok_or("no engine in use")?;
    ensure(last["name"] == "portable", || format!("{engines:#?}"))?;
    ensure(status["tunnels"] == 1 && status["tunnels_down"] == 0, || format!("{status:#}"))?;
    for side in ["protected", "unprotected"] {
        let port = &status["ports"][side];
        let counts = ["rx_packets", "tx_packets", "rx_bytes", "tx_bytes"].map(|key| port[key].as_u64());
        ensure(counts.iter().all(|count| *count >= Some(5)), || format!("{side}: {port:#}"))?;
    }
    ensure(status["drops"]["replay_duplicate"] == 0, || format!("{status:#}"))?;
    let version = env!("CARGO_PKG_VERSION");
    prints(
        &pair[0],
        &["status"],
        &["testudo", version, "1 tunnel (0 down)", "portable", "testudo0", "packets in"],
    )?;
    stop(pair)
}

/// Pings until batches of both directions have been measured.
fn measured(link: &Link, gateway: &Gateway) -> Outcome<Value> {
    wait::until("for a batch of each direction to be measured", || {
        ping(&link.a, "10.2.0.1".parse()?, 10, PATIENCE)?;
        let status = gateway.ask_json(&["status"])?;
        let is_measured = |direction: &str| status["stages"][direction]["batches"].as_u64() > Some(0);
        Ok((is_measured("outbound") && is_measured("inbound")).then_some(status))
    })
}

fn tells_stages(link: &mut Link) -> TestResult {
    let pair = busy_pair(link)?;
    let status = measured(link, &pair[0])?;
    let stages = &status["stages"];
    for direction in ["outbound", "inbound"] {
        let told = &stages[direction];
        let names: BTreeSet<_> =
            told["ticks"].as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect();
        let expected = ["receive", "parse", "policy", "sa", "framing", "cryptography", "finish", "transmit"];
        ensure(names == expected.into_iter().collect(), || format!("{told:#}"))?;
        // A system call and a whole packet's cryptography take more than zero cycles.
        for stage in ["receive", "cryptography", "transmit"] {
            ensure(told["ticks"][stage].as_u64() > Some(0), || format!("{stage} of {told:#}"))?;
        }
        ensure(told["packets"].as_u64() >= told["batches"].as_u64(), || format!("{told:#}"))?;
    }
    let later = pair[0].ask_json(&["status"])?;
    for reading in ["ticks", "elapsed_ns"] {
        let (then, now) = (&stages["clock"][reading], &later["stages"]["clock"][reading]);
        ensure(then.as_u64() > Some(0) && now.as_u64() > then.as_u64(), || {
            format!("{reading}: {then} {now}")
        })?;
    }
    ensure(later["worker"].is_null() || later["worker"]["ran_ns"].as_u64() > Some(0), || {
        format!("{later:#}")
    })?;
    ensure(stages["measured_of"] == 17, || format!("{stages:#}"))?;
    stop(pair)
}

fn watches(link: &mut Link) -> TestResult {
    let pair = busy_pair(link)?;
    let stream = Stream::start((&link.a, "10.1.0.1"), (&link.b, "10.2.0.1"))?;
    stream.flows(10)?;
    let snapshot = pair[0].ask_json(&["top", "--count", "1", "--interval", "0.5"])?;
    ensure(snapshot["seconds"].as_f64().is_some_and(|s| s >= 0.4), || format!("{snapshot:#}"))?;
    let outbound = &snapshot["outbound"];
    ensure(outbound["packets_per_second"].as_f64() > Some(1.0), || format!("{snapshot:#}"))?;
    let shares =
        outbound["stages"].as_object().into_iter().flatten().filter_map(|(_, s)| s["share"].as_f64());
    ensure((shares.sum::<f64>() - 1.0).abs() < 1e-6, || format!("{snapshot:#}"))?;
    ensure(snapshot["bottleneck"]["words"].is_string(), || format!("{snapshot:#}"))?;
    let words = ["packets/s", "cryptography", "protected: testudo0", "worker", "bottleneck"];
    prints(&pair[0], &["top", "--count", "2", "--interval", "0.2"], &words)?;
    stream.end()?;
    stop(pair)
}

fn shows_rates(link: &mut Link) -> TestResult {
    let pair = busy_pair(link)?;
    let stream = Stream::start((&link.a, "10.1.0.1"), (&link.b, "10.2.0.1"))?;
    let rates_of = |direction: &str| -> Outcome<(f64, f64)> {
        let list = pair[0].ask_json(&["sa", "list", "--interval", "0.2"])?;
        let sa = list.as_array().into_iter().flatten().find(|sa| sa["direction"] == direction).cloned();
        let sa = sa.ok_or_else(|| format!("no {direction} SA: {list:#}"))?;
        let rate = |key: &str| sa[key].as_f64().ok_or_else(|| format!("no {key}: {sa:#}"));
        Ok((rate("packets_per_second")?, rate("bits_per_second")?))
    };
    // IPv4, UDP and a number of 8 bytes: 36 bytes each, of the inner packet.
    let (packets, bits) = wait::until("for packets between two looks", || {
        Ok(Some(rates_of("outbound")?).filter(|(packets, _)| *packets > 0.0))
    })?;
    ensure((bits / packets - 288.0).abs() < 1e-6, || format!("{bits} bit/s in {packets} packets/s"))?;
    ensure(rates_of("inbound")?.0 == 0.0, || "nothing comes back".to_owned())?;
    stream.end()?;
    prints(&pair[0], &["sa", "list", "--interval", "0.1"], &["packets/s", "bit/s", "0 packet/s"])?;
    let once = pair[0].ask_json(&["sa", "list"])?;
    ensure(once[0].get("packets_per_second").is_none(), || format!("{once:#}"))?;
    stop(pair)
}

fn lists_associations(link: &mut Link) -> TestResult {
    let pair = busy_pair(link)?;
    let status = pair[0].ask_json(&["status"])?;
    // Every engine does this suite, so that it is the first one in use.
    let engine = status["engines"].as_array().and_then(|all| all.iter().find(|e| e["in_use"] == true));
    let engine = engine.ok_or("no engine is in use")?;
    for (direction, spi) in [("outbound", 0x1001), ("inbound", 0x1002)] {
        let sa = pair[0].sa("a-b", direction)?;
        let expected = json!({
            "tunnel": "a-b", "direction": direction, "spi": spi, "suite": "aes128gcm16", "esn": true,
            "local": "192.0.2.1", "remote": "192.0.2.2", "encapsulation": "esp-in-udp", "state": "installed", "packets": 5,
            "sequence": 5, "bytes": 5 * 84, "engine": engine["name"],
        });
        for (key, value) in expected.as_object().into_iter().flatten() {
            ensure(sa[key] == *value, || format!("{key} is to be {value} in {sa:#}"))?;
        }
    }
    let words = ["a-b", "outbound", "inbound", "0x1001", "0x1002", "aes128gcm16, esn", "installed", "420"];
    prints(&pair[0], &["sa", "list"], &words)?;
    stop(pair)
}

fn lists_policies(link: &mut Link) -> TestResult {
    let pair = busy_pair(link)?;
    let list = pair[0].ask_json(&["policy", "list"])?;
    let actions: Vec<_> =
        list.as_array().into_iter().flatten().map(|row| (&row["place"], &row["action"])).collect();
    ensure(actions == [(&json!(1), &json!("discard")), (&json!(2), &json!("protect"))], || {
        format!("{list:#}")
    })?;
    let mail = &list[0]["selectors"][0];
    ensure(list[1]["tunnel"] == "a-b" && mail["remote_ports"] == "25", || format!("{list:#}"))?;
    let words =
        ["policy 1", "discard", "protect by a-b", "tunnel a-b, selector 1", "10.1.0.1", "are discarded"];
    prints(&pair[0], &["policy", "list"], &words)?;
    stop(pair)
}

fn explains(link: &mut Link) -> TestResult {
    let pair = busy_pair(link)?;
    let ports = ["--protocol", "tcp", "--source-port", "4711", "--destination-port"];
    let mail = [&["explain", "10.1.0.1", "10.2.0.1"][..], &ports, &["25"]].concat();
    let web = [&["explain", "10.1.0.1", "10.2.0.1"][..], &ports, &["80"]].concat();
    let stray = ["explain", "10.1.0.1", "10.3.0.1"];
    let back = ["explain", "--side", "unprotected", "10.2.0.1", "10.1.0.1"];
    let ask = |words: &[&str]| pair[0].ask_json(words);
    let (mail_says, web_says, stray_says, back_says) = (ask(&mail)?, ask(&web)?, ask(&stray)?, ask(&back)?);
    ensure(mail_says["policy"]["place"] == 1 && mail_says["sa"].is_null(), || format!("{mail_says:#}"))?;
    ensure(web_says["tunnel"] == "a-b" && web_says["sa"]["spi"] == 0x1001, || format!("{web_says:#}"))?;
    let why = web_says["passed_over"][0]["why"].as_str().unwrap_or_default();
    ensure(why == "the remote port is not in 25", || why.to_owned())?;
    ensure(stray_says["policy"].is_null() && stray_says["tunnel"].is_null(), || format!("{stray_says:#}"))?;
    ensure(back_says["sa"]["spi"] == 0x1002, || format!("{back_says:#}"))?;
    prints(&pair[0], &mail, &["yes, discard", "=> discarded: the policy says so"])?;
    prints(
        &pair[0],
        &web,
        &["no, the remote port is not in 25", "=> goes through tunnel a-b, outbound SA 0x1001"],
    )?;
    prints(&pair[0], &stray, &["=> discarded: no policy matches"])?;
    prints(&pair[0], &back, &["through inbound SA 0x1002 of tunnel a-b: passes"])?;
    let mixed = pair[0].ask(&["explain", "10.1.0.1", "fd00::1"])?;
    ensure(mixed.code != Some(0) && mixed.stderr.contains("same IP version"), || format!("{mixed:#?}"))?;
    stop(pair)
}

/// One family of a scrape.
#[derive(Debug, Default)]
struct Family {
    help: String,
    kind: String,
    samples: Vec<(String, f64)>,
}

/// Parses OpenMetrics text strictly enough for our output.
fn parse(text: &str) -> Outcome<BTreeMap<String, Family>> {
    let (lines, end) = text.strip_suffix("# EOF\n").map(|lines| (lines, true)).unwrap_or((text, false));
    ensure(end, || format!("it does not end with EOF:\n{text}"))?;
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    for line in lines.lines() {
        let words: Vec<_> = line.splitn(4, ' ').collect();
        match words.as_slice() {
            ["#", "HELP", name, help] => {
                families.entry((*name).to_owned()).or_default().help = (*help).to_owned()
            }
            ["#", "TYPE", name, kind] => {
                families.entry((*name).to_owned()).or_default().kind = (*kind).to_owned()
            }
            _ => {
                let (sample, value) = line.rsplit_once(' ').ok_or("a sample without value")?;
                let name = sample.split('{').next().unwrap_or_default();
                let family = name.strip_suffix("_total").unwrap_or(name);
                let family = families.get_mut(family).ok_or_else(|| format!("no family for {line}"))?;
                family.samples.push((sample.to_owned(), value.parse()?));
            }
        }
    }
    Ok(families)
}

fn serves_metrics(link: &mut Link) -> TestResult {
    let pair = busy_pair(link)?;
    let families = parse(&scrape(&link.a)?)?;
    for (name, family) in &families {
        ensure(name.starts_with("testudo_"), || name.clone())?;
        ensure(!family.help.is_empty() && ["counter", "gauge"].contains(&family.kind.as_str()), || {
            format!("{name}: {family:?}")
        })?;
        let mut seen = BTreeSet::new();
        ensure(family.samples.iter().all(|(sample, _)| seen.insert(sample)), || format!("{family:?}"))?;
    }
    let sample = |name: &str, label: &str| -> Option<f64> {
        let samples = &families.get(name)?.samples;
        samples.iter().find(|(sample, _)| sample.contains(label)).map(|(_, value)| *value)
    };
    for direction in ["outbound", "inbound"] {
        for (name, value) in
            [("testudo_sa_packets", 5.0), ("testudo_sa_bytes", 420.0), ("testudo_sa_sequence", 5.0)]
        {
            let found = sample(name, &format!("direction=\"{direction}\""));
            ensure(found == Some(value), || format!("{name} of {direction} is {found:?}"))?;
        }
    }
    let status = pair[0].ask_json(&["status"])?;
    let reasons: Vec<_> = status["drops"].as_object().into_iter().flatten().collect();
    ensure(reasons.len() > 30, || format!("{reasons:?}"))?;
    for (reason, _) in reasons {
        let label = format!("testudo_drops_total{{reason=\"{reason}\"}}");
        ensure(sample("testudo_drops", &label).is_some(), || label)?;
    }
    ensure(sample("testudo_port_rx_packets", "side=\"unprotected\"") >= Some(5.0), || "no ports".to_owned())?;
    for stage in ["receive", "cryptography", "transmit"] {
        for direction in ["outbound", "inbound"] {
            let label = format!("direction=\"{direction}\",stage=\"{stage}\"");
            ensure(sample("testudo_stage_ticks", &label).is_some(), || label)?;
        }
    }
    ensure(sample("testudo_ticks", "") > Some(0.0), || "no clock".to_owned())?;
    ensure(sample("testudo_stage_measured_of", "") == Some(17.0), || "no sampling".to_owned())?;
    ensure(sample("testudo_port_waited_ticks", "side=\"protected\"").is_some(), || "no waits".to_owned())?;
    let not_found = Value::from(families.contains_key("testudo_sa_dropped"));
    ensure(not_found == true, || "no family for drops of an SA".to_owned())?;
    stop(pair)
}

//! The engine `cores` in the program: it seals what every engine seals, its threads are on the processors
//! that the configuration names, and errors name what is wrong.

#![forbid(unsafe_code)]
#![allow(dead_code, reason = "the support is shared")]

mod support;

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use support::capture::capture;
use support::config::{CONFIGURATION, Config, Sa, pair};
use support::gateway::{Gateway, PROGRAM, Said, proc_file};
use support::link::Link;
use support::{Outcome, ensure, folder, wait};
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::traffic::Stream;

/// The highest number that a processor may have in the configuration: more than any machine here has.
const NO_PROCESSOR: &str = "processors = [1023]";

fn main() -> ExitCode {
    Suite::new()
        .test("other_cores_seal_what_the_portable_engine_seals", seal_the_same)
        .test("threads_are_on_their_processors_while_a_gateway_runs", on_their_processors)
        .test("a_processor_that_is_not_there_is_told_in_one_line", no_processor)
        .test("errors_of_the_engine_cores_are_named", errors)
        .test("a_gateway_that_places_jobs_live_says_who_did_them_and_why", placed_live)
        .run(Link::build)
}

/// A gateway's configuration with the engine, and these lines of its section.
fn with_cores(config: Config, lines: &str) -> Config {
    let gateway = format!("engines = [\"cores\", \"portable\"]\n{}", config.gateway);
    let policies = format!("{}\n[engine.cores]\n{lines}\n", config.policies);
    Config { gateway, policies, ..config }
}

/// A folder with packets for a tunnel, and the configuration of its gateway.
fn fixture(suite: &str, lines: &str) -> Outcome<PathBuf> {
    let folder = folder(&format!("cores-{suite}"))?;
    let [mut config, _] = pair(true)?;
    config.unprotected = "interface = \"eth0\"".to_owned();
    let tunnel = &mut config.tunnels[0];
    tunnel.selectors = vec![("10.1.0.0/16".to_owned(), "10.2.0.0/16".to_owned())];
    tunnel.more = "known_answer = { next_sequence_number = 1, iv_seed = 7 }".to_owned();
    tunnel.suite = suite.to_owned();
    tunnel.outbound = Sa::random(0x1001, suite)?;
    tunnel.inbound = Sa::random(0x1002, suite)?;
    with_cores(config, lines).write(&folder)?;
    fs::write(folder.join("in.pcap"), capture()?)?;
    Ok(folder)
}

fn replay(folder: &Path, output: &str, words: &[&str]) -> Outcome<Vec<u8>> {
    let mut command = Command::new(PROGRAM);
    let to = format!("unprotected={output}");
    let files = ["replay", CONFIGURATION, "--rx", "protected=in.pcap", "--tx", &to];
    let said: Said = wait::output(command.current_dir(folder).args(files).args(words))?.into();
    ensure(said.code == Some(0), || format!("{words:?}: {said:#?}"))?;
    Ok(fs::read(folder.join(output))?)
}

fn seal_the_same(_: &mut Link) -> TestResult {
    for suite in ["aes128gcm16", "aes256-sha256", "chacha20poly1305"] {
        let folder = fixture(suite, "threads = 2\nengines = [\"ipsec-mb\", \"portable\"]")?;
        let by_cores = replay(&folder, "cores.pcap", &["--engine", "cores"])?;
        let by_portable = replay(&folder, "portable.pcap", &["--engine", "portable"])?;
        ensure(by_cores.len() > 200 * 700, || format!("{suite}: {} bytes", by_cores.len()))?;
        ensure(by_cores == by_portable, || format!("{suite}: they differ"))?;
    }
    Ok(())
}

/// The status of the gateway's thread of this name in /proc.
fn thread(gateway: &Gateway, name: &str) -> Outcome<String> {
    for entry in fs::read_dir(format!("/proc/{}/task", gateway.process()))? {
        let task = format!("task/{}", entry?.file_name().to_string_lossy());
        if proc_file(gateway.process(), &format!("{task}/comm"))?.trim_end() == name {
            return proc_file(gateway.process(), &format!("{task}/status"));
        }
    }
    Err(format!("no thread {name}\n{}", gateway.log()).into())
}

/// The processors that a thread may use.
fn processors(status: &str) -> Outcome<&str> {
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    Ok(line.ok_or("no processors in its status")?.trim())
}

fn on_their_processors(link: &mut Link) -> TestResult {
    let own = fs::read_to_string("/proc/self/status")?;
    let all = processors(&own)?;
    let first = all.split(['-', ',']).next().unwrap_or_default();
    let [a, b] = pair(false)?;
    let (gateway, _) = link.start_a(&with_cores(a, &format!("threads = 2\nprocessors = [{first}]")))?;
    let (peer, _) = link.start_b(&with_cores(b, "threads = 1"))?;
    for name in ["cores-0", "cores-1"] {
        wait::until(&format!("for {name} on its processor"), || {
            Ok((processors(&thread(&gateway, name)?)? == first).then_some(()))
        })?;
    }
    ensure(processors(&thread(&peer, "cores-0")?)? == all, || "it is bound".to_owned())?;
    let out = Stream::start((&link.a, "10.1.0.1"), (&link.b, "10.2.0.1"))?;
    let back = Stream::start((&link.b, "10.2.0.1"), (&link.a, "10.1.0.1"))?;
    out.flows(300)?;
    back.flows(300)?;
    let lost = [out.end()?.1, back.end()?.1].concat();
    ensure(lost.is_empty(), || format!("lost: {lost:?}\n{}", gateway.log()))?;
    for gateway in [gateway, peer] {
        ensure(!gateway.log().contains("is not bound"), || gateway.log())?;
        gateway.stop()?;
    }
    Ok(())
}

fn no_processor(link: &mut Link) -> TestResult {
    let [a, _] = pair(false)?;
    let (gateway, _) = link.start_a(&with_cores(a, NO_PROCESSOR))?;
    let log = gateway.logs("is not bound to processor 1023")?;
    let told: Vec<&str> = log.lines().filter(|line| line.contains("is not bound")).collect();
    let is_one = matches!(told[..], [line] if line.contains("a thread of engine cores"));
    ensure(is_one && log.contains("testudo-workers.conf"), || log.clone())?;
    thread(&gateway, "cores-0")?;
    gateway.stop()
}

fn errors(_: &mut Link) -> TestResult {
    for (lines, words) in [
        ("threads = 65", ["engine.cores.threads", "a number from 1 to 64"]),
        ("engines = [\"gpu\"]", ["engine.cores.engines[0]", "ipsec-mb"]),
        ("queues = 2", ["engine.cores.queues", ""]),
    ] {
        let folder = fixture("aes128gcm16", lines)?;
        let mut command = Command::new(PROGRAM);
        let said: Said = wait::output(command.current_dir(&folder).args(["check", CONFIGURATION]))?.into();
        let is_named = words.iter().all(|word| said.stderr.contains(word));
        ensure(said.code != Some(0) && is_named, || format!("{lines}: {said:#?}"))?;
    }
    Ok(())
}

/// Every packet that was sealed is a job of one engine, and the gateway tells which and why.
fn placed_live(link: &mut Link) -> TestResult {
    let live = |config: Config| {
        let gateway = format!("engines = [\"cores\", \"ipsec-mb\", \"portable\"]\n{}", config.gateway);
        let policies = format!("{}\n[scheduler]\nplacement = \"live\"\nlatency_us = 2000\n", config.policies);
        Config { gateway, policies, ..config }
    };
    let [a, b] = pair(false)?.map(live);
    let (gateway, _) = link.start_a(&a)?;
    let (peer, _) = link.start_b(&b)?;
    let out = Stream::start((&link.a, "10.1.0.1"), (&link.b, "10.2.0.1"))?;
    let back = Stream::start((&link.b, "10.2.0.1"), (&link.a, "10.1.0.1"))?;
    out.flows(500)?;
    back.flows(500)?;
    let lost = [out.end()?.1, back.end()?.1].concat();
    ensure(lost.is_empty(), || format!("lost: {lost:?}\n{}", gateway.log()))?;
    for (gateway, ends) in [(&gateway, ["10.1.0.1", "10.2.0.1"]), (&peer, ["10.2.0.1", "10.1.0.1"])] {
        let all_told = wait::until("for all jobs to be told", || {
            let status = gateway.ask_json(&["status"])?;
            let jobs = sum_of(&status["placement"]["shares"], |row| {
                Some(row["jobs"].as_u64()? - row["passed_on"].as_u64()?)
            });
            let sas = ["outbound", "inbound"].map(|direction| gateway.sa("a-b", direction));
            let mut packets = 0;
            for sa in sas {
                packets += sa?["packets"].as_u64().ok_or("no packets")?;
            }
            Ok((jobs == Some(packets) && packets >= 1000).then_some(status))
        });
        let status =
            all_told.map_err(|e| format!("{e}\n{:#}", gateway.ask_json(&["status"]).unwrap_or_default()))?;
        tells_of_placement(gateway, ends, &status["placement"])?;
    }
    gateway.stop()?;
    peer.stop()
}

fn sum_of(rows: &Value, of: impl Fn(&Value) -> Option<u64>) -> Option<u64> {
    rows.as_array()?.iter().map(of).sum()
}

/// Reasons add up, one engine has each class of length, and `explain` and `top` name those in use.
fn tells_of_placement(gateway: &Gateway, [from, to]: [&str; 2], placement: &Value) -> Outcome<()> {
    let rows = placement["shares"].as_array().ok_or("no shares")?;
    ensure(placement["latency_ns"] == 2_000_000, || format!("{placement:#}"))?;
    for row in rows {
        let reasons: Option<u64> =
            row["reasons"].as_object().map(|of| of.values().filter_map(Value::as_u64).sum());
        ensure(reasons == row["jobs"].as_u64(), || format!("{row:#}"))?;
    }
    let chosen: Vec<_> = rows.iter().filter(|row| row["chosen"] == true).collect();
    let engine = chosen.first().and_then(|row| row["engine"].as_str()).ok_or("none is chosen")?;
    for (verb, word) in [
        (&["explain", from, to][..], "engines that cost the worker the least and are back within 2,000.0 us"),
        (&["explain", from, to], engine),
        (&["sa", "list"], engine),
        (&["top", "--count=1", "--interval=0.1"], "cores"),
    ] {
        let said = gateway.ask(verb)?;
        ensure(said.code == Some(0) && said.stdout.contains(word), || format!("{word}: {said:#?}"))?;
    }
    Ok(())
}

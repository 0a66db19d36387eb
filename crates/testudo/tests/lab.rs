//! `testudo lab` as its users start it: meters of the program, and prices; gateways, links and tuning; what
//! is printed, drawn and refused.

#![allow(clippy::unwrap_used, reason = "a test panics on failure")]

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use testudo_lab::harness::OVERLOAD_STEPS;

/// The program with a library of NVML's from `folder`.
fn efficiency(folder: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_testudo"));
    command.args(["lab", "efficiency", "--quick", "--trial-seconds", "0.02", "--repetitions", "1"]);
    command.args(["--sizes", "64", "--rates", "10%", "--engine", "portable"]).args(more);
    command.env("LD_LIBRARY_PATH", folder).output().unwrap()
}

fn rows(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// What the meter of this name showed in a row.
fn meter(row: &Value, name: &str) -> Value {
    let meters = row["meters"].as_array().unwrap();
    meters.iter().find(|meter| meter["name"] == name).unwrap_or_else(|| panic!("no {name}: {row}")).clone()
}

#[test]
fn a_machine_without_nvml_still_has_what_else_it_meters() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("libnvidia-ml.so.1"), "no library, however hard one looks at it")
        .unwrap();
    for row in rows(&efficiency(folder.path(), &["--json"])).iter().filter(|row| row["test"] != "paper") {
        let (gpus, processors) = (meter(row, "GPUs (NVML)"), meter(row, "processors (RAPL)"));
        assert!(
            gpus["watts"].is_null() && gpus["not_known"].as_str().unwrap().contains("libnvidia-ml"),
            "{gpus}"
        );
        // What is not there is no part of the sum.
        assert_eq!(row["watts"], processors["watts"]);
    }
    let text = String::from_utf8(efficiency(folder.path(), &[]).stdout).unwrap();
    assert!(
        text.contains("GPUs (NVML): not known: ") && text.contains("power: of processors (RAPL), generator"),
        "{text}"
    );
}

#[test]
fn gpus_are_metered_where_there_is_nvml_and_a_machine_has_its_price() {
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engines/gpu/src/tests/nvml.cpp");
    let library = folder.path().join("libnvidia-ml.so.1");
    let said = Command::new("g++").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).output();
    assert!(said.expect("g++ compiles the twin: install the package g++").status.success());
    let prices = folder.path().join("prices.toml");
    std::fs::write(&prices, "[machine]\nname = \"here\"\nprice = 1000\n").unwrap();
    let rows = rows(&efficiency(folder.path(), &["--json", "--prices", prices.to_str().unwrap()]));
    for row in rows.iter().filter(|row| row["test"] != "paper") {
        // Its devices take 12 mJ from one question to the next.
        assert!(meter(row, "GPUs (NVML)")["watts"].as_f64().is_some_and(|watts| watts > 0.0), "{row}");
    }
    let cost = rows.iter().find(|row| row["test"] == "cost").unwrap();
    let gigabits = cost["throughput_gbit_per_second"].as_f64().unwrap();
    let found = cost["price_per_gbit_per_second"].as_f64().unwrap();
    assert!((found * gigabits / 1000.0 - 1.0).abs() < 1e-9 && cost["machine"] == "here", "{cost}");
}

#[test]
fn wrong_options_and_prices_are_told_with_the_code_for_the_command_line() {
    let folder = tempfile::tempdir().unwrap();
    for (wrong, told) in [
        (["--rates", "fast"], "expected gigabits a second"),
        (["--prices", "/nowhere/prices.toml"], "--prices: /nowhere/prices.toml: "),
    ] {
        let output = efficiency(folder.path(), &wrong);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(told), "{said}");
    }
}

/// `testudo lab tcp` with short runs; nothing of it stays.
fn tcp(more: &[&str]) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_testudo"));
    command.args(["lab", "tcp", "--json", "--seconds", "1", "--repetitions", "1", "--engine", "portable"]);
    let rows = rows(&command.args(more).env("TMPDIR", folder.path()).output().unwrap());
    let deadline = Instant::now() + Duration::from_secs(10);
    while std::fs::read_dir(folder.path()).unwrap().count() > 0 {
        assert!(Instant::now() < deadline, "the run left files behind");
        std::thread::yield_now();
    }
    rows
}

fn figure(row: &Value, name: &str) -> f64 {
    row[name].as_f64().unwrap_or_else(|| panic!("no {name}: {row:#}"))
}

#[test]
fn tcp_streams_over_a_link_with_a_rate_keep_it_and_say_what_processors_did() {
    const LINK: f64 = 10.0;
    /// User data of a full frame, and the bytes that a bucket of tokens has beyond a second's.
    const OF_A_FRAME: f64 = 1448.0 / 1514.0;
    const BUCKET: f64 = 16_384.0;
    let all_processors = std::thread::available_parallelism().unwrap().get();
    let rows = tcp(&["--sizes", "4096", "--link", "none,10"]);
    let protocols: Vec<_> = rows.iter().map(|row| row["protocol"].as_str().unwrap()).collect();
    assert_eq!(protocols, ["plain", "esp", "plain", "esp"]);
    for row in &rows {
        let rate = figure(row, "mbit_per_second");
        assert!(rate > 0.0 && figure(row, "received_bytes") > 0.0, "{row:#}");
        assert!(figure(row, "link_bytes") > figure(row, "received_bytes"), "{row:#}");
        for end in ["sender", "receiver"] {
            let states = ["user", "system", "softirq", "irq", "idle", "steal"];
            let sum: f64 = states.iter().map(|state| figure(row, &format!("{end}_{state}"))).sum();
            assert!((sum - 1.0).abs() < 1e-6, "{row:#}");
            // A run lasts a second; the kernel counts each processor's time, wherever it goes.
            let processors = row[format!("{end}_processors")].as_str().unwrap().split(' ').count();
            assert!(figure(row, &format!("{end}_processor_seconds")) > 0.5 * processors as f64, "{row:#}");
        }
        // A stream at each end, and a worker where there is a gateway.
        let threads = if row["protocol"] == "plain" { 1 } else { 2 };
        let of_end = |end: &str| row[format!("{end}_processors")].as_str().unwrap().split(' ').count();
        let (fewest, are_apart) = (of_end("sender").min(of_end("receiver")), row["ends_apart"] == true);
        let is_shared = if are_apart { threads > fewest } else { 2 * threads > fewest };
        assert_eq!(row["processors_shared"], is_shared, "{row:#}");
        assert_eq!((&row["conforming"], are_apart), (&false.into(), all_processors > 1), "{row:#}");
    }
    for row in rows.iter().filter(|row| !row["link_mbit_per_second"].is_null()) {
        let rate = figure(row, "mbit_per_second");
        let most = 1.05 * OF_A_FRAME * (LINK + 8e-6 * BUCKET);
        assert!((0.5 * LINK..most).contains(&rate), "{row:#}");
        // The sender writes for a second; what its socket has then comes at the link's rate.
        let received = figure(row, "received_bytes") * 8e-6;
        assert!((0.8..4.0).contains(&(received / rate)), "{row:#}");
    }
    let free = figure(&rows[0], "mbit_per_second");
    assert!(free > 2.0 * LINK, "the link has no rate of its own: {free}");
    assert_eq!(rows[1]["engine"], "portable");
}

#[test]
fn each_step_of_tuning_is_measured_or_says_why_not() {
    let rows = tcp(&["--sizes", "16384", "--tuning", "each"]);
    let of = |step: &str| -> Vec<&Value> { rows.iter().filter(|row| row["tuning"] == step).collect() };
    assert_eq!(of("none").len(), 2, "plain IP and ESP");
    for step in ["sockets", "tcp", "offloads", "rings", "coalescing", "napi", "affinity", "mtu"] {
        match of(step)[..] {
            [left_out] => {
                let why = left_out["notes"][0].as_str().unwrap();
                assert!(why.starts_with("it changes nothing here: "), "{left_out:#}");
                assert!(left_out["mbit_per_second"].is_null(), "{left_out:#}");
            }
            [plain, esp] => {
                for row in [plain, esp] {
                    assert!(row["tuning_gain_mbit_per_second"].is_number(), "{row:#}");
                    assert_eq!(row["tuning_verdict"], "one repetition says nothing", "{row:#}");
                    assert!(figure(row, "mbit_per_second") > 0.0);
                    assert_eq!(row["mtu_bytes"], if step == "mtu" { 9000 } else { 1500 }, "{row:#}");
                }
            }
            _ => panic!("{step}: {:#?}", of(step)),
        }
    }
    // The one step that every cable lets itself be set to.
    assert!(of("mtu").len() == 2 && of("mtu").iter().all(|row| row["mtu_bytes"] == 9000), "{:#?}", of("mtu"));
    for step in ["governor", "huge-pages", "isolation"] {
        assert!(of(step)[0]["notes"][0].as_str().unwrap().contains("of the whole machine"));
    }
}

#[test]
fn every_protocol_and_mode_carries_streams_with_jumbo_frames() {
    let words = ["--sizes", "32768", "--protocols", "all", "--modes", "tunnel,transport", "--mtu", "9000"];
    let rows = tcp(&words);
    let of = |mode: &str| -> Vec<&str> {
        rows.iter().filter(|row| row["mode"] == mode).map(|row| row["protocol"].as_str().unwrap()).collect()
    };
    assert_eq!(of("tunnel"), ["esp", "esp-in-udp", "ah", "ah+esp", "vpe", "vpe-in-udp"]);
    assert_eq!(of("transport"), ["esp", "esp-in-udp", "ah", "ah+esp"], "VPE has tunnel mode alone");
    assert_eq!(rows.iter().filter(|row| row["protocol"] == "plain").count(), 2);
    for row in &rows {
        assert!(figure(row, "mbit_per_second") > 0.0 && row["mtu_bytes"] == 9000, "{row:#}");
    }
}

#[test]
fn wrong_options_of_tcp_streams_are_told_with_the_code_for_the_command_line() {
    for (wrong, told) in [
        (["--protocols", "ipip"], "expected esp, esp-in-udp"),
        (["--suites", "md5"], "esp has none of these suites"),
        (["--link", "fast"], "expected Mbit/s"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_testudo"));
        let output = command.args(["lab", "tcp"]).args(wrong).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(told), "{said}");
    }
}

/// `testudo lab COMMAND` with trials that are as short as they can be.
fn short(command: &str, more: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_testudo"));
    program.args(["lab", command, "--quick", "--trial-seconds", "0.005", "--repetitions", "1"]);
    program.args(["--engine", "portable"]).args(more).output().unwrap()
}

#[test]
fn every_placement_is_measured_and_drawn_and_each_packets_time_has_its_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("placements.svg");
    let words = ["--suites", "des-sha1", "--sizes", "64,1518", "--json", "--svg", picture.to_str().unwrap()];
    let rows = rows(&short("placements", &words));
    let of = |placement: &str, bytes: u64| -> Vec<&Value> {
        let is_of = |row: &&Value| {
            row["placement"] == placement && row["suite"] == "des-sha1" && row["frame_bytes"] == bytes
        };
        rows.iter().filter(is_of).collect()
    };
    for placement in ["none", "io", "crypto", "both"] {
        for bytes in [64, 1518] {
            let of_it = of(placement, bytes);
            let blocks: Vec<&str> = of_it.iter().map(|row| row["block"].as_str().unwrap()).collect();
            assert_eq!(blocks, ["IP", "IPsec look-up", "IPsec headers", "cryptography"], "{placement}");
            let share: f64 = of_it.iter().map(|row| figure(row, "share")).sum();
            assert!((share - 1.0).abs() < 1e-6, "{placement}, {bytes}: {share}");
            for row in of_it {
                assert!(figure(row, "capacity") > 0.0 && figure(row, "turnaround_us") >= 0.0, "{row:#}");
                assert!(row["bottleneck"].is_string() && row.get("throughput").is_some(), "{row:#}");
            }
        }
    }
    for threads in 0..=2 {
        let is_of = |row: &&Value| row["suite"] == "bypass" && row["io_threads"] == threads;
        assert!(rows.iter().any(|row| is_of(&row)), "no gateway with {threads} I/O threads");
    }
    let drawn = std::fs::read_to_string(picture).unwrap();
    assert!(drawn.starts_with("<svg ") && drawn.contains("<polyline "), "{drawn}");
}

#[test]
fn a_placement_that_this_machine_has_not_says_why_and_options_that_are_wrong_are_refused() {
    let words =
        ["--suites", "des-sha1", "--sizes", "64", "--placements", "crypto", "--bypass-io-threads", "none"];
    let gpu = short("placements", &[&words[..], &["--offload-engine", "gpu"]].concat());
    let text = String::from_utf8_lossy(&gpu.stdout);
    assert!(gpu.status.success(), "{}", String::from_utf8_lossy(&gpu.stderr));
    // Where there is a GPU it is measured.
    assert!(
        text.contains("des-sha1, crypto, frames of 64: not possible here: ") || text.contains("cryptography"),
        "{text}"
    );
    // Its driver computes on the worker's own processor, where plugin and DPDK are there at all.
    let cryptodev = short("placements", &[&words[..], &["--offload-engine", "cryptodev"]].concat());
    let text = String::from_utf8_lossy(&cryptodev.stdout);
    let line = text.lines().find(|line| line.contains("des-sha1, crypto, frames of 64: not possible here: "));
    let software =
        ["a driver in software; cryptodev would take nothing off", "engine cryptodev is not available"];
    assert!(line.is_some_and(|line| software.iter().any(|told| line.contains(told))), "{text}");
    let table = short("placements", &words);
    let text = String::from_utf8_lossy(&table.stdout);
    for part in ["(Mbit/s)", "(µs)", "cryptography", "bottleneck"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    for (wrong, told) in [
        (["--placements", "all"], "none, io, crypto, both"),
        (["--sizes", "63"], "64 to 1518"),
        (["--offload-engine", "abacus"], "there is no engine \"abacus\""),
    ] {
        let output = short("placements", &wrong);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code().is_some_and(|code| [2, 5].contains(&code)) && said.contains(told),
            "{said}"
        );
    }
}

#[test]
fn the_picture_of_streams_has_throughput_and_the_processors_of_both_ends() {
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("tcp.svg");
    let rows = tcp(&["--sizes", "512,32768", "--pin", "--svg", picture.to_str().unwrap()]);
    assert_eq!(rows.len(), 4);
    let drawn = std::fs::read_to_string(picture).unwrap();
    let count = |part: &str| drawn.matches(part).count();
    assert_eq!([count("A TCP stream over message size"), count("Processors' time by state")], [1, 1]);
    assert!(drawn.contains("left bar: the sender's end, right bar: the receiver's"), "{drawn}");
    // Two ends of four rows; no processor is without a state.
    assert!(count("<title>") >= 8 && count("<title>idle: ") <= 8, "{drawn}");
}

/// Rows of `lab rfc2544` over a network, of short trials; nothing of it stays.
fn over(kind: &str) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_testudo"));
    command.args(["lab", "rfc2544", "--quick", "--trial-seconds", "0.05", "--repetitions", "1", "--json"]);
    command.args(["--engine", "portable", "--tests", "throughput,latency", "--sizes", "64,1518"]);
    let rows = rows(&command.args(["--over", kind]).env("TMPDIR", folder.path()).output().unwrap());
    let deadline = Instant::now() + Duration::from_secs(10);
    while std::fs::read_dir(folder.path()).unwrap().count() > 0 {
        assert!(Instant::now() < deadline, "the run left files behind");
        std::thread::yield_now();
    }
    rows
}

/// What rows over a network have, whatever the machine's speed.
fn check_over(kind: &str) {
    let rows = over(kind);
    let of = |test: &str, bytes: u64| -> Vec<&Value> {
        rows.iter().filter(|row| row["test"] == test && row["frame_bytes"] == bytes).collect()
    };
    for bytes in [64, 1518] {
        assert_eq!((of("throughput", bytes).len(), of("latency", bytes).len()), (1, 6), "{rows:#?}");
        // However short a search is, packets came through at each rate.
        assert!(of("latency", bytes).iter().any(|row| figure(row, "throughput_packets_per_second") > 0.0));
        for row in of("latency", bytes) {
            let latency = &row["latency_us"];
            if !latency.is_null() {
                assert!(0.0 < figure(latency, "p50") && figure(latency, "p50") <= figure(latency, "p99"));
            }
        }
    }
    for row in &rows {
        assert_eq!(
            (&row["over"], &row["engine"], &row["sas"]),
            (&kind.into(), &"portable".into(), &1.into())
        );
        assert_eq!(row["flows"], 1024);
        let notes: Vec<&str> = row["notes"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert!(notes.iter().any(|note| note.contains("packets may be 0.2 s late")), "{notes:?}");
        let shared = row["cores"]["shared"] == true;
        assert_eq!(notes.iter().any(|note| note.starts_with("cores shared: 4 threads")), shared, "{row:#}");
    }
}

#[test]
fn rates_and_latencies_are_measured_over_virtual_cables() {
    check_over("veth");
    let mut command = Command::new(env!("CARGO_BIN_EXE_testudo"));
    let refused = command.args(["lab", "rfc2544", "--over", "veth", "--sas", "3"]).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(2) && said.contains("a power of two, 64 at most"), "{said}");
}

/// The long frames among them are longer, sealed, than those of DPDK's TAP. Its driver of AF_XDP needs root.
#[test]
fn rates_and_latencies_are_measured_over_dpdk() {
    if std::env::var_os("TESTUDO_WITHOUT_DPDK").is_some() {
        println!("skipped: TESTUDO_WITHOUT_DPDK is set");
        return;
    }
    let beside = Path::new(env!("CARGO_BIN_EXE_testudo")).parent().unwrap();
    // The gateways find it beside the program.
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/shim.sh");
    assert!(Command::new(script).arg(beside).arg("dpdk").status().unwrap().success());
    check_over("dpdk");
    assert_eq!(overload_over("dpdk", &["--sizes", "512"]).len(), OVERLOAD_STEPS.len());
}

/// Rows of `lab overload` over a network, of short trials, and what they have whatever the machine's speed.
fn overload_over(kind: &str, more: &[&str]) -> Vec<Value> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_testudo"));
    command.args(["lab", "overload", "--over", kind, "--trial-seconds", "0.05", "--repetitions", "1"]);
    let rows = rows(&command.args(["--engine", "portable", "--json"]).args(more).output().unwrap());
    for row in &rows {
        assert_eq!((&row["over"], &row["engine"]), (&kind.into(), &"portable".into()));
        assert!(figure(row, "received_packets_per_second") > 0.0, "{row:#}");
        assert!((0.0..=1.0).contains(&figure(row, "success_ratio")), "{row:#}");
        // A trial of a slow machine has few batches that gateways measure.
        let is_known = !row["notes"].to_string().contains("processor load: not known");
        let load = row["processor_load"].as_f64();
        assert_eq!((load.is_some(), row["processor_load"].is_null()), (is_known, !is_known), "{row:#}");
        assert!(load.is_none_or(|load| 0.0 < load && load <= 1.0), "packets came through: {row:#}");
    }
    rows
}

/// The highest success ratio of these rows.
fn best(rows: &[&Value]) -> f64 {
    rows.iter().map(|row| figure(row, "success_ratio")).fold(0.0, f64::max)
}

/// `lab overload` over a network, of more flows than a process usually has files, from a network of their
/// own.
#[test]
fn overload_is_measured_over_virtual_cables_with_any_sources_and_many_flows() {
    // Flows are of 32 parts of that network, and policies drop what no tunnel is for.
    let words = ["--sizes", "512", "--sources", "10.9.0.0/16", "--flows", "2000", "--sas", "32"];
    let rows = overload_over("veth", &words);
    assert_eq!(rows.len(), OVERLOAD_STEPS.len());
    assert!(best(&rows.iter().collect::<Vec<_>>()) > 0.5, "{rows:#?}");
    assert!(rows.iter().all(|row| row["sas"] == 32 && row["flows"] == 2000), "{rows:#?}");
}

/// Packets of all lengths of a mix, through SAs of their own: of one that did not work an eighth would be
/// lost at any load.
#[test]
fn mixes_and_several_sas_are_measured_over_af_xdp() {
    if std::env::var_os("TESTUDO_WITHOUT_XDP").is_some() {
        println!("skipped: TESTUDO_WITHOUT_XDP is set");
        return;
    }
    let rows = overload_over("xdp", &["--sizes", "imix,imix-simple", "--sas", "8", "--flows", "64"]);
    for mix in ["imix", "imix-simple"] {
        let of_mix: Vec<&Value> = rows.iter().filter(|row| row["frame_bytes"] == mix).collect();
        assert_eq!(of_mix.len(), OVERLOAD_STEPS.len());
        assert!(best(&of_mix) > 0.9, "{of_mix:#?}");
        assert!(of_mix.iter().all(|row| row["sas"] == 8 && row["flows"] == 64), "{of_mix:#?}");
    }
}

/// bpf(2) is for root outside of user namespaces.
#[test]
fn rates_and_latencies_are_measured_over_af_xdp() {
    if std::env::var_os("TESTUDO_WITHOUT_XDP").is_some() {
        println!("skipped: TESTUDO_WITHOUT_XDP is set");
        return;
    }
    check_over("xdp");
}

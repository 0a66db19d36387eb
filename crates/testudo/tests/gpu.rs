//! The engine `gpu` in the program, on PoCL: it seals what every engine seals, errors name what there is, and
//! where there is no GPU the next engine is used.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, dead_code, reason = "a test that cannot prepare its files has failed")]

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;
use support::capture::capture;
use support::config::{CONFIGURATION, pair};
use support::gateway::{PROGRAM, Said};
use support::wait;
use tempfile::TempDir;

const NO_ENGINE: i32 = 5;
const POCL: &str = "portable computing";

/// A folder with packets for a tunnel, and the configuration of its gateway with the GPU `device`.
fn fixture(suite: &str, device: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut config = pair(true).unwrap()[0].clone();
    config.unprotected = "interface = \"eth0\"".to_owned();
    config.tunnels[0].selectors = vec![("10.1.0.0/16".to_owned(), "10.2.0.0/16".to_owned())];
    config.tunnels[0].more = "known_answer = { next_sequence_number = 1, iv_seed = 7 }".to_owned();
    config.tunnels[0].suite = suite.to_owned();
    config.tunnels[0].outbound = support::config::Sa::random(0x1001, suite).unwrap();
    config.tunnels[0].inbound = support::config::Sa::random(0x1002, suite).unwrap();
    config.write(folder.path()).unwrap();
    let path = folder.path().join(CONFIGURATION);
    let text = fs::read_to_string(&path).unwrap();
    let text = text.replacen("[gateway]\n", "[gateway]\nengines = [\"gpu\", \"portable\"]\n", 1);
    fs::write(&path, text + &format!("\n[engine.gpu]\ndevice = \"{device}\"\n")).unwrap();
    fs::write(folder.path().join("in.pcap"), capture().unwrap()).unwrap();
    folder
}

fn replay(folder: &Path, output: &str, words: &[&str]) -> Said {
    let mut command = Command::new(PROGRAM);
    let output = format!("unprotected={output}");
    let files = ["replay", CONFIGURATION, "--rx", "protected=in.pcap", "--tx", &output];
    command.current_dir(folder).args(files).args(words);
    wait::output(&mut command).unwrap().into()
}

#[test]
fn a_gpu_seals_what_the_portable_engine_seals() {
    for suite in ["aes128gcm16", "aes256-sha256", "3des-sha1", "aes192ctr-sha512"] {
        let folder = fixture(suite, POCL);
        let by_gpu = replay(folder.path(), "gpu.pcap", &["--engine", "gpu"]);
        assert_eq!(by_gpu.code, Some(0), "{suite}: {by_gpu:#?}");
        let by_portable = replay(folder.path(), "portable.pcap", &["--engine", "portable"]);
        assert_eq!(by_portable.code, Some(0), "{suite}: {by_portable:#?}");
        let [gpu, portable] =
            ["gpu.pcap", "portable.pcap"].map(|name| fs::read(folder.path().join(name)).unwrap());
        assert!(gpu.len() > 200 * 700, "{} bytes", gpu.len());
        assert!(gpu == portable, "{suite}");
    }
}

/// Headers, IVs, padding and trailers by the kernel are those by the processor.
#[test]
fn a_gpu_that_writes_headers_sends_what_the_portable_engine_sends() {
    for suite in ["aes128gcm16", "aes256-sha256", "3des-sha1", "aes192ctr-sha512"] {
        let folder = fixture(suite, POCL);
        let path = folder.path().join(CONFIGURATION);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text + "gpu_headers = true\n").unwrap();
        let by_gpu = replay(folder.path(), "gpu.pcap", &["--engine", "gpu"]);
        assert_eq!(by_gpu.code, Some(0), "{suite}: {by_gpu:#?}");
        let by_portable = replay(folder.path(), "portable.pcap", &["--engine", "portable"]);
        assert_eq!(by_portable.code, Some(0), "{suite}: {by_portable:#?}");
        let [gpu, portable] =
            ["gpu.pcap", "portable.pcap"].map(|name| fs::read(folder.path().join(name)).unwrap());
        assert!(gpu.len() > 200 * 700 && gpu == portable, "{suite}: {} bytes", gpu.len());
    }
}

#[test]
fn without_the_gpu_one_line_says_what_there_is_and_the_next_engine_is_used() {
    let folder = fixture("aes128gcm16", "no such device");
    let said = replay(folder.path(), "out.pcap", &["--engine", "gpu"]);
    assert_eq!(said.code, Some(NO_ENGINE), "{said:#?}");
    assert!(said.stderr.lines().count() == 1 && said.stderr.contains("no such device"), "{said:#?}");
    let said = replay(folder.path(), "out.pcap", &[]);
    assert_eq!(said.code, Some(0), "the next engine does it: {said:#?}");
}

/// What the program prints for these words, without JSON and with it.
fn bench(words: &str) -> (String, serde_json::Value) {
    printed(words, &["--engines", "gpu", "--gpu", POCL])
}

fn printed(words: &str, others: &[&str]) -> (String, serde_json::Value) {
    let run = |more: &[&str]| -> Said {
        let mut command = Command::new(PROGRAM);
        command.arg("bench").args(words.split_whitespace()).args(others);
        wait::output(command.args(more)).unwrap().into()
    };
    let (table, rows) = (run(&[]), run(&["--json"]));
    assert_eq!((table.code, rows.code), (Some(0), Some(0)), "{table:#?} {rows:#?}");
    (table.stdout, serde_json::from_str(&rows.stdout).unwrap())
}

#[test]
fn a_pocl_row_says_so() {
    let note = "PoCL: correctness only";
    let is_named = |row: &serde_json::Value| {
        let device = row["device"].as_str().is_some_and(|device| device.contains("Portable Computing"));
        device && row["note"] == note
    };
    let (table, rows) = bench("--suites aes128-sha1 --sizes 64 --repetitions 1 --milliseconds 5");
    assert!(table.contains(&format!("gpu ({note}: Portable Computing Language")), "{table}");
    assert!(table.contains("its figures are no speed"), "{table}");
    assert!(rows.as_array().is_some_and(|rows| rows.len() == 2 && rows.iter().all(is_named)), "{rows:#}");
    let (table, rows) = bench("scheduler --experiment ranges --sizes random --chunks 1");
    assert!(table.contains(note) && table.contains("no speed was measured"), "{table}");
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), 4);
    for row in rows {
        assert!(is_named(row) && row["gbit_s"].is_null(), "no speed of PoCL: {row:#}");
        assert_eq!(row["reordered"], 0, "{row:#}");
        let [judged, spilled] = ["judged_packets", "spilled"].map(|name| row[name].as_u64().unwrap());
        assert!(judged >= 16_000 && spilled * 20 < judged, "{row:#}");
    }
}

#[test]
fn bench_gpu_judges_pocl_and_has_no_speed_of_it() {
    let words = "gpu --suites aes128-sha1,aes256gcm16 --sizes 64,imix --parts launches,gateways,latency";
    let (table, rows) = printed(words, &["--gpu", POCL]);
    assert!(table.contains("PoCL: correctness only: Portable Computing Language"), "{table}");
    assert!(table.contains("no speed was measured") && !table.contains("PIPSEA"), "{table}");
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), 8);
    for row in rows {
        for name in ["kernels_gbit_s", "with_transfers_gbit_s", "gateway_gbit_s", "gateways_gbit_s"] {
            assert!(row[name].is_null(), "{name}: {row:#}");
        }
        assert_eq!(row["judged_packets"], 256, "{row:#}");
        assert_eq!(row["spilled"], 0.0, "all of them are the device's: {row:#}");
    }
}

#[test]
fn bench_gpu_without_a_gpu_predicts_and_says_why() {
    let words = "gpu --suites aes128-sha1 --sizes 1024 --parts launches";
    let (table, rows) = printed(words, &[]);
    if !table.starts_with("No GPU here: ") {
        // This machine has one.
        return;
    }
    assert!(table.contains("prediction: with transfers"), "{table}");
    for row in rows.as_array().unwrap() {
        assert!(row["predicted_kernels_gbit_s"].as_f64().is_some_and(|rate| rate > 1.0), "{row:#}");
        assert!(row["kernels_gbit_s"].is_null() && row["device"].is_null(), "{row:#}");
    }
    let said: Said =
        wait::output(Command::new(PROGRAM).args(["bench", "gpu", "--gpu", "abacus"])).unwrap().into();
    assert_eq!(said.code, Some(NO_ENGINE), "{said:#?}");
}

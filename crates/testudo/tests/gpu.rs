//! The engine `gpu` in the program, on PoCL: it seals what every engine seals, errors name what there is, and
//! where there is no GPU the next engine is used.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, dead_code, reason = "a test that cannot prepare its files has failed")]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
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

/// A program in the shell's language.
fn shell_program(path: &Path, text: &str) {
    fs::write(path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// What the script measures of a machine with so many GPUs: its commands, of which a stand-in for the program
/// takes note. Another one says how many there are.
fn commands_of_the_script(gpus: usize, words: &[&str]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let (program, log) = (folder.path().join("testudo"), folder.path().join("log"));
    shell_program(&program, &format!("echo \"$*\" >> '{}'\necho '[]'", log.display()));
    shell_program(&folder.path().join("nvidia-smi"), &"echo a GPU\n".repeat(gpus));
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/bench-gpu.sh");
    let results = folder.path().join("results");
    let mut command = Command::new("bash");
    command.arg(script).arg(&program).arg(&results).args(words).env("PATH", path);
    let said: Said = wait::output(&mut command).unwrap().into();
    assert_eq!(said.code, Some(0), "{said:#?}");
    let log = fs::read_to_string(log).unwrap();
    log.lines().filter(|line| *line != "--version").map(str::to_owned).collect()
}

/// Each command is one that the program understands, and those of a GPU are of the one that is named.
#[test]
fn the_script_that_measures_a_gpu_measures_all_of_it_by_commands_that_there_are() {
    for words in [&["--gpu", "NVIDIA"][..], &["--quick", "--gpu", "NVIDIA"]] {
        let of_one = commands_of_the_script(1, words);
        assert!(!of_one.iter().any(|command| command.contains("--gpus")), "{of_one:#?}");
        let commands = commands_of_the_script(2, words);
        assert_eq!(commands.len(), of_one.len() + 2, "{commands:#?}");
        for command in &commands {
            // What is wrong before it is an error, and nothing is measured.
            let mut program = Command::new(PROGRAM);
            program.args(command.split_whitespace()).arg("--help");
            let said: Said = wait::output(&mut program).unwrap().into();
            assert_eq!(said.code, Some(0), "{command}: {said:#?}");
        }
        for (part, is_of_gpu) in [
            ("bench gpu ", true),
            ("bench gpu --headers cpu,gpu ", true),
            ("bench gpu --gpus all ", true),
            ("bench scheduler --experiment algorithms --gpus all ", true),
            ("bench scheduler --experiment threading ", true),
            ("bench scheduler --experiment latency ", true),
            ("bench --live --engines gpu,", true),
            ("bench scheduler --experiment bound ", true),
            ("bench vpe --experiment scaling --cores --suite aes128gcm16 --workers 1,2", false),
            ("bench vpe --experiment scaling --cores --suite aes128-sha1 --workers 1,2", false),
            ("bench vpe --experiment scaling --cores --suite 3des-sha1 --workers 1,2", false),
            ("lab placements --latency --suites ", false),
            ("lab placements --latency --offload-engine gpu ", true),
            ("lab papers --only 002 ", true),
        ] {
            let of_it: Vec<_> = commands.iter().filter(|command| command.starts_with(part)).collect();
            assert!(!of_it.is_empty(), "{part} in {commands:#?}");
            let are_named = of_it.iter().all(|command| command.contains(" --gpu NVIDIA") == is_of_gpu);
            assert!(are_named, "{of_it:#?}");
        }
    }
}

#[test]
fn bench_gpu_writes_headers_on_pocl_and_judges_them() {
    let words = "gpu --suites aes128-sha1,aes256gcm16 --sizes imix --parts gateways --headers gpu";
    let (table, rows) = printed(&format!("{words} --directions outbound"), &["--gpu", POCL]);
    assert!(table.contains("headers by the GPU") && table.contains("no speed was measured"), "{table}");
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for row in rows {
        assert!(row["headers"] == "gpu" && row["gateway_gbit_s"].is_null(), "{row:#}");
        assert_eq!(row["judged_packets"], 256, "{row:#}");
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

//! `testudo lab efficiency` as its users start it: meters of the program, and prices.

#![allow(clippy::unwrap_used, reason = "a test panics on failure")]

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

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

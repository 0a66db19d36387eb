//! `make bench-ports`: what it reads and computes, and a run of a second over memif, with a real generator.

#![allow(clippy::unwrap_used, reason = "a test panics on failure")]

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

const PROGRAM: &str = env!("CARGO_BIN_EXE_testudo");

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts").join(name)
}

fn python(arguments: &[&str], file: &str) -> (bool, String, String) {
    let mut command = Command::new("python3");
    command.arg(script(file)).args(arguments).env("PYTHONDONTWRITEBYTECODE", "1");
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

#[test]
fn what_the_bench_of_ports_reads_and_computes_is_right() {
    let (succeeded, _, said) = python(&[], "bench_ports/test_figures.py");
    assert!(succeeded && said.contains("OK"), "{said}");
}

#[test]
fn what_the_bench_of_ports_cannot_do_is_told() {
    let folder = Path::new(PROGRAM).parent().unwrap().to_str().unwrap();
    for (wrong, told) in [
        (
            ["--ports", "carrier-pigeon"],
            "no port carrier-pigeon: tun-socket, xdp-generic, xdp-native, memif, ring",
        ),
        (["--sizes", "64,9000"], "a frame has 64 to 1440 bytes"),
        (["--seconds", "0"], "1 to 10 seconds"),
    ] {
        let (succeeded, _, said) = python(&["--programs", folder, wrong[0], wrong[1]], "bench_ports");
        assert!(!succeeded && said.contains(told), "{said}");
    }
}

/// Without the peer, whose build takes longer than all the rest.
#[test]
fn the_bench_of_ports_measures_a_gateway_and_its_port_over_memif() {
    if std::env::var_os("TESTUDO_WITHOUT_DPDK").is_some() {
        println!("skipped: TESTUDO_WITHOUT_DPDK is set");
        return;
    }
    let beside = Path::new(PROGRAM).parent().unwrap();
    assert!(Command::new(script("shim.sh")).arg(beside).arg("dpdk").status().unwrap().success());
    let options = ["--programs", beside.to_str().unwrap(), "--ports", "memif", "--sizes", "64"];
    let more = ["--repetitions", "1", "--seconds", "1", "--json"];
    let (succeeded, rows, said) = python(&[&options[..], &more[..]].concat(), "bench_ports");
    assert!(succeeded, "{said}");
    assert!(said.contains("left out: ipsec-secgw"), "{said}");
    let rows: Vec<Value> = serde_json::from_str(&rows).unwrap();
    let names: Vec<_> = rows.iter().map(|row| row["port"].as_str().unwrap()).collect();
    assert_eq!(names, ["memif", "memif, receive and send alone"]);
    for row in &rows {
        let keys: Vec<_> = row.as_object().unwrap().keys().map(String::as_str).collect();
        let promised = [
            "bare_packets_per_second",
            "cycles_per_packet",
            "frame_bytes",
            "packets_per_second",
            "peer_packets_per_second",
            "port",
        ];
        let mut sorted = keys.clone();
        sorted.sort_unstable();
        assert_eq!((sorted, &row["frame_bytes"]), (promised.to_vec(), &64.into()));
        assert!(row["peer_packets_per_second"].is_null() && row["cycles_per_packet"].as_f64() > Some(0.0));
    }
    let [whole, alone] = rows.as_slice() else { panic!("{rows:?}") };
    assert!(whole["packets_per_second"].as_f64() > Some(0.0), "{whole}");
    assert!(whole["bare_packets_per_second"].as_f64() > Some(0.0), "{whole}");
    assert!(alone["packets_per_second"].is_null() && alone["bare_packets_per_second"].is_null());
    assert!(alone["cycles_per_packet"].as_f64() < whole["cycles_per_packet"].as_f64(), "{rows:?}");
}

//! The demonstration judges gateways: one that keeps its promises passes, and for every promise, one that
//! breaks it is found out. So do the measurements of TCP streams through gateways. The gateways are stand-ins
//! of a hundred lines, so that each flaw can be provoked.

#![forbid(unsafe_code)]

mod shaped;
mod stand_in;

use std::error::Error;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::Value;
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::bench::{BenchArgs, Gpus};
use testudo_lab::command::LabArgs;
use testudo_lab::demo::{self, DemoOptions};
use testudo_lab::meters::Meters;

#[derive(Parser)]
struct DemoLine {
    #[command(flatten)]
    options: DemoOptions,
}

#[derive(Parser)]
struct BenchLine {
    #[command(flatten)]
    bench: BenchArgs,
}

#[derive(Parser)]
struct LabLine {
    #[command(flatten)]
    lab: LabArgs,
}

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    match arguments.first().and_then(|first| first.to_str()) {
        Some("demo") => demo::run(&DemoLine::parse_from(arguments).options, Vec::new()),
        Some("bench") => BenchLine::parse_from(arguments).bench.run(Vec::new(), &no_gpus()),
        Some("lab") => {
            let lab = LabLine::parse_from(arguments).lab;
            lab.run(Vec::new(), Vec::new(), &no_gpus(), Meters::of_this_machine)
        }
        Some("shaped") => shaped::main(),
        Some("init" | "run" | "status") => stand_in::main(&arguments),
        _ => tests(),
    }
}

fn no_gpus() -> Gpus {
    Gpus {
        find: Box::new(|_, _| Err("there is none".to_owned())),
        idle: Box::new(|| Err("there is none".to_owned())),
        steps: |_, _, _, _| None,
    }
}

fn tests() -> ExitCode {
    Suite::new()
        .test("a_gateway_that_keeps_its_promises_passes_over_ipv4_and_ipv6", passes)
        .test("cleartext_on_the_link_is_seen", |_| {
            fails("cleartext", "cleartext packets on the unprotected link")
        })
        .test("accepted_replays_are_noticed", |_| fails("replays", "16 replayed packets sent, 0 refused"))
        .test("accepted_forgeries_are_noticed", |_| fails("forgeries", "8 forged packets sent, 0 refused"))
        .test("corrupted_data_is_noticed", |_| fails("corrupts", "corrupted data: wrong TCP data"))
        .test("a_gateway_that_dies_is_named_with_its_log", |_| fails("dies", "gateway A has ended by itself"))
        .test("a_gateway_that_refuses_to_start_is_named_with_its_log", |_| fails("refuses", "no such device"))
        .test("a_gateway_that_ignores_sigterm_is_noticed", |_| fails("lingers", "did not end after SIGTERM"))
        .test("an_interrupted_demonstration_leaves_nothing_behind", interrupted)
        .test("the_bench_measures_a_gateway_beside_the_bare_link", compares)
        .test("tcp_streams_are_measured_beside_plain_ip_and_counted_at_the_receiver", streams)
        .test("tcp_streams_that_are_corrupted_are_no_measurement", corrupted_streams)
        .test("an_interrupted_measurement_of_tcp_streams_leaves_nothing_behind", interrupted_streams)
        .test("the_rate_of_a_shaped_path_is_found_within_2_percent_or_the_row_says_why_not", shaped_path)
        .run(|| Ok::<(), String>(()))
}

/// What the harness finds through sockets, of a path that the kernel shapes. Other work on the machine may
/// keep it from converging, which the row says; it is asked again, a few times. What comes through a flood is
/// the rate of the bucket, however busy the machine is.
fn shaped_path((): &mut ()) -> TestResult {
    const ATTEMPTS: u32 = 4;
    let mut flooded_well = false;
    for _ in 0..ATTEMPTS {
        let output = Command::new(std::env::current_exe()?).arg("shaped").output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into());
        }
        let row: Value = serde_json::from_slice(&output.stdout)?;
        println!("{row}");
        let is_near = |name: &str| {
            let figure = |name: &str| row[name].as_f64().ok_or(format!("no {name} in {row}"));
            Ok::<_, String>((figure(name)? / figure("known")? - 1.0).abs() <= 0.02)
        };
        flooded_well |= is_near("flooded")?;
        let (is_near, says) = (is_near("found")? && is_near("came_back")?, !row["unconverged"].is_null());
        match (is_near, says || !row["limit"].is_null()) {
            (true, false) => return Ok(()),
            (false, false) => return Err(format!("2 % off, and the row says nothing: {row}").into()),
            (_, true) => {}
        }
    }
    if flooded_well { Ok(()) } else { Err("neither a flood nor a search came near".into()) }
}

/// `folder` takes the temporary files of one run, so that leftovers are visible.
fn command(folder: &Path, flaw: &str, arguments: &[&str]) -> Result<Command, Box<dyn Error>> {
    let program = std::env::current_exe()?;
    let mut command = Command::new(&program);
    command.args(["demo", "--json", "--testudo"]).arg(&program).args(arguments);
    command.env("TMPDIR", folder).env(stand_in::FLAW, flaw).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok(command)
}

fn run(flaw: &str, arguments: &[&str]) -> Result<(Output, Value), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let output = command(folder.path(), flaw, arguments)?.output()?;
    wait_until_empty(folder.path())?;
    let value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("{error}: {}", String::from_utf8_lossy(&output.stderr)))?;
    Ok((output, value))
}

fn compares((): &mut ()) -> TestResult {
    let (folder, program) = (tempfile::tempdir()?, std::env::current_exe()?);
    let mut command = Command::new(&program);
    command
        .args(["bench", "host", "--json", "--seconds", "1", "--repetitions", "1"])
        .arg("--testudo")
        .arg(&program);
    let output = command.env("TMPDIR", folder.path()).env(stand_in::FLAW, "none").output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(report["engine"], "stand-in");
    let ratio = report["ratio_to_bare"].as_f64().ok_or("no ratio")?;
    assert!(ratio > 0.0 && ratio < 1.0, "{report:#}");
    wait_until_empty(folder.path())
}

/// `lab tcp` with the stand-in's gateways.
fn tcp(folder: &Path, flaw: &str, arguments: &[&str]) -> Result<Command, Box<dyn Error>> {
    let program = std::env::current_exe()?;
    let mut command = Command::new(&program);
    command.args(["lab", "tcp", "--json", "--protocols", "esp-in-udp", "--testudo"]).arg(&program);
    command.args(arguments).env("TMPDIR", folder).env(stand_in::FLAW, flaw).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok(command)
}

fn streams((): &mut ()) -> TestResult {
    let folder = tempfile::tempdir()?;
    let words = ["--seconds", "1", "--repetitions", "1-2", "--sizes", "512,16384"];
    let output = tcp(folder.path(), "none", &words)?.output()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout)?;
    let of = |row: &Value| (row["protocol"].clone(), row["message_bytes"].clone());
    let expected = [("plain", 512), ("plain", 16_384), ("esp-in-udp", 512), ("esp-in-udp", 16_384)];
    let expected = expected.map(|(protocol, bytes)| (Value::from(protocol), Value::from(bytes)));
    assert_eq!(rows.iter().map(of).collect::<Vec<_>>(), expected);
    for row in &rows {
        let figure = |name: &str| row[name].as_f64().unwrap_or(f64::NAN);
        assert!(figure("mbit_per_second") > 0.0, "{row:#}");
        assert!(figure("received_bytes") > 0.0 && figure("link_bytes") > figure("received_bytes"), "{row:#}");
        // Messages of one size are whole.
        assert_eq!(figure("received_bytes") % figure("message_bytes"), 0.0, "{row:#}");
        assert_eq!(figure("repetitions"), 2.0, "one repetition has no interval: {row:#}");
        assert_eq!(row["conforming"], false, "{row:#}");
    }
    assert_eq!(rows[2]["engine"], "stand-in");
    assert!(rows[2]["share_of_plain"].as_f64() > Some(0.0), "{:#}", rows[2]);
    wait_until_empty(folder.path())
}

fn corrupted_streams((): &mut ()) -> TestResult {
    let folder = tempfile::tempdir()?;
    let words = ["--seconds", "1", "--repetitions", "1", "--sizes", "16384"];
    let output = tcp(folder.path(), "corrupts", &words)?.output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("corrupted data: wrong TCP data"), "{said}");
    assert!(output.stdout.is_empty(), "no figures: {}", String::from_utf8_lossy(&output.stdout));
    wait_until_empty(folder.path())
}

fn interrupted_streams((): &mut ()) -> TestResult {
    let folder = tempfile::tempdir()?;
    let words = ["--seconds", "1", "--sizes", "16384", "--repetitions", "100"];
    let mut child = tcp(folder.path(), "none", &words)?.spawn()?;
    let started = Instant::now();
    while !has_run(folder.path())? {
        assert!(started.elapsed() < Duration::from_secs(60), "it does not start");
        assert!(child.try_wait()?.is_none(), "it has ended");
        std::thread::sleep(Duration::from_millis(10));
    }
    terminate(&child)?;
    child.wait()?;
    wait_until_empty(folder.path())
}

/// Whether a gateway runs in any of a run's networks, each of which has a folder.
fn has_run(folder: &Path) -> std::io::Result<bool> {
    let runs = std::fs::read_dir(folder)?.collect::<std::io::Result<Vec<_>>>()?;
    let of_each: Vec<bool> = runs.iter().map(|run| has_state(&run.path())).collect::<std::io::Result<_>>()?;
    Ok(of_each.contains(&true))
}

/// The files of the run disappear with it, or shortly after.
fn wait_until_empty(folder: &Path) -> TestResult {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let left: Vec<PathBuf> =
            std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
        match left.first() {
            None => return Ok(()),
            Some(path) if Instant::now() > deadline => {
                return Err(format!("left behind: {}", path.display()).into());
            }
            Some(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

fn passes((): &mut ()) -> TestResult {
    for arguments in [[].as_slice(), &["--ipv6"]] {
        let (output, report) = run("none", &[&["--seconds", "1"], arguments].concat())?;
        assert!(output.status.success(), "{report:#} {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(report["passed"], true, "{report:#}");
        assert_eq!(report["cleartext_packets_outside"], 0, "{report:#}");
        assert_eq!((&report["replayed_refused"], &report["forged_refused"]), (&16.into(), &8.into()));
        assert!(report["tcp_gbit_s"].as_f64() > Some(0.0), "{report:#}");
    }
    Ok(())
}

fn fails(flaw: &str, reason: &str) -> TestResult {
    let (output, report) = run(flaw, &["--seconds", "1"])?;
    assert_eq!(output.status.code(), Some(1), "{report:#}");
    assert_eq!(report["passed"], false, "{report:#}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains(reason), "expected {reason:?}, was {said}");
    Ok(())
}

fn interrupted((): &mut ()) -> TestResult {
    let folder = tempfile::tempdir()?;
    let mut child = command(folder.path(), "none", &["--seconds", "600"])?.spawn()?;
    let started = Instant::now();
    while !has_state(folder.path())? {
        assert!(started.elapsed() < Duration::from_secs(30), "it does not start");
        assert!(child.try_wait()?.is_none(), "it has ended");
        std::thread::sleep(Duration::from_millis(10));
    }
    terminate(&child)?;
    child.wait()?;
    wait_until_empty(folder.path())
}

/// Whether a gateway runs: its log exists.
fn has_state(folder: &Path) -> std::io::Result<bool> {
    let runs = std::fs::read_dir(folder)?.collect::<std::io::Result<Vec<_>>>()?;
    Ok(runs.iter().any(|run| run.path().join("gateway-b/log").exists()))
}

fn terminate(child: &Child) -> std::io::Result<()> {
    let pid = rustix::process::Pid::from_child(child);
    Ok(rustix::process::kill_process(pid, rustix::process::Signal::TERM)?)
}

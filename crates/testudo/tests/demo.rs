//! `testudo demo` as a new user runs it: watched from another terminal, and on systems that do not let it
//! create networks.

use serde_json::Value;
use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_testudo");
const PATIENCE: Duration = Duration::from_secs(60);

type Outcome<T> = Result<T, Box<dyn Error>>;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs the demo in a user namespace, after `prepare`, a shell command that changes the namespace.
fn demo(prepare: &str, arguments: &[&str]) -> Outcome<Output> {
    let folder = tempfile::tempdir()?;
    let script = format!("{prepare} \"$@\"");
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &script, "sh", PROGRAM, "demo"]);
    let output = command.args(["--seconds", "1"]).args(arguments).env("TMPDIR", folder.path()).output()?;
    assert_eq!(fs::read_dir(folder.path())?.count(), 0, "the demo left files behind");
    Ok(output)
}

/// The report of `--json`; the demo must have passed.
fn report(output: &Output) -> Outcome<Value> {
    assert!(output.status.success(), "{} {}", text(&output.stdout), text(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Checks that everything succeeded in memory, and that the report claims nothing that this mode cannot
/// measure.
fn passed_in_memory(report: &Value) {
    assert_eq!((&report["passed"], &report["mode"]), (&true.into(), &"memory".into()), "{report:#}");
    for direction in ["a_to_b", "b_to_a"] {
        assert!(report[format!("memory_gbit_s_{direction}")].as_f64() > Some(0.0), "{report:#}");
        assert!(report[format!("tcp_gbit_s_{direction}")].is_null(), "{report:#}");
    }
    assert!(report["tcp_gbit_s"].is_null() && report["ping_ms"].as_f64() > Some(0.0), "{report:#}");
    assert_eq!((&report["replayed_refused"], &report["forged_refused"]), (&16.into(), &8.into()));
    assert_eq!((&report["pings_lost"], &report["udp_lost"]), (&0.into(), &0.into()));
    assert_eq!(report["memory_packets_lost"], 0, "{report:#}");
    // All pings, datagrams and bulk packets are on the link in both directions, and none in clear.
    let count = |key: &str| report[key].as_u64();
    let others = 2 * (4 * 50 + 2 * 4) + 16 + 8;
    assert_eq!(
        count("packets_captured"),
        count("memory_packets_sent").map(|bulk| bulk + others),
        "{report:#}"
    );
    assert_eq!(report["cleartext_packets_outside"], 0);
}

/// The other terminal runs the command that the demo prints.
#[test]
fn the_demos_gateways_can_be_watched_from_another_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(PROGRAM);
    command.args(["demo", "--seconds", "3"]).env("TMPDIR", folder.path());
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let shown = lines
        .find_map(|line| line.strip_prefix("watch a gateway from another terminal: ").map(str::to_owned));
    let shown = shown.expect("it prints the command");
    let started = Instant::now();
    let said = loop {
        let once = format!("{shown} --count 1 --interval 0.2 --json");
        let said = Command::new("sh").args(["-c", &once]).output().unwrap();
        // No answer until the gateway has created its socket.
        if said.status.success() || started.elapsed() > PATIENCE || child.try_wait().unwrap().is_some() {
            break said;
        }
    };
    assert!(said.status.success(), "{shown}: {}", text(&said.stderr));
    let snapshot: Value = serde_json::from_slice(&said.stdout).unwrap();
    assert!(snapshot["engine"].is_string(), "{snapshot:#}");
    let rest: Vec<_> = lines.collect();
    assert!(child.wait().unwrap().success(), "{rest:#?}");
}

#[test]
fn without_a_tun_device_the_demo_runs_in_memory_and_says_so_first() {
    let hide = "mount -t tmpfs none /dev/net && exec";
    let output = demo(hide, &[]).unwrap();
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{shown} {}", text(&output.stderr));
    let mut lines = shown.lines();
    assert!(lines.next().is_some_and(|line| line.starts_with("site A")), "{shown}");
    let why = lines.next().unwrap();
    assert!(why.starts_with("IN MEMORY: cannot open /dev/net/tun"), "{shown}");
    for part in
        ["TCP, site A → site B", "not in this mode; UDP in memory:", "✓ 16 of 16", "✓ 8 of 8", "✓ every"]
    {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let report = report(
        &demo(hide, &["--json", "--ipv6", "--suite", "aes128-sha1", "--encapsulation", "esp"]).unwrap(),
    )
    .unwrap();
    passed_in_memory(&report);
    assert!(report["mode_reason"].as_str().unwrap().contains("/dev/net/tun"), "{report:#}");
}

#[test]
fn without_namespaces_the_demo_runs_in_memory() {
    // Without capabilities, and unable to create a user namespace to get any.
    let forbid = "echo 0 > /proc/sys/user/max_user_namespaces && \
                  exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs";
    let report = report(&demo(forbid, &["--json"]).unwrap()).unwrap();
    passed_in_memory(&report);
    let why = report["mode_reason"].as_str().unwrap();
    assert!(why.contains("cannot create a private user and network namespace"), "{why}");
}

#[test]
fn in_memory_any_engine_can_be_chosen_and_an_unknown_one_is_refused() {
    let run = |engine| {
        let words = ["demo", "--memory", "--json", "--seconds", "1", "--engine", engine];
        Command::new(PROGRAM).args(words).output().unwrap()
    };
    let report = report(&run("portable")).unwrap();
    passed_in_memory(&report);
    assert_eq!(report["engine"], "portable");
    let refused = run("abacus");
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("\"abacus\""), "{}", text(&refused.stderr));
}

/// With namespaces and in memory; only with AH alone does the eavesdropper read anything, and is that right.
#[test]
fn every_protocol_and_mode_passes_and_the_report_says_what_can_be_read() {
    for (protocol, words) in [
        ("ah", &["--ipv6"][..]),
        ("ah+esp", &["--ah-suite", "sha512"]),
        ("esp", &["--suite", "aes256-sha512", "--mode", "transport"]),
        ("ah", &["--suite", "aescmac", "--mode", "transport"]),
    ] {
        for place in [&["--memory"][..], &[]] {
            let mut command = Command::new(PROGRAM);
            command
                .args(["demo", "--json", "--seconds", "1", "--protocol", protocol])
                .args(words)
                .args(place);
            let report = report(&command.output().unwrap()).unwrap();
            assert_eq!(
                (&report["passed"], &report["protocol"]),
                (&true.into(), &protocol.into()),
                "{report:#}"
            );
            let read = report["readable_packets_outside"].as_u64().unwrap();
            assert_eq!(read > 0, protocol == "ah", "{words:?}: {report:#}");
            if place.is_empty() {
                assert_eq!(report["mode"], "namespaces", "{report:#}");
            } else {
                passed_in_memory(&report);
            }
        }
    }
    let run = |words: &[&str]| Command::new(PROGRAM).arg("demo").args(words).output().unwrap();
    let refused = run(&["--memory", "--protocol", "ah", "--suite", "aes128gcm16"]);
    assert!(!refused.status.success() && text(&refused.stderr).contains("aes128gcm16, with AH"));
}

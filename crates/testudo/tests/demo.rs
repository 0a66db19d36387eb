//! `testudo demo` as a new user runs it: watched from another terminal, and on systems that do not let it
//! create networks.

use serde_json::Value;
use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
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

/// Runs the demo and, meanwhile, a command at gateway A until it succeeds, made of the command that the demo
/// prints for another terminal. Returns what the command said; the demo must have passed.
fn watched(arguments: &[&str], command_of: impl Fn(&str) -> String) -> Outcome<Value> {
    let folder = tempfile::tempdir()?;
    let mut command = Command::new(PROGRAM);
    command.args(["demo", "--seconds", "3"]).args(arguments).env("TMPDIR", folder.path());
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let mut lines = BufReader::new(child.stdout.take().ok_or("its output")?).lines().map_while(Result::ok);
    let shown = lines
        .find_map(|line| line.strip_prefix("watch a gateway from another terminal: ").map(str::to_owned));
    let once = command_of(&shown.ok_or("it prints no command")?);
    let started = Instant::now();
    let said = loop {
        let said = Command::new("sh").args(["-c", &once]).output()?;
        // No answer until the gateway has created its socket.
        if said.status.success() || started.elapsed() > PATIENCE || child.try_wait()?.is_some() {
            break said;
        }
    };
    assert!(said.status.success(), "{once}: {}", text(&said.stderr));
    let rest: Vec<_> = lines.collect();
    assert!(child.wait()?.success(), "{rest:#?}");
    Ok(serde_json::from_slice(&said.stdout)?)
}

/// The other terminal runs the command that the demo prints.
#[test]
fn the_demos_gateways_can_be_watched_from_another_terminal() {
    let snapshot = watched(&[], |shown| format!("{shown} --count 1 --interval 0.2 --json")).unwrap();
    assert!(snapshot["engine"].is_string(), "{snapshot:#}");
}

#[test]
fn the_demo_passes_with_two_workers_that_share_each_sa() {
    for encapsulation in ["esp-in-udp", "esp"] {
        let status = |shown: &str| format!("{} --json", shown.replacen(" top ", " status ", 1));
        let status = watched(&["--workers", "2", "--encapsulation", encapsulation], status).unwrap();
        assert_eq!(status["workers"].as_array().map(Vec::len), Some(2), "{status:#}");
    }
}

/// VPE, too: each worker has eight slots of its own, and what the peer sends is in as many windows at most.
#[test]
fn the_demo_passes_with_vpe_at_two_workers_and_shows_its_windows() {
    for encapsulation in ["vpe", "vpe-in-udp"] {
        // Once packets have come and gone for a second.
        let list = |shown: &str| {
            let [list, status] = ["sa list", "status"]
                .map(|verb| shown.replacen(" top ", &format!(" {verb} "), 1) + " --json");
            let both = "[ $(echo \"$all\" | grep -o '\"tops\":\\[{' | wc -l) = 2 ]";
            format!("all=$({list}) && {both} && echo \"{{\\\"sas\\\": $all, \\\"status\\\": $({status})}}\"")
        };
        let said = watched(&["--workers", "2", "--encapsulation", encapsulation], list).unwrap();
        let sas = &said["sas"];
        let sums = &said["status"]["windows"];
        for (direction, most) in [("outbound", 16), ("inbound", 1024)] {
            let sum = &sums[direction];
            assert!(sum["most"] == most && (1..=16).contains(&sum["count"].as_u64().unwrap()), "{sums:#}");
        }
        assert_eq!(sas.as_array().map(Vec::len), Some(2), "{sas:#}");
        for sa in sas.as_array().into_iter().flatten() {
            let (windows, is_outbound) = (&sa["windows"], sa["direction"] == "outbound");
            assert_eq!(windows["most"], if is_outbound { 16 } else { 1024 }, "{sas:#}");
            let tops = windows["tops"].as_array().map_or(&[][..], Vec::as_slice);
            assert!((1..=16).contains(&tops.len()) && windows["count"] == tops.len(), "{sas:#}");
            let is_one =
                |top: &Value| top["window"].as_u64() < Some(16) && top["sequence"].as_u64() > Some(0);
            assert!(tops.iter().all(is_one), "{sas:#}");
        }
    }
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

/// strongSwan's files, unpacked.
fn daemons() -> Outcome<PathBuf> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| repository.join("target"), PathBuf::from);
    let cache = target.join("ike-daemons");
    let status = Command::new(repository.join("tests/ike/unpack.sh")).arg(&cache).status()?;
    assert!(status.success(), "{}", cache.display());
    Ok(cache.canonicalize()?)
}

/// The library for daemons, as a file of `folder`.
fn library(folder: &Path) -> Outcome<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/shim.sh");
    assert!(Command::new(script).arg(folder).arg("xfrm").status()?.success());
    Ok(folder.join("libtestudo-xfrm.so").display().to_string())
}

#[test]
fn two_charons_negotiate_and_no_packet_is_lost_while_they_renew_sas() {
    let folder = tempfile::tempdir().unwrap();
    let library = library(folder.path()).unwrap();
    // Over /usr in this mount namespace alone; without the characters that separate options of overlayfs.
    let mount = format!(
        "mount --bind '{}/usr' /mnt && mount -t overlay -o ro,lowerdir=/mnt:/usr overlay /usr && exec",
        daemons().unwrap().display()
    );
    for words in [
        &[][..],
        &["--ipv6", "--encapsulation", "esp", "--suite", "chacha20poly1305"],
        &["--mode", "transport", "--encapsulation", "esp"],
    ] {
        let report =
            report(&demo(&mount, &[&["--ike", "--json", "--library", &library], words].concat()).unwrap());
        let report = report.unwrap();
        assert_eq!((&report["passed"], &report["mode"]), (&true.into(), &"namespaces".into()), "{report:#}");
        assert_eq!(report["packets_lost_at_rekey"], 0, "{report:#}");
        let count = |key: &str| report[key].as_u64().unwrap();
        // At least one in each direction of TCP, and two beside the datagrams.
        assert!(count("rekeys") >= 3 && count("packets_sent_at_rekey") > 100, "{report:#}");
        assert!(report["ike_daemon"].as_str().unwrap().starts_with("strongSwan 5."), "{report:#}");
        assert!(count("ike_packets_captured") > 0 && count("cleartext_packets_outside") == 0, "{report:#}");
        assert_eq!((count("replayed_refused"), count("forged_refused")), (16, 8), "{report:#}");
    }
}

#[test]
fn without_charon_or_the_library_it_is_said_what_to_install() {
    let hide =
        "for file in /usr/sbin/charon-systemd; do [ ! -e $file ] || mount --bind /dev/null $file; done; exec";
    let output = demo(hide, &["--ike"]).unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("apt install charon-systemd strongswan-swanctl"), "{said}");

    let show = "mkdir -p \"$TMPDIR/bin\" && cp /bin/true \"$TMPDIR/bin/charon-systemd\" && cp /bin/true \"$TMPDIR/bin/swanctl\" \
                && export PATH=\"$TMPDIR/bin:$PATH\" && trap 'rm -r \"$TMPDIR/bin\"' EXIT;";
    let output = demo(show, &["--ike", "--library", "/nowhere.so"]).unwrap();
    let said = text(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("--library FILE"), "{said}");
}

#[test]
fn what_daemons_do_not_negotiate_is_refused_at_once() {
    for (words, reason) in [
        (&["--protocol", "ah"][..], "--ike negotiates ESP"),
        (&["--suite", "aes128gcm16iiv"], "implicit IV"),
        (&["--memory"], "cannot be used with"),
    ] {
        let output = Command::new(PROGRAM).args(["demo", "--ike"]).args(words).output().unwrap();
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains(reason), "{words:?}: {said}");
    }
}

/// Whether AF_XDP is tried: it needs root outside of user namespaces.
fn is_af_xdp_tried() -> bool {
    if std::env::var_os("TESTUDO_WITHOUT_XDP").is_some() {
        println!("skipped: TESTUDO_WITHOUT_XDP is set");
        return false;
    }
    true
}

#[test]
fn with_af_xdp_on_both_sides_the_demo_keeps_every_promise() {
    if !is_af_xdp_tried() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for more in [&[][..], &["--ipv6", "--encapsulation", "esp"]] {
        let mut command = Command::new(PROGRAM);
        command.args(["demo", "--port", "xdp", "--seconds", "1", "--json"]).args(more);
        let report = report(&command.env("TMPDIR", folder.path()).output().unwrap()).unwrap();
        assert_eq!((&report["passed"], &report["port"]), (&true.into(), &"xdp".into()), "{report:#}");
        assert!(report["tcp_gbit_s"].as_f64() > Some(0.0), "{report:#}");
        assert_eq!((&report["replayed_refused"], &report["forged_refused"]), (&16.into(), &8.into()));
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "the demo left files behind");
}

#[test]
fn in_a_user_namespace_the_demo_of_af_xdp_says_that_it_needs_root_and_ends_with_exit_code_4() {
    let output = demo("exec", &["--port", "xdp"]).unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("root of a user namespace") && said.lines().count() == 1, "{said}");
}

#[test]
fn the_demo_of_af_xdp_has_no_transport_mode() {
    let output = demo("exec", &["--port", "xdp", "--mode", "transport"]).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("needs --port tun"), "{}", text(&output.stderr));
}

#[test]
fn with_dpdk_on_both_sides_the_demo_keeps_every_promise() {
    if std::env::var_os("TESTUDO_WITHOUT_DPDK").is_some() {
        println!("skipped: TESTUDO_WITHOUT_DPDK is set");
        return;
    }
    let (folder, beside) = (tempfile::tempdir().unwrap(), Path::new(PROGRAM).parent().unwrap());
    // The gateways find it beside the program.
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/shim.sh");
    assert!(Command::new(script).arg(beside).arg("dpdk").status().unwrap().success());
    for more in [&[][..], &["--ipv6", "--encapsulation", "esp"]] {
        let mut command = Command::new(PROGRAM);
        command.args(["demo", "--port", "dpdk", "--seconds", "1", "--json"]).args(more);
        let report = report(&command.env("TMPDIR", folder.path()).output().unwrap()).unwrap();
        assert_eq!((&report["passed"], &report["port"]), (&true.into(), &"dpdk".into()), "{report:#}");
        assert!(report["tcp_gbit_s"].as_f64() > Some(0.0), "{report:#}");
    }
}

//! Wireshark reads what was recorded on the link, by the keys that `testudo sa keys` writes.

use crate::connection::Connection;
use crate::negotiation::initiate;
use crate::network::{LINK, Network, repository, runs, target};
use crate::strongswan::Charon;
use crate::support::{Outcome, ensure, wait};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::capture::{Capture, WHOLE};

type Tests<'a> = Suite<'a, Network>;

pub fn tests(mut suite: Tests<'_>) -> Tests<'_> {
    for (proposal, encap) in [
        ("aes128gcm16", "no"),
        ("aes256gcm8", "yes"),
        ("aes256-sha512", "no"),
        ("aes128-sha256", "yes"),
        ("aes128ctr-sha384", "no"),
        ("null-sha256", "no"),
    ] {
        let name = format!("wireshark_reads_{proposal}_by_the_keys_of_sa_keys_encap_{encap}");
        suite = suite.test(name, move |network: &mut Network| reads(network, proposal, encap));
    }
    suite
}

/// Unpacks tshark, while there is a network.
pub fn prepare() -> Outcome<()> {
    runs(Command::new(repository().join("tests/wireshark/unpack.sh")).arg(target().join("wireshark")))
}

/// What tshark shows of a recording: for each echo message the number in it, and whether the ICV around it
/// was found right.
fn shown(keys: &Path, recording: &Path) -> Outcome<Vec<String>> {
    let (usr, home) = (target().join("wireshark/usr"), recording.with_extension("home"));
    let profile = home.join(".config/wireshark");
    fs::create_dir_all(&profile)?;
    fs::copy(keys, profile.join("esp_sa"))?;
    let options = ["esp.enable_encryption_decode:TRUE", "esp.enable_authentication_check:TRUE"];
    let fields = ["-T", "fields", "-e", "icmp.seq", "-e", "esp.icv_good"];
    let mut command = Command::new(usr.join("bin/tshark"));
    for option in options {
        command.args(["-o", option]);
    }
    command.args(fields).args(["-Y", "icmp"]).arg("-r").arg(recording).env("HOME", &home);
    command.env("LD_LIBRARY_PATH", usr.join("lib/x86_64-linux-gnu"));
    let output = wait::output(&mut command)?;
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure(output.status.success() && !complaint.contains("UAT"), || complaint.clone())?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

fn reads(network: &mut Network, proposal: &str, encap: &str) -> TestResult {
    for host in [&mut network.a, &mut network.b] {
        host.start_program_of("allow_key_export = true\n", "")?;
    }
    let ike = format!("encap = {encap}");
    let connection = Connection { ike, ..Connection::esp(&format!("{proposal}-noesn")) };
    let charons = [Charon::start(&network.a, "")?, Charon::start(&network.b, "")?];
    charons[0].load(&connection.of_a())?;
    charons[1].load(&connection.of_b())?;
    crate::traffic::with_addresses(network)?;
    initiate(&charons)?;
    let recording = network.root.join(format!("{proposal}.pcap"));
    let capture = Capture::start(&network.a.namespace, LINK, &recording, WHOLE)?;
    crate::traffic::pings(network, &charons)?;
    capture.finish(&network.a.namespace)?;
    let keys = network.root.join(format!("{proposal}.esp_sa"));
    let path = keys.to_str().ok_or("a path without text")?;
    let process = &network.a.program().process;
    let said = process.ask(&["sa", "keys", "--wireshark", "--output", path])?;
    ensure(said.code == Some(0) && said.stdout.is_empty(), || format!("{said:?}"))?;
    ensure(fs::metadata(&keys)?.permissions().mode() & 0o777 == 0o600, || "others may read it".to_owned())?;
    process.ask(&["sa", "keys", "--wireshark", "--output", path])?.refused(1, "--force replaces it")?;
    let log = process.logs("\"event\":\"keys_read\"")?;
    ensure(log.contains("\"sas\":2") && log.contains("\"user\":0"), || log.clone())?;
    let shown = shown(&keys, &recording)?;
    // A request and an answer each. GCM's ICV is not for Wireshark to check.
    let numbers = ["1", "1", "2", "2", "3", "3"];
    let are_there =
        shown.len() == 6 && shown.iter().zip(numbers).all(|(line, n)| line.split('\t').next() == Some(n));
    let is_checked = proposal.contains("-sha");
    let are_right = !is_checked || shown.iter().all(|line| line.ends_with("\t1") || line.ends_with("\tTrue"));
    ensure(are_there && are_right, || {
        format!("{shown:?}\n{}", fs::read_to_string(&keys).unwrap_or_default())
    })?;
    // Without the keys there is nothing to see.
    fs::write(&keys, "")?;
    if !proposal.starts_with("null") {
        let blind = self::shown(&keys, &recording)?;
        ensure(blind.is_empty(), || format!("read without keys: {blind:?}"))?;
    }
    crate::traffic::ends(network, charons)
}

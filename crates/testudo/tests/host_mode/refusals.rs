//! What keeps a gateway from starting: a one-line message, and an exit code for the kind of failure.

use crate::support::config::{CONFIGURATION, Config, Sa, pair, write_private};
use crate::support::gateway::{Gateway, PROGRAM, Said, run_to_end};
use crate::support::link::Link;
use crate::support::{Outcome, ensure, wait};
use serde_json::Value;
use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use testudo_judge::harness::{Suite, TestResult};

const CONFIGURATION_IS_WRONG: i32 = 2;
const STATE_IS_WRONG: i32 = 3;
const PORT_IS_WRONG: i32 = 4;
const NOBODY_ANSWERS: i32 = 6;

pub fn tests<'a>(suite: Suite<'a, Link>) -> Suite<'a, Link> {
    suite
        .test("all_configuration_errors_are_reported_at_once", tells_all_errors)
        .test("a_key_that_others_may_read_is_refused", refuses_exposed_keys)
        .test("known_answers_are_for_replay_only", refuses_known_answers)
        .test("keys_without_a_hard_lifetime_are_warned_of", warns_of_keys_without_end)
        .test("init_names_the_keys_of_the_store_and_shows_none", names_keys_at_init)
        .test(
            "allowing_counter_nonces_is_refused_for_suites_with_explicit_ivs",
            refuses_a_needless_counter_nonce,
        )
        .test("a_suite_without_encryption_is_warned_of", warns_of_no_encryption)
        .test("workers_without_sas_of_their_own_are_warned_of", warns_of_workers_without_own_sas)
        .test("metrics_on_a_public_address_are_refused", refuses_open_metrics)
        .test("a_missing_tun_device_is_reported", needs_a_tun_device)
        .test("missing_capabilities_are_named", needs_capabilities)
        .test("a_udp_port_that_is_taken_is_named", names_the_taken_port)
        .test("an_address_of_another_host_is_named", names_the_foreign_address)
        .test("a_metrics_port_that_is_taken_is_named", names_the_taken_metrics_port)
        .test("a_control_socket_in_use_is_left_to_its_gateway", leaves_the_socket_to_its_owner)
        .test("a_file_in_place_of_the_control_socket_is_not_removed", leaves_files_alone)
        .test("a_store_in_use_is_left_to_its_gateway", leaves_the_store_to_its_owner)
        .test("a_missing_store_is_no_fresh_start", refuses_a_missing_store)
        .test("a_damaged_store_is_no_fresh_start", refuses_a_damaged_store)
        .test("a_query_without_a_gateway_says_so", finds_nobody)
}

fn a(udp: bool) -> Outcome<Config> {
    Ok(pair(udp)?[0].clone())
}

/// Runs a gateway on A with this configuration and a new store.
fn refusal(link: &mut Link, config: &Config) -> Outcome<Said> {
    let folder = link.prepare(config)?;
    run_to_end(&link.a, &folder)
}

fn verb(words: &[&str], folder: &Path) -> Outcome<Said> {
    Ok(wait::output(Command::new(PROGRAM).args(words).arg(folder.join(CONFIGURATION)))?.into())
}

fn tells_all_errors(link: &mut Link) -> TestResult {
    let mut config = a(true)?;
    config.tunnels[0].suite = "aes128gcm61".to_owned();
    config.tunnels[0].local = "192.0.2.1.1".to_owned();
    config.tunnels[0].more = "replay_window = 100\nreply_window = 64".to_owned();
    let folder = link.write(&config)?;
    for words in [&["run"][..], &["check"]] {
        let said = verb(words, &folder)?;
        ensure(said.code == Some(CONFIGURATION_IS_WRONG), || format!("{said:#?}"))?;
        for wrong in ["suite", "local", "replay_window", "reply_window", "aes128gcm16", "a multiple of 32"] {
            ensure(said.stderr.contains(wrong), || {
                format!("{words:?} does not mention {wrong}: {}", said.stderr)
            })?;
        }
    }
    let said = verb(&["check", "--json"], &folder)?;
    let errors: Value = serde_json::from_str(&said.stdout)?;
    let errors = errors.as_array().ok_or("no array")?;
    let placed = errors.iter().all(|e| e["line"].as_u64() > Some(0) && e["column"].as_u64() > Some(0));
    let complete =
        errors.iter().all(|e| e["expected"].is_string() && e["found"].is_string() && e["key"].is_string());
    ensure(errors.len() == 4 && placed && complete, || format!("{errors:#?}"))
}

fn refuses_exposed_keys(link: &mut Link) -> TestResult {
    let config = a(true)?;
    let folder = link.prepare(&config)?;
    let key = folder.join("1001.key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644))?;
    let said = run_to_end(&link.a, &folder)?;
    let told = said.stderr.contains(&format!("chmod 600 {}", key.display()));
    ensure(said.code == Some(CONFIGURATION_IS_WRONG) && told, || format!("{said:#?}"))
}

fn refuses_known_answers(link: &mut Link) -> TestResult {
    let mut config = a(true)?;
    config.tunnels[0].more = "known_answer = { next_sequence_number = 7, iv_seed = 1 }".to_owned();
    let folder = link.prepare(&config)?;
    let said = run_to_end(&link.a, &folder)?;
    let told = said.stderr.contains("known_answer") && said.stderr.contains("testudo replay");
    ensure(said.code == Some(CONFIGURATION_IS_WRONG) && told, || format!("{said:#?}"))?;
    let check = verb(&["check"], &folder)?;
    ensure(check.code == Some(0) && check.stdout.contains("`testudo run` does not"), || format!("{check:#?}"))
}

fn warns_of_keys_without_end(link: &mut Link) -> TestResult {
    let mut config = a(true)?;
    for (more, is_warned) in
        [("", true), ("lifetime = { soft_bytes = 5 }", true), ("lifetime = { hard_bytes = 5 }", false)]
    {
        config.tunnels[0].more = more.to_owned();
        let folder = link.write(&config)?;
        let said = verb(&["check"], &folder)?;
        let told = said.stdout.contains("warning: tunnel a-b: no hard lifetime");
        ensure(said.code == Some(0) && told == is_warned, || format!("{more}: {said:#?}"))?;
    }
    Ok(())
}

/// `init` prints fingerprints of the keys, not the keys.
fn names_keys_at_init(link: &mut Link) -> TestResult {
    let config = a(true)?;
    let folder = link.write(&config)?;
    let said = verb(&["init"], &folder)?;
    let told =
        ["tunnel a-b: fingerprint of the outbound key ", "only if no gateway ever ran with these keys"];
    ensure(said.code == Some(0) && told.iter().all(|text| said.stdout.contains(text)), || {
        format!("{said:#?}")
    })?;
    let keys = config.keys();
    let shown =
        keys.iter().find(|key| (0..=key.len() - 16).any(|at| said.stdout.contains(&key[at..at + 16])));
    ensure(shown.is_none(), || format!("a part of a key is in {}", said.stdout))?;
    // Equal keys have equal fingerprints, and an existing store accepts that they are fresh.
    let again = verb(&["init", "--fresh-keys"], &folder)?;
    let named =
        |said: &Said| said.stdout.lines().find(|line| line.starts_with("tunnel a-b")).map(str::to_owned);
    ensure(again.code == Some(0) && named(&again) == named(&said), || format!("{again:#?}"))?;
    ensure(again.stdout.contains("no key needs to be recorded"), || again.stdout.clone())?;
    verb(&["init"], &folder)?.refused(STATE_IS_WRONG, "exists already")
}

fn refuses_a_needless_counter_nonce(link: &mut Link) -> TestResult {
    let mut config = a(true)?;
    config.tunnels[0].more = "allow_manual_counter_nonce = true".to_owned();
    let folder = link.write(&config)?;
    let said = verb(&["check"], &folder)?;
    let told = said.stderr.contains("allow_manual_counter_nonce") && said.stderr.contains("explicit IVs");
    ensure(said.code == Some(CONFIGURATION_IS_WRONG) && told, || format!("{said:#?}"))
}

/// Where there are more workers than SAs of their own, `check` says which ones share.
fn warns_of_workers_without_own_sas(link: &mut Link) -> TestResult {
    let own = "worker_sas = [ { worker = 0, outbound = { spi = 0x3001, key_file = \"own.key\" } } ]";
    for (workers, is_warned) in [(1, false), (2, true)] {
        let mut config = a(true)?;
        config.gateway = format!("workers = {workers}");
        config.tunnels[0].more = own.to_owned();
        let folder = link.write(&config)?;
        let key = Sa::random(0x3001, &config.tunnels[0].suite)?.key;
        crate::support::config::write_private(&folder.join("own.key"), &key)?;
        let said = verb(&["check"], &folder)?;
        let told = said.stdout.contains("warning: tunnel a-b: worker 1 has no SA in `worker_sas`");
        ensure(said.code == Some(0) && told == is_warned, || format!("{workers} workers: {said:#?}"))?;
    }
    Ok(())
}

fn warns_of_no_encryption(link: &mut Link) -> TestResult {
    let warning = "tunnel a-b: null-sha1 does not encrypt";
    let mut config = a(true)?;
    config.unprotected = "mtu = 1400".to_owned();
    config.tunnels[0].more = "lifetime = { hard_packets = 1000000 }".to_owned();
    for (suite, is_warned) in [("aes128-sha1", false), ("null-sha1", true)] {
        let tunnel = &mut config.tunnels[0];
        tunnel.suite = suite.to_owned();
        (tunnel.outbound, tunnel.inbound) = (Sa::random(0x1001, suite)?, Sa::random(0x1002, suite)?);
        let folder = link.write(&config)?;
        let said = verb(&["check"], &folder)?;
        let found = said.stdout.lines().filter(|line| line.starts_with("warning: ")).count();
        let right = said.stdout.contains(warning) == is_warned && found == usize::from(is_warned);
        ensure(said.code == Some(0) && right, || format!("{suite}: {said:#?}"))?;
    }
    Ok(())
}

fn refuses_open_metrics(link: &mut Link) -> TestResult {
    for address in ["0.0.0.0:9468", "192.0.2.1:9468", "[::]:9468"] {
        let mut config = a(true)?;
        config.gateway = format!("metrics = \"{address}\"");
        let folder = link.write(&config)?;
        let said = run_to_end(&link.a, &folder)?;
        let told = said.stderr.contains("metrics") && said.stderr.contains("loopback");
        ensure(said.code == Some(CONFIGURATION_IS_WRONG) && told, || format!("{said:#?}"))?;
    }
    Ok(())
}

fn needs_a_tun_device(link: &mut Link) -> TestResult {
    let folder = link.prepare(&a(true)?)?;
    let hide = "mount -t tmpfs none /dev/net && exec \"$@\"";
    let mut command = link.a.command("unshare");
    command.args(["--mount", "sh", "-c", hide, "sh", PROGRAM, "run"]).arg(folder.join(CONFIGURATION));
    Said::from(wait::output(&mut command)?).refused(PORT_IS_WRONG, "/dev/net/tun is missing: load the driver")
}

fn needs_capabilities(link: &mut Link) -> TestResult {
    for (udp, capability) in [(true, "CAP_NET_ADMIN"), (false, "CAP_NET_RAW")] {
        let folder = link.prepare(&a(udp)?)?;
        let mut command = link.a.command("setpriv");
        command
            .args(["--bounding-set=-all", "--inh-caps=-all", PROGRAM, "run"])
            .arg(folder.join(CONFIGURATION));
        Said::from(wait::output(&mut command)?).refused(PORT_IS_WRONG, capability)?;
    }
    Ok(())
}

fn names_the_taken_port(link: &mut Link) -> TestResult {
    let taken = link.a.within(|| UdpSocket::bind("192.0.2.1:4500"))??;
    refusal(link, &a(true)?)?.refused(PORT_IS_WRONG, "UDP port 192.0.2.1:4500 is already taken")?;
    drop(taken);
    Ok(())
}

fn names_the_foreign_address(link: &mut Link) -> TestResult {
    for udp in [true, false] {
        let mut config = a(udp)?;
        config.tunnels[0].local = "192.0.2.99".to_owned();
        refusal(link, &config)?.refused(PORT_IS_WRONG, "192.0.2.99 is no address of this host")?;
    }
    Ok(())
}

fn names_the_taken_metrics_port(link: &mut Link) -> TestResult {
    let taken = link.a.within(|| TcpListener::bind("127.0.0.1:0"))??;
    let mut config = a(true)?;
    let address = taken.local_addr()?;
    config.gateway = format!("metrics = \"{address}\"");
    refusal(link, &config)?.refused(PORT_IS_WRONG, &format!("metrics on {address}"))
}

/// A second gateway on the first one's host, which shares nothing with it except what `shared` sets.
fn beside(first: &Path, shared: impl FnOnce(&mut Config, &Path)) -> Outcome<Config> {
    let mut second = a(true)?;
    second.interface = "testudo1".to_owned();
    second.addresses = vec!["10.1.0.9/32".to_owned()];
    second.tunnels[0].more = "local_port = 4501".to_owned();
    second.tunnels[0].selectors[0].1 = "10.2.0.9".to_owned();
    shared(&mut second, first);
    Ok(second)
}

fn leaves_the_socket_to_its_owner(link: &mut Link) -> TestResult {
    let (first, folder) = link.start_a(&a(true)?)?;
    let second =
        beside(&folder, |config, first| config.control = first.join("control.sock").display().to_string())?;
    refusal(link, &second)?.refused(PORT_IS_WRONG, "another gateway listens there")?;
    first.ask_json(&["status"])?;
    first.stop()
}

fn leaves_files_alone(link: &mut Link) -> TestResult {
    let folder = link.prepare(&a(true)?)?;
    write_private(&folder.join("control.sock"), "precious")?;
    run_to_end(&link.a, &folder)?.refused(PORT_IS_WRONG, "something that is no socket is in the way")?;
    ensure(fs::read_to_string(folder.join("control.sock"))? == "precious", || "it was changed".to_owned())
}

fn leaves_the_store_to_its_owner(link: &mut Link) -> TestResult {
    let (first, folder) = link.start_a(&a(true)?)?;
    let second =
        beside(&folder, |config, first| config.state = first.join("state.redb").display().to_string())?;
    let second = link.write(&second)?;
    run_to_end(&link.a, &second)?.refused(STATE_IS_WRONG, "in use by another gateway")?;
    first.stop()
}

fn refuses_a_missing_store(link: &mut Link) -> TestResult {
    let folder = link.write(&a(true)?)?;
    let advice = format!("`testudo init {}`", folder.join(CONFIGURATION).display());
    run_to_end(&link.a, &folder)?.refused(STATE_IS_WRONG, &advice)?;
    ensure(!folder.join("state.redb").exists(), || "a store was made all the same".to_owned())
}

fn refuses_a_damaged_store(link: &mut Link) -> TestResult {
    let folder = link.prepare(&a(true)?)?;
    // Start once, so that the store has leased numbers to lose.
    Gateway::start(&link.a, &folder)?.stop()?;
    let path = folder.join("state.redb");
    let whole = fs::read(&path)?;
    let mut flipped = whole.clone();
    flipped.iter_mut().skip(4096).step_by(512).for_each(|byte| *byte ^= 1);
    for damaged in [&b""[..], b"not a store", &whole[..whole.len() / 2], &flipped] {
        fs::write(&path, damaged)?;
        run_to_end(&link.a, &folder)?.refused(STATE_IS_WRONG, "damaged")?;
    }
    let said = verb(&["init"], &folder)?;
    said.refused(STATE_IS_WRONG, "exists already, and is not overwritten")?;
    fs::write(&path, &whole)?;
    Gateway::start(&link.a, &folder)?.stop()
}

fn finds_nobody(_: &mut Link) -> TestResult {
    let explain = ["explain", "10.0.0.1", "10.0.0.2"];
    for words in [&["status"][..], &["top"], &["sa", "list"], &["policy", "list"], &explain] {
        let mut command = Command::new(PROGRAM);
        command.args(words).args(["--control", "/run/testudo-tests/nowhere.sock"]);
        Said::from(wait::output(&mut command)?).refused(NOBODY_ANSWERS, "no gateway answers at")?;
    }
    Ok(())
}

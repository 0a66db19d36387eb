//! SAs that come and go while a gateway runs: `sa add`, `replace`, `use` and `delete`.

use crate::support::config::{Config, Sa, pair, write_private};
use crate::support::gateway::{Gateway, PROGRAM, Said};
use crate::support::link::Link;
use crate::support::load::{capacity, kernel_drops};
use crate::support::{Outcome, ensure, wait};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use testudo_control::{LeaseStore, Store, fingerprint, keys, numbers_of};
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::traffic::{Load, Stream};

const SUITE: &str = "aes128gcm16";

pub fn tests<'a>(suite: Suite<'a, Link>) -> Suite<'a, Link> {
    suite
        .test("sa_replace_at_both_ends_loses_no_datagram", loses_nothing)
        .test("sa_verbs_add_use_and_delete_single_sas", changes_one_by_one)
        .test("what_an_sa_verb_refuses_is_told_and_changes_nothing", says_what_is_wrong)
        .test("replaced_sas_outlive_a_reload_and_end_with_the_gateway", outlives_a_reload)
        .test("ephemeral_keys_never_touch_the_store", leaves_no_trace)
}

/// New SAs as A sees them: number `n` of a run.
fn fresh(n: u32) -> Outcome<(Sa, Sa)> {
    Ok((Sa::random(0x2000 + 2 * n, SUITE)?, Sa::random(0x2001 + 2 * n, SUITE)?))
}

/// Replaces the SAs of a gateway; keys come from a file.
fn replace(
    gateway: &Gateway,
    folder: &Path,
    (inbound, outbound): (&Sa, &Sa),
    more: &[&str],
) -> Outcome<Said> {
    let file = folder.join("new.keys");
    write_private(&file, &format!("{}\n\n{}\n", inbound.key, outbound.key))?;
    let spis = [inbound, outbound].map(|sa| format!("{:#x}", sa.spi));
    let file = file.to_string_lossy();
    let words = ["sa", "replace", "a-b", "--inbound", &spis[0], "--outbound", &spis[1], "--key-file", &file];
    gateway.ask(&[&words[..], more].concat())
}

fn replaced(gateway: &Gateway, folder: &Path, sas: (&Sa, &Sa), more: &[&str]) -> Outcome<()> {
    let said = replace(gateway, folder, sas, more)?;
    ensure(said.code == Some(0), || format!("{said:#?}\n{}", gateway.log()))
}

/// The SAs of a gateway: direction and SPI.
fn spis(gateway: &Gateway) -> Outcome<Vec<(String, u64)>> {
    let list = gateway.ask_json(&["sa", "list", "--tunnel", "a-b"])?;
    let row = |sa: &Value| {
        (sa["direction"].as_str().unwrap_or_default().to_owned(), sa["spi"].as_u64().unwrap_or(0))
    };
    Ok(list.as_array().into_iter().flatten().map(row).collect())
}

/// The outbound SPI in use.
fn in_use(gateway: &Gateway) -> Outcome<u64> {
    let list = gateway.ask_json(&["sa", "list"])?;
    let sa = list.as_array().into_iter().flatten().find(|sa| sa["in_use"] == true);
    sa.and_then(|sa| sa["spi"].as_u64()).ok_or_else(|| format!("none is in use: {list:#}").into())
}

fn waits_for_two(gateway: &Gateway) -> Outcome<()> {
    wait::until("for replaced SAs to leave", || Ok((spis(gateway)?.len() == 2).then_some(())))
}

/// Why a gateway drops what a replacement must not cost.
const REASONS: [&str; 9] = [
    "unknown_spi",
    "no_sa",
    "shutting_down",
    "sequence_not_leased",
    "replay_too_old",
    "replay_duplicate",
    "authentication_failed",
    "engine_fault",
    "lifetime_expired",
];

fn dropped(gateway: &Gateway) -> Outcome<Vec<u64>> {
    REASONS.iter().map(|reason| gateway.dropped(reason)).collect()
}

/// Rekeys of both ends while datagrams flow both ways, at half of what arrives at most. Keys are leased and
/// ephemeral in turn; either end begins, and the other one follows by itself or is told.
fn loses_nothing(link: &mut Link) -> TestResult {
    let [a, b] = pair(true)?;
    let (gateway, folder_a) = link.start_a(&a)?;
    let (peer, folder_b) = link.start_b(&b)?;
    let ends = [(&link.a, "10.1.0.1"), (&link.b, "10.2.0.1")];
    let rate = capacity(ends, Load::default().bytes)? / 2.0;
    let before = kernel_drops(&link.a)? + kernel_drops(&link.b)?;
    // The flood that found the capacity may have been faster than a disk that grants the first numbers.
    let flooded = [dropped(&gateway)?, dropped(&peer)?];
    let half = Load { per_second: rate / 2.0, ..Load::default() };
    let there = Stream::start_with(ends[0], ends[1], half)?;
    let back = Stream::start_with(ends[1], ends[0], half)?;
    let rekeys = 6;
    for n in 0..rekeys {
        there.flows(500)?;
        let (inbound, outbound) = fresh(n)?;
        let (ours, theirs) = ((&inbound, &outbound), (&outbound, &inbound));
        let kind: &[&str] = if n % 3 == 1 { &["--ephemeral"] } else { &[] };
        let with = |more: &[&'static str]| [&["--overlap", "1"], kind, more].concat();
        let (waiting, at_once) = (with(&["--when-peer-does"]), with(&[]));
        if n % 2 == 0 {
            replaced(&gateway, &folder_a, ours, &waiting)?;
            there.flows(200)?;
            ensure(in_use(&gateway)? != u64::from(outbound.spi), || "A moved before B".to_owned())?;
            replaced(&peer, &folder_b, theirs, &at_once)?;
        } else {
            replaced(&peer, &folder_b, theirs, &waiting)?;
            back.flows(200)?;
            replaced(&gateway, &folder_a, ours, &at_once)?;
        }
        for (end, spi) in [(&gateway, outbound.spi), (&peer, inbound.spi)] {
            wait::until("for the new SA to be used", || Ok((in_use(end)? == u64::from(spi)).then_some(())))?;
            waits_for_two(end)?;
        }
    }
    let dropped_by_kernel =
        || Ok::<_, Box<dyn std::error::Error>>(kernel_drops(&link.a)? + kernel_drops(&link.b)?);
    let (mut sent, mut lost) = (0, 0);
    for stream in [there, back] {
        let (count, missing) = stream.end()?;
        (sent, lost) = (sent + count, lost + missing.len() as u64);
    }
    let by_kernel = dropped_by_kernel()? - before;
    println!(
        "{sent} datagrams at {rate:.0} a second, {rekeys} rekeys: {lost} lost, {by_kernel} dropped by the kernel"
    );
    ensure(lost <= by_kernel, || format!("{lost} of {sent} were lost, the kernel has dropped {by_kernel}"))?;
    for (end, flooded) in [&gateway, &peer].into_iter().zip(flooded) {
        for ((reason, after), before) in REASONS.iter().zip(dropped(end)?).zip(flooded) {
            let more = after - before;
            ensure(more == 0, || format!("{more} were dropped as {reason}\n{}", end.log()))?;
        }
    }
    gateway.stop()?;
    peer.stop()
}

fn changes_one_by_one(link: &mut Link) -> TestResult {
    let [a, _] = pair(true)?;
    let (gateway, folder) = link.start_a(&a)?;
    let (inbound, outbound) = fresh(0)?;
    let add = |words: &str, key: &str| -> Outcome<Said> {
        write_private(&folder.join("one.key"), key)?;
        // From standard input.
        let socket = folder.join("control.sock");
        let line = format!(
            "{PROGRAM} sa add a-b {words} --key-file - --control {} < {}",
            socket.display(),
            folder.join("one.key").display()
        );
        Ok(wait::output(Command::new("sh").args(["-c", &line]))?.into())
    };
    let said = add(&format!("--inbound {:#x} --hard-packets 1000", inbound.spi), &inbound.key)?;
    ensure(said.code == Some(0) && said.stdout.contains("inbound SA 0x2000 is added"), || {
        format!("{said:#?}")
    })?;
    let said = add(&format!("--outbound {}", outbound.spi), &outbound.key)?;
    ensure(said.code == Some(0), || format!("{said:#?}"))?;
    ensure(in_use(&gateway)? == 0x1001, || "the old SA stays in use".to_owned())?;
    let table = gateway.ask(&["sa", "list"])?.stdout;
    ensure(table.contains("waiting") && table.contains("0x2001"), || table)?;
    let said = gateway.ask(&["sa", "use", "a-b", "--spi", "0x2001"])?;
    ensure(said.code == Some(0) && in_use(&gateway)? == 0x2001, || format!("{said:#?}"))?;
    for (spi, way) in [("0x1001", "outbound"), ("0x1002", "inbound")] {
        let answer = gateway.ask_json(&["sa", "delete", "a-b", "--spi", spi])?;
        ensure(answer["deleted"]["direction"] == way, || format!("{answer:#}"))?;
    }
    let rest = spis(&gateway)?;
    ensure(rest == [("inbound".to_owned(), 0x2000), ("outbound".to_owned(), 0x2001)], || {
        format!("{rest:?}")
    })?;
    gateway.stop()
}

fn says_what_is_wrong(link: &mut Link) -> TestResult {
    let [a, _] = pair(true)?;
    let (gateway, folder) = link.start_a(&a)?;
    let before = spis(&gateway)?;
    let key = Sa::random(0x3000, SUITE)?.key;
    let tunnel = &a.tunnels[0];
    let add = |words: &str, text: &str| -> Outcome<Said> {
        let file = folder.join("some.keys");
        write_private(&file, text)?;
        let file = file.to_string_lossy().into_owned();
        let words: Vec<&str> = ["sa", "add"].into_iter().chain(words.split(' ')).collect();
        gateway.ask(&[&words[..], &["--key-file", &file]].concat())
    };
    let both = "a-b --inbound 0x3000 --outbound 0x3001";
    let cases = [
        ("a-c --inbound 0x3000", key.clone(), 1, "there is no tunnel a-c; did you mean `a-b`?"),
        ("a-b --inbound 0x1002", key.clone(), 1, "SPI 0x1002 is reserved or in use"),
        ("a-b --outbound 0x1001", key.clone(), 1, "SPI 0x1001 is reserved or in use"),
        ("a-b --inbound 0x3000", tunnel.outbound.key.clone(), 1, "give a new one"),
        (
            "a-b --inbound 0x3000",
            key[2..].to_owned(),
            1,
            "the inbound key has 38 hex digits; aes128gcm16 needs 40",
        ),
        ("a-b --inbound 0x3000 --suite 3des-md5", key.clone(), 1, "needs its configuration's consent"),
        ("a-b --inbound 0x3000 --suite rot13", key.clone(), 1, "suite: "),
        (both, format!("{key}\n\n{key}"), 1, "both directions have the same key"),
        (both, key.clone(), 2, "expected 2 keys, with an empty line between, and found 1"),
        ("a-b --inbound 0x3000 --soft-packets 9 --hard-packets 9", key.clone(), 1, "must be less than"),
    ];
    for (words, text, code, complaint) in cases {
        let said = add(words, &text)?;
        said.refused(code, complaint)?;
        ensure(!said.stderr.contains(&key[4..20]), || format!("a key is shown: {said:#?}"))?;
        ensure(spis(&gateway)? == before, || format!("{words}: something has changed"))?;
    }
    write_private(&folder.join("open.key"), &key)?;
    fs::set_permissions(folder.join("open.key"), fs::Permissions::from_mode(0o644))?;
    let open = folder.join("open.key").to_string_lossy().into_owned();
    gateway
        .ask(&["sa", "add", "a-b", "--inbound", "0x3000", "--key-file", &open])?
        .refused(2, "its mode is 0644")?;
    for (words, complaint) in [
        (&["sa", "delete", "a-b", "--spi", "0x1001"][..], "0x1001 is the SA in use towards the peer"),
        (&["sa", "delete", "a-b", "--spi", "0x1002"], "0x1002 is the only SA from the peer"),
        (&["sa", "delete", "a-b", "--spi", "0x9999"], "it has outbound 0x1001, inbound 0x1002"),
        (&["sa", "use", "a-b", "--spi", "0x1002"], "has no such SA 0x1002"),
        (&["sa", "list", "--tunnel", "a-d"], "did you mean `a-b`?"),
    ] {
        gateway.ask(words)?.refused(1, complaint)?;
    }
    for spi in 0x4000..0x4007 {
        let said = add(&format!("a-b --inbound {spi}"), &Sa::random(spi, SUITE)?.key)?;
        ensure(said.code == Some(0), || format!("{said:#?}"))?;
    }
    add("a-b --inbound 0x5000", &key)?.refused(1, "it has 8 SAs in this direction: remove one first")?;
    gateway.stop()
}

fn with_sas(config: &Config, (inbound, outbound): (&Sa, &Sa)) -> Config {
    let mut config = config.clone();
    (config.tunnels[0].inbound, config.tunnels[0].outbound) = (inbound.clone(), outbound.clone());
    config
}

fn outlives_a_reload(link: &mut Link) -> TestResult {
    let [a, b] = pair(true)?;
    let (mut gateway, folder) = link.start_a(&a)?;
    let (peer, folder_b) = link.start_b(&b)?;
    let (inbound, outbound) = fresh(0)?;
    replaced(&gateway, &folder, (&inbound, &outbound), &["--overlap", "0"])?;
    replaced(&peer, &folder_b, (&outbound, &inbound), &["--overlap", "0"])?;
    waits_for_two(&gateway)?;
    waits_for_two(&peer)?;
    let stream = Stream::start((&link.a, "10.1.0.1"), (&link.b, "10.2.0.1"))?;
    stream.flows(50)?;
    // The configuration does not know them, and did not change.
    gateway.reload()?;
    gateway.logs("goes on with SAs that were added at run time")?;
    stream.flows(50)?;
    // Now it does.
    with_sas(&a, (&inbound, &outbound)).write(&folder)?;
    gateway.reload()?;
    stream.flows(50)?;
    let log = gateway.logs("reloaded: 1 tunnels go on untouched, 0 started, 0 removed")?;
    let warned = log.matches("goes on with SAs that were added at run time").count();
    ensure(warned == 1, || format!("warned {warned} times:\n{log}"))?;
    let sequence = gateway.sa("a-b", "outbound")?["sequence"].as_u64().unwrap_or(0);
    ensure(sequence >= 150, || format!("the SA began again: {sequence}"))?;
    let (sent, lost) = stream.end()?;
    ensure(lost.is_empty(), || format!("of {sent} datagrams these were lost: {lost:?}"))?;
    // A restart knows the configuration alone.
    gateway.stop()?;
    let gateway = Gateway::start(&link.a, &folder)?;
    ensure(in_use(&gateway)? == u64::from(outbound.spi), || "the configuration's SA is not back".to_owned())?;
    let next = gateway.sa("a-b", "inbound")?;
    ensure(next["state"] == "installed", || format!("{next:#}"))?;
    gateway.stop()?;
    a.write(&folder)?;
    let gateway = Gateway::start(&link.a, &folder)?;
    ensure(in_use(&gateway)? == 0x1001, || "the old SA is not back".to_owned())?;
    gateway.stop()?;
    peer.stop()
}

fn leaves_no_trace(link: &mut Link) -> TestResult {
    let [a, b] = pair(true)?;
    let (mut gateway, folder) = link.start_a(&a)?;
    let (peer, folder_b) = link.start_b(&b)?;
    let (inbound, outbound) = fresh(0)?;
    replaced(&gateway, &folder, (&inbound, &outbound), &["--ephemeral", "--overlap", "0"])?;
    replaced(&peer, &folder_b, (&outbound, &inbound), &["--ephemeral", "--overlap", "0"])?;
    waits_for_two(&gateway)?;
    let stream = Stream::start((&link.a, "10.1.0.1"), (&link.b, "10.2.0.1"))?;
    stream.flows(100)?;
    stream.end()?;
    let again = [(0x7000, &inbound), (0x7001, &outbound)].map(|(spi, sa)| Sa { spi, key: sa.key.clone() });
    replace(&gateway, &folder, (&again[0], &again[1]), &["--ephemeral"])?
        .refused(1, "was used in this run already: give a new one")?;
    with_sas(&a, (&inbound, &outbound)).write(&folder)?;
    gateway.reload()?;
    gateway.logs("its key was added as an ephemeral one")?;
    gateway.stop()?;
    peer.stop()?;
    for (folder, sas) in [(&folder, [&inbound, &outbound]), (&folder_b, [&inbound, &outbound])] {
        // Not a trace anywhere in the file, also where the database has it no more.
        let file = fs::read(folder.join("state.redb"))?;
        for sa in sas {
            let key = keys::parse(sa.key.as_bytes(), SUITE.parse()?)?;
            for name in [fingerprint(&key), numbers_of(&key)] {
                let is_there = file.windows(name.as_bytes().len()).any(|part| part == name.as_bytes());
                ensure(!is_there, || format!("the key of {:#x} is named in the store's file", sa.spi))?;
            }
        }
        let store = Store::open(&folder.join("state.redb"))?;
        for sa in sas {
            let key = keys::parse(sa.key.as_bytes(), SUITE.parse()?)?;
            let known = store.is_known(numbers_of(&key))?
                || store.window(fingerprint(&key))?.is_some()
                || store.usage(fingerprint(&key))?.is_some();
            ensure(!known, || format!("the store knows the key of {:#x}", sa.spi))?;
        }
        // It does know those of the configuration.
        let key = keys::parse(a.tunnels[0].outbound.key.as_bytes(), SUITE.parse()?)?;
        let known = store.is_known(numbers_of(&key))? || store.window(fingerprint(&key))?.is_some();
        ensure(known, || "the store knows nothing at all".to_owned())?;
    }
    Ok(())
}

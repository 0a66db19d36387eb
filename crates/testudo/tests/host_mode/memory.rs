//! Keys in a gateway's memory: replaced and removed keys can no longer be found.

use crate::support::config::{Config, Sa, pair};
use crate::support::gateway::{Gateway, PROGRAM, proc_file};
use crate::support::link::Link;
use crate::support::{Outcome, ensure, wait};
use std::fs::File;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::traffic::ping;

pub fn tests<'a>(suite: Suite<'a, Link>) -> Suite<'a, Link> {
    suite
        .test("replaced_and_removed_keys_are_erased_from_memory", erases_keys)
        .test("a_key_pasted_into_the_configuration_is_erased_from_memory", erases_pasted_keys)
        .test("keys_in_requests_are_erased_from_memory_also_if_they_are_refused", erases_requested_keys)
        .test("keys_that_were_told_are_erased_from_memory_with_their_sas", erases_told_keys)
        .test("no_verb_that_reads_keys_may_leave_a_core", forbids_cores)
}

/// Bytes read at a time, and the overlap of two pieces: more than the longest pattern.
const PIECE: u64 = 1 << 20;
const OVERLAP: u64 = 256;

/// All memory that a process has written, in pieces; pieces of zeros are left out.
fn memory_of(process: u32) -> Outcome<Vec<Vec<u8>>> {
    let memory = File::open(format!("/proc/{process}/mem"))?;
    let maps = proc_file(process, "maps")?;
    let mut pieces = Vec::new();
    for line in maps.lines().filter(|line| line.contains(" rw") && !line.contains("[v")) {
        let range = line.split(' ').next().and_then(|range| range.split_once('-')).ok_or("no range")?;
        let (start, end) = (u64::from_str_radix(range.0, 16)?, u64::from_str_radix(range.1, 16)?);
        for at in (start..end).step_by(usize::try_from(PIECE)?) {
            let mut piece = vec![0; usize::try_from((PIECE + OVERLAP).min(end - at))?];
            memory.read_exact_at(&mut piece, at).map_err(|e| format!("{line}: {e}"))?;
            pieces.extend(piece.iter().any(|byte| *byte != 0).then_some(piece));
        }
    }
    Ok(pieces)
}

/// Whether `pattern` occurs in memory.
fn occurs(memory: &[Vec<u8>], pattern: &[u8]) -> bool {
    let first = pattern[0];
    memory.iter().any(|piece| {
        let starts = piece.iter().enumerate().filter(|(_, byte)| **byte == first);
        starts.into_iter().any(|(at, _)| piece[at..].starts_with(pattern))
    })
}

fn bytes_of(hex: &str) -> Outcome<Vec<u8>> {
    (0..hex.len()).step_by(2).map(|at| Ok(u8::from_str_radix(&hex[at..at + 2], 16)?)).collect()
}

/// Checks that nothing of these SAs' keys is found: neither hex text, nor key and salt, nor the key alone.
fn are_erased(gateway: &Gateway, sas: &[Sa], folder: &Path) -> Outcome<()> {
    const KEY_BYTES: usize = 16;
    let memory = memory_of(gateway.process())?;
    let known = folder.display().to_string();
    ensure(occurs(&memory, known.as_bytes()), || "the memory was not searched".to_owned())?;
    for sa in sas {
        let material = bytes_of(&sa.key)?;
        let forms =
            [("hex text", sa.key.as_bytes()), ("key", &material[..KEY_BYTES]), ("key and salt", &material)];
        for (form, pattern) in forms {
            ensure(!occurs(&memory, pattern), || format!("SA {:#x}: its {form} is in memory", sa.spi))?;
        }
    }
    Ok(())
}

fn sas(config: &Config) -> Vec<Sa> {
    config.tunnels.iter().flat_map(|tunnel| [tunnel.outbound.clone(), tunnel.inbound.clone()]).collect()
}

fn erases_keys(link: &mut Link) -> TestResult {
    let [config, other] = pair(true)?;
    let (mut gateway, folder) = link.start_a(&config)?;
    let (peer, _) = link.start_b(&other)?;
    let trips = ping(&link.a, "10.2.0.1".parse()?, 3, wait::PATIENCE)?;
    ensure(trips.lost == 0, || "the keys were never used".to_owned())?;
    let mut retired = sas(&config);
    let mut next = config.clone();
    // The second reload shows whether a reload erases the keys of the previous one.
    for _ in 0..2 {
        next.tunnels = pair(true)?[0].tunnels.clone();
        next.write(&folder)?;
        gateway.reload()?;
        are_erased(&gateway, &retired, &folder)?;
        retired.extend(sas(&next));
    }
    next.tunnels = pair(true)?[0].tunnels.clone();
    next.tunnels[0].name = "another".to_owned();
    next.write(&folder)?;
    gateway.reload()?;
    gateway.sa("another", "inbound")?;
    are_erased(&gateway, &retired, &folder)?;
    gateway.stop()?;
    peer.stop()
}

fn erases_pasted_keys(link: &mut Link) -> TestResult {
    let [config, _] = pair(true)?;
    let (mut gateway, folder) = link.start_a(&config)?;
    let pasted = Sa::random(0x3001, "aes128gcm16")?;
    let mut wrong = config.clone();
    wrong.tunnels[0].more = format!("key = \"{}\"", pasted.key);
    wrong.write(&folder)?;
    gateway.reload()?;
    gateway.logs("reload failed")?;
    are_erased(&gateway, &[pasted], &folder)?;
    gateway.stop()
}

/// Where the configuration has SAs keep their keys, and after somebody has read them.
fn erases_told_keys(link: &mut Link) -> TestResult {
    let [mut config, _] = pair(true)?;
    config.gateway = "allow_key_export = true".to_owned();
    let (mut gateway, folder) = link.start_a(&config)?;
    let told = gateway.ask_json(&["sa", "keys"])?.to_string();
    ensure(sas(&config).iter().all(|sa| told.contains(&sa.key)), || "the keys were not told".to_owned())?;
    let mut next = config.clone();
    next.tunnels = pair(true)?[0].tunnels.clone();
    next.write(&folder)?;
    gateway.reload()?;
    are_erased(&gateway, &sas(&config), &folder)?;
    gateway.stop()
}

/// What a client that is wrong may send: the gateway refuses it, and keeps nothing of it.
fn erases_requested_keys(link: &mut Link) -> TestResult {
    let [config, _] = pair(true)?;
    let (gateway, folder) = link.start_a(&config)?;
    let keys = (0..8).map(|n| Sa::random(0x3000 + n, "aes128gcm16")).collect::<Outcome<Vec<_>>>()?;
    let key = |at: usize| &keys[at].key;
    let add = "\"verb\":\"sa-add\",\"tunnel\":\"a-b\"";
    let requests = [
        format!("{{{add},\"inbound\":{},\"inbound_key\":\"{}\",\"suite\":\"rot13\"}}", 0x3000, key(0)),
        format!("{{{add},\"inbound_key\":\"{}\",\"inbound_key\":\"{}\"}}", key(1), key(2)),
        format!("{{{add},\"inboundkey\":\"{}\"}}", key(3)),
        format!("{{\"verb\":\"sa_add\",\"inbound_key\":[\"{}\"]}}", key(4)),
        format!("{{{add},\"outbound_key\":\"{}\",\"use\": no}}", key(5)),
        format!("{{{add},\"outbound_key\":\"{}", key(6)),
        // And one that is taken, whose SA is deleted.
        format!("{{{add},\"inbound\":{},\"inbound_key\":\"{}\"}}", 0x3007, key(7)),
    ];
    for (at, request) in requests.iter().enumerate() {
        let mut client = UnixStream::connect(folder.join("control.sock"))?;
        client.write_all(request.as_bytes())?;
        client.shutdown(Shutdown::Write)?;
        let mut answer = String::new();
        client.read_to_string(&mut answer)?;
        let is_refused = answer.contains("\"error\"");
        ensure(is_refused == (at + 1 < requests.len()), || format!("{at}: {answer}"))?;
    }
    let said = gateway.ask(&["sa", "delete", "a-b", "--spi", "0x3007"])?;
    ensure(said.code == Some(0), || format!("{said:#?}"))?;
    are_erased(&gateway, &keys, &folder)?;
    gateway.stop()
}

/// Each verb waits for its configuration, a pipe that nobody writes to: the limit must be in force by then.
fn forbids_cores(link: &mut Link) -> TestResult {
    let [config, _] = pair(true)?;
    let pipe = link.write(&config)?.join("pipe");
    ensure(Command::new("mkfifo").arg(&pipe).status()?.success(), || "no pipe".to_owned())?;
    for verb in [
        &["run"][..],
        &["check"],
        &["init"],
        &["firewall"],
        &["sa", "keys", "--wireshark"],
        &["replay", "--rx", "protected=none"],
    ] {
        let mut command = Command::new(PROGRAM);
        command.args(verb).arg(&pipe).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let process = child.id();
        let is_limited = wait::until(&format!("for {verb:?} to forbid core dumps"), || {
            let limits = proc_file(process, "limits")?;
            let core = limits.lines().find_map(|line| line.strip_prefix("Max core file size"));
            // Neither a dump now, nor a limit that it could raise again.
            let is_zero = core.is_some_and(|core| core.split_whitespace().eq(["0", "0", "bytes"]));
            Ok(is_zero.then_some(()))
        });
        child.kill()?;
        child.wait()?;
        is_limited?;
    }
    Ok(())
}

//! Workers that encrypt and workers that decrypt.

use crate::support::config::pair;
use crate::support::gateway::{Gateway, proc_file};
use crate::support::link::Link;
use crate::support::{Outcome, ensure};
use serde_json::Value;
use std::fs;
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::traffic::Stream;

pub fn tests<'a>(suite: Suite<'a, Link>) -> Suite<'a, Link> {
    suite
        .test("one_worker_encrypts_and_another_decrypts_and_neither_wakes_for_the_other_side", one_each)
        .test("windows_of_vpe_are_spread_over_workers", windows)
        .test("two_workers_encrypt_and_two_decrypt_and_nothing_is_lost", two_each)
        .test("check_says_which_side_no_worker_takes_packets_from", says_what_is_missing)
}

/// Packets that each worker has taken: from the protected and from the unprotected side.
fn taken(gateway: &Gateway) -> Outcome<Vec<(String, u64, u64)>> {
    let status = gateway.ask_json(&["status"])?;
    let of = |worker: &Value| {
        let count = |side: &str| worker[side]["rx_packets"].as_u64();
        Some((worker["role"].as_str()?.to_owned(), count("protected")?, count("unprotected")?))
    };
    let workers = status["workers"].as_array().into_iter().flatten().map(of).collect::<Option<_>>();
    workers.ok_or_else(|| format!("no workers in {status:#}").into())
}

/// How often a thread has gone to sleep.
fn sleeps(gateway: &Gateway, thread: &str) -> Outcome<u64> {
    for entry in fs::read_dir(format!("/proc/{}/task", gateway.process()))? {
        let task = format!("task/{}", entry?.file_name().to_string_lossy());
        if proc_file(gateway.process(), &format!("{task}/comm"))?.trim_end() != thread {
            continue;
        }
        let status = proc_file(gateway.process(), &format!("{task}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        return Ok(line.ok_or("no count of switches")?.trim().parse()?);
    }
    Err(format!("no thread {thread}").into())
}

fn one_each(link: &mut Link) -> TestResult {
    for udp in [true, false] {
        let [mut a, b] = pair(udp)?;
        a.gateway = "workers = [\"encrypt\", \"decrypt\"]".to_owned();
        let (gateway, _) = link.start_a(&a)?;
        let (peer, _) = link.start_b(&b)?;
        let out = Stream::start((&link.a, "10.1.0.1"), (&link.b, "10.2.0.1"))?;
        out.flows(50)?;
        let before = [sleeps(&gateway, "worker-0")?, sleeps(&gateway, "worker-1")?];
        out.flows(300)?;
        let after = [sleeps(&gateway, "worker-0")?, sleeps(&gateway, "worker-1")?];
        let [encrypting, decrypting] = [after[0] - before[0], after[1] - before[1]];
        // Once a second for what is due, and nothing for packets that it does not take.
        ensure(decrypting * 4 < encrypting, || format!("{encrypting} and {decrypting} sleeps"))?;
        let back = Stream::start((&link.b, "10.2.0.1"), (&link.a, "10.1.0.1"))?;
        back.flows(300)?;
        let lost = [out.end()?.1, back.end()?.1].concat();
        ensure(lost.is_empty(), || format!("lost: {lost:?}\n{}", gateway.log()))?;
        let taken = taken(&gateway)?;
        let [(encrypt, outbound, 0), (decrypt, 0, inbound)] = &taken[..] else {
            return Err(format!("each worker has a side: {taken:?}").into());
        };
        ensure(encrypt == "encrypt" && decrypt == "decrypt", || format!("{taken:?}"))?;
        ensure(*outbound >= 350 && *inbound >= 300, || format!("{taken:?}"))?;
        // The list of system calls that a gateway may make lets workers choose their processor.
        ensure(!gateway.log().contains("is not bound"), || gateway.log())?;
        gateway.stop()?;
        peer.stop()?;
    }
    Ok(())
}

/// VPE is steered by its windows: with the few that there are by default, no worker gets all of them.
fn windows(link: &mut Link) -> TestResult {
    for udp in [true, false] {
        let [mut a, mut b] = pair(udp)?;
        for end in [&mut a, &mut b] {
            end.gateway = "workers = 2".to_owned();
            let tunnel = &mut end.tunnels[0];
            tunnel.vpe = true;
            tunnel.more = "allow_manual_counter_nonce = true".to_owned();
            for sa in [&mut tunnel.outbound, &mut tunnel.inbound] {
                // Of VPE it is the cipher's key alone.
                sa.key.truncate(32);
            }
        }
        let (gateway, _) = link.start_a(&a)?;
        let (peer, _) = link.start_b(&b)?;
        let (here, there) = ((&link.a, "10.1.0.1"), (&link.b, "10.2.0.1"));
        let mut streams = Vec::new();
        for _ in 0..16 {
            streams.push(Stream::start(here, there)?);
        }
        streams.iter().try_for_each(|stream| stream.flows(60))?;
        for stream in streams {
            let (sent, lost) = stream.end()?;
            ensure(lost.is_empty(), || format!("of {sent} these were lost: {lost:?}\n{}", gateway.log()))?;
        }
        let taken = taken(&peer)?;
        let is_spread = taken.len() == 2 && taken.iter().all(|worker| worker.2 >= 50);
        ensure(is_spread, || format!("both take some: {taken:?}"))?;
        gateway.stop()?;
        peer.stop()?;
    }
    Ok(())
}

/// As the paper has them, and in the order of a list.
fn two_each(link: &mut Link) -> TestResult {
    let roles = ["{ count = 4, roles = \"half\" }", "[\"decrypt\", \"encrypt\", \"decrypt\", \"encrypt\"]"];
    for (roles, udp) in roles.into_iter().zip([true, false]) {
        let [mut a, mut b] = pair(udp)?;
        for end in [&mut a, &mut b] {
            end.gateway = format!("workers = {roles}");
            end.tunnels[0].more = "peer_window = 4096\nreplay_window = 4096".to_owned();
        }
        let (gateway, _) = link.start_a(&a)?;
        let (peer, _) = link.start_b(&b)?;
        let (here, there) = ((&link.a, "10.1.0.1"), (&link.b, "10.2.0.1"));
        let mut streams = Vec::new();
        for _ in 0..8 {
            streams.push(Stream::start(here, there)?);
            streams.push(Stream::start(there, here)?);
        }
        streams.iter().try_for_each(|stream| stream.flows(100))?;
        for stream in streams {
            let (sent, lost) = stream.end()?;
            ensure(lost.is_empty(), || format!("of {sent} these were lost: {lost:?}\n{}", gateway.log()))?;
        }
        for end in [&gateway, &peer] {
            let taken = taken(end)?;
            let keeps = |(role, outbound, inbound): &(String, u64, u64)| match role.as_str() {
                "encrypt" => *inbound == 0,
                _ => *outbound == 0,
            };
            let sum = |get: fn(&(String, u64, u64)) -> u64| taken.iter().map(get).sum::<u64>();
            ensure(taken.len() == 4 && taken.iter().all(keeps), || format!("{taken:?}"))?;
            ensure(sum(|worker| worker.1) >= 800 && sum(|worker| worker.2) >= 800, || format!("{taken:?}"))?;
            let text = end.ask(&["top", "--count", "1", "--interval", "0.2"])?.stdout;
            ensure(text.contains(", encrypt") && text.contains(", decrypt"), || text)?;
        }
        gateway.stop()?;
        peer.stop()?;
    }
    Ok(())
}

fn says_what_is_missing(link: &mut Link) -> TestResult {
    for (roles, complaint) in [
        ("[\"encrypt\"]", "a worker that takes packets from the unprotected side"),
        ("[\"decrypt\", \"decrypt\"]", "a worker that takes packets from the protected side"),
    ] {
        let [mut a, _] = pair(true)?;
        a.gateway = format!("workers = {roles}");
        let folder = link.write(&a)?;
        let said = crate::support::gateway::run_to_end(&link.a, &folder)?;
        ensure(said.code == Some(2) && said.stderr.contains(complaint), || format!("{said:#?}"))?;
    }
    Ok(())
}

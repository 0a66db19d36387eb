//! SAs that were added at run time beside reloads, and what the store remembers of their keys and of others.

use crate::support::config::{Config, Sa, Tunnel, pair, write_private};
use crate::support::gateway::Gateway;
use crate::support::link::Link;
use crate::support::{Outcome, ensure, wait};
use std::net::UdpSocket;
use std::path::Path;
use testudo_control::{Known, Store, fingerprint, keys, numbers_of};
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::traffic::Stream;

const SUITE: &str = "aes128gcm16";

pub fn tests<'a>(suite: Suite<'a, Link>) -> Suite<'a, Link> {
    suite
        .test(
            "a_key_that_a_reload_retires_goes_on_at_its_number_beside_sas_added_at_run_time",
            retires_others,
        )
        .test(
            "a_reload_that_gives_a_run_time_key_or_spi_to_another_tunnel_changes_nothing",
            gives_no_key_twice,
        )
        .test("run_time_keys_are_retired_by_a_restart_and_may_be_resumed_once", is_retired_by_a_restart)
}

/// A second tunnel beside that of [`pair`], to a network that nobody answers in.
fn second() -> Outcome<Tunnel> {
    let mut tunnel = pair(true)?[0].tunnels.remove(0);
    tunnel.name = "second".to_owned();
    tunnel.selectors = vec![("10.1.0.1".to_owned(), "10.9.0.0/24".to_owned())];
    (tunnel.outbound, tunnel.inbound) = (Sa::random(0x2001, SUITE)?, Sa::random(0x2002, SUITE)?);
    Ok(tunnel)
}

/// Adds the SAs of both directions to tunnel a-b, and puts them to use.
fn add(gateway: &Gateway, folder: &Path, inbound: &Sa, outbound: &Sa, more: &[&str]) -> Outcome<()> {
    let file = folder.join("new.keys");
    write_private(&file, &format!("{}\n\n{}\n", inbound.key, outbound.key))?;
    let spis = [inbound, outbound].map(|sa| format!("{:#x}", sa.spi));
    let file = file.to_string_lossy();
    let words =
        ["sa", "add", "a-b", "--inbound", &spis[0], "--outbound", &spis[1], "--key-file", &file, "--use"];
    let said = gateway.ask(&[&words[..], more].concat())?;
    ensure(said.code == Some(0), || format!("{said:#?}\n{}", gateway.log()))
}

/// Sends datagrams into the second tunnel.
fn send_into_second(link: &Link, count: usize) -> Outcome<()> {
    let socket = link.a.within(|| UdpSocket::bind("10.1.0.1:0"))??;
    for _ in 0..count {
        socket.send_to(b"into the second tunnel", "10.9.0.1:9")?;
    }
    Ok(())
}

fn sequence(gateway: &Gateway, tunnel: &str) -> Outcome<u64> {
    gateway.sa(tunnel, "outbound")?["sequence"].as_u64().ok_or_else(|| "no number".into())
}

fn reaches(gateway: &Gateway, tunnel: &str, number: u64) -> Outcome<()> {
    wait::until(&format!("for number {number}"), || Ok((sequence(gateway, tunnel)? >= number).then_some(())))
}

/// What a store knows of an SA's key.
fn known(folder: &Path, sa: &Sa) -> Outcome<Vec<Known>> {
    let key = keys::parse(sa.key.as_bytes(), SUITE.parse()?)?;
    let of = [fingerprint(&key), numbers_of(&key)];
    let all = Store::open(&folder.join("state.redb"))?.known()?;
    Ok(all.into_iter().filter(|known| of.contains(&known.fingerprint)).collect())
}

fn write_and_reload(gateway: &mut Gateway, folder: &Path, config: &Config) -> Outcome<()> {
    config.write(folder)?;
    gateway.reload()
}

fn retires_others(link: &mut Link) -> TestResult {
    let [mut a, mut b] = pair(true)?;
    let alone = a.clone();
    a.tunnels.push(second()?);
    b.tunnels.push(a.tunnels[1].mirrored());
    let (mut gateway, folder) = link.start_a(&a)?;
    let (peer, folder_b) = link.start_b(&b)?;
    let (inbound, outbound) = (Sa::random(0x3002, SUITE)?, Sa::random(0x3001, SUITE)?);
    add(&peer, &folder_b, &outbound, &inbound, &[])?;
    add(&gateway, &folder, &inbound, &outbound, &[])?;
    let stream = Stream::start((&link.a, "10.1.0.1"), (&link.b, "10.2.0.1"))?;
    stream.flows(50)?;
    send_into_second(link, 20)?;
    reaches(&gateway, "second", 20)?;
    let last = sequence(&gateway, "second")?;
    // The second tunnel leaves the configuration, and its keys are retired.
    write_and_reload(&mut gateway, &folder, &alone)?;
    gateway.logs("the store has retired 2 keys that are not configured")?;
    stream.flows(50)?;
    write_and_reload(&mut gateway, &folder, &a)?;
    stream.flows(50)?;
    send_into_second(link, 20)?;
    reaches(&gateway, "second", last + 20)?;
    let numbers = sequence(&gateway, "second")?;
    ensure(numbers == last + 20, || format!("{last} before, then 20 packets up to {numbers}"))?;
    wait::until("for the peer to take them all", || {
        let taken = peer.sa("second", "inbound")?["packets"].as_u64();
        Ok((taken == Some(40)).then_some(()))
    })?;
    for reason in ["replay_duplicate", "replay_too_old"] {
        ensure(peer.dropped(reason)? == 0, || format!("the peer has dropped packets as {reason}"))?;
    }
    // The SAs that were added went on all the while.
    let (sent, lost) = stream.end()?;
    ensure(lost.is_empty(), || format!("of {sent} datagrams these were lost: {lost:?}"))?;
    let in_use = gateway.ask_json(&["sa", "list", "--tunnel", "a-b"])?;
    let in_use = in_use.as_array().into_iter().flatten().find(|sa| sa["in_use"] == true);
    let number = in_use.filter(|sa| sa["spi"] == 0x3001).and_then(|sa| sa["sequence"].as_u64());
    ensure(number.is_some_and(|number| number >= 150), || format!("{in_use:#?}"))?;
    gateway.stop()?;
    peer.stop()?;
    let kept = [known(&folder, &outbound)?, known(&folder, &a.tunnels[1].outbound)?].concat();
    let are_kept = kept.len() == 2 && kept.iter().all(|known| !known.is_retired);
    ensure(are_kept && kept[1].next == Some(last + 21), || format!("{kept:?}"))
}

fn gives_no_key_twice(link: &mut Link) -> TestResult {
    let [a, _] = pair(true)?;
    let (mut gateway, folder) = link.start_a(&a)?;
    let (inbound, outbound) = (Sa::random(0x3002, SUITE)?, Sa::random(0x3001, SUITE)?);
    add(&gateway, &folder, &inbound, &outbound, &[])?;
    let before = gateway.ask_json(&["sa", "list"])?;
    let policies = gateway.ask_json(&["policy", "list"])?;
    let told = "belongs to an SA that was added to tunnel a-b at run time: delete that one first";
    let spi = Tunnel { inbound: Sa::random(inbound.spi, SUITE)?, ..second()? };
    let received = Tunnel { inbound: Sa { spi: 0x2002, key: inbound.key.clone() }, ..second()? };
    let sent = Tunnel { outbound: Sa { spi: 0x2001, key: inbound.key.clone() }, ..second()? };
    for (tunnel, what) in
        [(spi, "its inbound SPI 0x3002"), (received, "a key of its SAs"), (sent, "a key of its SAs")]
    {
        let mut config = a.clone();
        config.tunnels.push(tunnel);
        config.write(&folder)?;
        let refusals = gateway.log().matches(told).count();
        gateway.reload()?;
        let log = gateway.logs(&format!("tunnel second: {what} {told}"))?;
        ensure(log.matches(told).count() == refusals + 1, || format!("{what}: {log}"))?;
        ensure(gateway.ask_json(&["sa", "list"])? == before, || format!("{what}: an SA has changed"))?;
        ensure(gateway.ask_json(&["policy", "list"])? == policies, || {
            format!("{what}: a policy has changed")
        })?;
    }
    // Without those SAs the same configuration is good.
    for spi in ["0x3001", "0x3002"] {
        let said = gateway.ask(&["sa", "delete", "a-b", "--spi", spi, "--force"])?;
        ensure(said.code == Some(0), || format!("{said:#?}"))?;
    }
    gateway.reload()?;
    gateway.logs("reloaded: 1 tunnels go on untouched, 1 started, 0 removed")?;
    gateway.stop()
}

fn is_retired_by_a_restart(link: &mut Link) -> TestResult {
    let [a, _] = pair(true)?;
    let (gateway, folder) = link.start_a(&a)?;
    let (inbound, outbound) = (Sa::random(0x3002, SUITE)?, Sa::random(0x3001, SUITE)?);
    add(&gateway, &folder, &inbound, &outbound, &[])?;
    let send = || -> Outcome<()> {
        let socket = link.a.within(|| UdpSocket::bind("10.1.0.1:0"))??;
        for _ in 0..10 {
            socket.send_to(b"under the new key", "10.2.0.1:9")?;
        }
        Ok(())
    };
    let used = |gateway: &Gateway| -> Outcome<u64> {
        let list = gateway.ask_json(&["sa", "list"])?;
        let sa = list.as_array().into_iter().flatten().find(|sa| sa["spi"] == 0x3001);
        sa.and_then(|sa| sa["sequence"].as_u64()).ok_or_else(|| "no such SA".into())
    };
    send()?;
    wait::until("for ten numbers", || Ok((used(&gateway)? >= 10).then_some(())))?;
    // A crash, as that is the harder case: numbers of the last lease are lost, and none is used again.
    gateway.kill()?;
    let gateway = Gateway::start(&link.a, &folder)?;
    gateway.logs("the store has retired 2 keys that are not configured")?;
    gateway.kill()?;
    let kept = known(&folder, &outbound)?;
    ensure(kept.len() == 1 && kept[0].is_retired, || format!("{kept:?}"))?;
    let next = kept[0].next.ok_or("no number is kept")?;
    ensure(next > 10, || format!("numbers begin at {next}"))?;
    let gateway = Gateway::start(&link.a, &folder)?;
    let file = folder.join("new.keys").to_string_lossy().into_owned();
    let words = ["sa", "add", "a-b", "--inbound", "0x3002", "--outbound", "0x3001", "--key-file", &file];
    gateway.ask(&words)?.refused(1, "or --resume to go on after its numbers")?;
    add(&gateway, &folder, &inbound, &outbound, &["--resume"])?;
    send()?;
    wait::until("for its numbers to go on", || Ok((used(&gateway)? == next + 9).then_some(())))?;
    let again = ["sa", "add", "a-b", "--inbound", "0x4002", "--outbound", "0x4001", "--key-file", &file];
    let said = gateway.ask(&[&again[..], &["--resume"]].concat())?;
    said.refused(1, "belongs to an SA of tunnel a-b: give a new one")?;
    gateway.stop()
}

//! Daemons gone mad at the socket of a running gateway, while numbered datagrams pass through a tunnel of its
//! configuration: what they ask for and flush is not that tunnel's.

use crate::network::Network;
use crate::played::mad::{ALL, Mad, Madness};
use crate::support::config::write_private;
use crate::support::{Outcome, ensure};
use crate::traffic::{INNER, drops, lost, with_addresses};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send,
    socket_with,
};
use std::net::Ipv4Addr;
use std::path::Path;
use std::thread;
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::traffic::Stream;
use testudo_wire::netlink::ack::Answer;
use testudo_wire::netlink::datagram::Datagram;
use testudo_wire::netlink::messages;

/// The host that they speak to, and its address.
const GATEWAY: usize = 1;
const OWN: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
/// SPIs that each of two wants, and that both get: they are one process.
const WANTED: u32 = 50_000;
const GIVEN: u32 = 1 << 14;
/// How often each goes through all of its madness.
const ROUNDS: usize = 150;
/// Requests in a record.
const AT_ONCE: usize = 100;

pub fn tests(suite: Suite<'_, Network>) -> Suite<'_, Network> {
    suite.test("daemons_gone_mad_take_no_packet_of_a_configured_tunnel", raves)
}

/// The configured tunnel, as a host has it, with keys that both can read.
fn tunnel(network: &Network, own: usize) -> Outcome<String> {
    const ENDS: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
    const NETWORKS: [&str; 2] = ["10.1.0.0/16", "10.2.0.0/16"];
    let other = 1 - own;
    let sa = |towards: usize| -> Outcome<String> {
        let key = network.root.join(format!("steady-{towards}.key"));
        write_private(&key, &["a5", "5a"][towards].repeat(20))?;
        Ok(format!("{{ spi = {}, key_file = \"{}\" }}", 0x7001 + towards, key.display()))
    };
    Ok(format!(
        "[[tunnel]]\nname = \"steady\"\nlocal = \"{}\"\nremote = \"{}\"\nsuite = \"aes128gcm16\"\n\
         selectors = [ {{ local = \"{}\", remote = \"{}\" }} ]\noutbound = {}\ninbound = {}\n",
        ENDS[own],
        ENDS[other],
        NETWORKS[own],
        NETWORKS[other],
        sa(other)?,
        sa(own)?,
    ))
}

/// Asks for these, in records of many, over a connection of its own: how many SPIs it was given.
fn rave(path: &Path, mad: &mut Mad, kinds: impl Iterator<Item = Madness>) -> Outcome<u32> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    let (mut kinds, mut given) = (kinds.peekable(), 0);
    while kinds.peek().is_some() {
        let (mut record, mut asked) = (Datagram::new(), 0);
        for madness in kinds.by_ref().take(AT_ONCE) {
            mad.asks_with(madness, &mut record);
            asked += 1;
        }
        send(&socket, record.as_bytes(), SendFlags::NOSIGNAL)?;
        for _ in 0..asked {
            let mut bytes = [0; 4096];
            let (_, length) = recv(&socket, &mut bytes[..], RecvFlags::empty())?;
            let answer = messages(&bytes[..length]).next().ok_or("it was disconnected")??;
            // A refusal is an answer: the other one may have flushed what is to be deleted.
            given += u32::from(Answer::read(&answer).is_none());
        }
    }
    Ok(given)
}

/// Two at the same time, with numbers of their own: how many SPIs they were given.
fn both_rave(path: &Path, kinds: impl Iterator<Item = Madness> + Clone + Send) -> Outcome<u32> {
    thread::scope(|scope| {
        let ravers = [1 << 20, 1 << 24].map(|number| {
            let kinds = kinds.clone();
            scope.spawn(move || rave(path, &mut Mad::at(OWN, number), kinds).map_err(|e| e.to_string()))
        });
        let given = ravers.map(|raver| raver.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        Ok(given.into_iter().sum::<Result<u32, String>>()?)
    })
}

fn raves(network: &mut Network) -> TestResult {
    let sections = [tunnel(network, 0)?, tunnel(network, 1)?];
    network.a.start_program_of("", &sections[0])?;
    network.b.start_program_of("", &sections[1])?;
    with_addresses(network)?;
    let ends = [(&network.a.namespace, INNER[0]), (&network.b.namespace, INNER[1])];
    let streams = [Stream::start(ends[0], ends[1])?, Stream::start(ends[1], ends[0])?];
    streams.iter().try_for_each(|stream| stream.flows(100))?;
    let host = network.hosts()[GATEWAY];
    let path = host.folder.join("testudo/xfrm.sock");
    let spis = std::iter::repeat_n(Madness::Spi, WANTED as usize);
    let given = both_rave(&path, spis)?;
    ensure(given == GIVEN, || format!("{given} SPIs are reserved for one process, in place of {GIVEN}"))?;
    let told = host.ip_xfrm(&["state", "count"])?;
    ensure(told.contains(&GIVEN.to_string()), || format!("{GIVEN} SPIs are reserved: {told}"))?;
    both_rave(&path, std::iter::repeat_n(ALL, ROUNDS).flatten())?;
    rave(&path, &mut Mad::at(OWN, 0), [Madness::NoSas, Madness::NoPolicies].into_iter())?;
    streams.iter().try_for_each(|stream| stream.flows(100))?;
    let lost = lost(streams)?;
    ensure(lost.iter().all(Vec::is_empty), || {
        format!("lost: {lost:?}\n{:?}\n{}", drops(host), host.program().process.log())
    })?;
    let left = host.program().process.ask_json(&["sa", "list"])?;
    let of_tunnel = |sa: &serde_json::Value| sa["tunnel"] == "steady";
    let is_alone = left.as_array().is_some_and(|sas| sas.len() == 2 && sas.iter().all(of_tunnel));
    ensure(is_alone, || format!("all was flushed but the configured tunnel: {left:#}"))?;
    for host in [&mut network.a, &mut network.b] {
        if let Some(program) = host.program.take() {
            program.process.stop()?;
        }
    }
    Ok(())
}

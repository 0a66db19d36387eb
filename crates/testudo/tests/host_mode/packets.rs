//! What the network does to a gateway: absent peers, moving peers, replayed and forged packets, NATs.

use crate::support::config::{Config, pair};
use crate::support::gateway::Gateway;
use crate::support::link::{LINK, Link};
use crate::support::wait::{PATIENCE, until};
use crate::support::{Outcome, ensure, folder};
use serde_json::Value;
use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::time::Duration;
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::attack::{self, Recorded};
use testudo_lab::capture::{Capture, WHOLE};
use testudo_lab::namespaces::Namespace;
use testudo_lab::traffic::ping;

pub fn tests<'a>(suite: Suite<'a, Link>) -> Suite<'a, Link> {
    suite
        .test("an_absent_peer_stops_nothing_and_may_appear_later", waits_for_its_peer)
        .test("replayed_and_forged_packets_are_refused_and_counted", |link| refuses_attacks(link, false))
        .test("replayed_and_forged_packets_in_udp_are_refused_and_counted", |link| {
            refuses_attacks(link, true)
        })
        .test("packets_recorded_before_a_kill_are_refused_after_it", refuses_replays_after_a_kill)
        .test("a_silent_tunnel_sends_nat_keepalives", sends_keepalives)
        .test("a_moving_peer_is_followed_only_if_its_packets_are_authentic", follows_its_peer)
}

const A: &str = "10.1.0.1";
const B: &str = "10.2.0.1";

/// Checks that five pings are answered.
fn passes(from: &Namespace, to: &str) -> Outcome<()> {
    let trips = ping(from, to.parse()?, 5, PATIENCE)?;
    ensure(trips.lost == 0, || format!("{} of 5 pings to {to} were lost", trips.lost))
}

/// One ping that nobody will answer.
fn ping_in_vain(from: &Namespace, to: &str) -> Outcome<()> {
    let trips = ping(from, to.parse()?, 1, Duration::from_millis(200))?;
    ensure(trips.times.is_empty(), || format!("{to} answered"))
}

fn waits_for_its_peer(link: &mut Link) -> TestResult {
    const ELSEWHERE: &str = "198.51.100.7";
    for udp in [true, false] {
        let [mut a, mut b] = pair(udp)?;
        a.tunnels[0].remote = ELSEWHERE.to_owned();
        b.tunnels[0].local = ELSEWHERE.to_owned();
        let (mut gateway, _) = link.start_a(&a)?;
        // There is not even a route to the peer.
        ping_in_vain(&link.a, B)?;
        gateway.counts("send_refused", 1)?;
        // There is a route, but no host.
        link.a.route_via(&format!("{ELSEWHERE}/32"), "192.0.2.2")?;
        ping_in_vain(&link.a, B)?;
        gateway.is_alive()?;
        link.b.address("lo", &format!("{ELSEWHERE}/32"))?;
        // There is a host without a gateway, which answers with ICMP errors.
        ping_in_vain(&link.a, B)?;
        ping_in_vain(&link.a, B)?;
        gateway.is_alive()?;
        let (peer, _) = link.start_b(&b)?;
        passes(&link.a, B)?;
        peer.stop()?;
        gateway.stop()?;
        link.a.run(&["ip", "route", "del", &format!("{ELSEWHERE}/32")])?;
        link.b.run(&["ip", "address", "del", &format!("{ELSEWHERE}/32"), "dev", "lo"])?;
    }
    Ok(())
}

/// Records the ESP packets of five pings that come from `source`.
fn record(link: &Link, source: &str, udp: bool) -> Outcome<Vec<Recorded>> {
    let capture = Capture::start(&link.a, LINK, &folder("captures")?.join("wan.pcap"), WHOLE)?;
    passes(&link.a, B)?;
    let source: Ipv4Addr = source.parse()?;
    let mut packets = Vec::new();
    capture.finish(&link.a)?.frames(|frame, _| {
        let protocol = if udp { 17 } else { 50 };
        let is_esp = frame.get(12..14) == Some(&[8, 0]) && frame.get(23) == Some(&protocol);
        if is_esp && frame.get(26..30) == Some(&source.octets()) {
            packets.extend(Recorded::new(&frame[14..], if udp { 28 } else { 20 }, udp));
        }
    })?;
    Ok(packets)
}

fn refuses_attacks(link: &mut Link, udp: bool) -> TestResult {
    let [a, b] = pair(udp)?;
    let (gateway, _) = link.start_a(&a)?;
    let (peer, _) = link.start_b(&b)?;
    let packets = record(link, "192.0.2.2", udp)?;
    ensure(packets.len() >= 5, || format!("only {} packets were recorded", packets.len()))?;
    let count = u64::try_from(packets.len())?;
    let accepted = gateway.sa("a-b", "inbound")?["packets"].clone();
    attack::send(&link.b, "192.0.2.1".parse()?, &packets)?;
    gateway.counts("replay_duplicate", count)?;
    let forged: Vec<_> = packets.iter().map(|packet| packet.forged(1000)).collect();
    attack::send(&link.b, "192.0.2.1".parse()?, &forged)?;
    gateway.counts("authentication_failed", count)?;
    let sa = gateway.sa("a-b", "inbound")?;
    ensure(sa["packets"] == accepted, || format!("{accepted} packets were accepted before, and now {sa:#}"))?;
    ensure(
        sa["drops"]["replay_duplicate"] == count && sa["drops"]["authentication_failed"] == count,
        || format!("the SA does not count them: {sa:#}"),
    )?;
    for event in ["replay_duplicate", "authentication_failed"] {
        gateway.logs(&format!("\"event\":\"{event}\""))?;
    }
    let told = gateway.log();
    let fields =
        ["\"spi\":4098", "\"source\":\"192.0.2.2\"", "\"destination\":\"192.0.2.1\"", "\"sequence\":"];
    let lines: Vec<_> = told.lines().filter(|line| line.contains("audit: ")).collect();
    let is_complete =
        |line: &&str| fields.iter().all(|field| line.contains(field)) || line.contains("untold");
    ensure(lines.iter().all(is_complete), || format!("audit lines lack fields:\n{}", lines.join("\n")))?;
    // A forged packet with a high number does not move the window.
    passes(&link.a, B)?;
    peer.stop()?;
    gateway.stop()
}

/// A hundred packets, an immediate kill, and the same packets again: none of them passes. The peer's later
/// packets do.
fn refuses_replays_after_a_kill(link: &mut Link) -> TestResult {
    const PACKETS: u64 = 100;
    let [a, b] = pair(false)?;
    let (gateway, state) = link.start_a(&a)?;
    let (peer, _) = link.start_b(&b)?;
    let capture = Capture::start(&link.a, LINK, &folder("killed")?.join("wan.pcap"), WHOLE)?;
    let socket = link.b.within(|| UdpSocket::bind((B, 0)))??;
    let send = || (0..PACKETS).try_for_each(|_| socket.send_to(b"anything", (A, 9)).map(drop));
    let received =
        |gateway: &Gateway| Ok::<_, Box<dyn Error>>(gateway.sa("a-b", "inbound")?["packets"].as_u64());
    send()?;
    until("for packets to arrive", || Ok((received(&gateway)? >= Some(PACKETS)).then_some(())))?;
    gateway.kill()?;
    let mut packets = Vec::new();
    capture.finish(&link.a)?.frames(|frame, _| {
        let is_esp = frame.get(12..14) == Some(&[8, 0]) && frame.get(23) == Some(&50);
        if is_esp && frame.get(26..30) == Some(&[192, 0, 2, 2]) {
            packets.extend(Recorded::new(&frame[14..], 20, false));
        }
    })?;
    let gateway = Gateway::start(&link.a, &state)?;
    attack::send(&link.b, "192.0.2.1".parse()?, &packets)?;
    gateway.counts("replay_duplicate", PACKETS)?;
    let passed = received(&gateway)?.unwrap_or(0);
    println!("  {passed} of {} recorded packets passed after the kill", packets.len());
    ensure(packets.len() as u64 >= PACKETS && passed == 0, || format!("{passed} passed"))?;
    let mut sent = 0;
    until("for the peer's numbers to pass the ceiling", || {
        send()?;
        sent += PACKETS;
        Ok((received(&gateway)? > Some(0)).then_some(()))
    })?;
    println!("  of {sent} new packets at most were refused before one passed");
    gateway.stop()?;
    peer.stop()
}

fn sends_keepalives(link: &mut Link) -> TestResult {
    let [mut a, mut b] = pair(true)?;
    a.tunnels[0].more = "keepalive_seconds = 1".to_owned();
    b.tunnels[0].more = "keepalive_seconds = 0".to_owned();
    let (gateway, _) = link.start_a(&a)?;
    let (peer, _) = link.start_b(&b)?;
    peer.counts("nat_keepalive", 2)?;
    let back = gateway.dropped("nat_keepalive")?;
    ensure(back == 0, || format!("{back} keepalives of a peer that has none configured"))?;
    let packets = peer.sa("a-b", "inbound")?["packets"].clone();
    ensure(packets == 0, || format!("{packets} keepalives were counted as packets of the SA"))?;
    passes(&link.a, B)?;
    peer.stop()?;
    gateway.stop()
}

/// Moves B's gateway to this address and port, in its configuration.
fn move_to(config: &mut Config, address: &str, port: u16) {
    config.tunnels[0].local = address.to_owned();
    config.tunnels[0].more = format!("local_port = {port}");
}

fn follows_its_peer(link: &mut Link) -> TestResult {
    let [mut a, mut b] = pair(true)?;
    a.tunnels[0].remote = "any".to_owned();
    let (gateway, _) = link.start_a(&a)?;
    ping_in_vain(&link.a, B)?;
    gateway.counts("peer_unknown", 1)?;
    link.b.address(LINK, "192.0.2.3/24")?;
    let home = link.prepare(&b)?;
    let mut recorded = Vec::new();
    for (address, port) in
        [("192.0.2.2", 4500), ("192.0.2.2", 4777), ("192.0.2.3", 4777), ("192.0.2.3", 1024)]
    {
        move_to(&mut b, address, port);
        b.write(&home)?;
        let peer = Gateway::start(&link.b, &home)?;
        // The peer sends first. From then on it is reached there, once it has been silent for a second at its
        // old address.
        until("for the peer to be followed", || {
            Ok(ping(&link.b, A.parse()?, 1, Duration::from_millis(200))?.times.pop())
        })?;
        passes(&link.b, A)?;
        let place = format!("{address}:{port}");
        until("for the peer to be shown where it is", || Ok((peer_of(&gateway)? == *place).then_some(())))?;
        // A move is logged once the peer has stayed.
        gateway.logs(&format!("the peer is at {place}"))?;
        recorded = record(link, address, true)?;
        peer.stop()?;
    }
    // Old or forged packets from another address do not draw the tunnel there.
    let before = peer_of(&gateway)?;
    let elsewhere: IpAddr = "192.0.2.1".parse()?;
    let forged = recorded.iter().map(|packet| packet.forged(1000));
    let foreign: Vec<_> =
        recorded.iter().cloned().chain(forged).filter_map(|packet| from_elsewhere(&packet)).collect();
    attack::send(&link.b, elsewhere, &foreign)?;
    gateway.counts("replay_duplicate", u64::try_from(recorded.len())?)?;
    gateway.counts("authentication_failed", u64::try_from(recorded.len())?)?;
    let peer = Gateway::start(&link.b, &home)?;
    until("for the tunnel to be where it was", || Ok(ping(&link.a, B.parse()?, 1, PATIENCE)?.times.pop()))?;
    let after = peer_of(&gateway)?;
    ensure(after == before, || format!("the tunnel moved from {before} to {after}:\n{}", gateway.log()))?;
    peer.stop()?;
    link.b.run(&["ip", "address", "del", "192.0.2.3/24", "dev", LINK])?;
    gateway.stop()
}

/// The address of A's peer.
fn peer_of(gateway: &Gateway) -> Outcome<Value> {
    Ok(gateway.sa("a-b", "outbound")?["peer"].clone())
}

/// The same ESP packet from another UDP port.
fn from_elsewhere(packet: &Recorded) -> Option<Recorded> {
    let mut bytes = packet.packet().to_vec();
    bytes.get_mut(20..22)?.copy_from_slice(&5555_u16.to_be_bytes());
    Recorded::new(&bytes, 28, true)
}

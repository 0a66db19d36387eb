//! Clear packets that policy wants protected: inbound, outbound, and while no gateway runs.

use crate::site::{GATEWAY, HOST, OUR_OUTER, OUTER, REMOTE, Rules, Site, expect, hears, socket};
use crate::support::gateway::Gateway;
use crate::support::link::LINK;
use crate::support::wait::{PATIENCE, until};
use crate::support::{Outcome, ensure};
use std::net::{SocketAddr, UdpSocket};
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::namespaces::Namespace;
use testudo_lab::traffic::ping;

pub fn tests<'a>(suite: Suite<'a, Site>) -> Suite<'a, Site> {
    suite
        .test("clear_packets_with_remote_source_addresses_reach_nobody", refuses_spoofed_packets)
        .test("nothing_leaves_in_clear_when_the_gateway_is_killed", leaks_nothing_when_killed)
        .test("bypassed_traffic_passes_in_clear_both_ways", lets_bypassed_traffic_pass)
        .test(
            "clear_packets_with_source_addresses_of_the_far_end_do_not_enter_the_tunnel",
            refuses_spoofs_into_the_tunnel,
        )
}

const PORT: u16 = 7007;

/// Sends a clear packet from the outer host to `to`, with a source address of the remote network, and checks
/// whether it arrives as `expected`. A packet with the outer host's own address, which nothing forbids,
/// follows it on the same path.
fn arrives(site: &Site, version: usize, to: &str, receiver: &UdpSocket, expected: bool) -> Outcome<()> {
    let spoofed = socket(&site.link.b, REMOTE[version], 0)?;
    let honest = socket(&site.link.b, OUTER[version], 0)?;
    let to = SocketAddr::new(to.parse()?, PORT);
    spoofed.send_to(b"spoofed", to)?;
    honest.send_to(b"honest", to)?;
    let mut others = hears(receiver, b"honest", OUTER[version].parse()?)?;
    if expected && others.is_empty() {
        others = hears(receiver, b"spoofed", REMOTE[version].parse()?).map(|_| vec![(Vec::new(), to)])?;
    }
    ensure(others.is_empty() != expected, || format!("to {to}: heard {others:?}, expected any: {expected}"))
}

/// Tries every destination that a clear packet from outside could reach: each address of the gateway, and a
/// host.
fn all_arrive(site: &Site, expected: bool) -> Outcome<()> {
    for version in [0, 1] {
        let any = ["0.0.0.0", "::"][version];
        let (on_gateway, on_host) = (socket(&site.link.a, any, PORT)?, socket(&site.host, any, PORT)?);
        let mut to_gateway = vec![GATEWAY[version], OUR_OUTER[version]];
        if version == 0 {
            to_gateway.push("10.1.0.1");
        }
        for address in to_gateway {
            arrives(site, version, address, &on_gateway, expected)?;
        }
        arrives(site, version, HOST[version], &on_host, expected)?;
    }
    Ok(())
}

fn refuses_spoofed_packets(site: &mut Site) -> TestResult {
    let config = site.config()?;
    let (gateway, folder) = site.link.start_a(&config)?;
    // Without rules, so that the test is known to detect what it is for.
    all_arrive(site, true)?;
    let rules = Rules::apply(&site.link.a, folder)?;
    all_arrive(site, false)?;
    expect(&site.link.a, &rules.folder, &["--remove"])?;
    all_arrive(site, true)?;
    expect(&site.link.a, &rules.folder, &["--apply"])?;
    gateway.kill()?;
    none_arrive_after_the_kill(site)
}

/// After the kill, the gateway's inner address is gone; the other addresses stay closed.
fn none_arrive_after_the_kill(site: &Site) -> Outcome<()> {
    let on_host = socket(&site.host, "0.0.0.0", PORT)?;
    arrives(site, 0, HOST[0], &on_host, false)?;
    let on_gateway = socket(&site.link.a, "0.0.0.0", PORT)?;
    arrives(site, 0, OUR_OUTER[0], &on_gateway, false)
}

/// Sends one packet from `from` to the remote network and one to the outer host itself, and checks whether
/// the first arrives in clear as `expected`.
fn leaves(site: &Site, from: &Namespace, version: usize, expected: bool) -> Outcome<()> {
    let remote = socket(&site.link.b, REMOTE[version], PORT)?;
    let outer = socket(&site.link.b, OUTER[version], PORT)?;
    let sender = socket(from, ["0.0.0.0", "::"][version], 0)?;
    let sent = sender.send_to(b"secret", SocketAddr::new(REMOTE[version].parse()?, PORT));
    ensure(expected != sent.is_err() || from.name() == "host", || format!("{sent:?}"))?;
    // The router may have answered the first packet with "unreachable", which the socket reports at the next
    // call.
    let to_outer = SocketAddr::new(OUTER[version].parse()?, PORT);
    until("to send", || Ok(sender.send_to(b"open", to_outer).ok()))?;
    until("for an open word", || {
        let mut buffer = [0; 16];
        Ok(outer.recv_from(&mut buffer).ok())
    })?;
    let arrived = if expected {
        until("for a secret", || {
            let mut buffer = [0; 16];
            Ok(remote.recv_from(&mut buffer).ok())
        })
        .is_ok()
    } else {
        remote.recv_from(&mut [0; 16]).is_ok()
    };
    ensure(arrived == expected, || format!("from {}: arrived: {arrived}", from.name()))
}

fn all_leave(site: &Site, expected: bool) -> Outcome<()> {
    for version in [0, 1] {
        leaves(site, &site.host, version, expected)?;
        leaves(site, &site.link.a, version, expected)?;
    }
    Ok(())
}

fn passes(from: &Namespace, to: &str) -> Outcome<()> {
    let trips = ping(from, to.parse()?, 3, PATIENCE)?;
    ensure(trips.lost == 0, || format!("{} of 3 pings to {to} were lost", trips.lost))
}

fn leaks_nothing_when_killed(site: &mut Site) -> TestResult {
    let [a, b] = Site::pair()?;
    // Without a gateway or rules, everything leaves by the default route.
    all_leave(site, true)?;
    let rules = site.protected(&a)?;
    all_leave(site, false)?;
    let gateway = Gateway::start(&site.link.a, &rules.folder)?;
    let (peer, _) = site.link.start_b(&b)?;
    for version in [0, 1] {
        passes(&site.host, REMOTE[version])?;
    }
    gateway.kill()?;
    all_leave(site, false)?;
    let route = site.link.a.run(&["ip", "route", "get", REMOTE[0]]);
    ensure(route.as_ref().is_err_and(|e| e.to_string().contains("No route to host")), || {
        format!("{route:?}")
    })?;
    // The rules alone suffice, even if the operator has added a route.
    site.link.a.run(&["ip", "route", "add", REMOTE[0], "via", OUTER[0]])?;
    let remote = socket(&site.link.b, REMOTE[0], PORT)?;
    let sender = socket(&site.host, "0.0.0.0", 0)?;
    sender.send_to(b"secret", SocketAddr::new(REMOTE[0].parse()?, PORT))?;
    let outer = socket(&site.link.b, OUTER[0], PORT)?;
    sender.send_to(b"open", SocketAddr::new(OUTER[0].parse()?, PORT))?;
    hears(&outer, b"open", HOST[0].parse()?)?;
    ensure(remote.recv_from(&mut [0; 16]).is_err(), || "it left in clear by another route".to_owned())?;
    site.link.a.run(&["ip", "route", "del", REMOTE[0]])?;
    // The restarted gateway works as before, once the peer's numbers exceed all that may have arrived before
    // the kill.
    let gateway = Gateway::start(&site.link.a, &rules.folder)?;
    for _ in 0..256 {
        remote.send_to(b"above the window", SocketAddr::new(HOST[0].parse()?, PORT))?;
    }
    for version in [0, 1] {
        passes(&site.host, REMOTE[version])?;
    }
    peer.stop()?;
    gateway.stop()
}

fn lets_bypassed_traffic_pass(site: &mut Site) -> TestResult {
    let mut config = site.config()?;
    config.unprotected = format!("interface = \"{LINK}\"");
    config.policies = ["10.2.0.0/16", "fd02::/64"]
        .map(|remote| {
            format!(
                "[[policy]]\naction = \"bypass\"\nremote = \"{remote}\"\nprotocol = \"udp\"\nremote_ports = \"{PORT}\"\n"
            )
        })
        .concat();
    let rules = site.protected(&config)?;
    let gateway = Gateway::start(&site.link.a, &rules.folder)?;
    for version in [0, 1] {
        let (host, remote): (std::net::IpAddr, std::net::IpAddr) =
            (HOST[version].parse()?, REMOTE[version].parse()?);
        let ours = socket(&site.host, HOST[version], 0)?;
        let theirs = socket(&site.link.b, REMOTE[version], PORT)?;
        ours.send_to(b"there", SocketAddr::new(remote, PORT))?;
        hears(&theirs, b"there", host)?;
        // The remote network's other ports are not bypassed, in either direction.
        let other = socket(&site.link.b, REMOTE[version], PORT + 1)?;
        ours.send_to(b"protected", SocketAddr::new(remote, PORT + 1))?;
        other.send_to(b"spoofed", ours.local_addr()?)?;
        theirs.send_to(b"back", ours.local_addr()?)?;
        let others = hears(&ours, b"back", remote)?;
        ensure(others.is_empty(), || format!("heard {others:?}"))?;
        ours.send_to(b"there", SocketAddr::new(remote, PORT))?;
        hears(&theirs, b"there", host)?;
        ensure(other.recv_from(&mut [0; 16]).is_err(), || "what is protected left in clear".to_owned())?;
    }
    gateway.stop()
}

/// A tunnel that connects two remote networks through this gateway: addresses of one are local selectors
/// towards the other, so the policies alone would encrypt a clear packet with a source address of one network
/// and send it to the other.
fn refuses_spoofs_into_the_tunnel(site: &mut Site) -> TestResult {
    let mut config = site.config()?;
    let transit = ("10.2.0.0/16".to_owned(), "10.3.0.0/16".to_owned());
    config.tunnels[0].selectors.push(transit);
    let rules = site.protected(&config)?;
    let gateway = Gateway::start(&site.link.a, &rules.folder)?;
    site.link.b.route_via("10.3.0.0/16", OUR_OUTER[0])?;
    let sealed = || -> Outcome<u64> {
        let packets = gateway.sa("a-b", "outbound")?["packets"].as_u64();
        packets.ok_or_else(|| "no counter of packets".into())
    };
    let before = sealed()?;
    let spoofed = socket(&site.link.b, REMOTE[0], 0)?;
    spoofed.send_to(b"spoofed", "10.3.0.1:7".parse::<SocketAddr>()?)?;
    // A host of this site may send into the tunnel on the same path.
    let honest = socket(&site.host, HOST[0], 0)?;
    until("for a packet to be sealed", || {
        honest.send_to(b"honest", SocketAddr::new(REMOTE[0].parse()?, 7))?;
        Ok((sealed()? > before).then_some(()))
    })?;
    let dropped = site.link.a.run(&["nft", "list", "chain", "inet", "testudo-testudo0", "forward"])?;
    ensure(dropped.contains("counter packets 1 "), || dropped)?;
    site.link.b.run(&["ip", "route", "del", "10.3.0.0/16"])?;
    gateway.stop()
}

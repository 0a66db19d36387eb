//! The path's MTU, as hosts on both sides learn it: `ping -M do -s`, `tracepath`, `iperf3` (RFC 4301 8.2).

use crate::site::{Kind, Site, stop};
use crate::support::gateway::Gateway;
use crate::support::pings::{is_told, passes, ping_of};
use crate::support::sites::{NARROW, OUTER};
use crate::support::wait::{self, PATIENCE};
use crate::support::{Outcome, ensure};
use serde_json::Value;
use std::net::UdpSocket;
use std::process::Stdio;
use std::time::Duration;
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::namespaces::Namespace;

/// The left host, IPv4 and IPv6.
const LEFT: [&str; 2] = ["10.1.0.2", "fd01::2"];
/// What the gateways call themselves inside.
const TESTUDO: [&str; 2] = ["10.1.0.1", "fd01::1"];
const LINUX: [&str; 2] = ["10.2.0.1", "fd02::1"];
/// ICMP errors are heard and used up, and packets that are too big are answered.
const EXPECTED: [&str; 2] = ["icmp_believed", "too_big"];

pub fn tests<'a>(suite: Suite<'a, Site>) -> Suite<'a, Site> {
    let mut suite = suite;
    for kind in Kind::ALL {
        let name = format!("testudo_and_linux_tell_hosts_the_same_of_a_narrow_path_through_{}", kind.name());
        suite = suite.test(name, move |site| hosts_learn(site, kind));
    }
    suite
        .test("a_host_learns_the_mtu_of_the_path_to_linux_in_transport_mode", learns_in_transport_mode)
        .test("ipv6_packets_of_1280_bytes_cross_a_path_of_1280_to_linux", crosses_with_1280)
        .test("tracepath_sees_the_tunnel_to_linux_as_one_hop_and_finds_its_mtu", traces)
        .test("iperf3_fills_narrow_paths_to_a_host_behind_linux", fills)
}

/// A packet with DF that is too long for the path: the first is lost, since nobody can be told before a
/// router has spoken; then the host is told what fits, and that much passes and no byte more.
fn learns(from: &Namespace, to: &str, [before, after]: [usize; 2]) -> TestResult {
    wait::until(&format!("for the host to be told of the path to {to}"), || {
        let (is_answered, said) = ping_of(from, to, before, "0.3")?;
        ensure(!is_answered, || format!("{before} bytes crossed to {to}"))?;
        Ok(said.contains("mtu").then_some(()))
    })?;
    passes(from, to, after)?;
    is_told(from, to, after + 1, after)
}

/// What Testudo tells its hosts, the kernel tells its own: both compute the same of one path.
fn hosts_learn(site: &mut Site, kind: Kind) -> TestResult {
    let gateway = site.connect(kind, "")?;
    let lengths = [1500, NARROW].map(|path| kind.inner_mtu(path));
    for right in site.network.fresh_host()? {
        passes(&site.network.left, &right, lengths[1])?;
        learns(&site.network.left, &right, lengths)?;
    }
    ensure(gateway.dropped("icmp_believed")? == 1, || "one error was enough".to_owned())?;
    for left in LEFT {
        learns(&site.network.right, left, lengths)?;
    }
    let errors = site.errors_of_linux()?;
    ensure(errors.is_empty(), || format!("Linux counted {errors}"))?;
    stop(gateway, &EXPECTED)
}

/// In transport mode it is the gateway's own host that is told (RFC 4301 8.2.1).
fn learns_in_transport_mode(site: &mut Site) -> TestResult {
    for kind in Kind::ALL.map(Kind::transport) {
        let gateway = site.connect(kind, "")?;
        let lengths = [1500, NARROW].map(|path| kind.inner_mtu(path));
        let peer = OUTER[usize::from(kind.over_ipv6)][1];
        passes(&site.network.a, peer, lengths[1]).map_err(|e| format!("{}: {e}", kind.name()))?;
        learns(&site.network.a, peer, lengths).map_err(|e| format!("{}: {e}", kind.name()))?;
        let errors = site.errors_of_linux()?;
        ensure(errors.is_empty(), || format!("Linux counted {errors}"))?;
        stop(gateway, &EXPECTED)?;
    }
    Ok(())
}

/// IPv6 packets of 1,280 bytes cross any path (RFC 8200 5): where it leaves less inside, Testudo cuts their
/// sealed datagrams (RFC 2473 7.1), and Linux puts these together. Linux sends none itself.
fn crosses_with_1280(site: &mut Site) -> TestResult {
    const LEAST: usize = 1280;
    site.network.narrow_to(LEAST)?;
    for kind in Kind::ALL {
        let gateway = site.connect(kind, "")?;
        let [_, right] = site.network.fresh_host()?;
        let receiver = site.network.right.within(|| UdpSocket::bind((right.as_str(), 0)))??;
        receiver.set_read_timeout(Some(Duration::from_millis(200)))?;
        let sender = site.network.left.within(|| UdpSocket::bind((LEFT[1], 0)))??;
        sender.connect(receiver.local_addr()?)?;
        // Over IPv6 no router cuts: the first is lost, and the path becomes known.
        wait::until(&format!("for {LEAST} bytes in {}", kind.name()), || {
            sender.send(&[0; LEAST - 48])?;
            Ok(receiver.recv(&mut [0; LEAST]).is_ok().then_some(()))
        })?;
        stop(gateway, &["icmp_believed", "icmp_ignored"])?;
    }
    site.network.narrow_to(NARROW)
}

/// What `tracepath` says: the hosts at which packets ended, in their order, and its last line. Who says that
/// a packet is too big is another matter: Testudo says so in the name of the host that it is for.
fn tracepath(from: &Namespace, to: &str) -> Outcome<(Vec<String>, String)> {
    let family = if to.contains(':') { "-6" } else { "-4" };
    let output = wait::output(from.command("tracepath").args(["-n", family, "-m", "8", to]))?;
    let text = String::from_utf8(output.stdout)?;
    let mut hops: Vec<String> = Vec::new();
    for line in text.lines() {
        // " 2:  10.2.0.1    3.1ms asymm 3", "1?: [LOCALHOST]  pmtu 1500", " 2:  no reply", " 1:  10.1.0.1
        // 0.2ms pmtu 1446".
        let mut words = line.split_whitespace();
        let is_hop = words.next().is_some_and(|word| word.ends_with(':')) && !line.contains("pmtu");
        let host = words.next().filter(|host| is_hop && host.contains(['.', ':']));
        if let Some(host) = host.filter(|host| hops.last().is_none_or(|last| last != host)) {
            hops.push(host.to_owned());
        }
    }
    let last = text.lines().last().unwrap_or_default().trim().to_owned();
    Ok((hops, last))
}

/// Between the gateways there is one hop, whatever routers the outer datagrams cross (RFC 4301 5.1.2.1), and
/// the errors of both gateways about inner packets arrive.
fn traces(site: &mut Site) -> TestResult {
    for kind in [Kind::ALL[0], Kind::ALL[1], Kind::ALL[3]] {
        let gateway = site.connect(kind, "")?;
        let mtu = kind.inner_mtu(NARROW);
        let rights = site.network.fresh_host()?;
        for (at, right) in rights.iter().enumerate() {
            for (from, to, way) in [
                (&site.network.left, right.as_str(), [TESTUDO[at], LINUX[at]]),
                (&site.network.right, LEFT[at], [LINUX[at], TESTUDO[at]]),
            ] {
                let (hops, last) = tracepath(from, to)?;
                let expected = [way[0], way[1], to];
                ensure(hops == expected && last.starts_with(&format!("Resume: pmtu {mtu} hops 3")), || {
                    format!("{}: the way to {to} is {hops:?}, {last:?}, not {expected:?}, {mtu}", kind.name())
                })?;
            }
        }
        stop(gateway, &EXPECTED)?;
    }
    Ok(())
}

/// One run of `iperf3` between the sites; what the client reports. It ends with an error, and is tried again,
/// while the server does not listen yet, and where its socket hears that a datagram was too long for the
/// path.
fn iperf(site: &Site, host: &str, words: &[&str]) -> Outcome<Value> {
    let mut command = site.network.right.command("iperf3");
    // A host with many addresses would answer UDP from another one.
    let mut server = command.args(["-s", "-B", host]).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let client = || {
        let mut command = site.network.left.command("iperf3");
        command.args(["-c", host, "-J", "--connect-timeout", "2000"]).args(words);
        let report: Value = serde_json::from_slice(&wait::output(&mut command)?.stdout)?;
        Ok(report["error"].is_null().then_some(report))
    };
    let report = wait::until_within(2 * PATIENCE, "for iperf3", client);
    server.kill()?;
    server.wait()?;
    report.map_err(|e| format!("iperf3 {words:?} to {host}: {e}").into())
}

/// TCP both ways, with the MSS lowered or the path learned, and UDP in datagrams that fit and that do not.
fn fills(site: &mut Site) -> TestResult {
    let kind = Kind::ALL[0];
    for (path, clamp) in [(NARROW, "auto"), (1280, "off"), (576, "auto")] {
        site.network.narrow_to(path)?;
        let gateway = site.connect(kind, &format!("mss_clamp = \"{clamp}\""))?;
        let [v4, v6] = site.network.fresh_host()?;
        let mut filled = fill(site, &gateway, &v4);
        // Linux has no way for an IPv6 packet of 1,280 bytes through a path that leaves less.
        if kind.inner_mtu(path) >= 1280 {
            filled = filled.and_then(|()| fill(site, &gateway, &v6));
        }
        filled.map_err(|e| format!("a path of {path} bytes, MSS clamp {clamp}: {e}"))?;
        ensure(gateway.dropped("icmp_believed")? > 0, || "nothing was too long for the path".to_owned())?;
        // A router speaks of each packet that was on its way when the first was too long.
        stop(gateway, &[EXPECTED[0], EXPECTED[1], "icmp_ignored"])?;
    }
    site.network.narrow_to(NARROW)
}

fn fill(site: &Site, gateway: &Gateway, host: &str) -> TestResult {
    // The receiver reports what it has read when the sender has sent all: a small window bounds the
    // difference.
    for words in [&["-n", "1M", "-w", "64K"][..], &["-n", "1M", "-w", "64K", "-R"]] {
        let report = iperf(site, host, words)?;
        let bytes = report["end"]["sum_received"]["bytes"].as_u64().unwrap_or(0);
        ensure(bytes >= 512 << 10, || format!("{words:?}: {bytes} bytes to {host}: {report:#}"))?;
    }
    for length in ["400", "3000"] {
        let words = ["-u", "-b", "4M", "-n", "128K", "-l", length];
        let report = iperf(site, host, &words)?;
        let sum = &report["end"]["sum"];
        let [sent, lost] = ["packets", "lost_packets"].map(|key| sum[key].as_u64().unwrap_or(u64::MAX));
        // Before a router has spoken, what is too long is lost.
        ensure(lost < sent / 2, || {
            format!("UDP of {length} bytes to {host}: {lost} of {sent} were lost: {report:#}")
        })?;
    }
    ensure(gateway.dropped("fields_hidden")? == 0, || "a fragment met a policy on ports".to_owned())
}

//! Routers that say what does not fit, and hosts that heed it.

use crate::support::config::Config;
use crate::support::gateway::Gateway;
use crate::support::pings::{inner_mtu, is_told, passes, ping_of};
use crate::support::sites::{NARROW, Network, OUTER, ROUTER};
use crate::support::wait::{self, PATIENCE};
use crate::support::{Outcome, ensure, folder};
use rustix::net::{AddressFamily, SocketType, ipproto, socket};
use serde_json::json;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::Stdio;
use std::time::Duration;
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::capture::{Capture, WHOLE};
use testudo_lab::namespaces::Namespace;
use testudo_lab::traffic::{ping, tcp_stream};
use testudo_wire::checksum;
use testudo_wire::icmp::{MAX_TOO_BIG_BYTES, too_big};
use testudo_wire::ip::IpHeader;

pub fn tests<'a>(suite: Suite<'a, Network>) -> Suite<'a, Network> {
    let mut suite = suite;
    for over_ipv6 in [false, true] {
        for udp in [false, true] {
            let outer = if over_ipv6 { "ipv6" } else { "ipv4" };
            let encapsulation = if udp { "esp_in_udp" } else { "esp" };
            suite = suite.test(
                format!("hosts_learn_the_mtu_of_the_path_through_{encapsulation}_over_{outer}"),
                move |network: &mut Network| hosts_learn(network, over_ipv6, udp),
            );
            suite = suite.test(
                format!("datagrams_cut_after_encryption_fit_the_learned_mtu_of_{encapsulation}_over_{outer}"),
                move |network: &mut Network| cuts_to_fit(network, over_ipv6, udp),
            );
        }
    }
    suite
        .test("tcp_crosses_a_path_that_is_too_narrow_for_it", |network| tcp_crosses(network, false))
        .test("tcp_crosses_a_path_over_ipv6_that_is_too_narrow_for_it", |network| tcp_crosses(network, true))
        .test("forged_errors_change_nothing_and_are_counted", ignores_forgeries)
        .test("iperf3_fills_a_narrow_path_in_both_directions", iperf_fills)
}

/// Sends packets with DF that are too long for the path, until the gateway has heard of it: the first is
/// lost, since no host can be told before.
fn learn(from: &Namespace, to: &str, bytes: usize, gateway: &Gateway) -> TestResult {
    let (is_answered, _) = ping_of(from, to, bytes, "0.2")?;
    ensure(!is_answered, || "a packet crossed a path that is too narrow for it".to_owned())?;
    gateway.counts("icmp_believed", 1)
}

/// The path's MTU becomes known to the gateway, and to the hosts on both sides, IPv4 and IPv6 alike.
fn hosts_learn(network: &mut Network, over_ipv6: bool, udp: bool) -> TestResult {
    let [a, b] = network.start(&Network::ends(over_ipv6, udp, "")?)?;
    let [before, after] = [1500, NARROW].map(|path| inner_mtu(path, over_ipv6, udp));
    let [v4, v6] = network.fresh_host()?;
    passes(&network.left, &v4, after)?;
    learn(&network.left, &v4, before, &a)?;
    for host in [&v4, &v6] {
        is_told(&network.left, host, before, after)?;
        passes(&network.left, host, after)?;
        is_told(&network.left, host, after + 1, after)?;
    }
    a.logs(&format!("the path to the peer carries {NARROW} bytes"))?;
    calculates(&a, after)?;
    ensure(a.dropped("icmp_believed")? == 1, || "one error was enough".to_owned())?;
    b.stop()?;
    a.stop()
}

/// `status` and `sa list` have the path that was learned, and what it leaves.
fn calculates(gateway: &Gateway, inner: usize) -> TestResult {
    let status = gateway.ask_json(&["status"])?;
    let sa = gateway.sa("a-b", "outbound")?;
    for path in [&status["path_mtus"][0], &sa["path_mtu"]] {
        let expected = json!({
            "path_mtu": NARROW, "source": "router", "overhead": NARROW - inner, "inner_mtu": inner,
            "mss_ipv4": inner - 40, "mss_ipv6": inner - 60,
        });
        for (key, value) in expected.as_object().into_iter().flatten() {
            ensure(path[key] == *value, || format!("{key} is to be {value} in {path:#}"))?;
        }
        ensure(path["age_seconds"].as_u64().is_some_and(|age| age < 60), || format!("{path:#}"))?;
    }
    let said = gateway.ask(&["status"])?.stdout;
    ensure(said.contains("router, 0:0") && said.contains("TCP MSS (IPv6)"), || said.clone())
}

/// With `fragment = "after"` packets with DF cross whole, in fragments that fit what was learned.
fn cuts_to_fit(network: &mut Network, over_ipv6: bool, udp: bool) -> TestResult {
    let mut ends = Network::ends(over_ipv6, udp, "fragment = \"after\"")?;
    ends.iter_mut().for_each(|end: &mut Config| end.protected = "mtu = 3000".to_owned());
    let [a, b] = network.start(&ends)?;
    let [v4, v6] = network.fresh_host()?;
    // As much as fits 1,500 bytes: not cut before the path is known.
    let whole = inner_mtu(1500, over_ipv6, udp);
    learn(&network.left, &v4, whole, &a)?;
    for host in [&v4, &v6] {
        // The answer meets the narrow link from the other side.
        wait::until("for an answer in fragments", || {
            Ok(ping_of(&network.left, host, whole, "0.3")?.0.then_some(()))
        })?;
        passes(&network.left, host, 1500)?;
    }
    b.counts("icmp_believed", 1)?;
    ensure(a.dropped("too_big")? == 0, || "a packet was refused".to_owned())?;
    b.stop()?;
    a.stop()
}

fn tcp_crosses(network: &mut Network, over_ipv6: bool) -> TestResult {
    let [a, b] = network.start(&Network::ends(over_ipv6, true, "")?)?;
    for host in network.fresh_host()? {
        let mut watch = |_: Duration, _: u64| ();
        let stream =
            tcp_stream(&network.left, &network.right, host.parse()?, Duration::from_millis(300), &mut watch)?;
        ensure(stream.bytes > 100_000, || format!("only {} bytes went to {host}", stream.bytes))?;
    }
    b.stop()?;
    a.stop()
}

fn iperf_fills(network: &mut Network) -> TestResult {
    let [a, b] = network.start(&Network::ends(false, true, "")?)?;
    for host in network.fresh_host()? {
        for reverse in [&[][..], &["-R"]] {
            let mut command = network.right.command("iperf3");
            let mut server = command.args(["-s", "-1"]).stdout(Stdio::null()).spawn()?;
            let client = || {
                let mut command = network.left.command("iperf3");
                let words = ["-c", &host, "-n", "2M", "-J", "--connect-timeout", "2000"];
                Ok(wait::output(command.args(words).args(reverse))?.status.success().then_some(()))
            };
            let done = wait::until("for iperf3 to send 2 MiB", client);
            server.kill()?;
            server.wait()?;
            done?;
        }
    }
    b.stop()?;
    a.stop()
}

/// Sends what a router would have sent.
fn say(router: &Namespace, to: IpAddr, message: &[u8]) -> TestResult {
    let family = if to.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let open = || socket(family, SocketType::RAW, Some(ipproto::RAW)).map(UdpSocket::from);
    router.within(open)??.send_to(message, SocketAddr::new(to, 0))?;
    Ok(())
}

/// An attacker who does not see the packets of an SA must guess: an SPI that is wrong, a number that was not
/// sent, an MTU below the floor. Errors about other programs' datagrams are none of the gateway's business.
fn ignores_forgeries(network: &mut Network) -> TestResult {
    let [a, b] = network.start(&Network::ends(false, false, "")?)?;
    let [v4, _] = network.fresh_host()?;
    let wan = folder("forged")?.join("wan.pcap");
    let capture = Capture::start(&network.a, "wan", &wan, WHOLE)?;
    let trips = ping(&network.left, v4.parse()?, 1, PATIENCE)?;
    ensure(trips.lost == 0, || "a ping was lost".to_owned())?;
    let mut sent = Vec::new();
    capture.finish(&network.a)?.frames(|frame, _| {
        let source: Option<IpAddr> = IpHeader::parse(&frame[14..]).ok().map(|header| header.source);
        if frame.get(23) == Some(&50) && source == OUTER[0][0].parse().ok() {
            sent.push(frame[14..].to_vec());
        }
    })?;
    let mut datagram = sent.first().ok_or("nothing was captured")?.clone();
    // As if it had been longer than the path.
    datagram.resize(1500, 0);
    datagram[2..4].copy_from_slice(&1500_u16.to_be_bytes());
    let forge = |change: &dyn Fn(&mut Vec<u8>), mtu: u16| -> Outcome<Vec<u8>> {
        let mut quoted = datagram.clone();
        change(&mut quoted);
        quoted[10..12].fill(0);
        let sum = checksum::of(&quoted[..20]).to_bytes();
        quoted[10..12].copy_from_slice(&sum);
        let mut message = [0; MAX_TOO_BIG_BYTES];
        let length = too_big(&IpHeader::parse(&quoted)?, &quoted, mtu, ROUTER[0].parse()?, &mut message)?;
        Ok(message[..length.ok_or("no message")?].to_vec())
    };
    let to: IpAddr = OUTER[0][0].parse()?;
    for message in [
        forge(&|quoted| quoted[20] ^= 1, 1300)?,
        forge(&|quoted| quoted[26] ^= 0x80, 1300)?,
        forge(&|_| (), 500)?,
        forge(&|_| (), 1500)?,
    ] {
        say(&network.routers[0], to, &message)?;
    }
    a.counts("icmp_ignored", 4)?;
    // TCP: not heard at all.
    let other = forge(&|quoted| quoted[9] = 6, 1300)?;
    say(&network.routers[0], to, &other)?;
    // The same error, true in all.
    say(&network.routers[0], to, &forge(&|_| (), 1300)?)?;
    a.counts("icmp_believed", 1)?;
    ensure(a.dropped("icmp_ignored")? == 4, || "errors about TCP are not the gateway's".to_owned())?;
    b.stop()?;
    a.stop()
}

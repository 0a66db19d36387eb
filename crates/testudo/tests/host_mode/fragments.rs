//! Packets longer than the path, between real hosts: cut before encryption or after, and put together by the
//! peer's kernel, which host mode's sockets rely on.

use crate::support::config::{Config, pair};
use crate::support::link::Link;
use crate::support::{Outcome, ensure};
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::namespaces::Namespace;

pub fn tests<'a>(suite: Suite<'a, Link>) -> Suite<'a, Link> {
    suite
        .test("packets_that_must_not_be_cut_cross_a_path_that_is_too_narrow_for_them_in_fragments", |link| {
            crosses_in_fragments(link, ["192.0.2.1", "192.0.2.2"])
        })
        .test("fragments_after_encryption_cross_over_ipv6", crosses_in_fragments_over_ipv6)
        .test("fragmentation_before_encryption_is_the_default_and_heeds_df", heeds_df)
}

const B: &str = "10.2.0.1";
/// Of the inner network; the link between the gateways carries 1,500 bytes.
const INNER_MTU: usize = 4000;

/// The two ends with hosts behind them that may send longer packets than the path carries.
fn ends(udp: bool, outer: [&str; 2], more: &str) -> Outcome<[Config; 2]> {
    let mut ends = pair(udp)?;
    for (end, place) in ends.iter_mut().zip([[0, 1], [1, 0]]) {
        end.protected = format!("mtu = {INNER_MTU}");
        let tunnel = &mut end.tunnels[0];
        [tunnel.local, tunnel.remote] = place.map(|at| outer[at].to_owned());
        tunnel.more = more.to_owned();
    }
    Ok(ends)
}

/// Pings with DF and so many bytes in all, IP and ICMP headers included; whether three of three came back.
fn ping_with_df(from: &Namespace, bytes: usize) -> bool {
    let payload = (bytes - 28).to_string();
    from.run(&["ping", "-q", "-c", "3", "-i", "0.05", "-W", "5", "-M", "do", "-s", &payload, B]).is_ok()
}

/// Datagrams that a host's kernel has put together, in either version.
fn reassembled(host: &Namespace) -> Outcome<u64> {
    let tables = host.within(|| {
        let read = |name| std::fs::read_to_string(format!("/proc/thread-self/net/{name}"));
        Ok::<_, std::io::Error>((read("snmp")?, read("snmp6")?))
    })??;
    let mut ip = tables.0.lines().filter(|line| line.starts_with("Ip:"));
    let names = ip.next().unwrap_or_default().split_whitespace();
    let values = ip.next().unwrap_or_default().split_whitespace();
    let v4 = names.zip(values).find(|(name, _)| *name == "ReasmOKs").map(|(_, value)| value);
    let v6 = tables.1.lines().find(|line| line.starts_with("Ip6ReasmOKs"));
    let v6 = v6.and_then(|line| line.split_whitespace().last());
    Ok(v4.unwrap_or("0").parse::<u64>()? + v6.unwrap_or("0").parse::<u64>()?)
}

fn crosses_in_fragments(link: &mut Link, outer: [&str; 2]) -> TestResult {
    for udp in [true, false] {
        let [a, b] = ends(udp, outer, "fragment = \"after\"")?;
        let (left, _) = link.start_a(&a)?;
        let (right, _) = link.start_b(&b)?;
        let before = reassembled(&link.b)?;
        for bytes in [100, 1410, 1500, INNER_MTU] {
            ensure(ping_with_df(&link.a, bytes), || format!("pings of {bytes} bytes were lost, UDP {udp}"))?;
        }
        let count = reassembled(&link.b)? - before;
        ensure(count == 6, || format!("{count} datagrams of 6 were put together, UDP {udp}"))?;
        right.stop()?;
        left.stop()?;
    }
    Ok(())
}

fn crosses_in_fragments_over_ipv6(link: &mut Link) -> TestResult {
    const OUTER: [&str; 2] = ["fd08::1", "fd08::2"];
    for (host, address) in [&link.a, &link.b].into_iter().zip(OUTER) {
        host.run(&["ip", "address", "add", &format!("{address}/64"), "dev", "wan", "nodad"])?;
    }
    crosses_in_fragments(link, OUTER)?;
    for (host, address) in [&link.a, &link.b].into_iter().zip(OUTER) {
        host.run(&["ip", "address", "del", &format!("{address}/64"), "dev", "wan"])?;
    }
    Ok(())
}

/// RFC 4301 8.2.1: the sender of a packet with DF is told what fits. Without DF, the peer's host gets
/// fragments of the inner packet.
fn heeds_df(link: &mut Link) -> TestResult {
    let [a, b] = ends(true, ["192.0.2.1", "192.0.2.2"], "")?;
    let (left, _) = link.start_a(&a)?;
    let (right, _) = link.start_b(&b)?;
    ensure(ping_with_df(&link.a, 1400), || "pings that fit were lost".to_owned())?;
    ensure(!ping_with_df(&link.a, INNER_MTU), || {
        "pings with DF crossed a path that is too narrow".to_owned()
    })?;
    left.counts("too_big", 1)?;
    let before = reassembled(&link.b)?;
    let payload = (INNER_MTU - 28).to_string();
    link.a.run(&["ping", "-q", "-c", "3", "-i", "0.05", "-W", "5", "-M", "dont", "-s", &payload, B])?;
    let count = reassembled(&link.b)? - before;
    ensure(count == 3, || format!("B put {count} inner packets of 3 together"))?;
    right.stop()?;
    left.stop()?;
    Ok(())
}

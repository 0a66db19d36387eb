//! Headers on both sides of a tunnel to Linux, with real routers that mark and count: ECN (RFC 6040), DSCP
//! and TTL (RFC 4301 5.1.2).

use crate::site::{Kind, Site, stop};
use crate::support::sites::OUTER;
use crate::support::{Outcome, ensure, folder, wait};
use std::collections::BTreeMap;
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::capture::{Capture, WHOLE};
use testudo_lab::namespaces::Namespace;

/// The left host, IPv4 and IPv6.
const LEFT: [&str; 2] = ["10.1.0.2", "fd01::2"];
/// By ping's payload: all echo requests of a test in one recording are told apart by their length.
const FIRST_LENGTH: usize = 64;
/// RFC 6040, figure 4: rows are the inner field, columns the outer one (Not-ECT, ECT(1), ECT(0), CE).
const FIGURE_4: [[Option<u8>; 4]; 4] = [
    [Some(0), Some(0), Some(0), None],
    [Some(1), Some(1), Some(1), Some(3)],
    [Some(2), Some(1), Some(2), Some(3)],
    [Some(3), Some(3), Some(3), Some(3)],
];
const MARKS: [&str; 4] = ["not-ect", "ect1", "ect0", "ce"];

pub fn tests<'a>(suite: Suite<'a, Site>) -> Suite<'a, Site> {
    let mut suite = suite;
    for kind in Kind::ALL {
        let name = format!("ecn_that_routers_mark_comes_from_linux_as_rfc_6040_says_in_{}", kind.name());
        suite = suite.test(name, move |site| ecn_arrives(site, kind));
    }
    suite
        .test("ecn_and_dscp_go_out_as_copies_and_congestion_reaches_hosts_behind_linux", ecn_leaves)
        .test("inner_ttls_count_the_gateways_and_no_router_between_them", ttls)
}

/// An IP packet's traffic class, time to live and payload, behind Ethernet.
struct Seen<'a> {
    class: u8,
    ttl: u8,
    protocol: u8,
    payload: &'a [u8],
}

fn packet(frame: &[u8]) -> Option<Seen<'_>> {
    let bytes = frame.get(14..)?;
    match (frame.get(12..14)?, bytes) {
        ([8, 0], [0x45, class, _, _, _, _, _, _, ttl, protocol, ..]) => {
            let length = usize::from(u16::from_be_bytes([bytes[2], bytes[3]]));
            Some(Seen { class: *class, ttl: *ttl, protocol: *protocol, payload: bytes.get(20..length)? })
        }
        ([0x86, 0xdd], [first, second, _, _, _, _, protocol, ttl, ..]) => {
            let class = first << 4 | second >> 4;
            Some(Seen { class, ttl: *ttl, protocol: *protocol, payload: bytes.get(40..)? })
        }
        _ => None,
    }
}

/// Class and TTL of the echo requests at an interface while `work` runs, by the length of their payload.
fn requests(host: &Namespace, work: impl FnOnce() -> TestResult) -> Outcome<BTreeMap<usize, (u8, u8)>> {
    let capture = Capture::start(host, "lan", &folder("ecn")?.join("lan.pcap"), WHOLE)?;
    work()?;
    let mut seen = BTreeMap::new();
    capture.finish(host)?.frames(|frame, _| {
        let Some(packet) = packet(frame) else { return };
        if matches!((packet.protocol, packet.payload.first()), (1, Some(8)) | (58, Some(128))) {
            seen.insert(packet.payload.len() - 8, (packet.class, packet.ttl));
        }
    })?;
    Ok(seen)
}

/// One ping with a traffic class; whether it is answered is the caller's business.
fn ping(from: &Namespace, to: &str, class: u8, length: usize, more: &[&str]) -> Outcome<bool> {
    let (class, length) = (class.to_string(), length.to_string());
    let words = ["-n", "-q", "-c", "1", "-Q", &class, "-s", &length];
    Ok(wait::output(from.command("ping").args(words).args(more).arg(to))?.status.success())
}

/// Has a router mark what it forwards to an address.
fn mark(router: &Namespace, to: &str, mark: &str) -> TestResult {
    router.run(&["nft", "add table inet marks"])?;
    router.run(&["nft", "flush table inet marks"])?;
    router.run(&["nft", "add chain inet marks out { type filter hook forward priority 0; }"])?;
    let family = if to.contains(':') { "ip6" } else { "ip" };
    router.run(&["nft", &format!("add rule inet marks out {family} daddr {to} {family} ecn set {mark}")])?;
    Ok(())
}

fn unmark(router: &Namespace) -> TestResult {
    router.run(&["nft", "delete table inet marks"])?;
    Ok(())
}

/// Linux seals each inner field, a router writes each outer one, and Testudo opens them.
fn ecn_arrives(site: &mut Site, kind: Kind) -> TestResult {
    let gateway = site.connect(kind, "")?;
    let network = &site.network;
    let cases: Vec<_> =
        (0..2).flat_map(|v| (0..4).flat_map(move |o| (0..4).map(move |i| (v, o, i)))).collect();
    let seen = requests(&network.left, || {
        for (at, (version, outer, inner)) in cases.iter().enumerate() {
            if at % 4 == 0 {
                mark(&network.routers[1], OUTER[usize::from(kind.over_ipv6)][0], MARKS[*outer])?;
            }
            let passes = FIGURE_4[*inner][*outer].is_some();
            let patience: &[&str] = if passes { &["-W", "10"] } else { &["-W", "0.2"] };
            let class = 0xB8 | u8::try_from(*inner)?;
            let is_answered = ping(&network.right, LEFT[*version], class, FIRST_LENGTH + 4 * at, patience)?;
            ensure(is_answered == passes, || {
                format!("inner {inner:02b}, outer {outer:02b}: answered is {is_answered}")
            })?;
        }
        Ok(())
    })?;
    unmark(&network.routers[1])?;
    for (at, (version, outer, inner)) in cases.iter().enumerate() {
        let found = seen.get(&(FIRST_LENGTH + 4 * at)).map(|(class, _)| *class);
        let expected = FIGURE_4[*inner][*outer].map(|ecn| 0xB8 | ecn);
        ensure(found == expected, || {
            format!(
                "{version}: inner {inner:02b}, outer {outer:02b} came as {found:02x?}, not {expected:02x?}"
            )
        })?;
    }
    let congested = gateway.dropped("ecn_congestion")?;
    ensure(congested == 2, || format!("{congested} packets were dropped for congestion"))?;
    stop(gateway, &["ecn_congestion"])
}

/// The class of each outer datagram that leaves Testudo while `work` runs, by the order in which they leave.
fn outer_classes(site: &Site, kind: Kind, work: impl FnOnce() -> TestResult) -> Outcome<Vec<(u8, u8)>> {
    let capture = Capture::start(&site.network.a, "wan", &folder("ecn")?.join("wan.pcap"), WHOLE)?;
    work()?;
    let mut classes = Vec::new();
    let source = OUTER[usize::from(kind.over_ipv6)][0].parse::<std::net::IpAddr>()?;
    capture.finish(&site.network.a)?.frames(|frame, _| {
        let header = testudo_wire::ip::IpHeader::parse(frame.get(14..).unwrap_or_default());
        let is_ours = header.is_ok_and(|header| header.source == source);
        if let Some(packet) = packet(frame).filter(|p| is_ours && [17, 50, 51].contains(&p.protocol)) {
            classes.push((packet.class, packet.ttl));
        }
    })?;
    Ok(classes)
}

/// Outer fields are copies (RFC 6040 4.1, RFC 4301 5.1.2), the outer TTL is Testudo's own; and marks of
/// routers reach hosts through Linux's end.
fn ecn_leaves(site: &mut Site) -> TestResult {
    for kind in Kind::ALL {
        let gateway = site.connect(kind, "")?;
        let right = site.network.fresh_host()?;
        let network = &site.network;
        let classes: Vec<u8> = (0..4).chain((0..4).map(|ecn| 46 << 2 | ecn)).collect();
        let send = |at: usize, class: u8, version: usize| {
            let is_answered =
                ping(&network.left, &right[version], class, FIRST_LENGTH + 4 * at, &["-W", "10", "-t", "9"])?;
            ensure(is_answered, || format!("class {class:#x} in {}: no answer", kind.name()))
        };
        for version in 0..2 {
            let seen = outer_classes(site, kind, || {
                classes.iter().enumerate().try_for_each(|(at, class)| send(at, *class, version))
            })?;
            let expected: Vec<_> = classes.iter().map(|class| (*class, 64)).collect();
            ensure(seen == expected, || format!("{}: {seen:02x?}, not {expected:02x?}", kind.name()))?;
        }
        mark(&network.routers[0], OUTER[usize::from(kind.over_ipv6)][1], "ce")?;
        for version in 0..2 {
            // Linux lets what is not ECN-capable pass.
            let seen = requests(&network.right, || {
                classes.iter().enumerate().try_for_each(|(at, class)| send(at, *class, version))
            })?;
            let found: Vec<u8> = seen.values().map(|(class, _)| *class).collect();
            let marked = |class: &u8| if class & 3 == 0 { *class } else { class | 3 };
            let expected: Vec<u8> = classes.iter().map(marked).collect();
            ensure(found == expected, || format!("{}: {found:02x?}, not {expected:02x?}", kind.name()))?;
        }
        unmark(&network.routers[0])?;
        stop(gateway, &[])?;
    }
    Ok(())
}

/// What a gateway forwards has one hop less for each of the two gateways, and none for routers between them.
fn ttls(site: &mut Site) -> TestResult {
    for kind in Kind::ALL {
        let gateway = site.connect(kind, "")?;
        let rights = site.network.fresh_host()?;
        let network = &site.network;
        for version in 0..2 {
            for (from, to, host) in [
                (&network.left, &network.right, rights[version].as_str()),
                (&network.right, &network.left, LEFT[version]),
            ] {
                let seen = requests(to, || {
                    for (at, hops) in ["3", "64", "255"].into_iter().enumerate() {
                        let is_answered =
                            ping(from, host, 0, FIRST_LENGTH + 4 * at, &["-W", "10", "-t", hops])?;
                        ensure(is_answered, || format!("{hops} hops do not suffice to {host}"))?;
                    }
                    for hops in ["1", "2"] {
                        let is_answered = ping(from, host, 0, 400, &["-W", "10", "-t", hops])?;
                        ensure(!is_answered, || format!("{hops} hops suffice to {host}"))?;
                    }
                    Ok(())
                })?;
                let found: Vec<u8> = seen.values().map(|(_, ttl)| *ttl).collect();
                ensure(found == [1, 62, 253], || format!("{}: {found:?} at {host}", kind.name()))?;
            }
        }
        stop(gateway, &[])?;
    }
    Ok(())
}

//! How Linux applies the rules: single handmade packets of every kind, forwarded by the gateway's host.

use crate::site::{HOST, OUTER, REMOTE, Site, expect, hears, socket};
use crate::support::{Outcome, ensure, wait};
use std::net::{IpAddr, SocketAddr};
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::attack::{self, Recorded};

pub fn tests<'a>(suite: Suite<'a, Site>) -> Suite<'a, Site> {
    suite
        .test("the_kernel_drops_what_the_policies_protect_and_nothing_else", judges_packets_by_policy)
        .test("the_kernel_tells_ranges_messages_and_directions_apart", judges_ranges_messages_and_directions)
        .test("many_policies_become_one_lookup_with_correct_results", looks_up_many_policies)
}

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const FRAGMENT: u8 = 44;
const GRE: u8 = 47;
const AH: u8 = 51;
const ICMPV6: u8 = 58;
const MOBILITY: u8 = 135;
const HIP: u8 = 139;
const DESTINATION_OPTIONS: u8 = 60;

/// The first bytes of a segment or datagram to this port, more than enough.
fn transport(port: u16) -> Vec<u8> {
    let mut bytes = vec![0x9c, 0x40];
    bytes.extend(port.to_be_bytes());
    bytes.extend([0; 44]);
    bytes[12] = 0x50;
    bytes
}

/// An IPv4 packet; `offset` is in units of 8 bytes.
fn v4(destination: &str, protocol: u8, offset: u16, payload: &[u8]) -> Outcome<Vec<u8>> {
    let (from, to): (std::net::Ipv4Addr, std::net::Ipv4Addr) = (HOST[0].parse()?, destination.parse()?);
    let length = u16::try_from(20 + payload.len())?.to_be_bytes();
    let [high, low] = offset.to_be_bytes();
    let header = [0x45, 0, length[0], length[1], 0, 7, high, low, 64, protocol, 0, 0];
    Ok([&header[..], &from.octets(), &to.octets(), payload].concat())
}

/// An IPv6 packet whose chain of headers begins with `next`.
fn v6(destination: &str, next: u8, payload: &[u8]) -> Outcome<Vec<u8>> {
    let (from, to): (std::net::Ipv6Addr, std::net::Ipv6Addr) = (HOST[1].parse()?, destination.parse()?);
    let length = u16::try_from(payload.len())?.to_be_bytes();
    let header = [0x60, 0, 0, 0, length[0], length[1], next, 64];
    Ok([&header[..], &from.octets(), &to.octets(), payload].concat())
}

/// A later fragment whose header claims that `claimed` follows.
fn v6_later_fragment(claimed: u8) -> Outcome<Vec<u8>> {
    let header = [claimed, 0, 0, 25 << 3 | 1, 0, 0, 0, 9];
    v6(REMOTE[1], FRAGMENT, &[&header[..], &transport(54)].concat())
}

/// The same after the header of an atomic fragment, which receivers skip (RFC 6946).
fn v6_later_fragment_in_a_fragment() -> Outcome<Vec<u8>> {
    let headers = [FRAGMENT, 0, 0, 0, 0, 0, 0, 8, UDP, 0, 0, 25 << 3 | 1, 0, 0, 0, 9];
    v6(REMOTE[1], FRAGMENT, &[&headers[..], &transport(54)].concat())
}

fn v6_after(header: u8, protocol: u8, port: u16) -> Outcome<Vec<u8>> {
    // Eight bytes of padding; 24 of AH.
    let mut bytes = match header {
        AH => vec![protocol, 4, 0, 0, 0, 0, 1, 0],
        _ => vec![protocol, 0, 1, 4, 0, 0, 0, 0],
    };
    if header == AH {
        bytes.extend([0; 16]);
    }
    bytes.extend(transport(port));
    v6(REMOTE[1], header, &bytes)
}

/// Packets that the table has dropped so far.
pub fn dropped(site: &Site) -> Outcome<u64> {
    let table = site.link.a.run(&["nft", "list", "table", "inet", "testudo-testudo0"])?;
    let counters = table.split("counter packets ").skip(1).map(|rest| rest.split(' ').next().unwrap_or(""));
    counters.map(|count| Ok(count.parse::<u64>()?)).sum()
}

/// Sends one packet from the host, and then one that may pass; returns whether the first was dropped.
fn is_dropped(site: &Site, packet: &[u8]) -> Outcome<bool> {
    let before = dropped(site)?;
    let destination: IpAddr = match packet[0] >> 4 {
        4 => IpAddr::from(<[u8; 4]>::try_from(&packet[16..20])?),
        _ => IpAddr::from(<[u8; 16]>::try_from(&packet[24..40])?),
    };
    let recorded = Recorded::new(packet, 20, false).ok_or("too short")?;
    attack::send(&site.host, destination, &[recorded])?;
    let version = usize::from(destination.is_ipv6());
    let receiver = socket(&site.link.b, OUTER[version], 9)?;
    let honest = socket(&site.host, HOST[version], 0)?;
    // The first call fails if a router has complained about the first packet.
    let to = SocketAddr::new(OUTER[version].parse()?, 9);
    wait::until("to send", || Ok(honest.send_to(b"honest", to).ok()))?;
    hears(&receiver, b"honest", HOST[version].parse()?)?;
    Ok(dropped(site)? > before)
}

/// Removes the routes, so that only the rules decide.
fn remove_routes(site: &Site) -> TestResult {
    for version in ["-4", "-6"] {
        site.link.a.run(&["ip", version, "route", "flush", "proto", "84"])?;
    }
    Ok(())
}

fn expect_all(site: &Site, packets: Vec<(&str, Vec<u8>, bool)>) -> TestResult {
    for (what, packet, expected) in packets {
        let is = is_dropped(site, &packet)?;
        ensure(is == expected, || format!("{what}: dropped: {is}, expected: {expected}"))?;
    }
    Ok(())
}

/// Bypass DNS, protect the web, bypass the rest.
fn judges_packets_by_policy(site: &mut Site) -> TestResult {
    let mut config = site.config()?;
    config.unprotected = "interface = \"wan\"".to_owned();
    config.tunnels[0].selectors = vec![("10.1.0.0/16".to_owned(), "10.7.0.0/16".to_owned())];
    for (local, remote) in [("10.1.0.0/16", "10.2.0.0/16"), ("fd01::/64", "fd02::/64")] {
        for (action, more) in [
            ("bypass", "protocol = \"udp\"\nremote_ports = \"53\""),
            ("protect", "tunnel = \"a-b\"\nprotocol = \"tcp\"\nremote_ports = \"80-90\""),
            ("bypass", ""),
        ] {
            config.policies += &format!(
                "[[policy]]\naction = \"{action}\"\nlocal = \"{local}\"\nremote = \"{remote}\"\n{more}\n"
            );
        }
    }
    let _rules = site.protected(&config)?;
    remove_routes(site)?;
    let v4_to = |protocol, port| v4(REMOTE[0], protocol, 0, &transport(port));
    let v4_later = |protocol| v4(REMOTE[0], protocol, 0x2000 | 25, &transport(80));
    let v6_to = |protocol, port| v6(REMOTE[1], protocol, &transport(port));
    expect_all(
        site,
        vec![
            ("IPv4, DNS", v4_to(UDP, 53)?, false),
            ("IPv4, another datagram", v4_to(UDP, 54)?, false),
            ("IPv4, below the protected ports", v4_to(TCP, 79)?, false),
            ("IPv4, the first protected port", v4_to(TCP, 80)?, true),
            ("IPv4, the last protected port", v4_to(TCP, 90)?, true),
            ("IPv4, above the protected ports", v4_to(TCP, 91)?, false),
            ("IPv4, a later fragment of TCP", v4_later(TCP)?, true),
            ("IPv4, a later fragment of UDP", v4_later(UDP)?, false),
            ("IPv4, no policy but the network is routed", v4("10.7.0.1", TCP, 0, &transport(80))?, true),
            ("IPv6, DNS", v6_to(UDP, 53)?, false),
            ("IPv6, a protected port", v6_to(TCP, 85)?, true),
            ("IPv6, another port", v6_to(TCP, 443)?, false),
            ("IPv6, TCP after options", v6_after(DESTINATION_OPTIONS, TCP, 85)?, true),
            ("IPv6, UDP after options", v6_after(DESTINATION_OPTIONS, UDP, 85)?, false),
            ("IPv6, TCP after AH, which is the protocol", v6_after(AH, TCP, 85)?, false),
            ("IPv6, a later fragment, of TCP as it says", v6_later_fragment(TCP)?, true),
            ("IPv6, a later fragment, of UDP as it says", v6_later_fragment(UDP)?, true),
            ("IPv6, a later fragment of options", v6_later_fragment(DESTINATION_OPTIONS)?, true),
            ("IPv6, a later fragment in a fragment", v6_later_fragment_in_a_fragment()?, true),
            ("IPv6, HIP, after which TCP may follow", v6_after(HIP, TCP, 85)?, true),
        ],
    )
}

/// The first bytes of a message of ICMP or ICMPv6.
fn message(kind: u8, code: u8) -> Vec<u8> {
    let mut bytes = vec![kind, code];
    bytes.resize(48, 0);
    bytes
}

/// RFC 6275 6.1.1.
fn mobility(kind: u8) -> Vec<u8> {
    let mut bytes = vec![59, 5, kind];
    bytes.resize(48, 0);
    bytes
}

/// Pings and some errors are protected, and what arrives only; the rest passes.
fn judges_ranges_messages_and_directions(site: &mut Site) -> TestResult {
    let mut config = site.config()?;
    config.unprotected = "interface = \"wan\"".to_owned();
    config.tunnels[0].selectors = vec![("10.1.0.0/16".to_owned(), "10.7.0.0/16".to_owned())];
    let networks = "local = [\"10.1.0.0/16\", \"fd01::/64\"]\nremote = [\"10.2.0.0/16\", \"fd02::/64\"]";
    for (action, lines) in [
        ("protect", "protocol = [\"icmp\", \"icmpv6\"]\ntypes = \"echo-request, 3/9-13, 1/4\""),
        ("discard", "protocol = \"mobility\"\ntypes = \"binding-update\""),
        ("discard", "direction = \"in\"\nprotocol = \"tcp\"\nremote_ports = \"80-90, 443\""),
        (
            "discard",
            "direction = \"out\"\nprotocol = \"tcp\"\nlocal_ports = \"22\"\nremote_ports = \"1024-65535\"",
        ),
        ("bypass", "local_ports = \"opaque\"\nremote_ports = \"opaque\""),
        ("discard", "protocol = \"gre\""),
        ("bypass", ""),
    ] {
        let tunnel = if action == "protect" { "tunnel = \"a-b\"" } else { "" };
        config.policies += &format!("[[policy]]\naction = \"{action}\"\n{tunnel}\n{networks}\n{lines}\n");
    }
    config.policies += "[[policy]]\naction = \"discard\"\nremote = \"10.5.0.9-10.5.0.20, 10.5.1.1\"\n";
    let _rules = site.protected(&config)?;
    remove_routes(site)?;
    let icmp = |kind, code| v4(REMOTE[0], ICMP, 0, &message(kind, code));
    let icmpv6 = |kind, code| v6(REMOTE[1], ICMPV6, &message(kind, code));
    let udp_to = |to| v4(to, UDP, 0, &transport(80));
    expect_all(
        site,
        vec![
            ("IPv4, a ping", icmp(8, 0)?, true),
            ("IPv4, its answer", icmp(0, 0)?, false),
            ("IPv4, a protected error", icmp(3, 13)?, true),
            ("IPv4, the next code", icmp(3, 14)?, false),
            ("IPv4, a later fragment of a message", v4(REMOTE[0], ICMP, 25, &message(0, 0))?, true),
            ("IPv6, a ping", icmpv6(128, 0)?, true),
            ("IPv6, its answer", icmpv6(129, 0)?, false),
            ("IPv6, a protected error", icmpv6(1, 4)?, true),
            ("IPv6, another code", icmpv6(1, 3)?, false),
            ("IPv6, a binding update", v6(REMOTE[1], MOBILITY, &mobility(5))?, true),
            ("IPv6, a binding acknowledgement", v6(REMOTE[1], MOBILITY, &mobility(6))?, false),
            // What is forwarded may be either way, so that both are asked.
            ("IPv4, a port of the policy on what arrives", v4(REMOTE[0], TCP, 0, &transport(85))?, false),
            ("IPv4, another protocol without ports", v4(REMOTE[0], GRE, 0, &[0; 48])?, false),
            ("IPv4, below the range of addresses", udp_to("10.5.0.8")?, false),
            ("IPv4, the first address of the range", udp_to("10.5.0.9")?, true),
            ("IPv4, the last address of the range", udp_to("10.5.0.20")?, true),
            ("IPv4, above the range of addresses", udp_to("10.5.0.21")?, false),
            ("IPv4, the single address beside it", udp_to("10.5.1.1")?, true),
        ],
    )
}

fn looks_up_many_policies(site: &mut Site) -> TestResult {
    let mut config = site.config()?;
    let ipv4 = (0..12).map(|n| ("10.1.0.0/16".to_owned(), format!("10.{}.3.0/24", 32 + n)));
    // A prefix that ends within a byte.
    let ipv6 = (0..12).map(|n| ("fd01::/64".to_owned(), format!("fd03:0:{:x}::/44", n * 16)));
    let single = ("10.1.0.0/16".to_owned(), "10.64.0.0/10".to_owned());
    config.tunnels[0].selectors = ipv4.chain(ipv6).chain([single]).collect();
    let rules = site.protected(&config)?;
    remove_routes(site)?;
    let text = expect(&site.link.a, &rules.folder, &[])?;
    ensure(text.contains("12 policies with networks of /16 and /24"), || text.clone())?;
    let v4_to = |to| v4(to, UDP, 0, &transport(80));
    let v6_to = |to| v6(to, UDP, &transport(80));
    expect_all(
        site,
        vec![
            ("IPv4, the first", v4_to("10.32.3.1")?, true),
            ("IPv4, the last", v4_to("10.43.3.255")?, true),
            ("IPv4, before the first", v4_to("10.31.3.1")?, false),
            ("IPv4, after the last", v4_to("10.44.3.1")?, false),
            ("IPv4, beside one", v4_to("10.32.4.1")?, false),
            ("IPv4, a single policy after them", v4_to("10.127.0.1")?, true),
            ("IPv6, the first", v6_to("fd03:0:f::1")?, true),
            ("IPv6, the last", v6_to("fd03:0:bf::1")?, true),
            ("IPv6, after the last", v6_to("fd03:0:c0::1")?, false),
        ],
    )
}

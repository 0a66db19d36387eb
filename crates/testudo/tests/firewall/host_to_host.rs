//! A tunnel between the outer addresses themselves, as transport mode has it: host to host.

use crate::samples::dropped;
use crate::site::{OUR_OUTER, OUTER, Site, firewall, hears, socket};
use crate::support::config::{Config, Sa};
use crate::support::gateway::Gateway;
use crate::support::link::LINK;
use crate::support::wait::{self, PATIENCE};
use crate::support::{Outcome, ensure};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;
use testudo_crypto::Suite;
use testudo_judge::harness::{self, TestResult};
use testudo_lab::namespaces::Namespace;
use testudo_lab::traffic::ping;

pub fn tests<'a>(mut suite: harness::Suite<'a, Site>) -> harness::Suite<'a, Site> {
    for shape in SHAPES {
        let Shape { version, udp } = shape;
        let name = format!(
            "hosts_talk_by_{}_over_{}",
            ["raw_esp", "udp"][usize::from(udp)],
            ["ipv4", "ipv6"][version]
        );
        suite = suite.test(name, move |site| hosts_talk(site, shape, pair(shape)?));
    }
    for (protocol, mode) in PROTECTIONS {
        for (version, shape) in [SHAPES[1], SHAPES[3]].into_iter().enumerate() {
            let protocols = protocol.replace('+', "_");
            let family = ["ipv4", "ipv6"][version];
            let name = format!("hosts_behind_rules_talk_by_{protocols}_in_{mode}_mode_over_{family}");
            suite = suite.test(name, move |site| hosts_talk(site, shape, protected(shape, protocol, mode)?));
        }
    }
    suite
        .test("a_tunnel_between_outer_addresses_needs_an_interface", needs_an_interface)
        .test("clear_packets_between_hosts_are_refused", refuses_clear_packets)
        .test("packets_of_the_host_have_its_outer_address_as_their_source", chooses_the_source)
        .test("nothing_leaves_in_clear_while_the_outer_address_is_away", outlives_its_address)
        .test("key_exchange_between_hosts_passes_in_clear_where_policy_says_so", bypasses_key_exchange)
        .test("a_strict_reverse_path_filter_is_warned_of", warns_of_a_strict_filter)
}

#[derive(Debug, Clone, Copy)]
struct Shape {
    /// 0 for IPv4.
    version: usize,
    udp: bool,
}

const IPV4: Shape = Shape { version: 0, udp: true };
const SHAPES: [Shape; 4] = [
    IPV4,
    Shape { version: 0, udp: false },
    Shape { version: 1, udp: true },
    Shape { version: 1, udp: false },
];

/// The configurations of both hosts.
fn pair(shape: Shape) -> Outcome<[Config; 2]> {
    let mut pair = Site::pair()?;
    let ends = [OUR_OUTER[shape.version], OUTER[shape.version]].map(str::to_owned);
    for (index, config) in pair.iter_mut().enumerate() {
        let (local, remote) = (ends[index].clone(), ends[1 - index].clone());
        let tunnel = &mut config.tunnels[0];
        tunnel.udp = shape.udp;
        (tunnel.local, tunnel.remote) = (local.clone(), remote.clone());
        tunnel.selectors = vec![(local, remote)];
        config.addresses.clear();
        config.unprotected = format!("interface = \"{LINK}\"");
    }
    Ok(pair)
}

/// Protocols and modes other than ESP in tunnel mode, as a configuration names them.
const PROTECTIONS: [(&str, &str); 5] = [
    ("esp", "transport"),
    ("ah", "tunnel"),
    ("ah", "transport"),
    ("ah+esp", "tunnel"),
    ("ah+esp", "transport"),
];

/// The configurations of both hosts with another protocol or mode.
fn protected(shape: Shape, protocol: &str, mode: &str) -> Outcome<[Config; 2]> {
    let mut pair = pair(shape)?;
    let of_ah = Suite::for_ah("sha256")?;
    let [forth, back] = [Sa::of(0x2001, of_ah)?, Sa::of(0x2002, of_ah)?];
    for (config, sas) in pair.iter_mut().zip([[&forth, &back], [&back, &forth]]) {
        let tunnel = &mut config.tunnels[0];
        tunnel.more = format!("protocol = \"{protocol}\"\nmode = \"{mode}\"\n");
        let [outbound, inbound] = sas.map(Sa::clone);
        match protocol {
            "ah" => {
                tunnel.suite = "sha256".to_owned();
                (tunnel.outbound, tunnel.inbound) = (outbound, inbound);
            }
            "ah+esp" => {
                tunnel.more += "ah_suite = \"sha256\"\n";
                tunnel.covered_by = Some([outbound, inbound]);
            }
            _ => {}
        }
    }
    Ok(pair)
}

/// Expects three pings of the peer to be answered, and to go through the tunnel.
fn pings_are_sealed(site: &Site, gateway: &Gateway, shape: Shape) -> TestResult {
    let packets = || Ok::<_, Box<dyn std::error::Error>>(gateway.sa("a-b", "outbound")?["packets"].as_u64());
    let before = packets()?.ok_or("no count")?;
    let trips = ping(&site.link.a, OUTER[shape.version].parse()?, 3, PATIENCE)?;
    ensure(trips.lost == 0, || format!("{} of 3 pings were lost\n{}", trips.lost, gateway.log()))?;
    let sealed = packets()?;
    ensure(sealed == Some(before + 3), || format!("{sealed:?} packets were sealed after {before}"))
}

fn hosts_talk(site: &mut Site, shape: Shape, pair: [Config; 2]) -> TestResult {
    let rules = site.protected(&pair[0])?;
    let gateway = Gateway::start(&site.link.a, &rules.folder)?;
    let (peer, _) = site.link.start_b(&pair[1])?;
    pings_are_sealed(site, &gateway, shape)?;
    peer.stop()?;
    gateway.stop()
}

/// Its route would lead sealed packets back into the tunnel.
fn needs_an_interface(site: &mut Site) -> TestResult {
    let mut config = pair(IPV4)?[0].clone();
    config.unprotected.clear();
    let folder = site.link.write(&config)?;
    let said = firewall(&site.link.a, &folder, &[])?;
    let told = said.stderr.contains("lead the tunnel's own packets back into the tunnel");
    ensure(said.code == Some(2) && told, || format!("{said:#?}"))
}

/// RFC 4301 5.2.
fn refuses_clear_packets(site: &mut Site) -> TestResult {
    let pair = pair(IPV4)?;
    let rules = site.protected(&pair[0])?;
    let gateway = Gateway::start(&site.link.a, &rules.folder)?;
    let receiver = socket(&site.link.a, OUR_OUTER[0], 7007)?;
    let to: SocketAddr = receiver.local_addr()?;
    site.link.b.address(LINK, "192.0.2.9/24")?;
    socket(&site.link.b, OUTER[0], 0)?.send_to(b"clear", to)?;
    socket(&site.link.b, "192.0.2.9", 0)?.send_to(b"another host", to)?;
    let others = hears(&receiver, b"another host", Ipv4Addr::new(192, 0, 2, 9).into())?;
    site.link.b.run(&["ip", "address", "del", "192.0.2.9/24", "dev", LINK])?;
    ensure(others.is_empty(), || format!("heard {others:?}"))?;
    let before = dropped(site)?;
    ping(&site.link.b, OUR_OUTER[0].parse()?, 1, Duration::from_millis(1))?;
    wait::until("for a clear ping to be dropped", || Ok((dropped(site)? > before).then_some(())))?;
    gateway.stop()
}

/// What `ip route get` says about the way to the peer.
fn route(host: &Namespace, shape: Shape) -> Outcome<String> {
    Ok(host.run(&["ip", "-o", "route", "get", OUTER[shape.version]])?)
}

fn is_through_the_tunnel(host: &Namespace, shape: Shape) -> TestResult {
    let said = route(host, shape)?;
    ensure(said.contains("dev testudo0"), || said)
}

/// Linux would choose the first address of the first interface, where the tunnel's interface has none.
fn chooses_the_source(site: &mut Site) -> TestResult {
    let others = ["10.99.0.1/32", "fd99::1/128"];
    for shape in SHAPES.into_iter().filter(|shape| shape.udp) {
        site.link.a.address("lo", others[shape.version])?;
        let pair = pair(shape)?;
        let (gateway, _) = site.link.start_a(&pair[0])?;
        let (peer, _) = site.link.start_b(&pair[1])?;
        let said = route(&site.link.a, shape)?;
        let ours = format!("src {} ", OUR_OUTER[shape.version]);
        ensure(said.contains("dev testudo0") && said.contains(&ours), || said)?;
        pings_are_sealed(site, &gateway, shape)?;
        peer.stop()?;
        gateway.stop()?;
        site.link.a.run(&["ip", "address", "del", others[shape.version], "dev", "lo"])?;
    }
    Ok(())
}

/// An address that is taken away takes routes with it, as a DHCP client does that renews its lease, or an
/// operator. No firewall rules are in force here.
fn outlives_its_address(site: &mut Site) -> TestResult {
    for shape in SHAPES.into_iter().filter(|shape| shape.udp) {
        let pair = pair(shape)?;
        let (gateway, _) = site.link.start_a(&pair[0])?;
        let (peer, _) = site.link.start_b(&pair[1])?;
        let ours = format!("{}/{}", OUR_OUTER[shape.version], [24, 64][shape.version]);
        site.link.a.run(&["ip", "address", "del", &ours, "dev", LINK])?;
        is_through_the_tunnel(&site.link.a, shape)?;
        site.link.a.address(LINK, &ours)?;
        if shape.version == 0 {
            // It went with the network of the address.
            site.link.a.route_via("0.0.0.0/0", OUTER[0])?;
        }
        let source = format!("src {} ", OUR_OUTER[shape.version]);
        wait::until("for the source of the route", || {
            is_through_the_tunnel(&site.link.a, shape)?;
            Ok(route(&site.link.a, shape)?.contains(&source).then_some(()))
        })?;
        pings_are_sealed(site, &gateway, shape)?;
        peer.stop()?;
        gateway.stop()?;
    }
    Ok(())
}

/// RFC 4301 4.4.1: a bypass policy for IKE before the one that protects all else.
fn bypasses_key_exchange(site: &mut Site) -> TestResult {
    for shape in SHAPES {
        let mut pair = pair(shape)?;
        for config in &mut pair {
            let (local, remote) = config.tunnels[0].selectors[0].clone();
            config.policies = format!(
                "[[policy]]\naction = \"bypass\"\nlocal = \"{local}\"\nremote = \"{remote}\"\nprotocol = \"udp\"\n\
                 local_ports = \"500\"\nremote_ports = \"500\"\n"
            );
        }
        let rules = site.protected(&pair[0])?;
        let gateway = Gateway::start(&site.link.a, &rules.folder)?;
        let (peer, _) = site.link.start_b(&pair[1])?;
        let [ours, theirs] = [OUR_OUTER[shape.version], OUTER[shape.version]];
        let [here, there] = [socket(&site.link.a, ours, 500)?, socket(&site.link.b, theirs, 500)?];
        let [ours, theirs]: [IpAddr; 2] = [ours.parse()?, theirs.parse()?];
        here.send_to(b"IKE_SA_INIT", SocketAddr::new(theirs, 500))?;
        hears(&there, b"IKE_SA_INIT", ours)?;
        there.send_to(b"answer", SocketAddr::new(ours, 500))?;
        hears(&here, b"answer", theirs)?;
        let sealed = gateway.sa("a-b", "outbound")?["packets"].as_u64();
        ensure(sealed == Some(0), || format!("{sealed:?} packets were sealed"))?;
        pings_are_sealed(site, &gateway, shape)?;
        peer.stop()?;
        gateway.stop()?;
    }
    Ok(())
}

/// RFC 3704 2.2: the route to the peer's address leads into the tunnel, and its sealed packets come by
/// another interface.
fn warns_of_a_strict_filter(site: &mut Site) -> TestResult {
    const FILTER: &str = "net.ipv4.conf.wan.rp_filter";
    let config = pair(IPV4)?[0].clone();
    for (mode, is_warned) in [("1", true), ("2", false), ("0", false)] {
        site.link.a.sysctl(FILTER, mode)?;
        let (gateway, folder) = site.link.start_a(&config)?;
        let log = gateway.log();
        gateway.stop()?;
        let mut check = site.link.a.command(crate::support::gateway::PROGRAM);
        let said = wait::output(check.arg("check").arg(folder.join("testudo.toml")))?;
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        let advice = "sysctl -w net.ipv4.conf.wan.rp_filter=2";
        for text in [log, said] {
            ensure(text.contains(advice) == is_warned, || format!("{FILTER} = {mode}: {text}"))?;
        }
    }
    site.link.a.sysctl(FILTER, "0")?;
    Ok(())
}

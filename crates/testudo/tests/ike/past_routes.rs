//! Negotiated networks that hold the peer's own address: what daemons and gateways send to each other passes
//! by the routes to them.

use crate::connection::Connection;
use crate::negotiation::initiate;
use crate::network::{LINK, Network};
use crate::rekey::until_renewed;
use crate::strongswan::Charon;
use crate::support::{Outcome, ensure, wait};
use crate::traffic::{between_plutos, ends, logs, with_addresses};
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::namespaces::Namespace;
use testudo_lab::traffic::Stream;

type Tests<'a> = Suite<'a, Network>;

pub const PEERS: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
const PEERS_IPV6: [&str; 2] = ["2001:db8::1", "2001:db8::2"];
/// What lies behind B, and a neighbour of A.
const FAR: &str = "198.51.100.7";
const NEIGHBOUR: &str = "192.0.2.9";

pub fn tests(suite: Tests<'_>) -> Tests<'_> {
    suite
        .test("hosts_speak_in_transport_mode", |network| between_hosts(network, "", PEERS))
        .test("hosts_speak_in_transport_mode_in_udp", |network| between_hosts(network, "encap = yes", PEERS))
        .test("hosts_speak_in_transport_mode_over_ipv6", |network| between_hosts(network, "", PEERS_IPV6))
        .test("a_strict_reverse_path_filter_is_told_of", strict_filter)
        .test("plutos_speak_in_transport_mode", |network| between_plutos(network, "type=transport", PEERS))
        .test("all_that_a_road_warrior_sends_goes_into_its_tunnel", full_tunnel)
}

/// The interface by which packets leave, such as those with a mark.
fn leaves_by(host: &Namespace, to: &str, mark: &str) -> Outcome<String> {
    let route = host.run(&["ip", "-o", "route", "get", to, "mark", mark])?;
    let interface = route.split(" dev ").nth(1).and_then(|rest| rest.split(' ').next());
    Ok(interface.ok_or(route.clone())?.to_owned())
}

/// Renews the CHILD_SA by either end, and the IKE_SA, while numbered datagrams flow: none is lost.
pub fn renewed_without_loss(
    network: &Network,
    charons: &[Charon; 2],
    mut spis: [u32; 2],
    [from, to]: [&str; 2],
) -> TestResult {
    let stream = Stream::start((&network.a.namespace, from), (&network.b.namespace, to))?;
    stream.flows(50)?;
    for by in [0, 1, 0] {
        charons[by].swanctl(&["--rekey", "--child", "net"])?;
        spis = until_renewed(charons, spis)?;
        stream.flows(50)?;
    }
    let id = |charon: &Charon| charon.until("for an IKE_SA", |sas| Some(sas.first()?.id().to_owned()));
    let before = id(&charons[1])?;
    charons[1].swanctl(&["--rekey", "--ike", "net"])?;
    charons[1].until("for another IKE_SA", |sas| match sas {
        [only] => (only.is_established() && only.id() != before).then_some(()),
        _ => None,
    })?;
    stream.flows(50)?;
    let (sent, lost) = stream.end()?;
    ensure(lost.is_empty() && sent >= 250, || {
        format!("of {sent} datagrams were lost: {lost:?}\n{}", logs(network, charons))
    })
}

/// RFC 3704 2.2: what comes from a peer must come by the interface of the route to it.
const FILTER: &str = "net.ipv4.conf.wan.rp_filter";
const LOOSE: &str = "2";

/// The strict filter drops what the peer sends, as soon as there is a route to it into the gateway; with the
/// loose one, as the log advises, packets pass.
fn strict_filter(network: &mut Network) -> TestResult {
    let charons = network.programs("interfaces_ignore = testudo0", &Connection::transport())?;
    network.a.namespace.sysctl(FILTER, "1")?;
    charons[0].swanctl(&["--initiate", "--child", "net", "--timeout", "10"])?;
    let advice = format!("sysctl -w {FILTER}={LOOSE}");
    network.a.program().process.logs(&advice)?;
    let ping = || -> Outcome<bool> {
        let words = ["-n", "-c", "3", "-i", "0.2", "-W", "1", PEERS[1]];
        Ok(wait::output(network.a.namespace.command("ping").args(words))?.status.success())
    };
    ensure(!ping()?, || "packets of the peer pass the strict filter".to_owned())?;
    network.a.namespace.sysctl(FILTER, LOOSE)?;
    ensure(ping()?, || logs(network, &charons))?;
    ends(network, charons)
}

fn between_hosts(network: &mut Network, ike: &str, peers: [&str; 2]) -> TestResult {
    let addresses = peers.map(str::to_owned);
    let connection = Connection { ike: ike.to_owned(), addresses, ..Connection::transport() };
    let charons = network.programs("interfaces_ignore = testudo0", &connection)?;
    let spis = initiate(&charons).map_err(|error| format!("{error}\n{}", logs(network, &charons)))?;
    for (host, peer) in network.hosts().into_iter().zip(peers.into_iter().rev()) {
        let seen = ["0", "0x7465"].map(|mark| leaves_by(&host.namespace, peer, mark));
        let [plain, marked] = seen;
        let seen = [plain?, marked?];
        ensure(seen == ["testudo0", LINK], || format!("{}: {seen:?}", host.namespace.name()))?;
    }
    renewed_without_loss(network, &charons, spis, peers)?;
    ends(network, charons)
}

/// RFC 7296 2.19, with 0.0.0.0/0 behind the other end. The tunnel's default route wins over the host's own,
/// and the link stays what it is.
fn full_tunnel(network: &mut Network) -> TestResult {
    const GIVEN: &str = "10.3.0.5";
    let connection = Connection {
        selectors: [String::new(), "0.0.0.0/0".to_owned()],
        ike_of: ["vips = 0.0.0.0", "pools = inside"].map(str::to_owned),
        more: format!("pools {{ inside {{ addrs = {GIVEN}/32 }} }}"),
        ..Connection::default()
    };
    let settings = "interfaces_ignore = testudo0\n install_virtual_ip_on = testudo0";
    let charons = network.programs(settings, &connection)?;
    with_addresses(network)?;
    network.a.namespace.run(&["ip", "route", "replace", "default", "via", NEIGHBOUR])?;
    network.b.namespace.run(&["ip", "address", "replace", &format!("{FAR}/32"), "dev", "lo"])?;
    let spis = initiate(&charons).map_err(|error| format!("{error}\n{}", logs(network, &charons)))?;
    let a = &network.a.namespace;
    let route = a.run(&["ip", "route", "get", FAR])?;
    ensure(route.contains(&format!("dev testudo0 table 7465 src {GIVEN}")), || route.clone())?;
    let seen = [(FAR, "0x7465"), (PEERS[1], "0x7465"), (NEIGHBOUR, "0")];
    for (to, mark) in seen {
        let interface = leaves_by(a, to, mark)?;
        ensure(interface == LINK, || format!("to {to} with mark {mark}: {interface}"))?;
    }
    renewed_without_loss(network, &charons, spis, [GIVEN, FAR])?;
    a.run(&["ip", "route", "del", "default"])?;
    network.b.namespace.run(&["ip", "address", "del", &format!("{FAR}/32"), "dev", "lo"])?;
    ends(network, charons)
}

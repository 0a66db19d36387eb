//! Ends whose address changes, with traffic: MOBIKE (RFC 4555), and hosts behind a NAT (RFC 3948). The whole
//! program is the gateway of each host.

use crate::connection::Connection;
use crate::nat::{FAR, INSIDE, Nat, OUTSIDE};
use crate::negotiation::initiate;
use crate::network::{LINK, Network};
use crate::strongswan::{Charon, only_child};
use crate::support::{Outcome, ensure, wait};
use crate::tape::of_road_warrior;
use crate::traffic::{INNER, both_ways, both_ways_marked, drops, ends, logs, lost, pings, with_addresses};
use crate::vpe;
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::namespaces::{Namespace, enter};
use testudo_lab::traffic::{Load, Stream};

type Tests<'a> = Suite<'a, Network>;

/// A's address behind the NAT.
const HIDDEN: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);

/// Where A goes by MOBIKE.
const NEW: &str = "192.0.2.11";
/// Settings of charons that find their path among several: they try all, and take the first that answers.
const PATHS: &str = "plugins { socket-default { use_ipv6 = no } }";

pub fn tests(suite: Tests<'_>) -> Tests<'_> {
    suite
        .test("packets_follow_a_host_that_changes_its_address", mobike)
        .test("packets_of_every_window_follow_a_host_that_changes_its_address", mobike_of_vpe)
        .test("packets_follow_a_road_warrior_that_changes_its_address", mobike_of_road_warrior)
        .test("packets_follow_a_road_warrior_that_goes_behind_a_nat", mobike_to_nat)
        .test("packets_follow_a_host_whose_nat_gives_it_another_port", rebinding)
        .test("two_hosts_behind_one_nat_have_each_its_own_packets", two_behind_nat)
}

/// How many datagrams were sent from the first that was lost to the last.
fn span(lost: &[u64]) -> u64 {
    lost.last().zip(lost.first()).map_or(0, |(last, first)| last - first + 1)
}

/// How many times some in a row were lost.
fn stretches(lost: &[u64]) -> usize {
    lost.chunk_by(|a, b| a + 1 == *b).count()
}

/// The connection of a host with two addresses.
fn of_two_addresses(connection: Connection) -> Connection {
    let ike = format!("{}\n mobike = yes", connection.ike);
    let [first, of_b] = connection.addresses;
    Connection { ike, addresses: [format!("{first}, {NEW}"), of_b], ..connection }
}

fn mobike(network: &mut Network) -> TestResult {
    let charons = network.programs(PATHS, &of_two_addresses(Connection::default()))?;
    with_addresses(network)?;
    let spis = initiate(&charons)?;
    let streams = both_ways(network)?;
    moves(network, &charons, spis, streams)?;
    ends_at_new(network, charons)
}

/// A slow flow has a class of its own, and so other windows than a busy one. charon puts SAs of the two ends
/// elsewhere one after the other: with all windows closed up to the highest number of any, what the slow flow
/// sends meanwhile would be too old.
fn mobike_of_vpe(network: &mut Network) -> TestResult {
    let connection = of_two_addresses(vpe::marked("", "aes128gcm16-x25519"));
    let charons = vpe::start(network, vpe::CLASSES, PATHS, &connection)?;
    let spis = initiate(&charons).map_err(|error| format!("{error}\n{}", logs(network, &charons)))?;
    let [to_b, to_a] = both_ways(network)?;
    let slow = Load { per_second: 50.0, ..Load::default() };
    let [slow_to_b, slow_to_a] = both_ways_marked(network, slow, vpe::DSCP)?;
    moves(network, &charons, spis, [to_b, to_a, slow_to_b, slow_to_a])?;
    for host in network.hosts() {
        vpe::has_windows_of_both_classes(host)?;
        let dropped = drops(host)?;
        ensure(!dropped.contains_key("replay_too_old"), || {
            format!("{}: {dropped:?}", host.namespace.name())
        })?;
    }
    ends_at_new(network, charons)
}

/// A gets another address in the place of its own while streams flow, to B and to A by turns. The SAs of A
/// have these SPIs, and go on.
fn moves<const N: usize>(
    network: &Network,
    charons: &[Charon; 2],
    spis: [u32; 2],
    streams: [Stream; N],
) -> TestResult {
    // Otherwise a network's first address takes the others along when it goes.
    network.a.namespace.sysctl(&format!("net.ipv4.conf.{LINK}.promote_secondaries"), "1")?;
    network.a.namespace.address(LINK, &format!("{NEW}/24"))?;
    network.a.namespace.run(&["ip", "address", "delete", "192.0.2.1/24", "dev", LINK])?;
    let followed = has_moved(charons, NEW, spis);
    let flow = streams.iter().try_for_each(|stream| stream.flows(100)).map_err(Into::into);
    // For the tests to come.
    network.a.namespace.address(LINK, "192.0.2.1/24")?;
    followed.and(flow).map_err(|error| format!("{error}\n{}", logs(network, charons)))?;
    let lost = lost(streams)?;
    // charon looks for another path once it has waited for further changes, and B learns of it by IKE: until
    // then B sends to where A was, and both take their SAs away for a moment.
    let is_short = |(lost, most): (&Vec<u64>, u64)| span(lost) < most;
    let is_short = lost.iter().zip([500, 1000].into_iter().cycle()).all(is_short);
    ensure(is_short, || format!("too many in a row: {lost:?}"))?;
    for host in network.hosts() {
        let shown = host.ip_xfrm(&["state"])?;
        ensure(shown.contains(NEW) && !shown.contains("192.0.2.1 "), || format!("SAs: {shown}"))?;
    }
    pings(network, charons)
}

/// All ends, and A has its first address alone.
fn ends_at_new(network: &mut Network, charons: [Charon; 2]) -> TestResult {
    ends(network, charons)?;
    network.a.namespace.run(&["ip", "address", "delete", &format!("{NEW}/24"), "dev", LINK])?;
    Ok(())
}

/// B's IKE_SA is with this address, and has the same SAs.
fn has_moved(charons: &[Charon; 2], address: &str, [to_a, to_b]: [u32; 2]) -> Outcome<()> {
    charons[1].until("for B to know A's new address", |sas| {
        let is_there = sas.first()?.all.get("remote-host") == address;
        (is_there && only_child(sas)? == [to_b, to_a]).then_some(())
    })
}

/// The address that A has from B's pool, wherever it is.
const GIVEN: &str = "10.3.0.5";

/// A has a virtual address from B, and loses the outer one that its IKE_SA is with while streams flow. It
/// goes on with `other`, which B sees as `seen`.
fn follows_road_warrior(
    network: &mut Network,
    other: &str,
    seen: &str,
    loses: impl FnOnce(&Namespace) -> Outcome<()>,
) -> TestResult {
    let mut connection = Connection { ike: "mobike = yes".to_owned(), ..of_road_warrior() };
    connection.addresses[0] = format!("192.0.2.1, {other}");
    let settings = "install_virtual_ip_on = testudo0\n interfaces_ignore = testudo0\n \
                    plugins { socket-default { use_ipv6 = no } }";
    let charons = network.programs(settings, &connection)?;
    with_addresses(network)?;
    let spis = initiate(&charons).map_err(|error| format!("{error}\n{}", logs(network, &charons)))?;
    let ends = [(&network.a.namespace, GIVEN), (&network.b.namespace, INNER[1])];
    let streams = [Stream::start(ends[0], ends[1])?, Stream::start(ends[1], ends[0])?];
    let flow = || streams.iter().try_for_each(|stream| stream.flows(100));
    flow()?;
    loses(&network.a.namespace)?;
    let followed = has_moved(&charons, seen, spis).and_then(|()| flow().map_err(Into::into));
    followed.map_err(|error| format!("{error}\n{}", logs(network, &charons)))?;
    let shown = network.b.ip_xfrm(&["state"])?;
    ensure(shown.contains(seen) && !shown.contains("192.0.2.1 "), || format!("SAs: {shown}"))?;
    let policies = network.b.ip_xfrm(&["policy"])?;
    ensure(policies.contains(&format!("dst {GIVEN}/32")), || format!("policies: {policies}"))?;
    lost(streams)?;
    crate::traffic::ends(network, charons)
}

/// RFC 4555, where the inner address is from the peer: only the outer one changes.
fn mobike_of_road_warrior(network: &mut Network) -> TestResult {
    network.a.namespace.sysctl(&format!("net.ipv4.conf.{LINK}.promote_secondaries"), "1")?;
    let followed = follows_road_warrior(network, NEW, NEW, |a| {
        a.address(LINK, &format!("{NEW}/24"))?;
        a.run(&["ip", "address", "delete", "192.0.2.1/24", "dev", LINK])?;
        Ok(())
    });
    // For the tests to come.
    network.a.namespace.address(LINK, "192.0.2.1/24")?;
    let _ = network.a.namespace.run(&["ip", "address", "delete", &format!("{NEW}/24"), "dev", LINK]);
    followed
}

/// RFC 4555 3.5: from an address of its own to one behind a NAT. ESP goes in UDP from then on.
fn mobike_to_nat(network: &mut Network) -> TestResult {
    let taken = Ipv4Addr::new(192, 0, 2, 2);
    let nat = Nat::beside(&[(&network.a.namespace, HIDDEN)], &network.b.namespace, taken, 24)?;
    let followed = follows_road_warrior(network, &HIDDEN.to_string(), &OUTSIDE.to_string(), |a| {
        a.run(&["ip", "address", "delete", "192.0.2.1/24", "dev", LINK])?;
        Ok(())
    });
    network.a.namespace.address(LINK, "192.0.2.1/24")?;
    drop(nat);
    followed
}

/// Both hosts with the NAT between them: A is inside, and takes the NAT for B.
fn behind_nat() -> Connection {
    Connection {
        addresses: [HIDDEN.to_string(), FAR.to_string()],
        ike_of: [format!("remote_addrs = {INSIDE}"), format!("remote_addrs = {OUTSIDE}")],
        ..Connection::default()
    }
}

/// RFC 3948 3.1: packets come from another port. B's gateway tells its daemon, which moves the SAs there.
fn rebinding(network: &mut Network) -> TestResult {
    const MOVES: usize = 2;
    let nat = Nat::between(&[(&network.a.namespace, HIDDEN)], &network.b.namespace)?;
    let charons = network.programs("", &behind_nat())?;
    with_addresses(network)?;
    let spis = initiate(&charons).map_err(|error| format!("{error}\n{}", logs(network, &charons)))?;
    let streams = both_ways(network)?;
    for _ in 0..MOVES {
        let before = nat.port_of(HIDDEN);
        nat.rebinds();
        let port = wait::until("for a datagram through another port", || {
            Ok(nat.port_of(HIDDEN).filter(|port| Some(*port) != before))
        })?;
        charons[1]
            .until("for B's charon to know the port", |sas| {
                let is_there = sas.first()?.all.get("remote-port") == port.to_string();
                (is_there && only_child(sas)? == [spis[1], spis[0]]).then_some(())
            })
            .map_err(|error| format!("{error}\n{}", logs(network, &charons)))?;
        for stream in &streams {
            stream.flows(100)?;
        }
        let state = network.b.ip_xfrm(&["state"])?;
        ensure(state.contains(&format!("dport {port}")), || format!("not to {port}: {state}"))?;
    }
    let [to_b, to_a] = lost(streams)?;
    // Towards B what comes while its daemon takes SA and policies away, to add them again with the new port:
    // each is counted there, and they are together. The NAT has a port for each datagram.
    let counted = drops(&network.b)?;
    let all: u64 = counted.values().sum();
    ensure(to_b.len() as u64 <= all && to_b.len() < 500 && stretches(&to_b) <= 2 * MOVES, || {
        format!("lost towards B: {to_b:?}, and counted there: {counted:?}")
    })?;
    // Towards A what was sent to a port that was lost. B's gateway says so once A has been silent there for a
    // second, so that nobody can move a peer who is alive.
    ensure(to_a.len() < 2000, || format!("lost towards A: {to_a:?}"))?;
    ends(network, charons)
}

/// A and C have one address outside, and B tells them apart by their ports, also once the NAT has lost those.
fn two_behind_nat(network: &mut Network) -> TestResult {
    const OTHER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 3);
    const INNER_C: &str = "10.3.0.1";
    let c = Namespace::new(enter()?, "c")?;
    let inside = [(&network.a.namespace, HIDDEN), (&c, OTHER)];
    let nat = Nat::between(&inside, &network.b.namespace)?;
    c.address("lo", &format!("{INNER_C}/32"))?;
    let mut c = network.a.beside(c, &["198.51.100.3", INNER_C])?;
    c.start_program()?;
    let charons = network.programs("", &behind_nat())?;
    with_addresses(network)?;
    let mut of_c = behind_nat();
    of_c.addresses[0] = OTHER.to_string();
    of_c.selectors[0] = "10.3.0.0/16".to_owned();
    let [of_c, at_b] = [of_c.of_a(), of_c.of_b()].map(|text| text.replace("a.example", "c.example"));
    let at_b = at_b.replace("connections { net {", "connections { other {").replace("ike-net", "ike-other");
    charons[1].load(&format!("{}\n{at_b}", behind_nat().of_b()))?;
    let other = Charon::start(&c, "")?;
    other.load(&of_c)?;
    for charon in [&charons[0], &other] {
        charon.swanctl(&["--initiate", "--child", "net", "--timeout", "15"])?;
    }
    let of_a = both_ways(network)?;
    let (near, far) = ((&c.namespace, INNER_C), (&network.b.namespace, INNER[1]));
    let of_c = [Stream::start(near, far)?, Stream::start(far, near)?];
    let flow = || of_a.iter().chain(&of_c).try_for_each(|stream| stream.flows(100));
    flow()?;
    nat.rebinds();
    charons[1]
        .until("for B's charon to know both ports", |sas| {
            let ports: BTreeSet<_> = sas.iter().map(|sa| sa.all.get("remote-port").to_owned()).collect();
            let wanted = [nat.port_of(HIDDEN)?, nat.port_of(OTHER)?].map(|port| port.to_string());
            (ports == BTreeSet::from(wanted)).then_some(())
        })
        .map_err(|error| format!("{error}\n{}", logs(network, &charons)))?;
    flow()?;
    let ([a, b], [c, d]) = (of_a, of_c);
    let lost = lost([a, b, c, d])?;
    // To where each was, until B knew where it is.
    ensure(lost.iter().all(|lost| lost.len() < 1500), || format!("lost: {lost:?}"))?;
    let selected = network.b.program().process.dropped("selector_mismatch")?;
    ensure(selected < 20, || format!("{selected} packets came under SAs that are not theirs"))?;
    other.swanctl(&["--terminate", "--ike", "net", "--timeout", "10"])?;
    other.stop()?;
    ends(network, charons)
}

//! Traffic through what two charons negotiate: the whole program is their gateway.

use crate::connection::Connection;
use crate::host::Host;
use crate::libreswan::Pluto;
use crate::negotiation::initiate;
use crate::network::Network;
use crate::pluto::lines;
use crate::rekey::until_renewed;
use crate::strongswan::{Charon, only_child};
use crate::support::{Outcome, ensure, wait};
use crate::tape::of_road_warrior;
use std::collections::BTreeMap;
use std::thread;
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::traffic::{Load, Stream};

pub use crate::pair::{INNER, ends, left, logs, pings, with_addresses};

type Tests<'a> = Suite<'a, Network>;

pub fn tests(mut suite: Tests<'_>) -> Tests<'_> {
    const PROPOSALS: [&str; 5] = [
        "aes128gcm16-x25519",
        "aes256gcm16-x25519-esn",
        "aes128-sha256-esn",
        "aes128-aesxcbc",
        "chacha20poly1305",
    ];
    for proposal in PROPOSALS {
        suite = suite.test(format!("packets_pass_under_{proposal}"), move |network: &mut Network| {
            passes(network, &Connection::esp(proposal))
        });
    }
    suite
        .test("packets_pass_under_3des-md5_where_that_is_allowed", |network| {
            let connection = Connection::esp("3des-md5");
            let charons = network.programs_with(["allow_legacy = true\n"; 2], "", &connection)?;
            pass(network, charons)
        })
        .test("packets_pass_in_udp_beside_ike", |network| {
            passes(network, &Connection { ike: "encap = yes".to_owned(), ..Connection::default() })
        })
        .test("packets_pass_over_ipv6", |network| {
            let addresses = ["2001:db8::1", "2001:db8::2"].map(str::to_owned);
            passes(network, &Connection { addresses, ..Connection::default() })
        })
        .test("a_packet_that_meets_a_trap_waits_for_its_sa", trap)
        .test("no_packet_is_lost_while_sas_are_renewed", rekeys)
        .test("a_road_warriors_packets_have_the_address_that_it_was_given", road_warrior)
        .test("packets_are_a_sign_of_life_that_charon_sees", sign_of_life)
        .test("each_interface_has_its_own_tunnel_for_all_packets", interfaces)
        .test("packets_pass_between_two_plutos", |network| between_plutos(network, "", INNER))
}

/// Steady streams of numbered datagrams between the inner hosts, from A and from B.
pub fn both_ways(network: &Network) -> Outcome<[Stream; 2]> {
    both_ways_marked(network, Load::default(), 0)
}

/// The same with another load, and this DSCP in each datagram.
pub fn both_ways_marked(network: &Network, load: Load, dscp: u8) -> Outcome<[Stream; 2]> {
    let [a, b] = [(&network.a.namespace, INNER[0]), (&network.b.namespace, INNER[1])];
    let streams = [Stream::start_marked(a, b, load, dscp)?, Stream::start_marked(b, a, load, dscp)?];
    for stream in &streams {
        stream.flows(100)?;
    }
    Ok(streams)
}

/// Ends streams at the same time, since each waits a while for what is late: the numbers of the datagrams of
/// each that never arrived.
pub fn lost<const N: usize>(streams: [Stream; N]) -> Outcome<[Vec<u64>; N]> {
    let ended = thread::scope(|scope| {
        let ending = streams.map(|stream| scope.spawn(|| stream.end()));
        ending.map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    let mut all = Vec::new();
    for stream in ended {
        let (sent, lost) = stream?;
        ensure(sent > 200, || format!("only {sent} datagrams were sent"))?;
        all.push(lost);
    }
    all.try_into().map_err(|_| "another number of streams".into())
}

/// What a host's gateway has dropped of packets that it should have sealed or opened, by reason. Keepalives
/// and what hosts say on a new interface (Router Solicitations, which no policy selects) are none of these.
pub fn drops(host: &Host) -> Outcome<BTreeMap<String, u64>> {
    let status = host.program().process.ask_json(&["status"])?;
    let drops = status["drops"].as_object().ok_or("no drops")?;
    let drops = drops.iter().filter(|(name, _)| !["no_policy", "nat_keepalive"].contains(&name.as_str()));
    let counted = drops.map(|(name, count)| Some((name.clone(), count.as_u64()?)));
    let counted = counted.collect::<Option<BTreeMap<_, _>>>().ok_or("a count that is no number")?;
    Ok(counted.into_iter().filter(|(_, count)| *count > 0).collect())
}

fn passes(network: &mut Network, connection: &Connection) -> TestResult {
    let charons = network.programs("", connection)?;
    pass(network, charons)
}

fn pass(network: &mut Network, charons: [Charon; 2]) -> TestResult {
    with_addresses(network)?;
    initiate(&charons).map_err(|error| format!("{error}\n{}", logs(network, &charons)))?;
    pings(network, &charons)?;
    network.all_is_well(&charons)?;
    ends(network, charons)
}

/// RFC 4301 5.1: the first packet is late, and not lost.
fn trap(network: &mut Network) -> TestResult {
    let charons = network.programs("", &Connection::child("start_action = trap"))?;
    with_addresses(network)?;
    wait::until("for a trap policy at A", || {
        let shown = network.a.ip_xfrm(&["policy"])?;
        Ok(shown.contains("dir out").then_some(()))
    })?;
    pings(network, &charons)?;
    charons[0].until("for a CHILD_SA", only_child)?;
    ends_trapped(network, charons)
}

/// Nobody complains, and all end, whatever is trapped.
pub fn ends_trapped(network: &mut Network, charons: [Charon; 2]) -> TestResult {
    network.all_is_well(&charons)?;
    for charon in charons {
        charon.stop()?;
    }
    for host in [&mut network.a, &mut network.b] {
        if let Some(program) = host.program.take() {
            program.process.stop()?;
        }
    }
    Ok(())
}

/// RFC 7296 2.8: by either end, under a steady stream of numbered datagrams.
fn rekeys(network: &mut Network) -> TestResult {
    let charons = network.programs("", &Connection::default())?;
    with_addresses(network)?;
    let mut spis = initiate(&charons)?;
    let stream = Stream::start((&network.a.namespace, INNER[0]), (&network.b.namespace, INNER[1]))?;
    stream.flows(100)?;
    for by in [0, 1, 0, 1] {
        charons[by].swanctl(&["--rekey", "--child", "net"])?;
        spis = until_renewed(&charons, spis)?;
        stream.flows(100)?;
    }
    let (sent, lost) = stream.end()?;
    ensure(lost.is_empty() && sent > 500, || {
        format!("of {sent} datagrams were lost: {lost:?}\n{}", logs(network, &charons))
    })?;
    ends(network, charons)
}

/// RFC 7296 2.19: A has an address from B's pool, on the gateway's interface.
fn road_warrior(network: &mut Network) -> TestResult {
    const GIVEN: &str = "10.3.0.5";
    let connection = of_road_warrior();
    let charons = network.programs("install_virtual_ip_on = testudo0", &connection)?;
    with_addresses(network)?;
    initiate(&charons).map_err(|error| format!("{error}\n{}", logs(network, &charons)))?;
    // Without a word about where they are from.
    let words = ["-n", "-c", "3", "-i", "0.2", "-W", "5", INNER[1]];
    let output = wait::output(network.a.namespace.command("ping").args(words))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure(said.contains(" 0% packet loss"), || format!("{said}\n{}", logs(network, &charons)))?;
    let route = network.a.namespace.run(&["ip", "route", "get", INNER[1]])?;
    ensure(route.contains("dev testudo0") && route.contains(&format!("src {GIVEN}")), || route.clone())?;
    ends(network, charons)
}

/// A connection for all packets with an if_id, as one of the ends has it.
fn beside((name, if_id): (&str, u8), own: usize) -> String {
    let end = |at: usize| format!("{name}.{}.example", ["a", "b"][at]);
    let (ours, theirs) = (end(own), end(1 - own));
    let addresses = ["192.0.2.1", "192.0.2.2"];
    format!(
        "connections {{ {name} {{\n\
         version = 2\n local_addrs = {}\n remote_addrs = {}\n\
         proposals = aes128gcm16-prfsha256-x25519\n mobike = no\n\
         local {{ id = {ours}\n auth = psk\n }}\n remote {{ id = {theirs}\n auth = psk\n }}\n\
         children {{ {name} {{\n local_ts = 0.0.0.0/0\n remote_ts = 0.0.0.0/0\n\
         if_id_in = {if_id}\n if_id_out = {if_id}\n\
         esp_proposals = aes128gcm16-x25519\n rekey_time = 0\n}} }} }} }}\n\
         secrets {{ ike-{name} {{ id-a = {ours}\n id-b = {theirs}\n secret = \"of {name}\" }} }}\n",
        addresses[own],
        addresses[1 - own],
    )
}

/// Route-based tunnels, as over XFRM interfaces: two for all packets, each at the interface of its if_id, and
/// beside them one by policy.
fn interfaces(network: &mut Network) -> TestResult {
    const NAMES: [(&str, u8); 2] = [("red", 42), ("blue", 43)];
    let sections = |host: u8| -> String {
        let of = |(at, (name, if_id)): (u8, (&str, u8))| {
            let address = format!("10.{}.0.{host}/32", 40 + at);
            format!("[[interface]]\nname = \"{name}\"\nif_id = {if_id}\naddresses = [\"{address}\"]\n")
        };
        (0..).zip(NAMES).map(of).collect()
    };
    let connection = Connection {
        more_of: [0, 1].map(|own| NAMES.map(|of| beside(of, own)).concat()),
        ..Connection::default()
    };
    let charons = network.programs_with([&sections(1), &sections(2)], "", &connection)?;
    with_addresses(network)?;
    initiate(&charons).map_err(|error| format!("{error}\n{}", logs(network, &charons)))?;
    for (name, _) in NAMES {
        charons[0].swanctl(&["--initiate", "--child", name, "--timeout", "15"])?;
    }
    for (host, other) in [(&network.a, 2), (&network.b, 1)] {
        for (at, (name, _)) in (0..).zip(NAMES) {
            host.namespace.route_into(&format!("10.{}.0.{other}/32", 40 + at), name)?;
        }
    }
    let pairs = [(INNER[0], INNER[1]), ("10.40.0.1", "10.40.0.2"), ("10.41.0.1", "10.41.0.2")];
    for (count, (from, to)) in (3..).zip(pairs) {
        let count = format!("{count}");
        let words = ["-n", "-c", &count, "-i", "0.2", "-W", "5", "-I", from, to];
        let output = wait::output(network.a.namespace.command("ping").args(words))?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure(said.contains(" 0% packet loss"), || format!("{said}\n{}", logs(network, &charons)))?;
    }
    for host in network.hosts() {
        let list = host.program().process.ask_json(&["sa", "list"])?;
        let packets = |sa: &serde_json::Value| sa["packets"].as_u64();
        let mut packets: Vec<_> = list.as_array().into_iter().flatten().filter_map(packets).collect();
        packets.sort_unstable();
        ensure(packets == [3, 3, 4, 4, 5, 5], || format!("each in its own SA: {list:#}"))?;
        seen_by_interface(host)?;
    }
    for (name, _) in NAMES {
        charons[0].swanctl(&["--terminate", "--ike", name, "--timeout", "10"])?;
    }
    ends(network, charons)
}

/// What operators see of three interfaces that 3, 4 and 5 packets have passed each way.
fn seen_by_interface(host: &Host) -> TestResult {
    let process = &host.program().process;
    let status = process.ask_json(&["status"])?;
    let expected = [("testudo0", None, 3), ("red", Some(42), 4), ("blue", Some(43), 5)];
    for (at, (name, if_id, packets)) in expected.into_iter().enumerate() {
        let row = &status["interfaces"][at];
        let counted = ["rx_packets", "tx_packets"].map(|key| row[key].as_u64());
        ensure(row["name"] == name && row["if_id"].as_u64() == if_id, || format!("{row:#}"))?;
        // The host sends more into them, such as router solicitations, which are dropped.
        let dropped: u64 =
            row["drops"].as_object().into_iter().flatten().filter_map(|(_, n)| n.as_u64()).sum();
        ensure(counted == [Some(packets + dropped), Some(packets)], || format!("{row:#}"))?;
        let negotiated = &row["negotiated"];
        ensure(negotiated["tunnels"] == 1 && negotiated["sas"] == 2, || format!("{negotiated:#}"))?;
    }
    let said = [process.ask(&["status"])?.stdout, process.ask(&["sa", "list"])?.stdout];
    let of = |said: &str, name: &str| {
        said.lines().filter(|line| line.split_whitespace().any(|word| word == name)).count()
    };
    let rows = ["red", "blue"].map(|name| said.each_ref().map(|said| of(said, name)));
    ensure(rows == [[1, 2], [1, 2]], || format!("{rows:?} of\n{}", said.concat()))
}

/// charon asks whether the peer lives (RFC 7296 2.4) only where nothing of it comes.
fn sign_of_life(network: &mut Network) -> TestResult {
    // Times of use are whole seconds, and up to one late: a shorter delay would be over at times.
    let ike_of = ["dpd_delay = 4s".to_owned(), String::new()];
    let charons = network.programs("", &Connection { ike_of, ..Connection::default() })?;
    with_addresses(network)?;
    initiate(&charons)?;
    let asks = |charon: &Charon| charon.log().matches("sending DPD request").count();
    let words = ["-n", "-c", "50", "-i", "0.2", "-W", "5", "-I", INNER[0], INNER[1]];
    let output = wait::output(network.a.namespace.command("ping").args(words))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure(said.contains(" 0% packet loss"), || format!("{said}\n{}", logs(network, &charons)))?;
    ensure(asks(&charons[0]) == 0, || format!("DPD while packets come:\n{}", charons[0].log()))?;
    wait::until("for charon to ask when none come", || Ok((asks(&charons[0]) > 0).then_some(())))?;
    ends(network, charons)
}

/// Two plutos that have negotiated, with further lines of the connection.
pub fn plutos(network: &mut Network, more: &str) -> Outcome<[Pluto; 2]> {
    network.a.start_program()?;
    network.b.start_program()?;
    with_addresses(network)?;
    let lines = lines(&format!("esp=aes_gcm256\n{more}"));
    let plutos = [Pluto::start(&network.a, &lines, "add")?, Pluto::start(&network.b, &lines, "add")?];
    plutos[0].whack(&["--initiate", "--name", "net"])?;
    Ok(plutos)
}

/// With further lines of the connection, and packets between these addresses.
pub fn between_plutos(network: &mut Network, more: &str, [from, to]: [&str; 2]) -> TestResult {
    let plutos = plutos(network, more)?;
    let words = ["-n", "-c", "3", "-i", "0.2", "-W", "5", "-I", from, to];
    let output = wait::output(network.a.namespace.command("ping").args(words))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure(said.contains(" 0% packet loss"), || format!("{said}\n{}", plutos[0].log()))?;
    plutos_end(network, plutos)
}

/// Both plutos and gateways end: nothing is left, and nobody complains.
pub fn plutos_end(network: &mut Network, plutos: [Pluto; 2]) -> TestResult {
    for (host, pluto) in network.hosts().into_iter().zip(&plutos) {
        host.nothing_refused()?;
        let listed = host.program().process.ask_json(&["sa", "list"])?;
        let are_its = listed
            .as_array()
            .is_some_and(|sas| sas.len() == 2 && sas.iter().all(|sa| sa["daemon"] == "pluto"));
        ensure(are_its, || format!("pluto's SAs: {listed:#}"))?;
        let mut complaints = pluto.complaints();
        // It takes the news of a route (RTM_NEWROUTE is 24) for an expiry (XFRM_MSG_EXPIRE is 24, too).
        complaints.retain(|line| !line.contains("netlink_expire got message with length"));
        ensure(complaints.is_empty(), || complaints.join("\n"))?;
    }
    for pluto in plutos {
        pluto.stop()?;
    }
    for host in [&mut network.a, &mut network.b] {
        let Some(program) = host.program.take() else { continue };
        let left = program.process.ask_json(&["sa", "list"])?;
        ensure(left.as_array().is_some_and(Vec::is_empty), || format!("SAs are left: {left:#}"))?;
        program.process.stop()?;
    }
    Ok(())
}

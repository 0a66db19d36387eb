//! SAs at their limits, peers that die and come back, and IKE_SAs that are renewed, with traffic: the whole
//! program is the gateway of both hosts.

use crate::connection::Connection;
use crate::negotiation::{initiate, issue};
use crate::network::Network;
use crate::strongswan::{Charon, IkeSa, only_child};
use crate::support::{Outcome, ensure, wait};
use crate::traffic::{INNER, both_ways, drops, ends, logs, lost, pings, plutos, plutos_end, with_addresses};
use serde_json::Value;
use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::traffic::tcp_stream;

type Tests<'a> = Suite<'a, Network>;

pub fn tests(suite: Tests<'_>) -> Tests<'_> {
    suite
        .test("sas_are_renewed_by_packets_and_bytes_and_none_is_lost", soft_limits)
        .test("no_sa_carries_more_packets_than_its_hard_limit", hard_limit_of_packets)
        .test("an_sa_whose_time_is_over_ends_and_has_a_successor", hard_limit_of_time)
        .test("an_sa_that_carries_nothing_ends_and_one_that_does_stays", inactivity)
        .test("a_host_that_was_killed_is_given_up_and_negotiated_with_again", host_killed)
        .test("ike_sas_are_renewed_under_a_tcp_stream", ike_renewals)
        .test("packets_pass_by_certificates", by_certificates)
        .test("plutos_renew_sas_under_packets_and_each_lost_one_is_counted", renewals_of_pluto)
}

fn started(network: &mut Network, settings: &str, connection: &Connection) -> Outcome<[Charon; 2]> {
    let charons = network.programs(settings, connection)?;
    with_addresses(network)?;
    initiate(&charons).map_err(|error| format!("{error}\n{}", logs(network, &charons)))?;
    Ok(charons)
}

/// What all SAs of A's gateway have carried, packets of each.
fn carried(network: &Network) -> Outcome<Vec<u64>> {
    let list = network.a.program().process.ask_json(&["sa", "list"])?;
    let rows = list.as_array().ok_or("no SAs")?;
    Ok(rows.iter().filter_map(|sa| sa["packets"].as_u64()).collect())
}

/// Waits until there have been so many CHILD_SAs, some of them at the same time.
fn until_renewed(charon: &Charon, times: usize) -> Outcome<()> {
    let mut seen = BTreeSet::new();
    charon.until("for the CHILD_SA to be renewed", |sas| {
        let all = sas.iter().flat_map(IkeSa::installed);
        seen.extend(all.map(|child| child.get("uniqueid").to_owned()));
        (seen.len() > times).then_some(())
    })
}

/// The daemon asks for news at 200 packets or 20,000 bytes, which the streams reach in less than a second.
fn soft_limits(network: &mut Network) -> TestResult {
    const LIMITS: [&str; 2] = [
        "rekey_packets = 200\n life_packets = 1000000\n rand_packets = 0",
        "rekey_bytes = 20000\n life_bytes = 100000000\n rand_bytes = 0",
    ];
    for limits in LIMITS {
        let charons = started(network, "", &Connection::child(limits))?;
        let streams = both_ways(network)?;
        until_renewed(&charons[0], 3).map_err(|error| format!("{error}\n{}", logs(network, &charons)))?;
        let lost = lost(streams)?;
        ensure(lost.iter().all(Vec::is_empty), || format!("lost: {lost:?}\n{}", logs(network, &charons)))?;
        for host in network.hosts() {
            let drops = drops(host)?;
            ensure(drops.is_empty(), || format!("{}: {drops:?}", host.namespace.name()))?;
        }
        ends(network, charons)?;
    }
    Ok(())
}

/// Each SA ends after 300 packets, without news of it before: packets that come meanwhile are lost, and
/// counted.
fn hard_limit_of_packets(network: &mut Network) -> TestResult {
    const LIMIT: u64 = 300;
    let limits = format!("life_packets = {LIMIT}\n rekey_packets = 0\n life_bytes = 0\n start_action = trap");
    let charons = started(network, "", &Connection::child(&limits))?;
    let streams = both_ways(network)?;
    let mut all = 0;
    let before = charons[0].until("for a CHILD_SA", only_child)?;
    wait::until("for another CHILD_SA", || {
        all = all.max(carried(network)?.into_iter().max().unwrap_or(0));
        Ok(only_child(&charons[0].sas()?).filter(|now| *now != before))
    })
    .map_err(|error| format!("{error}\n{}", logs(network, &charons)))?;
    ensure(all <= LIMIT, || format!("an SA of {LIMIT} packets has carried {all}"))?;
    for stream in &streams {
        stream.flows(50)?;
    }
    let lost = lost(streams)?;
    let counted = drops(&network.a)?;
    let is_counted = lost[0].is_empty() || !counted.is_empty();
    ensure(is_counted, || format!("lost: {lost:?}, and counted: {counted:?}"))?;
    for charon in charons {
        charon.stop()?;
    }
    stop_programs(network)
}

fn stop_programs(network: &mut Network) -> TestResult {
    for host in [&mut network.a, &mut network.b] {
        if let Some(program) = host.program.take() {
            program.process.stop()?;
        }
    }
    Ok(())
}

/// SPIs of the SAs that A's gateway has.
fn spis(network: &Network) -> Outcome<Vec<Value>> {
    let list = network.a.program().process.ask_json(&["sa", "list"])?;
    Ok(list.as_array().ok_or("no list")?.iter().map(|sa| sa["spi"].clone()).collect())
}

/// The SA ends two seconds after it began, whether it was used or not.
fn hard_limit_of_time(network: &mut Network) -> TestResult {
    let charons = started(network, "", &Connection::child("life_time = 2s\n start_action = trap"))?;
    let sas = || spis(network);
    let first = sas()?;
    ensure(first.len() == 2, || format!("two SAs, not {first:?}"))?;
    wait::until("for the SAs to end", || Ok((!sas()?.iter().any(|spi| first.contains(spi))).then_some(())))
        .map_err(|error| format!("{error}\n{}", logs(network, &charons)))?;
    pings(network, &charons)?;
    for charon in charons {
        charon.stop()?;
    }
    stop_programs(network)
}

/// charon asks when a policy's packets came last. Times of use are whole seconds, and up to one late.
fn inactivity(network: &mut Network) -> TestResult {
    let charons = started(network, "", &Connection::child("inactivity = 2s"))?;
    let before = charons[0].until("for a CHILD_SA", only_child)?;
    // For longer than it may be idle.
    let words = ["-n", "-q", "-c", "18", "-i", "0.2", "-W", "5", "-I", INNER[0], INNER[1]];
    let output = wait::output(network.a.namespace.command("ping").args(words))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure(said.contains(" 0% packet loss"), || format!("{said}\n{}", logs(network, &charons)))?;
    let now = only_child(&charons[0].sas()?);
    ensure(now == Some(before), || format!("{now:x?} in place of {before:x?}: {}", charons[0].log()))?;
    for charon in &charons {
        charon.until("for the idle CHILD_SA to end", |sas| {
            sas.iter().all(|sa| sa.installed().is_empty()).then_some(())
        })?;
    }
    let left = spis(network)?;
    ensure(left.is_empty(), || format!("SAs are left: {left:?}"))?;
    for charon in charons {
        charon.stop()?;
    }
    stop_programs(network)
}

const DEAF: &str = "add chain inet deaf in { type filter hook input priority 0; }";

/// RFC 7296 2.4: B falls silent, and comes back without anything. A finds out both by itself.
fn host_killed(network: &mut Network) -> TestResult {
    let connection = Connection {
        // It asks for as long as B is not there.
        ike_of: ["dpd_delay = 1s\n keyingtries = 0".to_owned(), String::new()],
        child: "dpd_action = restart".to_owned(),
        ..Connection::default()
    };
    let settings = "retransmit_tries = 2\n retransmit_timeout = 0.3\n retransmit_base = 1";
    let charons = started(network, settings, &connection)?;
    pings(network, &charons)?;
    let before = charons[0].until("for a CHILD_SA", only_child)?;
    let [a, b] = charons;
    drop(b);
    if let Some(program) = network.b.program.take() {
        program.process.kill()?;
    }
    a.until("for A to give B up", |sas| sas.iter().all(|sa| !sa.is_established()).then_some(()))?;
    let left = network.a.program().process.ask_json(&["sa", "list"])?;
    ensure(left.as_array().is_some_and(Vec::is_empty), || format!("SAs with a dead peer: {left:#}"))?;
    network.b.start_program()?;
    // A daemon that has no connection yet refuses, and A would not ask again.
    for words in ["add table inet deaf", DEAF, "add rule inet deaf in udp dport { 500, 4500 } drop"] {
        network.b.namespace.run(&["nft", words])?;
    }
    let b = Charon::start(&network.b, settings)?;
    b.load(&connection.of_b())?;
    network.b.namespace.run(&["nft", "delete table inet deaf"])?;
    let is_new = |spis: &[u32; 2]| *spis != before;
    a.until("for A to negotiate again", |sas| {
        sas.iter().find_map(|sa| only_child(std::slice::from_ref(sa)).filter(is_new))
    })?;
    let charons = [a, b];
    pings(network, &charons)?;
    ends(network, charons)
}

/// RFC 7296 2.8: the CHILD_SA goes from one IKE_SA to the next, and its packets do not notice.
fn ike_renewals(network: &mut Network) -> TestResult {
    const TIME: Duration = Duration::from_secs(3);
    // Of one end: where both renew at once, charon keeps a redundant IKE_SA for half a minute.
    let ike_of = ["rekey_time = 1s\n rand_time = 0s\n over_time = 60s".to_owned(), String::new()];
    let charons = started(network, "", &Connection { ike_of, ..Connection::default() })?;
    let spis = charons[0].until("for a CHILD_SA", only_child)?;
    let (a, b) = (&network.a.namespace, &network.b.namespace);
    let address = INNER[1].parse()?;
    thread::scope(|scope| -> TestResult {
        let load = scope.spawn(|| tcp_stream(a, b, address, TIME, &mut |_, _| ()).map_err(|e| e.to_string()));
        let (mut last, mut seen) = (None, 0);
        charons[1].until("for two more IKE_SAs", |sas| {
            let id = sas.iter().rfind(|sa| sa.is_established())?.id().to_owned();
            seen += usize::from(last.replace(id.clone()).is_some_and(|before| before != id));
            (seen >= 2).then_some(())
        })?;
        let result = load.join().map_err(|_| "the stream has panicked")??;
        // Every byte is compared; this is far below any rate.
        ensure(result.bytes > 1_000_000, || format!("only {} bytes", result.bytes))
    })
    .map_err(|error| format!("{error}\n{}", logs(network, &charons)))?;
    let now = charons[0].until("for one IKE_SA", only_child)?;
    ensure(now == spis, || format!("the CHILD_SA was {spis:x?}, and is {now:x?}"))?;
    for host in network.hosts() {
        let drops = drops(host)?;
        ensure(drops.is_empty(), || format!("{}: {drops:?}", host.namespace.name()))?;
    }
    ends(network, charons)
}

fn by_certificates(network: &mut Network) -> TestResult {
    let auth = [0, 1].map(|_| "auth = pubkey\n certs = own.crt".to_owned());
    let connection = Connection { auth, ..Connection::default() };
    let charons = network.programs("", &Connection::default())?;
    with_addresses(network)?;
    issue(network, &charons)?;
    charons[0].load(&connection.of_a())?;
    charons[1].load(&connection.of_b())?;
    initiate(&charons).map_err(|error| format!("{error}\n{}", logs(network, &charons)))?;
    pings(network, &charons)?;
    ends(network, charons)
}

/// RFC 7296 2.8: by either end, under steady streams both ways.
fn renewals_of_pluto(network: &mut Network) -> TestResult {
    let plutos = plutos(network, "")?;
    let streams = both_ways(network)?;
    for pluto in &plutos {
        let before = spis(network)?;
        pluto.whack(&["--rekey-ipsec", "--name", "net"])?;
        wait::until("for two other SAs", || {
            let now = spis(network)?;
            Ok((now.len() == 2 && !now.iter().any(|spi| before.contains(spi))).then_some(()))
        })
        .map_err(|error| format!("{error}\n{}", pluto.log()))?;
        for stream in &streams {
            stream.flows(100)?;
        }
    }
    let lost = lost(streams)?;
    // pluto takes the old inbound SA away as soon as its peer says so, and not what is under way to it then.
    for (lost, host) in lost.iter().zip([&network.b, &network.a]) {
        let counted = host.program().process.dropped("unknown_spi")?;
        ensure(lost.len() as u64 <= counted && counted < 20, || {
            format!("lost: {lost:?}, {counted} under SAs that were gone, and {:?}", drops(host))
        })?;
    }
    plutos_end(network, plutos)
}

//! A foreign data path at the other end: strongSwan alone, with libipsec, which seals and opens in the daemon
//! itself and knows nothing of Testudo. A has the whole program.
//!
//! libipsec speaks ESP in UDP alone, and has no extended sequence numbers.

use crate::connection::Connection;
use crate::negotiation::initiate;
use crate::network::Network;
use crate::rekey::until_renewed;
use crate::strongswan::Charon;
use crate::support::{Outcome, ensure};
use crate::traffic::{INNER, both_ways, drops, ends, logs, lost, pings, with_addresses};
use std::time::Duration;
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::traffic::tcp_stream;

type Tests<'a> = Suite<'a, Network>;

const PROPOSALS: [&str; 4] =
    ["aes128gcm16-x25519", "chacha20poly1305-x25519", "aes128-sha256-x25519", "aes256-sha512-x25519"];

pub fn tests(suite: Tests<'_>) -> Tests<'_> {
    suite
        .test("strongswans_own_data_path_and_the_gateway_open_each_others_packets_of_each_suite", suites)
        .test("no_packet_is_lost_while_sas_with_strongswans_own_data_path_are_renewed", renewals)
        .test("a_tcp_stream_passes_to_and_from_strongswans_own_data_path", tcp)
}

/// Testudo and charon at A, strongSwan alone at B.
fn charons(network: &mut Network) -> Outcome<[Charon; 2]> {
    network.a.start_program()?;
    network.b.without_gateway();
    let charons = [Charon::start(&network.a, "")?, Charon::with_own_data_path(&network.b)?];
    with_addresses(network)?;
    Ok(charons)
}

fn load(charons: &[Charon; 2], connection: &Connection) -> Outcome<()> {
    charons[0].load(&connection.of_a())?;
    charons[1].load(&connection.of_b())
}

/// The gateway has opened all that came.
fn nothing_dropped(network: &Network) -> Outcome<()> {
    let drops = drops(&network.a)?;
    ensure(drops.is_empty(), || format!("A has dropped: {drops:?}"))
}

fn suites(network: &mut Network) -> TestResult {
    let charons = charons(network)?;
    for proposal in PROPOSALS {
        load(&charons, &Connection::esp(proposal))?;
        initiate(&charons).map_err(|error| format!("{error}\n{}", logs(network, &charons)))?;
        pings(network, &charons).map_err(|error| format!("{proposal}: {error}"))?;
        charons[0].swanctl(&["--terminate", "--ike", "net", "--timeout", "10"])?;
        charons[1].until("for the end of the IKE_SA at B", |sas| sas.is_empty().then_some(()))?;
    }
    nothing_dropped(network)?;
    initiate(&charons)?;
    ends(network, charons)
}

/// RFC 7296 2.8: by either end, under steady streams both ways.
fn renewals(network: &mut Network) -> TestResult {
    let charons = charons(network)?;
    load(&charons, &Connection::default())?;
    let mut spis = initiate(&charons)?;
    let streams = both_ways(network)?;
    for by in [0, 1, 1, 0] {
        charons[by].swanctl(&["--rekey", "--child", "net"])?;
        spis = until_renewed(&charons, spis)?;
        for stream in &streams {
            stream.flows(100)?;
        }
    }
    let lost = lost(streams)?;
    // What libipsec itself could not take is in the counters of its interface.
    let own = network.b.namespace.run(&["ip", "-s", "link", "show", "ipsec0"])?;
    ensure(lost.iter().all(Vec::is_empty), || format!("lost: {lost:?}\n{own}\n{}", logs(network, &charons)))?;
    nothing_dropped(network)?;
    ends(network, charons)
}

fn tcp(network: &mut Network) -> TestResult {
    const TIME: Duration = Duration::from_secs(1);
    let charons = charons(network)?;
    load(&charons, &Connection::default())?;
    initiate(&charons)?;
    let (a, b) = (&network.a.namespace, &network.b.namespace);
    for (from, to, address) in [(a, b, INNER[1]), (b, a, INNER[0])] {
        let result = tcp_stream(from, to, address.parse()?, TIME, &mut |_, _| ())
            .map_err(|error| format!("{error}\n{}", logs(network, &charons)))?;
        // Every byte is compared; this is far below any rate.
        ensure(result.bytes > 1_000_000, || format!("only {} bytes to {address}", result.bytes))?;
    }
    nothing_dropped(network)?;
    ends(network, charons)
}

//! A gateway or a daemon that goes and comes.

use crate::connection::Connection;
use crate::negotiation::{initiate, is_empty, is_in_force};
use crate::network::Network;
use crate::strongswan::{Charon, only_child};
use crate::support::ensure;
use crate::traffic::{logs, pings, with_addresses};
use std::time::{Duration, Instant};
use testudo_judge::harness::{Suite, TestResult};

type Tests<'a> = Suite<'a, Network>;

/// How long the gateway is away.
pub const AWAY: Duration = Duration::from_secs(3);

pub fn tests(suite: Tests<'_>) -> Tests<'_> {
    suite
        .test("charon_waits_for_a_gateway_that_is_away_and_does_not_spin", gateway_restarts)
        .test("a_charon_that_was_killed_leaves_its_sas_and_begins_anew", charon_restarts)
        .test("a_charon_may_be_killed_time_and_again", charon_is_killed_often)
}

fn gateway_restarts(network: &mut Network) -> TestResult {
    let charons = network.charons(&Connection::default())?;
    initiate(&charons)?;
    let before = charons[0].ticks()?;
    network.a.gateway = None;
    // What is measured is this time itself.
    std::thread::sleep(AWAY);
    let used = charons[0].ticks()? - before;
    // 100 ticks a second: 3 % of one processor.
    ensure(used <= 10, || format!("charon ran for {used} ticks of 300 while the gateway was away"))?;
    let asked = Instant::now();
    let refused = charons[0].swanctl(&["--rekey", "--child", "net"]);
    ensure(asked.elapsed() < Duration::from_secs(10), || format!("{:?} for {refused:?}", asked.elapsed()))?;
    network.a.start_gateway()?;
    charons[0].swanctl(&["--terminate", "--ike", "net", "--force", "--timeout", "5"])?;
    charons[1].until("for the end of the IKE_SA at B", |sas| sas.is_empty().then_some(()))?;
    let spis = initiate(&charons)?;
    is_in_force(network, spis, "aes128gcm16")?;
    charons[0].swanctl(&["--terminate", "--ike", "net", "--timeout", "10"])?;
    ensure(is_empty(&network.a)?, || format!("{:?}", network.a.gateway().memory.get()))
}

/// charon never deletes what an earlier one left: SAs without a limit stay, as they do in a kernel.
fn charon_restarts(network: &mut Network) -> TestResult {
    let [a, b] = network.charons(&Connection::default())?;
    let charons = [a, b];
    let left = initiate(&charons)?;
    let [a, b] = charons;
    drop(a);
    let a = Charon::start(&network.a, "")?;
    a.load(&Connection::default().of_a())?;
    let charons = [a, b];
    charons[0].swanctl(&["--initiate", "--child", "net", "--timeout", "15"])?;
    let spis = charons[0].until("for a CHILD_SA", only_child)?;
    charons[1]
        .until("for B to have that alone", |sas| only_child(sas).filter(|b| *b == [spis[1], spis[0]]))?;
    let now = network.a.gateway().memory.get();
    let of = |spis: [u32; 2]| now.sas.keys().filter(|key| spis.contains(&key.spi)).count();
    ensure((of(left), of(spis), now.sas.len()) == (2, 2, 4), || format!("{:?}", now.sas))?;
    ensure(now.policies.len() == 3, || format!("{:?}", now.policies))?;
    drop(now);
    // The new charon finds policies that it has not added, and updates them.
    let refusals = network.a.gateway().recorder.refusals();
    ensure(refusals.iter().all(|line| line.contains(", errno -17,")), || refusals.join("\n"))?;
    network.b.nothing_refused()
}

/// Each one leaves an SA in each direction, and there is room for eight. Over the whole program, whose limit
/// it is.
fn charon_is_killed_often(network: &mut Network) -> TestResult {
    const KILLS: usize = 10;
    let [mut a, mut b] = network.programs("", &Connection::default())?;
    with_addresses(network)?;
    for kill in 0..=KILLS {
        let charons = [a, b];
        charons[0]
            .swanctl(&["--initiate", "--child", "net", "--timeout", "15"])
            .map_err(|error| format!("after {kill} kills: {error}\n{}", logs(network, &charons)))?;
        pings(network, &charons)?;
        let left = network.a.program().process.ask_json(&["sa", "list"])?;
        let count = left.as_array().map_or(0, Vec::len);
        ensure(count <= 16, || format!("{count} SAs: {left:#}"))?;
        let [killed, other] = charons;
        b = other;
        if kill == KILLS {
            return Ok(());
        }
        drop(killed);
        a = Charon::start(&network.a, "")?;
        a.load(&Connection::default().of_a())?;
    }
    Ok(())
}

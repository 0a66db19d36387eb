//! A daemon gone mad at one gateway, while packets pass through a tunnel of the configuration.

use crate::median;
use crate::played::Gateway;
use crate::played::mad::{ALL, Mad, Madness};
use crate::ports::Numbered;
use crate::turn_by_turn::Hosts;
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use testudo_crypto::{Engine, PortableEngine};
use testudo_engine_vaes::VaesEngine;
use testudo_gateway::PortPair;
use testudo_packet::{Batch, Pool, Port, PortCounters, PortError};
use testudo_port_memory::{LoopPort, MemoryPort};

/// The gateway that it speaks to, and the gateway's address.
const MAD: usize = 1;
const OWN: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
/// Rounds, each with so many of what it asks for at random, and then flushes.
const ROUNDS: usize = 40;
const IN_A_ROUND: usize = 8;
/// Commands to the worker for each request, at most: what is added once is removed once.
const COMMANDS: u64 = 6;
/// SPIs that it wants, and that it gets.
const WANTED: usize = 1_000_000;
const GIVEN: usize = 1 << 14;

/// Counts how often a worker asked and got nothing, which ends its receiving in each turn.
struct CountsTurns {
    inner: MemoryPort,
    turns: Arc<AtomicU64>,
}

impl Port for CountsTurns {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let received = self.inner.rx(pool, batch)?;
        self.turns.fetch_add(u64::from(received == 0), Ordering::Relaxed);
        Ok(received)
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        self.inner.tx(pool, batch)
    }

    fn readiness(&self) -> Vec<BorrowedFd<'_>> {
        self.inner.readiness()
    }

    fn joins(&self) -> bool {
        self.inner.joins()
    }

    fn counters(&self) -> PortCounters {
        self.inner.counters()
    }
}

/// Two gateways with a tunnel between them that no daemon has made, and the turns of each worker.
fn pair() -> ([Gateway; 2], Hosts, [Arc<AtomicU64>; 2]) {
    let (a, b) = MemoryPort::pair(64);
    let (mut handles, mut turns) = (Vec::new(), Vec::new());
    let gateways = [a, b].into_iter().enumerate().map(|(host, unprotected)| {
        let (inner, handle) = MemoryPort::with_handle("protected", 64);
        let counted = Arc::<AtomicU64>::default();
        let protected = CountsTurns { inner, turns: Arc::clone(&counted) };
        handles.push(handle);
        turns.push(counted);
        let ports = PortPair { protected: Box::new(protected), unprotected: Box::new(unprotected) };
        let engines: Vec<Box<dyn Engine>> = vec![Box::new(PortableEngine::new())];
        Gateway::with_tunnel(host, ports, Pool::new(256, 2048), engines, 1 << 24)
    });
    let gateways: Vec<Gateway> = gateways.collect();
    let two = "two of each";
    let gateways = gateways.try_into().unwrap_or_else(|_| panic!("{two}"));
    (gateways, Hosts::behind(handles.try_into().expect(two)), turns.try_into().expect(two))
}

/// However much it asks for, the worker has a turn for packets between any two commands; SAs and policies
/// that are flushed leave nothing, and no packet of the other tunnel is lost or late.
#[test]
fn a_daemon_gone_mad_takes_neither_turns_nor_packets_of_another_tunnel() {
    let (mut gateways, mut hosts, turns) = pair();
    hosts.send();
    hosts.receive(&gateways);
    let turns_of = || turns[MAD].load(Ordering::Relaxed);
    let (turns_before, commands_before) = (turns_of(), gateways[MAD].commands());
    let (mut mad, mut requests) = (Mad::at(OWN, 0), 0);
    for _ in 0..ROUNDS {
        let before = gateways[MAD].commands();
        // They are under way while it raves.
        hosts.send();
        for _ in 0..IN_A_ROUND {
            for madness in ALL {
                gateways[MAD].hears(&mad.asks(madness));
            }
        }
        let asked = (IN_A_ROUND * ALL.len()) as u64;
        let made = gateways[MAD].commands() - before;
        assert!((1..=COMMANDS * asked).contains(&made), "{made} commands for {asked} requests");
        requests += asked;
        for flush in [Madness::NoSas, Madness::NoPolicies] {
            gateways[MAD].hears(&mad.asks(flush));
        }
        assert_eq!(gateways[MAD].negotiated(), [0; 2], "all was flushed");
        hosts.receive(&gateways);
    }
    let (turns, commands) = (turns_of() - turns_before, gateways[MAD].commands() - commands_before);
    // The last command may have been taken before the turn that counts.
    assert!(turns + 1 >= commands, "{commands} commands in {turns} turns");
    assert!(commands > requests, "{commands} commands, {requests} requests");
    for gateway in &gateways {
        assert_eq!(gateway.drops(), []);
    }
}

/// They are nothing to the worker, and are bounded.
#[test]
fn a_million_spis_cost_a_worker_nothing() {
    let (mut gateways, mut hosts, _) = pair();
    let mut mad = Mad::at(OWN, 0);
    let before = gateways[MAD].commands();
    hosts.send();
    let given = (0..WANTED).filter(|_| match gateways[MAD].answers(&mad.asks(Madness::Spi)) {
        Ok(spi) => spi.is_some(),
        Err((errno, text)) => {
            assert_eq!(errno, -12, "{text}");
            false
        }
    });
    assert_eq!(given.count(), GIVEN);
    gateways[MAD].hears(&mad.asks(Madness::NoSas));
    assert_eq!(gateways[MAD].commands(), before, "reservations are the control plane's alone");
    hosts.receive(&gateways);
    assert!(gateways[MAD].answers(&mad.asks(Madness::Spi)).is_ok(), "there is room again");
}

/// How long each kind of madness lasts, in turn with the others, and how often.
const TURN: Duration = Duration::from_secs(1);
const TURNS: usize = 5;
/// Bytes of each packet.
const BYTES: usize = 1400;
/// What it adds before it flushes all.
const BEFORE_FLUSH: usize = 1000;

/// For each second: packets that the worker sealed, requests that were answered, commands that it was sent.
struct Rates {
    packets: f64,
    requests: f64,
    commands: f64,
}

fn turn(gateway: &mut Gateway, mad: &mut Mad, sent: &dyn Fn() -> u64, kinds: &[Madness]) -> Rates {
    let (began, packets, commands) = (Instant::now(), sent(), gateway.commands());
    let mut requests = 0_u32;
    while began.elapsed() < TURN {
        if kinds.is_empty() {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        for madness in kinds.iter().cycle().take(BEFORE_FLUSH) {
            // A refusal is an answer, too.
            let _ = gateway.answers(&mad.asks(*madness));
        }
        for flush in [Madness::NoSas, Madness::NoPolicies] {
            gateway.hears(&mad.asks(flush));
        }
        requests += u32::try_from(BEFORE_FLUSH + 2).expect("few");
    }
    let seconds = began.elapsed().as_secs_f64();
    let rate = |now: u64, before: u64| (now - before) as f64 / seconds;
    Rates {
        packets: rate(sent(), packets),
        requests: f64::from(requests) / seconds,
        commands: rate(gateway.commands(), commands),
    }
}

fn idle_gateway() -> Gateway {
    let [protected, unprotected] =
        ["protected", "unprotected"].map(|name| MemoryPort::with_handle(name, 1).0);
    let ports = PortPair { protected: Box::new(protected), unprotected: Box::new(unprotected) };
    Gateway::start(ports, Pool::new(64, 2048), vec![Box::new(PortableEngine::new())], 2 << 24)
}

/// One worker, which seals packets that come without end, and the daemon on another core.
#[test]
#[ignore = "a measurement: make bench-ike"]
fn rate_beside_a_daemon_gone_mad() {
    let (numbered, fate) = Numbered::new(MAD, BYTES);
    let ports = PortPair { protected: Box::new(numbered), unprotected: Box::new(LoopPort::discard("sink")) };
    let mut engines: Vec<Box<dyn Engine>> = Vec::new();
    if let Ok(vaes) = VaesEngine::open() {
        engines.push(Box::new(vaes));
    }
    engines.push(Box::new(PortableEngine::new()));
    let gateway = Gateway::with_tunnel(MAD, ports, Pool::new(4096, 2048), engines, 1 << 24);
    let sent = || fate.sent.load(Ordering::Relaxed);
    let mut mad = Mad::at(OWN, 0);
    const SAS: [Madness; 2] = [Madness::Policy, Madness::Sa];
    // The same at a gateway whose worker has no packets: what a busy neighbour core costs by itself.
    let kinds: [(&str, &[Madness], usize); 7] = [
        ("none", &[], 0),
        ("SPIs, flushed", &[Madness::Spi], 0),
        ("the same at another gateway", &[Madness::Spi], 1),
        ("policies and SAs, added and flushed", &SAS, 0),
        ("the same at another gateway", &SAS, 1),
        ("all, flushed all the time", &ALL, 0),
        ("the same at another gateway", &ALL, 1),
    ];
    let mut gateways = [gateway, idle_gateway()];
    turn(&mut gateways[0], &mut mad, &sent, &[]);
    let dropped = gateways[0].drops();
    let mut measured = [const { Vec::new() }; 7];
    for _ in 0..TURNS {
        for (all, (_, kinds, at)) in measured.iter_mut().zip(kinds) {
            all.push(turn(&mut gateways[at], &mut mad, &sent, kinds));
        }
    }
    let [gateway, _] = &gateways;
    assert_eq!(gateway.drops(), dropped, "no packet is lost");
    for (all, (name, ..)) in measured.iter().zip(kinds) {
        let of = |rate: fn(&Rates) -> f64| median(all.iter().map(rate).collect());
        println!(
            "mad: {name}: {:.3} million packets, {:.0} requests, {:.0} commands to the worker a second",
            of(|rates| rates.packets) / 1e6,
            of(|rates| rates.requests),
            of(|rates| rates.commands)
        );
    }
}

//! A gateway that is offered packets at a rate: what it carries, how long they are in it, and who did them.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use testudo_crypto::{Engine, Suite};
use testudo_gateway::{Clock, ManualClock};
use testudo_ipsec::Moment;
use testudo_port_memory::{Packets, SinkHandle};

use super::run::{End, Plan, by_peer, reversed};
use super::stay::Time;
use crate::bench::case::Way;
use crate::bench::error::Wrong;
use crate::bench::load::packets;
use crate::generator::Latency;

/// What the worker spends on a packet beside its cryptography, on the clock that is set.
const PACKET: Duration = Duration::from_nanos(60);
/// A look at an engine that has not ended anything, on that clock.
const LOOK: Duration = Duration::from_nanos(50);
/// After so many turns without a packet none is expected any more.
const QUIET_TURNS: u32 = 20_000_000;
/// The first packets are not measured: one in so many.
const WARM: usize = 4;
/// Where an SA's SPI and a host's address are.
const SPI_AT: usize = 20;
const SOURCE_AT: usize = 12;
const DESTINATION_AT: usize = 16;
/// The first tunnel's SPI and host; the next one's SPI is two more, and its host one.
const FIRST_SPI: u32 = 0x10_0000;
const FIRST_HOST: u32 = 0xAC10_0000;

/// What comes to both ports.
pub(super) struct Feeds {
    originals: Packets,
    sealed: Packets,
    /// The tunnel of each of the originals, in order.
    tunnels: Vec<usize>,
    counts: [usize; 2],
}

fn word(packet: &[u8], at: usize) -> Option<u32> {
    packet.get(at..)?.first_chunk().copied().map(u32::from_be_bytes)
}

impl Feeds {
    /// So many packets, sealed by `peer` where they come in.
    pub(super) fn new(plan: &Plan, all: usize, peer: Box<dyn Engine>) -> Result<Self, Wrong> {
        let originals = packets(plan.suites, plan.size, plan.sas).map_err(|error| error.to_string())?;
        let counts = match plan.way {
            Some(Way::Outbound) => [all, 0],
            Some(Way::Inbound) => [0, all],
            None => [all - all / 2, all / 2],
        };
        let sealed = by_peer(plan, peer, true, reversed(&originals), counts[1])?;
        let host = |(head, _): (&[u8], &[u8])| word(head, DESTINATION_AT)?.checked_sub(FIRST_HOST);
        let tunnels: Option<Vec<u32>> = originals.iter().map(host).collect();
        let tunnels = tunnels.ok_or("a packet is no tunnel's")?.into_iter().map(|of| of as usize).collect();
        Ok(Self { originals, sealed: sealed.into(), tunnels, counts })
    }

    pub(super) fn mean_bytes(&self) -> f64 {
        self.originals.bytes() as f64 / self.originals.len().max(1) as f64
    }

    fn all(&self) -> usize {
        self.counts.iter().sum()
    }
}

/// What came of it.
#[derive(Debug, Clone)]
pub(super) struct Carried {
    pub(super) per_second: f64,
    pub(super) p50_us: Option<f64>,
    pub(super) p99_us: Option<f64>,
    /// The share of the jobs that each engine did, where that is counted.
    pub(super) shares: Option<BTreeMap<&'static str, f64>>,
}

/// What is offered, and how much of it was.
struct Offer<'a> {
    feeds: &'a Feeds,
    per_second: f64,
    asked: usize,
    left: [usize; 2],
}

impl Offer<'_> {
    /// How many are due after so long.
    fn due(&self, elapsed: Duration) -> usize {
        let due = whole(elapsed.as_secs_f64() * self.per_second) + 1;
        usize::try_from(due).unwrap_or(usize::MAX).min(self.feeds.all())
    }

    /// Lets so many more come.
    fn ask(&mut self, count: usize, end: &End, inside: &mut Inside) {
        let Self { feeds, per_second, asked, left } = self;
        for _ in 0..count {
            // In turns, as far as there are any.
            let direction = usize::from(left[0] == 0 || *asked % 2 == 1 && left[1] > 0);
            let place = feeds.counts[direction] - left[direction];
            let tunnel = feeds.tunnels.get(place % feeds.tunnels.len().max(1)).copied().unwrap_or(0);
            inside.came(direction, tunnel, whole(*asked as f64 * 1e9 / *per_second));
            left[direction] -= 1;
            *asked += 1;
            end.demands[direction].ask(1);
        }
    }
}

/// When packets came that have not left, by direction and tunnel: each SA keeps its order.
struct Inside {
    came: [Vec<VecDeque<u64>>; 2],
    latency: Latency,
}

impl Inside {
    fn new(sas: u32) -> Self {
        let each = || vec![VecDeque::new(); sas as usize];
        Self { came: [each(), each()], latency: Latency::default() }
    }

    fn came(&mut self, direction: usize, tunnel: usize, due_ns: u64) {
        let of = self.came.get_mut(direction).and_then(|tunnels| tunnels.get_mut(tunnel));
        of.into_iter().for_each(|came| came.push_back(due_ns));
    }

    /// Takes note of what has left; an error if it never came.
    fn left(&mut self, sinks: &[SinkHandle; 2], now_ns: u64, counts: bool) -> Result<(), Wrong> {
        let [opened, sealed] = sinks;
        let outbound = sealed.take().into_iter().map(|packet| (0, word(&packet, SPI_AT), FIRST_SPI, 2));
        let inbound = opened.take().into_iter().map(|packet| (1, word(&packet, SOURCE_AT), FIRST_HOST, 1));
        for (direction, number, first, step) in outbound.chain(inbound) {
            let tunnel = number.and_then(|number| number.checked_sub(first)).map(|number| number / step);
            let tunnels = self.came.get_mut(direction);
            let of = tunnels.zip(tunnel).and_then(|(tunnels, tunnel)| tunnels.get_mut(tunnel as usize));
            let due_ns = of.and_then(VecDeque::pop_front).ok_or("a packet left that never came")?;
            if counts {
                self.latency.record(now_ns.saturating_sub(due_ns));
            }
        }
        Ok(())
    }
}

/// The clock of a model for who waits for an engine: each look takes a little.
struct Looking(ManualClock);

impl Clock for Looking {
    fn now(&self) -> Moment {
        self.0.advance(LOOK);
        self.0.now()
    }
}

/// Has a gateway measure its engines before packets come, as it does at its start.
fn measure(end: &mut End, time: &Time, suites: &[Suite]) {
    drop(match time {
        Time::Model(clock) => {
            end.worker.set_placement_clock(Box::new(clock.clone()));
            end.worker.measure_engines_by(suites, &Looking(clock.clone()))
        }
        Time::System(_) => end.worker.measure_engines(suites),
    });
}

/// A number of packets or nanoseconds, without its fraction.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "neither negative nor beyond hours"
)]
fn whole(number: f64) -> u64 {
    number as u64
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The engine of each job, where there is one, or they are placed by cost or go to a deep engine first. Of
/// others, which go to the first engine that does their suite, nobody counts whose they were.
fn shares(end: &End, names: &[&'static str], all: usize) -> Option<BTreeMap<&'static str, f64>> {
    let counters = end.worker.counters();
    let mut shares = BTreeMap::new();
    if let Some(placed) = counters.shares() {
        let mut done: BTreeMap<&'static str, u64> = BTreeMap::new();
        for row in placed.rows {
            *done.entry(row.engine).or_default() += row.total().saturating_sub(row.passed_on);
        }
        let sum = done.values().sum::<u64>().max(1) as f64;
        shares.extend(done.into_iter().map(|(name, jobs)| (name, jobs as f64 / sum)));
        return Some(shares);
    }
    let deep = counters.scheduled().next().map(|(_, scheduled)| scheduled.packets as f64 / all.max(1) as f64);
    let first = deep.or((names.len() == 1).then_some(1.0))?.min(1.0);
    for (name, share) in names.iter().zip([first, 1.0 - first]) {
        *shares.entry(*name).or_default() += share;
    }
    Some(shares)
}

/// Offers packets at a rate. What is not taken waits before the port, and its time counts. The rate is that
/// until the last packet was asked for: how long packets stay in the gateway is no part of it.
pub(super) fn carry(
    plan: &Plan,
    feeds: &Feeds,
    engines: Vec<Box<dyn Engine>>,
    time: Time,
    per_second: f64,
    suites: &[Suite],
) -> Result<Carried, Wrong> {
    let names: Vec<&'static str> = engines.iter().map(|engine| engine.name()).collect();
    let both = [feeds.originals.clone(), feeds.sealed.clone()];
    let gathering = Some((plan.formation, plan.settings));
    let mut end = End::new(plan, Way::Outbound, engines, time.clone(), both, gathering)?;
    measure(&mut end, &time, suites);
    let all = feeds.all();
    end.keep_all(all);
    let mut inside = Inside::new(plan.sas);
    let mut offer = Offer { feeds, per_second, asked: 0, left: feeds.counts };
    let start = time.look();
    let (mut began, mut last, mut quiet) = (None, None, 0);
    loop {
        let now = time.look().since(start);
        let sent = usize::try_from(end.sent()).unwrap_or(usize::MAX);
        let room = plan.window().saturating_sub(offer.asked - sent.min(offer.asked));
        offer.ask(room.min(offer.due(now).saturating_sub(offer.asked)), &end, &mut inside);
        if offer.asked == all && last.is_none() {
            last = Some((sent, now));
        }
        let moved = end.turn()?;
        if let Time::Model(clock) = &time {
            clock.advance(PACKET * u32::try_from(moved).unwrap_or(u32::MAX));
        }
        let (sent, now) = (usize::try_from(end.sent()).unwrap_or(usize::MAX), time.look().since(start));
        inside.left(&end.sinks, nanoseconds(now), began.is_some())?;
        if began.is_none() && sent >= all / WARM {
            began = Some((sent, now));
        }
        quiet = if moved > 0 { 0 } else { quiet + 1 };
        if quiet > 0 {
            end.rest();
        }
        if quiet > QUIET_TURNS || end.worker.pool().drops().total() > 0 {
            return Err(end.loss(all));
        }
        if sent >= all {
            let (first, from) = began.unwrap_or_default();
            let is_counted = |(sent, _): &(usize, Duration)| *sent > first;
            let (last, to) = last.filter(is_counted).unwrap_or((sent, now));
            let per_second = (last - first) as f64 / to.saturating_sub(from).as_secs_f64().max(1e-9);
            let shares = shares(&end, &names, all);
            let [p50_us, p99_us] = [0.5, 0.99].map(|share| inside.latency.quantile_us(share));
            return Ok(Carried { per_second, p50_us, p99_us, shares });
        }
    }
}

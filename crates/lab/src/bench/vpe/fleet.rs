//! Several workers that are measured together, and what they share.

use std::time::{Duration, Instant};

use testudo_crypto::Engine;
use testudo_engine_cores::{CoresConfig, CoresEngine};
use testudo_gateway::{Clock, PortPair, SystemClock, Worker};
use testudo_ipsec::MAX_WINDOW;
use testudo_packet::Port;
use testudo_port_memory::{Demand, LoopPort, Packets, SinkHandle, SinkPort};

use super::Setup;
use super::gateways::{self, Tunnel, apply, through};
use super::rings::RingEngine;
use super::threads::{PATIENCE, Share, Until, run, settle};
use crate::bench::case::{Carrier, Case, Suites, Way};
use crate::bench::engines::Engines;
use crate::bench::error::Wrong;
use crate::bench::judge;

/// Packets that each worker opens before tunnels are installed again.
const RING: usize = 4096;
/// Of these, the first ones are not measured: they make the windows of VPE, which a peer makes once for a
/// key.
const WARM: usize = 512;
/// Packets of each worker that the judge sees, before and after what is measured.
const JUDGED: u64 = 256;
/// The octet of an inner source address that says whose flow it is.
const WORKER_AT: usize = 13;

/// How workers divide the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Division {
    /// Gateways that have nothing in common, each with an SA of ESP: what "linear" is.
    Independent,
    /// One SA of VPE: each worker has windows of its own.
    Vpe,
    /// One SA of ESP: numbers and window are shared.
    Shared,
    /// An SA of ESP for each worker, under one tunnel (RFC 9611).
    PerWorker,
    /// The paper's own parallel ESP: one thread numbers, the others encrypt.
    Rings,
    /// One worker with an SA of ESP, whose packets the engine `cores` encrypts on the other cores, too.
    Cores,
}

impl Division {
    pub(super) fn carrier(self) -> Carrier {
        if self == Self::Vpe { Carrier::Vpe } else { Carrier::Esp }
    }

    /// Whether the gateway has one worker, and all other threads do cryptography for it.
    pub(super) fn has_one_worker(self) -> bool {
        matches!(self, Self::Rings | Self::Cores)
    }

    /// Threads of so many workers.
    pub(super) fn threads(self, workers: usize) -> usize {
        if self == Self::Rings { workers + 1 } else { workers }
    }
}

/// What is measured.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub(super) division: Division,
    pub(super) workers: usize,
    pub(super) way: Way,
    pub(super) inner_bytes: usize,
    pub(super) peer_window: u32,
}

impl Plan {
    fn case(&self, setup: &Setup<'_>) -> Case {
        let suites = Suites::One(setup.options.suite);
        Case { suites, ..setup.case(self.division.carrier(), self.way, self.inner_bytes) }
    }

    /// The tunnel of one worker: the same for all that share it.
    fn tunnel(&self, case: Case, worker: usize) -> Tunnel {
        let number = u8::try_from(worker).unwrap_or(u8::MAX);
        // Workers that are not equally fast may be a ring apart, and leave some numbers out.
        let window = u32::try_from(4 * self.workers * RING).unwrap_or(u32::MAX).next_power_of_two();
        let peer_window = self.peer_window;
        let replay_window = window.clamp(4096, MAX_WINDOW);
        let tunnel = Tunnel { replay_window, peer_window, ..Tunnel::of(case) };
        match self.division {
            Division::Independent => Tunnel { gateway: number, ..tunnel },
            Division::PerWorker => Tunnel { sa: number, ..tunnel },
            Division::Vpe | Division::Shared | Division::Rings | Division::Cores => tunnel,
        }
    }

    fn is_shared(&self) -> bool {
        matches!(self.division, Division::Vpe | Division::Shared) || self.division.has_one_worker()
    }

    /// How many workers of the gateway's kind there are: where others do the cryptography, one.
    fn gateway_workers(&self) -> usize {
        if self.division.has_one_worker() { 1 } else { self.workers }
    }
}

/// Workers, and the ends of their ports.
pub(super) struct Fleet {
    pub(super) plan: Plan,
    case: Case,
    workers: Vec<Worker>,
    sinks: Vec<SinkHandle>,
    /// Of what is opened.
    demands: Vec<Demand>,
    originals: Vec<Packets>,
    processors: Vec<usize>,
    /// Packets that the judge gets, by worker.
    kept: Vec<Vec<Vec<u8>>>,
}

impl Fleet {
    /// The gateway with its tunnels, or why there can be none.
    pub(super) fn new(setup: &Setup<'_>, plan: Plan, processors: &[usize]) -> Result<Self, Wrong> {
        let case = plan.case(setup);
        if let Some(refusal) = setup.engines.available[setup.engine].refusal(&case) {
            return Err(refusal);
        }
        let flows = |worker: usize| {
            let number = u8::try_from(worker).unwrap_or(u8::MAX);
            gateways::packets(&case, move |_, packet| packet[WORKER_AT] = number)
        };
        let count = plan.gateway_workers();
        let originals = (0..count).map(flows).collect::<Result<Vec<_>, Wrong>>()?;
        let (feeds, demands) = match plan.way {
            Way::Outbound => (originals.clone(), false),
            Way::Inbound => (sealed(setup, plan, &originals)?, true),
        };
        let mut fleet = Self {
            plan,
            case,
            workers: Vec::new(),
            sinks: Vec::new(),
            demands: Vec::new(),
            originals,
            processors: processors.to_vec(),
            kept: vec![Vec::new(); count],
        };
        for feed in feeds {
            let feed = if demands {
                let (port, demand) = LoopPort::on_demand("ring", feed);
                fleet.demands.push(demand);
                port
            } else {
                LoopPort::new("load", feed)
            };
            let engine = fleet.engine(setup)?;
            fleet.add(feed, engine);
        }
        fleet.install(false)?;
        Ok(fleet)
    }

    fn engine(&self, setup: &Setup<'_>) -> Result<Box<dyn Engine>, Wrong> {
        let open = || setup.engines.available[setup.engine].open();
        // The first processor is that of the thread which numbers.
        let others = |count| self.processors.iter().copied().cycle().skip(1).take(count).collect::<Vec<_>>();
        match (self.plan.division, self.plan.workers) {
            (Division::Rings, count) => {
                let engines = (0..count).map(|_| open()).collect::<Result<Vec<_>, Wrong>>()?;
                Ok(Box::new(RingEngine::start(engines, open()?, &others(count))?))
            }
            // The worker has a share in the cryptography, and is one of them.
            (Division::Cores, count @ 2..) => {
                let config = CoresConfig { processors: others(count - 1), ..CoresConfig::of(count - 1) };
                let mut make = || Ok(vec![setup.engines.available[setup.engine].opened()?]);
                Ok(Box::new(CoresEngine::open(&config, &mut make).map_err(|e| e.to_string())?))
            }
            _ => open(),
        }
    }

    fn add(&mut self, feed: LoopPort, engine: Box<dyn Engine>) {
        let (sink_port, sink) = SinkPort::new("sink");
        let (feed, sink_port): (Box<dyn Port>, Box<dyn Port>) = (Box::new(feed), Box::new(sink_port));
        let ports = match self.plan.way {
            Way::Outbound => PortPair { protected: feed, unprotected: sink_port },
            Way::Inbound => PortPair { protected: sink_port, unprotected: feed },
        };
        let mut worker = gateways::worker(&self.case, ports, engine);
        if !self.workers.is_empty() && self.plan.is_shared() {
            worker.follow();
        }
        self.workers.push(worker);
        self.sinks.push(sink);
    }

    fn install(&mut self, again: bool) -> Result<(), Wrong> {
        let update = |worker: usize| {
            let tunnel = self.plan.tunnel(self.case, worker);
            if again { tunnel.again(self.plan.way) } else { tunnel.update(self.plan.way) }
        };
        if self.plan.is_shared() {
            let all = update(0)?;
            return apply(&mut self.workers, all);
        }
        let updates = (0..self.workers.len()).map(update).collect::<Result<Vec<_>, Wrong>>()?;
        self.workers.chunks_mut(1).zip(updates).try_for_each(|(worker, update)| apply(worker, update))
    }

    fn keep(&mut self, each: usize) {
        self.sinks.iter().for_each(|sink| sink.keep(usize::from(each > 0), each));
    }

    fn take(&mut self) {
        for (kept, sink) in self.kept.iter_mut().zip(&self.sinks) {
            kept.extend(sink.take());
        }
    }

    /// Packets for the judge, which make caches warm, too.
    fn judged(&mut self) -> Result<(), Wrong> {
        match self.plan.way {
            Way::Outbound => {
                self.keep(usize::try_from(JUDGED).unwrap_or(0));
                run(
                    &mut self.workers,
                    self.plan.way,
                    Until::Sent { warm: 0, all: JUDGED },
                    &self.processors,
                )?;
            }
            Way::Inbound => {
                self.keep(RING);
                self.slice(Duration::ZERO)?;
            }
        }
        self.take();
        self.keep(0);
        Ok(())
    }

    pub(super) fn warm_up(&mut self) -> Result<(), Wrong> {
        self.judged()
    }

    /// Runs all workers: for so long, or until they have opened what there is.
    pub(super) fn slice(&mut self, duration: Duration) -> Result<Vec<Share>, Wrong> {
        let until = match self.plan.way {
            Way::Outbound => Until::Elapsed(duration),
            Way::Inbound => {
                self.install(true)?;
                self.demands.iter().for_each(|demand| demand.ask(RING as u64));
                Until::Sent { warm: WARM as u64, all: RING as u64 }
            }
        };
        run(&mut self.workers, self.plan.way, until, &self.processors)
    }

    /// A peer with one worker opens what was sealed before and after, or what was opened is as it was before
    /// it was sealed; no packet is lost.
    pub(super) fn check(mut self, engines: &Engines) -> Result<(), Wrong> {
        self.judged()?;
        settle(&mut self.workers)?;
        for worker in &self.workers {
            if worker.pool().drops().total() > 0 {
                return Err(format!("packets are missing; drops: {}", gateways::drops(worker)));
            }
        }
        for (number, (kept, originals)) in self.kept.iter().zip(&self.originals).enumerate() {
            let opened = match self.plan.way {
                Way::Inbound => kept.clone(),
                Way::Outbound => {
                    let tunnel = self.plan.tunnel(self.case, number);
                    let engine = engines.judge(&self.case).open()?;
                    let (packets, count): (Packets, _) = (kept.clone().into(), kept.len());
                    let (peer, opened) = through(&tunnel, Way::Inbound, engine, &packets, count)?;
                    if opened.len() != count {
                        return Err(format!(
                            "a peer refuses sealed packets; drops: {}",
                            gateways::drops(&peer)
                        ));
                    }
                    opened
                }
            };
            judge::compare(&opened, originals)?;
        }
        Ok(())
    }
}

/// What each worker of a gateway like this one seals, for the same worker of another one to open.
fn sealed(setup: &Setup<'_>, plan: Plan, originals: &[Packets]) -> Result<Vec<Packets>, Wrong> {
    // Who encrypts makes no difference.
    let division = if plan.division.has_one_worker() { Division::Independent } else { plan.division };
    let plan = Plan { division, way: Way::Outbound, workers: originals.len(), ..plan };
    let mut fleet = Fleet {
        plan,
        case: plan.case(setup),
        workers: Vec::new(),
        sinks: Vec::new(),
        demands: Vec::new(),
        originals: Vec::new(),
        processors: Vec::new(),
        kept: Vec::new(),
    };
    for packets in originals {
        let engine = fleet.engine(setup)?;
        fleet.add(LoopPort::new("load", packets.clone()).with_limit(RING as u64), engine);
    }
    fleet.install(false)?;
    fleet.keep(RING);
    let clock = SystemClock::default();
    let begun = Instant::now();
    let is_done = |worker: &Worker| worker.unprotected_port().counters().tx_packets >= RING as u64;
    // In turns: one that has numbers in flight must not keep the others waiting.
    while !fleet.workers.iter().all(is_done) && begun.elapsed() < PATIENCE {
        for worker in &mut fleet.workers {
            worker.turn(clock.now()).map_err(|e| e.to_string())?;
        }
    }
    let rings: Vec<Packets> = fleet.sinks.iter().map(|sink| sink.take().into()).collect();
    match rings.iter().all(|ring| ring.len() == RING) {
        true => Ok(rings),
        false => Err("packets are missing of those to open".to_owned()),
    }
}

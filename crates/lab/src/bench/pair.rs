//! Two gateways in series on one thread: the first seals what comes, the second opens it.
//!
//! ```text
//!   feed ─► worker that seals ═══ wire ═══► worker that opens ─► sink
//! ```

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use testudo_crypto::{Engine, Suite};
use testudo_gateway::{Candidate, Clock, OffloadMode, PortPair, SystemClock, Worker};
use testudo_packet::{Batch, Pool, Port, PortCounters, PortError};

use super::case::{Carrier, Case, Order, Size, Suites, Way};
use super::engines::{Available, Engines};
use super::error::{BenchError, Wrong};
use super::tunnels::{self, OVERHEAD_BYTES};
use crate::supply::Supply;

/// Buffers of each gateway's pool: more than are ever in flight.
const BUFFERS: usize = 4096;
const BUFFER_BYTES: usize = 2048;
/// Packets on the wire at most; then the first gateway waits.
const WIRE_PACKETS: usize = 1024;
/// Packets that are given at once.
const BURST_PACKETS: usize = 32;

/// The engines that pairs of gateways may have.
pub(crate) struct PairEngines {
    engines: Engines,
    wanted: Option<String>,
}

impl PairEngines {
    /// Starts the engines; `wanted` is the only one to be used, or else the first that does a suite is.
    pub(crate) fn start(candidates: Vec<Candidate>, wanted: Option<&str>) -> Result<Self, BenchError> {
        let names: Vec<String> = wanted.map(str::to_owned).into_iter().collect();
        Ok(Self { engines: Engines::start(candidates, &names)?, wanted: names.into_iter().next() })
    }

    /// The index of the engine that does `case`, or why none does.
    fn choose(&self, case: &Case) -> Result<usize, BenchError> {
        let is_wanted = |name: &str| self.wanted.as_deref().is_none_or(|wanted| wanted == name);
        let mut refused = Vec::new();
        for (index, engine) in self.engines.available.iter().enumerate() {
            if is_wanted(engine.name()) {
                match engine.refusal(case) {
                    None => return Ok(index),
                    Some(reason) => refused.push(reason),
                }
            }
        }
        Err(BenchError::Engine(format!("nothing can be measured: {}", refused.join("; "))))
    }

    /// The name of the engine that does `settings`.
    pub(crate) fn name(&self, settings: &PairSettings) -> Result<&'static str, BenchError> {
        Ok(self.engines.available[self.choose(&settings.case())?].name())
    }

    /// Why an engine takes nothing off the worker's processor, of those that may.
    pub(crate) fn why_on_the_processor(&self) -> Option<&'static str> {
        self.engines.available.iter().find_map(Available::why_on_the_processor)
    }

    /// That engine, opened anew.
    pub(crate) fn open(&self, settings: &PairSettings) -> Result<Box<dyn Engine>, BenchError> {
        let available = &self.engines.available[self.choose(&settings.case())?];
        available.open().map_err(BenchError::Engine)
    }
}

/// What both gateways have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PairSettings {
    /// The suite of their tunnels.
    pub(crate) suite: Suite,
    /// How many tunnels there are.
    pub(crate) sas: u32,
    /// The longest inner packet, in bytes.
    pub(crate) longest_bytes: usize,
    /// The MTU of the path between them, on which what is longer is fragmented after it was sealed. `None`
    /// for one that carries all.
    pub(crate) path_mtu: Option<u16>,
}

impl PairSettings {
    fn case(&self) -> Case {
        Case {
            suites: Suites::One(self.suite),
            way: Way::Outbound,
            size: Size::Bytes(self.longest_bytes),
            sas: self.sas,
            policies: self.sas,
            carrier: Carrier::Esp,
            order: Order::Length,
            esn: true,
            engine: 0,
            placed: 0,
        }
    }
}

/// Both gateways and what is between them.
pub(crate) struct GatewayPair {
    workers: [Worker; 2],
    supplies: [Supply; 2],
    clock: SystemClock,
    wire: Wire,
}

impl GatewayPair {
    /// Gateways of which the first takes packets from `feed` and the second gives them to `sink`.
    pub(crate) fn build(
        engines: &PairEngines,
        settings: &PairSettings,
        feed: Box<dyn Port>,
        sink: Box<dyn Port>,
    ) -> Result<Self, BenchError> {
        let engine = engines.name(settings)?;
        let case = || format!("two gateways, {}, {engine}", settings.case());
        let invalid = |what: Wrong| BenchError::Invalid { case: case(), what };
        let wire = Wire::default();
        let end = || Box::new(WirePort::new(&wire));
        let first = PortPair { protected: feed, unprotected: end() };
        let second = PortPair { protected: sink, unprotected: end() };
        let open = |ports, way| {
            let engine = engines.open(settings).map_err(|error| error.to_string())?;
            gateway(settings, ports, engine, way)
        };
        let (sealing, outbound) = open(first, Way::Outbound).map_err(invalid)?;
        let (opening, inbound) = open(second, Way::Inbound).map_err(invalid)?;
        let clock = SystemClock::default();
        Ok(Self { workers: [sealing, opening], supplies: [outbound, inbound], clock, wire })
    }

    /// One turn of each gateway; returns how many packets moved.
    #[inline]
    pub(crate) fn turn(&mut self) -> Result<usize, Wrong> {
        let mut moved = 0;
        for (worker, supply) in self.workers.iter_mut().zip(&mut self.supplies) {
            let now = self.clock.now();
            moved += worker.turn(now).map_err(|error| error.to_string())?;
            supply.serve(now);
        }
        Ok(moved)
    }

    /// Whether packets are under way.
    pub(crate) fn is_busy(&self) -> bool {
        self.workers.iter().any(has_work) || self.wire.is_busy()
    }
}

/// Whether packets are under way in a worker.
pub(crate) fn has_work(worker: &Worker) -> bool {
    worker.is_busy() || worker.is_waiting() != (false, false)
}

/// A gateway that seals or opens what `settings` say, and who leases its sequence numbers.
pub(crate) fn gateway(
    settings: &PairSettings,
    ports: PortPair,
    engine: Box<dyn Engine>,
    way: Way,
) -> Result<(Worker, Supply), Wrong> {
    let case = settings.case();
    let mut worker = Worker::new(ports, pool(settings.longest_bytes), vec![engine], Box::default());
    worker.set_offload_mode(OffloadMode::Always);
    worker.set_formation(case.order.formation());
    let supply = tunnels::install_over(&mut worker, &case, way, settings.path_mtu)?;
    Ok((worker, supply))
}

/// The buffers of a gateway, for inner packets of at most so many bytes.
pub(crate) fn pool(longest_bytes: usize) -> Pool {
    Pool::new(BUFFERS, BUFFER_BYTES.max(longest_bytes + OVERHEAD_BYTES))
}

/// Packets between the gateways, in bursts: their bytes one after the other, and the length of each. Bytes
/// are copied on the way in and on the way out, as NICs do.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wire(Arc<Mutex<OnWire>>);

#[derive(Debug, Default)]
struct OnWire {
    bursts: VecDeque<Burst>,
    spare: Vec<Burst>,
    packets: usize,
}

#[derive(Debug, Default)]
struct Burst {
    bytes: Vec<u8>,
    lengths: Vec<usize>,
}

impl Wire {
    /// Both ends are on one thread: nobody waits for this.
    fn lock(&self) -> MutexGuard<'_, OnWire> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether packets are on it.
    pub(crate) fn is_busy(&self) -> bool {
        self.lock().packets > 0
    }
}

/// An end of the wire.
pub(crate) struct WirePort {
    wire: Wire,
    /// Of the burst that came last: bytes and packets that were given already.
    current: (Burst, usize, usize),
    counters: PortCounters,
}

impl WirePort {
    pub(crate) fn new(wire: &Wire) -> Self {
        Self { wire: wire.clone(), current: (Burst::default(), 0, 0), counters: PortCounters::default() }
    }
}

impl Port for WirePort {
    fn name(&self) -> &'static str {
        "wire"
    }

    /// Only the gateway that opens receives: what it sent itself would come back, and it sends nothing.
    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        if self.counters.tx_packets > 0 {
            return Ok(0);
        }
        let mut wire = self.wire.lock();
        let mut received = 0;
        while received < BURST_PACKETS && !batch.is_full() {
            let (burst, from, number) = &mut self.current;
            let Some(&length) = burst.lengths.get(*number) else {
                let Some(next) = wire.bursts.pop_front() else { break };
                let (mut used, ..) = std::mem::replace(&mut self.current, (next, 0, 0));
                used.bytes.clear();
                used.lengths.clear();
                wire.spare.push(used);
                continue;
            };
            let Some(mut buffer) = pool.pop() else { break };
            let packet = burst.bytes.get(*from..*from + length).unwrap_or_default();
            let area = buffer.receive_area();
            let fits = packet.len().min(area.len());
            area[..fits].copy_from_slice(&packet[..fits]);
            buffer.set_len(fits);
            (*from, *number) = (*from + length, *number + 1);
            self.counters.rx_bytes += fits as u64;
            batch.push(buffer);
            received += 1;
        }
        wire.packets -= received;
        self.counters.rx_packets += received as u64;
        self.counters.rx_calls += u64::from(received > 0);
        Ok(received)
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let mut wire = self.wire.lock();
        let taken = batch.len();
        if taken == 0 || wire.packets >= WIRE_PACKETS {
            return Ok(0);
        }
        let mut burst = wire.spare.pop().unwrap_or_default();
        for buffer in batch.iter() {
            burst.bytes.extend_from_slice(buffer.bytes());
            burst.lengths.push(buffer.len());
        }
        self.counters.tx_bytes += burst.bytes.len() as u64;
        wire.bursts.push_back(burst);
        wire.packets += taken;
        pool.recycle_all(batch);
        self.counters.tx_packets += taken as u64;
        self.counters.tx_calls += 1;
        Ok(taken)
    }

    fn joins(&self) -> bool {
        false
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}

//! A gateway whose workers open the packets of one SA of ESP, in order or not, and what is seen of it.

use std::sync::{Arc, PoisonError};

use testudo_gateway::{PortPair, SaCounts, Update, Worker};
use testudo_ipsec::{MAX_WINDOW, Moment, ReleaseCost};
use testudo_port_memory::{Packets, SinkHandle, SinkPort};

use super::Setup;
use super::gateways::{self, Tunnel, through};
use super::line::{BLOCK, Line, LineEnd, LinePort, Records, Released};
use super::threads::{Share, Until, run, settle};
use crate::bench::case::{Carrier, Case, Suites, Way};
use crate::bench::error::Wrong;
use crate::bench::judge;

/// Packets that each worker opens before the tunnel is installed again.
const RING: u64 = 128 * BLOCK;
/// Of these, the latency of the first ones is not measured.
const WARM: u64 = 8 * BLOCK;
/// Rates are of all of them: what waits when the first is counted would be released in no time.
const UNTIL: Until = Until::Sent { warm: 0, all: RING };

/// How a gateway releases what it has opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Release {
    InOrder,
    Unordered,
}

impl Release {
    /// What is compared, in turns.
    pub(super) const BOTH: [Self; 2] = [Self::InOrder, Self::Unordered];

    /// As `spread_inbound` calls it, and JSON.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::InOrder => "in-order",
            Self::Unordered => "unordered",
        }
    }
}

/// What a peer has sealed, for each worker those of its blocks.
pub(super) struct Lot {
    case: Case,
    tunnel: Tunnel,
    originals: Packets,
    sealed: Vec<Packets>,
}

impl Lot {
    pub(super) fn new(setup: &Setup<'_>, inner_bytes: usize, workers: usize) -> Result<Self, Wrong> {
        let suites = Suites::One(setup.options.suite);
        let case = Case { suites, ..setup.case(Carrier::Esp, Way::Inbound, inner_bytes) };
        let count = usize::try_from(RING).unwrap_or(0) * workers;
        let window = u32::try_from(2 * count).unwrap_or(u32::MAX).next_power_of_two();
        let tunnel = Tunnel { replay_window: window.min(MAX_WINDOW), ..Tunnel::of(case) };
        let originals = gateways::packets(&case, |_, _| {})?;
        let engine = setup.engines.available[setup.engine].open()?;
        let (_, all) = through(&tunnel, Way::Outbound, engine, &originals, count)?;
        if all.len() != count {
            return Err("packets are missing of those to open".to_owned());
        }
        let mut sealed = vec![Vec::new(); workers];
        let block = usize::try_from(BLOCK).unwrap_or(1);
        for (number, packet) in all.into_iter().enumerate() {
            sealed[number / block % workers].push(packet);
        }
        Ok(Self { case, tunnel, originals, sealed: sealed.into_iter().map(Packets::from).collect() })
    }
}

/// What was seen at the ports of all workers.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    /// From when a packet came until the port had it, in nanoseconds.
    latencies_ns: Vec<u64>,
    /// As the ports had them (RFC 4737).
    pub(super) arrived: u64,
    pub(super) reordered: u64,
    pub(super) longest_extent: u64,
    /// Times that the ring went on without a number that had not come.
    pub(super) passed_over: u64,
    /// Packets that waited in the ring for a later turn of their worker.
    pub(super) waited: u64,
}

impl Seen {
    pub(super) fn mean_ns(&self) -> f64 {
        self.latencies_ns.iter().sum::<u64>() as f64 / self.latencies_ns.len().max(1) as f64
    }

    /// The latency that 99 of 100 packets do not exceed.
    pub(super) fn p99_ns(&mut self) -> f64 {
        self.latencies_ns.sort_unstable();
        let last = (self.latencies_ns.len() * 99).div_ceil(100).saturating_sub(1);
        self.latencies_ns.get(last).copied().unwrap_or(0) as f64
    }

    /// Adds packets by their numbers, in the order in which the ports had them.
    fn add(&mut self, numbers: impl Iterator<Item = u64>) {
        // The highest number by each arrival: the earliest packet with a higher one is the first there.
        let mut highest: Vec<u64> = Vec::new();
        for number in numbers {
            let earliest = highest.partition_point(|before| *before <= number);
            if earliest < highest.len() {
                self.reordered += 1;
                self.longest_extent = self.longest_extent.max((highest.len() - earliest) as u64);
            }
            highest.push(number.max(highest.last().copied().unwrap_or(0)));
        }
        self.arrived += highest.len() as u64;
    }

    fn add_cost(&mut self, cost: ReleaseCost) {
        self.passed_over += cost.passed_over;
        self.waited += cost.waited;
    }
}

/// A gateway with several workers, and the ends of their ports.
pub(super) struct Gateway {
    tunnel: Tunnel,
    originals: Packets,
    line: Arc<Line>,
    workers: Vec<Worker>,
    sinks: Vec<SinkHandle>,
    records: Vec<Records>,
    processors: Vec<usize>,
    counts: Option<SaCounts>,
}

impl Gateway {
    pub(super) fn new(
        setup: &Setup<'_>,
        release: Release,
        lot: &Lot,
        processors: &[usize],
    ) -> Result<Self, Wrong> {
        let line = Line::new(lot.sealed.len());
        let (mut workers, mut sinks, mut records) = (Vec::new(), Vec::new(), Vec::new());
        for (number, sealed) in lot.sealed.iter().enumerate() {
            let engine = setup.engines.available[setup.engine].open()?;
            let (record, (sink_port, sink)) = (Records::default(), SinkPort::new("sink"));
            let end = LineEnd::new(Arc::clone(&line), sink_port, Arc::clone(&record));
            let port = LinePort::new(Arc::clone(&line), number, sealed.clone(), Arc::clone(&record));
            let ports = PortPair { protected: Box::new(end), unprotected: Box::new(port) };
            let mut worker = gateways::worker(&lot.case, ports, engine);
            if number > 0 {
                worker.follow();
            }
            if release == Release::InOrder {
                worker.release_in_order();
            }
            workers.push(worker);
            sinks.push(sink);
            records.push(record);
        }
        let (tunnel, originals) = (lot.tunnel, lot.originals.clone());
        let processors = processors.to_vec();
        let mut gateway = Self { tunnel, originals, line, workers, sinks, records, processors, counts: None };
        gateway.install(tunnel.update(Way::Inbound)?)?;
        Ok(gateway)
    }

    fn install(&mut self, update: Update) -> Result<(), Wrong> {
        for (_, installed) in Worker::update_all(&mut self.workers, update, Moment::default()) {
            self.counts = Some(installed.map_err(|e| e.to_string())?.inbound.counters);
        }
        Ok(())
    }

    /// Opens all there is, one packet every `pace_ns` nanoseconds, or at full load with 0.
    pub(super) fn slice(&mut self, pace_ns: u64) -> Result<Vec<Share>, Wrong> {
        self.install(self.tunnel.again(Way::Inbound)?)?;
        self.line.begin(pace_ns);
        run(&mut self.workers, Way::Inbound, UNTIL, &self.processors)
    }

    /// [`slice`](Self::slice) at a pace, and what was seen of it.
    pub(super) fn observe(&mut self, pace_ns: u64, seen: &mut Seen) -> Result<(), Wrong> {
        self.slice(pace_ns)?;
        let mut all: Vec<Released> = Vec::new();
        for record in &self.records {
            all.append(&mut record.lock().unwrap_or_else(PoisonError::into_inner).released);
        }
        all.sort_unstable_by_key(|released| released.order);
        let is_warm = |released: &&Released| released.place >= WARM * self.workers.len() as u64;
        seen.latencies_ns.extend(all.iter().filter(is_warm).map(|released| released.latency_ns));
        seen.add(all.iter().map(|released| released.place));
        seen.add_cost(self.counts.as_ref().and_then(SaCounts::release_cost).unwrap_or_default());
        Ok(())
    }

    /// What was opened is as it was before it was sealed, and no packet is lost.
    pub(super) fn check(mut self) -> Result<(), Wrong> {
        let count = usize::try_from(RING).unwrap_or(0);
        self.sinks.iter().for_each(|sink| sink.keep(1, count));
        self.slice(0)?;
        settle(&mut self.workers)?;
        for (worker, sink) in self.workers.iter().zip(&self.sinks) {
            let opened = sink.take();
            if worker.pool().drops().total() > 0 || opened.len() != count {
                return Err(format!("packets are missing; drops: {}", gateways::drops(worker)));
            }
            judge::compare(&opened, &self.originals)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(numbers: &[u64]) -> (u64, u64, u64) {
        let mut seen = Seen::default();
        seen.add(numbers.iter().copied());
        (seen.arrived, seen.reordered, seen.longest_extent)
    }

    /// RFC 4737 3.3 and 4.2: 3 and 4 come after 5; 4, 5 and 6 after 7 to 10.
    #[test]
    fn reordering_is_counted_as_rfc_4737_does() {
        assert_eq!(seen(&[1, 2, 3, 4, 5]), (5, 0, 0));
        assert_eq!(seen(&[1, 2, 5, 3, 4, 6]), (6, 2, 2));
        assert_eq!(seen(&[1, 2, 3, 7, 8, 9, 10, 4, 5, 6, 11]), (11, 3, 6));
        assert_eq!(seen(&[]), (0, 0, 0));
    }

    #[test]
    fn of_a_hundred_latencies_the_ninety_ninth_is_shown() {
        let mut seen = Seen { latencies_ns: (1..=100).rev().collect(), ..Seen::default() };
        assert_eq!((seen.p99_ns(), seen.mean_ns()), (99.0, 50.5));
        assert_eq!(Seen::default().p99_ns(), 0.0);
    }
}

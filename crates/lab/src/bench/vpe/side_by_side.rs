//! Gateways that take turns within one measurement.

use std::collections::BTreeSet;
use std::time::Duration;

use testudo_gateway::PortPair;
use testudo_packet::Port;
use testudo_port_memory::{Demand, LoopPort, Packets, SinkPort};

use super::placed::PlacedPort;
use crate::bench::case::{Case, Way};
use crate::bench::engines::Engines;
use crate::bench::error::Wrong;
use crate::bench::judge;
use crate::bench::load::packets;
use crate::bench::measure::ring_packets;
use crate::bench::subject::{Run, Subject};
use crate::traffic::median;

/// Before a gateway is measured: caches and predictors become warm.
const WARM_UP_PACKETS: usize = 256;
/// What of the packets of a slice that are opened is not measured: they make the windows of VPE, which a peer
/// makes once for a key.
const WARM_PART: usize = 4;
/// Packets that the judge sees, before and after what is measured.
const JUDGED: usize = 64;

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub(super) enum Effort {
    /// For at least so long, each gateway.
    Time(Duration),
    /// At least so many packets, each gateway.
    Packets(u64),
}

/// What a packet of one slice cost.
#[derive(Debug, Clone, Copy)]
struct Cost {
    /// In which the thread had the processor.
    seconds: f64,
    cycles: f64,
    /// The processors that the thread had before it and after it.
    processors: [usize; 2],
}

impl Cost {
    fn of(run: &Run) -> Self {
        let (elapsed, packets) = (run.elapsed.as_secs_f64(), run.packets as f64);
        // A clock of coarse steps may say that it did not run at all.
        let running = run.running.as_secs_f64().min(elapsed);
        let running = if running > 0.0 { running } else { elapsed };
        let cycles = run.ticks as f64 * (running / elapsed) / packets;
        Self { seconds: running / packets, cycles, processors: run.processors }
    }
}

/// One measurement of several gateways, in their order.
pub(super) struct Take {
    rates: Vec<f64>,
    cycles: Vec<f64>,
    /// Row: how many times as fast a gateway is as each.
    ratios: Vec<Vec<f64>>,
    /// The processors that the thread had, which is that of all of them.
    pub(super) processors: BTreeSet<usize>,
}

impl Take {
    fn of(lanes: &[Lane]) -> Self {
        let of = |lane: &Lane, figure: fn(&Cost) -> f64| {
            median(&lane.costs.iter().map(figure).collect::<Vec<_>>()).unwrap_or_default()
        };
        let ratio = |a: &Lane, b: &Lane| {
            let slices = a.costs.iter().zip(&b.costs).map(|(a, b)| b.seconds / a.seconds);
            median(&slices.collect::<Vec<_>>()).unwrap_or_default()
        };
        Self {
            rates: lanes.iter().map(|lane| 1.0 / of(lane, |cost| cost.seconds)).collect(),
            cycles: lanes.iter().map(|lane| of(lane, |cost| cost.cycles)).collect(),
            ratios: lanes.iter().map(|a| lanes.iter().map(|b| ratio(a, b)).collect()).collect(),
            processors: lanes.iter().flat_map(|lane| &lane.costs).flat_map(|cost| cost.processors).collect(),
        }
    }

    /// Packets per second of the processor's time.
    pub(super) fn rate(&self, lane: usize) -> f64 {
        self.rates.get(lane).copied().unwrap_or_default()
    }

    /// Of the time stamp counter, per packet.
    pub(super) fn cycles(&self, lane: usize) -> f64 {
        self.cycles.get(lane).copied().unwrap_or_default()
    }

    /// How many times as fast one gateway is as another: the median over slices.
    pub(super) fn ratio(&self, lane: usize, reference: usize) -> f64 {
        self.ratios.get(lane).and_then(|row| row.get(reference)).copied().unwrap_or_default()
    }
}

/// A gateway that does the same again and again.
struct Lane {
    case: Case,
    subject: Subject,
    originals: Packets,
    /// For what it opens: its windows take each packet of the ring once.
    demand: Option<Demand>,
    /// Packets of a slice.
    slice: usize,
    sealed: Vec<Vec<u8>>,
    costs: Vec<Cost>,
    packets: u64,
    time: Duration,
}

impl Lane {
    /// `extra_bytes` is the place of packets in their buffers, if it matters.
    fn new(case: Case, engines: &Engines, extra_bytes: Option<usize>) -> Result<Self, Wrong> {
        let originals = packets(case.suites, case.size, case.sas).map_err(|e| e.to_string())?;
        let engine = engines.available[case.engine].open()?;
        let (sink_port, sink) = SinkPort::new("sink");
        let slice = ring_packets(case.sas, case.size, &originals);
        let (feed, demand): (Box<dyn Port>, _) = match (case.way, extra_bytes) {
            (Way::Outbound, None) => (Box::new(LoopPort::new("load", originals.clone())), None),
            (Way::Outbound, Some(extra)) => (Box::new(PlacedPort::new(&originals, extra)), None),
            (Way::Inbound, _) => {
                let ring = judge::seal(&case, engines.judge(&case).open()?, &originals, slice)?;
                let (feed, demand) = LoopPort::on_demand("ring", ring);
                (Box::new(feed), Some(demand))
            }
        };
        let ports = match case.way {
            Way::Outbound => PortPair { protected: feed, unprotected: Box::new(sink_port) },
            Way::Inbound => PortPair { protected: Box::new(sink_port), unprotected: feed },
        };
        let subject = Subject::between(&case, case.way, vec![engine], ports, sink)?;
        let (sealed, costs, time) = (Vec::new(), Vec::new(), Duration::ZERO);
        Ok(Self { case, subject, originals, demand, slice, sealed, costs, packets: 0, time })
    }

    /// The first packets, for the judge, and some more.
    fn warm_up(&mut self) -> Result<(), Wrong> {
        self.subject.sink.keep(1, self.originals.len());
        match &self.demand {
            None => {
                self.subject.advance(JUDGED)?;
                self.sealed = self.subject.sink.take();
                self.subject.sink.keep(0, 0);
                self.subject.advance(WARM_UP_PACKETS)
            }
            Some(demand) => {
                demand.ask(self.slice as u64);
                self.subject.advance(self.slice)?;
                let opened = self.subject.sink.take();
                self.subject.sink.keep(0, 0);
                judge::compare(&opened, &self.originals)
            }
        }
    }

    fn slice(&mut self, most: usize) -> Result<(), Wrong> {
        let mut count = self.slice.min(most);
        if let Some(demand) = &self.demand {
            // Replay windows take each packet once. To install the tunnels again is no packet's cost.
            self.subject.reinstall(&self.case)?;
            demand.ask(self.slice as u64);
            let before = self.subject.sent();
            self.subject.advance(self.slice / WARM_PART)?;
            // A batch may end beyond that.
            let warm = usize::try_from(self.subject.sent() - before).unwrap_or(self.slice);
            count = self.slice.saturating_sub(warm);
        }
        let run = self.subject.run_through(count)?;
        self.packets += run.packets;
        self.time += run.elapsed;
        self.costs.push(Cost::of(&run));
        Ok(())
    }

    fn needs(&self, effort: Effort) -> bool {
        match effort {
            Effort::Time(time) => self.time < time,
            Effort::Packets(packets) => self.packets < packets,
        }
    }

    /// A peer opens what was sealed before and after; no packet is lost.
    fn check(&mut self, engines: &Engines) -> Result<(), Wrong> {
        if self.demand.is_none() {
            self.subject.sink.keep(1, JUDGED);
            self.subject.advance(JUDGED)?;
            self.sealed.extend(self.subject.sink.take());
        }
        self.subject.settle()?;
        self.subject.check_books()?;
        if self.demand.is_none() {
            let judge = engines.judge(&self.case).open()?;
            judge::accept(&self.case, judge, std::mem::take(&mut self.sealed), &self.originals)?;
        }
        Ok(())
    }
}

/// Measures gateways that take turns: slices of a few hundred packets, in an order that rotates.
pub(super) fn side_by_side(
    cases: &[Case],
    engines: &Engines,
    effort: Effort,
    extra_bytes: Option<usize>,
) -> Result<Take, Wrong> {
    let lanes = cases.iter().map(|&case| Lane::new(case, engines, extra_bytes));
    let mut lanes = lanes.collect::<Result<Vec<_>, Wrong>>()?;
    lanes.iter_mut().try_for_each(Lane::warm_up)?;
    let most = match effort {
        Effort::Packets(packets) => usize::try_from(packets).unwrap_or(usize::MAX),
        Effort::Time(_) => usize::MAX,
    };
    let (count, mut first) = (lanes.len(), 0);
    while lanes.iter().any(|lane| lane.needs(effort)) {
        for turn in 0..count {
            lanes[(first + turn) % count].slice(most)?;
        }
        first += 1;
    }
    let take = Take::of(&lanes);
    lanes.iter_mut().try_for_each(|lane| lane.check(engines))?;
    Ok(take)
}

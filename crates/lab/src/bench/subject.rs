//! The gateway under measurement: a worker with tunnels between a source port and a sink port, in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rustix::thread::sched_getcpu;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use testudo_crypto::Engine;
use testudo_gateway::{Clock, OffloadMode, PlacementMode, PortPair, SchedulerSettings, SystemClock, Worker};
use testudo_packet::{Pool, PortCounters, StageTimes, ticks};
use testudo_port_memory::{LoopPort, SinkHandle, SinkPort};

use super::case::{Case, Way};
use super::error::Wrong;
use super::tunnels::{self, OVERHEAD_BYTES};
use crate::supply::Supply;

/// Buffers of the pool: more than are ever in flight, unless an engine is asynchronous.
const BUFFERS: usize = 4096;
/// Minimum length of buffers, as for an Internet MTU.
const BUFFER_BYTES: usize = 2048;
/// Turns between two checks of the clock that ends a measurement.
const TURNS: usize = 8;
/// After this many turns in a row without a packet, and as much time behind them, none is expected any more:
/// a device may need a processor that other work has.
const QUIET_TURNS: u32 = 100_000;
const PATIENCE: Duration = Duration::from_secs(5);

/// Turns in a row without a packet.
#[derive(Default)]
struct Quiet {
    turns: u32,
    /// When they were too many.
    since: Option<Instant>,
}

impl Quiet {
    /// A turn has moved so many packets. Whether none is expected any more.
    fn is_over(&mut self, moved: usize) -> bool {
        if moved > 0 {
            *self = Self::default();
            return false;
        }
        self.turns = self.turns.saturating_add(1);
        self.turns > QUIET_TURNS && self.since.get_or_insert_with(Instant::now).elapsed() > PATIENCE
    }
}

/// The totals of a run.
#[derive(Debug, Clone, Default)]
pub(super) struct Run {
    pub(super) packets: u64,
    /// Of inner packets.
    pub(super) bytes: u64,
    pub(super) ticks: u64,
    pub(super) elapsed: Duration,
    /// Time in which this thread had a processor.
    pub(super) running: Duration,
    pub(super) stages: StageTimes,
    /// The processors that this thread had when the run began and when it ended.
    pub(super) processors: [usize; 2],
}

impl Run {
    /// The processors of these runs, for JSON: of those who do all work in one thread.
    pub(super) fn cores<'a>(runs: impl Iterator<Item = &'a Self>) -> Value {
        let worker: BTreeSet<usize> = runs.flat_map(|run| run.processors).collect();
        json!({ "worker": worker })
    }
}

/// A gateway whose packets all go in one direction.
pub(super) struct Subject {
    worker: Worker,
    supply: Supply,
    clock: SystemClock,
    way: Way,
    /// The packets that the sink port was given.
    pub(super) sink: SinkHandle,
}

/// A snapshot of counters and clocks.
struct Reading {
    received: PortCounters,
    sent: PortCounters,
    stages: StageTimes,
    at: Instant,
    running: Duration,
    ticks: u64,
    /// The processor that this thread has.
    processor: usize,
}

/// How long this thread has had a processor.
fn running() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

impl Subject {
    /// A gateway at the end of the tunnels where packets go `way`, taking them from `feed`. It has no
    /// fallback engine: `engine` does all of its work.
    pub(super) fn new(case: &Case, way: Way, engine: Box<dyn Engine>, feed: LoopPort) -> Result<Self, Wrong> {
        Self::with(case, way, vec![engine], feed)
    }

    /// The same with several engines, among which jobs are placed by what they cost.
    pub(super) fn with(
        case: &Case,
        way: Way,
        engines: Vec<Box<dyn Engine>>,
        feed: LoopPort,
    ) -> Result<Self, Wrong> {
        let (sink_port, sink) = SinkPort::new("sink");
        let ports = match way {
            Way::Outbound => PortPair { protected: Box::new(feed), unprotected: Box::new(sink_port) },
            Way::Inbound => PortPair { protected: Box::new(sink_port), unprotected: Box::new(feed) },
        };
        Self::between(case, way, engines, ports, sink)
    }

    /// A gateway between any ports, of which one ends in `sink`.
    pub(super) fn between(
        case: &Case,
        way: Way,
        mut engines: Vec<Box<dyn Engine>>,
        ports: PortPair,
        sink: SinkHandle,
    ) -> Result<Self, Wrong> {
        let is_live = case.is_placed() && engines.len() > 1;
        let placement = if is_live { PlacementMode::Live } else { PlacementMode::First };
        placement.arrange(&mut engines);
        let pool = Pool::new(BUFFERS, BUFFER_BYTES.max(case.size.longest_bytes() + OVERHEAD_BYTES));
        let mut worker = Worker::new(ports, pool, engines, Box::default());
        worker.set_offload_mode(OffloadMode::Always);
        worker.set_formation(case.order.formation());
        if is_live {
            worker.set_scheduler(&SchedulerSettings { placement, ..SchedulerSettings::default() });
            let carried = case.suites.all().iter().filter_map(|suite| case.carrier.suite(*suite));
            worker.measure_engines(&carried.collect::<Vec<_>>());
        }
        let supply = tunnels::install(&mut worker, case, way)?;
        Ok(Self { worker, supply, clock: SystemClock::default(), way, sink })
    }

    /// Packets taken from the source port, and given to the sink port.
    fn ports(&self) -> (PortCounters, PortCounters) {
        let (protected, unprotected) =
            (self.worker.protected_port().counters(), self.worker.unprotected_port().counters());
        match self.way {
            Way::Outbound => (protected, unprotected),
            Way::Inbound => (unprotected, protected),
        }
    }

    fn stages(&self) -> StageTimes {
        match self.way {
            Way::Outbound => *self.worker.outbound_stages(),
            Way::Inbound => *self.worker.inbound_stages(),
        }
    }

    fn read(&self) -> Reading {
        let (received, sent) = self.ports();
        let running = running();
        let processor = sched_getcpu();
        let (stages, at, ticks) = (self.stages(), Instant::now(), ticks());
        Reading { received, sent, stages, running, processor, at, ticks }
    }

    /// Reads the clock for each turn, as `testudo run` does.
    fn turn(&mut self) -> Result<usize, Wrong> {
        let now = self.clock.now();
        let moved = self.worker.turn(now).map_err(|e| e.to_string())?;
        self.supply.serve(now);
        Ok(moved)
    }

    /// Jobs that each engine did, where they are placed by what they cost.
    pub(super) fn done(&self) -> BTreeMap<&'static str, u64> {
        let mut done = BTreeMap::new();
        for row in self.worker.counters().shares().into_iter().flat_map(|shares| shares.rows) {
            *done.entry(row.engine).or_default() += row.total().saturating_sub(row.passed_on);
        }
        done
    }

    /// Packets sent so far.
    pub(super) fn sent(&self) -> u64 {
        self.ports().1.tx_packets
    }

    /// Runs turns until `packets` more have come out.
    pub(super) fn advance(&mut self, packets: usize) -> Result<(), Wrong> {
        let goal = self.ports().1.tx_packets + packets as u64;
        let (mut quiet, dropped) = (Quiet::default(), self.worker.pool().drops().total());
        while self.ports().1.tx_packets < goal {
            let moved = self.turn()?;
            // Stop at the first loss: an endless feed would go on losing packets.
            if quiet.is_over(moved) || self.worker.pool().drops().total() > dropped {
                return Err(self.loss());
            }
        }
        Ok(())
    }

    /// Runs turns until there is nothing left to receive, whatever happens to the packets.
    pub(super) fn exhaust(&mut self) -> Result<(), Wrong> {
        while self.turn()? > 0 {}
        Ok(())
    }

    /// Runs turns for `duration`, longer if the stage clock has measured no turn yet; returns the difference.
    pub(super) fn run_for(&mut self, duration: Duration) -> Result<Run, Wrong> {
        let before = self.read();
        while before.at.elapsed() < duration {
            for _ in 0..TURNS {
                self.turn()?;
            }
        }
        while self.stages().batches == before.stages.batches {
            self.advance(1)?;
        }
        Ok(self.since(&before))
    }

    /// As [`advance`](Self::advance), and returns the time and cycles it took.
    pub(super) fn run_through(&mut self, packets: usize) -> Result<Run, Wrong> {
        let before = self.read();
        self.advance(packets)?;
        Ok(self.since(&before))
    }

    fn since(&self, before: &Reading) -> Run {
        let ticks = ticks().wrapping_sub(before.ticks);
        let elapsed = before.at.elapsed();
        let now = self.read();
        let running = now.running.saturating_sub(before.running);
        let bytes = match self.way {
            Way::Outbound => now.received.rx_bytes - before.received.rx_bytes,
            Way::Inbound => now.sent.tx_bytes - before.sent.tx_bytes,
        };
        let packets = now.sent.tx_packets - before.sent.tx_packets;
        let stages = now.stages.since(&before.stages);
        let processors = [before.processor, now.processor];
        Run { packets, bytes, ticks, elapsed, running, stages, processors }
    }

    /// Stops receiving and drains what is in flight.
    pub(super) fn settle(&mut self) -> Result<(), Wrong> {
        self.worker.drain();
        let mut quiet = Quiet::default();
        while self.worker.is_busy() || self.worker.is_waiting() != (false, false) {
            let moved = self.turn()?;
            if quiet.is_over(moved) {
                return Err(self.loss());
            }
        }
        Ok(())
    }

    /// Starts with new sequence numbers and replay windows, as after rekeying.
    pub(super) fn reinstall(&mut self, case: &Case) -> Result<(), Wrong> {
        self.supply = tunnels::reinstall(&mut self.worker, case, self.way)?;
        Ok(())
    }

    /// Checks that every packet that went in has come out.
    pub(super) fn check_books(&self) -> Result<(), Wrong> {
        self.check_books_but(0)
    }

    /// Packets that were dropped so far.
    pub(super) fn dropped(&self) -> u64 {
        self.worker.pool().drops().total()
    }

    /// The same but for so many packets, which were dropped.
    pub(super) fn check_books_but(&self, dropped: u64) -> Result<(), Wrong> {
        let (received, sent) = self.ports();
        let pool = self.worker.pool();
        let is_settled = received.rx_packets == sent.tx_packets + dropped && pool.created() == 0;
        if is_settled && pool.drops().total() == dropped { Ok(()) } else { Err(self.loss()) }
    }

    fn loss(&self) -> Wrong {
        let (received, sent) = self.ports();
        let drops = self.worker.pool().drops().iter().filter(|(_, count)| *count > 0);
        let drops: Vec<String> = drops.map(|(reason, count)| format!("{} {count}", reason.name())).collect();
        let drops = if drops.is_empty() { "none".to_owned() } else { drops.join(", ") };
        let (received, sent) = (received.rx_packets, sent.tx_packets);
        format!("{received} packets went in and {sent} came out; drops: {drops}")
    }
}

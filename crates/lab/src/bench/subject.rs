//! A gateway in memory that is measured: a worker with tunnels between a source port and a sink port.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use testudo_crypto::Engine;
use testudo_gateway::{Clock, PortPair, SystemClock, Worker};
use testudo_packet::{Pool, PortCounters, StageTimes, ticks};
use testudo_port_memory::{LoopPort, SinkHandle, SinkPort};

use super::case::{Case, Way};
use super::error::Wrong;
use super::tunnels::{self, OVERHEAD_BYTES, Supply};

/// Buffers of the pool: more than are ever in flight, unless an engine is asynchronous.
const BUFFERS: usize = 4096;
/// Buffers are at least this long, as for an Internet MTU.
const BUFFER_BYTES: usize = 2048;
/// Turns between two checks of the clock that ends a measurement.
const TURNS: usize = 8;
/// Turns in a row without a packet after which none will come.
const QUIET_TURNS: u32 = 100_000;

/// What was measured.
#[derive(Debug, Clone, Default)]
pub(super) struct Run {
    pub(super) packets: u64,
    /// Of inner packets.
    pub(super) bytes: u64,
    pub(super) ticks: u64,
    pub(super) elapsed: Duration,
    /// Time that this thread had a processor.
    pub(super) running: Duration,
    pub(super) stages: StageTimes,
}

/// A gateway whose packets go one way.
pub(super) struct Subject {
    worker: Worker,
    supply: Supply,
    clock: SystemClock,
    way: Way,
    /// What the last port is given.
    pub(super) sink: SinkHandle,
}

/// A moment's readings.
struct Reading {
    received: PortCounters,
    sent: PortCounters,
    stages: StageTimes,
    at: Instant,
    running: Duration,
    ticks: u64,
}

/// How long this thread has had a processor.
fn running() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

impl Subject {
    /// A gateway on the side of `case` where packets go `way`, taking them from `feed`. It has no fallback
    /// engine: `engine` does all of its work.
    pub(super) fn new(case: &Case, way: Way, engine: Box<dyn Engine>, feed: LoopPort) -> Result<Self, Wrong> {
        let (sink_port, sink) = SinkPort::new("sink");
        let ports = match way {
            Way::Outbound => PortPair { protected: Box::new(feed), unprotected: Box::new(sink_port) },
            Way::Inbound => PortPair { protected: Box::new(sink_port), unprotected: Box::new(feed) },
        };
        let pool = Pool::new(BUFFERS, BUFFER_BYTES.max(case.size.longest_bytes() + OVERHEAD_BYTES));
        let mut worker = Worker::new(ports, pool, vec![engine], Arc::default());
        worker.set_formation(case.order.formation());
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
        Reading { received, sent, stages: self.stages(), running, at: Instant::now(), ticks: ticks() }
    }

    /// The clock is read for each turn, as `testudo run` does.
    fn turn(&mut self) -> Result<usize, Wrong> {
        let now = self.clock.now();
        let moved = self.worker.turn(now).map_err(|e| e.to_string())?;
        self.supply.serve(now);
        Ok(moved)
    }

    /// Turns until `packets` more have come out.
    pub(super) fn advance(&mut self, packets: usize) -> Result<(), Wrong> {
        let goal = self.ports().1.tx_packets + packets as u64;
        let mut quiet = 0;
        while self.ports().1.tx_packets < goal {
            quiet = if self.turn()? > 0 { 0 } else { quiet + 1 };
            // Stop at the first loss: an endless feed would go on losing packets.
            if quiet > QUIET_TURNS || self.worker.pool().drops().total() > 0 {
                return Err(self.loss());
            }
        }
        Ok(())
    }

    /// Turns until there is nothing left to take, whatever happens to the packets.
    pub(super) fn exhaust(&mut self) -> Result<(), Wrong> {
        while self.turn()? > 0 {}
        Ok(())
    }

    /// Turns for a while, and longer if the stage clock has measured no turn yet; returns the difference.
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
        Run { packets, bytes, ticks, elapsed, running, stages: now.stages.since(&before.stages) }
    }

    /// Takes nothing more, and drains what is in flight.
    pub(super) fn settle(&mut self) -> Result<(), Wrong> {
        self.worker.drain();
        let mut quiet = 0;
        while self.worker.is_busy() || self.worker.is_waiting() != (false, false) {
            quiet = if self.turn()? > 0 { 0 } else { quiet + 1 };
            if quiet > QUIET_TURNS {
                return Err(self.loss());
            }
        }
        Ok(())
    }

    /// New sequence numbers and replay windows, as after rekeying.
    pub(super) fn reinstall(&mut self, case: &Case) -> Result<(), Wrong> {
        self.supply = tunnels::reinstall(&mut self.worker, case, self.way)?;
        Ok(())
    }

    /// Every packet that went in must have come out.
    pub(super) fn check_books(&self) -> Result<(), Wrong> {
        let (received, sent) = self.ports();
        let pool = self.worker.pool();
        let is_settled = received.rx_packets == sent.tx_packets && pool.created() == 0;
        if is_settled && pool.drops().total() == 0 { Ok(()) } else { Err(self.loss()) }
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

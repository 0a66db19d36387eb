//! The packets of one SA from a peer, as they come to several workers: in the order of their numbers, in
//! blocks to one worker after the other.
//!
//! ```text
//!   numbers:   1 … 64 │ 65 … 128 │ 129 … 192 │ …        as the program that spreads them in a gateway does
//!   worker:       0   │     1    │     0     │           (spread_inbound = "in-order")
//! ```
//!
//! At *full load* a worker always finds packets, but none that lie farther ahead of the slowest worker's than
//! the queue of a NIC is long: on a wire they would not have come yet. *Paced*, the nth packet comes at n
//! times the pace, whether a worker has time or not, and its latency counts from then.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use testudo_packet::{Batch, Pool, Port, PortCounters, PortError};
use testudo_port_memory::{Demand, LoopPort, Packets, SinkPort};

/// Numbers that come to a worker one after the other.
pub(super) const BLOCK: u64 = 64;
/// How far the workers may be apart at full load, in packets: a queue of a NIC.
const APART: u64 = 512;

/// A value alone in its line, and the next one, which processors fetch together.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Apart(AtomicU64);

/// What the ports of all workers share.
#[derive(Debug)]
pub(super) struct Line {
    base: Instant,
    /// Workers that have asked for their first packet: until all have, none comes.
    ready: Apart,
    /// When the first packet came, in nanoseconds from `base` on; 0 before.
    start_ns: Apart,
    /// Between two packets; 0 at full load.
    pace_ns: AtomicU64,
    /// The place of the packet that each worker takes next.
    next: Vec<Apart>,
    /// Packets that were released, by all.
    released: Apart,
}

impl Line {
    pub(super) fn new(workers: usize) -> Arc<Self> {
        Arc::new(Self {
            base: Instant::now(),
            ready: Apart::default(),
            start_ns: Apart::default(),
            pace_ns: AtomicU64::new(0),
            next: (0..workers).map(|_| Apart::default()).collect(),
            released: Apart::default(),
        })
    }

    /// The packets come anew, one every `pace_ns` nanoseconds, or at full load with 0.
    pub(super) fn begin(&self, pace_ns: u64) {
        self.ready.0.store(0, Ordering::Relaxed);
        self.start_ns.0.store(0, Ordering::Relaxed);
        self.pace_ns.store(pace_ns, Ordering::Relaxed);
        self.released.0.store(0, Ordering::Relaxed);
        (0..)
            .zip(&self.next)
            .for_each(|(worker, next)| next.0.store(self.place(worker, 0), Ordering::Relaxed));
    }

    /// Where in the line the nth packet of a worker is.
    fn place(&self, worker: u64, nth: u64) -> u64 {
        (nth / BLOCK * self.next.len() as u64 + worker) * BLOCK + nth % BLOCK
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.base.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// When the first packet came: now, if nobody has asked before.
    fn start_ns(&self, now_ns: u64) -> u64 {
        let start = &self.start_ns.0;
        start
            .compare_exchange(0, now_ns, Ordering::Relaxed, Ordering::Relaxed)
            .map_or_else(|was| was, |_| now_ns)
    }

    /// The first place in the line whose packet has not come.
    fn come(&self, now_ns: u64) -> u64 {
        match self.pace_ns.load(Ordering::Relaxed) {
            0 => {
                let slowest = self.next.iter().map(|next| next.0.load(Ordering::Relaxed)).min();
                slowest.unwrap_or(0).saturating_add(APART)
            }
            pace_ns => now_ns.saturating_sub(self.start_ns(now_ns)) / pace_ns + 1,
        }
    }
}

/// A packet that a worker has released.
#[derive(Debug, Clone, Copy)]
pub(super) struct Released {
    /// Its place in the line: its number, from 0 on.
    pub(super) place: u64,
    /// How many were released before it, by all workers.
    pub(super) order: u64,
    /// Since it came.
    pub(super) latency_ns: u64,
}

/// The packets that a worker has, each with its place and when it came, and what it has released.
#[derive(Debug, Default)]
pub(super) struct Record {
    had: VecDeque<(u64, u64)>,
    pub(super) released: Vec<Released>,
}

/// What the two ports of a worker share; only its thread has the lock while it runs.
pub(super) type Records = Arc<Mutex<Record>>;

/// What one worker receives of the line.
#[derive(Debug)]
pub(super) struct LinePort {
    line: Arc<Line>,
    worker: u64,
    /// Packets that it was given since the line began, and those that it may have been given.
    given: u64,
    asked: u64,
    is_ready: bool,
    length: u64,
    packets: LoopPort,
    demand: Demand,
    records: Records,
}

impl LinePort {
    /// The port of a worker with these packets, all that come to it of the line, which begins anew when they
    /// are at their end.
    pub(super) fn new(line: Arc<Line>, worker: usize, packets: Packets, records: Records) -> Self {
        let length = packets.len() as u64;
        let (packets, demand) = LoopPort::on_demand("line", packets);
        Self {
            line,
            worker: worker as u64,
            given: 0,
            asked: 0,
            is_ready: false,
            length,
            packets,
            demand,
            records,
        }
    }

    fn place(&self) -> u64 {
        self.line.place(self.worker, self.given)
    }

    fn next(&self) -> &AtomicU64 {
        &self.line.next[usize::try_from(self.worker).unwrap_or(0)].0
    }

    /// Whether packets may come: it is not at the end, and all workers have asked for their first one.
    fn has_begun(&mut self) -> bool {
        if self.given == self.length {
            if self.next().load(Ordering::Relaxed) == u64::MAX {
                return false;
            }
            (self.given, self.asked, self.is_ready) = (0, 0, false);
        }
        let ready = &self.line.ready.0;
        if !std::mem::replace(&mut self.is_ready, true) {
            ready.fetch_add(1, Ordering::Relaxed);
        }
        self.given > 0 || ready.load(Ordering::Relaxed) >= self.line.next.len() as u64
    }
}

impl Port for LinePort {
    fn name(&self) -> &str {
        "line"
    }

    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        if !self.has_begun() {
            return Ok(0);
        }
        let now_ns = self.line.now_ns();
        let come = self.line.come(now_ns);
        // To the end of the block: the next one begins elsewhere in the line.
        let in_block = BLOCK - self.given % BLOCK;
        let all = self.given + come.saturating_sub(self.place()).min(in_block);
        self.demand.ask(all.saturating_sub(self.asked));
        self.asked = self.asked.max(all);
        let received = self.packets.rx(pool, batch)?;
        if received == 0 {
            return Ok(0);
        }
        let pace_ns = self.line.pace_ns.load(Ordering::Relaxed);
        if pace_ns > 0 {
            let start_ns = self.line.start_ns(now_ns);
            let mut record = self.records.lock().unwrap_or_else(PoisonError::into_inner);
            record.had.extend((self.place()..).take(received).map(|at| (at, start_ns + at * pace_ns)));
        }
        self.given += received as u64;
        let ahead = if self.given == self.length { u64::MAX } else { self.place() };
        self.next().store(ahead, Ordering::Relaxed);
        Ok(received)
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        self.packets.tx(pool, batch)
    }

    fn exhausted(&self) -> bool {
        false
    }

    fn joins(&self) -> bool {
        false
    }

    fn counters(&self) -> PortCounters {
        self.packets.counters()
    }
}

/// Where one worker releases what it has opened.
#[derive(Debug)]
pub(super) struct LineEnd {
    line: Arc<Line>,
    sink: SinkPort,
    records: Records,
}

impl LineEnd {
    pub(super) fn new(line: Arc<Line>, sink: SinkPort, records: Records) -> Self {
        Self { line, sink, records }
    }
}

impl Port for LineEnd {
    fn name(&self) -> &str {
        "end of line"
    }

    fn rx(&mut self, _: &mut Pool, _: &mut Batch) -> Result<usize, PortError> {
        Ok(0)
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let count = batch.len() as u64;
        if count > 0 && self.line.pace_ns.load(Ordering::Relaxed) > 0 {
            let before = self.line.released.0.fetch_add(count, Ordering::AcqRel);
            let now_ns = self.line.now_ns();
            let mut record = self.records.lock().unwrap_or_else(PoisonError::into_inner);
            let Record { had, released } = &mut *record;
            // A worker releases the packets of an SA in the order in which it has received them.
            let these = had.drain(..had.len().min(batch.len()));
            released.extend(these.zip(before..).map(|((place, since_ns), order)| Released {
                place,
                order,
                latency_ns: now_ns.saturating_sub(since_ns),
            }));
        }
        self.sink.tx(pool, batch)
    }

    fn exhausted(&self) -> bool {
        true
    }

    fn joins(&self) -> bool {
        false
    }

    fn counters(&self) -> PortCounters {
        self.sink.counters()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ports of two workers, of which each has so many packets, and the records of both.
    fn ports(line: &Arc<Line>, packets: u16) -> ([LinePort; 2], [Records; 2]) {
        let records = [Records::default(), Records::default()];
        let port = |worker: usize| {
            let packets: Vec<Vec<u8>> = (0..packets).map(|n| n.to_be_bytes().to_vec()).collect();
            LinePort::new(Arc::clone(line), worker, packets.into(), Arc::clone(&records[worker]))
        };
        ([port(0), port(1)], records)
    }

    /// Takes what has come; how many packets.
    fn take(port: &mut LinePort, pool: &mut Pool) -> usize {
        let mut taken = 0;
        loop {
            let mut batch = Batch::new();
            match port.rx(pool, &mut batch).unwrap() {
                0 => return taken,
                more => taken += more,
            }
            port.tx(pool, &mut batch).unwrap();
        }
    }

    #[test]
    fn at_full_load_no_worker_is_farther_ahead_than_a_queue_is_long() {
        let (line, mut pool) = (Line::new(2), Pool::new(64, 100));
        let ([mut one, mut two], _) = ports(&line, 1024);
        line.begin(0);
        assert_eq!(take(&mut one, &mut pool), 0, "the other one has not asked yet");
        assert_eq!(take(&mut two, &mut pool), 256, "before the place 0 + 512: four blocks");
        assert_eq!(take(&mut one, &mut pool), 576, "before the place 576 + 512: nine blocks");
        while take(&mut one, &mut pool) + take(&mut two, &mut pool) > 0 {}
        let given = [&one, &two].map(|port| port.counters().rx_packets);
        assert_eq!(given, [1024, 1024]);
        line.begin(0);
        assert_eq!((take(&mut one, &mut pool), take(&mut two, &mut pool)), (0, 256), "it begins anew");
    }

    /// At one packet a nanosecond all have come before anybody looks.
    #[test]
    fn what_is_released_is_noted_with_its_place_and_its_order() {
        let (line, mut pool) = (Line::new(2), Pool::new(256, 100));
        let (mut ports, records) = ports(&line, 64);
        line.begin(1);
        let mut batches = [Batch::new(), Batch::new()];
        ports[0].rx(&mut pool, &mut batches[0]).unwrap();
        while ports.iter().any(|port| port.given < 64) {
            for (port, batch) in ports.iter_mut().zip(&mut batches) {
                port.rx(&mut pool, batch).unwrap();
            }
        }
        // The second worker releases first.
        for worker in [1, 0] {
            let (sink, _) = SinkPort::new("sink");
            let mut end = LineEnd::new(Arc::clone(&line), sink, Arc::clone(&records[worker]));
            assert_eq!(end.tx(&mut pool, &mut batches[worker]).unwrap(), 64);
        }
        let released = [0, 1].map(|worker: usize| records[worker].lock().unwrap().released.clone());
        for (worker, released) in (0..).zip(released) {
            let noted: Vec<(u64, u64)> = released.iter().map(|one| (one.place, one.order)).collect();
            let expected = (0..64).map(|n| (64 * worker + n, 64 * (1 - worker) + n));
            assert_eq!(noted, expected.collect::<Vec<_>>());
        }
    }
}

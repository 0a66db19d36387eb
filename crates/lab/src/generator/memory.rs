//! The generator's and the sink's ends in memory: ports of a gateway's worker, and rings to them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use testudo_packet::{Batch, Buffer, DropReason, Pool, Port, PortCounters, PortError};

use super::arrivals::Arrivals;
use super::ring::{Reader, Writer, ring};
use super::stamp::{STAMP_AT, STAMP_BYTES, Stamp};
use super::traffic::Templates;

/// Packets that wait for the worker at most, like a NIC's descriptors: what comes while they are taken is
/// lost.
pub const FEED_PACKETS: usize = 1024;
/// Packets that wait for the sink: more than come while it sends a burst.
const RETURN_PACKETS: usize = 1 << 16;
/// Packets that are given at once, and bytes after which no more are: a burst of a NIC's driver.
const BURST_PACKETS: usize = 32;
const BURST_BYTES: usize = 12 * 1024;
/// One packet in so many is compared byte by byte with what was sent. A prime, so that each index of a batch
/// has its turn.
pub(super) const COMPARED: u64 = 509;
/// An entry of a ring has the trial in the high bits of the number.
const TRIAL_SHIFT: u32 = 48;

/// The clock of both ends: nanoseconds since it was made.
#[derive(Debug, Clone, Copy)]
pub struct Timer(Instant);

impl Timer {
    /// Starts it at 0.
    #[must_use]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// The time.
    #[must_use]
    #[inline]
    pub fn now_ns(self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// The generator's end of the rings.
#[derive(Debug)]
pub struct Feed {
    out: Writer<2>,
    back: Reader<3>,
    faults: Arc<Faults>,
}

/// What the sink found wrong, since it was made.
#[derive(Debug, Default)]
struct Faults {
    changed: AtomicU64,
    unread: AtomicU64,
}

impl Feed {
    /// Offers a packet; `false` if the worker is too far behind, and it is lost.
    #[inline]
    pub fn send(&mut self, stamp: Stamp) -> bool {
        self.out.push([number_of(stamp), stamp.sent_ns])
    }

    /// Hands what came back to `arrivals`, at most `most` packets; returns how many.
    #[inline]
    pub fn collect(&mut self, arrivals: &mut Arrivals, most: usize) -> usize {
        for count in 0..most {
            let Some([number, sent_ns, now_ns]) = self.back.pop() else { return count };
            arrivals.take(stamp_of(number, sent_ns), now_ns);
        }
        most
    }

    /// Whether the worker has taken all packets.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    /// Packets that came back changed, and packets that came back and had no room on their way to the sink,
    /// so far.
    #[must_use]
    pub fn faults(&self) -> (u64, u64) {
        (self.faults.changed.load(Ordering::Relaxed), self.faults.unread.load(Ordering::Relaxed))
    }
}

fn number_of(stamp: Stamp) -> u64 {
    u64::from(stamp.trial) << TRIAL_SHIFT | stamp.sequence
}

fn stamp_of(number: u64, sent_ns: u64) -> Stamp {
    let trial = u16::try_from(number >> TRIAL_SHIFT).unwrap_or_default();
    Stamp { trial, sequence: number & ((1 << TRIAL_SHIFT) - 1), sent_ns }
}

/// A port that receives what the generator offers.
#[derive(Debug)]
pub struct FeedPort {
    templates: Templates,
    offered: Reader<2>,
    counters: PortCounters,
}

/// A port that hands what it is given to the sink, with the time.
#[derive(Debug)]
pub struct ReturnPort {
    templates: Templates,
    back: Writer<3>,
    faults: Arc<Faults>,
    timer: Timer,
    counters: PortCounters,
}

/// Both ports, and the generator's and the sink's end of them.
#[derive(Debug)]
pub struct MemoryPorts {
    /// For the worker: gives what is offered.
    pub feed: FeedPort,
    /// For the worker: takes what comes back.
    pub returns: ReturnPort,
    /// For the thread that generates and counts.
    pub generator: Feed,
}

/// Ports for packets made of `templates`, in the time of `timer`.
#[must_use]
pub fn memory_ports(templates: &Templates, timer: Timer) -> MemoryPorts {
    let (out, offered) = ring(FEED_PACKETS);
    let (into, back) = ring(RETURN_PACKETS);
    let (faults, counters) = (Arc::<Faults>::default(), PortCounters::default());
    let returned = Arc::clone(&faults);
    MemoryPorts {
        feed: FeedPort { templates: templates.clone(), offered, counters },
        returns: ReturnPort { templates: templates.clone(), back: into, faults: returned, timer, counters },
        generator: Feed { out, back, faults },
    }
}

/// Packets per second that the generator offers alone, where somebody else only takes their numbers: what is
/// slower than this is the device. Measured for `time`, after `there` was called on the thread that takes
/// them.
#[must_use]
pub fn generator_rate(time: Duration, there: impl FnOnce() + Send) -> f64 {
    let (mut out, mut offered) = ring::<2>(FEED_PACKETS);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            there();
            while !is_over.load(Ordering::Relaxed) {
                if offered.pop().is_none() {
                    // Where threads share a processor, the generator has the packets.
                    std::thread::yield_now();
                }
            }
        });
        let timer = Timer::start();
        let end_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let (mut sent, mut now_ns) = (0_u64, 0);
        while now_ns < end_ns {
            for _ in 0..BURST_PACKETS {
                sent += u64::from(out.push([sent, now_ns]));
            }
            now_ns = timer.now_ns();
        }
        is_over.store(true, Ordering::Relaxed);
        sent as f64 / (now_ns.max(1) as f64 * 1e-9)
    })
}

impl FeedPort {
    /// Whether a packet is offered.
    pub(crate) fn has_offer(&mut self) -> bool {
        !self.offered.is_empty()
    }

    /// Makes the next packet that is offered in an empty `buffer`; `false` if there is none, or if it does
    /// not fit and is lost.
    pub(crate) fn fill(&mut self, buffer: &mut Buffer) -> bool {
        let Some([number, sent_ns]) = self.offered.pop() else { return false };
        let stamp = stamp_of(number, sent_ns);
        let (head, tail) = self.templates.get(stamp.sequence);
        let fits = head.len() + tail.len() <= buffer.receive_area().len();
        if fits {
            write(buffer, head, tail, stamp);
        }
        fits
    }
}

/// Writes a packet to a buffer that has room for it.
#[inline(always)]
fn write(buffer: &mut Buffer, head: &[u8], tail: &[u8], stamp: Stamp) {
    let length = head.len() + tail.len();
    let (start, end) = buffer.receive_area()[..length].split_at_mut(head.len());
    start.copy_from_slice(head);
    end.copy_from_slice(tail);
    start[STAMP_AT..STAMP_AT + STAMP_BYTES].copy_from_slice(&stamp.to_bytes());
    buffer.set_len(length);
}

impl Port for FeedPort {
    fn name(&self) -> &'static str {
        "generator"
    }

    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let (mut received, mut bytes) = (0, 0);
        while received < BURST_PACKETS && bytes < BURST_BYTES && !batch.is_full() && pool.available() > 0 {
            let Some([number, sent_ns]) = self.offered.pop() else { break };
            let stamp = stamp_of(number, sent_ns);
            let (head, tail) = self.templates.get(stamp.sequence);
            let length = head.len() + tail.len();
            if length > pool.frame_packet_bytes() {
                pool.count(DropReason::ReceiveTruncated, 1);
                continue;
            }
            let Some(mut buffer) = pool.pop() else { break };
            write(&mut buffer, head, tail, stamp);
            batch.push(buffer);
            received += 1;
            bytes += length;
        }
        self.counters.rx_packets += received as u64;
        self.counters.rx_bytes += bytes as u64;
        self.counters.rx_calls += u64::from(received > 0);
        Ok(received)
    }

    /// Nothing is for the generator.
    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let taken = batch.len();
        pool.recycle_all(batch);
        self.counters.tx_packets += taken as u64;
        Ok(taken)
    }

    fn joins(&self) -> bool {
        false
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}

impl ReturnPort {
    /// The stamp of a packet that is one of those sent: of all packets the length is compared, of some of
    /// them every byte.
    fn read(&self, packet: &[u8]) -> Option<Stamp> {
        let stamp = Stamp::parse(packet.get(STAMP_AT..)?)?;
        let (head, tail) = self.templates.get(stamp.sequence);
        let is_whole = || {
            let (start, end) = packet.split_at_checked(head.len())?;
            let is_same = start[..STAMP_AT] == head[..STAMP_AT] && end == tail;
            is_same.then_some(stamp)
        };
        match packet.len() == head.len() + tail.len() {
            true if !stamp.sequence.is_multiple_of(COMPARED) => Some(stamp),
            true => is_whole(),
            false => None,
        }
    }
}

impl ReturnPort {
    /// The time of now, for [`take`](Self::take).
    pub(crate) fn now_ns(&self) -> u64 {
        self.timer.now_ns()
    }

    /// Hands a packet that came at `now_ns` to the sink.
    #[inline]
    pub(crate) fn take(&mut self, packet: &[u8], now_ns: u64) {
        let Some(stamp) = self.read(packet) else {
            self.faults.changed.fetch_add(1, Ordering::Relaxed);
            return;
        };
        if !self.back.push([number_of(stamp), stamp.sent_ns, now_ns]) {
            self.faults.unread.fetch_add(1, Ordering::Relaxed);
        }
        self.counters.tx_bytes += packet.len() as u64;
    }
}

impl Port for ReturnPort {
    fn name(&self) -> &'static str {
        "sink"
    }

    fn rx(&mut self, _: &mut Pool, _: &mut Batch) -> Result<usize, PortError> {
        Ok(0)
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let taken = batch.len();
        if taken == 0 {
            return Ok(0);
        }
        let now_ns = self.timer.now_ns();
        for buffer in batch.iter() {
            self.take(buffer.bytes(), now_ns);
        }
        self.counters.tx_packets += taken as u64;
        self.counters.tx_calls += 1;
        pool.recycle_all(batch);
        Ok(taken)
    }

    fn joins(&self) -> bool {
        false
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::{Sizes, Traffic};

    struct Path {
        ports: MemoryPorts,
        pool: Pool,
        arrivals: Arrivals,
    }

    impl Path {
        fn new(sizes: Sizes) -> Self {
            let templates = Traffic::of(sizes).templates().unwrap();
            let ports = memory_ports(&templates, Timer::start());
            Self { ports, pool: Pool::new(64, 2048), arrivals: Arrivals::new(5) }
        }

        /// Carries all that waits, changed by `change`.
        fn carry(&mut self, mut change: impl FnMut(&mut [u8])) -> usize {
            let (mut batch, mut carried) = (Batch::new(), 0);
            while self.ports.feed.rx(&mut self.pool, &mut batch).unwrap() > 0 {
                batch.iter_mut().for_each(|buffer| change(buffer.bytes_mut()));
                carried += self.ports.returns.tx(&mut self.pool, &mut batch).unwrap();
            }
            while self.ports.generator.collect(&mut self.arrivals, 16) > 0 {}
            carried
        }
    }

    fn stamp(sequence: u64) -> Stamp {
        Stamp { trial: 5, sequence, sent_ns: 0 }
    }

    #[test]
    fn packets_go_through_and_come_back_with_their_stamps() {
        for sizes in [Sizes::Bytes(64), Sizes::Imix, Sizes::Bytes(1518)] {
            let mut path = Path::new(sizes);
            for round in 0..10 {
                assert!((0..1000).all(|n| path.ports.generator.send(stamp(1000 * round + n))));
                assert!(!path.ports.generator.is_empty());
                assert_eq!(path.carry(|_| {}), 1000);
                assert!(path.ports.generator.is_empty());
            }
            assert_eq!((path.arrivals.received(), path.arrivals.reordered()), (10_000, 0));
            assert_eq!((path.ports.generator.faults(), path.pool.in_use()), ((0, 0), 0));
            let counters = path.ports.returns.counters();
            assert_eq!(counters.tx_bytes, path.ports.feed.counters().rx_bytes, "{sizes}");
        }
    }

    #[test]
    fn what_the_worker_is_too_late_for_is_lost() {
        let mut path = Path::new(Sizes::Bytes(64));
        let sent = (0..3 * FEED_PACKETS as u64).filter(|n| path.ports.generator.send(stamp(*n))).count();
        assert_eq!(sent, FEED_PACKETS);
        path.carry(|_| {});
        assert_eq!(path.arrivals.received(), FEED_PACKETS as u64);
    }

    #[test]
    fn packets_that_come_back_changed_are_found() {
        let mut path = Path::new(Sizes::Bytes(128));
        (0..600).for_each(|n| assert!(path.ports.generator.send(stamp(n))));
        path.carry(|packet| packet[100] ^= 1);
        // Of these 600 every byte of two is compared.
        assert_eq!((path.ports.generator.faults(), path.arrivals.received()), ((2, 0), 598));
        (0..3).for_each(|n| assert!(path.ports.generator.send(stamp(n))));
        let mut batch = Batch::new();
        path.ports.feed.rx(&mut path.pool, &mut batch).unwrap();
        batch.iter_mut().for_each(|buffer| buffer.set_len(60));
        path.ports.returns.tx(&mut path.pool, &mut batch).unwrap();
        assert_eq!(path.ports.generator.faults(), (5, 0), "shorter than it was");
    }

    #[test]
    fn a_frame_longer_than_a_buffer_is_a_drop() {
        let mut path = Path::new(Sizes::Bytes(1518));
        path.pool = Pool::new(8, 1000);
        assert!(path.ports.generator.send(stamp(0)));
        assert_eq!(path.carry(|_| {}), 0);
        assert_eq!((path.pool.drops().get(DropReason::ReceiveTruncated), path.pool.in_use()), (1, 0));
    }
}

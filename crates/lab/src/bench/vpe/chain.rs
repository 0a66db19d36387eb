//! The paper's chain: generator, sealing gateway, opening gateway, reflector, and all the way back.
//!
//! ```text
//!   generator ─► gateway A ═══ link ═══► gateway B ─► reflector
//!             ◄─           ◄══ link ════           ◄─            goodput is counted here
//! ```
//!
//! Each gateway has a worker on a thread of its own, which seals one way and opens the other. The generator
//! keeps so many packets under way that no thread waits for it, and no more than the links and pools hold.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use testudo_gateway::{Clock, PortPair, SystemClock, Worker};
use testudo_packet::{Batch, Pool, Port, PortCounters, PortError};
use testudo_port_memory::Packets;

use super::Setup;
use super::gateways::{self, Tunnel, apply};
use super::threads;
use crate::bench::case::{Carrier, Way};
use crate::bench::error::Wrong;

/// Packets under way, at most: links and pools have room for more.
const UNDER_WAY: u64 = 1024;
/// Packets that are given at once, and bytes after which no more are.
const BURST_PACKETS: usize = 32;
const BURST_BYTES: usize = 12 * 1024;
/// Before a run.
const WARM_UP: Duration = Duration::from_millis(20);
/// A chain in which nothing has come back for so long is broken.
const PATIENCE: Duration = Duration::from_secs(5);
/// Where an IPv4 header has its addresses.
const SOURCE_AT: usize = 12;
const DESTINATION_AT: usize = 16;
/// Where ports are, after an IPv4 header without options.
const PORTS_AT: usize = 20;

/// A burst of packets on a link: their bytes, one after the other, and the length of each.
#[derive(Debug, Default)]
struct Burst {
    bytes: Vec<u8>,
    lengths: Vec<usize>,
}

/// One end of a link between two threads. Bytes are copied, as a NIC does; bursts go back to be used again.
struct LinkPort {
    out: SyncSender<Burst>,
    spare_out: Receiver<Burst>,
    incoming: Receiver<Burst>,
    spare_in: SyncSender<Burst>,
    /// Of the burst that came last: bytes and packets that were given already.
    current: (Burst, usize, usize),
    counters: PortCounters,
}

impl LinkPort {
    /// Both ends, with room for all that is ever under way.
    fn pair() -> (Self, Self) {
        let room = usize::try_from(UNDER_WAY).unwrap_or(1024);
        let [(to_b, at_b), (to_a, at_a), (back_to_a, spare_a), (back_to_b, spare_b)] =
            std::array::from_fn(|_| sync_channel(room));
        let end = |out, spare_out, incoming, spare_in| Self {
            out,
            spare_out,
            incoming,
            spare_in,
            current: (Burst::default(), 0, 0),
            counters: PortCounters::default(),
        };
        (end(to_b, spare_a, at_a, back_to_b), end(to_a, spare_b, at_b, back_to_a))
    }

    /// Whether there is a packet to give.
    fn has_more(&mut self) -> bool {
        if self.current.2 < self.current.0.lengths.len() {
            return true;
        }
        let Ok(next) = self.incoming.try_recv() else { return false };
        let (mut used, ..) = std::mem::replace(&mut self.current, (next, 0, 0));
        used.bytes.clear();
        used.lengths.clear();
        // Where there are enough spare ones it is freed.
        let _ = self.spare_in.try_send(used);
        true
    }
}

impl Port for LinkPort {
    fn name(&self) -> &'static str {
        "link"
    }

    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let mut received = 0;
        while received < BURST_PACKETS && !batch.is_full() && pool.available() > 0 && self.has_more() {
            let Some(mut buffer) = pool.pop() else { break };
            let (burst, from, number) = &mut self.current;
            let bytes = burst.lengths.get(*number).copied().unwrap_or_default();
            let packet = burst.bytes.get(*from..*from + bytes).unwrap_or_default();
            let area = buffer.receive_area();
            let fits = packet.len().min(area.len());
            area[..fits].copy_from_slice(&packet[..fits]);
            buffer.set_len(fits);
            (*from, *number) = (*from + bytes, *number + 1);
            self.counters.rx_bytes += fits as u64;
            batch.push(buffer);
            received += 1;
        }
        self.counters.rx_packets += received as u64;
        self.counters.rx_calls += u64::from(received > 0);
        Ok(received)
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let taken = batch.len();
        if taken == 0 {
            return Ok(0);
        }
        let mut burst = self.spare_out.try_recv().unwrap_or_default();
        for buffer in batch.iter() {
            burst.bytes.extend_from_slice(buffer.bytes());
            burst.lengths.push(buffer.len());
        }
        self.counters.tx_bytes += burst.bytes.len() as u64;
        // No more is under way than the link has room for; nobody is there to take it at the end.
        let _ = self.out.try_send(burst);
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

/// What comes back to the generator is counted here.
#[derive(Debug, Default)]
struct Returned {
    packets: AtomicU64,
    changed: AtomicBool,
}

/// Gives packets while not too many are under way, and counts those that come back.
struct Generator {
    packets: Vec<Vec<u8>>,
    next: usize,
    expected: usize,
    counters: PortCounters,
    returned: Arc<Returned>,
}

impl Port for Generator {
    fn name(&self) -> &'static str {
        "generator"
    }

    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let under_way = self.counters.rx_packets - self.counters.tx_packets;
        let most = usize::try_from(UNDER_WAY.saturating_sub(under_way)).unwrap_or(0);
        let longest = self.packets.first().map_or(1, Vec::len);
        let most = most.min(BURST_PACKETS).min(BURST_BYTES.div_ceil(longest)).min(pool.available());
        let before = batch.len();
        pool.pop_many(most, batch);
        for buffer in &mut batch[before..] {
            let packet = &self.packets[self.next];
            buffer.receive_area()[..packet.len()].copy_from_slice(packet);
            buffer.set_len(packet.len());
            self.next = if self.next + 1 < self.packets.len() { self.next + 1 } else { 0 };
        }
        let received = batch.len() - before;
        self.counters.rx_packets += received as u64;
        Ok(received)
    }

    /// What came back has been sent back by the reflector, packet by packet: the order of a flow is kept, and
    /// all are of one. So each is compared with the one that is due.
    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let taken = batch.len();
        for buffer in batch.iter_mut() {
            turn_around(buffer.bytes_mut());
            if buffer.bytes() != self.packets[self.expected] {
                self.returned.changed.store(true, Ordering::Relaxed);
            }
            self.expected = if self.expected + 1 < self.packets.len() { self.expected + 1 } else { 0 };
        }
        self.counters.tx_packets += taken as u64;
        self.returned.packets.store(self.counters.tx_packets, Ordering::Relaxed);
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

/// Swaps addresses and ports: checksums stay right.
fn turn_around(packet: &mut [u8]) {
    if packet.len() < PORTS_AT + 4 {
        return;
    }
    for byte in 0..4 {
        packet.swap(SOURCE_AT + byte, DESTINATION_AT + byte);
    }
    packet.swap(PORTS_AT, PORTS_AT + 2);
    packet.swap(PORTS_AT + 1, PORTS_AT + 3);
}

/// Gives back what it is given, addresses swapped.
#[derive(Default)]
struct Reflector {
    spare: Vec<Vec<u8>>,
    packets: VecDeque<Vec<u8>>,
    counters: PortCounters,
}

impl Port for Reflector {
    fn name(&self) -> &'static str {
        "reflector"
    }

    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let mut received = 0;
        while received < BURST_PACKETS && !batch.is_full() && !self.packets.is_empty() {
            let Some(mut buffer) = pool.pop() else { break };
            // Bytes are copied, as by a NIC: the buffer that they came in went back to the pool.
            let mut packet = self.packets.pop_front().unwrap_or_default();
            buffer.receive_area()[..packet.len()].copy_from_slice(&packet);
            buffer.set_len(packet.len());
            packet.clear();
            self.spare.push(packet);
            batch.push(buffer);
            received += 1;
        }
        self.counters.rx_packets += received as u64;
        Ok(received)
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let taken = batch.len();
        for buffer in batch.iter() {
            let mut packet = self.spare.pop().unwrap_or_default();
            packet.extend_from_slice(buffer.bytes());
            turn_around(&mut packet);
            self.packets.push_back(packet);
        }
        self.counters.tx_packets += taken as u64;
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

/// The two gateways, and what has come back.
struct Chain {
    ends: [Worker; 2],
    returned: Arc<Returned>,
    /// Those on which the gateways run.
    processors: Vec<usize>,
}

impl Chain {
    fn new(setup: &Setup<'_>, carrier: Carrier, inner_bytes: usize) -> Result<Self, Wrong> {
        let case = setup.case(carrier, Way::Outbound, inner_bytes);
        let tunnel = Tunnel::of(case);
        let packets: Packets = gateways::packets(&case, |_, _| {})?;
        let packets: Vec<Vec<u8>> = packets.iter().map(|(head, tail)| [head, tail].concat()).collect();
        let returned = Arc::<Returned>::default();
        let (link_a, link_b) = LinkPort::pair();
        let (next, expected, counters) = (0, 0, PortCounters::default());
        let generator = Generator { packets, next, expected, counters, returned: Arc::clone(&returned) };
        let ports: [PortPair; 2] = [
            PortPair { protected: Box::new(generator), unprotected: Box::new(link_a) },
            PortPair { protected: Box::new(Reflector::default()), unprotected: Box::new(link_b) },
        ];
        let engine = || setup.engines.available[setup.engine].open();
        let mut ends = Vec::new();
        for (ports, side) in ports.into_iter().zip([Way::Outbound, Way::Inbound]) {
            let mut worker = gateways::worker(&case, ports, engine()?);
            apply(std::slice::from_mut(&mut worker), tunnel.update(side)?)?;
            ends.push(worker);
        }
        let ends = ends.try_into().map_err(|_| "two gateways".to_owned())?;
        Ok(Self { ends, returned, processors: threads::processors() })
    }

    /// Packets per second that came back, over so long.
    fn run(&mut self, duration: Duration) -> Result<f64, Wrong> {
        let (is_over, barrier) = (AtomicBool::new(false), Barrier::new(3));
        let (is_over, barrier, processors) = (&is_over, &barrier, &self.processors);
        let returned = &*self.returned;
        let end = |(number, worker): (usize, &mut Worker)| -> Result<(), Wrong> {
            processors.get(number % processors.len().max(1)).copied().into_iter().for_each(threads::bind);
            barrier.wait();
            let clock = SystemClock::default();
            while !is_over.load(Ordering::Relaxed) {
                if worker.turn(clock.now()).map_err(|e| e.to_string())? == 0 {
                    // The other one may be waiting for this processor.
                    std::thread::yield_now();
                }
            }
            Ok(())
        };
        let end = &end;
        std::thread::scope(|scope| {
            let ends: Vec<_> =
                self.ends.iter_mut().enumerate().map(|of| scope.spawn(move || end(of))).collect();
            barrier.wait();
            let rate = counted(returned, duration);
            is_over.store(true, Ordering::Relaxed);
            for end in ends {
                end.join().unwrap_or_else(|_| Err("a gateway has panicked".to_owned()))?;
            }
            rate
        })
    }

    /// Nothing was dropped, and all that came back is what was sent.
    fn check(&self) -> Result<(), Wrong> {
        if self.returned.changed.load(Ordering::Relaxed) {
            return Err("packets came back changed, or in another order".to_owned());
        }
        match self.ends.iter().find(|worker| worker.pool().drops().total() > 0) {
            Some(worker) => Err(format!("packets are missing; drops: {}", gateways::drops(worker))),
            None => Ok(()),
        }
    }
}

/// Waits, and counts what comes back meanwhile.
fn counted(returned: &Returned, duration: Duration) -> Result<f64, Wrong> {
    let packets = || returned.packets.load(Ordering::Relaxed);
    let begun = Instant::now();
    while packets() == 0 && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(WARM_UP);
    let (before, start) = (packets(), Instant::now());
    while start.elapsed() < duration || (packets() == before && start.elapsed() < PATIENCE) {
        std::thread::sleep(duration.saturating_sub(start.elapsed()).max(Duration::from_millis(1)));
    }
    let (after, elapsed) = (packets(), start.elapsed());
    match after - before {
        0 => Err("nothing comes back".to_owned()),
        packets => Ok(packets as f64 / elapsed.as_secs_f64()),
    }
}

/// One run of a new chain: packets per second that came back to the generator.
pub(super) fn round_trips(
    setup: &Setup<'_>,
    carrier: Carrier,
    inner_bytes: usize,
    duration: Duration,
) -> Result<f64, Wrong> {
    let mut chain = Chain::new(setup, carrier, inner_bytes)?;
    let rate = chain.run(duration)?;
    chain.check()?;
    Ok(rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_turned_around_twice_is_as_it_was() {
        let packet: Vec<u8> = (0..60).collect();
        let mut turned = packet.clone();
        turn_around(&mut turned);
        assert_eq!(turned[SOURCE_AT..PORTS_AT], [16, 17, 18, 19, 12, 13, 14, 15]);
        assert_eq!(turned[PORTS_AT..PORTS_AT + 4], [22, 23, 20, 21]);
        turn_around(&mut turned);
        assert_eq!(turned, packet);
        let mut short = vec![1; PORTS_AT + 3];
        turn_around(&mut short);
        assert_eq!(short, vec![1; PORTS_AT + 3]);
    }

    #[test]
    fn a_link_hands_packets_over_in_order_and_copies_them() {
        let (mut a, mut b) = LinkPort::pair();
        let mut pools = [Pool::new(64, 2048), Pool::new(64, 2048)];
        let (mut sent, mut seen) = (0_u8, 0_u8);
        for round in 0..100 {
            let mut batch = Batch::new();
            for _ in 0..round % 40 {
                let mut buffer = pools[0].pop().unwrap();
                buffer.append(usize::from(sent) + 1).unwrap().fill(sent);
                batch.push(buffer);
                sent = sent.wrapping_add(1);
            }
            a.tx(&mut pools[0], &mut batch).unwrap();
            while b.rx(&mut pools[1], &mut batch).unwrap() > 0 {
                for buffer in batch.iter() {
                    assert_eq!(buffer.bytes(), vec![seen; usize::from(seen) + 1]);
                    seen = seen.wrapping_add(1);
                }
                pools[1].recycle_all(&mut batch);
            }
            assert_eq!(pools.each_ref().map(Pool::available), [64, 64]);
        }
        assert_eq!(seen, sent);
        assert_eq!(a.counters().tx_packets, b.counters().rx_packets);
    }
}

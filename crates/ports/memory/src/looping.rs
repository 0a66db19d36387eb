//! A port that never runs dry: the load of a benchmark.

use crate::packets::Packets;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use testudo_packet::{Batch, DropReason, Pool, Port, PortCounters, PortError};

/// Packets that are given at once, like a NIC driver's burst.
const BURST_PACKETS: usize = 32;
/// Bytes after which no more packets are given at once: a burst, its copies and their results should fit the
/// first-level cache.
const BURST_BYTES: usize = 12 * 1024;

/// Requests packets from a [`LoopPort`].
#[derive(Debug, Clone, Default)]
pub struct Demand(Arc<AtomicU64>);

impl Demand {
    /// The port gives `packets` more, continuing where it is.
    pub fn ask(&self, packets: u64) {
        self.0.fetch_add(packets, Ordering::Relaxed);
    }

    fn is_none(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}

/// A port that gives a fixed set of packets again and again, and discards what it is given.
#[derive(Debug)]
pub struct LoopPort {
    name: String,
    packets: Packets,
    next: usize,
    left: u64,
    demand: Demand,
    counters: PortCounters,
}

impl LoopPort {
    /// A port that gives `packets` in turn, endlessly.
    #[must_use]
    pub fn new(name: impl Into<String>, packets: impl Into<Packets>) -> Self {
        let packets = packets.into();
        let left = if packets.is_empty() { 0 } else { u64::MAX };
        let counters = PortCounters::default();
        Self { name: name.into(), packets, next: 0, left, demand: Demand::default(), counters }
    }

    /// The same, ending after `limit` packets.
    #[must_use]
    pub fn with_limit(mut self, limit: u64) -> Self {
        self.left = self.left.min(limit);
        self
    }

    /// A port that gives as many packets as its [`Demand`] requests.
    #[must_use]
    pub fn on_demand(name: impl Into<String>, packets: impl Into<Packets>) -> (Self, Demand) {
        let port = Self::new(name, packets).with_limit(0);
        let demand = port.demand.clone();
        (port, demand)
    }

    /// A port that only takes packets, and discards them.
    #[must_use]
    pub fn discard(name: impl Into<String>) -> Self {
        Self::new(name, Packets::default())
    }
}

impl LoopPort {
    /// The number of packets to give now, at most `most`, and their bytes: a burst, which ends before a
    /// packet that does not fit a frame, and where the set starts again.
    #[inline]
    fn burst(&self, longest: usize, most: usize) -> (usize, usize) {
        let most = most.min(usize::try_from(self.left).unwrap_or(usize::MAX)).min(BURST_PACKETS);
        let (mut count, mut bytes) = (0, 0);
        for place in self.packets.view().places.iter().skip(self.next).take(most) {
            if place.bytes() > longest || bytes >= BURST_BYTES {
                break;
            }
            count += 1;
            bytes += place.bytes();
        }
        (count, bytes)
    }

    /// Drops packets that do not fit a frame, if they come next: each at most once, since they come again.
    fn skip_too_long(&mut self, pool: &mut Pool) {
        for _ in 0..self.packets.len() {
            let next = self.packets.view().places.get(self.next);
            if self.left == 0 || next.is_none_or(|place| place.bytes() <= pool.frame_packet_bytes()) {
                break;
            }
            pool.count(DropReason::ReceiveTruncated, 1);
            self.advance(1);
        }
    }

    fn advance(&mut self, packets: usize) {
        self.next += packets;
        if self.next >= self.packets.len() {
            self.next = 0;
        }
        self.left -= packets as u64;
    }
}

impl Port for LoopPort {
    fn name(&self) -> &str {
        &self.name
    }

    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let before = batch.len();
        if self.left == 0 && !self.packets.is_empty() {
            self.left = self.demand.0.swap(0, Ordering::Relaxed);
        }
        let most = batch.remaining_capacity().min(pool.available());
        if most > 0 {
            self.skip_too_long(pool);
        }
        let (count, bytes) = self.burst(pool.frame_packet_bytes(), most);
        pool.pop_many(count, batch);
        let received = batch.len() - before;
        let packets = self.packets.view();
        for (buffer, place) in batch[before..].iter_mut().zip(&packets.places[self.next..]) {
            let (head, tail) = packets.at(place);
            let area = &mut buffer.receive_area()[..head.len() + tail.len()];
            let (start, end) = area.split_at_mut(head.len());
            start.copy_from_slice(head);
            if !tail.is_empty() {
                end.copy_from_slice(tail);
            }
            buffer.set_len(place.bytes());
        }
        self.advance(received);
        self.counters.rx_bytes += bytes as u64;
        self.counters.rx_packets += received as u64;
        self.counters.rx_calls += u64::from(received > 0);
        Ok(received)
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let taken = batch.len();
        self.counters.tx_bytes += batch.iter().map(|buffer| buffer.len() as u64).sum::<u64>();
        pool.recycle_all(batch);
        self.counters.tx_packets += taken as u64;
        self.counters.tx_calls += u64::from(taken > 0);
        Ok(taken)
    }

    fn exhausted(&self) -> bool {
        self.left == 0 && self.demand.is_none()
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

    #[test]
    fn packets_come_in_turn_until_the_limit() {
        let mut port = LoopPort::new("load", vec![vec![1], vec![2, 2], vec![3]]).with_limit(100);
        let (mut pool, mut batch) = (Pool::new(64, 100), Batch::new());
        let mut seen = Vec::new();
        while !port.exhausted() {
            port.rx(&mut pool, &mut batch).unwrap();
            seen.extend(batch.iter().map(|buffer| buffer.bytes()[0]));
            port.tx(&mut pool, &mut batch).unwrap();
        }
        assert!(seen.iter().zip([1, 2, 3].iter().cycle()).all(|(a, b)| a == b));
        assert_eq!((seen.len(), port.counters().tx_packets), (100, 100));
        assert_eq!(pool.available(), 64);
    }

    #[test]
    fn a_port_on_demand_continues_where_it_stopped() {
        let (mut port, demand) = LoopPort::on_demand("load", vec![vec![1], vec![2], vec![3]]);
        let (mut pool, mut batch) = (Pool::new(64, 100), Batch::new());
        assert!(port.exhausted());
        for expected in [[1, 2], [3, 1]] {
            demand.ask(2);
            assert!(!port.exhausted());
            while port.rx(&mut pool, &mut batch).unwrap() > 0 {}
            assert_eq!(batch.iter().map(|buffer| buffer.bytes()[0]).collect::<Vec<_>>(), expected);
            port.tx(&mut pool, &mut batch).unwrap();
            assert_eq!(port.rx(&mut pool, &mut batch).unwrap(), 0);
        }
    }

    #[test]
    fn a_burst_ends_by_packets_and_by_bytes() {
        let given = |lengths: &[usize]| {
            let mut port = LoopPort::new("load", lengths.iter().map(|&n| vec![0; n]).collect::<Vec<_>>());
            let (mut pool, mut batch) = (Pool::new(64, 9000), Batch::new());
            port.rx(&mut pool, &mut batch).unwrap();
            assert_eq!(port.counters().rx_bytes, batch.iter().map(|b| b.len() as u64).sum::<u64>());
            batch.len()
        };
        assert_eq!(given(&[1; 64]), BURST_PACKETS);
        assert_eq!(given(&[1; 7]), 7, "it ends where the packets begin anew");
        assert_eq!(given(&[6 * 1024; 9]), 2);
        assert_eq!(given(&[9000; 9]), 2, "the last one goes beyond");
    }

    #[test]
    fn packets_longer_than_a_buffer_are_dropped_and_the_others_come() {
        let mut port =
            LoopPort::new("load", vec![vec![1; 101], vec![2], vec![3; 101], vec![4]]).with_limit(8);
        let (mut pool, mut batch) = (Pool::new(8, 100), Batch::new());
        while !port.exhausted() {
            port.rx(&mut pool, &mut batch).unwrap();
        }
        assert_eq!(batch.iter().map(|buffer| buffer.bytes()[0]).collect::<Vec<_>>(), [2, 4, 2, 4]);
        assert_eq!((pool.drops().get(DropReason::ReceiveTruncated), port.counters().rx_packets), (4, 4));
    }

    #[test]
    fn a_discarding_port_has_nothing_to_give() {
        let mut port = LoopPort::discard("sink");
        assert!(port.exhausted());
        assert_eq!(port.rx(&mut Pool::new(1, 10), &mut Batch::new()).unwrap(), 0);
    }
}

//! A port that never runs dry: the load of a benchmark.

use crate::packets::Packets;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use testudo_packet::{Batch, DropReason, Pool, Port, PortCounters, PortError};

/// Asks a [`LoopPort`] for packets.
#[derive(Debug, Clone, Default)]
pub struct Demand(Arc<AtomicU64>);

impl Demand {
    /// The port gives `packets` more, going on where it stands.
    pub fn ask(&self, packets: u64) {
        self.0.fetch_add(packets, Ordering::Relaxed);
    }

    fn is_none(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}

/// A port that gives a fixed set of packets again and again, and forgets what it is given.
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
    /// A port that gives `packets` in turn, without end.
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

    /// A port that gives as many packets as its [`Demand`] is asked for.
    #[must_use]
    pub fn on_demand(name: impl Into<String>, packets: impl Into<Packets>) -> (Self, Demand) {
        let port = Self::new(name, packets).with_limit(0);
        let demand = port.demand.clone();
        (port, demand)
    }

    /// A port that only takes packets, and forgets them.
    #[must_use]
    pub fn discard(name: impl Into<String>) -> Self {
        Self::new(name, Packets::default())
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
        let (packets, longest) = (self.packets.view(), pool.packet_bytes());
        let (mut next, mut left, mut received_bytes) = (self.next, self.left, 0);
        while left > 0 && !batch.is_full() {
            let Some(mut buffer) = pool.take() else { break };
            let (head, tail) = packets.get(next);
            let bytes = head.len() + tail.len();
            next = if next + 1 == packets.len() { 0 } else { next + 1 };
            left -= 1;
            if bytes > longest {
                pool.discard(buffer, DropReason::ReceiveTruncated);
                continue;
            }
            let area = buffer.receive_area();
            area[..head.len()].copy_from_slice(head);
            if !tail.is_empty() {
                area[head.len()..bytes].copy_from_slice(tail);
            }
            buffer.set_len(bytes);
            received_bytes += bytes as u64;
            batch.push(buffer);
        }
        (self.next, self.left) = (next, left);
        self.counters.rx_bytes += received_bytes;
        let received = batch.len() - before;
        self.counters.rx_packets += received as u64;
        self.counters.rx_calls += u64::from(received > 0);
        Ok(received)
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let taken = batch.len();
        for buffer in batch.drain(..) {
            self.counters.tx_bytes += buffer.len() as u64;
            pool.recycle(buffer);
        }
        self.counters.tx_packets += taken as u64;
        self.counters.tx_calls += u64::from(taken > 0);
        Ok(taken)
    }

    fn exhausted(&self) -> bool {
        self.left == 0 && self.demand.is_none()
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
    fn on_demand_a_port_goes_on_where_it_stood() {
        let (mut port, demand) = LoopPort::on_demand("load", vec![vec![1], vec![2], vec![3]]);
        let (mut pool, mut batch) = (Pool::new(64, 100), Batch::new());
        assert!(port.exhausted());
        for expected in [[1, 2], [3, 1]] {
            demand.ask(2);
            assert!(!port.exhausted());
            assert_eq!(port.rx(&mut pool, &mut batch).unwrap(), 2);
            assert_eq!(batch.iter().map(|buffer| buffer.bytes()[0]).collect::<Vec<_>>(), expected);
            port.tx(&mut pool, &mut batch).unwrap();
            assert_eq!(port.rx(&mut pool, &mut batch).unwrap(), 0);
        }
    }

    #[test]
    fn a_discarding_port_has_nothing_to_give() {
        let mut port = LoopPort::discard("sink");
        assert!(port.exhausted());
        assert_eq!(port.rx(&mut Pool::new(1, 10), &mut Batch::new()).unwrap(), 0);
    }
}

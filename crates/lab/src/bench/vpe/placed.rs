//! A port that puts packets where it is told to in their buffers.

use testudo_packet::{Batch, HEADROOM_BYTES, Pool, Port, PortCounters, PortError};
use testudo_port_memory::Packets;

/// Packets that are given at once, and bytes after which no more are: as a [`LoopPort`] gives them.
///
/// [`LoopPort`]: testudo_port_memory::LoopPort
const BURST_PACKETS: usize = 32;
const BURST_BYTES: usize = 12 * 1024;

/// A port that gives a fixed set of packets again and again, each so many bytes after where packets usually
/// begin in their buffers. It discards what it is given.
pub(super) struct PlacedPort {
    packets: Vec<Vec<u8>>,
    next: usize,
    extra_bytes: usize,
    counters: PortCounters,
}

impl PlacedPort {
    pub(super) fn new(packets: &Packets, extra_bytes: usize) -> Self {
        let packets = packets.iter().map(|(head, tail)| [head, tail].concat()).collect();
        Self { packets, next: 0, extra_bytes, counters: PortCounters::default() }
    }
}

impl Port for PlacedPort {
    fn name(&self) -> &'static str {
        "placed"
    }

    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let before = batch.len();
        let longest = self.packets.get(self.next).map_or(1, Vec::len).max(1);
        pool.pop_many(BURST_PACKETS.min(BURST_BYTES.div_ceil(longest)).min(pool.available()), batch);
        for buffer in &mut batch[before..] {
            let Some(packet) = self.packets.get(self.next) else { break };
            buffer.reset(HEADROOM_BYTES + self.extra_bytes);
            let area = buffer.receive_area();
            let bytes = packet.len().min(area.len());
            area[..bytes].copy_from_slice(&packet[..bytes]);
            buffer.set_len(bytes);
            self.next = if self.next + 1 < self.packets.len() { self.next + 1 } else { 0 };
            self.counters.rx_bytes += bytes as u64;
        }
        let received = batch.len() - before;
        self.counters.rx_packets += received as u64;
        self.counters.rx_calls += u64::from(received > 0);
        Ok(received)
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let taken = batch.len();
        self.counters.tx_bytes += batch.iter().map(|buffer| buffer.len() as u64).sum::<u64>();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_begin_where_they_are_to() {
        let packets: Packets = vec![vec![1_u8; 40], vec![2; 1420]].into();
        for extra_bytes in [0, 1, 63, 64] {
            let (mut port, mut pool, mut batch) =
                (PlacedPort::new(&packets, extra_bytes), Pool::new(64, 2048), Batch::new());
            assert_eq!(port.rx(&mut pool, &mut batch).unwrap(), BURST_PACKETS);
            for (buffer, number) in batch.iter().zip([1, 2].into_iter().cycle()) {
                assert_eq!(buffer.headroom(), HEADROOM_BYTES + extra_bytes);
                assert_eq!(buffer.bytes(), vec![number; if number == 1 { 40 } else { 1420 }]);
            }
            assert_eq!(port.tx(&mut pool, &mut batch).unwrap(), BURST_PACKETS);
            assert_eq!(pool.available(), 64);
        }
    }
}

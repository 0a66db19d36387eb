//! A port between two queues.

use crate::queue::Queue;
use testudo_packet::{Batch, Buffer, DropReason, MAX_SEGMENTS, Pool, Port, PortCounters, PortError};

/// A port that receives from one queue and sends to another.
#[derive(Debug)]
pub struct MemoryPort {
    name: String,
    input: Queue,
    output: Queue,
    counters: PortCounters,
    takes_chains: bool,
}

/// The other ends of a [`MemoryPort`]'s queues.
#[derive(Debug, Clone)]
pub struct MemoryHandle {
    /// The port receives packets that are pushed here.
    pub input: Queue,
    /// Packets that the port sends arrive here.
    pub output: Queue,
}

impl MemoryPort {
    /// A port between two queues.
    #[must_use]
    pub fn new(name: impl Into<String>, input: Queue, output: Queue) -> Self {
        Self { name: name.into(), input, output, counters: PortCounters::default(), takes_chains: false }
    }

    /// The same port, which delivers packets that no frame holds in chains of frames, and sends chains.
    #[must_use]
    pub fn with_chains(self) -> Self {
        Self { takes_chains: true, ..self }
    }

    /// A port, and the other ends of its queues, each of `capacity` packets.
    #[must_use]
    pub fn with_handle(name: impl Into<String>, capacity: usize) -> (Self, MemoryHandle) {
        let handle = MemoryHandle { input: Queue::new(capacity), output: Queue::new(capacity) };
        (Self::new(name, handle.input.clone(), handle.output.clone()), handle)
    }

    /// Two ports that receive what the other one sends, over queues of `capacity` packets.
    #[must_use]
    pub fn pair(capacity: usize) -> (Self, Self) {
        let (a, handle) = Self::with_handle("memory a", capacity);
        (a, Self::new("memory b", handle.output, handle.input))
    }
}

/// The longest IP datagram: IPv6 counts its header apart.
const LONGEST_CHAIN_BYTES: usize = 65_575;

/// Adds a packet to a queue, segment by segment if it is a chain; `false` if the queue is full.
fn push(queue: &Queue, packet: &Buffer) -> bool {
    if !packet.is_chain() {
        return queue.push(packet.bytes());
    }
    let mut whole = vec![0; packet.chain_bytes()];
    packet.copy_to(0, &mut whole);
    queue.push(&whole)
}

impl MemoryPort {
    /// Takes the next packet, which is so long, into frames; `None` if there are too few, and it stays.
    fn receive_chain(&mut self, bytes: usize, pool: &mut Pool) -> Option<Buffer> {
        let room = pool.frame_packet_bytes();
        if bytes.div_ceil(room) > pool.available() || bytes.div_ceil(room) > MAX_SEGMENTS {
            return None;
        }
        let mut chain: Option<Buffer> = None;
        for piece in self.input.pop()?.chunks(room) {
            let mut segment = pool.pop()?;
            segment.receive_area()[..piece.len()].copy_from_slice(piece);
            segment.set_len(piece.len());
            match &mut chain {
                None => chain = Some(segment),
                // Its frames have the room, and are as many as a chain may have.
                Some(chain) => chain.link(segment).unwrap_or_else(|segment| pool.recycle(segment)),
            }
        }
        chain
    }
}

impl Port for MemoryPort {
    fn name(&self) -> &str {
        &self.name
    }

    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let mut received = 0;
        while !batch.is_full() && !self.input.is_empty() {
            let bytes = self.input.next_bytes().unwrap_or_default();
            let is_chain = self.takes_chains && bytes > pool.frame_packet_bytes();
            if is_chain && bytes <= LONGEST_CHAIN_BYTES {
                let Some(chain) = self.receive_chain(bytes, pool) else { break };
                self.counters.rx_bytes += bytes as u64;
                batch.push(chain);
                received += 1;
                continue;
            }
            if bytes > pool.packet_bytes() {
                self.input.pop();
                pool.count(DropReason::ReceiveTruncated, 1);
                continue;
            }
            let Some(mut buffer) = pool.pop_for(bytes) else { break };
            let packet = self.input.pop().unwrap_or_default();
            buffer.receive_area()[..packet.len()].copy_from_slice(&packet);
            buffer.set_len(packet.len());
            self.counters.rx_bytes += packet.len() as u64;
            batch.push(buffer);
            received += 1;
        }
        self.counters.rx_packets += received as u64;
        self.counters.rx_calls += u64::from(received > 0);
        Ok(received)
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let taken = batch.iter().take_while(|buffer| push(&self.output, buffer)).count();
        for buffer in batch.drain(..taken) {
            self.counters.tx_bytes += buffer.chain_bytes() as u64;
            pool.recycle(buffer);
        }
        self.counters.tx_packets += taken as u64;
        self.counters.tx_calls += u64::from(taken > 0);
        Ok(taken)
    }

    fn joins(&self) -> bool {
        false
    }

    fn takes_chains(&self) -> bool {
        self.takes_chains
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_hands_packets_over_in_order() {
        let (mut a, mut b) = MemoryPort::pair(100);
        let (mut pool, mut batch) = (Pool::new(100, 1500), Batch::new());
        for index in 0..40 {
            let mut buffer = pool.pop().unwrap();
            buffer.append(4).unwrap().copy_from_slice(&[index; 4]);
            batch.push(buffer);
        }
        assert_eq!(a.tx(&mut pool, &mut batch).unwrap(), 40);
        assert_eq!(b.rx(&mut pool, &mut batch).unwrap(), 40);
        assert!(batch.iter().zip(0..).all(|(buffer, index)| buffer.bytes() == [index; 4]));
        assert_eq!((a.counters().tx_bytes, b.counters().rx_packets), (160, 40));
    }

    #[test]
    fn packets_beyond_a_frame_come_and_go_in_chains() {
        let (port, handle) = MemoryPort::with_handle("m", 8);
        let (mut port, mut batch) = (port.with_chains(), Batch::new());
        let mut pool = Pool::new(12, 1000);
        let packets: Vec<Vec<u8>> =
            [1000, 1001, 9000].map(|bytes| (0..=250).cycle().take(bytes).collect()).into();
        packets.iter().for_each(|packet| assert!(handle.input.push(packet)));
        assert_eq!(port.rx(&mut pool, &mut batch).unwrap(), 3);
        let segments: Vec<usize> = batch.iter().map(|packet| packet.segments().count()).collect();
        assert_eq!((segments, pool.available()), (vec![1, 2, 9], 0));
        assert!(handle.input.push(&packets[1]));
        assert_eq!(port.rx(&mut pool, &mut batch).unwrap(), 0, "it waits for frames");
        assert_eq!(port.tx(&mut pool, &mut batch).unwrap(), 3);
        assert!(handle.output.drain() == packets && pool.available() == 12);
    }

    #[test]
    fn a_full_queue_takes_a_prefix() {
        let (mut port, handle) = MemoryPort::with_handle("m", 3);
        let (mut pool, mut batch) = (Pool::new(8, 100), Batch::new());
        for index in 0..5 {
            let mut buffer = pool.pop().unwrap();
            buffer.append(1).unwrap()[0] = index;
            batch.push(buffer);
        }
        assert_eq!(port.tx(&mut pool, &mut batch).unwrap(), 3);
        assert_eq!(batch.iter().map(|b| b.bytes()[0]).collect::<Vec<_>>(), [3, 4]);
        assert_eq!(handle.output.pop(), Some(vec![0]));
        assert_eq!(port.tx(&mut pool, &mut batch).unwrap(), 1);
        assert_eq!(handle.output.drain(), [[1], [2], [3]]);
    }

    #[test]
    fn an_empty_pool_leaves_packets_where_they_are() {
        let (mut port, handle) = MemoryPort::with_handle("m", 8);
        (0..3).for_each(|_| assert!(handle.input.push(b"x")));
        let (mut pool, mut batch) = (Pool::new(2, 100), Batch::new());
        assert_eq!(port.rx(&mut pool, &mut batch).unwrap(), 2);
        assert_eq!(port.rx(&mut pool, &mut batch).unwrap(), 0);
        assert_eq!(handle.input.len(), 1);
    }

    #[test]
    fn a_packet_longer_than_a_buffer_is_counted() {
        let (mut port, handle) = MemoryPort::with_handle("m", 8);
        assert!(handle.input.push(&[0; 101]) && handle.input.push(&[0; 100]));
        let (mut pool, mut batch) = (Pool::new(2, 100), Batch::new());
        assert_eq!(port.rx(&mut pool, &mut batch).unwrap(), 1);
        assert_eq!(pool.drops().get(DropReason::ReceiveTruncated), 1);
        assert_eq!(pool.available(), 1);
    }
}

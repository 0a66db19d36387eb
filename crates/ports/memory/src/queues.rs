//! A set of queues: a port for each worker, and packets spread over them in software.

use crate::packets::Packets;
use crate::{LoopPort, MemoryHandle, MemoryPort};
use testudo_wire::steering::Spread;

/// Several [`MemoryPort`]s that are the queues of one device. What is pushed goes to the queue that a
/// [`Spread`] names: what a NIC or the kernel does for other ports.
///
/// Queues can come and go. A packet that was pushed before stays where it is.
#[derive(Debug)]
pub struct MemoryQueues {
    name: String,
    spread: Spread,
    handles: Vec<MemoryHandle>,
    capacity: usize,
}

impl MemoryQueues {
    /// As many ports as the spread has queues, each between queues of `capacity` packets.
    #[must_use]
    pub fn new(name: impl Into<String>, capacity: usize, spread: Spread) -> (Self, Vec<MemoryPort>) {
        let mut set = Self { name: name.into(), handles: Vec::new(), capacity, spread };
        let ports = (0..set.spread.queues()).map(|_| set.open()).collect();
        (set, ports)
    }

    fn open(&mut self) -> MemoryPort {
        let name = format!("{} {}", self.name, self.handles.len());
        let (port, handle) = MemoryPort::with_handle(name, self.capacity);
        self.handles.push(handle);
        port
    }

    /// Hands a packet to its queue; `false` if that is full, and the packet is not taken.
    pub fn push(&self, packet: &[u8]) -> bool {
        let queue = usize::try_from(self.spread.queue(packet)).ok();
        queue.and_then(|queue| self.handles.get(queue)).is_some_and(|handle| handle.input.push(packet))
    }

    /// The other ends of each port, queue by queue.
    #[must_use]
    pub fn handles(&self) -> &[MemoryHandle] {
        &self.handles
    }

    /// Which packet goes to which queue.
    #[must_use]
    pub fn spread(&self) -> &Spread {
        &self.spread
    }

    /// Opens one more queue, which has its share of the packets that come from now on; `None` if the spread
    /// has no more.
    pub fn add(&mut self) -> Option<MemoryPort> {
        let wanted = self.spread.queues() + 1;
        self.spread.resize(wanted);
        (self.spread.queues() == wanted).then(|| self.open())
    }

    /// Gives the share of the last queue to the others, and returns the other ends of its port, which is to
    /// be emptied; `None` if it is the only one.
    pub fn retire(&mut self) -> Option<MemoryHandle> {
        let wanted = self.spread.queues().checked_sub(1).filter(|wanted| *wanted > 0)?;
        self.spread.resize(wanted);
        self.handles.pop()
    }
}

impl Packets {
    /// The packets of each queue, in their order. All share the tail.
    #[must_use]
    pub fn spread(&self, spread: &Spread) -> Vec<Packets> {
        let mut queues: Vec<Packets> = (0..spread.queues()).map(|_| self.with_the_same_tail()).collect();
        for (head, tail) in self.iter() {
            let queue = usize::try_from(spread.queue(&[head, tail].concat())).ok();
            if let Some(packets) = queue.and_then(|queue| queues.get_mut(queue)) {
                packets.push(head, tail.len());
            }
        }
        queues
    }
}

impl LoopPort {
    /// Ports that together give `packets`, each those of its queue, endlessly: a load for several workers.
    /// They are spread once, when this is called, so that a port costs no more than one alone. The port of a
    /// queue that has none of the packets is exhausted.
    #[must_use]
    pub fn queues(name: &str, packets: &Packets, spread: &Spread) -> Vec<Self> {
        let shares = packets.spread(spread).into_iter().enumerate();
        shares.map(|(queue, packets)| Self::new(format!("{name} {queue}"), packets)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU32;
    use testudo_packet::{Batch, Pool, Port};
    use testudo_wire::steering::{FlowBuckets, Steering};

    /// UDP from one of many ports, with its number at the end.
    fn packet(number: u16) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 30, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        packet.extend([(number % 40).to_be_bytes(), [0, 53], [0, 10], [0, 0], number.to_be_bytes()].concat());
        packet
    }

    fn received(port: &mut MemoryPort) -> Vec<Vec<u8>> {
        let (mut pool, mut batch) = (Pool::new(64, 100), Batch::new());
        port.rx(&mut pool, &mut batch).unwrap();
        batch.iter().map(|buffer| buffer.bytes().to_vec()).collect()
    }

    #[test]
    fn each_flow_has_one_memory_queue_and_its_order() {
        let (set, mut ports) = MemoryQueues::new("site", 100, Spread::Flows(FlowBuckets::new(3)));
        (0..120).for_each(|number| assert!(set.push(&packet(number))));
        let mut count = 0;
        for (queue, port) in (0..).zip(&mut ports) {
            let packets = received(port);
            assert!(!packets.is_empty() && packets.iter().all(|packet| set.spread().queue(packet) == queue));
            assert!(packets.windows(2).all(|pair| pair[0][28..] < pair[1][28..]));
            count += packets.len();
        }
        assert_eq!((count, ports.len()), (120, 3));
        assert_eq!(ports[2].name(), "site 2");
    }

    #[test]
    fn memory_queues_come_and_go_and_no_packet_is_lost() {
        let (mut set, mut ports) = MemoryQueues::new("site", 1000, Spread::Flows(FlowBuckets::new(1)));
        let mut random = fastrand::Rng::with_seed(20);
        let (mut pushed, mut came) = (0_u16, 0);
        for _ in 0..200 {
            for _ in 0..random.u16(..30) {
                assert!(set.push(&packet(pushed)));
                pushed += 1;
            }
            if random.bool() {
                ports.extend(set.add());
            } else if let Some(handle) = set.retire() {
                came += handle.input.drain().len();
                ports.pop();
            }
            came += ports.iter_mut().map(|port| received(port).len()).sum::<usize>();
            assert_eq!((set.handles().len(), set.spread().queues() as usize), (ports.len(), ports.len()));
        }
        came += set.handles().iter().map(|handle| handle.input.drain().len()).sum::<usize>();
        assert_eq!(came, usize::from(pushed), "seed 20");
        while set.retire().is_some() {}
        assert_eq!(set.handles().len(), 1);
    }

    #[test]
    fn a_load_is_spread_over_looping_ports_by_blocks_of_numbers() {
        let mut packets = Packets::with_tail(vec![9; 40]);
        for number in 1_u32..=64 {
            let mut head = vec![0x45, 0, 0, 48, 0, 0, 0x40, 0, 64, 50, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
            let sum: u32 = head.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
            let folded = (sum & 0xFFFF) + (sum >> 16);
            head[10..12].copy_from_slice(&(!(folded as u16)).to_be_bytes());
            head.extend([256_u32.to_be_bytes(), number.to_be_bytes()].concat());
            packets.push(&head, 20);
        }
        let block = NonZeroU32::new(8).unwrap();
        let steering = Steering::BySequence { block };
        let spread = Spread::Protected { steering, vpe_numbers: Vec::new(), queues: 2 };
        let mut ports = LoopPort::queues("load", &packets, &spread);
        for (queue, port) in (0..).zip(&mut ports) {
            let (mut pool, mut batch) = (Pool::new(64, 100), Batch::new());
            assert_eq!(port.rx(&mut pool, &mut batch).unwrap(), 32, "half of all");
            for buffer in batch.iter() {
                let number = u32::from(buffer.bytes()[27]);
                assert_eq!((buffer.len(), number / 8 % 2), (48, queue));
            }
        }
        assert_eq!(ports.len(), 2);
    }
}

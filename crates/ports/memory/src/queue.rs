//! A bounded queue of packets.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A bounded queue of packets, first in, first out. Clones are the same queue.
#[derive(Debug, Clone)]
pub struct Queue {
    packets: Arc<Mutex<VecDeque<Vec<u8>>>>,
    capacity: usize,
}

impl Queue {
    /// An empty queue that holds at most `capacity` packets.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { packets: Arc::default(), capacity }
    }

    /// Adds a packet; `false` if the queue is full, and the packet is not added.
    pub fn push(&self, packet: &[u8]) -> bool {
        let mut packets = self.lock();
        let has_room = packets.len() < self.capacity;
        if has_room {
            packets.push_back(packet.to_vec());
        }
        has_room
    }

    /// Takes the oldest packet.
    pub fn pop(&self) -> Option<Vec<u8>> {
        self.lock().pop_front()
    }

    /// Bytes of the oldest packet.
    #[must_use]
    pub fn next_bytes(&self) -> Option<usize> {
        self.lock().front().map(Vec::len)
    }

    /// Takes all packets, oldest first.
    #[must_use]
    pub fn drain(&self) -> Vec<Vec<u8>> {
        self.lock().drain(..).collect()
    }

    /// Packets in the queue.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A thread that panicked with the lock held left whole packets: no operation above is ever half done.
    fn lock(&self) -> MutexGuard<'_, VecDeque<Vec<u8>>> {
        self.packets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! The accounts of a worker's packets, and of the buffers that it leaves.

use crate::worker::Worker;
use std::fmt;

/// What became of every packet so far: received + created = sent + dropped + merged + held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Books {
    /// By both ports.
    pub received: u64,
    /// Packets that the worker has made: fragments, messages to senders, questions to neighbours.
    pub created: u64,
    /// By both ports.
    pub sent: u64,
    /// For any reason.
    pub dropped: u64,
    /// Those that are a part of another packet now.
    pub merged: u64,
    /// Buffers that are not in the pool.
    pub held: u64,
}

impl Books {
    /// Whether every packet is accounted for, where each buffer that is held has a packet.
    #[must_use]
    pub fn balance(&self) -> bool {
        self.received + self.created == self.sent + self.dropped + self.merged + self.held
    }
}

impl fmt::Display for Books {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { received, created, sent, dropped, merged, held } = self;
        write!(
            f,
            "{received} received, {created} created, {sent} sent, {dropped} dropped, {merged} merged, {held} buffers held"
        )
    }
}

impl Worker {
    /// What became of every packet so far.
    #[must_use]
    pub fn books(&self) -> Books {
        let (p, u) = (self.protected_port().counters(), self.unprotected_port().counters());
        let pool = self.pool();
        Books {
            received: p.rx_packets + u.rx_packets,
            created: pool.created(),
            sent: p.tx_packets + u.tx_packets,
            dropped: pool.drops().total(),
            merged: pool.merged(),
            held: pool.in_use() as u64,
        }
    }

    /// Has both ports give back the buffers that they have: nothing comes or goes after.
    pub fn end_ports(&mut self) {
        self.protected.end_port(&mut self.pool);
        self.unprotected.end_port(&mut self.pool);
        self.publish();
    }
}

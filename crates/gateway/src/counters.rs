//! What a worker has done, readable by other threads.

use std::sync::atomic::{AtomicU64, Ordering};
use testudo_packet::{DropCounters, DropReason, Pool, PortCounters};

/// Counters of one port as atomics.
#[derive(Debug, Default)]
struct SharedPortCounters([AtomicU64; 6]);

/// Counters of one port at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortSnapshot {
    /// Name of the port.
    pub name: String,
    /// What went through it.
    pub counters: PortCounters,
}

impl SharedPortCounters {
    fn publish(&self, c: &PortCounters) {
        let values = [c.rx_packets, c.rx_bytes, c.tx_packets, c.tx_bytes, c.rx_calls, c.tx_calls];
        self.0.iter().zip(values).for_each(|(shared, value)| shared.store(value, Ordering::Relaxed));
    }

    fn snapshot(&self) -> PortCounters {
        let [rx_packets, rx_bytes, tx_packets, tx_bytes, rx_calls, tx_calls] =
            self.0.each_ref().map(|c| c.load(Ordering::Relaxed));
        PortCounters { rx_packets, rx_bytes, tx_packets, tx_bytes, rx_calls, tx_calls }
    }
}

/// What a worker has done. The worker publishes after each turn in which it did anything.
#[derive(Debug)]
pub struct WorkerCounters {
    protected_name: String,
    unprotected_name: String,
    protected: SharedPortCounters,
    unprotected: SharedPortCounters,
    created: AtomicU64,
    free_buffers: AtomicU64,
    drops: [AtomicU64; DropReason::ALL.len()],
}

impl WorkerCounters {
    pub(crate) fn new(protected_name: &str, unprotected_name: &str) -> Self {
        Self {
            protected_name: protected_name.to_owned(),
            unprotected_name: unprotected_name.to_owned(),
            protected: SharedPortCounters::default(),
            unprotected: SharedPortCounters::default(),
            created: AtomicU64::new(0),
            free_buffers: AtomicU64::new(0),
            drops: [const { AtomicU64::new(0) }; DropReason::ALL.len()],
        }
    }

    pub(crate) fn publish(&self, pool: &Pool, protected: &PortCounters, unprotected: &PortCounters) {
        self.protected.publish(protected);
        self.unprotected.publish(unprotected);
        self.created.store(pool.created(), Ordering::Relaxed);
        self.free_buffers.store(pool.available() as u64, Ordering::Relaxed);
        for (reason, count) in pool.drops().iter() {
            self.drops[reason as usize].store(count, Ordering::Relaxed);
        }
    }

    /// The port to the protected side.
    #[must_use]
    pub fn protected(&self) -> PortSnapshot {
        PortSnapshot { name: self.protected_name.clone(), counters: self.protected.snapshot() }
    }

    /// The port to the unprotected side.
    #[must_use]
    pub fn unprotected(&self) -> PortSnapshot {
        PortSnapshot { name: self.unprotected_name.clone(), counters: self.unprotected.snapshot() }
    }

    /// Packets that the gateway made itself: fragments, replies, keepalives.
    #[must_use]
    pub fn created(&self) -> u64 {
        self.created.load(Ordering::Relaxed)
    }

    /// Buffers of the pool that were free after the last turn.
    #[must_use]
    pub fn free_buffers(&self) -> u64 {
        self.free_buffers.load(Ordering::Relaxed)
    }

    /// Drops by reason.
    #[must_use]
    pub fn drops(&self) -> DropCounters {
        let mut counters = DropCounters::default();
        for &reason in DropReason::ALL {
            counters.add(reason, self.drops[reason as usize].load(Ordering::Relaxed));
        }
        counters
    }
}

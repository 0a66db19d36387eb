//! What went through each interface of the protected side, readable by other threads.

use crate::counters::SharedPortCounters;
use std::sync::atomic::{AtomicU64, Ordering};
use testudo_packet::{DropCounters, DropReason, Interface, Pool, Port, PortCounters};

/// An interface at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceSnapshot {
    /// Its name.
    pub name: String,
    /// What went through it.
    pub counters: PortCounters,
    /// Packets that it delivered, or that came to an SA of its tunnels, and were dropped. What comes to no SA
    /// is lost to no interface.
    pub drops: DropCounters,
}

/// The interfaces of a port that has several; none of another port, whose own counters say the same.
#[derive(Debug, Default)]
pub(crate) struct InterfaceCounters {
    interfaces: Vec<Shared>,
    /// How many drops the interfaces have. Most turns have no new one.
    drops: AtomicU64,
}

/// The counters of one as atomics.
#[derive(Debug)]
struct Shared {
    name: String,
    port: SharedPortCounters,
    drops: [AtomicU64; DropReason::ALL.len()],
}

fn numbers() -> impl Iterator<Item = Interface> {
    (0..u8::MAX).map(Interface)
}

impl InterfaceCounters {
    pub(crate) fn of(port: &dyn Port) -> Self {
        let interfaces = numbers().take(port.interfaces()).filter_map(|number| port.interface(number));
        let shared = interfaces.map(|(name, _)| Shared {
            name: name.to_owned(),
            port: SharedPortCounters::default(),
            drops: [const { AtomicU64::new(0) }; DropReason::ALL.len()],
        });
        let interfaces = if port.interfaces() > 1 { shared.collect() } else { Vec::new() };
        Self { interfaces, drops: AtomicU64::new(0) }
    }

    #[inline]
    pub(crate) fn publish(&self, pool: &Pool, port: &dyn Port) {
        if !self.interfaces.is_empty() {
            self.publish_all(pool, port);
        }
    }

    #[inline(never)]
    fn publish_all(&self, pool: &Pool, port: &dyn Port) {
        let has_new_drops = self.drops.load(Ordering::Relaxed) != pool.drops_at_interfaces();
        for (number, shared) in numbers().zip(&self.interfaces) {
            if let Some((_, counters)) = port.interface(number) {
                shared.port.publish(&counters);
            }
            let drops = pool.drops_of(number).filter(|_| has_new_drops);
            for (reason, count) in drops.into_iter().flat_map(DropCounters::iter) {
                shared.drops[reason as usize].store(count, Ordering::Relaxed);
            }
        }
        self.drops.store(pool.drops_at_interfaces(), Ordering::Relaxed);
    }

    pub(crate) fn snapshots(&self) -> Vec<InterfaceSnapshot> {
        let snapshot = |shared: &Shared| {
            let mut drops = DropCounters::default();
            for &reason in DropReason::ALL {
                drops.add(reason, shared.drops[reason as usize].load(Ordering::Relaxed));
            }
            InterfaceSnapshot { name: shared.name.clone(), counters: shared.port.snapshot(), drops }
        };
        self.interfaces.iter().map(snapshot).collect()
    }
}

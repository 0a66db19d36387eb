//! A port that takes everything: the end of a benchmark, with samples of what arrived.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use testudo_packet::{Batch, Buffer, Pool, Port, PortCounters, PortError};

/// What the port and its handle share.
#[derive(Debug, Default)]
struct Shared {
    /// One packet in this many is kept; 0 keeps none.
    interval: AtomicUsize,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    packets: VecDeque<Vec<u8>>,
    at_most: usize,
}

impl Shared {
    /// A thread that panicked with the lock held left whole packets.
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A port that gives nothing, takes everything, and keeps copies of a few packets for the holder of its
/// [`SinkHandle`].
#[derive(Debug)]
pub struct SinkPort {
    name: String,
    shared: Arc<Shared>,
    interval: usize,
    /// Packets until the next that is kept.
    until_next: usize,
    counters: PortCounters,
}

/// Selects which packets of a [`SinkPort`] are kept, and returns them.
#[derive(Debug, Clone)]
pub struct SinkHandle(Arc<Shared>);

impl SinkHandle {
    /// From now on one packet in `interval` is kept (0 keeps none), starting with the next, and of those the
    /// newest `at_most`. Packets kept before are discarded.
    pub fn keep(&self, interval: usize, at_most: usize) {
        let mut kept = self.0.kept();
        *kept = Kept { packets: VecDeque::with_capacity(at_most), at_most };
        // Nothing is kept if there is no room for it.
        self.0.interval.store(if at_most == 0 { 0 } else { interval }, Ordering::Relaxed);
    }

    /// The packets that were kept, oldest first.
    #[must_use]
    pub fn take(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.0.kept().packets).into()
    }
}

impl SinkPort {
    /// A port that keeps nothing yet, and its handle.
    #[must_use]
    pub fn new(name: impl Into<String>) -> (Self, SinkHandle) {
        let shared = Arc::<Shared>::default();
        let handle = SinkHandle(Arc::clone(&shared));
        let counters = PortCounters::default();
        (Self { name: name.into(), shared, interval: 0, until_next: 0, counters }, handle)
    }

    /// Counts down by one packet, and keeps it if it is due.
    fn look_at(&mut self, buffer: &Buffer) {
        if self.until_next > 0 {
            self.until_next -= 1;
            return;
        }
        self.until_next = self.interval - 1;
        let mut kept = self.shared.kept();
        let oldest = if kept.packets.len() < kept.at_most { None } else { kept.packets.pop_front() };
        let mut copy = oldest.unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(buffer.bytes());
        kept.packets.push_back(copy);
    }
}

impl Port for SinkPort {
    fn name(&self) -> &str {
        &self.name
    }

    fn rx(&mut self, _pool: &mut Pool, _batch: &mut Batch) -> Result<usize, PortError> {
        Ok(0)
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let taken = batch.len();
        let interval = self.shared.interval.load(Ordering::Relaxed);
        if interval != self.interval {
            (self.interval, self.until_next) = (interval, 0);
        }
        self.counters.tx_bytes += batch.iter().map(|buffer| buffer.len() as u64).sum::<u64>();
        if interval > 0 {
            // Most batches have no packet to keep: these cost no more than if nothing is ever kept.
            if self.until_next < taken {
                batch.iter().for_each(|buffer| self.look_at(buffer));
            } else {
                self.until_next -= taken;
            }
        }
        pool.recycle_all(batch);
        self.counters.tx_packets += taken as u64;
        self.counters.tx_calls += u64::from(taken > 0);
        Ok(taken)
    }

    fn exhausted(&self) -> bool {
        true
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

    /// Sends the numbers of `range` in batches of 64.
    fn send(port: &mut SinkPort, range: std::ops::Range<u16>) {
        let mut pool = Pool::new(64, 100);
        for number in range.clone() {
            let mut batch = Batch::new();
            if number % 64 == 0 {
                for number in number..(number + 64).min(range.end) {
                    let mut buffer = pool.pop().unwrap();
                    buffer.append(2).unwrap().copy_from_slice(&number.to_be_bytes());
                    batch.push(buffer);
                }
                assert_eq!(
                    port.tx(&mut pool, &mut batch).unwrap(),
                    usize::from((range.end - number).min(64))
                );
                assert_eq!(pool.available(), 64);
            }
        }
    }

    fn numbers(handle: &SinkHandle) -> Vec<u16> {
        handle.take().iter().map(|packet| u16::from_be_bytes([packet[0], packet[1]])).collect()
    }

    #[test]
    fn the_newest_of_one_in_several_are_kept() {
        let (mut port, handle) = SinkPort::new("sink");
        handle.keep(100, 3);
        send(&mut port, 0..1000);
        assert_eq!(numbers(&handle), [700, 800, 900]);
        assert_eq!(port.counters().tx_packets, 1000);
    }

    #[test]
    fn one_in_one_keeps_all() {
        let (mut port, handle) = SinkPort::new("sink");
        handle.keep(1, 1000);
        send(&mut port, 0..200);
        assert_eq!(numbers(&handle), (0..200).collect::<Vec<_>>());
    }

    #[test]
    fn nothing_is_kept_by_default() {
        let (mut port, handle) = SinkPort::new("sink");
        send(&mut port, 0..200);
        handle.keep(1, 0);
        send(&mut port, 0..200);
        assert_eq!(numbers(&handle), [0u16; 0]);
        assert!(port.exhausted());
    }
}

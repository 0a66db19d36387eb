//! A ring between two threads for a few numbers a packet: no lock, no allocation, nothing unsafe.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Alone on its cache lines, so that one end's stores do not take the other's lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Apart(AtomicU64);

#[derive(Debug)]
struct Shared<const N: usize> {
    slots: Box<[[AtomicU64; N]]>,
    /// Slots written and slots read since the beginning.
    written: Apart,
    read: Apart,
}

impl<const N: usize> Shared<N> {
    fn slot(&self, number: u64) -> &[AtomicU64; N] {
        // The number of slots is a power of two.
        let index = number & (self.slots.len() as u64 - 1);
        &self.slots[usize::try_from(index).unwrap_or(0)]
    }
}

/// The end that writes.
#[derive(Debug)]
pub(crate) struct Writer<const N: usize> {
    shared: Arc<Shared<N>>,
    written: u64,
    /// As it was when last looked at.
    read: u64,
}

/// The end that reads.
#[derive(Debug)]
pub(crate) struct Reader<const N: usize> {
    shared: Arc<Shared<N>>,
    read: u64,
    written: u64,
}

/// A ring with room for `slots` entries of N numbers, rounded up to a power of two.
pub(crate) fn ring<const N: usize>(slots: usize) -> (Writer<N>, Reader<N>) {
    let slots =
        (0..slots.next_power_of_two().max(2)).map(|_| std::array::from_fn(|_| AtomicU64::new(0))).collect();
    let shared = Arc::new(Shared { slots, written: Apart::default(), read: Apart::default() });
    let reader = Reader { shared: Arc::clone(&shared), read: 0, written: 0 };
    (Writer { shared, written: 0, read: 0 }, reader)
}

impl<const N: usize> Writer<N> {
    /// Adds an entry; `false` if there is no room, and it is not added.
    #[inline]
    pub(crate) fn push(&mut self, entry: [u64; N]) -> bool {
        let room = self.shared.slots.len() as u64;
        if self.written - self.read == room {
            self.read = self.shared.read.0.load(Ordering::Acquire);
            if self.written - self.read == room {
                return false;
            }
        }
        for (slot, number) in self.shared.slot(self.written).iter().zip(entry) {
            slot.store(number, Ordering::Relaxed);
        }
        self.written += 1;
        self.shared.written.0.store(self.written, Ordering::Release);
        true
    }

    /// Whether the reader has read all.
    pub(crate) fn is_empty(&self) -> bool {
        self.shared.read.0.load(Ordering::Acquire) == self.written
    }
}

impl<const N: usize> Reader<N> {
    /// Whether there is no entry to take.
    pub(crate) fn is_empty(&mut self) -> bool {
        if self.read == self.written {
            self.written = self.shared.written.0.load(Ordering::Acquire);
        }
        self.read == self.written
    }

    /// Takes the oldest entry.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<[u64; N]> {
        if self.read == self.written {
            self.written = self.shared.written.0.load(Ordering::Acquire);
            if self.read == self.written {
                return None;
            }
        }
        let slot = self.shared.slot(self.read);
        let entry = std::array::from_fn(|at| slot[at].load(Ordering::Relaxed));
        self.read += 1;
        self.shared.read.0.store(self.read, Ordering::Release);
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_ring_takes_nothing_until_there_is_room() {
        let (mut writer, mut reader) = ring::<2>(4);
        assert!((0..4).all(|n| writer.push([n, n + 10])));
        assert!(!writer.push([9, 9]) && !writer.is_empty());
        assert_eq!(reader.pop(), Some([0, 10]));
        assert!(writer.push([4, 14]) && !writer.push([9, 9]));
        assert!((1..5).all(|n| reader.pop() == Some([n, n + 10])));
        assert!(reader.pop().is_none() && writer.is_empty());
    }

    #[test]
    fn what_one_thread_writes_another_reads_in_order_and_whole() {
        let (mut writer, mut reader) = ring::<2>(64);
        let count = 200_000;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for n in 0..count {
                    while !writer.push([n, !n]) {
                        std::thread::yield_now();
                    }
                }
            });
            for n in 0..count {
                let pair = loop {
                    match reader.pop() {
                        Some(pair) => break pair,
                        None => std::thread::yield_now(),
                    }
                };
                assert_eq!(pair, [n, !n]);
            }
        });
    }
}

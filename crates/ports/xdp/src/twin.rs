//! A queue whose kernel is played by a test: rings in our own memory, of which the test has the other side.

use crate::ring::{Descriptor, KernelSide, read_by_kernel, written_by_kernel};
use crate::socket::Rings;

/// The other side of a queue's four rings. It may write what it likes.
#[derive(Debug)]
pub struct KernelTwin {
    /// Packets that came.
    pub received: KernelSide<Descriptor>,
    /// Packets to send.
    pub to_send: KernelSide<Descriptor>,
    /// Free frames.
    pub free: KernelSide<u64>,
    /// Frames whose packets were sent.
    pub sent: KernelSide<u64>,
}

impl KernelTwin {
    /// Rings of `entries` entries each, and their other side; `None` unless that is a power of two.
    #[must_use]
    pub fn new(entries: u32) -> Option<(Rings, Self)> {
        let (received, its_received) = written_by_kernel(entries)?;
        let (to_send, its_to_send) = read_by_kernel(entries)?;
        let (free, its_free) = read_by_kernel(entries)?;
        let (sent, its_sent) = written_by_kernel(entries)?;
        let rings = Rings { received, to_send, free, sent };
        let twin = Self { received: its_received, to_send: its_to_send, free: its_free, sent: its_sent };
        Some((rings, twin))
    }
}

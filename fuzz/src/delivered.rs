//! What a port under test delivers, compared with what its model expects.

use std::collections::VecDeque;
use testudo_packet::{Batch, Pool};

/// Compares the first packets of a batch with what is expected; returns their number.
pub(crate) fn deliver(
    batch: &mut Batch,
    count: usize,
    expected: &mut VecDeque<Vec<u8>>,
    pool: &mut Pool,
) -> usize {
    for buffer in batch.drain(..count) {
        let packet = expected.pop_front().expect("a packet that nobody sent");
        assert!(buffer.bytes() == packet, "another packet than the one that was sent");
        pool.recycle(buffer);
    }
    count
}

//! What became of the packets of a batch that a port was given to send.

use crate::{BATCH_SIZE, Batch, DropReason, Pool};

/// What became of one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TxOutcome {
    /// It stays in the batch, for later.
    Kept,
    /// It was sent.
    Sent,
    /// The system refused this one.
    Refused(DropReason),
}

/// What one call of [`Port::tx`](crate::Port::tx) did.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// Packets that left the batch, sent or refused.
    pub taken: usize,
    /// Packets that were sent.
    pub packets: u64,
    /// Their IP bytes.
    pub bytes: u64,
    /// System calls that sent packets.
    pub calls: u64,
}

impl Sent {
    /// Returns the buffers of packets that left to the pool, and closes the gaps in the batch. `calls` system
    /// calls sent them.
    #[must_use]
    pub fn settle(
        pool: &mut Pool,
        batch: &mut Batch,
        outcomes: &[TxOutcome; BATCH_SIZE],
        calls: u64,
    ) -> Self {
        let mut sent = Self { calls, ..Self::default() };
        let mut outcomes = outcomes.iter();
        batch.retain(|buffer| {
            match outcomes.next() {
                None | Some(TxOutcome::Kept) => return true,
                Some(TxOutcome::Sent) => {
                    sent.packets += 1;
                    sent.bytes += buffer.len() as u64;
                    pool.recycle(std::mem::take(buffer));
                }
                Some(TxOutcome::Refused(reason)) => pool.discard(std::mem::take(buffer), *reason),
            }
            sent.taken += 1;
            false
        });
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sent_buffers_return_to_the_pool_and_the_others_keep_their_order() {
        let mut pool = Pool::new(4, 1500);
        let mut batch = Batch::new();
        for length in 1..=4 {
            let mut buffer = pool.pop().unwrap();
            buffer.set_len(length);
            batch.push(buffer);
        }
        let mut outcomes = [TxOutcome::Kept; BATCH_SIZE];
        outcomes[1] = TxOutcome::Sent;
        outcomes[2] = TxOutcome::Refused(DropReason::SendRefused);
        let sent = Sent::settle(&mut pool, &mut batch, &outcomes, 1);
        assert_eq!(sent, Sent { taken: 2, packets: 1, bytes: 2, calls: 1 });
        assert_eq!(batch.iter().map(|b| b.len()).collect::<Vec<_>>(), [1, 4]);
        assert_eq!((pool.available(), pool.drops().get(DropReason::SendRefused)), (2, 1));
    }
}

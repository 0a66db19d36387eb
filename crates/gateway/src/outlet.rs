//! A port and what waits to be sent through it.

use std::collections::VecDeque;
use testudo_packet::{BATCH_SIZE, Batch, Buffer, DropReason, Pool, Port, PortError};

/// More than this does not wait for a port; what comes on top is dropped as [`DropReason::QueueFull`]. The worker stops reading from the other
/// side while anything waits, so only replies, fragments and late completions add to it.
const MAX_WAITING: usize = 4096;

/// A port and what waits to be sent through it.
pub(crate) struct Outlet {
    pub(crate) port: Box<dyn Port>,
    batch: Batch,
    waiting: VecDeque<Buffer>,
}

impl Outlet {
    pub(crate) fn new(port: Box<dyn Port>) -> Self {
        Self { port, batch: Batch::new(), waiting: VecDeque::new() }
    }

    /// Whether anything waits.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.batch.is_empty() || !self.waiting.is_empty()
    }

    #[inline]
    pub(crate) fn push(&mut self, buffer: Buffer, pool: &mut Pool) {
        if self.waiting.is_empty() && !self.batch.is_full() {
            self.batch.push(buffer);
        } else {
            self.wait(buffer, pool);
        }
    }

    #[cold]
    fn wait(&mut self, buffer: Buffer, pool: &mut Pool) {
        if self.waiting.len() < MAX_WAITING {
            self.waiting.push_back(buffer);
        } else {
            pool.discard(buffer, DropReason::QueueFull);
        }
    }

    /// Sends until all is sent or the port takes no more; returns how many left.
    pub(crate) fn flush(&mut self, pool: &mut Pool) -> Result<usize, PortError> {
        let mut sent = 0;
        loop {
            let room = BATCH_SIZE - self.batch.len();
            self.batch.extend(self.waiting.drain(..room.min(self.waiting.len())));
            if self.batch.is_empty() {
                return Ok(sent);
            }
            match self.port.tx(pool, &mut self.batch)? {
                0 => return Ok(sent),
                n => sent += n,
            }
        }
    }

    /// Sends while a whole batch is there; what is left may still be joined by what comes next.
    pub(crate) fn flush_full(&mut self, pool: &mut Pool) -> Result<(), PortError> {
        while self.batch.is_full() && self.port.tx(pool, &mut self.batch)? > 0 {
            let room = BATCH_SIZE - self.batch.len();
            self.batch.extend(self.waiting.drain(..room.min(self.waiting.len())));
        }
        Ok(())
    }

    /// Discards what waits.
    pub(crate) fn discard_all(&mut self, pool: &mut Pool) {
        for buffer in self.batch.drain(..).chain(self.waiting.drain(..)) {
            pool.discard(buffer, DropReason::ShuttingDown);
        }
    }
}

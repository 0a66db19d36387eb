//! Frames that came in several buffers: jumbo frames, whose parts are put into one long buffer of the pool.

use crate::queue::MOST_PARTS;
use arrayvec::ArrayVec;
use testudo_packet::{Buffer, DropReason, Pool};

/// The parts of a frame that have come.
#[derive(Debug, Default)]
pub(crate) struct Gatherer {
    parts: ArrayVec<Buffer, MOST_PARTS>,
    bytes: usize,
    /// Why the frame will be dropped when its last part is there.
    lost: Option<DropReason>,
}

impl Gatherer {
    /// Adds a part, and returns the frame if it is the last one. A frame that is dropped counts once, however
    /// many parts it has.
    #[inline]
    pub(crate) fn add(
        &mut self,
        part: Result<Buffer, DropReason>,
        is_last: bool,
        pool: &mut Pool,
    ) -> Option<Buffer> {
        // Nearly all frames are in one buffer.
        match part {
            Ok(buffer) if is_last && self.parts.is_empty() && self.lost.is_none() => Some(buffer),
            part => self.add_part(part, is_last, pool),
        }
    }

    #[cold]
    fn add_part(
        &mut self,
        part: Result<Buffer, DropReason>,
        is_last: bool,
        pool: &mut Pool,
    ) -> Option<Buffer> {
        match part {
            Err(reason) => self.lose(reason, pool),
            Ok(buffer) if self.lost.is_some() => pool.recycle(buffer),
            Ok(buffer) => {
                self.bytes += buffer.len();
                if let Err(full) = self.parts.try_push(buffer) {
                    pool.recycle(full.element());
                    self.lose(DropReason::ReceiveTruncated, pool);
                }
            }
        }
        is_last.then(|| self.end(pool)).flatten()
    }

    /// Gives up what has come of a frame, which is no packet yet.
    pub(crate) fn clear(&mut self, pool: &mut Pool) {
        self.parts.drain(..).for_each(|part| pool.recycle(part));
    }

    fn lose(&mut self, reason: DropReason, pool: &mut Pool) {
        self.lost.get_or_insert(reason);
        self.parts.drain(..).for_each(|part| pool.recycle(part));
    }

    fn end(&mut self, pool: &mut Pool) -> Option<Buffer> {
        let bytes = std::mem::take(&mut self.bytes);
        if self.lost.is_none() && bytes > pool.packet_bytes() {
            self.lose(DropReason::ReceiveTruncated, pool);
        }
        let whole = if self.lost.is_none() { pool.pop_for(bytes) } else { None };
        let Some(mut whole) = whole else {
            self.lose(DropReason::PoolEmpty, pool);
            pool.count(self.lost.take().unwrap_or(DropReason::PoolEmpty), 1);
            return None;
        };
        let mut at = 0;
        for part in self.parts.drain(..) {
            whole.receive_area()[at..at + part.len()].copy_from_slice(part.bytes());
            at += part.len();
            pool.recycle(part);
        }
        whole.set_len(at);
        Some(whole)
    }
}

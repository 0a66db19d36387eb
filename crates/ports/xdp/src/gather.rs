//! Frames that came in several buffers, as jumbo frames do: these become a chain, and nothing is merged.
//!
//! ```text
//!   | headroom | part … | link | ► | headroom | … part … | link | ► | headroom | … part | tailroom |
//!                 64 bytes at most ───────────►
//! ```
//!
//! A link takes a cache line of tailroom, and the kernel fills a frame to its end: the part's last bytes, as
//! many as stand there, move to the headroom of the next one. Behind the last part the pool's tailroom stays
//! free, for a trailer and an ICV: what stands there moves to a frame of its own.
//!
//! Where a device has not been told that frames come in several buffers, or the kernel leaves no headroom,
//! the parts are put into one long buffer.

use crate::queue::MOST_PARTS;
use arrayvec::ArrayVec;
use testudo_packet::{Buffer, DropReason, Pool, TAILROOM_BYTES};

/// Bytes of tailroom that a link takes ([`Buffer::link`]).
const LINK_BYTES: usize = 64;

/// The parts of a frame that have come.
#[derive(Debug, Default)]
pub(crate) struct Gatherer {
    parts: ArrayVec<Buffer, MOST_PARTS>,
    bytes: usize,
    /// Why the frame will be dropped when its last part is there.
    lost: Option<DropReason>,
    /// Whether frames may be chains.
    links: bool,
    /// Frames that became chains.
    chains: u64,
    /// Frames that were put into one buffer.
    merged: u64,
}

impl Gatherer {
    /// One whose frames may be chains, or are merged.
    pub(crate) fn new(links: bool) -> Self {
        Self { links, ..Self::default() }
    }

    /// Frames that became chains, and frames that were put into one buffer.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.chains, self.merged)
    }

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
        if self.lost.is_none() {
            let is_chain = self.links && self.make_room();
            let frame = if is_chain { self.link(pool) } else { self.merge(bytes, pool) };
            if frame.is_some() {
                return frame;
            }
            self.lose(DropReason::PoolEmpty, pool);
        }
        if let Some(reason) = self.lost.take() {
            pool.count(reason, 1);
        }
        None
    }

    /// Makes room for a link behind every part but the last; `false` where there is none. The bytes of all
    /// parts are the same in any case.
    fn make_room(&mut self) -> bool {
        for at in 1..self.parts.len() {
            let [part, next] = &mut self.parts[at - 1..=at] else { return false };
            if !give_way(part, next) {
                return false;
            }
        }
        true
    }

    /// The parts as a chain. Room was made.
    fn link(&mut self, pool: &mut Pool) -> Option<Buffer> {
        let mut chain = self.parts.pop()?;
        leave_tailroom(&mut chain, pool);
        while let Some(mut part) = self.parts.pop() {
            if let Err(rest) = part.link(chain) {
                // Not reached: there is room, and the parts are fewer than a chain may have.
                pool.recycle(part);
                pool.recycle(rest);
                return None;
            }
            chain = part;
        }
        self.chains += 1;
        Some(chain)
    }

    /// The parts in one buffer that is long enough; `None` if all such are in use.
    fn merge(&mut self, bytes: usize, pool: &mut Pool) -> Option<Buffer> {
        let mut whole = pool.pop_for(bytes)?;
        let mut at = 0;
        for part in self.parts.drain(..) {
            whole.receive_area()[at..at + part.len()].copy_from_slice(part.bytes());
            at += part.len();
            pool.recycle(part);
        }
        whole.set_len(at);
        self.merged += 1;
        Some(whole)
    }
}

/// Moves what stands in the place of the link from a part's end to the next one's front; `false`, with both
/// unchanged, if it has not that many bytes, or there is no headroom.
fn give_way(part: &mut Buffer, next: &mut Buffer) -> bool {
    let missing = LINK_BYTES.saturating_sub(part.tailroom());
    if missing == 0 {
        return true;
    }
    let Some(kept) = part.len().checked_sub(missing) else { return false };
    let Ok(place) = next.prepend(missing) else { return false };
    place.copy_from_slice(&part.bytes()[kept..]);
    part.truncate(kept);
    true
}

/// Leaves the pool's tailroom behind the last part. Without a frame for what stands there, the packet stays
/// as it is: only who seals it needs the room, and says so where it lacks.
fn leave_tailroom(last: &mut Buffer, pool: &mut Pool) {
    let bytes = last.len();
    let moved = TAILROOM_BYTES.saturating_sub(last.tailroom()).min(bytes);
    if moved == 0 {
        return;
    }
    let Some(mut end) = pool.pop() else { return };
    end.receive_area()[..moved].copy_from_slice(&last.bytes()[bytes - moved..]);
    end.set_len(moved);
    last.truncate(bytes - moved);
    if let Err(end) = last.link(end) {
        // A short part at its frame's very end.
        last.set_len(bytes);
        pool.recycle(end);
    }
}

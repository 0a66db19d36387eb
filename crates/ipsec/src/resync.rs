//! Resynchronisation of extended sequence numbers after a long loss (RFC 4303 appendix A3, RFC 4302 appendix
//! B3).
//!
//! Packets carry the low half of their number; the receiver infers the high half from its window. When 2^32
//! packets in a row are lost, it infers a half that is too low, and the ICV of every later packet is wrong.
//!
//! ```text
//!   packets fail, the window stays ── 32 of them ──► a copy of every eighth is tried under a higher half:
//!                                                    + 1, + 2, … + 16, + 1, …
//!   a copy is authentic: the window moves to its number, and the copy is delivered
//! ```
//!
//! - No packet moves the window before it is authenticated: a copy is a job as any other.
//! - Work is bounded. Who forges packets of an SA adds an eighth to what these cost; and nothing while the
//!   peer's packets arrive, since each moves the window and ends the run.
//! - Halves are tried upwards only. What somebody has recorded has the number under which it was received, so
//!   that its ICV is wrong under every higher half.
//!
//! Without ESN numbers end before 2^32, and there is nothing to do.

use crate::encap::{Encap, then};
use crate::event::{Event, EventKind};
use crate::sa::InboundSa;
use crate::slots::SaRef;
use testudo_crypto::{Direction, Job};
use testudo_packet::{DropReason, Pool};

/// Packets that fail in a row before a half is tried.
const PATIENCE: u8 = 32;
/// Packets that fail for each one that is tried.
const FOR_EACH_TRY: u8 = 8;
/// The farthest half that is tried, above the one that is inferred: 16 times 2^32 packets.
const FARTHEST: u8 = 16;

/// What an SA knows of packets that failed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Resync {
    /// The low bits of the window's highest number when they did: enough to see that it moves.
    top: u16,
    /// How many, up to [`PATIENCE`].
    failures: u8,
    /// The half that was tried last, above the inferred one.
    tried: u8,
}

impl Resync {
    /// Notes that an ICV was wrong while this was the window's highest number.
    fn failed(&mut self, top: u64) {
        let top = u16::try_from(top & 0xFFFF).unwrap_or(0);
        if self.top != top {
            *self = Self { top, ..Self::default() };
        }
        self.failures = self.failures.saturating_add(1).min(PATIENCE);
    }

    /// Whether the next packet is to be tried under another half.
    #[inline(always)]
    pub(crate) fn is_due(self) -> bool {
        self.failures >= PATIENCE
    }

    /// Whether packets may be on their way that are tried.
    #[inline(always)]
    pub(crate) fn is_searching(self) -> bool {
        self.failures >= PATIENCE - FOR_EACH_TRY
    }

    /// The half to try now, above the inferred one.
    fn next_try(&mut self) -> u64 {
        self.failures = PATIENCE - FOR_EACH_TRY;
        self.tried = self.tried % FARTHEST + 1;
        self.tried.into()
    }
}

impl InboundSa {
    /// A job that tries a copy of the packet of `job` under a higher half of its number. `None` where no
    /// buffer is free, or the SA has no extended numbers.
    #[cold]
    #[inline(never)]
    pub(crate) fn try_higher_half(&mut self, job: &Job, sa_ref: SaRef, pool: &mut Pool) -> Option<Job> {
        if !self.esn {
            return None;
        }
        let sequence = job.sequence.checked_add(self.resync.next_try() << 32)?;
        let bytes = job.buffer.chain_bytes();
        let mut copy = pool.create(bytes)?;
        let Some(area) = copy.receive_area().get_mut(..bytes) else {
            pool.discard(copy, DropReason::NoRoom);
            return None;
        };
        job.buffer.copy_to(0, area);
        copy.set_len(bytes);
        Some(Job {
            sequence,
            esn: true,
            auth_start: job.auth_start,
            text_start: job.text_start,
            text_bytes: job.text_bytes,
            then: then::RESYNCHRONISE,
            ..Job::new(copy, Direction::Open, sa_ref.bits())
        })
    }

    /// Notes why a job ended without an authentic packet; the reason to count it under.
    #[cold]
    pub(crate) fn note_failure(&mut self, job: &Job, reason: DropReason) -> DropReason {
        match reason {
            DropReason::AuthenticationFailed if job.then & then::RESYNCHRONISE != 0 => {
                DropReason::ResyncFailed
            }
            // VPE has its numbers whole.
            DropReason::AuthenticationFailed if self.encap != Encap::Vpe => {
                self.resync.failed(self.window.top());
                self.watch(self.is_watched);
                reason
            }
            _ => reason,
        }
    }

    /// An authentic packet has moved the window on from `before`: a copy that was tried, or the peer has not
    /// lost so many packets.
    #[cold]
    pub(crate) fn end_search(&mut self, job: &Job, before: u64, events: &mut Vec<Event>) {
        self.resync = Resync::default();
        self.watch(self.is_watched);
        if job.then & then::RESYNCHRONISE != 0 {
            let lost = self.window.top().saturating_sub(before).saturating_sub(1);
            let kind = EventKind::Resynchronised { spi: self.spi, lost };
            events.push(Event { tunnel: self.tunnel, kind });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_tried_in_turn_after_many_failures_and_for_every_eighth() {
        let mut resync = Resync::default();
        let mut tries = Vec::new();
        for failure in 1..=400 {
            resync.failed(7);
            if resync.is_due() {
                tries.push((failure, resync.next_try()));
            }
        }
        let expected = (0..=46).map(|n| (32 + 8 * n, n % 16 + 1));
        assert_eq!(tries, expected.collect::<Vec<_>>());
    }

    #[test]
    fn a_packet_that_moves_the_window_ends_the_run() {
        let mut resync = Resync::default();
        for top in 0..100 {
            (0..31).for_each(|_| resync.failed(top));
            assert!(!resync.is_due());
        }
    }
}

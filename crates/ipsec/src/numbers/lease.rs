//! The lease of an SA's sequence numbers (the nonce contract).
//!
//! ```text
//!   control thread                          worker
//!   store: numbers up to N are taken ──►    Lease (granted up to N) ──► reserved for packets
//!          (durable before granted)  ◄──    "wanted" with the first packet, then with half of a block
//!   store: numbers from M on are free ◄──   Lease (used up to M): the SA is gone
//! ```
//!
//! A number reaches a packet only after the durable store has recorded it as taken. After a crash that record
//! remains, so that the next start continues above it: numbers are skipped, never used twice. Numbers that an
//! SA has not used when it ends may be given back, because they can no longer be reserved.
//!
//! Only keys that may outlive the process need that. The numbers of a key that dies with it are *ephemeral*:
//! they begin at 1 and come from memory alone ([`NumberSource`]).

use super::gates::GatedNumbers;
use super::shared_sequence::SharedNumbers;
use crate::own_numbers::OwnNumbers;
use crate::sync::{AtomicBool, AtomicU64, Ordering};
use std::fmt;
use std::sync::Arc;

/// Wakes the thread that grants numbers. Called by the worker, so it must not block.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// Numbers that the durable store has set aside for one SA, shared by the control thread, which grants, and
/// the worker, which reserves.
pub struct Lease {
    /// First number that may not be used yet.
    end: AtomicU64,
    /// The worker wants more.
    wanted: AtomicBool,
    /// No more will be granted.
    is_last: AtomicBool,
    /// First number that was not used when the SA ended; 0 while it lasts.
    unused: AtomicU64,
    waker: Option<Waker>,
}

impl Lease {
    /// A lease of the numbers below `end`.
    #[must_use]
    pub fn until(end: u64) -> Self {
        Self::new(end, None)
    }

    /// A lease of the numbers below `end`, with something to call when the worker wants more.
    #[must_use]
    pub fn with_waker(end: u64, waker: Waker) -> Self {
        Self::new(end, Some(waker))
    }

    fn new(end: u64, waker: Option<Waker>) -> Self {
        Self {
            end: AtomicU64::new(end),
            wanted: AtomicBool::new(false),
            is_last: AtomicBool::new(false),
            unused: AtomicU64::new(0),
            waker,
        }
    }

    /// First number that may not be used yet.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// Grants the numbers below `end`, which must already be recorded durably as taken. A lease never
    /// shrinks.
    pub fn grant(&self, end: u64) {
        self.end.fetch_max(end, Ordering::Release);
    }

    /// Says that no more will be granted: the key has no numbers left.
    pub fn finish(&self) {
        self.is_last.store(true, Ordering::Release);
    }

    /// Whether the worker has requested more since the last call.
    pub fn take_request(&self) -> bool {
        self.wanted.swap(false, Ordering::AcqRel)
    }

    /// First number that no packet has or ever will have, once the SA has ended; `None` while it lasts, or if
    /// there was no SA.
    #[must_use]
    pub fn unused(&self) -> Option<u64> {
        Some(self.unused.load(Ordering::Acquire)).filter(|&number| number > 0)
    }

    /// Whether no more will be granted. Read before [`end`](Self::end), so that all that was granted before
    /// is seen.
    pub(super) fn is_last(&self) -> bool {
        self.is_last.load(Ordering::Acquire)
    }

    /// The SA has ended, and this is the first number that it has not used.
    pub(super) fn give_back_from(&self, number: u64) {
        self.unused.store(number, Ordering::Release);
    }

    /// Asks for more, and wakes who grants.
    pub(super) fn request(&self) {
        if !self.wanted.load(Ordering::Relaxed) {
            // A swap, not a store, so that it is ordered among the swaps of `take_request`: loom does not
            // order a plain store against a concurrent swap, and then finds a lost request.
            self.wanted.swap(true, Ordering::AcqRel);
            if let Some(wake) = &self.waker {
                wake();
            }
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("end", &self.end).field("wanted", &self.wanted).finish_non_exhaustive()
    }
}

/// Where the numbers of an outbound SA come from.
#[derive(Debug, Clone)]
pub enum NumberSource {
    /// From the durable store, which grants them in blocks: for a key that may be used again after a restart,
    /// as one that was typed in.
    Leased {
        /// First number to send.
        first: u64,
        /// The lease of the numbers from there on.
        lease: Arc<Lease>,
    },
    /// From 1 on (RFC 4303 2.2), from memory alone: for a key that no other process has or ever will have.
    Ephemeral,
    /// From those that several workers share: each of them installs the SA with a clone of this one.
    Shared(Arc<SharedNumbers>),
    /// Those of an SA of VPE, which several workers send through: each of them installs it with a
    /// [source of its own](Self::of_worker).
    Gated(GatedNumbers),
    /// Those of an SA that one of several workers alone sends through ([`NumberSource::of_one`]).
    OfOne(OwnNumbers),
}

impl NumberSource {
    /// No numbers, and none to come: for an SA that another worker alone sends through.
    #[must_use]
    pub fn none() -> Self {
        Self::Leased { first: 1, lease: Arc::new(Lease::until(0)) }
    }

    /// The same numbers for up to `workers` workers that send through the SA, to a peer with this window
    /// ([`SharedNumbers::new`]).
    #[must_use]
    pub fn shared(self, esn: bool, peer_window: u32, workers: usize) -> Self {
        match self {
            Self::Shared(_) | Self::Gated(_) => self,
            source => Self::Shared(Arc::new(SharedNumbers::new(source, esn, peer_window, workers))),
        }
    }

    /// The same numbers for workers that send through an SA of VPE, each in windows of its own; here for the
    /// first one. Numbers that are shared already stay so.
    #[must_use]
    pub fn gated(self, esn: bool) -> Self {
        match self {
            Self::Shared(_) | Self::Gated(_) => self,
            source => Self::Gated(GatedNumbers::new(source, esn)),
        }
    }

    /// The same numbers for the worker with this index, once they are shared.
    #[must_use]
    pub fn of_worker(&self, worker: usize) -> Self {
        match self {
            Self::Gated(numbers) => Self::Gated(numbers.of_worker(worker)),
            source => source.clone(),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_lease_never_shrinks() {
        let lease = Lease::until(10);
        lease.grant(5);
        assert_eq!(lease.end(), 10);
    }
}

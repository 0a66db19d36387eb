//! What is granted of the numbers that several workers take from one source.

use super::lease::{Lease, NumberSource};
use super::sequence::{SequenceError, last_number};
use crate::sync::{AtomicU64, Ordering};
use std::sync::Arc;

/// A lease as far as any worker has seen it, or numbers from memory alone.
#[derive(Debug)]
pub(super) struct Grants {
    /// The end of the lease, as far as anybody has seen it.
    leased: AtomicU64,
    /// Past this number more are requested, once: then it is moved to the end of the lease. It only grows.
    low_water: AtomicU64,
    /// The highest number of the SA.
    pub(super) last: u64,
    lease: Option<Arc<Lease>>,
}

impl Grants {
    /// What this source grants, and its first number.
    pub(super) fn new(source: NumberSource, esn: bool) -> (Self, u64) {
        let last = last_number(esn);
        let (first, lease) = match source {
            NumberSource::Leased { first, lease } => (first.max(1), Some(lease)),
            NumberSource::Ephemeral => (1, None),
            // Those belong to others: none is left for these.
            NumberSource::Shared(_) | NumberSource::Gated(_) | NumberSource::OfOne(_) => (last + 1, None),
        };
        let leased = match &lease {
            Some(lease) => {
                let leased = lease.end().min(last.saturating_add(1)).max(first);
                // As with numbers of one worker: the first block is small, the first packet requests more.
                if leased == first && leased <= last {
                    lease.request();
                }
                leased
            }
            None => last + 1,
        };
        let low_water = AtomicU64::new(if lease.is_some() { first } else { leased });
        (Self { leased: AtomicU64::new(leased), low_water, last, lease }, first)
    }

    /// How many of `wanted` numbers from `first` on may be used. Requests more where the lease is running
    /// out.
    pub(super) fn granted(&self, first: u64, wanted: u64) -> Result<u64, SequenceError> {
        if first > self.last {
            return Err(SequenceError::Exhausted);
        }
        let end = first.saturating_add(wanted).min(self.last + 1);
        let Some(lease) = &self.lease else { return Ok(end - first) };
        let (mut leased, mut is_last) = (self.leased.load(Ordering::Acquire), false);
        if end > leased {
            // Read before the lease's end.
            is_last = lease.is_last();
            leased = self.look(lease, first, leased);
        }
        if end > self.low_water.load(Ordering::Relaxed) {
            self.ask(lease, leased);
        }
        match end.min(leased).checked_sub(first) {
            None | Some(0) if is_last => Err(SequenceError::Exhausted),
            None | Some(0) => Err(SequenceError::NotLeased),
            Some(count) => Ok(count),
        }
    }

    /// Reads what is granted by now.
    #[cold]
    fn look(&self, lease: &Lease, first: u64, known: u64) -> u64 {
        let end = lease.end().min(self.last + 1);
        if end <= known {
            return known;
        }
        // Release: who reads it may use numbers that this thread alone knows to be recorded.
        self.leased.fetch_max(end, Ordering::AcqRel);
        let half = first + end.saturating_sub(first) / 2;
        self.low_water.fetch_max(half, Ordering::Relaxed);
        end
    }

    /// Requests another block, once for each that is granted: of several workers that find themselves past
    /// low water, the one that moves it does.
    #[cold]
    fn ask(&self, lease: &Lease, leased: u64) {
        if self.low_water.fetch_max(leased, Ordering::Relaxed) < leased && leased <= self.last {
            lease.request();
        }
    }

    /// The SA has ended for all workers, and this is the first number that none of them has used.
    pub(super) fn give_back_from(&self, number: u64) {
        if let Some(lease) = &self.lease {
            lease.give_back_from(number);
        }
    }
}

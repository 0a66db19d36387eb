//! The next sequence numbers of an outbound SA, as the worker has them that reserves them.

use super::gates::Gate;
use super::lease::{Lease, NumberSource};
use super::shared_sequence::Reserver;
use crate::shared_use::SharedUse;
use std::sync::Arc;

/// Why there is no next number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SequenceError {
    /// All numbers of the SA are used: it needs a new key (RFC 4303 3.3.3).
    #[error("all sequence numbers are used")]
    Exhausted,
    /// The leased numbers are used up, and no more are granted yet.
    #[error("no sequence number is leased")]
    NotLeased,
    /// Other workers of the SA have numbers in flight that are so much lower that a peer might drop either
    /// packet as too old. The packet waits.
    #[error("sequence numbers in flight fill the peer's window")]
    PeerWindowFull,
}

/// The low water of an SA that found no number. Its packets go one by one until there are numbers, so that
/// the end of the outage is noticed. It has already requested what it needs.
const STARVED: u64 = 0;

/// The next numbers of one outbound SA, as one worker has them: all of them, or those that it has reserved of
/// [numbers that workers share](super::SharedNumbers). The fast path is the same: up to low water, numbers
/// are its own.
#[derive(Debug)]
#[repr(C)]
pub struct SequenceNumbers {
    next: u64,
    /// At this number the worker requests more, once: then low water moves to the end of the lease, and to
    /// [`STARVED`] when that is used up. Of shared numbers, the end of the block that is reserved; of VPE,
    /// up to where this worker may number.
    low_water: u64,
    /// End of the lease when last read.
    leased: u64,
    supply: Supply,
}

/// Where a worker gets its numbers from.
#[derive(Debug)]
enum Supply {
    /// All are at hand.
    Ephemeral {
        esn: bool,
    },
    Leased {
        esn: bool,
        lease: Arc<Lease>,
    },
    Shared(Box<Reserver>),
    Gated(Box<Gate>),
}

/// As long as without the kinds that are shared.
const _: () = assert!(size_of::<SequenceNumbers>() == 40);

impl SequenceNumbers {
    /// The numbers of an SA. Without ESN they end at 2^32 - 1, with it at 2^64 - 2: nothing wraps.
    /// `None` if they are shared, and as many workers as there may be have them already, or of VPE the one
    /// with this index.
    #[must_use]
    pub fn of(source: NumberSource, esn: bool) -> Option<Self> {
        match source {
            NumberSource::Leased { first, lease } => Some(Self::new(first, esn, lease)),
            NumberSource::Ephemeral => {
                let end = last_number(esn) + 1;
                Some(Self { next: 1, low_water: end, leased: end, supply: Supply::Ephemeral { esn } })
            }
            NumberSource::OfOne(own) => {
                Self::of(own.source.map_or_else(NumberSource::none, |source| *source), esn)
            }
            NumberSource::Shared(numbers) => numbers.join().map(Self::shared),
            NumberSource::Gated(numbers) => numbers.join().map(|(gate, first)| {
                let supply = Supply::Gated(Box::new(gate));
                Self { next: first, low_water: first, leased: first, supply }
            }),
        }
    }

    /// Leased numbers from `first` on.
    #[must_use]
    pub fn new(first: u64, esn: bool, lease: Arc<Lease>) -> Self {
        let last = last_number(esn);
        let first = first.max(1);
        let leased = lease.end().min(last.saturating_add(1)).max(first);
        // The first block is small: the first packet requests more.
        if leased == first && leased <= last {
            lease.request();
        }
        Self { next: first, low_water: first, leased, supply: Supply::Leased { esn, lease } }
    }

    /// Numbers that other workers reserve, too.
    #[must_use]
    pub fn shared(reserver: Reserver) -> Self {
        Self { next: 0, low_water: 0, leased: 0, supply: Supply::Shared(Box::new(reserver)) }
    }

    /// Reserves the next number.
    ///
    /// # Errors
    /// [`SequenceError`] says why there is none; nothing is used up then.
    #[inline]
    pub fn reserve(&mut self) -> Result<u64, SequenceError> {
        if self.next >= self.low_water {
            self.refill()?;
        }
        let number = self.next;
        self.next += 1;
        Ok(number)
    }

    /// Reserves the next `count` numbers and returns the first. Returns `None`, with nothing used up, if the
    /// lease does not have that many, or other workers have too much in flight: [`reserve`](Self::reserve)
    /// then gives the reason.
    #[inline]
    pub fn reserve_run(&mut self, count: u64) -> Option<u64> {
        let first = self.next;
        let next = first.checked_add(count)?;
        // Below low water, numbers are within the lease and within the SA's limit.
        if next > self.low_water {
            return self.reserve_beyond(next, count);
        }
        self.next = next;
        Some(first)
    }

    /// Whether as many numbers are at hand without a look at the lease. A worker that numbers windows of its
    /// own asks for more of them.
    #[inline]
    pub(crate) fn has_far(&mut self, count: u64) -> bool {
        let is_at_hand =
            |numbers: &Self| numbers.next.checked_add(count).is_some_and(|next| next <= numbers.low_water);
        is_at_hand(self) || self.open_gate(count).is_ok() && is_at_hand(self)
    }

    /// Has up to `wanted` numbers at hand, and one at least, of a worker that numbers windows of its own.
    #[cold]
    fn open_gate(&mut self, wanted: u64) -> Result<(), SequenceError> {
        let Supply::Gated(gate) = &self.supply else { return Err(SequenceError::NotLeased) };
        self.low_water = gate.bound(self.next, wanted)?;
        Ok(())
    }

    /// Leaves all numbers up to `last` out. `false` if they are used already, or none is left behind them.
    pub(crate) fn advance(&mut self, last: u64) -> bool {
        if let Supply::Shared(reserver) = &self.supply {
            return reserver.shared().advance(last);
        }
        let is_ahead = last.saturating_add(1) >= self.next && last < self.last();
        if is_ahead {
            self.next = last + 1;
        }
        match &self.supply {
            Supply::Gated(gate) => gate.leave_out(last) && is_ahead,
            _ => is_ahead,
        }
    }

    /// The number that [`reserve`](Self::reserve) gives next; of shared numbers, the lowest that it may give.
    #[must_use]
    pub fn next(&self) -> u64 {
        match &self.supply {
            Supply::Shared(reserver) => reserver.shared().next(),
            _ => self.next,
        }
    }

    /// The first number that no window of VPE has used, whichever worker's it is.
    pub(crate) fn unused(&self) -> u64 {
        match &self.supply {
            Supply::Gated(gate) => gate.unused(),
            _ => self.next(),
        }
    }

    /// No worker is to number windows of VPE any more.
    pub(crate) fn close_gates(&self) {
        if let Supply::Gated(gate) = &self.supply {
            gate.close();
        }
    }

    /// Whether a worker has said so.
    #[inline]
    pub(crate) fn are_gates_closed(&self) -> bool {
        matches!(&self.supply, Supply::Gated(gate) if gate.is_closed())
    }

    /// Whether other workers reserve them, too.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.supply, Supply::Shared(_))
    }

    /// Whether a packet that is to have the next number has to wait for other workers. If not, that number is
    /// at hand, unless there is another reason why there is none.
    pub(crate) fn must_wait(&mut self) -> bool {
        let is_empty = self.next >= self.low_water;
        is_empty && self.is_shared() && self.reserve_block(1) == Err(SequenceError::PeerWindowFull)
    }

    /// Whether there is a next number, as [`reserve`](Self::reserve) would find, and asks for more as it
    /// does; nothing is used up. Of those that are shared one is at hand then.
    ///
    /// # Errors
    /// [`SequenceError`] says why there is none.
    pub(crate) fn look_ahead(&mut self) -> Result<(), SequenceError> {
        if self.next >= self.low_water { self.refill() } else { Ok(()) }
    }

    /// Of numbers that are shared: what all workers have used of the SA's lifetime.
    pub(crate) fn used(&self) -> Option<&Arc<SharedUse>> {
        match &self.supply {
            Supply::Shared(reserver) => Some(reserver.shared().used()),
            Supply::Gated(gate) => Some(gate.used()),
            Supply::Ephemeral { .. } | Supply::Leased { .. } => None,
        }
    }

    /// What shared numbers are reserved through.
    pub(crate) fn reserver(&mut self) -> Option<&mut Reserver> {
        match &mut self.supply {
            Supply::Shared(reserver) => Some(reserver),
            _ => None,
        }
    }

    /// Has a block of up to `most` shared numbers at hand, and returns how many there are. Those that the
    /// last block had left are left out.
    ///
    /// # Errors
    /// [`SequenceError`] says why there are none.
    pub(crate) fn reserve_block(&mut self, most: u64) -> Result<u64, SequenceError> {
        let Some(reserver) = self.reserver() else { return Err(SequenceError::NotLeased) };
        let block = reserver.reserve(1, most)?;
        (self.next, self.low_water) = (block.first, block.end);
        Ok(block.end - block.first)
    }

    /// Leaves out what is left of the block.
    pub(crate) fn leave_rest_out(&mut self) {
        self.next = self.low_water;
    }

    /// The highest number that the SA sends.
    fn last(&self) -> u64 {
        match self.supply {
            Supply::Ephemeral { esn } | Supply::Leased { esn, .. } => last_number(esn),
            // Not asked: those who share it know.
            Supply::Shared(_) => 0,
            Supply::Gated(_) => last_number(true),
        }
    }

    fn lease(&self) -> Option<&Arc<Lease>> {
        match &self.supply {
            Supply::Leased { lease, .. } => Some(lease),
            _ => None,
        }
    }

    /// [`reserve_run`](Self::reserve_run) up to `next`, which is above low water.
    #[cold]
    fn reserve_beyond(&mut self, next: u64, count: u64) -> Option<u64> {
        if let Supply::Shared(reserver) = &mut self.supply {
            // Who waits was here before.
            let block = if reserver.waits { None } else { reserver.reserve(count, count).ok() }?;
            (self.next, self.low_water) = (block.end, block.end);
            return Some(block.first);
        }
        if !self.covers(next) {
            return None;
        }
        Some(std::mem::replace(&mut self.next, next))
    }

    /// Whether the numbers below `next`, which is above low water, are leased. Requests more.
    fn covers(&mut self, next: u64) -> bool {
        if self.low_water == STARVED {
            return false;
        }
        if next > self.leased {
            self.look();
        }
        if next > self.low_water {
            self.ask();
        }
        next <= self.leased
    }

    #[cold]
    fn refill(&mut self) -> Result<(), SequenceError> {
        match self.supply {
            Supply::Shared(_) => return self.reserve_block(1).map(|_| ()),
            Supply::Gated(_) => return self.open_gate(1),
            Supply::Ephemeral { .. } | Supply::Leased { .. } => {}
        }
        if self.next > self.last() {
            return Err(SequenceError::Exhausted);
        }
        // Read before the lease's end.
        let is_last = self.lease().is_some_and(|lease| lease.is_last());
        if self.next >= self.leased {
            self.look();
        }
        if self.next < self.leased {
            if self.next >= self.low_water {
                self.ask();
            }
            return Ok(());
        }
        self.low_water = STARVED;
        Err(if is_last { SequenceError::Exhausted } else { SequenceError::NotLeased })
    }

    /// Requests another block, once per block; the grant is noticed when the lease is used up.
    fn ask(&mut self) {
        if self.low_water < self.leased {
            self.low_water = self.leased;
            // After the last number there is nothing to request.
            if self.leased <= self.last()
                && let Some(lease) = self.lease()
            {
                lease.request();
            }
        }
    }

    /// Reads what is granted by now.
    fn look(&mut self) {
        let Some(lease) = self.lease() else { return };
        let end = lease.end().min(self.last().saturating_add(1));
        if end > self.leased {
            self.leased = end;
            self.low_water = self.next + (end - self.next) / 2;
        }
    }
}

/// The SA has ended: no more of its numbers will be used.
impl Drop for SequenceNumbers {
    fn drop(&mut self) {
        if let Some(lease) = self.lease() {
            lease.give_back_from(self.next);
        }
    }
}

/// The highest number that an SA sends.
pub(super) fn last_number(esn: bool) -> u64 {
    if esn { u64::MAX - 1 } else { u32::MAX.into() }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn runs_reach_the_end_of_the_lease_and_request_more_on_the_way() {
        let lease = Arc::new(Lease::until(11));
        let mut numbers = SequenceNumbers::new(1, true, Arc::clone(&lease));
        assert_eq!(numbers.reserve_run(2), Some(1));
        assert!(lease.take_request(), "the first packets ask");
        lease.grant(111);
        assert_eq!(
            numbers.reserve_run(10),
            Some(3),
            "what was granted meanwhile goes on where the lease ended"
        );
        // 98 are left; low water is 57, halfway between 3, where the grant was noticed, and 111, where it
        // ends.
        assert_eq!((numbers.reserve_run(50), lease.take_request()), (Some(13), true));
        assert_eq!((numbers.reserve_run(48), lease.take_request()), (Some(63), false), "once for each block");
        assert_eq!(numbers.reserve_run(1), None);
        assert_eq!(numbers.reserve(), Err(SequenceError::NotLeased));
        lease.grant(1001);
        assert_eq!(
            (numbers.reserve_run(1), numbers.reserve()),
            (None, Ok(111)),
            "after an outage, one goes alone"
        );
        assert_eq!((numbers.reserve_run(800), lease.take_request()), (Some(112), true));
    }

    #[test]
    fn a_run_that_exceeds_the_lease_reserves_nothing() {
        let lease = Arc::new(Lease::until(11));
        let mut numbers = SequenceNumbers::new(1, true, lease);
        assert_eq!((numbers.reserve_run(11), numbers.reserve_run(10)), (None, Some(1)));
        assert_eq!((numbers.reserve_run(1), numbers.reserve_run(0)), (None, Some(11)));
    }

    #[test]
    fn ephemeral_numbers_begin_at_1_and_end_as_leased_ones_do() {
        for (esn, last) in [(false, u64::from(u32::MAX)), (true, u64::MAX - 1)] {
            let mut numbers = SequenceNumbers::of(NumberSource::Ephemeral, esn).unwrap();
            assert_eq!((numbers.reserve(), numbers.reserve_run(10), numbers.next()), (Ok(1), Some(2), 12));
            assert_eq!(numbers.reserve_run(last - 13), Some(12));
            assert_eq!(numbers.reserve_run(3), None, "two are left");
            assert_eq!((numbers.reserve_run(1), numbers.reserve()), (Some(last - 1), Ok(last)));
            assert_eq!((numbers.reserve_run(1), numbers.reserve()), (None, Err(SequenceError::Exhausted)));
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::atomic::{AtomicU64 as Durable, Ordering};
    use loom::thread;

    /// Under every interleaving: no number is used before it is durably noted, and none twice.
    #[test]
    fn no_number_is_used_before_it_is_recorded() {
        loom::model(|| {
            let lease = Arc::new(Lease::until(2));
            let durable = loom::sync::Arc::new(Durable::new(2));
            let control = {
                let (lease, durable) = (Arc::clone(&lease), durable.clone());
                thread::spawn(move || {
                    for end in [3, 4] {
                        durable.store(end, Ordering::Relaxed);
                        lease.grant(end);
                    }
                })
            };
            let mut numbers = SequenceNumbers::new(1, true, lease);
            let mut previous = 0;
            for _ in 0..3 {
                if let Ok(number) = numbers.reserve() {
                    assert!(number > previous, "{number} after {previous}");
                    assert!(number < durable.load(Ordering::Relaxed), "{number} is not noted");
                    previous = number;
                }
            }
            control.join().unwrap();
        });
    }

    /// Runs that cross low water and the end of the lease while it grows: each number is used once, and none
    /// before it is recorded.
    #[test]
    fn runs_use_no_number_before_it_is_recorded() {
        loom::model(|| {
            let lease = Arc::new(Lease::until(3));
            let durable = loom::sync::Arc::new(Durable::new(3));
            let control = {
                let (lease, durable) = (Arc::clone(&lease), durable.clone());
                thread::spawn(move || {
                    for end in [5, 7] {
                        durable.store(end, Ordering::Relaxed);
                        lease.grant(end);
                    }
                })
            };
            let mut numbers = SequenceNumbers::new(1, true, lease);
            let mut next = 1;
            for count in [1, 2, 2] {
                if let Some(first) = numbers.reserve_run(count) {
                    assert_eq!(first, next);
                    next += count;
                    assert!(next <= durable.load(Ordering::Relaxed), "{next} is not noted");
                }
            }
            control.join().unwrap();
        });
    }

    /// The numbers that an SA reports as unused at its end are exactly the unused ones: all below may be on
    /// the wire, none above.
    #[test]
    fn numbers_given_back_were_not_used() {
        loom::model(|| {
            let lease = Arc::new(Lease::until(3));
            let worker = {
                let lease = Arc::clone(&lease);
                thread::spawn(move || {
                    let mut numbers = SequenceNumbers::new(1, true, lease);
                    (0..3).filter_map(|_| numbers.reserve().ok()).last()
                })
            };
            lease.grant(4);
            let before = lease.unused();
            let last = worker.join().unwrap();
            assert_eq!(lease.unused(), last.map(|last| last + 1));
            assert!(before.is_none() || before == lease.unused(), "it is said once");
        });
    }

    /// A request made while an earlier one is being answered is not lost.
    #[test]
    fn no_request_is_lost() {
        loom::model(|| {
            let lease = Arc::new(Lease::until(2));
            let control = {
                let lease = Arc::clone(&lease);
                thread::spawn(move || {
                    if lease.take_request() {
                        lease.grant(3);
                    }
                })
            };
            let mut numbers = SequenceNumbers::new(1, true, Arc::clone(&lease));
            let starved = (0..2).any(|_| numbers.reserve().is_err());
            control.join().unwrap();
            if starved && lease.end() < 3 {
                assert!(lease.take_request(), "the worker starves and nobody knows");
            }
        });
    }
}

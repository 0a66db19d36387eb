//! Sequence numbers of one outbound SA through which several workers send.
//!
//! ```text
//!                       ┌ next: the first number that nobody has reserved
//!   source (lease, or   │                                    worker 0: reserves [40, 48), low 40
//!   from memory alone) ─┴► SharedNumbers ── compare-exchange ► worker 1: reserves [48, 56), low 48
//!                          slots: [40, 48, idle, …]          worker 2: nothing in flight, idle
//! ```
//!
//! A worker reserves a block of numbers for each run of packets, with one atomic operation, and uses them
//! like numbers of its own. What it does not use is left out: to give a number back would let `next` go
//! back, and then the argument below does not hold.
//!
//! **Spread.** Packets of different workers overtake each other, and a peer drops those that are left of its
//! window (RFC 4303 3.4.3). So numbers in flight, those that are reserved and not handed to the port yet,
//! stay within `peer_window` less one block: [a, a + n) is reserved only if a + n less the lowest number in
//! flight is no more than that. Otherwise a worker gets fewer numbers or none, keeps its packets, and tries
//! again in its next turn. The block that is left out is for what the port still has.
//!
//! Each worker has a *slot*, in which it tells the lowest number that it has in flight. To reserve numbers,
//!
//! - (1) it reads `next`, which is a;
//! - (2) it looks for the lowest number in all slots;
//! - (3) if it has nothing in flight, it writes a into its slot: it will reserve nothing lower;
//! - (4) it moves `next` from a to a + n, which fails if `next` is not a any more; then it begins anew.
//!
//! Nothing that is in flight when `next` moves is missed. Let x be in flight, reserved by another worker:
//! that one wrote x or less into its slot (3) before it moved `next` past x (4). Since x < a, this worker has
//! read a `next` that the other's move, or a later one, has written (1), so that it sees what the other's
//! slot had then, or later (2); and until x is handed over the slot has x or less. What is reserved between 2
//! and 4 makes 4 fail, since `next` only grows.
//!
//! For the same reason the lowest number that a worker has once found stays a lower bound for ever, and it
//! looks again (2) only where that bound is too low. With a wide window it seldom does.
//!
//! **Room for others.** A worker that took the whole spread for one batch would have the others wait until
//! it has sealed and sent all of it. So it reserves no more than its share
//! ([`Reserver::has_its_share`]) before it hands over, one block with a small window, unless nobody else
//! has reserved any for some time. And as blocks are short then, what a reservation needs is in one cache
//! line, the slots of the first workers included, which moves to the worker once for each block.
//!
//! **Workers come and go.** A slot is taken with [`SharedNumbers::join`] and free again when its [`Reserver`]
//! is dropped, also while a thread that panicked unwinds. A worker that has the same lowest number for
//! [`STALLED`] is passed over ([`SharedNumbers::pass_over_stalled`]): what it has may come too late for the
//! peer then, and nobody waits for it.

use super::grants::Grants;
use super::lease::NumberSource;
use super::padded::Padded;
use super::sequence::SequenceError;
use crate::lifetime::Moment;
use crate::shared_use::SharedUse;
use crate::sync::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;
use testudo_packet::BATCH_SIZE;

/// The most workers that may send through one SA.
pub const MAX_SHARERS: usize = 64;
/// The window that a peer has unless something else is known of it, in packets: Linux's, and RFC 4303's
/// least.
pub const DEFAULT_PEER_WINDOW: u32 = 32;
/// A worker that has handed nothing over for so long is not waited for.
pub const STALLED: Duration = Duration::from_secs(1);

/// Workers whose slots are beside the counter: what a cache line has room for.
#[cfg(not(loom))]
const NEAR: usize = 7;
/// Few, so that both kinds of slots are tried.
#[cfg(loom)]
const NEAR: usize = 1;
/// In a slot: nothing is in flight. More than any number.
const IDLE: u64 = u64::MAX;
/// After so many blocks in a row nobody else reserves numbers, and a worker need not leave any to others.
const ALONE: u32 = 16;
/// How often a worker begins anew, at most, when others were faster. Then it tries in its next turn.
const TRIES: usize = 8;

/// The numbers of one outbound SA, shared by the workers that send through it.
#[derive(Debug)]
pub struct SharedNumbers {
    counter: Padded<Counter>,
    /// The slots of the workers after the first [`NEAR`].
    far: Box<[Padded<AtomicU64>]>,
    workers: usize,
    grants: Grants,
    /// Numbers in flight lie within so many.
    spread: u64,
    /// The longest block.
    block: u64,
    /// Which slots belong to somebody: a bit for each.
    taken: AtomicU64,
    /// Since when each slot says what it says.
    watched: Box<[Watched]>,
    used: Arc<SharedUse>,
}

/// What each reservation reads and moves, of a few workers all in one line: it comes once for a block.
#[derive(Debug)]
struct Counter {
    /// The first number that nobody has reserved.
    next: AtomicU64,
    /// The lowest number that each of the first workers has in flight, or [`IDLE`].
    near: [AtomicU64; NEAR],
}

/// A slot, as [`SharedNumbers::pass_over_stalled`] saw it last.
#[derive(Debug)]
struct Watched {
    low: AtomicU64,
    /// When it first saw that, in milliseconds of the workers' clock.
    since_ms: AtomicU64,
}

impl SharedNumbers {
    /// Numbers of this source for up to `workers` workers, of which up to [`MAX_SHARERS`] can join. They stay
    /// within `peer_window`, of at least two packets: the window that the peer has.
    #[must_use]
    pub fn new(source: NumberSource, esn: bool, peer_window: u32, workers: usize) -> Self {
        let (grants, first) = Grants::new(source, esn);
        let window = u64::from(peer_window).max(2);
        let block = (window / 4).clamp(1, BATCH_SIZE as u64);
        let workers = workers.clamp(1, MAX_SHARERS);
        Self {
            counter: Padded(Counter {
                next: AtomicU64::new(first),
                near: std::array::from_fn(|_| AtomicU64::new(IDLE)),
            }),
            far: (NEAR..workers).map(|_| Padded(AtomicU64::new(IDLE))).collect(),
            workers,
            grants,
            spread: window - block,
            block,
            taken: AtomicU64::new(0),
            watched: (0..workers)
                .map(|_| Watched { low: AtomicU64::new(IDLE), since_ms: AtomicU64::new(0) })
                .collect(),
            used: Arc::new(SharedUse::new()),
        }
    }

    /// What the workers have used of the SA's lifetime.
    pub(crate) fn used(&self) -> &Arc<SharedUse> {
        &self.used
    }

    /// Takes a slot for a worker; `None` if all belong to others.
    #[must_use]
    pub fn join(self: &Arc<Self>) -> Option<Reserver> {
        let mut taken = self.taken.load(Ordering::Relaxed);
        loop {
            let slot = (!taken).trailing_zeros() as usize;
            if slot >= self.workers {
                return None;
            }
            // Acquire: what the slot's former worker wrote into it comes before what this one will.
            let joined = taken | 1 << slot;
            match self.taken.compare_exchange(taken, joined, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => {
                    return Some(Reserver {
                        shared: Arc::clone(self),
                        slot,
                        low: 0,
                        end: 0,
                        flying: 0,
                        alone: 0,
                        was_full: false,
                        waits: false,
                        is_noted: false,
                    });
                }
                Err(now) => taken = now,
            }
        }
    }

    /// The first number that nobody has reserved.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.counter.0.next.load(Ordering::Acquire)
    }

    /// The longest block that is reserved at once, in numbers.
    #[must_use]
    pub fn block(&self) -> u64 {
        self.block
    }

    /// Within how many numbers those in flight lie.
    #[must_use]
    pub fn spread(&self) -> u64 {
        self.spread
    }

    /// Leaves all numbers up to `last` out. `false` if they are used already, or none is left after them.
    pub(super) fn advance(&self, last: u64) -> bool {
        last < self.grants.last && self.counter.0.next.fetch_max(last + 1, Ordering::AcqRel) <= last + 1
    }

    /// Has nobody wait any longer for workers that have handed nothing over for [`STALLED`]: they hang, or
    /// have ended without telling. To be called about once a second, by any of the workers. If such a worker
    /// lives, it goes on with numbers of its own as before; only what it had in flight may be more than the
    /// spread behind the others.
    pub fn pass_over_stalled(&self, now: Moment) {
        let now_ms = u64::try_from(now.0.as_millis()).unwrap_or(u64::MAX);
        for (slot, watched) in self.slots().zip(&self.watched) {
            let low = slot.load(Ordering::Acquire);
            if watched.low.load(Ordering::Acquire) != low {
                // In this order: who sees the number sees a time that is not older.
                watched.since_ms.store(now_ms, Ordering::Relaxed);
                watched.low.store(low, Ordering::Release);
                continue;
            }
            let since_ms = watched.since_ms.load(Ordering::Relaxed);
            if low != IDLE && u128::from(now_ms.saturating_sub(since_ms)) >= STALLED.as_millis() {
                // Fails if the worker has told something else in the meantime: then it lives.
                let _ = slot.compare_exchange(low, IDLE, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }

    /// The slots of all workers.
    fn slots(&self) -> impl Iterator<Item = &AtomicU64> {
        self.counter.0.near.iter().take(self.workers).chain(self.far.iter().map(|slot| &slot.0))
    }

    fn slot(&self, number: usize) -> &AtomicU64 {
        match self.counter.0.near.get(number) {
            Some(near) => near,
            None => &self.far[number - NEAR].0,
        }
    }

    /// The lowest number in flight, if `next` was not lower than this one when that was read.
    fn lowest_in_flight(&self, next: u64, except: Option<usize>) -> u64 {
        let slots = self.slots().enumerate().filter(|(slot, _)| Some(*slot) != except);
        slots.map(|(_, low)| low.load(Ordering::Acquire)).fold(next, u64::min)
    }
}

/// The SA has ended, for all workers and for who has installed it: no more of its numbers will be used.
impl Drop for SharedNumbers {
    fn drop(&mut self) {
        self.grants.give_back_from(self.next());
    }
}

/// A block of numbers that a worker has reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// The first one.
    pub first: u64,
    /// The first one after them.
    pub end: u64,
}

/// What one worker reserves numbers through.
#[derive(Debug)]
pub struct Reserver {
    shared: Arc<SharedNumbers>,
    slot: usize,
    /// No number below is in flight: what was found when this worker last looked.
    low: u64,
    /// The end of the block that it reserved last.
    end: u64,
    /// Numbers that it has reserved since it last handed any over.
    flying: u64,
    /// Blocks since another worker has reserved any, up to [`ALONE`].
    alone: u32,
    /// It found the spread full when it last tried.
    was_full: bool,
    /// Packets of this worker wait for numbers: those that come after them must, too.
    pub(crate) waits: bool,
    /// This worker will tell that it has handed over what it has in flight.
    pub(crate) is_noted: bool,
}

impl Reserver {
    /// Reserves numbers that follow each other: up to `most`, and none if there are not `least`.
    ///
    /// # Errors
    /// [`SequenceError`] says why there are none; nothing is used up then.
    pub fn reserve(&mut self, least: u64, most: u64) -> Result<Block, SequenceError> {
        let shared = &*self.shared;
        let most = most.min(shared.block);
        if least > most || self.was_full && self.is_full(least, most)? {
            return Err(SequenceError::PeerWindowFull);
        }
        let slot = shared.slot(self.slot);
        let is_idle = slot.load(Ordering::Relaxed) == IDLE;
        let own = is_idle.then_some(self.slot);
        if is_idle {
            // Changes nothing, but has the line come to be written, at once: it would come to be read, and
            // then again. (Who passes this worker over writes the same.)
            slot.swap(IDLE, Ordering::Relaxed);
        }
        let reserved = self.try_reserve(least, most, own);
        match reserved {
            Ok(Block { first, end }) => {
                self.alone = if first == self.end { (self.alone + 1).min(ALONE) } else { 0 };
                self.flying = if is_idle { 0 } else { self.flying } + (end - first);
                self.end = end;
            }
            Err(_) if is_idle => self.shared.slot(self.slot).store(IDLE, Ordering::Release),
            Err(_) => {}
        }
        self.was_full = reserved == Err(SequenceError::PeerWindowFull);
        reserved
    }

    /// [`reserve`](Self::reserve), with a slot that is `own` if nothing is in flight.
    fn try_reserve(&mut self, least: u64, most: u64, own: Option<usize>) -> Result<Block, SequenceError> {
        let shared = &*self.shared;
        let next = &shared.counter.0.next;
        for _ in 0..TRIES {
            let first = shared.next();
            let mut count = shared.grants.granted(first, most)?;
            let fit = |low: u64| low.saturating_add(shared.spread).saturating_sub(first);
            if fit(self.low) < count {
                self.low = shared.lowest_in_flight(first, own);
                let fitting = fit(self.low);
                if fitting < least.min(count) {
                    break;
                }
                count = count.min(fitting);
            }
            if count < least {
                // The end of the lease is near: one at a time.
                return Err(SequenceError::NotLeased);
            }
            if own.is_some() {
                // Before `next` moves, which releases it: who finds `next` beyond these numbers finds this,
                // too.
                shared.slot(self.slot).store(first, Ordering::Release);
            }
            let end = first + count;
            if next.compare_exchange(first, end, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return Ok(Block { first, end });
            }
        }
        Err(SequenceError::PeerWindowFull)
    }

    /// Whether [`reserve`](Self::reserve) would find the spread full: a look that leaves the lines to those
    /// that write them.
    fn is_full(&self, least: u64, most: u64) -> Result<bool, SequenceError> {
        let first = self.shared.next();
        let count = self.shared.grants.granted(first, most)?;
        let low = self.shared.lowest_in_flight(first, None);
        Ok(low.saturating_add(self.shared.spread).saturating_sub(first) < least.min(count))
    }

    /// Whether the worker should hand over what it has in flight before it reserves more, so that others do
    /// not have to wait: it has its share of the spread, one block aside for who is late.
    #[must_use]
    pub fn has_its_share(&self) -> bool {
        let (spread, block) = (self.shared.spread(), self.shared.block());
        let sharers = u64::from(self.shared.taken.load(Ordering::Relaxed).count_ones()).max(1);
        self.alone < ALONE && self.flying >= ((spread - block) / sharers).max(block)
    }

    /// The worker has handed to the port, or dropped, every packet with a number below this one that it has
    /// reserved.
    pub fn handed_over_below(&mut self, number: u64) {
        let slot = self.shared.slot(self.slot);
        let low = slot.load(Ordering::Relaxed);
        // One that was passed over stays so.
        if low < number {
            self.flying = 0;
            slot.store(if number >= self.end { IDLE } else { number }, Ordering::Release);
        }
    }

    /// The worker has nothing in flight.
    pub fn handed_over_all(&mut self) {
        self.handed_over_below(self.end);
    }

    /// What the workers share.
    #[must_use]
    pub fn shared(&self) -> &Arc<SharedNumbers> {
        &self.shared
    }
}

/// The worker sends no more: nobody waits for it, and its slot is free.
impl Drop for Reserver {
    fn drop(&mut self) {
        self.shared.slot(self.slot).store(IDLE, Ordering::Release);
        self.shared.taken.fetch_and(!(1 << self.slot), Ordering::AcqRel);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::super::lease::Lease;
    use super::*;
    use loom::sync::Mutex;
    use loom::sync::atomic::AtomicU64 as Durable;
    use loom::thread;

    type Reserve = fn(&mut Reserver) -> Result<Block, SequenceError>;

    /// Reserves a block twice, and hands each over; returns what it got. `flying` has no number that is not
    /// in flight.
    fn send(worker: &mut Reserver, reserve: Reserve, flying: &Mutex<Vec<u64>>, spread: u64) -> Vec<u64> {
        let mut used = Vec::new();
        for _ in 0..2 {
            let Ok(block) = reserve(worker) else { continue };
            used.extend(block.first..block.end);
            let mut now = flying.lock().unwrap();
            now.extend(block.first..block.end);
            let (low, high) = (now.iter().min().unwrap(), now.iter().max().unwrap());
            assert!(high + 1 - low <= spread, "numbers in flight are too far apart: {now:?}");
            drop(now);
            flying.lock().unwrap().retain(|number| !used.contains(number));
            worker.handed_over_all();
        }
        used
    }

    fn workers_keep_within(peer_window: u32, reserve: Reserve) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let all = Arc::new(SharedNumbers::new(NumberSource::Ephemeral, true, peer_window, 2));
            let flying = loom::sync::Arc::new(Mutex::new(Vec::new()));
            let (mut one, mut two) = (all.join().unwrap(), all.join().unwrap());
            let spread = all.spread();
            let other = {
                let flying = flying.clone();
                thread::spawn(move || send(&mut one, reserve, &flying, spread))
            };
            let mut used = send(&mut two, reserve, &flying, spread);
            used.extend(other.join().unwrap());
            used.sort_unstable();
            assert!(used.iter().copied().eq(1..all.next()), "{used:?}");
        });
    }

    /// No number twice, none left out, and none in flight beside one that is farther away than the spread:
    /// here of one, so that only one may be in flight.
    #[test]
    fn one_number_in_flight_excludes_others() {
        workers_keep_within(2, |worker| worker.reserve(1, 1));
    }

    /// The same with a spread of three.
    #[test]
    fn numbers_in_flight_keep_within_the_spread() {
        workers_keep_within(4, |worker| worker.reserve(1, 1));
    }

    /// The model is worth something: it finds a worker that tells what it has in flight (3) only after it has
    /// moved `next` (4).
    #[test]
    #[should_panic(expected = "numbers in flight are too far apart")]
    fn a_slot_that_is_written_too_late_is_found() {
        workers_keep_within(2, |worker| {
            let shared = Arc::clone(&worker.shared);
            let slot = shared.slot(worker.slot);
            let first = shared.next();
            if shared.lowest_in_flight(first, Some(worker.slot)) + shared.spread() <= first {
                return Err(SequenceError::PeerWindowFull);
            }
            let next = &shared.counter.0.next;
            let moved = next.compare_exchange(first, first + 1, Ordering::AcqRel, Ordering::Relaxed);
            moved.map_err(|_| SequenceError::PeerWindowFull)?;
            slot.store(first, Ordering::Release);
            worker.end = first + 1;
            Ok(Block { first, end: first + 1 })
        });
    }

    /// Two workers use no number before it is recorded, though one alone has seen the grant.
    #[test]
    fn shared_numbers_are_not_used_before_they_are_recorded() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let lease = Arc::new(Lease::until(2));
            let durable = loom::sync::Arc::new(Durable::new(2));
            let source = NumberSource::Leased { first: 1, lease: Arc::clone(&lease) };
            let all = Arc::new(SharedNumbers::new(source, true, 64, 2));
            let workers = [(); 2].map(|()| {
                let (mut worker, durable) = (all.join().unwrap(), durable.clone());
                thread::spawn(move || {
                    worker.reserve(1, 2).map_or(0, |block| {
                        assert!(block.end <= durable.load(Ordering::Relaxed), "{block:?} is not noted");
                        block.end - block.first
                    })
                })
            });
            durable.store(4, Ordering::Relaxed);
            lease.grant(4);
            let used: u64 = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
            assert_eq!(all.next(), 1 + used);
            assert!(lease.take_request(), "the first packets ask");
            drop(all);
            assert_eq!(lease.unused(), Some(1 + used), "the last worker has told");
        });
    }
}

//! The order of each SA's jobs, while any are under way.
//!
//! A job that may end later than its successor gets a ticket, the next of its SA. The SA's ring has a slot
//! for each ticket from the next to release to the last that was issued, and says what is known of its job:
//!
//! ```text
//!   ticket     41          42      43          44         45       46
//!   slot       engine 0    ended   engine 1    given up   ended    is issued next
//!              └─ next to release; when it comes, 42 follows, and 43 is next: when that comes, 45 follows
//! ```
//!
//! An SA has a ring while it has tickets that are not released; with engines that end jobs inside `submit` it
//! has none. A ring that is empty serves the next SA.
//!
//! **Memory.** A slot stands for a job that has a buffer, or for one that was given up while an earlier one
//! is awaited. An engine is given up once, and holds at most the whole pool then; at least one engine is
//! still in service, since something is awaited. So the slots in use are at most [`MAX_ENGINES`] times the
//! buffers of the pool, for all SAs together. Rings keep what they have grown to, up to twice that sum;
//! beyond it all of them are cut to what they use.

use crate::in_flight::Taken;
use crate::placement::MAX_ENGINES;
use std::collections::VecDeque;
use testudo_crypto::{Direction, Job, JobStatus};
use testudo_ipsec::{Prepared, SaRef};
use testudo_packet::Buffer;

/// Names a job under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct JobId {
    pub(crate) direction: Direction,
    pub(crate) sa: SaRef,
    pub(crate) ticket: u32,
}

/// The id of a job.
pub(crate) fn job_id(job: &Job) -> JobId {
    JobId { direction: job.direction, sa: Prepared::sa_of(job), ticket: job.ticket }
}

/// A job whose SA is gone: it is not to be used, even if its engine has done it.
#[cold]
pub(crate) fn orphaned(job: Job) -> Job {
    Job { status: JobStatus::Fault, ..job }
}

/// A stand-in for a job that was given up: a fault without the buffer, which the engine still has.
pub(crate) fn lost_job(JobId { direction, sa, ticket }: JobId) -> Job {
    Job { ticket, status: JobStatus::Fault, ..Job::new(Buffer::default(), direction, sa.bits()) }
}

/// Which ring an SA has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RingIndex(u32);

impl RingIndex {
    /// No ring.
    pub(crate) const NONE: Self = Self(u32::MAX);
}

/// What is known of a job between its ticket and its release.
#[derive(Debug, Clone, Copy)]
enum Slot {
    /// On its way to an engine.
    Queued,
    /// An engine holds it.
    Taken(Taken),
    /// It has ended and waits for earlier ones of its SA.
    Ended(Parked),
    /// Its engine will not give it back.
    GivenUp,
}

/// An SA has such a part of what a turn releases late before it is the next one's turn.
const LATE_AT_ONCE: usize = 4;

/// Eight jobs to a cache line: an engine may hold thousands.
const _: () = assert!(size_of::<Slot>() == 8);

/// Where an ended job waits.
#[derive(Debug, Clone, Copy)]
struct Parked(u32);

/// Ended jobs that wait for earlier ones of their SA. Those of an engine that ends them in order never do.
/// Bounded by the pool, since every job has a buffer.
#[derive(Debug, Default)]
struct Parking {
    jobs: Vec<Option<Job>>,
    free: Vec<Parked>,
}

impl Parking {
    #[inline]
    fn len(&self) -> usize {
        self.jobs.len() - self.free.len()
    }

    fn park(&mut self, job: Job) -> Parked {
        let parked = self.free.pop().unwrap_or_else(|| {
            self.jobs.push(None);
            Parked(u32::try_from(self.jobs.len() - 1).unwrap_or(u32::MAX))
        });
        self.jobs[parked.0 as usize] = Some(job);
        parked
    }

    fn leave(&mut self, parked: Parked) -> Option<Job> {
        self.free.push(parked);
        self.jobs[parked.0 as usize].take()
    }
}

/// The jobs of one SA that are under way.
#[derive(Debug)]
struct Ring {
    direction: Direction,
    sa: SaRef,
    /// Ticket of the first slot: the next to release.
    first: u32,
    /// A ring buffer: ticket `first + n` is `n` slots after the first, wherever that is.
    slots: VecDeque<Slot>,
    /// A turn had no time for all that could be released.
    is_late: bool,
}

impl Ring {
    /// Which slot a ticket has that was issued and is not released.
    #[inline]
    fn position(&self, ticket: u32) -> Option<usize> {
        // Underflow wraps to a huge number, so one comparison rejects what is released and what is not
        // issued.
        let position = ticket.wrapping_sub(self.first) as usize;
        (position < self.slots.len()).then_some(position)
    }

    #[inline]
    fn slot(&mut self, ticket: u32) -> Option<&mut Slot> {
        self.position(ticket).and_then(|position| self.slots.get_mut(position))
    }

    /// Releases the first ticket.
    #[inline]
    fn pop(&mut self) -> Option<Slot> {
        self.first = self.first.wrapping_add(1);
        self.slots.pop_front()
    }

    /// Whether nothing is awaited before the first slot's job can be released.
    #[inline]
    fn is_ready(&self) -> bool {
        matches!(self.slots.front(), Some(Slot::Ended(_) | Slot::GivenUp))
    }
}

/// The rings of all SAs that have jobs under way.
#[derive(Debug)]
pub(crate) struct Rings {
    rings: Vec<Ring>,
    /// Those that no SA has.
    unused: Vec<RingIndex>,
    /// Slots that all rings have room for, and the most that they may.
    room: usize,
    room_max: usize,
    parking: Parking,
    /// Jobs that waited for others and may still be released in this turn, and rings that have more of them.
    left: usize,
    late: VecDeque<RingIndex>,
}

impl Rings {
    /// Rings for a pool of `buffers` buffers.
    pub(crate) fn new(buffers: usize) -> Self {
        let room_max = 2 * MAX_ENGINES * buffers;
        Self {
            rings: Vec::new(),
            unused: Vec::new(),
            room: 0,
            room_max,
            parking: Parking::default(),
            left: usize::MAX,
            late: VecDeque::new(),
        }
    }

    /// A turn begins, in which so many jobs at most are released that have waited for others.
    #[inline]
    pub(crate) fn begin_turn(&mut self, most: usize) {
        self.left = most;
    }

    /// Whether jobs could be released for which a turn had no time.
    #[inline]
    pub(crate) fn has_late(&self) -> bool {
        !self.late.is_empty()
    }

    /// Releases jobs for which the turn before had no time, a share of each SA in turn, so that none waits
    /// for all of another one. SAs that have no ring any more go to `finished`.
    pub(crate) fn release_late(
        &mut self,
        released: &mut Vec<Job>,
        mut finished: impl FnMut(Direction, SaRef),
    ) {
        let share = (self.left / LATE_AT_ONCE).max(1);
        let mut left = self.left;
        while left > 0
            && let Some(index) = self.late.pop_front()
        {
            let Some(ring) = self.ring(index) else { continue };
            let (direction, sa) = (ring.direction, ring.sa);
            ring.is_late = false;
            self.left = left.min(share);
            left -= self.left;
            if self.advance(index, released) {
                finished(direction, sa);
            }
            left += self.left;
        }
        self.left = left;
    }

    /// Takes memory now for so many jobs that have ended and wait for earlier ones.
    pub(crate) fn reserve(&mut self, jobs: usize) {
        self.parking.jobs.reserve(jobs);
        self.parking.free.reserve(jobs);
    }

    #[inline]
    fn ring(&mut self, RingIndex(index): RingIndex) -> Option<&mut Ring> {
        self.rings.get_mut(index as usize)
    }

    /// Jobs that have ended and wait for earlier ones of their SA.
    #[inline]
    pub(crate) fn waiting(&self) -> usize {
        self.parking.len()
    }

    /// A ring for an SA that has none, and whose next ticket is `first`.
    pub(crate) fn begin(&mut self, direction: Direction, sa: SaRef, first: u32) -> RingIndex {
        if let Some(index) = self.unused.pop() {
            if let Some(ring) = self.ring(index) {
                (ring.direction, ring.sa, ring.first) = (direction, sa, first);
            }
            return index;
        }
        let index = u32::try_from(self.rings.len()).unwrap_or(u32::MAX);
        self.rings.push(Ring { direction, sa, first, slots: VecDeque::new(), is_late: false });
        // For when it ends or is late, which is with a packet.
        self.unused.reserve(self.rings.len());
        self.late.reserve(self.rings.len());
        RingIndex(index)
    }

    /// The SA's next ticket is issued.
    #[inline]
    pub(crate) fn issue(&mut self, index: RingIndex) {
        let Some(ring) = self.ring(index) else { return };
        let room = ring.slots.capacity();
        ring.slots.push_back(Slot::Queued);
        let grown = ring.slots.capacity() - room;
        if grown > 0 {
            self.grown_by(grown);
        }
    }

    #[cold]
    fn grown_by(&mut self, slots: usize) {
        self.room += slots;
        if self.room > self.room_max {
            self.rings.iter_mut().for_each(|ring| ring.slots.shrink_to_fit());
            self.room = self.rings.iter().map(|ring| ring.slots.capacity()).sum();
        }
    }

    /// Whether a ticket was issued and is not released.
    pub(crate) fn awaits(&self, RingIndex(index): RingIndex, ticket: u32) -> bool {
        let ring = self.rings.get(index as usize);
        ring.is_some_and(|ring| (ticket.wrapping_sub(ring.first) as usize) < ring.slots.len())
    }

    /// An engine took a job; `false` if its ticket is unknown.
    #[inline]
    pub(crate) fn take(&mut self, index: RingIndex, ticket: u32, taken: Taken) -> bool {
        let slot = self.ring(index).and_then(|ring| ring.slot(ticket));
        slot.map(|slot| *slot = Slot::Taken(taken)).is_some()
    }

    /// An engine gives a job back; `None` if it does not hold it, or no longer.
    #[inline]
    pub(crate) fn give_back(&mut self, index: RingIndex, ticket: u32, engine: usize) -> Option<Taken> {
        let slot = self.ring(index)?.slot(ticket)?;
        match *slot {
            Slot::Taken(taken) if taken.is_by(engine) => {
                *slot = Slot::Queued;
                Some(taken)
            }
            _ => None,
        }
    }

    /// Releases an ended job in its turn, and then those that waited for it. `true` if none is left: then the
    /// SA has no ring any more.
    #[inline]
    pub(crate) fn release_in_order(&mut self, index: RingIndex, job: Job, released: &mut Vec<Job>) -> bool {
        let ring = self.rings.get_mut(index.0 as usize);
        let Some((position, ring)) = ring.and_then(|ring| Some((ring.position(job.ticket)?, ring))) else {
            released.push(orphaned(job));
            return false;
        };
        if position > 0 {
            ring.slots[position] = Slot::Ended(self.parking.park(job));
            return false;
        }
        released.push(job);
        ring.pop();
        self.advance(index, released)
    }

    /// An engine gives back a job that has ended, which is released in its turn, and then those that waited
    /// for it. Returns when it was taken, and whether none is left: then the SA has no ring any more. The
    /// job, if the engine does not hold it, or no longer.
    #[inline]
    pub(crate) fn end_in_order(
        &mut self,
        index: RingIndex,
        engine: usize,
        job: Job,
        released: &mut Vec<Job>,
    ) -> Result<(Taken, bool), Job> {
        let Some(ring) = self.rings.get_mut(index.0 as usize) else { return Err(job) };
        let Some(position) = ring.position(job.ticket) else { return Err(job) };
        let taken = match ring.slots.get(position) {
            Some(&Slot::Taken(taken)) if taken.is_by(engine) => taken,
            _ => return Err(job),
        };
        if position > 0 {
            ring.slots[position] = Slot::Ended(self.parking.park(job));
            return Ok((taken, false));
        }
        released.push(job);
        ring.pop();
        Ok((taken, self.advance(index, released)))
    }

    /// Releases what is awaited no longer, as much as this turn has time for; what was given up takes none.
    /// `true` if none is left: then the SA has no ring any more.
    #[inline]
    fn advance(&mut self, index: RingIndex, released: &mut Vec<Job>) -> bool {
        let Some(ring) = self.rings.get_mut(index.0 as usize) else { return false };
        while ring.is_ready() {
            if self.left == 0 && matches!(ring.slots.front(), Some(Slot::Ended(_))) {
                if !std::mem::replace(&mut ring.is_late, true) {
                    self.late.push_back(index);
                }
                return false;
            }
            if let Some(Slot::Ended(parked)) = ring.pop() {
                self.left -= 1;
                released.extend(self.parking.leave(parked));
            }
        }
        let is_empty = ring.slots.is_empty();
        if is_empty {
            self.unused.push(index);
        }
        is_empty
    }

    /// Gives up what an engine holds, so many jobs at most: these go to `released` as faults without buffers,
    /// and then those that waited for them alone. SAs that have no ring any more go to `finished`.
    pub(crate) fn give_up(
        &mut self,
        (engine, most): (usize, usize),
        released: &mut Vec<Job>,
        mut finished: impl FnMut(Direction, SaRef),
    ) -> usize {
        let mut given_up = 0;
        for index in (0..).take(self.rings.len()).map(RingIndex) {
            if given_up == most {
                break;
            }
            let Some(ring) = self.ring(index) else { continue };
            let (direction, sa, first) = (ring.direction, ring.sa, ring.first);
            let mut held = 0;
            for (ticket, slot) in (0..).zip(&mut ring.slots) {
                if given_up + held == most {
                    break;
                }
                if matches!(slot, Slot::Taken(taken) if taken.is_by(engine)) {
                    *slot = Slot::GivenUp;
                    held += 1;
                    released.push(lost_job(JobId { direction, sa, ticket: first.wrapping_add(ticket) }));
                }
            }
            given_up += held;
            if held > 0 && self.advance(index, released) {
                finished(direction, sa);
            }
        }
        given_up
    }

    /// Ends the ring of an SA that is removed. Its jobs that have ended go to `released`; what engines hold
    /// goes to `held`.
    pub(crate) fn end(
        &mut self,
        index: RingIndex,
        released: &mut Vec<Job>,
        mut held: impl FnMut(JobId, Taken),
    ) {
        let Some(ring) = self.rings.get_mut(index.0 as usize) else { return };
        let (direction, sa) = (ring.direction, ring.sa);
        if std::mem::take(&mut ring.is_late) {
            self.late.retain(|late| *late != index);
        }
        while let (ticket, Some(slot)) = (ring.first, ring.pop()) {
            match slot {
                Slot::Ended(parked) => released.extend(self.parking.leave(parked).map(orphaned)),
                Slot::Taken(taken) => held(JobId { direction, sa, ticket }, taken),
                Slot::Queued | Slot::GivenUp => {}
            }
        }
        self.unused.push(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_flight::InFlight;

    const BUFFERS: usize = 64;

    impl Rings {
        /// What the module promises of memory and of the books.
        pub(crate) fn assert_bounded(&self) {
            let room: usize = self.rings.iter().map(|ring| ring.slots.capacity()).sum();
            assert_eq!(room, self.room);
            assert!(room <= self.room_max);
            let waiting = self.rings.iter().flat_map(|ring| &ring.slots);
            assert_eq!(waiting.filter(|slot| matches!(slot, Slot::Ended(_))).count(), self.waiting());
            assert!(self.unused.iter().all(|index| self.rings[index.0 as usize].slots.is_empty()));
        }
    }

    fn sa(number: u32) -> SaRef {
        SaRef::from_bits(number)
    }

    fn job(sa: SaRef, ticket: u32) -> Job {
        Job { ticket, status: JobStatus::Done, ..Job::new(Buffer::default(), Direction::Seal, sa.bits()) }
    }

    #[test]
    fn tickets_wrap() {
        let (mut rings, mut released) = (Rings::new(BUFFERS), Vec::new());
        let tickets: Vec<u32> = (0..10).map(|n| (u32::MAX - 4).wrapping_add(n)).collect();
        let index = rings.begin(Direction::Seal, sa(1), tickets[0]);
        tickets.iter().for_each(|_| rings.issue(index));
        let last = tickets.iter().rev().map(|&t| rings.release_in_order(index, job(sa(1), t), &mut released));
        assert_eq!(last.collect::<Vec<_>>(), [&[false; 9][..], &[true]].concat());
        assert!(released.iter().map(|job| job.ticket).eq(tickets));
    }

    /// A ring of so many jobs that have all ended but the first one.
    fn waiting(rings: &mut Rings, sa: SaRef, jobs: u32) -> RingIndex {
        let index = rings.begin(Direction::Seal, sa, 0);
        (0..jobs).for_each(|_| rings.issue(index));
        let mut released = Vec::new();
        let last = (1..jobs).any(|ticket| rings.release_in_order(index, job(sa, ticket), &mut released));
        assert!(!last && released.is_empty());
        index
    }

    /// The first one has far more than a turn releases, and each visit to a ring costs.
    #[test]
    fn sas_that_are_late_have_their_shares_and_no_more_are_visited_than_there_is_time_for() {
        let (mut rings, mut released) = (Rings::new(BUFFERS), Vec::new());
        rings.begin_turn(0);
        for (number, jobs) in [40].into_iter().chain([3; 10]).enumerate() {
            let sa = sa(u32::try_from(number).expect("it is small"));
            let index = waiting(&mut rings, sa, jobs);
            assert!(!rings.release_in_order(index, job(sa, 0), &mut released));
        }
        for numbers in [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 0], [0; 4]] {
            released.clear();
            rings.begin_turn(8);
            rings.release_late(&mut released, |_, _| {});
            let two_of_each = numbers.iter().flat_map(|number| [*number; 2]);
            assert!(released.iter().map(|job| job.sa).eq(two_of_each), "{released:?}");
        }
        rings.assert_bounded();
    }

    #[test]
    fn what_was_given_up_needs_no_time() {
        let (mut rings, mut in_flight) = (Rings::new(BUFFERS), InFlight::default());
        let index = rings.begin(Direction::Seal, sa(1), 0);
        for ticket in 0..3 {
            rings.issue(index);
            assert!(rings.take(index, ticket, in_flight.take(0)));
        }
        rings.begin_turn(0);
        let (mut released, mut finished) = (Vec::new(), Vec::new());
        assert_eq!(rings.give_up((0, 2), &mut released, |_, sa| finished.push(sa)), 2);
        assert!(finished.is_empty() && !rings.has_late());
        assert_eq!(rings.give_up((0, 2), &mut released, |_, sa| finished.push(sa)), 1);
        assert_eq!((finished, rings.has_late(), released.len()), (vec![sa(1)], false, 3));
    }

    #[test]
    fn a_ring_serves_the_next_sa_when_it_is_empty() {
        let (mut rings, mut released) = (Rings::new(BUFFERS), Vec::new());
        for number in 0..1000 {
            let index = rings.begin(Direction::Seal, sa(number), number);
            rings.issue(index);
            assert!(rings.release_in_order(index, job(sa(number), number), &mut released));
        }
        assert_eq!((released.len(), rings.rings.len()), (1000, 1));
    }

    /// Each of many SAs in turn has all the buffers, down to one job that it keeps under way: were no ring
    /// ever cut, each would keep room for the whole pool.
    #[test]
    fn rings_that_grow_in_turns_have_room_for_no_more_than_the_bound() {
        let (mut rings, mut released) = (Rings::new(BUFFERS), Vec::new());
        for number in 0..BUFFERS as u32 {
            let index = rings.begin(Direction::Seal, sa(number), 0);
            let burst = BUFFERS as u32 - number;
            for _ in 0..burst {
                rings.issue(index);
                rings.assert_bounded();
            }
            for ticket in 0..burst - 1 {
                assert!(!rings.release_in_order(index, job(sa(number), ticket), &mut released));
            }
        }
        rings.assert_bounded();
        assert_eq!(rings.rings.len(), BUFFERS);
    }
}

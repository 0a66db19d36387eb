//! The order in which several workers release the packets of one SA from a peer.
//!
//! ```text
//!   slots:   released  released  dropped   waits at    nothing   waits at   …  (one for each of
//!            40        41        42        worker 1    has come  worker 0       1,024 numbers)
//!                                          43 ◄─ head  44        45
//! ```
//!
//! The ring has the order alone. A packet stays at the worker that opened it, with a buffer of that worker's
//! pool, until all lower numbers were released, dropped or given up: until `head` is its number. Then the
//! worker hands it to its port, and moves `head` on. So nobody but the owner of the head's packet may
//! release, and no buffer changes hands.
//!
//! **Bounds.** A number that never comes holds the others up for [`PATIENCE`] at most, by the clock of who
//! waits, or until a packet comes that is the ring's length ahead of it. Then `head` moves on to the
//! lowest number that waits; a worker that hangs with that one is passed over after as long again, with all
//! that waits there: beside each slot is whose packet it is about. It counts as hung until it looks again. A
//! packet that is lower than `head` is late: it is released at once, out of order. Nothing is dropped for its
//! order.
//!
//! **Who gets here.** Only numbers of packets that proved authentic and were committed to the window, each
//! once: forged ones move nothing. A peer may leave any gaps: to pass over one costs as much as its slots,
//! and never more than the ring's.
//!
//! **Why it cannot get stuck, and releases nothing twice.** A slot's word has the number that it is about,
//! and only grows: a worker that comes late with a number that was given up changes no later number's slot.
//! `head` only grows, too. A worker whose packets wait looks again in each turn, so that what one worker has
//! missed of another costs a turn and no more.

use super::padded::Padded;
use crate::sync::{AtomicU64, Ordering};
use std::sync::atomic::AtomicU64 as Count;
use std::time::Duration;

/// Numbers that the ring spans.
#[cfg(not(loom))]
pub const ORDER_SPAN: u64 = 1024;
/// Numbers that the ring spans: few, so that every interleaving can be tried.
#[cfg(loom)]
pub const ORDER_SPAN: u64 = 4;
/// How long packets wait for a number that does not come.
pub const PATIENCE: Duration = Duration::from_millis(1);

/// What is counted, and who hangs, decides nothing that must hold.
const RELAXED: std::sync::atomic::Ordering = std::sync::atomic::Ordering::Relaxed;

/// What a slot says of its number, in its lowest bits.
const WAITS: u64 = 1;
const DONE: u64 = 2;

/// The order of one SA's packets, shared by its workers.
#[derive(Debug)]
pub struct ReleaseRing {
    /// The lowest number that was not released, dropped or given up.
    head: Padded<AtomicU64>,
    /// A number, times four, and what is known of it.
    slots: Box<[AtomicU64]>,
    /// Whose packet each slot is about: a member's bit. It decides how many numbers are passed over at once,
    /// and nothing else.
    owners: Box<[Count]>,
    /// Members that have joined.
    members: Count,
    /// Bits of members that have not looked since others gave up waiting for them.
    hung: Count,
    waited: Count,
    longest_wait_us: Count,
    passed_over: Count,
}

/// What it has cost to release packets in order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReleaseCost {
    /// Packets that were opened in one turn of a worker and released in a later one.
    pub waited: u64,
    /// The longest that one waited, in microseconds.
    pub longest_wait_us: u64,
    /// Times that the others went on without numbers that had not come.
    pub passed_over: u64,
}

/// A worker, as the ring knows it. Of more than 64 that have joined, some share a bit: one of them that hangs
/// has others passed over earlier, until these look again.
#[derive(Debug, Clone, Copy)]
pub struct RingMember(u64);

fn word(number: u64, state: u64) -> u64 {
    number << 2 | state
}

impl ReleaseRing {
    /// A ring whose first packet is the one after `last`.
    #[must_use]
    pub fn after(last: u64) -> Self {
        Self {
            head: Padded(AtomicU64::new(last.saturating_add(1))),
            slots: (0..ORDER_SPAN).map(|_| AtomicU64::new(0)).collect(),
            owners: (0..ORDER_SPAN).map(|_| Count::new(0)).collect(),
            members: Count::new(0),
            hung: Count::new(0),
            waited: Count::new(0),
            longest_wait_us: Count::new(0),
            passed_over: Count::new(0),
        }
    }

    /// A worker more that opens packets of the SA.
    #[must_use]
    pub fn join(&self) -> RingMember {
        RingMember(1 << (self.members.fetch_add(1, RELAXED) % 64))
    }

    /// The number whose turn it is: all below were released, dropped or given up.
    #[must_use]
    pub fn head(&self) -> u64 {
        self.head.0.load(Ordering::Acquire)
    }

    /// A packet of this number was opened, and waits at this worker. One that is the ring's length ahead ends
    /// the wait for lower ones.
    pub fn wait(&self, number: u64, at: RingMember) {
        let head = self.head();
        if number >= head.saturating_add(ORDER_SPAN) {
            self.count_passed();
            self.move_to(number - (ORDER_SPAN - 1));
        }
        self.owners[Self::place(number)].store(at.0, RELAXED);
        // It releases what it knows of the owner, too.
        self.set(number, WAITS);
    }

    /// A worker looks whether it is its turn: it does not hang.
    pub fn look(&self, member: RingMember) {
        if self.hung.load(RELAXED) & member.0 != 0 {
            self.hung.fetch_and(!member.0, RELAXED);
        }
    }

    /// Whose packet has its turn does not release it: it counts as hung until it [looks](Self::look).
    pub fn give_up_head(&self) {
        let head = self.head();
        if self.waits(head) {
            self.hung.fetch_or(self.owners[Self::place(head)].load(RELAXED), RELAXED);
        }
    }

    /// A packet of this number was authentic, and is dropped: nobody waits for it.
    pub fn drop_number(&self, number: u64) {
        if number < self.head().saturating_add(ORDER_SPAN) {
            self.set(number, DONE);
        }
    }

    /// Whether nobody needs to wait for this number, which is not lower than the head.
    #[must_use]
    pub fn is_done(&self, number: u64) -> bool {
        self.slot(number).load(Ordering::Acquire) == word(number, DONE)
    }

    /// All numbers below were released, dropped or given up.
    pub fn move_to(&self, number: u64) {
        self.head.0.fetch_max(number, Ordering::AcqRel);
    }

    /// Gives up what keeps `number`, which waits, from its turn: numbers that have not come, and, if
    /// `even_waiting`, the one whose turn it is and all that wait at workers that hang.
    pub fn pass_over(&self, number: u64, even_waiting: bool) {
        let head = self.head();
        let hung = if even_waiting { self.hung.load(RELAXED) } else { 0 };
        let from = if even_waiting { head.saturating_add(1) } else { head };
        let is_awaited = |n: &u64| self.waits(*n) && self.owners[Self::place(*n)].load(RELAXED) & hung == 0;
        let next = (from..number).find(is_awaited).unwrap_or(number);
        if next > head {
            self.count_passed();
            self.move_to(next);
        }
    }

    /// What it has cost by now.
    #[must_use]
    pub fn cost(&self) -> ReleaseCost {
        let read = |count: &Count| count.load(RELAXED);
        ReleaseCost {
            waited: read(&self.waited),
            longest_wait_us: read(&self.longest_wait_us),
            passed_over: read(&self.passed_over),
        }
    }

    /// Counts packets that have waited, the longest of them so long.
    pub(crate) fn count_waits(&self, packets: u64, longest: Duration) {
        let us = u64::try_from(longest.as_micros()).unwrap_or(u64::MAX);
        self.waited.fetch_add(packets, RELAXED);
        self.longest_wait_us.fetch_max(us, RELAXED);
    }

    fn count_passed(&self) {
        self.passed_over.fetch_add(1, RELAXED);
    }

    /// Notes what is known of a number, unless the slot is about a later one by now.
    fn set(&self, number: u64, state: u64) {
        self.slot(number).fetch_max(word(number, state), Ordering::AcqRel);
    }

    fn waits(&self, number: u64) -> bool {
        self.slot(number).load(Ordering::Acquire) == word(number, WAITS)
    }

    fn slot(&self, number: u64) -> &AtomicU64 {
        &self.slots[Self::place(number)]
    }

    fn place(number: u64) -> usize {
        // Lossless: the remainder is small.
        usize::try_from(number % ORDER_SPAN).unwrap_or(0)
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::atomic::AtomicU64 as Watch;
    use loom::thread;
    use std::sync::Arc;

    /// What one worker has, and what it releases, in the order in which it does.
    struct Worker {
        ring: Arc<ReleaseRing>,
        /// The number that was released last, by either.
        last: Arc<Watch>,
        held: Vec<u64>,
        hands_first: bool,
        member: RingMember,
    }

    impl Worker {
        /// A turn; `true` if nothing is held any more.
        fn turn(&mut self) -> bool {
            let mut next = self.ring.head();
            loop {
                if self.held.first().is_some_and(|first| *first <= next) {
                    let number = self.held.remove(0);
                    if self.hands_first {
                        self.ring.move_to(number + 1);
                    }
                    let before = self.last.swap(number, Ordering::AcqRel);
                    assert!(before < number, "{number} after {before}");
                    next = next.max(number + 1);
                } else if self.ring.is_done(next) {
                    next += 1;
                } else {
                    break;
                }
            }
            self.ring.move_to(next);
            self.held.is_empty()
        }
    }

    /// Two workers open these numbers; `drops` is dropped by the second one.
    fn in_any_order(mine: [&'static [u64]; 2], drops: Option<u64>, hands_first: bool) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let (ring, last) = (Arc::new(ReleaseRing::after(0)), Arc::new(Watch::new(0)));
            let worker = |numbers: &[u64]| {
                let (ring, last) = (Arc::clone(&ring), Arc::clone(&last));
                let member = ring.join();
                Worker { ring, last, held: numbers.to_vec(), hands_first, member }
            };
            let mut workers = mine.map(worker).into_iter();
            let (mut first, mut second) = (workers.next().unwrap(), workers.next().unwrap());
            let other = thread::spawn(move || {
                first.held.iter().for_each(|number| first.ring.wait(*number, first.member));
                let _ = first.turn() || first.turn();
                first
            });
            second.held.iter().for_each(|number| second.ring.wait(*number, second.member));
            drops.into_iter().for_each(|number| second.ring.drop_number(number));
            let _ = second.turn() || second.turn();
            let mut first = other.join().unwrap();
            // Whatever one has missed of the other, a turn of each in which nobody disturbs makes up for.
            for _ in 0..4 {
                first.turn();
                second.turn();
            }
            assert!(first.held.is_empty() && second.held.is_empty(), "{:?} {:?}", first.held, second.held);
        });
    }

    #[test]
    fn two_workers_release_in_order_and_none_waits_for_ever() {
        in_any_order([&[1, 3], &[2]], None, false);
    }

    #[test]
    fn nobody_waits_for_what_was_dropped() {
        in_any_order([&[1, 3], &[]], Some(2), false);
    }

    /// The model is worth something: it finds a worker that moves the head on before the port has its packet.
    #[test]
    #[should_panic(expected = "after")]
    fn a_head_that_moves_before_the_packet_left_is_found() {
        in_any_order([&[1, 3], &[2]], None, true);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_the_ring_ahead_ends_the_wait_and_one_below_does_not() {
        let ring = ReleaseRing::after(100);
        let one = ring.join();
        ring.wait(100 + ORDER_SPAN, one);
        assert_eq!((ring.head(), ring.cost().passed_over), (101, 0));
        ring.wait(101 + ORDER_SPAN, one);
        assert_eq!((ring.head(), ring.cost().passed_over), (102, 1));
        // Numbers at the end of all.
        ring.wait(u64::MAX >> 2, one);
        assert_eq!(ring.head(), (u64::MAX >> 2) - (ORDER_SPAN - 1));
    }

    #[test]
    fn what_is_passed_over_is_the_gap_and_then_who_hangs() {
        let ring = ReleaseRing::after(0);
        let one = ring.join();
        [5, 9].iter().for_each(|number| ring.wait(*number, one));
        ring.pass_over(9, false);
        assert_eq!(ring.head(), 5, "which waits at another worker");
        ring.pass_over(9, false);
        assert_eq!(ring.head(), 5);
        ring.pass_over(9, true);
        assert_eq!((ring.head(), ring.cost().passed_over), (9, 2));
    }

    #[test]
    fn who_comes_late_changes_no_later_number() {
        let ring = ReleaseRing::after(0);
        let one = ring.join();
        ring.wait(7 + ORDER_SPAN, one);
        // 7 was given up, and its slot is about another number by now.
        ring.wait(7, one);
        ring.drop_number(7);
        assert!(!ring.is_done(7));
        ring.pass_over(7 + ORDER_SPAN, false);
        assert_eq!(ring.head(), 7 + ORDER_SPAN);
    }

    /// However many packets it has between those of others, and though there are two such workers.
    #[test]
    fn a_worker_that_hangs_is_passed_over_with_all_that_it_has() {
        let ring = ReleaseRing::after(0);
        let [one, other, well] = [(); 3].map(|()| ring.join());
        for number in 1..=300 {
            ring.wait(number, if number % 2 == 0 { one } else { other });
        }
        [200, 400].iter().for_each(|number| ring.wait(*number, well));
        let look = |number| {
            ring.give_up_head();
            ring.pass_over(number, true);
            ring.head()
        };
        assert_eq!(look(400), 2, "one of them hangs");
        assert_eq!(look(400), 200, "both hang; this one waits at a worker that does not");
        ring.move_to(201);
        assert_eq!(look(400), 400);
        // Who looks again has its turn as before.
        ring.move_to(401);
        ring.look(one);
        [402, 404].iter().for_each(|number| ring.wait(*number, one));
        [401, 403, 405].iter().for_each(|number| ring.wait(*number, other));
        ring.wait(406, well);
        ring.give_up_head();
        ring.pass_over(406, true);
        assert_eq!(ring.head(), 402);
    }
}

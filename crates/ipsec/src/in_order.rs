//! Packets of an SA from a peer that several workers open, released in the order of their numbers.
//!
//! Which packet's turn it is, all workers know by the SA's [`ReleaseRing`]. A worker keeps what it has opened
//! until then, each packet with a buffer of its own pool:
//!
//! ```text
//!   finish_inbound ─► hold ─► queue of the SA ─► release_in_order ─► port ─► handed_in_order: the head moves
//! ```
//!
//! Off unless the worker is told ([`Ipsec::set_in_order`]): then nothing is here, and no packet pays for it.

use crate::Ipsec;
use crate::lifetime::Moment;
use crate::numbers::{PATIENCE, ReleaseRing, RingMember};
use crate::outcome::{Cleared, Forward, Prepared, Protected};
use crate::slots::SaRef;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use testudo_crypto::Job;
use testudo_packet::{DropReason, Pool};

/// What a worker holds back.
#[derive(Debug, Default)]
pub(crate) struct InOrder {
    queues: BTreeMap<SaRef, Queue>,
    /// Those that have packets, or have released some: a turn looks at no others.
    active: Vec<SaRef>,
    /// Of SAs that were removed: nobody waits for an order any more.
    orphans: Vec<Cleared>,
    /// Packets in all queues.
    held: usize,
}

/// Packets of one SA that wait for their turn, in the order of their numbers.
#[derive(Debug)]
struct Queue {
    ring: Arc<ReleaseRing>,
    /// This worker.
    member: RingMember,
    packets: VecDeque<Held>,
    /// Where the head moves when the port has what was released.
    handed: Option<u64>,
    /// Whether it is among those that a turn looks at.
    is_active: bool,
}

#[derive(Debug)]
struct Held {
    number: u64,
    since: Moment,
    /// Since when it, or a later one that it holds up, waits.
    waits_from: Moment,
    packet: Cleared,
}

impl Queue {
    fn insert(&mut self, mut held: Held) {
        self.ring.wait(held.number, self.member);
        // Nearly always the last one.
        let after = self.packets.iter().rev().take_while(|other| other.number > held.number).count();
        let place = self.packets.len() - after;
        // A lower number that comes late does not make those behind it wait anew.
        if let Some(next) = self.packets.get(place) {
            held.waits_from = held.waits_from.min(next.waits_from);
        }
        self.packets.insert(place, held);
    }

    /// Releases packets whose turn it is, and those that are late.
    fn release(&mut self, now: Moment, forward: &mut impl FnMut(Cleared)) -> usize {
        self.ring.look(self.member);
        let head = self.ring.head();
        let mut next = self.handed.unwrap_or(head).max(head);
        let (mut released, mut waited, mut longest) = (0, 0, Duration::ZERO);
        loop {
            if let Some(held) = self.packets.pop_front_if(|held| held.number <= next) {
                let wait = now.since(held.since);
                waited += u64::from(!wait.is_zero());
                longest = longest.max(wait);
                next += u64::from(held.number == next);
                released += 1;
                forward(held.packet);
            } else if self.ring.is_done(next) {
                next += 1;
            } else {
                break;
            }
        }
        if waited > 0 {
            self.ring.count_waits(waited, longest);
        }
        self.handed = (next > head).then_some(next);
        released
    }

    /// Ends the wait for what does not come, where the first packet has waited long enough, or room is
    /// scarce.
    fn lose_patience(&self, now: Moment, is_scarce: bool) -> bool {
        let Some(first) = self.packets.front() else { return false };
        let wait = now.since(first.waits_from);
        if wait < PATIENCE && !is_scarce {
            return false;
        }
        if wait >= 2 * PATIENCE {
            self.ring.give_up_head();
        }
        self.ring.pass_over(first.number, is_scarce || wait >= 2 * PATIENCE);
        self.ring.head() >= first.number
    }

    /// The port has what was released.
    fn hand(&mut self) {
        if let Some(next) = self.handed.take() {
            self.ring.move_to(next);
        }
    }
}

impl Ipsec {
    /// From now on, what is opened under SAs that are added with a
    /// [shared window](Self::add_shared_inbound) is released in the order of its numbers, over all workers:
    /// all of them are told so. Who runs the worker calls [`release_in_order`](Self::release_in_order) in
    /// each turn.
    pub fn set_in_order(&mut self) {
        self.in_order.get_or_insert_default();
    }

    /// Whether anything may be held back for its order.
    #[must_use]
    #[inline]
    pub fn is_in_order(&self) -> bool {
        self.in_order.is_some()
    }

    /// Packets that wait for their turn; each has a buffer of the pool.
    #[must_use]
    pub fn held_in_order(&self) -> usize {
        self.in_order.as_ref().map_or(0, |order| order.held + order.orphans.len())
    }

    /// Notes that the packets of an SA have an order.
    pub(crate) fn keep_order_of(&mut self, sa: SaRef, ring: Arc<ReleaseRing>) {
        if let Some(order) = &mut self.in_order {
            let (member, packets) = (ring.join(), VecDeque::new());
            order.queues.insert(sa, Queue { ring, member, packets, handed: None, is_active: false });
        }
    }

    /// The SA is gone: what it has waiting is released next.
    pub(crate) fn forget_order_of(&mut self, sa: SaRef) {
        let Some(order) = self.in_order.as_deref_mut() else { return };
        if let Some(queue) = order.queues.remove(&sa) {
            order.held -= queue.packets.len();
            order.orphans.extend(queue.packets.into_iter().map(|held| held.packet));
        }
    }

    /// Whether a packet of this job is to be held back.
    pub(crate) fn has_order(&self, job: &Job) -> bool {
        self.in_order.as_ref().is_some_and(|order| order.queues.contains_key(&Prepared::sa_of(job)))
    }

    /// A packet that was authentic is dropped: nobody waits for its number.
    pub(crate) fn skip_in_order(&self, job: &Job) {
        let order = self.in_order.as_ref();
        if let Some(queue) = order.and_then(|order| order.queues.get(&Prepared::sa_of(job))) {
            queue.ring.drop_number(job.sequence);
        }
    }

    /// Holds a packet back until its turn.
    pub(crate) fn hold_in_order(&mut self, sa: SaRef, number: u64, packet: Cleared, now: Moment) {
        let Some(order) = self.in_order.as_deref_mut() else { return };
        match order.queues.get_mut(&sa) {
            Some(queue) => {
                queue.insert(Held { number, since: now, waits_from: now, packet });
                if !std::mem::replace(&mut queue.is_active, true) {
                    order.active.push(sa);
                }
                order.held += 1;
            }
            None => order.orphans.push(packet),
        }
    }

    /// Releases the packets whose turn it is; returns how many. Until the port has them, and
    /// [`handed_in_order`](Self::handed_in_order) says so, no other worker releases a later one: it is to be
    /// called again then, until nothing is released. With more than `most` packets held, the lowest of an SA
    /// wait no longer.
    #[cold]
    #[inline(never)]
    pub fn release_in_order(&mut self, now: Moment, most: usize, mut forward: impl FnMut(Cleared)) -> usize {
        let Some(order) = self.in_order.as_deref_mut() else { return 0 };
        let mut released = order.orphans.len();
        order.orphans.drain(..).for_each(&mut forward);
        if order.held == 0 {
            // What is dropped at the head is passed by who waits for a later one.
            return released;
        }
        for sa in &order.active {
            let Some(queue) = order.queues.get_mut(sa) else { continue };
            loop {
                let count = queue.release(now, &mut forward);
                order.held -= count;
                released += count;
                if count > 0 {
                    break;
                }
                // The port has all: only numbers that were dropped are passed by.
                queue.hand();
                if !queue.lose_patience(now, order.held > most) {
                    break;
                }
            }
        }
        released
    }

    /// The port has all that was released: it is the turn of the numbers after that.
    pub fn handed_in_order(&mut self) {
        let Some(order) = self.in_order.as_deref_mut() else { return };
        let queues = &mut order.queues;
        order.active.retain(|sa| {
            let Some(queue) = queues.get_mut(sa) else { return false };
            queue.hand();
            queue.is_active = !queue.packets.is_empty();
            queue.is_active
        });
    }

    /// Drops what waits for its turn.
    pub fn discard_in_order(&mut self, reason: DropReason, pool: &mut Pool) {
        let Some(order) = self.in_order.as_deref_mut() else { return };
        order.held = 0;
        let queues = order.queues.values_mut();
        let mut discard = |packet: Cleared| pool.discard(Forward::<Protected>::into_buffer(packet), reason);
        queues.flat_map(|queue| queue.packets.drain(..)).for_each(|held| discard(held.packet));
        order.orphans.drain(..).for_each(discard);
        order.queues.values_mut().for_each(Queue::hand);
    }
}

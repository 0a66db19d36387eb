//! Packets that wait for an SA (RFC 4301 5.1, step 3b: the SPD says PROTECT, and "the SA management" is
//! called to make one).
//!
//! A tunnel that says so has its SAs from a key exchange. A packet for it that finds none is kept, and those
//! who exchange keys are told ([`Acquire`](crate::Acquire)); with the tunnel's first SA it goes out, so that
//! the first packet of a connection is late and not lost:
//!
//! ```text
//!   PROTECT, no SA ─► held, acquire ─┬─► an SA is in use, or the tunnel is gone ─► policy again, in order
//!                                    ├─► another tunnel's policy is first now ───┘
//!                                    ├─► HOLD is over ─► dropped: hold_expired
//!                                    └─► no room ──────► dropped: hold_full
//!   PROTECT, an SA, and a clock ─► waits for its tick ([`crate::clocked`])
//! ```
//!
//! Who exchanges keys may have been away, or the event was lost where too many were: while packets wait, an
//! acquire of their tunnel is told again every second ([`ASK_AGAIN`]).
//!
//! Policy is asked again since it may have changed in the meantime: a policy for any peer makes a daemon
//! negotiate with the one that is meant, whose policy then comes first. Packets of ESP that AH is to cover
//! wait until both have an SA in use; the event names the one that has none.
//!
//! **Bounds.** A tunnel holds [`MAX_HELD`] packets, and all together an eighth of the pool's buffers, and of
//! its long ones; one in a chain of buffers is merged before it waits. The last quarter of these is for
//! tunnels that hold few ([`crate::wait_room`]), so that hosts that send a lot to peers that do not answer
//! leave the others' first packets their room.
//!
//! Where a tunnel's packet finds no room, the sender (the source address) that has the most of that tunnel
//! makes some: its oldest packet, of those in long buffers where one of these is wanted, is dropped, if it
//! would still have no fewer than the other. So one host that floods does not keep the first packets of those
//! beside it from waiting, and none loses a packet to one that has as many.

use crate::Ipsec;
use crate::acquire::Acquire;
use crate::event::{Event, EventKind};
use crate::lifetime::Moment;
use crate::parsed::ParsedBatch;
use crate::runs::{Disposition, Runs};
use crate::spd::{Action, Flow, OfInterface, PacketValues, TunnelIndex, Verdict};
use crate::wait_room::{Lack, Waiters};
use std::cmp::Reverse;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;
use testudo_packet::{BATCH_SIZE, Batch, Buffer, DropReason, Interface, Pool};
use testudo_wire::ip::IpHeader;

/// Packets that wait for the SA of one tunnel, at most.
pub const MAX_HELD: usize = 64;
/// How long a packet waits at most: a key exchange whose first message is lost twice takes 12 seconds.
pub const HOLD: Duration = Duration::from_secs(30);
/// An acquire is told again after this time, while packets wait.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// Tunnels that are looked at for this at a time; others are the first next time.
const LOOKED_AT: usize = 256;
/// Packets whose policy is asked again at a time; others are the next.
const RECHECKED: usize = 512;

/// What becomes of a packet whose tunnel has no SA in use.
pub(crate) const NO_SA: Disposition = Disposition::Drop(DropReason::NoSa);

/// The packets that wait. Nothing here has an order by chance: what is dropped can be foretold.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// By numbers that grow: oldest first.
    waiting: BTreeMap<u64, Waiting>,
    /// How many these are.
    waiters: Waiters,
    /// The number of the next one.
    next: u64,
    queues: BTreeMap<TunnelIndex, Queue>,
    /// From where on queues are looked at for whether to ask again.
    look_from: TunnelIndex,
    /// Tunnels whose packets may wait, for an SA or for a [tick](crate::clocked).
    pub(crate) tunnels: usize,
    /// How many packets are still to be asked whether they are another tunnel's, since policies have changed;
    /// one at least while some that wait for a tick are.
    recheck: usize,
    /// From which number on; from the first one again after the last.
    recheck_from: u64,
    /// Packets whose wait is over.
    released: VecDeque<Released>,
    /// Which packets of the batch that was [released](Ipsec::take_released) last were cut by their sources: a
    /// bit for each, the first one's the lowest.
    pub(crate) cut: u64,
}

const _: () = assert!(BATCH_SIZE <= u64::BITS as usize);

/// The source address of a packet.
type Sender = Option<IpAddr>;

/// What waits for the SA of one tunnel: at least one packet.
#[derive(Debug, Default)]
struct Queue {
    packets: usize,
    /// The numbers of each sender's packets, oldest first; none is empty.
    senders: BTreeMap<Sender, VecDeque<u64>>,
    /// What asks for the SA; `None` while nothing has come that shows what policy wants to know.
    flow: Option<Flow>,
    /// When it last did.
    asked: Moment,
}

/// A packet that waits.
#[derive(Debug)]
struct Waiting {
    tunnel: TunnelIndex,
    sender: Sender,
    since: Moment,
    packet: Released,
    /// Whether it has a long buffer.
    is_long: bool,
}

/// A packet that has waited. That its source had cut it, which allows to cut it again, does not show in it
/// any more.
#[derive(Debug)]
pub(crate) struct Released {
    pub(crate) packet: Buffer,
    pub(crate) was_cut: bool,
}

impl Held {
    /// What a tunnel's packet lacks to wait; `None` if there is room for it.
    fn lack(&self, tunnel: TunnelIndex, is_long: bool, pool: &Pool) -> Option<Lack> {
        let own = self.queues.get(&tunnel).map_or(0, |queue| queue.packets);
        let of_all = self.waiters.lack(own, is_long, pool);
        of_all.or((own >= MAX_HELD).then_some(Lack::Place))
    }

    /// Takes the packet out that makes room for one of this sender, if one has to and can.
    fn take_in_favour_of(&mut self, tunnel: TunnelIndex, sender: Sender, lack: Lack) -> Option<Waiting> {
        let senders = &self.queues.get(&tunnel)?.senders;
        let own = senders.get(&sender).map_or(0, VecDeque::len);
        let most = senders.values().max_by_key(|numbers| (numbers.len(), Reverse(numbers.front())))?;
        let frees = |number: &u64| {
            lack == Lack::Place || self.waiting.get(number).is_some_and(|waiting| waiting.is_long)
        };
        let oldest = *most.iter().find(|&number| frees(number)).filter(|_| most.len() > own + 1)?;
        self.take(oldest)
    }

    /// Holds a packet, and keeps its flow if that can ask for the SA.
    fn hold(&mut self, waiting: Waiting, flow: Option<Flow>) {
        let asked = waiting.since;
        let queue = self.queues.entry(waiting.tunnel).or_insert_with(|| Queue { asked, ..Queue::default() });
        queue.flow = flow.or(queue.flow);
        queue.packets += 1;
        queue.senders.entry(waiting.sender).or_default().push_back(self.next);
        self.waiters.add(waiting.is_long);
        self.waiting.insert(self.next, waiting);
        self.next += 1;
    }

    /// The next packets whose policy is to be asked again. Changes that go on keep none of them from its
    /// turn.
    fn next_to_recheck(&mut self) -> Vec<u64> {
        let (from, waiting) = (self.recheck_from, &self.waiting);
        let round = waiting.range(from..).chain(waiting.range(..from)).map(|(number, _)| *number);
        let numbers: Vec<u64> = round.take(self.recheck.min(RECHECKED)).collect();
        self.recheck = if numbers.len() < RECHECKED { 0 } else { self.recheck - RECHECKED };
        self.recheck_from = numbers.last().map_or(0, |last| last + 1);
        numbers
    }

    /// Takes a packet out.
    fn take(&mut self, number: u64) -> Option<Waiting> {
        let waiting = self.waiting.remove(&number)?;
        self.waiters.leave(Waiters::of([waiting.is_long]));
        let Entry::Occupied(mut queue) = self.queues.entry(waiting.tunnel) else { return Some(waiting) };
        if let Entry::Occupied(mut numbers) = queue.get_mut().senders.entry(waiting.sender) {
            let place = numbers.get().iter().position(|other| *other == number);
            place.and_then(|place| numbers.get_mut().remove(place));
            if numbers.get().is_empty() {
                numbers.remove();
            }
        }
        queue.get_mut().packets -= 1;
        if queue.get().packets == 0 {
            queue.remove();
        }
        Some(waiting)
    }

    /// An acquire of a tunnel was told.
    fn has_asked(&mut self, tunnel: TunnelIndex, now: Moment) {
        if let Some(queue) = self.queues.get_mut(&tunnel) {
            queue.asked = now;
        }
    }

    /// Takes the oldest packet out, if it has waited too long.
    fn take_expired(&mut self, now: Moment) -> Option<Waiting> {
        let (number, oldest) = self.waiting.first_key_value()?;
        if now.since(oldest.since) >= HOLD { self.take(*number) } else { None }
    }

    /// The next tunnels, of which some may be due to ask again, with the flows that do.
    fn due(&mut self, now: Moment) -> Vec<(TunnelIndex, Flow)> {
        let (from, queues) = (self.look_from, &mut self.queues);
        let round = queues.range(from..).chain(queues.range(..from)).take(LOOKED_AT);
        let looked_at: Vec<TunnelIndex> = round.map(|(tunnel, _)| *tunnel).collect();
        self.look_from = looked_at.last().map_or(from, |last| TunnelIndex(last.0.wrapping_add(1)));
        let due = looked_at.into_iter().filter_map(|tunnel| {
            let queue = queues.get_mut(&tunnel).filter(|queue| now.since(queue.asked) >= ASK_AGAIN)?;
            queue.asked = now;
            queue.flow.map(|flow| (tunnel, flow))
        });
        due.collect()
    }

    /// These have waited elsewhere, and go to policy again.
    pub(crate) fn let_go(&mut self, packets: impl Iterator<Item = Released>) {
        self.released.extend(packets);
    }

    /// The same for the packets of a tunnel that are older than those of it that were let go before.
    pub(crate) fn let_go_first(&mut self, packets: impl DoubleEndedIterator<Item = Released>) {
        packets.rev().for_each(|packet| self.released.push_front(packet));
    }

    /// The wait of a tunnel's packets is over.
    pub(crate) fn release(&mut self, tunnel: TunnelIndex) {
        let Some(queue) = self.queues.remove(&tunnel) else { return };
        let mut numbers: Vec<u64> = queue.senders.into_values().flatten().collect();
        numbers.sort_unstable();
        let released = numbers.into_iter().filter_map(|number| self.waiting.remove(&number));
        let released: Vec<Waiting> = released.collect();
        self.waiters.leave(Waiters::of(released.iter().map(|waiting| waiting.is_long)));
        self.let_go_first(released.into_iter().map(|waiting| waiting.packet));
    }
}

impl Ipsec {
    /// Notes which packets of a batch that was released were cut by their sources. Before fragments leave it.
    #[cold]
    #[inline(never)]
    pub(crate) fn note_cut(&mut self, parsed: &mut ParsedBatch) {
        let cut = std::mem::take(&mut self.held.cut);
        (0..BATCH_SIZE).filter(|place| cut >> place & 1 != 0).for_each(|place| parsed.note_cut(place));
    }

    /// Holds the packets of a batch back whose tunnels have no SA and wait for one, or send by a clock. Their
    /// buffers are taken.
    #[cold]
    #[inline(never)]
    pub(crate) fn hold_back(
        &mut self,
        parsed: &ParsedBatch,
        runs: &mut Runs,
        batch: &mut [Buffer],
        now: Moment,
        pool: &mut Pool,
    ) {
        if !runs.have(NO_SA) {
            return;
        }
        *runs = runs.revised(|place, disposition| match batch.get_mut(place) {
            Some(buffer) if disposition == NO_SA => self.hold_one(parsed, place, buffer, now, pool),
            _ => disposition,
        });
    }

    /// Holds a packet, if its tunnel wants that. Returns what becomes of it.
    fn hold_one(
        &mut self,
        parsed: &ParsedBatch,
        place: usize,
        buffer: &mut Buffer,
        now: Moment,
        pool: &mut Pool,
    ) -> Disposition {
        let Some(meta) = parsed.as_slice().get(place) else { return NO_SA };
        let policies = self.spd.of(parsed.interface);
        let verdict = parsed.verdict(meta, policies);
        let Ok(Verdict::Policy(Action::Protect(index))) = verdict else { return NO_SA };
        let Some(parameters) = self.tunnel(index).map(|tunnel| &tunnel.parameters) else { return NO_SA };
        let (acquires, is_clocked) = (parameters.acquires, parameters.clock() > 0);
        let flow = parsed.flow(place);
        if acquires
            && let Some(way) = self.ask_for_own(index, flow.as_ref(), now)
            && !is_clocked
        {
            return Disposition::Sa(way);
        }
        if is_clocked && let Some(way) = self.tunnel(index).and_then(|tunnel| self.way_of(tunnel)) {
            let packet = Released { packet: std::mem::take(buffer), was_cut: meta.was_cut() };
            return self.wait_for_tick(index, way, packet, now, pool);
        }
        if !acquires {
            return NO_SA;
        }
        let sender = flow.and_then(|flow| PacketValues::shown(&flow).local);
        if let Some(flow) = flow {
            self.ask_for_tunnel(index, &flow, now);
        }
        let is_long = pool.is_long(buffer);
        if let Some(lack) = self.held.lack(index, is_long, pool) {
            let Some(other) = self.held.take_in_favour_of(index, sender, lack) else {
                self.discard_waiting(index, std::mem::take(buffer), DropReason::HoldFull, now, pool);
                return Disposition::Held;
            };
            self.discard_waiting(index, other.packet.packet, DropReason::HoldFull, now, pool);
        }
        // Limits count packets, and one in several buffers would be found by no changed policy. What finds no
        // room was not copied.
        let packet = match pool.linearise(std::mem::take(buffer)) {
            Ok(packet) => Released { packet, was_cut: meta.was_cut() },
            Err(chain) => {
                self.discard_waiting(index, chain, DropReason::PoolEmpty, now, pool);
                return Disposition::Held;
            }
        };
        // A later fragment does not lead here by itself: it follows its first one.
        let policies = self.spd.of(parsed.interface);
        let asks = flow.filter(|flow| policies.verdict(flow) == Verdict::Policy(Action::Protect(index)));
        self.held.hold(Waiting { tunnel: index, sender, since: now, packet, is_long }, asks);
        Disposition::Held
    }

    /// Discards a packet that has waited for the SA, or the clock, of a tunnel, or may not.
    pub(crate) fn discard_waiting(
        &mut self,
        index: TunnelIndex,
        packet: Buffer,
        reason: DropReason,
        now: Moment,
        pool: &mut Pool,
    ) {
        let tunnel = self.tunnels.get(index.0 as usize).and_then(Option::as_ref);
        let name = tunnel.map(|tunnel| &tunnel.parameters.name);
        self.audit.note_waiting(reason, packet.bytes(), name, now);
        pool.discard(packet, reason);
    }

    /// Tells that a tunnel wants SAs, as seldom as of flows. The values of the packet are what a key exchange
    /// proposes first (RFC 7296 2.9).
    fn ask_for_tunnel(&mut self, index: TunnelIndex, flow: &Flow, now: Moment) {
        let (packet, values) = (PacketValues::shown(flow), PacketValues::default());
        // A later fragment follows the policy of its first one, which has told of it.
        let lookup = self.policies_of(index).lookup(flow);
        let (Some(policy), Some(sender)) = (lookup.1, packet.local) else { return };
        if let Some(left_out) = self.acquires.admit(policy, &values, sender, now) {
            let acquire = Acquire { policy, values, packet, left_out, worker: None };
            self.events.push(Event { tunnel: self.lacking(index), kind: EventKind::Acquire(acquire) });
            self.held.has_asked(index, now);
        }
    }

    /// Tells again of tunnels whose packets still wait.
    fn ask_again(&mut self, now: Moment) {
        for (index, flow) in self.held.due(now) {
            // It may be for another tunnel by now, or for none.
            let lookup = self.policies_of(index).lookup(&flow);
            let (Verdict::Policy(Action::Protect(tunnel)), Some(policy)) = lookup else { continue };
            if tunnel == index {
                let (packet, values) = (PacketValues::shown(&flow), PacketValues::default());
                let left_out = self.acquires.take_left_out();
                let acquire = Acquire { policy, values, packet, left_out, worker: None };
                self.events.push(Event { tunnel: self.lacking(index), kind: EventKind::Acquire(acquire) });
            }
        }
    }

    /// Policies have changed, and with them perhaps whose SA, or whose clock, packets wait for.
    pub(crate) fn ask_policy_again(&mut self) {
        let is_any_clocked = self.clocked.ask_policy_again();
        self.held.recheck = self.held.waiting.len().max(usize::from(is_any_clocked));
    }

    /// Ends the wait of packets that are another tunnel's now.
    #[cold]
    #[inline(never)]
    fn release_moved(&mut self) {
        self.release_moved_of_clocks();
        for number in self.held.next_to_recheck() {
            let Some(Waiting { tunnel, packet, .. }) = self.held.waiting.get(&number) else { continue };
            let Ok(header) = IpHeader::parse(packet.packet.bytes()) else { continue };
            let flow = Flow::outbound(&header, packet.packet.bytes());
            // A later fragment hides what policy asks for, and stays with its tunnel.
            let verdict = self.policies_of(*tunnel).verdict(&flow);
            if matches!(verdict, Verdict::Policy(Action::Protect(other)) if other != *tunnel)
                && let Some(waiting) = self.held.take(number)
            {
                self.held.released.push_back(waiting.packet);
            }
        }
    }

    /// The policies that a tunnel's packets meet.
    pub(crate) fn policies_of(&self, index: TunnelIndex) -> OfInterface<'_> {
        let tunnel = self.tunnel(index);
        self.spd.of(tunnel.map_or(Interface::MAIN, |tunnel| tunnel.parameters.interface))
    }

    /// The tunnel whose SA the packets of this one wait for: itself, or that of the AH that is to cover them.
    fn lacking(&self, index: TunnelIndex) -> TunnelIndex {
        let has_own = self.tunnel(index).filter(|tunnel| tunnel.way().is_some());
        has_own.and_then(|tunnel| tunnel.parameters.covered_by).unwrap_or(index)
    }

    /// Moves packets whose wait is over, of one interface, into an empty batch, to be [sent](Self::outbound);
    /// returns how many.
    #[inline]
    pub fn take_released(&mut self, batch: &mut Batch) -> usize {
        if self.held.recheck != 0 {
            self.release_moved();
        }
        if self.held.released.is_empty() {
            return 0;
        }
        debug_assert!(batch.is_empty());
        let interface = self.held.released.front().map(|first| first.packet.interface());
        let is_same = |released: &&Released| Some(released.packet.interface()) == interface;
        let count = self.held.released.iter().take(BATCH_SIZE).take_while(is_same).count();
        let mut cut = 0;
        for (place, Released { packet, was_cut }) in self.held.released.drain(..count).enumerate() {
            batch.push(packet);
            cut |= u64::from(was_cut) << place;
        }
        self.held.cut = cut;
        count
    }

    /// Drops what has waited too long: for other fragments of its datagram, for an SA, or for a tick. Asks
    /// again for SAs that packets still wait for. To be called about once a second.
    pub fn expire_waits(&mut self, now: Moment, pool: &mut Pool) {
        self.expire_fragments(now, pool);
        while let Some(waiting) = self.held.take_expired(now) {
            let packet = waiting.packet.packet;
            self.discard_waiting(waiting.tunnel, packet, DropReason::HoldExpired, now, pool);
        }
        self.expire_clocked(now, pool);
        self.ask_again(now);
        self.ask_for_own_again(now);
    }

    /// Drops all that waits: datagrams that are not complete, packets without an SA, and those without a
    /// tick, each for a reason. SAs do not count them, and nobody is told: a gateway or a replay
    /// ends.
    pub fn discard_waits(&mut self, reasons: [DropReason; 3], pool: &mut Pool) {
        let [incomplete, without_sa, without_tick] = reasons;
        self.discard_fragments(incomplete, pool);
        let released = std::mem::take(&mut self.held.released);
        let waiting = std::mem::take(&mut self.held.waiting).into_values().map(|waiting| waiting.packet);
        released.into_iter().chain(waiting).for_each(|packet| pool.discard(packet.packet, without_sa));
        self.clocked.drain().for_each(|packet| pool.discard(packet.packet, without_tick));
        self.held.queues.clear();
        self.held.waiters = Waiters::default();
        self.discard_unnumbered(without_sa, pool);
    }

    /// Packets that wait for an SA or for a tick, each of which has a buffer.
    #[must_use]
    pub fn held_packets(&self) -> usize {
        self.held.waiting.len() + self.held.released.len() + self.clocked.packets()
    }
}

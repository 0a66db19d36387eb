//! Packet clocking: a tunnel that sends at one rate, whatever it has to send, so that who watches does not
//! see whether that is much, little or nothing ("packet clocking combined with fill packets (on a per
//! processing unit basis)", section 5.1 of the paper on VPE; RFC 4303 2.7 for ESP).
//!
//! Each worker that encrypts has a clock of its own for each such tunnel, and sends one packet at each tick:
//!
//! ```text
//!   PROTECT ─┬─► waits ─┬─► its tick: policy again ─┬─► the SA that is in use then ─► sent
//!            │          │                           └─► another answer ─► as what has waited for an SA
//!            │          └─► HOLD is over ─► dropped: clock_expired
//!            └─► no room ─► dropped: clock_full
//!   a tick, and nothing waits ─► a dummy, in VPE a fill packet
//! ```
//!
//! What waits are plain packets of the tunnel, in their order: a new SA in the place of another does not
//! matter. A tunnel without an SA, one that goes or has another configuration, and policies that give packets
//! to another tunnel let them go at once, before newer ones. They come here as packets that find no SA
//! ([`crate::held`]), so that those of other tunnels pay nothing.
//!
//! One that is too long for the path waits whole. At each tick of its own a piece is cut from it, so that
//! policy is asked of what shows all its fields, the flow is known, and one buffer waits.
//!
//! Ticks that were missed are made up for by [`MOST_AT_ONCE`] packets, no more: a burst would tell that there
//! was a lot to do. A tick for which there is no number now, since other workers have too many in flight or
//! none is leased yet, is missed, whether a packet waits or not. What is not a packet of the tunnel comes
//! beside its clock: probes of the path, and messages of a key exchange.
//!
//! **Bounds.** At a worker a tunnel's queue has as many packets as it sends in a tenth of a second, at least
//! [`LEAST_ROOM`], and all queues together have an eighth of the pool's buffers, and of its long ones, one
//! for each packet, the last quarter of these for tunnels of which few wait ([`crate::wait_room`]): one that
//! has a lot to send leaves the others room. None waits for longer than a packet does
//! [for an SA](crate::HOLD).

use crate::Ipsec;
use crate::fragments::mix;
use crate::held::{HOLD, Released};
use crate::lifetime::Moment;
use crate::outcome::Prepared;
use crate::parsed::{PacketMeta, ParsedBatch, reason_of};
use crate::runs::Disposition;
use crate::slots::SaRef;
use crate::slow_path::is_cut;
use crate::spd::{Action, Flow, TunnelIndex, Verdict};
use crate::wait_room::Waiters;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use testudo_packet::{Batch, Buffer, DropReason, Pool};
use testudo_wire::fragment;
use testudo_wire::ip::IpHeader;

/// Packets that may wait for the clock of a tunnel at a worker, at least.
pub const LEAST_ROOM: usize = 64;
/// Packets that a clock sends at once, at most, where ticks were missed: as many as are due, the last one
/// included.
pub const MOST_AT_ONCE: u64 = 4;
/// Packets that are refused at a tick, at most: many would make it late, and those of other tunnels, too.
const MOST_REFUSED: usize = 8;
/// How often a worker that sends nothing looks whether it is to send again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Packets that may wait for a clock of this rate.
fn room_of(per_second: u16) -> usize {
    LEAST_ROOM.max(usize::from(per_second / 10))
}

/// When the tick after one that was due is, or the first of those that are still made up for.
fn next_tick(due: Moment, per_second: u16, now: Moment) -> Moment {
    let period = 1_000_000_000 / u64::from(per_second.max(1));
    let late = u64::try_from(now.since(due).as_nanos()).unwrap_or(u64::MAX);
    let forgotten = (late / period).saturating_sub(MOST_AT_ONCE - 1);
    Moment(due.0 + Duration::from_nanos(period.saturating_mul(forgotten + 1)))
}

/// How long after it is added the first tick of a clock is: clocks that are added together do not tick
/// together. Multiples of the golden ratio lie evenly in a period, however many there are, and each worker's
/// begin where its seed says.
pub(crate) fn phase(number: u64, seed: u64, per_second: u16) -> Duration {
    const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
    let part = mix(seed).wrapping_add(number.wrapping_mul(GOLDEN));
    let period = 1_000_000_000 / u64::from(per_second.max(1));
    let nanoseconds = (u128::from(part) * u128::from(period)) >> 64;
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(0))
}

/// Whether a packet is a fragment, and not the first one.
fn is_later_fragment(header: &IpHeader) -> bool {
    header.fragment.is_some_and(|fragment| fragment.offset_bytes > 0)
}

/// The packets that wait for ticks.
#[derive(Debug, Default)]
pub(crate) struct Clocked {
    /// Of each tunnel that has had some, oldest first. A queue stays, empty or not, while its tunnel does: a
    /// clock that covers its load has one packet, or none, and would make and free it for each. It grows to
    /// what has waited in it at once: the room of all clocks together would be more than the pool has.
    queues: BTreeMap<TunnelIndex, VecDeque<Waiting>>,
    /// Those in all queues.
    waiters: Waiters,
    /// Whether their policies are to be asked again, since these have changed.
    recheck: bool,
}

/// A packet that waits.
#[derive(Debug)]
struct Waiting {
    packet: Released,
    since: Moment,
    /// How far one has left that leaves in pieces.
    cut: Option<Cut>,
    /// Whether it has a long buffer.
    is_long: bool,
}

/// How many these are.
fn count<'w>(waiting: impl IntoIterator<Item = &'w Waiting>) -> Waiters {
    Waiters::of(waiting.into_iter().map(|waiting| waiting.is_long))
}

/// How far a packet has left.
#[derive(Debug, Clone, Copy)]
struct Cut {
    /// Bytes of its longest piece, at most.
    mtu: u16,
    /// Pieces that have left.
    left: usize,
}

/// The next piece of a packet, and the packet, if that was not the last one, which stays in its buffer. Or
/// the packet, and why there is none.
fn next_piece(
    mut whole: Buffer,
    cut: Cut,
    pool: &mut Pool,
) -> Result<(Buffer, Option<Buffer>), (Buffer, DropReason)> {
    let header = match IpHeader::parse(whole.bytes()) {
        Ok(header) => header,
        Err(error) => return Err((whole, reason_of(error))),
    };
    let piece = fragment::pieces(&header, whole.bytes(), cut.mtu.into()).nth(cut.left);
    let Some(piece) = piece else { return Err((whole, DropReason::TooBig)) };
    let (start, end) = (piece.header_bytes, piece.payload_start + piece.payload_bytes);
    if end >= header.total_bytes {
        // No piece has a longer header than the packet.
        let bytes = whole.bytes_mut();
        bytes.copy_within(piece.payload_start..end, start);
        bytes[..start].copy_from_slice(&piece.header[..start]);
        whole.truncate(start + piece.payload_bytes);
        return Ok((whole, None));
    }
    let Some(mut own) = pool.create_from(&whole, start + piece.payload_bytes) else {
        return Err((whole, DropReason::PoolEmpty));
    };
    let area = own.receive_area();
    area[..start].copy_from_slice(&piece.header[..start]);
    area[start..start + piece.payload_bytes].copy_from_slice(&whole.bytes()[piece.payload_start..end]);
    own.set_len(start + piece.payload_bytes);
    Ok((own, Some(whole)))
}

impl Clocked {
    /// How many wait.
    pub(crate) fn packets(&self) -> usize {
        self.waiters.packets
    }

    /// How many wait for the clock of a tunnel.
    fn packets_of(&self, tunnel: TunnelIndex) -> usize {
        self.queues.get(&tunnel).map_or(0, VecDeque::len)
    }

    fn push(&mut self, tunnel: TunnelIndex, waiting: Waiting) {
        self.waiters.add(waiting.is_long);
        self.queues.entry(tunnel).or_default().push_back(waiting);
    }

    /// Puts what is left of a packet back, before all others.
    fn put_back(&mut self, tunnel: TunnelIndex, waiting: Waiting) {
        self.waiters.add(waiting.is_long);
        self.queues.entry(tunnel).or_default().push_front(waiting);
    }

    fn take_first(&mut self, tunnel: TunnelIndex) -> Option<Waiting> {
        let first = self.queues.get_mut(&tunnel)?.pop_front()?;
        self.waiters.leave(count([&first]));
        Some(first)
    }

    /// Takes all out that wait for the clock of a tunnel, oldest first.
    fn take_all(&mut self, tunnel: TunnelIndex) -> impl DoubleEndedIterator<Item = Released> {
        let queue = self.queues.get_mut(&tunnel);
        self.waiters.leave(count(queue.iter().flat_map(|queue| queue.iter())));
        queue.into_iter().flat_map(|queue| queue.drain(..)).map(|waiting| waiting.packet)
    }

    /// A tunnel of which nothing waits any more is gone, and so is its queue.
    pub(crate) fn end(&mut self, tunnel: TunnelIndex) {
        debug_assert_eq!(self.packets_of(tunnel), 0);
        self.queues.remove(&tunnel);
    }

    /// Takes those out of a tunnel's queue of which that is so, oldest first.
    fn take_where(&mut self, tunnel: TunnelIndex, is_so: impl Fn(&Waiting) -> bool) -> VecDeque<Waiting> {
        let Some(queue) = self.queues.get_mut(&tunnel) else { return VecDeque::new() };
        // Seldom any.
        if !queue.iter().any(&is_so) {
            return VecDeque::new();
        }
        let (taken, left) = std::mem::take(queue).into_iter().partition::<VecDeque<_>, _>(&is_so);
        *queue = left;
        self.waiters.leave(count(&taken));
        taken
    }

    /// Takes those out that have waited too long.
    fn take_expired(&mut self, now: Moment) -> Vec<(TunnelIndex, Waiting)> {
        let is_over = |waiting: &Waiting| now.since(waiting.since) >= HOLD;
        let mut expired = Vec::new();
        for (tunnel, queue) in &mut self.queues {
            // One of which pieces have left goes on, and keeps nobody: a slow clock would send none of a long
            // one whole. It is the first.
            let kept = usize::from(queue.front().is_some_and(|first| first.cut.is_some()));
            while queue.get(kept).is_some_and(is_over) {
                expired.extend(queue.remove(kept).map(|waiting| (*tunnel, waiting)));
            }
        }
        self.waiters.leave(count(expired.iter().map(|(_, waiting)| waiting)));
        expired
    }

    /// Policies have changed, and with them perhaps whose packets wait. Returns whether any do.
    pub(crate) fn ask_policy_again(&mut self) -> bool {
        self.recheck = self.packets() > 0;
        self.recheck
    }

    /// Takes out all that wait.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Released> {
        (self.waiters, self.recheck) = (Waiters::default(), false);
        self.queues.values_mut().flat_map(|queue| queue.drain(..)).map(|waiting| waiting.packet)
    }
}

impl Ipsec {
    /// Whether packets wait for the clock of their tunnel.
    #[must_use]
    pub fn waits_for_tick(&self) -> bool {
        self.clocked.packets() > 0
    }

    /// Has a packet wait for the clock of its tunnel, which has an SA, if there is room. One in a chain of
    /// buffers is merged, so that it has one.
    pub(crate) fn wait_for_tick(
        &mut self,
        index: TunnelIndex,
        way: SaRef,
        Released { packet, was_cut }: Released,
        now: Moment,
        pool: &mut Pool,
    ) -> Disposition {
        let per_second = self.tunnel(index).map_or(0, |tunnel| tunnel.parameters.clock());
        let (own, is_long) = (self.clocked.packets_of(index), pool.is_long(&packet));
        let lack = self.clocked.waiters.lack(own, is_long, pool);
        let whole = match own < room_of(per_second) && lack.is_none() {
            true => pool.linearise(packet).map_err(|chain| (chain, DropReason::PoolEmpty)),
            false => Err((packet, DropReason::ClockFull)),
        };
        match whole {
            Ok(packet) => {
                let packet = Released { packet, was_cut };
                self.clocked.push(index, Waiting { packet, since: now, cut: None, is_long });
            }
            Err((packet, reason)) => self.refuse_at_clock(way, packet, reason, pool),
        }
        Disposition::Held
    }

    /// Drops a packet that does not wait, or no more.
    fn refuse_at_clock(&self, way: SaRef, packet: Buffer, reason: DropReason, pool: &mut Pool) {
        if let Some(sa) = self.outbound.get(way) {
            sa.counters.count_drop(reason);
        }
        pool.discard(packet, reason);
    }

    /// Lets the packets go that wait for the clock of a tunnel: policy decides on them again, before it does
    /// on newer ones.
    pub(crate) fn release_clocked(&mut self, index: TunnelIndex) {
        let packets = self.clocked.take_all(index);
        self.held.let_go_first(packets);
    }

    /// Lets packets go that are not their tunnel's any more, since policies have changed: all at once, so
    /// that none is overtaken by newer ones. They are an eighth of the pool at most.
    pub(crate) fn release_moved_of_clocks(&mut self) {
        if !std::mem::take(&mut self.clocked.recheck) {
            return;
        }
        let queues = self.clocked.queues.iter().filter(|(_, queue)| !queue.is_empty());
        for index in queues.map(|(tunnel, _)| *tunnel).collect::<Vec<_>>() {
            let spd = &self.spd;
            let moved = self.clocked.take_where(index, |waiting| {
                let packet = &waiting.packet.packet;
                let Ok(header) = IpHeader::parse(packet.bytes()) else { return true };
                match spd.of(packet.interface()).verdict(&Flow::outbound(&header, packet.bytes())) {
                    Verdict::Policy(Action::Protect(of)) => of != index,
                    // A later fragment stays with its tunnel, as one that waits for an SA.
                    Verdict::FieldsHidden => !is_later_fragment(&header),
                    _ => true,
                }
            });
            self.held.let_go(moved.into_iter().map(|waiting| waiting.packet));
        }
    }

    /// Drops packets that have waited too long for the clock of their tunnel.
    pub(crate) fn expire_clocked(&mut self, now: Moment, pool: &mut Pool) {
        for (index, waiting) in self.clocked.take_expired(now) {
            let packet = waiting.packet.packet;
            let way = self.tunnel(index).and_then(|tunnel| self.way_of(tunnel));
            if let Some(sa) = way.and_then(|way| self.outbound.get(way)) {
                sa.counters.count_drop(DropReason::ClockExpired);
            }
            self.discard_waiting(index, packet, DropReason::ClockExpired, now, pool);
        }
    }

    /// A tick of a tunnel's clock: makes a job of one packet. A worker that has nothing to hide sends what it
    /// still has of its own, and no dummies. Returns when the next tick is, or when that worker is to look
    /// again, at the beat; `None` if there is no such tunnel.
    pub(crate) fn tick(
        &mut self,
        index: TunnelIndex,
        due: Moment,
        now: Moment,
        hides: bool,
        pool: &mut Pool,
        out: &mut Prepared,
    ) -> Option<Moment> {
        let per_second = self.tunnel(index)?.parameters.clock();
        if !hides && self.clocked.packets_of(index) == 0 {
            return Some(next_tick(due, per_second, Moment(now.0 + LOOK_AGAIN)));
        }
        self.send_at_tick(index, now, hides, pool, out);
        Some(next_tick(due, per_second, now))
    }

    /// Makes a job of the packet that has waited longest, of those that may be sent, or of a dummy, if there
    /// is something to hide.
    fn send_at_tick(
        &mut self,
        index: TunnelIndex,
        now: Moment,
        hides: bool,
        pool: &mut Pool,
        out: &mut Prepared,
    ) {
        let Some(way) = self.tunnel(index).and_then(|tunnel| self.way_of(tunnel)) else {
            // As others that find no SA, they wait for one or are dropped.
            return self.release_clocked(index);
        };
        // AH that covers it has numbers of its own.
        let covering = self.tunnel(index).and_then(|tunnel| tunnel.parameters.covered_by);
        let covering = covering.and_then(|ah| self.outbound_in_use(ah));
        if ![Some(way), covering].into_iter().flatten().all(|sa| self.has_number(sa, now)) {
            return;
        }
        let before = out.jobs.len();
        for _ in 0..MOST_REFUSED {
            let Some(waiting) = self.clocked.take_first(index) else { break };
            self.seal_at_tick(index, way, waiting, now, pool, out);
            // An SA at its end may have been left: the next tick has the other one.
            let is_left = self.tunnel(index).and_then(|tunnel| self.way_of(tunnel)) != Some(way);
            if out.jobs.len() > before || is_left {
                return;
            }
        }
        if hides {
            out.jobs.extend(self.dummy(index, now, pool));
        }
    }

    /// Whether there is a number for the packet of a tick; of those that workers share it is at hand then. A
    /// tunnel's own packet would be late without, or lost, and a dummy left out, which would tell one from
    /// the other.
    fn has_number(&mut self, way: SaRef, now: Moment) -> bool {
        self.note_flying(way);
        let Some(sa) = self.outbound.get_mut(way) else { return false };
        // Nothing overtakes what waits for a number already.
        let others_wait = sa.sequence.reserver().is_some_and(|reserver| reserver.waits);
        !others_wait && !sa.lacks_number(now, &mut self.events)
    }

    /// Makes a job of a packet that has waited, or of its next piece, drops it, or lets it go: policy may
    /// have another answer by now.
    fn seal_at_tick(
        &mut self,
        index: TunnelIndex,
        way: SaRef,
        waiting: Waiting,
        now: Moment,
        pool: &mut Pool,
        out: &mut Prepared,
    ) {
        let Waiting { packet: Released { packet, was_cut }, since, cut, is_long } = waiting;
        let (mut batch, parsed) = alone(packet, was_cut);
        let [meta] = parsed.as_slice() else { return };
        let is_ours = match parsed.verdict(meta, self.spd.of(parsed.interface)) {
            Ok(Verdict::Policy(Action::Protect(of))) => of == index,
            // A later fragment follows its first one, as it did when it came.
            Ok(Verdict::FieldsHidden) => batch.first().is_some_and(|packet| {
                IpHeader::parse(packet.bytes()).is_ok_and(|header| is_later_fragment(&header))
            }),
            _ => false,
        };
        if !is_ours {
            return self.held.let_go(batch.drain(..).map(|packet| Released { packet, was_cut }));
        }
        let is_cut = |packet: &Buffer| cut.is_some() || self.is_cut(way, meta, packet);
        if batch.first().is_some_and(is_cut) {
            for packet in batch.drain(..) {
                let waiting = Waiting { packet: Released { packet, was_cut }, since, cut, is_long };
                self.seal_piece(index, way, waiting, now, pool, out);
            }
            return;
        }
        self.seal_one(way, &parsed, &mut batch, now, pool, out);
    }

    /// Makes a job of a packet that fits, or drops it by name.
    fn seal_one(
        &mut self,
        way: SaRef,
        parsed: &ParsedBatch,
        batch: &mut [Buffer],
        now: Moment,
        pool: &mut Pool,
        out: &mut Prepared,
    ) {
        // Of shared numbers one is at hand, which another block would leave out.
        if self.outbound.get(way).is_some_and(|sa| sa.sequence.is_shared()) {
            return self.protect_singly(way, parsed.as_slice(), batch, now, pool, out);
        }
        self.protect_slowly(way, parsed.as_slice(), batch, now, pool, out);
    }

    /// Whether a packet does not cross the path whole, and may be cut.
    fn is_cut(&self, way: SaRef, meta: &PacketMeta, packet: &Buffer) -> bool {
        let bytes = usize::from(meta.content.bytes);
        let Some(sa) = self.outbound.get(way).filter(|sa| bytes > usize::from(sa.inner_mtu)) else {
            return false;
        };
        IpHeader::parse_front(packet.bytes(), bytes).is_ok_and(|header| {
            (!header.dont_fragment || meta.was_cut()) && is_cut(sa, header.version, bytes)
        })
    }

    /// Makes a job of the next piece of a packet, in the window of its flow in VPE, and has the rest wait on,
    /// before all others.
    fn seal_piece(
        &mut self,
        index: TunnelIndex,
        way: SaRef,
        waiting: Waiting,
        now: Moment,
        pool: &mut Pool,
        out: &mut Prepared,
    ) {
        let Waiting { packet: Released { packet: whole, was_cut }, since, cut, is_long } = waiting;
        let Some(sa) = self.outbound.get(way) else { return pool.discard(whole, DropReason::NoSa) };
        let mtu = sa.inner_mtu;
        // Those that were longer than the path carries, as is known now, were lost on it: it begins again.
        let cut = cut.filter(|cut| cut.mtu <= mtu).unwrap_or(Cut { mtu, left: 0 });
        let flow = sa.vpe.as_ref().map(|numbers| numbers.flow_of(whole.bytes()));
        let (piece, rest) = match next_piece(whole, cut, pool) {
            Ok(both) => both,
            Err((whole, reason)) => return self.refuse_at_clock(way, whole, reason, pool),
        };
        if let Some(packet) = rest {
            let cut = Some(Cut { left: cut.left + 1, ..cut });
            let packet = Released { packet, was_cut };
            self.clocked.put_back(index, Waiting { packet, since, cut, is_long });
        }
        let (mut batch, parsed) = alone(piece, true);
        self.keep_hash(way, flow);
        self.seal_one(way, &parsed, &mut batch, now, pool, out);
        self.keep_hash(way, None);
    }

    /// Has the next packet of an SA of VPE in the window of this flow, or, again, of its own.
    fn keep_hash(&mut self, way: SaRef, flow: Option<u64>) {
        if let Some(numbers) = self.outbound.get_mut(way).and_then(|sa| sa.vpe.as_mut()) {
            numbers.keep_hash(flow);
        }
    }
}

/// A batch of one packet, as it is parsed.
fn alone(packet: Buffer, was_cut: bool) -> (Batch, ParsedBatch) {
    let mut batch = Batch::new();
    batch.push(packet);
    let mut parsed = ParsedBatch::of(&batch);
    batch.iter_mut().for_each(|packet| parsed.read(packet));
    if was_cut {
        parsed.note_cut(0);
    }
    (batch, parsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Moment {
        Moment(Duration::from_micros(us))
    }

    /// Packets that are sent when a clock of a thousand a second that is due at 10 ms is looked at, and when
    /// the next one is.
    fn sent_at(now: Moment) -> (u64, Moment) {
        let (mut due, mut sent) = (at(10_000), 0);
        while due <= now {
            due = next_tick(due, 1000, now);
            sent += 1;
        }
        (sent, due)
    }

    #[test]
    fn a_clock_keeps_its_beat_and_makes_up_for_few_missed_ticks() {
        assert_eq!(sent_at(at(9_999)), (0, at(10_000)));
        assert_eq!(sent_at(at(10_000)), (1, at(11_000)));
        assert_eq!(sent_at(at(10_999)), (1, at(11_000)));
        assert_eq!(sent_at(at(13_000)), (4, at(14_000)));
        assert_eq!(sent_at(at(14_000)), (4, at(15_000)));
        assert_eq!(sent_at(at(3_600_000_500)), (4, at(3_600_001_000)));
    }

    /// However many there are, about as many in each tenth of the period; the first of a worker without a
    /// seed at once.
    #[test]
    fn clocks_that_begin_together_tick_apart() {
        assert_eq!(phase(0, 0, 100), Duration::ZERO);
        assert_ne!(phase(0, 1, 100), phase(0, 2, 100), "nor those of two workers");
        for count in [10, 100, 1000] {
            let mut tenths = [0; 10];
            for number in 0..count {
                let phase = phase(number, 0, 100);
                assert!(phase < Duration::from_millis(10));
                tenths[usize::try_from(phase.as_millis()).unwrap()] += 1;
            }
            let even = count / 10;
            assert!(tenths.iter().all(|of_tenth| even.abs_diff(*of_tenth) <= 3), "{count}: {tenths:?}");
        }
    }

    #[test]
    fn a_queue_has_room_for_a_tenth_of_a_second() {
        assert_eq!([1, 640, 650, 10_000].map(room_of), [64, 64, 65, 1000]);
    }
}

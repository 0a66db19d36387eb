//! Packet clocking: a tunnel that sends at one rate, whatever it has to send, so that who watches does not
//! see whether that is much, little or nothing ("packet clocking combined with fill packets (on a per
//! processing unit basis)", section 5.1 of the paper on VPE; RFC 4303 2.7 for ESP).
//!
//! Each worker that encrypts has a clock of its own for each such tunnel, and sends one packet at each tick:
//!
//! ```text
//!   PROTECT ─┬─► waits ─► its tick: policy again ─┬─► the SA that is in use then ─► sent
//!            │                                    └─► another answer ─► as what has waited for an SA
//!            └─► no room ─► dropped: clock_full
//!   a tick, and nothing waits ─► a dummy, in VPE a fill packet
//! ```
//!
//! What waits are plain packets of the tunnel, in their order: an SA that comes or goes meanwhile does not
//! matter, and a tunnel that goes, or has another configuration, lets them go. They come here as packets that
//! find no SA ([`crate::held`]), so that those of other tunnels pay nothing. One that is too long for the
//! path is cut before it is sealed, each piece with a tick of its own.
//!
//! Ticks that were missed are made up for by [`MOST_AT_ONCE`] packets, no more: a burst would tell that there
//! was a lot to do. What is not a packet of the tunnel comes beside its clock: probes of the path, and
//! messages of a key exchange.
//!
//! **Bounds.** At a worker a tunnel's queue has as many packets as it sends in a tenth of a second, at least
//! [`LEAST_ROOM`], and all queues together have an eighth of the pool's buffers, the last quarter of these
//! for tunnels of which few wait: one that has a lot to send leaves the others room.

use crate::Ipsec;
use crate::fragments::mix;
use crate::held::Released;
use crate::lifetime::Moment;
use crate::outcome::Prepared;
use crate::parsed::{PacketMeta, ParsedBatch, reason_of};
use crate::runs::Disposition;
use crate::slots::SaRef;
use crate::slow_path::{cut, is_cut};
use crate::spd::{Action, TunnelIndex, Verdict};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use testudo_packet::{Batch, Buffer, DropReason, Pool};
use testudo_wire::ip::IpHeader;

/// Packets that may wait for the clock of a tunnel at a worker, at least.
pub const LEAST_ROOM: usize = 64;
/// Packets that a clock sends at once, at most, where ticks were missed: as many as are due, the last one
/// included.
pub const MOST_AT_ONCE: u64 = 4;
/// A tunnel of which fewer wait may use all of the room.
const FEW: usize = 4;
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

/// The packets that wait for ticks.
#[derive(Debug, Default)]
pub(crate) struct Clocked {
    /// Of each tunnel, oldest first; none is empty.
    queues: BTreeMap<TunnelIndex, VecDeque<Waiting>>,
    /// Packets in all queues.
    packets: usize,
}

/// A packet that waits.
#[derive(Debug)]
struct Waiting {
    packet: Released,
    /// Of a piece of a packet that was cut, in VPE: the hash of the whole one's flow, in whose window it
    /// stays.
    flow: Option<u64>,
}

impl Clocked {
    /// How many wait.
    pub(crate) fn packets(&self) -> usize {
        self.packets
    }

    /// How many wait for the clock of a tunnel.
    fn packets_of(&self, tunnel: TunnelIndex) -> usize {
        self.queues.get(&tunnel).map_or(0, VecDeque::len)
    }

    fn push(&mut self, tunnel: TunnelIndex, waiting: Waiting) {
        self.queues.entry(tunnel).or_default().push_back(waiting);
        self.packets += 1;
    }

    /// Puts the pieces of a packet before all others, in the place of that.
    fn put_first(&mut self, tunnel: TunnelIndex, pieces: Vec<Waiting>) {
        self.packets += pieces.len();
        if !pieces.is_empty() {
            let queue = self.queues.entry(tunnel).or_default();
            pieces.into_iter().rev().for_each(|piece| queue.push_front(piece));
        }
    }

    fn take_first(&mut self, tunnel: TunnelIndex) -> Option<Waiting> {
        let Entry::Occupied(mut queue) = self.queues.entry(tunnel) else { return None };
        let first = queue.get_mut().pop_front();
        if queue.get().is_empty() {
            queue.remove();
        }
        self.packets -= usize::from(first.is_some());
        first
    }

    /// Takes all out that wait for the clock of a tunnel, oldest first.
    fn take_all(&mut self, tunnel: TunnelIndex) -> impl Iterator<Item = Released> + use<> {
        let queue = self.queues.remove(&tunnel).unwrap_or_default();
        self.packets -= queue.len();
        queue.into_iter().map(|waiting| waiting.packet)
    }

    /// All that wait.
    pub(crate) fn into_packets(self) -> impl Iterator<Item = Released> {
        self.queues.into_values().flatten().map(|waiting| waiting.packet)
    }
}

impl Ipsec {
    /// Whether packets wait for the clock of their tunnel.
    #[must_use]
    pub fn waits_for_tick(&self) -> bool {
        self.clocked.packets > 0
    }

    /// Has a packet wait for the clock of its tunnel, which has an SA, if there is room.
    pub(crate) fn wait_for_tick(
        &mut self,
        index: TunnelIndex,
        way: SaRef,
        packet: Released,
        pool: &mut Pool,
    ) -> Disposition {
        let per_second = self.tunnel(index).map_or(0, |tunnel| tunnel.parameters.clock());
        let (own, all) = (self.clocked.packets_of(index), pool.size() / 8);
        let room = if own < FEW { all } else { all - all / 4 };
        if own < room_of(per_second) && self.clocked.packets < room {
            self.clocked.push(index, Waiting { packet, flow: None });
            return Disposition::Held;
        }
        if let Some(sa) = self.outbound.get(way) {
            sa.counters.count_drop(DropReason::ClockFull);
        }
        pool.discard(packet.packet, DropReason::ClockFull);
        Disposition::Held
    }

    /// Lets the packets go that wait for the clock of a tunnel: policy decides on them again, before it does
    /// on newer ones.
    pub(crate) fn release_clocked(&mut self, index: TunnelIndex) {
        let packets = self.clocked.take_all(index);
        self.held.let_go(packets);
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
        self.send_at_tick(index, now, pool, out);
        Some(next_tick(due, per_second, now))
    }

    /// Makes a job of the packet that has waited longest, of those that may be sent, or of a dummy.
    fn send_at_tick(&mut self, index: TunnelIndex, now: Moment, pool: &mut Pool, out: &mut Prepared) {
        let before = out.jobs.len();
        while out.jobs.len() == before {
            let Some(way) = self.tunnel(index).and_then(|tunnel| self.way_of(tunnel)) else {
                // As others that find no SA, they wait for one or are dropped.
                return self.release_clocked(index);
            };
            // One that got no number of those that workers share is sent as soon as there is one, late:
            // nothing overtakes it.
            let reserver = self.outbound.get_mut(way).and_then(|sa| sa.sequence.reserver());
            if reserver.is_some_and(|reserver| reserver.waits) {
                return;
            }
            match self.clocked.take_first(index) {
                Some(waiting) => self.seal_at_tick(index, way, waiting, now, pool, out),
                None => return out.jobs.extend(self.dummy(index, now, pool)),
            }
        }
    }

    /// Makes a job of a packet that has waited, drops it, or has it wait on: in pieces, or, where policy has
    /// another answer by now, for that to be followed.
    fn seal_at_tick(
        &mut self,
        index: TunnelIndex,
        way: SaRef,
        waiting: Waiting,
        now: Moment,
        pool: &mut Pool,
        out: &mut Prepared,
    ) {
        let Waiting { packet: Released { packet, was_cut }, flow } = waiting;
        let mut batch = Batch::new();
        batch.push(packet);
        let mut parsed = ParsedBatch::of(&batch);
        batch.iter_mut().for_each(|packet| parsed.read(packet));
        if was_cut {
            parsed.note_cut(0);
        }
        let [meta] = parsed.as_slice() else { return };
        let is_ours = match parsed.verdict(meta, self.spd.of(parsed.interface)) {
            Ok(Verdict::Policy(Action::Protect(of))) => of == index,
            // A later fragment follows its first one, as it did when it came.
            Ok(Verdict::FieldsHidden) => true,
            _ => false,
        };
        if !is_ours {
            return self.held.let_go(batch.drain(..).map(|packet| Released { packet, was_cut }));
        }
        if batch.first().is_some_and(|packet| self.is_cut(way, meta, packet)) {
            batch.drain(..).for_each(|packet| self.wait_in_pieces(index, way, (packet, flow), pool));
            return;
        }
        self.keep_hash(way, flow);
        self.protect_slowly(way, parsed.as_slice(), &mut batch, now, pool, out);
        self.keep_hash(way, None);
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

    /// Has a packet of a flow, which is known if it is a piece itself, wait on in pieces that cross the path,
    /// before all others.
    fn wait_in_pieces(
        &mut self,
        index: TunnelIndex,
        way: SaRef,
        (packet, flow): (Buffer, Option<u64>),
        pool: &mut Pool,
    ) {
        let Some(sa) = self.outbound.get(way) else { return pool.discard(packet, DropReason::NoSa) };
        let whole = match pool.linearise(packet) {
            Ok(whole) => whole,
            Err(chain) => {
                sa.counters.count_drop(DropReason::PoolEmpty);
                return pool.discard(chain, DropReason::PoolEmpty);
            }
        };
        let header = match IpHeader::parse(whole.bytes()) {
            Ok(header) => header,
            Err(error) => return pool.discard(whole, reason_of(error)),
        };
        let flow = flow.or_else(|| sa.vpe.as_ref().map(|numbers| numbers.flow_of(whole.bytes())));
        let pieces = cut(whole, &header, sa.inner_mtu.into(), pool).into_iter();
        let pieces = pieces.map(|packet| Waiting { packet: Released { packet, was_cut: true }, flow });
        self.clocked.put_first(index, pieces.collect());
    }

    /// Has the next packet of an SA of VPE in the window of this flow, or, again, of its own.
    fn keep_hash(&mut self, way: SaRef, flow: Option<u64>) {
        if let Some(numbers) = self.outbound.get_mut(way).and_then(|sa| sa.vpe.as_mut()) {
            numbers.keep_hash(flow);
        }
    }
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

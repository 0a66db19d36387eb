//! SAs that several workers send and receive through.
//!
//! Each worker has the SA in its own [`Ipsec`], with counters of its own. Of an SA towards the peer they
//! share the [numbers](crate::SharedNumbers), of one from the peer the [window](crate::SharedWindow), and of
//! both what is [used of its lifetime](crate::shared_use):
//!
//! ```text
//!   worker 0: Ipsec ─ OutboundSa ─ Reserver ─┐                    ┌─ ReplayWindow ─ InboundSa ─ Ipsec
//!                                            ├─ SharedNumbers     │
//!   worker 1: Ipsec ─ OutboundSa ─ Reserver ─┘     SharedWindow ──┴─ ReplayWindow ─ InboundSa ─ Ipsec
//! ```
//!
//! Packets for which there are no numbers now, since other workers have too many in flight, or this one has
//! its share of them, *wait* here, as they were parsed. Who
//! runs the worker sends them in its next turn ([`Ipsec::send_waiting`]), before newer ones, takes no more
//! from the protected side [while some wait](Ipsec::waits_for_numbers), and tells when it has handed all to
//! the port that it has reserved numbers for ([`Ipsec::handed_over_all`]): nobody waits for a worker that has
//! nothing in flight. What waits is bounded by the pool, since each packet has a buffer of it.

use crate::Ipsec;
use crate::inbound::reason_of_replay;
use crate::lifetime::Moment;
use crate::numbers::SequenceError;
use crate::opened::{Refusals, verdict_of};
use crate::outcome::Prepared;
use crate::parsed::{PacketMeta, ParsedBatch};
use crate::runs::{discard, drain};
use crate::sa::InboundSa;
use crate::slots::SaRef;
use testudo_crypto::{Job, JobStatus};
use testudo_packet::{Buffer, DropReason, Pool};

/// A packet that waits for a number.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) packet: Buffer,
    /// It may be cut, whatever its header says.
    pub(crate) may_be_cut: bool,
}

/// Packets of one SA that wait for numbers, oldest first, as they were parsed.
#[derive(Debug)]
struct Queue {
    sa: SaRef,
    metas: Vec<PacketMeta>,
    packets: Vec<Buffer>,
    /// Those before have left.
    first: usize,
}

impl Queue {
    fn len(&self) -> usize {
        self.packets.len() - self.first
    }

    /// Takes the first packets out, which have left: their buffers are empty.
    fn leave(&mut self, count: usize) {
        self.first += count;
        if self.first >= self.packets.len() {
            self.metas.clear();
            self.packets.clear();
            self.first = 0;
        }
    }

    /// Puts packets before all others.
    #[cold]
    fn put_first(&mut self, waiting: Vec<Waiting>) {
        for (at, Waiting { mut packet, may_be_cut, .. }) in (self.first..).zip(waiting) {
            let mut parsed = ParsedBatch::default();
            parsed.read(&mut packet);
            if may_be_cut {
                parsed.note_cut(0);
            }
            self.metas.splice(at..at, parsed.as_slice().iter().copied());
            self.packets.insert(at, packet);
        }
    }
}

/// What an [`Ipsec`] has to do with other workers.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    /// There is or was an SA towards a peer whose numbers are shared.
    is_any: bool,
    /// SAs of which this worker may have numbers in flight, some perhaps removed: each once.
    flying: Vec<SaRef>,
    /// Packets that wait: a queue for each SA, and perhaps an empty one, whose memory is used again.
    queues: Vec<Queue>,
    /// Packets in all queues.
    waiting: usize,
}

impl Sharing {
    /// Notes that the numbers of an SA towards a peer are shared.
    pub(crate) fn begin(&mut self) {
        self.is_any = true;
    }
}

impl Ipsec {
    /// Whether packets wait for sequence numbers that other workers have in flight.
    #[must_use]
    #[inline]
    pub fn waits_for_numbers(&self) -> bool {
        self.sharing.waiting > 0
    }

    /// Whether this worker has numbers in flight that others may wait for.
    #[must_use]
    #[inline]
    pub fn has_numbers_in_flight(&self) -> bool {
        !self.sharing.flying.is_empty()
    }

    /// Notes that numbers of this SA may be in flight from now on, if they are shared.
    #[inline]
    pub(crate) fn note_flying(&mut self, sa: SaRef) {
        // Packets of one SA tend to come together.
        if self.sharing.is_any && self.sharing.flying.last() != Some(&sa) {
            self.note_another_flying(sa);
        }
    }

    #[cold]
    fn note_another_flying(&mut self, sa: SaRef) {
        if let Some(reserver) = self.outbound.get_mut(sa).and_then(|sa| sa.sequence.reserver())
            && !std::mem::replace(&mut reserver.is_noted, true)
        {
            self.sharing.flying.push(sa);
        }
    }

    /// Drops packets that wait for sequence numbers.
    pub(crate) fn discard_unnumbered(&mut self, reason: DropReason, pool: &mut Pool) {
        self.sharing.waiting = 0;
        for queue in self.sharing.queues.drain(..) {
            queue.packets.into_iter().skip(queue.first).for_each(|packet| pool.discard(packet, reason));
        }
    }

    /// Makes jobs of the packets that wait for sequence numbers, as far as there are any now. Returns how
    /// many do not wait any more. To be called in each turn, before [`outbound`](Self::outbound).
    pub fn send_waiting(&mut self, now: Moment, pool: &mut Pool, out: &mut Prepared) -> usize {
        let before = self.sharing.waiting;
        let mut queues = std::mem::take(&mut self.sharing.queues);
        for queue in queues.iter_mut().filter(|queue| queue.len() > 0) {
            let (metas, packets) = (&queue.metas[queue.first..], &mut queue.packets[queue.first..]);
            let left = self.protect_in_blocks(queue.sa, metas, packets, now, pool, out);
            queue.leave(left);
            if !out.waiting.is_empty() {
                queue.put_first(std::mem::take(&mut out.waiting));
            }
            self.set_waits(queue.sa, queue.len() > 0);
        }
        self.sharing.waiting = queues.iter().map(Queue::len).sum();
        if queues.len() > 1 {
            queues.retain(|queue| queue.len() > 0);
        }
        self.sharing.queues = queues;
        before.saturating_sub(self.sharing.waiting)
    }

    /// The worker has handed to the port, or dropped, all packets that it has made jobs of: nobody waits for
    /// it. To be called at the end of a turn after which nothing is in flight. It costs something for each SA
    /// that was used since, however many there are.
    pub fn handed_over_all(&mut self) {
        self.handed_over_where(|_| true);
    }

    /// The same for the SAs of which this says that nothing is in flight, while there may be something of
    /// others.
    pub fn handed_over_where(&mut self, mut is_over: impl FnMut(SaRef) -> bool) {
        let (flying, outbound) = (&mut self.sharing.flying, &mut self.outbound);
        flying.retain(|&flies| {
            if !is_over(flies) {
                return true;
            }
            if let Some(sa) = outbound.get_mut(flies)
                && let Some(reserver) = sa.sequence.reserver()
            {
                reserver.is_noted = false;
                reserver.handed_over_all();
                // A number that was at hand for a packet that was refused: later it might be too old.
                sa.sequence.leave_rest_out();
            }
            false
        });
    }

    /// Says whether packets of an SA wait, so that newer ones do, too.
    fn set_waits(&mut self, sa: SaRef, waits: bool) {
        if let Some(reserver) = self.outbound.get_mut(sa).and_then(|sa| sa.sequence.reserver()) {
            reserver.waits = waits;
        }
    }

    /// Makes jobs of as many adjacent packets of one SA as there are numbers for. The others wait.
    #[cold]
    #[inline(never)]
    pub(crate) fn protect_shared(
        &mut self,
        sa_ref: SaRef,
        metas: &[PacketMeta],
        buffers: &mut [Buffer],
        now: Moment,
        pool: &mut Pool,
        out: &mut Prepared,
    ) {
        let reserver = self.outbound.get_mut(sa_ref).and_then(|sa| sa.sequence.reserver());
        let left = match reserver.is_some_and(|reserver| reserver.waits) {
            true => 0,
            false => self.protect_in_blocks(sa_ref, metas, buffers, now, pool, out),
        };
        if left < metas.len() || !out.waiting.is_empty() {
            self.wait(sa_ref, std::mem::take(&mut out.waiting), &metas[left..], &mut buffers[left..]);
        }
    }

    /// Makes jobs of packets of one SA, a block of numbers after the other, and returns of how many. The
    /// others have to wait for other workers, or until this one has handed over what it has in flight.
    fn protect_in_blocks(
        &mut self,
        sa_ref: SaRef,
        metas: &[PacketMeta],
        buffers: &mut [Buffer],
        now: Moment,
        pool: &mut Pool,
        out: &mut Prepared,
    ) -> usize {
        self.note_flying(sa_ref);
        let mut at = 0;
        while at < metas.len() {
            let Some(sa) = self.outbound.get_mut(sa_ref) else {
                discard(&mut buffers[at..], DropReason::NoSa, pool);
                return metas.len();
            };
            // What is refused in any case gets no number.
            let is_refused = sa.template.is_none() || sa.lifetime.is_expired(now);
            let left = metas.len() - at;
            let reserved = match is_refused {
                true => Err(SequenceError::NotLeased),
                false => sa.sequence.reserve_block(left as u64),
            };
            let count = match reserved {
                Ok(count) => usize::try_from(count).unwrap_or(usize::MAX).min(left),
                Err(SequenceError::PeerWindowFull) => return at,
                // Each is dropped with its reason.
                Err(SequenceError::Exhausted | SequenceError::NotLeased) => left,
            };
            let (these, own) = (&metas[at..at + count], &mut buffers[at..at + count]);
            if !self.protect_run(sa_ref, these, own, now, pool, out) {
                self.protect_singly(sa_ref, these, own, now, pool, out);
            }
            at += count;
            let sequence = self.outbound.get_mut(sa_ref).map(|sa| &mut sa.sequence);
            let must_hand_over = sequence.is_some_and(|sequence| {
                sequence.leave_rest_out();
                sequence.reserver().is_some_and(|reserver| reserver.has_its_share())
            });
            if must_hand_over || !out.waiting.is_empty() {
                break;
            }
        }
        at
    }

    /// Has packets wait for numbers, those first that come from a packet that was cut.
    fn wait(&mut self, sa: SaRef, cut: Vec<Waiting>, metas: &[PacketMeta], buffers: &mut [Buffer]) {
        self.set_waits(sa, true);
        let queues = &mut self.sharing.queues;
        let own = queues.iter().position(|queue| queue.sa == sa);
        let own = own.or_else(|| queues.iter().position(|queue| queue.len() == 0)).unwrap_or_else(|| {
            queues.push(Queue { sa, metas: Vec::new(), packets: Vec::new(), first: 0 });
            queues.len() - 1
        });
        let queue = &mut queues[own];
        (queue.sa, self.sharing.waiting) = (sa, self.sharing.waiting - queue.len());
        if !cut.is_empty() {
            // Nothing of this SA waits yet: what comes while something does gets no number.
            queue.put_first(cut);
        }
        queue.metas.extend_from_slice(metas);
        queue.packets.extend(drain(buffers));
        self.sharing.waiting += queue.len();
    }
}

impl InboundSa {
    /// Commits the numbers of adjacent jobs of a batch, from index `at` on, to a shared window.
    #[cold]
    #[inline(never)]
    pub(crate) fn commit_shared_run(&mut self, jobs: &[Job], at: usize, refusals: &mut Refusals) {
        for (place, job) in (at..).zip(jobs) {
            if let Err(reason) = verdict_of(job) {
                refusals.add(place, self.note_failure(job, reason));
            }
        }
        let authentic = (at..).zip(jobs).filter(|(_, job)| job.status == JobStatus::Done);
        let numbers = authentic.map(|(place, job)| (place, job.sequence));
        if let Some(window) = self.window.sharing() {
            window.commit_batch(numbers, |place, error| refusals.add(place, reason_of_replay(error)));
        }
        self.window.look();
    }
}

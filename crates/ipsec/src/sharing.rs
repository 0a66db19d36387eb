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
//! Packets for which there are no numbers now, since other workers have too many in flight, *wait* here. Who
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
use testudo_packet::{BATCH_SIZE, Batch, Buffer, DropReason, Pool};

/// A packet that waits for a number.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) sa: SaRef,
    pub(crate) packet: Buffer,
    /// It may be cut, whatever its header says.
    pub(crate) may_be_cut: bool,
}

/// What an [`Ipsec`] has to do with other workers.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    /// There is or was an SA towards a peer whose numbers are shared.
    is_any: bool,
    /// SAs of which this worker may have numbers in flight, some perhaps removed: each once.
    flying: Vec<SaRef>,
    /// Packets that wait, oldest first.
    waiting: Vec<Waiting>,
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
        !self.sharing.waiting.is_empty()
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
        self.sharing.waiting.drain(..).for_each(|waiting| pool.discard(waiting.packet, reason));
    }

    /// Makes jobs of the packets that wait for sequence numbers, as far as there are any now. Returns how
    /// many do not wait any more. To be called in each turn, before [`outbound`](Self::outbound).
    pub fn send_waiting(&mut self, now: Moment, pool: &mut Pool, out: &mut Prepared) -> usize {
        let waiting = std::mem::take(&mut self.sharing.waiting);
        let before = waiting.len();
        for &Waiting { sa, .. } in &waiting {
            self.set_waits(sa, false);
        }
        let mut waiting = waiting.into_iter().peekable();
        while let Some(sa) = waiting.peek().map(|first| first.sa) {
            let (mut batch, mut cut) = (Batch::new(), Vec::new());
            while batch.len() < BATCH_SIZE
                && let Some(next) = waiting.next_if(|next| next.sa == sa)
            {
                cut.push(next.may_be_cut);
                batch.push(next.packet);
            }
            let mut parsed = ParsedBatch::of(&batch);
            batch.iter_mut().for_each(|packet| parsed.read(packet));
            (0..).zip(cut).filter(|(_, is_cut)| *is_cut).for_each(|(place, _)| parsed.note_cut(place));
            self.protect_shared(sa, parsed.as_slice(), &mut batch, now, pool, out);
            // All are drained.
            batch.clear();
        }
        before.saturating_sub(self.sharing.waiting.len())
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
        mut metas: &[PacketMeta],
        mut buffers: &mut [Buffer],
        now: Moment,
        pool: &mut Pool,
        out: &mut Prepared,
    ) {
        self.note_flying(sa_ref);
        while !metas.is_empty() {
            let Some(sa) = self.outbound.get_mut(sa_ref) else {
                return discard(buffers, DropReason::NoSa, pool);
            };
            let waits = sa.sequence.reserver().is_some_and(|reserver| reserver.waits);
            // What is refused in any case gets no number.
            let is_refused = sa.template.is_none() || sa.lifetime.is_expired(now);
            let reserved = match (waits, is_refused) {
                (true, _) => Err(SequenceError::PeerWindowFull),
                (false, true) => Err(SequenceError::NotLeased),
                (false, false) => sa.sequence.reserve_block(metas.len() as u64),
            };
            let count = match reserved {
                Ok(count) => usize::try_from(count).unwrap_or(usize::MAX).min(metas.len()),
                Err(SequenceError::PeerWindowFull) => return self.wait(sa_ref, metas, buffers),
                // Each is dropped with its reason.
                Err(SequenceError::Exhausted | SequenceError::NotLeased) => metas.len(),
            };
            let (these, later) = metas.split_at(count);
            let (own, rest) = std::mem::take(&mut buffers).split_at_mut(count);
            if !self.protect_run(sa_ref, these, own, now, pool, out) {
                self.protect_singly(sa_ref, these, own, now, pool, out);
            }
            if let Some(sa) = self.outbound.get_mut(sa_ref) {
                sa.sequence.leave_rest_out();
            }
            if !out.waiting.is_empty() {
                self.sharing.waiting.append(&mut out.waiting);
                self.set_waits(sa_ref, true);
            }
            (metas, buffers) = (later, rest);
        }
    }

    /// Has packets wait for numbers.
    fn wait(&mut self, sa: SaRef, metas: &[PacketMeta], buffers: &mut [Buffer]) {
        self.set_waits(sa, true);
        let packets = metas.iter().zip(drain(buffers));
        let waiting = packets.map(|(meta, packet)| Waiting { sa, packet, may_be_cut: meta.was_cut() });
        self.sharing.waiting.extend(waiting);
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

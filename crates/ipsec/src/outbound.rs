//! From the protected to the unprotected side: policy, headers, sequence numbers, jobs (RFC 4303 3.3).
//!
//! A batch passes through phases, each a loop over all packets: parse headers ([`crate::parsed`]), look up
//! policy, find SAs, then number and write ([`crate::framing`]). Adjacent packets of one SA ([`crate::runs`])
//! are numbered and counted together. Uncommon ones (options, fragments, a limit or the end of a lease near,
//! a packet too long) take the slow path ([`crate::slow_path`]) one by one, in their turn.

use crate::Ipsec;
use crate::acquire::WANTED;
use crate::audit::Drops;
use crate::counters::SaState;
use crate::encap::ah::{AhTransport, AhTunnel, unmask};
use crate::encap::esp_transport::EspTransport;
use crate::encap::esp_tunnel::{EspTunnel, Framing};
use crate::encap::vpe::{Vpe, VpeFraming};
use crate::encap::{Encap, Frame, Mode, outer_fields, then};
use crate::fragments::{Reassembled, Way};
use crate::held::NO_SA;
use crate::lifetime::Moment;
use crate::outcome::{Bypassed, Prepared, Sealed};
use crate::parsed::{OnFragment, PacketMeta, ParsedBatch, reason_of};
use crate::runs::{Disposition, Runs, discard, drain};
use crate::sa::{Framed, OutboundSa};
use crate::slots::SaRef;
use crate::slow_path::SlowPath;
use crate::spd::{Action, Answer, Verdict};
use crate::vpe::Numbered;
use std::vec::Drain;
use testudo_crypto::{Direction, Job, JobStatus};
use testudo_packet::{Batch, Buffer, DropReason, Pool, Stage, StageClock};
use testudo_wire::ip::IpHeader;

impl Ipsec {
    /// Takes packets from the protected side, all of one [interface](Buffer::interface), and makes jobs of
    /// those that policy protects. All of `batch` is taken: every packet ends up in `out` or is discarded to
    /// `pool` with its reason.
    pub fn outbound(
        &mut self,
        batch: &mut Batch,
        now: Moment,
        pool: &mut Pool,
        clock: &mut StageClock,
        out: &mut Prepared,
    ) {
        let mut parsed = ParsedBatch::of(batch);
        for buffer in batch.iter_mut() {
            parsed.read(buffer);
        }
        if self.held.cut != 0 {
            self.note_cut(&mut parsed);
        }
        if parsed.has_fragments() {
            self.decide_on_fragments(&mut parsed, batch, now, pool);
        }
        clock.lap(Stage::Parse);
        let policies = self.spd.of(parsed.interface);
        if policies.is_indexed() {
            for meta in parsed.as_slice() {
                parsed.prefetch(meta, policies);
            }
        }
        let mut runs = Runs::default();
        self.ask_policy(&parsed, &mut runs);
        if self.spd.populates() {
            self.acquire(&parsed, &mut runs, now);
        }
        if self.held.tunnels > 0 {
            self.hold_back(&parsed, &mut runs, batch, now, pool);
        }
        if self.outbound.exceed_the_cache() {
            self.prefetch_counters(&runs);
        }
        clock.lap(Stage::Policy);
        out.jobs.reserve(batch.len());
        for (disposition, metas, buffers) in runs.over(parsed.as_slice(), batch) {
            match disposition {
                Disposition::Sa(sa_ref) => self.protect(sa_ref, metas, buffers, now, pool, out),
                Disposition::Pass => out.pass.extend(drain(buffers).map(Bypassed::new)),
                Disposition::Held => {}
                Disposition::Drop(reason) => {
                    let mut drops = Drops { pool, audit: &mut self.audit, now };
                    drain(buffers).for_each(|packet| drops.discard(packet, reason));
                }
            }
        }
        // All are drained: what remains are empty buffers, which own no memory.
        batch.clear();
        clock.lap(Stage::Framing);
    }

    /// Decides on fragments before policy does: later ones follow their first one, and what a host has cut
    /// that transport mode will carry is put together.
    #[cold]
    #[inline(never)]
    fn decide_on_fragments(
        &mut self,
        parsed: &mut ParsedBatch,
        batch: &mut Batch,
        now: Moment,
        pool: &mut Pool,
    ) {
        let way = Way::Outbound(parsed.interface);
        parsed.decide_on_fragments(batch, |header, buffer| {
            let verdict = self.verdict_on_fragment(way, header, buffer.bytes(), now);
            if !self.is_joined(header, verdict) {
                return OnFragment::Alone(verdict);
            }
            // All of them come from this host, or claim to: they share the larger part of the room.
            match self.host_fragments.take(buffer, header, true, now, pool) {
                Ok(Reassembled::Kept) => OnFragment::Kept,
                Ok(Reassembled::Whole) => OnFragment::Whole,
                Err(reason) => OnFragment::Refused(reason),
            }
        });
    }

    /// Whether a fragment is put together with the others of its datagram, which its host's own IP layer has
    /// cut before it came here: transport mode is for whole datagrams, and outside of that layer they come in
    /// fragments (RFC 4303 3.3.4, RFC 4302 3.3.4: "may have to first reassemble a packet fragmented by the
    /// local IP layer, then apply IPsec, and then fragment the resulting packet").
    ///
    /// Policy then decides on the whole, which shows what its first fragment asked for and the others hid
    /// (RFC 4301 7.4): the fragments may have asked for different SAs, or the later ones have come first.
    fn is_joined(&self, header: &IpHeader, verdict: Verdict) -> bool {
        match verdict {
            Verdict::Policy(Action::Protect(index)) => {
                self.tunnel(index).is_some_and(|tunnel| tunnel.parameters.mode == Mode::Transport)
            }
            Verdict::FieldsHidden => self.addresses.are_hosts(header.source, header.destination),
            _ => false,
        }
    }

    /// Looks up the policy of each packet, and prefetches the SAs that it leads to.
    #[inline]
    fn ask_policy(&self, parsed: &ParsedBatch, runs: &mut Runs) {
        let policies = self.spd.of(parsed.interface);
        let mut last = Answer::ASK;
        for meta in parsed.as_slice() {
            let answer = ParsedBatch::answer(meta, policies);
            // Packets of one SA tend to be adjacent.
            if answer == last && answer != Answer::ASK {
                runs.push_same();
                continue;
            }
            last = answer;
            let disposition =
                self.disposition(answer.verdict().map_or_else(|| parsed.verdict(meta, policies), Ok));
            let is_new = runs.push(disposition);
            if let (Disposition::Sa(sa_ref), true) = (disposition, is_new) {
                self.outbound.prefetch(sa_ref);
            }
        }
    }

    /// Prefetches counters: they are not next to their SAs, since other threads read them.
    fn prefetch_counters(&self, runs: &Runs) {
        for sa in runs.sas().filter_map(|sa_ref| self.outbound.get(sa_ref)) {
            sa.counters.prefetch();
        }
    }

    /// The disposition that follows from policy's verdict: a protected packet's names its SA.
    #[inline(always)]
    fn disposition(&self, verdict: Result<Verdict, DropReason>) -> Disposition {
        match verdict {
            Ok(Verdict::Policy(Action::Protect(index))) => {
                let sa_ref = self.outbound_in_use(index);
                sa_ref.map_or(NO_SA, Disposition::Sa)
            }
            Ok(Verdict::Policy(Action::Populate(_))) => WANTED,
            Ok(Verdict::Policy(Action::Bypass)) => Disposition::Pass,
            Ok(Verdict::Policy(Action::Discard)) => Disposition::Drop(DropReason::PolicyDiscard),
            Ok(Verdict::NoPolicy) => Disposition::Drop(DropReason::NoPolicy),
            Ok(Verdict::FieldsHidden) => Disposition::Drop(DropReason::FieldsHidden),
            Err(reason) => Disposition::Drop(reason),
        }
    }

    /// Makes jobs of adjacent packets of one SA.
    #[inline]
    fn protect(
        &mut self,
        sa_ref: SaRef,
        metas: &[PacketMeta],
        buffers: &mut [Buffer],
        now: Moment,
        pool: &mut Pool,
        out: &mut Prepared,
    ) {
        let Some(sa) = self.outbound.get_mut(sa_ref) else { return discard(buffers, DropReason::NoSa, pool) };
        if matches!(sa.framed, Framed::InRuns | Framed::InRunsThatVary) {
            let first = admit_run(sa, metas, now);
            if let (Some(first), Some(framing)) = (first, Framing::of(sa, sa_ref)) {
                frame_run(&framing, metas, buffers, first, pool, &mut out.jobs);
                if sa.framed == Framed::InRunsThatVary {
                    let (template, jobs) =
                        (sa.template.as_ref(), out.jobs.iter_mut().rev().take(metas.len()));
                    outer_fields::complete_run(template, sa_ref, jobs, &mut self.identifications);
                }
                return;
            }
        }
        self.protect_slowly(sa_ref, metas, buffers, now, pool, out);
    }

    /// What [`protect`](Self::protect) does with common packets, for those whose numbers several workers
    /// share: `false`, with nothing done, if some are not common, or there are not as many numbers at hand.
    #[cold]
    #[inline(never)]
    pub(crate) fn protect_run(
        &mut self,
        sa_ref: SaRef,
        metas: &[PacketMeta],
        buffers: &mut [Buffer],
        now: Moment,
        pool: &mut Pool,
        out: &mut Prepared,
    ) -> bool {
        let Some(sa) = self.outbound.get_mut(sa_ref) else { return false };
        if sa.framed != Framed::InSharedRuns {
            return false;
        }
        let first = admit_run(sa, metas, now);
        let (Some(first), Some(framing)) = (first, Framing::of(sa, sa_ref)) else { return false };
        frame_run(&framing, metas, buffers, first, pool, &mut out.jobs);
        if sa.headers_vary {
            let (template, jobs) = (sa.template.as_ref(), out.jobs.iter_mut().rev().take(metas.len()));
            outer_fields::complete_run(template, sa_ref, jobs, &mut self.identifications);
        }
        true
    }

    /// [`protect`](Self::protect) for VPE: each packet has the next number of its flow's window. `false`,
    /// with nothing done, if that needs the slow path.
    #[inline(never)]
    fn protect_in_windows(
        &mut self,
        sa_ref: SaRef,
        metas: &[PacketMeta],
        buffers: &mut [Buffer],
        now: Moment,
        pool: &mut Pool,
        out: &mut Prepared,
    ) -> bool {
        let sa = self.outbound.get_mut(sa_ref).filter(|sa| sa.framed == Framed::InWindows);
        let Some(sa) = sa else { return false };
        let mut numbered = Numbered::new();
        if number_in_windows(sa, metas, buffers, now, &mut numbered).is_none() {
            return false;
        }
        let Some(framing) = VpeFraming::of(sa, sa_ref) else { return false };
        let jobs = &mut out.jobs;
        let from = jobs.len();
        let packets = drain(buffers).zip(metas).zip(numbered.numbers);
        jobs.extend(packets.map(|((buffer, meta), number)| framing.job(buffer, meta.content.bytes, number)));
        let windows = numbered.windows.into_iter();
        if !framing.write(&mut jobs[from..], metas.iter().map(|meta| meta.content).zip(windows)) {
            // Not reached: `number_in_windows` has checked the room of all.
            jobs.drain(from..).for_each(|job| pool.discard(job.buffer, DropReason::NoRoom));
        }
        if sa.headers_vary {
            let (template, jobs) = (sa.template.as_ref(), jobs.iter_mut().rev().take(metas.len()));
            outer_fields::complete_run(template, sa_ref, jobs, &mut self.identifications);
        }
        true
    }

    /// [`protect`](Self::protect), packet by packet. Not `cold`: in transport mode and in AH all packets go
    /// this way.
    #[inline(never)]
    pub(crate) fn protect_slowly(
        &mut self,
        sa_ref: SaRef,
        metas: &[PacketMeta],
        buffers: &mut [Buffer],
        now: Moment,
        pool: &mut Pool,
        out: &mut Prepared,
    ) {
        if self.protect_in_windows(sa_ref, metas, buffers, now, pool, out)
            || self.protect_leaving(sa_ref, metas, buffers, now, pool, out)
        {
            return;
        }
        let Some(sa) = self.outbound.get(sa_ref) else { return discard(buffers, DropReason::NoSa, pool) };
        if sa.sequence.is_shared() {
            return self.protect_shared(sa_ref, metas, buffers, now, pool, out);
        }
        self.protect_singly(sa_ref, metas, buffers, now, pool, out);
    }

    /// Makes jobs of adjacent packets of one SA, or fragments, messages and drops, packet by packet.
    pub(crate) fn protect_singly(
        &mut self,
        sa_ref: SaRef,
        metas: &[PacketMeta],
        buffers: &mut [Buffer],
        now: Moment,
        pool: &mut Pool,
        out: &mut Prepared,
    ) {
        let path_mtu = self.path_mtu_of(sa_ref);
        let Some(sa) = self.outbound.get_mut(sa_ref) else { return discard(buffers, DropReason::NoSa, pool) };
        let encap = sa.encap;
        let (events, replies, audit) = (&mut self.events, &mut self.replies, &mut self.audit);
        let identifications = &mut self.identifications;
        let slow_path =
            SlowPath { sa, sa_ref, now, pool, out, events, replies, audit, identifications, path_mtu };
        match encap {
            Encap::EspTunnel => slow_path.protect_run::<EspTunnel>(metas, buffers),
            Encap::EspTransport => slow_path.protect_run::<EspTransport>(metas, buffers),
            Encap::AhTunnel => slow_path.protect_run::<AhTunnel>(metas, buffers),
            Encap::AhTransport => slow_path.protect_run::<AhTransport>(metas, buffers),
            Encap::Vpe => slow_path.protect_run::<Vpe>(metas, buffers),
        }
        let stopped = self.outbound.get(sa_ref).filter(|sa| sa.counters.state() != SaState::Installed);
        if let Some(index) = stopped.map(|sa| sa.tunnel) {
            self.leave_stopped(index);
        }
    }

    /// Finishes jobs that engines have completed, in the order of each SA. Datagrams that go through a second
    /// SA are [jobs again](Self::take_again).
    #[inline]
    pub fn finish_outbound(
        &mut self,
        jobs: Drain<'_, Job>,
        now: Moment,
        pool: &mut Pool,
        mut send: impl FnMut(Sealed, &mut Pool),
    ) {
        for job in jobs {
            // The dispatcher completes no job of an SA that is gone.
            if (job.status, job.then) == (JobStatus::Done, then::SEND) {
                send(Sealed::new(job.buffer), pool);
            } else {
                self.finish_uncommon(job, now, pool, &mut send);
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn finish_uncommon(
        &mut self,
        mut job: Job,
        now: Moment,
        pool: &mut Pool,
        send: &mut impl FnMut(Sealed, &mut Pool),
    ) {
        let (sa, then) = (Prepared::sa_of(&job), job.then);
        if job.status != JobStatus::Done {
            return self.fail(job.buffer, sa, DropReason::EngineFault, pool);
        }
        if then & then::AUTHENTICATE != 0 {
            return self.authenticate(job.buffer, sa, then & then::WHOLE, now, pool);
        }
        if then & then::UNMASK != 0
            && let Err(reason) = unmask(&mut job, Direction::Seal)
        {
            return self.fail(job.buffer, sa, reason, pool);
        }
        if then & (then::CUT | then::WHOLE) == then::CUT {
            return self.send_in_fragments(job.buffer, sa, pool, send);
        }
        send(Sealed::new(job.buffer), pool);
    }

    /// Sends a datagram of ESP through the SA of AH that covers it, with more to be done afterwards than that
    /// SA's packets usually need.
    fn authenticate(&mut self, datagram: Buffer, esp: SaRef, then: u8, now: Moment, pool: &mut Pool) {
        match self.try_authenticate(datagram, esp, now) {
            Ok(job) => self.again.push(Job { then: job.then | then, ..job }),
            Err((datagram, reason)) => {
                self.audit.note(reason, datagram.bytes(), None, now);
                self.fail(datagram, esp, reason, pool);
            }
        }
    }

    fn try_authenticate(
        &mut self,
        datagram: Buffer,
        esp: SaRef,
        now: Moment,
    ) -> Result<Job, (Buffer, DropReason)> {
        let tunnel = self.outbound.get(esp).and_then(|sa| self.tunnel(sa.tunnel));
        let ah = tunnel.and_then(|tunnel| self.outbound_in_use(tunnel.parameters.covered_by?));
        let Some((ah, sa)) = ah.and_then(|ah| Some((ah, self.outbound.get_mut(ah)?))) else {
            return Err((datagram, DropReason::NoSa));
        };
        let header = match IpHeader::parse(datagram.bytes()) {
            Ok(header) => header,
            Err(error) => return Err((datagram, reason_of(error))),
        };
        if let Err(reason) = AhTransport::check(sa, &datagram) {
            return Err((datagram, reason));
        }
        let bytes = datagram.len() as u64;
        let sequence = match sa.admit(datagram.len(), now, &mut self.events) {
            Ok(sequence) => sequence,
            Err(reason) => return Err((datagram, reason)),
        };
        sa.counters.count(1, bytes, sequence);
        AhTransport::frame(sa, ah, datagram, &header, sequence, &mut self.identifications)
    }

    /// Discards a packet that was not sealed, or whose SA is gone.
    #[cold]
    fn fail(&self, buffer: Buffer, sa: SaRef, reason: DropReason, pool: &mut Pool) {
        let reason = match self.outbound.get(sa) {
            Some(sa) => {
                sa.counters.count_drop(reason);
                reason
            }
            None => DropReason::ShuttingDown,
        };
        pool.discard(buffer, reason);
    }
}

/// Reserves a number for each packet and returns the first. Returns `None`, with nothing used up, if any
/// packet is not common, or a limit of the SA or of its lease is near.
#[inline(always)]
pub(crate) fn admit_run(sa: &mut OutboundSa, metas: &[PacketMeta], now: Moment) -> Option<u64> {
    let (packets, bytes) = (metas.len() as u64, bytes_of_common(sa, metas)?);
    if sa.lifetime.is_near(packets, bytes, now) {
        return None;
    }
    let first = sa.sequence.reserve_run(packets)?;
    sa.lifetime.count_far(packets, bytes);
    sa.last_sent = now;
    sa.counters.count(packets, bytes, first + packets - 1);
    Some(first)
}

/// The bytes of packets that are all common; `None` if any is not, or the peer's address is unknown.
#[inline(always)]
fn bytes_of_common(sa: &OutboundSa, metas: &[PacketMeta]) -> Option<u64> {
    let (mut bytes, mut all_common) = (0, sa.template.is_some());
    for meta in metas {
        bytes += u64::from(meta.content.bytes);
        all_common &= (meta.content.bytes <= sa.inner_mtu) & meta.is_common;
    }
    all_common.then_some(bytes)
}

/// [`admit_run`] for VPE: window and number of each packet.
#[inline]
fn number_in_windows(
    sa: &mut OutboundSa,
    metas: &[PacketMeta],
    buffers: &[Buffer],
    now: Moment,
    numbered: &mut Numbered,
) -> Option<()> {
    let (packets, bytes) = (metas.len() as u64, bytes_of_common(sa, metas)?);
    // No packet takes more than one number of the gate.
    if sa.lifetime.is_near(packets, bytes, now) || !sa.sequence.has_far(packets) {
        return None;
    }
    let numbers = sa.vpe.as_mut().filter(|numbers| !numbers.is_taken(&sa.sequence))?;
    let keys = numbers.keys;
    let hash =
        |(meta, buffer): (&PacketMeta, &Buffer)| (meta.flow_hash(buffer, keys), meta.content.traffic_class);
    numbers.reserve_run(metas.iter().zip(buffers).map(hash), &mut sa.sequence, numbered)?;
    sa.lifetime.count_far(packets, bytes);
    sa.last_sent = now;
    // The last number of any window.
    sa.counters.count(packets, bytes, sa.sequence.next() - 1);
    Some(())
}

/// Appends the jobs of packets that have room, and writes headers and trailers around them. Two loops: one
/// that does both would need more live values than there are registers.
#[inline(always)]
fn frame_run(
    framing: &Framing<'_>,
    metas: &[PacketMeta],
    buffers: &mut [Buffer],
    first: u64,
    pool: &mut Pool,
    jobs: &mut Vec<Job>,
) {
    let from = jobs.len();
    let all_framed = match (metas, &mut *buffers) {
        // With many SAs in use most runs have one packet.
        ([meta], [buffer]) => {
            jobs.push(framing.job(std::mem::take(buffer), first));
            jobs.last_mut().is_some_and(|job| framing.write_one(job, meta.content, first))
        }
        _ => {
            jobs.extend(drain(buffers).zip(first..).map(|(buffer, sequence)| framing.job(buffer, sequence)));
            framing.write::<false>(&mut jobs[from..], metas.iter().map(|meta| meta.content), first)
        }
    };
    if !all_framed {
        // Not reached: `admit_run` has checked the room of all.
        jobs.drain(from..).for_each(|job| pool.discard(job.buffer, DropReason::NoRoom));
    }
}

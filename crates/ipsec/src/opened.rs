//! From opened jobs to packets for the protected side: the engine's verdicts, replay commits, trailers, and
//! checks of inner packets against policy (RFC 4303 3.4, RFC 4301 5.2).

use crate::audit::Known;
use crate::encap::ah::{AhTransport, AhTunnel};
use crate::encap::esp_transport::EspTransport;
use crate::encap::{Encap, MAX_DATAGRAM, Strip};
use crate::fragments::{FragmentChecker, Way};
use crate::inbound::reason_of_replay;
use crate::lifetime::Moment;
use crate::opened_vpe::{hear_news, newest_before};
use crate::outcome::{Cleared, Prepared};
use crate::peer_heard::News;
use crate::roaming::source_of;
use crate::sa::{InboundSa, low_32};
use crate::slots::SaRef;
use crate::spd::{Action, Answer, Direction, Flow, OfInterface, Pair, Verdict};
use crate::{Ipsec, ecn};
use arrayvec::ArrayVec;
use std::cell::RefCell;
use testudo_crypto::{Job, JobStatus};
use testudo_packet::{BATCH_SIZE, DropReason, Interface, Pool, Stage, StageClock};
use testudo_wire::esp::EspTrailer;
use testudo_wire::ip::{self, IpHeader};
use testudo_wire::plain::{PlainHeader, PlainV4, unchecked_v4, unchecked_v6};
use testudo_wire::protocol;
use testudo_wire::reassembly::ReceivedFragment;

/// What happens to a job whose packet is not forwarded as it is.
#[derive(Debug, Clone, Copy)]
enum Fate {
    Drop(DropReason),
    /// It carried ESP, which is opened next.
    Again,
    /// It is forwarded with its [MSS lowered](crate::mss_clamp).
    ClampMss,
    /// It is forwarded in its [turn](crate::in_order), perhaps with its MSS lowered.
    InOrder {
        is_syn: bool,
    },
}

/// An inner packet that may be forwarded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inner {
    pub(crate) bytes: usize,
    /// Whether it may be a SYN of TCP.
    pub(crate) is_syn: bool,
}

/// Which jobs of a batch are not forwarded as they are, by their index; most often all are.
pub(crate) struct Refusals {
    fates: [Option<Fate>; BATCH_SIZE],
    is_any: bool,
}

/// Adjacent jobs of one SA.
struct CompletedRun {
    sa: SaRef,
    jobs: usize,
    /// Whether all checks are made.
    is_done: bool,
}

impl Refusals {
    fn none() -> Self {
        Self { fates: [None; BATCH_SIZE], is_any: false }
    }

    #[cold]
    pub(crate) fn add(&mut self, place: usize, reason: DropReason) {
        self.set(place, Fate::Drop(reason));
    }

    #[cold]
    fn set(&mut self, place: usize, fate: Fate) {
        self.fates[place] = Some(fate);
        self.is_any = true;
    }
}

impl Ipsec {
    /// Finishes the first `count` of `jobs`, up to a batch, which engines have completed, in the order of
    /// each SA. Two phases: verdicts and sequence numbers, then decapsulation and policy.
    #[inline]
    pub fn finish_inbound(
        &mut self,
        jobs: &mut Vec<Job>,
        count: usize,
        now: Moment,
        pool: &mut Pool,
        clock: &mut StageClock,
        mut forward: impl FnMut(Cleared, &mut Pool),
    ) {
        let count = count.min(jobs.len()).min(BATCH_SIZE);
        let mut refusals = match self.takes_chains {
            true => self.judge_chains(&mut jobs[..count], now, clock),
            false => self.judge_batch::<false>(&mut jobs[..count], now, clock),
        };
        if self.has_interfaces {
            self.name_interfaces(&mut jobs[..count]);
        }
        if self.is_in_order() {
            self.order_batch(&jobs[..count], &mut refusals);
        }
        if !refusals.is_any {
            jobs.drain(..count).for_each(|job| forward(Cleared::new(job.buffer), pool));
            return;
        }
        for (job, fate) in jobs.drain(..count).zip(refusals.fates) {
            let sa = Prepared::sa_of(&job);
            match fate {
                None => forward(Cleared::new(job.buffer), pool),
                Some(Fate::Drop(reason)) => self.refuse(job, sa, reason, now, pool),
                Some(Fate::Again) => self.open_covered(job.buffer, sa, now, pool),
                Some(Fate::ClampMss) => {
                    let mut packet = job.buffer;
                    self.clamp_mss_inbound(&mut packet, sa);
                    forward(Cleared::new(packet), pool);
                }
                Some(Fate::InOrder { is_syn }) => {
                    let (mut packet, number) = (job.buffer, job.sequence);
                    if is_syn {
                        self.clamp_mss_inbound(&mut packet, sa);
                    }
                    self.hold_in_order(sa, number, Cleared::new(packet), now);
                }
            }
        }
    }

    /// Has packets of SAs that are released in order wait for their turn.
    #[cold]
    #[inline(never)]
    fn order_batch(&self, jobs: &[Job], refusals: &mut Refusals) {
        for (place, job) in jobs.iter().enumerate().filter(|(_, job)| self.has_order(job)) {
            match refusals.fates[place] {
                None => refusals.set(place, Fate::InOrder { is_syn: false }),
                Some(Fate::ClampMss) => refusals.set(place, Fate::InOrder { is_syn: true }),
                // Copies were released before, or will be.
                Some(Fate::Drop(DropReason::ReplayTooOld | DropReason::ReplayDuplicate)) => {}
                Some(Fate::Drop(_)) if job.status == JobStatus::Done => self.skip_in_order(job),
                Some(Fate::Drop(_) | Fate::Again | Fate::InOrder { .. }) => {}
            }
        }
    }

    /// Has packets leave by the interfaces of their SAs.
    #[inline(never)]
    fn name_interfaces(&self, jobs: &mut [Job]) {
        for job in jobs {
            let sa = self.inbound.get(Prepared::sa_of(job));
            job.buffer.set_interface(sa.map_or(Interface::MAIN, |sa| sa.delivery.interface()));
        }
    }

    /// [`judge_batch`](Self::judge_batch) where packets may be chains. Elsewhere the common packet's code
    /// does not know of any, so that they cost it no register.
    #[cold]
    #[inline(never)]
    fn judge_chains(&mut self, jobs: &mut [Job], now: Moment, clock: &mut StageClock) -> Refusals {
        self.judge_batch::<true>(jobs, now, clock)
    }

    /// Decapsulates the packets of up to a batch of jobs, except those that it refuses.
    #[inline]
    fn judge_batch<const CHAINS: bool>(
        &mut self,
        jobs: &mut [Job],
        now: Moment,
        clock: &mut StageClock,
    ) -> Refusals {
        let (packets, bytes) = (jobs.len() as u64, jobs.iter().map(|job| u64::from(job.text_bytes)).sum());
        let mut runs = ArrayVec::<CompletedRun, BATCH_SIZE>::new();
        let mut refusals = Refusals::none();
        let mut at = 0;
        for run in jobs.chunk_by_mut(|a, b| Prepared::sa_of(a) == Prepared::sa_of(b)) {
            let Some(sa_ref) = run.first().map(Prepared::sa_of) else { continue };
            // Fast path: no lifetime limit is within reach of this batch and nobody waits for a packet of the
            // peer, so count once per run.
            let sa = self.inbound.get_mut(sa_ref);
            let sa = sa.filter(|sa| sa.counts_runs(packets, bytes, now));
            runs.push(CompletedRun { sa: sa_ref, jobs: run.len(), is_done: sa.is_none() });
            match sa {
                Some(sa) if sa.encap == Encap::Vpe => {
                    let windows = self.vpe_windows.get_mut(sa_ref);
                    sa.commit_vpe_run(run, at, windows, now, &mut refusals);
                    self.hear_senders(sa_ref);
                }
                Some(sa) => sa.commit_run(run, at, &mut refusals),
                None => self.judge_run(run, at, sa_ref, now, &mut refusals),
            }
            at += run.len();
        }
        clock.lap(Stage::Finish);
        let policies = self.spd.of(Interface::MAIN);
        if policies.is_indexed() {
            prefetch_policy(policies, jobs);
        }
        if self.inbound.exceed_the_cache() {
            self.prefetch_sas(jobs);
        }
        at = 0;
        let check = FragmentCheck { checker: RefCell::new(&mut self.checker), now };
        let mut rest = jobs;
        for &CompletedRun { sa, jobs: count, is_done } in &runs {
            // All runs together are the batch.
            let (run, later) = std::mem::take(&mut rest).split_at_mut(count);
            rest = later;
            match self.inbound.get_mut(sa) {
                _ if is_done => {}
                Some(sa) => sa.decapsulate_run::<CHAINS>(
                    self.spd.of(sa.delivery.interface()),
                    &check,
                    run,
                    at,
                    &mut refusals,
                ),
                // Not reached: the SA was there in the first phase.
                None => (at..at + count).for_each(|place| refusals.add(place, DropReason::ShuttingDown)),
            }
            at += count;
        }
        clock.lap(Stage::Policy);
        refusals
    }

    /// All checks on jobs of one SA, one job at a time.
    fn judge_run(&mut self, jobs: &mut [Job], at: usize, sa: SaRef, now: Moment, refusals: &mut Refusals) {
        for (place, job) in (at..).zip(jobs) {
            match self.judge(job, sa, now) {
                Ok(None) => {}
                Ok(Some(fate)) => refusals.set(place, fate),
                Err(reason) => refusals.add(place, reason),
            }
        }
        self.hear_senders(sa);
    }

    /// Prefetches the selectors and counters of the SAs.
    fn prefetch_sas(&self, jobs: &[Job]) {
        for sa in jobs.iter().filter_map(|job| self.inbound.get(Prepared::sa_of(job))) {
            sa.inbound_selectors.prefetch();
            sa.counters.prefetch();
        }
    }

    #[cold]
    fn refuse(&mut self, job: Job, sa: SaRef, reason: DropReason, now: Moment, pool: &mut Pool) {
        if let Some(sa) = self.inbound.get(sa) {
            sa.counters.count_drop(reason);
            let bytes = job.buffer.bytes();
            let inner = match sa.encap {
                Encap::EspTunnel | Encap::AhTunnel | Encap::Vpe => bytes.get(job.text_start as usize..),
                // In transport mode it has the header of its datagram.
                Encap::EspTransport | Encap::AhTransport => Some(bytes),
            };
            let known = Known {
                protocol: sa.encap.protocol(),
                spi: sa.spi,
                sequence: match sa.encap {
                    Encap::Vpe => job.sequence,
                    // As their headers show it.
                    _ => low_32(job.sequence).into(),
                },
                inner: inner.filter(|_| reason == DropReason::SelectorMismatch),
            };
            self.audit.note(reason, bytes, Some(known), now);
        }
        pool.discard(job.buffer, reason);
    }

    /// All checks on one job, and the counting.
    fn judge(&mut self, job: &mut Job, sa_ref: SaRef, now: Moment) -> Result<Option<Fate>, DropReason> {
        let sa = self.inbound.get_mut(sa_ref).ok_or(DropReason::ShuttingDown)?;
        verdict_of(job).map_err(|reason| sa.note_failure(job, reason))?;
        // Checked again: packets of the same batch may have used the lifetime up since this one was admitted.
        sa.admit(now, &mut self.events)?;
        let before = match sa.encap {
            Encap::Vpe => newest_before(job, self.vpe_windows.get(sa_ref)),
            _ => sa.window.top(),
        };
        let is_newest = job.sequence > before;
        match sa.encap {
            Encap::Vpe => sa.commit_vpe(job, self.vpe_windows.get_mut(sa_ref), now)?,
            _ => sa.commit(job)?,
        }
        if is_newest && sa.resync.is_searching() {
            sa.end_search(job, before, &mut self.events);
        }
        let (is_watched, tunnel) = (sa.is_watched, sa.tunnel);
        let source = if is_watched {
            let news = match sa.encap {
                _ if !is_newest => News::Old,
                Encap::Vpe => hear_news(job, self.vpe_windows.get(sa_ref), now),
                _ => News::OfAll,
            };
            source_of(job.buffer.bytes(), sa.spi, news)
        } else {
            None
        };
        let check = &FragmentCheck { checker: RefCell::new(&mut self.checker), now };
        let policies = self.spd.of(sa.delivery.interface());
        let inner = match sa.encap {
            Encap::EspTunnel => sa.decapsulate::<true>(policies, check, job),
            Encap::EspTransport => sa.decapsulate_from::<EspTransport>(policies, check, job),
            Encap::AhTunnel => sa.decapsulate_from::<AhTunnel>(policies, check, job),
            Encap::AhTransport => sa.decapsulate_from::<AhTransport>(policies, check, job),
            Encap::Vpe => sa.decapsulate_vpe(policies, check, job),
        };
        let outcome = inner.map(|inner| inner.bytes as u64).map_err(|_| u64::from(job.text_bytes));
        let fate = inner.map(|inner| sa.fate_of(inner));
        sa.count(outcome, now, &mut self.events);
        if let Some(source) = source {
            self.follow_peer(tunnel, source, now);
        }
        if is_watched {
            self.take_over(tunnel, sa_ref);
        }
        if is_watched && inner.is_ok() && self.take_probe_answer(tunnel, job.buffer.bytes(), now) {
            return Err(DropReason::MtuProbeAnswered);
        }
        fate
    }
}

/// What decides on fragments that come out of tunnels, while a batch is opened.
pub(crate) struct FragmentCheck<'c> {
    checker: RefCell<&'c mut FragmentChecker>,
    now: Moment,
}

impl InboundSa {
    /// Whether the packets of a batch with texts of so many bytes may be counted run by run.
    #[inline(always)]
    fn counts_runs(&self, packets: u64, bytes: u64, now: Moment) -> bool {
        if self.is_plain {
            return !self.lifetime.is_near(packets, bytes, now);
        }
        // In transport mode a packet is longer than its text, by headers.
        let most = bytes.saturating_add(packets.saturating_mul(MAX_DATAGRAM as u64));
        !self.is_watched && !self.resync.is_searching() && !self.lifetime.is_near(packets, most, now)
    }

    /// Checks the engine's verdict, then commits the sequence number.
    #[inline(always)]
    fn commit(&mut self, job: &Job) -> Result<(), DropReason> {
        verdict_of(job)?;
        self.window.commit(job.sequence).map_err(reason_of_replay)
    }

    /// [`commit`](Self::commit) for adjacent jobs of a batch, from index `at` on.
    #[inline]
    fn commit_run(&mut self, jobs: &[Job], at: usize, refusals: &mut Refusals) {
        if let Some(first) = in_sequence(jobs)
            && self.window.commit_ahead(first, jobs.len() as u64)
        {
            return;
        }
        if self.window.sharing().is_some() {
            return self.commit_shared_run(jobs, at, refusals);
        }
        for (place, job) in (at..).zip(jobs) {
            if let Err(reason) = self.commit(job) {
                refusals.add(place, self.note_failure(job, reason));
            }
        }
    }

    /// [`decapsulate`](Self::decapsulate) for adjacent jobs of this SA that were committed, from index `at`
    /// of the batch on; counts the packets.
    #[inline]
    fn decapsulate_run<const CHAINS: bool>(
        &mut self,
        policies: OfInterface<'_>,
        check: &FragmentCheck<'_>,
        jobs: &mut [Job],
        at: usize,
        refusals: &mut Refusals,
    ) {
        match self.encap {
            Encap::EspTunnel => {
                self.run_with(jobs, at, refusals, |sa, job| sa.decapsulate::<CHAINS>(policies, check, job))
            }
            Encap::EspTransport => {
                let open =
                    |sa: &Self, job: &mut Job| sa.decapsulate_from::<EspTransport>(policies, check, job);
                self.run_with(jobs, at, refusals, open);
            }
            Encap::AhTunnel => {
                let open = |sa: &Self, job: &mut Job| sa.decapsulate_from::<AhTunnel>(policies, check, job);
                self.run_with(jobs, at, refusals, open);
            }
            Encap::AhTransport => {
                let open =
                    |sa: &Self, job: &mut Job| sa.decapsulate_from::<AhTransport>(policies, check, job);
                self.run_with(jobs, at, refusals, open);
            }
            Encap::Vpe => {
                self.run_with(jobs, at, refusals, |sa, job| sa.decapsulate_vpe(policies, check, job));
            }
        }
    }

    #[inline(never)]
    fn run_with(
        &mut self,
        jobs: &mut [Job],
        at: usize,
        refusals: &mut Refusals,
        decapsulate: impl Fn(&Self, &mut Job) -> Result<Inner, DropReason>,
    ) {
        let (mut packets, mut bytes) = (0, 0);
        for (place, job) in (at..).zip(jobs) {
            if refusals.fates[place].is_some() {
                continue;
            }
            match decapsulate(self, job) {
                Ok(inner) => {
                    packets += 1;
                    bytes += inner.bytes as u64;
                    if let Some(fate) = self.fate_of(inner) {
                        refusals.set(place, fate);
                    }
                }
                Err(reason) => {
                    self.count_refused(job.text_bytes);
                    refusals.add(place, reason);
                }
            }
        }
        if packets > 0 {
            // No limit is near: that was checked before, with a larger count.
            self.lifetime.count_far(packets, bytes);
            self.counters.count(packets, bytes, self.window.top());
        }
    }

    /// What happens to an inner packet, if it is not forwarded as it is.
    #[inline(always)]
    fn fate_of(&self, inner: Inner) -> Option<Fate> {
        match inner {
            _ if self.delivery.is_covered() => Some(Fate::Again),
            Inner { is_syn: true, .. } => Some(Fate::ClampMss),
            Inner { is_syn: false, .. } => None,
        }
    }

    /// Narrows the buffer to the inner packet, without headers, IV, padding, trailer and ICV (RFC 4303
    /// 3.4.4.1), if the SA's selectors allow that packet (RFC 4301 5.2, step 4).
    #[inline(always)]
    fn decapsulate<const CHAINS: bool>(
        &self,
        policies: OfInterface<'_>,
        check: &FragmentCheck<'_>,
        job: &mut Job,
    ) -> Result<Inner, DropReason> {
        let (start, datagram) = (job.text_start as usize, job.buffer.bytes());
        let outer_class = ip::traffic_class(datagram);
        let text = datagram.get(start..start + job.text_bytes as usize);
        if CHAINS && text.is_none() {
            return self.decapsulate_chain(policies, job);
        }
        let text = text.ok_or(DropReason::BadPadding)?;
        let trailer = EspTrailer::parse(text).map_err(|_| DropReason::BadPadding)?;
        let payload = &text[..trailer.payload_bytes];
        let ours = Answer::protect(self.tunnel);
        let answer = |pair| policies.answer_v4(Direction::Inbound, pair);
        let is_ours = |pair| self.inbound_selectors.holds_pair(pair) && ours == Some(answer(pair));
        let (inner, class) = match PlainV4::parse(payload) {
            Some(header) if trailer.next_header == protocol::IPV4 && is_ours(Pair::inbound(&header)) => {
                let bytes = usize::from(header.total_bytes);
                (Inner { bytes, is_syn: header.is_syn(payload) }, header.traffic_class)
            }
            _ => self.check_flow(policies, check, trailer.next_header, payload)?,
        };
        // No more than the payload has, which the parse has checked: nothing is cut off here.
        debug_assert!(inner.bytes <= payload.len());
        job.buffer.narrow(job.text_start, low_32(inner.bytes as u64));
        let ecn = ecn::at_egress(class, outer_class).ok_or(DropReason::EcnCongestion)?;
        if ecn != class & ecn::MASK {
            ip::set_ecn(job.buffer.bytes_mut(), ecn);
        }
        Ok(inner)
    }

    /// [`decapsulate`](Self::decapsulate) for what is not ESP in tunnel mode. What carries ESP is not looked
    /// up in policy: the packet inside will be.
    pub(crate) fn decapsulate_from<S: Strip>(
        &self,
        policies: OfInterface<'_>,
        check: &FragmentCheck<'_>,
        job: &mut Job,
    ) -> Result<Inner, DropReason> {
        let carried = S::strip(self, job)?;
        if self.delivery.is_covered() {
            return Ok(Inner { bytes: job.buffer.len(), is_syn: false });
        }
        // What surrounds it stays with it until it has passed: an auditable event tells of both.
        job.text_start = carried.at;
        let packet = job.buffer.bytes().get(carried.at as usize..).unwrap_or_default();
        let (inner, class) = self.check_flow(policies, check, carried.next_header, packet)?;
        job.buffer.narrow(carried.at, low_32(inner.bytes as u64));
        if let Some(outer_class) = carried.outer_class {
            let ecn = ecn::at_egress(class, outer_class).ok_or(DropReason::EcnCongestion)?;
            if ecn != class & ecn::MASK {
                ip::set_ecn(job.buffer.bytes_mut(), ecn);
            }
        }
        Ok(inner)
    }

    /// Checks an inner packet that is not plain IPv4, or that its addresses alone do not decide. Returns its
    /// traffic class, too.
    #[inline(never)]
    fn check_flow(
        &self,
        policies: OfInterface<'_>,
        check: &FragmentCheck<'_>,
        next_header: u8,
        packet: &[u8],
    ) -> Result<(Inner, u8), DropReason> {
        let version = match next_header {
            protocol::IPV4 => 4,
            protocol::IPV6 => 6,
            protocol::NO_NEXT_HEADER => return Err(DropReason::DummyPacket),
            _ => return Err(DropReason::BadNextHeader),
        };
        if packet.first().is_none_or(|b| b >> 4 != version) {
            return Err(DropReason::InnerMalformed);
        }
        if let Some(header) = PlainHeader::parse(packet) {
            self.check_policy(policies, &Flow::plain_inbound(&header))?;
            let inner = Inner { bytes: header.total_bytes.into(), is_syn: header.is_syn(packet) };
            return Ok((inner, header.traffic_class));
        }
        self.check_uncommon(policies, check, packet)
    }

    /// [`check_flow`](Self::check_flow) for a packet with options, extension headers, or a fragment.
    #[cold]
    fn check_uncommon(
        &self,
        policies: OfInterface<'_>,
        check: &FragmentCheck<'_>,
        packet: &[u8],
    ) -> Result<(Inner, u8), DropReason> {
        let header = IpHeader::parse(packet).map_err(|_| DropReason::InnerMalformed)?;
        if header.has_source_route {
            return Err(DropReason::SourceRoute);
        }
        let flow = Flow::inbound(&header, packet);
        match ReceivedFragment::read(&header, packet) {
            None => self.check_policy(policies, &flow)?,
            Some(fragment) => self.check_fragment(policies, check, &header, &fragment, &flow)?,
        }
        let inner = Inner { bytes: header.total_bytes, is_syn: header.protocol == protocol::TCP };
        Ok((inner, header.traffic_class))
    }

    /// What decides on a fragment: policy, and on a later one that hides what policy asks for, the decision
    /// on its first one (RFC 4301 7.3).
    fn check_fragment(
        &self,
        policies: OfInterface<'_>,
        check: &FragmentCheck<'_>,
        header: &IpHeader,
        fragment: &ReceivedFragment,
        flow: &Flow,
    ) -> Result<(), DropReason> {
        let own = self.check_policy(policies, flow);
        let (way, mut checker) = (Way::Tunnel(self.tunnel), check.checker.borrow_mut());
        if fragment.offset_bytes > 0 {
            if own != Err(DropReason::FieldsHidden) {
                return own;
            }
            let says = |first: &Flow| {
                self.check_policy(policies, first).is_ok().then_some(Action::Protect(self.tunnel))
            };
            return checker.follow(way, header, fragment, check.now, says).map_or(own, |_| Ok(()));
        }
        let (local, remote) = (header.destination, header.source);
        let later = Flow::of_later_fragments(Direction::Inbound, local, remote, header.protocol);
        if self.check_policy(policies, &later) == Err(DropReason::FieldsHidden) {
            let is_decided = own.is_ok() && !flow.hides_fields();
            let decision = is_decided.then_some(Action::Protect(self.tunnel));
            checker.note(way, header, fragment, (*flow, decision), check.now);
        }
        own
    }

    /// Whether the SA's selectors and the SPD allow a flow (RFC 4301 5.2, step 4).
    #[inline(always)]
    pub(crate) fn check_policy(&self, policies: OfInterface<'_>, flow: &Flow) -> Result<(), DropReason> {
        if !self.inbound_selectors.holds(flow) {
            return self.search_policy(policies, flow);
        }
        self.check_spd(policies, flow)
    }

    /// The same where the selectors are many, or do not allow it.
    #[cold]
    #[inline(never)]
    fn search_policy(&self, policies: OfInterface<'_>, flow: &Flow) -> Result<(), DropReason> {
        self.inbound_selectors.search(flow)?;
        self.check_spd(policies, flow)
    }

    #[inline(always)]
    fn check_spd(&self, policies: OfInterface<'_>, flow: &Flow) -> Result<(), DropReason> {
        // Selectors come from an ordered SPD: packets that an earlier policy discards, or gives to another
        // tunnel, must not come through this one.
        match policies.verdict(flow) {
            Verdict::Policy(Action::Protect(index)) if index == self.tunnel => Ok(()),
            Verdict::Policy(Action::Discard) => Err(DropReason::PolicyDiscard),
            Verdict::FieldsHidden => Err(DropReason::FieldsHidden),
            _ => Err(DropReason::SelectorMismatch),
        }
    }
}

/// Prefetches the entries of the index that the checks on inner packets will need. Those of other interfaces,
/// which mostly have few policies, are not there.
fn prefetch_policy(policies: OfInterface<'_>, jobs: &[Job]) {
    for job in jobs {
        let inner = job.buffer.bytes().get(job.text_start as usize..).unwrap_or_default();
        if let Some(addresses) = unchecked_v4(inner) {
            policies.prefetch_v4(Direction::Inbound, Pair::of_arriving(addresses));
        } else if let Some((source, destination)) = unchecked_v6(inner) {
            policies.prefetch_v6(Direction::Inbound, destination, source);
        }
    }
}

/// The first sequence number of jobs that are all done and numbered consecutively, as a peer's are when
/// nothing is lost or reordered.
#[inline]
pub(crate) fn in_sequence(jobs: &[Job]) -> Option<u64> {
    let first = jobs.first()?.sequence;
    let mut all_right = true;
    for (ahead, job) in (0..).zip(jobs) {
        all_right &= (job.status == JobStatus::Done) & (job.sequence.wrapping_sub(first) == ahead);
    }
    all_right.then_some(first)
}

#[inline(always)]
pub(crate) fn verdict_of(job: &Job) -> Result<(), DropReason> {
    if job.status == JobStatus::Done { Ok(()) } else { Err(reason_of_verdict(job.status)) }
}

#[cold]
fn reason_of_verdict(status: JobStatus) -> DropReason {
    if status == JobStatus::AuthenticationFailed {
        DropReason::AuthenticationFailed
    } else {
        DropReason::EngineFault
    }
}

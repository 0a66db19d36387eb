//! From jobs that an engine has opened to packets for the protected side: verdicts, replay commits, trailers, inner packets against policy
//! (RFC 4303 3.4, RFC 4301 5.2).

use crate::event::{Event, EventKind};
use crate::framing::small;
use crate::inbound::reason_of_replay;
use crate::lifetime::Moment;
use crate::pair::Pair;
use crate::policy_table::Answer;
use crate::sa::InboundSa;
use crate::selector::Flow;
use crate::slots::SaRef;
use crate::spd::{Action, Spd, TunnelIndex, Verdict};
use crate::template::OuterTemplate;
use crate::tunnel::Encapsulation;
use crate::verdict::{Cleared, Prepared};
use crate::{Ipsec, ecn};
use arrayvec::ArrayVec;
use std::net::IpAddr;
use testudo_crypto::{Job, JobStatus};
use testudo_packet::{BATCH_SIZE, Buffer, DropReason, Pool, Stage, StageClock};
use testudo_wire::esp::EspTrailer;
use testudo_wire::ip::{self, IpHeader};
use testudo_wire::plain::{PlainHeader, PlainV4, unchecked_v4, unchecked_v6};
use testudo_wire::protocol;
use testudo_wire::udp::UdpHeader;

/// What becomes of a job that was opened.
#[derive(Debug, Clone, Copy)]
enum Opened {
    /// It is authentic, new and well formed; its outer header had this traffic class. The inner packet is still to be checked.
    Stripped(u8),
    /// All checks passed.
    Cleared,
    Refused(DropReason),
}

type Outcomes = ArrayVec<Opened, BATCH_SIZE>;

impl Ipsec {
    /// [`finish_inbound`](Self::finish_inbound) for a batch of jobs that ended where they stand, in their order, in two phases: verdicts,
    /// then inner packets against policy.
    pub fn finish_inbound_batch(
        &mut self,
        jobs: &mut Vec<Job>,
        now: Moment,
        pool: &mut Pool,
        clock: &mut StageClock,
        mut forward: impl FnMut(Cleared, &mut Pool),
    ) {
        while !jobs.is_empty() {
            let count = jobs.len().min(BATCH_SIZE);
            let mut outcomes = Outcomes::new();
            self.judge_batch(&mut jobs[..count], now, clock, &mut outcomes);
            for (job, outcome) in jobs.drain(..count).zip(&outcomes) {
                match *outcome {
                    Opened::Cleared => forward(Cleared::new(job.buffer), pool),
                    Opened::Refused(reason) => {
                        let sa = Prepared::sa_of(&job);
                        self.refuse(job.buffer, sa, reason, pool);
                    }
                    // Not reached: the second phase leaves none.
                    Opened::Stripped(_) => pool.discard(job.buffer, DropReason::SelectorMismatch),
                }
            }
        }
        clock.lap(Stage::Finish);
    }

    /// What becomes of each of up to a batch of jobs, appended to `outcomes`, which is empty.
    fn judge_batch(
        &mut self,
        jobs: &mut [Job],
        now: Moment,
        clock: &mut StageClock,
        outcomes: &mut Outcomes,
    ) {
        let (packets, bytes) = (jobs.len() as u64, jobs.iter().map(|job| u64::from(job.text_bytes)).sum());
        let mut runs = ArrayVec::<(SaRef, usize), BATCH_SIZE>::new();
        for run in jobs.chunk_by_mut(|a, b| Prepared::sa_of(a) == Prepared::sa_of(b)) {
            let Some(name) = run.first().map(Prepared::sa_of) else { continue };
            runs.push((name, run.len()));
            match self.inbound.get_mut(name) {
                // Where no limit is near even if all of the batch were this SA's, and nobody is to be followed, counting can wait.
                Some(sa) if !sa.learns_remote && !sa.lifetime.is_near(packets, bytes, now) => {
                    for job in run {
                        outcomes.push(sa.judge(job).map_or_else(Opened::Refused, Opened::Stripped));
                    }
                }
                _ => {
                    for job in run {
                        let judged = self.judge(job, name, now);
                        outcomes.push(judged.map_or_else(Opened::Refused, |()| Opened::Cleared));
                    }
                }
            }
        }
        clock.lap(Stage::Finish);
        if self.spd.is_indexed() {
            self.prefetch_policy(jobs);
        }
        let mut at = 0;
        for &(name, length) in &runs {
            let (jobs, outcomes) = (&mut jobs[at..at + length], &mut outcomes[at..at + length]);
            at += length;
            if let Some(sa) = self.inbound.get_mut(name) {
                sa.check_run(&self.spd, jobs, outcomes);
            }
        }
        clock.lap(Stage::Policy);
    }

    /// Asks for what the checks on inner packets will need: it is spread over memory where there are many policies and SAs.
    fn prefetch_policy(&self, jobs: &[Job]) {
        for job in jobs {
            if let Some(addresses) = unchecked_v4(job.buffer.bytes()) {
                self.spd.prefetch_v4(Pair::of_arriving(addresses));
            } else if let Some((source, destination)) = unchecked_v6(job.buffer.bytes()) {
                self.spd.prefetch(destination, source);
            }
            if let Some(sa) = self.inbound.get(Prepared::sa_of(job)) {
                sa.permitted.prefetch();
                sa.counters.prefetch();
            }
        }
    }

    #[cold]
    fn refuse(&self, buffer: Buffer, sa: SaRef, reason: DropReason, pool: &mut Pool) {
        if let Some(sa) = self.inbound.get(sa) {
            sa.counters.count_drop(reason);
        }
        pool.discard(buffer, reason);
    }

    /// Takes a job that the engine has ended, in the order of its SA: checks the verdict, commits the sequence number, strips the
    /// trailer, and checks the inner packet. Gives the packet to forward, or nothing if it was discarded.
    pub fn finish_inbound(
        &mut self,
        mut job: Job,
        sa: SaRef,
        now: Moment,
        pool: &mut Pool,
    ) -> Option<Cleared> {
        match self.judge(&mut job, sa, now) {
            Ok(()) => Some(Cleared::new(job.buffer)),
            Err(reason) => {
                self.refuse(job.buffer, sa, reason, pool);
                None
            }
        }
    }

    /// All checks on one job, and the counting.
    fn judge(&mut self, job: &mut Job, name: SaRef, now: Moment) -> Result<(), DropReason> {
        let sa = self.inbound.get_mut(name).ok_or(DropReason::ShuttingDown)?;
        verdict_of(job)?;
        // Asked again: packets of the same batch may have used the lifetime up since this one was let in.
        sa.admit(now, &mut self.events)?;
        let is_newest = job.aad.sequence() > sa.window.top();
        let source = if is_newest && sa.learns_remote { source_of(job.buffer.bytes()) } else { None };
        let outer_class = sa.judge(job)?;
        let inner = sa.check_inner(&self.spd, &mut job.buffer, outer_class)?;
        sa.count(inner, now, &mut self.events);
        if let Some((address, port)) = source {
            let tunnel = sa.tunnel;
            self.follow_peer(tunnel, address, port);
        }
        Ok(())
    }

    /// Where the peer's address is to be learned: answers go to where its newest authentic packet came from.
    fn follow_peer(&mut self, index: TunnelIndex, address: IpAddr, port: u16) {
        let Some(tunnel) = self.tunnels.get_mut(index.0 as usize).and_then(Option::as_mut) else { return };
        let endpoints = &mut tunnel.parameters.endpoints;
        let Encapsulation::EspInUdp { local_port, remote_port } = endpoints.encapsulation else { return };
        if !tunnel.parameters.learn_remote || (endpoints.remote == Some(address) && remote_port == port) {
            return;
        }
        endpoints.remote = Some(address);
        endpoints.encapsulation = Encapsulation::EspInUdp { local_port, remote_port: port };
        if let Some(sa) = self.outbound.get_mut(tunnel.outbound) {
            sa.template = OuterTemplate::new(endpoints, tunnel.parameters.dscp, sa.spi);
        }
        self.events.push(Event { tunnel: index, kind: EventKind::PeerMoved { address, port } });
    }
}

/// Where a datagram came from: address and UDP port.
#[cold]
fn source_of(datagram: &[u8]) -> Option<(IpAddr, u16)> {
    let outer = IpHeader::parse(datagram).ok()?;
    let udp = UdpHeader::parse(outer.payload(datagram)).ok()?;
    Some((outer.source, udp.source_port))
}

#[cold]
fn uncommon_flow(packet: &[u8]) -> Result<(Flow, usize, u8), DropReason> {
    let header = IpHeader::parse(packet).map_err(|_| DropReason::InnerMalformed)?;
    Ok((Flow::inbound(&header, packet), header.total_bytes, header.traffic_class))
}

impl InboundSa {
    /// The engine's verdict, the replay commit, and what ESP has put around the packet: off with it. Returns the outer traffic class.
    #[inline(always)]
    fn judge(&mut self, job: &mut Job) -> Result<u8, DropReason> {
        verdict_of(job)?;
        self.window.commit(job.aad.sequence()).map_err(reason_of_replay)?;
        let outer_class = ip::traffic_class(job.buffer.bytes());
        strip(job)?;
        Ok(outer_class)
    }

    /// Checks the inner packets of stripped jobs, which are all this SA's, and counts those that pass.
    #[inline]
    fn check_run(&mut self, spd: &Spd, jobs: &mut [Job], outcomes: &mut [Opened]) {
        let (mut packets, mut bytes) = (0, 0);
        for (job, outcome) in jobs.iter_mut().zip(outcomes) {
            let Opened::Stripped(outer_class) = *outcome else { continue };
            *outcome = match self.check_inner(spd, &mut job.buffer, outer_class) {
                Ok(inner) => {
                    packets += 1;
                    bytes += inner as u64;
                    Opened::Cleared
                }
                Err(reason) => Opened::Refused(reason),
            };
        }
        if packets > 0 {
            // No limit is near: it was asked before with more.
            self.lifetime.count_far(packets, bytes);
            self.counters.count(packets, bytes, self.window.top());
        }
    }

    /// [`check_inner`](Self::check_inner) of a packet whose addresses alone do not decide: its length in bytes and its traffic class.
    #[inline(never)]
    fn check_flow(&self, spd: &Spd, packet: &[u8]) -> Result<(usize, u8), DropReason> {
        let (flow, bytes, class) = match PlainHeader::parse(packet) {
            Some(header) => {
                (Flow::plain_inbound(&header), usize::from(header.total_bytes), header.traffic_class)
            }
            None => uncommon_flow(packet)?,
        };
        if !self.permitted.holds(&flow) {
            return Err(DropReason::SelectorMismatch);
        }
        // Selectors come from an ordered SPD: what an earlier policy discards, or gives to another tunnel, may not come through this one.
        match spd.verdict(&flow) {
            Verdict::Policy(Action::Protect(index)) if index == self.tunnel => Ok((bytes, class)),
            Verdict::Policy(Action::Discard) => Err(DropReason::PolicyDiscard),
            Verdict::PortsHidden => Err(DropReason::PortsHidden),
            _ => Err(DropReason::SelectorMismatch),
        }
    }

    /// RFC 4301 5.2, step 4: the inner packet must be what the SA's selectors allow. Returns its length in bytes.
    #[inline(always)]
    fn check_inner(&self, spd: &Spd, buffer: &mut Buffer, outer_class: u8) -> Result<usize, DropReason> {
        let ours = Answer::protect(self.tunnel);
        let is_ours = |pair| self.permitted.holds_pair(pair) && ours == Some(spd.answer_v4(pair));
        let (bytes, class) = match PlainV4::parse(buffer.bytes()) {
            Some(header) if is_ours(Pair::inbound(&header)) => {
                (usize::from(header.total_bytes), header.traffic_class)
            }
            _ => self.check_flow(spd, buffer.bytes())?,
        };
        buffer.truncate(bytes);
        let ecn = ecn::at_egress(class, outer_class).ok_or(DropReason::EcnCongestion)?;
        if ecn != class & ecn::MASK {
            ip::set_ecn(buffer.bytes_mut(), ecn);
        }
        Ok(bytes)
    }
}

#[inline(always)]
fn verdict_of(job: &Job) -> Result<(), DropReason> {
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

/// Makes the buffer the inner packet: off with headers, IV, padding, trailer and ICV (RFC 4303 3.4.4.1).
#[inline(always)]
fn strip(job: &mut Job) -> Result<(), DropReason> {
    let start = job.text_start as usize;
    let text =
        job.buffer.bytes().get(start..start + job.text_bytes as usize).ok_or(DropReason::BadPadding)?;
    let trailer = EspTrailer::parse(text).map_err(|_| DropReason::BadPadding)?;
    let version = match trailer.next_header {
        protocol::IPV4 => 4,
        protocol::IPV6 => 6,
        protocol::NO_NEXT_HEADER => return Err(DropReason::DummyPacket),
        _ => return Err(DropReason::BadNextHeader),
    };
    let payload = &text[..trailer.payload_bytes];
    if payload.first().is_none_or(|b| b >> 4 != version) {
        return Err(DropReason::InnerMalformed);
    }
    job.buffer.narrow(job.text_start, small(trailer.payload_bytes));
    Ok(())
}

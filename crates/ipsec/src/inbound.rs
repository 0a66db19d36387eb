//! From the unprotected to the protected side: demultiplexing, SAD, replay check, jobs (RFC 4303 3.4, RFC
//! 4301 5.2). [`crate::opened`] finishes the jobs.
//!
//! As outbound, a batch passes through phases. The full parser classifies everything that is not a plain ESP
//! packet, with or without UDP; fragments among that are put together first ([`crate::fragments`]).

use crate::Ipsec;
use crate::audit::Drops;
use crate::encap::ah::mask_datagram;
use crate::encap::{IpsecProtocol, packet_offset};
use crate::fragments::{Reassembled, Way};
use crate::lifetime::Moment;
use crate::numbers::ReplayError;
use crate::outcome::{Bypassed, Prepared};
use crate::parsed::reason_of;
use crate::runs::{Disposition, Runs, discard, drain};
use crate::sa::{InboundSa, LocalEndpoint};
use crate::slots::SaRef;
use crate::spd::{Action, Flow, Verdict, address_bits};
use arrayvec::ArrayVec;
use testudo_crypto::{Direction, Job};
use testudo_packet::{
    BATCH_SIZE, Batch, Buffer, DropReason, Interface, Mark, Passage, Pool, Stage, StageClock,
};
use testudo_wire::ah::AhHeader;
use testudo_wire::esp::{ESP_HEADER_BYTES, EspHeader, NAT_KEEPALIVE};
use testudo_wire::ip::{IpHeader, Version};
use testudo_wire::plain::{PlainHeader, PlainV4};
use testudo_wire::protocol;
use testudo_wire::udp::{UDP_HEADER_BYTES, UdpHeader};
use testudo_wire::vpe::VpeHeader;

/// A packet of ESP or AH in a datagram.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) protocol: IpsecProtocol,
    /// SPI and number, whichever protocol's.
    pub(crate) header: EspHeader,
    /// Start and end in the datagram, in bytes.
    pub(crate) at: u16,
    pub(crate) end: u16,
    /// Our address and port that it was sent to.
    pub(crate) local_endpoint: LocalEndpoint,
}

/// What a datagram from the unprotected side is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Parsed {
    Esp(Arrival),
    /// A fragment that was sent to an address where SAs end.
    Fragment,
    /// An ICMP error about a packet of ESP or AH of ours.
    IcmpError,
    /// A fragment to somebody else in clear, on which what came before may decide.
    ClearFragment,
    /// A chain of buffers.
    Chain,
    /// A packet that policy lets pass in clear.
    Pass,
    Drop(DropReason),
}

/// What the datagrams of a batch are.
#[derive(Debug, Default)]
pub(crate) struct ParsedInbound {
    packets: ArrayVec<Parsed, BATCH_SIZE>,
    /// Whether any is a [fragment](Parsed::Fragment) or an [error](Parsed::IcmpError), which change more than
    /// their batch.
    has_uncommon: bool,
}

impl ParsedInbound {
    #[inline(always)]
    pub(crate) fn push(&mut self, parsed: Parsed) {
        self.packets.push(parsed);
    }

    /// What the only datagram is.
    pub(crate) fn only(&self) -> Option<Parsed> {
        self.packets.first().copied()
    }
}

impl Ipsec {
    /// Takes datagrams from the unprotected side and makes jobs of the ESP packets among them. All of `batch`
    /// is taken: every packet ends up in `out` or is discarded to `pool` with its reason.
    pub fn inbound(
        &mut self,
        batch: &mut Batch,
        now: Moment,
        pool: &mut Pool,
        clock: &mut StageClock,
        out: &mut Prepared,
    ) {
        let mut parsed = ParsedInbound::default();
        if self.vpe.is_any() {
            self.parse_beside_vpe(batch, &mut parsed);
        } else {
            for buffer in batch.iter_mut() {
                self.parse(buffer, &mut parsed);
            }
        }
        if parsed.has_uncommon {
            self.take_uncommon(&mut parsed, batch, now, pool);
        }
        clock.lap(Stage::Parse);
        let parsed = parsed.packets.as_slice();
        let mut runs = Runs::default();
        self.find_sas(parsed, &mut runs);
        clock.lap(Stage::Sa);
        out.jobs.reserve(batch.len());
        for (disposition, parsed, buffers) in runs.over(parsed, batch) {
            match disposition {
                Disposition::Sa(sa_ref) => self.open(sa_ref, parsed, buffers, now, pool, &mut out.jobs),
                Disposition::Pass => out.pass.extend(drain(buffers).map(in_clear)),
                // Only packets from the protected side wait for SAs.
                Disposition::Held => {}
                Disposition::Drop(reason) => {
                    let mut drops = Drops { pool, audit: &mut self.audit, now };
                    drain(buffers).for_each(|datagram| drops.discard(datagram, reason));
                }
            }
        }
        // All are drained: what remains are empty buffers, which own no memory.
        batch.clear();
        clock.lap(Stage::Framing);
    }

    /// Tells ESP from the rest, and cuts off bytes after the datagram.
    ///
    /// Written in place, here and below, not returned: copying the struct would hit failed store-to-load
    /// forwarding (wide loads over recent narrow stores).
    #[inline(always)]
    pub(crate) fn parse(&self, buffer: &mut Buffer, parsed: &mut ParsedInbound) {
        match PlainV4::parse(buffer.bytes()) {
            Some(header) => {
                buffer.truncate(header.total_bytes.into());
                let came_to = (Version::V4, u128::from(header.addresses & 0xFFFF_FFFF));
                self.parse_plain(buffer, came_to, header.protocol, || header.ports(), parsed);
            }
            None => self.parse_less_common(buffer, parsed),
        }
    }

    // Inlined in spite of two callers: of IPv6 it is what every packet takes.
    #[inline(always)]
    fn parse_less_common(&self, buffer: &mut Buffer, parsed: &mut ParsedInbound) {
        let Some(header) = PlainHeader::parse(buffer.bytes()) else {
            return self.push_uncommon(buffer, parsed);
        };
        buffer.truncate(header.total_bytes.into());
        let came_to = (header.version, header.destination);
        self.parse_plain(buffer, came_to, header.protocol, || header.ports(), parsed);
    }

    /// [`parse`](Self::parse) for a plain datagram that is cut to its length.
    #[inline(always)]
    fn parse_plain(
        &self,
        buffer: &mut Buffer,
        came_to: (Version, u128),
        protocol: u8,
        ports: impl FnOnce() -> Option<(u16, u16)>,
        parsed: &mut ParsedInbound,
    ) {
        let ip_bytes = came_to.0.header_bytes();
        let (at, udp_port) = match protocol {
            protocol::ESP => (ip_bytes, None),
            protocol::AH => return parsed.push(arrival_of_ah(buffer.bytes(), ip_bytes, came_to)),
            protocol::UDP => match ports() {
                Some((_, port)) if self.udp_ports.contains(port) => (ip_bytes + UDP_HEADER_BYTES, Some(port)),
                _ => return self.push_vpe(buffer, parsed),
            },
            _ => return self.push_vpe(buffer, parsed),
        };
        let datagram = buffer.bytes();
        let mut end = datagram.len();
        if udp_port.is_some() {
            match UdpHeader::parse(&datagram[ip_bytes..]) {
                // Bytes after the UDP datagram are not part of the ESP packet.
                Ok(udp) => end = ip_bytes + udp.total_bytes,
                Err(error) => return parsed.push(Parsed::Drop(reason_of(error))),
            }
        }
        match arrival(datagram, Place { at, end, udp_port }, came_to) {
            Ok(arrival) => parsed.push(Parsed::Esp(arrival)),
            Err(reason) => parsed.push(Parsed::Drop(reason)),
        }
    }

    #[cold]
    pub(crate) fn push_uncommon(&self, buffer: &mut Buffer, parsed: &mut ParsedInbound) {
        let uncommon = if buffer.is_chain() { Parsed::Chain } else { self.parse_uncommon(buffer) };
        parsed.has_uncommon |=
            matches!(uncommon, Parsed::Fragment | Parsed::ClearFragment | Parsed::IcmpError | Parsed::Chain);
        parsed.push(uncommon);
    }

    fn parse_uncommon(&self, buffer: &mut Buffer) -> Parsed {
        let parsed = IpHeader::parse(buffer.bytes()).map_err(reason_of).and_then(|header| {
            buffer.truncate(header.total_bytes);
            if self.is_reassembled(&header) {
                return Ok(Parsed::Fragment);
            }
            let packet = buffer.bytes();
            let destination = Flow::outbound(&header, packet).remote();
            if header.next_layer_protocol() == Some(protocol::AH) && header.fragment.is_none() {
                return Ok(arrival_of_ah(packet, header.header_bytes, (header.version, destination)));
            }
            let came_to = (header.version, destination);
            // Its number may be one that IPv6 has for an extension header of experiments (RFC 3692).
            if header.fragment.is_none()
                && let Some(vpe) = self.vpe_in(packet, header.header_bytes, header.protocol, came_to)
            {
                return Ok(vpe);
            }
            if self.icmp_error(&header, packet).is_some() {
                return Ok(Parsed::IcmpError);
            }
            match self.demultiplex(&header, packet)? {
                Some(place) => arrival(packet, place, (header.version, destination)).map(Parsed::Esp),
                None if header.fragment.is_some() => Ok(Parsed::ClearFragment),
                None => self.pass_clear(&header, packet).map(|()| Parsed::Pass),
            }
        });
        parsed.unwrap_or_else(Parsed::Drop)
    }

    /// Whether a packet is a fragment that is put together with the others of its datagram: only its
    /// destination may do so (RFC 8200 4.5). Over IPv6 all fragments to us are, since only a datagram's first
    /// one shows what it is.
    fn is_reassembled(&self, header: &IpHeader) -> bool {
        let may_be_ipsec = match header.version {
            Version::V4 => {
                let bits = address_bits(header.destination);
                matches!(header.protocol, protocol::ESP | protocol::AH | protocol::UDP)
                    || self.vpe.is_vpe(header.protocol, Version::V4, bits)
            }
            Version::V6 => true,
        };
        header.fragment.is_some() && may_be_ipsec && self.addresses.is_local(header.destination)
    }

    /// Puts fragments together, and takes ICMP errors. A whole datagram takes the place of the fragment that
    /// completed it; the other fragments leave the batch.
    #[cold]
    fn take_uncommon(&mut self, parsed: &mut ParsedInbound, batch: &mut Batch, now: Moment, pool: &mut Pool) {
        let mut at = 0;
        while let (Some(known), Some(buffer)) = (parsed.packets.get_mut(at), batch.get_mut(at)) {
            if matches!(known, Parsed::Chain) {
                *known = self.take_chain(buffer, pool);
            }
            if matches!(known, Parsed::Fragment) {
                let Some(whole) = self.take_fragment(buffer, now, pool) else {
                    parsed.packets.remove(at);
                    batch.remove(at);
                    continue;
                };
                *known = whole;
            }
            if matches!(known, Parsed::ClearFragment) {
                *known = self.take_clear_fragment(buffer.bytes(), now);
            }
            if matches!(known, Parsed::IcmpError) {
                *known = Parsed::Drop(self.take_icmp_error(buffer.bytes(), now));
            }
            at += 1;
        }
    }

    /// Gives a fragment to its datagram. What it makes of the buffer: `None` if that is kept.
    fn take_fragment(&mut self, buffer: &mut Buffer, now: Moment, pool: &mut Pool) -> Option<Parsed> {
        // Fragments of this side have none, but their buffers remember earlier packets.
        buffer.set_interface(if self.has_interfaces { Interface::NONE } else { Interface::MAIN });
        // No device opens a fragment, and none has opened the whole.
        buffer.set_mark(Mark::NONE);
        let taken = IpHeader::parse(buffer.bytes()).map_err(reason_of).and_then(|header| {
            let is_peer = self.addresses.is_peer(header.source);
            self.fragments.take(buffer, &header, is_peer, now, pool)
        });
        match taken {
            Ok(Reassembled::Kept) => None,
            Ok(Reassembled::Whole) => match self.parse_uncommon(buffer) {
                // A second fragment header: what it would be a part of has no other parts here.
                Parsed::Fragment => Some(Parsed::Drop(DropReason::FragmentMalformed)),
                parsed => Some(parsed),
            },
            Err(reason) => Some(Parsed::Drop(reason)),
        }
    }

    /// Asks policy about a fragment in clear.
    fn take_clear_fragment(&mut self, packet: &[u8], now: Moment) -> Parsed {
        let passed = IpHeader::parse(packet).map_err(reason_of).and_then(|header| {
            if header.has_source_route {
                return Err(DropReason::SourceRoute);
            }
            passes_clear(self.verdict_on_fragment(Way::Clear, &header, packet, now))
        });
        passed.map_or_else(Parsed::Drop, |()| Parsed::Pass)
    }

    /// Finds the ESP packet in a datagram; `None` if policy is to decide.
    fn demultiplex(&self, header: &IpHeader, packet: &[u8]) -> Result<Option<Place>, DropReason> {
        let payload = header.payload(packet);
        let (at, end) = (header.header_bytes, header.total_bytes);
        match (header.next_layer_protocol(), header.fragment) {
            (Some(protocol::ESP | protocol::AH), Some(_)) => Err(DropReason::OuterFragment),
            (Some(protocol::ESP), None) => Ok(Some(Place { at, end, udp_port: None })),
            (Some(protocol::UDP), None) => {
                let udp = UdpHeader::parse(payload).map_err(reason_of)?;
                let end = at + udp.total_bytes;
                let udp_port = Some(udp.destination_port);
                let is_ours = self.udp_ports.contains(udp.destination_port);
                Ok(is_ours.then_some(Place { at: at + UDP_HEADER_BYTES, end, udp_port }))
            }
            _ => Ok(None),
        }
    }

    /// RFC 4301 5.2, step 3b: a packet in clear passes only where policy says bypass.
    fn pass_clear(&self, header: &IpHeader, packet: &[u8]) -> Result<(), DropReason> {
        if header.has_source_route {
            return Err(DropReason::SourceRoute);
        }
        passes_clear(self.spd.verdict(&Flow::inbound(header, packet)))
    }

    /// Finds the SA of each arrival, and prefetches it.
    #[inline]
    fn find_sas(&self, parsed: &[Parsed], runs: &mut Runs) {
        let mut last = None;
        for parsed in parsed {
            let (disposition, spi) = match parsed {
                // Packets of one SA tend to be adjacent.
                Parsed::Esp(arrival) if last == Some((arrival.protocol, arrival.header.spi)) => {
                    runs.push_same();
                    continue;
                }
                Parsed::Esp(Arrival { protocol, header, .. }) => {
                    let sa_ref = match protocol {
                        IpsecProtocol::Esp => self.sad.get(header.spi),
                        IpsecProtocol::Ah => self.sad_of_ah.get(header.spi),
                        IpsecProtocol::Vpe => self.sad_of_vpe.get(header.spi),
                    };
                    (
                        sa_ref.map_or(Disposition::Drop(DropReason::UnknownSpi), Disposition::Sa),
                        Some((*protocol, header.spi)),
                    )
                }
                Parsed::Pass => (Disposition::Pass, None),
                // Not reached: these have become something else.
                Parsed::Fragment | Parsed::ClearFragment | Parsed::IcmpError | Parsed::Chain => {
                    (Disposition::Drop(DropReason::OuterFragment), None)
                }
                Parsed::Drop(reason) => (Disposition::Drop(*reason), None),
            };
            last = spi;
            if let Disposition::Sa(sa_ref) = disposition {
                // Another SA than that of the packet before: its SPI is another.
                runs.begin(disposition);
                self.inbound.prefetch(sa_ref);
            } else {
                runs.push(disposition);
            }
        }
    }

    /// Appends the jobs that open ESP packets of one SA to `jobs`.
    #[inline]
    fn open(
        &mut self,
        sa_ref: SaRef,
        parsed: &[Parsed],
        buffers: &mut [Buffer],
        now: Moment,
        pool: &mut Pool,
        jobs: &mut Vec<Job>,
    ) {
        let many_sas = self.inbound.exceed_the_cache();
        let Some(sa) = self.inbound.get_mut(sa_ref) else {
            return discard(buffers, DropReason::UnknownSpi, pool);
        };
        if let Err(reason) = sa.admit(now, &mut self.events) {
            buffers.iter().for_each(|_| sa.counters.count_drop(reason));
            return discard(buffers, reason, pool);
        }
        let protocol = sa.encap.protocol();
        if protocol != IpsecProtocol::Esp {
            let drops = Drops { pool, audit: &mut self.audit, now };
            return match protocol {
                IpsecProtocol::Vpe => {
                    let windows = self.vpe_windows.get(sa_ref);
                    sa.open_vpe(sa_ref, windows, parsed, buffers, drops, jobs);
                }
                _ => sa.open_ah(sa_ref, parsed, buffers, drops, jobs),
            };
        }
        sa.window.look();
        let from = jobs.len();
        let all_right = match (parsed, &mut *buffers) {
            // With many SAs in use most runs have one packet.
            ([parsed], [buffer]) => {
                jobs.push(Job::new(std::mem::take(buffer), Direction::Open, sa_ref.bits()));
                jobs.last_mut().is_some_and(|job| sa.prepare(job, parsed).is_ok())
            }
            _ => {
                jobs.extend(drain(buffers).map(|buffer| Job::new(buffer, Direction::Open, sa_ref.bits())));
                let jobs = jobs[from..].iter_mut().zip(parsed);
                jobs.fold(true, |all_right, (job, parsed)| all_right & sa.prepare(job, parsed).is_ok())
            }
        };
        if !all_right {
            let drops = Drops { pool, audit: &mut self.audit, now };
            sa.refuse_wrong(parsed, jobs, from, drops, InboundSa::prepare);
        }
        if sa.resync.is_due() {
            sa.resynchronise(sa_ref, jobs, from, pool);
        }
        if many_sas {
            jobs[from..].iter().for_each(|job| sa.window.prefetch(job.sequence));
        }
    }
}

/// Whether policy's verdict lets a packet come in in clear.
fn passes_clear(verdict: Verdict) -> Result<(), DropReason> {
    match verdict {
        Verdict::Policy(Action::Bypass) => Ok(()),
        Verdict::Policy(Action::Protect(_) | Action::Populate(_)) => Err(DropReason::CleartextForProtected),
        Verdict::Policy(Action::Discard) => Err(DropReason::PolicyDiscard),
        Verdict::FieldsHidden => Err(DropReason::FieldsHidden),
        Verdict::NoPolicy => Err(DropReason::NotForUs),
    }
}

/// Where an ESP packet is in a datagram, and the UDP port that it was sent to.
struct Place {
    at: usize,
    end: usize,
    udp_port: Option<u16>,
}

/// Reads the ESP header of a packet. In UDP it may be a keepalive or an IKE message instead.
#[inline(always)]
fn arrival(datagram: &[u8], place: Place, came_to: (Version, u128)) -> Result<Arrival, DropReason> {
    let Place { at, end, udp_port } = place;
    let local_endpoint = LocalEndpoint::new(came_to.0, came_to.1, udp_port);
    let esp = datagram.get(at..end).unwrap_or_default();
    if udp_port.is_some() {
        match esp {
            [NAT_KEEPALIVE] => return Err(DropReason::NatKeepalive),
            // RFC 3948 2.2: four zero bytes where ESP has its SPI mark an IKE message.
            [0, 0, 0, 0, ..] => return Err(DropReason::IkeOnEspPort),
            _ => {}
        }
    }
    match (EspHeader::parse(esp), u16::try_from(at), u16::try_from(end)) {
        (Some(header), Ok(at), Ok(end)) => {
            Ok(Arrival { protocol: IpsecProtocol::Esp, header, at, end, local_endpoint })
        }
        _ => Err(DropReason::EspMalformed),
    }
}

/// Reads the AH of a datagram that is cut to its length.
#[cold]
#[inline(never)]
fn arrival_of_ah(datagram: &[u8], at: usize, came_to: (Version, u128)) -> Parsed {
    let local_endpoint = LocalEndpoint::new(came_to.0, came_to.1, None).of_ah();
    let header = AhHeader::parse(datagram.get(at..).unwrap_or_default());
    match (header, u16::try_from(at), u16::try_from(datagram.len())) {
        (Ok(AhHeader { spi, sequence, .. }), Ok(at), Ok(end)) => {
            let header = EspHeader { spi, sequence };
            Parsed::Esp(Arrival { protocol: IpsecProtocol::Ah, header, at, end, local_endpoint })
        }
        _ => Parsed::Drop(DropReason::AhMalformed),
    }
}

impl Ipsec {
    /// Opens a datagram of ESP that came in one of AH, whose SA is `ah`: its job is one
    /// [again](Self::take_again). Only the SA that AH belongs to may open it.
    pub(crate) fn open_covered(&mut self, datagram: Buffer, ah: SaRef, now: Moment, pool: &mut Pool) {
        let mut job = Job::new(datagram, Direction::Open, ah.bits());
        let prepared = self.prepare_covered(&mut job, ah, now, pool);
        let esp = SaRef::from_bits(job.sa);
        match prepared {
            Ok(()) => {
                // AH that was lost for so long has found its own numbers by now; those of ESP are others.
                let sa = self.inbound.get_mut(esp).filter(|sa| sa.resync.is_due());
                let tried = sa.and_then(|sa| sa.try_higher_half(&job, esp, pool));
                self.again.push(job);
                self.again.extend(tried);
            }
            Err(reason) => {
                if let Some(sa) = self.inbound.get(esp) {
                    sa.counters.count_drop(reason);
                }
                Drops { pool, audit: &mut self.audit, now }.discard(job.buffer, reason);
            }
        }
    }

    fn prepare_covered(
        &mut self,
        job: &mut Job,
        ah: SaRef,
        now: Moment,
        pool: &mut Pool,
    ) -> Result<(), DropReason> {
        let packet = job.buffer.bytes();
        let header = IpHeader::parse(packet).map_err(reason_of)?;
        let destination = Flow::outbound(&header, packet).remote();
        if header.protocol != protocol::ESP || header.fragment.is_some() {
            return Err(DropReason::BadNextHeader);
        }
        let place = Place { at: header.header_bytes, end: header.total_bytes, udp_port: None };
        let mut arrival = arrival(packet, place, (header.version, destination))?;
        arrival.local_endpoint = arrival.local_endpoint.covered();
        let covered = self.inbound.get(ah).and_then(|sa| self.tunnel(sa.tunnel)?.parameters.covers);
        let esp = self
            .sad
            .get(arrival.header.spi)
            .filter(|esp| covered.is_some() && self.inbound.get(*esp).map(|sa| sa.tunnel) == covered);
        let esp = esp.ok_or(DropReason::WrongEncapsulation)?;
        job.sa = esp.bits();
        let sa = self.inbound.get_mut(esp).ok_or(DropReason::ShuttingDown)?;
        let arrival = Parsed::Esp(arrival);
        let prepared = sa.admit(now, &mut self.events).and_then(|()| sa.prepare(job, &arrival));
        if prepared.is_err() {
            sa.note_refused(job, &arrival, pool);
        }
        prepared
    }
}

impl InboundSa {
    /// Whether an ESP packet came in the encapsulation, and to the address and port, that its SA's tunnel is
    /// configured with. The source port is not compared: a NAT may have changed it, and the ICV authenticates
    /// the sender.
    #[inline]
    pub(crate) fn check_place(&self, arrival: &Arrival) -> Result<(), DropReason> {
        if arrival.local_endpoint == self.local_endpoint {
            Ok(())
        } else {
            Err(DropReason::WrongEncapsulation)
        }
    }

    /// Fills in the job that opens an ESP packet, after checking its length and sequence number (RFC 4303
    /// 3.4.3: before authentication, changing nothing).
    #[inline(always)]
    fn prepare(&self, job: &mut Job, parsed: &Parsed) -> Result<(), DropReason> {
        let Parsed::Esp(arrival) = parsed else { return Err(DropReason::EspMalformed) };
        self.check_place(arrival)?;
        let (iv_bytes, icv_bytes) = (usize::from(self.layout.iv_bytes), usize::from(self.layout.icv_bytes));
        let (at, end) = (usize::from(arrival.at), usize::from(arrival.end));
        let text_start = at + ESP_HEADER_BYTES + iv_bytes;
        // A text of no bytes, or of fewer, wraps to a huge value: one unsigned compare rejects both.
        let text_bytes = end.wrapping_sub(text_start + icv_bytes);
        if text_bytes.wrapping_sub(1) >= end || !self.layout.is_aligned(text_bytes) {
            return Err(DropReason::EspMalformed);
        }
        let sequence = self.window.infer(arrival.header.sequence).map_err(reason_of_replay)?;
        self.window.check(sequence).map_err(reason_of_replay)?;
        (job.sequence, job.esn) = (sequence, self.esn);
        (job.auth_start, job.text_start) = (arrival.at.into(), packet_offset(text_start));
        job.text_bytes = packet_offset(text_bytes);
        Ok(())
    }

    /// Appends the jobs that open packets of AH to `jobs`.
    #[cold]
    #[inline(never)]
    fn open_ah(
        &mut self,
        sa_ref: SaRef,
        parsed: &[Parsed],
        buffers: &mut [Buffer],
        mut drops: Drops<'_>,
        jobs: &mut Vec<Job>,
    ) {
        let from = jobs.len();
        self.window.look();
        for (parsed, buffer) in parsed.iter().zip(drain(buffers)) {
            let mut job = Job::new(buffer, Direction::Open, sa_ref.bits());
            match self.prepare_ah(&mut job, parsed) {
                Ok(()) => jobs.push(job),
                Err(reason) => {
                    self.refuse(&mut job, parsed, reason, &mut drops);
                }
            }
        }
        if self.resync.is_due() {
            self.resynchronise(sa_ref, jobs, from, drops.pool);
        }
    }

    /// Appends a job that tries the last packet of those from `from` on under a higher half of its number,
    /// too.
    #[cold]
    fn resynchronise(&mut self, sa_ref: SaRef, jobs: &mut Vec<Job>, from: usize, pool: &mut Pool) {
        let last = jobs.get(from..).and_then(<[Job]>::last);
        let tried = last.and_then(|job| self.try_higher_half(job, sa_ref, pool));
        jobs.extend(tried);
    }

    /// [`prepare`](Self::prepare) for AH (RFC 4302 3.4.3).
    fn prepare_ah(&self, job: &mut Job, parsed: &Parsed) -> Result<(), DropReason> {
        let Parsed::Esp(arrival) = parsed else { return Err(DropReason::AhMalformed) };
        self.check_place(arrival)?;
        let sequence = self.window.infer(arrival.header.sequence).map_err(reason_of_replay)?;
        self.window.check(sequence).map_err(reason_of_replay)?;
        let masked = mask_datagram(&mut job.buffer, self.layout, None)?;
        (job.sequence, job.esn) = (sequence, self.esn);
        (job.auth_start, job.text_start) = (masked.auth_start, masked.text_start);
        job.text_bytes = masked.text_bytes;
        Ok(())
    }

    /// Discards the packets of those jobs from `from` on that `prepare` refuses.
    #[cold]
    #[inline(never)]
    pub(crate) fn refuse_wrong(
        &self,
        parsed: &[Parsed],
        jobs: &mut Vec<Job>,
        from: usize,
        mut drops: Drops<'_>,
        prepare: impl Fn(&Self, &mut Job, &Parsed) -> Result<(), DropReason>,
    ) {
        let mut kept = from;
        for (at, parsed) in (from..jobs.len()).zip(parsed) {
            match prepare(self, &mut jobs[at], parsed) {
                Ok(()) => {
                    jobs.swap(kept, at);
                    kept += 1;
                }
                Err(reason) => {
                    self.refuse(&mut jobs[at], parsed, reason, &mut drops);
                }
            }
        }
        jobs.truncate(kept);
    }

    /// Discards the packet of a job, which is lost to this SA and to its interface.
    #[cold]
    pub(crate) fn refuse(&self, job: &mut Job, parsed: &Parsed, reason: DropReason, drops: &mut Drops<'_>) {
        self.note_refused(job, parsed, drops.pool);
        self.counters.count_drop(reason);
        let mut buffer = std::mem::take(&mut job.buffer);
        if drops.pool.counts_by_interface() {
            buffer.set_interface(self.delivery.interface());
        }
        drops.discard(buffer, reason);
    }

    /// Tells the pool's journal, if there is one, that this SA refuses the packet of a job, and under which
    /// number.
    #[cold]
    #[inline(never)]
    fn note_refused(&self, job: &Job, parsed: &Parsed, pool: &mut Pool) {
        if let (Some(journal), Parsed::Esp(arrival)) = (pool.journal(), parsed) {
            let low = arrival.header.sequence;
            let header = job.buffer.bytes().get(usize::from(arrival.at)..).unwrap_or_default();
            let sequence = match arrival.protocol {
                IpsecProtocol::Vpe => VpeHeader::parse(header).map_or(low.into(), |header| header.number),
                _ => self.window.infer(low).unwrap_or(low.into()),
            };
            let head: [u8; 4] = header.first_chunk().copied().unwrap_or_default();
            let passage = Passage { sa: job.sa, is_outbound: false, sequence, text_start: 0, head };
            journal.assigned(&job.buffer, passage);
        }
    }
}

pub(crate) fn reason_of_replay(error: ReplayError) -> DropReason {
    match error {
        ReplayError::TooOld => DropReason::ReplayTooOld,
        ReplayError::Duplicate => DropReason::ReplayDuplicate,
    }
}

/// A packet that policy lets pass in clear. It leaves by the main interface, whose policy has said so.
fn in_clear(mut packet: Buffer) -> Bypassed {
    packet.set_interface(Interface::MAIN);
    Bypassed::new(packet)
}

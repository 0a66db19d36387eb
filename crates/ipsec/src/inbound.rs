//! From the unprotected to the protected side: demultiplexing, SAD, replay check, jobs; then verdicts (RFC 4303 3.4, RFC 4301 5.2).

use crate::event::{Event, EventKind};
use crate::lifetime::Moment;
use crate::outbound::reason_of;
use crate::replay::ReplayError;
use crate::sa::{InboundSa, aad, nonce, sequence_of};
use crate::selector::Flow;
use crate::slots::SaRef;
use crate::spd::{Action, TunnelIndex, Verdict};
use crate::template::OuterTemplate;
use crate::tunnel::Encapsulation;
use crate::verdict::{Cleared, Prepared};
use crate::{Ipsec, ecn};
use std::net::IpAddr;
use testudo_crypto::{Direction, Job, JobStatus, KeyId};
use testudo_packet::{Batch, Buffer, DropReason, Pool, Stage, StageClock};
use testudo_wire::esp::{ESP_HEADER_BYTES, EspHeader, EspTrailer, NAT_KEEPALIVE};
use testudo_wire::ip::{self, IpHeader, Version};
use testudo_wire::protocol;
use testudo_wire::udp::{UDP_HEADER_BYTES, UdpHeader};

/// What a datagram from the unprotected side is.
enum Demultiplexed {
    /// ESP: where it starts and ends in the datagram, and the UDP ports (source, destination) around it.
    Esp { at: usize, end: usize, udp: Option<(u16, u16)> },
    /// Something else, for policy to decide on.
    Clear,
}

impl Ipsec {
    /// Takes datagrams from the unprotected side and makes jobs of the ESP packets among them. All of `batch` is taken: every packet
    /// ends up in `out` or is discarded to `pool` with its reason.
    pub fn inbound(
        &mut self,
        batch: &mut Batch,
        now: Moment,
        pool: &mut Pool,
        clock: &mut StageClock,
        out: &mut Prepared,
    ) {
        for mut buffer in batch.drain(..) {
            match self.prepare_inbound(&mut buffer, now) {
                Ok(Some(mut job)) => {
                    job.buffer = buffer;
                    out.jobs.push(job);
                }
                Ok(None) => out.pass.push(buffer),
                Err(reason) => pool.discard(buffer, reason),
            }
        }
        clock.lap(Stage::Headers);
    }

    /// The job that opens the packet in `buffer` (its own buffer is still empty); `None` for a packet that policy lets pass in clear.
    fn prepare_inbound(&mut self, buffer: &mut Buffer, now: Moment) -> Result<Option<Job>, DropReason> {
        let header = IpHeader::parse(buffer.bytes()).map_err(reason_of)?;
        buffer.truncate(header.total_bytes);
        match self.demultiplex(&header, buffer.bytes())? {
            Demultiplexed::Esp { at, end, udp } => {
                // What stands behind the UDP datagram is no part of the ESP packet.
                let esp = buffer.bytes().get(at..end).unwrap_or_default();
                self.open_job(&header, esp, at, udp, now).map(Some)
            }
            Demultiplexed::Clear => self.pass_clear(&header, buffer.bytes()).map(|()| None),
        }
    }

    fn demultiplex(&self, header: &IpHeader, packet: &[u8]) -> Result<Demultiplexed, DropReason> {
        let payload = header.payload(packet);
        if !matches!(header.protocol, protocol::ESP | protocol::UDP) {
            return Ok(Demultiplexed::Clear);
        }
        if header.fragment.is_some() {
            return if header.protocol == protocol::ESP {
                Err(DropReason::OuterFragment)
            } else {
                Ok(Demultiplexed::Clear)
            };
        }
        if header.protocol == protocol::ESP {
            return Ok(Demultiplexed::Esp { at: header.header_bytes, end: header.total_bytes, udp: None });
        }
        let udp = UdpHeader::parse(payload).map_err(reason_of)?;
        if !self.udp_ports.contains_key(&udp.destination_port) {
            return Ok(Demultiplexed::Clear);
        }
        match &payload[UDP_HEADER_BYTES..udp.total_bytes] {
            [NAT_KEEPALIVE] => Err(DropReason::NatKeepalive),
            // RFC 3948 2.2: four zero bytes where ESP has its SPI mark an IKE message.
            [0, 0, 0, 0, ..] => Err(DropReason::IkeOnEspPort),
            _ => Ok(Demultiplexed::Esp {
                at: header.header_bytes + UDP_HEADER_BYTES,
                end: header.header_bytes + udp.total_bytes,
                udp: Some((udp.source_port, udp.destination_port)),
            }),
        }
    }

    /// RFC 4301 5.2, step 3b: a packet in clear passes only where policy says bypass.
    fn pass_clear(&self, header: &IpHeader, packet: &[u8]) -> Result<(), DropReason> {
        match self.spd.verdict(&Flow::inbound(header, packet)) {
            Verdict::Policy(Action::Bypass) => Ok(()),
            Verdict::Policy(Action::Protect(_)) => Err(DropReason::CleartextForProtected),
            Verdict::Policy(Action::Discard) => Err(DropReason::PolicyDiscard),
            Verdict::PortsHidden => Err(DropReason::PortsHidden),
            Verdict::NoPolicy => Err(DropReason::NotForUs),
        }
    }

    fn open_job(
        &mut self,
        header: &IpHeader,
        esp: &[u8],
        at: usize,
        udp: Option<(u16, u16)>,
        now: Moment,
    ) -> Result<Job, DropReason> {
        let esp_header = EspHeader::parse(esp).ok_or(DropReason::EspMalformed)?;
        let &name = self.sad.get(&esp_header.spi).ok_or(DropReason::UnknownSpi)?;
        let sa = self.inbound.get_mut(name).ok_or(DropReason::UnknownSpi)?;
        let tunnel =
            self.tunnels.get(sa.tunnel.0 as usize).and_then(Option::as_ref).ok_or(DropReason::UnknownSpi)?;
        let endpoints = &tunnel.parameters.endpoints;
        let counted = |reason: DropReason, sa: &InboundSa| {
            sa.counters.count_drop(reason);
            reason
        };
        if header.destination != endpoints.local || !encapsulated_as(endpoints.encapsulation, udp) {
            return Err(counted(DropReason::WrongEncapsulation, sa));
        }
        sa.admit(now, &mut self.events).map_err(|reason| counted(reason, sa))?;
        let mut job = sa.parse(esp, esp_header, at).map_err(|reason| counted(reason, sa))?;
        job.cookie = u64::from(name.bits()) << 32;
        Ok(job)
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
                if let Some(sa) = self.inbound.get(sa) {
                    sa.counters.count_drop(reason);
                }
                pool.discard(job.buffer, reason);
                None
            }
        }
    }

    fn judge(&mut self, job: &mut Job, name: SaRef, now: Moment) -> Result<(), DropReason> {
        let sa = self.inbound.get_mut(name).ok_or(DropReason::ShuttingDown)?;
        match job.status {
            JobStatus::Done => {}
            JobStatus::AuthenticationFailed => return Err(DropReason::AuthenticationFailed),
            _ => return Err(DropReason::EngineFault),
        }
        // Asked again: packets of the same batch may have used the lifetime up since this one was let in.
        sa.admit(now, &mut self.events)?;
        let sequence = sequence_of(&job.aad);
        let is_newest = sequence > sa.window.top();
        sa.window.commit(sequence).map_err(reason_of_replay)?;
        let tunnel = sa.tunnel;
        let moved_to = if is_newest { self.new_place_of_peer(tunnel, job.buffer.bytes()) } else { None };
        let outer_class = ip::traffic_class(job.buffer.bytes());
        strip(job)?;
        let inner = self.check_inner(&mut job.buffer, name, outer_class)?;
        let sa = self.inbound.get_mut(name).ok_or(DropReason::ShuttingDown)?;
        sa.count(inner, now, &mut self.events);
        if let Some((address, port)) = moved_to {
            self.follow_peer(tunnel, address, port);
        }
        Ok(())
    }

    /// Where a datagram came from, if its tunnel is to learn that.
    fn new_place_of_peer(&self, tunnel: TunnelIndex, datagram: &[u8]) -> Option<(IpAddr, u16)> {
        self.tunnel(tunnel).filter(|t| t.parameters.learn_remote)?;
        let outer = IpHeader::parse(datagram).ok()?;
        let udp = UdpHeader::parse(outer.payload(datagram)).ok()?;
        Some((outer.source, udp.source_port))
    }

    /// RFC 4301 5.2, step 4: the inner packet must be what the SA's selectors allow. Returns its length in bytes.
    fn check_inner(&self, buffer: &mut Buffer, sa: SaRef, outer_class: u8) -> Result<usize, DropReason> {
        let sa = self.inbound.get(sa).ok_or(DropReason::ShuttingDown)?;
        let tunnel = self.tunnel(sa.tunnel).ok_or(DropReason::ShuttingDown)?;
        let header = IpHeader::parse(buffer.bytes()).map_err(|_| DropReason::InnerMalformed)?;
        buffer.truncate(header.total_bytes);
        let flow = Flow::inbound(&header, buffer.bytes());
        if !tunnel.parameters.selectors.iter().any(|s| s.matches(&flow)) {
            return Err(DropReason::SelectorMismatch);
        }
        // Selectors come from an ordered SPD: what an earlier policy discards, or gives to another tunnel, may not come through this one.
        match self.spd.verdict(&flow) {
            Verdict::Policy(Action::Protect(index)) if index == sa.tunnel => {}
            Verdict::Policy(Action::Discard) => return Err(DropReason::PolicyDiscard),
            Verdict::PortsHidden => return Err(DropReason::PortsHidden),
            _ => return Err(DropReason::SelectorMismatch),
        }
        let ecn = ecn::at_egress(header.traffic_class, outer_class).ok_or(DropReason::EcnCongestion)?;
        if ecn != header.traffic_class & ecn::MASK {
            ip::set_ecn(buffer.bytes_mut(), ecn);
        }
        Ok(buffer.len())
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

impl InboundSa {
    /// Checks an ESP packet's shape and sequence number; the job that opens it, without buffer and cookie.
    fn parse(&self, esp: &[u8], header: EspHeader, at: usize) -> Result<Job, DropReason> {
        let (iv_bytes, icv_bytes) = (self.suite.iv_bytes(), self.suite.icv_bytes());
        let front = ESP_HEADER_BYTES + iv_bytes;
        let text_bytes = esp.len().checked_sub(front + icv_bytes).ok_or(DropReason::EspMalformed)?;
        if text_bytes == 0 || !text_bytes.is_multiple_of(self.suite.alignment_bytes()) {
            return Err(DropReason::EspMalformed);
        }
        let sequence = self.window.infer(header.sequence).map_err(reason_of_replay)?;
        self.window.check(sequence).map_err(reason_of_replay)?;
        let mut iv = [0; 8];
        iv.copy_from_slice(esp.get(ESP_HEADER_BYTES..front).ok_or(DropReason::EspMalformed)?);
        Ok(Job {
            buffer: Buffer::default(),
            cookie: 0,
            text_start: u32::try_from(at + front).map_err(|_| DropReason::EspMalformed)?,
            text_bytes: u32::try_from(text_bytes).map_err(|_| DropReason::EspMalformed)?,
            key: KeyId(u32::MAX),
            nonce: nonce(self.salt, iv),
            aad: aad(self.spi, self.esn, sequence),
            direction: Direction::Open,
            status: JobStatus::Pending,
        })
    }
}

/// Whether a packet came as its SA's tunnel is configured.
fn encapsulated_as(encapsulation: Encapsulation, udp: Option<(u16, u16)>) -> bool {
    match (encapsulation, udp) {
        (Encapsulation::Esp, None) => true,
        // The source port is not compared: a NAT may have changed it, and the ICV says who sent it.
        (Encapsulation::EspInUdp { local_port, .. }, Some((_, destination))) => local_port == destination,
        _ => false,
    }
}

/// Makes the buffer the inner packet: off with headers, IV, padding, trailer and ICV (RFC 4303 3.4.4.1).
fn strip(job: &mut Job) -> Result<(), DropReason> {
    job.buffer.trim_front(job.text_start as usize);
    job.buffer.truncate(job.text_bytes as usize);
    let trailer = EspTrailer::parse(job.buffer.bytes()).map_err(|_| DropReason::BadPadding)?;
    let version = match trailer.next_header {
        protocol::IPV4 => Version::V4,
        protocol::IPV6 => Version::V6,
        protocol::NO_NEXT_HEADER => return Err(DropReason::DummyPacket),
        _ => return Err(DropReason::BadNextHeader),
    };
    job.buffer.truncate(trailer.payload_bytes);
    let expected = if version == Version::V4 { 4 } else { 6 };
    let announced = job.buffer.bytes().first().is_some_and(|b| b >> 4 == expected);
    if announced { Ok(()) } else { Err(DropReason::InnerMalformed) }
}

fn reason_of_replay(error: ReplayError) -> DropReason {
    match error {
        ReplayError::TooOld => DropReason::ReplayTooOld,
        ReplayError::Duplicate => DropReason::ReplayDuplicate,
    }
}

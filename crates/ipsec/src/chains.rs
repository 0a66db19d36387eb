//! Packets in chains of buffers, in front of and behind the engines. What the outbound slow path does with
//! them is in [`crate::outbound_chains`].
//!
//! Chains are for long plain packets through ESP in tunnel mode and VPE. Everything else that comes in a
//! chain (options, fragments, AH, transport mode, clear text, TFC padding) is merged into a long buffer,
//! counted, and takes its usual way. The common packet's code never asks: a chain is longer than its first
//! segment, so that it fails the parse of a plain packet, and is found on the way of uncommon ones.

use crate::Ipsec;
use crate::ecn;
use crate::encap::{Encap, IpsecProtocol};
use crate::inbound::{Arrival, Parsed, ParsedInbound};
use crate::opened::Inner;
use crate::sa::{InboundSa, LocalEndpoint, low_32};
use crate::spd::{Flow, OfInterface};
use testudo_crypto::{Job, JobStatus};
use testudo_packet::{Batch, Buffer, DropReason, Pool};
use testudo_wire::esp::{ESP_HEADER_BYTES, EspHeader, EspTrailer};
use testudo_wire::ip;
use testudo_wire::plain::PlainHeader;
use testudo_wire::protocol;
use testudo_wire::udp::UDP_HEADER_BYTES;
use testudo_wire::vpe::VpeHeader;

/// Bytes of a chain that are made contiguous: all headers of a datagram, and those of the packet in it.
const FRONT_BYTES: usize = 192;
/// Bytes of an inner packet that the above leaves, at least.
const INNER_FRONT_BYTES: usize = 96;
/// Bytes of the longest padding with its trailer.
const LONGEST_TRAILER: usize = 257;
/// Segments that are left for headers and trailer.
const SPARE_SEGMENTS: usize = 4;

impl Ipsec {
    /// Brings the chains of a batch that a port has delivered into the form that [`outbound`](Self::outbound)
    /// and [`inbound`](Self::inbound) take: a plain packet, cut to its length, which is longer than the first
    /// segment, that has all headers. Others are merged into one buffer each; those for which there is none
    /// are dropped.
    #[cold]
    pub fn admit_chains(&mut self, batch: &mut Batch, pool: &mut Pool) {
        let mut at = 0;
        while let Some(packet) = batch.get_mut(at) {
            if !packet.is_chain() || is_admitted(packet, pool) {
                at += 1;
                continue;
            }
            match pool.linearise(std::mem::take(packet)) {
                Ok(whole) => {
                    *packet = whole;
                    at += 1;
                }
                Err(chain) => {
                    batch.remove(at);
                    pool.discard(chain, DropReason::PoolEmpty);
                }
            }
        }
    }

    /// Says whether ports deliver chains.
    pub fn set_takes_chains(&mut self, takes: bool) {
        self.takes_chains = takes;
    }

    /// What a datagram in a chain is; it is merged where its SA's packets cannot be opened in chains.
    pub(crate) fn take_chain(&self, buffer: &mut Buffer, pool: &mut Pool) -> Parsed {
        if let Some(arrival) = self.arrival_of_chain(buffer) {
            return Parsed::Esp(arrival);
        }
        match pool.linearise(std::mem::take(buffer)) {
            Err(chain) => {
                *buffer = chain;
                Parsed::Drop(DropReason::PoolEmpty)
            }
            Ok(whole) => {
                *buffer = whole;
                let mut parsed = ParsedInbound::default();
                self.parse_with_vpe(buffer, &mut parsed);
                parsed.only().unwrap_or(Parsed::Drop(DropReason::BadHeader))
            }
        }
    }

    /// A packet of ESP in tunnel mode or of VPE in a chain; `None` for anything else.
    fn arrival_of_chain(&self, buffer: &Buffer) -> Option<Arrival> {
        let (front, total) = (buffer.bytes(), buffer.chain_bytes());
        let header = PlainHeader::parse_front(front, total)?;
        let (version, destination) = (header.version, header.destination);
        let ip_bytes = version.header_bytes();
        let (at, udp_port) = match header.protocol {
            protocol::UDP => {
                let length = front.get(ip_bytes + 4..ip_bytes + 6)?.first_chunk::<2>()?;
                let is_whole = usize::from(u16::from_be_bytes(*length)) == total - ip_bytes;
                (ip_bytes + UDP_HEADER_BYTES, Some(header.ports().filter(|_| is_whole)?.1))
            }
            _ => (ip_bytes, None),
        };
        let local_endpoint = LocalEndpoint::new(version, destination, udp_port);
        let is_vpe = match udp_port {
            Some(port) => self.vpe.has_port(port),
            None => self.vpe.is_vpe(header.protocol, version, destination),
        };
        let packet = front.get(at..)?;
        let (at, end) = (u16::try_from(at).ok()?, u16::try_from(total).ok()?);
        if is_vpe {
            let VpeHeader { spi, number, .. } = VpeHeader::parse(packet)?;
            let header = EspHeader { spi, sequence: low_32(number) };
            let sa = self.sad_of_vpe.get(spi).and_then(|sa| self.inbound.get(sa));
            let local_endpoint = local_endpoint.of_vpe(header_protocol(udp_port, header_number(front)));
            let arrival = Arrival { protocol: IpsecProtocol::Vpe, header, at, end, local_endpoint };
            return sa.is_none_or(|sa| sa.opens_chain(&arrival, front.len())).then_some(arrival);
        }
        let is_esp = match udp_port {
            Some(port) => self.udp_ports.contains(port) && !packet.starts_with(&[0; 4]),
            None => header.protocol == protocol::ESP,
        };
        let header = EspHeader::parse(packet).filter(|_| is_esp)?;
        let sa = self.sad.get(header.spi).and_then(|sa| self.inbound.get(sa));
        let arrival = Arrival { protocol: IpsecProtocol::Esp, header, at, end, local_endpoint };
        sa.is_none_or(|sa| sa.opens_chain(&arrival, front.len())).then_some(arrival)
    }

    /// Merges opened chains whose packets are not plain, or open connections, before they are judged: these
    /// are looked at as a whole. One for which there is no buffer is refused later. To be called before
    /// [`finish_inbound`](Self::finish_inbound), where packets may be chains.
    #[cold]
    pub fn merge_opened(jobs: &mut [Job], pool: &mut Pool) {
        for job in jobs.iter_mut().filter(|job| job.buffer.is_chain()) {
            let inner = job.buffer.bytes().get(job.text_start as usize..).unwrap_or_default();
            let plain = PlainHeader::parse_front(inner, job.text_bytes as usize);
            let is_plain = plain.is_some_and(|header| !header.is_syn(inner));
            if job.status == JobStatus::Done && !is_plain {
                let merged = pool.linearise(std::mem::take(&mut job.buffer));
                job.buffer = merged.unwrap_or_else(|chain| chain);
            }
        }
    }
}

/// The protocol of a datagram of VPE, as local endpoints name it.
fn header_protocol(udp_port: Option<u16>, number: u8) -> u8 {
    if udp_port.is_some() { protocol::UDP } else { number }
}

/// The protocol number of a plain datagram.
fn header_number(front: &[u8]) -> u8 {
    let at = if front.first().is_some_and(|first| first >> 4 == 4) { 9 } else { 6 };
    front.get(at).copied().unwrap_or_default()
}

/// Whether a chain is, or now has, the form that is described above.
fn is_admitted(packet: &mut Buffer, pool: &mut Pool) -> bool {
    let available = packet.chain_bytes();
    if !packet.pull_up(FRONT_BYTES.min(available)) {
        return false;
    }
    let Some(header) = PlainHeader::parse_front(packet.bytes(), available) else { return false };
    let total = usize::from(header.total_bytes);
    pool.trim_back(packet, total);
    if !packet.is_chain() {
        return true;
    }
    packet.len() < total && packet.segments().count() + SPARE_SEGMENTS <= testudo_packet::MAX_SEGMENTS
}

impl InboundSa {
    /// Whether packets of this SA are opened in chains, and this one, with so many bytes in its first
    /// segment, is: its text ends in another one.
    fn opens_chain(&self, arrival: &Arrival, first: usize) -> bool {
        let (iv, icv) = (usize::from(self.layout.iv_bytes), usize::from(self.layout.icv_bytes));
        let front = usize::from(arrival.at) + ESP_HEADER_BYTES + iv + INNER_FRONT_BYTES;
        let reaches = match self.encap {
            Encap::EspTunnel => usize::from(arrival.end) > first + icv,
            Encap::Vpe => usize::from(arrival.end) > first,
            Encap::EspTransport | Encap::AhTunnel | Encap::AhTransport => false,
        };
        reaches && first >= front && !self.is_watched && !self.delivery.is_covered()
    }

    /// As [`decapsulate`](Self::decapsulate), for a packet in a chain that is plain.
    #[cold]
    #[inline(never)]
    pub(crate) fn decapsulate_chain(
        &self,
        policies: OfInterface<'_>,
        job: &mut Job,
    ) -> Result<Inner, DropReason> {
        let (start, text_bytes) = (job.text_start as usize, job.text_bytes as usize);
        let datagram = job.buffer.bytes();
        let outer_class = ip::traffic_class(datagram);
        let inner = datagram.get(start..).unwrap_or_default();
        let (payload_bytes, next_header) = match self.encap {
            Encap::Vpe => (text_bytes, None),
            _ => {
                let (payload, next_header) = trailer_of(job)?;
                (payload, Some(next_header))
            }
        };
        let header = PlainHeader::parse_front(inner, payload_bytes).ok_or(DropReason::InnerMalformed)?;
        if next_header.is_some_and(|number| number != header.version.protocol()) {
            return Err(DropReason::InnerMalformed);
        }
        self.check_policy(policies, &Flow::plain_inbound(&header))?;
        let bytes = usize::from(header.total_bytes);
        job.buffer.narrow(job.text_start, u32::MAX);
        job.buffer.truncate_all(bytes);
        let ecn = ecn::at_egress(header.traffic_class, outer_class).ok_or(DropReason::EcnCongestion)?;
        if ecn != header.traffic_class & ecn::MASK {
            ip::set_ecn(job.buffer.bytes_mut(), ecn);
        }
        Ok(Inner { bytes, is_syn: false })
    }
}

/// Bytes before the padding of an opened text, and the trailer's next header.
fn trailer_of(job: &Job) -> Result<(usize, u8), DropReason> {
    let (start, text_bytes) = (job.text_start as usize, job.text_bytes as usize);
    let mut tail = [0; LONGEST_TRAILER];
    let bytes = text_bytes.min(LONGEST_TRAILER);
    let tail = tail.get_mut(..bytes).ok_or(DropReason::BadPadding)?;
    if job.buffer.copy_to(start + text_bytes - bytes, tail) < bytes {
        return Err(DropReason::BadPadding);
    }
    let trailer = EspTrailer::parse(tail).map_err(|_| DropReason::BadPadding)?;
    Ok((text_bytes - bytes + trailer.payload_bytes, trailer.next_header))
}

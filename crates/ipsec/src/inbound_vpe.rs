//! From datagrams of VPE to jobs: where they arrive, their headers, and the check of their windows
//! (`docs/VPE.md`). What surrounds this is [`crate::inbound`].

use crate::Ipsec;
use crate::audit::Drops;
use crate::encap::{IpsecProtocol, packet_offset};
use crate::inbound::{Arrival, Parsed, ParsedInbound};
use crate::runs::drain;
use crate::sa::{InboundSa, LocalEndpoint, low_32};
use crate::slots::SaRef;
use crate::vpe::Windows;
use testudo_crypto::{Direction, Job};
use testudo_packet::{Buffer, DropReason};
use testudo_wire::esp::EspHeader;
use testudo_wire::ip::Version;
use testudo_wire::plain::PlainHeader;
use testudo_wire::protocol;
use testudo_wire::udp::{UDP_HEADER_BYTES, UdpHeader};
use testudo_wire::vpe::{VPE_HEADER_BYTES, VpeHeader, is_vpe_keepalive};

impl Ipsec {
    /// [`parse`](Self::parse) where the protocol number of ESP means VPE at one of our addresses.
    #[inline(never)]
    pub(crate) fn parse_with_vpe(&self, buffer: &mut Buffer, parsed: &mut ParsedInbound) {
        match PlainHeader::parse(buffer.bytes()) {
            Some(PlainHeader { protocol: protocol::ESP, version, destination, total_bytes, .. })
                if self.vpe.is_vpe(protocol::ESP, version, destination) =>
            {
                buffer.truncate(total_bytes.into());
                self.push_vpe(buffer, (version, destination), protocol::ESP, parsed);
            }
            _ => self.parse(buffer, parsed),
        }
    }

    /// A plain datagram that is neither of ESP nor of AH, cut to its length. Not `cold`: VPE is what some
    /// tunnels have.
    #[inline(never)]
    pub(crate) fn push_vpe(
        &self,
        buffer: &mut Buffer,
        came_to: (Version, u128),
        protocol: u8,
        parsed: &mut ParsedInbound,
    ) {
        let ip_bytes = came_to.0.header_bytes();
        match self.vpe_in(buffer.bytes(), ip_bytes, protocol, came_to) {
            Some(vpe) => parsed.push(vpe),
            None => self.push_uncommon(buffer, parsed),
        }
    }

    /// The packet of VPE in a datagram of ours that is cut to its length and no fragment; `None` if it
    /// carries none.
    #[inline]
    pub(crate) fn vpe_in(
        &self,
        datagram: &[u8],
        at: usize,
        protocol: u8,
        came_to: (Version, u128),
    ) -> Option<Parsed> {
        if protocol != protocol::UDP {
            let is_vpe = self.vpe.is_vpe(protocol, came_to.0, came_to.1);
            let local_endpoint = LocalEndpoint::new(came_to.0, came_to.1, None).of_vpe(protocol);
            return is_vpe.then(|| arrival_of_vpe(datagram, at, datagram.len(), local_endpoint));
        }
        if !self.vpe.is_any() {
            return None;
        }
        let udp = UdpHeader::parse(datagram.get(at..)?).ok()?;
        if !self.vpe.has_port(udp.destination_port) {
            return None;
        }
        let (start, end) = (at + UDP_HEADER_BYTES, at + udp.total_bytes);
        if datagram.get(start..end).is_some_and(is_vpe_keepalive) {
            return Some(Parsed::Drop(DropReason::NatKeepalive));
        }
        let port = Some(udp.destination_port);
        let local_endpoint = LocalEndpoint::new(came_to.0, came_to.1, port).of_vpe(protocol);
        Some(arrival_of_vpe(datagram, start, end, local_endpoint))
    }
}

/// Reads the header of a packet of VPE.
#[inline]
fn arrival_of_vpe(datagram: &[u8], at: usize, end: usize, local_endpoint: LocalEndpoint) -> Parsed {
    let header = datagram.get(at..end).and_then(VpeHeader::parse);
    match (header, u16::try_from(at), u16::try_from(end)) {
        (Some(VpeHeader { spi, number, .. }), Ok(at), Ok(end)) => {
            let header = EspHeader { spi, sequence: low_32(number) };
            Parsed::Esp(Arrival { protocol: IpsecProtocol::Vpe, header, at, end, local_endpoint })
        }
        _ => Parsed::Drop(DropReason::VpeMalformed),
    }
}

impl InboundSa {
    /// Appends the jobs that open packets of VPE to `jobs`.
    #[inline(never)]
    pub(crate) fn open_vpe(
        &self,
        sa_ref: SaRef,
        windows: Option<&Windows>,
        parsed: &[Parsed],
        buffers: &mut [Buffer],
        mut drops: Drops<'_>,
        jobs: &mut Vec<Job>,
    ) {
        for (parsed, buffer) in parsed.iter().zip(drain(buffers)) {
            let mut job = Job::new(buffer, Direction::Open, sa_ref.bits());
            match self.prepare_vpe(&mut job, parsed, windows) {
                Ok(()) => jobs.push(job),
                Err(reason) => self.refuse(&mut job, parsed, reason, &mut drops),
            }
        }
    }

    /// [`prepare`](Self::prepare) for VPE: a packet without a text is a fill packet.
    fn prepare_vpe(
        &self,
        job: &mut Job,
        parsed: &Parsed,
        windows: Option<&Windows>,
    ) -> Result<(), DropReason> {
        let Parsed::Esp(arrival) = parsed else { return Err(DropReason::VpeMalformed) };
        self.check_place(arrival)?;
        let (at, end) = (usize::from(arrival.at), usize::from(arrival.end));
        let header = job.buffer.bytes().get(at..end).and_then(VpeHeader::parse);
        let (Some(header), Some(windows)) = (header, windows) else { return Err(DropReason::VpeMalformed) };
        windows.check(&header)?;
        job.sequence = header.number;
        (job.auth_start, job.text_start) = (arrival.at.into(), packet_offset(at + VPE_HEADER_BYTES));
        job.text_bytes = packet_offset(end - at - VPE_HEADER_BYTES);
        Ok(())
    }
}

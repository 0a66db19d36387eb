//! From datagrams of VPE to jobs: where they arrive, their headers, and the check of their windows
//! (`docs/VPE.md`). What surrounds this is [`crate::inbound`].

use crate::Ipsec;
use crate::audit::Drops;
use crate::encap::{IpsecProtocol, packet_offset};
use crate::inbound::{Arrival, Parsed, ParsedInbound};
use crate::runs::{discard, drain};
use crate::sa::{InboundSa, LocalEndpoint, low_32};
use crate::slots::SaRef;
use crate::vpe::{GroupWindows, SaWindows, Windows, WorkersWindows};
use testudo_crypto::{Direction, Job};
use testudo_packet::{Batch, Buffer, DropReason};
use testudo_wire::esp::EspHeader;
use testudo_wire::ip::{IPV4_HEADER_BYTES, Version};
use testudo_wire::plain::{PlainHeader, PlainV4};
use testudo_wire::protocol;
use testudo_wire::udp::{UDP_HEADER_BYTES, UdpHeader};
use testudo_wire::vpe::{VPE_HEADER_BYTES, VpeHeader, is_vpe_keepalive};

/// How a datagram carries VPE over IPv4, and where it came to. What surrounds it in a batch most often does
/// the same, and is looked at for that first.
#[derive(Debug, Clone, Copy)]
struct Carrier {
    protocol: u8,
    /// Our address.
    destination: u32,
    /// Our port, in UDP.
    port: Option<u16>,
    local_endpoint: LocalEndpoint,
}

impl Carrier {
    /// Reads a datagram that is carried in the same way, and cuts it to its length; `None`, with nothing
    /// changed, for any other, and for one that is malformed.
    #[inline(always)]
    fn arrival(&self, buffer: &mut Buffer) -> Option<Arrival> {
        let header = PlainV4::parse(buffer.bytes())?;
        if header.protocol != self.protocol || low_32(header.addresses) != self.destination {
            return None;
        }
        let total_bytes = usize::from(header.total_bytes);
        let datagram = buffer.bytes().get(..total_bytes)?;
        let (mut at, mut end) = (IPV4_HEADER_BYTES, total_bytes);
        if let Some(port) = self.port {
            let udp = UdpHeader::parse(&datagram[IPV4_HEADER_BYTES..]).ok()?;
            if udp.destination_port != port {
                return None;
            }
            (at, end) = (at + UDP_HEADER_BYTES, at + udp.total_bytes);
        }
        let arrival = arrival_of_vpe(datagram, at, end, self.local_endpoint)?;
        buffer.truncate(total_bytes);
        Some(arrival)
    }
}

impl Ipsec {
    /// [`parse`](Self::parse) for a batch where tunnels of VPE are. A function of its own, so that where none
    /// are no packet pays for them.
    #[inline(never)]
    pub(crate) fn parse_beside_vpe(&self, batch: &mut Batch, parsed: &mut ParsedInbound) {
        match batch.first().and_then(|first| self.carrier_in(first.bytes())) {
            Some(carrier) => self.parse_vpe_first(carrier, batch, parsed),
            None => batch.iter_mut().for_each(|buffer| self.parse_with_vpe(buffer, parsed)),
        }
    }

    /// How a datagram carries VPE; `None` if it is anything else, or not of IPv4.
    #[inline(never)]
    fn carrier_in(&self, datagram: &[u8]) -> Option<Carrier> {
        let header = PlainV4::parse(datagram)?;
        let (protocol, destination) = (header.protocol, low_32(header.addresses));
        let port = match protocol {
            // A port that is one of ESP's, too, is asked for that first, as where one datagram is parsed.
            protocol::UDP => Some(header.ports()?.1)
                .filter(|port| self.vpe.has_port(*port) && !self.udp_ports.contains(*port)),
            _ => None,
        };
        let is_vpe = port.is_some() || self.vpe.is_vpe(protocol, Version::V4, destination.into());
        let local_endpoint = LocalEndpoint::new(Version::V4, destination.into(), port).of_vpe(protocol);
        is_vpe.then_some(Carrier { protocol, destination, port, local_endpoint })
    }

    /// [`parse`](Self::parse) for a batch whose first datagram carries VPE in this way: one look tells it
    /// from the rest, of which nothing else is different.
    #[inline(never)]
    fn parse_vpe_first(&self, carrier: Carrier, batch: &mut Batch, parsed: &mut ParsedInbound) {
        for buffer in batch.iter_mut() {
            match carrier.arrival(buffer) {
                Some(arrival) => parsed.push(Parsed::Esp(arrival)),
                None => self.parse_with_vpe(buffer, parsed),
            }
        }
    }

    /// [`parse`](Self::parse) where the protocol number of ESP may mean VPE at one of our addresses.
    #[inline(never)]
    pub(crate) fn parse_with_vpe(&self, buffer: &mut Buffer, parsed: &mut ParsedInbound) {
        if self.vpe.has_esp_number()
            && let Some(header) = PlainHeader::parse(buffer.bytes())
            && header.protocol == protocol::ESP
            && self.vpe.is_vpe(protocol::ESP, header.version, header.destination)
        {
            buffer.truncate(header.total_bytes.into());
            return self.push_vpe(buffer, parsed);
        }
        self.parse(buffer, parsed);
    }

    /// A plain datagram that is neither of ESP nor of AH, cut to its length. Not `cold`: VPE is what some
    /// tunnels have. What its header says is read again, so that those who parse ESP keep nothing for it.
    /// Written in place, as what is parsed of ESP.
    #[inline(never)]
    pub(crate) fn push_vpe(&self, buffer: &mut Buffer, parsed: &mut ParsedInbound) {
        let Some((came_to, protocol)) = destination_of(buffer.bytes()) else {
            return self.push_uncommon(buffer, parsed);
        };
        let at = came_to.0.header_bytes();
        if protocol == protocol::UDP || !self.vpe.is_vpe(protocol, came_to.0, came_to.1) {
            return match self.vpe_in(buffer.bytes(), at, protocol, came_to) {
                Some(vpe) => parsed.push(vpe),
                None => self.push_uncommon(buffer, parsed),
            };
        }
        let local_endpoint = LocalEndpoint::new(came_to.0, came_to.1, None).of_vpe(protocol);
        let datagram = buffer.bytes();
        match arrival_of_vpe(datagram, at, datagram.len(), local_endpoint) {
            Some(arrival) => parsed.push(Parsed::Esp(arrival)),
            None => parsed.push(Parsed::Drop(DropReason::VpeMalformed)),
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
            let arrival = || arrival_of_vpe(datagram, at, datagram.len(), local_endpoint);
            return is_vpe.then(|| parsed_as(arrival()));
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
        Some(parsed_as(arrival_of_vpe(datagram, start, end, local_endpoint)))
    }
}

/// Where a plain datagram came to, and the protocol that it carries.
#[inline(always)]
fn destination_of(datagram: &[u8]) -> Option<((Version, u128), u8)> {
    if let Some(v4) = datagram.first_chunk::<20>().filter(|header| header[0] >> 4 == 4) {
        let address = u32::from_be_bytes([v4[16], v4[17], v4[18], v4[19]]);
        return Some(((Version::V4, address.into()), v4[9]));
    }
    let v6 = datagram.first_chunk::<40>()?;
    Some(((Version::V6, u128::from_be_bytes(*v6[24..].first_chunk()?)), v6[6]))
}

fn parsed_as(arrival: Option<Arrival>) -> Parsed {
    arrival.map_or(Parsed::Drop(DropReason::VpeMalformed), Parsed::Esp)
}

/// Reads the header of a packet of VPE; `None` if it is shorter.
#[inline(always)]
fn arrival_of_vpe(datagram: &[u8], at: usize, end: usize, local_endpoint: LocalEndpoint) -> Option<Arrival> {
    let VpeHeader { spi, number, .. } = VpeHeader::parse(datagram.get(at..end)?)?;
    let header = EspHeader { spi, sequence: low_32(number) };
    let (at, end) = (u16::try_from(at).ok()?, u16::try_from(end).ok()?);
    Some(Arrival { protocol: IpsecProtocol::Vpe, header, at, end, local_endpoint })
}

/// Windows of either kind. As closures their checks would be calls of their own for each packet.
trait Check {
    fn check(&self, header: &VpeHeader) -> Result<(), DropReason>;
}

impl Check for Windows {
    #[inline(always)]
    fn check(&self, header: &VpeHeader) -> Result<(), DropReason> {
        Self::check(self, header)
    }
}

impl Check for WorkersWindows {
    #[inline(always)]
    fn check(&self, header: &VpeHeader) -> Result<(), DropReason> {
        Self::check(self, header)
    }
}

impl Check for GroupWindows {
    #[inline(always)]
    fn check(&self, header: &VpeHeader) -> Result<(), DropReason> {
        Self::check(self, header)
    }
}

impl InboundSa {
    /// Appends the jobs that open packets of VPE to `jobs`. Filled in where they are, as those of ESP.
    #[inline(never)]
    pub(crate) fn open_vpe(
        &self,
        sa_ref: SaRef,
        windows: Option<&SaWindows>,
        parsed: &[Parsed],
        buffers: &mut [Buffer],
        drops: Drops<'_>,
        jobs: &mut Vec<Job>,
    ) {
        match windows {
            Some(SaWindows::Owned(windows)) => {
                self.open_with(windows.as_ref(), sa_ref, parsed, buffers, drops, jobs);
            }
            Some(SaWindows::Shared(windows)) => {
                self.open_with(windows.as_ref(), sa_ref, parsed, buffers, drops, jobs);
            }
            Some(SaWindows::Group(windows)) => {
                self.open_with(windows.as_ref(), sa_ref, parsed, buffers, drops, jobs);
            }
            // Not reached: each has some.
            None => discard(buffers, DropReason::ShuttingDown, drops.pool),
        }
    }

    /// [`open_vpe`](Self::open_vpe) with windows of one kind.
    #[inline(always)]
    fn open_with(
        &self,
        windows: &impl Check,
        sa_ref: SaRef,
        parsed: &[Parsed],
        buffers: &mut [Buffer],
        drops: Drops<'_>,
        jobs: &mut Vec<Job>,
    ) {
        let from = jobs.len();
        jobs.extend(drain(buffers).map(|buffer| Job::new(buffer, Direction::Open, sa_ref.bits())));
        let prepare = |all_right, (job, parsed)| all_right & self.prepare_vpe(job, parsed, windows).is_ok();
        if !jobs[from..].iter_mut().zip(parsed).fold(true, prepare) {
            let prepare = |sa: &Self, job: &mut Job, parsed: &Parsed| sa.prepare_vpe(job, parsed, windows);
            self.refuse_wrong(parsed, jobs, from, drops, prepare);
        }
    }

    /// [`prepare`](Self::prepare) for VPE: a packet without a text is a fill packet.
    #[inline(always)]
    fn prepare_vpe(&self, job: &mut Job, parsed: &Parsed, windows: &impl Check) -> Result<(), DropReason> {
        let Parsed::Esp(arrival) = parsed else { return Err(DropReason::VpeMalformed) };
        self.check_place(arrival)?;
        let (at, end) = (usize::from(arrival.at), usize::from(arrival.end));
        // It is within the packet: that was so when its arrival was read.
        let header = job.buffer.bytes().get(at..).and_then(VpeHeader::parse);
        let Some(header) = header else { return Err(DropReason::VpeMalformed) };
        windows.check(&header)?;
        job.sequence = header.number;
        (job.auth_start, job.text_start) = (arrival.at.into(), packet_offset(at + VPE_HEADER_BYTES));
        job.text_bytes = packet_offset(end - at - VPE_HEADER_BYTES);
        Ok(())
    }
}

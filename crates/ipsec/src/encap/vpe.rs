//! Vector Packet Encapsulation, in tunnel mode (`docs/VPE.md`).
//!
//! ```text
//!   | IP, (UDP) | Sender ID | Window ID | number | SPI | ICV | IP packet ………… | padding of TFC |
//!               ▲ nonce: 12 bytes                      ▲ 16  ▲ 32: encrypted from here to the end
//! ```
//!
//! Nothing comes after the packet, so that its headers may be in a segment of their own.

use super::esp_tunnel::Content;
use super::template::{ATOMIC, Headers, OUTER_BYTES, OuterTemplate};
use super::{Carried, Frame, ROOM_BEFORE, ROOM_BEHIND, Strip, packet_offset};
use crate::event::Event;
use crate::fragments::Identifications;
use crate::lifetime::Moment;
use crate::sa::{InboundSa, OutboundSa};
use crate::slots::SaRef;
use crate::vpe::Numbers;
use testudo_crypto::{Direction, Job};
use testudo_packet::{Buffer, DropReason};
use testudo_wire::ip::{self, IpHeader};
use testudo_wire::protocol;
use testudo_wire::udp::UDP_HEADER_BYTES;
use testudo_wire::vpe::{VPE_HEADER_BYTES, VPE_ICV_AT, VpeHeader, VpePlaintext};

/// Where a UDP header is in the longest outer headers: at their end.
const UDP_AT: usize = OUTER_BYTES - UDP_HEADER_BYTES;

// What the fast path writes before a packet is the longest outer headers and VPE's own.
const _: () = assert!(ROOM_BEFORE == OUTER_BYTES + VPE_HEADER_BYTES);

/// Loop invariants copied out of the SA, as [`esp_tunnel::Framing`](super::esp_tunnel::Framing) has them.
pub(crate) struct VpeFraming<'a> {
    template: &'a OuterTemplate,
    /// Bytes of all headers.
    front: u32,
    auth_start: u32,
    sender: u16,
    /// What the UDP source port has in every packet, and the bits of the Window ID that it has beside.
    port: u16,
    port_mask: u16,
    spi: u32,
    sa: u32,
    then: u8,
}

impl<'a> VpeFraming<'a> {
    /// The framing of an SA of VPE; `None` while the peer's address is unknown.
    #[inline]
    pub(crate) fn of(sa: &'a OutboundSa, sa_ref: SaRef) -> Option<Self> {
        let (template, numbers) = (sa.template.as_ref()?, sa.vpe.as_ref()?);
        let own = template.udp_ports().map_or(0, |(source, _)| source);
        let (port, port_mask) = numbers.rules().source_ports.first_and_mask(own);
        Some(Self {
            template,
            front: packet_offset(template.bytes() + VPE_HEADER_BYTES),
            auth_start: packet_offset(template.bytes()),
            sender: numbers.rules().sender,
            port,
            port_mask,
            spi: sa.spi,
            sa: sa_ref.bits(),
            then: sa.then,
        })
    }

    /// The job that seals the packet in `buffer`, which is `bytes` long, once [`write`](Self::write) has
    /// framed it.
    #[inline(always)]
    pub(crate) fn job(&self, buffer: Buffer, bytes: u16, sequence: u64) -> Job {
        Job {
            sequence,
            auth_start: self.auth_start,
            text_start: self.front,
            text_bytes: bytes.into(),
            then: self.then,
            ..Job::new(buffer, Direction::Seal, self.sa)
        }
    }

    /// Writes headers before the packets of jobs, each in its window. Returns `false` if any buffer lacks the
    /// room, or any datagram would be too long for its header: nothing is written before that packet.
    #[inline]
    pub(crate) fn write(&self, jobs: &mut [Job], packets: impl Iterator<Item = (Content, u16)>) -> bool {
        match self.template.headers() {
            Headers::V4 => self.write_each::<false, false>(jobs, packets),
            Headers::V4Udp => self.write_each::<false, true>(jobs, packets),
            Headers::V6 => self.write_each::<true, false>(jobs, packets),
            Headers::V6Udp => self.write_each::<true, true>(jobs, packets),
        }
    }

    #[inline(never)]
    fn write_each<const V6: bool, const UDP: bool>(
        &self,
        jobs: &mut [Job],
        packets: impl Iterator<Item = (Content, u16)>,
    ) -> bool {
        let surround = |(job, (content, window))| self.surround::<V6, UDP>(job, content, window);
        jobs.iter_mut().zip(packets).map(surround).fold(true, |all, is_written| all & is_written)
    }

    #[inline(always)]
    fn surround<const V6: bool, const UDP: bool>(
        &self,
        job: &mut Job,
        content: Content,
        window: u16,
    ) -> bool {
        let header = VpeHeader { sender: self.sender, window, number: job.sequence, spi: self.spi };
        let total = u16::try_from(self.front + u32::from(content.bytes));
        let (Ok(total), Some(around)) = (total, job.buffer.around::<ROOM_BEFORE, 0>()) else { return false };
        if let Some((outer, own)) = around.before.split_first_chunk_mut() {
            self.template.stamp_outer::<V6, UDP>(outer, total, content.traffic_class);
            if UDP {
                let port = self.port | window & self.port_mask;
                outer[UDP_AT..UDP_AT + 2].copy_from_slice(&port.to_be_bytes());
            }
            own[..VPE_ICV_AT].copy_from_slice(&header.to_bytes());
            own[VPE_ICV_AT..].fill(0);
        }
        around.grow(self.front, 0);
        true
    }
}

/// VPE, packet by packet.
pub(crate) struct Vpe;

impl Frame for Vpe {
    fn check(sa: &OutboundSa, packet: &Buffer) -> Result<(), DropReason> {
        let front = sa.template.as_ref().map_or(0, |outer| outer.bytes()) + VPE_HEADER_BYTES;
        let fits = packet.len().max(sa.tfc_pad_to.into()) + front <= usize::from(u16::MAX);
        if fits && packet.headroom() >= front && sa.vpe.is_some() { Ok(()) } else { Err(DropReason::NoRoom) }
    }

    fn admit(
        sa: &mut OutboundSa,
        packet: &Buffer,
        header: &IpHeader,
        bytes: usize,
        now: Moment,
        events: &mut Vec<Event>,
    ) -> Result<u64, DropReason> {
        let flow = |numbers: &Numbers| numbers.flow_of(packet.bytes());
        sa.admit_in_window(flow, header.traffic_class, bytes, now, events)
    }

    fn frame(
        sa: &OutboundSa,
        sa_ref: SaRef,
        mut packet: Buffer,
        header: &IpHeader,
        sequence: u64,
        _: &mut Identifications,
    ) -> Result<Job, (Buffer, DropReason)> {
        // What comes after the datagram is no padding of ours.
        packet.truncate(header.total_bytes);
        pad(sa, &mut packet);
        let text_bytes = packet.len();
        match surround(sa, &mut packet, header.traffic_class, sequence) {
            None => Err((packet, DropReason::NoRoom)),
            Some(auth_start) => Ok(Job {
                sequence,
                auth_start: packet_offset(auth_start),
                text_start: packet_offset(auth_start + VPE_HEADER_BYTES),
                text_bytes: packet_offset(text_bytes),
                then: sa.then,
                ..Job::new(packet, Direction::Seal, sa_ref.bits())
            }),
        }
    }
}

/// Appends the TFC padding that an SA wants, as far as the buffer has room.
fn pad(sa: &OutboundSa, packet: &mut Buffer) {
    let wanted = usize::from(sa.tfc_pad_to).saturating_sub(packet.len());
    let bytes = wanted.min(packet.tailroom().saturating_sub(ROOM_BEHIND));
    // Zeroed, and encrypted. It fits: see above.
    let _ = packet.append(bytes);
}

/// Writes the headers before a packet, with zeros where the ICV will be; where VPE's begins.
fn surround(sa: &OutboundSa, packet: &mut Buffer, class: u8, number: u64) -> Option<usize> {
    let (outer, numbers) = (sa.template.as_ref()?, sa.vpe.as_ref()?);
    let outer_bytes = outer.bytes();
    packet.prepend(outer_bytes + VPE_HEADER_BYTES).ok()?;
    let total = packet.len();
    let bytes = packet.bytes_mut();
    outer.write(bytes.get_mut(..outer_bytes)?, total, class, ATOMIC).ok()?;
    let (sender, window) = (numbers.rules().sender, numbers.chosen());
    if let Some((own, _)) = outer.udp_ports() {
        let port = numbers.rules().source_ports.of_window(own, window);
        let udp_at = outer_bytes.checked_sub(UDP_HEADER_BYTES)?;
        bytes.get_mut(udp_at..)?.first_chunk_mut::<2>()?.copy_from_slice(&port.to_be_bytes());
    }
    let header = bytes.get_mut(outer_bytes..)?.first_chunk_mut::<VPE_HEADER_BYTES>()?;
    header[..VPE_ICV_AT].copy_from_slice(&VpeHeader { sender, window, number, spi: sa.spi }.to_bytes());
    header[VPE_ICV_AT..].fill(0);
    Some(outer_bytes)
}

impl Strip for Vpe {
    fn strip(_: &InboundSa, job: &mut Job) -> Result<Carried, DropReason> {
        let (start, datagram) = (job.text_start as usize, job.buffer.bytes());
        let outer_class = Some(ip::traffic_class(datagram));
        let text = datagram.get(start..start + job.text_bytes as usize).ok_or(DropReason::VpeInner)?;
        match VpePlaintext::parse(text) {
            Ok(VpePlaintext::Fill) => Err(DropReason::VpeFill),
            Err(_) => Err(DropReason::VpeInner),
            Ok(VpePlaintext::Datagram { .. }) => {
                let is_v4 = text.first().is_some_and(|first| first >> 4 == 4);
                let next_header = if is_v4 { protocol::IPV4 } else { protocol::IPV6 };
                Ok(Carried { next_header, at: job.text_start, outer_class })
            }
        }
    }
}

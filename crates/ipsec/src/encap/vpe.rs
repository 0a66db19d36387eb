//! Vector Packet Encapsulation, in tunnel mode (`docs/VPE.md`).
//!
//! ```text
//!   | IP, (UDP) | Sender ID | Window ID | number | SPI | ICV | IP packet ………… | padding of TFC |
//!               ▲ nonce: 12 bytes                      ▲ 16  ▲ 32: encrypted from here to the end
//! ```
//!
//! Nothing comes after the packet, so that its headers may be in a segment of their own.

use super::template::ATOMIC;
use super::{Carried, Frame, ROOM_BEHIND, Strip, packet_offset};
use crate::event::Event;
use crate::fragments::{Identifications, folded, mix};
use crate::lifetime::Moment;
use crate::sa::{InboundSa, OutboundSa};
use crate::slots::SaRef;
use testudo_crypto::{Direction, Job};
use testudo_packet::{Buffer, DropReason};
use testudo_wire::ip::{self, IpHeader};
use testudo_wire::protocol;
use testudo_wire::vpe::{VPE_HEADER_BYTES, VPE_ICV_AT, VpeHeader, VpePlaintext};

/// VPE.
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
        sa.admit_in_window(
            |seed| flow_hash(header, packet.bytes(), seed),
            header.traffic_class,
            bytes,
            now,
            events,
        )
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
    let header = bytes.get_mut(outer_bytes..)?.first_chunk_mut::<VPE_HEADER_BYTES>()?;
    let (sender, window) = (numbers.rules().sender, numbers.chosen());
    header[..VPE_ICV_AT].copy_from_slice(&VpeHeader { sender, window, number, spi: sa.spi }.to_bytes());
    header[VPE_ICV_AT..].fill(0);
    Some(outer_bytes)
}

/// The hash of a flow: addresses, protocol and ports. All fragments of a datagram have the same, so that they
/// stay in order.
fn flow_hash(header: &IpHeader, packet: &[u8], seed: u64) -> u64 {
    let ports = if header.fragment.is_none() { header.ports(packet) } else { None };
    let rest = match ports {
        Some((source, destination)) => u64::from(source) << 16 | u64::from(destination),
        None => 0,
    };
    let protocol = if header.fragment.is_some() { protocol::FRAGMENT } else { header.protocol };
    let addresses = mix(mix(seed ^ folded(header.source)) ^ folded(header.destination));
    mix(addresses ^ rest ^ u64::from(protocol) << 32)
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

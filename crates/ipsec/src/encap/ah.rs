//! AH, in tunnel and in transport mode (RFC 4302).
//!
//! The ICV covers the whole datagram, in a form in which the fields that routers change are zero
//! ([`testudo_wire::mutable`]), and is a part of it. Engines take one run of bytes with the ICV after it:
//!
//! ```text
//!   sent or received   | IP, … AH, ICV | inner packet or payload |
//!   the job            | the same      | masked, ICV zero | inner packet or payload | ICV |
//!                        a copy        ▲ authenticated from here                     ▲ to here
//! ```
//!
//! [`mask_datagram`] makes the second form in place, with the copy in the headroom; [`unmask`] restores the
//! first one. The copy ends where the datagram's own front does, so that both are half of what precedes the
//! text.
//!
//! With AES-GMAC the field for the ICV holds an IV and then the ICV (RFC 4543 4). Engines find IVs directly
//! before the text: there, in the last bytes of the field that is zero otherwise, it waits.

use super::esp_transport::reason_of as reason_of_place;
use super::{Carried, Frame, MAX_IV_BYTES, Strip, outer_fields, packet_offset, then};
use crate::fragments::Identifications;
use crate::sa::{InboundSa, OutboundSa, SuiteLayout, iv_block, low_32};
use crate::slots::SaRef;
use testudo_crypto::{Direction, Job};
use testudo_packet::{Buffer, DropReason};
use testudo_wire::ah::{AhHeader, ah_bytes};
use testudo_wire::checksum::Checksum;
use testudo_wire::ip::{self, IPV4_HEADER_BYTES, IpHeader, Version};
use testudo_wire::mutable::{NotCovered, mask, masked_bytes};
use testudo_wire::protocol;
use testudo_wire::transport::TransportPlace;

/// Bytes of the IV of AES-GMAC, the only one that AH has (RFC 4543 4).
const GMAC_IV_BYTES: usize = 8;

/// AH in tunnel mode.
pub(crate) struct AhTunnel;

/// AH in transport mode.
pub(crate) struct AhTransport;

impl Frame for AhTunnel {
    fn check(sa: &OutboundSa, packet: &Buffer) -> Result<(), DropReason> {
        let outer = sa.template.as_ref().ok_or(DropReason::PeerUnknown)?;
        let front = outer.bytes() + ah_bytes(sa.layout.ah_field_bytes(), outer.version());
        has_room(packet, front, 2 * front, sa)
    }

    fn frame(
        sa: &OutboundSa,
        sa_ref: SaRef,
        mut packet: Buffer,
        header: &IpHeader,
        sequence: u64,
        identifications: &mut Identifications,
    ) -> Result<Job, (Buffer, DropReason)> {
        match surround(sa, &mut packet, header, sequence, identifications) {
            Ok(()) => seal_job(sa, sa_ref, packet, sequence),
            Err(reason) => Err((packet, reason)),
        }
    }
}

impl Strip for AhTunnel {
    fn strip(_: &InboundSa, job: &mut Job) -> Result<Carried, DropReason> {
        unmask(job, Direction::Open)?;
        let datagram = job.buffer.bytes();
        let outer_class = Some(ip::traffic_class(datagram));
        let place = TransportPlace::of_received(datagram, protocol::AH).map_err(reason_of_place)?;
        let ah = AhHeader::parse(&datagram[place.at..]).map_err(|_| DropReason::AhMalformed)?;
        if ah.next_header == protocol::NO_NEXT_HEADER {
            return Err(DropReason::DummyPacket);
        }
        let at = packet_offset(place.at + ah.header_bytes);
        Ok(Carried { next_header: ah.next_header, at, outer_class })
    }
}

impl Frame for AhTransport {
    fn check(sa: &OutboundSa, packet: &Buffer) -> Result<(), DropReason> {
        let place = TransportPlace::to_insert(packet.bytes()).map_err(reason_of_place)?;
        let outer = sa.template.as_ref().ok_or(DropReason::PeerUnknown)?;
        if !outer.goes_between(packet.bytes()) {
            return Err(DropReason::NotBetweenHosts);
        }
        let header = ah_bytes(sa.layout.ah_field_bytes(), place.version);
        has_room(packet, header, place.at + 2 * header, sa)
    }

    fn frame(
        sa: &OutboundSa,
        sa_ref: SaRef,
        mut packet: Buffer,
        _: &IpHeader,
        sequence: u64,
        identifications: &mut Identifications,
    ) -> Result<Job, (Buffer, DropReason)> {
        match insert(sa, &mut packet, sequence, identifications) {
            Ok(()) => seal_job(sa, sa_ref, packet, sequence),
            Err(reason) => Err((packet, reason)),
        }
    }
}

impl Strip for AhTransport {
    fn strip(_: &InboundSa, job: &mut Job) -> Result<Carried, DropReason> {
        unmask(job, Direction::Open)?;
        let datagram = job.buffer.bytes();
        let place = TransportPlace::of_received(datagram, protocol::AH).map_err(reason_of_place)?;
        let ah = AhHeader::parse(&datagram[place.at..]).map_err(|_| DropReason::AhMalformed)?;
        if ah.next_header == protocol::NO_NEXT_HEADER {
            return Err(DropReason::DummyPacket);
        }
        let total = place.total_bytes - ah.header_bytes;
        job.buffer.bytes_mut().copy_within(..place.at, ah.header_bytes);
        job.buffer.narrow(packet_offset(ah.header_bytes), packet_offset(total));
        let packet = job.buffer.bytes_mut();
        place.rewrite(packet, ah.next_header, total).map_err(|_| DropReason::InnerMalformed)?;
        Ok(Carried { next_header: place.version.protocol(), at: 0, outer_class: None })
    }
}

/// Whether a packet that grows by `grown` bytes still has a length, and its buffer the room: `before` it, and
/// the ICV after it.
fn has_room(packet: &Buffer, grown: usize, before: usize, sa: &OutboundSa) -> Result<(), DropReason> {
    let fits = packet.len() + grown <= usize::from(u16::MAX);
    let has_room = packet.headroom() >= before && packet.tailroom() >= usize::from(sa.layout.icv_bytes);
    if fits && has_room { Ok(()) } else { Err(DropReason::NoRoom) }
}

/// The header for a packet that carries `next_header`.
fn header(sa: &OutboundSa, version: Version, next_header: u8, sequence: u64) -> AhHeader {
    let header_bytes = ah_bytes(sa.layout.ah_field_bytes(), version);
    AhHeader { next_header, header_bytes, spi: sa.spi, sequence: low_32(sequence) }
}

/// Writes IP header and AH before a packet.
fn surround(
    sa: &OutboundSa,
    packet: &mut Buffer,
    inner: &IpHeader,
    sequence: u64,
    identifications: &mut Identifications,
) -> Result<(), DropReason> {
    let outer = sa.template.as_ref().ok_or(DropReason::PeerUnknown)?;
    packet.truncate(inner.total_bytes);
    let ah = header(sa, outer.version(), inner.version.protocol(), sequence);
    packet.prepend(outer.bytes() + ah.header_bytes).map_err(|_| DropReason::NoRoom)?;
    let (total, class) = (packet.len(), inner.traffic_class);
    let bytes = packet.bytes_mut();
    let identification = outer.next_identification(identifications);
    outer.write(bytes, total, class, identification).map_err(|_| DropReason::NoRoom)?;
    ah.write(&mut bytes[outer.bytes()..]).map_err(|_| DropReason::NoRoom)?;
    if sa.headers_vary {
        let (front, packet) = bytes.split_at_mut(outer.bytes() + ah.header_bytes);
        outer_fields::complete(outer, front, packet, None);
    }
    Ok(())
}

/// Writes AH between a packet's own headers and what it carries.
fn insert(
    sa: &OutboundSa,
    packet: &mut Buffer,
    sequence: u64,
    identifications: &mut Identifications,
) -> Result<(), DropReason> {
    let place = TransportPlace::to_insert(packet.bytes()).map_err(reason_of_place)?;
    packet.truncate(place.total_bytes);
    let ah = header(sa, place.version, place.next_header, sequence);
    packet.prepend(ah.header_bytes).map_err(|_| DropReason::NoRoom)?;
    let total = packet.len();
    let bytes = packet.bytes_mut();
    bytes.copy_within(ah.header_bytes..ah.header_bytes + place.at, 0);
    ah.write(&mut bytes[place.at..]).map_err(|_| DropReason::NoRoom)?;
    place.rewrite(bytes, protocol::AH, total).map_err(|_| DropReason::NoRoom)?;
    let outer = sa.template.as_ref().filter(|_| place.version == Version::V4);
    if let Some(outer) = outer {
        identify(bytes, || outer.next_identification(identifications));
    }
    Ok(())
}

/// Gives an IPv4 packet an Identification if it has none: the ICV covers it, and the kernel would fill in one
/// in place of 0 when it sends the datagram (raw(7)). One that has none is no fragment and will be none (RFC
/// 6864 4.1), or its sender leaves that to the kernel.
fn identify(packet: &mut [u8], next: impl FnOnce() -> u16) {
    let Some(header) = packet.first_chunk_mut::<IPV4_HEADER_BYTES>() else { return };
    if header[4..6] == [0, 0] {
        let new = next().to_be_bytes();
        let checksum = Checksum::from_bytes([header[10], header[11]]).update(&[0, 0], &new);
        header[10..12].copy_from_slice(&checksum.to_bytes());
        header[4..6].copy_from_slice(&new);
    }
}

/// The job that makes the ICV of a datagram that has its AH.
fn seal_job(
    sa: &OutboundSa,
    sa_ref: SaRef,
    mut datagram: Buffer,
    sequence: u64,
) -> Result<Job, (Buffer, DropReason)> {
    let iv = iv_block(sequence ^ sa.iv_mask);
    match mask_datagram(&mut datagram, sa.layout, Some(&iv)) {
        Ok(masked) => Ok(Job {
            sequence,
            auth_start: masked.auth_start,
            text_start: masked.text_start,
            text_bytes: masked.text_bytes,
            esn: sa.esn,
            then: sa.then | if sa.layout.iv_bytes > 0 { then::UNMASK_WITH_IV } else { then::UNMASK },
            ..Job::new(datagram, Direction::Seal, sa_ref.bits())
        }),
        Err(reason) => Err((datagram, reason)),
    }
}

/// The ranges of a masked datagram.
pub(crate) struct Masked {
    pub(crate) auth_start: u32,
    pub(crate) text_start: u32,
    pub(crate) text_bytes: u32,
}

/// Brings a datagram with AH into the form that engines take; the module says which. Its IV is the end of
/// `iv`, or the one that was received. Where it cannot be, the datagram is unchanged.
pub(crate) fn mask_datagram(
    datagram: &mut Buffer,
    layout: SuiteLayout,
    iv: Option<&[u8; MAX_IV_BYTES]>,
) -> Result<Masked, DropReason> {
    let (field, icv_bytes) = (layout.ah_field_bytes(), usize::from(layout.icv_bytes));
    let front = masked_bytes(datagram.bytes(), field).map_err(reason_of)?;
    let total = datagram.len();
    if datagram.headroom() < front || datagram.tailroom() < icv_bytes {
        return Err(DropReason::NoRoom);
    }
    datagram.prepend(front).map_err(|_| DropReason::NoRoom)?;
    datagram.append(icv_bytes).map_err(|_| DropReason::NoRoom)?;
    let bytes = datagram.bytes_mut();
    bytes.copy_within(front..2 * front, 0);
    bytes.copy_within(front - icv_bytes..front, front + total);
    let covered = mask(&mut bytes[front..front + total], field).map_err(reason_of)?;
    let iv_bytes = usize::from(layout.iv_bytes);
    match iv {
        Some(iv) => bytes[2 * front - iv_bytes..2 * front].copy_from_slice(&iv[iv.len() - iv_bytes..]),
        None => bytes.copy_within(front - field..front - icv_bytes, 2 * front - iv_bytes),
    }
    Ok(Masked {
        auth_start: packet_offset(front + covered.start),
        text_start: packet_offset(2 * front),
        text_bytes: packet_offset(total - front),
    })
}

/// Restores the datagram of a job that [`mask_datagram`] has prepared, with the ICV that the engine made, or
/// that was received.
pub(crate) fn unmask(job: &mut Job, direction: Direction) -> Result<(), DropReason> {
    let (front, text) = (job.text_start as usize / 2, job.text_bytes as usize);
    let has_iv = job.then & then::UNMASK_WITH_IV == then::UNMASK_WITH_IV;
    let iv_bytes = if has_iv { GMAC_IV_BYTES } else { 0 };
    let bytes = job.buffer.bytes_mut();
    let end = 2 * front + text;
    // Both hold unless an engine has changed the job.
    let icv_bytes = bytes.len().checked_sub(end).filter(|icv| icv + iv_bytes <= front);
    let icv_bytes = icv_bytes.ok_or(DropReason::AhMalformed)?;
    if direction == Direction::Seal {
        bytes.copy_within(2 * front - iv_bytes..2 * front, front - icv_bytes - iv_bytes);
        bytes.copy_within(end..end + icv_bytes, front - icv_bytes);
    }
    bytes.copy_within(..front, front);
    job.buffer.narrow(packet_offset(front), packet_offset(front + text));
    Ok(())
}

/// Why AH does not cover a datagram.
fn reason_of(error: NotCovered) -> DropReason {
    match error {
        NotCovered::Malformed(error) => crate::parsed::reason_of(error),
        NotCovered::Fragment => DropReason::TransportFragment,
        NotCovered::NoAh | NotCovered::IcvLength | NotCovered::RoutingHeader(_) => DropReason::AhMalformed,
    }
}

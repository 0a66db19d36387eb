//! ESP in transport mode: header and IV between a packet's own headers and what it carries, the trailer after
//! it (RFC 4303 3.1.1). In UDP the UDP header comes before ESP (RFC 3948 2.1).
//!
//! ```text
//!   before   | IP, extensions | TCP, …                      |
//!   after    | IP, extensions | (UDP) | ESP | IV | TCP, … | padding, length, next header | ICV |
//! ```
//!
//! The packet's headers move to make room: they are shorter than what follows. Only whole packets are
//! carried (RFC 4303 3.3.4).

use super::{Carried, Frame, MAX_IV_BYTES, Strip, packet_offset};
use crate::fragments::Identifications;
use crate::sa::{InboundSa, OutboundSa, iv_block, low_32};
use crate::slots::SaRef;
use testudo_crypto::{Direction, Job, Trailer, Unwritten};
use testudo_packet::{Buffer, DropReason};
use testudo_wire::esp::{ESP_HEADER_BYTES, ESP_TRAILER_BYTES, EspTrailer};
use testudo_wire::ip::{IpHeader, Version};
use testudo_wire::nat::ChecksumFixup;
use testudo_wire::protocol;
use testudo_wire::transport::{NoPlace, TransportPlace};
use testudo_wire::udp::{UDP_HEADER_BYTES, UdpHeader};

/// ESP in transport mode.
pub(crate) struct EspTransport;

impl Frame for EspTransport {
    fn check(sa: &OutboundSa, packet: &Buffer) -> Result<(), DropReason> {
        let place = TransportPlace::to_insert(packet.bytes()).map_err(reason_of)?;
        let before = UDP_HEADER_BYTES + ESP_HEADER_BYTES + MAX_IV_BYTES;
        let behind = usize::from(sa.layout.alignment) + ESP_TRAILER_BYTES + usize::from(sa.layout.icv_bytes);
        let is_ours = sa.template.as_ref().is_some_and(|t| t.goes_between(packet.bytes()));
        match place.total_bytes + before + behind {
            _ if !is_ours => Err(DropReason::NotBetweenHosts),
            total if total > usize::from(u16::MAX) => Err(DropReason::NoRoom),
            _ if packet.headroom() < before || packet.tailroom() < behind => Err(DropReason::NoRoom),
            _ => Ok(()),
        }
    }

    fn frame(
        sa: &OutboundSa,
        sa_ref: SaRef,
        mut packet: Buffer,
        _: &IpHeader,
        sequence: u64,
        _: &mut Identifications,
    ) -> Result<Job, (Buffer, DropReason)> {
        match surround(sa, &mut packet, sequence) {
            Ok(job) => Ok(Job { sequence, esn: sa.esn, then: sa.then, ..job.of(packet, sa_ref) }),
            Err(reason) => Err((packet, reason)),
        }
    }
}

impl Strip for EspTransport {
    fn strip(sa: &InboundSa, job: &mut Job) -> Result<Carried, DropReason> {
        let (start, len) = (job.text_start as usize, job.text_bytes as usize);
        let datagram = job.buffer.bytes();
        let text = datagram.get(start..start + len).ok_or(DropReason::BadPadding)?;
        let trailer = EspTrailer::parse(text).map_err(|_| DropReason::BadPadding)?;
        if trailer.next_header == protocol::NO_NEXT_HEADER {
            return Err(DropReason::DummyPacket);
        }
        let in_udp = sa.local_endpoint.is_udp();
        let number = if in_udp { protocol::UDP } else { protocol::ESP };
        let place = TransportPlace::of_received(datagram, number).map_err(reason_of)?;
        let moved = start.checked_sub(place.at).ok_or(DropReason::EspMalformed)?;
        let total = place.at + trailer.payload_bytes;
        job.buffer.bytes_mut().copy_within(..place.at, moved);
        job.buffer.narrow(packet_offset(moved), packet_offset(total));
        let packet = job.buffer.bytes_mut();
        place.rewrite(packet, trailer.next_header, total).map_err(|_| DropReason::InnerMalformed)?;
        if in_udp && let Ok(header) = IpHeader::parse(packet) {
            // A NAT has changed the address that the checksum was made with, which nobody has told us (RFC
            // 3948 3.1.2); the ICV has proven the payload.
            ChecksumFixup::Recompute.apply(&header, packet);
        }
        Ok(Carried { next_header: place.version.protocol(), at: 0, outer_class: None })
    }
}

/// Where a framed packet's text is.
struct Framed {
    auth_start: usize,
    text_start: usize,
    text_bytes: usize,
    unwritten: Option<Trailer>,
}

impl Framed {
    fn of(self, packet: Buffer, sa: SaRef) -> Job {
        Job {
            auth_start: packet_offset(self.auth_start),
            text_start: packet_offset(self.text_start),
            text_bytes: packet_offset(self.text_bytes),
            unwritten: self.unwritten.map_or(Unwritten::NOTHING, Unwritten::from),
            ..Job::new(packet, Direction::Seal, sa.bits())
        }
    }
}

/// Writes headers, IV and trailer around the payload of a packet, as far as its SA does not leave them to an
/// engine. A packet that is not carried may have been changed.
fn surround(sa: &OutboundSa, packet: &mut Buffer, sequence: u64) -> Result<Framed, DropReason> {
    let no_room = |_| DropReason::NoRoom;
    let place = TransportPlace::to_insert(packet.bytes()).map_err(reason_of)?;
    packet.truncate(place.total_bytes);
    let udp = sa.template.as_ref().ok_or(DropReason::PeerUnknown)?.udp_ports();
    let udp_bytes = if udp.is_some() { UDP_HEADER_BYTES } else { 0 };
    let (iv_bytes, icv_bytes) = (usize::from(sa.layout.iv_bytes), usize::from(sa.layout.icv_bytes));
    let grown = udp_bytes + ESP_HEADER_BYTES + iv_bytes;
    let payload_bytes = place.total_bytes - place.at;
    let alignment = usize::from(sa.layout.alignment).max(1);
    let text_bytes = (payload_bytes + ESP_TRAILER_BYTES).next_multiple_of(alignment);
    let padding = text_bytes - payload_bytes - ESP_TRAILER_BYTES;
    let behind = packet.append(text_bytes - payload_bytes + icv_bytes).map_err(no_room)?;
    let trailer = Trailer::new(u8::try_from(padding).map_err(|_| DropReason::NoRoom)?, place.next_header);
    let unwritten = sa.leaves_frames.then_some(trailer);
    if unwritten.is_none() {
        // The default padding (RFC 4303 2.4): 1, 2, 3, …
        behind[..padding].iter_mut().zip(1..).for_each(|(byte, n)| *byte = n);
        behind[padding] = trailer.padding();
        behind[padding + 1] = trailer.next_header();
    }
    packet.prepend(grown).map_err(no_room)?;
    let total = packet.len();
    let bytes = packet.bytes_mut();
    bytes.copy_within(grown..grown + place.at, 0);
    let esp_at = place.at + udp_bytes;
    if let Some((source_port, destination_port)) = udp {
        let udp = UdpHeader { source_port, destination_port, total_bytes: total - place.at };
        udp.write(&mut bytes[place.at..]).map_err(|_| DropReason::NoRoom)?;
    }
    let text_start = esp_at + ESP_HEADER_BYTES + iv_bytes;
    if unwritten.is_none() {
        bytes[esp_at..esp_at + 4].copy_from_slice(&sa.spi.to_be_bytes());
        bytes[esp_at + 4..esp_at + ESP_HEADER_BYTES].copy_from_slice(&low_32(sequence).to_be_bytes());
        let block = iv_block(sequence ^ sa.iv_mask);
        bytes[text_start - iv_bytes..text_start].copy_from_slice(&block[block.len() - iv_bytes..]);
    }
    let protocol = if udp.is_some() { protocol::UDP } else { protocol::ESP };
    place.rewrite(bytes, protocol, total).map_err(|_| DropReason::NoRoom)?;
    Ok(Framed { auth_start: esp_at, text_start, text_bytes, unwritten })
}

/// Why transport mode does not carry a packet.
pub(super) fn reason_of(error: NoPlace) -> DropReason {
    match error {
        NoPlace::Malformed(error) => crate::parsed::reason_of(error),
        NoPlace::Fragment => DropReason::TransportFragment,
        NoPlace::OtherProtocol => DropReason::EspMalformed,
    }
}

/// Bytes of the longest packet that fits a path in transport mode. What is before the payload has any length
/// that is a multiple of 4, so that alignment may cost as much as it can.
pub(crate) fn longest_packet(path_mtu: usize, udp: usize, iv: usize, icv: usize, alignment: usize) -> usize {
    let fixed = udp + ESP_HEADER_BYTES + iv + icv;
    let fits = |headers: usize| {
        let text = path_mtu.saturating_sub(fixed + headers) / alignment * alignment;
        (headers + text).saturating_sub(ESP_TRAILER_BYTES)
    };
    let least = Version::V4.header_bytes();
    (least..least + alignment.max(4)).step_by(4).map(fits).min().unwrap_or(0)
}

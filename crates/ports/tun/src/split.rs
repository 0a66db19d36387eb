//! Cutting super-frames into packets, and finishing checksums: pure functions on bytes.

use crate::payload;
use crate::vnet::{Gso, NEEDS_CHECKSUM, VnetHeader};
use std::ops::Range;
use testudo_packet::DropReason;
use testudo_wire::checksum::Sum;
use testudo_wire::ip::{IPV4_HEADER_BYTES, IPV6_HEADER_BYTES};
use testudo_wire::tcp::{TcpHeader, flags};
use testudo_wire::{protocol, udp::UDP_HEADER_BYTES};

/// The longest headers (IP and transport, with options and extensions) that a super-frame may have.
pub const MAX_HEADER_BYTES: usize = 256;
/// Offset of the checksum in a TCP header.
pub(crate) const TCP_CHECKSUM_AT: usize = 16;
/// Offset of the checksum in a UDP header.
pub(crate) const UDP_CHECKSUM_AT: usize = 6;

/// A checked super-frame: its headers, and where its payload is to be cut.
#[derive(Debug, Clone)]
pub struct SuperFrame {
    header: [u8; MAX_HEADER_BYTES],
    header_bytes: usize,
    transport_at: usize,
    gso: Gso,
    gso_size: usize,
    payload_bytes: usize,
}

impl SuperFrame {
    /// Reads the headers of a frame of `frame_bytes`; `head` holds its first bytes in one piece.
    ///
    /// # Errors
    /// Why the frame must be dropped: the headers contradict each other, are truncated, or are of a kind that
    /// this port did not negotiate. A `head` that ends within the headers is reported as
    /// [`DropReason::Truncated`].
    pub fn parse(vnet: &VnetHeader, head: &[u8], frame_bytes: usize) -> Result<Self, DropReason> {
        let gso = vnet.gso().ok().flatten().ok_or(DropReason::BadHeader)?;
        let (transport_at, transport) = locate_transport(head, frame_bytes)?;
        let is_v6 = head[0] >> 4 == 6;
        let transport_bytes = match (gso, transport, is_v6) {
            (Gso::TcpV4, protocol::TCP, false) | (Gso::TcpV6, protocol::TCP, true) => {
                let tcp = TcpHeader::parse(&head[transport_at..]);
                tcp.map_err(|_| DropReason::BadHeader)?.header_bytes
            }
            (Gso::Udp, protocol::UDP, _) => UDP_HEADER_BYTES,
            _ => return Err(DropReason::BadHeader),
        };
        let header_bytes = transport_at + transport_bytes;
        let source = head.get(..header_bytes).ok_or(DropReason::Truncated)?;
        let mut header = [0; MAX_HEADER_BYTES];
        header.get_mut(..header_bytes).ok_or(DropReason::BadHeader)?.copy_from_slice(source);
        let payload_bytes = frame_bytes - header_bytes;
        let gso_size = usize::from(vnet.gso_size);
        if gso_size == 0 || payload_bytes == 0 {
            return Err(DropReason::BadHeader);
        }
        Ok(Self { header, header_bytes, transport_at, gso, gso_size, payload_bytes })
    }

    /// Bytes of headers before each payload.
    #[must_use]
    pub fn header_bytes(&self) -> usize {
        self.header_bytes
    }

    /// Payload bytes of each packet but the last.
    #[must_use]
    pub fn gso_size(&self) -> usize {
        self.gso_size
    }

    /// The number of packets in it: at least one.
    #[must_use]
    pub fn segments(&self) -> usize {
        self.payload_bytes.div_ceil(self.gso_size)
    }

    /// The bytes of the super-frame's payload that packet `index` carries; an empty range after the last.
    #[must_use]
    pub fn payload_range(&self, index: usize) -> Range<usize> {
        let start = (index * self.gso_size).min(self.payload_bytes);
        start..(start + self.gso_size).min(self.payload_bytes)
    }

    /// Writes the headers of packet `index` before its payload, which is already in `packet` after
    /// [`header_bytes`](Self::header_bytes) of room, and completes its checksums. A `packet` of another
    /// length than header and payload of that index stays unchanged.
    pub fn write_headers(&self, index: usize, packet: &mut [u8]) {
        if packet.len() != self.header_bytes + self.payload_range(index).len() {
            return;
        }
        packet[..self.header_bytes].copy_from_slice(&self.header[..self.header_bytes]);
        self.write_ip(index, packet);
        match self.gso {
            Gso::TcpV4 | Gso::TcpV6 => self.write_tcp(index, packet),
            Gso::Udp => self.write_udp(packet),
        }
    }

    fn is_v6(&self) -> bool {
        self.header[0] >> 4 == 6
    }

    fn write_ip(&self, index: usize, packet: &mut [u8]) {
        if self.is_v6() {
            let length = narrow(packet.len() - IPV6_HEADER_BYTES);
            packet[4..6].copy_from_slice(&length.to_be_bytes());
            return;
        }
        let length = narrow(packet.len());
        let first_id = u16::from_be_bytes([self.header[4], self.header[5]]);
        packet[2..4].copy_from_slice(&length.to_be_bytes());
        packet[4..6].copy_from_slice(&first_id.wrapping_add(narrow(index)).to_be_bytes());
        write_ipv4_checksum(&mut packet[..self.transport_at]);
    }

    fn write_tcp(&self, index: usize, packet: &mut [u8]) {
        let header = &self.header[self.transport_at..];
        let first = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
        let offset = u32::try_from(index * self.gso_size).unwrap_or(0); // below 64 KiB
        let mut cleared = 0;
        if index > 0 {
            cleared |= flags::CWR;
        }
        if index + 1 < self.segments() {
            cleared |= flags::FIN | flags::PSH;
        }
        let tcp = &mut packet[self.transport_at..];
        tcp[4..8].copy_from_slice(&first.wrapping_add(offset).to_be_bytes());
        tcp[13] &= !cleared;
        tcp[TCP_CHECKSUM_AT..TCP_CHECKSUM_AT + 2].fill(0);
        let sum = transport_sum(packet, self.transport_at, protocol::TCP).finish().to_bytes();
        packet[self.transport_at + TCP_CHECKSUM_AT..][..2].copy_from_slice(&sum);
    }

    fn write_udp(&self, packet: &mut [u8]) {
        let length = narrow(packet.len() - self.transport_at);
        let udp = &mut packet[self.transport_at..];
        udp[4..6].copy_from_slice(&length.to_be_bytes());
        udp[UDP_CHECKSUM_AT..UDP_CHECKSUM_AT + 2].fill(0);
        let sum = transport_sum(packet, self.transport_at, protocol::UDP).finish().to_bytes();
        packet[self.transport_at + UDP_CHECKSUM_AT..][..2].copy_from_slice(&never_zero(sum));
    }
}

/// Completes the checksum of a single packet that came with [`NEEDS_CHECKSUM`]; its field holds the
/// pseudo-header's sum.
///
/// # Errors
/// [`DropReason::BadHeader`] if the field lies outside of the packet.
pub fn complete_checksum(vnet: &VnetHeader, packet: &mut [u8]) -> Result<(), DropReason> {
    if vnet.flags & NEEDS_CHECKSUM == 0 {
        return Ok(());
    }
    let start = usize::from(vnet.checksum_start);
    let field = usize::from(vnet.checksum_offset);
    let summed = packet.get_mut(start..).filter(|s| s.len() >= field + 2).ok_or(DropReason::BadHeader)?;
    let sum = testudo_wire::checksum::of(summed).to_bytes();
    summed[field..field + 2].copy_from_slice(&never_zero(sum));
    Ok(())
}

/// Finds the transport header and its protocol. The frame's length fields must agree with `frame_bytes`.
fn locate_transport(head: &[u8], frame_bytes: usize) -> Result<(usize, u8), DropReason> {
    match head.first().map(|b| b >> 4) {
        Some(4) => {
            let h = head.first_chunk::<IPV4_HEADER_BYTES>().ok_or(DropReason::Truncated)?;
            let header_bytes = usize::from(h[0] & 0x0F) * 4;
            let is_fragment = u16::from_be_bytes([h[6], h[7]]) & 0x3FFF != 0;
            if header_bytes < IPV4_HEADER_BYTES || is_fragment {
                return Err(DropReason::BadHeader);
            }
            check_length(usize::from(u16::from_be_bytes([h[2], h[3]])), frame_bytes)?;
            within(head, header_bytes)?;
            Ok((header_bytes, h[9]))
        }
        Some(6) => {
            let h = head.first_chunk::<IPV6_HEADER_BYTES>().ok_or(DropReason::Truncated)?;
            let length = usize::from(u16::from_be_bytes([h[4], h[5]]));
            check_length(IPV6_HEADER_BYTES + length, frame_bytes)?;
            walk_options(head, h[6])
        }
        Some(_) => Err(DropReason::NotIp),
        None => Err(DropReason::Truncated),
    }
}

/// Steps over hop-by-hop and destination options. Other extensions do not occur in super-frames: a routing
/// header would change the pseudo-header, and Linux segments nothing after a fragment header.
fn walk_options(head: &[u8], first: u8) -> Result<(usize, u8), DropReason> {
    let (mut at, mut next) = (IPV6_HEADER_BYTES, first);
    while next == protocol::HOP_BY_HOP || next == protocol::DESTINATION_OPTIONS {
        let extension = head.get(at..at + 2).ok_or(DropReason::Truncated)?;
        next = extension[0];
        at += 8 * (1 + usize::from(extension[1]));
        if at > MAX_HEADER_BYTES {
            return Err(DropReason::BadHeader);
        }
    }
    within(head, at)?;
    Ok((at, next))
}

fn check_length(promised: usize, found: usize) -> Result<(), DropReason> {
    match promised.cmp(&found) {
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => Err(DropReason::Truncated),
        std::cmp::Ordering::Less => Err(DropReason::BadHeader),
    }
}

fn within(head: &[u8], at: usize) -> Result<(), DropReason> {
    if at < head.len() { Ok(()) } else { Err(DropReason::Truncated) }
}

/// The sum of pseudo-header, transport header and payload; the addresses are at their offset in the fixed IP
/// header.
pub(crate) fn transport_sum(packet: &[u8], transport_at: usize, protocol: u8) -> Sum {
    let transport = &packet[transport_at..];
    payload::add(pseudo_header_sum(packet, protocol, transport.len()), transport)
}

/// The sum of the pseudo-header (RFC 9293 3.1, RFC 8200 8.1).
pub(crate) fn pseudo_header_sum(packet: &[u8], protocol: u8, transport_bytes: usize) -> Sum {
    let addresses = if packet[0] >> 4 == 4 { &packet[12..20] } else { &packet[8..40] };
    let length = u32::try_from(transport_bytes).unwrap_or(u32::MAX);
    Sum::default().bytes(addresses).bytes(&[0, 0, 0, protocol]).bytes(&length.to_be_bytes())
}

/// Writes the checksum of an IPv4 header that is all of `header`.
pub(crate) fn write_ipv4_checksum(header: &mut [u8]) {
    header[10..12].fill(0);
    let sum = testudo_wire::checksum::of(header).to_bytes();
    header[10..12].copy_from_slice(&sum);
}

/// RFC 768: a computed checksum of zero is sent as all ones, because zero means that there is none.
fn never_zero(sum: [u8; 2]) -> [u8; 2] {
    if sum == [0, 0] { [0xFF, 0xFF] } else { sum }
}

/// Lengths of IP packets fit 16 bits: [`SuperFrame::parse`] compared the frame's length with its length
/// field.
fn narrow(n: usize) -> u16 {
    u16::try_from(n).unwrap_or(u16::MAX)
}

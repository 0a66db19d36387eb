//! Which packets of a batch may leave as one super-frame, and that super-frame's headers: pure functions on
//! bytes.
//!
//! The rules are those of Linux' GRO, so that cutting the super-frame again gives the same packets: one flow,
//! contiguous sequence numbers, equal payload sizes except for a shorter last one, and headers that differ
//! only in length, identification, sequence number, checksum and the last one's PSH. Checksums are verified
//! before joining, because the super-frame vouches for them.

use crate::split::{TCP_CHECKSUM_AT, UDP_CHECKSUM_AT, pseudo_header_sum, transport_sum, write_ipv4_checksum};
use crate::vnet::{Gso, NEEDS_CHECKSUM, VnetHeader};
use arrayvec::ArrayVec;
use testudo_packet::BATCH_SIZE;
use testudo_wire::ip::{IPV4_HEADER_BYTES, IPV6_HEADER_BYTES};
use testudo_wire::protocol;
use testudo_wire::tcp::{TcpHeader, flags};
use testudo_wire::udp::UDP_HEADER_BYTES;

/// The longest super-frame: its length field has 16 bits.
const MAX_FRAME_BYTES: usize = 65_535;
/// Flows whose packets may be interleaved and still be joined.
const OPEN_GROUPS: usize = 8;
/// IPv6 and the longest TCP header.
const MAX_HEADER_BYTES: usize = IPV6_HEADER_BYTES + 60;

/// The groups of a batch.
pub type Groups = ArrayVec<Group, BATCH_SIZE>;

/// Packets of a batch that leave together, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Indices into the batch.
    pub members: ArrayVec<u8, BATCH_SIZE>,
    shape: Option<Shape>,
    /// Sum of the members' payloads.
    payload_bytes: usize,
    next_sequence: u32,
    open: bool,
    verified: bool,
}

/// The properties that packets need to share if they are to be joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    gso: Gso,
    transport_at: usize,
    header_bytes: usize,
    payload_bytes: usize,
    sequence: u32,
    push: bool,
}

/// The headers of a super-frame.
#[derive(Debug, Clone)]
pub struct JoinedHeader {
    /// The vnet header before the frame.
    pub vnet: VnetHeader,
    bytes: [u8; MAX_HEADER_BYTES],
    header_bytes: usize,
}

impl JoinedHeader {
    /// IP and transport header, for all the payloads that follow.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.header_bytes]
    }
}

/// Distributes the packets of a batch over groups, to be sent in the order of the list; every packet is in
/// exactly one. Packets of one flow keep their order. `udp` says whether UDP may be joined (USO). Packets
/// after the first 64 are ignored. The list is cleared and filled in place, not returned: it has thousands of
/// bytes.
pub fn plan<'a>(packets: impl Iterator<Item = &'a [u8]>, udp: bool, groups: &mut Groups) {
    groups.clear();
    let mut all: ArrayVec<&[u8], BATCH_SIZE> = ArrayVec::new();
    all.extend(packets.take(BATCH_SIZE));
    let mut oldest_open = 0;
    for (index, packet) in all.iter().enumerate() {
        oldest_open = oldest_open.max(groups.len().saturating_sub(OPEN_GROUPS));
        let shape = Shape::of(packet, udp);
        // Most packets follow one of their own flow; packets whose headers agree are of one flow.
        if let Some(shape) = shape
            && let Some(group) = groups.last_mut().filter(|group| group.open)
            && group.joins(packet, &shape, &all)
        {
            group.push(index, &shape);
            continue;
        }
        if !may_share_a_flow(packet, shape.as_ref()) {
            // It may belong to any flow (a fragment, say), and must not be overtaken.
            oldest_open = groups.len();
        }
        let same_flow = groups[oldest_open..].iter_mut().rev().find(|g| g.open && g.is_flow_of(packet, &all));
        if let Some(group) = same_flow {
            match shape {
                Some(shape) if group.joins(packet, &shape, &all) => {
                    group.push(index, &shape);
                    continue;
                }
                _ => group.open = false,
            }
        }
        groups.push(Group::new(index, shape));
    }
}

/// Whether the packet's first bytes tell its flow, so that only that flow must wait for it.
fn may_share_a_flow(packet: &[u8], shape: Option<&Shape>) -> bool {
    shape.is_some() || flow_of(packet).is_some()
}

/// Addresses and ports, at their offsets in a plain header.
fn flow_of(packet: &[u8]) -> Option<(&[u8], &[u8], u8)> {
    let (addresses, transport_at, transport) = match packet.first()? {
        0x45 => {
            let h = packet.first_chunk::<IPV4_HEADER_BYTES>()?;
            if u16::from_be_bytes([h[6], h[7]]) & 0x3FFF != 0 {
                return None;
            }
            (&packet[12..20], IPV4_HEADER_BYTES, h[9])
        }
        b if b >> 4 == 6 => {
            let h = packet.first_chunk::<IPV6_HEADER_BYTES>()?;
            (&packet[8..40], IPV6_HEADER_BYTES, h[6])
        }
        _ => return None,
    };
    if transport != protocol::TCP && transport != protocol::UDP {
        return None;
    }
    Some((addresses, packet.get(transport_at..transport_at + 4)?, transport))
}

impl Shape {
    /// The packet's shape; `None` if it cannot be joined.
    fn of(packet: &[u8], udp: bool) -> Option<Self> {
        let (addresses, _, transport) = flow_of(packet)?;
        let is_v4 = addresses.len() == 8;
        let length = if is_v4 {
            usize::from(u16::from_be_bytes([packet[2], packet[3]]))
        } else {
            IPV6_HEADER_BYTES + usize::from(u16::from_be_bytes([packet[4], packet[5]]))
        };
        if length != packet.len() {
            return None;
        }
        let transport_at = if is_v4 { IPV4_HEADER_BYTES } else { IPV6_HEADER_BYTES };
        match transport {
            protocol::TCP => Self::of_tcp(packet, transport_at),
            protocol::UDP if udp => Self::of_udp(packet, transport_at),
            _ => None,
        }
    }

    fn of_tcp(packet: &[u8], transport_at: usize) -> Option<Self> {
        let tcp = TcpHeader::parse(&packet[transport_at..]).ok()?;
        let header_bytes = transport_at + tcp.header_bytes;
        let payload_bytes = packet.len() - header_bytes;
        let plain = tcp.flags & !(flags::PSH | flags::ECE) == flags::ACK;
        if !plain || payload_bytes == 0 {
            return None;
        }
        let gso = if transport_at == IPV4_HEADER_BYTES { Gso::TcpV4 } else { Gso::TcpV6 };
        let push = tcp.flags & flags::PSH != 0;
        Some(Self { gso, transport_at, header_bytes, payload_bytes, sequence: tcp.sequence, push })
    }

    fn of_udp(packet: &[u8], transport_at: usize) -> Option<Self> {
        let udp = packet.get(transport_at..transport_at + UDP_HEADER_BYTES)?;
        let header_bytes = transport_at + UDP_HEADER_BYTES;
        let payload_bytes = packet.len() - header_bytes;
        let length = usize::from(u16::from_be_bytes([udp[4], udp[5]]));
        let has_checksum = udp[UDP_CHECKSUM_AT..UDP_CHECKSUM_AT + 2] != [0, 0];
        if length != packet.len() - transport_at || !has_checksum || payload_bytes == 0 {
            return None;
        }
        Some(Self { gso: Gso::Udp, transport_at, header_bytes, payload_bytes, sequence: 0, push: false })
    }

    fn has_valid_checksum(&self, packet: &[u8]) -> bool {
        let transport = if self.gso == Gso::Udp { protocol::UDP } else { protocol::TCP };
        let ip_is_intact = self.transport_at == IPV6_HEADER_BYTES
            || testudo_wire::checksum::of(&packet[..IPV4_HEADER_BYTES]).is_intact();
        ip_is_intact && transport_sum(packet, self.transport_at, transport).finish().is_intact()
    }
}

impl Group {
    fn new(index: usize, shape: Option<Shape>) -> Self {
        let mut members = ArrayVec::new();
        members.push(u8::try_from(index).unwrap_or(u8::MAX)); // below 64
        Self {
            members,
            shape,
            payload_bytes: shape.map_or(0, |s| s.payload_bytes),
            next_sequence: shape.map_or(0, |s| next_sequence(&s)),
            open: shape.is_some_and(|s| !s.push),
            verified: false,
        }
    }

    fn push(&mut self, index: usize, shape: &Shape) {
        self.members.push(u8::try_from(index).unwrap_or(u8::MAX)); // below 64
        self.payload_bytes += shape.payload_bytes;
        self.next_sequence = next_sequence(shape);
        let is_short = self.shape.is_some_and(|own| shape.payload_bytes < own.payload_bytes);
        self.open = !shape.push && !is_short;
    }

    /// Whether another packet like its first could join.
    pub(crate) fn may_grow(&self) -> bool {
        let room = |own: &Shape| own.header_bytes + self.payload_bytes + own.payload_bytes <= MAX_FRAME_BYTES;
        self.open && self.shape.as_ref().is_some_and(room)
    }

    fn first<'a>(&self, all: &[&'a [u8]]) -> &'a [u8] {
        self.members.first().and_then(|&i| all.get(usize::from(i))).copied().unwrap_or_default()
    }

    fn is_flow_of(&self, packet: &[u8], all: &[&[u8]]) -> bool {
        flow_of(packet).is_some_and(|flow| flow_of(self.first(all)) == Some(flow))
    }

    /// Whether `packet`, of the same flow, may be the next member. Remembers that the first one's checksum
    /// was verified.
    fn joins(&mut self, packet: &[u8], shape: &Shape, all: &[&[u8]]) -> bool {
        let Some(own) = self.shape else { return false };
        let first = self.first(all);
        let fits = own.gso == shape.gso
            && own.header_bytes == shape.header_bytes
            && shape.payload_bytes <= own.payload_bytes
            && (own.gso == Gso::Udp || shape.sequence == self.next_sequence)
            && own.header_bytes + self.payload_bytes + shape.payload_bytes <= MAX_FRAME_BYTES;
        if !fits || !headers_agree(&own, self.members.len(), first, packet) {
            return false;
        }
        self.verified = self.verified || own.has_valid_checksum(first);
        self.verified && shape.has_valid_checksum(packet)
    }

    /// The headers of the members' super-frame, whose first packet is `first` and last is `last`; `None` for
    /// a packet that leaves alone and unchanged.
    #[must_use]
    pub fn joined_header(&self, first: &[u8], last: &[u8]) -> Option<JoinedHeader> {
        let shape = self.shape.filter(|_| self.members.len() > 1)?;
        let mut bytes = [0; MAX_HEADER_BYTES];
        let header = bytes.get_mut(..shape.header_bytes)?;
        header.copy_from_slice(first.get(..shape.header_bytes)?);
        let frame_bytes = shape.header_bytes + self.payload_bytes;
        if shape.transport_at == IPV4_HEADER_BYTES {
            header[2..4].copy_from_slice(&narrow(frame_bytes).to_be_bytes());
            write_ipv4_checksum(&mut header[..IPV4_HEADER_BYTES]);
        } else {
            header[4..6].copy_from_slice(&narrow(frame_bytes - IPV6_HEADER_BYTES).to_be_bytes());
        }
        let transport_bytes = frame_bytes - shape.transport_at;
        let (transport, checksum_offset) = match shape.gso {
            Gso::Udp => (protocol::UDP, UDP_CHECKSUM_AT),
            Gso::TcpV4 | Gso::TcpV6 => (protocol::TCP, TCP_CHECKSUM_AT),
        };
        match shape.gso {
            Gso::Udp => {
                let length = narrow(transport_bytes).to_be_bytes();
                header[shape.transport_at + 4..][..2].copy_from_slice(&length);
            }
            Gso::TcpV4 | Gso::TcpV6 => {
                header[shape.transport_at + 13] |= last.get(shape.transport_at + 13)? & flags::PSH;
            }
        }
        let partial = pseudo_header_sum(header, transport, transport_bytes).finish().to_bytes();
        // The kernel continues this sum, so it is stored without the final complement.
        header[shape.transport_at + checksum_offset..][..2].copy_from_slice(&partial.map(|byte| !byte));
        let vnet = VnetHeader {
            flags: NEEDS_CHECKSUM,
            gso_type: shape.gso.code(),
            header_bytes: narrow(shape.header_bytes),
            gso_size: narrow(shape.payload_bytes),
            checksum_start: narrow(shape.transport_at),
            checksum_offset: narrow(checksum_offset),
        };
        Some(JoinedHeader { vnet, bytes, header_bytes: shape.header_bytes })
    }

    /// Bytes of headers that each member but the first omits.
    #[must_use]
    pub fn header_bytes(&self) -> usize {
        self.shape.map_or(0, |shape| shape.header_bytes)
    }
}

fn next_sequence(shape: &Shape) -> u32 {
    // Lossless: a payload is below 64 KiB.
    shape.sequence.wrapping_add(u32::try_from(shape.payload_bytes).unwrap_or(0))
}

/// Whether `packet`, as member number `position`, agrees with the header of `first` in all that cutting would
/// copy.
fn headers_agree(shape: &Shape, position: usize, first: &[u8], packet: &[u8]) -> bool {
    let same = |from: usize, to: usize| first[from..to] == packet[from..to];
    let ip_agrees = if shape.transport_at == IPV4_HEADER_BYTES {
        same(0, 2) && same(6, 10) && same(12, 20) && identifications_agree(position, first, packet)
    } else {
        same(0, 4) && same(6, 40)
    };
    let at = shape.transport_at;
    ip_agrees
        && match shape.gso {
            Gso::Udp => same(at, at + 4),
            Gso::TcpV4 | Gso::TcpV6 => {
                same(at, at + 4)
                    && same(at + 8, at + 13)
                    && (first[at + 13] ^ packet[at + 13]) & !flags::PSH == 0
                    && same(at + 14, at + TCP_CHECKSUM_AT)
                    && same(at + TCP_CHECKSUM_AT + 2, shape.header_bytes)
            }
        }
}

/// Identifications must count up as cutting makes them; with DF they mean nothing (RFC 6864 4.1) and may be
/// anything.
fn identifications_agree(position: usize, first: &[u8], packet: &[u8]) -> bool {
    let dont_fragment = first[6] & 0x40 != 0;
    let id = |p: &[u8]| u16::from_be_bytes([p[4], p[5]]);
    dont_fragment || id(packet) == id(first).wrapping_add(narrow(position))
}

/// Lengths of super-frames fit 16 bits: [`Group::joins`] keeps them below.
fn narrow(n: usize) -> u16 {
    u16::try_from(n).unwrap_or(u16::MAX)
}

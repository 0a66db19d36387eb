//! What a packet shows of itself to policy (RFC 4301 4.4.1.1).

use super::addresses::address_bits;
use std::net::IpAddr;
use testudo_wire::ip::{IpHeader, Version};
use testudo_wire::next_layer::{NextLayerFields, SELECTOR_BYTES};
use testudo_wire::plain::PlainHeader;
use testudo_wire::protocol;

/// The way of a packet through the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the protected to the unprotected side: the source is local.
    Outbound,
    /// From the unprotected to the protected side: the destination is local.
    Inbound,
}

/// The fields of a packet that selectors look at, from our side: `local` is the protected network's end in
/// both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    version: Version,
    direction: Direction,
    local: u128,
    remote: u128,
    /// The next layer protocol; `None` where the packet does not show it.
    protocol: Option<u8>,
    /// The first bytes of the next layer, if the packet shows them: few packets need them taken apart.
    first: Option<[u8; SELECTOR_BYTES]>,
    /// The packet has a protocol, ports, or a message type that it does not show: OPAQUE in RFC 4301 4.4.1.1.
    hides_fields: bool,
}

impl Flow {
    /// The flow of an outbound packet: its source is local.
    #[must_use]
    pub fn outbound(header: &IpHeader, packet: &[u8]) -> Self {
        let fields = header.next_layer_fields(packet);
        Self::showing(
            Direction::Outbound,
            header.source,
            header.destination,
            header.next_layer_protocol(),
            fields,
        )
    }

    /// The flow of an inbound packet: its destination is local.
    #[must_use]
    pub fn inbound(header: &IpHeader, packet: &[u8]) -> Self {
        let fields = header.next_layer_fields(packet);
        Self::showing(
            Direction::Inbound,
            header.destination,
            header.source,
            header.next_layer_protocol(),
            fields,
        )
    }

    /// The flow of a plain outbound packet.
    #[must_use]
    #[inline(always)]
    pub fn plain_outbound(header: &PlainHeader) -> Self {
        Self::plain(Direction::Outbound, header, header.source, header.destination)
    }

    /// The flow of a plain inbound packet.
    #[must_use]
    #[inline(always)]
    pub fn plain_inbound(header: &PlainHeader) -> Self {
        Self::plain(Direction::Inbound, header, header.destination, header.source)
    }

    #[inline(always)]
    fn plain(direction: Direction, header: &PlainHeader, local: u128, remote: u128) -> Self {
        let (version, protocol, first) = (header.version, Some(header.protocol), Some(header.first));
        // A plain packet shows all its fields.
        Self { version, direction, local, remote, protocol, first, hides_fields: false }
    }

    /// A flow of whole packets by its parts. `fields` are as in the packet, source before destination;
    /// without them, a protocol that has some hides them. Over IPv6, an unknown header hides all that
    /// follows.
    #[must_use]
    pub fn new(
        direction: Direction,
        local: IpAddr,
        remote: IpAddr,
        protocol: u8,
        fields: Option<NextLayerFields>,
    ) -> Self {
        let is_shown = local.is_ipv4() || !protocol::hides_what_follows(protocol);
        Self::showing(direction, local, remote, is_shown.then_some(protocol), fields)
    }

    /// The flow of fragments other than the first: over IPv4 they show their protocol, over IPv6 nothing but
    /// addresses (see [`IpHeader::next_layer_protocol`]).
    #[must_use]
    pub fn of_later_fragments(direction: Direction, local: IpAddr, remote: IpAddr, protocol: u8) -> Self {
        Self::showing(direction, local, remote, local.is_ipv4().then_some(protocol), None)
    }

    /// A flow is known only as far as a packet shows it. Fields go with a protocol that is shown.
    fn showing(
        direction: Direction,
        local: IpAddr,
        remote: IpAddr,
        protocol: Option<u8>,
        fields: Option<NextLayerFields>,
    ) -> Self {
        let first = fields.map(bytes_of).filter(|_| protocol.is_some_and(protocol::has_selector_fields));
        Self {
            version: Version::of(local),
            direction,
            local: address_bits(local),
            remote: address_bits(remote),
            protocol,
            first,
            hides_fields: first.is_none() && protocol.is_none_or(protocol::has_selector_fields),
        }
    }

    /// The IP version of both addresses.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// The way of its packets.
    #[must_use]
    #[inline]
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// Whether it has a protocol, ports, or a message type that are not visible.
    #[inline]
    pub(crate) fn hides_fields(&self) -> bool {
        self.hides_fields
    }

    /// The next layer protocol, if it is visible.
    #[inline]
    pub(super) fn protocol(&self) -> Option<u8> {
        self.protocol
    }

    /// Local and remote port, and whether it has such values and hides them. A message of ICMP or of the
    /// Mobility Header has one value, which is its sender's alone: it takes both places here, and
    /// [`Selector`](super::Selector) gives the other end no say.
    #[inline]
    pub(super) fn values(&self) -> (Option<(u16, u16)>, bool) {
        let fields = self.protocol.zip(self.first).and_then(|(p, first)| NextLayerFields::read(p, first));
        (fields.map(|fields| values(self.direction, fields)), self.hides_fields)
    }

    /// Local and remote port, and whether it has ports and hides them. A message has none.
    #[inline]
    pub(super) fn ports(&self) -> (Option<(u16, u16)>, bool) {
        if self.protocol.is_some_and(is_of_messages) { (None, false) } else { self.values() }
    }

    /// The address on the protected side, as a number.
    #[inline]
    pub(crate) fn local(&self) -> u128 {
        self.local
    }

    /// The address behind the peer, as a number.
    #[inline]
    pub(crate) fn remote(&self) -> u128 {
        self.remote
    }
}

/// Whether a protocol has one value, the type of a message, in place of two ports.
pub(super) const fn is_of_messages(number: u8) -> bool {
    matches!(number, protocol::ICMP | protocol::ICMPV6 | protocol::MOBILITY)
}

/// The first bytes of a packet with these fields.
fn bytes_of(fields: NextLayerFields) -> [u8; SELECTOR_BYTES] {
    match fields {
        NextLayerFields::Ports(source, destination) => {
            let ([a, b], [c, d]) = (source.to_be_bytes(), destination.to_be_bytes());
            [a, b, c, d]
        }
        NextLayerFields::Icmp(kind, code) => [kind, code, 0, 0],
        NextLayerFields::Mobility(kind) => [0, 0, kind, 0],
    }
}

/// The fields of a packet as selectors compare them.
#[inline]
fn values(direction: Direction, fields: NextLayerFields) -> (u16, u16) {
    match (fields, direction) {
        (NextLayerFields::Ports(source, destination), Direction::Outbound) => (source, destination),
        (NextLayerFields::Ports(source, destination), Direction::Inbound) => (destination, source),
        (message, _) => {
            let value = message.message().unwrap_or_default();
            (value, value)
        }
    }
}

//! The packets that a policy or an SA applies to (RFC 4301 4.4.1.1).
//!
//! A selector compares five fields. Where a packet does not show a field (a later fragment shows no ports),
//! three answers are possible: the selector matches whatever the field may be, it cannot match, or it depends
//! on what is hidden ([`Fit`]).
//!
//! ```text
//!                      field shown      hidden (fragment)   absent (GRE has no ports)
//!   any                matches          matches             matches
//!   a value or range   compared         may match           does not match
//!   opaque             does not match   matches             matches
//! ```

use super::addresses::{AddressRange, Prefix};
use super::flow::{Direction, Flow, is_of_messages};
use std::fmt;
use testudo_wire::ip::Version;

/// The next layer protocol that a selector asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// Every protocol, shown or not.
    Any,
    /// Packets that do not show their protocol, which only IPv6 has.
    Opaque,
    /// This one.
    Is(u8),
}

impl From<u8> for Protocol {
    fn from(number: u8) -> Self {
        Self::Is(number)
    }
}

impl Protocol {
    /// Whether it is matched by all that `other` is matched by.
    #[must_use]
    pub fn covers(self, other: Self) -> bool {
        self == Self::Any || self == other
    }

    /// Whether it has one value, the type of a message, in place of two ports.
    #[must_use]
    pub fn is_of_messages(self) -> bool {
        matches!(self, Self::Is(number) if is_of_messages(number))
    }

    #[inline(always)]
    fn fit(self, flow: &Flow) -> Fit {
        match (self, flow.protocol()) {
            (Self::Any, _) | (Self::Opaque, None) => Fit::Sure,
            (Self::Is(number), Some(shown)) if number == shown => Fit::Sure,
            (Self::Is(_), None) => Fit::Perhaps,
            (Self::Opaque | Self::Is(_), Some(_)) => Fit::No,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::Opaque => f.write_str("opaque"),
            Self::Is(number) => number.fmt(f),
        }
    }
}

/// A range of 16-bit values, both ends included: ports; for ICMP, type times 256 plus code; for the Mobility
/// Header, type times 256 (RFC 4301 4.4.1.1, written as in the traffic selectors of RFC 7296 3.13.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortRange {
    /// Lowest value.
    pub first: u16,
    /// Highest value.
    pub last: u16,
}

impl PortRange {
    /// Every value, and packets that show none.
    pub const ANY: PortRange = PortRange { first: 0, last: u16::MAX };

    /// Packets that show no value, because they are fragments other than the first, or their protocol has
    /// none.
    pub const OPAQUE: PortRange = PortRange { first: u16::MAX, last: 0 };

    /// One value.
    #[must_use]
    pub const fn one(value: u16) -> Self {
        Self { first: value, last: value }
    }

    /// ICMP messages from one type and code to another. RFC 4301 4.4.1.1: type t and code c match where
    /// (T-start*256) + C-start <= (t*256) + c <= (T-end*256) + C-end.
    #[must_use]
    pub const fn icmp(first: (u8, u8), last: (u8, u8)) -> Self {
        Self { first: u16::from_be_bytes([first.0, first.1]), last: u16::from_be_bytes([last.0, last.1]) }
    }

    /// Messages of the Mobility Header from one type to another.
    #[must_use]
    pub const fn mobility(first: u8, last: u8) -> Self {
        Self::icmp((first, 0), (last, u8::MAX))
    }

    /// Whether all that it matches is matched by this range, too.
    #[must_use]
    pub fn covers(&self, other: &PortRange) -> bool {
        match (*self, *other) {
            (Self::ANY, _) => true,
            (Self::OPAQUE, other) | (other, Self::OPAQUE) => *self == other && other == Self::OPAQUE,
            (ours, theirs) => ours.first <= theirs.first && theirs.last <= ours.last,
        }
    }

    /// The same in words, where it is about messages: `3/4` is type 3 and code 4, `8` is type 8 with every
    /// code.
    #[must_use]
    pub fn messages(self) -> impl fmt::Display {
        Messages(self)
    }

    /// Whether it names values, so that it depends on what a packet hides.
    pub(super) fn names_values(self) -> bool {
        self != Self::ANY && self != Self::OPAQUE
    }

    #[inline(always)]
    fn fit(self, value: Option<u16>, is_hidden: bool) -> Fit {
        match (self, value) {
            (Self::ANY, _) | (Self::OPAQUE, None) => Fit::Sure,
            (range, Some(value)) if range.first <= value && value <= range.last => Fit::Sure,
            (_, None) if is_hidden => Fit::Perhaps,
            _ => Fit::No,
        }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ANY => f.write_str("any"),
            Self::OPAQUE => f.write_str("opaque"),
            Self { first, last } if first == last => write!(f, "{first}"),
            Self { first, last } => write!(f, "{first}-{last}"),
        }
    }
}

/// Whether a selector matches a packet, as far as the packet shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fit {
    /// It does not, whatever is hidden.
    No,
    /// It depends on what is hidden.
    Perhaps,
    /// It does, whatever is hidden.
    Sure,
}

/// What a selector asks of the next layer, for packets of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct NextLayer {
    pub(super) protocol: Protocol,
    pub(super) local: PortRange,
    pub(super) remote: PortRange,
}

impl NextLayer {
    /// Whether it asks for nothing.
    pub(super) fn is_any(&self) -> bool {
        self.protocol == Protocol::Any && self.local == PortRange::ANY && self.remote == PortRange::ANY
    }

    /// Whether one of its fields is OPAQUE, which only packets match that do not show it.
    pub(super) fn names_opaque(&self) -> bool {
        self.protocol == Protocol::Opaque || [self.local, self.remote].contains(&PortRange::OPAQUE)
    }

    /// How many pairs of prefixes its values make.
    pub(super) fn count_prefixes(&self) -> usize {
        self.local.count_prefixes() * self.remote.count_prefixes()
    }

    /// The values of a flow that it compares, and whether the flow hides them. Ranges of a selector that
    /// names no protocol are for ports, which messages do not have.
    #[inline]
    pub(super) fn values_of(&self, flow: &Flow) -> (Option<(u16, u16)>, bool) {
        if matches!(self.protocol, Protocol::Is(_)) { flow.values() } else { flow.ports() }
    }

    #[inline]
    pub(super) fn fit(&self, flow: &Flow) -> Fit {
        let (values, is_hidden) = self.values_of(flow);
        let (local, remote) = values.unzip();
        self.protocol.fit(flow).min(self.local.fit(local, is_hidden)).min(self.remote.fit(remote, is_hidden))
    }
}

/// The packets that a policy or an SA applies to.
///
/// A message of ICMP or of the Mobility Header has its type at its sender's end: `local_ports` selects the
/// messages that we send, `remote_ports` those that we receive (RFC 4301 4.4.1.1: to send messages of a type
/// and not to receive them, the remote end's is OPAQUE).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Selector {
    /// Addresses on the protected side.
    pub local: AddressRange,
    /// Addresses behind the peer.
    pub remote: AddressRange,
    /// Next layer protocol.
    pub protocol: Protocol,
    /// Ports on the protected side, or messages sent from there.
    pub local_ports: PortRange,
    /// Ports behind the peer, or messages sent from there.
    pub remote_ports: PortRange,
}

/// Addresses of one version with common prefixes at both ends: what the SPD's index is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct PrefixPair {
    pub(super) version: Version,
    pub(super) local: Prefix,
    pub(super) remote: Prefix,
}

impl Selector {
    /// Everything.
    pub const ANY: Selector = Selector {
        local: AddressRange::ANY,
        remote: AddressRange::ANY,
        protocol: Protocol::Any,
        local_ports: PortRange::ANY,
        remote_ports: PortRange::ANY,
    };

    /// Everything between two ranges of addresses.
    #[must_use]
    pub fn between(local: impl Into<AddressRange>, remote: impl Into<AddressRange>) -> Self {
        Self { local: local.into(), remote: remote.into(), ..Self::ANY }
    }

    /// The same with its ends exchanged: what it selects on the way out, this selects on the way in.
    #[must_use]
    pub fn mirrored(&self) -> Self {
        let Self { local, remote, protocol, local_ports, remote_ports } = *self;
        Self { local: remote, remote: local, protocol, local_ports: remote_ports, remote_ports: local_ports }
    }

    /// Whether it selects every flow that `other` selects.
    #[must_use]
    pub fn covers(&self, other: &Selector) -> bool {
        self.local.covers(&other.local)
            && self.remote.covers(&other.remote)
            && self.protocol.covers(other.protocol)
            && self.local_ports.covers(&other.local_ports)
            && self.remote_ports.covers(&other.remote_ports)
    }

    /// Whether the flow is selected. A field that a flow hides matches only a selector that allows every
    /// value, or asks for OPAQUE.
    #[must_use]
    #[inline]
    pub fn matches(&self, flow: &Flow) -> bool {
        self.fit(flow) == Fit::Sure
    }

    /// Whether the flow is selected, as far as it shows.
    #[inline(always)]
    pub(crate) fn fit(&self, flow: &Flow) -> Fit {
        match (self.matches_addresses(flow), self.takes_any_next_layer()) {
            (false, _) => Fit::No,
            (true, true) => Fit::Sure,
            (true, false) => self.fit_next_layer(flow),
        }
    }

    #[inline(never)]
    fn fit_next_layer(&self, flow: &Flow) -> Fit {
        self.next_layer(flow.direction()).fit(flow)
    }

    /// Whether protocol and ports do not matter.
    #[inline(always)]
    fn takes_any_next_layer(&self) -> bool {
        let Self { protocol, local_ports, remote_ports, .. } = *self;
        protocol == Protocol::Any && local_ports == PortRange::ANY && remote_ports == PortRange::ANY
    }

    #[inline(always)]
    pub(super) fn matches_addresses(&self, flow: &Flow) -> bool {
        let version = flow.version();
        self.local.contains(version, flow.local()) && self.remote.contains(version, flow.remote())
    }

    /// What it asks of the next layer of packets of one direction. A message is its sender's alone: the other
    /// end has no say.
    #[inline]
    pub(super) fn next_layer(&self, direction: Direction) -> NextLayer {
        let Self { protocol, local_ports, remote_ports, .. } = *self;
        let (local, remote) = match (protocol.is_of_messages(), direction) {
            (false, _) => (local_ports, remote_ports),
            (true, Direction::Outbound) => (local_ports, PortRange::ANY),
            (true, Direction::Inbound) => (remote_ports, PortRange::ANY),
        };
        NextLayer { protocol, local, remote }
    }

    /// The first field of the flow that does not match; `None` if the flow is selected.
    #[must_use]
    pub fn mismatch(&self, flow: &Flow) -> Option<Mismatch> {
        let layer = self.next_layer(flow.direction());
        let (values, is_hidden) = layer.values_of(flow);
        let (local, remote) = values.unzip();
        let is_wrong = |range: PortRange, value| range.fit(value, is_hidden) != Fit::Sure;
        if !self.local.contains(flow.version(), flow.local()) {
            Some(Mismatch::Local)
        } else if !self.remote.contains(flow.version(), flow.remote()) {
            Some(Mismatch::Remote)
        } else if layer.protocol.fit(flow) != Fit::Sure {
            Some(Mismatch::Protocol)
        } else if self.protocol.is_of_messages() && is_wrong(layer.local, local) {
            Some(Mismatch::Message)
        } else if is_wrong(layer.local, local) {
            Some(Mismatch::LocalPort)
        } else if is_wrong(layer.remote, remote) {
            Some(Mismatch::RemotePort)
        } else {
            None
        }
    }

    /// Whether protocol and ports do not matter, and the two ends are not of different versions, which no
    /// packet matches.
    pub(crate) fn is_by_address_alone(&self) -> bool {
        self.takes_any_next_layer() && [Version::V4, Version::V6].iter().any(|version| self.allows(*version))
    }

    /// Whether some packet of this version may match.
    fn allows(&self, version: Version) -> bool {
        [self.local, self.remote].iter().all(|range| range.version().is_none_or(|v| v == version))
    }

    /// How many [prefix pairs](Self::prefix_pairs) it has.
    #[must_use]
    pub(super) fn count_prefix_pairs(&self) -> usize {
        let pieces = self.local.prefixes().count() * self.remote.prefixes().count();
        let versions = [Version::V4, Version::V6].into_iter().filter(|version| self.allows(*version));
        versions.count() * pieces
    }

    /// Its addresses as pairs of prefixes, disjoint; none if its ends are of different versions.
    pub(super) fn prefix_pairs(&self) -> impl Iterator<Item = PrefixPair> + use<> {
        let Self { local, remote, .. } = *self;
        let versions = [Version::V4, Version::V6].into_iter().filter(|version| self.allows(*version));
        let versions: arrayvec::ArrayVec<Version, 2> = versions.collect();
        versions.into_iter().flat_map(move |version| {
            local.prefixes().flat_map(move |local| {
                remote.prefixes().map(move |remote| {
                    let of_version = |prefix: Prefix| Prefix::of(version, prefix.bits(), prefix.length());
                    PrefixPair { version, local: of_version(local), remote: of_version(remote) }
                })
            })
        })
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.protocol.is_of_messages() {
            write!(f, "{} <-> {} protocol {}", self.local, self.remote, self.protocol)?;
            return match (self.local_ports, self.remote_ports) {
                (PortRange::ANY, PortRange::ANY) => Ok(()),
                (sent, received) if sent == received => write!(f, " messages {}", Messages(sent)),
                (sent, received) => {
                    write!(f, " messages sent {}, received {}", Messages(sent), Messages(received))
                }
            };
        }
        let end =
            |ports: PortRange| if ports == PortRange::ANY { String::new() } else { format!("[{ports}]") };
        write!(f, "{}{} <-> {}{}", self.local, end(self.local_ports), self.remote, end(self.remote_ports))?;
        match self.protocol {
            Protocol::Any => Ok(()),
            protocol => write!(f, " protocol {protocol}"),
        }
    }
}

/// Message types in words: type, a slash, code.
pub(super) struct Messages(pub(super) PortRange);

impl fmt::Display for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.0.names_values() {
            return self.0.fmt(f);
        }
        let ([from, low], [to, high]) = (self.0.first.to_be_bytes(), self.0.last.to_be_bytes());
        match (from == to, low, high) {
            (true, 0, u8::MAX) => write!(f, "{from}"),
            (false, 0, u8::MAX) => write!(f, "{from}-{to}"),
            (true, ..) if low == high => write!(f, "{from}/{low}"),
            (true, ..) => write!(f, "{from}/{low}-{high}"),
            (false, ..) => write!(f, "{from}/{low}-{to}/{high}"),
        }
    }
}

/// The part of a flow that a selector does not match, in the order in which they are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mismatch {
    /// The address on the protected side.
    Local,
    /// The address behind the peer.
    Remote,
    /// The next layer protocol, or that it is not visible.
    Protocol,
    /// The type or code of a message, or that they are not visible.
    Message,
    /// The port on the protected side, or that it is not visible.
    LocalPort,
    /// The port behind the peer, or that it is not visible.
    RemotePort,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spd::Prefix;
    use testudo_wire::next_layer::NextLayerFields;
    use testudo_wire::protocol::{ICMP, ICMPV6, MOBILITY, TCP, UDP};

    fn prefix(text: &str) -> Prefix {
        let (address, length) = text.split_once('/').unwrap();
        Prefix::new(address.parse().unwrap(), length.parse().unwrap()).unwrap()
    }

    fn range(first: &str, last: &str) -> AddressRange {
        AddressRange::new(first.parse().unwrap(), last.parse().unwrap()).unwrap()
    }

    fn flow_of(direction: Direction, protocol: u8, fields: Option<NextLayerFields>) -> Flow {
        Flow::new(direction, "10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap(), protocol, fields)
    }

    fn out(local: &str, remote: &str, protocol: u8, ports: Option<(u16, u16)>) -> Flow {
        let fields = ports.map(|(source, destination)| NextLayerFields::Ports(source, destination));
        Flow::new(Direction::Outbound, local.parse().unwrap(), remote.parse().unwrap(), protocol, fields)
    }

    #[test]
    fn an_ipv6_address_never_matches_an_ipv4_prefix() {
        let selector = Selector::between(prefix("10.0.0.0/8"), prefix("0.0.0.0/0"));
        assert!(selector.matches(&out("10.1.1.1", "1.2.3.4", 6, None)));
        assert!(!selector.matches(&out("::10.1.1.1", "::1.2.3.4", 6, None)));
        assert!(!selector.matches(&out("::ffff:10.1.1.1", "::1", 6, None)));
    }

    #[test]
    fn address_ranges_match_from_their_first_to_their_last_address() {
        let selector = Selector::between(range("10.0.0.5", "10.0.0.9"), range("fd00::5", "fd00::9"));
        assert!(!selector.matches(&out("10.0.0.5", "10.0.0.7", 6, None)), "ends of two versions");
        for (host, matches) in [(4, false), (5, true), (7, true), (9, true), (10, false)] {
            let v4 = Selector::between(range("10.0.0.5", "10.0.0.9"), AddressRange::ANY);
            assert_eq!(v4.matches(&out(&format!("10.0.0.{host}"), "1.1.1.1", 6, None)), matches, "{host}");
            let v6 = Selector::between(AddressRange::ANY, range("fd00::5", "fd00::9"));
            assert_eq!(v6.matches(&out("fd01::1", &format!("fd00::{host:x}"), 6, None)), matches, "{host}");
        }
    }

    #[test]
    fn ports_match_in_ranges_and_fragments_match_only_any() {
        let ports = PortRange { first: 80, last: 90 };
        let selector = Selector { protocol: TCP.into(), remote_ports: ports, ..Selector::ANY };
        let ends = ("10.0.0.1", "10.0.0.2");
        assert!(selector.matches(&out(ends.0, ends.1, 6, Some((999, 80)))));
        assert!(selector.matches(&out(ends.0, ends.1, 6, Some((999, 90)))));
        assert!(!selector.matches(&out(ends.0, ends.1, 6, Some((80, 91)))));
        assert!(!selector.matches(&out(ends.0, ends.1, 17, Some((999, 80)))));
        assert!(!selector.matches(&out(ends.0, ends.1, 6, None)));
        assert!(Selector::ANY.matches(&out(ends.0, ends.1, 6, None)));
    }

    /// The ports of a packet that arrives are exchanged: its destination is ours.
    #[test]
    fn the_source_port_is_the_local_one_of_a_packet_that_leaves_and_the_remote_one_of_one_that_arrives() {
        let ssh = Selector { protocol: TCP.into(), local_ports: PortRange::one(22), ..Selector::ANY };
        let fields = |source, destination| Some(NextLayerFields::Ports(source, destination));
        assert!(ssh.matches(&flow_of(Direction::Outbound, TCP, fields(22, 5))));
        assert!(!ssh.matches(&flow_of(Direction::Outbound, TCP, fields(5, 22))));
        assert!(ssh.matches(&flow_of(Direction::Inbound, TCP, fields(5, 22))));
        assert!(!ssh.matches(&flow_of(Direction::Inbound, TCP, fields(22, 5))));
    }

    /// RFC 4301 4.4.1.1: "OPAQUE indicates that the corresponding selector field is not available for
    /// examination because it may not be present in a fragment, does not exist for the given Next Layer
    /// Protocol, or prior application of IPsec may have encrypted the value."
    #[test]
    fn a_hidden_field_concerns_every_selector_that_matches_on_it() {
        let by_addresses = Selector::between(prefix("fd00::/16"), prefix("fd00::/16"));
        let tcp = Selector { protocol: TCP.into(), ..by_addresses };
        let web = Selector { remote_ports: PortRange::one(80), ..tcp };
        let later = Selector { remote_ports: PortRange::OPAQUE, ..tcp };
        let opaque = Selector { protocol: Protocol::Opaque, ..by_addresses };
        let elsewhere = Selector { remote: prefix("fd01::/16").into(), ..web };
        let (a, b) = ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
        let flow = |protocol, ports: Option<(u16, u16)>| {
            let fields = ports.map(|(source, destination)| NextLayerFields::Ports(source, destination));
            Flow::new(Direction::Outbound, a, b, protocol, fields)
        };
        let fragment = |protocol| Flow::of_later_fragments(Direction::Outbound, a, b, protocol);
        use Fit::{No, Perhaps, Sure};
        for (flow, expected) in [
            (flow(6, Some((9, 80))), [Sure, Sure, Sure, No, No, No]),
            (flow(6, Some((80, 9))), [Sure, Sure, No, No, No, No]),
            (flow(6, None), [Sure, Sure, Perhaps, Sure, No, No]),
            (flow(17, None), [Sure, No, No, No, No, No]),
            (flow(1, None), [Sure, No, No, No, No, No]),
            (flow(139, None), [Sure, Perhaps, Perhaps, Perhaps, Sure, No]),
            (fragment(6), [Sure, Perhaps, Perhaps, Perhaps, Sure, No]),
            (fragment(17), [Sure, Perhaps, Perhaps, Perhaps, Sure, No]),
        ] {
            let told = [by_addresses, tcp, web, later, opaque, elsewhere].map(|s| s.fit(&flow));
            assert_eq!(told, expected, "{flow:?}");
        }
        let v4 = Selector { protocol: TCP.into(), ..Selector::ANY };
        let fragment = |protocol| {
            let (a, b) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
            Flow::of_later_fragments(Direction::Outbound, a, b, protocol)
        };
        assert_eq!(
            [fragment(6), fragment(17)].map(|flow| v4.fit(&flow)),
            [Sure, No],
            "IPv4 shows its protocol"
        );
    }

    /// RFC 4301 4.4.1.1: ports of a protocol without ports do not exist, and OPAQUE matches what does not.
    #[test]
    fn opaque_ports_match_a_protocol_that_has_none() {
        let gre = Selector { protocol: 47.into(), local_ports: PortRange::OPAQUE, ..Selector::ANY };
        assert!(gre.matches(&flow_of(Direction::Outbound, 47, None)));
        let port = Selector { local_ports: PortRange::one(0), ..gre };
        assert_eq!(port.fit(&flow_of(Direction::Outbound, 47, None)), Fit::No);
    }

    /// RFC 4301 4.4.1.1: (T-start*256) + C-start <= (t*256) + c <= (T-end*256) + C-end.
    #[test]
    fn icmp_types_and_codes_are_one_range_of_16_bits() {
        let range = PortRange::icmp((3, 2), (5, 1));
        let selector =
            Selector { protocol: ICMP.into(), local_ports: range, remote_ports: range, ..Selector::ANY };
        for (kind, code, matches) in
            [(3, 1, false), (3, 2, true), (4, 0, true), (4, 255, true), (5, 1, true), (5, 2, false)]
        {
            for direction in [Direction::Outbound, Direction::Inbound] {
                let flow = flow_of(direction, ICMP, Some(NextLayerFields::Icmp(kind, code)));
                assert_eq!(selector.matches(&flow), matches, "{kind}/{code} {direction:?}");
            }
        }
        assert_eq!(selector.fit(&flow_of(Direction::Outbound, ICMP, None)), Fit::Perhaps, "a later fragment");
    }

    /// RFC 4301 4.4.1.1: the local end's are the messages that we send, the remote end's those that we
    /// receive; OPAQUE at an end stands for none.
    #[test]
    fn messages_are_compared_with_the_end_that_sends_them() {
        let traceroute = PortRange::icmp((30, 0), (30, 255));
        let sent = Selector {
            protocol: ICMP.into(),
            local_ports: traceroute,
            remote_ports: PortRange::OPAQUE,
            ..Selector::ANY
        };
        let received = Selector { local_ports: PortRange::OPAQUE, remote_ports: traceroute, ..sent };
        let message = |direction| flow_of(direction, ICMP, Some(NextLayerFields::Icmp(30, 0)));
        let (out, inward) = (message(Direction::Outbound), message(Direction::Inbound));
        assert_eq!((sent.matches(&out), sent.matches(&inward)), (true, false));
        assert_eq!((received.matches(&out), received.matches(&inward)), (false, true));
        let update = Selector { protocol: MOBILITY.into(), local_ports: PortRange::mobility(5, 5), ..sent };
        for (kind, matches) in [(4, false), (5, true), (6, false)] {
            let flow = flow_of(Direction::Outbound, MOBILITY, Some(NextLayerFields::Mobility(kind)));
            assert_eq!(update.matches(&flow), matches, "{kind}");
        }
    }

    #[test]
    fn what_covers_another_matches_all_that_it_matches() {
        let ranges = [PortRange::ANY, PortRange::OPAQUE, PortRange::one(5), PortRange { first: 4, last: 6 }];
        let covering: Vec<(usize, usize)> = (0..4)
            .flat_map(|a| (0..4).map(move |b| (a, b)))
            .filter(|(a, b)| ranges[*a].covers(&ranges[*b]))
            .collect();
        assert_eq!(covering, [(0, 0), (0, 1), (0, 2), (0, 3), (1, 1), (2, 2), (3, 2), (3, 3)]);
        let protocols = [Protocol::Any, Protocol::Opaque, Protocol::Is(6)];
        let covering: Vec<(usize, usize)> = (0..3)
            .flat_map(|a| (0..3).map(move |b| (a, b)))
            .filter(|(a, b)| protocols[*a].covers(protocols[*b]))
            .collect();
        assert_eq!(covering, [(0, 0), (0, 1), (0, 2), (1, 1), (2, 2)]);
    }

    #[test]
    fn selectors_are_shown_in_a_line() {
        let between = Selector::between(prefix("10.1.0.0/16"), range("10.2.0.1", "10.2.0.9"));
        let web = Selector { protocol: TCP.into(), remote_ports: PortRange::one(443), ..between };
        let ping = PortRange::icmp((8, 0), (8, 0));
        let icmp = Selector { protocol: ICMP.into(), local_ports: ping, remote_ports: ping, ..between };
        let sent = Selector { protocol: ICMPV6.into(), remote_ports: PortRange::OPAQUE, ..icmp };
        let types = PortRange::icmp((3, 0), (5, 255));
        for (selector, shown) in [
            (between, "10.1.0.0/16 <-> 10.2.0.1-10.2.0.9"),
            (web, "10.1.0.0/16 <-> 10.2.0.1-10.2.0.9[443] protocol 6"),
            (
                Selector { protocol: UDP.into(), remote_ports: PortRange::OPAQUE, ..web },
                "10.1.0.0/16 <-> 10.2.0.1-10.2.0.9[opaque] protocol 17",
            ),
            (icmp, "10.1.0.0/16 <-> 10.2.0.1-10.2.0.9 protocol 1 messages 8/0"),
            (sent, "10.1.0.0/16 <-> 10.2.0.1-10.2.0.9 protocol 58 messages sent 8/0, received opaque"),
            (
                Selector { local_ports: types, remote_ports: types, ..icmp },
                "10.1.0.0/16 <-> 10.2.0.1-10.2.0.9 protocol 1 messages 3-5",
            ),
            (Selector { protocol: Protocol::Opaque, ..Selector::ANY }, "any <-> any protocol opaque"),
        ] {
            assert_eq!(selector.to_string(), shown);
        }
    }
}

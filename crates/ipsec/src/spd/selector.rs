//! The packets that a policy or an SA applies to (RFC 4301 4.4.1.1).

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use testudo_wire::ip::{IpHeader, Version};
use testudo_wire::plain::PlainHeader;
use testudo_wire::protocol;

/// An address as a number, so that prefixes of both versions are compared alike. Always used together with a
/// version.
pub(crate) fn address_bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(a) => u128::from(a.to_bits()),
        IpAddr::V6(a) => a.to_bits(),
    }
}

/// A set of addresses: all of both versions, or those with a common prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Prefix {
    version: Option<Version>,
    network: u128,
    mask: u128,
    length: u8,
}

/// A prefix is longer than the address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a prefix of {length} bits does not fit an address of {bits}")]
pub struct BadPrefix {
    /// The requested length, in bits.
    pub length: u8,
    /// Bits of an address of that version.
    pub bits: u8,
}

impl Prefix {
    /// Every address of both versions.
    pub const ANY: Prefix = Prefix { version: None, network: 0, mask: 0, length: 0 };

    /// The addresses that share the first `length` bits of `address`; host bits are cleared.
    ///
    /// # Errors
    /// [`BadPrefix`] if `length` exceeds 32 or 128.
    pub fn new(address: IpAddr, length: u8) -> Result<Self, BadPrefix> {
        let bits: u8 = if address.is_ipv4() { 32 } else { 128 };
        if length > bits {
            return Err(BadPrefix { length, bits });
        }
        let all = u128::MAX >> (128 - u32::from(bits));
        let mask = if length == 0 { 0 } else { all & (all << (bits - length)) };
        Ok(Self { version: Some(Version::of(address)), network: address_bits(address) & mask, mask, length })
    }

    /// The IP version; `None` for [`ANY`](Self::ANY).
    #[must_use]
    pub fn version(&self) -> Option<Version> {
        self.version
    }

    /// The lowest address; `None` for [`ANY`](Self::ANY).
    #[must_use]
    pub fn network(&self) -> Option<IpAddr> {
        Some(match self.version? {
            // Lossless: the network of an IPv4 prefix has 32 bits.
            Version::V4 => IpAddr::V4(u32::try_from(self.network).unwrap_or_default().into()),
            Version::V6 => IpAddr::V6(Ipv6Addr::from_bits(self.network)),
        })
    }

    /// Bits that its addresses share, 0 to 32 or 128.
    #[must_use]
    pub fn length(&self) -> u8 {
        self.length
    }

    /// Whether every address of `other` is in it.
    #[must_use]
    pub fn covers(&self, other: &Prefix) -> bool {
        let same_version = self.version.is_none() || self.version == other.version;
        same_version && self.length <= other.length && other.network & self.mask == self.network
    }

    fn contains(&self, version: Version, address: u128) -> bool {
        self.version.is_none_or(|v| v == version) && address & self.mask == self.network
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.network() {
            None => f.write_str("any"),
            Some(address) => write!(f, "{address}/{}", self.length),
        }
    }
}

/// A range of ports, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PortRange {
    /// Lowest port.
    pub first: u16,
    /// Highest port.
    pub last: u16,
}

impl PortRange {
    /// Every port, and packets that show none (RFC 4301's OPAQUE included).
    pub const ANY: PortRange = PortRange { first: 0, last: u16::MAX };

    /// Whether all ports of `other` are in it.
    #[must_use]
    pub fn covers(&self, other: &PortRange) -> bool {
        self.first <= other.first && other.last <= self.last
    }

    fn contains(self, port: Option<u16>) -> bool {
        self == Self::ANY || port.is_some_and(|p| self.first <= p && p <= self.last)
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ANY => f.write_str("any"),
            Self { first, last } if first == last => write!(f, "{first}"),
            Self { first, last } => write!(f, "{first}-{last}"),
        }
    }
}

/// The fields of a packet that selectors look at, from our side: `local` is the protected network's end in
/// both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Flow {
    version: Version,
    local: u128,
    remote: u128,
    /// The next layer protocol; `None` where the packet does not show it.
    protocol: Option<u8>,
    ports: Option<(u16, u16)>,
    /// The packet has a protocol or ports that it does not show: OPAQUE in RFC 4301 4.4.1.1. Ports are then
    /// never shown.
    hides_fields: bool,
}

impl Flow {
    /// The flow of an outbound packet: its source is local.
    #[must_use]
    pub fn outbound(header: &IpHeader, packet: &[u8]) -> Self {
        Self::showing(header.source, header.destination, header.next_layer_protocol(), header.ports(packet))
    }

    /// The flow of an inbound packet: its destination is local.
    #[must_use]
    pub fn inbound(header: &IpHeader, packet: &[u8]) -> Self {
        let ports = header.ports(packet).map(|(source, destination)| (destination, source));
        Self::showing(header.destination, header.source, header.next_layer_protocol(), ports)
    }

    /// The flow of a plain outbound packet.
    #[must_use]
    #[inline(always)]
    pub fn plain_outbound(header: &PlainHeader) -> Self {
        Self::plain(header, header.source, header.destination, header.ports())
    }

    /// The flow of a plain inbound packet.
    #[must_use]
    #[inline(always)]
    pub fn plain_inbound(header: &PlainHeader) -> Self {
        let ports = header.ports().map(|(source, destination)| (destination, source));
        Self::plain(header, header.destination, header.source, ports)
    }

    #[inline(always)]
    fn plain(header: &PlainHeader, local: u128, remote: u128, ports: Option<(u16, u16)>) -> Self {
        let (version, protocol) = (header.version, header.protocol);
        // A plain packet shows all its fields.
        Self { version, local, remote, protocol: Some(protocol), ports, hides_fields: false }
    }

    /// Whether it has a protocol or ports that are not visible.
    #[inline]
    pub(crate) fn hides_fields(&self) -> bool {
        self.hides_fields
    }

    /// A flow of whole packets by its parts; `ports` are local and remote. Without ports, a protocol that has
    /// them hides them. Over IPv6, an unknown header hides all that follows.
    #[must_use]
    pub fn new(local: IpAddr, remote: IpAddr, protocol: u8, ports: Option<(u16, u16)>) -> Self {
        let is_shown = local.is_ipv4() || !protocol::hides_what_follows(protocol);
        Self::showing(local, remote, is_shown.then_some(protocol), ports)
    }

    /// The flow of fragments other than the first: over IPv4 they show their protocol, over IPv6 nothing but
    /// addresses (see [`IpHeader::next_layer_protocol`]).
    #[must_use]
    pub fn of_later_fragments(local: IpAddr, remote: IpAddr, protocol: u8) -> Self {
        Self::showing(local, remote, local.is_ipv4().then_some(protocol), None)
    }

    /// A flow is known only as far as a packet shows it. Ports go with a protocol that is shown.
    fn showing(local: IpAddr, remote: IpAddr, protocol: Option<u8>, ports: Option<(u16, u16)>) -> Self {
        let has_ports = |number| matches!(number, protocol::TCP | protocol::UDP | protocol::SCTP);
        let ports = ports.filter(|_| protocol.is_some());
        Self {
            version: Version::of(local),
            local: address_bits(local),
            remote: address_bits(remote),
            protocol,
            ports,
            hides_fields: ports.is_none() && protocol.is_none_or(has_ports),
        }
    }

    /// The IP version of both addresses.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// The address on the protected side, as a number.
    pub(crate) fn local(&self) -> u128 {
        self.local
    }

    /// The address behind the peer, as a number.
    pub(crate) fn remote(&self) -> u128 {
        self.remote
    }

    pub(crate) fn masked(&self, local: u128, remote: u128) -> (u128, u128) {
        (self.local & local, self.remote & remote)
    }
}

/// The packets that a policy or an SA applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Selector {
    /// Addresses on the protected side.
    pub local: Prefix,
    /// Addresses behind the peer.
    pub remote: Prefix,
    /// Next layer protocol; `None` for any.
    pub protocol: Option<u8>,
    /// Ports on the protected side.
    pub local_ports: PortRange,
    /// Ports behind the peer.
    pub remote_ports: PortRange,
}

impl Selector {
    /// Everything.
    pub const ANY: Selector = Selector {
        local: Prefix::ANY,
        remote: Prefix::ANY,
        protocol: None,
        local_ports: PortRange::ANY,
        remote_ports: PortRange::ANY,
    };

    /// Everything between two prefixes.
    #[must_use]
    pub fn between(local: Prefix, remote: Prefix) -> Self {
        Self { local, remote, ..Self::ANY }
    }

    /// Whether it selects every flow that `other` selects.
    #[must_use]
    pub fn covers(&self, other: &Selector) -> bool {
        self.local.covers(&other.local)
            && self.remote.covers(&other.remote)
            && (self.protocol.is_none() || self.protocol == other.protocol)
            && self.local_ports.covers(&other.local_ports)
            && self.remote_ports.covers(&other.remote_ports)
    }

    /// Whether the flow is selected. A field that a flow hides matches only a selector that allows every
    /// value.
    #[must_use]
    #[inline]
    pub fn matches(&self, flow: &Flow) -> bool {
        self.matches_addresses(flow) && self.matches_rest(flow)
    }

    /// Compares both prefixes at once: most selectors differ in them.
    #[inline(always)]
    fn matches_addresses(&self, flow: &Flow) -> bool {
        let local = flow.local & self.local.mask ^ self.local.network;
        let remote = flow.remote & self.remote.mask ^ self.remote.network;
        let version = |prefix: &Prefix| prefix.version.is_none_or(|v| v == flow.version);
        local | remote == 0 && version(&self.local) && version(&self.remote)
    }

    #[inline(always)]
    fn matches_rest(&self, flow: &Flow) -> bool {
        self.protocol.is_none_or(|p| flow.protocol == Some(p))
            && self.local_ports.contains(flow.ports.map(|p| p.0))
            && self.remote_ports.contains(flow.ports.map(|p| p.1))
    }

    /// The first field of the flow that does not match; `None` if the flow is selected.
    #[must_use]
    #[inline]
    pub fn mismatch(&self, flow: &Flow) -> Option<Mismatch> {
        if !self.local.contains(flow.version, flow.local) {
            Some(Mismatch::Local)
        } else if !self.remote.contains(flow.version, flow.remote) {
            Some(Mismatch::Remote)
        } else if self.protocol.is_some_and(|p| flow.protocol != Some(p)) {
            Some(Mismatch::Protocol)
        } else if !self.local_ports.contains(flow.ports.map(|p| p.0)) {
            Some(Mismatch::LocalPort)
        } else if !self.remote_ports.contains(flow.ports.map(|p| p.1)) {
            Some(Mismatch::RemotePort)
        } else {
            None
        }
    }

    /// Whether the flow is selected, or would be if its hidden fields matched.
    #[inline]
    pub(crate) fn concerns(&self, flow: &Flow) -> bool {
        if !flow.hides_fields {
            return self.matches(flow);
        }
        let may_be = |p| flow.protocol.is_none_or(|shown| shown == p);
        self.matches_addresses(flow) && self.protocol.is_none_or(may_be)
    }

    pub(crate) fn prefix_lengths(&self) -> PrefixLengths {
        PrefixLengths {
            version: self.local.version.or(self.remote.version),
            local_mask: self.local.mask,
            remote_mask: self.remote.mask,
        }
    }

    /// Whether protocol and ports do not matter, and the two prefixes are not of different versions, which no
    /// packet matches.
    pub(crate) fn is_by_address_alone(&self) -> bool {
        let all_of_one_version = match (self.local.version, self.remote.version) {
            (Some(local), Some(remote)) => local == remote,
            _ => true,
        };
        all_of_one_version
            && self.protocol.is_none()
            && self.local_ports == PortRange::ANY
            && self.remote_ports == PortRange::ANY
    }

    pub(crate) fn networks(&self) -> (u128, u128) {
        (self.local.network, self.remote.network)
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end =
            |ports: PortRange| if ports == PortRange::ANY { String::new() } else { format!("[{ports}]") };
        write!(f, "{}{} <-> {}{}", self.local, end(self.local_ports), self.remote, end(self.remote_ports))?;
        self.protocol.map_or(Ok(()), |p| write!(f, " protocol {p}"))
    }
}

/// The part of a flow that a selector does not match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mismatch {
    /// The address on the protected side.
    Local,
    /// The address behind the peer.
    Remote,
    /// The next layer protocol, or that it is not visible.
    Protocol,
    /// The port on the protected side, or that it is not visible.
    LocalPort,
    /// The port behind the peer, or that it is not visible.
    RemotePort,
}

/// The prefix lengths that selectors share: the key of one hash table in the SPD.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PrefixLengths {
    pub(crate) version: Option<Version>,
    pub(crate) local_mask: u128,
    pub(crate) remote_mask: u128,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        let (address, length) = text.split_once('/').unwrap();
        Prefix::new(address.parse().unwrap(), length.parse().unwrap()).unwrap()
    }

    fn flow(local: &str, remote: &str, protocol: u8, ports: Option<(u16, u16)>) -> Flow {
        Flow::new(local.parse().unwrap(), remote.parse().unwrap(), protocol, ports)
    }

    #[test]
    fn prefixes_of_every_length_contain_their_first_and_last_address() {
        for length in 0..=32u8 {
            let p = Prefix::new("10.20.30.40".parse().unwrap(), length).unwrap();
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            let first = 0x0A14_1E28 & mask;
            assert!(p.contains(Version::V4, first.into()) && p.contains(Version::V4, (first | !mask).into()));
            assert!(!p.contains(Version::V6, first.into()));
            assert!(length == 0 || !p.contains(Version::V4, u128::from(first) ^ (1 << (32 - length))));
        }
        assert!(Prefix::new("10.0.0.0".parse().unwrap(), 33).is_err());
        assert!(Prefix::new("::".parse().unwrap(), 128).is_ok());
    }

    #[test]
    fn a_prefix_covers_its_subnets_and_nothing_of_the_other_version() {
        assert!(prefix("10.0.0.0/8").covers(&prefix("10.2.0.0/16")));
        assert!(!prefix("10.2.0.0/16").covers(&prefix("10.0.0.0/8")));
        assert!(!prefix("10.0.0.0/8").covers(&prefix("11.0.0.0/16")));
        assert!(prefix("0.0.0.0/0").covers(&prefix("255.255.255.255/32")));
        assert!(!prefix("::/0").covers(&prefix("10.0.0.0/8")));
        assert!(prefix("::/0").covers(&prefix("fd00::1/128")));
        assert!(Prefix::ANY.covers(&Prefix::ANY) && Prefix::ANY.covers(&prefix("::/0")));
        assert!(!prefix("::/0").covers(&Prefix::ANY) && !prefix("0.0.0.0/0").covers(&Prefix::ANY));
    }

    #[test]
    fn an_ipv6_address_never_matches_an_ipv4_prefix() {
        let selector = Selector::between(prefix("10.0.0.0/8"), prefix("0.0.0.0/0"));
        assert!(selector.matches(&flow("10.1.1.1", "1.2.3.4", 6, None)));
        assert!(!selector.matches(&flow("::10.1.1.1", "::1.2.3.4", 6, None)));
        assert!(!selector.matches(&flow("::ffff:10.1.1.1", "::1", 6, None)));
    }

    #[test]
    fn ports_match_in_ranges_and_fragments_match_only_any() {
        let selector =
            Selector { protocol: Some(6), remote_ports: PortRange { first: 80, last: 90 }, ..Selector::ANY };
        assert!(selector.matches(&flow("10.0.0.1", "10.0.0.2", 6, Some((999, 80)))));
        assert!(selector.matches(&flow("10.0.0.1", "10.0.0.2", 6, Some((999, 90)))));
        assert!(!selector.matches(&flow("10.0.0.1", "10.0.0.2", 6, Some((80, 91)))));
        assert!(!selector.matches(&flow("10.0.0.1", "10.0.0.2", 17, Some((999, 80)))));
        assert!(!selector.matches(&flow("10.0.0.1", "10.0.0.2", 6, None)));
        assert!(Selector::ANY.matches(&flow("10.0.0.1", "10.0.0.2", 6, None)));
    }

    /// RFC 4301 4.4.1.1: "OPAQUE indicates that the corresponding selector field is not available for
    /// examination because it may not be present in a fragment, does not exist for the given Next Layer
    /// Protocol, or prior application of IPsec may have encrypted the value."
    #[test]
    fn a_hidden_field_concerns_every_selector_that_matches_on_it() {
        let by_addresses = Selector::between(prefix("fd00::/16"), prefix("fd00::/16"));
        let tcp = Selector { protocol: Some(6), ..by_addresses };
        let web = Selector { remote_ports: PortRange { first: 80, last: 80 }, ..tcp };
        let elsewhere = Selector { remote: prefix("fd01::/16"), ..web };
        let (a, b) = ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
        // Flow, and for each selector: whether the flow concerns it, and whether it matches.
        let (yes, may, no) = ((true, true), (true, false), (false, false));
        for (flow, expected) in [
            (Flow::new(a, b, 6, Some((9, 80))), [yes, yes, yes, no]),
            (Flow::new(a, b, 6, Some((80, 9))), [yes, yes, no, no]),
            (Flow::new(a, b, 6, None), [yes, yes, may, no]),
            (Flow::new(a, b, 17, None), [yes, no, no, no]),
            (Flow::new(a, b, 1, None), [yes, no, no, no]),
            (Flow::new(a, b, 139, None), [yes, may, may, no]),
            (Flow::of_later_fragments(a, b, 6), [yes, may, may, no]),
            (Flow::of_later_fragments(a, b, 17), [yes, may, may, no]),
        ] {
            let told = [by_addresses, tcp, web, elsewhere].map(|s| (s.concerns(&flow), s.matches(&flow)));
            assert_eq!(told, expected, "{flow:?}");
        }
        let v4 = Selector { protocol: Some(6), ..Selector::ANY };
        let later = |protocol| {
            Flow::of_later_fragments("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap(), protocol)
        };
        assert!(v4.matches(&later(6)) && !v4.concerns(&later(17)), "fragments of IPv4 show their protocol");
    }
}

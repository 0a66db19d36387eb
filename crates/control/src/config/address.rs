//! Prefixes, port ranges and selectors: which packets a rule is about.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An IPv4 or IPv6 network: an address whose host bits are zero, and the length of its prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    network: IpAddr,
    length: u8,
}

impl Prefix {
    /// The network that `address` is in: host bits are cleared. `None` if `length` exceeds the address's bits.
    #[must_use]
    pub fn containing(address: IpAddr, length: u8) -> Option<Self> {
        let network = match address {
            IpAddr::V4(v4) if length <= 32 => {
                let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() & mask))
            }
            IpAddr::V6(v6) if length <= 128 => {
                let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask))
            }
            _ => return None,
        };
        Some(Self { network, length })
    }

    /// The network of one address.
    #[must_use]
    pub const fn host(address: IpAddr) -> Self {
        let length = if address.is_ipv4() { 32 } else { 128 };
        Self { network: address, length }
    }

    /// Its lowest address.
    #[must_use]
    pub const fn network(&self) -> IpAddr {
        self.network
    }

    /// Bits of the prefix, 0 to 32 or 128.
    #[must_use]
    pub const fn length(&self) -> u8 {
        self.length
    }

    /// Whether `address` is in it.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        Self::containing(address, self.length) == Some(*self)
    }

    /// Whether all of `other` is in it.
    #[must_use]
    pub fn covers(&self, other: &Prefix) -> bool {
        self.length <= other.length && self.contains(other.network)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.length)
    }
}

/// The addresses that a selector accepts on one side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AddressRange {
    /// Every address, of both versions.
    Any,
    /// The addresses of a network; a single address has a prefix of all its bits.
    Prefix(Prefix),
}

impl AddressRange {
    /// Whether all of `other` is in it.
    #[must_use]
    pub fn covers(&self, other: &AddressRange) -> bool {
        match (self, other) {
            (AddressRange::Any, _) => true,
            (AddressRange::Prefix(_), AddressRange::Any) => false,
            (AddressRange::Prefix(this), AddressRange::Prefix(other)) => this.covers(other),
        }
    }

    /// Whether it speaks of IPv6 (`Some(true)`), IPv4 (`Some(false)`) or both (`None`).
    #[must_use]
    pub fn is_ipv6(&self) -> Option<bool> {
        match self {
            AddressRange::Any => None,
            AddressRange::Prefix(prefix) => Some(prefix.network.is_ipv6()),
        }
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AddressRange::Any => f.write_str("any"),
            AddressRange::Prefix(prefix) => prefix.fmt(f),
        }
    }
}

/// The IP protocol (IPv6: the upper-layer protocol) that a selector accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// Every protocol.
    Any,
    /// The one of this number (IANA "Assigned Internet Protocol Numbers").
    Number(u8),
}

impl Protocol {
    /// Internet Control Message Protocol.
    pub const ICMP: Protocol = Protocol::Number(1);
    /// Transmission Control Protocol.
    pub const TCP: Protocol = Protocol::Number(6);
    /// User Datagram Protocol.
    pub const UDP: Protocol = Protocol::Number(17);
    /// Internet Control Message Protocol for IPv6.
    pub const ICMPV6: Protocol = Protocol::Number(58);
    /// Stream Control Transmission Protocol.
    pub const SCTP: Protocol = Protocol::Number(132);

    /// Whether its packets have ports that a selector can ask for.
    #[must_use]
    pub fn has_ports(&self) -> bool {
        [Protocol::TCP, Protocol::UDP, Protocol::SCTP].contains(self)
    }

    /// Whether it accepts all that `other` accepts.
    #[must_use]
    pub fn covers(&self, other: &Protocol) -> bool {
        *self == Protocol::Any || self == other
    }
}

/// Ports from `first` to `last`, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PortRange {
    first: u16,
    last: u16,
}

impl PortRange {
    /// All ports.
    pub const ANY: PortRange = PortRange { first: 0, last: u16::MAX };

    /// The ports from `first` to `last`; `None` if `last` is before `first`.
    #[must_use]
    pub const fn new(first: u16, last: u16) -> Option<Self> {
        if first <= last { Some(Self { first, last }) } else { None }
    }

    /// One port.
    #[must_use]
    pub const fn only(port: u16) -> Self {
        Self { first: port, last: port }
    }

    /// The lowest.
    #[must_use]
    pub const fn first(&self) -> u16 {
        self.first
    }

    /// The highest.
    #[must_use]
    pub const fn last(&self) -> u16 {
        self.last
    }

    /// Whether all of `other` is in it.
    #[must_use]
    pub const fn covers(&self, other: &PortRange) -> bool {
        self.first <= other.first && other.last <= self.last
    }
}

/// Which packets, seen from this gateway: `local` is on the protected side (RFC 4301 4.4.1.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Selector {
    /// Addresses on the protected side: source outbound, destination inbound.
    pub local: AddressRange,
    /// Addresses beyond the unprotected side.
    pub remote: AddressRange,
    /// IP protocol.
    pub protocol: Protocol,
    /// Ports that go with `local`; not [`PortRange::ANY`] only for protocols with ports.
    pub local_ports: PortRange,
    /// Ports that go with `remote`; not [`PortRange::ANY`] only for protocols with ports.
    pub remote_ports: PortRange,
}

impl Selector {
    /// Whether it accepts every packet that `other` accepts.
    #[must_use]
    pub fn covers(&self, other: &Selector) -> bool {
        self.local.covers(&other.local)
            && self.remote.covers(&other.remote)
            && self.protocol.covers(&other.protocol)
            && self.local_ports.covers(&other.local_ports)
            && self.remote_ports.covers(&other.remote_ports)
    }

    /// Whether IPv6 packets may match it.
    #[must_use]
    pub fn allows_ipv6(&self) -> bool {
        self.local.is_ipv6() != Some(false) && self.remote.is_ipv6() != Some(false)
    }
}

/// An address of an interface, with the length of the prefix that is on the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct InterfaceAddress {
    /// The address, host part and all.
    pub address: IpAddr,
    /// Bits of the prefix, 0 to 32 or 128.
    pub prefix_length: u8,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(address: &str, length: u8) -> Prefix {
        Prefix::containing(address.parse().unwrap(), length).unwrap()
    }

    #[test]
    fn a_prefix_covers_its_subnets_and_nothing_of_the_other_version() {
        assert!(prefix("10.0.0.0", 8).covers(&prefix("10.2.0.0", 16)));
        assert!(!prefix("10.2.0.0", 16).covers(&prefix("10.0.0.0", 8)));
        assert!(prefix("0.0.0.0", 0).covers(&prefix("255.255.255.255", 32)));
        assert!(!prefix("::", 0).covers(&prefix("10.0.0.0", 8)));
        assert!(prefix("::", 0).covers(&prefix("fd00::1", 128)));
    }

    #[test]
    fn a_length_beyond_the_address_is_no_prefix() {
        assert_eq!(Prefix::containing("10.0.0.0".parse().unwrap(), 33), None);
        assert_eq!(Prefix::containing("::".parse().unwrap(), 129), None);
    }
}

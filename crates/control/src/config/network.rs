//! Networks as a host uses them: in routes and in firewall rules.

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use testudo_ipsec::{AddressRange, Prefix};

/// An IPv4 or IPv6 network: an address whose host bits are zero, and the length of its prefix. A selector's
/// [`Prefix`] may also be every address of both versions, which has no route and no field in a firewall rule:
/// [`Network::of`] returns `None` for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Network {
    address: IpAddr,
    length: u8,
}

impl Network {
    /// The network that `address` is in: host bits are cleared. `None` if `length` exceeds the address
    /// length.
    #[must_use]
    pub fn containing(address: IpAddr, length: u8) -> Option<Self> {
        let address = match address {
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
        Some(Self { address, length })
    }

    /// The network of a prefix; `None` if the prefix is every address of both versions.
    #[must_use]
    pub fn of(prefix: Prefix) -> Option<Self> {
        Some(Self { address: prefix.network()?, length: prefix.length() })
    }

    /// The network of a single address.
    #[must_use]
    pub const fn host(address: IpAddr) -> Self {
        let length = if address.is_ipv4() { 32 } else { 128 };
        Self { address, length }
    }

    /// Its lowest address.
    #[must_use]
    pub const fn address(&self) -> IpAddr {
        self.address
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
    pub fn covers(&self, other: &Network) -> bool {
        self.length <= other.length && self.contains(other.address)
    }
}

impl From<Network> for AddressRange {
    fn from(network: Network) -> Self {
        let prefix = Prefix::new(network.address, network.length);
        // The length was checked when the network was made.
        prefix.map_or_else(|_| Self::host(network.address), Self::from)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

/// A set that finds the networks that contain another without comparing with each: members are grouped by
/// length, and few lengths are in use, however many networks there are.
#[derive(Debug, Default)]
pub(crate) struct Networks {
    members: HashSet<Network>,
    /// IP version (whether it is 6) and length.
    lengths: BTreeSet<(bool, u8)>,
}

impl FromIterator<Network> for Networks {
    fn from_iter<I: IntoIterator<Item = Network>>(networks: I) -> Self {
        let mut set = Self::default();
        for network in networks {
            set.members.insert(network);
            set.lengths.insert((network.address().is_ipv6(), network.length()));
        }
        set
    }
}

impl Networks {
    /// The members that contain all of `network`, itself included, widest first.
    pub(crate) fn holding(&self, network: Network) -> impl Iterator<Item = Network> {
        let ipv6 = network.address().is_ipv6();
        let lengths = self.lengths.range((ipv6, 0)..=(ipv6, network.length()));
        lengths
            .filter_map(move |(_, length)| Network::containing(network.address(), *length))
            .filter(|wider| self.members.contains(wider))
    }

    /// Whether `network` itself is a member.
    pub(crate) fn contains(&self, network: Network) -> bool {
        self.members.contains(&network)
    }
}

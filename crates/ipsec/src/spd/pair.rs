//! IPv4 packets by their two addresses, which decide most packets and fit a register.

use super::selector::{PrefixPair, Selector};
use testudo_wire::ip::Version;
use testudo_wire::plain::PlainV4;

/// Two IPv4 addresses, with the one on the protected side in the upper half. They decide most IPv4 packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Pair(pub(crate) u64);

impl Pair {
    /// The pair of two addresses as numbers, of which the low 32 bits count.
    #[inline(always)]
    pub(crate) fn new(local: u128, remote: u128) -> Self {
        let low_32 = |n: u128| u64::try_from(n & 0xFFFF_FFFF).unwrap_or(0);
        Self(low_32(local) << 32 | low_32(remote))
    }

    /// The addresses of a packet that leaves: its source is local.
    #[inline(always)]
    pub(crate) fn outbound(header: &PlainV4) -> Self {
        Self(header.addresses)
    }

    /// The addresses of a packet that arrives: its destination is local.
    #[inline(always)]
    pub(crate) fn inbound(header: &PlainV4) -> Self {
        Self::of_arriving(header.addresses)
    }

    /// The same, from [`PlainV4::addresses`], whose halves are source and destination: the swap makes the
    /// destination local.
    #[inline(always)]
    pub(crate) fn of_arriving(addresses: u64) -> Self {
        Self(addresses.rotate_left(32))
    }
}

/// Pairs of IPv4 addresses with common prefixes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PairPrefix {
    mask: u64,
    network: u64,
}

impl PairPrefix {
    /// No pair at all: masked with 0, a pair is 0 and never equals 1.
    pub(crate) const NONE: Self = Self { mask: 0, network: 1 };

    /// The pairs with two prefixes; [`NONE`](Self::NONE) if these are of IPv6.
    pub(super) fn of(pair: &PrefixPair) -> Self {
        if pair.version == Version::V6 {
            return Self::NONE;
        }
        let PrefixPair { local, remote, .. } = pair;
        Self {
            mask: Pair::new(local.mask(), remote.mask()).0,
            network: Pair::new(local.bits(), remote.bits()).0,
        }
    }

    /// All pairs of a selector, if they have common prefixes and addresses alone decide;
    /// [`NONE`](Self::NONE) otherwise.
    pub(super) fn all_of(selector: &Selector) -> Self {
        let mut pairs = selector.prefix_pairs().filter(|pair| pair.version == Version::V4);
        match (pairs.next(), pairs.next()) {
            (Some(pair), None) if selector.is_by_address_alone() => Self::of(&pair),
            _ => Self::NONE,
        }
    }

    #[inline]
    pub(super) fn is_none(self) -> bool {
        self.mask == Self::NONE.mask && self.network == Self::NONE.network
    }

    #[inline(always)]
    pub(crate) fn contains(self, pair: Pair) -> bool {
        pair.0 & self.mask == self.network
    }
}

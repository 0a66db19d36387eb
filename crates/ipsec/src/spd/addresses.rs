//! Sets of addresses: prefixes, and ranges as RFC 4301 4.4.1.1 has them.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use testudo_wire::ip::Version;

/// An address as a number, so that both versions are compared alike. Always used together with a version.
pub(crate) fn address_bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(a) => u128::from(a.to_bits()),
        IpAddr::V6(a) => a.to_bits(),
    }
}

/// The address of a version with these bits.
pub(super) fn address_of(version: Version, bits: u128) -> IpAddr {
    match version {
        // Lossless: addresses of IPv4 have 32 bits.
        Version::V4 => IpAddr::V4(u32::try_from(bits).unwrap_or_default().into()),
        Version::V6 => IpAddr::V6(Ipv6Addr::from_bits(bits)),
    }
}

/// Bits of an address.
pub(super) fn width(version: Version) -> u8 {
    match version {
        Version::V4 => 32,
        Version::V6 => 128,
    }
}

/// The mask of a prefix of `length` bits.
pub(super) fn mask(version: Version, length: u8) -> u128 {
    let all = u128::MAX >> (128 - u32::from(width(version)));
    if length == 0 { 0 } else { all & (all << (width(version) - length)) }
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
        let version = Version::of(address);
        let bits = width(version);
        if length > bits {
            return Err(BadPrefix { length, bits });
        }
        Ok(Self::of(version, address_bits(address), length))
    }

    /// The addresses of a version that share the first `length` bits of `bits`.
    pub(super) fn of(version: Version, bits: u128, length: u8) -> Self {
        let mask = mask(version, length);
        Self { version: Some(version), network: bits & mask, mask, length }
    }

    /// The IP version; `None` for [`ANY`](Self::ANY).
    #[must_use]
    pub fn version(&self) -> Option<Version> {
        self.version
    }

    /// The lowest address; `None` for [`ANY`](Self::ANY).
    #[must_use]
    pub fn network(&self) -> Option<IpAddr> {
        self.version.map(|version| address_of(version, self.network))
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

    /// The lowest address as a number.
    pub(super) fn bits(&self) -> u128 {
        self.network
    }

    /// One bit for each that its addresses share.
    pub(super) fn mask(&self) -> u128 {
        self.mask
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

/// Addresses from one to another, both included, or every address of both versions. A single address and a
/// prefix are ranges, too (RFC 4301 4.4.1.1: "a list of ranges").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AddressRange {
    version: Option<Version>,
    first: u128,
    /// The last address less the first, so that one comparison decides on an address.
    span: u128,
}

/// Two addresses are no range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadRange {
    /// One is IPv4, the other IPv6.
    #[error("{first} and {last} are of different IP versions")]
    Versions {
        /// The first address.
        first: IpAddr,
        /// The last address.
        last: IpAddr,
    },
    /// The last is below the first.
    #[error("{last} is below {first}")]
    Order {
        /// The first address.
        first: IpAddr,
        /// The last address.
        last: IpAddr,
    },
}

impl From<Prefix> for AddressRange {
    fn from(prefix: Prefix) -> Self {
        let Some(version) = prefix.version else { return Self::ANY };
        let span = mask(version, width(version)) & !prefix.mask;
        Self { version: Some(version), first: prefix.network, span }
    }
}

impl AddressRange {
    /// Every address of both versions.
    pub const ANY: AddressRange = AddressRange { version: None, first: 0, span: u128::MAX };

    /// The addresses from `first` to `last`.
    ///
    /// # Errors
    /// [`BadRange`] if they are of two versions or `last` is below `first`.
    pub fn new(first: IpAddr, last: IpAddr) -> Result<Self, BadRange> {
        let version = Version::of(first);
        if version != Version::of(last) {
            return Err(BadRange::Versions { first, last });
        }
        match address_bits(last).checked_sub(address_bits(first)) {
            Some(span) => Ok(Self { version: Some(version), first: address_bits(first), span }),
            None => Err(BadRange::Order { first, last }),
        }
    }

    /// A single address.
    #[must_use]
    pub fn host(address: IpAddr) -> Self {
        Self { version: Some(Version::of(address)), first: address_bits(address), span: 0 }
    }

    /// The IP version; `None` for [`ANY`](Self::ANY).
    #[must_use]
    pub fn version(&self) -> Option<Version> {
        self.version
    }

    /// The lowest and the highest address; `None` for [`ANY`](Self::ANY).
    #[must_use]
    pub fn ends(&self) -> Option<(IpAddr, IpAddr)> {
        let version = self.version?;
        Some((address_of(version, self.first), address_of(version, self.last())))
    }

    fn last(&self) -> u128 {
        self.first.wrapping_add(self.span)
    }

    /// The range as one prefix; `None` if it takes several.
    #[must_use]
    pub fn prefix(&self) -> Option<Prefix> {
        let covering = self.covering_prefix();
        (Self::from(covering) == *self).then_some(covering)
    }

    /// The longest prefix that holds all of it.
    #[must_use]
    pub fn covering_prefix(&self) -> Prefix {
        let Some(version) = self.version else { return Prefix::ANY };
        let unused = 128 - u32::from(width(version));
        let common = (self.first ^ self.last()).leading_zeros() - unused;
        // At most 128.
        Prefix::of(version, self.first, u8::try_from(common).unwrap_or(width(version)))
    }

    /// The fewest prefixes that make it up, in order: at most 62 for IPv4, 254 for IPv6.
    pub fn prefixes(&self) -> impl Iterator<Item = Prefix> + use<> {
        let (version, mut next, last) = (self.version, Some(self.first), self.last());
        std::iter::from_fn(move || {
            let first = next?;
            let Some(version) = version else {
                next = None;
                return Some(Prefix::ANY);
            };
            // As many low bits as are zero in the first address, and as few as end before the last one.
            let bits = u32::from(width(version));
            let aligned = first.trailing_zeros().min(bits);
            let fitting = match (last - first).checked_add(1) {
                Some(addresses) => addresses.ilog2(),
                None => bits,
            };
            let host_bits = aligned.min(fitting);
            let prefix = Prefix::of(version, first, u8::try_from(bits - host_bits).unwrap_or_default());
            next = 1u128.checked_shl(host_bits).and_then(|step| first.checked_add(step));
            next = next.filter(|next| *next <= last);
            Some(prefix)
        })
    }

    /// Whether every address of `other` is in it.
    #[must_use]
    pub fn covers(&self, other: &AddressRange) -> bool {
        let same_version = self.version.is_none() || self.version == other.version;
        same_version && self.first <= other.first && other.last() <= self.last()
    }

    /// Whether some address is in both.
    pub(super) fn overlaps(&self, other: &AddressRange) -> bool {
        let may_be_same = self.version.is_none() || other.version.is_none_or(|v| self.version == Some(v));
        may_be_same && self.first <= other.last() && other.first <= self.last()
    }

    #[inline(always)]
    pub(super) fn contains(&self, version: Version, address: u128) -> bool {
        // What lies below the first address wraps to a huge value: one comparison decides.
        address.wrapping_sub(self.first) <= self.span && self.version.is_none_or(|v| v == version)
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.prefix(), self.ends()) {
            (Some(prefix), _) => prefix.fmt(f),
            (None, Some((first, last))) => write!(f, "{first}-{last}"),
            (None, None) => f.write_str("any"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn prefix(text: &str) -> Prefix {
        let (address, length) = text.split_once('/').unwrap();
        Prefix::new(address.parse().unwrap(), length.parse().unwrap()).unwrap()
    }

    fn range(first: &str, last: &str) -> AddressRange {
        AddressRange::new(first.parse().unwrap(), last.parse().unwrap()).unwrap()
    }

    #[test]
    fn prefixes_of_every_length_contain_their_first_and_last_address() {
        for length in 0..=32u8 {
            let p: AddressRange = Prefix::new("10.20.30.40".parse().unwrap(), length).unwrap().into();
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
        for (wide, narrow, covers) in [
            ("10.0.0.0/8", "10.2.0.0/16", true),
            ("10.2.0.0/16", "10.0.0.0/8", false),
            ("10.0.0.0/8", "11.0.0.0/16", false),
            ("0.0.0.0/0", "255.255.255.255/32", true),
            ("::/0", "10.0.0.0/8", false),
            ("::/0", "fd00::1/128", true),
        ] {
            let (wide, narrow) = (prefix(wide), prefix(narrow));
            assert_eq!(wide.covers(&narrow), covers, "{wide} {narrow}");
            assert_eq!(AddressRange::from(wide).covers(&narrow.into()), covers, "{wide} {narrow}");
        }
        assert!(Prefix::ANY.covers(&Prefix::ANY) && Prefix::ANY.covers(&prefix("::/0")));
        assert!(!prefix("::/0").covers(&Prefix::ANY) && !prefix("0.0.0.0/0").covers(&Prefix::ANY));
        let any = AddressRange::ANY;
        assert!(any.covers(&any) && any.covers(&prefix("::/0").into()));
        assert!(!AddressRange::from(prefix("::/0")).covers(&any));
    }

    #[test]
    fn a_range_needs_two_addresses_of_one_version_in_order() {
        let new = |first: &str, last: &str| AddressRange::new(first.parse().unwrap(), last.parse().unwrap());
        assert!(matches!(new("10.0.0.1", "::1"), Err(BadRange::Versions { .. })));
        assert!(matches!(new("10.0.0.2", "10.0.0.1"), Err(BadRange::Order { .. })));
        assert!(new("10.0.0.1", "10.0.0.1").is_ok_and(|one| one.prefix() == Some(prefix("10.0.0.1/32"))));
    }

    #[test]
    fn ranges_are_shown_as_prefixes_where_they_are_one() {
        for (first, last, shown) in [
            ("10.0.0.0", "10.0.0.255", "10.0.0.0/24"),
            ("10.0.0.1", "10.0.0.255", "10.0.0.1-10.0.0.255"),
            ("0.0.0.0", "255.255.255.255", "0.0.0.0/0"),
            ("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "::/0"),
            ("fd00::1", "fd00::2", "fd00::1-fd00::2"),
        ] {
            assert_eq!(range(first, last).to_string(), shown);
        }
        assert_eq!(AddressRange::ANY.to_string(), "any");
    }

    /// The bound that the SPD's index relies on.
    #[test]
    fn the_worst_ranges_take_62_and_254_prefixes() {
        assert_eq!(range("0.0.0.1", "255.255.255.254").prefixes().count(), 62);
        let all_but_two = range("::1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe");
        assert_eq!(all_but_two.prefixes().count(), 254);
        assert_eq!(AddressRange::ANY.prefixes().collect::<Vec<_>>(), [Prefix::ANY]);
    }

    proptest! {
        #[test]
        fn the_prefixes_of_a_range_are_adjacent_and_make_up_all_of_it(
            a in any::<u128>(), b in any::<u128>(), v6 in any::<bool>(), near in 0..128u32,
        ) {
            let cut = |n: u128| if v6 { n } else { n & 0xFFFF_FFFF };
            let (a, b) = (cut(a), cut(a ^ b >> near));
            let version = if v6 { Version::V6 } else { Version::V4 };
            let (first, last) = (a.min(b), a.max(b));
            let range = AddressRange { version: Some(version), first, span: last - first };
            let mut next = Some(first);
            let pieces: Vec<AddressRange> = range.prefixes().map(Into::into).collect();
            for piece in &pieces {
                prop_assert_eq!(Some(piece.first), next);
                prop_assert!(range.covers(piece));
                next = piece.last().checked_add(1);
            }
            prop_assert_eq!(next, last.checked_add(1));
            prop_assert!(pieces.len() <= 2 * usize::from(width(version)) - 2 || pieces.len() == 1);
            let covering = AddressRange::from(range.covering_prefix());
            prop_assert!(covering.covers(&range));
            prop_assert_eq!(range.prefix().is_some(), pieces.len() == 1);
            for address in [first, last, first.wrapping_sub(1), last.wrapping_add(1)].map(cut) {
                prop_assert_eq!(range.contains(version, address), first <= address && address <= last);
            }
        }
    }
}

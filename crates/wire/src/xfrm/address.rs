//! Addresses, as XFRM has them: 16 bytes, of which IPv4 uses the first 4. Which family an address is of is
//! said elsewhere in its structure.

use super::family;
use super::structure::{Field, Order, Structure};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// `xfrm_address_t`: an address whose family is known from elsewhere, in network order.
///
/// For IPv4 the last 12 bytes mean nothing, and programs leave in them what was there: compare addresses by
/// [`ip`](Self::ip).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Address(pub [u8; 16]);

impl Address {
    /// No address: zeros.
    pub const ANY: Self = Self([0; 16]);

    /// The address, if `family` is one of IP.
    #[must_use]
    pub fn ip(&self, family: u16) -> Option<IpAddr> {
        match family {
            family::IPV4 => self.0.first_chunk().map(|&first: &[u8; 4]| IpAddr::V4(Ipv4Addr::from(first))),
            family::IPV6 => Some(IpAddr::V6(Ipv6Addr::from(self.0))),
            _ => None,
        }
    }
}

impl From<IpAddr> for Address {
    fn from(ip: IpAddr) -> Self {
        let mut bytes = [0; 16];
        match ip {
            IpAddr::V4(v4) => bytes[..4].copy_from_slice(&v4.octets()),
            IpAddr::V6(v6) => bytes = v6.octets(),
        }
        Self(bytes)
    }
}

/// The family of an address: [`family::IPV4`] or [`family::IPV6`].
#[must_use]
pub const fn family_of(ip: IpAddr) -> u16 {
    match ip {
        IpAddr::V4(_) => family::IPV4,
        IpAddr::V6(_) => family::IPV6,
    }
}

impl Field for Address {
    const BYTES: usize = 16;

    fn get(bytes: &[u8], _: Order) -> Self {
        let mut array = [0; 16];
        array.copy_from_slice(bytes);
        Self(array)
    }

    fn put(&self, bytes: &mut [u8], _: Order) {
        bytes.copy_from_slice(&self.0);
    }
}

impl Structure for Address {
    const LENGTH: usize = 16;

    fn read_first(bytes: &[u8]) -> Option<Self> {
        bytes.first_chunk().map(|bytes| Self(*bytes))
    }

    fn append(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.0);
    }
}

//! Socket addresses in the kernel's layout.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Bytes of `struct sockaddr_in6`, the longest that occurs here.
pub(crate) const MAX_ADDRESS_BYTES: usize = 28;
const V4_BYTES: usize = 16;

/// A `struct sockaddr_in` or `sockaddr_in6`, byte by byte, aligned like the kernel's C structures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(8))]
pub(crate) struct RawAddress {
    bytes: [u8; MAX_ADDRESS_BYTES],
    length: u8,
}

impl RawAddress {
    pub(crate) const EMPTY: Self = Self { bytes: [0; MAX_ADDRESS_BYTES], length: 0 };

    pub(crate) fn new(address: SocketAddr) -> Self {
        let mut raw = Self::EMPTY;
        raw.bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
        let family = match address {
            SocketAddr::V4(a) => {
                raw.bytes[4..8].copy_from_slice(&a.ip().octets());
                raw.length = 16;
                libc::AF_INET
            }
            SocketAddr::V6(a) => {
                raw.bytes[8..24].copy_from_slice(&a.ip().octets());
                raw.bytes[24..28].copy_from_slice(&a.scope_id().to_ne_bytes());
                raw.length = 28;
                libc::AF_INET6
            }
        };
        let family = u16::try_from(family).unwrap_or(0); // 2 and 10
        raw.bytes[..2].copy_from_slice(&family.to_ne_bytes());
        raw
    }

    /// The bytes for the kernel to read.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    /// All bytes, for the kernel to write to.
    pub(crate) fn storage(&mut self) -> &mut [u8; MAX_ADDRESS_BYTES] {
        &mut self.bytes
    }

    /// Parses what the kernel wrote to [`storage`](Self::storage), `length` bytes of it; `None` if it is no
    /// IP address.
    pub(crate) fn read(&self, length: usize) -> Option<SocketAddr> {
        let b = &self.bytes;
        let family = i32::from(u16::from_ne_bytes([b[0], b[1]]));
        let port = u16::from_be_bytes([b[2], b[3]]);
        if family == libc::AF_INET && length >= V4_BYTES {
            return Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(b[4], b[5], b[6], b[7])), port));
        }
        if family == libc::AF_INET6 && length >= MAX_ADDRESS_BYTES {
            let octets = b[8..].first_chunk::<16>()?;
            return Some(SocketAddr::new(IpAddr::V6(Ipv6Addr::from(*octets)), port));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        for text in ["192.0.2.1:4500", "[2001:db8::1]:4501"] {
            let address: SocketAddr = text.parse().unwrap();
            let raw = RawAddress::new(address);
            assert_eq!(raw.read(raw.bytes().len()), Some(address));
            assert_eq!(raw.read(raw.bytes().len() - 1), None);
        }
        assert_eq!(RawAddress::EMPTY.read(28), None);
    }
}

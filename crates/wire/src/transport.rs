//! Transport mode: where ESP or AH is in a datagram (RFC 4303 3.1.1, RFC 4302 3.1.1).
//!
//! ```text
//!   IPv4   IP, options                                           │ TCP, …
//!   IPv6   IP, hop-by-hop, [destination, routing], fragment      │ destination, TCP, …
//!                                                                └ ESP, AH, or UDP before ESP, goes here
//! ```
//!
//! Both RFCs want them behind hop-by-hop options, routing and fragment headers, which routers and reassembly
//! read, and leave it to the implementation on which side destination options are. Here, options that precede
//! one of those headers stay before it: they are for each router that the routing header names (RFC 8200
//! 4.1). All others are for the final destination alone and come after ESP or AH, so that ESP protects and
//! hides them (RFC 4303 3.1.1: "it generally will be desirable"). Linux and Scapy leave destination options
//! before ESP where there is no routing header. A receiver takes both: [`TransportPlace::of_received`] steps
//! over destination options on either side.
//!
//! Transport mode is for whole datagrams (RFC 4303 3.3.4, RFC 4302 3.3.4); an atomic fragment is one.

use crate::checksum::Checksum;
use crate::ip::{Fragment, fragment_at};
use crate::ip::{IPV4_HEADER_BYTES, IPV6_HEADER_BYTES, MAX_EXTENSION_HEADERS, Version, extension_bytes};
use crate::{ParseError, protocol};

/// Why transport mode has no place in a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum NoPlace {
    /// Its headers break their format.
    #[error("{0}")]
    Malformed(#[from] ParseError),
    /// It is a fragment.
    #[error("a fragment")]
    Fragment,
    /// It does not contain the protocol that was looked for.
    #[error("without the protocol looked for")]
    OtherProtocol,
}

/// Where a header is, or is to be inserted, in a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransportPlace {
    /// IP version.
    pub version: Version,
    /// Offset of the header's first byte.
    pub at: usize,
    /// Offset of the byte that says what begins at `at`.
    pub next_header_at: usize,
    /// What that byte says.
    pub next_header: u8,
    /// Bytes of the whole datagram, as its length field says; never more than there are.
    pub total_bytes: usize,
}

impl TransportPlace {
    /// Where ESP or AH goes in `datagram`, an outbound one; bytes after it are allowed. The checksum of an
    /// IPv4 header is not verified, since [`IpHeader::parse`](crate::ip::IpHeader::parse) did.
    ///
    /// # Errors
    /// [`NoPlace::Fragment`], and [`NoPlace::Malformed`] if a header does not fit.
    #[inline]
    pub fn to_insert(datagram: &[u8]) -> Result<Self, NoPlace> {
        Self::find(datagram, |number| number != protocol::DESTINATION_OPTIONS)
    }

    /// Where ESP, AH or UDP is, by its protocol number, in `datagram`, a received one. What is before it
    /// stays when the header is removed.
    ///
    /// # Errors
    /// As [`to_insert`](Self::to_insert), and [`NoPlace::OtherProtocol`] if `number` is not what follows the
    /// extension headers.
    #[inline]
    pub fn of_received(datagram: &[u8], number: u8) -> Result<Self, NoPlace> {
        let place = Self::find(datagram, |_| true)?;
        if place.next_header == number { Ok(place) } else { Err(NoPlace::OtherProtocol) }
    }

    /// The place behind the last extension header that must precede it.
    #[inline]
    fn find(datagram: &[u8], must_precede: impl Fn(u8) -> bool) -> Result<Self, NoPlace> {
        match datagram.first().map(|byte| byte >> 4) {
            Some(4) => Self::in_ipv4(datagram),
            Some(6) => Self::in_ipv6(datagram, must_precede),
            Some(_) => Err(ParseError::NotIp.into()),
            None => Err(ParseError::Truncated.into()),
        }
    }

    #[inline]
    fn in_ipv4(datagram: &[u8]) -> Result<Self, NoPlace> {
        const PROTOCOL_AT: usize = 9;
        let h = datagram.first_chunk::<IPV4_HEADER_BYTES>().ok_or(ParseError::Truncated)?;
        let at = usize::from(h[0] & 0x0F) * 4;
        let total_bytes = usize::from(u16::from_be_bytes([h[2], h[3]]));
        if at < IPV4_HEADER_BYTES || total_bytes < at {
            return Err(ParseError::BadHeader.into());
        }
        if total_bytes > datagram.len() {
            return Err(ParseError::Truncated.into());
        }
        // More Fragments, and any offset.
        if u16::from_be_bytes([h[6], h[7]]) & 0x3FFF != 0 {
            return Err(NoPlace::Fragment);
        }
        let next_header = h[PROTOCOL_AT];
        Ok(Self { version: Version::V4, at, next_header_at: PROTOCOL_AT, next_header, total_bytes })
    }

    fn in_ipv6(datagram: &[u8], must_precede: impl Fn(u8) -> bool) -> Result<Self, NoPlace> {
        const NEXT_HEADER_AT: usize = 6;
        let h = datagram.first_chunk::<IPV6_HEADER_BYTES>().ok_or(ParseError::Truncated)?;
        let total_bytes = IPV6_HEADER_BYTES + usize::from(u16::from_be_bytes([h[4], h[5]]));
        let datagram = datagram.get(..total_bytes).ok_or(ParseError::Truncated)?;
        let mut here = Self {
            version: Version::V6,
            at: IPV6_HEADER_BYTES,
            next_header_at: NEXT_HEADER_AT,
            next_header: h[NEXT_HEADER_AT],
            total_bytes,
        };
        let mut place = here;
        // One round more than headers: the last finds what follows them.
        for _ in 0..=MAX_EXTENSION_HEADERS {
            let number = here.next_header;
            let Some(length) = extension_bytes(number, datagram, here.at)? else { return Ok(place) };
            if number == protocol::FRAGMENT
                && fragment_at(datagram, here.at)? != (Fragment { offset_bytes: 0, more: false })
            {
                return Err(NoPlace::Fragment);
            }
            here = Self {
                at: here.at + length,
                next_header_at: here.at,
                next_header: datagram[here.at],
                ..here
            };
            if must_precede(number) {
                place = here;
            }
        }
        Err(ParseError::BadHeader.into())
    }

    /// Says in the headers of a datagram that `next_header` begins at `at` now, and that it has `total_bytes`
    /// in all. A checksum of IPv4 that was right stays right (RFC 1624). `datagram` begins as the one that
    /// this place was found in; it is enough if it ends at `at`.
    ///
    /// # Errors
    /// [`ParseError::BadHeader`] if the length field cannot say that length, [`ParseError::Truncated`] if
    /// `datagram` is shorter than `at`. It is unchanged then.
    #[inline]
    pub fn rewrite(
        &self,
        datagram: &mut [u8],
        next_header: u8,
        total_bytes: usize,
    ) -> Result<(), ParseError> {
        let front = datagram.get_mut(..self.at).ok_or(ParseError::Truncated)?;
        let fixed_bytes = self.version.header_bytes();
        let counted = match self.version {
            Version::V4 => total_bytes,
            Version::V6 => total_bytes.checked_sub(fixed_bytes).ok_or(ParseError::BadHeader)?,
        };
        let length = u16::try_from(counted).map_err(|_| ParseError::BadHeader)?.to_be_bytes();
        if front.len() < fixed_bytes || self.next_header_at >= front.len() {
            return Err(ParseError::Truncated);
        }
        match self.version {
            Version::V4 => {
                let checksum = Checksum::from_bytes([front[10], front[11]]);
                let checksum = checksum.update(&[front[2], front[3]], &length);
                let checksum = checksum.update(&[0, front[9]], &[0, next_header]);
                front[10..12].copy_from_slice(&checksum.to_bytes());
                front[2..4].copy_from_slice(&length);
            }
            Version::V6 => front[4..6].copy_from_slice(&length),
        }
        front[self.next_header_at] = next_header;
        Ok(())
    }
}

#[cfg(test)]
mod tests;

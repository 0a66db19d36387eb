//! Mutable fields: the form of a datagram that the ICV of its Authentication Header covers (RFC 4302 3.3.3.1,
//! Appendix A).
//!
//! Routers change some fields of the headers before AH. The ICV is computed over the datagram as if these
//! were zero, or held what they will hold at the destination:
//!
//! ```text
//!   IPv4    zero             TOS, flags, fragment offset, TTL, checksum, all options but those below
//!           as they are      EOL, NOP, the three security options, router alert, sender-directed delivery
//!           as they arrive   destination address, where a source route leads elsewhere
//!   IPv6    zero             traffic class, flow label, hop limit, data of options that may change en route
//!           as they arrive   routing header of type 0 and destination address
//!           left out         header of an atomic fragment
//!   AH      zero             ICV
//! ```
//!
//! What follows AH does not change. [`mask`] brings a datagram into this form in place, at the sender before
//! it leaves and at the receiver after it arrived: a route that was followed to its end arrives as it is. The
//! caller keeps the first [`masked_bytes`] of the datagram, and copies them back once the ICV is computed.
//!
//! Deliberately missing: Mobile IPv6, where AH sees addresses exchanged (RFC 6275 11.3.2). Its routing header
//! is refused while it has an address left, and its Home Address option is covered as it is.

use crate::ah::AhHeader;
use crate::ip::{Fragment, fragment_at};
use crate::ip::{IPV4_HEADER_BYTES, IPV6_HEADER_BYTES, MAX_EXTENSION_HEADERS, Version, extension_bytes};
use crate::{ParseError, options, protocol};
use std::ops::Range;

/// Why an ICV cannot cover a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum NotCovered {
    /// A header before AH, or AH itself, breaks its format.
    #[error("{0}")]
    Malformed(#[from] ParseError),
    /// It is a fragment: AH is for whole datagrams (RFC 4302 3.3.4, 3.4.1).
    #[error("a fragment")]
    Fragment,
    /// No AH follows the IP header and the extension headers that may precede AH.
    #[error("no authentication header where one is expected")]
    NoAh,
    /// AH has not the length that the ICV of its SA needs (RFC 4302 2.6).
    #[error("the authentication header has another length than the ICV needs")]
    IcvLength,
    /// It has a routing header with addresses left, of a type for which nobody says what arrives.
    #[error("a routing header of type {0} with addresses left")]
    RoutingHeader(u8),
}

/// How many bytes at the start of `datagram` [`mask`] may change. The last `icv_bytes` of these are the ICV
/// of its AH; bytes after the datagram are allowed.
///
/// # Errors
/// [`NotCovered`] says why no ICV can cover it; `mask` then gives the same answer.
#[inline]
pub fn masked_bytes(datagram: &[u8], icv_bytes: usize) -> Result<usize, NotCovered> {
    locate(datagram, icv_bytes).map(|place| place.icv.end)
}

/// Brings `datagram` into the form that the ICV of its AH covers, an ICV of `icv_bytes`. Returns the range
/// that is covered, up to the end of the datagram. It begins later than the datagram where the header of an
/// atomic fragment is left out: what precedes that header is moved over it.
///
/// # Errors
/// [`NotCovered`] says why no ICV can cover it; it is unchanged then.
#[inline]
pub fn mask(datagram: &mut [u8], icv_bytes: usize) -> Result<Range<usize>, NotCovered> {
    let place = locate(datagram, icv_bytes)?;
    let front = &mut datagram[..place.ah];
    let start = match place.version {
        Version::V4 => mask_ipv4(front)?,
        Version::V6 => mask_ipv6(front)?,
    };
    datagram[place.icv].fill(0);
    Ok(start..place.total_bytes)
}

/// Where a datagram's AH is.
struct Place {
    version: Version,
    ah: usize,
    icv: Range<usize>,
    total_bytes: usize,
}

/// Finds AH and checks everything that [`mask`] relies on.
#[inline]
fn locate(datagram: &[u8], icv_bytes: usize) -> Result<Place, NotCovered> {
    let (version, total_bytes, ah) = match datagram.first().map(|byte| byte >> 4) {
        Some(4) => locate_ipv4(datagram)?,
        Some(6) => locate_ipv6(datagram)?,
        Some(_) => return Err(ParseError::NotIp.into()),
        None => return Err(ParseError::Truncated.into()),
    };
    let header = AhHeader::parse(&datagram[ah..total_bytes])?;
    let icv = header.icv(icv_bytes, version).map_err(|_| NotCovered::IcvLength)?;
    Ok(Place { version, ah, icv: ah + icv.start..ah + icv.end, total_bytes })
}

/// Version, bytes of the datagram, and where AH begins. The header's checksum is not verified: the sender
/// computes it last.
#[inline]
fn locate_ipv4(datagram: &[u8]) -> Result<(Version, usize, usize), NotCovered> {
    let h = datagram.first_chunk::<IPV4_HEADER_BYTES>().ok_or(ParseError::Truncated)?;
    let header_bytes = usize::from(h[0] & 0x0F) * 4;
    let total_bytes = usize::from(u16::from_be_bytes([h[2], h[3]]));
    if header_bytes < IPV4_HEADER_BYTES || total_bytes < header_bytes {
        return Err(ParseError::BadHeader.into());
    }
    if total_bytes > datagram.len() {
        return Err(ParseError::Truncated.into());
    }
    // More Fragments, and any offset.
    if u16::from_be_bytes([h[6], h[7]]) & 0x3FFF != 0 {
        return Err(NotCovered::Fragment);
    }
    if h[9] != protocol::AH {
        return Err(NotCovered::NoAh);
    }
    let list = &datagram[IPV4_HEADER_BYTES..header_bytes];
    let mut at = 0;
    while let Some(option) = options::ipv4_or_tcp(list, at)? {
        if is_source_route(option.kind) {
            unvisited_destination(&list[option.data])?;
        }
        at = option.whole.end;
    }
    Ok((Version::V4, total_bytes, header_bytes))
}

#[inline]
fn mask_ipv4(header: &mut [u8]) -> Result<usize, ParseError> {
    let (fixed, list) = header.split_first_chunk_mut::<IPV4_HEADER_BYTES>().ok_or(ParseError::Truncated)?;
    fixed[1] = 0; // TOS
    fixed[6..8].fill(0); // flags and fragment offset
    fixed[8] = 0; // TTL
    fixed[10..12].fill(0); // checksum
    let mut at = 0;
    while let Some(option) = options::ipv4_or_tcp(list, at)? {
        if is_source_route(option.kind)
            && let Some(destination) = unvisited_destination(&list[option.data])?
        {
            fixed[16..20].copy_from_slice(&destination);
        }
        at = option.whole.end;
        if !is_immutable(option.kind) {
            // "The entire option is viewed as a unit" (RFC 4302 3.3.3.1.1.2): its type and length, too.
            list[option.whole].fill(0);
        }
    }
    Ok(0)
}

/// The options of IPv4 that are covered as they are (RFC 4302 A1). All others are zeroed, unknown ones too
/// (3.3.3.1).
fn is_immutable(kind: u8) -> bool {
    const END: u8 = 0;
    const NO_OPERATION: u8 = 1;
    const SECURITY: u8 = 130;
    const EXTENDED_SECURITY: u8 = 133;
    const COMMERCIAL_SECURITY: u8 = 134;
    const ROUTER_ALERT: u8 = 148;
    const SENDER_DIRECTED: u8 = 149;
    matches!(
        kind,
        END | NO_OPERATION
            | SECURITY
            | EXTENDED_SECURITY
            | COMMERCIAL_SECURITY
            | ROUTER_ALERT
            | SENDER_DIRECTED
    )
}

/// Loose or strict (RFC 791 3.1).
fn is_source_route(kind: u8) -> bool {
    const LOOSE: u8 = 131;
    const STRICT: u8 = 137;
    matches!(kind, LOOSE | STRICT)
}

/// The last address of a source route that has addresses left: the destination address at arrival (RFC 791
/// 3.1, RFC 4302 3.3.3.1.1.1).
fn unvisited_destination(data: &[u8]) -> Result<Option<[u8; 4]>, ParseError> {
    let (&pointer, route) = data.split_first().ok_or(ParseError::BadHeader)?;
    // The pointer counts from the option's first byte, from 1: 4 is the first address.
    if pointer < 4 || !route.len().is_multiple_of(4) {
        return Err(ParseError::BadHeader);
    }
    let is_left = usize::from(pointer) - 4 < route.len();
    Ok(route.last_chunk::<4>().copied().filter(|_| is_left))
}

/// As [`locate_ipv4`]. Jumbograms (RFC 2675) have no room for their hop-by-hop options here, and are refused.
#[inline]
fn locate_ipv6(datagram: &[u8]) -> Result<(Version, usize, usize), NotCovered> {
    let h = datagram.first_chunk::<IPV6_HEADER_BYTES>().ok_or(ParseError::Truncated)?;
    let total_bytes = IPV6_HEADER_BYTES + usize::from(u16::from_be_bytes([h[4], h[5]]));
    let datagram = datagram.get(..total_bytes).ok_or(ParseError::Truncated)?;
    let (mut number, mut at) = (h[6], IPV6_HEADER_BYTES);
    // One round more than headers: the last finds AH.
    for _ in 0..=MAX_EXTENSION_HEADERS {
        if number == protocol::AH {
            return Ok((Version::V6, total_bytes, at));
        }
        let length = extension_bytes(number, datagram, at)?.ok_or(NotCovered::NoAh)?;
        let header = &datagram[at..at + length];
        match number {
            protocol::ROUTING => check_route(header)?,
            protocol::FRAGMENT => check_atomic(header)?,
            _ => check_options(&header[2..])?,
        }
        number = header[0];
        at += length;
    }
    Err(ParseError::BadHeader.into())
}

fn check_options(list: &[u8]) -> Result<(), ParseError> {
    let mut at = 0;
    while let Some(option) = options::ipv6(list, at)? {
        at = option.whole.end;
    }
    Ok(())
}

/// A route without addresses left is covered as it is. One with addresses left must be of type 0, and have
/// that many (RFC 2460 4.4).
fn check_route(header: &[u8]) -> Result<(), NotCovered> {
    let (kind, segments_left) = (header[2], usize::from(header[3]));
    match (kind, segments_left) {
        (_, 0) => Ok(()),
        (0, _) => {
            let addresses = &header[8..];
            let is_good = addresses.len().is_multiple_of(16) && segments_left <= addresses.len() / 16;
            if is_good { Ok(()) } else { Err(ParseError::BadHeader.into()) }
        }
        _ => Err(NotCovered::RoutingHeader(kind)),
    }
}

fn check_atomic(header: &[u8]) -> Result<(), NotCovered> {
    match fragment_at(header, 0)? {
        Fragment { offset_bytes: 0, more: false } => Ok(()),
        _ => Err(NotCovered::Fragment),
    }
}

/// Masks IPv6 header and extension headers, all of `front`. Returns where the covered part begins.
#[inline]
fn mask_ipv6(front: &mut [u8]) -> Result<usize, ParseError> {
    front[0] &= 0xF0; // traffic class
    front[1..4].fill(0); // traffic class and flow label
    front[7] = 0; // hop limit
    let (mut start, mut number_at, mut at) = (0, 6, IPV6_HEADER_BYTES);
    while at < front.len() {
        let number = front[number_at];
        let length = extension_bytes(number, front, at)?.ok_or(ParseError::BadHeader)?;
        match number {
            protocol::FRAGMENT => {
                front[number_at] = front[at];
                front.copy_within(start..at, start + length);
                start += length;
                number_at += length;
            }
            protocol::ROUTING => {
                follow_route(&mut front[start..at + length], at - start);
                number_at = at;
            }
            _ => {
                mask_options(&mut front[at + 2..at + length])?;
                number_at = at;
            }
        }
        at += length;
    }
    shorten(front, start);
    Ok(start)
}

/// Zeroes the data of options that may change en route, but neither their type nor their length (RFC 8200
/// 4.2).
fn mask_options(list: &mut [u8]) -> Result<(), ParseError> {
    const MAY_CHANGE: u8 = 0x20;
    let mut at = 0;
    while let Some(option) = options::ipv6(list, at)? {
        at = option.whole.end;
        if option.kind & MAY_CHANGE != 0 {
            list[option.data].fill(0);
        }
    }
    Ok(())
}

/// Brings destination address and the routing header at `at` into the form in which they arrive: each router
/// on the way exchanges the destination address with the next address of the list (RFC 2460 4.4).
fn follow_route(front: &mut [u8], at: usize) {
    const DESTINATION: Range<usize> = 24..40;
    let segments_left = usize::from(front[at + 3]);
    if segments_left == 0 {
        return;
    }
    // The list ends with the header; the addresses that are left are the last ones.
    let end = front.len();
    let first = end - 16 * segments_left;
    let mut last = [0; 16];
    last.copy_from_slice(&front[end - 16..]);
    front.copy_within(first..end - 16, first + 16);
    front.copy_within(DESTINATION, first);
    front[DESTINATION].copy_from_slice(&last);
    front[at + 3] = 0;
}

/// Takes the bytes left out off the payload length, as if the headers there had never been (RFC 4302 A2,
/// "Fragmentation").
fn shorten(front: &mut [u8], left_out: usize) {
    if left_out > 0 {
        let length = u16::from_be_bytes([front[left_out + 4], front[left_out + 5]]);
        // Lossless: the headers left out are part of the payload, and at most eight.
        let length = length - u16::try_from(left_out).unwrap_or(0);
        front[left_out + 4..left_out + 6].copy_from_slice(&length.to_be_bytes());
    }
}

#[cfg(test)]
mod tests;

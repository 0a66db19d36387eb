//! IPv6 extension headers that the kernel stepped over before it gave a datagram to a raw socket. They come
//! as control data, in their order (RFC 3542 6 to 9; how several of a kind come is Linux's own choice), and
//! are put back in front of ESP or AH: the ICV of AH covers them (RFC 4302 3.3.3.1.2), and a packet in
//! transport mode keeps them.
//!
//! ```text
//!   the wire     | IPv6 | hop-by-hop | fragment | destination | AH | …
//!   the message                                               | AH | …
//!   control data          IPV6_HOPOPTS            IPV6_DSTOPTS
//!   delivered    | IPv6 | hop-by-hop | destination            | AH | …
//! ```
//!
//! A fragment header is not reported. The kernel has reassembled the datagram, or the header was that of an
//! atomic fragment (RFC 6946), which the ICV does not cover. The header before it then names what comes after
//! it.

use crate::control::next_message;
use arrayvec::ArrayVec;
use testudo_packet::{Buffer, DropReason};
use testudo_wire::protocol;

/// As many as a datagram may have ([`testudo_wire::ip`]).
const MAX_HEADERS: usize = 8;

/// The extension headers of one datagram: number and bytes of each, in their order.
#[derive(Debug, Default)]
pub(crate) struct ExtensionHeaders<'a>(ArrayVec<(u8, &'a [u8]), MAX_HEADERS>);

impl<'a> ExtensionHeaders<'a> {
    /// Those in the control data of a datagram whose headers end in `last`.
    ///
    /// # Errors
    /// [`DropReason::BadHeader`] if there are too many, if one has another length than it says, or does not
    /// name the next one.
    pub(crate) fn read(control: &'a [u8], last: u8) -> Result<Self, DropReason> {
        let mut headers = Self::default();
        let mut rest = control;
        while let Some((level, kind, header, after)) = next_message(rest) {
            rest = after;
            let number = match (level, kind) {
                (libc::IPPROTO_IPV6, libc::IPV6_HOPOPTS) => protocol::HOP_BY_HOP,
                (libc::IPPROTO_IPV6, libc::IPV6_DSTOPTS) => protocol::DESTINATION_OPTIONS,
                (libc::IPPROTO_IPV6, libc::IPV6_RTHDR) => protocol::ROUTING,
                _ => continue,
            };
            headers.0.try_push((number, header)).map_err(|_| DropReason::BadHeader)?;
        }
        let next = headers.0.iter().skip(1).map(|(number, _)| *number).chain([last]);
        let is_sound = headers.0.iter().zip(next).all(|((_, header), next)| is_sound(header, next));
        if is_sound { Ok(headers) } else { Err(DropReason::BadHeader) }
    }

    /// The number of the first header after that of IPv6, where the headers end in `last`.
    pub(crate) fn first(&self, last: u8) -> u8 {
        self.0.first().map_or(last, |(number, _)| *number)
    }

    /// Writes them before the content of `buffer`, which ends in a header `last`.
    ///
    /// The content moves, so that as much room is before the datagram as there is before one without such
    /// headers, and again as much as the headers have: AH needs room for a copy of all that it covers but
    /// does not follow it.
    ///
    /// # Errors
    /// [`DropReason::NoRoom`] if the buffer is too short for that.
    pub(crate) fn prepend_to(&self, buffer: &mut Buffer, last: u8) -> Result<(), DropReason> {
        let bytes: usize = self.0.iter().map(|(_, header)| header.len()).sum();
        if bytes == 0 {
            return Ok(());
        }
        let moved = u32::try_from(2 * bytes).map_err(|_| DropReason::NoRoom)?;
        let length = buffer.len();
        buffer.append(2 * bytes).map_err(|_| DropReason::NoRoom)?;
        buffer.bytes_mut().copy_within(..length, 2 * bytes);
        buffer.narrow(moved, u32::MAX);
        let mut room = buffer.prepend(bytes).map_err(|_| DropReason::NoRoom)?;
        let next = self.0.iter().skip(1).map(|(number, _)| *number).chain([last]);
        for ((_, header), next) in self.0.iter().zip(next) {
            let (place, after) = room.split_at_mut(header.len());
            place.copy_from_slice(header);
            place[0] = next;
            room = after;
        }
        Ok(())
    }
}

/// Whether a header has the length that it says (RFC 8200 4) and names `next`, or a fragment header that came
/// between them.
fn is_sound(header: &[u8], next: u8) -> bool {
    match header {
        [named, units, ..] => {
            header.len() == 8 * (1 + usize::from(*units)) && (*named == next || *named == protocol::FRAGMENT)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Control;
    use testudo_packet::{HEADROOM_BYTES, Pool};

    const HOP_BY_HOP: [u8; 8] = [60, 0, 5, 2, 0, 0, 1, 0];
    const DESTINATION: [u8; 16] = [51, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

    fn control(headers: &[(i32, &[u8])]) -> Vec<u8> {
        let mut control = Control::EMPTY;
        control.push(libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, &9i32.to_ne_bytes());
        headers.iter().for_each(|(kind, header)| control.push(libc::IPPROTO_IPV6, *kind, header));
        control.bytes().to_vec()
    }

    fn delivered(control: &[u8]) -> Result<(u8, Vec<u8>, usize), DropReason> {
        let headers = ExtensionHeaders::read(control, protocol::AH)?;
        let mut pool = Pool::new(1, 100);
        let mut buffer = pool.pop().unwrap();
        buffer.receive_area()[..2].copy_from_slice(b"AH");
        buffer.set_len(2);
        headers.prepend_to(&mut buffer, protocol::AH)?;
        Ok((headers.first(protocol::AH), buffer.bytes().to_vec(), buffer.headroom()))
    }

    /// RFC 8200 4.1: hop-by-hop options come first.
    #[test]
    fn headers_are_put_back_in_their_order() {
        let control = control(&[(libc::IPV6_HOPOPTS, &HOP_BY_HOP), (libc::IPV6_DSTOPTS, &DESTINATION)]);
        let expected = [&HOP_BY_HOP[..], &DESTINATION, b"AH"].concat();
        assert_eq!(delivered(&control), Ok((0, expected, HEADROOM_BYTES + 24)));
    }

    #[test]
    fn without_headers_nothing_moves() {
        assert_eq!(delivered(&control(&[])), Ok((51, b"AH".to_vec(), HEADROOM_BYTES)));
    }

    /// RFC 6946: what precedes the header of an atomic fragment names it, and the kernel does not report it.
    #[test]
    fn the_header_of_an_atomic_fragment_is_left_out() {
        let before = [44, 0, 5, 2, 0, 0, 1, 0];
        let control = control(&[(libc::IPV6_HOPOPTS, &before), (libc::IPV6_DSTOPTS, &DESTINATION)]);
        assert_eq!(delivered(&control).map(|(_, bytes, _)| bytes[..8].to_vec()), Ok(HOP_BY_HOP.to_vec()));
    }

    #[test]
    fn headers_that_do_not_fit_each_other_are_refused() {
        let both =
            |first: &[u8], second: &[u8]| control(&[(libc::IPV6_HOPOPTS, first), (libc::IPV6_RTHDR, second)]);
        let routing = [51, 0, 4, 0, 0, 0, 0, 0];
        let named = [43, 0, 5, 2, 0, 0, 1, 0];
        assert!(delivered(&both(&named, &routing)).is_ok());
        let wrong = [
            both(&HOP_BY_HOP, &routing),
            both(&named, &[50, 0, 4, 0, 0, 0, 0, 0]),
            both(&named, &[51, 1, 4, 0, 0, 0, 0, 0]),
            both(&named[..7], &routing),
            both(&[], &routing),
        ];
        for control in wrong {
            assert_eq!(delivered(&control), Err(DropReason::BadHeader), "{control:?}");
        }
        let many: Vec<_> = (0..9).map(|_| (libc::IPV6_RTHDR, &routing[..0])).collect();
        assert_eq!(delivered(&control(&many[..3])), Err(DropReason::BadHeader));
    }
}

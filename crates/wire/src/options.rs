//! Lists of options: those of IPv4 and TCP, and those in IPv6 hop-by-hop and destination options headers.
//!
//! ```text
//!   IPv4, TCP   kind 0: end of list    kind 1: one byte    others: kind, length of the whole option, data
//!   IPv6                               type 0: one byte    others: type, length of the data, data
//! ```
//!
//! Options are found one after another by offsets, so that a caller may change those it has found.

use crate::ParseError;
use std::ops::Range;

/// An option, by its place in the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoundOption {
    /// Option kind of IPv4 and TCP, option type of IPv6.
    pub(crate) kind: u8,
    /// All its bytes.
    pub(crate) whole: Range<usize>,
    /// Its data.
    pub(crate) data: Range<usize>,
}

/// The option at `at` of an IPv4 header's (RFC 791 3.1) or a TCP header's (RFC 9293 3.1) list; `None` at the
/// end of the list.
///
/// # Errors
/// [`ParseError::BadHeader`] if its length does not fit.
pub(crate) fn ipv4_or_tcp(list: &[u8], at: usize) -> Result<Option<FoundOption>, ParseError> {
    const END: u8 = 0;
    const NO_OPERATION: u8 = 1;
    let Some(&kind) = list.get(at) else { return Ok(None) };
    match (kind, list.get(at + 1)) {
        (END, _) => Ok(None),
        (NO_OPERATION, _) => Ok(Some(FoundOption { kind, whole: at..at + 1, data: at + 1..at + 1 })),
        (_, Some(&length)) if length >= 2 && at + usize::from(length) <= list.len() => {
            let end = at + usize::from(length);
            Ok(Some(FoundOption { kind, whole: at..end, data: at + 2..end }))
        }
        _ => Err(ParseError::BadHeader),
    }
}

/// The option at `at` of an IPv6 list (RFC 8200 4.2), Pad1 included; `None` at the end of the list.
///
/// # Errors
/// [`ParseError::BadHeader`] if its length does not fit.
pub(crate) fn ipv6(list: &[u8], at: usize) -> Result<Option<FoundOption>, ParseError> {
    const PAD1: u8 = 0;
    let Some(&kind) = list.get(at) else { return Ok(None) };
    match (kind, list.get(at + 1)) {
        (PAD1, _) => Ok(Some(FoundOption { kind, whole: at..at + 1, data: at + 1..at + 1 })),
        (_, Some(&length)) if at + 2 + usize::from(length) <= list.len() => {
            let end = at + 2 + usize::from(length);
            Ok(Some(FoundOption { kind, whole: at..end, data: at + 2..end }))
        }
        _ => Err(ParseError::BadHeader),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Step = fn(&[u8], usize) -> Result<Option<FoundOption>, ParseError>;

    /// Kind and data of each option, up to the end of the list or what does not fit.
    fn all(step: Step, list: &[u8]) -> (Vec<(u8, &[u8])>, bool) {
        let (mut found, mut at) = (Vec::new(), 0);
        loop {
            match step(list, at) {
                Ok(Some(option)) => {
                    assert!(option.whole.start == at && option.whole.end > at, "progress");
                    assert_eq!(option.data.end, option.whole.end);
                    at = option.whole.end;
                    found.push((option.kind, &list[option.data]));
                }
                Ok(None) => return (found, true),
                Err(error) => {
                    assert_eq!(error, ParseError::BadHeader);
                    return (found, false);
                }
            }
        }
    }

    #[test]
    fn options_of_ipv4_and_tcp_are_found_up_to_the_end_of_the_list() {
        let list = [1, 148, 4, 9, 8, 1, 5, 2, 0, 7, 3, 4];
        let found = vec![(1, &[][..]), (148, &[9, 8]), (1, &[]), (5, &[])];
        assert_eq!(all(ipv4_or_tcp, &list), (found.clone(), true));
        assert_eq!(all(ipv4_or_tcp, &list[..8]), (found, true));
        for bad in [&[148][..], &[148, 0], &[148, 1], &[148, 3]] {
            assert_eq!(all(ipv4_or_tcp, &[&[1], bad].concat()), (vec![(1, &[][..])], false), "{bad:?}");
        }
    }

    #[test]
    fn options_of_ipv6_are_found_past_padding() {
        let list = [0, 0x3E, 2, 9, 8, 0, 1, 0, 5, 1, 7];
        let found = vec![(0, &[][..]), (0x3E, &[9, 8]), (0, &[]), (1, &[]), (5, &[7])];
        assert_eq!(all(ipv6, &list), (found, true));
        for bad in [&[1][..], &[1, 1], &[0x3E, 255, 0]] {
            assert_eq!(all(ipv6, &[&[0], bad].concat()), (vec![(0, &[][..])], false), "{bad:?}");
        }
    }
}

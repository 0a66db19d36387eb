//! From a captured frame to the IP datagram in it.

use std::ops::Range;
use testudo_packet::DropReason;

/// Layer below IP (<https://www.tcpdump.org/linktypes.html>), as far as it is read here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// The packet begins with its IP header.
    Raw,
    /// Ethernet, perhaps with VLAN tags.
    Ethernet,
    /// The format that `tcpdump -i any` writes.
    Cooked,
    /// The same, version 2.
    Cooked2,
}

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86DD;
/// 802.1Q, 802.1ad, and the type used before that.
const VLAN: [u16; 3] = [0x8100, 0x88A8, 0x9100];

impl Link {
    /// The link type of a file or interface; `None` if it is not read here.
    pub(crate) fn of(number: u32) -> Option<Self> {
        match number {
            // Some systems write 12 and 14 for 101.
            12 | 14 | 101 | 228 | 229 => Some(Link::Raw),
            1 => Some(Link::Ethernet),
            113 => Some(Link::Cooked),
            276 => Some(Link::Cooked2),
            _ => None,
        }
    }

    /// The number that files of this link type are written with.
    pub(crate) const fn number(self) -> u32 {
        match self {
            Link::Raw => 101,
            Link::Ethernet => 1,
            Link::Cooked => 113,
            Link::Cooked2 => 276,
        }
    }

    /// Where in `frame` the IP datagram is, without padding after it.
    pub(crate) fn datagram(self, frame: &[u8]) -> Result<Range<usize>, DropReason> {
        let (kind_at, header_bytes) = match self {
            Link::Raw => return Ok(0..frame.len()),
            Link::Ethernet => ethernet(frame)?,
            Link::Cooked => (14, 16),
            Link::Cooked2 => (0, 20),
        };
        let kind = be16(frame, kind_at).ok_or(DropReason::Truncated)?;
        if kind != IPV4 && kind != IPV6 {
            return Err(DropReason::NotIp);
        }
        let datagram = frame.get(header_bytes..).ok_or(DropReason::Truncated)?;
        Ok(header_bytes..header_bytes + promised_bytes(datagram, kind).min(datagram.len()))
    }
}

/// Where the type of the payload is, and where the payload starts: after any VLAN tags.
fn ethernet(frame: &[u8]) -> Result<(usize, usize), DropReason> {
    let mut kind_at = 12;
    while VLAN.contains(&be16(frame, kind_at).ok_or(DropReason::Truncated)?) {
        kind_at += 4;
    }
    Ok((kind_at, kind_at + 2))
}

/// The datagram's length from its own header: an Ethernet frame may be padded to 60 bytes.
fn promised_bytes(datagram: &[u8], kind: u16) -> usize {
    let length = if kind == IPV4 { be16(datagram, 2) } else { be16(datagram, 4) };
    let header_bytes = if kind == IPV4 { 0 } else { 40 };
    length.map_or(usize::MAX, |n| header_bytes + usize::from(n))
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    let pair = bytes.get(at..)?.first_chunk::<2>()?;
    Some(u16::from_be_bytes(*pair))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(tags: &[[u8; 4]], kind: [u8; 2], payload: &[u8]) -> Vec<u8> {
        [&[0; 12][..], &tags.concat(), &kind, payload].concat()
    }

    #[test]
    fn ethernet_and_its_tags_and_padding_are_stripped() {
        let mut payload = vec![0x45, 0, 0, 24, 0, 0, 0, 0, 64, 59];
        payload.resize(46, 0);
        let tag = [0x81, 0, 0, 7];
        let plain = frame(&[], [8, 0], &payload);
        assert_eq!(Link::Ethernet.datagram(&plain), Ok(14..38));
        let tagged = frame(&[[0x88, 0xA8, 0, 1], tag], [8, 0], &payload);
        assert_eq!(Link::Ethernet.datagram(&tagged), Ok(22..46));
        let mut six = vec![0x60, 0, 0, 0, 0, 2];
        six.resize(46, 0);
        assert_eq!(Link::Ethernet.datagram(&frame(&[], [0x86, 0xDD], &six)), Ok(14..56));
        assert_eq!(Link::Ethernet.datagram(&frame(&[], [8, 6], &payload)), Err(DropReason::NotIp));
    }

    #[test]
    fn a_frame_cut_anywhere_is_truncated_or_gives_what_there_is_of_its_datagram() {
        let payload = [&[0x45, 0, 0, 20][..], &[7; 16]].concat();
        let cooked = [&[0; 14][..], &[8, 0], &payload].concat();
        let cooked2 = [&[8, 0][..], &[0; 18], &payload].concat();
        let cases = [
            (Link::Raw, payload.clone(), 0),
            (Link::Ethernet, frame(&[], [8, 0], &payload), 14),
            (Link::Ethernet, frame(&[[0x81, 0, 0, 7], [0x91, 0, 0, 1]], [8, 0], &payload), 22),
            (Link::Cooked, cooked, 16),
            (Link::Cooked2, cooked2, 20),
        ];
        for (link, whole, header_bytes) in cases {
            for len in 0..=whole.len() {
                let expected =
                    if len < header_bytes { Err(DropReason::Truncated) } else { Ok(header_bytes..len) };
                assert_eq!(
                    link.datagram(&whole[..len]),
                    expected,
                    "{link:?}, {len} of {} bytes",
                    whole.len()
                );
            }
        }
    }

    #[test]
    fn cooked_frames_are_stripped() {
        let cooked = [&[0; 14][..], &[8, 0], &[0x45; 30]].concat();
        assert_eq!(Link::Cooked.datagram(&cooked), Ok(16..46));
        let cooked2 = [&[0x86, 0xDD][..], &[0; 18], &[0x60; 30]].concat();
        assert_eq!(Link::Cooked2.datagram(&cooked2), Ok(20..50));
    }
}

//! What reassembly needs of a fragment (RFC 791 3.2, RFC 8200 4.5): which datagram it belongs to, which bytes
//! of that datagram it carries, and the header that the whole datagram will have.
//!
//! ```text
//!   IPv4, a fragment      | header, options |                 | payload |
//!   IPv6, a fragment      | header, chain   | fragment header | payload |
//!                         |<- header_bytes->|                 |<------->| at `payload_start`
//!   the whole datagram    | header of the fragment at offset 0 | payload | payload | payload …
//! ```

use crate::ip::{IPV6_HEADER_BYTES, IpHeader, MAX_EXTENSION_HEADERS, Version};
use crate::{checksum, protocol};

/// Bytes of a fragment header of IPv6 (RFC 8200 4.5).
pub const FRAGMENT_HEADER_BYTES: usize = 8;
/// Where Next Header is in a fixed IPv6 header.
const NEXT_HEADER_AT: usize = 6;

/// A fragment as its receiver sees it. All positions are within the packet that it was read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceivedFragment {
    /// IP version.
    pub version: Version,
    /// The same in all fragments of a datagram: 16 bits over IPv4, 32 over IPv6.
    pub identification: u32,
    /// What the header names as following. Over IPv6 only that of the fragment at offset 0 counts.
    pub protocol: u8,
    /// Offset of its first payload byte in the datagram's payload.
    pub offset_bytes: usize,
    /// Whether more fragments follow.
    pub more: bool,
    /// Bytes of the headers that a whole datagram takes from its fragment at offset 0.
    pub header_bytes: usize,
    /// Where the payload starts.
    pub payload_start: usize,
    /// Where it ends.
    pub payload_end: usize,
    /// Over IPv6: where the Next Header field is that names the fragment header.
    next_header_at: usize,
}

impl ReceivedFragment {
    /// Reads a fragment; `None` for a whole packet. `packet` is what `header` was parsed from.
    ///
    /// Where a chain has several fragment headers, this is the first that is not atomic: a receiver processes
    /// headers in their order (RFC 8200 4), and an atomic one by itself (RFC 6946 4).
    #[must_use]
    pub fn read(header: &IpHeader, packet: &[u8]) -> Option<Self> {
        header.fragment?;
        match header.version {
            Version::V4 => read_v4(header, packet),
            Version::V6 => read_v6(header, packet),
        }
    }

    /// Bytes of payload.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        self.payload_end - self.payload_start
    }

    /// Where its payload ends in that of the datagram.
    #[must_use]
    pub fn end_bytes(&self) -> usize {
        self.offset_bytes + self.payload_bytes()
    }

    /// Makes `header`, a copy of the first [`header_bytes`](Self::header_bytes) of this fragment, that of its
    /// whole datagram: no longer a fragment's, with this length and ECN field (RFC 791 3.2, RFC 8200 4.5).
    /// `false`, with nothing useful in `header`, if the length does not fit its field.
    #[must_use]
    pub fn complete_header(&self, header: &mut [u8], total_bytes: usize, ecn: u8) -> bool {
        match self.version {
            Version::V4 => complete_v4(header, total_bytes, ecn),
            Version::V6 => {
                if let Some(next_header) = header.get_mut(self.next_header_at) {
                    *next_header = self.protocol;
                }
                complete_v6(header, total_bytes, ecn)
            }
        }
    }
}

fn read_v4(header: &IpHeader, packet: &[u8]) -> Option<ReceivedFragment> {
    let place = header.fragment?;
    let identification = packet.get(4..6).and_then(|bytes| bytes.first_chunk())?;
    Some(ReceivedFragment {
        version: Version::V4,
        identification: u16::from_be_bytes(*identification).into(),
        protocol: header.protocol,
        offset_bytes: place.offset_bytes.into(),
        more: place.more,
        header_bytes: header.header_bytes,
        payload_start: header.header_bytes,
        payload_end: header.total_bytes,
        next_header_at: 0,
    })
}

/// Steps over the extension headers before the fragment header, as [`IpHeader::parse`] has done before.
fn read_v6(header: &IpHeader, packet: &[u8]) -> Option<ReceivedFragment> {
    let packet = packet.get(..header.total_bytes)?;
    let (mut next_header_at, mut at) = (NEXT_HEADER_AT, IPV6_HEADER_BYTES);
    for _ in 0..=MAX_EXTENSION_HEADERS {
        let front = packet.get(at..)?.first_chunk::<FRAGMENT_HEADER_BYTES>()?;
        let bytes = match *packet.get(next_header_at)? {
            protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION_OPTIONS => {
                8 * (1 + usize::from(front[1]))
            }
            protocol::FRAGMENT => {
                let place = u16::from_be_bytes([front[2], front[3]]);
                if place & !6 != 0 {
                    return Some(ReceivedFragment {
                        version: Version::V6,
                        identification: u32::from_be_bytes([front[4], front[5], front[6], front[7]]),
                        protocol: front[0],
                        offset_bytes: (place & !7).into(),
                        more: place & 1 != 0,
                        header_bytes: at,
                        payload_start: at + FRAGMENT_HEADER_BYTES,
                        payload_end: header.total_bytes,
                        next_header_at,
                    });
                }
                FRAGMENT_HEADER_BYTES
            }
            _ => return None,
        };
        (next_header_at, at) = (at, at + bytes);
    }
    None
}

fn complete_v4(header: &mut [u8], total_bytes: usize, ecn: u8) -> bool {
    let (Ok(total), true) = (u16::try_from(total_bytes), header.len() >= 20) else { return false };
    header[1] = header[1] & !3 | ecn & 3;
    header[2..4].copy_from_slice(&total.to_be_bytes());
    // More Fragments and the offset; DF stays. RFC 4303 3.4.1 refuses what still looks like a fragment.
    header[6] &= 0x40;
    header[7] = 0;
    header[10..12].fill(0);
    let sum = checksum::of(header).to_bytes();
    header[10..12].copy_from_slice(&sum);
    true
}

fn complete_v6(header: &mut [u8], total_bytes: usize, ecn: u8) -> bool {
    let payload = total_bytes.checked_sub(IPV6_HEADER_BYTES).and_then(|n| u16::try_from(n).ok());
    let (Some(payload), true) = (payload, header.len() >= IPV6_HEADER_BYTES) else { return false };
    header[1] = header[1] & !0x30 | (ecn & 3) << 4;
    header[4..6].copy_from_slice(&payload.to_be_bytes());
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fragment;
    use crate::ip::OuterHeader;

    const PAYLOAD: usize = 3000;

    fn datagram(source: &str, destination: &str, headers: &[u8], first: u8) -> Vec<u8> {
        let header = OuterHeader {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            protocol: first,
            traffic_class: 0xB9,
            hop_limit: 64,
            dont_fragment: false,
        };
        let payload = (0..PAYLOAD).map(|i| (i % 251) as u8);
        let mut bytes = vec![0; header.bytes()];
        header.write(&mut bytes, header.bytes() + headers.len() + PAYLOAD, 0x1234).unwrap();
        bytes.extend_from_slice(headers);
        bytes.extend(payload);
        bytes
    }

    /// Puts the payloads of fragments at their offsets, behind the first one's header.
    fn joined(fragments: &[Vec<u8>], ecn: u8) -> Vec<u8> {
        let (mut whole, mut first) = (vec![0; PAYLOAD], None);
        for bytes in fragments {
            let header = IpHeader::parse(bytes).unwrap();
            let part = ReceivedFragment::read(&header, bytes).unwrap();
            whole[part.offset_bytes..part.end_bytes()]
                .copy_from_slice(&bytes[part.payload_start..part.payload_end]);
            if part.offset_bytes == 0 {
                first = Some((part, bytes[..part.header_bytes].to_vec()));
            }
        }
        let (part, mut header) = first.unwrap();
        let total = header.len() + whole.len();
        assert!(part.complete_header(&mut header, total, ecn));
        [header, whole].concat()
    }

    #[test]
    fn fragments_of_ipv4_join_to_the_datagram_that_was_cut() {
        let whole = datagram("192.0.2.1", "192.0.2.2", &[], protocol::ESP);
        let header = IpHeader::parse(&whole).unwrap();
        let fragments: Vec<Vec<u8>> = fragment::pieces(&header, &whole, 600)
            .map(|p| {
                let payload = &whole[p.payload_start..p.payload_start + p.payload_bytes];
                [&p.header[..p.header_bytes], payload].concat()
            })
            .collect();
        assert_eq!(fragments.len(), 6);
        assert_eq!(joined(&fragments, 1), whole);
        let marked = joined(&fragments, 3);
        assert_eq!(IpHeader::parse(&marked).unwrap().traffic_class, 0xBB);
    }

    /// The header chain before the fragment header stays, and the field that named the fragment header names
    /// what follows it in the first fragment (RFC 8200 4.5).
    #[test]
    fn fragments_of_ipv6_lose_their_fragment_header_alone() {
        const OPTIONS: [u8; 16] = [protocol::FRAGMENT, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        const ATOMIC: [u8; 8] = [protocol::FRAGMENT, 0, 0, 0, 0, 0, 0, 7];
        let none: &[u8] = &[];
        for (first, before) in [
            (protocol::FRAGMENT, none),
            (protocol::DESTINATION_OPTIONS, &OPTIONS),
            (protocol::FRAGMENT, &ATOMIC),
        ] {
            let cut = [0, 1024, 2048, PAYLOAD];
            let whole = datagram("2001:db8::1", "2001:db8::2", before, first);
            let payload = whole[whole.len() - PAYLOAD..].to_vec();
            let fragments: Vec<Vec<u8>> = cut
                .windows(2)
                .map(|ends| {
                    let place = ends[0] as u16 | u16::from(ends[1] < PAYLOAD);
                    // What later fragments say follows does not count.
                    let said = if ends[0] == 0 { protocol::ESP } else { 200 };
                    let fragment = [said, 0, (place >> 8) as u8, place as u8, 0, 1, 2, 3];
                    let mut bytes =
                        [&whole[..40 + before.len()], &fragment, &payload[ends[0]..ends[1]]].concat();
                    let length = bytes.len() as u16 - 40;
                    bytes[4..6].copy_from_slice(&length.to_be_bytes());
                    bytes
                })
                .collect();
            let header = IpHeader::parse(&fragments[1]).unwrap();
            let part = ReceivedFragment::read(&header, &fragments[1]).unwrap();
            assert_eq!((part.identification, part.offset_bytes, part.more), (0x0001_0203, 1024, true));
            let mut expected = whole;
            let named_at = if before.is_empty() { 6 } else { 40 };
            expected[named_at] = protocol::ESP;
            assert_eq!(joined(&fragments, 1), expected);
            let header = IpHeader::parse(&expected).unwrap();
            assert_eq!((header.protocol, header.fragment), (protocol::ESP, None));
        }
    }

    #[test]
    fn whole_packets_are_no_fragments() {
        let atomic = [protocol::ESP, 0, 0, 0, 0, 0, 0, 7];
        for bytes in [
            datagram("192.0.2.1", "192.0.2.2", &[], protocol::ESP),
            datagram("2001:db8::1", "2001:db8::2", &[], protocol::ESP),
            datagram("2001:db8::1", "2001:db8::2", &atomic, protocol::FRAGMENT),
        ] {
            assert_eq!(ReceivedFragment::read(&IpHeader::parse(&bytes).unwrap(), &bytes), None);
        }
    }

    #[test]
    fn a_length_that_its_field_cannot_hold_is_refused() {
        let mut bytes = datagram("192.0.2.1", "192.0.2.2", &[], protocol::ESP);
        bytes[6] = 0x60;
        bytes[10..12].fill(0);
        let sum = checksum::of(&bytes[..20]).to_bytes();
        bytes[10..12].copy_from_slice(&sum);
        let part = ReceivedFragment::read(&IpHeader::parse(&bytes).unwrap(), &bytes).unwrap();
        let mut header = bytes[..20].to_vec();
        assert!(!part.complete_header(&mut header, 65_536, 0));
        assert!(part.complete_header(&mut header, 65_535, 0));
        assert_eq!(header[6..8], [0x40, 0], "DF stays, More Fragments does not");
    }
}

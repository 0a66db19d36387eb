//! The MSS option of TCP (RFC 9293 3.7.1), lowered to what fits a tunnel.
//!
//! Each side of a connection says in its SYN how long the segments are that it can receive. Hosts take the
//! MTU of their own link for that of the path, and learn otherwise from "too big" messages, where these are
//! not filtered. A gateway lowers the value in passing, so that the segments fit from the start. It never
//! raises it, and adds no option: a host that sends none gets segments of 536 bytes, or 1,220 over IPv6 (RFC
//! 9293 3.7.1).

use crate::checksum::Checksum;
use crate::ip::{IpHeader, Version};
use crate::tcp::{self, TCP_HEADER_BYTES, TcpHeader, flags};
use crate::{options, protocol};

/// Whether a TCP segment may have an MSS option that counts: whether it is a SYN, with ACK or without. One
/// look at one byte, for the fast path.
#[must_use]
#[inline(always)]
pub fn is_syn(segment: &[u8]) -> bool {
    const FLAGS_AT: usize = 13;
    segment.get(FLAGS_AT).is_some_and(|byte| byte & flags::SYN != 0)
}

/// The longest MSS whose segments fit packets of `mtu` bytes: without options, which count as data (RFC 6691
/// 2).
#[must_use]
pub fn that_fits(mtu: u16, version: Version) -> u16 {
    const HEADERS: [u16; 2] = [20 + 20, 40 + 20];
    mtu.saturating_sub(HEADERS[usize::from(version == Version::V6)])
}

/// Lowers the MSS in `packet`, whose header is `header`, to `limit` bytes, if it is a SYN that has a higher
/// one, and updates the checksum (RFC 1624). Returns whether it did. Packets of other protocols stay as they
/// are, and so do fragments other than the first.
///
/// Of several MSS options each is lowered: hosts differ in which of them counts.
pub fn clamp(header: &IpHeader, packet: &mut [u8], limit: u16) -> bool {
    const MSS: u8 = 2;
    if header.protocol != protocol::TCP || header.fragment.is_some_and(|f| f.offset_bytes != 0) {
        return false;
    }
    let Some(segment) = packet.get_mut(header.header_bytes..header.total_bytes) else { return false };
    let Ok(tcp) = TcpHeader::parse(segment) else { return false };
    if tcp.flags & flags::SYN == 0 {
        return false;
    }
    let (mut is_lowered, mut at) = (false, 0);
    while let Ok(Some(option)) = options::ipv4_or_tcp(&segment[TCP_HEADER_BYTES..tcp.header_bytes], at) {
        let value_at = TCP_HEADER_BYTES + option.data.start;
        if option.kind == MSS && option.data.len() == 2 {
            is_lowered |= lower(segment, value_at, limit);
        }
        at = option.whole.end;
    }
    is_lowered
}

/// Lowers the 16-bit value at `at` of a TCP segment to `limit`, and updates the checksum.
fn lower(segment: &mut [u8], at: usize, limit: u16) -> bool {
    let old = [segment[at], segment[at + 1]];
    if u16::from_be_bytes(old) <= limit {
        return false;
    }
    let new = limit.to_be_bytes();
    // At an odd offset, the value's bytes belong to two words of the sum: its first byte is the lower half of
    // one, its second the upper half of the next.
    let as_summed = |[a, b]: [u8; 2]| if at.is_multiple_of(2) { [a, b] } else { [b, a] };
    let checksum = Checksum::from_bytes([segment[tcp::CHECKSUM_AT], segment[tcp::CHECKSUM_AT + 1]]);
    let checksum = checksum.update(&as_summed(old), &as_summed(new));
    segment[at..at + 2].copy_from_slice(&new);
    segment[tcp::CHECKSUM_AT..tcp::CHECKSUM_AT + 2].copy_from_slice(&checksum.to_bytes());
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nat::ChecksumFixup;
    use crate::test_packets::{complete_ipv4_checksum, hex, ipv4, ipv6};
    use proptest::prelude::*;

    /// Made with Scapy 2.5: `raw(IP(src="10.0.0.1", dst="10.0.0.2")/TCP(sport=1, dport=2, seq=9, flags="S",
    /// options=[("MSS", MSS)]))`, likewise with `IPv6(src="fd00::1", dst="fd00::2")`, and with the options
    /// `[("NOP", None), ("MSS", MSS), ("NOP", None), ("WScale", 7), ("SAckOK", b""), ("Timestamp", (1, 0)),
    /// ("EOL", None)]`, which put the value at an odd offset. MSS is 1460, then 1300.
    const GOLDEN: [(&str, &str); 4] = [
        (
            "4500002c00010000400666c90a0000010a0000020001000200000009000000006002200064180000020405b4",
            "4500002c00010000400666c90a0000010a0000020001000200000009000000006002200064b8000002040514",
        ),
        (
            "4500004000010000400666b50a0000010a000002000100020000000900000000b00220004ba4000001020405b4\
             010303070402080a0000000100000000000000",
            "4500004000010000400666b50a0000010a000002000100020000000900000000b0022000eba400000102040514\
             010303070402080a0000000100000000000000",
        ),
        (
            "6000000000180640fd000000000000000000000000000001fd0000000000000000000000000000020001000200\
             00000900000000600220007e160000020405b4",
            "6000000000180640fd000000000000000000000000000001fd0000000000000000000000000000020001000200\
             00000900000000600220007eb6000002040514",
        ),
        (
            "60000000002c0640fd000000000000000000000000000001fd0000000000000000000000000000020001000200\
             00000900000000b002200065a2000001020405b4010303070402080a0000000100000000000000",
            "60000000002c0640fd000000000000000000000000000001fd0000000000000000000000000000020001000200\
             00000900000000b002200005a300000102040514010303070402080a0000000100000000000000",
        ),
    ];

    fn clamped(packet: &[u8], limit: u16) -> (Vec<u8>, bool) {
        let mut bytes = packet.to_vec();
        let is_lowered = clamp(&IpHeader::parse(packet).unwrap(), &mut bytes, limit);
        (bytes, is_lowered)
    }

    #[test]
    fn the_mss_becomes_what_scapy_writes() {
        for (high, low) in GOLDEN {
            let [high, low] = [high, low].map(hex);
            assert_eq!(clamped(&high, 1300), (low.clone(), true));
            // Never raised.
            for limit in [1300, 1301, 1460, u16::MAX] {
                assert_eq!(clamped(&low, limit), (low.clone(), false));
            }
            assert_eq!(clamped(&high, 1460), (high.clone(), false));
        }
    }

    /// A segment with these flags and options, and its checksum.
    fn segment(v6: bool, flags: u8, options: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0, 1, 0, 2, 0, 0, 0, 9, 0, 0, 0, 0, 0x50, flags, 0x20, 0, 0, 0, 0, 0];
        bytes.extend_from_slice(options);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes[12] = (bytes.len() as u8 / 4) << 4;
        bytes.extend(*b"data");
        let mut packet = if v6 { ipv6(&[], protocol::TCP, &bytes) } else { ipv4(&[], protocol::TCP, &bytes) };
        ChecksumFixup::Recompute.apply(&IpHeader::parse(&packet.clone()).unwrap(), &mut packet);
        packet
    }

    const MSS_1460: [u8; 4] = [2, 4, 0x05, 0xB4];

    #[test]
    fn only_a_syn_is_changed() {
        for number in 0..=u8::MAX {
            for v6 in [false, true] {
                let packet = segment(v6, number, &MSS_1460);
                let header = IpHeader::parse(&packet).unwrap();
                let has_syn = number & 2 != 0;
                assert_eq!(clamped(&packet, 1000).1, has_syn, "flags {number:#x}");
                assert_eq!(is_syn(header.payload(&packet)), has_syn);
            }
        }
        assert!(!is_syn(&[2; 13]));
    }

    #[test]
    fn other_packets_and_what_does_not_fit_stay_as_they_are() {
        let syn = segment(false, flags::SYN, &MSS_1460);
        let mut later = syn.clone();
        later[7] = 1;
        let mut other = syn.clone();
        other[9] = protocol::UDP;
        let mut short = syn.clone();
        short[20 + 12] = 0xF0;
        for packet in [&mut later, &mut other, &mut short] {
            complete_ipv4_checksum(packet);
            assert_eq!(clamped(packet, 1000), (packet.clone(), false));
        }
        for options in [
            &[][..],
            &[2, 3, 5, 180],           // too short for a value
            &[2, 5, 5, 180, 0],        // too long
            &[0, 2, 4, 5, 180],        // after the end of the list
            &[8, 1, 2, 4, 5, 180],     // after an option whose length does not fit
            &[2, 4, 0x03, 0xE8],       // 1000 already
            &[1, 1, 1, 1, 1, 1, 1, 2], // cut off
        ] {
            let packet = segment(false, flags::SYN, options);
            assert_eq!(clamped(&packet, 1000), (packet, false), "{options:?}");
        }
    }

    #[test]
    fn the_mss_of_a_first_fragment_is_lowered() {
        let mut first = segment(false, flags::SYN | flags::ACK, &MSS_1460);
        first[6] = 0x20;
        complete_ipv4_checksum(&mut first);
        let (bytes, is_lowered) = clamped(&first, 536);
        assert!(is_lowered);
        assert_eq!(bytes[40..44], [2, 4, 0x02, 0x18]);
    }

    proptest! {
        /// RFC 1624: as if the checksum were computed anew, at even and odd offsets, for several options.
        #[test]
        fn an_updated_checksum_is_that_of_the_segment(
            v6 in any::<bool>(),
            list in prop::collection::vec((0usize..4, any::<u16>()), 0..5),
            limit in any::<u16>(),
        ) {
            let options: Vec<u8> = list.iter().flat_map(|(padding, mss)| {
                let [high, low] = mss.to_be_bytes();
                [&vec![1; *padding][..], &[2, 4, high, low]].concat()
            }).collect();
            let packet = segment(v6, flags::SYN, &options);
            let (bytes, is_lowered) = clamped(&packet, limit);
            prop_assert_eq!(is_lowered, list.iter().any(|(_, mss)| *mss > limit));
            let lowered: Vec<u8> = list.iter().flat_map(|(padding, mss)| {
                let [high, low] = mss.min(&limit).to_be_bytes();
                [&vec![1; *padding][..], &[2, 4, high, low]].concat()
            }).collect();
            prop_assert_eq!(bytes, segment(v6, flags::SYN, &lowered));
        }

        #[test]
        fn any_segment_is_clamped_or_left(
            mut bytes in prop::collection::vec(any::<u8>(), 0..70),
            limit in any::<u16>(),
        ) {
            if let Some(byte) = bytes.get_mut(13) {
                *byte |= flags::SYN;
            }
            let packet = ipv4(&[], protocol::TCP, &bytes);
            let (once, _) = clamped(&packet, limit);
            prop_assert_eq!(clamped(&once, limit), (once, false));
        }
    }
}

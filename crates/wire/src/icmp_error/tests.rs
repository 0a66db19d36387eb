//! Errors made by Scapy, by this crate, and by hand.

use super::*;
use crate::icmp::{MAX_TOO_BIG_BYTES, too_big};
use crate::test_packets::{complete_ipv4_checksum, hex, ipv4, ipv6};
use IcmpErrorKind::{ParameterProblem, TimeExceeded, TooBig, Unreachable};
use proptest::prelude::*;

const ESP: Option<QuotedHeader> = Some(QuotedHeader::Esp { spi: 0x1001, sequence: Some(77) });
const AH: Option<QuotedHeader> = Some(QuotedHeader::Ah { spi: 0x1002, sequence: Some(78) });
const UDP: Option<QuotedHeader> = Some(QuotedHeader::Udp {
    source_port: 4500,
    destination_port: 4500,
    esp: Some(EspHeader { spi: 0x1003, sequence: 79 }),
});

/// An error as Python makes it with Scapy 2.5, and what it says:
///
/// ```text
/// ours4 = dict(src="192.0.2.1", dst="198.51.100.2"); ours6 = dict(src="2001:db8::1", dst="2001:db8::2")
/// esp = ESP(spi=0x1001, seq=77, data=b"secret")
/// ah = AH(nh=4, payloadlen=4, spi=0x1002, seq=78, icv=bytes(12)) / IP()
/// udp = UDP(sport=4500, dport=4500) / ESP(spi=0x1003, seq=79, data=b"x" * 20)
/// R4 = IP(src="203.0.113.1", dst="192.0.2.1"); R6 = IPv6(src="2001:db8:ff::1", dst="2001:db8::1")
/// def q4(x, n): return raw(IP(**ours4) / x)[:n]
/// def q6(x): return raw(IPv6(**ours6) / x)
/// ```
const GOLDEN: &[(&str, &str, IcmpErrorKind, usize, Option<QuotedHeader>)] = &[
    (
        "R4/ICMP(type=3, code=4, nexthopmtu=1400)/q4(esp, 28)",
        "450000380001000040017cc1cb007101c00002010304e73500000578450000220001000040328e72c0000201c6\
         336402000010010000004d",
        TooBig { mtu: 1400 },
        34,
        ESP,
    ),
    (
        "R4/ICMP(type=3, code=4)/q4(ah, 28)",
        "450000380001000040017cc1cb007101c00002010304e8f500000000450000400001000040338e53c0000201c6\
         3364020404000000001002",
        TooBig { mtu: 0 },
        64,
        Some(QuotedHeader::Ah { spi: 0x1002, sequence: None }),
    ),
    (
        "R4/ICMP(type=3, code=4, nexthopmtu=1480)/q4(ah, 548)",
        "4500005c0001000040017c9dcb007101c00002010304e2df000005c8450000400001000040338e53c0000201c6\
         33640204040000000010020000004e000000000000000000000000450000140001000040007ce77f0000017f00\
         0001",
        TooBig { mtu: 1480 },
        64,
        AH,
    ),
    (
        "R4/ICMP(type=3, code=3)/q4(udp, 28)",
        "450000380001000040017cc1cb007101c00002010303ae7000000000450000380001000040118e7dc0000201c6\
         3364021194119400242b40",
        Unreachable { code: 3 },
        56,
        Some(QuotedHeader::Udp { source_port: 4500, destination_port: 4500, esp: None }),
    ),
    (
        "R4/ICMP(type=3, code=2)/q4(udp, 548)",
        "450000540001000040017ca5cb007101c00002010302e96a00000000450000380001000040118e7dc0000201c6\
         3364021194119400242b40000010030000004f7878787878787878787878787878787878787878",
        Unreachable { code: 2 },
        56,
        UDP,
    ),
    (
        "R4/ICMP(type=11, code=0)/q4(esp, 24)",
        "450000340001000040017cc5cb007101c00002010b00e4fe00000000450000220001000040328e72c0000201c6\
         33640200001001",
        TimeExceeded { code: 0 },
        34,
        Some(QuotedHeader::Esp { spi: 0x1001, sequence: None }),
    ),
    (
        "R4/ICMP(type=12, code=0, ptr=8)/q4(esp, 28)",
        "450000380001000040017cc1cb007101c00002010c00dbb108000000450000220001000040328e72c0000201c6\
         336402000010010000004d",
        ParameterProblem { code: 0, pointer: 8 },
        34,
        ESP,
    ),
    (
        "R6/ICMPv6PacketTooBig(mtu=1400)/q6(esp)",
        "60000000003e3a4020010db800ff0000000000000000000120010db80000000000000000000000010200613e00\
         00057860000000000e324020010db800000000000000000000000120010db80000000000000000000000020000\
         10010000004d736563726574",
        TooBig { mtu: 1400 },
        54,
        ESP,
    ),
    (
        "R6/ICMPv6DestUnreach(code=4)/q6(udp)",
        "6000000000543a4020010db800ff0000000000000000000120010db8000000000000000000000001010430cb00\
         000000600000000024114020010db800000000000000000000000120010db80000000000000000000000021194\
         11940024bc02000010030000004f7878787878787878787878787878787878787878",
        Unreachable { code: 4 },
        76,
        UDP,
    ),
    (
        "R6/ICMPv6TimeExceeded(code=0)/q6(ah)",
        "60000000005c3a4020010db800ff0000000000000000000120010db800000000000000000000000103009cc000\
         00000060000000002c334020010db800000000000000000000000120010db80000000000000000000000020404\
         0000000010020000004e000000000000000000000000450000140001000040007ce77f0000017f000001",
        TimeExceeded { code: 0 },
        84,
        AH,
    ),
    (
        "R6/ICMPv6ParamProblem(code=1, ptr=40)/q6(IPv6ExtHdrDestOpt()/esp)",
        "6000000000463a4020010db800ff0000000000000000000120010db80000000000000000000000010401277900\
         0000286000000000163c4020010db800000000000000000000000120010db80000000000000000000000023200\
         010400000000000010010000004d736563726574",
        ParameterProblem { code: 1, pointer: 40 },
        62,
        ESP,
    ),
];

fn parse(packet: &[u8]) -> Result<Option<IcmpError>, ParseError> {
    IcmpError::parse(&IpHeader::parse(packet).unwrap(), packet)
}

#[test]
fn errors_made_by_scapy_are_read() {
    for (python, packet, kind, total_bytes, header) in GOLDEN {
        let packet = hex(packet);
        let error = parse(&packet).unwrap().unwrap();
        let v4 = packet[0] >> 4 == 4;
        let (source, destination) =
            if v4 { ("192.0.2.1", "198.51.100.2") } else { ("2001:db8::1", "2001:db8::2") };
        let quoted = error.quoted;
        assert_eq!((error.kind, quoted.header), (*kind, *header), "{python}");
        assert_eq!(quoted.version, if v4 { Version::V4 } else { Version::V6 });
        assert_eq!(
            (quoted.source, quoted.destination),
            (source.parse().unwrap(), destination.parse().unwrap())
        );
        assert_eq!((quoted.total_bytes, quoted.fragment), (*total_bytes, None), "{python}");
        // Every bit of the message is covered by its checksum, and no error remains one if cut off.
        let start = if v4 { 20 } else { 40 };
        for bit in 8 * start..8 * packet.len() {
            let mut damaged = packet.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let is_other_type = bit / 8 == start;
            let refused = parse(&damaged);
            let expected = Err(ParseError::BadChecksum);
            assert!(refused == expected || is_other_type && refused == Ok(None), "{python}, bit {bit}");
        }
    }
}

/// The message as an ICMP error in a packet, with its checksum.
fn packet(v4: bool, message: &[u8]) -> Vec<u8> {
    let mut message = message.to_vec();
    message[2..4].fill(0);
    let whole = |message: &[u8]| {
        if v4 { ipv4(&[], protocol::ICMP, message) } else { ipv6(&[], protocol::ICMPV6, message) }
    };
    let bytes = whole(&message);
    let header = IpHeader::parse(&bytes).unwrap();
    let length = message.len() as u32;
    let pseudo = Sum::default().pseudo_header(header.source, header.destination, header.protocol, length);
    let sum = if v4 { Sum::default() } else { pseudo }.bytes(&message).finish();
    message[2..4].copy_from_slice(&sum.to_bytes());
    whole(&message)
}

#[test]
fn our_own_messages_are_read() {
    let v4 = ipv4(&[], protocol::ESP, &[7; 2000]);
    let v6 = ipv6(&[(protocol::DESTINATION_OPTIONS, &[0; 7])], protocol::ESP, &[7; 2000]);
    for (bytes, total_bytes) in [(v4, 2020), (v6, 2048)] {
        let header = IpHeader::parse(&bytes).unwrap();
        let mut out = [0; MAX_TOO_BIG_BYTES];
        let length = too_big(&header, &bytes, 1400, header.destination, &mut out).unwrap().unwrap();
        let error = parse(&out[..length]).unwrap().unwrap();
        assert_eq!(error.kind, TooBig { mtu: 1400 });
        assert_eq!(error.quoted.total_bytes, total_bytes);
        let spi = 0x0707_0707;
        assert_eq!(error.quoted.header, Some(QuotedHeader::Esp { spi, sequence: Some(spi) }));
    }
}

/// A message of this type and code that quotes an ESP packet, and nothing else.
fn message(kind: u8, code: u8, v4: bool) -> Vec<u8> {
    let quote = if v4 { ipv4(&[], protocol::ESP, &[1; 8]) } else { ipv6(&[], protocol::ESP, &[1; 8]) };
    [&[kind, code, 0, 0, 0, 0, 0, 0][..], &quote].concat()
}

/// RFC 6633 for source quench; redirects; what is no error (RFC 792, RFC 4443 2.1).
#[test]
fn other_messages_are_ignored() {
    for kind in 0..=u8::MAX {
        for v4 in [true, false] {
            let is_error = if v4 { matches!(kind, 3 | 11 | 12) } else { (1..=4).contains(&kind) };
            let parsed = parse(&packet(v4, &message(kind, 0, v4))).unwrap();
            assert_eq!(parsed.is_some(), is_error, "type {kind}, v4 {v4}");
        }
    }
    // Not in the other version's packets, nor in other protocols, nor in fragments.
    assert_eq!(parse(&ipv4(&[], protocol::ICMPV6, &message(2, 0, false))), Ok(None));
    assert_eq!(parse(&ipv6(&[], protocol::ICMP, &message(3, 4, true))), Ok(None));
    assert_eq!(parse(&ipv4(&[], protocol::UDP, &message(3, 4, true))), Ok(None));
    let mut first = packet(true, &message(3, 4, true));
    first[6] = 0x20;
    complete_ipv4_checksum(&mut first);
    assert_eq!(parse(&first), Ok(None));
}

#[test]
fn a_quote_without_addresses_is_refused() {
    for (v4, kind, header_bytes) in [(true, 3, 20), (false, 2, 40)] {
        let whole = message(kind, 4, v4);
        for len in 0..whole.len() {
            let cut = packet_of_any_length(v4, &whole[..len]);
            match parse(&cut) {
                Err(error) => {
                    assert_eq!(error, ParseError::Truncated);
                    assert!(len < 8 + header_bytes);
                }
                Ok(error) => {
                    let quoted = len - 8 - header_bytes;
                    let header = error.unwrap().quoted.header;
                    let sequence = (quoted >= 8).then_some(0x0101_0101);
                    let expected = QuotedHeader::Esp { spi: 0x0101_0101, sequence };
                    assert_eq!(header, (quoted >= 4).then_some(expected), "{quoted} bytes");
                }
            }
        }
    }
    let mut other = message(3, 4, true);
    for first in [0x65, 0x44] {
        other[8] = first;
        assert_eq!(parse(&packet(true, &other)), Err(ParseError::BadHeader));
    }
    let mut other = message(2, 0, false);
    other[8] = 0x45;
    assert_eq!(parse(&packet(false, &other)), Err(ParseError::BadHeader));
}

/// [`packet`], also of messages too short for a checksum.
fn packet_of_any_length(v4: bool, message: &[u8]) -> Vec<u8> {
    match (message.len(), v4) {
        (0..4, true) => ipv4(&[], protocol::ICMP, message),
        (0..4, false) => ipv6(&[], protocol::ICMPV6, message),
        _ => packet(v4, message),
    }
}

/// RFC 792 requires 8 bytes of the quoted packet: an SPI of AH is in them, its sequence number is not.
#[test]
fn what_is_not_quoted_is_not_read() {
    let cut = |protocol: u8, payload: &[u8], length: usize| {
        let quote = ipv4(&[], protocol, payload);
        let message = [&[3, 4, 0, 0, 0, 0, 0, 0][..], &quote[..20 + length]].concat();
        parse(&packet(true, &message)).unwrap().unwrap().quoted.header
    };
    let ah = [4, 4, 0, 0, 0, 0, 0x10, 2, 0, 0, 0, 78];
    assert_eq!(cut(protocol::AH, &ah, 7), None);
    assert_eq!(cut(protocol::AH, &ah, 11), Some(QuotedHeader::Ah { spi: 0x1002, sequence: None }));
    assert_eq!(cut(protocol::AH, &ah, 12), AH);
    let udp = [0x11, 0x94, 0x11, 0x94, 0, 16, 0, 0, 0, 0, 0x10, 3, 0, 0, 0, 79];
    let bare = Some(QuotedHeader::Udp { source_port: 4500, destination_port: 4500, esp: None });
    assert_eq!(cut(protocol::UDP, &udp, 3), None);
    assert_eq!(cut(protocol::UDP, &udp, 8), bare);
    assert_eq!(cut(protocol::UDP, &udp, 15), bare);
    assert_eq!(cut(protocol::UDP, &udp, 16), UDP);
    // RFC 3948 2.2: IKE, behind the non-ESP marker.
    assert_eq!(cut(protocol::UDP, &[&udp[..8], &[0; 8]].concat(), 16), bare);
    assert_eq!(cut(protocol::TCP, &[1; 20], 20), None);
}

#[test]
fn a_later_fragment_shows_no_header() {
    for (flags, is_shown) in [(0x2000u16, true), (0x2001, false), (100, false)] {
        let mut quote = ipv4(&[], protocol::ESP, &[1; 8]);
        quote[6..8].copy_from_slice(&flags.to_be_bytes());
        let error = parse(&packet(true, &[&[3, 4, 0, 0, 0, 0, 0, 0][..], &quote].concat())).unwrap().unwrap();
        assert_eq!(error.quoted.header.is_some(), is_shown, "{flags:#x}");
        assert_eq!(error.quoted.fragment.unwrap().offset_bytes, (flags & 0x1FFF) * 8);
    }
    for (flags, is_shown) in [([0, 1], true), ([0, 0], true), ([0, 9], false), ([1, 0], false)] {
        let fragment = [0, flags[0], flags[1], 0, 0, 0, 9];
        let quote = ipv6(&[(protocol::FRAGMENT, &fragment)], protocol::ESP, &[1; 8]);
        let error =
            parse(&packet(false, &[&[2, 0, 0, 0, 0, 0, 5, 0][..], &quote].concat())).unwrap().unwrap();
        assert_eq!(error.quoted.header.is_some(), is_shown, "{flags:?}");
        assert_eq!(error.quoted.fragment.is_some(), flags != [0, 0]);
    }
}

/// RFC 4884 4: the message says how long the quote is, where something follows it.
#[test]
fn extensions_after_the_quote_are_not_read_as_its_part() {
    for (v4, kind, at, unit) in [(true, 3, 5, 4), (true, 11, 5, 4), (false, 1, 4, 8), (false, 3, 4, 8)] {
        let quote = if v4 { ipv4(&[], protocol::ESP, &[1; 4]) } else { ipv6(&[], protocol::ESP, &[]) };
        let mut message = [&[kind, 1, 0, 0, 0, 0, 0, 0][..], &quote, &[0x20, 0, 0, 0, 0, 8, 1, 1]].concat();
        message[at] = (quote.len() / unit) as u8;
        let header = parse(&packet(v4, &message)).unwrap().unwrap().quoted.header;
        let expected = QuotedHeader::Esp { spi: 0x0101_0101, sequence: None };
        assert_eq!(header, v4.then_some(expected));
        message[at] = 100;
        assert_eq!(parse(&packet(v4, &message)), Err(ParseError::BadHeader));
    }
    // Beside the MTU of ICMP, too (RFC 4884 4.1).
    let mut too_big = [&message(3, 4, true)[..], &[0; 100]].concat();
    too_big[5..8].copy_from_slice(&[32, 5, 120]);
    assert_eq!(parse(&packet(true, &too_big)).unwrap().unwrap().kind, TooBig { mtu: 1400 });
    // "Packet too big" and "parameter problem" of ICMPv6 have no such field: the byte belongs to their value.
    let mut message = message(2, 0, false);
    message[4] = 100;
    assert_eq!(parse(&packet(false, &message)).unwrap().unwrap().kind, TooBig { mtu: 100 << 24 });
}

/// RFC 792, RFC 4443 3.4: one byte, or four.
#[test]
fn a_pointer_is_as_long_as_its_version_makes_it() {
    let mut v4 = message(12, 0, true);
    v4[4] = 8;
    assert_eq!(parse(&packet(true, &v4)).unwrap().unwrap().kind, ParameterProblem { code: 0, pointer: 8 });
    let mut v6 = message(4, 2, false);
    v6[4..8].copy_from_slice(&0x0102_0304u32.to_be_bytes());
    let expected = ParameterProblem { code: 2, pointer: 0x0102_0304 };
    assert_eq!(parse(&packet(false, &v6)).unwrap().unwrap().kind, expected);
}

proptest! {
    /// Whatever is quoted, right checksum and all.
    #[test]
    fn any_quote_is_read_or_refused(
        v4 in any::<bool>(),
        head in any::<[u8; 4]>(),
        kind in 0u8..13,
        number in prop::sample::select(vec![0u8, 17, 43, 44, 50, 51, 60]),
        quote in prop::collection::vec(any::<u8>(), 0..120),
    ) {
        let mut quote = quote;
        for (at, byte) in if v4 { [(0, 0x45), (9, number)] } else { [(0, 0x60), (6, number)] } {
            if let Some(place) = quote.get_mut(at) {
                *place = byte;
            }
        }
        let fixed = [kind, head[0] & 7, 0, 0, head[1] & 1, head[2] & 7, head[2], head[3]];
        let message = [&fixed[..], &quote].concat();
        if let Ok(Some(error)) = parse(&packet(v4, &message)) {
            prop_assert!(quote.len() >= error.quoted.version.header_bytes());
            if error.quoted.fragment.is_some_and(|f| f.offset_bytes != 0) {
                prop_assert_eq!(error.quoted.header, None);
            }
        }
    }
}

/// VPE has its SPI after 12 bytes, which a router need not quote over IPv4 (RFC 792).
#[test]
fn a_quote_of_vpe_has_its_window_and_number_and_its_spi_if_it_is_long_enough() {
    let outer = |number: u8| {
        let mut header = vec![0x45, 0, 5, 0xDC, 0, 0, 0x40, 0, 64, number, 0, 0];
        header.extend([192, 0, 2, 1, 198, 51, 100, 2]);
        header
    };
    let header = [0_u8, 0, 0x22, 0x11, 0x66, 0x55, 0x44, 0x33, 1, 0, 0, 0, 0xA4, 0xA3, 0xA2, 0xA1, 7, 7];
    let udp = [0x11, 0x95, 0x11, 0x95, 5, 0xC8, 0, 0];
    let quoted = |parts: &[&[u8]]| QuotedPacket::parse_ipv4(&parts.concat()).unwrap();
    for bytes in 0..=header.len() {
        let spi = (bytes >= 16).then_some(0xA1A2_A3A4);
        let expected = QuotedVpe { sender: 0, window: 0x1122, number: 0x3344_5566, spi };
        let expected = (bytes >= 8).then_some(expected);
        let raw = quoted(&[&outer(253), &header[..bytes]]);
        assert_eq!((raw.header, raw.vpe, raw.protocol), (None, expected, 253));
        let in_udp = quoted(&[&outer(17), &udp, &header[..bytes]]);
        assert_eq!(in_udp.vpe, expected);
    }
    let mut later = outer(253);
    later[7] = 1;
    assert_eq!(quoted(&[&later, &header]).vpe, None, "a later fragment has no header");
}

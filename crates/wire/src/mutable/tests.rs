//! The masked form, against Scapy's, and against what routers do to a packet on its way.

use super::*;
use crate::ah::ah_bytes;
use crate::test_packets::{hex, ipv4, ipv6};
use proptest::prelude::*;

const ICV_BYTES: usize = 12;

/// A packet as Python makes it, the packet, and its masked form, by Scapy 2.5:
///
/// ```text
/// U = HBHOptUnknown
/// rest = (AH(nh=17, payloadlen=4, spi=0x1001, seq=7, icv=bytes(range(0xA0, 0xAC)))
///     / UDP(sport=5000, dport=53) / b"query")
/// def v4(options):
///     ip = IP(src="192.0.2.1", dst="198.51.100.2", id=7, tos=0xB9, flags="DF", ttl=63, options=options)
///     return ip / rest
/// def v6(*headers):
///     ip = IPv6(src="2001:db8::1", dst="2001:db8::2", tc=0xB9, fl=0x12345, hlim=63)
///     return functools.reduce(operator.truediv, headers, ip) / rest
/// packet = raw(v4(...)); masked = raw(zero_mutable_fields(IP(packet), sending=True))
/// ```
const GOLDEN: &[(&str, &str, &str)] = &[
    (
        "v4([])",
        "45b90039000740003f334e9bc0000201c6336402110400000000100100000007a0a1a2a3a4a5a6a7a8a9aaab\
         13880035000d00007175657279",
        "450000390007000000330000c0000201c6336402110400000000100100000007000000000000000000000000\
         13880035000d00007175657279",
    ),
    (
        "v4([IPOption_NOP(), IPOption_NOP(), IPOption_NOP(), IPOption_EOL()])",
        "46b9003d000740003f334b96c0000201c633640201010100110400000000100100000007a0a1a2a3a4a5a6a7\
         a8a9aaab13880035000d00007175657279",
        "4600003d0007000000330000c0000201c6336402010101001104000000001001000000070000000000000000\
         0000000013880035000d00007175657279",
    ),
    (
        "v4([IPOption_Security()])",
        "48b90045000740003f33d90ac0000201c6336402820b00000000000078787800110400000000100100000007\
         a0a1a2a3a4a5a6a7a8a9aaab13880035000d00007175657279",
        "480000450007000000330000c0000201c6336402820b00000000000078787800110400000000100100000007\
         00000000000000000000000013880035000d00007175657279",
    ),
    (
        "v4([IPOption(bytes.fromhex('8504AABB'))])",
        "46b9003d000740003f331dd7c0000201c63364028504aabb110400000000100100000007a0a1a2a3a4a5a6a7\
         a8a9aaab13880035000d00007175657279",
        "4600003d0007000000330000c0000201c63364028504aabb1104000000001001000000070000000000000000\
         0000000013880035000d00007175657279",
    ),
    (
        "v4([IPOption(bytes.fromhex('8608000000010102'))])",
        "47b90041000740003f33c587c0000201c63364028608000000010102110400000000100100000007a0a1a2a3\
         a4a5a6a7a8a9aaab13880035000d00007175657279",
        "470000410007000000330000c0000201c6336402860800000001010211040000000010010000000700000000\
         000000000000000013880035000d00007175657279",
    ),
    (
        "v4([IPOption_Router_Alert()])",
        "46b9003d000740003f33b992c0000201c633640294040000110400000000100100000007a0a1a2a3a4a5a6a7\
         a8a9aaab13880035000d00007175657279",
        "4600003d0007000000330000c0000201c6336402940400001104000000001001000000070000000000000000\
         0000000013880035000d00007175657279",
    ),
    (
        "v4([IPOption_SDBM(addresses=['203.0.113.1', '203.0.113.2'])])",
        "48b90045000740003f333e7fc0000201c6336402950acb007101cb0071020000110400000000100100000007\
         a0a1a2a3a4a5a6a7a8a9aaab13880035000d00007175657279",
        "480000450007000000330000c0000201c6336402950acb007101cb0071020000110400000000100100000007\
         00000000000000000000000013880035000d00007175657279",
    ),
    (
        "v4([IPOption_RR(routers=['203.0.113.1', '203.0.113.2'], pointer=8)])",
        "48b90045000740003f33370cc0000201c6336402070b08cb007101cb00710200110400000000100100000007\
         a0a1a2a3a4a5a6a7a8a9aaab13880035000d00007175657279",
        "480000450007000000330000c0000201c6336402000000000000000000000000110400000000100100000007\
         00000000000000000000000013880035000d00007175657279",
    ),
    (
        "v4([IPOption_Timestamp(internet_address='203.0.113.1', flg=1, \
         timestamp=0x01020304)])",
        "48b90045000740003f33be79c0000201c6336402440c0901cb00710101020304110400000000100100000007\
         a0a1a2a3a4a5a6a7a8a9aaab13880035000d00007175657279",
        "480000450007000000330000c0000201c6336402000000000000000000000000110400000000100100000007\
         00000000000000000000000013880035000d00007175657279",
    ),
    (
        "v4([IPOption_Traceroute(id=5, outbound_hops=3, return_hops=2, \
         originator_ip='203.0.113.1')])",
        "48b90045000740003f33fd76c0000201c6336402120c000500030002cb007101110400000000100100000007\
         a0a1a2a3a4a5a6a7a8a9aaab13880035000d00007175657279",
        "480000450007000000330000c0000201c6336402000000000000000000000000110400000000100100000007\
         00000000000000000000000013880035000d00007175657279",
    ),
    (
        "v4([IPOption_Stream_Id(security=9)])",
        "46b9003d000740003f33c589c0000201c633640288040009110400000000100100000007a0a1a2a3a4a5a6a7\
         a8a9aaab13880035000d00007175657279",
        "4600003d0007000000330000c0000201c6336402000000001104000000001001000000070000000000000000\
         0000000013880035000d00007175657279",
    ),
    (
        "v4([IPOption_MTU_Probe(mtu=1400), IPOption_MTU_Reply(mtu=1400)])",
        "47b90041000740003f332a9bc0000201c63364020b0405780c040578110400000000100100000007a0a1a2a3\
         a4a5a6a7a8a9aaab13880035000d00007175657279",
        "470000410007000000330000c0000201c6336402000000000000000011040000000010010000000700000000\
         000000000000000013880035000d00007175657279",
    ),
    (
        "v4([IPOption_Address_Extension(src_ext='203.0.113.1', dst_ext='203.0.113.2')])",
        "48b90045000740003f33407fc0000201c6336402930acb007101cb0071020000110400000000100100000007\
         a0a1a2a3a4a5a6a7a8a9aaab13880035000d00007175657279",
        "480000450007000000330000c0000201c6336402000000000000000000000000110400000000100100000007\
         00000000000000000000000013880035000d00007175657279",
    ),
    (
        "v4([IPOption_Router_Alert(), IPOption(bytes.fromhex('5E05010203')), IPOption_NOP(), \
         IPOption_Security(), IPOption_NOP()])",
        "4bb90051000740003f33dff0c0000201c6336402940400005e0501020301820b000000000000787878010000\
         110400000000100100000007a0a1a2a3a4a5a6a7a8a9aaab13880035000d00007175657279",
        "4b0000510007000000330000c0000201c633640294040000000000000001820b000000000000787878010000\
         11040000000010010000000700000000000000000000000013880035000d00007175657279",
    ),
    (
        "v4([IPOption_LSRR(routers=['203.0.113.1', '203.0.113.2'], pointer=12), \
         IPOption_EOL()])",
        "48b90045000740003f33b70bc0000201c6336402830b0ccb007101cb00710200110400000000100100000007\
         a0a1a2a3a4a5a6a7a8a9aaab13880035000d00007175657279",
        "480000450007000000330000c0000201c6336402000000000000000000000000110400000000100100000007\
         00000000000000000000000013880035000d00007175657279",
    ),
    (
        "v6()",
        "6b9123450025333f20010db800000000000000000000000120010db800000000000000000000000211040000\
         0000100100000007a0a1a2a3a4a5a6a7a8a9aaab13880035000d00007175657279",
        "600000000025330020010db800000000000000000000000120010db800000000000000000000000211040000\
         000010010000000700000000000000000000000013880035000d00007175657279",
    ),
    (
        "v6(IPv6ExtHdrHopByHop(options=[RouterAlert(value=1), PadN(optdata=bytes(2))]))",
        "6b9123450035003f20010db800000000000000000000000120010db800000000000000000000000233010502\
         000101020000010400000000110400000000100100000007a0a1a2a3a4a5a6a7a8a9aaab13880035000d0000\
         7175657279",
        "600000000035000020010db800000000000000000000000120010db800000000000000000000000233010502\
         00010102000001040000000011040000000010010000000700000000000000000000000013880035000d0000\
         7175657279",
    ),
    (
        "v6(IPv6ExtHdrHopByHop(options=[U(otype=0x3E, optdata=b'change'), U(otype=0x1E, \
         optdata=b'remain'), Pad1(), Pad1(), Pad1(), Pad1()]))",
        "6b912345003d003f20010db800000000000000000000000120010db800000000000000000000000233023e06\
         6368616e67651e0672656d61696e000000000100110400000000100100000007a0a1a2a3a4a5a6a7a8a9aaab\
         13880035000d00007175657279",
        "60000000003d000020010db800000000000000000000000120010db800000000000000000000000233023e06\
         0000000000001e0672656d61696e000000000100110400000000100100000007000000000000000000000000\
         13880035000d00007175657279",
    ),
    (
        "v6(IPv6ExtHdrDestOpt(options=[U(otype=0xE5, optdata=b'x'), Pad1(), U(otype=0x25), \
         U(otype=0xC5, optdata=b'abc'), U(otype=0x2F, optdata=b'change')]))",
        "6b912345003d3c3f20010db800000000000000000000000120010db80000000000000000000000023302e501\
         78002500c5036162632f066368616e6765010100110400000000100100000007a0a1a2a3a4a5a6a7a8a9aaab\
         13880035000d00007175657279",
        "60000000003d3c0020010db800000000000000000000000120010db80000000000000000000000023302e501\
         00002500c5036162632f06000000000000010100110400000000100100000007000000000000000000000000\
         13880035000d00007175657279",
    ),
    (
        "v6(IPv6ExtHdrRouting(addresses=['2001:db8::a', '2001:db8::b', '2001:db8::c'], \
         segleft=3))",
        "6b912345005d2b3f20010db800000000000000000000000120010db800000000000000000000000233060003\
         0000000020010db800000000000000000000000a20010db800000000000000000000000b20010db800000000\
         000000000000000c110400000000100100000007a0a1a2a3a4a5a6a7a8a9aaab13880035000d000071756572\
         79",
        "60000000005d2b0020010db800000000000000000000000120010db800000000000000000000000c33060000\
         0000000020010db800000000000000000000000220010db800000000000000000000000a20010db800000000\
         000000000000000b11040000000010010000000700000000000000000000000013880035000d000071756572\
         79",
    ),
    (
        "v6(IPv6ExtHdrHopByHop(options=[U(otype=0x3E, optdata=b'alfa')]), \
         IPv6ExtHdrDestOpt(options=[U(otype=0x3E, optdata=b'beta')]), \
         IPv6ExtHdrRouting(addresses=['2001:db8::a'], segleft=1), \
         IPv6ExtHdrDestOpt(options=[U(otype=0x3E, optdata=b'gama')]))",
        "6b9123450055003f20010db800000000000000000000000120010db80000000000000000000000023c003e04\
         616c66612b003e04626574613c0200010000000020010db800000000000000000000000a33003e0467616d61\
         110400000000100100000007a0a1a2a3a4a5a6a7a8a9aaab13880035000d00007175657279",
        "600000000055000020010db800000000000000000000000120010db800000000000000000000000a3c003e04\
         000000002b003e04000000003c0200000000000020010db800000000000000000000000233003e0400000000\
         11040000000010010000000700000000000000000000000013880035000d00007175657279",
    ),
];

/// Python, packet, what Scapy makes of it, and what is right instead, by offset.
type Deviation = (&'static str, &'static str, &'static str, &'static [(usize, &'static str)]);

/// Packets for which Scapy deviates from RFC 4302:
///
/// - An option is known by all eight bits of its kind (A1). Scapy looks at its number alone, so that an
///   option without the copied flag passes for the Security option, which has it.
/// - A source route with addresses left leads to its last address, which arrives as the destination address
///   (3.3.3.1.1.1). Scapy leaves the address of the next router.
/// - A routing header of type 0 is rearranged as far as its Segments Left says (A2, RFC 2460 4.4). Scapy
///   exchanges all its addresses, also when some or all of them were visited already.
///
/// When it verifies, Scapy (`sending=False`) further stops at a routing header, and takes options after it
/// as they are; it never leaves out the header of an atomic fragment.
const SCAPY_DEVIATES: &[Deviation] = &[
    (
        "v4([IPOption(bytes.fromhex('0204AABB'))])",
        "46b9003d000740003f33a0d7c0000201c63364020204aabb110400000000100100000007a0a1a2a3a4a5a6a7\
         a8a9aaab13880035000d00007175657279",
        "4600003d0007000000330000c0000201c63364020204aabb1104000000001001000000070000000000000000\
         0000000013880035000d00007175657279",
        &[(20, "00000000")],
    ),
    (
        "v4([IPOption_LSRR(routers=['203.0.113.1', '203.0.113.2']), IPOption_EOL()])",
        "48b90045000740003f33bf0bc0000201c6336402830b04cb007101cb00710200110400000000100100000007\
         a0a1a2a3a4a5a6a7a8a9aaab13880035000d00007175657279",
        "480000450007000000330000c0000201c6336402000000000000000000000000110400000000100100000007\
         00000000000000000000000013880035000d00007175657279",
        &[(16, "cb007102")],
    ),
    (
        "v4([IPOption_NOP(), IPOption_SSRR(routers=['203.0.113.1', '203.0.113.2', \
         '203.0.113.3'], pointer=8)])",
        "49b90049000740003f3385f0c0000201c633640201890f08cb007101cb007102cb0071031104000000001001\
         00000007a0a1a2a3a4a5a6a7a8a9aaab13880035000d00007175657279",
        "490000490007000000330000c0000201c6336402010000000000000000000000000000001104000000001001\
         0000000700000000000000000000000013880035000d00007175657279",
        &[(16, "cb007103")],
    ),
    (
        "v6(IPv6ExtHdrRouting(addresses=['2001:db8::a', '2001:db8::b', '2001:db8::c'], \
         segleft=1))",
        "6b912345005d2b3f20010db800000000000000000000000120010db800000000000000000000000233060001\
         0000000020010db800000000000000000000000a20010db800000000000000000000000b20010db800000000\
         000000000000000c110400000000100100000007a0a1a2a3a4a5a6a7a8a9aaab13880035000d000071756572\
         79",
        "60000000005d2b0020010db800000000000000000000000120010db800000000000000000000000c33060000\
         0000000020010db800000000000000000000000220010db800000000000000000000000a20010db800000000\
         000000000000000b11040000000010010000000700000000000000000000000013880035000d000071756572\
         79",
        &[
            (48, "20010db800000000000000000000000a"),
            (64, "20010db800000000000000000000000b"),
            (80, "20010db8000000000000000000000002"),
        ],
    ),
    (
        "v6(IPv6ExtHdrRouting(addresses=['2001:db8::a'], segleft=0))",
        "6b912345003d2b3f20010db800000000000000000000000120010db800000000000000000000000233020000\
         0000000020010db800000000000000000000000a110400000000100100000007a0a1a2a3a4a5a6a7a8a9aaab\
         13880035000d00007175657279",
        "60000000003d2b0020010db800000000000000000000000120010db800000000000000000000000a33020000\
         0000000020010db8000000000000000000000002110400000000100100000007000000000000000000000000\
         13880035000d00007175657279",
        &[(24, "20010db8000000000000000000000002"), (48, "20010db800000000000000000000000a")],
    ),
];

fn masked(packet: &[u8]) -> Result<Vec<u8>, NotCovered> {
    let mut bytes = packet.to_vec();
    let before = masked_bytes(packet, ICV_BYTES);
    match mask(&mut bytes, ICV_BYTES) {
        Ok(covered) => {
            let changed = before.unwrap();
            assert_eq!(bytes[changed..], packet[changed..], "bytes after the ICV stay");
            let mut restored = bytes.clone();
            restored[..changed].copy_from_slice(&packet[..changed]);
            assert_eq!(restored, packet);
            Ok(bytes[covered].to_vec())
        }
        Err(reason) => {
            assert_eq!((before, &bytes[..]), (Err(reason), packet), "unchanged");
            Err(reason)
        }
    }
}

#[test]
fn packets_are_masked_as_scapy_masks_them() {
    for (python, packet, expected) in GOLDEN {
        assert_eq!(masked(&hex(packet)), Ok(hex(expected)), "{python}");
    }
}

#[test]
fn packets_that_scapy_masks_otherwise_are_masked_as_rfc_4302_says() {
    for (python, packet, scapy, corrections) in SCAPY_DEVIATES {
        let mut expected = hex(scapy);
        for (at, bytes) in *corrections {
            let bytes = hex(bytes);
            assert_ne!(expected[*at..at + bytes.len()], bytes, "{python}: no deviation");
            expected[*at..at + bytes.len()].copy_from_slice(&bytes);
        }
        assert_eq!(masked(&hex(packet)), Ok(expected), "{python}");
    }
}

/// AH with this ICV, and a few bytes after it.
fn ah_and_rest(version: Version, icv: [u8; ICV_BYTES]) -> Vec<u8> {
    let header_bytes = ah_bytes(ICV_BYTES, version);
    let mut bytes = vec![0; header_bytes];
    AhHeader { next_header: 17, header_bytes, spi: 0x1001, sequence: 7 }.write(&mut bytes).unwrap();
    bytes[12..24].copy_from_slice(&icv);
    bytes.extend(*b"what follows AH");
    bytes
}

/// RFC 4302 3.3.3.1.1.1, 3.3.3.1.2.1: exactly these bits are not covered.
#[test]
fn all_bits_are_covered_but_the_mutable_ones() {
    let (rest4, rest6) = (ah_and_rest(Version::V4, [5; 12]), ah_and_rest(Version::V6, [5; 12]));
    let (v4, v6) = (ipv4(&[], protocol::AH, &rest4), ipv6(&[], protocol::AH, &rest6));
    // Whole bytes, and some bits of one more: the flags but for More Fragments, half of the traffic class.
    for (packet, mutable, part, mutable_bits) in
        [(v4, &[1..2, 8..9, 10..12, 32..44][..], 6, 0xC0), (v6, &[1..4, 7..8, 52..64], 0, 0x0F)]
    {
        let original = masked(&packet).unwrap();
        for (at, bit) in (0..packet.len()).flat_map(|at| (0..8).map(move |bit| (at, 1 << bit))) {
            let is_mutable =
                mutable.iter().any(|range| range.contains(&at)) || at == part && bit & mutable_bits != 0;
            let mut changed = packet.clone();
            changed[at] ^= bit;
            assert_eq!(masked(&changed).as_ref() == Ok(&original), is_mutable, "byte {at}, bit {bit:#x}");
        }
    }
}

/// RFC 4302 3.3.4, 3.4.1: AH is for whole datagrams.
#[test]
fn fragments_are_not_covered() {
    let rest = ah_and_rest(Version::V4, [0; 12]);
    for flags in [0x2000u16, 1, 0x3FFF] {
        let mut packet = ipv4(&[], protocol::AH, &rest);
        packet[6..8].copy_from_slice(&flags.to_be_bytes());
        assert_eq!(masked(&packet), Err(NotCovered::Fragment), "{flags:#x}");
    }
    let rest = ah_and_rest(Version::V6, [0; 12]);
    for flags in [1, 8, 9, 0xFFF8] {
        let flags = u16::to_be_bytes(flags);
        let fragment = [0, flags[0], flags[1], 0, 0, 0, 9];
        let packet = ipv6(&[(protocol::FRAGMENT, &fragment)], protocol::AH, &rest);
        assert_eq!(masked(&packet), Err(NotCovered::Fragment), "{flags:?}");
    }
}

/// RFC 4302 A2: AH skips the header of an atomic fragment, as if it had never been there.
#[test]
fn an_atomic_fragment_is_masked_like_the_packet_without_its_header() {
    const ATOMIC: (u8, &[u8]) = (protocol::FRAGMENT, &[0, 0, 0, 0, 0, 0, 9]);
    const HOPS: (u8, &[u8]) = (protocol::HOP_BY_HOP, &[0, 0x3E, 4, 1, 2, 3, 4]);
    const ENDS: (u8, &[u8]) = (protocol::DESTINATION_OPTIONS, &[0, 0x1E, 4, 1, 2, 3, 4]);
    let route = [&[2, 0, 1, 0, 0, 0, 0][..], &[0xFD; 16]].concat();
    let route = (protocol::ROUTING, &route[..]);
    let rest = ah_and_rest(Version::V6, [1; 12]);
    for (with, without) in [
        (&[ATOMIC][..], &[][..]),
        (&[ATOMIC, ATOMIC], &[]),
        (&[HOPS, ATOMIC], &[HOPS]),
        (&[ATOMIC, HOPS, ENDS], &[HOPS, ENDS]),
        (&[HOPS, ATOMIC, route, ATOMIC, ENDS], &[HOPS, route, ENDS]),
    ] {
        let [with, without] = [with, without].map(|chain| ipv6(chain, protocol::AH, &rest));
        assert_eq!(masked(&with), Ok(masked(&without).unwrap()));
    }
}

#[test]
fn what_cannot_be_covered_is_refused_with_a_reason() {
    use ParseError::{BadHeader, NotIp, Truncated};
    let malformed = NotCovered::Malformed;
    let (rest4, rest6) = (ah_and_rest(Version::V4, [0; 12]), ah_and_rest(Version::V6, [0; 12]));
    let option = |bytes: &[u8]| ipv4(bytes, protocol::AH, &rest4);
    let header = |number: u8, bytes: &[u8]| ipv6(&[(number, bytes)], protocol::AH, &rest6);
    let many = vec![(protocol::DESTINATION_OPTIONS, &[0; 7][..]); MAX_EXTENSION_HEADERS + 1];
    let short = |mut packet: Vec<u8>| {
        packet.truncate(packet.len() - 1);
        packet
    };
    for (packet, reason) in [
        (Vec::new(), malformed(Truncated)),
        (vec![0x55; 100], malformed(NotIp)),
        (short(option(&[])), malformed(Truncated)),
        (short(ipv6(&[], protocol::AH, &rest6)), malformed(Truncated)),
        (ipv4(&[], protocol::UDP, &rest4), NotCovered::NoAh),
        (ipv6(&[], protocol::UDP, &rest6), NotCovered::NoAh),
        (header(139, &[0; 7]), NotCovered::NoAh),
        (ipv4(&[], protocol::AH, &rest4[..20]), malformed(Truncated)),
        // Options that do not fit, source routes that lead nowhere.
        (option(&[148, 5, 0, 0]), malformed(BadHeader)),
        (option(&[1, 1, 1, 7]), malformed(BadHeader)),
        (option(&[131, 2, 0, 0]), malformed(BadHeader)),
        (option(&[131, 3, 3, 0]), malformed(BadHeader)),
        (option(&[137, 6, 4, 1, 2, 3, 0, 0]), malformed(BadHeader)),
        (header(protocol::HOP_BY_HOP, &[0, 0x3E, 5, 0, 0, 0, 0]), malformed(BadHeader)),
        (header(protocol::DESTINATION_OPTIONS, &[0, 0, 0, 0, 0, 0, 1]), malformed(BadHeader)),
        (header(protocol::HOP_BY_HOP, &[200, 0, 0, 0, 0, 0, 0]), malformed(Truncated)),
        // Routing headers: one address more than there are, half an address, types nobody knows.
        (header(protocol::ROUTING, &[&[2, 0, 2, 0, 0, 0, 0][..], &[0; 16]].concat()), malformed(BadHeader)),
        (header(protocol::ROUTING, &[&[1, 0, 1, 0, 0, 0, 0][..], &[0; 8]].concat()), malformed(BadHeader)),
        (header(protocol::ROUTING, &[0, 0, 1, 0, 0, 0, 0]), malformed(BadHeader)),
        (
            header(protocol::ROUTING, &[&[2, 2, 1, 0, 0, 0, 0][..], &[0; 16]].concat()),
            NotCovered::RoutingHeader(2),
        ),
        (
            header(protocol::ROUTING, &[&[2, 4, 1, 0, 0, 0, 0][..], &[0; 16]].concat()),
            NotCovered::RoutingHeader(4),
        ),
        (ipv6(&many, protocol::AH, &rest6), malformed(BadHeader)),
    ] {
        assert_eq!(masked(&packet), Err(reason), "{packet:02x?}");
    }
    for (packet, icv_bytes) in [(option(&[]), 16), (option(&[]), 8), (ipv6(&[], protocol::AH, &rest6), 16)] {
        assert_eq!(masked_bytes(&packet, icv_bytes), Err(NotCovered::IcvLength));
    }
    assert!(masked(&ipv6(&many[1..], protocol::AH, &rest6)).is_ok(), "eight are walked");
}

#[test]
fn a_route_of_any_type_without_addresses_left_is_covered_as_it_is() {
    for kind in [0, 2, 3, 4, 253] {
        let route = [2, kind, 0, 9, 9, 9, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
        let packet = ipv6(&[(protocol::ROUTING, &route)], protocol::AH, &ah_and_rest(Version::V6, [0; 12]));
        assert_eq!(masked(&packet).unwrap()[40..64], packet[40..64], "type {kind}");
    }
}

#[test]
fn bytes_after_the_datagram_are_neither_covered_nor_changed() {
    for (_, packet, expected) in GOLDEN {
        let mut bytes = [hex(packet), vec![0x77; 9]].concat();
        let covered = mask(&mut bytes, ICV_BYTES).unwrap();
        assert_eq!(bytes[covered], hex(expected));
        assert!(bytes.ends_with(&[0x77; 9]));
    }
}

/// An IPv4 option: one that routers leave alone, one that they may change, or a source route with some
/// addresses visited.
fn ipv4_option() -> impl Strategy<Value = Vec<u8>> {
    let data = prop::collection::vec(any::<u8>(), 0..8);
    let immutable = prop::sample::select(vec![130u8, 133, 134, 148, 149]);
    let mutable = prop::sample::select(vec![7u8, 68, 82, 136, 11, 12, 145, 0x5E, 255]);
    let of = |(kind, data): (u8, Vec<u8>)| [&[kind, data.len() as u8 + 2][..], &data].concat();
    let route = (any::<bool>(), prop::collection::vec(any::<[u8; 4]>(), 1..4), any::<prop::sample::Index>());
    prop_oneof![
        Just(vec![1]),
        (immutable, data.clone()).prop_map(of),
        (mutable, data).prop_map(of),
        route.prop_map(|(strict, addresses, visited)| {
            let visited = visited.index(addresses.len() + 1) as u8;
            let head = [if strict { 137 } else { 131 }, 3 + 4 * addresses.len() as u8, 4 + 4 * visited];
            [&head[..], &addresses.concat()].concat()
        }),
    ]
}

/// An IPv4 packet with at most one source route among its options.
fn ipv4_packet() -> impl Strategy<Value = Vec<u8>> {
    (prop::collection::vec(ipv4_option(), 0..6), any::<[u8; ICV_BYTES]>()).prop_map(|(options, icv)| {
        let (mut list, mut is_routed) = (Vec::new(), false);
        for option in options {
            let is_route = option[0] == 131 || option[0] == 137;
            if list.len() + option.len() <= 40 && !(is_route && is_routed) {
                is_routed |= is_route;
                list.extend(option);
            }
        }
        list.resize(list.len().next_multiple_of(4), 0);
        ipv4(&list, protocol::AH, &ah_and_rest(Version::V4, icv))
    })
}

/// What a router does to an IPv4 packet (RFC 791 3.1, 3.2, RFC 2474 3, RFC 3168 5).
fn pass_ipv4_router(packet: &mut [u8], random: &mut impl FnMut() -> u8) {
    packet[1] = random();
    packet[6] |= random() & 0x40;
    packet[8] = packet[8].wrapping_sub(1);
    let end = usize::from(packet[0] & 0x0F) * 4;
    let mut at = IPV4_HEADER_BYTES;
    while at < end && packet[at] != 0 {
        let (kind, length) = (packet[at], if packet[at] == 1 { 1 } else { usize::from(packet[at + 1]) });
        match kind {
            131 | 137 if usize::from(packet[at + 2]) <= length => {
                let next = at + usize::from(packet[at + 2]) - 1;
                packet.copy_within(next..next + 4, 16);
                packet[next..next + 4].fill_with(&mut *random);
                packet[at + 2] += 4;
            }
            7 | 68 | 82 => packet[at + 2..at + length].fill_with(&mut *random),
            _ => {}
        }
        at += length;
    }
    crate::test_packets::complete_ipv4_checksum(packet);
}

/// Options that fill an IPv6 header.
fn ipv6_options() -> impl Strategy<Value = Vec<u8>> {
    let option = (any::<u8>(), prop::collection::vec(any::<u8>(), 0..7));
    prop::collection::vec(option, 0..4).prop_map(|options| {
        let mut list: Vec<u8> = Vec::new();
        for (kind, data) in options {
            list.push(kind);
            if kind != 0 {
                list.push(data.len() as u8);
                list.extend(data);
            }
        }
        list.resize((list.len() + 2).next_multiple_of(8) - 2, 0);
        list
    })
}

/// An extension header: its number, and its bytes but for Next Header.
fn extension_header() -> impl Strategy<Value = (u8, Vec<u8>)> {
    let number = prop::sample::select(vec![protocol::HOP_BY_HOP, protocol::DESTINATION_OPTIONS]);
    let route =
        (prop::collection::vec(any::<[u8; 16]>(), 0..4), any::<prop::sample::Index>(), any::<[u8; 4]>());
    prop_oneof![
        (number, ipv6_options())
            .prop_map(|(number, list)| (number, [&[(list.len() / 8) as u8][..], &list].concat())),
        route.prop_map(|(addresses, left, reserved)| {
            let left = left.index(addresses.len() + 1) as u8;
            let head = [2 * addresses.len() as u8, 0, left];
            (protocol::ROUTING, [&head[..], &reserved, &addresses.concat()].concat())
        }),
    ]
}

fn ipv6_packet() -> impl Strategy<Value = Vec<u8>> {
    (prop::collection::vec(extension_header(), 0..6), any::<[u8; ICV_BYTES]>()).prop_map(|(chain, icv)| {
        let chain: Vec<_> = chain.iter().map(|(number, bytes)| (*number, &bytes[..])).collect();
        ipv6(&chain, protocol::AH, &ah_and_rest(Version::V6, icv))
    })
}

/// What the way to the next stop of the first routing header that has any does to an IPv6 packet (RFC 8200 3,
/// 4.2, RFC 2460 4.4).
fn pass_ipv6_router(packet: &mut [u8], random: &mut impl FnMut() -> u8) {
    packet[0] = 0x60 | random() & 0x0F;
    packet[1..4].fill_with(&mut *random);
    packet[7] = packet[7].wrapping_sub(1);
    let (mut number, mut at, mut is_routed) = (packet[6], IPV6_HEADER_BYTES, false);
    while number != protocol::AH {
        let end = at + 8 + 8 * usize::from(packet[at + 1]);
        let left = usize::from(packet[at + 3]);
        if number == protocol::ROUTING && left > 0 && !is_routed {
            // RFC 2460 4.4: "swap the IPv6 Destination Address and Address[i]".
            let count = usize::from(packet[at + 1]) / 2;
            packet[at + 3] -= 1;
            let address = at + 8 + 16 * (count - left);
            (0..16).for_each(|byte| packet.swap(24 + byte, address + byte));
            is_routed = true;
        } else if number != protocol::ROUTING {
            let mut option = at + 2;
            while option < end {
                let kind = packet[option];
                let data = if kind == 0 { 0 } else { 1 + usize::from(packet[option + 1]) };
                if kind & 0x20 != 0 {
                    packet[option + 2..option + 1 + data].fill_with(&mut *random);
                }
                option += 1 + data;
            }
        }
        number = packet[at];
        at = end;
    }
}

/// Numbers that a seed makes.
fn random(mut seed: u64) -> impl FnMut() -> u8 {
    move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 56) as u8
    }
}

proptest! {
    /// RFC 4302 3.3.3.1: sender, receiver and all between them see the same, whatever routers change.
    #[test]
    fn what_routers_change_is_masked(v4 in ipv4_packet(), v6 in ipv6_packet(), seed in any::<u64>()) {
        let mut random = random(seed);
        for mut packet in [v4, v6] {
            let sent = masked(&packet);
            prop_assert!(sent.is_ok(), "{sent:?}");
            for router in 0..20 {
                if packet[0] >> 4 == 4 {
                    pass_ipv4_router(&mut packet, &mut random);
                } else {
                    pass_ipv6_router(&mut packet, &mut random);
                }
                prop_assert_eq!(&masked(&packet), &sent, "after {} routers", router + 1);
            }
        }
    }

    #[test]
    fn a_masked_packet_stays_as_it_is(v4 in ipv4_packet(), v6 in ipv6_packet()) {
        for packet in [v4, v6] {
            let once = masked(&packet).unwrap();
            prop_assert_eq!(masked(&once), Ok(once));
        }
    }

    /// Any bytes: [`masked`] checks that what is refused is unchanged, and what is masked can be restored.
    #[test]
    fn damaged_packets_are_masked_or_refused(
        packet in prop_oneof![ipv4_packet(), ipv6_packet(), prop::collection::vec(any::<u8>(), 0..120)],
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut packet = packet;
        for (at, byte) in damage {
            if !packet.is_empty() {
                let at = at.index(packet.len());
                packet[at] = byte;
            }
        }
        let _ = masked(&packet);
        let _ = masked(&packet[..cut.index(packet.len() + 1)]);
    }
}

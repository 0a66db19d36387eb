//! Insertion and removal, against Scapy's AH in transport mode and against each other.

use super::*;
use crate::ah::AhHeader;
use crate::checksum;
use crate::ip::IpHeader;
use crate::test_packets::{complete_ipv4_checksum, hex, ipv4, ipv6};
use proptest::prelude::*;

/// A packet as Python makes it, the packet, and what Scapy 2.5 makes of it in transport mode:
///
/// ```text
/// U = HBHOptUnknown
/// rest = UDP(sport=5000, dport=53) / b"query"
/// hop = IPv6ExtHdrHopByHop(options=[RouterAlert(value=1)])
/// dst = IPv6ExtHdrDestOpt(options=[U(otype=0x1E, optdata=b"data")])
/// rt = IPv6ExtHdrRouting(addresses=["2001:db8::a"], segleft=0)
/// frag = IPv6ExtHdrFragment(id=9)
/// def v4(**more): return IP(src="192.0.2.1", dst="198.51.100.2", id=7, ttl=63, **more)
/// def v6(): return IPv6(src="2001:db8::1", dst="2001:db8::2")
/// sa = SecurityAssociation(AH, spi=0x1001, seq_num=7, auth_algo="HMAC-SHA1-96", auth_key=bytes(20))
/// packet = v4() / rest; protected = raw(sa.encrypt(IP(raw(packet))))
/// ```
const GOLDEN: &[(&str, &str, &str)] = &[
    (
        "v4()",
        "45000021000700003f118f8ec0000201c633640213880035000daff77175657279",
        "45000039000700003f338f54c0000201c633640211040000000010010000000787e82af2e9cf7071ccf5157a1388\
         0035000daff77175657279",
    ),
    (
        "v4(options=[IPOption_Router_Alert()])",
        "46000025000700003f11fa85c0000201c63364029404000013880035000daff77175657279",
        "4600003d000700003f33fa4bc0000201c6336402940400001104000000001001000000076bfe29ef6805ccb793b8\
         9b3b13880035000daff77175657279",
    ),
    (
        "v6()",
        "60000000000d114020010db800000000000000000000000120010db800000000000000000000000213880035000d\
         40ba7175657279",
        "600000000025334020010db800000000000000000000000120010db8000000000000000000000002110400000000\
         10010000000752ede1851611fe82adeaeceb13880035000d40ba7175657279",
    ),
    (
        "v6()/hop",
        "600000000015004020010db800000000000000000000000120010db8000000000000000000000002110005020001\
         010013880035000d40ba7175657279",
        "60000000002d004020010db800000000000000000000000120010db8000000000000000000000002330005020001\
         01001104000000001001000000074eaf83ea14efad1a17e76b1c13880035000d40ba7175657279",
    ),
    (
        "v6()/hop/rt",
        "60000000002d004020010db800000000000000000000000120010db80000000000000000000000022b0005020001\
         0100110200000000000020010db800000000000000000000000a13880035000d40ba7175657279",
        "600000000045004020010db800000000000000000000000120010db80000000000000000000000022b0005020001\
         0100330200000000000020010db800000000000000000000000a11040000000010010000000739b77cb5bdb457a2\
         c0d26fa513880035000d40ba7175657279",
    ),
    (
        "v6()/hop/dst/rt",
        "600000000035004020010db800000000000000000000000120010db80000000000000000000000023c0005020001\
         01002b001e0464617461110200000000000020010db800000000000000000000000a13880035000d40ba71756572\
         79",
        "60000000004d004020010db800000000000000000000000120010db80000000000000000000000023c0005020001\
         01002b001e0464617461330200000000000020010db800000000000000000000000a110400000000100100000007\
         cefef0e9db1b58ac168e06c213880035000d40ba7175657279",
    ),
    (
        "v6()/rt/dst",
        "60000000002d2b4020010db800000000000000000000000120010db80000000000000000000000023c0200000000\
         000020010db800000000000000000000000a11001e046461746113880035000d40ba7175657279",
        "6000000000452b4020010db800000000000000000000000120010db8000000000000000000000002330200000000\
         000020010db800000000000000000000000a3c0400000000100100000007cad3f9c834c2342d9e0412ea11001e04\
         6461746113880035000d40ba7175657279",
    ),
    (
        "v6()/hop/dst/rt/dst",
        "60000000003d004020010db800000000000000000000000120010db80000000000000000000000023c0005020001\
         01002b001e04646174613c0200000000000020010db800000000000000000000000a11001e046461746113880035\
         000d40ba7175657279",
        "600000000055004020010db800000000000000000000000120010db80000000000000000000000023c0005020001\
         01002b001e0464617461330200000000000020010db800000000000000000000000a3c0400000000100100000007\
         0d23154a56e50ddf2709b45711001e046461746113880035000d40ba7175657279",
    ),
];

/// Packets in which Scapy inserts AH elsewhere:
///
/// - Destination options without a routing header after them stay before AH, as Linux does it. RFC 4302 3.1.1
///   allows both sides; see the module's documentation for the choice here.
/// - It stops before a fragment header, which AH "should appear after" (RFC 4302 3.1.1).
const SCAPY_DIFFERS: &[(&str, &str, &str)] = &[
    (
        "v6()/dst",
        "6000000000153c4020010db800000000000000000000000120010db800000000000000000000000211001e046461\
         746113880035000d40ba7175657279",
        "60000000002d3c4020010db800000000000000000000000120010db800000000000000000000000233001e046461\
         7461110400000000100100000007931ade7c7922e4478cfe735a13880035000d40ba7175657279",
    ),
    (
        "v6()/hop/dst",
        "60000000001d004020010db800000000000000000000000120010db80000000000000000000000023c0005020001\
         010011001e046461746113880035000d40ba7175657279",
        "600000000035004020010db800000000000000000000000120010db80000000000000000000000023c0005020001\
         010033001e046461746111040000000010010000000742fa143b54056d82e5b6b1cd13880035000d40ba71756572\
         79",
    ),
    (
        "v6()/frag",
        "6000000000152c4020010db800000000000000000000000120010db8000000000000000000000002110000000000\
         000913880035000d40ba7175657279",
        "60000000002d334020010db800000000000000000000000120010db80000000000000000000000022c0400000000\
         10010000000719ea0e6080608f3e2cd4950e110000000000000913880035000d40ba7175657279",
    ),
    (
        "v6()/hop/rt/frag/dst",
        "60000000003d004020010db800000000000000000000000120010db80000000000000000000000022b0005020001\
         01002c0200000000000020010db800000000000000000000000a3c0000000000000911001e046461746113880035\
         000d40ba7175657279",
        "600000000055004020010db800000000000000000000000120010db80000000000000000000000022b0005020001\
         0100330200000000000020010db800000000000000000000000a2c040000000010010000000743caa9f222ea0888\
         b8c824633c0000000000000911001e046461746113880035000d40ba7175657279",
    ),
];

/// Bytes of AH with HMAC-SHA1-96.
const AH_BYTES: usize = 24;

/// The packet with `header`, of this protocol, inserted; its first byte says what followed.
fn insert(packet: &[u8], number: u8, header: &[u8]) -> Result<(Vec<u8>, TransportPlace), NoPlace> {
    let place = TransportPlace::to_insert(packet)?;
    let mut header = header.to_vec();
    header[0] = place.next_header;
    let mut front = packet[..place.at].to_vec();
    place.rewrite(&mut front, number, place.total_bytes + header.len())?;
    Ok(([&front, &header[..], &packet[place.at..place.total_bytes]].concat(), place))
}

/// The packet without a header of this protocol and length, whose first byte says what follows.
fn remove(packet: &[u8], number: u8, header_bytes: usize) -> Result<Vec<u8>, NoPlace> {
    let place = TransportPlace::of_received(packet, number)?;
    let mut front = packet[..place.at].to_vec();
    place.rewrite(&mut front, packet[place.at], place.total_bytes - header_bytes)?;
    Ok([&front, &packet[place.at + header_bytes..place.total_bytes]].concat())
}

#[test]
fn ah_is_inserted_where_scapy_inserts_it() {
    for (python, packet, protected) in GOLDEN {
        let [packet, protected] = [packet, protected].map(|digits| hex(digits));
        let at = TransportPlace::to_insert(&packet).unwrap().at;
        let header = &protected[at..at + AH_BYTES];
        assert_eq!(AhHeader::parse(header).unwrap().spi, 0x1001, "{python}");
        assert_eq!(insert(&packet, protocol::AH, header).unwrap().0, protected, "{python}");
    }
}

#[test]
fn what_scapy_inserts_is_removed() {
    for (python, packet, protected) in GOLDEN.iter().chain(SCAPY_DIFFERS) {
        // Scapy puts AH before a fragment header, which is then behind AH and stays there.
        assert_eq!(remove(&hex(protected), protocol::AH, AH_BYTES), Ok(hex(packet)), "{python}");
    }
}

#[test]
fn final_destination_options_come_after_ah_and_fragment_headers_before_it() {
    for ((python, packet, protected), expected) in SCAPY_DIFFERS.iter().zip([40, 48, 48, 80]) {
        let [packet, protected] = [packet, protected].map(|digits| hex(digits));
        let place = TransportPlace::to_insert(&packet).unwrap();
        assert_eq!(place.at, expected, "{python}");
        let theirs = TransportPlace::of_received(&protected, protocol::AH).unwrap();
        assert_ne!(place.at, theirs.at, "{python}: no difference");
    }
}

/// RFC 4303 3.3.4, RFC 4302 3.3.4.
#[test]
fn fragments_have_no_place() {
    for flags in [0x2000u16, 1, 0x3FFF] {
        let mut packet = ipv4(&[], protocol::UDP, &[0; 16]);
        packet[6..8].copy_from_slice(&flags.to_be_bytes());
        complete_ipv4_checksum(&mut packet);
        assert_eq!(TransportPlace::to_insert(&packet), Err(NoPlace::Fragment));
        assert_eq!(TransportPlace::of_received(&packet, protocol::UDP), Err(NoPlace::Fragment));
    }
    for flags in [1, 8, 0xFFF9] {
        let flags = u16::to_be_bytes(flags);
        let fragment = [0, flags[0], flags[1], 0, 0, 0, 9];
        let packet = ipv6(&[(protocol::FRAGMENT, &fragment)], protocol::UDP, &[0; 16]);
        assert_eq!(TransportPlace::to_insert(&packet), Err(NoPlace::Fragment));
        assert_eq!(TransportPlace::of_received(&packet, protocol::UDP), Err(NoPlace::Fragment));
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let (v4, v6) = (ipv4(&[1; 4], protocol::UDP, &[0; 9]), ipv6(&[], protocol::UDP, &[0; 9]));
    for packet in [&v4, &v6] {
        for len in 0..packet.len() {
            let refused = TransportPlace::to_insert(&packet[..len]);
            assert_eq!(refused, Err(NoPlace::Malformed(ParseError::Truncated)), "{len} bytes");
        }
    }
    let other = TransportPlace::of_received(&v4, protocol::ESP);
    assert_eq!(other, Err(NoPlace::OtherProtocol));
    let not_ip = TransportPlace::to_insert(&[0x55; 60]);
    assert_eq!(not_ip, Err(NoPlace::Malformed(ParseError::NotIp)));
    for (at, byte) in [(0, 0x44), (3, 23)] {
        let mut bad = v4.clone();
        bad[at] = byte;
        assert_eq!(TransportPlace::to_insert(&bad), Err(NoPlace::Malformed(ParseError::BadHeader)));
    }
    let many = [(protocol::DESTINATION_OPTIONS, &[0; 7][..]); MAX_EXTENSION_HEADERS + 1];
    let long = TransportPlace::to_insert(&ipv6(&many, protocol::UDP, &[]));
    assert_eq!(long, Err(NoPlace::Malformed(ParseError::BadHeader)));
    assert!(TransportPlace::to_insert(&ipv6(&many[1..], protocol::UDP, &[])).is_ok());
}

#[test]
fn a_length_that_no_field_can_say_is_not_written() {
    for (mut packet, longest) in
        [(ipv4(&[], protocol::UDP, &[0; 9]), 65_535), (ipv6(&[], protocol::UDP, &[0; 9]), 65_575)]
    {
        let place = TransportPlace::to_insert(&packet).unwrap();
        let original = packet.clone();
        for total in [longest + 1, usize::MAX] {
            assert_eq!(place.rewrite(&mut packet, protocol::ESP, total), Err(ParseError::BadHeader));
        }
        let short = place.rewrite(&mut packet[..place.at - 1], protocol::ESP, 100);
        assert_eq!((short, &packet), (Err(ParseError::Truncated), &original));
        assert_eq!(place.rewrite(&mut packet[..place.at], protocol::ESP, longest), Ok(()));
    }
    let packet = ipv6(&[], protocol::UDP, &[]);
    let place = TransportPlace::to_insert(&packet).unwrap();
    assert_eq!(place.rewrite(&mut packet.clone(), protocol::ESP, 39), Err(ParseError::BadHeader));
}

/// An IPv6 chain, as numbers and bytes; atomic fragments only.
fn chain() -> impl Strategy<Value = Vec<(u8, Vec<u8>)>> {
    let number = prop::sample::select(vec![
        protocol::HOP_BY_HOP,
        protocol::ROUTING,
        protocol::DESTINATION_OPTIONS,
        protocol::FRAGMENT,
    ]);
    let header = (number, 0u8..3).prop_map(|(number, length)| match number {
        protocol::FRAGMENT => (number, vec![0, 0, 0, 0, 0, 0, 9]),
        _ => (number, [&[length][..], &vec![0; 6 + 8 * usize::from(length)]].concat()),
    });
    prop::collection::vec(header, 0..7)
}

fn packet() -> impl Strategy<Value = Vec<u8>> {
    let payload = prop::collection::vec(any::<u8>(), 0..40);
    let number = prop::sample::select(vec![protocol::TCP, protocol::UDP, protocol::ESP, protocol::AH, 200]);
    (any::<bool>(), 0usize..11, chain(), number, payload).prop_map(|(v6, words, chain, number, payload)| {
        let chain: Vec<_> = chain.iter().map(|(number, bytes)| (*number, &bytes[..])).collect();
        if v6 { ipv6(&chain, number, &payload) } else { ipv4(&vec![1; 4 * words], number, &payload) }
    })
}

proptest! {
    #[test]
    fn what_is_inserted_is_found_and_removed(
        packet in packet(),
        header in prop::collection::vec(any::<u8>(), 1..60),
        number in prop::sample::select(vec![protocol::ESP, protocol::AH, protocol::UDP]),
    ) {
        let (protected, place) = insert(&packet, number, &header).unwrap();
        let parsed = IpHeader::parse(&protected).unwrap();
        prop_assert_eq!(
            (parsed.protocol, parsed.header_bytes, parsed.total_bytes),
            (number, place.at, packet.len() + header.len())
        );
        let found = TransportPlace::of_received(&protected, number).unwrap();
        prop_assert_eq!((found.at, found.next_header_at), (place.at, place.next_header_at));
        prop_assert_eq!(remove(&protected, number, header.len()), Ok(packet.clone()));
    }

    /// RFC 1624: as if the checksum were computed anew.
    #[test]
    fn an_ipv4_checksum_stays_that_of_the_whole_header(
        packet in packet(),
        number in any::<u8>(),
        total in 0usize..65_536,
    ) {
        let mut packet = packet;
        let place = TransportPlace::to_insert(&packet).unwrap();
        place.rewrite(&mut packet, number, total.max(place.at)).unwrap();
        if place.version == Version::V4 {
            prop_assert_eq!(&packet[2..4], &u16::try_from(total.max(place.at)).unwrap().to_be_bytes());
            prop_assert_eq!(packet[9], number);
            let updated = packet.clone();
            complete_ipv4_checksum(&mut packet);
            prop_assert_eq!(&updated, &packet);
            prop_assert!(checksum::of(&packet[..place.at]).is_intact());
        }
    }

    #[test]
    fn damaged_packets_have_a_place_inside_or_none(
        packet in prop_oneof![packet(), prop::collection::vec(any::<u8>(), 0..120)],
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        number in any::<u8>(),
    ) {
        let mut packet = packet;
        for (at, byte) in damage {
            if !packet.is_empty() {
                let at = at.index(packet.len());
                packet[at] = byte;
            }
        }
        let places = [TransportPlace::to_insert(&packet), TransportPlace::of_received(&packet, number)];
        for place in places.into_iter().flatten() {
            prop_assert!(place.next_header_at < place.at && place.at <= place.total_bytes);
            prop_assert!(place.total_bytes <= packet.len());
            prop_assert_eq!(packet[place.next_header_at], place.next_header);
        }
    }
}

//! Parsers of packet formats.

use std::net::IpAddr;
use testudo_ipsec::{Flow, Selector};
use testudo_wire::esp::{EspHeader, EspTrailer};
use testudo_wire::fragment::{pieces, pieces_of_ours};
use testudo_wire::icmp::{MAX_TOO_BIG_BYTES, too_big};
use testudo_wire::ip::{IpHeader, Version, set_ecn};
use testudo_wire::plain::PlainHeader;
use testudo_wire::protocol;
use testudo_wire::reassembly::ReceivedFragment;
use testudo_wire::tcp::TcpHeader;
use testudo_wire::udp::UdpHeader;

/// A header that parses describes its bytes, and everything derived from it is consistent.
pub fn wire_ip(data: &[u8]) {
    set_ecn(&mut data.to_vec(), 3);
    let _ = TcpHeader::parse(data);
    let Ok(header) = IpHeader::parse(data) else { return };
    assert!(header.header_bytes <= header.total_bytes && header.total_bytes <= data.len());
    assert_eq!(header.payload(data).len(), header.total_bytes - header.header_bytes);
    show_fields(&header, data);
    assert!(Selector::ANY.matches(&Flow::outbound(&header, data)));
    assert!(Selector::ANY.matches(&Flow::inbound(&header, data)));
    // Bytes after the datagram do not matter.
    assert_eq!(IpHeader::parse(&data[..header.total_bytes]), Ok(header));
    mark(&header, data);
    for mtu in [28, 68, 576, 1280, 1400] {
        cut(&header, data, mtu);
        cut_ours(&header, data, mtu);
    }
    complain(&header, data);
}

/// Fields of the next layer are shown exactly where a protocol that has some is whole enough (RFC 4301
/// 4.4.1.1), and both parsers show the same.
fn show_fields(header: &IpHeader, data: &[u8]) {
    let fields = header.next_layer_fields(data);
    let is_whole = header.payload(data).len() >= 4 && header.fragment.is_none_or(|f| f.offset_bytes == 0);
    assert_eq!(fields.is_some(), protocol::has_selector_fields(header.protocol) && is_whole);
    if let Some(plain) = PlainHeader::parse(data) {
        assert_eq!(plain.next_layer_fields(), fields);
    }
}

/// Setting ECN changes only ECN.
fn mark(header: &IpHeader, data: &[u8]) {
    for ecn in 0..4 {
        let mut bytes = data.to_vec();
        set_ecn(&mut bytes, ecn);
        let traffic_class = header.traffic_class & !3 | ecn;
        assert_eq!(IpHeader::parse(&bytes), Ok(IpHeader { traffic_class, ..*header }));
    }
}

/// Fragments fit, parse, and together carry exactly the packet's payload.
fn cut(header: &IpHeader, data: &[u8], mtu: usize) {
    let payload = header.payload(data);
    let mut expected = 0;
    for piece in pieces(header, data, mtu) {
        assert!(piece.header_bytes + piece.payload_bytes <= mtu);
        assert_eq!(piece.payload_start, header.header_bytes + expected);
        let part = &payload[expected..expected + piece.payload_bytes];
        let bytes = [&piece.header[..piece.header_bytes], part].concat();
        let fragment = IpHeader::parse(&bytes).expect("a fragment is a packet");
        assert_eq!((fragment.total_bytes, fragment.protocol), (bytes.len(), header.protocol));
        assert_eq!((fragment.source, fragment.destination), (header.source, header.destination));
        let own = header.fragment.map_or(0, |f| f.offset_bytes);
        let at = fragment.fragment.map_or(0, |f| f.offset_bytes);
        assert_eq!(usize::from(at), usize::from(own) + expected);
        expected += piece.payload_bytes;
    }
    let can_be_cut = header.version == Version::V4 && !header.dont_fragment && mtu >= header.header_bytes + 8;
    assert_eq!(expected, if can_be_cut { payload.len() } else { 0 });
}

/// So do the fragments of a datagram of our own, in either version and whatever DF says.
fn cut_ours(header: &IpHeader, data: &[u8], mtu: usize) {
    let (mut at, mut first) = (None, None);
    for piece in pieces_of_ours(header, data, mtu, 0x1234_5678) {
        assert!(piece.header_bytes + piece.payload_bytes <= mtu);
        assert_eq!(piece.payload_start, at.unwrap_or(piece.payload_start), "one after the other");
        at = Some(piece.payload_start + piece.payload_bytes);
        let payload = &data[piece.payload_start..piece.payload_start + piece.payload_bytes];
        let bytes = [&piece.header[..piece.header_bytes], payload].concat();
        let parsed = IpHeader::parse(&bytes);
        // A first fragment may end within the header chain of a packet that nobody sane sends (RFC 7112).
        let Ok(fragment) = parsed else { return assert!(first.is_none() && header.version == Version::V6) };
        assert_eq!(fragment.total_bytes, bytes.len());
        let Some(read) = ReceivedFragment::read(&fragment, &bytes) else { continue };
        let start = *first.get_or_insert(piece.payload_start);
        let own = header.fragment.filter(|_| header.version == Version::V4).map_or(0, |f| f.offset_bytes);
        assert_eq!(read.offset_bytes, usize::from(own) + piece.payload_start - start);
    }
    assert!(at.is_none_or(|end| end == header.total_bytes), "all of it");
}

/// A "too big" message is a valid packet to the sender.
fn complain(header: &IpHeader, data: &[u8]) {
    let mut out = [0; MAX_TOO_BIG_BYTES];
    let from: IpAddr = header.destination;
    if let Ok(Some(length)) = too_big(header, data, 1280, from, &mut out) {
        let reply = IpHeader::parse(&out[..length]).expect("the message is a packet");
        assert_eq!((reply.source, reply.destination), (from, header.source));
        assert!(!from.is_multicast() && !header.source.is_multicast());
    }
}

/// A trailer parses exactly if its padding is 1, 2, 3, … and not longer than the text (RFC 4303 2.4), byte by
/// byte.
pub fn esp_trailer(data: &[u8]) {
    let header = data.first_chunk::<8>().map(|h| u64::from_be_bytes(*h));
    let parsed = EspHeader::parse(data).map(|h| u64::from(h.spi) << 32 | u64::from(h.sequence));
    assert_eq!(parsed, header);
    assert_eq!(EspTrailer::parse(data).ok(), trailer_of(data));
    let padding = data.first().copied().unwrap_or(0);
    let text: Vec<u8> = data.iter().copied().chain(1..=padding).chain([padding, 4]).collect();
    assert_eq!(EspTrailer::parse(&text), Ok(EspTrailer { payload_bytes: data.len(), next_header: 4 }));
}

fn trailer_of(text: &[u8]) -> Option<EspTrailer> {
    let [body @ .., padding, next_header] = text else { return None };
    let payload_bytes = body.len().checked_sub(usize::from(*padding))?;
    let is_default =
        body[payload_bytes..].iter().zip(1..).all(|(byte, expected)| i32::from(*byte) == expected);
    is_default.then_some(EspTrailer { payload_bytes, next_header: *next_header })
}

/// A UDP header that parses is written back identically, except for its checksum.
pub fn udp(data: &[u8]) {
    let Ok(header) = UdpHeader::parse(data) else { return };
    assert!(header.total_bytes <= data.len());
    let mut written = [0xEE; 8];
    header.write(&mut written).expect("there is room");
    assert_eq!(written[..6], data[..6]);
}

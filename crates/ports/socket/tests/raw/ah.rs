//! AH: whatever its ICV covers crosses unchanged (RFC 4302 3.3.3.1), as seen by a packet socket on the wire.

use crate::support::{ADDRESSES, datagram, open, receive, receive_and_drop, record, recorded, send};
use std::net::IpAddr;
use testudo_lab::attack::{self, Recorded};
use testudo_lab::namespaces::Namespace;
use testudo_packet::DropReason;
use testudo_port_socket::Encapsulation;
use testudo_wire::ip::IPV4_HEADER_BYTES;
use testudo_wire::{checksum, fragment, protocol};

const AH: Encapsulation = Encapsulation::RawAh;

pub fn tests(sites: &[Namespace; 2]) {
    packets_of_scapy_cross_unchanged(sites);
    every_field_of_ipv4_crosses_unchanged(sites);
    every_field_of_ipv6_crosses_unchanged(sites);
    recorded_routes_arrive_with_a_checksum(sites);
    fragments_arrive_whole(sites);
    an_identification_that_the_kernel_would_replace_is_refused(sites);
    a_datagram_beyond_the_mtu_is_refused_alone(sites);
    more_extension_headers_than_there_is_room_for_are_counted(sites);
}

fn addresses(version: usize) -> [IpAddr; 2] {
    ADDRESSES[version].map(|text| text.parse().unwrap())
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// Sends from left to right, and expects the same bytes on the wire and at the other port, and nothing else
/// of AH or ICMP on the wire.
fn cross_unchanged([left, right]: &[Namespace; 2], [from, to]: [IpAddr; 2], packets: &[Vec<u8>]) {
    let (mut a, mut b) = (open(left, from, AH), open(right, to, AH));
    let recording = record(right);
    assert_eq!(send(&mut a, packets), []);
    let received = receive(&mut b, packets.len());
    let seen = recorded(recording, right, &[protocol::AH, protocol::ICMP, protocol::ICMPV6]);
    for (index, packet) in packets.iter().enumerate() {
        assert!(seen[index] == *packet, "packet {index} on the wire: {:x?}, not {packet:x?}", seen[index]);
        let got = &received[index];
        assert!(got == packet, "packet {index} was delivered as {got:x?}, not {packet:x?}");
    }
    assert_eq!(seen.len(), packets.len());
}

/// An IPv4 datagram whose header has these 8 bytes and options, a multiple of 4 bytes; lengths and checksum
/// are filled in.
fn ipv4([from, to]: [IpAddr; 2], start: [u8; 8], options: &[u8], payload: &[u8]) -> Vec<u8> {
    let (IpAddr::V4(from), IpAddr::V4(to)) = (from, to) else { panic!("{from} and {to} are not IPv4") };
    let header_bytes = IPV4_HEADER_BYTES + options.len();
    let mut bytes = start.to_vec();
    bytes.extend([64, protocol::AH, 0, 0]);
    bytes.extend([from.octets(), to.octets()].concat());
    bytes.extend_from_slice(options);
    bytes.extend_from_slice(payload);
    bytes[0] = 0x40 | (header_bytes / 4) as u8;
    let total = (bytes.len() as u16).to_be_bytes();
    bytes[2..4].copy_from_slice(&total);
    let sum = checksum::of(&bytes[..header_bytes]).to_bytes();
    bytes[10..12].copy_from_slice(&sum);
    bytes
}

/// An IPv6 datagram whose header begins with this word; `next` is the number of what follows it.
fn ipv6([from, to]: [IpAddr; 2], word: u32, next: u8, hop_limit: u8, content: &[u8]) -> Vec<u8> {
    let (IpAddr::V6(from), IpAddr::V6(to)) = (from, to) else { panic!("{from} and {to} are not IPv6") };
    let mut bytes = word.to_be_bytes().to_vec();
    bytes.extend((content.len() as u16).to_be_bytes());
    bytes.extend([next, hop_limit]);
    bytes.extend([from.octets(), to.octets()].concat());
    bytes.extend_from_slice(content);
    bytes
}

/// AH before UDP, as far as a port looks: 24 bytes of header, the last 12 of them an ICV.
fn ah(payload: usize) -> Vec<u8> {
    let mut bytes = vec![protocol::UDP, 4, 0, 0, 0, 0, 0x10, 1, 0, 0, 0, 7];
    bytes.extend((0..12 + payload).map(|n| (n * 37) as u8));
    bytes
}

/// Made with Scapy 2.5: `raw(SecurityAssociation(AH, spi=0x1001, seq_num=7, auth_algo="HMAC-SHA1-96",
/// auth_key=bytes(range(20))).encrypt(IP/UDP(sport=5000, dport=53)/b"query"))`, where IP is
/// `IP(src="10.8.0.1", dst="10.8.0.2", id=7)` or `IPv6(src="fd08::1", dst="fd08::2")`.
fn packets_of_scapy_cross_unchanged(sites: &[Namespace; 2]) {
    for (version, packet) in SCAPY.iter().enumerate() {
        cross_unchanged(sites, addresses(version), &[hex(packet)]);
    }
}

const SCAPY: [&str; 2] = [
    "4500003900070000403366790a0800010a0800021104000000001001000000075bf087de04cf40d3208fdc2c13880035\
     000d881c7175657279",
    "6000000000253340fd080000000000000000000000000001fd0800000000000000000000000000021104000000001001\
     00000007aa945e65ee7a3408d403f95913880035000da21a7175657279",
];

/// RFC 791 3.1. Identification, DF, TOS, TTL; NOP, EOL and router alert (RFC 2113).
fn every_field_of_ipv4_crosses_unchanged(sites: &[Namespace; 2]) {
    let between = addresses(0);
    let start = |tos, [high, low]: [u8; 2], flags| [0, tos, 0, 0, high, low, flags, 0];
    let mut packets = Vec::new();
    for (identification, flags) in [([0x12, 0x34], 0x40), ([0xFF, 0xFF], 0), ([0, 1], 0), ([0, 0], 0x40)] {
        for tos in [0, 0xBA, 0x03] {
            for options in [&[][..], &[148, 4, 0, 0], &[1, 1, 1, 0]] {
                packets.push(ipv4(between, start(tos, identification, flags), options, &ah(packets.len())));
            }
        }
    }
    for (ttl, packet) in [1, 2, 63, 128, 255].into_iter().zip(&mut packets) {
        let header_bytes = usize::from(packet[0] & 15) * 4;
        packet[8] = ttl;
        packet[10..12].fill(0);
        let sum = checksum::of(&packet[..header_bytes]).to_bytes();
        packet[10..12].copy_from_slice(&sum);
    }
    cross_unchanged(sites, between, &packets);
}

/// RFC 8200 3 and 4. Traffic class, flow label, hop limit; hop-by-hop options (router alert, RFC 2711),
/// destination options (an option that no node knows and each may skip), routing header (of type 253, RFC
/// 3692, with no segments left), each alone and all of them.
fn every_field_of_ipv6_crosses_unchanged(sites: &[Namespace; 2]) {
    const ALERT: [u8; 6] = [5, 2, 0, 0, 1, 0];
    let header = |next: u8, data: &[u8]| [&[next, (data.len() / 8) as u8][..], data].concat();
    let unknown = [0x1E, 12, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
    let routing = [253, 0, 1, 2, 3, 4];
    let end = protocol::AH;
    let (hops, destination, route) = (protocol::HOP_BY_HOP, protocol::DESTINATION_OPTIONS, protocol::ROUTING);
    let chains = [
        (end, vec![]),
        (hops, header(end, &ALERT)),
        (destination, header(end, &unknown)),
        (route, header(end, &routing)),
        (
            hops,
            [
                header(destination, &ALERT),
                header(route, &unknown),
                header(destination, &routing),
                header(end, &unknown),
            ]
            .concat(),
        ),
    ];
    let between = addresses(1);
    let packets: Vec<_> = chains
        .iter()
        .zip([0x6000_0000_u32, 0x6BAF_EDCB, 0x6030_0000, 0x6000_0001, 0x60B0_0800])
        .zip([64, 255, 1, 2, 128])
        .map(|(((next, chain), word), hop_limit)| {
            ipv6(between, word, *next, hop_limit, &[&chain[..], &ah(hop_limit.into())].concat())
        })
        .collect();
    cross_unchanged(sites, between, &packets);
}

/// RFC 791 3.1: the kernel notes our address in a recorded route. AH does not cover that option (RFC 4302,
/// Appendix A1), and the header's checksum is right again.
fn recorded_routes_arrive_with_a_checksum([left, right]: &[Namespace; 2]) {
    let [from, to] = addresses(0);
    let (mut a, mut b) = (open(left, from, AH), open(right, to, AH));
    let options = [7, 11, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let packet = ipv4([from, to], [0, 0, 0, 0, 0, 9, 0x40, 0], &options, &ah(8));
    assert_eq!(send(&mut a, std::slice::from_ref(&packet)), []);
    let received = receive(&mut b, 1).remove(0);
    assert!(checksum::of(&received[..32]).is_intact(), "{received:x?}");
    assert_eq!(received[20..32], [7, 11, 8, 10, 8, 0, 2, 0, 0, 0, 0, 0], "our address was noted");
    assert_eq!(received[..10], packet[..10]);
    assert_eq!(received[12..20], packet[12..20]);
    assert_eq!(received[32..], packet[32..]);
}

/// RFC 4302 3.4.1: the kernel reassembles before AH. Identification, length and extension headers are those
/// that the ICV covers.
fn fragments_arrive_whole([left, right]: &[Namespace; 2]) {
    let between = addresses(0);
    let (mut a, mut b) = (open(left, between[0], AH), open(right, between[1], AH));
    let whole = ipv4(between, [0, 0xBA, 0, 0, 0x77, 0x88, 0, 0], &[148, 4, 0, 0], &ah(4000));
    let header = testudo_wire::ip::IpHeader::parse(&whole).unwrap();
    let pieces: Vec<Vec<u8>> = fragment::pieces(&header, &whole, 1500)
        .map(|piece| {
            let payload = &whole[piece.payload_start..][..piece.payload_bytes];
            [&piece.header[..piece.header_bytes], payload].concat()
        })
        .collect();
    assert!(pieces.len() == 3);
    assert_eq!(send(&mut a, &pieces), [], "a port sends fragments that were made before");
    assert!(receive(&mut b, 1)[0] == whole);

    let between = addresses(1);
    let mut b = open(right, between[1], AH);
    let content = ah(2000);
    let part = |offset: u16, more: u16, bytes: &[u8]| {
        let [high, low] = (offset | more).to_be_bytes();
        let headers = [&[44, 0, 1, 4, 0, 0, 0, 0][..], &[51, 0, high, low, 1, 2, 3, 4]].concat();
        ipv6(between, 0x6000_0000, 60, 64, &[&headers[..], bytes].concat())
    };
    let parts = [part(0, 1, &content[..1000]), part(1000, 0, &content[1000..])];
    let mut a = open(left, between[0], AH);
    assert_eq!(send(&mut a, &parts), []);
    let options = [51, 0, 1, 4, 0, 0, 0, 0];
    assert!(receive(&mut b, 1)[0] == ipv6(between, 0x6000_0000, 60, 64, &[&options[..], &content].concat()));
    // An atomic fragment (RFC 6946): its header is left out, as the ICV has it (RFC 4302 3.3.3.1.2).
    let atomic = Recorded::new(&part(0, 0, &content[..800]), 60, false).unwrap();
    attack::send(left, between[1], &[atomic]).unwrap();
    let delivered = ipv6(between, 0x6000_0000, 60, 64, &[&options[..], &content[..800]].concat());
    assert!(receive(&mut b, 1)[0] == delivered);
}

/// raw(7), RFC 6864 4: without DF the kernel would replace an identification of 0, which the ICV covers.
fn an_identification_that_the_kernel_would_replace_is_refused([left, right]: &[Namespace; 2]) {
    let between = addresses(0);
    let (mut a, mut b) = (open(left, between[0], AH), open(right, between[1], AH));
    let packets = [0x40, 0].map(|flags| ipv4(between, [0, 0, 0, 0, 0, 0, flags, 0], &[], &ah(8)));
    assert_eq!(send(&mut a, &packets), [(DropReason::BadHeader, 1)]);
    assert!(receive(&mut b, 1)[0] == packets[0]);
}

fn a_datagram_beyond_the_mtu_is_refused_alone([left, right]: &[Namespace; 2]) {
    for version in [0, 1] {
        let [from, to] = addresses(version);
        let (mut a, mut b) = (open(left, from, AH), open(right, to, AH));
        let ah = datagram(from, to, protocol::AH);
        let headers = [20, 40][version];
        let packets = [100, 1501 - headers, 1500 - headers].map(|bytes| ah.with(&vec![7; bytes]));
        assert_eq!(send(&mut a, &packets), [(DropReason::MessageTooLong, 1)]);
        assert!(receive(&mut b, 2) == [packets[0].clone(), packets[2].clone()]);
    }
}

/// RFC 8200 4.2: hop-by-hop options may have 2,048 bytes.
fn more_extension_headers_than_there_is_room_for_are_counted([left, right]: &[Namespace; 2]) {
    let between = addresses(1);
    let (mut a, mut b) = (open(left, between[0], AH), open(right, between[1], AH));
    // At most 8 options, which is as many as Linux accepts (`max_hbh_opts_number`).
    let options = |bytes: usize| {
        let mut options = vec![protocol::AH, (bytes / 8 - 1) as u8];
        while options.len() < bytes {
            let data = (bytes - options.len() - 2).min(200);
            options.extend([0x1E, data as u8]);
            options.extend(vec![options.len() as u8; data]);
        }
        options
    };
    let packets = [1024, 800].map(|bytes| {
        ipv6(between, 0x6000_0000, protocol::HOP_BY_HOP, 64, &[&options(bytes)[..], &ah(100)].concat())
    });
    assert_eq!(send(&mut a, &packets), []);
    let (received, drops) = receive_and_drop(&mut b, 1);
    assert!(received[0] == packets[1]);
    assert_eq!(drops, [(DropReason::ReceiveTruncated, 1)]);
}

//! What comes from a link: Ethernet, ARP, neighbour discovery, echo requests.

use std::net::{IpAddr, Ipv6Addr};
use testudo_wire::arp::ArpPacket;
use testudo_wire::ethernet::{EthernetHeader, ether_type};
use testudo_wire::icmp::{MAX_TOO_BIG_BYTES, Unreachable, echo_reply, unreachable};
use testudo_wire::ip::IpHeader;
use testudo_wire::neighbour_discovery::{MAX_NEIGHBOUR_MESSAGE_BYTES, NeighbourMessage};

/// Any frame: what is read of it is written back to the same bytes, and what answers it can be read.
pub fn link_headers(data: &[u8]) {
    let Ok(header) = EthernetHeader::parse(data) else {
        return assert!(data.len() < 22, "a header of one or two tags fits");
    };
    let (written, bytes) = (header.to_bytes(), header.bytes());
    assert_eq!(written[..bytes], data[..bytes]);
    let payload = &data[bytes..];
    match header.ether_type {
        ether_type::ARP => {
            if let Ok(packet) = ArpPacket::parse(payload) {
                assert_eq!(packet.to_bytes()[..], payload[..28]);
            }
        }
        ether_type::IPV4 | ether_type::IPV6 => ip(payload),
        _ => {}
    }
}

fn ip(packet: &[u8]) {
    let Ok(header) = IpHeader::parse(packet) else { return };
    if let Ok(Some(message)) = NeighbourMessage::parse(&header, packet) {
        neighbour_message(&header, message);
    }
    let mut answered = packet.to_vec();
    if let Some(start) = echo_reply(&header, &mut answered) {
        let reply = IpHeader::parse(&answered[start..]).expect("a packet");
        assert_eq!((reply.source, reply.destination), (header.destination, header.source));
        assert_eq!(reply.payload(&answered[start..])[4..], header.payload(packet)[4..]);
    } else {
        assert_eq!(answered, packet);
    }
    let mut out = [0; MAX_TOO_BIG_BYTES];
    for why in [Unreachable::Host, Unreachable::Protocol, Unreachable::Port] {
        let length = unreachable(&header, packet, why, header.destination, &mut out);
        if let Some(length) = length.expect("addresses of one version") {
            let message = IpHeader::parse(&out[..length]).expect("a packet");
            assert_eq!((message.source, message.destination), (header.destination, header.source));
        }
    }
}

/// What is written of a message is read as the same message.
fn neighbour_message(header: &IpHeader, message: NeighbourMessage) {
    let (IpAddr::V6(source), IpAddr::V6(destination)) = (header.source, header.destination) else {
        panic!("neighbour discovery over IPv4");
    };
    assert_eq!(header.hop_limit, 255);
    let mut out = [0xAA; MAX_NEIGHBOUR_MESSAGE_BYTES];
    let length = message.write(source, destination, &mut out);
    let (NeighbourMessage::Solicitation { target, .. } | NeighbourMessage::Advertisement { target, .. }) =
        message;
    assert!(!Ipv6Addr::is_multicast(&target));
    let header = IpHeader::parse(&out[..length]).expect("a packet");
    assert_eq!(NeighbourMessage::parse(&header, &out[..length]), Ok(Some(message)));
}

//! ESP in UDP beside an IKE daemon, which has the UDP socket of the port (RFC 3948).

use crate::support::{ADDRESSES, Datagram, datagram, fragments_sent, open, open_with_mtu, receive, send};
use socket2::{SockFilter, SockRef};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use testudo_lab::attack::{self, Recorded};
use testudo_lab::namespaces::Namespace;
use testudo_packet::{DropReason, Port};
use testudo_port_socket::Encapsulation;
use testudo_wire::ip::IpHeader;
use testudo_wire::protocol;
use testudo_wire::udp::UdpHeader;

const PORT: u16 = 4500;
const BESIDE: Encapsulation = Encapsulation::UdpBeside { port: PORT };
/// What IKE has where ESP has its SPI (RFC 3948 2.2).
const MARKER: [u8; 4] = [0; 4];

pub fn tests(sites: &[Namespace; 2]) {
    for addresses in ADDRESSES {
        let [left, right] = addresses.map(|text| text.parse().unwrap());
        ike_and_esp_to_one_port_come_apart(sites, left, right);
        what_is_sent_arrives_at_a_udp_socket(sites, left, right);
        headers_cross_as_between_udp_sockets(sites, left, right);
        long_datagrams_are_fragmented_or_refused_as_they_ask(sites, left, right);
        nothing_that_came_before_the_filter_is_received(&sites[1], right);
    }
    a_datagram_without_checksum_is_received_over_ipv6(sites);
    extension_headers_are_put_back(sites);
}

fn udp(site: &Namespace, local: IpAddr, port: u16) -> UdpSocket {
    let socket = site.within(|| UdpSocket::bind(SocketAddr::new(local, port)).unwrap()).unwrap();
    socket.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
    socket
}

/// The UDP socket of a daemon, with a filter that leaves it IKE.
fn daemon(site: &Namespace, local: IpAddr) -> UdpSocket {
    const LOAD: u16 = 0x20;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let socket = udp(site, local, PORT);
    // The filter of a UDP socket sees the UDP header first.
    let program = [
        SockFilter::new(LOAD, 0, 0, 8),
        SockFilter::new(JUMP_IF_EQUAL, 0, 1, 0),
        SockFilter::new(RETURN, 0, 0, u32::MAX),
        SockFilter::new(RETURN, 0, 0, 0),
    ];
    SockRef::from(&socket).attach_filter(&program).unwrap();
    socket
}

/// ESP, as far as the port looks: an SPI whose first three bytes are zero, a sequence number, content.
fn esp(number: u8, bytes: usize) -> Vec<u8> {
    let mut bytes = vec![number; bytes.max(8)];
    bytes[..3].fill(0);
    bytes
}

/// Source, destination, ports and payload of a datagram that a port gave.
fn content(packet: &[u8]) -> (IpAddr, IpAddr, (u16, u16), Vec<u8>) {
    let header = IpHeader::parse(packet).unwrap();
    assert_eq!((header.protocol, header.fragment, header.total_bytes), (protocol::UDP, None, packet.len()));
    let payload = header.payload(packet);
    let udp = UdpHeader::parse(payload).unwrap();
    assert_eq!(udp.total_bytes, payload.len());
    (header.source, header.destination, (udp.source_port, udp.destination_port), payload[8..].to_vec())
}

/// IKE to the daemon, ESP to the port, each once; keepalives (RFC 3948 2.3), what is too short for ESP and
/// what is for other ports to neither.
fn ike_and_esp_to_one_port_come_apart([left, right]: &[Namespace; 2], source: IpAddr, destination: IpAddr) {
    let any: IpAddr = if source.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let peer = udp(left, source, 4501);
    for local in [destination, any] {
        let daemon = daemon(right, local);
        let other = udp(right, destination, 4502);
        let mut port = open(right, local, BESIDE);
        let ike = |number: u8, bytes: usize| [&MARKER[..], &vec![number; bytes]].concat();
        let to = |port, payload: &[u8]| peer.send_to(payload, SocketAddr::new(destination, port)).unwrap();
        // Least lengths, usual ones, and some that need fragments.
        let for_port = [esp(1, 8), esp(2, 120), esp(3, 1400), esp(4, 4000), esp(5, 8000), esp(6, 9)];
        let for_daemon = [ike(1, 0), ike(2, 4), ike(3, 1200), ike(4, 3000), vec![0; 500], ike(6, 28)];
        for (esp, ike) in for_port.iter().zip(&for_daemon) {
            for stray in [&[0xFF][..], &[], &[0, 0, 1], &[0xFF; 7], &esp[..7], &[9; 4]] {
                to(PORT, stray);
            }
            to(PORT, ike);
            to(4502, &esp[..]);
            to(PORT, esp);
        }
        let received: Vec<_> = receive(&mut port, for_port.len()).iter().map(|p| content(p)).collect();
        let expected = for_port.map(|payload| (source, destination, (4501, PORT), payload));
        assert_eq!(received, expected);
        let mut bytes = [0; 4000];
        for ike in for_daemon {
            let (length, from) = daemon.recv_from(&mut bytes).unwrap();
            assert_eq!((&bytes[..length], from), (&ike[..], SocketAddr::new(source, 4501)));
        }
        daemon.set_nonblocking(true).unwrap();
        assert!(daemon.recv_from(&mut bytes).is_err(), "more than IKE");
        drop(other);
    }
}

/// The peer's kernel verifies checksums, and requires one over IPv6 (RFC 8200 8.1).
fn what_is_sent_arrives_at_a_udp_socket([left, right]: &[Namespace; 2], source: IpAddr, destination: IpAddr) {
    // The daemon of this side has the port at the same time.
    let daemon = daemon(left, source);
    let peer = udp(right, destination, 4501);
    let mut port = open(left, source, BESIDE);
    let payloads: Vec<_> = (0..60_u8).map(|n| esp(n + 1, 8 + 23 * usize::from(n))).collect();
    let datagram = datagram(source, destination, protocol::UDP);
    let packets: Vec<_> = payloads.iter().map(|payload| datagram.udp((PORT, 4501), payload)).collect();
    assert_eq!(send(&mut port, &packets), []);
    assert_eq!(port.counters().tx_calls, 1);
    let mut bytes = [0; 4000];
    for payload in payloads {
        let (length, from) = peer.recv_from(&mut bytes).unwrap();
        assert_eq!((&bytes[..length], from), (&payload[..], SocketAddr::new(source, PORT)));
    }
    // What has another source port is none of its packets.
    assert_eq!(
        send(&mut port, &[datagram.udp((4502, 4501), &[1; 20])]),
        [(DropReason::BypassUnavailable, 1)]
    );
    assert!(port.endpoints_without_segmentation().next().is_none() && !port.joins());
    drop(daemon);
}

fn headers_cross_as_between_udp_sockets([left, right]: &[Namespace; 2], source: IpAddr, destination: IpAddr) {
    let (mut a, mut b) = (open(left, source, BESIDE), open(right, destination, BESIDE));
    let mut packets = Vec::new();
    for (class, hop_limit) in [(0, 64), (0xBA, 64), (0x03, 255), (0xB9, 1)] {
        let start = Datagram { traffic_class: class, ..datagram(source, destination, protocol::UDP) };
        let mut packet = start.udp((PORT, PORT), &esp(class | 1, 100));
        if source.is_ipv4() {
            packet[8] = hop_limit;
            packet[10..12].fill(0);
            let sum = testudo_wire::checksum::of(&packet[..20]).to_bytes();
            packet[10..12].copy_from_slice(&sum);
        } else {
            packet[7] = hop_limit;
            packet[3] = hop_limit;
        }
        packets.push(packet);
    }
    assert_eq!(send(&mut a, &packets), []);
    for (mut sent, mut received) in packets.into_iter().zip(receive(&mut b, 4)) {
        if source.is_ipv6() {
            assert_ne!(received[46..48], [0, 0], "a checksum");
            sent[46..48].fill(0);
            received[46..48].fill(0);
        }
        assert!(sent == received, "{received:x?}, not {sent:x?}");
    }
}

/// As UDP sockets do it: over IPv4 by DF, over IPv6 by length alone.
fn long_datagrams_are_fragmented_or_refused_as_they_ask(
    [left, right]: &[Namespace; 2],
    source: IpAddr,
    destination: IpAddr,
) {
    let peer = udp(right, destination, 4501);
    let mut port = open_with_mtu(left, source, BESIDE, if source.is_ipv4() { usize::MAX } else { 1280 });
    assert!(port.fragments_udp());
    let mut bytes = [0; 9000];
    let mut arrives = |payload: &[u8]| {
        let (length, from) = peer.recv_from(&mut bytes).unwrap();
        assert_eq!(from, SocketAddr::new(source, PORT));
        assert!(bytes[..length] == *payload, "{length} bytes");
    };
    let payloads = [esp(1, 100), esp(2, 4000), esp(3, 1200), esp(4, 8000), esp(5, 200)];
    let free = Datagram { dont_fragment: false, ..datagram(source, destination, protocol::UDP) };
    let packets = payloads.each_ref().map(|payload| free.udp((PORT, 4501), payload));
    let before = fragments_sent(left);
    assert_eq!(send(&mut port, &packets), []);
    payloads.iter().for_each(|payload| arrives(payload));
    if source.is_ipv4() {
        let kept = datagram(source, destination, protocol::UDP);
        let packets = payloads.each_ref().map(|payload| kept.udp((PORT, 4501), payload));
        assert_eq!(send(&mut port, &packets), [(DropReason::MessageTooLong, 2)]);
        [0, 2, 4].into_iter().for_each(|index: usize| arrives(&payloads[index]));
    } else {
        let room = (1280 - 48) / 8 * 8;
        let pieces = [4000_usize, 8000].map(|bytes| (bytes + 8).div_ceil(room));
        assert_eq!(fragments_sent(left) - before, pieces.iter().sum::<usize>() as u64);
        let mut port = open(left, source, BESIDE);
        assert_eq!(send(&mut port, &packets), [(DropReason::MessageTooLong, 2)], "no MTU, no fragments");
    }
}

/// Ends a flood when the test ends, or fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A raw socket of UDP receives all of it from the moment that it is opened.
fn nothing_that_came_before_the_filter_is_received(site: &Namespace, local: IpAddr) {
    let target = udp(site, local, 4502);
    let source = udp(site, local, 4501);
    let stops = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let flood = || {
            while !stops.load(Ordering::Relaxed) {
                source.send_to(&[1; 20], target.local_addr().unwrap()).unwrap();
            }
        };
        scope.spawn(flood);
        let _end = End(&stops);
        for number in 1..=20 {
            let mut port = open(site, local, BESIDE);
            let peer = udp(site, local, 0);
            peer.send_to(&esp(number, 20), SocketAddr::new(local, PORT)).unwrap();
            assert_eq!(content(&receive(&mut port, 1)[0]).3, esp(number, 20));
        }
    });
}

/// RFC 6935: a peer may do without; the ICV judges.
fn a_datagram_without_checksum_is_received_over_ipv6([left, right]: &[Namespace; 2]) {
    let [source, destination] = ADDRESSES[1].map(|text| text.parse().unwrap());
    let mut port = open(right, destination, BESIDE);
    let packet = datagram(source, destination, protocol::UDP).udp((PORT, PORT), &esp(1, 100));
    let sent = Recorded::new(&packet, 48, false).unwrap();
    assert_eq!(sent.packet()[46..48], [0, 0]);
    attack::send(left, destination, &[sent]).unwrap();
    assert_eq!(receive(&mut port, 1)[0], packet);
}

/// The filter of IPv6 begins after them, that of IPv4 steps over options.
fn extension_headers_are_put_back([left, right]: &[Namespace; 2]) {
    let [source, destination] = ADDRESSES[1].map(|text| text.parse().unwrap());
    let mut port = open(right, destination, BESIDE);
    let plain = datagram(source, destination, protocol::UDP).udp((PORT, PORT), &esp(1, 100));
    let options = [protocol::UDP, 0, 0x1E, 4, 1, 2, 3, 4];
    let destination_options =
        Datagram { protocol: protocol::DESTINATION_OPTIONS, ..datagram(source, destination, protocol::UDP) };
    let packet = destination_options.with(&[&options[..], &plain[40..]].concat());
    attack::send(left, destination, &[Recorded::new(&packet, 56, false).unwrap()]).unwrap();
    assert_eq!(receive(&mut port, 1)[0], packet);

    let [source, destination] = ADDRESSES[0].map(|text| text.parse().unwrap());
    let mut port = open(right, destination, BESIDE);
    let plain = datagram(source, destination, protocol::UDP).udp((PORT, PORT), &esp(1, 100));
    let mut packet = [&plain[..20], &[1, 1, 1, 0], &plain[20..]].concat();
    packet[0] = 0x46;
    let total = (packet.len() as u16).to_be_bytes();
    packet[2..4].copy_from_slice(&total);
    packet[4..6].copy_from_slice(&[1, 2]);
    packet[10..12].fill(0);
    let sum = testudo_wire::checksum::of(&packet[..24]).to_bytes();
    packet[10..12].copy_from_slice(&sum);
    attack::send(left, destination, &[Recorded::new(&packet, 32, false).unwrap()]).unwrap();
    assert_eq!(receive(&mut port, 1)[0], packet);
}

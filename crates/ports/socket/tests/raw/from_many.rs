//! Datagrams in UDP from many source ports (VPE in UDP, a port for each window).

use crate::support::{ADDRESSES, datagram, fragments_sent, open, receive, send};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use testudo_lab::namespaces::Namespace;
use testudo_packet::{Batch, DropReason, Pool, Port};
use testudo_port_socket::{Encapsulation, Endpoint, SocketConfig, SocketPort};
use testudo_wire::protocol;
use testudo_wire::steering::Steering;

const PORT: u16 = 4501;
const UDP: Encapsulation = Encapsulation::Udp { port: PORT };
const FROM_MANY: Encapsulation = Encapsulation::UdpFromMany { port: PORT };

pub fn tests(sites: &[Namespace; 2]) {
    for addresses in ADDRESSES {
        let [left, right] = addresses.map(|text| text.parse().unwrap());
        each_datagram_arrives_from_its_own_port(sites, left, right);
        what_is_too_long_is_fragmented_or_refused(sites, left, right);
        nothing_is_received_by_it(sites, left, right);
        what_has_another_port_is_not_its_own(sites, left, right);
    }
    queues_spread_them_by_their_source_ports(sites);
}

/// Both kinds of sockets of one end, as a tunnel of VPE has them.
fn ends(local: IpAddr) -> Vec<Endpoint> {
    [UDP, FROM_MANY].map(|encapsulation| Endpoint { local, encapsulation }).to_vec()
}

fn both(site: &Namespace, local: IpAddr) -> SocketPort {
    site.within(|| SocketPort::open(&SocketConfig::new(ends(local))).unwrap()).unwrap()
}

fn peer(site: &Namespace, local: IpAddr) -> UdpSocket {
    let socket = site.within(|| UdpSocket::bind(SocketAddr::new(local, PORT)).unwrap()).unwrap();
    socket.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
    socket
}

/// The peer's kernel verifies checksums, and requires one over IPv6 (RFC 8200 8.1).
fn each_datagram_arrives_from_its_own_port([left, right]: &[Namespace; 2], source: IpAddr, to: IpAddr) {
    let peer = peer(right, to);
    let mut port = both(left, source);
    let datagram = datagram(source, to, protocol::UDP);
    // In one batch with what the tunnel's own port sends.
    let ports = [0xC000, 0xC001, PORT, 0xFFFF, 0xC000, PORT];
    let payloads: Vec<Vec<u8>> = (1..7_u8).map(|n| vec![n; 40 + 199 * usize::from(n)]).collect();
    let packets: Vec<_> =
        ports.iter().zip(&payloads).map(|(from, payload)| datagram.udp((*from, PORT), payload)).collect();
    assert_eq!(send(&mut port, &packets), []);
    let mut received: Vec<_> = payloads
        .iter()
        .map(|_| {
            let mut bytes = vec![0; 2000];
            let (length, from) = peer.recv_from(&mut bytes).unwrap();
            assert_eq!(from.ip(), source);
            (from.port(), bytes[..length].to_vec())
        })
        .collect();
    let mut expected: Vec<_> = ports.into_iter().zip(payloads).collect();
    received.sort();
    expected.sort();
    assert_eq!(received, expected);
}

fn what_is_too_long_is_fragmented_or_refused([left, right]: &[Namespace; 2], source: IpAddr, to: IpAddr) {
    let peer = peer(right, to);
    let mut port = open(left, source, FROM_MANY);
    let mut long = datagram(source, to, protocol::UDP);
    if source.is_ipv4() {
        assert_eq!(
            send(&mut port, &[long.udp((0xC007, PORT), &[7; 1600])]),
            [(DropReason::MessageTooLong, 1)]
        );
        long.dont_fragment = false;
    } else {
        // Over IPv6 the length alone says so.
        let config = SocketConfig { mtu: 1500, ..SocketConfig::new(vec![ends(source)[1]]) };
        port = left.within(|| SocketPort::open(&config).unwrap()).unwrap();
    }
    let before = fragments_sent(left);
    assert_eq!(send(&mut port, &[long.udp((0xC007, PORT), &[7; 1600])]), []);
    let mut bytes = [0; 2000];
    let (length, from) = peer.recv_from(&mut bytes).unwrap();
    assert_eq!((&bytes[..length], from.port()), (&[7; 1600][..], 0xC007));
    assert_eq!(fragments_sent(left) - before, if source.is_ipv6() { 2 } else { 0 });
}

/// What comes to the tunnel's port comes once, by the UDP socket, and what comes to others not at all.
fn nothing_is_received_by_it([left, right]: &[Namespace; 2], source: IpAddr, to: IpAddr) {
    let mut port = both(right, to);
    let mut alone = open(right, to, FROM_MANY);
    let mut sender = both(left, source);
    let datagram = datagram(source, to, protocol::UDP);
    let of = |n: u8| datagram.udp((0xC000 + u16::from(n), PORT), &[n; 100]);
    let sent: Vec<_> = (1..40).map(of).collect();
    assert_eq!(send(&mut sender, &sent), []);
    let at = if source.is_ipv4() { 20 } else { 40 };
    let received = receive(&mut port, sent.len());
    assert_eq!(shown(&received, at), shown(&sent, at));
    for port in [&mut port, &mut alone] {
        let (mut pool, mut batch) = (Pool::new(64, 1500), Batch::new());
        assert_eq!(port.rx(&mut pool, &mut batch).unwrap(), 0);
    }
}

/// Ports and content of datagrams whose IP header has so many bytes.
fn shown(packets: &[Vec<u8>], at: usize) -> Vec<(&[u8], &[u8])> {
    packets.iter().map(|packet| (&packet[at..at + 4], &packet[at + 8..])).collect()
}

/// Neither a source port that a service may have, nor another destination: such a datagram is in clear, which
/// this port does not send.
fn what_has_another_port_is_not_its_own([left, _]: &[Namespace; 2], source: IpAddr, to: IpAddr) {
    let mut port = open(left, source, FROM_MANY);
    let datagram = datagram(source, to, protocol::UDP);
    let strange = [(PORT, PORT), (0xBFFF, PORT), (0xC000, PORT + 1)];
    let packets: Vec<_> = strange.iter().map(|ports| datagram.udp(*ports, &[1; 50])).collect();
    assert_eq!(send(&mut port, &packets), [(DropReason::BypassUnavailable, 3)]);
}

/// A receiver with several queues, and sockets for each that send alone.
fn queues_spread_them_by_their_source_ports([left, right]: &[Namespace; 2]) {
    let [source, to] = ADDRESSES[0].map(|text| text.parse().unwrap());
    let config = SocketConfig::new(ends(to));
    let open = || testudo_port_socket::SocketQueues::open(&config, 2, |_| Steering::ByUdpSource).unwrap();
    let (_set, mut ports) = right.within(open).unwrap();
    let mut sender = both(left, source);
    let there = datagram(source, to, protocol::UDP);
    // As long as a packet of VPE: shorter ones show nothing.
    let sent: Vec<_> = (0..16).map(|n| there.udp((0xC000 + n, PORT), &[9; 64])).collect();
    assert_eq!(send(&mut sender, &sent), []);
    for (queue, port) in (0..).zip(&mut ports) {
        let own = sent.iter().filter(|p| Steering::ByUdpSource.queue_of_datagram(p, 2, &[]) == queue);
        let own: Vec<_> = own.map(|p| p[20..22].to_vec()).collect();
        assert!(!own.is_empty(), "queue {queue}");
        let received: Vec<_> = receive(port, own.len()).iter().map(|p| p[20..22].to_vec()).collect();
        assert_eq!(received, own, "queue {queue}");
    }
    // Each queue sends, too, from any of the ports.
    let back = datagram(to, source, protocol::UDP).udp((0xC123, PORT), &[5; 64]);
    for port in &mut ports {
        assert_eq!(send(port, std::slice::from_ref(&back)), []);
        assert_eq!(receive(&mut sender, 1)[0][20..22], 0xC123_u16.to_be_bytes());
    }
}

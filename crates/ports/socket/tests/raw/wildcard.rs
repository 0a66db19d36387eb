//! Raw sockets that are bound to no address.

use crate::support::{ADDRESSES, datagram, open, receive, send};
use std::net::IpAddr;
use testudo_lab::namespaces::Namespace;
use testudo_packet::Port;
use testudo_port_socket::{Encapsulation, Endpoint, SocketConfig, SocketPort};
use testudo_wire::ip::IpHeader;
use testudo_wire::protocol;

const RAW: [Encapsulation; 3] =
    [Encapsulation::RawEsp, Encapsulation::RawAh, Encapsulation::UdpBeside { port: 4500 }];
/// A second address of the right host, by version.
const SECOND: [&str; 2] = ["10.8.0.3", "fd08::3"];
const ANY: [&str; 2] = ["0.0.0.0", "::"];

pub fn tests(sites: &[Namespace; 2]) {
    sites[1].address("eth0", "10.8.0.3/24").unwrap();
    sites[1].address("eth0", "fd08::3/64").unwrap();
    for version in [0, 1] {
        for encapsulation in RAW {
            packets_come_for_each_address_and_leave_from_it(sites, version, encapsulation);
            a_wildcard_beside_an_address_receives_twice(sites, version, encapsulation);
        }
    }
    all_endpoints_of_both_versions_are_one_port(sites);
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn packet(source: IpAddr, destination: IpAddr, encapsulation: Encapsulation, fill: u8) -> Vec<u8> {
    let payload = [fill; 100];
    let datagram = datagram(source, destination, encapsulation.protocol());
    let is_udp = encapsulation.protocol() == protocol::UDP;
    if is_udp { datagram.udp((4500, 4500), &payload) } else { datagram.with(&payload) }
}

/// Source, destination and the end of the payload.
fn ends(packet: &[u8]) -> (IpAddr, IpAddr, Vec<u8>) {
    let header = IpHeader::parse(packet).unwrap();
    (header.source, header.destination, packet[packet.len() - 100..].to_vec())
}

fn packets_come_for_each_address_and_leave_from_it(
    [left, right]: &[Namespace; 2],
    version: usize,
    encapsulation: Encapsulation,
) {
    let [peer, first] = ADDRESSES[version].map(ip);
    let second = ip(SECOND[version]);
    let mut a = open(left, peer, encapsulation);
    let mut b = open(right, ip(ANY[version]), encapsulation);
    let there = [second, first, second].map(|to| packet(peer, to, encapsulation, 7));
    assert_eq!(send(&mut a, &there), []);
    let received: Vec<_> = receive(&mut b, 3).iter().map(|packet| ends(packet)).collect();
    assert_eq!(received, there.each_ref().map(|packet| ends(packet)));
    let back = [first, second, first].map(|from| packet(from, peer, encapsulation, 9));
    assert_eq!(send(&mut b, &back), []);
    let received: Vec<_> = receive(&mut a, 3).iter().map(|packet| ends(packet)).collect();
    assert_eq!(received, back.each_ref().map(|packet| ends(packet)));
}

/// Each raw socket gets a copy: a port that opens both receives replays.
fn a_wildcard_beside_an_address_receives_twice(
    [left, right]: &[Namespace; 2],
    version: usize,
    encapsulation: Encapsulation,
) {
    let [peer, own] = ADDRESSES[version].map(ip);
    let endpoints = [own, ip(ANY[version])].map(|local| Endpoint { local, encapsulation });
    let config = SocketConfig::new(endpoints.to_vec());
    let mut both = right.within(|| SocketPort::open(&config).unwrap()).unwrap();
    let mut a = open(left, peer, encapsulation);
    let sent = packet(peer, own, encapsulation, 7);
    assert_eq!(send(&mut a, std::slice::from_ref(&sent)), []);
    let received: Vec<_> = receive(&mut both, 2).iter().map(|packet| ends(packet)).collect();
    assert_eq!(received, [ends(&sent), ends(&sent)]);
}

/// As a gateway beside an IKE daemon has them.
fn all_endpoints_of_both_versions_are_one_port([left, right]: &[Namespace; 2]) {
    let ends_of = |version: usize| {
        RAW.map(|encapsulation| Endpoint { local: ip(ANY[version]), encapsulation }).to_vec()
    };
    let config = SocketConfig { optional: ends_of(1), ..SocketConfig::new(ends_of(0)) };
    let mut port = right.within(|| SocketPort::open(&config).unwrap()).unwrap();
    assert_eq!(port.endpoints().count(), 6);
    assert_eq!((port.left_out(), port.hears_icmp_errors(), port.joins()), (&[][..], true, false));
    for version in [0, 1] {
        let [peer, own] = ADDRESSES[version].map(ip);
        for encapsulation in RAW {
            let mut a = open(left, peer, encapsulation);
            let [there, back] = [(peer, own), (own, peer)]
                .map(|(source, destination)| packet(source, destination, encapsulation, 7));
            assert_eq!(send(&mut a, std::slice::from_ref(&there)), []);
            assert_eq!(ends(&receive(&mut port, 1)[0]), ends(&there));
            assert_eq!(send(&mut port, std::slice::from_ref(&back)), []);
            assert_eq!(ends(&receive(&mut a, 1)[0]), ends(&back));
        }
    }
}

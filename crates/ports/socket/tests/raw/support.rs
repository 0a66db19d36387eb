//! Two hosts, ports on them, and packets between them.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::IpAddr;
use tempfile::TempDir;
use testudo_lab::capture::{Capture, WHOLE};
use testudo_lab::namespaces::{Entered, Namespace, veth};
use testudo_packet::{Batch, Buffer, DropReason, Pool, Port};
use testudo_port_socket::{Encapsulation, Endpoint, SocketConfig, SocketPort};
use testudo_wire::ip::{IpHeader, OuterHeader};
use testudo_wire::protocol;
use testudo_wire::udp::UdpHeader;

pub const ADDRESSES: [[&str; 2]; 2] = [["10.8.0.1", "10.8.0.2"], ["fd08::1", "fd08::2"]];

pub fn sites(inside: Entered) -> [Namespace; 2] {
    let sites = ["left", "right"].map(|name| Namespace::new(inside, name).unwrap());
    veth((&sites[0], "eth0"), (&sites[1], "eth0")).unwrap();
    for (index, site) in sites.iter().enumerate() {
        site.address("eth0", &format!("{}/24", ADDRESSES[0][index])).unwrap();
        site.address("eth0", &format!("{}/64", ADDRESSES[1][index])).unwrap();
    }
    sites
}

pub fn open(site: &Namespace, local: IpAddr, encapsulation: Encapsulation) -> SocketPort {
    let config = SocketConfig::new(vec![Endpoint { local, encapsulation }]);
    site.within(|| SocketPort::open(&config).unwrap()).unwrap()
}

pub fn open_with_mtu(
    site: &Namespace,
    local: IpAddr,
    encapsulation: Encapsulation,
    mtu: usize,
) -> SocketPort {
    let config = SocketConfig { mtu, ..SocketConfig::new(vec![Endpoint { local, encapsulation }]) };
    site.within(|| SocketPort::open(&config).unwrap()).unwrap()
}

pub struct Datagram {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub protocol: u8,
    pub traffic_class: u8,
    pub dont_fragment: bool,
}

impl Datagram {
    pub fn with(&self, payload: &[u8]) -> Vec<u8> {
        let header = OuterHeader {
            source: self.source,
            destination: self.destination,
            protocol: self.protocol,
            traffic_class: self.traffic_class,
            hop_limit: 64,
            dont_fragment: self.dont_fragment,
        };
        let mut bytes = vec![0; header.bytes()];
        header.write(&mut bytes, header.bytes() + payload.len(), 0).unwrap();
        bytes.extend_from_slice(payload);
        bytes
    }

    pub fn udp(&self, ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
        let udp =
            UdpHeader { source_port: ports.0, destination_port: ports.1, total_bytes: 8 + payload.len() };
        let mut bytes = vec![0; 8];
        udp.write(&mut bytes).unwrap();
        bytes.extend_from_slice(payload);
        self.with(&bytes)
    }
}

pub fn datagram(source: IpAddr, destination: IpAddr, protocol: u8) -> Datagram {
    Datagram { source, destination, protocol, traffic_class: 0xBA, dont_fragment: true }
}

pub fn send(port: &mut SocketPort, packets: &[Vec<u8>]) -> Vec<(DropReason, u64)> {
    let mut pool = Pool::new(64, 1500).with_long(64, 9000);
    let mut batch: Batch = packets.iter().map(|p| Buffer::copied(p, 0, 0)).collect();
    assert_eq!(port.tx(&mut pool, &mut batch).unwrap(), packets.len());
    pool.drops().iter().filter(|d| d.1 > 0).collect()
}

pub fn receive(port: &mut SocketPort, count: usize) -> Vec<Vec<u8>> {
    let (received, drops) = receive_and_drop(port, count);
    assert_eq!(drops, []);
    received
}

/// Receives `count` packets, and returns what was dropped as well.
pub fn receive_and_drop(port: &mut SocketPort, count: usize) -> (Vec<Vec<u8>>, Vec<(DropReason, u64)>) {
    let (mut pool, mut batch) = (Pool::new(64, 1500).with_long(64, 9000), Batch::new());
    let mut received = Vec::new();
    while received.len() < count {
        if port.rx(&mut pool, &mut batch).unwrap() == 0 {
            let fds = port.readiness();
            let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
            let ready = poll(&mut fds, Some(&Timespec { tv_sec: 5, tv_nsec: 0 })).unwrap();
            assert!(ready > 0, "nothing came after {} of {count}", received.len());
        }
        for buffer in batch.drain(..) {
            received.push(buffer.bytes().to_vec());
            pool.recycle(buffer);
        }
    }
    assert_eq!(pool.available(), 64);
    (received, pool.drops().iter().filter(|drop| drop.1 > 0).collect())
}

/// Starts to record what passes the link.
pub fn record(site: &Namespace) -> (Capture, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    (Capture::start(site, "eth0", &folder.path().join("eth0.pcap"), WHOLE).unwrap(), folder)
}

/// The IP datagrams of a recording that end in one of these protocols, as they passed, without neighbour
/// discovery and multicast reports.
pub fn recorded((capture, _folder): (Capture, TempDir), site: &Namespace, protocols: &[u8]) -> Vec<Vec<u8>> {
    const ETHERNET_BYTES: usize = 14;
    let mut packets = Vec::new();
    capture
        .finish(site)
        .unwrap()
        .frames(|frame, _| {
            let Ok(header) = IpHeader::parse(&frame[ETHERNET_BYTES..]) else { return };
            let packet = &frame[ETHERNET_BYTES..][..header.total_bytes];
            let is_housekeeping = header.protocol == protocol::ICMPV6
                && header.payload(packet).first().is_some_and(|kind| *kind >= 130);
            if protocols.contains(&header.protocol) && !is_housekeeping {
                packets.push(packet.to_vec());
            }
        })
        .unwrap();
    packets
}

/// Fragments of IPv6 that a host's kernel has made.
pub fn fragments_sent(site: &Namespace) -> u64 {
    let table = site.within(|| std::fs::read_to_string("/proc/thread-self/net/snmp6").unwrap()).unwrap();
    let line = table.lines().find(|line| line.starts_with("Ip6FragCreates")).unwrap();
    line.split_whitespace().last().unwrap().parse().unwrap()
}

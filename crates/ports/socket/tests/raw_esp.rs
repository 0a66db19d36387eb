//! Raw ESP, packets in clear and MTUs: the tests that need privileges, in private namespaces.
//!
//! ```text
//!   namespace left  eth0 10.8.0.1 ═══ veth, MTU 1500 ═══ 10.8.0.2 eth0  namespace right
//! ```

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    reason = "a test panics on failure, and its data is made of small numbers"
)]

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use testudo_lab::namespaces::{self, Entered, Namespace, veth};
use testudo_packet::{Batch, Buffer, DropReason, Pool, Port};
use testudo_port_socket::{Encapsulation, Endpoint, OpenError, SocketConfig, SocketPort};
use testudo_wire::ip::{IpHeader, OuterHeader};
use testudo_wire::protocol;
use testudo_wire::udp::UdpHeader;

const ADDRESSES: [[&str; 2]; 2] = [["10.8.0.1", "10.8.0.2"], ["fd08::1", "fd08::2"]];

fn main() {
    let inside = namespaces::enter().expect("private namespaces");
    let sites = sites(inside);
    for addresses in ADDRESSES {
        let [left, right] = addresses.map(|text| text.parse().unwrap());
        raw_esp_crosses_whole(&sites, left, right);
        a_packet_beyond_the_mtu_is_refused_alone(&sites, left, right);
        packets_in_clear_leave_by_the_interface(&sites, left, right);
    }
    without_df_the_kernel_fragments(&sites);
    an_unprivileged_program_is_told_what_it_lacks(&sites[0]);
    println!("raw_esp: ok");
}

fn sites(inside: Entered) -> [Namespace; 2] {
    let sites = ["left", "right"].map(|name| Namespace::new(inside, name).unwrap());
    veth((&sites[0], "eth0"), (&sites[1], "eth0")).unwrap();
    for (index, site) in sites.iter().enumerate() {
        site.address("eth0", &format!("{}/24", ADDRESSES[0][index])).unwrap();
        site.address("eth0", &format!("{}/64", ADDRESSES[1][index])).unwrap();
    }
    sites
}

fn open(site: &Namespace, local: IpAddr, encapsulation: Encapsulation) -> SocketPort {
    let config = SocketConfig::new(vec![Endpoint { local, encapsulation }]);
    site.within(|| SocketPort::open(&config).unwrap()).unwrap()
}

struct Datagram {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    traffic_class: u8,
    dont_fragment: bool,
}

impl Datagram {
    fn with(&self, payload: &[u8]) -> Vec<u8> {
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

    fn udp(&self, ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
        let udp =
            UdpHeader { source_port: ports.0, destination_port: ports.1, total_bytes: 8 + payload.len() };
        let mut bytes = vec![0; 8];
        udp.write(&mut bytes).unwrap();
        bytes.extend_from_slice(payload);
        self.with(&bytes)
    }
}

fn datagram(source: IpAddr, destination: IpAddr, protocol: u8) -> Datagram {
    Datagram { source, destination, protocol, traffic_class: 0xBA, dont_fragment: true }
}

fn send(port: &mut SocketPort, packets: &[Vec<u8>]) -> Vec<(DropReason, u64)> {
    let mut pool = Pool::new(64, 9000);
    let mut batch: Batch = packets.iter().map(|p| Buffer::copied(p, 0, 0)).collect();
    assert_eq!(port.tx(&mut pool, &mut batch).unwrap(), packets.len());
    pool.drops().iter().filter(|d| d.1 > 0).collect()
}

fn receive(port: &mut SocketPort, count: usize) -> Vec<Vec<u8>> {
    let (mut pool, mut batch) = (Pool::new(64, 9000), Batch::new());
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
    assert_eq!((pool.drops().total(), pool.available()), (0, 64));
    received
}

fn raw_esp_crosses_whole([left, right]: &[Namespace; 2], source: IpAddr, destination: IpAddr) {
    let mut a = open(left, source, Encapsulation::RawEsp);
    let mut b = open(right, destination, Encapsulation::RawEsp);
    let packets: Vec<_> = (0..60_usize)
        .map(|i| {
            let class = [0, 0xBA, 0x03][i % 3];
            let esp = Datagram { traffic_class: class, ..datagram(source, destination, protocol::ESP) };
            esp.with(&vec![i as u8; 20 + i * 23])
        })
        .collect();
    assert_eq!(send(&mut a, &packets), []);
    for (sent, received) in packets.iter().zip(receive(&mut b, 60)) {
        let [sent_header, header] = [sent, &received].map(|bytes| IpHeader::parse(bytes).unwrap());
        assert_eq!((header.source, header.destination), (source, destination));
        assert_eq!((header.protocol, header.traffic_class), (protocol::ESP, sent_header.traffic_class));
        assert_eq!(header.total_bytes, received.len());
        assert_eq!(header.payload(&received), sent_header.payload(sent));
    }
    assert!(a.counters().tx_calls == 1 && b.counters().rx_calls <= 3);
}

fn a_packet_beyond_the_mtu_is_refused_alone(
    [left, right]: &[Namespace; 2],
    source: IpAddr,
    destination: IpAddr,
) {
    let port = Encapsulation::Udp { port: 4500 };
    let (mut a, mut b) = (open(left, source, port), open(right, destination, port));
    let udp = datagram(source, destination, protocol::UDP);
    let packets = [100, 1480, 1480, 1480, 90].map(|n| udp.udp((4500, 4500), &vec![7; n]));
    assert_eq!(send(&mut a, &packets), [(DropReason::MessageTooLong, 4 - 1)]);
    assert_eq!(
        receive(&mut b, 2).iter().map(Vec::len).collect::<Vec<_>>(),
        [packets[0].len(), packets[4].len()]
    );
    let mut raw = open(left, source, Encapsulation::RawEsp);
    let esp = datagram(source, destination, protocol::ESP);
    assert_eq!(send(&mut raw, &[esp.with(&[0; 1490])]), [(DropReason::MessageTooLong, 1)]);
    assert!(a.endpoints_without_segmentation().next().is_none());
}

fn without_df_the_kernel_fragments([left, right]: &[Namespace; 2]) {
    let [source, destination] = ADDRESSES[0].map(|text| text.parse().unwrap());
    let port = Encapsulation::Udp { port: 4500 };
    let (mut a, mut b) = (open(left, source, port), open(right, destination, port));
    let udp = Datagram { dont_fragment: false, ..datagram(source, destination, protocol::UDP) };
    let packets = [udp.udp((4500, 4500), &[9; 4000])];
    assert_eq!(send(&mut a, &packets), []);
    assert_eq!(receive(&mut b, 1)[0].len(), 4028);
    let udp = datagram(source, destination, protocol::UDP);
    assert_eq!(send(&mut a, &[udp.udp((4500, 4500), &[9; 4000])]), [(DropReason::MessageTooLong, 1)]);
}

fn packets_in_clear_leave_by_the_interface(
    [left, right]: &[Namespace; 2],
    source: IpAddr,
    destination: IpAddr,
) {
    let endpoint = Endpoint { local: source, encapsulation: Encapsulation::Udp { port: 4500 } };
    let config =
        SocketConfig { interface: Some("eth0".into()), bypass: true, ..SocketConfig::new(vec![endpoint]) };
    let mut port = left.within(|| SocketPort::open(&config).unwrap()).unwrap();
    assert!(port.can_bypass());
    let receiver = right.within(|| UdpSocket::bind(SocketAddr::new(destination, 53)).unwrap()).unwrap();
    receiver.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
    // IPv6 needs a checksum from us: the kernel changes nothing in a packet in clear.
    let mut packet = datagram(source, destination, protocol::UDP).udp((5353, 53), b"in clear");
    let at = packet.len() - 16;
    let sum = testudo_wire::checksum::Sum::default()
        .pseudo_header(source, destination, protocol::UDP, 16)
        .bytes(&packet[at..])
        .finish();
    packet[at + 6..at + 8].copy_from_slice(&sum.to_bytes());
    assert_eq!(send(&mut port, &[packet]), []);
    let mut bytes = [0; 100];
    let (length, from) = receiver.recv_from(&mut bytes).unwrap();
    assert_eq!((&bytes[..length], from), (&b"in clear"[..], SocketAddr::new(source, 5353)));
}

fn an_unprivileged_program_is_told_what_it_lacks(site: &Namespace) {
    let local = ADDRESSES[0][0].parse().unwrap();
    let config = SocketConfig::new(vec![Endpoint { local, encapsulation: Encapsulation::RawEsp }]);
    let error = site
        .within(|| {
            // This thread only: it ends with this closure.
            let none = rustix::thread::CapabilitySet::empty();
            let sets = rustix::thread::CapabilitySets { effective: none, permitted: none, inheritable: none };
            rustix::thread::set_capabilities(None, sets).unwrap();
            SocketPort::open(&config).err().unwrap()
        })
        .unwrap();
    assert!(matches!(&error, OpenError::NotPermitted { capability: "CAP_NET_RAW", .. }), "{error}");
    assert!(error.to_string().contains("cap_net_raw"));
}

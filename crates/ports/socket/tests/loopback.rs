//! UDP endpoints over the loopback interface: what one port sends, another receives, whichever path the
//! kernel takes between them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    reason = "a test panics on failure, and its data is made of small numbers"
)]

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use testudo_packet::{BATCH_SIZE, Batch, Buffer, DropReason, Pool, Port};
use testudo_port_socket::{Encapsulation, Endpoint, OpenError, SocketConfig, SocketPort};
use testudo_wire::ip::{IpHeader, OuterHeader};
use testudo_wire::protocol;
use testudo_wire::udp::UdpHeader;

const V4: &str = "127.0.0.1";
const V6: &str = "::1";
const PACKET_BYTES: usize = 9000;

fn open(local: &str) -> SocketPort {
    SocketPort::open(&SocketConfig::new(vec![udp(local, 0)])).unwrap()
}

fn udp(local: &str, port: u16) -> Endpoint {
    Endpoint { local: local.parse().unwrap(), encapsulation: Encapsulation::Udp { port } }
}

fn address(port: &SocketPort) -> SocketAddr {
    let endpoint = port.endpoints().next().unwrap();
    let Encapsulation::Udp { port } = endpoint.encapsulation else { panic!("{endpoint}") };
    SocketAddr::new(endpoint.local, port)
}

/// A datagram as the IPsec layer makes it.
fn datagram(from: SocketAddr, to: SocketAddr, traffic_class: u8, payload: &[u8]) -> Vec<u8> {
    let header = OuterHeader {
        source: from.ip(),
        destination: to.ip(),
        protocol: protocol::UDP,
        traffic_class,
        hop_limit: 64,
        dont_fragment: true,
    };
    let mut bytes = vec![0; header.bytes() + 8];
    header.write(&mut bytes, header.bytes() + 8 + payload.len(), 0).unwrap();
    let udp =
        UdpHeader { source_port: from.port(), destination_port: to.port(), total_bytes: 8 + payload.len() };
    udp.write(&mut bytes[header.bytes()..]).unwrap();
    bytes.extend_from_slice(payload);
    bytes
}

fn wait(port: &SocketPort) -> bool {
    let fds = port.readiness();
    let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    poll(&mut fds, Some(&Timespec { tv_sec: 5, tv_nsec: 0 })).unwrap() > 0
}

/// The most payload of one UDP datagram.
const MAX_UDP_BYTES: usize = 65_507;

/// Sends the whole batch: after a full one, a message that could still grow may wait for the next call.
fn send_all(port: &mut SocketPort, pool: &mut Pool, batch: &mut Batch) -> usize {
    let mut taken = 0;
    while !batch.is_empty() {
        let more = port.tx(pool, batch).unwrap();
        assert!(more > 0, "{} packets are not taken", batch.len());
        taken += more;
    }
    taken
}

/// Sends `packets` and receives the same number, in batches.
fn exchange(a: &mut SocketPort, b: &mut SocketPort, packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut pool = Pool::new(200, PACKET_BYTES);
    let (mut received, mut batch) = (Vec::new(), Batch::new());
    for chunk in packets.chunks(BATCH_SIZE) {
        let mut out = Batch::new();
        for bytes in chunk {
            let mut buffer = pool.pop().unwrap();
            buffer.receive_area()[..bytes.len()].copy_from_slice(bytes);
            buffer.set_len(bytes.len());
            out.push(buffer);
        }
        assert_eq!(send_all(a, &mut pool, &mut out), chunk.len());
        let wanted = received.len() + chunk.len();
        while received.len() < wanted {
            if b.rx(&mut pool, &mut batch).unwrap() == 0 {
                assert!(wait(b), "nothing came after {} of {wanted} packets", received.len());
            }
            for buffer in batch.drain(..) {
                received.push(buffer.bytes().to_vec());
                pool.recycle(buffer);
            }
        }
    }
    assert_eq!(pool.drops().total(), 0);
    assert_eq!(pool.available(), pool.size(), "every buffer came back");
    received
}

/// The fields of a received datagram that a socket can know.
fn essence(bytes: &[u8]) -> (IpAddr, IpAddr, u8, Option<(u16, u16)>, Vec<u8>) {
    let h = IpHeader::parse(bytes).unwrap();
    assert_eq!(h.total_bytes, bytes.len());
    let udp = UdpHeader::parse(h.payload(bytes)).unwrap();
    assert_eq!(udp.total_bytes, bytes.len() - h.header_bytes);
    (h.source, h.destination, h.traffic_class, h.ports(bytes), h.payload(bytes)[8..].to_vec())
}

fn assert_same(sent: &[Vec<u8>], received: &[Vec<u8>]) {
    assert_eq!(sent.len(), received.len());
    for (index, (sent, received)) in sent.iter().zip(received).enumerate() {
        assert!(essence(sent) == essence(received), "packet {index} differs");
    }
}

fn payload(index: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (index * 31 + at * 7).to_le_bytes()[0]).collect()
}

#[test]
fn a_batch_of_equal_packets_takes_few_calls_each_way() {
    for local in [V4, V6] {
        let (mut a, mut b) = (open(local), open(local));
        let (from, to) = (address(&a), address(&b));
        let packets: Vec<_> = (0..640).map(|i| datagram(from, to, 0, &payload(i, 1400))).collect();
        assert_same(&packets, &exchange(&mut a, &mut b, &packets));
        let (sent, received) = (a.counters(), b.counters());
        assert_eq!((sent.tx_packets, received.rx_packets), (640, 640));
        assert_eq!(sent.tx_bytes, received.rx_bytes);
        assert!(a.endpoints_without_segmentation().next().is_none());
        // Ten full batches, each sent separately: the message that could grow leaves in a second call.
        assert!(sent.tx_calls <= 20, "{} calls to send", sent.tx_calls);
        assert!(received.rx_calls <= 60, "{} calls to receive", received.rx_calls);
    }
}

/// Packets that do not fit one message do not leave a small one at the end of each batch: the rest of a full
/// batch is joined by the packets that follow.
#[test]
fn the_rest_of_a_full_batch_waits_for_more() {
    let mut a = open(V4);
    let (from, to) = (address(&a), SocketAddr::new(V4.parse().unwrap(), 9));
    let mut pool = Pool::new(200, PACKET_BYTES);
    let fill = |pool: &mut Pool, batch: &mut Batch| {
        while !batch.is_full() {
            let bytes = datagram(from, to, 0, &payload(batch.len(), 1400));
            let mut buffer = pool.pop().unwrap();
            buffer.receive_area()[..bytes.len()].copy_from_slice(&bytes);
            buffer.set_len(bytes.len());
            batch.push(buffer);
        }
    };
    let mut batch = Batch::new();
    let full_message = MAX_UDP_BYTES / 1400;
    for _ in 0..5 {
        fill(&mut pool, &mut batch);
        assert_eq!(a.tx(&mut pool, &mut batch).unwrap(), full_message);
    }
    assert_eq!(a.tx(&mut pool, &mut batch).unwrap(), BATCH_SIZE - full_message);
    assert_eq!(pool.available(), pool.size());
}

#[test]
fn mixed_sizes_and_classes_keep_content_and_order() {
    for local in [V4, V6] {
        let (mut a, mut b) = (open(local), open(local));
        let (from, to) = (address(&a), address(&b));
        let seed = 0x5EED_u64;
        println!("seed {seed:#x}");
        let mut state = seed;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let mut packets = Vec::new();
        while packets.len() < 2000 {
            let length = [1, 16, 100, 1000, 1400, 1440, 8900][random(7) as usize];
            let class = [0, 0xB8, 0x02, 0x03][random(4) as usize];
            for _ in 0..=random(40) {
                packets.push(datagram(from, to, class, &payload(packets.len(), length)));
            }
            let shorter = random(length as u64) as usize;
            packets.push(datagram(from, to, class, &payload(packets.len(), shorter.max(1))));
        }
        assert_same(&packets, &exchange(&mut a, &mut b, &packets));
    }
}

/// The TTL of a packet in transport mode is that of a host: it arrives as it was sent, also between packets
/// that could be joined but for it.
#[test]
fn ttls_and_hop_limits_arrive_where_they_are_asked_for() {
    for local in [V4, V6] {
        let mut a = open(local);
        let config = SocketConfig { hop_limits: true, ..SocketConfig::new(vec![udp(local, 0)]) };
        let mut b = SocketPort::open(&config).unwrap();
        let (from, to) = (address(&a), address(&b));
        let limits = [64, 64, 255, 255, 1, 64, 255];
        let packets = limits.map(|limit| {
            let mut packet = datagram(from, to, 0xB8, &payload(limit.into(), 1000));
            set_hop_limit(&mut packet, limit);
            packet
        });
        let received = exchange(&mut a, &mut b, &packets);
        assert_same(&packets, &received);
        assert!(received.iter().map(|p| IpHeader::parse(p).unwrap().hop_limit).eq(limits), "{local}");
    }
}

fn set_hop_limit(packet: &mut [u8], limit: u8) {
    if packet[0] >> 4 == 6 {
        packet[7] = limit;
        return;
    }
    packet[8] = limit;
    packet[10..12].fill(0);
    let sum = testudo_wire::checksum::of(&packet[..20]).to_bytes();
    packet[10..12].copy_from_slice(&sum);
}

#[test]
fn an_empty_datagram_is_a_packet_too() {
    let (mut a, mut b) = (open(V4), open(V4));
    let (from, to) = (address(&a), address(&b));
    let packets: Vec<_> = [0, 5, 0, 0, 7].map(|n| datagram(from, to, 0, &payload(n, n))).into();
    assert_same(&packets, &exchange(&mut a, &mut b, &packets));
}

#[test]
fn a_wildcard_endpoint_learns_and_keeps_addresses() {
    for (local, any) in [(V4, "0.0.0.0"), (V6, "::")] {
        let (mut a, mut b) = (open(local), open(any));
        let (from, to) = (address(&a), SocketAddr::new(local.parse().unwrap(), address(&b).port()));
        let packets = vec![datagram(from, to, 0, b"there")];
        assert_same(&packets, &exchange(&mut a, &mut b, &packets));
        let packets = vec![datagram(to, from, 0, b"back")];
        assert_same(&packets, &exchange(&mut b, &mut a, &packets));
    }
}

#[test]
fn few_buffers_and_little_room_lose_nothing() {
    let (mut a, mut b) = (open(V4), open(V4));
    let (from, to) = (address(&a), address(&b));
    let packets: Vec<_> = (0..64).map(|i| datagram(from, to, 0, &payload(i, 1000))).collect();
    let (mut big, mut small) = (Pool::new(64, PACKET_BYTES), Pool::new(7, PACKET_BYTES));
    let mut received = Vec::new();
    for _ in 0..5 {
        let mut out: Batch = packets.iter().map(|p| Buffer::copied(p, 0, 0)).collect();
        assert_eq!(send_all(&mut a, &mut big, &mut out), 64);
        let wanted = received.len() + 64;
        while received.len() < wanted {
            let mut batch = Batch::new();
            if b.rx(&mut small, &mut batch).unwrap() == 0 {
                assert!(wait(&b));
            }
            for buffer in batch.drain(..) {
                received.push(buffer.bytes().to_vec());
                small.recycle(buffer);
            }
        }
    }
    for chunk in received.chunks(64) {
        assert_same(&packets, chunk);
    }
}

#[test]
fn a_datagram_longer_than_a_buffer_is_counted() {
    for local in [V4, V6] {
        let mut port = open(local);
        let sender = UdpSocket::bind((local, 0)).unwrap();
        for length in [1501, 9000, 65_000, 100] {
            sender.send_to(&payload(1, length), address(&port)).unwrap();
        }
        let (mut pool, mut batch) = (Pool::new(70, 1500), Batch::new());
        while batch.is_empty() {
            port.rx(&mut pool, &mut batch).unwrap();
            assert!(!batch.is_empty() || wait(&port));
        }
        assert_eq!(essence(batch[0].bytes()).4, payload(1, 100));
        assert_eq!(pool.drops().get(DropReason::ReceiveTruncated), 3);
        assert_eq!(pool.available() + batch.len(), 70);
    }
}

#[test]
fn datagrams_that_fit_no_frame_pass_through_long_buffers() {
    for (local, longest) in [(V4, 65_507), (V6, 65_487)] {
        let mut port = open(local);
        let sender = UdpSocket::bind((local, 0)).unwrap();
        let (mut pool, mut batch) = (Pool::new(70, 1500).with_long(4, 65_536), Batch::new());
        for length in [longest, 1, 40_000] {
            sender.send_to(&payload(2, length), address(&port)).unwrap();
            while batch.is_empty() {
                port.rx(&mut pool, &mut batch).unwrap();
                assert!(!batch.is_empty() || wait(&port));
            }
            let buffer = batch.pop().unwrap();
            assert!(essence(buffer.bytes()).4 == payload(2, length), "{length} bytes");
            pool.recycle(buffer);
        }
    }
}

#[test]
fn short_datagrams_pass_while_no_long_buffer_is_free() {
    let mut port = open(V4);
    let sender = UdpSocket::bind((V4, 0)).unwrap();
    let (mut pool, mut batch) = (Pool::new(70, 1500).with_long(1, 65_536), Batch::new());
    let taken = pool.pop_for(40_000).unwrap();
    for length in [40_000, 100, 100, 100] {
        sender.send_to(&payload(2, length), address(&port)).unwrap();
    }
    while batch.len() < 3 {
        let received = port.rx(&mut pool, &mut batch).unwrap();
        assert!(received > 0 || wait(&port), "{} of 3 came", batch.len());
    }
    assert_eq!(pool.drops().get(DropReason::PoolEmpty), 1);
    pool.recycle(taken);
}

/// Sends one batch and returns its drops and the number of packets sent.
fn refused(port: &mut SocketPort, packets: &[Vec<u8>]) -> (Vec<(DropReason, u64)>, u64) {
    let mut pool = Pool::new(64, 65_536);
    let mut batch: Batch = packets.iter().map(|p| Buffer::copied(p, 0, 0)).collect();
    assert_eq!(port.tx(&mut pool, &mut batch).unwrap(), packets.len());
    (pool.drops().iter().filter(|d| d.1 > 0).collect(), port.counters().tx_packets)
}

#[test]
fn without_segmentation_packets_are_sent_one_by_one_and_this_is_reported() {
    let (mut a, mut b) = (open(V4), open(V4));
    let (from, to) = (address(&a), address(&b));
    let packets: Vec<_> = (0..200).map(|i| datagram(from, to, 0, &payload(i, 1000))).collect();
    // The kernel segments no datagrams without checksums.
    let (descriptor, on) = (a.readiness()[0].as_raw_fd(), 1_i32);
    // SAFETY: rustix does not have this option. The descriptor is open, and the option reads one int, which
    // `on` is.
    let status = unsafe {
        libc::setsockopt(descriptor, libc::SOL_SOCKET, libc::SO_NO_CHECK, (&raw const on).cast(), 4)
    };
    assert_eq!(status, 0);
    assert_same(&packets, &exchange(&mut a, &mut b, &packets));
    assert_eq!(a.endpoints_without_segmentation().collect::<Vec<_>>(), a.endpoints().collect::<Vec<_>>());
    assert_eq!(a.counters().tx_packets, 200);
}

#[test]
fn a_packet_in_clear_is_refused_without_an_interface_for_it() {
    let config = SocketConfig { bypass: true, ..SocketConfig::new(vec![udp(V4, 0)]) };
    let mut port = SocketPort::open(&config).unwrap();
    assert!(!port.can_bypass());
    let (from, to) = (address(&port), "127.0.0.1:9".parse().unwrap());
    let other = "127.0.0.2:4500".parse().unwrap();
    let packets = [datagram(other, to, 0, b"x"), datagram(from, to, 0, b"y")];
    assert_eq!(refused(&mut port, &packets), (vec![(DropReason::BypassUnavailable, 1)], 1));
}

#[test]
fn bytes_that_are_no_packet_are_refused_by_reason() {
    let mut port = open(V4);
    let (from, to) = (address(&port), "127.0.0.1:9".parse().unwrap());
    let good = datagram(from, to, 0, b"y");
    let packets = [vec![0; 30], good[..25].to_vec(), good];
    let expected = vec![(DropReason::NotIp, 1), (DropReason::Truncated, 1)];
    assert_eq!(refused(&mut port, &packets), (expected, 1));
}

#[test]
fn a_peer_that_is_not_there_is_no_error_of_the_port() {
    let gone = UdpSocket::bind((V4, 0)).unwrap().local_addr().unwrap();
    let mut port = open(V4);
    let from = address(&port);
    let mut pool = Pool::new(64, 1500);
    for _ in 0..20 {
        let mut batch: Batch = (0..8).map(|_| Buffer::copied(&datagram(from, gone, 0, b"?"), 0, 0)).collect();
        assert_eq!(port.tx(&mut pool, &mut batch).unwrap(), 8);
        assert_eq!(port.rx(&mut pool, &mut batch).unwrap(), 0);
    }
}

#[test]
fn a_port_in_use_is_named_with_the_command_to_find_its_owner() {
    let first = open(V4);
    let taken = SocketPort::open(&SocketConfig::new(vec![udp(V4, address(&first).port())])).err().unwrap();
    assert!(matches!(taken, OpenError::PortTaken(a) if a == address(&first)), "{taken}");
    assert!(taken.to_string().contains("ss -lunp"));
}

#[test]
fn a_foreign_address_is_named() {
    let error = SocketPort::open(&SocketConfig::new(vec![udp("192.0.2.77", 4500)])).err().unwrap();
    assert!(matches!(error, OpenError::NoSuchAddress(_)), "{error}");
    assert!(error.to_string().contains("192.0.2.77"));
}

#[test]
fn a_missing_interface_is_named() {
    let config = SocketConfig { interface: Some("no-such-if".into()), ..SocketConfig::new(vec![udp(V4, 0)]) };
    let error = SocketPort::open(&config).err().unwrap();
    assert!(matches!(&error, OpenError::NoInterface(name) if name == "no-such-if"), "{error}");
}

#[test]
fn configurations_that_cannot_mean_anything_are_refused() {
    assert!(matches!(SocketPort::open(&SocketConfig::new(vec![])), Err(OpenError::NoEndpoint)));
    let twice = SocketConfig::new(vec![udp(V4, 45_000), udp(V4, 45_000)]);
    assert!(matches!(SocketPort::open(&twice), Err(OpenError::Duplicate(name)) if name.contains("45000")));
}

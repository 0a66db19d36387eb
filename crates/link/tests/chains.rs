//! Frames and packets in chains of buffers, over a device that takes such.

#![allow(
    clippy::cast_possible_truncation,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "test data is made of small numbers, and a test says what must hold"
)]
#![forbid(unsafe_code)]

mod support;

use std::time::Duration;
use support::{A, B, Wire, own, ping, udp};
use testudo_link::own::OwnResolver;
use testudo_link::routes::{NextHop, Route};
use testudo_link::{FrameDevice, LinkConfig, LinkPort};
use testudo_packet::{Batch, Buffer, DropReason, Pool, Port, PortCounters, PortError};
use testudo_wire::checksum::Sum;
use testudo_wire::ethernet::{EthernetHeader, ether_type};
use testudo_wire::ip::IpHeader;
use testudo_wire::protocol;

/// Room of the pool's frames.
const FRAME: usize = 1600;

/// A device whose frames come in buffers of these lengths, the last one again and again.
struct Chained {
    lengths: Vec<usize>,
    input: Wire,
    output: Wire,
    counters: PortCounters,
}

impl FrameDevice for Chained {
    fn name(&self) -> &str {
        "chained"
    }

    fn mac(&self) -> testudo_wire::ethernet::MacAddress {
        A
    }

    fn mtu(&self) -> usize {
        9000
    }

    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let Some(frame) = self.input.pop() else { return Ok(0) };
        batch.push(chain(pool, &frame, &self.lengths));
        self.counters.rx_packets += 1;
        Ok(1)
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let taken = batch.len();
        for packet in batch.drain(..) {
            self.output.push(bytes_of(&packet));
            pool.recycle(packet);
        }
        self.counters.tx_packets += taken as u64;
        Ok(taken)
    }

    fn takes_chains(&self) -> bool {
        true
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}

fn chain(pool: &mut Pool, mut bytes: &[u8], lengths: &[usize]) -> Buffer {
    let last = *lengths.last().unwrap();
    let mut chain: Option<Buffer> = None;
    for length in lengths.iter().copied().chain(std::iter::repeat(last)) {
        let (piece, rest) = bytes.split_at(length.min(bytes.len()));
        let mut segment = pool.pop().unwrap();
        segment.append(piece.len()).unwrap().copy_from_slice(piece);
        match &mut chain {
            None => chain = Some(segment),
            Some(chain) => chain.link(segment).unwrap(),
        }
        bytes = rest;
        if bytes.is_empty() {
            break;
        }
    }
    chain.unwrap()
}

fn bytes_of(packet: &Buffer) -> Vec<u8> {
    packet.segments().flat_map(|segment| segment.bytes().to_vec()).collect()
}

/// A port at 192.0.2.1, what it receives and what it sends.
fn port(lengths: &[usize], config: &LinkConfig) -> (LinkPort<Chained, OwnResolver>, Wire, Wire) {
    let (input, output) = (Wire::default(), Wire::default());
    let (lengths, counters) = (lengths.to_vec(), PortCounters::default());
    let device = Chained { lengths, input: input.clone(), output: output.clone(), counters };
    let port = LinkPort::new(device, own(&["192.0.2.1/24"]), config, Box::new(|| Duration::ZERO));
    (port, input, output)
}

fn pool() -> Pool {
    Pool::new(64, FRAME).with_long(2, 9100)
}

fn frame(packet: &[u8]) -> Vec<u8> {
    let kind = if packet[0] >> 4 == 6 { ether_type::IPV6 } else { ether_type::IPV4 };
    let header = EthernetHeader { destination: A, source: B, tags: [None; 2], ether_type: kind };
    [&header.to_bytes()[..header.bytes()], packet].concat()
}

/// Wherever the frame is cut, between and inside of its headers, too.
#[test]
fn frames_in_several_buffers_are_stripped_and_cut_to_the_datagram() {
    for cut in (1..90).chain([500, 1600]) {
        let (mut port, input, _) = port(&[cut, 7, FRAME], &LinkConfig::default());
        let (mut pool, mut batch) = (pool(), Batch::new());
        assert!(port.takes_chains());
        for packet in
            [udp("10.0.0.1", "192.0.2.1", 4500, &[7; 4000]), udp("fd00::1", "2001:db8::7", 9, &[8; 4000])]
        {
            // Padding may be in a buffer of its own.
            input.push([&frame(&packet)[..], &[0xEE; 700]].concat());
            assert_eq!(port.rx(&mut pool, &mut batch).unwrap(), 1, "cut at {cut}");
            let came = batch.remove(0);
            assert!(came.is_chain() && bytes_of(&came) == packet, "cut at {cut}");
            pool.recycle(came);
        }
        assert_eq!((pool.available(), pool.drops().total(), pool.linearised()), (64, 0, 0), "cut at {cut}");
    }
}

#[test]
fn a_datagram_longer_than_its_buffers_is_dropped_with_all_of_them() {
    let (mut port, input, _) = port(&[FRAME], &LinkConfig::default());
    let (mut pool, mut batch) = (pool(), Batch::new());
    let mut lying = frame(&udp("10.0.0.1", "192.0.2.1", 4500, &[7; 4000]));
    lying.pop();
    input.push(lying);
    assert_eq!(port.rx(&mut pool, &mut batch).unwrap(), 0);
    assert_eq!((pool.drops().get(DropReason::Truncated), pool.available()), (1, 64));
}

/// An echo request to the port itself is looked at as a whole.
#[test]
fn what_the_port_answers_itself_is_merged() {
    let network = "192.0.2.0".parse().unwrap();
    let on_link = Route { network, prefix_bits: 24, next_hop: NextHop::OnLink, metric: 0 };
    let config = LinkConfig { routes: vec![on_link], ..LinkConfig::default() };
    let (mut port, input, _) = port(&[FRAME], &config);
    let (mut pool, mut batch) = (pool(), Batch::new());
    input.push(frame(&ping("192.0.2.77", "192.0.2.1", &[9; 4000])));
    assert_eq!(port.rx(&mut pool, &mut batch).unwrap(), 0);
    assert_eq!(
        (pool.linearised(), pool.available(), pool.available_for(9000)),
        (1, 64, 1),
        "the reply waits"
    );
    port.end(&mut pool);
    assert_eq!(pool.available_for(9000), 2);
}

#[test]
fn packets_in_chains_are_framed_and_those_beyond_the_mtu_dropped() {
    let (mut port, _, output) = port(&[FRAME], &LinkConfig::default());
    let (mut pool, mut batch) = (pool(), Batch::new());
    let packets = [8972, 8973].map(|bytes| udp("10.0.0.1", "239.0.0.1", 9, &vec![5; bytes]));
    batch.extend(packets.iter().map(|packet| chain(&mut pool, packet, &[60, FRAME])));
    assert_eq!(port.tx(&mut pool, &mut batch).unwrap(), 2);
    let sent = output.take();
    assert!(sent.len() == 1 && sent[0][14..] == packets[0]);
    let header = EthernetHeader::parse(&sent[0]).unwrap();
    assert_eq!((header.source, header.ether_type), (A, ether_type::IPV4));
    assert_eq!((pool.drops().get(DropReason::MessageTooLong), pool.available()), (1, 64));
}

#[test]
fn udp_over_ipv6_in_chains_leaves_with_its_checksum() {
    let config = LinkConfig { completes_udp: true, ..LinkConfig::default() };
    for lengths in [[60, 1501], [49, 33], [48, FRAME], [1501, 7]] {
        let (mut port, _, output) = port(&lengths, &config);
        let (mut pool, mut batch) = (pool(), Batch::new());
        let mut packet =
            udp("fd00::1", "ff0e::1", 4500, &(0..1999_usize).map(|n| n as u8).collect::<Vec<_>>());
        packet[46..48].fill(0);
        let parts = [lengths[0], lengths[1], FRAME];
        batch.push(chain(&mut pool, &packet, &parts));
        assert_eq!(port.tx(&mut pool, &mut batch).unwrap(), 1);
        let sent = output.pop().unwrap();
        let ip = IpHeader::parse(&sent[14..]).unwrap();
        let datagram = ip.payload(&sent[14..]);
        let bytes = datagram.len() as u32;
        let sum = Sum::default().pseudo_header(ip.source, ip.destination, protocol::UDP, bytes);
        assert!(datagram[6..8] != [0, 0] && sum.bytes(datagram).finish().is_intact(), "{lengths:?}");
    }
}

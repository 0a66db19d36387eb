//! A link port over a device in memory, which brings any frames and takes as many as it likes.

use crate::input::Input;
use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use testudo_link::own::{OwnAddress, OwnResolver};
use testudo_link::routes::{NextHop, Route};
use testudo_link::{FrameDevice, LinkConfig, LinkPort};
use testudo_packet::{Batch, DropReason, Pool, Port, PortCounters, PortError};
use testudo_wire::ethernet::{EthernetHeader, MacAddress, VlanTag, ether_type};

const OWN: MacAddress = MacAddress([2, 0, 0x5E, 0, 0, 1]);
const OTHER: MacAddress = MacAddress([2, 0, 0x5E, 0, 0, 2]);
const V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xDB8, 0, 0, 0, 0, 0, 1);
const STEPS: usize = 64;

thread_local! {
    /// What the device gives next, and how many frames it takes.
    static ARRIVING: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
    static ROOM: RefCell<usize> = const { RefCell::new(0) };
}

struct Device {
    tags: [Option<VlanTag>; 2],
    counters: PortCounters,
}

impl FrameDevice for Device {
    fn name(&self) -> &str {
        "device"
    }

    fn mac(&self) -> MacAddress {
        OWN
    }

    fn mtu(&self) -> usize {
        1500
    }

    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let before = batch.len();
        while !batch.is_full() {
            let Some(mut buffer) = pool.pop() else { break };
            let Some(frame) = ARRIVING.with_borrow_mut(Vec::pop) else {
                pool.recycle(buffer);
                break;
            };
            let length = frame.len().min(pool.frame_packet_bytes());
            buffer.receive_area()[..length].copy_from_slice(&frame[..length]);
            buffer.set_len(length);
            self.counters.rx_packets += 1;
            batch.push(buffer);
        }
        Ok(batch.len() - before)
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let taken = ROOM.with_borrow(|room| batch.len().min(*room));
        ROOM.with_borrow_mut(|room| *room -= taken);
        for buffer in batch.drain(..taken) {
            let header = EthernetHeader::parse(buffer.bytes()).expect("a header of ours");
            assert_eq!((header.source, header.tags), (OWN, self.tags));
            self.counters.tx_packets += 1;
            pool.recycle(buffer);
        }
        Ok(taken)
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}

fn config(choice: u8) -> LinkConfig {
    let tags = match choice % 3 {
        0 => [None, None],
        1 => [Some(VlanTag::customer(100)), None],
        _ => [Some(VlanTag::service(200)), Some(VlanTag::customer(100))],
    };
    let route = |network: IpAddr, prefix_bits, next_hop| Route { network, prefix_bits, next_hop, metric: 0 };
    let routes = vec![
        route(V4.into(), 24, NextHop::OnLink),
        route(V6.into(), 64, NextHop::OnLink),
        route(Ipv4Addr::UNSPECIFIED.into(), 1, NextHop::Gateway(Ipv4Addr::new(192, 0, 2, 2).into())),
        route(Ipv6Addr::UNSPECIFIED.into(), 0, NextHop::Gateway(V4.into())),
    ];
    LinkConfig { tags, routes, neighbours: 16, ..LinkConfig::default() }
}

/// A frame to the port, with what fits its configuration and its payload.
fn addressed(tags: [Option<VlanTag>; 2], payload: &[u8]) -> Vec<u8> {
    let ether_type = match payload.first().map(|byte| byte >> 4) {
        Some(4) => ether_type::IPV4,
        Some(6) => ether_type::IPV6,
        _ => ether_type::ARP,
    };
    let header = EthernetHeader { destination: OWN, source: OTHER, tags, ether_type };
    [&header.to_bytes()[..header.bytes()], payload].concat()
}

/// Frames, packets and time in any order: each packet is sent, delivered, dropped or waits, what is delivered
/// is a datagram of the length that it says, and what is not taken is as it was.
pub fn link_port(data: &[u8]) {
    let mut input = Input::new(data);
    let config = config(input.byte());
    let addresses = [(IpAddr::from(V4), 24), (IpAddr::from(V6), 64)];
    let own = addresses.map(|(address, prefix_bits)| OwnAddress { address, prefix_bits });
    let clock = Arc::new(AtomicU64::new(0));
    let time = Arc::clone(&clock);
    let mut port = LinkPort::new(
        Device { tags: config.tags, counters: PortCounters::default() },
        OwnResolver::new(own.into(), vec![4500]),
        &config,
        Box::new(move || Duration::from_millis(time.load(Ordering::Relaxed))),
    );
    let mut pool = Pool::new(64, 2048);
    ARRIVING.take();
    ROOM.set(usize::MAX);
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        match input.byte() % 8 {
            0 | 1 => ARRIVING.with_borrow_mut(|frames| frames.push(input.run().to_vec())),
            2..=4 => {
                let frame = addressed(config.tags, input.run());
                ARRIVING.with_borrow_mut(|frames| frames.push(frame));
            }
            5 => send(&mut port, &mut pool, input.run()),
            6 => drop(clock.fetch_add(u64::from(input.word()), Ordering::Relaxed)),
            _ => ROOM.set(usize::from(input.byte())),
        }
        receive(&mut port, &mut pool);
    }
    ROOM.set(usize::MAX);
    (0..5).for_each(|_| {
        clock.fetch_add(1000, Ordering::Relaxed);
        receive(&mut port, &mut pool);
    });
    assert_eq!((port.waiting(), pool.in_use()), (0, 0), "all that waited has ended");
    assert!(port.tables().neighbours.len() <= 16);
}

fn send(port: &mut LinkPort<Device, OwnResolver>, pool: &mut Pool, packet: &[u8]) {
    let length = packet.len().min(pool.frame_packet_bytes());
    let Some(mut buffer) = pool.create(length) else { return };
    buffer.receive_area()[..length].copy_from_slice(&packet[..length]);
    buffer.set_len(length);
    let mut batch = Batch::from_iter([buffer]);
    let taken = port.tx(pool, &mut batch).expect("the device does not fail");
    assert_eq!(taken + batch.len(), 1);
    for buffer in batch.drain(..) {
        assert_eq!(buffer.bytes(), &packet[..length]);
        pool.discard(buffer, DropReason::ShuttingDown);
    }
    assert_balance(port, pool);
}

fn receive(port: &mut LinkPort<Device, OwnResolver>, pool: &mut Pool) {
    let mut batch = Batch::new();
    let received = port.rx(pool, &mut batch).expect("the device does not fail");
    assert_eq!(received, batch.len());
    for buffer in batch.drain(..) {
        let bytes = buffer.bytes();
        let said = match bytes[0] >> 4 {
            4 => usize::from(u16::from_be_bytes([bytes[2], bytes[3]])),
            6 => 40 + usize::from(u16::from_be_bytes([bytes[4], bytes[5]])),
            other => panic!("version {other}"),
        };
        assert_eq!(said, bytes.len());
        pool.discard(buffer, DropReason::PolicyDiscard);
    }
    assert_balance(port, pool);
}

/// In + created = out + drops + what is on its way.
fn assert_balance(port: &LinkPort<Device, OwnResolver>, pool: &Pool) {
    let counters = port.counters();
    let outside = counters.tx_packets + pool.drops().total() + pool.in_use() as u64;
    assert_eq!(counters.rx_packets + pool.created(), outside, "{:?}", pool.drops());
}

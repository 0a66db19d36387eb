//! Two ports that face each other over a wire in memory, on a clock that the test moves.

#![allow(dead_code, reason = "each test program uses a part")]

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testudo_link::own::{OwnAddress, OwnResolver};
use testudo_link::resolver::Resolver;
use testudo_link::{FrameDevice, LinkConfig, LinkPort};
use testudo_packet::{Batch, DropReason, Pool, Port, PortCounters, PortError};
use testudo_wire::checksum::Sum;
use testudo_wire::ethernet::MacAddress;
use testudo_wire::ip::OuterHeader;
use testudo_wire::{protocol, udp::UdpHeader};

pub const A: MacAddress = MacAddress([2, 0, 0, 0, 0, 0xA]);
pub const B: MacAddress = MacAddress([2, 0, 0, 0, 0, 0xB]);

/// Frames on their way in one direction.
#[derive(Clone, Default)]
pub struct Wire(Arc<Mutex<VecDeque<Vec<u8>>>>);

impl Wire {
    pub fn push(&self, frame: impl Into<Vec<u8>>) {
        self.0.lock().unwrap().push_back(frame.into());
    }

    pub fn pop(&self) -> Option<Vec<u8>> {
        self.0.lock().unwrap().pop_front()
    }

    pub fn take(&self) -> Vec<Vec<u8>> {
        self.0.lock().unwrap().drain(..).collect()
    }
}

/// A clock that stands still until it is moved.
#[derive(Clone, Default)]
pub struct TestClock(Arc<AtomicU64>);

impl TestClock {
    pub fn advance(&self, milliseconds: u64) {
        self.0.fetch_add(milliseconds, Ordering::Relaxed);
    }

    pub fn clock(&self) -> testudo_link::Clock {
        let clock = self.clone();
        Box::new(move || Duration::from_millis(clock.0.load(Ordering::Relaxed)))
    }
}

/// One end of two wires.
pub struct Twin {
    mac: MacAddress,
    pub input: Wire,
    pub output: Wire,
    /// Frames that it takes before it is full; `None` for any number.
    pub room: Arc<Mutex<Option<usize>>>,
    /// Whether the next call takes nothing, and those after it do again.
    pub refuses_once: Arc<Mutex<bool>>,
    counters: PortCounters,
}

impl FrameDevice for Twin {
    fn name(&self) -> &str {
        "twin"
    }

    fn mac(&self) -> MacAddress {
        self.mac
    }

    fn mtu(&self) -> usize {
        1500
    }

    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let before = batch.len();
        while !batch.is_full() && pool.available() > 0 {
            let Some(frame) = self.input.pop() else { break };
            let mut buffer = pool.pop().unwrap();
            buffer.receive_area()[..frame.len()].copy_from_slice(&frame);
            buffer.set_len(frame.len());
            self.counters.rx_packets += 1;
            self.counters.rx_bytes += frame.len() as u64;
            batch.push(buffer);
        }
        Ok(batch.len() - before)
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let mut room = self.room.lock().unwrap();
        if std::mem::take(&mut *self.refuses_once.lock().unwrap()) {
            return Ok(0);
        }
        let taken = room.unwrap_or(usize::MAX).min(batch.len());
        *room = room.map(|room| room - taken);
        for buffer in batch.drain(..taken) {
            self.counters.tx_packets += 1;
            self.counters.tx_bytes += buffer.len() as u64;
            // As on a wire, short frames are padded.
            let mut frame = buffer.bytes().to_vec();
            frame.resize(frame.len().max(60), 0xEE);
            self.output.push(frame);
            pool.recycle(buffer);
        }
        Ok(taken)
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}

/// A port with its pool.
pub struct End<R> {
    pub port: LinkPort<Twin, R>,
    pub pool: Pool,
    pub room: Arc<Mutex<Option<usize>>>,
    pub refuses_once: Arc<Mutex<bool>>,
}

impl<R: Resolver> End<R> {
    pub fn new(
        mac: MacAddress,
        wires: (&Wire, &Wire),
        resolver: R,
        config: &LinkConfig,
        clock: &TestClock,
    ) -> Self {
        let (room, refuses_once) = (Arc::default(), Arc::default());
        let (input, output) = (wires.0.clone(), wires.1.clone());
        let counters = PortCounters::default();
        let twin = Twin {
            mac,
            input,
            output,
            room: Arc::clone(&room),
            refuses_once: Arc::clone(&refuses_once),
            counters,
        };
        let port = LinkPort::new(twin, resolver, config, clock.clock());
        Self { port, pool: Pool::new(512, 1600), room, refuses_once }
    }

    /// Hands a packet over to be sent, and returns what the port did not take.
    pub fn send(&mut self, packet: &[u8]) -> usize {
        self.send_all(&[packet.to_vec()]).len()
    }

    pub fn send_all(&mut self, packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mut batch = Batch::new();
        for packet in packets {
            let mut buffer = self.pool.create(packet.len()).expect("a free buffer");
            buffer.receive_area()[..packet.len()].copy_from_slice(packet);
            buffer.set_len(packet.len());
            batch.push(buffer);
        }
        while !batch.is_empty() && self.port.tx(&mut self.pool, &mut batch).unwrap() > 0 {}
        let left = batch.iter().map(|buffer| buffer.bytes().to_vec()).collect();
        // The caller gives up what was not taken.
        batch.drain(..).for_each(|buffer| self.pool.discard(buffer, DropReason::ShuttingDown));
        left
    }

    /// Takes everything that has come.
    pub fn receive(&mut self) -> Vec<Vec<u8>> {
        let (mut all, mut batch) = (Vec::new(), Batch::new());
        loop {
            let received = self.port.rx(&mut self.pool, &mut batch).unwrap();
            assert_eq!(received, batch.len());
            all.extend(batch.iter().map(|buffer| buffer.bytes().to_vec()));
            // As if the gateway had sent them elsewhere.
            self.delivered(&mut batch);
            if received == 0 {
                return all;
            }
        }
    }

    fn delivered(&mut self, batch: &mut Batch) {
        for buffer in batch.drain(..) {
            self.pool.discard(buffer, DropReason::PolicyDiscard);
        }
    }

    pub fn drops(&self, reason: DropReason) -> u64 {
        self.pool.drops().get(reason)
    }

    /// In + created = out + drops + in use, and in use is what waits.
    pub fn assert_books_balance(&self) {
        let counters = self.port.counters();
        let inside = counters.rx_packets + self.pool.created();
        let outside = counters.tx_packets + self.pool.drops().total() + self.pool.in_use() as u64;
        assert_eq!(inside, outside, "{counters:?}, {:?}", self.pool.drops());
        assert_eq!(self.pool.in_use(), self.port.waiting());
    }
}

/// Addresses with the bits of their networks: `192.0.2.1/24`.
pub fn own(addresses: &[&str]) -> OwnResolver {
    let parse = |text: &&str| {
        let (address, bits) = text.split_once('/').unwrap();
        OwnAddress { address: address.parse().unwrap(), prefix_bits: bits.parse().unwrap() }
    };
    OwnResolver::new(addresses.iter().map(parse).collect(), vec![4500])
}

/// A datagram of UDP.
pub fn udp(source: &str, destination: &str, port: u16, data: &[u8]) -> Vec<u8> {
    let (source, destination): (IpAddr, IpAddr) = (source.parse().unwrap(), destination.parse().unwrap());
    let length = 8 + data.len();
    let mut datagram = vec![0; 8];
    UdpHeader { source_port: 4000, destination_port: port, total_bytes: length }
        .write(&mut datagram)
        .unwrap();
    datagram.extend_from_slice(data);
    datagram[6..8].fill(0);
    let pseudo = Sum::default().pseudo_header(source, destination, protocol::UDP, length as u32);
    let sum = pseudo.bytes(&datagram).finish().to_bytes();
    datagram[6..8].copy_from_slice(&sum);
    ip(source, destination, protocol::UDP, &datagram)
}

pub fn ip(source: IpAddr, destination: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let outer =
        OuterHeader { source, destination, protocol, traffic_class: 0, hop_limit: 64, dont_fragment: true };
    let mut packet = vec![0; outer.bytes()];
    outer.write(&mut packet, outer.bytes() + payload.len(), 0).unwrap();
    packet.extend_from_slice(payload);
    packet
}

/// An echo request.
pub fn ping(source: &str, destination: &str, data: &[u8]) -> Vec<u8> {
    let (source, destination): (IpAddr, IpAddr) = (source.parse().unwrap(), destination.parse().unwrap());
    let v4 = source.is_ipv4();
    let mut message = [&[if v4 { 8 } else { 128 }, 0, 0, 0, 0, 7, 0, 1][..], data].concat();
    let number = if v4 { protocol::ICMP } else { protocol::ICMPV6 };
    let pseudo = Sum::default().pseudo_header(source, destination, number, message.len() as u32);
    let sum = if v4 { Sum::default() } else { pseudo }.bytes(&message).finish().to_bytes();
    message[2..4].copy_from_slice(&sum);
    ip(source, destination, number, &message)
}

//! Nothing is allocated per packet, nor for what the link layer says and hears.

#![allow(
    clippy::cast_possible_truncation,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "test data is made of small numbers, and a test says what must hold"
)]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;
use support::{A, B, own, udp};
use testudo_link::routes::{NextHop, Route};
use testudo_link::{FrameDevice, LinkConfig, LinkPort};
use testudo_packet::{Batch, DropReason, Pool, Port, PortCounters, PortError};
use testudo_wire::arp::{ArpOperation, ArpPacket};
use testudo_wire::ethernet::{EthernetHeader, MacAddress, ether_type};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, which counts what each thread has of it.
struct Counting;

// SAFETY: every call is passed on unchanged to the system's allocator; counting touches a thread-local cell
// that needs no allocation.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises about both are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A device that gives the same frames again and again, with a number in the second of them, and forgets what
/// it is given.
struct Looping {
    frames: Vec<Vec<u8>>,
    given: usize,
    /// Where in each frame a number is put, if it has one.
    number_at: Vec<Option<usize>>,
    counters: PortCounters,
}

impl FrameDevice for Looping {
    fn name(&self) -> &str {
        "looping"
    }

    fn mac(&self) -> MacAddress {
        A
    }

    fn mtu(&self) -> usize {
        1500
    }

    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        for (frame, number_at) in self.frames.iter().zip(&self.number_at) {
            let Some(mut buffer) = pool.pop() else { break };
            buffer.receive_area()[..frame.len()].copy_from_slice(frame);
            buffer.set_len(frame.len());
            self.given += 1;
            if let Some(at) = *number_at {
                buffer.bytes_mut()[at..at + 2].copy_from_slice(&(self.given as u16).to_be_bytes());
            }
            batch.push(buffer);
        }
        self.counters.rx_packets += self.frames.len() as u64;
        Ok(self.frames.len())
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let taken = batch.len();
        self.counters.tx_packets += taken as u64;
        pool.recycle_all(batch);
        Ok(taken)
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}

fn frame(kind: u16, payload: &[u8]) -> Vec<u8> {
    let header = EthernetHeader { destination: A, source: B, tags: [None; 2], ether_type: kind };
    [&header.to_bytes()[..header.bytes()], payload].concat()
}

fn arp(operation: ArpOperation, sender: [u8; 4]) -> Vec<u8> {
    let (sender, target) = (sender.into(), [192, 0, 2, 1].into());
    frame(ether_type::ARP, &ArpPacket { operation, sender_mac: B, sender, target_mac: A, target }.to_bytes())
}

/// A port that receives `frames`, each with a number at a place if one is given.
fn port(frames: Vec<(Vec<u8>, Option<usize>)>) -> LinkPort<Looping, testudo_link::own::OwnResolver> {
    let (frames, number_at) = frames.into_iter().unzip();
    let device = Looping { frames, given: 0, number_at, counters: PortCounters::default() };
    let networks = [([192, 0, 2, 0], 24), ([10, 0, 0, 0], 8)];
    let on_link = |(network, prefix_bits): ([u8; 4], u8)| Route {
        network: network.into(),
        prefix_bits,
        next_hop: NextHop::OnLink,
        metric: 0,
    };
    let config = LinkConfig { routes: networks.map(on_link).into(), neighbours: 64, ..LinkConfig::default() };
    let now = Cell::new(0);
    // 20 ms from call to call, so that timers run.
    let clock = move || {
        now.set(now.get() + 20);
        Duration::from_millis(now.get())
    };
    LinkPort::new(device, own(&["192.0.2.1/24"]), &config, Box::new(clock))
}

/// Allocations of `turns` turns, each of which receives and sends; what was received goes back to the pool.
fn allocations(
    port: &mut impl Port,
    pool: &mut Pool,
    turns: usize,
    mut fill: impl FnMut(&mut Pool, &mut Batch),
) -> u64 {
    let (mut batch, before) = (Batch::new(), ALLOCATIONS.get());
    for _ in 0..turns {
        port.rx(pool, &mut batch).unwrap();
        pool.recycle_all(&mut batch);
        fill(pool, &mut batch);
        port.tx(pool, &mut batch).unwrap();
        pool.recycle_all(&mut batch);
    }
    ALLOCATIONS.get() - before
}

fn copy(pool: &mut Pool, batch: &mut Batch, packet: &[u8]) {
    let Some(mut buffer) = pool.pop() else { return };
    buffer.receive_area()[..packet.len()].copy_from_slice(packet);
    buffer.set_len(packet.len());
    batch.push(buffer);
}

#[test]
fn packets_cost_no_allocation() {
    let packet = udp("10.0.0.1", "192.0.2.1", 4500, &[7; 100]);
    let mut port = port(vec![
        (frame(ether_type::IPV4, &packet), None),
        (arp(ArpOperation::Reply, [192, 0, 2, 2]), None),
        (arp(ArpOperation::Request, [192, 0, 2, 2]), None),
    ]);
    let mut pool = Pool::new(512, 1600);
    let out = udp("10.0.0.1", "192.0.2.2", 4500, &[7; 100]);
    let fill = |pool: &mut Pool, batch: &mut Batch| (0..32).for_each(|_| copy(pool, batch, &out));
    assert!(ALLOCATIONS.get() > 0, "they are counted");
    assert_eq!(allocations(&mut port, &mut pool, 10_000, fill), 0);
    assert!(port.counters().tx_packets > 320_000 && pool.in_use() == 0, "{:?}", port.counters());
}

#[test]
fn a_flood_of_invented_neighbours_costs_no_allocation() {
    let mut port = port(vec![
        // Somebody else asks each time, and somebody else's packet is refused.
        (arp(ArpOperation::Request, [10, 9, 0, 0]), Some(14 + 14 + 2)),
        (frame(ether_type::IPV4, &udp("192.0.2.2", "192.0.2.1", 9, b"x")), None),
    ]);
    let mut pool = Pool::new(512, 1600);
    let mut invented = 0u16;
    let mut out = udp("172.16.0.1", "10.1.0.0", 1, b"x");
    let mut fill = |pool: &mut Pool, batch: &mut Batch| {
        for _ in 0..16 {
            invented = invented.wrapping_add(1);
            out[18..20].copy_from_slice(&invented.to_be_bytes());
            copy(pool, batch, &out);
        }
    };
    allocations(&mut port, &mut pool, 200, &mut fill);
    assert_eq!(allocations(&mut port, &mut pool, 10_000, &mut fill), 0);
    assert!(
        pool.drops().get(DropReason::NeighbourQueueFull) + pool.drops().get(DropReason::NeighbourUnresolved)
            > 100_000
    );
    assert!(port.tables().neighbours.len() <= 64 && pool.in_use() == port.waiting());
}

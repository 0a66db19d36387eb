//! Super-frames and checksums that are left to a device, over a driver that is played.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test panics on failure, and its data is made of small numbers"
)]

#[path = "devices/flow.rs"]
#[allow(dead_code, reason = "shared with the tests of devices")]
mod flow;

use flow::{ETHERNET_BYTES, Flow, is_intact};
use testudo_link::FrameDevice;
use testudo_packet::{Batch, DropReason, Pool};
use testudo_port_dpdk::raw::offers;
use testudo_port_dpdk::{DpdkConfig, DpdkDevice, DpdkTwin, Words};

const FRAMES: usize = 1024;
const LONG: usize = 16;
/// The longest packet of IP, in a frame.
const LONGEST: usize = 65_535 + 22;
/// Bytes of a packet that an mbuf has room for.
const ROOM: usize = 1700;
/// `RTE_MBUF_F_RX_LRO`.
const JOINED: u64 = 1 << 16;
/// `RTE_MBUF_F_TX_…`: what is asked for, of the API's documentation (`rte_mbuf_core.h`).
const TCP_SEGMENTS: u64 = 1 << 50 | 1 << 52;
const UDP_SEGMENTS: u64 = 1 << 42 | 3 << 52;
const UDP_CHECKSUM: u64 = 3 << 52;
const IPV4: u64 = 1 << 55;
const IPV6: u64 = 1 << 56;

struct Played {
    device: DpdkDevice,
    pool: Pool,
    driver: DpdkTwin,
}

fn played(more: u32) -> Played {
    let config = DpdkConfig { segmentation: Some(true), udp_over_ipv6: true, ..DpdkConfig::of("played") };
    played_as(more, &config)
}

fn played_as(more: u32, config: &DpdkConfig) -> Played {
    let mut pool = Pool::for_devices(FRAMES, 1514).with_long(LONG, LONGEST);
    let (eal, driver) = DpdkTwin::start(offers::SCATTER | offers::SEGMENTS | more);
    let device = DpdkDevice::open(&eal, &mut pool, config).unwrap();
    Played { device, pool, driver }
}

const SENDS: u32 = offers::TCP_SEGMENTATION | offers::UDP_SEGMENTATION;

impl Played {
    /// The driver delivers a frame in as many mbufs as it needs.
    fn deliver(&self, frame: &[u8], segment_bytes: u16) {
        let parts: Vec<&[u8]> = frame.chunks(ROOM).collect();
        let mbufs: Vec<usize> = parts.iter().map(|_| self.driver.take().unwrap()).collect();
        for (nth, (&mbuf, part)) in mbufs.iter().zip(&parts).enumerate() {
            let words = Words {
                segments: parts.len() as u16,
                next: mbufs.get(nth + 1).copied().unwrap_or(0),
                flags: JOINED,
                segment_bytes,
                ..Words::of(part.len() as u16)
            };
            self.driver.describe(mbuf, words);
            self.driver.fill(mbuf, part);
        }
        self.driver.deliver(mbufs[0]);
    }

    fn deliver_plain(&self, frame: &[u8]) {
        let mbuf = self.driver.take().unwrap();
        self.driver.describe(mbuf, Words::of(frame.len() as u16));
        self.driver.fill(mbuf, frame);
        self.driver.deliver(mbuf);
    }

    fn rx(&mut self) -> Vec<Vec<u8>> {
        let mut batch = Batch::new();
        self.device.rx(&mut self.pool, &mut batch).unwrap();
        let frames = batch.iter().map(|frame| frame.bytes().to_vec()).collect();
        self.pool.recycle_all(&mut batch);
        frames
    }

    fn batch(&mut self, frames: &[Vec<u8>]) -> Batch {
        let mut batch = Batch::new();
        for frame in frames {
            let mut buffer = self.pool.pop().unwrap();
            buffer.receive_area()[..frame.len()].copy_from_slice(frame);
            buffer.set_len(frame.len());
            batch.push(buffer);
        }
        batch
    }

    fn tx(&mut self, batch: &mut Batch) -> usize {
        self.device.tx(&mut self.pool, batch).unwrap()
    }

    fn close(self) {
        let Self { device, mut pool, driver } = self;
        driver.free_all();
        device.close(&mut pool);
        assert_eq!((pool.available(), pool.available_for(LONGEST)), (FRAMES, LONG));
    }
}

#[test]
fn a_super_frame_is_cut_into_the_segments_that_it_was() {
    for is_v6 in [false, true] {
        let mut played = played(0);
        let flow = Flow::tcp(is_v6);
        let segments = flow.segments(43, 1400);
        played.deliver(&flow.joined(&segments), 1400);
        // Of the same burst, and not to be overtaken.
        let last = flow.packet(44, 43 * 1400 + 700, 0x11, &[]);
        played.deliver_plain(&last);
        assert!(played.rx() == [&segments[..], &[last]].concat());
        assert_eq!(played.device.statistics().super_frames_cut, 1);
        played.close();
    }
}

#[test]
fn segments_wait_until_there_is_room_and_the_device_is_not_asked_before() {
    let mut played = played(0);
    let flow = Flow::tcp(true);
    let segments = flow.segments(99, 500);
    for _ in 0..2 {
        played.deliver(&flow.joined(&segments), 500);
    }
    let mut came = Vec::new();
    for count in [64, 64, 64, 8] {
        let frames = played.rx();
        assert_eq!(frames.len(), count);
        came.extend(frames);
    }
    assert!(came == [&segments[..], &segments].concat());
    // Without a free buffer all of it waits.
    played.deliver(&flow.joined(&segments), 500);
    assert_eq!(played.rx().len(), 64);
    let all: Batch = std::iter::from_fn(|| played.pool.pop()).take(64).collect();
    let more: Vec<_> = std::iter::from_fn(|| played.pool.pop()).collect();
    let long: Vec<_> = std::iter::from_fn(|| played.pool.pop_for(9000)).collect();
    assert!(played.rx().is_empty());
    all.into_iter().chain(more).chain(long).for_each(|buffer| played.pool.recycle(buffer));
    assert_eq!(played.rx().len(), 36);
    // Some of it is there when the device is closed.
    played.deliver(&flow.joined(&segments), 500);
    played.rx();
    played.close();
}

/// Segments that fit no frame need a long buffer each, as the super-frames that wait do.
#[test]
fn super_frames_in_all_long_buffers_do_not_stop_the_port() {
    let mut played = played(0);
    let flow = Flow::tcp(true);
    let segments = flow.segments(1, 2000);
    for _ in 0..LONG {
        played.deliver(&flow.joined(&segments), 2000);
    }
    let mut came = played.rx();
    assert!(played.pool.drops().get(DropReason::PoolEmpty) > 0, "there is no buffer for its segments");
    played.deliver_plain(&flow.packet(7, 0, 0x11, &[]));
    for _ in 0..LONG {
        came.extend(played.rx());
    }
    assert_eq!(came.last(), Some(&flow.packet(7, 0, 0x11, &[])), "the port goes on");
    assert!(came.iter().all(|frame| segments.contains(frame) || frame.len() < 100));
    played.close();
}

#[test]
fn frames_that_are_no_super_frames_are_dropped_by_name() {
    let mut played = played(0);
    let flow = Flow::tcp(false);
    let whole = flow.joined(&flow.segments(2, 1000));
    let changed = |at: usize, byte: u8| {
        let mut changed = whole.clone();
        changed[at] = byte;
        changed
    };
    let udp = Flow::udp(false);
    let wrong = [
        (whole.clone(), 0),                            // segments of no bytes
        (whole[..whole.len() - 1].to_vec(), 1000),     // shorter than it says
        (changed(ETHERNET_BYTES + 32, 0xF0), 1000),    // TCP options beyond its room
        (changed(ETHERNET_BYTES + 6, 0x20), 1000),     // a fragment
        (changed(12, 0x09), 1000),                     // no IP
        (udp.joined(&udp.segments(2, 1000)), 1000),    // another protocol
        (whole[..ETHERNET_BYTES + 10].to_vec(), 1000), // not even headers
    ];
    for (frame, segment_bytes) in &wrong {
        played.deliver(frame, *segment_bytes);
    }
    let came = played.rx();
    // Where TCP's header is long, its options are the first bytes of the payload: a valid packet.
    assert_eq!(came.len(), 3, "the one with long options");
    let drops = played.pool.drops();
    let dropped = [DropReason::BadHeader, DropReason::Truncated].map(|reason| drops.get(reason));
    assert_eq!(dropped.iter().sum::<u64>(), 6, "{dropped:?}");
    played.close();
}

#[test]
fn segments_of_a_flow_leave_joined_and_others_as_they_are() {
    for is_v6 in [false, true] {
        let mut played = played(SENDS);
        let flow = Flow::tcp(is_v6);
        let segments = flow.segments(5, 1400);
        let other = Flow::udp(!is_v6).packet(1, 0, 0, &[3; 200]);
        let frames = [&segments[..3], std::slice::from_ref(&other), &segments[3..]].concat();
        let mut batch = played.batch(&frames);
        assert_eq!(played.tx(&mut batch), 7);
        let [(flags, lengths, bytes), (0, _, alone)] = &played.driver.requests()[..] else {
            panic!("two packets are sent");
        };
        assert_eq!(*alone, other);
        assert_eq!(*flags, TCP_SEGMENTS | if is_v6 { IPV6 } else { IPV4 });
        let ip = if is_v6 { 40 } else { 20 };
        assert_eq!(*lengths, 14 | ip << 7 | 20 << 16 | 1400 << 24);
        let joined = flow.joined(&segments);
        let field = ETHERNET_BYTES + ip as usize + 16;
        assert!(bytes[..field] == joined[..field] && bytes[field + 2..] == joined[field + 2..]);
        let statistics = played.device.statistics();
        assert_eq!((statistics.super_frames_sent, statistics.tx_copied), (1, 0));
        assert_eq!((played.device.counters().tx_packets, played.driver.to_send()[0].1), (7, 6));
        played.close();
    }
}

#[test]
fn datagrams_of_a_flow_leave_joined_where_the_device_cuts_udp() {
    for (more, expected) in [(SENDS, 1), (offers::TCP_SEGMENTATION, 6)] {
        let mut played = played(more);
        let flow = Flow::udp(true);
        let mut batch = played.batch(&flow.segments(5, 1200));
        assert_eq!(played.tx(&mut batch), 6);
        let requests = played.driver.requests();
        assert_eq!(requests.len(), expected);
        if expected == 1 {
            assert_eq!(requests[0].0, UDP_SEGMENTS | IPV6);
            assert_eq!(requests[0].1, 14 | 40 << 7 | 8 << 16 | 1200 << 24);
        }
        played.close();
    }
}

#[test]
fn what_a_device_does_not_take_joined_it_is_given_one_by_one() {
    let mut played = played(SENDS);
    let segments = Flow::tcp(false).segments(5, 1400);
    let mbufs = played.driver.free_mbufs();
    played.driver.refuse_joined();
    let mut batch = played.batch(&segments);
    assert_eq!(played.tx(&mut batch), 6);
    let sent: Vec<Vec<u8>> = played.driver.requests().into_iter().map(|(_, _, bytes)| bytes).collect();
    assert!(sent == segments, "as they were");
    while played.driver.finish().is_some() {}
    assert_eq!(played.driver.free_mbufs(), mbufs);
    // And one that takes nothing now leaves all with the caller.
    played.driver.set_takes(Some(0));
    let mut batch = played.batch(&segments);
    assert_eq!((played.tx(&mut batch), batch.len()), (0, 6));
    assert!(batch.iter().map(|frame| frame.bytes().to_vec()).eq(segments.clone()));
    assert_eq!((played.driver.free_mbufs(), played.device.statistics().super_frames_sent), (mbufs, 0));
    played.pool.recycle_all(&mut batch);
    played.close();
}

#[test]
fn packets_to_different_neighbours_and_wrong_ones_are_not_joined() {
    let mut played = played(SENDS);
    let mut segments = Flow::tcp(false).segments(3, 1000);
    segments[1][0] ^= 4;
    let mut damaged = Flow { ports: [5, 6], ..Flow::tcp(false) }.segments(3, 1000);
    damaged.iter_mut().for_each(|frame| frame[100] ^= 1);
    let frames = [segments, damaged].concat();
    let mut batch = played.batch(&frames);
    assert_eq!(played.tx(&mut batch), 8);
    let sent: Vec<Vec<u8>> = played.driver.requests().into_iter().map(|(_, _, bytes)| bytes).collect();
    assert!(sent == frames, "a damaged packet stays damaged, and its receiver sees it");
    played.close();
}

/// As ESP in UDP leaves the gateway: RFC 3948 has no checksum over IPv4, RFC 8200 wants one over IPv6.
fn without_checksum(is_v6: bool) -> Vec<u8> {
    let mut frame = Flow::udp(is_v6).packet(0, 0, 0, &[0x5A; 333]);
    let at = ETHERNET_BYTES + if is_v6 { 40 } else { 20 } + 6;
    frame[at..at + 2].fill(0);
    frame
}

#[test]
fn a_device_that_computes_no_checksums_is_not_asked_to() {
    let mut played = played(0);
    assert!(!played.device.chosen().udp_checksums, "the link layer is told so");
    let frames = [without_checksum(true), without_checksum(false), Flow::udp(true).packet(0, 0, 0, &[1; 99])];
    let mut batch = played.batch(&frames);
    assert_eq!(played.tx(&mut batch), 3);
    let requests = played.driver.requests();
    assert!(requests.iter().zip(&frames).all(|((flags, _, sent), frame)| *flags == 0 && sent == frame));
    played.close();
}

/// A device of virtio declares it on any port.
#[test]
fn a_device_that_is_not_asked_for_checksums_leaves_them_to_the_link_layer() {
    let config = DpdkConfig { segmentation: Some(true), ..DpdkConfig::of("played") };
    let mut played = played_as(offers::UDP_CHECKSUMS, &config);
    assert!(!played.device.chosen().udp_checksums, "the link layer is told so");
    let frame = without_checksum(true);
    let mut batch = played.batch(std::slice::from_ref(&frame));
    assert_eq!(played.tx(&mut batch), 1);
    assert!(matches!(&played.driver.requests()[..], [(0, _, sent)] if *sent == frame));
    played.close();
}

#[test]
fn a_device_that_computes_checksums_of_udp_is_asked_to() {
    let mut played = played(offers::UDP_CHECKSUMS);
    let frame = without_checksum(true);
    let mut batch = played.batch(&[frame.clone(), without_checksum(false)]);
    // What it does not take now is as it was.
    played.driver.set_takes(Some(0));
    assert_eq!(played.tx(&mut batch), 0);
    assert_eq!((batch[0].bytes(), played.device.statistics().checksums_left), (&frame[..], 0));
    played.driver.set_takes(None);
    assert_eq!(played.tx(&mut batch), 2);
    let requests = played.driver.requests();
    assert_eq!((requests[0].0, requests[0].1), (UDP_CHECKSUM | IPV6, 14 | 40 << 7 | 8 << 16));
    assert_eq!((requests[1].0, played.device.statistics().checksums_left), (0, 1));
    // What the device does: it sums what follows IPv6, and stores the complement.
    let mut sent = requests[0].2.clone();
    let sum = testudo_wire::checksum::of(&sent[ETHERNET_BYTES + 40..]).to_bytes();
    sent[ETHERNET_BYTES + 46..][..2].copy_from_slice(&sum);
    assert!(is_intact(&sent));
    played.close();
}

//! The device over a driver that is played: one that keeps the rules, and one that lies.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    reason = "a test panics on failure, and its data is made of small numbers"
)]

use std::collections::HashSet;
use testudo_link::FrameDevice;
use testudo_packet::{Batch, Buffer, DropReason, Mark, Pool};
use testudo_port_dpdk::raw::{events, offers};
use testudo_port_dpdk::{DpdkConfig, DpdkDevice, DpdkTwin, OpenError, Words};

const FRAMES: usize = 512;
const LONG: usize = 8;
/// Bytes from one mbuf to the next.
const STRIDE: usize = 256;
/// Bytes of a packet that an mbuf has room for, when it is received.
const ROOM: u16 = 2048 - 272;

struct Played {
    device: DpdkDevice,
    pool: Pool,
    driver: DpdkTwin,
}

fn played_with(offers: u32, mtu: u16) -> Played {
    let mut pool = Pool::for_devices(FRAMES, 1514).with_long(LONG, 9100);
    let (eal, driver) = DpdkTwin::start(offers);
    let config = DpdkConfig { descriptors: 64, mtu: Some(mtu), ..DpdkConfig::of("played") };
    let device = DpdkDevice::open(&eal, &mut pool, &config).unwrap();
    Played { device, pool, driver }
}

fn played() -> Played {
    played_with(offers::SCATTER | offers::SEGMENTS, 9000)
}

impl Played {
    /// Receives what is there, and returns the lengths.
    fn rx(&mut self) -> Vec<usize> {
        let mut batch = Batch::new();
        self.device.rx(&mut self.pool, &mut batch).unwrap();
        let lengths = batch.iter().map(Buffer::len).collect();
        self.pool.recycle_all(&mut batch);
        lengths
    }

    fn drops(&self, reason: DropReason) -> u64 {
        self.pool.drops().get(reason)
    }

    /// An mbuf that is out, described so.
    fn described(&self, words: Words) -> usize {
        let address = self.driver.take().unwrap();
        self.driver.describe(address, words);
        address
    }

    fn packets(&mut self, lengths: &[usize]) -> Batch {
        let packet = |&bytes: &usize| {
            let mut buffer = self.pool.pop_for(bytes).unwrap();
            buffer.set_len(bytes);
            buffer
        };
        lengths.iter().map(packet).collect()
    }

    /// Closes the device: each buffer is in the pool once, or written off.
    fn close(self) {
        let Self { device, mut pool, .. } = self;
        device.close(&mut pool);
        assert_eq!((pool.available(), pool.available_for(9000)), (FRAMES, LONG));
        let all: Vec<Buffer> = std::iter::from_fn(|| pool.pop()).collect();
        let different: HashSet<_> = all.iter().map(Buffer::identity).collect();
        assert_eq!((all.len(), different.len()), (FRAMES, FRAMES));
    }
}

#[test]
fn a_packet_keeps_its_frame_and_the_mbuf_gets_another() {
    let mut played = played();
    let mbufs = played.driver.free_mbufs();
    let address = played.described(Words::of(100));
    played.driver.deliver(address);
    let mut batch = Batch::new();
    assert_eq!(played.device.rx(&mut played.pool, &mut batch).unwrap(), 1);
    assert_eq!((batch[0].len(), batch[0].headroom()), (100, 272));
    assert_eq!(played.driver.free_mbufs(), mbufs, "the mbuf is free, with a frame");
    let (free, sent) = (played.pool.available(), batch[0].identity());
    assert_eq!(played.device.tx(&mut played.pool, &mut batch).unwrap(), 1);
    assert_eq!(played.pool.available(), free + 1, "another frame came for it");
    assert_eq!(played.driver.to_send(), [(100, 1)]);
    let fresh: HashSet<_> = std::iter::from_fn(|| played.pool.pop()).map(|b| b.identity()).collect();
    assert!(!fresh.contains(&sent), "the frame is the driver's until it has sent the packet");
}

#[test]
fn mbufs_that_the_driver_does_not_have_are_not_read() {
    let mut played = played();
    let address = played.described(Words::of(100));
    let (free, last) = (address + STRIDE, address + 1_000_000 * STRIDE);
    for unknown in [0, 8, address + 1, address - STRIDE / 2, free, last, usize::MAX] {
        played.driver.deliver(unknown);
    }
    assert_eq!(played.rx(), [0; 0]);
    assert_eq!(
        (played.drops(DropReason::DeviceFrameUnknown), played.device.statistics().unknown_frames),
        (7, 7)
    );
    // Twice in one burst, and again once it is free.
    [address, address].iter().for_each(|address| played.driver.deliver(*address));
    assert_eq!(played.rx(), [100]);
    played.driver.deliver(address);
    assert_eq!(played.rx(), [0; 0]);
    assert_eq!(played.drops(DropReason::DeviceFrameUnknown), 9);
    played.close();
}

#[test]
fn what_is_out_to_be_sent_has_not_been_received() {
    let mut played = played();
    let mut batch = played.packets(&[100]);
    played.device.tx(&mut played.pool, &mut batch).unwrap();
    let address = played.driver.finish().unwrap();
    let mut batch = played.packets(&[200]);
    played.device.tx(&mut played.pool, &mut batch).unwrap();
    played.driver.deliver(address);
    assert_eq!((played.rx().len(), played.drops(DropReason::DeviceFrameUnknown)), (0, 1));
    played.close();
}

#[test]
fn packets_beyond_their_room_are_not_read() {
    let mut played = played();
    let bounds = [(128, ROOM + 1), (u16::MAX, u16::MAX), (0, ROOM + 129), (ROOM + 128, 1)];
    for (data_off, data_len) in bounds {
        let address = played.described(Words { data_off, data_len, ..Words::of(0) });
        played.driver.deliver(address);
    }
    let elsewhere = played.described(Words { buf_addr: Some(0x1000), ..Words::of(64) });
    played.driver.deliver(elsewhere);
    let whole = played.described(Words::of(ROOM));
    played.driver.deliver(whole);
    assert_eq!(played.rx(), [usize::from(ROOM)]);
    assert_eq!(played.drops(DropReason::DeviceFrameBounds), 4);
    assert_eq!(played.drops(DropReason::DeviceFrameUnknown), 1);
    played.close();
}

#[test]
fn parts_are_gathered_and_chains_that_never_end_are_dropped() {
    let mut played = played();
    let mbufs = played.driver.free_mbufs();
    let chain = |played: &Played, lengths: &[u16]| {
        let parts: Vec<usize> = lengths.iter().map(|_| played.driver.take().unwrap()).collect();
        for (nth, (&address, &bytes)) in parts.iter().zip(lengths).enumerate() {
            let next = parts.get(nth + 1).copied().unwrap_or(0);
            let segments = if nth == 0 { lengths.len() as u16 } else { 1 };
            played.driver.describe(address, Words { segments, next, ..Words::of(bytes) });
        }
        parts
    };
    let good = chain(&played, &[1700, 1700, 600]);
    played.driver.deliver(good[0]);
    assert_eq!(played.rx(), [4000]);
    assert_eq!(played.device.statistics().rx_copied, 1);
    // Its last part is its first one, or no mbuf; one part lies; there are too many; they are too long.
    let cycle = chain(&played, &[100, 100]);
    played.driver.describe(cycle[1], Words { segments: 9, next: cycle[0], ..Words::of(100) });
    played.driver.describe(cycle[0], Words { segments: 9, next: cycle[1], ..Words::of(100) });
    let garbage = chain(&played, &[100, 100]);
    played.driver.describe(garbage[0], Words { segments: 2, next: 0xDEAD_BEEF, ..Words::of(100) });
    let lying = chain(&played, &[100, ROOM + 1]);
    let many = chain(&played, &[100; 50]);
    let long = chain(&played, &[ROOM; 6]);
    for first in [&cycle, &garbage, &lying, &many, &long] {
        played.driver.deliver(first[0]);
    }
    assert_eq!(played.rx(), [0; 0]);
    assert_eq!(played.drops(DropReason::DeviceFrameUnknown), 2);
    assert_eq!(played.drops(DropReason::DeviceFrameBounds), 1);
    assert_eq!(played.drops(DropReason::ReceiveTruncated), 2);
    // The second part of the one with garbage is the driver's still.
    assert_eq!(played.driver.free_mbufs(), mbufs - 1);
    played.driver.free(garbage[1]);
    played.close();
}

#[test]
fn what_is_not_sent_stays_in_order_and_is_sent_later() {
    let mut played = played();
    let mbufs = played.driver.free_mbufs();
    let mut batch = played.packets(&[60, 61, 5000, 63]);
    played.driver.set_takes(Some(1));
    assert_eq!(played.device.tx(&mut played.pool, &mut batch).unwrap(), 1);
    assert_eq!(batch.iter().map(Buffer::len).collect::<Vec<_>>(), [61, 5000, 63]);
    assert_eq!((played.driver.free_mbufs(), played.device.statistics().tx_copied), (mbufs - 1, 0));
    played.driver.set_takes(None);
    assert_eq!(played.device.tx(&mut played.pool, &mut batch).unwrap(), 3);
    assert_eq!(played.driver.to_send(), [(60, 1), (61, 1), (5000, 3), (63, 1)]);
    while played.driver.finish().is_some() {}
    assert_eq!(played.driver.free_mbufs(), mbufs);
    played.close();
}

/// A frame stays with its mbuf when its packet was sent, and has another packet when it comes back.
#[test]
fn a_received_packet_has_no_mark_of_the_packet_that_was_sent_in_its_frame() {
    let mut played = played();
    let mut batch = played.packets(&[100; 8]);
    let marks = [Mark::opened_under(5), Mark::opened_under(6)].into_iter().cycle();
    batch.iter_mut().zip(marks).for_each(|(packet, mark)| packet.set_mark(mark));
    let sent: HashSet<_> = batch.iter().map(Buffer::identity).collect();
    assert_eq!(played.device.tx(&mut played.pool, &mut batch).unwrap(), 8);
    while played.driver.finish().is_some() {}
    (0..8).for_each(|_| played.driver.deliver(played.described(Words::of(60))));
    assert_eq!(played.device.rx(&mut played.pool, &mut batch).unwrap(), 8);
    assert!(batch.iter().all(|packet| sent.contains(&packet.identity())), "the same frames");
    assert!(batch.iter().all(|packet| packet.mark() == Mark::NONE));
    played.pool.recycle_all(&mut batch);
    played.close();
}

/// A driver freed an mbuf that points to another, which it has to receive into. The first is sent later, and
/// not taken: only itself comes back.
#[test]
fn a_packet_that_is_not_sent_takes_no_mbuf_of_the_driver_along() {
    let mut played = played();
    let [first, others] = [played.driver.take().unwrap(), played.driver.take().unwrap()];
    played.driver.describe(first, Words { next: others, ..Words::of(60) });
    played.driver.free(first);
    let mbufs = played.driver.free_mbufs();
    let mut batch = played.packets(&[100]);
    played.driver.set_takes(Some(0));
    assert_eq!(played.device.tx(&mut played.pool, &mut batch).unwrap(), 0);
    assert_eq!(played.driver.free_mbufs(), mbufs, "the driver still has its own");
    played.driver.describe(others, Words::of(64));
    played.driver.deliver(others);
    assert_eq!(played.rx(), [64]);
    played.pool.recycle_all(&mut batch);
    played.close();
}

#[test]
fn without_free_mbufs_nothing_is_taken() {
    let mut played = played();
    while played.driver.take().is_some() {}
    let mut batch = played.packets(&[60, 61]);
    assert_eq!(played.device.tx(&mut played.pool, &mut batch).unwrap(), 0);
    assert_eq!(batch.len(), 2);
    played.pool.recycle_all(&mut batch);
    // Those are lost with the driver.
    played.close();
}

#[test]
fn packets_that_cannot_be_sent_are_dropped_by_name_and_the_others_sent() {
    let mut played = played_with(0, 1500);
    let mut batch = played.packets(&[10, 100, 1523, 101, 13]);
    assert_eq!(played.device.tx(&mut played.pool, &mut batch).unwrap(), 5);
    assert_eq!(played.driver.to_send(), [(100, 1), (101, 1)]);
    assert_eq!(played.drops(DropReason::SendRefused), 2);
    assert_eq!(played.drops(DropReason::MessageTooLong), 1);
    played.close();
}

#[test]
fn short_frames_are_padded_and_packets_without_room_before_them_copied() {
    let mut played = played();
    let mut batch = played.packets(&[20, 100]);
    batch[1].prepend(200).unwrap().fill(7);
    assert_eq!(played.device.tx(&mut played.pool, &mut batch).unwrap(), 2);
    assert_eq!(played.driver.to_send(), [(60, 1), (300, 1)]);
    assert_eq!(played.device.statistics().tx_copied, 1);
    played.close();
}

#[test]
fn counts_that_cannot_be_end_the_device() {
    let mut played = played();
    let address = played.described(Words::of(64));
    played.driver.deliver(address);
    played.driver.set_says(65);
    let error = played.device.rx(&mut played.pool, &mut Batch::new()).unwrap_err();
    assert!(error.source.unwrap().to_string().contains("more than it was given room for"));
    played.driver.set_takes(Some(9));
    let mut batch = played.packets(&[60]);
    let error = played.device.tx(&mut played.pool, &mut batch).unwrap_err();
    assert!(error.source.unwrap().to_string().contains("sent more than it was given"));
}

#[test]
fn a_device_that_is_taken_away_ends_and_one_that_asks_is_reset() {
    let mut played = played();
    played.driver.happen(events::RESET);
    let address = played.described(Words::of(64));
    played.driver.deliver(address);
    assert_eq!(played.rx(), [64], "after a reset it goes on");
    assert_eq!((played.driver.resets(), played.device.statistics().resets), (1, 1));
    played.driver.happen(events::REMOVED);
    let error = played.device.rx(&mut played.pool, &mut Batch::new()).unwrap_err();
    assert!(error.source.unwrap().to_string().contains("taken away"));
    played.driver.happen(events::RESET);
    played.driver.fail_to_start();
    let error = played.device.rx(&mut played.pool, &mut Batch::new()).unwrap_err();
    assert!(error.source.unwrap().to_string().contains("cannot be"));
    played.close();
}

#[test]
fn an_mbuf_that_comes_back_twice_is_refused() {
    let played = played();
    let address = played.driver.take().unwrap();
    let mbufs = played.driver.free_mbufs();
    [address, address, 64].iter().for_each(|address| played.driver.free(*address));
    assert_eq!((played.driver.free_mbufs(), played.device.statistics().refused_mbufs), (mbufs + 1, 2));
    played.close();
}

#[test]
fn without_enough_buffers_the_error_says_how_many() {
    let (eal, _driver) = DpdkTwin::start(0);
    let mut pool = Pool::for_devices(100, 1514);
    let error = DpdkDevice::open(&eal, &mut pool, &DpdkConfig::of("played")).unwrap_err();
    assert!(matches!(error, OpenError::Buffers { needed: 192, may: 100, .. }), "{error}");
    assert_eq!(pool.available(), 100);
}

/// RSS: SAs go by SPI, windows of VPE in UDP by source port.
#[test]
fn several_queues_are_spread_by_all_that_a_device_declares() {
    for (queues, spread_by) in [(1, &[][..]), (2, &["ESP", "AH", "UDP", "TCP", "IP"])] {
        let mut pool = Pool::for_devices(FRAMES, 1514);
        let (eal, driver) = DpdkTwin::start(0);
        let config = DpdkConfig { descriptors: 64, queues, ..DpdkConfig::of("played") };
        let device = DpdkDevice::open(&eal, &mut pool, &config).unwrap();
        assert_eq!((device.chosen().queues, &device.chosen().spread_by[..]), (queues, spread_by));
        driver.free_all();
        device.close(&mut pool);
    }
}

//! The device over rings whose kernel is played: one that keeps the rules, and one that lies.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    reason = "a test panics on failure, and its data is made of small numbers"
)]

use proptest::prelude::*;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use testudo_link::FrameDevice;
use testudo_packet::{Batch, Buffer, DropReason, Pool, TAILROOM_BYTES};
use testudo_port_xdp::{
    Descriptor, Interface, KernelStatistics, KernelTwin, QueueOptions, SocketCalls, XdpDevice,
};
use testudo_wire::ethernet::MacAddress;

const FRAMES: usize = 64;
const RING: u32 = 64;
const LENT: u32 = 32;
/// What the kernel leaves free before a packet.
const HEADROOM: usize = 272;

/// Counts calls, and fails with an error if it is told to.
#[derive(Default, Clone)]
struct Calls {
    sends: Arc<AtomicU32>,
    receives: Arc<AtomicU32>,
    fail: Arc<AtomicI32>,
}

impl Calls {
    fn outcome(&self) -> io::Result<()> {
        match self.fail.load(Ordering::Relaxed) {
            0 => Ok(()),
            code => Err(io::Error::from_raw_os_error(code)),
        }
    }
}

impl SocketCalls for Calls {
    fn wake_sender(&self) -> io::Result<()> {
        self.sends.fetch_add(1, Ordering::Relaxed);
        self.outcome()
    }

    fn wake_receiver(&self) -> io::Result<()> {
        self.receives.fetch_add(1, Ordering::Relaxed);
        self.outcome()
    }

    fn statistics(&self) -> io::Result<KernelStatistics> {
        Ok(KernelStatistics { rx_dropped: 7, ..KernelStatistics::default() })
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

struct Played {
    device: XdpDevice<Calls>,
    pool: Pool,
    kernel: KernelTwin,
    calls: Calls,
    chunk: u64,
}

fn interface(mtu: usize) -> Interface {
    Interface {
        name: "eth0".into(),
        index: 1,
        mac: MacAddress([2, 0, 0, 0, 0, 1]),
        mtu,
        driver: None,
        queues: None,
    }
}

fn options() -> QueueOptions {
    QueueOptions {
        queue: 0,
        receive_frames: LENT,
        frame_bytes: 1522,
        multi_buffer: false,
        complete_checksums: false,
        busy_poll: false,
    }
}

fn played_with(mut pool: Pool, options: QueueOptions, mtu: usize) -> Played {
    let (rings, kernel) = KernelTwin::new(RING).unwrap();
    let calls = Calls::default();
    let queues = vec![(rings, calls.clone(), options)];
    let device = XdpDevice::played(&interface(mtu), &mut pool, queues).unwrap();
    let chunk = pool.region().frame_bytes() as u64;
    Played { device, pool, kernel, calls, chunk }
}

fn played() -> Played {
    played_with(Pool::new(FRAMES, 1522).with_long(4, 9100), options(), 1500)
}

/// Frames may be in several buffers, and have up to 9,022 bytes.
fn jumbo() -> QueueOptions {
    QueueOptions { multi_buffer: true, frame_bytes: 9022, ..options() }
}

/// A byte of a frame that no packet has been in.
fn pattern(frame: usize, at: usize) -> u8 {
    (frame * 31 + at * 7 + at / 256) as u8
}

/// A pool whose frames have the pattern.
fn patterned() -> Pool {
    let mut pool = Pool::new(FRAMES, 1522).with_long(1, 9100);
    let mut all: Vec<Buffer> = std::iter::from_fn(|| pool.pop()).collect();
    for buffer in &mut all {
        let frame = pool.region().index_of(buffer).unwrap();
        buffer.reset(0);
        buffer.receive_area().iter_mut().enumerate().for_each(|(at, byte)| *byte = pattern(frame, at));
    }
    all.into_iter().for_each(|buffer| pool.recycle(buffer));
    pool
}

fn bytes_of(packet: &Buffer) -> Vec<u8> {
    packet.segments().flat_map(|segment| segment.bytes().to_vec()).collect()
}

fn received(address: u64, bytes: usize) -> Descriptor {
    Descriptor { address, bytes: bytes as u32, options: 0 }
}

impl Played {
    fn rx(&mut self) -> Vec<usize> {
        let mut batch = Batch::new();
        self.device.rx(&mut self.pool, &mut batch).unwrap();
        batch
            .drain(..)
            .map(|buffer| {
                let bytes = buffer.chain_bytes();
                self.pool.recycle(buffer);
                bytes
            })
            .collect()
    }

    /// Has the kernel hand over a frame in parts of these lengths, of which more may follow: what is in them.
    fn arrive(&mut self, lengths: &[usize], unfinished: bool) -> Vec<u8> {
        let (mut bytes, chunk) = (Vec::new(), self.chunk);
        for (nth, &length) in lengths.iter().enumerate() {
            let frame = self.kernel.free.pop().unwrap();
            let more = nth + 1 < lengths.len() || unfinished;
            let options = if more { Descriptor::MORE } else { 0 };
            let address = frame + HEADROOM as u64;
            self.kernel.received.push(Descriptor { address, bytes: length as u32, options });
            bytes.extend((HEADROOM..HEADROOM + length).map(|at| pattern((frame / chunk) as usize, at)));
        }
        bytes
    }

    /// The next frame, and no other.
    fn frame(&mut self) -> Buffer {
        let mut batch = Batch::new();
        assert_eq!(self.device.rx(&mut self.pool, &mut batch).unwrap(), 1);
        batch.remove(0)
    }

    /// A packet in buffers of the pool that have these lengths.
    fn chain(&mut self, lengths: &[usize]) -> Buffer {
        let mut segments = lengths.iter().map(|&bytes| {
            let mut segment = self.pool.pop().unwrap();
            segment.set_len(bytes);
            segment
        });
        let mut chain = segments.next().unwrap();
        segments.for_each(|segment| chain.link(segment).unwrap());
        chain
    }

    /// Whether all frames are free, or lent to be received into.
    fn has_all_frames(&self) -> bool {
        let lent = self.device.statistics()[0];
        lent.sending == 0 && self.pool.available() + lent.receiving as usize == FRAMES
    }

    fn drops(&self) -> Vec<(DropReason, u64)> {
        self.pool.drops().iter().filter(|(_, count)| *count > 0).collect()
    }

    fn batch(&mut self, lengths: &[usize]) -> Batch {
        lengths
            .iter()
            .map(|&bytes| {
                let mut buffer = self.pool.pop_for(bytes).unwrap();
                buffer.receive_area()[..bytes].fill(bytes as u8);
                buffer.set_len(bytes);
                buffer
            })
            .collect()
    }
}

#[test]
fn frames_come_in_the_buffers_that_were_lent_and_others_take_their_places() {
    let mut played = played();
    assert_eq!(played.device.statistics()[0].receiving, LENT);
    let lent: Vec<u64> = std::iter::from_fn(|| played.kernel.free.pop()).collect();
    assert!(lent.len() == LENT as usize && lent.iter().all(|address| address % played.chunk == 0));
    for (nth, address) in lent.iter().enumerate() {
        played.kernel.received.push(received(address + 272, 60 + nth));
    }
    assert_eq!(played.rx(), (60..60 + LENT as usize).collect::<Vec<_>>());
    assert_eq!((played.rx(), played.drops()), (vec![], vec![]));
    let again: Vec<u64> = std::iter::from_fn(|| played.kernel.free.pop()).collect();
    assert_eq!(again.len(), LENT as usize);
    assert_eq!(played.device.counters().rx_packets, u64::from(LENT));
    assert_eq!(played.device.statistics()[0].kernel.rx_dropped, 7);
}

#[test]
fn frames_of_a_umem_that_is_not_aligned_come_with_an_offset() {
    let mut played = played();
    let address = played.kernel.free.pop().unwrap();
    played.kernel.received.push(received(address | 272 << 48, 100));
    assert_eq!((played.rx(), played.drops()), (vec![100], vec![]));
}

#[test]
fn packets_leave_from_their_own_buffers_and_come_back_when_they_were_sent() {
    let mut played = played();
    let free = played.pool.available();
    let mut batch = played.batch(&[60, 1000, 1514]);
    let places: Vec<_> = batch.iter().map(|b| played.pool.region().index_of(b).unwrap() as u64).collect();
    assert_eq!(played.device.tx(&mut played.pool, &mut batch).unwrap(), 3);
    let sent: Vec<Descriptor> = std::iter::from_fn(|| played.kernel.to_send.pop()).collect();
    assert_eq!(sent.iter().map(|d| d.bytes).collect::<Vec<_>>(), [60, 1000, 1514]);
    let addresses: Vec<u64> = places.iter().map(|index| index * played.chunk + 272).collect();
    assert_eq!(sent.iter().map(|d| d.address).collect::<Vec<_>>(), addresses);
    assert_eq!((played.pool.available(), played.device.statistics()[0].sending), (free - 3, 3));
    addresses.iter().for_each(|address| played.kernel.sent.push(*address));
    assert_eq!((played.rx(), played.pool.available()), (vec![], free));
    assert_eq!(played.device.statistics()[0].tx_copied, 0);
}

#[test]
fn what_finds_no_room_stays_with_the_caller_in_order() {
    let mut played = played_with(Pool::new(256, 1522), options(), 1500);
    let lengths: Vec<usize> = (0..64).map(|n| 100 + n).collect();
    let mut batch = played.batch(&lengths);
    assert_eq!(played.device.tx(&mut played.pool, &mut batch).unwrap(), 64);
    let mut batch = played.batch(&[200, 201, 202]);
    assert_eq!(played.device.tx(&mut played.pool, &mut batch).unwrap(), 0);
    for _ in 0..2 {
        played.kernel.to_send.pop().unwrap();
    }
    assert_eq!(played.device.tx(&mut played.pool, &mut batch).unwrap(), 2);
    assert_eq!(batch.iter().map(|b| b.len()).collect::<Vec<_>>(), [202]);
}

#[test]
fn packets_that_no_frame_of_the_link_carries_are_dropped_by_name() {
    let mut played = played();
    let mut batch = played.batch(&[13, 1514, 1515, 1522, 1523]);
    assert_eq!(played.device.tx(&mut played.pool, &mut batch).unwrap(), 5);
    assert_eq!(played.drops(), [(DropReason::MessageTooLong, 1), (DropReason::SendRefused, 1)]);
    assert_eq!(played.device.counters().tx_packets, 3);
}

#[test]
fn packets_that_are_elsewhere_are_copied_into_frames() {
    let mut played = played();
    let packet: Vec<u8> = (0..1200_usize).map(|n| n as u8).collect();
    let mut batch: Batch = [Buffer::copied(&packet, 8, 8)].into_iter().collect();
    assert_eq!(played.device.tx(&mut played.pool, &mut batch).unwrap(), 1);
    assert_eq!(played.kernel.to_send.pop().map(|d| (d.bytes, d.options)), Some((1200, 0)));
    assert_eq!(played.device.statistics()[0].tx_copied, 1);
    let mut played = played_with(Pool::new(FRAMES, 1522).with_long(4, 9100), jumbo(), 9000);
    let room = played.pool.region().frame_bytes() - 272;
    let mut batch = played.batch(&[9014]);
    assert_eq!(played.device.tx(&mut played.pool, &mut batch).unwrap(), 1);
    let parts: Vec<Descriptor> = std::iter::from_fn(|| played.kernel.to_send.pop()).collect();
    assert_eq!(parts.len(), 9014_usize.div_ceil(room));
    assert_eq!(parts.iter().map(|part| part.bytes as usize).sum::<usize>(), 9014);
    let (last, others) = parts.split_last().unwrap();
    assert!(last.options == 0 && others.iter().all(|part| part.options == Descriptor::MORE));
}

/// Where the device was told that each frame is in one buffer.
#[test]
fn parts_of_a_frame_are_put_together_and_a_lost_one_counts_once() {
    let jumbo = QueueOptions { multi_buffer: false, ..jumbo() };
    let mut played = played_with(Pool::new(FRAMES, 1522).with_long(1, 9100), jumbo, 9000);
    let give = |played: &mut Played, lengths: &[usize], unfinished: bool| {
        for (nth, bytes) in lengths.iter().enumerate() {
            let address = played.kernel.free.pop().unwrap() + 272;
            let more = nth + 1 < lengths.len() || unfinished;
            let options = if more { Descriptor::MORE } else { 0 };
            played.kernel.received.push(Descriptor { address, bytes: *bytes as u32, options });
        }
    };
    give(&mut played, &[1700, 1700, 600], false);
    give(&mut played, &[60], false);
    assert_eq!(played.rx(), [4000, 60]);
    // The rest comes later.
    give(&mut played, &[1700, 1700], true);
    assert_eq!(played.rx(), [0; 0]);
    give(&mut played, &[1], false);
    assert_eq!((played.rx(), played.drops()), (vec![3401], vec![]));
    // Longer than a buffer.
    give(&mut played, &[1700; 6], false);
    assert_eq!((played.rx(), played.drops()), (vec![], vec![(DropReason::ReceiveTruncated, 1)]));
    // The only long buffer is in use.
    let long = played.pool.pop_for(9000).unwrap();
    give(&mut played, &[1700, 1700], false);
    assert_eq!(played.rx(), [0; 0]);
    assert_eq!(played.pool.drops().get(DropReason::PoolEmpty), 1);
    played.pool.recycle(long);
    // A part that was never lent.
    give(&mut played, &[1700], true);
    played.kernel.received.push(Descriptor { address: u64::MAX, bytes: 1, options: Descriptor::MORE });
    give(&mut played, &[1700], false);
    give(&mut played, &[61], false);
    assert_eq!(played.rx(), [61]);
    assert_eq!(played.pool.drops().get(DropReason::DeviceFrameUnknown), 1);
    let counts = played.device.statistics()[0];
    assert_eq!((counts.rx_chains, counts.rx_merged, played.device.takes_chains()), (0, 2, false));
}

#[test]
fn a_frame_in_several_buffers_is_a_chain_of_these_buffers() {
    let mut played = played_with(patterned(), jumbo(), 9000);
    assert!(played.device.takes_chains());
    let full = played.chunk as usize - HEADROOM;
    let cases: [(&[usize], usize); 6] = [
        (&[full, full, 600], 3),
        (&[1700, 1700, 1], 3),
        (&[1, full, 0, 70], 4),
        (&[full, full, full, full, 1500], 5),
        // The pool's tailroom is free behind the last one, too.
        (&[full, full, full], 4),
        (&[600, 1700], 3),
    ];
    for (lengths, segments) in cases {
        let next = played.kernel.free.consumer();
        let bytes = played.arrive(lengths, false);
        let lent = (0..lengths.len() as u32).map(|nth| played.kernel.free.read(next.wrapping_add(nth)));
        let lent: Vec<usize> = lent.map(|address| (address / played.chunk) as usize).collect();
        let mut frame = played.frame();
        let places: Vec<_> =
            frame.segments().filter_map(|part| played.pool.region().index_of(part)).collect();
        assert_eq!((&places[..lengths.len()], places.len()), (&lent[..], segments), "{lengths:?}");
        assert!(bytes_of(&frame) == bytes, "{lengths:?}");
        assert!(frame.with_last(|last| last.tailroom()) >= TAILROOM_BYTES, "{lengths:?}");
        played.pool.recycle(frame);
    }
    let counts = played.device.statistics()[0];
    assert_eq!((counts.rx_chains, counts.rx_merged, played.pool.linearised()), (6, 0, 0));
    assert!(played.has_all_frames() && played.drops().is_empty());
}

#[test]
fn a_chain_with_a_lost_part_or_too_many_counts_once_and_gives_all_buffers_back() {
    let mut played = played_with(patterned(), jumbo(), 9000);
    // A part that was never lent, in the middle.
    played.arrive(&[1700], true);
    played.kernel.received.push(Descriptor { address: u64::MAX, bytes: 1, options: Descriptor::MORE });
    played.arrive(&[1700], false);
    assert_eq!((played.rx(), played.drops()), (vec![], vec![(DropReason::DeviceFrameUnknown, 1)]));
    // More parts than the kernel makes, and more bytes than any buffer has.
    for lengths in [&[100; 19][..], &[1800; 6]] {
        let truncated = played.pool.drops().get(DropReason::ReceiveTruncated);
        played.arrive(lengths, false);
        assert_eq!(played.rx(), [0; 0]);
        assert_eq!(played.pool.drops().get(DropReason::ReceiveTruncated), truncated + 1);
        assert!(played.has_all_frames());
    }
    played.arrive(&[1700, 1700], false);
    assert_eq!((played.rx(), played.pool.drops().total()), (vec![3400], 3));
}

/// A kernel that leaves no room before a packet has filled the frame with it: there is none for a link.
#[test]
fn parts_without_room_for_a_link_are_merged() {
    let mut played = played_with(patterned(), jumbo(), 9000);
    let give = |played: &mut Played| {
        for options in [Descriptor::MORE, 0] {
            let address = played.kernel.free.pop().unwrap();
            played.kernel.received.push(Descriptor { address, bytes: 2112, options });
        }
    };
    give(&mut played);
    let frame = played.frame();
    assert_eq!((frame.is_chain(), frame.len(), played.device.statistics()[0].rx_merged), (false, 4224, 1));
    give(&mut played);
    assert_eq!((played.rx(), played.drops()), (vec![], vec![(DropReason::PoolEmpty, 1)]));
    played.pool.recycle(frame);
    assert!(played.has_all_frames() && played.pool.available_for(9000) == 1);
}

/// All buffers are in use when the second part should come: it comes when the kernel has one again.
#[test]
fn a_frame_whose_second_part_finds_no_buffer_is_whole_later_and_nothing_is_lost() {
    let mut played = played_with(patterned(), jumbo(), 9000);
    let mut held: Vec<Buffer> = std::iter::from_fn(|| played.pool.pop()).collect();
    for _ in 1..LENT {
        played.arrive(&[60], false);
        held.push(played.frame());
    }
    let first = played.arrive(&[1840], true);
    assert_eq!((played.rx(), played.kernel.free.pop()), (vec![], None));
    assert_eq!((played.device.statistics()[0].receiving, played.pool.available()), (0, 0));
    held.drain(..).for_each(|buffer| played.pool.recycle(buffer));
    assert_eq!(played.rx(), [0; 0]);
    played.arrive(&[300], false);
    let frame = played.frame();
    assert!(bytes_of(&frame).starts_with(&first) && frame.chain_bytes() == 2140);
    played.pool.recycle(frame);
    // Nor is there one for what stands in the tailroom: the packet is whole all the same.
    held.extend(std::iter::from_fn(|| played.pool.pop()));
    played.arrive(&[1840, 1840], false);
    let mut frame = played.frame();
    assert_eq!((frame.chain_bytes(), frame.with_last(|last| last.tailroom())), (3680, 0));
    held.push(frame);
    held.drain(..).for_each(|buffer| played.pool.recycle(buffer));
    assert_eq!((played.rx(), played.drops()), (vec![], vec![]));
    assert!(played.has_all_frames());
}

#[test]
fn a_chain_is_sent_from_where_it_is_and_comes_back_buffer_by_buffer() {
    let mut played = played_with(patterned(), jumbo(), 9000);
    let came = played.arrive(&[1840, 1840, 600], false);
    let chain = played.frame();
    // With a header in front, and nothing in the last buffer.
    let header = played.chain(&[60]);
    let mut packet = played.pool.link_before(header, chain).unwrap();
    packet.link(played.pool.pop().unwrap()).unwrap();
    let parts = |packet: &Buffer, pool: &Pool, chunk: u64| -> Vec<(u64, u32)> {
        let filled = packet.segments().filter(|part| !part.is_empty());
        let address =
            |part: &Buffer| pool.region().index_of(part).unwrap() as u64 * chunk + part.headroom() as u64;
        filled.map(|part| (address(part), part.len() as u32)).collect()
    };
    let expected = parts(&packet, &played.pool, played.chunk);
    assert_eq!(expected.iter().map(|(_, bytes)| *bytes as usize).sum::<usize>(), 60 + came.len());
    let mut batch: Batch = [packet].into_iter().collect();
    assert_eq!(played.device.tx(&mut played.pool, &mut batch).unwrap(), 1);
    let sent: Vec<Descriptor> = std::iter::from_fn(|| played.kernel.to_send.pop()).collect();
    assert_eq!(sent.iter().map(|part| (part.address, part.bytes)).collect::<Vec<_>>(), expected);
    let options: Vec<u32> = sent.iter().map(|part| part.options).collect();
    assert_eq!(options, [Descriptor::MORE, Descriptor::MORE, Descriptor::MORE, 0]);
    let counts = played.device.statistics()[0];
    assert_eq!((counts.sending, counts.tx_chains, counts.tx_copied), (4, 1, 0));
    assert_eq!(played.device.counters().tx_bytes, 60 + came.len() as u64);
    // Half of it is sent: the other half is still the kernel's.
    sent[..2].iter().for_each(|part| played.kernel.sent.push(part.address));
    assert_eq!((played.rx(), played.device.statistics()[0].sending), (vec![], 2));
    sent[2..].iter().for_each(|part| played.kernel.sent.push(part.address));
    assert_eq!((played.rx(), played.drops()), (vec![], vec![]));
    assert!(played.has_all_frames());
}

#[test]
fn a_chain_is_never_cut_in_two_by_a_full_ring() {
    let mut played = played_with(Pool::new(256, 1522).with_long(4, 9100), jumbo(), 9000);
    let mut batch = played.batch(&[100; 61]);
    assert_eq!(played.device.tx(&mut played.pool, &mut batch).unwrap(), 61);
    // Room for three of its four parts; and what is behind it does not pass it.
    let mut batch: Batch = [played.chain(&[500; 4]), played.chain(&[200])].into_iter().collect();
    assert_eq!(played.device.tx(&mut played.pool, &mut batch).unwrap(), 0);
    assert_eq!((batch.len(), batch[0].chain_bytes()), (2, 2000));
    assert!(played.kernel.to_send.pop().is_some());
    assert_eq!(played.device.tx(&mut played.pool, &mut batch).unwrap(), 1);
    let sent: Vec<Descriptor> = std::iter::from_fn(|| played.kernel.to_send.pop()).collect();
    let chain: Vec<_> = sent[60..].iter().map(|part| (part.bytes, part.options)).collect();
    let more = Descriptor::MORE;
    assert_eq!(chain, [(500, more), (500, more), (500, more), (500, 0)]);
    assert_eq!((batch.len(), batch[0].len()), (1, 200));
}

#[test]
fn chains_that_no_driver_takes_are_copied() {
    let copied = |options: QueueOptions, lengths: &[usize]| {
        let mut played = played_with(Pool::new(FRAMES, 1522).with_long(1, 9100), options, 9000);
        let mut batch: Batch = [played.chain(lengths)].into_iter().collect();
        assert_eq!(played.device.tx(&mut played.pool, &mut batch).unwrap(), 1);
        let parts: Vec<u32> = std::iter::from_fn(|| played.kernel.to_send.pop()).map(|d| d.bytes).collect();
        let counts = played.device.statistics()[0];
        (parts, counts.tx_copied, counts.tx_chains, played.pool.drops().get(DropReason::MessageTooLong))
    };
    // In too many buffers, and in a first one that is no frame's beginning.
    assert_eq!(copied(jumbo(), &[300; 8]).2, 1);
    assert_eq!(copied(jumbo(), &[300; 9]), (vec![1840, 860], 1, 0, 0));
    assert_eq!(copied(jumbo(), &[13, 100]), (vec![113], 1, 0, 0));
    // Where each frame is in one buffer.
    let narrow = QueueOptions { multi_buffer: false, ..jumbo() };
    assert_eq!(copied(narrow, &[300; 3]), (vec![900], 1, 0, 0));
    assert_eq!(copied(narrow, &[1000; 2]), (vec![], 0, 0, 1));
}

/// To wait for frames that the packet has itself would be to wait for ever.
#[test]
fn a_chain_that_has_the_frames_of_its_own_copy_is_dropped_by_name() {
    let mut played = played_with(Pool::new(FRAMES, 1522).with_long(1, 9100), jumbo(), 9000);
    let mut batch: Batch = [played.chain(&[300; 9])].into_iter().collect();
    let others: Vec<Buffer> = std::iter::from_fn(|| played.pool.pop()).collect();
    assert_eq!(played.device.tx(&mut played.pool, &mut batch).unwrap(), 1);
    assert_eq!((batch.len(), played.pool.drops().get(DropReason::PoolEmpty)), (0, 1));
    others.into_iter().for_each(|buffer| played.pool.recycle(buffer));
    assert_eq!(played.rx(), [0; 0]);
    assert!(played.has_all_frames());
}

/// Longer than any frame can be: more parts than the kernel makes.
#[test]
fn a_frame_that_never_ends_takes_no_more_than_its_share() {
    let mut played = played_with(Pool::new(FRAMES, 1522).with_long(4, 9100), jumbo(), 9000);
    for _ in 0..100 {
        while let Some(address) = played.kernel.free.pop() {
            played.kernel.received.push(Descriptor { address, bytes: 1, options: Descriptor::MORE });
        }
        assert_eq!(played.rx(), [0; 0]);
    }
    assert!(played.pool.available() >= FRAMES - LENT as usize - 18);
}

#[test]
fn frames_that_are_not_lent_and_packets_beyond_their_frame_are_dropped_by_name() {
    let mut played = played();
    let lent = played.kernel.free.pop().unwrap() + 272;
    let end = FRAMES as u64 * played.chunk;
    for lie in [end, u64::MAX, lent + played.chunk * 40, 1 << 48] {
        played.kernel.received.push(received(lie, 60));
    }
    played.kernel.received.push(received(lent, 60));
    played.kernel.received.push(received(lent, 60));
    let other = played.kernel.free.pop().unwrap() + 272;
    played.kernel.received.push(received(other, played.chunk as usize - 271));
    assert_eq!(played.rx(), [60]);
    // A frame for receipt is not one that was sent.
    played.kernel.sent.push(played.kernel.free.pop().unwrap());
    assert_eq!(played.rx(), [0; 0]);
    let expected = [(DropReason::DeviceFrameUnknown, 6), (DropReason::DeviceFrameBounds, 1)];
    assert_eq!(played.drops(), expected);
    let counts = played.device.statistics()[0];
    assert_eq!((counts.unknown_frames, counts.out_of_bounds), (6, 1));
}

#[test]
fn a_ring_that_holds_more_than_it_can_ends_the_device() {
    for broken in 0..4 {
        let mut played = played();
        match broken {
            0 => played.kernel.received.set_producer(RING + 1),
            1 => played.kernel.sent.set_producer(u32::MAX),
            2 => played.kernel.to_send.set_consumer(1),
            _ => {
                // Only looked at when frames are lent again.
                for _ in 0..LENT {
                    let address = played.kernel.free.pop().unwrap();
                    played.kernel.received.push(received(address, 60));
                }
                played.kernel.free.set_consumer(LENT + 1);
            }
        }
        let mut batch = Batch::new();
        let outcome = match broken {
            2 => played.device.tx(&mut played.pool, &mut batch),
            _ => played.device.rx(&mut played.pool, &mut batch),
        };
        let error = std::error::Error::source(&outcome.unwrap_err()).unwrap().to_string();
        assert!(error.contains("a ring of 64 entries is said to hold"), "{error}");
        batch.drain(..).for_each(|buffer| played.pool.recycle(buffer));
    }
}

#[test]
fn a_device_that_is_closed_gives_all_buffers_back_but_those_that_may_still_leave() {
    let mut played = played_with(Pool::new(FRAMES, 1522).with_long(4, 9100), jumbo(), 9000);
    let part = played.kernel.free.pop().unwrap() + 272;
    let options = Descriptor::MORE;
    played.kernel.received.push(Descriptor { address: part, bytes: 1000, options });
    assert_eq!(played.rx(), [0; 0]);
    let mut batch = played.batch(&[100, 200]);
    played.device.tx(&mut played.pool, &mut batch).unwrap();
    played.kernel.sent.push(played.kernel.to_send.pop().unwrap().address);
    let Played { device, mut pool, .. } = played;
    device.close(&mut pool);
    // One has not come back. It is written off, so that another can be made in its place.
    assert_eq!(pool.available(), FRAMES);
    let all: Vec<_> = std::iter::from_fn(|| pool.pop()).collect();
    let of_the_umem = all.iter().filter(|buffer| pool.region().owns(buffer)).count();
    assert_eq!((all.len(), of_the_umem), (FRAMES, FRAMES - 1));
    // A frame that is elsewhere is lent to no kernel.
    drop(all);
}

#[test]
fn frames_that_replace_lost_ones_are_lent_to_no_kernel() {
    let mut pool = Pool::new(FRAMES, 1522);
    let lost: Vec<_> = std::iter::from_fn(|| pool.pop()).take(FRAMES - 8).collect();
    pool.forget(lost.len());
    let mut played = played_with(pool, options(), 1500);
    let lent = std::iter::from_fn(|| played.kernel.free.pop()).count();
    assert!(lent <= 8 && played.device.statistics()[0].receiving as usize == lent, "{lent}");
    let mut batch: Batch = [Buffer::copied(&[5; 100], 0, 0)].into_iter().collect();
    let taken = played.device.tx(&mut played.pool, &mut batch).unwrap();
    assert_eq!(taken + batch.len(), 1, "it is sent, or stays");
}

#[test]
fn another_pool_is_refused() {
    let (mut played, mut other) = (played(), Pool::new(FRAMES, 1522));
    let error = played.device.rx(&mut other, &mut Batch::new()).unwrap_err();
    assert!(std::error::Error::source(&error).unwrap().to_string().contains("opened with"));
    assert!(played.device.tx(&mut other, &mut Batch::new()).is_err());
}

#[test]
fn system_calls_are_made_where_the_kernel_asks_for_them() {
    let mut played = played();
    played.kernel.free.set_needs_wakeup(false);
    let mut batch = played.batch(&[100]);
    played.device.tx(&mut played.pool, &mut batch).unwrap();
    played.rx();
    let calls = |played: &Played| {
        let of = |count: &AtomicU32| count.swap(0, Ordering::Relaxed);
        (of(&played.calls.sends), of(&played.calls.receives))
    };
    assert_eq!(calls(&played), (0, 0));
    played.kernel.to_send.set_needs_wakeup(true);
    played.kernel.free.set_needs_wakeup(true);
    let mut batch = played.batch(&[100]);
    played.device.tx(&mut played.pool, &mut batch).unwrap();
    assert_eq!(calls(&played), (1, 0));
    // What it has not sent it is asked for again, with what comes.
    played.rx();
    assert_eq!(calls(&played), (1, 1));
    // The kernel sends so many at a time.
    played.calls.fail.store(libc_eagain(), Ordering::Relaxed);
    let mut batch = played.batch(&[100; 20]);
    played.device.tx(&mut played.pool, &mut batch).unwrap();
    assert_eq!(calls(&played), (1, 0));
}

fn libc_eagain() -> i32 {
    rustix::io::Errno::AGAIN.raw_os_error()
}

#[test]
fn an_interface_that_is_down_is_waited_for_and_one_that_has_gone_ends_the_device() {
    let mut played = played();
    played.kernel.to_send.set_needs_wakeup(true);
    for moment in [rustix::io::Errno::NETDOWN, rustix::io::Errno::NOBUFS, rustix::io::Errno::BUSY] {
        played.calls.fail.store(moment.raw_os_error(), Ordering::Relaxed);
        let mut batch = played.batch(&[100]);
        assert_eq!(played.device.tx(&mut played.pool, &mut batch).unwrap(), 1);
    }
    played.calls.fail.store(rustix::io::Errno::NXIO.raw_os_error(), Ordering::Relaxed);
    let mut batch = played.batch(&[100]);
    assert!(played.device.tx(&mut played.pool, &mut batch).is_err());
    // Where nothing is sent, it is noticed as well.
    played.kernel.to_send.set_consumer(played.kernel.to_send.producer());
    let calls = (0..1000).position(|_| played.device.rx(&mut played.pool, &mut Batch::new()).is_err());
    assert!(calls.is_some_and(|calls| calls < 100), "{calls:?}");
}

/// What a hostile kernel does next.
#[derive(Debug, Clone)]
enum Step {
    /// Gives back a frame that it has, as one should.
    Receive {
        bytes: u32,
        more: bool,
    },
    Sent,
    /// Any address in either ring.
    LieReceived(u64, u32, bool),
    LieSent(u64),
    /// A frame that it gave back before.
    Again {
        sent: bool,
    },
    Rx,
    Tx(Vec<usize>),
    /// A packet in several buffers.
    TxChain(Vec<usize>),
}

fn step() -> impl Strategy<Value = Step> {
    let address =
        prop_oneof![0..FRAMES as u64 * 2112, any::<u64>(), (0..64_u64).prop_map(|f| f * 2112 + 272)];
    let length = prop_oneof![0..2200_u32, any::<u32>()];
    prop_oneof![
        4 => (length.clone(), any::<bool>()).prop_map(|(bytes, more)| Step::Receive { bytes, more }),
        2 => Just(Step::Sent),
        2 => (address.clone(), length, any::<bool>()).prop_map(|(a, b, m)| Step::LieReceived(a, b, m)),
        2 => address.prop_map(Step::LieSent),
        1 => any::<bool>().prop_map(|sent| Step::Again { sent }),
        4 => Just(Step::Rx),
        2 => prop::collection::vec(0..9100_usize, 0..8).prop_map(Step::Tx),
        1 => prop::collection::vec(0..1700_usize, 1..12).prop_map(Step::TxChain),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever the kernel writes into its rings: each buffer is the pool's, the device's or the caller's,
    /// never two of them, and nothing is read beyond a frame.
    #[test]
    fn no_lie_of_the_kernel_makes_two_owners_of_a_buffer(steps in prop::collection::vec(step(), 0..120)) {
        let mut played = played_with(Pool::new(FRAMES, 1522).with_long(4, 9100), jumbo(), 9000);
        let mut given_back = 0;
        for step in steps {
            match step {
                Step::Receive { bytes, more } => {
                    if let Some(frame) = played.kernel.free.pop() {
                        let address = frame + 272;
                        given_back = address;
                        let options = u32::from(more);
                        played.kernel.received.push(Descriptor { address, bytes, options });
                    }
                }
                Step::Sent => {
                    if let Some(descriptor) = played.kernel.to_send.pop() {
                        given_back = descriptor.address;
                        played.kernel.sent.push(descriptor.address);
                    }
                }
                Step::LieReceived(address, bytes, more) => {
                    played.kernel.received.push(Descriptor { address, bytes, options: u32::from(more) });
                }
                Step::LieSent(address) => played.kernel.sent.push(address),
                Step::Again { sent: true } => played.kernel.sent.push(given_back),
                Step::Again { sent: false } => played.kernel.received.push(received(given_back, 64)),
                Step::Rx => {
                    let lengths = played.rx();
                    prop_assert!(lengths.iter().all(|bytes| *bytes <= 9100));
                }
                Step::Tx(lengths) => {
                    let mut batch = Batch::new();
                    for bytes in lengths {
                        if let Some(mut buffer) = played.pool.pop_for(bytes) {
                            buffer.set_len(bytes);
                            batch.push(buffer);
                        }
                    }
                    played.device.tx(&mut played.pool, &mut batch).unwrap();
                    batch.drain(..).for_each(|buffer| played.pool.recycle(buffer));
                }
                Step::TxChain(lengths) => {
                    let lengths = &lengths[..lengths.len().min(played.pool.available())];
                    if !lengths.is_empty() {
                        let mut batch: Batch = [played.chain(lengths)].into_iter().collect();
                        played.device.tx(&mut played.pool, &mut batch).unwrap();
                        batch.drain(..).for_each(|buffer| played.pool.recycle(buffer));
                    }
                }
            }
            // Before a ring would hold more than it can, which ends the device.
            if played.kernel.received.producer().wrapping_sub(played.kernel.received.consumer()) > 50
                || played.kernel.sent.producer().wrapping_sub(played.kernel.sent.consumer()) > 50
            {
                played.rx();
            }
            let counts = played.device.statistics()[0];
            let lent = (counts.receiving + counts.sending) as usize;
            // What is in neither is a part of a frame whose rest has not come.
            prop_assert!(played.pool.available() + lent <= FRAMES);
            prop_assert!(played.pool.available() + lent + 18 >= FRAMES);
        }
        // Buffers that come from the pool are all different.
        let all: Vec<Buffer> = std::iter::from_fn(|| played.pool.pop()).collect();
        let different: std::collections::HashSet<_> = all.iter().map(Buffer::identity).collect();
        prop_assert_eq!(all.len(), different.len());
    }
}

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
use testudo_packet::{Batch, Buffer, DropReason, Pool};
use testudo_port_xdp::{
    Descriptor, Interface, KernelStatistics, KernelTwin, QueueOptions, SocketCalls, XdpDevice,
};
use testudo_wire::ethernet::MacAddress;

const FRAMES: usize = 64;
const RING: u32 = 64;
const LENT: u32 = 32;

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
                let bytes = buffer.len();
                self.pool.recycle(buffer);
                bytes
            })
            .collect()
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
    let jumbo = QueueOptions { multi_buffer: true, frame_bytes: 9022, ..options() };
    let mut played = played_with(Pool::new(FRAMES, 1522).with_long(4, 9100), jumbo, 9000);
    let room = played.pool.region().frame_bytes() - 272;
    let mut batch = played.batch(&[9014]);
    assert_eq!(played.device.tx(&mut played.pool, &mut batch).unwrap(), 1);
    let parts: Vec<Descriptor> = std::iter::from_fn(|| played.kernel.to_send.pop()).collect();
    assert_eq!(parts.len(), 9014_usize.div_ceil(room));
    assert_eq!(parts.iter().map(|part| part.bytes as usize).sum::<usize>(), 9014);
    let (last, others) = parts.split_last().unwrap();
    assert!(last.options == 0 && others.iter().all(|part| part.options == Descriptor::MORE));
}

#[test]
fn parts_of_a_frame_are_put_together_and_a_lost_one_counts_once() {
    let jumbo = QueueOptions { multi_buffer: true, frame_bytes: 9022, ..options() };
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
}

/// Longer than any frame can be: more parts than the kernel makes.
#[test]
fn a_frame_that_never_ends_takes_no_more_than_its_share() {
    let jumbo = QueueOptions { multi_buffer: true, frame_bytes: 9022, ..options() };
    let mut played = played_with(Pool::new(FRAMES, 1522).with_long(4, 9100), jumbo, 9000);
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
    let jumbo = QueueOptions { multi_buffer: true, frame_bytes: 9022, ..options() };
    let mut played = played_with(Pool::new(FRAMES, 1522).with_long(4, 9100), jumbo, 9000);
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
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever the kernel writes into its rings: each buffer is the pool's, the device's or the caller's,
    /// never two of them, and nothing is read beyond a frame.
    #[test]
    fn no_lie_of_the_kernel_makes_two_owners_of_a_buffer(steps in prop::collection::vec(step(), 0..120)) {
        let jumbo = QueueOptions { multi_buffer: true, frame_bytes: 9022, ..options() };
        let mut played = played_with(Pool::new(FRAMES, 1522).with_long(4, 9100), jumbo, 9000);
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

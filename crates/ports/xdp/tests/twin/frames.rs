//! Frames in one buffer each, both ways.

use crate::played::{FRAMES, LENT, Played, jumbo, options, played, played_with, received};
use testudo_link::FrameDevice;
use testudo_packet::{Batch, Buffer, DropReason, Pool};
use testudo_port_xdp::{Descriptor, QueueOptions};

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

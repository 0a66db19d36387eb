//! Frames and packets in several buffers.

use crate::played::{FRAMES, HEADROOM, LENT, Played, bytes_of, jumbo, patterned, played_with};
use testudo_link::FrameDevice;
use testudo_packet::{Batch, Buffer, DropReason, Pool, TAILROOM_BYTES};
use testudo_port_xdp::{Descriptor, QueueOptions};

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

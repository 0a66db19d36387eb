//! Fragments of any kind, in any order.

use crate::input::Input;
use crate::support::reassembly::Twins;
use std::time::Duration;
use testudo_ipsec::Moment;
use testudo_ipsec::fragments::{Reassembled, Reassembler};
use testudo_packet::{DropReason, Pool};
use testudo_wire::ip::IpHeader;

/// Steps of the model per input, limited so that one input does not take long.
const STEPS: usize = 400;

/// Each fragment has the outcome that the model gives it; then the same bytes are packets.
pub fn reassembly(data: &[u8]) {
    let mut twins = Twins::default();
    let mut input = Input::new(data);
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        twins.step(&mut || input.byte());
    }
    twins.finish();
    of_any_bytes(data);
}

/// Packets of arbitrary bytes: what is put together is a packet, and no buffer is lost.
fn of_any_bytes(data: &[u8]) {
    let (mut reassembler, mut pool) = (Reassembler::default(), Pool::new(64, 700).with_long(64, 2048));
    let (mut input, mut now, mut received, mut whole) = (Input::new(data), Moment::default(), 0, 0);
    let mut last = Vec::new();
    while !input.is_empty() {
        let kind = input.byte();
        let mut packet = if kind & 1 == 0 { input.run().to_vec() } else { last.clone() };
        for change in input.take(usize::from(kind >> 5) * 2).chunks_exact(2) {
            if let Some(byte) = packet.get_mut(usize::from(change[0])) {
                *byte = change[1];
            }
        }
        mend(&mut packet);
        packet.truncate(2048);
        last.clone_from(&packet);
        let Ok(header) = IpHeader::parse(&packet) else { continue };
        let mut buffer = pool.pop_for(header.total_bytes).expect("at most an eighth of them are kept");
        buffer.receive_area()[..header.total_bytes].copy_from_slice(&packet[..header.total_bytes]);
        buffer.set_len(header.total_bytes);
        received += 1;
        match reassembler.take(&mut buffer, &header, kind & 2 == 0, now, &mut pool) {
            Ok(Reassembled::Whole) => {
                let parsed = IpHeader::parse(buffer.bytes()).map(|whole| whole.total_bytes);
                assert!(parsed.is_err() || parsed == Ok(buffer.len()));
                whole += 1;
                pool.recycle(buffer);
            }
            Ok(Reassembled::Kept) => assert_eq!(buffer.capacity(), 0),
            Err(reason) => pool.discard(buffer, reason),
        }
        now = Moment(now.0 + Duration::from_millis(u64::from(kind & 0x1C) * 50));
        let held = pool.in_use() as u64;
        assert_eq!(received, whole + pool.drops().total() + pool.merged() + held);
        assert_eq!(held, reassembler.incomplete() as u64);
    }
    reassembler.discard_all(DropReason::ShuttingDown, &mut pool);
    assert_eq!(pool.in_use(), 0);
}

/// A valid checksum for bytes that look like IPv4.
fn mend(packet: &mut [u8]) {
    let header = packet.first().map_or(0, |first| usize::from(first & 0x0F) * 4);
    if packet.first().is_some_and(|first| first >> 4 == 4) && (20..=packet.len()).contains(&header) {
        crate::support::datagrams::mend(&mut packet[..header]);
    }
}

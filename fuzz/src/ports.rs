//! Input of ports from files and devices.

use crate::input::Input;
use std::io::Cursor;
use testudo_packet::{BATCH_SIZE, Batch, Pool, Port};
use testudo_port_pcap::{FrameReader, PcapPort, PcapReader};
use testudo_port_tun::coalesce::{Groups, plan};
use testudo_port_tun::split::{MAX_HEADER_BYTES, SuperFrame, complete_checksum};
use testudo_port_tun::vnet::{VNET_HEADER_BYTES, VnetHeader};

/// Any file is read to its end or refused, and no buffer is lost.
pub fn pcap(data: &[u8]) {
    let Ok(frames) = FrameReader::from_read("fuzz.pcap", Box::new(Cursor::new(data.to_vec()))) else {
        return;
    };
    let reader = PcapReader::new(frames);
    let ending = reader.ending();
    let mut port = PcapPort::new("fuzz", Some(reader), None);
    let mut pool = Pool::new(BATCH_SIZE, 2048);
    let mut batch = Batch::new();
    // A record has at least eight bytes, so there cannot be more than this.
    for _ in 0..=data.len() {
        if port.rx(&mut pool, &mut batch).is_err() || port.exhausted() {
            break;
        }
        batch.drain(..).for_each(|buffer| pool.recycle(buffer));
    }
    batch.drain(..).for_each(|buffer| pool.recycle(buffer));
    assert!(ending.get().is_some(), "more packets than bytes");
    assert_eq!(pool.available(), pool.size());
}

/// An accepted super-frame is split into packets that carry all of it; joined packets are those that came.
pub fn tun_split(data: &[u8]) {
    let mut input = Input::new(data);
    let mut vnet = [0; VNET_HEADER_BYTES];
    input.take(VNET_HEADER_BYTES).iter().zip(&mut vnet).for_each(|(from, to)| *to = *from);
    let vnet = VnetHeader::from_bytes(&vnet);
    let frame = input.take(usize::MAX);
    let _ = complete_checksum(&vnet, &mut frame.to_vec());
    let head = &frame[..frame.len().min(MAX_HEADER_BYTES)];
    if let Ok(super_frame) = SuperFrame::parse(&vnet, head, frame.len()) {
        let packets = split(&super_frame, frame);
        plan(packets.iter().map(Vec::as_slice), true, &mut Groups::new());
    }
    join(frame);
}

fn split(super_frame: &SuperFrame, frame: &[u8]) -> Vec<Vec<u8>> {
    let payload = &frame[super_frame.header_bytes()..];
    let mut carried = 0;
    let mut packets = Vec::new();
    for index in 0..super_frame.segments() {
        let range = super_frame.payload_range(index);
        assert_eq!(range.start, carried);
        carried = range.end;
        let mut packet = vec![0; super_frame.header_bytes()];
        packet.extend_from_slice(&payload[range]);
        super_frame.write_headers(index, &mut packet);
        packets.push(packet);
    }
    assert_eq!(carried, payload.len());
    packets
}

/// Every packet of a batch is in exactly one group.
fn join(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut packets = Vec::new();
    while !input.is_empty() && packets.len() < BATCH_SIZE {
        let length = usize::from(input.byte());
        packets.push(input.take(length));
    }
    let mut groups = Groups::new();
    plan(packets.iter().copied(), true, &mut groups);
    let mut placed: Vec<usize> =
        groups.iter().flat_map(|g| g.members.iter().map(|&m| usize::from(m))).collect();
    for group in &groups {
        let first = packets[usize::from(group.members[0])];
        let last = packets[usize::from(group.members[group.members.len() - 1])];
        let _ = group.joined_header(first, last);
    }
    placed.sort_unstable();
    assert_eq!(placed, (0..packets.len()).collect::<Vec<_>>());
}

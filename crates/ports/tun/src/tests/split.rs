use super::frames::{Shape, assert_valid, cut_by_oracle};
use crate::split::{SuperFrame, complete_checksum};
use crate::vnet::{Gso, VnetHeader};
use fastrand::Rng;
use testudo_packet::DropReason;

/// Splits with the code under test.
fn cut(vnet: &VnetHeader, frame: &[u8]) -> Vec<Vec<u8>> {
    let parsed = SuperFrame::parse(vnet, frame, frame.len()).unwrap();
    let header_bytes = parsed.header_bytes();
    let packet = |index| {
        let range = parsed.payload_range(index);
        let mut packet = vec![0xEE; header_bytes];
        packet.extend_from_slice(&frame[header_bytes..][range]);
        parsed.write_headers(index, &mut packet);
        packet
    };
    (0..parsed.segments()).map(packet).collect()
}

#[test]
fn a_super_frame_is_cut_as_tun_rs_cuts_it_and_every_packet_is_valid() {
    for seed in 0..600 {
        println!("seed {seed}");
        let mut random = Rng::with_seed(seed);
        let (vnet, frame) = Shape::random(&mut random).frame(&mut random);
        let packets = cut(&vnet, &frame);
        packets.iter().for_each(|packet| assert_valid(packet));
        assert!(packets == cut_by_oracle(&vnet, &frame));
    }
}

#[test]
fn ip_options_are_part_of_every_header() {
    let mut random = Rng::with_seed(1);
    let mut shape = Shape { ip_options: vec![1; 8], ..Shape::random(&mut random) };
    (shape.gso, shape.is_v6) = (Gso::TcpV4, false);
    let (vnet, frame) = shape.frame(&mut random);
    let packets = cut(&vnet, &frame);
    assert!(packets.iter().all(|packet| packet[0] == 0x47));
    packets.iter().for_each(|packet| assert_valid(packet));
}

#[test]
fn ipv6_options_are_part_of_every_header() {
    let mut random = Rng::with_seed(2);
    let mut shape = Shape::random(&mut random);
    (shape.gso, shape.is_v6) = (Gso::TcpV6, true);
    let (mut vnet, mut frame) = shape.frame(&mut random);
    let length = u16::from_be_bytes([frame[4], frame[5]]) + 16;
    frame.splice(40..40, [6, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    frame[4..6].copy_from_slice(&length.to_be_bytes());
    frame[6] = 60;
    vnet.checksum_start += 16;
    let packets = cut(&vnet, &frame);
    packets.iter().for_each(|packet| assert_valid(packet));
    assert_eq!(
        packets[0].len(),
        76 + shape.tcp_options.len() + usize::from(shape.gso_size).min(shape.payload_bytes)
    );
}

#[test]
fn the_real_header_length_is_believed_not_the_hint() {
    let mut random = Rng::with_seed(3);
    let (vnet, frame) = Shape::random(&mut random).frame(&mut random);
    let hinted = VnetHeader { header_bytes: 9999, ..vnet };
    assert!(cut(&hinted, &frame) == cut(&vnet, &frame));
}

#[test]
fn contradictions_are_dropped_with_a_reason() {
    let mut random = Rng::with_seed(4);
    let shape = Shape { gso: Gso::TcpV4, is_v6: false, ..Shape::random(&mut random) };
    let (vnet, frame) = shape.frame(&mut random);
    let parse = |vnet: &VnetHeader, frame: &[u8]| {
        SuperFrame::parse(vnet, frame, frame.len()).map(|_| ()).unwrap_err()
    };
    let with = |gso_type, gso_size| VnetHeader { gso_type, gso_size, ..vnet };
    assert_eq!(parse(&with(3, 1400), &frame), DropReason::BadHeader);
    assert_eq!(parse(&with(4, 1400), &frame), DropReason::BadHeader);
    assert_eq!(parse(&with(5, 1400), &frame), DropReason::BadHeader);
    assert_eq!(parse(&with(1, 0), &frame), DropReason::BadHeader);
    assert_eq!(parse(&vnet, &frame[..frame.len() - 1]), DropReason::Truncated);
    assert_eq!(parse(&vnet, &[&frame[..], &[0]].concat()), DropReason::BadHeader);
    assert_eq!(parse(&vnet, &[0; 60]), DropReason::NotIp);
    let mut fragment = frame.clone();
    fragment[6] |= 0x20;
    assert_eq!(parse(&vnet, &fragment), DropReason::BadHeader);
}

#[test]
fn no_bytes_make_splitting_panic() {
    for seed in 0..3000 {
        println!("seed {seed}");
        let mut random = Rng::with_seed(seed);
        let (mut vnet, mut frame) = Shape::random(&mut random).frame(&mut random);
        for _ in 0..=random.usize(..4) {
            let at = random.usize(..frame.len().min(80));
            frame[at] = random.u64(..) as u8;
        }
        vnet.gso_size = random.u64(..) as u16;
        let head_bytes = random.usize(..frame.len() + 1);
        if let Ok(parsed) = SuperFrame::parse(&vnet, &frame[..head_bytes], frame.len()) {
            let mut packet = vec![0; parsed.header_bytes() + parsed.payload_range(0).len()];
            (0..parsed.segments()).for_each(|index| parsed.write_headers(index, &mut packet));
        }
        vnet.checksum_start = random.u64(..) as u16;
        let _ = complete_checksum(&vnet, &mut frame);
    }
}

#[test]
fn a_single_packet_gets_its_checksum() {
    for seed in 0..200 {
        println!("seed {seed}");
        let mut random = Rng::with_seed(seed);
        let shape = Shape { payload_bytes: random.usize(..1400), ..Shape::random(&mut random) };
        let (vnet, mut packet) = shape.frame(&mut random);
        complete_checksum(&VnetHeader { gso_type: 0, ..vnet }, &mut packet).unwrap();
        assert_valid(&packet);
        let done = packet.clone();
        complete_checksum(&VnetHeader { flags: 0, ..vnet }, &mut packet).unwrap();
        assert_eq!(done, packet);
    }
    let vnet = VnetHeader { flags: 1, checksum_start: 20, checksum_offset: 16, ..VnetHeader::default() };
    assert_eq!(complete_checksum(&vnet, &mut [0; 37]), Err(DropReason::BadHeader));
    assert_eq!(complete_checksum(&vnet, &mut [0; 10]), Err(DropReason::BadHeader));
    assert_eq!(complete_checksum(&vnet, &mut [0; 38]), Ok(()));
}

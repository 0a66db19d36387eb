use super::frames::{Shape, cut_by_oracle};
use crate::transmit::transmit;
use crate::vnet::{Gso, VNET_HEADER_BYTES, VnetHeader};
use fastrand::Rng;
use std::io::{self, IoSlice};
use testudo_packet::{Batch, Buffer, DropReason, Pool};

fn batch(host: u8, packets: usize) -> Vec<Vec<u8>> {
    let mut random = Rng::with_seed(u64::from(host));
    let shape = Shape {
        gso: Gso::TcpV4,
        is_v6: false,
        flags: 0x10,
        gso_size: 1000,
        payload_bytes: 1000 * packets,
        host,
        ..Shape::random(&mut random)
    };
    let (vnet, frame) = shape.frame(&mut random);
    cut_by_oracle(&vnet, &frame)
}

fn buffers(packets: &[Vec<u8>]) -> Batch {
    packets.iter().map(|p| Buffer::copied(p, 0, 0)).collect()
}

fn error(code: i32) -> io::Result<usize> {
    Err(io::Error::from_raw_os_error(code))
}

fn gso_type(slices: &[IoSlice<'_>]) -> u8 {
    VnetHeader::from_bytes(slices[0][..].first_chunk::<VNET_HEADER_BYTES>().unwrap()).gso_type
}

#[test]
fn packets_that_cannot_be_written_now_stay_in_the_batch() {
    let (first, second) = (batch(1, 20), batch(2, 20));
    let mut out = buffers(&[&first[..], &second[..]].concat());
    let (mut pool, mut writes) = (Pool::new(64, 2048), 0);
    let (sent, outcome) = transmit(&mut pool, &mut out, false, |_| {
        writes += 1;
        if writes == 1 { Ok(0) } else { error(libc::EAGAIN) }
    });
    outcome.unwrap();
    assert_eq!((sent.taken, sent.packets, sent.calls), (20, 20, 1));
    assert!(out.iter().zip(&second).all(|(buffer, packet)| buffer.bytes() == packet) && out.len() == 20);
}

#[test]
fn a_refused_super_frame_is_tried_packet_by_packet() {
    let packets = batch(1, 5);
    let mut out = buffers(&packets);
    let (mut pool, mut singles) = (Pool::new(64, 2048), Vec::new());
    let (sent, outcome) = transmit(&mut pool, &mut out, false, |slices| {
        if gso_type(slices) != 0 {
            return error(libc::EINVAL);
        }
        singles.push(slices[1].to_vec());
        if singles.len() == 3 { error(libc::EINVAL) } else { Ok(0) }
    });
    outcome.unwrap();
    assert_eq!((sent.taken, sent.packets, sent.calls), (5, 4, 4));
    assert!(singles == packets && out.is_empty());
    assert_eq!(pool.drops().get(DropReason::SendRefused), 1);
}

#[test]
fn each_refusal_has_its_reason() {
    let codes = [
        (libc::EIO, DropReason::SendRefused),
        (libc::EPERM, DropReason::SendRefused),
        (libc::EMSGSIZE, DropReason::MessageTooLong),
    ];
    for (code, reason) in codes {
        let mut pool = Pool::new(64, 2048);
        let (sent, outcome) = transmit(&mut pool, &mut buffers(&batch(1, 3)), false, |_| error(code));
        outcome.unwrap();
        assert_eq!((sent.taken, sent.packets), (3, 0));
        assert_eq!(pool.drops().get(reason), 3);
    }
}

#[test]
fn a_lost_device_is_an_error_and_keeps_the_packets() {
    let mut out = buffers(&batch(1, 3));
    assert!(transmit(&mut Pool::new(64, 2048), &mut out, false, |_| error(libc::EBADFD)).1.is_err());
    assert_eq!(out.len(), 3);
}

#[test]
fn packets_sent_before_the_device_was_lost_are_counted() {
    let mut out = buffers(&[batch(1, 20), batch(2, 20)].concat());
    let mut writes = 0;
    let (sent, outcome) = transmit(&mut Pool::new(64, 2048), &mut out, false, |_| {
        writes += 1;
        if writes == 1 { Ok(0) } else { error(libc::EBADFD) }
    });
    assert!(outcome.is_err());
    assert_eq!((sent.packets, sent.taken, out.len()), (20, 20, 20));
}

use super::frames::{Shape, cut_by_oracle, on_the_wire};
use crate::receive::{Received, Receiver};
use crate::split::complete_checksum;
use crate::vnet::VnetHeader;
use fastrand::Rng;
use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use testudo_packet::{Batch, DropReason, Pool};

/// A kernel with frames to read, which scatters each as readv(2) does.
struct Kernel(VecDeque<Vec<u8>>);

impl Kernel {
    fn read(&mut self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let frame = self.0.pop_front().ok_or(io::ErrorKind::WouldBlock)?;
        let mut rest = &frame[..];
        for slice in slices {
            let n = slice.len().min(rest.len());
            slice[..n].copy_from_slice(&rest[..n]);
            rest = &rest[n..];
        }
        assert!(rest.is_empty(), "{} bytes found no room", rest.len());
        Ok(frame.len())
    }
}

/// A frame, and the packets that it should become.
fn frame(random: &mut Rng, shape: &Shape, is_single: bool) -> (Vec<u8>, Vec<Vec<u8>>) {
    let (vnet, mut bytes) = shape.frame(random);
    if is_single {
        let vnet = VnetHeader { gso_type: 0, gso_size: 0, ..vnet };
        let wire = on_the_wire(&vnet, &bytes);
        complete_checksum(&vnet, &mut bytes).unwrap();
        return (wire, vec![bytes]);
    }
    (on_the_wire(&vnet, &bytes), cut_by_oracle(&vnet, &bytes))
}

fn receive(receiver: &mut Receiver, kernel: &mut Kernel, pool: &mut Pool, batch: &mut Batch) -> Received {
    let mut done = Received::default();
    receiver.receive(pool, batch, &mut done, |slices| kernel.read(slices)).unwrap();
    done
}

#[test]
fn frames_are_split_correctly_whatever_was_predicted() {
    for seed in 0..300 {
        println!("seed {seed}");
        let mut random = Rng::with_seed(seed);
        let mut expected = Vec::new();
        let mut kernel = Kernel(VecDeque::new());
        let mut shape = Shape::random(&mut random);
        for _ in 0..20 {
            if random.usize(..3) == 0 {
                shape = Shape::random(&mut random);
            }
            let is_single = random.usize(..3) == 0;
            let payload_bytes = if is_single { random.usize(..1900) } else { shape.payload_bytes };
            let (wire, packets) = frame(&mut random, &Shape { payload_bytes, ..shape.clone() }, is_single);
            kernel.0.push_back(wire);
            expected.extend(packets);
        }
        let mut pool = Pool::new(1 + random.usize(..100), 1200).with_long(64, 2048);
        let mut receiver = Receiver::new();
        let (mut received, mut batch) = (Vec::new(), Batch::new());
        let mut totals = Received::default();
        while received.len() < expected.len() {
            let done = receive(&mut receiver, &mut kernel, &mut pool, &mut batch);
            assert!(done.packets > 0, "stuck after {} of {} packets", received.len(), expected.len());
            assert_eq!(done.packets as usize, batch.len());
            totals.bytes += done.bytes;
            // Some packets stay in the batch each time: the next batch has less room.
            let taken = batch.len() - random.usize(..batch.len());
            for buffer in batch.drain(..taken) {
                received.push(buffer.bytes().to_vec());
                pool.recycle(buffer);
            }
            received.extend(batch.iter().map(|b| b.bytes().to_vec()));
            batch.drain(..).for_each(|b| pool.recycle(b));
        }
        assert!(received == expected);
        assert_eq!(totals.bytes, expected.iter().map(|p| p.len() as u64).sum::<u64>());
        assert_eq!((pool.drops().total(), pool.in_use()), (0, 0));
    }
}

#[test]
fn frames_of_one_shape_are_copied_once_only() {
    let mut random = Rng::with_seed(5);
    let shape = Shape { payload_bytes: 1400 * 45, gso_size: 1400, ..Shape::random(&mut random) };
    let mut receiver = Receiver::new();
    let mut pool = Pool::new(64, 2048);
    for _ in 0..50 {
        let (wire, expected) = frame(&mut random, &shape, false);
        let mut batch = Batch::new();
        let done = receive(&mut receiver, &mut Kernel([wire].into()), &mut pool, &mut batch);
        assert_eq!((done.packets, done.calls), (45, 1));
        assert!(batch.iter().zip(&expected).all(|(buffer, packet)| buffer.bytes() == packet));
        batch.drain(..).for_each(|buffer| pool.recycle(buffer));
    }
    assert_eq!(receiver.copied_frames(), 1);
}

#[test]
fn many_small_packets_fill_one_batch() {
    let mut random = Rng::with_seed(6);
    let shape = Shape { payload_bytes: 10, ..Shape::random(&mut random) };
    let mut kernel = Kernel((0..100).map(|_| frame(&mut random, &shape, true).0).collect());
    let (mut pool, mut batch) = (Pool::new(64, 2048), Batch::new());
    let done = receive(&mut Receiver::new(), &mut kernel, &mut pool, &mut batch);
    assert_eq!((done.packets, done.calls, kernel.0.len()), (64, 64, 36));
}

#[test]
fn without_a_buffer_nothing_is_read() {
    let mut random = Rng::with_seed(7);
    let shape = Shape { payload_bytes: 10, ..Shape::random(&mut random) };
    let mut kernel = Kernel([frame(&mut random, &shape, true).0].into());
    let done = receive(&mut Receiver::new(), &mut kernel, &mut Pool::new(0, 2048), &mut Batch::new());
    assert_eq!((done.packets, kernel.0.len()), (0, 1));
}

#[test]
fn each_bad_frame_has_its_reason() {
    let mut random = Rng::with_seed(8);
    let small = Shape { payload_bytes: 3000, gso_size: 1400, ..Shape::random(&mut random) };
    let (vnet, bytes) = small.frame(&mut random);
    let too_long = VnetHeader { gso_size: 2800, ..vnet };
    let unknown = VnetHeader { gso_type: 3, ..vnet };
    let outside = VnetHeader { gso_type: 0, checksum_start: 5000, ..vnet };
    let single = VnetHeader { gso_type: 0, ..vnet };
    let mut kernel = Kernel(
        [
            on_the_wire(&too_long, &bytes),
            on_the_wire(&unknown, &bytes),
            on_the_wire(&outside, &bytes[..900]),
            on_the_wire(&single, &bytes),
            on_the_wire(&vnet, &bytes[..900]),
            vec![1, 2, 3],
        ]
        .into(),
    );
    let (mut pool, mut batch) = (Pool::new(64, 2048), Batch::new());
    let done = receive(&mut Receiver::new(), &mut kernel, &mut pool, &mut batch);
    assert_eq!((done.packets, done.calls, batch.len()), (0, 0, 0));
    let drops: Vec<_> = pool.drops().iter().filter(|d| d.1 > 0).collect();
    let expected =
        [(DropReason::Truncated, 1), (DropReason::BadHeader, 3), (DropReason::ReceiveTruncated, 3)];
    assert_eq!(drops, expected);
    assert_eq!(pool.available(), 64);
}

#[test]
fn an_error_of_the_device_loses_no_buffer() {
    let mut pool = Pool::new(64, 2048);
    let gone = |_: &mut [IoSliceMut<'_>]| Err(io::Error::from_raw_os_error(libc::EBADFD));
    let mut done = Received::default();
    assert!(Receiver::new().receive(&mut pool, &mut Batch::new(), &mut done, gone).is_err());
    assert_eq!(pool.available(), 64);
}

#[test]
fn packets_read_before_the_device_was_lost_are_counted() {
    let mut random = Rng::with_seed(9);
    let shape = Shape { payload_bytes: 10, ..Shape::random(&mut random) };
    let (wire, packets) = frame(&mut random, &shape, true);
    let (mut pool, mut batch, mut done) = (Pool::new(64, 2048), Batch::new(), Received::default());
    let mut kernel = Kernel([wire].into());
    let outcome = Receiver::new().receive(&mut pool, &mut batch, &mut done, |slices| {
        if kernel.0.is_empty() {
            Err(io::Error::from_raw_os_error(libc::EBADFD))
        } else {
            kernel.read(slices)
        }
    });
    assert!(outcome.is_err());
    assert_eq!((done.packets, done.bytes, batch.len()), (1, packets[0].len() as u64, 1));
}

//! The whole port, over a device in memory.

use super::frames::{Shape, cut_by_oracle, on_the_wire};
use crate::{FrameDevice, Offloads, TunPort};
use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::sync::Mutex;
use testudo_packet::{Batch, Buffer, Pool, Port};

/// Delivers these frames, accepts this many, and is then gone.
struct Ending {
    frames: Mutex<VecDeque<Vec<u8>>>,
    takes: Mutex<usize>,
}

impl FrameDevice for Ending {
    fn read(&self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let frame =
            self.frames.lock().unwrap().pop_front().ok_or(io::Error::from_raw_os_error(libc::EBADFD))?;
        let mut rest = &frame[..];
        for slice in slices {
            let (now, later) = rest.split_at(slice.len().min(rest.len()));
            slice[..now.len()].copy_from_slice(now);
            rest = later;
        }
        Ok(frame.len())
    }

    fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut takes = self.takes.lock().unwrap();
        *takes = takes.checked_sub(1).ok_or(io::Error::from_raw_os_error(libc::EBADFD))?;
        Ok(slices.iter().map(|slice| slice.len()).sum())
    }

    fn offloads(&self) -> Offloads {
        Offloads { tcp: true, udp: true }
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

#[test]
fn packets_moved_before_a_device_was_gone_are_counted() {
    let mut random = fastrand::Rng::with_seed(3);
    let shape = Shape { gso_size: 1000, payload_bytes: 5000, ..Shape::random(&mut random) };
    let (vnet, frame) = shape.frame(&mut random);
    let packets = cut_by_oracle(&vnet, &frame);
    let frames = Mutex::new([on_the_wire(&vnet, &frame)].into());
    let mut port = TunPort::over("ending", Ending { frames, takes: Mutex::new(1) });
    let (mut pool, mut batch) = (Pool::new(200, 2048), Batch::new());
    port.rx(&mut pool, &mut batch).unwrap_err();
    assert!(batch.iter().map(|b| b.bytes()).eq(packets.iter().map(Vec::as_slice)), "what came is there");
    assert_eq!((port.counters().rx_packets, port.counters().rx_calls), (5, 1));

    // The first is sent; the device is gone at the second.
    let mut out: Batch = [[0x40; 40], [0x41; 40]].iter().map(|p| Buffer::copied(p, 0, 0)).collect();
    port.tx(&mut pool, &mut out).unwrap_err();
    assert_eq!((out.len(), port.counters().tx_packets, port.counters().tx_bytes), (1, 1, 40));
}

//! The AF_XDP device over rings of a kernel that writes what it likes.

use crate::input::Input;
use std::collections::HashSet;
use std::io;
use std::os::fd::BorrowedFd;
use testudo_link::FrameDevice;
use testudo_packet::{Batch, Buffer, Pool};
use testudo_port_xdp::{
    Descriptor, Interface, KernelStatistics, KernelTwin, QueueOptions, SocketCalls, XdpDevice,
};

const FRAMES: usize = 64;
const LONG: usize = 4;
const RING: u32 = 64;
/// The kernel's headroom, and ours on top.
const HEADROOM: u64 = 272;
const MTU: usize = 9000;

/// A socket whose calls do nothing.
struct Calls;

impl SocketCalls for Calls {
    fn wake_sender(&self) -> io::Result<()> {
        Ok(())
    }

    fn wake_receiver(&self) -> io::Result<()> {
        Ok(())
    }

    fn statistics(&self) -> io::Result<KernelStatistics> {
        Ok(KernelStatistics::default())
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Whatever is in the rings, no buffer is lost, none has two owners, and nothing is read beyond a frame.
pub fn xdp_rings(data: &[u8]) {
    let mut input = Input::new(data);
    let choice = input.byte();
    let mut pool = if choice & 1 == 0 { Pool::new(FRAMES, 1522) } else { Pool::for_devices(FRAMES, 1514) }
        .with_long(LONG, MTU + 22);
    let (rings, kernel) = KernelTwin::new(RING).expect("a power of two");
    let options = QueueOptions {
        queue: 0,
        receive_frames: 32,
        frame_bytes: MTU + 22,
        multi_buffer: choice & 2 == 0,
        complete_checksums: choice & 4 == 0,
        busy_poll: choice & 8 == 0,
    };
    let interface = Interface {
        name: "eth0".into(),
        index: 1,
        mac: testudo_wire::ethernet::MacAddress([2; 6]),
        mtu: MTU,
        driver: None,
        queues: Some(1),
    };
    let mut device = XdpDevice::played(&interface, &mut pool, vec![(rings, Calls, options)])
        .expect("rings are well at the start");
    let mut before = 0;
    let mut is_usable = true;
    while !input.is_empty() && is_usable {
        match input.byte() {
            0..48 => is_usable = receive(&mut device, &mut pool),
            48..80 => is_usable = transmit(&mut device, &mut pool, &mut input),
            kind => lie(kind, &kernel, &mut before, &mut input),
        }
    }
    device.close(&mut pool);
    assert_eq!(pool.available(), FRAMES, "frames");
    assert_eq!(pool.available_for(MTU), LONG, "long buffers");
    let all: Vec<Buffer> = std::iter::from_fn(|| pool.pop()).collect();
    let different: HashSet<_> = all.iter().map(Buffer::identity).collect();
    assert_eq!(all.len(), different.len(), "a buffer has two owners");
}

/// What the kernel does: most of it as it should, to get anywhere.
fn lie(kind: u8, kernel: &KernelTwin, before: &mut u64, input: &mut Input<'_>) {
    let address = |input: &mut Input<'_>| match input.byte() {
        choice @ 0..128 => u64::from(choice) * 2112 + HEADROOM,
        128..200 => u64::from(input.word()) << 4 | u64::from(input.byte()) << 48,
        _ => u64::MAX - u64::from(input.word()),
    };
    let options = u32::from(kind & 1);
    match kind {
        80..144 => {
            if let Some(frame) = kernel.free.pop() {
                // With the offset apart, as with frames that are not aligned, or added.
                *before = if kind & 2 == 0 { frame + HEADROOM } else { frame | HEADROOM << 48 };
                let bytes = u32::from(input.word() % 2200);
                kernel.received.push(Descriptor { address: *before, bytes, options });
            }
        }
        144..176 => {
            if let Some(descriptor) = kernel.to_send.pop() {
                *before = descriptor.address;
                kernel.sent.push(descriptor.address);
            }
        }
        176..200 => {
            let bytes = u32::from(input.word()) << (kind & 16);
            let address = address(input);
            kernel.received.push(Descriptor { address, bytes, options });
        }
        200..216 => kernel.sent.push(address(input)),
        216..228 => kernel.sent.push(*before),
        228..240 => kernel.received.push(Descriptor { address: *before, bytes: 64, options }),
        240..244 => {
            kernel.received.set_producer(kernel.received.consumer().wrapping_add(input.word().into()))
        }
        244..248 => kernel.sent.set_producer(kernel.sent.consumer().wrapping_add(input.word().into())),
        248..252 => kernel.free.set_consumer(kernel.free.producer().wrapping_sub(input.word().into())),
        _ => kernel.to_send.set_consumer(kernel.to_send.producer().wrapping_sub(input.word().into())),
    }
}

/// Whether the device can go on.
fn receive(device: &mut XdpDevice<Calls>, pool: &mut Pool) -> bool {
    let mut batch = Batch::new();
    let outcome = device.rx(pool, &mut batch);
    for mut buffer in batch.drain(..) {
        let mut segments = buffer.segments();
        assert!(segments.all(|part| part.headroom() + part.len() <= part.capacity()));
        assert!(buffer.chain_bytes() <= MTU + 22 && (device.takes_chains() || !buffer.is_chain()));
        // As the gateway does: the packet is changed in place.
        buffer.segments_mut().for_each(|bytes| bytes.fill(0xA5));
        pool.recycle(buffer);
    }
    outcome.is_ok()
}

fn transmit(device: &mut XdpDevice<Calls>, pool: &mut Pool, input: &mut Input<'_>) -> bool {
    let mut batch = Batch::new();
    for _ in 0..=input.byte() % 8 {
        let bytes = usize::from(input.word()) % (MTU + 40);
        if let Some(mut buffer) = pool.pop_for(bytes) {
            buffer.set_len(bytes);
            link_more(&mut buffer, bytes, pool);
            batch.push(buffer);
        }
    }
    let outcome = device.tx(pool, &mut batch);
    pool.recycle_all(&mut batch);
    outcome.is_ok()
}

/// Makes one packet in three a chain, of buffers that follow from its length.
fn link_more(packet: &mut Buffer, bytes: usize, pool: &mut Pool) {
    let more = if bytes.is_multiple_of(3) { bytes / 3 % 12 } else { 0 };
    for nth in 0..more {
        let Some(mut segment) = pool.pop() else { return };
        segment.set_len((bytes * (nth + 1)) % 1500);
        if let Err(segment) = packet.link(segment) {
            return pool.recycle(segment);
        }
    }
}

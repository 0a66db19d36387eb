//! The device of DPDK over a driver that says what it likes of its mbufs.

use crate::input::Input;
use std::collections::HashSet;
use testudo_link::FrameDevice;
use testudo_packet::{Batch, Buffer, Pool};
use testudo_port_dpdk::raw::{events, offers};
use testudo_port_dpdk::{DpdkConfig, DpdkDevice, DpdkTwin, Words};

const FRAMES: usize = 256;
const LONG: usize = 4;
const MTU: u16 = 9000;
/// Bytes from one mbuf to the next.
const STRIDE: usize = 256;

/// Whatever the driver says, no buffer is lost, none has two owners, and nothing is read beyond a frame.
pub fn dpdk_mbufs(data: &[u8]) {
    let mut input = Input::new(data);
    let choice = input.byte();
    let mut pool = Pool::for_devices(FRAMES, 1514).with_long(LONG, usize::from(MTU) + 22);
    let mut can = if choice & 1 == 0 { offers::SCATTER | offers::SEGMENTS } else { 0 };
    if choice & 4 != 0 {
        can |= offers::TCP_SEGMENTATION | offers::UDP_SEGMENTATION | offers::UDP_CHECKSUMS;
    }
    let (eal, driver) = DpdkTwin::start(can);
    let config = DpdkConfig {
        descriptors: 64,
        mtu: Some(MTU),
        complete_checksums: Some(choice & 2 == 0),
        udp_over_ipv6: choice & 4 != 0,
        segmentation: Some(choice & 4 != 0),
        ..DpdkConfig::of("played")
    };
    let mut device = DpdkDevice::open(&eal, &mut pool, &config).expect("it opens");
    let (mut before, mut is_usable) = (0, true);
    while !input.is_empty() && is_usable {
        match input.byte() {
            0..48 => is_usable = receive(&mut device, &mut pool),
            48..80 => is_usable = transmit(&mut device, &mut pool, &mut input),
            kind => lie(kind, &driver, &mut before, &mut input),
        }
    }
    driver.free_all();
    device.close(&mut pool);
    assert_eq!(pool.available(), FRAMES, "frames");
    assert_eq!(pool.available_for(usize::from(MTU)), LONG, "long buffers");
    let all: Vec<Buffer> = std::iter::from_fn(|| pool.pop()).collect();
    let different: HashSet<_> = all.iter().map(Buffer::identity).collect();
    assert_eq!(all.len(), different.len(), "a buffer has two owners");
}

/// What the driver does: most of it as it should, to get anywhere.
fn lie(kind: u8, driver: &DpdkTwin, before: &mut usize, input: &mut Input<'_>) {
    match kind {
        80..144 => {
            if let Some(address) = driver.take() {
                let segments = u16::from(kind & 3);
                let next = if segments == 2 { *before } else { 0 };
                let words = Words { segments, next, ..Words::of(input.word() % 2000) };
                driver.describe(address, words);
                driver.deliver(address);
                *before = address;
            }
        }
        144..176 => *before = driver.finish().unwrap_or(*before),
        176..192 => {
            let words = Words {
                data_off: input.word(),
                data_len: input.word(),
                segments: u16::from(input.byte()),
                next: before.wrapping_add(usize::from(input.byte()) * STRIDE),
                buf_addr: (kind & 1 == 0).then(|| usize::from(input.word())),
                // Some of them joined.
                flags: u64::from(input.word()) | u64::from(kind & 2) << 15,
                segment_bytes: u16::from(kind & 12) * 100,
            };
            driver.describe(*before, words);
        }
        192..208 => driver.deliver(*before),
        208..216 => driver.deliver(before.wrapping_add(usize::from(input.word()) * STRIDE)),
        216..224 => driver.deliver(usize::from(input.word()) << (kind & 7)),
        224..232 => driver.free(*before),
        232..240 => driver.free(before.wrapping_sub(usize::from(input.byte()) * STRIDE)),
        240..244 => driver.set_takes(Some(u16::from(input.byte()))),
        244..248 => driver.set_takes(None),
        248..252 => driver.set_says(u16::from(input.byte())),
        252 | 253 => driver.happen(events::RESET),
        254 => driver.happen(events::REMOVED),
        _ => driver.fail_to_start(),
    }
}

/// Whether the device can go on.
fn receive(device: &mut DpdkDevice, pool: &mut Pool) -> bool {
    let mut batch = Batch::new();
    let outcome = device.rx(pool, &mut batch);
    for mut buffer in batch.drain(..) {
        assert!(buffer.headroom() + buffer.len() <= buffer.capacity());
        // As the gateway does: the packet is changed in place.
        buffer.bytes_mut().fill(0xA5);
        pool.recycle(buffer);
    }
    outcome.is_ok()
}

fn transmit(device: &mut DpdkDevice, pool: &mut Pool, input: &mut Input<'_>) -> bool {
    let mut batch = Batch::new();
    for _ in 0..=input.byte() % 8 {
        let bytes = usize::from(input.word()) % (usize::from(MTU) + 40);
        if let Some(mut buffer) = pool.pop_for(bytes) {
            buffer.set_len(bytes);
            batch.push(buffer);
        }
    }
    let outcome = device.tx(pool, &mut batch);
    pool.recycle_all(&mut batch);
    outcome.is_ok()
}

//! The device over rings, whose kernel a test plays.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use testudo_link::FrameDevice;
use testudo_packet::{Batch, Buffer, DropReason, Pool};
use testudo_port_xdp::{
    Descriptor, Interface, KernelStatistics, KernelTwin, QueueOptions, SocketCalls, XdpDevice,
};
use testudo_wire::ethernet::MacAddress;

pub(crate) const FRAMES: usize = 64;
pub(crate) const RING: u32 = 64;
pub(crate) const LENT: u32 = 32;
/// What the kernel leaves free before a packet.
pub(crate) const HEADROOM: usize = 272;

/// Counts calls, and fails with an error if it is told to.
#[derive(Default, Clone)]
pub(crate) struct Calls {
    pub(crate) sends: Arc<AtomicU32>,
    pub(crate) receives: Arc<AtomicU32>,
    pub(crate) fail: Arc<AtomicI32>,
}

impl Calls {
    fn outcome(&self) -> io::Result<()> {
        match self.fail.load(Ordering::Relaxed) {
            0 => Ok(()),
            code => Err(io::Error::from_raw_os_error(code)),
        }
    }
}

impl SocketCalls for Calls {
    fn wake_sender(&self) -> io::Result<()> {
        self.sends.fetch_add(1, Ordering::Relaxed);
        self.outcome()
    }

    fn wake_receiver(&self) -> io::Result<()> {
        self.receives.fetch_add(1, Ordering::Relaxed);
        self.outcome()
    }

    fn statistics(&self) -> io::Result<KernelStatistics> {
        Ok(KernelStatistics { rx_dropped: 7, ..KernelStatistics::default() })
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

pub(crate) struct Played {
    pub(crate) device: XdpDevice<Calls>,
    pub(crate) pool: Pool,
    pub(crate) kernel: KernelTwin,
    pub(crate) calls: Calls,
    pub(crate) chunk: u64,
}

pub(crate) fn interface(mtu: usize) -> Interface {
    Interface {
        name: "eth0".into(),
        index: 1,
        mac: MacAddress([2, 0, 0, 0, 0, 1]),
        mtu,
        driver: None,
        queues: None,
    }
}

pub(crate) fn options() -> QueueOptions {
    QueueOptions {
        queue: 0,
        receive_frames: LENT,
        frame_bytes: 1522,
        multi_buffer: false,
        complete_checksums: false,
        busy_poll: false,
    }
}

pub(crate) fn played_with(mut pool: Pool, options: QueueOptions, mtu: usize) -> Played {
    let (rings, kernel) = KernelTwin::new(RING).unwrap();
    let calls = Calls::default();
    let queues = vec![(rings, calls.clone(), options)];
    let device = XdpDevice::played(&interface(mtu), &mut pool, queues).unwrap();
    let chunk = pool.region().frame_bytes() as u64;
    Played { device, pool, kernel, calls, chunk }
}

pub(crate) fn played() -> Played {
    played_with(Pool::new(FRAMES, 1522).with_long(4, 9100), options(), 1500)
}

/// Frames may be in several buffers, and have up to 9,022 bytes.
pub(crate) fn jumbo() -> QueueOptions {
    QueueOptions { multi_buffer: true, frame_bytes: 9022, ..options() }
}

/// A byte of a frame that no packet has been in.
pub(crate) fn pattern(frame: usize, at: usize) -> u8 {
    (frame * 31 + at * 7 + at / 256) as u8
}

/// A pool whose frames have the pattern.
pub(crate) fn patterned() -> Pool {
    let mut pool = Pool::new(FRAMES, 1522).with_long(1, 9100);
    let mut all: Vec<Buffer> = std::iter::from_fn(|| pool.pop()).collect();
    for buffer in &mut all {
        let frame = pool.region().index_of(buffer).unwrap();
        buffer.reset(0);
        buffer.receive_area().iter_mut().enumerate().for_each(|(at, byte)| *byte = pattern(frame, at));
    }
    all.into_iter().for_each(|buffer| pool.recycle(buffer));
    pool
}

pub(crate) fn bytes_of(packet: &Buffer) -> Vec<u8> {
    packet.segments().flat_map(|segment| segment.bytes().to_vec()).collect()
}

pub(crate) fn received(address: u64, bytes: usize) -> Descriptor {
    Descriptor { address, bytes: bytes as u32, options: 0 }
}

impl Played {
    pub(crate) fn rx(&mut self) -> Vec<usize> {
        let mut batch = Batch::new();
        self.device.rx(&mut self.pool, &mut batch).unwrap();
        batch
            .drain(..)
            .map(|buffer| {
                let bytes = buffer.chain_bytes();
                self.pool.recycle(buffer);
                bytes
            })
            .collect()
    }

    /// Has the kernel hand over a frame in parts of these lengths, of which more may follow: what is in them.
    pub(crate) fn arrive(&mut self, lengths: &[usize], unfinished: bool) -> Vec<u8> {
        let (mut bytes, chunk) = (Vec::new(), self.chunk);
        for (nth, &length) in lengths.iter().enumerate() {
            let frame = self.kernel.free.pop().unwrap();
            let more = nth + 1 < lengths.len() || unfinished;
            let options = if more { Descriptor::MORE } else { 0 };
            let address = frame + HEADROOM as u64;
            self.kernel.received.push(Descriptor { address, bytes: length as u32, options });
            bytes.extend((HEADROOM..HEADROOM + length).map(|at| pattern((frame / chunk) as usize, at)));
        }
        bytes
    }

    /// The next frame, and no other.
    pub(crate) fn frame(&mut self) -> Buffer {
        let mut batch = Batch::new();
        assert_eq!(self.device.rx(&mut self.pool, &mut batch).unwrap(), 1);
        batch.remove(0)
    }

    /// A packet in buffers of the pool that have these lengths.
    pub(crate) fn chain(&mut self, lengths: &[usize]) -> Buffer {
        let mut segments = lengths.iter().map(|&bytes| {
            let mut segment = self.pool.pop().unwrap();
            segment.set_len(bytes);
            segment
        });
        let mut chain = segments.next().unwrap();
        segments.for_each(|segment| chain.link(segment).unwrap());
        chain
    }

    /// Whether all frames are free, or lent to be received into.
    pub(crate) fn has_all_frames(&self) -> bool {
        let lent = self.device.statistics()[0];
        lent.sending == 0 && self.pool.available() + lent.receiving as usize == FRAMES
    }

    pub(crate) fn drops(&self) -> Vec<(DropReason, u64)> {
        self.pool.drops().iter().filter(|(_, count)| *count > 0).collect()
    }

    pub(crate) fn batch(&mut self, lengths: &[usize]) -> Batch {
        lengths
            .iter()
            .map(|&bytes| {
                let mut buffer = self.pool.pop_for(bytes).unwrap();
                buffer.receive_area()[..bytes].fill(bytes as u8);
                buffer.set_len(bytes);
                buffer
            })
            .collect()
    }
}

//! Ports at full rate: numbered packets, and a wire in memory.

use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use testudo_packet::{Batch, Pool, Port, PortCounters, PortError};

/// The networks of the recording: A's address that B gave it, and an address behind B.
const INNER: [[u8; 4]; 2] = [[10, 3, 0, 5], [10, 2, 0, 1]];
/// Where the number is: behind the headers of IPv4 and UDP.
const NUMBER_AT: usize = 28;

/// Writes packet `number` of a host to the other.
pub fn packet(host: usize, number: u64, bytes: &mut [u8]) {
    let length = u16::try_from(bytes.len()).expect("an IP packet");
    bytes.fill(0);
    bytes[..10].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17]);
    bytes[2..4].copy_from_slice(&length.to_be_bytes());
    bytes[12..16].copy_from_slice(&INNER[host]);
    bytes[16..20].copy_from_slice(&INNER[1 - host]);
    let sum = testudo_wire::checksum::of(&bytes[..20]).to_bytes();
    bytes[10..12].copy_from_slice(&sum);
    bytes[20..24].copy_from_slice(&[0x13, 0x88, 0x13, 0x88]);
    bytes[24..26].copy_from_slice(&(length - 20).to_be_bytes());
    bytes[NUMBER_AT..NUMBER_AT + 8].copy_from_slice(&number.to_be_bytes());
}

/// Readable and writable at any time, so that a worker never waits for its port.
fn always_ready() -> OwnedFd {
    eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd")
}

/// What has gone through a [`Numbered`] port.
#[derive(Debug, Default)]
pub struct Fate {
    pub stop: AtomicBool,
    pub sent: AtomicU64,
    pub arrived: AtomicU64,
    /// Numbers that came before a lower one.
    pub skipped: AtomicU64,
    /// Numbers that came after a higher one.
    pub late: AtomicU64,
}

/// Gives numbered packets without end, and looks at the numbers of those that it takes.
pub struct Numbered {
    host: usize,
    template: Vec<u8>,
    next: u64,
    expected: u64,
    fate: Arc<Fate>,
    ready: OwnedFd,
    counters: PortCounters,
}

impl Numbered {
    /// Packets of a host, of so many bytes.
    pub fn new(host: usize, bytes: usize) -> (Self, Arc<Fate>) {
        let mut template = vec![0; bytes];
        packet(host, 0, &mut template);
        let fate = Arc::<Fate>::default();
        let (ready, counters) = (always_ready(), PortCounters::default());
        (Self { host, template, next: 0, expected: 0, fate: Arc::clone(&fate), ready, counters }, fate)
    }

    fn note(&mut self, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.template.len(), "a packet of another length at {}", self.host);
        let number = bytes[NUMBER_AT..].first_chunk().map_or(0, |number| u64::from_be_bytes(*number));
        if number >= self.expected {
            self.fate.skipped.fetch_add(number - self.expected, Ordering::Relaxed);
            self.expected = number + 1;
        } else {
            self.fate.late.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Port for Numbered {
    fn name(&self) -> &str {
        "numbered"
    }

    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let before = batch.len();
        if !self.fate.stop.load(Ordering::Relaxed) {
            pool.pop_many(batch.remaining_capacity().min(pool.available()).min(32), batch);
        }
        let length = self.template.len();
        for buffer in &mut batch[before..] {
            let area = &mut buffer.receive_area()[..length];
            area.copy_from_slice(&self.template);
            area[NUMBER_AT..NUMBER_AT + 8].copy_from_slice(&self.next.to_be_bytes());
            buffer.set_len(length);
            self.next += 1;
        }
        let received = batch.len() - before;
        self.fate.sent.store(self.next, Ordering::Relaxed);
        self.counters.rx_packets += received as u64;
        Ok(received)
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let taken = batch.len();
        batch.iter().for_each(|buffer| self.note(buffer.bytes()));
        pool.recycle_all(batch);
        self.fate.arrived.fetch_add(taken as u64, Ordering::Relaxed);
        self.counters.tx_packets += taken as u64;
        Ok(taken)
    }

    fn readiness(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.ready.as_fd()]
    }

    fn joins(&self) -> bool {
        false
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}

/// Packets of one way that are under way, and storage for later ones.
struct Lane {
    packets: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
}

/// One end of a wire. Packets are copied without the lock.
pub struct Wire {
    out: Arc<Mutex<Lane>>,
    back: Arc<Mutex<Lane>>,
    /// Storage for what is sent next, and of what came last.
    sending: Vec<Vec<u8>>,
    received: Vec<Vec<u8>>,
    ready: OwnedFd,
    counters: PortCounters,
}

impl Wire {
    /// Both ends of a wire with room for so many packets each way.
    pub fn pair(packets: usize) -> [Self; 2] {
        let lane = || {
            let spare = (0..packets).map(|_| Vec::with_capacity(2048)).collect();
            Arc::new(Mutex::new(Lane { packets: VecDeque::with_capacity(packets), spare }))
        };
        let lanes = [lane(), lane()];
        [0, 1].map(|end| Self {
            out: Arc::clone(&lanes[end]),
            back: Arc::clone(&lanes[1 - end]),
            sending: Vec::new(),
            received: Vec::new(),
            ready: always_ready(),
            counters: PortCounters::default(),
        })
    }
}

impl Port for Wire {
    fn name(&self) -> &str {
        "wire"
    }

    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let before = batch.len();
        {
            let lane = &mut *self.back.lock().unwrap();
            lane.spare.append(&mut self.received);
            pool.pop_many(lane.packets.len().min(batch.remaining_capacity()).min(pool.available()), batch);
            self.received.extend(lane.packets.drain(..batch.len() - before));
        }
        for (buffer, packet) in batch[before..].iter_mut().zip(&self.received) {
            buffer.receive_area()[..packet.len()].copy_from_slice(packet);
            buffer.set_len(packet.len());
        }
        let received = batch.len() - before;
        if received == 0 {
            // The other end may have the same core.
            std::thread::yield_now();
        }
        self.counters.rx_packets += received as u64;
        Ok(received)
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let taken = {
            let lane = &mut *self.out.lock().unwrap();
            let taken = batch.len().min(lane.spare.len());
            self.sending.extend(lane.spare.drain(lane.spare.len() - taken..));
            taken
        };
        for (buffer, packet) in batch.drain(..taken).zip(&mut self.sending) {
            packet.clear();
            packet.extend_from_slice(buffer.bytes());
            pool.recycle(buffer);
        }
        self.out.lock().unwrap().packets.extend(self.sending.drain(..));
        self.counters.tx_packets += taken as u64;
        Ok(taken)
    }

    fn readiness(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.ready.as_fd()]
    }

    fn joins(&self) -> bool {
        false
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}

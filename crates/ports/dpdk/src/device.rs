//! The device: queues of one port of DPDK, as one source and sink of whole Ethernet frames.

use crate::cutting::Backlog;
use crate::eal;
use crate::mbufs::Mbufs;
use crate::open::Chosen;
use crate::plugin::{Errno, Plugin};
use crate::raw::{Config, events};
use crate::security::Security;
use crate::statistics::{DeviceStatistics, HardwareStatistics, QueueStatistics};
use crate::ticker::Ticker;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use testudo_link::FrameDevice;
use testudo_packet::{Batch, Buffer, Pool, PortCounters, PortError};
use testudo_wire::ethernet::MacAddress;

/// Queues of one device of DPDK's. Frames come from all of them in turn, and leave by the first: so their
/// order is kept.
#[derive(Debug)]
pub struct DpdkDevice {
    pub(crate) name: String,
    pub(crate) mac: MacAddress,
    pub(crate) mtu: usize,
    pub(crate) plugin: Plugin,
    pub(crate) port: u16,
    /// The queue that is asked first, next time.
    pub(crate) next: u16,
    pub(crate) counters: PortCounters,
    /// The longest frame that can be sent, in bytes.
    pub(crate) longest_frame: usize,
    /// Bytes of a packet that one mbuf has room for, where it is copied.
    pub(crate) part_bytes: usize,
    pub(crate) completes_checksums: bool,
    /// Whether checksums that UDP over IPv6 lacks are left to the device.
    pub(crate) leaves_udp_checksums: bool,
    /// Whether segments of a flow leave as a super-frame.
    pub(crate) joins: bool,
    /// What came with and after a super-frame.
    pub(crate) backlog: Backlog,
    pub(crate) ticker: Ticker,
    /// Addresses of the memory that the device shares: the pool's.
    pub(crate) memory: Range<usize>,
    pub(crate) events: Option<&'static AtomicU32>,
    pub(crate) chosen: Chosen,
    pub(crate) statistics: DeviceStatistics,
    /// Packets of each queue.
    pub(crate) received: Vec<u64>,
    /// What the device was started with.
    pub(crate) started: Config,
    /// Cryptography in the device, or why there is none.
    pub(crate) security: Result<Security, String>,
    /// There until the device is closed.
    pub(crate) mbufs: Mbufs,
}

// SAFETY: the configuration has the address of the mempool, which goes with the device; all else is `Send`.
unsafe impl Send for DpdkDevice {}

impl DpdkDevice {
    /// What was chosen of what the device can do.
    #[must_use]
    pub fn chosen(&self) -> &Chosen {
        &self.chosen
    }

    /// What happened so far.
    #[must_use]
    pub fn statistics(&self) -> DeviceStatistics {
        let its = self.plugin.device_statistics(self.port).unwrap_or_default();
        let hardware = HardwareStatistics {
            rx_packets: its.rx_packets,
            rx_missed: its.rx_missed,
            rx_errors: its.rx_errors,
            rx_no_mbuf: its.rx_no_mbuf,
            tx_packets: its.tx_packets,
            tx_errors: its.tx_errors,
            link_up: its.link_up != 0,
            link_mbps: its.link_mbps,
        };
        let queues = (0..).zip(&self.received);
        let queues = queues.map(|(queue, &rx_packets)| QueueStatistics { queue, rx_packets }).collect();
        let (misplaced_verdicts, failed_session_ends) =
            self.security.as_ref().map_or((0, 0), |security| (security.misplaced, security.failed_ends()));
        DeviceStatistics {
            hardware,
            queues,
            refused_mbufs: self.mbufs.refused(),
            misplaced_verdicts,
            failed_session_ends,
            ..self.statistics.clone()
        }
    }

    /// Closes the device, and gives its buffers back to the pool. One that is dropped instead gives their
    /// frames back to the region, where the pool does not look for them.
    pub fn close(mut self, pool: &mut Pool) {
        self.drain(pool);
        self.backlog.end(pool);
        let lost = self.end(&mut |buffer| pool.recycle(buffer));
        pool.forget(lost);
    }

    /// Receives what is there and drops it: a ring keeps mbufs otherwise.
    fn drain(&mut self, pool: &mut Pool) {
        for _ in 0..self.mbufs.count() {
            let mut batch = Batch::new();
            let came = self.receive_all(pool, &mut batch);
            batch.drain(..).for_each(|buffer| pool.discard(buffer, testudo_packet::DropReason::ShuttingDown));
            if !matches!(came, Ok(1..)) {
                break;
            }
        }
    }

    fn end(&mut self, free: &mut dyn FnMut(Buffer)) -> usize {
        if self.security.is_ok() {
            // One that does not stop is closed in any case.
            let _running = self.plugin.device_stop(self.port);
            self.end_sessions();
        }
        // Mbufs that a driver does not give back then are written off.
        self.plugin.device_close(self.port);
        self.close_security();
        self.mbufs.end(free)
    }

    fn receive_all(&mut self, pool: &mut Pool, batch: &mut Batch) -> io::Result<usize> {
        let before = batch.len();
        let count = self.started.rx_queues;
        for nth in 0..count {
            let queue = (self.next + nth) % count;
            let had = batch.len();
            self.receive(queue, pool, batch)?;
            self.received[usize::from(queue)] += u64::try_from(batch.len() - had).unwrap_or(0);
        }
        self.next = (self.next + 1) % count;
        Ok(batch.len() - before)
    }

    /// Sees to what happened to the device: it was taken away, or asks to be reset.
    #[cold]
    fn heed(&mut self, what: u32) -> io::Result<()> {
        if what & events::REMOVED != 0 {
            return Err(io::Error::other("the device was taken away"));
        }
        let words = |errno: Errno| io::Error::other(format!("it asks to be reset, and cannot be: {errno}"));
        self.plugin.device_stop(self.port).map_err(words)?;
        self.end_sessions();
        self.plugin.device_reset(self.port).map_err(words)?;
        let mut its = self.started;
        // SAFETY: the mempool is there until the device is closed, and its mbufs point to room.
        unsafe { self.plugin.device_start(self.port, &mut its) }.map_err(words)?;
        self.renew_security().map_err(words)?;
        self.statistics.resets += 1;
        Ok(())
    }

    fn look_at_events(&mut self) -> io::Result<()> {
        match self.events.map_or(0, |word| word.load(Ordering::Acquire)) {
            0 => Ok(()),
            // Cleared first, so that none is missed.
            _ => self.events.map_or(Ok(()), |word| self.heed(word.swap(0, Ordering::AcqRel))),
        }
    }

    /// Frames of another pool have other addresses.
    fn enter(&self, pool: &Pool) -> Result<(), PortError> {
        if pool.region().extent().0.addr() != self.memory.start {
            let other = io::Error::other("it is not the one that the device was opened with");
            return Err(self.error("use a pool", other));
        }
        eal::enter_thread(self.plugin).map_err(|source| self.error("make a thread known to DPDK", source))
    }

    fn error(&self, what: &str, source: io::Error) -> PortError {
        PortError { port: self.name.clone(), what: what.to_owned(), source: Some(source) }
    }
}

/// A device that was closed has no mbufs any more.
impl Drop for DpdkDevice {
    fn drop(&mut self) {
        if !self.mbufs.has_ended() {
            self.end(&mut drop);
        }
    }
}

/// Frames come from all queues in turn. The MTU is that of the device when it was opened. The buffer of a
/// frame that was sent is free at once: another one has come in its stead.
impl FrameDevice for DpdkDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn mac(&self) -> MacAddress {
        self.mac
    }

    fn mtu(&self) -> usize {
        self.mtu
    }

    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        self.enter(pool)?;
        self.look_at_events().map_err(|source| self.error("go on", source))?;
        let before = batch.len();
        let came = self.receive_all(pool, batch);
        self.look_after_sessions(&mut batch[before..]);
        let frames = &batch[before..];
        self.counters.rx_packets += u64::try_from(frames.len()).unwrap_or(0);
        self.counters.rx_bytes += frames.iter().map(|frame| frame.len() as u64).sum::<u64>();
        self.counters.rx_calls += u64::from(!frames.is_empty());
        if frames.is_empty() && batch.len() < batch.capacity() {
            self.ticker.rest();
        }
        came.map_err(|source| self.error("receive", source))
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        self.enter(pool)?;
        let sent = match self.transmit(pool, batch) {
            Ok(sent) => sent,
            Err(source) => return Err(self.error("send", source)),
        };
        self.counters.tx_packets += sent.packets;
        self.counters.tx_bytes += sent.bytes;
        self.counters.tx_calls += u64::from(sent.packets > 0);
        Ok(sent.taken)
    }

    fn readiness(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.ticker.descriptor()]
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}

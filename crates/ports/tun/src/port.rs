//! The port: one queue of a TUN interface.

use crate::configure::{self, Prefix, Route};
use crate::device::{Device, FrameDevice, Offloads};
use crate::error::{ConfigureError, OpenError};
use crate::receive::{Received, Receiver};
use crate::transmit::transmit;
use std::io;
use std::os::fd::BorrowedFd;
use testudo_packet::{Batch, Pool, Port, PortCounters, PortError};

/// What kind of TUN interface to open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TunConfig {
    /// Name of the interface, at most 15 bytes.
    pub name: String,
    /// Whether several ports may be opened under the same name, each with its own queue for its own worker.
    /// All of them must set this.
    pub multi_queue: bool,
}

impl TunConfig {
    /// An interface with one queue.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), multi_queue: false }
    }
}

/// One queue of a TUN interface. The interface disappears with its last queue.
pub struct TunPort<D = Device> {
    name: String,
    device: D,
    receiver: Receiver,
    counters: PortCounters,
}

impl TunPort {
    /// Creates the interface, down and without addresses: see [`configure`](Self::configure).
    ///
    /// # Errors
    /// [`OpenError`] says what is missing: the driver, the permission, the name.
    pub fn open(config: &TunConfig) -> Result<Self, OpenError> {
        Device::open(&config.name, config.multi_queue).map(|device| Self::over(&config.name, device))
    }

    /// A port that sends on the same queue and receives nothing, for a worker that takes no packets of the
    /// host. The interface is there until this one is closed, too.
    ///
    /// # Errors
    /// The system has no file descriptor left.
    pub fn writer(&self) -> Result<Self, OpenError> {
        let device = self.device.writer();
        let failed = |source| OpenError::Io { action: format!("duplicate a queue of {}", self.name), source };
        Ok(Self::over(&self.name, device.map_err(failed)?))
    }

    /// Sets MTU (bytes) and addresses, brings the interface up, and routes `routes` into it.
    ///
    /// # Errors
    /// [`ConfigureError`] names the first step that the kernel refused; earlier steps stay done.
    pub fn configure(&self, addresses: &[Prefix], mtu: u32, routes: &[Route]) -> Result<(), ConfigureError> {
        configure::apply(&self.name, addresses, mtu, routes)
    }
}

impl<D: FrameDevice> TunPort<D> {
    /// A port over a device that is already open.
    #[must_use]
    pub fn over(name: &str, device: D) -> Self {
        let counters = PortCounters::default();
        Self { name: name.to_owned(), device, receiver: Receiver::new(), counters }
    }

    /// The offloads that the kernel agreed to.
    #[must_use]
    pub fn offloads(&self) -> Offloads {
        self.device.offloads()
    }

    /// Super-frames that cost a copy, because their shape differed from the one before.
    #[must_use]
    pub fn copied_frames(&self) -> u64 {
        self.receiver.copied_frames()
    }

    fn error(&self, what: &str, source: io::Error) -> PortError {
        PortError { port: self.name.clone(), what: what.to_owned(), source: Some(source) }
    }
}

impl<D: FrameDevice> Port for TunPort<D> {
    fn name(&self) -> &str {
        &self.name
    }

    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let device = &self.device;
        let before = batch.len();
        let read = |slices: &mut [io::IoSliceMut<'_>]| device.read(slices);
        let mut received = Received::default();
        let outcome = self.receiver.receive(pool, batch, &mut received, read);
        self.counters.rx_packets += received.packets;
        self.counters.rx_bytes += received.bytes;
        self.counters.rx_calls += received.calls;
        outcome.map_err(|e| self.error("receive", e))?;
        Ok(batch.len() - before)
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let device = &self.device;
        let write = |slices: &[io::IoSlice<'_>]| device.write(slices);
        let (sent, outcome) = transmit(pool, batch, device.offloads().udp, write);
        self.counters.tx_packets += sent.packets;
        self.counters.tx_bytes += sent.bytes;
        self.counters.tx_calls += sent.calls;
        outcome.map_err(|e| self.error("send", e))?;
        Ok(sent.taken)
    }

    fn readiness(&self) -> Vec<BorrowedFd<'_>> {
        self.device.readiness().into_iter().collect()
    }

    /// Segments of one flow are joined into a super-frame.
    fn joins(&self) -> bool {
        true
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}

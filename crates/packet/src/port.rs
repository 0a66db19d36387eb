//! Where batches come from and go to.

use crate::{Batch, Interface, Pool};
use std::os::fd::BorrowedFd;

/// A port failed as a whole, for good: its device is gone or was misused. The loss of single packets is not
/// an error but a drop.
#[derive(Debug, thiserror::Error)]
#[error("port {port}: {what}")]
pub struct PortError {
    /// Name of the port.
    pub port: String,
    /// What it was doing.
    pub what: String,
    /// The system's error.
    #[source]
    pub source: Option<std::io::Error>,
}

/// What went through a port since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Packets handed to the gateway.
    pub rx_packets: u64,
    /// Their IP bytes.
    pub rx_bytes: u64,
    /// Packets that left.
    pub tx_packets: u64,
    /// Their IP bytes.
    pub tx_bytes: u64,
    /// System calls or device operations that received at least one packet: packets per call show how well
    /// offloads work.
    pub rx_calls: u64,
    /// The same for sending.
    pub tx_calls: u64,
}

/// A source and sink of batches of whole IP datagrams (no link-layer header, no offload left undone:
/// checksums are complete, super-frames are split on receipt, and may be rebuilt on transmission).
///
/// A port belongs to one worker. It never waits: the worker waits on [`readiness`](Self::readiness).
pub trait Port: Send {
    /// Name for people: `tun0`, `udp 192.0.2.1:4500`, `in.pcap`.
    fn name(&self) -> &str;

    /// Adds the packets that are there to `batch`, as many as fit, and returns how many; 0 when there are
    /// none now. Buffers come from `pool`; if it is empty, packets stay where they are.
    ///
    /// # Errors
    /// [`PortError`] if the device is unusable from now on; packets already added to `batch` stay there.
    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError>;

    /// Sends packets of `batch` and returns how many left it; the rest stays in `batch`, for later. The
    /// packets of one flow never change their order. Buffers that left go to `pool`: recycled when sent,
    /// discarded with a reason when the system refused that one packet.
    ///
    /// A port that joins packets into one call may keep the last of them when the batch is full, since more
    /// will follow; from a batch that is not full, it sends all that can be sent. It returns 0 only if
    /// nothing can be sent now.
    ///
    /// # Errors
    /// [`PortError`] if the device is unusable from now on; packets sent before have left `batch` all the
    /// same.
    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError>;

    /// File descriptors that become readable when [`rx`](Self::rx) has work and writable when
    /// [`tx`](Self::tx) can continue. Empty for ports that are always ready.
    fn readiness(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// File descriptors that become writable when [`tx`](Self::tx) can continue, where these are others.
    fn readiness_to_send(&self) -> Vec<BorrowedFd<'_>> {
        self.readiness()
    }

    /// Whether the port joins packets of a flow into fewer, longer transmissions (segmentation offload): it
    /// is then given whole batches. Other ports are given packets as soon as those of a burst are ready, so
    /// that buffers come back while they are in the cache.
    fn joins(&self) -> bool;

    /// Whether the port fragments datagrams of UDP that its link does not carry, as the kernel's UDP sockets
    /// do: over IPv4 those without DF, over IPv6 those with a fragment header around the whole (RFC 6946),
    /// and those longer than the paths' MTU that it was configured with. It is then given whole datagrams of
    /// UDP. Other ports, and datagrams of other protocols, get fragments.
    fn fragments_udp(&self) -> bool {
        false
    }

    /// Whether packets that are [marked](crate::Mark) to be sealed are sealed on their way out. Such a packet
    /// is given to no other port. Where its session has gone, `tx` does not send it: it stays the caller's,
    /// like all that follow it, until somebody else has sealed it.
    fn seals_marked(&self) -> bool {
        false
    }

    /// Whether [`rx`](Self::rx) may give packets in chains of buffers, and [`tx`](Self::tx) sends such
    /// packets without merging them. Other ports are given none.
    fn takes_chains(&self) -> bool {
        false
    }

    /// How many interfaces packets come from and leave by. With more than one, the packets of a call of
    /// [`rx`](Self::rx) are of one interface, and each says [which](crate::Buffer::interface);
    /// [`tx`](Self::tx) sends each packet by its own.
    fn interfaces(&self) -> usize {
        1
    }

    /// The name of one of them, and what went through it; `None` if there is none of this number.
    fn interface(&self, interface: Interface) -> Option<(&str, PortCounters)> {
        (interface == Interface::MAIN).then(|| (self.name(), self.counters()))
    }

    /// Whether `rx` will never give a packet again: the end of a file.
    fn exhausted(&self) -> bool {
        false
    }

    /// Flushes what was sent, when no more will come: the end of a file.
    ///
    /// # Errors
    /// [`PortError`] if that fails, for example because the disk is full.
    fn finish(&mut self) -> Result<(), PortError> {
        Ok(())
    }

    /// Gives `pool` the buffers that the port has: what waits in it to be sent is dropped, as
    /// [`DropReason::ShuttingDown`](crate::DropReason::ShuttingDown). It neither receives nor sends after.
    fn end(&mut self, pool: &mut Pool) {
        // Most have none between two calls.
        let _ = pool;
    }

    /// What went through so far.
    fn counters(&self) -> PortCounters;
}

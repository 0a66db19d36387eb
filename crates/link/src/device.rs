//! What the link layer stands on: a device that exchanges frames.

use std::os::fd::BorrowedFd;
use testudo_packet::{Batch, Pool, PortCounters, PortError};
use testudo_wire::ethernet::MacAddress;

/// A source and sink of batches of whole Ethernet frames, without preamble and frame check sequence: the
/// twin of [`Port`](testudo_packet::Port) one layer below. Checksums of what the frames carry are complete.
///
/// A device belongs to one worker and never waits.
pub trait FrameDevice: Send {
    /// Name for people: `eth0`.
    fn name(&self) -> &str;

    /// Its own link-layer address, which does not change.
    fn mac(&self) -> MacAddress;

    /// The longest IP packet that a frame carries, in bytes, whatever tags the frame has.
    fn mtu(&self) -> usize;

    /// Adds the frames that are there to `batch`, as many as fit, and returns how many; 0 when there are none
    /// now. Buffers come from `pool`, with its headroom before the frame.
    ///
    /// # Errors
    /// [`PortError`] if the device is unusable from now on; frames already added to `batch` stay there.
    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError>;

    /// Sends a prefix of `batch` and returns how many frames left it; the rest stays in `batch`, in order.
    /// Buffers that left go to `pool`: recycled when sent, discarded with a reason when that one frame was
    /// refused. The device pads frames that are shorter than its link allows. It returns 0 only if nothing
    /// can be sent now.
    ///
    /// # Errors
    /// [`PortError`] if the device is unusable from now on; frames sent before have left `batch` all the
    /// same.
    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError>;

    /// File descriptors that become readable when [`rx`](Self::rx) has work and writable when
    /// [`tx`](Self::tx) can continue.
    fn readiness(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// Whether packets that are [marked](testudo_packet::Mark) to be sealed are sealed on their way out, as
    /// [`Port::seals_marked`](testudo_packet::Port::seals_marked) says.
    fn seals_marked(&self) -> bool {
        false
    }

    /// Whether frames may come in chains of buffers, and are sent so without being merged, as
    /// [`Port::takes_chains`](testudo_packet::Port::takes_chains) says.
    fn takes_chains(&self) -> bool {
        false
    }

    /// Gives `pool` the buffers that the device has, once what it was given has been sent. It neither
    /// receives nor sends after.
    fn end(&mut self, pool: &mut Pool) {
        // Some have none between two calls.
        let _ = pool;
    }

    /// Frames and their bytes so far.
    fn counters(&self) -> PortCounters;
}

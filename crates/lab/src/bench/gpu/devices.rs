//! The devices that the program hands in, and what is asked of them.

use std::time::Duration;

use testudo_crypto::{Direction, Engine, Suite};

use crate::bench::device::GpuCount;

/// What a launch of some packets takes on a device, apart from a gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launches {
    /// Packets of a launch.
    pub packets: usize,
    /// What goes to the device with them, and back.
    pub transfer_bytes: usize,
    /// The kernel alone.
    pub kernel: Duration,
    /// Transfers alone, there and back, one after the other.
    pub transfers: Duration,
    /// Transfers alone, two launches under way, there and back at once where the bus does that: from one end
    /// to the next.
    pub bus: Duration,
    /// Both, two launches under way: from one end to the next.
    pub with_transfers: Duration,
    /// Both, nothing else under way: from hand-over to the end.
    pub alone: Duration,
}

/// A device of its own, whose launches can be timed.
pub trait TimedDevice {
    /// Gets keys, and the jobs of a launch.
    fn engine(&mut self) -> &mut dyn Engine;

    /// Times so many launches of the jobs that were submitted, and drops the jobs.
    ///
    /// # Errors
    /// What the device said.
    fn time(&mut self, launches: u32) -> Result<Launches, String>;
}

/// Opens something of a device, any number of times.
pub type Open<T> = Box<dyn Fn() -> Result<Box<T>, String> + Send + Sync>;

/// A GPU that was found.
pub struct GpuDevice {
    /// An engine on it, for a gateway.
    pub engine: Open<dyn Engine>,
    /// The device, to be timed; `None` of several that are one engine.
    pub timed: Option<Open<dyn TimedDevice>>,
}

/// What a packet is to the kernels: steps for a byte of the cipher, which lanes share, and of the hash, which
/// is one lane's; and how many lanes there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Steps {
    /// Of the cipher.
    pub cipher: u64,
    /// Of the hash.
    pub hash: u64,
    /// Lanes that share the packet.
    pub lanes: usize,
}

/// What the kernels do of a packet of so many bytes, in work-groups of so many lanes; `None` of a suite that
/// they do not do.
pub type StepsOf = fn(Suite, Direction, usize, usize) -> Option<Steps>;

/// Finds the GPUs with this in their names, or all, each as a device or so many as one; or says why there is
/// none.
pub type FindGpus = dyn Fn(Option<&str>, GpuCount) -> Result<Vec<GpuDevice>, String> + Send + Sync;

/// The GPUs of this machine, and how a GPU's work is reckoned where there is none.
pub struct Gpus {
    /// How they are found.
    pub find: Box<FindGpus>,
    /// An engine on a device that does nothing, which measures what workers do for one.
    pub idle: Open<dyn Engine>,
    /// For the model.
    pub steps: StepsOf,
}

//! What can go wrong before packets flow, each with what to do about it.

use std::io;
use std::path::PathBuf;

/// Why a device of DPDK could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The plugin is not installed.
    #[error(
        "libtestudo-dpdk.so, by which the gateway opens DPDK's devices, is not in {places}: install libdpdk-dev and run `make install`, or build it with `scripts/shim.sh FOLDER dpdk`"
    )]
    PluginAbsent {
        /// Where it was looked for.
        places: String,
    },
    /// It is there, and cannot be loaded.
    #[error(
        "{path} cannot be loaded ({reason}): if DPDK is missing or was replaced by another version, install libdpdk-dev and build the plugin again with `scripts/shim.sh FOLDER dpdk`",
        path = path.display()
    )]
    PluginUnusable {
        /// The file.
        path: PathBuf,
        /// The dynamic linker's words.
        reason: String,
    },
    /// Others than the administrator may put code there.
    #[error(
        "{path} is not loaded, because others may change {what}, and with it what the gateway runs: let root have it, without write access for everybody, or put the plugin elsewhere",
        path = path.display(),
        what = what.display()
    )]
    PluginExposed {
        /// The file.
        path: PathBuf,
        /// The file itself, or a folder on the way to it.
        what: PathBuf,
    },
    /// It has another interface.
    #[error(
        "{path} is of another version of Testudo (interface {found}, {wanted} is needed): build it again with `scripts/shim.sh FOLDER dpdk`",
        path = path.display()
    )]
    PluginVersion {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// Ours.
        wanted: u32,
    },
    /// The EAL does not start.
    #[error("DPDK does not start with `{arguments}`: {said}")]
    Eal {
        /// What it was started with.
        arguments: String,
        /// What it says.
        said: String,
    },
    /// The EAL runs with other arguments.
    #[error(
        "DPDK runs in this process with `eal = {running}` already, and starts once: give all ports of kind dpdk the same"
    )]
    EalRuns {
        /// Its arguments.
        running: String,
    },
    /// An argument that cannot be one.
    #[error("`{text}` has a zero byte in it")]
    ZeroByte {
        /// The argument.
        text: String,
    },
    /// There is no such device, or its driver fails.
    #[error(
        "DPDK has no device `{device}`: {said} (a virtual one is named by its driver, `net_tap0,iface=dtap0`; a NIC by its address, `0000:03:00.0`, bound to vfio-pci with dpdk-devbind.py)"
    )]
    NoDevice {
        /// The requested device.
        device: String,
        /// What DPDK says.
        said: String,
    },
    /// The device has fewer queues.
    #[error("the device {device} has {have} receive queues, not {wanted}: set `queues` to at most that")]
    Queues {
        /// The device.
        device: String,
        /// How many it has.
        have: u16,
        /// How many were requested.
        wanted: u16,
    },
    /// The device does not do so.
    #[error("the device {device} (driver {driver}) cannot {action}: {said}")]
    Device {
        /// The device.
        device: String,
        /// Its driver.
        driver: String,
        /// What was to be done.
        action: String,
        /// What DPDK says.
        said: String,
    },
    /// The pool has too few frames.
    #[error(
        "the device {device} needs {needed} packet buffers for itself, and {may} are free: use more buffers or fewer descriptors or queues"
    )]
    Buffers {
        /// The device.
        device: String,
        /// How many it needs.
        needed: usize,
        /// How many there are.
        may: usize,
    },
    /// The device needs physical addresses.
    #[error(
        "the device {device} needs physical addresses, for which packet buffers must be on huge pages (and DPDK run as root): set vm.nr_hugepages, or turn the IOMMU on and use vfio-pci"
    )]
    PhysicalAddresses {
        /// The device.
        device: String,
    },
    /// A system call failed.
    #[error("cannot {action}")]
    System {
        /// The action.
        action: String,
        /// The system's error.
        source: io::Error,
    },
}

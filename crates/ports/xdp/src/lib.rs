//! AF_XDP: whole Ethernet frames between an interface's queues and the gateway's own buffers.
//!
//! ```text
//!   NIC or veth, queue n
//!        │ each frame
//!        ▼
//!   filter (eBPF, in the kernel) ── ARP, ND, ssh, BGP, IKE … ──► the kernel, as without us
//!        │ ESP, AH, VPE, UDP of ours, protected networks
//!        ▼
//!   AF_XDP socket: four rings, and a umem that is the pool's memory
//!        │
//!        ▼
//!   XdpDevice::rx ─► testudo_link::LinkPort … XdpDevice::tx ─► socket ─► NIC
//! ```
//!
//! **Ownership.** The umem is the [region](testudo_packet::Region) of a worker's pool, so that a packet stays
//! where it was received until it is sent, by whichever interface ([`SharedUmem`]). A buffer whose address is
//! in a ring of the kernel is kept in a table by its frame until the kernel gives the address back: safe code
//! cannot reach it meanwhile. Rings and descriptors are not believed: an address that is not in the table, or
//! a packet that does not lie within its frame, is dropped by name, and nothing of it is read.
//!
//! **Frames in several buffers** (`XDP_USE_SG`) are chains of these buffers, and so are packets that are sent
//! in several: `gather` says how they are linked.
//!
//! **The filter** ([`Filter`]) is at the interface, once, for all devices of its queues. It is attached by a
//! link of bpf(2), which the kernel ends with the process, however that dies: frames then go to the kernel
//! again.
//!
//! **Modes.** *Native* in the driver, or *generic* after it; with the kernel's copy, or without it where the
//! driver writes into the umem itself (*zero-copy*). What could not be had is told:
//! [`Filter::native_refused`], [`XdpDevice::zero_copy_refused`], [`XdpDevice::busy_poll_refused`].
//!
//! **Layers.** `socket` and [`testudo_ebpf`] have the system calls, they and `ring` own what these make, the
//! rest is safe code. A test plays the kernel with a [`KernelTwin`] and its own
//! [`SocketCalls`].
//!
//! **Threads.** A device belongs to one worker, as its pool does. A filter may be shared by all: several
//! workers divide the queues of an interface among them ([`XdpConfig::divided`]).
//!
//! Deliberately missing: libbpf, libxdp and clang, none of which is needed; VLAN tags that a NIC has taken
//! off a frame (`ethtool -K IF rxvlan off` leaves them there); metadata of frames.

#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a test panics on failure")
)]

mod calls;
mod config;
mod device;
mod ebpf;
mod error;
mod features;
mod gather;
mod interface;
mod lent;
mod queue;
mod ring;
mod socket;
mod statistics;
mod twin;

pub use calls::SocketCalls;
pub use config::{FilterConfig, Network, Taken, UdpContent, UdpPort, XdpConfig, XdpMode, ZeroCopy};
pub use device::XdpDevice;
pub use ebpf::filter::{Attached, Filter, Verdict};
pub use error::OpenError;
pub use features::{EspFeatures, Feature};
pub use interface::{Interface, host_addresses};
pub use queue::QueueOptions;
pub use ring::{Broken, Consumer, Descriptor, Entry, KernelSide, Producer};
pub use socket::{Rings, SharedUmem, Socket};
pub use statistics::{KernelStatistics, QueueStatistics};
pub use twin::KernelTwin;

//! DPDK: whole Ethernet frames between any of its devices and the gateway's own buffers.
//!
//! ```text
//!   testudo ── dlopen ──► libtestudo-dpdk.so (shim/dpdk, C) ──► librte_ethdev, librte_mempool, … ──► a driver
//!
//!   driver ◄── mempool of mbufs, each of which points to a frame of the pool
//!      │ received mbuf            ▲ mbuf with another frame
//!      ▼                          │
//!   DpdkDevice::rx ── its frame ──► testudo_link::LinkPort … DpdkDevice::tx ── its frame ──► driver
//! ```
//!
//! **The plugin** ([`Plugin`]) is built where DPDK's headers are, against the version that is there, and
//! opened at run time: without it, everything but this port works. Its interface is a structure of functions
//! ([`raw`](raw::Table), `shim/dpdk/plugin.h`) with a version.
//!
//! **Ownership.** Each mbuf of a device's mempool points to a frame of the worker's pool, always. A received
//! packet is taken with its frame, and the mbuf goes back with another; a packet that is sent leaves its
//! frame with the mbuf, and the mbuf's own is free. Nothing is copied, no frame has two owners, and DPDK
//! frees its mbufs by itself. Drivers that need packets in their own memory (`net_af_xdp`) have them copied.
//!
//! **Nothing is believed.** The mempool knows of each mbuf whether it is free, out to receive, out to be
//! sent, or the gateway's. What a driver returns as received must be the address of an mbuf that is out to
//! receive, points to its own frame and describes bytes within it; everything else is dropped by name and not
//! read.
//!
//! **The EAL** ([`Eal`]) starts once in a process, on a thread of its own.
//!
//! **Layers.** `raw` and `mbuf` are what C declares, `plugin` and `mbufs` own it, the rest is safe but for
//! calls whose preconditions the device keeps. A test plays DPDK with a [`DpdkTwin`].
//!
//! **Threads.** A device belongs to one worker, as its pool does. It is polled: a worker without work looks
//! at it at every tick of a timer, or all the time.
//!
//! **Super-frames.** virtio's other end is a host's or a guest's TCP, which makes and takes segments joined,
//! up to 64 KiB under one header. What comes joined is cut, since each segment is sealed by itself; what
//! leaves is joined if the device says that it takes that, unless the device is to seal it. Of NICs neither
//! is asked: they would cut what is on the wire anyway, and have a descriptor for each buffer in either case.
//!
//! **Checksums.** Packets leave complete, as most are encrypted. Only UDP around ESP over IPv6 has a checksum
//! to be computed when it leaves: by the device if it can, by the link layer otherwise.

#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a test panics on failure")
)]

mod checksums;
mod config;
mod cutting;
mod device;
mod eal;
mod error;
mod joining;
mod mbuf;
mod mbufs;
mod open;
mod plugin;
pub mod raw;
mod receive;
mod security;
mod statistics;
mod ticker;
mod transmit;
mod twin;
mod twin_security;

pub use config::DpdkConfig;
pub use device::DpdkDevice;
pub use eal::{Eal, EalConfig, Registered, enter_thread};
pub use error::OpenError;
pub use open::Chosen;
pub use plugin::{Errno, FILE, Plugin};
pub use security::DpdkSecurity;
pub use statistics::{DeviceStatistics, HardwareStatistics, QueueStatistics};
pub use twin::{DpdkTwin, Words};
pub use twin_security::OFFERS as SECURITY_OFFERS;

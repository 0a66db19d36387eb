//! The device: offloads, interrupt coalescing and rings, by generic netlink (family "ethtool";
//! Documentation/networking/ethtool-netlink.rst).

mod client;
pub mod messages;

pub use client::Ethtool;

use crate::host::Reading;
use crate::place::{Direction, Place};
use std::io;

/// What a device says and takes. [`Ethtool`] is Linux's; tests have one in memory.
pub trait Device {
    /// What is at a place of the device: an offload, coalescing, a ring.
    fn read(&self, place: &Place) -> Reading;
    /// Changes it.
    ///
    /// # Errors
    /// The kernel's.
    fn write(&self, place: &Place, value: &str) -> io::Result<()>;
    /// The most descriptors that a ring can have, where the device says so.
    fn ring_limit(&self, direction: Direction) -> Option<u64>;
    /// The number of its network namespace, which no other one gets; nothing before Linux 5.14.
    fn cookie(&self) -> Option<u64>;
}

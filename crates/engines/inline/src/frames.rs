//! The same one layer below: between a link layer and a device of frames. Packets that wait there for a
//! neighbour are looked at when they leave.

use crate::nic::Nic;
use crate::port::{receive, send_secured};
use std::os::fd::BorrowedFd;
use testudo_link::FrameDevice;
use testudo_packet::{Batch, Pool, PortCounters, PortError};
use testudo_wire::ethernet::MacAddress;

/// Bytes of an Ethernet header, and of a tag of 802.1Q.
const ETHERNET_BYTES: usize = 14;
const TAG_BYTES: usize = 4;
/// Tags that a frame of a link layer has at most (802.1ad).
const MOST_TAGS: usize = 2;

/// The frames of a device that does cryptography as packets pass. See the [crate](crate).
pub struct InlineFrames<D> {
    device: D,
    nic: Nic,
}

impl<D: FrameDevice> InlineFrames<D> {
    /// The port half for a device of frames, with a link layer above it.
    #[must_use]
    pub fn around(device: D, nic: &Nic) -> Self {
        Self { device, nic: nic.clone() }
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The device, without its half of the NIC.
    #[must_use]
    pub fn into_device(self) -> D {
        self.device
    }

    /// The device.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }
}

/// Where the packet of a frame begins, in bytes: after a header with up to two tags.
fn packet_at(frame: &[u8]) -> Option<usize> {
    let is_tagged = |at: usize| Some(matches!(*frame.get(at - 2..at)?, [0x81, 0x00] | [0x88, 0xA8]));
    let mut at = ETHERNET_BYTES;
    for _ in 0..MOST_TAGS {
        if !is_tagged(at)? {
            break;
        }
        at += TAG_BYTES;
    }
    Some(at)
}

impl<D: FrameDevice> FrameDevice for InlineFrames<D> {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn mac(&self) -> MacAddress {
        self.device.mac()
    }

    fn mtu(&self) -> usize {
        self.device.mtu()
    }

    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let Self { device, nic } = self;
        receive(nic, packet_at, batch, |batch| device.rx(pool, batch))
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let Self { device, nic } = self;
        send_secured(nic, packet_at, pool, batch, |pool, batch| device.tx(pool, batch))
    }

    fn readiness(&self) -> Vec<BorrowedFd<'_>> {
        self.device.readiness()
    }

    fn seals_marked(&self) -> bool {
        true
    }

    fn end(&mut self, pool: &mut Pool) {
        self.device.end(pool);
    }

    fn counters(&self) -> PortCounters {
        self.device.counters()
    }
}

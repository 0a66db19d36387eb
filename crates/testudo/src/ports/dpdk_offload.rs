//! Cryptography in a device of DPDK's (`offload`): what stands between it and the link layer.

use crate::exit::{Failure, Kind};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::BorrowedFd;
use testudo_control::config::Offload;
use testudo_crypto::PortableEngine;
use testudo_engine_inline::{Checks, InlineFrames, Nic};
use testudo_link::FrameDevice;
use testudo_packet::{Batch, Pool, PortCounters, PortError};
use testudo_port_dpdk::DpdkDevice;
use testudo_wire::ethernet::MacAddress;

/// A device, with its half of the NIC if it does cryptography.
pub enum Device {
    Plain(DpdkDevice),
    Inline(InlineFrames<DpdkDevice>),
}

/// A device, and the NIC that it is, or why it is none.
pub struct Fitted {
    pub device: Device,
    pub nic: Result<Nic, String>,
}

/// Has a device do cryptography, as far as it can and is to.
pub fn fit(side: &str, device: DpdkDevice, offload: Offload) -> Result<Fitted, Failure> {
    if offload == Offload::Off {
        return Ok(Fitted { device: Device::Plain(device), nic: Err("off".to_owned()) });
    }
    let name = device.name().to_owned();
    match start(&device) {
        Ok(nic) => Ok(Fitted { device: Device::Inline(InlineFrames::around(device, &nic)), nic: Ok(nic) }),
        Err(why) if offload == Offload::Always => Err(Failure::new(
            Kind::Port,
            format!(
                "`offload = \"always\"`, and the device {name} does no cryptography: {why}; with \"auto\" the CPU does it"
            ),
        )),
        Err(why) => {
            tracing::info!("{side} side: the CPU does the cryptography of {name}: {why}");
            Ok(Fitted { device: Device::Plain(device), nic: Err(why) })
        }
    }
}

fn start(device: &DpdkDevice) -> Result<Nic, String> {
    // Its keys are the kernel's random numbers.
    let checks = Checks::usual(RandomState::new().build_hasher().finish());
    // Beside the NIC, an engine that does every suite and needs no device.
    let software = Box::new(PortableEngine::new());
    Nic::start(Box::new(device.security()?), software, checks).map_err(|error| error.to_string())
}

impl Device {
    pub fn dpdk(&self) -> &DpdkDevice {
        match self {
            Self::Plain(device) => device,
            Self::Inline(frames) => frames.device(),
        }
    }
}

impl FrameDevice for Device {
    fn name(&self) -> &str {
        self.dpdk().name()
    }

    fn mac(&self) -> MacAddress {
        self.dpdk().mac()
    }

    fn mtu(&self) -> usize {
        self.dpdk().mtu()
    }

    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        match self {
            Self::Plain(device) => device.rx(pool, batch),
            Self::Inline(frames) => frames.rx(pool, batch),
        }
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        match self {
            Self::Plain(device) => device.tx(pool, batch),
            Self::Inline(frames) => frames.tx(pool, batch),
        }
    }

    fn readiness(&self) -> Vec<BorrowedFd<'_>> {
        self.dpdk().readiness()
    }

    fn seals_marked(&self) -> bool {
        matches!(self, Self::Inline(_))
    }

    fn end(&mut self, pool: &mut Pool) {
        match self {
            Self::Plain(device) => FrameDevice::end(device, pool),
            Self::Inline(frames) => frames.end(pool),
        }
    }

    fn counters(&self) -> PortCounters {
        self.dpdk().counters()
    }
}

//! What is to be opened.

use testudo_port_dpdk::EalConfig;

/// The device, and how it is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CryptodevConfig {
    /// A driver of virtual devices, with arguments (`crypto_aesni_mb`; each engine then has a device of its
    /// own), or a device by its name (`crypto_aesni_mb0`, or a PCI address), as DPDK's own programs take it.
    pub device: String,
    /// Queue pairs, which are used in turn.
    pub queue_pairs: u16,
    /// Jobs that each queue pair may hold.
    pub depth: u16,
    /// Keys that the device may hold. Their memory is taken at start.
    pub keys: u32,
    /// What DPDK is started with, if it does not run yet.
    pub eal: EalConfig,
}

impl CryptodevConfig {
    /// A device, and all else as it comes.
    #[must_use]
    pub fn of(device: &str) -> Self {
        Self { device: device.to_owned(), queue_pairs: 2, depth: 512, keys: 4096, eal: EalConfig::default() }
    }
}

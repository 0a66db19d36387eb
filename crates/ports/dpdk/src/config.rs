//! What is to be opened.

/// The device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DpdkConfig {
    /// A PCI address (`0000:03:00.0`), or a virtual device by its driver, number and arguments
    /// (`net_tap0,iface=dtap0`), as DPDK's own programs take it.
    pub device: String,
    /// Receive queues. Packets leave by the first: so their order is kept.
    pub queues: u16,
    /// Descriptors of each receive queue and of the queue to send, at most; fewer where the pool is small.
    pub descriptors: u16,
    /// The longest IP packet that a frame carries; `None` for the device's own.
    pub mtu: Option<u16>,
    /// Whether frames for other stations are received as well.
    pub promiscuous: bool,
    /// Whether checksums that a local kernel has left to the device are completed; `None` where the driver
    /// has frames of local kernels (af_packet, af_xdp, tap, virtio).
    pub complete_checksums: Option<bool>,
    /// Whether the device is to do cryptography, if it can.
    pub security: bool,
    /// Whether UDP over IPv6 may come without checksums, which the device is to compute if it can. If it
    /// cannot ([`Chosen`](crate::Chosen)), they leave as they came.
    pub udp_over_ipv6: bool,
    /// Whether segments of TCP are received and sent joined, and checksums left to the device, where it
    /// declares that; `None` where the other end takes and makes super-frames itself: with virtio.
    pub segmentation: Option<bool>,
    /// Whether the worker polls the device all the time, instead of every 50 microseconds while nothing
    /// comes.
    pub busy_poll: bool,
}

impl DpdkConfig {
    /// A device with one queue, and all else as it comes.
    #[must_use]
    pub fn of(device: &str) -> Self {
        Self {
            device: device.to_owned(),
            queues: 1,
            descriptors: 512,
            mtu: None,
            promiscuous: false,
            complete_checksums: None,
            security: false,
            udp_over_ipv6: false,
            segmentation: None,
            busy_poll: false,
        }
    }
}

//! What is to be opened, and which frames are the gateway's.

use crate::error::OpenError;
use std::net::IpAddr;

/// Where the filter is to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum XdpMode {
    /// In the driver, or not at all.
    Native,
    /// After the driver: any interface can do that, at a copy more.
    Generic,
    /// In the driver, or after it where the driver cannot; the [filter](crate::Filter) says why.
    #[default]
    Auto,
}

/// Whether the device is to write and read frames itself, without the kernel's copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ZeroCopy {
    /// Never.
    Off,
    /// Where the driver can.
    #[default]
    Auto,
    /// Or not at all.
    Always,
}

/// Which frames are the gateway's. The kernel gets all others.
#[derive(Debug, Clone, Default)]
pub struct FilterConfig {
    /// ESP (protocol 50), to addresses where [tunnels end](Taken::OfTunnels).
    pub esp: bool,
    /// AH (protocol 51), to the same addresses.
    pub ah: bool,
    /// The protocol number of VPE, where it is used, to the same addresses.
    pub vpe_protocol: Option<u8>,
    /// Ports of UDP, at the same addresses.
    pub udp: Vec<UdpPort>,
    /// Networks, by their destination addresses.
    pub networks: Vec<Network>,
}

/// A port of UDP whose datagrams are the gateway's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UdpPort {
    /// The destination port.
    pub port: u16,
    /// What of it is.
    pub content: UdpContent,
}

/// What is taken of a port of UDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UdpContent {
    /// Only ESP: IKE's messages and keepalives (RFC 3948 2.2, 2.3) stay with the kernel.
    Esp,
    /// Everything.
    All,
}

/// What of the packets to a network is the gateway's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Taken {
    /// Nothing.
    Nothing,
    /// What tunnels carry: the protocols and ports of the [filter](FilterConfig). So it is with an address of
    /// this host, where tunnels end. What the host only forwards is for somebody else, ESP or not.
    OfTunnels,
    /// Everything.
    All,
}

/// A network, and what of the packets to it is the gateway's. The longest prefix decides, so that parts of a
/// network can be left to the kernel: the host's own address, for example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Network {
    /// Its address. Bits after the prefix do not matter.
    pub address: IpAddr,
    /// Bits of the prefix.
    pub prefix_bits: u8,
    /// What the gateway takes.
    pub taken: Taken,
}

/// The device.
#[derive(Debug, Clone)]
pub struct XdpConfig {
    /// The queues of the interface, from 0. Packets leave by the first. What comes to other queues goes to
    /// the kernel: somebody has to open all of them.
    pub queues: Vec<u32>,
    /// Whether the kernel's copy is to be avoided.
    pub zero_copy: ZeroCopy,
    /// Entries of each ring: a power of two.
    pub ring_entries: u32,
    /// Frames of each queue that the kernel has to receive into, at most; never more than a quarter of the
    /// pool's for all queues together.
    pub receive_frames: u32,
    /// Whether the worker drives the driver's receive queue itself, instead of interrupts; `None` if not,
    /// else how many packets at a time.
    pub busy_poll: Option<u16>,
    /// Whether checksums that a local kernel has left to the device are completed; `None` where the driver
    /// (veth, tap) has frames of local kernels.
    pub complete_checksums: Option<bool>,
}

impl XdpConfig {
    /// The queues divided among workers, each of which opens a device of its own at the same
    /// [filter](crate::Filter), with its own pool as the umem: the first worker has the first queue, the
    /// second one the second, and so on in turn. The NIC chooses the queue of a frame (RSS), and every worker
    /// sends by its own first queue.
    ///
    /// # Errors
    /// [`OpenError::TooFewQueues`] if a worker would have none, or there are no workers.
    pub fn divided(&self, workers: usize) -> Result<Vec<Self>, OpenError> {
        let queues = self.queues.len();
        if workers == 0 || queues < workers {
            return Err(OpenError::TooFewQueues { queues, workers });
        }
        let share = |worker| self.queues.iter().skip(worker).step_by(workers).copied().collect();
        Ok((0..workers).map(|worker| Self { queues: share(worker), ..self.clone() }).collect())
    }
}

impl Default for XdpConfig {
    fn default() -> Self {
        Self {
            queues: vec![0],
            zero_copy: ZeroCopy::default(),
            ring_entries: 2048,
            receive_frames: 1024,
            busy_poll: None,
            complete_checksums: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_queue_has_one_worker_and_each_worker_a_queue() {
        let config = XdpConfig { queues: vec![0, 1, 2, 5, 7], ..XdpConfig::default() };
        let queues = |workers| config.divided(workers).unwrap().into_iter().map(|config| config.queues);
        assert_eq!(queues(2).collect::<Vec<_>>(), [vec![0, 2, 7], vec![1, 5]]);
        assert_eq!(queues(5).flatten().collect::<Vec<_>>(), config.queues);
        for workers in [0, 6] {
            assert!(matches!(config.divided(workers), Err(OpenError::TooFewQueues { .. })));
        }
    }
}

//! What happened at a device beside the packets that passed.

/// What the device counts, and its link. Zeros where it does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HardwareStatistics {
    /// Packets received.
    pub rx_packets: u64,
    /// Packets that came while no descriptor was free: the worker was too slow.
    pub rx_missed: u64,
    /// Damaged frames.
    pub rx_errors: u64,
    /// Times that the driver found no free mbuf.
    pub rx_no_mbuf: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Packets that were not sent.
    pub tx_errors: u64,
    /// Whether the link is up.
    pub link_up: bool,
    /// Its speed in Mbit/s; 0 if it is not known.
    pub link_mbps: u32,
}

/// What a queue has received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueStatistics {
    /// Its number.
    pub queue: u16,
    /// Packets received.
    pub rx_packets: u64,
}

/// What a device has, and what went wrong at it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceStatistics {
    /// What the device counts.
    pub hardware: HardwareStatistics,
    /// Each receive queue.
    pub queues: Vec<QueueStatistics>,
    /// Mbufs that the device named and did not have (`device_frame_unknown`).
    pub unknown_frames: u64,
    /// Packets that did not lie within their frame (`device_frame_bounds`).
    pub out_of_bounds: u64,
    /// Mbufs that the driver gave back without having them.
    pub refused_mbufs: u64,
    /// Packets that were copied on receipt: they came in several mbufs, or in memory of DPDK's.
    pub rx_copied: u64,
    /// Packets that were copied to be sent: they were elsewhere.
    pub tx_copied: u64,
    /// Checksums that were completed.
    pub checksums_completed: u64,
    /// Packets whose checksum was left to the device when they were sent.
    pub checksums_left: u64,
    /// Packets whose checksum the device found wrong. They go on: receivers judge them.
    pub bad_checksums: u64,
    /// Packets that the device says it opened or refused, and in which it can have found no IPsec.
    pub misplaced_verdicts: u64,
    /// Times that its driver did not end a session for cryptography.
    pub failed_session_ends: u64,
    /// Frames that were several segments of TCP, and were cut into them.
    pub super_frames_cut: u64,
    /// Frames that several segments were joined to when they were sent.
    pub super_frames_sent: u64,
    /// Times that the device asked to be reset, and was.
    pub resets: u64,
}

//! What happened at a queue beside the packets that passed.

/// What the kernel has dropped or missed (`XDP_STATISTICS`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KernelStatistics {
    /// Frames dropped on receipt for another reason than the next three: too long for a buffer, say.
    pub rx_dropped: u64,
    /// Addresses of free frames that the kernel did not accept.
    pub rx_invalid_frames: u64,
    /// Packets to send that the kernel did not accept.
    pub tx_invalid_packets: u64,
    /// Frames dropped on receipt because the ring of received packets was full: the worker was too slow.
    pub rx_ring_full: u64,
    /// Times that a frame came and no free frame was there to receive it.
    pub no_free_frame: u64,
    /// Times that the kernel was to send and the ring was empty.
    pub tx_ring_empty: u64,
}

/// What a queue has, and what went wrong at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueStatistics {
    /// The queue.
    pub queue: u32,
    /// What the kernel counts; zeros if it does not say.
    pub kernel: KernelStatistics,
    /// Frames that the kernel has to receive into.
    pub receiving: u32,
    /// Frames that the kernel has to send, or has sent and not given back.
    pub sending: u32,
    /// Frames that came into a ring without having been lent (`device_frame_unknown`).
    pub unknown_frames: u64,
    /// Packets that did not lie within their frame (`device_frame_bounds`).
    pub out_of_bounds: u64,
    /// Frames that came in several buffers, and were handed over as chains of these.
    pub rx_chains: u64,
    /// Frames that came in several buffers, and were put into one.
    pub rx_merged: u64,
    /// Packets in chains of buffers that were sent from where they were.
    pub tx_chains: u64,
    /// Packets that were copied into frames to be sent, because they were elsewhere, or in too many buffers.
    pub tx_copied: u64,
    /// Checksums that were completed.
    pub checksums_completed: u64,
    /// System calls.
    pub wakeups: u64,
}

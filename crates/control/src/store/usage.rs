//! The usage of a key.

/// The usage of a key since it was first installed, by all SAs that have had it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Inner bytes.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
    /// When it was first installed: seconds since 1970, by the host's clock.
    pub since_unix_s: u64,
}

//! What a key was used for.

/// What a key was used for since it was first installed, by all SAs that had it, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Inner bytes.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
    /// When it was first installed: seconds since 1970, by the clock of the host.
    pub since_unix_s: u64,
}

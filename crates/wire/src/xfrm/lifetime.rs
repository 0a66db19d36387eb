//! Lifetimes of SAs and policies (RFC 4301 4.4.2.1), configured and used.

use super::structure::structure;

/// No limit of bytes or packets (`XFRM_INF`). For seconds, 0 is no limit.
pub const UNLIMITED: u64 = u64::MAX;

structure! {
    /// `struct xfrm_lifetime_cfg`: limits. A soft one asks for a successor, a hard one ends it.
    LifetimeConfig, 64, {
        /// Bytes; [`UNLIMITED`] is none.
        soft_bytes: u64 = 0,
        /// Bytes; [`UNLIMITED`] is none.
        hard_bytes: u64 = 8,
        /// Packets; [`UNLIMITED`] is none.
        soft_packets: u64 = 16,
        /// Packets; [`UNLIMITED`] is none.
        hard_packets: u64 = 24,
        /// Seconds since it was added; 0 is none.
        soft_added_s: u64 = 32,
        /// Seconds since it was added; 0 is none.
        hard_added_s: u64 = 40,
        /// Seconds since it was first used; 0 is none.
        soft_used_s: u64 = 48,
        /// Seconds since it was first used; 0 is none.
        hard_used_s: u64 = 56,
    }
}

impl LifetimeConfig {
    /// Without any limit.
    pub const UNLIMITED: Self = Self {
        soft_bytes: UNLIMITED,
        hard_bytes: UNLIMITED,
        soft_packets: UNLIMITED,
        hard_packets: UNLIMITED,
        soft_added_s: 0,
        hard_added_s: 0,
        soft_used_s: 0,
        hard_used_s: 0,
    };
}

structure! {
    /// `struct xfrm_lifetime_cur`: what has been used.
    LifetimeCurrent, 32, {
        /// Bytes.
        bytes: u64 = 0,
        /// Packets.
        packets: u64 = 8,
        /// When it was added, in seconds since 1970.
        added_at_s: u64 = 16,
        /// When it was first used, in seconds since 1970; 0 is never.
        used_at_s: u64 = 24,
    }
}

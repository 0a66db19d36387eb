//! What the kernel tells daemons without being asked.

use super::address::Address;
use super::policy::PolicyInfo;
use super::sa::SaInfo;
use super::selector::{Id, SaId, Selector};
use super::structure::structure;

structure! {
    /// `struct xfrm_user_acquire`: a packet needs an SA that is not there.
    Acquire, 280, {
        /// Destination and protocol of the SA, from the policy's template.
        id: Id = 0,
        /// Where it is to begin.
        source: Address = 24,
        /// The packet's own values.
        selector: Selector = 40,
        /// The policy.
        policy: PolicyInfo = 96,
        /// Which integrity algorithms the template allows.
        integrity_algorithms: u32 = 264,
        /// Which ciphers.
        ciphers: u32 = 268,
        /// Which compression.
        compression_algorithms: u32 = 272,
        /// A number that the SA which answers it repeats.
        sequence: u32 = 276,
    }
}

structure! {
    /// `struct xfrm_user_expire`: an SA is at a limit.
    Expire, 232, {
        /// The SA.
        sa: SaInfo = 0,
        /// 0: it wants a successor; otherwise it has ended.
        hard: u8 = 224,
    }
}

structure! {
    /// `struct xfrm_user_polexpire`: a policy is at a limit.
    PolicyExpire, 176, {
        /// The policy.
        policy: PolicyInfo = 0,
        /// 0: it wants a successor; otherwise it has ended.
        hard: u8 = 168,
    }
}

structure! {
    /// `struct xfrm_user_mapping`: the peer's address or port behind a NAT has changed (RFC 3948 3.1).
    Mapping, 64, {
        /// The SA.
        sa: SaId = 0,
        /// Its bundle.
        reqid: u32 = 24,
        /// Where its packets came from.
        old_source: Address = 28,
        /// Where they come from now.
        new_source: Address = 44,
        /// From which port they came.
        old_port: u16 = 60 network,
        /// From which port they come now.
        new_port: u16 = 62 network,
    }
}

structure! {
    /// `struct xfrm_user_report`: a packet was refused (Mobile IPv6, RFC 6275).
    Report, 60, {
        /// The extension header.
        protocol: u8 = 0,
        /// The packet's own values.
        selector: Selector = 4,
    }
}

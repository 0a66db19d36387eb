//! SAs in messages: what `XFRM_MSG_NEWSA` begins with, and structures of its attributes.

use super::address::Address;
use super::lifetime::{LifetimeConfig, LifetimeCurrent};
use super::selector::{Id, SaId, Selector};
use super::structure::structure;

structure! {
    /// `struct xfrm_stats`: packets of an SA that were dropped.
    SaStats, 12, {
        /// Outside of the replay window.
        outside_window: u32 = 0,
        /// Received before.
        replayed: u32 = 4,
        /// With a wrong ICV.
        integrity_failed: u32 = 8,
    }
}

structure! {
    /// `struct xfrm_usersa_info`: an SA.
    SaInfo, 224, {
        /// Which packets it may carry; of the inner ones in tunnel mode.
        selector: Selector = 0,
        /// Destination, SPI, protocol.
        id: Id = 56,
        /// Where it begins.
        source: Address = 80,
        /// Limits.
        lifetime: LifetimeConfig = 96,
        /// What has been used; requests leave it empty.
        current: LifetimeCurrent = 160,
        /// Dropped packets; requests leave it empty.
        stats: SaStats = 192,
        /// Of the acquire that it answers, or 0.
        sequence: u32 = 204,
        /// The bundle that it belongs to: policies name it in their templates.
        reqid: u32 = 208,
        /// Of its outer addresses: [`family`](super::family).
        family: u16 = 212,
        /// [`mode`](super::mode).
        mode: u8 = 214,
        /// Packets in the replay window, at most 32; 0 with
        /// [`ReplayStateEsn`](super::replay::ReplayStateEsn).
        replay_window: u8 = 215,
        /// [`sa_flag`](super::sa_flag).
        flags: u8 = 216,
    }
}

impl SaInfo {
    /// Which SA it is.
    #[must_use]
    pub fn sa_id(&self) -> SaId {
        let Id { destination, spi, protocol } = self.id;
        SaId { destination, spi, family: self.family, protocol }
    }
}

structure! {
    /// `struct xfrm_userspi_info`: a wish for an SPI.
    SpiRequest, 232, {
        /// The SA that is to be: destination, source, protocol, mode, reqid, sequence, family.
        sa: SaInfo = 0,
        /// The lowest SPI.
        lowest: u32 = 224,
        /// The highest.
        highest: u32 = 228,
    }
}

structure! {
    /// `struct xfrm_encap_tmpl`: encapsulation in UDP (RFC 3948) or TCP.
    Encapsulation, 24, {
        /// [`encapsulation`](super::encapsulation).
        kind: u16 = 0,
        /// Port at the source of the SA.
        source_port: u16 = 2 network,
        /// Port at its destination.
        destination_port: u16 = 4 network,
        /// The peer's own address, before NAT (RFC 3948 3.1.2); of the SA's family.
        original_address: Address = 8,
    }
}

structure! {
    /// `struct xfrm_user_offload`: the device that is to do the work.
    Offload, 8, {
        /// Index of its interface.
        interface: i32 = 0,
        /// [`offload_flag`](super::offload_flag).
        flags: u8 = 4,
    }
}

structure! {
    /// `struct xfrm_usersa_flush`: which SAs go.
    FlushSas, 1, {
        /// ESP, AH, IPComp; 0 or 255 is any.
        protocol: u8 = 0,
    }
}

structure! {
    /// `struct xfrm_aevent_id`: an SA whose state was asked for, has changed, or is to be set.
    EventId, 48, {
        /// Which SA.
        sa: SaId = 0,
        /// Where it begins.
        source: Address = 24,
        /// [`event_flag`](super::event_flag).
        flags: u32 = 40,
        /// Its bundle.
        reqid: u32 = 44,
    }
}

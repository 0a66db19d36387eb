//! Selectors of SAs and policies (RFC 4301 4.4.1.1), and the identity of an SA.

use super::address::Address;
use super::structure::structure;

structure! {
    /// `struct xfrm_selector`: which packets.
    Selector, 56, {
        /// Destination network.
        destination: Address = 0,
        /// Source network.
        source: Address = 16,
        /// Destination port; for ICMP the code, for GRE the low half of the key.
        destination_port: u16 = 32 network,
        /// Which bits of it count.
        destination_port_mask: u16 = 34 network,
        /// Source port; for ICMP the type, for GRE the high half of the key.
        source_port: u16 = 36 network,
        /// Which bits of it count.
        source_port_mask: u16 = 38 network,
        /// Of the two networks: [`family`](super::family). Unspecified in an SA: the SA's.
        family: u16 = 40,
        /// Prefix length of the destination, in bits.
        destination_prefix: u8 = 42,
        /// Prefix length of the source, in bits.
        source_prefix: u8 = 43,
        /// Upper protocol; 0 is any.
        protocol: u8 = 44,
        /// Index of the interface; 0 is any.
        interface: i32 = 48,
        /// User; the kernel ignores it.
        user: u32 = 52,
    }
}

structure! {
    /// `struct xfrm_id`: an SA without its family, which is next to it.
    Id, 24, {
        /// Where the SA ends.
        destination: Address = 0,
        /// SPI; 0 in a template is any.
        spi: u32 = 16 network,
        /// ESP, AH, IPComp, or one of Mobile IPv6.
        protocol: u8 = 20,
    }
}

structure! {
    /// `struct xfrm_usersa_id`: an SA.
    SaId, 24, {
        /// Where it ends.
        destination: Address = 0,
        /// SPI.
        spi: u32 = 16 network,
        /// Of its outer addresses: [`family`](super::family).
        family: u16 = 20,
        /// ESP, AH, IPComp, or one of Mobile IPv6.
        protocol: u8 = 22,
    }
}

structure! {
    /// `struct xfrm_address_filter`: which SAs a dump has, by networks.
    AddressFilter, 36, {
        /// Network of the source.
        source: Address = 0,
        /// Network of the destination.
        destination: Address = 16,
        /// [`family`](super::family); unspecified is any.
        family: u16 = 32,
        /// Prefix length of the source, in bits.
        source_prefix: u8 = 34,
        /// Prefix length of the destination, in bits.
        destination_prefix: u8 = 35,
    }
}

structure! {
    /// `struct xfrm_mark`: a packet's mark, under a mask, decides whether SA or policy concern it.
    Mark, 8, {
        /// Value.
        value: u32 = 0,
        /// Which bits of it count.
        mask: u32 = 4,
    }
}

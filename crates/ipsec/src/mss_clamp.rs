//! The MSS of TCP connections through a tunnel, lowered to what fits it (see [`testudo_wire::mss`]), in SYNs
//! of both directions.
//!
//! SYNs are rare, so that what finds them must cost other packets nothing: the fast path looks at one byte of
//! TCP's packets. Outbound, a SYN then takes the slow path; inbound, it is set aside when it was checked.

use crate::Ipsec;
use crate::sa::OutboundSa;
use crate::slots::SaRef;
use crate::tunnel::TunnelParameters;
use testudo_crypto::Suite;
use testudo_packet::Buffer;
use testudo_wire::ip::{IpHeader, Version};
use testudo_wire::mss;

/// The limits of an SA with this suite, over IPv4 and over IPv6. The peer's path is taken to be like ours.
pub(crate) fn limits_of(p: &TunnelParameters, suite: Suite) -> [u16; 2] {
    let mtu = p.shape(suite).inner_mtu(p.path_mtu);
    p.rules.mss_clamp.limits(u16::try_from(mtu).unwrap_or(u16::MAX))
}

impl OutboundSa {
    /// Lowers the MSS in a packet, if it is a SYN.
    pub(crate) fn clamp_mss(&self, header: &IpHeader, packet: &mut Buffer) {
        let limit = self.mss_limits[usize::from(header.version == Version::V6)];
        mss::clamp(header, packet.bytes_mut(), limit);
    }
}

impl Ipsec {
    /// Lowers the MSS in a packet that came from the peer by this SA.
    #[cold]
    pub(crate) fn clamp_mss_inbound(&self, packet: &mut Buffer, inbound: SaRef) {
        let in_use = self.inbound.get(inbound).and_then(|sa| self.tunnel(sa.tunnel)?.way());
        let outbound = in_use.and_then(|sa| self.outbound.get(sa));
        if let (Some(sa), Ok(header)) = (outbound, IpHeader::parse(packet.bytes())) {
            sa.clamp_mss(&header, packet);
        }
    }
}

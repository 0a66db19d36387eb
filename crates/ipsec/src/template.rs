//! The outer headers of a tunnel, made once and stamped on every packet.

use crate::tunnel::{Encapsulation, Endpoints};
use testudo_wire::ip::{OuterHeader, Version};
use testudo_wire::udp::{UDP_HEADER_BYTES, UdpHeader};
use testudo_wire::{ParseError, protocol};

/// TTL and Hop Limit of outer headers (RFC 4301 5.1.2.1: constructed).
const HOP_LIMIT: u8 = 64;

/// Outer DSCP of a tunnel (RFC 4301 4.4.2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dscp {
    /// As the inner packet's.
    #[default]
    Copy,
    /// Always this value, 0 to 63.
    Fixed(u8),
}

/// IP header and, for ESP in UDP, the UDP header of a tunnel.
#[derive(Debug, Clone)]
pub(crate) struct OuterTemplate {
    ip: OuterHeader,
    udp: Option<(u16, u16)>,
    dscp: Dscp,
    bytes: usize,
}

impl OuterTemplate {
    /// `None` as long as the peer's address is unknown.
    pub(crate) fn new(endpoints: &Endpoints, dscp: Dscp) -> Option<Self> {
        let udp = match endpoints.encapsulation {
            Encapsulation::Esp => None,
            Encapsulation::EspInUdp { local_port, remote_port } => Some((local_port, remote_port)),
        };
        let ip = OuterHeader {
            source: endpoints.local,
            destination: endpoints.remote?,
            protocol: if udp.is_some() { protocol::UDP } else { protocol::ESP },
            traffic_class: 0,
            hop_limit: HOP_LIMIT,
            // What does not fit is fragmented before encryption; outer fragments would only cost the peer reassembly.
            dont_fragment: true,
        };
        let bytes = Version::of(endpoints.local).header_bytes() + udp.map_or(0, |_| UDP_HEADER_BYTES);
        Some(Self { ip, udp, dscp, bytes })
    }

    /// Bytes of all outer headers.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Writes the headers to the front of a datagram of `total_bytes` that carries a packet of this traffic class.
    #[inline]
    pub(crate) fn write(
        &self,
        out: &mut [u8],
        total_bytes: usize,
        inner_class: u8,
    ) -> Result<(), ParseError> {
        let mut ip = self.ip;
        ip.traffic_class = match self.dscp {
            Dscp::Copy => inner_class,
            // ECN is copied in any case (RFC 6040 4.1, normal mode).
            Dscp::Fixed(dscp) => dscp << 2 | inner_class & crate::ecn::MASK,
        };
        // Identification 0: with DF set the datagram is atomic (RFC 6864 4.1).
        ip.write(out, total_bytes, 0)?;
        if let Some((source_port, destination_port)) = self.udp {
            let ip_bytes = ip.bytes();
            let udp = UdpHeader { source_port, destination_port, total_bytes: total_bytes - ip_bytes };
            udp.write(&mut out[ip_bytes..])?;
        }
        Ok(())
    }
}

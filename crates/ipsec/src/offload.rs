//! What a device that does cryptography must know of an SA.

use crate::Ipsec;
use crate::encap::{IpsecProtocol, Mode, then};
use crate::slots::SaRef;
use crate::tunnel::{Encapsulation, TunnelParameters};
use testudo_crypto::{Direction, SaFacts, SecurityMode, SecurityProtocol, Suite};

/// Jobs that are changed after they were sealed: covered by AH, or cut.
const CHANGED_IF: u8 = then::AUTHENTICATE | then::CUT;

impl Ipsec {
    /// What a device must know of an SA, whose suite the caller knows; `None` if the SA has gone, or is of
    /// VPE.
    #[must_use]
    pub fn facts(&self, direction: Direction, sa: SaRef, suite: Suite) -> Option<SaFacts> {
        let (spi, esn, tunnel) = match direction {
            Direction::Seal => self.outbound.get(sa).map(|sa| (sa.spi, sa.esn, sa.tunnel)),
            Direction::Open => self.inbound.get(sa).map(|sa| (sa.spi, sa.esn, sa.tunnel)),
        }?;
        let TunnelParameters { endpoints, protocol, mode, covered_by, .. } = &self.tunnel(tunnel)?.parameters;
        Some(SaFacts {
            spi,
            suite,
            protocol: match protocol {
                IpsecProtocol::Esp => SecurityProtocol::Esp,
                IpsecProtocol::Ah => SecurityProtocol::Ah,
                // No device knows it.
                IpsecProtocol::Vpe => return None,
            },
            mode: match mode {
                Mode::Tunnel => SecurityMode::Tunnel,
                Mode::Transport => SecurityMode::Transport,
            },
            esn,
            in_udp: matches!(endpoints.encapsulation, Encapsulation::EspInUdp { .. }),
            local: endpoints.local,
            remote: endpoints.remote,
            is_covered: covered_by.is_some(),
            changed_if: CHANGED_IF,
        })
    }

    /// The longest datagram of an SA that is not cut after it was sealed, in bytes.
    pub(crate) fn path_mtu_of(&self, sa: SaRef) -> usize {
        let tunnel = self.outbound.get(sa).and_then(|sa| self.tunnel(sa.tunnel));
        tunnel.map_or(usize::MAX, |tunnel| tunnel.parameters.path_mtu)
    }
}
